"""Loading every family: accepted models, refused models with their messages, and functions that
need a single stack.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import (
    ENCODERS,
    PAIRED,
    REPRESENTATIVES,
    family_model,
    family_tokenizer,
    head_sizes,
    make_family,
    model_class,
)
from safetensors.torch import load_file, save_file
from test_load import edit_config, refusal
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

import probe
from probe.model.architectures import FAMILIES, NOT_READ
from probe.model.config import ACTIVATIONS
from probe.model.load import read_weights
from probe.model.model import RopeScaling
from probe.model.tokens import positions_of_span, tokenize
from probe.model.trace import target_states, trace_target
from probe.text.sentences import Corpus
from probe.text.spans import find_word

WEIGHTS = "model.safetensors"


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / WEIGHTS,
        {"format": "pt"},
    )


# Accepted models


@pytest.mark.parametrize("kind", REPRESENTATIVES)
def test_a_folder_gives_its_raw_tensors(kind: str, tmp_path: Path) -> None:
    folder = make_family(tmp_path / kind, kind)  # the folder of the shared model, made again
    model, prefix = family_model(kind, torch.float64), FAMILIES[kind].prefix
    stored = {
        name.removeprefix(prefix): tensor.double()
        for name, tensor in load_file(folder / WEIGHTS).items()
    }
    sines = (
        {f"{side}.embed_positions.weight" for side in ("encoder", "decoder")}
        if kind in ("marian", "pegasus")
        else set()
    )
    assert model.weights and set(model.weights) == set(stored) - sines
    assert all(torch.equal(model.weights[name], stored[name]) for name in model.weights)
    assert all(
        not tensor.requires_grad for tensor in (*model.weights.values(), *model.bridge.parameters())
    )
    assert model.config.architecture == kind and model.origin.kind == "folder"
    assert model.config.n_decoder_layers == (2 if kind in PAIRED else 0)
    assert model.config.causal == (kind not in (*PAIRED, *ENCODERS))
    assert model.config.n_kv_heads == head_sizes(model).kv_heads


def test_an_untied_t5_is_loaded_although_transformers_writes_that_it_is_tied(
    tmp_path: Path,
) -> None:
    """T5 1.1 and Flan-T5: gated, with a separate unembedding, whose logits are not scaled."""
    folder = make_family(tmp_path / "flan", "t5", feed_forward_proj="gated-gelu")
    edit_config(folder, tie_word_embeddings=False, scale_decoder_outputs=None)
    head = torch.randn(400, 28, generator=torch.Generator().manual_seed(0))
    edit_tensors(folder, lambda t: t.__setitem__("lm_head.weight", head))
    model = probe.load(folder, dtype=torch.float64)
    for loaded in (model, probe.load(model.bridge)):
        assert loaded.config.gated_mlp and loaded.config.activation == "gelu_new"
        assert not loaded.config.tied and torch.equal(
            loaded.weights["lm_head.weight"], head.double()
        )
        assert probe.certify(loaded).require().ok


def test_an_untied_llama_and_a_tied_one_are_both_loaded(tmp_path: Path) -> None:
    tied = probe.load(
        make_family(tmp_path / "tied", "llama", tie_word_embeddings=True), dtype=torch.float64
    )
    assert tied.config.tied and "lm_head.weight" not in tied.weights
    untied = family_model("llama", torch.float64)
    assert not untied.config.tied and "lm_head.weight" in untied.weights
    assert probe.load(tied.bridge).config.tied and not probe.load(untied.bridge).config.tied
    assert probe.certify(tied).require().ok


@pytest.mark.parametrize(
    ("kind", "name", "head"),
    [
        ("llama", "model.embed_tokens.weight", "lm_head.weight"),
        ("gpt2", "transformer.wte.weight", "lm_head.weight"),
        ("bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
        ("bart", "model.shared.weight", "model.encoder.embed_tokens.weight"),
    ],
)
def test_a_tied_embedding_may_be_stored_under_its_other_name(
    kind: str, name: str, head: str, tmp_path: Path
) -> None:
    folder = make_family(tmp_path / kind, kind, tie_word_embeddings=True)
    expected = probe.load(folder)
    edit_tensors(folder, lambda tensors: tensors.__setitem__(head, tensors.pop(name)))
    model = probe.load(folder)
    embed = f"{FAMILIES[kind].embed}.weight"
    assert model.config.tied and torch.equal(model.weights[embed], expected.weights[embed])
    assert probe.certify(model).require().ok


OLDER = {"gpt_neox": {"rotary_pct": 0.25, "rotary_emb_base": 10000}}
OLDER |= {"gemma3_text": {"rope_theta": 1e6, "rope_local_base_freq": 1e4}}
THETAS = {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
OLDER |= {"modernbert": THETAS | {"layer_types": None, "global_attn_every_n_layers": 3}}


OLDER |= {"gpt2": {"model_type": None}}  # as the first checkpoints of GPT-2


@pytest.mark.parametrize(("kind", "older"), OLDER.items())
def test_keys_of_older_configs_mean_the_same(
    kind: str, older: dict[str, float], tmp_path: Path
) -> None:
    folder = make_family(tmp_path / kind, kind)
    edit_config(folder, rope_parameters=None, **older)
    assert probe.load(folder).config == family_model(kind, torch.float64).config


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def test_the_scaled_positions_of_llama_3_are_read(tmp_path: Path) -> None:
    """Of the three pairs of a head, one rotates 41 times in 256 positions, one 1.9 times, and
    one less than once.
    """
    rope = {"rope_type": "llama3", "rope_theta": 10000.0} | LLAMA3
    folder = make_family(tmp_path / "llama3", "llama", rope_parameters=rope)
    model = probe.load(folder, dtype=torch.float64)
    assert model.config.positions.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 256.0)
    assert probe.certify(model).require().ok
    plain = replace(model.config, positions=replace(model.config.positions, rope_scaling=None))
    with pytest.raises(probe.CrossCheckError, match="scores of layer 0"):
        probe.certify(replace(model, config=plain)).require()
    edit_config(
        folder, rope_parameters={name: value for name, value in rope.items() if name != "factor"}
    )
    assert "Missing required keys in `rope_parameters` for 'rope_type'='llama3'" in refusal(folder)


LONG = {"short_factor": [1.0, 1.5, 2.0, 5.0], "long_factor": [2.0, 4.0, 8.0, 9.0]}
LONG_TEXTS = {
    "a Qwen2 with YaRN": (
        "qwen2",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        "yarn",
    ),
    "a Qwen3 with YaRN": (
        "qwen3",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        "yarn",
    ),
    "Phi-4-mini": (
        "phi3",
        {
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4} | LONG,
            "original_max_position_embeddings": 36,
        },
        "longrope",
    ),
    "the text part of a Gemma 3 4B": (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
        "linear",
    ),
    "a Llama with linear positions": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
        "linear",
    ),
}


@pytest.mark.parametrize(("kind", "changes", "scaling"), LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_positions_scaled_for_long_texts_are_read(
    kind: str, changes: dict[str, Any], scaling: str, tmp_path: Path
) -> None:
    model = probe.load(make_family(tmp_path / kind, kind, **changes), dtype=torch.float64)
    scaled = model.config.positions.rope_scaling
    assert scaled is not None and scaled.kind == scaling
    assert probe.certify(model).require().ok
    plain = replace(model.config, positions=replace(model.config.positions, rope_scaling=None))
    first = model.config.local.index(False) if model.config.local else 0
    with pytest.raises(probe.CrossCheckError, match=f"scores of layer {first}"):
        probe.certify(replace(model, config=plain)).require()
    assert probe.load(model.bridge).config == model.config


def test_the_gelu_of_the_first_gemmas_is_its_tanh_form(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "gemma", "gemma")
    edit_config(folder, hidden_act="gelu")
    model = probe.load(folder, dtype=torch.float64)
    assert model.config.activation == "gelu_new" and probe.certify(model).require().ok


@pytest.mark.parametrize("kind", ["mbart", "pegasus"])
def test_keys_that_state_the_usual_position_of_norms_are_accepted_and_others_refused(
    kind: str, tmp_path: Path
) -> None:
    folder = make_family(tmp_path / kind, kind)
    edit_config(folder, add_final_layer_norm=True, normalize_before=True)
    assert probe.load(folder).config == family_model(kind, torch.float64).config
    edit_config(folder, normalize_before=False)
    assert "normalize_before is False in its config, and the from-scratch check" in refusal(
        folder, probe.UnsupportedModel
    )


def test_a_decoder_of_another_depth_than_the_encoder_is_certified(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "blenderbot", "blenderbot", decoder_layers=3)
    model = probe.load(folder, dtype=torch.float64)
    certificate = probe.certify(model).require()
    layers = {
        stack: max(row.layer or 0 for row in certificate.rows if row.stack == stack)
        for stack in ("encoder", "decoder", "cross")
    }
    assert layers == {"encoder": 1, "decoder": 2, "cross": 2}
    pair = probe.trace(model, "The muddy bank", "a bank")
    assert pair.cross.pattern.shape[0] == 3 and pair.encoder.pattern.shape[0] == 2


def test_dynamic_positions_are_plain_within_the_context_window(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
    model = probe.load(make_family(tmp_path / "llama", "llama", rope_parameters=rope))
    assert model.config.positions.rope_scaling is None and model.config.n_ctx == 40
    assert probe.certify(model, ["The" + " bank" * 36]).require().ok


@pytest.mark.slow
def test_which_layers_are_local_without_a_list(tmp_path: Path) -> None:
    """Every sixth layer of a Gemma 3 is global, every second of a Gemma 2, none of a Mistral,
    and the first of every three of a ModernBERT.
    """
    global_layers = {}
    for kind in ("gemma3_text", "gemma2", "mistral", "modernbert"):
        folder = make_family(tmp_path / kind, kind, num_hidden_layers=7, layer_types=None)
        edit_config(folder, layer_types=None)
        model = probe.load(folder)
        assert model.config.window == 5 and probe.certify(model).require().ok
        global_layers[kind] = [layer for layer, local in enumerate(model.config.local) if not local]
    assert global_layers == {
        "gemma3_text": [5],
        "gemma2": [1, 3, 5],
        "mistral": [],
        "modernbert": [0, 3, 6],
    }
    folder = make_family(tmp_path / "whole", "mistral", sliding_window=None)
    assert probe.load(folder).config.local == ()


def test_names_of_the_first_berts_are_read(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "bert", "bert")

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace(".weight", ".gamma").replace(".bias", ".beta")
            tensors[old] = tensors.pop(name)

    edit_tensors(folder, rename)
    model = probe.load(folder)
    assert set(model.weights) == set(family_model("bert", torch.float64).weights)
    assert probe.certify(model).require().ok


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("bert", "BertModel"),
        ("roberta", "RobertaModel"),
        ("gpt2", "GPT2Model"),
        ("gpt_neox", "GPTNeoXModel"),  # its class has another name for the head than files
        ("opt", "OPTModel"),  # in which half of the prefix stays
        ("gemma3_text", "Gemma3TextModel"),
    ],
)
def test_without_a_language_model_head_everything_but_logits_is_available(
    kind: str, architecture: str, tmp_path: Path
) -> None:
    model = probe.load(make_family(tmp_path / "bare", kind, architecture=architecture))
    assert not model.config.has_lm_head
    certificate = probe.certify(model).require()
    assert "logits" not in {row.quantity for row in certificate.rows}
    record = probe.trace(model, "The muddy bank")
    assert record.pattern.shape[-1] == len(record.tokens)
    with pytest.raises(probe.UnsupportedModel) as error:
        record.logits  # noqa: B018
    assert str(error.value) == (
        "Cannot read the logits of bare: its checkpoint has no language-model head for these blocks, so they would be "
        "random. Load a checkpoint with one, or read resid_post."
    )
    with pytest.raises(probe.UnsupportedModel, match="Cannot read the logits of bare"):
        probe.trace(probe.load(model.bridge), "The muddy bank").logits  # noqa: B018


def with_custom_code(folder: Path, mark: Path) -> Path:
    """Adds code to a folder, named in its config and its tokenizer, that leaves a mark if it is
    run.
    """
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    for name in ("configuration_own", "modeling_own", "tokenization_own"):
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').write('run')")
    auto_map = {
        "AutoConfig": "configuration_own.Own",
        "AutoModelForCausalLM": f"modeling_own.{kind}",
    }
    edit_config(folder, auto_map=auto_map)
    stated = folder / "tokenizer_config.json"
    auto_map = {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}
    stated.write_text(json.dumps(json.loads(stated.read_text()) | auto_map))
    return folder


@pytest.mark.parametrize("kind", ["phi3", "falcon", "qwen2", "modernbert", "t5"])
def test_code_that_comes_with_a_model_of_the_table_is_not_run(kind: str, tmp_path: Path) -> None:
    """Phi-3, Falcon and models assembled from Qwen2's parts come with such code."""
    mark = tmp_path / "mark"
    folder = with_custom_code(make_family(tmp_path / kind, kind), mark)
    model = probe.load(folder)
    assert model.config == family_model(kind).config
    assert "as its class of transformers, without the code that comes with it" in str(
        model.origin.described
    )
    source = model_class(kind).from_pretrained(folder)
    assert source.config.auto_map
    from_object = probe.load(source)
    assert (
        from_object.config == model.config and from_object.origin.read == model_class(kind).__name__
    )
    for loaded in (model, from_object):
        assert probe.certify(loaded).require().ok
    assert not mark.exists()


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        (
            "llama",
            {"architectures": ["InternLMForCausalLM"], "model_type": "internlm"},
            "its architecture is InternLMForCausalLM (model_type 'internlm'), which is not one of ",
        ),
        (
            "phi3",
            {"architectures": None, "model_type": "phi-msft"},
            "its model_type is 'phi-msft', which is not one of the ",
        ),
        (
            "qwen2",
            {"architectures": ["Qwen2ForRewardModel"]},
            "it is a Qwen2ForRewardModel, and of model_type 'qwen2' Qwen2ForCausalLM is certified",
        ),
    ],
)
def test_a_model_described_only_by_custom_code_is_refused_and_the_code_is_not_run(
    kind: str, changes: dict[str, object], expected: str, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    folder = with_custom_code(make_family(tmp_path / kind, kind), mark)
    edit_config(folder, **changes)
    sentence = refusal(folder, probe.UnsupportedModel)
    assert expected in sentence and not mark.exists()
    assert "and code that comes with a model (auto_map) is never run. " in sentence


def test_an_object_whose_class_came_with_the_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name may equal that of a class of transformers."""
    # The folder in which transformers stores such code and Python finds it.
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = make_family(tmp_path / "llama", "llama")
    (folder / "modeling_own.py").write_text(
        "import transformers\nclass LlamaForCausalLM(transformers.LlamaForCausalLM):\n    pass\n"
    )
    edit_config(folder, auto_map={"AutoModelForCausalLM": "modeling_own.LlamaForCausalLM"})
    source = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(source) is not transformers.LlamaForCausalLM
    with pytest.raises(probe.ModelError) as error:
        probe.load(source)
    assert str(error.value) == (
        "Cannot load the LlamaForCausalLM: its class is code that came with the model, which is not "
        "certified. Load it again without trust_remote_code."
    )


def test_the_class_without_a_head_of_every_family_is_one_of_transformers() -> None:
    for kind, family in FAMILIES.items():
        expected = () if family.kind == "encoder-decoder" else (MODEL_MAPPING_NAMES[kind],)
        assert family.classes_without_lm_head[:1] == expected


# Refused models and their messages


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family. It is shared: do not change it."""
    return cache(lambda kind: make_family(tmp_path_factory.mktemp("families") / kind, kind))


REFUSED = "transformers refuses its config"
UNNAMED = 'config.json does not name one architecture (got None). Add "architectures": ["'
OTHERS = (
    f"which is not one of the {len(FAMILIES)} families whose numbers are certified. Load a model "
    "that `probe models` lists, such as tiny-senses."
)
ABSURD = [
    ("gpt2", {"architectures": None}, f"{UNNAMED}G"),
    (
        "gpt2",
        {"vocab_size": 10**12},
        "config.json asks for more numbers than its ",
    ),
    (
        "gpt2",
        {"n_positions": 10**15},
        "config.json asks for more numbers than its ",
    ),
    ("gpt2", {"n_layer": 3}, "the tensor h.2.attn.c_attn.bias is missing. "),
    ("gpt2", {"n_layer": 10**12}, "n_layer is 1000000000000 in its config. Correct its config"),
    (
        "gpt2",
        {"n_layer": 1},
        "h.1.attn.c_attn.weight is not a tensor of the GPT-2 that config.json describes",
    ),
    (
        "gpt2",
        {"n_head": 5},
        "n_embd is 28 and does not divide evenly among n_head = 5 heads. Correct its config",
    ),
    ("gpt2", {"n_layer": 0}, "n_layer is 0 in its config. Give a whole number of at least 1"),
    ("gpt2", {"n_embd": "32"}, f"{REFUSED} (TypeError: Field 'n_embd' expected int, got str ("),
    (
        "gpt2",
        {"n_positions": None},
        "wpe.weight has shape [40, 28] where config.json asks for [1024",
    ),
    (
        "gpt2",
        {"layer_norm_epsilon": 0.0},
        "layer_norm_epsilon is 0.0 in its config. Give a number between 0 and 1.",
    ),
    ("gpt2", {"resid_pdrop": "x"}, f"{REFUSED} (TypeError: Field 'resid_pdrop' with value 'x' "),
    ("bert", {"architectures": None}, f"{UNNAMED}B"),
    (
        "t5",
        {"decoder_start_token_id": "x"},
        "decoder_start_token_id is 'x' in its config. Give the token that starts",
    ),
    (
        "llama",
        {"num_key_value_heads": 3},
        "4 heads cannot share num_key_value_heads = 3 evenly. Correct its config",
    ),
    (
        "llama",
        {"num_key_value_heads": 4},
        "k_proj.weight has shape [12, 32] where config.json asks for [24, 32]",
    ),
    (
        "mistral",
        {"sliding_window": 0},
        "sliding_window is 0 in its config. Give a whole number of at least 1",
    ),
    (
        "mistral",
        {"num_hidden_layers": 10**12},
        "num_hidden_layers is 1000000000000 in its config. Correct its",
    ),
    (
        "gemma2",
        {"layer_types": ["local"]},
        f"{REFUSED} (ValueError: The `layer_types` entries must be in ('full_attention', ",
    ),
    (
        "gemma2",
        {"query_pre_attn_scalar": "x"},
        f"{REFUSED} (TypeError: Field 'query_pre_attn_scalar' expected int, got str (",
    ),
    (
        "gemma2",
        {"final_logit_softcapping": 0.0},
        "final_logit_softcapping is 0.0 in its config. Give a number above 0",
    ),
    (
        "gpt_neo",
        {"attention_types": [[["global"], 10**12]]},
        "attention_types is [[['global'], 1000000000000]] in its config. Correct its config",
    ),
    (
        "gptj",
        {"rotary_dim": None},
        "rotary_dim leaves 64 of 8 dimensions of a head to its rotary positions. Correct its config",
    ),
]
ABSURD += [
    (
        "modernbert",
        {"local_attention": 1},
        "sliding_window is 0 in its config. Give a whole number of at least 1",
    ),
]
ROPE = {"full_attention": {"rope_type": "linear"}, "sliding_attention": {"rope_type": "default"}}
ABSURD += [
    (
        "mixtral",
        {"num_experts_per_tok": 4},
        "num_experts_per_tok is 4 and num_local_experts 3 in its config. Correct its config",
    ),
    (
        "mixtral",
        {"num_local_experts": None},
        "experts.down_proj has shape [3, 32, 20] where config.json asks for [8, 32, 20]",
    ),
    (
        "qwen2_moe",
        {"shared_expert_intermediate_size": None},
        "config.json asks for more numbers than its ",
    ),
    (
        "qwen2_moe",
        {"norm_topk_prob": "yes"},
        f"{REFUSED} (TypeError: Field 'norm_topk_prob' expected bool, got str (",
    ),
    (
        "mixtral",
        {"num_local_experts": 4},
        "experts.down_proj has shape [3, 32, 20] where config.json asks for [4, 32, 20]",
    ),
    (
        "gemma3_text",
        {"rope_parameters": ROPE},
        f"{REFUSED} (KeyError: \"Missing required keys in `rope_parameters` for 'rope_type'='lin",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": "4"}},
        "factor of its rotary positions is '4' in its config. Give a number above 0",
    ),
    (
        "phi3",
        {"rope_scaling": {"type": "longrope"}, "rope_parameters": None},
        f"{REFUSED} (KeyError: \"Missing required keys in `rope_parameters` for 'rope_type'='lon",
    ),
    (
        "llama",
        {"rope_parameters": None, "rope_scaling": "linear"},
        f"{REFUSED} (TypeError: Field 'rope_parameters' with value 'linear' doesn't match any type",
    ),
    (
        "gemma3_text",
        {"rope_parameters": ROPE | {"sliding_attention": 3}},
        f"{REFUSED} (AttributeError: 'int' object has no attribute 'setdefault')",
    ),
    (
        "phi",
        {"rope_parameters": None, "partial_rotary_factor": "x"},
        "partial_rotary_factor is 'x' in its config. Give a number above 0",
    ),
    (
        "gptj",
        {"rotary_dim": 5},
        "rotary_dim leaves 5 of 8 dimensions of a head to its rotary positions. Correct its",
    ),
    (
        "smollm3",
        {"no_rope_layers": [1]},
        "no_rope_layers does not state which of its 2 layers are rotated. Correct its config",
    ),
    ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, f"{REFUSED} (ZeroDivision"),
    ("gpt2", {"n_head": None}, "n_head is not in its config. Add how many heads it has"),
]
LINEAR = {layers: {"rope_type": "linear", "factor": 2.0} for layers in ROPE}
QUICK, FOUR_BITS = {"activation_function": "quick_gelu"}, {"quantization_config": {"bits": 4}}
RELATIVE, DECODER, DEEPER = (
    {"position_embedding_type": "relative_key"},
    {"is_decoder": True},
    {"decoder_layers": 3},
)
NOT_COVERED = [
    (
        "gpt2",
        {"architectures": None, "model_type": ["gpt2"]},
        f"its model_type is ['gpt2'], {OTHERS}",
    ),
    (
        "gpt2",
        {"architectures": None, "model_type": "mamba"},
        f"its model_type is 'mamba', {OTHERS}",
    ),
    (
        "gpt2",
        {"architectures": ["GPT2ForTokenClassification"]},
        "it is a GPT2ForTokenClassification, and of model_type 'gpt2' GPT2LMHeadModel is certified. Give one of that class.",
    ),
    (
        "gpt2",
        {"model_type": "llama"},
        "it is a GPT2LMHeadModel, and of model_type 'llama' LlamaForCausalLM is certified. Give one of that class.",
    ),
    (
        "gpt2",
        {"scale_attn_weights": False},
        "scale_attn_weights is False in its config, and the from-scratch check",
    ),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention is True in its config"),
    ("gpt2", QUICK, "activation_function is 'quick_gelu' in its config; known are gelu, "),
    ("gpt2", FOUR_BITS, "it is quantized (quantization_config). Load a plain float checkpoint"),
    ("bert", RELATIVE, "position_embedding_type is 'relative_key' in its config, and"),
    (
        "bert",
        DECODER,
        "is_decoder is True in its config, and the from-scratch check covers BERT with False",
    ),
    (
        "bert",
        {"hidden_act": "tanh"},
        f"known are {', '.join(ACTIVATIONS)}. Load a standard",
    ),
    (
        "bert",
        {"architectures": ["BertForSequenceClassification"]},
        "it is a BertForSequenceClassification, and of model_type 'bert' BertForMaskedLM or BertForPreTraining is",
    ),
    (
        "bart",
        DEEPER,
        "encoder_layers is 2 and decoder_layers 3 in its config, and BART is certified where the",
    ),
    ("gpt_neox", {"use_parallel_residual": False}, "use_parallel_residual is False in its config"),
    ("llama", {"mlp_bias": True}, "mlp_bias is True in its config"),
    (
        "llama",
        {"per_layer_config": {"0": {"rms_norm_eps": 1e-3}}},
        "some of its layers have separate settings (per_layer_config). Load a standard Llama.",
    ),
    (
        "llama",
        {"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e4}},
        "rope_type of its rotary positions is 'mrope', and no formula for it is certified. Load",
    ),
    ("smollm3", {"use_sliding_window": True}, "use_sliding_window is True in its config"),
    (
        "mistral",
        {"layer_types": ["full_attention"] * 2},
        "layer_types is ['full_attention', 'full_attention'] in its",
    ),
    (
        "gemma2",
        {"use_bidirectional_attention": True},
        "use_bidirectional_attention is True in its config, and the",
    ),
    (
        "gemma3_text",
        {"attn_logit_softcapping": 50.0},
        "attn_logit_softcapping is 50.0 in its config, and the from",
    ),
    (
        "gemma3_text",
        {"rope_parameters": LINEAR},
        "rope_type is 'linear' for its local layers, and only 'default' is certified there. Load",
    ),
    ("modernbert", {"norm_bias": True}, "norm_bias is True in its config, and the from-scratch"),
    (
        "modernbert",
        {"classifier_activation": "relu"},
        "classifier_activation is 'relu' in its config, and the from-scratch check covers Modern",
    ),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before is False in its config, and"),
    ("opt", {"word_embed_proj_dim": 16}, "hidden_size is 28 and word_embed_proj_dim 16 in its"),
    (
        "llama",
        {"num_local_experts": 8},
        "num_local_experts is 8 in its config, and Llama is certified without a router and experts",
    ),
    ("qwen2_moe", {"mlp_only_layers": [0]}, "mlp_only_layers is [0] in its config, and the from"),
    ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2 in its config, and the"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0 in its config, and the from-scratch check"),
    ("falcon", {"alibi": True}, "alibi is True in its config, and the from-scratch check covers"),
]


