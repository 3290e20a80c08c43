"""A result that was written, read back from its folder."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from probe.errors import InputError
from probe.model.check import Certificate, Row
from probe.pages.cues import CERTIFICATE as CUES_CERTIFICATE
from probe.pages.folder import (
    CUES,
    EVALUATION,
    MANIFEST,
    REPORT,
    SURVEY,
    WALK_RECORD,
    manifest_of,
)
from probe.pages.survey import CERTIFICATE
from probe.provenance import Origin
from probe.results.cues import Cues
from probe.results.evaluation import Evaluation
from probe.studies.study import Study
from probe.studies.survey import Survey
from probe.studies.words import WORDS
from probe.walkthrough.saved import read_walk
from probe.walkthrough.walk import Walk

Result = Study | Survey | Cues | Walk | Evaluation


def read(folder: str | os.PathLike[str]) -> Result:
    """The study, survey, cue scan, walk or evaluation that `probe.write` wrote into a folder.

    `probe.write` of what is returned writes the same page and tables again, byte for byte. The
    records of a survey's words are read when they are asked for, and must still be in the folder.
    Raises InputError for a folder without such a result, or one of which a table is missing.

    Example:
        >>> walk = probe.walk("tiny-senses", "The old tree by the bank", at="bank")
        >>> page = probe.write(walk, "out")
        >>> probe.read("out")
        <Walk at 'bank' through L1H2 of tiny-senses: 16 tables>
    """
    place = Path(folder)
    made = manifest_of(place)
    files = made.get("files", {})
    if REPORT in files:
        return _study(place, made)
    if SURVEY in files and "models" not in made:
        return _survey(place, made)
    if CUES in files:
        return _cues(place, made)
    if EVALUATION in files:
        return _evaluation(place, made)
    if WALK_RECORD in files:
        return read_walk(place / WALK_RECORD, _frames(place, made["frames"]))
    problem = f"no {MANIFEST} of a result is in it"
    step = "give the folder that probe.write or a command wrote into"
    if "models" in made:
        problem = "it holds the surveys of several models on one page"
        step = "survey one model into a folder of its own, or read the tables as Parquet"
    raise InputError(f"Reading the result in {place}: {problem}; {step}.")


def _study(place: Path, made: Mapping[str, Any]) -> Study:
    frames = _frames(place, made["frames"])
    frames["verdicts"] = frames["verdicts"].drop(columns="because")
    return Study(
        model_name=made["model"],
        origin=_origin(made),
        options=made["options"],
        certificate=_certificate(made, frames["certificate"]),
        frames=frames,
        data_sha256=made["data_sha256"],
        unfinished=tuple(made.get("unfinished", ())),
    )


def _survey(place: Path, made: Mapping[str, Any]) -> Survey:
    frames = _frames(place, made["frames"])
    return Survey(
        model_name=made["model"],
        origin=_origin(made),
        options=made["options"],
        certificate=_certificate(made, _frames(place, [CERTIFICATE])[CERTIFICATE]),
        source=made["sentences"],
        data_sha256=made["data_sha256"],
        depth=int(frames["survey_model"]["depth"][0]),
        frames=frames,
        said=tuple(made["said"]),
        files=tuple(place / WORDS / name for name in made["records"]),
    )


def _cues(place: Path, made: Mapping[str, Any]) -> Cues:
    certificate = _frames(place, [CUES_CERTIFICATE])[CUES_CERTIFICATE]
    return Cues(
        model_name=made["model"],
        origin=_origin(made),
        options=made["options"],
        certificate=_certificate(made, certificate),
        frames=_frames(place, made["frames"]),
        data_sha256=made["data_sha256"],
    )


def _evaluation(place: Path, made: Mapping[str, Any]) -> Evaluation:
    prefix = "evaluation_"
    names = {file.removesuffix(".csv") for file in made["files"] if file.endswith(".csv")}
    frames = {
        name.removeprefix(prefix): frame
        for name, frame in _frames(place, sorted(names - {f"{prefix}columns"})).items()
    }
    return Evaluation(manifest=dict(made), said=tuple(made["said"]), **frames)


def _frames(place: Path, names: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Tables of a folder. Raises InputError for one that is missing or damaged."""
    try:
        return {name: pd.read_parquet(place / f"{name}.parquet") for name in names}
    except (OSError, ValueError) as error:
        raise InputError(
            f"Reading the result in {place}: {str(error)[:120]}; write the result again."
        ) from error


def _origin(made: Mapping[str, Any]) -> Origin:
    return Origin(
        **made["origin"] | {"hooks": tuple(made["origin"]["hooks"])},
        sha256=made["weights_sha256"],
        stored=made["weights_stored_as"],
        read=made["weights_read_from"],
    )


def _certificate(made: Mapping[str, Any], frame: pd.DataFrame) -> Certificate:
    rows = [
        Row(**{name: row[name] for name in Row.__annotations__}) for row in frame.to_dict("records")
    ]
    return Certificate(made["model"], made["dtype"], tuple(made["certified"]), tuple(rows))
