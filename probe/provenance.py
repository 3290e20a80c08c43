"""The origin of a result, keys that are hashes of content, and files that are complete or absent.

Only the manifest holds a time of day. All other files of the same command with the same seed have
the same bytes, on one machine with one set of versions. Another processor may sum in another order,
which changes the last digits of a number.
"""

import hashlib
import json
import os
import platform
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from probe.errors import InputError

NUMERIC = ("torch", "transformers", "transformer-lens", "gguf", "numpy", "scipy", "scikit-learn")
PACKAGES = (*NUMERIC, "pandas", "altair")
FLOATS = {"float16", "bfloat16", "float32", "float64"}
KEY_LENGTH = 16  # hex digits: 64 bits, so that two results of a folder never share a key


@dataclass(frozen=True)
class Origin:
    """Where a model came from.

    location: never an absolute path of this machine
    sha256: of the weights
    stored: the type or types of the weights in the file, the most frequent first: "bfloat16",
        "Q4_1, float32"
    read: what was read of an object in memory: "LlamaForCausalLM, adapters merged: default"
    file: the name of a GGUF file, which is more precise than the name of the model:
        "SmolLM2-135M-Instruct.Q4_1.gguf"
    """

    kind: Literal["embedded", "hub", "folder", "file", "package", "in memory"]
    location: str
    revision: str | None
    sha256: str
    stored: str = "float32"
    read: str = ""
    file: str = ""

    @property
    def is_quantised(self) -> bool:
        """Whether the file holds anything but plain floats."""
        return not set(self.stored.split(", ")) <= FLOATS

    def quantised(self, dtype: str) -> str:
        """The file of a quantised model, with the types in which its weights are stored and
        computed; "" for any other model."""
        if not self.is_quantised:
            return ""
        source = self.file or self.location
        return f"{source}, its weights stored in {self.stored} and computed in {dtype}"

    @property
    def described(self) -> str:
        """The origin in words: its kind and location, revision, file, what was read, and the types
        of the stored weights."""
        parts = [f"{self.kind}: {self.location}"]
        if self.revision:
            parts.append(f"revision {self.revision}")
        parts += [part for part in (self.file, self.read) if part]
        return ", ".join([*parts, f"stored in {self.stored}"])


def manifest(
    model: str,
    origin: Origin,
    *,
    seed: object,
    command: str | Sequence[str],
    data_sha256: str,
    **more: object,
) -> dict[str, Any]:
    """Everything needed to reproduce a result: model and weights, versions, seed, command, data.

    more: further entries

    The only record with a time of day (UTC). Raises TypeError if a value of `more` has no JSON
    form.
    """
    record = {
        "model": model,
        "origin": {
            "kind": origin.kind,
            "location": origin.location,
            "revision": origin.revision,
            "file": origin.file,
        },
        "weights_sha256": origin.sha256,
        "weights_stored_as": origin.stored,
        "weights_read_from": origin.read,
        "described": origin.described,
        "quantised": origin.quantised(str(more.get("dtype", ""))),
        "seed": seed,
        "command": command if isinstance(command, str) else list(command),
        "data_sha256": data_sha256,
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    } | more
    json.dumps(record)  # raises TypeError now, and not when a page is half written
    return record


def command_line(*arguments: str, **options: object) -> str:
    """A `probe` command as a user types it.

    options: in this order; an option with a list is repeated for each value, a flag is True, and an
        option that is None or False is omitted
    """
    words = ["probe", *arguments]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            for text in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(text)]
    return shlex.join(words)


def versions() -> dict[str, str]:
    """The versions of Python, of probe, and of every package that numbers or charts depend on."""
    import probe

    return {"python": platform.python_version(), "probe": probe.__version__} | {
        name: version(name) for name in PACKAGES
    }


@cache
def numeric_versions() -> tuple[str, ...]:
    """The versions of probe and of every package that numbers depend on."""
    import probe

    return (probe.__version__, *(version(name) for name in NUMERIC))


def content_key(
    *parts: str | bytes | float | bool | None | Sequence[Any] | Mapping[str, Any],
) -> str:
    """A short hash of content: the first 16 hex digits of the sha256 of the parts, the same in
    every run.

    Parts are written as JSON with their lengths, so that ("ab", "c") and ("a", "bc") differ.

    Raises TypeError for a part without a JSON form.
    """
    digest = hashlib.sha256()
    for part in parts:
        # A letter for the type, so that b"1" and 1 differ.
        raw = (
            b"b" + part
            if isinstance(part, bytes)
            else b"j" + json.dumps(part, sort_keys=True).encode()
        )
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()[:KEY_LENGTH]


def digest_of(*names: object, size: int = 16) -> bytes:
    """A hash of the texts of the names, with their lengths, as `size` bytes."""
    digest = hashlib.blake2b(digest_size=size)
    for name in names:
        raw = str(name).encode()
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.digest()


def hash_of(*names: object) -> int:
    """A hash of the names as a number of 64 bits, the same in every run (`hash` differs)."""
    return int.from_bytes(digest_of(*names, size=8), "big")


def sha256_of_bytes(content: bytes) -> str:
    """The sha256 of `content` in hex."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file in hex."""
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file under a temporary name in the same folder, then rename it, so that a reader sees
    the old file or the new one. Return its path.

    Missing folders are created. Text is written as UTF-8, with its line ends unchanged.

    Raises InputError if the file cannot be written.
    """
    raw = content.encode() if isinstance(content, str) else content
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_and_rename(target, raw)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = "there is a file with the name of its folder"
        raise InputError(f"Cannot write {target}: {reason}. Choose another folder.") from error
    return target


def _write_and_rename(target: Path, raw: bytes) -> None:
    """Write under a temporary name that cannot be guessed and must be new, then rename.

    The file gets the permissions of any new file, but is never writable for everybody.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o664)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(raw)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, target)
    except BaseException:  # broad: an interrupt must not leave half a file either
        with suppress(OSError):
            os.unlink(temporary)
        raise
