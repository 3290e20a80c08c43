"""What charts put together again and again: axes, legends, tooltips, lines with dots, numbers behind bars."""

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import INK, MUTED

DASHES = [2, 3]
TEXT = {"align": "left", "fontSize": 11, "color": INK}


def tips(*lines: str) -> list[alt.Tooltip]:
    """Tooltip lines, each written "field:type", "field:type | title" or "field:type | title | format"."""
    names = ("shorthand", "title", "format")
    parts = [dict(zip(names, map(str.strip, line.split("|")), strict=False)) for line in lines]
    return [alt.Tooltip(**{name: text for name, text in part.items() if text}) for part in parts]


def by_value(
    channel: type, field: str, values: Sequence[str], looks: Sequence[Any], legend: Any = None, title: Any = None
) -> Any:
    """A colour, shape, size or dash channel in which each of `values` has its look."""
    return channel(field, title=title, scale=alt.Scale(domain=list(values), range=list(looks)), legend=legend)


def bare_axis(**options: Any) -> alt.Axis:
    """An axis of names: labels only, without ticks or line."""
    return alt.Axis(ticks=False, domain=False, **options)


def token_axis(**options: Any) -> alt.Axis:
    """An axis of tokens: every one of them is written, long ones are cut."""
    return bare_axis(labelOverlap=False, **options)


def depth_axis(depths: pd.Series, entering: str = "+ position", **options: Any) -> alt.Axis:
    """Depth -1 is the token embedding, 0 what enters the first block, d is after layer d - 1; deep models label some
    layers.
    """
    first, last = int(depths.min()), int(depths.max())
    step = 1 if last <= 6 else 2 if last <= 16 else -(-last // 8)
    labels = f"datum.value < 0 ? 'token' : datum.value < 1 ? ['', '{entering}'] : datum.value - 1"
    ticks = sorted({*range(first, 1), *range(last, 0, -step)})
    return alt.Axis(values=ticks, labelExpr=labels, grid=False, labelOverlap=False, **options)


def line_legend(**options: Any) -> alt.Legend:
    """A legend without a title that shows strokes."""
    return alt.Legend(**{"title": None, "symbolType": "stroke", "symbolStrokeWidth": 3} | options)


def heading(text: str) -> alt.TitleParams:
    """The title of one picture of several."""
    return alt.TitleParams(text, fontSize=12, fontWeight="normal", color=INK)


def reference_line(channel: str, at: float, *, dash: bool = True) -> alt.Chart:
    """A line across the picture at a value of `channel` (x or y)."""
    mark = alt.Chart(pd.DataFrame({"at": [at]})).mark_rule(color=MUTED, strokeDash=DASHES if dash else [1, 0])
    return mark.encode(**{channel: alt.X("at:Q") if channel == "x" else alt.Y("at:Q")})


def lines_with_dots(base: alt.Chart, size: int, *, line: dict[str, Any] | None = None, **dot: Any) -> list[alt.Chart]:
    """A line and a dot of `size` at each of its values; `line` and `dot` are further channels of the two."""
    lines = base.mark_line(strokeWidth=2)
    dots = base.mark_point(filled=True, size=size, opacity=1)
    return [lines.encode(**line) if line else lines, dots.encode(**dot)]


def numbers_at(rows: pd.DataFrame, edge: str, *, dx: int = 5, color: str = INK, **place: Any) -> alt.Chart:
    """The column `text` of the rows, written to the right of the value `edge`."""
    marks = alt.Chart(rows).mark_text(**TEXT | {"dx": dx, "color": color})
    return marks.encode(x=alt.X(f"{edge}:Q"), text="text:N", **place)


def of_word(frame: pd.DataFrame, word: str) -> pd.DataFrame:
    """The rows of one word."""
    return frame[frame["word"] == word]


def head_names(rows: pd.DataFrame) -> list[str]:
    """The name of each row's head: L0H2."""
    return [f"L{layer}H{head}" for layer, head in zip(rows["layer"], rows["head"], strict=True)]


def part_name(layer: Any, head: Any) -> str:
    """A part of the network: L0H2, the MLP of layer 0 where there is no head, the token itself where no layer."""
    if pd.isna(layer):
        return "the token itself"
    return f"MLP of layer {layer}" if pd.isna(head) else f"L{layer}H{head}"


def ends_of_lines(rows: pd.DataFrame, x: str, line: str, written: Callable[[float], str]) -> str:
    """In words: from which value to which each line goes, in the order of `x`."""
    ends = rows.sort_values(x).groupby(line, sort=False)["value"].agg(["first", "last"])
    return ", ".join(f"{name} from {written(first)} to {written(last)}" for name, first, last in ends.itertuples())
