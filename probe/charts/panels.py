"""Small line charts side by side, each with a title that says what is compared; one legend for all.

A number under several conditions as marks on one line, a line for each head or place: what is common, and what is not.

Tables of numbers side by side, as coloured cells with the number inside: scores, weights, differences.

Where a model's parameters are: one bar per model, cut into parts, all bars of the same length.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import INK, LINE, MUTED, SENSES, WITH, effect_scale, finish
from probe.stats.numbers import decimal, percent

HUES = (WITH, MUTED, SENSES[0], SENSES[1], SENSES[2])
MOST_TICKS = 6
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")


@dataclass(frozen=True)
class Panel:
    """One picture of several: its title, and the names of its axes with their units; `log`: the axes that are logarithmic."""

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
    told = "; ".join(f"{panel.title}: {_told(rows[rows['panel'] == panel.title])}" for panel in panels)
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
    hue = alt.Color("variant:N", scale=alt.Scale(domain=variants, range=list(HUES[: len(variants)])), legend=key)
    mark = alt.Shape("variant:N", scale=alt.Scale(domain=variants, range=list(SHAPES[: len(variants)])), legend=key)
    tip = [alt.Tooltip("variant:N"), alt.Tooltip("x:Q", title=panel.x), alt.Tooltip("value:Q", format=".4g")]
    base = alt.Chart(rows).encode(x=x, y=y, color=hue)
    dots = base.mark_point(filled=True, size=46, opacity=1).encode(shape=mark, tooltip=tip)
    title = alt.TitleParams(panel.title, fontSize=12, fontWeight="normal", color=INK)
    return alt.layer(base.mark_line(strokeWidth=2), dots).properties(height=170, title=title)


def _ticks(values: pd.Series) -> list[float]:
    """The values themselves, thinned to at most MOST_TICKS, the last one kept."""
    every = sorted(set(values.tolist()))
    step = -(-len(every) // MOST_TICKS)
    return every[::-step][::-1]


def _told(rows: pd.DataFrame) -> str:
    """Where each line starts and ends."""
    ends = rows.sort_values("x").groupby("variant", sort=False)["value"].agg(["first", "last"])
    return ", ".join(f"{name} from {first:.3g} to {last:.3g}" for name, first, last in ends.itertuples())


ComparedKind = Literal["share", "number", "rank"]
LOOKS = ((WITH, "circle"), (SENSES[1], "square"), (MUTED, "triangle-up"), (SENSES[2], "diamond"))


def compared(
    rows: pd.DataFrame, title: str, *, said: Mapping[str, str] | None = None, kind: ComparedKind = "share"
) -> Any:
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
    return finish(picture, _told_compared(rows, conditions, words_of, percent if kind == "share" else decimal))


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
        f"{len(first)} lines under {len(conditions)} conditions. With {conditions[0]} the largest value is that of {top}: "
        f"{written(float(first[top]))}.{','.join(named)}{'.' if named else ''}"
    )


Kind = Literal["signed", "shares"]
MOST_NUMBERS = 12


def matrix_panels(cells: pd.DataFrame, kinds: Mapping[str, Kind]) -> Any:
    """One matrix per panel, in the order of `kinds`; queries are rows. Keys may be other tokens, of another text. `cells`: `panel`, `query`, `key`, `value`.

    `shares` run from white at 0 to violet at 1; `signed` numbers diverge around a blank zero, to the largest of the panel. Values
    that are missing (masked) stay empty.
    """
    charts = [_matrix(cells[cells["panel"] == name], name, kind) for name, kind in kinds.items()]
    told = "; ".join(f"{name}: {_told_matrices(cells[cells['panel'] == name])}" for name in kinds)
    return finish(alt.hconcat(*charts, spacing=22).resolve_scale(color="independent"), f"Queries as rows. {told}.")


def _matrix(rows: pd.DataFrame, name: str, kind: Kind) -> Any:
    down, across = (rows[name].drop_duplicates().tolist() for name in ("query", "key"))
    small = max(len(down), len(across)) <= MOST_NUMBERS
    cell = 30 if small else 14
    axis = {"ticks": False, "domain": False, "grid": False, "labelLimit": 90, "labelOverlap": False}
    y = alt.Y("query:N", title="query", sort=down, axis=alt.Axis(**axis))
    x = alt.X("key:N", title="key", sort=across, axis=alt.Axis(labelAngle=-45, **axis))
    limit = float(rows["value"].abs().max())
    scale = (
        effect_scale(limit)
        if kind == "signed"
        else alt.Scale(domain=[0, 1], range=["#ffffff", WITH], interpolate="rgb")
    )
    strong = f"datum.value != null && abs(datum.value) > {0.8 * (limit if kind == 'signed' else 1.0)}"
    shown = rows.assign(text=[_number(value, limit) for value in rows["value"]])
    base = alt.Chart(shown).encode(x=x, y=y)
    tip = [alt.Tooltip("query:N"), alt.Tooltip("key:N"), alt.Tooltip("value:Q", format=".6g")]
    hue = alt.Color("value:Q", scale=scale, legend=None)
    fill = (
        base.transform_filter("datum.value != null")
        .mark_rect(stroke=LINE, strokeWidth=0.5)
        .encode(color=hue, tooltip=tip)
    )
    ink = alt.condition(strong, alt.value("#ffffff"), alt.value(INK))
    numbers = [base.mark_text(fontSize=9).encode(text="text:N", color=ink)] if small else []
    title = alt.TitleParams(name, fontSize=12, fontWeight="normal", color=INK)
    return alt.layer(fill, *numbers).properties(width=cell * len(across), height=cell * len(down), title=title)


def _number(value: float, limit: float) -> str:
    """As many digits as the panel needs, without the leading zero: .12, −.003, 0; nothing where there is no value."""
    if math.isnan(value) or value == 0:
        return "0" if value == 0 else ""
    digits = 1 if limit >= 10 else 2 if limit >= 0.2 else 3
    return decimal(value, digits).replace("0.", ".", 1) if abs(value) < 1 else decimal(value, digits)


def _told_matrices(rows: pd.DataFrame) -> str:
    return f"from {rows['value'].min():.3g} to {rows['value'].max():.3g}"


PARTS = ("attention", "MLP", "embeddings", "biases and norms")
COLOURS = (WITH, "#6b7480", "#00805d", SENSES[5])  # dark enough for white numbers
WIDE_ENOUGH = 0.06


def parameter_bars(rows: pd.DataFrame) -> Any:
    """The share of each of PARTS in each model's parameters, with the share written in it. `rows`: `model`, `part`, `parameters`."""
    sums = rows.groupby("model", sort=False)["parameters"].transform("sum")
    shown = rows.assign(share=rows["parameters"] / sums, place=rows["part"].map(PARTS.index))
    shown = shown.sort_values(["model", "place"])
    end = shown.groupby("model")["share"].cumsum()
    shown = shown.assign(middle=end - shown["share"] / 2, text=[_text(share) for share in shown["share"]])
    models = rows["model"].drop_duplicates().tolist()
    y = alt.Y(
        "model:N", title=None, sort=models, axis=alt.Axis(ticks=False, domain=False, labelLimit=200, labelFontSize=12)
    )
    title = "share of all parameters"
    x = alt.X(
        "share:Q", title=title, stack="zero", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%", tickCount=5)
    )
    kinds = [part for part in PARTS if part in set(rows["part"])]
    key = alt.Legend(orient="top", title=None, symbolType="square", symbolStrokeWidth=0)
    scale = alt.Scale(domain=kinds, range=[COLOURS[PARTS.index(kind)] for kind in kinds])
    tip = [alt.Tooltip("model:N"), alt.Tooltip("part:N"), alt.Tooltip("parameters:Q", format=",")]
    bars = (
        alt.Chart(shown)
        .mark_bar(height=30)
        .encode(y=y, x=x, color=alt.Color("part:N", scale=scale, legend=key), order="place:Q", tooltip=tip)
    )
    numbers = (
        alt.Chart(shown)
        .mark_text(color="#ffffff", fontSize=12)
        .encode(y=y, x=alt.X("middle:Q", title=title), text="text:N")
    )
    told = "; ".join(_told_parameters(shown[shown["model"] == model], model) for model in models)
    return finish(alt.layer(bars, numbers).properties(width="container", height={"step": 48}), f"{told}.")


def _text(share: float) -> str:
    return percent(share) if share >= WIDE_ENOUGH else ""


def _told_parameters(rows: pd.DataFrame, model: str) -> str:
    return f"{model}: " + ", ".join(
        f"{part} {percent(share)}" for part, share in zip(rows["part"], rows["share"], strict=True)
    )
