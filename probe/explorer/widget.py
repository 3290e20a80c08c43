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
from probe.explorer.request_queue import Desk
from probe.explorer.session import Explorer, Message
from probe.pages.output import environment, rgb

PAUSE = 0.002  # seconds in which a notebook hears of a newer question


async def between(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs it in the notebook's own thread, so never beside a cell, behind whatever waits there."""
    await asyncio.sleep(PAUSE)
    return function(*arguments)


class Explored(anywidget.AnyWidget):
    """The explorer's page in a frame, which asks its questions by the widget's messages.

    `page`: its HTML · `state`: what stands in the address elsewhere · `said`: the sentence on what
    came out · `key`: the frame's own id.
    """

    _esm = TEMPLATES / "widget.js"
    page = traitlets.Unicode().tag(sync=True)
    state = traitlets.Unicode().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)

    def __init__(
        self, explorer: Explorer, *, page: str, state: str, results: dict[str, Message]
    ) -> None:
        super().__init__(page=page, state=state, key=token_hex(8))
        self.desk, self.results = Desk(explorer, between), results
        self.kept: DisplayHandle | None = None
        self.on_msg(self._asked)
        self.observe(self._keep, "said")

    def _asked(self, _: object, asked: dict[str, Any], __: object) -> None:
        tell = partial(self._tell, str(asked.get("what")), asked.get("number"))
        try:
            self.desk.take(asked, tell)
        except InputError as error:
            tell({"error": str(error)})

    def _tell(self, what: str, number: object, message: Message) -> None:
        if "result" in message:
            self.results[what] = message["result"]
        self.send({"number": number} | message)

    def _keep(self, _: object) -> None:
        if self.kept is not None:
            self.kept.update(self._still())

    def _still(self) -> HTML:
        return HTML(still(self.key, self.said, self.results))

    def _ipython_display_(self) -> None:
        """The page, and behind it the picture that a saved notebook shows."""
        bundle, metadata = self._repr_mimebundle_() or ({}, {})
        display(bundle | {"text/plain": "The explorer"}, metadata=metadata, raw=True)
        self.kept = display(self._still(), display_id=True)


def still(key: str, said: str, results: Mapping[str, Any]) -> str:
    """The sentences, what came out, and what each head adds to the word's coordinate, layers down
    and heads across.

    `key`: the id of the frame in whose presence this is hidden · `said`: the outcome as the page
    says it, the first answer where it has said none · `results`: the last ones of "sentence" and
    "along".
    """
    sentence, along = results["sentence"], results.get("along")
    shown: dict[str, Any] = {
        "key": key,
        "said": said or sentence["block"]["answer"],
        "moved": None,
    }
    shown["texts"] = [("This meaning", sentence["text"]), ("That meaning", sentence["other"])]
    if along is not None:
        packed = along["arrays"]["toward"]
        moved = np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])
        shown |= {
            "moved": moved.tolist(),
            "limit": max(float(np.abs(moved).max()), 1e-9),
            "senses": along["senses"],
        }
        shown |= {"towards": ",".join(rgb(WITH)), "away": ",".join(rgb(AGAINST))}
    return environment(TEMPLATES).get_template("still.html.j2").render(shown)
