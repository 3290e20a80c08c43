"""Decoders whose MLP is a mixture of experts: a router gives each token to a few of them."""

from dataclasses import replace
from typing import Any

from probe.model.architectures.blocks import (
    SANDWICH_NORMS,
    TINY_GROUPED,
    TINY_TOKENS,
    TINY_YARN,
    WRITE_REPLACEMENTS,
    WRITTEN,
    causal,
    norms,
)
from probe.model.architectures.family import Family, Keys, Routed, without
from probe.model.architectures.gguf_keys import (
    GGUF_ROTARY,
    GGUF_ROUTED,
    KIN_GGUF,
    gguf_experts,
)
from probe.model.architectures.llama import ATTENTION_BIAS, LLAMA_GGUF, LLAMAS, PARTS
from probe.model.architectures.qwen import QWENS

MIXTURES: dict[str, Family] = {}

# Files store experts one by one; Hugging Face's classes stack them.
STACKED = {
    "mlp.experts.gate_up_proj": ("expert_gate", "expert_up"),
    "mlp.experts.down_proj": ("expert_out",),
}

ROUTED = without(PARTS, "gate", "up", "out") | {
    "router": ("mlp.gate", "experts d_model"),
    "expert_gate": ("mlp.experts.{}.gate_proj", "d_mlp d_model"),
    "expert_up": ("mlp.experts.{}.up_proj", "d_mlp d_model"),
    "expert_out": ("mlp.experts.{}.down_proj", "d_model d_mlp"),
}

SHARED_EXPERT = {
    "shared_router": ("mlp.shared_expert_gate", "1 d_model"),
    "shared_gate": ("mlp.shared_expert.gate_proj", "d_shared d_model"),
    "shared_up": ("mlp.shared_expert.up_proj", "d_shared d_model"),
    "shared_out": ("mlp.shared_expert.down_proj", "d_model d_shared"),
}

EVERY_LAYER_ROUTED: dict[str, tuple[Any, ...]] = {
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([],),
}


SHARED = "shared_expert_intermediate_size"

TINY_EXPERTS: dict[str, Any] = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
}

MIXTURES["mixtral"] = replace(
    LLAMAS["mistral"],
    name="Mixtral",
    architectures=("MixtralForCausalLM",),
    routed=Routed(stacked=STACKED, renamed={"mlp.gate": "block_sparse_moe.gate"}),
    in_float32=("norm", "softmax", "router"),
    attentions=causal(
        ROUTED
        | {
            "router": ("block_sparse_moe.gate", "experts d_model"),
            "expert_gate": ("block_sparse_moe.experts.{}.w1", "d_mlp d_model"),
            "expert_up": ("block_sparse_moe.experts.{}.w3", "d_mlp d_model"),
            "expert_out": ("block_sparse_moe.experts.{}.w2", "d_model d_mlp"),
        }
    ),
    gguf=replace(
        LLAMA_GGUF,
        told_by="expert_count",
        numbers=GGUF_ROTARY | gguf_experts("num_local_experts"),
        must=GGUF_ROUTED,
    ),
    tiny=TINY_GROUPED | TINY_TOKENS | {"intermediate_size": 20, "num_local_experts": 3},
)

MIXTURES["qwen2_moe"] = replace(
    QWENS["qwen2"],
    name="Qwen2-MoE",
    architectures=("Qwen2MoeForCausalLM",),
    keys=replace(
        QWENS["qwen2"].keys,
        sizes={"d_mlp": "moe_intermediate_size"},
        must=EVERY_LAYER_ROUTED,
        biases={"qkv_bias": "qkv"},
    ),
    routed=Routed(normed="norm_topk_prob", shared=SHARED, stacked=STACKED),
    in_float32=MIXTURES["mixtral"].in_float32,
    free_heads=False,
    attentions=causal(ROUTED | SHARED_EXPERT),
    gguf=replace(
        KIN_GGUF,
        architecture="qwen2moe",
        numbers=GGUF_ROTARY
        | gguf_experts("num_experts")
        | {
            "feed_forward_length": "intermediate_size",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        },
        must=GGUF_ROUTED,
    ),
    tiny=TINY_GROUPED | TINY_EXPERTS | {"shared_expert_intermediate_size": 12},
)

MIXTURES["qwen3_moe"] = replace(
    QWENS["qwen3"],
    name="Qwen3-MoE",
    architectures=("Qwen3MoeForCausalLM",),
    keys=replace(
        QWENS["qwen3"].keys,
        sizes={"d_mlp": "moe_intermediate_size"},
        must=EVERY_LAYER_ROUTED,
        kinds="",
    ),
    routed=Routed(normed="norm_topk_prob", stacked=STACKED),
    in_float32=MIXTURES["mixtral"].in_float32,
    attentions=causal(ROUTED | norms("d_head", "d_head")),
    # No key states whether the weights of the chosen experts are divided by their sum; they always
    # are.
    gguf=replace(
        KIN_GGUF,
        architecture="qwen3moe",
        numbers=GGUF_ROTARY
        | gguf_experts("num_experts")
        | {
            "feed_forward_length": "intermediate_size",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        must=GGUF_ROUTED,
        settings={"norm_topk_prob": True},
    ),
    tiny=TINY_GROUPED | TINY_EXPERTS | {"head_dim": 6, "norm_topk_prob": True},
)

MIXTURES["olmoe"] = replace(
    LLAMAS["llama"],
    name="OLMoE",
    architectures=("OlmoeForCausalLM",),
    keys=replace(LLAMAS["llama"].keys, must={"clip_qkv": (None,)}),
    routed=Routed(normed="norm_topk_prob", stacked=STACKED),
    in_float32=MIXTURES["mixtral"].in_float32,
    free_heads=False,
    attentions=causal(ROUTED | norms("heads*d_head", "kv_heads*d_head")),
    gguf=replace(
        KIN_GGUF,
        architecture="olmoe",
        numbers=GGUF_ROTARY | gguf_experts("num_experts"),
        must=GGUF_ROUTED,
    ),
    tiny=TINY_GROUPED | TINY_TOKENS | TINY_EXPERTS | {"intermediate_size": 20},
)

MIXTURES["flex_olmo"] = replace(
    LLAMAS["olmo2"],
    name="FlexOlmo",
    architectures=("FlexOlmoForCausalLM",),
    routed=MIXTURES["olmoe"].routed,
    in_float32=MIXTURES["mixtral"].in_float32,
    attentions=causal(
        without(ROUTED, "norm", "norm_mlp")
        | SANDWICH_NORMS
        | norms("heads*d_head", "kv_heads*d_head"),
        WRITE_REPLACEMENTS,
        read=WRITTEN | {"x": "attn.q.hook_in"},
    ),
    gguf=None,
    tiny=MIXTURES["olmoe"].tiny,
)

MIXTURES["gpt_oss"] = replace(
    LLAMAS["llama"],
    name="GPT-OSS",
    architectures=("GptOssForCausalLM",),
    keys=Keys(
        epsilon="rms_norm_eps",
        biases=ATTENTION_BIAS,
        window="sliding_window",
        kinds="layer_types",
    ),
    routed=Routed(of_all=False, clamp=("swiglu_alpha", "swiglu_limit")),
    plain_rounds=True,
    attentions=causal(
        without(PARTS, "gate", "up", "out")
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
            "experts_out_bias": ("mlp.experts.down_proj_bias", "experts d_model without .weight"),
        }
    ),
    gguf=None,
    tiny=TINY_GROUPED
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
