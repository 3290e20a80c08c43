"""The page of a frame with a number for each head, as `probe.patch` and `probe.delta_e` return it:
its picture, what was measured, and its rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from probe import charts
from probe.pages import html
from probe.stats.numbers import decimal

ROWS = 300  # of the table on the page, at most
DIGITS = 3
MEANINGS = {
    "pair": "the number of the pair of texts",
    "pos": "the position of the token that the head reads",
    "token": "the token that the head reads",
    "norm": "the length of what the head adds, in units of the residual stream",
    "along": "the component of what the head adds along the direction that was given",
    "denoise": "the move toward the text when the other text gets this head's output",
    "noise": "the move toward the other text when the text gets this head's output",
    "swap": "the mean of the two moves; 1 is the whole gap between the texts",
    "gap": "the difference of the metric between the two texts",
}


def render(frame: pd.DataFrame, manifest: Mapping[str, Any]) -> str:
    """The page as HTML, with the ROWS rows of the largest absolute values in the table.

    manifest: model, command and versions, and the line about what was measured

    Raises InputError for a frame without a number for each head.
    """
    picture = charts.heads(frame)
    value = next(name for name in charts.VALUES if name in frame)
    largest = frame[value].abs().nlargest(ROWS).index
    return html.page(
        "frame.html.j2",
        "style.css.j2",
        "report",
        picture=picture,
        manifest=manifest,
        columns=list(frame),
        numeric=[kind.kind in "biuf" for kind in frame.dtypes],
        rows=[[_text(cell) for cell in row] for row in frame.loc[largest].itertuples(index=False)],
        total=len(frame),
        several=bool(frame.duplicated(["layer", "head"]).any()),
        value=value,
        meanings={name: MEANINGS[name] for name in frame if name in MEANINGS},
    )


def _text(cell: object) -> str:
    """A cell of the table; a missing number is empty."""
    if isinstance(cell, float | np.floating):
        return "" if np.isnan(cell) else decimal(float(cell), DIGITS)
    return str(cell)
