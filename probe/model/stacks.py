"""Where the weights and hooks of each layer are: the stacks of attention that rows of the table of architectures name.

Words of the shapes, in the order in which the file holds the axes: d d_model, e d_head, h heads x d_head, g key-value
heads x d_head, hgg queries, keys and values together, m d_mlp, 2m gate and up together, v d_vocab, p rows of the
position table, t token types, b relative-position buckets, n heads; "+" adds a bias as long as the output, "=" says
that the name is whole (no ".weight" behind it).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from probe.model.family import (
    RECOMPUTED,
    Attention,
    Repair,
    norm_first_hooks,
    norm_last_hooks,
    norm_last_repairs,
    norm_written_repairs,
)

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
BERT = (
    Attention(
        "",
        "blocks",
        norm_last_hooks(),
        "encoder.layer.{}.",
        BERT_ATTENTION,
        lies=norm_last_repairs() | {"attn_out": Repair("hook_attn_out", "read in front of the sum and its norm")},
    ),
)


def _bart_parts(attn: str, norm: str) -> dict[str, tuple[str, str]]:
    heads = {part: (f"{attn}.{part}_proj", "h d +") for part in "qkv"}
    return heads | {"o": (f"{attn}.out_proj", "d h +"), "norm": (norm, "d +")}


BART_MLP = {"in": ("fc1", "m d +"), "out": ("fc2", "d m +"), "norm_mlp": ("final_layer_norm", "d +")}
BART_CROSS = norm_last_hooks("cross_attn", "ln2") | {"resid_pre": "ln1.hook_out", "memory": "cross_attn.k.hook_in"}
BART = (
    Attention(
        "encoder",
        "encoder_blocks",
        norm_last_hooks(),
        "encoder.layers.{}.",
        _bart_parts("self_attn", "self_attn_layer_norm") | BART_MLP,
        lies=norm_last_repairs(),
    ),
    Attention(
        "decoder",
        "decoder_blocks",
        norm_last_hooks("self_attn"),
        "decoder.layers.{}.",
        _bart_parts("self_attn", "self_attn_layer_norm") | BART_MLP,
        causal=True,
        lies=norm_last_repairs("self_attn"),
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


T5_CROSS = norm_first_hooks("cross_attn", "ln2") | {
    "resid_pre": "hook_resid_mid",
    "attn_out": "hook_cross_attn_out",
    "resid_mid": "hook_resid_mid2",
    "memory": "cross_attn.k.hook_in",
}
T5 = (
    Attention(
        "encoder", "encoder_blocks", norm_first_hooks(), "encoder.block.{}.", _t5_parts(0, "SelfAttention") | _t5_mlp(1)
    ),
    Attention(
        "decoder",
        "decoder_blocks",
        {name: hook for name, hook in norm_first_hooks("self_attn").items() if name != "scores"},
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
NEOX_PARTS = {
    "qkv": ("attention.query_key_value", "hgg d +"),
    "o": ("attention.dense", "d h +"),
    "norm": ("input_layernorm", "d +"),
    "in": ("mlp.dense_h_to_4h", "m d +"),
    "out": ("mlp.dense_4h_to_h", "d m +"),
    "norm_mlp": ("post_attention_layernorm", "d +"),
}
NEOX_LIES = {"resid_mid": Repair("", "E + attn_out, which no hook holds")}
GPT2_PARTS = {
    "norm": ("ln_1", "d +"),
    "qkv": ("attn.c_attn", "d hgg +"),
    "o": ("attn.c_proj", "h d +"),
    "norm_mlp": ("ln_2", "d +"),
    "in": ("mlp.c_fc", "d m +"),
    "out": ("mlp.c_proj", "m d +"),
}


def causal(
    parts: Mapping[str, tuple[str, str]],
    lies: Mapping[str, Repair] = MappingProxyType({}),
    *,
    fused: Literal["", "by role", "by head"] = "",
    read: Mapping[str, str] = MappingProxyType({}),
    layers: str = "layers.{}.",
) -> tuple[Attention]:
    """The single stack of a decoder that norms what attention reads; `read` are hooks other than the usual ones."""
    hooks = {name: hook for name, hook in norm_first_hooks().items() if name not in lies} | dict(read)
    return (Attention("", "blocks", hooks, layers, parts, causal=True, lies=lies, fused=fused),)


def _norms(q: str, k: str) -> dict[str, tuple[str, str]]:
    """Norms of the queries and keys, of these widths."""
    return {"norm_q": ("self_attn.q_norm", q), "norm_k": ("self_attn.k_norm", k)}


# In front of its norm, which the bridge's own hook is behind.
WRITTEN = {"attn_out": "attn.o.hook_out", "mlp_out": "mlp.hook_out"}
OLMO2_NORMS = {
    "norm_out": ("post_attention_layernorm", "d"),
    "norm_mlp_out": ("post_feedforward_layernorm", "d"),
}
OLMO2_PARTS = {role: part for role, part in LLAMA_PARTS.items() if not role.startswith("norm")} | OLMO2_NORMS
GEMMA_PARTS = LLAMA_PARTS | OLMO2_NORMS | {"norm_mlp": ("pre_feedforward_layernorm", "d")}
PHI3_PARTS = {role: part for role, part in LLAMA_PARTS.items() if role not in ("q", "k", "v", "gate", "up")} | {
    "qkv": ("self_attn.qkv_proj", "hgg d"),
    "gate_up": ("mlp.gate_up_proj", "2m d"),
}
LLAMA = causal(LLAMA_PARTS)
QWEN2 = causal(LLAMA_PARTS | QWEN2_BIASES)
QWEN3 = causal(LLAMA_PARTS | _norms("e", "e"))
PHI3 = causal(PHI3_PARTS, fused="by role")
OLMO2 = causal(OLMO2_PARTS | _norms("h", "g"), norm_written_repairs(), read=WRITTEN | {"x": "attn.q.hook_in"})
GEMMA2 = causal(GEMMA_PARTS, norm_written_repairs(), read=WRITTEN)
GEMMA3 = causal(GEMMA_PARTS | _norms("e", "e"), norm_written_repairs(), read=WRITTEN)
GPTJ_PARTS = {
    "norm": ("ln_1", "d +"),
    **{role: (f"attn.{role}_proj", "h d") for role in "qkv"},
    "o": ("attn.out_proj", "d h"),
    "in": ("mlp.fc_in", "m d +"),
    "out": ("mlp.fc_out", "d m +"),
}
GPT_NEO_PARTS = {
    "norm": ("ln_1", "d +"),
    **{role: (f"attn.attention.{role}_proj", "h d") for role in "qkv"},
    "o": ("attn.attention.out_proj", "d h +"),
    "norm_mlp": ("ln_2", "d +"),
    "in": ("mlp.c_fc", "m d +"),
    "out": ("mlp.c_proj", "d m +"),
}
SCORES_LIE = {"scores": Repair("attn.hook_attn_scores", RECOMPUTED)}
GPT_NEO = causal(GPT_NEO_PARTS, SCORES_LIE, layers="h.{}.")
GPTJ = causal(GPTJ_PARTS, SCORES_LIE | NEOX_LIES, layers="h.{}.")
NEOX = causal(NEOX_PARTS, NEOX_LIES, fused="by head")
GPT2 = causal(GPT2_PARTS, fused="by role", layers="h.{}.")
