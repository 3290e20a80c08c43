"""Every edge from a sender to a receiver compared with hooked forwards, sets of edges patched at
once, and planted paths that are found.
"""

import numpy as np
import pytest
import torch
from handmade import LAYERS, make_handmade, make_handmade_encoder
from hooked_runs import (
    EACH,
    Plain,
    bound,
    drawn_pair,
    every_direction,
    every_edge_between,
    made,
    put,
    read_all,
    typed,
)
from planted import AXIS, CUE, PATH_KINDS, flat, path_pairs
from seeds import mostly_campaign

from probe.errors import InputError
from probe.model.load import read_weights
from probe.patching import edges, paths
from probe.patching.edges import EDGE_DTYPE
from probe.patching.pair import cache_pair

TOGETHER = {
    "two_ways": 2,
    "either_way": 2,
}  # of these paths, each carries half: either they add up, or each alone is enough for the first
# sense and both are necessary for the second; all other models have a single path


@pytest.mark.parametrize(("kind", "dtype"), typed())
def test_every_edge_equals_hooked_forwards(kind, dtype):
    model = made(kind, dtype)
    (pair, at, positions), depth = every_edge_between(model), model.config.n_layers
    plain, every, weights = Plain(model, pair, at), every_direction(model), read_weights(model)
    found = edges.edges(
        weights, pair[:1], pair[1:], every, depth=depth, positions=positions, reach=0
    )
    assert not found.total.isnan().any() and not found.sampled.any()
    scale = {name: float(plain.runs[0][name].abs().max()) for name in ("z", "mlp_out")}
    relative = bound(model)
    for side in (0, 1):
        plain.run_senders(side, found.edges)
        written = [plain.written(side, edge) for edge in found.edges]
        for number, (name, _, change, toward) in enumerate(written):
            error = (
                found.fraction[0, side, number] * (toward @ toward) - change @ toward
            )  # avoids division by small numbers
            assert error.abs() <= relative * scale[name] * toward.abs().sum()
        for alike in {(name, place[0]) for name, place, *_ in written}:
            numbers = [
                number
                for number, (name, place, *_) in enumerate(written)
                if (name, place[0]) == alike
            ]
            for values, frozen in ((found.direct, True), (found.total, False)):
                moved = plain.moved(side, [written[number] for number in numbers], frozen=frozen)
                assert (values[0, side, numbers] - moved).abs().max() <= relative * plain.scale
    assert found.total.abs().max() > 0.1 and found.fraction.abs().max() > 0.1


@pytest.mark.parametrize("kind", EACH)
def test_nothing_comes_from_beyond_the_window_of_a_local_layer(kind):
    model = made(kind)
    if not any(model.config.local):
        pytest.skip("it has no local layer")
    pair, every, weights = drawn_pair(model, (7, 6, 0)), every_direction(model), read_weights(model)
    found = edges.edges(
        weights, pair[:1], pair[1:], every, depth=2, positions=[-6], receivers=[0], reach=0
    )
    local = np.array(model.config.local)[found.edges["receiver_layer"]]
    assert local.any() and set(found.edges["channel"]) == {"key", "value"}
    for part in (found.fraction, found.total, found.direct):
        beyond = part.numpy()[:, :, local]
        assert beyond.size and np.abs(beyond).max() <= 1e-10
    assert local.all() or np.abs(found.fraction.numpy()[:, :, ~local]).max() > 1e-3


# --- sets of edges --------------------------------------------------------------------------------


def kept_pair(model):
    pair, at, positions = every_edge_between(model)
    weights, depth = read_weights(model), model.config.n_layers
    both = cache_pair(weights, [text.ids for text in pair], at, depth)
    return pair, both, edges.edges_of(weights, depth, positions, positions, mlps=True)


@pytest.mark.parametrize(("kind", "dtype"), typed())
def test_all_edges_together_are_the_donors_run(kind, dtype):
    model = made(kind, dtype)
    _, both, every = kept_pair(model)
    with torch.inference_mode():
        moved, none = paths.patch_edges(both, [every, every[:0]], every_direction(model))
    final = both.final[:, both.at]
    most = bound(model) * final.abs().max()
    assert (moved - (final.roll(1, 0) - final)).abs().max() <= most
    assert none.abs().max() <= most and moved.abs().max() > 0.1


