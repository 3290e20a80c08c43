"""Switches of a config that change a formula or add weights: each is certified in both dtypes,
and its logits equal Hugging Face's.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from families import (
    BOTH,
    QWEN_WINDOW,
    VARIANTS,
    assert_near,
    family_model,
    family_tokenizer,
    make_family,
    model_class,
    near,
)
from test_check import first_failure
from test_load import edit_config, refusal

import probe
from probe.model.model import Model
from probe.model.parameters import count_parameters

TEXT = "The mole dug a tunnel under the muddy bank"
BY_LAYER, UPCAST = BOTH
BIASED = {"attention_bias": True}
UNBIASED = {"attention_bias": False}
# The family of a setting, the setting, and the keys that the config then has.
SETTINGS: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "divided by layer": ("gpt2", {BY_LAYER: True}, {"scores_by_layer": True}),
    "widened scores": ("gpt2", {UPCAST: True}, {"scores_by_layer": False}),
    "both": ("gpt2", BOTH, {"scores_by_layer": True}),
    **{
        f"{kind} with biases": (kind, BIASED, {"biased_roles": "qkvo"})
        for kind in ("llama", "qwen3", "olmo2", "gemma2", "granite", "nemotron", "bamba")
    },
    **{
        f"{kind} without biases": (kind, UNBIASED, {"biased_roles": ""})
        for kind in ("glm4", "jais2")
    },
    "seed_oss with all biases": (
        "seed_oss",
        {"attention_out_bias": True},
        {"biased_roles": "qkvo"},
    ),
    "stablelm with biases": ("stablelm", {"use_qkv_bias": True}, {"biased_roles": "qkv"}),
    "qwen2_moe without biases": ("qwen2_moe", {"qkv_bias": False}, {"biased_roles": ""}),
    **{
        f"{kind}, local from layer 1": (
            kind,
            QWEN_WINDOW | {"max_window_layers": 1},
            {"window": 5, "local": (False, True)},
        )
        for kind in ("qwen2", "qwen3")
    },
    "qwen2, local by a list": (
        "qwen2",
        QWEN_WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
        {"window": 5, "local": (True, False)},
    ),
    "qwen2_moe, every second layer local": ("qwen2_moe", QWEN_WINDOW, {"local": (True, False)}),
    "qwen2_moe, none below layer 0": (
        "qwen2_moe",
        QWEN_WINDOW | {"max_window_layers": 0},
        {"window": 0, "local": ()},
    ),
    "qwen3_moe, all local": ("qwen3_moe", QWEN_WINDOW, {"local": (True, True)}),
}
# Settings that are certified like another row's are cases of the campaign.
ALIKE = ("olmo2 with biases", "granite with biases", "jais2 without biases")
EACH = [
    pytest.param(name, marks=pytest.mark.campaign) if name in ALIKE else name for name in SETTINGS
]


@cache
def set_model(name: str, dtype: torch.dtype) -> tuple[Model, Any]:
    """A model with a setting, and Hugging Face's model of the same folder, run step by step."""
    kind, changes, _ = SETTINGS[name]
    with TemporaryDirectory() as folder:
        checkpoint = make_family(Path(folder) / kind, kind, **changes)
        # Experts in one call do not support float64, and GPT-2's widened scores support only
        # smaller types.
        options = {"experts_implementation": "eager", "attn_implementation": "eager"}
        options = options if UPCAST not in changes else {}
        plain = model_class(kind).from_pretrained(checkpoint, dtype=dtype, **options)
        return probe.load(checkpoint, dtype=dtype), plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EACH)
def test_a_setting_is_certified_and_its_logits_are_hugging_faces(
    name: str, dtype: torch.dtype
) -> None:
    model, plain = set_model(name, dtype)
    kind, _, stated = SETTINGS[name]
    assert {key: getattr(model.config, key) for key in stated} == stated
    assert probe.certify(model, [TEXT]).require().ok
    ids = torch.tensor([probe.tokenize(model, TEXT).ids])
    with torch.no_grad():
        logits, expected = model.bridge(ids), plain(ids).logits
    close = {"rtol": 0, "atol": 1e-5} if dtype == torch.float32 else near(kind)
    close |= {"atol": max(close["atol"], 1e-6)} if model.config.family.in_float32 else {}
    assert_near(logits, expected, close)
    listed = sum(parameter.numel() for parameter in plain.parameters())
    assert count_parameters(model).total == listed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_object_whose_scores_are_widened_is_loaded_and_not_changed(dtype: torch.dtype) -> None:
    """torch's attention runs it, which widens nothing; GPT-2's step-by-step code refuses
    float64.
    """
    _, source = set_model("both", dtype)
    model = probe.load(source, tokenizer=family_tokenizer("gpt2"))
    assert model.config.scores_by_layer and probe.certify(model, [TEXT]).require().ok
    attentions = [module for module in source.modules() if hasattr(module, UPCAST)]
    assert len(attentions) == 2 and all(getattr(module, UPCAST) for module in attentions)
    again = probe.load(model.bridge)
    assert again.config == model.config and probe.certify(again, [TEXT]).require().ok


