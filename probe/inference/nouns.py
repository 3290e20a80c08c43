"""Is it ambiguity? What follows from unambiguous nouns in a word's place.

    share     g²(noun) / g²(word), on the same sentences
    p         (1 + nouns with g² of at least the word's) / (1 + nouns): the ambiguity gate, one for
              the word, with g² summed over its pairs of senses
    near      the same among the nouns that are about as expected as the word, NEAR nats apart at
              most, where these are enough: an ambiguous word is often the expected one
    general   mean over swaps of what a part does for a noun, in the noun's own gap
    specific  what it does for the word minus general, paired by cue word

The gate is asked once for a word: asked for each of six pairs of senses, an unambiguous noun would
pass for one of them by chance three times in ten. Only nouns that were compared for every pair of
senses count.

A head that does the same for a noun whose gap is smaller is general: the difference in size is the
gap's. A noun without a gap of its own has no such ratio and is left out.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.experiments.design import UNKNOWN_FRAME, Pairs
from probe.experiments.noun_mlps import NounMlpRecord
from probe.experiments.nouns import NounRecord
from probe.experiments.record import SensePair, WordRecord
from probe.stats import resampling
from probe.stats.limits import FEWEST_NOUNS, FEWEST_SENTENCES, FEWEST_WITH_A_GAP
from probe.stats.resampling import Array

# The columns of an effect next to that for unambiguous nouns.
PARTS = ("general", "specific", "specific_low", "specific_high", "p_specific")
SMALLEST_GAP = 0.1  # of the word's: a noun with a smaller gap has none to speak of
NEAR = 2.0  # nats of surprisal between the word and a noun that is about as expected
TOO_FEW_NOUNS = "nouns that can take its place"


@dataclass(frozen=True, eq=False)
class PartComparison:
    """What parts of the network do for the word and for unambiguous nouns in its place.

    Heads are `layer head`, NaN for those that were not compared; MLPs are `layer`.

    net: for the word, in the pairs that were compared.
    general: for nouns, in their own gaps.
    specific: net minus general. drawn: the same in every bootstrap draw.
    units: pairs of cue words. swaps: of one noun in one pair.
    p: that specific is not 0, two-sided, corrected for all parts that were compared.
    """

    net: Array
    general: Array
    specific: Array
    drawn: Array
    units: int
    swaps: int
    p: Array

    def scattered(self, where: tuple[Array, ...], shape: tuple[int, ...]) -> "PartComparison":
        """The same at the places `where` of an array of all parts, NaN at those not compared."""

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
            drawn=spread_out(self.drawn),
            p=spread_out(self.p),
        )


@dataclass(frozen=True, eq=False)
class NounEvidence:
    """What nouns say of two senses of a word.

    record: what was measured.
    with_gap: how many nouns have a gap of their own where heads are read; None where fewer than
        FEWEST_WITH_A_GAP can stand in the pairs of sentences.
    heads, mlps: None where too few nouns have a gap of their own.
    written: the same of what each head writes itself, in units of the residual stream.
    """

    record: NounRecord
    gate: "AmbiguityGate"
    with_gap: int | None
    heads: PartComparison | None
    mlps: PartComparison | None
    written: PartComparison | None

    def general_share(self, depth: int) -> float:
        """Mean of the nouns' shares at a depth; NaN without nouns."""
        shares = self.record.shares[list(self.gate.chosen), depth]
        return float(shares.mean()) if len(shares) else float("nan")


@dataclass(frozen=True)
class AmbiguityGate:
    """The gate of a word, for two of its senses.

    p: the same for all pairs of senses; NaN where the gate is not asked, for the `reason`.
    chosen: the numbers of the nouns that are compared, the same nouns for all pairs of senses.
    near: how many of these are about as expected as the word.
    p_near: of the gate among them; NaN where they are too few.
    """

    p: float
    reason: str
    chosen: tuple[int, ...]
    near: int
    p_near: float


