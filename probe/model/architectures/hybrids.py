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
    causal,
    norms,
)
from probe.model.architectures.family import (
    Attention,
    Family,
    Keys,
    Mixer,
    Replacement,
    Routed,
    without,
)
from probe.model.architectures.gguf_keys import (
    GGUF_ROTARY,
    KIN_GGUF,
)
from probe.model.architectures.llama import LLAMAS, PARTS
from probe.model.architectures.qwen import QWENS
from probe.model.architectures.routed import (
    EVERY_LAYER_ROUTED,
    MIXTURES,
    ROUTED,
    SHARED,
    SHARED_EXPERT,
    STACKED,
    TINY_EXPERTS,
)

HYBRIDS: dict[str, Family] = {}

# Liquid AI's hybrid: gated short convolutions, and attention in a few layers.
HYBRIDS["lfm2"] = replace(
    LLAMAS["llama"],
    name="LFM2",
    architectures=("Lfm2ForCausalLM",),
    keys=Keys(epsilon="norm_eps", activation="silu", must={"conv_bias": (False,)}),
    attentions=(
        replace(
            causal(
                {
                    **{role: PARTS[role] for role in "qkv"},
                    "o": ("self_attn.out_proj", "d_model heads*d_head"),
                    "norm_q": ("self_attn.q_layernorm", "d_head"),
                    "norm_k": ("self_attn.k_layernorm", "d_head"),
                    "norm": ("operator_norm", "d_model"),
                    "gate": ("feed_forward.w1", "d_mlp d_model"),
                    "up": ("feed_forward.w3", "d_mlp d_model"),
                    "out": ("feed_forward.w2", "d_model d_mlp"),
                    "norm_mlp": ("ffn_norm", "d_model"),
                }
            )[0],
            mixer=Mixer(
                "short convolution",
                "conv.hook_out",
                {
                    "in": ("conv.in_proj", "3*d_model d_model"),
                    "kernel": ("conv.conv", "d_model 1 kernel"),
                    "out": ("conv.out_proj", "d_model d_model"),
                },
                kind="conv",
                sizes={"width": "conv_L_cache"},
            ),
        ),
    ),
    final_norm="embedding_norm",
    gguf=replace(
        KIN_GGUF,
        architecture="lfm2",
        numbers=GGUF_ROTARY
        | {"attention.layer_norm_rms_epsilon": "norm_eps", "shortconv.l_cache": "conv_L_cache"},
        layers={"attention.head_count_kv": ("layer_types", "full_attention", "conv")},
        settings={"block_auto_adjust_ff_dim": False},  # a file has the width that comes of it
    ),
    tiny=TINY_GROUPED
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
    "gated delta rule",
    "linear_attn.hook_out",
    {
        "in_gate": ("linear_attn.in_proj_qkvz", "channels+mixer_heads*d_value d_model"),
        "beta_decay": ("linear_attn.in_proj_ba", "2*mixer_heads d_model"),
        "kernel": ("linear_attn.conv1d", "channels 1 kernel"),
        "decay_bias": ("linear_attn.dt_bias", "mixer_heads without .weight"),
        "log_rate": ("linear_attn.A_log", "mixer_heads without .weight"),
        "norm": ("linear_attn.norm", "d_value"),
        "out": ("linear_attn.out_proj", "d_model mixer_heads*d_value"),
    },
    kind="linear_attention",
    sizes={
        "width": "linear_conv_kernel_dim",
        "heads": "linear_num_value_heads",
        "key_heads": "linear_num_key_heads",
        "d_key": "linear_key_head_dim",
        "d_value": "linear_value_head_dim",
    },
)

GATED = {"q": ("self_attn.q_proj", "2*heads*d_head d_model")}

GATES_APART = {"q": Replacement("attn.hook_q", "without the gates stored next to it")}


def _with_delta_rule(parts: dict[str, tuple[str, str]], mixer: Mixer) -> tuple[Attention]:
    """The stack of one of Qwen's hybrids.

    parts: of its MLPs and norms
    """
    heads = parts | GATED | norms("d_head", "d_head")
    (attention,) = causal(heads, GATES_APART, read={"q": "attn.hook_q"})
    return (replace(attention, mixer=mixer),)


TINY_DELTA_RULE: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 8,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "rms_norm_eps": 0.02,  # the norm of a nearly empty matrix would make its rounding large
}

HYBRIDS["qwen3_next"] = replace(
    MIXTURES["qwen3_moe"],
    name="Qwen3-Next",
    architectures=("Qwen3NextForCausalLM",),
    keys=Keys(
        epsilon="rms_norm_eps",
        sizes={"d_mlp": "moe_intermediate_size"},
        must=EVERY_LAYER_ROUTED
        | {
            "use_sliding_window": (False,),
            "attention_bias": (False,),
            "hidden_act": ("silu",),
        },
    ),
    routed=Routed(
        normed="norm_topk_prob",
        shared=SHARED,
        stacked=STACKED,
    ),
    offset=True,
    gated_heads=True,
    in_float32=("norm", "gain", "softmax", "router"),
    attentions=_with_delta_rule(ROUTED | SHARED_EXPERT, DELTA_RULE),
    ignored=(*MIXTURES["qwen3_moe"].ignored, "mtp.*"),
    gguf=None,
    tiny=TINY_GROUPED | TINY_EXPERTS | TINY_DELTA_RULE | {"shared_expert_intermediate_size": 12},
)

