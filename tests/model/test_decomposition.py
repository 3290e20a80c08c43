"""The residual stream as a sum, for every family with one stack: shares of the gap, and sums
that must equal the stream."""

import pytest
import torch
from families import EACH_HYBRID, FAMILIES, LAYERS, SINGLE, each_family, family_model
from handmade import tokens_of
from hooked_runs import BOUND, ROUNDED
from inside import axes, blocks, read_weights, target_states

import probe
from probe import decomposition

TEXT = "They walked by the old grey bank of the river and back again"
PLAIN = tuple(kind for kind in SINGLE if FAMILIES[kind].adds_plainly)
WRITTEN = tuple(kind for kind in SINGLE if FAMILIES[kind].norm_after_write)
WORD = 17
A, B = [0, 1, 2, 3, 4], [5, 6, 7, 8]
ROWS = [*A, *B]


def bound(kind: str) -> float:
    """Rounding to float32 in norms of writes belongs to the stream, but to no exact sum. Hugging
    Face's own recurrences round, too."""
    return max(BOUND[torch.float64], ROUNDED if FAMILIES[kind].in_float32 else 0)


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def states_of(model, *, positions=(4, 6, 9)):
    """Random sentences in which the word is always the same token; A and B have nothing else in
    common."""
    generator = torch.Generator().manual_seed(4)
    ends = [positions[row % len(positions)] for row in ROWS]
    ids = [
        torch.randint(5, model.config.d_vocab, (end,), generator=generator).tolist() + [WORD]
        for end in ends
    ]
    return target_states(model, [tokens_of(row) for row in ids], ends)


def axis_of(states, depth=2):
    return axes.fit_axis(states.resid[A[:3], depth], states.resid[B[:2], depth], ("a", "b"), depth)


def shares_of(model, states, axis, depth=2):
    along = axis.u.expand(len(ROWS), -1)
    return decomposition.shares(read_weights(model), states, along, depth, A, B)


def contributions(model, states, axis):
    """The contributions of every head along one axis at its depth."""
    directions = (axis.u / axis.gap).expand(len(states), axis.depth, -1)
    weights, depths = read_weights(model), [axis.depth] * axis.depth
    return decomposition.head_contributions(weights, states, range(len(states)), directions, depths)


@pytest.mark.parametrize("kind", [*each_family(*SINGLE), *EACH_HYBRID])
def test_the_decomposition_closes_at_every_depth(kind: str) -> None:
    record = probe.trace(family_model(kind, torch.float64), TEXT)
    for depth in range(LAYERS + 1):
        for at in (1, len(record.tokens) - 1):
            terms = decomposition.components_by_source(record, depth, at=at)
            total = torch.cat([term.vectors for term in terms]).double().sum(0)
            hooked = record.resid_post[depth - 1, at] if depth else record.resid_pre[0, at]
            error = float((total - hooked).abs().max() / hooked.abs().max())
            closing = decomposition.closing_error(record, depth, at=at)
            assert error <= bound(kind) and closing == pytest.approx(error, abs=1e-12)


def outer_components(kind: str, depth: int) -> list[str]:
    """The components that are not heads, in the order of the forward pass."""
    family, weights = FAMILIES[kind], read_weights(family_model(kind, torch.float64))
    biased = family.embedding_norm and family.outer_biases
    expected = ["token embedding", *["position embedding"] * (family.positions == "learned")]
    expected += ["token type embedding"] * bool(family.type_table)
    expected += ["norm bias after embedding"] * bool(biased)
    for layer, block in enumerate(weights.blocks[:depth]):
        expected += [f"attention bias {layer}"] * (block.b_o is not None)
        expected += [f"norm bias after attention {layer}"] * family.norm_after_sum
        expected += [f"MLP {layer}", *[f"norm bias after MLP {layer}"] * family.norm_after_sum]
    return expected


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_shares_list_every_component_once_and_sum_to_one(kind: str) -> None:
    model = family_model(kind, torch.float64)
    for positions in ((6,), (4, 6, 9)):
        states = states_of(model, positions=positions)
        for depth in range(1, LAYERS + 1):
            shares = shares_of(model, states, axis_of(states, depth), depth)
            assert sum(share.share for share in shares) == pytest.approx(1, abs=10 * bound(kind))
            assert max(abs(share.share) for share in shares) > 0.05
            heads = [(share.layer, share.head) for share in shares if share.head is not None]
            assert heads == [(layer, head) for layer in range(depth) for head in range(4)]
            outer = [share.component for share in shares if share.head is None]
            assert outer == outer_components(kind, depth)
        # Without norms in between, components that are equal in all texts have no share.
        by_name = {share.component: share.share for share in shares}
        uncentred = kind in (*PLAIN, *WRITTEN)
        assert (by_name["token embedding"] == 0.0) == uncentred
        if "position embedding" in by_name:
            constant = uncentred and len(positions) == 1
            assert (by_name["position embedding"] == 0.0) == constant


