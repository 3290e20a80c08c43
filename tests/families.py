"""Small random models of every family, true in architecture, biases and norms random too; when two
tensors agree."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
import transformers
from checkpoints import SENTENCES
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from probe.model.architectures import FAMILIES
from probe.model.architectures.family import Family, Keys
from probe.model.load import load
from probe.model.model import Model

LAYERS, HEADS, VOCABULARY = 2, 4, 400
HIDDEN = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 36,
}
N_SIZES = {
    "vocab_size": VOCABULARY,
    "n_head": HEADS,
    "n_layer": LAYERS,
    "n_positions": 40,
    "n_inner": 36,
}
N_SIZES |= {"bos_token_id": 0, "eos_token_id": 0}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 28,
    "d_kv": 5,
    "d_ff": 36,
    "num_layers": LAYERS,
    "num_heads": HEADS,
}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
BART = {"vocab_size": VOCABULARY, "d_model": 28, "max_position_embeddings": 40}
for side in ("encoder", "decoder"):
    BART |= {f"{side}_layers": LAYERS, f"{side}_attention_heads": HEADS, f"{side}_ffn_dim": 36}
MARIAN = {
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "activation_function": "swish",
    "scale_embedding": True,
}
GPT_NEO = {"vocab_size": VOCABULARY, "hidden_size": 28, "num_layers": LAYERS, "num_heads": HEADS}
GPT_NEO |= {"intermediate_size": 36, "max_position_embeddings": 40, "window_size": 5}
GPT_NEO |= {"attention_types": [[["global", "local"], 1]]}
GROUPED = {"hidden_size": 32, "num_key_value_heads": 2, "max_position_embeddings": 40}
NAMED = {
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}  # the usual ones are beyond this vocabulary
# A window that a short text leaves, one layer of each kind, no usual number under the root; caps
# that are felt.
GEMMA = GROUPED | {
    "head_dim": 6,
    "sliding_window": 5,
    "query_pre_attn_scalar": 7,
    "attn_logit_softcapping": 2.0,
}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention"]}
# No two sizes alike: 28 = 4 heads of 7, T5's and the grouped ones' heads are not d_model / heads.
MADE: dict[str, tuple[str, str, dict[str, object]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", N_SIZES | {"n_embd": 28}),
    "bert": (
        "BertConfig",
        "BertForMaskedLM",
        HIDDEN | {"hidden_size": 28, "max_position_embeddings": 40},
    ),
    "roberta": (
        "RobertaConfig",
        "RobertaForMaskedLM",
        HIDDEN | {"hidden_size": 28, "max_position_embeddings": 42},
    ),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "bart": ("BartConfig", "BartForConditionalGeneration", BART),
    "marian": ("MarianConfig", "MarianMTModel", BART | MARIAN),
    "gpt_neox": (
        "GPTNeoXConfig",
        "GPTNeoXForCausalLM",
        HIDDEN | {"hidden_size": 32, "max_position_embeddings": 40},
    ),
    "gpt_neo": ("GPTNeoConfig", "GPTNeoForCausalLM", GPT_NEO | NAMED),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", N_SIZES | NAMED | {"n_embd": 32, "rotary_dim": 6}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", HIDDEN | GROUPED | {"head_dim": 6}),
    "mistral": (
        "MistralConfig",
        "MistralForCausalLM",
        HIDDEN | GROUPED | {"head_dim": 6, "sliding_window": 5},
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", HIDDEN | GROUPED | NAMED),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", HIDDEN | GROUPED),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", HIDDEN | GROUPED | {"head_dim": 6}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", HIDDEN | GROUPED | NAMED),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        HIDDEN | GEMMA | {"final_logit_softcapping": 3.0},
    ),
    "gemma3_text": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        HIDDEN | GEMMA | {"attn_logit_softcapping": None},
    ),
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
YARN |= {"original_max_position_embeddings": 10, "beta_fast": 3.0}
MODERNBERT = HIDDEN | NAMED | {"hidden_size": 32, "max_position_embeddings": 40}
MODERNBERT |= {"local_attention": 10, "cls_token_id": 0, "sep_token_id": 0}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
SCALES = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.3,
    "logits_scaling": 7.0,
}
MADE |= {
    "gemma": ("GemmaConfig", "GemmaForCausalLM", HIDDEN | GROUPED | {"head_dim": 6}),
    "vaultgemma": (
        "VaultGemmaConfig",
        "VaultGemmaForCausalLM",
        HIDDEN | GEMMA | {"final_logit_softcapping": 3.0},
    ),
    "olmo3": (
        "Olmo3Config",
        "Olmo3ForCausalLM",
        HIDDEN
        | GROUPED
        | NAMED
        | {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}
        | {"rope_parameters": {"sliding_attention": ROPE, "full_attention": YARN}},
    ),
    "smollm3": (
        "SmolLM3Config",
        "SmolLM3ForCausalLM",
        HIDDEN | GROUPED | NAMED | {"no_rope_layers": [1, 0]},
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        HIDDEN | NAMED | {"hidden_size": 28, "ffn_dim": 36, "max_position_embeddings": 40},
    ),
    "bloom": (
        "BloomConfig",
        "BloomForCausalLM",
        NAMED
        | {"vocab_size": VOCABULARY, "hidden_size": 28, "n_layer": LAYERS, "n_head": HEADS}
        | {"seq_length": 40},
    ),
    "falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        HIDDEN | NAMED | {"hidden_size": 32, "ffn_hidden_size": 36, "max_position_embeddings": 40},
    ),
    "gpt_bigcode": (
        "GPTBigCodeConfig",
        "GPTBigCodeForCausalLM",
        N_SIZES | NAMED | {"n_embd": 28},
    ),
    "mixtral": (
        "MixtralConfig",
        "MixtralForCausalLM",
        HIDDEN | GROUPED | NAMED | {"intermediate_size": 20, "num_local_experts": 3},
    ),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        HIDDEN | GROUPED | EXPERTS | {"shared_expert_intermediate_size": 12},
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        HIDDEN | GROUPED | EXPERTS | {"head_dim": 6, "norm_topk_prob": True},
    ),
    "olmoe": (
        "OlmoeConfig",
        "OlmoeForCausalLM",
        HIDDEN | GROUPED | NAMED | EXPERTS | {"intermediate_size": 20},
    ),
    "flex_olmo": (
        "FlexOlmoConfig",
        "FlexOlmoForCausalLM",
        HIDDEN | GROUPED | NAMED | EXPERTS | {"intermediate_size": 20},
    ),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        HIDDEN
        | GROUPED
        | NAMED
        | {"intermediate_size": 20, "num_local_experts": 3, "num_experts_per_tok": 2}
        | {"head_dim": 6, "sliding_window": 5, "swiglu_limit": 1.0}
        | {"layer_types": ["full_attention", "sliding_attention"]}
        | {"rope_parameters": YARN | {"truncate": False}},
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", HIDDEN | GROUPED | NAMED),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", HIDDEN | GROUPED | NAMED),
    "starcoder2": (
        "Starcoder2Config",
        "Starcoder2ForCausalLM",
        HIDDEN | GROUPED | NAMED | {"sliding_window": 5},
    ),
    "arcee": ("ArceeConfig", "ArceeForCausalLM", HIDDEN | GROUPED | {"head_dim": 6}),
    "nemotron": ("NemotronConfig", "NemotronForCausalLM", HIDDEN | GROUPED | NAMED),
    "jais2": ("Jais2Config", "Jais2ForCausalLM", HIDDEN | GROUPED | NAMED),
    "seed_oss": ("SeedOssConfig", "SeedOssForCausalLM", HIDDEN | GROUPED | {"head_dim": 6}),
    "ernie4_5": (
        "Ernie4_5Config",
        "Ernie4_5ForCausalLM",
        HIDDEN | GROUPED | NAMED | {"head_dim": 6},
    ),
    "glm": ("GlmConfig", "GlmForCausalLM", HIDDEN | GROUPED | NAMED | {"head_dim": 12}),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", HIDDEN | GROUPED | NAMED | {"head_dim": 12}),
    "granite": (
        "GraniteConfig",
        "GraniteForCausalLM",
        HIDDEN | GROUPED | NAMED | SCALES,
    ),
    "xlm-roberta": (
        "XLMRobertaConfig",
        "XLMRobertaForMaskedLM",
        HIDDEN | {"hidden_size": 28, "max_position_embeddings": 42},
    ),
    "camembert": (
        "CamembertConfig",
        "CamembertForMaskedLM",
        HIDDEN | {"hidden_size": 28, "max_position_embeddings": 42},
    ),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": VOCABULARY, "n_layers": LAYERS, "n_heads": HEADS, "dim": 28}
        | {"hidden_dim": 36, "max_position_embeddings": 40},
    ),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM", MODERNBERT),
    "modernbert-decoder": ("ModernBertDecoderConfig", "ModernBertDecoderForCausalLM", MODERNBERT),
    "mt5": ("MT5Config", "MT5ForConditionalGeneration", T5),
    "mbart": (
        "MBartConfig",
        "MBartForConditionalGeneration",
        BART | {"decoder_start_token_id": 0, "scale_embedding": True},
    ),
    "blenderbot": (
        "BlenderbotConfig",
        "BlenderbotForConditionalGeneration",
        BART | {"decoder_start_token_id": 0, "pad_token_id": 0},
    ),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", BART | MARIAN),
}
PAIRED = ("t5", "bart", "marian", "mt5", "mbart", "blenderbot", "pegasus")
ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "modernbert")
# How many heads hold the keys and values of the four.
KV_HEADS = {kind: 2 if "num_key_value_heads" in sizes else 4 for kind, (*_, sizes) in MADE.items()}
KV_HEADS |= dict.fromkeys(("falcon", "gpt_bigcode"), 1)
# Between them: fused and separate weights, learned, rotary and relative positions, grouped heads,
# gated MLPs, caps, norms before and behind, one mask and the other, one stack and two.
REPRESENTATIVES = ("gpt2", "llama", "gemma2", "bert", "t5")
# Every choice that a row of the table can make is made by one of these (`choices`); what else is
# asked of a family than its file and its certificate is asked of the others in the campaign.
TELLING = (
    *REPRESENTATIVES,
    "bart",  # norms behind the sum, in both stacks; positions from a row that is not the first
    "bloom",  # slopes in the place of positions
    "ernie4_5",  # the whole rotation in float32
    "falcon",  # one head of keys and values; attention and MLP side by side
    "glm",  # rotated queries and keys in float32, gate and up in one
    "gpt_neox",  # queries, keys and values by head; a part of each head is rotated
    "gpt_oss",  # sinks, experts in one tensor, a clamped gate
    "gptj",  # rotation of neighbours
    "granite",  # constants on embeddings, writes, scores and logits
    "mixtral",  # shares of the chosen experts divided by their sum
    "modernbert",  # windows on both sides, no norm in front of the first layer
    "olmo2",  # norms behind what is written and over all heads
    "pegasus",  # sines; norms first, in both stacks
    "qwen2_moe",  # experts one by one and a shared one
    "qwen3",  # norms of every head
    "smollm3",  # layers without rotation
)
SINGLE = tuple(kind for kind in MADE if kind not in PAIRED)
# Some layers without attention: what is asked of every layer of the others is not there, and they
# have tests of their own.
HYBRIDS = {
    "lfm2": (
        "Lfm2Config",
        "Lfm2ForCausalLM",
        HIDDEN
        | GROUPED
        | NAMED
        | {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}
        | {"intermediate_size": 52, "block_multiple_of": 9, "head_dim": 6},
    ),
}
DELTA_RULE = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
    "head_dim": 8,
    "linear_num_value_heads": 6,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "rms_norm_eps": 0.02,  # what is read of an almost empty matrix is no rounding made large
}
HYBRIDS |= {
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        HIDDEN | GROUPED | EXPERTS | DELTA_RULE | {"shared_expert_intermediate_size": 12},
    ),
    "qwen3_5_text": (
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        HIDDEN | GROUPED | DELTA_RULE,
    ),
    "qwen3_5_moe_text": (
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        HIDDEN | GROUPED | EXPERTS | DELTA_RULE | {"shared_expert_intermediate_size": 12},
    ),
}
STATE_SPACE = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_expand": 3,
    "mamba_n_groups": 2,
    "mamba_d_state": 5,
    "mamba_d_conv": 3,
    "mamba_chunk_size": 4,
}
HYBRIDS |= {
    "bamba": (
        "BambaConfig",
        "BambaForCausalLM",
        HIDDEN | GROUPED | NAMED | STATE_SPACE | {"attn_layer_indices": [1]},
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        HIDDEN
        | GROUPED
        | NAMED
        | STATE_SPACE
        | SCALES
        | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"shared_intermediate_size": 20, "num_local_experts": 0, "head_dim": 6}
        | {"position_embedding_type": "rope"},
    ),
}
# One that is another's MLPs behind another's mixers is a campaign case but for its certificate.
EACH_HYBRID = [
    pytest.param(kind, marks=pytest.mark.campaign) if kind == "qwen3_5_moe_text" else kind
    for kind in HYBRIDS
]
# Switches of a config that change a formula or add weights; all of one family.
BOTH = {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 5}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "GPT-2 divided by layer": ("gpt2", BOTH),
    "Llama with biases": ("llama", {"attention_bias": True}),
    "Qwen2 with a local layer": ("qwen2", QWEN_WINDOW | {"max_window_layers": 1}),
}
SPREAD = {1: 0.1}  # 0.25 elsewhere
MARKS = {
    "bert": ("[CLS]", "[SEP]"),
    "roberta": ("<s>", "</s>"),
    "bart": ("<s>", "</s>"),
    "t5": ("", "</s>"),
}
MARKS |= {"marian": ("", "</s>"), "llama": ("<s>", "")}
MARKS |= {
    "mbart": MARKS["bart"],
    "blenderbot": MARKS["t5"],
    "pegasus": MARKS["t5"],
    "distilbert": MARKS["bert"],
}
MARKS |= {"modernbert": MARKS["bert"], "modernbert-decoder": ("[CLS]", "")}
MARKS |= {"mt5": MARKS["t5"]} | dict.fromkeys(("xlm-roberta", "camembert"), MARKS["roberta"])


def make_family(
    folder: Path, kind: str, *, seed: int = 0, architecture: str = "", **changes: object
) -> Path:
    """Writes config.json, model.safetensors and a fast tokenizer with the family's special tokens
    to `folder`."""
    config_class, model_class, sizes = (MADE | HYBRIDS)[kind]
    config = getattr(transformers, config_class)(**(sizes | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, architecture or model_class)(config).eval()
        perturb(model)
    model.save_pretrained(folder)
    family_tokenizer(kind).save_pretrained(folder)
    return folder


def perturb(model: PreTrainedModel) -> None:
    """Every weight random and far from 0 by accident, gains around what they begin as; sinusoidal
    tables stay what they are."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                noise = torch.randn_like(parameter) * SPREAD.get(parameter.dim(), 0.25)
                gain = ("norm" in name.lower() or "ln_" in name) and name.endswith("weight")
                parameter.copy_(noise + parameter if gain else noise)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(0, 0.1)


