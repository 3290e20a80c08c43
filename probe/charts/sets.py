"""What heads do together: faithfulness and necessity of the leading heads, beside random sets from the same layers.

How the effect of the leading heads comes about: at which distance from the cue, by where they look, by what they carry.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import INK, MUTED, WITH, finish, reference_line
from probe.stats.numbers import percent

ENOUGH = 0.9
FEW_HEADS = 24
NECESSITY = "#5f7f86"
KEPT, LOST, RANDOM = "leading heads", "lost without them", "random sets"


def set_curves(curves: pd.DataFrame, random_sets: pd.DataFrame, word: str) -> Any:
    """F and necessity of a word's leading heads by their number, random sets as ticks at their sizes, the 0.9 line.

    The smallest set that reaches it is ringed and labelled. Frames are the study's, whole, so that axes are the same for every word.
    """
    mine = curves[curves["word"] == word]
    lines = pd.concat([_line(mine, name, what) for name, what in _LINES.items()], ignore_index=True)
    chance = random_sets[random_sets["word"] == word].assign(what=RANDOM).rename(columns={"faithfulness": "value"})
    most = int(mine["size"].max())
    x_scale = alt.Scale(type="linear" if most <= FEW_HEADS else "sqrt", domain=[0, most], nice=False)
    axis = alt.Axis(format="d", grid=False, values=_ticks(most))
    x = alt.X("size:Q", title="number of heads, leading first", scale=x_scale, axis=axis)
    reach = _scale(curves, random_sets)
    y = alt.Y("value:Q", title=_Y, axis=_SHARES, scale=reach)
    key = alt.Legend(orient="top", symbolType="stroke", symbolStrokeWidth=3, symbolOpacity=1, offset=6, columns=2)
    scale = alt.Scale(domain=[KEPT, LOST, RANDOM], range=[WITH, NECESSITY, MUTED])
    hue = alt.Color("what:N", title=None, scale=scale, legend=key)
    ticks = alt.Chart(chance).mark_tick(orient="horizontal", size=11, thickness=1.5, opacity=0.55)
    ticks = ticks.encode(x=x, y=y, color=hue, tooltip=_TOOLTIP[1:4])
    base = alt.Chart(lines).encode(x=x, y=y, color=hue)
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=_Y, scale=reach), y2="high:Q")
    drawn = base.mark_line(strokeWidth=2).encode(strokeDash=_dash())
    dots = base.mark_point(filled=True, size=26, opacity=1).encode(tooltip=_TOOLTIP)
    picture = alt.layer(reference_line("y", ENOUGH), band, ticks, drawn, dots, *_smallest(mine, x, y))
    return finish(picture.properties(width="container", height=230), _description(mine, chance, word))


def _line(mine: pd.DataFrame, name: str, what: str) -> pd.DataFrame:
    """One line's values with their 95 % intervals."""
    return mine.assign(value=mine[name], low=mine[f"{name}_low"], high=mine[f"{name}_high"], what=what)


_Y = "share of the sense gap"
_LINES = {"faithfulness": KEPT, "necessity": LOST}
_SHARES = alt.Axis(format=".0%", values=[0, 0.25, 0.5, 0.75, 0.9, 1])
_TOOLTIP = [
    alt.Tooltip("added:N", title="joined"),
    alt.Tooltip("size:Q", title="heads"),
    alt.Tooltip("what:N", title="what"),
    alt.Tooltip("value:Q", title="share of the gap", format=".1%"),
    alt.Tooltip("low:Q", title="95 % from", format=".1%"),
    alt.Tooltip("high:Q", title="to", format=".1%"),
]


def _dash() -> alt.StrokeDash:
    return alt.StrokeDash("what:N", scale=alt.Scale(domain=[KEPT, LOST], range=[[1, 0], [5, 3]]), legend=None)


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
    found = {"size": size, "value": value, "said": said}
    ring = alt.Chart(pd.DataFrame([found])).encode(x=x, y=y).mark_point(size=120, color=INK, strokeWidth=1.5, opacity=1)
    left = size > 0.6 * int(mine["size"].max())
    label = alt.Chart(pd.DataFrame([found])).mark_text(
        align="right" if left else "left", dx=4 if left else -4, fontSize=11, color=INK
    )
    return [ring, label.encode(x=x, y=alt.value(8), text="said:N")]  # above every line, band and tick


def _description(mine: pd.DataFrame, chance: pd.DataFrame, word: str) -> str:
    size = mine["smallest"].iloc[0]
    rows = mine[mine["size"] == size]
    found = "No set of leading heads" if rows.empty else f"The first {int(size)} heads"
    kept = "" if rows.empty else f", keeping {percent(float(rows['faithfulness'].iloc[0]))}"
    return (
        f"Sets of heads for {word}: {found} reach {percent(ENOUGH)} of the sense gap{kept}; "
        f"{len(chance)} random sets from the same layers are drawn beside them."
    )


HUES, DASHES, SHAPES = (WITH, MUTED, INK), ([1, 0], [6, 3], [2, 2]), ("circle", "diamond", "square")
ROUTES = {
    "swap": "the whole head",
    "pattern_only": "only where it looks",
    "values_only": "only what it carries",
    "ablation": "its mean instead",
}


