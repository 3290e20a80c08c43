"""How are the lesson's sentences read?

Well-known sentences with the word: the sense whose mean is nearest, and what the words after the
word change.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from probe.experiments.columns import Column, Table, as_elsewhere, listed, rows
from probe.experiments.observe import Observation, SenseAxes
from probe.experiments.run import WordRun
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import positions_of_span, tokenize
from probe.model.trace import target_states, trace
from probe.stats import axes
from probe.text import lexicon
from probe.text.lexicon import Showcase

if TYPE_CHECKING:
    import xarray as xr

ORDER = 130
NEEDS = ()
ANSWERS = False
SECONDS = 1.0
HEADING = "believe"
TITLE = "Well-known sentences"
# What a row says of the sentence.
SENTENCE = (
    *("text", "word", "sense", "start", "end"),
    *("cue", "cue_start", "cue_end", "cue_after", "note"),
)
# What the columns mean that only the tables of this experiment have.
COLUMNS = {
    "cue_after": Column("whether the cue comes after the word"),
    "note": Column("what the sentence is used for"),
    "reads_as": Column(
        "the sense whose mean is nearest to the word's vector. Missing if the cue comes after the "
        "word."
    ),
    "difference": Column(
        "largest change of any head's ΔE at the word when everything after the word is removed, "
        "relative to the largest ΔE",
        "relative",
    ),
}
TABLES = {
    "showcase": Table(
        "the sentences that introductions use",
        as_elsewhere(*SENTENCE, "reads_as", "coordinate", "sense_a", "sense_b", "difference"),
        rows,
    )
}


def measure(run: WordRun) -> "xr.Dataset | None":
    """The lesson's sentences with this word. `lesson`"""
    observation = run.observation
    # Sentences of a sense that the study does not have are left out: users may name senses
    # differently.
    lessons = [
        item
        for item in lexicon.showcase()
        if item.word == observation.material.word and item.sense in observation.material.labels
    ]
    readings = [read_lesson(run.model, observation, item) for item in lessons]
    return listed(TABLES, pd.DataFrame(readings), "lesson") if readings else None


def read_lesson(model: Model, observation: Observation, item: Showcase) -> dict[str, Any]:
    """A row of the table `showcase`: the nearest sense and the sense coordinate of the word in one
    of the lesson's sentences.

    reads_as: the sense whose mean over the study's sentences is nearest; None in a causal model if
        the cue comes after the word, because the word cannot have read it
    coordinate: along the axis between the two senses, in fractions of the gap; NaN without a
        `reads_as`
    difference: the largest change of any head's write at the word if everything after the word is
        removed, relative to the largest write: 0 up to rounding in a causal model
    """
    whole = trace(model, item.text)
    target = positions_of_span(whole.tokens, item.start, item.end)[-1]
    about = {name: getattr(item, name) for name in SENTENCE}
    about["difference"] = later_words_matter(model, whole, target)
    # A causal model cannot have read a cue that comes after the word.
    if item.cue_after and model.config.causal:
        return about | {"reads_as": None, "coordinate": np.nan, "sense_a": None, "sense_b": None}
    resid = whole.resid_post[observation.depth - 1, target]
    reads_as = axes.nearest_sense(observation.resid, observation.material.labels, resid[None])[0]
    axis = observation.axis_for_others(_pair_with(observation, item.sense, reads_as))
    return about | {
        "reads_as": reads_as,
        "coordinate": axis.coordinate(resid.double()).item(),
        "sense_a": axis.sense_a,
        "sense_b": axis.sense_b,
    }


def _pair_with(observation: Observation, sense: str, reads_as: str) -> SenseAxes:
    """The pair of a sentence's sense and the sense that it reads as.

    If these are equal, or the study does not have the former: the first pair that includes the
    latter.
    """
    both = [pair for pair in observation.pairs if {sense, reads_as} == set(pair.senses)]
    return (both or [pair for pair in observation.pairs if reads_as in pair.senses])[0]


def later_words_matter(model: Model, whole: Trace, target: int) -> float:
    """The largest change of any head's write at `target` if every later token is removed, relative
    to the largest write.
    """
    # layer head d_head d_model
    with_heads = [block.w_o for block in whole.weights.blocks if block.mixer is None]
    w_o = torch.stack(with_heads).cpu()
    has_heads = whole.weights.has_heads.cpu()
    tokens = whole.tokens
    # `target_states` cuts a causal model's text after the word anyway.
    if not model.config.causal:
        tokens = tokenize(model, tokens.text[: tokens.spans[target][1]])
    without = target_states(model, [tokens], [target]).z[0, has_heads]
    # ΔE = z W_O, `layer head d_model`
    write = (whole.z[has_heads, :, target].unsqueeze(-2) @ w_o).squeeze(-2)
    write_without = (without.unsqueeze(-2) @ w_o).squeeze(-2)
    return ((write - write_without).abs().max() / write.abs().max()).item()
