"""Traces: shapes are checked, missing positions are refused, other libraries draw them; pickles and
copies hold their numbers; a Model is neither pickled nor copied whole."""

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from families import EACH_HYBRID, HEADS, LAYERS, PAIRED, each_family, family_model
from handmade import random_model
from inside import logit_lens, residual_stream, target_states
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import GPT2LMHeadModel

import probe
from probe import InputError, UnsupportedModel
from probe.model.records import AttentionTrace, PairTrace, TargetStates

TEXT, TARGET = "The mole dug under the bank", "A red apple"


@pytest.fixture(scope="module")
def causal() -> probe.Trace:
    return probe.trace(random_model(), TEXT)


@pytest.fixture(scope="module")
def encoder() -> probe.Trace:
    return probe.trace(family_model("bert"), TEXT)


@pytest.fixture(scope="module")
def pair() -> PairTrace:
    return probe.trace(family_model("bart"), TEXT, TARGET)


@pytest.fixture(scope="module")
def states() -> TargetStates:
    model = family_model("gpt2")
    texts = [probe.tokenize(model, text) for text in (TEXT, TARGET, "a bank")]
    return target_states(model, texts, [3, 1, 0])


def refused(ask: Callable[[], object], error: type[Exception] = InputError) -> str:
    with pytest.raises(error) as caught:
        ask()
    return str(caught.value)


# --- what a record accepts ------------------------------------------------------------------------


def test_a_record_of_a_wrong_shape_cannot_be_made(causal, encoder, pair, states) -> None:
    across = ("q", "k", "v", "z", "scores", "pattern", "x", "memory", "resid_mid")
    plain = tuple(causal.stack.attention.hooks)
    for whole, names in ((causal, plain), (encoder, plain), (pair.cross, across)):
        for name in names:
            with pytest.raises(ValueError, match=f"{name} has shape"):
                replace(whole, **{name: getattr(whole, name)[..., :-1]})
    for field in fields(states):
        if field.name != "ids" and getattr(states, field.name) is not None:
            with pytest.raises(ValueError, match=f"{field.name} has 2 rows"):
                replace(states, **{field.name: getattr(states, field.name)[:-1]})
    with pytest.raises(ValueError, match="2 depths for 2 layers, expected one more"):
        replace(states, resid=states.resid[:, :-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 9}, "layer is 9, expected 0 to {layer}"),
        ({"layer": -1}, "layer is -1, expected 0 to {layer}"),
        ({"head": HEADS}, f"head is {HEADS}, expected 0 to {HEADS - 1}"),
        ({"at": 99}, "at is 99, expected -{n} to {last}"),
    ],
)
def test_a_layer_head_or_position_that_does_not_exist_is_refused(causal, pair, arguments, message):
    for whole, name in ((causal, "a trace"), (pair.cross, "a cross-attention trace")):
        n = len(whole.tokens)
        expected = message.format(n=n, last=n - 1, layer=len(whole.z) - 1)
        asked = {"layer": 0, "head": 0, "at": -1} | arguments
        for take in (whole.delta_e, whole.delta_e_by_source):
            sentence = f"Cannot take ΔE from {name}: {expected}. Choose one of these."
            assert refused(partial(take, **asked)) == sentence
            take(layer=len(whole.z) - 1, head=HEADS - 1, at=-n)


def test_the_weights_of_one_side_alone_are_refused(pair) -> None:
    message = (
        "Cannot read all weights of bart from a trace: it is one side of an encoder-decoder, whose "
        "stream is not a sum of this side alone. Use delta_e and delta_e_by_source, or take a GPT-2 "
        "or a BERT."
    )
    assert refused(lambda: pair.encoder.weights, UnsupportedModel) == message
    assert refused(lambda: logit_lens(pair.decoder, 1), UnsupportedModel) == message
    sentence = refused(lambda: pair.encoder.logits, UnsupportedModel)
    assert sentence.startswith("Cannot read the logits of bart: its checkpoint has no language-mod")


