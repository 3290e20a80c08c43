"""The generated parts of the chapters, and the pictures of reports/.

A line `<!-- NAME -->` of a page is followed by the result of the function with that name in SITE.
A number in front of `<!--probe.module.NAME-->` is that constant of the code; `NAME%` in percent.
`python reports/docs/hooks.py` writes both into the pages, for readers of the text. Long parts are
on the site only: the text has a short version of them (STORED).
"""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import typer.main
from typer.testing import CliRunner

import probe
import probe.cli
from probe.experiments.table import every_experiment
from probe.model.architectures import FAMILIES, GGUF_KNOWN, NOT_READ, WRAPPERS
from probe.results.columns import COLUMNS, TABLES

READS = {
    "decoder": "Left to right",
    "encoder": "Both ways",
    "encoder-decoder": "A source both ways, a target left to right",
}
REPORTS = Path(__file__).parents[1]
# Pictures, and the pages to open with their tables.
CARRIED = (
    "lessons/*.png",
    "real/*.png",
    "real/*.svg",
    "*.png",
    "pages/*.*",
    "pages/*/*.html",
    "pages/*/*.csv",
)
# The path from a page to reports/, so that the pictures also show in the repository
OUTSIDE = "../../"
PICTURE = re.compile(rf"(!\[[^\]]*\]\({re.escape(OUTSIDE)}([^)]+\.(?:png|svg))\))")
COMMANDS_ONLY = re.compile(r"^```console\n((?:\$ .+\n)+)```$", re.MULTILINE)
CONSTANT = re.compile(r"[\d.,]*<!--(probe[\w.]+)\.([A-Z_]+)(%?)-->")
MARKED = re.compile(r"^<!-- (\w+) -->$(?:\n.*?^<!-- end of \1 -->$)?", re.MULTILINE | re.DOTALL)
_gallery = importlib.util.spec_from_file_location("gallery", REPORTS / "gallery.py")
pictures = importlib.util.module_from_spec(_gallery)
_gallery.loader.exec_module(pictures)


def on_files(files, config):
    """Add the pictures of reports/ to the site."""
    from mkdocs.structure.files import File

    for picture in sorted(path for pattern in CARRIED for path in REPORTS.glob(pattern)):
        files.append(
            File.generated(
                config, picture.relative_to(REPORTS).as_posix(), abs_src_path=str(picture)
            )
        )
    return files


def on_page_markdown(markdown, page, config, files):
    """The page with its parts generated, pictures in their width, and commands without prompts."""
    markdown = MARKED.sub(lambda mark: SITE[mark[1]](), with_constants(markdown))
    markdown = COMMANDS_ONLY.sub(
        lambda block: "```sh\n" + re.sub(r"^\$ ", "", block[1], flags=re.MULTILINE) + "```",
        markdown,
    )
    markdown = PICTURE.sub(
        lambda picture: f"{picture[1]}{{ width={pictures.width(REPORTS / picture[2])} }}", markdown
    )
    return markdown.replace(f"]({OUTSIDE}", "](")


def as_text(markdown: str) -> str:
    """The page as stored: generated parts are between two marks. KeyError for an unknown name."""

    def written(mark: re.Match[str]) -> str:
        name = mark[1]
        text = (STORED.get(name) or SITE[name])()
        return f"<!-- {name} -->\n\n{text.strip()}\n\n<!-- end of {name} -->"

    return MARKED.sub(written, with_constants(markdown))


def with_constants(markdown: str) -> str:
    """The page with the current values of its constants."""

    def written(mark: re.Match[str]) -> str:
        module, name, percent = mark.groups()
        value = getattr(importlib.import_module(module), name)
        shown = f"{100 * value:g}" if percent else f"{value:,}".removeprefix("0")
        return f"{shown}<!--{module}.{name}{percent}-->"

    return CONSTANT.sub(written, markdown)


def intro() -> str:
    """README up to its first section heading."""
    text = (REPORTS.parent / "README.md").read_text(encoding="utf-8")
    beginning = text.partition("\n## ")[0].replace("](reports/", f"]({OUTSIDE}")
    return re.sub(r'\b(src|srcset)="reports/', r'\1="', beginning)


def gallery() -> str:
    """Every analysis: its question, its pictures, their captions, the command that draws them."""
    return "\n\n".join(
        f"## {pictures.pictures_of(one)}\n\n`python analyses/{one.stem}.py`"
        for one in pictures.analyses()
    )


