"""How well the model's vector of a word tells the word's senses apart, layer by layer, on any
labelled sentences.

The vector at the last token of the word goes to the nearest sense centroid: a sense is the mean of
its vectors in training (`probe.text.splits`), compared by cosine. Depth 0 is the residual stream
entering the first block, depth d the one leaving block d - 1. Ties, and cosines that differ in
rounding only, go to the sense that is more frequent in training. The depth to read at is chosen on
the training sentences alone; the accuracy of every depth stands beside it.

Baselines that need no model: the most frequent sense, the words of the sentence, the words left of
the word, its position and the length of the text. The words to the left are what a causal model has
read when it reaches the word, without their order and without anything learned elsewhere; a model
that does not beat them has not been shown to know more than which words stand there. A sentence
whose cue follows the word stays in: neither can answer it. The word itself is in no bag. The
classifier of bags is a logistic regression on TF-IDF with balanced classes, which on CoarseWSD-20
was the strongest of the plain ones (the bar should be high); nothing in it is random.

Source: Loureiro et al. 2021.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from probe.errors import InputError
from probe.evidence import tables
from probe.evidence.columns import METHODS, rounded
from probe.evidence.material import Material, prepare_usable
from probe.evidence.study import Progress
from probe.model.architectures import require_single
from probe.model.check import certify
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.tokens import in_order
from probe.model.trace import target_states
from probe.provenance import manifest
from probe.stats.resampling import Array
from probe.text import splits
from probe.text.sentences import Corpus, LeftOut, Sentence, as_corpus
from probe.text.splits import Holdout, Plan

Senses = NDArray[np.int64]  # by their numbers in alphabetical order
Bag = tuple[str, ...]
TIE_DECIMALS = 12  # of cosines in float64: what differs beyond is the order of the sums
ROWS_PER_BLOCK = 512  # of angles: a word with thousands of sentences has millions of pairs
SMALLEST_NORM = 1e-300  # so that a vector of zeros stays one
INNER_FOLDS = 3  # two thirds of the training sentences to fit on
INVERSE_PENALTY = 10.0  # of the logistic regression
STEPS = 2000  # of the logistic regression, at most
CHUNK = 256  # sentences whose states are held at once: of each only the residual stream is kept
# Sentences of several words that are read together, so that words with few fill the batches.
SENTENCES_PER_LOAD = 1024


class Task(NamedTuple):
    """One word to be tested: the sentences used, and how they are held out."""

    material: Material
    plan: Plan


@dataclass(frozen=True, eq=False)
class Answers:
    """The senses predicted for the tested sentences of one word, and their own, as numbers.

    `gold: test` · `by_depth: depth test` · `predicted: test` by METHODS; of "position" and "length"
    the nearest mean of the position of the word and of the length of the text, in tokens ·
    `depth`: the one chosen (most often, where there are folds).
    """

    gold: Senses
    by_depth: Senses
    predicted: dict[str, Senses]
    depth: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Accuracy and macro-F1 as frames (`probe.evidence.columns` says what each column is), and what
    made them.

    `words`: read at the depth chosen on each word's training sentences, with the baselines ·
    `depths`: every word at every depth · `mean`: every method and depth, averaged over the words ·
    `left_out`: what was not used, and why.
    """

    manifest: dict[str, Any]
    words: pd.DataFrame
    depths: pd.DataFrame
    mean: pd.DataFrame
    left_out: pd.DataFrame

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The four frames by name."""
        return {
            "words": self.words,
            "depths": self.depths,
            "mean": self.mean,
            "left_out": self.left_out,
        }

    def to_json(self) -> str:
        """The frames as lists of rows, with the model and the seed."""
        frames = {
            name: json.loads(frame.to_json(orient="records")) for name, frame in self.frames.items()
        }
        return json.dumps(
            {"model": self.manifest["model"], "seed": self.manifest["seed"]} | frames,
            ensure_ascii=False,
        )

    def _repr_html_(self) -> str:
        return self.mean.to_html(index=False, float_format="{:.3f}".format, na_rep="")


def evaluate(
    model: ModelSource, corpus: Any, *, seed: int = 0, progress: Progress | None = None
) -> Evaluation:
    """Sense accuracy and macro-F1 of `model` at the word, per depth, on the sentences of `corpus`,
    with baselines.

    `corpus` is what `read_sentences` gives or takes (a path, a DataFrame, a list of dicts or of
    sentences). Raises InputError when no word has two senses that can be learned and tested apart,
    and CrossCheckError when the certificate fails: no number is reported from a model that
    disagrees with the from-scratch math.

    Example:
        >>> corpus = probe.lexicon.expand_natural("bank")
        >>> evaluation = probe.evaluate("tiny-senses", corpus)
        >>> list(evaluation.depths["label"])[:2]
        ['token + position', 'after layer 0']
    """
    model = load(model)
    require_single(model.config.architecture, "an evaluation")
    report = progress or (lambda stage, share: None)
    corpus = as_corpus(corpus)
    everything = prepare_tasks(model, corpus, seed=seed)
    left_out = tables.left_out(
        corpus.left_out, [(task.material.word, task.material.left_out) for task in everything]
    )
    tested = [task for task in everything if task.plan.holdouts]
    if not tested:
        reason, count = Counter(left_out["reason"]).most_common(1)[0]
        raise InputError(
            f"Evaluating the sentences of {corpus.source}: none of {len(corpus.sentences)} can be "
            f"tested ({count} left out: {reason}), expected a word with two senses and at least "
            "two sentences of each; give more sentences."
        )
    report("certificate", 0.02)
    certify(model, [tested[0].material.sentences[0].text]).require()
    report("reading", 0.05)
    word_rows = []
    depth_rows = []
    for count, (task, resid) in enumerate(read_tasks(model, tested), start=1):
        answers = answer(task, resid, seed=seed)
        word_rows.append(_word_row(task, answers))
        depth_rows += _depth_rows(task, answers, resid)
        report(task.material.word, 0.05 + 0.95 * count / len(tested))
    words = pd.DataFrame(word_rows)
    depths = pd.DataFrame(depth_rows)
    mean = _mean(words, depths)
    record = manifest(
        model.name,
        model.origin,
        seed=seed,
        command="",
        data_sha256=corpus.sha256,
        dtype=str(model.dtype).removeprefix("torch."),
        sentences=corpus.source,
    )
    return Evaluation(record, rounded(words), rounded(depths), rounded(mean), left_out)


def prepare_tasks(model: Model, corpus: Corpus, *, seed: int) -> list[Task]:
    """A task per word; a word of which nothing can be tested has no holdouts and every row in
    `left_out`."""
    by_word: defaultdict[str, list[Sentence]] = defaultdict(list)
    for sentence in corpus.sentences:
        by_word[sentence.word].append(sentence)
    tasks = []
    for word, sentences in by_word.items():
        material, reasons = prepare_usable(model, word, sentences)
        plan = splits.plan(material.sentences, seed=seed)
        left_out = [LeftOut(sentences[row].text, reason) for row, reason in reasons.items()]
        left_out += [
            LeftOut(material.sentences[row].text, reason) for row, reason in plan.left_out.items()
        ]
        tasks.append(Task(material.keep(plan.rows, left_out), plan))
    return tasks


def read_tasks(model: Model, tasks: Sequence[Task]) -> Iterator[tuple[Task, Tensor]]:
    """Residual streams at the word of every task's sentences, `sentence depth d_model`.

    Words are read together until there are SENTENCES_PER_LOAD sentences, which fills the batches
    where each has few; the next load is read when this one is used up.
    """
    load: list[Task] = []
    for task in tasks:
        load.append(task)
        sizes = [len(waiting.material) for waiting in load]
        if sum(sizes) >= SENTENCES_PER_LOAD or task is tasks[-1]:
            yield from zip(load, _resid(model, load).split(sizes), strict=True)
            load = []


def _resid(model: Model, load: Sequence[Task]) -> Tensor:
    """The residual stream at the targets, read in chunks of like length of which nothing else is
    kept."""
    tokens = [cut for task in load for cut in task.material.tokens]
    targets = [target for task in load for target in task.material.targets]
    order = sorted(range(len(targets)), key=targets.__getitem__)
    chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
    states = (
        target_states(model, [tokens[row] for row in rows], [targets[row] for row in rows])
        for rows in chunks
    )
    return torch.cat([chunk.resid for chunk in states])[in_order(chunks)]


def _word_row(task: Task, answers: Answers) -> dict[str, object]:
    right = int((answers.gold == answers.predicted["nearest"]).sum())
    interval = binomtest(right, len(answers.gold)).proportion_ci(method="wilson")
    row: dict[str, object] = {
        "word": task.material.word,
        "senses": len(set(task.material.labels)),
        "sentences": len(task.material),
        "tested": len(answers.gold),
        "left_out": len(task.material.left_out),
        "split_design": task.plan.design,
        "depth": answers.depth,
        "accuracy_low": float(interval.low),
        "accuracy_high": float(interval.high),
    }
    for method in METHODS:
        row |= _scores(answers.gold, answers.predicted[method], _prefix(method))
    return row


def _depth_rows(task: Task, answers: Answers, resid: Tensor) -> list[dict[str, object]]:
    angles = angle_gap(resid, numbered(task.material.sentences))
    return [
        {"word": task.material.word, "depth": depth, "label": tables.depth_label(depth)}
        | _scores(answers.gold, predicted)
        | {"angle": float(angles[depth])}
        for depth, predicted in enumerate(answers.by_depth)
    ]


def _prefix(method: str) -> str:
    return "" if method == "nearest" else f"{method}_"


def _scores(gold: Senses, predicted: Senses, prefix: str = "") -> dict[str, object]:
    return {
        f"{prefix}accuracy": float((gold == predicted).mean()),
        f"{prefix}macro_f1": float(macro_f1(gold, predicted)),
    }


def _mean(words: pd.DataFrame, depths: pd.DataFrame) -> pd.DataFrame:
    """Every method's scores averaged over the words: each depth, the depths chosen in training, the
    baselines."""
    by_depth = depths.groupby(["depth", "label"], as_index=False)[
        ["accuracy", "macro_f1", "angle"]
    ].mean()
    rows = []
    for method, name in METHODS.items():
        row: dict[str, object] = {
            "method": name,
            "label": "depth chosen in training" if method == "nearest" else None,
        }
        for score in ("accuracy", "macro_f1"):
            row[score] = words[f"{_prefix(method)}{score}"].mean()
        rows.append(row)
    nearest = by_depth.assign(method=METHODS["nearest"])
    means = pd.concat([nearest, pd.DataFrame(rows)], ignore_index=True)
    columns = ["method", "depth", "label", "words", "accuracy", "macro_f1", "angle"]
    return means.assign(words=len(words)).astype({"depth": "Int64"})[columns]


def by_frequency(labels: Senses) -> Senses:
    """The senses, the most frequent first, equally frequent ones by number."""
    senses, counts = np.unique(labels, return_counts=True)
    return senses[np.argsort(-counts, kind="stable")]


def predict(resid: Tensor, labels: Senses, holdout: Holdout) -> Senses:
    """The sense whose training mean has the largest cosine.
    `sentence depth d_model -> depth test`"""
    train = list(holdout.train)
    test = list(holdout.test)
    # The most frequent first: argmax takes the first of equals.
    senses = by_frequency(labels[train])
    member = torch.tensor(senses[:, None] == labels[train], dtype=torch.float64)  # sense train
    nearest = []
    for depth in range(resid.shape[1]):
        centroids = member @ resid[train, depth].double() / member.sum(1, keepdim=True)
        cosines = _unit(resid[test, depth]) @ _unit(centroids).T
        nearest.append(np.round(cosines.numpy(), TIE_DECIMALS).argmax(1))
    return senses[np.stack(nearest)]


def angle_gap(resid: Tensor, labels: Senses) -> Array:
    """Mean angle between sentences of different senses minus that of the same sense, in degrees, by
    depth.

    `sentence depth d_model -> depth`. Every unordered pair of sentences counts once; missing where
    either kind has no pair.
    """
    senses = torch.tensor(labels)
    return np.array(
        [_angle_gap_here(_unit(resid[:, depth]), senses) for depth in range(resid.shape[1])]
    )


def _angle_gap_here(unit: Tensor, senses: Tensor) -> float:
    """`angle_gap` of one depth. `sentence d_model`, of length 1"""
    # Sums and numbers of pairs of the same sense and of different senses.
    total = torch.zeros(2, dtype=torch.float64)
    count = torch.zeros(2, dtype=torch.float64)
    for start in range(0, len(unit), ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        cosines = (unit[block] @ unit.T).clamp(-1, 1)
        angles = torch.rad2deg(torch.arccos(cosines))
        counted_once = torch.ones_like(angles, dtype=torch.bool).triu(start + 1)
        same = senses[block, None] == senses
        for kind, pairs in enumerate((counted_once & same, counted_once & ~same)):
            total[kind] += angles[pairs].sum()
            count[kind] += pairs.sum()
    same_sense, different = (total / count).tolist()  # 0 / 0 is missing
    return float(different - same_sense)


def _unit(vectors: Tensor) -> Tensor:
    """In float64, of length 1; a vector of zeros stays one."""
    return torch.nn.functional.normalize(vectors.double(), dim=-1, eps=SMALLEST_NORM)


def answer(task: Task, resid: Tensor, *, seed: int) -> Answers:
    """Test every sentence that the plan holds out, learning from its training part only. `sentence
    depth d_model`"""
    material = task.material
    labels = numbered(material.sentences)
    by_depth = np.zeros((resid.shape[1], len(material)), dtype=np.int64)
    predicted = {method: np.zeros(len(material), dtype=np.int64) for method in METHODS}
    positions = [
        [target, len(tokens)]
        for target, tokens in zip(material.targets, material.tokens, strict=True)
    ]
    # As if the position and the length were two depths of one number each.
    numbers = torch.tensor(positions, dtype=resid.dtype)[..., None]
    bags = {
        "bag": [whole_bag(sentence) for sentence in material.sentences],
        "left": [left_bag(sentence) for sentence in material.sentences],
    }
    depths = []
    for holdout in task.plan.holdouts:
        train = list(holdout.train)
        test = list(holdout.test)
        depth = choose_depth([material.sentences[row] for row in train], resid[train], seed=seed)
        depths.append(depth)
        by_depth[:, test] = predict(resid, labels, holdout)
        predicted["nearest"][test] = by_depth[depth, test]
        predicted["frequent"][test] = by_frequency(labels[train])[0]
        by_position, by_length = predict(numbers, labels, holdout)
        predicted["position"][test] = by_position
        predicted["length"][test] = by_length
        for method, words in bags.items():
            predicted[method][test] = predict_by_bag(words, labels, holdout)
    tested = sorted(row for holdout in task.plan.holdouts for row in holdout.test)
    return Answers(
        gold=labels[tested],
        by_depth=by_depth[:, tested],
        predicted={method: senses[tested] for method, senses in predicted.items()},
        depth=min(depths, key=lambda depth: (-depths.count(depth), depth)),
    )


def numbered(sentences: Sequence[Sentence]) -> Senses:
    """The sense of each sentence as a number, in alphabetical order of the senses."""
    return np.unique([sentence.sense for sentence in sentences], return_inverse=True)[1]


def choose_depth(sentences: Sequence[Sentence], resid: Tensor, *, seed: int) -> int:
    """The depth after at least one block with the best macro-F1 in folds over these sentences, the
    lowest of equals.

    Not the rule of `axes.choose_depth`, which asks where a sense axis separates: an evaluation is
    read where its own score is best on the training sentences, as a user of these vectors would
    choose. The last depth where they are too few to be learned and tested apart. `resid: sentence
    depth d_model`
    """
    plan = splits.plan(sentences, seed=seed, folds=INNER_FOLDS)
    if not plan.holdouts:
        return resid.shape[1] - 1
    labels = numbered([sentences[row] for row in plan.rows])
    vectors = resid[list(plan.rows)]
    predicted = [predict(vectors, labels, holdout) for holdout in plan.holdouts]
    gold = np.concatenate([labels[list(holdout.test)] for holdout in plan.holdouts])
    return int(macro_f1(gold, np.concatenate(predicted, axis=1))[1:].argmax()) + 1


def macro_f1(gold: Senses, predicted: Senses) -> Array:
    """Mean over the senses in `gold` of F1 = 2 hits / (times in gold + times predicted), 0 to 1.
    `n, ... n -> ...`"""
    scores = []
    for sense in np.unique(gold):
        in_gold = gold == sense
        in_predicted = predicted == sense
        hits = (in_gold & in_predicted).sum(-1)
        scores.append(2 * hits / (in_gold.sum() + in_predicted.sum(-1)))
    return np.asarray(np.mean(scores, axis=0))


def left_bag(sentence: Sentence, right: str = "") -> Bag:
    """The words before the word, case folded; further mentions of the word are left out too."""
    words = re.findall(r"\w+", f"{sentence.text[: sentence.start]} {right}".casefold())
    return tuple(other for other in words if other != sentence.word.casefold())


def whole_bag(sentence: Sentence) -> Bag:
    """The same with the words behind the word."""
    return left_bag(sentence, sentence.text[sentence.end :])


def predict_by_bag(bags: Sequence[Bag], labels: Senses, holdout: Holdout) -> Senses:
    """The sense of each tested bag by a classifier of the training bags; without a known word the
    most frequent."""
    train = [bags[row] for row in holdout.train]
    test = [bags[row] for row in holdout.test]
    learned = labels[list(holdout.train)]
    senses = by_frequency(learned)
    predicted = np.repeat(senses[:1], len(test))
    vocabulary = set[str]().union(*train)
    rows = [row for row, bag in enumerate(test) if vocabulary.intersection(bag)]
    if not rows:
        return predicted
    vectorizer = TfidfVectorizer(analyzer=tuple, sublinear_tf=True)
    classifier = LogisticRegression(C=INVERSE_PENALTY, class_weight="balanced", max_iter=STEPS)
    # Numbered by frequency, so that a tie goes to the more frequent sense.
    ranks = [list(senses).index(label) for label in learned]
    classifier.fit(vectorizer.fit_transform(train), ranks)
    tested = vectorizer.transform([test[row] for row in rows])
    predicted[rows] = senses[classifier.predict(tested)]
    return predicted
