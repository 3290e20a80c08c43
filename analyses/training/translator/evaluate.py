"""The evaluation of tiny-translator: sentences from frames unlike the training text, with seen and with held-out
cues.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import torch
from torch import Tensor
from transformers import BartForConditionalGeneration, PreTrainedTokenizerFast

from probe.text import lexicon
from training.translator.french import Noun
from training.translator.parallel import Pair, Topic, fill, plans, topics
from training.withheld import held_out

BATCH = 128
LONGEST = 48


@dataclass(frozen=True)
class Question:
    """A sentence with its translation.

    right: the French of its ambiguous word
    wrong: the French of the word's other senses
    """

    text: Pair
    word: str
    sense: str
    cue: str
    held_out: bool
    right: str
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Score:
    """The share of one sense's sentences with a correctly translated word, on seen and on held-out cues."""

    word: str
    sense: str
    french: str
    on_seen: float
    held_out: float
    n_seen: int
    n_held_out: int


@dataclass(frozen=True)
class Results:
    """The results of the evaluation.

    senses: the scores by sense
    tokens, sentences: shares of correct tokens and of correct whole sentences
    examples: the showcase sentences with their translations
    """

    senses: tuple[Score, ...]
    tokens: float
    sentences: float
    examples: tuple[tuple[str, str], ...]


@cache
def questions() -> tuple[Question, ...]:
    """Frames x senses x cues. *apple*, which has no article in one of its senses, only has frames without articles."""
    return tuple(
        _question(topic, cue, plan)
        for topic in topics()
        for kind in (("names",) if topic.name == "apple" else ("names", "phrases"))
        for plan in plans("frames.toml")[kind]
        for cue in topic.cues
    )


def _question(topic: Topic, cue: Noun, plan: tuple[str, str]) -> Question:
    word = Noun(topic.name, topic.word.fr, topic.word.gender)
    wrong = tuple(
        item.word.fr for item in topics() if item.name == topic.name and item is not topic
    )
    is_held_out = cue.en in held_out(topic.name, topic.sense)
    # The frames have no random parts, so the seed does not matter.
    text = fill(plan, {"W": word, "C": cue}, (), Random(0))
    return Question(text, topic.name, topic.sense, cue.en, is_held_out, topic.word.fr, wrong)


def translate(
    model: BartForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> list[list[int]]:
    """The ids of each translation by greedy decoding until the end token, without special tokens."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    result: list[list[int]] = [[] for _ in texts]
    for start in range(0, len(order), BATCH):
        chunk = order[start : start + BATCH]
        source = tokenizer([texts[i] for i in chunk], padding=True, return_tensors="pt")
        for i, row in zip(
            chunk,
            _greedy(model, source["input_ids"], source["attention_mask"]).tolist(),
            strict=True,
        ):
            end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
            result[i] = row[:end]
    return result


@torch.no_grad()
def _greedy(model: BartForConditionalGeneration, ids: Tensor, mask: Tensor) -> Tensor:
    """The ids by greedy decoding, without the start token. `text pos -> text target_pos`"""
    encoded = model.model.encoder(ids, attention_mask=mask)
    target = torch.full((len(ids), 1), model.config.decoder_start_token_id)
    is_finished = torch.zeros(len(ids), dtype=torch.bool)
    while not is_finished.all() and target.shape[1] <= LONGEST:
        out = model(
            encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=target, use_cache=False
        )
        next_ids = out.logits[:, -1].argmax(-1)
        is_finished |= next_ids == model.config.eos_token_id
        target = torch.cat([target, next_ids[:, None]], dim=1)
    return target[:, 1:]


def is_right(translation: str, question: Question) -> bool:
    """Whether the translation has the word of the right sense and of no other sense."""
    has_wrong = any(_has(translation, french) for french in question.wrong)
    return _has(translation, question.right) and not has_wrong


def _has(translation: str, french: str) -> bool:
    return re.search(rf"\b{re.escape(french)}\b", translation, re.IGNORECASE) is not None


def _score(topic: Topic, tested: Sequence[Question], right: Sequence[bool]) -> Score:
    halves: list[list[bool]] = [[], []]
    for question, hit in zip(tested, right, strict=True):
        if (question.word, question.sense) == (topic.name, topic.sense):
            halves[question.held_out].append(hit)
    on_seen, on_held_out = (sum(half) / len(half) for half in halves)
    return Score(topic.name, topic.sense, topic.word.fr, on_seen, on_held_out, *map(len, halves))


def evaluate(
    model: BartForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    tested: Sequence[Question] | None = None,
) -> Results:
    """The results of greedy translations of the questions and of the showcase sentences with words of the grammar.

    tested: by default all questions
    """
    tested = questions() if tested is None else tested
    outputs = translate(model, tokenizer, [question.text.en for question in tested])
    french = [question.text.fr for question in tested]
    references = tokenizer(french, add_special_tokens=False).input_ids
    right = [
        is_right(tokenizer.decode(ids), question)
        for ids, question in zip(outputs, tested, strict=True)
    ]
    both = list(zip(outputs, references, strict=True))
    hits = [sum(a == b for a, b in zip(*row, strict=False)) for row in both]
    tokens = sum(hits) / sum(max(map(len, row)) for row in both)
    whole = sum(a == b for a, b in both) / len(tested)
    words = {topic.name for topic in topics()}
    texts = list(dict.fromkeys(row.text for row in lexicon.showcase() if row.word in words))
    examples = tuple(
        zip(texts, map(tokenizer.decode, translate(model, tokenizer, texts)), strict=True)
    )
    by_sense = tuple(_score(topic, tested, right) for topic in topics())
    return Results(by_sense, tokens, whole, examples)


def overall(scores: Sequence[Score]) -> tuple[float, float]:
    """The share of correctly translated words over all senses: on seen cues, on held-out cues."""
    right_seen = sum(score.on_seen * score.n_seen for score in scores)
    right_held_out = sum(score.held_out * score.n_held_out for score in scores)
    on_seen = right_seen / sum(score.n_seen for score in scores)
    on_held_out = right_held_out / sum(score.n_held_out for score in scores)
    return on_seen, on_held_out
