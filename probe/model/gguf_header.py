"""The header of a GGUF file: metadata and the table of tensors, read within bounds and checked before memory is taken.

Not by the reader of the `gguf` package, which believes every count that a file states.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from probe.errors import UnsupportedModel
from probe.model.config import refuse

VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FLOAT32, STRING, ARRAY = 6, 8, 9
MOST_AXES = 4
AGAIN = "copy or download it again"
CONVERT = "convert the model to GGUF again"
PLAIN = {"F32": (np.float32, "float32"), "F16": (np.float16, "float16"), "BF16": (np.uint8, "bfloat16")}


@dataclass(frozen=True)
class Stored:
    """One tensor as the file states it: its shape with the slowest axis first, its element type, and the place of its
    bytes.
    """

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A file whose header was read whole and fits the file's length; the tensors' bytes stay on the disk."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    data: mmap.mmap = field(repr=False)

    @property
    def stored(self) -> str:
        """The element types of the tensors, the one of most tensors first, as "Q4_1, float32, Q8_0"."""
        kinds = [tensor.kind.name for tensor in self.tensors.values()]
        often = sorted(set(kinds), key=lambda kind: (-kinds.count(kind), kind))
        return ", ".join(PLAIN[kind][1] if kind in PLAIN else kind for kind in often)


class _Header:
    """Reads a header from the front; whatever would lie behind the end of the file is refused before it is taken."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def refuse(self, problem: str, step: str = AGAIN) -> NoReturn:
        raise refuse(self.path, problem, step)

    def raw(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            self.refuse(f"it is cut short (its header goes on behind its {len(self.data):,} bytes)")
        self.at += size
        return self.data[self.at - size : self.at]

    def numbers(self, letter: str, count: int = 1) -> tuple[Any, ...]:
        raw = self.raw(count * struct.calcsize(f"<{letter}"))
        return struct.unpack(f"<{count}{letter}", raw)

    def number(self, letter: str) -> Any:
        return self.numbers(letter)[0]

    def text(self) -> str:
        raw = self.raw(self.number("Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"its metadata are not UTF-8 at byte {self.at - len(raw):,}")

    def value(self, kind: int) -> Any:
        """One entry's value. A float32 becomes the shortest decimal that it stands for: 1e-5, not 9.99999974e-06."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner == STRING:
                return [self.text() for _ in range(count)]
            return list(self.numbers(self._letter(inner), count))
        number = self.number(self._letter(kind))
        return float(str(np.float32(number))) if kind == FLOAT32 else number

    def _letter(self, kind: int) -> str:
        return SCALARS.get(kind) or self.refuse(f"its metadata hold a value of the unknown type {kind}", CONVERT)


def open_gguf(path: Path) -> GgufFile:
    """The header of the file at `path`, read whole.

    Raises ModelError for what is cut, damaged, absurd or not of this format.
    """
    try:
        with path.open("rb") as opened:
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise refuse(path, f"it cannot be read ({str(error)[:80]})", AGAIN) from error
    header = _Header(path, data)
    if data[:4] != b"GGUF":
        header.refuse("it is not a GGUF file", f"give a file that was written as one, or {AGAIN}")
    header.at = 4
    version, tensors, entries = header.number("I"), header.number("Q"), header.number("Q")
    if version not in VERSIONS:
        turned = " (its bytes are in the other order)" if version & 0xFFFF == 0 else ""
        header.refuse(f"its format is GGUF version {version}{turned}, and versions 2 and 3 are read", CONVERT)
    metadata = _metadata(header, entries)
    return GgufFile(path, metadata, _table(header, tensors, metadata.get("general.alignment", 32)), data)


def _metadata(header: _Header, entries: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        name = header.text()
        if name in metadata:
            header.refuse(f"its metadata name {name[:80]!r} twice", CONVERT)
        metadata[name] = header.value(header.number("I"))
    if metadata.get("split.count", 1) not in (0, 1):
        parts = str(metadata["split.count"])[:20]
        header.refuse(f"it is one part of {parts}", "join the parts with gguf-split --merge")
    return metadata


def _table(header: _Header, count: int, alignment: object) -> dict[str, Stored]:
    """Every tensor by name: shape, type and place, with room for all of them in the file and none on another."""
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        header.refuse(f"its general.alignment is {str(alignment)[:20]}, which is no power of two", CONVERT)
    stated: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name, axes = header.text(), header.number("I")
        if name in stated or not 0 < axes <= MOST_AXES:
            problem = "is there twice" if name in stated else f"has {axes} axes"
            header.refuse(f"its tensor {name[:80]!r} {problem}", CONVERT)
        shape = header.numbers("Q", axes)[::-1]
        stated[name] = (shape, header.number("I"), header.number("Q"))
    first = -(-header.at // alignment) * alignment
    tensors = {
        name: _stored(header, name[:80], shape, kind, first + offset) for name, (shape, kind, offset) in stated.items()
    }
    end = first
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if tensor.start < end or tensor.start % alignment:
            problem = "lies on another" if tensor.start < end else "does not start at a multiple of its alignment"
            header.refuse(f"its tensor {name[:80]!r} {problem}")
        end = tensor.start + tensor.size
    return tensors


def _stored(header: _Header, name: str, shape: tuple[int, ...], kind: int, start: int) -> Stored:
    if not _readable(kind):
        known = kind in set(GGMLQuantizationType)
        label = GGMLQuantizationType(kind).name if known else f"number {kind}"
        raise UnsupportedModel(
            f"Cannot load {header.path}: its tensor {name!r} is stored in the quantisation {label}, which cannot be "
            "turned into numbers here; take another quantisation of the model, such as Q8_0 or Q4_K."
        )
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    if not all(shape) or shape[-1] % block:
        header.refuse(f"its tensor {name!r} has shape {list(shape)}, which is no whole number of blocks", CONVERT)
    size = math.prod(shape) // block * size
    if start + size > len(header.data):
        header.refuse(f"it is cut short (its tensor {name!r} goes on behind its {len(header.data):,} bytes)")
    return Stored(shape, GGMLQuantizationType(kind), start, size)


@cache
def _readable(kind: int) -> bool:
    """Whether the `gguf` package turns this type into floats: it is asked with one block of zeros."""
    try:
        known = GGMLQuantizationType(kind)
        one = np.zeros((1, GGML_QUANT_SIZES[known][1]), np.uint8)
        dequantize(one.view(PLAIN[known.name][0]) if known.name in PLAIN else one, known)
    except (ValueError, NotImplementedError):
        return False
    return True
