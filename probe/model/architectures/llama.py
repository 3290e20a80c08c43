"""Llama and its kin: decoders with RMSNorm, gated MLPs and rotary positions. A row says how it
differs from Llama's.
"""

from dataclasses import replace

from probe.model.architectures.blocks import (
    SANDWICH_NORMS,
    TINY_GROUPED,
    TINY_SCALES,
    TINY_TOKENS,
    TINY_YARN,
    WRITE_REPLACEMENTS,
    WRITTEN,
    causal,
    norms,
)
from probe.model.architectures.family import (
    Family,
    GgufKeys,
    Keys,
    with_bias,
    without,
)
from probe.model.architectures.gguf_keys import (
    GGUF_HEAD_SIZES,
    GGUF_LAYER_NORM,
    GGUF_PLAIN,
    GGUF_ROTARY,
    GGUF_STRETCHED,
    GGUF_WINDOW,
    KIN_GGUF,
    WINDOW_GGUF,
    gguf_yarn,
)

LLAMAS: dict[str, Family] = {}

PARTS = {
    "q": ("self_attn.q_proj", "heads*d_head d_model"),
    "k": ("self_attn.k_proj", "kv_heads*d_head d_model"),
    "v": ("self_attn.v_proj", "kv_heads*d_head d_model"),
    "o": ("self_attn.o_proj", "d_model heads*d_head"),
    "norm": ("input_layernorm", "d_model"),
    "gate": ("mlp.gate_proj", "d_mlp d_model"),
    "up": ("mlp.up_proj", "d_mlp d_model"),
    "out": ("mlp.down_proj", "d_model d_mlp"),
    "norm_mlp": ("post_attention_layernorm", "d_model"),
}

BIASED_NORMS = {
    "norm": ("input_layernorm", "d_model with bias"),
    "norm_mlp": ("post_attention_layernorm", "d_model with bias"),
}

# One setting, "attention_bias", says whether q, k, v and o have biases.
ATTENTION_BIAS = {"attention_bias": "qkvo"}


LLAMA_GGUF = GgufKeys(
    "llama",
    numbers=GGUF_ROTARY,
    must=GGUF_PLAIN,
    unread=(*GGUF_HEAD_SIZES, "tensor_data_layout"),
    interleaved=("q", "k"),
)

LLAMAS["llama"] = Family(
    name="Llama",
    kind="decoder",
    architectures=("LlamaForCausalLM",),
    keys=Keys(epsilon="rms_norm_eps", must={"mlp_bias": (False,)}, biases=ATTENTION_BIAS),
    prefix="model.",
    norm="RMSNorm",
    gated=True,
    positions="rotary",
    in_float32=("norm", "softmax"),
    attentions=causal(PARTS),
    embed="embed_tokens",
    final_norm="norm",
    free_heads=True,
    ignored=("*.rotary_emb.inv_freq",),
    gguf=LLAMA_GGUF,
    tiny=TINY_GROUPED | {"head_dim": 6},
)

LLAMAS["mistral"] = replace(
    LLAMAS["llama"],
    name="Mistral",
    architectures=("MistralForCausalLM",),
    keys=Keys(
        epsilon="rms_norm_eps",
        must={"layer_types": (None,)},
        window="sliding_window",
    ),
    gguf=None,
    tiny={**LLAMAS["llama"].tiny, "sliding_window": 5},
)

LLAMAS["phi3"] = replace(
    LLAMAS["llama"],
    name="Phi-3",
    architectures=("Phi3ForCausalLM",),
    keys=Keys(epsilon="rms_norm_eps", window="sliding_window"),
    in_float32=("norm",),
    plain_rounds=True,
    free_heads=False,
    attentions=causal(
        without(PARTS, "q", "k", "v", "gate", "up")
        | {
            "qkv": ("self_attn.qkv_proj", "heads*d_head+2*kv_heads*d_head d_model"),
            "gate_up": ("mlp.gate_up_proj", "2*d_mlp d_model"),
        },
        fused="by role",
    ),
    gguf=replace(WINDOW_GGUF, architecture="phi3"),
    tiny=TINY_GROUPED | TINY_TOKENS,
)

LLAMAS["smollm3"] = replace(
    LLAMAS["llama"],
    name="SmolLM3",
    architectures=("SmolLM3ForCausalLM",),
    keys=replace(
        LLAMAS["llama"].keys,
        must={"mlp_bias": (False,), "use_sliding_window": (False,)},
        rotated="no_rope_layers",
    ),
    free_heads=False,
    gguf=replace(LLAMA_GGUF, architecture="smollm3"),
    tiny=TINY_GROUPED | TINY_TOKENS | {"no_rope_layers": [1, 0]},
)

