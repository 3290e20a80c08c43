"""From a config in Hugging Face's keys to `Config`, by the row of the model's family.

transformers' config class reads the keys: it knows their older names, their defaults, and what
follows from other keys, such as which layers are local or how positions are scaled. This module
does the rest: it refuses uncertified settings and absurd sizes, and translates names. The same
rules apply to a folder, a GGUF file and a model in memory.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.errors import UnsupportedModel
from probe.model.architectures import FAMILIES, NOT_READ, WRAPPERS
from probe.model.architectures.family import ConfigKeys, Family
from probe.model.bridge import in_short, quiet
from probe.model.model import (
    LISTED,
    RESAVE,
    Config,
    MixerSizes,
    Positions,
    RopeScaling,
    refuse,
    unsupported,
)

FIRST = "gpt2"  # The first checkpoints of GPT-2 state no model_type.
AUTO_MAP = "auto_map"  # names classes in files that come with a model
# The largest number of layers that a config may state. Lists of all layers are built before any
# tensor is read.
MOST_LAYERS = 10_000
# The general names of sizes, which every config class of transformers knows, by field of `Config`.
SIZES = {
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_mlp": "intermediate_size",
    "d_vocab": "vocab_size",
    "n_ctx": "max_position_embeddings",
}
# By layer type in a config: whether the layer has the window.
LOCAL = {"sliding_attention": True, "local": True, "full_attention": False, "global": False}
ATTENDS = "full_attention"  # the type of a layer with attention in a hybrid
# The formula in `probe.model.attention`, by its name in a config.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CORRECT = "correct its config"


@dataclass(frozen=True, eq=False)
class Settings:
    """The settings of a config, as its file states them and as transformers resolves them."""

    # transformers' config object.
    resolved: Any
    # The keys of the file.
    stated: Mapping[str, Any]
    # The file or object, for error messages.
    where: object

    def get(self, name: str, default: Any = None) -> Any:
        """A setting as transformers resolves it, or as the file states it if transformers does
        not have it.
        """
        return getattr(self.resolved, name, self.stated.get(name, default))

    def own_name(self, name: str) -> str:
        """The config class's name of a setting that also has a general name."""
        return str(self.resolved.attribute_map.get(name, name))

    def size(self, name: str, default: Any = None, *, minus: int = 0) -> int:
        """A whole number of at least 1 after `minus` is subtracted. Raises ModelError for
        anything else.
        """
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= minus:
            step = f"give a whole number of at least {1 + minus}"
            raise refuse(self.where, f"{self.own_name(name)} is {value!r} in its config", step)
        return value - minus

    def number(self, name: str, *, below: float = math.inf) -> float:
        """A number above 0, as in `number_from`; 0 for an empty name or a null value."""
        value = self.get(name) if name else None
        return 0.0 if value is None else number_from(value, name, self.where, below=below)


