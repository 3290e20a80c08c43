"""The columns of the tables of heads: the evidence for every head, by name.

Every function returns arrays `layer head`, with NaN where nothing was measured.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from probe.experiments.design import bootstrap_each, interval_over_senses, widen_draws
from probe.experiments.record import SensePair
from probe.experiments.swaps import Effects
from probe.inference.across import RANK_COLUMNS
from probe.inference.nouns import joined_parts, joined_writes
from probe.inference.verdicts import PARTS, WRITES
from probe.inference.within import PairEvidence
from probe.stats import resampling
from probe.stats.limits import GATE
from probe.stats.resampling import Array

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
    "added_after",
    "net",
    "net_low",
    "net_high",
    *RANK_COLUMNS,
)
TESTED_COLUMNS = (
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
BACKUP_COLUMNS = ("stands_in", "p_stands_in", "stands_in_layer", "stands_in_head")


def head_arrays(evidence: PairEvidence) -> dict[str, Array]:
    """All columns from which the verdict on each head follows. `layer head` each"""
    pair = evidence.record
    arrays = {
        name: getattr(evidence.separation, name)
        for name in ("auroc", "auroc_low", "auroc_high", "hedges_g")
    }
    arrays |= swap_columns([pair])
    arrays |= tested_columns(evidence)
    arrays |= {f"attention_{name}": to_token for name, to_token in pair.attention.items()}
    arrays["net_near"] = net_where(pair, lambda distance: distance == 1)
    arrays["net_far"] = net_where(pair, lambda distance: distance > 1)
    arrays |= _backup_columns(evidence)
    arrays |= noun_columns([evidence])
    return arrays


def missing(pair: SensePair) -> Array:
    """NaN for every head. `layer head`"""
    return np.full(pair.attention["itself"].shape, np.nan)


def swap_columns(pairs: Sequence[SensePair]) -> dict[str, Array]:
    """SWAP_COLUMNS: means over these pairs of senses, with intervals and ranks.

    swap = (denoise + noise) / 2
    added_after = swap - direct
    net = swap - same_sense

    NaN if none of the pairs has a gap.
    """
    swapped = [(pair.swaps, pair.pairs) for pair in pairs if pair.swaps is not None]
    if not swapped:
        return dict.fromkeys(SWAP_COLUMNS, missing(pairs[0]))
    effects, groups = zip(*swapped, strict=True)

    def mean(values: Iterable[Array]) -> Array:
        return np.asarray(np.mean(list(values), axis=0))

    ratios = ("denoise", "noise", "same_sense")
    columns = {name: mean(each.word.ratio(name) for each in effects) for name in ratios}
    columns["direct"] = mean(each.direct_effect for each in effects)
    columns["swap"] = (columns["denoise"] + columns["noise"]) / 2
    columns["added_after"] = columns["swap"] - columns["direct"]
    net = columns["swap"] - columns["same_sense"]
    columns["net"] = net
    draws_of_pairs = [
        each.draws(weights) for each, weights in zip(effects, bootstrap_each(groups), strict=True)
    ]
    word_units = [of_pair.word_units for of_pair in groups]
    draws = {}
    for name in draws_of_pairs[0]:
        draws[name] = mean(each[name] for each in draws_of_pairs)
        low, high = interval_over_senses(draws[name], columns[name], word_units)
        columns[f"{name}_low"] = low
        columns[f"{name}_high"] = high
    has_heads = effects[0].has_heads  # some layers of a hybrid have no heads
    ranked = net[has_heads]
    ranks = resampling.ranks(ranked.ravel()).reshape(ranked.shape)
    ends = resampling.rank_intervals(widen_draws(draws["net"], net, word_units)[:, has_heads])
    for name, numbers in zip(RANK_COLUMNS, (ranks, *ends), strict=True):
        columns[name] = np.full(net.shape, np.nan)
        columns[name][has_heads] = numbers
    return {name: columns[name] for name in SWAP_COLUMNS}


def tested_columns(evidence: PairEvidence) -> dict[str, Array]:
    """TESTED_COLUMNS: corrected p and false discovery rate of separation and swap; and the effects
    on the next token and on continuations, with their p.

    NaN if no head was swapped. The columns of the next token or of continuations are also NaN if
    the senses have no significant gap in them.
    """
    pair = evidence.record
    arrays = dict.fromkeys(TESTED_COLUMNS, missing(pair))
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
        # A ratio over a gap that does not exist is noise divided by noise.
        if test is not None and p < GATE:
            arrays |= {name: effect.net_by_pair.mean(0), f"p_{name}": test.p}
    return arrays


def _backup_columns(evidence: PairEvidence) -> dict[str, Array]:
    """BACKUP_COLUMNS: `BackupHead.joint_excess`, p and the earlier head of each backup head.

    NaN for heads that are not backups.
    """
    arrays = {name: missing(evidence.record) for name in BACKUP_COLUMNS}
    # Ascending, so that the largest is stored last if a head is the backup of two heads.
    for backup in sorted(evidence.backups, key=lambda each: each.joint_excess):
        values = (backup.joint_excess, backup.p, *backup.replaced)
        for name, value in zip(BACKUP_COLUMNS, values, strict=True):
            arrays[name][backup.head] = value
    return arrays


def net_where(pair: SensePair, keep: Callable[[int], bool]) -> Array:
    """The net effect of every head, over the pairs of sentences with some distances. `layer head`

    keep: returns True for a distance from the cue to the word, in tokens

    NaN if no head was swapped, or if no pair has such a distance.
    """
    if pair.effects is None:
        return missing(pair)
    net = by_distance(pair.effects, pair.pairs.distances, keep)
    return missing(pair) if net is None else net


def by_distance(
    effects: Effects, distances: Sequence[int | None], included: Callable[[int], bool]
) -> Array | None:
    """The net effect of every head over the pairs whose distance from cue to word is included.
    `layer head`

    included: whether a distance counts

    None if there is no such pair.

    The unit is the mean gap of these pairs, or the mean gap of all pairs if that is larger. At a
    distance from which a model does not read the cue, the gap is about 0, and a fraction of it
    would be noise divided by noise.
    """
    pairs = [
        pair
        for pair, distance in enumerate(distances)
        if distance is not None and included(distance)
    ]
    if not pairs:
        return None
    # net E = mean[(denoise + noise) / 2 - same_sense] / max(mean gap here, mean gap).
    # `pair layer head`
    numerator = (effects.denoise[pairs] + effects.noise[pairs]) / 2 - effects.same_sense[pairs]
    gap = np.maximum(effects.pair_gap[pairs].mean(0), effects.pair_gap.mean(0))
    return np.asarray(numerator.mean(0) / gap[:, None])


def noun_columns(pairs: Sequence[PairEvidence]) -> dict[str, Array]:
    """The columns PARTS and WRITES of every head: how far it moves the word and nouns in its place,
    and how far its own write does, over pairs of senses.

    NaN unless every pair of senses was compared with nouns, because the net effect in the same
    table is the mean over all pairs.
    """
    columns = dict.fromkeys((*PARTS, *WRITES), missing(pairs[0].record))
    compared = [pair.nouns for pair in pairs if pair.nouns is not None]
    parts = [each.heads for each in compared if each.heads is not None]
    writes = [each.head_writes for each in compared if each.head_writes is not None]
    if len(parts) == len(pairs):
        columns |= joined_parts(parts)
    if len(writes) == len(pairs):
        columns |= joined_writes(writes)
    return columns
