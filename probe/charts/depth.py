"""Depth profiles: how the senses of a word part on the way through the layers."""

from typing import Any

import altair as alt
import pandas as pd

from probe.charts.palette import finish, reference_line, sense_colour, senses_of
from probe.numerals import decimal


def depth_profile(
    depth: pd.DataFrame, word: str, pair: tuple[str, str], *, read_at: int | None = None, legend: bool = True
) -> Any:
    """How two senses part with depth: mean coordinate and the middle 80 % of the sentences, from the bare token on.

    `read_at`, the read-out depth of the word, is drawn as a line.
    """
    first, last = gap_at(depth, word, pair, depth=-1), gap_at(depth, word, pair)
    description = (
        f"Depth profile of {word}: the mean sense coordinates of {pair[0]} and {pair[1]} are {_gap_text(first)} apart at the token "
        f"embedding and {_gap_text(last)} of the gap apart after the last layer."
    )
    return finish(_depth(depth, word, pair, read_at, legend).properties(width="container", height=170), description)


def depth_profiles(depth: pd.DataFrame, word: str, *, columns: int = 3) -> Any:
    """The depth profiles of all pairs of senses of a word, side by side."""
    pairs = depth.loc[depth["word"] == word, ["sense_a", "sense_b"]].drop_duplicates()
    charts = [_depth(depth, word, (a, b)).properties(width=220, height=150) for a, b in pairs.to_numpy().tolist()]
    description = (
        f"Depth profiles of the {len(charts)} pairs of senses of {word}, from the token embedding to the last layer."
    )
    return finish(alt.concat(*charts, columns=columns).resolve_scale(color="independent"), description)


def gap_at(frame: pd.DataFrame, word: str, pair: tuple[str, str], *, depth: int | None = None) -> float:
    """How far apart the two senses' mean coordinates are at a depth, by default the last. Exactly 0 for identical vectors."""
    rows = _of_pair(frame, word, pair)
    here = rows[rows["depth"] == (rows["depth"].max() if depth is None else depth)].set_index("sense")["coordinate"]
    return float(here[pair[0]] - here[pair[1]])


def _gap_text(gap: float) -> str:
    return "exactly 0" if gap == 0 else decimal(gap)


def _of_pair(frame: pd.DataFrame, word: str, pair: tuple[str, str]) -> pd.DataFrame:
    return frame[(frame["word"] == word) & (frame["sense_a"] == pair[0]) & (frame["sense_b"] == pair[1])]


def _depth(
    depth: pd.DataFrame, word: str, pair: tuple[str, str], read_at: int | None = None, legend: bool = True
) -> alt.LayerChart:
    rows = _of_pair(depth, word, pair)
    senses = senses_of(depth[depth["word"] == word])
    x = alt.X("depth:Q", title="after layer", axis=_depth_axis(int(rows["depth"].max())), scale=alt.Scale(nice=False))
    key = alt.Legend(orient="top", symbolType="circle", symbolOpacity=1, offset=4)
    hue = alt.Color(
        "sense:N",
        title=None,
        scale=alt.Scale(domain=list(pair), range=[sense_colour(senses, sense) for sense in pair]),
        legend=key if legend else None,
    )
    base = alt.Chart(rows).encode(x=x, color=hue)
    of_word = depth[depth["word"] == word]
    reach = alt.Scale(domain=[float(of_word["low"].min()), float(of_word["high"].max())])
    y = alt.Y("low:Q", title="sense coordinate (1 = gap)", axis=alt.Axis(tickCount=5), scale=reach)
    band = base.mark_area(opacity=0.22).encode(y, alt.Y2("high"))
    line = base.mark_line(strokeWidth=2).encode(y="coordinate:Q")
    dots = base.mark_point(filled=True, size=28, opacity=1).encode(y="coordinate:Q", tooltip=_DEPTH_TOOLTIP)
    layers = [reference_line("y", 0.0), band, line, dots]
    return alt.layer(*([] if read_at is None else [reference_line("x", read_at, dash=False)]), *layers)


_DEPTH_TOOLTIP = [
    alt.Tooltip("sense:N"),
    alt.Tooltip("label:N", title="depth"),
    alt.Tooltip("coordinate:Q", title="mean coordinate", format=".3f"),
    alt.Tooltip("low:Q", title="10 % of sentences below", format=".3f"),
    alt.Tooltip("high:Q", title="10 % of sentences above", format=".3f"),
    alt.Tooltip("auroc:Q", title="AUROC at this depth", format=".3f"),
]


def _depth_axis(last: int) -> alt.Axis:
    """Depth -1 is the token, 0 adds the position, d is after layer d - 1; labels are thinned where there are many layers."""
    step = 1 if last <= 6 else 2 if last <= 16 else -(-last // 8)
    values = [-1, 0, *range(last, 0, -step)]
    first = "datum.value < 0 ? 'token' : datum.value < 1 ? ['', '+ position'] : datum.value - 1"
    return alt.Axis(values=sorted(values), labelExpr=first, grid=False, labelFlush=False, labelOverlap=False)
