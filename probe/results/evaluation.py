"""How well the model's vector of a word tells the word's senses apart, layer by layer, on any
labelled sentences.

The vector at the last token of the word goes to the nearest sense centroid
(`probe.experiments.centroids`), learned on other sentences (`probe.text.splits`). Depth 0 is the
residual stream entering the first block, depth d the one leaving block d - 1. The depth to read at
is chosen on the training sentences alone; the accuracy of every depth stands beside it. The same
with heads taken out is in `probe.results.ablation`.

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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import binomtest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from probe.display import Displayed
from probe.errors import InputError, require_at_least
from probe.experiments.centroids import (
    Senses,
    by_frequency,
    macro_f1,
    nearest_mean,
    predict,
    unit_vectors,
)
from probe.experiments.material import Material, choose_words, prepare_usable
from probe.model.architectures import require_single
from probe.model.check import certify
from probe.model.load import ModelSource, load, read_weights
from probe.model.model import Model
from probe.model.tokens import in_order
from probe.model.trace import target_states
from probe.progress import Progress, silent
from probe.provenance import hash_of, manifest
from probe.results import ablation
from probe.results import frames as tables
from probe.results.ablation import (
    CHOSEN,
    Accuracies,
    HeadsOut,
    HeadsSource,
    WordStates,
    heads_out,
)
from probe.results.columns import METHODS
from probe.stats.resampling import Array
from probe.text import splits
from probe.text.sentences import Corpus, LeftOut, Sentence, as_corpus
from probe.text.spans import WORD, fold
from probe.text.splits import Holdout, Plan
from probe.tidy import rounded

Bag = tuple[str, ...]
ROWS_PER_BLOCK = 512  # of angles: a word with thousands of sentences has millions of pairs
INNER_FOLDS = 3  # two thirds of the training sentences to fit on
INVERSE_PENALTY = 10.0  # of the logistic regression
STEPS = 2000  # of the logistic regression, at most
WORDS_SHOWN = 3  # by name, where an evaluation shows itself in a line
CHUNK = 256  # sentences whose states are held at once: of each only the residual stream is kept
# Sentences of several words that are read together, so that words with few fill the batches.
SENTENCES_PER_LOAD = 1024
# Why a sentence is left out.
OTHER_WORD = "it is about another word than those that were asked for"


class Task(NamedTuple):
    """One word to be tested: the sentences used, and how they are held out."""

    material: Material
    plan: Plan

    @property
    def tested(self) -> list[int]:
        """The rows that are tested, each once."""
        return sorted(row for holdout in self.plan.holdouts for row in holdout.test)


@dataclass(frozen=True, eq=False)
class Answers:
    """The senses predicted for the tested sentences of one word, and their own, as numbers.

    `gold: test` · `by_depth: depth test` · `predicted: test` by METHODS; of "position" and "length"
    the nearest mean of the position of the word and of the length of the text, in tokens ·
    `depths: test`, the depth chosen in the training part that the sentence was tested against ·
    `depth`: the one chosen most often.
    """

    gold: Senses
    by_depth: Senses
    predicted: dict[str, Senses]
    depths: Senses
    depth: int


@dataclass(frozen=True, eq=False)
class Evaluation(Displayed):
    """Accuracy and macro-F1 as frames (`probe.results.columns` says what each column is), and what
    made them.

    `words`: read at the depth chosen on each word's training sentences, with the baselines ·
    `depths`: every word at every depth · `mean`: every method and depth, averaged over the words ·
    `left_out`: what was not used, and why · `without`: the accuracy with heads taken out, where
    that was asked for · `said`: what to know of the numbers, in sentences.
    """

    manifest: dict[str, Any]
    words: pd.DataFrame
    depths: pd.DataFrame
    mean: pd.DataFrame
    left_out: pd.DataFrame
    without: pd.DataFrame | None = None
    said: tuple[str, ...] = ()

    def __repr__(self) -> str:
        words = ", ".join(self.words["word"].head(WORDS_SHOWN))
        if len(self.words) > WORDS_SHOWN:
            words += f" and {len(self.words) - WORDS_SHOWN} more words"
        return f"<Evaluation of {words} in {self.manifest['model']}: {len(self.frames)} tables>"

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The frames by name; `without` where heads were taken out."""
        frames = {
            "words": self.words,
            "depths": self.depths,
            "mean": self.mean,
            "left_out": self.left_out,
        }
        return frames if self.without is None else frames | {"without": self.without}

    @property
    def heads_out(self) -> list[str]:
        """The names of the heads that were taken out."""
        return list(self.manifest.get("without", []))

    @property
    def bag_accuracy(self) -> float:
        """The mean accuracy of the bag of words."""
        return float(self.words["bag_accuracy"].mean())

    def to_json(self) -> str:
        """The frames as lists of rows, with the model and the seed, and the heads taken out."""
        frames = {
            name: json.loads(frame.to_json(orient="records")) for name, frame in self.frames.items()
        }
        about = {"model": self.manifest["model"], "seed": self.manifest["seed"]}
        if self.without is not None:
            about["heads_out"] = self.heads_out
        return json.dumps(about | frames)


