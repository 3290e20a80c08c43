"""Encoders, BERT and its kin and ModernBERT, and encoder-decoders: T5, BART, Marian."""

from dataclasses import replace
from typing import Any

from probe.model.architectures.family import (
    HIDDEN,
    Attention,
    Family,
    GgufKeys,
    Keys,
    Replacement,
    post_norm_hooks,
    post_norm_replacements,
    pre_norm_hooks,
    recomputed,
    without,
)

BERT = Family(
    "BERT",
    "encoder",
    ("BertForMaskedLM", "BertForPreTraining"),
    Keys(
        HIDDEN,
        ("layer_norm_eps", 1e-12),
        must={
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
            "tie_word_embeddings": (True,),
        },
    ),
    prefix="bert.",
    norm_first=False,
    norm_after_sum=True,
    attentions=(
        Attention(
            "",
            post_norm_hooks(),
            "encoder.layer.{}.",
            {
                "q": ("attention.self.query", "h d +"),
                "k": ("attention.self.key", "h d +"),
                "v": ("attention.self.value", "h d +"),
                "o": ("attention.output.dense", "d h +"),
                "norm": ("attention.output.LayerNorm", "d +"),
                "in": ("intermediate.dense", "m d +"),
                "out": ("output.dense", "d m +"),
                "norm_mlp": ("output.LayerNorm", "d +"),
            },
            unreliable_hooks=post_norm_replacements()
            | {"attn_out": Replacement("hook_attn_out", "read in front of the sum and its norm")},
        ),
    ),
    embed="embeddings.word_embeddings",
    position_table="embeddings.position_embeddings",
    type_table="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    unembed="cls.predictions.decoder",
    transform=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", ""),
    head_bias="cls.predictions.bias",
    ignored=(
        "pooler.*",
        "cls.seq_relationship.*",
        "cls.predictions.decoder.bias",
        "embeddings.position_ids",
    ),
    gguf=GgufKeys(
        "bert",
        {"attention.layer_norm_epsilon": "layer_norm_eps"},
        told_by="token_types.weight",
        must={"attention.causal": (False,)},
        unread=("pooling_type",),
    ),
)
ROBERTA = replace(
    BERT,
    name="RoBERTa",
    architectures=("RobertaForMaskedLM",),
    keys=replace(BERT.keys, first=("pad_token_id", 1)),
    prefix="roberta.",
    unembed="lm_head.decoder",
    transform=("lm_head.dense", "lm_head.layer_norm", "gelu"),
    head_bias="lm_head.bias",
    ignored=("pooler.*", "lm_head.decoder.bias", "embeddings.position_ids"),
    gguf=None,
)
XLM_ROBERTA = replace(
    ROBERTA,
    name="XLM-RoBERTa",
    architectures=("XLMRobertaForMaskedLM",),
    adapter="RobertaForMaskedLM",
)
CAMEMBERT = replace(
    ROBERTA,
    name="CamemBERT",
    architectures=("CamembertForMaskedLM",),
    adapter="RobertaForMaskedLM",
)
DISTILBERT = replace(
    BERT,
    name="DistilBERT",
    architectures=("DistilBertForMaskedLM",),
    keys=replace(
        BERT.keys,
        sizes={
            "n_layers": "n_layers",
            "n_heads": "n_heads",
            "d_model": "dim",
            "d_mlp": "hidden_dim",
            "d_vocab": "vocab_size",
            "n_ctx": "max_position_embeddings",
        },
        epsilon=("", 1e-12),
        activation=("activation", "gelu"),
        must={"sinusoidal_pos_embds": (False,), "tie_word_embeddings": (True,)},
    ),
    prefix="distilbert.",
    attentions=(
        Attention(
            "",
            post_norm_hooks(),
            "transformer.layer.{}.",
            {
                **{role: (f"attention.{role}_lin", "h d +") for role in "qkv"},
                "o": ("attention.out_lin", "d h +"),
                "norm": ("sa_layer_norm", "d +"),
                "in": ("ffn.lin1", "m d +"),
                "out": ("ffn.lin2", "d m +"),
                "norm_mlp": ("output_layer_norm", "d +"),
            },
            unreliable_hooks=post_norm_replacements(),
        ),
    ),
    type_table="",
    unembed="vocab_projector",
    transform=("vocab_transform", "vocab_layer_norm", ""),
    head_bias="vocab_projector.bias",
    ignored=("embeddings.position_ids",),
    adapter="by the row",
    gguf=GgufKeys(
        "bert",
        {},
        must={"attention.causal": (False,), "attention.layer_norm_epsilon": (1e-12,)},
        unread=("pooling_type",),
    ),
)

