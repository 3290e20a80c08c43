"""Depth profiles: how the senses of a word part on the way through the layers.

Something measured at every depth of the stream, a line per thing, in panels side by side.

A word's vector on its way up: how long it is, what the blocks write, and how far it has turned.
"""

from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import INK, MUTED, SENSES, WITH, finish, live, reference_line, sense_colour, senses_of
from probe.stats.numbers import decimal


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


HUES = (WITH, MUTED, SENSES[1], SENSES[0], SENSES[2])
TICK_LABELS = "datum.value < 0 ? 'token' : datum.value < 1 ? ['', '+ position'] : datum.value - 1"
WIDTH, NARROW = 190, 150
Kind = Literal["linear", "rank"]


def lines_by_depth(rows: pd.DataFrame, kinds: Mapping[str, Kind], *, hues: Mapping[str, str] | None = None) -> Any:
    """A line per `what` in every panel, in the order of `kinds`. `rows`: `panel`, `depth`, `what`, `value`.

    Depth -1 is the bare token, 0 adds the position, d leaves block d - 1. Panels of ranks are logarithmic with rank 1 on top and
    share their scale. Panels with the same lines share one legend. `hues` gives a line its colour; the others take theirs in order of appearance.
    """
    parts = {name: rows[rows["panel"] == name] for name in kinds}
    ranks = pd.concat([parts[name]["value"] for name, kind in kinds.items() if kind == "rank"] or [pd.Series([1.0])])
    alike = len({tuple(part["what"].drop_duplicates()) for part in parts.values()}) == 1
    look = (dict(hues or {}), WIDTH if len(kinds) < 3 else NARROW, len(hues or HUES) if alike and len(kinds) > 1 else 1)
    charts = [_panel(parts[name], name, (kind, float(ranks.max())), look) for name, kind in kinds.items()]
    told = "; ".join(f"{name}: {_told_by_depth(part)}" for name, part in parts.items())
    return finish(
        alt.hconcat(*charts, spacing=24).resolve_scale(color="shared" if alike else "independent"), f"{told}."
    )


def _panel(rows: pd.DataFrame, name: str, scaled: tuple[Kind, float], look: tuple[dict[str, str], int, int]) -> Any:
    (kind, lowest), (hues, width, columns) = scaled, look
    lines = rows["what"].drop_duplicates().tolist()
    free = iter(hue for hue in HUES if hue not in hues.values())
    colours = [hues.get(line) or next(free) for line in lines]
    key = alt.Legend(
        orient="bottom", title=None, symbolType="stroke", symbolStrokeWidth=3, columns=columns, labelLimit=220
    )
    hue = alt.Color("what:N", scale=alt.Scale(domain=lines, range=colours), legend=key)
    x = alt.X("depth:Q", title="after layer", axis=_axis(rows["depth"]), scale=alt.Scale(nice=False, padding=8))
    scale = alt.Scale(type="log", reverse=True, domain=[1, lowest], nice=False, padding=6)
    y = alt.Y("value:Q", title=None, scale=scale if kind == "rank" else alt.Scale(), axis=_heights(kind, lowest))
    tip = [alt.Tooltip("what:N"), alt.Tooltip("depth:Q"), alt.Tooltip("value:Q", format=".6g")]
    base = alt.Chart(rows).encode(x=x, y=y, color=hue)
    dots = base.mark_point(filled=True, size=36, opacity=1).encode(tooltip=tip)
    title = alt.TitleParams(name, fontSize=12, fontWeight="normal", color=INK)
    return alt.layer(base.mark_line(strokeWidth=2), dots).properties(width=width, height=170, title=title)


def _axis(depths: pd.Series) -> alt.Axis:
    first, last = int(depths.min()), int(depths.max())
    step = 1 if last <= 6 else 2 if last <= 16 else -(-last // 8)
    ticks = sorted({*range(first, 1), *range(last, 0, -step)})
    return alt.Axis(values=ticks, labelExpr=TICK_LABELS, grid=False, labelOverlap=False)


def _heights(kind: Kind, lowest: float) -> alt.Axis:
    if kind == "linear":
        return alt.Axis(tickCount=4)
    return alt.Axis(values=[10**power for power in range(6) if 10**power <= lowest], format="d")


def _told_by_depth(rows: pd.DataFrame) -> str:
    """Where each line starts and ends."""
    ends = rows.sort_values("depth").groupby("what", sort=False)["value"].agg(["first", "last"])
    return ", ".join(f"{what} from {decimal(first)} to {decimal(last)}" for what, first, last in ends.itertuples())


LENGTHS = {"the vector": INK, "attention writes": WITH, "MLP writes": MUTED}
TURNS = {"its own token vector": INK, "the same word in the other sentence": SENSES[1]}


def stream_lengths(rows: pd.DataFrame, *, entering: str = "+ position") -> Any:
    """Length of the vector after each block, and of what attention and MLP of the block wrote. `rows`: `depth what value`.

    `entering` names the vector that enters the first block.
    """
    description = _told_stream(rows, "Lengths by depth", "the vector")
    return finish(
        _lines(rows, LENGTHS, ("lengths", "length"), entering).properties(width="container", height=200), description
    )


def stream_turns(rows: pd.DataFrame, *, entering: str = "+ position") -> Any:
    """Cosine of the vector with its token's embedding, and with the same word's vector in another sentence."""
    description = _told_stream(rows, "Cosines by depth", "its own token vector")
    return finish(
        _lines(rows, TURNS, ("turns", "cosine with"), entering).properties(width="container", height=200), description
    )


def _lines(rows: pd.DataFrame, colours: dict[str, str], named: tuple[str, str], entering: str) -> alt.LayerChart:
    name, title = named
    shown = [what for what in colours if what in set(rows["what"])]
    key = alt.Legend(orient="top", title=None, symbolType="stroke", symbolStrokeWidth=3, columns=1, labelLimit=300)
    hue = alt.Color("what:N", scale=alt.Scale(domain=shown, range=[colours[what] for what in shown]), legend=key)
    last = int(rows["depth"].max())
    ticks = sorted({-1, 0, *range(last, 0, -(1 if last <= 8 else 2 if last <= 16 else -(-last // 8)))})
    labels = f"datum.value < 0 ? 'token' : datum.value < 1 ? ['', '{entering}'] : datum.value - 1"
    axis = alt.Axis(values=ticks, labelExpr=labels, grid=False, labelOverlap=False)
    x = alt.X("depth:Q", title="after layer", axis=axis, scale=alt.Scale(nice=False, padding=8))
    y = alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=5))
    tip = [alt.Tooltip("what:N"), alt.Tooltip("depth:Q", title="blocks passed"), alt.Tooltip("value:Q", format=".6g")]
    base = alt.Chart().encode(x=x, y=y, color=hue)
    dots = base.mark_point(filled=True, size=36, opacity=1).encode(tooltip=tip)
    return alt.layer(base.mark_line(strokeWidth=2), dots, data=live(rows, name))


def _told_stream(rows: pd.DataFrame, what: str, line: str) -> str:
    mine = rows[rows["what"] == line].sort_values("depth")["value"]
    return f"{what}: {line} goes from {decimal(float(mine.iloc[0]))} to {decimal(float(mine.iloc[-1]))}."
