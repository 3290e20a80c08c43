"""The way of a sense from the cue to the word: effects of one part at one position, and the circuit of leading edges.

The circuit is drawn with tokens along and layers up. A part is a head or an MLP at one position, or the token there; it
stands at its position and in its layer, an MLP above the heads that it reads, parts of one cell side by side. Positions
and layers without a part are left out.
"""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from probe.charts.channels import TEXT, bare_axis, by_value, of_word, part_name, tips, token_axis
from probe.charts.palette import AGAINST, LINE, WITH, effect_scale, finish, layer_height
from probe.stats.numbers import measured, p_value, percent
from probe.stats.verdicts import LEVEL

PARTS = {"resid_pre": "residual stream", "attn_out": "attention", "mlp_out": "MLP"}


def position_maps(positions: pd.DataFrame, word: str) -> list[tuple[str, Any]]:
    """Layer x position grids of a word, each with its name: the whole stream, what attention and what the MLP write.

    `positions` is the study's frame, whole, so that the scale is the same for every word.
    """
    rows, limit = of_word(positions, word), position_limit(positions)
    return [(title, _map(rows[rows["component"] == name], title, limit)) for name, title in PARTS.items()]


def in_order(positions: pd.DataFrame) -> list[str]:
    """The names of the positions of a word, from the first before the word to the word."""
    return [str(pos) for pos in positions.sort_values("behind", na_position="last")["pos"].drop_duplicates()]


