"""The residual stream as a sum: shares of the gap against traced writes, and the sum that must close."""

import pytest
import torch
from handmade import ODD, random_model, tokens_of

from probe.model import ledger
from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.stats import axes

LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]
WORD = 17
A, B = [0, 1, 2, 3, 4], [5, 6, 7, 8]


def states_of(model, *, positions=(6,)):
    """Random sentences, of which the word is always the same token; A and B have nothing else in common."""
    generator = torch.Generator().manual_seed(4)
    ends = [positions[row % len(positions)] for row in range(len(A) + len(B))]
    ids = [torch.randint(model.config.d_vocab, (end,), generator=generator).tolist() + [WORD] for end in ends]
    return target_states(model, [tokens_of(row) for row in ids], ends)


def shares_of(model, states, depth):
    resid = states.resid[:, depth]
    axis = axes.fit_axis(resid[A[:3]], resid[B[:2]], ("a", "b"), depth)
    return axis, ledger.shares(read_weights(model), states, axis, A, B)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("depth", range(1, LAYERS + 1))
@pytest.mark.parametrize("positions", [(6,), (4, 6, 9)])
def test_shares_sum_to_one(dtype, depth, positions):
    model = random_model(dtype)
    _, shares = shares_of(model, states_of(model, positions=positions), depth)
    assert sum(share.share for share in shares) == pytest.approx(
        1, abs={torch.float32: 1e-4, torch.float64: 1e-10}[dtype]
    )
    assert max(abs(share.share) for share in shares) > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_token_embedding_has_no_share_at_all(dtype):
    model = random_model(dtype)
    _, shares = shares_of(model, states_of(model, positions=(4, 6, 9)), 2)
    by_name = {share.component: share.share for share in shares}
    assert by_name["token embedding"] == 0.0
    assert by_name["position embedding"] != 0.0
    _, aligned = shares_of(model, states_of(model), 2)
    assert {share.component: share.share for share in aligned}["position embedding"] == 0.0


@pytest.mark.parametrize("depth", [1, LAYERS])
def test_every_component_up_to_the_read_out_is_listed_once(depth):
    model = random_model()
    _, shares = shares_of(model, states_of(model), depth)
    heads = [(share.layer, share.head) for share in shares if share.head is not None]
    assert heads == [(layer, head) for layer in range(depth) for head in range(HEADS)]
    others = [(share.component, share.layer) for share in shares if share.head is None]
    expected = [("token embedding", None), ("position embedding", None)]
    for layer in range(depth):
        expected += [(f"attention bias {layer}", layer), (f"MLP {layer}", layer)]
    assert others == expected
    assert all(share.component == f"L{share.layer}H{share.head}" for share in shares if share.head is not None)


def test_a_share_is_the_difference_of_mean_writes_over_the_gap():
    model = random_model(torch.float64)
    states = states_of(model, positions=(4, 6, 9))
    axis, shares = shares_of(model, states, LAYERS)

    def along(vectors):
        values = vectors @ axis.u
        return values[A].mean() - values[B].mean()

    whole = along(states.resid[:, LAYERS])
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


def test_contributions_are_writes_along_the_axis():
    model = random_model(torch.float64)
    states = states_of(model)
    axis, _ = shares_of(model, states, 2)
    found = ledger.head_contributions(read_weights(model), states, axis)
    assert found.shape == (len(A) + len(B), 2, HEADS)
    for layer, block in enumerate(read_weights(model).blocks[:2]):
        for head in range(HEADS):
            expected = axis.effect(states.z[:, layer, head] @ block.w_o[head])
            torch.testing.assert_close(found[:, layer, head], expected, rtol=0, atol=1e-12)


def test_exchanged_senses_have_the_same_shares():
    """The axis and the difference turn round together."""
    model = random_model(torch.float64)
    states = states_of(model)
    resid = states.resid[:, 2]
    one, other = (
        ledger.shares(read_weights(model), states, axes.fit_axis(resid[a], resid[b], ("a", "b"), 2), a, b)
        for a, b in ((A, B), (B, A))
    )
    for mine, its in zip(one, other, strict=True):
        assert mine.share == pytest.approx(its.share, abs=1e-12)
