"""Accuracy of the model's vector of a word at every depth: how well it identifies the sense, on any
labelled sentences.

The vector at the last token of the word is assigned to the nearest sense centroid
(`probe.experiments.centroids`), learned on other sentences (`probe.text.splits`). Depth 0 is the
residual stream that enters the first block; depth d is the residual stream after block d - 1. The
depth to read is chosen on the training sentences alone; the accuracy of every depth is reported as
well. `probe.experiments.ablation` measures the same with heads ablated.

Baselines without a model are the most frequent sense, the words of the sentence, the words left of
the word, its position, and the length of the text. The words to the left are what a causal model
has read when it reaches the word, without their order and without any other knowledge. If a model
does not beat this baseline, its accuracy may come from these words alone. In a causal model, the
same sentences are left out as in a report: those whose marked cue follows the word, and those of
different senses that are identical up to the word. The word itself is in no bag of words.

The classifier of bags is a logistic regression on TF-IDF with balanced classes. On CoarseWSD-20 it
was the strongest of the simple classifiers, so the baseline is a demanding one. Nothing in it is
random.

Source: Loureiro et al. 2021.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from probe.experiments.ablation import WordStates
from probe.experiments.centroids import (
    Senses,
    by_frequency,
    coordinates,
    macro_f1,
    nearest_mean,
    predict,
    unit_vectors,
)
from probe.experiments.material import Material, prepare_counted
from probe.model.model import Model
from probe.model.tokens import in_order
from probe.model.trace import target_states
from probe.stats.resampling import Array
from probe.text import splits
from probe.text.sentences import Corpus, LeftOut, Sentence
from probe.text.spans import WORD, fold
from probe.text.splits import Holdout, Plan

# How a sense is predicted; the key is the prefix of its columns.
METHODS = {
    "nearest": "nearest sense centroid",
    "frequent": "most frequent sense in training",
    "bag": "bag of words",
    "left": "bag of words left of the word",
    "position": "the word's position alone",
    "length": "the text's length alone",
}
Bag = tuple[str, ...]
ROWS_PER_BLOCK = 512  # of angles, because thousands of sentences have millions of pairs
INNER_FOLDS = 3  # two thirds of the training sentences are fitted on
INVERSE_PENALTY = 10.0  # of the logistic regression
STEPS = 2000  # of the logistic regression, at most
CHUNK = 256  # sentences whose states are in memory at once; only residual streams and z are kept
# Sentences of several words that are read together, so that words with few sentences fill batches.
SENTENCES_PER_LOAD = 1024


class Task(NamedTuple):
    """One word to test.

    material: the sentences
    plan: how they are held out
    """

    material: Material
    plan: Plan

    @property
    def tested(self) -> list[int]:
        """The rows that are tested, each once."""
        return sorted(row for holdout in self.plan.holdouts for row in holdout.test)


@dataclass(frozen=True, eq=False)
class Answers:
    """The predicted senses of the tested sentences of one word, and their true senses, as numbers.

    gold: the true senses. `test`
    by_depth: the nearest centroid at every depth. `depth test`
    predicted: by method of METHODS; "position" and "length" are the nearest mean of the position of
        the word and of the length of the text, in tokens. `test` each
    depths: the depth chosen on the training part of each sentence. `test`
    depth: the depth chosen most often
    coordinates, nearest_others: see `probe.experiments.centroids.coordinates`, at the depth
        chosen for each sentence. `test` each
    """

    gold: Senses
    by_depth: Senses
    predicted: dict[str, Senses]
    depths: Senses
    depth: int
    coordinates: Array
    nearest_others: Senses


def prepare_tasks(model: Model, corpus: Corpus, *, seed: int) -> list[Task]:
    """A task for each word.

    If nothing can be tested, the task has no holdouts, and every row is left out with the reason.
    """
    tasks = []
    for word, sentences in corpus.by_word().items():
        material = prepare_counted(model, word, sentences)
        plan = splits.plan(material.sentences, seed=seed)
        left_out = [
            LeftOut(material.sentences[row].text, reason) for row, reason in plan.left_out.items()
        ]
        tasks.append(Task(material.keep(plan.rows, left_out), plan))
    return tasks


def read_tasks(
    model: Model, tasks: Sequence[Task], layers: Sequence[int] = ()
) -> Iterator[tuple[Task, WordStates]]:
    """The residual streams at the word of each task's sentences, and z of some layers there.

    layers: the layers of z

    Words are read together until they have SENTENCES_PER_LOAD sentences, which fills the batches if
    words have few sentences. The next load is read after this one is used up.
    """
    waiting: list[Task] = []
    for task in tasks:
        waiting.append(task)
        sizes = [len(each.material) for each in waiting]
        if sum(sizes) >= SENTENCES_PER_LOAD or task is tasks[-1]:
            read = _read(model, waiting, list(layers))
            parts = zip(*(tensor.split(sizes) for tensor in read), strict=True)
            yield from zip(waiting, (WordStates(*part) for part in parts), strict=True)
            waiting = []


def _read(model: Model, tasks: Sequence[Task], layers: list[int]) -> WordStates:
    """The states at the targets, read in chunks of similar length to bound the memory."""
    tokens = [cut for task in tasks for cut in task.material.tokens]
    targets = [target for task in tasks for target in task.material.targets]
    # Sorted by target position, a causal model's effective length, so that chunks need little
    # padding.
    order = sorted(range(len(targets)), key=targets.__getitem__)
    chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
    parts = []
    for rows in chunks:
        states = target_states(model, [tokens[row] for row in rows], [targets[row] for row in rows])
        parts.append(WordStates(states.resid, states.z[:, layers]))
    in_given_order = in_order(chunks)
    resid = torch.cat([part.resid for part in parts])[in_given_order]
    return WordStates(resid, torch.cat([part.z for part in parts])[in_given_order])


def answer(task: Task, resid: Tensor, *, seed: int) -> Answers:
    """The predictions for every sentence that the plan holds out, learned from its training part
    only.

    resid: `sentence depth d_model`
    """
    material = task.material
    labels = numbered(material.sentences)
    by_depth = np.zeros((resid.shape[1], len(material)), dtype=np.int64)
    predicted = {method: np.zeros(len(material), dtype=np.int64) for method in METHODS}
    numbers = {
        "position": np.array(material.targets, dtype=float),
        "length": np.array([len(tokens) for tokens in material.tokens], dtype=float),
    }
    bags = {
        "bag": [whole_bag(sentence) for sentence in material.sentences],
        "left": [left_bag(sentence) for sentence in material.sentences],
    }
    depths = []
    read_at = np.zeros(len(material), dtype=np.int64)
    coordinate = np.zeros(len(material))
    nearest_others = np.zeros(len(material), dtype=np.int64)
    for holdout in task.plan.holdouts:
        train = list(holdout.train)
        test = list(holdout.test)
        depth = choose_depth([material.sentences[row] for row in train], resid[train], seed=seed)
        depths.append(depth)
        read_at[test] = depth
        by_depth[:, test] = predict(resid, labels, holdout)
        predicted["nearest"][test] = by_depth[depth, test]
        coordinate[test], nearest_others[test] = coordinates(resid[:, depth], labels, holdout)
        predicted["frequent"][test] = by_frequency(labels[train])[0]
        for method, values in numbers.items():
            predicted[method][test] = nearest_mean(values, labels, holdout)
        for method, words in bags.items():
            predicted[method][test] = predict_by_bag(words, labels, holdout)
    tested = task.tested
    return Answers(
        gold=labels[tested],
        by_depth=by_depth[:, tested],
        predicted={method: senses[tested] for method, senses in predicted.items()},
        depths=read_at[tested],
        # The most frequent of the chosen depths; the lowest of equally frequent depths.
        depth=min(depths, key=lambda depth: (-depths.count(depth), depth)),
        coordinates=coordinate[tested],
        nearest_others=nearest_others[tested],
    )


def numbered(sentences: Sequence[Sentence]) -> Senses:
    """The sense of each sentence as a number, in alphabetical order of the senses."""
    return np.unique([sentence.sense for sentence in sentences], return_inverse=True)[1]


def choose_depth(sentences: Sequence[Sentence], resid: Tensor, *, seed: int) -> int:
    """The depth after at least one block with the best macro-F1 in folds over these sentences; the
    lowest of equally good depths.

    resid: `sentence depth d_model`

    The rule differs from `axes.choose_depth`, which asks where a sense axis separates. An
    evaluation is read where its score is best on the training sentences, as a user of these vectors
    would choose. With too few sentences for training and testing, the last depth.
    """
    plan = splits.plan(sentences, seed=seed, folds=INNER_FOLDS)
    if not plan.holdouts:
        return resid.shape[1] - 1
    labels = numbered([sentences[row] for row in plan.rows])
    vectors = resid[list(plan.rows)]
    predicted = [predict(vectors, labels, holdout) for holdout in plan.holdouts]
    gold = np.concatenate([labels[list(holdout.test)] for holdout in plan.holdouts])
    # Depth 0 is skipped: no block has written there.
    return int(macro_f1(gold, np.concatenate(predicted, axis=1))[1:].argmax()) + 1


def left_bag(sentence: Sentence, right: str = "") -> Bag:
    """The words before the word, case-folded, without further mentions of the word.

    right: a text whose words are added
    """
    words = WORD.findall(fold(f"{sentence.text[: sentence.start]} {right}"))
    return tuple(each for each in words if each != fold(sentence.word))


def whole_bag(sentence: Sentence) -> Bag:
    """The words before and after the word, as in `left_bag`."""
    return left_bag(sentence, sentence.text[sentence.end :])


def predict_by_bag(bags: Sequence[Bag], labels: Senses, holdout: Holdout) -> Senses:
    """The sense of each tested bag, predicted by a classifier of the training bags.

    A bag without a known word gets the most frequent sense.
    """
    train = [bags[row] for row in holdout.train]
    test = [bags[row] for row in holdout.test]
    learned = labels[list(holdout.train)]
    senses = by_frequency(learned)
    predicted = np.repeat(senses[:1], len(test))
    vocabulary = set[str]().union(*train)
    # The classifier has no evidence about a bag without a word of the training bags.
    rows = [row for row, bag in enumerate(test) if vocabulary.intersection(bag)]
    if not rows:
        return predicted
    vectorizer = TfidfVectorizer(analyzer=tuple, sublinear_tf=True)
    classifier = LogisticRegression(C=INVERSE_PENALTY, class_weight="balanced", max_iter=STEPS)
    # Senses are numbered by frequency, so that ties go to the more frequent sense.
    ranks = [list(senses).index(label) for label in learned]
    classifier.fit(vectorizer.fit_transform(train), ranks)
    tested = vectorizer.transform([test[row] for row in rows])
    predicted[rows] = senses[classifier.predict(tested)]
    return predicted


def angle_gap(resid: Tensor, labels: Senses) -> Array:
    """Mean angle between sentences of different senses minus that between sentences of the same
    sense, in degrees, by depth. `sentence depth d_model -> depth`

    Every unordered pair of sentences counts once. NaN without a pair of either kind.
    """
    senses = torch.tensor(labels)
    return np.array(
        [_angle_gap_here(unit_vectors(resid[:, depth]), senses) for depth in range(resid.shape[1])]
    )


def _angle_gap_here(unit: Tensor, senses: Tensor) -> float:
    """`angle_gap` of one depth.

    unit: `sentence d_model`, of length 1
    """
    # Sums and counts of the angles within the same sense, and between different senses.
    total = torch.zeros(2, dtype=torch.float64)
    count = torch.zeros(2, dtype=torch.float64)
    for start in range(0, len(unit), ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        cosines = (unit[block] @ unit.T).clamp(-1, 1)
        angles = torch.rad2deg(torch.arccos(cosines))
        # Only above the diagonal of the whole matrix, where row 0 of the block is row `start`.
        counted_once = torch.ones_like(angles, dtype=torch.bool).triu(start + 1)
        same = senses[block, None] == senses
        for kind, pairs in enumerate((counted_once & same, counted_once & ~same)):
            total[kind] += angles[pairs].sum()
            count[kind] += pairs.sum()
    same_sense, different = (total / count).tolist()  # 0 / 0 is NaN
    return float(different - same_sense)
