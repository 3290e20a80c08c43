"""What the table says of a family, as records: an attention's place among hooks and raw names, and what a family has in common.

The attentions of every family: their hooks, the hooks that lie, and the raw names and shapes of their weights.

Words of the shapes: d d_model, h heads x d_head, g key-value heads x d_head, m d_mlp, v d_vocab, p rows of the position table,
t token types, b relative-position buckets, n heads; "+" adds a bias as long as the first, "=" says that the name is whole.

One entry per family: where its blocks are, which hooks are right, which lie, where norms sit, mask, positions, raw names.

GPT-2 is here for its names only: its config, tensors and whole-model oracle stand in `loading` and `replay`. The attentions,
with their hooks and weights, stand in `stacks`, which also explains the words of shapes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from probe.errors import UnsupportedModel

Kind = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class Repair:
    """A hook that lies (`raw`, within its block; empty where there is none) and, in words, what the trace holds instead."""

    raw: str
    instead: str


@dataclass(frozen=True)
class Attention:
    """One attention per layer: its `name` in an encoder-decoder, its place among the hooks, and its mask.

    `hooks` maps quantities of a Trace to hooks within the block; `lies` maps quantities to hooks that are something else.
    `layers` is the beginning of the raw names of a layer, `parts` the raw name and shape of each weight behind it.
    """

    name: Literal["", "encoder", "decoder", "cross"]
    blocks: str
    hooks: Mapping[str, str]
    layers: str
    parts: Mapping[str, tuple[str, str]]
    causal: bool = False
    lies: Mapping[str, Repair] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """What is common to every model of one architecture; `headless` names the classes that have no language-model head.

    `single` says what the architecture's own code computes in float32 whatever the model's type: the variance of its norms,
    all of its norms, or its norms and its softmax. `outside` and `head` are the weights of no layer, by raw name and shape;
    `unembed` is among them only when it is not the transposed `embed`. `ignored` may be there: no formula reads it.
    """

    name: str
    kind: Kind
    architectures: tuple[str, ...]
    headless: tuple[str, ...] = ()
    prefix: str = ""
    norm: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    norm_first: bool = True
    positions: Literal["learned", "sinusoidal", "rotary", "relative bias"] = "learned"
    scaled: bool = True
    single: Literal["", "variance", "norm", "norm and softmax"] = ""
    parallel: bool = False
    attentions: tuple[Attention, ...] = ()
    outside: Mapping[str, str] = field(default_factory=dict)
    head: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    embed: str = ""
    unembed: str = "lm_head"
    ignored: tuple[str, ...] = ()


RECOMPUTED = "scores recomputed from q.k"


def _attention_hooks(attn: str) -> dict[str, str]:
    return {name: f"{attn}.hook_{name}" for name in ("q", "k", "v", "pattern", "z")}


def _norm_first(attn: str = "attn", norm: str = "ln1") -> dict[str, str]:
    """Hooks of a block that norms what attention reads: E → x = norm(E) → E + attention."""
    streams = {"resid_pre": "hook_resid_pre", "x": f"{norm}.hook_out", "attn_out": "hook_attn_out"}
    after = {"resid_mid": "hook_resid_mid", "mlp_out": "hook_mlp_out", "resid_post": "hook_resid_post"}
    return streams | _attention_hooks(attn) | {"scores": f"{attn}.hook_attn_scores"} | after


def _norm_last(attn: str = "attn", norm: str = "ln1") -> dict[str, str]:
    """Hooks of a block that norms the sum: x = E → norm(E + attention); the scores are recomputed."""
    streams = {"resid_pre": "hook_resid_pre", "x": f"{attn}.q.hook_in", "attn_out": f"{attn}.o.hook_out"}
    after = {"resid_mid": f"{norm}.hook_out", "mlp_out": "hook_mlp_out", "resid_post": "hook_resid_post"}
    return streams | _attention_hooks(attn) | after


def _norm_last_lies(attn: str = "attn") -> dict[str, Repair]:
    return {
        "scores": Repair(f"{attn}.hook_attn_scores", RECOMPUTED),
        "resid_mid": Repair("hook_resid_mid", "read behind the norm of the sum"),
    }


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
    _norm_last(),
    "encoder.layer.{}.",
    BERT_ATTENTION,
    lies=_norm_last_lies() | {"attn_out": Repair("hook_attn_out", "read in front of the sum and its norm")},
)


def _bart_parts(attn: str, norm: str) -> dict[str, tuple[str, str]]:
    heads = {part: (f"{attn}.{part}_proj", "h d +") for part in "qkv"}
    return heads | {"o": (f"{attn}.out_proj", "d h +"), "norm": (norm, "d +")}


BART_MLP = {"in": ("fc1", "m d +"), "out": ("fc2", "d m +"), "norm_mlp": ("final_layer_norm", "d +")}
BART_CROSS = _norm_last("cross_attn", "ln2") | {"resid_pre": "ln1.hook_out", "memory": "cross_attn.k.hook_in"}
BART_STACKS = (
    Attention(
        "encoder",
        "encoder_blocks",
        _norm_last(),
        "encoder.layers.{}.",
        _bart_parts("self_attn", "self_attn_layer_norm") | BART_MLP,
        lies=_norm_last_lies(),
    ),
    Attention(
        "decoder",
        "decoder_blocks",
        _norm_last("self_attn"),
        "decoder.layers.{}.",
        _bart_parts("self_attn", "self_attn_layer_norm") | BART_MLP,
        causal=True,
        lies=_norm_last_lies("self_attn"),
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


T5_CROSS = _norm_first("cross_attn", "ln2") | {
    "resid_pre": "hook_resid_mid",
    "attn_out": "hook_cross_attn_out",
    "resid_mid": "hook_resid_mid2",
    "memory": "cross_attn.k.hook_in",
}
T5_STACKS = (
    Attention(
        "encoder", "encoder_blocks", _norm_first(), "encoder.block.{}.", _t5_parts(0, "SelfAttention") | _t5_mlp(1)
    ),
    Attention(
        "decoder",
        "decoder_blocks",
        {name: hook for name, hook in _norm_first("self_attn").items() if name != "scores"},
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


def causal_stack(
    parts: Mapping[str, tuple[str, str]], lies: Mapping[str, Repair] = MappingProxyType({})
) -> tuple[Attention]:
    hooks = {name: hook for name, hook in _norm_first().items() if name not in lies}
    return (Attention("", "blocks", hooks, "layers.{}.", parts, causal=True, lies=lies),)


FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        "GPT-2",
        "decoder",
        ("GPT2LMHeadModel",),
        prefix="transformer.",
        embed="wte",
        ignored=(".attn.bias", ".attn.masked_bias"),
    ),
    "bert": Family(
        "BERT",
        "encoder",
        ("BertForMaskedLM", "BertForPreTraining"),
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
        unembed="cls.predictions.decoder",
        ignored=("pooler.", "cls.seq_relationship.", "cls.predictions.decoder.bias", "embeddings.position_ids"),
    ),
    "roberta": Family(
        "RoBERTa",
        "encoder",
        ("RobertaForMaskedLM",),
        headless=("RobertaModel",),
        prefix="roberta.",
        norm_first=False,
        attentions=(BERT_STACK,),
        outside=BERT_OUTSIDE,
        head={"lm_head.dense": "d d +", "lm_head.layer_norm": "d +", "lm_head.bias": "v ="},
        embed="embeddings.word_embeddings",
        unembed="lm_head.decoder",
        ignored=("pooler.", "lm_head.decoder.bias", "embeddings.position_ids"),
    ),
    "t5": Family(
        "T5",
        "encoder-decoder",
        ("T5ForConditionalGeneration",),
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
        ignored=BART_TIED,
    ),
    "marian": Family(
        "Marian",
        "encoder-decoder",
        ("MarianMTModel",),
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
        prefix="gpt_neox.",
        positions="rotary",
        parallel=True,
        attentions=causal_stack(NEOX_PARTS, NEOX_LIES),
        outside={"embed_in": "v d", "final_layer_norm": "d +"},
        embed="embed_in",
        unembed="embed_out",
        ignored=(".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"),
    ),
    "llama": Family(
        "Llama",
        "decoder",
        ("LlamaForCausalLM",),
        prefix="model.",
        norm="RMSNorm",
        positions="rotary",
        single="norm and softmax",
        attentions=causal_stack(LLAMA_PARTS),
        outside=LLAMA_OUTSIDE,
        embed="embed_tokens",
        ignored=(".rotary_emb.inv_freq",),
    ),
    "qwen2": Family(
        "Qwen2",
        "decoder",
        ("Qwen2ForCausalLM",),
        prefix="model.",
        norm="RMSNorm",
        positions="rotary",
        single="norm and softmax",
        attentions=causal_stack(LLAMA_PARTS | QWEN2_BIASES),
        outside=LLAMA_OUTSIDE,
        embed="embed_tokens",
        ignored=(".rotary_emb.inv_freq",),
    ),
}
SUPPORTED = ", ".join(family.name for family in FAMILIES.values())
WHOLE = "gpt2"


def require_whole(architecture: str, doing: str) -> None:
    """Raises UnsupportedModel, naming `doing`, for every family but GPT-2: only there is the whole forward certified."""
    if architecture != WHOLE:
        family = FAMILIES[architecture]
        paired = family.kind == "encoder-decoder"
        works = "trace, check and a walk with a target" if paired else "trace, check, report, evaluate and walk"
        raise UnsupportedModel(
            f"Cannot do {doing} with a {family.name} model: so far it works for GPT-2 only, and for {family.name} {works} do; "
            "take a GPT-2 or tiny-senses."
        )


def require_single(architecture: str, doing: str) -> None:
    """Raises UnsupportedModel, naming `doing`, for an encoder-decoder, which has no single stack to read a word in."""
    family = FAMILIES[architecture]
    if family.kind == "encoder-decoder":
        raise UnsupportedModel(
            f"Cannot do {doing} with a {family.name} model: a word is read in one stack of blocks, and it has an encoder and a "
            "decoder; take a decoder (GPT-2, tiny-senses) or an encoder (BERT), or use trace and walk with a source and a target."
        )
