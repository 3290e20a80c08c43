"""How well the model's vector of a word tells the word's senses apart, layer by layer, on any
labelled sentences.

The vector at the last token of the word goes to the nearest sense centroid: a sense is the mean of
its vectors in training (`probe.text.splits`), compared by cosine. Depth 0 is the residual stream
entering the first block, depth d the one leaving block d - 1. Ties, and cosines that differ in
rounding only, go to the sense that is more frequent in training. The depth to read at is chosen on
the training sentences alone; the accuracy of every depth stands beside it.

Baselines that need no model: the most frequent sense, the words of the sentence, the words left of
the word, its place and the text's length. The words to the left are what a causal model has read
when it reaches the word, without their order and without anything learned elsewhere; a model that
does not beat them has not been shown to know more than which words stand there. A sentence whose
cue follows the word stays in: neither can answer it. The word itself is in no bag. The classifier
of bags is a logistic regression on TF-IDF with balanced classes, which on CoarseWSD-20 was the
strongest of the plain ones (the bar should be high); nothing in it is random.

Source: Loureiro et al. 2021.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
from probe.stats.numbers import counted
from probe.stats.resampling import Array
from probe.text import splits
from probe.text.sentences import Corpus, LeftOut, Sentence, as_corpus
from probe.text.splits import Holdout, Plan

Senses = NDArray[np.int64]  # by their numbers in alphabetical order
Bag = tuple[str, ...]
TIE_DECIMALS = 12  # of cosines in float64: what differs beyond is the order of the sums
BLOCK = 512
INNER_FOLDS = 3  # two thirds of the training sentences to fit on
INVERSE_PENALTY, STEPS = 10.0, 2000  # of the logistic regression
REASONS = 5
CHUNK = 256  # sentences whose states are held at once: of each only the residual stream is kept
LOAD = 1024  # sentences of several words that are read together, so that words with few fill the batches


class Task(NamedTuple):
    """One word to be tested: the sentences used, and how they are held out."""

    material: Material
    plan: Plan


@dataclass(frozen=True, eq=False)
class Answers:
    """What was said of the tested sentences of one word, senses as numbers.

    `gold: test` · `by_depth: depth test` · `said: test` by METHODS; of "position" and "length" the
    nearest mean of the word's place and of the text's length, in tokens · `depth`: the one chosen
    (most often, where there are folds).
    """

    gold: Senses
    by_depth: Senses
    said: dict[str, Senses]
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

    def text_tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Header and rows of what a terminal shows: every word at its chosen depth, and the mean by
        depth."""
        counts, (_, *baselines) = ["senses", "sentences", "tested", "left_out"], METHODS
        words = [
            [
                row["word"],
                *(str(row[name]) for name in counts),
                tables.depth_label(row["depth"]),
                *_percent(row),
            ]
            + [" / ".join(_percent(row, f"{method}_")) for method in baselines]
            for row in self.words.to_dict("records")
        ]
        header = [
            "word",
            "senses",
            "sentences",
            "tested",
            "left out",
            "read",
            "accuracy",
            "macro-F1",
        ]
        means = [
            [row["method"], "" if pd.isna(row["label"]) else row["label"], *_percent(row)]
            + ["" if pd.isna(row["angle"]) else f"{row['angle']:.2f}"]
            for row in self.mean.to_dict("records")
        ]
        count = counted(len(self.words), "word")
        return [
            (header + [METHODS[method] for method in baselines], words),
            ([f"mean over {count}", "read", "accuracy", "macro-F1", "angle"], means),
        ]

    def reasons(self) -> list[str]:
        """How many sentences were left out and why, a line per reason, the rare reasons together."""
        counts = self.left_out["reason"].value_counts()
        lines = [f"{count} left out: {reason}" for reason, count in counts.head(REASONS).items()]
        rest = counts.iloc[REASONS:]
        return lines + (
            [f"{rest.sum()} left out for {len(rest)} other reasons"] if len(rest) else []
        )

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


