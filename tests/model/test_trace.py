"""The hooked tensors of a batch, of one position and of a pair of texts compared with those of
single texts. `test_families.py` compares whole traces with Hugging Face."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from families import (
    EACH_HYBRID,
    EXACT,
    HEADS,
    LAYERS,
    PAIRED,
    RECURRENT,
    SINGLE,
    assert_near,
    each_family,
    family_model,
    near,
)
from inside import hooks, target_states, trace_target, traces, tracing

import probe

TEXT, TARGET = "The mole dug a tunnel under the muddy bank", "A red apple fell"
LONG = "The mole dug a tunnel under the muddy river bank, and it was cold."
# Texts of several lengths, and the position that is read of each.
MANY = [
    ("The mole dug a tunnel under the river bank.", 3),
    ("A bank.", 1),
    ("She photographed the muddy bank, and he sold the apple stock.", 11),
    ("The mole dug a tunnel under the river bank.", 5),
    ("apple", 0),
]


@pytest.fixture(params=[*each_family(*SINGLE), *EACH_HYBRID])
def model(request) -> probe.Model:
    return family_model(request.param, torch.float64)


def close_of(model: probe.Model) -> dict[str, float]:
    return RECURRENT if any(model.config.mixers) else near(model.config.architecture)


def refused(ask: Callable[[], object]) -> str:
    with pytest.raises(probe.InputError) as caught:
        ask()
    return str(caught.value)


# --- many texts -----------------------------------------------------------------------------------


def test_texts_that_are_traced_together_have_the_traces_of_each(model) -> None:
    texts, close = [text for text, _ in MANY], close_of(model)
    for text, together in zip(texts, traces(model, texts), strict=True):
        alone = probe.trace(model, text)
        assert together.tokens == alone.tokens
        for name in ("pattern", "z", "mlp_out", "resid_post"):
            torch.testing.assert_close(getattr(together, name), getattr(alone, name), **close)


def test_target_states_equal_the_traces_at_the_target_in_order_and_one_by_one(model) -> None:
    """The shorter texts are padded."""
    texts, close = [probe.tokenize(model, text) for text, _ in MANY], close_of(model)
    assert len({len(tokens) for tokens in texts}) > 2
    states = target_states(model, texts, [target for _, target in MANY])
    assert states.target.tolist() == [target for _, target in MANY]
    family, first = model.config.family, model.config.positions.first
    for row, (text, target) in enumerate(MANY):
        record = probe.trace(model, text)
        token = record.tokens.ids[target]
        assert states.ids[row] == token
        table = model.weights[f"{family.embed}.weight"]
        embedded = table[token] * model.config.embed_scale
        assert torch.equal(states.token_embedding[row], embedded)
        places = model.weights.get(f"{family.position_table}.weight", torch.zeros_like(table))
        assert torch.equal(states.position_embedding[row], places[first + target])
        resid = torch.cat([record.resid_pre[:, target], record.resid_post[-1:, target]])
        assert_near(states.resid[row], resid, close)
        assert_near(states.mlp_out[row], record.mlp_out[:, target], close)
        for name in ("q", "k", "v", "z"):
            assert_near(getattr(states, name)[row], getattr(record, name)[:, :, target], close)
        n_keys = target + 1 if model.config.causal else len(record.tokens)
        assert_near(states.pattern[row, ..., :n_keys], record.pattern[:, :, target, :n_keys], close)
        assert (states.pattern[row, ..., n_keys:] == 0).all()
        single = target_states(model, texts[row : row + 1], [target])
        assert_near(single.z[0], states.z[row], close)


@pytest.mark.parametrize("kind", each_family(also=("bart",)))
def test_a_batch_padded_on_the_right_gives_the_logits_of_each_text(kind: str) -> None:
    """Also for layers with windows in which a padded position would see only padding."""
    model = family_model(kind)
    rows = [list(probe.tokenize(model, text).ids) for text, _ in MANY]
    targets = [[model.config.start_token, *row[:-1]] for row in rows] if kind in PAIRED else None
    with torch.inference_mode():
        together = hooks.run(model, rows, targets)
        for number, row in enumerate(rows):
            single = hooks.run(model, [row], None if targets is None else [targets[number]])[0]
            padded = together[number, : len(single)]
            torch.testing.assert_close(padded, single, rtol=1e-5, atol=1e-5)


def test_the_mask_of_a_batch_comes_from_lengths_and_not_from_ids() -> None:
    """A padding token inside a text is part of it."""
    model = family_model("bert")
    row = list(probe.tokenize(model, TEXT).ids)
    row[3] = model.tokenizer.pad_token_id
    with torch.inference_mode():
        single = hooks.run(model, [row])
        together = hooks.run(model, [row, [*row, *row]])[0, : len(row)]
    torch.testing.assert_close(together, single[0], rtol=1e-5, atol=1e-5)


def test_threads_that_read_one_model_read_what_one_thread_reads() -> None:
    model = family_model("gpt2")
    texts = [probe.tokenize(model, text) for text, _ in MANY[:2]]
    expected = [target_states(model, [tokens], [1]).resid for tokens in texts]

    def read(number: int) -> list[torch.Tensor]:
        return [target_states(model, [texts[number]], [1]).resid for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        for repeats, reference in zip(pool.map(read, range(2)), expected, strict=True):
            assert all(torch.equal(resid, reference) for resid in repeats)


# --- one position of one text ---------------------------------------------------------------------


def test_a_trace_of_one_position_is_the_whole_trace_there(model, monkeypatch) -> None:
    """A long text is read in chunks, with the keys, the values and the states carried on."""
    close, whole = close_of(model), probe.trace(model, LONG)
    assert len(whole.tokens) > 12
    for chunk, at in ((3, 0), (3, 9), (4, 9), (64, 9)):
        monkeypatch.setattr(tracing, "CHUNK", chunk)
        single = trace_target(model, whole.tokens, at)
        n_keys = at + 1 if model.config.causal else len(whole.tokens)
        assert_near(single.states.pattern[0], whole.pattern[:, :, at, :n_keys], close)
        assert_near(single.v, whole.v[:, :, :n_keys], close)
        assert_near(single.states.resid[0, :-1], whole.resid_pre[:, at], close)
        assert_near(single.states.resid[0, -1], whole.resid_post[-1, at], close)
        assert_near(single.states.mlp_out[0], whole.mlp_out[:, at], close)
        for name in ("q", "k", "v", "z"):
            assert_near(getattr(single.states, name)[0], getattr(whole, name)[:, :, at], close)
        for layer in filter(model.config.has_heads, range(LAYERS)):
            by_source = single.delta_e_by_source(layer, 1)
            assert_near(by_source, whole.delta_e_by_source(layer, 1, at)[:n_keys], close)
            assert_near(by_source.sum(0), single.delta_e(layer, 1), close)


@pytest.mark.parametrize("at", [-1, 99])
def test_a_position_that_does_not_exist_is_refused(at: int) -> None:
    model = family_model("gpt2")
    tokens = probe.tokenize(model, TEXT)
    n = len(tokens)
    assert refused(lambda: trace_target(model, tokens, at)) == (
        f"Cannot trace one position of a text of {n} tokens: got position {at}. Choose one from 0 "
        f"to {n - 1}."
    )


# --- attention ------------------------------------------------------------------------------------


def test_in_an_encoder_no_cell_is_masked_and_a_later_word_changes_an_earlier_one() -> None:
    model = family_model("bert", torch.float64)
    texts = (f"The bank raised the {word}" for word in ("interest", "tree"))
    first, second = (probe.trace(model, text) for text in texts)
    assert (first.pattern > 0).all()
    at = first.tokens.pieces.index(" bank")
    assert torch.equal(first.resid_pre[0, at], second.resid_pre[0, at])
    assert (first.resid_post[0, at] - second.resid_post[0, at]).abs().max() > 1e-3


def test_grouped_query_heads_share_keys_and_values_but_not_queries() -> None:
    record = probe.trace(family_model("llama", torch.float64), TEXT)
    assert torch.equal(record.k[:, 0], record.k[:, 1])
    assert torch.equal(record.v[:, 2], record.v[:, 3])
    assert not torch.equal(record.k[:, 1], record.k[:, 2])
    assert not torch.equal(record.q[:, 0], record.q[:, 1])


@pytest.mark.parametrize("kind", each_family(*PAIRED, also=("bart",)))
def test_cross_attention_is_rectangular_and_only_later_target_tokens_are_masked(kind: str) -> None:
    model = family_model(kind, torch.float64)
    pair = probe.trace(model, TEXT, TARGET)
    n, m = len(pair.target), len(pair.source)
    assert n != m
    assert pair.cross.pattern.shape == pair.cross.scores.shape == (LAYERS, HEADS, n, m)
    assert (pair.cross.pattern > 0).all() and (pair.encoder.pattern > 0).all()
    assert (pair.decoder.pattern.triu(1) == 0).all()
    torch.testing.assert_close(pair.cross.resid_pre, pair.decoder.resid_mid, **EXACT)
    assert repr(pair) == f"<PairTrace of {m} source and {n} target tokens through {kind}>"
    longer = probe.trace(model, TEXT, f"{TARGET} into the garden")
    torch.testing.assert_close(longer.logits[:n], pair.logits, **EXACT)
    again = probe.trace(model, f"{TEXT} again", TARGET)
    assert (again.logits - pair.logits).abs().max() > 1e-3


def test_the_decoder_reads_the_start_token_and_the_target_without_its_end() -> None:
    model = family_model("bart")
    pair = probe.trace(model, TEXT, TARGET)
    assert pair.target.ids[0] == model.config.start_token
    assert pair.target.pieces == ("</s>", "<s>", "A", " red", " apple", " fell")
    assert pair.source.pieces[0] == "<s>" and pair.source.pieces[-1] == "</s>"
    assert pair.target.spans[3:] == ((2, 5), (6, 11), (12, 16))
    assert "expected at most 40" in refused(lambda: probe.trace(model, TEXT, "bank " * 50))


def test_a_missing_target_and_a_needless_one_are_refused() -> None:
    assert refused(lambda: probe.trace(family_model("t5"), TEXT)) == (
        "Cannot trace a text through t5: it is an encoder-decoder. Give trace(model, source, "
        "target)."
    )
    assert refused(lambda: probe.trace(family_model("bert"), TEXT, TARGET)) == (
        "Cannot trace a text through bert: it has no decoder for a target. Give one text only, "
        "and a word to the methods of its trace, as at=."
    )
