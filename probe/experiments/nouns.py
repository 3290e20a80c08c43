"""Unambiguous nouns in the word's place: how far their vectors change with the same contexts, and
what heads do for them.

A head that brings context to a noun may do so for any noun. So nouns with one meaning take the
word's place in the same sentences, with the same cues and frames. Everything before the word is
shared, so a noun costs one more variant of a position.

    g²(x)   mean over holdouts of <D_test, D_train>, D the difference of the sense means of the
            vectors at the word: 0 in expectation where there is none (a plain distance never is)
    axis    <D_noun, u_word> / gap_word: how much of the word's own axis any noun takes on
    net     what a swap moves along the noun's own held-out axis, minus a same-sense donor

Every pair of sentences is shared out to a few nouns, so that all nouns together take few swaps and
each of them meets as many cue words as possible. All numbers are in units of the residual stream.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.experiments.candidates import (
    Candidates,
    candidates,
    pairs_inside,
    rows_for,
    with_tokens,
)
from probe.experiments.design import Pairs, spread
from probe.experiments.options import NounPlan
from probe.experiments.plan import DONORS_PER_PAIR, Size, Work
from probe.experiments.prepare import Prepared
from probe.experiments.run import Run
from probe.experiments.surprisal import surprisals
from probe.experiments.swaps import gaps, run_swaps
from probe.model.decomposition import contributions_of, norms_of
from probe.model.records import TargetStates
from probe.model.tokens import TargetText
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import Rows
from probe.patching.sets import HeadIndex, mask_of
from probe.patching.tokens import ReplacedStates, replace_tokens
from probe.provenance import hash_of
from probe.stats import axes
from probe.stats.axes import HeldOutAxes, squared_gap
from probe.stats.limits import GATE, SMALLEST
from probe.stats.resampling import Array
from probe.text.splits import CrossFit, restrict

SURPRISAL_DECIMALS = 3  # of nats: what differs beyond is rounding
STATES_BYTES = 2**28  # bytes of the states of nouns that are computed at once


@dataclass(frozen=True, eq=False)
class WordInPlace:
    """The word that nouns are compared with, for one pair of senses.

    word, texts: what it is, and its sentences by row.
    states: what the model computes at the word, by row.
    surprisal: of the word and of every noun in its place, in nats; empty where it is not known.
        `row` each
    split, axes, pairs: how sentences are held out, along what they are read, which are swapped.
    heads: that are compared.
    at: the depth at which the heads of a layer and its MLP are read. `layer`
    direct: the depth at which is read what the heads of a layer write themselves. `layer`
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

    @property
    def resid(self) -> Tensor:
        """The stream at the word. `row depth d_model`"""
        return self.states.resid

    def surprisal_of(self, name: str, rows: Sequence[int]) -> float:
        """The mean surprisal of the word or of a noun in some sentences; NaN where it is not
        known."""
        if name not in self.surprisal:
            return float("nan")
        nats = self.surprisal[name][list(rows)]
        return float(np.nanmean(nats)) if np.isfinite(nats).any() else float("nan")


@dataclass(frozen=True, eq=False)
class NounRecord:
    """What nouns did in a word's place, for one pair of senses. A swap is one noun in one pair.

    nouns: in the order in which they were chosen.
    sentences: in how many each of them stood.
    surprisal, word_surprisal: of each noun, and of the word in the same sentences, mean over these,
        in nats; NaN where it is not known. `noun`
    squared_gap, word_squared_gap: g² of the noun, and of the word in the same sentences.
        `noun depth`
    shared_axis: how much of the word's axis the noun takes on. `noun depth`
    gap: mean distance of the noun's two senses, over all pairs it can stand in. `noun depth`
    pair_of, noun_of: the number of the pair and of the noun of each swap. `swap`
    pair_gap: the distance of the two sentences of each swap. `swap depth`
    heads: that were swapped.
    net: of these heads, where each is read. `swap head`
    by_depth: the same at every depth, mean over swaps; NaN where it was not read. `head depth`
    written, word_written: what these heads write themselves, right after their own layer: with the
        noun, and for the word. `swap head`, `pair head`
    comparable: sentences in which the word is a noun in its dictionary form.
    sentences_left_out: the others.
    left_out: the reason of every noun that was named and not used.
    """

    nouns: tuple[str, ...]
    sentences: tuple[int, ...]
    surprisal: Array
    word_surprisal: Array
    squared_gap: Array
    word_squared_gap: Array
    shared_axis: Array
    gap: Array
    pair_of: NDArray[np.intp]
    noun_of: NDArray[np.intp]
    pair_gap: Array
    heads: tuple[HeadIndex, ...]
    net: Array
    by_depth: Array
    written: Array
    word_written: Array
    comparable: int
    sentences_left_out: int
    left_out: Mapping[str, str]

    @property
    def shares(self) -> Array:
        """g²(noun) / g²(word) in the same sentences; NaN where the word has no gap.
        `noun depth`"""
        return np.divide(
            self.squared_gap,
            self.word_squared_gap,
            out=np.full_like(self.squared_gap, np.nan),
            where=self.word_squared_gap > 0,
        )


