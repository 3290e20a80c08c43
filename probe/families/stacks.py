"""The attentions of every family: their hooks, the hooks that lie, and the raw names and shapes of their weights.

Words of the shapes: d d_model, h heads x d_head, g key-value heads x d_head, m d_mlp, v d_vocab, p rows of the position table,
t token types, b relative-position buckets, n heads; "+" adds a bias as long as the first, "=" says that the name is whole.
"""

from collections.abc import Mapping
from types import MappingProxyType

from probe.families.entry import Attention, Repair

RECOMPUTED = "scores recomputed from q.k"


def _attention_hooks(attn: str) -> dict[str, str]:
    return {name: f"{attn}.hook_{name}" for name in ("q", "k", "v", "pattern", "z")}


def _norm_first(attn: str = "attn", norm: str = "ln1") -> dict[str, str]:
    """Hooks of a block that norms what attention reads: E → x = norm(E) → E + attention."""
    streams = {"resid_pre": "hook_resid_pre", "x": f"{norm}.hook_out", "attn_out": "hook_attn_out"}
    after = {"resid_mid": "hook_resid_mid", "mlp_out": "hook_mlp_out", "resid_post": "hook_resid_post"}
    return streams | _attention_hooks(attn) | {"scores": f"{attn}.hook_attn_scores"} | after


def _norm_last(attn: str = "attn", norm: str = "ln1") -> dict[str, str]:
    """Hooks of a block that norms the sum: x = E → norm(E + attention); the scores are recomputed."""
    streams = {"resid_pre": "hook_resid_pre", "x": f"{attn}.q.hook_in", "attn_out": f"{attn}.o.hook_out"}
    after = {"resid_mid": f"{norm}.hook_out", "mlp_out": "hook_mlp_out", "resid_post": "hook_resid_post"}
    return streams | _attention_hooks(attn) | after


def _norm_last_lies(attn: str = "attn") -> dict[str, Repair]:
    return {
        "scores": Repair(f"{attn}.hook_attn_scores", RECOMPUTED),
        "resid_mid": Repair("hook_resid_mid", "read behind the norm of the sum"),
    }


BERT_ATTENTION = {
    "q": ("attention.self.query", "h d +"),
    "k": ("attention.self.key", "h d +"),
    "v": ("attention.self.value", "h d +"),
    "o": ("attention.output.dense", "d h +"),
    "norm": ("attention.output.LayerNorm", "d +"),
    "in": ("intermediate.dense", "m d +"),
    "out": ("output.dense", "d m +"),
    "norm_mlp": ("output.LayerNorm", "d +"),
}
BERT_OUTSIDE = {
    "embeddings.word_embeddings": "v d",
    "embeddings.position_embeddings": "p d",
    "embeddings.token_type_embeddings": "t d",
    "embeddings.LayerNorm": "d +",
}
BERT_STACK = Attention(
    "",
    "blocks",
    _norm_last(),
    "encoder.layer.{}.",
    BERT_ATTENTION,
    lies=_norm_last_lies() | {"attn_out": Repair("hook_attn_out", "read in front of the sum and its norm")},
)


def _bart_parts(attn: str, norm: str) -> dict[str, tuple[str, str]]:
    heads = {part: (f"{attn}.{part}_proj", "h d +") for part in "qkv"}
    return heads | {"o": (f"{attn}.out_proj", "d h +"), "norm": (norm, "d +")}


