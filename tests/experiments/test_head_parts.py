"""Where a head looks, what it carries, what is lost without it, on models whose answer is known; by
distance."""

from functools import cache

import numpy as np
import pytest
import torch
from families import family_model, near
from handmade import (
    HEADS,
    LAYERS,
    WORD,
    make_sentences,
    random_model,
    resolver_model,
    without,
)
from hooked_runs import target_z
from measured import options_of, studied
from seeds import mostly_campaign

from probe.experiments import head_parts
from probe.experiments.material import prepare
from probe.experiments.observe import observe
from probe.experiments.prepare import prepare_pairs
from probe.experiments.swaps import Effects
from probe.model import forward
from probe.model.load import read_weights
from probe.model.tokens import TargetText
from probe.patching.inputs import target_texts
from probe.stats import resampling

SENTENCES = make_sentences(cues=16)


PAIRS = 64  # of sentences, in which heads are swapped
EXPERIMENTS = ("heads", "head_parts")


@cache
def study(seed):
    """The record of a word in a model in which one head resolves, the model, and that head's
    place."""
    model, place = resolver_model(seed)
    return parts_of(model, SENTENCES, seed), model, place


def parts_of(model, sentences, seed=0):
    """The record of a word with the parts of its heads."""
    material = prepare(model, WORD, sentences)
    return studied(model, material, seed=seed, pairs=PAIRS, experiments=EXPERIMENTS).record


@pytest.fixture(scope="module", params=mostly_campaign([0, 1, 2, 3]))
def planted(request):
    """The head parts of such a model, and that head's place."""
    record, _, place = study(request.param)
    [found] = record.of_pairs("head_parts")
    return found.shares, place, found


def test_a_resolver_carries_the_sense_from_the_cue_and_looks_where_it_always_looks(
    planted,
):
    found, place, _ = planted
    known = {"values_only": 1, "cue_only": 1, "pattern_only": 0, "ablation": 1}
    assert set(found) == set(
        known
    )  # the pairs differ in nothing but the cue, and without the head the gap is lost
    for name, expected in known.items():
        assert found[name][place] == pytest.approx(expected, abs=0.02), name
        assert found[name].shape == (LAYERS, HEADS)
        assert (
            np.abs(
                np.delete(found[name].ravel(), np.ravel_multi_index(place, (LAYERS, HEADS)))
            ).max()
            < 0.02
        )


def measured(whole, *, texts=None, cues=None):
    """The shares of the parts, of changed texts or with other cues."""
    seen, pair, word, model = whole
    given = read_weights(model), texts or seen.texts, seen.states.z, cues or seen.material.cues
    return head_parts.measure_head_parts(
        *given, word, axes=pair.sense.axes, pairs=pair.pairs, reading=pair.reading
    ).shares


@pytest.fixture(scope="module")
def whole():
    """What the parts of seed 0 are measured from, and the model."""
    record, model, _ = study(0)
    seen = observe(model, prepare(model, WORD, SENTENCES), seed=0)
    [pair] = prepare_pairs(seen, None, options_of(pairs=PAIRS))
    return seen, pair, record.pairs[0].effects, model


def test_without_aligned_pairs_the_cue_and_the_ablation_are_measured():
    model, place = resolver_model(0)
    [parts] = parts_of(model, without(SENTENCES, "pair")).of_pairs("head_parts")
    found = parts.shares
    assert set(found) == {"cue_only", "ablation"}
    for values in found.values():
        assert values[place] == pytest.approx(1, abs=0.1)


def test_pairs_of_unequal_length_have_no_mixed_parts_and_no_crash(whole):
    record, _, place = study(0)
    longer = list(whole[0].texts)
    row = record.of_pairs("head_parts")[0].pairs.a[0]
    longer[row] = TargetText((longer[row].ids[0], *longer[row].ids), longer[row].at + 1)
    even, uneven = measured(whole), measured(whole, texts=longer)
    assert set(even) - set(uneven) == {"pattern_only", "values_only"}
    assert uneven["ablation"][place] == pytest.approx(1, abs=0.1)


def test_what_the_marked_cue_does_not_give_the_tokens_that_differ_do(whole):
    """A cue marked on the first token of the text: the head reads the other token in which the pair
    differs."""
    *_, place = study(0)
    first = [range(1) for _ in whole[0].texts]
    wrong, unknown = (measured(whole, cues=cues) for cues in (first, [None] * len(first)))
    assert wrong["cue_only"][place] == pytest.approx(0, abs=1e-6)
    assert wrong["other_only"][place] == unknown["other_only"][place] == pytest.approx(1, abs=0.02)
    assert "cue_only" not in unknown


def test_the_intervals_are_over_the_same_frames_and_cue_words_as_those_of_the_whole_swap():
    """Of a route that is the whole swap they are those of the whole swap."""
    pair = study(0)[0].pairs[0]
    word, units = pair.effects, len(set(pair.pairs.units))
    parts = head_parts.HeadParts(
        pair.pairs, word.gap, {"values_only": (word.denoise + word.noise) / 2}
    )
    np.testing.assert_allclose(parts.shares["values_only"], word.swap, atol=1e-12)
    expected = resampling.interval(
        word.draws(pair.pairs.bootstrap())["swap"], word.swap, units=units
    )
    np.testing.assert_allclose(parts.intervals()["values_only"], expected, atol=1e-12)


