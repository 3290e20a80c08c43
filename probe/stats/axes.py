"""Observation: does what is in the residual stream differ by sense?

Axes, read-out depth and scaling are fitted on one part of the sentences and scored on another
(METHODS of the report: in-sample separation of noise looks near perfect). Depth 0 is the residual
stream entering the first block, depth d the one leaving block d - 1.

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

PROFILE_QUANTILES = (0.1, 0.9)  # of the sentences of one sense


@dataclass(frozen=True, eq=False)
class Axis:
    """The sense axis of a word for one pair of senses at one depth.

    M(x) = <x - midpoint, u> / gap: about +1/2 for sense_a and -1/2 for sense_b. `u: d_model`, unit
    length; `gap` in units of the residual stream.
    """

    sense_a: str
    sense_b: str
    depth: int
    u: Tensor
    midpoint: Tensor
    gap: float

    def coordinate(self, resid: Tensor) -> Tensor:
        """M, the calibrated sense coordinate, in fractions of the sense gap.
        `... d_model -> ...`"""
        return (resid - self.midpoint).to(self.u.dtype) @ self.u / self.gap

    def effect(self, change: Tensor) -> Tensor:
        """How far a change of the residual stream moves M. `... d_model -> ...`"""
        return change.to(self.u.dtype) @ self.u / self.gap


def fit_axis(resid_a: Tensor, resid_b: Tensor, senses: tuple[str, str], depth: int) -> Axis:
    """The sense axis through two means: u = (mean_a - mean_b) / gap with gap = |mean_a - mean_b|.

    `n d_model, m d_model`, in float64.
    """
    mean_a = resid_a.double().mean(0)
    mean_b = resid_b.double().mean(0)
    gap = (mean_a - mean_b).norm().item()
    direction = (mean_a - mean_b) / gap if gap else torch.zeros_like(mean_a)
    return Axis(*senses, depth, direction, (mean_a + mean_b) / 2, gap or 1.0)


@dataclass(frozen=True, eq=False)
class HeldOutAxes:
    """The sense axes of two senses at every stage, for every holdout one that was fitted without
    it.

    `u midpoint: cell stage d_model`, `gap: cell stage` · `cell: row`, the holdout in which a row is
    tested, -1 where it is only fitted on. A stage is a depth; behind the last depth stands, for a
    model that predicts tokens, the stream behind the final norm, read along what the senses change
    in the logits (`next_token_root`), and where words are known that continue one sense only, once
    more along their mean logits.
    """

    senses: tuple[str, str]
    u: Tensor
    midpoint: Tensor
    gap: Tensor
    cell: NDArray[np.intp]

    def directions(self, rows: Sequence[int]) -> Tensor:
        """u / gap of each row at every stage: the change of M is a change's product with it. `->
        row stage d_model`"""
        here = self.cell[list(rows)]
        return self.u[here] / self.gap[here][..., None]

    def coordinates(self, resid: Tensor, rows: Sequence[int]) -> Array:
        """M of the rows at every stage, or at as many of the first as are given. `row stage d_model
        -> row stage`"""
        upto = resid.shape[1]
        centred = resid.double() - self.midpoint[self.cell[list(rows)], :upto]
        return (centred * self.directions(rows)[:, :upto]).sum(-1).numpy()

    def in_units(self) -> "HeldOutAxes":
        """The same axes, along which is measured in units of the residual stream."""
        return replace(self, gap=torch.ones_like(self.gap))

    def at(self, row: int, stage: int) -> Axis:
        """The axis along which this row is read at a stage."""
        cell = self.cell[row]
        return Axis(
            *self.senses,
            stage,
            self.u[cell, stage],
            self.midpoint[cell, stage],
            float(self.gap[cell, stage]),
        )


def hold_out(
    resid: Tensor,
    split: CrossFit,
    senses: tuple[str, str],
    root: Tensor | None = None,
    toward: Tensor | None = None,
) -> HeldOutAxes:
    """Axes of every stage for each holdout, fitted on what it learns from. `row stage d_model`,
    rows by their numbers in the split.

    u = Δ / |Δ| and gap = |Δ| with Δ the difference of means, in float64. Behind the last depth,
    with a metric R Rᵀ: u = R Rᵀ Δ / |R Rᵀ Δ| and gap = <Δ, u>, so that M is 1 apart in what the
    metric measures; and behind that, with a direction `toward: d_model` that is known beforehand, u
    = toward / |toward|.
    """
    rows = np.asarray(split.rows)
    is_a = np.asarray(split.is_a)
    cell = np.full(len(resid), -1)
    cell[rows] = split.cells
    # Means around one vector, so that those of identical vectors are exactly the same.
    origin = resid[0].double()
    means_a = []
    means_b = []
    for holdout in split.holdouts:
        train = np.asarray(holdout.train)
        means_a.append((resid[rows[train[is_a[train]]]] - origin).mean(0))
        means_b.append((resid[rows[train[~is_a[train]]]] - origin).mean(0))
    mean_a = torch.stack(means_a)  # cell stage d_model
    mean_b = torch.stack(means_b)
    difference = mean_a - mean_b
    along = difference.clone()
    if root is not None:
        behind = -1 if toward is None else -2
        along[:, behind] = difference[:, behind] @ root @ root.T
    if toward is not None:
        along[:, -1] = toward
    length = along.norm(dim=-1)
    u = along / torch.where(length > 0, length, 1.0)[..., None]
    midpoint = origin + (mean_a + mean_b) / 2
    gap = (difference * u).sum(-1)
    return HeldOutAxes(senses, u, midpoint, torch.where(gap > 0, gap, 1.0), cell)


def squared_gap(resid: Tensor, split: CrossFit) -> Array:
    """The cross-validated squared distance of the two sense means at every stage: the mean over the
    holdouts of <D_test, D_train>, D a difference of sense means. `row stage d_model`, the split's
    rows in its order, `-> stage`

    In units of the residual stream, squared. 0 in expectation where the means do not differ, and
    then as often below 0 as above; a plain distance of means is never 0. Holdouts that do not test
    both senses are left out; NaN where none does. Source: Walther et al. 2016 (crossnobis
    distance).
    """
    of_a = np.asarray(split.is_a)
    vectors = (resid - resid[:1]).double()  # identical vectors become exactly 0
    products = []
    for holdout in split.holdouts:
        differences = []
        for positions in (np.asarray(holdout.test), np.asarray(holdout.train)):
            side = of_a[positions]
            if side.all() or not side.any():
                break
            a, b = (vectors[positions[mask]].mean(0) for mask in (side, ~side))
            differences.append(a - b)
        else:
            products.append((differences[0] * differences[1]).sum(-1).numpy())
    return np.mean(products, axis=0) if products else np.full(resid.shape[1], np.nan)


@dataclass(frozen=True, eq=False)
class DepthSeparation:
    """How far two senses are apart along held-out axes, `depth` each: AUROC; Hedges' g and its
    standard error.

    The AUROC is the mean over the holdouts, within each; g is that of the coordinates of all of
    them, and its error counts cue words (Hedges 1981): sqrt(2 / n + g² / (4 n)).
    """

    auroc: Array
    g: Array
    error: Array


def separation_by_holdout(axes: HeldOutAxes, resid: Tensor, split: CrossFit) -> DepthSeparation:
    """Held-out separation along the axes of every depth. `row depth d_model`, rows by their numbers
    in the split.

    One half and 0 where vectors are identical and where no holdout tests both senses.
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
    """AUROC one half, g 0 and its error 1: what separates nothing."""
    zero = np.zeros(depths)
    return DepthSeparation(auroc=zero + 0.5, g=zero, error=zero + 1)


def choose_depth(separations: Sequence[DepthSeparation]) -> int:
    """The read-out depth L*, where the meaning has arrived: the first that separates as well as the
    best.

    As well: its g, mean over the pairs of senses, is within one standard error of the largest
    (Hastie, Tibshirani & Friedman 2009); of the depths after at least one block. Later depths turn
    the meaning into the next word. AUROC cannot choose: it is 1 as soon as the first of several
    heads has written.
    """
    g = np.mean([separation.g for separation in separations], axis=0)
    error = np.mean([separation.error for separation in separations], axis=0)
    return first_as_good(g, error)


def first_as_good(separation: Array, error: Array) -> int:
    """The first depth, after at least one block, whose separation is within one standard error of
    the best. `depth, depth`"""
    behind = separation[1:]
    best = int(behind.argmax())
    if not np.isfinite(behind[best]):  # perfectly apart
        return best + 1
    least = behind[best] - error[best + 1]
    return int(np.flatnonzero(behind >= least - resampling.TIE * abs(least))[0]) + 1


def next_token_root(unembedding: Tensor) -> Tensor:
    """R with R Rᵀ = W_U C W_Uᵀ, C centring over the vocabulary: xᵀ R Rᵀ y is the product of their
    centred logits.

    `d_vocab d_model -> d_model d_model`, in float64. With it the difference of two senses' mean
    logits is a direction in the stream behind the final norm, and no logits need to be kept.
    """
    centred = unembedding - unembedding.mean(0)
    values, vectors = torch.linalg.eigh((centred.T @ centred).double().cpu())
    return vectors * values.clamp(min=0).sqrt()


def sense_pairs(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Every unordered pair of senses, in order of first appearance."""
    return list(combinations(dict.fromkeys(labels), 2))


def nearest_sense(fit: Tensor, labels: Sequence[str], new: Tensor) -> list[str]:
    """The sense whose mean over the fit sentences is nearest (Euclidean) to each new vector. `n
    d_model, k d_model`"""
    senses = list(dict.fromkeys(labels))
    rows = [[row for row, label in enumerate(labels) if label == sense] for sense in senses]
    means = torch.stack([fit[mine].double().mean(0) for mine in rows])
    return [senses[index] for index in torch.cdist(new.double(), means).argmin(-1).tolist()]


@dataclass(frozen=True)
class SenseAtDepth:
    """Sense coordinate of one sense's sentences at one depth: mean, 10 % and 90 % quantiles; and
    the depth's AUROC."""

    depth: int
    sense: str
    coordinate: float
    low: float
    high: float
    auroc: float


def profile(
    axes: HeldOutAxes, stages: Tensor, split: CrossFit, depth: int, auroc: Array
) -> list[SenseAtDepth]:
    """Sense coordinates by depth, held out, around each depth's own midpoint.

    Along the axis of the read-out up to it, where there may be no gap to measure in, and along each
    depth's own behind it. `stages: row 1 + depth d_model`: the token embedding alone (depth -1),
    then depths 0, 1, ... · `auroc: depth`. Identical vectors give exactly 0 and exactly 0.5.
    """
    rows = np.asarray(split.rows)[split.tested]
    is_a = np.asarray(split.is_a)[split.tested]
    directions = axes.directions(rows.tolist())
    coordinates = []
    for stage in range(stages.shape[1]):
        # Offsets from one vector: identical vectors give exactly 0.
        origin = stages[:1, stage].double()
        offsets = stages[rows, stage].double() - origin
        if stage > 0:  # the token embedding alone has no axis, and no midpoint of its own
            offsets = offsets - (axes.midpoint[axes.cell[rows], stage - 1] - origin)
        values = (offsets * directions[:, max(stage - 1, depth)]).sum(-1).numpy()
        separation = float(auroc[stage - 1]) if stage > 0 else 0.5
        for sense, of_sense in zip(axes.senses, (is_a, ~is_a), strict=True):
            low, high = np.quantile(values[of_sense], PROFILE_QUANTILES)
            mean = float(values[of_sense].mean())
            at_depth = SenseAtDepth(stage - 1, sense, mean, float(low), float(high), separation)
            coordinates.append(at_depth)
    return coordinates
