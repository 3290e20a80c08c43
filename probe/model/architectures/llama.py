"""Llama and similar models: decoders with RMSNorm, gated MLPs and rotary positions.

An entry states its differences from Llama's. `config_keys` that differ are written out in full,
because a setting that the config class does not have must not be inherited. Weights that differ are
Llama's (`LLAMA_PARTS`) `without` some roles, with others, and `with_bias`.
"""

from dataclasses import replace

from probe.model.architectures.blocks import (
    NO_RESID_MID_HOOK,
    TINY_GROUPED,
    TINY_SCALES,
    TINY_TOKENS,
    TINY_YARN,
    decoder_stack,
    norms_after_writes,
)
from probe.model.architectures.family import (
    ConfigKeys,
    Family,
    with_bias,
    without,
)

LLAMAS: dict[str, Family] = {}

LLAMA_PARTS = {
    "q": ("self_attn.q_proj", "heads*d_head d_model"),
    "k": ("self_attn.k_proj", "kv_heads*d_head d_model"),
    "v": ("self_attn.v_proj", "kv_heads*d_head d_model"),
    "o": ("self_attn.o_proj", "d_model heads*d_head"),
    "norm": ("input_layernorm", "d_model"),
    "gate": ("mlp.gate_proj", "d_mlp d_model"),
    "up": ("mlp.up_proj", "d_mlp d_model"),
    "out": ("mlp.down_proj", "d_model d_mlp"),
    "norm_mlp": ("post_attention_layernorm", "d_model"),
}

# The same with an MLP that is not gated.
UNGATED_PARTS = without(LLAMA_PARTS, "gate", "up") | {"in": ("mlp.up_proj", "d_mlp d_model")}

# One setting, "attention_bias", controls the biases of q, k, v and o.
ATTENTION_BIAS = {"attention_bias": "qkvo"}


LLAMAS["llama"] = Family(
    name="Llama",
    kind="decoder",
    architectures=("LlamaForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values={"mlp_bias": (False,)},
        biases=ATTENTION_BIAS,
    ),
    prefix="model.",
    norm="RMSNorm",
    gated_mlp=True,
    positions="rotary",
    in_float32=("norm", "softmax"),
    attentions=(decoder_stack(LLAMA_PARTS),),
    embed="embed_tokens",
    final_norm="norm",
    d_head_is_independent=True,
    ignored_weights=("*.rotary_emb.inv_freq",),
    tiny_config=TINY_GROUPED | {"head_dim": 6},
)

LLAMAS["mistral"] = replace(
    LLAMAS["llama"],
    name="Mistral",
    architectures=("MistralForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values={"layer_types": (None,)},
        window="sliding_window",
    ),
    tiny_config={**LLAMAS["llama"].tiny_config, "sliding_window": 5},
)

LLAMAS["ministral3"] = replace(
    LLAMAS["mistral"],
    name="Ministral 3",
    architectures=("Ministral3ForCausalLM",),
    tiny_config=TINY_GROUPED
    | TINY_TOKENS
    | {
        "head_dim": 6,
        "max_position_embeddings": 80,
        "rope_parameters": TINY_YARN
        | {"original_max_position_embeddings": 40, "llama_4_scaling_beta": 0.5},
    },
)

LLAMAS["phi3"] = replace(
    LLAMAS["llama"],
    name="Phi-3",
    architectures=("Phi3ForCausalLM",),
    config_keys=ConfigKeys(epsilon="rms_norm_eps", window="sliding_window"),
    in_float32=("norm",),
    adapter_rounds_differently=True,
    d_head_is_independent=False,
    attentions=(
        decoder_stack(
            without(LLAMA_PARTS, "q", "k", "v", "gate", "up")
            | {
                "qkv": ("self_attn.qkv_proj", "heads*d_head+2*kv_heads*d_head d_model"),
                "gate_up": ("mlp.gate_up_proj", "2*d_mlp d_model"),
            },
            fused_qkv="by role",
        ),
    ),
    tiny_config=TINY_GROUPED | TINY_TOKENS,
)

