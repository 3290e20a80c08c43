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

PAUSE = 0.002  # seconds between two steps of an answer: the notebook hears of a newer question
KEY_BYTES = 8  # of a frame's id, so that two explorers of a notebook do not share one
MIN_LIMIT = 1e-9  # of the tints' scale, so that a map of zeros divides by no zero


async def run_between_cells(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs it in the notebook's own thread, so never beside a cell, behind whatever waits there."""
    await asyncio.sleep(PAUSE)
    return function(*arguments)


class ExplorerWidget(anywidget.AnyWidget):
    """The explorer's page in a frame, which asks its questions by the widget's messages.

    `page`: its HTML · `state`: what stands in the address elsewhere · `outcome`: the sentence on
    what came out · `key`: the frame's own id.
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

    def _on_question(self, _: object, question: dict[str, Any], __: object) -> None:
        send = partial(self._send_answer, str(question.get("what")), question.get("number"))
        try:
            self.queue.put(question, send)
        except InputError as error:
            send({"error": str(error)})

    def _send_answer(self, what: str, number: object, message: Message) -> None:
        if "result" in message:
            self.results[what] = message["result"]
        self.send({"number": number} | message)

    def _update_picture(self, _: object) -> None:
        if self.picture is not None:
            self.picture.update(self._picture())

    def _picture(self) -> HTML:
        return HTML(picture(self.key, self.outcome, self.results))

    def _ipython_display_(self) -> None:
        """The page, and behind it the picture that a saved notebook shows."""
        bundle, metadata = self._repr_mimebundle_() or ({}, {})
        display(bundle | {"text/plain": "The explorer"}, metadata=metadata, raw=True)
        self.picture = display(self._picture(), display_id=True)


def picture(key: str, outcome: str, results: Mapping[str, Any]) -> str:
    """The sentences, what came out, and how far each head, swapped by itself, moves the word,
    layers down and heads across.

    `key`: the id of the frame in whose presence this is hidden · `outcome`: as the page says it;
    empty before it has said one, and the walk's answer stands there · `results`: the last ones of
    "sentence" and "along".
    """
    sentence = results["sentence"]
    values: dict[str, Any] = {
        "key": key,
        "outcome": outcome or sentence["block"]["answer"],
        "texts": [("This meaning", sentence["text"]), ("That meaning", sentence["other"])],
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
