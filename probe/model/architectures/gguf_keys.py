"""How a GGUF file holds a family, as a record; what the rows of several families share of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


def without(table: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A table without some of its rows."""
    return {name: row for name, row in table.items() if name not in names}


@dataclass(frozen=True)
class GgufKeys:
    """What a GGUF file of a family holds otherwise than a checkpoint.

    A metadata key is named without the architecture in front, as "attention.head_count_kv". One
    that no field names is refused. Always, queries, keys and values of a single tensor are held by
    role, matrices output x input, experts in one tensor, and `offset` norms as 1 + their weight.
    """

    # The architecture by GGUF's name. Several rows may share one.
    architecture: str
    # The config keys that hold the number of a metadata key, beside `GGUF_SIZES`: one, or several
    # apart by spaces; points lead into objects.
    numbers: Mapping[str, str]
    # Of rows that share an architecture, a file is of this one if it has this tensor, or says
    # something under this metadata key. Empty: it is of this one if it is of no other.
    told_by: str = ""
    # Metadata keys that may hold a list of all layers: the config key of the list of kinds, and
    # what that calls a layer whose entry is true or above 0, and any other.
    layers: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    # Metadata keys that may be absent, with the values that are certified.
    must: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Metadata keys that change no formula, or follow from others.
    unread: tuple[str, ...] = ()
    # Config keys that no metadata key tells, with their values.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # By tensor: the config keys that it tells by being there.
    by_tensor: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Roles whose rows, which positions rotate two by two, are held pair beside pair, not half
    # behind half.
    interleaved: tuple[str, ...] = ()
    # How many layers the one size has whose scores are divided by the root of d_model / heads,
    # which no metadata key tells; those of the other sizes are by that of d_head. 0: none.
    query_scalar: int = 0


# By metadata key: our word of a size.
GGUF_SIZES = {
    "block_count": "n_layers",
    "embedding_length": "d_model",
    "feed_forward_length": "d_mlp",
    "context_length": "n_ctx",
    "attention.head_count": "n_heads",
    "vocab_size": "d_vocab",
}
# What must be plain in every family that has no formula for it.
GGUF_PLAIN = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
}
GGUF_ROUTED = without(GGUF_PLAIN, "expert_count", "expert_used_count")
GGUF_STRETCHED = without(GGUF_PLAIN, "rope.scaling.factor") | {"rope.scaling.type": ("yarn",)}
# Read with the sizes of heads, not as numbers of their own.
GGUF_HEAD_SIZES = ("attention.key_length", "attention.value_length", "rope.dimension_count")
GGUF_ROTARY = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
GGUF_LAYER_NORM = {
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
}
GGUF_WINDOW = GGUF_ROTARY | {"attention.sliding_window": "sliding_window"}
_YARN = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",  # of older files, and of newer ones
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}


def gguf_yarn(place: str) -> dict[str, str]:
    """The metadata keys of YaRN, for a config that holds its numbers at `place`."""
    return {name: f"{place}.{key}" for name, key in _YARN.items()}


def gguf_experts(count: str) -> dict[str, str]:
    """The metadata keys of a mixture of experts, whose config counts them under `count`."""
    return {"expert_count": count, "expert_used_count": "num_experts_per_tok"}


# Llama's kin, held as checkpoints hold them; a row says its own `architecture`.
KIN_GGUF = GgufKeys("", GGUF_ROTARY, must=GGUF_PLAIN, unread=GGUF_HEAD_SIZES)
# The same of those that may have a window.
WINDOW_GGUF = replace(
    KIN_GGUF,
    numbers=GGUF_WINDOW,
    must=without(GGUF_PLAIN, "attention.sliding_window"),
    unread=(*GGUF_HEAD_SIZES, "rope.scaling.original_context_length"),
)
