"""Decoders with LayerNorm and plain MLPs: GPT-2, GPT-Neo, GPT-J, GPT-NeoX, OPT, BLOOM, Falcon,
GPTBigCode and Phi.
"""

from dataclasses import replace

from probe.model.architectures.blocks import (
    TINY,
    TINY_GROUPED,
    TINY_TOKENS,
    causal,
    recomputed,
)
from probe.model.architectures.family import (
    Family,
    GgufKeys,
    Keys,
    Replacement,
)
from probe.model.architectures.gguf_keys import (
    GGUF_HEAD_SIZES,
    GGUF_LAYER_NORM,
    GGUF_PLAIN,
)
from probe.model.architectures.llama import LLAMAS

GPTS: dict[str, Family] = {}

PARALLEL = {"resid_mid": Replacement("", "E + attn_out, which no hook holds")}

GPT_KEYS = Keys(
    epsilon="layer_norm_epsilon",
    activation="activation_function",
    sizes={"d_mlp": "n_inner"},
)

GPTS["gpt2"] = Family(
    name="GPT-2",
    kind="decoder",
    architectures=("GPT2LMHeadModel",),
    keys=replace(
        GPT_KEYS,
        must={"scale_attn_weights": (True,), "add_cross_attention": (False,)},
        scores_by_layer="scale_attn_by_inverse_layer_idx",
    ),
    prefix="transformer.",
    transposed=True,
    special_tokens=False,
    attentions=causal(
        {
            "norm": ("ln_1", "d_model with bias"),
            "qkv": ("attn.c_attn", "d_model heads*d_head+2*kv_heads*d_head with bias"),
            "o": ("attn.c_proj", "heads*d_head d_model with bias"),
            "norm_mlp": ("ln_2", "d_model with bias"),
            "in": ("mlp.c_fc", "d_model d_mlp with bias"),
            "out": ("mlp.c_proj", "d_mlp d_model with bias"),
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
        numbers={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        must={"attention.causal": (True,)},
    ),
    tiny={
        "vocab_size": 400,
        "n_positions": 40,
        "n_embd": 28,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 36,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
)

GPTS["gpt_neo"] = replace(
    GPTS["gpt2"],
    name="GPT-Neo",
    architectures=("GPTNeoForCausalLM",),
    keys=Keys(
        epsilon="layer_norm_epsilon",
        activation="activation_function",
        window="window_size",
        kinds="attention_layers",
    ),
    transposed=False,
    scaled=False,
    in_float32=("scores", "softmax"),
    attentions=causal(
        {
            "norm": ("ln_1", "d_model with bias"),
            **{role: (f"attn.attention.{role}_proj", "heads*d_head d_model") for role in "qkv"},
            "o": ("attn.attention.out_proj", "d_model heads*d_head with bias"),
            "norm_mlp": ("ln_2", "d_model with bias"),
            "in": ("mlp.c_fc", "d_mlp d_model with bias"),
            "out": ("mlp.c_proj", "d_model d_mlp with bias"),
        },
        recomputed(),
        layers="h.{}.",
    ),
    ignored=("*.attention.bias", "*.attention.masked_bias"),
    gguf=None,
    tiny=TINY
    | TINY_TOKENS
    | {
        "hidden_size": 28,
        "max_position_embeddings": 40,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 5,
    },
)

GPTS["gptj"] = replace(
    GPTS["gpt2"],
    name="GPT-J",
    architectures=("GPTJForCausalLM",),
    keys=replace(GPT_KEYS, rotary_dims="rotary_dim"),
    transposed=False,
    positions="rotary",
    interleaved=True,
    in_float32=("scores", "softmax"),
    plain_rounds=True,
    parallel=True,
    attentions=causal(
        {
            "norm": ("ln_1", "d_model with bias"),
            **{role: (f"attn.{role}_proj", "heads*d_head d_model") for role in "qkv"},
            "o": ("attn.out_proj", "d_model heads*d_head"),
            "in": ("mlp.fc_in", "d_mlp d_model with bias"),
            "out": ("mlp.fc_out", "d_model d_mlp with bias"),
        },
        recomputed() | PARALLEL,
        layers="h.{}.",
    ),
    position_table="",
    head_bias="lm_head.bias",
    gguf=None,
    tiny={**GPTS["gpt2"].tiny, **TINY_TOKENS, "n_embd": 32, "rotary_dim": 6},
)

GPTS["gpt_neox"] = Family(
    name="GPT-NeoX",
    kind="decoder",
    architectures=("GPTNeoXForCausalLM",),
    keys=Keys(
        epsilon="layer_norm_eps",
        must={
            "use_parallel_residual": (True,),
            "attention_bias": (True,),
            "tie_word_embeddings": (False,),
        },
    ),
    prefix="gpt_neox.",
    positions="rotary",
    plain_rounds=True,
    parallel=True,
    attentions=causal(
        {
            "qkv": (
                "attention.query_key_value",
                "heads*d_head+2*kv_heads*d_head d_model with bias",
            ),
            "o": ("attention.dense", "d_model heads*d_head with bias"),
            "norm": ("input_layernorm", "d_model with bias"),
            "in": ("mlp.dense_h_to_4h", "d_mlp d_model with bias"),
            "out": ("mlp.dense_4h_to_h", "d_model d_mlp with bias"),
            "norm_mlp": ("post_attention_layernorm", "d_model with bias"),
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
        numbers={
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "rope.freq_base": "rope_theta",
            "use_parallel_residual": "use_parallel_residual",
        },
        must=GGUF_PLAIN,
        unread=("rope.dimension_count", "tensor_data_layout"),
    ),
    tiny=TINY | {"hidden_size": 32, "max_position_embeddings": 40},
)

GPTS["opt"] = Family(
    name="OPT",
    kind="decoder",
    architectures=("OPTForCausalLM",),
    keys=Keys(
        epsilon=1e-5,
        activation="activation_function",
        sizes={"d_mlp": "ffn_dim"},
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
            **{
                role: (f"self_attn.{role}_proj", "heads*d_head d_model with bias") for role in "qkv"
            },
            "o": ("self_attn.out_proj", "d_model heads*d_head with bias"),
            "norm": ("self_attn_layer_norm", "d_model with bias"),
            "in": ("fc1", "d_mlp d_model with bias"),
            "out": ("fc2", "d_model d_mlp with bias"),
            "norm_mlp": ("final_layer_norm", "d_model with bias"),
        },
        recomputed(),
    ),
    embed="embed_tokens",
    position_table="embed_positions",
    final_norm="final_layer_norm",
    tiny=TINY | TINY_TOKENS | {"hidden_size": 28, "ffn_dim": 36, "max_position_embeddings": 40},
)

GPTS["bloom"] = Family(
    name="BLOOM",
    kind="decoder",
    architectures=("BloomForCausalLM",),
    keys=Keys(
        epsilon="layer_norm_epsilon",
        activation="gelu_bloom",
        sizes={"d_mlp": "n_inner", "n_ctx": "seq_length"},
        n_ctx=2048,
        must={"apply_residual_connection_post_layernorm": (False,), "n_inner": (None,)},
    ),
    prefix="transformer.",
    positions="alibi",
    in_float32=("softmax",),
    attentions=causal(
        {
            "qkv": (
                "self_attention.query_key_value",
                "heads*d_head+2*kv_heads*d_head d_model with bias",
            ),
            "o": ("self_attention.dense", "d_model heads*d_head with bias"),
            "norm": ("input_layernorm", "d_model with bias"),
            "in": ("mlp.dense_h_to_4h", "d_mlp d_model with bias"),
            "out": ("mlp.dense_4h_to_h", "d_model d_mlp with bias"),
            "norm_mlp": ("post_attention_layernorm", "d_model with bias"),
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
        numbers={
            "attention.head_count_kv": "num_key_value_heads",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "context_length": "seq_length",
        },
        must={"attention.causal": (True,)},
        unread=("feed_forward_length",),
    ),
    tiny={
        **TINY_TOKENS,
        "vocab_size": 400,
        "hidden_size": 28,
        "n_layer": 2,
        "n_head": 4,
        "seq_length": 40,
    },
)

# The first Falcon: one head of keys and values, no biases, and one norm for attention and MLP.
GPTS["falcon"] = Family(
    name="Falcon",
    kind="decoder",
    architectures=("FalconForCausalLM",),
    keys=Keys(
        epsilon="layer_norm_epsilon",
        activation="activation",
        sizes={"d_mlp": "ffn_hidden_size"},
        kv_heads=1,
        must={
            "alibi": (False,),
            "bias": (False,),
            "multi_query": (True,),
            "new_decoder_architecture": (False,),
            "parallel_attn": (True,),
        },
    ),
    prefix="transformer.",
    positions="rotary",
    in_float32=("softmax",),
    parallel=True,
    attentions=causal(
        {
            "qkv": ("self_attention.query_key_value", "heads*d_head+2*kv_heads*d_head d_model"),
            "o": ("self_attention.dense", "d_model heads*d_head"),
            "norm": ("input_layernorm", "d_model with bias"),
            "in": ("mlp.dense_h_to_4h", "d_mlp d_model"),
            "out": ("mlp.dense_4h_to_h", "d_model d_mlp"),
        },
        PARALLEL,
        fused="by role",
        layers="h.{}.",
    ),
    embed="word_embeddings",
    final_norm="ln_f",
    gguf=GgufKeys(
        "falcon",
        numbers={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        must=GGUF_PLAIN | {"attention.head_count_kv": (1,)},
        unread=("tensor_data_layout",),
    ),
    tiny=TINY
    | TINY_TOKENS
    | {"hidden_size": 32, "ffn_hidden_size": 36, "max_position_embeddings": 40},
)

GPTS["gpt_bigcode"] = replace(
    GPTS["gpt2"],
    name="GPTBigCode",
    architectures=("GPTBigCodeForCausalLM",),
    keys=replace(
        GPT_KEYS,
        must={
            "scale_attn_weights": (True,),
            "multi_query": (True,),
            "add_cross_attention": (False,),
        },
    ),
    transposed=False,
    in_float32=("softmax",),
    plain_rounds=True,
    attentions=causal(
        {
            "norm": ("ln_1", "d_model with bias"),
            "qkv": ("attn.c_attn", "heads*d_head+2*kv_heads*d_head d_model with bias"),
            "o": ("attn.c_proj", "d_model heads*d_head with bias"),
            "norm_mlp": ("ln_2", "d_model with bias"),
            "in": ("mlp.c_fc", "d_mlp d_model with bias"),
            "out": ("mlp.c_proj", "d_model d_mlp with bias"),
        },
        fused="by role",
        layers="h.{}.",
    ),
    gguf=GgufKeys(
        "starcoder",
        numbers={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        must={"attention.causal": (True,), "attention.head_count_kv": (1,)},
    ),
    tiny={**GPTS["gpt2"].tiny, **TINY_TOKENS},
)

GPTS["phi"] = Family(
    name="Phi",
    kind="decoder",
    architectures=("PhiForCausalLM",),
    keys=Keys(epsilon="layer_norm_eps", must={"qk_layernorm": (False,)}),
    prefix="model.",
    positions="rotary",
    in_float32=("softmax",),
    parallel=True,
    attentions=causal(
        {
            "q": ("self_attn.q_proj", "heads*d_head d_model with bias"),
            "k": ("self_attn.k_proj", "kv_heads*d_head d_model with bias"),
            "v": ("self_attn.v_proj", "kv_heads*d_head d_model with bias"),
            "o": ("self_attn.dense", "d_model heads*d_head with bias"),
            "norm": ("input_layernorm", "d_model with bias"),
            "in": ("mlp.fc1", "d_mlp d_model with bias"),
            "out": ("mlp.fc2", "d_model d_mlp with bias"),
        },
        PARALLEL,
    ),
    embed="embed_tokens",
    final_norm="final_layernorm",
    head_bias="lm_head.bias",
    ignored=LLAMAS["llama"].ignored,
    gguf=GgufKeys(
        "phi2",
        numbers=GGUF_LAYER_NORM | {"attention.layer_norm_epsilon": "layer_norm_eps"},
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
    tiny=TINY_GROUPED | TINY_TOKENS,
)