@pytest.mark.parametrize(
    ("error", "kind", "changes", "expected"),
    [(probe.ModelError, *case) for case in ABSURD]
    + [(probe.UnsupportedModel, *case) for case in NOT_COVERED],
)
def test_an_absurd_or_uncovered_config_is_refused_with_its_reason(
    error: type[Exception],
    kind: str,
    changes: dict[str, object],
    expected: str,
    folder_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(folder_of(kind), tmp_path / kind))
    edit_config(folder, **changes)
    sentence = refusal(folder, error)
    assert sentence.startswith(f"Cannot load {folder}: ")
    assert expected in sentence


@pytest.mark.parametrize("kind", NOT_READ)
def test_a_family_that_is_often_asked_for_is_refused_with_its_reason(
    kind: str, tmp_path: Path
) -> None:
    folder = make_family(tmp_path / "bert", "bert")
    edit_config(folder, architectures=["SomeForCausalLM"], model_type=kind)
    name, missing = NOT_READ[kind]
    assert refusal(folder, probe.UnsupportedModel) == (
        f"Cannot load {folder}: its architecture is SomeForCausalLM (model_type {kind!r}), and the "
        f"formulas do not have what {name} needs: {missing}. Load a model that `probe models` "
        "lists, such as tiny-senses."
    )
    assert kind not in FAMILIES and kind in CONFIG_MAPPING


