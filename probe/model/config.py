"""The sizes and switches of a model: read from a config, refused where absurd or where the formulas do not hold.

A room of its own beside `checkpoints`, because a folder and an existing bridge are held to the same rules.
Sizes come from the file, never from a default: a config that leaves one out is refused.

config.json -> Config for every family: GPT-2's rules stand in `config`, those of the others here, held in one table.

A key that would make the formulas another model's must have its standard value; sizes come from the file, never from a default.

Which family a config.json describes, and its config; what is not in the table of families is refused by name.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from probe.errors import ModelError, UnsupportedModel
from probe.model.architectures import FAMILIES, SUPPORTED, WHOLE, Family

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


ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}


@dataclass(frozen=True)
class Keys:
    """The config keys of one family: sizes in our words; epsilon, activation and tie with what an absent key means there.

    A key of `must` may be absent; one that is there must be one of its values. A pair in `equal` must not differ.
    """

    sizes: Mapping[str, str]
    epsilon: tuple[str, float]
    activation: tuple[str, str] = ("hidden_act", "gelu")
    tied: bool = True
    must: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    equal: tuple[tuple[str, str], ...] = ()


HIDDEN = {
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_mlp": "intermediate_size",
    "d_vocab": "vocab_size",
    "n_ctx": "max_position_embeddings",
}
ENCODER_ONLY = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
BART = Keys(
    {
        "n_layers": "encoder_layers",
        "n_heads": "encoder_attention_heads",
        "d_model": "d_model",
        "d_mlp": "encoder_ffn_dim",
        "d_vocab": "vocab_size",
        "n_ctx": "max_position_embeddings",
        "n_decoder_layers": "decoder_layers",
    },
    ("layer_norm_eps", 1e-5),
    ("activation_function", "gelu"),
    must={
        "add_final_layer_norm": (False,),
        "normalize_before": (False,),
        "static_position_embeddings": (False, True),
        "share_encoder_decoder_embeddings": (True,),
        "tie_word_embeddings": (True,),
    },
    equal=(
        ("encoder_layers", "decoder_layers"),
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
    ),
)
KEYS = {
    "bert": Keys(HIDDEN, ("layer_norm_eps", 1e-12), must=ENCODER_ONLY),
    "roberta": Keys(HIDDEN, ("layer_norm_eps", 1e-12), must=ENCODER_ONLY),
    "t5": Keys(
        {
            "n_layers": "num_layers",
            "n_heads": "num_heads",
            "d_model": "d_model",
            "d_mlp": "d_ff",
            "d_vocab": "vocab_size",
            "d_head": "d_kv",
        },
        ("layer_norm_epsilon", 1e-6),
        ("feed_forward_proj", "relu"),
        equal=(("num_layers", "num_decoder_layers"),),
    ),
    "bart": BART,
    "marian": BART,
    "gpt_neox": Keys(
        HIDDEN,
        ("layer_norm_eps", 1e-5),
        tied=False,
        must={"use_parallel_residual": (True,), "attention_bias": (True,), "tie_word_embeddings": (False,)},
    ),
    "llama": Keys(
        HIDDEN,
        ("rms_norm_eps", 1e-6),
        ("hidden_act", "silu"),
        tied=False,
        must={"attention_bias": (False,), "mlp_bias": (False,)},
    ),
    "qwen2": Keys(
        HIDDEN, ("rms_norm_eps", 1e-6), ("hidden_act", "silu"), tied=False, must={"use_sliding_window": (False,)}
    ),
}
T5_CONTEXT = 512  # relative positions have no end; this is the length that T5 was trained on


def family_config(raw: Mapping[str, Any], *, where: object, architecture: str) -> Config:
    """The config of a family beside GPT-2 in `probe`'s words, after everything unsupported or absurd was refused."""
    kind = raw["model_type"]
    family, keys = FAMILIES[kind], KEYS[kind]
    _refuse_family_variants(raw, keys, where)
    sizes = {ours: size_from(raw.get(key), key, where) for ours, key in keys.sizes.items()}
    d_head = sizes.get("d_head") or _head_size(raw, sizes, where)
    given, gated = _activation(raw, keys, where)
    heads = size_from(raw.get("num_key_value_heads") or sizes["n_heads"], "num_key_value_heads", where)
    if sizes["n_heads"] % heads:
        problem = f"{sizes['n_heads']} heads cannot share num_key_value_heads = {heads} evenly"
        raise refuse(where, problem, "correct its config")
    two = family.kind == "encoder-decoder"
    return Config(
        architecture=kind,
        n_layers=sizes["n_layers"],
        n_heads=sizes["n_heads"],
        d_model=sizes["d_model"],
        d_head=d_head,
        d_mlp=sizes["d_mlp"],
        n_ctx=_context(raw, sizes, where),
        d_vocab=sizes["d_vocab"],
        causal=family.kind == "decoder",
        epsilon=epsilon_from(raw, keys.epsilon[0], where, otherwise=keys.epsilon[1]),
        activation=given,
        prepend_bos=False,
        tied=raw.get("tie_word_embeddings", keys.tied) is not False,
        special_tokens=True,
        n_kv_heads=heads,
        n_decoder_layers=sizes.get("n_decoder_layers", sizes["n_layers"]) if two else 0,
        n_token_types=raw.get("type_vocab_size", 2) if kind in ("bert", "roberta") else 0,
        gated=gated or kind in ("llama", "qwen2"),
        has_head=architecture not in family.headless,
        embed_scale=sizes["d_model"] ** 0.5 if raw.get("scale_embedding") else 1.0,
        start_token=_start_token(raw, where) if two else None,
        positions=_positions(raw, family, sizes | {"d_head": d_head}, where),
    )


