"""Swaps, states and ledger of every family with one stack, against whole hooked forwards."""

import pytest
import torch
from families import PAIRED, SINGLE, family_model

from probe.errors import UnsupportedModel
from probe.model import forward, ledger
from probe.model import hooks as hooked
from probe.model.architectures import FAMILIES
from probe.model.load import untrained
from probe.model.tokens import Placed, tokenize
from probe.model.trace import target_states, trace
from probe.model.weights import read_weights
from probe.patching import swaps
from probe.stats import axes

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
ROUNDED = 1e-6  # where a family's own code takes norms and softmax in float32 whatever its type, no two orders of sums agree better


def bound(family, dtype):
    return max(BOUND[dtype], ROUNDED if FAMILIES[family].single else 0)


TEXTS = (
    "The mole dug under the river bank.",
    "Make a deposit at the bank",
    "the bank",
    "They walked by the old grey bank of the river and back again",
    "a mole near the bank",
    "An apple near the bank of the river",
)
A, B = (0, 1, 2), (3, 4, 5)


def read_before_the_end(model):
    """The texts in tokens, and a position in each that has something behind it."""
    tokens = [tokenize(model, text) for text in TEXTS]
    return tokens, [len(cut) // 2 for cut in tokens]


def placed(model):
    tokens, at = read_before_the_end(model)
    return [Placed(cut.ids, place) for cut, place in zip(tokens, at, strict=True)]


def random_z(model, rows, seed=1):
    c = model.config
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, c.n_layers, c.n_heads, c.d_head, generator=generator, dtype=model.dtype)


