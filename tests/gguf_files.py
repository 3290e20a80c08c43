"""Small GGUF files from the random checkpoints of `families`, converted as llama.cpp's converter
does, with the `gguf` package's writer.

Written from the converter's description, not from the loader: rotary rows are reordered into pairs,
GPT-NeoX's queries, keys and values are separated, GPT-2's matrices are output x input, 1 is added to
Gemma's norms.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file

from probe.model.architectures import FAMILIES

# The converter's names by `model_type`. Families without a row for GGUF are written as a related
# family with one, to be refused or accepted by that row.
ARCHITECTURES = {kind: family.gguf.architecture for kind, family in FAMILIES.items() if family.gguf}
ARCHITECTURES |= {"mistral": "llama", "roberta": "bert", "mt5": "t5"}
PERMUTED = ("llama", "smollm3", "arcee", "granite")  # by architecture
# What the converter writes for every text model: the first of these keys that its config has, with
# the values that the config's class gives to absent ones.
TEXT_MODEL = {
    "block_count": ("n_layers", "num_hidden_layers", "n_layer"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd", "dim"),
    "feed_forward_length": ("intermediate_size", "n_inner", "hidden_dim"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
}
# What it writes in addition, or instead, for single families; nothing for a family that is neither
# here nor in `OLDER`.
ENCODER = {"attention.causal": False, "pooling_type": 1}
Extra = Callable[[dict[str, Any]], dict[str, Any]]
EXTRA: dict[str, Extra] = {
    "distilbert": lambda config: ENCODER | {"attention.layer_norm_epsilon": 1e-12},
    "modernbert": lambda config: (
        ENCODER
        | {
            "attention.sliding_window": config["local_attention"],
            "attention.sliding_window_pattern": config.get("global_attn_every_n_layers"),
            "rope.scaling.type": "none",
            "vocab_size": config["vocab_size"],
            "hidden_activation": config["hidden_activation"],
        }
    ),
    "roberta": lambda config: (
        ENCODER | {"context_length": config["max_position_embeddings"] - _first_row(config)}
    ),
    "glm4": lambda config: {"rope.dimension_count": int(_head(config) * 0.5)},
    "jais2": lambda config: {"rope.dimension_count": _head(config)},
    "smollm3": lambda config: _llama(config),
    "arcee": lambda config: _llama(config),
    "mixtral": lambda config: _llama(config),
    "granite": lambda config: (
        _llama(config)
        | {
            "attention.scale": config["attention_multiplier"],
            "embedding_scale": config["embedding_multiplier"],
            "residual_scale": config["residual_multiplier"],
            "logit_scale": config["logits_scaling"],
        }
    ),
    "lfm2": lambda config: {
        "vocab_size": config["vocab_size"],
        "shortconv.l_cache": config["conv_L_cache"],
        "feed_forward_length": _rounded(config),
        "attention.head_count_kv": [
            0 if kind == "conv" else config["num_key_value_heads"] for kind in config["layer_types"]
        ],
    },
    "olmoe": lambda config: {"attention.layer_norm_rms_epsilon": 1e-5},
    "qwen2_moe": lambda config: {
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
    },
    "qwen3_moe": lambda config: {"expert_feed_forward_length": config["moe_intermediate_size"]},
    "nemotron": lambda config: {
        "vocab_size": config["vocab_size"],
        "attention.layer_norm_epsilon": config["norm_eps"],
        "rope.dimension_count": _head(config) // 2,
        "rope.scaling.type": "none",
    },
    "phi": lambda config: {
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": config["num_attention_heads"],
        "rope.dimension_count": _head(config) // 2,
        "rope.freq_base": None,
    },
    "gpt_bigcode": lambda config: {
        "feed_forward_length": 4 * config["n_embd"],
        "attention.head_count_kv": 1,
    },
    "olmo3": lambda config: {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
    },
    "falcon": lambda config: {
        "context_length": 2048,
        "tensor_data_layout": "jploski",
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": 1,
        "rope.freq_base": None,
    },
    "bloom": lambda config: {
        "context_length": config["seq_length"],
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": config["n_head"],
    },
}
# Families that `_metadata` writes key by key.
OLDER = ("gpt2", "bert", "gpt_neox", "llama", "mistral", "phi3", "qwen2", "qwen3", "olmo2", "gemma")
OLDER += ("gemma2", "gemma3_text", "stablelm")
PREFIX = {kind: f"{kind}." for kind in ("bert", "gpt_neox", "distilbert", "roberta")}
PREFIX |= dict.fromkeys(("gpt2", "falcon", "bloom", "gpt_bigcode"), "transformer.")
SIZES = {  # of GPT-2, and of the others
    "block_count": ("n_layer", "num_hidden_layers"),
    "context_length": ("n_positions", "max_position_embeddings"),
    "embedding_length": ("n_embd", "hidden_size"),
    "feed_forward_length": ("n_inner", "intermediate_size"),
    "attention.head_count": ("n_head", "num_attention_heads"),
}
T5 = {
    "block_count": "num_layers",
    "decoder_block_count": "num_decoder_layers",
    "vocab_size": "vocab_size",
}
T5 |= {
    "embedding_length": "d_model",
    "feed_forward_length": "d_ff",
    "attention.head_count": "num_heads",
}
T5 |= {f"attention.{part}_length": "d_kv" for part in ("key", "value")}
T5 |= {f"attention.layer_norm_{rms}epsilon": "layer_norm_epsilon" for rms in ("", "rms_")}
T5 |= {"attention.relative_buckets_count": "relative_attention_num_buckets"}
ROTARY = ("llama", "phi3", "qwen2", "qwen3", "olmo2", "gemma", "gemma2", "gemma3", "stablelm")
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
        _add(writer, name, value)
    for name, values in tensors.items():
        values = np.ascontiguousarray(values)
        in_blocks = (
            values.ndim > 1 and values.shape[-1] % 32 == 0
        )  # the table of T5's position biases is not
        if in_blocks and kind != Kind.F32:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # Nobody converts a tokenizer of this kind.
    if ARCHITECTURES[config["model_type"]] in ("bert", "t5", "modern-bert"):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(folder / name, file.parent)
    return file


def _add(writer: gguf.GGUFWriter, name: str, value: object) -> None:
    add = {
        bool: writer.add_bool,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[int] = (
        writer.add_uint32 if not isinstance(value, int) or value < 2**32 else writer.add_uint64
    )
    add[type(value)](name, value)


def _metadata(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    if ARCHITECTURES[config["model_type"]] == "t5":
        start = config.get("decoder_start_token_id", config["pad_token_id"])
        metadata = {"general.architecture": "t5", "general.name": "small", "t5.context_length": 512}
        metadata |= {f"t5.{key}": config[name] for key, name in T5.items()} | {
            "t5.decoder_start_token_id": start
        }
        return metadata | _tokenizer(config, folder)
    kind = config["model_type"]
    if kind not in OLDER:
        arch = ARCHITECTURES[kind]
        settings = _text_model(config) | (EXTRA[kind](config) if kind in EXTRA else {})
        entries = {f"{arch}.{key}": value for key, value in settings.items() if value is not None}
        metadata = {"general.architecture": arch, "general.name": "small"} | entries
        return metadata | _tokenizer(config, folder)
    arch, is_gpt2 = ARCHITECTURES[config["model_type"]], config["model_type"] == "gpt2"
    sizes = {key: config[names[not is_gpt2]] for key, names in SIZES.items()}
    heads, width = sizes["attention.head_count"], sizes["embedding_length"]
    epsilon = next(
        config[k] for k in ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps") if k in config
    )
    rms = "rms_" if "rms_norm_eps" in config else ""
    settings: dict[str, Any] = sizes | {f"attention.layer_norm_{rms}epsilon": epsilon}
    rope = config.get("rope_parameters") or {}
    if arch in ROTARY:
        rope = rope.get("full_attention", rope)
        size = config.get("head_dim") or width // heads
        settings |= {
            "attention.head_count_kv": config["num_key_value_heads"],
            "rope.freq_base": rope["rope_theta"],
        }
        settings |= {
            "rope.dimension_count": size,
            "attention.key_length": size,
            "attention.value_length": size,
        }
        settings["vocab_size"] = config["vocab_size"]
    if "sliding_window" in config and not config["model_type"].startswith("qwen"):
        settings["attention.sliding_window"] = config["sliding_window"] or 0
    settings |= {
        key: config[key]
        for key in ("attn_logit_softcapping", "final_logit_softcapping")
        if config.get(key)
    }
    if arch == "stablelm":
        del (
            settings["rope.freq_base"],
            settings["attention.key_length"],
            settings["attention.value_length"],
        )
        settings |= {"rope.dimension_count": int(width // heads * rope["partial_rotary_factor"])}
        settings |= {"use_parallel_residual": config["use_parallel_residual"]}
    if arch == "gptneox":
        share = rope.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
        settings |= {
            "rope.dimension_count": int(width // heads * share),
            "use_parallel_residual": True,
        }
    if arch == "bert":
        settings |= {
            "attention.causal": False,
            "pooling_type": 1,
            "vocab_size": config["vocab_size"],
        }
    metadata = {"general.architecture": arch, "general.name": "small"} | {
        f"{arch}.{k}": v for k, v in settings.items()
    }
    return metadata | _tokenizer(config, folder)


def _first_row(config: dict[str, Any]) -> int:
    """The id of RoBERTa's first token, at which its position table is cut."""
    row: int = config["pad_token_id"] + 1
    return row


