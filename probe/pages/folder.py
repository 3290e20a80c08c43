"""The folder of a result: its page, tables as CSV, an archive of all tables, and the manifest.

Everything is made in memory first and written file by file under temporary names, so a reader never
sees half a file, and a failed write leaves no file. Times of day live only in the
manifest.
"""

import io
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from html import unescape
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pandas as pd

from probe.errors import InputError
from probe.provenance import (
    manifest,
    sha256_of_bytes,
    sha256_of_file,
    write_atomically,
)
from probe.results.columns import TABLES

if TYPE_CHECKING:
    from probe.studies.cues import Cues
    from probe.studies.study import Study
    from probe.studies.survey import Survey

REPORT = "ambiguity.html"
WALK = "walk.html"
SURVEY = "survey.html"
CUES = "cues.html"
HEADS = "heads.html"
HEADS_TABLE = "heads"
EVALUATION = "evaluation_words.csv"
PAGES = (REPORT, WALK, SURVEY, CUES, HEADS)
MANIFEST = "manifest.json"
ARCHIVE = "tables.zip"  # every table as Parquet, which keeps the types of the columns
EVALUATION_ARCHIVE = "evaluation_tables.zip"  # a survey may be in the same folder
# The tables of a report that are also written as CSV, unless all are asked for.
MAIN_TABLES = ("words", "heads", "mlps", "sentences", "left_out")
# Results that may share a folder: the page of a survey shows the evaluation next to it.
TOGETHER = {SURVEY, EVALUATION}
GENERATOR = '<meta name="generator" content="probe">'  # is in every page
_CODE = re.compile("<code>(probe .*?)</code>")


def write_folder(
    out: str | os.PathLike[str],
    pages: Mapping[str, str | bytes],
    *,
    frames: Mapping[str, pd.DataFrame],
    manifest: dict[str, Any],
    archive: str = ARCHIVE,
    only_archived: Collection[str] = (),
) -> Path:
    """Write the pages and other files, by name, the tables and the manifest (the files'
    hashes are added).

    `archive`: the file with every table. `only_archived`: the tables that are in no other file;
    the others are written as CSV, too. Files of the page that is replaced are removed if they are
    not written again, because they belong to another result.
    Returns the folder. Raises InputError when it cannot be written.
    """
    check_folder(out)
    before = manifest_of(Path(out)).get("files", {})
    files = {name: page.encode() if isinstance(page, str) else page for name, page in pages.items()}
    # The page last: a page that exists has its tables next to it.
    files = {
        archive: archive_of(frames),
        **{
            f"{name}.csv": frame.to_csv(index=False, lineterminator="\n").encode()
            for name, frame in frames.items()
            if name not in only_archived
        },
        **files,
    }
    hashes = {name: sha256_of_bytes(content) for name, content in sorted(files.items())}
    for name, content in files.items():
        write_atomically(Path(out) / name, content)
    listed = manifest | {"files": hashes}
    write_atomically(Path(out) / MANIFEST, json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
    if not before.keys().isdisjoint(pages):
        for name in before.keys() - hashes.keys():
            path = Path(out) / name
            # What its user has changed since is theirs.
            if path.is_file() and sha256_of_file(path) == before[name]:
                path.unlink()
    return Path(out)


def to_be_replaced(out: str | os.PathLike[str], file: str, command: str) -> str:
    """What `command` replaces by writing this file of a result into `out`, in a sentence; empty
    where the file is not there, or the same command made it."""
    path = Path(out) / file
    if not path.is_file():
        return ""
    previous = manifest_of(Path(out))
    before = previous.get("command", "") if file in previous.get("files", {}) else ""
    # A page says itself what made it.
    codes = _CODE.findall(path.read_text("utf-8", "replace"))
    if command in (before, *map(unescape, codes)):
        return ""
    earlier = f"the one of `{before}`" if before else "an earlier one"
    return f"{path} replaces {earlier}; another place keeps both."


def made_by(result: "Study | Survey | Cues | Any", command: str) -> dict[str, Any]:
    """The manifest of a study, a survey, a walk or a cue scan."""
    return manifest(
        result.model_name,
        result.origin,
        seed=result.options.get("seed"),
        command=command,
        data_sha256=result.data_sha256,
        dtype=result.certificate.dtype,
        options=result.options,
        certified=list(result.certificate.texts),
    )


def archive_of(frames: Mapping[str, pd.DataFrame]) -> bytes:
    """A zip archive of every frame as Parquet. The same frames give the same bytes."""
    content = io.BytesIO()
    with ZipFile(content, "w") as archive:
        for name, frame in frames.items():
            # An entry of this kind has a fixed date instead of today's.
            member = ZipInfo(f"{name}.parquet")
            archive.writestr(member, frame.to_parquet(index=False), ZIP_DEFLATED)
    return content.getvalue()


def check_folder(
    out: str | os.PathLike[str],
    page: str = "",
    *,
    tables: Iterable[str] = (),
    inputs: Sequence[Path] = (),
    option: str = "--out",
) -> None:
    """Raises InputError when a result could not be written into `out`, or would destroy what its
    user wants to keep. Nothing is written, so check this before the work.

    `page`: the file that the result is known by, which no result of another kind shares a folder
    with. `tables`: the names of its tables, unless it is a report. `inputs`: files that it is made
    from. `option`: of the command line, that names `out`.
    """
    if not isinstance(out, str | os.PathLike) or not str(out):
        raise InputError(
            f"Cannot write a result: got {out!r} as the folder, expected its name or its path. "
            'Give one such as "out".'
        )
    folder = Path(out)
    existing = next(
        (part for part in (folder, *folder.absolute().parents) if part.exists()), Path("/")
    )
    expected = "a folder that can be written"
    reason = None
    if not existing.is_dir():
        reason = f"{existing} is a file"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} may not be written"
    elif folders := [name for name in (*PAGES, MANIFEST) if page and (folder / name).is_dir()]:
        reason = f"{folders[0]} in it is a folder"
    elif reason := page and _would_be_lost(folder, page, tables, inputs):
        expected = "a folder for this result alone"
    else:
        reason = _trial(folder, existing)
    if reason:
        raise InputError(
            f"Cannot write into {folder}: {reason}, expected {expected}. Choose another (on the "
            f"command line {option})."
        )


