"""The comparison with unambiguous nouns in the word's place: is it ambiguity?

    share     g²(noun) / g²(word), on the same sentences
    p         (1 + nouns whose g² is at least the word's) / (1 + nouns). This is the ambiguity gate.
              g² is summed over the word's pairs of senses.
    near      the same p among nouns that are about as expected as the word: their surprisal differs
              by at most NEAR nats. Computed if there are enough of them. An ambiguous word is often
              the expected word.
    general   the effect of a head or MLP on a noun as a fraction of the noun's gap, mean over swaps
    specific  its effect on the word minus general, paired by cue word

A word has one gate. If each of six pairs of senses had one, an unambiguous noun would pass at least
one of them by chance three times in ten. Only nouns that were compared for every pair of senses
count.

A head with equal fractions for the word and for a noun with a smaller gap is general: only the gap
makes the effect smaller. A noun without a gap has no such fraction and is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.experiments.design import Pairs, crossed_factors, interval_over_senses
from probe.experiments.noun_mlps import NounMlpRecord
from probe.experiments.nouns import NounRecord
from probe.experiments.record import SensePair, WordRecord
from probe.stats import resampling
from probe.stats.limits import FEWEST_NOUNS, FEWEST_SENTENCES, FEWEST_WITH_A_GAP
from probe.stats.resampling import Array

# Columns that compare an effect on the word with the effect on unambiguous nouns.
PARTS = ("general", "specific", "specific_low", "specific_high", "p_specific")
# Fraction of the word's gap. A noun whose gap is smaller counts as a noun without a gap.
SMALLEST_GAP = 0.1
NEAR = 2.0  # largest difference in surprisal, in nats, of a noun that is about as expected
TOO_FEW_NOUNS = "nouns that can take its place"


@dataclass(frozen=True, eq=False)
class PartComparison:
    """Effects of heads or MLPs on the word and on unambiguous nouns in its place.

    Arrays of heads are `layer head`, with NaN for heads that were not compared. Arrays of MLPs are
    `layer`.
    """

    net: Array  # effect on the word, in the pairs of sentences that were compared
    general: Array  # effect on nouns, as a fraction of each noun's gap
    specific: Array  # net - general
    differences: Array  # the effect on the word minus that on the noun, by swap. `swap ...`
    pairs: Pairs  # the pair of sentences of each swap
    nouns: tuple[str, ...]  # the noun of each swap
    p: Array  # of specific = 0, two-sided, corrected for everything that was compared

    def scattered(self, where: tuple[Array, ...], shape: tuple[int, ...]) -> "PartComparison":
        """The same numbers in arrays of all heads or MLPs, with NaN where nothing was compared.

        where: the indices of the compared heads or MLPs
        shape: of the new arrays
        """

        def spread_out(values: Array) -> Array:
            whole: Array = np.full((*values.shape[:-1], *shape), np.nan)
            index: Any = (..., *where)
            whole[index] = values
            return whole

        return replace(
            self,
            net=spread_out(self.net),
            general=spread_out(self.general),
            specific=spread_out(self.specific),
            differences=spread_out(self.differences),
            p=spread_out(self.p),
        )


@dataclass(frozen=True, eq=False)
class NounEvidence:
    """The comparison of two senses of a word with unambiguous nouns.

    A comparison is None if too few nouns have a gap.
    """

    record: NounRecord  # the measurements
    gate: "AmbiguityGate"
    # How many nouns have a gap at the depths at which heads are read. None if fewer than
    # FEWEST_WITH_A_GAP nouns fit the pairs of sentences.
    with_gap: int | None
    heads: PartComparison | None
    mlps: PartComparison | None
    head_writes: PartComparison | None  # of the heads' direct writes, in residual-stream units

    def general_share(self, depth: int) -> float:
        """The mean share of the nouns at a depth. NaN without nouns."""
        shares = self.record.shares[list(self.gate.noun_numbers), depth]
        return float(shares.mean()) if len(shares) else float("nan")


@dataclass(frozen=True)
class AmbiguityGate:
    """The ambiguity gate of a word, for two of its senses."""

    p: float  # the same for all pairs of senses; NaN if there is a `reason`
    reason: str  # why the gate cannot be computed, "" if it can
    # Row numbers of the compared nouns. The nouns are the same for all pairs of senses.
    noun_numbers: tuple[int, ...]
    near: int  # how many of the nouns are about as expected as the word
    p_near: float  # of the gate among these nouns; NaN if they are too few


def ambiguity_gate(records: Sequence[NounRecord | None], depth: int) -> list[AmbiguityGate | None]:
    """The ambiguity gate of a word, for each of its pairs of senses.

    records: the measurements of each pair of senses
    depth: the read-out layer

    None for a pair of senses in which no nouns took the word's place.
    """
    usable = [record for record in records if record is not None and not _why_no_gate(record)]
    common = [
        noun
        for noun in (usable[0].nouns if usable else ())
        if all(noun in record.nouns for record in usable)
    ]
    p = p_near = float("nan")
    too_few = ""
    near = [noun for noun in common if all(_is_near(record, noun) for record in usable)]
    if usable and len(common) < FEWEST_NOUNS:
        too_few = (
            f"{TOO_FEW_NOUNS}: {len(common)} for all its senses, and {FEWEST_NOUNS} are needed"
        )
    elif usable:
        p = _gate_p(usable, common, depth)
        if len(near) >= FEWEST_NOUNS:
            p_near = _gate_p(usable, near, depth)
    gates: list[AmbiguityGate | None] = []
    for record in records:
        if record is None:
            gates.append(None)
            continue
        reason = _why_no_gate(record) or too_few
        names = record.nouns if reason else common
        noun_numbers = tuple(record.nouns.index(noun) for noun in names)
        gates.append(
            AmbiguityGate(
                p=float("nan") if reason else p,
                reason=reason,
                noun_numbers=noun_numbers,
                near=len(near),
                p_near=float("nan") if reason else p_near,
            )
        )
    return gates


def _is_near(record: NounRecord, noun: str) -> bool:
    """Whether a noun is about as expected as the word in the same sentences."""
    number = record.nouns.index(noun)
    return bool(abs(record.surprisal[number] - record.word_surprisal[number]) <= NEAR)


def noun_evidence(word: WordRecord) -> list[NounEvidence | None]:
    """The comparison with nouns, for each of a word's pairs of senses.

    None for a pair of senses without a gap, or in which no nouns took the word's place.
    """
    records = [
        None if pair.swaps is None else record
        for pair, record in zip(word.pairs, word.of_pairs("nouns"), strict=True)
    ]
    gates = ambiguity_gate(records, word.depth)
    evidence: list[NounEvidence | None] = []
    columns = zip(
        word.pairs,
        records,
        gates,
        word.of_pairs("noun_mlps"),
        word.of_pairs("heads"),
        strict=True,
    )
    for pair, record, gate, mlp_record, separation in columns:
        if record is None or gate is None:
            evidence.append(None)
            continue
        evidence.append(
            NounEvidence(
                record=record,
                gate=gate,
                with_gap=_count_with_gap(pair, record),
                heads=_compare_heads(pair, record, separation.permutations),
                mlps=_compare_mlps(pair, record, mlp_record, separation.permutations),
                head_writes=_compare_writes(pair, record, separation.permutations),
            )
        )
    return evidence


def _why_no_gate(record: NounRecord) -> str:
    """Why the ambiguity gate cannot be computed. "" if it can."""
    if record.comparable < FEWEST_SENTENCES:
        return (
            f"it is a noun in its dictionary form in {record.comparable} of the paired sentences, "
            f"and {FEWEST_SENTENCES} are needed"
        )
    if len(record.nouns) < FEWEST_NOUNS:
        return f"{TOO_FEW_NOUNS}: {len(record.nouns)}, and {FEWEST_NOUNS} are needed"
    return ""


def _gate_p(records: Sequence[NounRecord], nouns: Sequence[str], depth: int) -> float:
    """p of the ambiguity gate.

    p = (1 + nouns whose g² is at least the word's) / (1 + nouns)

    g² is summed over the pairs of senses.
    """
    of_noun = np.zeros(len(nouns))
    of_word = np.zeros(len(nouns))
    for record in records:
        rows = [record.nouns.index(noun) for noun in nouns]
        of_noun += record.squared_gap[rows, depth]
        of_word += record.word_squared_gap[rows, depth]
    return float((1 + np.sum(of_noun >= of_word)) / (1 + len(nouns)))


# --- effects of heads and MLPs --------------------------------------------------------------------


def _read_depths(pair: SensePair, record: NounRecord) -> NDArray[np.intp]:
    """The depth at which each compared head is read. `head`"""
    return np.array([pair.reading.at[layer] for layer, _ in record.heads], dtype=np.intp)


def has_gap(pair: SensePair, record: NounRecord, at: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each noun has a gap at all of these depths. `noun`

    at: depths, which may repeat
    """
    depths = np.unique(at)
    smallest_gap = SMALLEST_GAP * pair.raw_gap.mean(0)[depths]
    with_gap: NDArray[np.bool_] = (record.gap[:, depths] >= smallest_gap).all(1)
    return with_gap


def _count_with_gap(pair: SensePair, record: NounRecord) -> int | None:
    measured = np.isfinite(record.gap).all(1)  # NaN if a noun fits no pair of sentences
    if measured.sum() < FEWEST_WITH_A_GAP:
        return None
    return int(has_gap(pair, record, _read_depths(pair, record)).sum())


def _compare_heads(pair: SensePair, record: NounRecord, permutations: int) -> PartComparison | None:
    if pair.effects is None or not record.heads:
        return None
    layers, heads = np.array(record.heads).T
    compared = compare_with_nouns(
        pair,
        record,
        word=pair.effects.net_by_pair[:, layers, heads][record.pair_of],
        noun=record.net,
        at=_read_depths(pair, record),
        pair_of=record.pair_of,
        noun_of=record.noun_of,
        permutations=permutations,
    )
    if compared is None:
        return None
    return compared.scattered((layers, heads), pair.effects.net_by_pair.shape[1:])


def _compare_writes(
    pair: SensePair, record: NounRecord, permutations: int
) -> PartComparison | None:
    """The comparison of each head's direct write at the word and at the nouns with a gap."""
    if pair.effects is None or not record.heads:
        return None
    layers, heads = np.array(record.heads).T
    swaps = _swaps_with_gap(pair, record, _read_depths(pair, record), record.noun_of)
    pairs = pair.pairs.take(record.pair_of[swaps].tolist())
    if not _are_enough(record.noun_of[swaps], pairs):
        return None
    compared = compare_pairwise(
        record.word_write[record.pair_of[swaps]],
        record.write[swaps],
        pairs,
        [record.nouns[noun] for noun in record.noun_of[swaps]],
        permutations=permutations,
    )
    return compared.scattered((layers, heads), pair.effects.net_by_pair.shape[1:])


def _swaps_with_gap(
    pair: SensePair, record: NounRecord, at: NDArray[np.intp], noun_of: NDArray[np.intp]
) -> NDArray[np.intp]:
    """The row numbers of the swaps whose noun has a gap."""
    return np.flatnonzero(has_gap(pair, record, at)[noun_of])


def _are_enough(nouns: NDArray[np.intp], pairs: Pairs) -> bool:
    """Whether there are at least FEWEST_WITH_A_GAP nouns and two pairs of cue words."""
    return len(set(nouns.tolist())) >= FEWEST_WITH_A_GAP and len(set(pairs.units)) >= 2


def _compare_mlps(
    pair: SensePair, record: NounRecord, mlp_record: NounMlpRecord | None, permutations: int
) -> PartComparison | None:
    if mlp_record is None:
        return None
    at = np.asarray(pair.reading.at)
    there = ~np.isnan(mlp_record.word).any(1)
    gap = pair.raw_gap[there].mean(0)[at]
    return compare_with_nouns(
        pair,
        record,
        word=mlp_record.word[mlp_record.pair_of] / gap,
        noun=mlp_record.nouns,
        at=at,
        pair_of=mlp_record.pair_of,
        noun_of=mlp_record.noun_of,
        permutations=permutations,
    )


def compare_with_nouns(
    pair: SensePair,
    record: NounRecord,
    *,
    word: Array,
    noun: Array,
    at: NDArray[np.intp],
    pair_of: NDArray[np.intp],
    noun_of: NDArray[np.intp],
    permutations: int,
) -> PartComparison | None:
    """The comparison of effects on the word with effects on the nouns that have a gap.

    A part is a head, an MLP or an edge.

    word: effects on the word, as fractions of its gap. `swap part`
    noun: effects on the nouns, in units of the residual stream. `swap part`
    at: the depth at which each part is read. `part`
    pair_of, noun_of: the row numbers of each swap's pair of sentences and noun. `swap`
    permutations: how many times signs are flipped

    None if fewer than FEWEST_WITH_A_GAP nouns have a gap, or if all their swaps belong to one pair
    of cue words.
    """
    swaps = _swaps_with_gap(pair, record, at, noun_of)
    nouns = noun_of[swaps]
    swapped_pairs = pair.pairs.take(pair_of[swaps].tolist())
    if not _are_enough(nouns, swapped_pairs):
        return None
    of_gap = noun[swaps] / record.gap[nouns][:, at]
    names = [record.nouns[noun] for noun in nouns]
    return compare_pairwise(word[swaps], of_gap, swapped_pairs, names, permutations=permutations)


def compare_pairwise(
    word: Array, noun: Array, pairs: Pairs, nouns: Sequence[str], *, permutations: int
) -> PartComparison:
    """The general and the specific effect, from effects that are paired by swap.

    word, noun: effects as fractions of the gap of the word or noun. `swap part...`
    pairs: the pair of sentences of each swap
    nouns: the noun of each swap
    permutations: how many times signs are flipped, by cue word
    """
    more = word - noun
    flip = partial(resampling.flip_signs, units=pairs.units, seed=pairs.seed, draws=permutations)
    above = flip(more).p
    below = flip(-more).p
    return PartComparison(
        net=word.mean(0),
        general=noun.mean(0),
        specific=more.mean(0),
        differences=more,
        pairs=pairs,
        nouns=tuple(nouns),
        p=np.minimum(1, 2 * np.minimum(above, below)),
    )


def joined_parts(parts: Sequence[PartComparison]) -> Mapping[str, Array]:
    """The columns PARTS of a word: means over its pairs of senses, with 95 % intervals.

    parts: the comparison for each pair of senses

    The bootstrap resamples frames, cue words and nouns, each with the same count in every pair of
    senses. p is the smallest p times the number of pairs (Bonferroni), at most 1.
    """
    specific = np.mean([part.specific for part in parts], axis=0)
    word_units = [part.pairs.word_units for part in parts]
    low, high = interval_over_senses(_draws_of_mean(parts), specific, word_units)
    p = np.minimum(1, len(parts) * np.min([part.p for part in parts], axis=0))
    general = np.mean([part.general for part in parts], axis=0)
    values = (general, specific, low, high, p)
    return dict(zip(PARTS, values, strict=True))


def _draws_of_mean(parts: Sequence[PartComparison]) -> Array:
    """The mean of `specific` over pairs of senses in every bootstrap draw. `draw part...`"""
    factors = crossed_factors([part.pairs for part in parts])
    factors.append([noun for part in parts for noun in part.nouns])
    weights = resampling.bootstrap_weights(factors, seed=parts[0].pairs.seed)  # draw swap
    of_parts = resampling.split_weights(weights, [len(part.nouns) for part in parts])
    means = []
    for part, of_part in zip(parts, of_parts, strict=True):
        sums = np.tensordot(of_part, part.differences, axes=1)
        means.append(sums / of_part.sum(1).reshape(-1, *[1] * (sums.ndim - 1)))
    return np.asarray(np.mean(means, axis=0))
