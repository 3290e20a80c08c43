"""Encoders: BERT and similar models, and ModernBERT with its decoder."""

from dataclasses import replace
from typing import Any

from probe.model.architectures.blocks import (
    TINY,
    TINY_TOKENS,
    post_norm_hooks,
    post_norm_replacements,
    pre_norm_hooks,
    recomputed,
)
from probe.model.architectures.family import (
    Attention,
    Family,
    GgufKeys,
    Keys,
    Replacement,
    without,
)

BERTS: dict[str, Family] = {}

BERTS["bert"] = Family(
    name="BERT",
    kind="encoder",
    architectures=("BertForMaskedLM", "BertForPreTraining"),
    keys=Keys(
        epsilon="layer_norm_eps",
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
                "q": ("attention.self.query", "heads*d_head d_model with bias"),
                "k": ("attention.self.key", "heads*d_head d_model with bias"),
                "v": ("attention.self.value", "heads*d_head d_model with bias"),
                "o": ("attention.output.dense", "d_model heads*d_head with bias"),
                "norm": ("attention.output.LayerNorm", "d_model with bias"),
                "in": ("intermediate.dense", "d_mlp d_model with bias"),
                "out": ("output.dense", "d_model d_mlp with bias"),
                "norm_mlp": ("output.LayerNorm", "d_model with bias"),
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
        numbers={"attention.layer_norm_epsilon": "layer_norm_eps"},
        told_by="token_types.weight",
        must={"attention.causal": (False,)},
        unread=("pooling_type",),
    ),
    tiny=TINY | {"hidden_size": 28, "max_position_embeddings": 40},
)

BERTS["roberta"] = replace(
    BERTS["bert"],
    name="RoBERTa",
    architectures=("RobertaForMaskedLM",),
    keys=replace(BERTS["bert"].keys, first="pad_token_id"),
    prefix="roberta.",
    unembed="lm_head.decoder",
    transform=("lm_head.dense", "lm_head.layer_norm", "gelu"),
    head_bias="lm_head.bias",
    ignored=("pooler.*", "lm_head.decoder.bias", "embeddings.position_ids"),
    gguf=None,
    tiny={**BERTS["bert"].tiny, "max_position_embeddings": 42},
)

BERTS["xlm-roberta"] = replace(
    BERTS["roberta"],
    name="XLM-RoBERTa",
    architectures=("XLMRobertaForMaskedLM",),
    adapter="RobertaForMaskedLM",
)

BERTS["camembert"] = replace(
    BERTS["roberta"],
    name="CamemBERT",
    architectures=("CamembertForMaskedLM",),
    adapter="RobertaForMaskedLM",
)

BERTS["distilbert"] = replace(
    BERTS["bert"],
    name="DistilBERT",
    architectures=("DistilBertForMaskedLM",),
    keys=Keys(
        epsilon=1e-12,
        activation="activation",
        sizes={"d_mlp": "hidden_dim"},
        must={"sinusoidal_pos_embds": (False,), "tie_word_embeddings": (True,)},
    ),
    prefix="distilbert.",
    attentions=(
        Attention(
            "",
            post_norm_hooks(),
            "transformer.layer.{}.",
            {
                **{
                    role: (f"attention.{role}_lin", "heads*d_head d_model with bias")
                    for role in "qkv"
                },
                "o": ("attention.out_lin", "d_model heads*d_head with bias"),
                "norm": ("sa_layer_norm", "d_model with bias"),
                "in": ("ffn.lin1", "d_mlp d_model with bias"),
                "out": ("ffn.lin2", "d_model d_mlp with bias"),
                "norm_mlp": ("output_layer_norm", "d_model with bias"),
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
        numbers={},
        must={"attention.causal": (False,), "attention.layer_norm_epsilon": (1e-12,)},
        unread=("pooling_type",),
    ),
    tiny={
        "vocab_size": 400,
        "max_position_embeddings": 40,
        "n_layers": 2,
        "n_heads": 4,
        "dim": 28,
        "hidden_dim": 36,
    },
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
    "norm": ("attn_norm", "d_model"),
    "o": ("attn.Wo", "d_model heads*d_head"),
    "gate_up": ("mlp.Wi", "2*d_mlp d_model"),
    "out": ("mlp.Wo", "d_model d_mlp"),
    "norm_mlp": ("mlp_norm", "d_model"),
}

BERTS["modernbert"] = Family(
    name="ModernBERT",
    kind="encoder",
    architectures=("ModernBertForMaskedLM",),
    keys=Keys(
        epsilon="norm_eps",
        activation="hidden_activation",
        must=_NO_BIASES,
        window="sliding_window",
        kinds="layer_types",
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
            _GEGLU | {"qkv": ("attn.Wqkv", "heads*d_head+2*kv_heads*d_head d_model")},
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
        numbers={f"attention.layer_norm_{rms}epsilon": "norm_eps" for rms in ("", "rms_")}
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
    tiny=TINY
    | TINY_TOKENS
    | {
        "hidden_size": 32,
        "max_position_embeddings": 40,
        "local_attention": 10,
        "cls_token_id": 0,
        "sep_token_id": 0,
    },
)

BERTS["modernbert-decoder"] = replace(
    BERTS["modernbert"],
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
            _GEGLU | {role: (f"attn.{role}_proj", "heads*d_head d_model") for role in "qkv"},
            causal=True,
            unreliable_hooks=recomputed(),
            not_in_first=("norm",),
        ),
    ),
    transform=("lm_head.dense", "lm_head.norm", "gelu"),
    adapter="",
    gguf=None,
)