def test_many_sets_are_run_in_parts(monkeypatch):
    model = family_model("bert")
    texts, donors = placed(model), random_z(model, len(TEXTS))
    sets = torch.rand(9, 2, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    direction = torch.ones(1, model.config.d_model)
    whole = swaps.swap_sets(read_weights(model), texts, donors, sets, direction)
    monkeypatch.setattr(swaps, "SETS", 4)
    torch.testing.assert_close(swaps.swap_sets(read_weights(model), texts, donors, sets, direction), whole)


# --- against whole hooked forwards -----------------------------------------------------------------------------------


def run_plainly(model, text, swap):
    """The last resid_post at the word of a whole hooked forward in which z of one head there is replaced (None: of none)."""
    (attention,) = FAMILIES[model.config.architecture].attentions
    seen = {}

    def change(z, hook):
        z = z.clone()
        z[0, text.at, swap[1]] = swap[2]
        return z

    def read(resid, hook):
        seen["resid"] = resid[0, text.at].clone()

    last = model.config.n_layers - 1
    hooks = [(f"{attention.blocks}.{last}.{attention.hooks['resid_post']}", read)]
    hooks += [(f"{attention.blocks}.{swap[0]}.{attention.hooks['z']}", change)] if swap else []
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        hooked.run(model, [text.ids])
    return seen["resid"]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("family", SINGLE)
def test_every_swap_equals_a_whole_hooked_forward(family, dtype):
    model = family_model(family, dtype)
    texts, donors = placed(model), random_z(model, len(TEXTS))
    moved = swaps.swap_heads(read_weights(model), texts, donors, torch.eye(model.config.d_model, dtype=dtype))
    for row in (0, 2, 3):
        base = run_plainly(model, texts[row], None)
        for layer in range(model.config.n_layers):
            for head in range(model.config.n_heads):
                plain = run_plainly(model, texts[row], (layer, head, donors[row, layer, head])) - base
                assert plain.abs().max() > 0.01
                assert (moved[row, layer, head] - plain).abs().max() <= bound(family, dtype) * base.abs().max(), (
                    layer,
                    head,
                )


def test_an_encoder_reads_what_comes_after_the_word_and_a_decoder_does_not():
    for family, differs in (("bert", True), ("llama", False)):
        model = family_model(family)
        whole, short = placed(model), [Placed(text.ids[: text.at + 1], text.at) for text in placed(model)]
        donors, direction = random_z(model, len(TEXTS)), torch.ones(1, model.config.d_model)
        found = [swaps.swap_heads(read_weights(model), texts, donors, direction) for texts in (whole, short)]
        assert (not torch.equal(*found)) == differs


# --- reading: padded and alone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SINGLE)
def test_texts_read_together_are_what_each_is_alone(family):
    model = family_model(family)
    tokens, at = read_before_the_end(model)
    states = target_states(model, tokens, at)
    assert len({len(cut) for cut in tokens}) > 3
    for row, (text, place) in enumerate(zip(TEXTS, at, strict=True)):
        alone = trace(model, text)
        seen = slice(place + 1) if model.config.causal else slice(len(tokens[row]))
        pairs = [(getattr(states, name)[row], getattr(alone, name)[:, :, place]) for name in ("q", "k", "v", "z")]
        pairs += [
            (states.pattern[row, ..., seen], alone.pattern[:, :, place, seen]),
            (states.resid[row, 1:], alone.resid_post[:, place]),
            (states.resid[row, 0], alone.resid_pre[0, place]),
            (states.mlp_out[row], alone.mlp_out[:, place]),
        ]
        for together, single in pairs:
            torch.testing.assert_close(together, single, rtol=0, atol=1e-5)
        assert states.pattern[row].sum(-1).allclose(torch.ones(()))


@pytest.mark.parametrize("family", [*SINGLE, *PAIRED])
def test_a_batch_filled_up_on_the_right_gives_the_logits_of_each_text(family):
    model = family_model(family)
    rows = [list(tokenize(model, text).ids) for text in TEXTS]
    targets = [[model.config.start_token, *row[:-1]] for row in rows] if family in PAIRED else None
    with torch.inference_mode():
        together = hooked.run(model, rows, targets)
        for number, row in enumerate(rows):
            alone = hooked.run(model, [row], None if targets is None else [targets[number]])[0]
            torch.testing.assert_close(together[number, : len(alone)], alone, rtol=1e-5, atol=1e-5)


def test_the_mask_of_a_batch_comes_from_lengths_and_not_from_ids():
    """A padding token that stands inside a text is part of it."""
    model = family_model("bert")
    pad = model.tokenizer.pad_token_id
    row = list(tokenize(model, TEXTS[0]).ids)
    row[3] = pad
    with torch.inference_mode():
        alone = hooked.run(model, [row])
        together = hooked.run(model, [row, [*row, *row]])[0, : len(row)]
        without = model.bridge(torch.tensor([row]), attention_mask=(torch.tensor([row]) != pad).long())
    torch.testing.assert_close(together, alone[0], rtol=1e-5, atol=1e-5)
    assert (alone - without).abs().max() > 1e-3


# --- the residual stream as a sum ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("family", SINGLE)
def test_the_ledger_closes(family, depth, dtype):
    model = family_model(family, dtype)
    shown = trace(model, TEXTS[3])
    for at in (1, len(shown.tokens) - 1):
        assert ledger.close(shown, depth, at=at) <= BOUND[dtype]


@pytest.mark.parametrize("family", SINGLE)
def test_shares_and_contributions_add_up(family):
    model = family_model(family, torch.float64)
    tokens, at = read_before_the_end(model)
    weights, states = read_weights(model), target_states(model, tokens, at)
    axis = axes.fit_axis(states.resid[list(A), 2], states.resid[list(B), 2], ("a", "b"), 2)
    shares = ledger.shares(weights, states, axis, A, B)
    assert sum(share.share for share in shares) == pytest.approx(1, abs=1e-9)
    average = ledger.average(weights, states, A, B, depth=2)
    torch.testing.assert_close(torch.stack(list(average.values())).sum(0), axis.midpoint, rtol=0, atol=1e-9)
    shown = trace(model, TEXTS[3])
    entries = ledger.ledger(shown, 2, at=at[3], axis=axis, average=average)
    wanted = axis.coordinate(states.resid[3, 2]).item()  # read in a batch, where float32 norms round otherwise
    assert sum(entry.contribution for entry in entries) == pytest.approx(
        wanted, abs=max(1e-9, bound(family, torch.float64))
    )
    named = {share.component for share in shares}
    assert any("norm bias" in name for name in named) == (family in ("bert", "roberta"))
    by_head = ledger.head_contributions(weights, states, axis)
    for layer in range(2):
        mine = [share.share for share in shares if share.layer == layer and share.head is not None]
        difference = by_head[list(A), layer].mean(0) - by_head[list(B), layer].mean(0)
        whole = axis.effect(states.resid[list(A), 2]).mean() - axis.effect(states.resid[list(B), 2]).mean()
        assert mine == pytest.approx((difference / whole).tolist(), abs=1e-9)


def test_an_encoders_sources_stand_on_both_sides_of_the_word():
    shown = trace(family_model("bert"), TEXTS[3])
    entries = ledger.ledger(shown, 2, at=4)
    assert {entry.pos for entry in entries if entry.head is not None} == set(range(len(shown.tokens)))


# --- what is refused, and what is not there --------------------------------------------------------------------------


@pytest.mark.parametrize("family", PAIRED)
def test_an_encoder_decoder_is_refused_in_one_sentence(family):
    model = family_model(family)
    with pytest.raises(UnsupportedModel) as caught:
        read_weights(model)
    assert str(caught.value) == (
        f"Cannot do the reading of a word with a {FAMILIES[family].name} model: a word is read in one stack of blocks, and it has an "
        "encoder and a decoder; take a decoder (GPT-2, tiny-senses) or an encoder (BERT), or use trace and walk with a source and a "
        "target."
    )


@pytest.mark.parametrize("family", SINGLE)
def test_an_untrained_twin_has_other_weights_of_the_same_shape(family):
    model = family_model(family)
    twin = untrained(model, seed=3)
    assert {name: tensor.shape for name, tensor in twin.weights.items()} == {
        name: tensor.shape for name, tensor in model.weights.items()
    }
    assert any(not torch.equal(twin.weights[name], tensor) for name, tensor in model.weights.items())
    tokens, at = read_before_the_end(model)
    states = target_states(twin, tokens, at)
    *_, last = forward.run(read_weights(twin), torch.tensor([tokens[0].ids]), torch.float32)
    shown = last["z"][0, :, at[0]]
    torch.testing.assert_close(states.z[0, -1], shown, rtol=0, atol=1e-5)
