"""The table of architectures: one row per family gives its weights, hooks, norms and positions,
and the names of its settings.

All differences between families are in these rows. A new family needs one new row, and a function
in `probe.model.attention` if it has a new formula. Config, checkpoint, weights, hooks, blocks and
certificate read the row, and none of them tests for a family by name.

family     the dataclasses of a row, field by field
blocks     hooks, weights and tiny configs that several families share
wrappers   models of images or sound whose text part is read
gpt llama qwen gemma routed hybrids    rows of decoders
bert                                   rows of encoders, and ModernBERT's decoder
t5 bart                                rows of encoder-decoders
"""

from probe.errors import UnsupportedModel
from probe.model.architectures.bart import BARTS
from probe.model.architectures.bert import BERTS
from probe.model.architectures.family import Family
from probe.model.architectures.gemma import GEMMAS
from probe.model.architectures.gpt import GPTS
from probe.model.architectures.hybrids import HYBRIDS
from probe.model.architectures.llama import LLAMAS
from probe.model.architectures.qwen import QWENS
from probe.model.architectures.routed import MIXTURES
from probe.model.architectures.t5 import T5S
from probe.model.architectures.wrappers import WRAPPERS as WRAPPERS

# By `model_type`.
FAMILIES: dict[str, Family] = (
    GPTS | LLAMAS | QWENS | GEMMAS | MIXTURES | HYBRIDS | BERTS | T5S | BARTS
)
# Families that are often asked for and not read, by `model_type`: the name, and what no row can
# describe.
NOT_READ = {
    "gemma4_text": ("Gemma 4", "embeddings in every layer, and keys and values shared by layers"),
    "olmo": ("OLMo 1", "norms without weights"),
    "apertus": ("Apertus", "an activation with learned parameters (xIELU)"),
    "hunyuan_v1_dense": ("Hunyuan", "norms of queries and keys after the rotation"),
    "phimoe": ("Phi-3.5-MoE", "rotary positions with two magnitudes, and a router of its own"),
    "bloom": ("BLOOM", "ALiBi, and a rounding of its own in GELU"),
    "gpt_oss": ("GPT-OSS", "a sink for the attention of every head"),
    "mpnet": ("MPNet", "relative position biases in addition to learned positions"),
    "deberta-v2": ("DeBERTa", "scores of positions in addition to those of contents"),
}
NOT_READ["gemma4"] = NOT_READ["gemma4_text"]
NOT_READ["deberta"] = NOT_READ["deberta-v2"]
SUPPORTED = ", ".join(family.name for family in FAMILIES.values())
# The families that are read from GGUF files: by GGUF's name of the architecture, the `model_type`.
# llama.cpp's converter writes a Mistral as a Llama, and a RoBERTa as a BERT.
GGUF_FAMILIES = {
    "gpt2": "gpt2",
    "gptneox": "gpt_neox",
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "bert": "bert",
}
GGUF_KNOWN = ", ".join(FAMILIES[kind].name for kind in GGUF_FAMILIES.values())


def require_single(architecture: str, doing: str) -> None:
    """Raises UnsupportedModel, naming `doing`, for an encoder-decoder, because a word is read in
    a single stack.
    """
    family = FAMILIES[architecture]
    if family.kind == "encoder-decoder":
        raise UnsupportedModel(
            f"Cannot do {doing} with a {family.name} model: a word is read in one stack of blocks, "
            "and it has an encoder and a decoder. Take a decoder (GPT-2, tiny-senses) or an "
            "encoder (BERT), or use trace and walk with a source and a target."
        )
