"""The report of a study: a folder with one page, its tables, and what made them.

rows                       frames -> the heads, words and sets that a page speaks of
opening                    frames -> the first screen
answers, remarks           frames -> the sentences that may be said
sections, excerpts, ways   frames -> the values of the page's sections
graph                      frames -> attribution graphs for other viewers
folder                     page, tables and manifest -> files

The page is one HTML file: no network, no eval, every text escaped, the same bytes from the same study. What keeps the
file by itself is in `probe.pages.html`; without scripts the answers, the tokens and the tables are still there.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe import charts
from probe.pages import excerpts, graph, html, opening, remarks, sections, ways
from probe.pages.folder import REPORT, check_folder, write_folder
from probe.provenance import manifest
from probe.stats.verdicts import ORDER
from probe.study.columns import LEADERS

if TYPE_CHECKING:
    from probe.study.study import Study


def render(study: "Study", manifest: Mapping[str, Any]) -> str:
    """The page of a study; `manifest` says what made it (everything but the time is shown)."""
    frames, columns = study.frames, sections.dictionary(study.frames)
    templates = html.environment("report")
    values = {"tints": excerpts.TINTS, "bar": excerpts.BAR, "leaders": LEADERS}
    return templates.get_template("ambiguity.html.j2").render(
        all_verdicts=[(name, charts.MARKS[name], charts.MEANINGS[name]) for name in ORDER],
        causal=bool(frames["words"]["causal"].all()),
        predicts=bool(frames["heads"]["p_said"].notna().any()),
        model_name=study.model_name,
        opening=opening.opening(frames, study.model_name, manifest["origin"]["kind"]),
        scope=remarks.scope(frames),
        cards=sections.cards(frames),
        maps=sections.maps(frames),
        readings=excerpts.readings(frames),
        shares=sections.shares(frames),
        every_head=sections.every_head(frames),
        showcase=excerpts.showcase(frames),
        ways=ways.section(frames),
        together=sections.together(frames),
        believe=sections.controls_and_power(frames),
        comes_about=sections.distances_and_routes(frames),
        supplied=excerpts.ledgers(frames),
        certificate=sections.certificate(frames["certificate"]),
        data=sections.data_used(frames),
        downloads=sections.downloads(frames | {"columns": columns}),
        dictionary=columns.to_dict("records"),
        manifest=manifest,
        **html.assets(templates, sheet="style.css.j2", script="page.js", values=values),
    )


def write_report(study: "Study", out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write the page, its tables and the manifest into the folder `out`, and return the path of the page.

    `command` is printed on the page as what made it. Raises InputError when the folder cannot be written.
    """
    check_folder(out)
    made = manifest(
        study.model_name,
        study.origin,
        seed=study.options["seed"],
        command=command,
        data_sha256=study.data_sha256,
        dtype=study.certificate.dtype,
        options=study.options,
    )
    frames = study.frames | {"columns": sections.dictionary(study.frames)}
    files = {REPORT: render(study, made)} | graph.files(study.frames, study.model_name)
    return write_folder(out, files, frames=frames, made=made) / REPORT
