"""The residual stream as a sum, for every family with one stack: shares of the gap, and sums
that must equal the stream.
"""

import pickle

import pytest
import torch
from families import LAYERS, REPRESENTATIVES, SINGLE, each_family, family_model
from handmade import tokens_of
from hooked_runs import BOUND, ROUNDED

from probe.errors import InputError
from probe.model import blocks, decomposition
from probe.model.architectures import FAMILIES
from probe.model.load import read_weights
from probe.model.tokens import tokenize
from probe.model.trace import target_states, trace
from probe.stats import axes

TEXTS = (
    "The mole dug under the river bank.",
    "Make a deposit at the bank",
    "the bank",
    "They walked by the old grey bank of the river and back again",
    "a mole near the bank",
    "An apple near the bank of the river",
)
PLAIN = tuple(kind for kind in SINGLE if FAMILIES[kind].adds_plainly)
WRITTEN = tuple(kind for kind in SINGLE if FAMILIES[kind].norm_after_write)
UNCENTRED = (*PLAIN, *WRITTEN)  # no norm of the sum between the embeddings and the read-out


def bound(kind, dtype, exact=BOUND):
    """The tolerance. Rounding to float32 in norms of writes, whatever the model's dtype, belongs
    to the stream but to no exact sum.
    """
    return max(exact[dtype], ROUNDED if kind in WRITTEN else 0)


EACH = [
    pytest.param(*kind.values, torch.float64, marks=kind.marks) for kind in each_family(*SINGLE)
]
EACH += [(kind, torch.float32) for kind in REPRESENTATIVES if kind in SINGLE]
WORD = 17
A, B = [0, 1, 2, 3, 4], [5, 6, 7, 8]


def states_of(model, *, positions=(6,)):
    """Random sentences in which the word is always the same token; A and B have nothing else in
    common.
    """
    generator = torch.Generator().manual_seed(4)
    ends = [positions[row % len(positions)] for row in range(len(A) + len(B))]
    ids = [
        torch.randint(5, model.config.d_vocab, (end,), generator=generator).tolist() + [WORD]
        for end in ends
    ]
    return target_states(model, [tokens_of(row) for row in ids], ends)


def shares_of(model, states, depth):
    resid = states.resid[:, depth]
    axis = axes.fit_axis(resid[A[:3]], resid[B[:2]], ("a", "b"), depth)
    return axis, decomposition.shares(
        read_weights(model), states, axis.u.expand(len(A + B), -1), depth, A, B
    )


def contributions(model, states, axis):
    """The contributions of every head along one axis at its depth."""
    directions = (axis.u / axis.gap).expand(len(states), axis.depth, -1)
    depths = [axis.depth] * axis.depth
    return decomposition.head_contributions(
        read_weights(model), states, range(len(states)), directions, depths
    )


@pytest.mark.parametrize(("kind", "dtype"), EACH)
def test_the_decomposition_closes(kind, dtype):
    record = trace(family_model(kind, dtype), TEXTS[3])
    for depth in range(LAYERS + 1):
        for at in (1, len(record.tokens) - 1):
            total = (
                torch.cat(
                    [
                        term.vectors
                        for term in decomposition.components_by_source(record, depth, at=at)
                    ]
                )
                .double()
                .sum(0)
            )
            hooked = (
                record.resid_post[depth - 1, at] if depth else record.resid_pre[0, at]
            ).double()
            error = float((total - hooked).abs().max() / hooked.abs().max())
            assert error <= bound(kind, dtype) and decomposition.closing_error(
                record, depth, at=at
            ) == pytest.approx(error, abs=1e-12)


def outer_components(kind, depth):
    """The components that are not heads, in the order of the forward pass, and their layers."""
    family, weights = FAMILIES[kind], read_weights(family_model(kind, torch.float64))
    expected = [("token embedding", None)]
    expected += [("position embedding", None)] if family.positions == "learned" else []
    expected += [("token type embedding", None)] if family.type_table else []
    biased = family.embedding_norm and family.outer_biases
    expected += [("norm bias after embedding", None)] if biased else []
    for layer in range(depth):
        expected += (
            [(f"attention bias {layer}", layer)] if weights.blocks[layer].b_o is not None else []
        )
        expected += [(f"norm bias after attention {layer}", layer)] if family.norm_after_sum else []
        expected += [(f"MLP {layer}", layer)]
        expected += [(f"norm bias after MLP {layer}", layer)] if family.norm_after_sum else []
    return expected


