"""How an effect comes about: sets of heads, distance from the cue, what is swapped; and the way of
a sense from the cue to the word, position by position and as a circuit.

A circuit has tokens along and layers up. A part is a head or an MLP at one position, or the token
there; it stands at its position and in its layer, an MLP above the heads that it reads, parts of
one cell side by side. Positions and layers without a part are left out.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
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
    layer_height,
    line_legend,
    lines_with_dots,
    numbers_at,
    of_word,
    part_name,
    reference_line,
    share_axis,
    tips,
    token_axis,
)
from probe.stats.numbers import measured, p_value, percent
from probe.stats.verdicts import LEVEL

ENOUGH = 0.9
FEW_HEADS = 24
NECESSITY = "#5f7f86"
RANDOM = "random sets"
GAP_SHARE = "share of the sense gap"
CURVES = {"faithfulness": "leading heads", "necessity": "lost without them"}
CURVE_TIPS = tips(
    "added:N | joined",
    "size:Q | heads",
    "what:N | what",
    "value:Q | share of the gap | .1%",
    "low:Q | 95 % from | .1%",
    "high:Q | to | .1%",
)
# The leading heads of a word, in their order
HUES, DASHES, SHAPES = (WITH, MUTED, INK), ([1, 0], [6, 3], [2, 2]), ("circle", "diamond", "square")
ROUTES = {
    "swap": "the whole head",
    "pattern_only": "only where it looks",
    "values_only": "only what it carries",
    "cue_only": "only what comes from the cue",
    "other_only": "only from other words that differ",
    "ablation": "its mean instead",
}
ENDS, BAR = ("", "_low", "_high"), ("value", "low", "high")
PARTS = {"resid_pre": "residual stream", "attn_out": "attention", "mlp_out": "MLP"}
POSITION_TIPS = tips(
    "pos:N | position",
    "layer:O | layer",
    "effect:Q | effect | .1%",
    "denoise:Q | B given A's | .1%",
    "noise:Q | A given B's | .1%",
    "pairs:Q | pairs of sentences",
)
# A circuit
MOST, LEAST = 30, 0.01  # edges at most, and the least total of each, of the gap
THIN, WIDE = (
    1.0,
    12.0,
)  # pixels: of the narrowest edge, and of one that moves the word by the whole gap
ROW, SIZE, BETWEEN, BOW = (
    36,
    560,
    0.8,
    0.18,
)  # pixels, square pixels; in widths of a part between columns; in rows
FEW_COLUMNS = 4
TURNS = np.linspace(0, 1, 4)
KINDS = {"head": "circle", "MLP": "square", "token": "diamond"}
PLACE = ["layer", "head", "pos"]
EDGE_TIPS = tips(
    "from:N | from",
    "to:N | to",
    "channel:N | as its",
    "effect:N | effect on the word [95 %]",
    "test:N | max-T test",
)


def set_curves(curves: pd.DataFrame, random_sets: pd.DataFrame, word: str) -> Any:
    """Faithfulness and necessity of a word's leading heads by their number; ticks are random sets,
    the line is at 0.9.

    The smallest set that reaches it is ringed. Frames are the study's, whole, so that axes are the
    same for every word.
    """
    mine = of_word(curves, word)
    lines = [
        mine.assign(value=mine[name], low=mine[f"{name}_low"], high=mine[f"{name}_high"], what=what)
        for name, what in CURVES.items()
    ]
    chance = (
        of_word(random_sets, word).assign(what=RANDOM).rename(columns={"faithfulness": "value"})
    )
    most = int(mine["size"].max())
    x_scale = alt.Scale(
        type="linear" if most <= FEW_HEADS else "sqrt", domain=[0, most], nice=False
    )
    axis = alt.Axis(format="d", grid=False, values=_ticks(most))
    x = alt.X("size:Q", title="number of heads, leading first", scale=x_scale, axis=axis)
    ends = [curves[f"{name}_{end}"] for name in CURVES for end in ("low", "high")]
    values = pd.concat([*ends, random_sets["faithfulness"]]).astype(float)
    low, high = min(0.0, float(values.min())) - 0.04, max(1.0, float(values.max())) + 0.14
    reach = alt.Scale(domain=[low, high], nice=False)
    y = alt.Y(
        "value:Q",
        title=GAP_SHARE,
        axis=alt.Axis(format=".0%", values=[0, 0.25, 0.5, 0.75, 0.9, 1]),
        scale=reach,
    )
    key = line_legend(orient="top", symbolOpacity=1, offset=6, columns=2)
    looks = ((alt.Color, (WITH, NECESSITY, MUTED)), (alt.StrokeDash, ([1, 0], [5, 3], [1, 0])))
    colour, dash = (
        by_value(channel, "what:N", [*CURVES.values(), RANDOM], look, key)
        for channel, look in looks
    )
    ticks = alt.Chart(chance).mark_tick(orient="horizontal", size=11, thickness=1.5, opacity=0.55)
    ticks = ticks.encode(x=x, y=y, color=colour, tooltip=CURVE_TIPS[1:4])
    base = alt.Chart(pd.concat(lines, ignore_index=True)).encode(x=x, y=y, color=colour)
    band = base.mark_area(opacity=0.15).encode(
        y=alt.Y("low:Q", title=GAP_SHARE, scale=reach), y2="high:Q"
    )
    drawn = lines_with_dots(base, 26, line={"strokeDash": dash}, tooltip=CURVE_TIPS)
    ring, reaching = _smallest(mine, x, y)
    said = f"Sets of heads for {word}: {reaching}; {len(chance)} random sets from the same layers are drawn beside them."
    return finish(
        alt.layer(reference_line("y", ENOUGH), band, ticks, *drawn, *ring), said, height=230
    )


def _ticks(most: int) -> list[int]:
    if most <= FEW_HEADS:
        return list(range(0, most + 1, 1 if most <= 8 else 2 if most <= 16 else 4))
    return [0, *(size for size in (1, 3, 10, 30, 100, 300, 1000) if size < 0.8 * most), most]


def _smallest(mine: pd.DataFrame, x: alt.X, y: alt.Y) -> tuple[list[alt.Chart], str]:
    """A ring round the smallest set that reaches the line, with its size and share in words; and
    what it reaches."""
    rows, enough = (
        mine[mine["size"] == mine["smallest"]],
        f"reach {percent(ENOUGH)} of the sense gap",
    )
    if rows.empty:
        return [], f"No set of leading heads {enough}"
    size, value = int(rows["size"].iloc[0]), float(rows["faithfulness"].iloc[0])
    said = f"{size} {'head' if size == 1 else 'heads'}: {percent(value)}"
    base = alt.Chart(pd.DataFrame([{"size": size, "value": value, "note": said}]))
    ring = base.mark_point(size=120, color=INK, strokeWidth=1.5, opacity=1).encode(x=x, y=y)
    side = {"align": "right", "dx": 4} if size > 0.6 * int(mine["size"].max()) else {"dx": -4}
    label = base.mark_text(**TEXT | side).encode(
        x=x, y=alt.value(8), text="note:N"
    )  # above every line, band and tick
    return [ring, label], f"The first {size} heads {enough}, keeping {percent(value)}"


def leading(frame: pd.DataFrame, word: str, heads: Sequence[str]) -> pd.DataFrame:
    """The rows of a word's heads, given as L0H0, in their order, with `name`; mean over the pairs
    of senses.

    Also of the ends of intervals: the interval of a mean is no wider than the mean of the
    intervals.
    """
    rows = of_word(frame, word)
    rows = rows.assign(name=head_names(rows))
    rows = rows[rows["name"].isin(heads)]
    keys = ["name", *(["distance"] if "distance" in rows else [])]
    numbers = [
        name
        for name in ("net", *(f"{route}{end}" for route in ROUTES for end in ENDS))
        if name in rows
    ]
    return rows.groupby(keys, as_index=False)[numbers].mean()


def distance_lines(distances: pd.DataFrame, word: str, heads: Sequence[str]) -> Any:
    """Net effect of the given heads by the distance from cue to word; one axis for every word of
    the frame."""
    rows = leading(distances, word, heads)
    labels = alt.Axis(labelExpr="datum.value > 3 ? '4 or more' : datum.value", labelAngle=0)
    x = alt.X("distance:O", title="tokens from the cue to the word", axis=labels)
    mean = distances.groupby(["word", "layer", "head", "distance"])["net"].mean()
    low, high = min(0.0, float(mean.min())), max(0.0, float(mean.max()))
    room = 0.06 * (high - low or 1.0)
    scale = alt.Scale(domain=[low - room, high + room], nice=False, zero=False)
    y = alt.Y(
        "net:Q", title="net swap effect (share of gap)", axis=alt.Axis(format=".0%"), scale=scale
    )
    domain, key = (
        [name for name in heads if name in set(rows["name"])],
        alt.Legend(orient="top", offset=4),
    )
    looks = ((alt.Color, HUES), (alt.StrokeDash, DASHES), (alt.Shape, SHAPES))
    colour, dash, shape = (
        by_value(channel, "name:N", domain, look, key) for channel, look in looks
    )
    tip = tips("name:N | head", "distance:O | distance", "net:Q | net swap effect | .1%")
    base = alt.Chart(rows).encode(x=x, y=y, color=colour)
    drawn = lines_with_dots(base, 60, line={"strokeDash": dash}, shape=shape, tooltip=tip)
    near, far = (
        rows[rows["distance"] == end]["net"].max()
        for end in (rows["distance"].min(), rows["distance"].max())
    )
    description = (
        f"Effect by cue distance for {word}, heads {', '.join(domain)}: the largest is {percent(near)} of the gap at "
        f"the shortest distance and {percent(far)} at the longest."
    )
    return finish(alt.layer(reference_line("y", 0.0), *drawn), description, height=190)


def route_table(
    routes: pd.DataFrame, word_heads: pd.DataFrame, word: str, heads: Sequence[str]
) -> pd.DataFrame:
    """The bars: `name`, `route`, `what` in words, `value low high` in fractions of the gap; none of
    a swap not made."""
    swap = leading(
        word_heads[["word", "layer", "head", *(f"swap{end}" for end in ENDS)]], word, heads
    )
    wide = leading(routes, word, heads).merge(swap, on="name")
    parts = [
        wide[["name"]].assign(
            route=route,
            **{name: wide[f"{route}{end}"] for name, end in zip(BAR, ENDS, strict=True)},
        )
        for route in ROUTES
    ]
    long = pd.concat(parts, ignore_index=True).dropna()
    return long.assign(
        what=long["route"].map(ROUTES), text=[measured(*row) for row in long[list(BAR)].to_numpy()]
    )


def route_bars(
    routes: pd.DataFrame, word_heads: pd.DataFrame, word: str, heads: Sequence[str]
) -> Any:
    """Effect of swapping a whole head, its attention or its values alone, and of its mean instead;
    lines: 95 %."""
    rows = route_table(routes, word_heads, word, heads)
    domain = [name for name in heads if name in set(rows["name"])]
    kinds = [what for what in ROUTES.values() if what in set(rows["what"])]
    y = alt.Y("what:N", title="what is replaced", sort=kinds, axis=bare_axis(labelLimit=150))
    low, high = min(0.0, float(rows["low"].min())), max(0.0, float(rows["high"].max()))
    scale = alt.Scale(domain=[low, high + 0.3 * (high - low or 1.0)], nice=False)
    x = alt.X("value:Q", title=GAP_SHARE, axis=share_axis(), scale=scale)
    colour = by_value(
        alt.Color, "name:N", domain, HUES, alt.Legend(orient="top", offset=4, symbolType="square")
    )
    place = {"y": y, "yOffset": alt.YOffset("name:N", sort=domain, scale=alt.Scale(domain=domain))}
    tip = tips(
        "name:N | head",
        "what:N",
        "value:Q | | .1%",
        "low:Q | 95 % interval from | .1%",
        "high:Q | to | .1%",
    )
    faint = alt.Chart(rows).mark_bar(
        height={"band": 0.8}, opacity=0.6
    )  # or a line within a dark bar is not seen
    bars = faint.encode(x=x, color=colour, tooltip=tip, **place)
    spans = (
        alt.Chart(rows)
        .mark_rule(color=INK, strokeWidth=1.5)
        .encode(x=alt.X("low:Q"), x2="high:Q", **place)
    )
    texts = numbers_at(rows.assign(edge=rows["high"].clip(lower=0)), "edge", dx=4, **place)
    first = rows[rows["name"] == domain[0]]
    told = ", ".join(
        f"{what} {text}" for what, text in zip(first["what"], first["text"], strict=True)
    )
    said = f"How the effect on {word} comes about. {domain[0]}: {told} of the sense gap."
    picture = alt.layer(reference_line("x", 0.0), bars, spans, texts)
    return finish(picture, said, height=max(34, 15 * len(domain) + 10) * len(kinds))


def position_maps(positions: pd.DataFrame, word: str) -> list[tuple[str, Any]]:
    """Layer x position grids of a word, each with its name: the whole stream, what attention and
    what the MLP write.

    `positions` is the study's frame, whole, so that the scale is the same for every word.
    """
    rows, limit = of_word(positions, word), position_limit(positions)
    return [
        (title, _map(rows[rows["component"] == name], title, limit))
        for name, title in PARTS.items()
    ]


def in_order(positions: pd.DataFrame) -> list[str]:
    """The names of the positions of a word, from the first before the word to the word."""
    return [
        str(pos)
        for pos in positions.sort_values("behind", na_position="last")["pos"].drop_duplicates()
    ]


def position_limit(positions: pd.DataFrame) -> float:
    """The largest absolute effect of the frame in per cent, rounded up to ten: both ends of the
    diverging scale."""
    return max(-(-round(100 * float(positions["effect"].abs().max())) // 10) / 10, 0.1)


def _map(rows: pd.DataFrame, title: str, limit: float) -> Any:
    order = in_order(rows)
    layers = sorted(rows["layer"].unique().tolist(), reverse=True)
    x = alt.X("pos:N", title="position", sort=order, axis=token_axis(labelAngle=-45))
    y = alt.Y("layer:O", title="layer", sort=layers)
    base = alt.Chart(rows.astype({"layer": int, "pairs": int}).drop(columns=["behind", "head"]))
    base = base.encode(x=x, y=y, tooltip=POSITION_TIPS)
    cells = base.mark_rect(stroke=LINE, strokeWidth=1)
    cells = cells.encode(color=alt.Color("effect:Q", scale=effect_scale(limit), legend=None))
    best = rows.iloc[rows["effect"].abs().argmax()]
    said = (
        f"Effect of swapping the {title} at one position, {len(layers)} layers by {len(order)} positions: the largest "
        f"is {percent(float(best['effect']))} of the sense gap, in layer {best['layer']} at {best['pos']}."
    )
    return finish(cells, said, height=layer_height(len(layers)))


def circuit(paths: pd.DataFrame, positions: pd.DataFrame, word: str) -> Any:
    """The picture, or None where no edge moves the word by LEAST of the gap; from the study's
    frames.

    An edge is as wide as its total effect is large, and dashed where its test did not pass.
    """
    edges = of_word(paths, word)
    edges = edges[edges["total"].abs() >= LEAST].head(MOST)
    if edges.empty:
        return None
    parts = _parts(edges, in_order(of_word(positions, word)))
    lines = _lines(edges, parts)
    columns, rows = (parts.drop_duplicates(name).sort_values(name) for name in ("middle", "y"))
    angle = 0 if len(columns) <= FEW_COLUMNS else -45
    x = _along(
        alt.X,
        "position",
        parts["x"],
        columns.set_index("middle")["pos"],
        grid=False,
        labelAngle=angle,
    )
    y = _along(alt.Y, "layer", parts["y"], rows.set_index("y")["row"], grid=True)
    look = {
        "strokeWidth": alt.StrokeWidth("width:Q", scale=None),
        "color": by_value(alt.Color, "toward:N", ["donor", "own"], [WITH, AGAINST]),
        "strokeDash": by_value(alt.StrokeDash, "confirmed:N", ["yes", "no"], [[1, 0], [5, 4]]),
        "description": "text:N",
    }
    line = alt.Chart(lines).mark_line(opacity=0.85, interpolate="basis")
    drawn = line.encode(x, y, detail="edge:N", order="turn:Q", tooltip=EDGE_TIPS, **look)
    base = alt.Chart(parts).encode(x, y, tooltip=tips("name:N | part"))
    dots = base.mark_point(fill=LINE, stroke=LINE, size=SIZE, opacity=1)
    dots = dots.encode(
        shape=by_value(alt.Shape, "kind:N", [*KINDS], [*KINDS.values()]), description="name:N"
    )
    named = base.mark_text(**TEXT | {"align": "center", "fontSize": 10}, aria=False).encode(
        text="short:N"
    )
    said = f"Circuit of {word}: {len(edges)} edges between {len(parts)} parts. The widest: {lines['text'].iloc[0]}."
    return finish(alt.layer(drawn, dots, named), said, height=ROW * len(rows))


def _along(channel: type, title: str, values: pd.Series, names: pd.Series, **options: Any) -> Any:
    """Positions along, from half a part before the first to half a part behind the last, named as
    the index says."""
    label = f"{names.tolist()}[indexof({names.index.tolist()}, datum.value)]"
    axis = bare_axis(
        values=names.index.tolist(), labelExpr=label, labelOverlap=False, aria=False, **options
    )
    scale = alt.Scale(domain=[values.min() - 0.5, values.max() + 0.5], nice=False, zero=False)
    return channel(f"{values.name}:Q", title=title, scale=scale, axis=axis)


def _parts(edges: pd.DataFrame, order: list[str]) -> pd.DataFrame:
    """Every part at which an edge begins or ends: its names, and where it stands, in widths of a
    part and in rows."""
    ends = [
        edges[[f"{end}_{name}" for name in PLACE]].set_axis(PLACE, axis=1)
        for end in ("sender", "receiver")
    ]
    parts = pd.concat(ends).drop_duplicates()
    kind = np.select([parts["layer"].isna(), parts["head"].isna()], ["token", "MLP"], "head")
    floor = 2 * parts["layer"].fillna(-1).astype(int) + (kind == "MLP")
    parts = parts.assign(kind=kind, column=parts["pos"].map(order.index), floor=floor)
    parts = parts.sort_values(["floor", "column", "head"]).reset_index(drop=True)
    cell = parts.groupby(["column", "floor"])["kind"]
    beside = cell.transform("size")
    width = beside.groupby(parts["column"]).max() + BETWEEN
    middle = parts["column"].map(width.cumsum() - width / 2)
    layer, head = (parts[name].astype(str) for name in ("layer", "head"))
    kinds = [parts["kind"] == "token", parts["kind"] == "MLP"]
    return parts.assign(
        middle=middle,
        x=middle + cell.cumcount() - (beside - 1) / 2,
        y=parts["floor"].rank(method="dense") - 1,
        row=np.select(kinds, ["token", layer + " MLP"], layer),
        short=np.select(kinds, ["", "MLP"], "H" + head),
        name=[_name(*place) for place in parts[PLACE].itertuples(index=False)],
    )


def _lines(edges: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Points of every edge: on a straight line, or on a bow where its ends stand above each other.
    `(edge turn)`"""
    places, drawn = parts.set_index("name")[["x", "y"]].T.to_dict("list"), list[dict[str, Any]]()
    for number, edge in enumerate(edges.to_dict("records")):
        one, other = (
            _name(*(edge[f"{end}_{part}"] for part in PLACE)) for end in ("sender", "receiver")
        )
        effect = measured(edge["total"], edge["low"], edge["high"])
        test = "not tested" if pd.isna(edge["p"]) else p_value(edge["p"])
        told = {
            "from": one,
            "to": other,
            "channel": edge["channel"],
            "effect": effect,
            "test": test,
            "edge": number,
        }
        told["text"] = f"{one} to {other}, as its {edge['channel']}: {effect}, {test}"
        told["toward"] = "donor" if edge["total"] > 0 else "own"
        told["confirmed"] = "yes" if edge["p"] < LEVEL else "no"
        told["width"] = max(THIN, WIDE * abs(edge["total"]))
        (x, y), (u, v) = places[one], places[other]
        aside = BOW * (v - y - 1) if abs(x - u) < 0.5 else 0.0
        across, up = x + (u - x) * TURNS + aside * np.sin(np.pi * TURNS), y + (v - y) * TURNS
        drawn += [
            told | {"turn": turn, "x": a, "y": b}
            for turn, (a, b) in enumerate(zip(across, up, strict=True))
        ]
    return pd.DataFrame(drawn)


def _name(layer: Any, head: Any, pos: str) -> str:
    return f"{part_name(layer, head)} at {pos}"
