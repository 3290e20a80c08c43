"""The walk as one HTML file: every step with its question, its picture, the formula that was run, and the numbers.

The script of the page fills pictures and tables for the head and token that are followed, at first those of the walk's frames, from the
tensors of `probe.pages.walk.carried`. What keeps the file by itself is in `probe.pages.html`.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd

from probe.charts import depth, grid
from probe.model import attention, replay
from probe.model.parameters import published, told
from probe.pages import excerpts, html
from probe.pages.remarks import agreement
from probe.pages.walk.scene import HEAD_NUMBERS, STREAM_NUMBERS
from probe.stats.numbers import decimal

if TYPE_CHECKING:
    from probe.pages.walk.record import Walk
TABLES = {
    "tokens": "every token, its id, whether it is drawn",
    "embedding": "the word's token and position vectors in both sentences",
    "layer_norm": "every token before and after the block's LayerNorm",
    "vectors": "query, key and value of every token: length, place in the plane, first coordinates",
    "attention": "every pair of drawn tokens: Q·K, score, weight, weight without the mask and without the division",
    "softmax": "the word's row with and without the division: entropy, response, largest weight",
    "values": "the word's ΔE by source token",
    "sums": "from E to E′ at the word",
    "heads": "every head at the word: length of ΔE, what it moves, where it looks",
    "layers": "the word's vector at every depth",
    "lens": "the logit lens at the word",
    "nearest": "the nearest token embeddings at the word",
    "agreement": "every formula of every layer against its hook",
    "parameters": "the parameters of the model by part",
    "certificate": "the hooked model against the from-scratch math, row by row",
}
FORMULAS: tuple[Callable[..., Any], ...] = (
    replay.embed,
    attention.layer_norm,
    attention.project,
    attention.scores,
    attention.mask,
    attention.softmax,
    attention.mix,
    attention.write,
    attention.write_by_source,
    replay.merge_heads,
    replay.unembed,
)


def render(walk: "Walk", manifest: Mapping[str, Any]) -> str:
    """The page of a walk; `manifest` says what made it (everything but the time is shown)."""
    templates = html.environment("walk", "report")
    templates.filters |= {"grouped": lambda number: thin(f"{number:,}"), "thin": thin}
    values = {"tints": excerpts.TINTS, "bar": excerpts.BAR, "leaders": 0}
    d_head = walk.block["sizes"]["d_head"]
    return templates.get_template("walk.html.j2").render(
        walk=walk,
        sizes=walk.block["sizes"],
        root=decimal(sqrt(d_head), 0 if sqrt(d_head).is_integer() else 2),
        numbers={"head": HEAD_NUMBERS, "stream": STREAM_NUMBERS},
        tokens=chips(walk.frames["tokens"]),
        embedding=walk.frames["embedding"].to_dict("records"),
        apart=walk.frames["layers"][["depth", "apart", "beside_cosine"]].to_dict("records"),
        pictures={name: emptied(chart) for name, chart in pictures(walk.frames).items()},
        formulas=formulas(*FORMULAS),
        parameters=walk.parameters,
        told=told(walk.parameters),
        gpt3=published("gpt3"),
        certificate=agreement(walk.frames["certificate"]),
        rows=_certificate_rows(walk.frames["certificate"]),
        downloads=[{"name": name, "what": TABLES[name], "rows": len(frame)} for name, frame in walk.frames.items()],
        manifest=manifest,
        data=html.as_json(walk.block),
        **html.assets(templates, sheet="walk.css.j2", script="walk.js", values=values),
    )


def pictures(frames: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Every chart of the page by name, of the head that is followed at the word."""
    word = int(frames["tokens"].loc[frames["tokens"]["word"], "pos"].max())
    cells = frames["attention"].assign(chosen=frames["attention"]["query_pos"] == word)
    drawn = frames["tokens"].loc[frames["tokens"]["drawn"], "pos"]
    points = frames["vectors"][frames["vectors"]["pos"].isin(drawn)]
    points = points.assign(chosen=points["pos"] == word)
    made = {
        f"{kind}_{queries}": grid.token_grid(cells, kind, queries=queries)
        for kind in grid.KINDS
        for queries in ("rows", "columns")
    }
    return made | {
        "match_plane": grid.vector_plane(points, ["query", "key"]),
        "value_plane": grid.vector_plane(points, ["value"]),
        "lengths": grid.lengths(frames["layer_norm"][frames["layer_norm"]["pos"].isin(drawn)]),
        "softmax": grid.softmax_bars(weights_of(cells[cells["chosen"]])),
        "sources": grid.source_bars(frames["values"][frames["values"]["pos"].isin(drawn)]),
        "stream_lengths": depth.stream_lengths(_long(frames["layers"], depth.LENGTHS, ("norm", "attention", "mlp"))),
        "stream_turns": depth.stream_turns(_long(frames["layers"], depth.TURNS, ("token_cosine", "beside_cosine"))),
    }


def emptied(chart: Any) -> Any:
    """The chart without its rows, which the script of the page makes from the tensors that the page carries anyway."""
    bare = chart.copy(deep=False)
    bare.data = alt.InlineData(values=[], name=chart.data.name)
    return bare


def thin(text: str) -> str:
    """Thousands apart by a narrow space, and a true multiplication sign."""
    return re.sub(r"(?<=\d),(?=\d{3})", "\u202f", text).replace(" x ", " × ")


def weights_of(row: pd.DataFrame) -> pd.DataFrame:
    """One query's weights with and without the division by sqrt(d_head), long."""
    variants = {grid.DIVIDED: "pattern", grid.UNDIVIDED: "steep"}
    parts = [row[["key"]].assign(variant=name, weight=row[column]) for name, column in variants.items()]
    return pd.concat(parts, ignore_index=True)


def _long(layers: pd.DataFrame, names: Mapping[str, str], columns: tuple[str, ...]) -> pd.DataFrame:
    parts = [
        layers[["depth"]].assign(what=what, value=layers[column]) for what, column in zip(names, columns, strict=True)
    ]
    return pd.concat(parts, ignore_index=True).dropna()


def formula(function: Callable[..., Any]) -> tuple[str, str]:
    """A function's name and its lines as they were run, without the docstring."""
    tree = ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    lines = [ast.unparse(line) for line in tree.body[1:]]
    name = f"{function.__module__.removeprefix('probe.')}.{function.__name__}"
    arguments = ", ".join(argument.arg for argument in tree.args.args)
    return f"{name}({arguments})", "\n".join(lines)


def formulas(*functions: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """`formula` of each, by the function's name."""
    return {function.__name__: formula(function) for function in functions}


def chips(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """The tokens as a page shows them: a leading space apart from the text, white space made visible, a hue."""
    rows = []
    for place, row in enumerate(frame.to_dict("records")):
        piece = str(row["piece"])
        text = "".join(excerpts.VISIBLE.get(character, character) for character in piece.lstrip(" "))
        lead = len(piece) - len(piece.lstrip(" "))
        rows.append(row | {"lead": lead, "text": text, "hue": place % 6})
    return rows


def _certificate_rows(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    rows = frame.sort_values("error", ascending=False, kind="stable").to_dict("records")
    for row in rows:
        row["where"] = "whole model" if pd.isna(row["layer"]) else f"layer {row['layer']}"
    return rows