@pytest.mark.parametrize(("kind", "dtype"), EACH)
def test_shares_list_every_component_once_and_sum_to_one(kind, dtype):
    model = family_model(kind, dtype)
    for positions in ((6,), (4, 6, 9)):
        states = states_of(model, positions=positions)
        for depth in range(1, LAYERS + 1):
            _, shares = shares_of(model, states, depth)
            exact = bound(kind, dtype, {torch.float32: 1e-4, torch.float64: 1e-10})
            assert sum(share.share for share in shares) == pytest.approx(1, abs=exact)
            assert max(abs(share.share) for share in shares) > 0.05
            heads = [(share.layer, share.head) for share in shares if share.head is not None]
            assert heads == [
                (layer, head) for layer in range(depth) for head in range(model.config.n_heads)
            ]
            outer = [(share.component, share.layer) for share in shares if share.head is None]
            assert outer == outer_components(kind, depth)
            assert all(
                share.component == f"L{share.layer}H{share.head}"
                for share in shares
                if share.head is not None
            )
        # Without norms in between, components that are equal in all texts have no share.
        by_name = {share.component: share.share for share in shares}
        assert (by_name["token embedding"] == 0.0) == (kind in UNCENTRED)
        if "position embedding" in by_name:
            assert (by_name["position embedding"] == 0.0) == (
                kind in UNCENTRED and len(positions) == 1
            )


@pytest.mark.parametrize("kind", each_family(*PLAIN))
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
            write = states.z[:, share.layer, share.head] @ blocks[share.layer].w_o[share.head]
        elif share.component.startswith("MLP"):
            write = states.mlp_out[:, share.layer]
        elif share.component == "position embedding":
            write = states.position_embedding
        else:  # constants
            assert share.share == 0
            continue
        assert share.share == pytest.approx((along(write) / whole).item(), abs=1e-12)


def jacobian_of_the_rest(model, states, row, layer, head, depth):
    """The map from a head's write to the read-out of one text, with the scale of every later
    norm frozen.
    """
    weights, config = read_weights(model), model.config
    arrived = states.z[row, layer, head] @ weights.blocks[layer].w_o[head]
    for later in range(layer, depth):
        block = weights.blocks[later]
        writes = (states.z[row, later].unsqueeze(-2) @ block.w_o).squeeze(-2).sum(0)
        resid_mid = states.resid[row, later] + writes + block.b_o
        before = (
            blocks.norm(resid_mid, block.norm, block.norm_bias, config) + states.mlp_out[row, later]
        )
        for total, gain in ((resid_mid, block.norm), (before, block.norm_mlp)):
            arrived = (
                (arrived - arrived.mean())
                / (total.var(unbiased=False) + config.epsilon).sqrt()
                * gain
            )
    return arrived


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_write_passes_every_later_norm_with_its_scale_frozen(kind):
    model = family_model(kind, torch.float64)
    states = states_of(model)
    axis, _ = shares_of(model, states, 2)
    by_head = contributions(model, states, axis)
    for row in (0, 7):
        for layer in range(2):
            for head in range(model.config.n_heads):
                expected = axis.effect(jacobian_of_the_rest(model, states, row, layer, head, 2))
                torch.testing.assert_close(by_head[row, layer, head], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["gemma2", "olmo2"])
