"""The gate and the corrected tests: exact for small cases, uniform without an effect, powerful
with one.
"""

import math
from itertools import combinations, product

import numpy as np
import pytest
from handmade import SENSES, make_sentences, without
from seeds import likely, mostly_campaign

from probe.errors import InputError
from probe.stats import resampling
from probe.text.splits import CrossFit, Holdout, cross_fit, cue_words


def holdouts_of(units, *, count=5):
    """Folds of whole units."""
    return [
        Holdout(tuple(train), tuple(test)) for train, test in resampling.folds(units, count, seed=0)
    ]


def split_of(is_a, units, holdouts=None):
    """Sentences of these senses in these units."""
    units = tuple(units)
    return CrossFit(
        tuple(range(len(units))), tuple(is_a), units, units, tuple(holdouts or holdouts_of(units))
    )


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


@pytest.mark.parametrize("kind", ["both", "single", "mixed"])
def test_p_of_a_small_case_is_the_exact_one(kind):
    """Every relabelling can be enumerated: units with both senses are flipped, and senses are
    reassigned among units with one.
    """
    rng = np.random.default_rng(2)
    units = np.repeat(np.arange(8), [2, 3, 2, 2, 4, 2, 2, 3])
    single_sense = {"both": [], "single": range(8), "mixed": range(4, 8)}[kind]
    of_a = np.array(
        [unit % 2 == 0 if unit in single_sense else row % 2 == 0 for row, unit in enumerate(units)]
    )
    resid, holdouts = rng.normal(size=(len(units), 2, 3)), holdouts_of(units, count=4)
    resid[of_a, 1, 0] += 0.7
    flips = product([False, True], repeat=8 - len(single_sense))
    assignments = [set(group) for group in combinations(single_sense, len(single_sense) // 2)]
    statistics = []
    for flip, assignment in product(flips, assignments):
        flip_of = {
            unit: flip[index]
            for index, unit in enumerate(unit for unit in range(8) if unit not in single_sense)
        }
        labels = [
            unit in assignment if unit in single_sense else was != flip_of[unit]
            for unit, was in zip(units, of_a, strict=True)
        ]
        statistics.append(
            [agreement(resid[:, depth], np.array(labels), holdouts) for depth in range(2)]
        )
    statistics, observed = (
        np.array(statistics),
        np.array([agreement(resid[:, depth], of_a, holdouts) for depth in range(2)]),
    )
    spread = statistics.std(0)
    result = gate(resid, of_a, units, holdouts)
    np.testing.assert_allclose(result.t, observed / spread, rtol=0.05)
    exact = [np.mean(statistics[:, depth] >= observed[depth] - 1e-9) for depth in range(2)]
    exact.append(np.mean((statistics / spread).max(1) >= (observed / spread).max() - 1e-9))
    single = [gate(resid[:, depth], of_a, units, holdouts).p for depth in range(2)]
    for p, share in zip([*single, result.p], exact, strict=True):
        assert p == pytest.approx(
            share, abs=4 * np.sqrt(share * (1 - share) / resampling.GATE_DRAWS) + 5e-3
        )


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


def test_a_gap_that_points_the_other_way_does_not_pass():
    rows, is_a, units = paired([2.0] * 5 + [-2.0] * 5)
    halves = tuple(range(10)), tuple(range(10, 20))
    assert gate(rows, is_a, units, [Holdout(*halves), Holdout(*halves[::-1])]).p > 0.99


def test_without_a_gap_p_is_one_and_a_stage_without_a_gap_costs_nothing():
    rows, is_a, units = paired([0.0] * 10)
    assert gate(rows, is_a, units).p == 1
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
    sentences = sentences if pairs else without(sentences, "pair")
    split = cross_fit(sentences, SENSES, seed=run)
    of_a = np.array(split.is_a)
    words, number = resampling.as_numbers(cue_words([sentences[row] for row in split.rows]))
    of_unit, of_cue = rng.normal(size=(number, 3, 16)), rng.normal(size=(number, 3, 16))
    resid = (
        shared * of_unit[list(split.units)]
        + cue * of_cue[words]
        + 0.3 * rng.normal(size=(len(words), 3, 16))
    )
    direction = rng.normal(size=16)
    resid[:, 2] += np.where(of_a, d / 2, -d / 2)[:, None] * direction / np.linalg.norm(direction)
    return resid, split, words


@pytest.mark.parametrize("runs", mostly_campaign((60, 200)))
@pytest.mark.parametrize("pairs", [True, False])
def test_under_the_null_p_is_uniform(pairs, runs, monkeypatch):
    """Cue words differ from each other; senses do not."""
    monkeypatch.setattr(resampling, "GATE_DRAWS", 199)
    p_values = []
    for run in range(runs):
        resid, split, _ = random_study(run, pairs=pairs, shared=float(pairs), cues=8)
        p_values.append(gate(resid, split.is_a, split.exchanged, split.holdouts, seed=run).p)
    for level in (0.05, 0.25, 0.5, 0.75):
        lower, upper = likely(level, runs)
        assert lower <= np.sum(np.array(p_values) <= level) <= upper


def test_ten_pairs_of_cue_words_are_enough_if_the_pairing_removes_what_they_share(monkeypatch):
    """d = 1.2 in 16 dimensions: p < .01 in nine of ten runs. Reassigning single cue words would
    waste the pairing.
    """
    monkeypatch.setattr(resampling, "GATE_DRAWS", 999)
    p_values = []
    for run in range(30):
        resid, split, words = random_study(run, d=1.2, cue=0.3, shared=0.95)
        p_values.append(
            [gate(resid, split.is_a, units, split.holdouts).p for units in (split.exchanged, words)]
        )
    whole, singly = (np.array(p_values) < 0.01).mean(0)
    assert whole >= 0.9 and singly < whole / 2


def test_a_difference_of_positions_is_detected_and_p_is_one_without_any():
    rng, is_a, units = np.random.default_rng(0), np.arange(40) % 2 == 0, np.arange(40) // 2
    position = rng.integers(3, 9, 40).astype(float)
    nuisances = np.stack([position, np.full(40, 7.0)], axis=1)
    assert resampling.difference_p(nuisances[:, 1:], is_a, units, seed=0) == 1
    assert (
        resampling.difference_p(np.repeat(position[::2], 2)[:, None], is_a, units, seed=0) == 1
    )  # pairs are aligned
    assert resampling.difference_p(nuisances, is_a, units, seed=0) > 0.05
    for shift in (4, -4):  # two-sided
        nuisances[:, 0] = position + shift * is_a
        assert resampling.difference_p(nuisances, is_a, units, seed=0) < 0.01


@pytest.mark.parametrize(("units", "p"), [(4, 1 / 16), (9, 1 / 512), (12, 1 / 1001)])
def test_the_smallest_p_of_few_units(units, p):
    assert resampling.smallest_p(units, draws=1000) == pytest.approx(p)


# --- corrected for all heads ----------------------------------------------------------------------


def test_max_t_by_hand():
    """Four relabellings: none exceeds the first statistic, one exceeds the second, and two
    exceed the last.
    """
    observed = np.array([5.0, 1.0, 3.0])
    null = np.array([[1.0, 0.0, 0.5], [4.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 1.5, 0.0]])
    result = resampling.max_t(observed, null)
    assert result.p.tolist() == [
        1 / 5,
        3 / 5,
        1 / 5,
    ]  # a single-step correction would give the second 2 / 5: 4.0 reaches 3.0
    assert result.t.tolist() == observed.tolist()
    # Uncorrected 1/5, 3/5, 1/5; Benjamini-Hochberg: 1/5 * 3/2, 3/5, 1/5 * 3/2
    assert result.q.tolist() == pytest.approx([0.3, 0.6, 0.3])


def test_step_down_is_never_above_single_step_nor_below_the_uncorrected():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        observed, null = rng.normal(size=(3, 4)) + rng.random() * 2, rng.normal(size=(99, 3, 4))
        p = resampling.max_t(observed, null).p
        single = (1 + (null.max((1, 2))[:, None, None] >= observed).sum(0)) / 100
        uncorrected = (1 + (null >= observed).sum(0)) / 100
        assert (p <= single).all() and (p >= uncorrected).all()
        assert p.ravel()[observed.argmax()] == single.ravel()[observed.argmax()]
        ordered = p.ravel()[(-observed).ravel().argsort()]
        assert (np.diff(ordered) >= 0).all()


def test_p_is_never_zero_and_ties_count_against_a_head():
    assert resampling.max_t(np.array([9.0]), np.zeros((99, 1))).p.tolist() == [0.01]
    assert resampling.max_t(np.array([1.0]), np.ones((99, 1))).p.tolist() == [1]


def test_flips_of_whole_cue_words_by_hand():
    """Two cue words with two pairs each: the signs of a word's pairs flip together, so four
    means are possible.
    """
    effects = np.array([1.0, 3.0, 2.0, 2.0])[:, None]
    null = resampling.flip_null(
        effects, ["u", "u", "v", "v"], draws=200, rng=np.random.default_rng(0)
    )
    assert null.shape == (201, 1)
    error = np.sqrt((18 / 4 - 4) / 3)
    assert null[0, 0] == pytest.approx(
        2 / (error + error)
    )  # with one head, its error is the median
    still = np.sqrt((18 / 4 - 0) / 3)
    expected = {
        round(2 / (2 * error), 9),
        round(-2 / (2 * error), 9),
        round(0 / (still + error), 9),
    }
    assert {round(value, 9) + 0.0 for value in null[:, 0].tolist()} == expected


def test_relabelling_keeps_cue_words_whole_and_senses_as_frequent():
    is_a, units = [True, True, False, False, True, False], ["u", "u", "v", "v", "w", "w"]
    labels = resampling.relabel(is_a, units, draws=300, rng=np.random.default_rng(0))
    assert labels[0].tolist() == is_a
    assert (labels[:, 0] == labels[:, 1]).all() and (labels[:, 2] == labels[:, 3]).all()
    assert (labels[:, 0] != labels[:, 2]).all()  # each of the two words has one sense
    assert (labels[:, 4] != labels[:, 5]).all()  # a word with both senses is flipped as a whole
    assert len({tuple(row) for row in labels.tolist()}) == 4


@pytest.mark.parametrize(("d", "n", "pairs"), [(1, 40, 20), (0.8, 62, 31), (0.5, 157, 79)])
def test_the_visible_effect_is_that_of_the_published_sample_sizes(d, n, pairs):
    """Family-wise level .05 over 144 heads and power .8: the table in the method; a fifth fewer
    sentences are not enough.
    """
    for size, paired in ((n, False), (pairs, True)):
        assert resampling.smallest_effect(size, tests=144, paired=paired) <= d
        assert resampling.smallest_effect(int(0.8 * size), tests=144, paired=paired) > d


@pytest.mark.parametrize(("n", "tests"), [(6, 16), (8, 1), (12, 16), (40, 16)])
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


def test_a_single_unit_shows_nothing():
    assert resampling.smallest_effect(1, tests=16, paired=True) == math.inf


def test_the_sign_flip_test_finds_the_head_that_acts_and_no_other():
    rng = np.random.default_rng(3)
    effects = rng.normal(size=(60, 2, 3)) * 0.1
    effects[:, 1, 2] += 0.2
    tested = resampling.sign_flip_test(effects, range(60), seed=0, draws=999)
    assert tested.p[1, 2] == 1 / 1000
    assert (np.delete(tested.p.ravel(), 5) > 0.05).all()
    assert (resampling.sign_flip_test(-effects, range(60), seed=0, draws=999).p > 0.05).all()


@pytest.mark.parametrize(
    ("effects", "units", "options", "message"),
    [
        (
            [[1.0, np.nan], [1, 1]],
            2,
            {},
            "1 of 4 effects are NaN or infinite, expected numbers. Omi",
        ),
        (
            [[1.0], [np.inf]],
            2,
            {},
            "1 of 2 effects are NaN or infinite, expected numbers. Omit their",
        ),
        (
            [[1.0], [2.0]],
            3,
            {},
            "got effects of shape [2, 1] and 3 units, expected a row of effects",
        ),
        (
            [],
            0,
            {},
            "got effects of shape [0] and 0 units, expected a row of effects for each unit,",
        ),
        (
            [[1.0], [2.0]],
            2,
            {"draws": 0},
            "got draws = 0, expected a whole number from 1 on. Omit ",
        ),
    ],
)
def test_effects_that_have_no_sign_are_refused(effects, units, options, message):
    with pytest.raises(InputError) as error:
        resampling.sign_flip_test(effects, range(units), seed=0, **options)
    assert str(error.value).startswith(f"Cannot flip signs: {message}")


@pytest.mark.parametrize(
    ("effects", "units", "message"),
    [
        (5.0, ["a"], "got effects of shape [] and 1 units, expected a row of effects for each"),
        (None, ["a"], "got effects of shape [] and 1 units, expected a row of effects for each"),
        ([{}], ["a"], "got something other than numbers (float() argument must be"),
        (["a", "b"], ["a", "b"], "got something other than numbers (could not convert string"),
        ([[1.0], [2.0, 3.0]], ["a", "b"], "got something other than numbers (setting an array el"),
        ([1j, 2j], ["a", "b"], "got complex numbers, expected real ones. Give effects[pair, head]"),
        ([1.0, 2.0], None, "got effects of shape [2] and 0 units"),
        ([1.0, 2.0], [["a"], ["b"]], "got units such as ['a'], expected a word or a number for"),
        ([1.0, 2.0], ["a", float("nan")], "got units such as nan, expected a word or a number fo"),
        ([1.0, 2.0], [None, "a"], "got units such as None, expected a word or a number for each"),
    ],
)
def test_invalid_effects_and_units_are_refused(effects, units, message):
    with pytest.raises(InputError) as error:
        resampling.sign_flip_test(effects, units)
    assert str(error.value).startswith(f"Cannot flip signs: {message}")


def test_a_list_of_effects_is_accepted():
    effects = np.random.default_rng(0).normal(size=(8, 3))
    of_list = resampling.sign_flip_test(effects.tolist(), list("abcdefgh"), seed=0)
    assert (of_list.p == resampling.sign_flip_test(effects, range(8), seed=0).p).all()


# --- ties -----------------------------------------------------------------------------------------


def test_a_value_equal_within_float32_is_reached_and_a_smaller_one_is_not():
    draws = np.array([[2.0, 0.5], [2.0 - 1e-7, 0.5 + 1e-7], [1.999, 0.5 - 1e-7], [-8.0, 0.4999]])
    result = resampling.reached(draws, np.array([2.0, 0.5]))
    assert result.tolist() == [[True, True], [True, True], [False, True], [False, False]]
    assert (
        resampling.reached(1e9 * draws, np.array([2e9, 5e8])).tolist() == result.tolist()
    )  # in any unit


def noisy(values, run):
    """The values as from another processor: in float32, with sums in another order."""
    return values * (1 + 1e-7 * np.random.default_rng(run).normal(size=values.shape))


def test_no_p_depends_on_the_last_digit():
    """Whole numbers and few units: many relabellings give exactly the observed statistic."""
    effects = np.random.default_rng(4).integers(-2, 4, size=(6, 12)).astype(float)
    flips = [resampling.sign_flip_test(noisy(effects, run), range(6), seed=0) for run in range(20)]
    assert (
        len({flip.p.tobytes() for flip in flips}) == len({flip.q.tobytes() for flip in flips}) == 1
    )
    apart, is_a, units = (np.array(part) for part in paired([2.0, 1.0, 1.0, 2.0, -1.0, 1.0]))
    assert len({gate(noisy(apart, run), is_a, units).p for run in range(20)}) == 1


def test_compared_without_a_margin_p_depends_on_the_last_digit(monkeypatch):
    """The check can fail."""
    monkeypatch.setattr(resampling, "TIE", 0.0)
    with pytest.raises(AssertionError):
        test_no_p_depends_on_the_last_digit()
