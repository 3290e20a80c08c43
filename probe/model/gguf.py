"""GGUF files: metadata as a config in Hugging Face's keys, tensors in float32 by Hugging Face's names.

Names come from the `gguf` package's own map, and blocks are dequantised by it; which keys a family has and what its
converter turned stands in the table of architectures (`GgufKeys`). What a file must hold before any of it is believed:
`gguf_header`.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, dequantize, get_tensor_name_map

from probe.errors import UnsupportedModel
from probe.model.architectures import FAMILIES, GGUF_KNOWN
from probe.model.architectures.family import Family
from probe.model.bridge import in_short
from probe.model.checkpoint import check_finite
from probe.model.config import Config, config_from, refuse
from probe.model.gguf_header import AGAIN, CONVERT, PLAIN, GgufFile
from probe.model.weights import expected_shapes, layers_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

KNOWN = ", ".join(family.gguf.architecture for family in FAMILIES.values() if family.gguf)
# The cuts in front of byte-level merges that transformers' converter takes where it knows no other: GPT-2's. SmolLM's
# own, which sets digits apart, gives the same tokens: its merges know no two digits.
LIKE_GPT2 = (None, "gpt-2", "gpt2", "default", "smollm", "mpt", "olmo", "jais", "phi-2")
GIVE_TOKENIZER = "put the tokenizer.json of this model beside the file"
# Rotary positions stretched by factors of their own, one each frequency: ones change nothing.
STRETCH = "rope_freqs.weight"
WINDOW = "attention.sliding_window"  # 0 where a model has none


def read_raw_config(opened: GgufFile) -> dict[str, Any]:
    """The metadata in Hugging Face's config keys.

    Raises UnsupportedModel for an architecture or a key that no formula is known for.
    """
    kind, family = _family(opened)
    keys, prefix = family.gguf, f"{opened.metadata['general.architecture']}."
    assert keys is not None
    raw: dict[str, Any] = {
        "model_type": kind,
        "architectures": [(*family.headless, *family.architectures)[0]],
        "tie_word_embeddings": "output.weight" not in opened.tensors,
        "pad_token_id": opened.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    own = {key: value for key, value in opened.metadata.items() if key.startswith(prefix)}
    for key, value in own.items():
        name = key.removeprefix(prefix)
        if isinstance(value, list) or len(str(value)) > 40:
            raise refuse(opened.path, f"{key[:80]} is no single number or word", CONVERT)
        if name in keys.sizes:
            if isinstance(value, str) or not math.isfinite(value):
                raise refuse(opened.path, f"{key[:80]} is {value!r} in its metadata, which is no number", CONVERT)
            raw[keys.sizes[name]] = value if value or name != WINDOW else None
        elif value not in keys.must.get(name, ()) and name not in keys.unread:
            raise UnsupportedModel(
                f"Cannot load {opened.path}: {key[:80]} is {value!r} in its metadata, and no formula for it is "
                f"certified; load a standard {family.name}."
            )
    words = opened.metadata.get("tokenizer.ggml.tokens")
    if isinstance(words, list):
        raw.setdefault("vocab_size", len(words))
    if family.type_table and "token_types.weight" in opened.tensors:
        raw["type_vocab_size"] = opened.tensors["token_types.weight"].shape[0]
    return raw | _head_sizes(opened, family, {key.removeprefix(prefix): value for key, value in own.items()})


def _family(opened: GgufFile) -> tuple[str, Family]:
    named = opened.metadata.get("general.architecture")
    for kind, family in FAMILIES.items():
        if family.gguf and family.gguf.architecture == named:
            return kind, family
    raise UnsupportedModel(
        f"Cannot load {opened.path}: its general.architecture is {str(named)[:40]!r}, and certified are {GGUF_KNOWN} "
        f"({KNOWN}) only; load one of these or tiny-senses."
    )


def _head_sizes(opened: GgufFile, family: Family, own: Mapping[str, Any]) -> dict[str, Any]:
    """The size of a head where the family leaves it free, and the share of it that is turned by its position."""
    width, heads = own.get("embedding_length"), own.get("attention.head_count")
    even = width // heads if isinstance(width, int) and isinstance(heads, int) and heads > 0 else None
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
    if not isinstance(dims, int) or not 0 < dims <= size or dims % 2 or (family.free_heads and dims != size):
        raise refuse(opened.path, f"its rope.dimension_count is {dims} where a head has {size} dimensions", CONVERT)
    share = dims / size
    exact = share if int(size * share) == dims else math.nextafter(share, 1)
    return settings if family.free_heads else settings | {"partial_rotary_factor": exact}


def read_gguf_config(opened: GgufFile, *, prepend_bos: bool) -> Config:
    """The config that the metadata describe, held to the same rules as one of a folder."""
    raw = read_raw_config(opened)
    config = config_from(raw, where=opened.path, architecture=raw["architectures"][0], prepend_bos=prepend_bos)
    if config.n_layers > len(opened.tensors):
        problem = f"its metadata promise {config.n_layers} layers and it holds {len(opened.tensors)} tensors"
        raise refuse(opened.path, problem, AGAIN)
    return config


def read_tensors(
    opened: GgufFile, config: Config, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> dict[str, torch.Tensor]:
    """The raw tensors by Hugging Face name without the family's prefix, as the model's own checkpoint would hold them.

    Dequantised to float32, then cast to `dtype`. Raises ModelError, naming the tensor as the file does, when one is
    missing, unknown, of another shape or not finite.
    """
    wanted = {theirs: (ours, role, shape) for ours, theirs, role, shape in _names(config)}
    for name, (_, role, shape) in wanted.items():
        if name not in opened.tensors:
            raise refuse(opened.path, f"the tensor {name} is missing", CONVERT)
        told = shape[::-1] if _is_turned(config, role, len(shape)) else shape
        if opened.tensors[name].shape != told:
            problem = f"{name} has shape {list(opened.tensors[name].shape)} where its metadata ask for {list(told)}"
            raise refuse(opened.path, problem, CONVERT)
    _check_unknown(opened, wanted, config)
    read = {}
    for name, (ours, role, _) in wanted.items():
        values = _as_in_checkpoint(_floats(opened, name), role, config)
        read[ours] = values.contiguous().to(device, dtype)
    return read


def _names(config: Config) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
    """Name in Hugging Face's file, name in a GGUF file, role in a layer ("" outside) and Hugging Face's shape of every
    tensor.
    """
    family = config.family
    assert family.gguf is not None
    arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == family.gguf.architecture)
    names = get_tensor_name_map(arch, config.n_layers)
    roles = {
        stack.layers.format(layer) + part: role
        for stack in family.attentions
        for layer in range(layers_of(stack, config))
        for role, (part, _) in stack.parts.items()
    }
    for name, shape in expected_shapes(config):
        base, _, ending = name.rpartition(".")
        theirs = names.get_name(family.prefix + base) or names.get_name(base) or base
        yield name, f"{theirs}.{ending}", roles.get(base, ""), shape


def _is_turned(config: Config, role: str, axes: int) -> bool:
    """GGUF holds every matrix output x input; GPT-2's own files hold those of its layers input x output."""
    return config.family.turned and bool(role) and axes == 2


