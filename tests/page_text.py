"""What the templates of a report say, as one line of plain text: for tests of sentences."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import altair as alt
from jinja2 import nodes

from probe.pages import answer, checks, heads, sentences, words
from probe.pages.html import environment
from probe.results.findings import (
    WordFindings,
    findings,
    head_finding,
    rows_of,
    word_findings,
)
from probe.results.frames import without_rows

ENVIRONMENT = environment("report")


def one_line(text: str) -> str:
    """Text without tags and line breaks; narrow spaces stay."""
    return re.sub(r"[ \n]+", " ", html.unescape(re.sub(r"<[^>]*>", "", text))).strip()


def pasted(page: Path) -> str:
    """The text that "Copy result" of a page gives."""
    found = re.search(
        r"<textarea readonly[^>]*>(.*?)</textarea>", page.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    return html.unescape(found[1])


def check_charts(page: Path) -> None:
    """Every chart that a page draws follows the schema of Vega-Lite; to place one is not to check
    it."""
    text = page.read_text(encoding="utf-8")
    specs = re.findall(r'data-for="chart-\d+">(.*?)</script>', text)
    assert specs
    for spec in specs:
        alt.TopLevelSpec.validate(json.loads(spec))


def macro(template: str, name: str) -> Callable[..., str]:
    """What a macro of a template says of its arguments."""
    return lambda *given: one_line(getattr(ENVIRONMENT.get_template(template).module, name)(*given))


def items(template: str, name: str, *given: object) -> list[str]:
    """The items of a list that a macro makes."""
    made = getattr(ENVIRONMENT.get_template(template).module, name)(*given)
    return [one_line(item) for item in re.findall(r"<li>.*?</li>", made, re.DOTALL)]


FOUND: dict[tuple[int, str], tuple[object, WordFindings]] = {}


def found(frames, word):
    """What was found for one word of a study's frames; built once, and the frames are kept, so that
    no others get their number."""
    key = id(frames), word
    if key not in FOUND:
        FOUND[key] = frames, _found(frames, word)
    return FOUND[key][1]


def _found(frames, word):
    size = tuple(int(frames["heads"][name].max()) + 1 for name in ("layer", "head"))
    return word_findings(word, rows_of(without_rows() | dict(frames), word), model_size=size)


def card_answer(frames, word):
    return macro("card.html.j2", "what_was_found")(words.card(found(frames, word)))


def card_evidence(frames, word):
    return macro("card.html.j2", "evidence")(words.card(found(frames, word)))


def facts(frames, word):
    """The facts of a word, by label."""
    return dict(answer.facts(found(frames, word)))


def headline(frames, names):
    return answer.headline([found(frames, name) for name in names])


def cautions(frames, model_name, origin, quantised="", hooked=""):
    written = macro("cautions.html.j2", "cautions")
    by_word = {word: found(frames, word) for word in frames["words"]["word"].unique()}
    return written(by_word, model_name, origin, quantised, hooked)


def scope(frames):
    return macro("card.html.j2", "scope_of")(words.scope(findings(frames)))


def numbers_apart(row):
    """What is said of the numbers of a row of the table of heads."""
    apart = heads.numbers_apart(head_finding(row, read_depth=4))
    return macro("head_sentences.html.j2", "numbers_apart")(apart)


def token_title(token):
    return macro("head_sentences.html.j2", "token_title")(token)


def agreement(certificate, hooked=""):
    template = ENVIRONMENT.get_template("agreement.html.j2")
    shown = checks.certificate(certificate)
    return one_line(template.render(certificate=shown, manifest={"hooked": hooked}))


def later_words(row):
    return macro("showcase_sentences.html.j2", "later_words")(row)


def second_model(row):
    reader = sentences.second_reader(row)
    return macro("showcase_sentences.html.j2", "second_model")(reader)


def reading(row, ranked):
    return macro("showcase_sentences.html.j2", "reading")(row, ranked)


def phrases(template: str) -> set[str]:
    """The texts of three words or more that stand in a template."""
    source, _, _ = ENVIRONMENT.loader.get_source(ENVIRONMENT, template)  # type: ignore[union-attr]
    tree = ENVIRONMENT.parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    constants = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    # The name of a template that is imported is no text.
    texts += [text for text in constants if not text.endswith(".j2")]
    return {line for line in map(one_line, texts) if len(re.findall(r"\w+", line)) >= 3}
