"""Decoders like Llama (`llama.py`) whose MLP is a mixture of experts."""

from dataclasses import replace
from typing import Any

from probe.model.architectures.blocks import (
    TINY_GROUPED,
    TINY_TOKENS,
    decoder_stack,
    norms_after_writes,
    qk_norms,
)
from probe.model.architectures.family import ConfigKeys, Family, without
from probe.model.architectures.llama import ATTENTION_BIAS, LLAMA_PARTS, LLAMAS
from probe.model.architectures.qwen import QWENS

MIXTURES: dict[str, Family] = {}

ROUTED_PARTS = without(LLAMA_PARTS, "gate", "up", "out") | {
    "router": ("mlp.gate", "experts d_model"),
    "experts_gate_up": ("mlp.experts.gate_up_proj", "experts 2*d_mlp d_model without .weight"),
    "experts_out": ("mlp.experts.down_proj", "experts d_model d_mlp without .weight"),
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

TINY_EXPERTS: dict[str, Any] = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}

MIXTURES["mixtral"] = replace(
    LLAMAS["mistral"],
    name="Mixtral",
    architectures=("MixtralForCausalLM",),
    routed=True,
    in_float32=("norm", "softmax", "router"),
    attentions=(decoder_stack(ROUTED_PARTS),),
    tiny_config=TINY_GROUPED | TINY_TOKENS | {"intermediate_size": 20, "num_local_experts": 3},
)

MIXTURES["qwen2_moe"] = replace(
    QWENS["qwen2"],
    name="Qwen2-MoE",
    architectures=("Qwen2MoeForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        sizes={"d_mlp": "moe_intermediate_size", "d_shared": "shared_expert_intermediate_size"},
        certified_values=EVERY_LAYER_ROUTED,
        biases={"qkv_bias": "qkv"},
        window="sliding_window",
        layer_types="layer_types",
    ),
    routed=True,
    in_float32=MIXTURES["mixtral"].in_float32,
    d_head_is_independent=False,
    attentions=(decoder_stack(ROUTED_PARTS | SHARED_EXPERT_PARTS),),
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
    routed=True,
    in_float32=MIXTURES["mixtral"].in_float32,
    attentions=(decoder_stack(ROUTED_PARTS | qk_norms("d_head", "d_head")),),
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
    routed=True,
    in_float32=MIXTURES["mixtral"].in_float32,
    d_head_is_independent=False,
    attentions=(decoder_stack(ROUTED_PARTS | qk_norms("heads*d_head", "kv_heads*d_head")),),
    tiny_config=TINY_GROUPED | TINY_TOKENS | TINY_EXPERTS | {"intermediate_size": 20},
)

MIXTURES["flex_olmo"] = replace(
    LLAMAS["olmo2"],
    name="FlexOlmo",
    architectures=("FlexOlmoForCausalLM",),
    routed=True,
    in_float32=MIXTURES["mixtral"].in_float32,
    attentions=(norms_after_writes(ROUTED_PARTS, "heads*d_head", "kv_heads*d_head"),),
    tiny_config=MIXTURES["olmoe"].tiny_config,
)
