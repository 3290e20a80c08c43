"""The walk as one HTML file: every step with its question, its picture, the formula that was run,
and the numbers; and as a folder.

The script of the page fills pictures and tables for the head and token that are followed, at first
those of the walk's frames, from the arrays of `probe.walkthrough.frames.carried`. A step that the
family or the walk does not have is left out, or says so: by the facts of the table of
architectures, never by a family's name. What keeps the file by itself is in `probe.pages.output`.
"""

import ast
import inspect
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd
from jinja2 import Environment

from probe.charts import grid
from probe.model import attention, forward
from probe.model.parameters import published, told
from probe.pages import checks, output, sentences
from probe.pages.output import WALK
from probe.patching import pair, positions
from probe.stats.axes import Axis
from probe.walkthrough.frames import TABLES
from probe.walkthrough.numbers import named
from probe.walkthrough.scene import HEAD_NUMBERS, STREAM_NUMBERS

if TYPE_CHECKING:
    from probe.walkthrough.walk import Walk
FORMULAS = {
    "attention": attention,
    "forward": forward,
    "positions": positions,
    "pair": pair,
    "axes": Axis,
}
VARIANTS = {"pattern": grid.DIVIDED, "steep": grid.UNDIVIDED}
ACROSS = {"query": "query: the target token that looks", "key": "key: the source token looked at"}


def write_walk(walk: "Walk", out: str | os.PathLike[str], *, command: str = "") -> Path:
    """The page and tables of a walk, as `probe.write` has them."""
    output.check_folder(out)
    made = output.made_by(walk, command)
    return (
        output.write_folder(out, {WALK: render(walk, made)}, frames=walk.frames, made=made) / WALK
    )


def render(walk: "Walk", manifest: Mapping[str, Any]) -> str:
    """The page of a walk; `manifest` says what made it (everything but the time is shown)."""
    templates = environment()
    assets = output.assets(templates, "walk.css.j2", "walk.js")
    return templates.get_template("walk.html.j2").render(values(walk), manifest=manifest, **assets)


def environment(*folders: str | Path) -> Environment:
    """The walk's templates, behind those of the folders given, with the filters that they use."""
    templates = output.environment(*folders, "walk", "report")
    templates.filters |= {
        "thin": thin,
        "shortened": shortened,
        "formula": lambda name: formula(_function(name)),
    }
    return templates


def _function(name: str) -> Callable[..., Any]:
    """The function that a template names: attention.scores."""
    home, _, function = name.partition(".")
    found: Callable[..., Any] = getattr(FORMULAS[home], function)
    return found


def values(walk: "Walk") -> dict[str, Any]:
    """What the walk's template shows, but for what made the page."""
    frames = walk.frames
    embedding = frames["embedding"].to_dict("records") if "embedding" in frames else []
    return {
        "walk": walk,
        "sizes": walk.block["sizes"],
        "numbers": {"head": HEAD_NUMBERS, "stream": STREAM_NUMBERS},
        "texts": {side: chips(part) for side, part in frames["tokens"].groupby("text", sort=False)},
        "embedding": embedding,
        "apart": {row["part"]: row["difference"] for row in embedding},
        "pictures": {name: _emptied(chart) for name, chart in pictures(walk).items()},
        "told": told(walk.parameters),
        "gpt3": published("gpt3"),
        "certificate": checks.certificate(frames["certificate"]),
        "replaced": sorted(
            {note.removeprefix("replaced: ") for note in frames["certificate"]["note"]} - {""}
        ),
        "downloads": checks.downloads(frames, TABLES),
        "data": output.as_json(walk.block),
    }


