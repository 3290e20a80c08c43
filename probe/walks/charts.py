"""The charts of a walk: tokens against tokens, queries, keys and values in a plane, weights and ΔE
by source, the word's vector by depth.

A chart has no rows. The script of the page fills the data of its name with the rows of the head and
token that are followed (`live` in `templates/walk.js`), in the order of the text. `usermeta` holds
the tokens' height in pixels. The description is of the head and token that are followed first.
"""

from collections.abc import Mapping
from typing import Any, Literal

import altair as alt
import pandas as pd

from probe.charts.palette import (
    AGAINST,
    INK,
    LINE,
    MUTED,
    SENSES,
    WITH,
    by_depth,
    by_value,
    either,
    ends_of_lines,
    finish,
    line_legend,
    lines_with_dots,
    reference_line,
    share_axis,
    tips,
    token_axis,
)
from probe.stats.numbers import decimal, percent
from probe.walks.walk import Walk

Orientation = Literal["rows", "columns"]
ORIENTATIONS: tuple[Orientation, ...] = ("rows", "columns")
NAMES = {"query": "query: looks", "key": "key: is looked at"}
KINDS = {"dot": "Q·K", "pattern": "attention weight", "open": "weight without the mask"}
LOOKS = {
    "query": (WITH, "M-0.9,-0.7L0.9,-0.7L0,0.9Z"),
    "key": (SENSES[2], "circle"),
    "value": (SENSES[0], "square"),
}
PLANE = ("1st principal component", "2nd principal component")
DIVIDED = "divided by √d_head"
UNDIVIDED = "not divided"
# Lines by depth: columns of the table of layers, with their names and colours.
LENGTHS = {
    "norm": ("the vector", INK),
    "attention": ("attention writes", WITH),
    "mlp": ("MLP writes", MUTED),
}
LINE_DASHES = [[1, 0], [6, 3], [2, 2]]
TURNS = {
    "token_cosine": ("its own token vector", INK),
    "beside_cosine": ("the same word in the other sentence", SENSES[1]),
}
ACROSS = {"query": "query: target token", "key": "key: source token"}
# The pictures of attention, by the column that they show first. A script steps through the first.
STEPPED = {"stage": "pattern", "open": "open"}


def pictures(walk: Walk) -> dict[str, Any]:
    """Every chart of the page by name."""
    frames = walk.frames
    block = walk.block
    queries, keys = ([token["pos"] for token in block[side]] for side in ("tokens", "source"))
    cells = frames["attention"].assign(chosen=frames["attention"]["query_pos"] == walk.at)
    titles = NAMES if walk.target is None else ACROSS
    charts = {
        f"{name}_{turned}": token_grid(cells, kind, queries=turned, axis_titles=titles)
        for name, kind in STEPPED.items()
        for turned in ORIENTATIONS
        if kind in cells
    }
    vectors = frames["vectors"]
    side = vectors["pos"].isin(queries).where(vectors["kind"] == "query", vectors["pos"].isin(keys))
    charts["match_plane"] = vector_plane(vectors[side], ["query", "key"])
    charts["value_plane"] = vector_plane(vectors[side], ["value"])
    values = frames["values"][frames["values"]["pos"].isin(keys)]
    charts["sources"] = source_bars(values)
    if "logit" in values:
        charts["logits"] = logit_bars(values, str(walk.word))
    if "layer_norm" in frames:
        norms = frames["layer_norm"][frames["layer_norm"]["pos"].isin(queries)]
        charts["lengths"] = lengths(norms, norm=block["norm"])
    if "steep" in cells:
        charts["softmax"] = softmax_bars(cells[cells["chosen"]], plain_root=block["plain_root"])
    layers = frames["layers"]
    if "apart" in layers:
        charts["apart"] = apart(layers)
    charts["stream_lengths"] = _stream(layers, LENGTHS, "lengths", "Lengths", "length")
    charts["stream_turns"] = _stream(layers, TURNS, "turns", "Cosines", "cosine with")
    return charts


def _live(name: str) -> Any:
    """The data of a chart, which the script of the page fills."""
    return alt.InlineData(values=[], name=name)


