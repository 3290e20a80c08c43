"""A cue scan over a sample of the vocabulary, at the cost of a few forward passes, for a report.
`probe.cues` scans every word.

The sample is uniform. Its size is limited by a fixed number of token positions, so the cost is the
same for deep and shallow models.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from probe.errors import InputError
from probe.experiments.columns import KEYS, Column, Table, as_elsewhere, dataset, or_missing, rows
from probe.experiments.cues import (
    FEWEST_CUES,
    Slots,
    ask,
    axes_of_sentences,
    occur_in,
    scan,
    split_half,
    without_beginnings,
    without_cue,
)
from probe.experiments.record import WordRecord
from probe.experiments.run import WordRun
from probe.model.model import Model
from probe.model.tokens import whole_words

if TYPE_CHECKING:
    import xarray as xr

ORDER = 40
NEEDS = ()
ANSWERS = False
SECONDS = 13.0
HEADING = ""
TITLE = "Other cues"
# Positions of cues and of the tokens after them, run through all blocks: 12 batches of 16 sentences
# with 24 tokens.
POSITIONS = 12 * 16 * 24


def summaries(record: WordRecord, data: "xr.Dataset") -> pd.DataFrame:
    """A row for each sample: how many words were drawn, tried and left out."""
    return rows(record, data.drop_dims(["cue", "top_head"]))


# What the columns mean that only the tables of this experiment have.
COLUMNS = {
    "seen": Column(
        "whether the cue, in any form, occurs in the texts to which the axis was fitted"
    ),
    "coordinate_sd": Column(
        "standard deviation of the sense coordinate over the frames", "fraction of the sense gap"
    ),
    "beginnings": Column(
        "number of tokens of letters that were left out because they begin longer words: the "
        "model predicts with a probability above 1/2 that the word continues",
        "count",
    ),
    "reliability": Column(
        "split-half reliability of the sense coordinate over frames: the correlation over cues "
        "between the means of two halves of the frames, mean over all halvings, extrapolated to "
        "all frames",
        "-1 to 1",
    ),
}
TABLES = {
    "cue_sample": Table(
        "a sample of the vocabulary as the cue: how far each word moves the ambiguous word, and "
        "what the top heads read and write",
        {
            **as_elsewhere(*KEYS),
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
        rows,
        missing=("layer", "head"),
    ),
    "cue_samples": Table(
        "the samples of cues, one row each",
        {
            **as_elsewhere(*KEYS),
            "depth": Column("number of blocks passed where the word is read", "blocks"),
            "cues": Column("words that were tried as the cue", "count"),
            "vocabulary": Column("tokens of letters in the model's vocabulary", "count"),
            "drawn": Column("tokens that were drawn from them at random", "count"),
            **as_elsewhere("beginnings"),
            "frames": Column("short texts that every cue was put into", "count"),
            **as_elsewhere("without_cue", "reliability"),
        },
        summaries,
    ),
}


def measure(run: WordRun) -> "xr.Dataset | None":
    """The scan of a sample of cues along the axis of the two senses that are furthest apart, with
    the top heads in the layers up to the read-out layer. `pair cue top_head`

    Numbers are means over the frames. None if no heads were swapped, if the word does not fit into
    the frames, and if too few cues do.
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
    by_head = {name: getattr(scanned, name).mean(1) for name in ("attention", "score", "write")}
    if not heads:  # a model may have no heads up to its read-out layer
        by_head = dict.fromkeys(by_head, np.full((len(slots.words), 1), np.nan))
    numbers = {
        "depth": axes.depth,
        "cues": len(slots.words),
        "vocabulary": len(vocabulary),
        "drawn": len(sample.cues),
        "beginnings": slots.beginnings,
        "frames": len(slots.frames),
        "without_cue": without_cue(run.weights, slots.templates, axes),
        "reliability": split_half(scanned.coordinate),
    }
    return dataset(
        TABLES,
        {
            "coordinate": ("pair cue", [scanned.coordinate.mean(1)]),
            "coordinate_sd": ("pair cue", [scanned.coordinate.std(1, ddof=1)]),
            **{name: ("pair cue top_head", [values]) for name, values in by_head.items()},
            **{name: ("pair", [number]) for name, number in numbers.items()},
        },
        senses=[axes.senses],
        coordinates={
            "cue": ("cue", slots.words),
            "seen": ("cue", occur_in(texts, slots.words)),
            "layer": ("top_head", or_missing([layer for layer, _ in heads] or [None])),
            "head": ("top_head", or_missing([head for _, head in heads] or [None])),
        },
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

    Raises what `probe.experiments.cues.ask` raises.
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
