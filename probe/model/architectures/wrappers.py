"""Models of images or sound whose text part is read by the row of a family, usually that of the
text part's own `model_type`.
"""

from dataclasses import dataclass

# What precedes the raw names of the text part, in files or in the class.
TEXT_PREFIXES = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.text_model.",
    "model.",
)
# What precedes the raw names of all other parts, after "model." if that is present.
OTHER_PREFIXES = (
    "visual.",
    "vision_tower.",
    "vision_model.",
    "audio_tower.",
    "multi_modal_projector.",
    "connector.",
    "image_newline",
)


@dataclass(frozen=True)
class Wrapper:
    """A model of images or sound with a text part."""

    # Its class in transformers.
    architecture: str
    # The `model_type` of the row that reads the text part, if its own `model_type` has no row. The
    # formulas are the same if no token is an image or a sound.
    text_model_type: str = ""

    def raw_name(self, name: str) -> str:
        """The raw name of a weight of the text part without the prefix; empty for a weight of
        another part.
        """
        if name.removeprefix("model.").startswith(OTHER_PREFIXES):
            return ""
        front = next((prefix for prefix in TEXT_PREFIXES if name.startswith(prefix)), "")
        return name.removeprefix(front)


# By `model_type`.
WRAPPERS: dict[str, Wrapper] = {
    "gemma3": Wrapper("Gemma3ForConditionalGeneration"),
    "mistral3": Wrapper("Mistral3ForConditionalGeneration"),
    "llava": Wrapper("LlavaForConditionalGeneration"),
    "llava_next": Wrapper("LlavaNextForConditionalGeneration"),
    "llava_onevision": Wrapper("LlavaOnevisionForConditionalGeneration"),
    "internvl": Wrapper("InternVLForConditionalGeneration"),
    "idefics3": Wrapper("Idefics3ForConditionalGeneration"),
    "smolvlm": Wrapper("SmolVLMForConditionalGeneration"),
    "qwen2_vl": Wrapper("Qwen2VLForConditionalGeneration", text_model_type="qwen2"),
    "qwen2_5_vl": Wrapper("Qwen2_5_VLForConditionalGeneration", text_model_type="qwen2"),
    "qwen3_vl": Wrapper("Qwen3VLForConditionalGeneration", text_model_type="qwen3"),
    "qwen3_5": Wrapper("Qwen3_5ForConditionalGeneration"),
    "qwen3_5_moe": Wrapper("Qwen3_5MoeForConditionalGeneration"),
    "qwen2_audio": Wrapper("Qwen2AudioForConditionalGeneration"),
    "audioflamingo3": Wrapper("AudioFlamingo3ForConditionalGeneration"),
    "musicflamingo": Wrapper("MusicFlamingoForConditionalGeneration"),
    "glmasr": Wrapper("GlmAsrForConditionalGeneration"),
    "voxtral": Wrapper("VoxtralForConditionalGeneration"),
}
