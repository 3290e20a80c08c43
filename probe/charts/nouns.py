"""How far a word changes with its meaning by depth, compared with unambiguous nouns."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from probe.charts.palette import (
    MUTED,
    TEXT,
    WITH,
    by_depth,
    by_value,
    finish,
    line_legend,
    lines_with_dots,
    of_word,
    reference_line,
    tips,
)
from probe.stats.numbers import counted, decimal

NOUNS = "unambiguous nouns"
# Times the distance at the read-out: vectors grow with depth, and on a linear axis that reaches
# further what is seen at the read-out would be too low to see.
LINEAR_UP_TO = 2.0
TICKS = (0.0, 0.25, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # of the square-root axis
HEIGHT = 170  # pixels, as of a depth profile
WORD_TIPS = tips("depth:Q | depth", "distance:Q | distance | .2f")
NOUN_TIPS = tips(
    "depth:Q | depth",
    "distance:Q | mean distance | .2f",
    "low:Q | least | .2f",
    "high:Q | furthest | .2f",
    "furthest:N | furthest noun",
    "nouns:Q | nouns",
)


def noun_distances(controls: pd.DataFrame, word: str, *, read_at: int) -> pd.DataFrame:
    """How far the two meanings are apart at the word by depth: `what depth distance low high
    furthest nouns`, rows of the word and of the nouns in its place.

    `controls` is the study's frame. A distance is the square root of the squared gap, below 0 where
    the unbiased squared gap is, in units of the word's own at its read-out depth `read_at` in the
    same sentences: mean (`distance`), least and furthest of the nouns, over the pairs of senses.
    """
    rows = of_word(controls, word)
    keys = ["sense_a", "sense_b"]
    of_the_word = rows[(rows["noun"] == word) & (rows["depth"] == read_at)].set_index(keys)["gap"]
    at_read_out = rows[rows["depth"] == read_at].set_index([*keys, "noun"])
    # A noun is compared in the sentences that its article allows; there the word's own gap is the
    # noun's over its share.
    in_same_sentences = at_read_out["gap"] / at_read_out["general_share"]
    units = []
    for sense_a, sense_b, noun in rows[[*keys, "noun"]].itertuples(index=False):
        unit = in_same_sentences[sense_a, sense_b, noun]
        units.append(unit if np.isfinite(unit) else of_the_word[sense_a, sense_b])
    shares = rows.assign(share=rows["gap"] / units)
    means = shares.groupby(["noun", "depth"], sort=False, as_index=False)["share"].mean()
    of_the_word = means[means["noun"] == word]
    word_rows = pd.DataFrame(
        {"what": word, "depth": of_the_word["depth"], "distance": distance(of_the_word["share"])}
    )
    nouns = means[means["noun"] != word].groupby("depth")
    noun_rows = pd.DataFrame(
        {
            "distance": distance(nouns["share"].mean()),
            "low": distance(nouns["share"].min()),
            "high": distance(nouns["share"].max()),
            "furthest": means.loc[nouns["share"].idxmax().to_numpy(), "noun"].to_numpy(),
            "nouns": nouns["share"].size(),
        }
    )
    noun_rows = noun_rows.reset_index().assign(what=NOUNS)
    return pd.concat([word_rows, noun_rows], ignore_index=True)


def distance(squared: pd.Series) -> pd.Series:
    """The signed square root."""
    return np.sign(squared) * np.sqrt(squared.abs())


def distance_axis(
    domain: Sequence[float], unit: str, **scale: Any
) -> tuple[list[str], alt.Axis, alt.Scale]:
    """Title, axis and scale of distances; a scale of square roots where one of them is far beyond
    the `unit`, and the title says so."""
    # The title has two lines, which no picture is too low for.
    if domain[1] <= LINEAR_UP_TO:
        return ["distance", unit], alt.Axis(tickCount=5), alt.Scale(domain=domain, **scale)
    ticks = [tick for tick in TICKS if tick <= domain[1]]
    axis = alt.Axis(values=ticks, labelExpr="datum.value")
    return ["distance, √ scale", unit], axis, alt.Scale(domain=domain, type="sqrt", **scale)


def noun_gaps(controls: pd.DataFrame, word: str, *, read_at: int) -> alt.LayerChart:
    """The distance between a word's meanings by depth, above the band of the unambiguous nouns
    in its place (mean, and from the least to the furthest); a line marks the read-out."""
    rows = noun_distances(controls, word, read_at=read_at)
    of_nouns = rows[rows["what"] == NOUNS]
    kinds = [word, NOUNS]
    key = line_legend(orient="top", symbolOpacity=1, offset=4)
    colour = by_value(alt.Color, "what:N", kinds, (WITH, MUTED), key)
    dash = by_value(alt.StrokeDash, "what:N", kinds, ([1, 0], [5, 3]), key)
    ends = pd.concat([rows["distance"], rows["low"], rows["high"]]).dropna()
    domain = [min(0.0, float(ends.min())), float(ends.max())]
    title, axis, scale = distance_axis(domain, f"(1 = {word} at the read-out)")
    y = alt.Y("distance:Q", title=title, axis=axis, scale=scale)
    x = by_depth(rows["depth"], padding=alt.Undefined, labelFlush=False)
    band = alt.Chart(of_nouns).mark_area(opacity=0.22, color=MUTED)
    band = band.encode(x=x, y=alt.Y("low:Q", title=title, scale=scale), y2=alt.Y2("high:Q"))
    nouns = alt.Chart(of_nouns).encode(x=x, y=y, color=colour)
    of_the_word = alt.Chart(rows[rows["what"] == word]).encode(x=x, y=y, color=colour)
    note = alt.Chart(pd.DataFrame({"depth": [read_at], "note": ["read-out"]}))
    note = note.mark_text(**TEXT | {"color": MUTED, "dx": 4})
    picture = alt.layer(
        reference_line("x", read_at, dash=False),
        note.encode(x=x, y=alt.YValue(6), text=alt.Text("note:N")),
        reference_line("y", 0.0),
        band,
        *lines_with_dots(nouns, 28, line={"strokeDash": dash}, tooltip=NOUN_TIPS),
        *lines_with_dots(of_the_word, 28, line={"strokeDash": dash}, tooltip=WORD_TIPS),
    )
    last = of_nouns[of_nouns["depth"] == read_at].iloc[0]
    description = (
        f"Nouns in the place of {word}: at its read-out layer its meanings are 1 apart, those of "
        f"{counted(int(last['nouns']), 'unambiguous noun')} in its place "
        f"{decimal(last['distance'])} in the mean, from {decimal(last['low'])} to "
        f"{decimal(last['high'])} ({last['furthest']})."
    )
    return finish(picture, description, height=HEIGHT)
