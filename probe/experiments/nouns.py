"""Unambiguous nouns in the word's place: how far their vectors change with the same contexts, and
the effect of each head on them.

A head may move any noun with its context, not only an ambiguous one. Therefore unambiguous nouns
replace the word in the same sentences, with the same cues and frames. A noun costs one more variant
of the word's position, because everything before the word is shared.

    g²(x)   mean over holdouts of <D_test, D_train>, D the difference of the sense means of the
            vectors at the word; its expectation is 0 without a difference, unlike that of a plain
            distance
    axis    <D_noun, u_word> / gap_word: how much of the word's axis a noun takes on
    net     how far a swap moves the noun, minus the effect of a same-sense donor

How far a noun moves has three measures (MEASURES): along the noun's own held-out axis, along the
word's, and the length of the change of the vector. The axis of a noun without a gap is noise, along
which every movement looks small; the other two do not depend on it.

Each pair of sentences is shared out to a few nouns. All nouns together then need few swaps, and
each noun meets as many cue words as possible. All numbers are in units of the residual stream.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.experiments.beside_nouns import (
    MEASURES,
    NO_GATE,
    PartComparison,
    ambiguity_gates,
    compare_with_nouns,
    corrected_over_pairs,
    joined_parts,
    joined_writes,
    shares_of,
)
from probe.experiments.candidates import (
    Candidates,
    candidates,
    pairs_inside,
    rows_for,
    with_tokens,
)
from probe.experiments.columns import KEYS, Column, Table, as_elsewhere, dataset, key_of
from probe.experiments.design import Pairs, spread
from probe.experiments.options import NounPlan
from probe.experiments.prepare import Prepared
from probe.experiments.record import WordRecord, by_number
from probe.experiments.run import WordRun
from probe.experiments.surprisal import surprisals
from probe.experiments.swaps import Shifts, gaps, run_measured
from probe.model.decomposition import norms_of, writes_of
from probe.model.records import TargetStates
from probe.model.variants import TargetText
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import Rows
from probe.patching.sets import HeadIndex, mask_of
from probe.patching.tokens import replace_tokens
from probe.provenance import hash_of
from probe.stats import axes
from probe.stats.axes import HeldOutAxes, squared_gap
from probe.stats.limits import GATE, SMALLEST
from probe.stats.resampling import Array
from probe.text.splits import CrossFit, restrict
from probe.tidy import stacked, with_key

if TYPE_CHECKING:
    import xarray as xr

ORDER = 20
NEEDS = ()
ANSWERS = True
SECONDS = 38.0
ALL = "all"  # the dataset over all pairs of senses with a gap
SURPRISAL_DECIMALS = 3  # of nats; further digits are rounding errors
STATES_BYTES = 2**28  # of the states of nouns that are computed at once


def of_nouns(record: WordRecord, data: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each depth of the word, whose numbers are from the sentences of the noun with the
    largest number of sentences, and then of every compared noun.
    """
    parts = []
    for senses, nouns in zip(record.senses, record.of_pairs("nouns"), strict=True):
        if nouns is None or not nouns.sizes.get("compared_noun"):
            continue
        numbers = nouns.compared.values
        depth = np.arange(nouns.sizes["depth"])
        widest = nouns.isel(noun=max(numbers, key=lambda number: nouns.sentences.values[number]))
        gap = widest.word_squared_gap.values
        of_word = {"noun": record.word, "gap": gap, "general_share": np.ones_like(gap)}
        of_word |= {"shared_axis": np.nan, "surprisal": widest.word_surprisal.item()}
        frames = [pd.DataFrame({"depth": depth, **of_word, "sentences": widest.sentences.item()})]
        for number in numbers:
            noun = nouns.isel(noun=number)
            columns = {"noun": noun.noun.item(), "gap": noun.squared_gap.values}
            columns |= {"general_share": shares_of(noun), "shared_axis": noun.shared_axis.values}
            columns |= {"surprisal": noun.noun_surprisal.item()}
            frames.append(
                pd.DataFrame({"depth": depth, **columns, "sentences": noun.sentences.item()})
            )
        parts.append(with_key(pd.concat(frames, ignore_index=True), key_of(record, senses)))
    return stacked(parts, [])


