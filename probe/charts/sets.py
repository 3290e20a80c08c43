"""Faithfulness and necessity of the leading heads; their effects by cue distance and by what is swapped."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from probe.charts.channels import (
    TEXT,
    bare_axis,
    by_value,
    head_names,
    line_legend,
    lines_with_dots,
    numbers_at,
    of_word,
    reference_line,
    tips,
)
from probe.charts.palette import INK, MUTED, WITH, finish
from probe.stats.numbers import measured, percent

ENOUGH = 0.9
FEW_HEADS = 24
NECESSITY = "#5f7f86"
KEPT, LOST, RANDOM = "leading heads", "lost without them", "random sets"


def set_curves(curves: pd.DataFrame, random_sets: pd.DataFrame, word: str) -> Any:
    """Faithfulness and necessity of a word's leading heads by their number; ticks are random sets, the line is at 0.9.

    The smallest set that reaches it is ringed. Frames are the study's, whole, so that axes are the same for every word.
    """
    mine = of_word(curves, word)
    lines = pd.concat([_line(mine, name, what) for name, what in _LINES.items()], ignore_index=True)
    chance = of_word(random_sets, word).assign(what=RANDOM).rename(columns={"faithfulness": "value"})
    most = int(mine["size"].max())
    x_scale = alt.Scale(type="linear" if most <= FEW_HEADS else "sqrt", domain=[0, most], nice=False)
    axis = alt.Axis(format="d", grid=False, values=_ticks(most))
    x = alt.X("size:Q", title="number of heads, leading first", scale=x_scale, axis=axis)
    reach = _scale(curves, random_sets)
    y = alt.Y("value:Q", title=_Y, axis=_SHARES, scale=reach)
    key = line_legend(orient="top", symbolOpacity=1, offset=6, columns=2)
    looks = ((alt.Color, (WITH, NECESSITY, MUTED)), (alt.StrokeDash, ([1, 0], [5, 3], [1, 0])))
    colour, dash = (by_value(channel, "what:N", [KEPT, LOST, RANDOM], look, key) for channel, look in looks)
    ticks = alt.Chart(chance).mark_tick(orient="horizontal", size=11, thickness=1.5, opacity=0.55)
    ticks = ticks.encode(x=x, y=y, color=colour, tooltip=_TIPS[1:4])
    base = alt.Chart(lines).encode(x=x, y=y, color=colour)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=_Y, scale=reach), y2="high:Q")
    drawn = lines_with_dots(base, 26, line={"strokeDash": dash}, tooltip=_TIPS)
    picture = alt.layer(reference_line("y", ENOUGH), band, ticks, *drawn, *_smallest(mine, x, y))
    return finish(picture, _description(mine, chance, word), height=230)


def _line(mine: pd.DataFrame, name: str, what: str) -> pd.DataFrame:
    """One line's values with their 95 % intervals."""
    return mine.assign(value=mine[name], low=mine[f"{name}_low"], high=mine[f"{name}_high"], what=what)


_Y = "share of the sense gap"
_LINES = {"faithfulness": KEPT, "necessity": LOST}
_SHARES = alt.Axis(format=".0%", values=[0, 0.25, 0.5, 0.75, 0.9, 1])
_TIPS = tips(
    "added:N | joined",
    "size:Q | heads",
    "what:N | what",
    "value:Q | share of the gap | .1%",
    "low:Q | 95 % from | .1%",
    "high:Q | to | .1%",
)


def _scale(curves: pd.DataFrame, random_sets: pd.DataFrame) -> alt.Scale:
    ends = [curves[f"{name}_{end}"] for name in _LINES for end in ("low", "high")]
    values = pd.concat([*ends, random_sets["faithfulness"]]).astype(float)
    return alt.Scale(domain=[min(0.0, float(values.min())) - 0.04, max(1.0, float(values.max())) + 0.14], nice=False)