def _head(config: dict[str, Any]) -> int:
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size


def _llama(config: dict[str, Any]) -> dict[str, Any]:
    return {"vocab_size": config["vocab_size"], "rope.dimension_count": _head(config)}


def _rounded(config: dict[str, Any]) -> int:
    """LFM2's width: two thirds of the stated width, rounded to a multiple of a number."""
    multiple: int = config["block_multiple_of"]
    return -(-(2 * config["intermediate_size"] // 3) // multiple) * multiple


def _text_model(config: dict[str, Any]) -> dict[str, Any]:
    metadata = {
        key: next((config[name] for name in names if config.get(name) is not None), None)
        for key, names in TEXT_MODEL.items()
    }
    rope = config.get("rope_parameters") or {}
    whole, local = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    metadata |= {"rope.freq_base": whole.get("rope_theta")}
    metadata |= {"rope.freq_base_swa": local.get("rope_theta")}
    if whole.get("rope_type") == "yarn":
        metadata |= {"rope.scaling.type": "yarn", "rope.scaling.factor": whole["factor"]}
        original = whole["original_max_position_embeddings"]
        metadata |= {"rope.scaling.original_context_length": original}
        metadata |= {"rope.scaling.yarn_attn_factor": whole.get("attention_factor")}
        metadata |= {
            f"rope.scaling.yarn_{key}": whole.get(key) for key in ("beta_fast", "beta_slow")
        }
    return metadata


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
    merges = [
        merge if isinstance(merge, str) else " ".join(merge)
        for merge in tokenizer["model"]["merges"]
    ]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
    }
    token_roles = {
        "bos": "bos_token",
        "eos": "eos_token",
        "unknown": "unk_token",
        "padding": "pad_token",
    }
    metadata |= {
        f"{short}_token_id": vocabulary[tokenizer_config[name]]
        for short, name in token_roles.items()
        if tokenizer_config.get(name)
    }
    metadata["add_bos_token"] = config["model_type"] in ("llama", "mistral")
    return {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}


def _tensors(config: dict[str, Any], folder: Path) -> dict[str, np.ndarray]:
    kind = config["model_type"]
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[kind])
    names = gguf.get_tensor_name_map(arch, 8)
    converted: dict[str, np.ndarray] = {}
    for name, values in _with_experts_stacked(load_file(folder / "model.safetensors")).items():
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


