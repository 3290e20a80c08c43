"""Makes tiny-senses again: `python -m probe.embedded.train [--out DIR] [--seed N] [--steps N]`.

GPT-2's architecture, trained from scratch on the grammar's text. Every text starts with BOS and ends with it. A third of
the batches stand at a random offset, so that every position of the context window is trained; the others start at position 0.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from probe.embedded import card, grammar, wordpieces
from probe.embedded.evaluate import evaluate

SEED = 1
STEPS = 7000
THREADS = 1
N_CTX = 256
BATCH_TOKENS = 512
LONG_EVERY = 16
SAMPLE = 30_000
MUON_RATE = 0.02
ADAM_RATE = 3e-3
WARM_UP = 100
PARTS = 1_000_000
IGNORED = -100


def new_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> GPT2LMHeadModel:
    """An untrained model of the shipped shape. n_inner differs from n_embd on purpose."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=N_CTX,
        n_embd=128,
        n_layer=4,
        n_head=4,
        n_inner=256,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config.architectures = ["GPT2LMHeadModel"]
    return GPT2LMHeadModel(config)


def batches(tokenizer: PreTrainedTokenizerFast, *, seed: int, long: bool) -> Iterator[list[list[int]]]:
    """Endless batches of token ids, texts of about one length together; texts beyond the context window are left out."""
    order = Random(seed)
    end = tokenizer.bos_token_id
    for part in range(PARTS):
        texts = list(grammar.units(500 if long else 8000, seed=seed + 1 + part, long=long))
        rows = [[end, *ids, end] for ids in tokenizer(texts, verbose=False).input_ids]
        rows = sorted((row for row in rows if len(row) <= N_CTX), key=len)
        found: list[list[list[int]]] = [[]]
        for row in rows:
            if found[-1] and len(row) * (len(found[-1]) + 1) > BATCH_TOKENS:
                found.append([])
            found[-1].append(row)
        order.shuffle(found)
        yield from found


def step_loss(model: GPT2LMHeadModel, rows: list[list[int]], offset: int) -> Tensor:
    """Mean next-token loss of one batch, its positions counted from `offset`."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    targets = torch.full((len(rows), width), IGNORED)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        targets[i, : len(row) - 1] = torch.tensor(row[1:])
    position = torch.arange(offset, offset + width)[None]
    logits = model(ids, position_ids=position).logits
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def optimizers(model: GPT2LMHeadModel) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the blocks, AdamW for embeddings, biases and LayerNorms: half the steps AdamW alone takes."""
    inside = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("transformer.h.")]
    known = {id(p) for p in inside}
    rest = [p for p in model.parameters() if id(p) not in known]
    return (
        torch.optim.Muon(inside, lr=MUON_RATE, weight_decay=0.0, momentum=0.95),
        torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    )


def fit(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, *, steps: int, seed: int) -> Iterator[float]:
    """Trains in place, rates rising for WARM_UP steps and falling in a line to a fiftieth; yields the loss of every step."""
    short, long = (batches(tokenizer, seed=(2 * seed + long) * PARTS, long=bool(long)) for long in (0, 1))
    used = optimizers(model)
    rates = [
        torch.optim.lr_scheduler.LambdaLR(one, lambda step: min(1.0, (step + 1) / WARM_UP) * (1 - 0.98 * step / steps))
        for one in used
    ]
    offsets = Random(seed)
    model.train()
    for step in range(steps):
        rows = next(long if step % LONG_EVERY == LONG_EVERY - 1 else short)
        room = N_CTX - max(map(len, rows))
        loss = step_loss(model, rows, offsets.randint(0, room) if step % 3 == 1 else 0)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, rate in zip(used, rates, strict=True):
            optimizer.step()
            rate.step()
        yield loss.item()
    model.eval()


def train(out: Path, *, seed: int = SEED, steps: int = STEPS) -> None:
    """Builds the tokenizer, trains, evaluates, and writes the folder with its card."""
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)
    started = time.process_time()
    texts = list(grammar.units(SAMPLE, seed=seed))
    tokenizer = wordpieces.build(texts)
    model = new_model(tokenizer, seed=seed)
    running = 0.0
    for step, loss in enumerate(fit(model, tokenizer, steps=steps, seed=seed), start=1):
        running = loss if step == 1 else 0.98 * running + 0.02 * loss
        if step % 100 == 0:
            minutes = (time.process_time() - started) / 60
            sys.stderr.write(f"step {step} of {steps}, loss {running:.3f}, {minutes:.1f} minutes\n")
    minutes = (time.process_time() - started) / 60
    model.save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    wordpieces.save(tokenizer, out)
    facts = card.Facts(seed, steps, minutes, sum(p.numel() for p in model.parameters()), len(tokenizer))
    text = card.write(facts, evaluate(model, tokenizer), card.count_types(texts))
    (out / "card.md").write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m probe.embedded.train", description=train.__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "tiny-senses", help="the folder to write")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(arguments)
    train(options.out, seed=options.seed, steps=options.steps)


if __name__ == "__main__":
    main()
