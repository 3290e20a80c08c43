"""BART and similar models: encoder-decoders with LayerNorm and learned or sinusoidal positions."""

from dataclasses import replace
from typing import Any

from probe.model.architectures.blocks import (
    MLP_QUANTITIES,
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

BARTS: dict[str, Family] = {}


def _bart_parts(attn: str) -> dict[str, tuple[str, str]]:
    """The weights of an attention with this raw name, and of its norm."""
    heads = {role: (f"{attn}.{role}_proj", "heads*d_head d_model with bias") for role in "qkv"}
    return heads | {
        "o": (f"{attn}.out_proj", "d_model heads*d_head with bias"),
        "norm": (f"{attn}_layer_norm", "d_model with bias"),
    }


# In a pre-norm decoder the cross-attention and its norm follow these.
HOOKS_AFTER_SELF_ATTENTION = {"attn_out": "self_attn.o.hook_out", "resid_mid": "ln2.hook_in"}

BART_MLP = {
    "in": ("fc1", "d_mlp d_model with bias"),
    "out": ("fc2", "d_model d_mlp with bias"),
    "norm_mlp": ("final_layer_norm", "d_model with bias"),
}

BARTS["bart"] = Family(
    name="BART",
    kind="encoder-decoder",
    architectures=("BartForConditionalGeneration",),
    config_keys=ConfigKeys(
        epsilon=1e-5,
        activation="activation_function",
        sizes={"d_mlp": "encoder_ffn_dim", "n_decoder_layers": "decoder_layers"},
        certified_values={
            "add_final_layer_norm": (False,),
            "normalize_before": (False,),
            "share_encoder_decoder_embeddings": (True,),
            "tie_word_embeddings": (True,),
        },
        equal_pairs=(
            ("encoder_layers", "decoder_layers"),
            ("encoder_attention_heads", "decoder_attention_heads"),
            ("encoder_ffn_dim", "decoder_ffn_dim"),
        ),
        first_position_row=2,
        reserved_position_rows=2,
    ),
    prefix="model.",
    norm_first=False,
    norm_after_sum=True,
    attentions=(
        Attention(
            name="encoder",
            hooks=post_norm_hooks(),
            layer_prefix="encoder.layers.{}.",
            parts=_bart_parts("self_attn") | BART_MLP,
            unreliable_hooks=post_norm_replacements(),
        ),
        Attention(
            name="decoder",
            hooks=post_norm_hooks("self_attn"),
            layer_prefix="decoder.layers.{}.",
            parts=_bart_parts("self_attn") | BART_MLP,
            causal=True,
            unreliable_hooks=post_norm_replacements("self_attn"),
        ),
        Attention(
            name="cross",
            hooks=without(post_norm_hooks("cross_attn", "ln2"), *MLP_QUANTITIES)
            | {"resid_pre": "ln1.hook_out", "memory": "cross_attn.k.hook_in"},
            layer_prefix="decoder.layers.{}.",
            parts=_bart_parts("encoder_attn"),
            unreliable_hooks=recomputed_scores("cross_attn"),
        ),
    ),
    optional_weights={"final_logits_bias": "1 d_vocab without .weight"},
    embed="shared",
    position_table="{}.embed_positions",
    embedding_norm="{}.layernorm_embedding",
    ignored_weights=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    tiny_config={
        "vocab_size": 400,
        "max_position_embeddings": 40,
        "d_model": 28,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 36,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 36,
    },
)

MBART_CERTIFIED: dict[str, tuple[Any, ...]] = {
    "add_final_layer_norm": (True,),
    "normalize_before": (True,),
    "static_position_embeddings": (False,),
    "share_encoder_decoder_embeddings": (True,),
    "tie_word_embeddings": (True,),
}

BARTS["mbart"] = replace(
    BARTS["bart"],
    name="mBART",
    architectures=("MBartForConditionalGeneration",),
    config_keys=replace(BARTS["bart"].config_keys, certified_values=MBART_CERTIFIED),
    norm_first=True,
    norm_after_sum=False,
    attentions=(
        Attention(
            name="encoder",
            hooks=without(pre_norm_hooks(), "scores"),
            layer_prefix="encoder.layers.{}.",
            parts=_bart_parts("self_attn") | BART_MLP,
            unreliable_hooks=recomputed_scores(),
        ),
        Attention(
            name="decoder",
            hooks=without(pre_norm_hooks("self_attn"), "scores") | HOOKS_AFTER_SELF_ATTENTION,
            layer_prefix="decoder.layers.{}.",
            parts=_bart_parts("self_attn") | BART_MLP,
            causal=True,
            unreliable_hooks=recomputed_scores("self_attn"),
        ),
        Attention(
            name="cross",
            hooks=without(
                pre_norm_hooks("cross_attn", "ln2"), "scores", "resid_mid", *MLP_QUANTITIES
            )
            | {
                "resid_pre": "ln2.hook_in",
                "attn_out": "cross_attn.o.hook_out",
                "memory": "cross_attn.k.hook_in",
            },
            layer_prefix="decoder.layers.{}.",
            parts=_bart_parts("encoder_attn"),
            unreliable_hooks=recomputed_scores("cross_attn")
            | {
                "resid_mid": Replacement(
                    hook="", traced_instead="E + attn_out, which no hook holds"
                )
            },
        ),
    ),
    final_norm="{}.layer_norm",
    tiny_config={**BARTS["bart"].tiny_config, "decoder_start_token_id": 0, "scale_embedding": True},
)

# Published models have two encoder layers and many decoder layers, so these need not be equal.
BARTS["blenderbot"] = replace(
    BARTS["mbart"],
    name="Blenderbot",
    architectures=("BlenderbotForConditionalGeneration",),
    config_keys=replace(
        BARTS["mbart"].config_keys,
        certified_values=without(MBART_CERTIFIED, "share_encoder_decoder_embeddings"),
        equal_pairs=(
            ("encoder_attention_heads", "decoder_attention_heads"),
            ("encoder_ffn_dim", "decoder_ffn_dim"),
        ),
        first_position_row=0,
        reserved_position_rows=0,
    ),
    embedding_norm="",
    tiny_config={**BARTS["bart"].tiny_config, "decoder_start_token_id": 0, "pad_token_id": 0},
)

TINY_SWISH: dict[str, Any] = {
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "activation_function": "swish",
    "scale_embedding": True,
}

# Positions are sines and not a table of learned rows; files may still contain the table.
SINUSOIDAL_POSITIONS: dict[str, Any] = {
    "positions": "sinusoidal",
    "position_table": "",
    "embedding_norm": "",
    "ignored_weights": (
        *BARTS["bart"].ignored_weights,
        "encoder.embed_positions.weight",
        "decoder.embed_positions.weight",
    ),
}

BARTS["pegasus"] = replace(
    BARTS["mbart"],
    name="Pegasus",
    architectures=("PegasusForConditionalGeneration",),
    config_keys=replace(
        BARTS["mbart"].config_keys,
        certified_values=without(
            MBART_CERTIFIED,
            "share_encoder_decoder_embeddings",
            "static_position_embeddings",
        ),
        first_position_row=0,
        reserved_position_rows=0,
    ),
    tiny_config={**BARTS["bart"].tiny_config, **TINY_SWISH},
    **SINUSOIDAL_POSITIONS,
)

BARTS["marian"] = replace(
    BARTS["bart"],
    name="Marian",
    architectures=("MarianMTModel",),
    config_keys=replace(BARTS["bart"].config_keys, first_position_row=0, reserved_position_rows=0),
    tiny_config={**BARTS["bart"].tiny_config, **TINY_SWISH},
    **SINUSOIDAL_POSITIONS,
)
