"""Qwen2 and Qwen3, Llama's kin with biases or norms on queries and keys, and windows."""

from dataclasses import replace

from probe.model.architectures.blocks import (
    TINY_GROUPED,
    causal,
    norms,
)
from probe.model.architectures.family import Family, Keys, with_bias
from probe.model.architectures.gguf_keys import (
    KIN_GGUF,
)
from probe.model.architectures.llama import ATTENTION_BIAS, LLAMAS, PARTS

QWENS: dict[str, Family] = {}

QWENS["qwen2"] = replace(
    LLAMAS["llama"],
    name="Qwen2",
    architectures=("Qwen2ForCausalLM",),
    keys=Keys(epsilon="rms_norm_eps", window="sliding_window", kinds="layer_types"),
    attentions=causal(with_bias(PARTS, "q", "k", "v")),
    gguf=replace(KIN_GGUF, architecture="qwen2"),
    tiny=TINY_GROUPED,
)

QWENS["qwen3"] = replace(
    LLAMAS["llama"],
    name="Qwen3",
    architectures=("Qwen3ForCausalLM",),
    keys=replace(QWENS["qwen2"].keys, biases=ATTENTION_BIAS),
    attentions=causal(PARTS | norms("d_head", "d_head")),
    gguf=replace(KIN_GGUF, architecture="qwen3"),
)
