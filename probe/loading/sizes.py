"""config.json -> Config for every family: GPT-2's rules stand in `config`, those of the others here, held in one table.

A key that would make the formulas another model's must have its standard value; sizes come from the file, never from a default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from probe.errors import UnsupportedModel
from probe.families.entry import Family
from probe.families.table import FAMILIES
from probe.loading.config import Config, Positions, epsilon_from, refuse, size_from

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
    _refuse_variants(raw, keys, where)
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


def _refuse_variants(raw: Mapping[str, Any], keys: Keys, where: object) -> None:
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
    """The activation by the name of its formula in `probe.attention`, and whether T5 gates it."""
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
