"""Separation compared with scikit-learn and computed by hand, the width of intervals, and the gate
and the corrected tests: exact for small cases, uniform without an effect, powerful with one.
"""

import math
from itertools import combinations, product

import numpy as np
import pytest
from handmade import SENSES, make_sentences, without
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import CrossFit, Holdout, cross_fit, resampling, sign_flip_test
from seeds import likely, mostly_campaign
from sklearn.metrics import roc_auc_score

import probe

quick = settings(max_examples=60, deadline=None, derandomize=True)


@quick
@given(
    groups=st.lists(st.integers(0, 8), min_size=2, max_size=40),
    count=st.integers(2, 5),
    seed=st.integers(0, 1000),
)
def test_folds_test_every_group_once_and_never_train_on_it(groups, count, seed):
    folds = resampling.folds(groups, count, seed=seed)
    if len(set(groups)) == 1:
        assert folds == []
        return
    assert sorted(row for _, test in folds for row in test) == list(range(len(groups)))
    for train, test in folds:
        assert sorted(train + test) == list(range(len(groups)))
        assert not {groups[row] for row in train} & {groups[row] for row in test}
    assert len(folds) == min(count, len(set(groups)))
    assert folds == resampling.folds(groups, count, seed=seed)


# --- separation and order -------------------------------------------------------------------------


@pytest.mark.parametrize("decimals", [8, 0])  # 0: many ties
def test_auroc_is_scikit_learns(decimals):
    rng = np.random.default_rng(0)
    a = rng.normal(0.4, 1, (13, 3, 2)).round(decimals)
    b = rng.normal(0, 1, (17, 3, 2)).round(decimals)
    truth = np.r_[np.ones(13), np.zeros(17)]
    ours = resampling.auroc(a, b)
    for index in np.ndindex(3, 2):
        theirs = roc_auc_score(truth, np.r_[a[(slice(None), *index)], b[(slice(None), *index)]])
        assert ours[index] == pytest.approx(theirs, abs=1e-12)
    # One-sided: labels swapped, sign flipped.
    np.testing.assert_allclose(resampling.auroc(b, a), 1 - ours, atol=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # Means 2 and 4, variances 1 and 4: pooled 2.5; correction 1 - 3 / (4*6 - 9).
        ([1.0, 2, 3], [2.0, 4, 6], -2 / np.sqrt(2.5) * 0.8),
        # Means 1 and 0, variances 2 and 1: pooled (1*2 + 2*1) / 3; correction 1 - 3 / (4*5 - 9).
        ([0.0, 2], [-1.0, 0, 1], 1 / np.sqrt(4 / 3) * 8 / 11),
        ([0.3] * 5, [0.1] * 7, np.inf),  # nothing varies within
        ([0.1] * 5, [0.3] * 7, -np.inf),
        ([0.1] * 5, [0.1] * 7, 0),
    ],
)
def test_hedges_g_by_hand(a, b, expected):
    assert resampling.hedges_g(np.array(a), np.array(b)) == pytest.approx(expected)


def test_the_largest_comes_first_and_ties_go_to_the_first():
    values = np.array(
        [[0.1, 0.5, 0.5 + 1e-7, -0.2, 0.5 - 1e-7, 0.1 + 1e-6], [3.0, 1.0, 2.0, 0.0, 1e-6, -1e-6]]
    )
    assert resampling.order(values).tolist() == [[1, 2, 4, 0, 5, 3], [0, 2, 1, 3, 4, 5]]
    assert resampling.ranks(values).tolist() == [[4, 1, 2, 6, 3, 5], [1, 3, 2, 4, 5, 6]]
    assert resampling.order(np.empty(0)).tolist() == []


def test_rank_intervals_by_hand():
    draws = np.tile(np.array([3.0, 1, 2]), (1000, 1)).reshape(1000, 1, 3)
    draws[:100, 0] = [1.0, 3, 2]  # in 10% of the draws, heads 0 and 1 are exchanged
    low, high = resampling.rank_intervals(draws)
    assert (low.tolist(), high.tolist()) == ([[1, 1, 2]], [[3, 3, 2]])
    draws[10:100, 0] = [3.0, 1, 2]  # now in 1%
    low, high = resampling.rank_intervals(draws)
    assert (low.tolist(), high.tolist()) == ([[1, 3, 2]], [[1, 3, 2]])


# --- bootstrap ------------------------------------------------------------------------------------


