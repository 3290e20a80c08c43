"""Tables of numbers side by side, as coloured cells with the number inside: scores, weights, differences."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import INK, LINE, WITH, effect_scale, finish
from probe.numerals import decimal

Kind = Literal["signed", "shares"]
MOST_NUMBERS = 12


def matrix_panels(cells: pd.DataFrame, kinds: Mapping[str, Kind]) -> Any:
    """One matrix per panel, in the order of `kinds`; queries are rows. Keys may be other tokens, of another text. `cells`: `panel`, `query`, `key`, `value`.

    `shares` run from white at 0 to violet at 1; `signed` numbers diverge around a blank zero, to the largest of the panel. Values
    that are missing (masked) stay empty.
    """
    charts = [_matrix(cells[cells["panel"] == name], name, kind) for name, kind in kinds.items()]
    told = "; ".join(f"{name}: {_told(cells[cells['panel'] == name])}" for name in kinds)
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


def _told(rows: pd.DataFrame) -> str:
    return f"from {rows['value'].min():.3g} to {rows['value'].max():.3g}"