def position_limit(positions: pd.DataFrame) -> float:
    """The largest absolute effect of the frame in per cent, rounded up to ten: both ends of the diverging scale."""
    return max(-(-round(100 * float(positions["effect"].abs().max())) // 10) / 10, 0.1)


def _map(rows: pd.DataFrame, title: str, limit: float) -> Any:
    order = in_order(rows)
    layers = sorted(rows["layer"].unique().tolist(), reverse=True)
    x = alt.X("pos:N", title="position", sort=order, axis=token_axis(labelAngle=-45))
    y = alt.Y("layer:O", title="layer", sort=layers)
    base = alt.Chart(rows.astype({"layer": int, "pairs": int}).drop(columns=["behind", "head"]))
    base = base.encode(x=x, y=y, tooltip=POSITION_TIPS)
    colour = alt.Color("effect:Q", scale=effect_scale(limit), legend=None)
    cells = base.mark_rect(stroke=LINE, strokeWidth=1).encode(color=colour)
    [best] = rows.loc[[rows["effect"].abs().idxmax()]].to_dict("records")
    said = (
        f"Effect of swapping the {title} at one position, {len(layers)} layers by {len(order)} positions: the largest "
        f"is {percent(float(best['effect']))} of the sense gap, in layer {best['layer']} at {best['pos']}."
    )
    return finish(cells, said, height=layer_height(len(layers)))


POSITION_TIPS = tips(
    "pos:N | position",
    "layer:O | layer",
    "effect:Q | effect | .1%",
    "denoise:Q | B given A's | .1%",
    "noise:Q | A given B's | .1%",
    "pairs:Q | pairs of sentences",
)


MOST, LEAST = 30, 0.01  # edges at most, and the least total of each, of the gap
THIN, WIDE = 1.0, 12.0  # pixels: of the narrowest edge, and of one that moves the word by the whole gap
ROW, SIZE, BETWEEN, BOW = 36, 560, 0.8, 0.18  # pixels, square pixels; in widths of a part between columns; in rows
FEW_COLUMNS = 4
TURNS = np.linspace(0, 1, 4)
KINDS = {"head": "circle", "MLP": "square", "token": "diamond"}
PLACE = ["layer", "head", "pos"]


def circuit(paths: pd.DataFrame, positions: pd.DataFrame, word: str) -> Any:
    """The picture, or None where no edge moves the word by LEAST of the gap; from the study's frames.

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
    x = alt.X(
        "x:Q", title="position", scale=_scale(parts["x"]), axis=_names(columns, "middle", "pos", labelAngle=angle)
    )
    y = alt.Y("y:Q", title="layer", scale=_scale(parts["y"]), axis=_names(rows, "y", "row", grid=True))
    look = {
        "strokeWidth": alt.StrokeWidth("width:Q", scale=None),
        "color": by_value(alt.Color, "toward:N", ["donor", "own"], [WITH, AGAINST]),
        "strokeDash": by_value(alt.StrokeDash, "confirmed:N", ["yes", "no"], [[1, 0], [5, 4]]),
        "description": "said:N",
    }
    line = alt.Chart(lines).mark_line(opacity=0.85, interpolate="basis")
    drawn = line.encode(x, y, detail="edge:N", order="turn:Q", tooltip=EDGE_TIPS, **look)
    base = alt.Chart(parts).encode(x, y, tooltip=tips("name:N | part"))
    dots = base.mark_point(fill=LINE, stroke=LINE, size=SIZE, opacity=1)
    dots = dots.encode(shape=by_value(alt.Shape, "kind:N", [*KINDS], [*KINDS.values()]), description="name:N")
    named = base.mark_text(**TEXT | {"align": "center", "fontSize": 10}, aria=False).encode(text="short:N")
    said = f"Circuit of {word}: {len(edges)} edges between {len(parts)} parts. The widest: {lines['said'].iloc[0]}."
    return finish(alt.layer(drawn, dots, named), said, height=ROW * len(rows))


EDGE_TIPS = tips(
    "from:N | from", "to:N | to", "channel:N | as its", "effect:N | effect on the word [95 %]", "test:N | max-T test"
)


def _parts(edges: pd.DataFrame, order: list[str]) -> pd.DataFrame:
    """Every part at which an edge begins or ends: its names, and where it stands, in widths of a part and in rows."""
    ends = [edges[[f"{end}_{name}" for name in PLACE]].set_axis(PLACE, axis=1) for end in ("sender", "receiver")]
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
    return parts.assign(
        middle=middle,
        x=middle + cell.cumcount() - (beside - 1) / 2,
        y=parts["floor"].rank(method="dense") - 1,
        row=np.select([parts["kind"] == "token", parts["kind"] == "MLP"], ["token", layer + " MLP"], layer),
        short=np.select([parts["kind"] == "token", parts["kind"] == "MLP"], ["", "MLP"], "H" + head),
        name=[_name(*place) for place in parts[PLACE].itertuples(index=False)],
    )


def _lines(edges: pd.DataFrame, parts: pd.DataFrame) -> pd.DataFrame:
    """Points of every edge: on a straight line, or on a bow where its ends stand above each other. `(edge turn)`"""
    places, drawn = parts.set_index("name")[["x", "y"]].T.to_dict("list"), list[dict[str, Any]]()
    for number, edge in enumerate(edges.to_dict("records")):
        one, other = (_name(*(edge[f"{end}_{part}"] for part in PLACE)) for end in ("sender", "receiver"))
        effect = measured(edge["total"], edge["low"], edge["high"])
        test = "not tested" if pd.isna(edge["p"]) else p_value(edge["p"])
        told = {"from": one, "to": other, "channel": edge["channel"], "effect": effect, "test": test}
        told |= {"edge": number, "said": f"{one} to {other}, as its {edge['channel']}: {effect}, {test}"}
        told["toward"] = "donor" if edge["total"] > 0 else "own"
        told["confirmed"] = "yes" if edge["p"] < LEVEL else "no"
        told |= {"width": max(THIN, WIDE * abs(edge["total"]))}
        (x, y), (u, v) = places[one], places[other]
        aside = BOW * (v - y - 1) if abs(x - u) < 0.5 else 0.0
        across, up = x + (u - x) * TURNS + aside * np.sin(np.pi * TURNS), y + (v - y) * TURNS
        drawn += [told | {"turn": turn, "x": a, "y": b} for turn, (a, b) in enumerate(zip(across, up, strict=True))]
    return pd.DataFrame(drawn)


def _name(layer: Any, head: Any, pos: str) -> str:
    return f"{part_name(layer, head)} at {pos}"


def _scale(values: pd.Series) -> alt.Scale:
    """From half a part before the first to half a part behind the last."""
    return alt.Scale(domain=[values.min() - 0.5, values.max() + 0.5], nice=False, zero=False)


def _names(rows: pd.DataFrame, value: str, name: str, *, grid: bool = False, **options: Any) -> alt.Axis:
    """An axis whose values have names."""
    values = rows[value].tolist()
    label = f"{rows[name].tolist()}[indexof({values}, datum.value)]"
    return bare_axis(values=values, labelExpr=label, grid=grid, labelOverlap=False, aria=False, **options)