def _with_experts_stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All experts of a layer in one tensor, with their name without a number."""
    by_name: dict[str, Any] = {}
    for name, values in sorted(tensors.items(), key=lambda item: _expert_of(item[0])):
        if _expert_of(name) < 0:
            by_name[name] = values
        else:
            by_name.setdefault(re.sub(r"\.experts\.\d+", ".experts", name), []).append(values)
    return {name: np.stack(v) if isinstance(v, list) else v for name, v in by_name.items()}


def _expert_of(name: str) -> int:
    match = re.search(r"\.experts\.(\d+)\.", name)
    return int(match[1]) if match else -1


def _converted(values: np.ndarray, name: str, config: dict[str, Any]) -> np.ndarray:
    kind = config["model_type"]
    if kind == "roberta" and name == "embeddings.position_embeddings.weight":
        return values[_first_row(config) :]
    if name.endswith("conv.conv.weight"):
        return values.squeeze(1)
    if kind == "gpt2" and ".c_" in name and values.ndim == 2:
        return values.T
    if kind.startswith(("gemma", "nemotron")) and name.endswith("norm.weight"):
        return values + 1
    if ARCHITECTURES[kind] in PERMUTED and (".q_proj" in name or ".k_proj" in name):
        heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)
    if kind in ("gpt_neox", "bloom") and "query_key_value" in name:
        heads = config["n_head" if kind == "bloom" else "num_attention_heads"]
        parts = values.reshape(heads, 3, -1, *values.shape[1:])
        return np.concatenate([parts[:, role].reshape(-1, *values.shape[1:]) for role in range(3)])
    return values
