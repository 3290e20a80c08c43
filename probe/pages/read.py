"""A result that was written, read back from its folder."""

import io
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

import pandas as pd

from probe.display import readers
from probe.errors import InputError
from probe.experiments.store import read_tree
from probe.model.check import Certificate, Row
from probe.pages.cues import CERTIFICATE as CUES_CERTIFICATE
from probe.pages.folder import (
    ARCHIVE,
    CUES,
    EVALUATION,
    EVALUATION_ARCHIVE,
    HEADS,
    HEADS_TABLE,
    MANIFEST,
    REPORT,
    SURVEY,
    manifest_of,
)
from probe.pages.survey import CERTIFICATE
from probe.provenance import Origin
from probe.studies.cues import Cues
from probe.studies.evaluation import FRAMES, Evaluation
from probe.studies.study import Study
from probe.studies.survey import Survey
from probe.studies.words import WORDS

if TYPE_CHECKING:
    from probe import Walk


def read(
    folder: str | os.PathLike[str],
) -> "Study | Survey | Cues | Walk | Evaluation | pd.DataFrame":
    """The study, survey, cue scan, walk, evaluation or frame of heads that `probe.write` wrote into
    a folder.

    `probe.write` of what is returned writes the same page and tables again, byte for byte. The
    records of a survey's words are read when they are asked for, and must still be in the folder.
    Raises InputError for a folder without such a result, or one of which a table is missing.

    Example:
        >>> walk = probe.walk("tiny-senses", "The old tree by the bank", at="bank")
        >>> page = probe.write(walk, "out")
        >>> probe.read("out")
        <Walk at 'bank' through L1H2 of tiny-senses: 16 tables>
    """
    path = Path(folder)
    manifest = manifest_of(path)
    files = manifest.get("files", {})
    if REPORT in files:
        return _study(path, manifest)
    if SURVEY in files and "models" not in manifest:
        return _survey(path, manifest)
    if CUES in files:
        return _cues(path, manifest)
    if EVALUATION in files:
        return _evaluation(path, manifest)
    if HEADS in files:
        return _frames(path, [HEADS_TABLE])[HEADS_TABLE]
    for record, reader in readers.items():
        if record in files:
            frames = _frames(path, manifest["frames"])
            return reader(
                path / record,
                model_name=manifest["model"],
                origin=_origin(manifest),
                certificate=_certificate(manifest, frames["certificate"]),
                frames=frames,
            )
    problem = f"no {MANIFEST} of a result is in it"
    step = "Give the folder that probe.write or a command wrote into"
    if "models" in manifest:
        problem = "it contains the surveys of several models on one page"
        step = f"Survey each model into its own folder, or read the tables in {ARCHIVE}"
    raise InputError(f"Cannot read a result from {path}: {problem}. {step}.")


def _study(path: Path, manifest: Mapping[str, Any]) -> Study:
    frames = _frames(path, manifest["frames"])
    frames["verdicts"] = frames["verdicts"].drop(columns="because")
    records = manifest.get("records", {})
    return Study(
        model_name=manifest["model"],
        origin=_origin(manifest),
        options=manifest["options"],
        certificate=_certificate(manifest, frames["certificate"]),
        frames=frames,
        data_sha256=manifest["data_sha256"],
        data={word: read_tree(path / WORDS / name) for word, name in records.items()},
        files=tuple(records.values()),
        unfinished=tuple(manifest.get("unfinished", ())),
    )


def _survey(path: Path, manifest: Mapping[str, Any]) -> Survey:
    frames = _frames(path, manifest["frames"])
    return Survey(
        model_name=manifest["model"],
        origin=_origin(manifest),
        options=manifest["options"],
        certificate=_certificate(manifest, _frames(path, [CERTIFICATE])[CERTIFICATE]),
        source=manifest["sentences"],
        data_sha256=manifest["data_sha256"],
        depth=int(frames["survey_model"]["depth"][0]),
        frames=frames,
        cautions=tuple(manifest["said"]),
        files=tuple(path / WORDS / name for name in manifest["records"]),
    )


def _cues(path: Path, manifest: Mapping[str, Any]) -> Cues:
    certificate = _frames(path, [CUES_CERTIFICATE])[CUES_CERTIFICATE]
    return Cues(
        model_name=manifest["model"],
        origin=_origin(manifest),
        options=manifest["options"],
        certificate=_certificate(manifest, certificate),
        frames=_frames(path, manifest["frames"]),
        data_sha256=manifest["data_sha256"],
    )


def _evaluation(path: Path, manifest: Mapping[str, Any]) -> Evaluation:
    names = [name for name in FRAMES if f"evaluation_{name}.csv" in manifest["files"]]
    read = _frames(path, [f"evaluation_{name}" for name in names], EVALUATION_ARCHIVE)
    frames = dict(zip(names, read.values(), strict=True))
    return Evaluation(dict(manifest), frames, tuple(manifest["said"]))


def _frames(path: Path, names: Sequence[str], file: str = ARCHIVE) -> dict[str, pd.DataFrame]:
    """Tables of a folder. Raises InputError for one that is missing or damaged."""
    try:
        with ZipFile(path / file) as archive:
            tables = {name: io.BytesIO(archive.read(f"{name}.parquet")) for name in names}
        return {name: pd.read_parquet(table) for name, table in tables.items()}
    except (OSError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        raise InputError(
            f"Cannot read a result from {path}: {file} is missing, damaged or without one of its "
            f"tables ({type(error).__name__}). Write the result again."
        ) from error


def _origin(manifest: Mapping[str, Any]) -> Origin:
    unknown = sorted(manifest["origin"].keys() - {each.name for each in fields(Origin)})
    if unknown:
        raise InputError(
            f"Cannot read this result: an earlier version of probe wrote it (its manifest has "
            f"{', '.join(unknown)}). Write the result again."
        )
    return Origin(
        **manifest["origin"],
        sha256=manifest["weights_sha256"],
        stored=manifest["weights_stored_as"],
        read=manifest["weights_read_from"],
    )


def _certificate(manifest: Mapping[str, Any], frame: pd.DataFrame) -> Certificate:
    rows = [
        Row(**{name: row[name] for name in Row.__annotations__}) for row in frame.to_dict("records")
    ]
    return Certificate(
        manifest["model"], manifest["dtype"], tuple(manifest["certified"]), tuple(rows)
    )
