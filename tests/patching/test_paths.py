"""Every path from a sender to a receiving head, against hooked forwards edge by edge, for every family."""

import numpy as np
import pytest
import torch
from handmade import LAYERS, make_handmade, make_handmade_encoder
from hooked_runs import KINDS, Plain, bound, drawn_pair, every_edge_between, made, typed
from planted import AXIS, WAYS, flat, way_pairs
from seeds import mostly_campaign

from probe.model.weights import read_weights
from probe.patching import paths
from probe.patching import ways as whole_ways
from probe.patching.edges import EDGE


@pytest.mark.parametrize(("kind", "dtype"), typed(KINDS))
def test_every_edge_equals_hooked_forwards(kind, dtype):
    model = made(kind, dtype)
    (pair, at, positions), depth = every_edge_between(model), model.config.n_layers
    plain, every = Plain(model, pair, at), torch.eye(model.config.d_model, dtype=dtype)
    found = paths.paths(read_weights(model), pair[:1], pair[1:], every, depth=depth, positions=positions, reach=0)
    assert not found.total.isnan().any() and not found.sampled.any()
    scale = {name: float(plain.runs[0][name].abs().max()) for name in ("z", "mlp_out")}
    for side in (0, 1):
        written = [plain.written(side, edge) for edge in found.edges]
        for number, (name, _, change, toward) in enumerate(written):
            error = found.fraction[0, side, number] * (toward @ toward) - change @ toward  # divided by nothing small
            assert error.abs() <= bound(model) * scale[name] * toward.abs().sum()
        for alike in {(name, place[0]) for name, place, *_ in written}:
            numbers = [number for number, (name, place, *_) in enumerate(written) if (name, place[0]) == alike]
            for values, frozen in ((found.direct, True), (found.total, False)):
                moved = plain.moved(side, [written[number] for number in numbers], frozen=frozen)
                assert (values[0, side, numbers] - moved).abs().max() <= bound(model) * plain.scale
    assert found.total.abs().max() > 0.1 and found.fraction.abs().max() > 0.1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if any(made(kind).config.local)])
def test_nothing_comes_from_beyond_the_window_of_a_local_layer(kind):
    model = made(kind)
    pair, every = drawn_pair(model, (7, 6, 0)), torch.eye(model.config.d_model, dtype=model.dtype)
    found = paths.paths(read_weights(model), pair[:1], pair[1:], every, depth=2, positions=[-6], receivers=[0], reach=0)
    local = np.array(model.config.local)[found.edges["receiver_layer"]]
    assert local.any() and set(found.edges["channel"]) == {"key", "value"}
    for part in (found.fraction, found.total, found.direct):
        beyond = part.numpy()[:, :, local]
        assert beyond.size and np.abs(beyond).max() <= 1e-10
    assert local.all() or np.abs(found.fraction.numpy()[:, :, ~local]).max() > 1e-3


# --- known answers ---------------------------------------------------------------------------------------------------


def number_of(edges, edge):
    [number] = np.flatnonzero(edges == np.array(flat(edge), dtype=EDGE))
    return number


@pytest.mark.parametrize("seed", mostly_campaign([0, 1, 2]))
@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("make", [make_handmade, make_handmade_encoder])
def test_planted_edges_do_what_they_were_planted_for_and_no_other_does_anything(make, kind, seed):
    weights, a, b, ways = way_pairs(kind, seed, make)
    found = paths.paths(weights, a, b, AXIS, depth=LAYERS, reach=0)
    noise, denoise = (found.total[..., 0].sum(0) / found.gap.sum()).numpy() * [[-1], [1]]
    known = {number_of(found.edges, edge): does for edge, does in ways.edges.items()}
    for number, (denoises, noises) in known.items():
        assert denoise[number] == pytest.approx(denoises, abs=0.02)
        assert noise[number] == pytest.approx(noises, abs=0.02)
        expected = (denoises + noises) / 2 if found.edges["channel"][number] == "input" else 1  # neurons are a step
        assert float(found.fraction[..., number].mean()) == pytest.approx(expected, abs=0.02)
    others = np.setdiff1d(np.arange(len(found.edges)), [*known])
    assert np.abs(denoise[others]).max() < 0.02 and np.abs(noise[others]).max() < 0.02


