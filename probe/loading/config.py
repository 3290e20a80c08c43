"""The sizes and switches of a model: read from a config, refused where absurd or where the formulas do not hold.

A room of its own beside `checkpoints`, because a folder and an existing bridge are held to the same rules.
Sizes come from the file, never from a default: a config that leaves one out is refused.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import ModelError, UnsupportedModel

SUPPORTED = "GPT2LMHeadModel"
MODEL_TYPE = "gpt2"
SIZES = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
RESAVE = "save the model again with save_pretrained"

# What each variant key of a GPT-2 config must be for the from-scratch formulas to be the model's own.
STANDARD = {
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}


@dataclass(frozen=True)
class Config:
    """The sizes and switches of a causal language model, in the words used everywhere in `probe`.

    `n_ctx` is the longest text in tokens, `d_vocab` the number of token embeddings, `epsilon` LayerNorm's.
    `tied` says that the unembedding is the transposed token embedding. Raises ModelError where heads and d_model disagree.
    """

    architecture: str
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    n_ctx: int
    d_vocab: int
    causal: bool
    epsilon: float
    activation: str
    prepend_bos: bool
    tied: bool = True

    def __post_init__(self) -> None:
        if self.n_heads * self.d_head != self.d_model:
            raise ModelError(
                f"A config has {self.n_heads} heads of {self.d_head} dimensions and d_model {self.d_model}, which is not "
                "their product; correct the sizes."
            )


def refuse(where: object, problem: str, step: str) -> ModelError:
    """The one form that every refusal to load has: what was tried, what was found, what to do."""
    return ModelError(f"Cannot load {where}: {problem}; {step}.")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from `file`. Raises ModelError when it is absent, not UTF-8 JSON, or not an object."""
    if not file.is_file():
        raise refuse(file.parent, f"{file.name} is missing", RESAVE + " so that the folder is complete")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise refuse(file.parent, f"{file.name} is not readable JSON ({str(error)[:80]})", RESAVE) from error
    if not isinstance(found, dict):
        raise refuse(file.parent, f"{file.name} is not a JSON object", RESAVE)
    return found


def read_config(folder: Path, *, prepend_bos: bool) -> Config:
    """The config of `folder`. Raises ModelError for what is missing or absurd, UnsupportedModel for other models."""
    raw = read_json(folder / "config.json")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        if raw.get("model_type", MODEL_TYPE) != MODEL_TYPE:
            raise _unsupported(folder, f"its model_type is {raw['model_type']!r}")
        step = f'add "architectures": ["{SUPPORTED}"] to config.json if that is what the model is'
        raise refuse(folder, f"config.json does not name one architecture (got {architectures!r})", step)
    return config_from(raw, where=folder, architecture=str(architectures[0]), prepend_bos=prepend_bos)


def config_from(raw: Mapping[str, Any], *, where: object, architecture: str, prepend_bos: bool) -> Config:
    """Hugging Face's GPT-2 config keys in `probe`'s words, after everything unsupported or absurd was refused."""
    _refuse_other_models(raw, where, architecture)
    sizes = {key: _size(raw.get(key), key, where) for key in SIZES}
    if sizes["n_embd"] % sizes["n_head"]:
        problem = f"n_embd is {sizes['n_embd']} and does not divide evenly among n_head = {sizes['n_head']} heads"
        raise refuse(where, problem, "correct its config")
    inner = raw.get("n_inner")
    epsilon = raw.get("layer_norm_epsilon", 1e-5)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise refuse(where, f"layer_norm_epsilon is {epsilon!r}", "give a number between 0 and 1 in config.json")
    return Config(
        architecture="gpt2",
        n_layers=sizes["n_layer"],
        n_heads=sizes["n_head"],
        d_model=sizes["n_embd"],
        d_head=sizes["n_embd"] // sizes["n_head"],
        d_mlp=4 * sizes["n_embd"] if inner is None else _size(inner, "n_inner", where),
        n_ctx=sizes["n_positions"],
        d_vocab=sizes["vocab_size"],
        causal=True,
        epsilon=float(epsilon),
        activation="gelu_new",
        prepend_bos=prepend_bos,
        tied=raw.get("tie_word_embeddings", True) is not False,
    )


def _refuse_other_models(raw: Mapping[str, Any], where: object, architecture: str) -> None:
    if raw.get("model_type") != MODEL_TYPE or architecture != SUPPORTED:
        raise _unsupported(where, f"its architecture is {architecture} (model_type {raw.get('model_type')!r})")
    for key, standard in STANDARD.items():
        if raw.get(key, standard) != standard:
            raise UnsupportedModel(
                f"Cannot load {where}: {key} is {raw[key]!r} in its config, and the from-scratch check covers GPT-2 "
                f"with {standard!r} only; load a standard GPT-2 or tiny-senses."
            )
    for key in ("auto_map", "quantization_config"):
        if raw.get(key):
            reason = "would run code of its own" if key == "auto_map" else "is quantized"
            raise UnsupportedModel(f"Cannot load {where}: it {reason} ({key}); load a plain float checkpoint.")


def _unsupported(where: object, found: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"Cannot load {where}: {found} and only {SUPPORTED} (GPT-2 of any size) is certified so far; "
        "load a GPT-2 or tiny-senses."
    )


def _size(value: object, key: str, where: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refuse(where, f"{key} is {value!r} in its config", "give a whole number of at least 1")
    return value


def expected_shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every GPT-2 tensor, lazily: an absurd number of layers costs nothing until it is reached."""
    d, m = config.d_model, config.d_mlp
    yield "wte.weight", (config.d_vocab, d)
    yield "wpe.weight", (config.n_ctx, d)
    for layer in range(config.n_layers):
        for part, shape in (
            ("attn.c_attn", (d, 3 * d)),
            ("attn.c_proj", (d, d)),
            ("mlp.c_fc", (d, m)),
            ("mlp.c_proj", (m, d)),
        ):
            yield f"h.{layer}.{part}.weight", shape
            yield f"h.{layer}.{part}.bias", shape[1:]
        for part in ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"):
            yield f"h.{layer}.{part}", (d,)
    yield "ln_f.weight", (d,)
    yield "ln_f.bias", (d,)
    if not config.tied:
        yield "lm_head.weight", (config.d_vocab, d)
