"""Qwen2 and Qwen3: like Llama (`llama.py`), with windows, and with biases or norms of queries and
keys.
"""

from dataclasses import replace

from probe.model.architectures.blocks import (
    TINY_GROUPED,
    decoder_stack,
    qk_norms,
)
from probe.model.architectures.family import ConfigKeys, Family, with_bias
from probe.model.architectures.llama import ATTENTION_BIAS, LLAMA_PARTS, LLAMAS

QWENS: dict[str, Family] = {}

QWENS["qwen2"] = replace(
    LLAMAS["llama"],
    name="Qwen2",
    architectures=("Qwen2ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps", window="sliding_window", layer_types="layer_types"
    ),
    attentions=(decoder_stack(with_bias(LLAMA_PARTS, "q", "k", "v")),),
    tiny_config=TINY_GROUPED,
)

QWENS["qwen3"] = replace(
    LLAMAS["llama"],
    name="Qwen3",
    architectures=("Qwen3ForCausalLM",),
    config_keys=ConfigKeys(
        epsilon="rms_norm_eps",
        biases=ATTENTION_BIAS,
        window="sliding_window",
        layer_types="layer_types",
    ),
    attentions=(decoder_stack(LLAMA_PARTS | qk_norms("d_head", "d_head")),),
)
