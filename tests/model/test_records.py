"""Records: shapes are checked, missing positions are refused, other libraries draw them."""

from dataclasses import fields, replace

import pytest
import torch
from families import HEADS, LAYERS, PAIRED, each_family, family_model
from handmade import random_model

from probe.errors import InputError, UnsupportedModel
from probe.model.architectures import FAMILIES
from probe.model.decomposition import logit_lens, residual_stream
from probe.model.records import CrossTrace, PairTrace, TargetStates, Trace
from probe.model.tokens import target_tokens, tokenize
from probe.model.trace import target_states, trace

TEXT, TARGET = "The mole dug under the bank", "A red apple"


@pytest.fixture(scope="module")
def causal() -> Trace:
    return trace(random_model(), TEXT)


@pytest.fixture(scope="module")
def encoder() -> Trace:
    return trace(family_model("bert"), TEXT)


@pytest.fixture(scope="module")
def pair() -> PairTrace:
    return trace(family_model("bart"), TEXT, TARGET)


@pytest.fixture(scope="module")
def states() -> TargetStates:
    model = family_model("gpt2")
    return target_states(
        model, [tokenize(model, text) for text in (TEXT, TARGET, "a bank")], [3, 1, 0]
    )


# --- shapes ---------------------------------------------------------------------------------------


def test_a_trace_of_a_wrong_shape_cannot_be_made(
    causal: Trace, encoder: Trace, pair: PairTrace
) -> None:
    across = ("q", "k", "v", "z", "scores", "pattern", "x", "memory", "resid_mid")
    plain = tuple(FAMILIES["gpt2"].attentions[0].hooks)
    for whole, names in ((causal, plain), (encoder, plain), (pair.cross, across)):
        for name in names:
            with pytest.raises(ValueError, match=f"{name} has shape"):
                replace(whole, **{name: getattr(whole, name)[..., :-1]})


def test_states_with_a_row_missing_cannot_be_made(states: TargetStates) -> None:
    for field in fields(states):
        if field.name != "ids" and getattr(states, field.name) is not None:
            with pytest.raises(ValueError, match=f"{field.name} has 2 rows"):
                replace(states, **{field.name: getattr(states, field.name)[:-1]})
    with pytest.raises(ValueError, match="2 depths for 2 layers, expected one more"):
        replace(states, resid=states.resid[:, :-1])


# --- positions and words --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 9}, "layer is 9, expected 0 to {layer}"),
        ({"layer": -1}, "layer is -1, expected 0 to {layer}"),
        ({"head": HEADS}, f"head is {HEADS}, expected 0 to {HEADS - 1}"),
        ({"at": 99}, "at is 99, expected -{n} to {last}"),
    ],
)
def test_a_layer_head_or_position_that_does_not_exist_is_refused_in_one_sentence(
    causal: Trace, encoder: Trace, pair: PairTrace, arguments: dict[str, int], message: str
) -> None:
    for whole in (causal, encoder, pair.encoder, pair.cross):
        n, record_name = (
            len(whole.tokens),
            "a cross-attention trace" if isinstance(whole, CrossTrace) else "a trace",
        )
        expected = message.format(n=n, last=n - 1, layer=len(whole.z) - 1)
        for take in (whole.delta_e, whole.delta_e_by_source):
            with pytest.raises(InputError) as error:
                take(**({"layer": 0, "head": 0, "at": -1} | arguments))
            assert (
                str(error.value)
                == f"Cannot take ΔE from {record_name}: {expected}. Choose one of these."
            )
            take(layer=len(whole.z) - 1, head=HEADS - 1, at=-n)


@pytest.mark.parametrize("kind", PAIRED)
def test_the_weights_of_one_side_alone_are_refused(kind: str) -> None:
    whole = trace(family_model(kind, torch.float64), TEXT, TARGET)
    for read in (
        lambda: whole.encoder.weights,
        lambda: whole.decoder.weights,
        lambda: logit_lens(whole.decoder, 1),
    ):
        with pytest.raises(UnsupportedModel) as error:
            read()
        assert str(error.value) == (
            f"Cannot read all weights of {kind} from a trace: it is one side of an encoder-decoder, whose stream is not a "
            "sum of this side alone. Use delta_e and delta_e_by_source, or take a GPT-2 or a BERT."
        )
    no_head = f"^Cannot read the logits of {kind}: its checkpoint has no language-model head"
    with pytest.raises(UnsupportedModel, match=no_head):
        whole.encoder.logits  # noqa: B018