def token_grid(
    cells: pd.DataFrame,
    kind: str,
    *,
    queries: Orientation = "rows",
    axis_titles: Mapping[str, str] = NAMES,
) -> Any:
    """A head's dot products (`dot`) or weights (`pattern`, `open`: without the mask), a dot per
    query and key.

    `cells` is a walk's `attention` frame with `chosen`, the row that is followed; queries and keys
    may be tokens of two texts. If they are tokens of one text, the tokens across are numbered and
    those down are named. Areas of weights run from 0 to 1 in every picture; areas of dot products
    to the largest of the head, violet where positive and ochre where negative. Cells that the mask
    closes are grey.
    """
    labels = {name: cells[name].drop_duplicates().tolist() for name in ("query", "key")}
    count = max(map(len, labels.values()))
    step = _token_step(count)
    down = "query" if queries == "rows" else "key"
    across = "key" if queries == "rows" else "query"
    axis = {"grid": False, "labelLimit": 110}
    names_across: dict[str, Any] = {"labelAngle": -45}
    if labels["query"] == labels["key"]:
        names_across = {"labelAngle": 0, "labelExpr": "split(datum.label, '·')[0]"}
    y = alt.Y(f"{down}:N", title=axis_titles[down], sort=None, axis=token_axis(**axis))
    x = alt.X(
        f"{across}:N", title=axis_titles[across], sort=None, axis=token_axis(**axis, **names_across)
    )
    base = alt.Chart().encode(x=x, y=y)
    ground = base.mark_rect(fill="transparent", stroke=LINE, strokeOpacity=0.5)
    closed = base.transform_filter("!datum.allowed").mark_rect(fill=LINE)
    closed = closed.encode(fillOpacity=either(alt.FillOpacityValue, "datum.grey", 0.45, 0))
    row = base.transform_filter("datum.chosen").mark_rect(fill=WITH, fillOpacity=0.09)
    dots = base.transform_filter("datum.size > 0").mark_point(opacity=0.9, strokeWidth=1.5)
    tip = tips("query:N", "key:N", "step:N | number", "value:Q | value | .6g")
    # The largest dot nearly fills its cell.
    areas = alt.Scale(domain=[0, 1], range=[0, 0.62 * step * step])  # square pixels
    negative = "!datum.positive"
    # Negative dots are rings, because in grey the two colours are the same.
    filled = either(alt.FillOpacityValue, "datum.positive", 1, 0)
    dots = dots.encode(
        size=alt.Size("size:Q", scale=areas, legend=None),
        fill=_signed(alt.FillValue, negative),
        stroke=_signed(alt.StrokeValue, negative),
        fillOpacity=filled,
        tooltip=tip,
    )
    masked = [] if cells["allowed"].all() else [closed]
    picture = alt.layer(ground, *masked, row, dots, data=_live("cells"))
    mine = cells[cells["chosen"] & (cells["allowed"] | (kind != "pattern"))]
    best = mine.nlargest(1, kind).iloc[0]
    tokens = " by ".join(str(size) for size in dict.fromkeys(map(len, labels.values())))
    number_text = decimal if kind == "dot" else percent
    description = (
        f"Grid of {KINDS[kind]}, queries as {queries}, {tokens} tokens. In the row of "
        f"{best['query']} the largest is that of {best['key']}: {number_text(float(best[kind]))}."
    )
    return finish(_tall(picture, len(labels[down]), step, by=down), description)


def _token_step(count: int) -> int:
    """Pixels from a token to the next, where there are so many."""
    if count <= 14:
        return 36 if count <= 10 else 28
    return 20 if count <= 20 else 15


def _signed(channel: type, negative: str) -> Any:
    """Ochre where this holds of `datum`, violet elsewhere."""
    return either(channel, negative, AGAINST, WITH)


def _tall(picture: Any, count: int, step: int, *, by: str = "label") -> Any:
    """The picture as wide as its place, and as high as `count` tokens need.

    `usermeta` tells a page that draws another text the pixels per token, and which field holds
    those down the side.
    """
    step = step if count <= 20 else 15
    picture.width = "container"
    picture.height = step * count
    picture.usermeta = {"step": step, "by": by}
    return picture