def test_only_local_layers_are_rotated_where_the_family_says_so(tmp_path: Path) -> None:
    assert family_model("cohere2").config.positions.unrotated == (False, True)
    assert family_model("exaone4").config.positions.unrotated == (False, True)
    whole = {"sliding_window": None, "layer_types": ["full_attention"] * 2}
    whole |= {"sliding_window_pattern": None}
    folder = make_family(tmp_path / "exaone4", "exaone4", **whole)
    model = probe.load(folder, dtype=torch.float64)
    assert model.config.positions.unrotated == () and probe.certify(model).require().ok


def test_a_ministral_3_reads_texts_up_to_where_its_queries_would_be_scaled() -> None:
    model = family_model("ministral3")
    settings = model.bridge.original_model.config
    assert (model.config.n_ctx, settings.max_position_embeddings) == (40, 80)


def test_a_discriminator_of_electra_is_read_without_its_head(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "folder", "electra", architecture="ElectraForPreTraining")
    model = probe.load(folder, dtype=torch.float64)
    assert not model.config.has_lm_head and probe.certify(model).require().ok
    narrow = make_family(tmp_path / "narrow", "electra", embedding_size=16)
    assert "hidden_size is 28 and embedding_size 16 in its config, and ELECTRA is" in refusal(
        narrow, probe.UnsupportedModel
    )


