"""Hooked tensors of every family compared with Hugging Face and with each other: parts,
prefixes, batches, single positions.
"""

import sys

import pytest
import torch
from checkpoints import SENTENCES
from families import (
    EXACT,
    HEADS,
    LAYERS,
    PAIRED,
    SINGLE,
    assert_near,
    each_family,
    family_model,
    near,
)
from handmade import random_model

import probe
from probe.errors import InputError
from probe.model.architectures import FAMILIES
from probe.model.model import Model
from probe.model.records import TargetStates, Trace
from probe.model.tokens import tokenize
from probe.model.trace import target_states, trace, trace_target

TEXT, TARGET = "The mole dug a tunnel under the muddy bank", "A red apple fell"
CAUSAL = tuple(kind for kind in SINGLE if FAMILIES[kind].kind == "decoder")
PLAIN = tuple(kind for kind in SINGLE if FAMILIES[kind].adds_plainly)


def traced(kind: str, text: str = TEXT) -> dict[str, Trace]:
    """Every attention of a float64 model on the text, by its name in the table."""
    model = family_model(kind, torch.float64)
    if kind not in PAIRED:
        return {"": trace(model, text)}
    pair = trace(model, text, TARGET)
    return {"encoder": pair.encoder, "decoder": pair.decoder, "cross": pair.cross}


def evenness(record: Trace) -> float:
    """Mean entropy of the attention of every token except the first, as a fraction of that of
    uniform attention.
    """
    rows = record.pattern[..., 1:, :]
    entropy = -(rows * rows.clamp_min(1e-300).log()).sum(-1)
    return float((entropy / (rows > 0).sum(-1).double().log()).mean())


@pytest.mark.parametrize("kind", each_family())
def test_attention_is_far_from_uniform(kind: str) -> None:
    """Otherwise a wrong query or key would hardly be visible."""
    for record in traced(kind).values():
        assert evenness(record) < 0.92
    assert evenness(trace(random_model(torch.float64), SENTENCES[0])) < 0.6


# --- one text -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", each_family())
def test_parts_sum_to_the_whole_on_the_cpu_in_the_models_type(kind: str) -> None:
    for name, record in traced(kind).items():
        for field in (*record.stack.attention.hooks, "scores", "resid_mid"):
            tensor, rounded = (
                getattr(record, field),
                field == "scores" and "scores" in FAMILIES[kind].in_float32,
            )
            assert tensor.dtype == (torch.float32 if rounded else torch.float64), field
            assert tensor.device.type == "cpu" and not tensor.requires_grad, field
        rows = record.pattern.sum(-1)
        torch.testing.assert_close(rows, torch.ones_like(rows), **near(kind))
        for layer, block in enumerate(record.stack.blocks):
            for at in (0, 2, len(record.tokens) - 1):
                writes = [record.delta_e(layer, head, at) for head in range(HEADS)]
                whole = sum(writes) if block.b_o is None else sum(writes) + block.b_o
                torch.testing.assert_close(whole, record.attn_out[layer, at], **EXACT)
                for head, write in enumerate(writes):
                    by_source = record.delta_e_by_source(layer, head, at)
                    torch.testing.assert_close(by_source.sum(0), write, **EXACT)
                    assert len(by_source) == record.pattern.shape[-1], name
                    assert not record.stack.causal or (by_source[at + 1 :] == 0).all()
        if record.stack.config.family.adds_plainly:
            torch.testing.assert_close(
                record.resid_pre + record.attn_out, record.resid_mid, **EXACT
            )
        if kind in PLAIN:
            torch.testing.assert_close(
                record.resid_mid + record.mlp_out, record.resid_post, **EXACT
            )
        if name != "cross":
            assert torch.equal(record.resid_post[:-1], record.resid_pre[1:])


