"""The page of a study, and the view of a result in a notebook.

Without scripts the page still has its answers, sentences and tables. The view in a notebook is HTML
without scripts and with its pictures inside, so that it works where the notebook is only read.
"""

from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from probe import charts
from probe.charts import head_maps
from probe.charts.grid import head_grids
from probe.charts.palette import SENSES, image
from probe.claims import Frames
from probe.claims.senses import senses_of
from probe.display import html_of
from probe.model.records import Trace
from probe.pages import html, sections
from probe.pages.cues import notebook_html as cues_html
from probe.pages.survey import notebook_html as survey_html
from probe.results.frames import without_rows
from probe.results.tables import PageTables, rows_by_word
from probe.studies.cues import Cues
from probe.studies.evaluation import Evaluation
from probe.studies.study import Study
from probe.studies.survey import Survey


def render(frames: Frames, manifest: Mapping[str, Any], only_archived: Collection[str] = ()) -> str:
    """The page of a study as HTML.

    frames: its tables, by name, with those that describe its columns and verdicts
    manifest: model, options and versions; everything but the time of day is on the page.
    only_archived: the tables that are not written as CSV
    """
    page_sections = sections.sections_of(frames)
    frames = PageTables(without_rows() | dict(frames))
    by_word = rows_by_word(frames)
    return html.page(
        "ambiguity.html.j2",
        "style.css.j2",
        *("report", "survey"),
        sections=page_sections,
        headings=sections.under_headings(page_sections),
        frames=frames,
        by_word=by_word,
        hues={word: hues(rows["words"]) for word, rows in by_word.items()},
        model_name=manifest["model"],
        manifest=manifest,
        only_archived=only_archived,
    )


def hues(words: pd.DataFrame) -> dict[str, str]:
    """By sense, the name of the hue in the style sheet.

    words: the rows of one word in this table
    """
    return {sense: f"s{number % len(SENSES)}" for number, sense in enumerate(senses_of(words))}


html_of.register(Survey, survey_html)
html_of.register(Cues, cues_html)


@html_of.register
def _trace(trace: Trace) -> str:
    """Tokens, the attention of every head, and the contents of the trace."""
    names = ["layer", "head", "query_pos", "key_pos"]
    index = pd.MultiIndex.from_product([*map(range, trace.pattern.shape)], names=names)
    weights = pd.Series(
        trace.pattern.flatten().double().numpy(), index, name="weight"
    ).reset_index()
    picture = Markup(image(head_grids(weights, tokens=len(trace.tokens))))
    return (
        html.environment("notebook")
        .get_template("trace.html.j2")
        .render(
            model_name=trace.model_name,
            labels=trace.tokens.labels,
            sizes=trace.stack.shape,
            picture=picture,
        )
    )


@html_of.register
def _evaluation(evaluation: Evaluation) -> str:
    """The means over the words; with heads taken out, a picture of them and their table as well."""
    tables = [evaluation.mean]
    picture = ""
    if evaluation.without is not None:
        without = evaluation.without
        tables.append(without[without["word"].isna()].drop(columns="word"))
        chart = charts.accuracy_without(without, evaluation.heads_out, bag=evaluation.bag_accuracy)
        picture = image(chart)
    means, *further = (
        frame.to_html(index=False, float_format="{:.3f}".format, na_rep="") for frame in tables
    )
    return "".join([means, picture, *further])


@html_of.register
def _study(study: Study) -> str:
    """The answer, the maps, and a line for each word."""
    frames = PageTables(without_rows() | study.frames)
    word_heads = study.frames["word_heads"]
    picture = Markup(image(head_maps(word_heads))) if len(word_heads) else ""
    return (
        html.environment("notebook", "report")
        .get_template("study.html.j2")
        .render(
            model_name=study.model_name,
            origin=study.origin.kind,
            quantised=study.origin.quantised(study.certificate.dtype),
            frames=frames,
            by_word=rows_by_word(frames),
            names=list(study.frames),
            picture=picture,
        )
    )