def test_another_architecture_is_refused_with_the_list_of_those_that_are_read(
    tmp_path: Path,
) -> None:
    folder = make_family(tmp_path / "bert", "bert")
    edit_config(folder, architectures=["XLNetLMHeadModel"], model_type="xlnet")
    assert refusal(folder, probe.UnsupportedModel) == (
        f"Cannot load {folder}: its architecture is XLNetLMHeadModel (model_type 'xlnet'), {OTHERS}"
    )
    (hub,) = [row for row in probe.available() if row.kind == "hub"]
    assert all(family.name in hub.what for family in FAMILIES.values())


@pytest.mark.parametrize(
    ("kind", "gate"),
    [
        ("qwen2_moe", "layers.0.mlp.shared_expert_gate.weight"),
        ("modernbert", "layers.1.mlp.Wi.weight"),
    ],
)
def test_a_missing_gate_is_named(kind: str, gate: str, tmp_path: Path) -> None:
    folder = make_family(tmp_path / kind, kind)
    edit_tensors(folder, lambda tensors: tensors.pop(f"model.{gate}"))
    assert f"the tensor {gate} is missing" in refusal(folder)


def test_an_embedding_that_should_be_tied_and_is_not_is_refused(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "bart", "bart")
    edit_tensors(folder, lambda t: t.__setitem__("lm_head.weight", torch.ones(400, 28)))
    assert "lm_head.weight differs from shared.weight although config.json ties them" in refusal(
        folder
    )


