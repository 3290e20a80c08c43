"""How the effect of the leading heads comes about: at which distance from the cue, by where they look, by what they carry."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import INK, MUTED, WITH, finish, reference_line
from probe.numerals import percent

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
    y = alt.Y("net:Q", title="net swap effect (share of gap)", axis=alt.Axis(format=".0%"), scale=_scale(distances))
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


def _scale(frame: pd.DataFrame) -> alt.Scale:
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