def test_records_are_shown_in_one_line_and_markup_in_a_text_is_escaped(causal, states) -> None:
    n, name = len(causal.tokens), causal.model_name
    assert repr(causal) == f"<Trace of {n} tokens through {name}: 3 layers x {HEADS} heads>"
    shown = f"<TargetStates of {len(states)} sentences: {LAYERS} layers x {HEADS} heads>"
    assert repr(states) == shown
    of_weights = f"<Weights of 3 layers x {HEADS} heads, d_model 28, torch.float32 on cpu>"
    assert repr(causal.stack) == of_weights
    text = "a </script><b onclick='x'>bank</b> & \"mole\""
    html = probe.trace(family_model("gpt2"), text)._repr_html_()
    assert "</script>" not in html and "<b onclick" not in html
    assert "&lt;" in html and "&amp;" in html


def test_a_head_writes_at_a_word_what_it_writes_at_its_last_token(causal, pair) -> None:
    for record, word in ((causal, "mole"), (pair.cross, "apple")):
        at = record.tokens.positions_of(word)[-1]
        assert torch.equal(record.delta_e(1, 0, word), record.delta_e(1, 0, at))
        assert torch.equal(record.delta_e_by_source(1, 0, word), record.delta_e_by_source(1, 0, at))
    at = causal.tokens.positions_of("mole")[-1]
    assert torch.equal(residual_stream(causal, "mole"), residual_stream(causal, at))
    assert "Cannot find 'wug'" in refused(lambda: causal.delta_e(0, 0, "wug"))


# --- for CircuitsVis and BertViz: their documented shapes -----------------------------------------


def test_circuitsvis_gets_one_layer_without_a_batch_axis(causal, encoder) -> None:
    arguments = causal.to_circuitsvis(1)
    assert torch.equal(arguments["attention"], causal.pattern[1])
    assert arguments["tokens"] == list(causal.tokens.pieces)
    assert arguments["attention_head_names"] == ["L1H0", "L1H1", "L1H2", "L1H3"]
    assert arguments["mask_upper_tri"] is True
    assert encoder.to_circuitsvis(0)["mask_upper_tri"] is False
    assert refused(lambda: causal.to_circuitsvis(3)) == (
        "Cannot pass a trace to CircuitsVis: layer is 3, expected 0 to 2. Choose one of these."
    )


def test_bertviz_gets_every_layer_and_attention_with_a_batch_of_one(encoder, pair) -> None:
    arguments = encoder.to_bertviz()
    n = len(encoder.tokens)
    assert [layer.shape for layer in arguments["attention"]] == [(1, 4, n, n)] * 2
    assert torch.equal(arguments["attention"][1][0], encoder.pattern[1])
    assert arguments["tokens"][0] == "[CLS]" and len(arguments["tokens"]) == n
    arguments, n, m = pair.to_bertviz(), len(pair.target), len(pair.source)
    assert arguments["encoder_attention"][0].shape == (1, 4, m, m)
    assert arguments["decoder_attention"][0].shape == (1, 4, n, n)
    assert arguments["cross_attention"][0].shape == (1, 4, n, m)
    assert (len(arguments["encoder_tokens"]), len(arguments["decoder_tokens"])) == (m, n)


# --- for TransformerLens --------------------------------------------------------------------------


def transformer_lens_cache(model, *texts):
    """TransformerLens' cache of one run."""
    record, decoder = probe.trace(model, *texts), {}
    if len(texts) == 2:
        decoder["decoder_input"] = torch.tensor([record.target.ids])
    ids = torch.tensor([(record.source if decoder else record.tokens).ids])
    with torch.inference_mode():
        _, cache = model.bridge.run_with_cache(ids, attention_mask=torch.ones_like(ids), **decoder)
    return record.to_cache(), cache


def assert_same(actual: Tensor, expected: Tensor, name: str = "") -> None:
    assert actual.shape == expected.shape, name
    scale = float(expected.abs().clamp(max=1e9).max()) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6 * max(1.0, scale))


