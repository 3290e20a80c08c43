"""Observation: does what is in the residual stream, or what a head writes, differ by sense?

Directions, read-out depth and scaling are fitted on one part of the sentences and scored on another (METHODS of the
report: in-sample separation of noise looks near perfect). Depth 0 is the residual stream entering the first block,
depth d the one leaving block d - 1.

Sources: Hewitt & Liang 2019 (held-out probing); Loureiro et al. 2021 (nearest sense centroid).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.stats import permutation, resampling
from probe.stats.resampling import Array

FOLDS = 3  # each with two thirds of the sentences to fit on, and enough cue words to score on
MANY = 100  # sentences per sense: with fewer, a direction of d_head numbers (64, say) fits noise
COMPONENTS = 16  # fewer numbers than the fifty sentences per sense from which a result is not called exploratory
# AUROCs a hundredth apart are alike: with ten cue words a sense, a hundred pairs, that is one pair in another order.
AS_GOOD = 0.99


@dataclass(frozen=True, eq=False)
class Axis:
    """The sense axis of a word for one pair of senses at one depth.

    M(x) = <x - midpoint, u> / gap: about +1/2 for sense_a and -1/2 for sense_b. `u: d_model`, unit length; `gap` in
    units of the residual stream.
    """

    sense_a: str
    sense_b: str
    depth: int
    u: Tensor
    midpoint: Tensor
    gap: float

    def coordinate(self, resid: Tensor) -> Tensor:
        """M, the calibrated sense coordinate, in fractions of the sense gap. `... d_model -> ...`"""
        return (resid - self.midpoint).to(self.u.dtype) @ self.u / self.gap

    def effect(self, change: Tensor) -> Tensor:
        """How far a change of the residual stream moves M. `... d_model -> ...`"""
        return change.to(self.u.dtype) @ self.u / self.gap


def fit_axis(resid_a: Tensor, resid_b: Tensor, senses: tuple[str, str], depth: int) -> Axis:
    """u = (mean_a - mean_b) / gap with gap = |mean_a - mean_b|, in float64. `n d_model, m d_model`"""
    mean_a, mean_b = resid_a.double().mean(0), resid_b.double().mean(0)
    gap = (mean_a - mean_b).norm().item()
    direction = (mean_a - mean_b) / gap if gap else torch.zeros_like(mean_a)
    return Axis(*senses, depth, direction, (mean_a + mean_b) / 2, gap or 1.0)


def separation_by_depth(resid: Tensor, labels: Sequence[str], groups: Sequence[object], *, seed: int) -> Array:
    """Cross-validated AUROC of the difference-of-means direction at every depth, mean over sense pairs and folds.

    `sentence depth d_model -> depth`. Nothing is scored on the sentences it was fitted on; groups stay together. One
    half (chance) where vectors are identical and where no fold can be scored. (Hedges' g would go on telling depths
    apart whose senses are all perfectly separated, by how little they vary, which a few cue words say nothing about:
    the chosen depth would hang on the seed.)
    """
    results = []
    for train, test in resampling.folds(groups, FOLDS, seed=seed):
        for a, b in sense_pairs(labels):
            fit_a, fit_b = (resid[[r for r in train if labels[r] == sense]].double() for sense in (a, b))
            new_a, new_b = (resid[[r for r in test if labels[r] == sense]].double() for sense in (a, b))
            if not all(map(len, (fit_a, fit_b, new_a, new_b))):
                continue
            direction = fit_a.mean(0) - fit_b.mean(0)  # depth d_model
            results.append(resampling.auroc(*((new * direction).sum(-1).numpy() for new in (new_a, new_b))))
    return np.mean(results, axis=0) if results else np.full(resid.shape[1], 0.5)


def choose_depth(resid: Tensor, labels: Sequence[str], groups: Sequence[object], *, seed: int) -> tuple[int, Array]:
    """The read-out depth L*, and the cross-validated AUROC of every depth. `sentence depth d_model -> (), depth`

    Of the depths after at least one block whose AUROC is that of the best, up to AS_GOOD, the last: what a head writes
    behind the read-out cannot be seen, and differences that small are chance.
    """
    separation = separation_by_depth(resid, labels, groups, seed=seed)
    as_good = separation[1:] >= (AS_GOOD - resampling.TIE) * separation[1:].max()
    return int(np.flatnonzero(as_good)[-1]) + 1, separation


def sense_pairs(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Every unordered pair of senses, in order of first appearance."""
    senses = list(dict.fromkeys(labels))
    return [(a, b) for index, a in enumerate(senses) for b in senses[index + 1 :]]


