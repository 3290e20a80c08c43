"""Train tiny-senses-bidirectional: `python -m training.bidirectional.train [--out DIR] [--seed N] [--steps N]`.

BERT's architecture, trained to restore words that were masked or replaced, in the grammar's text and in the same plans
with the cue after the word. The word vectors start as those of tiny-senses, so that fewer steps are needed; all other
parameters start at random.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from probe.model.find import EMBEDDED_FOLDER
from training import cards, training, wordpieces
from training.bidirectional import after, card
from training.bidirectional.evaluate import evaluate
from training.bidirectional.hiding import Lists, hide, lists
from training.training import PARTS

SEED = 3
STEPS = 12000
SIZE = 3300
BATCH_TOKENS = 1024
SAMPLE = 30_000
# Post-norm blocks want smaller steps than pre-norm ones.
RATES = (0.01, 0.002)
# The spread of the word vectors at the start.
SPREAD = 0.04


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
    model = BertForMaskedLM(config)
    _take_over(model.bert.embeddings.word_embeddings.weight, tokenizer)
    return model


@torch.no_grad()
def _take_over(embeddings: Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
    """Copy the word vectors of tiny-senses for the tokens that both vocabularies have."""
    folder = EMBEDDED_FOLDER / training.MODELS["causal"]
    theirs = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    for token, i in tokenizer.get_vocab().items():
        if token in vocabulary:
            embeddings[i] = theirs[vocabulary[token]] * (SPREAD / theirs.std())


def batches(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Iterator[list[list[int]]]:
    """Endless batches of token ids, with texts of about the same length in a batch. Texts longer than the context
    window are omitted.
    """
    order = Random(seed)
    for part in range(PARTS):
        rows = tokenizer(list(after.units(8000, seed=seed + 1 + part)), verbose=False).input_ids
        fitting = [row for row in rows if len(row) <= tokenizer.model_max_length]
        groups = training.grouped(fitting, limit=BATCH_TOKENS)
        order.shuffle(groups)
        yield from groups


def step_loss(
    model: BertForMaskedLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: list[list[int]],
    *,
    vocabulary: Lists,
    dice: torch.Generator,
) -> Tensor:
    """Mean loss over the predicted tokens of one batch."""
    ids = training.padded(rows, tokenizer.pad_token_id)
    mask = (ids != tokenizer.pad_token_id).long()
    masked, predicted = hide(ids, tokenizer, vocabulary, dice)
    states = model.bert(masked, attention_mask=mask).last_hidden_state
    return cross_entropy(model.cls(states[predicted]), ids[predicted])


def fit(
    model: BertForMaskedLM, tokenizer: PreTrainedTokenizerFast, *, steps: int, seed: int
) -> Iterator[float]:
    """Train in place; yield the loss of every step."""
    stream = batches(tokenizer, seed=2 * seed * PARTS)
    dice = torch.Generator().manual_seed(seed)
    vocabulary = lists(tokenizer)
    return training.descend(
        model,
        lambda step: step_loss(model, tokenizer, next(stream), vocabulary=vocabulary, dice=dice),
        steps=steps,
        blocks=("bert.encoder.layer.", "cls.predictions.transform."),
        rates=RATES,
    )


def train(out: Path, *, seed: int = SEED, steps: int = STEPS) -> None:
    """Build the tokenizer, train, evaluate, and write the folder with its card."""
    started = training.prepare()
    texts = list(after.units(SAMPLE, seed=seed))
    tokenizer = wordpieces.build(texts, size=SIZE, special=wordpieces.BIDIRECTIONAL)
    model = new_model(tokenizer, seed=seed)
    minutes = training.follow(
        fit(model, tokenizer, steps=steps, seed=seed), steps=steps, started=started
    )
    training.save(model, tokenizer, out)
    facts = cards.Facts(seed, steps, minutes, model.num_parameters(), len(tokenizer))
    training.save_card(card.write(facts, evaluate(model, tokenizer), cards.count_types(texts)), out)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    training.run(train, arguments, kind="bidirectional", seed=SEED, steps=STEPS)


if __name__ == "__main__":
    main()
