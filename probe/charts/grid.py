"""Every token against every token: one dot per pair, its area the size of a number. Queries as rows or as columns.

Queries, keys and values as points of a plane, and the lengths of the stream's vectors before and after LayerNorm.

One destination token: its weights with and without the division by sqrt(d_head), and what each source adds.
"""

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import AGAINST, INK, LINE, MUTED, SENSES, WITH, finish, live, reference_line
from probe.stats.numbers import decimal, percent

Orientation = Literal["rows", "columns"]
NAMES = {"query": "query: the token that looks", "key": "key: the token looked at"}
KINDS = {"dot": "Q·K", "pattern": "attention weight", "open": "weight without the mask"}


def token_grid(
    cells: pd.DataFrame, kind: str, *, queries: Orientation = "rows", named: Mapping[str, str] = NAMES
) -> Any:
    """A head's dot products (`dot`) or weights (`pattern`, `open`: without the mask), a dot per query and key.

    `cells` is a walk's `attention` frame with `chosen`, the row that is followed; queries and keys may be tokens of two texts, and
    `named` titles their axes. Areas of weights run from 0 to 1 in every
    picture; those of dot products to the largest of the head, violet where positive and ochre where negative. Cells that the mask
    closes are grey.
    """
    labels = {name: cells[name].drop_duplicates().tolist() for name in ("query", "key")}
    step = _step(max(map(len, labels.values())))
    down, across = ("query", "key") if queries == "rows" else ("key", "query")
    axis = {"ticks": False, "domain": False, "grid": False, "labelLimit": 90, "labelOverlap": False}
    y = alt.Y(f"{down}:N", title=named[down], sort=labels[down], axis=alt.Axis(**axis))
    x = alt.X(f"{across}:N", title=named[across], sort=labels[across], axis=alt.Axis(labelAngle=-45, **axis))
    rows = cells.assign(size=cells[kind].abs(), positive=cells[kind] >= 0)
    base = alt.Chart().encode(x=x, y=y)
    ground = base.mark_rect(fill="transparent", stroke=LINE, strokeOpacity=0.5)
    closed = base.transform_filter("!datum.allowed").mark_rect(fill=LINE, fillOpacity=0.45 if kind != "dot" else 0)
    row = base.transform_filter("datum.chosen").mark_rect(fill=WITH, fillOpacity=0.09)
    dots = base.transform_filter("datum.size > 0").mark_circle(opacity=0.9)
    dots = dots.encode(size=_area(kind, step), color=_hue(), tooltip=_tooltip(kind))
    masked = [] if cells["allowed"].all() else [closed]
    picture = alt.layer(ground, *masked, row, dots, data=live(rows, "cells"))
    picture = picture.properties(width="container", height=step * len(labels[down]))
    return finish(picture, _description(cells, kind, queries))


def _step(count: int) -> int:
    """Pixels from a token to the next."""
    return 30 if count <= 14 else 22 if count <= 20 else 15


def _area(kind: str, step: int) -> alt.Size:
    most = 0.62 * step * step
    scale = alt.Scale(range=[0, most]) if kind == "dot" else alt.Scale(domain=[0, 1], range=[0, most])
    key = alt.Legend(
        title=f"size of {KINDS[kind]}" if kind == "dot" else KINDS[kind],
        orient="bottom",
        symbolFillColor=MUTED,
        symbolStrokeWidth=0,
        **({"tickCount": 3} if kind == "dot" else {"values": [0.1, 0.5, 1]}),
    )
    return alt.Size("size:Q", scale=scale, legend=key)


def _hue() -> Any:
    return alt.condition("!datum.positive", alt.value(AGAINST), alt.value(WITH))


def _tooltip(kind: str) -> list[alt.Tooltip]:
    names = [alt.Tooltip("query:N"), alt.Tooltip("key:N")]
    return [*names, alt.Tooltip(f"{kind}:Q", title=KINDS[kind], format=".6g")]


def _description(cells: pd.DataFrame, kind: str, queries: str) -> str:
    mine = cells[cells["chosen"] & (cells["allowed"] | (kind != "pattern"))]
    best = mine.nlargest(1, kind).to_dict("records")[0]
    told = decimal(float(best[kind])) if kind == "dot" else percent(float(best[kind]))
    sizes = [cells[side].nunique() for side in ("query", "key")]
    tokens = " by ".join(str(size) for size in dict.fromkeys(sizes))
    return (
        f"Grid of {KINDS[kind]}, queries as {queries}, {tokens} tokens. In the row of {best['query']} the largest "
        f"is that of {best['key']}: {told}."
    )


