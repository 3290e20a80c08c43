"""The one writer of every kind of result: a folder with its page, its tables and what made them."""

import os
from collections.abc import Mapping, Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

import pandas as pd

from probe import display
from probe.charts import palette
from probe.charts.ablation import accuracy_without
from probe.experiments.store import write_tree
from probe.pages import cues as cues_page
from probe.pages import frame as frame_page
from probe.pages import report as report_page
from probe.pages import survey as survey_page
from probe.pages.folder import (
    CUES,
    EVALUATION,
    EVALUATION_ARCHIVE,
    HEADS,
    HEADS_TABLE,
    MAIN_TABLES,
    REPORT,
    SURVEY,
    check_folder,
    made_by,
    write_folder,
)
from probe.pages.verdicts import with_reasons
from probe.provenance import versions, write_atomically
from probe.results.columns import dictionary
from probe.studies.across import WORDS, word_heads
from probe.studies.cues import Cues
from probe.studies.evaluation import Evaluation
from probe.studies.study import Study
from probe.studies.survey import Survey
from probe.studies.words import WORDS as WORDS_FOLDER
from probe.studies.words import file_name

PAGES = "pages"  # the folder of the pages of single words, next to the page of a survey


@singledispatch
def write(
    result: Any, out: str | os.PathLike[str], *, command: str = "", tables: bool = False
) -> Path:
    """Write a study, a walk, a survey, a cue scan, an evaluation, or the frame of `probe.patch` or
    `probe.delta_e` into the folder `out`: its page, its tables and the manifest.

    Returns the path of the page; of an evaluation, which has none, that of the folder. `command` is
    named as what made it. `tables`: of a study, every table as CSV instead of the main five; all
    are in `tables.zip` as well. The same result gives the same bytes; times of day live only in the
    manifest. Raises InputError when the folder cannot be written and for a frame without a number
    for each head, TypeError for any other kind of result.

    Example:
        >>> walk = probe.walk("tiny-senses", "The old tree by the bank", at="bank")
        >>> probe.write(walk, "out").name
        'walk.html'
    """
    # A package above this one may write it: the walk's.
    display.register_formatters()
    writer = write.dispatch(type(result))
    if writer is not write.dispatch(object):
        chosen = {"tables": tables} if isinstance(result, Study) else {}
        return writer(result, out, command=command, **chosen)
    raise TypeError(
        f"Cannot write a {type(result).__name__}: expected what probe.study, walk, survey, cues, "
        "evaluate, patch or delta_e returns. Give one of these."
    )


@write.register
def write_report(
    study: Study, out: str | os.PathLike[str], *, command: str = "", tables: bool = False
) -> Path:
    """The page and tables of a study, as `write` has them."""
    check_folder(out, REPORT)
    manifest = made_by(study, command) | {"frames": list(study.frames)}
    manifest["records"] = dict(zip(study.data, study.files))
    if study.unfinished:
        manifest["unfinished"] = study.unfinished
    frames = dict(study.frames)
    frames["verdicts"] = with_reasons(frames["verdicts"], frames["heads"], frames["words"])
    frames["columns"] = dictionary(without_further_columns(frames))
    only_archived = () if tables else frames.keys() - MAIN_TABLES
    page = report_page.render(frames, manifest, only_archived)
    for tree, name in zip(study.data.values(), study.files):
        write_tree(Path(out) / WORDS_FOLDER / name, tree)
    folder = write_folder(
        out, {REPORT: page}, frames=frames, manifest=manifest, only_archived=only_archived
    )
    return folder / REPORT