@pytest.mark.parametrize("kind", each_family())
def test_a_cache_holds_what_transformer_lens_caches_under_the_same_names(kind: str) -> None:
    texts = (TEXT, TARGET) if kind in PAIRED else (TEXT,)
    cache, reference = transformer_lens_cache(family_model(kind), *texts)
    assert len(cache.cache_dict) >= LAYERS * 8
    for name, tensor in cache.cache_dict.items():
        expected = reference[name]
        if kind == "opt" and name.endswith("ln2.hook_scale"):
            expected = expected[None]  # OPT's code merges rows and positions there
        assert_same(tensor, expected, name)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox", "gemma2"])
def test_the_methods_of_a_cache_give_the_results_of_transformer_lens(kind: str) -> None:
    model = family_model(kind)
    _, reference = transformer_lens_cache(model, TEXT)
    cache = probe.trace(model, TEXT).to_cache(model)
    onto = torch.linspace(-1, 1, model.config.d_model)
    stack = reference.decompose_resid(layer=1)
    for name, ask in {
        "accumulated": lambda cache: cache.accumulated_resid(apply_ln=True),
        "decomposed": lambda cache: cache.decompose_resid(apply_ln=True),
        "attributed": lambda cache: cache.logit_attrs(cache.decompose_resid(), 17, 30),
        "lens": lambda cache: cache.logit_lens().values,
        "normed": lambda cache: cache.apply_ln_to_stack(cache.decompose_resid()),
        "normed before a layer": lambda cache: cache.apply_ln_to_stack(stack, layer=1),
        "before an MLP": lambda cache: cache.apply_ln_to_stack(stack, layer=1, mlp_input=True),
        "heads": lambda cache: cache.stack_head_results(incl_remainder=True, apply_ln=True),
        "no heads": lambda cache: cache.stack_head_results(layer=0),
        "activation": lambda cache: cache.stack_activation("mlp_out"),
        "neurons": lambda cache: cache.get_neuron_results(1),
        "all neurons": lambda cache: cache.stack_neuron_results(2, apply_ln=True),
        "by neuron": lambda cache: cache.get_full_resid_decomposition(apply_ln=True),
        "by layer": lambda cache: cache.get_full_resid_decomposition(expand_neurons=False),
        "projected": lambda cache: cache.get_full_resid_decomposition(project_output_onto=onto),
    }.items():
        assert_same(ask(cache), ask(reference), name)


def test_the_shorthand_of_a_cache_works_and_another_model_is_refused(causal) -> None:
    cache = causal.to_cache(random_model())
    assert cache["z", 1].shape == (1, len(causal.tokens), HEADS, 7)
    assert torch.equal(cache["pattern", 2][0], causal.pattern[2])
    assert torch.equal(cache["resid_post", -1][0], causal.resid_post[-1])
    without_batch = causal.to_cache().remove_batch_dim()
    assert torch.equal(without_batch["q", 0], causal.q[0].transpose(0, 1))
    message = refused(lambda: causal.to_cache("tiny-senses"))
    assert message.startswith("Cannot make a cache of a trace through ")
    assert "the weights of tiny-senses differ " in message
    assert message.endswith("Give the model that was traced, or none.")


# --- pickles and copies ---------------------------------------------------------------------------

FROM_PICKLE = (
    "it comes from a pickle, which holds W_O and no other weights. Trace the text again, with "
    "probe.trace(model, text)."
)


def again(record: Any) -> Any:
    return pickle.loads(pickle.dumps(record))


def traced(kind: str) -> probe.Trace | PairTrace:
    model = family_model(kind)
    return probe.trace(model, TEXT, *[TARGET] * (kind in PAIRED))


def sides(record: probe.Trace | PairTrace) -> tuple[AttentionTrace, ...]:
    paired = isinstance(record, PairTrace)
    return (record.encoder, record.decoder, record.cross) if paired else (record,)


def tensors_of(record: AttentionTrace) -> Iterator[tuple[str, Tensor]]:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            yield field.name, value