def test_a_layer_that_is_not_divided_by_its_number_is_named() -> None:
    model, _ = set_model("both", torch.float64)
    wrong = replace(model, config=replace(model.config, scores_by_layer=False))
    assert first_failure(probe.certify(wrong, [TEXT])) == ("", 1, "scores")
    shifted = replace(model, config=replace(model.config, query_scalar=28.0))  # 4 times d_head
    assert first_failure(probe.certify(shifted, [TEXT])) == ("", 0, "scores")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("qwen2, local from layer 1", {"local": (False, False)}),
        ("qwen3, local from layer 1", {"local": (True, True)}),
        ("qwen2, local from layer 1", {"window": 6}),
    ],
)
def test_a_window_in_the_wrong_layer_is_named(name: str, wrong: dict[str, Any]) -> None:
    model, _ = set_model(name, torch.float64)
    changed = replace(model, config=replace(model.config, **wrong))
    layer = next((n for n, local in enumerate(changed.config.local) if local == (n == 0)), 1)
    assert first_failure(probe.certify(changed, [TEXT])) == ("", layer, "scores")


@pytest.mark.parametrize(
    ("kind", "first", "local"),
    [("qwen2", 1, (False, True)), ("qwen3", 0, (True, True)), ("qwen2_moe", 1, (True, False))],
)
def test_without_a_list_of_local_layers_their_number_decides(
    kind: str, first: int, local: tuple[bool, ...], tmp_path: Path
) -> None:
    """Published configs have no list; transformers adds it when it saves one."""
    folder = make_family(tmp_path / kind, kind, **QWEN_WINDOW, max_window_layers=first)
    listed = probe.load(folder).config
    edit_config(folder, layer_types=None)
    assert probe.load(folder).config == listed and listed.local == local
    edit_config(folder, use_sliding_window=False)
    assert probe.load(folder).config.local == ()
    edit_config(folder, use_sliding_window=True, max_window_layers="x")
    message = "Field 'max_window_layers' expected int, got str (value: 'x')). Correct it or take the original file."
    assert refusal(folder).endswith(message)


def test_a_bias_that_the_config_does_not_state_is_refused(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "llama", "llama", attention_bias=True)
    edit_config(folder, attention_bias=False)
    message = (
        "layers.0.self_attn.k_proj.bias is not a tensor of the Llama that config.json describes"
    )
    assert message in refusal(folder)
    edit_config(make_family(tmp_path / "plain", "llama"), attention_bias=True)
    message = "the tensor layers.0.self_attn.k_proj.bias is missing"
    assert message in refusal(tmp_path / "plain")


@pytest.mark.parametrize(
    ("kind", "divisors", "title", "sentence"),
    [
        (
            "GPT-2 divided by layer",
            (7**0.5, 2 * 7**0.5),
            "Why divide by √7 = 2.65, and by the number of the layer?",
            "It also divides the scores of each layer by the layer's number, counted from 1.",
        ),
        (
            "gpt2",
            (7**0.5, 7**0.5),
            "Why divide by √7 = 2.65?",
            "and the smaller the gradient. The undivided weights",
        ),
        (
            "gemma2",
            (7**0.5, 7**0.5),
            "Why divide by √7 = 2.65?",
            "This model divides by √7 instead of √6.",
        ),
    ],
)
def test_a_walk_divides_as_the_layer_does_and_says_so(
    kind: str, divisors: tuple[float, ...], title: str, sentence: str, tmp_path: Path
) -> None:
    model = family_model(kind)
    cap = model.config.attn_logit_softcapping
    for layer, divisor in enumerate(divisors):
        walked = probe.walk(model, "the bank", head=(layer, 0))
        assert walked.frames["agreement"]["error"].max() < 1e-5
        dot, score = (walked.frames["attention"][name].to_numpy() for name in ("dot", "score"))
        score = cap * np.arctanh(score / cap) if cap else score
        assert dot == pytest.approx(divisor * score, rel=1e-3, abs=1e-3)
        assert abs(dot).max() > 0.1
    page = probe.write(walked, tmp_path).read_text()
    assert title in page and sentence in page


def test_the_formulas_of_a_certificate_include_the_divisor_of_the_scores() -> None:
    formulas = {
        kind: {row.formula for row in probe.certify(family_model(kind), [TEXT]).rows}
        for kind in ("gpt2", "gemma2", *VARIANTS)
    }
    assert "Q Kᵀ / √d_head / (layer + 1), masked" in formulas["GPT-2 divided by layer"]
    assert "Q Kᵀ / √d_head, masked" in formulas["gpt2"]
    assert {"x W_Q + b_Q", "Σ ΔE + b_O"} <= formulas["Llama with biases"]
    assert {"x W_Q", "Σ ΔE"} <= formulas["gemma2"]
