"""Qwen2 and Qwen3, Llama's kin with biases or norms on queries and keys, and windows."""

from dataclasses import replace
from typing import Any

from probe.model.architectures.blocks import (
    HIDDEN,
    TINY_GROUPED,
    causal,
    norms,
)
from probe.model.architectures.family import (
    Family,
)
from probe.model.architectures.gguf_keys import (
    KIN_GGUF,
)
from probe.model.architectures.llama import ATTENTION_BIAS, LLAMAS, PARTS, WINDOW

QWENS: dict[str, Family] = {}

# Of Qwen's; which layers are local is said by a list or, without one, by where they begin.
QWEN_WINDOWS: dict[str, Any] = {
    "window": WINDOW,
    "window_used": "use_sliding_window",
    "kinds": "layer_types",
    "global_every": ("", 0),
    "local_from": ("max_window_layers", 28),
}


QWENS["qwen2"] = replace(
    LLAMAS["llama"],
    name="Qwen2",
    architectures=("Qwen2ForCausalLM",),
    keys=replace(LLAMAS["llama"].keys, must={}, biases={}, **QWEN_WINDOWS),
    attentions=causal(
        PARTS | {role: (PARTS[role][0], f"{PARTS[role][1]} with bias") for role in "qkv"}
    ),
    gguf=replace(KIN_GGUF, architecture="qwen2"),
    tiny=TINY_GROUPED,
)

QWENS["qwen3"] = replace(
    LLAMAS["llama"],
    name="Qwen3",
    architectures=("Qwen3ForCausalLM",),
    keys=replace(
        QWENS["qwen2"].keys,
        sizes=HIDDEN | {"d_head": "head_dim"},
        biases=ATTENTION_BIAS,
    ),
    attentions=causal(PARTS | norms("d_head", "d_head")),
    gguf=replace(KIN_GGUF, architecture="qwen3"),
)
