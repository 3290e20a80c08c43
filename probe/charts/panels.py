"""Lines by depth, and numbers under several conditions drawn to be compared: marks on a line, matrices, shares.

How far the senses of a word are apart after each layer stands in every report; the rest is drawn by the analyses, whose
`rows` are in long form.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import (
    INK,
    LINE,
    MUTED,
    SENSES,
    WEIGHTS,
    WITH,
    bare_axis,
    by_depth,
    by_value,
    effect_scale,
    ends_of_lines,
    finish,
    heading,
    line_legend,
    lines_with_dots,
    of_word,
    rank_axis,
    reference_line,
    sense_colour,
    senses_of,
    share_axis,
    tips,
    token_axis,
)
from probe.stats.numbers import decimal, percent

DEPTH_TIPS = tips(
    "sense:N",
    "label:N | depth",
    "coordinate:Q | mean coordinate | .3f",
    "low:Q | 10 % of sentences below | .3f",
    "high:Q | 10 % of sentences above | .3f",
    "auroc:Q | AUROC at this depth | .3f",
)
LINE_HUES = (WITH, MUTED, SENSES[1], SENSES[0], SENSES[2])
PanelKind = Literal["linear", "rank"]
HUES = (WITH, MUTED, SENSES[0], SENSES[1], SENSES[2])
MOST_TICKS = 6
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
ComparedKind = Literal["share", "number", "rank"]
LOOKS = ((WITH, "circle"), (SENSES[1], "square"), (MUTED, "triangle-up"), (SENSES[2], "diamond"))
MatrixKind = Literal["signed", "shares"]
MOST_NUMBERS = 12
PARTS = ("attention", "MLP", "embeddings", "biases and norms")
COLOURS = (WITH, "#6b7480", "#00805d", SENSES[5])  # dark enough for white numbers
WIDE_ENOUGH = 0.06


def depth_profile(
    depth: pd.DataFrame, word: str, pair: tuple[str, str], *, read_at: int | None = None, legend: bool = True
) -> Any:
    """Mean sense coordinate of two senses by depth, with the middle 80 % of the sentences, from the bare token on.

    `read_at`, the read-out depth of the word, is drawn as a line.
    """
    first, last = (gap_at(depth, word, pair, depth=at) for at in (-1, None))
    description = (
        f"Depth profile of {word}: the mean sense coordinates of {pair[0]} and {pair[1]} are "
        f"{'exactly 0' if first == 0 else decimal(first)} apart at the token embedding and "
        f"{'exactly 0' if last == 0 else decimal(last)} of the gap apart after the last layer."
    )
    return finish(_depth(depth, word, pair, read_at, legend), description, height=170)


def depth_profiles(depth: pd.DataFrame, word: str, *, columns: int = 3) -> Any:
    """The depth profiles of all pairs of senses of a word, side by side."""
    pairs = of_word(depth, word)[["sense_a", "sense_b"]].drop_duplicates()
    charts = [_depth(depth, word, (a, b)).properties(width=220, height=150) for a, b in pairs.to_numpy().tolist()]
    description = (
        f"Depth profiles of the {len(charts)} pairs of senses of {word}, from the token embedding to the last layer."
    )
    return finish(alt.concat(*charts, columns=columns).resolve_scale(color="independent"), description)


def gap_at(frame: pd.DataFrame, word: str, pair: tuple[str, str], *, depth: int | None = None) -> float:
    """Difference of two senses' mean coordinates at a depth, by default the last; exactly 0 for identical vectors."""
    rows = _of_pair(frame, word, pair)
    here = rows[rows["depth"] == (rows["depth"].max() if depth is None else depth)].set_index("sense")["coordinate"]
    return float(here[pair[0]] - here[pair[1]])


def _of_pair(frame: pd.DataFrame, word: str, pair: tuple[str, str]) -> pd.DataFrame:
    rows = of_word(frame, word)
    return rows[(rows["sense_a"] == pair[0]) & (rows["sense_b"] == pair[1])]


def _depth(
    depth: pd.DataFrame, word: str, pair: tuple[str, str], read_at: int | None = None, legend: bool = True
) -> alt.LayerChart:
    rows, every = _of_pair(depth, word, pair), of_word(depth, word)
    x = by_depth(rows["depth"], padding=alt.Undefined, labelFlush=False)
    key = alt.Legend(orient="top", symbolType="circle", symbolOpacity=1, offset=4) if legend else None
    hues = [sense_colour(senses_of(every), sense) for sense in pair]
    base = alt.Chart(rows).encode(x=x, color=by_value(alt.Color, "sense:N", pair, hues, key))
    reach = alt.Scale(domain=[float(every["low"].min()), float(every["high"].max())])
    y = alt.Y("low:Q", title="sense coordinate (1 = gap)", axis=alt.Axis(tickCount=5), scale=reach)
    band = base.mark_area(opacity=0.22).encode(y, alt.Y2("high"))
    mean = {"y": "coordinate:Q"}
    layers = [reference_line("y", 0.0), band, *lines_with_dots(base, 28, line=mean, **mean, tooltip=DEPTH_TIPS)]
    return alt.layer(*([] if read_at is None else [reference_line("x", read_at, dash=False)]), *layers)


