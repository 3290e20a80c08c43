"""The report of a study: a folder with one page, its tables and graphs, and what made them; what a
notebook shows of a result; and the one writer of every kind of result.

Without scripts the answers, the tokens and the tables of the page are still there. A notebook shows
HTML without scripts, its pictures inside, so that it stays when the notebook is saved, sent and
opened where nothing runs.
"""

import os
from collections.abc import Mapping
from functools import singledispatch
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from probe import charts
from probe.charts import grid, heads
from probe.charts.palette import image
from probe.display import html_of
from probe.evidence.columns import LEADERS, dictionary
from probe.evidence.evaluation import Evaluation
from probe.evidence.study import Study
from probe.model.records import Trace
from probe.pages import excerpts, output, remarks, sections, ways
from probe.pages.output import REPORT
from probe.pages.rows import Frames
from probe.pages.walk import notebook_html, write_walk
from probe.stats.verdicts import ORDER
from probe.walkthrough.walk import Walk


@singledispatch
def write(result: Any, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write a study, a walk or an evaluation into the folder `out`: its page, its tables and the
    manifest.

    Returns the path of the page; of an evaluation, which has none, that of the folder. `command` is
    named as what made it. The same result gives the same bytes; times of day live only in the
    manifest. Raises InputError when the folder cannot be written, TypeError for any other kind of
    result.

    Example:
        >>> walk = probe.walk("tiny-senses", "The old tree by the bank", word="bank")
        >>> probe.write(walk, "out").name
        'walk.html'
    """
    raise TypeError(
        f"write: got a {type(result).__name__}, expected what probe.study, walk or evaluate returns"
    )


write.register(Walk, write_walk)
write.register(Evaluation, output.write_evaluation)


@write.register
def write_report(study: Study, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """The page, tables and graphs of a study, as `write` has them."""
    output.check_folder(out)
    made = output.made_by(study, command)
    frames = study.frames | {"columns": dictionary(study.frames)}
    files = {REPORT: render(frames, made)} | ways.graphs(frames, study.model_name)
    return output.write_folder(out, files, frames=frames, made=made) / REPORT


def render(frames: Frames, made: Mapping[str, Any]) -> str:
    """The page of a study's frames; `made` is the manifest (everything but the time is shown)."""
    templates = output.environment("report")
    return templates.get_template("ambiguity.html.j2").render(
        all_verdicts=[(name, charts.MEANINGS[name]) for name in ORDER],
        causal=bool(frames["words"]["causal"].all()),
        predicts=bool(frames["heads"]["p_next_token"].notna().any()),
        model_name=made["model"],
        opening=excerpts.opening(frames, made["model"], made["origin"]["kind"]),
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
        downloads=sections.downloads(frames),
        dictionary=frames["columns"].to_dict("records"),
        manifest=made,
        **output.assets(templates, "style.css.j2", "page.js", leaders=LEADERS),
    )


html_of.register(Walk, notebook_html)


@html_of.register
def _trace(trace: Trace) -> str:
    """Tokens, the attention of every head, and what the trace holds."""
    names = ["layer", "head", "query_pos", "key_pos"]
    index = pd.MultiIndex.from_product([*map(range, trace.pattern.shape)], names=names)
    weights = pd.Series(
        trace.pattern.flatten().double().numpy(), index, name="weight"
    ).reset_index()
    picture = Markup(image(grid.head_grids(weights, tokens=len(trace.tokens))))
    shown = {
        "model_name": trace.model_name,
        "labels": trace.tokens.labels,
        "sizes": trace.stack.shape,
    }
    return (
        output.environment("notebook").get_template("trace.html.j2").render(shown, picture=picture)
    )


@html_of.register
def _study(study: Study) -> str:
    """The first screen of its report: the answer, the maps, and a line for each word."""
    frames = study.frames
    opening = excerpts.opening(frames, study.model_name, study.origin.kind)
    picture = (
        Markup(image(heads.head_maps(frames["word_heads"]))) if len(frames["word_heads"]) else ""
    )
    shown = {"model_name": study.model_name, "opening": opening, "frames": frames}
    return (
        output.environment("notebook").get_template("study.html.j2").render(shown, picture=picture)
    )
