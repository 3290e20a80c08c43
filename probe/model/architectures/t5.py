"""T5 and mT5: encoder-decoders with RMSNorm and relative position biases."""

from dataclasses import replace

from probe.model.architectures.blocks import (
    MLP_QUANTITIES,
    pre_norm_hooks,
    recomputed_scores,
)
from probe.model.architectures.family import (
    Attention,
    ConfigKeys,
    Family,
    without,
)

T5S: dict[str, Family] = {}


def _t5_parts(number: int, attn: str) -> dict[str, tuple[str, str]]:
    """The weights of the attention `attn`, and of its norm.

    number: of this attention among the modules of a layer
    """
    heads = {role: (f"layer.{number}.{attn}.{role}", "heads*d_head d_model") for role in "qkv"}
    return heads | {
        "o": (f"layer.{number}.{attn}.o", "d_model heads*d_head"),
        "norm": (f"layer.{number}.layer_norm", "d_model"),
    }


def _t5_mlp(number: int) -> dict[str, tuple[str, str]]:
    """The weights of the MLP, and of its norm.

    number: of the MLP among the modules of a layer
    """
    dense = f"layer.{number}.DenseReluDense"
    return {
        # A checkpoint contains either gate and up, or "in".
        "gate": (f"{dense}.wi_0", "d_mlp d_model"),
        "up": (f"{dense}.wi_1", "d_mlp d_model"),
        "in": (f"{dense}.wi", "d_mlp d_model"),
        "out": (f"{dense}.wo", "d_model d_mlp"),
        "norm_mlp": (f"layer.{number}.layer_norm", "d_model"),
    }


T5S["t5"] = Family(
    name="T5",
    kind="encoder-decoder",
    architectures=("T5ForConditionalGeneration",),
    config_keys=ConfigKeys(
        epsilon="layer_norm_epsilon",
        activation="dense_act_fn",
        sizes={
            "d_mlp": "d_ff",
            "n_ctx": "n_positions",
            "n_decoder_layers": "num_decoder_layers",
        },
        default_n_ctx=512,
        equal_pairs=(("num_layers", "num_decoder_layers"),),
        decoder_start="pad_token_id",
    ),
    norm="RMSNorm",
    positions="relative bias",
    divides_scores=False,
    in_float32=("variance",),
    attentions=(
        Attention(
            name="encoder",
            hooks=pre_norm_hooks(),
            layer_prefix="encoder.block.{}.",
            parts=_t5_parts(0, "SelfAttention") | _t5_mlp(1),
        ),
        Attention(
            name="decoder",
            hooks=without(pre_norm_hooks("self_attn"), "scores"),
            layer_prefix="decoder.block.{}.",
            parts=_t5_parts(0, "SelfAttention") | _t5_mlp(2),
            causal=True,
            unreliable_hooks=recomputed_scores("self_attn"),
        ),
        Attention(
            name="cross",
            hooks=without(pre_norm_hooks("cross_attn", "ln2"), *MLP_QUANTITIES)
            | {
                "resid_pre": "hook_resid_mid",
                "attn_out": "hook_cross_attn_out",
                "resid_mid": "hook_resid_mid2",
                "memory": "cross_attn.k.hook_in",
            },
            layer_prefix="decoder.block.{}.",
            parts=_t5_parts(1, "EncDecAttention"),
        ),
    ),
    embed="shared",
    position_table="{}.block.0.layer.0.SelfAttention.relative_attention_bias",
    final_norm="{}.final_layer_norm",
    d_head_is_independent=True,
    ignored_weights=(
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    ),
    tiny_config={
        "vocab_size": 400,
        "num_layers": 2,
        "num_heads": 4,
        "d_model": 28,
        "d_kv": 5,
        "d_ff": 36,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
    },
)

T5S["mt5"] = replace(
    T5S["t5"],
    name="mT5",
    architectures=("MT5ForConditionalGeneration",),
)