def evaluate(
    model: ModelSource,
    sentences: Any,
    words: Sequence[str] | str | None = None,
    *,
    without: HeadsSource | None = None,
    top: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Sense accuracy and macro-F1 of `model` at the word, per depth, on labelled sentences, with
    baselines.

    `sentences` is what `read_sentences` gives or takes (a path, a DataFrame, a list of dicts or of
    sentences), `words` those of it that are evaluated, all by default; rows that name no word are
    about the one that is evaluated. `without` takes heads out at the word, as
    `probe.results.ablation` says: names ("L4H1,L4H2", a list of them, or of (layer, head)), or a
    CSV or Parquet file or a DataFrame with the columns layer and head, of which `top` takes those
    with the largest effect. The frame `without` then says how far the accuracy falls at every
    depth, beside random sets of heads of the same layers.

    Raises InputError when no word has two senses that can be learned and tested apart, or the heads
    cannot be taken out, and CrossCheckError when the certificate fails: no number is reported from
    a model that disagrees with the from-scratch math.

    Example:
        >>> sentences = probe.lexicon.expand_natural("bank")
        >>> evaluation = probe.evaluate("tiny-senses", sentences, without="L1H0")
        >>> list(evaluation.depths["label"])[:2]
        ['token + position', 'after layer 0']
        >>> set(evaluation.without["random_sets"])  # the three other heads of layer 1, one by one
        {3}
    """
    require_at_least(0, seed, "seed", doing="Evaluating sentences", usual=0)
    model = load(model)
    require_single(model.config.architecture, "an evaluation")
    if without is None and top is not None:
        raise InputError(
            f"Taking out the first {top} heads: got no file to take them from, expected one with "
            "the columns layer, head and effect; give it as without."
        )
    shape = (model.config.n_layers, model.config.n_heads)
    out = None
    if without is not None:
        out = heads_out(without, top, model=model.name, shape=shape, seed=seed)
        empty = [layer for layer in out.layers if not model.config.has_heads(layer)]
        if empty:
            raise InputError(
                f"Taking heads out of {model.name}: its layer {empty[0]} has no attention, and no "
                "heads; leave these out."
            )
    report = progress or silent
    corpus = _only(as_corpus(sentences, words), words)
    everything = prepare_tasks(model, corpus, seed=seed)
    left_out = tables.left_out(
        {None: corpus.left_out},
        {task.material.word: task.material.left_out for task in everything},
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
    without_rows = []
    total: Accuracies | None = None
    layers = out.layers if out else []
    for count, (task, states) in enumerate(read_tasks(model, tested, layers), start=1):
        answers = answer(task, states.resid, seed=seed)
        word_rows.append(_word_row(task, answers))
        depth_rows += _depth_rows(task, answers, states.resid)
        if out:
            accuracies = _without_heads(model, task, states, answers, out, seed=seed)
            without_rows += ablation.rows(task.material.word, accuracies)
            total = ablation.add(total, accuracies)
        report(task.material.word, 0.05 + 0.95 * count / len(tested))
    by_word = pd.DataFrame(word_rows)
    by_depth = pd.DataFrame(depth_rows)
    mean = _mean(by_word, by_depth)
    record = manifest(
        model.name,
        model.origin,
        seed=seed,
        command="",
        data_sha256=corpus.sha256,
        dtype=str(model.dtype).removeprefix("torch."),
        sentences=corpus.source,
        **({"without": out.names} if out else {}),
    )
    return Evaluation(
        record,
        rounded(by_word),
        rounded(by_depth),
        rounded(mean),
        left_out,
        rounded(ablation.frame(without_rows, total)) if total else None,
        tuple(filter(None, map(_unmarked, tested))),
    )


def _unmarked(task: Task) -> str:
    """That sentences of a word look like pairs which are not marked; "" where they do not."""
    sentences = task.material.sentences
    alike = splits.unmarked_pairs(sentences)
    if not alike:
        return ""
    return (
        f"{alike} of {len(sentences)} sentences with {task.material.word!r} differ from one of "
        "another sense in a single word, and no pair says so: learned from, it speaks for the "
        "wrong sense, and accuracies may lie below chance; name such sentences in a column pair."
    )


def _only(corpus: Corpus, words: Sequence[str] | str | None) -> Corpus:
    """The corpus with only the sentences of some words, the others counted; InputError where one
    has none."""
    if not words:
        return corpus
    chosen = set(choose_words(words, corpus))
    others = [
        LeftOut(sentence.where or sentence.text, OTHER_WORD)
        for sentence in corpus.sentences
        if sentence.word not in chosen
    ]
    return replace(
        corpus,
        sentences=tuple(sentence for sentence in corpus.sentences if sentence.word in chosen),
        left_out=(*corpus.left_out, *others),
    )


def prepare_tasks(model: Model, corpus: Corpus, *, seed: int) -> list[Task]:
    """A task per word; a word of which nothing can be tested has no holdouts and every row in
    `left_out`."""
    tasks = []
    for word, sentences in corpus.by_word().items():
        material, reasons = prepare_usable(model, word, sentences)
        plan = splits.plan(material.sentences, seed=seed)
        left_out = [LeftOut(sentences[row].text, reason) for row, reason in reasons.items()]
        left_out += [
            LeftOut(material.sentences[row].text, reason) for row, reason in plan.left_out.items()
        ]
        tasks.append(Task(material.keep(plan.rows, left_out), plan))
    return tasks


def read_tasks(
    model: Model, tasks: Sequence[Task], layers: Sequence[int] = ()
) -> Iterator[tuple[Task, WordStates]]:
    """Residual streams at the word of every task's sentences, and z of some layers there.

    Words are read together until there are SENTENCES_PER_LOAD sentences, which fills the batches
    where each has few; the next load is read when this one is used up.
    """
    load: list[Task] = []
    for task in tasks:
        load.append(task)
        sizes = [len(waiting.material) for waiting in load]
        if sum(sizes) >= SENTENCES_PER_LOAD or task is tasks[-1]:
            read = _read(model, load, list(layers))
            parts = zip(*(tensor.split(sizes) for tensor in read), strict=True)
            yield from zip(load, (WordStates(*part) for part in parts), strict=True)
            load = []


def _read(model: Model, load: Sequence[Task], layers: list[int]) -> WordStates:
    """What is read at the targets, in chunks of like length of which nothing else is kept."""
    tokens = [cut for task in load for cut in task.material.tokens]
    targets = [target for task in load for target in task.material.targets]
    order = sorted(range(len(targets)), key=targets.__getitem__)
    chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
    parts = []
    for rows in chunks:
        states = target_states(model, [tokens[row] for row in rows], [targets[row] for row in rows])
        parts.append(WordStates(states.resid, states.z[:, layers]))
    in_given_order = in_order(chunks)
    resid = torch.cat([part.resid for part in parts])[in_given_order]
    return WordStates(resid, torch.cat([part.z for part in parts])[in_given_order])


def _without_heads(
    model: Model, task: Task, states: WordStates, answers: Answers, out: HeadsOut, *, seed: int
) -> Accuracies:
    """What taking the heads out costs one word; its draws are its own."""
    own_seed = hash_of(seed, task.material.word)
    without = ablation.predict_without(
        read_weights(model),
        task.material,
        states,
        numbered(task.material.sentences),
        task.plan.holdouts,
        out,
        seed=own_seed,
    )
    tested = task.tested
    return ablation.compare(
        task.material.keep(tested),
        answers.gold,
        answers.by_depth,
        without[:, :, tested],
        answers.depths,
        seed=own_seed,
    )


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
            "label": CHOSEN if method == "nearest" else None,
        }
        for score in ("accuracy", "macro_f1"):
            row[score] = words[f"{_prefix(method)}{score}"].mean()
        rows.append(row)
    nearest = by_depth.assign(method=METHODS["nearest"])
    means = pd.concat([nearest, pd.DataFrame(rows)], ignore_index=True)
    columns = ["method", "depth", "label", "words", "accuracy", "macro_f1", "angle"]
    return means.assign(words=len(words)).astype({"depth": "Int64"})[columns]


def angle_gap(resid: Tensor, labels: Senses) -> Array:
    """Mean angle between sentences of different senses minus that of the same sense, in degrees, by
    depth.

    `sentence depth d_model -> depth`. Every unordered pair of sentences counts once; missing where
    either kind has no pair.
    """
    senses = torch.tensor(labels)
    return np.array(
        [_angle_gap_here(unit_vectors(resid[:, depth]), senses) for depth in range(resid.shape[1])]
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


def answer(task: Task, resid: Tensor, *, seed: int) -> Answers:
    """Test every sentence that the plan holds out, learning from its training part only. `sentence
    depth d_model`"""
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
    for holdout in task.plan.holdouts:
        train = list(holdout.train)
        test = list(holdout.test)
        depth = choose_depth([material.sentences[row] for row in train], resid[train], seed=seed)
        depths.append(depth)
        read_at[test] = depth
        by_depth[:, test] = predict(resid, labels, holdout)
        predicted["nearest"][test] = by_depth[depth, test]
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


def left_bag(sentence: Sentence, right: str = "") -> Bag:
    """The words before the word, case folded; further mentions of the word are left out too."""
    words = WORD.findall(fold(f"{sentence.text[: sentence.start]} {right}"))
    return tuple(other for other in words if other != fold(sentence.word))


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