LLAMAS["granite"] = replace(
    LLAMAS["llama"],
    name="Granite",
    architectures=("GraniteForCausalLM",),
    keys=replace(
        LLAMAS["llama"].keys,
        scales={
            "embed": "embedding_multiplier",
            "write": "residual_multiplier",
            "scores": "attention_multiplier",
            "logits": "logits_scaling",
        },
    ),
    gguf=replace(
        LLAMA_GGUF,
        architecture="granite",
        numbers=GGUF_ROTARY
        | {
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    tiny=TINY_GROUPED | TINY_TOKENS | TINY_SCALES,
)

LLAMAS["stablelm"] = replace(
    LLAMAS["llama"],
    name="StableLM",
    architectures=("StableLmForCausalLM",),
    keys=Keys(
        epsilon="layer_norm_eps",
        must={"qk_layernorm": (False,), "use_parallel_residual": (False,)},
        biases={"use_qkv_bias": "qkv"},
    ),
    norm="LayerNorm",
    in_float32=("softmax",),
    attentions=causal(PARTS | BIASED_NORMS),
    free_heads=False,
    gguf=GgufKeys(
        "stablelm",
        numbers=GGUF_LAYER_NORM
        | {
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
    tiny=TINY_GROUPED | TINY_TOKENS,
)

LLAMAS["starcoder2"] = replace(
    LLAMAS["llama"],
    name="StarCoder2",
    architectures=("Starcoder2ForCausalLM",),
    keys=Keys(
        epsilon="norm_epsilon",
        must={"use_bias": (True,)},
        window="sliding_window",
    ),
    norm="LayerNorm",
    gated=False,
    in_float32=("softmax",),
    attentions=causal(
        {
            "norm": ("input_layernorm", "d_model with bias"),
            "q": ("self_attn.q_proj", "heads*d_head d_model with bias"),
            "k": ("self_attn.k_proj", "kv_heads*d_head d_model with bias"),
            "v": ("self_attn.v_proj", "kv_heads*d_head d_model with bias"),
            "o": ("self_attn.o_proj", "d_model heads*d_head with bias"),
            "norm_mlp": ("post_attention_layernorm", "d_model with bias"),
            "in": ("mlp.c_fc", "d_mlp d_model with bias"),
            "out": ("mlp.c_proj", "d_model d_mlp with bias"),
        }
    ),
    # GGUF has no key for the window, so a model that is read from a GGUF file has none.
    gguf=GgufKeys(
        "starcoder2",
        numbers=GGUF_LAYER_NORM | {"attention.layer_norm_epsilon": "norm_epsilon"},
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
    tiny=TINY_GROUPED | TINY_TOKENS | {"sliding_window": 5},
)

LLAMAS["arcee"] = replace(
    LLAMAS["llama"],
    name="Arcee",
    architectures=("ArceeForCausalLM",),
    gated=False,
    attentions=causal(without(PARTS, "gate", "up") | {"in": ("mlp.up_proj", "d_mlp d_model")}),
    gguf=replace(
        LLAMA_GGUF,
        architecture="arcee",
        numbers=GGUF_ROTARY | gguf_yarn("rope_scaling"),
        must=GGUF_STRETCHED,
    ),
)

LLAMAS["seed_oss"] = replace(
    LLAMAS["llama"],
    name="Seed-OSS",
    architectures=("SeedOssForCausalLM",),
    keys=replace(
        LLAMAS["llama"].keys,
        biases={"attention_bias": "qkv", "attention_out_bias": "o"},
    ),
    gguf=replace(KIN_GGUF, architecture="seed_oss"),
)

LLAMAS["ernie4_5"] = replace(
    LLAMAS["llama"],
    name="ERNIE 4.5",
    architectures=("Ernie4_5ForCausalLM",),
    keys=Keys(epsilon="rms_norm_eps", must={"use_bias": (False,)}),
    interleaved=True,
    in_float32=("norm", "rotation", "softmax"),
    gguf=replace(KIN_GGUF, architecture="ernie4_5"),
    tiny={**LLAMAS["llama"].tiny, **TINY_TOKENS},
)

LLAMAS["helium"] = replace(
    LLAMAS["llama"],
    name="Helium",
    architectures=("HeliumForCausalLM",),
    keys=replace(LLAMAS["llama"].keys, biases={"attention_bias": "qkv"}),
    interleaved=True,
    # The adapter rounds what is rotated; the code of transformers does not.
    in_float32=("norm", "gain", "rotated", "softmax"),
    plain_rounds=True,
    free_heads=False,
    gguf=None,
    tiny=TINY_GROUPED | {"head_dim": 8},
    # Llama's modules with interleaved rotary pairs, as in ERNIE 4.5.
    adapter="Ernie4_5ForCausalLM",
)

LLAMAS["nemotron"] = replace(
    LLAMAS["llama"],
    name="Nemotron",
    architectures=("NemotronForCausalLM",),
    keys=replace(LLAMAS["llama"].keys, epsilon="norm_eps"),
    norm="LayerNorm",
    offset=True,
    gated=False,
    in_float32=("softmax",),
    attentions=causal(
        without(PARTS, "gate", "up") | BIASED_NORMS | {"in": ("mlp.up_proj", "d_mlp d_model")}
    ),
    gguf=GgufKeys(
        "nemotron",
        numbers=GGUF_LAYER_NORM
        | {f"attention.layer_norm_{rms}epsilon": "norm_eps" for rms in ("", "rms_")},
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
    tiny=TINY_GROUPED | TINY_TOKENS,
)

LLAMAS["jais2"] = replace(
    LLAMAS["nemotron"],
    name="Jais 2",
    architectures=("Jais2ForCausalLM",),
    keys=Keys(epsilon="layer_norm_eps", must={"mlp_bias": (True,)}, biases=ATTENTION_BIAS),
    offset=False,
    attentions=causal(with_bias(LLAMAS["nemotron"].attentions[0].parts, "in", "out")),
    gguf=GgufKeys(
        "jais2",
        numbers=GGUF_LAYER_NORM | {"attention.layer_norm_epsilon": "layer_norm_eps"},
        must=GGUF_PLAIN,
        unread=GGUF_HEAD_SIZES,
    ),
)

LLAMAS["glm"] = replace(
    LLAMAS["llama"],
    name="GLM",
    architectures=("GlmForCausalLM",),
    keys=Keys(epsilon="rms_norm_eps", biases={"attention_bias": "qkv"}),
    interleaved=True,
    in_float32=("norm", "rotated", "softmax"),
    plain_rounds=True,
    attentions=causal(
        without(PARTS, "gate", "up") | {"gate_up": ("mlp.gate_up_proj", "2*d_mlp d_model")}
    ),
    # llama.cpp's converter reads neither its epsilon nor its context, so a file states wrong
    # values.
    gguf=None,
    tiny=TINY_GROUPED | TINY_TOKENS | {"head_dim": 12},
)

LLAMAS["glm4"] = replace(
    LLAMAS["glm"],
    name="GLM-4",
    architectures=("Glm4ForCausalLM",),
    norm_after_write=True,
    attentions=causal(
        dict(LLAMAS["glm"].attentions[0].parts)
        | {
            "norm_out": ("post_self_attn_layernorm", "d_model"),
            "norm_mlp_out": ("post_mlp_layernorm", "d_model"),
        },
        WRITE_REPLACEMENTS,
        read=WRITTEN,
    ),
    gguf=replace(KIN_GGUF, architecture="glm4"),
)


LLAMAS["olmo2"] = replace(
    LLAMAS["llama"],
    name="OLMo 2",
    architectures=("Olmo2ForCausalLM",),
    keys=Keys(epsilon="rms_norm_eps", biases=ATTENTION_BIAS),
    norm_first=False,
    norm_after_write=True,
    free_heads=False,
    attentions=causal(
        without(PARTS, "norm", "norm_mlp")
        | SANDWICH_NORMS
        | norms("heads*d_head", "kv_heads*d_head"),
        WRITE_REPLACEMENTS,
        read=WRITTEN | {"x": "attn.q.hook_in"},
    ),
    gguf=replace(KIN_GGUF, architecture="olmo2"),
    tiny=TINY_GROUPED | TINY_TOKENS,
)

LLAMAS["olmo3"] = replace(
    LLAMAS["olmo2"],
    name="OLMo 3",
    architectures=("Olmo3ForCausalLM",),
    keys=replace(LLAMAS["olmo2"].keys, window="sliding_window", kinds="layer_types"),
    gguf=replace(
        KIN_GGUF,
        architecture="olmo2",
        told_by="attention.sliding_window",
        numbers=GGUF_WINDOW
        | {
            "rope.freq_base": " ".join(
                f"rope_parameters.{kind}_attention.rope_theta" for kind in ("full", "sliding")
            ),
            "rope.freq_base_swa": "rope_parameters.sliding_attention.rope_theta",
        }
        | gguf_yarn("rope_parameters.full_attention"),
        layers={
            "attention.sliding_window_pattern": (
                "layer_types",
                "sliding_attention",
                "full_attention",
            )
        },
        must=without(GGUF_STRETCHED, "attention.sliding_window"),
    ),
    tiny=TINY_GROUPED
    | TINY_TOKENS
    | {
        "sliding_window": 5,
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": TINY_YARN,
        },
    },
)