def _percent(row: Mapping[Any, float], prefix: str = "") -> list[str]:
    return [f"{100 * row[f'{prefix}{score}']:.1f}" for score in ("accuracy", "macro_f1")]


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
    report, corpus = progress or (lambda stage, share: None), as_corpus(corpus)
    everything = prepare_tasks(model, corpus, seed=seed)
    left_out = tables.left_out(
        corpus.left_out, [(task.material.word, task.material.left_out) for task in everything]
    )
    tested = [task for task in everything if task.plan.holdouts]
    if not tested:
        reason, count = Counter(left_out["reason"]).most_common(1)[0]
        raise InputError(
            f"Evaluating the sentences of {corpus.source}: none of {len(corpus.sentences)} can be tested ({count} left "
            f"out: {reason}), expected a word with two senses and at least two sentences of each; give more sentences."
        )
    report("certificate", 0.02)
    certify(model, [tested[0].material.sentences[0].text]).require()
    report("reading", 0.05)
    word_rows, depth_rows = [], []
    for count, (task, resid) in enumerate(read_tasks(model, tested), start=1):
        answers = answer(task, resid, seed=seed)
        word_rows.append(_word_row(task, answers))
        depth_rows += _depth_rows(task, answers, resid)
        report(task.material.word, 0.05 + 0.95 * count / len(tested))
    words, depths = pd.DataFrame(word_rows), pd.DataFrame(depth_rows)
    words, depths, mean = (rounded(frame) for frame in (words, depths, _mean(words, depths)))
    about = {"dtype": str(model.dtype).removeprefix("torch."), "sentences": corpus.source}
    made = manifest(
        model.name, model.origin, seed=seed, command="", data_sha256=corpus.sha256, **about
    )
    return Evaluation(made, words, depths, mean, left_out)


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

    Words are read together until there are LOAD sentences, which fills the batches where each has
    few; the next load is read when this one is used up.
    """
    load: list[Task] = []
    for task in tasks:
        load.append(task)
        sizes = [len(waiting.material) for waiting in load]
        if sum(sizes) >= LOAD or task is tasks[-1]:
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
    right = int((answers.gold == answers.said["nearest"]).sum())
    sure = binomtest(right, len(answers.gold)).proportion_ci(method="wilson")
    row: dict[str, object] = {
        "word": task.material.word,
        "senses": len(set(task.material.labels)),
        "sentences": len(task.material),
        "tested": len(answers.gold),
        "left_out": len(task.material.left_out),
        "split_design": task.plan.design,
        "depth": answers.depth,
        "accuracy_low": float(sure.low),
        "accuracy_high": float(sure.high),
    }
    for method in METHODS:
        row |= _scores(answers.gold, answers.said[method], _prefix(method))
    return row


def _depth_rows(task: Task, answers: Answers, resid: Tensor) -> list[dict[str, object]]:
    angles = angle_gap(resid, numbered(task.material.sentences))
    return [
        {"word": task.material.word, "depth": depth, "label": tables.depth_label(depth)}
        | _scores(answers.gold, said)
        | {"angle": float(angles[depth])}
        for depth, said in enumerate(answers.by_depth)
    ]


def _prefix(method: str) -> str:
    return "" if method == "nearest" else f"{method}_"


def _scores(gold: Senses, said: Senses, prefix: str = "") -> dict[str, object]:
    return {
        f"{prefix}accuracy": float((gold == said).mean()),
        f"{prefix}macro_f1": float(macro_f1(gold, said)),
    }


def _mean(words: pd.DataFrame, depths: pd.DataFrame) -> pd.DataFrame:
    """Every method's scores averaged over the words: each depth, the depths chosen in training, the
    baselines."""
    by_depth = depths.groupby(["depth", "label"], as_index=False)[
        ["accuracy", "macro_f1", "angle"]
    ].mean()
    rows = []
    for method, name in METHODS.items():
        means = {
            score: words[f"{_prefix(method)}{score}"].mean() for score in ("accuracy", "macro_f1")
        }
        rows.append(
            {"method": name, "label": "depth chosen in training" if method == "nearest" else None}
            | means
        )
    every = pd.concat(
        [by_depth.assign(method=METHODS["nearest"]), pd.DataFrame(rows)], ignore_index=True
    )
    columns = ["method", "depth", "label", "words", "accuracy", "macro_f1", "angle"]
    return every.assign(words=len(words)).astype({"depth": "Int64"})[columns]


def by_frequency(labels: Senses) -> Senses:
    """The senses, the most frequent first, equally frequent ones by number."""
    senses, counts = np.unique(labels, return_counts=True)
    return senses[np.argsort(-counts, kind="stable")]


def predict(resid: Tensor, labels: Senses, holdout: Holdout) -> Senses:
    """The sense whose training mean has the largest cosine. `sentence depth d_model -> depth test`"""
    known = labels[list(holdout.train)]
    senses = by_frequency(known)
    member = torch.tensor(senses[:, None] == known, dtype=torch.float64)  # sense train
    said = []
    for depth in range(resid.shape[1]):
        centroids = (
            member @ resid[list(holdout.train), depth].double() / member.sum(1, keepdim=True)
        )
        cosines = _unit(resid[list(holdout.test), depth]) @ _unit(centroids).T
        said.append(np.round(cosines.numpy(), TIE_DECIMALS).argmax(1))
    return senses[np.stack(said)]


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
    total, count = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for start in range(
        0, len(unit), BLOCK
    ):  # a word with thousands of sentences has millions of pairs
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


def answer(task: Task, resid: Tensor, *, seed: int) -> Answers:
    """Test every sentence that the plan holds out, learning from its training part only. `sentence
    depth d_model`"""
    given = task.material
    labels, count = numbered(given.sentences), len(given)
    by_depth = np.zeros((resid.shape[1], count), dtype=np.int64)
    said = {method: np.zeros(count, dtype=np.int64) for method in METHODS}
    places = [[at, len(text)] for at, text in zip(given.targets, given.tokens, strict=True)]
    where = torch.tensor(places, dtype=resid.dtype)[..., None]  # sentence (position, length) 1
    bags = {
        "bag": [whole_bag(one) for one in given.sentences],
        "left": [left_bag(one) for one in given.sentences],
    }
    chosen = []
    for holdout in task.plan.holdouts:
        train, test = list(holdout.train), list(holdout.test)
        chosen.append(
            choose_depth([given.sentences[row] for row in train], resid[train], seed=seed)
        )
        by_depth[:, test] = predict(resid, labels, holdout)
        said["nearest"][test] = by_depth[chosen[-1], test]
        said["frequent"][test] = by_frequency(labels[train])[0]
        said["position"][test], said["length"][test] = predict(where, labels, holdout)
        for method, words in bags.items():
            said[method][test] = predict_by_bag(words, labels, holdout)
    rows = sorted(row for holdout in task.plan.holdouts for row in holdout.test)
    usual = min(chosen, key=lambda depth: (-chosen.count(depth), depth))
    return Answers(
        labels[rows],
        by_depth[:, rows],
        {method: answers[rows] for method, answers in said.items()},
        usual,
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
    labels, resid = numbered([sentences[row] for row in plan.rows]), resid[list(plan.rows)]
    said = np.concatenate([predict(resid, labels, holdout) for holdout in plan.holdouts], axis=1)
    gold = np.concatenate([labels[list(holdout.test)] for holdout in plan.holdouts])
    return int(macro_f1(gold, said)[1:].argmax()) + 1


def macro_f1(gold: Senses, predicted: Senses) -> Array:
    """Mean over the senses in `gold` of F1 = 2 hits / (times in gold + times predicted), 0 to 1.
    `n, ... n -> ...`"""
    scores = []
    for sense in np.unique(gold):
        is_sense, said = gold == sense, predicted == sense
        scores.append(2 * (is_sense & said).sum(-1) / (is_sense.sum() + said.sum(-1)))
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
    train, test = ([bags[row] for row in rows] for rows in (holdout.train, holdout.test))
    learned = labels[list(holdout.train)]
    senses = by_frequency(learned)
    answer, known = np.repeat(senses[:1], len(test)), set[str]().union(*train)
    rows = [row for row, bag in enumerate(test) if known.intersection(bag)]
    if not rows:
        return answer
    vectorizer = TfidfVectorizer(analyzer=tuple, sublinear_tf=True)
    classifier = LogisticRegression(C=INVERSE_PENALTY, class_weight="balanced", max_iter=STEPS)
    # Numbered by frequency, so that a tie goes to the more frequent sense.
    classifier.fit(
        vectorizer.fit_transform(train), [list(senses).index(label) for label in learned]
    )
    answer[rows] = senses[classifier.predict(vectorizer.transform([test[row] for row in rows]))]
    return answer