ROOM = (0.24, 0.07)  # of the plane's width and height: how much a name takes
LOOKS = {"query": (WITH, "M-0.9,-0.7L0.9,-0.7L0,0.9Z"), "key": (SENSES[2], "circle"), "value": (SENSES[0], "square")}


def vector_plane(points: pd.DataFrame, kinds: list[str]) -> Any:
    """Vectors of one head in the plane in which they differ most; names stand at keys, values and the query that is followed.

    `points` is a walk's `vectors` frame with `chosen`. The share of the variance that the plane holds belongs in the caption.
    """
    rows = points[points["kind"].isin(kinds)]
    rows = rows.assign(name=_names(rows))
    axis = alt.Axis(tickCount=5, gridOpacity=0.4)
    x = alt.X("plane_x:Q", title="first direction of the plane", axis=axis, scale=alt.Scale(padding=24))
    y = alt.Y("plane_y:Q", title="second direction", axis=axis, scale=alt.Scale(padding=14))
    names = list(LOOKS)
    key = alt.Legend(orient="top", title=None, values=kinds, symbolStrokeWidth=0) if len(kinds) > 1 else None
    hue = alt.Color("kind:N", scale=alt.Scale(domain=names, range=[LOOKS[n][0] for n in names]), legend=key)
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=names, range=[LOOKS[n][1] for n in names]), legend=key)
    tip = [alt.Tooltip("kind:N"), alt.Tooltip("label:N", title="token")]
    tip.append(alt.Tooltip("norm:Q", title="length", format=".6g"))
    base = alt.Chart().encode(x=x, y=y)
    strong = alt.condition("datum.chosen", alt.value(150), alt.value(50))
    dots = base.mark_point(filled=True, opacity=0.85).encode(color=hue, shape=shape, size=strong, tooltip=tip)
    texts = base.mark_text(dy=-10, fontSize=11, color=INK).encode(text="name:N")
    picture = alt.layer(dots, texts, data=live(rows, "points")).properties(width="container", height=280)
    held = percent(float(rows["explained"].iloc[0]))
    told = " and ".join(f"{kind}s" for kind in kinds)
    return finish(
        picture, f"The {told} of {rows['label'].nunique()} tokens in a plane that holds {held} of their variance."
    )


def _names(rows: pd.DataFrame) -> list[str]:
    """The names that are written: of what is followed first, then in order, each unless it would stand on another."""
    width, height = (float(rows[axis].max() - rows[axis].min()) for axis in ("plane_x", "plane_y"))
    named = rows[(rows["kind"] != "query") | rows["chosen"]].sort_values("chosen", ascending=False, kind="stable")
    written: dict[Hashable, tuple[float, float]] = {}
    for row, x, y in zip(named.index, named["plane_x"], named["plane_y"], strict=True):
        if all(abs(x - a) > ROOM[0] * width or abs(y - b) > ROOM[1] * height for a, b in written.values()):
            written[row] = (x, y)
    return [label if row in written else "" for row, label in rows["label"].items()]


def lengths(norms: pd.DataFrame, *, norm: str = "LayerNorm") -> Any:
    """How long each token's vector is as it enters the block, and what the `norm` makes of it; on a logarithmic axis.

    `norms` is a walk's `layer_norm` frame.
    """
    labels = norms["label"].tolist()
    y_axis = alt.Axis(ticks=False, domain=False, labelLimit=110, labelOverlap=False)
    y = alt.Y("label:N", title="token", sort=labels, axis=y_axis)
    scale = alt.Scale(type="log", nice=False, padding=14)
    x = alt.X(
        "before:Q", title="length of the vector (logarithmic)", scale=scale, axis=alt.Axis(tickCount=5, format="~g")
    )
    tip = [alt.Tooltip("label:N", title="token")]
    tip += [alt.Tooltip(f"{name}:Q", title=f"length {name}", format=".6g") for name in ("before", "after")]
    base = alt.Chart().encode(y=y, tooltip=tip)
    rules = base.mark_rule(color=MUTED, opacity=0.5).encode(x=x, x2="after:Q")
    before = base.mark_point(filled=True, size=70, color=MUTED, opacity=1).encode(x=x)
    after = base.mark_point(filled=True, size=70, color=WITH, opacity=1).encode(x="after:Q")
    picture = alt.layer(rules, before, after, data=live(norms, "norms"))
    step = 20 if len(labels) <= 20 else 15
    low, high = float(norms["after"].min()), float(norms["after"].max())
    description = (
        f"Lengths of {len(labels)} vectors before and after {norm}; after it they lie between {low:.3g} and {high:.3g}."
    )
    return finish(picture.properties(width="container", height=step * len(labels)), description)