BART_MLP = {"in": ("fc1", "m d +"), "out": ("fc2", "d m +"), "norm_mlp": ("final_layer_norm", "d +")}
BART_CROSS = _norm_last("cross_attn", "ln2") | {"resid_pre": "ln1.hook_out", "memory": "cross_attn.k.hook_in"}
BART_STACKS = (
    Attention(
        "encoder",
        "encoder_blocks",
        _norm_last(),
        "encoder.layers.{}.",
        _bart_parts("self_attn", "self_attn_layer_norm") | BART_MLP,
        lies=_norm_last_lies(),
    ),
    Attention(
        "decoder",
        "decoder_blocks",
        _norm_last("self_attn"),
        "decoder.layers.{}.",
        _bart_parts("self_attn", "self_attn_layer_norm") | BART_MLP,
        causal=True,
        lies=_norm_last_lies("self_attn"),
    ),
    Attention(
        "cross",
        "decoder_blocks",
        {name: hook for name, hook in BART_CROSS.items() if name not in ("mlp_out", "resid_post")},
        "decoder.layers.{}.",
        _bart_parts("encoder_attn", "encoder_attn_layer_norm"),
        lies={"scores": Repair("cross_attn.hook_attn_scores", RECOMPUTED)},
    ),
)
BART_TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def _t5_parts(number: int, attn: str) -> dict[str, tuple[str, str]]:
    heads = {part: (f"layer.{number}.{attn}.{part}", "h d") for part in "qkv"}
    return heads | {"o": (f"layer.{number}.{attn}.o", "d h"), "norm": (f"layer.{number}.layer_norm", "d")}


def _t5_mlp(number: int) -> dict[str, tuple[str, str]]:
    dense = f"layer.{number}.DenseReluDense"
    gate = {"gate": (f"{dense}.wi_0", "m d"), "up": (f"{dense}.wi_1", "m d")}  # either these two or "in"
    return gate | {
        "in": (f"{dense}.wi", "m d"),
        "out": (f"{dense}.wo", "d m"),
        "norm_mlp": (f"layer.{number}.layer_norm", "d"),
    }


T5_CROSS = _norm_first("cross_attn", "ln2") | {
    "resid_pre": "hook_resid_mid",
    "attn_out": "hook_cross_attn_out",
    "resid_mid": "hook_resid_mid2",
    "memory": "cross_attn.k.hook_in",
}
T5_STACKS = (
    Attention(
        "encoder", "encoder_blocks", _norm_first(), "encoder.block.{}.", _t5_parts(0, "SelfAttention") | _t5_mlp(1)
    ),
    Attention(
        "decoder",
        "decoder_blocks",
        {name: hook for name, hook in _norm_first("self_attn").items() if name != "scores"},
        "decoder.block.{}.",
        _t5_parts(0, "SelfAttention") | _t5_mlp(2),
        causal=True,
        lies={"scores": Repair("self_attn.hook_attn_scores", RECOMPUTED)},
    ),
    Attention(
        "cross",
        "decoder_blocks",
        {name: hook for name, hook in T5_CROSS.items() if name not in ("mlp_out", "resid_post")},
        "decoder.block.{}.",
        _t5_parts(1, "EncDecAttention"),
    ),
)
LLAMA_PARTS = {
    "q": ("self_attn.q_proj", "h d"),
    "k": ("self_attn.k_proj", "g d"),
    "v": ("self_attn.v_proj", "g d"),
    "o": ("self_attn.o_proj", "d h"),
    "norm": ("input_layernorm", "d"),
    "gate": ("mlp.gate_proj", "m d"),
    "up": ("mlp.up_proj", "m d"),
    "out": ("mlp.down_proj", "d m"),
    "norm_mlp": ("post_attention_layernorm", "d"),
}
QWEN2_BIASES = {part: (name, shape + " +") for part, (name, shape) in LLAMA_PARTS.items() if part in ("q", "k", "v")}
LLAMA_OUTSIDE = {"embed_tokens": "v d", "norm": "d"}
NEOX_PARTS = {
    "qkv": ("attention.query_key_value", "3h d +"),
    "o": ("attention.dense", "d h +"),
    "norm": ("input_layernorm", "d +"),
    "in": ("mlp.dense_h_to_4h", "m d +"),
    "out": ("mlp.dense_4h_to_h", "d m +"),
    "norm_mlp": ("post_attention_layernorm", "d +"),
}
NEOX_LIES = {"resid_mid": Repair("", "E + attn_out, which no hook holds")}


def causal_stack(
    parts: Mapping[str, tuple[str, str]], lies: Mapping[str, Repair] = MappingProxyType({})
) -> tuple[Attention]:
    hooks = {name: hook for name, hook in _norm_first().items() if name not in lies}
    return (Attention("", "blocks", hooks, "layers.{}.", parts, causal=True, lies=lies),)
