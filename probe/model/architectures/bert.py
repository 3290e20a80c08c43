"""Encoders: BERT and similar models, and ModernBERT with its decoder."""

from dataclasses import replace
from typing import Any

from probe.model.architectures.blocks import (
    TINY,
    TINY_TOKENS,
    post_norm_hooks,
    post_norm_replacements,
    pre_norm_hooks,
    recomputed_scores,
)
from probe.model.architectures.family import (
    Attention,
    ConfigKeys,
    Family,
    Replacement,
    without,
)
from probe.model.architectures.llama import LLAMAS

BERTS: dict[str, Family] = {}

BERTS["bert"] = Family(
    name="BERT",
    kind="encoder",
    architectures=("BertForMaskedLM", "BertForPreTraining"),
    config_keys=ConfigKeys(
        epsilon="layer_norm_eps",
        certified_values={
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
            name="",
            hooks=post_norm_hooks(),
            layer_prefix="encoder.layer.{}.",
            parts={
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
            | {
                "attn_out": Replacement(
                    hook="hook_attn_out", traced_instead="read in front of the sum and its norm"
                )
            },
        ),
    ),
    embed="embeddings.word_embeddings",
    position_table="embeddings.position_embeddings",
    type_table="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    unembed="cls.predictions.decoder",
    lm_head_transform=(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "",
    ),
    unembed_bias="cls.predictions.bias",
    ignored_weights=(
        "pooler.*",
        "cls.seq_relationship.*",
        "cls.predictions.decoder.bias",
        "embeddings.position_ids",
    ),
    tiny_config=TINY | {"hidden_size": 28, "max_position_embeddings": 40},
)

BERTS["roberta"] = replace(
    BERTS["bert"],
    name="RoBERTa",
    architectures=("RobertaForMaskedLM",),
    config_keys=replace(BERTS["bert"].config_keys, first_position_row="pad_token_id"),
    prefix="roberta.",
    unembed="lm_head.decoder",
    lm_head_transform=("lm_head.dense", "lm_head.layer_norm", "gelu"),
    unembed_bias="lm_head.bias",
    ignored_weights=("pooler.*", "lm_head.decoder.bias", "embeddings.position_ids"),
    tiny_config={**BERTS["bert"].tiny_config, "max_position_embeddings": 42},
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

BERTS["electra"] = replace(
    BERTS["bert"],
    name="ELECTRA",
    architectures=("ElectraForMaskedLM",),
    base_classes=("ElectraModel", "ElectraForPreTraining"),
    # Of another width, embeddings would be projected.
    config_keys=replace(
        BERTS["bert"].config_keys, equal_pairs=(("hidden_size", "embedding_size"),)
    ),
    prefix="electra.",
    unembed="generator_lm_head",
    lm_head_transform=("generator_predictions.dense", "generator_predictions.LayerNorm", "gelu"),
    unembed_bias="generator_lm_head.bias",
    ignored_weights=("discriminator_predictions.*", "embeddings.position_ids"),
    adapter="by the row",
    tiny_config={**BERTS["bert"].tiny_config, "embedding_size": 28},
)

BERTS["distilbert"] = replace(
    BERTS["bert"],
    name="DistilBERT",
    architectures=("DistilBertForMaskedLM",),
    config_keys=ConfigKeys(
        epsilon=1e-12,
        activation="activation",
        sizes={"d_mlp": "hidden_dim"},
        certified_values={"sinusoidal_pos_embds": (False,), "tie_word_embeddings": (True,)},
    ),
    prefix="distilbert.",
    attentions=(
        Attention(
            name="",
            hooks=post_norm_hooks(),
            layer_prefix="transformer.layer.{}.",
            parts={
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
    lm_head_transform=("vocab_transform", "vocab_layer_norm", ""),
    unembed_bias="vocab_projector.bias",
    ignored_weights=("embeddings.position_ids",),
    adapter="by the row",
    tiny_config={
        "vocab_size": 400,
        "max_position_embeddings": 40,
        "n_layers": 2,
        "n_heads": 4,
        "dim": 28,
        "hidden_dim": 36,
    },
)

_MODERNBERT_CERTIFIED: dict[str, tuple[Any, ...]] = {
    "norm_bias": (False,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "classifier_bias": (False,),
    "decoder_bias": (True,),
    "classifier_activation": ("gelu",),
}

_MODERNBERT_PARTS = {
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
    config_keys=ConfigKeys(
        epsilon="norm_eps",
        activation="hidden_activation",
        certified_values=_MODERNBERT_CERTIFIED,
        window="sliding_window",
        layer_types="layer_types",
    ),
    prefix="model.",
    gated_mlp=True,
    positions="rotary",
    adapter_rounds_differently=True,
    attentions=(
        Attention(
            name="",
            hooks=pre_norm_hooks(),
            layer_prefix="layers.{}.",
            parts=_MODERNBERT_PARTS
            | {"qkv": ("attn.Wqkv", "heads*d_head+2*kv_heads*d_head d_model")},
            fused_qkv="by role",
            absent_in_layer_0=("norm",),
        ),
    ),
    embed="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    final_norm="final_norm",
    unembed="decoder",
    outer_biases=False,
    lm_head_transform=("head.dense", "head.norm", "gelu"),
    unembed_bias="decoder.bias",
    adapter="by the row",
    tiny_config=TINY
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
    adapter_rounds_differently=False,
    in_float32=("rotated", "softmax"),
    attentions=(
        Attention(
            name="",
            hooks=without(pre_norm_hooks(), "scores"),
            layer_prefix="layers.{}.",
            parts=_MODERNBERT_PARTS
            | {role: (f"attn.{role}_proj", "heads*d_head d_model") for role in "qkv"},
            causal=True,
            unreliable_hooks=recomputed_scores(),
            absent_in_layer_0=("norm",),
        ),
    ),
    lm_head_transform=("lm_head.dense", "lm_head.norm", "gelu"),
    adapter="",
)

BERTS["eurobert"] = replace(
    LLAMAS["llama"],
    name="EuroBERT",
    kind="encoder",
    architectures=("EuroBertForMaskedLM",),
    attentions=(replace(LLAMAS["llama"].attentions[0], causal=False),),
    tiny_config={**LLAMAS["llama"].tiny_config, **TINY_TOKENS, "mask_token_id": 0},
    adapter="LlamaForCausalLM",
)
