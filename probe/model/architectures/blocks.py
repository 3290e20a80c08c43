"""Hooks, weights and tiny models that the rows of several families share."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from probe.model.architectures.family import (
    Attention,
    Parts,
    Replacement,
    without,
)

# Settings of the tiny random models that tests build (`Family.tiny`). All sizes differ, so that a
# transposed matrix cannot pass; windows are shorter than the texts, and caps have an effect.
TINY: dict[str, Any] = {
    "vocab_size": 400,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 36,
}
TINY_GROUPED: dict[str, Any] = TINY | {
    "hidden_size": 32,
    "num_key_value_heads": 2,
    "max_position_embeddings": 40,
}
# For families whose usual token ids exceed that vocabulary.
TINY_TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
TINY_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 10,
    "beta_fast": 3.0,
}
TINY_SCALES: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.3,
    "logits_scaling": 7.0,
}
# Norms after the writes of attention and the MLP.
SANDWICH_NORMS = {
    "norm_out": ("post_attention_layernorm", "d_model"),
    "norm_mlp_out": ("post_feedforward_layernorm", "d_model"),
}
# Hooks of writes before such a norm; the bridge's usual hooks come after it.
WRITTEN = {"attn_out": "attn.o.hook_out", "mlp_out": "mlp.hook_out"}
WRITE_REPLACEMENTS = {
    name: Replacement(f"hook_{name}", "read in front of its norm") for name in WRITTEN
}
# No MLP follows a cross-attention, so it has no hooks of these.
MLP_QUANTITIES = ("mlp_out", "resid_post")


def norms(q: str, k: str) -> dict[str, tuple[str, str]]:
    """Norms of queries and keys, of these widths."""
    return {"norm_q": ("self_attn.q_norm", q), "norm_k": ("self_attn.k_norm", k)}


def pre_norm_hooks(attn: str = "attn", norm: str = "ln1") -> dict[str, str]:
    """Hooks of a block with a norm in front of attention: E → x = norm(E) → E + attention."""
    return {
        **{
            name: f"hook_{name}"
            for name in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
        },
        **{name: f"{attn}.hook_{name}" for name in ("q", "k", "v", "pattern", "z")},
        "x": f"{norm}.hook_out",
        "scores": f"{attn}.hook_attn_scores",
    }


def post_norm_hooks(attn: str = "attn", norm: str = "ln1") -> dict[str, str]:
    """Hooks of a block with a norm after the sum: x = E → norm(E + attention); scores are
    recomputed.
    """
    special = {
        "x": f"{attn}.q.hook_in",
        "attn_out": f"{attn}.o.hook_out",
        "resid_mid": f"{norm}.hook_out",
    }
    return without(pre_norm_hooks(attn), "scores") | special


def recomputed(attn: str = "attn") -> dict[str, Replacement]:
    """The replacement of scores whose hook holds another quantity."""
    return {"scores": Replacement(f"{attn}.hook_attn_scores", "scores recomputed from q.k")}


def post_norm_replacements(attn: str = "attn") -> dict[str, Replacement]:
    """Replacements in a block with a norm after the sum."""
    return recomputed(attn) | {
        "resid_mid": Replacement("hook_resid_mid", "read behind the norm of the sum")
    }


def causal(
    parts: Parts,
    unreliable_hooks: Mapping[str, Replacement] = MappingProxyType({}),
    *,
    fused: Literal["", "by role", "by head"] = "",
    read: Mapping[str, str] = MappingProxyType({}),
    layers: str = "layers.{}.",
) -> tuple[Attention]:
    """The single stack of a decoder with norms in front of attention.

    read: hooks that differ from the usual ones
    """
    hooks = without(pre_norm_hooks(), *unreliable_hooks) | dict(read)
    replaced = dict(unreliable_hooks)  # a copy that can be pickled with a trace
    return (
        Attention("", hooks, layers, parts, causal=True, unreliable_hooks=replaced, fused=fused),
    )
