"""GGUF files: metadata as a config in Hugging Face's keys, tensors in float32 by Hugging Face's
names.

Names come from the `gguf` package's own map, and blocks are dequantised by it; which keys a family
has and what its converter turned stands in the table of architectures (`GgufKeys`). The header is
read within bounds and checked before memory is taken: not by the reader of the `gguf` package,
which believes every count that a file states.
"""

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    dequantize,
    get_tensor_name_map,
)

from probe.model.architectures import FAMILIES, GGUF_KNOWN
from probe.model.architectures.family import GGUF_SIZES, Family
from probe.model.model import Config, config_from, refuse, unsupported
from probe.model.weights import check_finite, expected_shapes, layers_of, stored_types

KNOWN = ", ".join(family.gguf.architecture for family in FAMILIES.values() if family.gguf)
# Rotary positions scaled by factors of their own, one each frequency: ones change nothing.
ROPE_FACTORS = "rope_freqs.weight"
WINDOW = "attention.sliding_window"  # 0 where a model has none
VERSIONS = (2, 3)
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
FLOAT32 = 6
STRING = 8
ARRAY = 9
MOST_AXES = 4
AGAIN = "copy or download it again"
CONVERT = "convert the model to GGUF again"
PLAIN = {
    "F32": (np.float32, "float32"),
    "F16": (np.float16, "float16"),
    "BF16": (np.uint8, "bfloat16"),
}


