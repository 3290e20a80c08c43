"""Pickles and copies of a trace: their contents, the methods that still work; and a Model, which
can be neither pickled nor copied completely.
"""

import copy
import pickle
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from families import EACH_HYBRID, each_family, family_model
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import GPT2LMHeadModel

import probe
from probe.model.records import AttentionTrace, PairTrace, Trace
from probe.model.trace import trace_target

TEXT = "The mole dug under the muddy bank"
FROM_PICKLE = (
    "it comes from a pickle, which holds W_O and no other weights. Trace the text again, with "
    "probe.trace(model, text)."
)


def again(record: Any) -> Any:
    return pickle.loads(pickle.dumps(record))


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal up to the last bit, which may depend on the place in memory."""
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def traced(kind: str) -> Trace | PairTrace:
    model = family_model(kind)
    paired = model.config.start_token is not None
    return probe.trace(model, TEXT, "a muddy bank") if paired else probe.trace(model, TEXT)


def sides(found: Trace | PairTrace) -> tuple[AttentionTrace, ...]:
    return (found.encoder, found.decoder, found.cross) if isinstance(found, PairTrace) else (found,)


def tensors_of(record: AttentionTrace) -> Iterator[tuple[str, Tensor]]:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            yield field.name, value


@pytest.mark.parametrize("kind", [*each_family(), *EACH_HYBRID])
def test_after_a_round_trip_every_number_and_every_write_is_there(kind: str) -> None:
    found = traced(kind)
    layer = family_model(kind).config.mixers.index(False) if family_model(kind).config.mixers else 0
    for before, after in zip(sides(found), sides(again(found)), strict=True):
        held = dict(tensors_of(after))
        assert held.keys() == dict(tensors_of(before)).keys()
        assert all(torch.equal(held[name], tensor) for name, tensor in tensors_of(before))
        assert after.tokens == before.tokens and repr(after) == repr(before)
        for head in range(2):
            for ask in ("delta_e", "delta_e_by_source"):
                expected = getattr(before, ask)(layer, head, at=-1)
                assert_same(getattr(after, ask)(layer, head, at=-1), expected)
        with pytest.raises(probe.InputError, match="head is 99, expected 0 to 3"):
            after.delta_e(layer, 99, at=-1)


def test_pictures_and_other_libraries_get_the_same_from_a_trace_of_a_pickle() -> None:
    found = traced("gpt2")
    after = again(found)
    assert torch.equal(after.logits, found.logits)
    given, kept = found.to_circuitsvis(1), after.to_circuitsvis(1)
    assert given.keys() == kept.keys() and torch.equal(given["attention"], kept["attention"])
    assert all(map(torch.equal, after.to_bertviz()["attention"], found.to_bertviz()["attention"]))
    assert after._repr_html_() == found._repr_html_()
    streams = (probe.decomposition.residual_stream(each, "bank") for each in (after, found))
    assert torch.equal(*streams)


def test_what_needs_other_weights_says_so_in_a_trace_of_a_pickle() -> None:
    after = again(traced("gpt2"))
    with pytest.raises(probe.InputError) as error:
        after.to_cache()
    made = "Cannot make a cache of a trace through gpt2: "
    assert str(error.value) == made + FROM_PICKLE
    with pytest.raises(probe.InputError) as error:
        probe.decomposition.logit_lens(after, "bank")
    assert str(error.value) == f"Cannot read all weights of gpt2 from a trace: {FROM_PICKLE}"
    cross = again(traced("bart")).cross
    with pytest.raises(
        probe.InputError, match="Cannot make a cache of a cross-attention trace through"
    ):
        cross.to_cache()


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["tiny-senses", "tiny-senses-bidirectional", "tiny-translator"])
def test_a_pickle_is_as_large_as_its_numbers_and_w_o(name: str) -> None:
    model = probe.load(name)
    paired = name == "tiny-translator"
    found = probe.trace(model, TEXT, "la rive") if paired else probe.trace(model, TEXT)
    own = sum(tensor.nbytes for side in sides(found) for _, tensor in tensors_of(side))
    writes = sum(block.w_o.nbytes for side in sides(found) for block in side.stack.blocks)
    assert own + writes < len(pickle.dumps(found)) < 1.1 * (own + writes)
    weights = sum(tensor.nbytes for tensor in model.weights.values())
    assert len(pickle.dumps(found)) < weights / 3
    assert len(pickle.dumps(again(found))) < 1.1 * (own + writes)


@pytest.mark.parametrize("kind", ["llama", "bert", "qwen3_5_text"])
def test_one_position_of_a_text_is_pickled_without_the_others(kind: str) -> None:
    model = family_model(kind)
    tokens = probe.tokenize(model, TEXT)
    found = trace_target(model, tokens, "muddy")
    after = again(found)
    layer = model.config.mixers.index(False) if model.config.mixers else 0
    assert_same(after.delta_e(layer, 1), found.delta_e(layer, 1))
    assert_same(after.delta_e_by_source(layer, 1), found.delta_e_by_source(layer, 1))
    for name in ("q", "pattern", "resid", "mlp_out"):
        held = getattr(after.states, name)
        assert held.untyped_storage().nbytes() == held.nbytes


def test_a_copy_in_memory_shares_the_weights_and_has_numbers_of_its_own() -> None:
    found = traced("gpt2")
    for made in (copy.copy(found), copy.deepcopy(found)):
        assert made.weights is found.weights and made.to_cache().keys() == found.to_cache().keys()
    deep = copy.deepcopy(found)
    assert torch.equal(deep.z, found.z) and deep.z.data_ptr() != found.z.data_ptr()
    assert copy.copy(found).z is found.z


def test_what_was_read_of_a_model_with_hooks_is_pickled_without_the_model() -> None:
    plain = GPT2LMHeadModel(family_model("gpt2").bridge.original_model.config)
    plain.transformer.h[0].register_forward_hook(lambda module, args, output: None)
    model = probe.load(plain, tokenizer=family_model("gpt2").tokenizer, hooks="keep")
    found = trace_target(model, probe.tokenize(model, TEXT), "muddy")
    assert found.weights.hooked is model
    assert_same(again(found).delta_e(0, 1), found.delta_e(0, 1))
    whole = probe.trace(model, TEXT)
    assert_same(again(whole).delta_e(0, 1, at=-1), whole.delta_e(0, 1, at=-1))


def test_weights_that_lie_in_one_piece_of_memory_are_not_pickled_with_it() -> None:
    plain = GPT2LMHeadModel(family_model("gpt2").bridge.original_model.config)
    flat = parameters_to_vector(plain.parameters()).detach()
    vector_to_parameters(flat, plain.parameters())
    found = probe.trace(probe.load(plain, tokenizer=family_model("gpt2").tokenizer), "the bank")
    (first, *_) = found.stack.blocks
    assert first.w_o.untyped_storage().nbytes() == flat.nbytes
    assert len(pickle.dumps(found)) < flat.nbytes / 2


@pytest.mark.parametrize("do", [pickle.dumps, copy.deepcopy])
def test_a_model_is_not_pickled_and_not_copied_whole(do: Any) -> None:
    model = family_model("gpt2")
    with pytest.raises(probe.InputError) as error:
        do(model)
    assert str(error.value) == (
        "Cannot copy the Model gpt2 (pickle, copy.deepcopy): its bridge cannot be copied. Pass on the "
        "name, folder or object that it was loaded from, and load that again."
    )
    shallow = copy.copy(model)
    assert shallow.weights is model.weights and probe.load(shallow) is shallow