@pytest.mark.parametrize("kind", each_family(*CAUSAL))
def test_in_a_decoder_a_later_token_changes_nothing_before_it(kind: str) -> None:
    short, long = traced(kind)[""], traced(kind, TEXT + " after the flood")[""]
    n = len(short.tokens)
    assert long.tokens.ids[:n] == short.tokens.ids and len(long.tokens) > n
    for name in ("resid_post", "z", "q", "k", "v", "mlp_out"):
        assert_near(getattr(long, name)[..., :n, :], getattr(short, name), near(kind))
    assert_near(long.pattern[..., :n, :n], short.pattern, near(kind))
    assert (long.pattern[..., :n, n:] == 0).all()
    assert (long.scores[..., :n, n:] < -1e30).all()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_in_an_encoder_no_cell_is_masked_and_a_later_word_changes_an_earlier_one(
    kind: str,
) -> None:
    model = family_model(kind, torch.float64)
    first, second = (trace(model, f"The bank raised the {word}") for word in ("interest", "tree"))
    assert (first.pattern > 0).all()
    at = first.tokens.pieces.index(" bank")
    assert torch.equal(first.resid_pre[0, at], second.resid_pre[0, at])
    assert (first.resid_post[0, at] - second.resid_post[0, at]).abs().max() > 1e-3


def test_grouped_query_heads_share_keys_and_values_but_not_queries() -> None:
    record = traced("llama")[""]
    assert torch.equal(record.k[:, 0], record.k[:, 1]) and torch.equal(
        record.v[:, 2], record.v[:, 3]
    )
    assert not torch.equal(record.k[:, 1], record.k[:, 2])
    assert not torch.equal(record.q[:, 0], record.q[:, 1])
    assert record.stack.shape == (LAYERS, HEADS, 32, 6)


# --- two texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", each_family(*PAIRED))
def test_cross_attention_is_rectangular_and_nothing_is_masked(kind: str) -> None:
    pair = trace(family_model(kind, torch.float64), TEXT, TARGET)
    n, m = len(pair.target), len(pair.source)
    assert n != m
    assert pair.cross.pattern.shape == pair.cross.scores.shape == (LAYERS, HEADS, n, m)
    assert (pair.cross.pattern > 0).all() and pair.cross.scores.isfinite().all()
    assert (pair.decoder.pattern.triu(1) == 0).all()
    assert (pair.encoder.pattern > 0).all()
    torch.testing.assert_close(pair.cross.resid_pre, pair.decoder.resid_mid, **EXACT)
    assert torch.equal(pair.cross.memory[0], pair.cross.memory[1])
    assert repr(pair) == f"<PairTrace of {m} source and {n} target tokens through {kind}>"
    assert (
        repr(pair.cross)
        == f"<CrossTrace of {n} x {m} tokens through {kind}: {LAYERS} layers x {HEADS} heads>"
    )


@pytest.mark.parametrize("kind", each_family(*PAIRED))
def test_a_later_target_token_changes_nothing_before_it_and_a_source_token_does(kind: str) -> None:
    model = family_model(kind, torch.float64)
    short, long = (trace(model, TEXT, target) for target in (TARGET, TARGET + " into the garden"))
    n = len(short.target)
    assert long.target.ids[:n] == short.target.ids and len(long.target) > n
    torch.testing.assert_close(long.cross.pattern[..., :n, :], short.cross.pattern, **EXACT)
    torch.testing.assert_close(long.logits[:n], short.logits, **EXACT)
    longer_source = trace(model, TEXT + " again", TARGET)
    assert (longer_source.logits - short.logits).abs().max() > 1e-3


def test_the_decoder_reads_the_start_token_and_the_target_without_its_end() -> None:
    model = family_model("bart")
    pair = trace(model, TEXT, TARGET)
    assert pair.target.ids[0] == model.config.start_token
    assert pair.target.pieces == ("</s>", "<s>", "A", " red", " apple", " fell")
    assert pair.source.pieces[0] == "<s>" and pair.source.pieces[-1] == "</s>"
    assert pair.target.spans[3:] == ((2, 5), (6, 11), (12, 16))


def test_a_missing_target_and_a_needless_one_are_refused() -> None:
    with pytest.raises(InputError) as missing:
        trace(family_model("t5"), TEXT)
    message = "Cannot trace a text through t5: it is an encoder-decoder. Give trace(model, source, target)."
    assert str(missing.value) == message
    with pytest.raises(InputError) as too_much:
        probe.trace(family_model("bert"), TEXT, TARGET)
    assert (
        str(too_much.value)
        == "Cannot trace a text through bert: it has no decoder for a target. Give one text only, "
        "and a word to the methods of its trace, as at=."
    )


def test_too_long_a_target_is_refused_before_it_runs() -> None:
    with pytest.raises(InputError, match="expected at most 40"):
        trace(family_model("bart"), TEXT, "bank " * 50)


# --- the target positions of many texts -----------------------------------------------------------

