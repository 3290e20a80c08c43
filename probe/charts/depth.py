"""Quantities by depth: how far the senses of a word are apart after each layer, and the word's vector on its way up."""

from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import (
    INK,
    MUTED,
    SENSES,
    WITH,
    by_value,
    depth_axis,
    ends_of_lines,
    finish,
    heading,
    line_legend,
    lines_with_dots,
    live,
    of_word,
    reference_line,
    sense_colour,
    senses_of,
    tips,
)
from probe.stats.numbers import decimal


def depth_profile(
    depth: pd.DataFrame, word: str, pair: tuple[str, str], *, read_at: int | None = None, legend: bool = True
) -> Any:
    """Mean sense coordinate of two senses by depth, with the middle 80 % of the sentences, from the bare token on.

    `read_at`, the read-out depth of the word, is drawn as a line.
    """
    first, last = (_gap_text(gap_at(depth, word, pair, depth=at)) for at in (-1, None))
    description = (
        f"Depth profile of {word}: the mean sense coordinates of {pair[0]} and {pair[1]} are {first} apart at the "
        f"token embedding and {last} of the gap apart after the last layer."
    )
    return finish(_depth(depth, word, pair, read_at, legend), description, height=170)


def depth_profiles(depth: pd.DataFrame, word: str, *, columns: int = 3) -> Any:
    """The depth profiles of all pairs of senses of a word, side by side."""
    pairs = of_word(depth, word)[["sense_a", "sense_b"]].drop_duplicates()
    charts = [_depth(depth, word, (a, b)).properties(width=220, height=150) for a, b in pairs.to_numpy().tolist()]
    description = (
        f"Depth profiles of the {len(charts)} pairs of senses of {word}, from the token embedding to the last layer."
    )
    return finish(alt.concat(*charts, columns=columns).resolve_scale(color="independent"), description)


def gap_at(frame: pd.DataFrame, word: str, pair: tuple[str, str], *, depth: int | None = None) -> float:
    """Difference of two senses' mean coordinates at a depth, by default the last; exactly 0 for identical vectors."""
    rows = _of_pair(frame, word, pair)
    here = rows[rows["depth"] == (rows["depth"].max() if depth is None else depth)].set_index("sense")["coordinate"]
    return float(here[pair[0]] - here[pair[1]])


def _gap_text(gap: float) -> str:
    return "exactly 0" if gap == 0 else decimal(gap)


def _of_pair(frame: pd.DataFrame, word: str, pair: tuple[str, str]) -> pd.DataFrame:
    rows = of_word(frame, word)
    return rows[(rows["sense_a"] == pair[0]) & (rows["sense_b"] == pair[1])]


def _depth(
    depth: pd.DataFrame, word: str, pair: tuple[str, str], read_at: int | None = None, legend: bool = True
) -> alt.LayerChart:
    rows, every = _of_pair(depth, word, pair), of_word(depth, word)
    axis = depth_axis(rows["depth"], labelFlush=False)
    x = alt.X("depth:Q", title="after layer", axis=axis, scale=alt.Scale(nice=False))
    key = alt.Legend(orient="top", symbolType="circle", symbolOpacity=1, offset=4) if legend else None
    hues = [sense_colour(senses_of(every), sense) for sense in pair]
    base = alt.Chart(rows).encode(x=x, color=by_value(alt.Color, "sense:N", pair, hues, key))
    reach = alt.Scale(domain=[float(every["low"].min()), float(every["high"].max())])
    y = alt.Y("low:Q", title="sense coordinate (1 = gap)", axis=alt.Axis(tickCount=5), scale=reach)
    band = base.mark_area(opacity=0.22).encode(y, alt.Y2("high"))
    mean = {"y": "coordinate:Q"}
    layers = [reference_line("y", 0.0), band, *lines_with_dots(base, 28, line=mean, **mean, tooltip=_DEPTH_TIPS)]
    return alt.layer(*([] if read_at is None else [reference_line("x", read_at, dash=False)]), *layers)


_DEPTH_TIPS = tips(
    "sense:N",
    "label:N | depth",
    "coordinate:Q | mean coordinate | .3f",
    "low:Q | 10 % of sentences below | .3f",
    "high:Q | 10 % of sentences above | .3f",
    "auroc:Q | AUROC at this depth | .3f",
)
HUES = (WITH, MUTED, SENSES[1], SENSES[0], SENSES[2])
WIDTH, NARROW = 190, 150
PanelKind = Literal["linear", "rank"]