def test_traces_states_and_weights_have_a_repr_of_one_line(
    causal: Trace, states: TargetStates
) -> None:
    n, name = len(causal.tokens), causal.model_name
    assert repr(causal) == f"<Trace of {n} tokens through {name}: 3 layers x {HEADS} heads>"
    assert (
        repr(states)
        == f"<TargetStates of {len(states)} sentences: {LAYERS} layers x {HEADS} heads>"
    )
    assert (
        repr(causal.stack)
        == f"<Weights of 3 layers x {HEADS} heads, d_model 28, torch.float32 on cpu>"
    )


def test_a_head_writes_at_a_word_what_it_writes_at_its_last_token(
    causal: Trace, pair: PairTrace
) -> None:
    for record, word in ((causal, "mole"), (pair.cross, "apple")):
        at = record.tokens.positions_of(word)[-1]
        assert torch.equal(record.delta_e(1, 0, word), record.delta_e(1, 0, at))
        assert torch.equal(record.delta_e_by_source(1, 0, word), record.delta_e_by_source(1, 0, at))
    assert torch.equal(
        residual_stream(causal, "mole"),
        residual_stream(causal, causal.tokens.positions_of("mole")[-1]),
    )
    with pytest.raises(InputError, match="Cannot find 'wug'"):
        causal.delta_e(0, 0, "wug")


def test_markup_in_a_text_is_escaped() -> None:
    html = trace(
        family_model("gpt2"), "a </script><b onclick='x'>bank</b> & \"mole\""
    )._repr_html_()
    assert "</script>" not in html
    assert "<b onclick" not in html
    assert "&lt;" in html and "&amp;" in html


# --- for CircuitsVis and BertViz: their documented shapes -----------------------------------------


def test_circuitsvis_gets_one_layer_without_a_batch_axis(causal: Trace, encoder: Trace) -> None:
    arguments = causal.to_circuitsvis(1)
    n = len(causal.tokens)
    assert arguments["attention"].shape == (4, n, n)
    assert torch.equal(arguments["attention"], causal.pattern[1])
    assert arguments["tokens"] == list(causal.tokens.pieces)
    assert arguments["attention_head_names"] == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert arguments["mask_upper_tri"] is True
    assert encoder.to_circuitsvis(0)["mask_upper_tri"] is False
    with pytest.raises(InputError) as error:
        causal.to_circuitsvis(3)
    assert (
        str(error.value)
        == "Cannot pass a trace to CircuitsVis: layer is 3, expected 0 to 2. Choose one of these."
    )


def test_bertviz_gets_every_layer_with_a_batch_of_one(encoder: Trace) -> None:
    arguments = encoder.to_bertviz()
    n = len(encoder.tokens)
    assert [layer.shape for layer in arguments["attention"]] == [(1, 4, n, n)] * 2
    assert torch.equal(arguments["attention"][1][0], encoder.pattern[1])
    assert arguments["tokens"][0] == "[CLS]" and len(arguments["tokens"]) == n


def test_bertviz_gets_the_three_attentions_of_a_pair(pair: PairTrace) -> None:
    arguments = pair.to_bertviz()
    n, m = len(pair.target), len(pair.source)
    assert arguments["encoder_attention"][0].shape == (1, 4, m, m)
    assert arguments["decoder_attention"][0].shape == (1, 4, n, n)
    assert arguments["cross_attention"][0].shape == (1, 4, n, m)
    assert (len(arguments["encoder_tokens"]), len(arguments["decoder_tokens"])) == (m, n)


# --- for TransformerLens --------------------------------------------------------------------------


def transformer_lens_cache(model, *texts):
    """TransformerLens' cache of one run."""
    ids = torch.tensor([tokenize(model, texts[0]).ids])
    decoder = {}
    if len(texts) == 2:
        decoder["decoder_input"] = torch.tensor([target_tokens(model, texts[1]).ids])
    with torch.inference_mode():
        _, cache = model.bridge.run_with_cache(ids, attention_mask=torch.ones_like(ids), **decoder)
    return cache


