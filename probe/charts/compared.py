"""A number under several conditions as marks on one line, a line for each head or place: what is common, and what is not."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import INK, LINE, MUTED, SENSES, WITH, finish
from probe.numerals import decimal, percent

Kind = Literal["share", "number", "rank"]
LOOKS = ((WITH, "circle"), (SENSES[1], "square"), (MUTED, "triangle-up"), (SENSES[2], "diamond"))


def compared(rows: pd.DataFrame, title: str, *, said: Mapping[str, str] | None = None, kind: Kind = "share") -> Any:
    """A line per `row` from its smallest to its largest value, a mark per condition. `rows`: `row`, `what`, `value`.

    The order is that of the rows; the first condition has the largest mark, so that it shows behind another at the same value. `said` puts a word behind a line; A `share` (0 to 1) is written as a percentage, a `number` (0 to 1) is
    not, a `rank` stands on a logarithmic axis with 1 on the left.
    """
    lines, conditions = (rows[name].drop_duplicates().tolist() for name in ("row", "what"))
    words_of = dict(said or {})
    y = alt.Y("row:N", title=None, sort=lines, axis=alt.Axis(ticks=False, domain=False, grid=False, labelColor=INK))
    x = alt.X("value:Q", title=title, scale=_scale(kind, rows["value"]), axis=_axis(kind, rows["value"]))
    key = alt.Legend(orient="top", title=None, symbolSize=80, symbolStrokeWidth=0, columns=1, labelLimit=320)
    hue = alt.Color("what:N", scale=alt.Scale(domain=conditions, range=[look[0] for look in LOOKS]), legend=key)
    shape = alt.Shape("what:N", scale=alt.Scale(domain=conditions, range=[look[1] for look in LOOKS]), legend=key)
    size = alt.Size(
        "what:N", scale=alt.Scale(domain=conditions, range=[130] + [50] * (len(conditions) - 1)), legend=None
    )
    tip = [
        alt.Tooltip("row:N"),
        alt.Tooltip("what:N"),
        alt.Tooltip("value:Q", format=".1%" if kind == "share" else ".4g"),
    ]
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
    return finish(picture, _told(rows, conditions, words_of, percent if kind == "share" else decimal))


def _scale(kind: Kind, values: pd.Series) -> alt.Scale:
    room = {"nice": False, "padding": 8}
    rank = {"type": "log", "domain": [1, float(values.max())]}
    return alt.Scale(**(rank if kind == "rank" else {"domain": [0, 1]}), **room)


def _axis(kind: Kind, values: pd.Series) -> alt.Axis:
    if kind == "rank":
        return alt.Axis(values=[10**power for power in range(6) if 10**power <= values.max()], format="d")
    return alt.Axis(format=".0%" if kind == "share" else ".1f", tickCount=5)


def _told(rows: pd.DataFrame, conditions: list[str], said: Mapping[str, str], written: Callable[[float], str]) -> str:
    first = rows[rows["what"] == conditions[0]].set_index("row")["value"]
    named = [f" {line} ({word})" for line, word in said.items() if line in first.index and word]
    top = str(first.idxmax())
    return (
        f"{len(first)} lines under {len(conditions)} conditions. With {conditions[0]} the largest value is that of {top}: "
        f"{written(float(first[top]))}.{','.join(named)}{'.' if named else ''}"
    )