def without_further_columns(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The frames without the columns that a user's file adds, which only the user can describe."""
    if "survey_words" not in frames:
        return dict(frames)
    return {**frames, "survey_words": frames["survey_words"][list(WORDS)]}


@write.register
def write_cues(cues: Cues, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """The page and tables of a cue scan, as `write` has them."""
    check_folder(out, CUES)
    manifest = made_by(cues, command) | {"frames": list(cues.frames)}
    page = cues_page.render(cues, manifest)
    frames = cues_page.tables_of(cues)
    folder = write_folder(
        out, {CUES: page}, frames=frames, manifest=manifest, only_archived=cues_page.ONLY_ARCHIVED
    )
    return folder / CUES


@write.register
def write_frame(frame: pd.DataFrame, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """The page and the rows of a frame of heads, as `write` has them."""
    check_folder(out, HEADS, tables=[HEADS_TABLE])
    about = {name: frame.attrs.get(name, "") for name in ("model", "measured")}
    manifest = about | {"command": command, "versions": versions()}
    page = frame_page.render(frame, manifest)
    tables = {HEADS_TABLE: frame}
    return write_folder(out, {HEADS: page}, frames=tables, manifest=manifest) / HEADS


@write.register
def write_evaluation(
    evaluation: Evaluation, out: str | os.PathLike[str], *, command: str = ""
) -> Path:
    """The tables of an evaluation (`evaluation_words.csv`, ...) and what their columns say, as
    `write` has them; with heads taken out, a picture of `evaluation_without.csv`."""
    check_folder(out, EVALUATION)
    frames = {f"evaluation_{name}": frame for name, frame in evaluation.frames.items()}
    frames["evaluation_columns"] = dictionary(frames, name="evaluation_columns")
    files = {}
    if evaluation.without is not None:
        files["evaluation_without.svg"] = palette.svg(
            accuracy_without(evaluation.without, evaluation.heads_out, bag=evaluation.bag_accuracy)
        )
    manifest = evaluation.manifest | {"command": command, "said": evaluation.cautions}
    return write_folder(out, files, frames=frames, manifest=manifest, archive=EVALUATION_ARCHIVE)


@write.register
def write_survey(survey: Survey, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """The page and the tables of one survey, as `write` has them."""
    return write_surveys([survey], out, command=command)


def write_surveys(
    surveys: Sequence[Survey], out: str | os.PathLike[str], *, command: str = ""
) -> Path:
    """Write the page of the surveys of one or several models, their tables and the manifest;
    returns the path of the page.

    The tables of one model are in `out`, the tables of several in one folder each. Raises
    InputError when the folder cannot be written.
    """
    check_folder(out, SURVEY)
    frames: dict[str, pd.DataFrame] = {}
    only_archived = []
    places = []
    for survey, folder in zip(surveys, survey_page.folders(surveys), strict=True):
        tables = survey_page.tables_of(survey)
        tables[survey_page.LARGE] = word_heads(survey.records, survey.depth)
        frames |= {f"{folder}{name}": frame for name, frame in tables.items()}
        only_archived.append(f"{folder}{survey_page.LARGE}")
        here = Path(out) / folder
        pages = _write_pages(survey, here, command)
        _keep_records(survey, here / WORDS_FOLDER)
        natural = survey_page.natural_text(here)
        places.append({"folder": folder, "natural": natural, "pages": pages})
    manifests = [_made_by(survey, command) for survey in surveys]
    whole = manifests[0] if len(manifests) == 1 else survey_page.made_together(manifests)
    if len(surveys) == 1 and natural is not None:
        # This manifest takes the place of the evaluation's.
        whole |= {"without": natural["heads"]}
    page = survey_page.render(surveys, whole, places)
    whole_folder = write_folder(
        out, {SURVEY: page}, frames=frames, manifest=whole, only_archived=only_archived
    )
    return whole_folder / SURVEY


def _keep_records(survey: Survey, folder: Path) -> None:
    """Store the records of the words next to the page, where `probe.read` finds them."""
    for record in survey.files:
        if not (folder / record.name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / record.name, record.read_bytes())


def _made_by(survey: Survey, command: str) -> dict[str, Any]:
    """The manifest of one survey."""
    return made_by(survey, command) | {
        "sentences": survey.source,
        "frames": list(survey.frames),
        "said": survey.cautions,
        "records": [file.name for file in survey.files],
    }


def _write_pages(survey: Survey, folder: Path, command: str) -> dict[str, str]:
    """Write the pages of the words that were measured in full. By word the link to its page."""
    links: dict[str, str] = {}
    for study in survey.studies():
        [word] = study.words["word"].unique()
        name = file_name(word)
        if f"{PAGES}/{name}/{REPORT}" in links.values():
            name += f"-{len(links)}"
        links[word] = f"{PAGES}/{name}/{REPORT}"
        write_report(study, folder / PAGES / name, command=command)
    return links
