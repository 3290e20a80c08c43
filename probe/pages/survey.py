"""The page of a survey of many words, with one model or several next to each other.

The sentences are in the templates, which read the tables. With several models, the tables of each
are in a folder of its name. Models are compared in shares and counts of heads,
never by the numbers of heads.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from probe import charts
from probe.charts.palette import image
from probe.claims.heads import names_of
from probe.claims.survey import top_over_words
from probe.pages import html
from probe.pages.folder import downloads
from probe.pages.html import worst_first
from probe.results import frames as tables
from probe.results.columns import dictionary
from probe.stats.numbers import percent
from probe.studies.across import CLEAR, WORD_HEADS, WORDS, word_heads
from probe.studies.survey import Survey

MOST_WORDS = 500  # in the pictures of words; the tables have all
OUTLIER = 3.0  # distance from the effect over all words, in standard deviations between words
MOST_NUMBERS = 3  # of the file's columns in the table of words
CERTIFICATE = "survey_certificate"
LARGE = "survey_word_heads"  # a table that is too large for a CSV
NATURAL_TEXT = "evaluation_without.csv"  # the table of `probe evaluate --without`
Section = dict[str, Any]


def folders(surveys: Sequence[Survey]) -> list[str]:
    """The folder of each model's tables, relative to the page's folder: "" for a single model."""
    if len(surveys) == 1:
        return [""]
    names = [re.sub(r"[^\w.-]+", "-", survey.model_name).strip(".-") for survey in surveys]
    return [
        f"{name}/" if names.count(name) == 1 else f"{name}-{number}/"
        for number, name in enumerate(names, start=1)
    ]


def tables_of(survey: Survey) -> dict[str, pd.DataFrame]:
    """The tables of one model by name, and a dictionary of their columns, without the columns that
    come from the user's file.
    """
    frames = dict(survey.frames)
    frames[CERTIFICATE] = tables.certificate_rows(survey.certificate)
    described = frames | {
        "survey_words": frames["survey_words"][list(WORDS)],
        LARGE: pd.DataFrame(columns=list(WORD_HEADS)),
    }
    frames["survey_columns"] = dictionary(described, name="survey_columns")
    return frames


def made_together(manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One manifest of several models: values that differ between models are listed per model."""
    keys = (
        "model",
        "origin",
        "weights_sha256",
        "weights_stored_as",
        "weights_read_from",
        "described",
        "quantised",
        "dtype",
    )
    models = [{key: manifest[key] for key in keys} for manifest in manifests]
    return {key: value for key, value in manifests[0].items() if key not in keys} | {
        "models": models
    }


def natural_text(folder: Path) -> Section | None:
    """Accuracy on natural text with heads of a model taken out: the mean over words, each at its
    read-out layer, and the values of random sets; None if the folder has no such table.
    """
    path = folder / NATURAL_TEXT
    if not path.is_file():
        return None
    frame = pd.read_csv(path)
    # The depth chosen on training sentences differs between words, so its column is empty.
    rows = frame[frame["word"].isna() & frame["depth"].isna()].to_dict("records")
    by_word = frame[frame["word"].notna() & frame["depth"].isna()].to_dict("records")
    return {
        "rows": rows or by_word,
        "by_word": by_word if rows else [],
        "words": frame["word"].nunique(),
        "heads": _heads_taken_out(folder),
    }


def _heads_taken_out(folder: Path) -> list[str]:
    """The heads in the manifest of the evaluation, or of a page that was written after it; empty if
    the folder has none.
    """
    try:
        return list(json.loads((folder / "manifest.json").read_bytes()).get("without", []))
    except (OSError, ValueError, AttributeError):
        return []


def render(
    surveys: Sequence[Survey], manifest: Mapping[str, Any], places: Sequence[Section]
) -> str:
    """The page as one self-contained HTML file.

    manifest: everything but the time is shown
    places: of each model the `folder` of its tables, relative to the page's folder, its
        `natural_text` as `natural`, and the address of each word's page by word as `pages`
    """
    heads = [survey.frames["survey_heads"] for survey in surveys]
    words = _word_pictures(surveys)
    models: list[Section] = [
        {"id": number} | place | words[number] | _model(survey, place["folder"])
        for number, (survey, place) in enumerate(zip(surveys, places, strict=True))
    ]
    all_heads = pd.concat(heads, ignore_index=True)
    return html.page(
        "survey.html.j2",
        "survey.css.j2",
        *("survey", "report"),
        models=models,
        made=manifest,
        limit=max(map(charts.survey_limit, heads)),
        verdicts=charts.marked(all_heads.assign(verdict=charts.survey_verdicts(all_heads))),
        framed=bool((all_heads["comparison"].eq("more") & (all_heads["effect"] > 0)).any()),
        dictionary=tables_of(surveys[0])["survey_columns"].to_dict("records"),
        downloads=[row for model in models for row in model["downloads"]],
        clear=percent(CLEAR),
        outlier=f"{OUTLIER:g}",
        most_words=MOST_WORDS,
    )


