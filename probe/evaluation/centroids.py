"""Nearest sense centroid: how well the vectors of a word at one depth tell its senses apart, without anything trained.

Depth 0 is the residual stream entering the first block, depth d the one leaving block d - 1. Ties, and cosines that differ in
rounding only, go to the sense that is more frequent in training.

Source: Loureiro et al. 2021 (a sense is the mean of its contextual vectors, compared by cosine).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.evaluation.holdouts import Holdout
from probe.statistics import Array

Labels = NDArray[np.int64]
TIE_DECIMALS = 12
BLOCK = 512


def by_frequency(labels: Labels) -> Labels:
    """The senses, the most frequent first, equally frequent ones by number."""
    senses, counts = np.unique(labels, return_counts=True)
    return senses[np.argsort(-counts, kind="stable")]


def predict(resid: Tensor, labels: Labels, holdout: Holdout) -> Labels:
    """The sense whose training mean has the largest cosine with each tested vector. `sentence depth d_model -> depth test`

    `labels` are the numbers of the sentences' senses.
    """
    known = labels[list(holdout.train)]
    senses = by_frequency(known)
    member = torch.tensor(senses[:, None] == known, dtype=torch.float64)  # sense train
    found = []
    for depth in range(resid.shape[1]):
        centroids = member @ resid[list(holdout.train), depth].double() / member.sum(1, keepdim=True)
        cosines = _unit(resid[list(holdout.test), depth]) @ _unit(centroids).T
        found.append(np.round(cosines.numpy(), TIE_DECIMALS).argmax(1))
    return senses[np.stack(found)]


def angle_gap(resid: Tensor, labels: Labels) -> Array:
    """Mean angle between sentences of different senses minus that between sentences of the same sense, in degrees, by depth.

    `sentence depth d_model -> depth`. Every unordered pair of sentences counts once; missing where either kind has no pair.
    """
    senses = torch.tensor(labels)
    return np.array([_angle_gap_here(_unit(resid[:, depth]), senses) for depth in range(resid.shape[1])])


def _angle_gap_here(unit: Tensor, senses: Tensor) -> float:
    total, count = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for start in range(0, len(unit), BLOCK):  # a word with thousands of sentences has millions of pairs
        cosines = (unit[start : start + BLOCK] @ unit.T).clamp(-1, 1)
        angles = torch.rad2deg(torch.arccos(cosines))
        once = torch.ones_like(angles, dtype=torch.bool).triu(start + 1)
        here = senses[start : start + BLOCK, None] == senses
        for kind, chosen in enumerate((once & here, once & ~here)):
            total[kind] += angles[chosen].sum()
            count[kind] += chosen.sum()
    alike, different = (total / count).tolist()  # 0 / 0 is missing
    return different - alike


def _unit(vectors: Tensor) -> Tensor:
    """In float64, of length 1; a vector of zeros stays one."""
    return torch.nn.functional.normalize(vectors.double(), dim=-1, eps=1e-300)