def chain_of(every, rng):
    """A chain of random edges from the cue's embeddings to a head at the word."""
    first = (every["sender_layer"] == edges.EMBEDDING) & (
        every["sender_pos"] == every["sender_pos"][0]
    )
    while True:
        chain = [rng.choice(every[first])]
        while True:
            node = paths.receiver_of(chain[-1])
            if node[2] == 0 and node[1] >= 0 and len(chain) > 1:
                return np.array(chain)
            behind = [edge for edge in every if paths.sender_of(edge) == node]
            if not behind:
                break
            chain.append(behind[rng.integers(len(behind))])


@pytest.mark.parametrize(("kind", "dtype"), typed())
def test_a_path_is_its_steps_one_after_the_other(kind, dtype):
    """Each step is a separate hooked forward; the last one's z is read with every other head at
    the word frozen.
    """
    # With this seed one of the chains moves the stream in every family, also in Nemotron's wide one.
    model, rng, largest = made(kind, dtype), np.random.default_rng(2), 0.0
    pair, both, every = kept_pair(model)
    plain, at = Plain(model, pair, both.at), both.at
    for _ in range(6):
        chain = chain_of(every, rng)
        with torch.inference_mode():
            (found,) = paths.patch_edges(
                both, [chain], every_direction(model), [paths.receiver_of(chain[-1])]
            )
        for side in (0, 1):
            change, own = None, plain.runs[side]
            for edge in chain:
                _, (layer, *place), change, _ = plain.written(side, edge, change)
            held = own["z"][:, at].clone()
            held[layer, place[1]] += change
            edits = [(number, "z", put(at, z)) for number, z in enumerate(held)]
            moved = read_all(model, plain.ids[side], ["resid_post"], edits)["resid_post"][-1, at]
            moved = moved - own["resid_post"][-1, at]
            assert (found[side] - moved).abs().max() <= bound(model) * plain.scale
            largest = max(largest, float(moved.abs().max()))
    assert largest > 0.001 and largest > 100 * bound(model) * plain.scale


# --- known answers --------------------------------------------------------------------------------


def planted(kind, seed=0, make=make_handmade):
    """The weights, some pairs of each frame, and the paths of a model."""
    weights, a, b, made = path_pairs(kind, seed, make)
    return weights, a[::3], b[::3], made


def number_of(every, edge):
    [number] = np.flatnonzero(every == np.array(flat(edge), dtype=EDGE_DTYPE))
    return number


# How close a planted effect is to its intended value. Random heads disturb it, and in an encoder
# every sum passes through a norm, which adds up to 2.5 % over these seeds.
MAKERS = [(make_handmade, 0.02), pytest.param(make_handmade_encoder, 0.03, marks=pytest.mark.slow)]


@pytest.mark.parametrize("seed", mostly_campaign([0, 1, 2]))
@pytest.mark.parametrize("kind", PATH_KINDS)
@pytest.mark.parametrize(("make", "bound"), MAKERS)
def test_planted_edges_do_what_they_were_planted_for_and_no_other_does_anything(
    make, bound, kind, seed
):
    weights, a, b, made = planted(kind, seed, make)
    found = edges.edges(weights, a, b, AXIS, depth=LAYERS, reach=0)
    noise, denoise = (found.total[..., 0].sum(0) / found.gap.sum()).numpy() * [[-1], [1]]
    known = {number_of(found.edges, edge): does for edge, does in made.edges.items()}
    for number, (denoises, noises) in known.items():
        assert denoise[number] == pytest.approx(denoises, abs=bound)
        assert noise[number] == pytest.approx(noises, abs=bound)
        expected = (
            (denoises + noises) / 2 if found.edges["channel"][number] == "input" else 1
        )  # neurons are a step
        assert float(found.fraction[..., number].mean()) == pytest.approx(expected, abs=bound)
    others = np.setdiff1d(np.arange(len(found.edges)), [*known])
    assert np.abs(denoise[others]).max() < bound and np.abs(noise[others]).max() < bound


