"""The generated parts of the chapters, and the pictures of reports/.

A line `<!-- NAME -->` of a page is followed by the result of the function with that name: the help
of the commands, the meaning of every column, the docstring of every public name, the beginning of
README, every picture of the analyses.
`python reports/docs/hooks.py` writes these parts into the pages, for readers of the text; the site
calls the functions.
"""

import ast
import importlib
import importlib.util
import inspect
import pydoc
import re
import tomllib
from pathlib import Path
from types import ModuleType

import typer.main
from typer.testing import CliRunner

import probe.cli
from probe.model.architectures import FAMILIES, GGUF_FAMILIES, GGUF_KNOWN, NOT_READ, WRAPPERS
from probe.model.architectures.family import Family
from probe.results.columns import COLUMNS, TABLES

READS = {
    "decoder": "left to right",
    "encoder": "both ways",
    "encoder-decoder": "a source, and a target left to right",
}
REPORTS = Path(__file__).parents[1]
PICTURES = ("lessons/*.png", "real/*.png", "real/*.svg", "*.png")
# The path from a page to reports/, so that the pictures also show in the repository
OUTSIDE = "../../"
PICTURE = re.compile(rf"(!\[[^\]]*\]\({re.escape(OUTSIDE)}([^)]+\.(?:png|svg))\))")
_gallery = importlib.util.spec_from_file_location("gallery", REPORTS / "gallery.py")
pictures = importlib.util.module_from_spec(_gallery)
_gallery.loader.exec_module(pictures)


def on_files(files, config):
    """Add the pictures of reports/ to the site."""
    from mkdocs.structure.files import File

    for picture in sorted(path for pattern in PICTURES for path in REPORTS.glob(pattern)):
        files.append(
            File.generated(
                config, picture.relative_to(REPORTS).as_posix(), abs_src_path=str(picture)
            )
        )
    return files


def on_page_markdown(markdown, page, config, files):
    return sized(pasted(filled(markdown))).replace(f"]({OUTSIDE}", "](")


def sized(markdown: str) -> str:
    """The page with the width of each picture. A PNG is shown at half its pixels."""
    return PICTURE.sub(
        lambda picture: f"{picture[1]}{{ width={pictures.width(REPORTS / picture[2])} }}", markdown
    )


def pasted(markdown: str) -> str:
    """The page with commands as they are typed: blocks of commands alone lose their prompts."""
    only_commands = re.compile(r"^```console\n((?:\$ .+\n)+)```$", re.MULTILINE)
    return only_commands.sub(
        lambda block: "```sh\n" + re.sub(r"^\$ ", "", block[1], flags=re.MULTILINE) + "```",
        markdown,
    )


# A constant of the code in a sentence: <!-- probe.module.NAME -->8<!-- . -->; NAME% in percent.
CONSTANT = re.compile(r"<!-- (probe[\w.]+)\.([A-Z_]+)(%?) -->[^<]*<!-- \. -->")
MARKED = re.compile(r"^<!-- (\w+) -->$(?:\n.*?^<!-- end of \1 -->$)?", re.MULTILINE | re.DOTALL)


def filled(markdown: str) -> str:
    """The page with its marked parts generated. KeyError for an unknown name."""
    return MARKED.sub(lambda mark: WRITTEN[mark[1]](), with_constants(markdown))


def with_constants(markdown: str) -> str:
    """The page with the current values of its constants."""

    def written(mark: re.Match[str]) -> str:
        module, name, percent = mark.groups()
        value = getattr(importlib.import_module(module), name)
        shown = f"{100 * value:g}" if percent else f"{value:,}".removeprefix("0")
        return f"<!-- {module}.{name}{percent} -->{shown}<!-- . -->"

    return CONSTANT.sub(written, markdown)


def as_text(markdown: str) -> str:
    """The page as stored, for readers of the text: generated parts are between two marks."""

    def written(mark: re.Match[str]) -> str:
        name = mark[1]
        text = (AS_TEXT.get(name) or WRITTEN[name])()
        return f"<!-- {name} -->\n\n{text.strip()}\n\n<!-- end of {name} -->"

    return MARKED.sub(written, with_constants(markdown))


def commands() -> str:
    """Every command with its printed help."""
    parts = []
    for command in ("", *typer.main.get_command(probe.cli.app).commands):
        line = f"probe {command}".strip()
        shown = CliRunner().invoke(
            probe.cli.app, [*command.split(), "--help"], prog_name="probe", env={"COLUMNS": "100"}
        )
        parts.append(f"## {line}\n\n```console\n$ {line} --help\n{shown.output.strip()}\n```\n")
    return "\n".join(parts)


def tables() -> str:
    """Every table of a report, with its contents."""
    return "\n".join(
        ["| table | contents |", "|---|---|", *(f"| `{k}` | {v} |" for k, v in TABLES.items())]
    )


def columns() -> str:
    """Every column by name: its meaning and its unit; `table.column` if one table differs."""
    rows = sorted(COLUMNS, key=lambda name: (name.rpartition(".")[2], name))
    cells = (
        f"| `{name}`{{ #{name} }} | {COLUMNS[name]['meaning']} | {COLUMNS[name].get('unit', '')} |"
        for name in rows
    )
    return "\n".join(["| column | meaning | unit |", "|---|---|---|", *cells])


