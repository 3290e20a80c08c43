"""Splits that leak nothing, separation against scikit-learn and by hand, and uncertainty that is as wide as it says."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from handmade import make_sentences, without
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from probe import statistics
from probe.errors import InputError
from probe.statistics import MIN_PER_SENSE, Sample

quick = settings(max_examples=60, deadline=None, derandomize=True)
GRID = make_sentences(frames=6, distances=(1, 2))


def cue_of(sentence):
    return sentence.text[sentence.cue_start : sentence.cue_end]


def groups_by_part(sentences, split, name):
    """The values of something in fit and in report."""
    return [{name(sentences[row]) for row in split.rows(part)} for part in ("fit", "report")]


# --- splits ----------------------------------------------------------------------------------------------------------


@quick
@given(seed=st.integers(0, 10_000), dropped=st.sets(st.integers(0, len(GRID) - 1), max_size=150))
def test_no_frame_cue_or_pair_is_in_both_parts(seed, dropped):
    sentences = [sentence for row, sentence in enumerate(GRID) if row not in dropped]
    try:
        split = statistics.split(sentences, seed=seed)
    except InputError as error:
        assert "give more sentences of that sense" in str(error)
        return
    for name in (lambda sentence: sentence.frame, cue_of, lambda sentence: sentence.pair):
        fit, report = groups_by_part(sentences, split, name)
        assert fit and report
        assert not fit & report
    side_of = {}
    for sentence, part in zip(sentences, split.parts, strict=True):
        assert side_of.setdefault(sentence.pair, part) == part  # a pair is not torn, not even out of the study
    assert split.design == "by frame and cue word"


@quick
@given(seed=st.integers(0, 10_000), order=st.permutations(range(40)))
def test_a_split_depends_on_the_seed_and_not_on_the_order_of_rows(seed, order):
    sentences = GRID[:40] + GRID[120:160]
    split = statistics.split(sentences, seed=seed)
    assert split == statistics.split(sentences, seed=seed)
    shuffled = statistics.split([*(sentences[row] for row in order), *sentences[40:]], seed=seed)
    assert shuffled.parts[:40] == tuple(split.parts[row] for row in order)


def test_another_seed_is_another_split():
    assert len({statistics.split(GRID, seed=seed).parts for seed in range(10)}) > 5


def test_a_quarter_of_a_full_grid_is_in_each_part():
    split = statistics.split(GRID, seed=1)
    assert len(split.rows("fit")) == len(split.rows("report")) == len(GRID) // 4


@pytest.mark.parametrize(
    ("missing", "design", "kept_apart"),
    [
        (("cue_start", "cue_end"), "by frame", [lambda sentence: sentence.frame]),
        (("frame",), "by cue word", [cue_of]),
    ],
)
def test_what_is_known_is_kept_apart(missing, design, kept_apart):
    sentences = without(GRID, *missing)
    split = statistics.split(sentences, seed=3)
    assert split.design == design
    assert None not in split.parts
    for name in (*kept_apart, lambda sentence: sentence.pair):
        fit, report = groups_by_part(sentences, split, name)
        assert fit and report and not fit & report


def test_without_frames_and_cues_pairs_stay_together():
    sentences = without(GRID, "frame", "cue_start", "cue_end")
    split = statistics.split(sentences, seed=3)
    fit, report = groups_by_part(sentences, split, lambda sentence: sentence.pair)
    assert not fit & report
    assert split.design == "by sentence (no frames or cue spans were given)"


@quick
@given(counts=st.tuples(st.integers(8, 20), st.integers(8, 20)), seed=st.integers(0, 1000))
def test_without_anything_each_sense_is_halved(counts, seed):
    bare = without(GRID, "frame", "pair", "cue_start", "cue_end")
    sentences = [sentence for number in range(2) for sentence in bare[number::2][: counts[number]]]
    split = statistics.split(sentences, seed=seed)
    for sense, count in zip(("door", "canal"), counts, strict=True):
        parts = [part for sentence, part in zip(sentences, split.parts, strict=True) if sentence.sense == sense]
        assert abs(parts.count("fit") - parts.count("report")) <= 1
        assert len(parts) == count


def test_the_split_of_the_file_is_respected():
    names = ("train", "test", "fit", "report", "dev", None)
    meant = {"train": "fit", "fit": "fit", "test": "report", "report": "report"}
    sentences = [replace(sentence, split=names[row // 2 % 6]) for row, sentence in enumerate(GRID)]
    split = statistics.split(sentences, seed=0)
    assert split.parts == tuple(meant.get(sentence.split) for sentence in sentences)
    assert split.design == "the split given in the file"
    assert split == statistics.split(sentences, seed=99)


def test_cue_words_linked_by_a_chain_of_pairs_are_one_group():
    door, canal = (sentence for sentence in GRID[:2])
    chain = []
    for pair, (a, b) in enumerate([("one", "x"), ("two", "y"), ("two", "x"), ("three", "z")]):
        for like, cue in ((door, a), (canal, b)):
            text = f"the {cue} lock"
            spans = {"start": len(text) - 4, "end": len(text), "cue_start": 4, "cue_end": 4 + len(cue)}
            chain.append(replace(like, text=text, pair=str(pair), **spans))
    groups = statistics.linked_cues(chain)
    assert len(set(groups[:6])) == 1  # one-x, two-y, two-x
    assert len(set(groups[6:])) == 1
    assert groups[0] != groups[6]
    assert statistics.linked_cues(without(chain, "pair")) == ["one", "x", "two", "y", "two", "x", "three", "z"]


def test_too_few_sentences_are_said_in_one_sentence():
    few = [sentence for sentence in GRID if sentence.sense == "door"] + [GRID[1], GRID[3]]
    with pytest.raises(InputError) as error:
        statistics.split(without(few, "frame", "pair", "cue_start", "cue_end"), seed=0)
    assert str(error.value) == (
        "Splitting the sentences of 'lock' by sentence (no frames or cue spans were given): the fit part got 1 of sense "
        f"'canal', expected at least {MIN_PER_SENSE}; give more sentences of that sense."
    )


@quick
@given(groups=st.lists(st.integers(0, 8), min_size=2, max_size=40), count=st.integers(2, 5), seed=st.integers(0, 1000))
def test_folds_test_every_group_once_and_never_train_on_it(groups, count, seed):
    folds = statistics.folds(groups, count, seed=seed)
    if len(set(groups)) == 1:
        assert folds == []
        return
    tested = [row for _, test in folds for row in test]
    assert sorted(tested) == list(range(len(groups)))
    for train, test in folds:
        assert sorted(train + test) == list(range(len(groups)))
        assert not {groups[row] for row in train} & {groups[row] for row in test}
    assert len(folds) == min(count, len(set(groups)))
    assert folds == statistics.folds(groups, count, seed=seed)


# --- separation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decimals", [8, 0])  # 0: many ties
def test_auroc_is_scikit_learns(decimals):
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.4, 1, (13, 3, 2)).round(decimals), rng.normal(0, 1, (17, 3, 2)).round(decimals)
    ours = statistics.auroc(a, b)
    truth = np.r_[np.ones(13), np.zeros(17)]
    for place in np.ndindex(3, 2):
        theirs = roc_auc_score(truth, np.r_[a[(slice(None), *place)], b[(slice(None), *place)]])
        assert ours[place] == pytest.approx(theirs, abs=1e-12)
    np.testing.assert_allclose(statistics.auroc(b, a), 1 - ours, atol=1e-12)  # one-sided: labels swapped, sign flipped


def test_auroc_of_equal_scores_is_chance():
    assert statistics.auroc(np.ones(3), np.ones(5)) == 0.5


def test_hedges_g_by_hand():
    # means 2 and 4, variances 1 and 4: pooled (2*1 + 2*4) / 4 = 2.5; correction 1 - 3 / (4*6 - 9) = 0.8
    g = statistics.hedges_g(np.array([1.0, 2, 3]), np.array([2.0, 4, 6]))
    assert g == pytest.approx(-2 / np.sqrt(2.5) * 0.8)
    # means 1 and 0, variances 2 and 1: pooled (1*2 + 2*1) / 3 = 4/3; correction 1 - 3 / (4*5 - 9) = 8/11
    g = statistics.hedges_g(np.array([0.0, 2]), np.array([-1.0, 0, 1]))
    assert g == pytest.approx(1 / np.sqrt(4 / 3) * 8 / 11)


def test_hedges_g_flips_with_the_labels():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(9, 4)), rng.normal(size=(12, 4))
    np.testing.assert_allclose(statistics.hedges_g(a, b), -statistics.hedges_g(b, a), atol=1e-12)


@pytest.mark.parametrize(("a", "b", "expected"), [(0.3, 0.1, np.inf), (0.1, 0.3, -np.inf), (0.1, 0.1, 0.0)])
def test_hedges_g_where_nothing_varies_within(a, b, expected):
    assert statistics.hedges_g(np.full(5, a), np.full(7, b)) == expected


# --- uncertainty -----------------------------------------------------------------------------------------------------


def test_bootstrap_draws_groups_as_often_as_there_are_groups():
    labels = ["a", "b", "b", "c", "c", "c"]
    weights = statistics.bootstrap_weights([labels], seed=0, draws=4000)
    assert weights.shape == (4000, 6)
    assert (weights[:, 1] == weights[:, 2]).all() and (weights[:, 3] == weights[:, 5]).all()
    assert (weights[:, [0, 1, 3]].sum(1) == 3).all()
    # binomial(3, 1/3): mean 1, variance 2/3
    np.testing.assert_allclose(weights[:, [0, 1, 3]].mean(0), 1, atol=0.06)
    np.testing.assert_allclose(weights[:, [0, 1, 3]].var(0), 2 / 3, atol=0.06)
    again = statistics.bootstrap_weights([labels], seed=0, draws=4000)
    assert np.array_equal(weights, again)
    assert not np.array_equal(weights, statistics.bootstrap_weights([labels], seed=1, draws=4000))


def test_crossed_factors_are_drawn_on_their_own():
    frames, cues = zip(*product("abcd", "xyz"), strict=True)
    weights = statistics.bootstrap_weights([frames, cues], seed=0, draws=50).reshape(50, 4, 3)
    for draw in weights:
        by_frame, by_cue = draw.sum(1) / 3, draw.sum(0) / 4
        np.testing.assert_array_equal(draw, np.outer(by_frame, by_cue))
        assert by_frame.sum() == 4 and by_cue.sum() == 3


def test_a_draw_without_a_single_row_counts_as_the_data():
    weights = statistics.bootstrap_weights([["a", "b"], ["x", "y"]], seed=0, draws=500)  # frame a met only x, b only y
    assert (weights.sum(1) > 0).all()
    assert (weights == 1).all(1).any()


def coverage(make, factors, *, runs=400):
    """How often the 95 % interval of the mean holds the true mean, 0."""
    hits = 0
    for run in range(runs):
        values = make(np.random.default_rng(run))
        weights = statistics.bootstrap_weights(factors, seed=run, draws=400)
        low, high = statistics.interval(statistics.bootstrap_ratio(values, np.ones(len(values)), weights))
        hits += bool(low <= 0 <= high)
    return hits / runs


def test_intervals_of_independent_rows_cover():
    rows = [str(row) for row in range(40)]
    # Percentile intervals of 40 rows are a little narrow (nominal .94); 3 standard errors of 400 runs are .036.
    assert 0.90 <= coverage(lambda rng: rng.normal(size=40), [rows]) <= 0.98


def test_intervals_of_crossed_rows_cover_where_independent_cells_would_not():
    frames, cues = zip(*product(range(10), range(10)), strict=True)
    cells = [str(cell) for cell in range(100)]

    def crossed(rng):
        return rng.normal(size=10)[list(frames)] + rng.normal(size=10)[list(cues)] + rng.normal(size=100)

    assert 0.88 <= coverage(crossed, [frames, cues]) <= 0.99
    assert coverage(crossed, [cells]) < 0.75


def test_a_ratio_is_of_sums_and_not_a_mean_of_ratios():
    top, bottom = np.array([[1.0, 0], [3, 1], [2, 5]]), np.array([1.0, 2, 5])
    weights = np.array([[1.0, 1, 1], [2, 0, 1]])
    expected = [[6 / 8, 6 / 8], [4 / 7, 5 / 7]]
    np.testing.assert_allclose(statistics.bootstrap_ratio(top, bottom, weights), expected)


def test_an_interval_is_central():
    low, high = statistics.interval(np.arange(1001.0))
    assert (low, high) == pytest.approx((25, 975))
    low, high = statistics.interval(np.arange(1001.0), level=0.5)
    assert (low, high) == pytest.approx((250, 750))


# --- the gate --------------------------------------------------------------------------------------------------------


def sample(rows, is_a, units):
    return Sample(np.asarray(rows, dtype=float), list(is_a), list(units))


def paired(differences, rng=None, d=1):
    """One sentence of each sense per unit, `differences` apart along the first coordinate."""
    rows, is_a, units = [], [], []
    for unit, difference in enumerate(differences):
        noise = rng.normal(size=(2, d)) if rng else np.zeros((2, d))
        noise[:, 0] += (difference / 2, -difference / 2)
        rows += list(noise)
        is_a += [True, False]
        units += [unit, unit]
    return sample(rows, is_a, units)


@pytest.mark.parametrize("kind", ["both", "single", "mixed"])
def test_the_observed_difference_is_the_difference_of_means(kind):
    rng = np.random.default_rng(2)
    rows, units = rng.normal(size=(24, 5)), np.arange(24) // 3
    is_a = {"both": np.arange(24) % 3 > 0, "single": units % 2 == 0, "mixed": rng.random(24) < 0.4}[kind]
    found = statistics._differences(sample(rows, is_a, units), rng)
    assert found.shape == (1 + statistics.PERMUTATIONS, 5)
    np.testing.assert_allclose(found[0], rows[is_a].mean(0) - rows[~is_a].mean(0), atol=1e-12)
    spread = np.abs(found[1:] - found[0]).max(1)
    assert (spread > 1e-6).mean() > 0.9


def test_units_of_one_sense_keep_their_number():
    rows = np.eye(6)
    found = statistics._differences(sample(rows, [1, 1, 0, 0, 0, 0], range(6)), np.random.default_rng(0))
    assert {tuple(sorted(np.round(row, 12))) for row in found} == {(-0.25, -0.25, -0.25, -0.25, 0.5, 0.5)}


def test_p_of_a_small_case_is_the_exact_one():
    """Three pairs in each part, one number each: all 64 reassignments can be counted."""
    fit, report = np.array([3.0, 1, 0.5]), np.array([2.0, 1.5, 0.3])
    signs = np.array(list(product([1, -1], repeat=3)))
    products = np.outer(signs @ fit, signs @ report).ravel()
    found = []
    for fit_signs, report_signs in product(signs, signs):
        observed = (fit_signs @ fit) * (report_signs @ report)
        exact = np.mean(products >= observed - 1e-9)
        p = statistics.gap_p(paired(fit_signs * fit), paired(report_signs * report), seed=1)
        assert p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / statistics.PERMUTATIONS) + 1e-3)
        found.append(p)
    for level in (0.05, 0.1, 0.25, 0.5, 0.75):  # never more often small than it should be
        assert np.mean(np.array(found) <= level) <= level + 0.02


def test_a_gap_without_doubt_passes_with_few_cues():
    perfect = paired([2.0] * 5), paired([2.0] * 5)
    assert statistics.gap_p(*perfect, seed=0) < 0.005  # 2 of 1,024 reassignments


def test_a_gap_that_points_the_other_way_does_not_pass():
    assert statistics.gap_p(paired([2.0] * 5), paired([-2.0] * 5), seed=0) > 0.99


def test_no_gap_at_all_is_p_one():
    assert statistics.gap_p(paired([0.0] * 5), paired([0.0] * 5), seed=0) == 1


@pytest.mark.parametrize("single", [True, False])
def test_under_the_null_p_is_uniform(single):
    """Cue words that differ from each other, senses that do not: each unit a vector of its own, many dimensions."""
    found = []
    for run in range(200):
        rng = np.random.default_rng(run)
        parts = []
        for _ in range(2):
            centres = rng.normal(size=(12, 8)) if single else rng.normal(size=(6, 2, 8)).reshape(12, 8)
            rows = np.repeat(centres, 3, axis=0) + 0.1 * rng.normal(size=(36, 8))
            cue = np.repeat(np.arange(12), 3)
            parts.append(sample(rows, cue % 2 == 0, cue if single else cue // 2))
        found.append(statistics.gap_p(*parts, seed=run))
    for level in (0.05, 0.25, 0.5, 0.75):
        assert abs(np.mean(np.array(found) <= level) - level) < 3 * np.sqrt(level * (1 - level) / 200)


def test_paired_and_unpaired_cues_may_stand_side_by_side():
    def mixed():
        both, alone = paired([2.0] * 4), sample([[1.0]] * 4 + [[-1.0]] * 4, [True] * 4 + [False] * 4, range(10, 18))
        return sample(np.vstack([both.rows, alone.rows]), [*both.is_a, *alone.is_a], [*both.units, *alone.units])

    assert statistics.gap_p(mixed(), mixed(), seed=0) < 0.005
