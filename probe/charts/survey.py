"""Many words at once: the words of each leading head, what heads of other words keep of a word that
was left out, and how far words change compared with unambiguous nouns, by depth."""

import altair as alt
import numpy as np
import pandas as pd

from probe.charts.nouns import distance, distance_axis
from probe.charts.palette import (
    AGAINST,
    INK,
    MUTED,
    WITH,
    by_depth,
    by_value,
    finish,
    heading,
    line_legend,
    lines_with_dots,
    reference_line,
    share_axis,
    tips,
)
from probe.stats.numbers import counted, decimal, percent

WORDS_HEIGHT = 130  # pixels of a picture of words
SIGNS = ("toward", "away")  # of an effect, relative to the other meaning
WORD_TIPS = tips(
    "word:N",
    "kind:N",
    "name:N | head",
    "effect:Q | of this word's way | .1%",
    "over_words:Q | over all words | .1%",
    "nouns:Q | for unambiguous nouns in its place | .1%",
    "share:Q | its gap, of the mean gap | .2f",
)
KEPT = {
    "own": "own order",
    "others": "others' order",
    "random": "random",
}
KEPT_TIPS = tips(
    "what:N",
    "k:Q | heads",
    "value:Q | of the gap | .1%",
    "low:Q | 95 % from | .1%",
    "high:Q | to | .1%",
)
DISTANCES = ("ambiguous words", "unambiguous nouns in their place")
DISTANCE_TIPS = tips("what:N", "depth:Q | depth", "distance:Q | distance | .2f")
HEIGHT = 120  # pixels of a picture of lines


def words_of_head(cells: pd.DataFrame, *, limits: tuple[float, float]) -> alt.LayerChart:
    """What one head moves of each word's own way: a dot for each word, in the order of its effect,
    and a line at the effect over all words.

    `cells`: `word kind name effect over_words nouns share outlier target`, a row for each word;
    `effect` is missing where the word's gap is not clear, `outlier` marks a word that is far from
    the others. `limits`: the ends of the axis, so that pictures can be compared.
    """
    measured_rows = cells.dropna(subset="effect").sort_values("effect", ascending=False)
    sign = np.where(measured_rows["effect"] < 0, SIGNS[1], SIGNS[0])
    measured_rows = measured_rows.assign(order=range(1, len(measured_rows) + 1), sign=sign)
    name = str(cells["name"].iloc[0])
    x = alt.X(
        "order:Q",
        title="words, in order",
        axis=alt.Axis(labels=False, ticks=False, grid=False),
        scale=alt.Scale(domain=[0, len(measured_rows) + 1], nice=False),
    )
    y = alt.Y(
        "effect:Q",
        title="% of the gap",
        axis=share_axis(),
        scale=alt.Scale(domain=list(limits), nice=False, padding=20),
    )
    base = alt.Chart(measured_rows).encode(x=x, y=y, tooltip=WORD_TIPS)
    # Away from the other meaning has another shape, so that it can be distinguished without colour.
    colour = by_value(alt.Color, "sign:N", SIGNS, (WITH, AGAINST), None)
    shape = by_value(alt.Shape, "sign:N", SIGNS, ("circle", "triangle-down"), None)
    dots = base.mark_point(filled=True, size=36, opacity=1).encode(color=colour, shape=shape)
    rings = base.transform_filter("datum.outlier").mark_point(size=110, color=INK, strokeWidth=1.5)
    ends = measured_rows.iloc[[0, -1]] if len(measured_rows) > 1 else measured_rows
    ends = ends.assign(side=["right", "left"][: len(ends)])
    names = [
        alt.Chart(ends[ends["side"] == side])
        .mark_text(fontSize=11, align=align, dx=dx, dy=dy, color=INK)
        .encode(x=x, y=y, text="word:N")
        for side, align, dx, dy in (("right", "left", -2, -10), ("left", "right", 4, 14))
    ]
    over_words = float(cells["over_words"].iloc[0])
    mean = reference_line("y", over_words)
    far = ", ".join(map(str, measured_rows.loc[measured_rows["outlier"], "word"]))
    description = (
        f"Words of {name}: {counted(len(measured_rows), 'word')}, each in its own gap, around "
        f"{percent(over_words)}. Far from the others: {far or 'none'}."
    )
    picture = alt.layer(reference_line("y", 0.0, dash=False), mean, dots, rings, *names)
    return finish(picture.properties(title=heading(name)), description, height=WORDS_HEIGHT)


