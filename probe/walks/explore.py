"""The explorer's page, live or saved, and `probe.explore`.

The page extends the walk's template, so steps, scripts and charts are shared. It is rendered from
the walk of a pair of sentences; every other text arrives as the answer to a question. A saved page
is the same page with recorded answers: the map of heads, every swap of a single head with the next
words, the text after those that move the word furthest, the last question, and the certificate of
these sentences. It needs no model.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from probe.errors import InputError, ProbeError
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.pages import html
from probe.pages.folder import check_folder, made_by
from probe.text.spans import shorten
from probe.walks import page
from probe.walks.explorer import Explorer, Message
from probe.walks.questions import HeadSwap, Question, parse
from probe.walks.walk import Walk, walk

EXAMPLES = (  # a word in two meanings, with equally many tokens before it
    ("The river rose, so he went to the bank", "The money came, so he went to the bank"),
    ("They saw the river from the bank", "They took the money from the bank"),
    ("In the garden they found a mole", "In the agency they found a mole"),
    ("She baked a pie with the apple", "She sold the shares of the apple"),
)
FILE_NAME = "explore.html"
ENDINGS = (".html", ".htm")  # by which a browser knows a page
RECORDED = b'<script type="application/json" id="recorded">'  # is in every saved page
# Fractions of the work for the progress bar: after reading, and after swapping every head. The rest
# is the certificate and the page.
READ = 0.1
SWAPPED = 0.8
N_WRITTEN = 3  # swaps that move the word furthest, after which a saved page has the text
# The page may run its own scripts and save pictures. It cannot reach the notebook.
FRAME = (
    '<iframe title="Explorer" sandbox="allow-scripts allow-downloads" srcdoc="{page}" '
    'style="display: block; width: 100%; height: 760px; border: 0; resize: vertical"></iframe>'
)


@dataclass(frozen=True)
class ExplorerPage:
    """The explorer's page of one or two sentences, which a notebook shows.

    model_name: the model that the numbers are from
    texts: one sentence, or two with the same word
    html: the page, which needs neither a model nor a server
    """

    model_name: str
    texts: tuple[str, ...]
    html: str

    def __repr__(self) -> str:
        texts = " against ".join(repr(shorten(text)) for text in self.texts)
        return f"<ExplorerPage of {self.model_name}: {texts}>"

    def _repr_html_(self) -> str:
        return Markup(FRAME).format(page=self.html)


def explore(
    model: ModelSource, text: str, *, at: str | None = None, against: str | None = None
) -> ExplorerPage:
    """The page of `probe explore --save` in a notebook: swap a head, and see what becomes of the
    word.

    `against`: a second sentence with the same word in another meaning · `at`: the word that is
    followed, chosen where none is given. The page holds the answers to these sentences, so it needs
    no kernel and stays in the saved notebook. To type other sentences, use `probe explore`.
    Raises InputError for a text that cannot be read, UnsupportedModel for an encoder-decoder,
    CrossCheckError if hooks and formulas disagree.

    Example:
        >>> page = probe.explore("tiny-senses", "The old tree by the bank", at="bank")
    """
    explorer = Explorer(load(model))
    *_, (_, content) = saved_page(explorer, Question("save", text, against, at))
    texts = (text,) if against is None else (text, against)
    return ExplorerPage(explorer.model.name, texts, content)


def messages(explorer: Explorer, record: object) -> Iterator[Message]:
    """The messages of the answer to a question of the page; {"error": ...} with one sentence if it
    cannot be answered.
    """
    try:
        question = parse(record)
        if question.what != "save":
            yield from explorer.answer(question)
            return
        content = ""
        for progress, content in saved_page(explorer, question):
            yield {"doing": "save", "progress": progress}
        yield {"result": {"name": FILE_NAME, "page": content}}
    except ProbeError as error:
        yield {"error": str(error)}


def opening_walk(
    model: Model,
    text: str = EXAMPLES[0][0],
    against: str | None = EXAMPLES[0][1],
    *,
    word: str | None = None,
    head: tuple[int, int] | None = None,
) -> Walk:
    """The walk that the page opens with. Raises the errors of `probe.walk`."""
    # The page asks for the causal trace when somebody opens it.
    return walk(
        model, text, at=word, head=head or (None, None), against=against, causal_trace=False
    )


@html.without_validation
def render(opening: Walk, recording: Message | None = None) -> tuple[str, str]:
    """The page and its content security policy.

    recording: the answers of a saved page, which reaches nothing; by default the page may ask the
        server that it comes from
    """
    # Each page has new templates, because they number its charts from 1.
    templates = page.environment()
    assets = html.assets(templates, "explore.css.j2", "explore.js")
    policy = assets["policy"]
    if recording is None:
        policy += "; connect-src 'self'"
    values = page.values(opening) | assets | {"policy": policy, "examples": EXAMPLES}
    # Both are about the opening sentences only, and the reader types others.
    values |= {"truncation_change": None, "caution": None}
    values |= {"recorded": None, "manifest": None}
    if recording is not None:
        # The block of the first sentence is what the page opens with, so it is in the page once.
        first, *others = recording["sentence"]
        values["data"] = html.as_json(first["block"] | {"scores": opening.block["scores"]})
        values["recorded"] = html.as_json(
            recording | {"sentence": [first | {"block": None}, *others]}
        )
        values["manifest"] = made_by(opening, recording["command"])
    return templates.get_template("explore.html.j2").render(values), policy


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


def saved_page(
    explorer: Explorer, question: Question, command: str = ""
) -> Iterator[tuple[float, str]]:
    """The fraction of the work that is done, and the page, which is empty before the last step.

    command: the command that made the page, for its provenance

    Raises the errors of `Explorer.answer`, and CrossCheckError if hooks and formulas disagree.
    """
    sentences = answers_of_sentences(explorer, question)
    block = sentences[0]["block"]
    first = block["first"]
    question = replace(question, word=block["word"], follow=(first["layer"], first["head"]))
    yield READ, ""
    results = []
    swap_sets = _swap_sets(sentences[0], question)
    for n_done, swaps in enumerate(swap_sets, start=1):
        results.append(_recorded(explorer, replace(question, what="swap", swaps=swaps)))
        yield READ + (SWAPPED - READ) * n_done / len(swap_sets), ""
    texts = [
        _recorded(explorer, replace(question, what="write", swaps=swaps))
        for swaps in dict.fromkeys(((), question.swaps, *_strongest(swap_sets, results)))
    ]
    yield SWAPPED, ""
    opening = opening_walk(
        explorer.model, question.text, question.against, word=question.word, head=question.follow
    )
    recording = {
        "command": command,
        "state": address(question, at=block["tokens"][first["at"]]["pos"]),
        "sentence": sentences,
        "along": [_recorded(explorer, replace(question, what="along", swaps=()))],
        "swap": results,
        "write": texts,
    }
    yield 1.0, render(opening, recording)[0]


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


def answers_of_sentences(explorer: Explorer, question: Question) -> list[Message]:
    """Answers to "sentence" that together hold the attention of every head. The first one follows
    the head of the question, or the head that the explorer chooses.
    """
    question = replace(question, what="sentence", swaps=())
    answers = [_result(explorer, question)]
    n_layers = answers[0]["block"]["sizes"]["layers"]
    layers = {layer for layer, _ in answers[0]["block"]["heads"]}
    n_at_once = len(layers)
    while missing := set(range(n_layers)) - layers:
        middle = min(min(missing) + n_at_once // 2, n_layers - 1)
        answers.append(_result(explorer, replace(question, follow=(middle, 0))))
        layers |= {layer for layer, _ in answers[-1]["block"]["heads"]}
    return answers


def _swap_sets(sentence: Message, question: Question) -> list[tuple[HeadSwap, ...]]:
    """Every swap of a single head, and the swaps of the question."""
    block = sentence["block"]
    swap_sets = [question.swaps] if question.swaps else []
    if "swap" not in block["arrays"] and sentence["swapped_by"] == "mean":
        # Without an axis, no mean exists to swap a head to.
        return swap_sets
    heads = product(range(block["sizes"]["layers"]), range(block["sizes"]["heads"]))
    single = [(HeadSwap(layer, head, sentence["swapped_by"]),) for layer, head in heads]
    return list(dict.fromkeys([*single, *swap_sets]))


def _strongest(
    swap_sets: list[tuple[HeadSwap, ...]], results: list[Message]
) -> list[tuple[HeadSwap, ...]]:
    """The swaps that move the word furthest, furthest first; none without an axis."""
    effects = {}
    for swaps, recorded in zip(swap_sets, results, strict=True):
        if coordinates := recorded["answer"].get("result", {}).get("coordinates"):
            effects[swaps] = abs(coordinates[1] - coordinates[0])
    return sorted(effects, key=lambda swaps: -effects[swaps])[:N_WRITTEN]


def _result(explorer: Explorer, question: Question) -> Message:
    *_, last = explorer.answer(question)
    result: Message = last["result"]
    return result


def _recorded(explorer: Explorer, question: Question) -> Message:
    """A question's swaps and its answer, or the error message if it cannot be answered."""
    try:
        message: dict[str, Any] = {"result": _result(explorer, question)}
    except InputError as error:
        message = {"error": str(error)}
    swaps = [[swap.layer, swap.head, swap.kind] for swap in question.swaps]
    return {"swaps": swaps, "answer": message}
