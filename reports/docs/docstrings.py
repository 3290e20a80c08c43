"""Docstrings as Markdown: what mkdocstrings shows of the Python names."""

import re
import textwrap

import griffe

# `name: meaning` or `name, name: meaning`, with indented continuation lines.
PARAMETER = re.compile(r"^(\w+(?:, \w+)*): (.+(?:\n    .+)*)$", re.MULTILINE)
EXAMPLE = re.compile(r"^Example:\n((?:    .*\n?|\n)+)", re.MULTILINE)


class DocstringsAsMarkdown(griffe.Extension):
    """Rewrites every docstring before its page is built."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """The docstring with its parameters as a list and its example as a block of code."""
    # The example first, because its lines of code may look like parameters.
    parts = EXAMPLE.split(docstring)
    parts[0::2] = [PARAMETER.sub(_item, prose) for prose in parts[0::2]]
    parts[1::2] = [f"```pycon\n{textwrap.dedent(code).strip()}\n```\n" for code in parts[1::2]]
    return "".join(parts)


def _item(parameter: re.Match[str]) -> str:
    names = ", ".join(f"`{name}`" for name in parameter[1].split(", "))
    return f"* {names}: {parameter[2]}"
