"""The residual stream as a sum, for every family with one stack: shares of the gap, and the sum that must close."""

import pytest
import torch
from families import SINGLE, family_model
from handmade import random_model, tokens_of

from probe.model import forward, ledger
from probe.model.architectures import FAMILIES
from probe.model.tokens import tokenize
from probe.model.trace import target_states, trace
from probe.model.weights import read_weights
from probe.stats import axes

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
ROUNDED = 1e-6  # where a family's own code takes norms and softmax in float32 whatever its type
TEXTS = (
    "The mole dug under the river bank.",
    "Make a deposit at the bank",
    "the bank",
    "They walked by the old grey bank of the river and back again",
    "a mole near the bank",
    "An apple near the bank of the river",
)
NORM_FIRST = tuple(kind for kind in SINGLE if FAMILIES[kind].norm_first)
WORD = 17
A, B = [0, 1, 2, 3, 4], [5, 6, 7, 8]


def states_of(model, *, positions=(6,)):
    """Random sentences, of which the word is always the same token; A and B have nothing else in common."""
    generator = torch.Generator().manual_seed(4)
    ends = [positions[row % len(positions)] for row in range(len(A) + len(B))]
    ids = [torch.randint(5, model.config.d_vocab, (end,), generator=generator).tolist() + [WORD] for end in ends]
    return target_states(model, [tokens_of(row) for row in ids], ends)


def shares_of(model, states, depth):
    resid = states.resid[:, depth]
    axis = axes.fit_axis(resid[A[:3]], resid[B[:2]], ("a", "b"), depth)
    return axis, ledger.shares(read_weights(model), states, axis, A, B)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("kind", SINGLE)
def test_the_ledger_closes(kind, depth, dtype):
    model = family_model(kind, dtype)
    shown = trace(model, TEXTS[3])
    for at in (1, len(shown.tokens) - 1):
        assert ledger.close(shown, depth, at=at) <= BOUND[dtype]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("positions", [(6,), (4, 6, 9)])
@pytest.mark.parametrize(
    ("kind", "depth"), [*((kind, depth) for kind in SINGLE for depth in (1, 2)), ("random GPT-2", 3)]
)
def test_shares_sum_to_one(kind, dtype, depth, positions):
    model = random_model(dtype) if kind == "random GPT-2" else family_model(kind, dtype)
    _, shares = shares_of(model, states_of(model, positions=positions), depth)
    assert sum(share.share for share in shares) == pytest.approx(
        1, abs={torch.float32: 1e-4, torch.float64: 1e-10}[dtype]
    )
    assert max(abs(share.share) for share in shares) > 0.05


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("kind", SINGLE)
def test_the_token_embedding_has_no_share_at_all_where_no_norm_is_on_the_way(kind, dtype):
    model = family_model(kind, dtype)
    _, shares = shares_of(model, states_of(model, positions=(4, 6, 9)), 2)
    by_name = {share.component: share.share for share in shares}
    assert (by_name["token embedding"] == 0.0) == (kind in NORM_FIRST)
    assert ("position embedding" in by_name) == (FAMILIES[kind].positions == "learned")
    if "position embedding" in by_name:
        assert by_name["position embedding"] != 0.0
        _, aligned = shares_of(model, states_of(model), 2)
        alike = {share.component: share.share for share in aligned}["position embedding"]
        assert (alike == 0.0) == (kind in NORM_FIRST)


def outer_components(kind, depth):
    """What is no head's, in the order of the forward pass, and its layer."""
    family, weights = FAMILIES[kind], read_weights(family_model(kind))
    expected = [("token embedding", None)]
    expected += [("position embedding", None)] if family.positions == "learned" else []
    expected += [("token type embedding", None)] if family.type_table else []
    expected += [] if family.norm_first else [("norm bias behind embedding", None)]
    for layer in range(depth):
        expected += [(f"attention bias {layer}", layer)] if weights.blocks[layer].b_o is not None else []
        expected += [] if family.norm_first else [(f"norm bias behind attention {layer}", layer)]
        expected += [(f"MLP {layer}", layer)]
        expected += [] if family.norm_first else [(f"norm bias behind MLP {layer}", layer)]
    return expected


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", SINGLE)
def test_every_component_up_to_the_read_out_is_listed_once(kind, depth):
    model = family_model(kind)
    _, shares = shares_of(model, states_of(model), depth)
    heads = [(share.layer, share.head) for share in shares if share.head is not None]
    assert heads == [(layer, head) for layer in range(depth) for head in range(model.config.n_heads)]
    assert [(share.component, share.layer) for share in shares if share.head is None] == outer_components(kind, depth)
    assert all(share.component == f"L{share.layer}H{share.head}" for share in shares if share.head is not None)


