"""Small line charts side by side, each with a title that says what is compared; one legend for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import INK, MUTED, SENSES, WITH, finish

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
