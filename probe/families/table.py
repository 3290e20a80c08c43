"""One entry per family: where its blocks are, which hooks are right, which lie, where norms sit, mask, positions, raw names.

GPT-2 is here for its names only: its config, tensors and whole-model oracle stand in `loading` and `replay`. The attentions,
with their hooks and weights, stand in `stacks`, which also explains the words of shapes.
"""

from collections.abc import Mapping

from probe.errors import UnsupportedModel
from probe.families.entry import Family
from probe.families.stacks import (
    BART_STACKS,
    BART_TIED,
    BERT_OUTSIDE,
    BERT_STACK,
    LLAMA_OUTSIDE,
    LLAMA_PARTS,
    NEOX_LIES,
    NEOX_PARTS,
    QWEN2_BIASES,
    T5_STACKS,
    causal_stack,
)

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
