"""Text parts of models of images or sound: read from a folder and from an object, each by the
row of its text model.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import family_tokenizer, perturb
from inside import FAMILIES, WRAPPERS, numbers
from safetensors.torch import load_file, save_file
from seeds import campaign_except
from test_load import edit_config, refusal

import probe
from probe.model.architectures.blocks import TINY_GROUPED, TINY_TOKENS

TEXT = TINY_GROUPED | TINY_TOKENS
LLAMA = TEXT | {"model_type": "llama", "head_dim": 6}
QWEN2 = TEXT | {"model_type": "qwen2"}
MISTRAL = TEXT | {"model_type": "mistral", "head_dim": 6, "sliding_window": None}
GEMMA = TEXT | {"head_dim": 6, "sliding_window": 5, "query_pre_attn_scalar": 7}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention"]}
# Positions with three parts, for time, height and width: all equal if there are only words.
PARTS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
IMAGE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
IMAGE |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
FRAMES = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "num_heads": 2, "intermediate_size": 16}
FRAMES |= {"out_hidden_size": 32, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0]}
SOUND = {"num_mel_bins": 8, "d_model": 16, "hidden_size": 16, "max_source_positions": 16}
SOUND |= {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
SOUND |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
QWEN_TOKENS = {"image_token_id": 399, "video_token_id": 398, "vision_start_token_id": 397}
QWEN_TOKENS |= {"vision_end_token_id": 396}


def looking(text: dict[str, Any], image: dict[str, Any], token: str = "image_token_index") -> Any:
    return {"text_config": text, "vision_config": image, token: 399}


def watching(text: dict[str, Any]) -> Any:
    return QWEN_TOKENS | {"text_config": text, "vision_config": FRAMES}


def hearing(text: dict[str, Any], encoder: str, token: str = "audio_token_id") -> Any:
    return {"text_config": text, "audio_config": SOUND | {"model_type": encoder}, token: 399}


def image_of(kind: str) -> dict[str, Any]:
    return IMAGE | {"model_type": kind}


HYBRID, ROUTED = (
    TEXT
    | dict(FAMILIES[kind].tiny_config)
    | {"rope_parameters": PARTS | {"partial_rotary_factor": 1.0}}
    for kind in ("qwen3_5_text", "qwen3_5_moe_text")
)
# The name before Config and ForConditionalGeneration, and the config.
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("Gemma3", looking(GEMMA, IMAGE) | {"mm_tokens_per_image": 4}),
    "mistral3": ("Mistral3", looking(MISTRAL, image_of("pixtral"))),
    "llava": ("Llava", looking(LLAMA, image_of("clip_vision_model"))),
    "llava_next": ("LlavaNext", looking(MISTRAL, image_of("clip_vision_model"))),
    "llava_onevision": ("LlavaOnevision", looking(QWEN2, image_of("siglip_vision_model"))),
    "internvl": ("InternVL", looking(QWEN2, IMAGE, "image_token_id")),
    "idefics3": ("Idefics3", looking(LLAMA, IMAGE, "image_token_id")),
    "smolvlm": ("SmolVLM", looking(LLAMA, IMAGE, "image_token_id")),
    "qwen2_vl": ("Qwen2VL", watching(TEXT | {"rope_parameters": PARTS})),
    "qwen2_5_vl": ("Qwen2_5_VL", watching(TEXT | {"rope_parameters": PARTS})),
    "qwen3_vl": ("Qwen3VL", watching(TEXT | {"rope_parameters": PARTS, "head_dim": 8})),
    "qwen3_5": ("Qwen3_5", watching(HYBRID)),
    "qwen3_5_moe": ("Qwen3_5Moe", watching(ROUTED)),
    "qwen2_audio": ("Qwen2Audio", hearing(QWEN2, "qwen2_audio_encoder", "audio_token_index")),
    "audioflamingo3": ("AudioFlamingo3", hearing(QWEN2, "audioflamingo3_encoder")),
    "musicflamingo": ("MusicFlamingo", hearing(QWEN2, "musicflamingo_encoder")),
    "glmasr": ("GlmAsr", hearing(LLAMA, "glmasr_encoder")),
    "voxtral": ("Voxtral", hearing(LLAMA, "voxtral_encoder")),
}


def whole_model(kind: str, **changes: object) -> Any:
    """A model with random weights everywhere, like the families' tiny models."""
    class_name, settings = MADE[kind]
    config = getattr(transformers, f"{class_name}Config")(**settings | changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{class_name}ForConditionalGeneration")(config).eval()
        perturb(model)
    model.set_experts_implementation("eager")  # the others do not support float64
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    family_tokenizer("llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(whole_model("gemma3"), tmp_path_factory.mktemp("gemma3"))


@pytest.fixture
def gemma(made: Path, tmp_path: Path) -> Path:
    """The folder of a Gemma 3, to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "gemma3"))


def test_every_wrapper_of_the_table_is_made_here() -> None:
    assert set(MADE) == set(WRAPPERS)
    for kind, (class_name, _) in MADE.items():
        assert WRAPPERS[kind].architecture == f"{class_name}ForConditionalGeneration"


# Images, frames with three-part positions, sound; a window, a mixer, experts. The others are alike.
HERE = ("gemma3", "llava", "qwen2_vl", "qwen3_5_moe", "voxtral")


@pytest.mark.parametrize("kind", campaign_except(MADE, HERE))
def test_the_text_part_is_certified_and_computes_what_the_whole_model_does(kind, tmp_path) -> None:
    whole = whole_model(kind).double()
    from_object = probe.load(whole, tokenizer=family_tokenizer("llama"))
    from_folder = probe.load(saved(whole, tmp_path / kind), dtype=torch.float64)
    assert probe.certify(from_folder, ["The mole dug under the muddy bank"]).require().ok
    described = f"the text part of {WRAPPERS[kind].architecture}"
    assert from_object.origin.read == from_folder.origin.read == described
    assert from_object.config == from_folder.config and from_folder.config.wrapper == kind
    assert from_object.weights.keys() == from_folder.weights.keys()
    assert all(torch.equal(from_object.weights[name], t) for name, t in from_folder.weights.items())
    sources, ids = (from_folder.bridge.original_model, whole), list(range(5, 30))
    text, both = (numbers(source, from_folder.config, ids) for source in sources)
    torch.testing.assert_close(text, both, rtol=0, atol=1e-6 * float(both.abs().max()))


def test_values_missing_from_a_published_config_are_the_defaults_of_its_class(tmp_path) -> None:
    """The text part of Gemma 3 4B states neither its heads nor the length of a text."""
    text = {"hidden_size": 32, "intermediate_size": 36, "model_type": "gemma3_text"}
    text |= {"num_hidden_layers": 2, "sliding_window": 1024, "head_dim": 6} | TINY_TOKENS
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "vocab_size": 400}
    folder = saved(whole_model("gemma3", text_config=text), tmp_path / "gemma3")
    edit_config(folder, text_config=text)
    model = probe.load(folder)
    config = model.config
    assert (config.n_heads, config.n_kv_heads, config.n_ctx) == (8, 4, 131072)
    assert config.local == (True, True) and config.window == 1024
    assert config.positions.rope_scaling is not None and config.positions.rope_scaling.factor == 8
    assert probe.certify(model).require().ok


def test_names_of_either_generation_are_read(tmp_path: Path) -> None:
    """Files contain `language_model.model.`, today's classes `model.language_model.`."""
    folder = saved(whole_model("llava"), tmp_path / "llava")
    before = probe.load(folder)
    stored = load_file(folder / "model.safetensors")
    assert "language_model.lm_head.weight" in stored
    names = {"language_model.model.": "model.language_model.", "language_model.lm_head": "lm_head"}
    names |= {"": "model."}

    def renamed(name: str) -> str:
        old = next(old for old in names if name.startswith(old))
        return names[old] + name.removeprefix(old)

    whole = {renamed(name): tensor for name, tensor in stored.items()}
    save_file(whole, folder / "model.safetensors", {"format": "pt"})
    after = probe.load(folder)
    assert all(torch.equal(after.weights[name], before.weights[name]) for name in before.weights)


def test_a_bridge_of_a_whole_model_is_read_like_the_model_inside(monkeypatch) -> None:
    from transformer_lens.model_bridge import TransformerBridge

    # TransformerLens would ask a hub for the image processor, and require torchvision.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    helpers = "transformer_lens.model_bridge.sources.transformers.helpers"
    monkeypatch.setattr(f"{helpers}._ensure_torchvision", lambda: False)
    whole = whole_model("gemma3")
    whole.config.architectures = ["Gemma3ForConditionalGeneration"]
    options = {"tokenizer": family_tokenizer("llama"), "device": "cpu"}
    model = probe.load(TransformerBridge.boot_transformers("gemma3", hf_model=whole, **options))
    described = "the text part of Gemma3ForConditionalGeneration in a TransformerBridge"
    assert model.origin.read == described
    weights = probe.load(whole_model("gemma3"), tokenizer=options["tokenizer"]).weights
    assert all(torch.equal(model.weights[name], tensor) for name, tensor in weights.items())


BOTH_WAYS = GEMMA | {"model_type": "gemma3_text", "use_bidirectional_attention": True}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["Gemma3Model"]}, "its architecture is Gemma3Model (model_type 'gemma3'), "),
    (
        {"architectures": None},
        'Add "architectures": ["Gemma3ForConditionalGeneration"] to config.js',
    ),
    ({"quantization_config": {"bits": 4}}, "it is quantized (quantization_config). Load a plain"),
    ({"text_config": BOTH_WAYS}, "use_bidirectional_attention is True in its config, and the from"),
    ({"text_config": {"hidden_size": "x"}}, "transformers refuses its config (TypeError: Field 'h"),
    ({"text_config": GEMMA | {"model_type": "mamba"}}, "of its text part is 'mamba', which is not"),
]


@pytest.mark.parametrize(("changes", "expected"), REFUSED)
def test_what_is_not_covered_is_refused_in_a_sentence(changes, expected: str, gemma: Path) -> None:
    edit_config(gemma, **changes)
    with pytest.raises(probe.ModelError) as caught:
        probe.load(gemma)
    assert expected in str(caught.value)


def test_a_missing_tensor_of_the_text_part_is_named(gemma: Path) -> None:
    stored = load_file(gemma / "model.safetensors")
    del stored["language_model.model.layers.1.self_attn.q_norm.weight"]
    save_file(stored, gemma / "model.safetensors", {"format": "pt"})
    assert "the tensor layers.1.self_attn.q_norm.weight is missing." in refusal(gemma)
