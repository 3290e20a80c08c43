"""A sample of the vocabulary as the cue of the word: the cue scan at the price of a few forward
passes, for a report. `probe.cues` tries every word.

The sample is uniform. It is as large as a fixed number of token positions allows, so the price is
the same for a deep model and a flat one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probe.errors import InputError
from probe.experiments.columns import Column, Columns, Table, as_elsewhere
from probe.experiments.cue_words import (
    FEWEST_CUES,
    Slots,
    ask,
    occur_in,
    without_beginnings,
)
from probe.experiments.cues import axes_of_sentences, scan
from probe.experiments.plan import Size, Work
from probe.experiments.record import WordRecord, leading_heads
from probe.experiments.run import LEADERS, Run
from probe.model.model import Model
from probe.model.tokens import whole_words
from probe.stats.resampling import Array

# Token positions that are run through all blocks, of cues and of what follows them: 12 batches of
# 16 sentences with 24 tokens.
POSITIONS = 12 * 16 * 24


@dataclass(frozen=True, eq=False)
class CueSample:
    """Some words of the vocabulary as the cue, means over the frames.

    senses: of the axis, the first is positive.
    heads: that are read for every cue, of the layers up to the read-out.
    cues, seen: the words, and whether they occur in the fitted sentences, in any form.
    drawn: tokens of letters that the sample consists of, of so many in the `vocabulary`.
    beginnings: of those drawn, how many were left out because they begin longer words.
    frames: the number of frames.
    reliability: how well halves of the frames agree about cues (split-half).
    coordinate, coordinate_sd: mean over the frames, and the spread. `cue`
    attention, score, write: `cue head`
    """

    senses: tuple[str, str]
    heads: tuple[tuple[int, int], ...]
    cues: tuple[str, ...]
    seen: Array
    vocabulary: int
    drawn: int
    beginnings: int
    frames: int
    reliability: float
    coordinate: Array
    coordinate_sd: Array
    attention: Array
    score: Array
    write: Array


RECORDS = (CueSample,)


def measure(run: Run) -> CueSample | None:
    """A sample of cues along the axis of the two senses that are furthest apart; None where heads
    of no two senses were swapped, and where the word has no place in the frames."""
    if not run.swapped:
        return None
    seen = run.seen
    pair, axes = axes_of_sentences(seen)
    vocabulary = shuffled_words(run.model, seed=run.options.seed)
    try:
        drawn = draw(run.model, seen.material.word, vocabulary, depth=axes.depth)
        slots = without_beginnings(run.model, drawn)
    except InputError:
        # The frames are English, and a vocabulary may hold too few whole words.
        return None
    first = leading_heads(run.pairs, run.weights.has_heads.numel() * run.weights.shape[1])
    heads = [head for head in first if head[0] < axes.depth][:LEADERS]
    found = scan(run.weights, slots.templates, slots.ids, axes, heads)
    texts = [seen.material.sentences[row].text for row in pair.split.rows]
    return CueSample(
        senses=axes.senses,
        heads=found.heads,
        cues=tuple(slots.words),
        seen=np.array(occur_in(texts, slots.words)),
        vocabulary=len(vocabulary),
        drawn=len(drawn.cues),
        beginnings=slots.beginnings,
        frames=len(slots.frames),
        reliability=found.reliability,
        coordinate=found.coordinate.mean(1),
        coordinate_sd=found.coordinate.std(1, ddof=1),
        attention=found.attention.mean(1),
        score=found.score.mean(1),
        write=found.write.mean(1),
    )


def shuffled_words(model: Model, *, seed: int) -> list[str]:
    """The tokens of letters in the vocabulary, in a random order."""
    words = whole_words(model)
    return [words[number] for number in np.random.default_rng(seed).permutation(len(words))]


def draw(model: Model, word: str, vocabulary: Sequence[str], *, depth: int) -> Slots:
    """The first words of the vocabulary as cues, as many as POSITIONS allows: every frame up to the
    read-out layer, and in a causal model the cue once through all layers, where it is asked whether
    it is a word.

    Raises InputError as `probe.experiments.cue_words.ask`.
    """
    templates = ask(model, word, cues=vocabulary[:FEWEST_CUES]).templates
    causal = model.config.causal
    of_cues = len(templates)  # one position of each frame
    after_cues = sum(each.at + 1 - len(each.before) for each in templates)
    whole = sum(len(each.before) + len(each.after) for each in templates)
    positions = of_cues + (after_cues if causal else whole)
    most = round(POSITIONS / (positions * depth / model.config.n_layers + causal))
    return ask(model, word, cues=vocabulary[: max(FEWEST_CUES, most)])


def work(size: Size) -> Work:
    """Each position of a text is a run of its own, as a swap is."""
    return Work(swaps=POSITIONS)


def _rows(record: WordRecord) -> Iterator[Columns]:
    found = record.measured.get("cue_sample")
    if found is None:
        return
    # A model may have no heads up to its read-out layer.
    heads = found.heads or ((None, None),)
    values = {
        name: getattr(found, name).ravel() if found.heads else np.nan
        for name in ("attention", "score", "write")
    }
    yield {
        "word": record.word,
        "sense_a": found.senses[0],
        "sense_b": found.senses[1],
        "cue": np.repeat(np.array(found.cues, dtype=object), len(heads)),
        "seen": np.repeat(found.seen, len(heads)),
        "coordinate": np.repeat(found.coordinate, len(heads)),
        "coordinate_sd": np.repeat(found.coordinate_sd, len(heads)),
        "layer": [layer for layer, _ in heads] * len(found.cues),
        "head": [head for _, head in heads] * len(found.cues),
        **values,
    }


COUNTS = ("vocabulary", "drawn", "beginnings", "frames", "reliability")


def _summary(record: WordRecord) -> Iterator[Columns]:
    found = record.measured.get("cue_sample")
    if found is not None:
        yield {
            "word": [record.word],
            "sense_a": [found.senses[0]],
            "sense_b": [found.senses[1]],
            "depth": [record.depth],
            "cues": [len(found.cues)],
            **{name: [getattr(found, name)] for name in COUNTS},
        }


TABLES = {
    "cue_sample": Table(
        "a sample of the vocabulary as the cue: where each word moves the ambiguous word, and what "
        "the leading heads do",
        {
            **as_elsewhere("word", "sense_a", "sense_b"),
            "cue": Column("the word that was tried as the cue"),
            **as_elsewhere("seen"),
            "coordinate": Column(
                "mean sense coordinate of the word over the frames (+0.5 the first sense's mean, "
                "-0.5 the second's)",
                "fraction of the sense gap",
            ),
            **as_elsewhere("coordinate_sd", "layer", "head"),
            "attention": Column(
                "the head's attention from the word to the cue, summed over the cue's tokens, mean "
                "over the frames",
                "0 to 1",
            ),
            **as_elsewhere("score", "write"),
        },
        _rows,
        missing=("layer", "head"),
    ),
    "cue_samples": Table(
        "the samples of cues in a line each",
        {
            **as_elsewhere("word", "sense_a", "sense_b"),
            "depth": Column("number of blocks passed where the word is read", "blocks"),
            "cues": Column("words that were tried as the cue", "count"),
            "vocabulary": Column("tokens of letters in the model's vocabulary", "count"),
            "drawn": Column("tokens that were drawn from them at random", "count"),
            **as_elsewhere("beginnings"),
            "frames": Column("short texts that every cue stood in", "count"),
            **as_elsewhere("reliability"),
        },
        _summary,
    ),
}