def number_from(value: Any, name: str, where: object, *, below: float = math.inf) -> float:
    """A number above 0 and below the bound. Raises ModelError, with the setting's name, for
    anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
        limits = "above 0" if below == math.inf else f"between 0 and {below:g}"
        raise refuse(where, f"{name} is {value!r} in its config", f"give a number {limits}")
    return float(value)


def read_raw_config(folder: Path) -> dict[str, Any]:
    """The settings that the config.json of a folder states. Raises ModelError without them."""
    from transformers import PreTrainedConfig

    try:
        with quiet():
            raw, _ = PreTrainedConfig.get_config_dict(folder, local_files_only=True)
    except (OSError, ValueError, RecursionError) as error:
        problem = f"transformers cannot read its config.json ({in_short(error)})"
        raise refuse(folder, problem, RESAVE) from error
    if not isinstance(raw, dict) or not raw:
        raise refuse(folder, "its config.json is missing or states nothing", RESAVE)
    return raw


def read_config(folder: Path, *, prepend_bos: bool) -> Config:
    """The config of a folder. Raises ModelError for missing or absurd settings, UnsupportedModel
    for other models.
    """
    raw = read_raw_config(folder)
    architectures = raw.get("architectures")
    if isinstance(architectures, list) and len(architectures) == 1:
        architecture = str(architectures[0])
        return config_from(raw, where=folder, architecture=architecture, prepend_bos=prepend_bos)
    kind = raw.get("model_type", FIRST)
    rows = {name: family.architectures[0] for name, family in FAMILIES.items()}
    rows |= {name: wrapper.architecture for name, wrapper in WRAPPERS.items()}
    if not isinstance(kind, str) or kind not in rows:
        raise _unknown(folder, f"its model_type is {kind!r}", raw)
    problem = f"config.json does not name one architecture (got {architectures!r})"
    step = f'add "architectures": ["{rows[kind]}"] to config.json if that is what the model is'
    raise refuse(folder, problem, step)


def resolve(raw: Mapping[str, Any], where: object) -> Any:
    """transformers' config object for a config in Hugging Face's keys.

    No code that comes with a model is run. Raises ModelError if transformers refuses the config.
    """
    from transformers import CONFIG_MAPPING

    keys = copy.deepcopy(dict(raw))  # because transformers writes into it
    kind = keys.pop("model_type", FIRST)
    for key, value in keys.items():
        counts = key.endswith(("layer", "layers")) or key == "attention_types"
        if counts and _largest(value) > MOST_LAYERS:
            raise refuse(where, f"{key} is {value!r} in its config", CORRECT)
    try:
        with quiet():
            return CONFIG_MAPPING[kind](**keys)
    except Exception as error:  # broad, because its validators raise direct subclasses of it
        cause = error.__cause__ or error
        message = f"{type(cause).__name__}: {in_short(cause)}"
        step = "correct it or take the original file"
        raise refuse(where, f"transformers refuses its config ({message})", step) from error


def _largest(value: object) -> int:
    """The largest whole number in a value or in lists of values; 0 if there is no number."""
    if isinstance(value, list):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int) else 0


def config_from(
    raw: Mapping[str, Any],
    *,
    where: object,
    architecture: str,
    prepend_bos: bool,
    resolved: Any = None,
    tied: bool | None = None,
) -> Config:
    """The config of a model of the class `architecture`, whose file states `raw`.

    resolved: transformers' config object, if it exists already
    tied: whether the unembedding is the token embedding, if the tensors show it

    Raises UnsupportedModel for a family, class or setting outside the table, and ModelError for
    absurd sizes.
    """
    kind = str(raw.get("model_type", FIRST))
    _require_supported(raw, kind, architecture, where)
    if raw.get("quantization_config"):
        problem = "it is quantized (quantization_config)"
        raise unsupported(where, problem, "load a plain float checkpoint")
    resolved = resolve(raw, where) if resolved is None else resolved
    if kind in WRAPPERS:
        text = resolved.get_text_config()
        row = WRAPPERS[kind].text_model_type or text.model_type
        if row not in FAMILIES:
            raise _unknown(where, f"the model_type of its text part is {row!r}", raw)
        config = config_from(
            text.to_dict() | {"model_type": row},
            where=where,
            architecture=FAMILIES[row].architectures[0],
            prepend_bos=prepend_bos,
            resolved=text,
            tied=getattr(
                resolved, "tie_word_embeddings", getattr(text, "tie_word_embeddings", True)
            ),
        )
        return replace(config, wrapper=kind)
    family = FAMILIES[kind]
    if tied is None:  # T5's class reports every model as tied, whatever its file states
        flags = (resolved.tie_word_embeddings, raw.get("tie_word_embeddings"))
        tied = all(flag is not False for flag in flags)
    settings = Settings(resolved, raw, where)
    _refuse_uncertified(settings, family)
    return Config(
        architecture=kind,
        causal=family.kind == "decoder",
        prepend_bos=prepend_bos and not family.adds_special_tokens,
        adds_special_tokens=family.adds_special_tokens,
        has_lm_head=architecture not in family.classes_without_lm_head,
        tied=tied,
        **_sizes_and_switches(settings, family),
    )


def _sizes_and_switches(settings: Settings, family: Family) -> dict[str, Any]:
    """The fields of `Config` that follow from settings and row."""
    keys = family.config_keys
    sizes = _sizes(settings, family)
    positions = _positions(settings, family, sizes)
    scaling = positions.rope_scaling
    rope = settings.get("rope_parameters") or {}
    if scaling is not None and (scaling.factors or rope.get("llama_4_scaling_beta")):
        # In a longer text even the first token would have other frequencies (LongRoPE), or later
        # queries would be scaled (Ministral 3).
        sizes["n_ctx"] = min(sizes["n_ctx"], int(scaling.length))
    return {
        **sizes,
        "positions": positions,
        "epsilon": _epsilon(settings, keys),
        "activation": _activation(settings, keys),
        "gated_mlp": bool(settings.get("is_gated_act", family.gated_mlp)),
        "biased_roles": "".join(roles for name, roles in keys.biases.items() if settings.get(name)),
        "scores_by_layer": bool(keys.scores_by_layer and settings.get(keys.scores_by_layer)),
        "n_token_types": settings.size("type_vocab_size") if family.type_table else 0,
        **{name: settings.number(name) for name in keys.softcaps},
        **_start_token(settings, family),
        **_scales(settings, family, sizes["d_model"]),
        **_windows(settings, keys, sizes["n_layers"]),
        **_routing(settings, family),
        **_mixing(settings, family, sizes["n_layers"]),
    }


# --- certified models -----------------------------------------------------------------------------


def row_of(raw: Mapping[str, Any]) -> str:
    """The `model_type` whose row is used for a config: the config's, or that of its text part."""
    kind = str(raw.get("model_type", FIRST))
    wrapper = WRAPPERS.get(kind)
    if wrapper is None:
        return kind
    return wrapper.text_model_type or str((raw.get("text_config") or {}).get("model_type"))


