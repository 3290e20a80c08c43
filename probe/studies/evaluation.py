"""The evaluation of a model on labelled sentences: how well its vector of a word identifies the
sense at every depth, and without some heads.

The vector at the last token of the word is assigned to the nearest sense centroid, the mean of a
sense's training vectors by cosine, learned on other sentences (`probe.text.splits`). Depth 0 is the
residual stream that enters the first block; depth d is the residual stream after block d - 1. The
depth to read is chosen on the training sentences alone; the accuracy of every depth is reported as
well. Ties go to the sense that is more frequent in training.

Baselines without a model are the most frequent sense, the words of the sentence, the words left of
the word, its position, and the length of the text. The words to the left are what a causal model
has read when it reaches the word, without their order and without any other knowledge. If a model
does not beat this baseline, its accuracy may come from these words alone. In a causal model, the
same sentences are left out as in a report: those whose marked cue follows the word, and those of
different senses that are identical up to the word. The word itself is in no bag of words. The
classifier of bags is a logistic regression on TF-IDF with balanced classes, the strongest of the
simple classifiers on CoarseWSD-20. Nothing in it is random.

Heads are taken out at the word only: a head's z there is replaced by

    mean         its mean over the training part (mean ablation)
    swap         its z in a random sentence of the training part (resample ablation)
    same_sense   its z in a random sentence of the same sense

"swap" removes the head's information and adds that of a random sentence. "same_sense" only disturbs
the head. Everything after the head responds. The same ablations, on the same sentences and with the
same donors, are run for random sets of other heads, with the same number of heads in every layer:
they show the cost of removing any heads of these layers.

The centroids are fitted on the intact model and are not fitted again without the heads. The
question is whether the word's vector still has its sense where its readers expect it, above all the
later layers of the trained model. For the same reason, every swap of this package is read along
axes of unchanged runs. Centroids that were fitted again would answer another question: whether a
new reader could learn any trace of the context, such as a copy that nothing reads. A head that no
other head makes up for would then seem to do nothing.

With the mean of z, accuracy therefore falls to what the other heads bring to the word: at best that
of a bag of words, at worst that of the most frequent sense. With the z of a random sentence it can
fall further, because the donor's sense comes with it.

Sources: Loureiro et al. 2021 (nearest centroids); Wang et al. 2022 (mean ablation over a reference
distribution); Chan et al. 2022 (resample ablation).
"""

import json
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from probe.display import Displayed
from probe.errors import InputError, require_at_least
from probe.experiments.material import Material, choose_words, prepare_counted
from probe.experiments.senses import depth_label
from probe.model.architectures import require_single
from probe.model.check import certify
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.tokens import in_order
from probe.model.trace import target_states
from probe.model.variants import TargetText
from probe.model.weights import Weights, weights_of
from probe.patching.heads import swap_sets
from probe.patching.inputs import target_texts
from probe.patching.sets import Mask, mask_of, other_sets
from probe.progress import Progress, silent
from probe.provenance import hash_of, manifest
from probe.results import frames as tables
from probe.results.tables import EvaluationTables
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.studies.heads_given import HeadsSource, heads_of, name_of_head
from probe.text import splits
from probe.text.cautions import words_before
from probe.text.sentences import Corpus, LeftOut, Sentence, as_corpus
from probe.text.spans import WORD, fold
from probe.text.splits import Holdout, Plan, cue_words
from probe.tidy import rounded