# The same model with the products of the delta rule in separate tensors.
DELTA_RULE_APART = replace(
    DELTA_RULE,
    parts=without(DELTA_RULE.parts, "in_gate", "beta_decay")
    | {
        "in": ("linear_attn.in_proj_qkv", "channels d_model"),
        "gate": ("linear_attn.in_proj_z", "mixer_heads*d_value d_model"),
        "beta": ("linear_attn.in_proj_b", "mixer_heads d_model"),
        "decay": ("linear_attn.in_proj_a", "mixer_heads d_model"),
    },
)

HYBRIDS["qwen3_5_text"] = replace(
    QWENS["qwen3"],
    name="Qwen3.5",
    architectures=("Qwen3_5ForCausalLM",),
    base="Qwen3_5TextModel",
    keys=Keys(
        epsilon="rms_norm_eps",
        must={"attention_bias": (False,), "hidden_act": ("silu",), "attn_output_gate": (True,)},
    ),
    offset=True,
    gated_heads=True,
    in_float32=("norm", "gain", "softmax"),
    attentions=_with_delta_rule(PARTS, DELTA_RULE_APART),
    ignored=HYBRIDS["qwen3_next"].ignored,
    gguf=None,
    tiny=TINY_GROUPED | TINY_DELTA_RULE,
)

HYBRIDS["qwen3_5_moe_text"] = replace(
    HYBRIDS["qwen3_next"],
    name="Qwen3.5-MoE",
    architectures=("Qwen3_5MoeForCausalLM",),
    base="Qwen3_5MoeTextModel",
    keys=replace(HYBRIDS["qwen3_5_text"].keys, sizes=HYBRIDS["qwen3_next"].keys.sizes),
    routed=Routed(shared=SHARED, stacked=STACKED),
    attentions=_with_delta_rule(ROUTED | SHARED_EXPERT, DELTA_RULE_APART),
)

# IBM's hybrids: a state space of the second Mamba in most layers.
STATE_SPACE = Mixer(
    "state space",
    "mixer.hook_out",
    {
        "in": ("mamba.in_proj", "channels+mixer_heads*d_value+mixer_heads d_model"),
        "kernel": ("mamba.conv1d", "channels 1 kernel with bias"),
        "step_bias": ("mamba.dt_bias", "mixer_heads without .weight"),
        "log_rate": ("mamba.A_log", "mixer_heads without .weight"),
        "skip": ("mamba.D", "mixer_heads without .weight"),
        "norm": ("mamba.norm", "mixer_heads*d_value"),
        "out": ("mamba.out_proj", "d_model mixer_heads*d_value"),
    },
    kind="linear_attention",
    sizes={
        "width": "mamba_d_conv",
        "heads": "mamba_n_heads",
        "key_heads": "mamba_n_groups",
        "d_key": "mamba_d_state",
        "d_value": "mamba_d_head",
    },
)

NO_LIMIT = (0.0, math.inf)  # of the size of a step

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
    keys=replace(
        LLAMAS["llama"].keys,
        must={
            "mlp_bias": (False,),
            "mamba_conv_bias": (True,),
            "mamba_proj_bias": (False,),
            "hidden_act": ("silu",),
            "time_step_limit": (NO_LIMIT,),
        },
    ),
    attentions=(
        replace(
            causal(
                {role: PARTS[role] for role in ("q", "k", "v", "o", "norm")}
                | {
                    "gate": ("feed_forward.gate_proj", "d_mlp d_model"),
                    "up": ("feed_forward.up_proj", "d_mlp d_model"),
                    "out": ("feed_forward.down_proj", "d_model d_mlp"),
                    "norm_mlp": ("pre_ff_layernorm", "d_model"),
                }
            )[0],
            mixer=STATE_SPACE,
        ),
    ),
    final_norm="final_layernorm",
    gguf=None,
    tiny=TINY_GROUPED | TINY_TOKENS | TINY_STATE_SPACE | {"attn_layer_indices": [1]},
)

# Granite 4 without experts. Models with experts are not supported yet.
HYBRIDS["granitemoehybrid"] = replace(
    HYBRIDS["bamba"],
    name="Granite 4",
    architectures=("GraniteMoeHybridForCausalLM",),
    keys=replace(
        HYBRIDS["bamba"].keys,
        sizes={"d_mlp": "shared_intermediate_size"},
        must=without(HYBRIDS["bamba"].keys.must, "mlp_bias")
        | {"normalization_function": ("rmsnorm",)},
        scales=LLAMAS["granite"].keys.scales,
        rotated_by=("position_embedding_type", "rope"),
    ),
    attentions=(
        replace(
            causal(
                without(PARTS, "gate", "up", "out")
                | {
                    "gate_up": ("shared_mlp.input_linear", "2*d_mlp d_model"),
                    "out": ("shared_mlp.output_linear", "d_model d_mlp"),
                }
            )[0],
            mixer=STATE_SPACE,
        ),
    ),
    final_norm="norm",
    tiny=TINY_GROUPED
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