def _model(survey: Survey, folder: str) -> Section:
    """One model: its frames, and what made them."""
    frames = survey.frames
    numbers: Any = next(frames["survey_model"].itertuples())
    further = frames["survey_words"].columns.difference(list(WORDS), sort=False)
    return {
        "name": survey.model_name,
        "origin": survey.origin,
        "source": survey.source,
        "said": survey.cautions,
        "frames": frames,
        "numbers": numbers,
        "further": [str(name) for name in further][:MOST_NUMBERS],
        "certificate": worst_first(tables.certificate_rows(survey.certificate)),
        "downloads": _downloads(tables_of(survey), numbers.words * numbers.heads, folder),
    }


def _cells(survey: Survey, number: int) -> pd.DataFrame:
    """The effect of each head that is shown on each measured word; of more than MOST_WORDS words
    those with the largest gaps.

    `effect` is missing if the word's gap is not clear; `outlier` marks an effect far from the
    effect over all words.
    """
    columns = {"effect": "over_words", "between_words": "between"}
    top = top_over_words(survey.frames["survey_heads"]).rename(columns=columns)
    if top.empty:
        return pd.DataFrame(columns=["word", "name", "effect"])
    top = top.assign(name=charts.palette.head_names(top))
    shown = top[["layer", "head", "name", *columns.values()]]
    cells = word_heads(survey.records, survey.depth).merge(shown)
    # The mean gap over words, at the depth where the head is read.
    mean_gap = cells.groupby("name")["gap"].transform("mean")
    words = survey.frames["survey_words"].reset_index(names="row").set_index("word")
    cells["share"] = cells["gap"] / mean_gap
    cells["effect"] = cells["effect"].where(cells["share"] >= CLEAR)
    far = (cells["effect"] - cells["over_words"]).abs() / cells["between"]
    cells["outlier"] = far > OUTLIER
    cells["kind"] = cells["word"].map(words["kind"])
    cells["target"] = [f"word-{number}-{row}" for row in cells["word"].map(words["row"])]
    drawn = words[words["reason"] == ""].nlargest(MOST_WORDS, "gap")
    return cells[cells["word"].isin(drawn.index)]


def _word_pictures(surveys: Sequence[Survey]) -> list[Section]:
    """For each model a picture for each head that is shown, all on one scale, and the number of
    words that are not drawn.
    """
    cells = [_cells(survey, number) for number, survey in enumerate(surveys)]
    effects = [0.0, *(effect for rows in cells for effect in rows["effect"].dropna())]
    limits = (min(effects), max(effects))
    pictures: list[Section] = []
    for survey, rows in zip(surveys, cells, strict=True):
        names = names_of(top_over_words(survey.frames["survey_heads"]))
        by_head = [rows[rows["name"] == name] for name in names]
        words = survey.frames["survey_model"]["words"].item()
        pictures.append(
            {
                "words": [charts.words_of_head(each, limits=limits) for each in by_head],
                "not_drawn": words - rows["word"].nunique() if names else 0,
            }
        )
    return pictures


def _downloads(frames: Mapping[str, pd.DataFrame], cells: int, folder: str) -> list[Section]:
    """The tables of one model. The table of all words and heads has this number of rows."""
    frames = {**frames, LARGE: pd.DataFrame(index=range(cells))}
    here = {f"{folder}{name}": frame for name, frame in frames.items()}
    return downloads(here, only_archived=[f"{folder}{LARGE}"])


def notebook_html(survey: Survey) -> str:
    """The HTML of a survey in a notebook: its answer, the map, and a line for each leading head."""
    heads = survey.frames["survey_heads"]
    picture = ""
    if survey.frames["survey_model"]["ranked"].item():
        picture = Markup(image(charts.survey_map(heads, limit=charts.survey_limit(heads))))
    return (
        html.environment("notebook", "survey", "report")
        .get_template("survey.html.j2")
        .render(name=survey.model_name, frames=survey.frames, picture=picture)
    )