def _require_supported(raw: Mapping[str, Any], kind: str, architecture: str, where: object) -> None:
    """Raises UnsupportedModel for a class without a row."""
    family = FAMILIES.get(kind)
    if family is None:
        wrapper = WRAPPERS.get(kind)
        if wrapper is None or wrapper.architecture != architecture:
            raise _unknown(where, f"its architecture is {architecture} (model_type {kind!r})", raw)
    elif architecture not in (*family.architectures, *family.classes_without_lm_head):
        class_names = " or ".join(dict.fromkeys(family.architectures))
        problem = f"it is a {architecture}, and of model_type {kind!r} {class_names} is certified"
        raise unsupported(where, problem + _own_code(raw), "give one of that class")


def _unknown(where: object, problem: str, raw: Mapping[str, Any]) -> UnsupportedModel:
    reason = f"which is not one of the {len(FAMILIES)} families whose numbers are certified"
    kinds = (raw.get("model_type"), (raw.get("text_config") or {}).get("model_type"))
    for kind in kinds:
        if isinstance(kind, str) and kind in NOT_READ:
            name, missing = NOT_READ[kind]
            reason = f"and the formulas do not have what {name} needs: {missing}"
    return unsupported(where, f"{problem}, {reason}{_own_code(raw)}", LISTED)


def _own_code(raw: Mapping[str, Any]) -> str:
    """Why code that comes with the model does not help; empty without such code."""
    note = f", and code that comes with a model ({AUTO_MAP}) is never run"
    return note if raw.get(AUTO_MAP) else ""


def _refuse_uncertified(settings: Settings, family: Family) -> None:
    """Raises UnsupportedModel for a setting that the formulas do not cover."""
    step = f"load a standard {family.name}"
    where = settings.where
    for name, certified_values in family.config_keys.certified_values.items():
        value = settings.get(name, certified_values[0])
        if value not in certified_values:
            covered = (
                f"the from-scratch check covers {family.name} with {certified_values[0]!r} only"
            )
            raise unsupported(where, f"{name} is {value!r} in its config, and {covered}", step)
    for name, second in family.config_keys.equal_pairs:
        if settings.get(name) != settings.get(second):
            differ = f"{name} is {settings.get(name)!r} and {second} {settings.get(second)!r}"
            certified_where = f"{family.name} is certified where the two are equal"
            raise unsupported(where, f"{differ} in its config, and {certified_where}", step)
    if getattr(settings.resolved, "is_heterogeneous", False):
        problem = "some of its layers have separate settings (per_layer_config)"
        raise unsupported(where, problem, step)


# --- sizes and switches ---------------------------------------------------------------------------


