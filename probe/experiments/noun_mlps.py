"""The effect of swapping each MLP, on the word and on unambiguous nouns in its place.

    net     how far a swap of one MLP's activations at the word moves the word, or the noun, minus
            the effect of a same-sense donor; in the measures of `probe.experiments.nouns`

All numbers are in units of the residual stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probe.experiments.candidates import Candidates, candidates, pairs_inside
from probe.experiments.columns import Table
from probe.experiments.design import Pairs
from probe.experiments.nouns import (
    NounRun,
    WordInPlace,
    at_rows,
    axes_at,
    net_measures,
    noun_runs,
    rows_of_pairs,
    share_out,
    together,
    word_in_place,
)
from probe.experiments.run import Run
from probe.model.weights import Weights
from probe.patching.inputs import Rows
from probe.patching.mlps import swap_mlps
from probe.patching.tokens import replace_tokens
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array

ORDER = 30
NEEDS = ("nouns",)
ANSWERS = False
SECONDS = 14.0
TABLES: dict[str, Table] = {}


@dataclass(frozen=True, eq=False)
class NounMlpRecord:
    """The effects of MLPs on two senses of a word, and on nouns in its place. A swap is one noun in
    one pair.

    word: net of every MLP for the word, along its axis and as a length; NaN in the pairs that no
        noun fits. `pair layer measure`
    nouns: net of every MLP with the noun. `swap layer measure`
    pair_of, noun_of: the number of the pair, and of the noun in the `NounRecord`. `swap`
    """

    word: Array
    nouns: Array
    pair_of: NDArray[np.intp]
    noun_of: NDArray[np.intp]


RECORDS = (NounMlpRecord,)


def measure(run: Run) -> tuple[NounMlpRecord | None, ...] | None:
    """The effects of MLPs for every two senses whose heads were compared with nouns; None if nouns
    were not measured."""
    records = run.earlier.get("nouns")
    if records is None:
        return None
    among = candidates(run.model, run.observation.material, run.options.nouns)
    measured: list[NounMlpRecord | None] = []
    for number, record in enumerate(records):
        runs = noun_runs(run, number)
        if record is None or not runs:
            measured.append(None)
            continue
        word = word_in_place(run, run.prepared[number], record.heads)
        pairs_of = share_out(
            word.pairs.units,
            {each.in_place.noun: each.in_place.pairs for each in runs},
            run.options.noun_plan.mlps_per_pair,
        )
        shared_out = [(each, pairs_of[each.in_place.noun]) for each in runs]
        counts = [len(pairs) for _, pairs in shared_out]
        numbers = [record.nouns.index(each.in_place.noun) for each in runs]
        measured.append(
            NounMlpRecord(
                word=_of_word(run.weights, word, among),
                nouns=_of_nouns(run.weights, word, shared_out),
                pair_of=np.array(
                    [pair for _, pairs in shared_out for pair in pairs], dtype=np.intp
                ),
                noun_of=np.repeat(np.array(numbers, dtype=np.intp), counts),
            )
        )
        # Later experiments read the axes of nouns, but not their states, which are large.
        run.noun_runs[number] = tuple(
            replace(each, z=each.z[:0], hidden=each.hidden[:0]) for each in runs
        )
    return tuple(measured)


def _of_nouns(
    weights: Weights, word: WordInPlace, shared_out: Sequence[tuple[NounRun, Sequence[int]]]
) -> Array:
    """Net of every MLP with each noun in its pairs. `-> swap layer measure`"""
    swaps = together(word, [(run, pairs) for run, pairs in shared_out if pairs])
    both = [swaps.axes, swaps.word_axes]
    return _net(weights, swaps.texts, swaps.hidden, both, swaps.pairs, at=word.at)


def _of_word(weights: Weights, word: WordInPlace, among: Candidates) -> Array:
    """Net of every MLP for the word; NaN in the pairs that no noun fits.
    `-> pair layer measure`
    """
    usable = pairs_inside(word.pairs, set(among.rows))
    pairs = word.pairs.take(usable)
    rows = rows_of_pairs(pairs)
    texts = [word.texts[row] for row in rows]
    hidden = replace_tokens(weights, texts, [among.ids], parts=("hidden",)).hidden[:, 0]
    donors = at_rows(hidden, rows, len(word.texts))
    net = np.full((len(word.pairs), len(weights.blocks), 2), np.nan)
    net[usable] = _net(weights, word.texts, donors, [word.axes], pairs, at=word.at)
    return net


def _net(
    weights: Weights,
    texts: Rows,
    hidden: Tensor,
    all_axes: Sequence[HeldOutAxes],
    pairs: Pairs,
    *,
    at: Sequence[int],
) -> Array:
    """Net of every MLP at the depth at which it is read. `-> swap layer measure`

    all_axes: one measure for each, before the length
    at: the depth of each layer
    """
    net = np.empty((len(pairs), len(at), len(all_axes) + 1))
    # The MLPs that are read at the same depth are swapped together, and no later block is run.
    for depth in sorted(set(at)):
        layers = [layer for layer, read_at in enumerate(at) if read_at == depth]
        swap = partial(swap_mlps, weights, layers=layers, length=True)
        upto = [axes_at(each, depth) for each in all_axes]
        moved = net_measures(swap, texts, hidden[:, :depth], upto, pairs)
        net[:, layers] = moved[..., 1, :]
    return net
