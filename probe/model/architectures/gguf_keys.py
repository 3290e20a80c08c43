"""Names in GGUF files that several families share."""

from dataclasses import replace

from probe.model.architectures.family import GgufKeys, without

# By metadata key: the field of `Config`.
GGUF_SIZES = {
    "block_count": "n_layers",
    "embedding_length": "d_model",
    "feed_forward_length": "d_mlp",
    "context_length": "n_ctx",
    "attention.head_count": "n_heads",
    "vocab_size": "d_vocab",
}
# Settings without a formula, with the values that leave them without effect.
GGUF_PLAIN = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
}
GGUF_ROUTED = without(GGUF_PLAIN, "expert_count", "expert_used_count")
GGUF_STRETCHED = without(GGUF_PLAIN, "rope.scaling.factor") | {"rope.scaling.type": ("yarn",)}
# Read with the sizes of heads, not as separate numbers.
GGUF_HEAD_SIZES = ("attention.key_length", "attention.value_length", "rope.dimension_count")
GGUF_ROTARY = {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
GGUF_LAYER_NORM = {
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
}
# The number of experts, and how many a token uses.
GGUF_EXPERTS = ("expert_count", "expert_used_count")
GGUF_WINDOW = GGUF_ROTARY | {"attention.sliding_window": "sliding_window"}
_YARN = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",  # of older files, and of newer ones
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}


def gguf_yarn(path: str) -> dict[str, str]:
    """The metadata keys of YaRN, for a config that stores its numbers at `path`."""
    return {name: f"{path}.{key}" for name, key in _YARN.items()}


def gguf_experts(count: str) -> dict[str, str]:
    """The metadata keys of a mixture of experts, whose config key for their number is `count`."""
    return dict(zip(GGUF_EXPERTS, (count, "num_experts_per_tok"), strict=True))


# Models like Llama, stored as in checkpoints. Each row has its `architecture`.
KIN_GGUF = GgufKeys("", GGUF_ROTARY, must=GGUF_PLAIN, unread=GGUF_HEAD_SIZES)
# Models like Llama that may have a window.
WINDOW_GGUF = replace(
    KIN_GGUF,
    numbers=GGUF_WINDOW,
    must=without(GGUF_PLAIN, "attention.sliding_window"),
    unread=(*GGUF_HEAD_SIZES, "rope.scaling.original_context_length"),
)