@pytest.mark.parametrize("kind", each_family())
def test_a_cache_holds_what_transformer_lens_caches_under_the_same_names(kind: str) -> None:
    model = family_model(kind)
    texts = (TEXT, TARGET) if kind in PAIRED else (TEXT,)
    cache = trace(model, *texts).to_cache()
    reference = transformer_lens_cache(model, *texts)
    assert len(cache.cache_dict) >= LAYERS * 8
    for name, tensor in cache.cache_dict.items():
        expected = reference[name]
        if kind == "opt" and name.endswith("ln2.hook_scale"):
            expected = expected[None]  # OPT's code merges rows and positions there
        assert tensor.shape == expected.shape, name
        scale = float(expected.abs().clamp(max=1e9).max())
        torch.testing.assert_close(tensor, expected, rtol=1e-5, atol=1e-6 * max(1.0, scale))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox", "gemma2", "olmo3", "opt"])
def test_the_methods_of_a_cache_give_the_results_of_transformer_lens(kind: str) -> None:
    model = family_model(kind)
    results, reference = (cache_methods(cache, model) for cache in caches_of(model))
    assert results.keys() == reference.keys() and len(reference) == 13
    for name, expected in reference.items():
        assert results[name].shape == expected.shape, name
        scale = float(expected.abs().max()) if len(expected) else 0.0
        torch.testing.assert_close(results[name], expected, rtol=1e-5, atol=1e-6 * max(1.0, scale))


def caches_of(model):
    reference = transformer_lens_cache(model, TEXT)
    return trace(model, TEXT).to_cache(model), reference


def cache_methods(cache, model) -> dict[str, torch.Tensor]:
    """The results of every method of a cache that reads numbers, with norms applied if the
    method can do so.
    """
    onto = torch.linspace(-1, 1, model.config.d_model)
    parts = cache.decompose_resid()
    return {
        "accumulated_resid": cache.accumulated_resid(apply_ln=True),
        "decompose_resid": cache.decompose_resid(apply_ln=True),
        "logit_attrs": cache.logit_attrs(parts, tokens=17, incorrect_tokens=30),
        "logit_lens": cache.logit_lens().values,
        "apply_ln_to_stack": cache.apply_ln_to_stack(parts),
        "stack_head_results": cache.stack_head_results(incl_remainder=True, apply_ln=True),
        "no heads": cache.stack_head_results(layer=0),
        "stack_activation": cache.stack_activation("mlp_out"),
        "get_neuron_results": cache.get_neuron_results(1),
        "stack_neuron_results": cache.stack_neuron_results(2, incl_remainder=True, apply_ln=True),
        "by neuron": cache.get_full_resid_decomposition(apply_ln=True),
        "by layer": cache.get_full_resid_decomposition(expand_neurons=False, apply_ln=True),
        "projected": cache.get_full_resid_decomposition(project_output_onto=onto),
    }


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox", "gemma2"])
def test_a_stack_is_normed_before_a_layer_as_in_transformer_lens(kind: str) -> None:
    model = family_model(kind)
    cache, reference = caches_of(model)
    for layer, mlp_input in ((0, False), (1, False), (1, True)):
        options = {"layer": layer, "mlp_input": mlp_input}
        stack = reference.decompose_resid(layer=layer)
        expected = reference.apply_ln_to_stack(stack, **options)
        torch.testing.assert_close(cache.apply_ln_to_stack(stack, **options), expected)


def test_the_shorthand_and_the_methods_of_a_cache_work(causal: Trace) -> None:
    model = random_model()
    cache = causal.to_cache(model)
    n = len(causal.tokens)
    assert cache["z", 1].shape == (1, n, HEADS, 7)
    assert torch.equal(cache["pattern", 2][0], causal.pattern[2])
    assert torch.equal(cache["resid_post", -1][0], causal.resid_post[-1])
    stack = cache.accumulated_resid(layer=-1, incl_mid=False)
    torch.testing.assert_close(stack[:, 0], residual_of(causal), rtol=0, atol=1e-6)
    without_batch = causal.to_cache().remove_batch_dim()
    assert torch.equal(without_batch["q", 0], causal.q[0].transpose(0, 1))


def test_a_cache_accepts_only_the_model_that_was_traced(causal: Trace) -> None:
    message = (
        "^Cannot make a cache of a trace through .*: the weights of tiny-senses differ .*. Give the "
        "model that was traced, or none.$"
    )
    with pytest.raises(InputError, match=message):
        causal.to_cache("tiny-senses")


def residual_of(whole: Trace) -> torch.Tensor:
    """The stream at every depth. `depth pos d_model`"""
    return torch.cat([whole.resid_pre, whole.resid_post[-1:]])