def pictures(walk: "Walk") -> dict[str, Any]:
    """Every chart of the page by name, of the head and token that are followed first."""
    frames = walk.frames
    drawn = [
        tokens.query("drawn")["pos"] for _, tokens in frames["tokens"].groupby("text", sort=False)
    ]
    looking, looked_at = drawn[-1], drawn[0]
    cells = frames["attention"].assign(chosen=frames["attention"]["query_pos"] == walk.at)
    titles = grid.NAMES if walk.target is None else ACROSS
    made = {
        f"{kind}_{queries}": grid.token_grid(cells, kind, queries=queries, named=titles)
        for kind in grid.KINDS
        if kind in cells
        for queries in ("rows", "columns")
    }
    values = frames["values"][frames["values"]["pos"].isin(looked_at)]
    made["sources"] = grid.source_bars(values)
    if "logit" in values:
        made["logits"] = grid.logit_bars(values, str(walk.word))
    if "layer_norm" in frames:
        norms = frames["layer_norm"][frames["layer_norm"]["pos"].isin(looking)]
        made["lengths"] = grid.lengths(norms, norm=walk.block["norm"])
    if "steep" in cells:
        made["softmax"] = grid.softmax_bars(
            _long(cells[cells["chosen"]], "key", VARIANTS, "variant", "weight")
        )
    return (
        made | _planes(frames["vectors"], walk.at, looking, looked_at) | _by_depth(frames["layers"])
    )


def _planes(
    vectors: pd.DataFrame, at: int, looking: "pd.Series[int]", looked_at: "pd.Series[int]"
) -> dict[str, Any]:
    query = vectors["kind"] == "query"
    points = vectors[
        (query & vectors["pos"].isin(looking)) | (~query & vectors["pos"].isin(looked_at))
    ]
    alone = looking.equals(looked_at)
    points = points.assign(chosen=(points["pos"] == at) & (alone | (points["kind"] == "query")))
    return {
        "match_plane": grid.vector_plane(points, ["query", "key"]),
        "value_plane": grid.vector_plane(points, ["value"]),
    }


def _by_depth(layers: pd.DataFrame) -> dict[str, Any]:
    lengths = dict(zip(("norm", "attention", "mlp"), grid.LENGTHS, strict=True))
    turns = dict(zip(("token_cosine", "beside_cosine"), grid.TURNS, strict=True))
    return {
        "stream_lengths": grid.stream_lengths(
            _long(layers, "depth", lengths, "what", "value").dropna()
        ),
        "stream_turns": grid.stream_turns(_long(layers, "depth", turns, "what", "value").dropna()),
    }


def _long(
    frame: pd.DataFrame, key: str, names: Mapping[str, str], what: str, value: str
) -> pd.DataFrame:
    """The columns of `names` that are there, below each other, each by its name."""
    return frame.rename(columns=names).melt(
        key, [names[column] for column in names if column in frame], what, value
    )


def _emptied(chart: Any) -> Any:
    """The chart without its rows, which the script of the page makes from the tensors that the page
    carries anyway."""
    bare = chart.copy(deep=False)
    bare.data = alt.InlineData(values=[], name=chart.data.name)
    return bare


def thin(text: str) -> str:
    """Thousands apart by a narrow space, and a true multiplication sign."""
    return re.sub(r"(?<=\d),(?=\d{3})", "\u202f", text).replace(" x ", " × ")


def formula(function: Callable[..., Any]) -> tuple[str, str]:
    """A function's name and its lines as they were run, without the docstring."""
    tree = ast.parse(dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    lines = [ast.unparse(line) for line in tree.body[1:]]
    arguments = ", ".join(argument.arg for argument in tree.args.args)
    return f"{named(function)}({arguments})", "\n".join(lines)


def chips(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """The tokens as a page shows them: a leading space apart from the text, white space made
    visible, a hue."""
    rows = enumerate(frame.to_dict("records"))
    return [row | sentences.visible(str(row["piece"])) | {"hue": place % 6} for place, row in rows]


def shortened(text: str) -> str:
    """A long text's beginning and end, cut between words."""
    if len(text) <= 240:
        return text
    return f"{text[:160].rsplit(' ', 1)[0]} … {text[-60:].split(' ', 1)[-1]}"