@dataclass(frozen=True, eq=False)
class PlacedNoun:
    """One noun in the word's place, for one pair of senses.

    ids: its tokens.
    axes: its own, in units of the residual stream (`gap` is 1).
    gap: mean distance of its two senses, over the pairs in which it can stand. `depth`
    pairs: the numbers of the pairs in which it is swapped.
    """

    noun: str
    ids: tuple[int, ...]
    axes: HeldOutAxes
    gap: Array
    pairs: tuple[int, ...]

    def texts(self, texts: Sequence[TargetText]) -> list[TargetText]:
        """Texts with the noun's tokens in the word's place."""
        return [with_tokens(text, self.ids) for text in texts]


@dataclass(frozen=True, eq=False)
class NounRun:
    """One noun in the word's sentences.

    rows: the sentences of the noun's pairs, their members and same-sense donors.
    z, hidden: the states of these rows. `row layer head d_head`, `row layer d_mlp`, the latter
        empty if the plan swaps no MLPs.
    pair_gap: of the noun's pairs. `pair depth`
    written: what each compared head writes itself in these pairs. `pair head`
    """

    placed: PlacedNoun
    sentences: int
    surprisal: float
    word_surprisal: float
    squared_gap: Array
    word_squared_gap: Array
    shared_axis: Array
    pair_gap: Array
    written: Array
    rows: tuple[int, ...]
    z: Tensor
    hidden: Tensor


RECORDS = (NounRecord,)


def measure(run: Run) -> tuple[NounRecord | None, ...] | None:
    """Nouns in the word's place, for every two senses that were swapped; None where nouns were not
    asked for. The runs with nouns are kept in `run.noun_runs`, for further swaps."""
    if run.options.nouns == () or all(pair.moved is None for pair in run.pairs):
        return None
    among = candidates(run.model, run.seen.material, run.options.nouns)
    heads = _compared_heads(run)
    placed = [word_in_place(run, prepared, heads) for prepared in run.prepared]
    surprisal = _surprisals(run, among, placed)
    records: list[NounRecord | None] = [None] * len(run.pairs)
    for number, (word, pair) in enumerate(zip(placed, run.pairs, strict=True)):
        if pair.moved is not None:
            records[number], run.noun_runs[number] = put_in_place(
                run.weights,
                replace(word, surprisal=surprisal),
                among,
                run.options.noun_plan,
                seed=run.options.seed,
            )
    return tuple(records)


def noun_runs(run: Run, number: int) -> tuple[NounRun, ...]:
    """The nouns that are swapped in the pairs of two senses, by the number of these.

    A kept record has no states of nouns. So the nouns of such a record are run again, in the same
    batches, and their axes are the same to the last digit.
    """
    records = run.earlier.get("nouns")
    record: NounRecord | None = None if records is None else records[number]
    if record is None:
        return ()
    if number not in run.noun_runs:
        among = candidates(run.model, run.seen.material, run.options.nouns)
        plan = run.options.noun_plan
        word = word_in_place(run, run.prepared[number], record.heads)
        rows = set(_chosen_rows(word, among, plan, run.options.seed))
        rows_of = {noun: _rows_inside(among, noun, rows) for noun in record.nouns}
        runs = _runs(run.weights, word, among, rows_of, plan)
        run.noun_runs[number] = tuple(each for each in runs if each.placed.pairs)
    return run.noun_runs[number]


