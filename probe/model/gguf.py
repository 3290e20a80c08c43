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
from collections.abc import Mapping
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

from probe.model.architectures import FAMILIES
from probe.model.architectures.family import Family
from probe.model.architectures.gguf_keys import GGUF_EXPERTS, GGUF_SIZES
from probe.model.config import SIZES, config_from, rotates_a_share
from probe.model.model import LISTED, Config, refuse, unsupported
from probe.model.weights import check_finite, expected_shapes, layers_of, stored_types

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
    assert family.gguf is not None
    raw = _told_by_tensors(opened, kind, family)
    sizes = SIZES | dict(family.keys.sizes)
    unread = family.gguf.unread
    numbers = {
        theirs: sizes[ours] for theirs, ours in GGUF_SIZES.items() if theirs not in unread
    } | dict(family.gguf.numbers)
    prefix = f"{opened.metadata['general.architecture']}."
    own = {
        key.removeprefix(prefix): value
        for key, value in opened.metadata.items()
        if key.startswith(prefix)
    }
    for name, value in own.items():
        if isinstance(value, list) and name in family.gguf.layers:
            listed, *kinds = family.gguf.layers[name]
            raw[listed] = [kinds[not entry] for entry in value]
            if name not in numbers:
                continue
            value = max(value, default=0)
        _require_certified(opened, family, prefix + name, value, known=(*numbers, *unread))
        for place in numbers.get(name, "").split():
            _put(opened, raw, place, value if value or name != WINDOW else None, prefix + name)
    for name in (*GGUF_SIZES, *GGUF_EXPERTS):
        if name in numbers and name not in own and name != "vocab_size":
            raise refuse(opened.path, f"{prefix}{name} is not in its metadata", CONVERT)
    words = opened.metadata.get("tokenizer.ggml.tokens")
    if isinstance(words, list):
        raw.setdefault("vocab_size", len(words))
    return raw | _head_sizes(opened, kind, family, own)


def _told_by_tensors(opened: GgufFile, kind: str, family: Family) -> dict[str, Any]:
    """The config keys of the row, and those that tensors tell."""
    assert family.gguf is not None
    # A file holds no head of an encoder.
    classes = family.headless if family.kind == "encoder" else family.architectures
    raw: dict[str, Any] = {
        "model_type": kind,
        "architectures": [classes[0]],
        "tie_word_embeddings": "output.weight" not in opened.tensors,
        "pad_token_id": opened.metadata.get("tokenizer.ggml.padding_token_id"),
        **family.gguf.settings,
    }
    for tensor, told in family.gguf.by_tensor.items():
        raw |= told if tensor in opened.tensors else {}
    for key, roles in family.keys.biases.items():
        product = "attn_output" if roles == "o" else f"attn_{roles[0]}"
        raw[key] = f"blk.0.{product}.bias" in opened.tensors
    if family.type_table and "token_types.weight" in opened.tensors:
        raw["type_vocab_size"] = opened.tensors["token_types.weight"].shape[0]
    return raw


def _require_certified(
    opened: GgufFile, family: Family, key: str, value: Any, known: tuple[str, ...]
) -> None:
    """Raises UnsupportedModel for a metadata key that no formula is known for, ModelError for one
    that should be a number and is none."""
    assert family.gguf is not None
    name = key.partition(".")[2]
    must = family.gguf.must
    if isinstance(value, list) or len(str(value)) > 40:
        raise refuse(opened.path, f"{key[:80]} is no single number or word", CONVERT)
    if value not in must[name] if name in must else name not in known:
        problem = f"{key[:80]} is {value!r} in its metadata, and no formula for it is certified"
        raise unsupported(opened.path, problem, f"load a standard {family.name}")
    is_read = name in known and name not in (*must, *family.gguf.unread)
    if is_read and (isinstance(value, str) or not math.isfinite(value)):
        problem = f"{key} is {value!r} in its metadata, which is no number"
        raise refuse(opened.path, problem, CONVERT)


def _put(opened: GgufFile, raw: dict[str, Any], place: str, value: Any, key: str) -> None:
    """Puts the value of a metadata key at a place of `raw` whose points lead into objects. Raises
    ModelError where another key put another one there."""
    *objects, last = place.split(".")
    for name in objects:
        raw = raw.setdefault(name, {})
    other = raw.setdefault(last, value)
    if other != value and (other or value):
        problem = f"{key} is {value!r} in its metadata where another key says {other!r}"
        raise refuse(opened.path, problem, CONVERT)