@pytest.mark.parametrize("kind", NORM_FIRST)
def test_a_share_is_the_difference_of_mean_writes_over_the_gap(kind):
    model = family_model(kind, torch.float64)
    states = states_of(model, positions=(4, 6, 9))
    axis, shares = shares_of(model, states, 2)

    def along(vectors):
        values = vectors @ axis.u
        return values[A].mean() - values[B].mean()

    whole = along(states.resid[:, 2])
    blocks = read_weights(model).blocks
    for share in shares:
        if share.head is not None:
            written = states.z[:, share.layer, share.head] @ blocks[share.layer].w_o[share.head]
        elif share.component.startswith("MLP"):
            written = states.mlp_out[:, share.layer]
        elif share.component == "position embedding":
            written = states.position_embedding
        else:  # constants
            assert share.share == 0
            continue
        assert share.share == pytest.approx((along(written) / whole).item(), abs=1e-12)


def jacobian_of_the_rest(model, states, row, layer, head, depth):
    """What arrives of a head's write at the read-out of one text, every norm behind it keeping its scale."""
    weights, config = read_weights(model), model.config
    arrived = states.z[row, layer, head] @ weights.blocks[layer].w_o[head]
    for later in range(layer, depth):
        block = weights.blocks[later]
        writes = (states.z[row, later].unsqueeze(-2) @ block.w_o).squeeze(-2).sum(0)
        resid_mid = states.resid[row, later] + writes + block.b_o
        before = forward.norm(resid_mid, block.norm, block.norm_bias, config) + states.mlp_out[row, later]
        for total, gain in ((resid_mid, block.norm), (before, block.norm_mlp)):
            arrived = (arrived - arrived.mean()) / (total.var(unbiased=False) + config.epsilon).sqrt() * gain
    return arrived


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_write_passes_every_norm_behind_it_with_its_scale_held(kind):
    model = family_model(kind, torch.float64)
    states = states_of(model)
    axis, _ = shares_of(model, states, 2)
    found = ledger.head_contributions(read_weights(model), states, axis)
    for row in (0, 7):
        for layer in range(2):
            for head in range(model.config.n_heads):
                expected = axis.effect(jacobian_of_the_rest(model, states, row, layer, head, 2))
                torch.testing.assert_close(found[row, layer, head], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", NORM_FIRST)
def test_contributions_are_writes_along_the_axis(kind):
    model = family_model(kind, torch.float64)
    states = states_of(model)
    axis, _ = shares_of(model, states, 2)
    found = ledger.head_contributions(read_weights(model), states, axis)
    assert found.shape == (len(A) + len(B), 2, model.config.n_heads)
    for layer, block in enumerate(read_weights(model).blocks[:2]):
        for head in range(model.config.n_heads):
            expected = axis.effect(states.z[:, layer, head] @ block.w_o[head])
            torch.testing.assert_close(found[:, layer, head], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", SINGLE)
def test_exchanged_senses_have_the_same_shares(kind):
    """The axis and the difference turn round together."""
    model = family_model(kind, torch.float64)
    states = states_of(model)
    resid = states.resid[:, 2]
    one, other = (
        ledger.shares(read_weights(model), states, axes.fit_axis(resid[a], resid[b], ("a", "b"), 2), a, b)
        for a, b in ((A, B), (B, A))
    )
    for mine, its in zip(one, other, strict=True):
        assert mine.share == pytest.approx(its.share, abs=1e-12)


# --- one text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SINGLE)
def test_shares_and_contributions_add_up(kind):
    model = family_model(kind, torch.float64)
    a, b = (0, 1, 2), (3, 4, 5)
    tokens = [tokenize(model, text) for text in TEXTS]
    at = [len(cut) // 2 for cut in tokens]
    weights, states = read_weights(model), target_states(model, tokens, at)
    axis = axes.fit_axis(states.resid[list(a), 2], states.resid[list(b), 2], ("a", "b"), 2)
    shares = ledger.shares(weights, states, axis, a, b)
    assert sum(share.share for share in shares) == pytest.approx(1, abs=1e-9)
    average = ledger.average(weights, states, a, b, depth=2)
    torch.testing.assert_close(torch.stack(list(average.values())).sum(0), axis.midpoint, rtol=0, atol=1e-9)
    shown = trace(model, TEXTS[3])
    entries = ledger.ledger(shown, 2, at=at[3], axis=axis, average=average)
    wanted = axis.coordinate(states.resid[3, 2]).item()  # read in a batch, where float32 norms round otherwise
    assert sum(entry.contribution for entry in entries) == pytest.approx(
        wanted, abs=ROUNDED if FAMILIES[kind].single else 1e-9
    )
    named = {share.component for share in shares}
    assert any("norm bias" in name for name in named) == (kind not in NORM_FIRST)
    by_head = ledger.head_contributions(weights, states, axis)
    for layer in range(2):
        mine = [share.share for share in shares if share.layer == layer and share.head is not None]
        difference = by_head[list(a), layer].mean(0) - by_head[list(b), layer].mean(0)
        whole = axis.effect(states.resid[list(a), 2]).mean() - axis.effect(states.resid[list(b), 2]).mean()
        assert mine == pytest.approx((difference / whole).tolist(), abs=1e-9)


def test_an_encoders_sources_stand_on_both_sides_of_the_word():
    shown = trace(family_model("bert"), TEXTS[3])
    entries = ledger.ledger(shown, 2, at=4)
    assert {entry.pos for entry in entries if entry.head is not None} == set(range(len(shown.tokens)))
