"""Layers without attention, in which the library's module runs, and gated heads: the certificate,
the forward from scratch, records and decomposition.
"""

import dataclasses
import json
import shutil
from functools import cache

import pytest
import torch
import transformers
from families import EACH_HYBRID, EXACT, HYBRIDS, ROUNDED, assert_near, family_model, make_family
from safetensors.torch import load_file, save_file

import probe
from probe.errors import InputError, ModelError, UnsupportedModel
from probe.explorer.session import Explorer
from probe.model import blocks, decomposition, forward, variants
from probe.model.architectures import FAMILIES
from probe.model.check import RECURRENT
from probe.model.load import load, read_weights, untrained
from probe.model.tokens import tokenize
from probe.model.trace import target_states, trace_target

GATED = [kind for kind in HYBRIDS if FAMILIES[kind].gated_attention]
TEXT = "A fluffy blue creature roamed the verdant forest"


@pytest.fixture(params=EACH_HYBRID)
def model(request):
    return family_model(request.param, torch.float64)


def mixers_of(model):
    return [layer for layer, mixes in enumerate(model.config.mixers) if mixes]


def random_vectors(model, *shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, model.config.d_model, generator=generator, dtype=torch.float64)


def test_the_certificate_has_what_the_mixer_writes_and_no_row_of_heads(model):
    certificate = probe.certify(model).require()
    for layer in range(model.config.n_layers):
        quantities = {row.quantity for row in certificate.rows if row.layer == layer}
        assert {"x", "attn_out", "resid_mid", "mlp_out", "resid_post"} <= quantities
        assert ({"q", "k", "v", "scores", "pattern", "z", "delta_e"} <= quantities) == (
            model.config.has_heads(layer)
        )
    formulas = {(row.layer, row.quantity): row.formula for row in certificate.rows}
    module = type(model.modules[0]["mixer"]).__name__
    assert formulas[0, "attn_out"] == f"library's module, {module}(x)"
    gate = "sigmoid(x W_gate) * " if model.config.family.gated_attention else ""
    assert formulas[1, "z"] == f"{gate}A V"


@pytest.mark.parametrize("kind", EACH_HYBRID)
def test_the_certificate_holds_in_bfloat16_of_an_object_and_of_random_weights(kind, tmp_path):
    assert probe.certify(family_model(kind, torch.bfloat16)).ok
    source = transformers.AutoModelForCausalLM.from_pretrained(make_family(tmp_path, kind))
    model = load(source, tokenizer=family_model(kind).tokenizer)
    assert model.config.mixers == family_model(kind).config.mixers and probe.certify(model).ok
    assert probe.certify(untrained(model, seed=1)).ok


@pytest.mark.parametrize("kind", GATED)
def test_wrong_gates_of_heads_are_seen(kind):
    model = family_model(kind, torch.float64)
    gated = dict(model.weights)
    (attention,) = model.config.family.attentions
    name = attention.layer_prefix.format(1) + attention.parts["q"][0] + ".weight"
    by_head = gated[name].unflatten(0, (model.config.n_heads, 2, -1)).clone()
    by_head[:, 1] *= 1.01
    gated[name] = by_head.flatten(0, 2)
    rows = probe.certify(dataclasses.replace(model, weights=gated)).rows
    assert next((row.layer, row.quantity) for row in rows if not row.ok) == (1, "z")


@pytest.mark.parametrize("kind", EACH_HYBRID)
def test_the_forward_from_scratch_is_hugging_faces_in_both_types(kind):
    for dtype in (torch.float32, torch.float64):
        model = family_model(kind, dtype)
        ids = torch.tensor(tokenize(model, TEXT).ids)
        weights = read_weights(model)
        within = 1e-5 if dtype == torch.float32 else RECURRENT
        terms = blocks.position_terms(weights, len(ids))
        *_, last = variants.run_texts(weights, [ids.tolist()], len(weights.blocks), terms)
        with torch.no_grad():
            logits = model.bridge.original_model(ids[None]).logits[0]
        [resid] = last.everywhere(last.resid_post)
        assert_near(forward.unembed(weights, resid), logits, {"rtol": 0, "atol": within})


