"""The page of a walk: every step with its question, its picture, the formula that was run, and the
numbers.

The page opens on the head and token of the walk's frames. Its script fills pictures and tables for
any other head and token, from the arrays of `probe.walkthrough.frames.page_block`. Steps that the
model does not have are omitted or explained, by the facts of the table of architectures, never by
the name of a family. `probe.pages.html` makes the file self-contained.
"""

import ast
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd
from jinja2 import Environment

from probe.charts import grid
from probe.model import attention, blocks, forward, variants
from probe.model.parameters import published
from probe.pages import html, sentences, walk_sentences
from probe.pages.folder import downloads
from probe.pages.html import worst_first
from probe.pages.parameters import parameter_sentences
from probe.patching import positions
from probe.stats.axes import Axis
from probe.walkthrough.frames import TABLES
from probe.walkthrough.numbers import function_name
from probe.walkthrough.scene import HEAD_NUMBERS, STREAM_NUMBERS

if TYPE_CHECKING:
    from probe.walkthrough.walk import Walk

# Modules and classes whose functions the page can show as formulas.
FORMULAS = {
    "attention": attention,
    "blocks": blocks,
    "forward": forward,
    "positions": positions,
    "variants": variants,
    "axes": Axis,
}
SHADES = 15  # of a cell, as in the script of the page
N_HUES = 6  # of tokens; each is a class of the style sheet
# Characters of a text at the top of the page. A longer text is cut to its beginning and its end.
MAX_TEXT = 240
BEGINNING = 160
END = 60
ACROSS = {"query": "query: target token", "key": "key: source token"}
# The pictures of attention, by the column that they show first. A script steps through the first.
STEPPED = {"stage": "pattern", "open": "open"}


@html.without_validation
def render(walk: "Walk", manifest: Mapping[str, Any]) -> str:
    """The page of a walk.

    manifest: what made the page; everything but the time is shown
    """
    templates = environment()
    assets = html.assets(templates, "walk.css.j2", "walk.js")
    return templates.get_template("walk.html.j2").render(values(walk), manifest=manifest, **assets)


def notebook_html(walk: "Walk") -> str:
    """The HTML of a walk in a notebook, without scripts: the answer, the facts, the tables."""
    return (
        environment()
        .get_template("notebook.html.j2")
        .render(
            walk=walk,
            answer=walk_sentences.answer(walk.findings),
            known=walk_sentences.facts(walk.findings),
            n_rows={name: len(frame) for name, frame in walk.frames.items()},
        )
    )


def environment(*folders: str | Path) -> Environment:
    """The walk's templates and their filters. Templates in `folders` are found first."""
    templates = html.environment(*folders, "walk", "report")
    templates.filters |= {
        "thin": thin,
        "shortened": shortened,
        "formula": _named_formula,
        "shade": shade,
    }
    return templates


def _named_formula(name: str) -> tuple[str, str]:
    """The formula of a function that a template names, such as attention.scores."""
    module, _, function = name.partition(".")
    return formula(getattr(FORMULAS[module], function))


def values(walk: "Walk") -> dict[str, Any]:
    """The values of the walk's template, except for the manifest and the assets."""
    frames = walk.frames
    embedding = frames["embedding"].to_dict("records") if "embedding" in frames else []
    notes = {note.removeprefix("replaced: ") for note in frames["certificate"]["note"]}
    answer = walk_sentences.answer(walk.findings)
    return {
        "walk": walk,
        "answer": answer,
        "known": walk_sentences.facts(walk.findings),
        "caution": walk_sentences.caution(walk.findings),
        "guessed": walk_sentences.guessed(walk.findings),
        "places": walk_sentences.depths_read(walk.findings),
        "travels": walk_sentences.travels(walk),
        "truncation_change": walk.truncation_change,
        "sizes": walk.block["sizes"],
        "numbers": {"head": HEAD_NUMBERS, "stream": STREAM_NUMBERS},
        "texts": {side: chips(part) for side, part in frames["tokens"].groupby("text", sort=False)},
        "embedding": embedding,
        "strongest": _largest_coordinate(embedding),
        "embedding_differences": {row["part"]: row["difference"] for row in embedding},
        "pictures": {name: _without_rows(chart) for name, chart in pictures(walk).items()},
        "parameter_sentences": parameter_sentences(walk.parameters),
        "gpt3": published("gpt3"),
        "certificate": worst_first(frames["certificate"]),
        "replaced": sorted(notes - {""}),
        "downloads": downloads(frames, TABLES),
        "data": html.as_json(walk.block | {"answer": answer}),
    }


def _largest_coordinate(embedding: Sequence[Mapping[Any, Any]]) -> float:
    """The largest absolute coordinate that is shown of the vectors that enter the first block."""
    names = [f"e{number}" for number in range(STREAM_NUMBERS)]
    return max((abs(row[name]) for row in embedding for name in names), default=1.0) or 1.0


def shade(value: float, limit: float) -> str:
    """The classes of a cell's colour: its strength is the square root of the value's share of the
    limit, its hue the sign.
    """
    strength = round(SHADES * math.sqrt(min(abs(value) / limit, 1.0)))
    return f"t{strength}" + (" against" if value < 0 else "")


