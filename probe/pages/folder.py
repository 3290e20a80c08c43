"""A result as a folder: its page, if it has one, every frame as CSV and Parquet, and the manifest of what made them.

Everything is made in memory first and written file by file under temporary names, so a reader never sees half a file,
and what cannot be made leaves nothing behind. Times of day live only in the manifest.
"""

import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import pandas as pd

from probe.errors import InputError
from probe.provenance import sha256_of_bytes, write_atomically
from probe.study.columns import dictionary

if TYPE_CHECKING:
    from probe.study.evaluation import Evaluation
REPORT, WALK, SWEEP = PAGES = ("ambiguity.html", "walk.html", "sweep.html")


def write_folder(
    out: str | os.PathLike[str], pages: Mapping[str, str], *, frames: Mapping[str, pd.DataFrame], made: dict[str, Any]
) -> Path:
    """Write the pages, by file name, the tables and the manifest `made` (the files' hashes are added).

    Returns the folder.

    Raises InputError when the folder cannot be written.
    """
    check_folder(out)
    files = {name: html.encode() for name, html in pages.items()} | tables(frames)
    listed = made | {"files": {name: sha256_of_bytes(content) for name, content in sorted(files.items())}}
    for name, content in files.items():
        write_atomically(Path(out) / name, content)
    write_atomically(Path(out) / "manifest.json", json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
    return Path(out)


def write_evaluation(evaluation: "Evaluation", out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write every frame as CSV and Parquet (`evaluation_words.csv`, ...), what their columns say, and the manifest into
    `out`.

    Returns the folder.
    """
    frames = {f"evaluation_{name}": frame for name, frame in evaluation.frames.items()}
    frames["evaluation_columns"] = dictionary(frames)
    return write_folder(out, {}, frames=frames, made=evaluation.manifest | {"command": command})


def tables(frames: Mapping[str, pd.DataFrame]) -> dict[str, bytes]:
    """Every frame as CSV and as Parquet, by file name."""
    files = {}
    for name, frame in frames.items():
        files[f"{name}.csv"] = frame.to_csv(index=False, lineterminator="\n").encode()
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        files[f"{name}.parquet"] = buffer.getvalue()
    return files


def check_folder(out: str | os.PathLike[str]) -> None:
    """Raises InputError when a result could not be written into `out`; leaves nothing behind, so ask it early."""
    folder = Path(out)
    existing = next((part for part in (folder, *folder.absolute().parents) if part.exists()), Path("/"))
    reason = None
    if not existing.is_dir():
        reason = f"{existing} is a file"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} may not be written"
    elif taken := [name for name in (*PAGES, "manifest.json") if (folder / name).is_dir()]:
        reason = f"{taken[0]} in it is a folder"
    else:
        reason = _trial(folder, existing)
    if reason:
        raise InputError(
            f"Writing the report into {folder}: {reason}, expected a folder that can be written; choose another "
            "with --out."
        )


def _trial(folder: Path, existing: Path) -> str | None:
    """Why no file can be made in `folder` (None: it can), found out by making one; what was made is removed again."""
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return None
    except OSError:
        return f"{existing} may not be written"
    finally:
        for part in made:
            with suppress(OSError):
                part.rmdir()
