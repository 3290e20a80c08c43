"""Tests and intervals where nothing is symmetric, in simulated data whose truth is known.

Effects of parts with a left tail · AUROCs near 1 · ratios of sums. What is resampled in each case
is cue words, or cue words crossed with frames. `FEW` runs every time, more in the campaign; with
few runs the bound is that of a binomial count (`likely`).
"""

import numpy as np
import pytest
from inside import resampling
from scipy.optimize import brentq
from scipy.stats import norm
from seeds import likely, mostly_campaign

FEW = 100
RUNS = mostly_campaign((FEW, 500))
PARTS = 30
LEFT = {
    "normal": lambda rng, size: rng.normal(size=size),
    "left-skewed": lambda rng, size: 1 - rng.exponential(size=size),  # skewness -2, mean 0
}
CUES_25_29 = [("cue", number) for number in range(54)]


def crossed(cues, frames, each):
    """The frames and cue words of sentences: each cue word in `each` frames."""
    cue = np.repeat(np.arange(cues), each)
    frame = (cue * 5 + np.tile(np.arange(each) * 7, cues)) % frames
    assert len({*zip(cue, frame, strict=True)}) == cues * each
    return frame, cue


def parts_without_effect(rng, draw, *, frames):
    """Effects of parts whose mean is 0, on different scales, and what varies in them."""
    if frames:
        frame, cue = crossed(24, 12, 3)
        effects = draw(rng, (24, PARTS))[cue] + 0.6 * draw(rng, (12, PARTS))[frame]
        effects += 0.8 * draw(rng, (72, PARTS))
        factors = [frame.tolist(), cue.tolist()]
    else:
        effects, factors = draw(rng, (16, PARTS)), [list(range(16))]
    return effects * np.exp(1.5 * rng.normal(size=PARTS)), factors


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("frames", [False, True])
@pytest.mark.parametrize("kind", mostly_campaign(("left-skewed", "normal")))
def test_the_family_wise_error_of_bootstrap_t_is_at_the_level(kind, frames, runs):
    rng = np.random.default_rng(0)
    claims = 0
    for run in range(runs):
        effects, factors = parts_without_effect(rng, LEFT[kind], frames=frames)
        claims += resampling.bootstrap_t(effects, factors, seed=run, draws=300).p.min() < 0.05
    lower, upper = likely(0.05, runs)
    assert lower <= claims <= upper
    assert runs == FEW or 0.02 <= claims / runs <= 0.08


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("kind", ["senses", "nouns"])
def test_sign_flips_hold_their_level_where_two_things_are_exchanged(kind, runs):
    """A swap whose head writes the same in both senses, and a noun that moves like the word:
    M(z_A) - M(z_B) and word - noun are symmetric, however skewed M is."""
    rng = np.random.default_rng(1)
    claims = 0
    for run in range(runs):
        first, second = (LEFT["left-skewed"](rng, (16, PARTS)) for _ in range(2))
        if kind == "nouns":  # both move with the same sentence
            shared = LEFT["left-skewed"](rng, (16, 1))
            first, second = shared * first, shared * second
        test = resampling.flip_signs(first - second, list(range(16)), seed=run, draws=300)
        claims += test.p.min() < 0.05
    lower, upper = likely(0.05, runs)
    assert lower <= claims <= upper
    assert runs == FEW or 0.02 <= claims / runs <= 0.08


def test_bootstrap_t_finds_an_effect_among_many_parts_and_no_effect_that_is_constant_zero():
    rng = np.random.default_rng(0)
    effects = rng.normal(size=(16, PARTS))
    effects[:, 3] += 2
    effects[:, 4] = 0
    effects[:, 5] = -1
    p = resampling.bootstrap_t(effects, [list(range(16))]).p
    assert p[3] < 0.01
    assert p[[4, 5]].min() == 1
    one_cue_word = resampling.bootstrap_t(effects, [["loan"] * 16])
    assert (one_cue_word.p == 1).all()


# --- intervals ------------------------------------------------------------------------------------


def interval_of(scores, is_a, factors):
    estimate = resampling.auroc(scores[is_a], scores[~is_a])
    low, high = resampling.auroc_interval(
        np.array([estimate]), scores[:, None], list(is_a), factors
    )
    return low[0], high[0]


@pytest.mark.parametrize("copies", [1, 4])
def test_after_complete_separation_the_lower_end_is_newcombes(copies):
    """(1 - A)² = z² V(A) deff, with V of Hanley and McNeil and N* for both sizes; solved by another
    root finder. With c equal sentences of each of 54 cue words, the variance of clustered scores is
    54 / 53 c times that of independent ones, and half of the excess over 1 counts."""
    is_a = np.arange(54) < 25
    deff = 1 + (54 / 53 * copies - 1) / 2
    n, m = 25 * copies, 29 * copies

    def missing(a):
        q1, q2, others = a / (2 - a), 2 * a**2 / (1 + a), (n + m) / 2 - 1
        variance = (a * (1 - a) + others * (q1 - a**2) + others * (q2 - a**2)) / (n * m)
        return (1 - a) ** 2 - norm.ppf(0.975) ** 2 * variance * deff

    scores = np.tile(np.where(is_a, 10.0, 0.0) + np.linspace(0, 1, 54), copies)
    is_a = np.tile(is_a, copies)
    low, high = interval_of(scores, is_a, [CUES_25_29 * copies])
    assert low == pytest.approx(brentq(missing, 0.5, 1 - 1e-9), abs=1e-9)
    assert 0.9 < low < 0.97 and high == 1
    reversed_ends = interval_of(-scores, is_a, [CUES_25_29 * copies])
    assert reversed_ends == pytest.approx((0, 1 - low))


