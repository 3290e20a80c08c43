"""The explorer in a notebook: the class that anywidget needs, and the picture that stays of it in a
saved notebook.

Only `probe.explore` loads it.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping
from functools import partial
from secrets import token_hex
from typing import Any

import anywidget
import numpy as np
import traitlets
from IPython.display import HTML, DisplayHandle, display

from probe.charts.palette import AGAINST, WITH
from probe.errors import InputError
from probe.explorer.page import TEMPLATES
from probe.explorer.request_queue import RequestQueue
from probe.explorer.session import Explorer, Message
from probe.pages.html import environment, rgb
from probe.text.spans import shorten

PAUSE = 0.002  # seconds between two steps of an answer, in which a newer question can arrive
KEY_BYTES = 8  # of a frame's random id, so that two explorers of a notebook differ
MIN_LIMIT = 1e-9  # of the tints' scale, so that a map of zeros divides by no zero


async def run_between_cells(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a function in the notebook's thread, between cells and after the waiting tasks."""
    await asyncio.sleep(PAUSE)
    return function(*arguments)


class ExplorerWidget(anywidget.AnyWidget):
    """The explorer's page in a frame, which asks its questions by the widget's messages.

    page: its HTML
    state: the page's state, which a server's page keeps in its address
    outcome: the headline of the page
    key: the id of the frame
    """

    _esm = TEMPLATES / "widget.js"
    page = traitlets.Unicode().tag(sync=True)
    state = traitlets.Unicode().tag(sync=True)
    outcome = traitlets.Unicode().tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)

    def __init__(
        self, explorer: Explorer, *, page: str, state: str, results: dict[str, Message]
    ) -> None:
        super().__init__(page=page, state=state, key=token_hex(KEY_BYTES))
        self.queue = RequestQueue(explorer, run_between_cells)
        self.results = results
        self.picture: DisplayHandle | None = None
        self.on_msg(self._on_question)
        self.observe(self._update_picture, "outcome")

    def __repr__(self) -> str:
        sentence = self.results["sentence"]
        texts = [sentence["text"], sentence["other"]]
        shown = " against ".join(repr(shorten(text)) for text in texts if text is not None)
        return f"<ExplorerWidget of {self.queue.explorer.model.name}: {shown}>"

    def _on_question(self, _: object, question: dict[str, Any], __: object) -> None:
        send = partial(self._send_answer, str(question.get("what")), question.get("number"))
        try:
            self.queue.put(question, send)
        except InputError as error:
            send({"error": str(error)})

    def _send_answer(self, kind: str, number: object, message: Message) -> None:
        if "result" in message:
            self.results[kind] = message["result"]
        self.send({"number": number} | message)

    def _update_picture(self, _: object) -> None:
        if self.picture is not None:
            self.picture.update(self._picture())

    def _picture(self) -> HTML:
        return HTML(picture(self.key, self.outcome, self.results))

    def _ipython_display_(self) -> None:
        """Displays the page, and then the picture that a saved notebook shows."""
        bundle, metadata = self._repr_mimebundle_() or ({}, {})
        display(bundle | {"text/plain": "The explorer"}, metadata=metadata, raw=True)
        self.picture = display(self._picture(), display_id=True)


def picture(key: str, outcome: str, results: Mapping[str, Any]) -> str:
    """HTML of the sentences, the headline, and the map of how far each head moves the word when it
    alone is swapped, layers down and heads across.

    key: the id of the frame; while it is on the page, this is hidden
    outcome: the headline of the page; if it is empty, the walk's answer is used
    results: the last results of "sentence" and "along"
    """
    sentence = results["sentence"]
    values: dict[str, Any] = {
        "key": key,
        "outcome": outcome or sentence["block"]["answer"],
        "texts": [("sentence", sentence["text"]), ("other meaning", sentence["other"])],
        "effects": None,
    }
    along = results.get("along")
    packed = sentence["block"]["arrays"].get("swap")
    if along is not None and packed is not None:
        effects = np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])
        values["effects"] = effects.tolist()
        values["limit"] = max(float(np.abs(effects).max()), MIN_LIMIT)
        values["senses"] = along["senses"]
        values["positive_rgb"] = ",".join(rgb(WITH))
        values["negative_rgb"] = ",".join(rgb(AGAINST))
    return environment(TEMPLATES).get_template("picture.html.j2").render(values)
