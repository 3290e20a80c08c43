"""Decoders like Llama (`llama.py`) whose MLP is a mixture of experts."""

from dataclasses import replace
from typing import Any

from probe.model.architectures.blocks import (
    HOOKS_WITHOUT_FIRST_NORM,
    SANDWICH_NORMS,
    TINY_GROUPED,
    TINY_TOKENS,
    TINY_YARN,
    decoder_stack,
    qk_norms,
)
from probe.model.architectures.family import ConfigKeys, Family, Routed, without
from probe.model.architectures.gguf_keys import (
    GGUF_LLAMA_NUMBERS,
    GGUF_NO_EFFECT_BUT_EXPERTS,
    LLAMA_LIKE_GGUF,
    gguf_experts,
)
from probe.model.architectures.llama import ATTENTION_BIAS, LLAMA_GGUF, LLAMA_PARTS, LLAMAS
from probe.model.architectures.qwen import QWENS

MIXTURES: dict[str, Family] = {}

# Files store experts one by one; Hugging Face's classes stack them.
STACKED_EXPERTS = {
    "mlp.experts.gate_up_proj": ("expert_gate", "expert_up"),
    "mlp.experts.down_proj": ("expert_out",),
}

ROUTED_PARTS = without(LLAMA_PARTS, "gate", "up", "out") | {
    "router": ("mlp.gate", "experts d_model"),
    "expert_gate": ("mlp.experts.{}.gate_proj", "d_mlp d_model"),
    "expert_up": ("mlp.experts.{}.up_proj", "d_mlp d_model"),
    "expert_out": ("mlp.experts.{}.down_proj", "d_model d_mlp"),
}

SHARED_EXPERT_PARTS = {
    "shared_router": ("mlp.shared_expert_gate", "1 d_model"),
    "shared_gate": ("mlp.shared_expert.gate_proj", "d_shared d_model"),
    "shared_up": ("mlp.shared_expert.up_proj", "d_shared d_model"),
    "shared_out": ("mlp.shared_expert.down_proj", "d_model d_shared"),
}

EVERY_LAYER_ROUTED: dict[str, tuple[Any, ...]] = {
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
}

SHARED_WIDTH_KEY = "shared_expert_intermediate_size"

TINY_EXPERTS: dict[str, Any] = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}

MIXTURES["mixtral"] = replace(
    LLAMAS["mistral"],
    name="Mixtral",
    architectures=("MixtralForCausalLM",),
    routed=Routed(
        stacked_experts=STACKED_EXPERTS, renamed_parts={"mlp.gate": "block_sparse_moe.gate"}
    ),
    in_float32=("norm", "softmax", "router"),
    attentions=(
        decoder_stack(
            ROUTED_PARTS
            | {
                "router": ("block_sparse_moe.gate", "experts d_model"),
                "expert_gate": ("block_sparse_moe.experts.{}.w1", "d_mlp d_model"),
                "expert_up": ("block_sparse_moe.experts.{}.w3", "d_mlp d_model"),
                "expert_out": ("block_sparse_moe.experts.{}.w2", "d_model d_mlp"),
            }
        ),
    ),
    gguf=replace(
        LLAMA_GGUF,
        recognised_by="expert_count",
        number_keys=GGUF_LLAMA_NUMBERS | gguf_experts("num_local_experts"),
        certified_values=GGUF_NO_EFFECT_BUT_EXPERTS,
    ),
    tiny_config=TINY_GROUPED | TINY_TOKENS | {"intermediate_size": 20, "num_local_experts": 3},
)