def _sizes(settings: Settings, family: Family) -> dict[str, int]:
    """The sizes by field of `Config`. Raises ModelError where heads do not fit."""
    keys = family.config_keys
    names = SIZES | dict(keys.sizes)
    heads = settings.own_name(names["n_heads"])
    if not {names["n_heads"], heads} & settings.stated.keys():
        # No tensor tells it, so that the usual number of the class would go unnoticed.
        raise refuse(settings.where, f"{heads} is not in its config", "add how many heads it has")
    n_heads = settings.size(names["n_heads"])
    d_model = settings.size(names["d_model"])
    is_wide = settings.get(names["d_mlp"]) is None  # as GPT-2's code takes it
    # Rows of the position table before the first token's are not used for text.
    skipped_rows = 0
    if not (keys.default_n_ctx or keys.reserved_position_rows):
        skipped_rows = _first_row(settings, keys)
    sizes = {
        "n_layers": settings.size(names["n_layers"]),
        "n_heads": n_heads,
        "n_kv_heads": keys.fixed_kv_heads or settings.size("num_key_value_heads", n_heads),
        "d_model": d_model,
        "d_head": _head_size(
            settings, n_heads, d_model, is_independent=family.d_head_is_independent
        ),
        "d_mlp": 4 * d_model if is_wide else _mlp_width(settings, names["d_mlp"]),
        "d_vocab": settings.size(names["d_vocab"]),
        "n_ctx": settings.size(names["n_ctx"], keys.default_n_ctx, minus=skipped_rows),
    }
    if family.kind == "encoder-decoder":
        sizes["n_decoder_layers"] = settings.size(names["n_decoder_layers"])
    if n_heads % sizes["n_kv_heads"]:
        shared = f"num_key_value_heads = {sizes['n_kv_heads']}"
        raise refuse(settings.where, f"{n_heads} heads cannot share {shared} evenly", CORRECT)
    return sizes


def _head_size(settings: Settings, n_heads: int, d_model: int, *, is_independent: bool) -> int:
    """d_head. Raises ModelError if it has to be d_model / n_heads and is not."""
    if settings.get("head_dim") is None and d_model % n_heads:
        width = f"{settings.own_name(SIZES['d_model'])} is {d_model}"
        heads = f"{settings.own_name(SIZES['n_heads'])} = {n_heads} heads"
        problem = f"{width} and does not divide evenly among {heads}"
        raise refuse(settings.where, problem, CORRECT)
    d_head = d_model // n_heads if settings.get("head_dim") is None else settings.size("head_dim")
    if n_heads * d_head != d_model and not is_independent:
        problem = f"it has {n_heads} heads of {d_head} dimensions and d_model {d_model}"
        raise refuse(settings.where, f"{problem}, which is not their product", CORRECT)
    return d_head


def _mlp_width(settings: Settings, name: str) -> int:
    """d_mlp. LFM2's code reduces and rounds the width that its config states."""
    full_width = settings.size(name)
    if not settings.get("block_auto_adjust_ff_dim"):
        return full_width
    width = int(2 * full_width / 3)
    factor = settings.number("block_ffn_dim_multiplier")
    if not factor:  # null
        return width
    multiple = settings.size("block_multiple_of")
    return multiple * math.ceil(int(factor * width) / multiple)


def _epsilon(settings: Settings, keys: ConfigKeys) -> float:
    """The number that a norm adds to the variance."""
    name = keys.epsilon
    if isinstance(name, float):
        return name
    return number_from(settings.get(name), name, settings.where, below=1)


def _activation(settings: Settings, keys: ConfigKeys) -> str:
    """The name of the activation's formula in `probe.model.attention`."""
    name = keys.activation
    activation = name if name in ACTIVATIONS else str(settings.get(name))
    if activation not in ACTIVATIONS:
        problem = f"{name} is {activation!r} in its config; known are {', '.join(ACTIVATIONS)}"
        raise unsupported(settings.where, problem, "load a standard model")
    return ACTIVATIONS[activation]


def _start_token(settings: Settings, family: Family) -> dict[str, int]:
    """The token before every target of an encoder-decoder."""
    if family.kind != "encoder-decoder":
        return {}
    name = "decoder_start_token_id"
    token = settings.get(name)
    token = settings.get(family.config_keys.decoder_start) if token is None else token
    if not isinstance(token, int):
        problem = f"{name} is {token!r} in its config"
        raise refuse(settings.where, problem, "give the token that starts a target")
    return {"start_token": token}


def _scales(settings: Settings, family: Family, d_model: int) -> dict[str, float]:
    """The factors of embeddings, writes, scores and logits."""
    scales = {
        field: number_from(settings.get(name), name, settings.where)
        for field, name in family.config_keys.scales.items()
    }
    is_scaled = settings.get("scale_embedding") or family.scales_embedding
    scalar = settings.number(family.config_keys.query_scalar)
    unembed = scales.get("unembed", 1 / scales.get("logits", 1.0))
    if settings.get("scale_decoder_outputs"):  # T5's
        unembed = float(d_model**-0.5)
    return {
        "embed_scale": scales.get("embed", d_model**0.5 if is_scaled else 1.0),
        "write_scale": scales.get("write", 1.0),
        "unembed_scale": unembed,
        "query_scalar": scales["scores"] ** -2 if "scores" in scales else scalar,
    }


