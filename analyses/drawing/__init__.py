"""Charts that only the analyses need: numbers under several conditions, for comparison.

Lines by depth and in panels, marks on a line, matrices, bars with intervals, vectors that add up. `rows` are in long form.
Style and colours come from `probe.charts`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import pandas as pd

from drawing.motion import word_in_motion as word_in_motion
from probe.charts.palette import (
    AGAINST,
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
    lines_with_dots,
    numbers_at,
    rank_axis,
    reference_line,
    share_axis,
    tips,
    token_axis,
)
from probe.stats.numbers import decimal, percent

LINE_HUES = (WITH, MUTED, SENSES[1], SENSES[0], SENSES[2])
PanelKind = Literal["linear", "rank"]
HUES = (WITH, MUTED, SENSES[0], SENSES[1], SENSES[2])
MOST_TICKS = 6
# A second channel for each line, for readers who cannot distinguish colours.
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
DASHES = ([1, 0], [6, 3], [2, 3], [9, 3, 2, 3], [4, 2])
MOST_LARGE = 12  # marks on a line; if there are more, they are small
ComparedKind = Literal["share", "number", "rank"]
LOOKS = ((WITH, "circle"), (SENSES[1], "square"), (MUTED, "triangle-up"), (SENSES[2], "diamond"))
MatrixKind = Literal["signed", "shares"]
MOST_NUMBERS = 12
PARTS = ("attention", "MLP", "embeddings", "biases and norms")
COLOURS = (WITH, "#6b7480", "#00805d", SENSES[5])  # dark enough for white numbers
WIDE_ENOUGH, WIDE_FOR_NAME = 0.06, 0.2  # smallest shares whose bars have a number, and a name
BARS = 360  # pixels: the width of a panel of bars
NUMBER_WIDTH = 46  # pixels of it, for the number after the longest bar
LEAST_SIGN = 0.1  # of the largest value: a cell below its negative has a sign


def lines_by_depth(
    rows: pd.DataFrame, kinds: Mapping[str, PanelKind], *, hues: Mapping[str, str] | None = None
) -> Any:
    """A line per `what` in every panel, in the order of `kinds`.

    rows: `panel`, `depth`, `what`, `value`
    kinds: of each panel. Panels of ranks are logarithmic with rank 1 on top and share their scale
    hues: the colours of some lines; the others get colours in order of appearance

    Panels with the same lines share one legend.
    """
    fixed, parts = dict(hues or {}), {name: rows[rows["panel"] == name] for name in kinds}
    lowest = max(
        (float(parts[name]["value"].max()) for name, kind in kinds.items() if kind == "rank"),
        default=1.0,
    )
    alike = len({tuple(part["what"].drop_duplicates()) for part in parts.values()}) == 1
    columns = len(fixed or LINE_HUES) if alike and len(kinds) > 1 else 1
    free, charts = [hue for hue in LINE_HUES if hue not in fixed.values()], []
    for name, part in parts.items():
        lines = part["what"].drop_duplicates().tolist()
        hue_of_line = fixed | dict(
            zip([line for line in lines if line not in fixed], free, strict=False)
        )
        key = alt.Legend(
            orient="bottom",
            title=None,
            symbolSize=70,
            symbolStrokeWidth=0,
            columns=columns,
            labelLimit=220,
        )
        looks = _looks("what:N", lines, [hue_of_line[line] for line in lines], key)
        scale, axis = alt.Scale(), alt.Axis(tickCount=4)
        if kinds[name] == "rank":
            scale = alt.Scale(type="log", reverse=True, domain=[1, lowest], nice=False, padding=6)
            axis = rank_axis(lowest)
        y = alt.Y("value:Q", title=None, scale=scale, axis=axis)
        base = alt.Chart(part).encode(x=by_depth(part["depth"]), y=y, color=looks["color"])
        tip = tips("what:N", "depth:Q", "value:Q | | .6g")
        dash = {"strokeDash": looks["strokeDash"]}
        layers = alt.layer(*lines_with_dots(base, 36, line=dash, shape=looks["shape"], tooltip=tip))
        charts.append(
            layers.properties(width=190 if len(kinds) < 3 else 150, height=170, title=heading(name))
        )
    description = "; ".join(
        f"{name}: {ends_of_lines(part, 'depth', 'what', decimal)}" for name, part in parts.items()
    )
    resolved = "shared" if alike else "independent"
    picture = alt.hconcat(*charts, spacing=24).resolve_scale(
        color=resolved, shape=resolved, strokeDash=resolved
    )
    return finish(picture, f"{description}.")


def _looks(field: str, lines: Sequence[str], hues: Sequence[str], key: Any) -> dict[str, Any]:
    """The channels that distinguish lines: colour and mark with one legend, and the stroke."""
    n = len(lines)
    return {
        "color": by_value(alt.Color, field, lines, hues, key),
        "shape": by_value(alt.Shape, field, lines, SHAPES[:n], key),
        "strokeDash": by_value(alt.StrokeDash, field, lines, DASHES[:n]),
    }


@dataclass(frozen=True)
class Panel:
    """One of several panels.

    x, y: the titles of the axes, with units
    log: the logarithmic axes
    """

    title: str
    x: str
    y: str
    log: Literal["", "x", "xy"] = ""


def line_panels(rows: pd.DataFrame, panels: Sequence[Panel], *, width: int = 190) -> Any:
    """A line per `variant` in every panel.

    rows: `panel` (a title), `x`, `variant`, `value`
    width: of a panel, in pixels

    Linear panels start at zero, so that heights can be compared. The first variant has the accent colour, the second is
    grey.
    """
    variants = rows["variant"].drop_duplicates().tolist()
    parts = {panel: rows[rows["panel"] == panel.title] for panel in panels}
    charts = [
        _lines(part, panel, variants).properties(width=width) for panel, part in parts.items()
    ]
    descriptions = [
        f"{panel.title}: {ends_of_lines(part, 'x', 'variant', '{:.3g}'.format)}"
        for panel, part in parts.items()
    ]
    return finish(alt.hconcat(*charts, spacing=28), f"{'; '.join(descriptions)}.")


def _lines(rows: pd.DataFrame, panel: Panel, variants: list[str]) -> Any:
    xs = sorted(set(rows["x"].tolist()))
    ticks = xs[:: -len(xs) // MOST_TICKS][::-1]  # at most MOST_TICKS values, including the last
    scale = alt.Scale(
        **({"type": "log"} if "x" in panel.log else {"zero": False}), nice=False, padding=8
    )
    x = alt.X(
        "x:Q", title=panel.x, scale=scale, axis=alt.Axis(values=ticks, format="d", grid=False)
    )
    y_scale, y_axis = alt.Scale(zero=True, nice=False), alt.Axis(tickCount=4)
    if "y" in panel.log:
        # .1 and not 100m
        small = "datum.value < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"
        y_scale = alt.Scale(type="log", nice=False, padding=8)
        low, high = (math.log10(end) for end in (rows["value"].min(), rows["value"].max()))
        powers = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]
        y_axis = alt.Axis(values=powers, labelExpr=small)
    y = alt.Y("value:Q", title=panel.y, scale=y_scale, axis=y_axis)
    key = (
        alt.Legend(orient="bottom", title=None, symbolSize=70, symbolStrokeWidth=0, labelLimit=260)
        if len(variants) > 1
        else None
    )
    looks = _looks("variant:N", variants, HUES[: len(variants)], key)
    tip = tips("variant:N", f"x:Q | {panel.x}", "value:Q | | .4g")
    base = alt.Chart(rows).encode(x=x, y=y, color=looks["color"])
    size = 46 if len(xs) <= MOST_LARGE else 20
    dash = {"strokeDash": looks["strokeDash"]}
    picture = alt.layer(*lines_with_dots(base, size, line=dash, shape=looks["shape"], tooltip=tip))
    return picture.properties(height=170, title=heading(panel.title))


def compared(
    rows: pd.DataFrame,
    title: str,
    *,
    notes: Mapping[str, str] | None = None,
    kind: ComparedKind = "share",
) -> Any:
    """A line per `row` from its smallest to its largest value, with a mark per condition.

    rows: `row`, `what`, `value`; lines are in the order of the rows
    notes: a word after some lines, by line
    kind: of the axis: "share" starts at zero and is in percent, "number" starts at the smallest value, "rank" is
        logarithmic with 1 on the left

    The first condition has the largest mark, so that it stays visible under another mark at the same value.
    """
    lines, conditions = (rows[name].drop_duplicates().tolist() for name in ("row", "what"))
    words_of = dict(notes or {})
    least, last = (float(end) for end in (rows["value"].min(), rows["value"].max()))
    y = alt.Y("row:N", title=None, sort=lines, axis=bare_axis(grid=False, labelColor=INK))
    first_value = min(0.0, least) if kind == "share" else least
    scale = alt.Scale(domain=[first_value, last], nice=False, zero=False, padding=8)
    axis = alt.Axis(format=".0%" if kind == "share" else ".1f", tickCount=5)
    if kind == "rank":
        scale, axis = (
            alt.Scale(type="log", domain=[1, last], nice=False, padding=8),
            rank_axis(last),
        )
    x = alt.X("value:Q", title=title, scale=scale, axis=axis)
    key = alt.Legend(
        orient="top", title=None, symbolSize=80, symbolStrokeWidth=0, columns=1, labelLimit=320
    )
    hues, shapes = zip(*LOOKS, strict=True)
    colour = by_value(alt.Color, "what:N", conditions, hues, key)
    shape = by_value(alt.Shape, "what:N", conditions, shapes, key)
    size = by_value(alt.Size, "what:N", conditions, [130] + [50] * (len(conditions) - 1))
    tip = tips("row:N", "what:N", f"value:Q | | {'.1%' if kind == 'share' else '.4g'}")
    spans = rows.groupby("row", sort=False)["value"].agg(["min", "max"]).reset_index()
    rules = (
        alt.Chart(spans)
        .mark_rule(color=LINE, strokeWidth=2)
        .encode(y=y, x=alt.X("min:Q"), x2="max:Q")
    )
    marks = alt.Chart(rows).mark_point(filled=True, opacity=1)
    marks = marks.encode(y=y, x=x, color=colour, shape=shape, size=size, tooltip=tip)
    ends = spans.assign(note=[words_of.get(line, "") for line in lines])
    words = alt.Chart(ends).mark_text(align="left", color=MUTED, fontSize=11)
    picture = alt.layer(rules, marks, words.encode(y=y, x=alt.value(368), text="note:N"))
    first = rows[rows["what"] == conditions[0]].set_index("row")["value"]
    top = str(first.idxmax())
    labels = [f" {line} ({word})" for line, word in words_of.items() if line in first and word]
    description = (
        f"{len(first)} lines under {len(conditions)} conditions. With {conditions[0]} the largest value is that of "
        f"{top}: {(percent if kind == 'share' else decimal)(float(first[top]))}.{','.join(labels)}{'.' if labels else ''}"
    )
    return finish(picture.properties(width=360, height={"step": 20}), description)


def strips(lines: pd.DataFrame, dots: pd.DataFrame, title: str, *, size: str) -> Any:
    """A panel for each `panel`, and in it, for each `row`, a line with a tick and dots.

    lines: `panel`, `row`, `low`, `middle`, `high`: the ends of a line and its tick, all shares, in
        the order of the panels and rows
    dots: `panel`, `row`, `value`, and the column `size`, which their area shows
    title: of the axis
    """
    names = lines["panel"].drop_duplicates().tolist()
    area = alt.Size(f"{size}:Q", scale=alt.Scale(range=[15, 80]), legend=None)
    scale = alt.Scale(domain=[0, 1], nice=False)
    panels = []
    for name in names:
        of_panel, its_dots = (frame[frame["panel"] == name] for frame in (lines, dots))
        labels = bare_axis(grid=False, labelColor=INK, labelLimit=150, minExtent=120)
        y = alt.Y("row:N", title=None, sort=of_panel["row"].tolist(), axis=labels)
        is_last = name == names[-1]
        axis = share_axis(labels=is_last, ticks=is_last)
        x = alt.X("low:Q", title=title if is_last else None, scale=scale, axis=axis)
        base = alt.Chart(of_panel).encode(y=y)
        spans = base.mark_rule(color=LINE, strokeWidth=7).encode(x=x, x2="high:Q")
        ticks = base.mark_tick(color=MUTED, thickness=2, size=12, opacity=1).encode(
            x=alt.X("middle:Q")
        )
        marks = alt.Chart(its_dots).mark_point(filled=True, color=WITH, opacity=1)
        tip = tips("layer:Q", "head:Q", "value:Q | | .1%")
        marks = marks.encode(y=y, x=alt.X("value:Q"), size=area, tooltip=tip)
        picture = alt.layer(spans, ticks, marks)
        panels.append(picture.properties(width=BARS, height={"step": 16}, title=heading(str(name))))
    return finish(
        alt.vconcat(*panels, spacing=12).resolve_scale(size="shared"),
        f"Dots on lines, for {', '.join(map(str, names))}: {', '.join(lines['row'].unique())}.",
    )


def matrix_panels(cells: pd.DataFrame, kinds: Mapping[str, MatrixKind]) -> Any:
    """One matrix per panel, in the order of `kinds`, with queries as rows.

    cells: `panel`, `query`, `key`, `value`; missing values (masked) stay empty. Keys may be tokens of another text
    kinds: of each panel: "shares" from white at 0 to violet at 1, or "signed" numbers around a blank zero, scaled to the
        largest of the panel
    """
    charts = [_matrix(cells[cells["panel"] == name], name, kind) for name, kind in kinds.items()]
    ends = cells.groupby("panel")["value"].agg(["min", "max"])
    description = "; ".join(
        f"{name}: from {ends['min'][name]:.3g} to {ends['max'][name]:.3g}" for name in kinds
    )
    return finish(
        alt.hconcat(*charts, spacing=22).resolve_scale(color="independent"),
        f"Queries as rows. {description}.",
    )


def _matrix(rows: pd.DataFrame, name: str, kind: MatrixKind) -> Any:
    down, across = (rows[name].drop_duplicates().tolist() for name in ("query", "key"))
    small = max(len(down), len(across)) <= MOST_NUMBERS
    cell = 30 if small else 14
    axis = {"grid": False, "labelLimit": 90}
    y = alt.Y("query:N", title="query", sort=down, axis=token_axis(**axis))
    x = alt.X("key:N", title="key", sort=across, axis=token_axis(labelAngle=-45, **axis))
    limit = float(rows["value"].abs().max())
    colour = alt.Color(
        "value:Q", scale=effect_scale(limit) if kind == "signed" else WEIGHTS, legend=None
    )
    strong = (
        f"datum.value != null && abs(datum.value) > {0.8 * (limit if kind == 'signed' else 1.0)}"
    )
    labelled = rows.assign(text=[_number(value, limit) for value in rows["value"]])
    base = alt.Chart(labelled).encode(x=x, y=y)
    fill = base.transform_filter("datum.value != null").mark_rect(stroke=LINE, strokeWidth=0.5)
    fill = fill.encode(color=colour, tooltip=tips("query:N", "key:N", "value:Q | | .6g"))
    ink = alt.condition(strong, alt.value("#ffffff"), alt.value(INK))
    numbers = [base.mark_text(fontSize=9).encode(text="text:N", color=ink)] if small else []
    size = {"width": cell * len(across), "height": cell * len(down)}
    return alt.layer(fill, *numbers).properties(title=heading(name), **size)


def _number(value: float, limit: float) -> str:
    """A number with the digits that the panel needs, without the leading zero: .12, −.003, 0; "" for a missing value."""
    if math.isnan(value) or value == 0:
        return "0" if value == 0 else ""
    digits = 1 if limit >= 10 else 2 if limit >= 0.2 else 3
    return (
        decimal(value, digits).replace("0.", ".", 1) if abs(value) < 1 else decimal(value, digits)
    )


def parameter_bars(rows: pd.DataFrame) -> Any:
    """The share of each of PARTS in each model's parameters, as stacked bars with labels.

    rows: `model`, `part`, `parameters`
    """
    sums = rows.groupby("model", sort=False)["parameters"].transform("sum")
    labelled = rows.assign(share=rows["parameters"] / sums, place=rows["part"].map(PARTS.index))
    labelled = labelled.sort_values(["model", "place"])
    end = labelled.groupby("model")["share"].cumsum()
    texts = [
        _in_bar(part, share)
        for part, share in zip(labelled["part"], labelled["share"], strict=True)
    ]
    labelled = labelled.assign(middle=end - labelled["share"] / 2, text=texts)
    models = rows["model"].drop_duplicates().tolist()
    y = alt.Y("model:N", title=None, sort=models, axis=bare_axis(labelLimit=200, labelFontSize=12))
    title = "share of all parameters"
    x = alt.X(
        "share:Q", title=title, stack="zero", scale=alt.Scale(domain=[0, 1]), axis=share_axis()
    )
    kinds = [part for part in PARTS if part in set(rows["part"])]
    key = alt.Legend(orient="top", title=None, symbolType="square", symbolStrokeWidth=0)
    colour = by_value(
        alt.Color, "part:N", kinds, [COLOURS[PARTS.index(kind)] for kind in kinds], key
    )
    base = alt.Chart(labelled).encode(y=y)
    tip = tips("model:N", "part:N", "parameters:Q | | ,")
    bars = base.mark_bar(height=30, stroke="#ffffff").encode(
        x=x, color=colour, order="place:Q", tooltip=tip
    )
    numbers = base.mark_text(color="#ffffff", fontSize=12)
    numbers = numbers.encode(x=alt.X("middle:Q", title=title), text="text:N")
    descriptions = []
    for model in models:
        of_model = labelled[labelled["model"] == model]
        shares = ", ".join(
            f"{part} {percent(share)}"
            for part, share in zip(of_model["part"], of_model["share"], strict=True)
        )
        descriptions.append(f"{model}: {shares}")
    return finish(alt.layer(bars, numbers), f"{'; '.join(descriptions)}.", height={"step": 48})


def _in_bar(part: str, share: float) -> str:
    """The text in the bar of a part: its name and number, the number alone, or nothing."""
    if share < WIDE_ENOUGH:
        return ""
    return f"{part} {percent(share)}" if share >= WIDE_FOR_NAME else percent(share)


def grouped_bars(rows: pd.DataFrame, title: str) -> Any:
    """A bar per `row` with its interval and its number, and a panel per `group`, all with one axis.

    rows: `group`, `row`, `value`, `low`, `high`, all shares, in the order of the bars
    title: of the axis

    Positive bars are violet, negative bars ochre.
    """
    groups = rows["group"].drop_duplicates().tolist()
    least = min(0.0, float(rows["low"].min()))
    scale = alt.Scale(
        domain=[least, float(rows["high"].max())], range=[0, BARS - NUMBER_WIDTH], nice=False
    )
    parts = {name: rows[rows["group"] == name] for name in groups}
    panels = [
        _panel(part, name, scale, title if name == groups[-1] else None)
        for name, part in parts.items()
    ]
    largest = [(name, part.nlargest(1, "value").iloc[0]) for name, part in parts.items()]
    values = "; ".join(
        f"{name}: {row['row']} {percent(float(row['value']))}" for name, row in largest
    )
    return finish(alt.vconcat(*panels, spacing=14), f"Largest in each group, as {title}. {values}.")


def _panel(rows: pd.DataFrame, name: str, scale: alt.Scale, title: str | None) -> Any:
    labels = bare_axis(grid=False, labelColor=INK, labelLimit=150, minExtent=90)
    y = alt.Y("row:N", title=None, sort=rows["row"].tolist(), axis=labels)
    is_last = title is not None
    x = alt.X("value:Q", title=title, scale=scale, axis=share_axis(labels=is_last, ticks=is_last))
    tip = tips("row:N | what", *(f"{name}:Q | | .2%" for name in ("value", "low", "high")))
    hue = alt.condition("datum.value >= 0", alt.value(WITH), alt.value(AGAINST))
    base = alt.Chart(rows.assign(text=[percent(value) for value in rows["value"]])).encode(y=y)
    bars = base.mark_bar(height={"band": 0.6}, opacity=0.55).encode(x=x, color=hue, tooltip=tip)
    spans = base.mark_rule(color=INK, strokeWidth=1.5).encode(x=alt.X("low:Q"), x2="high:Q")
    numbers = numbers_at(base.data, "high", dx=6, color=MUTED, y=y)
    picture = alt.layer(reference_line("x", 0.0, dash=False), bars, spans, numbers)
    return picture.properties(width=BARS, height={"step": 20}, title=heading(name))


def added_vectors(rows: pd.DataFrame, *, total: str, coordinates: int = 32) -> Any:
    """A row of cells per vector: its first `coordinates`, all on one scale.

    rows: `vector`, `coordinate`, `value`
    total: the name of the vector that is the sum; its row is at the bottom
    """
    names = rows["vector"].drop_duplicates().tolist()
    cells = rows[rows["coordinate"] < coordinates]
    limit = float(cells["value"].abs().max())
    cells = cells.assign(
        part=["sum" if name == total else "parts" for name in cells["vector"]],
        sign=["−" if value < -LEAST_SIGN * limit else "" for value in cells["value"]],
    )
    axis = bare_axis(grid=False, labelLimit=150)
    key = alt.Legend(
        title="entry (no unit)",
        orient="right",
        gradientLength=90,
        values=[-limit, 0, limit],
        format=".2~g",
    )
    hue = alt.Color("value:Q", scale=effect_scale(limit), legend=key)
    tip = tips("vector:N", "coordinate:Q", "value:Q | | .6g")
    width = rows["coordinate"].nunique()
    title = "coordinate"
    if width > coordinates:
        title += f" (the first {coordinates} of {width})"
    numbers = alt.Axis(values=list(range(0, coordinates, 8)), labelAngle=0, grid=False)

    def strip(part: str, last: bool) -> Any:
        of_part = cells[cells["part"] == part]
        x = alt.X("coordinate:O", title=title if last else None, axis=numbers if last else None)
        order = [name for name in names if name in set(of_part["vector"])]
        y = alt.Y("vector:N", title=None, sort=order, axis=axis)
        base = alt.Chart(of_part).encode(x=x, y=y)
        squares = base.mark_rect(stroke=LINE, strokeWidth=0.4).encode(color=hue, tooltip=tip)
        signs = base.mark_text(color=INK, fontSize=11).encode(text="sign:N")
        size = {"width": 13 * coordinates, "height": 18 * len(order)}
        return alt.layer(squares, signs).properties(**size)

    picture = alt.vconcat(strip("parts", False), strip("sum", True), spacing=8)
    lengths = rows.groupby("vector", sort=False)["value"].apply(
        lambda values: float((values**2).sum() ** 0.5)
    )
    listed = ", ".join(f"{name} {length:.3g}" for name, length in lengths.items())
    return finish(
        picture,
        f"Vectors as rows of cells; the last is the sum of the others. Their lengths: {listed}.",
    )


def spectra(rows: pd.DataFrame, *, rank: int) -> Any:
    """Singular values of square maps, largest first, with a vertical line at `rank`.

    rows: `map`, `place` (from 1), `value`
    """
    last = int(rows["place"].max())
    title = "singular value, largest first"
    x = alt.X("place:Q", title=title, scale=alt.Scale(domain=[1, last], nice=False))
    y = alt.Y("value:Q", title="size", axis=alt.Axis(tickCount=4))
    tip = tips("map:N", "place:Q", "value:Q | | .4g")
    lines = alt.Chart(rows).mark_line(strokeWidth=1.6, color=WITH, opacity=0.8)
    lines = lines.encode(x=x, y=y, detail="map:N", tooltip=tip)
    note = alt.Chart(pd.DataFrame([{"place": rank, "note": f"d_head = {rank}: from here on zero"}]))
    rule = note.mark_rule(color=MUTED, strokeDash=[2, 3]).encode(x=alt.X("place:Q", title=title))
    text = note.mark_text(align="left", dx=6, dy=8, color=INK).encode(
        x="place:Q", y=alt.value(0), text="note:N"
    )
    beyond = float(rows.loc[rows["place"] > rank, "value"].max()) if last > rank else 0.0
    picture = alt.layer(lines, rule, text)
    maps, largest = rows["map"].nunique(), float(rows["value"].max())
    description = f"Singular values of {maps} maps: the largest {largest:.3g}, after number {rank} at most {beyond:.1g}."
    return finish(picture, description, height=170)
