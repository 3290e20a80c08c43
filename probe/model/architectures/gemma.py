"""The Gemma models: like Llama (`llama.py`), with norms around writes, windows, and capped scores
and logits.
"""

from dataclasses import replace

from probe.model.architectures.blocks import (
    SANDWICH_NORMS,
    decoder_stack,
    qk_norms,
)
from probe.model.architectures.family import (
    ConfigKeys,
    Family,
    without,
)
from probe.model.architectures.llama import ATTENTION_BIAS, LLAMA_PARTS, LLAMAS

GEMMAS: dict[str, Family] = {}

GEMMA_PARTS = LLAMA_PARTS | SANDWICH_NORMS | {"norm_mlp": ("pre_feedforward_layernorm", "d_model")}

GEMMAS["gemma"] = replace(
    LLAMAS["llama"],
    name="Gemma",
    architectures=("GemmaForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        certified_values={"use_bidirectional_attention": (False, None)},
        biases=ATTENTION_BIAS,
    ),
    norm_adds_one=True,
    scales_embedding=True,
    in_float32=("norm", "gain", "softmax"),
)

GEMMAS["gemma2"] = replace(
    LLAMAS["llama"],
    name="Gemma 2",
    architectures=("Gemma2ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        activation="hidden_activation",
        certified_values={"use_bidirectional_attention": (False, None)},
        biases=ATTENTION_BIAS,
        window="sliding_window",
        layer_types="layer_types",
        query_scalar="query_pre_attn_scalar",
        softcaps=("attn_logit_softcapping", "final_logit_softcapping"),
    ),
    norm_after_write=True,
    norm_adds_one=True,
    scales_embedding=True,
    in_float32=("norm", "gain", "softmax"),
    attentions=(decoder_stack(GEMMA_PARTS, norms_writes=True),),
    tiny_config={
        **LLAMAS["llama"].tiny_config,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 7,  # differs from d_head
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
)

GEMMAS["gemma3_text"] = replace(
    GEMMAS["gemma2"],
    name="Gemma 3",
    architectures=("Gemma3ForCausalLM",),
    base_classes=("Gemma3TextModel",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        activation="hidden_activation",
        certified_values={
            "use_bidirectional_attention": (False, None),
            "attn_logit_softcapping": (None,),
        },
        biases=ATTENTION_BIAS,
        window="sliding_window",
        layer_types="layer_types",
        query_scalar="query_pre_attn_scalar",
        softcaps=("final_logit_softcapping",),
    ),
    attentions=(decoder_stack(GEMMA_PARTS | qk_norms("d_head", "d_head"), norms_writes=True),),
    tiny_config=without(
        GEMMAS["gemma2"].tiny_config, "attn_logit_softcapping", "final_logit_softcapping"
    ),
)

GEMMAS["vaultgemma"] = replace(
    GEMMAS["gemma2"],
    name="VaultGemma",
    architectures=("VaultGemmaForCausalLM",),
    norm_after_write=False,
    attentions=(
        decoder_stack(LLAMA_PARTS | {"norm_mlp": ("pre_feedforward_layernorm", "d_model")}),
    ),
)