def _check_unknown(opened: GgufFile, wanted: Mapping[str, object], config: Config) -> None:
    for name in sorted(opened.tensors.keys() - wanted.keys()):
        if name != STRETCH:
            problem = f"{name[:80]} is not a tensor of the {config.family.name} that its metadata describe"
            raise refuse(opened.path, problem, CONVERT)
        if not bool((_floats(opened, name) == 1).all()):
            raise UnsupportedModel(
                f"Cannot load {opened.path}: its rotary positions are stretched ({STRETCH}), which is not certified; "
                "load a model with plain rotary positions."
            )


def _floats(opened: GgufFile, name: str) -> torch.Tensor:
    """One tensor dequantised to float32, all of it finite."""
    stored = opened.tensors[name]
    raw = np.frombuffer(opened.data, np.uint8, stored.size, stored.start)
    plain = raw.view(PLAIN[stored.kind.name][0]) if stored.kind.name in PLAIN else raw
    with np.errstate(all="ignore"):  # what is not finite is refused below
        values = dequantize(plain.reshape(*stored.shape[:-1], -1), stored.kind)
    tensor = torch.from_numpy(values if values.flags.writeable else values.copy()).reshape(stored.shape)
    check_finite(tensor, name, where=opened.path)
    return tensor


def _as_in_checkpoint(values: torch.Tensor, role: str, config: Config) -> torch.Tensor:
    """What the converter did to a tensor of a layer, undone: see `GgufKeys`."""
    family = config.family
    assert family.gguf is not None
    if _is_turned(config, role, values.dim()):
        return values.T
    if family.offset and values.dim() == 1:
        return values - 1
    if role in family.gguf.paired:  # rows (head, pair, 2) -> (head, 2, pair)
        heads = config.n_heads if role == "q" else config.n_kv_heads
        return values.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    if role == "qkv" and any(stack.fused == "by head" for stack in family.attentions):  # (3, head) -> (head, 3)
        return values.unflatten(0, (3, config.n_heads, -1)).transpose(0, 1).flatten(0, 2)
    return values


def read_gguf_tokenizer(opened: GgufFile, config: Config) -> "PreTrainedTokenizerFast":
    """The tokenizer that the metadata describe, converted by transformers.

    Raises ModelError for one that it would get wrong.
    """
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS, GGUF_TOKENIZER_TYPES

    kind, cut = (opened.metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if not isinstance(opened.metadata.get("tokenizer.ggml.tokens"), list):
        raise refuse(opened.path, "it holds no tokenizer", GIVE_TOKENIZER)
    if config.family.kind != "decoder" or not isinstance(kind, str) or kind not in GGUF_TOKENIZER_TYPES:
        raise refuse(
            opened.path, f"its tokenizer is of the kind {str(kind)[:40]!r}, which is not converted", GIVE_TOKENIZER
        )
    if kind == "gpt2" and cut not in (*LIKE_GPT2, *GGUF_PRE_TOKENIZER_SPLITS):
        problem = f"its tokenizer cuts text by the rule {str(cut)[:40]!r}, which is not converted"
        raise refuse(opened.path, problem, GIVE_TOKENIZER)
    try:
        architecture, described, settings = get_gguf_tokenizer(str(opened.path))
        backend, _ = convert_gguf_tokenizer(architecture, described)
        own = _without_added(backend, len(described["tokens"]))
        return PreTrainedTokenizerFast(tokenizer_object=own, **settings)
    except Exception as error:  # broad, because tokenizers raises Exception itself
        raise refuse(opened.path, f"its tokenizer cannot be converted ({in_short(error)})", GIVE_TOKENIZER) from error


def _without_added(backend: Any, known: int) -> Any:
    """The tokenizer without tokens that the file does not know: the converter gives every byte-level one GPT-2's end of
    text.
    """
    if backend.get_vocab_size(with_added_tokens=True) <= known:
        return backend
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < known]
    return Tokenizer.from_str(json.dumps(state))