def test_a_trace_holds_what_the_mixer_writes_and_nothing_of_heads(model):
    trace = probe.trace(model, TEXT)
    for layer in range(model.config.n_layers):
        has_heads = model.config.has_heads(layer)
        for name in ("q", "k", "v", "z", "pattern", "scores"):
            assert bool((getattr(trace, name)[layer] != 0).any()) == has_heads
        total = trace.resid_pre[layer] + trace.attn_out[layer] + trace.mlp_out[layer]
        torch.testing.assert_close(trace.resid_post[layer], total, **EXACT)
    single = trace_target(model, trace.tokens, 5)
    by_source = trace.delta_e_by_source(1, 2, 5)
    assert_near(by_source.sum(0), trace.delta_e(1, 2, 5), EXACT)
    assert_near(single.delta_e_by_source(1, 2), by_source[:6], ROUNDED)
    layer = mixers_of(model)[0]
    with pytest.raises(InputError) as error:
        trace.delta_e(layer, 0, 2)
    assert str(error.value) == (
        f"Cannot take ΔE from a trace: layer {layer} of {trace.model_name} has no attention, and no "
        "heads. Choose one of the layers with heads (1), or read attn_out, the layer's write."
    )
    cache = trace.to_cache()
    assert torch.equal(cache["z", 1][0], trace.z[1].transpose(0, 1))
    # The gates follow the queries of gated heads.
    assert ("blocks.1.attn.hook_q" in cache.cache_dict) != model.config.family.gated_attention
    (attention,) = model.config.family.attentions
    hooked = cache[f"blocks.{layer}.{attention.mixer.write_hook}"][0]  # before the scale
    torch.testing.assert_close(hooked * model.config.write_scale, trace.attn_out[layer], **EXACT)
    assert f"blocks.{layer}.attn.hook_z" not in cache.cache_dict


def test_the_decomposition_has_a_term_for_every_mixer_and_closes(model):
    trace = probe.trace(model, TEXT)
    depth = model.config.n_layers
    assert decomposition.closing_error(trace, depth, at=5) < 1e-12
    parts = {
        part.component: part for part in decomposition.components_by_source(trace, depth, at=5)
    }
    heads = [name for name in parts if parts[name].head is not None]
    assert len(heads) == (depth - len(mixers_of(model))) * model.config.n_heads
    for layer in mixers_of(model):
        torch.testing.assert_close(
            parts[f"mixer {layer}"].vectors[0], trace.attn_out[layer, 5], **EXACT
        )


def test_states_of_many_texts_and_of_one_position_are_those_of_the_whole_trace(model):
    texts = [tokenize(model, text) for text in (TEXT, "the verdant forest", "A blue creature")]
    at = [4, 2, 1]
    states = target_states(model, texts, at)
    for row, (tokens, pos) in enumerate(zip(texts, at, strict=True)):
        whole = probe.trace(model, tokens.text)
        single = trace_target(model, tokens, pos).states
        for name in ("z", "attn_out", "mlp_out"):
            expected = getattr(whole, name)[..., pos, :]
            assert_near(getattr(states, name)[row], expected, ROUNDED)
            assert_near(getattr(single, name)[0], expected, ROUNDED)
    shares = decomposition.shares(
        read_weights(model), states, random_vectors(model)[None], model.config.n_layers, [0], [1]
    )
    assert sum(share.share for share in shares) == pytest.approx(1, abs=1e-9)
    assert {share.component for share in shares} >= {f"mixer {layer}" for layer in mixers_of(model)}


def test_a_long_text_is_read_in_chunks_with_the_state_carried_on(model, monkeypatch):
    monkeypatch.setattr("probe.model.trace.CHUNK", 3)
    tokens = tokenize(model, TEXT)
    whole = probe.trace(model, TEXT)
    single = trace_target(model, tokens, 9).states
    for name in ("z", "attn_out", "mlp_out"):
        # transformers' two forms of a recurrence, in float32, differ by this much.
        assert_near(
            getattr(single, name)[0],
            getattr(whole, name)[..., 9, :],
            {"rtol": 0, "atol": RECURRENT},
        )


