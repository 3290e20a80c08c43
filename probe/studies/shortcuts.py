"""Shortcuts compared with swaps: attention, classifiers and gradients of the same heads.

This module chooses the words and returns the frame. The measurements are
`probe.experiments.shortcuts`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from probe.errors import InputError, require_at_least
from probe.experiments import shortcuts as experiment
from probe.experiments.material import choose_words
from probe.experiments.measure import start
from probe.experiments.shortcuts import METHODS, Shortcuts
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.stats.resampling import Array, flip_signs
from probe.studies.survey import corpus_for, require_surveyable
from probe.studies.survey_word import (
    MOST_PAIRS,
    SURVEY,
    choose_sentences,
    pairs_of_each,
)
from probe.text.sentences import Sentence

By = Literal["head", "pair"]
DOING = "Cannot compare shortcuts with swaps"


def shortcuts(
    model: ModelSource,
    words: Sequence[str] | str | None = None,
    *,
    sentences: Any = None,
    pairs: int = MOST_PAIRS,
    seed: int = 0,
    by: By = "head",
) -> pd.DataFrame:
    """Return the effect of swapping every head at ambiguous words, and the scores that attention,
    classifiers and gradients give the same head on the same pairs of sentences.

    The frame has a row per word, two of its senses, layer and head, and the columns
    depth: the depth at which the word is read
    gap: between the senses, in units of the gap of the sentences that the axes were fitted on
    swap: the effect of swapping the head, the mean of both directions, as a fraction of the gap
    p_swap: p of `swap` above 0, by flipping the signs of pairs, corrected for all heads (max-T)
    attention: from the word to its cue; NaN without a known cue, as in the next two columns
    rollout: the same, through the attention of all earlier layers (Abnar & Zuidema 2020)
    value_attention: attention to the cue times the norm of the value there
    auroc: held-out separation of the senses by the head's write
    direct: the head's write along the sense axis
    attribution: gradient x change of z (attribution patching)
    integrated_5, integrated_20: the same, with the gradient averaged over 5 or 20 steps

    words: the words to measure; by default every word of `sentences`
    sentences: anything that `read_sentences` takes or returns; by default the sentences that ship
    pairs: the largest number of pairs of sentences of each word
    seed: of every random choice
    by: "pair" for a row per pair of sentences as well, with its number in the column `pair` and the
        number of its cue words in `unit`, and without `p_swap`. The mean over pairs is the value of
        the head

    Words that cannot be measured are left out, with their reasons in `frame.attrs["left_out"]`.

    Raises InputError for a word without sentences, and if no word can be measured;
    UnsupportedModel for an encoder-decoder or a hybrid.

    Example:
        >>> frame = probe.shortcuts("tiny-senses", "bank", pairs=4)
        >>> len(frame)  # 4 layers x 4 heads
        16
        >>> frame["swap"].corr(frame["integrated_20"]) > 0.9
        np.True_
    """
    require_at_least(1, pairs, "pairs", doing=DOING, usual=MOST_PAIRS)
    require_at_least(0, seed, "seed", doing=DOING, usual=0)
    if by not in get_args(By):
        raise InputError(f'{DOING}: by is {by!r}, expected "head" or "pair". Give one of these.')
    model = load(model)
    require_surveyable(model, "a comparison with shortcuts")
    corpus = corpus_for(model, sentences)
    by_word = corpus.by_word()
    spellings = choose_words(words, corpus)
    frames = []
    left_out = {}
    for word in spellings:
        measured = _measure_word(model, by_word[word], pairs, seed)
        if isinstance(measured, str):
            left_out[word] = measured
            continue
        frames += [_frame(word, each, by, seed) for each in measured]
    if not frames:
        raise InputError(
            f"{DOING}: no word can be measured ({spellings[0]!r}: {left_out[spellings[0]]}). Give "
            "sentences whose cue words can be split into folds, at least two of each of two senses."
        )
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs |= {"model": model.name, "left_out": left_out}
    return frame


def _measure_word(
    model: Model, sentences: Sequence[Sentence], pairs: int, seed: int
) -> tuple[Shortcuts, ...] | str:
    """The shortcuts of a word for every pair of senses; the reason if it cannot be measured."""
    chosen = choose_sentences(model, sentences, seed)
    if chosen.why_unmeasured:
        return chosen.why_unmeasured
    options = replace(SURVEY, seed=seed, pairs=pairs_of_each(pairs, chosen.splits))
    return experiment.measure(start(model, chosen.material, chosen.splits, options))


def _frame(word: str, measured: Shortcuts, by: By, seed: int) -> pd.DataFrame:
    """The rows of two senses of a word."""
    if by == "head":
        p_swap = flip_signs(measured.swap, measured.units, seed=seed).p
        return _rows(word, measured, slice(None), p_swap)
    return pd.concat(list(_of_pairs(word, measured)))


def _of_pairs(word: str, measured: Shortcuts) -> Iterator[pd.DataFrame]:
    for number, unit in enumerate(measured.units):
        frame = _rows(word, measured, slice(number, number + 1))
        frame.insert(3, "pair", number)
        frame.insert(4, "unit", unit)
        yield frame


def _rows(
    word: str, measured: Shortcuts, pairs: slice, p_swap: Array | None = None
) -> pd.DataFrame:
    """A row per head, over some of the pairs."""
    layers, heads = measured.swap.shape[1:]
    layer, head = np.indices((layers, heads))
    columns: dict[str, Any] = {"layer": layer, "head": head}
    columns["gap"] = np.repeat(measured.gap[:, None], heads, axis=1)
    columns["swap"] = measured.swap[pairs].mean(0)
    if p_swap is not None:
        columns["p_swap"] = p_swap
    for name in METHODS:
        scores = measured.scores[name]
        columns[name] = scores if scores.ndim == 2 else scores[pairs].mean(0)
    frame = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    key = {"word": word, "sense_a": measured.senses[0], "sense_b": measured.senses[1]}
    frame.insert(2, "depth", measured.depth)
    for index, (name, value) in enumerate(key.items()):
        frame.insert(index, name, value)
    return frame