def test_a_write_passes_its_own_norm_and_no_other(kind):
    """RMSNorm by hand, with its scale frozen: each head's part of the addition to the stream."""
    model = family_model(kind, torch.float64)
    states = states_of(model)
    axis, _ = shares_of(model, states, 2)
    by_head = contributions(model, states, axis)
    for layer, block in enumerate(read_weights(model).blocks):
        writes = (states.z[:, layer].unsqueeze(-2) @ block.w_o).squeeze(-2)  # row head d_model
        rms = (writes.sum(1).square().mean(-1) + model.config.epsilon).sqrt()
        gain = block.norm_out + 1 if kind.startswith("gemma") else block.norm_out
        added = writes / rms[:, None, None] * gain
        torch.testing.assert_close(by_head[:, layer], axis.effect(added), rtol=0, atol=ROUNDED)
        middle = states.resid[:, layer] + added.sum(1)
        after = (
            blocks.norm(states.mlp_out[:, layer], block.norm_mlp_out, None, model.config) + middle
        )
        torch.testing.assert_close(after, states.resid[:, layer + 1], rtol=0, atol=ROUNDED)


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_every_row_and_layer_is_read_along_its_own_direction_at_its_own_depth(kind):
    model = family_model(kind, torch.float64)
    states, weights, rows, depths = states_of(model), read_weights(model), [7, 0, 3], [1, 2]
    directions = torch.randn(
        3, 2, model.config.d_model, generator=torch.Generator().manual_seed(1)
    ).double()
    by_head = decomposition.head_contributions(weights, states, rows, directions, depths)
    for index, row in enumerate(rows):
        for layer, depth in enumerate(depths):
            parts = {
                (part.layer, part.head): part.vectors[row]
                for part in decomposition.components(weights, states, depth)
            }
            for head in range(model.config.n_heads):
                expected = parts[layer, head] @ directions[index, layer]
                torch.testing.assert_close(
                    by_head[index, layer, head], expected, rtol=0, atol=1e-12
                )


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_shares_along_one_direction_per_row_are_fractions_of_the_same_gap(kind):
    model = family_model(kind, torch.float64)
    states, rows = states_of(model), [*A, *B]
    directions = torch.randn(
        len(rows), model.config.d_model, generator=torch.Generator().manual_seed(2)
    ).double()
    weights = read_weights(model)
    shares = decomposition.shares(weights, states, directions, 2, A, B)
    origin = states.resid[:1, 2].double()

    def difference(vectors, first):
        along = ((vectors[rows] - first) * directions).sum(-1)
        return along[: len(A)].mean() - along[len(A) :].mean()

    whole = difference(states.resid[:, 2], origin)
    for share, part in zip(shares, decomposition.components(weights, states, 2), strict=True):
        expected = difference(part.vectors, part.vectors[:1]) / whole
        assert share.share == pytest.approx(expected.item(), abs=1e-12)
    assert sum(share.share for share in shares) == pytest.approx(1, abs=bound(kind, torch.float64))


