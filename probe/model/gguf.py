"""GGUF files of some families: metadata as a config in Hugging Face's keys, and tensors in float32
by Hugging Face's names.

The `gguf` package reads the file, names the tensors and dequantises them. This module says which
metadata a family may have, and undoes the changes that llama.cpp's converter makes to tensors.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import (
    MODEL_ARCH_NAMES,
    GGUFReader,
    GGUFValueType,
    dequantize,
    get_tensor_name_map,
)

from probe.model.architectures import FAMILIES, GGUF_FAMILIES
from probe.model.architectures.family import Family
from probe.model.bridge import in_short
from probe.model.config import SIZES
from probe.model.model import Config, refuse, unsupported
from probe.model.weights import check_finite, expected_shapes, stored_types

# By metadata key of every family: the field of `Config`.
GGUF_SIZES = {
    "block_count": "n_layers",
    "embedding_length": "d_model",
    "feed_forward_length": "d_mlp",
    "context_length": "n_ctx",
    "attention.head_count": "n_heads",
    "vocab_size": "d_vocab",
}
EPSILONS = ("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon")
# By metadata key: the config key.
ROTARY = {"attention.head_count_kv": "num_key_value_heads", "rope.freq_base": "rope_theta"}
WINDOW = "attention.sliding_window"  # 0 in a model without a window
GEMMA = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
GEMMA |= ROTARY | {WINDOW: "sliding_window"}
# By architecture: the numbers that its families have in addition to sizes and an epsilon.
NUMBERS: dict[str, Mapping[str, str]] = {
    "gptneox": {"rope.freq_base": "rope_theta"},
    "llama": ROTARY,
    "qwen2": ROTARY,
    "qwen3": ROTARY,
    "gemma": ROTARY,
    "gemma2": GEMMA,
    "gemma3": GEMMA
    | {
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "rope.freq_base_swa": "rope_local_base_freq",
    },
}
# Metadata without a formula, with the values that have no effect.
NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0, 1),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "use_parallel_residual": (True,),
    WINDOW: (0,),
}
# Metadata that change no formula, or that are read with the size of heads.
UNREAD = (
    "pooling_type",
    "tensor_data_layout",
    "rope.scaling.original_context_length",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
)
# The number of layers of the model that divides scores by sqrt(d_model / heads), where models of
# any other size divide them by sqrt(d_head): Gemma 2 27B and Gemma 3 27B. No key states it.
DIVIDED_BY_EVEN_SIZE = {"gemma2": 46, "gemma3": 62}
# Families whose rotary pairs are stored as adjacent rows, (0, 1), (2, 3), …, and not as two halves.
ADJACENT_PAIRS = ("llama",)
# A factor for each frequency of rotary positions; factors of 1 change nothing.
ROPE_FACTORS = "rope_freqs.weight"
PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
AGAIN = "copy or download it again"
CONVERT = "convert the model to GGUF again"


class GgufFile(GGUFReader):
    """A GGUF file, with its metadata and tensors by name.

    A list in the metadata is replaced by its length. The reader of the `gguf` package makes an
    array for every word of a vocabulary, which takes ten seconds for Gemma's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            super().__init__(path)
            self.metadata = {name: _value(each.contents()) for name, each in self.fields.items()}
            self.by_name = {tensor.name: tensor for tensor in self.tensors}
        # The errors of the package, and of numpy behind the end of a file.
        except (ValueError, KeyError, IndexError, OverflowError, OSError) as error:
            problem = f"it is not a whole GGUF file ({in_short(error)})"
            raise refuse(path, problem, AGAIN) from error
        if self.metadata.get("split.count", 1) not in (0, 1):
            problem = f"it is one part of {self.metadata['split.count']}"
            raise refuse(path, problem, "join the parts with gguf-split --merge")

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        """The size of a value, and the value in the form of the package."""
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = GGUFValueType(self._get(orig_offs, np.uint32)[0])
        count = self._get(orig_offs + 4, np.uint64)
        end = orig_offs + 12
        if kind in self.gguf_scalar_to_np:
            end += int(count[0]) * np.dtype(self.gguf_scalar_to_np[kind]).itemsize
        elif kind == GGUFValueType.STRING:
            data = memoryview(self.data)
            for _ in range(int(count[0])):
                if end > len(data):
                    raise ValueError("a list exceeds the file")
                end += 8 + int.from_bytes(data[end : end + 8], "little")
        else:
            raise ValueError(f"a list of the type {kind.name}")
        return end - orig_offs, [count], [0], [GGUFValueType.UINT64]

    @property
    def stored(self) -> str:
        """The element types of the tensors, in the form of `stored_types`."""
        return stored_types((tensor.tensor_type.name for tensor in self.tensors), PLAIN)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, slowest axis first."""
        return tuple(int(size) for size in self.by_name[name].shape[::-1])


def _value(value: Any) -> Any:
    """A value of the metadata. A float32 becomes its shortest decimal: 1e-5, not 9.99999974e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def read_raw_config(file: GgufFile) -> dict[str, Any]:
    """The metadata in Hugging Face's keys. Raises UnsupportedModel for metadata without a
    certified formula.
    """
    architecture = str(file.metadata.get("general.architecture"))
    kind = GGUF_FAMILIES.get(architecture, "")
    if not kind:
        problem = f"its general.architecture is {architecture[:40]!r}"
        families = ", ".join(FAMILIES[each].name for each in GGUF_FAMILIES.values())
        step = f"load the safetensors of the model; GGUF files are read of {families}"
        raise unsupported(file.path, f"{problem}, which is not read from GGUF files", step)
    family = FAMILIES[kind]
    sizes = SIZES | dict(family.config_keys.sizes)
    numbers = {key: sizes[field] for key, field in GGUF_SIZES.items()}
    numbers |= dict.fromkeys(EPSILONS, str(family.config_keys.epsilon))
    numbers |= NUMBERS.get(architecture, {})
    # A GGUF file never has an encoder's head.
    classes = family.classes_without_lm_head if family.kind == "encoder" else family.architectures
    raw: dict[str, Any] = {
        "model_type": kind,
        "architectures": [classes[0]],
        "vocab_size": file.metadata.get("tokenizer.ggml.tokens"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
        "tie_word_embeddings": "output.weight" not in file.by_name,
    }
    for key, roles in family.config_keys.biases.items():
        product = "attn_output" if roles == "o" else f"attn_{roles[0]}"
        raw[key] = f"blk.0.{product}.bias" in file.by_name
    if family.type_table and "token_types.weight" in file.by_name:
        raw["type_vocab_size"] = file.shape("token_types.weight")[0]
    prefix = f"{architecture}."
    entries = {
        key.removeprefix(prefix): value
        for key, value in file.metadata.items()
        if key.startswith(prefix)
    }
    allowed = NO_EFFECT | {"attention.causal": (family.kind == "decoder",)}
    for name, value in entries.items():
        if name in numbers:
            raw[numbers[name]] = value if value or name != WINDOW else None
        elif name not in UNREAD and value not in allowed.get(name, ()):
            problem = f"{prefix}{name[:80]} is {str(value)[:40]!r} in its metadata, and no formula"
            raise unsupported(
                file.path, f"{problem} for it is certified", f"load a standard {family.name}"
            )
    for name in GGUF_SIZES:
        value = entries.get(name)
        if name != "vocab_size" and (not isinstance(value, int) or value < 1):
            problem = f"{prefix}{name} is {str(value)[:40]!r} in its metadata"
            raise refuse(file.path, problem, CONVERT)
    return raw | _head_sizes(file, family, architecture, entries)


def _head_sizes(
    file: GgufFile, family: Family, architecture: str, entries: Mapping[str, Any]
) -> dict[str, Any]:
    """The size of a head, if the family leaves it free, and the fraction of it that is rotated."""
    even = entries["embedding_length"] // entries["attention.head_count"]
    size = entries.get("attention.key_length") or even
    dims = entries.get("rope.dimension_count", size)
    is_partly_rotated = architecture == "gptneox" and 0 < dims <= size
    if entries.get("attention.value_length", size) != size:
        raise refuse(file.path, "its keys and its values differ in length", CONVERT)
    if family.positions == "rotary" and dims != size and not is_partly_rotated:
        problem = f"its rope.dimension_count is {dims} where a head has {size} dimensions"
        raise refuse(file.path, problem, CONVERT)
    settings = {"head_dim": size} if family.d_head_is_independent else {}
    if architecture in DIVIDED_BY_EVEN_SIZE:
        is_largest = entries["block_count"] == DIVIDED_BY_EVEN_SIZE[architecture]
        settings[family.config_keys.query_scalar] = even if is_largest else size
    if is_partly_rotated:
        share = dims / size
        exact = share if int(size * share) == dims else math.nextafter(share, 1)
        settings["partial_rotary_factor"] = exact
    return settings


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
    # First, because the package's names of very many blocks take seconds.
    blocks = {name.split(".")[1] for name in file.by_name if name.startswith("blk.")}
    if len(blocks) != config.n_layers:
        problem = f"its metadata ask for {config.n_layers} blocks and it has {len(blocks)}"
        raise refuse(file.path, problem, CONVERT)
    family = config.family
    architecture = file.metadata["general.architecture"]
    number = next(key for key, name in MODEL_ARCH_NAMES.items() if name == architecture)
    names = get_tensor_name_map(number, config.n_layers)
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, shape in expected_shapes(config):
        base, _, ending = name.rpartition(".")
        gguf_name = names.get_name(family.prefix + base) or names.get_name(base) or base
        # GGUF's matrices are output x input; GPT-2's are input x output in layers.
        is_transposed = family.transposed and name.startswith("h.")
        expected[f"{gguf_name}.{ending}"] = (name, shape[::-1] if is_transposed else shape)
    for gguf_name, (_, shape) in expected.items():
        if gguf_name not in file.by_name:
            raise refuse(file.path, f"the tensor {gguf_name} is missing", CONVERT)
        if file.shape(gguf_name) != shape:
            stored = list(file.shape(gguf_name))
            problem = f"{gguf_name} has shape {stored} where its metadata ask for {list(shape)}"
            raise refuse(file.path, problem, CONVERT)
    for unknown in sorted(file.by_name.keys() - expected.keys()):
        if unknown != ROPE_FACTORS:
            described = f"the {family.name} that its metadata describe"
            raise refuse(file.path, f"{unknown[:80]} is not a tensor of {described}", CONVERT)
        if not bool((_floats(file, unknown) == 1).all()):
            problem = f"its rotary positions are stretched ({ROPE_FACTORS}), which is not certified"
            raise unsupported(file.path, problem, "load a model with plain rotary positions")
    return {
        name: _as_in_checkpoint(_floats(file, gguf_name), name, config)
        .contiguous()
        .to(device, dtype)
        for gguf_name, (name, _) in expected.items()
    }


def _floats(file: GgufFile, name: str) -> torch.Tensor:
    """One tensor, dequantised to float32 and finite."""
    tensor = file.by_name[name]
    try:
        with np.errstate(all="ignore"):  # values that are not finite are refused below
            # As a plain array, whose arithmetic is faster than that of a memory map.
            values = dequantize(np.asarray(tensor.data), tensor.tensor_type)
    except NotImplementedError as error:
        kind = tensor.tensor_type.name
        problem = f"its tensor {name!r} is stored as {kind}, which cannot be turned into numbers"
        step = "take another quantisation of the model, such as Q8_0 or Q4_K"
        raise unsupported(file.path, problem, step) from error
    floats = torch.from_numpy(values if values.flags.writeable else values.copy())
    check_finite(floats, name, where=file.path)
    return floats


def _as_in_checkpoint(values: torch.Tensor, name: str, config: Config) -> torch.Tensor:
    """The weight of this name as in the checkpoint, with the converter's changes undone."""
    if config.family.transposed and name.startswith("h.") and values.dim() == 2:
        return values.T
    if config.family.norm_adds_one and values.dim() == 1 and name.endswith(".weight"):
        return values - 1
    # rows (head, pair, 2) -> (head, 2, pair)
    if config.architecture in ADJACENT_PAIRS and (".q_proj." in name or ".k_proj." in name):
        heads = config.n_heads if ".q_proj." in name else config.n_kv_heads
        return values.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
    (attention,) = config.family.attentions
    if attention.fused_qkv == "by head" and ".query_key_value." in name:  # (3, head) -> (head, 3)
        return values.unflatten(0, (3, config.n_heads, -1)).transpose(0, 1).flatten(0, 2)
    return values
