"""The contract of every family: one test for each row of the table, and for each setting of a
config that changes a formula or adds weights.

Most rows need no other test, because the code that uses them is tested with the representatives
(`families.REPRESENTATIVES`). A rule of only some families is tested with the rule.
"""

from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from families import (
    ALIKE,
    EACH_HYBRID,
    EXACT,
    FAMILIES,
    HEADS,
    LAYERS,
    PAIRED,
    RECURRENT,
    ROUNDED,
    SETTINGS,
    UPCAST,
    VOCABULARY,
    assert_near,
    each_family,
    family_model,
    family_tokenizer,
    head_sizes,
    make_family,
    model_class,
    near,
    of_setting,
    random_model,
)
from inside import count_parameters, read_weights, untrained
from seeds import campaign_except
from transformers import AutoTokenizer

import probe

TEXT, TARGET = "The mole dug a tunnel under the muddy bank", "A muddy apple"


EVERY = (*FAMILIES, *SETTINGS)


@pytest.mark.parametrize("kind", campaign_except(EVERY, {*EVERY} - {*ALIKE}))
def test_a_family_keeps_its_contract(kind: str, tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", kind)
    model = probe.load(folder, dtype=torch.float64)
    require_loaded(model, kind)
    require_certified(model)
    record = probe.trace(model, TEXT, *[TARGET] * (model.config.n_decoder_layers > 0))
    require_hugging_faces_numbers(model, kind, folder, record)
    if isinstance(record, probe.Trace):
        require_parts_that_sum(record, model)
        depth = model.config.n_layers
        error = probe.decomposition.closing_error(record, depth, at=4)
        assert error <= (RECURRENT if model.config.mixers else ROUNDED)["atol"]
    else:
        for side in (record.encoder, record.decoder, record.cross):
            require_parts_that_sum(side, model)


@pytest.mark.parametrize("kind", EACH_HYBRID)
def test_a_hybrid_is_certified_in_float32_too(kind: str) -> None:
    require_certified(family_model(kind))


def require_loaded(model: probe.Model, kind: str) -> None:
    """The raw tensors equal those of the model that was saved, and the sizes equal those in
    transformers' config."""
    config, family = model.config, model.config.family
    saved = random_model(kind).state_dict()
    stored = {family.raw_name(name): tensor for name, tensor in saved.items()}
    for name, tensor in model.weights.items():
        assert torch.equal(tensor, stored[name].double()), name
    assert not any(t.requires_grad for t in (*model.weights.values(), *model.bridge.parameters()))
    assert (config.n_kv_heads, config.d_model, config.d_head) == head_sizes(model)
    assert config.architecture == of_setting(kind)[0] and model.origin.kind == "folder"
    assert config.d_vocab == VOCABULARY and config.has_lm_head
    assert config.causal == (family.kind == "decoder")
    assert bool(config.n_decoder_layers) == (family.kind == "encoder-decoder")
    with torch.device("meta"):
        parameters = model_class(kind)(model.bridge.original_model.config).parameters()
    assert count_parameters(model).total == sum(part.numel() for part in parameters)
    for name, value in of_setting(kind)[2].items():
        assert attrgetter(name)(config) == value, name


def require_certified(model: probe.Model) -> None:
    """The certificate holds, also for a text of nearly the largest length."""
    long = "The" + " bank" * (min(model.config.n_ctx, 84) - 4)
    certificate = probe.certify(model, [TEXT, long]).require()
    assert all(row.scale > 0.05 for row in certificate.rows)
    assert certificate.worst.error > 0  # the two sides are separate computations


def require_hugging_faces_numbers(model, kind, folder, record) -> None:
    """Ids, patterns, streams and logits equal those of a model that transformers loads from the
    folder."""
    family, settings, _ = of_setting(kind)
    how = {"dtype": torch.float64}
    # GPT-2's widened scores run only in other ways than step by step.
    how |= {} if UPCAST in settings else {"attn_implementation": "eager"}
    how |= {"experts_implementation": "eager"} if model.config.family.routed else {}
    plain = model_class(kind).from_pretrained(folder, **how).eval()
    close = near(family)
    if model.config.family.adapter_rounds_differently:
        close = ROUNDED
    if any(model.config.mixers):
        close = RECURRENT
    options = {"output_attentions": True, "output_hidden_states": True}
    if isinstance(record, probe.Trace):
        bos = model.tokenizer.bos_token if model.config.prepend_bos else ""
        ids = AutoTokenizer.from_pretrained(folder)(bos + TEXT)["input_ids"]
        assert list(record.tokens.ids) == ids
        with torch.no_grad():
            theirs = plain(torch.tensor([ids]), **options)
        whole = [(record.pattern, theirs.attentions), (record.resid_pre, theirs.hidden_states)]
    else:
        ids, target = (torch.tensor([tokens.ids]) for tokens in (record.source, record.target))
        with torch.no_grad():
            theirs = plain(ids, decoder_input_ids=target, **options)
        whole = [
            (record.encoder.pattern, theirs.encoder_attentions),
            (record.decoder.pattern, theirs.decoder_attentions),
            (record.cross.pattern, theirs.cross_attentions),
            (record.encoder.resid_pre, theirs.encoder_hidden_states),
            (record.decoder.resid_pre, theirs.decoder_hidden_states),
        ]
    assert_near(record.logits, theirs.logits[0], close)
    if UPCAST in settings or any(model.config.mixers):  # which return no pattern of every layer
        whole = []
    for tensors, layers in whole:
        expected = torch.stack([layer[0] for layer in layers[: len(tensors)]])
        assert_near(tensors, expected, close)


def require_parts_that_sum(record, model) -> None:
    """ΔE of all heads plus b_O is the write of attention, ΔE by source sums to ΔE, and a row of the
    pattern to 1."""
    kind = model.config.architecture
    at = len(record.tokens) - 1
    for layer, block in enumerate(record.stack.blocks):
        if block.mixer is not None:
            assert not record.z[layer].any()
            continue
        rows = record.pattern[layer].sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows), **near(kind))
        heads = range(record.stack.config.n_heads)
        writes = torch.stack([record.delta_e(layer, head, at) for head in heads])
        whole = writes.sum(0) if block.b_o is None else writes.sum(0) + block.b_o
        assert_near(whole, record.attn_out[layer, at], EXACT)
        by_source = record.delta_e_by_source(layer, 1, at)
        assert_near(by_source.sum(0), writes[1], EXACT)
    if model.config.family.adds_plainly and record.stack.attention.name == "":
        total = record.resid_pre + record.attn_out + record.mlp_out
        assert_near(total, record.resid_post, EXACT)