def test_bootstrap_draws_groups_as_often_as_there_are_groups():
    labels = ["a", "b", "b", "c", "c", "c"]
    weights = resampling.bootstrap_weights([labels], seed=0, draws=4000)
    assert (weights[:, 1] == weights[:, 2]).all() and (weights[:, 3] == weights[:, 5]).all()
    assert (weights[:, [0, 1, 3]].sum(1) == 3).all()
    # binomial(3, 1/3): mean 1, variance 2/3
    np.testing.assert_allclose(weights[:, [0, 1, 3]].mean(0), 1, atol=0.06)
    np.testing.assert_allclose(weights[:, [0, 1, 3]].var(0), 2 / 3, atol=0.06)
    assert np.array_equal(weights, resampling.bootstrap_weights([labels], seed=0, draws=4000))
    assert not np.array_equal(weights, resampling.bootstrap_weights([labels], seed=1, draws=4000))


def test_crossed_factors_are_drawn_independently_and_a_nested_one_not_at_all():
    frames, cues = zip(*product("abcd", "xyz"), strict=True)
    weights = resampling.bootstrap_weights([frames, cues], seed=0, draws=50).reshape(50, 4, 3)
    for draw in weights:
        by_frame, by_cue = draw.sum(1) / 3, draw.sum(0) / 4
        np.testing.assert_array_equal(draw, np.outer(by_frame, by_cue))
        assert by_frame.sum() == 4 and by_cue.sum() == 3
    words = ["loan", "mud", "cash", "boat"]
    assert resampling.outer_factors([["a", "a", "b", "b"], words]) == [["a", "a", "b", "b"]]
    assert resampling.outer_factors([["a"] * 4, words]) == [words]
    crossed = [["a", "b", "a", "b"], ["x", "x", "y", "y"]]
    assert resampling.outer_factors(crossed) == crossed


def test_a_draw_without_a_single_row_counts_as_the_data():
    # Frame a occurs only with x, b only with y.
    weights = resampling.bootstrap_weights([["a", "b"], ["x", "y"]], seed=0, draws=500)
    assert (weights.sum(1) > 0).all() and (weights == 1).all(1).any()
    halves = resampling.split_weights(np.array([[2.0, 0, 0, 1], [0, 0, 3, 1]]), [2, 2])
    assert [half.tolist() for half in halves] == [[[2, 0], [1, 1]], [[0, 1], [3, 1]]]


def coverage(make, factors, *, runs=200):
    """How often the 95 % interval of the mean contains the true mean, 0."""
    hits = 0
    for run in range(runs):
        values = make(np.random.default_rng(run))
        weights = resampling.bootstrap_weights(factors, seed=run, draws=300)
        draws = resampling.bootstrap_ratio(values, np.ones(len(values)), weights)
        low, high = resampling.interval(draws)
        hits += bool(low <= 0 <= high)
    return hits / runs


def test_intervals_of_independent_rows_cover():
    # Percentile intervals of 40 rows are a little narrow (nominal .94); 3 standard errors of 200
    # runs are .05.
    rows = [str(row) for row in range(40)]
    assert 0.90 <= coverage(lambda rng: rng.normal(size=40), [rows]) <= 0.98


def test_intervals_of_crossed_rows_cover_where_independent_cells_would_not():
    frames, cues = zip(*product(range(10), range(10)), strict=True)

    def crossed(rng):
        of_frames, of_cues = (rng.normal(size=10)[list(names)] for names in (frames, cues))
        return of_frames + of_cues + rng.normal(size=100)

    assert 0.88 <= coverage(crossed, [frames, cues]) <= 0.99
    assert coverage(crossed, [[*map(str, range(100))]]) < 0.75


def test_a_ratio_is_of_sums_for_every_column_and_not_a_mean_of_ratios():
    numerator, denominator = np.array([[1.0, 0], [3, 1], [2, 5]]), np.array([1.0, 2, 5])
    weights = np.array([[1.0, 1, 1], [2, 0, 1]])
    ratios = resampling.bootstrap_ratio(numerator, denominator, weights)
    np.testing.assert_allclose(ratios, [[6 / 8, 6 / 8], [4 / 7, 5 / 7]])
    layers = np.stack([denominator, 2 * denominator], axis=1)
    of_layers = resampling.bootstrap_ratio(np.stack([numerator] * 2, axis=1), layers, weights)
    np.testing.assert_allclose(of_layers, np.stack([ratios, ratios / 2], axis=1))


