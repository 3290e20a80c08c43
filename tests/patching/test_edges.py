"""Every edge from a sender to a receiver compared with hooked forwards, and planted edges that are
found.
"""

import numpy as np
import pytest
import torch
from families import family_model
from handmade import LAYERS, make_handmade, make_handmade_encoder
from hooked_runs import (
    EACH,
    Plain,
    bound,
    drawn_pair,
    every_direction,
    every_edge_between,
)
from inside import EDGE_DTYPE, edges
from planted import AXIS, PATH_KINDS, flat, path_pairs
from seeds import mostly_campaign

import probe


@pytest.mark.parametrize("kind", [*EACH, "gpt2 in float32"])
def test_every_edge_equals_hooked_forwards(kind):
    family, _, single = kind.partition(" in ")
    model = family_model(family, torch.float32 if single else torch.float64)
    pair, at, positions = every_edge_between(model)
    assert_edges_equal_hooked_forwards(model, pair, at, positions, positions)


@pytest.mark.parametrize("receiver", [-4, -3, 4])
def test_edges_equal_hooked_forwards_in_a_text_longer_than_a_window_on_both_sides(receiver):
    """The receiver is the first token, whose window ends before the text does, the second one, or
    the last one, whose window begins after the text does.
    """
    model = family_model("modernbert", torch.float64)
    pair = drawn_pair(model, (9, 4, 2))
    assert any(model.config.local) and model.config.window < 8
    assert_edges_equal_hooked_forwards(model, pair, 4, [-4, -2, 2, 4], [receiver])


def assert_edges_equal_hooked_forwards(model, pair, at, senders, receivers):
    plain, directions = Plain(model, pair, at), every_direction(model)
    options = {"depth": model.config.n_layers, "positions": senders, "receivers": receivers}
    result = probe.edges(model, pair[:1], pair[1:], directions, **options, reach=0)
    assert not result.total.isnan().any() and not result.sampled.any()
    scale = {name: float(plain.runs[0][name].abs().max()) for name in ("z", "mlp_out")}
    relative = bound(model)
    for side in (0, 1):
        plain.run_senders(side, result.edges)
        writes = [plain.receiver_response(side, edge) for edge in result.edges]
        for number, (name, _, change, toward) in enumerate(writes):
            error = (
                result.fraction[0, side, number] * (toward @ toward) - change @ toward
            )  # avoids division by small numbers
            assert error.abs() <= relative * scale[name] * toward.abs().sum()
        for alike in {(name, site[0]) for name, site, *_ in writes}:
            numbers = [
                number for number, (name, site, *_) in enumerate(writes) if (name, site[0]) == alike
            ]
            for values, frozen in ((result.direct, True), (result.total, False)):
                changes = plain.shifts_of(
                    side, [writes[number] for number in numbers], frozen=frozen
                )
                assert (values[0, side, numbers] - changes).abs().max() <= relative * plain.scale
    assert result.total.abs().max() > 0.1 and result.fraction.abs().max() > 0.1


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text"])
def test_nothing_comes_from_beyond_the_window_of_a_local_layer(kind):
    model = family_model(kind, torch.float64)
    (a, b), directions = drawn_pair(model, (7, 6, 0)), every_direction(model)
    options = {"depth": 2, "positions": [-6], "receivers": [0], "reach": 0}
    result = probe.edges(model, [a], [b], directions, **options)
    local = np.array(model.config.local)[result.edges["receiver_layer"]]
    assert local.any() and set(result.edges["channel"]) == {"key", "value"}
    for part in (result.fraction, result.total, result.direct):
        beyond = part.numpy()[:, :, local]
        assert beyond.size and np.abs(beyond).max() <= 1e-10
    assert local.all() or np.abs(result.fraction.numpy()[:, :, ~local]).max() > 1e-3


# --- known answers --------------------------------------------------------------------------------


def planted(kind, seed=0, make=make_handmade):
    """The weights, some pairs of each frame, and the planted edges of a model."""
    weights, a, b, truth = path_pairs(kind, seed, make)
    return weights, a[::3], b[::3], truth


def number_of(all_edges, edge):
    [number] = np.flatnonzero(all_edges == np.array(flat(edge), dtype=EDGE_DTYPE))
    return number


# How close a planted effect is to its intended value. Random heads disturb it, and in an encoder
# every sum passes through a norm, which adds up to 2.5 % over these seeds.
PLANTED = [(make_handmade, 0.02, kind) for kind in PATH_KINDS]
PLANTED += mostly_campaign([(make_handmade_encoder, 0.03, kind) for kind in PATH_KINDS], here=2)


@pytest.mark.parametrize("seed", mostly_campaign([0, 1, 2]))
@pytest.mark.parametrize(("make", "bound", "kind"), PLANTED)
def test_planted_edges_do_what_they_were_planted_for_and_no_other_does_anything(
    make, bound, kind, seed
):
    weights, a, b, truth = planted(kind, seed, make)
    result = probe.edges(weights, a, b, AXIS, depth=LAYERS, reach=0)
    noise, denoise = (result.total[..., 0].sum(0) / result.gap.sum()).numpy() * [[-1], [1]]
    planted_effects = {number_of(result.edges, edge): does for edge, does in truth.edges.items()}
    for number, (denoises, noises) in planted_effects.items():
        assert denoise[number] == pytest.approx(denoises, abs=bound)
        assert noise[number] == pytest.approx(noises, abs=bound)
        expected = (
            (denoises + noises) / 2 if result.edges["channel"][number] == "input" else 1
        )  # neurons are a step
        assert float(result.fraction[..., number].mean()) == pytest.approx(expected, abs=bound)
    unplanted = np.setdiff1d(np.arange(len(result.edges)), [*planted_effects])
    assert np.abs(denoise[unplanted]).max() < bound and np.abs(noise[unplanted]).max() < bound