DIVIDED, UNDIVIDED = "divided by √d_head", "not divided"


def softmax_bars(row: pd.DataFrame) -> Any:
    """A token's attention weights, twice: softmax of the scores, and of the scores not divided by sqrt(d_head).

    `row` has `key`, `variant` and `weight`.
    """
    labels = row["key"].drop_duplicates().tolist()
    axis = alt.Axis(labelAngle=-45, labelLimit=90, labelOverlap=False, ticks=False)
    x = alt.X("key:N", title="key: the token looked at", sort=labels, axis=axis)
    y = alt.Y(
        "weight:Q", title="attention weight", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=5, format=".0%")
    )
    order = [DIVIDED, UNDIVIDED]
    key = alt.Legend(orient="top", title=None, symbolStrokeWidth=0)
    hue = alt.Color("variant:N", scale=alt.Scale(domain=order, range=[WITH, MUTED]), legend=key)
    tip = [alt.Tooltip("key:N"), alt.Tooltip("variant:N"), alt.Tooltip("weight:Q", format=".6g")]
    bars = alt.Chart().mark_bar().encode(x=x, xOffset=alt.XOffset("variant:N", sort=order), y=y, color=hue, tooltip=tip)
    most = row.groupby("variant")["weight"].max()
    description = (
        f"Attention weights over {len(labels)} tokens: the largest is {percent(float(most[DIVIDED]))} with the division and "
        f"{percent(float(most[UNDIVIDED]))} without it."
    )
    picture = alt.layer(bars, data=live(row, "shares")).properties(width="container", height=200)
    return finish(picture, description)


def source_bars(values: pd.DataFrame) -> Any:
    """How much of a head's ΔE at one token comes from each source, along ΔE; the bars sum to 1. Beside it the weights.

    `values` has `label`, `weight` and `share`, sources in the order of the text.
    """
    labels = values["label"].tolist()
    axis = alt.Axis(ticks=False, domain=False, labelLimit=110, labelOverlap=False)
    y = alt.Y("label:N", title="source token", sort=labels, axis=axis)
    x = alt.X(
        "share:Q",
        title="share of ΔE (bars), weight (ticks)",
        axis=alt.Axis(tickCount=5, format=".0%"),
    )
    tip = [alt.Tooltip("label:N", title="source"), alt.Tooltip("share:Q", title="share of ΔE", format=".6g")]
    tip.append(alt.Tooltip("weight:Q", title="attention weight", format=".6g"))
    hue = alt.condition("datum.share >= 0", alt.value(WITH), alt.value(AGAINST))
    base = alt.Chart().encode(y=y, tooltip=tip)
    bars = base.mark_bar(height={"band": 0.6}).encode(x=x, color=hue)
    ticks = base.mark_tick(color=INK, thickness=2, height={"band": 0.85}).encode(x=alt.X("weight:Q"))
    zero = reference_line("x", 0.0)
    picture = alt.layer(bars, ticks, data=live(values, "values")) + zero
    step = 22 if len(labels) <= 20 else 15
    largest = max(values.to_dict("records"), key=lambda row: abs(row["share"]))
    description = (
        f"Shares of ΔE by source token: {largest['label']} supplies {percent(float(largest['share']))} of it with a weight of "
        f"{percent(float(largest['weight']))}."
    )
    return finish(picture.properties(width="container", height=step * len(labels)), description)


def logit_bars(values: pd.DataFrame, word: str) -> Any:
    """What a head adds to one word's logit from each source token; `values` has `label` and `logit`, sources in the order of the text."""
    labels = values["label"].tolist()
    axis = alt.Axis(ticks=False, domain=False, labelLimit=110, labelOverlap=False)
    y = alt.Y("label:N", title="source token", sort=labels, axis=axis)
    x = alt.X("logit:Q", title=f"added to the logit of “{word}”", axis=alt.Axis(tickCount=5))
    tip = [alt.Tooltip("label:N", title="source"), alt.Tooltip("logit:Q", title="added", format="+.6g")]
    hue = alt.condition("datum.logit >= 0", alt.value(WITH), alt.value(AGAINST))
    bars = alt.Chart().mark_bar(height={"band": 0.6}).encode(y=y, x=x, color=hue, tooltip=tip)
    picture = alt.layer(bars, data=live(values, "logits")) + reference_line("x", 0.0)
    step = 22 if len(labels) <= 20 else 15
    largest = max(values.to_dict("records"), key=lambda row: abs(row["logit"]))
    description = (
        f"What each source token adds to the logit of {word}: {largest['label']} {decimal(float(largest['logit']))}."
    )
    return finish(picture.properties(width="container", height=step * len(labels)), description)