def carried_over(carry: pd.DataFrame) -> alt.LayerChart:
    """How much of a word's gap the first heads keep, by their number: in the order of all other
    words, in its own, and random ones. `carry` is the frame `survey_carry_over`."""
    parts = []
    for name, kind in KEPT.items():
        ends = {"value": carry[name], "low": carry[f"{name}_low"], "high": carry[f"{name}_high"]}
        parts.append(pd.DataFrame({"k": carry["k"], "what": kind, **ends}))
    rows = pd.concat(parts, ignore_index=True)
    kinds = list(KEPT.values())
    key = line_legend(orient="top", symbolOpacity=1, offset=6, columns=3, labelLimit=300)
    colour = by_value(alt.Color, "what:N", kinds, (INK, WITH, MUTED), key)
    dash = by_value(alt.StrokeDash, "what:N", kinds, ([5, 3], [1, 0], [2, 2]), key)
    sizes = carry["k"].tolist()
    x = alt.X(
        "k:Q",
        title="number of heads",
        axis=alt.Axis(values=sizes, format="d", grid=False),
        scale=alt.Scale(type="log", base=2, domain=[min(sizes), max(sizes)], padding=12),
    )
    low = min(0.0, float(rows["low"].min()))
    scale = alt.Scale(domain=[low, max(1.0, float(rows["high"].max()))], nice=False)
    y = alt.Y("value:Q", title="share of the sense gap", axis=share_axis(), scale=scale)
    base = alt.Chart(rows).encode(x=x, y=y, color=colour)
    band = base.mark_area(opacity=0.14)
    band = band.encode(y=alt.Y("low:Q", title="share of the sense gap"), y2=alt.Y2("high:Q"))
    lines = lines_with_dots(base, 40, line={"strokeDash": dash}, tooltip=KEPT_TIPS)
    last = carry.to_dict("records")[-1]
    description = (
        f"Heads of other words: of a word that was left out the first {last['k']} heads of "
        f"all others keep {percent(last['others'])} of the gap, its own first "
        f"{percent(last['own'])}, random ones {percent(last['random'])}."
    )
    return finish(alt.layer(band, *lines), description, height=HEIGHT)


def distances_by_depth(depths: pd.DataFrame, *, read_at: int) -> alt.LayerChart:
    """How far the senses of words are apart by depth, next to unambiguous nouns in their place;
    1 is the words' distance at the read-out. `depths` is the frame `survey_depths`."""
    at = depths.loc[depths["depth"] == read_at, "squared_gap"].item()
    parts = []
    columns = ("squared_gap", "general_squared_gap")
    for kind, column in zip(DISTANCES, columns, strict=True):
        far = distance(depths[column] / at)
        parts.append(pd.DataFrame({"depth": depths["depth"], "what": kind, "distance": far}))
    rows = pd.concat(parts, ignore_index=True)
    key = line_legend(orient="top", symbolOpacity=1, offset=6, columns=1, labelLimit=300)
    colour = by_value(alt.Color, "what:N", DISTANCES, (WITH, MUTED), key)
    domain = [min(0.0, float(rows["distance"].min())), float(rows["distance"].max())]
    title, axis, scale = distance_axis(domain, "(1 = words, where read)", nice=False)
    dash = by_value(alt.StrokeDash, "what:N", DISTANCES, ([1, 0], [4, 3]), key)
    base = alt.Chart(rows).encode(
        x=by_depth(rows["depth"], padding=alt.Undefined, labelFlush=False),
        y=alt.Y("distance:Q", title=title, axis=axis, scale=scale),
        color=colour,
    )
    lines = lines_with_dots(base, 28, line={"strokeDash": dash}, tooltip=DISTANCE_TIPS)
    picture = alt.layer(reference_line("x", read_at, dash=False), reference_line("y", 0.0), *lines)
    beside = float(parts[1].loc[depths["depth"] == read_at, "distance"].item())
    description = (
        "Distances by depth: where words are read their senses are 1 apart, unambiguous nouns "
        f"in their place {decimal(beside)}."
    )
    return finish(picture, description, height=HEIGHT)
