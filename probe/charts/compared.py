"""Heads as rows and a number under several conditions as marks on one line: what is common to all, and what is not."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import INK, LINE, MUTED, SENSES, WITH, finish
from probe.numerals import percent

LOOKS = ((WITH, "circle"), (SENSES[1], "square"), (MUTED, "triangle-up"), (SENSES[2], "diamond"))


def compared_heads(rows: pd.DataFrame, title: str, *, verdict_of: dict[str, str] | None = None) -> Any:
    """A line per head from the smallest to the largest of its values, a mark per condition. `rows`: `head`, `what`, `value` (0 to 1).

    Heads keep the order of the rows. `verdict_of` puts a word behind a head.
    """
    heads, conditions = (rows[name].drop_duplicates().tolist() for name in ("head", "what"))
    said = verdict_of or {}
    y = alt.Y("head:N", title=None, sort=heads, axis=alt.Axis(ticks=False, domain=False, grid=False, labelColor=INK))
    x_axis = alt.Axis(format=".0%", tickCount=5)
    x = alt.X("value:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=x_axis)
    key = alt.Legend(orient="top", title=None, symbolSize=80, symbolStrokeWidth=0, columns=1, labelLimit=320)
    hue = alt.Color("what:N", scale=alt.Scale(domain=conditions, range=[look[0] for look in LOOKS]), legend=key)
    shape = alt.Shape("what:N", scale=alt.Scale(domain=conditions, range=[look[1] for look in LOOKS]), legend=key)
    tip = [alt.Tooltip("head:N"), alt.Tooltip("what:N"), alt.Tooltip("value:Q", format=".1%")]
    spans = rows.groupby("head", sort=False)["value"].agg(["min", "max"]).reset_index()
    lines = alt.Chart(spans).mark_rule(color=LINE, strokeWidth=2).encode(y=y, x=alt.X("min:Q"), x2="max:Q")
    marks = (
        alt.Chart(rows)
        .mark_point(filled=True, size=70, opacity=1)
        .encode(y=y, x=x, color=hue, shape=shape, tooltip=tip)
    )
    ends = spans.assign(said=[said.get(head, "") for head in heads])
    words = (
        alt.Chart(ends).mark_text(align="left", color=MUTED, fontSize=11).encode(y=y, x=alt.value(368), text="said:N")
    )
    picture = alt.layer(lines, marks, words).properties(width=360, height={"step": 20})
    return finish(picture, _told(rows, heads, conditions, said))


def _told(rows: pd.DataFrame, heads: list[str], conditions: list[str], said: dict[str, str]) -> str:
    first = rows[rows["what"] == conditions[0]].set_index("head")["value"]
    named = [f" {head} ({verdict})" for head, verdict in said.items() if head in heads and verdict]
    top = str(first.idxmax())
    return (
        f"{len(heads)} heads under {len(conditions)} conditions. With {conditions[0]} the largest value is that of {top}: "
        f"{percent(float(first[top]))}.{','.join(named)}{'.' if named else ''}"
    )
