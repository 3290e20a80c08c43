"""Heads of a model: the layer x head map of net swap effects, separation against effect, and
separation under controls.

A verdict has the same shape in maps, scatters, tables and legends, so that none rests on colour
alone. A shape is an SVG path within a square from -1 to 1. In a map "separates" and "none" have no
mark, because marks are for the cells to look at. A cell with a frame does more for the word than
for unambiguous nouns in its place. Every picture takes the whole frame and a word, so that scales
are the same for every word.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from probe.charts.palette import (
    AGAINST,
    INK,
    LINE,
    MUTED,
    TEXT,
    WITH,
    bare_axis,
    by_value,
    effect_scale,
    finish,
    head_names,
    of_word,
    part_name,
    reference_line,
    tips,
)
from probe.claims.heads import UNMARKED, with_verdict
from probe.claims.senses import mlps_more
from probe.errors import InputError
from probe.stats.limits import LEVEL, SMALLEST
from probe.stats.numbers import NARROW, decimal, percent
from probe.verdicts import ORDER

STAR = (
    "M0.00,-1.00L0.25,-0.34L0.95,-0.31L0.40,0.13L0.59,0.81"
    "L0.00,0.42L-0.59,0.81L-0.40,0.13L-0.95,-0.31L-0.25,-0.34Z"
)
# The inner star runs the other way round, so that it is cut out.
HOLLOW_STAR = (
    f"{STAR}M0.00,-0.50L-0.13,-0.14L-0.47,-0.13L-0.19,0.10L-0.29,0.44"
    "L0.00,0.24L0.29,0.44L0.19,0.10L0.47,-0.13L0.13,-0.14Z"
)
MARKS = {
    "resolver": STAR,
    "mover": HOLLOW_STAR,
    "position-explained": "M0.8,-0.9L-0.9,0L0.8,0.9Z",
    "confounded": "M-0.8,-0.8L0.8,-0.8L0.8,0.8L-0.8,0.8Z",
    "opposes": "M-0.9,-0.7L0.9,-0.7L0,0.9Z",
    "backup": "M0,-1L0.8,0L0,1L-0.8,0Z",
    "erased": "M-0.9,-0.25L0.9,-0.25L0.9,0.25L-0.9,0.25Z",
    "unread": "M-0.8,0A0.8,0.8,0,1,1,0.8,0A0.8,0.8,0,1,1,-0.8,0Z"
    "M-0.45,0A0.45,0.45,0,1,0,0.45,0A0.45,0.45,0,1,0,-0.45,0Z",
    "suggestive": "M0,-0.9L0.9,0.7L-0.9,0.7Z",
    "separates": "M-0.5,-0.12L-0.12,-0.12L-0.12,-0.5L0.12,-0.5L0.12,-0.12L0.5,-0.12"
    "L0.5,0.12L0.12,0.12L0.12,0.5L-0.12,0.5L-0.12,0.12L-0.5,0.12Z",
    "none": "M-0.4,0A0.4,0.4,0,1,1,0.4,0A0.4,0.4,0,1,1,-0.4,0Z",
}
MORE = "more"  # the comparison of a head that does more for the word than for unambiguous nouns
MORE_FRAME = {"stroke": INK, "strokeWidth": 2.5, "fillOpacity": 0}
COLOURS = dict.fromkeys(ORDER, MUTED) | {"resolver": WITH, "mover": WITH, "opposes": AGAINST}
FEW_LAYERS = 6  # a higher map has the numbers of heads above it, too
MANY = 12  # layers or heads with so many numbers have a label at every STEP-th
STEP = 5
BETWEEN_PANELS = 6  # pixels
READ_AT_END = "read after the last layer"  # the second panel
SMALL_TITLE: dict[str, Any] = {
    "fontSize": 11,
    "fontWeight": "normal",
    "color": MUTED,
    "anchor": "start",
    "offset": 2,
}
LABEL_EXTENT = 16  # pixels of the labels of layers, so that both panels have their title in line
NOTHING = 0.005  # of the gap: an effect that rounds to 0 %
STRONG = 0.83  # of the scale: from here on white has more contrast than ink
MLP = "MLP"  # the column of the MLPs in the map
MIXER = "mixer"  # the column of the mixers, which replace attention
# Four rows, because a card has the rest.
MLP_TIPS = tips(
    "name:N | part",
    "net:Q | net effect | .1%",
    "nouns:Q | on unambiguous nouns | .1%",
)
HEAD_TIPS = tips(
    "name:N | head",
    "verdict:N",
    "net:Q | net effect | .1%",
    "nouns:Q | on unambiguous nouns | .1%",
)
PROFILE_TIP = tips("in_general:N | in general")
SURVEY_TIPS = tips(
    "name:N | head",
    "net:Q | over all words | .1%",
    "net_low:Q | 95 % from | .1%",
    "net_high:Q | 95 % to | .1%",
    "p:Q | p, corrected for all heads | .3f",
    "between_words:Q | standard deviation between words | .1%",
    "words_positive:Q | words that it moves forward",
    "words_clear:Q | of words",
    "nouns:Q | for other nouns | .1%",
    "more:Q | more for ambiguous words | .1%",
    "read_depth:Q | blocks passed where it is read",
)
NAMED = 6  # heads with their name next to the point
NAME_HEIGHT = 0.055  # of a name, as a part of the axis of effects
# How an effect on the word compares with that on unambiguous nouns in its place, in words.
BESIDE_NOUNS = {
    "more": "more than for other nouns",
    "less": "less than for other nouns",
    "same": "as for any noun",
    "undecided": "undecided",
    "": "not compared",
}
# The values of a cell of a map, for the drawing and for its card.
CELL = (
    "word",
    "layer",
    "head",
    "name",
    "verdict",
    "clear",
    "comparison",
    "mark",
    "net",
    "net_low",
    "net_high",
    "nouns",
    "more",
    "swap",
    "same_sense",
    "direct",
    "auroc",
    "attention_cue",
    "attention_previous",
    "in_general",
)
# Pixels. The cells of a map are square: as large as the map's height and a phone's width allow.
MAP_HEIGHT = 420
MAP_WIDTH = 300
LARGEST_CELL = 36
SMALLEST_CELL = 12
NUMBERS_FROM = 22  # a smaller cell has no space for a number
LOWER = 4  # a number is moved down by this, below the verdict's mark
LARGE_MARK = 60  # square pixels of a mark, in the largest cells
SMALL_MARK = 48
MLP_CELL = ("word", "layer", "head", "name", "net", "nouns", "more", "comparison", "beside")
EFFECT_TITLE = "net swap effect (share of gap)"
VALUES = ("net", "swap", "along", "norm")  # what `heads` draws, of the columns that a frame has
SHARES = ("net", "swap")  # of these, the shares of the gap
CHANCE = 0.5
LEVEL_LABELS = {"labelAngle": 0, "labelOverlap": True}
CONDITIONS = ("as measured", "labels permuted", "later token", "untrained model")


def marked(rows: pd.DataFrame) -> list[str]:
    """The verdicts among the rows that have a mark in a map, in their order."""
    return [name for name in ORDER if name not in UNMARKED and name in set(rows["verdict"])]


def does_more(rows: pd.DataFrame) -> pd.Series:
    """Whether each row moves the word toward the other meaning, and does more for it than for
    unambiguous nouns: in the mean over the pairs of meanings, or, as a resolver, in one of them."""
    # Cells of MLPs have no verdict.
    is_resolver = rows.reindex(columns=["verdict"])["verdict"] == "resolver"
    return ((rows["comparison"] == MORE) | is_resolver) & (rows["net"] > 0)


def verdict_shape(names: list[str], *, legend: bool) -> Any:
    """The shape channel for these verdicts."""
    key = None
    if legend:
        key = alt.Legend(orient="bottom", symbolFillColor=INK, symbolStrokeWidth=0, symbolSize=90)
    return by_value(alt.Shape, "verdict:N", names, [MARKS[name] for name in names], key, "verdict")


def effect_limit(word_heads: pd.DataFrame, mlps: pd.DataFrame | None = None) -> float:
    """The end of the diverging scale of all words: the largest absolute net effect, rounded up to a
    tenth.

    Of heads with a verdict and of MLPs; of all heads if there are none. A stronger cell has the
    colour of the end.
    """
    frames = [with_verdict(word_heads), *([] if mlps is None else [mlps])]
    frames = [frame for frame in frames if len(frame)] or [word_heads]
    return _limit(pd.concat([frame["net"] for frame in frames]))


def _limit(nets: pd.Series) -> float:
    largest = nets.abs().max()
    return 0.1 if pd.isna(largest) else max(-(-float(largest) // 0.1) / 10, 0.1)


def mlps_at_word(positions: pd.DataFrame) -> pd.DataFrame:
    """What swapping each MLP at the word does beyond a same-sense donor, for the words that have a
    trace.

    `positions` is the study's frame; rows without such donors are left out.
    """
    rows = positions[(positions["component"] == "mlp_out") & (positions["pos"] == "word")]
    rows = rows.astype({"layer": int, "pairs": int})
    rows = rows.assign(net=rows["effect"] - rows["same_sense"], comparison="", beside="")
    return _mlp_cells(rows).dropna(subset="net")


def mlps_beside_nouns(mlps: pd.DataFrame) -> pd.DataFrame:
    """The same for the words that were compared with unambiguous nouns, for every layer: means
    over the pairs of senses.

    `mlps` is the study's frame.
    """
    more = {word: mlps_more(rows) for word, rows in mlps.groupby("word")}
    means = mlps.groupby(["word", "layer"], as_index=False, sort=False)
    rows = means[["net", "nouns", "more"]].mean().astype({"layer": int})
    is_more = [layer in more[word] for word, layer in zip(rows["word"], rows["layer"], strict=True)]
    comparison = [MORE if is_larger else "" for is_larger in is_more]
    beside = [BESIDE_NOUNS[MORE] if is_larger else "not shown to be more" for is_larger in is_more]
    return _mlp_cells(rows.assign(comparison=comparison, beside=beside))


def mixers_at_word(mixers: pd.DataFrame) -> pd.DataFrame:
    """The same for the mixers of a hybrid, in its layers without heads: means over the pairs of
    senses, in one column of cells. `mixers` is the study's
    frame."""
    means = mixers.groupby(["word", "layer"], as_index=False, sort=False)
    rows = means[["net"]].mean().astype({"layer": int})
    cells = _mlp_cells(rows.assign(comparison="", beside=BESIDE_NOUNS[""]))
    names = [f"mixer of layer {layer}, in the place of attention" for layer in rows["layer"]]
    return cells.assign(head=MIXER, name=names)


def _mlp_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows as cells of the map: `head` is the MLPs' column, `name` what each is called."""
    names = [f"MLP of layer {layer}" for layer in rows["layer"]]
    # A frame without rows has no numeric columns, which concatenation would spread.
    numbers = dict.fromkeys(("net", "nouns", "more"), float)
    cells = rows.assign(head=MLP, name=names).reindex(columns=MLP_CELL)
    return cells.astype(numbers)


