"""The nearest sense centroid: which sense the vector at a word is closest to, at every depth, and
how well that is right.

A sense is the mean of its vectors in training, compared by cosine; of plain numbers, such as
positions, their mean, compared by distance. Ties, and cosines that differ in
rounding only, go to the sense that is more frequent in training.

Source: Loureiro et al. 2021.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.stats.resampling import Array
from probe.text.splits import Holdout

Senses = NDArray[np.int64]  # by their numbers in alphabetical order
TIE_DECIMALS = 12  # of cosines in float64: what differs beyond is the order of the sums
SMALLEST_NORM = 1e-300  # so that a vector of zeros stays one


class Centroids(NamedTuple):
    """The means of the senses in a training part: `senses`, the most frequent first, and `unit:
    depth sense d_model`, each of length 1, in float64."""

    senses: Senses
    unit: Tensor


def by_frequency(labels: Senses) -> Senses:
    """The senses, the most frequent first, equally frequent ones by number."""
    senses, counts = np.unique(labels, return_counts=True)
    return senses[np.argsort(-counts, kind="stable")]


def fit_centroids(resid: Tensor, labels: Senses, holdout: Holdout) -> Centroids:
    """The centroid of every sense of the training part at every depth. `sentence depth d_model`"""
    train = list(holdout.train)
    senses = by_frequency(labels[train])
    member = torch.tensor(senses[:, None] == labels[train], dtype=torch.float64)  # sense train
    count = member.sum(1, keepdim=True)
    means = [member @ resid[train, depth].double() / count for depth in range(resid.shape[1])]
    return Centroids(senses, unit_vectors(torch.stack(means)))


def cosines(resid: Tensor, centroids: Centroids) -> Array:
    """Cosine of every vector with every centroid, rounded so that ties are ties. `n depth d_model
    -> n depth sense`"""
    by_depth = [
        (unit_vectors(vectors) @ means.T).numpy()
        for vectors, means in zip(resid.unbind(1), centroids.unit, strict=True)
    ]
    return np.round(np.stack(by_depth, axis=1), TIE_DECIMALS)


def predict(resid: Tensor, labels: Senses, holdout: Holdout) -> Senses:
    """The sense whose training mean has the largest cosine.
    `sentence depth d_model -> depth test`"""
    centroids = fit_centroids(resid, labels, holdout)
    # The most frequent comes first, and argmax takes the first of equals.
    nearest = cosines(resid[list(holdout.test)], centroids).argmax(-1)
    return centroids.senses[nearest.T]


def coordinates(resid: Tensor, labels: Senses, holdout: Holdout) -> tuple[Array, Senses]:
    """Where each tested vector is between the centroid of its own sense (+0.5) and that of the
    nearest other sense (-0.5), and which sense the other is, at one depth.

    With c the unit centroids of own and other and x the unit vector:
    <x, c_own - c_other> / |c_own - c_other|^2. It is above 0 where the own sense is predicted; 0 is
    a tie.
    Shape: `sentence d_model -> test, test`
    """
    centroids = fit_centroids(resid[:, None], labels, holdout)
    test = list(holdout.test)
    cosine = cosines(resid[test][:, None], centroids)[:, 0]  # test sense
    own = np.argmax(centroids.senses == labels[test][:, None], axis=1)
    every = np.arange(len(test))
    among_others = cosine.copy()
    among_others[every, own] = -np.inf
    other = among_others.argmax(-1)
    unit = centroids.unit[0].numpy()  # sense d_model
    squared_distance = ((unit[own] - unit[other]) ** 2).sum(-1)
    difference = cosine[every, own] - cosine[every, other]
    at_one_place = np.zeros_like(difference)
    return (
        np.divide(difference, squared_distance, out=at_one_place, where=squared_distance > 0),
        centroids.senses[other],
    )


def nearest_mean(numbers: Array, labels: Senses, holdout: Holdout) -> Senses:
    """The sense whose training mean of a plain number is nearest: no direction tells numbers apart,
    so they are compared by distance. `sentence -> test`"""
    train = list(holdout.train)
    senses = by_frequency(labels[train])
    means = np.array([numbers[train][labels[train] == sense].mean() for sense in senses])
    distances = np.abs(numbers[list(holdout.test), None] - means)
    # The most frequent comes first, and argmin takes the first of equals.
    return np.asarray(senses[np.round(distances, TIE_DECIMALS).argmin(-1)])


def macro_f1(gold: Senses, predicted: Senses) -> Array:
    """Mean over the senses in `gold` of F1 = 2 hits / (times in gold + times predicted), 0 to 1.
    `n, ... n -> ...`"""
    return np.asarray(macro_f1_of_draws(gold, predicted, np.ones((1, len(gold))))[0])


def macro_f1_of_draws(gold: Senses, predicted: Senses, drawn: Array) -> Array:
    """`macro_f1` of bootstrap draws, over the senses that are in a draw.

    `n, ... n, draw n -> draw ...`; `drawn` holds the weight of every sentence in every draw.
    """
    scores = []
    for sense in np.unique(gold):
        in_gold = (gold == sense).astype(float)
        in_predicted = (predicted == sense).astype(float)
        hits = np.tensordot(drawn, in_gold * in_predicted, ([1], [-1]))
        times_in_gold = (drawn @ in_gold).reshape(-1, *[1] * (hits.ndim - 1))
        times = times_in_gold + np.tensordot(drawn, in_predicted, ([1], [-1]))
        absent = np.full_like(hits, np.nan)
        scores.append(np.divide(2 * hits, times, out=absent, where=times_in_gold > 0))
    return np.asarray(np.nanmean(scores, axis=0))


def unit_vectors(vectors: Tensor) -> Tensor:
    """In float64, of length 1; a vector of zeros stays one."""
    return torch.nn.functional.normalize(vectors.double(), dim=-1, eps=SMALLEST_NORM)
