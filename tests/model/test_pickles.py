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


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Equal up to the last bit, which may depend on the address in memory."""
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def traced(kind: str) -> Trace | PairTrace:
    model = family_model(kind)
    paired = model.config.start_token is not None
    return probe.trace(model, TEXT, "a muddy bank") if paired else probe.trace(model, TEXT)


def sides(record: Trace | PairTrace) -> tuple[AttentionTrace, ...]:
    return (
        (record.encoder, record.decoder, record.cross)
        if isinstance(record, PairTrace)
        else (record,)
    )


def tensors_of(record: AttentionTrace) -> Iterator[tuple[str, Tensor]]:
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            yield field.name, value


@pytest.mark.parametrize("kind", [*each_family(), *EACH_HYBRID])
def test_after_a_round_trip_every_number_and_every_write_is_there(kind: str) -> None:
    record = traced(kind)
    layer = family_model(kind).config.mixers.index(False) if family_model(kind).config.mixers else 0
    for before, after in zip(sides(record), sides(again(record)), strict=True):
        tensors = dict(tensors_of(after))
        assert tensors.keys() == dict(tensors_of(before)).keys()
        assert all(torch.equal(tensors[name], tensor) for name, tensor in tensors_of(before))
        assert after.tokens == before.tokens and repr(after) == repr(before)
        for head in range(2):
            for ask in ("delta_e", "delta_e_by_source"):
                expected = getattr(before, ask)(layer, head, at=-1)
                assert_same(getattr(after, ask)(layer, head, at=-1), expected)
        with pytest.raises(probe.InputError, match="head is 99, expected 0 to 3"):
            after.delta_e(layer, 99, at=-1)


def test_pictures_and_other_libraries_get_the_same_from_a_trace_of_a_pickle() -> None:
    record = traced("gpt2")
    after = again(record)
    assert torch.equal(after.logits, record.logits)
    expected, arguments = record.to_circuitsvis(1), after.to_circuitsvis(1)
    assert expected.keys() == arguments.keys() and torch.equal(
        expected["attention"], arguments["attention"]
    )
    assert all(map(torch.equal, after.to_bertviz()["attention"], record.to_bertviz()["attention"]))
    assert after._repr_html_() == record._repr_html_()
    streams = (probe.decomposition.residual_stream(each, "bank") for each in (after, record))
    assert torch.equal(*streams)


def test_a_trace_of_a_pickle_refuses_what_needs_other_weights() -> None:
    after = again(traced("gpt2"))
    with pytest.raises(probe.InputError) as error:
        after.to_cache()
    action = "Cannot make a cache of a trace through gpt2: "
    assert str(error.value) == action + FROM_PICKLE
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
    record = probe.trace(model, TEXT, "la rive") if paired else probe.trace(model, TEXT)
    numbers = sum(tensor.nbytes for side in sides(record) for _, tensor in tensors_of(side))
    writes = sum(block.w_o.nbytes for side in sides(record) for block in side.stack.blocks)
    assert numbers + writes < len(pickle.dumps(record)) < 1.1 * (numbers + writes)
    weights = sum(tensor.nbytes for tensor in model.weights.values())
    assert len(pickle.dumps(record)) < weights / 3
    assert len(pickle.dumps(again(record))) < 1.1 * (numbers + writes)


@pytest.mark.parametrize("kind", ["llama", "bert", "qwen3_5_text"])
def test_one_position_of_a_text_is_pickled_without_the_others(kind: str) -> None:
    model = family_model(kind)
    tokens = probe.tokenize(model, TEXT)
    record = trace_target(model, tokens, "muddy")
    after = again(record)
    layer = model.config.mixers.index(False) if model.config.mixers else 0
    assert_same(after.delta_e(layer, 1), record.delta_e(layer, 1))
    assert_same(after.delta_e_by_source(layer, 1), record.delta_e_by_source(layer, 1))
    for name in ("q", "pattern", "resid", "mlp_out"):
        tensor = getattr(after.states, name)
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_a_deep_copy_shares_the_weights_but_not_the_numbers() -> None:
    record = traced("gpt2")
    for duplicate in (copy.copy(record), copy.deepcopy(record)):
        assert (
            duplicate.weights is record.weights
            and duplicate.to_cache().keys() == record.to_cache().keys()
        )
    deep = copy.deepcopy(record)
    assert torch.equal(deep.z, record.z) and deep.z.data_ptr() != record.z.data_ptr()
    assert copy.copy(record).z is record.z


def test_weights_that_share_one_block_of_memory_are_pickled_without_it() -> None:
    plain = GPT2LMHeadModel(family_model("gpt2").bridge.original_model.config)
    flat = parameters_to_vector(plain.parameters()).detach()
    vector_to_parameters(flat, plain.parameters())
    record = probe.trace(probe.load(plain, tokenizer=family_model("gpt2").tokenizer), "the bank")
    (first, *_) = record.stack.blocks
    assert first.w_o.untyped_storage().nbytes() == flat.nbytes
    assert len(pickle.dumps(record)) < flat.nbytes / 2


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
