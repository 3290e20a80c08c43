"""What stays of an explorer in a saved notebook: HTML without scripts, hidden while the explorer itself is there."""

import base64
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from probe.charts.palette import AGAINST, WITH
from probe.stats.numbers import decimal, percent

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
