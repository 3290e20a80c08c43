"""What the config of each family may say: older and published keys that mean the same, and configs
that are refused with their reason. `test_families.py` loads every family and setting."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from families import family_model, family_tokenizer, make_family, model_class
from inside import FAMILIES, NOT_READ, read_weights, target_states
from safetensors.torch import load_file, save_file
from test_load import edit_config, refusal
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

import probe

WEIGHTS = "model.safetensors"


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / WEIGHTS, {"format": "pt"})


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family. It is shared: do not change it."""
    return cache(lambda kind: make_family(tmp_path_factory.mktemp("families") / kind, kind))


@pytest.fixture
def copy_of(folder_of: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of the folder of a family, with keys of its config changed."""

    def copied(kind: str, **changes: object) -> Path:
        folder = Path(shutil.copytree(folder_of(kind), tmp_path / kind))
        edit_config(folder, **changes)
        return folder

    return copied


# --- accepted -------------------------------------------------------------------------------------

# Keys of older and of published configs, with which a config says what the class would say. None
# removes a key.
BASE = {"rope_parameters": None, "rope_theta": 1e4}
SAME: list[tuple[str, dict[str, Any]]] = [
    ("gpt_neox", {"rope_parameters": None, "rotary_pct": 0.25, "rotary_emb_base": 10000}),
    ("gemma3_text", {"rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4}),
    (
        "modernbert",
        {"rope_parameters": None, "layer_types": None, "global_attn_every_n_layers": 3}
        | {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0},
    ),
    ("gpt2", {"model_type": None}),  # as the first checkpoints of GPT-2
    ("mbart", {"add_final_layer_norm": True, "normalize_before": True}),
    ("granitemoehybrid", {"layer_types": ["mamba", "attention", "mamba"]}),
    ("granitemoehybrid", {"normalization_function": "rmsnorm", "time_step_limit": None}),
    ("bamba", BASE | {"time_step_limit": None, "mamba_d_head": "auto"}),
    ("lfm2", {"layer_types": None, "full_attn_idxs": [1]}),
    ("lfm2", {"intermediate_size": None, "block_ff_dim": 52}),
    ("qwen3_next", {"layer_types": None, "full_attention_interval": 2}),
]


@pytest.mark.parametrize(("kind", "changes"), SAME)
def test_keys_of_older_and_of_published_configs_mean_the_same(kind, changes, copy_of) -> None:
    assert probe.load(copy_of(kind, **changes)).config == family_model(kind).config


def test_the_gelu_of_the_first_gemmas_is_its_tanh_form(copy_of) -> None:
    model = probe.load(copy_of("gemma", hidden_act="gelu"))
    assert model.config.activation == "gelu_new" and probe.certify(model).require().ok


@pytest.mark.parametrize(
    ("kind", "local"),
    [
        ("gemma3_text", [True] * 5 + [False, True]),  # every sixth layer is global
        ("gemma2", [True, False] * 3 + [True]),
        ("mistral", [True] * 7),
        ("modernbert", [False, True, True] * 2 + [False]),
    ],
)
def test_which_layers_are_local_without_a_list(kind: str, local: list[bool], tmp_path) -> None:
    folder = make_family(tmp_path / kind, kind, num_hidden_layers=7, layer_types=None)
    edit_config(folder, layer_types=None)
    model = probe.load(folder)
    assert list(model.config.local) == local and model.config.window == 5


def test_a_published_config_states_only_from_which_layer_on_a_qwen_is_local(tmp_path) -> None:
    window = {"use_sliding_window": True, "sliding_window": 5}
    folder = make_family(tmp_path / "qwen2", "qwen2", **window, max_window_layers=1)
    listed = probe.load(folder).config
    edit_config(folder, layer_types=None)  # transformers adds it when it saves one
    assert probe.load(folder).config == listed and listed.local == (False, True)
    edit_config(folder, use_sliding_window=False)
    assert probe.load(folder).config.local == ()


def test_an_untied_t5_is_loaded_although_transformers_writes_that_it_is_tied(tmp_path) -> None:
    """T5 1.1 and Flan-T5: gated, with a separate unembedding, whose logits are not scaled."""
    folder = make_family(tmp_path / "flan", "t5", feed_forward_proj="gated-gelu")
    edit_config(folder, tie_word_embeddings=False, scale_decoder_outputs=None)
    head = torch.randn(400, 28, generator=torch.Generator().manual_seed(0))
    edit_tensors(folder, lambda t: t.__setitem__("lm_head.weight", head))
    model = probe.load(folder)
    for loaded in (model, probe.load(model.bridge)):
        assert loaded.config.gated_mlp and loaded.config.activation == "gelu_new"
        assert not loaded.config.tied and torch.equal(loaded.weights["lm_head.weight"], head)
        assert probe.certify(loaded).require().ok


@pytest.mark.parametrize(
    ("kind", "name", "head"),
    [
        ("llama", "model.embed_tokens.weight", "lm_head.weight"),
        ("gpt2", "transformer.wte.weight", "lm_head.weight"),
        ("bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
        ("bart", "model.shared.weight", "model.encoder.embed_tokens.weight"),
    ],
)
def test_a_tied_embedding_may_be_stored_under_its_other_name(kind, name, head, tmp_path) -> None:
    folder = make_family(tmp_path / kind, kind, tie_word_embeddings=True)
    expected = load_file(folder / WEIGHTS)[name]
    edit_tensors(folder, lambda tensors: tensors.__setitem__(head, tensors.pop(name)))
    model = probe.load(folder)
    assert model.config.tied
    assert torch.equal(model.weights[f"{FAMILIES[kind].embed}.weight"], expected)


def test_names_of_the_first_berts_are_read(copy_of) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace(".weight", ".gamma").replace(".bias", ".beta")
            tensors[old] = tensors.pop(name)

    folder = copy_of("bert")
    edit_tensors(folder, rename)
    assert probe.load(folder).weights.keys() == family_model("bert").weights.keys()


def test_experts_may_be_stacked_in_files_as_in_the_class(tmp_path) -> None:
    """The published files of Qwen3.5 store all experts in one tensor."""
    one_by_one = probe.load(make_family(tmp_path, "qwen3_5_moe_text"))
    state = model_class("qwen3_5_moe_text").from_pretrained(tmp_path).state_dict()
    state["mtp.fc.weight"] = torch.zeros(2)  # of a predictor of one more token: not read
    save_file(state, tmp_path / WEIGHTS, {"format": "pt"})
    stacked = probe.load(tmp_path)
    assert stacked.weights.keys() == one_by_one.weights.keys()
    assert all(torch.equal(stacked.weights[name], t) for name, t in one_by_one.weights.items())
    joined = "model.layers.0.mlp.experts.down_proj"
    save_file(state | {joined: state[joined][1:].clone()}, tmp_path / WEIGHTS, {"format": "pt"})
    assert "experts.down_proj has shape [2, 32, 20] where conf" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("bert", "BertModel"),
        ("gpt_neox", "GPTNeoXModel"),  # its class has another name for the head than files
        ("opt", "OPTModel"),  # in which half of the prefix stays
        ("electra", "ElectraForPreTraining"),  # a discriminator
    ],
)
def test_without_a_language_model_head_everything_but_logits_is_available(
    kind: str, architecture: str, tmp_path: Path
) -> None:
    model = probe.load(make_family(tmp_path / "bare", kind, architecture=architecture))
    source = model_class(kind).from_pretrained(tmp_path / "bare").base_model
    for bare in (model, probe.load(model.bridge), probe.load(source, tokenizer=model.tokenizer)):
        assert not bare.config.has_lm_head
        rows = probe.certify(bare).require().rows
        assert "logits" not in {row.quantity for row in rows}
        record = probe.trace(bare, "The muddy bank")
        with pytest.raises(probe.UnsupportedModel) as error:
            record.logits  # noqa: B018
        assert str(error.value) == (
            f"Cannot read the logits of {bare.name}: its checkpoint has no language-model head for "
            "these blocks, so they would be random. Load a checkpoint with one, or read resid_post."
        )
    options = {"against": "The rotten bank", "at": "bank"}
    assert len(probe.patch(model, "The muddy bank", **options)) == 2 * 4


def test_a_decoder_may_be_deeper_than_its_encoder(tmp_path) -> None:
    model = probe.load(make_family(tmp_path / "deep", "blenderbot", decoder_layers=3))
    pair = probe.trace(model, "The muddy bank", "a bank")
    assert pair.cross.pattern.shape[0] == 3 and pair.encoder.pattern.shape[0] == 2
    rows = probe.certify(model).rows
    deepest = {stack: max(r.layer or 0 for r in rows if r.stack == stack) for stack in ("cross",)}
    assert deepest == {"cross": 2}


def test_a_ministral_3_reads_texts_up_to_where_its_queries_would_be_scaled() -> None:
    model = family_model("ministral3")
    settings = model.bridge.original_model.config
    assert (model.config.n_ctx, settings.max_position_embeddings) == (40, 80)


# --- code that comes with a model -----------------------------------------------------------------


def with_custom_code(folder: Path, mark: Path) -> Path:
    """Add code to a folder, named in its config and its tokenizer, that leaves a mark if it is
    run."""
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    for name in ("configuration_own", "modeling_own", "tokenization_own"):
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').write('run')")
    code = {"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": f"modeling_own.{kind}"}
    edit_config(folder, auto_map=code)
    stated = folder / "tokenizer_config.json"
    code = {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}
    stated.write_text(json.dumps(json.loads(stated.read_text()) | code))
    return folder


@pytest.mark.parametrize("kind", ["phi3", "t5"])
def test_code_that_comes_with_a_model_of_the_table_is_not_run(kind, copy_of, tmp_path) -> None:
    mark = tmp_path / "mark"
    folder = with_custom_code(copy_of(kind), mark)
    model = probe.load(folder)
    assert model.config == family_model(kind).config
    described = "as its class of transformers, without the code that comes with it"
    assert described in str(model.origin.described)
    source = model_class(kind).from_pretrained(folder)
    assert source.config.auto_map
    from_object = probe.load(source)
    assert from_object.config == model.config
    assert from_object.origin.read == model_class(kind).__name__ and not mark.exists()


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        (
            "llama",
            {"architectures": ["InternLMForCausalLM"], "model_type": "internlm"},
            "its architecture is InternLMForCausalLM (model_type 'internlm'), which is not one of ",
        ),
        ("phi3", {"architectures": None, "model_type": "phi-msft"}, "its model_type is 'phi-msft'"),
        ("qwen2", {"architectures": ["Qwen2ForRewardModel"]}, "it is a Qwen2ForRewardModel, and o"),
    ],
)
def test_a_model_described_only_by_custom_code_is_refused_and_the_code_is_not_run(
    kind, changes, expected, copy_of, tmp_path
) -> None:
    mark = tmp_path / "mark"
    folder = with_custom_code(copy_of(kind), mark)
    edit_config(folder, **changes)
    sentence = refusal(folder, probe.UnsupportedModel)
    assert expected in sentence and not mark.exists()
    assert "and code that comes with a model (auto_map) is never run. " in sentence


def test_an_object_whose_class_came_with_the_model_is_refused(copy_of, tmp_path, monkeypatch):
    """Its name may equal that of a class of transformers."""
    # The folder in which transformers stores such code and Python finds it.
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = copy_of("llama", auto_map={"AutoModelForCausalLM": "modeling_own.LlamaForCausalLM"})
    (folder / "modeling_own.py").write_text(
        "import transformers\nclass LlamaForCausalLM(transformers.LlamaForCausalLM):\n    pass\n"
    )
    source = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(source) is not transformers.LlamaForCausalLM
    assert refusal(source) == (
        "Cannot load the LlamaForCausalLM: its class is code that came with the model, which is not "
        "certified. Load it again without trust_remote_code."
    )


# --- refused configs ------------------------------------------------------------------------------

BY_CLASS = "transformers refuses its config"
NO_NAME = "config.json does not name one architecture (got None). Add "
EMPTY = "asks for more numbers than its "
HUGE = "is 1000000000000 in its config. Correct its"
NONE_LEFT = "none of its 3 layers has attention. Load a model with"
SHAPE = "where config.json asks for "
STATED = "is 'x' in its config. "
WINDOW = "sliding_window is 0 in its config. Give a whole number of at least 1"
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": "4"}
LAYERS = ("full_attention", "sliding_attention")
LINEAR = {layers: {"rope_type": "linear", "factor": 2.0} for layers in LAYERS}
ABSURD: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {"architectures": None}, f'{NO_NAME}"architectures": ["G'),
    ("bert", {"architectures": None}, f'{NO_NAME}"architectures": ["B'),
    ("gpt2", {"vocab_size": 10**12}, EMPTY),
    ("gpt2", {"n_positions": 10**15}, EMPTY),
    ("qwen2_moe", {"shared_expert_intermediate_size": None}, EMPTY),
    ("gpt2", {"n_layer": 10**12}, f"n_layer {HUGE}"),
    ("mistral", {"num_hidden_layers": 10**12}, f"num_hidden_layers {HUGE}"),
    ("gpt_neo", {"attention_types": [[["global"], 10**12]]}, "1000000000000]] in its config. Corr"),
    ("gpt2", {"n_layer": 0}, "n_layer is 0 in its config. Give a whole number of at least 1"),
    ("gpt2", {"n_layer": 3}, "the tensor h.2.attn.c_attn.bias is missing. "),
    ("gpt2", {"n_layer": 1}, "h.1.attn.c_attn.weight is not a tensor of the GPT-2 that config.js"),
    ("gpt2", {"n_head": 5}, "n_embd is 28 and does not divide evenly among n_head = 5 heads."),
    ("gpt2", {"n_head": None}, "n_head is not in its config. Add how many heads it has"),
    ("gpt2", {"n_embd": "32"}, f"{BY_CLASS} (TypeError: Field 'n_embd' expected int, got str ("),
    ("gpt2", {"n_positions": None}, f"wpe.weight has shape [40, 28] {SHAPE}[1024"),
    ("gpt2", {"layer_norm_epsilon": 0.0}, "0.0 in its config. Give a number between 0 and 1."),
    ("t5", {"decoder_start_token_id": "x"}, f"{STATED}Give the token that starts"),
    ("llama", {"num_key_value_heads": 3}, "4 heads cannot share num_key_value_heads = 3 evenly."),
    ("llama", {"num_key_value_heads": 4}, f"k_proj.weight has shape [12, 32] {SHAPE}[24, 32]"),
    ("llama", {"rope_parameters": YARN}, "factor of its rotary positions is '4' in its config. Gi"),
    ("llama", {"attention_bias": True}, "the tensor layers.0.self_attn.k_proj.bias is missing"),
    ("mistral", {"sliding_window": 0}, WINDOW),
    ("modernbert", {"local_attention": 1}, WINDOW),
    ("gemma2", {"layer_types": ["local"]}, f"{BY_CLASS} (ValueError: The `layer_types` entries"),
    ("gemma2", {"final_logit_softcapping": 0.0}, "is 0.0 in its config. Give a number above 0"),
    ("gptj", {"rotary_dim": None}, "rotary_dim leaves 64 of 8 dimensions of a head to its rotary"),
    ("gptj", {"rotary_dim": 5}, "rotary_dim leaves 5 of 8 dimensions of a head to its rotary pos"),
    ("phi", {"rope_parameters": None, "partial_rotary_factor": "x"}, f"{STATED}Give a number ab"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers does not state which of its 2 layers are"),
    ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, f"{BY_CLASS} (ZeroDivision"),
    ("mixtral", {"num_experts_per_tok": 4}, "num_experts_per_tok is 4 and num_local_experts 3 in"),
    ("mixtral", {"num_local_experts": 4}, f"experts.down_proj has shape [3, 32, 20] {SHAPE}[4, 32"),
    ("granitemoehybrid", {"residual_multiplier": 0}, "is 0 in its config. Give a number above"),
    ("bamba", {"mamba_n_groups": 4}, "6 heads cannot share mamba_n_groups = 4 evenly. Correct its"),
    ("bamba", {"mamba_d_state": 6}, f"mamba.conv1d.bias has shape [116] {SHAPE}[120]"),
    ("bamba", {"mamba_expand": 2}, f"{BY_CLASS} (ValueError: mamba_n_heads must"),
    ("qwen3_next", {"linear_num_key_heads": 4}, "6 heads cannot share linear_num_key_heads = 4"),
    ("qwen3_next", {"linear_conv_kernel_dim": 3}, f"conv1d.weight has shape [62, 1, 4] {SHAPE}"),
    ("qwen3_next", {"layer_types": None, "full_attention_interval": 0}, BY_CLASS),
    ("lfm2", {"layer_types": ["conv", "full_attention"]}, "the number of `layer_types` (2)). Corr"),
    ("lfm2", {"conv_L_cache": 4}, f"conv.conv.weight has shape [32, 1, 3] {SHAPE}"),
    ("lfm2", {"block_ffn_dim_multiplier": -1}, "block_ffn_dim_multiplier is -1 in its config"),
]
OTHERS = (
    f"which is not one of the {len(FAMILIES)} families whose numbers are certified. Load a model "
    "that `probe models` lists, such as tiny-senses."
)
LLAMA, PER_LAYER = "LlamaForCausalLM is certified. Give", {"0": {"rms_norm_eps": 1e-3}}
MROPE = {"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e4}}
NOT_COVERED: list[tuple[str, dict[str, Any], str]] = [
    (
        "gpt2",
        {"architectures": None, "model_type": "mamba"},
        f"its model_type is 'mamba', {OTHERS}",
    ),
    ("gpt2", {"architectures": None, "model_type": ["gpt2"]}, f"model_type is ['gpt2'], {OTHERS}"),
    ("gpt2", {"architectures": ["XLNetModel"], "model_type": "xlnet"}, f"'xlnet'), {OTHERS}"),
    (
        "gpt2",
        {"model_type": "llama"},
        f"it is a GPT2LMHeadModel, and of model_type 'llama' {LLAMA}",
    ),
    ("gpt2", {"scale_attn_weights": False}, "is False in its config, and the from-scratch check"),
    ("gpt2", {"activation_function": "quick_gelu"}, "is 'quick_gelu' in its config; known are gel"),
    ("gpt2", {"quantization_config": {"bits": 4}}, "it is quantized (quantization_config). Load a"),
    ("bert", {"is_decoder": True}, "is_decoder is True in its config, and the from-scratch check "),
    ("bart", {"decoder_layers": 3}, "encoder_layers is 2 and decoder_layers 3 in its config, and"),
    ("mbart", {"normalize_before": False}, "normalize_before is False in its config, and the from"),
    ("llama", {"per_layer_config": PER_LAYER}, "some of its layers have separate settings (per_la"),
    ("llama", MROPE, "rope_type of its rotary positions is 'mrope', and no formula for it is cert"),
    ("llama", {"num_local_experts": 8}, "and Llama is certified without a router and experts"),
    ("mistral", {"layer_types": ["full_attention"] * 2}, "is ['full_attention', 'full_attention']"),
    ("gemma3_text", {"rope_parameters": LINEAR}, "rope_type is 'linear' for its local layers, and"),
    ("opt", {"word_embed_proj_dim": 16}, "hidden_size is 28 and word_embed_proj_dim 16 in its"),
    ("qwen2_moe", {"mlp_only_layers": [0]}, "mlp_only_layers is [0] in its config, and the from"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv is 8.0 in its config, and the from-scratch check"),
    ("falcon", {"alibi": True}, "alibi is True in its config, and the from-scratch check covers"),
    ("granitemoehybrid", {"num_local_experts": 8}, "num_local_experts is 8 in its config, and"),
    ("bamba", {"mamba_conv_bias": False}, "mamba_conv_bias is False in its config, and the from-s"),
    ("bamba", {"time_step_limit": [0.0, 0.1]}, "time_step_limit is (0.0, 0.1) in its config, and"),
    ("lfm2", {"conv_bias": True}, "conv_bias is True in its config, and the from-scratch check c"),
    ("granitemoehybrid", {"layer_types": ["mamba"] * 3}, NONE_LEFT),
    ("granitemoehybrid", {"layer_types": None}, NONE_LEFT),
    ("bamba", {"attn_layer_indices": []}, NONE_LEFT),
    ("qwen3_next", {"layer_types": None, "full_attention_interval": 4}, NONE_LEFT),
    ("lfm2", {"layer_types": ["conv", "mamba", "conv"]}, "a layer is 'linear_attention' in its co"),
]


@pytest.mark.parametrize(
    ("error", "kind", "changes", "expected"),
    [(probe.ModelError, *case) for case in ABSURD]
    + [(probe.UnsupportedModel, *case) for case in NOT_COVERED],
)
def test_an_absurd_or_uncovered_config_is_refused_with_its_reason(
    error, kind, changes, expected, copy_of
) -> None:
    folder = copy_of(kind, **changes)
    sentence = refusal(folder, error)
    assert sentence.startswith(f"Cannot load {folder}: ") and expected in sentence


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("qwen2_moe", "layers.0.mlp.shared_expert_gate.weight"),
        ("modernbert", "layers.1.mlp.Wi.weight"),
        ("bamba", "layers.2.mamba.A_log"),
        ("bamba", "layers.2.mamba.conv1d.bias"),
        ("qwen3_next", "layers.2.linear_attn.dt_bias"),
        ("lfm2", "layers.2.conv.out_proj.weight"),
    ],
)
def test_every_weight_must_be_there(kind: str, lost: str, copy_of) -> None:
    folder = copy_of(kind)
    edit_tensors(folder, lambda tensors: tensors.pop(f"model.{lost}"))
    assert f"the tensor {lost} is missing" in refusal(folder)


def test_a_bias_or_a_tied_copy_that_the_config_does_not_state_is_refused(tmp_path) -> None:
    folder = make_family(tmp_path / "llama", "llama", attention_bias=True)
    edit_config(folder, attention_bias=False)
    described = "k_proj.bias is not a tensor of the Llama that config.json describes"
    assert described in refusal(folder)
    folder = make_family(tmp_path / "bart", "bart")
    edit_tensors(folder, lambda t: t.__setitem__("lm_head.weight", torch.ones(400, 28)))
    untied = "lm_head.weight differs from shared.weight although config.json ties them"
    assert untied in refusal(folder)


def test_a_family_that_is_often_asked_for_is_refused_with_its_reason(copy_of) -> None:
    folder = copy_of("bert", architectures=["SomeForCausalLM"])
    for kind, (name, missing) in NOT_READ.items():
        edit_config(folder, model_type=kind)
        assert refusal(folder, probe.UnsupportedModel) == (
            f"Cannot load {folder}: its architecture is SomeForCausalLM (model_type {kind!r}), and "
            f"the formulas do not have what {name} needs: {missing}. Load a model that `probe "
            "models` lists, such as tiny-senses."
        )
        assert kind not in FAMILIES and kind in CONFIG_MAPPING


def test_the_table_names_classes_of_transformers_and_is_listed_whole() -> None:
    for kind, family in FAMILIES.items():
        expected = () if family.kind == "encoder-decoder" else (MODEL_MAPPING_NAMES[kind],)
        assert family.classes_without_lm_head[:1] == expected
    (hub,) = [row for row in probe.available() if row.kind == "hub"]
    assert all(family.name in hub.what for family in FAMILIES.values())


# --- special tokens, and functions that need a single stack ---------------------------------------


def test_special_tokens_are_added_as_by_the_tokenizer() -> None:
    model = family_model("bert")
    tokens = probe.tokenize(model, "The muddy bank")
    assert tokens.pieces[0] == "[CLS]" and tokens.pieces[-1] == "[SEP]" and tokens.bos
    assert tokens.spans[0] == tokens.spans[-1] == (0, 0) and tokens.labels[0] == "0·[CLS]"
    assert list(tokens.ids) == family_tokenizer("bert")("The muddy bank")["input_ids"]
    spelled = probe.tokenize(model, "a [SEP] b").ids  # a name in a text is plain characters
    assert spelled.count(tokens.ids[-1]) == 1 and spelled[-1] == tokens.ids[-1]
    plain = probe.tokenize(family_model("gpt_neox"), "The muddy bank")
    assert not plain.bos and "".join(plain.pieces) == "The muddy bank"
    assert len(probe.tokenize(model, "The" + " bank" * 37)) == 40
    with pytest.raises(probe.InputError, match=re.escape("got 41 tokens, expected at most 40")):
        probe.tokenize(model, "The" + " bank" * 38)


def test_analyses_of_a_word_refuse_an_encoder_decoder() -> None:
    model = family_model("t5")
    tokens = probe.tokenize(model, "A bank")
    analyses: list[tuple[str, Callable[[], object]]] = [
        ("a study", lambda: probe.study(model, "bank")),
        ("an evaluation", lambda: probe.evaluate(model, sentences=[])),
        ("the reading of a word", lambda: target_states(model, [tokens], [1])),
        ("the reading of a word", lambda: read_weights(model)),
    ]
    for doing, ask in analyses:
        with pytest.raises(probe.UnsupportedModel) as error:
            ask()
        assert str(error.value) == (
            f"Cannot do {doing} with a T5 model: a word is read in one stack of blocks, and it has "
            "an encoder and a decoder. Take a decoder (GPT-2, tiny-senses) or an encoder (BERT), or "
            "use trace and walk with a source and a target."
        )


def test_probe_check_prints_the_stack_and_what_was_replaced(run, folder_of) -> None:
    arguments = ["check", "The muddy bank", "--model", folder_of("bart")]
    code, stdout, _ = run(*arguments)
    assert code == 0 and "ok (replaced: scores recomputed from q.k)" in stdout
    assert re.search(r"^cross 1 +memory +what left the encoder", stdout, re.MULTILINE)
    rows = json.loads(run(*arguments, "--json")[1])["rows"]
    notes = {row["note"] for row in rows if row["quantity"] == "scores"}
    assert notes == {"replaced: scores recomputed from q.k"}