def _refuse_family_variants(raw: Mapping[str, Any], keys: Keys, where: object) -> None:
    name = FAMILIES[raw["model_type"]].name
    for key, usual in keys.must.items():
        if raw.get(key, usual[0]) not in usual:
            raise UnsupportedModel(
                f"Cannot load {where}: {key} is {raw[key]!r} in its config, and the from-scratch check covers {name} with "
                f"{usual[0]!r} only; load a standard {name}."
            )
    for one, other in keys.equal:
        if raw.get(one) != raw.get(other, raw.get(one)):
            raise UnsupportedModel(
                f"Cannot load {where}: {one} is {raw.get(one)!r} and {other} {raw[other]!r} in its config, and only an "
                f"encoder and a decoder of the same shape are certified; load a standard {name}."
            )


def _head_size(raw: Mapping[str, Any], sizes: Mapping[str, int], where: object) -> int:
    if raw.get("head_dim"):
        return size_from(raw["head_dim"], "head_dim", where)
    if sizes["d_model"] % sizes["n_heads"]:
        problem = f"its width {sizes['d_model']} does not divide evenly among {sizes['n_heads']} heads"
        raise refuse(where, problem, "correct its config")
    return sizes["d_model"] // sizes["n_heads"]


def _activation(raw: Mapping[str, Any], keys: Keys, where: object) -> tuple[str, bool]:
    """The activation by the name of its formula in `probe.model.attention`, and whether T5 gates it."""
    key, usual = keys.activation
    given = str(raw.get(key, usual))
    gated = given.startswith("gated-")
    name = given.removeprefix("gated-")
    if gated and name == "gelu":
        name = "gelu_new"  # what T5's own config turns "gated-gelu" into
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise UnsupportedModel(
            f"Cannot load {where}: {key} is {given!r} in its config; known are {known}; load a standard model."
        )
    return ACTIVATIONS[name], gated


def _context(raw: Mapping[str, Any], sizes: Mapping[str, int], where: object) -> int:
    if raw["model_type"] == "t5":
        return size_from(raw.get("n_positions", T5_CONTEXT), "n_positions", where)
    reserved = _first_position(raw) if raw["model_type"] == "roberta" else 0
    return size_from(sizes["n_ctx"] - reserved, "max_position_embeddings", where)


def _first_position(raw: Mapping[str, Any]) -> int:
    """RoBERTa counts positions from behind the padding token's row, BART keeps two rows free."""
    if raw["model_type"] == "roberta":
        return int(raw.get("pad_token_id", 1)) + 1
    return 2 if raw["model_type"] == "bart" else 0


