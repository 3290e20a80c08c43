"""Splits, separation and uncertainty: what makes a number about sentences a statement about more than those sentences.

All functions take and return numpy arrays; the first axis is sentences (or pairs), any further axes (layer, head) are
carried along. Every random choice comes from an explicit seed.

Sources: Hanley & McNeil 1982 (AUROC as a rank statistic); Hedges 1981 (g); Efron & Tibshirani 1993 (bootstrap);
Owen 2007 (bootstrap of
crossed factors); Winkler et al. 2014 (sign flips of exchangeable groups).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probe.errors import InputError
from probe.lexicon import Sentence

Array = NDArray[np.float64]
PARTS = ("fit", "report")
GIVEN_PARTS = {"fit": "fit", "train": "fit", "report": "report", "test": "report"}
MIN_PER_SENSE = 4
DRAWS = 2000
PERMUTATIONS = 4999


@dataclass(frozen=True)
class Split:
    """Which part each sentence belongs to (None: it would link the parts, so it is in neither), and how that was decided."""

    parts: tuple[str | None, ...]
    design: str

    def rows(self, part: str) -> list[int]:
        return [index for index, name in enumerate(self.parts) if name == part]


def split(sentences: Sequence[Sentence], *, seed: int) -> Split:
    """Part the sentences of one word into fit and report so that no frame and no cue word stands in both.

    Where the file gives a split it is kept (train is fit, test is report). Sentences whose frame falls on one side and
    whose cue on the other are in neither. Without frames and cues the split is by pair, or by sentence within each sense.
    Raises InputError when a sense keeps fewer than MIN_PER_SENSE sentences in either part.
    """
    given = [GIVEN_PARTS.get(sentence.split or "") for sentence in sentences]
    if any(given):
        result = Split(tuple(given), "the split given in the file")
    else:
        rng = np.random.default_rng(seed)
        by_frame = _halves([sentence.frame for sentence in sentences], rng)
        by_cue = _halves(linked_cues(sentences), rng)
        if by_frame is None and by_cue is None:
            by_unit = _halves([sentence.pair or index for index, sentence in enumerate(sentences)], rng, sentences)
            result = Split(tuple(by_unit or ()), "by sentence (no frames or cue spans were given)")
        else:
            sides = [side for side in (by_frame, by_cue) if side is not None]
            parts = tuple(votes[0] if len(set(votes)) == 1 else None for votes in zip(*sides, strict=True))
            names = " and ".join(name for name, side in (("frame", by_frame), ("cue word", by_cue)) if side is not None)
            result = Split(parts, f"by {names}")
    _require_enough(sentences, result)
    return result


def _halves(
    groups: Sequence[Hashable], rng: np.random.Generator, strata: Sequence[Sentence] | None = None
) -> list[str | None] | None:
    """Send whole groups to fit or report in a shuffled, alternating order; None where there are not two groups to part."""
    if any(group is None for group in groups):
        return None
    order = sorted(set(groups), key=str)
    if len(order) < 2:
        return None
    shuffled = [order[index] for index in rng.permutation(len(order))]
    if strata is not None:  # alternate within each sense, so that both parts hold all senses
        sense_of = {group: sentence.sense for group, sentence in zip(groups, strata, strict=True)}
        shuffled.sort(key=lambda group: sense_of[group])
    side = {group: PARTS[rank % 2] for rank, group in enumerate(shuffled)}
    return [side[group] for group in groups]


def linked_cues(sentences: Sequence[Sentence]) -> list[Hashable]:
    """A group per cue word; cue words that share a pair are one group, so that no pair is torn apart. None: no cue given."""
    if any(sentence.cue_start is None for sentence in sentences):
        return [None] * len(sentences)
    cues = [sentence.text[sentence.cue_start : sentence.cue_end].casefold() for sentence in sentences]
    root = {cue: cue for cue in cues}

    def find(cue: str) -> str:
        while root[cue] != cue:
            cue = root[cue]
        return cue

    first_of_pair: dict[str, str] = {}
    for sentence, cue in zip(sentences, cues, strict=True):
        if sentence.pair is not None:
            ends = sorted((find(cue), find(first_of_pair.setdefault(sentence.pair, cue))))
            root[ends[1]] = ends[0]
    return [find(cue) for cue in cues]


def cue_units(sentences: Sequence[Sentence]) -> list[Hashable]:
    """What may be exchanged as a whole: the linked cue words, or each sentence by itself where no cues are known."""
    return [row if cue is None else cue for row, cue in enumerate(linked_cues(sentences))]


def _require_enough(sentences: Sequence[Sentence], split: Split) -> None:
    for sense in sorted({sentence.sense for sentence in sentences}):
        for part in PARTS:
            count = sum(sentences[row].sense == sense for row in split.rows(part))
            if count < MIN_PER_SENSE:
                raise InputError(
                    f"Splitting the sentences of {sentences[0].word!r} {split.design}: the {part} part got {count} of sense "
                    f"{sense!r}, expected at least {MIN_PER_SENSE}; give more sentences of that sense."
                )


def folds(groups: Sequence[Hashable], count: int, *, seed: int) -> list[tuple[list[int], list[int]]]:
    """(train, test) row lists in which each group is tested exactly once and never trained on at the same time."""
    order = sorted(set(groups), key=str)
    shuffled = [order[index] for index in np.random.default_rng(seed).permutation(len(order))]
    fold_of = {group: rank % count for rank, group in enumerate(shuffled)}
    of_row = [fold_of[group] for group in groups]
    pairs = [
        ([r for r, f in enumerate(of_row) if f != fold], [r for r, f in enumerate(of_row) if f == fold])
        for fold in range(min(count, len(order)))
    ]
    return [(train, test) for train, test in pairs if train and test]


def auroc(a: Array, b: Array) -> Array:
    """P(score of an A sentence > score of a B sentence), ties one half; 0.5 is chance, 1 perfect. `n ..., m ... -> ...`

    One-sided: the sign is the caller's to fix beforehand, so a value under 0.5 stays under 0.5.
    """
    ranks = rankdata(np.concatenate([a, b]), axis=0)
    n, m = len(a), len(b)
    return np.asarray((ranks[:n].sum(0) - n * (n + 1) / 2) / (n * m))


def hedges_g(a: Array, b: Array) -> Array:
    """Mean difference in pooled standard deviations, corrected for small samples. `n ..., m ... -> ...`

    Plus or minus infinity where nothing varies within and the means differ, 0 where nothing differs at all.
    """
    n, m = len(a), len(b)
    a, b = a - a[:1], b - a[:1]  # equal numbers become exactly 0: the mean of n equal floats need not equal that of m
    pooled = ((n - 1) * a.var(0, ddof=1) + (m - 1) * b.var(0, ddof=1)) / (n + m - 2)
    difference = a.mean(0) - b.mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = np.where(difference == 0, 0.0, difference / np.sqrt(pooled))
    return np.asarray(raw * (1 - 3 / (4 * (n + m) - 9)))


def bootstrap_weights(crossed: Sequence[Sequence[Hashable]], *, seed: int, draws: int = DRAWS) -> Array:
    """How often each row is drawn when every crossed factor (frames, cue words) is resampled on its own. `-> draws n`

    `crossed` holds one label per row for each factor; a row's weight is the product of its labels' counts. Resampling cells
    of frame and cue as if they were independent would make intervals far too narrow, because every frame reuses the same cues.
    Source: Owen 2007, the pigeonhole bootstrap.
    """
    rng = np.random.default_rng(seed)
    weights = np.ones((draws, len(crossed[0])))
    for labels in crossed:
        names = {name: index for index, name in enumerate(dict.fromkeys(labels))}
        counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
        weights *= counts[:, [names[label] for label in labels]]
    empty = weights.sum(1) == 0
    weights[empty] = 1.0  # a draw in which no frame met its cues says nothing: it counts as the data themselves
    return weights


def bootstrap_ratio(numerator: Array, denominator: Array, weights: Array) -> Array:
    """Ratio of sums in every bootstrap draw. `n ..., n, draws n -> draws ...`"""
    top = np.tensordot(weights, numerator, axes=1)
    bottom = weights @ denominator
    return np.asarray(top / bottom.reshape(-1, *[1] * (top.ndim - 1)))


def interval(draws: Array, level: float = 0.95) -> tuple[Array, Array]:
    """The central percentile interval over the first axis. `draws ... -> (...), (...)`"""
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
    return low, high


@dataclass(frozen=True, eq=False)
class Sample:
    """Vectors with their sense: `rows: n d_model`, whether each is of sense A, and its unit, which is exchanged as a whole."""

    rows: Array
    is_a: Sequence[bool]
    units: Sequence[Hashable]


def gap_p(fit: Sample, report: Sample, *, seed: int) -> float:
    """One-sided p that the report part's gap along the axis fitted on the fit part is above chance.

    The statistic is <D_report, D_fit>, D a difference of sense means: the gap times the length of the fitted axis. (Divided by
    |D_fit|² it would be the gap itself, and have no power: reassigning most of the fit part makes the divisor tiny.) Sense
    labels are reassigned to units (a cue word, with its partner if cues come in pairs) in both parts and the axis is fitted
    again: units that hold both senses are flipped, units of one sense are shuffled. Flipping frames instead would test whether
    these few cue words differ, which any model's do, and not whether the senses do. `-> (1 + hits) / (1 + PERMUTATIONS)`
    """
    rng = np.random.default_rng(seed)
    fitted, found = _differences(fit, rng), _differences(report, rng)
    products = (found * fitted).sum(1)
    hits = np.count_nonzero(products[1:] >= products[0] - 1e-9 * abs(products[0]))
    return float((1 + hits) / (1 + PERMUTATIONS))


def _differences(sample: Sample, rng: np.random.Generator) -> Array:
    """The difference of sense means as observed (first) and under PERMUTATIONS reassignments. `n d -> 1 + PERMUTATIONS, d`"""
    of_a = np.asarray(sample.is_a, dtype=bool)
    member = np.array([[unit == name for unit in sample.units] for name in dict.fromkeys(sample.units)])  # unit n
    count_a, count_b = (member @ side.astype(float) for side in (of_a, ~of_a))
    turned = rng.random((PERMUTATIONS, len(member))) < 0.5
    single = (count_a == 0) | (count_b == 0)
    own = count_a[single] > 0
    turned[:, single] = rng.permuted(np.tile(own, (PERMUTATIONS, 1)), axis=1) != own
    turned = np.vstack([np.zeros(len(member), dtype=bool), turned]).astype(float)
    sum_a, sum_b = ((member & side) @ sample.rows for side in (of_a, ~of_a))  # unit d
    now_a = sum_a.sum(0) + turned @ (sum_b - sum_a)  # the rows of turned units change sides
    size_a = (count_a.sum() + turned @ (count_b - count_a))[:, None]
    return np.asarray(now_a / size_a - (sample.rows.sum(0) - now_a) / (len(of_a) - size_a))
