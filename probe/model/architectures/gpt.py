"""Decoders with LayerNorm and plain MLPs: GPT-2, GPT-Neo, GPT-J, GPT-NeoX, OPT, Falcon,
GPTBigCode and Phi.
"""

from dataclasses import replace

from probe.model.architectures.blocks import (
    NO_RESID_MID_HOOK,
    TINY,
    TINY_GROUPED,
    TINY_TOKENS,
    decoder_stack,
    recomputed_scores,
)
from probe.model.architectures.family import (
    ConfigKeys,
    Family,
)
from probe.model.architectures.llama import LLAMAS

GPTS: dict[str, Family] = {}

GPTS["gpt2"] = Family(
    name="GPT-2",
    kind="decoder",
    architectures=("GPT2LMHeadModel",),
    config_keys=ConfigKeys(
        epsilon="layer_norm_epsilon",
        activation="activation_function",
        sizes={"d_mlp": "n_inner"},
        certified_values={"scale_attn_weights": (True,), "add_cross_attention": (False,)},
        scores_by_layer="scale_attn_by_inverse_layer_idx",
    ),
    prefix="transformer.",
    transposed=True,
    adds_special_tokens=False,
    attentions=(
        decoder_stack(
            {
                "norm": ("ln_1", "d_model with bias"),
                "qkv": ("attn.c_attn", "d_model heads*d_head+2*kv_heads*d_head with bias"),
                "o": ("attn.c_proj", "heads*d_head d_model with bias"),
                "norm_mlp": ("ln_2", "d_model with bias"),
                "in": ("mlp.c_fc", "d_model d_mlp with bias"),
                "out": ("mlp.c_proj", "d_mlp d_model with bias"),
            },
            fused_qkv="by role",
            layer_prefix="h.{}.",
        ),
    ),
    embed="wte",
    position_table="wpe",
    final_norm="ln_f",
    ignored_weights=("*.attn.bias", "*.attn.masked_bias"),
    tiny_config={
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
    config_keys=ConfigKeys(
        epsilon="layer_norm_epsilon",
        activation="activation_function",
        window="window_size",
        layer_types="attention_layers",
    ),
    transposed=False,
    divides_scores=False,
    in_float32=("scores", "softmax"),
    attentions=(
        decoder_stack(
            {
                "norm": ("ln_1", "d_model with bias"),
                **{role: (f"attn.attention.{role}_proj", "heads*d_head d_model") for role in "qkv"},
                "o": ("attn.attention.out_proj", "d_model heads*d_head with bias"),
                "norm_mlp": ("ln_2", "d_model with bias"),
                "in": ("mlp.c_fc", "d_mlp d_model with bias"),
                "out": ("mlp.c_proj", "d_model d_mlp with bias"),
            },
            unreliable_hooks=recomputed_scores(),
            layer_prefix="h.{}.",
        ),
    ),
    ignored_weights=("*.attention.bias", "*.attention.masked_bias"),
    tiny_config=TINY
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
    config_keys=ConfigKeys(
        epsilon="layer_norm_epsilon",
        activation="activation_function",
        sizes={"d_mlp": "n_inner"},
        rotary_dims="rotary_dim",
    ),
    transposed=False,
    positions="rotary",
    rotary_adjacent_pairs=True,
    in_float32=("scores", "softmax"),
    adapter_rounds_differently=True,
    parallel_attn_mlp=True,
    attentions=(
        decoder_stack(
            {
                "norm": ("ln_1", "d_model with bias"),
                **{role: (f"attn.{role}_proj", "heads*d_head d_model") for role in "qkv"},
                "o": ("attn.out_proj", "d_model heads*d_head"),
                "in": ("mlp.fc_in", "d_mlp d_model with bias"),
                "out": ("mlp.fc_out", "d_model d_mlp with bias"),
            },
            unreliable_hooks=recomputed_scores() | NO_RESID_MID_HOOK,
            layer_prefix="h.{}.",
        ),
    ),
    position_table="",
    unembed_bias="lm_head.bias",
    tiny_config={**GPTS["gpt2"].tiny_config, **TINY_TOKENS, "n_embd": 32, "rotary_dim": 6},
)

GPTS["gpt_neox"] = Family(
    name="GPT-NeoX",
    kind="decoder",
    architectures=("GPTNeoXForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="layer_norm_eps",
        certified_values={
            "use_parallel_residual": (True,),
            "attention_bias": (True,),
            "tie_word_embeddings": (False,),
        },
    ),
    prefix="gpt_neox.",
    positions="rotary",
    adapter_rounds_differently=True,
    parallel_attn_mlp=True,
    attentions=(
        decoder_stack(
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
            unreliable_hooks=NO_RESID_MID_HOOK,
            fused_qkv="by head",
        ),
    ),
    embed="embed_in",
    final_norm="final_layer_norm",
    ignored_weights=("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"),
    tiny_config=TINY | {"hidden_size": 32, "max_position_embeddings": 40},
)

GPTS["opt"] = Family(
    name="OPT",
    kind="decoder",
    architectures=("OPTForCausalLM",),
    config_keys=ConfigKeys(
        epsilon=1e-5,
        activation="activation_function",
        sizes={"d_mlp": "ffn_dim"},
        certified_values={
            "do_layer_norm_before": (True,),
            "_remove_final_layer_norm": (False,),
            "enable_bias": (True,),
            "layer_norm_elementwise_affine": (True,),
        },
        equal_pairs=(("hidden_size", "word_embed_proj_dim"),),
        first_position_row=2,
        reserved_position_rows=2,
    ),
    prefix="model.decoder.",
    in_float32=("softmax",),
    attentions=(
        decoder_stack(
            {
                **{
                    role: (f"self_attn.{role}_proj", "heads*d_head d_model with bias")
                    for role in "qkv"
                },
                "o": ("self_attn.out_proj", "d_model heads*d_head with bias"),
                "norm": ("self_attn_layer_norm", "d_model with bias"),
                "in": ("fc1", "d_mlp d_model with bias"),
                "out": ("fc2", "d_model d_mlp with bias"),
                "norm_mlp": ("final_layer_norm", "d_model with bias"),
            },
            unreliable_hooks=recomputed_scores(),
        ),
    ),
    embed="embed_tokens",
    position_table="embed_positions",
    final_norm="final_layer_norm",
    tiny_config=TINY
    | TINY_TOKENS
    | {"hidden_size": 28, "ffn_dim": 36, "max_position_embeddings": 40},
)

# The first version of Falcon: one head of keys and values, no biases, and one norm for attention
# and MLP. Later versions are refused.
GPTS["falcon"] = Family(
    name="Falcon",
    kind="decoder",
    architectures=("FalconForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="layer_norm_epsilon",
        activation="activation",
        sizes={"d_mlp": "ffn_hidden_size"},
        fixed_kv_heads=1,
        certified_values={
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
    parallel_attn_mlp=True,
    attentions=(
        decoder_stack(
            {
                "qkv": ("self_attention.query_key_value", "heads*d_head+2*kv_heads*d_head d_model"),
                "o": ("self_attention.dense", "d_model heads*d_head"),
                "norm": ("input_layernorm", "d_model with bias"),
                "in": ("mlp.dense_h_to_4h", "d_mlp d_model"),
                "out": ("mlp.dense_4h_to_h", "d_model d_mlp"),
            },
            unreliable_hooks=NO_RESID_MID_HOOK,
            fused_qkv="by role",
            layer_prefix="h.{}.",
        ),
    ),
    embed="word_embeddings",
    final_norm="ln_f",
    tiny_config=TINY
    | TINY_TOKENS
    | {"hidden_size": 32, "ffn_hidden_size": 36, "max_position_embeddings": 40},
)

GPTS["gpt_bigcode"] = replace(
    GPTS["gpt2"],
    name="GPTBigCode",
    architectures=("GPTBigCodeForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="layer_norm_epsilon",
        activation="activation_function",
        sizes={"d_mlp": "n_inner"},
        certified_values={
            "scale_attn_weights": (True,),
            "multi_query": (True,),
            "add_cross_attention": (False,),
        },
    ),
    transposed=False,
    in_float32=("softmax",),
    adapter_rounds_differently=True,
    attentions=(
        decoder_stack(
            {
                "norm": ("ln_1", "d_model with bias"),
                "qkv": ("attn.c_attn", "heads*d_head+2*kv_heads*d_head d_model with bias"),
                "o": ("attn.c_proj", "d_model heads*d_head with bias"),
                "norm_mlp": ("ln_2", "d_model with bias"),
                "in": ("mlp.c_fc", "d_mlp d_model with bias"),
                "out": ("mlp.c_proj", "d_model d_mlp with bias"),
            },
            fused_qkv="by role",
            layer_prefix="h.{}.",
        ),
    ),
    tiny_config={**GPTS["gpt2"].tiny_config, **TINY_TOKENS},
)

GPTS["phi"] = Family(
    name="Phi",
    kind="decoder",
    architectures=("PhiForCausalLM",),
    config_keys=ConfigKeys(epsilon="layer_norm_eps", certified_values={"qk_layernorm": (False,)}),
    prefix="model.",
    positions="rotary",
    in_float32=("softmax",),
    parallel_attn_mlp=True,
    attentions=(
        decoder_stack(
            {
                "q": ("self_attn.q_proj", "heads*d_head d_model with bias"),
                "k": ("self_attn.k_proj", "kv_heads*d_head d_model with bias"),
                "v": ("self_attn.v_proj", "kv_heads*d_head d_model with bias"),
                "o": ("self_attn.dense", "d_model heads*d_head with bias"),
                "norm": ("input_layernorm", "d_model with bias"),
                "in": ("mlp.fc1", "d_mlp d_model with bias"),
                "out": ("mlp.fc2", "d_model d_mlp with bias"),
            },
            unreliable_hooks=NO_RESID_MID_HOOK,
        ),
    ),
    embed="embed_tokens",
    final_norm="final_layernorm",
    unembed_bias="lm_head.bias",
    ignored_weights=LLAMAS["llama"].ignored_weights,
    tiny_config=TINY_GROUPED | TINY_TOKENS,
)
