"""The evaluation of a model on labelled sentences: sense accuracy at every depth."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from probe.errors import InputError, require_at_least
from probe.experiments.ablation import (
    FEW_SENTENCES,
    MORE_RANDOM_SETS,
    HeadsOut,
    WordStates,
    predict_without,
    with_random_sets,
)
from probe.experiments.accuracy import Answers, Task, answer, numbered, prepare_tasks, read_tasks
from probe.experiments.material import choose_words
from probe.model.architectures import require_single
from probe.model.check import certify
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.weights import weights_of
from probe.progress import Progress, silent
from probe.provenance import hash_of, manifest
from probe.results import ablation
from probe.results import frames as tables
from probe.results.ablation import Accuracies
from probe.results.evaluation import Evaluation, depth_rows, means, sentence_rows, word_row
from probe.studies.heads_given import HeadsSource, heads_out
from probe.text import splits
from probe.text.sentences import Corpus, LeftOut, as_corpus
from probe.tidy import rounded

# A reason for leaving a sentence out.
OTHER_WORD = "its word is not one of the words to evaluate"


def evaluate(
    model: ModelSource,
    words: Sequence[str] | str | None = None,
    *,
    sentences: Any,
    without: HeadsSource | None = None,
    top: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    planned: Callable[[], None] | None = None,
) -> Evaluation:
    """Return sense accuracy and macro-F1 at the word, per depth, on labelled sentences, with
    baselines.

    words: the words to evaluate; by default every word of `sentences`
    sentences: anything that `read_sentences` takes or returns: a path, a DataFrame, a list of dicts
        or of sentences. A row without a word belongs to the only word that is evaluated
    without: heads to ablate at the word, as `probe.results.ablation` describes: names ("L4H1,L4H2",
        or a list of names or of (layer, head)), or a CSV or Parquet file or a DataFrame with the
        columns layer and head. The frame `without` then reports how far accuracy falls at every
        depth, compared with random sets of heads of the same layers
    top: use only this many heads of the file or DataFrame, those with the largest effect
    seed: of the folds, random sets and donors
    progress: called with a stage's name and the share of the work that is done
    planned: called before the work, after all arguments were checked

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
    shape = (model.config.n_layers, model.config.n_heads)
    out = None
    if without is not None:
        out = heads_out(without, top, model=model.name, shape=shape, seed=seed)
        without_heads = [layer for layer in out.layers if not model.config.has_heads(layer)]
        if without_heads:
            raise InputError(
                f"Cannot ablate heads of {model.name}: its layer {without_heads[0]} has no "
                "attention, and no heads. Name heads of other layers."
            )
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
    if out and sum(len(task.tested) for task in tested) <= FEW_SENTENCES:
        out = with_random_sets(out.heads, shape, number=MORE_RANDOM_SETS, seed=seed)
    report("certificate", 0.02)
    certify(model, [tested[0].material.sentences[0].text]).require()
    if planned:
        planned()
    report("reading", 0.05)
    rows_by_word = []
    rows_by_depth = []
    rows_by_sentence = []
    rows_without = []
    total: Accuracies | None = None
    layers = out.layers if out else []
    for count, (task, states) in enumerate(read_tasks(model, tested, layers), start=1):
        answers = answer(task, states.resid, seed=seed)
        rows_by_word.append(word_row(task, answers))
        rows_by_sentence += sentence_rows(task, answers)
        rows_by_depth += depth_rows(task, answers, states.resid)
        if out:
            accuracies = _without_heads(model, task, states, answers, out, seed=seed)
            rows_without += ablation.rows(task.material.word, accuracies)
            total = ablation.add(total, accuracies)
        report(task.material.word, 0.05 + 0.95 * count / len(tested))
    by_word = pd.DataFrame(rows_by_word)
    by_depth = pd.DataFrame(rows_by_depth)
    averaged = means(by_word, by_depth)
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
        rounded(averaged),
        left_out,
        rounded(ablation.frame(rows_without, total)) if total else None,
        rounded(pd.DataFrame(rows_by_sentence)),
        tuple(filter(None, map(_unmarked, tested))),
    )


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


def _without_heads(
    model: Model, task: Task, states: WordStates, answers: Answers, out: HeadsOut, *, seed: int
) -> Accuracies:
    """The accuracy of one word without the heads, compared with all heads.

    The seed depends on the word, so that its draws do not depend on the other words.
    """
    word_seed = hash_of(seed, task.material.word)
    without = predict_without(
        weights_of(model),
        task.material,
        states,
        numbered(task.material.sentences),
        task.plan.holdouts,
        out,
        seed=word_seed,
    )
    tested = task.tested
    return ablation.compare(
        task.material.keep(tested),
        answers.gold,
        answers.by_depth,
        without[:, :, tested],
        answers.depths,
        seed=word_seed,
    )