def lines_by_depth(rows: pd.DataFrame, kinds: Mapping[str, PanelKind], *, hues: Mapping[str, str] | None = None) -> Any:
    """A line per `what` in every panel, in the order of `kinds`. `rows`: `panel`, `depth`, `what`, `value`.

    Panels of ranks are logarithmic with rank 1 on top and share their scale. Panels with the same lines share one
    legend. `hues` gives a line its colour; the others take theirs in order of appearance.
    """
    parts = {name: rows[rows["panel"] == name] for name in kinds}
    ranks = pd.concat([parts[name]["value"] for name, kind in kinds.items() if kind == "rank"] or [pd.Series([1.0])])
    alike = len({tuple(part["what"].drop_duplicates()) for part in parts.values()}) == 1
    columns = len(hues or HUES) if alike and len(kinds) > 1 else 1
    charts = [
        _panel(parts[name], kind, lowest=float(ranks.max()), hues=dict(hues or {}), columns=columns).properties(
            width=WIDTH if len(kinds) < 3 else NARROW, title=heading(name)
        )
        for name, kind in kinds.items()
    ]
    told = "; ".join(f"{name}: {ends_of_lines(part, 'depth', 'what', decimal)}" for name, part in parts.items())
    picture = alt.hconcat(*charts, spacing=24).resolve_scale(color="shared" if alike else "independent")
    return finish(picture, f"{told}.")


def _panel(rows: pd.DataFrame, kind: PanelKind, *, lowest: float, hues: dict[str, str], columns: int) -> Any:
    """One panel of lines; `lowest` is the last rank of the scale of ranks, `columns` those of the legend."""
    lines = rows["what"].drop_duplicates().tolist()
    free = iter(hue for hue in HUES if hue not in hues.values())
    key = line_legend(orient="bottom", columns=columns, labelLimit=220)
    colour = by_value(alt.Color, "what:N", lines, [hues.get(line) or next(free) for line in lines], key)
    scale, axis = alt.Scale(), alt.Axis(tickCount=4)
    if kind == "rank":
        scale = alt.Scale(type="log", reverse=True, domain=[1, lowest], nice=False, padding=6)
        axis = alt.Axis(values=[10**power for power in range(6) if 10**power <= lowest], format="d")
    y = alt.Y("value:Q", title=None, scale=scale, axis=axis)
    base = alt.Chart(rows).encode(x=_x(rows["depth"]), y=y, color=colour)
    tip = tips("what:N", "depth:Q", "value:Q | | .6g")
    return alt.layer(*lines_with_dots(base, 36, tooltip=tip)).properties(height=170)


def _x(depths: pd.Series, *, entering: bool = False) -> alt.X:
    title, axis = "entering layer" if entering else "after layer", depth_axis(depths, entering=entering)
    return alt.X("depth:Q", title=title, axis=axis, scale=alt.Scale(nice=False, padding=8))


LENGTHS = {"the vector": INK, "attention writes": WITH, "MLP writes": MUTED}
TURNS = {"its own token vector": INK, "the same word in the other sentence": SENSES[1]}


def stream_lengths(rows: pd.DataFrame) -> Any:
    """Length of the vector entering each layer, and of what attention and MLP wrote. `rows`: `depth what value`."""
    return _stream(rows, LENGTHS, "lengths", said="Lengths", title="length")


def stream_turns(rows: pd.DataFrame) -> Any:
    """Cosine of the vector with its token's embedding, and with the same word's vector in another sentence."""
    return _stream(rows, TURNS, "turns", said="Cosines", title="cosine with")


def _stream(rows: pd.DataFrame, colours: dict[str, str], name: str, *, said: str, title: str) -> Any:
    """Lines by depth whose rows a page's script may replace by their `name`; the ends of the first line are `said`."""
    shown = [what for what in colours if what in set(rows["what"])]
    key = line_legend(orient="top", columns=1, labelLimit=300)
    colour = by_value(alt.Color, "what:N", shown, [colours[what] for what in shown], key)
    y = alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=5))
    base = alt.Chart().encode(x=_x(rows["depth"], entering=True), y=y, color=colour)
    tip = tips("what:N", "depth:Q | blocks passed", "value:Q | | .6g")
    picture = alt.layer(*lines_with_dots(base, 36, tooltip=tip), data=live(rows, name))
    ends = ends_of_lines(rows[rows["what"] == next(iter(colours))], "depth", "what", decimal)
    return finish(picture, f"{said} by depth: {ends.replace(' from ', ' goes from ')}.", height=200)
