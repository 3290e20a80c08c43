"""The table of heads compared with the measurements, on planted circuits in which every column has
different values.
"""

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from handmade import WORD, corpus_of, make_sentences
from inside import ALIGNED, Pairs, every_head, net_where, pairs_of, prepare, swap_columns, swaps
from measured import studied
from planted import planted_model


@cache
def table_of(kind, distances=(1, 2)):
    """The record of a small study with one pair of senses, the rows of its table by head, and the
    position of the first planted head.
    """
    model, circuit = planted_model(kind, 0)
    sentences = corpus_of(make_sentences(frames=5, distances=distances, cues=12))
    record = studied(model, prepare(model, WORD, sentences.sentences), pairs=60)
    return record, every_head(record).set_index(["layer", "head"]), circuit.head_indices[0]


def test_every_effect_is_in_the_right_column():
    """Either of two heads is sufficient, so denoising one restores the whole gap and noising one
    loses nothing.
    """
    record, frame, head = table_of("either")
    [data] = record.of_pairs("heads")
    effects = swaps.effects_of(data)
    gap = effects["gap"].sum(0)[:, None]
    for name in ("denoise", "noise", "same_sense"):
        np.testing.assert_allclose(frame[name], (effects[name].sum(0) / gap).ravel(), atol=1e-12)
    assert abs(frame.loc[head, "denoise"] - frame.loc[head, "noise"]) > 0.3
    np.testing.assert_allclose(frame["net"], swaps.net_by_pair(effects).mean(0).ravel(), atol=1e-9)
    direct = data.direct_by_pair.values.sum(0) / data.direct_gap_by_pair.values.sum(0)[:, None]
    np.testing.assert_allclose(frame["direct"], direct.ravel(), atol=1e-12)
    # A head separates the senses with an equal write, and its swap alone moves nothing back.
    for one, other in combinations(("p_auroc", "p_swap", "p_opposes"), 2):
        assert (frame[one] != frame[other]).any(), (one, other)
    assert frame.loc[head, "p_auroc"] < 0.05


def test_near_is_next_to_the_word_and_far_is_beyond():
    record, frame, head = table_of("one_back", (1, 1, 1, 2))
    assert set(pairs_of(record.senses[0]).distances) == {1, 2}
    assert frame.loc[head, "net_near"] == pytest.approx(1, abs=0.05)
    assert frame.loc[head, "net_far"] == pytest.approx(0, abs=0.05)


def of_senses(order):
    """Two senses with swapped heads in six pairs of sentences with their own cue words, in some
    order. Units are numbered in the order of the pairs.
    """
    rows = tuple(range(6))
    net = np.arange(6.0)[list(order)][:, None, None]
    effects = effects_of([1.0] * 6, net.ravel())
    swapped = {"word": effects, "direct": net, "direct_gap": effects["gap"]}
    pairs = Pairs(rows, rows, rows, rows, ("f",) * 6, rows, tuple(order), (1,) * 6, ALIGNED, 0)
    return swapped, pairs


def test_a_cue_word_counts_once_in_a_mean_over_pairs_of_senses():
    """Pairs of senses with equal effects at the same cue words have the interval of one of them."""
    swapped, pairs = zip(of_senses(range(6)), of_senses((4, 1, 5, 0, 3, 2)), strict=True)
    columns = swap_columns(swapped[:1], pairs[:1], np.array([True]))
    both = swap_columns(swapped, pairs, np.array([True]))
    for name, values in columns.items():
        np.testing.assert_allclose(both[name], values, err_msg=name)
    assert columns["net_high"] - columns["net_low"] > 1


def effects_of(gap, denoise):
    """Effects of one layer with one head, without an effect of same-sense donors."""
    column = np.array(denoise)[:, None, None]
    both = {"denoise": column, "noise": column, "same_sense": 0 * column}
    return {"gap": np.array(gap)[:, None], **both}


def test_the_effect_at_a_distance_is_the_ratio_of_sums_over_the_included_pairs():
    effects = effects_of([1.0, 1.0, 3.0, 1.0], [0.5, 0.1, 0.9, 0.2])
    near = net_where(effects, [1, 2, 1, None], lambda distance: distance == 1)
    assert near.tolist() == [[pytest.approx((0.5 + 0.9) / (1 + 3))]]
    assert np.isnan(net_where(effects, [1, 2, 1, None], lambda distance: distance > 4)).all()


def test_without_a_gap_at_a_distance_an_effect_is_a_fraction_of_the_mean_gap():
    effects = effects_of([1.0, 1.0, 1e-9, -1e-9], [1.0, 1.0, 1e-6, 1e-6])
    far = net_where(effects, [1, 1, 2, 3], lambda distance: distance > 1)
    assert far.tolist() == [[pytest.approx(1e-6 / 0.5, abs=1e-9)]]