def _ticks(most: int) -> list[int]:
    if most <= FEW_HEADS:
        step = 1 if most <= 8 else 2 if most <= 16 else 4
        return list(range(0, most + 1, step))
    return [0, *(size for size in (1, 3, 10, 30, 100, 300, 1000) if size < 0.8 * most), most]


def _smallest(mine: pd.DataFrame, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """A ring round the smallest set that reaches the line, and its size and share in words."""
    rows = mine[mine["size"] == mine["smallest"]]
    if rows.empty:
        return []
    size, value = int(rows["size"].iloc[0]), float(rows["faithfulness"].iloc[0])
    said = f"{size} {'head' if size == 1 else 'heads'}: {percent(value)}"
    base = alt.Chart(pd.DataFrame([{"size": size, "value": value, "said": said}]))
    ring = base.mark_point(size=120, color=INK, strokeWidth=1.5, opacity=1).encode(x=x, y=y)
    side = {"align": "right", "dx": 4} if size > 0.6 * int(mine["size"].max()) else {"dx": -4}
    label = base.mark_text(**TEXT | side).encode(x=x, y=alt.value(8), text="said:N")  # above every line, band and tick
    return [ring, label]


def _description(mine: pd.DataFrame, chance: pd.DataFrame, word: str) -> str:
    size = mine["smallest"].iloc[0]
    rows = mine[mine["size"] == size]
    reaching = "No set of leading heads" if rows.empty else f"The first {int(size)} heads"
    kept = "" if rows.empty else f", keeping {percent(float(rows['faithfulness'].iloc[0]))}"
    return (
        f"Sets of heads for {word}: {reaching} reach {percent(ENOUGH)} of the sense gap{kept}; "
        f"{len(chance)} random sets from the same layers are drawn beside them."
    )


HUES, DASHES, SHAPES = (WITH, MUTED, INK), ([1, 0], [6, 3], [2, 2]), ("circle", "diamond", "square")
ROUTES = {
    "swap": "the whole head",
    "pattern_only": "only where it looks",
    "values_only": "only what it carries",
    "cue_only": "only what comes from the cue",
    "other_only": "only from other words that differ",
    "ablation": "its mean instead",
}


ENDS, BAR = ("", "_low", "_high"), ("value", "low", "high")


def leading(frame: pd.DataFrame, word: str, heads: Sequence[str]) -> pd.DataFrame:
    """The rows of a word's heads, given as L0H0, in their order, with `name`; mean over the pairs of senses.

    Also of the ends of intervals: the interval of a mean is no wider than the mean of the intervals.
    """
    rows = of_word(frame, word)
    rows = rows.assign(name=head_names(rows))
    rows = rows[rows["name"].isin(heads)]
    keys = ["name", *(["distance"] if "distance" in rows else [])]
    numbers = [name for name in ("net", *(f"{route}{end}" for route in ROUTES for end in ENDS)) if name in rows]
    return rows.groupby(keys, as_index=False)[numbers].mean()


def distance_lines(distances: pd.DataFrame, word: str, heads: Sequence[str]) -> Any:
    """Net effect of the given heads by the distance from cue to word; one axis for every word of the frame."""
    rows = leading(distances, word, heads)
    labels = alt.Axis(labelExpr="datum.value > 3 ? '4 or more' : datum.value", labelAngle=0)
    x = alt.X("distance:O", title="tokens from the cue to the word", axis=labels)
    axis = alt.Axis(format=".0%")
    y = alt.Y("net:Q", title="net swap effect (share of gap)", axis=axis, scale=_route_scale(distances))
    key = alt.Legend(orient="top", offset=4)
    domain = [name for name in heads if name in set(rows["name"])]
    looks = ((alt.Color, HUES), (alt.StrokeDash, DASHES), (alt.Shape, SHAPES))
    colour, dash, shape = (by_value(channel, "name:N", domain, look, key) for channel, look in looks)
    tip = tips("name:N | head", "distance:O | distance", "net:Q | net swap effect | .1%")
    base = alt.Chart(rows).encode(x=x, y=y, color=colour)
    drawn = lines_with_dots(base, 60, line={"strokeDash": dash}, shape=shape, tooltip=tip)
    near, far = (rows[rows["distance"] == end]["net"].max() for end in (rows["distance"].min(), rows["distance"].max()))
    description = (
        f"Effect by cue distance for {word}, heads {', '.join(domain)}: the largest is {percent(near)} of the gap at "
        f"the shortest distance and {percent(far)} at the longest."
    )
    return finish(alt.layer(reference_line("y", 0.0), *drawn), description, height=190)


def _route_scale(frame: pd.DataFrame) -> alt.Scale:
    mean = frame.groupby(["word", "layer", "head", "distance"])["net"].mean()
    low, high = min(0.0, float(mean.min())), max(0.0, float(mean.max()))
    room = 0.06 * (high - low or 1.0)
    return alt.Scale(domain=[low - room, high + room], nice=False, zero=False)


def route_table(routes: pd.DataFrame, word_heads: pd.DataFrame, word: str, heads: Sequence[str]) -> pd.DataFrame:
    """The bars: `name`, `route`, `what` in words, `value low high` in fractions of the gap; none of a swap not made."""
    swap = leading(word_heads[["word", "layer", "head", *(f"swap{end}" for end in ENDS)]], word, heads)
    wide = leading(routes, word, heads).merge(swap, on="name")
    parts = [
        wide[["name"]].assign(route=route, **{name: wide[f"{route}{end}"] for name, end in zip(BAR, ENDS, strict=True)})
        for route in ROUTES
    ]
    long = pd.concat(parts, ignore_index=True).dropna()
    return long.assign(what=long["route"].map(ROUTES), text=[measured(*row) for row in long[list(BAR)].to_numpy()])


def route_bars(routes: pd.DataFrame, word_heads: pd.DataFrame, word: str, heads: Sequence[str]) -> Any:
    """Effect of swapping a whole head, its attention alone or its values alone, and of its mean instead; 95 % intervals
    as lines.
    """
    rows = route_table(routes, word_heads, word, heads)
    domain = [name for name in heads if name in set(rows["name"])]
    kinds = [what for what in ROUTES.values() if what in set(rows["what"])]
    y = alt.Y("what:N", title="what is replaced", sort=kinds, axis=bare_axis(labelLimit=150))
    low, high = min(0.0, float(rows["low"].min())), max(0.0, float(rows["high"].max()))
    scale = alt.Scale(domain=[low, high + 0.3 * (high - low or 1.0)], nice=False)
    x = alt.X("value:Q", title="share of the sense gap", axis=alt.Axis(format=".0%", tickCount=5), scale=scale)
    key = alt.Legend(orient="top", offset=4, symbolType="square")
    colour = by_value(alt.Color, "name:N", domain, HUES, key)
    place = {"y": y, "yOffset": alt.YOffset("name:N", sort=domain, scale=alt.Scale(domain=domain))}
    tip = tips("name:N | head", "what:N", "value:Q | | .1%", "low:Q | 95 % interval from | .1%", "high:Q | to | .1%")
    faint = alt.Chart(rows).mark_bar(height={"band": 0.8}, opacity=0.6)  # or a line within a dark bar is not seen
    bars = faint.encode(x=x, color=colour, tooltip=tip, **place)
    spans = alt.Chart(rows).mark_rule(color=INK, strokeWidth=1.5).encode(x=alt.X("low:Q"), x2="high:Q", **place)
    texts = numbers_at(rows.assign(edge=rows["high"].clip(lower=0)), "edge", dx=4, **place)
    height = max(34, 15 * len(domain) + 10) * len(kinds)
    picture = alt.layer(reference_line("x", 0.0), bars, spans, texts)
    first = rows[rows["name"] == domain[0]]
    told = ", ".join(f"{what} {text}" for what, text in zip(first["what"], first["text"], strict=True))
    return finish(
        picture, f"How the effect on {word} comes about. {domain[0]}: {told} of the sense gap.", height=height
    )
