"""The walk through cross-attention as one HTML file, in the manner of `probe.walk.page` and with parts of its templates."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from probe import attention
from probe.charts import grid, weights
from probe.numerals import scientific
from probe.pages import html
from probe.report import excerpts
from probe.walk import page

if TYPE_CHECKING:
    from probe.walk.cross import CrossWalk

TABLES = {
    "tokens": "every token of both texts, its id, whether it is drawn",
    "attention": "every target token and every source token: score and weight",
    "values": "what each source token adds at the position that is followed",
    "heads": "every head of cross-attention at that position: length of ΔE, where it looks most",
    "next": "the likeliest next tokens after every target token",
    "certificate": "the hooked model against the from-scratch math, row by row",
}
NAMES = {"query": "query: the target token that looks", "key": "key: the source token looked at"}


def render(walk: "CrossWalk", manifest: Mapping[str, Any]) -> str:
    """The page of a walk through cross-attention; `manifest` says what made it."""
    templates = html.environment("probe.walk", "probe.report")
    values = {"tints": excerpts.TINTS, "bar": excerpts.BAR, "leaders": 0}
    tokens, certificate = walk.frames["tokens"], walk.frames["certificate"]
    return templates.get_template("cross.html.j2").render(
        walk=walk,
        sizes=walk.block["sizes"],
        texts={side: page.chips(tokens[tokens["text"] == side]) for side in ("source", "target")},
        pictures={name: page.emptied(chart) for name, chart in pictures(walk).items()},
        formulas=page.formulas(attention.softmax, attention.write_by_source),
        certificate=told(certificate),
        rows=certificate.sort_values("error", ascending=False, kind="stable").to_dict("records"),
        repaired=sorted({note.removeprefix("repaired: ") for note in certificate["note"]} - {""}),
        downloads=[{"name": name, "what": TABLES[name], "rows": len(frame)} for name, frame in walk.frames.items()],
        manifest=manifest,
        data=html.as_json(walk.block),
        **html.assets(templates, sheet="walk.css.j2", script="cross.js", values=values),
    )


def pictures(walk: "CrossWalk") -> dict[str, Any]:
    """Every chart of the page by name, of the head and position that are followed first."""
    tokens, cells, values = (walk.frames[name] for name in ("tokens", "attention", "values"))
    drawn = {side: tokens[(tokens["text"] == side) & tokens["drawn"]]["pos"] for side in ("source", "target")}
    shown = cells[cells["query_pos"].isin(drawn["target"]) & cells["key_pos"].isin(drawn["source"])]
    shown = shown.assign(allowed=True, chosen=shown["query_pos"] == walk.at)
    made = {
        f"pattern_{queries}": grid.token_grid(shown, "pattern", queries=queries, named=NAMES)
        for queries in ("rows", "columns")
    }
    mine = values[values["key_pos"].isin(drawn["source"])]
    made["sources"] = weights.source_bars(mine)
    return made | ({} if walk.word is None else {"logits": weights.logit_bars(mine, walk.word)})


def told(certificate: pd.DataFrame) -> str:
    """The certificate in a sentence."""
    worst = certificate.nlargest(1, "error").to_dict("records")[0]
    return (
        f"The hooked model and the from-scratch math agree: the largest of {len(certificate)} differences is "
        f"{scientific(worst['error'])} of its scale ({worst['quantity']}, {worst['where']}), allowed "
        f"{scientific(worst['tolerance'])}."
    )