def test_the_intervals_hold_what_was_planted(planted):
    """Pairs of several cue words and frames; what does nothing has a narrow interval around
    nothing."""
    shares, place, found = planted
    assert (
        len(set(found.pairs.units)) == len(found.pairs) == head_parts.MOST_PAIRS
        and len(set(found.pairs.frames)) > 1
    )
    for kind, (low, high) in found.intervals().items():
        assert (low <= shares[kind] + 1e-12).all() and (shares[kind] <= high + 1e-12).all()
        assert (kind != "pattern_only") <= (high[place] > low[place]) and high[place] - low[
            place
        ] < 0.1
        assert low[place] - 0.02 < {"pattern_only": 0}.get(kind, 1) < high[place] + 0.02


def test_only_the_leading_heads_have_parts(whole, monkeypatch):
    every = measured(whole)
    monkeypatch.setattr(head_parts, "MOST_HEADS", 3)
    few = measured(whole)
    leading = np.argsort(-np.abs(study(0)[0].pairs[0].effects.swap).ravel())[:3]
    for name in ("pattern_only", "values_only", "cue_only", "ablation"):
        one, all_heads = few[name].ravel(), every[name].ravel()
        assert np.flatnonzero(~np.isnan(one)).tolist() == sorted(leading.tolist())
        np.testing.assert_allclose(one[leading], all_heads[leading], atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "qwen3_5_text"])
def test_the_parts_of_z_are_the_pattern_over_values_and_add_up(kind):
    model = family_model(kind, torch.float64)
    weights, generator = read_weights(model), torch.Generator().manual_seed(2)
    ids = [
        torch.randint(5, model.config.d_vocab, (size,), generator=generator).tolist()
        for size in (7, 5, 7)
    ]
    rows = [TargetText(tuple(row), at) for row, at in zip(ids, (6, 2, 4), strict=True)]
    texts = target_texts(weights, rows, "Testing")
    chosen = [[0, 3], [1], []]
    rest = [
        [pos for pos in range(len(text.ids)) if pos not in some]
        for text, some in zip(texts, chosen, strict=True)
    ]
    nothing = [[] for _ in texts]
    taken = {"chosen": (chosen, nothing), "rest": (rest, nothing)}
    whole = target_z(model, texts)
    left = head_parts.head_part_z(weights, texts, texts, taken, mixed=False)
    found = whole - left["chosen"]
    torch.testing.assert_close(left["chosen"] + left["rest"], whole, **near(kind))
    for row, text in enumerate(texts):
        for layer, step in enumerate(forward.run(weights, torch.tensor(text.ids), torch.float64)):
            if not model.config.has_heads(layer):
                assert (left["chosen"][row, layer] == 0).all()
                continue
            read = step["pattern"][:, text.at, :, None] * step["v"]  # head key_pos d_head
            gate = step["z"][:, text.at] / read.sum(1)  # 1 but where heads are gated
            expected = gate * read[:, chosen[row]].sum(1)
            torch.testing.assert_close(found[row, layer], expected, **near(kind))


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ([1, 2, 3, 4], [1, 5, 3, 6], [1, 3]),
        ([1, 2, 2, 3, 4], [1, 7, 3, 4], [1, 2]),
        ([1, 7, 3, 4], [1, 2, 2, 3, 4], [1]),
        ([1, 2, 2, 3], [1, 2, 3], [2]),
        ([1, 2, 3], [1, 2, 2, 3], []),
        ([1, 2], [1, 2], []),
    ],
)
def test_where_texts_differ(one, other, differ):
    assert head_parts._differing(one, other) == differ


@pytest.mark.parametrize("same", [True, False])
def test_mixed_z_is_the_pattern_of_one_run_over_the_values_of_the_other(same):
    model = random_model(torch.float64)
    weights = read_weights(model)
    generator = torch.Generator().manual_seed(2)
    looking, carrying = (
        torch.randint(model.config.d_vocab, (3, 7), generator=generator).tolist() for _ in range(2)
    )
    looking, carrying = [*looking, [5, 6, 7]], [*carrying, [8, 9, 10]]
    carrying = looking if same else carrying
    one, other = (target_texts(weights, rows, "Testing") for rows in (carrying, looking))
    found = head_parts.head_part_z(weights, one, other, {}, mixed=True)["pattern_only"]
    if same:
        torch.testing.assert_close(found, target_z(model, looking), rtol=0, atol=1e-12)
    for row, (one, other) in enumerate(zip(looking, carrying, strict=True)):
        steps = [
            list(forward.run(weights, torch.tensor(ids), torch.float64)) for ids in (one, other)
        ]
        for layer, (mine, theirs) in enumerate(zip(*steps, strict=True)):
            expected = torch.einsum("hk,hkd->hd", mine["pattern"][:, -1], theirs["v"])
            torch.testing.assert_close(found[row, layer], expected, rtol=0, atol=1e-12)


# --- by distance ----------------------------------------------------------------------------------


def effects_of(gap, denoise):
    column = np.array(denoise)[:, None, None]
    return Effects(np.array(gap)[:, None], column, column, 0 * column)


def test_by_distance_is_the_ratio_of_sums_of_the_pairs_kept():
    effects = effects_of([1.0, 1.0, 3.0, 1.0], [0.5, 0.1, 0.9, 0.2])
    near = head_parts.by_distance(effects, [1, 2, 1, None], lambda distance: distance == 1)
    assert near.tolist() == [[pytest.approx((0.5 + 0.9) / (1 + 3))]]
    assert head_parts.by_distance(effects, [1, 2, 1, None], lambda distance: distance > 4) is None


def test_where_there_is_no_gap_an_effect_is_of_the_mean_gap():
    effects = effects_of([1.0, 1.0, 1e-9, -1e-9], [1.0, 1.0, 1e-6, 1e-6])
    far = head_parts.by_distance(effects, [1, 1, 2, 3], lambda distance: distance > 1)
    assert far.tolist() == [[pytest.approx(1e-6 / 0.5, abs=1e-9)]]
