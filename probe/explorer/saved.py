"""The explorer's page as one file that needs no model: two sentences, the map of heads, every swap
of a single head, what was asked last, and the certificate of just these sentences.

The page is the explorer's own; its questions are answered from a recording that it carries.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from probe.errors import InputError
from probe.explorer import page
from probe.explorer.page import HeadSwap, Question
from probe.model.model import Model
from probe.pages.folder import check_folder

FILE_NAME = "explore.html"
ENDINGS = (".html", ".htm")  # by which a browser knows a page
RECORDED = b'<script type="application/json" id="recorded">'  # stands in every saved page
# Fractions of the work, as the progress bar has them: reading, and swapping every head; the
# certificate and the page are the rest.
READ = 0.1
SWAPPED = 0.8
Result = dict[str, Any]  # plain JSON
Answer = Callable[[Question], Iterator[Result]]  # `Explorer.answer`


def check_file(path: Path) -> None:
    """Raises InputError for a path at which no page can be saved: a name that no browser takes for
    a page, something that stands there and is no saved page, a folder that cannot be written.

    Leaves nothing behind, so ask it early.
    """
    doing = "Saving the explorer's page:"
    if path.is_dir():
        raise InputError(f"{doing} {path} is a folder; give --save a file that ends in .html.")
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{doing} got {str(path)!r}; give --save a file that ends in .html.")
    check_folder(path.parent, option="--save")
    if path.exists() and RECORDED not in path.read_bytes():
        raise InputError(
            f"{doing} {path} is there and is no page that the explorer saved; give --save another "
            "file."
        )


def page_steps(
    model: Model, answer: Answer, question: Question, command: str = ""
) -> Iterator[tuple[float, str]]:
    """How much of the work is done, and the page: empty until all of it is.

    `answer`: that of an explorer of this model · `command`: what made the page, as its provenance
    says. Raises as `Explorer.answer`, and CrossCheckError when hooks and formulas disagree.
    """
    sentences = _sentences(answer, question)
    block = sentences[0]["block"]
    first = block["first"]
    question = replace(question, word=block["word"], follow=(first["layer"], first["head"]))
    yield READ, ""
    swaps = []
    wanted = _swaps(sentences[0], question)
    for n_done, some in enumerate(wanted, start=1):
        swaps.append(_recorded(answer, replace(question, what="swap", swaps=some)))
        yield READ + (SWAPPED - READ) * n_done / len(wanted), ""
    written = [
        _recorded(answer, replace(question, what="write", swaps=some))
        for some in dict.fromkeys(((), question.swaps))
    ]
    yield SWAPPED, ""
    opening = page.opening_walk(
        model, question.text, question.other, word=question.word, head=question.follow
    )
    recording = {
        "command": command,
        "state": address(question, at=block["tokens"][first["at"]]["pos"]),
        # The page has the first sentence's block already; only the swaps may be on another axis.
        "sentence": [sentences[0] | {"block": None}, *sentences[1:]],
        "effects": block["arrays"].get("swap"),
        "along": [_recorded(answer, replace(question, what="along", swaps=()))],
        "swap": swaps,
        "write": written,
    }
    html, _ = page.render(opening, transport="saved", recording=recording)
    yield 1.0, html


def address(question: Question, *, at: int | None = None) -> str:
    """What a page's address says of a question: the sentences, and what is followed, at which
    position, and swapped.
    """
    parts = {"text": question.text, "other": question.other or ""}
    if question.word is not None:
        parts["word"] = question.word
    if question.axis is not None:
        parts["axis"] = question.axis
    if question.follow is not None and at is not None:
        layer, head = question.follow
        parts["follow"] = f"L{layer}H{head}@{at}"
    if question.swaps:
        names = [f"L{swap.layer}H{swap.head}-{swap.kind}" for swap in question.swaps]
        parts["swap"] = ".".join(names)
    return urlencode(parts, quote_via=quote)


def _sentences(answer: Answer, question: Question) -> list[Result]:
    """The sentence's answers, as many as carry the attention of every head between them; the first
    one follows the head of the question, or the one that the explorer chooses.
    """
    question = replace(question, what="sentence", swaps=())
    answers = [_result(answer, question)]
    n_layers = answers[0]["block"]["sizes"]["layers"]
    carried = {layer for layer, _ in answers[0]["block"]["heads"]}
    n_at_once = len(carried)
    while missing := set(range(n_layers)) - carried:
        middle = min(min(missing) + n_at_once // 2, n_layers - 1)
        answers.append(_result(answer, replace(question, follow=(middle, 0))))
        carried |= {layer for layer, _ in answers[-1]["block"]["heads"]}
    return answers


def _swaps(sentence: Result, question: Question) -> list[tuple[HeadSwap, ...]]:
    """Every swap of one head, and what is swapped in the question."""
    block = sentence["block"]
    asked = [question.swaps] if question.swaps else []
    if "swap" not in block["arrays"] and sentence["swapped_by"] == "mean":
        # Without an axis there is no mean to swap a head to.
        return asked
    heads = product(range(block["sizes"]["layers"]), range(block["sizes"]["heads"]))
    single = [(HeadSwap(layer, head, sentence["swapped_by"]),) for layer, head in heads]
    return list(dict.fromkeys([*single, *asked]))


def _result(answer: Answer, question: Question) -> Result:
    *_, last = answer(question)
    result: Result = last["result"]
    return result


def _recorded(answer: Answer, question: Question) -> Result:
    """A question's swaps and its answer; what cannot be answered is the sentence that says why."""
    try:
        message: Result = {"result": _result(answer, question)}
    except InputError as error:
        message = {"error": str(error)}
    swaps = [[swap.layer, swap.head, swap.kind] for swap in question.swaps]
    return {"swaps": swaps, "answer": message}