def family_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE that puts the special tokens of the family where the family has them."""
    first, last = MARKS.get(kind, ("", ""))
    begin = (
        (first, "<pad>") if first == "<s>" and last else ("<pad>", first)
    )  # RoBERTa gives no place to token 1
    special = [token for token in (*begin, last, "<unk>", "[MASK]") if token]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    given = {
        "initial_alphabet": sorted(pre_tokenizers.ByteLevel.alphabet()),
        "show_progress": False,
    }
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 10, special_tokens=special, **given)
    bpe.train_from_iterator(SENTENCES, trainer)
    if first or last:
        template = " ".join(part for part in (first, "$A", last) if part)
        marks = [(token, bpe.token_to_id(token)) for token in (first, last) if token]
        bpe.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    named = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": last or "<pad>"}
    family = FAMILIES[kind]
    named["bos_token"] = None if family.special_tokens else "<pad>"
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **named)


def each_family(*kinds: str) -> list:
    """Parameters of a test over the families, by default all: those that are no representatives are
    slow."""
    slow = [() if kind in REPRESENTATIVES else pytest.mark.slow for kind in kinds or MADE]
    return [
        pytest.param(kind, marks=marks) for kind, marks in zip(kinds or MADE, slow, strict=True)
    ]


def telling_families(*kinds: str) -> list:
    """The same, those that make no choice of their own left to `make campaign`."""
    kinds = kinds or tuple(MADE)
    alike = {kind for kind in MADE if kind not in TELLING}
    return [
        pytest.param(kind, marks=pytest.mark.campaign) if kind in alike else case
        for kind, case in zip(kinds, each_family(*kinds), strict=True)
    ]


# What a row says without choosing a formula or a way to hold weights: names of all kinds, sizes,
# and what a config or a file may say.
NAMES = {
    "name",
    "architectures",
    "base",
    "prefix",
    "ignored",
    "gguf",
    "adapter",
    "keys",
}
KEYS_READ = {"sizes", "epsilon", "activation", "meant", "must", "equal", "start", "other_names"}


def choices(kind: str) -> set[tuple[object, ...]]:
    """What the row of a family chooses, each choice with what it is about: of names only whether
    there is one, of numbers only whether they are the usual ones."""
    family = FAMILIES[kind]
    usual = {field.name: field.default for field in fields(Keys)}
    made: set[tuple[object, ...]] = {
        ("key", name) for name in usual if getattr(family.keys, name) != usual[name]
    }
    made -= {("key", name) for name in KEYS_READ}
    for name in {field.name for field in fields(Family)} - NAMES - {"attentions", "routed"}:
        value = getattr(family, name)
        if name == "in_float32":
            made |= {(name, each) for each in value}
        elif isinstance(value, (str, tuple, Mapping)) and name not in ("kind", "norm", "positions"):
            made.add((name, any(value)))
        else:
            made.add((name, value))
    if family.routed:
        routed = family.routed
        made |= {("routed", routed.of_all, routed.normed[1]), ("shared", bool(routed.shared))}
        made.add(("clamp", any(routed.clamp[0])))
    for attention in family.attentions:
        stack = attention.name
        made |= {(stack, attention.causal), ("fused", attention.fused)}
        made.add(("not in first", bool(attention.not_in_first)))
        biased = "".join(roles for usual, roles in family.keys.biases.values() if usual)
        made |= {
            ("part", role, f"{shape} +" if role in biased else shape)
            for role, (_, shape) in attention.parts.items()
        }
        made |= {(stack, name, hook) for name, hook in attention.hooks.items()}
        made |= {(stack, name, each.raw) for name, each in attention.unreliable_hooks.items()}
    return made


EXACT = {"rtol": 0, "atol": 1e-12}
ROUNDED = {"rtol": 0, "atol": 1e-6}


def near(kind: str) -> dict[str, float]:
    """Equal to rounding; to that of float32 where the family's own code softmaxes in it whatever
    the type."""
    return ROUNDED if "softmax" in FAMILIES[kind].in_float32 else EXACT


def assert_near(found: torch.Tensor, exact: torch.Tensor, close: dict[str, float]) -> None:
    """Equal relative to the scale of the tensor."""
    scale = exact.abs().max()
    torch.testing.assert_close(found / scale, exact / scale, **close)


@cache
def family_model(kind: str, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Model:
    """A loaded random model of the family, or of a variant. Shared: do not change it."""
    family, changes = VARIANTS.get(kind, (kind, {}))
    with TemporaryDirectory() as folder:
        made = make_family(Path(folder) / kind, family, seed=seed, **changes)
        return load(made, dtype=dtype)
