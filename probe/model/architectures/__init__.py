"""The table of architectures: one row a family says where its weights, hooks, norms, positions and
config keys are.

Everything that differs between families stands here and nowhere else: a new family is a row of
FAMILIES, a test parameter, and, where it has a formula that nobody else has, a function in
`probe.model.attention`. Config, checkpoint, weights, hooks, forward, certificate and the engine of
swaps read the row; none of them asks for a family by name.

family    what a row says, as records; what the rows of several families share
decoders  the rows of decoders
encoders  the rows of encoders and of encoder-decoders
"""

from probe.errors import UnsupportedModel
from probe.model.architectures import decoders, encoders
from probe.model.architectures.family import Family, Wrapper

FAMILIES: dict[str, Family] = {
    "gpt2": decoders.GPT2,
    "bert": encoders.BERT,
    "roberta": encoders.ROBERTA,
    "t5": encoders.T5,
    "bart": encoders.BART,
    "marian": encoders.MARIAN,
    "gpt_neox": decoders.GPT_NEOX,
    "gpt_neo": decoders.GPT_NEO,
    "gptj": decoders.GPTJ,
    "llama": decoders.LLAMA,
    "mistral": decoders.MISTRAL,
    "phi3": decoders.PHI3,
    "qwen2": decoders.QWEN2,
    "qwen3": decoders.QWEN3,
    "olmo2": decoders.OLMO2,
    "gemma2": decoders.GEMMA2,
    "gemma3_text": decoders.GEMMA3,
    "gemma": decoders.GEMMA,
    "vaultgemma": decoders.VAULTGEMMA,
    "olmo3": decoders.OLMO3,
    "smollm3": decoders.SMOLLM3,
    "opt": decoders.OPT,
    "bloom": decoders.BLOOM,
    "falcon": decoders.FALCON,
    "gpt_bigcode": decoders.GPT_BIGCODE,
    "mixtral": decoders.MIXTRAL,
    "qwen2_moe": decoders.QWEN2_MOE,
    "qwen3_moe": decoders.QWEN3_MOE,
    "olmoe": decoders.OLMOE,
    "flex_olmo": decoders.FLEX_OLMO,
    "gpt_oss": decoders.GPT_OSS,
    "lfm2": decoders.LFM2,
    "qwen3_next": decoders.QWEN3_NEXT,
    "qwen3_5_text": decoders.QWEN3_5,
    "qwen3_5_moe_text": decoders.QWEN3_5_MOE,
    "bamba": decoders.BAMBA,
    "granite": decoders.GRANITE,
    "granitemoehybrid": decoders.GRANITE_HYBRID,
    "phi": decoders.PHI,
    "stablelm": decoders.STABLELM,
    "starcoder2": decoders.STARCODER2,
    "arcee": decoders.ARCEE,
    "nemotron": decoders.NEMOTRON,
    "jais2": decoders.JAIS2,
    "seed_oss": decoders.SEED_OSS,
    "ernie4_5": decoders.ERNIE45,
    "glm": decoders.GLM,
    "glm4": decoders.GLM4,
    "xlm-roberta": encoders.XLM_ROBERTA,
    "camembert": encoders.CAMEMBERT,
    "distilbert": encoders.DISTILBERT,
    "modernbert": encoders.MODERNBERT,
    "modernbert-decoder": encoders.MODERNBERT_DECODER,
    "mt5": encoders.MT5,
    "mbart": encoders.MBART,
    "blenderbot": encoders.BLENDERBOT,
    "pegasus": encoders.PEGASUS,
}
# Models of images or sound and words, by their model_type.
WRAPPERS: dict[str, Wrapper] = {
    "gemma3": Wrapper("Gemma3ForConditionalGeneration"),
    "mistral3": Wrapper("Mistral3ForConditionalGeneration"),
    "llava": Wrapper("LlavaForConditionalGeneration"),
    "llava_next": Wrapper("LlavaNextForConditionalGeneration"),
    "llava_onevision": Wrapper("LlavaOnevisionForConditionalGeneration"),
    "internvl": Wrapper("InternVLForConditionalGeneration"),
    "idefics3": Wrapper("Idefics3ForConditionalGeneration"),
    "smolvlm": Wrapper("SmolVLMForConditionalGeneration"),
    "qwen2_vl": Wrapper("Qwen2VLForConditionalGeneration", "qwen2"),
    "qwen2_5_vl": Wrapper("Qwen2_5_VLForConditionalGeneration", "qwen2"),
    "qwen3_vl": Wrapper("Qwen3VLForConditionalGeneration", "qwen3"),
    "qwen3_5": Wrapper("Qwen3_5ForConditionalGeneration"),
    "qwen3_5_moe": Wrapper("Qwen3_5MoeForConditionalGeneration"),
    "qwen2_audio": Wrapper("Qwen2AudioForConditionalGeneration"),
    "audioflamingo3": Wrapper("AudioFlamingo3ForConditionalGeneration"),
    "musicflamingo": Wrapper("MusicFlamingoForConditionalGeneration"),
    "glmasr": Wrapper("GlmAsrForConditionalGeneration"),
    "voxtral": Wrapper("VoxtralForConditionalGeneration"),
}
SUPPORTED = ", ".join(family.name for family in FAMILIES.values())
GGUF_KNOWN = ", ".join(family.name for family in FAMILIES.values() if family.gguf)


def require_single(architecture: str, doing: str) -> None:
    """Raises UnsupportedModel, naming `doing`, for an encoder-decoder, which has no single stack to
    read a word in."""
    family = FAMILIES[architecture]
    if family.kind == "encoder-decoder":
        raise UnsupportedModel(
            f"Cannot do {doing} with a {family.name} model: a word is read in one stack of blocks, "
            "and it has an encoder and a decoder; take a decoder (GPT-2, tiny-senses) or an "
            "encoder (BERT), or use trace and walk with a source and a target."
        )