MIXTURES["qwen2_moe"] = replace(
    QWENS["qwen2"],
    name="Qwen2-MoE",
    architectures=("Qwen2MoeForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        sizes={"d_mlp": "moe_intermediate_size"},
        certified_values=EVERY_LAYER_ROUTED,
        biases={"qkv_bias": "qkv"},
        window="sliding_window",
        layer_types="layer_types",
    ),
    routed=Routed(
        shared_width_key=SHARED_WIDTH_KEY,
        stacked_experts=STACKED_EXPERTS,
    ),
    in_float32=MIXTURES["mixtral"].in_float32,
    d_head_is_independent=False,
    attentions=(decoder_stack(ROUTED_PARTS | SHARED_EXPERT_PARTS),),
    gguf=replace(
        LLAMA_LIKE_GGUF,
        architecture="qwen2moe",
        number_keys=GGUF_LLAMA_NUMBERS
        | gguf_experts("num_experts")
        | {
            "feed_forward_length": "intermediate_size",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        certified_values=GGUF_NO_EFFECT_BUT_EXPERTS,
    ),
    tiny_config=TINY_GROUPED | TINY_EXPERTS | {"shared_expert_intermediate_size": 12},
)

MIXTURES["qwen3_moe"] = replace(
    QWENS["qwen3"],
    name="Qwen3-MoE",
    architectures=("Qwen3MoeForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        sizes={"d_mlp": "moe_intermediate_size"},
        certified_values=EVERY_LAYER_ROUTED,
        biases=ATTENTION_BIAS,
        window="sliding_window",
    ),
    routed=Routed(stacked_experts=STACKED_EXPERTS),
    in_float32=MIXTURES["mixtral"].in_float32,
    attentions=(decoder_stack(ROUTED_PARTS | qk_norms("d_head", "d_head")),),
    # No metadata key states whether the weights of the chosen experts are divided by their sum: in
    # every GGUF file they are.
    gguf=replace(
        LLAMA_LIKE_GGUF,
        architecture="qwen3moe",
        number_keys=GGUF_LLAMA_NUMBERS
        | gguf_experts("num_experts")
        | {
            "feed_forward_length": "intermediate_size",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        certified_values=GGUF_NO_EFFECT_BUT_EXPERTS,
        fixed_settings={"norm_topk_prob": True},
    ),
    tiny_config=TINY_GROUPED | TINY_EXPERTS | {"head_dim": 6, "norm_topk_prob": True},
)

MIXTURES["olmoe"] = replace(
    LLAMAS["llama"],
    name="OLMoE",
    architectures=("OlmoeForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values={"clip_qkv": (None,)},
        biases=ATTENTION_BIAS,
    ),
    routed=Routed(stacked_experts=STACKED_EXPERTS),
    in_float32=MIXTURES["mixtral"].in_float32,
    d_head_is_independent=False,
    attentions=(decoder_stack(ROUTED_PARTS | qk_norms("heads*d_head", "kv_heads*d_head")),),
    gguf=replace(
        LLAMA_LIKE_GGUF,
        architecture="olmoe",
        number_keys=GGUF_LLAMA_NUMBERS | gguf_experts("num_experts"),
        certified_values=GGUF_NO_EFFECT_BUT_EXPERTS,
    ),
    tiny_config=TINY_GROUPED | TINY_TOKENS | TINY_EXPERTS | {"intermediate_size": 20},
)

MIXTURES["flex_olmo"] = replace(
    LLAMAS["olmo2"],
    name="FlexOlmo",
    architectures=("FlexOlmoForCausalLM",),
    routed=MIXTURES["olmoe"].routed,
    in_float32=MIXTURES["mixtral"].in_float32,
    attentions=(
        decoder_stack(
            without(ROUTED_PARTS, "norm", "norm_mlp")
            | SANDWICH_NORMS
            | qk_norms("heads*d_head", "kv_heads*d_head"),
            norms_writes=True,
            hooks=HOOKS_WITHOUT_FIRST_NORM,
        ),
    ),
    gguf=None,
    tiny_config=MIXTURES["olmoe"].tiny_config,
)

MIXTURES["gpt_oss"] = replace(
    LLAMAS["llama"],
    name="GPT-OSS",
    architectures=("GptOssForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        biases=ATTENTION_BIAS,
        window="sliding_window",
        layer_types="layer_types",
    ),
    routed=Routed(),
    adapter_rounds_differently=True,
    attentions=(
        decoder_stack(
            without(LLAMA_PARTS, "gate", "up", "out")
            | {
                "sinks": ("self_attn.sinks", "heads without .weight"),
                "router": ("mlp.router", "experts d_model with bias"),
                "experts_gate_up": (
                    "mlp.experts.gate_up_proj",
                    "experts d_model 2*d_mlp without .weight",
                ),
                "experts_gate_up_bias": (
                    "mlp.experts.gate_up_proj_bias",
                    "experts 2*d_mlp without .weight",
                ),
                "experts_out": ("mlp.experts.down_proj", "experts d_mlp d_model without .weight"),
                "experts_out_bias": (
                    "mlp.experts.down_proj_bias",
                    "experts d_model without .weight",
                ),
            }
        ),
    ),
    gguf=None,
    tiny_config=TINY_GROUPED
    | TINY_TOKENS
    | {
        "intermediate_size": 20,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "head_dim": 6,
        "sliding_window": 5,
        "layer_types": ["full_attention", "sliding_attention"],
        "swiglu_limit": 1.0,
        "rope_parameters": TINY_YARN | {"truncate": False},
    },
)
