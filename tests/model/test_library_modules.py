"""Layers without attention, in which the library's module runs, and gated heads: rows of the
certificate, records, and analyses that need heads in every layer. What all families share is in
`test_families.py`, `test_trace.py` and `patching/test_replacements.py`."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
import transformers
from families import EACH_HYBRID, EXACT, FAMILIES, HYBRIDS, RECURRENT, family_model, make_family
from inside import Explorer, untrained
from safetensors.torch import load_file, save_file
from test_load import edit_config

import probe

GATED = [kind for kind in HYBRIDS if FAMILIES[kind].gated_attention]
TEXT = "A fluffy blue creature roamed the verdant forest"


@pytest.fixture(params=EACH_HYBRID)
def model(request) -> probe.Model:
    return family_model(request.param, torch.float64)


def mixers_of(model: probe.Model) -> list[int]:
    return [layer for layer, mixes in enumerate(model.config.mixers) if mixes]


def refused(ask: Callable[[], object], error: type[Exception] = probe.InputError) -> str:
    with pytest.raises(error) as caught:
        ask()
    return str(caught.value)


def test_the_certificate_has_what_the_mixer_writes_and_no_row_of_heads(model) -> None:
    rows = probe.certify(model).require().rows
    for layer in range(model.config.n_layers):
        quantities = {row.quantity for row in rows if row.layer == layer}
        assert {"x", "attn_out", "resid_mid", "mlp_out", "resid_post"} <= quantities
        of_heads = {"q", "k", "v", "scores", "pattern", "z", "delta_e"}
        assert (of_heads <= quantities) == model.config.has_heads(layer)
    formulas = {(row.layer, row.quantity): row.formula for row in rows}
    module = type(model.modules[0]["mixer"]).__name__
    assert formulas[0, "attn_out"] == f"library's module, {module}(x)"
    gate = "sigmoid(x W_gate) * " if model.config.family.gated_attention else ""
    assert formulas[1, "z"] == f"{gate}A V"


@pytest.mark.parametrize("kind", EACH_HYBRID)
def test_an_object_and_random_weights_are_certified(kind: str, tmp_path) -> None:
    source = transformers.AutoModelForCausalLM.from_pretrained(make_family(tmp_path, kind))
    model = probe.load(source, tokenizer=family_model(kind).tokenizer)
    assert model.config.mixers == family_model(kind).config.mixers
    assert probe.certify(model).ok and probe.certify(untrained(model, seed=1)).ok


@pytest.mark.parametrize("kind", GATED)
def test_wrong_gates_of_heads_are_seen(kind: str) -> None:
    model = family_model(kind, torch.float64)
    (attention,) = model.config.family.attentions
    name = attention.layer_prefix.format(1) + attention.parts["q"][0] + ".weight"
    by_head = model.weights[name].unflatten(0, (model.config.n_heads, 2, -1)).clone()
    by_head[:, 1] *= 1.01
    wrong = {**model.weights, name: by_head.flatten(0, 2)}
    rows = probe.certify(dataclasses.replace(model, weights=wrong)).rows
    assert next((row.layer, row.quantity) for row in rows if not row.ok) == (1, "z")


def test_a_trace_holds_what_the_mixer_writes_and_nothing_of_heads(model) -> None:
    trace = probe.trace(model, TEXT)
    for layer in range(model.config.n_layers):
        for name in ("q", "k", "v", "z", "pattern", "scores"):
            some = bool((getattr(trace, name)[layer] != 0).any())
            assert some == model.config.has_heads(layer)
    layer = mixers_of(model)[0]
    assert refused(lambda: trace.delta_e(layer, 0, 2)) == (
        f"Cannot take ΔE from a trace: layer {layer} of {trace.model_name} has no attention, and no "
        "heads. Choose one of the layers with heads (1), or read attn_out, the layer's write."
    )
    cache = trace.to_cache()
    assert torch.equal(cache["z", 1][0], trace.z[1].transpose(0, 1))
    # The gates follow the queries of gated heads.
    gated = model.config.family.gated_attention
    assert ("blocks.1.attn.hook_q" in cache.cache_dict) != gated
    (attention,) = model.config.family.attentions
    hooked = cache[f"blocks.{layer}.{attention.mixer.write_hook}"][0]  # before the scale
    torch.testing.assert_close(hooked * model.config.write_scale, trace.attn_out[layer], **EXACT)
    assert f"blocks.{layer}.attn.hook_z" not in cache.cache_dict


def test_the_decomposition_has_a_term_for_every_mixer(model) -> None:
    trace, depth, layers = probe.trace(model, TEXT), model.config.n_layers, mixers_of(model)
    terms = probe.decomposition.components_by_source(trace, depth, at=5)
    parts = {part.component: part for part in terms}
    heads = [name for name in parts if parts[name].head is not None]
    assert len(heads) == (depth - len(layers)) * model.config.n_heads
    for layer in layers:
        [written] = parts[f"mixer {layer}"].vectors
        torch.testing.assert_close(written, trace.attn_out[layer, 5], **EXACT)
    of_logit = probe.decompose(model, TEXT, at="creature", tokens=17)
    logit = float(trace.logits[trace.tokens.positions_of("creature")[-1], 17])
    assert of_logit["logit"].sum() == pytest.approx(logit, abs=RECURRENT["atol"])
    assert {f"mixer {layer}" for layer in layers} <= {*of_logit["component"]}


def test_a_constant_of_granite_is_what_its_config_says(tmp_path) -> None:
    """If the weights of a writer are multiplied by the constant instead, the stream is the same."""
    folder = make_family(tmp_path / "granite", "granitemoehybrid")
    edit_config(folder, residual_multiplier=0.44)
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith(("o_proj.weight", "out_proj.weight", "output_linear.weight")):
            tensors[name] = tensors[name] / 2
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    halved = probe.trace(folder, TEXT)
    whole = probe.trace(family_model("granitemoehybrid"), TEXT)
    for name in ("attn_out", "mlp_out", "resid_post", "logits"):
        torch.testing.assert_close(getattr(halved, name), getattr(whole, name))
    assert torch.equal(halved.delta_e(1, 2, 5), whole.delta_e(1, 2, 5))


# --- analyses of heads in every layer -------------------------------------------------------------


def test_analyses_of_heads_in_every_layer_refuse_a_hybrid_in_one_sentence(model) -> None:
    a, b, directions = [(5, 9, 30, 7)], [(5, 9, 31, 7)], torch.ones(1, model.config.d_model)
    analyses = (
        ("edges", lambda: probe.edges(model, a, b, directions, depth=2)),
        ("a walk", lambda: probe.walk(model, TEXT)),
        ("a survey", lambda: probe.survey(model, sentences=[])),
        ("an exploration", lambda: Explorer(model)),
    )
    for doing, ask in analyses:
        assert refused(ask, probe.UnsupportedModel).startswith(
            f"Cannot do {doing} with a {model.config.family.name} model: 2 of its 3 layers have no "
            "attention. "
        )


@pytest.mark.parametrize("kind", [GATED[0], "granitemoehybrid"])
def test_with_attention_in_every_layer_it_is_walked_unless_its_heads_are_gated(kind, tmp_path):
    name = "full_attention" if kind in GATED else "attention"
    changes = {"layer_types": [name] * 3}
    changes |= {} if kind in GATED else {"position_embedding_type": "rope"}
    model = probe.load(make_family(tmp_path, kind, **changes))
    assert probe.certify(model).ok and model.config.heads_in_all == 3 * model.config.n_heads
    if kind in GATED:
        start = f"Cannot do a walk with a {model.config.family.name} model: its heads are gated."
        assert refused(lambda: probe.walk(model, TEXT), probe.UnsupportedModel).startswith(start)
    else:
        assert probe.walk(model, TEXT).frames["agreement"]["error"].max() < 1e-5


def test_a_patch_has_rows_for_existing_heads_only_and_others_cannot_be_hooked(model) -> None:
    pair = {"text": "A blue creature", "against": "A verdant creature", "at": "creature"}
    rows = probe.patch(model, **pair)
    assert set(rows["layer"]) == {1} and len(rows) == model.config.n_heads
    assert set(probe.patch(model, **pair, parts="mlp")["layer"]) == {0, 1, 2}
    message = refused(lambda: probe.patch_hooks(model, **pair, heads=[(0, 1)]))
    assert "its layer 0 has no attention, and no heads. Give" in message
    message = refused(lambda: probe.evaluate(model, sentences=[], without=["L1H0", "L2H1"]))
    assert "its layer 2 has no attention, and no heads. Give" in message
