"""The explorer as a value that a notebook shows: Jupyter, VS Code, marimo."""

from typing import TYPE_CHECKING

from probe.errors import InputError
from probe.explorer import page
from probe.explorer.page import Question
from probe.explorer.saved import address
from probe.explorer.session import Explorer
from probe.model.load import ModelSource, load

if TYPE_CHECKING:
    from probe.explorer.widget import ExplorerWidget


def explore(
    model: ModelSource, text: str, *, at: str | None = None, against: str | None = None
) -> "ExplorerWidget":
    """The explorer of `probe explore` in a notebook: a sentence to retype, heads to swap, what
    becomes of the word.

    `against`: a second sentence with the same word in another meaning · `at`: the word that is
    followed, chosen where none is given. The saved notebook keeps a picture of what was looked at
    last. Needs the package anywidget. Raises InputError for a text that cannot be read,
    UnsupportedModel for an encoder-decoder.

    Example:
        >>> explorer = probe.explore("tiny-senses", "The old tree by the bank", at="bank")
    """
    try:
        from probe.explorer.widget import ExplorerWidget
    except ModuleNotFoundError as error:
        raise InputError(
            f"Cannot explore in a notebook: the package {error.name} is missing. Install it with "
            "pip install anywidget, or use `probe explore`."
        ) from error
    model = load(model)
    explorer = Explorer(model)
    results = {}
    for kind in ("sentence", "along"):
        try:
            *_, last = explorer.answer(Question(kind, text, against, at))
        except InputError:
            # A word without an axis has a picture, too.
            if kind == "sentence":
                raise
        else:
            results[kind] = last["result"]
    html, _ = page.render(page.opening_walk(model), transport="notebook")
    state = address(Question("sentence", text, against, at))
    return ExplorerWidget(explorer, page=html, state=f"#{state}", results=results)
