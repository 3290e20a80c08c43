"""Many words at once: every word's leading heads, what heads of other words keep of a word that was
left out, and how far words change beside nouns of one meaning, by depth."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from probe.charts.heads import NOTHING, STRONG
from probe.charts.nouns import distance, distance_axis
from probe.charts.palette import (
    INK,
    LINE,
    MUTED,
    WITH,
    bare_axis,
    by_depth,
    by_value,
    effect_scale,
    finish,
    line_legend,
    lines_with_dots,
    reference_line,
    share_axis,
    tips,
)
from probe.stats.numbers import NARROW, counted, decimal, percent

STEP = 17  # pixels of a word
OUTLIER_FRAME = {"stroke": INK, "strokeWidth": 1.5, "fillOpacity": 0}
# Of single words' effects: those beyond have the colour of the end of the scale.
SCALE_QUANTILE = 0.95
WORD_TIPS = tips(
    "word:N",
    "kind:N",
    "name:N | head",
    "effect:Q | of this word's way | .1%",
    "over_words:Q | over all words | .1%",
    "general:Q | for nouns in its place | .1%",
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
DISTANCES = ("ambiguous words", "nouns of one meaning in their place")
DISTANCE_TIPS = tips("what:N", "depth:Q | depth", "distance:Q | distance | .2f")
HEIGHT = 120  # pixels of a picture of lines


def words_and_heads(
    cells: pd.DataFrame, words: Sequence[str], heads: Sequence[str]
) -> alt.LayerChart:
    """Words down and leading heads across: what each head moves of each word's own way.

    `cells`: `word kind name effect over_words general share outlier target`, a row for each word
    and head; `effect` is missing where the word's gap is not clear, `outlier` says that the word
    lies far from the others. The orders are those of `words` and `heads`.
    """
    known = cells.dropna(subset="effect")
    limit = float(np.ceil(10 * known["effect"].abs().quantile(SCALE_QUANTILE)) / 10) or 0.1
    known = known.assign(mark=[_mark(effect) for effect in known["effect"]])
    step = {"labelOverlap": False, "grid": False}
    x = alt.X(
        "name:N",
        title=None,
        sort=list(heads),
        axis=bare_axis(orient="top", labelAngle=0, **step),
        scale=alt.Scale(domain=list(heads)),
    )
    y = alt.Y(
        "word:N",
        title=None,
        sort=list(words),
        axis=bare_axis(labelLimit=120, **step),
        scale=alt.Scale(domain=list(words)),
    )
    base = alt.Chart(known).encode(x=x, y=y, tooltip=WORD_TIPS)
    fill = alt.Color("effect:Q", scale=effect_scale(limit), legend=None)
    squares = base.mark_rect(stroke=LINE, strokeWidth=0.5).encode(color=fill)
    ink = alt.condition(
        abs(alt.datum.effect) > STRONG * limit, alt.value("#ffffff"), alt.value(INK)
    )
    numbers = base.mark_text(fontSize=11).encode(text=alt.Text("mark:N"), color=ink)
    unclear = alt.Chart(cells[cells["effect"].isna()]).encode(x=x, y=y, tooltip=WORD_TIPS)
    dashes = unclear.mark_text(color=MUTED, text="–")
    outliers = known[known["outlier"]]
    frames = alt.Chart(outliers).mark_rect(**OUTLIER_FRAME).encode(x=x, y=y, tooltip=WORD_TIPS)
    far = ", ".join(f"{row.word} for {row.name}" for row in outliers.itertuples(index=False))
    description = (
        f"Words and heads: what {counted(len(heads), 'head')} move of "
        f"{counted(len(words), 'word')}, each in its own gap. Far from the other words: "
        f"{far or 'none'}."
    )
    picture = alt.layer(squares, numbers, dashes, frames)
    return finish(picture, description, height=STEP * len(words))


def _mark(effect: float) -> str:
    """The effect in per cent; nothing where it rounds to 0."""
    return percent(effect).split(NARROW)[0] if abs(effect) >= NOTHING else ""


def carried_over(carry: pd.DataFrame) -> alt.LayerChart:
    """How much of a word's gap the first heads keep, by their number: in the order of all other
    words, in its own, and random ones. `carry` is the frame `survey_carry_over`."""
    parts = []
    for name, what in KEPT.items():
        ends = {"value": carry[name], "low": carry[f"{name}_low"], "high": carry[f"{name}_high"]}
        parts.append(pd.DataFrame({"k": carry["k"], "what": what, **ends}))
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
    """How far the senses of words are apart by depth, beside nouns of one meaning in their place;
    1 is the words' distance at the read-out. `depths` is the frame `survey_depths`."""
    at = depths.loc[depths["depth"] == read_at, "squared_gap"].item()
    parts = []
    columns = ("squared_gap", "general_squared_gap")
    for what, column in zip(DISTANCES, columns, strict=True):
        far = distance(depths[column] / at)
        parts.append(pd.DataFrame({"depth": depths["depth"], "what": what, "distance": far}))
    rows = pd.concat(parts, ignore_index=True)
    key = line_legend(orient="top", symbolOpacity=1, offset=6, columns=1, labelLimit=300)
    colour = by_value(alt.Color, "what:N", DISTANCES, (WITH, MUTED), key)
    domain = [min(0.0, float(rows["distance"].min())), float(rows["distance"].max())]
    title, axis, scale = distance_axis(domain, "(1 = words, where read)", nice=False)
    base = alt.Chart(rows).encode(
        x=by_depth(rows["depth"], padding=alt.Undefined, labelFlush=False),
        y=alt.Y("distance:Q", title=title, axis=axis, scale=scale),
        color=colour,
    )
    lines = lines_with_dots(base, 28, tooltip=DISTANCE_TIPS)
    picture = alt.layer(reference_line("x", read_at, dash=False), reference_line("y", 0.0), *lines)
    beside = float(parts[1].loc[depths["depth"] == read_at, "distance"].item())
    description = (
        "Distances by depth: where words are read their senses are 1 apart, nouns of one meaning "
        f"in their place {decimal(beside)}."
    )
    return finish(picture, description, height=HEIGHT)