_NO_BIASES: dict[str, tuple[Any, ...]] = {
    "norm_bias": (False,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "classifier_bias": (False,),
    "decoder_bias": (True,),
    "classifier_activation": ("gelu",),
}
_GEGLU = {
    "norm": ("attn_norm", "d"),
    "o": ("attn.Wo", "d h"),
    "gate_up": ("mlp.Wi", "2m d"),
    "out": ("mlp.Wo", "d m"),
    "norm_mlp": ("mlp_norm", "d"),
}
MODERNBERT = Family(
    "ModernBERT",
    "encoder",
    ("ModernBertForMaskedLM",),
    Keys(
        HIDDEN,
        ("norm_eps", 1e-5),
        ("hidden_activation", "gelu"),
        must=_NO_BIASES,
        rotary_base=160000.0,
        local_base=("local_rope_theta", 10000.0),
        window=("local_attention", 128),
        halved=True,
        kinds="layer_types",
        global_every=("global_attn_every_n_layers", 3),
        global_first=True,
    ),
    prefix="model.",
    gated=True,
    positions="rotary",
    plain_rounds=True,
    attentions=(
        Attention(
            "",
            pre_norm_hooks(),
            "layers.{}.",
            _GEGLU | {"qkv": ("attn.Wqkv", "hgg d")},
            fused="by role",
            not_in_first=("norm",),
        ),
    ),
    embed="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    final_norm="final_norm",
    unembed="decoder",
    biased=False,
    transform=("head.dense", "head.norm", "gelu"),
    head_bias="decoder.bias",
    adapter="by the row",
    gguf=GgufKeys(
        "modern-bert",
        {f"attention.layer_norm_{rms}epsilon": "norm_eps" for rms in ("", "rms_")}
        | {
            "attention.sliding_window": "local_attention",
            "attention.sliding_window_pattern": "global_attn_every_n_layers",
            "rope.freq_base": "global_rope_theta",
            "rope.freq_base_swa": "local_rope_theta",
        },
        must={
            "attention.causal": (False,),
            "hidden_activation": ("gelu",),
            "rope.scaling.type": ("none",),
        },
        unread=("pooling_type",),
    ),
)
MODERNBERT_DECODER = replace(
    MODERNBERT,
    name="ModernBERT decoder",
    kind="decoder",
    architectures=("ModernBertDecoderForCausalLM",),
    plain_rounds=False,
    in_float32=("rotated", "softmax"),
    attentions=(
        Attention(
            "",
            without(pre_norm_hooks(), "scores"),
            "layers.{}.",
            _GEGLU | {role: (f"attn.{role}_proj", "h d") for role in "qkv"},
            causal=True,
            unreliable_hooks=recomputed(),
            not_in_first=("norm",),
        ),
    ),
    transform=("lm_head.dense", "lm_head.norm", "gelu"),
    adapter="",
    gguf=None,
)

# What a cross-attention, behind which no MLP stands, has no hooks of.
MLP = ("mlp_out", "resid_post")


def _t5_parts(number: int, attn: str) -> dict[str, tuple[str, str]]:
    heads = {part: (f"layer.{number}.{attn}.{part}", "h d") for part in "qkv"}
    return heads | {
        "o": (f"layer.{number}.{attn}.o", "d h"),
        "norm": (f"layer.{number}.layer_norm", "d"),
    }


def _t5_mlp(number: int) -> dict[str, tuple[str, str]]:
    dense = f"layer.{number}.DenseReluDense"
    return {
        # a checkpoint holds either these two or "in"
        "gate": (f"{dense}.wi_0", "m d"),
        "up": (f"{dense}.wi_1", "m d"),
        "in": (f"{dense}.wi", "m d"),
        "out": (f"{dense}.wo", "d m"),
        "norm_mlp": (f"layer.{number}.layer_norm", "d"),
    }


T5 = Family(
    "T5",
    "encoder-decoder",
    ("T5ForConditionalGeneration",),
    Keys(
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
        context=("n_positions", 512),
        start=("decoder_start_token_id", "pad_token_id"),
    ),
    norm="RMSNorm",
    positions="relative bias",
    scaled=False,
    in_float32=("variance",),
    attentions=(
        Attention(
            "encoder",
            pre_norm_hooks(),
            "encoder.block.{}.",
            _t5_parts(0, "SelfAttention") | _t5_mlp(1),
        ),
        Attention(
            "decoder",
            without(pre_norm_hooks("self_attn"), "scores"),
            "decoder.block.{}.",
            _t5_parts(0, "SelfAttention") | _t5_mlp(2),
            causal=True,
            unreliable_hooks=recomputed("self_attn"),
        ),
        Attention(
            "cross",
            without(pre_norm_hooks("cross_attn", "ln2"), *MLP)
            | {
                "resid_pre": "hook_resid_mid",
                "attn_out": "hook_cross_attn_out",
                "resid_mid": "hook_resid_mid2",
                "memory": "cross_attn.k.hook_in",
            },
            "decoder.block.{}.",
            _t5_parts(1, "EncDecAttention"),
        ),
    ),
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
    # No key of a file holds how far its buckets of positions reach: 128 tokens, as in every T5 that
    # is published.
    gguf=GgufKeys(
        "t5",
        {
            "decoder_block_count": "num_decoder_layers",
            "context_length": "n_positions",
            "attention.key_length": "d_kv",
            "attention.relative_buckets_count": "relative_attention_num_buckets",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "decoder_start_token_id": "decoder_start_token_id",
        },
        unread=("attention.value_length", "attention.layer_norm_rms_epsilon"),
        by_tensor={"enc.blk.0.ffn_gate.weight": {"feed_forward_proj": "gated-gelu"}},
    ),
)

MT5 = replace(
    T5,
    name="mT5",
    architectures=("MT5ForConditionalGeneration",),
    keys=replace(T5.keys, activation=("feed_forward_proj", "gated-gelu")),
    unembed_scaled=False,
    gguf=None,
)


def _bart_parts(attn: str) -> dict[str, tuple[str, str]]:
    heads = {part: (f"{attn}.{part}_proj", "h d +") for part in "qkv"}
    return heads | {"o": (f"{attn}.out_proj", "d h +"), "norm": (f"{attn}_layer_norm", "d +")}


# In a pre-norm decoder these stand in front of the norm of the cross-attention.
BEHIND_SELF_ATTENTION = {"attn_out": "self_attn.o.hook_out", "resid_mid": "ln2.hook_in"}
BART_MLP = {
    "in": ("fc1", "m d +"),
    "out": ("fc2", "d m +"),
    "norm_mlp": ("final_layer_norm", "d +"),
}
BART = Family(
    "BART",
    "encoder-decoder",
    ("BartForConditionalGeneration",),
    Keys(
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
    ),
    prefix="model.",
    norm_first=False,
    norm_after_sum=True,
    attentions=(
        Attention(
            "encoder",
            post_norm_hooks(),
            "encoder.layers.{}.",
            _bart_parts("self_attn") | BART_MLP,
            unreliable_hooks=post_norm_replacements(),
        ),
        Attention(
            "decoder",
            post_norm_hooks("self_attn"),
            "decoder.layers.{}.",
            _bart_parts("self_attn") | BART_MLP,
            causal=True,
            unreliable_hooks=post_norm_replacements("self_attn"),
        ),
        Attention(
            "cross",
            without(post_norm_hooks("cross_attn", "ln2"), *MLP)
            | {"resid_pre": "ln1.hook_out", "memory": "cross_attn.k.hook_in"},
            "decoder.layers.{}.",
            _bart_parts("encoder_attn"),
            unreliable_hooks=recomputed("cross_attn"),
        ),
    ),
    optional={"final_logits_bias": "1 v ="},
    embed="shared",
    position_table="{}.embed_positions",
    embedding_norm="{}.layernorm_embedding",
    ignored=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
)
MBART = replace(
    BART,
    name="mBART",
    architectures=("MBartForConditionalGeneration",),
    keys=replace(
        BART.keys,
        must={
            "add_final_layer_norm": (True,),
            "normalize_before": (True,),
            "static_position_embeddings": (False,),
            "share_encoder_decoder_embeddings": (True,),
            "tie_word_embeddings": (True,),
        },
    ),
    norm_first=True,
    norm_after_sum=False,
    attentions=(
        Attention(
            "encoder",
            without(pre_norm_hooks(), "scores"),
            "encoder.layers.{}.",
            _bart_parts("self_attn") | BART_MLP,
            unreliable_hooks=recomputed(),
        ),
        Attention(
            "decoder",
            without(pre_norm_hooks("self_attn"), "scores") | BEHIND_SELF_ATTENTION,
            "decoder.layers.{}.",
            _bart_parts("self_attn") | BART_MLP,
            causal=True,
            unreliable_hooks=recomputed("self_attn"),
        ),
        Attention(
            "cross",
            without(pre_norm_hooks("cross_attn", "ln2"), "scores", "resid_mid", *MLP)
            | {
                "resid_pre": "ln2.hook_in",
                "attn_out": "cross_attn.o.hook_out",
                "memory": "cross_attn.k.hook_in",
            },
            "decoder.layers.{}.",
            _bart_parts("encoder_attn"),
            unreliable_hooks=recomputed("cross_attn")
            | {"resid_mid": Replacement("", "E + attn_out, which no hook holds")},
        ),
    ),
    final_norm="{}.layer_norm",
)
# Its published ones have two layers in the encoder and many in the decoder.
BLENDERBOT = replace(
    MBART,
    name="Blenderbot",
    architectures=("BlenderbotForConditionalGeneration",),
    keys=replace(
        MBART.keys,
        must=without(MBART.keys.must, "share_encoder_decoder_embeddings"),
        equal=MBART.keys.equal[1:],
        first=0,
        reserved=0,
    ),
    embedding_norm="",
)
PEGASUS = replace(
    MBART,
    name="Pegasus",
    architectures=("PegasusForConditionalGeneration",),
    keys=replace(
        MBART.keys,
        must=without(
            MBART.keys.must, "share_encoder_decoder_embeddings", "static_position_embeddings"
        ),
        first=0,
        reserved=0,
    ),
    positions="sinusoidal",
    position_table="",
    embedding_norm="",
    ignored=(*BART.ignored, "encoder.embed_positions.weight", "decoder.embed_positions.weight"),
)
MARIAN = replace(
    BART,
    name="Marian",
    architectures=("MarianMTModel",),
    keys=replace(BART.keys, first=0, reserved=0),
    positions="sinusoidal",
    position_table="",
    embedding_norm="",
    ignored=(*BART.ignored, "encoder.embed_positions.weight", "decoder.embed_positions.weight"),
)
