"""Small GGUF files from the random checkpoints of `families`, converted as llama.cpp's converter
does, with the `gguf` package's writer.

Written from the converter's description, not from the loader: rotary rows are reordered into pairs,
GPT-NeoX's queries, keys and values are separated, GPT-2's matrices are output x input, 1 is added to
Gemma's norms.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from inside import GGUF_FAMILIES
from safetensors.numpy import load_file

# The converter's names by `model_type`. Families that are not read are written as a related family,
# to be refused or accepted by its row.
ARCHITECTURES = {kind: architecture for architecture, kind in GGUF_FAMILIES.items()}
ARCHITECTURES |= {"mistral": "llama", "roberta": "bert"}
PREFIX = {"bert": "bert.", "roberta": "roberta.", "gpt_neox": "gpt_neox.", "gpt2": "transformer."}
SIZES = {  # of GPT-2, and of the others
    "block_count": ("n_layer", "num_hidden_layers"),
    "context_length": ("n_positions", "max_position_embeddings"),
    "embedding_length": ("n_embd", "hidden_size"),
    "feed_forward_length": ("n_inner", "intermediate_size"),
    "attention.head_count": ("n_head", "num_attention_heads"),
}
ROTARY = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3")
Change = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


def write_gguf(folder: Path, file: Path, kind: Kind, *, change: Change | None = None) -> Path:
    """The checkpoint of `folder` as a GGUF file, with its matrices in `kind`. `change` can change
    metadata and tensors first."""
    config = json.loads((folder / "config.json").read_text())
    metadata, tensors = _metadata(config, folder), _tensors(config, folder)
    if change:
        change(metadata, tensors)
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(file, metadata.pop("general.architecture"))
    for name, value in metadata.items():
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    for name, values in tensors.items():
        values = np.ascontiguousarray(values)
        in_blocks = values.ndim > 1 and values.shape[-1] % 32 == 0
        if in_blocks and kind != Kind.F32:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # Nobody converts a tokenizer of this kind.
    if ARCHITECTURES[config["model_type"]] == "bert":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / name, file.parent)
    return file


def _metadata(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    kind = config["model_type"]
    arch = ARCHITECTURES[kind]
    stored: dict[str, Any] = {key: config[names[kind != "gpt2"]] for key, names in SIZES.items()}
    width, heads = stored["embedding_length"], stored["attention.head_count"]
    keys = ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps")
    rms = "rms_" if "rms_norm_eps" in config else ""
    epsilon = next(config[key] for key in keys if key in config)
    stored[f"attention.layer_norm_{rms}epsilon"] = epsilon
    rope = config.get("rope_parameters") or {}
    if arch in ROTARY:
        size = config.get("head_dim") or width // heads
        names = ("rope.dimension_count", "attention.key_length", "attention.value_length")
        stored |= dict.fromkeys(names, size)
        stored["attention.head_count_kv"] = config["num_key_value_heads"]
        stored["rope.freq_base"] = rope.get("full_attention", rope)["rope_theta"]
        stored["vocab_size"] = config["vocab_size"]
    if "sliding_window" in config and not kind.startswith("qwen"):
        stored["attention.sliding_window"] = config["sliding_window"] or 0
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key):
            stored[key] = config[key]
    if arch == "gptneox":
        share = rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
        stored["rope.dimension_count"] = int(width // heads * share)
        stored["use_parallel_residual"] = True
    if arch == "bert":
        stored |= {"attention.causal": False, "pooling_type": 1}
        stored["vocab_size"] = config["vocab_size"]
    if kind == "roberta":
        stored["context_length"] -= _first_row(config)
    described = {"general.architecture": arch, "general.name": "small"}
    described |= {f"{arch}.{key}": value for key, value in stored.items()}
    return described | _tokenizer(config, folder)


def _first_row(config: dict[str, Any]) -> int:
    """The id of RoBERTa's first token, at which its position table is cut."""
    row: int = config["pad_token_id"] + 1
    return row


def _tokenizer(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Byte-level BPE in GGUF's form: tokens in order, their kinds, merges, and the ids of the
    special tokens."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    vocabulary = tokenizer["model"]["vocab"] | {
        token["content"]: token["id"] for token in tokenizer["added_tokens"]
    }
    special = {token["id"] for token in tokenizer["added_tokens"]}
    names = {number: token for token, number in vocabulary.items()}
    tokens = [names.get(number, f"[PAD{number}]") for number in range(config["vocab_size"])]
    kinds = [3 if n in special else 1 if n in names else 5 for n in range(len(tokens))]
    merges = tokenizer["model"]["merges"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    described = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": kinds}
    described |= {"merges": merges, "add_bos_token": config["model_type"] in ("llama", "mistral")}
    roles = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    for short, name in roles.items():
        if tokenizer_config.get(name):
            described[f"{short}_token_id"] = vocabulary[tokenizer_config[name]]
    return {f"tokenizer.ggml.{name}": value for name, value in described.items()}


def _tensors(config: dict[str, Any], folder: Path) -> dict[str, np.ndarray]:
    kind = config["model_type"]
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[kind])
    names = gguf.get_tensor_name_map(arch, 8)
    converted: dict[str, np.ndarray] = {}
    for name, values in load_file(folder / "model.safetensors").items():
        prefix = PREFIX.get(kind, "model.")
        plain = name.removeprefix(prefix)
        base, ending = plain.rsplit(".", 1)
        if base.startswith(("cls.", "vocab_", "pooler.")) or (
            plain.startswith("lm_head") and config.get("tie_word_embeddings")
        ):
            continue
        gguf_name = names.get_name(prefix + base) or names.get_name(base)
        assert gguf_name is not None, name
        converted[f"{gguf_name}.{ending}"] = _converted(values, plain, config)
    return converted


def _converted(values: np.ndarray, name: str, config: dict[str, Any]) -> np.ndarray:
    kind = config["model_type"]
    if kind == "roberta" and name == "embeddings.position_embeddings.weight":
        return values[_first_row(config) :]
    if kind == "gpt2" and ".c_" in name and values.ndim == 2:
        return values.T
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return values + 1
    if ARCHITECTURES[kind] == "llama" and (".q_proj" in name or ".k_proj" in name):
        heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    if kind == "gpt_neox" and "query_key_value" in name:
        heads = config["num_attention_heads"]
        parts = values.reshape(heads, 3, -1, *values.shape[1:])
        return np.concatenate([parts[:, role].reshape(-1, *values.shape[1:]) for role in range(3)])
    return values