def work(size: Size) -> Work:
    """Every noun in the sentences of the pairs and of some further ones; heads with the nouns that
    each pair is shared out to."""
    plan = size.options.noun_plan
    nouns = min(size.nouns, plan.most)
    if not nouns:
        return Work()
    per_pair = min(plan.per_pair, nouns)
    forwards = 0
    swaps = 0
    for pairs in size.pairs:
        sentences = min(size.sentences, DONORS_PER_PAIR * pairs + 2 * plan.more_pairs)
        forwards += 2 * sentences
        swaps += (nouns + 1) * sentences
        swaps += DONORS_PER_PAIR * pairs * per_pair * size.heads_in_all
    return Work(forwards, swaps)


def measure_gaps(run: Run) -> tuple[NounRecord | None, ...] | None:
    """The gaps of nouns in the word's place for every two senses with a gap, without any swap."""
    if run.options.nouns == ():
        return None
    among = candidates(run.model, run.seen.material, run.options.nouns)
    plan = replace(run.options.noun_plan, per_pair=0)
    placed = [word_in_place(run, each, []) for each in run.prepared]
    surprisal = _surprisals(run, among, placed)
    records: list[NounRecord | None] = []
    for each, word in zip(run.prepared, placed, strict=True):
        if each.gates.gap >= GATE:
            records.append(None)
            continue
        word = replace(word, surprisal=surprisal)
        records.append(put_in_place(run.weights, word, among, plan, seed=run.options.seed)[0])
    return tuple(records)


def _surprisals(run: Run, among: Candidates, placed: Sequence[WordInPlace]) -> dict[str, Array]:
    """The surprisal of the word and of every noun in its place, in the sentences in which nouns are
    run; none where the model predicts no tokens, or the word is several. `row` each"""
    before = run.seen.states.before
    if len(among.ids) != 1 or before is None:
        return {}
    ids = {**among.nouns, run.seen.material.word: among.ids}
    plan = run.options.noun_plan
    rows = {row for word in placed for row in _chosen_rows(word, among, plan, run.options.seed)}
    return surprisals(run.weights, before, run.seen.material, sorted(rows), ids)


def word_in_place(
    run: Run,
    prepared: Prepared,
    heads: Sequence[HeadIndex],
) -> WordInPlace:
    layers = len(run.weights.blocks)
    at = prepared.reading.at
    return WordInPlace(
        word=run.seen.material.word,
        texts=run.seen.texts,
        states=run.seen.states,
        surprisal={},
        split=prepared.sense.split,
        axes=prepared.sense.axes,
        pairs=prepared.pairs,
        heads=heads,
        at=at,
        direct=prepared.reading.direct,
        until=[layers] * layers if run.options.one_of_many else at,
    )


def _compared_heads(run: Run) -> list[HeadIndex]:
    """All heads, or those that move the word by at least SMALLEST of its gap for any two senses:
    any other head has nothing to explain. None where no two senses have a gap."""
    if not run.swapped:
        return []
    size = np.max([np.abs(each.effects.word.net.mean(0)) for each in run.swapped], axis=0)
    chosen = size >= (0 if run.options.every_head else SMALLEST)
    chosen &= run.weights.has_heads.cpu().numpy()[:, None]
    layers, heads = np.nonzero(chosen)
    return list(zip(layers.tolist(), heads.tolist(), strict=True))


