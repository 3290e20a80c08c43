"""The public entry to what is used in the place of swaps (`probe.experiments.shortcuts`): which
words may be asked, and the frame of what came out."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from probe.errors import InputError, require_at_least
from probe.experiments import shortcuts as experiment
from probe.experiments.measure import start
from probe.experiments.shortcuts import METHODS, Shortcuts
from probe.model.load import ModelSource
from probe.model.model import Model
from probe.stats.resampling import Array, flip_signs
from probe.studies.survey import model_and_corpus
from probe.studies.survey_word import (
    MOST_PAIRS,
    SURVEY,
    choose_sentences,
    pairs_of_each,
    why_unmeasured,
)
from probe.text.sentences import Sentence

By = Literal["head", "pair"]
DOING = "Comparing shortcuts with swaps"


def shortcuts(
    model: ModelSource,
    words: Sequence[str] | str | None = None,
    *,
    sentences: Any = None,
    pairs: int = MOST_PAIRS,
    seed: int = 0,
    by: By = "head",
) -> pd.DataFrame:
    """The swap of every head at ambiguous words, and what attention, classifiers and gradients say
    of the same head on the same pairs of sentences.

    Returns a row per word, two of its senses, layer and head, and the columns
    depth: where the word is read
    gap: between the senses, in units of the gap that the axes were fitted with
    swap: what swapping the head does, both ways averaged, as a fraction of the gap
    p_swap: that it is above 0, signs of pairs flipped, corrected for all heads (max-T)
    attention: from the word to its cue; NaN where no cue is known, as in the next two
    rollout: the same, through the attention of all layers before (Abnar & Zuidema 2020)
    value_attention: attention to the cue times the length of the value there
    auroc: held-out separation of the senses by what the head writes
    direct: what the head itself writes along the sense axis
    attribution: gradient x change of z (attribution patching)
    integrated_5, integrated_20: the same, the gradient averaged over 5 or 20 steps

    words: those that are measured; all of `sentences` by default
    sentences: what `read_sentences` gives or takes; by default those that ship
    pairs: of sentences, of each word, at most
    seed: of every random choice
    by: "pair" for a row per pair of sentences as well, with its number in the column `pair` and its
        cue words' in `unit`, and without `p_swap`. The mean over pairs is the number of the head

    Words that cannot be measured are left out; `frame.attrs["left_out"]` has the reason of each.

    Raises InputError for a word that has no sentences, if no word can be measured, or for a model
    that was loaded with its hooks; UnsupportedModel for an encoder-decoder or a hybrid.

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
        raise InputError(f'{DOING}: by is {by!r}, expected "head" or "pair"; give one of these.')
    model, corpus = model_and_corpus(model, sentences, "a comparison with shortcuts")
    if model.origin.hooks:
        raise InputError(
            f"{DOING} of {model.name}: it is {model.origin.hooked}, and gradients are taken from "
            "weights, without hooks; load it without them."
        )
    by_word = corpus.by_word()
    chosen = [words] if isinstance(words, str) else list(by_word if words is None else words)
    if unknown := [word for word in chosen if word not in by_word]:
        raise InputError(
            f"{DOING}: there are no sentences of {unknown[0]!r}; give some as sentences, or one of "
            f"{', '.join(by_word)}."
        )
    frames = []
    left_out = {}
    for word in chosen:
        measured = _measure_word(model, by_word[word], pairs, seed)
        if isinstance(measured, str):
            left_out[word] = measured
            continue
        frames += [_frame(word, each, by, seed) for each in measured]
    if not frames:
        raise InputError(
            f"{DOING}: no word can be measured: {chosen[0]!r}, because {left_out[chosen[0]]}; "
            "give sentences whose cue words can be kept apart, at least two of each of two senses."
        )
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs |= {"model": model.said, "left_out": left_out}
    return frame


def _measure_word(
    model: Model, sentences: Sequence[Sentence], pairs: int, seed: int
) -> tuple[Shortcuts, ...] | str:
    """The shortcuts of a word; the reason where it cannot be measured."""
    material, splits, _ = choose_sentences(model, sentences, seed)
    if not splits:
        return why_unmeasured(material)
    options = replace(SURVEY, seed=seed, pairs=pairs_of_each(pairs, splits))
    return experiment.measure(start(model, material, splits, options))


def _frame(word: str, measured: Shortcuts, by: By, seed: int) -> pd.DataFrame:
    """The rows of two senses of a word."""
    if by == "head":
        return _rows(word, measured, slice(None), _p_swap(measured, seed))
    return pd.concat(list(_of_pairs(word, measured)))


def _of_pairs(word: str, measured: Shortcuts) -> Iterator[pd.DataFrame]:
    for number, unit in enumerate(measured.units):
        frame = _rows(word, measured, slice(number, number + 1))
        frame.insert(3, "pair", number)
        frame.insert(4, "unit", unit)
        yield frame


def _p_swap(measured: Shortcuts, seed: int) -> Array:
    return flip_signs(measured.swap, measured.units, seed=seed).p


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
    for place, (name, value) in enumerate(key.items()):
        frame.insert(place, name, value)
    return frame
