"""Parts of a whole as bars with their intervals, in groups on one axis: what carries how much of an effect."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import AGAINST, INK, MUTED, WITH, finish, reference_line
from probe.numerals import percent

ROOM = 0.12  # of the axis, for the number behind the longest bar


def grouped_bars(rows: pd.DataFrame, title: str) -> Any:
    """A bar per `row` with its interval and its number, a panel per `group`, in the order given; one axis for all.

    `rows`: `group`, `row`, `value`, `low`, `high`, all shares. Violet where positive, ochre where negative.
    """
    groups = rows["group"].drop_duplicates().tolist()
    most, least = (float(found) for found in (rows["high"].max(), min(0.0, rows["low"].min())))
    scale = alt.Scale(domain=[least, most + ROOM * (most - least)], nice=False)
    panels = [
        _panel(rows[rows["group"] == name], name, scale, title if name == groups[-1] else None) for name in groups
    ]
    leaders = [(name, rows[rows["group"] == name].nlargest(1, "value").iloc[0]) for name in groups]
    told = "; ".join(f"{name}: {row['row']} {percent(float(row['value']))}" for name, row in leaders)
    return finish(alt.vconcat(*panels, spacing=14), f"Largest in each group, as {title}. {told}.")


def _panel(rows: pd.DataFrame, name: str, scale: alt.Scale, title: str | None) -> Any:
    order = rows["row"].tolist()
    labels = alt.Axis(ticks=False, domain=False, grid=False, labelColor=INK, labelLimit=150, minExtent=90)
    y = alt.Y("row:N", title=None, sort=order, axis=labels)
    axis = alt.Axis(format=".0%", tickCount=5, labels=title is not None, ticks=title is not None)
    x = alt.X("value:Q", title=title, scale=scale, axis=axis)
    tip = [alt.Tooltip("row:N", title="what"), alt.Tooltip("value:Q", format=".2%")]
    tip += [alt.Tooltip(f"{end}:Q", format=".2%") for end in ("low", "high")]
    hue = alt.condition("datum.value >= 0", alt.value(WITH), alt.value(AGAINST))
    base = alt.Chart(rows.assign(text=[percent(value) for value in rows["value"]])).encode(y=y)
    bars = base.mark_bar(height={"band": 0.6}, opacity=0.55).encode(x=x, color=hue, tooltip=tip)
    spans = base.mark_rule(color=INK, strokeWidth=1.5).encode(x=alt.X("low:Q"), x2="high:Q")
    numbers = base.mark_text(align="left", dx=6, fontSize=11, color=MUTED).encode(x=alt.X("high:Q"), text="text:N")
    heading = alt.TitleParams(name, fontSize=12, fontWeight="normal", color=INK)
    picture = alt.layer(reference_line("x", 0.0, dash=False), bars, spans, numbers)
    return picture.properties(width=360, height={"step": 20}, title=heading)