def changed_config(folder, tmp_path, **changes):
    shutil.copytree(folder, tmp_path / "changed")
    file = tmp_path / "changed" / "config.json"
    config = json.loads(file.read_text())
    config |= changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))
    return tmp_path / "changed"


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    return cache(lambda family: make_family(tmp_path_factory.mktemp(family), family))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_local_experts": 8}, "num_local_experts is 8 in its config, and Granite 4 is certif"),
        ({"residual_multiplier": 0}, "residual_multiplier is 0 in its config. Give a number above"),
        ({"logits_scaling": None}, "logits_scaling is None in its config. Give a number above 0"),
        ({"normalization_function": "layernorm"}, "normalization_function is 'layernorm' in its c"),
        ({"layer_types": ["mamba"] * 3}, "none of its 3 layers has attention. Load a model with"),
        ({"layer_types": "absent"}, "none of its 3 layers has attention. Load a model with"),
        ({"layer_types": [["mamba"]] * 3}, "transformers refuses its config (TypeError: Field 'la"),
    ],
)
def test_an_invalid_config_of_granite_is_refused_in_one_sentence(
    folder_of, tmp_path, changes, message
):
    with pytest.raises(ModelError) as error:
        load(changed_config(folder_of("granitemoehybrid"), tmp_path, **changes))
    assert message in str(error.value)


def test_the_published_config_of_granite_is_read(folder_of, tmp_path):
    """Older names of layers, and no positions except the order that state spaces have."""
    published = {"layer_types": ["mamba", "attention", "mamba"], "position_embedding_type": "nope"}
    published |= {"normalization_function": "rmsnorm", "time_step_limit": "absent"}
    model = load(changed_config(folder_of("granitemoehybrid"), tmp_path, **published))
    assert model.config.mixers == (True, False, True) and probe.certify(model).ok
    assert model.config.positions.unrotated == (True, True, True)


def test_a_constant_of_granite_is_what_its_config_says(folder_of, tmp_path):
    """If the weights of a writer are multiplied by the constant instead, the stream is the same."""
    constant = "residual_multiplier"
    copied = changed_config(folder_of("granitemoehybrid"), tmp_path, **{constant: 0.44})
    tensors = load_file(copied / "model.safetensors")
    for name in tensors:
        if name.endswith(("o_proj.weight", "out_proj.weight", "output_linear.weight")):
            tensors[name] = tensors[name] / 2
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    halved = probe.trace(load(copied), TEXT)
    whole = probe.trace(family_model("granitemoehybrid"), TEXT)
    for name in ("attn_out", "mlp_out", "resid_post", "logits"):
        torch.testing.assert_close(getattr(halved, name), getattr(whole, name))
    assert torch.equal(halved.delta_e(1, 2, 5), whole.delta_e(1, 2, 5))


def test_granite_with_attention_in_every_layer_is_certified_and_walked(folder_of, tmp_path):
    changes = {"layer_types": ["attention"] * 3, "position_embedding_type": "rope"}
    model = load(make_family(tmp_path, "granitemoehybrid", **changes))
    assert probe.certify(model).ok and model.config.heads_in_all == 3 * model.config.n_heads
    assert probe.walk(model, TEXT).frames["agreement"]["error"].max() < 1e-5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mamba_n_groups": 4}, "6 heads cannot share mamba_n_groups = 4 evenly. Correct its conf"),
        ({"mamba_d_head": "wide"}, "ValueError: The dimensions for the Mamba head state do not ma"),
        (
            {"mamba_d_state": 6},
            "mamba.conv1d.bias has shape [116] where config.json asks for [120]",
        ),
        ({"mamba_d_conv": 4}, "mamba.conv1d.weight has shape [116, 1, 3] where config.json asks"),
        ({"mamba_expand": 2}, "transformers refuses its config (ValueError: mamba_n_heads must"),
        ({"attn_layer_indices": []}, "none of its 3 layers has attention. Load a model with at"),
        ({"attn_layer_indices": None}, "none of its 3 layers has attention. Load a model with a"),
        ({"mamba_conv_bias": False}, "mamba_conv_bias is False in its config, and the from-scratc"),
        ({"mamba_proj_bias": True}, "mamba_proj_bias is True in its config, and the from-scratch"),
        ({"time_step_limit": [0.0, 0.1]}, "time_step_limit is (0.0, 0.1) in its config, and the"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu' in its config, and the from-scratch check"),
    ],
)
def test_an_invalid_config_of_a_state_space_is_refused_in_one_sentence(
    folder_of, tmp_path, changes, message
):
    with pytest.raises(ModelError) as error:
        load(changed_config(folder_of("bamba"), tmp_path, **changes))
    assert message in str(error.value)


def test_the_published_config_of_a_state_space_is_read(folder_of, tmp_path):
    """Bamba's config states neither limits of the steps nor settings of rotary positions other
    than the base.
    """
    published = {"rope_parameters": "absent", "rope_theta": 1e4, "time_step_limit": "absent"}
    published |= {"mamba_d_head": "auto", "partial_rotary_factor": 1.0}  # which its class ignores
    model = load(changed_config(folder_of("bamba"), tmp_path, **published))
    assert model.config.mixers == (True, False, True) and probe.certify(model).ok
    assert model.config.positions.dims == 4  # half of a head


