"""Queries, keys and values as points of a plane, and the lengths of the stream's vectors before and after LayerNorm."""

from collections.abc import Hashable
from typing import Any

import altair as alt
import pandas as pd

from probe.charts.live import live
from probe.charts.palette import INK, MUTED, SENSES, WITH, finish
from probe.numerals import percent

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


def lengths(norms: pd.DataFrame) -> Any:
    """How long each token's vector is as it enters the block, and what LayerNorm makes of it; on a logarithmic axis.

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
    description = f"Lengths of {len(labels)} vectors before and after LayerNorm; after it they lie between {low:.3g} and {high:.3g}."
    return finish(picture.properties(width="container", height=step * len(labels)), description)