@pytest.mark.parametrize("seed", mostly_campaign([0, 1]))
@pytest.mark.parametrize("kind", PATH_KINDS)
def test_planted_ways_are_found_whole(kind, seed):
    weights, a, b, made = planted(kind, seed)
    found = edges.edges(weights, a, b, AXIS, depth=LAYERS)
    result = paths.paths(weights, a, b, AXIS, found, depth=LAYERS, least=0.02, draws=40)
    wanted = {
        flat(edge) for edge in made.edges if edge[2] != (2, -1)
    }  # the neurons at the word are live and not part of the path
    union = {number for way in result.paths for number in way}
    assert {found.edges[number].tolist() for number in union} == wanted
    count = TOGETHER.get(kind, 1)
    assert result.shares == pytest.approx([1 / count] * count, abs=0.02)
    assert result.together == pytest.approx(1, abs=0.02) and result.circuit_share == pytest.approx(
        1, abs=0.02
    )
    assert result.circuit == tuple(sorted(union))
    assert np.quantile(result.random_shares, 0.95) < 0.02
    for way in result.paths:
        assert found.edges[way[0]].tolist()[:2] == CUE and found.edges[way[-1]]["receiver_pos"] == 0


@pytest.mark.parametrize("kind", ["two_steps", "by_neurons"])
def test_a_reader_at_the_word_writes_its_total_directly_and_a_mover_nothing(kind):
    weights, a, b, made = planted(kind)
    found = edges.edges(weights, a, b, AXIS, depth=LAYERS)
    to_mover, *_, to_reader = (number_of(found.edges, edge) for edge in made.edges)
    assert found.direct[..., to_mover, 0].abs().max() == 0
    torch.testing.assert_close(
        found.direct[..., to_reader, 0], found.total[..., to_reader, 0], rtol=0, atol=0.02
    )


# --- which totals are run, and the summary --------------------------------------------------------


@pytest.fixture(scope="module")
def two_steps():
    """The pairs of two planted steps, their edges, and every path between them."""
    weights, a, b, made = planted("two_steps")
    return (weights, a, b, AXIS), made, edges.edges(weights, a, b, AXIS, depth=LAYERS, reach=0)


def were_run(found):
    return ~found.total[0, 0, :, 0].isnan().numpy()


def test_totals_are_run_where_an_edge_could_reach_enough_and_for_a_sample_of_the_others(two_steps):
    given, made, every = two_steps
    some, again = (edges.edges(*given, depth=LAYERS, sample=50, seed=3) for _ in range(2))
    run = were_run(some)
    assert run[[number_of(some.edges, edge) for edge in made.edges]].all()
    assert (
        some.sampled.sum() == 50
        and run[some.sampled].all()
        and 50 + len(made.edges) <= run.sum() < len(run) / 2
    )
    assert np.array_equal(some.sampled, again.sampled)
    torch.testing.assert_close(some.total[:, :, run], every.total[:, :, run], rtol=0, atol=1e-5)
    share = (every.total[..., 0] / every.gap.mean()).abs().mean((0, 1)).numpy()
    assert share[~run].max() < edges.REACH and share[some.sampled].max() < edges.REACH
    few = edges.edges(*given, depth=LAYERS, most=2, sample=0)  # the edges that could reach most
    assert np.flatnonzero(were_run(few)).tolist() == sorted(
        number_of(few.edges, edge) for edge in made.edges
    )
    assert few.swapped.shape == (len(given[1]), 2, LAYERS, given[0].shape[1] + 1, 3)


def test_totals_of_given_edges_are_those_of_all_edges(two_steps):
    given, _, every = two_steps
    some = np.random.default_rng(0).choice(len(every.edges), 40, replace=False)
    moved = edges.total_effects(*given, every.edges[some], depth=LAYERS)
    torch.testing.assert_close(moved, every.total[:, :, some], rtol=0, atol=1e-5)


def test_pairs_that_are_run_together_have_the_totals_of_each_pair_alone(two_steps):
    (weights, a, b, _), _, every = two_steps
    own = AXIS * torch.linspace(1, 2, len(a))[:, None, None]
    some = every.edges[::50]
    for both_ways in (True, False):
        options = {"depth": LAYERS, "both_ways": both_ways}
        together = edges.total_effects(weights, a, b, own, some, **options)
        for pair in range(len(a)):
            alone = slice(pair, pair + 1)
            by_itself = edges.total_effects(
                weights, a[alone], b[alone], own[alone], some, **options
            )
            torch.testing.assert_close(together[alone], by_itself, rtol=0, atol=1e-5)


