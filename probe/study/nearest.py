"""Word-sense disambiguation by the nearest sense centroid, at every depth, and three baselines that need no model.

A sense is the mean of its vectors in training, compared by cosine. Depth 0 is the residual stream entering the first
block, depth d the one leaving block d - 1. Ties, and cosines that differ in rounding only, go to the sense that is more
frequent in training. The depth to read at is chosen on the training sentences alone, before the test.

Baselines: the most frequent sense, the words of the sentence, and the words left of the word. The last is what a causal
model has read when it reaches the word, without their order and without anything learned elsewhere; a model that does
not beat it has not been shown to know more than which words stand there. The word itself is in no bag. The classifier
is a logistic regression on TF-IDF with balanced classes, which on CoarseWSD-20 was the strongest of the plain ones (the
bar should be high); nothing in it is random.

Source: Loureiro et al. 2021.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from probe.stats.resampling import Array
from probe.study.material import Task
from probe.text import splits
from probe.text.sentences import Sentence
from probe.text.splits import Holdout

Labels = NDArray[np.int64]
TIE_DECIMALS = 12  # of cosines in float64: what differs beyond is the order of the sums
BLOCK = 512


def by_frequency(labels: Labels) -> Labels:
    """The senses, the most frequent first, equally frequent ones by number."""
    senses, counts = np.unique(labels, return_counts=True)
    return senses[np.argsort(-counts, kind="stable")]


def predict(resid: Tensor, labels: Labels, holdout: Holdout) -> Labels:
    """The sense whose training mean has the largest cosine with each tested vector.

    `sentence depth d_model -> depth test`

    `labels` are the numbers of the sentences' senses.
    """
    known = labels[list(holdout.train)]
    senses = by_frequency(known)
    member = torch.tensor(senses[:, None] == known, dtype=torch.float64)  # sense train
    said = []
    for depth in range(resid.shape[1]):
        centroids = member @ resid[list(holdout.train), depth].double() / member.sum(1, keepdim=True)
        cosines = _unit(resid[list(holdout.test), depth]) @ _unit(centroids).T
        said.append(np.round(cosines.numpy(), TIE_DECIMALS).argmax(1))
    return senses[np.stack(said)]


def angle_gap(resid: Tensor, labels: Labels) -> Array:
    """Mean angle between sentences of different senses minus that of the same sense, in degrees, by depth.

    `sentence depth d_model -> depth`. Every unordered pair of sentences counts once; missing where either kind has no
    pair.
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


INNER_FOLDS = 3  # two thirds of the training sentences to fit on


@dataclass(frozen=True, eq=False)
class Answers:
    """What was said of the tested sentences of one word, senses as numbers.

    `gold: test` · `by_depth: depth test` · `nearest`, at the depth chosen in training, and the baselines `frequent bag
    left position length: test`, the last two by the nearest mean of the word's place, of the text's length, in tokens ·
    `depth`, the one chosen (most often, where there are folds).
    """

    gold: Labels
    by_depth: Labels
    nearest: Labels
    frequent: Labels
    bag: Labels
    left: Labels
    position: Labels
    length: Labels
    depth: int


def answer(task: Task, resid: Tensor, *, seed: int) -> Answers:
    """Test every sentence that the plan holds out, learning from its training part only.

    `resid: sentence depth d_model`
    """
    labels = numbered(task.sentences)
    by_depth = np.zeros((resid.shape[1], len(task)), dtype=np.int64)
    nearest, frequent, bag, left = np.zeros((4, len(task)), dtype=np.int64)
    place = np.zeros((2, len(task)), dtype=np.int64)
    places = [[at, len(text)] for at, text in zip(task.material.targets, task.material.tokens, strict=True)]
    where = torch.tensor(places, dtype=resid.dtype)[..., None]  # sentence (position, length) 1
    bags = [[words_in(sentence) for sentence in task.sentences] for words_in in (whole_bag, left_bag)]
    chosen = []
    for holdout in task.plan.holdouts:
        train, test = list(holdout.train), list(holdout.test)
        chosen.append(choose_depth([task.sentences[row] for row in train], resid[train], seed=seed))
        by_depth[:, test] = predict(resid, labels, holdout)
        nearest[test] = by_depth[chosen[-1], test]
        frequent[test] = most_frequent(labels[train], len(test))
        place[:, test] = predict(where, labels, holdout)
        bag[test], left[test] = (predict_by_bag(each, labels, holdout) for each in bags)
    rows = sorted(row for holdout in task.plan.holdouts for row in holdout.test)
    usual = min(chosen, key=lambda depth: (-chosen.count(depth), depth))
    position, length = place[:, rows]
    baselines = (frequent[rows], bag[rows], left[rows], position, length)
    return Answers(labels[rows], by_depth[:, rows], nearest[rows], *baselines, usual)


