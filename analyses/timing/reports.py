"""The cost of a report as its sentences, heads, layers and texts grow, and of a survey as its words do.

Small models with random weights: times depend on shapes alone. An untrained model has no gap between senses, so the
gate is disabled, and every head is swapped as in a model with a gap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import process_time
from typing import Any

import pandas as pd

from probe.experiments.material import prepare
from probe.experiments.measure import measure
from probe.experiments.observe import split_senses
from probe.model.check import certify
from probe.model.load import load, untrained
from probe.model.model import Model
from probe.studies.cost import size_of, work_of
from probe.studies.study import STUDY_DEFAULTS, conclude
from probe.studies.survey import survey
from probe.text import lexicon
from probe.text.sentences import Sentence
from timing.clock import exponent, extra_memory
from timing.work import shaped, words_of

WORD = "bank"
FEW = replace(STUDY_DEFAULTS, gate=False, pairs=8, permutations=99)
SURVEY_SENTENCES = 24  # of each word of a survey
LONGEST = 512  # tokens of a text
COLUMNS = ("of", "axis", "size", "seconds", "megabytes", "passes")


@dataclass(frozen=True)
class Size:
    """The size of a report.

    tokens: of filler before every sentence
    """

    sentences: int = 48
    layers: int = 2
    heads: int = 4
    tokens: int = 0


AXES = {
    "sentences": (96, 192, 384, 768),
    "layers": (2, 4, 8, 16),
    "heads": (2, 4, 8, 16),
    "tokens": (16, 32, 64, 128, 256),
}
WORDS = (4, 8, 16, 32)  # of a survey


def report_growth(axis: str, sizes: Sequence[int]) -> pd.DataFrame:
    """Processor seconds, extra MiB and planned work of a report as one of AXES grows.

    `passes`: of one position through one block, an upper bound: the planned work of the report.
    """
    rows = []
    _report(_model(Size()), Size())  # loads and allocates what is needed only once
    for number in sizes:
        size = replace(Size(), **{axis: number})
        rows.append(("report", axis, number, *_measure(_model(size), size)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def survey_growth(sizes: Sequence[int] = WORDS) -> pd.DataFrame:
    """The same for a survey as the number of its words grows; its work is the number of words."""
    model = _model(Size())
    rows = []
    for number in (min(sizes), *sizes):
        sentences = [
            replace(row, word=f"{WORD}{word}")
            for word in range(number)
            for row in _sentences(model, Size(sentences=SURVEY_SENTENCES))
        ]
        seconds: list[float] = []
        megabytes, _ = extra_memory(_timed(partial(survey, model, sentences), seconds))
        rows.append(("survey", "words", number, seconds[0], megabytes, number))
    return pd.DataFrame(rows[1:], columns=list(COLUMNS))


def growth_exponents(grown: pd.DataFrame) -> pd.DataFrame:
    """The exponents of time, memory and planned work for each axis: the slopes of their logarithms."""
    rows: list[Mapping[str, Any]] = []
    for (of, axis), part in grown.groupby(["of", "axis"], sort=False):
        fitted = {
            name: exponent(part["size"].tolist(), part[name].tolist())
            for name in ("seconds", "megabytes", "passes")
        }
        rows.append({"of": of, "axis": axis} | fitted)
    return pd.DataFrame(rows)


def _model(size: Size) -> Model:
    vocabulary = load("tiny-senses").config.d_vocab
    return shaped(
        "tiny",
        n_layer=size.layers,
        n_head=size.heads,
        n_embd=128,
        n_positions=LONGEST,
        vocab_size=vocabulary,
        bos_token_id=0,
        eos_token_id=0,
    )


def _measure(model: Model, size: Size) -> tuple[float, float, float]:
    seconds: list[float] = []
    work: list[float] = []
    megabytes, _ = extra_memory(_timed(lambda: work.append(_report(model, size)), seconds))
    return seconds[0], megabytes, work[0]


def _timed(run: Any, seconds: list[float]) -> Any:
    """The same work, whose processor seconds are appended to `seconds`: other processes do not count."""

    def timed() -> None:
        started = process_time()
        run()
        seconds.append(process_time() - started)

    return timed


def _report(model: Model, size: Size) -> float:
    """Run everything of a report but its page. Return its planned work, in passes of a position through a block."""
    sentences = _sentences(model, size)
    material = prepare(model, WORD, sentences)
    splits = split_senses(material, seed=0, causal=True)
    work = work_of(size_of(model, material, splits, FEW))
    certificate = certify(model, [sentences[0].text]).require()
    record = measure(model, material, splits, FEW, random_model=untrained(model, seed=0))
    conclude([record], certificate, {}, seed=0)
    length = sum(map(len, material.tokens)) / len(material)
    return size.layers * (work.forwards * length + work.likely_swaps)


def _sentences(model: Model, size: Size) -> list[Sentence]:
    """Sentences of the grammar, with filler before each."""
    sentences = lexicon.expand(WORD).sentences[: size.sentences]
    words = [word.strip() for word in words_of(model)]
    filler = "".join(f"{words[number % len(words)]} " for number in range(size.tokens))
    return [_after(filler, row) for row in sentences]


def _after(filler: str, row: Sentence) -> Sentence:
    spans = ("start", "end", "cue_start", "cue_end")
    shifted = {
        name: getattr(row, name) + len(filler) for name in spans if getattr(row, name) is not None
    }
    return replace(row, text=filler + row.text, **shifted)
