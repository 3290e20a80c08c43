"""The sizes and switches of a model: read from a config, refused where absurd or where the formulas do not hold.

A room of its own beside `checkpoints`, because a folder and an existing bridge are held to the same rules.
Sizes come from the file, never from a default: a config that leaves one out is refused.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probe.errors import ModelError, UnsupportedModel

SIZES = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
FREE_HEADS = ("t5", "llama", "qwen2")  # d_head is a size of its own there
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
class Positions:
    """How a model knows where a token stands: the rows of its table and which is the first, or rotary, or T5's buckets.

    `dims` coordinates of each head are turned at the `base` frequency, `stretch` holds Llama 3's factor, low, high and
    length; offsets fall into `buckets` up to `furthest`.
    """

    kind: Literal["learned", "sinusoidal", "rotary", "relative bias"] = "learned"
    rows: int = 0
    first: int = 0
    dims: int = 0
    base: float = 0.0
    stretch: tuple[float, float, float, float] | None = None
    buckets: int = 0
    furthest: int = 0


@dataclass(frozen=True)
class Config:
    """The sizes and switches of a language model, in the words used everywhere in `probe`.

    `n_ctx` is the longest text in tokens, `d_vocab` the number of token embeddings, `epsilon` LayerNorm's.
    `tied` says that the unembedding is the transposed token embedding. Families beside GPT-2: `n_layers` are those of the
    encoder where there is a decoder, too; `n_kv_heads` heads hold keys and values (as many as `n_heads` where it is 0);
    `has_head` is False when the checkpoint holds no language-model head; `special_tokens` says that the tokenizer puts its
    own, such as [CLS]. Raises ModelError where heads and d_model disagree.
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
    special_tokens: bool = False
    n_kv_heads: int = 0
    n_decoder_layers: int = 0
    n_token_types: int = 0
    gated: bool = False
    has_head: bool = True
    embed_scale: float = 1.0
    start_token: int | None = None
    positions: Positions = Positions()

    def __post_init__(self) -> None:
        if not self.n_kv_heads:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.n_heads * self.d_head != self.d_model and self.architecture not in FREE_HEADS:
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


def gpt2_config(raw: Mapping[str, Any], *, where: object, prepend_bos: bool) -> Config:
    """Hugging Face's GPT-2 config keys in `probe`'s words, after everything unsupported or absurd was refused."""
    _refuse_variants(raw, where)
    sizes = {key: size_from(raw.get(key), key, where) for key in SIZES}
    if sizes["n_embd"] % sizes["n_head"]:
        problem = f"n_embd is {sizes['n_embd']} and does not divide evenly among n_head = {sizes['n_head']} heads"
        raise refuse(where, problem, "correct its config")
    inner = raw.get("n_inner")
    return Config(
        architecture="gpt2",
        n_layers=sizes["n_layer"],
        n_heads=sizes["n_head"],
        d_model=sizes["n_embd"],
        d_head=sizes["n_embd"] // sizes["n_head"],
        d_mlp=4 * sizes["n_embd"] if inner is None else size_from(inner, "n_inner", where),
        n_ctx=sizes["n_positions"],
        d_vocab=sizes["vocab_size"],
        causal=True,
        epsilon=epsilon_from(raw, "layer_norm_epsilon", where),
        activation="gelu_new",
        prepend_bos=prepend_bos,
        tied=raw.get("tie_word_embeddings", True) is not False,
    )


def _refuse_variants(raw: Mapping[str, Any], where: object) -> None:
    for key, standard in STANDARD.items():
        if raw.get(key, standard) != standard:
            raise UnsupportedModel(
                f"Cannot load {where}: {key} is {raw[key]!r} in its config, and the from-scratch check covers GPT-2 "
                f"with {standard!r} only; load a standard GPT-2 or tiny-senses."
            )


def size_from(value: object, key: str, where: object) -> int:
    """A whole number of at least 1. Raises ModelError, naming `key`, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refuse(where, f"{key} is {value!r} in its config", "give a whole number of at least 1")
    return value


def epsilon_from(raw: Mapping[str, Any], key: str, where: object, *, otherwise: float = 1e-5) -> float:
    """The number a norm adds to the variance. Raises ModelError for anything but a number between 0 and 1."""
    epsilon = raw.get(key, otherwise)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise refuse(where, f"{key} is {epsilon!r}", "give a number between 0 and 1 in config.json")
    return float(epsilon)


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
