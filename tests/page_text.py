"""The output of a report's templates as one line of plain text, for tests of sentences."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import altair as alt
from jinja2 import nodes

from probe.pages import answer, checks
from probe.pages.html import environment
from probe.results.findings import (
    WordFindings,
    rows_of,
    word_findings,
)
from probe.results.frames import without_rows

ENVIRONMENT = environment("report")


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


FINDINGS: dict[tuple[int, str], tuple[object, WordFindings]] = {}


def findings_of(frames, word):
    """The findings for one word of a study's frames. They are built once, and the frames are kept
    alive, so that no other frames get the same id."""
    key = id(frames), word
    if key not in FINDINGS:
        FINDINGS[key] = frames, _build_findings(frames, word)
    return FINDINGS[key][1]


def _build_findings(frames, word):
    size = tuple(int(frames["heads"][name].max()) + 1 for name in ("layer", "head"))
    return word_findings(word, rows_of(without_rows() | dict(frames), word), model_size=size)


def facts(frames, word):
    """The facts of a word, by label."""
    return dict(answer.facts(findings_of(frames, word)))


def headline(frames, names):
    return answer.headline([findings_of(frames, name) for name in names])


def cautions(frames, model_name, origin, quantised=""):
    render = macro("cautions.html.j2", "cautions")
    by_word = {word: findings_of(frames, word) for word in frames["words"]["word"].unique()}
    return render(by_word, model_name, origin, quantised)


def agreement(certificate):
    template = ENVIRONMENT.get_template("agreement.html.j2")
    certificate_view = checks.certificate(certificate)
    return one_line(template.render(certificate=certificate_view))


def phrases(template: str) -> set[str]:
    """The texts of at least three words in a template."""
    source, _, _ = ENVIRONMENT.loader.get_source(ENVIRONMENT, template)  # type: ignore[union-attr]
    tree = ENVIRONMENT.parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    constants = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    # The name of an imported template is not a text.
    texts += [text for text in constants if not text.endswith(".j2")]
    return {line for line in map(one_line, texts) if len(re.findall(r"\w+", line)) >= 3}