@dataclass(frozen=True)
class Stored:
    """One tensor as the file states it: shape, slowest axis first, element type, and where its
    bytes are."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A file whose header was read whole and fits the file's length; the tensors' bytes stay on the
    disk."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    data: mmap.mmap = field(repr=False)

    @property
    def stored(self) -> str:
        """The element types of the tensors, as `stored_types` tells them."""
        called = {kind: name for kind, (_, name) in PLAIN.items()}
        return stored_types((tensor.kind.name for tensor in self.tensors.values()), called)


class _Header:
    """Reads a header from the front; whatever would lie behind the end of the file is refused
    before it is taken."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0  # the byte that is read next

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
        """One entry's value. A float32 becomes the shortest decimal that it stands for: 1e-5, not
        9.99999974e-06."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner = self.number("I")
            count = self.number("Q")
            if inner == STRING:
                return [self.text() for _ in range(count)]
            return list(self.numbers(self._letter(inner), count))
        number = self.number(self._letter(kind))
        return float(str(np.float32(number))) if kind == FLOAT32 else number

    def _letter(self, kind: int) -> str:
        return SCALARS.get(kind) or self.refuse(
            f"its metadata hold a value of the unknown type {kind}", CONVERT
        )


def open_gguf(path: Path) -> GgufFile:
    """The header of a file, read whole. Raises ModelError for what is cut, damaged, absurd or not
    of this format."""
    try:
        with path.open("rb") as opened:
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise refuse(path, f"it cannot be read ({str(error)[:80]})", AGAIN) from error
    header = _Header(path, data)
    if data[:4] != b"GGUF":
        header.refuse("it is not a GGUF file", f"give a file that was written as one, or {AGAIN}")
    header.at = 4
    version = header.number("I")
    tensors = header.number("Q")
    entries = header.number("Q")
    if version not in VERSIONS:
        order = " (its bytes are in the other order)" if version & 0xFFFF == 0 else ""
        header.refuse(
            f"its format is GGUF version {version}{order}, and versions 2 and 3 are read", CONVERT
        )
    metadata = _metadata(header, entries)
    return GgufFile(
        path, metadata, _table(header, tensors, metadata.get("general.alignment", 32)), data
    )


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
    """Every tensor by name: shape, type and offset, all of them within the file and none on
    another."""
    if (
        not isinstance(alignment, int)
        or not 0 < alignment <= 1 << 20
        or alignment & (alignment - 1)
    ):
        header.refuse(
            f"its general.alignment is {str(alignment)[:20]}, which is no power of two", CONVERT
        )
    stated: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name = header.text()
        axes = header.number("I")
        if name in stated or not 0 < axes <= MOST_AXES:
            problem = "is there twice" if name in stated else f"has {axes} axes"
            header.refuse(f"its tensor {name[:80]!r} {problem}", CONVERT)
        shape = header.numbers("Q", axes)[::-1]
        stated[name] = (shape, header.number("I"), header.number("Q"))
    first = -(-header.at // alignment) * alignment
    tensors = {
        name: _stored(header, name[:80], shape, kind, first + offset)
        for name, (shape, kind, offset) in stated.items()
    }
    end = first
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].start):
        if tensor.start < end or tensor.start % alignment:
            problem = (
                "lies on another"
                if tensor.start < end
                else "does not start at a multiple of its alignment"
            )
            header.refuse(f"its tensor {name[:80]!r} {problem}")
        end = tensor.start + tensor.size
    return tensors


def _stored(header: _Header, name: str, shape: tuple[int, ...], kind: int, start: int) -> Stored:
    if not _readable(kind):
        known = kind in set(GGMLQuantizationType)
        label = GGMLQuantizationType(kind).name if known else f"number {kind}"
        raise unsupported(
            header.path,
            f"its tensor {name!r} is stored in the quantisation {label}, which cannot be turned "
            "into numbers here",
            "take another quantisation of the model, such as Q8_0 or Q4_K",
        )
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    if not all(shape) or shape[-1] % block:
        header.refuse(
            f"its tensor {name!r} has shape {list(shape)}, which is no whole number of blocks",
            CONVERT,
        )
    size = math.prod(shape) // block * size
    if start + size > len(header.data):
        header.refuse(
            f"it is cut short (its tensor {name!r} goes on behind its {len(header.data):,} bytes)"
        )
    return Stored(shape, GGMLQuantizationType(kind), start, size)


@cache
def _readable(kind: int) -> bool:
    """Whether the `gguf` package turns this type into floats: it is asked with one block of
    zeros."""
    try:
        known = GGMLQuantizationType(kind)
        one = np.zeros((1, GGML_QUANT_SIZES[known][1]), np.uint8)
        dequantize(one.view(PLAIN[known.name][0]) if known.name in PLAIN else one, known)
    except (ValueError, NotImplementedError):
        return False
    return True


def read_raw_config(opened: GgufFile) -> dict[str, Any]:
    """The metadata in Hugging Face's keys. Raises UnsupportedModel for what no formula is known
    for."""
    kind, family = _family(opened)
    keys = family.gguf
    prefix = f"{opened.metadata['general.architecture']}."
    assert keys is not None
    raw: dict[str, Any] = {
        "model_type": kind,
        "architectures": [(*family.headless, *family.architectures)[0]],
        "tie_word_embeddings": "output.weight" not in opened.tensors,
        "pad_token_id": opened.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    sizes = family.keys.sizes
    numbers = {theirs: sizes[ours] for theirs, ours in GGUF_SIZES.items() if ours in sizes} | dict(
        keys.numbers
    )
    own = {
        key.removeprefix(prefix): value
        for key, value in opened.metadata.items()
        if key.startswith(prefix)
    }
    for name, value in own.items():
        key = (prefix + name)[:80]
        if isinstance(value, list) or len(str(value)) > 40:
            raise refuse(opened.path, f"{key} is no single number or word", CONVERT)
        if name in numbers:
            if isinstance(value, str) or not math.isfinite(value):
                raise refuse(
                    opened.path, f"{key} is {value!r} in its metadata, which is no number", CONVERT
                )
            raw[numbers[name]] = value if value or name != WINDOW else None
        elif value not in keys.must.get(name, ()) and name not in keys.unread:
            problem = f"{key} is {value!r} in its metadata, and no formula for it is certified"
            raise unsupported(opened.path, problem, f"load a standard {family.name}")
    words = opened.metadata.get("tokenizer.ggml.tokens")
    if isinstance(words, list):
        raw.setdefault("vocab_size", len(words))
    if family.type_table and "token_types.weight" in opened.tensors:
        raw["type_vocab_size"] = opened.tensors["token_types.weight"].shape[0]
    return raw | _head_sizes(opened, family, own)


def _family(opened: GgufFile) -> tuple[str, Family]:
    named = opened.metadata.get("general.architecture")
    for kind, family in FAMILIES.items():
        if family.gguf and family.gguf.architecture == named:
            return kind, family
    certified = f"certified are {GGUF_KNOWN} ({KNOWN}) only"
    problem = f"its general.architecture is {str(named)[:40]!r}, and {certified}"
    raise unsupported(opened.path, problem, "load one of these or tiny-senses")


def _head_sizes(opened: GgufFile, family: Family, own: Mapping[str, Any]) -> dict[str, Any]:
    """The size of a head where the family leaves it free, and the share of it that is rotated by
    its position."""
    width = own.get("embedding_length")
    heads = own.get("attention.head_count")
    even = (
        width // heads if isinstance(width, int) and isinstance(heads, int) and heads > 0 else None
    )
    size = own.get("attention.key_length") or even
    if own.get("attention.value_length", size) != size:
        raise refuse(opened.path, "its keys and its values differ in length", CONVERT)
    settings = {"head_dim": size} if family.free_heads and size else {}
    if family.gguf and family.gguf.query_scalar and size:
        scalar = even if own.get("block_count") == family.gguf.query_scalar else size
        settings[family.keys.query_scalar[0]] = scalar
    dims = own.get("rope.dimension_count")
    if dims is None or family.positions != "rotary" or not isinstance(size, int):
        return settings
    if (
        not isinstance(dims, int)
        or not 0 < dims <= size
        or dims % 2
        or (family.free_heads and dims != size)
    ):
        raise refuse(
            opened.path,
            f"its rope.dimension_count is {dims} where a head has {size} dimensions",
            CONVERT,
        )
    share = dims / size
    exact = share if int(size * share) == dims else math.nextafter(share, 1)
    return settings if family.free_heads else settings | {"partial_rotary_factor": exact}


def read_gguf_config(opened: GgufFile, *, prepend_bos: bool) -> Config:
    """The config that the metadata describe, held to the same rules as one of a folder."""
    raw = read_raw_config(opened)
    config = config_from(
        raw, where=opened.path, architecture=raw["architectures"][0], prepend_bos=prepend_bos
    )
    if config.n_layers > len(opened.tensors):
        tensors = f"{len(opened.tensors)} tensors"
        problem = f"its metadata promise {config.n_layers} layers and it holds {tensors}"
        raise refuse(opened.path, problem, AGAIN)
    return config


def read_tensors(
    opened: GgufFile,
    config: Config,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> dict[str, torch.Tensor]:
    """The raw tensors by Hugging Face name without the family's prefix, as the model's own
    checkpoint would hold them.

    Dequantised to float32, then cast to `dtype`. Raises ModelError, naming the tensor as the file
    does, when one is missing, unknown, of another shape or not finite.
    """
    wanted = {theirs: (ours, role, shape) for ours, theirs, role, shape in _names(config)}
    for name, (_, role, shape) in wanted.items():
        if name not in opened.tensors:
            raise refuse(opened.path, f"the tensor {name} is missing", CONVERT)
        expected = shape[::-1] if _is_transposed(config, role, len(shape)) else shape
        stored = opened.tensors[name].shape
        if stored != expected:
            problem = f"{name} has shape {list(stored)} where its metadata ask for {list(expected)}"
            raise refuse(opened.path, problem, CONVERT)
    _check_unknown(opened, wanted, config)
    read = {}
    for name, (ours, role, _) in wanted.items():
        values = _as_in_checkpoint(_floats(opened, name), role, config)
        read[ours] = values.contiguous().to(device, dtype)
    return read


def _names(config: Config) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    """Of every tensor, Hugging Face's name, GGUF's, its role in a layer ("" outside) and Hugging
    Face's shape."""
    family = config.family
    assert family.gguf is not None
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == family.gguf.architecture)
    names = get_tensor_name_map(arch, config.n_layers)
    roles: dict[str, str] = {}
    for stack in family.attentions:
        for layer in range(layers_of(stack, config)):
            roles |= {
                stack.layers.format(layer) + part: role for role, (part, _) in stack.parts.items()
            }
    for name, shape in expected_shapes(config):
        base, _, ending = name.rpartition(".")
        theirs = names.get_name(family.prefix + base) or names.get_name(base) or base
        yield name, f"{theirs}.{ending}", roles.get(base, ""), shape


