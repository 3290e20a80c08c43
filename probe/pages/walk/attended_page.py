"""The walk through one attention as one HTML file, in the manner of `probe.pages.walk.page` and with parts of its templates."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from probe.charts import grid
from probe.model import attention
from probe.pages import excerpts, html
from probe.pages.walk import page
from probe.stats.numbers import scientific

if TYPE_CHECKING:
    from probe.pages.walk.attended import AttentionWalk
TABLES = {
    "tokens": "every token, its id, whether it is drawn",
    "attention": "every drawn token that looks and every one looked at: score and weight",
    "values": "what each token adds at the position that is followed",
    "heads": "every head at that position: length of ΔE, where it looks most",
    "next": "the likeliest next tokens after every token",
    "certificate": "the hooked model against the from-scratch math, row by row",
}
NAMES = {"query": "query: the target token that looks", "key": "key: the source token looked at"}


def render(walk: "AttentionWalk", manifest: Mapping[str, Any]) -> str:
    """The page of a walk through one attention; `manifest` says what made it."""
    templates = html.environment("walk", "report")
    values = {"tints": excerpts.TINTS, "bar": excerpts.BAR, "leaders": 0}
    tokens, certificate = walk.frames["tokens"], walk.frames["certificate"]
    return templates.get_template("attended.html.j2").render(
        walk=walk,
        kind="across" if walk.target is not None else "left to right" if walk.block["causal"] else "both ways",
        says_next="next" in walk.frames,
        sizes=walk.block["sizes"],
        texts={side: page.chips(part) for side, part in tokens.groupby("text", sort=False)},
        pictures={name: page.emptied(chart) for name, chart in pictures(walk).items()},
        formulas=page.formulas(attention.softmax, attention.write_by_source),
        certificate=told(certificate),
        rows=certificate.sort_values("error", ascending=False, kind="stable").to_dict("records"),
        repaired=sorted({note.removeprefix("repaired: ") for note in certificate["note"]} - {""}),
        downloads=[{"name": name, "what": TABLES[name], "rows": len(frame)} for name, frame in walk.frames.items()],
        manifest=manifest,
        data=html.as_json(walk.block),
        **html.assets(templates, sheet="walk.css.j2", script="attended.js", values=values),
    )


def pictures(walk: "AttentionWalk") -> dict[str, Any]:
    """Every chart of the page by name, of the head and position that are followed first."""
    cells, values = (walk.frames[name] for name in ("attention", "values"))
    cells = cells.assign(chosen=cells["query_pos"] == walk.at)
    named = grid.NAMES if walk.target is None else NAMES
    made = {
        f"pattern_{queries}": grid.token_grid(cells, "pattern", queries=queries, named=named)
        for queries in ("rows", "columns")
    }
    mine = values[values["key_pos"].isin(cells["key_pos"])]
    made["sources"] = grid.source_bars(mine)
    return made | ({"logits": grid.logit_bars(mine, str(walk.word))} if "logit" in mine else {})


def told(certificate: pd.DataFrame) -> str:
    """The certificate in a sentence."""
    worst = certificate.nlargest(1, "error").to_dict("records")[0]
    return (
        f"The hooked model and the from-scratch math agree: the largest of {len(certificate)} differences is "
        f"{scientific(worst['error'])} of its scale ({worst['quantity']}, {worst['where']}), allowed "
        f"{scientific(worst['tolerance'])}."
    )