def ranked_heads(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that have a rank, each with its `name` (L0H2), whether its interval excludes zero
    (`clear`), and its comparison with unambiguous nouns in words (`beside`)."""
    ranked = word_heads.dropna(subset="rank")
    clear = (ranked["net_low"] > 0) | (ranked["net_high"] < 0)
    # A table read from a file has a missing value where nothing was compared.
    comparison = ranked["comparison"].fillna("")
    ranked = ranked.assign(name=head_names(ranked), clear=clear, comparison=comparison)
    return ranked.assign(beside=[BESIDE_NOUNS[name] for name in ranked["comparison"]])


def head_map(
    word_heads: pd.DataFrame,
    word: str,
    mlps: pd.DataFrame | None = None,
    *,
    read_at: Mapping[str, int] | None = None,
    legend: bool = True,
    profiles: pd.DataFrame | None = None,
) -> alt.LayerChart | alt.VConcatChart:
    """Layer x head grid of a word's net swap effects, in square cells; a number (percent) is where
    the 95 % interval excludes zero.

    The verdict is a mark in the cell's corner; in large models the cells have no number. A frame is
    around the cells that do more for the word than for unambiguous nouns. `mlps`, from
    `mlps_beside_nouns` or `mlps_at_word`, are one more column on the same scale, each with its
    number. `read_at` has the first layer of each word that is read after the last layer: from there
    on the map is a second panel. `profiles` is the study's frame, for a line of the tooltip.
    """
    rows = ranked_heads(of_word(word_heads, word))
    best = _or_all(with_verdict(rows), rows).nlargest(1, "net").iloc[0]
    resolvers = ", ".join(rows.loc[rows["verdict"] == "resolver", "name"]) or "none"
    do_more = ", ".join(rows.loc[does_more(rows), "name"]) or "none"
    description = (
        f"Map of {word}: net swap effects of {len(rows)} heads by layer and head. The largest is "
        f"{percent(best['net'])} of the sense gap, by {best['name']}; the intervals of "
        f"{int(rows['clear'].sum())} heads exclude zero. Resolvers: {resolvers}. "
        f"Significantly more for it than for unambiguous nouns: {do_more}."
    )
    limit = effect_limit(word_heads, mlps)
    depth = (read_at or {}).get(word)
    tooltip: Sequence[alt.Tooltip] = HEAD_TIPS
    if profiles is not None and len(profiles):
        word_heads = word_heads.merge(in_general(profiles), on=["word", "layer", "head"])
        tooltip = [*HEAD_TIPS, *PROFILE_TIP]
    picture = _map(word_heads, word, legend, mlps, limit=limit, tooltip=tooltip, read_at=depth)
    return finish(picture, description)


def in_general(profiles: pd.DataFrame) -> pd.DataFrame:
    """What each head does in general, in a line: `word layer head in_general`.

    `profiles` is the study's frame.
    """
    keys = ["word", "layer", "head"]
    of_heads = profiles.groupby(keys, as_index=False, sort=False)
    # The first row of a head is that of natural sentences, where nothing is repeated.
    columns = ["first", "previous", "induction"]
    rows = of_heads[columns].first()
    lines = [
        f"first token {percent(first)}, previous {percent(before)}, induction {percent(again)}"
        for first, before, again in rows[columns].to_numpy(float)
    ]
    return rows[keys].assign(in_general=lines)


def heads(
    frame: pd.DataFrame, *, value: str | None = None, word: str | None = None
) -> alt.LayerChart | alt.VConcatChart:
    """Layer x head grid of one number for each head, from a frame that `probe.patch`,
    `probe.delta_e` or a study returned.

    frame: with the columns `layer` and `head`; rows of the same head are averaged
    value: the column to draw, by default the first of VALUES that the frame has
    word: of the study's frame `word_heads`, which is drawn as `head_map` does; by default the first

    Raises InputError for a frame without these columns.

    Example:
        >>> from probe import charts
        >>> frame = probe.delta_e("tiny-senses", "The old tree by the bank", at="bank")
        >>> charts.heads(frame).to_dict()["description"][:30]
        'Map of norm, by layer and head'
    """
    if value is None and "verdict" in frame:
        return head_map(frame, frame["word"].iloc[0] if word is None else word)
    named = next((name for name in VALUES if name in frame), "") if value is None else value
    if not {"layer", "head", named} <= set(frame):
        raise InputError(
            f"Cannot draw heads: the frame has the columns {', '.join(map(str, frame))}, expected "
            f"layer, head and {value or 'one of ' + ', '.join(VALUES)}. Give what probe.patch or "
            "probe.delta_e returned, or a column as value."
        )
    rows = frame.groupby(["layer", "head"])[named].mean().rename("net").reset_index()
    rows = rows.assign(name=head_names(rows), clear=True, verdict="", comparison="")
    limit = float(rows["net"].abs().max()) or 1.0
    is_share = named in SHARES
    is_signed = is_share or bool((rows["net"] < 0).any())
    digits = max(0, 2 - math.floor(math.log10(limit)))  # of three in all, in the largest number
    as_text = percent if is_share else partial(decimal, digits=digits)
    grid = _Grid(
        layers=sorted(rows["layer"].unique().tolist()),
        heads=sorted(rows["head"].unique().tolist()),
        further=[],
        cell=cell_size(rows),
        verdicts=[],
        fields=[*rows, "mark"],
        tooltip=tips("name:N | head", f"net:Q | {named} | {'.1%' if is_share else '.3f'}"),
        legend=_effect_legend(limit, named, ".0%" if is_share else ".3~r", signed=is_signed),
        mark=_mark if is_share else as_text,
        scale=effect_scale(limit, signed=is_signed),
    )
    picture = _panel(grid, rows, rows[:0], limit=limit, layers=grid.layers)
    best = rows.iloc[int(rows["net"].abs().argmax())]
    largest = f"{as_text(best['net'])}, of {best['name']}"
    description = f"Map of {named}, by layer and head. The largest is {largest}."
    return finish(picture, description)


def head_maps(
    word_heads: pd.DataFrame, mlps: pd.DataFrame | None = None
) -> alt.HConcatChart | alt.Chart:
    """The maps of all words side by side, on one scale. mlps: as in `head_map`."""
    words = word_heads["word"].unique()
    if not len(words):
        note = "No word has a significant gap between its senses, so no map is drawn."
        chart = alt.Chart(pd.DataFrame({"note": [note]})).mark_text(color=MUTED, align="left")
        return finish(
            chart.encode(text=alt.Text("note:N"), x=alt.XValue(0)).properties(height=30), note
        )
    limit = effect_limit(word_heads, mlps)
    charts = [
        _map(word_heads, word, word == words[0], mlps, limit=limit).properties(title=str(word))
        for word in words
    ]
    parts = "head" if mlps is None else "head and MLP"
    description = f"Maps of {', '.join(words)}: net swap effects of every {parts} by layer."
    return finish(alt.hconcat(*charts), description)


def survey_verdicts(heads: pd.DataFrame) -> pd.Series:
    """What of the verdicts on one word can be said of heads over many: "opposes", "suggestive" or
    "none". `heads` is the frame `survey_heads`."""
    confirmed = heads["p"] < LEVEL
    verdict = pd.Series("none", index=heads.index)
    verdict[(heads["effect_low"] > 0) & (heads["effect"] >= SMALLEST) & ~confirmed] = "suggestive"
    verdict[(heads["effect"] <= -SMALLEST) & confirmed] = "opposes"
    return verdict


def _has_survey_verdict(heads: pd.DataFrame) -> pd.Series:
    """Whether each head moves words significantly, or has a verdict. `heads` is the frame
    `survey_heads`."""
    return (heads["p"] < LEVEL) | ~survey_verdicts(heads).isin(UNMARKED)


def _or_all(rows: pd.DataFrame, all_rows: pd.DataFrame) -> pd.DataFrame:
    """The rows; all of them if there are none."""
    return rows if len(rows) else all_rows


def survey_limit(heads: pd.DataFrame) -> float:
    """The end of the scale of `survey_map`. heads: the frame `survey_heads` of one model."""
    return _limit(_or_all(heads[_has_survey_verdict(heads)], heads)["effect"])


def survey_map(heads: pd.DataFrame, *, limit: float) -> alt.LayerChart | alt.VConcatChart:
    """Layer x head grid of net swap effects over many words; marks and frames as in `head_map`.

    `heads` is the frame `survey_heads` of one model, of heads that have a rank · `limit`: the end
    of the scale, so that several models share it. The layers that are read after the last one
    are a second panel. Marks are at heads that move words the wrong way, or further than
    SMALLEST without significance. Frames are around heads that move words significantly, and do
    more for them than for unambiguous nouns.
    """
    moves = (heads["p"] < LEVEL) & (heads["effect"] >= SMALLEST)
    ends = {"effect": "net", "effect_low": "net_low", "effect_high": "net_high"}
    comparison = heads["comparison"].where(moves, "")
    rows = heads.rename(columns=ends).assign(
        word="", verdict=survey_verdicts(heads), comparison=comparison
    )
    clear = ((rows["net_low"] > 0) | (rows["net_high"] < 0)).sum()
    best = _or_all(rows[_has_survey_verdict(heads)], rows).nlargest(1, "net").iloc[0]
    names = ", ".join(head_names(rows[moves & (comparison == MORE)])) or "none"
    description = (
        f"Map over words: net swap effects of {len(rows)} heads by layer and head. The largest is "
        f"{percent(best['net'])} of the sense gap, by {part_name(best['layer'], best['head'])}; "
        f"the intervals of {int(clear)} heads exclude zero. Shown to do more for ambiguous words "
        f"than for unambiguous nouns: {names}."
    )
    depth = int(rows["read_depth"].min())
    picture = _map(rows, "", False, limit=limit, tooltip=SURVEY_TIPS, read_at=depth)
    return finish(picture, description)


def _map(
    word_heads: pd.DataFrame,
    word: str,
    legend: bool,
    mlps: pd.DataFrame | None = None,
    *,
    limit: float,
    tooltip: Sequence[alt.Tooltip] = HEAD_TIPS,
    read_at: int | None = None,
) -> alt.LayerChart | alt.VConcatChart:
    """The map of a word: one panel, or two where heads from layer `read_at` on have a rank."""
    beside = of_word(mlps, word) if mlps is not None else word_heads[:0]
    rows = ranked_heads(of_word(word_heads, word))
    fields = [*CELL, *(str(tip.shorthand).split(":")[0] for tip in tooltip)]
    # In a hybrid some layers have no heads.
    grid = _Grid(
        layers=sorted({*word_heads["layer"].tolist(), *beside["layer"].tolist()}),
        heads=sorted(word_heads["head"].unique().tolist()),
        further=beside["head"].unique().tolist(),
        cell=cell_size(word_heads, mlps),
        verdicts=marked(word_heads),
        fields=list(dict.fromkeys(fields)),
        tooltip=tooltip,
        legend=_effect_legend(limit) if legend else None,
        mark=_mark,
        scale=effect_scale(limit),
    )
    depth = math.inf if read_at is None else read_at
    before = [layer for layer in grid.layers if layer < depth]
    at_end = [layer for layer in grid.layers if layer >= depth]
    if not before or not rows["layer"].isin(at_end).any():
        return _panel(grid, rows, beside, limit=limit, layers=grid.layers)
    panels = [
        _panel(grid, rows, beside, limit=limit, layers=before),
        _panel(grid, rows, beside, limit=limit, layers=at_end, title=READ_AT_END),
    ]
    picture = alt.vconcat(*panels, spacing=BETWEEN_PANELS)
    return picture.resolve_scale(color="independent", shape="independent")


class _Grid(NamedTuple):
    """What the panels of a map share.

    layers, heads: all of the map, also those without cells
    further: the columns besides the heads
    cell: the side of a cell, in pixels
    verdicts: the verdicts with a mark
    fields: the columns of a cell that the page needs
    tooltip: of a cell of a head
    legend: of the colours, if there is one
    mark: the number in a cell as text
    scale: of the colours, which ends at the limit of the map
    """

    layers: list[int]
    heads: list[int]
    further: list[str]
    cell: int
    verdicts: list[str]
    fields: list[str]
    tooltip: Sequence[alt.Tooltip]
    legend: alt.Legend | None
    mark: Callable[[float], str]
    scale: alt.Scale

    @property
    def has_numbers(self) -> bool:
        """Whether the cells are large enough for a number."""
        return self.cell >= NUMBERS_FROM


def _panel(
    grid: _Grid,
    rows: pd.DataFrame,
    beside: pd.DataFrame,
    *,
    limit: float,
    layers: list[int],
    title: str = "",
) -> alt.LayerChart:
    """The cells of some layers of a map, on a scale that ends at `limit`.

    rows: rows of heads that have a rank
    beside: rows of MLPs and mixers, which have a further column
    """
    rows = rows[rows["layer"].isin(layers)]
    beside = beside[beside["layer"].isin(layers)]
    if grid.has_numbers:
        rows = rows.assign(mark=[grid.mark(net) for net in rows["net"]])
    rows = rows[[name for name in grid.fields if name in rows]]
    across = alt.Scale(domain=[*grid.heads, *grid.further])
    down = alt.Scale(domain=layers)
    # Only the cells draw axes; what lies on them would draw them again.
    on_cells = {"x": _heads_along(across, None), "y": _layers_down(down, None)}
    is_first = layers[0] == grid.layers[0]
    is_last = layers[-1] == grid.layers[-1]
    legend = grid.legend if is_first else None
    colour = alt.Color("net:Q", scale=grid.scale, legend=legend)
    text = alt.condition(alt.datum.net > STRONG * limit, alt.value("#ffffff"), alt.value(INK))
    base = alt.Chart(rows).encode(**on_cells, tooltip=grid.tooltip)
    cells = base.mark_rect(stroke=LINE, strokeWidth=1)
    x = _heads_along(across, _heads_axis(grid) if is_last else None)
    y = _layers_down(down, _layers_axis(grid))
    layered = [cells.encode(x=x, y=y, color=colour)]
    if grid.has_numbers:
        # In small cells the number is moved down for the mark.
        lower = LOWER if grid.verdicts and grid.cell < LARGEST_CELL else 0
        numbers = base.transform_filter(alt.datum.clear).mark_text(fontSize=11, dy=lower)
        layered.append(numbers.encode(text=alt.Text("mark:N"), color=text))
    else:
        is_bare = alt.FieldOneOfPredicate(field="verdict", oneOf=list(UNMARKED))
        is_negative = (alt.datum.net <= -SMALLEST) & alt.datum.clear
        negative = base.transform_filter(is_bare).transform_filter(is_negative)
        layered.append(negative.mark_text(fontSize=11, text="−", color=INK))
    if grid.verdicts and rows["verdict"].isin(grid.verdicts).any():
        shape = verdict_shape(grid.verdicts, legend=legend is not None)
        size = LARGE_MARK if grid.cell == LARGEST_CELL else SMALL_MARK
        corner = grid.has_numbers
        layered.append(_verdict_marks(base, grid.verdicts, shape, text, size=size, corner=corner))
    beyond = [layer for layer in layers if layer > rows["layer"].max()]
    layered += _beyond(beyond, grid.heads, on_cells["y"])
    if len(grid.layers) > FEW_LAYERS:
        opposite = base.mark_rect(opacity=0)
        top = _heads_axis(grid, orient="top", title=None) if is_first else None
        layered.append(opposite.encode(x=_heads_along(across, top), y=on_cells["y"]))
    if len(beside):
        numbered = text if grid.has_numbers else None
        layered += _mlp_column(beside, on_cells, fill=colour, text=numbered)
    # Frames last, so that no neighbouring cell covers a side.
    layered += _frames_of_more(rows, on_cells, grid.tooltip)
    layered += _frames_of_more(beside, on_cells, MLP_TIPS)
    picture = alt.layer(*layered).properties(width=alt.Step(grid.cell), height=alt.Step(grid.cell))
    if title:
        picture = picture.properties(title=alt.Title(title, **SMALL_TITLE))
    return picture.resolve_axis(x="independent", y="independent")


def _heads_axis(grid: _Grid, **looks: Any) -> alt.Axis:
    """The axis of the heads. A name after the last number begins at the middle of its cell, because
    it is wider than a small cell."""
    align: Any = "center"
    if grid.further and not grid.has_numbers:
        align = {"condition": {"test": "!isNumber(datum.value)", "value": "left"}, "value": align}
    return alt.Axis(labelAlign=align, **_labels(grid.heads, grid), **looks)


def _layers_axis(grid: _Grid, **looks: Any) -> alt.Axis:
    return alt.Axis(minExtent=LABEL_EXTENT, **_labels(grid.layers, grid), **looks)


def _labels(numbers: list[int], grid: _Grid) -> dict[str, Any]:
    """The labels of an axis: in small cells only every STEP-th number, if there are many."""
    labels: dict[str, Any] = dict(LEVEL_LABELS)
    if not grid.has_numbers and numbers[-1] >= MANY:
        labels["labelExpr"] = f"isNumber(datum.value) && datum.value % {STEP} ? '' : datum.label"
    return labels


def cell_size(word_heads: pd.DataFrame, mlps: pd.DataFrame | None = None) -> int:
    """The side of a square cell in pixels, the same in the maps of all words."""
    frames = [frame for frame in (word_heads, mlps) if frame is not None]
    layers = set().union(*(frame["layer"] for frame in frames))
    columns = set().union(*(frame["head"] for frame in frames))
    fitting = min(MAP_HEIGHT // len(layers), MAP_WIDTH // len(columns))
    return min(max(fitting, SMALLEST_CELL), LARGEST_CELL)


def _heads_along(scale: alt.Scale, axis: alt.Axis | None) -> alt.X:
    return alt.X("head:O", title="head", scale=scale, axis=axis)


def _layers_down(scale: alt.Scale, axis: alt.Axis | None) -> alt.Y:
    return alt.Y("layer:O", title="layer", scale=scale, axis=axis)


def _effect_legend(
    limit: float,
    title: str = "net swap effect (share of the sense gap)",
    form: str = ".0%",
    *,
    signed: bool = True,
) -> alt.Legend:
    return alt.Legend(
        title=title,
        format=form,
        orient="bottom",
        gradientLength=260,
        values=[-limit, 0, limit] if signed else [0, limit],
    )


def _verdict_marks(
    base: alt.Chart, kinds: list[str], shape: Any, colour: Any, *, size: int, corner: bool
) -> alt.Chart:
    """The marks of verdicts: in the cells' corners, where numbers leave space, or in their
    middle."""
    points = base.transform_filter(alt.FieldOneOfPredicate(field="verdict", oneOf=kinds))
    points = points.mark_point(filled=True, size=size, opacity=1, strokeWidth=0)
    points = points.encode(shape=shape, color=colour)
    if not corner:
        return points
    return points.encode(
        x=alt.X("head:O", bandPosition=0.82, axis=None),
        y=alt.Y("layer:O", bandPosition=0.22, axis=None),
    )


def _mlp_column(
    mlps: pd.DataFrame, on_cells: dict[str, Any], *, fill: alt.Color, text: Any
) -> list[alt.Chart]:
    """The cells of the MLPs, with their numbers in the colour `text` if there is one."""
    rows = mlps if text is None else mlps.assign(mark=[_mark(net) for net in mlps["net"]])
    base = alt.Chart(rows).encode(**on_cells, tooltip=MLP_TIPS)
    cells = base.mark_rect(stroke=LINE, strokeWidth=1).encode(color=fill)
    if text is None:
        return [cells]
    numbers = base.transform_filter(abs(alt.datum.net) >= NOTHING).mark_text(fontSize=11)
    return [cells, numbers.encode(text=alt.Text("mark:N"), color=text)]


def _frames_of_more(rows: pd.DataFrame, on_cells: dict[str, Any], tooltip: Any) -> list[alt.Chart]:
    """Frames round the cells that do more for the word than for unambiguous nouns."""
    more = rows[does_more(rows)]
    if more.empty:
        return []
    return [alt.Chart(more).mark_rect(**MORE_FRAME).encode(**on_cells, tooltip=tooltip)]


def _mark(net: float) -> str:
    """The effect in percent; a dot where it rounds to nothing."""
    return percent(net).split(NARROW)[0] if abs(net) >= NOTHING else "•"


def _beyond(layers: list[int], heads: list[int], y: alt.Y) -> list[alt.Chart]:
    """What to read in the middle of the layers that have no cells."""
    if not layers:
        return []
    cell = {"layer": layers[(len(layers) - 1) // 2], "head": heads[(len(heads) - 1) // 2]}
    note = pd.DataFrame([cell | {"note": "after the read-out: no effect possible"}])
    # Of an even number of heads the middle is the border between two cells.
    middle = alt.X("head:O", bandPosition=0.5 if len(heads) % 2 else 1, axis=None)
    text = alt.Chart(note).mark_text(color=MUTED, fontSize=11)
    return [text.encode(x=middle, y=y, text=alt.Text("note:N"))]


def separation_and_effect(word_heads: pd.DataFrame, word: str) -> alt.LayerChart:
    """Held-out AUROC of each head's write against its net swap effect, for the heads up to a word's
    read-out.

    The heads with a verdict and the largest clear effects are named.
    """
    rows = ranked_heads(of_word(word_heads, word))
    leftmost = min(0.4, float(word_heads["auroc"].min()) - 0.05)
    x = alt.X(
        "auroc:Q",
        title="held-out AUROC of the head's write (0.5 = chance)",
        scale=alt.Scale(domain=[leftmost, 1.02], nice=False, zero=False),
        axis=alt.Axis(tickCount=6, format=".1f"),
    )
    low = float(word_heads["net_low"].min())
    high = float(word_heads["net_high"].max())
    margin = 0.06 * (high - low)
    domain = [min(low, 0.0) - margin, max(high, 0.0) + margin]
    scale = alt.Scale(domain=domain, nice=False, zero=False)
    y = alt.Y("net:Q", title=EFFECT_TITLE, axis=alt.Axis(format=".0%", tickCount=6), scale=scale)
    base = alt.Chart(rows).encode(x=x)
    bars = base.mark_rule(color=MUTED, opacity=0.5).encode(
        alt.Y("net_low:Q", title=EFFECT_TITLE), alt.Y2("net_high")
    )
    kinds = [name for name in ORDER if name in set(word_heads["verdict"])]
    colour = by_value(alt.Color, "verdict:N", kinds, [COLOURS[name] for name in kinds])
    dots = base.mark_point(filled=True, size=90, opacity=1, strokeWidth=0)
    dots = dots.encode(
        y=y, shape=verdict_shape(kinds, legend=False), color=colour, tooltip=HEAD_TIPS
    )
    line = NAME_HEIGHT * (high - low)
    outstanding = with_verdict(rows[rows["clear"] & (rows["net"].abs() > line / 2)])
    outstanding = outstanding.nlargest(NAMED, "net")
    names = alt.Chart(_spread(outstanding, line=line)).mark_text(
        **TEXT | {"align": "right", "dx": -8}
    )
    names = names.encode(x=alt.X("auroc:Q"), y=alt.Y("height:Q"), text=alt.Text("name:N"))
    inert = int(((rows["auroc"] > 0.75) & ~rows["clear"]).sum())
    description = (
        f"Separation against effect of {word}: {len(rows)} heads. {inert} of them separate the "
        "senses with an AUROC above 0.75 while the interval of their effect includes zero."
    )
    picture = alt.layer(reference_line("y", 0.0), reference_line("x", CHANCE), bars, dots, names)
    return finish(picture, description, height=250)


def _spread(labels: pd.DataFrame, *, line: float) -> pd.DataFrame:
    """The rows, smallest effect first; `height` is that of the point, or higher where its name
    would meet another, which is `line` high."""
    rows = labels.sort_values("net")
    heights: list[float] = []
    for net in rows["net"]:
        heights.append(max(net, heights[-1] + line) if heights else net)
    return rows.assign(height=heights)


def control_strips(
    controls: pd.DataFrame, word: str, *, marked: list[str] | None = None
) -> alt.LayerChart:
    """Held-out AUROC of every head, a strip per condition; the heads named in `marked` are marked.

    With permuted labels a tick is a head's median, and the band holds nine of ten permutations of a
    typical head: it goes from the median of the heads' lower ends to that of the upper ones.
    `controls` is the study's frame: its axis is the same for every word, and a condition that could
    not be measured has no strip.
    """
    rows = of_word(controls, word)
    rows = rows.assign(name=head_names(rows))
    rows = rows.assign(stands_out=rows["name"].isin(marked or []))
    conditions = [name for name in CONDITIONS if name in set(rows["condition"])]
    permuted = controls.dropna(subset="low").groupby(["word", "condition"], as_index=False)
    ends = permuted[["low", "high"]].median()
    lowest = min(0.34, float(controls["auroc"].min()), *ends["low"])
    scale = alt.Scale(domain=[lowest - 0.04, 1.03], nice=False, zero=False)
    axis = alt.Axis(values=[0.25, 0.5, 0.75, 1], format=".2f")
    x = alt.X("auroc:Q", title="held-out AUROC (0.5 = chance)", scale=scale, axis=axis)
    y = alt.Y(
        "condition:N",
        title="condition",
        sort=conditions,
        axis=bare_axis(labelLimit=130, grid=False),
    )
    base = alt.Chart(rows).encode(
        x=x, y=y, tooltip=tips("name:N | head", "condition:N", "auroc:Q | AUROC | .2f")
    )
    ticks = base.mark_tick(color=MUTED, thickness=1.5, size=16, opacity=0.6)
    top_heads = base.transform_filter(alt.datum.stands_out)
    diamonds = top_heads.mark_point(shape="diamond", filled=True, size=80, color=WITH, opacity=1)
    medians = rows.groupby("condition")["auroc"].median()
    middle = alt.Chart(medians.reset_index()).mark_tick(color=INK, thickness=2.5, size=22)
    middle = middle.encode(x=x, y=y)
    band = alt.Chart(of_word(ends, word)).mark_bar(color=MUTED, opacity=0.25, height=22)
    band = band.encode(x=alt.X("low:Q", scale=scale), x2=alt.X2("high:Q"), y=y)
    picture = alt.layer(reference_line("x", CHANCE), band, ticks, middle, diamonds)
    in_words = ", ".join(f"{name} {decimal(float(medians[name]))}" for name in conditions)
    description = (
        f"Controls for {word}: median held-out AUROC over all heads by condition: {in_words}; 0.5 "
        "is chance."
    )
    return finish(picture, description, height=34 * len(conditions))