def vector_plane(points: pd.DataFrame, kinds: list[str]) -> Any:
    """Vectors of one head in the plane in which they differ most, named but for the queries that
    are not followed.

    `points` is a walk's `vectors` frame with `chosen`. The share of the variance that the plane
    holds belongs in the caption.
    """
    # Numbers along the directions of a PCA would mean nothing.
    axis = alt.Axis(tickCount=5, gridOpacity=0.4, labels=False, ticks=False, domain=False)
    x = alt.X("plane_x:Q", title=PLANE[0], axis=axis, scale=alt.Scale(padding=24))
    y = alt.Y("plane_y:Q", title=PLANE[1], axis=axis, scale=alt.Scale(padding=14))
    key = None
    if len(kinds) > 1:
        key = alt.Legend(orient="top", title=None, values=kinds, symbolStrokeWidth=0)
    colours = [colour for colour, _ in LOOKS.values()]
    shapes = [shape for _, shape in LOOKS.values()]
    colour = by_value(alt.Color, "kind:N", list(LOOKS), colours, key)
    shape = by_value(alt.Shape, "kind:N", list(LOOKS), shapes, key)
    tip = tips("kind:N", "label:N | token", "norm:Q | length | .6g")
    base = alt.Chart().encode(x=x, y=y)
    strong = either(alt.SizeValue, "datum.chosen", 150, 50)
    dots = base.mark_point(filled=True, opacity=0.85).encode(
        color=colour, shape=shape, size=strong, tooltip=tip
    )
    texts = base.mark_text(dy=-10, fontSize=11, color=INK).encode(text=alt.Text("name:N"))
    picture = alt.layer(dots, texts, data=_live("points"))
    mine = points[points["kind"].isin(kinds)]
    variance = percent(float(mine["explained"].iloc[0]))
    vectors = " and ".join(f"{kind}s" for kind in kinds)
    description = (
        f"The {vectors} of {mine['label'].nunique()} tokens in a plane that holds {variance} of "
        "their variance."
    )
    return finish(picture, description, height=230)


def lengths(norms: pd.DataFrame, *, norm: str = "LayerNorm") -> Any:
    """Length of each token's vector before and after the `norm`, logarithmic. `norms`: a walk's
    `layer_norm` frame."""
    x = alt.X(
        "before:Q",
        title="length, logarithmic",
        scale=alt.Scale(type="log", nice=False, padding=14),
        axis=alt.Axis(tickCount=3, format="~g"),
    )
    tip = tips(
        "label:N | token", *(f"{name}:Q | length {name} | .6g" for name in ("before", "after"))
    )
    base = _by_token(None, tip)
    rules = base.mark_rule(color=MUTED, opacity=0.5).encode(x=x, x2=alt.X2("after:Q"))
    names = ["before", f"after {norm}"]
    key = alt.Legend(orient="top", title=None)
    colour = by_value(alt.Color, "when:N", names, [MUTED, WITH], key)
    shape = by_value(alt.Shape, "when:N", names, ["circle", "square"], key)
    dots = [
        base.transform_calculate(when=f"'{name}'")
        .mark_point(filled=True, size=70, opacity=1)
        .encode(x=at, color=colour, shape=shape)
        for name, at in zip(names, (x, alt.X("after:Q")), strict=True)
    ]
    picture = alt.layer(rules, *dots, data=_live("norms"))
    low = float(norms["after"].min())
    high = float(norms["after"].max())
    description = (
        f"Lengths of {len(norms)} vectors before and after {norm}; after it they lie between "
        f"{low:.3g} and {high:.3g}."
    )
    return finish(_tall(picture, len(norms), 17), description)


def _by_token(title: str | None, tip: list[alt.Tooltip]) -> alt.Chart:
    """The base of the layers of a chart with one token per row, in the order of the text."""
    return alt.Chart().encode(
        y=alt.Y("label:N", title=title, sort=None, axis=token_axis(labelLimit=110)), tooltip=tip
    )


def softmax_bars(row: pd.DataFrame, *, plain_root: bool) -> Any:
    """A token's attention weights, twice: softmax of the scores, and of the scores not divided.

    row: its cells of the table of attention
    plain_root: whether the scores are divided by √d_head
    """
    axis = alt.Axis(labelAngle=-45, labelLimit=90, labelOverlap=False, ticks=False)
    x = alt.X("key:N", title="key: the token looked at", sort=None, axis=axis)
    y = alt.Y(
        "weight:Q", title="attention weight", scale=alt.Scale(domain=[0, 1]), axis=share_axis()
    )
    order = [DIVIDED if plain_root else "divided", UNDIVIDED]
    key = alt.Legend(orient="top", title=None, symbolStrokeWidth=1.5)
    # In grey the two colours are the same, so the undivided bars are hollow.
    fill = by_value(alt.Fill, "variant:N", order, [WITH, "transparent"], key)
    stroke = by_value(alt.Stroke, "variant:N", order, [WITH, MUTED], key)
    tip = tips("key:N", "variant:N", "weight:Q | | .6g")
    side = alt.XOffset("variant:N", sort=order)
    bars = alt.Chart().mark_bar(strokeWidth=1)
    bars = bars.encode(x=x, xOffset=side, y=y, fill=fill, stroke=stroke, tooltip=tip)
    description = (
        f"Attention weights over {row['key'].nunique()} tokens: the largest is "
        f"{percent(float(row['pattern'].max()))} with the division and "
        f"{percent(float(row['steep'].max()))} without it."
    )
    return finish(alt.layer(bars, data=_live("shares")), description, height=150)