def reduced(fit: Tensor, new: Tensor, *, per_sense: int) -> tuple[Tensor, Tensor]:
    """Writes centred on the fit part; with fewer than MANY sentences per sense, their first principal components.

    `... n d, ... m d -> ... n k, ... m k`. The labels play no part, so one reduction serves every relabelling.
    """
    centre = fit.mean(-2, keepdim=True)
    fit, new = fit - centre, new - centre
    if per_sense >= MANY:
        return fit, new
    basis = torch.linalg.svd(fit, full_matrices=False).Vh[..., :COMPONENTS, :].transpose(-1, -2)
    return fit @ basis, new @ basis


def own_direction_scores(fit_a: Tensor, fit_b: Tensor, new: Tensor) -> Tensor:
    """Score new writes of every head along the head's own direction, fitted on fit: mean difference / pooled variance.

    `... n d, ... m d, ... k d -> ... k`. With fewer than MANY sentences per sense the writes are first reduced to at
    most COMPONENTS principal components of the fit part, so that the direction has fewer numbers than sentences.
    """
    fit, new = reduced(torch.cat([fit_a, fit_b], dim=-2), new, per_sense=min(fit_a.shape[-2], fit_b.shape[-2]))
    labels = np.arange(fit.shape[-2]) < fit_a.shape[-2]
    flat_fit, flat_new = (part.reshape(-1, *part.shape[-2:]).numpy() for part in (fit, new))
    scores = permutation.own_scores(flat_fit, labels[None], flat_new)[0]
    return torch.from_numpy(scores).reshape(new.shape[:-1])


def nearest_sense(fit: Tensor, labels: Sequence[str], new: Tensor) -> list[str]:
    """The sense whose mean over the fit sentences is nearest (Euclidean) to each new vector. `n d_model, k d_model`"""
    senses = list(dict.fromkeys(labels))
    rows = [[row for row, label in enumerate(labels) if label == sense] for sense in senses]
    means = torch.stack([fit[mine].double().mean(0) for mine in rows])
    return [senses[index] for index in torch.cdist(new.double(), means).argmin(-1).tolist()]


@dataclass(frozen=True)
class SenseAtDepth:
    """Sense coordinate of one sense's sentences at one depth: mean, 10 % and 90 % quantiles; and the depth's AUROC."""

    depth: int
    sense: str
    coordinate: float
    low: float
    high: float
    auroc: float


def profile(
    stages: Sequence[Tensor], axis: Axis, fit: Sequence[Sequence[int]], report: Sequence[Sequence[int]]
) -> list[SenseAtDepth]:
    """Sense coordinates by depth: <resid - midpoint, u> / gap, along the fitted axis, around each depth's own midpoint.

    `stages`: `sentence d_model` for the token embedding alone (depth -1), then depths 0, 1, ... · `fit`, `report`: rows
    of sense_a and of sense_b. `auroc` is along an axis fitted at that depth. Identical vectors give exactly 0 and
    exactly 0.5.
    """
    names = (axis.sense_a, axis.sense_b)
    coordinates = []
    for depth, stage in enumerate(stages, start=-1):
        resid = (stage - stage[:1]).double()
        here = fit_axis(resid[list(fit[0])], resid[list(fit[1])], names, depth)
        new = [resid[list(rows)] for rows in report]
        auroc = float(resampling.auroc(*((part @ here.u).numpy() for part in new)))
        for sense, part in zip(names, new, strict=True):
            values = axis.effect(part - here.midpoint).numpy()
            low, high = np.quantile(values, [0.1, 0.9])
            coordinates.append(SenseAtDepth(depth, sense, float(values.mean()), float(low), float(high), auroc))
    return coordinates