# A reason for leaving a sentence out.
OTHER_WORD = "its word is not one of the words to evaluate"
# How a sense is predicted; the key is the prefix of its columns.
METHODS = {
    "nearest": "nearest sense centroid",
    "frequent": "most frequent sense in training",
    "bag": "bag of words",
    "left": "bag of words left of the word",
    "position": "the word's position alone",
    "length": "the text's length alone",
}
FRAMES = ("words", "depths", "mean", "left_out", "sentences", "without")  # in their order
SCORES = ("accuracy", "macro_f1")
CHOSEN = "depth chosen in training"
WORDS_SHOWN = 3  # names in the repr of an evaluation
# Reading and classifying.
CHUNK = 256  # sentences whose states are in memory at once; only residual streams and z are kept
# Sentences of several words that are read together, so that words with few sentences fill batches.
SENTENCES_PER_LOAD = 1024
ROWS_PER_BLOCK = 512  # of angles, because thousands of sentences have millions of pairs
INNER_FOLDS = 3  # two thirds of the training sentences are fitted on
INVERSE_PENALTY = 10.0  # of the logistic regression
STEPS = 2000  # of the logistic regression, at most
TIE_DECIMALS = 12  # of cosines in float64; later decimals depend on the order of summation
SMALLEST_NORM = 1e-300  # so that a zero vector remains a zero vector
# Heads taken out.
KINDS = ("mean", "swap", "same_sense")
# Random sets that the ablated heads are compared with: with 20 sets, the smallest p is 1/21.
RANDOM_SETS = 20
MORE_RANDOM_SETS = 99
FEW_SENTENCES = 1000  # tested sentences up to which MORE_RANDOM_SETS are run
SENTENCES = 64  # sentences that are run together: each has directions as large as its stream
# Decimals of a fall in accuracy. Later ones depend on the order of a sum.
DECIMALS = 9
COLUMNS = (
    *("word", "kind", "depth", "label", "tested", "accuracy", "accuracy_without"),
    *("fall", "fall_low", "fall_high", "random_sets", "random_fall", "random_least"),
    *("random_most", "p", "beyond_random", "beyond_random_low", "beyond_random_high"),
    *("macro_f1", "macro_f1_without", "macro_f1_fall", "macro_f1_fall_low", "macro_f1_fall_high"),
    "random_macro_f1",
)

Senses = NDArray[np.int64]  # numbers of senses, in alphabetical order
Bag = tuple[str, ...]
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Evaluation(EvaluationTables, Displayed):
    """Accuracy and macro-F1 as frames (`probe.results.columns` describes every column)."""

    manifest: dict[str, Any]  # how the result was computed
    frames: dict[str, pd.DataFrame]  # by name
    cautions: tuple[str, ...] = ()  # cautions about the numbers, in sentences

    @property
    def sentences(self) -> pd.DataFrame | None:
        """Every tested sentence with its prediction. None for a folder written by an earlier
        version."""
        return self.frames.get("sentences")

    @property
    def without(self) -> pd.DataFrame | None:
        """The accuracy without heads; None unless it was requested."""
        return self.frames.get("without")

    @property
    def heads_out(self) -> list[str]:
        """The names of the removed heads."""
        return list(self.manifest.get("without", []))

    @property
    def bag_accuracy(self) -> float:
        """The mean accuracy of the bag-of-words baseline."""
        return float(self.words["bag_accuracy"].mean())

    def to_json(self) -> str:
        """The frames as lists of rows, with the model, the seed and the removed heads."""
        frames = {
            name: json.loads(frame.to_json(orient="records")) for name, frame in self.frames.items()
        }
        about = {"model": self.manifest["model"], "seed": self.manifest["seed"]}
        if self.without is not None:
            about["heads_out"] = self.heads_out
        return json.dumps(about | frames)

    def __repr__(self) -> str:
        words = ", ".join(self.words["word"].head(WORDS_SHOWN))
        if len(self.words) > WORDS_SHOWN:
            words += f" and {len(self.words) - WORDS_SHOWN} more words"
        return f"<Evaluation of {words} in {self.manifest['model']}: {len(self.frames)} tables>"


