"""A cue scan over a sample of the vocabulary, at the cost of a few forward passes, for a report.
`probe.cues` scans every word.

The sample is uniform. Its size is limited by a fixed number of token positions, so the cost is the
same for deep and shallow models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probe.errors import InputError
from probe.experiments.columns import Column, Columns, Table, as_elsewhere, from_parts
from probe.experiments.cue_words import (
    FEWEST_CUES,
    Slots,
    ask,
    occur_in,
    without_beginnings,
)
from probe.experiments.cues import axes_of_sentences, scan
from probe.experiments.record import WordRecord
from probe.experiments.run import Run
from probe.model.model import Model
from probe.model.tokens import whole_words
from probe.stats.resampling import Array

# Positions of cues and of the tokens after them, run through all blocks: 12 batches of 16 sentences
# with 24 tokens.
ORDER = 40
NEEDS = ()
ANSWERS = False
SECONDS = 12.0
POSITIONS = 12 * 16 * 24


@dataclass(frozen=True, eq=False)
class CueSample:
    """The scan of a sample of words as the cue. Numbers are means over the frames.

    senses: the two senses of the axis; the first is at the positive end
    heads: the top heads in the layers up to the read-out layer
    cues: the words
    seen: `cue`, whether the word occurs in the fitted sentences, in any form
    vocabulary: the number of tokens of letters in the vocabulary
    drawn: the number of these tokens in the sample
    beginnings: the number of tokens in the sample that were left out because they begin longer
        words
    frames: the number of frames
    reliability: split-half reliability of the coordinates over frames
    coordinate, coordinate_sd: `cue`, mean and standard deviation over the frames, in fractions of
        the gap
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
    """The scan of a sample of cues along the axis of the two senses that are furthest apart.

    None if no heads were swapped, if the word does not fit into the frames, and if too few cues do.
    """
    if not run.swapped_pairs:
        return None
    observation = run.observation
    pair, axes = axes_of_sentences(observation)
    vocabulary = shuffled_words(run.model, seed=run.options.seed)
    try:
        sample = draw(run.model, observation.material.word, vocabulary, depth=axes.depth)
        slots = without_beginnings(run.model, sample)
    except InputError:
        # The frames are English, and a vocabulary may contain too few whole words. A report then
        # has no sample; `probe.cues` raises the error.
        return None
    heads = [head for head in run.top_heads if head[0] < axes.depth]
    scanned = scan(run.weights, slots.templates, slots.ids, axes, heads)
    texts = [observation.material.sentences[row].text for row in pair.split.rows]
    return CueSample(
        senses=axes.senses,
        heads=scanned.heads,
        cues=tuple(slots.words),
        seen=np.array(occur_in(texts, slots.words)),
        vocabulary=len(vocabulary),
        drawn=len(sample.cues),
        beginnings=slots.beginnings,
        frames=len(slots.frames),
        reliability=scanned.reliability,
        coordinate=scanned.coordinate.mean(1),
        coordinate_sd=scanned.coordinate.std(1, ddof=1),
        attention=scanned.attention.mean(1),
        score=scanned.score.mean(1),
        write=scanned.write.mean(1),
    )


def shuffled_words(model: Model, *, seed: int) -> list[str]:
    """The tokens of letters in the vocabulary, in random order."""
    words = whole_words(model)
    return [words[number] for number in np.random.default_rng(seed).permutation(len(words))]


def draw(model: Model, word: str, vocabulary: Sequence[str], *, depth: int) -> Slots:
    """The frames, and the first words of the vocabulary as cues, up to the number that POSITIONS
    allows.

    A cue costs its positions in every frame up to the read-out layer. In a causal model, it also
    costs one position through all layers, to find out whether it is a word.

    depth: the read-out layer

    Raises what `probe.experiments.cue_words.ask` raises.
    """
    templates = ask(model, word, cues=vocabulary[:FEWEST_CUES]).templates
    causal = model.config.causal
    of_cues = len(templates)  # one position of each frame
    after_cues = sum(each.at + 1 - len(each.before) for each in templates)
    whole = sum(len(each.before) + len(each.after) for each in templates)
    # A causal model runs the tokens before the cue once for all cues.
    positions = of_cues + (after_cues if causal else whole)
    # cues = POSITIONS / (positions · depth / layers + 1 if causal)
    affordable = round(POSITIONS / (positions * depth / model.config.n_layers + causal))
    return ask(model, word, cues=vocabulary[: max(FEWEST_CUES, affordable)])


def _rows(record: WordRecord) -> Iterator[Columns]:
    sample = record.measured.get("cue_sample")
    if sample is None:
        return
    # A model may have no heads up to its read-out layer.
    heads = sample.heads or ((None, None),)
    values = {
        name: getattr(sample, name).ravel() if sample.heads else np.nan
        for name in ("attention", "score", "write")
    }
    yield {
        "word": record.word,
        "sense_a": sample.senses[0],
        "sense_b": sample.senses[1],
        "cue": np.repeat(np.array(sample.cues, dtype=object), len(heads)),
        "seen": np.repeat(sample.seen, len(heads)),
        "coordinate": np.repeat(sample.coordinate, len(heads)),
        "coordinate_sd": np.repeat(sample.coordinate_sd, len(heads)),
        "layer": [layer for layer, _ in heads] * len(sample.cues),
        "head": [head for _, head in heads] * len(sample.cues),
        **values,
    }


COUNTS = ("vocabulary", "drawn", "beginnings", "frames", "reliability")


def _summary(record: WordRecord) -> Iterator[Columns]:
    sample = record.measured.get("cue_sample")
    if sample is not None:
        yield {
            "word": [record.word],
            "sense_a": [sample.senses[0]],
            "sense_b": [sample.senses[1]],
            "depth": [record.depth],
            "cues": [len(sample.cues)],
            **{name: [getattr(sample, name)] for name in COUNTS},
        }


TABLES = {
    "cue_sample": Table(
        "a sample of the vocabulary as the cue: how far each word moves the ambiguous word, and "
        "what the top heads read and write",
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
        from_parts(_rows),
        missing=("layer", "head"),
    ),
    "cue_samples": Table(
        "the samples of cues, one row each",
        {
            **as_elsewhere("word", "sense_a", "sense_b"),
            "depth": Column("number of blocks passed where the word is read", "blocks"),
            "cues": Column("words that were tried as the cue", "count"),
            "vocabulary": Column("tokens of letters in the model's vocabulary", "count"),
            "drawn": Column("tokens that were drawn from them at random", "count"),
            **as_elsewhere("beginnings"),
            "frames": Column("short texts that every cue was put into", "count"),
            **as_elsewhere("reliability"),
        },
        from_parts(_summary),
    ),
}