# Tokens


def test_special_tokens_are_added_as_by_the_tokenizer() -> None:
    tokens = tokenize(family_model("bert", torch.float64), "The muddy bank")
    assert tokens.pieces[0] == "[CLS]" and tokens.pieces[-1] == "[SEP]" and tokens.bos
    assert tokens.spans[0] == tokens.spans[-1] == (0, 0)
    assert tokens.labels[0] == "0·[CLS]"
    assert list(tokens.ids) == family_tokenizer("bert")("The muddy bank")["input_ids"]
    start, end = find_word(tokens.text, "bank")
    assert (
        "".join(tokens.pieces[pos] for pos in positions_of_span(tokens, start, end)).strip()
        == "bank"
    )
    spelled = tokenize(family_model("bert", torch.float64), "a [SEP] b").ids
    assert (
        spelled.count(tokens.ids[-1]) == 1 and spelled[-1] == tokens.ids[-1]
    )  # its name in a text is tokenised as plain characters
    plain = tokenize(family_model("gpt_neox", torch.float64), "The muddy bank")
    assert not plain.bos and "".join(plain.pieces) == "The muddy bank"


def test_too_long_a_text_is_refused_with_its_special_tokens_counted() -> None:
    with pytest.raises(probe.InputError, match=re.escape("got 41 tokens, expected at most 40")):
        tokenize(family_model("bert", torch.float64), "The" + " bank" * 38)
    assert len(tokenize(family_model("bert", torch.float64), "The" + " bank" * 37)) == 40