STREAM = "residual stream"
# What the columns mean that only the tables of this experiment have.
COLUMNS = {
    "noun": Column("the noun in the word's place. In the rows of the word, the word itself."),
    "shared_axis": Column(
        "distance between the senses with the noun in the word's place, along the word's axis",
        "fraction of the word's gap",
    ),
    "sentences": Column("sentences used for fitting or testing", "count"),
}
TABLES = {
    "controls": Table(
        "unambiguous nouns in the word's place: how far they change with the same contexts, by "
        "depth",
        as_elsewhere(
            *KEYS, "noun", "depth", "gap", "general_share", "shared_axis", "sentences", "surprisal"
        ),
        of_nouns,
    )
}
MORE = {
    "noun": Column("an unambiguous noun in the word's place"),
    "sentences": Column("sentences in which the noun replaced the word", "count"),
    "noun_surprisal": Column("of the noun, mean over these sentences", "nats"),
    "word_surprisal": Column("of the word in the same sentences", "nats"),
    "squared_gap": Column("g² of the noun", "residual stream, squared"),
    "word_squared_gap": Column("g² of the word in the same sentences", "residual stream, squared"),
    "shared_axis": Column("how much of the word's axis the noun takes on", "fraction of the gap"),
    "noun_gap": Column(
        "mean distance between the noun's two senses, over all pairs that it fits", STREAM
    ),
    "pair_of": Column("number of the pair of sentences of a swap"),
    "noun_of": Column("number of the noun of a swap"),
    "pair_gap": Column("distance between the two sentences of a swap", STREAM),
    "part_layer": Column("layer of a compared head"),
    "part_head": Column("number of a compared head in its layer"),
    "moved": Column("net of each compared head, where it is read", STREAM),
    "moved_by_depth": Column("the same at every depth, mean over swaps", STREAM),
    "write": Column("net of the head's own write, directly after its layer", STREAM),
    "word_write": Column("the same for the word, along its axis and as a length", STREAM),
    "comparable": Column("sentences in which the word is a noun in its dictionary form", "count"),
    "sentences_left_out": Column("the other sentences", "count"),
    "compared": Column("numbers of the nouns that the ambiguity gate compares"),
    "unused_noun": Column("a noun that the user named and that was not used"),
    "why_unused": Column("the reason"),
}


@dataclass(frozen=True, eq=False)
class WordInPlace:
    """The word with which nouns are compared, for one pair of senses.

    word: the word
    texts: its sentences, by row
    states: the model's states at the word, by row
    surprisal: of the word and of every noun in its place, in nats, by name; empty if unknown.
        `row` each
    split: how the sentences are held out
    axes: the held-out axes of the word
    pairs: the pairs of sentences in which heads are swapped
    heads: the heads that are compared
    at: the depth at which the heads of a layer and its MLP are read. `layer`
    direct: the depth at which the writes of the heads of a layer are read. `layer`
    until: the depth up to which a swap of a head in a layer is run. `layer`
    """

    word: str
    texts: Sequence[TargetText]
    states: TargetStates
    surprisal: Mapping[str, Array]
    split: CrossFit
    axes: HeldOutAxes
    pairs: Pairs
    heads: Sequence[HeadIndex]
    at: Sequence[int]
    direct: Sequence[int]
    until: Sequence[int]
    _splits: dict[tuple[int, ...], CrossFit] = field(default_factory=dict, init=False, repr=False)
    _gaps: dict[tuple[int, ...], Array] = field(default_factory=dict, init=False, repr=False)

    def split_of(self, rows: Sequence[int]) -> CrossFit:
        """`split` restricted to the sentences of `rows`. Many nouns fit the same sentences, so it
        is kept.
        """
        key = tuple(rows)
        if key not in self._splits:
            inside = set(rows)
            positions = [number for number, row in enumerate(self.split.rows) if row in inside]
            self._splits[key] = restrict(self.split, positions)
        return self._splits[key]

    def squared_gap_of(self, rows: Sequence[int]) -> Array:
        """g² of the word in the sentences of `rows`, kept like their split. `depth`"""
        key = tuple(rows)
        if key not in self._gaps:
            part = self.split_of(rows)
            self._gaps[key] = squared_gap(self.resid[list(part.rows)], part)
        return self._gaps[key]

    @property
    def resid(self) -> Tensor:
        """The residual stream at the word. `row depth d_model`"""
        return self.states.resid

    def surprisal_of(self, name: str, rows: Sequence[int]) -> float:
        """The mean surprisal of the word or of a noun in the sentences of `rows`, in nats; NaN if
        unknown.
        """
        if name not in self.surprisal:
            return float("nan")
        nats = self.surprisal[name][list(rows)]
        return float(np.nanmean(nats)) if np.isfinite(nats).any() else float("nan")


@dataclass(frozen=True, eq=False)
class NounInPlace:
    """One noun in the word's place, for one pair of senses.

    noun: the noun
    ids: its tokens
    axes: the held-out axes of the noun, in units of the residual stream (`gap` is 1)
    gap: mean distance between its two senses, over the pairs that it fits. `depth`
    pairs: the numbers of the pairs in which it is swapped
    """

    noun: str
    ids: tuple[int, ...]
    axes: HeldOutAxes
    gap: Array
    pairs: tuple[int, ...]

    def texts(self, texts: Sequence[TargetText]) -> list[TargetText]:
        """The texts with the noun's tokens in the word's place."""
        return [with_tokens(text, self.ids) for text in texts]


@dataclass(frozen=True, eq=False)
class NounRun:
    """One noun in the word's sentences.

    in_place: the noun
    rows: the sentences of the noun's pairs: their members and same-sense donors
    z, hidden: the states of these rows; `hidden` is empty if the plan swaps no MLPs.
        `row layer head d_head`, `row layer d_mlp`
    """

    in_place: NounInPlace
    rows: tuple[int, ...]
    z: Tensor
    hidden: Tensor


