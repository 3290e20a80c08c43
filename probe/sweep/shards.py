"""The files of a sweep: named by the content of what made them, whole or absent, checked before
they are believed.

A unit of work is done when its receipt is there, and the receipt names its files with their sha256.
Files come first and the receipt last, each under a temporary name that cannot be guessed, fsynced
and renamed, so that whatever dies in between leaves a unit that is not done. One process at a time
may write a set of shards; what temporaries it finds are those of a dead one.
"""

import errno
import fcntl
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from probe.errors import InputError
from probe.provenance import sha256_of_bytes, write_atomically

SCRATCH = ".scratch-"
ROWS, AXES, HEADS, SENTENCES, RECEIPTS = "rows", "axes", "heads", "sentences", "receipts"
FOLDERS = (ROWS, AXES, HEADS, SENTENCES, RECEIPTS)
Receipt = dict[str, Any]


def store(path: Path, content: bytes) -> str:
    """Write a file whole or not at all; returns its sha256. Raises InputError with the path and
    what to do."""
    try:
        write_atomically(path, content)
    except InputError as error:
        full = isinstance(error.__cause__, OSError) and error.__cause__.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
        )
        reason = "the disk is full" if full else str(error.__cause__ or error)
        step = "make room there" if full else "make the folder writable"
        raise InputError(
            f"Writing {path}: {reason}; {step}, or choose another folder with --out, and run the "
            "same command again "
            "(finished shards are kept)."
        ) from error
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # the new name itself has to reach the disk
    finally:
        os.close(handle)
    return sha256_of_bytes(content)


def finish(
    folder: Path, key: str, files: Mapping[str, bytes], facts: Mapping[str, object]
) -> Receipt:
    """Store the files of a unit (by their path inside `folder`), then its receipt, which makes it
    done."""
    sums = {name: store(folder / name, content) for name, content in files.items()}
    receipt: Receipt = {"key": key, "files": sums, **facts}
    store(receipt_of(folder, key), (json.dumps(receipt, indent=1, sort_keys=True) + "\n").encode())
    return receipt


def receipt_of(folder: Path, key: str) -> Path:
    """Where the receipt of a unit stands."""
    return folder / RECEIPTS / f"{key}.json"


def read_receipt(folder: Path, key: str) -> Receipt | None:
    """The receipt of a unit, or None where there is none or it cannot be trusted. Its files are not
    looked at."""
    place = receipt_of(folder, key)
    try:
        receipt = None if place.is_symlink() else json.loads(place.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    good = (
        isinstance(receipt, dict)
        and receipt.get("key") == key
        and isinstance(receipt.get("files"), dict)
    )
    return receipt if good else None


def done(folder: Path, key: str) -> Receipt | None:
    """The receipt of a finished unit whose files are all there with their sha256; None where
    anything differs."""
    receipt = read_receipt(folder, key)
    try:
        whole = receipt is not None and all(
            not (folder / name).is_symlink()
            and sha256_of_bytes((folder / name).read_bytes()) == wanted
            for name, wanted in receipt["files"].items()
        )
    except OSError:
        whole = False
    return receipt if whole else None


def read_parquet(folder: Path, name: str, sha256: str) -> pyarrow.Table:
    """A table of a unit; InputError where its file's bytes are not those that were written."""
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise damaged(folder / name, error.strerror or str(error)) from error
    if sha256_of_bytes(content) != sha256:
        raise damaged(folder / name, "its checksum is not that of its receipt")
    return pyarrow.parquet.read_table(pyarrow.BufferReader(content))


def damaged(path: Path, reason: str = "it is missing or damaged") -> InputError:
    return InputError(
        f"Reading {path}: {reason}, expected the file that the sweep wrote; run the same `probe "
        "sweep` command again, "
        "it makes what is missing or damaged anew."
    )


def parquet(table: pyarrow.Table) -> bytes:
    """A table as the bytes of a Parquet file, the same from the same table; its pages carry
    checksums of their own."""
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process, however it ends, and removes what dead ones left there
    unfinished.

    Raises InputError where another process holds it, and for an error of the machine while it is
    held.
    """
    try:
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InputError(
            f"Cannot write into {folder}: {error.strerror or error}; choose a folder that can be "
            "written with --out."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise InputError(
            f"Sweeping into {folder}: another sweep is writing there; wait for it to end, or "
            "choose another "
            "folder with --out."
        ) from error
    try:
        for file in [file for name in (".", *FOLDERS) for file in (folder / name).glob(".*.part")]:
            with suppress(OSError):
                file.unlink()
        for place in folder.glob(f"{SCRATCH}*"):
            shutil.rmtree(place, ignore_errors=True)
        yield
    except OSError as error:
        raise InputError(
            f"Sweeping into {folder}: {error.strerror or error}; mend that, and run the same "
            "command again "
            "(finished shards are kept)."
        ) from error
    finally:
        os.close(handle)