def _would_be_lost(folder: Path, page: str, tables: Iterable[str], inputs: Sequence[Path]) -> str:
    """What in `folder` a result with this page would destroy: another kind of result, a file that
    it is made from, a file that probe did not make. Empty if there is no such file.

    What is there and was made by the same kind of command may be replaced.
    """
    for file_name in (*PAGES, EVALUATION):
        if file_name != page and {file_name, page} != TOGETHER and (folder / file_name).is_file():
            return f"{file_name} of another result is in it, and files of both have the same names"
    # Other people's files may have the names of these tables, too.
    tables = TABLES if page == REPORT else tables
    names = [f"{name}.csv" for name in tables] + [ARCHIVE]
    here = folder.resolve()
    for file in inputs:
        if file.name in names and file.resolve().parent == here:
            return f"{file.name} is read from it, and a table of that name is written there"
    files = manifest_of(folder).get("files", {})
    if page in PAGES and (folder / page).is_file():
        is_own_page = page in files or GENERATOR in (folder / page).read_text("utf-8", "replace")
        return "" if is_own_page else f"{page} in it was not made by probe"
    strange = [name for name in names if name not in files and (folder / name).is_file()]
    return f"{strange[0]} in it was not made by probe" if strange else ""


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of the last result in a folder; empty if the folder has no manifest of probe."""
    with suppress(OSError, ValueError):
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict):
            return manifest
    return {}


def _trial(folder: Path, existing: Path) -> str | None:
    """Why no file can be written into `folder`, or None if one can. A temporary file is the test;
    folders that it needs are removed again."""
    new_folders = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return None
    except OSError:
        return f"{existing} may not be written"
    finally:
        for part in new_folders:
            with suppress(OSError):
                part.rmdir()


def downloads(
    frames: Mapping[str, pd.DataFrame],
    contents: Mapping[str, str] = TABLES,
    only_archived: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The tables in the page's folder, `what` each holds, and whether it is there as CSV."""
    return [
        {
            "name": name,
            "what": contents.get(name.rpartition("/")[2], ""),
            "rows": len(frame),
            "csv": name not in only_archived,
        }
        for name, frame in frames.items()
    ]