def lines_by_depth(rows: pd.DataFrame, kinds: Mapping[str, PanelKind], *, hues: Mapping[str, str] | None = None) -> Any:
    """A line per `what` in every panel, in the order of `kinds`. `rows`: `panel`, `depth`, `what`, `value`.

    Panels of ranks are logarithmic with rank 1 on top and share their scale. Panels with the same lines share one
    legend. `hues` gives a line its colour; the others take theirs in order of appearance.
    """
    fixed, parts = dict(hues or {}), {name: rows[rows["panel"] == name] for name in kinds}
    lowest = max((float(parts[name]["value"].max()) for name, kind in kinds.items() if kind == "rank"), default=1.0)
    alike = len({tuple(part["what"].drop_duplicates()) for part in parts.values()}) == 1
    columns = len(fixed or LINE_HUES) if alike and len(kinds) > 1 else 1
    free, charts = [hue for hue in LINE_HUES if hue not in fixed.values()], []
    for name, part in parts.items():
        lines = part["what"].drop_duplicates().tolist()
        taken = fixed | dict(zip([line for line in lines if line not in fixed], free, strict=False))
        key = line_legend(orient="bottom", columns=columns, labelLimit=220)
        colour = by_value(alt.Color, "what:N", lines, [taken[line] for line in lines], key)
        scale, axis = alt.Scale(), alt.Axis(tickCount=4)
        if kinds[name] == "rank":
            scale = alt.Scale(type="log", reverse=True, domain=[1, lowest], nice=False, padding=6)
            axis = rank_axis(lowest)
        y = alt.Y("value:Q", title=None, scale=scale, axis=axis)
        base = alt.Chart(part).encode(x=by_depth(part["depth"]), y=y, color=colour)
        drawn = alt.layer(*lines_with_dots(base, 36, tooltip=tips("what:N", "depth:Q", "value:Q | | .6g")))
        charts.append(drawn.properties(width=190 if len(kinds) < 3 else 150, height=170, title=heading(name)))
    told = "; ".join(f"{name}: {ends_of_lines(part, 'depth', 'what', decimal)}" for name, part in parts.items())
    picture = alt.hconcat(*charts, spacing=24).resolve_scale(color="shared" if alike else "independent")
    return finish(picture, f"{told}.")


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
    parts = {panel: rows[rows["panel"] == panel.title] for panel in panels}
    charts = [_lines(part, panel, variants).properties(width=width) for panel, part in parts.items()]
    told = [f"{panel.title}: {ends_of_lines(part, 'x', 'variant', '{:.3g}'.format)}" for panel, part in parts.items()]
    return finish(alt.hconcat(*charts, spacing=28), f"{'; '.join(told)}.")


