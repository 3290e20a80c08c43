"""How a sense travels from the cue to the word: the effect of every layer and position, and the
circuit of edges.

A circuit has tokens along and layers up. A part is a head or an MLP at one position, or the token
there. It is drawn at its position and in its layer, an MLP above the heads that it reads, parts of
one cell side by side. Positions and layers without a part are left out.
"""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.charts.palette import (
    AGAINST,
    INK,
    LINE,
    TEXT,
    WITH,
    bare_axis,
    by_value,
    effect_scale,
    finish,
    layer_height,
    of_word,
    part_name,
    tips,
    token_axis,
)
from probe.stats.limits import LEVEL
from probe.stats.numbers import measured, p_value, percent

COMPONENTS = {"resid_pre": "residual stream", "attn_out": "attention", "mlp_out": "MLP"}
POSITION_TIPS = tips(
    "pos:N | position",
    "layer:O | layer",
    "effect:Q | effect | .1%",
    "denoise:Q | B given A's | .1%",
    "noise:Q | A given B's | .1%",
    "pairs:Q | pairs of sentences",
)
MOST_EDGES = 30  # more cannot be followed by eye
LEAST_TOTAL = 0.01  # of the gap; an edge that moves the word less is not drawn
NARROWEST = 1.0  # pixels, of any edge
WIDEST = 12.0  # pixels, of an edge that moves the word by the whole gap
NEGATIVE = 0.005  # of the gap; a cell this far below 0 has a minus
ROW_HEIGHT = 36  # pixels
PART_SIZE = 560  # square pixels
COLUMN_GAP = 0.8  # between positions, in widths of a part
BOW = 0.18  # how far an edge between parts above each other bends aside, in rows
FEW_COLUMNS = 4  # up to so many the names of positions are written level
TURNS = np.linspace(0, 1, 4)  # where the points of an edge lie between its ends
KINDS = {"head": "circle", "MLP": "square", "token": "diamond"}
PART_KEYS = ["layer", "head", "pos"]
EDGE_TIPS = tips(
    "from:N | from",
    "to:N | to",
    "channel:N | as its",
    "effect:N | effect on the word [95 %]",
    "test:N | max-T test",
)


def position_maps(positions: pd.DataFrame, word: str) -> list[tuple[str, alt.LayerChart]]:
    """Layer x position grids of a word, each with its name: the whole stream, what attention and
    what the MLP write.

    `positions` is the study's frame, whole, so that the scale is the same for every word.
    """
    rows = of_word(positions, word)
    limit = position_limit(positions)
    return [
        (title, _position_map(rows[rows["component"] == name], title, limit))
        for name, title in COMPONENTS.items()
    ]


def _in_order(positions: pd.DataFrame) -> list[str]:
    """The names of the positions of a word, from the first before the word to the word."""
    rows = positions.sort_values("behind", na_position="last")
    return [str(pos) for pos in rows["pos"].drop_duplicates()]