@pytest.mark.parametrize("kind", each_family(*PLAIN))
def test_a_share_is_the_difference_of_mean_writes_over_the_gap(kind: str) -> None:
    model = family_model(kind, torch.float64)
    states = states_of(model)
    axis = axis_of(states)

    def along(vectors):
        values = vectors @ axis.u
        return values[A].mean() - values[B].mean()

    whole = along(states.resid[:, 2])
    blocks = read_weights(model).blocks
    for share in shares_of(model, states, axis):
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


def jacobian_of_the_rest(model, states, row, layer, head):
    """The map from a head's write to the read-out of one text, with the scale of every later
    norm frozen."""
    weights, config = read_weights(model), model.config
    arrived = states.z[row, layer, head] @ weights.blocks[layer].w_o[head]
    for later in range(layer, LAYERS):
        block = weights.blocks[later]
        writes = (states.z[row, later].unsqueeze(-2) @ block.w_o).squeeze(-2).sum(0)
        resid_mid = states.resid[row, later] + writes + block.b_o
        normed = blocks.norm(resid_mid, block.norm, block.norm_bias, config)
        before = normed + states.mlp_out[row, later]
        for total, gain in ((resid_mid, block.norm), (before, block.norm_mlp)):
            scale = (total.var(unbiased=False) + config.epsilon).sqrt()
            arrived = (arrived - arrived.mean()) / scale * gain
    return arrived


def test_a_write_passes_every_later_norm_with_its_scale_frozen() -> None:
    model = family_model("bert", torch.float64)
    states = states_of(model)
    axis = axis_of(states)
    by_head = contributions(model, states, axis)
    for row in (0, 7):
        for layer in range(LAYERS):
            for head in range(model.config.n_heads):
                expected = axis.effect(jacobian_of_the_rest(model, states, row, layer, head))
                torch.testing.assert_close(by_head[row, layer, head], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["gemma2", "olmo2"])
def test_a_write_passes_its_own_norm_and_no_other(kind: str) -> None:
    """RMSNorm by hand, with its scale frozen: each head's part of the addition to the stream."""
    model = family_model(kind, torch.float64)
    states = states_of(model)
    axis = axis_of(states)
    by_head = contributions(model, states, axis)
    for layer, block in enumerate(read_weights(model).blocks):
        writes = (states.z[:, layer].unsqueeze(-2) @ block.w_o).squeeze(-2)  # row head d_model
        rms = (writes.sum(1).square().mean(-1) + model.config.epsilon).sqrt()
        gain = block.norm_out + 1 if kind.startswith("gemma") else block.norm_out
        added = writes / rms[:, None, None] * gain
        torch.testing.assert_close(by_head[:, layer], axis.effect(added), rtol=0, atol=ROUNDED)


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_every_row_and_layer_is_read_along_its_own_direction_at_its_own_depth(kind: str) -> None:
    model = family_model(kind, torch.float64)
    states, weights, rows, depths = states_of(model), read_weights(model), [7, 0, 3], [1, 2]
    directions = random(3, 2, model.config.d_model)
    by_head = decomposition.head_contributions(weights, states, rows, directions, depths)
    for layer, depth in enumerate(depths):
        parts = {
            part.head: part.vectors[rows]
            for part in decomposition.components(weights, states, depth)
            if part.layer == layer
        }
        for head in range(model.config.n_heads):
            expected = (parts[head] * directions[:, layer]).sum(-1)
            torch.testing.assert_close(by_head[:, layer, head], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [*each_family(*SINGLE), *EACH_HYBRID])