@pytest.mark.parametrize("lost", ["A_log", "D", "dt_bias", "conv1d.bias", "norm.weight"])
def test_every_weight_of_a_state_space_must_be_there(folder_of, tmp_path, lost):
    copied = changed_config(folder_of("bamba"), tmp_path)
    tensors = load_file(copied / "model.safetensors")
    del tensors[f"model.layers.2.mamba.{lost}"]
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"the tensor layers.2.mamba.{lost} is missing"):
        load(copied)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_key_heads": 4}, "6 heads cannot share linear_num_key_heads = 4 evenly"),
        ({"linear_key_head_dim": None}, "transformers refuses its config (TypeError: Field 'lin"),
        ({"linear_conv_kernel_dim": 3}, "linear_attn.conv1d.weight has shape [62, 1, 4] where"),
        ({"linear_value_head_dim": 8}, "linear_attn.conv1d.weight has shape [62, 1, 4] where"),
        ({"layer_types": "absent", "full_attention_interval": 4}, "none of its 3 layers has att"),
        (
            {"layer_types": "absent", "full_attention_interval": 0},
            "transformers refuses its config",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu' in its config, and the from-scratch check"),
        ({"mlp_only_layers": [1]}, "mlp_only_layers is [1] in its config, and the from-scratch"),
    ],
)
def test_an_invalid_config_of_a_delta_rule_is_refused_in_one_sentence(
    folder_of, tmp_path, changes, message
):
    with pytest.raises(ModelError) as error:
        load(changed_config(folder_of("qwen3_next"), tmp_path, **changes))
    assert message in str(error.value)


def test_the_published_config_of_a_delta_rule_is_read(folder_of, tmp_path):
    """Qwen3-Next's config states an interval instead of its layers, and no rope_parameters."""
    published = {"layer_types": "absent", "full_attention_interval": 2, "rope_scaling": None}
    published |= {"rope_parameters": "absent", "rope_theta": 1e7, "partial_rotary_factor": 0.5}
    model = load(changed_config(folder_of("qwen3_next"), tmp_path, **published))
    assert model.config.mixers == (True, False, True) and probe.certify(model).ok
    assert (model.config.positions.dims, model.config.positions.base) == (4, 1e7)


@pytest.mark.parametrize("lost", ["A_log", "dt_bias", "in_proj_ba.weight", "norm.weight"])
def test_every_weight_of_a_delta_rule_must_be_there(folder_of, tmp_path, lost):
    copied = changed_config(folder_of("qwen3_next"), tmp_path)
    tensors = load_file(copied / "model.safetensors")
    del tensors[f"model.layers.2.linear_attn.{lost}"]
    save_file(tensors, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=f"the tensor layers.2.linear_attn.{lost} is missing"):
        load(copied)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["conv", "full_attention"]}, "the number of `layer_types` (2)). Corr"),
        ({"layer_types": ["conv", "mamba", "conv"]}, "a layer is 'linear_attention' in its co"),
        ({"layer_types": ["conv"] * 3}, "none of its 3 layers has attention. Load a model with"),
        ({"conv_L_cache": None}, "transformers refuses its config (TypeError: Field 'conv_L_ca"),
        ({"conv_L_cache": 4}, "conv.conv.weight has shape [32, 1, 3] where config.json asks for"),
        ({"conv_bias": True}, "conv_bias is True in its config, and the from-scratch check covers"),
        ({"block_multiple_of": 0}, "block_multiple_of is 0 in its config. Give a whole number"),
        ({"block_ffn_dim_multiplier": -1}, "block_ffn_dim_multiplier is -1 in its config"),
    ],
)
def test_an_invalid_config_of_lfm2_is_refused_in_one_sentence(
    folder_of, tmp_path, changes, message
):
    with pytest.raises(ModelError) as error:
        load(changed_config(folder_of("lfm2"), tmp_path, **changes))
    assert message in str(error.value)


