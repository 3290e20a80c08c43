"""BART and its kin: encoder-decoders with LayerNorm and learned or sinusoidal positions."""

from dataclasses import replace
from typing import Any

from probe.model.architectures.blocks import (
    MLP_QUANTITIES,
    post_norm_hooks,
    post_norm_replacements,
    pre_norm_hooks,
    recomputed,
)
from probe.model.architectures.family import (
    Attention,
    Family,
    Keys,
    Replacement,
    without,
)

BARTS: dict[str, Family] = {}


def _bart_parts(attn: str) -> dict[str, tuple[str, str]]:
    heads = {part: (f"{attn}.{part}_proj", "heads*d_head d_model with bias") for part in "qkv"}
    return heads | {
        "o": (f"{attn}.out_proj", "d_model heads*d_head with bias"),
        "norm": (f"{attn}_layer_norm", "d_model with bias"),
    }


# In a pre-norm decoder these stand in front of the norm of the cross-attention.
BEHIND_SELF_ATTENTION = {"attn_out": "self_attn.o.hook_out", "resid_mid": "ln2.hook_in"}

BART_MLP = {
    "in": ("fc1", "d_mlp d_model with bias"),
    "out": ("fc2", "d_model d_mlp with bias"),
    "norm_mlp": ("final_layer_norm", "d_model with bias"),
}

BARTS["bart"] = Family(
    name="BART",
    kind="encoder-decoder",
    architectures=("BartForConditionalGeneration",),
    keys=Keys(
        epsilon=1e-5,
        activation="activation_function",
        sizes={"d_mlp": "encoder_ffn_dim", "n_decoder_layers": "decoder_layers"},
        must={
            "add_final_layer_norm": (False,),
            "normalize_before": (False,),
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
            without(post_norm_hooks("cross_attn", "ln2"), *MLP_QUANTITIES)
            | {"resid_pre": "ln1.hook_out", "memory": "cross_attn.k.hook_in"},
            "decoder.layers.{}.",
            _bart_parts("encoder_attn"),
            unreliable_hooks=recomputed("cross_attn"),
        ),
    ),
    optional={"final_logits_bias": "1 d_vocab without .weight"},
    embed="shared",
    position_table="{}.embed_positions",
    embedding_norm="{}.layernorm_embedding",
    ignored=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    tiny={
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

BARTS["mbart"] = replace(
    BARTS["bart"],
    name="mBART",
    architectures=("MBartForConditionalGeneration",),
    keys=replace(
        BARTS["bart"].keys,
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
            without(pre_norm_hooks("cross_attn", "ln2"), "scores", "resid_mid", *MLP_QUANTITIES)
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
    tiny={**BARTS["bart"].tiny, "decoder_start_token_id": 0, "scale_embedding": True},
)

# Its published ones have two layers in the encoder and many in the decoder.
BARTS["blenderbot"] = replace(
    BARTS["mbart"],
    name="Blenderbot",
    architectures=("BlenderbotForConditionalGeneration",),
    keys=replace(
        BARTS["mbart"].keys,
        must=without(BARTS["mbart"].keys.must, "share_encoder_decoder_embeddings"),
        equal=BARTS["mbart"].keys.equal[1:],
        first=0,
        reserved=0,
    ),
    embedding_norm="",
    tiny={**BARTS["bart"].tiny, "decoder_start_token_id": 0, "pad_token_id": 0},
)

TINY_SWISH: dict[str, Any] = {
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "activation_function": "swish",
    "scale_embedding": True,
}

# Sines in the place of a table of positions; files may still hold the table.
COMPUTED_POSITIONS: dict[str, Any] = {
    "positions": "sinusoidal",
    "position_table": "",
    "embedding_norm": "",
    "ignored": (
        *BARTS["bart"].ignored,
        "encoder.embed_positions.weight",
        "decoder.embed_positions.weight",
    ),
}

BARTS["pegasus"] = replace(
    BARTS["mbart"],
    name="Pegasus",
    architectures=("PegasusForConditionalGeneration",),
    keys=replace(
        BARTS["mbart"].keys,
        must=without(
            BARTS["mbart"].keys.must,
            "share_encoder_decoder_embeddings",
            "static_position_embeddings",
        ),
        first=0,
        reserved=0,
    ),
    tiny={**BARTS["bart"].tiny, **TINY_SWISH},
    **COMPUTED_POSITIONS,
)

BARTS["marian"] = replace(
    BARTS["bart"],
    name="Marian",
    architectures=("MarianMTModel",),
    keys=replace(BARTS["bart"].keys, first=0, reserved=0),
    tiny={**BARTS["bart"].tiny, **TINY_SWISH},
    **COMPUTED_POSITIONS,
)
