"""The nearest sense centroid: the sense to which the vector of a word is closest at every depth,
and the scores of these predictions.

A centroid is the mean of a sense's training vectors. Vectors are compared with centroids by cosine;
plain numbers, such as positions, are compared with their mean by distance. Ties go to the sense
that is more frequent in training. Cosines that differ by rounding only count as ties.

Source: Loureiro et al. 2021.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.stats.resampling import Array
from probe.text.splits import Holdout

Senses = NDArray[np.int64]  # numbers of senses, in alphabetical order
TIE_DECIMALS = 12  # of cosines in float64; later decimals depend on the order of summation
SMALLEST_NORM = 1e-300  # so that a zero vector remains a zero vector


class Centroids(NamedTuple):
    """The means of the senses in a training part.

    senses: the senses, the most frequent first
    unit: the means in float64, each of length 1. `depth sense d_model`
    """

    senses: Senses
    unit: Tensor


def by_frequency(labels: Senses) -> Senses:
    """The senses, the most frequent first; equally frequent senses by number."""
    senses, counts = np.unique(labels, return_counts=True)
    return senses[np.argsort(-counts, kind="stable")]


def fit_centroids(resid: Tensor, labels: Senses, holdout: Holdout) -> Centroids:
    """The centroid of every sense of the training part at every depth.

    resid: `sentence depth d_model`
    """
    train = list(holdout.train)
    senses = by_frequency(labels[train])
    member = torch.tensor(senses[:, None] == labels[train], dtype=torch.float64)  # sense train
    count = member.sum(1, keepdim=True)
    # Depth by depth, because a float64 copy of all vectors could be large.
    # `sense train @ train d_model`
    means = [member @ resid[train, depth].double() / count for depth in range(resid.shape[1])]
    return Centroids(senses, unit_vectors(torch.stack(means)))


def cosines(resid: Tensor, centroids: Centroids) -> Array:
    """The cosine of every vector with every centroid, rounded so that ties are equal.

    `n depth d_model -> n depth sense`
    """
    by_depth = [
        (unit_vectors(vectors) @ means.T).numpy()
        for vectors, means in zip(resid.unbind(1), centroids.unit, strict=True)
    ]
    return np.round(np.stack(by_depth, axis=1), TIE_DECIMALS)


def predict(resid: Tensor, labels: Senses, holdout: Holdout) -> Senses:
    """The sense whose centroid has the largest cosine. `sentence depth d_model -> depth test`"""
    centroids = fit_centroids(resid, labels, holdout)
    # The most frequent comes first, and argmax takes the first of equals.
    nearest = cosines(resid[list(holdout.test)], centroids).argmax(-1)
    return centroids.senses[nearest.T]


def coordinates(resid: Tensor, labels: Senses, holdout: Holdout) -> tuple[Array, Senses]:
    """Where each tested vector is between the centroid of its sense (+0.5) and that of the nearest
    other sense (-0.5), and the number of that other sense, at one depth.

        <x, c_true - c_other> / |c_true - c_other|²

    `sentence d_model -> test, test`

    c are unit centroids and x is the unit vector. The coordinate is above 0 if the true sense is
    predicted; 0 is a tie.
    """
    centroids = fit_centroids(resid[:, None], labels, holdout)
    test = list(holdout.test)
    cosine = cosines(resid[test][:, None], centroids)[:, 0]  # test sense
    true_sense = np.argmax(centroids.senses == labels[test][:, None], axis=1)
    rows = np.arange(len(test))
    # The true sense is excluded from the search for the nearest other sense.
    cosine_of_others = cosine.copy()
    cosine_of_others[rows, true_sense] = -np.inf
    other_sense = cosine_of_others.argmax(-1)
    unit = centroids.unit[0].numpy()  # sense d_model
    squared_distance = ((unit[true_sense] - unit[other_sense]) ** 2).sum(-1)
    difference = cosine[rows, true_sense] - cosine[rows, other_sense]
    zero = np.zeros_like(difference)
    return (
        # Two equal centroids have distance 0: the coordinate is 0, a tie.
        np.divide(difference, squared_distance, out=zero, where=squared_distance > 0),
        centroids.senses[other_sense],
    )


def nearest_mean(numbers: Array, labels: Senses, holdout: Holdout) -> Senses:
    """The sense with the nearest training mean of a plain number. `sentence -> test`

    Numbers have no direction, so they are compared by distance.
    """
    train = list(holdout.train)
    senses = by_frequency(labels[train])
    means = np.array([numbers[train][labels[train] == sense].mean() for sense in senses])
    distances = np.abs(numbers[list(holdout.test), None] - means)
    # The most frequent comes first, and argmin takes the first of equals.
    return np.asarray(senses[np.round(distances, TIE_DECIMALS).argmin(-1)])


def macro_f1(gold: Senses, predicted: Senses) -> Array:
    """The mean over the senses in `gold` of F1, from 0 to 1. `n, ... n -> ...`

    F1 = 2 hits / (times in gold + times predicted)
    """
    return np.asarray(macro_f1_of_draws(gold, predicted, np.ones((1, len(gold))))[0])


def macro_f1_of_draws(gold: Senses, predicted: Senses, weights: Array) -> Array:
    """`macro_f1` of bootstrap draws, over the senses that occur in a draw.

    `n, ... n, draw n -> draw ...`

    weights: the weight of every sentence in every draw. `draw n`
    """
    scores = []
    for sense in np.unique(gold):
        in_gold = (gold == sense).astype(float)
        in_predicted = (predicted == sense).astype(float)
        hits = np.tensordot(weights, in_gold * in_predicted, ([1], [-1]))
        times_in_gold = (weights @ in_gold).reshape(-1, *[1] * (hits.ndim - 1))
        times = times_in_gold + np.tensordot(weights, in_predicted, ([1], [-1]))
        absent = np.full_like(hits, np.nan)
        # A sense that is absent from a draw is NaN, which `nanmean` skips.
        scores.append(np.divide(2 * hits, times, out=absent, where=times_in_gold > 0))
    return np.asarray(np.nanmean(scores, axis=0))


def unit_vectors(vectors: Tensor) -> Tensor:
    """The vectors in float64, scaled to length 1; a zero vector remains zero."""
    return torch.nn.functional.normalize(vectors.double(), dim=-1, eps=SMALLEST_NORM)
