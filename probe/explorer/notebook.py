"""The explorer as a value that a notebook shows: Jupyter, VS Code, marimo."""

from dataclasses import dataclass

from markupsafe import Markup

from probe.explorer.page import Question
from probe.explorer.saved import page_steps
from probe.explorer.session import Explorer
from probe.model.load import ModelSource, load
from probe.text.spans import shorten

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
    model = load(model)
    question = Question("save", text, against, at)
    *_, (_, html) = page_steps(model, Explorer(model).answer, question)
    texts = (text,) if against is None else (text, against)
    return ExplorerPage(model.name, texts, html)
