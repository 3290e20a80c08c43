"""The explorer's page as one file that needs no model: two sentences, the map of heads, every swap
of a single head with the next words, the last question, and the certificate of these sentences.

It is the same page as the live one; its questions are answered from a recording in the file.
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
RECORDED = b'<script type="application/json" id="recorded">'  # is in every saved page
# Fractions of the work for the progress bar: after reading, and after swapping every head. The rest
# is the certificate and the page.
READ = 0.1
SWAPPED = 0.8
Result = dict[str, Any]  # plain JSON
Answer = Callable[[Question], Iterator[Result]]  # `Explorer.answer`


def check_file(path: Path) -> None:
    """Raises InputError if no page can be saved at this path: the name does not end in .html, the
    file exists and is not a saved page, or the folder cannot be written.

    It writes nothing, so it can be called before the work.
    """
    doing = "Cannot save the explorer's page:"
    if path.is_dir():
        raise InputError(f"{doing} {path} is a folder. Give --save a file that ends in .html.")
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            f"{doing} {str(path)!r} does not end in .html. Give --save a file that does."
        )
    check_folder(path.parent, option="--save")
    if path.exists() and RECORDED not in path.read_bytes():
        raise InputError(
            f"{doing} {path} exists and is not a page that the explorer saved. Give --save "
            "another file."
        )


def page_steps(
    model: Model, answer: Answer, question: Question, command: str = ""
) -> Iterator[tuple[float, str]]:
    """The fraction of the work that is done, and the page, which is empty before the last step.

    answer: `Explorer.answer` of an explorer of this model
    command: the command that made the page, for its provenance

    Raises the errors of `Explorer.answer`, and CrossCheckError if hooks and formulas disagree.
    """
    sentences = _sentences(answer, question)
    block = sentences[0]["block"]
    first = block["first"]
    question = replace(question, word=block["word"], follow=(first["layer"], first["head"]))
    yield READ, ""
    results = []
    swap_sets = _swaps(sentences[0], question)
    for n_done, swaps in enumerate(swap_sets, start=1):
        results.append(_recorded(answer, replace(question, what="swap", swaps=swaps)))
        yield READ + (SWAPPED - READ) * n_done / len(swap_sets), ""
    texts = [
        _recorded(answer, replace(question, what="write", swaps=swaps))
        for swaps in dict.fromkeys(((), question.swaps))
    ]
    yield SWAPPED, ""
    opening = page.opening_walk(
        model, question.text, question.against, word=question.word, head=question.follow
    )
    recording = {
        "command": command,
        "state": address(question, at=block["tokens"][first["at"]]["pos"]),
        # The page already has the first sentence's block; only the swaps may be on another axis.
        "sentence": [sentences[0] | {"block": None}, *sentences[1:]],
        "effects": block["arrays"].get("swap"),
        "along": [_recorded(answer, replace(question, what="along", swaps=()))],
        "swap": results,
        "write": texts,
    }
    html, _ = page.render(opening, recording=recording)
    yield 1.0, html


def address(question: Question, *, at: int | None = None) -> str:
    """The address of a question: the sentences, the head and position that are followed, and the
    swapped heads.
    """
    parts = {"text": question.text, "other": question.against or ""}
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
    """Answers to "sentence" that together hold the attention of every head. The first one follows
    the head of the question, or the head that the explorer chooses.
    """
    question = replace(question, what="sentence", swaps=())
    answers = [_result(answer, question)]
    n_layers = answers[0]["block"]["sizes"]["layers"]
    layers = {layer for layer, _ in answers[0]["block"]["heads"]}
    n_at_once = len(layers)
    while missing := set(range(n_layers)) - layers:
        middle = min(min(missing) + n_at_once // 2, n_layers - 1)
        answers.append(_result(answer, replace(question, follow=(middle, 0))))
        layers |= {layer for layer, _ in answers[-1]["block"]["heads"]}
    return answers


def _swaps(sentence: Result, question: Question) -> list[tuple[HeadSwap, ...]]:
    """Every swap of a single head, and the swaps of the question."""
    block = sentence["block"]
    swap_sets = [question.swaps] if question.swaps else []
    if "swap" not in block["arrays"] and sentence["swapped_by"] == "mean":
        # Without an axis, no mean exists to swap a head to.
        return swap_sets
    heads = product(range(block["sizes"]["layers"]), range(block["sizes"]["heads"]))
    single = [(HeadSwap(layer, head, sentence["swapped_by"]),) for layer, head in heads]
    return list(dict.fromkeys([*single, *swap_sets]))


def _result(answer: Answer, question: Question) -> Result:
    *_, last = answer(question)
    result: Result = last["result"]
    return result


def _recorded(answer: Answer, question: Question) -> Result:
    """A question's swaps and its answer, or the error message if it cannot be answered."""
    try:
        message: Result = {"result": _result(answer, question)}
    except InputError as error:
        message = {"error": str(error)}
    swaps = [[swap.layer, swap.head, swap.kind] for swap in question.swaps]
    return {"swaps": swaps, "answer": message}
