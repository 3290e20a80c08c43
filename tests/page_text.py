"""The output of a report's templates as one line of plain text, for tests of sentences."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import altair as alt
from inside import (
    environment,
    facts_of,
    made_by,
    rows_by_word,
    sections,
    texts,
    with_reasons,
    without_rows,
    worst_first,
)
from jinja2 import nodes
from stored_study import stored_study

from probe.pages import report

ENVIRONMENT = environment("report")
N = "\u202f"  # between a number and its unit


def one_line(text: str) -> str:
    """Text without tags and line breaks; narrow spaces stay."""
    return re.sub(r"[ \n]+", " ", html.unescape(re.sub(r"<[^>]*>", "", text))).strip()


def pasted(page: Path) -> str:
    """The text that "Copy result" of a page copies."""
    match = re.search(
        r"<textarea readonly[^>]*>(.*?)</textarea>", page.read_text(encoding="utf-8"), re.DOTALL
    )
    assert match is not None
    return html.unescape(match[1])


def check_charts(page: Path) -> None:
    """Every chart of a page follows the schema of Vega-Lite; placing a chart does not validate
    it."""
    text = page.read_text(encoding="utf-8")
    specs = re.findall(r'data-for="chart-\d+">(.*?)</script>', text)
    assert specs
    for spec in specs:
        alt.TopLevelSpec.validate(json.loads(spec))


def macro(template: str, name: str) -> Callable[..., str]:
    """The text of a macro of a template for its arguments."""
    return lambda *arguments: one_line(
        getattr(ENVIRONMENT.get_template(template).module, name)(*arguments)
    )


EMPTY = without_rows()


def by_word(frames):
    """The rows of each word, by word and table, as the templates read them."""
    return rows_by_word(EMPTY | dict(frames))


def fact_macros():
    return ENVIRONMENT.get_template("facts.txt.j2").module


def facts(frames, word):
    """The facts of a word, also those that only the table of all facts has, by label."""
    module = fact_macros()
    rows = by_word(frames)[word]
    values = facts_of({word: rows}, module.FACTS)[word] | texts(rows, module.FURTHER)
    return {label: html.unescape(value) for label, value in values.items()}


def fact(frames, word, label):
    """One fact of a word."""
    module = fact_macros()
    rows = by_word(frames)[word]
    macros = module.FACTS[bool(rows["words"]["ranked"].any())] | module.FURTHER
    return html.unescape(texts(rows, {label: macros[label]})[label])


def labels_of_facts():
    module = fact_macros()
    return {label for macros in (*module.FACTS.values(), module.FURTHER) for label in macros}


def headline(frames, names):
    render = macro("facts.txt.j2", "headline")
    with_word = (name for name, frame in frames.items() if "word" in frame)
    rows = {name: frames[name][frames[name]["word"].isin(names)] for name in with_word}
    return render(frames | rows)


def cautions(frames, model_name, origin, quantised=""):
    return macro("cautions.html.j2", "cautions")(by_word(frames), model_name, origin, quantised)


def agreement(certificate):
    template = ENVIRONMENT.get_template("agreement.html.j2")
    return one_line(template.render(certificate=worst_first(certificate)))


def section(frames, name, element=""):
    """The HTML of a section of the page of these frames; `element` is its id if it has another."""
    if "because" not in frames["verdicts"]:
        reasons = with_reasons(frames["verdicts"], frames["heads"], frames["words"])
        frames = frames | {"verdicts": reasons}
    [shown] = [each for each in sections.every_section() if each.id == name]
    with patch.object(sections, "every_section", lambda: [shown]):
        page = report.render(frames, made_by(stored_study(), ""))
    found = re.search(rf'<section id="{element or name}"[^>]*>(.*?)</section>', page, re.DOTALL)
    return found[1] if found else ""


def rows_of_table(text):
    """The cells of each row of the body of a table, as text."""
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", text.partition("<tbody>")[2], re.DOTALL)
    return [
        [one_line(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in rows
    ]


def phrases(template: str) -> set[str]:
    """The texts of at least three words in a template."""
    source, _, _ = ENVIRONMENT.loader.get_source(ENVIRONMENT, template)  # type: ignore[union-attr]
    tree = ENVIRONMENT.parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    constants = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    # The name of an imported template is not a text.
    texts += [text for text in constants if not text.endswith(".j2")]
    return {line for line in map(one_line, texts) if len(re.findall(r"\w+", line)) >= 3}
