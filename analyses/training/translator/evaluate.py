"""What tiny-translator can do: sentences from frames that training never came near, with seen and with held-out
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
    """A sentence with its translation, the French of its ambiguous word and that of the word's other senses."""

    text: Pair
    word: str
    sense: str
    cue: str
    held_out: bool
    right: str
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Score:
    """The share of one sense's sentences whose word was translated right, on seen and on held-out cues."""

    word: str
    sense: str
    french: str
    seen: float
    held_out: float
    n_seen: int
    n_held_out: int


@dataclass(frozen=True)
class Results:
    """The scores by sense, tokens and whole sentences that are right, and the showcase sentences with what became of
    them.
    """

    senses: tuple[Score, ...]
    tokens: float
    sentences: float
    shown: tuple[tuple[str, str], ...]


@cache
def questions() -> tuple[Question, ...]:
    """Frames x senses x cues; apple, which has no article in one of its senses, only in the frames without articles."""
    return tuple(
        _question(topic, cue, plan)
        for topic in topics()
        for kind in (("names",) if topic.name == "apple" else ("names", "phrases"))
        for plan in plans("frames.toml")[kind]
        for cue in topic.cues
    )


def _question(topic: Topic, cue: Noun, plan: tuple[str, str]) -> Question:
    word = Noun(topic.name, topic.word.fr, topic.word.gender)
    others = tuple(
        item.word.fr for item in topics() if item.name == topic.name and item is not topic
    )
    held = cue.en in held_out(topic.name, topic.sense)
    # The frames leave nothing to chance.
    text = fill(plan, {"W": word, "C": cue}, (), Random(0))
    return Question(text, topic.name, topic.sense, cue.en, held, topic.word.fr, others)


def translate(
    model: BartForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> list[list[int]]:
    """The most likely token at every step until the end mark: the ids of each translation, without special tokens."""
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
    """`text pos` to `text target_pos`, the start token left out."""
    encoded = model.model.encoder(ids, attention_mask=mask)
    target = torch.full((len(ids), 1), model.config.decoder_start_token_id)
    done = torch.zeros(len(ids), dtype=torch.bool)
    while not done.all() and target.shape[1] <= LONGEST:
        out = model(
            encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=target, use_cache=False
        )
        said = out.logits[:, -1].argmax(-1)
        done |= said == model.config.eos_token_id
        target = torch.cat([target, said[:, None]], dim=1)
    return target[:, 1:]


def is_right(said: str, question: Question) -> bool:
    """Whether the translation holds the word of the right sense and none of the others."""
    return _holds(said, question.right) and not any(_holds(said, other) for other in question.wrong)


def _holds(said: str, french: str) -> bool:
    return re.search(rf"\b{re.escape(french)}\b", said, re.IGNORECASE) is not None


def _score(topic: Topic, asked: Sequence[Question], right: Sequence[bool]) -> Score:
    halves: list[list[bool]] = [[], []]
    for question, hit in zip(asked, right, strict=True):
        if (question.word, question.sense) == (topic.name, topic.sense):
            halves[question.held_out].append(hit)
    seen, held = (sum(half) / len(half) for half in halves)
    return Score(topic.name, topic.sense, topic.word.fr, seen, held, *map(len, halves))


def evaluate(
    model: BartForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    asked: Sequence[Question] | None = None,
) -> Results:
    """Translates every question (or those given) and the showcase sentences of the grammar's words, greedily."""
    asked = questions() if asked is None else asked
    said = translate(model, tokenizer, [question.text.en for question in asked])
    wanted = tokenizer([question.text.fr for question in asked], add_special_tokens=False).input_ids
    right = [
        is_right(tokenizer.decode(ids), question) for ids, question in zip(said, asked, strict=True)
    ]
    hits = [
        sum(a == b for a, b in zip(*row, strict=False)) for row in zip(said, wanted, strict=True)
    ]
    tokens = sum(hits) / sum(max(len(a), len(b)) for a, b in zip(said, wanted, strict=True))
    whole = sum(a == b for a, b in zip(said, wanted, strict=True)) / len(asked)
    known = {topic.name for topic in topics()}
    texts = list(dict.fromkeys(row.text for row in lexicon.showcase() if row.word in known))
    shown = tuple(
        zip(texts, map(tokenizer.decode, translate(model, tokenizer, texts)), strict=True)
    )
    return Results(tuple(_score(topic, asked, right) for topic in topics()), tokens, whole, shown)


def overall(scores: Sequence[Score]) -> tuple[float, float]:
    """The share of words that were translated right over all senses: on seen cues, on held-out cues."""
    seen = sum(score.seen * score.n_seen for score in scores) / sum(
        score.n_seen for score in scores
    )
    held = sum(score.held_out * score.n_held_out for score in scores) / sum(
        score.n_held_out for score in scores
    )
    return seen, held
