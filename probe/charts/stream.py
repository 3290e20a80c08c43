"""A word's vector on its way up: how long it is, what the blocks write, and how far it has turned."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.live import live
from probe.charts.palette import INK, MUTED, SENSES, WITH, finish
from probe.numerals import decimal

LENGTHS = {"the vector": INK, "attention writes": WITH, "MLP writes": MUTED}
TURNS = {"its own token vector": INK, "the same word in the other sentence": SENSES[1]}


def stream_lengths(rows: pd.DataFrame) -> Any:
    """Length of the vector after each block, and of what attention and MLP of the block wrote. `rows`: `depth what value`."""
    description = _told(rows, "Lengths by depth", "the vector")
    return finish(
        _lines(rows, LENGTHS, "lengths", title="length").properties(width="container", height=200), description
    )


def stream_turns(rows: pd.DataFrame) -> Any:
    """Cosine of the vector with its token's embedding, and with the same word's vector in another sentence."""
    description = _told(rows, "Cosines by depth", "its own token vector")
    return finish(
        _lines(rows, TURNS, "turns", title="cosine with").properties(width="container", height=200), description
    )


def _lines(rows: pd.DataFrame, colours: dict[str, str], name: str, *, title: str) -> alt.LayerChart:
    shown = [what for what in colours if what in set(rows["what"])]
    key = alt.Legend(orient="top", title=None, symbolType="stroke", symbolStrokeWidth=3, columns=1, labelLimit=300)
    hue = alt.Color("what:N", scale=alt.Scale(domain=shown, range=[colours[what] for what in shown]), legend=key)
    last = int(rows["depth"].max())
    ticks = sorted({-1, 0, *range(last, 0, -(1 if last <= 8 else 2 if last <= 16 else -(-last // 8)))})
    labels = "datum.value < 0 ? 'token' : datum.value < 1 ? ['', '+ position'] : datum.value - 1"
    axis = alt.Axis(values=ticks, labelExpr=labels, grid=False, labelOverlap=False)
    x = alt.X("depth:Q", title="after layer", axis=axis, scale=alt.Scale(nice=False, padding=8))
    y = alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=5))
    tip = [alt.Tooltip("what:N"), alt.Tooltip("depth:Q", title="blocks passed"), alt.Tooltip("value:Q", format=".6g")]
    base = alt.Chart().encode(x=x, y=y, color=hue)
    dots = base.mark_point(filled=True, size=36, opacity=1).encode(tooltip=tip)
    return alt.layer(base.mark_line(strokeWidth=2), dots, data=live(rows, name))


def _told(rows: pd.DataFrame, what: str, line: str) -> str:
    mine = rows[rows["what"] == line].sort_values("depth")["value"]
    return f"{what}: {line} goes from {decimal(float(mine.iloc[0]))} to {decimal(float(mine.iloc[-1]))}."