def _windows(settings: Settings, keys: ConfigKeys, n_layers: int) -> dict[str, Any]:
    """The window of local layers, and which layers are local."""
    if not keys.window:
        return {}
    if keys.layer_types:
        local = _by_layer_type(settings, keys.layer_types, LOCAL)
    else:
        local = (settings.get(keys.window) is not None,) * n_layers
    return {"window": settings.size(keys.window), "local": local} if any(local) else {}


def _by_layer_type(settings: Settings, name: str, value_of: Mapping[str, bool]) -> tuple[bool, ...]:
    """For every layer, the value of its type. Raises UnsupportedModel for another type.

    name: the config key of the list of types
    value_of: the value of each type
    """
    layer_types = settings.get(name, ())
    unknown = next((kind for kind in layer_types if kind not in value_of), None)
    if unknown is not None:
        problem = f"a layer is {unknown!r} in its config ({name})"
        step = f"load a model whose layers are {' or '.join(map(repr, value_of))}"
        raise unsupported(settings.where, problem, step)
    return tuple(value_of[kind] for kind in layer_types)


# --- positions ------------------------------------------------------------------------------------


def _first_row(settings: Settings, keys: ConfigKeys) -> int:
    """The row of the position table for the first token."""
    row = keys.first_position_row
    return row if isinstance(row, int) else settings.size(row, minus=-1)


def _positions(settings: Settings, family: Family, sizes: Mapping[str, int]) -> Positions:
    if family.positions == "relative bias":
        return Positions(
            "relative bias",
            buckets=settings.size("relative_attention_num_buckets"),
            furthest=settings.size("relative_attention_max_distance"),
        )
    if family.positions == "rotary":
        return _rotary(settings, family.config_keys, sizes)
    first = _first_row(settings, family.config_keys)
    rows = sizes["n_ctx"] + (family.config_keys.reserved_position_rows or first)
    return Positions(family.positions, rows=rows, first=first)


def _rotary(settings: Settings, keys: ConfigKeys, sizes: Mapping[str, int]) -> Positions:
    """Rotary positions, from the object in which transformers collects their settings: one for
    all layers, or separate ones for local layers and the others.
    """
    parameters = settings.get("rope_parameters") or {"rope_theta": settings.resolved.default_theta}
    global_rope = parameters.get("full_attention") or parameters
    local_rope = parameters.get("sliding_attention")
    kind = local_rope.get("rope_type", "default") if local_rope else "default"
    if kind != "default":
        problem = f"rope_type is {kind!r} for its local layers"
        step = "load a model whose local layers have plain rotary positions"
        only = "and only 'default' is certified there"
        raise unsupported(settings.where, f"{problem}, {only}", step)
    dims = _rotary_dims(settings, global_rope, keys, sizes["d_head"])
    base, local_base = (
        number_from(rope["rope_theta"], "rope_theta", settings.where) if rope else 0.0
        for rope in (global_rope, local_rope)
    )
    return Positions(
        "rotary",
        dims=dims,
        base=base,
        local_base=local_base,
        rope_scaling=_rope_scaling(settings, global_rope, parameters.get("truncate", True), dims),
        unrotated=_unrotated(settings, keys, sizes["n_layers"]),
    )


def _rotary_dims(settings: Settings, rope: Mapping[str, Any], keys: ConfigKeys, d_head: int) -> int:
    """The number of rotated coordinates of a head, from a number or a fraction."""
    name = keys.rotary_dims or "partial_rotary_factor"
    if keys.rotary_dims:
        dims = settings.size(name)
    else:
        dims = int(d_head * number_from(rope.get(name, 1.0), name, settings.where))
    if dims % 2 or not 0 < dims <= d_head:
        problem = f"{name} leaves {dims} of {d_head} dimensions of a head to its rotary positions"
        raise refuse(settings.where, problem, "correct its config, so that they go in pairs")
    return dims