def _positions(raw: Mapping[str, Any], family: Family, sizes: Mapping[str, int], where: object) -> Positions:
    if family.positions == "relative bias":
        buckets = size_from(raw.get("relative_attention_num_buckets", 32), "relative_attention_num_buckets", where)
        furthest = size_from(raw.get("relative_attention_max_distance", 128), "relative_attention_max_distance", where)
        return Positions("relative bias", buckets=buckets, furthest=furthest)
    if family.positions == "rotary":
        return _rotary(raw, sizes["d_head"], where)
    first = _first_position(raw)
    extra = first if raw["model_type"] == "bart" else 0
    return Positions(family.positions, rows=sizes["n_ctx"] + extra, first=first)


def _rotary(raw: Mapping[str, Any], d_head: int, where: object) -> Positions:
    """Rotary settings in either spelling: rope_parameters, or rope_theta / rotary_emb_base, rotary_pct and rope_scaling."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise UnsupportedModel(
            f"Cannot load {where}: its rotary positions are of type {kind!r}, and only 'default' and 'llama3' are certified; "
            "load a model with plain rotary positions."
        )
    base = given.get("rope_theta") or raw.get("rope_theta") or raw.get("rotary_emb_base") or 10000.0
    usual = 0.25 if raw["model_type"] == "gpt_neox" else 1.0
    share = given.get("partial_rotary_factor", raw.get("rotary_pct", raw.get("partial_rotary_factor", usual)))
    stretch = _stretch(given, where) if kind == "llama3" else None
    return Positions("rotary", dims=int(d_head * share), base=float(base), stretch=stretch)


def _stretch(given: Mapping[str, Any], where: object) -> tuple[float, float, float, float]:
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    for key in keys:
        if isinstance(given.get(key), bool) or not isinstance(given.get(key), int | float):
            raise refuse(where, f"{key} of its rotary positions is {given.get(key)!r}", "give a number in config.json")
    factor, low, high, length = (float(given[key]) for key in keys)
    return factor, low, high, length


def _start_token(raw: Mapping[str, Any], where: object) -> int:
    """The token in front of every target; T5 writes it as its padding token."""
    found = raw.get("decoder_start_token_id", raw.get("pad_token_id") if raw["model_type"] == "t5" else None)
    if isinstance(found, bool) or not isinstance(found, int):
        raise refuse(where, f"decoder_start_token_id is {found!r} in its config", "give the token that starts a target")
    return found


def read_config(folder: Path, *, prepend_bos: bool) -> Config:
    """The config of `folder`. Raises ModelError for what is missing or absurd, UnsupportedModel for other models."""
    raw = read_json(folder / "config.json")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        kind = raw.get("model_type", WHOLE)
        if not isinstance(kind, str) or kind not in FAMILIES:
            raise _unsupported(folder, f"its model_type is {kind!r}")
        step = f'add "architectures": ["{FAMILIES[kind].architectures[0]}"] to config.json if that is what the model is'
        raise refuse(folder, f"config.json does not name one architecture (got {architectures!r})", step)
    return config_from(raw, where=folder, architecture=str(architectures[0]), prepend_bos=prepend_bos)


def config_from(raw: Mapping[str, Any], *, where: object, architecture: str, prepend_bos: bool) -> Config:
    """Hugging Face's config keys in `probe`'s words. Raises UnsupportedModel for a family or class beyond the table."""
    kind = raw.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None or architecture not in (*family.architectures, *family.headless):
        raise _unsupported(where, f"its architecture is {architecture} (model_type {kind!r})")
    for key in ("auto_map", "quantization_config"):
        if raw.get(key):
            reason = "would run code of its own" if key == "auto_map" else "is quantized"
            raise UnsupportedModel(f"Cannot load {where}: it {reason} ({key}); load a plain float checkpoint.")
    if kind == WHOLE:
        return gpt2_config(raw, where=where, prepend_bos=prepend_bos)
    return family_config(raw, where=where, architecture=architecture)


def _unsupported(where: object, found: str) -> UnsupportedModel:
    classes = ", ".join(name for family in FAMILIES.values() for name in (*family.architectures, *family.headless))
    return UnsupportedModel(
        f"Cannot load {where}: {found}, and certified are {SUPPORTED} ({classes}) only; load one of these or tiny-senses."
    )