def test_weights_are_loaded_strictly(folder_of, tmp_path):
    copied = changed_config(folder_of("lfm2"), tmp_path)
    tensors = load_file(copied / "model.safetensors")
    name = "model.layers.2.conv.out_proj.weight"
    for changed, message in (
        ({}, "the tensor layers.2.conv.out_proj.weight is missing"),
        ({name: tensors[name] * torch.nan}, "layers.2.conv.out_proj.weight contains NaN"),
        (
            tensors | {"model.layers.2.self_attn.q_proj.weight": tensors[name].clone()},
            "layers.2.self_attn.q_proj.weight is not a tensor of the LFM2 that config.json",
        ),
    ):
        contents = {key: part for key, part in tensors.items() if key != name} | changed
        save_file(contents, copied / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError) as error:
            load(copied)
        assert message in str(error.value)


def test_a_config_may_name_the_layers_with_attention_by_their_numbers(folder_of, tmp_path):
    older = {"layer_types": "absent", "full_attn_idxs": [1], "block_ff_dim": 52}
    model = load(changed_config(folder_of("lfm2"), tmp_path, **older, intermediate_size="absent"))
    assert model.config.mixers == (True, False, True) and model.config.d_mlp == 36
    assert probe.certify(model).ok


def test_experts_may_be_stacked_in_files_as_in_the_class(tmp_path):
    """The published files of Qwen3.5 store all experts in one tensor."""
    kind = "qwen3_5_moe_text"
    one_by_one = load(make_family(tmp_path, kind))
    state = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert "model.layers.0.mlp.experts.gate_up_proj" in state
    state["mtp.fc.weight"] = torch.zeros(2)  # of a predictor of one more token: not read
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    model = load(tmp_path)
    assert model.weights.keys() == one_by_one.weights.keys() and probe.certify(model).ok
    for name, tensor in model.weights.items():
        assert torch.equal(tensor, one_by_one.weights[name])
    joined = "model.layers.0.mlp.experts.down_proj"
    save_file(state | {joined: state[joined][1:].clone()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"experts.down_proj has shape \[2, 32, 20\] where conf"):
        load(tmp_path)


# --- quantities of heads in every layer -----------------------------------------------------------


def test_analyses_of_heads_in_every_layer_refuse_a_hybrid_in_one_sentence(model):
    row = ((5, 9, 30, 7), (5, 9, 31, 7))
    directions = torch.ones(1, model.config.d_model)
    weights = read_weights(model)
    analyses = (
        ("edges", lambda: probe.edges(weights, row[:1], row[1:], directions, depth=2)),
        ("a walk", lambda: probe.walk(model, TEXT)),
        ("a survey", lambda: probe.survey(model, sentences=[])),
        ("an exploration", lambda: Explorer(model)),
    )
    for doing, ask in analyses:
        with pytest.raises(UnsupportedModel) as error:
            ask()
        name = model.config.family.name
        message = f"Cannot do {doing} with a {name} model: 2 of its 3 layers have no attention. "
        assert str(error.value).startswith(message)


@pytest.mark.parametrize("kind", GATED)
def test_gated_heads_in_every_layer_are_certified_but_not_walked(kind, tmp_path):
    model = load(make_family(tmp_path, kind, layer_types=["full_attention"] * 3))
    assert probe.certify(model).ok and model.config.heads_in_all == 3 * model.config.n_heads
    with pytest.raises(UnsupportedModel) as error:
        probe.walk(model, TEXT)
    message = (
        f"Cannot do a walk with a {model.config.family.name} model: its heads are gated. Read "
    )
    assert str(error.value).startswith(message)


def test_a_patch_has_rows_for_existing_heads_only_and_others_cannot_be_hooked(model):
    a, b = "A blue creature", "A verdant creature"
    rows = probe.patch(model, a, against=b, at="creature")
    assert set(rows["layer"]) == {1} and len(rows) == model.config.n_heads
    assert set(probe.patch(model, a, against=b, at="creature", parts="mlp")["layer"]) == {0, 1, 2}
    with pytest.raises(InputError, match="its layer 0 has no attention, and no heads. Give"):
        probe.patch_hooks(model, a, against=b, at="creature", heads=[(0, 1)])
    with pytest.raises(InputError, match="its layer 2 has no attention, and no heads. Name"):
        probe.evaluate(model, sentences=[], without=["L1H0", "L2H1"])


def test_the_terms_of_a_logit_are_the_logit(model):
    terms = probe.decompose(model, TEXT, at="creature", tokens=17)
    whole = probe.trace(model, TEXT)
    at = whole.tokens.positions_of("creature")[-1]
    assert terms["logit"].sum() == pytest.approx(float(whole.logits[at, 17]), abs=RECURRENT)
    assert {"mixer 0", "mixer 2"} <= set(terms["component"])