# --- one text -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_shares_and_contributions_add_up(kind):
    model = family_model(kind, torch.float64)
    a, b = (0, 1, 2), (3, 4, 5)
    tokens = [tokenize(model, text) for text in TEXTS]
    at = [len(cut) // 2 for cut in tokens]
    weights, states = read_weights(model), target_states(model, tokens, at)
    axis = axes.fit_axis(states.resid[list(a), 2], states.resid[list(b), 2], ("a", "b"), 2)
    shares = decomposition.shares(weights, states, axis.u.expand(6, -1), 2, a, b)
    average = decomposition.average(weights, states, a, b, depth=2)
    middle = torch.stack(list(average.values())).sum(0)
    torch.testing.assert_close(middle, axis.midpoint, rtol=0, atol=10 * bound(kind, torch.float64))
    record, read = trace(model, TEXTS[3]), states.resid[3, 2]
    close = (
        ROUNDED if FAMILIES[kind].in_float32 else 1e-9
    )  # read in a batch, where float32 norms round differently
    for average_or_none, expected in ((average, axis.coordinate(read)), (None, axis.effect(read))):
        entries = decomposition.decompose_resid(
            record, 2, at=at[3], axis=axis, average=average_or_none
        )
        assert sum(entry.contribution for entry in entries) == pytest.approx(
            expected.item(), abs=close
        )
    by_head = contributions(model, states, axis)
    for layer in range(2):
        mine = [share.share for share in shares if share.layer == layer and share.head is not None]
        difference = by_head[list(a), layer].mean(0) - by_head[list(b), layer].mean(0)
        whole = (
            axis.effect(states.resid[list(a), 2]).mean()
            - axis.effect(states.resid[list(b), 2]).mean()
        )
        assert mine == pytest.approx((difference / whole).tolist(), abs=1e-9)


# --- the stream as words --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record(model):
    return trace(model, "The river near the old bank")


def test_the_stream_enters_the_first_block_and_leaves_the_last(record):
    stream = decomposition.residual_stream(record, 2)
    assert stream.shape == (len(record.resid_pre) + 1, record.resid_pre.shape[-1])
    raw, token = record.weights.raw, record.tokens.ids[2]
    torch.testing.assert_close(stream[0], raw["wte.weight"][token] + raw["wpe.weight"][2])
    assert torch.equal(stream[-1], record.resid_post[-1, 2])
    assert torch.equal(stream[1], record.resid_post[0, 2])


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_at_the_last_depth_the_lens_is_what_the_model_predicts(kind):
    record = trace(family_model(kind, torch.float64), "The river near the old bank")
    for at in (0, -1):
        predicted = torch.softmax(record.logits[at], -1)
        torch.testing.assert_close(
            decomposition.logit_lens(record, at)[-1], predicted, rtol=0, atol=1e-6
        )


def test_before_the_last_depth_the_lens_is_the_final_norm_and_the_unembedding(record):
    raw, vector = record.weights.raw, decomposition.residual_stream(record, 3)[1]
    gain, bias, epsilon = raw["ln_f.weight"], raw["ln_f.bias"], record.weights.config.epsilon
    normal = torch.nn.functional.layer_norm(vector, vector.shape, gain, bias, epsilon)
    expected = torch.softmax(raw["wte.weight"] @ normal, -1)
    torch.testing.assert_close(
        decomposition.logit_lens(record, 3)[1], expected, rtol=1e-4, atol=1e-6
    )


def test_a_token_is_nearest_to_itself_at_any_length(model):
    table = model.weights["wte.weight"]
    (first, cosine), *_ = decomposition.nearest_tokens(model, 3 * table[7])
    with pytest.raises(
        InputError, match=r"got one of shape \[5\], expected \[\d+\], as long as the"
    ):
        decomposition.nearest_tokens(model, table[7, :5])
    assert first == 7 and cosine == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vector": torch.nan}, "it holds NaN or infinite numbers. Give finite ones."),
        ({"count": 0}, "got count = 0, expected a whole number from 1 on. Omit it for 5."),
        ({"count": 10**6}, "tokens are left. Ask for fewer."),
        ({"without": [10**6]}, "got without = [1000000], expected ids from 0 to "),
    ],
)
def test_invalid_requests_for_the_nearest_tokens_are_refused(model, options, message):
    vector = model.weights["wte.weight"][7].numpy() * 1 + options.pop("vector", 0.0)
    with pytest.raises(InputError) as error:
        decomposition.nearest_tokens(model, vector, **options)
    assert str(error.value).startswith("Cannot find the tokens near a vector: ")
    assert message in str(error.value)


def test_a_trace_can_be_pickled(model):
    whole = trace(model, "a loan from the bank")
    again = pickle.loads(pickle.dumps(whole))
    assert torch.equal(again.logits, whole.logits)
    assert torch.equal(again.delta_e(0, 1, -1), whole.delta_e(0, 1, -1))


def test_the_order_is_that_of_the_cosines_and_ids_can_be_left_out(model):
    table = model.weights["wte.weight"]
    cosines = torch.nn.functional.cosine_similarity(table, table[7][None])
    expected = [int(i) for i in cosines.argsort(descending=True) if i not in (7, 3)][:4]
    assert [
        i for i, _ in decomposition.nearest_tokens(model, table[7], count=4, without=(7, 3))
    ] == expected
    assert torch.equal(table, model.weights["wte.weight"])