# --- the weights ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", each_family(also=("gpt_neox", "mixtral")))
def test_weights_are_views_of_the_models_own_and_a_bridge_gives_them_again(kind: str) -> None:
    model = family_model(kind, torch.float64)
    raw = {tensor.untyped_storage().data_ptr() for tensor in model.weights.values()}
    if kind not in PAIRED:
        weights = read_weights(model)
        scaled = ("w_o", "w_out") if kind == "granite" else ()  # what is written, in copies
        tensors = [
            part
            for block in weights.blocks
            for name, part in vars(block).items()
            if isinstance(part, torch.Tensor) and name not in scaled
        ]
        assert {tensor.untyped_storage().data_ptr() for tensor in tensors} <= raw
        assert weights.shape == (LAYERS, HEADS, model.config.d_model, model.config.d_head)
    bridged = probe.load(model.bridge)
    assert bridged.config == model.config and probe.load(model.bridge) is bridged
    assert (bridged.origin.kind, bridged.origin.location) == ("in memory", model.name)
    assert bridged.origin.sha256 != model.origin.sha256
    assert bridged.weights.keys() == model.weights.keys()
    assert all(torch.equal(bridged.weights[name], t) for name, t in model.weights.items())


@pytest.mark.parametrize("kind", ("gpt2", "t5", "mixtral"))
def test_an_untrained_twin_has_other_weights_of_the_same_shape(kind: str) -> None:
    model = family_model(kind, torch.float64)
    twin = untrained(model, seed=3)
    shapes = [{name: t.shape for name, t in each.weights.items()} for each in (model, twin)]
    assert shapes[0] == shapes[1]
    assert any(not torch.equal(twin.weights[name], t) for name, t in model.weights.items())
    assert probe.certify(twin).require().ok


# --- what is divided ------------------------------------------------------------------------------

ROOT = "Why divide by √7 = 2.65"


@pytest.mark.parametrize(
    ("kind", "by_layer", "said"),
    [
        ("gpt2", 1, (f"{ROOT}?", "and the smaller the gradient. The undivided weights")),
        ("gemma2", 1, (f"{ROOT}?", "This model divides by √7 instead of √6.")),
        (
            "gpt2, divided by layer",
            2,
            (f"{ROOT}, and by the number of the layer?", "the scores of each layer by the layer's"),
        ),
    ],
)
def test_a_walk_divides_as_the_layer_does_and_says_so(kind, by_layer, said, tmp_path) -> None:
    model = family_model(kind)
    cap = model.config.attn_logit_softcapping
    for layer, divisor in enumerate((7**0.5, by_layer * 7**0.5)):
        walked = probe.walk(model, "the bank", head=(layer, 0))
        assert walked.frames["agreement"]["error"].max() < 1e-5
        dot, score = (walked.frames["attention"][name].to_numpy() for name in ("dot", "score"))
        score = cap * np.arctanh(score / cap) if cap else score
        assert dot == pytest.approx(divisor * score, rel=1e-3, abs=1e-3)
        assert abs(dot).max() > 0.1
    page = probe.write(walked, tmp_path).read_text()
    assert all(part in page for part in said)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_object_whose_scores_are_widened_is_loaded_and_not_changed(dtype: torch.dtype) -> None:
    """torch's attention runs it, which widens nothing; GPT-2's step-by-step code refuses
    float64."""
    source = random_model("gpt2, both").to(dtype)
    model = probe.load(source, tokenizer=family_tokenizer("gpt2"))
    assert model.config.scores_by_layer and probe.certify(model, [TEXT]).require().ok
    attentions = [module for module in source.modules() if hasattr(module, UPCAST)]
    assert len(attentions) == 2 and all(getattr(module, UPCAST) for module in attentions)
    assert probe.load(model.bridge).config == model.config