def names() -> str:
    """Every public name in pipeline order, with its docstring; a module's names one by one."""
    stub = ast.parse((REPORTS.parent / "probe" / "__init__.pyi").read_text(encoding="utf-8"))
    listed = [
        (node.module or "", alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    return "\n\n".join(entry for module, name in listed for entry in _entries(module, name))


def _entries(module: str, name: str) -> list[str]:
    home, value = ".".join(filter(None, ("probe", module, name))), getattr(probe, name)
    inside = [f".{own}" for own in value.__all__] if isinstance(value, ModuleType) else [""]
    return [f"::: {home}{own}\n    options:\n      heading: probe.{name}{own}" for own in inside]


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


def gguf() -> str:
    """The names of the families that are read from GGUF files."""
    return f"{GGUF_KNOWN}."


def rows() -> str:
    """Every family by the `model_type` of its config, and its properties."""
    lines = ["| family | `model_type` | reads | MLP | GGUF |", "|---|---|---|---|---|"]
    for kind, family in FAMILIES.items():
        mlp = "routed" if family.routed else "one"
        gguf = "yes" if kind in GGUF_FAMILIES.values() else ""
        reads = READS[family.kind]
        if any(attention.mixer for attention in family.attentions):
            reads += "; some layers without attention"
        lines.append(f"| {family.name} | `{kind}` | {reads} | {mlp} | {gguf} |")
    for kind, (name, missing) in NOT_READ.items():
        lines.append(f"| {name} | `{kind}` | not read: {missing} | | |")
    for kind, wrapper in WRAPPERS.items():
        part = f"text part of `{wrapper.architecture}`"
        lines.append(f"| {part} | `{kind}` | left to right | as its family's | |")
    return "\n".join(lines)


def fields() -> str:
    """Every field of the records in a row, with its comment and its default."""
    source = Path(inspect.getsourcefile(Family)).read_text(encoding="utf-8")
    lines = source.splitlines()
    parts = []
    for record in ast.parse(source).body:
        if not isinstance(record, ast.ClassDef):
            continue
        parts += ["", f"### {record.name}", "", (ast.get_docstring(record) or "").split("\n\n")[0]]
        parts += ["", "| field | type | default | meaning |", "|---|---|---|---|"]
        for field in record.body:
            if isinstance(field, ast.AnnAssign):
                cells = (field.target, field.annotation, field.value)
                name, kind, default = ("" if one is None else ast.unparse(one) for one in cells)
                default = re.sub(r"field\(default_factory=(\w+)\)", r"\1()", default)
                said = _comment_above(lines, field.lineno)
                kind = kind.replace("|", "\\|")
                parts.append(f"| `{name}` | `{kind}` | {default and f'`{default}`'} | {said} |")
    return "\n".join(parts)


def _comment_above(lines: list[str], number: int) -> str:
    """The comment above a line; lines are counted from 1."""
    found = []
    while (line := lines[number - 2].strip()).startswith("#"):
        if not line.startswith("# ---"):
            found.insert(0, line.lstrip("# "))
        number -= 1
    return " ".join(found).replace("|", "\\|")


def adapters() -> str:
    """Every class with a TransformerLens adapter: its row, or the reason why it has none."""
    named = {
        architecture: f"row: {family.name}"
        for family in FAMILIES.values()
        for architecture in family.architectures
    }
    for wrapper in WRAPPERS.values():
        named[wrapper.architecture] = "row: that of its text part"
    listed = tomllib.loads((REPORTS / "docs" / "adapters.toml").read_text(encoding="utf-8"))
    for reason in listed["reason"]:
        named |= dict.fromkeys(reason["classes"], f"{reason['kind']}: {reason['why']}")
    cells = (f"| `{name}` | {said} |" for name, said in sorted(named.items()))
    return "\n".join(["| class | here |", "|---|---|", *cells])


WRITTEN = {
    "rows": rows,
    "fields": fields,
    "adapters": adapters,
    "intro": intro,
    "commands": commands,
    "tables": tables,
    "columns": columns,
    "names": names,
    "gguf": gguf,
    "gallery": gallery,
}


def names_as_text() -> str:
    """Every public name with the first sentence of its docstring; the site shows the whole."""
    lines = []
    for entry in names().split("\n\n"):
        name = entry.rpartition("heading: ")[2]
        value = pydoc.locate(entry.splitlines()[0].removeprefix("::: "))
        first = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
        lines.append(f"* `{name}`: {first}" if callable(value) and first else f"* `{name}`")
    return "\n".join(lines)


def intro_as_text() -> str:
    """A link to README; the site shows its beginning."""
    return f"What it is, and its first pictures: [README]({OUTSIDE}../README.md)."


def gallery_as_text() -> str:
    """A link to the same pictures in the repository."""
    return f"The pictures, with the table and the script of each: [reports]({OUTSIDE}README.md)."


# Functions whose part of the text differs from the site.
AS_TEXT = {"names": names_as_text, "intro": intro_as_text, "gallery": gallery_as_text}


if __name__ == "__main__":
    for page in sorted((REPORTS / "docs" / "pages").glob("*.md")):
        page.write_text(as_text(page.read_text(encoding="utf-8")), encoding="utf-8")
