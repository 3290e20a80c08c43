"""Tests and intervals for one word, with its cue words as the sample.

Each kind of test (separation, swap, opposes, next token, continuation) is one family over all heads
and all pairs of senses of the word, corrected by step-down max-T. Separation permutes senses over
cue words; swap tests flip signs per pair of cue words. For backups, the heads after one earlier
head are a family.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.experiments.backups import Backup
from probe.experiments.record import SensePair, WordRecord
from probe.inference.nouns import NounEvidence, noun_evidence
from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.limits import LEVEL, SMALLEST
from probe.stats.separation import Separation, Tests, corrected_tests


@dataclass(frozen=True)
class BackupHead:
    """A head that takes over for an earlier head."""

    replaced: HeadIndex  # the earlier head
    head: HeadIndex  # the backup
    # The effect of swapping both heads minus the effects of swapping each, as a fraction of the gap
    joint_excess: float
    p: float


@dataclass(frozen=True, eq=False)
class PairEvidence:
    """The tests of two senses of a word."""

    record: SensePair  # the measurements
    separation: Separation  # of every head's write
    tests: Tests | None  # None if no head was swapped
    backups: tuple[BackupHead, ...]  # the significant ones
    nouns: NounEvidence | None  # None if no nouns took the word's place


@dataclass(frozen=True, eq=False)
class WordEvidence:
    """The tests of a word."""

    record: WordRecord
    pairs: tuple[PairEvidence, ...]  # one for each pair of senses


def word_evidence(record: WordRecord, *, seed: int) -> WordEvidence:
    """The tests of one word.

    Signs are flipped as many times as senses were reassigned when the separation of its heads was
    measured.
    """
    tests = _corrected(record, seed)
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
            backups=_significant_backups(backups or (), separation.permutations, seed),
            nouns=of_nouns,
        )
        for pair, separation, backups, of_nouns in columns
    ]
    return WordEvidence(record, tuple(pairs))


def _corrected(record: WordRecord, seed: int) -> dict[tuple[str, str], Tests]:
    """Corrected tests of the pairs of senses whose heads were swapped, by pair of senses."""
    swapped = [
        (pair, pair.swaps, separation)
        for pair, separation in record.with_result("heads")
        if pair.swaps is not None
    ]
    if not swapped:
        return {}
    pairs, swaps, separations = zip(*swapped, strict=True)
    tests = corrected_tests(
        separations,
        {
            "swap": [each.word.net_by_pair for each in swaps],
            "next_token": [each.next_token and each.next_token.net_by_pair for each in swaps],
            "continuation": [each.continuation and each.continuation.net_by_pair for each in swaps],
        },
        [pair.pairs.units for pair in pairs],
        permutations=separations[0].permutations,
        seed=seed,
        has_heads=np.array(record.has_heads),
    )
    return {pair.senses: of_pair for pair, of_pair in zip(pairs, tests, strict=True)}


def _significant_backups(
    backups: Sequence[Backup], permutations: int, seed: int
) -> tuple[BackupHead, ...]:
    """The heads that significantly take over for an earlier head.

    The test is corrected for all later heads. Signs are not flipped: without a backup the mean
    excess is 0, but an excess need not be as likely as its negative.
    """
    significant = []
    for backup in backups:
        test = resampling.bootstrap_t(
            backup.joint_excess, [backup.units], seed=seed, draws=permutations
        )
        mean_excess = backup.joint_excess.mean(0)
        for head, excess, p in zip(backup.later, mean_excess, test.p, strict=True):
            if p < LEVEL and excess >= SMALLEST:
                significant.append(BackupHead(backup.first, head, float(excess), float(p)))
    return tuple(significant)
