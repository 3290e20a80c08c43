"""What a result came from, keys made of content, and files that are whole or absent.

Times of day live only in the manifest, so that the same command with the same seed writes the same
bytes elsewhere, on one machine with one set of versions. Another processor may sum in another
order, and change a number's last digits.
"""

import hashlib
import json
import os
import platform
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Literal

from probe.errors import InputError

PACKAGES = (
    "torch",
    "transformers",
    "transformer-lens",
    "gguf",
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "altair",
)
FLOATS = {"float16", "bfloat16", "float32", "float64"}
KEY_LENGTH = 16  # hex digits: 64 bits, so that two results of a folder never share a key


@dataclass(frozen=True)
class Origin:
    """Where a model came from and the sha256 of its weights; `location` is never an absolute path
    of this machine.

    `stored` is the type in which the file holds the weights, or its types, the most frequent first:
    "bfloat16", "Q4_1, float32". `file` is the name of a GGUF file, which says more than the name by
    which it is asked for: "SmolLM2-135M-Instruct.Q4_1.gguf". `read` says what was read of an object
    in memory: "LlamaForCausalLM, adapters merged: default". `hooks` are the parts on which hooks of
    the object's owner stayed.
    """

    kind: Literal["embedded", "hub", "folder", "file", "package", "in memory"]
    location: str
    revision: str | None
    sha256: str
    stored: str = "float32"
    read: str = ""
    file: str = ""
    hooks: tuple[str, ...] = ()

    @property
    def is_quantised(self) -> bool:
        """Whether the file holds anything but plain floats."""
        return not set(self.stored.split(", ")) <= FLOATS

    def quantised(self, dtype: str) -> str:
        """Of a quantised model, which file it is, how that holds the weights, and in what they are
        computed with; empty of any other."""
        if not self.is_quantised:
            return ""
        named = self.file or self.location
        return f"{named}, its weights stored in {self.stored} and computed in {dtype}"

    @property
    def described(self) -> str:
        """What the model is, in words: where it came from, its revision and file, what was read,
        and in which types its weights are held."""
        parts = [f"{self.kind}: {self.location}"]
        if self.revision:
            parts.append(f"revision {self.revision}")
        parts += [part for part in (self.file, self.read, self.hooked) if part]
        return ", ".join([*parts, f"stored in {self.stored}"])

    @property
    def hooked(self) -> str:
        """Of a model with hooks, where they stand and that no certificate was asked for; empty of
        any other."""
        if not self.hooks:
            return ""
        return f"run with hooks on {', '.join(self.hooks)}, without a certificate"


def manifest(
    model: str,
    origin: Origin,
    *,
    seed: object,
    command: str | Sequence[str],
    data_sha256: str,
    **more: object,
) -> dict[str, Any]:
    """Everything needed to make a result again: model and weights, versions, seed, command, data;
    `more` is added.

    The only record that holds a time of day (UTC). Raises TypeError when something in `more` has no
    JSON form.
    """
    record = {
        "model": model,
        "origin": {
            "kind": origin.kind,
            "location": origin.location,
            "revision": origin.revision,
            "file": origin.file,
            "hooks": list(origin.hooks),
        },
        "weights_sha256": origin.sha256,
        "weights_stored_as": origin.stored,
        "weights_read_from": origin.read,
        "described": origin.described,
        "quantised": origin.quantised(str(more.get("dtype", ""))),
        "hooked": origin.hooked,
        "seed": seed,
        "command": command if isinstance(command, str) else list(command),
        "data_sha256": data_sha256,
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    } | more
    json.dumps(record)  # TypeError here rather than when a page is half written
    return record


def command_line(*arguments: str, **options: object) -> str:
    """A `probe` command as it is typed, its options in the order given, those of several values
    once for each; those that are None are left out."""
    words = ["probe", *arguments]
    for name, value in options.items():
        if value is not None:
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{name}", str(one)]
    return shlex.join(words)


def versions() -> dict[str, str]:
    """The version of Python, of probe, and of every package that the numbers or the pictures depend
    on."""
    import probe

    return {"python": platform.python_version(), "probe": probe.__version__} | {
        name: version(name) for name in PACKAGES
    }


def content_key(
    *parts: str | bytes | float | bool | None | Sequence[Any] | Mapping[str, Any],
) -> str:
    """A short key of content: the first 16 hex digits of the sha256 of the parts, the same in every
    run.

    Parts are written as JSON with their lengths, so that ("ab", "c") and ("a", "bc") differ. Raises
    TypeError for a part that has no JSON form.
    """
    digest = hashlib.sha256()
    for part in parts:
        raw = (
            b"b" + part
            if isinstance(part, bytes)
            else b"j" + json.dumps(part, sort_keys=True).encode()
        )
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()[:KEY_LENGTH]


def digest_of(*names: object, size: int = 16) -> bytes:
    """`size` bytes that depend on the texts of the names, with their lengths, and on nothing
    else."""
    digest = hashlib.blake2b(digest_size=size)
    for name in names:
        raw = str(name).encode()
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.digest()


def hash_of(*names: object) -> int:
    """A number of 64 bits that depends on the names, the same in every run (`hash` is not)."""
    return int.from_bytes(digest_of(*names, size=8), "big")


def sha256_of_bytes(content: bytes) -> str:
    """The sha256 of `content` in hex."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """The sha256 of a file in hex."""
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Writes `content` under a temporary name beside `path`, then renames: a reader sees the old
    file or the new one.

    Makes missing folders. Text is UTF-8 with its line ends as they are. Raises InputError when it
    cannot be written.
    """
    raw = content.encode() if isinstance(content, str) else content
    return write_parts_atomically(path, lambda opened: opened.write(raw))


def write_parts_atomically(
    path: str | os.PathLike[str], write: Callable[[BinaryIO], object]
) -> Path:
    """`write_atomically` of what `write` writes into the open file, for content that is never held
    as a whole."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_and_rename(target, write)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = "a file stands where its folder should be"
        raise InputError(f"Cannot write {target}: {reason}; choose another folder.") from error
    return target


def _write_and_rename(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """The temporary name cannot be guessed and must be new, and the file gets the rights of any new
    file, but never for the world to write.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o664)
    try:
        with os.fdopen(handle, "wb") as opened:
            write(opened)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, target)
    except BaseException:  # broad, because an interrupt must leave no half of a file behind either
        with suppress(OSError):
            os.unlink(temporary)
        raise