def source_bars(values: pd.DataFrame) -> Any:
    """Share of a head's ΔE at one token from each source, along ΔE (the bars sum to 1), and the
    attention weights.

    `values` has `label`, `weight` and `share`, sources in the order of the text.
    """
    x = alt.X("share:Q", title="bars: share of ΔE; ticks: attention", axis=share_axis(3))
    tip = tips(
        "label:N | source", "share:Q | share of ΔE | .6g", "weight:Q | attention weight | .6g"
    )
    base, bars = _source_bars("share", x, tip)
    ticks = base.mark_tick(color=INK, thickness=2, height={"band": 0.85}).encode(
        x=alt.X("weight:Q")
    )
    largest = values.iloc[values["share"].abs().argmax()]
    description = (
        f"Shares of ΔE by source token: {largest['label']} supplies "
        f"{percent(float(largest['share']))} of it with a weight of "
        f"{percent(float(largest['weight']))}."
    )
    picture = alt.layer(bars, ticks, data=_live("values")) + reference_line("x", 0.0)
    return finish(_tall(picture, len(values), 18), description)


def logit_bars(values: pd.DataFrame, word: str) -> Any:
    """What a head adds to a word's logit from each source token. `values`: `label`, `logit`, in the
    text's order."""
    x = alt.X("logit:Q", title=f"added to the logit of “{word}”", axis=alt.Axis(tickCount=5))
    _, bars = _source_bars("logit", x, tips("label:N | source", "logit:Q | added | +.6g"))
    largest = values.iloc[values["logit"].abs().argmax()]
    description = (
        f"What each source token adds to the logit of {word}: {largest['label']} "
        f"{decimal(float(largest['logit']))}."
    )
    picture = alt.layer(bars, data=_live("logits")) + reference_line("x", 0.0)
    return finish(_tall(picture, len(values), 18), description)


def _source_bars(column: str, x: alt.X, tip: list[alt.Tooltip]) -> tuple[alt.Chart, alt.Chart]:
    """What the layers of a chart by source token share, and its bars, coloured by their sign."""
    base = _by_token(None, tip)
    return base, base.mark_bar(height={"band": 0.6}).encode(
        x=x, color=_signed(alt.ColorValue, f"datum.{column} < 0")
    )


def apart(rows: pd.DataFrame) -> Any:
    """Distance between the word's vectors of two sentences by depth, divided by their mean length.
    `rows`: `depth apart`."""
    x = by_depth(rows["depth"], entering=True)
    y = alt.Y("apart:Q", title="distance / mean length", axis=alt.Axis(tickCount=4))
    tip = tips("depth:Q | blocks passed", "apart:Q | distance / mean length | .3f")
    base = alt.Chart().encode(x=x, y=y, color=alt.value(WITH))
    lines = lines_with_dots(base, 36, tooltip=tip)
    last = decimal(float(rows["apart"].iloc[-1]))
    description = (
        f"Distances by depth: at the end the two vectors are {last} of their length apart."
    )
    return finish(alt.layer(*lines, data=_live("apart")), description, height=170)


def _stream(
    layers: pd.DataFrame, lines: Mapping[str, tuple[str, str]], name: str, subject: str, title: str
) -> Any:
    """Lines by depth, with the ends of the first line as the description.

    lines: by column of the table of layers, the name and the colour of its line
    """
    present = [line for column, line in lines.items() if column in layers]
    names, colours = ([*part] for part in zip(*present, strict=True))
    key = line_legend(orient="top", labelLimit=300)
    colour = by_value(alt.Color, "what:N", names, colours, key)
    # Dashes, because in grey two of the colours are the same.
    dash = by_value(alt.StrokeDash, "what:N", names, LINE_DASHES[: len(names)], key)
    x = by_depth(layers["depth"], entering=True)
    y = alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=3))
    tip = tips("what:N", "depth:Q | blocks passed", "value:Q | | .6g")
    base = alt.Chart().encode(x=x, y=y, color=colour)
    first = layers.rename(columns={next(iter(lines)): "value"}).assign(what=names[0])
    ends = ends_of_lines(first, "depth", "what", decimal).replace(" from ", " goes from ")
    drawn = lines_with_dots(base, 36, line={"strokeDash": dash}, tooltip=tip)
    picture = alt.layer(*drawn, data=_live(name))
    return finish(picture, f"{subject} by depth: {ends}.", height=170)
