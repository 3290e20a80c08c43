"""What follows for one word: tests and intervals over its cue words.

One family of tests per word: separation and swap effect of a head each have to beat the largest
value that any head reaches in any pair of the word's senses when the senses are reassigned to cue
words, or the signs of the effects are flipped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from probe.experiments.backup import Backup
from probe.experiments.head_parts import by_distance
from probe.experiments.nouns import NounRecord
from probe.experiments.record import SensePair, WordRecord
from probe.experiments.swaps import rank_intervals
from probe.inference.nouns import PARTS, NounEvidence, joined_parts, noun_evidence
from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.limits import GATE, LEVEL, SMALLEST
from probe.stats.resampling import Array
from probe.stats.separation import Separation, Tests, corrected_tests

RANKS = ("rank", "rank_low", "rank_high")
SWAP_COLUMNS = (
    "direct",
    "direct_low",
    "direct_high",
    "denoise",
    "noise",
    "swap",
    "swap_low",
    "swap_high",
    "same_sense",
    "self_repair",
    "net",
    "net_low",
    "net_high",
    *RANKS,
)
TESTED = (
    "p_auroc",
    "q_auroc",
    "p_swap",
    "q_swap",
    "p_opposes",
    "next_token",
    "p_next_token",
    "continuation",
    "p_continuation",
)
# What a head writes itself, and how far it moves the vector, in units of the residual stream: for
# the word, and for nouns in its place.
RAW = ("own_write", "own_write_nouns", "own_write_more_low", "moved_raw", "moved_raw_nouns")
BACKUP = ("stands_in", "p_stands_in", "stands_in_layer", "stands_in_head")


@dataclass(frozen=True)
class StandIn:
    """A head that makes up for another: swapped together with `first` it moves the word further,
    `extra` of the gap."""

    first: HeadIndex
    head: HeadIndex
    extra: float
    p: float


@dataclass(frozen=True, eq=False)
class PairEvidence:
    """What follows for two senses of a word.

    record: what was measured. separation: of every head's write.
    tests, nouns: None where nothing was swapped, or no noun was put in the word's place.
    stand_ins: heads that were shown to make up for another one.
    """

    record: SensePair
    separation: Separation
    tests: Tests | None
    stand_ins: tuple[StandIn, ...]
    nouns: NounEvidence | None


@dataclass(frozen=True, eq=False)
class WordEvidence:
    """What follows for a word: its record, and the evidence of every two senses."""

    record: WordRecord
    pairs: tuple[PairEvidence, ...]


def within(record: WordRecord, *, permutations: int, seed: int) -> WordEvidence:
    """The tests of one word.

    permutations: how many times signs are flipped. It must be the number of times that senses were
        reassigned for the separation of heads.
    """
    tests = _corrected(record, permutations=permutations, seed=seed)
    columns = zip(
        record.pairs,
        record.of_pairs("heads"),
        record.of_pairs("backups"),
        noun_evidence(record),
        strict=True,
    )
    pairs = [
        PairEvidence(
            record=pair,
            separation=separation,
            tests=tests.get(pair.senses),
            stand_ins=_significant_backups(backups or (), seed),
            nouns=of_nouns,
        )
        for pair, separation, backups, of_nouns in columns
    ]
    return WordEvidence(record, tuple(pairs))


def _corrected(record: WordRecord, *, permutations: int, seed: int) -> dict[tuple[str, str], Tests]:
    """Corrected tests of the pairs of senses whose heads were swapped, one family per word."""
    separations = record.of_pairs("heads")
    swapped = [pair for pair in record.pairs if pair.swaps is not None]
    effects = [pair.swaps for pair in swapped if pair.swaps is not None]
    if not swapped:
        return {}
    family = corrected_tests(
        [separations[record.pairs.index(pair)] for pair in swapped],
        [each.word.net for each in effects],
        [each.next_token.net for each in effects if each.next_token is not None],
        [each.continuation.net for each in effects if each.continuation is not None],
        [pair.pairs.units for pair in swapped],
        permutations=permutations,
        seed=seed,
        has_heads=np.array(record.has_heads),
    )
    return {pair.senses: tests for pair, tests in zip(swapped, family, strict=True)}


def _significant_backups(backups: Sequence[Backup], seed: int) -> tuple[StandIn, ...]:
    """The heads that make up for another one in more pairs than chance allows, corrected over all
    later heads."""
    shown = []
    for backup in backups:
        tested = resampling.flip_signs(backup.extra, backup.units, seed=seed)
        for head, extra, p in zip(backup.others, backup.extra.mean(0), tested.p, strict=True):
            if p < LEVEL and extra >= SMALLEST:
                shown.append(StandIn(backup.first, head, float(extra), float(p)))
    return tuple(shown)


# --- every head of two senses, by the names of columns: `layer head` each -------------------------


def head_arrays(evidence: PairEvidence) -> dict[str, Array]:
    """Everything that a verdict rests on, of every head."""
    pair = evidence.record
    arrays = {
        name: getattr(evidence.separation, name)
        for name in ("auroc", "auroc_low", "auroc_high", "hedges_g")
    }
    arrays |= effects_of_swaps([pair])
    arrays |= tested(evidence)
    arrays |= {f"attention_{name}": to_token for name, to_token in pair.attention.items()}
    arrays["net_near"] = net_where(pair, lambda distance: distance == 1)
    arrays["net_far"] = net_where(pair, lambda distance: distance > 1)
    arrays |= _backup_columns(evidence)
    arrays |= beside_nouns([evidence])
    arrays |= in_units([evidence])
    share = None if pair.swaps is None else pair.swaps.rerouted
    arrays["rerouted"] = missing(pair) if share is None else share
    return arrays


def missing(pair: SensePair) -> Array:
    """NaN for every head. `layer head`"""
    return np.full(pair.attention["itself"].shape, np.nan)


def effects_of_swaps(pairs: Sequence[SensePair]) -> dict[str, Array]:
    """Swap effects and ranks, means over these pairs of senses with intervals; all missing where
    there is no gap."""
    swapped = [(pair.swaps, pair.pairs) for pair in pairs if pair.swaps is not None]
    if not swapped:
        return dict.fromkeys(SWAP_COLUMNS, missing(pairs[0]))

    def mean(values: Iterable[Array]) -> Array:
        return np.asarray(np.mean(list(values), axis=0))

    ratios = ("denoise", "noise", "same_sense")
    columns = {name: mean(swaps.word.ratio(name) for swaps, _ in swapped) for name in ratios}
    columns["direct"] = mean(swaps.written for swaps, _ in swapped)
    columns["swap"] = (columns["denoise"] + columns["noise"]) / 2
    columns["self_repair"] = columns["swap"] - columns["direct"]
    net = columns["swap"] - columns["same_sense"]
    columns["net"] = net
    drawn = [swaps.draws(swapped_pairs.bootstrap()) for swaps, swapped_pairs in swapped]
    draws = {name: mean(each[name] for each in drawn) for name in drawn[0]}
    units = sum(len(set(swapped_pairs.units)) for _, swapped_pairs in swapped)
    for name, values in draws.items():
        low, high = resampling.interval(values, columns[name], units=units)
        columns[f"{name}_low"] = low
        columns[f"{name}_high"] = high
    has_heads = swapped[0][0].has_heads
    ranked = net[has_heads]
    ranks = resampling.ranks(ranked.ravel()).reshape(ranked.shape)
    ends = rank_intervals(draws["net"][:, has_heads])
    for name, numbers in zip(RANKS, (ranks, *ends), strict=True):
        columns[name] = np.full(net.shape, np.nan)
        columns[name][has_heads] = numbers
    return {name: columns[name] for name in SWAP_COLUMNS}


def tested(evidence: PairEvidence) -> dict[str, Array]:
    """Corrected p and false discovery rate of separation, swap, next token and continuations.

    Missing where nothing was swapped, and where the senses do not differ in what is measured.
    """
    pair = evidence.record
    arrays = dict.fromkeys(TESTED, missing(pair))
    if evidence.tests is None or pair.swaps is None:
        return arrays
    separation = evidence.tests.separation
    swap = evidence.tests.swap
    arrays |= {"p_auroc": separation.p, "q_auroc": separation.q, "p_swap": swap.p, "q_swap": swap.q}
    arrays["p_opposes"] = evidence.tests.opposes.p
    of_gaps = {"next_token": pair.gates.next_token, "continuation": pair.gates.continuation}
    for name, p in of_gaps.items():
        test = getattr(evidence.tests, name)
        effect = getattr(pair.swaps, name)
        # A share of a difference that is not there is noise over noise.
        if test is not None and p < GATE:
            arrays |= {name: effect.net.mean(0), f"p_{name}": test.p}
    return arrays


def _backup_columns(evidence: PairEvidence) -> dict[str, Array]:
    """The head that each one stands in for, with how much further swapping both moves the word. NaN
    for a head that stands in for none."""
    arrays = {name: missing(evidence.record) for name in BACKUP}
    # In ascending order, so that the largest is written last where a head stands in for two.
    for stand_in in sorted(evidence.stand_ins, key=lambda each: each.extra):
        values = (stand_in.extra, stand_in.p, *stand_in.first)
        for name, value in zip(BACKUP, values, strict=True):
            arrays[name][stand_in.head] = value
    return arrays


def net_where(pair: SensePair, keep: Callable[[int], bool]) -> Array:
    """The net effect over the pairs whose distance from cue to word is kept; missing where nothing
    was swapped, or no pair has such a distance."""
    if pair.effects is None:
        return missing(pair)
    net = by_distance(pair.effects, pair.pairs.distances, keep)
    return missing(pair) if net is None else net


def beside_nouns(pairs: Sequence[PairEvidence]) -> dict[str, Array]:
    """The general and the specific part of every head. Missing unless nouns were compared in every
    pair of senses, because the net effect beside them is the mean over all of them."""
    parts = [pair.nouns.heads for pair in pairs if pair.nouns and pair.nouns.heads]
    if len(parts) < len(pairs):
        return dict.fromkeys(PARTS, missing(pairs[0].record))
    return dict(joined_parts(parts))


def in_units(pairs: Sequence[PairEvidence]) -> dict[str, Array]:
    """The columns RAW of every head, means over these pairs of senses."""
    arrays = dict.fromkeys(RAW, missing(pairs[0].record))
    moved = [_moved(pair.record) for pair in pairs if pair.record.moved is not None]
    if len(moved) == len(pairs):
        arrays["moved_raw"] = np.mean(moved, axis=0)
    nouns = [pair.nouns for pair in pairs if pair.nouns is not None]
    if len(nouns) < len(pairs):
        return arrays
    arrays["moved_raw_nouns"] = np.mean(
        [_moved_of_nouns(each.record, missing(pairs[0].record)) for each in nouns], axis=0
    )
    written = [each.written for each in nouns if each.written is not None]
    if len(written) == len(pairs):
        joined = joined_parts(written)
        arrays["own_write"] = np.mean([each.net for each in written], axis=0)
        arrays["own_write_nouns"] = joined["general"]
        arrays["own_write_more_low"] = joined["specific_low"]
    return arrays


def _moved(pair: SensePair) -> Array:
    """How far each head moves the word where it is read. `layer head`"""
    assert pair.moved is not None
    at = np.asarray(pair.reading.at)[:, None, None]
    return np.asarray(np.take_along_axis(pair.moved, at, -1)[..., 0])


def _moved_of_nouns(record: NounRecord, absent: Array) -> Array:
    """The same of nouns in the word's place, mean over their swaps. `layer head`"""
    moved = absent.copy()
    if record.heads and len(record.net):
        layers, heads = np.array(record.heads).T
        moved[layers, heads] = record.net.mean(0)
    return moved
