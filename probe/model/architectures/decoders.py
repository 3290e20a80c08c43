"""Decoders: OpenAI's and EleutherAI's (GPT-2, GPT-Neo, GPT-J, GPT-NeoX), then Llama and its kin
(Mistral, Phi-3, Qwen2, Qwen3, OLMo 2, Gemma 2 and Gemma 3), whose rows say in what they differ.
"""

import math
from dataclasses import replace
from typing import Any

from probe.model.architectures.family import (
    GGUF_PLAIN,
    HIDDEN,
    Attention,
    Family,
    GgufKeys,
    Keys,
    Mixer,
    Replacement,
    Routed,
    causal,
    recomputed,
    without,
)

PARALLEL = {"resid_mid": Replacement("", "E + attn_out, which no hook holds")}

GPT_KEYS = Keys(
    {
        "n_layers": "n_layer",
        "n_heads": "n_head",
        "d_model": "n_embd",
        "d_mlp": "n_inner",
        "d_vocab": "vocab_size",
        "n_ctx": "n_positions",
    },
    ("layer_norm_epsilon", 1e-5),
    ("activation_function", "gelu_new"),
    wide=True,
)
GPT2 = Family(
    "GPT-2",
    "decoder",
    ("GPT2LMHeadModel",),
    replace(
        GPT_KEYS,
        must={"scale_attn_weights": (True,), "add_cross_attention": (False,)},
        scores_by_layer="scale_attn_by_inverse_layer_idx",
    ),
    prefix="transformer.",
    transposed=True,
    special_tokens=False,
    attentions=causal(
        {
            "norm": ("ln_1", "d +"),
            "qkv": ("attn.c_attn", "d hgg +"),
            "o": ("attn.c_proj", "h d +"),
            "norm_mlp": ("ln_2", "d +"),
            "in": ("mlp.c_fc", "d m +"),
            "out": ("mlp.c_proj", "m d +"),
        },
        fused="by role",
        layers="h.{}.",
    ),
    embed="wte",
    position_table="wpe",
    final_norm="ln_f",
    ignored=("*.attn.bias", "*.attn.masked_bias"),
    gguf=GgufKeys(
        "gpt2",
        {"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        must={"attention.causal": (True,)},
    ),
)
GPT_NEO = replace(
    GPT2,
    name="GPT-Neo",
    architectures=("GPTNeoForCausalLM",),
    keys=replace(
        GPT_KEYS,
        sizes=HIDDEN | {"n_layers": "num_layers", "n_heads": "num_heads"},
        window=("window_size", 256),
        kinds="attention_types",
    ),
    transposed=False,
    scaled=False,
    in_float32=("scores", "softmax"),
    attentions=causal(
        {
            "norm": ("ln_1", "d +"),
            **{role: (f"attn.attention.{role}_proj", "h d") for role in "qkv"},
            "o": ("attn.attention.out_proj", "d h +"),
            "norm_mlp": ("ln_2", "d +"),
            "in": ("mlp.c_fc", "m d +"),
            "out": ("mlp.c_proj", "d m +"),
        },
        recomputed(),
        layers="h.{}.",
    ),
    ignored=("*.attention.bias", "*.attention.masked_bias"),
    gguf=None,
)
GPTJ = replace(
    GPT2,
    name="GPT-J",
    architectures=("GPTJForCausalLM",),
    keys=replace(GPT_KEYS, tied=False, rotary_dims="rotary_dim"),
    transposed=False,
    positions="rotary",
    interleaved=True,
    in_float32=("scores", "softmax"),
    plain_rounds=True,
    parallel=True,
    attentions=causal(
        {
            "norm": ("ln_1", "d +"),
            **{role: (f"attn.{role}_proj", "h d") for role in "qkv"},
            "o": ("attn.out_proj", "d h"),
            "in": ("mlp.fc_in", "m d +"),
            "out": ("mlp.fc_out", "d m +"),
        },
        recomputed() | PARALLEL,
        layers="h.{}.",
    ),
    position_table="",
    head_bias="lm_head.bias",
    gguf=None,
)
GPT_NEOX = Family(
    "GPT-NeoX",
    "decoder",
    ("GPTNeoXForCausalLM",),
    Keys(
        HIDDEN,
        ("layer_norm_eps", 1e-5),
        tied=False,
        must={
            "use_parallel_residual": (True,),
            "attention_bias": (True,),
            "tie_word_embeddings": (False,),
        },
        rotary_share=0.25,
    ),
    prefix="gpt_neox.",
    positions="rotary",
    plain_rounds=True,
    parallel=True,
    attentions=causal(
        {
            "qkv": ("attention.query_key_value", "hgg d +"),
            "o": ("attention.dense", "d h +"),
            "norm": ("input_layernorm", "d +"),
            "in": ("mlp.dense_h_to_4h", "m d +"),
            "out": ("mlp.dense_4h_to_h", "d m +"),
            "norm_mlp": ("post_attention_layernorm", "d +"),
        },
        PARALLEL,
        fused="by head",
    ),
    embed="embed_in",
    final_norm="final_layer_norm",
    unembed="embed_out",
    ignored=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
    gguf=GgufKeys(
        "gptneox",
        {
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "rope.freq_base": "rope_theta",
            "use_parallel_residual": "use_parallel_residual",
        },
        must=GGUF_PLAIN,
        unread=("rope.dimension_count", "tensor_data_layout"),
    ),
)
OPT = Family(
    "OPT",
    "decoder",
    ("OPTForCausalLM",),
    Keys(
        HIDDEN | {"d_mlp": "ffn_dim"},
        ("layer_norm_eps", 1e-5),
        ("activation_function", "relu"),
        must={
            "do_layer_norm_before": (True,),
            "_remove_final_layer_norm": (False,),
            "enable_bias": (True,),
            "layer_norm_elementwise_affine": (True,),
        },
        equal=(("hidden_size", "word_embed_proj_dim"),),
        first=2,
        reserved=2,
    ),
    prefix="model.decoder.",
    in_float32=("softmax",),
    attentions=causal(
        {
            **{role: (f"self_attn.{role}_proj", "h d +") for role in "qkv"},
            "o": ("self_attn.out_proj", "d h +"),
            "norm": ("self_attn_layer_norm", "d +"),
            "in": ("fc1", "m d +"),
            "out": ("fc2", "d m +"),
            "norm_mlp": ("final_layer_norm", "d +"),
        },
        recomputed(),
    ),
    embed="embed_tokens",
    position_table="embed_positions",
    final_norm="final_layer_norm",
)
BLOOM = Family(
    "BLOOM",
    "decoder",
    ("BloomForCausalLM",),
    Keys(
        {
            "n_layers": "n_layer",
            "n_heads": "n_head",
            "d_model": "hidden_size",
            "d_mlp": "n_inner",
            "d_vocab": "vocab_size",
        },
        ("layer_norm_epsilon", 1e-5),
        ("", "gelu_bloom"),
        must={"apply_residual_connection_post_layernorm": (False,), "n_inner": (None,)},
        wide=True,
        context=("seq_length", 2048),
    ),
    prefix="transformer.",
    positions="alibi",
    in_float32=("softmax",),
    attentions=causal(
        {
            "qkv": ("self_attention.query_key_value", "hgg d +"),
            "o": ("self_attention.dense", "d h +"),
            "norm": ("input_layernorm", "d +"),
            "in": ("mlp.dense_h_to_4h", "m d +"),
            "out": ("mlp.dense_4h_to_h", "d m +"),
            "norm_mlp": ("post_attention_layernorm", "d +"),
        },
        fused="by head",
        read={"attn_out": "attn.o.hook_out"},
        layers="h.{}.",
    ),
    embed="word_embeddings",
    embedding_norm="word_embeddings_layernorm",
    final_norm="ln_f",
    gguf=GgufKeys(
        "bloom",
        {
            "attention.head_count_kv": "num_key_value_heads",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "context_length": "seq_length",
        },
        must={"attention.causal": (True,)},
        unread=("feed_forward_length",),
    ),
)
# The first of the line: one head of keys and values, no biases, and one norm for attention and MLP.
FALCON = Family(
    "Falcon",
    "decoder",
    ("FalconForCausalLM",),
    Keys(
        HIDDEN | {"d_mlp": "ffn_hidden_size"},
        ("layer_norm_epsilon", 1e-5),
        ("activation", "gelu"),
        must={
            "alibi": (False,),
            "bias": (False,),
            "multi_query": (True,),
            "new_decoder_architecture": (False,),
            "parallel_attn": (True,),
        },
        wide=True,
        kv_heads=("", 1),
    ),
    prefix="transformer.",
    positions="rotary",
    in_float32=("softmax",),
    parallel=True,
    attentions=causal(
        {
            "qkv": ("self_attention.query_key_value", "hgg d"),
            "o": ("self_attention.dense", "d h"),
            "norm": ("input_layernorm", "d +"),
            "in": ("mlp.dense_h_to_4h", "m d"),
            "out": ("mlp.dense_4h_to_h", "d m"),
        },
        PARALLEL,
        fused="by role",
        layers="h.{}.",
    ),
    embed="word_embeddings",
    final_norm="ln_f",
    gguf=GgufKeys(
        "falcon",
        {"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        must=GGUF_PLAIN | {"attention.head_count_kv": (1,)},
        unread=("tensor_data_layout",),
    ),
)

PARTS = {
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
BIASED_NORMS = {
    "norm": ("input_layernorm", "d +"),
    "norm_mlp": ("post_attention_layernorm", "d +"),
}
SANDWICH_NORMS = {
    "norm_out": ("post_attention_layernorm", "d"),
    "norm_mlp_out": ("post_feedforward_layernorm", "d"),
}
# Of what is written in front of its norm; the bridge's own hooks are behind it.
WRITTEN = {"attn_out": "attn.o.hook_out", "mlp_out": "mlp.hook_out"}
WRITE_REPLACEMENTS = {
    name: Replacement(f"hook_{name}", "read in front of its norm") for name in WRITTEN
}
GEMMA_PARTS = PARTS | SANDWICH_NORMS | {"norm_mlp": ("pre_feedforward_layernorm", "d")}
WINDOW = ("sliding_window", 4096)
# Read with the sizes of heads, not as numbers of their own.
GGUF_HEAD_SIZES = ("attention.key_length", "attention.value_length", "rope.dimension_count")
GGUF_ROTARY = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
GGUF_YARN = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",  # of older files, and of newer ones
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
GGUF_ROUTED = without(GGUF_PLAIN, "expert_count", "expert_used_count")
GGUF_STRETCHED = without(GGUF_PLAIN, "rope.scaling.factor") | {"rope.scaling.type": ("yarn",)}
GGUF_LAYER_NORM = {
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
}


def _gguf_yarn(place: str) -> dict[str, str]:
    """Where a config holds the numbers of YaRN."""
    return {name: f"{place}.{key}" for name, key in GGUF_YARN.items()}


def _gguf_experts(count: str) -> dict[str, str]:
    """Where a config holds how many experts there are, and how many a token is given to."""
    return {"expert_count": count, "expert_used_count": "num_experts_per_tok"}


def _norms(q: str, k: str) -> dict[str, tuple[str, str]]:
    """Norms of the queries and keys, of these widths."""
    return {"norm_q": ("self_attn.q_norm", q), "norm_k": ("self_attn.k_norm", k)}


# Where "attention_bias" says of all four whether they have biases.
ATTENTION_BIAS = {"attention_bias": (False, "qkvo")}
LLAMA_GGUF = GgufKeys(
    "llama",
    GGUF_ROTARY,
    must=GGUF_PLAIN,
    unread=(*GGUF_HEAD_SIZES, "tensor_data_layout"),
    interleaved=("q", "k"),
)
LLAMA = Family(
    "Llama",
    "decoder",
    ("LlamaForCausalLM",),
    Keys(
        HIDDEN,
        ("rms_norm_eps", 1e-6),
        ("hidden_act", "silu"),
        tied=False,
        must={"mlp_bias": (False,)},
        biases=ATTENTION_BIAS,
    ),
    prefix="model.",
    norm="RMSNorm",
    gated=True,
    positions="rotary",
    in_float32=("norm", "softmax"),
    attentions=causal(PARTS),
    embed="embed_tokens",
    final_norm="norm",
    free_heads=True,
    ignored=("*.rotary_emb.inv_freq",),
    gguf=LLAMA_GGUF,
)
MISTRAL = replace(
    LLAMA,
    name="Mistral",
    architectures=("MistralForCausalLM",),
    keys=replace(LLAMA.keys, must={"layer_types": (None,)}, biases={}, window=WINDOW),
    gguf=None,
)
# Of Qwen's; which layers are local is said by a list or, without one, by where they begin.
QWEN_WINDOWS: dict[str, Any] = {
    "window": WINDOW,
    "window_used": "use_sliding_window",
    "kinds": "layer_types",
    "global_every": ("", 0),
    "local_from": ("max_window_layers", 28),
}
QWEN2_GGUF = GgufKeys("qwen2", GGUF_ROTARY, must=GGUF_PLAIN, unread=GGUF_HEAD_SIZES)
QWEN2 = replace(
    LLAMA,
    name="Qwen2",
    architectures=("Qwen2ForCausalLM",),
    keys=replace(LLAMA.keys, must={}, biases={}, **QWEN_WINDOWS),
    attentions=causal(PARTS | {role: (PARTS[role][0], f"{PARTS[role][1]} +") for role in "qkv"}),
    gguf=QWEN2_GGUF,
)
QWEN3 = replace(
    LLAMA,
    name="Qwen3",
    architectures=("Qwen3ForCausalLM",),
    keys=replace(
        QWEN2.keys,
        sizes=HIDDEN | {"d_head": "head_dim"},
        biases=ATTENTION_BIAS,
    ),
    attentions=causal(PARTS | _norms("e", "e")),
    gguf=replace(QWEN2_GGUF, architecture="qwen3"),
)
GGUF_WINDOW = GGUF_ROTARY | {"attention.sliding_window": "sliding_window"}
PHI3_GGUF = replace(
    QWEN2_GGUF,
    architecture="phi3",
    numbers=GGUF_WINDOW,
    must=without(GGUF_PLAIN, "attention.sliding_window"),
    unread=(*GGUF_HEAD_SIZES, "rope.scaling.original_context_length"),
)
PHI3 = replace(
    LLAMA,
    name="Phi-3",
    architectures=("Phi3ForCausalLM",),
    keys=replace(
        LLAMA.keys,
        epsilon=("rms_norm_eps", 1e-5),
        must={},
        biases={},
        window=("sliding_window", None),
    ),
    in_float32=("norm",),
    plain_rounds=True,
    free_heads=False,
    attentions=causal(
        without(PARTS, "q", "k", "v", "gate", "up")
        | {"qkv": ("self_attn.qkv_proj", "hgg d"), "gate_up": ("mlp.gate_up_proj", "2m d")},
        fused="by role",
    ),
    gguf=PHI3_GGUF,
)
OLMO2 = replace(
    LLAMA,
    name="OLMo 2",
    architectures=("Olmo2ForCausalLM",),
    keys=replace(LLAMA.keys, epsilon=("rms_norm_eps", 1e-5), must={}),
    norm_first=False,
    norm_after_write=True,
    free_heads=False,
    attentions=causal(
        without(PARTS, "norm", "norm_mlp") | SANDWICH_NORMS | _norms("h", "g"),
        WRITE_REPLACEMENTS,
        read=WRITTEN | {"x": "attn.q.hook_in"},
    ),
    gguf=replace(QWEN2_GGUF, architecture="olmo2"),
)
OLMO3 = replace(
    OLMO2,
    name="OLMo 3",
    architectures=("Olmo3ForCausalLM",),
    keys=replace(
        OLMO2.keys,
        window=WINDOW,
        kinds="layer_types",
        global_every=("", 4),
        rotary_base=500000.0,
        local_base=("rope_theta", 500000.0),
    ),
    gguf=replace(
        QWEN2_GGUF,
        architecture="olmo2",
        told_by="attention.sliding_window",
        numbers=GGUF_WINDOW
        | {
            "rope.freq_base": " ".join(
                f"rope_parameters.{kind}_attention.rope_theta" for kind in ("full", "sliding")
            ),
            "rope.freq_base_swa": "rope_parameters.sliding_attention.rope_theta",
        }
        | _gguf_yarn("rope_parameters.full_attention"),
        layers={
            "attention.sliding_window_pattern": (
                "layer_types",
                "sliding_attention",
                "full_attention",
            )
        },
        must=without(GGUF_STRETCHED, "attention.sliding_window"),
    ),
)
SMOLLM3 = replace(
    LLAMA,
    name="SmolLM3",
    architectures=("SmolLM3ForCausalLM",),
    keys=replace(
        LLAMA.keys,
        tied=True,
        must={"mlp_bias": (False,), "use_sliding_window": (False,)},
        rotary_base=2000000.0,
        rotated=("no_rope_layers", ("no_rope_layer_interval", 4)),
    ),
    free_heads=False,
    gguf=replace(LLAMA_GGUF, architecture="smollm3"),
)
# Files hold experts one by one; Hugging Face's classes stack them.
STACKED = {
    "mlp.experts.gate_up_proj": ("expert_gate", "expert_up"),
    "mlp.experts.down_proj": ("expert_out",),
}
ROUTED = without(PARTS, "gate", "up", "out") | {
    "router": ("mlp.gate", "x d"),
    "expert_gate": ("mlp.experts.{}.gate_proj", "m d"),
    "expert_up": ("mlp.experts.{}.up_proj", "m d"),
    "expert_out": ("mlp.experts.{}.down_proj", "d m"),
}
SHARED_EXPERT = {
    "shared_router": ("mlp.shared_expert_gate", "1 d"),
    "shared_gate": ("mlp.shared_expert.gate_proj", "s d"),
    "shared_up": ("mlp.shared_expert.up_proj", "s d"),
    "shared_out": ("mlp.shared_expert.down_proj", "d s"),
}
MIXTRAL = replace(
    MISTRAL,
    name="Mixtral",
    architectures=("MixtralForCausalLM",),
    keys=replace(
        MISTRAL.keys,
        epsilon=("rms_norm_eps", 1e-5),
        window=("sliding_window", None),
        rotary_base=1000000.0,
    ),
    routed=Routed(
        ("num_local_experts",), stacked=STACKED, renamed={"mlp.gate": "block_sparse_moe.gate"}
    ),
    in_float32=("norm", "softmax", "router"),
    attentions=causal(
        ROUTED
        | {
            "router": ("block_sparse_moe.gate", "x d"),
            "expert_gate": ("block_sparse_moe.experts.{}.w1", "m d"),
            "expert_up": ("block_sparse_moe.experts.{}.w3", "m d"),
            "expert_out": ("block_sparse_moe.experts.{}.w2", "d m"),
        }
    ),
    gguf=replace(
        LLAMA_GGUF,
        told_by="expert_count",
        numbers=GGUF_ROTARY | _gguf_experts("num_local_experts"),
        must=GGUF_ROUTED,
    ),
)
EVERY_LAYER_ROUTED: dict[str, tuple[Any, ...]] = {
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
}
EXPERTS = ("num_experts", "num_local_experts")
SHARED = "shared_expert_intermediate_size"
QWEN2_MOE = replace(
    QWEN2,
    name="Qwen2-MoE",
    architectures=("Qwen2MoeForCausalLM",),
    keys=replace(
        QWEN2.keys,
        sizes=HIDDEN | {"d_mlp": "moe_intermediate_size"},
        must=EVERY_LAYER_ROUTED,
        biases={"qkv_bias": (True, "qkv")},
        global_every=("", 2),
        local_from=("", 0),
        local_below=("max_window_layers", 28),
    ),
    routed=Routed(EXPERTS, normed=("norm_topk_prob", False), shared=SHARED, stacked=STACKED),
    in_float32=MIXTRAL.in_float32,
    free_heads=False,
    attentions=causal(ROUTED | SHARED_EXPERT),
    gguf=replace(
        QWEN2_GGUF,
        architecture="qwen2moe",
        numbers=GGUF_ROTARY
        | _gguf_experts("num_experts")
        | {
            "feed_forward_length": "intermediate_size",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        must=GGUF_ROUTED,
    ),
)
QWEN3_MOE = replace(
    QWEN3,
    name="Qwen3-MoE",
    architectures=("Qwen3MoeForCausalLM",),
    keys=replace(
        QWEN3.keys,
        sizes=HIDDEN | {"d_mlp": "moe_intermediate_size"},  # head_dim may be absent
        must=EVERY_LAYER_ROUTED,
        kinds="",
        local_from=("", 0),
    ),
    routed=Routed(EXPERTS, normed=("norm_topk_prob", False), stacked=STACKED),
    in_float32=MIXTRAL.in_float32,
    attentions=causal(ROUTED | _norms("e", "e")),
    # No key tells that the shares of the chosen experts are divided by their sum: all are read so.
    gguf=replace(
        QWEN2_GGUF,
        architecture="qwen3moe",
        numbers=GGUF_ROTARY
        | _gguf_experts("num_experts")
        | {
            "feed_forward_length": "intermediate_size",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        must=GGUF_ROUTED,
        settings={"norm_topk_prob": True},
    ),
)
OLMOE = replace(
    LLAMA,
    name="OLMoE",
    architectures=("OlmoeForCausalLM",),
    keys=replace(
        LLAMA.keys,
        epsilon=("rms_norm_eps", 1e-5),
        must={"clip_qkv": (None,)},
    ),
    routed=Routed(EXPERTS, normed=("norm_topk_prob", False), stacked=STACKED),
    in_float32=MIXTRAL.in_float32,
    free_heads=False,
    attentions=causal(ROUTED | _norms("h", "g")),
    gguf=replace(
        QWEN2_GGUF,
        architecture="olmoe",
        numbers=GGUF_ROTARY | _gguf_experts("num_experts"),
        must=GGUF_ROUTED,
    ),
)
FLEX_OLMO = replace(
    OLMO2,
    name="FlexOlmo",
    architectures=("FlexOlmoForCausalLM",),
    keys=replace(OLMO2.keys, epsilon=("rms_norm_eps", 1e-6), rotary_base=500000.0),
    routed=OLMOE.routed,
    in_float32=MIXTRAL.in_float32,
    attentions=causal(
        without(ROUTED, "norm", "norm_mlp") | SANDWICH_NORMS | _norms("h", "g"),
        WRITE_REPLACEMENTS,
        read=WRITTEN | {"x": "attn.q.hook_in"},
    ),
    gguf=None,
)
# Liquid AI's hybrid: gated short convolutions, and attention in a few layers.
LFM2 = replace(
    LLAMA,
    name="LFM2",
    architectures=("Lfm2ForCausalLM",),
    keys=Keys(
        HIDDEN,
        ("norm_eps", 1e-5),
        ("", "silu"),
        must={"conv_bias": (False,)},
        rotary_base=1000000.0,
        other_names={"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"},
        mlp_rounded=(
            ("block_auto_adjust_ff_dim", True),
            ("block_ffn_dim_multiplier", 1.0),
            ("block_multiple_of", 256),
        ),
    ),
    attentions=(
        replace(
            causal(
                {
                    **{role: PARTS[role] for role in "qkv"},
                    "o": ("self_attn.out_proj", "d h"),
                    "norm_q": ("self_attn.q_layernorm", "e"),
                    "norm_k": ("self_attn.k_layernorm", "e"),
                    "norm": ("operator_norm", "d"),
                    "gate": ("feed_forward.w1", "m d"),
                    "up": ("feed_forward.w3", "m d"),
                    "out": ("feed_forward.w2", "d m"),
                    "norm_mlp": ("ffn_norm", "d"),
                }
            )[0],
            mixer=Mixer(
                "short convolution",
                "conv.hook_out",
                {
                    "in": ("conv.in_proj", "3d d"),
                    "kernel": ("conv.conv", "d 1 w"),
                    "out": ("conv.out_proj", "d d"),
                },
                kinds="layer_types",
                kind="conv",
                sizes={"width": "conv_L_cache"},
                attention_layers="full_attn_idxs",
            ),
        ),
    ),
    final_norm="embedding_norm",
    gguf=replace(
        QWEN2_GGUF,
        architecture="lfm2",
        numbers=GGUF_ROTARY
        | {"attention.layer_norm_rms_epsilon": "norm_eps", "shortconv.l_cache": "conv_L_cache"},
        layers={"attention.head_count_kv": ("layer_types", "full_attention", "conv")},
        settings={"block_auto_adjust_ff_dim": False},  # a file has the width that comes of it
    ),
)
# Qwen's hybrids: a gated delta rule, and in every fourth layer attention whose z is gated.
DELTA_RULE = Mixer(
    "gated delta rule",
    "linear_attn.hook_out",
    {
        "in_gate": ("linear_attn.in_proj_qkvz", "cg d"),
        "beta_decay": ("linear_attn.in_proj_ba", "2l d"),
        "kernel": ("linear_attn.conv1d", "c 1 w"),
        "decay_bias": ("linear_attn.dt_bias", "l ="),
        "log_rate": ("linear_attn.A_log", "l ="),
        "norm": ("linear_attn.norm", "u"),
        "out": ("linear_attn.out_proj", "d lu"),
    },
    kinds="layer_types",
    kind="linear_attention",
    sizes={
        "width": "linear_conv_kernel_dim",
        "heads": "linear_num_value_heads",
        "key_heads": "linear_num_key_heads",
        "d_key": "linear_key_head_dim",
        "d_value": "linear_value_head_dim",
    },
    attention_every=("full_attention_interval", 4),
)
GATED = {"q": ("self_attn.q_proj", "2h d")}
GATES_APART = {"q": Replacement("attn.hook_q", "without the gates that stand beside it")}


def _with_delta_rule(parts: dict[str, tuple[str, str]], mixer: Mixer) -> tuple[Attention]:
    """The stack of a hybrid of Qwen's; `parts` are those of its MLPs and norms."""
    heads = parts | GATED | _norms("e", "e")
    (attention,) = causal(heads, GATES_APART, read={"q": "attn.hook_q"})
    return (replace(attention, mixer=mixer),)


QWEN3_NEXT = replace(
    QWEN3_MOE,
    name="Qwen3-Next",
    architectures=("Qwen3NextForCausalLM",),
    keys=replace(
        QWEN3_MOE.keys,
        sizes={**QWEN3_MOE.keys.sizes, "d_head": "head_dim"},
        must=EVERY_LAYER_ROUTED
        | {
            "use_sliding_window": (False,),
            "attention_bias": (False,),
            "hidden_act": ("silu",),
        },
        biases={},
        window=("", None),
        rotary_share=0.25,
    ),
    routed=Routed(EXPERTS, normed=("norm_topk_prob", True), shared=SHARED, stacked=STACKED),
    offset=True,
    gated_heads=True,
    in_float32=("norm", "gain", "softmax", "router"),
    attentions=_with_delta_rule(ROUTED | SHARED_EXPERT, DELTA_RULE),
    ignored=(*QWEN3_MOE.ignored, "mtp.*"),
    gguf=None,
)
# The same where the products of the delta rule stand in tensors of their own.
DELTA_RULE_APART = replace(
    DELTA_RULE,
    parts=without(DELTA_RULE.parts, "in_gate", "beta_decay")
    | {
        "in": ("linear_attn.in_proj_qkv", "c d"),
        "gate": ("linear_attn.in_proj_z", "lu d"),
        "beta": ("linear_attn.in_proj_b", "l d"),
        "decay": ("linear_attn.in_proj_a", "l d"),
    },
)
QWEN3_5 = replace(
    QWEN3,
    name="Qwen3.5",
    architectures=("Qwen3_5ForCausalLM",),
    base="Qwen3_5TextModel",
    keys=replace(
        QWEN3.keys,
        must={"attention_bias": (False,), "hidden_act": ("silu",), "attn_output_gate": (True,)},
        biases={},
        window=("", None),
        rotary_share=0.25,
    ),
    offset=True,
    gated_heads=True,
    in_float32=("norm", "gain", "softmax"),
    attentions=_with_delta_rule(PARTS, DELTA_RULE_APART),
    ignored=QWEN3_NEXT.ignored,
    gguf=None,
)
QWEN3_5_MOE = replace(
    QWEN3_NEXT,
    name="Qwen3.5-MoE",
    architectures=("Qwen3_5MoeForCausalLM",),
    base="Qwen3_5MoeTextModel",
    keys=replace(QWEN3_5.keys, sizes=QWEN3_NEXT.keys.sizes),
    routed=Routed(EXPERTS, shared=SHARED, stacked=STACKED),
    attentions=_with_delta_rule(ROUTED | SHARED_EXPERT, DELTA_RULE_APART),
)
# IBM's hybrids: a state space of the second Mamba in most layers.
STATE_SPACE = Mixer(
    "state space",
    "mixer.hook_out",
    {
        "in": ("mamba.in_proj", "cgl d"),
        "kernel": ("mamba.conv1d", "c 1 w +"),
        "step_bias": ("mamba.dt_bias", "l ="),
        "log_rate": ("mamba.A_log", "l ="),
        "skip": ("mamba.D", "l ="),
        "norm": ("mamba.norm", "lu"),
        "out": ("mamba.out_proj", "d lu"),
    },
    kinds="layer_types",
    kind="linear_attention",
    sizes={
        "width": "mamba_d_conv",
        "heads": "mamba_n_heads",
        "key_heads": "mamba_n_groups",
        "d_key": "mamba_d_state",
        "d_value": "mamba_d_head",
    },
    attention_layers="attn_layer_indices",
)
# How far a step may go, which is as far as it likes: in a file, of a model, and as transformers
# writes infinity.
NO_LIMIT = ([0.0, math.inf], (0.0, math.inf), [0.0, {"__float__": "Infinity"}])
BAMBA = replace(
    LLAMA,
    name="Bamba",
    architectures=("BambaForCausalLM",),
    keys=replace(
        LLAMA.keys,
        epsilon=("rms_norm_eps", 1e-5),
        must={
            "mlp_bias": (False,),
            "mamba_conv_bias": (True,),
            "mamba_proj_bias": (False,),
            "hidden_act": ("silu",),
            "partial_rotary_factor": (0.5,),  # any other is not read where it stands
            "time_step_limit": NO_LIMIT,
        },
        rotary_share=0.5,
    ),
    attentions=(
        replace(
            causal(
                {role: PARTS[role] for role in ("q", "k", "v", "o", "norm")}
                | {
                    "gate": ("feed_forward.gate_proj", "m d"),
                    "up": ("feed_forward.up_proj", "m d"),
                    "out": ("feed_forward.down_proj", "d m"),
                    "norm_mlp": ("pre_ff_layernorm", "d"),
                }
            )[0],
            mixer=STATE_SPACE,
        ),
    ),
    final_norm="final_layernorm",
    gguf=None,
)
GRANITE = replace(
    LLAMA,
    name="Granite",
    architectures=("GraniteForCausalLM",),
    keys=replace(
        LLAMA.keys,
        scales={
            "embed": "embedding_multiplier",
            "write": "residual_multiplier",
            "scores": "attention_multiplier",
            "logits": "logits_scaling",
        },
    ),
    gguf=replace(
        LLAMA_GGUF,
        architecture="granite",
        numbers=GGUF_ROTARY
        | {
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
)
# Granite 4 without experts; those of the others are not read yet.
GRANITE_HYBRID = replace(
    BAMBA,
    name="Granite 4",
    architectures=("GraniteMoeHybridForCausalLM",),
    keys=replace(
        BAMBA.keys,
        sizes=HIDDEN | {"d_mlp": "shared_intermediate_size"},
        epsilon=("rms_norm_eps", 1e-6),
        must=without(BAMBA.keys.must, "mlp_bias", "partial_rotary_factor")
        | {"normalization_function": ("rmsnorm",)},
        rotary_share=1.0,
        scales=GRANITE.keys.scales,
        rotated_by=("position_embedding_type", "rope"),
    ),
    attentions=(
        replace(
            causal(
                without(PARTS, "gate", "up", "out")
                | {
                    "gate_up": ("shared_mlp.input_linear", "2m d"),
                    "out": ("shared_mlp.output_linear", "d m"),
                }
            )[0],
            mixer=replace(STATE_SPACE, attention_layers=""),
        ),
    ),
    final_norm="norm",
)
GPT_OSS = replace(
    LLAMA,
    name="GPT-OSS",
    architectures=("GptOssForCausalLM",),
    keys=replace(
        LLAMA.keys,
        sizes=HIDDEN | {"d_head": "head_dim"},
        epsilon=("rms_norm_eps", 1e-5),
        must={},
        biases={"attention_bias": (True, "qkvo")},
        window=("sliding_window", 128),
        kinds="layer_types",
        global_every=("", 2),
        rotary_base=150000.0,
    ),
    routed=Routed(EXPERTS, of_all=False, clamp=(("swiglu_alpha", 1.702), ("swiglu_limit", 7.0))),
    plain_rounds=True,
    attentions=causal(
        without(PARTS, "gate", "up", "out")
        | {
            "sinks": ("self_attn.sinks", "n ="),
            "router": ("mlp.router", "x d +"),
            "experts_gate_up": ("mlp.experts.gate_up_proj", "x d 2m ="),
            "experts_gate_up_bias": ("mlp.experts.gate_up_proj_bias", "x 2m ="),
            "experts_out": ("mlp.experts.down_proj", "x m d ="),
            "experts_out_bias": ("mlp.experts.down_proj_bias", "x d ="),
        }
    ),
    gguf=None,
)
PHI = Family(
    "Phi",
    "decoder",
    ("PhiForCausalLM",),
    Keys(
        HIDDEN,
        ("layer_norm_eps", 1e-5),
        ("hidden_act", "gelu_new"),
        tied=False,
        must={"qk_layernorm": (False,)},
        rotary_share=0.5,
    ),
    prefix="model.",
    positions="rotary",
    in_float32=("softmax",),
    parallel=True,
    attentions=causal(
        {
            "q": ("self_attn.q_proj", "h d +"),
            "k": ("self_attn.k_proj", "g d +"),
            "v": ("self_attn.v_proj", "g d +"),
            "o": ("self_attn.dense", "d h +"),
            "norm": ("input_layernorm", "d +"),
            "in": ("mlp.fc1", "m d +"),
            "out": ("mlp.fc2", "d m +"),
        },
        PARALLEL,
    ),
    embed="embed_tokens",
    final_norm="final_layernorm",
    head_bias="lm_head.bias",
    ignored=LLAMA.ignored,
    gguf=GgufKeys(
        "phi2",
        GGUF_LAYER_NORM | {"attention.layer_norm_epsilon": "layer_norm_eps"},
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
)
STABLELM = replace(
    LLAMA,
    name="StableLM",
    architectures=("StableLmForCausalLM",),
    keys=replace(
        LLAMA.keys,
        epsilon=("layer_norm_eps", 1e-5),
        must={"qk_layernorm": (False,), "use_parallel_residual": (False,)},
        biases={"use_qkv_bias": (False, "qkv")},
        rotary_share=0.25,
    ),
    norm="LayerNorm",
    in_float32=("softmax",),
    attentions=causal(PARTS | BIASED_NORMS),
    free_heads=False,
    gguf=GgufKeys(
        "stablelm",
        GGUF_LAYER_NORM
        | {
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
)
STARCODER2 = replace(
    LLAMA,
    name="StarCoder2",
    architectures=("Starcoder2ForCausalLM",),
    keys=Keys(
        HIDDEN,
        ("norm_epsilon", 1e-5),
        ("hidden_act", "gelu_pytorch_tanh"),
        must={"use_bias": (True,)},
        window=("sliding_window", None),
    ),
    norm="LayerNorm",
    gated=False,
    in_float32=("softmax",),
    attentions=causal(
        {
            "norm": ("input_layernorm", "d +"),
            "q": ("self_attn.q_proj", "h d +"),
            "k": ("self_attn.k_proj", "g d +"),
            "v": ("self_attn.v_proj", "g d +"),
            "o": ("self_attn.o_proj", "d h +"),
            "norm_mlp": ("post_attention_layernorm", "d +"),
            "in": ("mlp.c_fc", "m d +"),
            "out": ("mlp.c_proj", "d m +"),
        }
    ),
    # No key of a file holds the window: what is read there has none.
    gguf=GgufKeys(
        "starcoder2",
        GGUF_LAYER_NORM | {"attention.layer_norm_epsilon": "norm_epsilon"},
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
)
ARCEE = replace(
    LLAMA,
    name="Arcee",
    architectures=("ArceeForCausalLM",),
    keys=replace(LLAMA.keys, epsilon=("rms_norm_eps", 1e-5), activation=("hidden_act", "relu2")),
    gated=False,
    attentions=causal(without(PARTS, "gate", "up") | {"in": ("mlp.up_proj", "m d")}),
    gguf=replace(
        LLAMA_GGUF,
        architecture="arcee",
        numbers=GGUF_ROTARY | _gguf_yarn("rope_scaling"),
        must=GGUF_STRETCHED,
    ),
)
SEED_OSS = replace(
    LLAMA,
    name="Seed-OSS",
    architectures=("SeedOssForCausalLM",),
    keys=replace(
        LLAMA.keys,
        sizes=HIDDEN | {"d_head": "head_dim"},
        biases={"attention_bias": (True, "qkv"), "attention_out_bias": (False, "o")},
    ),
    gguf=replace(QWEN2_GGUF, architecture="seed_oss"),
)
ERNIE45 = replace(
    LLAMA,
    name="ERNIE 4.5",
    architectures=("Ernie4_5ForCausalLM",),
    keys=replace(
        LLAMA.keys,
        epsilon=("rms_norm_eps", 1e-5),
        tied=True,
        must={"use_bias": (False,)},
        biases={},
        rotary_base=500000.0,
    ),
    interleaved=True,
    in_float32=("norm", "rotation", "softmax"),
    gguf=replace(QWEN2_GGUF, architecture="ernie4_5"),
)
GLM = replace(
    LLAMA,
    name="GLM",
    architectures=("GlmForCausalLM",),
    keys=replace(
        LLAMA.keys,
        sizes=HIDDEN | {"d_head": "head_dim"},
        epsilon=("rms_norm_eps", 1.5625e-7),
        must={},
        biases={"attention_bias": (True, "qkv")},
        rotary_share=0.5,
    ),
    interleaved=True,
    in_float32=("norm", "rotated", "softmax"),
    plain_rounds=True,
    attentions=causal(without(PARTS, "gate", "up") | {"gate_up": ("mlp.gate_up_proj", "2m d")}),
    # The converter reads neither its epsilon nor its context: what a file says of them is not so.
    gguf=None,
)
GLM4 = replace(
    GLM,
    name="GLM-4",
    architectures=("Glm4ForCausalLM",),
    norm_after_write=True,
    attentions=causal(
        dict(GLM.attentions[0].parts)
        | {
            "norm_out": ("post_self_attn_layernorm", "d"),
            "norm_mlp_out": ("post_mlp_layernorm", "d"),
        },
        WRITE_REPLACEMENTS,
        read=WRITTEN,
    ),
    gguf=replace(QWEN2_GGUF, architecture="glm4"),
)
NEMOTRON = replace(
    LLAMA,
    name="Nemotron",
    architectures=("NemotronForCausalLM",),
    keys=replace(
        LLAMA.keys,
        epsilon=("norm_eps", 1e-5),
        activation=("hidden_act", "relu2"),
        rotary_share=0.5,
    ),
    norm="LayerNorm",
    offset=True,
    gated=False,
    in_float32=("softmax",),
    attentions=causal(without(PARTS, "gate", "up") | BIASED_NORMS | {"in": ("mlp.up_proj", "m d")}),
    gguf=GgufKeys(
        "nemotron",
        GGUF_LAYER_NORM
        | {f"attention.layer_norm_{rms}epsilon": "norm_eps" for rms in ("", "rms_")},
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
)
JAIS2 = replace(
    NEMOTRON,
    name="Jais 2",
    architectures=("Jais2ForCausalLM",),
    keys=replace(
        NEMOTRON.keys,
        epsilon=("layer_norm_eps", 1e-5),
        must={"mlp_bias": (True,)},
        biases={"attention_bias": (True, "qkvo")},
        rotary_share=1.0,
    ),
    offset=False,
    attentions=causal(
        {
            role: (name, f"{shape} +" if role in ("in", "out") else shape)
            for role, (name, shape) in NEMOTRON.attentions[0].parts.items()
        }
    ),
    gguf=GgufKeys(
        "jais2",
        GGUF_LAYER_NORM | {"attention.layer_norm_epsilon": "layer_norm_eps"},
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
)
GPT_BIGCODE = replace(
    GPT2,
    name="GPTBigCode",
    architectures=("GPTBigCodeForCausalLM",),
    keys=replace(
        GPT_KEYS,
        activation=("activation_function", "gelu_pytorch_tanh"),
        must={
            "scale_attn_weights": (True,),
            "multi_query": (True,),
            "add_cross_attention": (False,),
        },
        kv_heads=("", 1),
    ),
    transposed=False,
    in_float32=("softmax",),
    plain_rounds=True,
    attentions=causal(
        {
            "norm": ("ln_1", "d +"),
            "qkv": ("attn.c_attn", "hgg d +"),
            "o": ("attn.c_proj", "d h +"),
            "norm_mlp": ("ln_2", "d +"),
            "in": ("mlp.c_fc", "m d +"),
            "out": ("mlp.c_proj", "d m +"),
        },
        fused="by role",
        layers="h.{}.",
    ),
    gguf=GgufKeys(
        "starcoder",
        {"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        must={"attention.causal": (True,), "attention.head_count_kv": (1,)},
    ),
)
GEMMA = replace(
    LLAMA,
    name="Gemma",
    architectures=("GemmaForCausalLM",),
    keys=replace(
        LLAMA.keys,
        sizes=HIDDEN | {"d_head": "head_dim"},
        activation=("hidden_act", "gelu_pytorch_tanh"),
        meant={"gelu": "gelu_pytorch_tanh"},
        tied=True,
        must={"use_bidirectional_attention": (False, None)},
    ),
    offset=True,
    scaled_embedding=True,
    in_float32=("norm", "gain", "softmax"),
    gguf=replace(QWEN2_GGUF, architecture="gemma"),
)
GEMMA2 = replace(
    LLAMA,
    name="Gemma 2",
    architectures=("Gemma2ForCausalLM",),
    keys=Keys(
        HIDDEN | {"d_head": "head_dim"},
        ("rms_norm_eps", 1e-6),
        ("hidden_activation", "gelu_pytorch_tanh"),
        must={"use_bidirectional_attention": (False, None)},
        biases=ATTENTION_BIAS,
        window=WINDOW,
        kinds="layer_types",
        global_every=("", 2),
        query_scalar=("query_pre_attn_scalar", 256.0),
        attn_logit_softcapping=("attn_logit_softcapping", 50.0),
        final_logit_softcapping=("final_logit_softcapping", 30.0),
    ),
    norm_after_write=True,
    offset=True,
    scaled_embedding=True,
    in_float32=("norm", "gain", "softmax"),
    attentions=causal(GEMMA_PARTS, WRITE_REPLACEMENTS, read=WRITTEN),
    gguf=replace(
        PHI3_GGUF,
        architecture="gemma2",
        numbers=GGUF_WINDOW
        | {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")},
        query_scalar=46,
    ),
)
GEMMA3 = replace(
    GEMMA2,
    name="Gemma 3",
    architectures=("Gemma3ForCausalLM",),
    base="Gemma3TextModel",
    keys=replace(
        GEMMA2.keys,
        must={**GEMMA2.keys.must, "attn_logit_softcapping": (None,)},
        global_every=("sliding_window_pattern", 6),
        rotary_base=1000000.0,
        local_base=("rope_local_base_freq", 10000.0),
        attn_logit_softcapping=("", None),
        final_logit_softcapping=("final_logit_softcapping", None),
    ),
    attentions=causal(GEMMA_PARTS | _norms("e", "e"), WRITE_REPLACEMENTS, read=WRITTEN),
    gguf=replace(
        PHI3_GGUF,
        architecture="gemma3",
        numbers=GGUF_WINDOW
        | {
            "attention.sliding_window_pattern": "sliding_window_pattern",
            "rope.freq_base_swa": "rope_local_base_freq",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        query_scalar=62,
    ),
)
VAULTGEMMA = replace(
    GEMMA2,
    name="VaultGemma",
    architectures=("VaultGemmaForCausalLM",),
    norm_after_write=False,
    attentions=causal(PARTS | {"norm_mlp": ("pre_feedforward_layernorm", "d")}),
    gguf=None,
)