def test_an_interval_is_central_and_wider_with_few_units():
    assert resampling.interval(np.arange(1001.0)) == pytest.approx((25, 975))
    # t(3) is 3.182; the normal quantile is 1.960.
    wider = np.sqrt(4 / 3) * 3.182446 / 1.959964
    few = resampling.interval(np.arange(1001.0), 400.0, units=4)
    assert few == pytest.approx((400 - wider * 375, 400 + wider * 575))
    many = resampling.interval(np.arange(1001.0), 400.0, units=10**6)
    assert many == pytest.approx((25, 975), rel=1e-4)


# --- the gate -------------------------------------------------------------------------------------


def split_of(is_a, units, holdouts=None, *, count=5):
    """Sentences of these senses in these units, by default in folds of whole units."""
    units = tuple(units)
    folds = [Holdout(tuple(a), tuple(b)) for a, b in resampling.folds(units, count, seed=0)]
    rows = tuple(range(len(units)))
    return CrossFit(rows, tuple(is_a), units, units, tuple(holdouts or folds))


def gate(resid, is_a, units, holdouts=None, *, seed=0):
    """The gap test of `row d`, or of `row stage d`."""
    resid = np.asarray(resid, dtype=float)
    resid = resid[:, None] if resid.ndim == 2 else resid
    return resampling.gap_test(resid, split_of(is_a, units, holdouts), seed=seed)


def paired(differences):
    """Rows, senses and units, with one sentence of each sense per unit and their difference."""
    rows = [[sign * difference / 2] for difference in differences for sign in (1, -1)]
    return rows, [True, False] * len(differences), np.arange(len(rows)) // 2


def agreement(rows, of_a, holdouts):
    """The sum over holdouts of <D_test, D_train>, with D_test divided by the counts of all rows."""
    rows = rows - rows.mean(0)
    signed = np.where(of_a, 1 / of_a.sum(), -1 / (~of_a).sum())
    total = 0.0
    for holdout in holdouts:
        train, test = np.array(holdout.train), list(holdout.test)
        fit_a, fit_b = rows[train[of_a[train]]], rows[train[~of_a[train]]]
        learned = [side.sum(0) / max(len(side), 1) for side in (fit_a, fit_b)]
        total += signed[test] @ rows[test] @ (learned[0] - learned[1])
    return total