def _is_transposed(config: Config, role: str, axes: int) -> bool:
    """GGUF holds every matrix output x input; GPT-2's own files hold those of its layers input x
    output."""
    return config.family.transposed and bool(role) and axes == 2


def _check_unknown(opened: GgufFile, wanted: Mapping[str, object], config: Config) -> None:
    for name in sorted(opened.tensors.keys() - wanted.keys()):
        if name != ROPE_FACTORS:
            described = f"the {config.family.name} that its metadata describe"
            raise refuse(opened.path, f"{name[:80]} is not a tensor of {described}", CONVERT)
        if not bool((_floats(opened, name) == 1).all()):
            problem = f"its rotary positions are stretched ({ROPE_FACTORS}), which is not certified"
            raise unsupported(opened.path, problem, "load a model with plain rotary positions")


def _floats(opened: GgufFile, name: str) -> torch.Tensor:
    """One tensor dequantised to float32, all of it finite."""
    stored = opened.tensors[name]
    raw = np.frombuffer(opened.data, np.uint8, stored.size, stored.start)
    plain = raw.view(PLAIN[stored.kind.name][0]) if stored.kind.name in PLAIN else raw
    with np.errstate(all="ignore"):  # what is not finite is refused below
        values = dequantize(plain.reshape(*stored.shape[:-1], -1), stored.kind)
    tensor = torch.from_numpy(values if values.flags.writeable else values.copy()).reshape(
        stored.shape
    )
    check_finite(tensor, name, where=opened.path)
    return tensor


def _as_in_checkpoint(values: torch.Tensor, role: str, config: Config) -> torch.Tensor:
    """What the converter did to a tensor of a layer, undone: see `GgufKeys`."""
    family = config.family
    assert family.gguf is not None
    if _is_transposed(config, role, values.dim()):
        return values.T
    if family.offset and values.dim() == 1:
        return values - 1
    if role in family.gguf.interleaved:  # rows (head, pair, 2) -> (head, 2, pair)
        heads = config.n_heads if role == "q" else config.n_kv_heads
        return values.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    by_head = any(stack.fused == "by head" for stack in family.attentions)
    if role == "qkv" and by_head:  # (3, head) -> (head, 3)
        return values.unflatten(0, (3, config.n_heads, -1)).transpose(0, 1).flatten(0, 2)
    return values
