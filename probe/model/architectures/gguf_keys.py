"""Names in GGUF files that several families share."""

from dataclasses import replace

from probe.model.architectures.family import GgufKeys, without

# By metadata key of every family: the field of `Config`.
GGUF_SIZES = {
    "block_count": "n_layers",
    "embedding_length": "d_model",
    "feed_forward_length": "d_mlp",
    "context_length": "n_ctx",
    "attention.head_count": "n_heads",
    "vocab_size": "d_vocab",
}
# Metadata without a formula, with the values that have no effect.
GGUF_NO_EFFECT = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
}
# The same for families with experts, and for families with YaRN.
GGUF_NO_EFFECT_BUT_EXPERTS = without(GGUF_NO_EFFECT, "expert_count", "expert_used_count")
GGUF_NO_EFFECT_BUT_YARN = without(GGUF_NO_EFFECT, "rope.scaling.factor") | {
    "rope.scaling.type": ("yarn",)
}
# Read with the sizes of heads, not as separate numbers.
GGUF_HEAD_SIZES = ("attention.key_length", "attention.value_length", "rope.dimension_count")
# By metadata key: the config key. Of decoders with rotary positions; of those with Llama's RMSNorm;
# and of those that also have a window.
GGUF_ROTARY_NUMBERS = {
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
}
GGUF_LLAMA_NUMBERS = GGUF_ROTARY_NUMBERS | {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
GGUF_WINDOW_NUMBERS = GGUF_LLAMA_NUMBERS | {"attention.sliding_window": "sliding_window"}
# The number of experts, and how many a token uses.
GGUF_EXPERTS = ("expert_count", "expert_used_count")
_YARN = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",  # in older files
    "rope.scaling.yarn_attn_factor": "attention_factor",  # in newer files
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}


def gguf_yarn(path: str) -> dict[str, str]:
    """The metadata keys of YaRN, each with its config key.

    path: the object in the config that contains YaRN's numbers, as in "rope_scaling"
    """
    return {name: f"{path}.{key}" for name, key in _YARN.items()}


def gguf_experts(count_key: str) -> dict[str, str]:
    """The metadata keys of a mixture of experts, each with its config key.

    count_key: the config key of the number of experts
    """
    return dict(zip(GGUF_EXPERTS, (count_key, "num_experts_per_tok"), strict=True))


# Of models like Llama that are stored as in checkpoints. A row replaces the empty `architecture`.
LLAMA_LIKE_GGUF = GgufKeys(
    architecture="",
    number_keys=GGUF_LLAMA_NUMBERS,
    certified_values=GGUF_NO_EFFECT,
    unread_keys=GGUF_HEAD_SIZES,
)
# The same for models that may have a window.
LLAMA_LIKE_GGUF_WITH_WINDOW = replace(
    LLAMA_LIKE_GGUF,
    number_keys=GGUF_WINDOW_NUMBERS,
    certified_values=without(GGUF_NO_EFFECT, "attention.sliding_window"),
    unread_keys=(*GGUF_HEAD_SIZES, "rope.scaling.original_context_length"),
)
