"""Hooks, weights and tiny configs that several families share."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from probe.model.architectures.family import (
    Attention,
    Mixer,
    Parts,
    Replacement,
    without,
)

# Parts of the configs of the tiny random models that tests build (`Family.tiny_config`). All sizes
# differ, so that a transposed matrix cannot pass; windows are shorter than the texts, and caps have
# an effect.
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
# For families whose default special tokens exceed that vocabulary.
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
# Norms after the writes of attention and of the MLP.
SANDWICH_NORMS = {
    "norm_out": ("post_attention_layernorm", "d_model"),
    "norm_mlp_out": ("post_feedforward_layernorm", "d_model"),
}
# Where such a norm follows, the usual hooks hold a write after it; these hold it before.
HOOKS_BEFORE_NORM = {"attn_out": "attn.o.hook_out", "mlp_out": "mlp.hook_out"}
REPLACED_WRITES = {
    name: Replacement(hook=f"hook_{name}", traced_instead="read in front of its norm")
    for name in HOOKS_BEFORE_NORM
}
# Attention and MLP read the same stream, so no hook holds the stream between them.
NO_RESID_MID_HOOK = {
    "resid_mid": Replacement(hook="", traced_instead="E + attn_out, which no hook holds")
}
# Without a norm before attention, x is the stream itself.
HOOKS_WITHOUT_FIRST_NORM = {"x": "attn.q.hook_in"}
# No MLP follows a cross-attention, so it has no hooks of these quantities.
MLP_QUANTITIES = ("mlp_out", "resid_post")


def qk_norms(q: str, k: str) -> dict[str, tuple[str, str]]:
    """Norms of queries and keys, whose widths are `q` and `k`, such as "d_head"."""
    return {"norm_q": ("self_attn.q_norm", q), "norm_k": ("self_attn.k_norm", k)}


def pre_norm_hooks(attn: str = "attn", norm: str = "ln1") -> dict[str, str]:
    """Hooks of a block with a norm before attention: x = norm(E), then E + attention(x).

    attn, norm: the names of the attention and of its norm in the bridge
    """
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
    """Hooks of a block with a norm after the sum: norm(E + attention(E)). Scores have no hook;
    they are recomputed.

    attn, norm: the names of the attention and of its norm in the bridge
    """
    special = {
        "x": f"{attn}.q.hook_in",
        "attn_out": f"{attn}.o.hook_out",
        "resid_mid": f"{norm}.hook_out",
    }
    return without(pre_norm_hooks(attn), "scores") | special


def recomputed_scores(attn: str = "attn") -> dict[str, Replacement]:
    """The replacement of scores by recomputed ones, where their hook holds another quantity."""
    return {
        "scores": Replacement(
            hook=f"{attn}.hook_attn_scores", traced_instead="scores recomputed from q.k"
        )
    }


def post_norm_replacements(attn: str = "attn") -> dict[str, Replacement]:
    """Replacements in a block with a norm after the sum."""
    return recomputed_scores(attn) | {
        "resid_mid": Replacement(
            hook="hook_resid_mid", traced_instead="read behind the norm of the sum"
        )
    }


def norms_after_writes(parts: Parts, q: str, k: str) -> Attention:
    """A decoder that norms the writes of attention and of the MLP, and queries and keys, instead of
    the stream before each: OLMo 2 and later families like it.

    parts: with the norms of a pre-norm decoder, which are left out
    q, k: the sizes of the norms of queries and keys
    """
    return decoder_stack(
        without(parts, "norm", "norm_mlp") | SANDWICH_NORMS | qk_norms(q, k),
        norms_writes=True,
        hooks=HOOKS_WITHOUT_FIRST_NORM,
    )


def decoder_stack(
    parts: Parts,
    *,
    hooks: Mapping[str, str] = MappingProxyType({}),
    unreliable_hooks: Mapping[str, Replacement] = MappingProxyType({}),
    norms_writes: bool = False,
    fused_qkv: Literal["", "by role", "by head"] = "",
    layer_prefix: str = "layers.{}.",
    mixer: Mixer | None = None,
) -> Attention:
    """The attention and the MLP in every layer of a decoder with a single stack.

    hooks: the hooks that differ from `pre_norm_hooks`
    unreliable_hooks: a quantity that is listed here has no hook, unless `hooks` names one
    norms_writes: whether the writes of attention and of the MLP are read before a norm that follows
        them
    fused_qkv, layer_prefix, mixer: as in `Attention`
    """
    replaced = dict(unreliable_hooks)  # a copy that can be pickled with a trace
    other_hooks = dict(hooks)
    if norms_writes:
        replaced = REPLACED_WRITES | replaced
        other_hooks = HOOKS_BEFORE_NORM | other_hooks
    return Attention(
        name="",
        hooks=without(pre_norm_hooks(), *replaced) | other_hooks,
        layer_prefix=layer_prefix,
        parts=parts,
        causal=True,
        unreliable_hooks=replaced,
        fused_qkv=fused_qkv,
        mixer=mixer,
    )
