"""Every answer to every tested sentence of a word, by the model at each depth and by what needs no model, and its scores.

The depth to read at is chosen on the training sentences alone, so its score is one of a choice made before the test.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from probe.evaluation import baselines, centroids, holdouts
from probe.evaluation.centroids import Labels
from probe.evaluation.tasks import Task
from probe.lexicon import Sentence
from probe.statistics import Array

INNER_FOLDS = 3


@dataclass(frozen=True, eq=False)
class Answers:
    """What was said of the tested sentences of one word, senses as numbers.

    `gold: test` · `by_depth: depth test` · `nearest`, at the depth chosen in training, and the baselines `frequent bag left:
    test` · `depth`, the one chosen (most often, where there are folds).
    """

    gold: Labels
    by_depth: Labels
    nearest: Labels
    frequent: Labels
    bag: Labels
    left: Labels
    depth: int


def answer(task: Task, resid: Tensor, *, seed: int) -> Answers:
    """Test every sentence that the plan holds out, learning from its training part only. `resid: sentence depth d_model`"""
    labels = numbered(task.sentences)
    by_depth = np.zeros((resid.shape[1], len(task)), dtype=np.int64)
    nearest, frequent, bag, left = np.zeros((4, len(task)), dtype=np.int64)
    whole_bags = [baselines.whole_bag(sentence) for sentence in task.sentences]
    left_bags = [baselines.left_bag(sentence) for sentence in task.sentences]
    chosen = []
    for holdout in task.plan.holdouts:
        train, test = list(holdout.train), list(holdout.test)
        chosen.append(choose_depth([task.sentences[row] for row in train], resid[train], seed=seed))
        by_depth[:, test] = centroids.predict(resid, labels, holdout)
        nearest[test] = by_depth[chosen[-1], test]
        frequent[test] = baselines.most_frequent(labels[train], len(test))
        bag[test] = baselines.predict(whole_bags, labels, holdout)
        left[test] = baselines.predict(left_bags, labels, holdout)
    rows = sorted(row for holdout in task.plan.holdouts for row in holdout.test)
    usual = min(chosen, key=lambda depth: (-chosen.count(depth), depth))
    return Answers(labels[rows], by_depth[:, rows], nearest[rows], frequent[rows], bag[rows], left[rows], usual)


def numbered(sentences: Sequence[Sentence]) -> Labels:
    """The sense of each sentence as a number, in alphabetical order of the senses."""
    return np.unique([sentence.sense for sentence in sentences], return_inverse=True)[1]


def choose_depth(sentences: Sequence[Sentence], resid: Tensor, *, seed: int) -> int:
    """The depth after at least one block with the best macro-F1 in folds over these sentences, the lowest of equals.

    The last depth where they are too few to be learned and tested apart. `resid: sentence depth d_model`
    """
    plan = holdouts.plan(sentences, seed=seed, folds=INNER_FOLDS)
    if not plan.holdouts:
        return resid.shape[1] - 1
    labels, resid = numbered([sentences[row] for row in plan.rows]), resid[list(plan.rows)]
    said = np.concatenate([centroids.predict(resid, labels, holdout) for holdout in plan.holdouts], axis=1)
    gold = np.concatenate([labels[list(holdout.test)] for holdout in plan.holdouts])
    return int(macro_f1(gold, said)[1:].argmax()) + 1


def accuracy(gold: Labels, predicted: Labels) -> Array:
    """The share of right answers, 0 to 1. `n, ... n -> ...`"""
    return np.asarray((gold == predicted).mean(-1))


def macro_f1(gold: Labels, predicted: Labels) -> Array:
    """The mean over the senses in `gold` of F1 = 2 hits / (times in gold + times predicted), 0 to 1. `n, ... n -> ...`"""
    scores = []
    for sense in np.unique(gold):
        is_sense, said = gold == sense, predicted == sense
        scores.append(2 * (is_sense & said).sum(-1) / (is_sense.sum() + said.sum(-1)))
    return np.asarray(np.mean(scores, axis=0))
