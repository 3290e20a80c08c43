"""What the pages do not hold themselves: pictures of reports/, and what stands elsewhere already.

Behind a line `<!-- NAME -->` of a page stands what the function of that name returns: the commands'
own help, the meaning of every column, the docstring of every public name, the beginning of README,
every picture of the analyses.
`python reports/docs/hooks.py` writes it into the pages, for those who read them as text; the site
is built from the functions.
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
from probe.model.architectures import FAMILIES, GGUF_KNOWN, WRAPPERS
from probe.model.architectures.family import Family
from probe.results.columns import COLUMNS, TABLES

READS = {
    "decoder": "left to right",
    "encoder": "both ways",
    "encoder-decoder": "a source, and a target left to right",
}
REPORTS = Path(__file__).parents[1]
PICTURES = ("lessons/*.png", "real/*.png", "real/*.svg", "*.png")
# From a page to reports/: how its pictures are named, so that they show in the repository as well
OUTSIDE = "../../"
PICTURE = re.compile(rf"(!\[[^\]]*\]\({re.escape(OUTSIDE)}([^)]+\.(?:png|svg))\))")
_gallery = importlib.util.spec_from_file_location("gallery", REPORTS / "gallery.py")
pictures = importlib.util.module_from_spec(_gallery)
_gallery.loader.exec_module(pictures)


def on_files(files, config):
    """Adds the pictures of reports/ to the site."""
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
    """The page with the width of each of its pictures: a PNG has twice the pixels that it is shown
    with."""
    return PICTURE.sub(
        lambda picture: f"{picture[1]}{{ width={pictures.width(REPORTS / picture[2])} }}", markdown
    )


def pasted(markdown: str) -> str:
    """The page with commands as they are typed: blocks of nothing but commands lose the prompt in
    front of each."""
    only_commands = re.compile(r"^```console\n((?:\$ .+\n)+)```$", re.MULTILINE)
    return only_commands.sub(
        lambda block: "```sh\n" + re.sub(r"^\$ ", "", block[1], flags=re.MULTILINE) + "```",
        markdown,
    )


# A constant of the code in a sentence: <!-- probe.module.NAME -->8<!-- . -->; NAME% in percent.
CONSTANT = re.compile(r"<!-- (probe[\w.]+)\.([A-Z_]+)(%?) -->[^<]*<!-- \. -->")
MARKED = re.compile(r"^<!-- (\w+) -->$(?:\n.*?^<!-- end of \1 -->$)?", re.MULTILINE | re.DOTALL)


def filled(markdown: str) -> str:
    """The page with each of its marked parts replaced by what it stands for. KeyError for a name
    that is not known."""
    return MARKED.sub(lambda mark: WRITTEN[mark[1]](), with_constants(markdown))


def with_constants(markdown: str) -> str:
    """The page with the values that its constants have in the code."""

    def written(mark: re.Match[str]) -> str:
        module, name, percent = mark.groups()
        value = getattr(importlib.import_module(module), name)
        shown = f"{100 * value:g}" if percent else f"{value:,}".removeprefix("0")
        return f"<!-- {module}.{name}{percent} -->{shown}<!-- . -->"

    return CONSTANT.sub(written, markdown)


def as_text(markdown: str) -> str:
    """The page as it is kept, for readers of the text: what a mark stands for is behind it, up to a
    second mark."""

    def written(mark: re.Match[str]) -> str:
        name = mark[1]
        text = (AS_TEXT.get(name) or WRITTEN[name])()
        return f"<!-- {name} -->\n\n{text.strip()}\n\n<!-- end of {name} -->"

    return MARKED.sub(written, with_constants(markdown))


def commands() -> str:
    """Every command with its help, as the program prints it."""
    parts = []
    for command in ("", *typer.main.get_command(probe.cli.app).commands):
        line = f"probe {command}".strip()
        shown = CliRunner().invoke(
            probe.cli.app, [*command.split(), "--help"], prog_name="probe", env={"COLUMNS": "100"}
        )
        parts.append(f"## {line}\n\n```console\n$ {line} --help\n{shown.output.strip()}\n```\n")
    return "\n".join(parts)


def tables() -> str:
    """Every table of a report, and what a row of it is about."""
    return "\n".join(
        ["| table | what it holds |", "|---|---|", *(f"| `{k}` | {v} |" for k, v in TABLES.items())]
    )


def columns() -> str:
    """Every column by name: what it says and its unit; `table.column` where it says something else
    in one table."""
    rows = sorted(COLUMNS, key=lambda name: (name.rpartition(".")[2], name))
    cells = (
        f"| `{name}`{{ #{name} }} | {COLUMNS[name]['meaning']} | {COLUMNS[name].get('unit', '')} |"
        for name in rows
    )
    return "\n".join(["| column | what it says | unit |", "|---|---|---|", *cells])


def names() -> str:
    """Every public name in pipeline order, from its docstring; those of a module (`probe.lexicon`)
    one by one."""
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
    """README up to its first heading of a section."""
    text = (REPORTS.parent / "README.md").read_text(encoding="utf-8")
    beginning = text.partition("\n## ")[0].replace("](reports/", f"]({OUTSIDE}")
    return re.sub(r'\b(src|srcset)="reports/', r'\1="', beginning)


def gallery() -> str:
    """Every analysis: its question, its pictures, what they show, the command that draws them."""
    return "\n\n".join(
        f"## {pictures.pictures_of(one)}\n\n`python analyses/{one.stem}.py`"
        for one in pictures.analyses()
    )


def gguf() -> str:
    """The names of the families that a GGUF file may hold."""
    return f"{GGUF_KNOWN}."


def rows() -> str:
    """Every family by the `model_type` of its config, and what it can do."""
    lines = ["| family | `model_type` | reads | MLP | GGUF |", "|---|---|---|---|---|"]
    for kind, family in FAMILIES.items():
        mlp = "routed" if family.routed else "one"
        gguf = "yes" if family.gguf else ""
        reads = READS[family.kind]
        if any(attention.mixer for attention in family.attentions):
            reads += "; some layers without attention"
        lines.append(f"| {family.name} | `{kind}` | {reads} | {mlp} | {gguf} |")
    for kind, wrapper in WRAPPERS.items():
        part = f"text part of `{wrapper.architecture}`"
        lines.append(f"| {part} | `{kind}` | left to right | as its family's | |")
    return "\n".join(lines)


def fields() -> str:
    """Every field of the records that a row is made of, with its comment and its default."""
    source = Path(inspect.getsourcefile(Family)).read_text(encoding="utf-8")
    lines = source.splitlines()
    parts = []
    for record in ast.parse(source).body:
        if not isinstance(record, ast.ClassDef):
            continue
        parts += ["", f"### {record.name}", "", (ast.get_docstring(record) or "").split("\n\n")[0]]
        parts += ["", "| field | type | default | what it says |", "|---|---|---|---|"]
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
    """The comment in the lines above a line, which is counted from 1."""
    found = []
    while (line := lines[number - 2].strip()).startswith("#"):
        if not line.startswith("# ---"):
            found.insert(0, line.lstrip("# "))
        number -= 1
    return " ".join(found).replace("|", "\\|")


def adapters() -> str:
    """Every class that TransformerLens has an adapter for: its row, or why there is none."""
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
    """Every public name with the first sentence of its docstring; the site shows all of it."""
    lines = []
    for entry in names().split("\n\n"):
        name = entry.rpartition("heading: ")[2]
        value = pydoc.locate(entry.splitlines()[0].removeprefix("::: "))
        first = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
        lines.append(f"* `{name}`: {first}" if callable(value) and first else f"* `{name}`")
    return "\n".join(lines)


def intro_as_text() -> str:
    """Where README is, whose beginning the site shows."""
    return f"What it is, and its first pictures: [README]({OUTSIDE}../README.md)."


def gallery_as_text() -> str:
    """Where the same pictures are in the repository."""
    return f"The pictures, with the table and the script of each: [reports]({OUTSIDE}README.md)."


# What stands in the text of a page where that is something else than on the site.
AS_TEXT = {"names": names_as_text, "intro": intro_as_text, "gallery": gallery_as_text}


if __name__ == "__main__":
    for page in sorted((REPORTS / "docs" / "pages").glob("*.md")):
        page.write_text(as_text(page.read_text(encoding="utf-8")), encoding="utf-8")
