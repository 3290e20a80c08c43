"""Makes tiny-senses-bidirectional again: `python -m probe.embedded.bidirectional.train [--out DIR] [--seed N] [--steps N]`.

BERT's architecture, trained from scratch to bring back words that were hidden or replaced, on the grammar's text and on the
same plans with the cue behind the word.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from probe.embedded import training, wordpieces
from probe.embedded.bidirectional import after
from probe.embedded.bidirectional.evaluate import evaluate
from probe.embedded.training import PARTS
from random import Random

SEED = 1
STEPS = 9000
SIZE = 3300
BATCH_TOKENS = 768
SAMPLE = 30_000
# Of all words, how many are asked for; of these, how many are hidden and how many replaced by another word.
ASKED, HIDDEN, REPLACED = 0.25, 0.7, 0.2


def new_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> BertForMaskedLM:
    """An untrained model of the shipped shape; the MLP's width differs from d_model on purpose."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=tokenizer.model_max_length,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    config.architectures = ["BertForMaskedLM"]
    return BertForMaskedLM(config)


def batches(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Iterator[list[list[int]]]:
    """Endless batches of token ids, texts of about one length together; texts beyond the context window are left out."""
    order = Random(seed)
    for part in range(PARTS):
        rows = tokenizer(list(after.units(8000, seed=seed + 1 + part)), verbose=False).input_ids
        fitting = [row for row in rows if len(row) <= tokenizer.model_max_length]
        found = training.grouped(fitting, most=BATCH_TOKENS)
        order.shuffle(found)
        yield from found


def hide(ids: Tensor, *, asked: Tensor, tokenizer: PreTrainedTokenizerFast, dice: torch.Generator) -> Tensor:
    """The ids with most of the asked words hidden by the mask, some replaced by any token, some left. `text pos`"""
    draw = torch.rand(ids.shape, generator=dice)
    other = torch.randint(len(tokenizer.all_special_ids), len(tokenizer), ids.shape, generator=dice)
    hidden = ids.masked_fill(asked & (draw < HIDDEN), tokenizer.mask_token_id)
    return torch.where(asked & (draw >= HIDDEN) & (draw < HIDDEN + REPLACED), other, hidden)


def step_loss(
    model: BertForMaskedLM, tokenizer: PreTrainedTokenizerFast, rows: list[list[int]], dice: torch.Generator
) -> Tensor:
    """Mean loss over the words that are asked for in one batch."""
    padded = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    ids, mask = padded["input_ids"], padded["attention_mask"]
    plain = ids >= len(tokenizer.all_special_ids)
    asked = plain & (torch.rand(ids.shape, generator=dice) < ASKED)
    given = hide(ids, asked=asked, tokenizer=tokenizer, dice=dice)
    states = model.bert(given, attention_mask=mask).last_hidden_state
    return cross_entropy(model.cls(states[asked]), ids[asked])


def fit(model: BertForMaskedLM, tokenizer: PreTrainedTokenizerFast, *, steps: int, seed: int) -> Iterator[float]:
    """Trains in place; yields the loss of every step."""
    drawn = batches(tokenizer, seed=2 * seed * PARTS)
    dice = torch.Generator().manual_seed(seed)
    return training.descend(
        model,
        lambda step: step_loss(model, tokenizer, next(drawn), dice),
        steps=steps,
        blocks=("bert.encoder.layer.", "cls.predictions.transform."),
    )