def measure(run: WordRun) -> "dict[str, xr.Dataset] | None":
    """The nouns in the word's place, for every two senses whose heads were swapped, by the number
    of the pair of senses, and the comparison over all pairs; None if the options ask for no nouns.
    A swap is one noun in one pair of sentences. `noun depth swap part measure layer head`

    The runs of the nouns are stored in `run.noun_runs`, for further swaps.
    """
    swapped = [each is not None and "moved" in each for each in run.of_pairs("heads")]
    if run.options.nouns == () or not any(swapped):
        return None
    among = candidates(run.model, run.observation.material, run.options.nouns)
    heads = _compared_heads(run)
    words = [word_in_place(run, prepared, heads) for prepared in run.prepared]
    surprisal = _surprisals(run, among, words)
    results: list[xr.Dataset | None] = [None] * len(swapped)
    for number, word in enumerate(words):
        if swapped[number]:
            results[number], run.noun_runs[number] = put_in_place(
                run.weights,
                replace(word, surprisal=surprisal),
                among,
                run.options.noun_plan,
                seed=run.options.seed,
            )
    if not run.options.permutations:  # one of many words: what differs is tested over the words
        return by_number(results)
    return _with_comparisons(run, results)


def _with_comparisons(
    run: WordRun, results: "Sequence[xr.Dataset | None]"
) -> "dict[str, xr.Dataset]":
    """The results with the ambiguity gate, and with the columns that compare heads with nouns, if
    the senses have a gap.
    """
    with_gap = [each.number for each in run.swapped_pairs]
    ranked = [each if number in with_gap else None for number, each in enumerate(results)]
    columns: list[dict[str, Any]] = [
        _variables(gate or NO_GATE) for gate in ambiguity_gates(ranked, run.observation.depth)
    ]
    over_senses: dict[str, Array] = {}
    for measured, joined in (("moved", joined_parts), ("write", joined_writes)):
        compared = corrected_over_pairs(
            [
                None if each is None else _compare(run, number, each, measured)
                for number, each in enumerate(ranked)
            ]
        )
        for variables, each in zip(columns, compared, strict=True):
            if each is not None:
                variables |= _variables(joined([each]))
        of_gap = [compared[number] for number in with_gap]
        # The net effect in the same table is the mean over all pairs of senses with a gap.
        if of_gap and None not in of_gap:
            over_senses |= joined([each for each in of_gap if each is not None])
    both = by_number(
        [
            each if each is None else each.assign(dataset(TABLES, variables, more=MORE | COLUMNS))
            for each, variables in zip(results, columns, strict=True)
        ]
    )
    if over_senses:
        both[ALL] = dataset(TABLES, _variables(over_senses), more=MORE | COLUMNS)
    return both