def _lines(rows: pd.DataFrame, panel: Panel, variants: list[str]) -> Any:
    every = sorted(set(rows["x"].tolist()))
    ticks = every[:: -len(every) // MOST_TICKS][::-1]  # at most MOST_TICKS of the values, the last one kept
    scale = alt.Scale(**({"type": "log"} if "x" in panel.log else {"zero": False}), nice=False, padding=8)
    x = alt.X("x:Q", title=panel.x, scale=scale, axis=alt.Axis(values=ticks, format="d", grid=False))
    y_scale, y_axis = alt.Scale(zero=True), alt.Axis(tickCount=4)
    if "y" in panel.log:
        small = "datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"  # .1 and not 100m
        y_scale, y_axis = alt.Scale(type="log"), alt.Axis(tickCount=4, labelExpr=small)
    y = alt.Y("value:Q", title=panel.y, scale=y_scale, axis=y_axis)
    key = alt.Legend(orient="bottom", title=None, symbolSize=70, labelLimit=260) if len(variants) > 1 else None
    colour = by_value(alt.Color, "variant:N", variants, HUES[: len(variants)], key)
    shape = by_value(alt.Shape, "variant:N", variants, SHAPES[: len(variants)], key)
    tip = tips("variant:N", f"x:Q | {panel.x}", "value:Q | | .4g")
    picture = alt.layer(*lines_with_dots(alt.Chart(rows).encode(x=x, y=y, color=colour), 46, shape=shape, tooltip=tip))
    return picture.properties(height=170, title=heading(panel.title))


def compared(
    rows: pd.DataFrame, title: str, *, said: Mapping[str, str] | None = None, kind: ComparedKind = "share"
) -> Any:
    """A line per `row` from its smallest to its largest value, a mark per condition. `rows`: `row`, `what`, `value`.

    The order is that of the rows; the first condition has the largest mark, so that it shows behind another at the same
    value. `said` puts a word behind a line. A `share` (0 to 1) is written as a percentage, a `number` (0 to 1) is not,
    a `rank` stands on a logarithmic axis with 1 on the left.
    """
    lines, conditions = (rows[name].drop_duplicates().tolist() for name in ("row", "what"))
    words_of, last = dict(said or {}), float(rows["value"].max())
    y = alt.Y("row:N", title=None, sort=lines, axis=bare_axis(grid=False, labelColor=INK))
    scale = alt.Scale(domain=[0, 1], nice=False, padding=8)
    axis = alt.Axis(format=".0%" if kind == "share" else ".1f", tickCount=5)
    if kind == "rank":
        scale, axis = alt.Scale(type="log", domain=[1, last], nice=False, padding=8), rank_axis(last)
    x = alt.X("value:Q", title=title, scale=scale, axis=axis)
    key = alt.Legend(orient="top", title=None, symbolSize=80, symbolStrokeWidth=0, columns=1, labelLimit=320)
    hues, shapes = zip(*LOOKS, strict=True)
    colour = by_value(alt.Color, "what:N", conditions, hues, key)
    shape = by_value(alt.Shape, "what:N", conditions, shapes, key)
    size = by_value(alt.Size, "what:N", conditions, [130] + [50] * (len(conditions) - 1))
    tip = tips("row:N", "what:N", f"value:Q | | {'.1%' if kind == 'share' else '.4g'}")
    spans = rows.groupby("row", sort=False)["value"].agg(["min", "max"]).reset_index()
    rules = alt.Chart(spans).mark_rule(color=LINE, strokeWidth=2).encode(y=y, x=alt.X("min:Q"), x2="max:Q")
    marks = alt.Chart(rows).mark_point(filled=True, opacity=1)
    marks = marks.encode(y=y, x=x, color=colour, shape=shape, size=size, tooltip=tip)
    ends = spans.assign(said=[words_of.get(line, "") for line in lines])
    words = alt.Chart(ends).mark_text(align="left", color=MUTED, fontSize=11)
    picture = alt.layer(rules, marks, words.encode(y=y, x=alt.value(368), text="said:N"))
    first = rows[rows["what"] == conditions[0]].set_index("row")["value"]
    top, named = str(first.idxmax()), [f" {line} ({word})" for line, word in words_of.items() if line in first and word]
    told = (
        f"{len(first)} lines under {len(conditions)} conditions. With {conditions[0]} the largest value is that of "
        f"{top}: {(percent if kind == 'share' else decimal)(float(first[top]))}.{','.join(named)}{'.' if named else ''}"
    )
    return finish(picture.properties(width=360, height={"step": 20}), told)


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
    colour = alt.Color("value:Q", scale=effect_scale(limit) if kind == "signed" else WEIGHTS, legend=None)
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
    title = "share of all parameters"
    x = alt.X("share:Q", title=title, stack="zero", scale=alt.Scale(domain=[0, 1]), axis=share_axis())
    kinds = [part for part in PARTS if part in set(rows["part"])]
    key = alt.Legend(orient="top", title=None, symbolType="square", symbolStrokeWidth=0)
    colour = by_value(alt.Color, "part:N", kinds, [COLOURS[PARTS.index(kind)] for kind in kinds], key)
    base = alt.Chart(shown).encode(y=y)
    tip = tips("model:N", "part:N", "parameters:Q | | ,")
    bars = base.mark_bar(height=30).encode(x=x, color=colour, order="place:Q", tooltip=tip)
    numbers = base.mark_text(color="#ffffff", fontSize=12)
    numbers = numbers.encode(x=alt.X("middle:Q", title=title), text="text:N")
    told = []
    for model in models:
        mine = shown[shown["model"] == model]
        shares = ", ".join(f"{part} {percent(share)}" for part, share in zip(mine["part"], mine["share"], strict=True))
        told.append(f"{model}: {shares}")
    return finish(alt.layer(bars, numbers), f"{'; '.join(told)}.", height={"step": 48})
