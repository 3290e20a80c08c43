"""The evaluation of a model on labelled sentences: words are chosen, read and tested."""

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
from probe.inference import ablation
from probe.inference.ablation import Accuracies
from probe.model.architectures import require_single
from probe.model.check import certify
from probe.model.load import ModelSource, load, read_weights
from probe.model.model import Model
from probe.progress import Progress, silent
from probe.provenance import hash_of, manifest
from probe.renamed import renamed
from probe.results import ablation as ablation_frames
from probe.results import frames as tables
from probe.results.evaluation import Evaluation, depth_rows, means, sentence_rows, word_row
from probe.studies.heads_given import HeadsSource, heads_out
from probe.text import splits
from probe.text.sentences import Corpus, LeftOut, as_corpus
from probe.tidy import rounded

# Why a sentence is left out.
OTHER_WORD = "it is about another word than those that were asked for"


@renamed(places={1: "sentences", 2: "words"})
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
    """Sense accuracy and macro-F1 of `model` at the word, per depth, on labelled sentences, with
    baselines.

    `sentences` is what `read_sentences` gives or takes (a path, a DataFrame, a list of dicts or of
    sentences), `words` those of it that are evaluated, all by default; rows that name no word are
    about the one that is evaluated. `without` takes heads out at the word, as
    `probe.results.ablation` says: names ("L4H1,L4H2", a list of them, or of (layer, head)), or a
    CSV or Parquet file or a DataFrame with the columns layer and head, of which `top` takes those
    with the largest effect. The frame `without` then says how far the accuracy falls at every
    depth, beside random sets of heads of the same layers. `planned` is called before the work, once
    it is clear that it can be done.

    Raises InputError when no word has two senses that can be learned and tested apart, or the heads
    cannot be taken out, and CrossCheckError when the certificate fails: no number is reported from
    a model that disagrees with the from-scratch math.

    Example:
        >>> sentences = probe.lexicon.expand_natural("bank")
        >>> evaluation = probe.evaluate("tiny-senses", sentences=sentences, without="L1H0")
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
            rows_without += ablation_frames.rows(task.material.word, accuracies)
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
        rounded(ablation_frames.frame(rows_without, total)) if total else None,
        rounded(pd.DataFrame(rows_by_sentence)),
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


def _without_heads(
    model: Model, task: Task, states: WordStates, answers: Answers, out: HeadsOut, *, seed: int
) -> Accuracies:
    """What taking the heads out costs one word; its draws are its own."""
    own_seed = hash_of(seed, task.material.word)
    without = predict_without(
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