def _variables(columns: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Columns as the variables of a dataset: of heads, of the numbers of nouns, or of the word."""
    dims = ("", "compared_noun", "layer head")
    return {name: (dims[np.ndim(values)], values) for name, values in columns.items()}


def _compare(
    run: WordRun, number: int, nouns: "xr.Dataset", measured: str
) -> PartComparison | None:
    """The comparison of how far the swap of each head (`moved`), or its write alone (`write`),
    moves the word and the nouns, as arrays of all heads.

    number: of the pair of senses
    """
    if not nouns.sizes["part"]:
        return None
    prepared = run.prepared[number]
    layers = nouns.part_layer.values
    heads = nouns.part_head.values
    if measured == "moved":
        swaps = run.of_pairs("heads")[number]
        assert swaps is not None  # nouns are compared where heads were swapped
        word = swaps.moved.values[:, layers, heads]
    else:
        word = nouns.word_write.values
    readout = prepared.readout
    at = readout.at if measured == "moved" else readout.direct
    pair_of = nouns.pair_of.values
    compared = compare_with_nouns(
        prepared.pairs,
        run.earlier["senses"][str(number)].raw_gaps.values,
        nouns,
        word=word[pair_of],
        noun=nouns[measured].values,
        at=np.asarray(at, dtype=np.intp)[layers],
        pair_of=pair_of,
        noun_of=nouns.noun_of.values,
        permutations=run.options.permutations,
    )
    return compared and compared.scattered((layers, heads), run.weights.shape[:2])


def noun_runs(run: WordRun, number: int) -> tuple[NounRun, ...]:
    """The runs of the nouns that are swapped for a pair of senses.

    number: of the pair of senses

    A stored record has no states of nouns. Its nouns are run again in the same batches, so that
    their axes are equal to the last digit.
    """
    result = run.of_pairs("nouns")[number]
    if result is None:
        return ()
    if number not in run.noun_runs:
        among = candidates(run.model, run.observation.material, run.options.nouns)
        plan = run.options.noun_plan
        word = word_in_place(run, run.prepared[number], heads_in(result))
        rows = set(_rows_to_run(word, among, plan, run.options.seed))
        rows_of = {noun: _rows_that_fit(among, noun, rows) for noun in result.noun.values.tolist()}
        runs = _runs(run.weights, word, among, rows_of, plan)
        run.noun_runs[number] = tuple(each for each, _ in runs if each.in_place.pairs)
    return run.noun_runs[number]


def heads_in(result: "xr.Dataset") -> list[HeadIndex]:
    """The heads that are compared."""
    both = zip(result.part_layer.values.tolist(), result.part_head.values.tolist(), strict=True)
    return list(both)


def measure_gates(run: WordRun) -> list[dict[str, Any] | None]:
    """The ambiguity gate of every two senses, from the gaps of nouns in the word's place, without
    any swap; None without a gap, and if the options ask for no nouns.
    """
    if run.options.nouns == ():
        return [None] * len(run.prepared)
    among = candidates(run.model, run.observation.material, run.options.nouns)
    plan = replace(run.options.noun_plan, per_pair=0)
    words = [word_in_place(run, prepared, []) for prepared in run.prepared]
    surprisal = _surprisals(run, among, words)
    results: list[xr.Dataset | None] = []
    for prepared, word in zip(run.prepared, words, strict=True):
        if prepared.gates["gap_p"] >= GATE:
            results.append(None)
            continue
        word = replace(word, surprisal=surprisal)
        results.append(put_in_place(run.weights, word, among, plan, seed=run.options.seed)[0])
    return ambiguity_gates(results, run.observation.depth)


def _surprisals(run: WordRun, among: Candidates, words: Sequence[WordInPlace]) -> dict[str, Array]:
    """The surprisal of the word and of every noun in its place, by name, in the sentences in which
    nouns are run. `row` each

    Empty if the model predicts no tokens, or if the word has several tokens.
    """
    before = run.observation.states.before
    if len(among.ids) != 1 or before is None:
        return {}
    ids = {**among.nouns, run.observation.material.word: among.ids}
    plan = run.options.noun_plan
    rows = {row for word in words for row in _rows_to_run(word, among, plan, run.options.seed)}
    return surprisals(run.weights, before, run.observation.material, sorted(rows), ids)


def word_in_place(
    run: WordRun,
    prepared: Prepared,
    heads: Sequence[HeadIndex],
) -> WordInPlace:
    """The word with which nouns are compared, for one pair of senses, without surprisal.

    heads: the heads to compare
    """
    layers = len(run.weights.blocks)
    at = prepared.readout.at
    return WordInPlace(
        word=run.observation.material.word,
        texts=run.observation.texts,
        states=run.observation.states,
        surprisal={},
        split=prepared.sense.split,
        axes=prepared.sense.axes,
        pairs=prepared.pairs,
        heads=heads,
        at=at,
        direct=prepared.readout.direct,
        until=[layers] * layers if run.options.one_of_many else at,
    )


def _compared_heads(run: WordRun) -> list[HeadIndex]:
    """The heads that are compared with nouns: all heads if the options ask for it, otherwise the
    heads that move the word by at least SMALLEST of its gap for some pair of senses.

    Empty if no pair of senses has a gap.
    """
    if not run.swapped_pairs:
        return []
    size = np.max([np.abs(each.net.mean(0)) for each in run.swapped_pairs], axis=0)
    is_compared = size >= (0 if run.options.every_head else SMALLEST)
    is_compared &= run.weights.has_heads.cpu().numpy()[:, None]
    layers, heads = np.nonzero(is_compared)
    return list(zip(layers.tolist(), heads.tolist(), strict=True))


def put_in_place(
    weights: Weights, word: WordInPlace, among: Candidates, plan: NounPlan, *, seed: int
) -> "tuple[xr.Dataset, tuple[NounRun, ...]]":
    """What is measured of nouns in the word's place, and the runs of the nouns that are swapped."""
    rows = _rows_to_run(word, among, plan, seed)
    rows_of, left_out = _nouns_that_fit(among, word, rows, plan, seed)
    depths = word.resid.shape[1]
    runs = []
    of_nouns: dict[str, list[Any]] = defaultdict(list)
    for run, resid in _runs(weights, word, among, rows_of, plan):
        runs.append(run)
        for name, value in _measured(weights, word, run, resid, rows_of).items():
            of_nouns[name].append(value)
    net, by_depth = _swap_heads(weights, word, runs)
    reasons = among.left_out | left_out if among.by_name else {}
    nouns = [run.in_place.noun for run in runs]
    counts = [len(run.in_place.pairs) for run in runs]
    of_swaps = {
        name: [of_pair for of_noun in of_nouns[name] for of_pair in of_noun]
        for name in ("pair_gap", "write")
    }
    variables: dict[str, tuple[str, Any]] = {
        "sentences": ("noun", np.array(of_nouns["sentences"], dtype=int)),
        "noun_surprisal": ("noun", _stacked(of_nouns["noun_surprisal"])),
        "word_surprisal": ("noun", _stacked(of_nouns["word_surprisal"])),
        "squared_gap": ("noun depth", _stacked(of_nouns["squared_gap"], depths)),
        "word_squared_gap": ("noun depth", _stacked(of_nouns["word_squared_gap"], depths)),
        "shared_axis": ("noun depth", _stacked(of_nouns["shared_axis"], depths)),
        "noun_gap": ("noun depth", _stacked([run.in_place.gap for run in runs], depths)),
        "pair_of": (
            "swap",
            np.array([pair for run in runs for pair in run.in_place.pairs], dtype=np.intp),
        ),
        "noun_of": ("swap", np.repeat(np.arange(len(runs)), counts)),
        "pair_gap": ("swap depth", _stacked(of_swaps["pair_gap"], depths)),
        "moved": ("swap part measure", net),
        "moved_by_depth": ("part depth measure", by_depth),
        "write": (
            "swap part measure",
            _stacked(of_swaps["write"], len(word.heads), len(MEASURES)),
        ),
        "word_write": (
            "sentence_pair part word_measure",
            _writes(weights, word, [word.axes], word.states.z, word.pairs),
        ),
        "part_layer": ("part", np.array([layer for layer, _ in word.heads], dtype=int)),
        "part_head": ("part", np.array([head for _, head in word.heads], dtype=int)),
        "comparable": ("", sum(row in among.article for row in word.split.rows)),
        "sentences_left_out": ("", sum(row in among.reasons for row in word.split.rows)),
        "unused_noun": ("unused", np.array([*reasons], dtype=str)),
        "why_unused": ("unused", np.array([*reasons.values()], dtype=str)),
    }
    names = {"noun": ("noun", np.array(nouns, dtype=str)), "measure": ("measure", MEASURES)}
    result = dataset(TABLES, variables, coordinates=names, more=MORE | COLUMNS)
    return result, tuple(run for run in runs if run.in_place.pairs)


def share_out(
    units: Sequence[int], usable: Mapping[str, Sequence[int]], per_pair: int
) -> dict[str, tuple[int, ...]]:
    """The pairs in which each noun is swapped.

    Every pair goes to `per_pair` of the nouns that fit it: those with the fewest pairs so far.

    units: the pair of cue words of each pair; pairs of one unit are shared out one after another,
        so that they go to different nouns
    usable: the pairs that each noun fits

    Example:
        >>> from probe.experiments.nouns import share_out
        >>> share_out([0, 0, 1], {"fence": [0, 1, 2], "window": [0, 1, 2]}, per_pair=1)
        {'fence': (0, 2), 'window': (1,)}
    """
    pairs_of: dict[str, list[int]] = {noun: [] for noun in usable}
    fits = {noun: set(pairs) for noun, pairs in usable.items()}
    pairs = set().union(*fits.values())
    for pair in sorted(pairs, key=lambda pair: (units[pair], pair)):
        fitting = [noun for noun in pairs_of if pair in fits[noun]]
        for noun in sorted(fitting, key=lambda noun: len(pairs_of[noun]))[:per_pair]:
            pairs_of[noun].append(pair)
    return {noun: tuple(pairs) for noun, pairs in pairs_of.items()}


def _rows_to_run(word: WordInPlace, among: Candidates, plan: NounPlan, seed: int) -> list[int]:
    """The rows of the sentences in which nouns are run.

    These are the sentences of the swapped pairs and of `plan.more_pairs` further pairs, spread
    evenly over the pairs of cue words. More pairs would make the nouns' axes more precise, but cost
    a run for every noun.
    """
    split = word.split
    inside = set(among.rows)
    pairs = [
        pair for pair in split.pairs if all(split.rows[position] in inside for position in pair)
    ]
    rng = np.random.default_rng(seed)
    numbers = spread([split.units[first] for first, _ in pairs], plan.more_pairs, rng)
    further = {split.rows[position] for number in numbers for position in pairs[number]}
    return sorted((further | set(rows_of_pairs(word.pairs))) & inside)


def _nouns_that_fit(
    among: Candidates, word: WordInPlace, rows: Sequence[int], plan: NounPlan, seed: int
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The rows that each noun fits, for the selected nouns, and the reason for each other noun.

    At most `plan.most_nouns` nouns are selected, if it is a number. Nouns about as expected as the
    word come first, then nouns that fit the most sentences; a hash decides between equal nouns. How
    far a noun changes must not decide whether it is selected.

    rows: the rows in which nouns are run
    """
    rows_to_run = set(rows)
    rows_of = {}
    left_out = {}
    for noun in among.nouns:
        fitting = _rows_that_fit(among, noun, rows_to_run)
        if len(fitting) < plan.fewest_sentences or not word.split_of(fitting).holdouts:
            left_out[noun] = (
                f"it fits {len(fitting)} of the {len(rows)} sentences that are compared, "
                f"and {plan.fewest_sentences} are needed"
            )
        else:
            rows_of[noun] = fitting

    def order(noun: str) -> tuple[float, int, int]:
        of_noun = word.surprisal_of(noun, rows_of[noun])
        difference = abs(of_noun - word.surprisal_of(word.word, rows_of[noun]))
        rounded = 0.0 if np.isnan(difference) else round(difference, SURPRISAL_DECIMALS)
        return rounded, -len(rows_of[noun]), hash_of(seed, word.word, noun)

    in_order = sorted(rows_of, key=order)
    selected = in_order[: plan.most_nouns]
    reason = f"{plan.most_nouns} other nouns were compared"
    left_out |= dict.fromkeys(in_order[len(selected) :], reason)
    return {noun: rows_of[noun] for noun in selected}, left_out


def _rows_that_fit(among: Candidates, noun: str, rows: Collection[int]) -> list[int]:
    """The members of `rows` that a noun fits."""
    return [row for row in rows_for(among, noun) if row in rows]


def usable_pairs(word: WordInPlace, rows: Sequence[int]) -> list[int]:
    """The numbers of the pairs whose sentences are all in `rows` and whose members are held out
    there.
    """
    part = word.split_of(rows)
    tested = {part.rows[position] for position in part.tested}
    pairs = word.pairs
    return [
        number
        for number in pairs_inside(pairs, set(rows))
        if pairs.a[number] in tested and pairs.b[number] in tested
    ]


# --- runs with a noun in the word's place ---------------------------------------------------------


def _runs(
    weights: Weights,
    word: WordInPlace,
    among: Candidates,
    rows_of: Mapping[str, Sequence[int]],
    plan: NounPlan,
) -> Iterator[tuple[NounRun, Tensor]]:
    """The run of every noun, and its residual stream at every row of the word's sentences that it
    fits. `row depth d_model`

    rows_of: the rows that each noun fits
    """
    usable = {noun: usable_pairs(word, rows) for noun, rows in rows_of.items()}
    shared_out = share_out(word.pairs.units, usable, plan.per_pair)
    for nouns in _in_parts(weights, list(rows_of), len(among.article)):
        yield from _run(weights, word, among, nouns, rows_of, usable, shared_out, plan)


def _in_parts(weights: Weights, nouns: Sequence[str], rows: int) -> Iterator[list[str]]:
    """The nouns in parts whose residual streams in all rows fit into STATES_BYTES.

    Each part runs the tokens before the word again, so a few large parts are faster than many small
    ones.
    """
    layers, _, d_model, _ = weights.shape
    bytes_per_noun = rows * layers * d_model * weights.dtype.itemsize
    size = max(1, STATES_BYTES // max(1, bytes_per_noun))
    for start in range(0, len(nouns), size):
        yield list(nouns[start : start + size])


def _run(
    weights: Weights,
    word: WordInPlace,
    among: Candidates,
    nouns: Sequence[str],
    rows_of: Mapping[str, Sequence[int]],
    usable: Mapping[str, Sequence[int]],
    shared_out: Mapping[str, tuple[int, ...]],
    plan: NounPlan,
) -> Iterator[tuple[NounRun, Tensor]]:
    """`_runs` of some nouns.

    rows_of: the rows that each noun fits
    usable: the pairs that each noun fits
    shared_out: the pairs in which each noun is swapped
    """
    rows = sorted(set().union(*(rows_of[noun] for noun in nouns)))
    swap_rows = [rows_of_pairs(word.pairs.take(shared_out[noun])) for noun in nouns]
    # Swaps need the states of heads and MLPs in these rows only. `row noun`
    with_parts = torch.tensor([[row in of_noun for of_noun in swap_rows] for row in rows])
    states = replace_tokens(
        weights,
        [word.texts[row] for row in rows],
        [among.nouns[noun] for noun in nouns],
        parts=("z", "hidden") if plan.mlps_per_pair > 0 else ("z",),
        where=with_parts,
    )
    noun_of = with_parts.nonzero()[:, 1]
    for number, noun in enumerate(nouns):
        resid = at_rows(states.resid[:, number], rows, len(word.texts))
        part = word.split_of(rows_of[noun])
        noun_axes = raw_axes(resid, part, word.axes.senses)
        in_place = NounInPlace(
            noun=noun,
            ids=among.nouns[noun],
            axes=noun_axes,
            gap=_mean_gap(noun_axes, resid, word.pairs.take(usable[noun])),
            pairs=shared_out[noun],
        )
        here = noun_of == number
        yield NounRun(in_place, swap_rows[number], states.z[here], states.hidden[here]), resid


def _measured(
    weights: Weights,
    word: WordInPlace,
    run: NounRun,
    resid: Tensor,
    rows_of: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """What is measured of a noun without swaps, by its name in MORE.

    resid: of the noun. `row depth d_model`
    rows_of: the rows that each noun fits
    """
    noun = run.in_place.noun
    part = word.split_of(rows_of[noun])
    rows = list(part.rows)
    pairs = word.pairs.take(run.in_place.pairs)
    noun_axes = run.in_place.axes
    z = at_rows(run.z, run.rows, len(word.texts))
    return {
        "sentences": len(rows),
        "noun_surprisal": word.surprisal_of(noun, rows),
        "word_surprisal": word.surprisal_of(word.word, rows),
        "squared_gap": squared_gap(resid[rows], part),
        "word_squared_gap": word.squared_gap_of(rows_of[noun]),
        "shared_axis": _along_axis(resid[rows], part, word.axes),
        "pair_gap": gaps(noun_axes, resid, pairs),
        "write": _writes(weights, word, [noun_axes, word.axes], z, pairs),
    }


def _writes(
    weights: Weights,
    word: WordInPlace,
    all_axes: Sequence[HeldOutAxes],
    z: Tensor,
    pairs: Pairs,
) -> Array:
    """How far the write of each compared head alone moves the word or the noun, directly after the
    head's layer, minus the effect of same-sense donors. `-> pair head measure`

    A norm after the write has the scale that it has for the word.

    all_axes: one measure for each, before the length
    z: `row layer head d_head`
    """
    of_heads = np.empty((len(pairs), len(word.heads), len(all_axes) + 1))
    if not len(pairs) or not word.heads:
        return of_heads
    rows = [*pairs.b, *pairs.a, *pairs.same_a, *pairs.same_b]
    recipients = [*pairs.b, *pairs.a, *pairs.a, *pairs.b]
    donors = [*pairs.a, *pairs.b, *pairs.same_a, *pairs.same_b]
    number = {row: index for index, row in enumerate(rows)}
    to = [number[row] for row in recipients]
    of = [number[row] for row in donors]
    directions = [each.in_units().directions(recipients) for each in all_axes]
    norms = norms_of(weights, word.states, max(word.direct))
    writes = writes_of(weights, norms, z[rows], rows, word.direct)
    for layer, write in enumerate(writes):
        here = [index for index, (of_layer, _) in enumerate(word.heads) if of_layer == layer]
        if not here:
            continue
        of_compared = write[:, [word.heads[index][1] for index in here]]
        change = of_compared[of] - of_compared[to]  # swap head d_model
        depth = word.direct[layer]
        for measure, along in enumerate(directions):
            moved = (change * along[:, depth, None]).sum(-1)
            of_heads[:, here, measure] = Shifts(*np.split(moved.numpy(), 4)).net
        of_heads[:, here, -1] = Shifts(*np.split(change.norm(dim=-1).numpy(), 4)).net_length
    return of_heads


def raw_axes(resid: Tensor, split: CrossFit, senses: tuple[str, str]) -> HeldOutAxes:
    """Held-out axes in units of the residual stream."""
    return axes.hold_out(resid, split, senses).in_units()


def at_rows(part: Tensor, rows: Sequence[int], number: int) -> Tensor:
    """The states of some rows, indexed by the numbers of these rows. The other rows are 0 and never
    read.

    part: one entry for each of `rows`
    number: of all rows
    """
    whole = part.new_zeros(number, *part.shape[1:])
    whole[list(rows)] = part
    return whole


def rows_of_pairs(pairs: Pairs) -> tuple[int, ...]:
    """The rows that the swaps of these pairs read: members and same-sense donors."""
    return tuple(sorted({*pairs.a, *pairs.b, *pairs.same_a, *pairs.same_b}))


def _mean_gap(noun_axes: HeldOutAxes, resid: Tensor, pairs: Pairs) -> Array:
    """The mean distance between the two senses of a noun; NaN without pairs. `-> depth`"""
    if not len(pairs):
        return np.full(resid.shape[1], np.nan)
    return np.asarray(gaps(noun_axes, resid, pairs).mean(0))


def _along_axis(resid: Tensor, split: CrossFit, held_out: HeldOutAxes) -> Array:
    """The distance between the two senses of a noun along the word's held-out axes, as a fraction
    of the word's gap. `row depth d_model -> depth`
    """
    along = held_out.coordinates(resid, list(split.rows))
    of_a = np.asarray(split.is_a)
    tested = split.cells >= 0
    return np.asarray(along[tested & of_a].mean(0) - along[tested & ~of_a].mean(0))


def _stacked(rows: Sequence[Array], *shape: int) -> Array:
    """The rows, each of a shape, as one array, also if there are none."""
    return np.array(rows) if len(rows) else np.empty((0, *shape))


# --- swaps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AllSwaps:
    """The swaps of all nouns as those of a single word, with separate rows for each noun's
    sentences.

    texts: with the noun in the word's place, by row
    z, hidden: the states at the noun. `row layer head d_head`, `row layer d_mlp`
    axes: of each noun, in the cells of its rows
    word_axes: of the word, in the cells of the same rows
    pairs: the pairs of all nouns
    """

    texts: list[TargetText]
    z: Tensor
    hidden: Tensor
    axes: HeldOutAxes
    word_axes: HeldOutAxes
    pairs: Pairs


def _swap_heads(
    weights: Weights, word: WordInPlace, runs: Sequence[NounRun]
) -> tuple[Array, Array]:
    """How far each compared head moves the nouns, at the depth at which it is read, and at every
    depth, mean over swaps; NaN at depths that were not read. `-> swap part measure, part depth
    measure`
    """
    layers = len(weights.blocks)
    count = sum(len(run.in_place.pairs) for run in runs)
    net = np.full((count, len(word.heads), len(MEASURES)), np.nan)
    by_depth = np.full((len(word.heads), layers + 1, len(MEASURES)), np.nan)
    if not count:
        return net, by_depth
    swaps = together(word, [(run, run.in_place.pairs) for run in runs if run.in_place.pairs])
    for depth in sorted({word.until[layer] for layer, _ in word.heads}):
        # Heads whose runs end at the same depth are swapped together.
        numbers = [n for n, (layer, _) in enumerate(word.heads) if word.until[layer] == depth]
        heads = [word.heads[n] for n in numbers]
        swap = partial(_swap_some, weights, heads)
        upto = [axes_until(each, depth) for each in (swaps.axes, swaps.word_axes)]
        moved = net_measures(swap, swaps.texts, swaps.z[:, :depth], upto, swaps.pairs)
        read = [word.at[layer] for layer, _ in heads]
        net[:, numbers] = moved[:, np.arange(len(heads)), read]
        by_depth[numbers, : depth + 1] = moved.mean(0)
    return net, by_depth


def net_measures(
    swap: Callable[[Rows, Tensor, Tensor], Tensor],
    texts: Rows,
    donors: Tensor,
    all_axes: Sequence[HeldOutAxes],
    pairs: Pairs,
) -> Array:
    """How far each swap moves the recipient, minus the effect of same-sense donors.
    `-> pair part... stage measure`

    all_axes: one measure for each, before the length

    The other arguments are as in `run_measured`.
    """
    moves, lengths = run_measured(swap, texts, donors, all_axes, pairs)
    return np.stack([*(each.net for each in moves), lengths.net_length], axis=-1)


def together(word: WordInPlace, runs: Sequence[tuple[NounRun, Sequence[int]]]) -> AllSwaps:
    """The swaps of all nouns in one batch. Every row of every noun has a separate number, and the
    axes of its noun.

    runs: each noun with the numbers of the pairs in which it is swapped
    """
    texts: list[TargetText] = []
    cells: list[int] = []
    word_cells: list[int] = []
    columns: dict[str, list[int]] = {name: [] for name in ("a", "b", "same_a", "same_b")}
    pair_numbers: list[int] = []
    first_cell = 0
    for run, numbers in runs:
        number_of = {row: len(texts) + number for number, row in enumerate(run.rows)}
        texts += [with_tokens(word.texts[row], run.in_place.ids) for row in run.rows]
        # A row that axes are only fitted on is never a recipient, so its axis is never read.
        cells += [first_cell + max(0, int(run.in_place.axes.cell[row])) for row in run.rows]
        word_cells += [max(0, int(word.axes.cell[row])) for row in run.rows]
        first_cell += len(run.in_place.axes.u)
        pairs = word.pairs.take(numbers)
        for name, rows in columns.items():
            rows += [number_of[row] for row in getattr(pairs, name)]
        pair_numbers += numbers
    of_axes = [run.in_place.axes for run, _ in runs]
    held_out = HeldOutAxes(
        word.axes.senses,
        torch.cat([each.u for each in of_axes]),
        torch.cat([each.midpoint for each in of_axes]),
        torch.cat([each.fitted_gap for each in of_axes]),
        np.array(cells),
    )
    pairs = replace(
        word.pairs.take(pair_numbers),
        a=tuple(columns["a"]),
        b=tuple(columns["b"]),
        same_a=tuple(columns["same_a"]),
        same_b=tuple(columns["same_b"]),
    )
    z = torch.cat([run.z for run, _ in runs])
    hidden = torch.cat([run.hidden for run, _ in runs])
    word_axes = replace(word.axes, cell=np.array(word_cells))
    return AllSwaps(texts, z, hidden, held_out, word_axes, pairs)


def axes_until(held_out: HeldOutAxes, depth: int) -> HeldOutAxes:
    """The axes of the stages up to and including a depth."""
    return _axes_of(held_out, [*range(depth + 1)])


def axes_at(held_out: HeldOutAxes, depth: int) -> HeldOutAxes:
    """The axes at depth 0, which no swap changes, and at one other depth."""
    return _axes_of(held_out, [0, depth])


def _axes_of(held_out: HeldOutAxes, stages: Sequence[int]) -> HeldOutAxes:
    return replace(
        held_out,
        u=held_out.u[:, stages],
        midpoint=held_out.midpoint[:, stages],
        fitted_gap=held_out.fitted_gap[:, stages],
    )


def _swap_some(
    weights: Weights, heads: Sequence[HeadIndex], rows: Rows, donor_z: Tensor, directions: Tensor
) -> Tensor:
    """How far the swap of each of some heads, one at a time, moves each row along its directions,
    and the length of the change. `-> row head depth measure`
    """
    head_masks = np.stack([mask_of([head], (donor_z.shape[1], donor_z.shape[2])) for head in heads])
    # A set contains the heads that are not swapped.
    other_heads = torch.from_numpy(~head_masks)
    return swap_sets(weights, rows, donor_z, other_heads, directions, length=True)