@pytest.mark.parametrize("kind", ["two_steps", "by_neurons"])
def test_a_reader_at_the_word_writes_its_total_directly_and_a_mover_nothing(kind):
    weights, a, b, ways = way_pairs(kind)
    found = paths.paths(weights, a, b, AXIS, depth=LAYERS)
    to_mover, *_, to_reader = (number_of(found.edges, edge) for edge in ways.edges)
    assert found.direct[..., to_mover, 0].abs().max() == 0
    torch.testing.assert_close(found.direct[..., to_reader, 0], found.total[..., to_reader, 0], rtol=0, atol=0.02)


# --- what is run, and what is said -----------------------------------------------------------------------------------


def test_totals_are_run_where_an_edge_could_reach_enough_and_for_a_sample_of_the_others():
    weights, a, b, ways = way_pairs("two_steps")
    every = paths.paths(weights, a, b, AXIS, depth=LAYERS, reach=0)
    some, again = (paths.paths(weights, a, b, AXIS, depth=LAYERS, sample=50, seed=3) for _ in range(2))
    run = ~some.total[0, 0, :, 0].isnan().numpy()
    assert run[[number_of(some.edges, edge) for edge in ways.edges]].all()
    assert some.sampled.sum() == 50 and run[some.sampled].all() and 50 + len(ways.edges) <= run.sum() < len(run) / 2
    assert np.array_equal(some.sampled, again.sampled)
    torch.testing.assert_close(some.total[:, :, run], every.total[:, :, run], rtol=0, atol=1e-5)
    share = (every.total[..., 0] / every.gap.mean()).abs().mean((0, 1)).numpy()
    assert share[~run].max() < paths.REACH and share[some.sampled].max() < paths.REACH


def test_totals_are_run_for_at_most_so_many_edges_those_that_could_reach_most():
    weights, a, b, ways = way_pairs("two_steps")
    found = paths.paths(weights, a, b, AXIS, depth=LAYERS, most=2, sample=0)
    run = np.flatnonzero(~found.total[0, 0, :, 0].isnan().numpy())
    assert run.tolist() == sorted(number_of(found.edges, edge) for edge in ways.edges)
    assert found.swapped.shape == (len(a), 2, LAYERS, weights.shape[1] + 1, 3)


def test_totals_of_given_edges_are_those_of_all_paths():
    weights, a, b, _ = way_pairs("two_steps")
    a, b = a[:3], b[:3]
    every = paths.paths(weights, a, b, AXIS, depth=LAYERS, reach=0)
    some = np.random.default_rng(0).choice(len(every.edges), 40, replace=False)
    moved = paths.total_effects(weights, a, b, AXIS, every.edges[some], depth=LAYERS)
    torch.testing.assert_close(moved, every.total[:, :, some], rtol=0, atol=1e-5)


def test_paths_and_ways_are_read_along_directions_of_each_pair():
    weights, a, b, planted = way_pairs("two_steps")
    a, b = a[:2], b[:2]
    own = AXIS * torch.tensor([1.0, 3.0])[:, None, None]
    found = paths.paths(weights, a, b, own, depth=LAYERS, sample=0)
    assert float(found.gap[1, 0] / found.gap[0, 0]) == pytest.approx(3, abs=0.1)
    numbers = [number_of(found.edges, edge) for edge in planted.edges]
    assert found.share("total")[numbers] == pytest.approx([1, 1], abs=0.02)
    result = whole_ways.ways(weights, a, b, own, found, depth=LAYERS, least=0.02, draws=5)
    assert result.shares == pytest.approx([1], abs=0.02) and len(result.random) == 5


def test_rows_are_means_and_shares_of_the_gap():
    weights, a, b, ways = way_pairs("two_steps")
    found = paths.paths(weights, a, b, AXIS, depth=LAYERS, receivers=[0], sample=5)
    rows = found.rows()
    assert len(rows) == (~found.total[0, 0, :, 0].isnan()).sum() < len(found.rows(only_run=False)) == len(found.edges)
    assert {row["receiver_pos"] for row in rows} == {0} and sum(row["sampled"] for row in rows) == 5
    mover, reader = ((head.layer, head.head) for head in ways.heads)
    [row] = [
        row
        for row in rows
        if (row["sender_layer"], row["sender_head"]) == mover
        and (row["receiver_layer"], row["receiver_head"]) == reader
        and row["sender_pos"] == -1
        and row["channel"] == "value"
    ]
    assert row["fraction"] == pytest.approx(1, abs=0.01)
    assert row["total"] == pytest.approx(1, abs=0.02) and row["direct"] == pytest.approx(1, abs=0.02)