@pytest.mark.parametrize("kind", ["two_steps", "by_neurons"])
def test_a_reader_at_the_word_writes_its_total_directly_and_a_mover_nothing(kind):
    weights, a, b, truth = planted(kind)
    result = probe.edges(weights, a, b, AXIS, depth=LAYERS)
    to_mover, *_, to_reader = (number_of(result.edges, edge) for edge in truth.edges)
    assert result.direct[..., to_mover, 0].abs().max() == 0
    torch.testing.assert_close(
        result.direct[..., to_reader, 0], result.total[..., to_reader, 0], rtol=0, atol=0.02
    )


# --- which totals are run, and the summary --------------------------------------------------------


@pytest.fixture(scope="module")
def two_steps():
    """The pairs of two planted steps, the planted edges, and every edge that was measured."""
    weights, a, b, truth = planted("two_steps")
    return (weights, a, b, AXIS), truth, probe.edges(weights, a, b, AXIS, depth=LAYERS, reach=0)


def were_run(result):
    return ~result.total[0, 0, :, 0].isnan().numpy()


def test_totals_are_run_for_edges_that_could_reach_enough_and_for_a_sample_of_the_others(two_steps):
    inputs, truth, complete = two_steps
    sample, again = (probe.edges(*inputs, depth=LAYERS, sample=50, seed=3) for _ in range(2))
    run = were_run(sample)
    assert run[[number_of(sample.edges, edge) for edge in truth.edges]].all()
    assert (
        sample.sampled.sum() == 50
        and run[sample.sampled].all()
        and 50 + len(truth.edges) <= run.sum() < len(run) / 2
    )
    assert np.array_equal(sample.sampled, again.sampled)
    torch.testing.assert_close(
        sample.total[:, :, run], complete.total[:, :, run], rtol=0, atol=1e-5
    )
    share = (complete.total[..., 0] / complete.gap.mean()).abs().mean((0, 1)).numpy()
    assert share[~run].max() < edges.REACH and share[sample.sampled].max() < edges.REACH
    # Only the edges that could reach most.
    strongest = probe.edges(*inputs, depth=LAYERS, limit=2, sample=0)
    assert np.flatnonzero(were_run(strongest)).tolist() == sorted(
        number_of(strongest.edges, edge) for edge in truth.edges
    )
    assert strongest.receiver_shift.shape == (len(inputs[1]), 2, LAYERS, inputs[0].shape[1] + 1, 3)


def test_totals_of_given_edges_are_those_of_all_edges(two_steps):
    inputs, _, complete = two_steps
    numbers = np.random.default_rng(0).choice(len(complete.edges), 40, replace=False)
    effects = edges.total_effects(*inputs, complete.edges[numbers], depth=LAYERS)
    torch.testing.assert_close(effects, complete.total[:, :, numbers], rtol=0, atol=1e-5)


def test_pairs_that_are_run_together_have_the_totals_of_each_pair_alone(two_steps):
    (weights, a, b, _), _, every_edge = two_steps
    by_pair = AXIS * torch.linspace(1, 2, len(a))[:, None, None]
    sampled_edges = every_edge.edges[::50]
    for both_ways in (True, False):
        options = {"depth": LAYERS, "both_ways": both_ways}
        together = edges.total_effects(weights, a, b, by_pair, sampled_edges, **options)
        for pair in range(len(a)):
            single = slice(pair, pair + 1)
            separately = edges.total_effects(
                weights, a[single], b[single], by_pair[single], sampled_edges, **options
            )
            torch.testing.assert_close(together[single], separately, rtol=0, atol=1e-5)


def test_edges_are_read_along_directions_of_each_pair(two_steps):
    (weights, a, b, _), truth, _ = two_steps
    by_pair = AXIS * torch.tensor([1.0, 3.0])[:, None, None]
    inputs = weights, a[:2], b[:2], by_pair
    by_edge = probe.edges(*inputs, depth=LAYERS, sample=0)
    assert float(by_edge.gap[1, 0] / by_edge.gap[0, 0]) == pytest.approx(3, abs=0.1)
    numbers = [number_of(by_edge.edges, edge) for edge in truth.edges]
    assert by_edge.share("total")[numbers] == pytest.approx([1, 1], abs=0.02)


def test_rows_are_means_and_shares_of_the_gap(two_steps):
    inputs, truth, _ = two_steps
    result = probe.edges(*inputs, depth=LAYERS, receivers=[0], sample=5)
    rows = result.rows()
    assert (
        len(rows) == were_run(result).sum() < len(result.rows(only_run=False)) == len(result.edges)
    )
    assert {row["receiver_pos"] for row in rows} == {0} and sum(row["sampled"] for row in rows) == 5
    [reads] = [flat(edge) for edge in truth.edges if edge[3] == 0]
    [row] = [row for row in rows if tuple(row[name] for name in EDGE_DTYPE.names) == reads]
    assert row["fraction"] == pytest.approx(1, abs=0.01)
    assert row["total"] == pytest.approx(1, abs=0.02) and row["direct"] == pytest.approx(
        1, abs=0.02
    )
