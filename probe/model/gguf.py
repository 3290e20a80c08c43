"""GGUF files: metadata as a config in Hugging Face's keys, tensors in float32 by Hugging Face's
names.

The `gguf` package provides the map of names and the dequantisation. The table of architectures
states which keys a family has and how its converter changes tensors (`GgufKeys`). The header is
read within bounds and checked before memory is allocated. The reader of the `gguf` package is not
used, because it trusts every count in a file.
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

# A factor for each frequency of rotary positions; factors of 1 change nothing.
ROPE_FACTORS = "rope_freqs.weight"
WINDOW = "attention.sliding_window"  # 0 in a model without a window
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
    """One tensor as the file states it.

    shape: slowest axis first
    kind: the element type
    start, size: of its bytes in the file
    """

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A file whose header was read completely and fits the file's length; the tensors' bytes
    stay on disk.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    data: mmap.mmap = field(repr=False)

    @property
    def stored(self) -> str:
        """The element types of the tensors, in the form of `stored_types`."""
        names = {kind: name for kind, (_, name) in PLAIN.items()}
        return stored_types((tensor.kind.name for tensor in self.tensors.values()), names)


class _Header:
    """Reads a header from the beginning; anything beyond the end of the file is refused before
    memory is allocated.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0  # the next byte to read

    def refuse(self, problem: str, step: str = AGAIN) -> NoReturn:
        raise refuse(self.path, problem, step)

    def raw(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            self.refuse(f"it is cut short (its header exceeds its {len(self.data):,} bytes)")
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
        """The value of one entry. A float32 becomes its shortest decimal: 1e-5, not
        9.99999974e-06.
        """
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
    """The complete header of a file. Raises ModelError for a file that is cut, damaged, absurd
    or in another format.
    """
    try:
        with path.open("rb") as handle:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
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
    """Every tensor by name: shape, type and offset, all within the file and without overlaps."""
    if (
        not isinstance(alignment, int)
        or not 0 < alignment <= 1 << 20
        or alignment & (alignment - 1)
    ):
        header.refuse(
            f"its general.alignment is {str(alignment)[:20]}, which is not a power of two", CONVERT
        )
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(count):
        name = header.text()
        axes = header.number("I")
        if name in entries or not 0 < axes <= MOST_AXES:
            problem = "is there twice" if name in entries else f"has {axes} axes"
            header.refuse(f"its tensor {name[:80]!r} {problem}", CONVERT)
        shape = header.numbers("Q", axes)[::-1]
        entries[name] = (shape, header.number("I"), header.number("Q"))
    first = -(-header.at // alignment) * alignment
    tensors = {
        name: _stored(header, name[:80], shape, kind, first + offset)
        for name, (shape, kind, offset) in entries.items()
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
        has_name = kind in set(GGMLQuantizationType)
        label = GGMLQuantizationType(kind).name if has_name else f"number {kind}"
        raise unsupported(
            header.path,
            f"its tensor {name!r} is stored in the quantisation {label}, which cannot be turned "
            "into numbers here",
            "take another quantisation of the model, such as Q8_0 or Q4_K",
        )
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    if not all(shape) or shape[-1] % block:
        header.refuse(
            f"its tensor {name!r} has shape {list(shape)}, not a whole number of blocks",
            CONVERT,
        )
    size = math.prod(shape) // block * size
    if start + size > len(header.data):
        header.refuse(
            f"it is cut short (its tensor {name!r} exceeds its {len(header.data):,} bytes)"
        )
    return Stored(shape, GGMLQuantizationType(kind), start, size)


@cache
def _readable(kind: int) -> bool:
    """Whether the `gguf` package can convert this type to floats; tested with one block of
    zeros.
    """
    try:
        quantisation = GGMLQuantizationType(kind)
        zeros = np.zeros((1, GGML_QUANT_SIZES[quantisation][1]), np.uint8)
        dequantize(
            zeros.view(PLAIN[quantisation.name][0]) if quantisation.name in PLAIN else zeros,
            quantisation,
        )
    except (ValueError, NotImplementedError):
        return False
    return True


def read_raw_config(file: GgufFile) -> dict[str, Any]:
    """The metadata in Hugging Face's keys. Raises UnsupportedModel for metadata without a
    certified formula.
    """
    kind, family = _family(file)
    assert family.gguf is not None
    raw = _from_tensors(file, kind, family)
    sizes = SIZES | dict(family.config_keys.sizes)
    unread = family.gguf.unread_keys
    config_keys: dict[str, str | tuple[str, ...]] = {
        gguf_name: sizes[field]
        for gguf_name, field in GGUF_SIZES.items()
        if gguf_name not in unread
    }
    config_keys |= family.gguf.number_keys
    prefix = f"{file.metadata['general.architecture']}."
    own_entries = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    for name, value in own_entries.items():
        if isinstance(value, list) and name in family.gguf.layer_lists:
            layer_key, *layer_types = family.gguf.layer_lists[name]
            raw[layer_key] = [layer_types[not entry] for entry in value]
            if name not in config_keys:
                continue
            value = max(value, default=0)
        _require_certified(file, family, prefix + name, value, read_keys=(*config_keys, *unread))
        paths = config_keys.get(name, ())
        for path in (paths,) if isinstance(paths, str) else paths:
            _set_value(file, raw, path, value if value or name != WINDOW else None, prefix + name)
    for name in (*GGUF_SIZES, *GGUF_EXPERTS):
        if name in config_keys and name not in own_entries and name != "vocab_size":
            raise refuse(file.path, f"{prefix}{name} is not in its metadata", CONVERT)
    words = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(words, list):
        raw.setdefault("vocab_size", len(words))
    return raw | _head_sizes(file, kind, family, own_entries)


def _from_tensors(file: GgufFile, kind: str, family: Family) -> dict[str, Any]:
    """The config keys of the row, and the keys that follow from the tensors."""
    assert family.gguf is not None
    # A GGUF file never has an encoder's head.
    classes = family.classes_without_lm_head if family.kind == "encoder" else family.architectures
    raw: dict[str, Any] = {
        "model_type": kind,
        "architectures": [classes[0]],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
        **family.gguf.fixed_settings,
    }
    for tensor, settings in family.gguf.settings_by_tensor.items():
        raw |= settings if tensor in file.tensors else {}
    for key, roles in family.config_keys.biases.items():
        product = "attn_output" if roles == "o" else f"attn_{roles[0]}"
        raw[key] = f"blk.0.{product}.bias" in file.tensors
    if family.type_table and "token_types.weight" in file.tensors:
        raw["type_vocab_size"] = file.tensors["token_types.weight"].shape[0]
    return raw


def _require_certified(
    file: GgufFile, family: Family, key: str, value: Any, read_keys: tuple[str, ...]
) -> None:
    """Raises UnsupportedModel for a metadata key without a certified formula, and ModelError for
    a value that should be a number but is not.
    """
    assert family.gguf is not None
    name = key.partition(".")[2]
    certified_values = family.gguf.certified_values
    if isinstance(value, list) or len(str(value)) > 40:
        raise refuse(file.path, f"{key[:80]} is not a single number or word", CONVERT)
    if name in certified_values:
        is_refused = value not in certified_values[name]
    else:
        is_refused = name not in read_keys
    if is_refused:
        problem = f"{key[:80]} is {value!r} in its metadata, and no formula for it is certified"
        raise unsupported(file.path, problem, f"load a standard {family.name}")
    is_read = name in read_keys and name not in (*certified_values, *family.gguf.unread_keys)
    if is_read and (isinstance(value, str) or not math.isfinite(value)):
        problem = f"{key} is {value!r} in its metadata, which is not a number"
        raise refuse(file.path, problem, CONVERT)


def _set_value(file: GgufFile, raw: dict[str, Any], path: str, value: Any, key: str) -> None:
    """Sets a value in `raw` at a path whose dots lead into nested objects. Raises ModelError if
    another key has set another value.
    """
    *objects, last = path.split(".")
    for name in objects:
        raw = raw.setdefault(name, {})
    previous = raw.setdefault(last, value)
    if previous != value and (previous or value):
        problem = f"{key} is {value!r} in its metadata where another key says {previous!r}"
        raise refuse(file.path, problem, CONVERT)


def _family(file: GgufFile) -> tuple[str, Family]:
    """The row of the file's architecture. If several rows share it, the contents of the file
    decide.
    """
    architecture = file.metadata.get("general.architecture")
    rows = [
        (kind, family, family.gguf.recognised_by)
        for kind, family in FAMILIES.items()
        if family.gguf and family.gguf.architecture == architecture
    ]
    # Rows without a mark come last.
    for kind, family, mark in sorted(rows, key=lambda row: not row[2]):
        if not mark or mark in file.tensors or file.metadata.get(f"{architecture}.{mark}"):
            return kind, family
    problem = (
        f"its general.architecture is {str(architecture)[:40]!r}, which is not read from GGUF files"
    )
    raise unsupported(file.path, problem, LISTED)


def _head_sizes(
    file: GgufFile, kind: str, family: Family, entries: Mapping[str, Any]
) -> dict[str, Any]:
    """The size of a head, if the family leaves it free, and the fraction of it that is rotated."""
    width = entries.get("embedding_length")
    heads = entries.get("attention.head_count")
    even = (
        width // heads if isinstance(width, int) and isinstance(heads, int) and heads > 0 else None
    )
    size = entries.get("attention.key_length") or even
    if entries.get("attention.value_length", size) != size:
        raise refuse(file.path, "its keys and its values differ in length", CONVERT)
    settings = {"head_dim": size} if family.d_head_is_independent and size else {}
    if family.gguf and family.gguf.query_scalar_exception and size:
        scalar = even if entries.get("block_count") == family.gguf.query_scalar_exception else size
        settings[family.config_keys.query_scalar] = scalar
    dims = entries.get("rope.dimension_count")
    if dims is None or family.positions != "rotary" or not isinstance(size, int):
        return settings
    is_whole = not rotates_a_share(kind)
    if not isinstance(dims, int) or not 0 < dims <= size or dims % 2 or (is_whole and dims != size):
        problem = f"its rope.dimension_count is {dims} where a head has {size} dimensions"
        raise refuse(file.path, problem, CONVERT)
    share = dims / size
    exact = share if int(size * share) == dims else math.nextafter(share, 1)
    return settings if is_whole else settings | {"partial_rotary_factor": exact}


def read_gguf_config(file: GgufFile, *, prepend_bos: bool) -> Config:
    """The config in the metadata, by the same rules as a folder's."""
    raw = read_raw_config(file)
    config = config_from(
        raw, where=file.path, architecture=raw["architectures"][0], prepend_bos=prepend_bos
    )
    if config.n_layers > len(file.tensors):
        tensors = f"{len(file.tensors)} tensors"
        problem = f"its metadata promise {config.n_layers} layers and it holds {tensors}"
        raise refuse(file.path, problem, AGAIN)
    experts = max(
        (tensor.shape[0] for tensor in file.tensors.values() if len(tensor.shape) == 3), default=0
    )
    if config.n_experts > experts:
        problem = f"its metadata promise {config.n_experts} experts and its tensors hold {experts}"
        raise refuse(file.path, problem, AGAIN)
    return config


def read_tensors(
    file: GgufFile,
    config: Config,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> dict[str, torch.Tensor]:
    """The raw tensors by Hugging Face name without the family's prefix, as in the model's
    checkpoint.

    They are dequantised to float32, then cast to `dtype`. Raises ModelError, with the tensor's name
    in the file, for a tensor that is missing, unknown, of another shape or not finite.
    """
    expected = _expected_tensors(config)
    for name, entry in expected.items():
        if name not in file.tensors:
            raise refuse(file.path, f"the tensor {name} is missing", CONVERT)
        stored = file.tensors[name].shape
        if _long_axes(stored) != _long_axes(entry.shape):
            problem = (
                f"{name} has shape {list(stored)} where its metadata ask for {list(entry.shape)}"
            )
            raise refuse(file.path, problem, CONVERT)
    _check_unknown(file, expected, config)
    read = {}
    for name, entry in expected.items():
        tensor = _floats(file, name).reshape(entry.shape)
        tensors = tensor if entry.stacked else (tensor,)
        for checkpoint_name, values in zip(entry.names, tensors, strict=True):
            values = _as_in_checkpoint(values, checkpoint_name, entry.role, config)
            read[checkpoint_name] = values.contiguous().to(device, dtype)
    return read


@dataclass
class Wanted:
    """The contents of a tensor of a file.

    role: of the weight in a layer; empty outside layers
    stacked: whether the tensor holds several weights
    names: Hugging Face's names of these weights
    weight_shape: the shape of one weight
    """

    role: str
    stacked: bool
    names: list[str]
    weight_shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.names), *self.weight_shape) if self.stacked else self.weight_shape


def _expected_tensors(config: Config) -> dict[str, Wanted]:
    """Every tensor that the file must contain, by GGUF's name."""
    family = config.family
    assert family.gguf is not None
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == family.gguf.architecture)
    names = get_tensor_name_map(arch, config.n_layers)
    parts: dict[str, tuple[str, str]] = {}  # by name without ending: role, name without number
    for stack in family.attentions:
        for layer in range(layers_of(stack, config)):
            front = stack.layer_prefix.format(layer)
            for role, (part, _) in stack.parts.items():
                for number in range(config.n_experts if "{}" in part else 1):
                    parts[front + part.format(number)] = role, front + part.replace("{}.", "")
    expected: dict[str, Wanted] = {}
    for name, shape in expected_shapes(config):
        base, _, ending = name.rpartition(".")
        role, plain = parts.get(base, ("", base))
        gguf_name = names.get_name(family.prefix + plain) or names.get_name(plain) or plain
        weight_shape = shape[::-1] if _is_transposed(config, role, len(shape)) else shape
        entry = expected.setdefault(
            f"{gguf_name}.{ending}", Wanted(role, plain != base, [], weight_shape)
        )
        entry.names.append(name)
    return expected


def _long_axes(shape: tuple[int, ...]) -> list[int]:
    """A shape without its axes of length 1, which a file may omit."""
    return [size for size in shape if size != 1]


def _is_transposed(config: Config, role: str, axes: int) -> bool:
    """Whether GGUF's matrix is transposed: it has output x input, and GPT-2's files have input x
    output in layers.
    """
    return config.family.transposed and bool(role) and axes == 2


def _check_unknown(file: GgufFile, expected: Mapping[str, object], config: Config) -> None:
    for name in sorted(file.tensors.keys() - expected.keys()):
        if name != ROPE_FACTORS:
            described = f"the {config.family.name} that its metadata describe"
            raise refuse(file.path, f"{name[:80]} is not a tensor of {described}", CONVERT)
        if not bool((_floats(file, name) == 1).all()):
            problem = f"its rotary positions are stretched ({ROPE_FACTORS}), which is not certified"
            raise unsupported(file.path, problem, "load a model with plain rotary positions")


def _floats(file: GgufFile, name: str) -> torch.Tensor:
    """One tensor, dequantised to float32 and finite."""
    stored = file.tensors[name]
    raw = np.frombuffer(file.data, np.uint8, stored.size, stored.start)
    plain = raw.view(PLAIN[stored.kind.name][0]) if stored.kind.name in PLAIN else raw
    with np.errstate(all="ignore"):  # values that are not finite are refused below
        values = dequantize(plain.reshape(*stored.shape[:-1], -1), stored.kind)
    tensor = torch.from_numpy(values if values.flags.writeable else values.copy()).reshape(
        stored.shape
    )
    check_finite(tensor, name, where=file.path)
    return tensor


def _as_in_checkpoint(values: torch.Tensor, name: str, role: str, config: Config) -> torch.Tensor:
    """The weight of this name and role as in the checkpoint, with the converter's changes undone
    (`GgufKeys`).
    """
    family = config.family
    assert family.gguf is not None
    if _is_transposed(config, role, values.dim()):
        return values.T
    if family.norm_adds_one and values.dim() == 1 and name.endswith(".weight"):
        return values - 1
    if role in family.gguf.adjacent_pair_roles:  # rows (head, pair, 2) -> (head, 2, pair)
        heads = config.n_heads if role == "q" else config.n_kv_heads
        return values.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    by_head = any(stack.fused_qkv == "by head" for stack in family.attentions)
    if role == "qkv" and by_head:  # (3, head) -> (head, 3)
        return values.unflatten(0, (3, config.n_heads, -1)).transpose(0, 1).flatten(0, 2)
    return values
