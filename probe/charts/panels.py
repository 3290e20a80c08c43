"""Numbers under several conditions, drawn to be compared: line panels, marks on a line, matrices, bars of shares.

Used by the analyses; `rows` are theirs, in long form.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import (
    INK,
    LINE,
    MUTED,
    SENSES,
    WITH,
    bare_axis,
    by_value,
    effect_scale,
    ends_of_lines,
    finish,
    heading,
    lines_with_dots,
    tips,
    token_axis,
)
from probe.stats.numbers import decimal, percent

HUES = (WITH, MUTED, SENSES[0], SENSES[1], SENSES[2])
MOST_TICKS = 6
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")


@dataclass(frozen=True)
class Panel:
    """One picture of several: title, names of its axes with their units; `log`: the axes that are logarithmic."""

    title: str
    x: str
    y: str
    log: Literal["", "x", "xy"] = ""


def line_panels(rows: pd.DataFrame, panels: Sequence[Panel], *, width: int = 190) -> Any:
    """A line per `variant` in every panel. `rows`: `panel` (a title), `x`, `variant`, `value`.

    Linear panels start at zero, so that heights can be compared. The first variant has the accent, the second is grey.
    """
    variants = rows["variant"].drop_duplicates().tolist()
    charts = [_lines(rows[rows["panel"] == panel.title], panel, variants).properties(width=width) for panel in panels]
    parts = {panel.title: rows[rows["panel"] == panel.title] for panel in panels}
    told = "; ".join(
        f"{title}: {ends_of_lines(part, 'x', 'variant', '{:.3g}'.format)}" for title, part in parts.items()
    )
    return finish(alt.hconcat(*charts, spacing=28), f"{told}.")


def _lines(rows: pd.DataFrame, panel: Panel, variants: list[str]) -> Any:
    log_x, log_y = "x" in panel.log, "y" in panel.log
    kind = {"type": "log"} if log_x else {"zero": False}
    scale = alt.Scale(**kind, nice=False, padding=8)
    x = alt.X("x:Q", title=panel.x, scale=scale, axis=alt.Axis(values=_ticks(rows["x"]), format="d", grid=False))
    y_scale = alt.Scale(type="log") if log_y else alt.Scale(zero=True)
    small = "datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"  # .1 and not 100m
    y_axis = alt.Axis(tickCount=4, labelExpr=small) if log_y else alt.Axis(tickCount=4)
    y = alt.Y("value:Q", title=panel.y, scale=y_scale, axis=y_axis)
    key = alt.Legend(orient="bottom", title=None, symbolSize=70, labelLimit=260) if len(variants) > 1 else None
    colour = by_value(alt.Color, "variant:N", variants, HUES[: len(variants)], key)
    shape = by_value(alt.Shape, "variant:N", variants, SHAPES[: len(variants)], key)
    tip = tips("variant:N", f"x:Q | {panel.x}", "value:Q | | .4g")
    base = alt.Chart(rows).encode(x=x, y=y, color=colour)
    picture = alt.layer(*lines_with_dots(base, 46, shape=shape, tooltip=tip))
    return picture.properties(height=170, title=heading(panel.title))


def _ticks(values: pd.Series) -> list[float]:
    """The values themselves, thinned to at most MOST_TICKS, the last one kept."""
    every = sorted(set(values.tolist()))
    step = -(-len(every) // MOST_TICKS)
    return every[::-step][::-1]


ComparedKind = Literal["share", "number", "rank"]
LOOKS = ((WITH, "circle"), (SENSES[1], "square"), (MUTED, "triangle-up"), (SENSES[2], "diamond"))


def compared(
    rows: pd.DataFrame, title: str, *, said: Mapping[str, str] | None = None, kind: ComparedKind = "share"
) -> Any:
    """A line per `row` from its smallest to its largest value, a mark per condition. `rows`: `row`, `what`, `value`.

    The order is that of the rows; the first condition has the largest mark, so that it shows behind another at the same
    value. `said` puts a word behind a line. A `share` (0 to 1) is written as a percentage, a `number` (0 to 1) is not,
    a `rank` stands on a logarithmic axis with 1 on the left.
    """
    lines, conditions = (rows[name].drop_duplicates().tolist() for name in ("row", "what"))
    words_of, values = dict(said or {}), rows["value"]
    y = alt.Y("row:N", title=None, sort=lines, axis=bare_axis(grid=False, labelColor=INK))
    x = alt.X("value:Q", title=title, scale=_scale(kind, values), axis=_axis(kind, values))
    key = alt.Legend(orient="top", title=None, symbolSize=80, symbolStrokeWidth=0, columns=1, labelLimit=320)
    colour, shape = (
        by_value(channel, "what:N", conditions, looks, key)
        for channel, looks in zip((alt.Color, alt.Shape), zip(*LOOKS, strict=True), strict=True)
    )
    size = by_value(alt.Size, "what:N", conditions, [130] + [50] * (len(conditions) - 1))
    tip = tips("row:N", "what:N", f"value:Q | | {'.1%' if kind == 'share' else '.4g'}")
    spans = rows.groupby("row", sort=False)["value"].agg(["min", "max"]).reset_index()
    rules = alt.Chart(spans).mark_rule(color=LINE, strokeWidth=2).encode(y=y, x=alt.X("min:Q"), x2="max:Q")
    marks = alt.Chart(rows).mark_point(filled=True, opacity=1)
    marks = marks.encode(y=y, x=x, color=colour, shape=shape, size=size, tooltip=tip)
    ends = spans.assign(said=[words_of.get(line, "") for line in lines])
    words = alt.Chart(ends).mark_text(align="left", color=MUTED, fontSize=11)
    picture = alt.layer(rules, marks, words.encode(y=y, x=alt.value(368), text="said:N"))
    said_of = _told_compared(rows, conditions, words_of, percent if kind == "share" else decimal)
    return finish(picture.properties(width=360, height={"step": 20}), said_of)


def _scale(kind: ComparedKind, values: pd.Series) -> alt.Scale:
    room = {"nice": False, "padding": 8}
    rank = {"type": "log", "domain": [1, float(values.max())]}
    return alt.Scale(**(rank if kind == "rank" else {"domain": [0, 1]}), **room)


def _axis(kind: ComparedKind, values: pd.Series) -> alt.Axis:
    if kind == "rank":
        return alt.Axis(values=[10**power for power in range(6) if 10**power <= values.max()], format="d")
    return alt.Axis(format=".0%" if kind == "share" else ".1f", tickCount=5)


def _told_compared(
    rows: pd.DataFrame, conditions: list[str], said: Mapping[str, str], written: Callable[[float], str]
) -> str:
    first = rows[rows["what"] == conditions[0]].set_index("row")["value"]
    named = [f" {line} ({word})" for line, word in said.items() if line in first.index and word]
    top = str(first.idxmax())
    return (
        f"{len(first)} lines under {len(conditions)} conditions. With {conditions[0]} the largest value is that of "
        f"{top}: {written(float(first[top]))}.{','.join(named)}{'.' if named else ''}"
    )


MatrixKind = Literal["signed", "shares"]
MOST_NUMBERS = 12


def matrix_panels(cells: pd.DataFrame, kinds: Mapping[str, MatrixKind]) -> Any:
    """One matrix per panel, in the order of `kinds`; queries are rows. `cells`: `panel`, `query`, `key`, `value`.

    Keys may be tokens of another text. `shares` run from white at 0 to violet at 1; `signed` numbers diverge around a
    blank zero, to the largest of the panel. Values that are missing (masked) stay empty.
    """
    charts = [_matrix(cells[cells["panel"] == name], name, kind) for name, kind in kinds.items()]
    ends = cells.groupby("panel")["value"].agg(["min", "max"])
    told = "; ".join(f"{name}: from {ends['min'][name]:.3g} to {ends['max'][name]:.3g}" for name in kinds)
    return finish(alt.hconcat(*charts, spacing=22).resolve_scale(color="independent"), f"Queries as rows. {told}.")


def _matrix(rows: pd.DataFrame, name: str, kind: MatrixKind) -> Any:
    down, across = (rows[name].drop_duplicates().tolist() for name in ("query", "key"))
    small = max(len(down), len(across)) <= MOST_NUMBERS
    cell = 30 if small else 14
    axis = {"grid": False, "labelLimit": 90}
    y = alt.Y("query:N", title="query", sort=down, axis=token_axis(**axis))
    x = alt.X("key:N", title="key", sort=across, axis=token_axis(labelAngle=-45, **axis))
    limit = float(rows["value"].abs().max())
    white_to_violet = alt.Scale(domain=[0, 1], range=["#ffffff", WITH], interpolate="rgb")
    colour = alt.Color("value:Q", scale=effect_scale(limit) if kind == "signed" else white_to_violet, legend=None)
    strong = f"datum.value != null && abs(datum.value) > {0.8 * (limit if kind == 'signed' else 1.0)}"
    shown = rows.assign(text=[_number(value, limit) for value in rows["value"]])
    base = alt.Chart(shown).encode(x=x, y=y)
    fill = base.transform_filter("datum.value != null").mark_rect(stroke=LINE, strokeWidth=0.5)
    fill = fill.encode(color=colour, tooltip=tips("query:N", "key:N", "value:Q | | .6g"))
    ink = alt.condition(strong, alt.value("#ffffff"), alt.value(INK))
    numbers = [base.mark_text(fontSize=9).encode(text="text:N", color=ink)] if small else []
    size = {"width": cell * len(across), "height": cell * len(down)}
    return alt.layer(fill, *numbers).properties(title=heading(name), **size)


def _number(value: float, limit: float) -> str:
    """As many digits as the panel needs, without the leading zero: .12, −.003, 0; nothing where there is no value."""
    if math.isnan(value) or value == 0:
        return "0" if value == 0 else ""
    digits = 1 if limit >= 10 else 2 if limit >= 0.2 else 3
    return decimal(value, digits).replace("0.", ".", 1) if abs(value) < 1 else decimal(value, digits)


PARTS = ("attention", "MLP", "embeddings", "biases and norms")
COLOURS = (WITH, "#6b7480", "#00805d", SENSES[5])  # dark enough for white numbers
WIDE_ENOUGH = 0.06


def parameter_bars(rows: pd.DataFrame) -> Any:
    """Share of each of PARTS in each model's parameters, written in its bar. `rows`: `model`, `part`, `parameters`."""
    sums = rows.groupby("model", sort=False)["parameters"].transform("sum")
    shown = rows.assign(share=rows["parameters"] / sums, place=rows["part"].map(PARTS.index))
    shown = shown.sort_values(["model", "place"])
    end = shown.groupby("model")["share"].cumsum()
    texts = [percent(share) if share >= WIDE_ENOUGH else "" for share in shown["share"]]
    shown = shown.assign(middle=end - shown["share"] / 2, text=texts)
    models = rows["model"].drop_duplicates().tolist()
    y = alt.Y("model:N", title=None, sort=models, axis=bare_axis(labelLimit=200, labelFontSize=12))
    title, axis = "share of all parameters", alt.Axis(format=".0%", tickCount=5)
    x = alt.X("share:Q", title=title, stack="zero", scale=alt.Scale(domain=[0, 1]), axis=axis)
    kinds = [part for part in PARTS if part in set(rows["part"])]
    key = alt.Legend(orient="top", title=None, symbolType="square", symbolStrokeWidth=0)
    colour = by_value(alt.Color, "part:N", kinds, [COLOURS[PARTS.index(kind)] for kind in kinds], key)
    base = alt.Chart(shown).encode(y=y)
    tip = tips("model:N", "part:N", "parameters:Q | | ,")
    bars = base.mark_bar(height=30).encode(x=x, color=colour, order="place:Q", tooltip=tip)
    numbers = base.mark_text(color="#ffffff", fontSize=12)
    numbers = numbers.encode(x=alt.X("middle:Q", title=title), text="text:N")
    shares = [shown[shown["model"] == model].set_index("part")["share"] for model in models]
    told = [", ".join(f"{part} {percent(share)}" for part, share in each.items()) for each in shares]
    said = "; ".join(f"{model}: {each}" for model, each in zip(models, told, strict=True))
    return finish(alt.layer(bars, numbers), f"{said}.", height={"step": 48})
