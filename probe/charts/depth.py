"""How far the senses of a word are apart after each layer: mean sense coordinates by depth."""

import altair as alt
import pandas as pd

from probe.charts.palette import (
    TEXT,
    by_depth,
    by_value,
    finish,
    lines_with_dots,
    of_word,
    reference_line,
    sense_colour,
    senses_of,
    tips,
)
from probe.stats.numbers import decimal

# The looks of the first and the second meaning, besides their hues
DASHES = ([1, 0], [5, 3])
SHAPES = ("circle", "square")
DEPTH_TIPS = tips(
    "sense:N",
    "label:N | depth",
    "coordinate:Q | mean coordinate | .3f",
    "low:Q | 10 % of sentences below | .3f",
    "high:Q | 10 % of sentences above | .3f",
    "auroc:Q | AUROC at this depth | .3f",
)


def depth_profile(
    depth: pd.DataFrame,
    word: str,
    pair: tuple[str, str],
    *,
    read_at: int | None = None,
    legend: bool = True,
) -> alt.LayerChart:
    """Mean sense coordinate of two senses by depth, with the middle 80 % of the sentences, from the
    bare token on.

    `read_at`, the read-out depth of the word, is drawn as a line.
    """
    description = (
        f"Depth profile of {word}: the mean sense coordinates of {pair[0]} and {pair[1]} are "
        f"{_distance(gap_at(depth, word, pair, depth=-1))} apart at the token embedding and "
        f"{_distance(gap_at(depth, word, pair))} of the gap apart after the last layer."
    )
    return finish(_depth(depth, word, pair, read_at, legend), description, height=170)


def _distance(gap: float) -> str:
    return "exactly 0" if gap == 0 else decimal(gap)


def depth_profiles(depth: pd.DataFrame, word: str, *, columns: int = 3) -> alt.ConcatChart:
    """The depth profiles of all pairs of senses of a word, side by side."""
    pairs = of_word(depth, word)[["sense_a", "sense_b"]].drop_duplicates()
    charts = [
        _depth(depth, word, (a, b)).properties(width=220, height=150)
        for a, b in pairs.to_numpy().tolist()
    ]
    picture = alt.concat(*charts, columns=columns).resolve_scale(color="independent")
    description = (
        f"Depth profiles of the {len(charts)} pairs of senses of {word}, from the token embedding "
        "to the last layer."
    )
    return finish(picture, description)


def gap_at(
    frame: pd.DataFrame, word: str, pair: tuple[str, str], *, depth: int | None = None
) -> float:
    """Difference of two senses' mean coordinates at a depth, by default the last; exactly 0 for
    identical vectors."""
    rows = _of_pair(frame, word, pair)
    depth = rows["depth"].max() if depth is None else depth
    coordinate = rows[rows["depth"] == depth].set_index("sense")["coordinate"]
    return float(coordinate[pair[0]] - coordinate[pair[1]])


def _of_pair(frame: pd.DataFrame, word: str, pair: tuple[str, str]) -> pd.DataFrame:
    rows = of_word(frame, word)
    return rows[(rows["sense_a"] == pair[0]) & (rows["sense_b"] == pair[1])]


def _depth(
    depth: pd.DataFrame,
    word: str,
    pair: tuple[str, str],
    read_at: int | None = None,
    legend: bool = True,
) -> alt.LayerChart:
    rows = _of_pair(depth, word, pair)
    all_pairs = of_word(depth, word)
    x = by_depth(rows["depth"], padding=alt.Undefined, labelFlush=False)
    key = None
    if legend:
        key = alt.Legend(orient="top", symbolType="circle", symbolOpacity=1, offset=4)
    hues = [sense_colour(senses_of(all_pairs), sense) for sense in pair]
    base = alt.Chart(rows).encode(x=x, color=by_value(alt.Color, "sense:N", pair, hues, key))
    dash = by_value(alt.StrokeDash, "sense:N", pair, DASHES, key)
    shape = by_value(alt.Shape, "sense:N", pair, SHAPES, key)
    # One scale for every pair of senses of the word
    domain = [float(all_pairs["low"].min()), float(all_pairs["high"].max())]
    y = alt.Y(
        "low:Q",
        title="position (1 = gap)",
        axis=alt.Axis(tickCount=5),
        scale=alt.Scale(domain=domain),
    )
    band = base.mark_area(opacity=0.22).encode(y, alt.Y2("high"))
    mean = {"y": alt.Y("coordinate:Q")}
    line = mean | {"strokeDash": dash}
    lines = lines_with_dots(base, 28, line=line, **mean, shape=shape, tooltip=DEPTH_TIPS)
    picture = [reference_line("y", 0.0), band, *lines, *_names_at_the_end(rows, pair, x)]
    if read_at is not None:
        picture.insert(0, reference_line("x", read_at, dash=False))
    return alt.layer(*picture)


def _names_at_the_end(rows: pd.DataFrame, pair: tuple[str, str], x: alt.X) -> list[alt.Chart]:
    """The name of each meaning at the end of its line: the first above it, the second below."""
    last = rows[rows["depth"] == rows["depth"].max()]
    names = []
    for sense, dy in zip(pair, (-9, 11), strict=True):
        text = alt.Chart(last[last["sense"] == sense])
        text = text.mark_text(**TEXT | {"align": "right", "dx": -6, "dy": dy})
        names.append(text.encode(x=x, y=alt.Y("coordinate:Q"), text=alt.Text("sense:N")))
    return names