MANY = [
    ("The mole dug a tunnel under the river bank.", 3),
    ("A bank.", 1),
    ("She photographed the muddy bank, and he sold the apple stock.", 11),
    ("The mole dug a tunnel under the river bank.", 5),
    ("apple", 0),
    ("A red apple fell from the old tree.", 3),
]


def states_of(model: Model, texts: list[tuple[str, int]] = MANY) -> TargetStates:
    sentences = [tokenize(model, text) for text, _ in texts]
    return target_states(model, sentences, [target for _, target in texts])


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_target_states_equal_the_traces_at_the_target_in_order_and_one_by_one(kind: str) -> None:
    model, family = family_model(kind, torch.float64), FAMILIES[kind]
    states, close = states_of(model), near(kind)
    assert states.target.tolist() == [target for _, target in MANY]

    # The shorter texts are padded.
    assert len({len(tokenize(model, text)) for text, _ in MANY}) > 3
    for row, (text, target) in enumerate(MANY):
        record = trace(model, text)
        token, first = record.tokens.ids[target], model.config.positions.first
        assert states.ids[row] == token
        scale = {"granite": 3.0}.get(kind, 32**0.5 if "gemma" in kind else 1)
        embedded = model.weights[f"{family.embed}.weight"][token] * scale
        assert torch.equal(states.token_embedding[row], embedded)
        table = model.weights.get(f"{family.position_table}.weight")
        position_embedding = (
            torch.zeros_like(states.position_embedding[row])
            if table is None
            else table[first + target]
        )
        assert torch.equal(states.position_embedding[row], position_embedding)
        expected = torch.cat([record.resid_pre[:, target], record.resid_post[-1:, target]])
        assert_near(states.resid[row], expected, close)
        assert_near(states.mlp_out[row], record.mlp_out[:, target], close)
        for name in ("q", "k", "v", "z"):
            assert_near(getattr(states, name)[row], getattr(record, name)[:, :, target], close)
        n_keys = target + 1 if model.config.causal else len(record.tokens)
        assert_near(states.pattern[row, ..., :n_keys], record.pattern[:, :, target, :n_keys], close)
        assert (states.pattern[row, ..., n_keys:] == 0).all()
        single = states_of(model, [(text, target)])
        assert_near(single.resid[0], states.resid[row], close)
        assert_near(single.z[0], states.z[row], close)


# --- one position of one text ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_a_trace_of_one_position_is_the_whole_trace_there(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, close = family_model(kind, torch.float64), near(kind)
    whole = trace(model, "The mole dug a tunnel under the muddy river bank, and it was cold.")
    assert len(whole.tokens) > 12
    for chunk, at in ((3, 0), (3, 9), (4, 4), (4, 9), (64, 9)):
        monkeypatch.setattr(sys.modules["probe.model.trace"], "CHUNK", chunk)
        single, n_keys = (
            trace_target(model, whole.tokens, at),
            at + 1 if model.config.causal else len(whole.tokens),
        )
        assert_near(single.states.pattern[0], whole.pattern[:, :, at, :n_keys], close)
        assert_near(single.v, whole.v[:, :, :n_keys], close)
        assert_near(single.states.resid[0, :-1], whole.resid_pre[:, at], close)
        assert_near(single.states.resid[0, -1], whole.resid_post[-1, at], close)
        assert_near(single.states.mlp_out[0], whole.mlp_out[:, at], close)
        for name in ("q", "k", "v", "z"):
            assert_near(getattr(single.states, name)[0], getattr(whole, name)[:, :, at], close)
        for layer in range(LAYERS):
            for head in range(HEADS):
                by_source = single.delta_e_by_source(layer, head)
                assert_near(by_source, whole.delta_e_by_source(layer, head, at)[:n_keys], close)
                assert_near(by_source.sum(0), single.delta_e(layer, head), close)
                assert by_source.abs().max() > 0.01


@pytest.mark.parametrize("at", [-1, 99])
def test_a_position_that_does_not_exist_is_refused(at: int) -> None:
    model = family_model("gpt2")
    tokens = tokenize(model, TEXT)
    n = len(tokens)
    message = f"Cannot trace one position of a text of {n} tokens: got position {at}. Choose one from 0 to {n - 1}."
    with pytest.raises(InputError) as refused:
        trace_target(model, tokens, at)
    assert str(refused.value) == message