def pictures(walk: "Walk") -> dict[str, Any]:
    """Every chart of the page by name, for the head and token that are followed first."""
    frames = walk.frames
    pictures = [
        tokens.query("drawn")["pos"] for _, tokens in frames["tokens"].groupby("text", sort=False)
    ]
    # With one text, queries and keys are the same tokens; with two, the source comes first.
    queries = pictures[-1]
    keys = pictures[0]
    cells = frames["attention"].assign(chosen=frames["attention"]["query_pos"] == walk.at)
    charts = _token_grids(cells, grid.NAMES if walk.target is None else ACROSS)
    values = frames["values"][frames["values"]["pos"].isin(keys)]
    charts["sources"] = grid.source_bars(values)
    if "logit" in values:
        charts["logits"] = grid.logit_bars(values, str(walk.word))
    if "layer_norm" in frames:
        norms = frames["layer_norm"][frames["layer_norm"]["pos"].isin(queries)]
        charts["lengths"] = grid.lengths(norms, norm=walk.block["norm"])
    if "steep" in cells:
        divided = grid.DIVIDED if walk.block["plain_root"] else "divided"
        variants = {"pattern": divided, "steep": grid.UNDIVIDED}
        rows = _long(cells[cells["chosen"]], "key", variants, "variant", "weight")
        charts["softmax"] = grid.softmax_bars(rows)
    charts |= _planes(frames["vectors"], walk.at, queries, keys)
    return charts | _by_depth(frames["layers"])


def _token_grids(cells: pd.DataFrame, titles: Mapping[str, str]) -> dict[str, Any]:
    """The grids of tokens, each with queries as rows and as columns."""
    charts = {}
    for name, kind in STEPPED.items():
        if kind in cells:
            for queries in ("rows", "columns"):
                chart = grid.token_grid(cells, kind, queries=queries, axis_titles=titles)
                charts[f"{name}_{queries}"] = chart
    return charts


def _planes(
    vectors: pd.DataFrame, at: int, queries: "pd.Series[int]", keys: "pd.Series[int]"
) -> dict[str, Any]:
    """The drawn tokens in the plane of queries and keys, and in the plane of values."""
    is_query = vectors["kind"] == "query"
    is_drawn = vectors["pos"].isin(queries).where(is_query, vectors["pos"].isin(keys))
    points = vectors[is_drawn]
    one_text = queries.equals(keys)
    # With two texts, the key at position `at` is not the token that is followed.
    is_followed = (points["pos"] == at) & (one_text | (points["kind"] == "query"))
    points = points.assign(chosen=is_followed)
    return {
        "match_plane": grid.vector_plane(points, ["query", "key"]),
        "value_plane": grid.vector_plane(points, ["value"]),
    }


def _by_depth(layers: pd.DataFrame) -> dict[str, Any]:
    """The length of the word's vector and its cosines, by depth; with a second sentence, how far
    apart the two vectors are.
    """
    lengths = dict(zip(("norm", "attention", "mlp"), grid.LENGTHS, strict=True))
    turns = dict(zip(("token_cosine", "beside_cosine"), grid.TURNS, strict=True))
    length_rows = _long(layers, "depth", lengths, "what", "value").dropna()
    turn_rows = _long(layers, "depth", turns, "what", "value").dropna()
    charts = {}
    if "apart" in layers:
        charts["apart"] = grid.apart(layers[["depth", "apart"]])
    return charts | {
        "stream_lengths": grid.stream_lengths(length_rows),
        "stream_turns": grid.stream_turns(turn_rows),
    }


def _long(
    frame: pd.DataFrame, key: str, titles: Mapping[str, str], subject: str, value: str
) -> pd.DataFrame:
    """The columns of `titles` in long form, named by their titles, without missing columns."""
    present = [title for column, title in titles.items() if column in frame]
    return frame.rename(columns=titles).melt(key, present, subject, value)


def _without_rows(chart: Any) -> Any:
    """The chart without its rows. The script of the page makes them from the arrays of the page."""
    bare = chart.copy(deep=False)
    bare.data = alt.InlineData(values=[], name=chart.data.name)
    return bare


def thin(text: str) -> str:
    """The text with narrow spaces between thousands, and with multiplication signs."""
    return re.sub(r"(?<=\d),(?=\d{3})", "\u202f", text).replace(" x ", " × ")


def formula(function: Callable[..., Any]) -> tuple[str, str]:
    """A function's name and arguments, and its code without the docstring."""
    tree = ast.parse(dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    lines = [ast.unparse(line) for line in tree.body[1:]]
    arguments = ", ".join(argument.arg for argument in tree.args.args)
    return f"{function_name(function)}({arguments})", "\n".join(lines)


def chips(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """The tokens for a page, each with its leading space apart, visible white space and a hue."""
    return [
        row | sentences.visible(str(row["piece"])) | {"hue": index % N_HUES}
        for index, row in enumerate(frame.to_dict("records"))
    ]


def shortened(text: str) -> str:
    """A long text's beginning and end, cut between words."""
    if len(text) <= MAX_TEXT:
        return text
    beginning = text[:BEGINNING].rsplit(" ", 1)[0]
    end = text[-END:].split(" ", 1)[-1]
    return f"{beginning} … {end}"
