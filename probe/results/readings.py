"""The frames `readings`, `decomposition`, `showcase` and `beside`: single sentences to look at."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from probe.experiments.readings import Examples, LessonReading, SecondReading
from probe.experiments.record import WordRecord
from probe.stats.limits import GATE
from probe.stats.numbers import listed, percent
from probe.text import lexicon
from probe.tidy import rounded, stacked

SENTENCE = ("word", "sense", "sentence", "sense_a", "sense_b")
READINGS = (
    "word",
    "sense",
    "sentence",
    "text",
    "sense_a",
    "sense_b",
    "layer",
    "head",
    "pos",
    "piece",
    "label",
    "attention",
    "contribution",
    "role",
)
DECOMPOSITION = (
    *SENTENCE,
    "component",
    "layer",
    "head",
    "pos",
    "token",
    "role",
    "norm",
    "contribution",
    "total",
    "closing",
)
LESSON = (
    "text",
    "word",
    "sense",
    "start",
    "end",
    "cue",
    "cue_start",
    "cue_end",
    "cue_after",
    "note",
)
SHOWCASE = (*LESSON, "reads_as", "coordinate", "sense_a", "sense_b", "difference")
SECOND_MODEL = (
    "model",
    "text",
    "word",
    "sense",
    "reads_as",
    "coordinate",
    "sense_a",
    "sense_b",
    "shown",
    "difference",
    "source",
    "share",
    "through",
    "cue",
    "cue_share",
    "cue_alone",
    "nothing",
)
NO_HEAD = "no head by itself"


def frames(records: Sequence[WordRecord]) -> dict[str, pd.DataFrame]:
    """`readings`: a row per sentence, head and token. `decomposition`: a row per term of a
    sentence. `showcase`: a row per sentence of the lesson."""
    whole_numbers = dict.fromkeys(("layer", "head", "pos"), "Int64")
    lessons = [lesson_row(lesson) for lesson in _lessons(records)]
    tables = {
        "readings": stacked(list(_readings(records)), READINGS),
        "decomposition": stacked(list(_decomposition(records)), DECOMPOSITION).astype(
            whole_numbers
        ),
        "showcase": pd.DataFrame(lessons, columns=list(SHOWCASE)),
    }
    return {name: rounded(frame) for name, frame in tables.items()}


def _examples(record: WordRecord) -> Examples:
    examples: Examples = record.measured.get("readings", Examples((), ()))
    return examples


def _key(record: WordRecord, sentence: int, senses: tuple[str, str]) -> dict[str, Any]:
    """The values of SENTENCE."""
    values = (record.word, record.labels[sentence], sentence, *senses)
    return dict(zip(SENTENCE, values, strict=True))


def _readings(records: Sequence[WordRecord]) -> Iterator[pd.DataFrame]:
    for record in records:
        for reading in _examples(record).readings:
            columns = _key(record, reading.sentence, reading.senses) | {
                "text": record.sentences[reading.sentence].text,
                "layer": reading.layer,
                "head": reading.head,
                "pos": range(len(reading.pieces)),
                "piece": reading.pieces,
                "label": reading.labels,
                "attention": reading.attention,
                "contribution": reading.contribution,
                "role": reading.role,
            }
            yield pd.DataFrame(columns)[list(READINGS)]


def _decomposition(records: Sequence[WordRecord]) -> Iterator[pd.DataFrame]:
    for record in records:
        for sentence in _examples(record).decomposed:
            terms = pd.DataFrame([asdict(term) for term in sentence.terms])
            key = _key(record, sentence.sentence, sentence.senses)
            totals = {"total": sentence.total, "closing": sentence.closing}
            terms["role"] = pd.Series(sentence.roles, dtype=object)
            yield terms.assign(**key, **totals)[list(DECOMPOSITION)]


def _lessons(records: Sequence[WordRecord]) -> list[LessonReading]:
    """The lesson's sentences in the lesson's own order."""
    order = {item.text: number for number, item in enumerate(lexicon.showcase())}
    lessons = [lesson for record in records for lesson in record.measured.get("lessons", ())]
    return sorted(lessons, key=lambda lesson: order[lesson.item.text])


def lesson_row(lesson: LessonReading) -> dict[str, Any]:
    """The values of SHOWCASE."""
    sense_a, sense_b = lesson.senses or (None, None)
    return {name: getattr(lesson.item, name) for name in LESSON} | {
        "reads_as": lesson.reads_as,
        "coordinate": lesson.coordinate,
        "sense_a": sense_a,
        "sense_b": sense_b,
        "difference": lesson.difference,
    }


def second_model(name: str, readings: Sequence[SecondReading]) -> pd.DataFrame:
    """The lesson's sentences whose cue comes later, in a second model of this name."""
    rows = []
    for reading in readings:
        through = [f"{head} ({percent(cost)})" for head, cost in reading.through]
        rows.append(
            lesson_row(reading.lesson)
            | {
                "model": name,
                "shown": reading.gap_p < GATE,
                "source": reading.source,
                "share": reading.share,
                "through": (listed(through) or NO_HEAD) if reading.source else None,
                "cue_share": reading.cue_share,
                "cue_alone": reading.cue_alone,
                "nothing": reading.nothing,
            }
        )
    return rounded(pd.DataFrame(rows, columns=list(SECOND_MODEL)))
