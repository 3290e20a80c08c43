"""Where a head looks, what it carries and what is lost without it, on models whose answer is known; effects by
distance.
"""

import numpy as np
import pytest
import torch
from handmade import HEADS, LAYERS, WORD, corpus_of, make_sentences, random_model, resolver_model

from probe.model import forward
from probe.model.weights import read_weights
from probe.patching import routes, swaps
from probe.patching.effects import Effects
from probe.study.material import prepare
from probe.study.word import StudyOptions, study_word

SENTENCES = make_sentences(cues=16)


@pytest.fixture(scope="module", params=[0, 1, 2, 3])
def planted(request):
    """The routes of a model in which one head resolves, and that head's place."""
    model, place = resolver_model(request.param)
    result = study_word(model, prepare(model, corpus_of(SENTENCES), WORD), StudyOptions(request.param, 64, 99))
    return result.pairs[0].routes, place


def test_a_resolver_carries_the_sense_and_looks_where_it_always_looks(planted):
    found, place = planted
    assert found.values_only[place] == pytest.approx(1, abs=0.02)
    assert found.pattern_only[place] == pytest.approx(0, abs=0.02)


def test_without_it_the_whole_gap_is_lost(planted):
    found, place = planted
    assert found.ablation[place] == pytest.approx(1, abs=0.02)


def test_no_other_head_has_a_route(planted):
    found, place = planted
    for values in (found.pattern_only, found.values_only, found.ablation):
        others = values.copy()
        others[place] = 0
        assert values.shape == (LAYERS, HEADS)
        assert np.abs(others).max() < 0.02


def test_without_aligned_pairs_only_ablation_is_measured():
    model, place = resolver_model(0)
    rows = [sentence for sentence in SENTENCES if sentence.pair is not None]
    alone = [type(row)(**{**vars(row), "pair": None}) for row in rows]
    result = study_word(model, prepare(model, corpus_of(alone), WORD), StudyOptions(0, 64, 99))
    found = result.pairs[0].routes
    assert found.pattern_only is None and found.values_only is None
    assert found.ablation[place] == pytest.approx(1, abs=0.1)


def test_pairs_of_unequal_length_have_no_routes_and_no_crash():
    model, place = resolver_model(0)
    material = prepare(model, corpus_of(SENTENCES), WORD)
    result = study_word(model, material, StudyOptions(0, 64, 99))
    pair = result.pairs[0]
    ids = [tokens.ids[: at + 1] for tokens, at in zip(material.tokens, material.targets, strict=True)]
    longer = [(row[0], *row) if index == pair.pairs.a[0] else row for index, row in enumerate(ids)]
    mean_z = result.states.z.mean(0)
    even, uneven = (
        routes.measure_routes(read_weights(model), rows, mean_z, pair.gap, (pair.axis, pair.pairs))
        for rows in (ids, longer)
    )
    assert even.values_only is not None
    assert uneven.pattern_only is None and uneven.values_only is None
    assert uneven.ablation[place] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("same", [True, False])
def test_mixed_z_is_the_pattern_of_one_run_over_the_values_of_the_other(same):
    model = random_model(torch.float64)
    weights = read_weights(model)
    generator = torch.Generator().manual_seed(2)
    looking, carrying = (torch.randint(model.config.d_vocab, (3, 7), generator=generator).tolist() for _ in range(2))
    looking.append([5, 6, 7])
    carrying.append([8, 9, 10])
    carrying = looking if same else carrying
    depth = len(weights.blocks)
    found = routes.mixed_z(weights, looking, carrying, depth)
    if same:
        torch.testing.assert_close(found, swaps.target_z(weights, looking, depth), rtol=0, atol=1e-12)
    for row, (one, other) in enumerate(zip(looking, carrying, strict=True)):
        steps = [list(forward.run(weights, torch.tensor(ids), torch.float64)) for ids in (one, other)]
        for layer, (mine, theirs) in enumerate(zip(*steps, strict=True)):
            expected = torch.einsum("hk,hkd->hd", mine["pattern"][:, -1], theirs["v"])
            torch.testing.assert_close(found[row, layer], expected, rtol=0, atol=1e-12)


# --- by distance -----------------------------------------------------------------------------------------------------


def effects_of(gap, denoise):
    column = np.array(denoise)[:, None, None]
    return Effects(np.array(gap), column, column, 0 * column, column)


def test_by_distance_is_the_ratio_of_sums_of_the_pairs_kept():
    effects = effects_of([1.0, 1.0, 3.0, 1.0], [0.5, 0.1, 0.9, 0.2])
    near = routes.by_distance(effects, [1, 2, 1, None], lambda distance: distance == 1)
    assert near.tolist() == [[pytest.approx((0.5 + 0.9) / (1 + 3))]]
    assert routes.by_distance(effects, [1, 2, 1, None], lambda distance: distance > 4) is None


def test_where_there_is_no_gap_an_effect_is_of_the_mean_gap():
    effects = effects_of([1.0, 1.0, 1e-9, -1e-9], [1.0, 1.0, 1e-6, 1e-6])
    far = routes.by_distance(effects, [1, 1, 2, 3], lambda distance: distance > 1)
    assert far.tolist() == [[pytest.approx(1e-6 / 0.5, abs=1e-9)]]