def commands() -> str:
    """Every command with its printed help."""
    parts = []
    for command in ("", *typer.main.get_command(probe.cli.app).commands):
        line = f"probe {command}".strip()
        shown = CliRunner().invoke(
            probe.cli.app, [*command.split(), "--help"], prog_name="probe", env={"COLUMNS": "100"}
        )
        parts.append(f"### {line}\n\n```console\n$ {line} --help\n{shown.output.strip()}\n```\n")
    return "\n".join(parts)


def options() -> str:
    """Every command with the names of its arguments and options."""
    lines = ["| command | options |", "|---|---|"]
    for name, command in typer.main.get_command(probe.cli.app).commands.items():
        options = [one.opts[0] for one in command.params if one.opts[0].startswith("--")]
        arguments = [one.name.upper() for one in command.params if one.opts[0][:1] != "-"]
        lines.append(f"| `{' '.join(['probe', name, *arguments])}` | `{' '.join(options)}` |")
    return "\n".join(lines)


def tables() -> str:
    """Every table with its contents; tables of the same contents in one row."""
    by_contents: dict[str, list[str]] = {}
    for name, holds in TABLES.items():
        by_contents.setdefault(holds, []).append(f"`{name}`")
    rows = (f"| {', '.join(names)} | {holds} |" for holds, names in by_contents.items())
    return "\n".join(["| table | contents |", "|---|---|", *rows])


def columns() -> str:
    """Every column with its meaning and unit, table by table; first the columns of many tables."""
    by_table = {"In several tables": [name for name in COLUMNS if "." not in name]}
    for experiment in every_experiment().values():
        for name, table in experiment.TABLES.items():
            by_table[name] = [f"{name}.{column}" for column in table.columns]
    shown = {name for names in by_table.values() for name in names}
    for name in COLUMNS:
        if name not in shown:
            by_table.setdefault(name.partition(".")[0], []).append(name)
    return "\n\n".join(f"### {table}\n\n{meanings(names)}" for table, names in by_table.items())


def meanings(names: Iterable[str]) -> str:
    """A line for each column that has a description under its name."""
    described = [(name, COLUMNS[name]) for name in names if name in COLUMNS]
    return "\n".join(
        f"* `{name.rpartition('.')[2]}`: {column['meaning']}"
        + (f" ({column['unit']})" if column.get("unit") else "")
        for name, column in described
    )


def names() -> str:
    """Every public name with the first sentence of its docstring; modules name by name."""
    lines = []
    for name in probe.__all__:
        value = getattr(probe, name)
        inside = value.__all__ if isinstance(value, ModuleType) else [""]
        for own in inside:
            described = getattr(value, own) if own else value
            first = " ".join((inspect.getdoc(described) or "").partition("\n\n")[0].split())
            lines.append(f"* `probe.{name}{own and '.'}{own}`" + f": {first}" * callable(described))
    return "\n".join(lines)


def families() -> str:
    """Every family by the way it reads, with the `model_type` of its config."""
    lines = []
    for kind, reads in READS.items():
        rows = ((key, family.name) for key, family in FAMILIES.items() if family.kind == kind)
        lines.append((reads, [f"{name} (`{key}`)" for key, name in rows]))
    every = FAMILIES.values()
    mixed = [one.name for one in every if any(attention.mixer for attention in one.attentions)]
    lines += [
        ("The text part of models for images or sound", [f"`{kind}`" for kind in WRAPPERS]),
        ("With some layers without attention", mixed),
        ("With routed experts", [one.name for one in every if one.routed]),
        ("From GGUF files", [str(GGUF_KNOWN)]),
    ]
    refused = dict(NOT_READ.values())
    lines.append(("Refused", [f"{name} ({missing})" for name, missing in refused.items()]))
    return "\n\n".join(f"**{head}**: {', '.join(found)}." for head, found in lines)


SITE = {
    "intro": intro,
    "gallery": gallery,
    "commands": commands,
    "tables": tables,
    "columns": columns,
    "names": names,
    "families": families,
}
STORED = {
    "intro": lambda: f"What it is, and its first pictures: [README]({OUTSIDE}../README.md).",
    "gallery": lambda: f"The pictures, with tables and scripts: [reports]({OUTSIDE}README.md).",
    "commands": options,
    "columns": lambda: "The site has the list (`make docs`); every result has `columns.csv`.",
    "names": lambda: "The site has every name with its first sentences (`make docs`).",
}


if __name__ == "__main__":
    for page in sorted((REPORTS / "docs" / "pages").glob("*.md")):
        page.write_text(as_text(page.read_text(encoding="utf-8")), encoding="utf-8")
