"""The Gemma models: Llama's relatives with norms around writes, windows, and capped scores and
logits.
"""

from dataclasses import replace

from probe.model.architectures.blocks import (
    SANDWICH_NORMS,
    WRITE_REPLACEMENTS,
    WRITTEN,
    causal,
    norms,
)
from probe.model.architectures.family import (
    Family,
    Keys,
    without,
)
from probe.model.architectures.gguf_keys import (
    GGUF_WINDOW,
    KIN_GGUF,
    WINDOW_GGUF,
)
from probe.model.architectures.llama import ATTENTION_BIAS, LLAMAS, PARTS

GEMMAS: dict[str, Family] = {}

GEMMA_PARTS = PARTS | SANDWICH_NORMS | {"norm_mlp": ("pre_feedforward_layernorm", "d_model")}

GEMMAS["gemma"] = replace(
    LLAMAS["llama"],
    name="Gemma",
    architectures=("GemmaForCausalLM",),
    keys=replace(
        LLAMAS["llama"].keys,
        must={"use_bidirectional_attention": (False, None)},
    ),
    offset=True,
    scaled_embedding=True,
    in_float32=("norm", "gain", "softmax"),
    gguf=replace(KIN_GGUF, architecture="gemma"),
)

GEMMAS["gemma2"] = replace(
    LLAMAS["llama"],
    name="Gemma 2",
    architectures=("Gemma2ForCausalLM",),
    keys=Keys(
        epsilon="rms_norm_eps",
        activation="hidden_activation",
        must={"use_bidirectional_attention": (False, None)},
        biases=ATTENTION_BIAS,
        window="sliding_window",
        kinds="layer_types",
        query_scalar="query_pre_attn_scalar",
        caps=("attn_logit_softcapping", "final_logit_softcapping"),
    ),
    norm_after_write=True,
    offset=True,
    scaled_embedding=True,
    in_float32=("norm", "gain", "softmax"),
    attentions=causal(GEMMA_PARTS, WRITE_REPLACEMENTS, read=WRITTEN),
    gguf=replace(
        WINDOW_GGUF,
        architecture="gemma2",
        numbers=GGUF_WINDOW
        | {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")},
        query_scalar=46,
    ),
    tiny={
        **LLAMAS["llama"].tiny,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 7,  # not d_head
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
)

GEMMAS["gemma3_text"] = replace(
    GEMMAS["gemma2"],
    name="Gemma 3",
    architectures=("Gemma3ForCausalLM",),
    base="Gemma3TextModel",
    keys=replace(
        GEMMAS["gemma2"].keys,
        must={**GEMMAS["gemma2"].keys.must, "attn_logit_softcapping": (None,)},
        caps=("final_logit_softcapping",),
    ),
    attentions=causal(GEMMA_PARTS | norms("d_head", "d_head"), WRITE_REPLACEMENTS, read=WRITTEN),
    gguf=replace(
        WINDOW_GGUF,
        architecture="gemma3",
        numbers=GGUF_WINDOW
        | {
            "attention.sliding_window_pattern": "sliding_window_pattern",
            "rope.freq_base_swa": "rope_local_base_freq",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        query_scalar=62,
    ),
    tiny=without(GEMMAS["gemma2"].tiny, "attn_logit_softcapping", "final_logit_softcapping"),
)

GEMMAS["vaultgemma"] = replace(
    GEMMAS["gemma2"],
    name="VaultGemma",
    architectures=("VaultGemmaForCausalLM",),
    norm_after_write=False,
    attentions=causal(PARTS | {"norm_mlp": ("pre_feedforward_layernorm", "d_model")}),
    gguf=None,
)
