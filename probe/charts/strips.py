"""Vectors drawn as rows of coloured cells that add up, and the singular values of the maps that made them."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import INK, LINE, MUTED, WITH, effect_scale, finish


def added_vectors(rows: pd.DataFrame, *, total: str, coordinates: int = 32) -> Any:
    """A row of cells per vector, the first `coordinates` of each on one scale; the row named `total` stands apart below.

    `rows`: `vector`, `coordinate`, `value`.
    """
    names = rows["vector"].drop_duplicates().tolist()
    shown = rows[rows["coordinate"] < coordinates]
    shown = shown.assign(part=["sum" if name == total else "parts" for name in shown["vector"]])
    limit = float(shown["value"].abs().max())
    axis = alt.Axis(ticks=False, domain=False, grid=False, labelLimit=150)
    key = alt.Legend(title="value", orient="right", gradientLength=90, values=[-limit, 0, limit], format=".2~g")
    hue = alt.Color("value:Q", scale=effect_scale(limit), legend=key)
    tip = [alt.Tooltip("vector:N"), alt.Tooltip("coordinate:Q"), alt.Tooltip("value:Q", format=".6g")]
    numbers = alt.Axis(values=list(range(0, coordinates, 8)), labelAngle=0, grid=False)

    def strip(part: str, last: bool) -> Any:
        mine = shown[shown["part"] == part]
        x = alt.X("coordinate:O", title=_x_title(rows, coordinates) if last else None, axis=numbers if last else None)
        order = [name for name in names if name in set(mine["vector"])]
        y = alt.Y("vector:N", title=None, sort=order, axis=axis)
        cells = alt.Chart(mine).mark_rect(stroke=LINE, strokeWidth=0.4).encode(x=x, y=y, color=hue, tooltip=tip)
        return cells.properties(width=13 * coordinates, height=18 * len(order))

    picture = alt.vconcat(strip("parts", False), strip("sum", True), spacing=8)
    biggest = rows.groupby("vector", sort=False)["value"].apply(lambda values: float((values**2).sum() ** 0.5))
    told = ", ".join(f"{name} {length:.3g}" for name, length in biggest.items())
    return finish(picture, f"Vectors as rows of cells, the last being the sum of the others; their lengths: {told}.")


def _x_title(rows: pd.DataFrame, coordinates: int) -> str:
    every = rows["coordinate"].nunique()
    return f"coordinate (the first {coordinates} of {every})" if every > coordinates else "coordinate"


def spectra(rows: pd.DataFrame, *, rank: int) -> Any:
    """Singular values of several square maps, largest first, a line each; a rule stands at `rank`.

    `rows`: `map`, `place` (from 1), `value`.
    """
    last = int(rows["place"].max())
    x = alt.X("place:Q", title="singular value, largest first", scale=alt.Scale(domain=[1, last], nice=False))
    y = alt.Y("value:Q", title="size", axis=alt.Axis(tickCount=4))
    tip = [alt.Tooltip("map:N"), alt.Tooltip("place:Q"), alt.Tooltip("value:Q", format=".4g")]
    lines = (
        alt.Chart(rows)
        .mark_line(strokeWidth=1.6, color=WITH, opacity=0.8)
        .encode(x=x, y=y, detail="map:N", tooltip=tip)
    )
    said = pd.DataFrame([{"place": rank, "said": f"d_head = {rank}: from here on zero"}])
    rule = (
        alt.Chart(said)
        .mark_rule(color=MUTED, strokeDash=[2, 3])
        .encode(x=alt.X("place:Q", title="singular value, largest first"))
    )
    text = (
        alt.Chart(said)
        .mark_text(align="left", dx=6, dy=8, color=INK)
        .encode(x="place:Q", y=alt.value(0), text="said:N")
    )
    beyond = float(rows.loc[rows["place"] > rank, "value"].max()) if last > rank else 0.0
    picture = alt.layer(lines, rule, text).properties(width="container", height=170)
    maps, largest = rows["map"].nunique(), float(rows["value"].max())
    return finish(
        picture, f"Singular values of {maps} maps: the largest {largest:.3g}, beyond place {rank} at most {beyond:.1g}."
    )
