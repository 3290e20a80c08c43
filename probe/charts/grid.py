"""Every token against every token: one dot per pair, its area the size of a number. Queries as rows or as columns."""

from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.live import live
from probe.charts.palette import AGAINST, LINE, MUTED, WITH, finish
from probe.numerals import decimal, percent

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