def evaluate(
    model: ModelSource,
    words: Sequence[str] | str | None = None,
    *,
    sentences: Any,
    without: HeadsSource | None = None,
    top: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Return sense accuracy and macro-F1 at the word, per depth, on labelled sentences, with
    baselines.

    words: the words to evaluate; by default every word of `sentences`
    sentences: anything that `read_sentences` takes or returns: a path, a DataFrame, a list of dicts
        or of sentences. A row without a word belongs to the only word that is evaluated
    without: heads to ablate at the word: names ("L4H1,L4H2", or a list of names or of
        (layer, head)), or a CSV or Parquet file or a DataFrame with the columns layer and head. The
        frame `without` then reports how far accuracy falls at every depth, compared with random
        sets of heads of the same layers
    top: use only this many heads of the file or DataFrame, those with the largest effect
    seed: of the folds, random sets and donors
    progress: called with a stage's name and the share of the work that is done

    Raises InputError if no word has two senses with enough sentences to train and test on, or if
    the heads cannot be ablated; CrossCheckError if the certificate fails: no number is reported
    from a model that disagrees with the forward pass from scratch.

    Example:
        >>> sentences = probe.lexicon.expand_natural("bank")
        >>> evaluation = probe.evaluate("tiny-senses", sentences=sentences, without="L1H0")
        >>> list(evaluation.depths["label"])[:2]
        ['token + position', 'after layer 0']
        >>> set(evaluation.without["random_sets"])  # each of the three other heads of layer 1
        {3}
    """
    require_at_least(0, seed, "seed", doing="Cannot evaluate sentences", usual=0)
    model = load(model)
    require_single(model.config.architecture, "an evaluation")
    if without is None and top is not None:
        raise InputError(
            f"Cannot ablate the top {top} heads: got no file of heads. Give one with the columns "
            "layer, head and effect as without."
        )
    heads = [] if without is None else heads_of(without, top, model)
    report = progress or silent
    corpus = _only(as_corpus(sentences, words), words)
    everything = prepare_tasks(model, corpus, seed=seed)
    left_out = tables.left_out(
        {None: corpus.left_out},
        {task.material.word: task.material.left_out for task in everything},
    )
    # Words without a holdout stay in the table of sentences left out, with the reason.
    tested = [task for task in everything if task.plan.holdouts]
    if not tested:
        reason, count = Counter(left_out["reason"]).most_common(1)[0]
        raise InputError(
            f"Cannot evaluate the sentences of {corpus.source}: none of {len(corpus.sentences)} "
            f"can be tested ({count} left out: {reason}), expected a word with two senses and at "
            "least two sentences of each. Give more sentences."
        )
    # With few sentences more random sets are affordable, and the comparison is finer.
    few = sum(len(task.tested) for task in tested) <= FEW_SENTENCES
    shape = (model.config.n_layers, model.config.n_heads)
    number = MORE_RANDOM_SETS if few else RANDOM_SETS
    masks = with_random_sets(mask_of(heads, shape), number=number, seed=seed) if heads else None
    report("certificate", 0.02)
    certify(model, [tested[0].material.sentences[0].text]).require()
    report("reading", 0.05)
    by_word, by_depth, by_sentence, by_set = [], [], [], []
    total: Accuracies | None = None
    layers = [] if masks is None else layers_of(masks)
    for count, (task, states) in enumerate(read_tasks(model, tested, layers), start=1):
        word = task.material.word
        answers = answer(task, states.resid, seed=seed)
        by_word.append(_word_row(task, answers))
        by_sentence += _sentence_rows(task, answers)
        by_depth += _depth_rows(task, answers, states.resid)
        if masks is not None:
            # The draws of a word do not depend on the other words.
            word_seed = hash_of(seed, word)
            predicted = predict_without(weights_of(model), task, states, masks, seed=word_seed)
            accuracies = compare(
                task.material.keep(task.tested),
                answers.gold,
                answers.by_depth,
                predicted[:, :, task.tested],
                answers.depths,
                seed=word_seed,
            )
            by_set.append(rows_without(word, accuracies))
            total = add(total, accuracies)
        report(word, 0.05 + 0.95 * count / len(tested))
    frames = {
        "words": pd.DataFrame(by_word),
        "depths": pd.DataFrame(by_depth),
        "mean": means(pd.DataFrame(by_word), pd.DataFrame(by_depth)),
        "left_out": left_out,
        "sentences": pd.DataFrame(by_sentence),
    }
    if total is not None:
        frames["without"] = pd.concat([*by_set, rows_without(None, mean(total))], ignore_index=True)
    made = manifest(
        model.name,
        model.origin,
        seed=seed,
        command="",
        data_sha256=corpus.sha256,
        dtype=str(model.dtype).removeprefix("torch."),
        sentences=corpus.source,
        **({"without": [name_of_head(head) for head in heads]} if heads else {}),
    )
    cautions = tuple(filter(None, map(_unmarked, tested)))
    return Evaluation(made, {name: rounded(each) for name, each in frames.items()}, cautions)


# --- the words to test ----------------------------------------------------------------------------


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


def _only(corpus: Corpus, words: Sequence[str] | str | None) -> Corpus:
    """The corpus with only the sentences of some words; the other sentences are left out, with the
    reason.

    Raises InputError for a word without sentences.
    """
    if not words:
        return corpus
    spellings = set(choose_words(words, corpus))
    left_out = [
        LeftOut(sentence.where or sentence.text, OTHER_WORD)
        for sentence in corpus.sentences
        if sentence.word not in spellings
    ]
    return replace(
        corpus,
        sentences=tuple(sentence for sentence in corpus.sentences if sentence.word in spellings),
        left_out=(*corpus.left_out, *left_out),
    )


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


def _unmarked(task: Task) -> str:
    """A caution about sentences of a word that look like unmarked pairs; "" without any."""
    sentences = task.material.sentences
    alike = splits.unmarked_pairs(sentences)
    if not alike:
        return ""
    return (
        f"{alike} of {len(sentences)} sentences with {task.material.word!r} differ from one of "
        "another sense in a single word, but are not marked as a pair. A classifier that learns "
        "from one of the two is misled about the other, and accuracies may be below chance. Mark "
        "such sentences in a column pair."
    )


class WordStates(NamedTuple):
    """The states at the word in unchanged runs.

    resid: `sentence depth d_model`, the residual stream
    z: `sentence layer head d_head`, of the layers from which heads are taken out
    """

    resid: Tensor
    z: Tensor


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
        parts.append((states.resid, states.z[:, layers]))
    in_given_order = in_order(chunks)
    return WordStates(*(torch.cat(part)[in_given_order] for part in zip(*parts, strict=True)))


# --- predictions ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Answers:
    """The predicted senses of the tested sentences of one word, and their true senses, as numbers.

    gold: the true senses. `test`
    by_depth: the nearest centroid at every depth. `depth test`
    predicted: by method of METHODS; "position" and "length" are the nearest mean of the position of
        the word and of the length of the text, in tokens. `test` each
    depths: the depth chosen on the training part of each sentence. `test`
    depth: the depth chosen most often
    coordinates, nearest_others: see `coordinates`, at the depth chosen for each sentence. `test`
        each
    """

    gold: Senses
    by_depth: Senses
    predicted: dict[str, Senses]
    depths: Senses
    depth: int
    coordinates: Array
    nearest_others: Senses


def answer(task: Task, resid: Tensor, *, seed: int) -> Answers:
    """The predictions for every sentence that the plan holds out, learned from its training part
    only.

    resid: `sentence depth d_model`
    """
    sentences = task.material.sentences
    labels = numbered(sentences)
    by_depth = np.zeros((resid.shape[1], len(labels)), dtype=np.int64)
    predicted = {method: np.zeros_like(labels) for method in METHODS}
    numbers = {
        "position": np.array(task.material.targets, dtype=float),
        "length": np.array([len(tokens) for tokens in task.material.tokens], dtype=float),
    }
    bags = {"bag": [*map(whole_bag, sentences)], "left": [*map(left_bag, sentences)]}
    chosen = []
    depths, others = np.zeros_like(labels), np.zeros_like(labels)
    coordinate = np.zeros(len(labels))
    for holdout in task.plan.holdouts:
        train, test = list(holdout.train), list(holdout.test)
        depth = choose_depth([sentences[row] for row in train], resid[train], seed=seed)
        chosen.append(depth)
        depths[test] = depth
        by_depth[:, test] = predict(resid, labels, holdout)
        predicted["nearest"][test] = by_depth[depth, test]
        coordinate[test], others[test] = coordinates(resid[:, depth], labels, holdout)
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
        depths=depths[tested],
        # The most frequent of the chosen depths; the lowest of equally frequent depths.
        depth=min(chosen, key=lambda depth: (-chosen.count(depth), depth)),
        coordinates=coordinate[tested],
        nearest_others=others[tested],
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


def by_frequency(labels: Senses) -> Senses:
    """The senses, the most frequent first; equally frequent senses by number."""
    senses, counts = np.unique(labels, return_counts=True)
    return senses[np.argsort(-counts, kind="stable")]


class Centroids(NamedTuple):
    """The means of the senses in a training part.

    senses: the senses, the most frequent first
    unit: the means in float64, each of length 1. `depth sense d_model`
    """

    senses: Senses
    unit: Tensor


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


def unit_vectors(vectors: Tensor) -> Tensor:
    """The vectors in float64, scaled to length 1; a zero vector remains zero."""
    return torch.nn.functional.normalize(vectors.double(), dim=-1, eps=SMALLEST_NORM)


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
    is_true = centroids.senses == labels[test][:, None]
    true_sense = is_true.argmax(1)
    other_sense = np.where(is_true, -np.inf, cosine).argmax(1)
    rows = np.arange(len(test))
    difference = cosine[rows, true_sense] - cosine[rows, other_sense]
    unit = centroids.unit[0].numpy()  # sense d_model
    squared_distance = ((unit[true_sense] - unit[other_sense]) ** 2).sum(-1)
    # Two equal centroids have distance 0: the coordinate is 0, a tie.
    zero = np.zeros_like(difference)
    between = np.divide(difference, squared_distance, out=zero, where=squared_distance > 0)
    return between, centroids.senses[other_sense]


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


# --- scores ---------------------------------------------------------------------------------------


def macro_f1(gold: Senses, predicted: Senses, weights: Array | None = None) -> Array:
    """The mean over the senses in `gold` of F1, from 0 to 1. `n, ... n -> ...`

    F1 = 2 hits / (times in gold + times predicted)

    weights: the weight of every sentence in bootstrap draws, `draw n`; the result is then
        `draw ...`, each the mean over the senses that occur in the draw
    """
    draws = np.ones((1, len(gold))) if weights is None else weights
    scores = []
    for sense in np.unique(gold):
        in_gold = (gold == sense).astype(float)
        in_predicted = (predicted == sense).astype(float)
        hits = np.tensordot(draws, in_gold * in_predicted, ([1], [-1]))
        times_in_gold = (draws @ in_gold).reshape(-1, *[1] * (hits.ndim - 1))
        times = times_in_gold + np.tensordot(draws, in_predicted, ([1], [-1]))
        absent = np.full_like(hits, np.nan)
        # A sense that is absent from a draw is NaN, which `nanmean` skips.
        scores.append(np.divide(2 * hits, times, out=absent, where=times_in_gold > 0))
    f1 = np.asarray(np.nanmean(scores, axis=0))
    return f1 if weights is not None else np.asarray(f1[0])


def angle_gap(resid: Tensor, labels: Senses) -> Array:
    """Mean angle between sentences of different senses minus that between sentences of the same
    sense, in degrees, by depth. `sentence depth d_model -> depth`

    Every unordered pair of sentences counts once. NaN without a pair of either kind.
    """
    senses = torch.tensor(labels)
    gaps = []
    for vectors in resid.unbind(1):
        unit = unit_vectors(vectors)
        # Sums and counts of the angles within the same sense, and between different senses.
        total = torch.zeros(2, dtype=torch.float64)
        count = torch.zeros(2, dtype=torch.float64)
        for start in range(0, len(unit), ROWS_PER_BLOCK):
            block = slice(start, start + ROWS_PER_BLOCK)
            angles = torch.rad2deg(torch.arccos((unit[block] @ unit.T).clamp(-1, 1)))
            # Only above the diagonal of the whole matrix, where row 0 of the block is row `start`.
            counted_once = torch.ones_like(angles, dtype=torch.bool).triu(start + 1)
            same = senses[block, None] == senses
            for kind, pairs in enumerate((counted_once & same, counted_once & ~same)):
                total[kind] += angles[pairs].sum()
                count[kind] += pairs.sum()
        same_sense, different = (total / count).tolist()  # 0 / 0 is NaN
        gaps.append(different - same_sense)
    return np.array(gaps)


def _scores(gold: Senses, predicted: Senses, method: str = "nearest") -> Row:
    prefix = "" if method == "nearest" else f"{method}_"
    accuracy, f1 = (gold == predicted).mean(), macro_f1(gold, predicted)
    return {f"{prefix}{name}": float(each) for name, each in zip(SCORES, (accuracy, f1))}


def _word_row(task: Task, answers: Answers) -> Row:
    """The row of a word in `words`, with a 95 % Wilson interval of the accuracy."""
    right = int((answers.gold == answers.predicted["nearest"]).sum())
    interval = binomtest(right, len(answers.gold)).proportion_ci(method="wilson")
    row: Row = {
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
    for method, predicted in answers.predicted.items():
        row |= _scores(answers.gold, predicted, method)
    return row


def _sentence_rows(task: Task, answers: Answers) -> list[Row]:
    """A row for each tested sentence with its prediction, at the depth that was chosen on its
    training sentences.
    """
    senses = np.unique(task.material.labels)  # in the order of `numbered`
    rows = []
    for number, row in enumerate(task.tested):
        sentence = task.material.sentences[row]
        predicted = str(senses[answers.predicted["nearest"][number]])
        rows.append(
            {
                "word": sentence.word,
                "sense": sentence.sense,
                "predicted": predicted,
                "right": predicted == sentence.sense,
                "coordinate": float(answers.coordinates[number]),
                "other": str(senses[answers.nearest_others[number]]),
                "label": depth_label(int(answers.depths[number])),
                "cue": sentence.cue,
                "words_before": words_before(sentence),
                "text": sentence.text,
            }
        )
    return rows


def _depth_rows(task: Task, answers: Answers, resid: Tensor) -> list[Row]:
    """The rows of a word in `depths`, one for each depth.

    resid: the residual stream at the word. `sentence depth d_model`
    """
    angles = angle_gap(resid, numbered(task.material.sentences)).tolist()
    return [
        {"word": task.material.word, "depth": depth, "label": depth_label(depth)}
        | _scores(answers.gold, predicted)
        | {"angle": angle}
        for depth, (predicted, angle) in enumerate(zip(answers.by_depth, angles, strict=True))
    ]


def means(words: pd.DataFrame, depths: pd.DataFrame) -> pd.DataFrame:
    """The frame `mean`: the scores averaged over the words, for each depth, for the depths chosen
    on the training sentences, and for the baselines.
    """
    by_depth = depths.groupby(["depth", "label"], as_index=False)[[*SCORES, "angle"]].mean()
    rows = []
    for method, name in METHODS.items():
        prefix, label = ("", CHOSEN) if method == "nearest" else (f"{method}_", None)
        scores = {score: words[f"{prefix}{score}"].mean() for score in SCORES}
        rows.append({"method": name, "label": label} | scores)
    nearest = by_depth.assign(method=METHODS["nearest"])
    table = pd.concat([nearest, pd.DataFrame(rows)], ignore_index=True)
    columns = ["method", "depth", "label", "words", *SCORES, "angle"]
    return table.assign(words=len(words)).astype({"depth": "Int64"})[columns]


# --- without some heads ---------------------------------------------------------------------------


def with_random_sets(mask: Mask, *, number: int = RANDOM_SETS, seed: int) -> Mask:
    """A set of heads to take out, then random sets of other heads that have the same number in
    every layer. `layer head -> 1 + random layer head`, True for a head that is taken out

    number: the number of random sets; fewer if there are not so many
    """
    random_masks = other_sets(mask, number, np.random.default_rng(seed))
    return np.concatenate([mask[None], random_masks])


def layers_of(masks: Mask) -> list[int]:
    """The layers from which heads are taken out, equal for every set. `set layer head`"""
    layers: list[int] = np.flatnonzero(masks[0].any(1)).tolist()
    return layers


def predict_without(
    weights: Weights, task: Task, states: WordStates, masks: Mask, *, seed: int
) -> Senses:
    """The sense whose intact centroid is nearest to every tested sentence, with each set of heads
    taken out.

    `-> kind set sentence depth`; 0 for sentences that are not tested

    states: of all sentences in unchanged runs
    masks: the sets of heads. `set layer head`
    seed: of the donors
    """
    rng = np.random.default_rng(seed)
    labels = numbered(task.material.sentences)
    centroids: dict[int, Centroids] = {}
    # The new z of every kind, in the order of KINDS. `kind sentence layer head d_head`
    z = states.z.new_zeros(len(KINDS), *states.z.shape)
    for holdout in task.plan.holdouts:
        test = list(holdout.test)
        centroids |= dict.fromkeys(test, fit_centroids(states.resid, labels, holdout))
        z[0, test] = states.z[list(holdout.train)].mean(0)
        for kind, donors in enumerate(draw_donors(labels, holdout, rng), start=1):
            z[kind, test] = states.z[donors]
    texts = target_texts(weights, task.material.texts, "Cannot take heads out")
    # Sentences of equal length are run together, and tokens that they share are run once.
    order = sorted(centroids, key=lambda row: (len(texts[row].ids), row))
    predicted = np.zeros((len(KINDS), len(masks), *states.resid.shape[:2]), dtype=np.int64)
    for start in range(0, len(order), SENTENCES):
        here = order[start : start + SENTENCES]
        of_rows = [centroids[row] for row in here]
        nearest = _nearest(
            weights, [texts[row] for row in here], states.resid[here], z[:, here], of_rows, masks
        )
        senses = np.stack([each.senses for each in of_rows])  # sentence sense
        predicted[:, :, here] = senses[np.arange(len(here))[:, None], nearest]
    return predicted


def draw_donors(
    labels: Senses, holdout: Holdout, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """For each tested sentence a random training sentence, then one of its sense.

    labels: the number of each sentence's sense
    """
    train = list(holdout.train)
    donors = rng.choice(train, len(holdout.test)).tolist()
    of_sense = {sense: [row for row in train if labels[row] == sense] for sense in set(labels)}
    return donors, [int(rng.choice(of_sense[labels[row]])) for row in holdout.test]


def _nearest(
    weights: Weights,
    texts: Sequence[TargetText],
    resid: Tensor,
    z: Tensor,
    centroids: Sequence[Centroids],
    masks: Mask,
) -> NDArray[np.intp]:
    """The number of the centroid that is nearest to each sentence if each set of heads has another
    z at the word.

    `-> kind set sentence depth`

    resid: `sentence depth d_model`, of unchanged runs
    z: `kind sentence layer head d_head`, the other z
    centroids: of each sentence

    All kinds and sets are variants of one run. Only differences from the first centroid are read,
    so that equal centroids remain a tie, however the sums are rounded.
    """
    # The cosines of the unchanged run, as in `predict`. Heads change them after the first block.
    cosine = np.concatenate(
        [cosines(row[None], of_row) for row, of_row in zip(resid, centroids, strict=True)]
    )
    differences = torch.stack([of_row.unit[1:, 1:] - of_row.unit[1:, :1] for of_row in centroids])
    # cos(x', c) - cos(x', c_0) ∝ <x, c - c_0> / |x| + <x' - x, c - c_0> / |x|
    # x' is the changed vector. Its length is a factor for all centroids, so it changes no order.
    lengths = resid[:, 1:].double().norm(dim=-1).clamp_min(SMALLEST_NORM)
    directions = differences / lengths[..., None, None]
    donor_z = z.new_zeros(len(KINDS) * len(texts), *masks.shape[1:], z.shape[-1])
    donor_z[:, layers_of(masks)] = z.flatten(0, 1)
    changes = swap_sets(
        weights,
        [*texts] * len(KINDS),
        donor_z,
        torch.from_numpy(~masks),
        directions.to(resid.dtype).repeat(len(KINDS), 1, 1, 1),  # row stage sense d_model
    )
    # `kind sentence set depth sense`
    by_kind = changes.double().unflatten(0, (len(KINDS), -1)).numpy()
    # How far each centroid is ahead of the first one: unchanged at depth 0 and for the first.
    ahead = (cosine - cosine[..., :1])[None, :, None]
    ahead = np.broadcast_to(ahead, (*by_kind.shape[:3], *ahead.shape[3:])).copy()
    ahead[..., 1:, 1:] += by_kind
    nearest: NDArray[np.intp] = np.round(ahead, TIE_DECIMALS).argmax(-1).swapaxes(1, 2)
    return nearest


class Accuracies(NamedTuple):
    """The accuracy of one word with and without sets of heads, or the sum or mean over words.

    kind: a way of removing heads, of KINDS.
    1 + random: the requested set of heads first, then the random sets.
    depth: the last entry is the depth that was chosen on the training sentences.
    """

    intact: Array  # accuracy with all heads. `depth`
    fall: Array  # accuracy lost without a set. `kind 1 + random depth`
    intact_f1: Array  # macro-F1 with all heads. `depth`
    f1: Array  # macro-F1 without a set. `kind 1 + random depth`
    # Bootstrap draws of three numbers: the requested set's fall in accuracy, its fall minus the
    # mean fall of the random sets, and its fall in macro-F1. `3 draw kind depth`
    draws: Array
    tested: int  # sentences
    units: int  # groups of sentences that are drawn together
    words: int = 1  # in the sum


def compare(
    material: Material,
    gold: Senses,
    intact: Senses,
    without: Senses,
    depths: Senses,
    *,
    seed: int,
) -> Accuracies:
    """The accuracy that the tested sentences of one word lose without each set of heads.

    material: the tested sentences only
    gold: the sense of each sentence. `sentence`
    intact: the predicted senses with all heads. `depth sentence`
    without: the predicted senses without each set. `kind set sentence depth`
    depths: the depth chosen for each sentence. `sentence`

    Every set is tested on the same bootstrap draws, so differences are paired. Frames and cue words
    are drawn as units. Sentences for which the file names neither are drawn singly.
    """
    predicted = _append_chosen_depth(intact.T, depths)  # sentence depth
    predicted_without = _append_chosen_depth(without, depths)  # kind set sentence depth
    right = predicted == gold[:, None]
    lost = right.astype(float) - (predicted_without == gold[:, None])
    units = cue_words(material.sentences)
    factors = resampling.crossed_factors([row.frame for row in material.sentences], units)
    weights = resampling.bootstrap_weights(factors, seed=seed)  # draw sentence
    weights /= weights.sum(1, keepdims=True)
    # The requested set's fall, and its fall minus the mean of the random sets.
    compared = np.stack([lost[:, 0], lost[:, 0] - lost[:, 1:].mean(1)])  # 2 kind sentence depth
    # Weighted means over sentences: (draw sentence), (2 kind sentence depth) -> 2 draw kind depth
    draws = np.einsum("wn,cknd->cwkd", weights, compared, optimize=True)
    intact_f1 = macro_f1(gold, predicted.T, weights)  # draw depth
    f1 = macro_f1(gold, predicted_without[:, 0].swapaxes(-1, -2), weights)
    return Accuracies(
        intact=right.mean(0),
        fall=lost.mean(2),
        intact_f1=macro_f1(gold, predicted.T),
        f1=macro_f1(gold, predicted_without.swapaxes(-1, -2)),
        draws=np.concatenate([draws, (intact_f1[:, None] - f1)[None]]),
        tested=len(gold),
        units=len(set(units)),
    )


def _append_chosen_depth(predicted: Senses, depths: Senses) -> Senses:
    """The predictions with one more entry at the end: those at the sentence's chosen depth.

    `... sentence depth -> ... sentence depth + 1`
    """
    at = np.broadcast_to(depths[:, None], (*predicted.shape[:-1], 1))
    return np.concatenate([predicted, np.take_along_axis(predicted, at, -1)], axis=-1)


def add(total: Accuracies | None, word: Accuracies) -> Accuracies:
    """The sum over words with one more word.

    Sums are stored instead of words, so memory does not grow with the number of words.
    """
    return word if total is None else Accuracies(*map(operator.add, total, word))


def mean(total: Accuracies) -> Accuracies:
    """The average over words, computed from their sums. Every word has the same weight."""
    arrays = {name: getattr(total, name) / total.words for name in Accuracies._fields[:5]}
    return total._replace(**arrays)


def rows_without(word: str | None, accuracies: Accuracies) -> pd.DataFrame:
    """The rows of a word in `without`, one for each kind of removal and depth.

    word: None for the mean over words

    p = (1 + random sets with at least the same fall) / (1 + random sets)

    Falls that differ only by rounding count as equal.
    """
    fall, random = accuracies.fall[:, 0], accuracies.fall[:, 1:]  # kind depth, kind random depth
    intact, intact_f1, f1 = accuracies.intact, accuracies.intact_f1, accuracies.f1
    # The set's fall, its fall minus the mean of the random sets, and its fall in macro-F1.
    estimate = np.stack([fall, fall - random.mean(1), intact_f1 - f1[:, 0]])  # 3 kind depth
    draws = accuracies.draws.swapaxes(0, 1)
    low, high = resampling.interval(draws, estimate, units=accuracies.units)
    as_much = (random.round(DECIMALS) >= fall[:, None].round(DECIMALS)).sum(1)
    last = len(intact) - 1  # the depth that was chosen on the training sentences
    sets = random.shape[1]
    columns: Row = {
        "kind": np.array(KINDS, dtype=object)[:, None],
        "depth": np.arange(last + 1),
        "label": np.array([*map(depth_label, range(last)), CHOSEN], dtype=object),
        "tested": accuracies.tested,
        "accuracy": intact,
        "accuracy_without": intact - fall,
        "random_sets": sets,
        "random_fall": random.mean(1),
        "random_least": random.min(1),
        "random_most": random.max(1),
        "p": (1 + as_much) / (1 + sets),
        "macro_f1": intact_f1,
        "macro_f1_without": f1[:, 0],
        "random_macro_f1": f1[:, 1:].mean(1),
    }
    for number, name in enumerate(("fall", "beyond_random", "macro_f1_fall")):
        of_name = (estimate[number], low[number], high[number])
        columns |= dict(zip((name, f"{name}_low", f"{name}_high"), of_name, strict=True))
    frame = pd.DataFrame(
        {name: np.broadcast_to(each, fall.shape).ravel() for name, each in columns.items()}
    )
    frame["word"] = pd.Series([word] * len(frame), dtype="str")
    frame["depth"] = frame["depth"].astype("Int64").mask(frame["depth"] == last)
    return frame[list(COLUMNS)]
