"""Held-out separation of each head's write along a direction fitted for that head, and a word's
corrected tests.

Each kind of test (separation, swap, opposes, next token, continuation) is one family over all heads
and all pairs of senses of the word, corrected by step-down max-T. Separation permutes senses over
cue words; swap tests flip signs per pair of cue words.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from probe.side_by_side import in_order
from probe.stats import resampling
from probe.stats.resampling import Array, Labels, MaxT
from probe.text.splits import CrossFit, Holdout

MANY = 100  # sentences per sense: with fewer, a direction of d_head numbers (64, say) fits noise
# Below the fifty sentences per sense from which a result is no longer called exploratory.
COMPONENTS = 16
# Relabellings in one batch: so few that their arrays stay in the processor's cache.
CHUNK = 16
# Added to the variance within senses, so that a direction in which nothing varies does not decide
# by itself. Relative to the largest variance, and to the largest squared difference.
LEAST_VARIANCE = 1e-9
LEAST_DIFFERENCE = 1e-12


@dataclass(frozen=True, eq=False)
class Separation:
    """Held-out separation of two senses by each head's write.

    `layer head`; `null: 1 + permutations layer head`
    """

    auroc: Array
    auroc_low: Array
    auroc_high: Array
    hedges_g: Array
    null: Array

    @property
    def permutations(self) -> int:
        """How many times the senses were reassigned."""
        return len(self.null) - 1


@dataclass(frozen=True, eq=False)
class Tests:
    """Corrected tests of one pair of senses. `layer head` each

    `separation`: the AUROC of the head's write.
    `swap`, `opposes`: the swap effect toward the donor's sense, and away from it.
    `next_token`: None for a model that predicts no tokens.
    `continuation`: the logits of continuations; None if the lexicon has no continuations.
    """

    separation: MaxT
    swap: MaxT
    opposes: MaxT
    next_token: MaxT | None = None
    continuation: MaxT | None = None


class GroupSums(NamedTuple):
    """Groups of rows that change their sense together.

    rows: the sum of each group. `head group d`
    size: the number of its rows. `group`
    total, total_squares: of all rows, and of their squares. `head d`
    """

    rows: Array
    size: Array
    total: Array
    total_squares: Array


def sums_of(rows: Array, group: NDArray[np.intp]) -> GroupSums:
    """The sums of groups of rows. `head n d, n`"""
    member = np.zeros((group.max() + 1, len(group)))
    member[group, np.arange(len(group))] = 1
    return GroupSums(member @ rows, member.sum(1), rows.sum(1), (rows**2).sum(1))


def measure_separation(
    writes: Tensor, split: CrossFit, *, permutations: int, seed: int
) -> Separation:
    """Held-out AUROC and Hedges' g of every head's write, and AUROC under every relabelling.

    `writes: layer head row d_head`.

    Each holdout fits a direction for every head on its training sentences. Each sentence is scored
    once, along the direction of the holdout that tests it, and compared with the sentences of the
    other sense in the same holdout.
    """
    shape = writes.shape[:2]
    is_a = np.array(split.is_a)
    rng = np.random.default_rng(seed)
    labels = resampling.relabel(split.is_a, split.exchanged, draws=permutations, rng=rng)
    factors = resampling.crossed_factors(split.frames, split.units)

    # The first axis is labellings, the observed one first.
    under_labels = _Comparisons.none(len(labels), shape.numel())
    scores = np.full((shape.numel(), len(is_a)), np.nan)
    for holdout, fitted in zip(split.holdouts, _fitted(writes, split, labels), strict=True):
        train = list(holdout.train)
        test = list(holdout.test)
        under_labels += fitted.comparisons
        rows = np.concatenate([fitted.rows, fitted.new], axis=1)
        all_scores = own_scores(fitted.sums, fitted.training_labels[:1], rows)[0]
        scores[:, test] = _calibrated(all_scores, is_a[train])

    null = under_labels.auroc()
    has_scores = ~np.isnan(scores[0])
    of_scored = [list(compress(labels, has_scores)) for labels in factors]
    low, high = resampling.auroc_interval(
        null[0], scores[:, has_scores].T, list(is_a[has_scores]), of_scored
    )
    g = resampling.hedges_g(scores[:, has_scores & is_a].T, scores[:, has_scores & ~is_a].T)
    return Separation(
        auroc=null[0].reshape(shape),
        auroc_low=low.reshape(shape),
        auroc_high=high.reshape(shape),
        hedges_g=g.reshape(shape),
        null=null.reshape(-1, *shape),
    )


def held_out_auroc(writes: Tensor, split: CrossFit) -> Array:
    """The AUROC of `measure_separation` by itself, without intervals and relabellings. `layer head
    row d_head -> layer head`"""
    shape = writes.shape[:2]
    compared = _Comparisons.none(1, shape.numel())
    for fitted in _fitted(writes, split, np.array(split.is_a)[None]):
        compared += fitted.comparisons
    return compared.auroc()[0].reshape(shape)


class _Fitted(NamedTuple):
    """One holdout, reduced.

    rows: `head n d`, the rows for fitting
    new: `head m d`, the held-out rows
    sums: of the rows that change their sense together
    training_labels: `draw group`, their labels under every labelling
    comparisons: of the held-out rows
    """

    rows: Array
    new: Array
    sums: GroupSums
    training_labels: Labels
    comparisons: "_Comparisons"


def _fitted(writes: Tensor, split: CrossFit, labels: Labels) -> Iterator[_Fitted]:
    """Every holdout of a split, under all labellings. `layer head row d_head, draw row`"""
    is_a = np.array(split.is_a)
    exchanged, _ = resampling.as_numbers(list(zip(split.exchanged, split.is_a, strict=True)))

    def fit(holdout: Holdout) -> _Fitted:
        train = list(holdout.train)
        test = list(holdout.test)
        rows, new = _reduced_heads(writes[:, :, train], writes[:, :, test], is_a[train])
        # Rows that change their sense together enter every labelling as one sum.
        first, group = np.unique(exchanged[train], return_index=True, return_inverse=True)[1:]
        sums = sums_of(rows, group)
        training_labels = labels[:, train][:, first]
        of_a = labels[:, test].sum(1)
        wins = separation_null(sums, training_labels, new, labels[:, test])
        comparisons = _Comparisons(wins, of_a * (len(test) - of_a))
        return _Fitted(rows, new, sums, training_labels, comparisons)

    return in_order([partial(fit, holdout) for holdout in split.holdouts], writes.device)


@dataclass(frozen=True, eq=False)
class _Comparisons:
    """Comparisons of a sentence of A with one of B: how many A won, and how many there were.

    `draw head, draw`
    """

    won: Array
    number: Array

    @classmethod
    def none(cls, draws: int, heads: int) -> "_Comparisons":
        """No comparisons yet."""
        return cls(np.zeros((draws, heads)), np.zeros(draws))

    def __add__(self, addend: "_Comparisons") -> "_Comparisons":
        return _Comparisons(self.won + addend.won, self.number + addend.number)

    def auroc(self) -> Array:
        """The share of comparisons that A won; one half if there are none. `draw head`"""
        number = self.number[:, None]
        return np.divide(self.won, number, out=np.full_like(self.won, 0.5), where=number > 0)


def _reduced_heads(fit: Tensor, new: Tensor, is_a: NDArray[np.bool_]) -> tuple[Array, Array]:
    """`reduced`, with layers and heads in one axis.

    `layer head n d, layer head m d -> head n k, head m k`
    """
    per_sense = int(min(is_a.sum(), (~is_a).sum()))
    fit, new = reduced(fit, new, per_sense=per_sense)
    return fit.flatten(0, 1).numpy(), new.flatten(0, 1).numpy()


def _calibrated(scores: Array, is_a: NDArray[np.bool_]) -> Array:
    """New scores on a scale where the fitted scores average +1/2 for A and -1/2 for B.

    `head n + m -> head m`

    The n fitted scores come first.
    """
    fit_scores, new = np.split(scores, [len(is_a)], axis=1)
    mean_a = fit_scores[:, is_a].mean(1, keepdims=True)
    mean_b = fit_scores[:, ~is_a].mean(1, keepdims=True)
    gap = mean_a - mean_b
    return (new - (mean_a + mean_b) / 2) / np.where(gap > 0, gap, 1.0)


def reduced(fit: Tensor, new: Tensor, *, per_sense: int) -> tuple[Tensor, Tensor]:
    """Writes centred on the fit part, and reduced to principal components if there are few
    sentences. `... n d, ... m d -> ... n k, ... m k`

    With fewer than MANY sentences per sense, at most COMPONENTS components are kept, so that a
    direction has fewer numbers than sentences. Labels are not used, so one reduction serves every
    relabelling.
    """
    centre = fit.mean(-2, keepdim=True)
    centred = fit - centre
    new_centred = new - centre
    if per_sense >= MANY:
        return centred, new_centred
    by_variance = torch.linalg.eigh(centred.transpose(-1, -2) @ centred).eigenvectors
    largest_first = by_variance.flip(-1)
    basis = largest_first[..., : min(COMPONENTS, fit.shape[-2] - 1)]
    return centred @ basis, new_centred @ basis


def own_direction_scores(fit_a: Tensor, fit_b: Tensor, new: Tensor) -> Tensor:
    """`own_scores` of new writes, reduced, along directions fitted on two senses. `... n d, ...
    m d, ... k d`
    """
    fit, new = reduced(
        torch.cat([fit_a, fit_b], dim=-2), new, per_sense=min(fit_a.shape[-2], fit_b.shape[-2])
    )
    flat_fit = fit.reshape(-1, *fit.shape[-2:]).numpy()
    flat_new = new.reshape(-1, *new.shape[-2:]).numpy()
    of_a = (np.arange(fit.shape[-2]) < fit_a.shape[-2])[None]
    scores = own_scores(sums_of(flat_fit, np.arange(fit.shape[-2])), of_a, flat_new)[0]
    return torch.from_numpy(scores).reshape(new.shape[:-1])


def separation_null(fit: GroupSums, train_labels: Labels, new: Array, labels: Labels) -> Array:
    """How often a sentence of A scores above one of B along every head's direction, under every
    labelling.

    `-> draw head`

    `train_labels: draw group`: the labels of the training groups.
    `new: head m d`: the tested writes.
    `labels: draw m`: their labels.

    It is not divided by a standard error: under the null an AUROC has the same one for every head.
    """
    chunks = [slice(start, start + CHUNK) for start in range(0, len(labels), CHUNK)]
    return np.concatenate(
        [won(own_scores(fit, train_labels[rows], new), labels[rows]) for rows in chunks]
    )


def own_scores(fit: GroupSums, labels: Labels, new: Array) -> Array:
    """New writes along each head's direction: the mean difference divided by the pooled
    variance.

    `draw group, head m d -> draw head m`
    """
    of_a = labels.astype(float)
    n_a = (of_a @ fit.size)[:, None]
    n_b = fit.size.sum() - n_a
    sum_a = of_a @ fit.rows  # head draw d
    mean_a = sum_a / np.maximum(n_a, 1)
    mean_b = (fit.total[:, None] - sum_a) / np.maximum(n_b, 1)
    # Σ (x - mean)² = Σ x² - n mean², for the two senses together.
    around = fit.total_squares[:, None] - n_a * mean_a**2 - n_b * mean_b**2
    within = np.maximum(around, 0) / (fit.size.sum() - 2)
    difference = mean_a - mean_b
    smallest_variance = (
        LEAST_VARIANCE * within.max(-1, keepdims=True)
        + LEAST_DIFFERENCE * (difference**2).max(-1, keepdims=True)
        + np.finfo(float).tiny
    )
    direction = difference / (within + smallest_variance)
    return np.asarray((direction @ new.swapaxes(1, 2)).swapaxes(0, 1))


def won(scores: Array, labels: Labels) -> Array:
    """How many comparisons of an A with a B the A wins; ties count one half.

    `draw head m, draw m -> draw head`
    """
    # Mann-Whitney: U = (sum of the ranks of A) - n_A (n_A + 1) / 2
    marked = _with_label(scores, labels)
    marked.view(float).sort(axis=-1)
    sums = (marked & 1).astype(float) @ np.arange(1.0, scores.shape[-1] + 1)  # of the ranks of A
    has_ties = (marked[..., 1:] ^ marked[..., :-1] <= 1).any(-1)
    if has_ties.any():  # rare, and ten times slower to rank exactly
        draws, heads = np.nonzero(has_ties)
        sums[draws, heads] = (rankdata(scores[draws, heads], axis=-1) * labels[draws]).sum(-1)
    n_a = labels.sum(1)[:, None]
    return np.asarray(sums - n_a * (n_a + 1) / 2)


def _with_label(scores: Array, labels: Labels) -> NDArray[np.uint64]:
    """The bits of each score with its label as the last bit: sorting the scores also sorts the
    labels.

    `-> draw head m`

    Scores that differ in the last bit only look tied. `won` then ranks the scores themselves.
    """
    bits = (scores + 0.0).view(np.uint64)  # + 0.0 turns -0.0 into 0.0
    bits &= ~np.uint64(1)
    bits |= labels[:, None]
    return bits


def corrected_tests(
    separations: Sequence[Separation],
    effects: Mapping[str, Sequence[Array | None]],
    units: Sequence[Sequence[Hashable]],
    *,
    permutations: int,
    seed: int,
    has_heads: NDArray[np.bool_] | None = None,
) -> list[Tests]:
    """Corrected tests of all pairs of senses of one word together, a result for each pair.

    `effects`: net effects of swaps, `pair layer head` for each pair of senses, by the test's name:
        `swap`, on the sense coordinate, and, if they were measured, `next_token` and
        `continuation`. None for a pair of senses without that measurement.
    `units`: the cue words of each pair of sentences.
    `has_heads: layer`: layers with heads, all by default. p is 1 in a layer without heads.
    """
    tests: list[dict[str, MaxT]] = [{} for _ in separations]

    def add_family(name: str, members: Sequence[int], null: Array) -> None:
        """One family over all heads, and all pairs of senses with the measurement.

        `draw member layer head`
        """
        family = _max_t(null, has_heads)
        for place, member in enumerate(members):
            tests[member][name] = MaxT(family.t[place], family.p[place], family.q[place])

    nulls = [separation.null for separation in separations]
    add_family("separation", range(len(separations)), np.stack(nulls, axis=1))
    for name, of_pairs in effects.items():
        measured = {pair: net for pair, net in enumerate(of_pairs) if net is not None}
        if not measured:
            continue
        null = _flipped(
            list(measured.values()), [units[pair] for pair in measured], permutations, seed
        )
        add_family(name, [*measured], null)
        if name == "swap":
            add_family("opposes", [*measured], -null)
    return [Tests(**of_pair) for of_pair in tests]


def _max_t(null: Array, has_heads: NDArray[np.bool_] | None) -> MaxT:
    """`resampling.max_t` over the heads that exist. `draw pair layer head`, the observed
    statistics first
    """
    if has_heads is None or has_heads.all():
        return resampling.max_t(null[0], null[1:])
    over_heads = resampling.max_t(null[0][:, has_heads], null[1:][:, :, has_heads])
    full = MaxT(*(np.full_like(null[0], empty) for empty in (0.0, 1.0, 1.0)))
    for of_all, of_tested in zip(
        (full.t, full.p, full.q), (over_heads.t, over_heads.p, over_heads.q)
    ):
        of_all[:, has_heads] = of_tested
    return full


def _flipped(
    effects: Sequence[Array], units: Sequence[Sequence[Hashable]], permutations: int, seed: int
) -> Array:
    """Studentised mean effects under sign flips of whole units, for all pairs of senses.

    `-> draw pair layer head`
    """
    rng = np.random.default_rng(seed)
    nulls = [
        resampling.flip_null(of_pair, units_of_pair, draws=permutations, rng=rng)
        for of_pair, units_of_pair in zip(effects, units, strict=True)
    ]
    return np.stack(nulls, axis=1)
