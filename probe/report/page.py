"""The ambiguity report as one HTML file: no network, no eval, every text escaped, the same bytes from the same study.

The same bytes: with one set of versions, which stand on the page.
What keeps the file by itself is in `probe.pages.html`; without scripts the answers, the tokens and the tables are still there.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probe import charts
from probe.pages import html
from probe.report import answers, appendix, evidence, excerpts, sections
from probe.verdicts import ORDER

if TYPE_CHECKING:
    from probe.study import Study


def render(study: "Study", manifest: Mapping[str, Any]) -> str:
    """The page of a study; `manifest` says what made it (everything but the time is shown)."""
    frames, columns = study.frames, appendix.dictionary(study.frames)
    templates = html.environment("probe.report")
    values = {"tints": excerpts.TINTS, "bar": excerpts.BAR, "leaders": answers.LEADERS}
    return templates.get_template("ambiguity.html.j2").render(
        all_verdicts=[(name, charts.MARKS[name], charts.MEANINGS[name]) for name in ORDER],
        causal=bool(frames["words"]["causal"].all()),
        model_name=study.model_name,
        heading=sections.heading(frames, study.model_name),
        cards=sections.cards(frames),
        maps=sections.maps(frames),
        readings=excerpts.readings(frames),
        shares=sections.shares(frames),
        every_head=sections.every_head(frames),
        showcase=excerpts.showcase(frames),
        together=evidence.together(frames),
        believe=evidence.believe(frames),
        comes_about=evidence.comes_about(frames),
        supplied=evidence.supplied(frames),
        certificate=appendix.certificate(frames["certificate"]),
        data=appendix.data_used(frames),
        downloads=appendix.downloads(frames | {"columns": columns}),
        dictionary=columns.to_dict("records"),
        manifest=manifest,
        **html.assets(templates, sheet="style.css.j2", script="page.js", values=values),
    )
