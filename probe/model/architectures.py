"""The table of architectures: one row a family says where its weights, hooks, norms, positions and config keys are.

Everything that differs between families stands here and nowhere else: a new family is a row of FAMILIES, a test
parameter, and, where it has a formula that nobody else has, a function in `probe.model.attention`. Config, checkpoint,
weights, hooks, forward, certificate and the engine of swaps read the row; none of them asks for a family by name.

Words of the shapes, in the order in which the file holds the axes: d d_model, h heads x d_head, 3h queries, keys and
values together, g key-value heads x d_head, m d_mlp, v d_vocab, p rows of the position table, t token types, b
relative-position buckets, n heads; "+" adds a bias as long as the output, "=" says that the name is whole (no ".weight"
behind it).
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from probe.errors import UnsupportedModel
from probe.model.family import (
    RECOMPUTED,
    Attention,
    Family,
    GgufKeys,
    Keys,
    Repair,
    norm_first_hooks,
    norm_last_hooks,
    norm_last_repairs,
)

BERT_ATTENTION = {
    "q": ("attention.self.query", "h d +"),
    "k": ("attention.self.key", "h d +"),
    "v": ("attention.self.value", "h d +"),
    "o": ("attention.output.dense", "d h +"),
    "norm": ("attention.output.LayerNorm", "d +"),
    "in": ("intermediate.dense", "m d +"),
    "out": ("output.dense", "d m +"),
    "norm_mlp": ("output.LayerNorm", "d +"),
}
BERT_OUTSIDE = {
    "embeddings.word_embeddings": "v d",
    "embeddings.position_embeddings": "p d",
    "embeddings.token_type_embeddings": "t d",
    "embeddings.LayerNorm": "d +",
}
BERT_STACK = Attention(
    "",
    "blocks",
    norm_last_hooks(),
    "encoder.layer.{}.",
    BERT_ATTENTION,
    lies=norm_last_repairs() | {"attn_out": Repair("hook_attn_out", "read in front of the sum and its norm")},
)


def _bart_parts(attn: str, norm: str) -> dict[str, tuple[str, str]]:
    heads = {part: (f"{attn}.{part}_proj", "h d +") for part in "qkv"}
    return heads | {"o": (f"{attn}.out_proj", "d h +"), "norm": (norm, "d +")}


BART_MLP = {"in": ("fc1", "m d +"), "out": ("fc2", "d m +"), "norm_mlp": ("final_layer_norm", "d +")}
BART_CROSS = norm_last_hooks("cross_attn", "ln2") | {"resid_pre": "ln1.hook_out", "memory": "cross_attn.k.hook_in"}
BART_STACKS = (
    Attention(
        "encoder",
        "encoder_blocks",
        norm_last_hooks(),
        "encoder.layers.{}.",
        _bart_parts("self_attn", "self_attn_layer_norm") | BART_MLP,
        lies=norm_last_repairs(),
    ),
    Attention(
        "decoder",
        "decoder_blocks",
        norm_last_hooks("self_attn"),
        "decoder.layers.{}.",
        _bart_parts("self_attn", "self_attn_layer_norm") | BART_MLP,
        causal=True,
        lies=norm_last_repairs("self_attn"),
    ),
    Attention(
        "cross",
        "decoder_blocks",
        {name: hook for name, hook in BART_CROSS.items() if name not in ("mlp_out", "resid_post")},
        "decoder.layers.{}.",
        _bart_parts("encoder_attn", "encoder_attn_layer_norm"),
        lies={"scores": Repair("cross_attn.hook_attn_scores", RECOMPUTED)},
    ),
)
BART_TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def _t5_parts(number: int, attn: str) -> dict[str, tuple[str, str]]:
    heads = {part: (f"layer.{number}.{attn}.{part}", "h d") for part in "qkv"}
    return heads | {"o": (f"layer.{number}.{attn}.o", "d h"), "norm": (f"layer.{number}.layer_norm", "d")}


def _t5_mlp(number: int) -> dict[str, tuple[str, str]]:
    dense = f"layer.{number}.DenseReluDense"
    gate = {"gate": (f"{dense}.wi_0", "m d"), "up": (f"{dense}.wi_1", "m d")}  # either these two or "in"
    return gate | {
        "in": (f"{dense}.wi", "m d"),
        "out": (f"{dense}.wo", "d m"),
        "norm_mlp": (f"layer.{number}.layer_norm", "d"),
    }


T5_CROSS = norm_first_hooks("cross_attn", "ln2") | {
    "resid_pre": "hook_resid_mid",
    "attn_out": "hook_cross_attn_out",
    "resid_mid": "hook_resid_mid2",
    "memory": "cross_attn.k.hook_in",
}
T5_STACKS = (
    Attention(
        "encoder", "encoder_blocks", norm_first_hooks(), "encoder.block.{}.", _t5_parts(0, "SelfAttention") | _t5_mlp(1)
    ),
    Attention(
        "decoder",
        "decoder_blocks",
        {name: hook for name, hook in norm_first_hooks("self_attn").items() if name != "scores"},
        "decoder.block.{}.",
        _t5_parts(0, "SelfAttention") | _t5_mlp(2),
        causal=True,
        lies={"scores": Repair("self_attn.hook_attn_scores", RECOMPUTED)},
    ),
    Attention(
        "cross",
        "decoder_blocks",
        {name: hook for name, hook in T5_CROSS.items() if name not in ("mlp_out", "resid_post")},
        "decoder.block.{}.",
        _t5_parts(1, "EncDecAttention"),
    ),
)
LLAMA_PARTS = {
    "q": ("self_attn.q_proj", "h d"),
    "k": ("self_attn.k_proj", "g d"),
    "v": ("self_attn.v_proj", "g d"),
    "o": ("self_attn.o_proj", "d h"),
    "norm": ("input_layernorm", "d"),
    "gate": ("mlp.gate_proj", "m d"),
    "up": ("mlp.up_proj", "m d"),
    "out": ("mlp.down_proj", "d m"),
    "norm_mlp": ("post_attention_layernorm", "d"),
}
QWEN2_BIASES = {part: (name, shape + " +") for part, (name, shape) in LLAMA_PARTS.items() if part in ("q", "k", "v")}
LLAMA_OUTSIDE = {"embed_tokens": "v d", "norm": "d"}
NEOX_PARTS = {
    "qkv": ("attention.query_key_value", "3h d +"),
    "o": ("attention.dense", "d h +"),
    "norm": ("input_layernorm", "d +"),
    "in": ("mlp.dense_h_to_4h", "m d +"),
    "out": ("mlp.dense_4h_to_h", "d m +"),
    "norm_mlp": ("post_attention_layernorm", "d +"),
}
NEOX_LIES = {"resid_mid": Repair("", "E + attn_out, which no hook holds")}


GPT2_PARTS = {
    "norm": ("ln_1", "d +"),
    "qkv": ("attn.c_attn", "d 3h +"),
    "o": ("attn.c_proj", "h d +"),
    "norm_mlp": ("ln_2", "d +"),
    "in": ("mlp.c_fc", "d m +"),
    "out": ("mlp.c_proj", "m d +"),
}
GPT2_STACK = Attention("", "blocks", norm_first_hooks(), "h.{}.", GPT2_PARTS, causal=True, fused="by role")


def causal_stack(
    parts: Mapping[str, tuple[str, str]],
    lies: Mapping[str, Repair] = MappingProxyType({}),
    fused: Literal["", "by role", "by head"] = "",
) -> tuple[Attention]:
    """The single stack of a decoder that norms what attention reads."""
    hooks = {name: hook for name, hook in norm_first_hooks().items() if name not in lies}
    return (Attention("", "blocks", hooks, "layers.{}.", parts, causal=True, lies=lies, fused=fused),)


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
BART_KEYS = Keys(
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
GPT2_KEYS = Keys(
    {"n_layers": "n_layer", "n_heads": "n_head", "d_model": "n_embd", "d_vocab": "vocab_size", "n_ctx": "n_positions"},
    ("layer_norm_epsilon", 1e-5),
    ("activation_function", "gelu_new"),
    must={
        "activation_function": ("gelu_new",),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,),
        "add_cross_attention": (False,),
    },
    wide="n_inner",
)
T5_KEYS = Keys(
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
MARIAN_KEYS = replace(BART_KEYS, first=0, reserved=0)
NEOX_KEYS = Keys(
    HIDDEN,
    ("layer_norm_eps", 1e-5),
    tied=False,
    must={"use_parallel_residual": (True,), "attention_bias": (True,), "tie_word_embeddings": (False,)},
    rotary_share=0.25,
)
LLAMA_KEYS = Keys(
    HIDDEN,
    ("rms_norm_eps", 1e-6),
    ("hidden_act", "silu"),
    tied=False,
    must={"attention_bias": (False,), "mlp_bias": (False,)},
)
QWEN2_KEYS = Keys(
    HIDDEN, ("rms_norm_eps", 1e-6), ("hidden_act", "silu"), tied=False, must={"use_sliding_window": (False,)}
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

FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        "GPT-2",
        "decoder",
        ("GPT2LMHeadModel",),
        GPT2_KEYS,
        prefix="transformer.",
        turned=True,
        special_tokens=False,
        attentions=(GPT2_STACK,),
        outside={"wte": "v d", "wpe": "p d", "ln_f": "d +"},
        embed="wte",
        position_table="wpe",
        final_norm="ln_f",
        ignored=(".attn.bias", ".attn.masked_bias"),
        gguf=GPT2_GGUF,
    ),
    "bert": Family(
        "BERT",
        "encoder",
        ("BertForMaskedLM", "BertForPreTraining"),
        Keys(HIDDEN, ("layer_norm_eps", 1e-12), must=ENCODER_ONLY),
        headless=("BertModel",),
        prefix="bert.",
        norm_first=False,
        attentions=(BERT_STACK,),
        outside=BERT_OUTSIDE,
        head={
            "cls.predictions.transform.dense": "d d +",
            "cls.predictions.transform.LayerNorm": "d +",
            "cls.predictions.bias": "v =",
        },
        embed="embeddings.word_embeddings",
        position_table="embeddings.position_embeddings",
        type_table="embeddings.token_type_embeddings",
        embedding_norm="embeddings.LayerNorm",
        unembed="cls.predictions.decoder",
        transform=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", ""),
        head_bias="cls.predictions.bias",
        ignored=("pooler.", "cls.seq_relationship.", "cls.predictions.decoder.bias", "embeddings.position_ids"),
        gguf=BERT_GGUF,
    ),
    "roberta": Family(
        "RoBERTa",
        "encoder",
        ("RobertaForMaskedLM",),
        Keys(HIDDEN, ("layer_norm_eps", 1e-12), must=ENCODER_ONLY, first=("pad_token_id", 1)),
        headless=("RobertaModel",),
        prefix="roberta.",
        norm_first=False,
        attentions=(BERT_STACK,),
        outside=BERT_OUTSIDE,
        head={"lm_head.dense": "d d +", "lm_head.layer_norm": "d +", "lm_head.bias": "v ="},
        embed="embeddings.word_embeddings",
        position_table="embeddings.position_embeddings",
        type_table="embeddings.token_type_embeddings",
        embedding_norm="embeddings.LayerNorm",
        unembed="lm_head.decoder",
        transform=("lm_head.dense", "lm_head.layer_norm", "gelu"),
        head_bias="lm_head.bias",
        ignored=("pooler.", "lm_head.decoder.bias", "embeddings.position_ids"),
    ),
    "t5": Family(
        "T5",
        "encoder-decoder",
        ("T5ForConditionalGeneration",),
        T5_KEYS,
        norm="RMSNorm",
        positions="relative bias",
        scaled=False,
        single="variance",
        attentions=T5_STACKS,
        outside={
            "shared": "v d",
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias": "b n",
            "encoder.final_layer_norm": "d",
            "decoder.block.0.layer.0.SelfAttention.relative_attention_bias": "b n",
            "decoder.final_layer_norm": "d",
        },
        embed="shared",
        position_table="{}.block.0.layer.0.SelfAttention.relative_attention_bias",
        final_norm="{}.final_layer_norm",
        unembed_scaled=True,
        free_heads=True,
        ignored=(
            "encoder.embed_tokens.weight",
            "decoder.embed_tokens.weight",
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        ),
    ),
    "bart": Family(
        "BART",
        "encoder-decoder",
        ("BartForConditionalGeneration",),
        BART_KEYS,
        prefix="model.",
        norm_first=False,
        attentions=BART_STACKS,
        outside={
            "shared": "v d",
            "encoder.embed_positions": "p d",
            "encoder.layernorm_embedding": "d +",
            "decoder.embed_positions": "p d",
            "decoder.layernorm_embedding": "d +",
        },
        optional={"final_logits_bias": "1 v ="},
        embed="shared",
        position_table="{}.embed_positions",
        embedding_norm="{}.layernorm_embedding",
        ignored=BART_TIED,
    ),
    "marian": Family(
        "Marian",
        "encoder-decoder",
        ("MarianMTModel",),
        MARIAN_KEYS,
        prefix="model.",
        norm_first=False,
        positions="sinusoidal",
        attentions=BART_STACKS,
        outside={"shared": "v d"},
        optional={"final_logits_bias": "1 v ="},
        embed="shared",
        ignored=(*BART_TIED, "encoder.embed_positions.weight", "decoder.embed_positions.weight"),
    ),
    "gpt_neox": Family(
        "GPT-NeoX",
        "decoder",
        ("GPTNeoXForCausalLM",),
        NEOX_KEYS,
        prefix="gpt_neox.",
        positions="rotary",
        plain_rounds=True,
        parallel=True,
        attentions=causal_stack(NEOX_PARTS, NEOX_LIES, "by head"),
        outside={"embed_in": "v d", "final_layer_norm": "d +"},
        embed="embed_in",
        final_norm="final_layer_norm",
        unembed="embed_out",
        ignored=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
        gguf=NEOX_GGUF,
    ),
    "llama": Family(
        "Llama",
        "decoder",
        ("LlamaForCausalLM",),
        LLAMA_KEYS,
        prefix="model.",
        norm="RMSNorm",
        gated=True,
        positions="rotary",
        single="norm and softmax",
        attentions=causal_stack(LLAMA_PARTS),
        outside=LLAMA_OUTSIDE,
        embed="embed_tokens",
        final_norm="norm",
        free_heads=True,
        ignored=(".rotary_emb.inv_freq",),
        gguf=LLAMA_GGUF,
    ),
    "qwen2": Family(
        "Qwen2",
        "decoder",
        ("Qwen2ForCausalLM",),
        QWEN2_KEYS,
        prefix="model.",
        norm="RMSNorm",
        gated=True,
        positions="rotary",
        single="norm and softmax",
        attentions=causal_stack(LLAMA_PARTS | QWEN2_BIASES),
        outside=LLAMA_OUTSIDE,
        embed="embed_tokens",
        final_norm="norm",
        free_heads=True,
        ignored=(".rotary_emb.inv_freq",),
        gguf=QWEN2_GGUF,
    ),
}
SUPPORTED = ", ".join(family.name for family in FAMILIES.values())
GGUF_KNOWN = ", ".join(family.name for family in FAMILIES.values() if family.gguf)


def require_single(architecture: str, doing: str) -> None:
    """Raises UnsupportedModel, naming `doing`, for an encoder-decoder, which has no single stack to read a word in."""
    family = FAMILIES[architecture]
    if family.kind == "encoder-decoder":
        raise UnsupportedModel(
            f"Cannot do {doing} with a {family.name} model: a word is read in one stack of blocks, and it has an "
            f"encoder and a "
            "decoder; take a decoder (GPT-2, tiny-senses) or an encoder (BERT), or use trace and walk with a source "
            "and a target."
        )
