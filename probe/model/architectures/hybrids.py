"""Hybrids: decoders in which a convolution, a gated delta rule or a state space replaces
attention in some layers.
"""

import math
from dataclasses import replace
from typing import Any

from probe.model.architectures.blocks import (
    TINY_GROUPED,
    TINY_SCALES,
    TINY_TOKENS,
    decoder_stack,
    qk_norms,
)
from probe.model.architectures.family import (
    Attention,
    ConfigKeys,
    Family,
    Mixer,
    Parts,
    Replacement,
    without,
)
from probe.model.architectures.llama import ATTENTION_BIAS, LLAMA_PARTS, LLAMAS
from probe.model.architectures.qwen import QWENS
from probe.model.architectures.routed import (
    EVERY_LAYER_ROUTED,
    MIXTURES,
    ROUTED_PARTS,
    SHARED_EXPERT_PARTS,
    TINY_EXPERTS,
)

HYBRIDS: dict[str, Family] = {}

# Liquid AI's hybrid: gated short convolutions, and attention in a few layers.
SHORT_CONVOLUTION = Mixer(
    write_hook="conv.hook_out",
    parts={
        "in": ("conv.in_proj", "3*d_model d_model"),
        "kernel": ("conv.conv", "d_model 1 kernel"),
        "out": ("conv.out_proj", "d_model d_model"),
    },
    layer_type="conv",
    size_keys={"width": "conv_L_cache"},
)

HYBRIDS["lfm2"] = replace(
    LLAMAS["llama"],
    name="LFM2",
    architectures=("Lfm2ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="norm_eps", activation="silu", certified_values={"conv_bias": (False,)}
    ),
    attentions=(
        decoder_stack(
            {
                **{role: LLAMA_PARTS[role] for role in "qkv"},
                "o": ("self_attn.out_proj", "d_model heads*d_head"),
                "norm_q": ("self_attn.q_layernorm", "d_head"),
                "norm_k": ("self_attn.k_layernorm", "d_head"),
                "norm": ("operator_norm", "d_model"),
                "gate": ("feed_forward.w1", "d_mlp d_model"),
                "up": ("feed_forward.w3", "d_mlp d_model"),
                "out": ("feed_forward.w2", "d_model d_mlp"),
                "norm_mlp": ("ffn_norm", "d_model"),
            },
            mixer=SHORT_CONVOLUTION,
        ),
    ),
    final_norm="embedding_norm",
    tiny_config=TINY_GROUPED
    | TINY_TOKENS
    | {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "intermediate_size": 52,
        "block_multiple_of": 9,
        "head_dim": 6,
    },
)

# Qwen's hybrids: a gated delta rule, and in every fourth layer attention with gated z.
DELTA_RULE = Mixer(
    write_hook="linear_attn.hook_out",
    parts={
        "in_gate": ("linear_attn.in_proj_qkvz", "channels+mixer_heads*d_value d_model"),
        "beta_decay": ("linear_attn.in_proj_ba", "2*mixer_heads d_model"),
        "kernel": ("linear_attn.conv1d", "channels 1 kernel"),
        "decay_bias": ("linear_attn.dt_bias", "mixer_heads without .weight"),
        "log_rate": ("linear_attn.A_log", "mixer_heads without .weight"),
        "norm": ("linear_attn.norm", "d_value"),
        "out": ("linear_attn.out_proj", "d_model mixer_heads*d_value"),
    },
    layer_type="linear_attention",
    size_keys={
        "width": "linear_conv_kernel_dim",
        "heads": "linear_num_value_heads",
        "key_heads": "linear_num_key_heads",
        "d_key": "linear_key_head_dim",
        "d_value": "linear_value_head_dim",
    },
)

# The tensor, and the hook, of queries also contain the gates of z.
QUERIES_AND_GATES = {"q": ("self_attn.q_proj", "2*heads*d_head d_model")}
QUERIES_ALONE = {
    "q": Replacement(hook="attn.hook_q", traced_instead="without the gates stored next to it")
}


def _with_delta_rule(parts: Parts, mixer: Mixer) -> Attention:
    """The stack of one of Qwen's hybrids.

    parts: its weights, except queries with gates and the norms of queries and keys
    """
    return decoder_stack(
        dict(parts) | QUERIES_AND_GATES | qk_norms("d_head", "d_head"),
        hooks={"q": "attn.hook_q"},
        unreliable_hooks=QUERIES_ALONE,
        mixer=mixer,
    )


TINY_DELTA_RULE: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 8,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    # With a smaller epsilon, the norm of a nearly empty matrix would magnify rounding errors.
    "rms_norm_eps": 0.02,
}

HYBRIDS["qwen3_next"] = replace(
    MIXTURES["qwen3_moe"],
    name="Qwen3-Next",
    architectures=("Qwen3NextForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        sizes={"d_mlp": "moe_intermediate_size", "d_shared": "shared_expert_intermediate_size"},
        certified_values=EVERY_LAYER_ROUTED
        | {
            "use_sliding_window": (False,),
            "attention_bias": (False,),
            "hidden_act": ("silu",),
        },
    ),
    routed=True,
    norm_adds_one=True,
    gated_attention=True,
    in_float32=("norm", "gain", "softmax", "router"),
    attentions=(_with_delta_rule(ROUTED_PARTS | SHARED_EXPERT_PARTS, DELTA_RULE),),
    ignored_weights=(*MIXTURES["qwen3_moe"].ignored_weights, "mtp.*"),
    tiny_config=TINY_GROUPED
    | TINY_EXPERTS
    | TINY_DELTA_RULE
    | {"shared_expert_intermediate_size": 12},
)

