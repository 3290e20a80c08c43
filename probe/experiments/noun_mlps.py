"""The effect of swapping each MLP, on the word and on unambiguous nouns in its place.

    net     how far a swap of one MLP's activations at the word moves the word, or the noun, minus
            the effect of a same-sense donor; in the measures of `probe.experiments.nouns`

All numbers are in units of the residual stream.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import Tensor

from probe.experiments.beside_nouns import (
    PartComparison,
    compare_with_nouns,
    corrected_over_pairs,
    joined_parts,
)
from probe.experiments.candidates import Candidates, candidates, pairs_inside
from probe.experiments.columns import KEYS, Column, Table, as_elsewhere, dataset, key_of
from probe.experiments.design import Pairs
from probe.experiments.nouns import (
    NounRun,
    WordInPlace,
    at_rows,
    axes_at,
    heads_in,
    net_measures,
    noun_runs,
    rows_of_pairs,
    share_out,
    together,
    word_in_place,
)
from probe.experiments.record import WordRecord, by_number
from probe.experiments.run import WordRun
from probe.model.weights import Weights
from probe.patching.inputs import Rows
from probe.patching.mlps import swap_mlps
from probe.patching.tokens import replace_tokens
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array
from probe.tidy import stacked, with_key
from probe.verdicts import PARTS, comparisons

if TYPE_CHECKING:
    import xarray as xr

ORDER = 30
NEEDS = ("nouns",)
ANSWERS = False
SECONDS = 14.0


def of_mlps(record: WordRecord, data: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each MLP: how far it moves the word, and nouns in its place."""
    parts = []
    for senses, each in zip(record.senses, record.of_pairs("noun_mlps"), strict=True):
        if each is not None and "net" in each:
            frame = each[["net", *PARTS]].to_dataframe().reset_index()
            frame["comparison"] = comparisons(frame)
            parts.append(with_key(frame, key_of(record, senses)))
    return stacked(parts, [])


TABLES = {
    "mlps": Table(
        "the effect of every MLP on the word and on unambiguous nouns in its place",
        as_elsewhere(*KEYS, "layer", "net", *PARTS, "comparison"),
        of_mlps,
    )
}
STREAM = "residual stream"
MORE = {
    "of_word": Column(
        "net of every MLP for the word, along its axis and as a length; missing in the pairs that "
        "no noun fits",
        STREAM,
    ),
    "of_nouns": Column("net of every MLP with the noun of a swap", STREAM),
    "pair_of": Column("number of the pair of sentences of a swap"),
    "noun_of": Column("number of the noun of a swap"),
}


def measure(run: WordRun) -> "dict[str, xr.Dataset] | None":
    """The effects of MLPs for every two senses whose heads were compared with nouns, by the number
    of the pair of senses; None if nouns were not measured. `layer swap measure`
    """
    if run.earlier.get("nouns") is None:
        return None
    among = candidates(run.model, run.observation.material, run.options.nouns)
    measured = [
        each and _measure_pair(run, number, each, among)
        for number, each in enumerate(run.of_pairs("nouns"))
    ]
    ranked = {each.number for each in run.swapped_pairs}
    compared = corrected_over_pairs(
        [
            _compare(run, number, each) if each and number in ranked else None
            for number, each in enumerate(measured)
        ]
    )
    for number, (each, comparison) in enumerate(zip(measured, compared, strict=True)):
        if each and comparison:
            columns = {"net": comparison.net, **joined_parts([comparison])}
            variables = {name: ("layer", values) for name, values in columns.items()}
            measured[number] = each.assign(dataset(TABLES, variables, more=MORE))
    return by_number(measured)


def _measure_pair(
    run: WordRun, number: int, nouns: "xr.Dataset", among: Candidates
) -> "xr.Dataset | None":
    """The effects of MLPs on two senses of a word, and on nouns in its place; None without
    nouns.
    """
    runs = noun_runs(run, number)
    if not runs:
        return None
    word = word_in_place(run, run.prepared[number], heads_in(nouns))
    pairs_of = share_out(
        word.pairs.units,
        {each.in_place.noun: each.in_place.pairs for each in runs},
        run.options.noun_plan.mlps_per_pair,
    )
    shared_out = [(each, pairs_of[each.in_place.noun]) for each in runs]
    counts = [len(pairs) for _, pairs in shared_out]
    names = nouns.noun.values.tolist()
    numbers = [names.index(each.in_place.noun) for each in runs]
    variables = {
        "of_word": ("sentence_pair layer word_measure", _of_word(run.weights, word, among)),
        "of_nouns": ("swap layer measure", _of_nouns(run.weights, word, shared_out)),
        "pair_of": (
            "swap",
            np.array([pair for _, pairs in shared_out for pair in pairs], dtype=np.intp),
        ),
        "noun_of": ("swap", np.repeat(np.array(numbers, dtype=np.intp), counts)),
    }
    # Later experiments read the axes of nouns, but not their states, which are large.
    run.noun_runs[number] = tuple(
        replace(each, z=each.z[:0], hidden=each.hidden[:0]) for each in runs
    )
    return dataset(TABLES, variables, more=MORE)


def _compare(run: WordRun, number: int, measured: "xr.Dataset") -> PartComparison | None:
    """The comparison of how far the swap of each MLP moves the word and the nouns."""
    nouns = run.of_pairs("nouns")[number]
    assert nouns is not None  # MLPs are compared where heads were
    prepared = run.prepared[number]
    pair_of = measured.pair_of.values
    return compare_with_nouns(
        prepared.pairs,
        run.earlier["senses"][str(number)].raw_gaps.values,
        nouns,
        word=measured.of_word.values[pair_of],
        noun=measured.of_nouns.values,
        at=np.asarray(prepared.readout.at),
        pair_of=pair_of,
        noun_of=measured.noun_of.values,
        permutations=run.options.permutations,
    )


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
    hidden = replace_tokens(weights, texts, [among.ids], parts=("hidden",)).hidden
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
