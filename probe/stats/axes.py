"""Sense axes: how far the residual stream separates two senses, and at which depth.

Axes, the read-out layer and the scale are fitted on some of the sentences and scored on others,
because in-sample separation of noise looks nearly perfect. Depth 0 is the residual stream that
enters the first block; depth d is the residual stream after block d - 1.

Sources: Hewitt & Liang 2019 (held-out probing); Hastie, Tibshirani & Friedman 2009 (one standard
    error); Loureiro et al. 2021 (nearest sense centroid).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import CrossFit

PROFILE_QUANTILES = (0.1, 0.9)  # over the sentences of one sense


@dataclass(frozen=True, eq=False)
class Axis:
    """The sense axis of a word for two senses at one depth.

    M(x) = <x - midpoint, u> / gap is about +1/2 for sense_a and -1/2 for sense_b.

    `u: d_model`: unit length.
    `midpoint: d_model`: halfway between the two sense means.
    `gap`: the distance of the two means, in units of the residual stream.
    """

    sense_a: str
    sense_b: str
    depth: int
    u: Tensor
    midpoint: Tensor
    gap: float

    def coordinate(self, resid: Tensor) -> Tensor:
        """M, the sense coordinate, as a fraction of the gap. `... d_model -> ...`"""
        return (resid - self.midpoint).to(self.u.dtype) @ self.u / self.gap

    def effect(self, change: Tensor) -> Tensor:
        """How far a change of the residual stream moves M. `... d_model -> ...`"""
        return change.to(self.u.dtype) @ self.u / self.gap


def fit_axis(resid_a: Tensor, resid_b: Tensor, senses: tuple[str, str], depth: int) -> Axis:
    """The sense axis through two sense means, in float64.

    u = (mean_a - mean_b) / gap, with gap = |mean_a - mean_b|

    `resid_a: n d_model`, `resid_b: m d_model`. Two equal means give u = 0 and gap = 1.
    """
    mean_a = resid_a.double().mean(0)
    mean_b = resid_b.double().mean(0)
    gap = (mean_a - mean_b).norm().item()
    direction = (mean_a - mean_b) / gap if gap else torch.zeros_like(mean_a)
    return Axis(*senses, depth, direction, (mean_a + mean_b) / 2, gap or 1.0)


@dataclass(frozen=True, eq=False)
class HeldOutAxes:
    """The sense axes of two senses at every stage, one for each holdout, fitted without it.

    `u, midpoint: cell stage d_model`
    `fitted_gap: cell stage`: the distance of the two means of the fitting sentences.
    `cell: row`: the holdout that tests a row; -1 for a row that is used for fitting only.

    A stage is a depth. A model that predicts tokens has one stage more: the stream after the final
    norm, read along the direction in which the senses change the logits (`next_token_root`). If the
    lexicon has continuations for the two senses, a further stage reads it along the difference of
    their mean logits.
    """

    senses: tuple[str, str]
    u: Tensor
    midpoint: Tensor
    fitted_gap: Tensor
    cell: NDArray[np.intp]

    def directions(self, rows: Sequence[int]) -> Tensor:
        """u / gap of each row at every stage; its product with a change is the change of M.

        `-> row stage d_model`
        """
        cells = self.cell[list(rows)]
        return self.u[cells] / self.fitted_gap[cells][..., None]

    def coordinates(self, resid: Tensor, rows: Sequence[int]) -> Array:
        """M of the rows at the stages of `resid`, which may be only the first few.

        `row stage d_model -> row stage`
        """
        upto = resid.shape[1]
        centred = resid.double() - self.midpoint[self.cell[list(rows)], :upto]
        return (centred * self.directions(rows)[:, :upto]).sum(-1).numpy()

    def in_units(self) -> "HeldOutAxes":
        """The same axes with a gap of 1, so that M is in units of the residual stream."""
        return replace(self, fitted_gap=torch.ones_like(self.fitted_gap))

    def at(self, row: int, index: int) -> Axis:
        """The axis that reads this row at the stage `index`."""
        cell = self.cell[row]
        return Axis(
            *self.senses,
            index,
            self.u[cell, index],
            self.midpoint[cell, index],
            float(self.fitted_gap[cell, index]),
        )


def hold_out(
    resid: Tensor,
    split: CrossFit,
    senses: tuple[str, str],
    root: Tensor | None = None,
    toward: Tensor | None = None,
) -> HeldOutAxes:
    """Axes of every stage for each holdout, fitted on the holdout's training sentences, in
    float64.

    `resid: row stage d_model`, rows numbered as in the split.
    `root: d_model d_model`: a square root R of a metric, for the stage after the final norm.
    `toward: d_model`: a direction that is fixed beforehand, for a last stage.

    With Δ the difference of the two sense means:

        depths            u = Δ / |Δ|,                 gap = |Δ|
        with R            u = R Rᵀ Δ / |R Rᵀ Δ|,       gap = <Δ, u>
        with `toward`     u = toward / |toward|,       gap = <Δ, u>

    The two means then differ by 1 in M at every stage.
    """
    rows = np.asarray(split.rows)
    is_a = np.asarray(split.is_a)
    cell = np.full(len(resid), -1)
    cell[rows] = split.cells
    # Offsets from one vector, so that the means of identical vectors are exactly equal.
    origin = resid[0].double()
    vectors = resid[rows].double() - origin
    fitted = [np.asarray(holdout.train) for holdout in split.holdouts]
    mean_a = _means(vectors, [train[is_a[train]] for train in fitted])  # cell stage d_model
    mean_b = _means(vectors, [train[~is_a[train]] for train in fitted])
    difference = mean_a - mean_b
    along = difference.clone()
    if root is not None:
        after_norm = -1 if toward is None else -2
        along[:, after_norm] = difference[:, after_norm] @ root @ root.T
    if toward is not None:
        along[:, -1] = toward
    length = along.norm(dim=-1)
    u = along / torch.where(length > 0, length, 1.0)[..., None]
    midpoint = origin + (mean_a + mean_b) / 2
    gap = (difference * u).sum(-1)
    return HeldOutAxes(senses, u, midpoint, torch.where(gap > 0, gap, 1.0), cell)


def squared_gap(resid: Tensor, split: CrossFit) -> Array:
    """The cross-validated squared distance of two sense means at every stage, in squared units
    of the residual stream.

    `resid: row stage d_model`, the split's rows in its order. Result: `stage`.

    It is the mean over holdouts of <D_test, D_train>, with D a difference of sense means. If the
    means do not differ its expectation is 0, and it is negative half of the time, whereas the
    distance of two estimated means is always positive. Holdouts that do not test both senses are
    skipped; NaN if none tests both.

    Source: Walther et al. 2016 (crossnobis distance).
    """
    is_a = np.asarray(split.is_a)
    # For each holdout: the rows of A and of B that are tested, and those that are fitted on.
    of_holdouts = [
        [
            positions[mask]
            for positions in (np.asarray(holdout.test), np.asarray(holdout.train))
            for mask in (is_a[positions], ~is_a[positions])
        ]
        for holdout in split.holdouts
    ]
    usable = [groups for groups in of_holdouts if all(map(len, groups))]
    if not usable:
        return np.full(resid.shape[1], np.nan)
    vectors = (resid - resid[:1]).double()  # identical vectors become exactly 0
    test_a, test_b, train_a, train_b = (
        _means(vectors, groups) for groups in zip(*usable, strict=True)
    )
    products = ((test_a - test_b) * (train_a - train_b)).sum(-1)  # holdout stage
    return np.asarray(products.mean(0))


def _means(vectors: Tensor, groups: Sequence[NDArray[np.intp]]) -> Tensor:
    """The mean vector of each group of rows. `row stage d_model -> group stage d_model`

    A product with a table of members reads all vectors once, instead of copying the rows of every
    group.
    """
    is_member = vectors.new_zeros(len(groups), len(vectors))
    for number, rows in enumerate(groups):
        is_member[number, rows] = 1
    sums = is_member @ vectors.flatten(1)
    return (sums / is_member.sum(1, keepdim=True)).view(len(groups), *vectors.shape[1:])


@dataclass(frozen=True, eq=False)
class DepthSeparation:
    """How far held-out axes separate two senses at each depth: AUROC, Hedges' g and its standard
    error. `depth` each

    AUROC is computed within each holdout and averaged. g is computed from the coordinates of all
    holdouts together. Its error counts cue words (Hedges 1981): sqrt(2 / n + g² / (4 n)).
    """

    auroc: Array
    g: Array
    error: Array


def separation_by_holdout(axes: HeldOutAxes, resid: Tensor, split: CrossFit) -> DepthSeparation:
    """Held-out separation along the axes of every depth.

    `resid: row depth d_model`, rows numbered as in the split.

    AUROC 0.5 and g 0 if vectors are identical or no holdout tests both senses.
    """
    is_a = np.asarray(split.is_a)
    of_a = []  # coordinates of the tested rows of the first sense, by holdout: row depth
    of_b = []
    for holdout in split.holdouts:
        test = np.array(holdout.test)
        rows = [split.rows[position] for position in test]
        coordinates = axes.coordinates(resid[rows], rows)
        of_a.append(coordinates[is_a[test]])
        of_b.append(coordinates[~is_a[test]])
    aurocs = [resampling.auroc(a, b) for a, b in zip(of_a, of_b, strict=True) if len(a) and len(b)]
    if not aurocs or min(sum(map(len, of_a)), sum(map(len, of_b))) < 2:
        return _chance_separation(resid.shape[1])
    g = resampling.hedges_g(np.concatenate(of_a), np.concatenate(of_b))
    units_a = {split.units[position] for position in split.tested if is_a[position]}
    units_b = {split.units[position] for position in split.tested if not is_a[position]}
    n = min(len(units_a), len(units_b))
    return DepthSeparation(np.mean(aurocs, axis=0), g, np.sqrt(2 / n + g**2 / (4 * n)))


def _chance_separation(depths: int) -> DepthSeparation:
    """The separation at chance: AUROC 0.5, g 0 and its error 1."""
    zero = np.zeros(depths)
    return DepthSeparation(auroc=zero + 0.5, g=zero, error=zero + 1)


def choose_depth(separations: Sequence[DepthSeparation]) -> int:
    """The read-out layer L*: the first depth that separates the senses as well as the best one.

    "As well" means that g, averaged over pairs of senses, is within one standard error of the
    largest (Hastie, Tibshirani & Friedman 2009). Only depths after at least one block count. Later
    depths turn the meaning into a prediction of the next token. AUROC cannot choose: it is 1 as
    soon as the first of several heads has written.
    """
    g = np.mean([separation.g for separation in separations], axis=0)
    error = np.mean([separation.error for separation in separations], axis=0)
    return first_as_good(g, error)


def first_as_good(separation: Array, error: Array) -> int:
    """The first depth whose separation is within one standard error of the best, after at least
    one block.

    `depth, depth`
    """
    after_a_block = separation[1:]
    best = int(after_a_block.argmax())
    if not np.isfinite(after_a_block[best]):  # the two senses do not overlap at all
        return best + 1
    threshold = after_a_block[best] - error[best + 1]
    return int(np.flatnonzero(after_a_block >= threshold - resampling.TIE * abs(threshold))[0]) + 1


def next_token_root(unembedding: Tensor) -> Tensor:
    """R with R Rᵀ = W_U C W_Uᵀ, where C centres over the vocabulary, in float64.

    `d_vocab d_model -> d_model d_model`

    xᵀ R Rᵀ y is the inner product of the centred logits of x and y. It expresses the difference of
    two senses' mean logits as a direction in the stream after the final norm, so no logits have to
    be stored.
    """
    centred = unembedding - unembedding.mean(0)
    values, vectors = torch.linalg.eigh((centred.T @ centred).double().cpu())
    return vectors * values.clamp(min=0).sqrt()


def sense_pairs(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Every unordered pair of senses, in order of first appearance."""
    return list(combinations(dict.fromkeys(labels), 2))