def relabellings(of_a, units, single):
    """Every exchange of the senses: units with both are flipped, and those in `single`, with one
    sense each, exchange theirs."""
    double = [unit for unit in range(8) if unit not in single]
    flips = product([False, True], repeat=len(double))
    assignments = combinations(single, len(single) // 2)
    for flip, assignment in product(flips, map(set, assignments)):
        flipped = dict(zip(double, flip, strict=True))
        labels = [
            unit in assignment if unit in single else was != flipped[unit]
            for unit, was in zip(units, of_a, strict=True)
        ]
        yield np.array(labels)


@pytest.mark.parametrize("kind", ["both", "single", "mixed"])
def test_p_of_a_small_case_is_the_exact_one(kind):
    rng = np.random.default_rng(2)
    units = np.repeat(np.arange(8), [2, 3, 2, 2, 4, 2, 2, 3])
    single = {"both": range(0), "single": range(8), "mixed": range(4, 8)}[kind]
    of_a = np.array(
        [unit % 2 == 0 if unit in single else row % 2 == 0 for row, unit in enumerate(units)]
    )
    resid, holdouts = rng.normal(size=(len(units), 2, 3)), split_of(of_a, units, count=4).holdouts
    resid[of_a, 1, 0] += 0.7

    def statistic(labels):
        return [agreement(resid[:, depth], labels, holdouts) for depth in range(2)]

    statistics = np.array([statistic(labels) for labels in relabellings(of_a, units, single)])
    observed, spread = np.array(statistic(of_a)), statistics.std(0)
    result = gate(resid, of_a, units, holdouts)
    np.testing.assert_allclose(result.t, observed / spread, rtol=0.05)
    exact = [np.mean(statistics[:, depth] >= observed[depth] - 1e-9) for depth in range(2)]
    exact.append(np.mean((statistics / spread).max(1) >= (observed / spread).max() - 1e-9))
    alone = [gate(resid[:, depth], of_a, units, holdouts).p for depth in range(2)]
    for p, share in zip([*alone, result.p], exact, strict=True):
        error = np.sqrt(share * (1 - share) / resampling.GATE_DRAWS)
        assert p == pytest.approx(share, abs=4 * error + 5e-3)


@pytest.mark.parametrize(
    ("units", "smallest"),
    [(["ab"] * 5, 2 / 2**5), (["ab"] * 8, 2 / 2**8), (["a", "b"] * 4, 2 / 70),
     (["a"] * 5 + ["b"] * 3, 1 / 56), (["ab"] * 4 + ["a", "b"] * 2, 2 / (16 * 6)),
     (["ab"] * 20, 1 / 5000)],
)  # fmt: skip
def test_the_smallest_p_of_the_gap_is_reached_where_the_senses_are_far_apart(units, smallest):
    rows = [(unit, sense == "a") for unit, senses in enumerate(units) for sense in 2 * senses]
    members, is_a = zip(*rows, strict=True)
    assert resampling.smallest_gap_p(split_of(is_a, members)) == pytest.approx(smallest)
    resid = np.random.default_rng(0).normal(np.where(is_a, 5, -5)[:, None], 0.1)
    error = 4 * np.sqrt(smallest / resampling.GATE_DRAWS)
    assert gate(resid, is_a, members).p == pytest.approx(smallest, abs=error)


def test_a_gap_that_points_the_other_way_or_is_none_does_not_pass():
    rows, is_a, units = paired([2.0] * 5 + [-2.0] * 5)
    halves = tuple(range(10)), tuple(range(10, 20))
    assert gate(rows, is_a, units, [Holdout(*halves), Holdout(*halves[::-1])]).p > 0.99
    rows, is_a, units = paired([0.0] * 10)
    assert gate(rows, is_a, units).p == 1
    # A stage without a gap costs nothing.
    apart = np.array(paired(np.random.default_rng(0).normal(0.7, 1, 10))[0])
    both = np.stack([np.full_like(apart, 0.1), apart], axis=1)
    single, together = gate(apart, is_a, units), gate(both, is_a, units)
    assert together.p == single.p and together.t.tolist() == pytest.approx([0, single.t[0]])


def random_study(run, *, pairs=True, d=0.0, cue=1.0, shared=1.0, cues=10):
    """Sentences held out as in a study, and vectors of three stages in 16 dimensions.

    Every pair of cue words, every cue word and every sentence has a random vector. In the last
    stage, the distance of the senses is d along one direction.
    """
    rng = np.random.default_rng(run)
    sentences = make_sentences(frames=5, distances=(1,), cues=cues)
    split = cross_fit(sentences if pairs else without(sentences, "pair"), SENSES, seed=run)
    words, number = resampling.as_numbers([sentences[row].cue_word for row in split.rows])
    of_unit, of_cue = rng.normal(size=(number, 3, 16)), rng.normal(size=(number, 3, 16))
    resid = shared * of_unit[list(split.units)] + cue * of_cue[words]
    resid += 0.3 * rng.normal(size=resid.shape)
    direction = rng.normal(size=16)
    sides = np.where(split.is_a, d / 2, -d / 2)
    resid[:, 2] += sides[:, None] * direction / np.linalg.norm(direction)
    return resid, split, words


@pytest.mark.parametrize("runs", mostly_campaign((60, 200)))
@pytest.mark.parametrize("pairs", [True, False])
def test_under_the_null_p_of_the_gap_is_uniform(pairs, runs, monkeypatch):
    """Cue words differ from each other; senses do not."""
    monkeypatch.setattr(resampling, "GATE_DRAWS", 199)
    p_values = []
    for run in range(runs):
        resid, split, _ = random_study(run, pairs=pairs, shared=float(pairs), cues=8)
        p_values.append(gate(resid, split.is_a, split.exchanged, split.holdouts, seed=run).p)
    for level in (0.05, 0.25, 0.5, 0.75):
        lower, upper = likely(level, runs)
        assert lower <= np.sum(np.array(p_values) <= level) <= upper


def test_a_difference_of_positions_is_detected_and_p_is_one_without_any():
    rng, is_a, units = np.random.default_rng(0), np.arange(40) % 2 == 0, np.arange(40) // 2
    position = rng.integers(3, 9, 40).astype(float)
    nuisances = np.stack([position, np.full(40, 7.0)], axis=1)
    aligned = np.repeat(position[::2], 2)[:, None]
    for none in (nuisances[:, 1:], aligned):
        assert resampling.difference_p(none, is_a, units, seed=0) == 1
    assert resampling.difference_p(nuisances, is_a, units, seed=0) > 0.05
    for shift in (4, -4):  # two-sided
        nuisances[:, 0] = position + shift * is_a
        assert resampling.difference_p(nuisances, is_a, units, seed=0) < 0.01


def test_relabelling_keeps_cue_words_whole_and_senses_as_frequent():
    is_a, units = [True, True, False, False, True, False], ["u", "u", "v", "v", "w", "w"]
    labels = resampling.relabel(is_a, units, draws=300, rng=np.random.default_rng(0))
    assert labels[0].tolist() == is_a
    assert (labels[:, 0] == labels[:, 1]).all() and (labels[:, 2] == labels[:, 3]).all()
    assert (labels[:, 0] != labels[:, 2]).all()  # each of the two words has one sense
    assert (labels[:, 4] != labels[:, 5]).all()  # a word with both senses is flipped as a whole
    assert len({tuple(row) for row in labels.tolist()}) == 4


# --- corrected for all heads ----------------------------------------------------------------------


def test_max_t_by_hand():
    """Four relabellings: none exceeds the first statistic, one exceeds the second, and two
    exceed the last.
    """
    observed = np.array([5.0, 1.0, 3.0])
    null = np.array([[1.0, 0.0, 0.5], [4.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.5, 0.0]])
    result = resampling.max_t(observed, null)
    # A single-step correction would give the last 2 / 5: 4.0 reaches 3.0.
    assert result.p.tolist() == [1 / 5, 3 / 5, 1 / 5]
    assert result.t.tolist() == observed.tolist()
    # Uncorrected 1/5, 3/5, 1/5; Benjamini-Hochberg: 1/5 * 3/2, 3/5, 1/5 * 3/2
    assert result.q.tolist() == pytest.approx([0.3, 0.6, 0.3])
    assert resampling.max_t(np.array([9.0]), np.zeros((99, 1))).p.tolist() == [0.01]
    assert resampling.max_t(np.array([1.0]), np.ones((99, 1))).p.tolist() == [1]  # ties


def test_step_down_is_never_above_single_step_nor_below_the_uncorrected():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        observed, null = rng.normal(size=12) + rng.random() * 2, rng.normal(size=(99, 12))
        p = resampling.max_t(observed, null).p
        single = (1 + (null.max(1)[:, None] >= observed).sum(0)) / 100
        uncorrected = (1 + (null >= observed).sum(0)) / 100
        assert (p <= single).all() and (p >= uncorrected).all()
        assert p[observed.argmax()] == single[observed.argmax()]
        assert (np.diff(p[(-observed).argsort()]) >= 0).all()


def test_flips_of_whole_cue_words_by_hand():
    """Two cue words with two pairs each: the signs of a word's pairs flip together, so four
    means are possible.
    """
    effects, units = np.array([1.0, 3.0, 2.0, 2.0])[:, None], ["u", "u", "v", "v"]
    null = resampling.flip_null(effects, units, draws=200, rng=np.random.default_rng(0))
    assert null.shape == (201, 1)
    error = np.sqrt((18 / 4 - 4) / 3)
    assert null[0, 0] == pytest.approx(2 / (2 * error))  # with one head, its error is the median
    still = np.sqrt((18 / 4 - 0) / 3)
    expected = (2 / (2 * error), -2 / (2 * error), 0 / (still + error))
    assert {round(value, 9) + 0.0 for value in null[:, 0].tolist()} == {
        round(value, 9) for value in expected
    }


def test_the_sign_flip_test_finds_the_head_that_acts_and_no_other():
    rng = np.random.default_rng(3)
    effects = rng.normal(size=(60, 2, 3)) * 0.1
    effects[:, 1, 2] += 0.2
    tested = sign_flip_test(effects, range(60), seed=0, draws=999)
    assert tested.p[1, 2] == 1 / 1000 and (np.delete(tested.p.ravel(), 5) > 0.05).all()
    assert (sign_flip_test(-effects, range(60), seed=0, draws=999).p > 0.05).all()
    of_list = sign_flip_test(effects.tolist(), [*map(str, range(60))], seed=0, draws=999)
    assert (of_list.p == tested.p).all()


@pytest.mark.parametrize(
    ("effects", "units", "options", "message"),
    [
        ([[1.0, np.nan], [1, 1]], range(2), {}, "1 of 4 effects are NaN or infinite, expected numbers. Omi"),
        ([[1.0], [np.inf]], range(2), {}, "1 of 2 effects are NaN or infinite, expected numbers. Omit their"),
        ([[1.0], [2.0]], range(3), {}, "got effects of shape [2, 1] and 3 units, expected a row of effects"),
        ([], [], {}, "got effects of shape [0] and 0 units, expected a row of effects for each unit,"),
        ([[1.0], [2.0]], range(2), {"draws": 0}, "got draws = 0, expected a whole number from 1 on. Omit "),
        (None, ["a"], {}, "got effects of shape [] and 1 units, expected a row of effects for each"),
        ([{}], ["a"], {}, "got something other than numbers (float() argument must be"),
        (["a", "b"], ["a", "b"], {}, "got something other than numbers (could not convert string"),
        ([[1.0], [2.0, 3.0]], ["a", "b"], {}, "got something other than numbers (setting an array el"),
        ([1j, 2j], ["a", "b"], {}, "got complex numbers, expected real ones. Give effects[pair, head]"),
        ([1.0, 2.0], None, {}, "got effects of shape [2] and 0 units"),
        ([1.0, 2.0], [["a"], ["b"]], {}, "got units such as ['a'], expected a word or a number for"),
        ([1.0, 2.0], ["a", float("nan")], {}, "got units such as nan, expected a word or a number fo"),
    ],
)  # fmt: skip
def test_invalid_effects_and_units_are_refused(effects, units, options, message):
    with pytest.raises(probe.InputError) as error:
        sign_flip_test(effects, units, **options)
    assert str(error.value).startswith(f"Cannot flip signs: {message}")


# --- power ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("units", "p"), [(4, 1 / 16), (9, 1 / 512), (12, 1 / 1001)])
def test_the_smallest_p_of_few_units(units, p):
    assert resampling.smallest_p(units, draws=1000) == pytest.approx(p)


@pytest.mark.parametrize(("d", "n", "pairs"), [(1, 40, 20), (0.8, 62, 31), (0.5, 157, 79)])
def test_the_visible_effect_is_that_of_the_published_sample_sizes(d, n, pairs):
    """Family-wise level .05 over 144 heads and power .8: the table in the method; a fifth fewer
    sentences are not enough.
    """
    for size, in_pairs in ((n, False), (pairs, True)):
        assert resampling.smallest_effect(size, tests=144, paired=in_pairs) <= d
        assert resampling.smallest_effect(int(0.8 * size), tests=144, paired=in_pairs) > d
    assert resampling.smallest_effect(1, tests=16, paired=True) == math.inf


@pytest.mark.parametrize(
    ("n", "tests"), mostly_campaign([(12, 16), (6, 16), (8, 1), (40, 16)], here=2)
)
def test_the_visible_effect_is_found_as_often_as_stated(n, tests):
    """With the sign-flip test itself, four times in five: 300 studies, within three standard
    errors of .023.
    """
    d = resampling.smallest_effect(n, tests=tests, paired=True)
    rng = np.random.default_rng(11)
    detections = 0
    for seed in range(300):
        effects = rng.normal(size=(n, tests))
        effects[:, 0] += d
        detections += resampling.sign_flip_test(effects, range(n), seed=seed, draws=499).p[0] < 0.05
    assert 0.73 <= detections / 300 <= 0.87


# --- ties -----------------------------------------------------------------------------------------


def test_a_value_equal_within_float32_is_reached_and_a_smaller_one_is_not():
    draws = np.array([[2.0, 0.5], [2.0 - 1e-7, 0.5 + 1e-7], [1.999, 0.5 - 1e-7], [-8.0, 0.4999]])
    expected = [[True, True], [True, True], [False, True], [False, False]]
    assert resampling.reached(draws, np.array([2.0, 0.5])).tolist() == expected
    assert resampling.reached(1e9 * draws, np.array([2e9, 5e8])).tolist() == expected  # in any unit


def noisy(values, run):
    """The values as from another processor: in float32, with sums in another order."""
    return values * (1 + 1e-7 * np.random.default_rng(run).normal(size=values.shape))


@pytest.mark.parametrize("margin", [True, False])
def test_no_p_depends_on_the_last_digit_and_without_a_margin_one_would(margin, monkeypatch):
    """Whole numbers and few units: many relabellings give exactly the observed statistic."""
    if not margin:
        monkeypatch.setattr(resampling, "TIE", 0.0)
    effects = np.random.default_rng(4).integers(-2, 4, size=(6, 12)).astype(float)
    flips = [resampling.sign_flip_test(noisy(effects, run), range(6), seed=0) for run in range(20)]
    apart, is_a, units = (np.array(part) for part in paired([2.0, 1.0, 1.0, 2.0, -1.0, 1.0]))
    gates = {gate(noisy(apart, run), is_a, units).p for run in range(20)}
    digits = {flip.p.tobytes() + flip.q.tobytes() for flip in flips}
    assert (len(digits) == len(gates) == 1) == margin
