"""The attention of every head of a model as small squares."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import LINE, MUTED, WEIGHTS, finish
from probe.stats.numbers import percent

MOST_WEIGHTS = 20_000  # cells of small squares; more make a page slow to open
FAINT = 0.02  # a weight below it is not seen


def head_grids(weights: pd.DataFrame, *, tokens: int) -> Any:
    """Attention of every head of a model as small squares: layers down, heads across, queries down
    and keys across.

    `weights`: `layer head query_pos key_pos weight`; weights below FAINT and all but the
    MOST_WEIGHTS largest are left blank.
    """
    layers = int(weights["layer"].max()) + 1
    heads = int(weights["head"].max()) + 1
    side = max(160 // max(layers, heads), 26) if layers * heads > 16 else 84
    visible = weights[weights["weight"] >= FAINT].nlargest(MOST_WEIGHTS, "weight")
    positions = alt.Scale(domain=list(range(tokens)))
    key = alt.Legend(
        title="attention weight",
        orient="bottom",
        format=".0%",
        values=[0, 0.5, 1],
        gradientLength=160,
    )
    cells = alt.Chart(visible).mark_rect()
    cells = cells.encode(
        x=alt.X("key_pos:O", axis=None, scale=positions),
        y=alt.Y("query_pos:O", axis=None, scale=positions),
        color=alt.Color("weight:Q", scale=WEIGHTS, legend=key),
    )
    names = {
        "titleFontSize": 11,
        "labelFontSize": 11,
        "labelColor": MUTED,
        "titleColor": MUTED,
        "labelPadding": 3,
    }
    row = alt.Row(
        "layer:O", title="layer", header=alt.Header(labelAngle=0, labelAlign="right", **names)
    )
    across = alt.Column("head:O", title="head", header=alt.Header(**names))
    picture = cells.properties(width=side, height=side).facet(row=row, column=across, spacing=4)
    largest = percent(float(weights["weight"].max()))
    description = (
        f"Attention of {layers * heads} heads over {tokens} tokens; the largest weight is "
        f"{largest}."
    )
    return finish(picture, description).configure_view(stroke=LINE)