def test_paths_and_ways_are_read_along_directions_of_each_pair(two_steps):
    (weights, a, b, _), made, _ = two_steps
    own = AXIS * torch.tensor([1.0, 3.0])[:, None, None]
    given = weights, a[:2], b[:2], own
    found = edges.edges(*given, depth=LAYERS, sample=0)
    assert float(found.gap[1, 0] / found.gap[0, 0]) == pytest.approx(3, abs=0.1)
    numbers = [number_of(found.edges, edge) for edge in made.edges]
    assert found.share("total")[numbers] == pytest.approx([1, 1], abs=0.02)
    result = paths.paths(*given, found, depth=LAYERS, least=0.02, draws=5)
    assert result.shares == pytest.approx([1], abs=0.02) and len(result.random_shares) == 5


def test_rows_are_means_and_shares_of_the_gap(two_steps):
    given, made, _ = two_steps
    found = edges.edges(*given, depth=LAYERS, receivers=[0], sample=5)
    rows = found.rows()
    assert len(rows) == were_run(found).sum() < len(found.rows(only_run=False)) == len(found.edges)
    assert {row["receiver_pos"] for row in rows} == {0} and sum(row["sampled"] for row in rows) == 5
    [reads] = [flat(edge) for edge in made.edges if edge[3] == 0]
    [row] = [row for row in rows if tuple(row[name] for name in EDGE_DTYPE.names) == reads]
    assert row["fraction"] == pytest.approx(1, abs=0.01)
    assert row["total"] == pytest.approx(1, abs=0.02) and row["direct"] == pytest.approx(
        1, abs=0.02
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("total", 5), "got direction 5, expected 0 to 0. Give one of these."),
        (("total", -1), "got direction -1, expected 0 to 0. Give one of these."),
        (("fraction",), "got 'fraction', expected 'direct' or 'total'. Give one of these."),
    ],
)
def test_shares_that_are_not_there_are_told(two_steps, asked, said):
    _, _, every = two_steps
    with pytest.raises(InputError) as error:
        every.share(*asked)
    assert str(error.value) == f"Cannot read shares of edges: {said}"


def test_no_edge_leads_back_in_a_model_that_reads_left_to_right(two_steps):
    given, _, _ = two_steps
    with pytest.raises(InputError) as error:
        edges.edges(*given, depth=LAYERS, positions=[0], receivers=[-1])
    assert str(error.value) == (
        "Cannot measure edges: got senders at [0] and receivers at [-1], counted from the word, expected "
        "a receiver that is not before every sender. Give others."
    )


def test_what_no_path_carries_is_not_carried(two_steps):
    given, _, every = two_steps
    result = paths.paths(*given, every, depth=LAYERS, least=2.0)
    assert (
        result.paths == ()
        and result.together == 0
        and result.circuit is None
        and len(result.random_shares) == 0
    )


def test_edges_that_are_not_needed_are_taken_out():
    worth = {0: 0.5, 1: 0.02, 2: 0.45, 3: 0.0, 4: 0.03}

    def shares(sets):
        return [sum(worth[number] for number in numbers) for numbers in sets]

    assert paths._minimal_set(tuple(worth), shares) == (0, 2)


def test_random_sets_have_as_many_edges_into_each_layer():
    _, _, every = kept_pair(made("random GPT-2"))
    numbers = tuple(np.flatnonzero(every["receiver_layer"] > 0)[::200].tolist())
    drawn = [*paths._matched(every, numbers, paths.RANDOM_SETS, 0)]
    counts = np.bincount(every["receiver_layer"][[*numbers]], minlength=3)
    assert len(drawn) == paths.RANDOM_SETS and len(set(drawn)) > paths.RANDOM_SETS / 2
    for some in drawn:
        assert len(set(some)) == len(some) and set(some) != set(numbers)
        assert (
            np.bincount(every["receiver_layer"][[*some]], minlength=3).tolist() == counts.tolist()
        )
