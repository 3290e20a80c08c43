"""The mark of each verdict: the same shape in maps, scatters, tables and legends, so that no verdict rests on colour alone.

A shape is an SVG path within a square from -1 to 1. "none" has no mark in a map and is a small dot among points.
"""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import AGAINST, INK, MUTED, WITH
from probe.verdicts import ORDER

MARKS = {
    "resolver": "M0.00,-1.00L0.25,-0.34L0.95,-0.31L0.40,0.13L0.59,0.81L0.00,0.42L-0.59,0.81L-0.40,0.13L-0.95,-0.31L-0.25,-0.34Z",
    "position-explained": "M0.8,-0.9L-0.9,0L0.8,0.9Z",
    "opposes": "M-0.9,-0.7L0.9,-0.7L0,0.9Z",
    "backup": "M0,-1L0.8,0L0,1L-0.8,0Z",
    "carrier": "M-0.8,0A0.8,0.8,0,1,1,0.8,0A0.8,0.8,0,1,1,-0.8,0ZM-0.45,0A0.45,0.45,0,1,0,0.45,0A0.45,0.45,0,1,0,-0.45,0Z",
    "none": "M-0.4,0A0.4,0.4,0,1,1,0.4,0A0.4,0.4,0,1,1,-0.4,0Z",
}
COLOURS = dict.fromkeys(ORDER, MUTED) | {"resolver": WITH, "opposes": AGAINST}
MEANINGS = {
    "resolver": "separates the senses held out and moves the word, both corrected for every head",
    "position-explained": "the same, but only with the cue right before the word, which it looks at whatever it is",
    "opposes": "moves the word the wrong way",
    "backup": "swapping it alone moves little, for another path makes up for it",
    "carrier": "separates the senses, and nothing at the word was shown to depend on it",
    "none": "nothing was shown",
}


def marked(rows: pd.DataFrame) -> list[str]:
    """The verdicts among the rows that have a mark in a map, in their order."""
    return [name for name in ORDER if name != "none" and name in set(rows["verdict"])]


def verdict_shape(names: list[str], *, legend: bool) -> Any:
    """The shape channel for these verdicts."""
    key = alt.Legend(orient="bottom", symbolFillColor=INK, symbolStrokeWidth=0, symbolSize=90) if legend else None
    scale = alt.Scale(domain=names, range=[MARKS[name] for name in names])
    return alt.Shape("verdict:N", title="verdict", scale=scale, legend=key)


def verdict_colour(names: list[str]) -> Any:
    """The colour channel that says the same as the shape."""
    return alt.Color("verdict:N", scale=alt.Scale(domain=names, range=[COLOURS[name] for name in names]), legend=None)