def ambiguity_gate(records: Sequence[NounRecord | None], depth: int) -> list[AmbiguityGate | None]:
    """The ambiguity gate of a word, for every two senses; None where no nouns were put in its
    place.

    depth: the read-out layer.
    """
    asked = [record for record in records if record is not None and not _why_no_gate(record)]
    common = [
        noun
        for noun in (asked[0].nouns if asked else ())
        if all(noun in record.nouns for record in asked)
    ]
    p = p_near = float("nan")
    too_few = ""
    near = [noun for noun in common if all(_is_near(record, noun) for record in asked)]
    if asked and len(common) < FEWEST_NOUNS:
        too_few = (
            f"{TOO_FEW_NOUNS}: {len(common)} for all its senses, and {FEWEST_NOUNS} are needed"
        )
    elif asked:
        p = _gate_p(asked, common, depth)
        if len(near) >= FEWEST_NOUNS:
            p_near = _gate_p(asked, near, depth)
    gates: list[AmbiguityGate | None] = []
    for record in records:
        if record is None:
            gates.append(None)
            continue
        reason = _why_no_gate(record) or too_few
        names = record.nouns if reason else common
        chosen = tuple(record.nouns.index(noun) for noun in names)
        gates.append(
            AmbiguityGate(
                p=float("nan") if reason else p,
                reason=reason,
                chosen=chosen,
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
    """What nouns say of every two senses of a word; None where none were put in its place."""
    records = [
        None if pair.swaps is None else record
        for pair, record in zip(word.pairs, word.of_pairs("nouns"), strict=True)
    ]
    gates = ambiguity_gate(records, word.depth)
    found: list[NounEvidence | None] = []
    mlps = word.of_pairs("noun_mlps")
    for pair, record, gate, swapped in zip(word.pairs, records, gates, mlps, strict=True):
        if record is None or gate is None:
            found.append(None)
            continue
        found.append(
            NounEvidence(
                record=record,
                gate=gate,
                with_gap=_count_with_gap(pair, record),
                heads=_compare_heads(pair, record),
                mlps=_compare_mlps(pair, record, swapped),
                written=_compare_written(pair, record),
            )
        )
    return found


def _why_no_gate(record: NounRecord) -> str:
    """Why the ambiguity gate cannot be asked, "" where it can."""
    if record.comparable < FEWEST_SENTENCES:
        return (
            f"it is a noun in its dictionary form in {record.comparable} of the paired sentences, "
            f"and {FEWEST_SENTENCES} are needed"
        )
    if len(record.nouns) < FEWEST_NOUNS:
        return f"{TOO_FEW_NOUNS}: {len(record.nouns)}, and {FEWEST_NOUNS} are needed"
    return ""


def _gate_p(asked: Sequence[NounRecord], nouns: Sequence[str], depth: int) -> float:
    """(1 + nouns with a g² of at least the word's) / (1 + nouns), g² summed over the pairs of
    senses."""
    of_noun = np.zeros(len(nouns))
    of_word = np.zeros(len(nouns))
    for record in asked:
        rows = [record.nouns.index(noun) for noun in nouns]
        of_noun += record.squared_gap[rows, depth]
        of_word += record.word_squared_gap[rows, depth]
    return float((1 + np.sum(of_noun >= of_word)) / (1 + len(nouns)))


# --- what parts do --------------------------------------------------------------------------------


def _read_depths(pair: SensePair, record: NounRecord) -> NDArray[np.intp]:
    """The depth at which each of the compared heads is read. `head`"""
    return np.array([pair.reading.at[layer] for layer, _ in record.heads], dtype=np.intp)


def has_gap(pair: SensePair, record: NounRecord, at: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each noun has a gap of its own at all of these depths. `noun`"""
    depths = np.unique(at)
    smallest = SMALLEST_GAP * pair.raw_gap.mean(0)[depths]
    there: NDArray[np.bool_] = (record.gap[:, depths] >= smallest).all(1)
    return there


def _count_with_gap(pair: SensePair, record: NounRecord) -> int | None:
    measured = np.isfinite(record.gap).all(1)  # NaN where a noun can stand in no pair
    if measured.sum() < FEWEST_WITH_A_GAP:
        return None
    return int(has_gap(pair, record, _read_depths(pair, record)).sum())


def _compare_heads(pair: SensePair, record: NounRecord) -> PartComparison | None:
    if pair.effects is None or not record.heads:
        return None
    layers, heads = np.array(record.heads).T
    compared = compare_with_nouns(
        pair,
        record,
        word=pair.effects.net[:, layers, heads][record.pair_of],
        noun=record.net,
        at=_read_depths(pair, record),
        pair_of=record.pair_of,
        noun_of=record.noun_of,
    )
    if compared is None:
        return None
    return compared.scattered((layers, heads), pair.effects.net.shape[1:])


def _compare_written(pair: SensePair, record: NounRecord) -> PartComparison | None:
    """What each head writes itself, for the word and for the nouns that have a gap of their own."""
    if pair.effects is None or not record.heads:
        return None
    layers, heads = np.array(record.heads).T
    swaps = _swaps_with_gap(pair, record, _read_depths(pair, record), record.noun_of)
    pairs = pair.pairs.take(record.pair_of[swaps].tolist())
    if not _are_enough(record.noun_of[swaps], pairs):
        return None
    compared = compare_pairwise(
        record.word_written[record.pair_of[swaps]],
        record.written[swaps],
        pairs,
        record.noun_of[swaps].tolist(),
    )
    return compared.scattered((layers, heads), pair.effects.net.shape[1:])


def _swaps_with_gap(
    pair: SensePair, record: NounRecord, at: NDArray[np.intp], noun_of: NDArray[np.intp]
) -> NDArray[np.intp]:
    """The numbers of the swaps whose noun has a gap of its own."""
    return np.flatnonzero(has_gap(pair, record, at)[noun_of])


def _are_enough(nouns: NDArray[np.intp], pairs: Pairs) -> bool:
    """Whether there are FEWEST_WITH_A_GAP nouns, and pairs of more than one pair of cue words."""
    return len(set(nouns.tolist())) >= FEWEST_WITH_A_GAP and len(set(pairs.units)) >= 2


def _compare_mlps(
    pair: SensePair, record: NounRecord, swapped: NounMlpRecord | None
) -> PartComparison | None:
    if swapped is None:
        return None
    at = np.asarray(pair.reading.at)
    there = ~np.isnan(swapped.word).any(1)
    gap = pair.raw_gap[there].mean(0)[at]
    return compare_with_nouns(
        pair,
        record,
        word=swapped.word[swapped.pair_of] / gap,
        noun=swapped.nouns,
        at=at,
        pair_of=swapped.pair_of,
        noun_of=swapped.noun_of,
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
) -> PartComparison | None:
    """The comparison of parts with the nouns that have a gap of their own; None where these are
    fewer than FEWEST_WITH_A_GAP, or stand in pairs of one pair of cue words.

    word: in its own gap. noun: in units of the residual stream. `swap part`
    at: the depth at which each part is read. `part`
    pair_of, noun_of: the number of the pair and of the noun of each swap. `swap`
    """
    swaps = _swaps_with_gap(pair, record, at, noun_of)
    nouns = noun_of[swaps]
    swapped_pairs = pair.pairs.take(pair_of[swaps].tolist())
    if not _are_enough(nouns, swapped_pairs):
        return None
    of_gap = noun[swaps] / record.gap[nouns][:, at]
    return compare_pairwise(word[swaps], of_gap, swapped_pairs, nouns.tolist())


def compare_pairwise(
    word: Array, noun: Array, pairs: Pairs, noun_of: Sequence[Hashable]
) -> PartComparison:
    """General and specific parts of effects that are paired: `word noun: swap part...`, each in its
    own gap. Frames, cue words and nouns are resampled; signs are flipped by cue word.
    """
    more = word - noun
    frames = [None if name.startswith(UNKNOWN_FRAME) else name for name in pairs.frames]
    factors = [*resampling.crossed_factors(frames, pairs.units), list(noun_of)]
    weights = resampling.bootstrap_weights(factors, seed=pairs.seed)
    drawn = np.tensordot(weights, more, axes=1) / weights.sum(1).reshape(-1, *[1] * (more.ndim - 1))
    above = resampling.flip_signs(more, pairs.units, seed=pairs.seed).p
    below = resampling.flip_signs(-more, pairs.units, seed=pairs.seed).p
    return PartComparison(
        net=word.mean(0),
        general=noun.mean(0),
        specific=more.mean(0),
        drawn=drawn,
        units=len(set(pairs.units)),
        swaps=len(more),
        p=np.minimum(1, 2 * np.minimum(above, below)),
    )


def joined_parts(parts: Sequence[PartComparison]) -> Mapping[str, Array]:
    """The means of comparisons of one word over its pairs of senses, by the names of PARTS, with
    95 % intervals; p the smallest, times their number.
    """
    specific = np.mean([part.specific for part in parts], axis=0)
    drawn = np.mean([part.drawn for part in parts], axis=0)
    low, high = resampling.interval(drawn, specific, units=sum(part.units for part in parts))
    p = np.minimum(1, len(parts) * np.min([part.p for part in parts], axis=0))
    general = np.mean([part.general for part in parts], axis=0)
    values = (general, specific, low, high, p)
    return dict(zip(PARTS, values, strict=True))