# Functions that need a single stack


def test_analyses_of_a_word_refuse_an_encoder_decoder() -> None:
    model = family_model("t5", torch.float64)
    analyses: list[tuple[str, Callable[[], object]]] = [
        ("a study", lambda: probe.study(model, "bank")),
        (
            "an evaluation",
            lambda: probe.evaluate(model, sentences=Corpus((), (), "none", "0" * 64)),
        ),
        ("the reading of a word", lambda: target_states(model, [tokenize(model, "A bank")], [1])),
        ("the reading of a word", lambda: trace_target(model, tokenize(model, "A bank"), 1)),
        ("the reading of a word", lambda: read_weights(model)),
    ]
    for doing, ask in analyses:
        with pytest.raises(probe.UnsupportedModel) as error:
            ask()
        assert str(error.value) == (
            f"Cannot do {doing} with a T5 model: a word is read in one stack of blocks, and it has an encoder and a "
            "decoder. Take a decoder (GPT-2, tiny-senses) or an encoder (BERT), or use trace and walk with a source "
            "and a target."
        )


# The command line


def test_probe_check_prints_the_stack_and_what_was_replaced(
    run, folder_of: Callable[[str], Path]
) -> None:
    arguments = ["check", "The muddy bank", "--model", folder_of("bart")]
    code, stdout, _ = run(*arguments)
    assert code == 0 and "ok (replaced: scores recomputed from q.k)" in stdout
    assert re.search(r"^cross 1 +memory +what left the encoder", stdout, re.MULTILINE)
    rows = json.loads(run(*arguments, "--json")[1])["rows"]
    assert {row["note"] for row in rows if row["quantity"] == "scores"} == {
        "replaced: scores recomputed from q.k"
    }
