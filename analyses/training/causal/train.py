"""Train tiny-senses: `python -m training.causal.train [--out DIR] [--seed N] [--steps N]`.

GPT-2's architecture, trained from scratch on the grammar's text. Every text begins and ends with BOS. A third of the
batches start at a random position, so that every position of the context window is trained; the others start at
position 0.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from training import cards, grammar, training, wordpieces
from training.causal import card
from training.causal.evaluate import evaluate
from training.training import IGNORED, PARTS

SEED = 1
STEPS = 7000
N_CTX = 256
BATCH_TOKENS = 512
LONG_EVERY = 16
SAMPLE = 30_000


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


def batches(
    tokenizer: PreTrainedTokenizerFast, *, seed: int, long: bool
) -> Iterator[list[list[int]]]:
    """Endless batches of token ids, with texts of about the same length in a batch. Texts longer than the context
    window are omitted.
    """
    order = Random(seed)
    end = tokenizer.bos_token_id
    for part in range(PARTS):
        texts = list(grammar.units(500 if long else 8000, seed=seed + 1 + part, long=long))
        rows = [[end, *ids, end] for ids in tokenizer(texts, verbose=False).input_ids]
        groups = training.grouped([row for row in rows if len(row) <= N_CTX], limit=BATCH_TOKENS)
        order.shuffle(groups)
        yield from groups


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


def fit(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, *, steps: int, seed: int
) -> Iterator[float]:
    """Train in place; yield the loss of every step."""
    short, long = (
        batches(tokenizer, seed=(2 * seed + long) * PARTS, long=bool(long)) for long in (0, 1)
    )
    offsets = Random(seed)

    def loss(step: int) -> Tensor:
        rows = next(long if step % LONG_EVERY == LONG_EVERY - 1 else short)
        largest_offset = N_CTX - max(map(len, rows))
        return step_loss(model, rows, offsets.randint(0, largest_offset) if step % 3 == 1 else 0)

    return training.descend(model, loss, steps=steps, blocks=("transformer.h.",))


def train(out: Path, *, seed: int = SEED, steps: int = STEPS) -> None:
    """Build the tokenizer, train, evaluate, and write the folder with its card."""
    started = training.prepare()
    texts = list(grammar.units(SAMPLE, seed=seed))
    tokenizer = wordpieces.build(texts)
    model = new_model(tokenizer, seed=seed)
    minutes = training.follow(
        fit(model, tokenizer, steps=steps, seed=seed), steps=steps, started=started
    )
    training.save(model, tokenizer, out)
    facts = cards.Facts(seed, steps, minutes, model.num_parameters(), len(tokenizer))
    training.save_card(card.write(facts, evaluate(model, tokenizer), cards.count_types(texts)), out)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    training.run(train, arguments, kind="causal", seed=SEED, steps=STEPS)


if __name__ == "__main__":
    main()