def put_in_place(
    weights: Weights, word: WordInPlace, among: Candidates, plan: NounPlan, *, seed: int
) -> tuple[NounRecord, tuple[NounRun, ...]]:
    """Put nouns in the word's place: their gaps, and what heads do for them.

    Returns the record, and the runs of the nouns that are swapped, for further swaps.
    """
    rows = _chosen_rows(word, among, plan, seed)
    rows_of, left_out = _nouns_that_fit(among, word, rows, plan, seed)
    runs = _runs(weights, word, among, rows_of, plan)
    depths = word.resid.shape[1]
    record = NounRecord(
        nouns=tuple(run.placed.noun for run in runs),
        sentences=tuple(run.sentences for run in runs),
        surprisal=np.array([run.surprisal for run in runs]),
        word_surprisal=np.array([run.word_surprisal for run in runs]),
        squared_gap=_stacked([run.squared_gap for run in runs], depths),
        word_squared_gap=_stacked([run.word_squared_gap for run in runs], depths),
        shared_axis=_stacked([run.shared_axis for run in runs], depths),
        gap=_stacked([run.placed.gap for run in runs], depths),
        pair_of=np.array([pair for run in runs for pair in run.placed.pairs], dtype=np.intp),
        noun_of=np.repeat(np.arange(len(runs)), [len(run.placed.pairs) for run in runs]),
        pair_gap=_stacked([gap for run in runs for gap in run.pair_gap], depths),
        heads=tuple(word.heads),
        written=_stacked([written for run in runs for written in run.written], len(word.heads)),
        word_written=_written(weights, word, word.axes, word.states.z, word.pairs),
        **_swapped(weights, word, runs),
        comparable=sum(row in among.article for row in word.split.rows),
        sentences_left_out=sum(row in among.reasons for row in word.split.rows),
        left_out=among.left_out | left_out if among.by_name else {},
    )
    return record, tuple(run for run in runs if run.placed.pairs)


def share_out(
    units: Sequence[int], usable: Mapping[str, Sequence[int]], per_pair: int
) -> dict[str, tuple[int, ...]]:
    """The pairs in which each noun is swapped: every pair goes to `per_pair` of the nouns that can
    stand in it, those with the fewest pairs so far.

    units: the pair of cue words of each pair; pairs of one unit follow each other, so that they go
        to different nouns.
    usable: the pairs in which each noun can stand.

    Example:
        >>> from probe.experiments.nouns import share_out
        >>> share_out([0, 0, 1], {"fence": [0, 1, 2], "window": [0, 1, 2]}, per_pair=1)
        {'fence': (0, 2), 'window': (1,)}
    """
    taken: dict[str, list[int]] = {noun: [] for noun in usable}
    can_stand = {noun: set(pairs) for noun, pairs in usable.items()}
    pairs = set().union(*can_stand.values())
    for pair in sorted(pairs, key=lambda pair: (units[pair], pair)):
        fitting = [noun for noun in taken if pair in can_stand[noun]]
        for noun in sorted(fitting, key=lambda noun: len(taken[noun]))[:per_pair]:
            taken[noun].append(pair)
    return {noun: tuple(pairs) for noun, pairs in taken.items()}


def _chosen_rows(word: WordInPlace, among: Candidates, plan: NounPlan, seed: int) -> list[int]:
    """The sentences in which nouns are run: those of the swapped pairs, and of `plan.more_pairs`
    further ones, as many of each pair of cue words as can be. More would make the nouns' axes
    surer, and cost a run for every noun."""
    split = word.split
    inside = set(among.rows)
    pairs = [pair for pair in split.pairs if all(split.rows[place] in inside for place in pair)]
    rng = np.random.default_rng(seed)
    drawn = spread([split.units[first] for first, _ in pairs], plan.more_pairs, rng)
    further = {split.rows[place] for number in drawn for place in pairs[number]}
    return sorted((further | set(rows_of_pairs(word.pairs))) & inside)