@pytest.mark.parametrize("runs", mostly_campaign((FEW, 2000)))
@pytest.mark.parametrize("frames", [0, 5])
@pytest.mark.parametrize("auroc", mostly_campaign((0.97, 0.995, 0.8, 0.985), here=2))
def test_intervals_of_aurocs_cover_also_near_1(auroc, frames, runs):
    """25 and 29 cue words, of which each has a score, or 25 and 29 cue words crossed with frames."""
    rng = np.random.default_rng([int(1000 * auroc), frames])
    each = max(frames, 1)
    cue = np.repeat(np.arange(54), each)
    frame = np.tile(np.arange(each), 54)
    is_a = cue < 25
    factors = [frame.tolist(), cue.tolist()] if frames else [cue.tolist()]
    covered = 0
    for _ in range(runs):
        # Variance 1 in all: .4 of cue words, .2 of frames.
        noise = rng.normal(size=54 * each)
        if frames:
            noise = np.sqrt(0.4) * noise + np.sqrt(0.4) * rng.normal(size=54)[cue]
            noise += np.sqrt(0.2) * rng.normal(size=each)[frame]
        low, high = interval_of(np.sqrt(2) * norm.ppf(auroc) * is_a + noise, is_a, factors)
        covered += low <= auroc <= high
    assert covered >= likely(0.92, runs)[0]
    # Complete separation is frequent from .985 on, and its interval reaches 1.
    most = 0.98 if auroc < 0.98 else 0.99
    assert runs == FEW or 0.92 <= covered / runs <= most


SHARE_LAYOUTS = {
    "crossed": crossed(24, 12, 3),
    "most cue words once": crossed(56, 19, 2),
    "pairs in frames": (np.repeat(np.arange(8), 2), np.arange(16)),
}


def shares(rng, frame, cue, draw):
    """Contrasts, and the scores of a part that supplies .6 of them; both vary by frame, cue word
    and sentence."""

    def noise():
        of_frames = np.sqrt(0.3) * draw(rng, frame.max() + 1)[frame]
        return (
            of_frames
            + np.sqrt(0.4) * draw(rng, cue.max() + 1)[cue]
            + np.sqrt(0.3) * draw(rng, len(cue))
        )

    varying = noise()
    return 2 + varying, 1.2 + 0.5 * varying + 0.7 * noise()


@pytest.mark.parametrize("runs", mostly_campaign((FEW, 1000)))
@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("layout", SHARE_LAYOUTS)
def test_intervals_of_shares_cover_with_frames_and_cue_words(layout, kind, runs):
    frame, cue = SHARE_LAYOUTS[layout]
    rng = np.random.default_rng(len(cue))
    covered = 0
    for _ in range(runs):
        contrast, score = shares(rng, frame, cue, LEFT[kind])
        _, low, high = resampling.ratio_interval(score, contrast, [frame.tolist(), cue.tolist()])
        covered += low <= 0.6 <= high
    assert covered >= likely(0.92, runs)[0]
    assert runs == FEW or 0.92 <= covered / runs <= 0.98


def test_the_error_of_a_share_adds_up_over_frames_and_cue_words():
    """Var = Σ_cue (Σ e)² + Σ_frame (Σ e)² - Σ e², a sum over g labels times g / (g - 1), with e the
    residuals; counted one by one. t of .975 with 11 degrees of freedom is 2.200985."""
    frame, cue = crossed(24, 12, 3)
    contrast, score = shares(np.random.default_rng(1), frame, cue, LEFT["normal"])
    share = score.sum() / contrast.sum()
    e = (score - share * contrast) / contrast.sum()
    variance = -sum(each**2 for each in e)
    for labels, number in ((frame, 12), (cue, 24)):
        of_labels = [e[labels == label].sum() ** 2 for label in range(number)]
        variance += number / (number - 1) * sum(of_labels)
    _, low, high = resampling.ratio_interval(score, contrast, [frame.tolist(), cue.tolist()])
    reach = 2.200985 * np.sqrt(variance)
    assert (low, high) == pytest.approx((share - reach, share + reach), rel=1e-6)


def test_the_interval_of_a_ratio_is_the_textbooks_for_a_mean():
    values = np.array([1.0, 2.0, 4.0, 7.0])
    ratio, low, high = resampling.ratio_interval(values, np.ones(4), [["a", "b", "c", "d"]])
    reach = 3.182446 * np.std(values, ddof=1) / 2  # t of .975 with 3 degrees of freedom
    assert (ratio, low, high) == pytest.approx((3.5, 3.5 - reach, 3.5 + reach), rel=1e-6)
    one_unit = resampling.ratio_interval(values, np.ones(4), [["a"] * 4])
    assert one_unit[0] == 3.5 and np.isnan(one_unit[1:]).all()
    assert np.isnan(resampling.ratio_interval(values, np.zeros(4), [["a", "b", "c", "d"]])).all()