# The same with one tensor for each of its products.
DELTA_RULE_SEPARATE = replace(
    DELTA_RULE,
    parts=without(DELTA_RULE.parts, "in_gate", "beta_decay")
    | {
        "in": ("linear_attn.in_proj_qkv", "channels d_model"),
        "gate": ("linear_attn.in_proj_z", "mixer_heads*d_value d_model"),
        "beta": ("linear_attn.in_proj_b", "mixer_heads d_model"),
        "decay": ("linear_attn.in_proj_a", "mixer_heads d_model"),
    },
)

QWEN3_5_CERTIFIED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "hidden_act": ("silu",),
    "attn_output_gate": (True,),
}

HYBRIDS["qwen3_5_text"] = replace(
    QWENS["qwen3"],
    name="Qwen3.5",
    architectures=("Qwen3_5ForCausalLM",),
    base_classes=("Qwen3_5TextModel",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values=QWEN3_5_CERTIFIED,
    ),
    norm_adds_one=True,
    gated_attention=True,
    in_float32=("norm", "gain", "softmax"),
    attentions=(_with_delta_rule(LLAMA_PARTS, DELTA_RULE_SEPARATE),),
    ignored_weights=HYBRIDS["qwen3_next"].ignored_weights,
    tiny_config=TINY_GROUPED | TINY_DELTA_RULE,
)

HYBRIDS["qwen3_5_moe_text"] = replace(
    HYBRIDS["qwen3_next"],
    name="Qwen3.5-MoE",
    architectures=("Qwen3_5MoeForCausalLM",),
    base_classes=("Qwen3_5MoeTextModel",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        sizes={"d_mlp": "moe_intermediate_size", "d_shared": "shared_expert_intermediate_size"},
        certified_values=QWEN3_5_CERTIFIED,
    ),
    routed=True,
    attentions=(_with_delta_rule(ROUTED_PARTS | SHARED_EXPERT_PARTS, DELTA_RULE_SEPARATE),),
)

# IBM's hybrids: a state space of the second Mamba in most layers.
STATE_SPACE = Mixer(
    write_hook="mixer.hook_out",
    parts={
        "in": ("mamba.in_proj", "channels+mixer_heads*d_value+mixer_heads d_model"),
        "kernel": ("mamba.conv1d", "channels 1 kernel with bias"),
        "step_bias": ("mamba.dt_bias", "mixer_heads without .weight"),
        "log_rate": ("mamba.A_log", "mixer_heads without .weight"),
        "skip": ("mamba.D", "mixer_heads without .weight"),
        "norm": ("mamba.norm", "mixer_heads*d_value"),
        "out": ("mamba.out_proj", "d_model mixer_heads*d_value"),
    },
    layer_type="linear_attention",
    size_keys={
        "width": "mamba_d_conv",
        "heads": "mamba_n_heads",
        "key_heads": "mamba_n_groups",
        "d_key": "mamba_d_state",
        "d_value": "mamba_d_head",
    },
)

MAMBA_CERTIFIED: dict[str, tuple[Any, ...]] = {
    "mamba_conv_bias": (True,),
    "mamba_proj_bias": (False,),
    "hidden_act": ("silu",),
    "time_step_limit": ((0.0, math.inf),),  # no limit
}

TINY_STATE_SPACE: dict[str, Any] = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_expand": 3,
    "mamba_n_groups": 2,
    "mamba_d_state": 5,
    "mamba_d_conv": 3,
    "mamba_chunk_size": 4,
}

HYBRIDS["bamba"] = replace(
    LLAMAS["llama"],
    name="Bamba",
    architectures=("BambaForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values={"mlp_bias": (False,)} | MAMBA_CERTIFIED,
        biases=ATTENTION_BIAS,
    ),
    attentions=(
        decoder_stack(
            LLAMA_PARTS
            | {
                "gate": ("feed_forward.gate_proj", "d_mlp d_model"),
                "up": ("feed_forward.up_proj", "d_mlp d_model"),
                "out": ("feed_forward.down_proj", "d_model d_mlp"),
                "norm_mlp": ("pre_ff_layernorm", "d_model"),
            },
            mixer=STATE_SPACE,
        ),
    ),
    final_norm="final_layernorm",
    tiny_config=TINY_GROUPED | TINY_TOKENS | TINY_STATE_SPACE | {"attn_layer_indices": [1]},
)

# Granite 4 without experts. Models with experts are not supported yet.
HYBRIDS["granitemoehybrid"] = replace(
    HYBRIDS["bamba"],
    name="Granite 4",
    architectures=("GraniteMoeHybridForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        sizes={"d_mlp": "shared_intermediate_size"},
        certified_values=MAMBA_CERTIFIED | {"normalization_function": ("rmsnorm",)},
        biases=ATTENTION_BIAS,
        scales=LLAMAS["granite"].config_keys.scales,
        rotary_if=("position_embedding_type", "rope"),
    ),
    attentions=(
        decoder_stack(
            without(LLAMA_PARTS, "gate", "up", "out")
            | {
                "gate_up": ("shared_mlp.input_linear", "2*d_mlp d_model"),
                "out": ("shared_mlp.output_linear", "d_model d_mlp"),
            },
            mixer=STATE_SPACE,
        ),
    ),
    final_norm="norm",
    tiny_config=TINY_GROUPED
    | TINY_TOKENS
    | TINY_STATE_SPACE
    | TINY_SCALES
    | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "shared_intermediate_size": 20,
        "num_local_experts": 0,
        "head_dim": 6,
        "position_embedding_type": "rope",
    },
)