def leading(frame: pd.DataFrame, word: str, heads: Sequence[str]) -> pd.DataFrame:
    """The rows of a word's heads, given as L0H0, in their order, with `name`; mean over the pairs of senses."""
    rows = frame[frame["word"] == word]
    rows = rows.assign(name=[f"L{layer}H{head}" for layer, head in zip(rows["layer"], rows["head"], strict=True)])
    rows = rows[rows["name"].isin(heads)]
    keys = ["name", *(["distance"] if "distance" in rows else [])]
    numbers = [name for name in ("net", *ROUTES) if name in rows]
    return rows.groupby(keys, as_index=False)[numbers].mean()


def distance_lines(distances: pd.DataFrame, word: str, heads: Sequence[str]) -> Any:
    """Net effect of the given heads by the distance from cue to word; one axis for every word of the frame."""
    rows = leading(distances, word, heads)
    labels = alt.Axis(labelExpr="datum.value > 3 ? '4 or more' : datum.value", labelAngle=0)
    x = alt.X("distance:O", title="tokens from the cue to the word", axis=labels)
    y = alt.Y(
        "net:Q", title="net swap effect (share of gap)", axis=alt.Axis(format=".0%"), scale=_route_scale(distances)
    )
    key = alt.Legend(orient="top", offset=4)
    domain = [name for name in heads if name in set(rows["name"])]
    hue = alt.Color("name:N", title=None, scale=alt.Scale(domain=domain, range=list(HUES)), legend=key)
    dash = alt.StrokeDash("name:N", title=None, scale=alt.Scale(domain=domain, range=list(DASHES)), legend=key)
    shape = alt.Shape("name:N", title=None, scale=alt.Scale(domain=domain, range=list(SHAPES)), legend=key)
    tip = [alt.Tooltip("name:N", title="head"), alt.Tooltip("distance:O", title="distance")]
    tip.append(alt.Tooltip("net:Q", title="net swap effect", format=".1%"))
    base = alt.Chart(rows).encode(x=x, y=y, color=hue)
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=dash)
    dots = base.mark_point(filled=True, size=60, opacity=1).encode(shape=shape, tooltip=tip)
    picture = alt.layer(reference_line("y", 0.0), lines, dots).properties(width="container", height=190)
    near, far = (rows[rows["distance"] == end]["net"].max() for end in (rows["distance"].min(), rows["distance"].max()))
    description = (
        f"Effect by cue distance for {word}, heads {', '.join(domain)}: the largest is {percent(near)} of the gap at the shortest "
        f"distance and {percent(far)} at the longest."
    )
    return finish(picture, description)


def _route_scale(frame: pd.DataFrame) -> alt.Scale:
    mean = frame.groupby(["word", "layer", "head", "distance"])["net"].mean()
    low, high = min(0.0, float(mean.min())), max(0.0, float(mean.max()))
    room = 0.06 * (high - low or 1.0)
    return alt.Scale(domain=[low - room, high + room], nice=False, zero=False)


def route_table(routes: pd.DataFrame, word_heads: pd.DataFrame, word: str, heads: Sequence[str]) -> pd.DataFrame:
    """The bars: `name`, `route`, `what` in words, `value` in fractions of the gap; swaps that could not be made are absent."""
    swap = leading(word_heads[["word", "layer", "head", "swap"]], word, heads)
    wide = leading(routes, word, heads).merge(swap, on="name")
    long = wide.melt(id_vars="name", value_vars=list(ROUTES), var_name="route", value_name="value").dropna()
    return long.assign(what=long["route"].map(ROUTES), text=[percent(value) for value in long["value"]])


def route_bars(routes: pd.DataFrame, word_heads: pd.DataFrame, word: str, heads: Sequence[str]) -> Any:
    """What is swapped, and how far it moves the word: the whole head, its attention alone, its values alone, its mean."""
    rows = route_table(routes, word_heads, word, heads)
    domain = [name for name in heads if name in set(rows["name"])]
    kinds = [what for what in ROUTES.values() if what in set(rows["what"])]
    y = alt.Y("what:N", title="what is replaced", sort=kinds, axis=alt.Axis(labelLimit=150, ticks=False, domain=False))
    low, high = min(0.0, float(rows["value"].min())), max(0.0, float(rows["value"].max()))
    scale = alt.Scale(domain=[low - 0.12 * (low < -0.005), high + 0.14 * (high - low or 1.0)], nice=False)
    x = alt.X("value:Q", title="share of the sense gap", axis=alt.Axis(format=".0%", tickCount=5), scale=scale)
    key = alt.Legend(orient="top", offset=4, symbolType="square")
    hue = alt.Color("name:N", title=None, scale=alt.Scale(domain=domain, range=list(HUES)), legend=key)
    rank = alt.YOffset("name:N", sort=domain, scale=alt.Scale(domain=domain))
    tip = [alt.Tooltip("name:N", title="head"), alt.Tooltip("what:N"), alt.Tooltip("value:Q", format=".1%")]
    base = alt.Chart(rows).encode(y=y, yOffset=rank)
    bars = base.mark_bar(height={"band": 0.8}).encode(x=x, color=hue, tooltip=tip)
    ends = rows.assign(edge=rows["value"].clip(lower=0))
    texts = alt.Chart(ends).mark_text(align="left", dx=4, fontSize=11, color=INK)
    texts = texts.encode(y=y, yOffset=rank, x=alt.X("edge:Q"), text="text:N")
    height = max(34, 15 * len(domain) + 10) * len(kinds)
    picture = alt.layer(reference_line("x", 0.0), bars, texts).properties(width="container", height=height)
    first = rows[rows["name"] == domain[0]]
    told = ", ".join(f"{what} {text}" for what, text in zip(first["what"], first["text"], strict=True))
    return finish(picture, f"How the effect on {word} comes about. {domain[0]}: {told} of the sense gap.")
