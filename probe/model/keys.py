"""What families call their sizes and switches in config.json and in a GGUF file, for the table of architectures."""

from dataclasses import replace

from probe.model.family import GgufKeys, Keys

HIDDEN = {
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "d_model": "hidden_size",
    "d_mlp": "intermediate_size",
    "d_vocab": "vocab_size",
    "n_ctx": "max_position_embeddings",
}
ENCODER_ONLY = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
BERT = Keys(HIDDEN, ("layer_norm_eps", 1e-12), must=ENCODER_ONLY)
ROBERTA = replace(BERT, first=("pad_token_id", 1))
BART = Keys(
    {
        "n_layers": "encoder_layers",
        "n_heads": "encoder_attention_heads",
        "d_model": "d_model",
        "d_mlp": "encoder_ffn_dim",
        "d_vocab": "vocab_size",
        "n_ctx": "max_position_embeddings",
        "n_decoder_layers": "decoder_layers",
    },
    ("layer_norm_eps", 1e-5),
    ("activation_function", "gelu"),
    must={
        "add_final_layer_norm": (False,),
        "normalize_before": (False,),
        "static_position_embeddings": (False, True),
        "share_encoder_decoder_embeddings": (True,),
        "tie_word_embeddings": (True,),
    },
    equal=(
        ("encoder_layers", "decoder_layers"),
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
    ),
    first=2,
    reserved=2,
)
GPT2 = Keys(
    {"n_layers": "n_layer", "n_heads": "n_head", "d_model": "n_embd", "d_vocab": "vocab_size", "n_ctx": "n_positions"},
    ("layer_norm_epsilon", 1e-5),
    ("activation_function", "gelu_new"),
    must={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,),
        "add_cross_attention": (False,),
    },
    wide="n_inner",
)
GPT_NEO = Keys(
    {
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "d_model": "hidden_size",
        "d_vocab": "vocab_size",
        "n_ctx": "max_position_embeddings",
    },
    ("layer_norm_epsilon", 1e-5),
    ("activation_function", "gelu_new"),
    wide="intermediate_size",
    window=("window_size", 256),
    kinds="attention_types",
)
GPTJ = replace(GPT2, must={}, tied=False, rotary_dims="rotary_dim")
T5 = Keys(
    {
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "d_model": "d_model",
        "d_mlp": "d_ff",
        "d_vocab": "vocab_size",
        "d_head": "d_kv",
    },
    ("layer_norm_epsilon", 1e-6),
    ("feed_forward_proj", "relu"),
    equal=(("num_layers", "num_decoder_layers"),),
    context=512,
    start=("decoder_start_token_id", "pad_token_id"),
)
MARIAN = replace(BART, first=0, reserved=0)
NEOX = Keys(
    HIDDEN,
    ("layer_norm_eps", 1e-5),
    tied=False,
    must={"use_parallel_residual": (True,), "attention_bias": (True,), "tie_word_embeddings": (False,)},
    rotary_share=0.25,
)
LLAMA = Keys(
    HIDDEN,
    ("rms_norm_eps", 1e-6),
    ("hidden_act", "silu"),
    tied=False,
    must={"attention_bias": (False,), "mlp_bias": (False,)},
)
QWEN2 = Keys(HIDDEN, ("rms_norm_eps", 1e-6), ("hidden_act", "silu"), tied=False, must={"use_sliding_window": (False,)})
WINDOW = ("sliding_window", 4096)
MISTRAL = replace(LLAMA, must={"layer_types": (None,)}, window=WINDOW)
QWEN3 = replace(
    QWEN2, sizes=HIDDEN | {"d_head": "head_dim"}, must={"use_sliding_window": (False,), "attention_bias": (False,)}
)
PHI3 = replace(LLAMA, epsilon=("rms_norm_eps", 1e-5), must={}, window=("sliding_window", None))
OLMO2 = replace(LLAMA, epsilon=("rms_norm_eps", 1e-5), must={"attention_bias": (False,)})
GEMMA2 = Keys(
    HIDDEN | {"d_head": "head_dim"},
    ("rms_norm_eps", 1e-6),
    ("hidden_activation", "gelu_pytorch_tanh"),
    must={"attention_bias": (False,), "use_bidirectional_attention": (False, None)},
    window=WINDOW,
    kinds="layer_types",
    global_every=("", 2),
    query_scalar=("query_pre_attn_scalar", 256.0),
    score_cap=("attn_logit_softcapping", 50.0),
    logit_cap=("final_logit_softcapping", 30.0),
)
GEMMA3 = replace(
    GEMMA2,
    must={**GEMMA2.must, "attn_logit_softcapping": (None,)},
    global_every=("sliding_window_pattern", 6),
    rotary_base=1000000.0,
    local_base=("rope_local_base_freq", 10000.0),
    score_cap=("", None),
    logit_cap=("final_logit_softcapping", None),
)
GGUF_SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "vocab_size": "vocab_size",
}
GGUF_HEAD_SIZES = ("attention.key_length", "attention.value_length", "rope.dimension_count")  # read beside the others
GGUF_ROTARY = GGUF_SIZES | {
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
GGUF_PLAIN = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
}
GPT2_GGUF = GgufKeys(
    "gpt2",
    {
        "block_count": "n_layer",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
        "context_length": "n_positions",
        "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "vocab_size": "vocab_size",
    },
    must={"attention.causal": (True,)},
    transformers=True,
)
BERT_GGUF = GgufKeys(
    "bert",
    GGUF_SIZES | {"attention.layer_norm_epsilon": "layer_norm_eps"},
    must={"attention.causal": (False,)},
    unread=("pooling_type",),
)
T5_GGUF = GgufKeys(  # no key holds how far its buckets of positions reach: 128 tokens, as in every T5 that is published
    "t5",
    {
        "block_count": "num_layers",
        "decoder_block_count": "num_decoder_layers",
        "embedding_length": "d_model",
        "feed_forward_length": "d_ff",
        "context_length": "n_positions",
        "attention.head_count": "num_heads",
        "attention.key_length": "d_kv",
        "attention.relative_buckets_count": "relative_attention_num_buckets",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "decoder_start_token_id": "decoder_start_token_id",
        "vocab_size": "vocab_size",
    },
    unread=("attention.value_length", "attention.layer_norm_rms_epsilon"),
    transformers=True,
)
NEOX_GGUF = GgufKeys(
    "gptneox",
    GGUF_SIZES
    | {
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "rope.freq_base": "rope_theta",
        "use_parallel_residual": "use_parallel_residual",
    },
    must=GGUF_PLAIN,
    unread=("rope.dimension_count", "tensor_data_layout"),
)
LLAMA_GGUF = GgufKeys(
    "llama",
    GGUF_ROTARY,
    must=GGUF_PLAIN,
    unread=(*GGUF_HEAD_SIZES, "tensor_data_layout"),
    paired=("q", "k"),
    transformers=True,
)
QWEN2_GGUF = GgufKeys("qwen2", GGUF_ROTARY, must=GGUF_PLAIN, unread=GGUF_HEAD_SIZES, transformers=True)
QWEN3_GGUF = replace(QWEN2_GGUF, architecture="qwen3")
OLMO2_GGUF = replace(QWEN2_GGUF, architecture="olmo2", transformers=False)
PHI3_GGUF = replace(
    QWEN2_GGUF,
    architecture="phi3",
    sizes=GGUF_ROTARY | {"attention.sliding_window": "sliding_window"},
    unread=(*GGUF_HEAD_SIZES, "rope.scaling.original_context_length"),
)
GEMMA2_GGUF = replace(
    PHI3_GGUF,
    architecture="gemma2",
    sizes={
        **PHI3_GGUF.sizes,
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    query_scalar=46,
)
GEMMA3_GGUF = replace(
    PHI3_GGUF,
    architecture="gemma3",
    sizes={
        **PHI3_GGUF.sizes,
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "rope.freq_base_swa": "rope_local_base_freq",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    query_scalar=62,
)