def nearest_sense(fit: Tensor, labels: Sequence[str], new: Tensor) -> list[str]:
    """The sense whose mean over the fit sentences is nearest to each new vector (Euclidean
    distance).

    `fit: n d_model`, `new: k d_model`.
    """
    senses = list(dict.fromkeys(labels))
    rows = [[row for row, label in enumerate(labels) if label == sense] for sense in senses]
    means = torch.stack([fit[rows_of_sense].double().mean(0) for rows_of_sense in rows])
    return [senses[index] for index in torch.cdist(new.double(), means).argmin(-1).tolist()]


@dataclass(frozen=True)
class SenseAtDepth:
    """The sense coordinate of one sense's sentences at one depth: mean, and 10 % and 90 %
    quantiles (`low`, `high`). `auroc` belongs to the depth.
    """

    depth: int
    sense: str
    coordinate: float
    low: float
    high: float
    auroc: float


def profile(
    axes: HeldOutAxes, stages: Tensor, split: CrossFit, depth: int, auroc: Array
) -> list[SenseAtDepth]:
    """Held-out sense coordinates by depth, around each depth's midpoint.

    `stages: row 1 + depth d_model`: the token embedding alone (depth -1), then depths 0, 1, ...
    `depth`: the read-out layer.
    `auroc: depth`.

    Depths before the read-out layer may have no gap to measure in, so they are read along the
    read-out layer's axis; each later depth is read along its own. Identical vectors give exactly 0,
    and an AUROC of exactly 0.5.
    """
    rows = np.asarray(split.rows)[split.tested]
    is_a = np.asarray(split.is_a)[split.tested]
    directions = axes.directions(rows.tolist())
    coordinates = []
    for index in range(stages.shape[1]):
        # Offsets from one vector: identical vectors give exactly 0.
        origin = stages[:1, index].double()
        offsets = stages[rows, index].double() - origin
        if index > 0:  # the token embedding alone has neither an axis nor a midpoint
            offsets = offsets - (axes.midpoint[axes.cell[rows], index - 1] - origin)
        values = (offsets * directions[:, max(index - 1, depth)]).sum(-1).numpy()
        separation = float(auroc[index - 1]) if index > 0 else 0.5
        for sense, of_sense in zip(axes.senses, (is_a, ~is_a), strict=True):
            low, high = np.quantile(values[of_sense], PROFILE_QUANTILES)
            mean = float(values[of_sense].mean())
            at_depth = SenseAtDepth(index - 1, sense, mean, float(low), float(high), separation)
            coordinates.append(at_depth)
    return coordinates