def _nouns_that_fit(
    among: Candidates, word: WordInPlace, rows: Sequence[int], plan: NounPlan, seed: int
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Of some rows those in which each noun can stand, and the reasons of the other nouns.

    At most `plan.most` nouns, those first that are about as expected as the word, then those that
    can stand in the most sentences; which of equal ones is decided by a hash: how far a noun
    changes must not decide whether it is taken.
    """
    chosen = set(rows)
    rows_of = {}
    left_out = {}
    for noun in among.nouns:
        fitting = _rows_inside(among, noun, chosen)
        if len(fitting) < plan.fewest_sentences or not _part(word.split, fitting).holdouts:
            left_out[noun] = (
                f"it can stand in {len(fitting)} of the {len(rows)} sentences that are compared, "
                f"and {plan.fewest_sentences} are needed"
            )
        else:
            rows_of[noun] = fitting

    def order(noun: str) -> tuple[float, int, int]:
        of_noun = word.surprisal_of(noun, rows_of[noun])
        apart = abs(of_noun - word.surprisal_of(word.word, rows_of[noun]))
        known = 0.0 if np.isnan(apart) else round(apart, SURPRISAL_DECIMALS)
        return known, -len(rows_of[noun]), hash_of(seed, word.word, noun)

    first = sorted(rows_of, key=order)
    left_out |= dict.fromkeys(first[plan.most :], f"{plan.most} others were compared")
    return {noun: rows_of[noun] for noun in first[: plan.most]}, left_out


def _rows_inside(among: Candidates, noun: str, chosen: Collection[int]) -> list[int]:
    """Of some rows those in which a noun can stand."""
    return [row for row in rows_for(among, noun) if row in chosen]


def _part(split: CrossFit, rows: Sequence[int]) -> CrossFit:
    """What is left of a split within some sentences."""
    inside = set(rows)
    return restrict(split, [number for number, row in enumerate(split.rows) if row in inside])


def _usable_pairs(word: WordInPlace, rows: Sequence[int]) -> list[int]:
    """The numbers of the pairs that are within some rows, and whose members are held out there."""
    part = _part(word.split, rows)
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
) -> list[NounRun]:
    """Every noun in the sentences in which it can stand, and shared out to the swapped pairs."""
    usable = {noun: _usable_pairs(word, rows) for noun, rows in rows_of.items()}
    shared_out = share_out(word.pairs.units, usable, plan.per_pair)
    runs: list[NounRun] = []
    for nouns in _in_parts(weights, list(rows_of), len(among.article)):
        runs += _run(weights, word, among, nouns, rows_of, usable, shared_out, plan)
    return runs


def _in_parts(weights: Weights, nouns: Sequence[str], rows: int) -> Iterator[list[str]]:
    """The nouns in parts whose streams in all rows fit into STATES_BYTES. Each part runs the tokens
    before the word again, so a few large parts are faster than many small ones."""
    layers, _, d_model, _ = weights.shape
    of_noun = rows * layers * d_model * weights.dtype.itemsize
    size = max(1, STATES_BYTES // max(1, of_noun))
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
) -> Iterator[NounRun]:
    """Run every sentence in which a noun can stand with each of some nouns."""
    rows = sorted(set().union(*(rows_of[noun] for noun in nouns)))
    swapped = [rows_of_pairs(word.pairs.take(shared_out[noun])) for noun in nouns]
    kept = torch.tensor([[row in of_noun for of_noun in swapped] for row in rows])
    states = _states(
        weights,
        [word.texts[row] for row in rows],
        [among.nouns[noun] for noun in nouns],
        kept,
        with_hidden=plan.mlps_per_pair > 0,
    )
    noun_of = kept.nonzero()[:, 1]
    for number, noun in enumerate(nouns):
        part = _part(word.split, rows_of[noun])
        resid = at_rows(states.resid[:, number], rows, len(word.texts))
        own_axes = raw_axes(resid, part, word.axes.senses)
        own_rows = list(part.rows)
        pairs = shared_out[noun]
        z = states.z[noun_of == number]
        yield NounRun(
            placed=PlacedNoun(
                noun=noun,
                ids=among.nouns[noun],
                axes=own_axes,
                gap=_mean_gap(own_axes, resid, word.pairs.take(usable[noun])),
                pairs=pairs,
            ),
            sentences=len(own_rows),
            surprisal=word.surprisal_of(noun, own_rows),
            word_surprisal=word.surprisal_of(word.word, own_rows),
            squared_gap=squared_gap(resid[own_rows], part),
            word_squared_gap=squared_gap(word.resid[own_rows], part),
            shared_axis=_along_axis(resid[own_rows], part, word.axes),
            pair_gap=gaps(own_axes, resid, word.pairs.take(pairs)),
            written=_written(
                weights,
                word,
                own_axes,
                at_rows(z, swapped[number], len(word.texts)),
                word.pairs.take(pairs),
            ),
            rows=swapped[number],
            z=z,
            hidden=states.hidden[noun_of == number],
        )


def _states(
    weights: Weights,
    texts: Sequence[TargetText],
    nouns: Sequence[Sequence[int]],
    kept: Tensor,
    *,
    with_hidden: bool,
) -> ReplacedStates:
    """The residual streams of all nouns in all texts, and the states of heads and MLPs for some of
    them, because those take several times the memory.

    kept: `row noun`, where the states of heads and MLPs are returned
    Returns `resid` as `replace_tokens` does. `z` and `hidden` have one axis for the kept rows of
    all nouns, in the order of `kept.nonzero()`.
    """
    layers, heads, d_model, d_head = weights.shape
    numbers = d_model + heads * d_head + (weights.blocks[0].d_mlp if with_hidden else 0)
    of_row = len(nouns) * layers * numbers * weights.dtype.itemsize
    at_once = max(1, STATES_BYTES // of_row)
    parts = ("resid", "z", "hidden") if with_hidden else ("resid", "z")
    chunks = []
    for start in range(0, len(texts), at_once):
        chunk = slice(start, start + at_once)
        states = replace_tokens(weights, texts[chunk], nouns, parts=parts)
        here = kept[chunk]
        chunks.append(ReplacedStates(states.resid, states.z[here], states.hidden[here]))
    return ReplacedStates(*(torch.cat(part) for part in zip(*chunks, strict=True)))


def _written(
    weights: Weights, word: WordInPlace, held_out: HeldOutAxes, z: Tensor, pairs: Pairs
) -> Array:
    """What each compared head writes itself along some axes, towards the first sense, right after
    its own layer. A norm that follows the write has the scale that it has for the word.

    z: by row, `row layer head d_head`. `-> pair head`
    """
    if not len(pairs) or not word.heads:
        return np.empty((len(pairs), len(word.heads)))
    rows = [*pairs.a, *pairs.b]
    directions = held_out.in_units().directions(rows)[:, list(word.direct)]
    norms = norms_of(weights, word.states, max(word.direct))
    written = contributions_of(weights, norms, z[rows], rows, directions, word.direct)
    layers, heads = np.array(word.heads).T
    of_heads = written.numpy()[:, layers, heads]
    return np.asarray(of_heads[: len(pairs)] - of_heads[len(pairs) :])


def raw_axes(resid: Tensor, split: CrossFit, senses: tuple[str, str]) -> HeldOutAxes:
    """Held-out axes along which is measured in units of the residual stream."""
    return axes.hold_out(resid, split, senses).in_units()


def at_rows(part: Tensor, rows: Sequence[int], number: int) -> Tensor:
    """The states of some rows at the rows' own numbers, of `number`; those of the others are 0 and
    never read."""
    whole = part.new_zeros(number, *part.shape[1:])
    whole[list(rows)] = part
    return whole


def rows_of_pairs(pairs: Pairs) -> tuple[int, ...]:
    """The rows that swaps in these pairs read: members and same-sense donors."""
    return tuple(sorted({*pairs.a, *pairs.b, *pairs.same_a, *pairs.same_b}))


def _mean_gap(own_axes: HeldOutAxes, resid: Tensor, pairs: Pairs) -> Array:
    """Mean distance of the two senses of the noun; NaN without pairs. `-> depth`"""
    if not len(pairs):
        return np.full(resid.shape[1], np.nan)
    return np.asarray(gaps(own_axes, resid, pairs).mean(0))


def _along_axis(resid: Tensor, split: CrossFit, held_out: HeldOutAxes) -> Array:
    """How far the two senses of a noun are apart along the word's own held-out axes, in the word's
    gaps. `row depth d_model -> depth`"""
    along = held_out.coordinates(resid, list(split.rows))
    of_a = np.asarray(split.is_a)
    tested = split.cells >= 0
    return np.asarray(along[tested & of_a].mean(0) - along[tested & ~of_a].mean(0))


def _stacked(rows: Sequence[Array], depths: int) -> Array:
    """`n depth`, also where n is 0."""
    return np.array(rows) if len(rows) else np.empty((0, depths))


# --- swaps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AllSwaps:
    """The swaps of all nouns as those of one word: every noun's sentences are rows of their own."""

    texts: list[TargetText]
    z: Tensor
    hidden: Tensor
    axes: HeldOutAxes
    pairs: Pairs


def _swapped(weights: Weights, word: WordInPlace, runs: Sequence[NounRun]) -> dict[str, Array]:
    """The fields of a record that swaps give."""
    layers = len(weights.blocks)
    swaps = sum(len(run.placed.pairs) for run in runs)
    net = np.full((swaps, len(word.heads)), np.nan)
    by_depth = np.full((len(word.heads), layers + 1), np.nan)
    if not swaps:
        return {"net": net, "by_depth": by_depth}
    swapped = together(word, [(run, run.placed.pairs) for run in runs if run.placed.pairs])
    for depth in sorted({word.until[layer] for layer, _ in word.heads}):
        # Heads whose runs end at the same depth are swapped together.
        chosen = [n for n, (layer, _) in enumerate(word.heads) if word.until[layer] == depth]
        heads = [word.heads[n] for n in chosen]
        swap = partial(_swap_some, weights, heads)
        upto = axes_until(swapped.axes, depth)
        moved = run_swaps(swap, swapped.texts, swapped.z[:, :depth], upto, swapped.pairs).net
        read = [word.at[layer] - 1 for layer, _ in heads]
        net[:, chosen] = moved[:, np.arange(len(heads)), read]
        by_depth[chosen, 0] = 0.0  # which no head has written to
        by_depth[chosen, 1 : depth + 1] = moved.mean(0)
    return {"net": net, "by_depth": by_depth}


def together(word: WordInPlace, runs: Sequence[tuple[NounRun, Sequence[int]]]) -> AllSwaps:
    """The swaps of all nouns, each in some of its pairs: row r of noun n has a number of its own,
    and the axes of n."""
    texts: list[TargetText] = []
    cells: list[int] = []
    columns: dict[str, list[int]] = {name: [] for name in ("a", "b", "same_a", "same_b")}
    chosen: list[int] = []
    first_cell = 0
    for run, numbers in runs:
        number_of = {row: len(texts) + number for number, row in enumerate(run.rows)}
        texts += [with_tokens(word.texts[row], run.placed.ids) for row in run.rows]
        # A row that is only fitted on is never a recipient, so its axis is never read.
        cells += [first_cell + max(0, int(run.placed.axes.cell[row])) for row in run.rows]
        first_cell += len(run.placed.axes.u)
        pairs = word.pairs.take(numbers)
        for name, rows in columns.items():
            rows += [number_of[row] for row in getattr(pairs, name)]
        chosen += numbers
    of_axes = [run.placed.axes for run, _ in runs]
    held_out = HeldOutAxes(
        word.axes.senses,
        torch.cat([each.u for each in of_axes]),
        torch.cat([each.midpoint for each in of_axes]),
        torch.cat([each.gap for each in of_axes]),
        np.array(cells),
    )
    pairs = replace(
        word.pairs.take(chosen),
        a=tuple(columns["a"]),
        b=tuple(columns["b"]),
        same_a=tuple(columns["same_a"]),
        same_b=tuple(columns["same_b"]),
    )
    z = torch.cat([run.z for run, _ in runs])
    hidden = torch.cat([run.hidden for run, _ in runs])
    return AllSwaps(texts, z, hidden, held_out, pairs)


def axes_until(held_out: HeldOutAxes, depth: int) -> HeldOutAxes:
    """The axes of the stages up to a depth."""
    return _axes_of(held_out, [*range(depth + 1)])


def axes_at(held_out: HeldOutAxes, depth: int) -> HeldOutAxes:
    """The axes at depth 0, which no swap changes, and at one other depth."""
    return _axes_of(held_out, [0, depth])


def _axes_of(held_out: HeldOutAxes, stages: Sequence[int]) -> HeldOutAxes:
    return replace(
        held_out,
        u=held_out.u[:, stages],
        midpoint=held_out.midpoint[:, stages],
        gap=held_out.gap[:, stages],
    )


def _swap_some(
    weights: Weights, heads: Sequence[HeadIndex], rows: Rows, donor_z: Tensor, directions: Tensor
) -> Tensor:
    """`swap_heads` of some heads alone. `-> row head stage`"""
    alone = np.stack([mask_of([head], (donor_z.shape[1], donor_z.shape[2])) for head in heads])
    return swap_sets(weights, rows, donor_z, torch.from_numpy(~alone), directions)