def test_shares_along_one_direction_per_row_are_fractions_of_the_same_gap(kind: str) -> None:
    model = family_model(kind, torch.float64)
    states, weights = states_of(model), read_weights(model)
    directions, depth = random(len(ROWS), model.config.d_model), model.config.n_layers
    shares = decomposition.shares(weights, states, directions, depth, A, B)

    def difference(vectors):
        along = ((vectors[ROWS] - vectors[:1]) * directions).sum(-1)
        return along[: len(A)].mean() - along[len(A) :].mean()

    whole = difference(states.resid[:, depth])
    parts = decomposition.components(weights, states, depth)
    for share, part in zip(shares, parts, strict=True):
        expected = difference(part.vectors) / whole
        assert share.share == pytest.approx(expected.item(), abs=10 * bound(kind))
    assert sum(share.share for share in shares) == pytest.approx(1, abs=10 * bound(kind))
    mixers = {f"mixer {layer}" for layer in range(depth) if not model.config.has_heads(layer)}
    assert mixers <= {share.component for share in shares}


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_contributions_add_up_to_the_coordinate(kind: str) -> None:
    model = family_model(kind, torch.float64)
    record = probe.trace(model, TEXT)
    weights, states = read_weights(model), states_of(model)
    axis = axes.fit_axis(states.resid[A, 2], states.resid[B, 2], ("a", "b"), 2)
    average = decomposition.average(weights, states, A, B, depth=2)
    middle = torch.stack(list(average.values())).sum(0)
    torch.testing.assert_close(middle, axis.midpoint, rtol=0, atol=10 * bound(kind))
    read = record.resid_post[1, 6]
    for given, expected in ((average, axis.coordinate(read)), (None, axis.effect(read))):
        entries = decomposition.decompose_resid(record, 2, at=6, axis=axis, average=given)
        total = sum(entry.contribution for entry in entries)
        assert total == pytest.approx(expected.item(), abs=10 * bound(kind))


# --- the stream as words --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def record(model) -> probe.Trace:
    return probe.trace(model, "The river near the old bank")


def test_the_stream_enters_the_first_block_and_leaves_the_last(record) -> None:
    stream = decomposition.residual_stream(record, 2)
    assert stream.shape == (len(record.resid_pre) + 1, record.resid_pre.shape[-1])
    raw, token = record.weights.raw, record.tokens.ids[2]
    torch.testing.assert_close(stream[0], raw["wte.weight"][token] + raw["wpe.weight"][2])
    assert torch.equal(stream[-1], record.resid_post[-1, 2])
    assert torch.equal(stream[1], record.resid_post[0, 2])


@pytest.mark.parametrize("kind", each_family(*SINGLE))
def test_at_the_last_depth_the_lens_is_what_the_model_predicts(kind: str) -> None:
    record = probe.trace(family_model(kind, torch.float64), TEXT)
    predicted = torch.softmax(record.logits[-1], -1)
    lens = decomposition.logit_lens(record, -1)[-1]
    torch.testing.assert_close(lens, predicted, rtol=0, atol=1e-6)


def test_before_the_last_depth_the_lens_is_the_final_norm_and_the_unembedding(record) -> None:
    raw, vector = record.weights.raw, decomposition.residual_stream(record, 3)[1]
    gain, bias, epsilon = raw["ln_f.weight"], raw["ln_f.bias"], record.weights.config.epsilon
    normed = torch.nn.functional.layer_norm(vector, vector.shape, gain, bias, epsilon)
    expected = torch.softmax(raw["wte.weight"] @ normed, -1)
    lens = decomposition.logit_lens(record, 3)[1]
    torch.testing.assert_close(lens, expected, rtol=1e-4, atol=1e-6)


def test_the_nearest_tokens_are_in_the_order_of_their_cosines(model) -> None:
    table = model.weights["wte.weight"]
    (first, cosine), *_ = decomposition.nearest_tokens(model, 3 * table[7])
    assert first == 7 and cosine == pytest.approx(1)
    cosines = torch.nn.functional.cosine_similarity(table, table[7][None])
    order = [int(i) for i in cosines.argsort(descending=True) if i not in (7, 3)]
    nearest = decomposition.nearest_tokens(model, table[7], count=4, without=(7, 3))
    assert [token for token, _ in nearest] == order[:4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vector": torch.ones(5)}, "got one of shape [5], expected [32], as long as the"),
        ({"vector": torch.nan}, "it holds NaN or infinite numbers. Give finite ones."),
        ({"count": 0}, "got count = 0, expected a whole number from 1 on. Omit it for 5."),
        ({"count": 10**6}, "tokens are left. Ask for fewer."),
        ({"without": [10**6]}, "got without = [1000000], expected ids from 0 to "),
    ],
)
def test_invalid_requests_for_the_nearest_tokens_are_refused(model, options, message) -> None:
    vector = options.pop("vector", 1.0)
    vector = vector if isinstance(vector, torch.Tensor) else torch.full((32,), vector)
    with pytest.raises(probe.InputError) as error:
        decomposition.nearest_tokens(model, vector, **options)
    assert str(error.value).startswith("Cannot find the tokens near a vector: ")
    assert message in str(error.value)
