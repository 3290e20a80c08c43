"""The explorer in a notebook: the class that anywidget needs, and the picture that stays of it in a saved notebook.

Only `probe.explore` loads it.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path
from secrets import token_hex
from typing import Any

import anywidget
import numpy as np
import traitlets
from IPython.display import HTML, DisplayHandle, display

from probe.charts.palette import AGAINST, WITH
from probe.errors import InputError
from probe.explore.desk import Desk
from probe.explore.explorer import Explorer, Message
from probe.stats.numbers import decimal, percent

PAUSE = 0.002  # seconds in which a notebook hears of a newer question


async def between(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs it in the notebook's own thread, so never beside a cell, behind whatever waits there."""
    await asyncio.sleep(PAUSE)
    return function(*arguments)


class Explored(anywidget.AnyWidget):
    """The explorer's page in a frame, which asks its questions by the widget's messages.

    `page`: its HTML · `state`: what stands in the address elsewhere · `said`: the sentence on what came out · `key`:
    the frame's own id.
    """

    _esm = Path(__file__).parent / "templates" / "widget.js"
    page = traitlets.Unicode().tag(sync=True)
    state = traitlets.Unicode().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)

    def __init__(self, explorer: Explorer, *, page: str, state: str, results: dict[str, Message]) -> None:
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


CELL = "min-width:2.2em;padding:1px 4px;text-align:right;color:#222;background-color:{}"


def still(key: str, said: str, results: Mapping[str, Any]) -> str:
    """The sentences, what came out, and what each head adds to the word's coordinate.

    `key`: the id of the frame in whose presence this is hidden · `said`: the outcome as the page says it, the first
    answer where it has said none · `results`: the last ones of "sentence" and "along".
    """
    sentence, along = results["sentence"], results.get("along")
    given = {"This meaning": sentence["text"], "That meaning": sentence["other"]}
    texts = "".join(f"<p>{name}: “{escape(text)}”</p>" for name, text in given.items() if text)
    hidden = f"<style>:root:has(#explored-{key}) #still-{key}{{display:none}}</style>"
    shown = f"{texts}<p><b>{escape(said or sentence['block']['answer'])}</b></p>{_map(along) if along else ''}"
    return f'{hidden}<div id="still-{key}" style="background-color:#fff;color:#222;padding:8px">{shown}</div>'


def _map(along: Mapping[str, Any]) -> str:
    """What each head adds along the axis, layers down and heads across."""
    packed = along["arrays"]["toward"]
    moved = np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])
    limit = max(float(np.abs(moved).max()), 1e-9)
    head = "".join(f"<th>H{number}</th>" for number in range(moved.shape[1]))
    rows = "".join(
        f"<tr><th>L{layer}</th>{''.join(_cell(value, value / limit) for value in row)}</tr>"
        for layer, row in enumerate(moved.tolist())
    )
    a, b = map(escape, along["senses"])
    return (
        f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table><p>What each head adds to "
        f"the word's vector, in per cent of the way from “{b}” to “{a}”: violet towards “{a}”, ochre towards “{b}”.</p>"
    )


def _cell(value: float, share: float) -> str:
    hue = WITH if share > 0 else AGAINST
    tint = f"rgba({','.join(str(int(hue[at : at + 2], 16)) for at in (1, 3, 5))},{abs(share) ** 0.5 * 0.75:.2f})"
    shown = decimal(100 * value, 0) if abs(value) >= 0.005 else ""
    return f'<td style="{CELL.format(tint)}" title="{percent(value, 2)}">{shown}</td>'