def position_limit(positions: pd.DataFrame) -> float:
    """The largest absolute effect of the frame in percent, rounded up to ten: both ends of the
    diverging scale."""
    largest = round(100 * float(positions["effect"].abs().max()))
    return max(-(-largest // 10) / 10, 0.1)


def _position_map(rows: pd.DataFrame, title: str, limit: float) -> alt.LayerChart:
    order = _in_order(rows)
    layers = sorted(rows["layer"].unique().tolist(), reverse=True)
    x = alt.X("pos:N", title="position", sort=order, axis=token_axis(labelAngle=-45))
    y = alt.Y("layer:O", title="layer", sort=layers)
    base = alt.Chart(rows.astype({"layer": int, "pairs": int}).drop(columns=["behind", "head"]))
    base = base.encode(x=x, y=y, tooltip=POSITION_TIPS)
    cells = base.mark_rect(stroke=LINE, strokeWidth=1)
    cells = cells.encode(color=alt.Color("effect:Q", scale=effect_scale(limit), legend=None))
    best = rows.iloc[rows["effect"].abs().argmax()]
    description = (
        f"Effect of swapping the {title} at one position, {len(layers)} layers by {len(order)} "
        f"positions: the largest is {percent(float(best['effect']))} of the sense gap, in layer "
        f"{best['layer']} at {best['pos']}."
    )
    negative = base.transform_filter(alt.datum.effect <= -NEGATIVE).mark_text(
        text="−", fontSize=11, color=INK
    )
    return finish(alt.layer(cells, negative), description, height=layer_height(len(layers)))


def circuit(edges: pd.DataFrame, positions: pd.DataFrame, word: str) -> alt.LayerChart | None:
    """The circuit of a word, or None where no edge moves the word by LEAST_TOTAL of the gap; from
    the study's frames.

    An edge is as wide as its total effect is large, and dashed where its test did not pass.
    """
    rows = of_word(edges, word)
    rows = rows[rows["total"].abs() >= LEAST_TOTAL].head(MOST_EDGES)
    if rows.empty:
        return None
    parts = _parts(rows, _in_order(of_word(positions, word)))
    lines = _lines(rows, parts)
    columns = parts.drop_duplicates("middle").sort_values("middle")
    levels = parts.drop_duplicates("y").sort_values("y")
    x = _named_axis(
        alt.X,
        "position",
        parts["x"],
        columns.set_index("middle")["pos"],
        grid=False,
        labelAngle=0 if len(columns) <= FEW_COLUMNS else -45,
    )
    y = _named_axis(alt.Y, "layer", parts["y"], levels.set_index("y")["row"], grid=True)
    against = lines[(lines["toward"] == "own") & (lines["turn"] == 1)]
    minus = alt.Chart(against).mark_text(text="−", fontSize=16, color=INK, dx=7, aria=False)
    picture = alt.layer(_edge_lines(lines, x, y), *_part_marks(parts, x, y), minus.encode(x, y))
    description = (
        f"Circuit of {word}: {len(rows)} edges between {len(parts)} parts. The widest: "
        f"{lines['text'].iloc[0]}."
    )
    return finish(picture, description, height=ROW_HEIGHT * len(levels))


def _edge_lines(lines: pd.DataFrame, x: alt.X, y: alt.Y) -> alt.Chart:
    line = alt.Chart(lines).mark_line(opacity=0.85, interpolate="basis")
    return line.encode(
        x,
        y,
        detail=alt.Detail("edge:N"),
        order=alt.Order("turn:Q"),
        tooltip=EDGE_TIPS,
        strokeWidth=alt.StrokeWidth("width:Q", scale=None),
        color=by_value(alt.Color, "toward:N", ["donor", "own"], [WITH, AGAINST]),
        strokeDash=by_value(alt.StrokeDash, "confirmed:N", ["yes", "no"], [[1, 0], [5, 4]]),
        description=alt.Description("text:N"),
    )


def _part_marks(parts: pd.DataFrame, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    base = alt.Chart(parts).encode(x, y, tooltip=tips("name:N | part"))
    shape = by_value(alt.Shape, "kind:N", list(KINDS), list(KINDS.values()))
    dots = base.mark_point(fill=LINE, stroke=LINE, size=PART_SIZE, opacity=1)
    dots = dots.encode(shape=shape, description=alt.Description("name:N"))
    labels = base.mark_text(**TEXT | {"align": "center", "fontSize": 11}, aria=False)
    return [dots, labels.encode(text=alt.Text("short:N"))]


def _named_axis(
    channel: type, title: str, values: pd.Series, names: pd.Series, **options: Any
) -> Any:
    """An axis of `values`, from half a part before the first to half a part after the last, with
    `names` where their index says."""
    label = f"{names.tolist()}[indexof({names.index.tolist()}, datum.value)]"
    axis = bare_axis(
        values=names.index.tolist(), labelExpr=label, labelOverlap=False, aria=False, **options
    )
    scale = alt.Scale(domain=[values.min() - 0.5, values.max() + 0.5], nice=False, zero=False)
    return channel(f"{values.name}:Q", title=title, scale=scale, axis=axis)


def _parts(edges: pd.DataFrame, order: list[str]) -> pd.DataFrame:
    """Every part at which an edge begins or ends: its names, and its place, in widths of a
    part and in rows."""
    senders = edges[[f"sender_{name}" for name in PART_KEYS]].set_axis(PART_KEYS, axis=1)
    receivers = edges[[f"receiver_{name}" for name in PART_KEYS]].set_axis(PART_KEYS, axis=1)
    parts = pd.concat([senders, receivers]).drop_duplicates()
    kind = np.select([parts["layer"].isna(), parts["head"].isna()], ["token", "MLP"], "head")
    # Two levels a layer: heads, and above them the MLP that reads them; tokens below all.
    level = 2 * parts["layer"].fillna(-1).astype(int) + (kind == "MLP")
    parts = parts.assign(kind=kind, column=parts["pos"].map(order.index), level=level)
    parts = parts.sort_values(["level", "column", "head"]).reset_index(drop=True)
    cell = parts.groupby(["column", "level"])["kind"]
    beside = cell.transform("size")
    width = beside.groupby(parts["column"]).max() + COLUMN_GAP
    middle = parts["column"].map(width.cumsum() - width / 2)
    layer = parts["layer"].astype(str)
    head = parts["head"].astype(str)
    kinds = [parts["kind"] == "token", parts["kind"] == "MLP"]
    names = [_name(*part) for part in parts[PART_KEYS].itertuples(index=False)]
    return parts.assign(
        middle=middle,
        x=middle + cell.cumcount() - (beside - 1) / 2,
        y=parts["level"].rank(method="dense") - 1,
        row=np.select(kinds, ["token", layer + " MLP"], layer),
        short=np.select(kinds, ["", "MLP"], "H" + head),
        name=names,
    )


def _lines(edges: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Points of every edge, with its text. `(edge turn)`"""
    points_of = parts.set_index("name")[["x", "y"]]
    rows: list[dict[str, Any]] = []
    for number, edge in enumerate(edges.to_dict("records")):
        sender = _name(*(edge[f"sender_{name}"] for name in PART_KEYS))
        receiver = _name(*(edge[f"receiver_{name}"] for name in PART_KEYS))
        effect = measured(edge["total"], edge["low"], edge["high"])
        test = "not tested" if pd.isna(edge["p"]) else p_value(edge["p"], LEVEL)
        line = {
            "from": sender,
            "to": receiver,
            "channel": edge["channel"],
            "effect": effect,
            "test": test,
            "edge": number,
            "text": f"{sender} to {receiver}, as its {edge['channel']}: {effect}, {test}",
            "toward": "donor" if edge["total"] > 0 else "own",
            "confirmed": "yes" if edge["p"] < LEVEL else "no",
            "width": max(NARROWEST, WIDEST * abs(edge["total"])),
        }
        points = _bow(points_of.loc[sender].to_numpy(), points_of.loc[receiver].to_numpy())
        for turn, (x, y) in enumerate(points):
            rows.append(line | {"turn": turn, "x": x, "y": y})
    return pd.DataFrame(rows)


def _bow(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points from start to end, on a straight line; on a bow where the two lie above each
    other, because a straight edge would run through the parts between them. `turn 2`"""
    step = end - start
    points = start + step * TURNS[:, None]
    if abs(step[0]) < 0.5:
        points[:, 0] += BOW * (step[1] - 1) * np.sin(np.pi * TURNS)
    return points


def _name(layer: Any, head: Any, pos: str) -> str:
    return f"{part_name(layer, head)} at {pos}"