def numbered(sentences: Sequence[Sentence]) -> Labels:
    """The sense of each sentence as a number, in alphabetical order of the senses."""
    return np.unique([sentence.sense for sentence in sentences], return_inverse=True)[1]


def choose_depth(sentences: Sequence[Sentence], resid: Tensor, *, seed: int) -> int:
    """The depth after at least one block with the best macro-F1 in folds over these sentences, the lowest of equals.

    Not the rule of `axes.choose_depth`, which asks where a sense axis separates: an evaluation is read where its own
    score is best on the training sentences, as a user of these vectors would choose. The last depth where they are too
    few to be learned and tested apart. `resid: sentence depth d_model`
    """
    plan = splits.plan(sentences, seed=seed, folds=INNER_FOLDS)
    if not plan.holdouts:
        return resid.shape[1] - 1
    labels, resid = numbered([sentences[row] for row in plan.rows]), resid[list(plan.rows)]
    said = np.concatenate([predict(resid, labels, holdout) for holdout in plan.holdouts], axis=1)
    gold = np.concatenate([labels[list(holdout.test)] for holdout in plan.holdouts])
    return int(macro_f1(gold, said)[1:].argmax()) + 1


def accuracy(gold: Labels, predicted: Labels) -> Array:
    """The share of right answers, 0 to 1. `n, ... n -> ...`"""
    return np.asarray((gold == predicted).mean(-1))


def macro_f1(gold: Labels, predicted: Labels) -> Array:
    """Mean over the senses in `gold` of F1 = 2 hits / (times in gold + times predicted), 0 to 1. `n, ... n -> ...`"""
    scores = []
    for sense in np.unique(gold):
        is_sense, said = gold == sense, predicted == sense
        scores.append(2 * (is_sense & said).sum(-1) / (is_sense.sum() + said.sum(-1)))
    return np.asarray(np.mean(scores, axis=0))


INVERSE_PENALTY = 10.0
STEPS = 2000
Bag = tuple[str, ...]


def whole_bag(sentence: Sentence) -> Bag:
    """The other words of the sentence, case folded; further mentions of the word are left out too."""
    return _words(f"{sentence.text[: sentence.start]} {sentence.text[sentence.end :]}", sentence.word)


def left_bag(sentence: Sentence) -> Bag:
    """The words before the word, case folded."""
    return _words(sentence.text[: sentence.start], sentence.word)


def _words(text: str, word: str) -> Bag:
    return tuple(other for other in re.findall(r"\w+", text.casefold()) if other != word.casefold())


def most_frequent(labels: Labels, count: int) -> Labels:
    """The most frequent sense of the training labels, `count` times."""
    return np.repeat(by_frequency(labels)[:1], count)


def predict_by_bag(bags: Sequence[Bag], labels: Labels, holdout: Holdout) -> Labels:
    """The sense of each tested bag by a classifier of the training bags.

    A bag without a known word gets the most frequent.
    """
    train, test = ([bags[row] for row in rows] for rows in (holdout.train, holdout.test))
    learned = labels[list(holdout.train)]
    senses, answer = by_frequency(learned), most_frequent(learned, len(test))
    known = {word for bag in train for word in bag}
    rows = [row for row, bag in enumerate(test) if known.intersection(bag)]
    if not rows:
        return answer
    vectorizer = TfidfVectorizer(analyzer=tuple, sublinear_tf=True)
    classifier = LogisticRegression(C=INVERSE_PENALTY, class_weight="balanced", max_iter=STEPS)
    # Numbered by frequency, so that a tie goes to the more frequent sense.
    classifier.fit(vectorizer.fit_transform(train), [list(senses).index(label) for label in learned])
    answer[rows] = senses[classifier.predict(vectorizer.transform([test[row] for row in rows]))]
    return answer
