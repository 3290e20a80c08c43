"""A number under several conditions as marks on one line, a line for each head or place: what is common, and what is not."""

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import INK, LINE, MUTED, SENSES, WITH, finish
from probe.numerals import decimal, percent

LOOKS = ((WITH, "circle"), (SENSES[1], "square"), (MUTED, "triangle-up"), (SENSES[2], "diamond"))


def compared(rows: pd.DataFrame, title: str, *, said: Mapping[str, str] | None = None, shares: bool = True) -> Any:
    """A line per `row` from its smallest to its largest value, a mark per condition. `rows`: `row`, `what`, `value` (0 to 1).

    The order is that of the rows; the first condition has the largest mark, so that it shows behind another at the same value. `said` puts a word behind a line; `shares` writes the values as percentages.
    """
    lines, conditions = (rows[name].drop_duplicates().tolist() for name in ("row", "what"))
    words_of = dict(said or {})
    y = alt.Y("row:N", title=None, sort=lines, axis=alt.Axis(ticks=False, domain=False, grid=False, labelColor=INK))
    x_axis = alt.Axis(format=".0%" if shares else ".1f", tickCount=5)
    x = alt.X("value:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=x_axis)
    key = alt.Legend(orient="top", title=None, symbolSize=80, symbolStrokeWidth=0, columns=1, labelLimit=320)
    hue = alt.Color("what:N", scale=alt.Scale(domain=conditions, range=[look[0] for look in LOOKS]), legend=key)
    shape = alt.Shape("what:N", scale=alt.Scale(domain=conditions, range=[look[1] for look in LOOKS]), legend=key)
    size = alt.Size(
        "what:N", scale=alt.Scale(domain=conditions, range=[130] + [50] * (len(conditions) - 1)), legend=None
    )
    tip = [alt.Tooltip("row:N"), alt.Tooltip("what:N"), alt.Tooltip("value:Q", format=".1%" if shares else ".4g")]
    spans = rows.groupby("row", sort=False)["value"].agg(["min", "max"]).reset_index()
    rules = alt.Chart(spans).mark_rule(color=LINE, strokeWidth=2).encode(y=y, x=alt.X("min:Q"), x2="max:Q")
    marks = (
        alt.Chart(rows)
        .mark_point(filled=True, opacity=1)
        .encode(y=y, x=x, color=hue, shape=shape, size=size, tooltip=tip)
    )
    ends = spans.assign(said=[words_of.get(line, "") for line in lines])
    words = (
        alt.Chart(ends).mark_text(align="left", color=MUTED, fontSize=11).encode(y=y, x=alt.value(368), text="said:N")
    )
    picture = alt.layer(rules, marks, words).properties(width=360, height={"step": 20})
    return finish(picture, _told(rows, conditions, words_of, percent if shares else decimal))


def _told(rows: pd.DataFrame, conditions: list[str], said: Mapping[str, str], written: Callable[[float], str]) -> str:
    first = rows[rows["what"] == conditions[0]].set_index("row")["value"]
    named = [f" {line} ({word})" for line, word in said.items() if line in first.index and word]
    top = str(first.idxmax())
    return (
        f"{len(first)} lines under {len(conditions)} conditions. With {conditions[0]} the largest value is that of {top}: "
        f"{written(float(first[top]))}.{','.join(named)}{'.' if named else ''}"
    )