@pytest.mark.parametrize("kind", ["gpt2", "bert", "bart", *EACH_HYBRID])
def test_after_a_round_trip_every_number_and_every_write_is_there(kind: str) -> None:
    record = traced(kind)
    layer = next(filter(family_model(kind).config.has_heads, range(LAYERS)))
    for before, after in zip(sides(record), sides(again(record)), strict=True):
        tensors = dict(tensors_of(after))
        assert tensors.keys() == dict(tensors_of(before)).keys()
        assert all(torch.equal(tensors[name], tensor) for name, tensor in tensors_of(before))
        assert after.tokens == before.tokens and repr(after) == repr(before)
        for ask in ("delta_e", "delta_e_by_source"):
            assert_same(getattr(after, ask)(layer, 1, -1), getattr(before, ask)(layer, 1, -1))
        assert "head is 99, expected 0 to 3" in refused(lambda x=after: x.delta_e(layer, 99, -1))


def test_a_trace_of_a_pickle_draws_the_same_and_refuses_what_needs_other_weights() -> None:
    record = traced("gpt2")
    after = again(record)
    assert torch.equal(after.logits, record.logits)
    assert after.to_circuitsvis(1).keys() == record.to_circuitsvis(1).keys()
    assert after._repr_html_() == record._repr_html_()
    assert torch.equal(residual_stream(after, "bank"), residual_stream(record, "bank"))
    action = "Cannot make a cache of a trace through gpt2: "
    assert refused(after.to_cache) == action + FROM_PICKLE
    message = refused(lambda: logit_lens(after, "bank"))
    assert message == f"Cannot read all weights of gpt2 from a trace: {FROM_PICKLE}"
    message = refused(again(traced("bart")).cross.to_cache)
    assert message.startswith("Cannot make a cache of a cross-attention trace through")


@pytest.mark.parametrize("name", ["tiny-senses", "tiny-translator"])
def test_a_pickle_is_as_large_as_its_numbers_and_w_o(name: str) -> None:
    record = probe.trace(name, TEXT, *["la rive"] * (name == "tiny-translator"))
    numbers = sum(tensor.nbytes for side in sides(record) for _, tensor in tensors_of(side))
    numbers += sum(block.w_o.nbytes for side in sides(record) for block in side.stack.blocks)
    for pickled in (record, again(record)):
        assert numbers < len(pickle.dumps(pickled)) < 1.1 * numbers


def test_weights_that_share_one_block_of_memory_are_pickled_without_it() -> None:
    plain = GPT2LMHeadModel(family_model("gpt2").bridge.original_model.config)
    flat = parameters_to_vector(plain.parameters()).detach()
    vector_to_parameters(flat, plain.parameters())
    record = probe.trace(probe.load(plain, tokenizer=family_model("gpt2").tokenizer), "the bank")
    assert record.stack.blocks[0].w_o.untyped_storage().nbytes() == flat.nbytes
    assert len(pickle.dumps(record)) < flat.nbytes / 2


def test_a_deep_copy_shares_the_weights_but_not_the_numbers() -> None:
    record = traced("gpt2")
    for duplicate in (copy.copy(record), copy.deepcopy(record)):
        assert duplicate.weights is record.weights
        assert duplicate.to_cache().keys() == record.to_cache().keys()
    deep = copy.deepcopy(record)
    assert torch.equal(deep.z, record.z) and deep.z.data_ptr() != record.z.data_ptr()
    assert copy.copy(record).z is record.z


@pytest.mark.parametrize("do", [pickle.dumps, copy.deepcopy])
def test_a_model_is_not_pickled_and_not_copied_whole(do: Any) -> None:
    model = family_model("gpt2")
    assert refused(lambda: do(model)) == (
        "Cannot copy the Model gpt2 (pickle, copy.deepcopy): its bridge cannot be copied. Pass on the "
        "name, folder or object that it was loaded from, and load that again."
    )
    shallow = copy.copy(model)
    assert shallow.weights is model.weights and probe.load(shallow) is shallow