LLAMAS["smollm3"] = replace(
    LLAMAS["llama"],
    name="SmolLM3",
    architectures=("SmolLM3ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values={"mlp_bias": (False,), "use_sliding_window": (False,)},
        rotary_layers="no_rope_layers",
        biases=ATTENTION_BIAS,
    ),
    d_head_is_independent=False,
    tiny_config=TINY_GROUPED | TINY_TOKENS | {"no_rope_layers": [1, 0]},
)

LLAMAS["granite"] = replace(
    LLAMAS["llama"],
    name="Granite",
    architectures=("GraniteForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values={"mlp_bias": (False,)},
        biases=ATTENTION_BIAS,
        scales={
            "embed": "embedding_multiplier",
            "write": "residual_multiplier",
            "scores": "attention_multiplier",
            "logits": "logits_scaling",
        },
    ),
    tiny_config=TINY_GROUPED | TINY_TOKENS | TINY_SCALES,
)

LLAMAS["stablelm"] = replace(
    LLAMAS["llama"],
    name="StableLM",
    architectures=("StableLmForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="layer_norm_eps",
        certified_values={"qk_layernorm": (False,), "use_parallel_residual": (False,)},
        biases={"use_qkv_bias": "qkv"},
    ),
    norm="LayerNorm",
    in_float32=("softmax",),
    attentions=(decoder_stack(with_bias(LLAMA_PARTS, "norm", "norm_mlp")),),
    d_head_is_independent=False,
    tiny_config=TINY_GROUPED | TINY_TOKENS,
)

STARCODER2_PARTS = without(LLAMA_PARTS, "gate", "up") | {
    "in": ("mlp.c_fc", "d_mlp d_model"),
    "out": ("mlp.c_proj", "d_model d_mlp"),
}

LLAMAS["starcoder2"] = replace(
    LLAMAS["llama"],
    name="StarCoder2",
    architectures=("Starcoder2ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="norm_epsilon",
        certified_values={"use_bias": (True,)},
        window="sliding_window",
    ),
    norm="LayerNorm",
    gated_mlp=False,
    in_float32=("softmax",),
    attentions=(decoder_stack(with_bias(STARCODER2_PARTS, *STARCODER2_PARTS)),),
    tiny_config=TINY_GROUPED | TINY_TOKENS | {"sliding_window": 5},
)

LLAMAS["arcee"] = replace(
    LLAMAS["llama"],
    name="Arcee",
    architectures=("ArceeForCausalLM",),
    gated_mlp=False,
    attentions=(decoder_stack(UNGATED_PARTS),),
)

LLAMAS["seed_oss"] = replace(
    LLAMAS["llama"],
    name="Seed-OSS",
    architectures=("SeedOssForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values={"mlp_bias": (False,)},
        biases={"attention_bias": "qkv", "attention_out_bias": "o"},
    ),
)

LLAMAS["ernie4_5"] = replace(
    LLAMAS["llama"],
    name="ERNIE 4.5",
    architectures=("Ernie4_5ForCausalLM",),
    config_keys=ConfigKeys(epsilon="rms_norm_eps", certified_values={"use_bias": (False,)}),
    rotary_adjacent_pairs=True,
    in_float32=("norm", "rotation", "softmax"),
    tiny_config={**LLAMAS["llama"].tiny_config, **TINY_TOKENS},
)

LLAMAS["helium"] = replace(
    LLAMAS["llama"],
    name="Helium",
    architectures=("HeliumForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values={"mlp_bias": (False,)},
        biases={"attention_bias": "qkv"},
    ),
    rotary_adjacent_pairs=True,
    # Only the adapter rounds the queries and keys that are rotated.
    in_float32=("norm", "gain", "rotated", "softmax"),
    adapter_rounds_differently=True,
    d_head_is_independent=False,
    tiny_config=TINY_GROUPED | {"head_dim": 8},
    # TransformerLens has no adapter for Helium, whose modules and rotary pairs are ERNIE 4.5's.
    adapter="Ernie4_5ForCausalLM",
)

NEMOTRON_PARTS = with_bias(UNGATED_PARTS, "norm", "norm_mlp")

