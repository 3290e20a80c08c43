"""Whole ways: sets of edges patched at once against hooked forwards, and planted ways found, each with its share."""

import numpy as np
import pytest
import torch
from handmade import LAYERS
from hooked_runs import KINDS, Plain, bound, every_edge_between, made, put, read_all, typed
from planted import AXIS, CUE, WAYS, flat, way_pairs
from seeds import mostly_campaign

from probe.model.weights import read_weights
from probe.patching import edges, live, paths, ways

TOGETHER = {"two_ways": 2, "either_way": 2}  # ways of which each has half, either because they add up or because one
# alone is enough to make the first sense and both are needed to make the second; elsewhere there is one way


def kept_pair(model):
    pair, at, positions = every_edge_between(model)
    weights, depth = read_weights(model), model.config.n_layers
    both = live.keep(weights, [text.ids for text in pair], at, depth)
    return pair, both, edges.edges_of(weights, depth, positions, positions, mlps=True)


@pytest.mark.parametrize(("kind", "dtype"), typed(KINDS))
def test_all_edges_together_are_the_donors_run(kind, dtype):
    model = made(kind, dtype)
    _, both, every = kept_pair(model)
    with torch.inference_mode():
        moved = ways.patch_edges(both, every, torch.eye(model.config.d_model, dtype=dtype))
        none = ways.patch_edges(both, every[:0], torch.eye(model.config.d_model, dtype=dtype))
    final = both.final[:, both.at]
    assert (moved - (final.roll(1, 0) - final)).abs().max() <= bound(model) * final.abs().max()
    assert none.abs().max() == 0 and moved.abs().max() > 0.1


def chain_of(every, rng):
    """Random edges one behind the other, from the cue's embeddings to a head at the word."""
    starts = np.flatnonzero(
        (every["sender_layer"] == edges.EMBEDDING) & (every["sender_pos"] == every["sender_pos"][0])
    )
    while True:
        chain = [every[rng.choice(starts)]]
        while True:
            node = edges.receiver_of(chain[-1])
            if node[2] == 0 and node[1] >= 0 and len(chain) > 1:
                return np.array(chain)
            behind = [edge for edge in every if edges.sender_of(edge) == node]
            if not behind:
                break
            chain.append(behind[rng.integers(len(behind))])


@pytest.mark.parametrize(("kind", "dtype"), typed(KINDS))
def test_a_way_is_its_steps_one_after_the_other(kind, dtype):
    """Each step a hooked forward of its own; the last one's z is read with every other head at the word held."""
    model, rng = made(kind, dtype), np.random.default_rng(0)
    pair, both, every = kept_pair(model)
    plain, at, directions = Plain(model, pair, both.at), both.at, torch.eye(model.config.d_model, dtype=dtype)
    largest = 0.0
    for _ in range(12):
        chain = chain_of(every, rng)
        with torch.inference_mode():
            found = ways.patch_edges(both, chain, directions, [edges.receiver_of(chain[-1])])
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
    assert largest > 0.001


@pytest.mark.parametrize("seed", mostly_campaign([0, 1]))
@pytest.mark.parametrize("kind", WAYS)
def test_planted_ways_are_found_whole(kind, seed):
    weights, a, b, planted = way_pairs(kind, seed)
    found = paths.paths(weights, a, b, AXIS, depth=LAYERS)
    result = ways.ways(weights, a, b, AXIS, found, depth=LAYERS, least=0.02)
    wanted = {flat(edge) for edge in planted.edges if edge[2] != (2, -1)}  # the neurons at the word are live, not on it
    union = {number for way in result.ways for number in way}
    assert {found.edges[number].tolist() for number in union} == wanted
    count = TOGETHER.get(kind, 1)
    assert result.shares == pytest.approx([1 / count] * count, abs=0.02)
    assert result.together == pytest.approx(1, abs=0.02) and result.kept == pytest.approx(1, abs=0.02)
    assert result.smallest == tuple(sorted(union))
    assert np.quantile(result.random, 0.95) < 0.02
    for way in result.ways:
        assert found.edges[way[0]].tolist()[:2] == CUE and found.edges[way[-1]]["receiver_pos"] == 0


def test_what_no_way_carries_is_not_carried():
    weights, a, b, _ = way_pairs("two_steps")
    found = paths.paths(weights, a, b, AXIS, depth=LAYERS)
    result = ways.ways(weights, a, b, AXIS, found, depth=LAYERS, least=2.0)
    assert result.ways == () and result.together == 0 and result.smallest is None and len(result.random) == 0


def test_edges_that_are_not_needed_are_taken_out():
    worth = {0: 0.5, 1: 0.02, 2: 0.45, 3: 0.0, 4: 0.03}
    assert ways._smallest(tuple(worth), lambda numbers: sum(worth[number] for number in numbers)) == (0, 2)


def test_random_sets_have_as_many_edges_into_each_layer():
    _, _, every = kept_pair(made("random GPT-2"))
    numbers = tuple(np.flatnonzero(every["receiver_layer"] > 0)[::200].tolist())
    drawn = [*ways._matched(every, numbers, ways.RANDOM_SETS, 0)]
    counts = np.bincount(every["receiver_layer"][[*numbers]], minlength=3)
    assert len(drawn) == ways.RANDOM_SETS and len(set(drawn)) > ways.RANDOM_SETS / 2
    for some in drawn:
        assert len(set(some)) == len(some) and set(some) != set(numbers)
        assert np.bincount(every["receiver_layer"][[*some]], minlength=3).tolist() == counts.tolist()
