"""The page of a walk: every step with its question, its picture, the formula that was run, and the
numbers; its folder, and its view in a notebook.

The page opens on the head and token of the walk's frames. Its script fills pictures and tables for
any other head and token, from the arrays of `probe.walks.block`. Steps that the model does not have
are omitted or explained, by the facts of the table of architectures, never by the name of a family.
`probe.pages.html` makes the file self-contained.
"""

import ast
import inspect
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from probe.display import html_of
from probe.model import attention, blocks, forward, variants
from probe.model.parameters import published
from probe.pages import html
from probe.pages.folder import WALK, check_folder, downloads, made_by, write_folder
from probe.pages.html import worst_first
from probe.pages.parameters import parameter_sentences
from probe.pages.sentences import visible
from probe.pages.write import write
from probe.patching import positions
from probe.stats.axes import Axis
from probe.walks.charts import pictures
from probe.walks.frames import TABLES
from probe.walks.numbers import function_name
from probe.walks.record import walk_bytes
from probe.walks.scene import HEAD_NUMBERS, STREAM_NUMBERS
from probe.walks.walk import Walk

TEMPLATES = Path(__file__).parent / "templates"
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


@write.register
def write_walk(walk: Walk, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """The page and tables of a walk, as `probe.write` has them."""
    check_folder(out, WALK, tables=TABLES)
    manifest = made_by(walk, command) | {"frames": list(walk.frames)}
    files = {WALK: render(walk, manifest), "walk.record": walk_bytes(walk)}
    return write_folder(out, files, frames=walk.frames, manifest=manifest) / WALK


@html.without_validation
def render(walk: Walk, manifest: Mapping[str, Any]) -> str:
    """The page of a walk.

    manifest: what made the page; everything but the time is shown
    """
    templates = environment()
    assets = html.assets(templates, "walk.css.j2", "walk.js")
    return templates.get_template("walk.html.j2").render(values(walk), manifest=manifest, **assets)


@html_of.register
def notebook_html(walk: Walk) -> str:
    """The HTML of a walk in a notebook, without scripts: the answer, the facts, the tables."""
    n_rows = {name: len(frame) for name, frame in walk.frames.items()}
    template = environment().get_template("notebook.html.j2")
    return template.render(walk=walk, **walk.statements, n_rows=n_rows)


def environment() -> Environment:
    """The templates of the walk and the explorer, and their filters."""
    templates = html.environment(TEMPLATES, "report")
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


def values(walk: Walk) -> dict[str, Any]:
    """The values of the walk's template, except for the manifest and the assets."""
    frames = walk.frames
    embedding = frames["embedding"].to_dict("records") if "embedding" in frames else []
    notes = {note.removeprefix("replaced: ") for note in frames["certificate"]["note"]}
    return walk.statements | {
        "walk": walk,
        "truncation_change": walk.truncation_change,
        "sizes": walk.block["sizes"],
        "numbers": {"head": HEAD_NUMBERS, "stream": STREAM_NUMBERS},
        "texts": {side: chips(part) for side, part in frames["tokens"].groupby("text", sort=False)},
        "embedding": embedding,
        "strongest": _largest_coordinate(embedding),
        "embedding_differences": {row["part"]: row["difference"] for row in embedding},
        "pictures": pictures(walk),
        "parameter_sentences": parameter_sentences(walk.parameters),
        "gpt3": published("gpt3"),
        "certificate": worst_first(frames["certificate"]),
        "replaced": sorted(notes - {""}),
        "downloads": downloads(frames, TABLES),
        "data": html.as_json(walk.block | {"answer": walk.statements["answer"]}),
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
        row | visible(str(row["piece"])) | {"hue": index % N_HUES}
        for index, row in enumerate(frame.to_dict("records"))
    ]


def choices(tokens: pd.DataFrame) -> Markup:
    """The tokens of a text to choose from, as HTML.

    tokens: the table of this name
    """
    parts: Any = _templates().get_template("parts.html.j2").module
    return Markup(parts.choices(chips(tokens)))


@cache
def _templates() -> Environment:
    return environment()


def shortened(text: str) -> str:
    """A long text's beginning and end, cut between words."""
    if len(text) <= MAX_TEXT:
        return text
    beginning = text[:BEGINNING].rsplit(" ", 1)[0]
    end = text[-END:].split(" ", 1)[-1]
    return f"{beginning} … {end}"