def _family(opened: GgufFile) -> tuple[str, Family]:
    """The row of the file's architecture: the one that is told by what the file has, where one
    is."""
    named = opened.metadata.get("general.architecture")
    rows = [
        (kind, family, family.gguf.told_by)
        for kind, family in FAMILIES.items()
        if family.gguf and family.gguf.architecture == named
    ]
    for kind, family, told_by in sorted(rows, key=lambda row: not row[2]):
        if not told_by or told_by in opened.tensors or opened.metadata.get(f"{named}.{told_by}"):
            return kind, family
    problem = f"its general.architecture is {str(named)[:40]!r}, which is not read from GGUF files"
    raise unsupported(opened.path, problem, LISTED)


def _head_sizes(
    opened: GgufFile, kind: str, family: Family, own: Mapping[str, Any]
) -> dict[str, Any]:
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
        settings[family.keys.query_scalar] = scalar
    dims = own.get("rope.dimension_count")
    if dims is None or family.positions != "rotary" or not isinstance(size, int):
        return settings
    is_whole = not rotates_a_share(kind)
    if not isinstance(dims, int) or not 0 < dims <= size or dims % 2 or (is_whole and dims != size):
        problem = f"its rope.dimension_count is {dims} where a head has {size} dimensions"
        raise refuse(opened.path, problem, CONVERT)
    share = dims / size
    exact = share if int(size * share) == dims else math.nextafter(share, 1)
    return settings if is_whole else settings | {"partial_rotary_factor": exact}


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
    experts = max(
        (tensor.shape[0] for tensor in opened.tensors.values() if len(tensor.shape) == 3), default=0
    )
    if config.n_experts > experts:
        problem = f"its metadata promise {config.n_experts} experts and its tensors hold {experts}"
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
    wanted = _wanted(config)
    for name, held in wanted.items():
        if name not in opened.tensors:
            raise refuse(opened.path, f"the tensor {name} is missing", CONVERT)
        stored = opened.tensors[name].shape
        if _long_axes(stored) != _long_axes(held.shape):
            problem = (
                f"{name} has shape {list(stored)} where its metadata ask for {list(held.shape)}"
            )
            raise refuse(opened.path, problem, CONVERT)
    _check_unknown(opened, wanted, config)
    read = {}
    for name, held in wanted.items():
        whole = _floats(opened, name).reshape(held.shape)
        of_each = whole if held.stacked else (whole,)
        for ours, values in zip(held.names, of_each, strict=True):
            values = _as_in_checkpoint(values, ours, held.role, config)
            read[ours] = values.contiguous().to(device, dtype)
    return read


@dataclass
class Wanted:
    """What a tensor of a file holds: the weights of these `names` by Hugging Face, of a `role` in a
    layer ("" outside), all in one or `stacked`, and the shape."""

    role: str
    stacked: bool
    names: list[str]
    of_one: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.names), *self.of_one) if self.stacked else self.of_one


def _wanted(config: Config) -> dict[str, Wanted]:
    """Every tensor that the file must hold, by GGUF's name."""
    family = config.family
    assert family.gguf is not None
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == family.gguf.architecture)
    names = get_tensor_name_map(arch, config.n_layers)
    parts: dict[str, tuple[str, str]] = {}  # by name without an ending: role, name without number
    for stack in family.attentions:
        for layer in range(layers_of(stack, config)):
            front = stack.layers.format(layer)
            for role, (part, _) in stack.parts.items():
                for number in range(config.n_experts if "{}" in part else 1):
                    parts[front + part.format(number)] = role, front + part.replace("{}.", "")
    wanted: dict[str, Wanted] = {}
    for name, shape in expected_shapes(config):
        base, _, ending = name.rpartition(".")
        role, plain = parts.get(base, ("", base))
        theirs = names.get_name(family.prefix + plain) or names.get_name(plain) or plain
        of_one = shape[::-1] if _is_transposed(config, role, len(shape)) else shape
        held = wanted.setdefault(f"{theirs}.{ending}", Wanted(role, plain != base, [], of_one))
        held.names.append(name)
    return wanted


def _long_axes(shape: tuple[int, ...]) -> list[int]:
    """A shape without its axes of length 1, which a file may leave out."""
    return [size for size in shape if size != 1]


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


def _as_in_checkpoint(values: torch.Tensor, name: str, role: str, config: Config) -> torch.Tensor:
    """What the converter did to the weight of this `name` and `role`, undone: see `GgufKeys`."""
    family = config.family
    assert family.gguf is not None
    if _is_transposed(config, role, values.dim()):
        return values.T
    if family.offset and values.dim() == 1 and name.endswith(".weight"):
        return values - 1
    if role in family.gguf.interleaved:  # rows (head, pair, 2) -> (head, 2, pair)
        heads = config.n_heads if role == "q" else config.n_kv_heads
        return values.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    by_head = any(stack.fused == "by head" for stack in family.attentions)
    if role == "qkv" and by_head:  # (3, head) -> (head, 3)
        return values.unflatten(0, (3, config.n_heads, -1)).transpose(0, 1).flatten(0, 2)
    return values