LLAMAS["nemotron"] = replace(
    LLAMAS["llama"],
    name="Nemotron",
    architectures=("NemotronForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="norm_eps",
        certified_values={"mlp_bias": (False,)},
        biases=ATTENTION_BIAS,
    ),
    norm="LayerNorm",
    norm_adds_one=True,
    gated_mlp=False,
    in_float32=("softmax",),
    attentions=(decoder_stack(NEMOTRON_PARTS),),
    tiny_config=TINY_GROUPED | TINY_TOKENS,
)

LLAMAS["jais2"] = replace(
    LLAMAS["nemotron"],
    name="Jais 2",
    architectures=("Jais2ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="layer_norm_eps",
        certified_values={"mlp_bias": (True,)},
        biases=ATTENTION_BIAS,
    ),
    norm_adds_one=False,
    attentions=(decoder_stack(with_bias(NEMOTRON_PARTS, "in", "out")),),
)

GLM_PARTS = without(LLAMA_PARTS, "gate", "up") | {
    "gate_up": ("mlp.gate_up_proj", "2*d_mlp d_model"),
}

LLAMAS["glm"] = replace(
    LLAMAS["llama"],
    name="GLM",
    architectures=("GlmForCausalLM",),
    config_keys=ConfigKeys(epsilon="rms_norm_eps", biases={"attention_bias": "qkv"}),
    rotary_adjacent_pairs=True,
    # Only the adapter rounds the queries and keys that are rotated.
    in_float32=("norm", "rotated", "softmax"),
    adapter_rounds_differently=True,
    attentions=(decoder_stack(GLM_PARTS),),
    tiny_config=TINY_GROUPED | TINY_TOKENS | {"head_dim": 12},
)

LLAMAS["glm4"] = replace(
    LLAMAS["glm"],
    name="GLM-4",
    architectures=("Glm4ForCausalLM",),
    norm_after_write=True,
    attentions=(
        decoder_stack(
            GLM_PARTS
            | {
                "norm_out": ("post_self_attn_layernorm", "d_model"),
                "norm_mlp_out": ("post_mlp_layernorm", "d_model"),
            },
            norms_writes=True,
        ),
    ),
)


LLAMAS["olmo2"] = replace(
    LLAMAS["llama"],
    name="OLMo 2",
    architectures=("Olmo2ForCausalLM",),
    config_keys=ConfigKeys(epsilon="rms_norm_eps", biases=ATTENTION_BIAS),
    norm_first=False,
    norm_after_write=True,
    d_head_is_independent=False,
    attentions=(norms_after_writes(LLAMA_PARTS, "heads*d_head", "kv_heads*d_head"),),
    tiny_config=TINY_GROUPED | TINY_TOKENS,
)

LLAMAS["olmo3"] = replace(
    LLAMAS["olmo2"],
    name="OLMo 3",
    architectures=("Olmo3ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        biases=ATTENTION_BIAS,
        window="sliding_window",
        layer_types="layer_types",
    ),
    tiny_config=TINY_GROUPED
    | TINY_TOKENS
    | {
        "sliding_window": 5,
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": TINY_YARN,
        },
    },
)

LLAMAS["exaone4"] = replace(
    LLAMAS["olmo2"],
    name="EXAONE 4",
    architectures=("Exaone4ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        window="sliding_window",
        layer_types="layer_types",
        rotates_local_layers_only=True,
    ),
    attentions=(norms_after_writes(LLAMA_PARTS, "d_head", "d_head"),),
    tiny_config=TINY_GROUPED
    | TINY_TOKENS
    | {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
)

LLAMAS["cohere2"] = replace(
    LLAMAS["llama"],
    name="Cohere 2",
    architectures=("Cohere2ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="layer_norm_eps",
        biases=ATTENTION_BIAS,
        window="sliding_window",
        layer_types="layer_types",
        scales={"unembed": "logit_scale"},
        rotates_local_layers_only=True,
    ),
    norm="LayerNorm",
    outer_biases=False,
    parallel_attn_mlp=True,
    rotary_adjacent_pairs=True,
    in_float32=("rotated", "softmax"),
    adapter_rounds_differently=True,
    d_head_is_independent=False,
    attentions=(
        decoder_stack(without(LLAMA_PARTS, "norm_mlp"), unreliable_hooks=NO_RESID_MID_HOOK),
    ),
    tiny_config=TINY_GROUPED
    | TINY_TOKENS
    | {
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "logit_scale": 0.3,
    },
)