def _rope_scaling(
    settings: Settings, rope: Mapping[str, Any], truncates: object, dims: int
) -> RopeScaling | None:
    """How the frequencies are scaled.

    truncates: whether YaRN rounds to whole pairs

    Raises UnsupportedModel for a scaling without a certified formula, and ModelError for missing
    numbers.
    """
    kind = rope.get("rope_type", "default")
    where = settings.where

    def number(key: str, usual: object = None) -> float:
        value = usual if rope.get(key) is None else rope[key]
        return number_from(value, f"{key} of its rotary positions", where)

    if kind in ("default", "dynamic"):
        # Dynamic scaling begins after max_position_embeddings, the longest text that is allowed.
        return None
    if kind == "linear":
        return RopeScaling("linear", number("factor"))
    if kind not in ("llama3", "yarn", "longrope"):
        problem = f"rope_type of its rotary positions is {kind!r}, and no formula for it"
        raise unsupported(where, f"{problem} is certified", "load a model with another one")
    length = number("original_max_position_embeddings")
    if kind == "llama3":
        low = number("low_freq_factor")
        high = number("high_freq_factor")
        return RopeScaling("llama3", number("factor"), low, high, length)
    factor = number("factor", settings.size(SIZES["n_ctx"]) / length)
    if kind == "yarn":
        fast = number("beta_fast", 32)
        slow = number("beta_slow", 1)
        attention_factor = number("attention_factor", _yarn_factor(rope, factor))
        return RopeScaling(
            "yarn", factor, slow, fast, length, truncates is True, (), attention_factor
        )
    factors = rope["short_factor"]
    if len(factors) != dims // 2:
        problem = f"short_factor of its rotary positions is not a list of {dims // 2} numbers"
        raise refuse(where, problem, CORRECT)
    usual = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    attention_factor = number("attention_factor", usual)
    return RopeScaling(
        "longrope", length=length, factors=tuple(factors), attention_factor=attention_factor
    )


def _yarn_factor(rope: Mapping[str, Any], factor: float) -> float:
    """YaRN's factor of queries and keys if the config does not state it."""

    def longer(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    scale, of_all = rope.get("mscale"), rope.get("mscale_all_dim")
    return longer(scale) / longer(of_all) if scale and of_all else longer(1)


def _unrotated(settings: Settings, keys: ConfigKeys, n_layers: int) -> tuple[bool, ...]:
    """The layers without rotary positions; empty if all layers have them."""
    name, certified = keys.rotary_if
    if name and settings.get(name) != certified:
        return (True,) * n_layers
    if keys.rotates_local_layers_only and settings.get(keys.window) is not None:
        local = _windows(settings, keys, n_layers).get("local", (False,) * n_layers)
        return tuple(not is_local for is_local in local)
    if not keys.rotary_layers:
        return ()
    rotated = settings.get(keys.rotary_layers)
    if len(rotated) < n_layers:
        problem = f"{keys.rotary_layers} does not state which of its {n_layers} layers are rotated"
        raise refuse(settings.where, problem, CORRECT)
    return tuple(not is_rotated for is_rotated in rotated[:n_layers])


# --- mixtures of experts, and hybrids -------------------------------------------------------------


def _routing(settings: Settings, family: Family) -> dict[str, Any]:
    """The numbers of a routed MLP.

    Raises UnsupportedModel for a config with experts in a family without them.
    """
    where = settings.where
    if not family.routed:
        name = next((name for name in EXPERTS if settings.get(name)), "")
        if name:
            problem = f"{name} is {settings.get(name)!r} in its config, and {family.name} is"
            step = f"load a standard {family.name}"
            raise unsupported(where, f"{problem} certified without a router and experts only", step)
        return {}
    experts = settings.size("num_experts")
    n_chosen = settings.size("num_experts_per_tok")
    if n_chosen > experts:
        count_name = settings.own_name("num_experts")
        problem = f"num_experts_per_tok is {n_chosen} and {count_name} {experts} in its config"
        raise refuse(where, problem, CORRECT)
    shared = family.config_keys.sizes.get("d_shared", "")
    return {
        "n_experts": experts,
        "d_shared": settings.size(shared) if shared else 0,
    }


def _mixing(settings: Settings, family: Family, n_layers: int) -> dict[str, Any]:
    """Which layers of a hybrid have no attention, and the sizes of their mixers. Raises
    UnsupportedModel if no layer has attention.
    """
    mixer = family.attentions[0].mixer
    if mixer is None:
        return {}
    mixers = _by_layer_type(settings, "layer_types", {ATTENDS: False, mixer.layer_type: True})
    if all(mixers):
        problem = f"none of its {n_layers} layers has attention"
        step = "load a model with at least one layer of heads"
        raise unsupported(settings.where, problem, step)
    sizes = MixerSizes(**{field: settings.size(name) for field, name in mixer.size_keys.items()})
    if sizes.key_heads and sizes.heads % sizes.key_heads:
        name = mixer.size_keys["key_heads"]
        problem = f"{sizes.heads} heads cannot share {name} = {sizes.key_heads} evenly"
        raise refuse(settings.where, problem, CORRECT)
    return {"mixers": mixers, "mixer_sizes": sizes}
