"""Train tiny-translator: `python -m training.translator.train [--out DIR] [--seed N] [--steps N]`.

BART's architecture, trained from scratch on the parallel grammar. In sentences without an ambiguous word some English
words are masked, but the translation still contains them.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from training import cards, training, wordpieces
from training.training import PARTS
from training.translator import card, parallel
from training.translator.evaluate import evaluate, questions
from training.translator.hiding import hide

SEED = 1
STEPS = 3000
SIZE = 2000
BATCH_TOKENS = 768
SAMPLE = 20_000

Row = tuple[list[int], list[int]]


def new_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> BartForConditionalGeneration:
    """An untrained model of the shipped shape; the MLP's width differs from d_model on purpose."""
    torch.manual_seed(seed)
    config = BartConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=tokenizer.model_max_length,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        dropout=0.0,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        forced_eos_token_id=None,
    )
    config.architectures = ["BartForConditionalGeneration"]
    return BartForConditionalGeneration(config)


def new_tokenizer(*, seed: int) -> PreTrainedTokenizerFast:
    """One tokenizer for both languages, in which every word of the grammar and of the frames is one token."""
    pairs = [*parallel.units(SAMPLE, seed=seed), *(question.text for question in questions())]
    texts = [text for pair in pairs for text in (pair.en, pair.fr)]
    return wordpieces.build(texts, size=SIZE, must=(), special=wordpieces.TRANSLATOR)


def batches(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Iterator[list[Row]]:
    """Endless batches of source and target ids, with pairs of about the same length in a batch."""
    order = Random(seed)
    for part in range(PARTS):
        pairs = list(parallel.units(4000, seed=seed + 1 + part))
        sources = tokenizer([pair.en for pair in pairs]).input_ids
        hidden = [
            hide(ids, tokenizer, order) if pair.hidable else ids
            for pair, ids in zip(pairs, sources, strict=True)
        ]
        targets = tokenizer([pair.fr for pair in pairs]).input_ids
        groups = training.grouped(
            zip(hidden, targets, strict=True), limit=BATCH_TOKENS, size=lambda row: len(row[1])
        )
        order.shuffle(groups)
        yield from groups


def step_loss(model: BartForConditionalGeneration, rows: list[Row]) -> Tensor:
    """Mean loss over the target tokens of one batch."""
    pad, begin = model.config.pad_token_id, model.config.decoder_start_token_id
    sources, targets = (training.padded([row[side] for row in rows], pad) for side in (0, 1))
    decoder_input = torch.cat([torch.full((len(rows), 1), begin), targets[:, :-1]], dim=1)
    out = model(
        input_ids=sources,
        attention_mask=(sources != pad).long(),
        decoder_input_ids=decoder_input,
        use_cache=False,
    )
    return cross_entropy(out.logits.flatten(0, 1), targets.flatten(), ignore_index=pad)


def fit(
    model: BartForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    *,
    steps: int,
    seed: int,
) -> Iterator[float]:
    """Train in place; yield the loss of every step."""
    stream = batches(tokenizer, seed=2 * seed * PARTS)
    blocks = ("model.encoder.layers.", "model.decoder.layers.")
    return training.descend(
        model, lambda step: step_loss(model, next(stream)), steps=steps, blocks=blocks
    )


def train(out: Path, *, seed: int = SEED, steps: int = STEPS) -> None:
    """Build the tokenizer, train, evaluate, and write the folder with its card."""
    started = training.prepare()
    tokenizer = new_tokenizer(seed=seed)
    model = new_model(tokenizer, seed=seed)
    minutes = training.follow(
        fit(model, tokenizer, steps=steps, seed=seed), steps=steps, started=started
    )
    training.save(model, tokenizer, out)
    facts = cards.Facts(seed, steps, minutes, model.num_parameters(), len(tokenizer))
    training.save_card(card.write(facts, evaluate(model, tokenizer)), out)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    training.run(train, arguments, kind="translator", seed=SEED, steps=STEPS)


if __name__ == "__main__":
    main()
