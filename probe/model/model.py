"""A loaded model as a record, and its sizes and switches: read from a config by the table of
architectures, refused where absurd or where the formulas do not hold.

A folder, a GGUF file and an existing bridge are held to the same rules. Sizes come from the file,
never from a default: a config that leaves one out is refused. A key that would make the formulas
another model's must have its standard value.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from probe.errors import ModelError, UnsupportedModel
from probe.model.architectures import FAMILIES, SUPPORTED
from probe.model.architectures.family import Family, Keys
from probe.provenance import Origin

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast

LOCAL = {"sliding_attention": True, "local": True, "full_attention": False, "global": False}
MOST_LAYERS = 10_000  # what a config may promise before any tensor is looked at
RESAVE = "save the model again with save_pretrained"
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
ACTIVATIONS |= {"silu": "silu", "swish": "silu"}


@dataclass(frozen=True)
class Positions:
    """How a model knows where a token stands: the rows of its table and which is the first, or
    rotary, or T5's buckets.

    `dims` coordinates of each head are rotated at the `base` frequency, at `local_base` in local
    layers where that is not 0; `rope_scaling` holds Llama 3's factor, low, high and length; offsets
    fall into `buckets` up to `furthest`.
    """

    kind: Literal["learned", "sinusoidal", "rotary", "relative bias"] = "learned"
    rows: int = 0
    first: int = 0
    dims: int = 0
    base: float = 0.0
    local_base: float = 0.0
    rope_scaling: tuple[float, float, float, float] | None = None
    buckets: int = 0
    furthest: int = 0


@dataclass(frozen=True)
class Config:
    """The sizes and switches of a language model, in the words used everywhere in `probe`.

    `n_ctx` is the longest text in tokens, `d_vocab` the number of token embeddings, `epsilon` the
    norms'. `tied` says that the unembedding is the transposed token embedding; `n_layers` are those
    of the encoder where there is a decoder, too; `n_kv_heads` heads hold keys and values;
    `has_head` is False when the checkpoint holds no language-model head; `special_tokens` says that
    the tokenizer puts its own, such as [CLS], `prepend_bos` that one is put in front instead.
    Layers that are `local` see a sliding window of `window` tokens, their own among them.
    `query_scalar` stands under the root in place of d_head; `attn_logit_softcapping` and
    `final_logit_softcapping` bound scores and logits; 0 where there is none.
    """

    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
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
    n_decoder_layers: int = 0
    n_token_types: int = 0
    gated: bool = False
    has_head: bool = True
    embed_scale: float = 1.0
    window: int = 0
    local: tuple[bool, ...] = ()
    query_scalar: float = 0.0
    attn_logit_softcapping: float = 0.0
    final_logit_softcapping: float = 0.0
    start_token: int | None = None
    positions: Positions = Positions()

    @property
    def family(self) -> Family:
        """The row of the table of architectures."""
        return FAMILIES[self.architecture]


@dataclass(frozen=True, eq=False)
class Model:
    """A model that passed every check of loading: the hooked bridge, and the raw tensors the same
    numbers come from.

    `weights` maps Hugging Face names without the family's prefix ("wte.weight",
    "h.0.attn.c_attn.weight") to tensors in `dtype` on `device`; the unembedding is there only when
    it is not tied to the embedding.
    """

    name: str
    bridge: "TransformerBridge"
    tokenizer: "PreTrainedTokenizerFast"
    config: Config
    weights: Mapping[str, torch.Tensor]
    origin: Origin
    device: torch.device
    dtype: torch.dtype

    def __repr__(self) -> str:
        c = self.config
        layers = f"{c.n_layers} + {c.n_decoder_layers}" if c.n_decoder_layers else str(c.n_layers)
        size = f"{layers} layers x {c.n_heads} heads, d_model {c.d_model}"
        return f"<Model {self.name}: {size}, {self.origin.kind}>"


def refuse(where: object, problem: str, step: str) -> ModelError:
    """The one form that every refusal to load has: what was tried, what was found, what to do."""
    return ModelError(f"Cannot load {where}: {problem}; {step}.")


def unsupported(where: object, problem: str, step: str) -> UnsupportedModel:
    """The same of a model whose numbers nobody has certified."""
    return UnsupportedModel(f"Cannot load {where}: {problem}; {step}.")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from `file`. Raises ModelError when it is absent, not UTF-8 JSON, or not an
    object."""
    if not file.is_file():
        raise refuse(
            file.parent, f"{file.name} is missing", RESAVE + " so that the folder is complete"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise refuse(
            file.parent, f"{file.name} is not readable JSON ({str(error)[:80]})", RESAVE
        ) from error
    if not isinstance(content, dict):
        raise refuse(file.parent, f"{file.name} is not a JSON object", RESAVE)
    return content


def read_config(folder: Path, *, prepend_bos: bool) -> Config:
    """The config of `folder`. Raises ModelError for what is missing or absurd, UnsupportedModel for
    other models."""
    raw = read_json(folder / "config.json")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        kind = raw.get("model_type", "gpt2")  # the first checkpoints of GPT-2 name no type
        if not isinstance(kind, str) or kind not in FAMILIES:
            raise _unknown(folder, f"its model_type is {kind!r}")
        problem = f"config.json does not name one architecture (got {architectures!r})"
        known = FAMILIES[kind].architectures[0]
        step = f'add "architectures": ["{known}"] to config.json if that is what the model is'
        raise refuse(folder, problem, step)
    return config_from(
        raw, where=folder, architecture=str(architectures[0]), prepend_bos=prepend_bos
    )


def config_from(
    raw: Mapping[str, Any], *, where: object, architecture: str, prepend_bos: bool
) -> Config:
    """Hugging Face's config keys in `probe`'s words.

    Raises UnsupportedModel for a family or class beyond the table, ModelError for absurd sizes.
    """
    kind = str(raw.get("model_type"))
    family = FAMILIES.get(kind)
    if family is None or architecture not in (*family.architectures, *family.headless):
        raise _unknown(
            where, f"its architecture is {architecture} (model_type {raw.get('model_type')!r})"
        )
    for key in ("auto_map", "quantization_config"):
        if raw.get(key):
            reason = "would run code of its own" if key == "auto_map" else "is quantized"
            raise unsupported(where, f"it {reason} ({key})", "load a plain float checkpoint")
    keys = family.keys
    _refuse_variants(raw, family, where)
    free = {"d_mlp"} if keys.wide and raw.get(keys.sizes["d_mlp"]) is None else set()
    sizes = {
        ours: size_from(raw.get(key), key, where)
        for ours, key in keys.sizes.items()
        if ours not in free
    }
    n_heads = sizes["n_heads"]
    d_model = sizes["d_model"]
    d_head = sizes.get("d_head") or _head_size(raw, keys, sizes, where)
    if n_heads * d_head != d_model and not family.free_heads:
        raise ModelError(
            f"A config has {n_heads} heads of {d_head} dimensions and d_model {d_model}, which is "
            "not their product; correct the sizes."
        )
    activation, gated = _activation(raw, keys, where)
    kv_heads = size_from(raw.get("num_key_value_heads") or n_heads, "num_key_value_heads", where)
    if n_heads % kv_heads:
        problem = f"{n_heads} heads cannot share num_key_value_heads = {kv_heads} evenly"
        raise refuse(where, problem, "correct its config")
    has_decoder = family.kind == "encoder-decoder"
    window, local = _windows(raw, keys, sizes["n_layers"], where)
    scaled = raw.get("scale_embedding") or family.scaled_embedding
    sizes |= {"n_kv_heads": kv_heads, "d_head": d_head}
    positions = _positions(raw, family, sizes, where)
    sizes["n_ctx"] = _context(raw, keys, sizes, where)
    usual = {"d_mlp": 4 * d_model, "n_decoder_layers": sizes["n_layers"] if has_decoder else 0}
    return Config(
        **(usual | sizes),
        architecture=kind,
        causal=family.kind == "decoder",
        epsilon=_epsilon(raw, keys, where),
        activation=activation,
        prepend_bos=prepend_bos and not family.special_tokens,
        tied=raw.get("tie_word_embeddings", keys.tied) is not False,
        special_tokens=family.special_tokens,
        n_token_types=raw.get("type_vocab_size", 2) if family.type_table else 0,
        gated=gated or family.gated,
        has_head=architecture not in family.headless,
        embed_scale=d_model**0.5 if scaled else 1.0,
        window=window,
        local=local,
        query_scalar=_above_0(raw, keys.query_scalar, where),
        attn_logit_softcapping=_above_0(raw, keys.attn_logit_softcapping, where),
        final_logit_softcapping=_above_0(raw, keys.final_logit_softcapping, where),
        start_token=_start_token(raw, keys, where) if has_decoder else None,
        positions=positions,
    )


def _unknown(where: object, problem: str) -> UnsupportedModel:
    classes = ", ".join(
        name for family in FAMILIES.values() for name in (*family.architectures, *family.headless)
    )
    known = f"certified are {SUPPORTED} ({classes}) only"
    return unsupported(where, f"{problem}, and {known}", "load one of these or tiny-senses")


def _refuse_variants(raw: Mapping[str, Any], family: Family, where: object) -> None:
    standard = f"load a standard {family.name}"
    for key, usual in family.keys.must.items():
        if raw.get(key, usual[0]) not in usual:
            covered = f"the from-scratch check covers {family.name} with {usual[0]!r} only"
            raise unsupported(
                where, f"{key} is {raw[key]!r} in its config, and {covered}", standard
            )
    for one, other in family.keys.equal:
        if raw.get(one) != raw.get(other, raw.get(one)):
            differ = f"{one} is {raw.get(one)!r} and {other} {raw[other]!r} in its config"
            certified = "only an encoder and a decoder of the same shape are certified"
            raise unsupported(where, f"{differ}, and {certified}", standard)


def size_from(value: object, key: str, where: object) -> int:
    """A whole number of at least 1. Raises ModelError, naming `key`, for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refuse(
            where, f"{key} is {value!r} in its config", "give a whole number of at least 1"
        )
    return value


def _is_number(value: object, *, below: float = math.inf) -> bool:
    """Whether it is a number above 0 and below the bound."""
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < below


def _head_size(raw: Mapping[str, Any], keys: Keys, sizes: Mapping[str, int], where: object) -> int:
    if raw.get("head_dim"):
        return size_from(raw["head_dim"], "head_dim", where)
    if sizes["d_model"] % sizes["n_heads"]:
        width = f"{keys.sizes['d_model']} is {sizes['d_model']}"
        heads = f"{keys.sizes['n_heads']} = {sizes['n_heads']} heads"
        problem = f"{width} and does not divide evenly among {heads}"
        raise refuse(where, problem, "correct its config")
    return sizes["d_model"] // sizes["n_heads"]


def _activation(raw: Mapping[str, Any], keys: Keys, where: object) -> tuple[str, bool]:
    """The activation by the name of its formula in `probe.model.attention`, and whether T5 gates
    it."""
    key, usual = keys.activation
    stated = str(raw.get(key, usual))
    gated = stated.startswith("gated-")
    name = stated.removeprefix("gated-")
    if gated and name == "gelu":
        name = "gelu_new"  # what T5's own config turns "gated-gelu" into
    if name not in ACTIVATIONS:
        problem = f"{key} is {stated!r} in its config; known are {', '.join(ACTIVATIONS)}"
        raise unsupported(where, problem, "load a standard model")
    return ACTIVATIONS[name], gated


def _epsilon(raw: Mapping[str, Any], keys: Keys, where: object) -> float:
    """The number a norm adds to the variance. Raises ModelError for anything but a number between 0
    and 1."""
    key, usual = keys.epsilon
    epsilon = raw.get(key, usual)
    if not _is_number(epsilon, below=1):
        raise refuse(where, f"{key} is {epsilon!r}", "give a number between 0 and 1 in config.json")
    return float(epsilon)


def _above_0(raw: Mapping[str, Any], key: tuple[str, float | None], where: object) -> float:
    """A number above 0 where the family has the key, 0 where it has not or the config says null."""
    name, usual = key
    value = raw.get(name, usual) if name else None
    if value is None:
        return 0.0
    if not _is_number(value):
        raise refuse(where, f"{name} is {value!r} in its config", "give a number above 0")
    return float(value)


def _windows(
    raw: Mapping[str, Any], keys: Keys, n_layers: int, where: object
) -> tuple[int, tuple[bool, ...]]:
    """The sliding window of local layers, and which layers are local; 0 and none where a family or
    a model has no such."""
    name, usual = keys.window
    if not name or raw.get(name, usual) is None:
        return 0, ()
    window = size_from(raw.get(name, usual), name, where)
    if n_layers > MOST_LAYERS:
        raise refuse(
            where, f"{keys.sizes['n_layers']} is {n_layers:,} in its config", "correct its config"
        )
    kinds: Any = raw.get(keys.kinds)
    every = raw.get(*keys.global_every)
    if kinds is None and isinstance(every, int) and every >= 0:
        return window, tuple(not every or (layer + 1) % every > 0 for layer in range(n_layers))
    try:
        named = list(_kinds_of_layers(kinds))
        if len(named) != n_layers:
            raise ValueError(f"{len(named)} kinds of {n_layers} layers")
        return window, tuple(LOCAL[name] for name in named)
    except (KeyError, TypeError, ValueError) as error:
        key = keys.kinds or keys.global_every[0]
        problem = f"{key} does not say which of its {n_layers} layers are local"
        raise refuse(where, problem, "correct its config") from error


def _kinds_of_layers(kinds: Any) -> Iterator[str]:
    """The kind of every layer, from a list of kinds, or from GPT-Neo's of kinds and how often they
    come again."""
    for kind in kinds:
        if isinstance(kind, str):
            yield kind
            continue
        names, times = kind
        for _ in range(min(times, MOST_LAYERS)):
            yield from names


def _context(raw: Mapping[str, Any], keys: Keys, sizes: Mapping[str, int], where: object) -> int:
    if keys.context:
        # relative positions have no end; this is the length that the family was trained on
        return size_from(raw.get("n_positions", keys.context), "n_positions", where)
    taken = 0 if keys.reserved else _first_row(raw, keys)
    return size_from(sizes["n_ctx"] - taken, keys.sizes["n_ctx"], where)


def _first_row(raw: Mapping[str, Any], keys: Keys) -> int:
    """The first token's row in the position table: RoBERTa's is behind the padding's, BART keeps
    two free."""
    if isinstance(keys.first, int):
        return keys.first
    key, usual = keys.first
    return int(raw.get(key, usual)) + 1


def _positions(
    raw: Mapping[str, Any], family: Family, sizes: Mapping[str, int], where: object
) -> Positions:
    if family.positions == "relative bias":
        buckets = size_from(
            raw.get("relative_attention_num_buckets", 32), "relative_attention_num_buckets", where
        )
        furthest = size_from(
            raw.get("relative_attention_max_distance", 128),
            "relative_attention_max_distance",
            where,
        )
        return Positions("relative bias", buckets=buckets, furthest=furthest)
    if family.positions == "rotary":
        return _rotary(raw, family, sizes["d_head"], where)
    rows = sizes["n_ctx"] + family.keys.reserved
    return Positions(family.positions, rows=rows, first=_first_row(raw, family.keys))


def _rotary(raw: Mapping[str, Any], family: Family, d_head: int, where: object) -> Positions:
    """Either spelling: rope_parameters, or rope_theta / rotary_emb_base, rotary_pct and
    rope_scaling."""
    keys = family.keys
    stated = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    local: Mapping[str, Any] = stated.get("sliding_attention") or {}
    stated = stated.get("full_attention") or stated
    local_kind = local.get("rope_type", local.get("type", "default"))
    kind = stated.get("rope_type", stated.get("type", "default"))
    special = local_kind if local_kind != "default" else kind
    if special not in ("default", "llama3") or local_kind == "llama3":
        problem = f"its rotary positions are of type {special!r}"
        certified = "only 'default' and 'llama3' are certified"
        step = "load a model with plain rotary positions"
        raise unsupported(where, f"{problem}, and {certified}", step)
    base = (
        stated.get("rope_theta")
        or raw.get("rope_theta")
        or raw.get("rotary_emb_base")
        or keys.rotary_base
    )
    local_base = local.get("rope_theta") or _above_0(raw, keys.local_base, where)
    for number in (base, local_base):
        if number != 0 and not _is_number(number):
            raise refuse(where, f"rope_theta is {number!r} in its config", "give a number above 0")
    return Positions(
        "rotary",
        dims=_rotary_dims(raw, stated, keys, d_head, where),
        base=float(base),
        local_base=float(local_base),
        rope_scaling=_rope_scaling(stated, where) if special == "llama3" else None,
    )


def _rotary_dims(
    raw: Mapping[str, Any], stated: Mapping[str, Any], keys: Keys, d_head: int, where: object
) -> int:
    """How many coordinates of a head are rotated: a number, or a share of all."""
    if keys.rotary_dims:
        return size_from(raw.get(keys.rotary_dims), keys.rotary_dims, where)
    usual = raw.get("rotary_pct", raw.get("partial_rotary_factor", keys.rotary_share))
    return int(d_head * stated.get("partial_rotary_factor", usual))


def _rope_scaling(stated: Mapping[str, Any], where: object) -> tuple[float, float, float, float]:
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    for key in keys:
        if not _is_number(stated.get(key)):
            problem = f"{key} of its rotary positions is {stated.get(key)!r}"
            raise refuse(where, problem, "give a number in config.json")
    factor, low, high, length = [float(stated[key]) for key in keys]
    return factor, low, high, length


def _start_token(raw: Mapping[str, Any], keys: Keys, where: object) -> int:
    """The token in front of every target; T5 writes it as its padding token."""
    token = next((raw[key] for key in keys.start if key in raw), None)
    if isinstance(token, bool) or not isinstance(token, int):
        raise refuse(
            where,
            f"decoder_start_token_id is {token!r} in its config",
            "give the token that starts a target",
        )
    return token
