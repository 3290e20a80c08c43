"""The columns of the tables of heads: the evidence for every head, by name.

Every function returns arrays `layer head`, with NaN where nothing was measured.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from probe.experiments.design import bootstrap_each, interval_over_senses, widen_draws
from probe.experiments.head_parts import by_distance
from probe.experiments.nouns import NounRecord
from probe.experiments.record import SensePair
from probe.inference.across import RANK_COLUMNS
from probe.inference.nouns import PARTS, joined_parts
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
    "self_repair",
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
# A head's direct write and how far its swap moves the vector, in units of the residual stream, for
# the word and for unambiguous nouns in its place.
RAW_COLUMNS = ("own_write", "own_write_nouns", "own_write_more_low", "moved_raw", "moved_raw_nouns")
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
    arrays |= raw_columns([evidence])
    share = None if pair.swaps is None else pair.swaps.rerouted
    arrays["rerouted"] = missing(pair) if share is None else share
    return arrays


def missing(pair: SensePair) -> Array:
    """NaN for every head. `layer head`"""
    return np.full(pair.attention["itself"].shape, np.nan)


def swap_columns(pairs: Sequence[SensePair]) -> dict[str, Array]:
    """SWAP_COLUMNS: means over these pairs of senses, with intervals and ranks.

    swap = (denoise + noise) / 2
    self_repair = swap - direct
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
    columns["self_repair"] = columns["swap"] - columns["direct"]
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


def noun_columns(pairs: Sequence[PairEvidence]) -> dict[str, Array]:
    """The columns PARTS of every head: the general and the specific effect, over pairs of senses.

    NaN unless every pair of senses was compared with nouns, because the net effect in the same
    table is the mean over all pairs.
    """
    parts = [pair.nouns.heads for pair in pairs if pair.nouns and pair.nouns.heads]
    if len(parts) < len(pairs):
        return dict.fromkeys(PARTS, missing(pairs[0].record))
    return dict(joined_parts(parts))


def raw_columns(pairs: Sequence[PairEvidence]) -> dict[str, Array]:
    """RAW_COLUMNS of every head: means over these pairs of senses, in units of the residual stream.

    NaN unless every pair has the measurement.
    """
    arrays = dict.fromkeys(RAW_COLUMNS, missing(pairs[0].record))
    moves = [_word_moves(pair.record) for pair in pairs if pair.record.raw_effect is not None]
    if len(moves) == len(pairs):
        arrays["moved_raw"] = np.mean(moves, axis=0)
    nouns = [pair.nouns for pair in pairs if pair.nouns is not None]
    if len(nouns) < len(pairs):
        return arrays
    shape = arrays["moved_raw_nouns"].shape
    arrays["moved_raw_nouns"] = np.mean([_noun_moves(each.record, shape) for each in nouns], axis=0)
    writes = [each.head_writes for each in nouns if each.head_writes is not None]
    if len(writes) == len(pairs):
        joined = joined_parts(writes)
        arrays["own_write"] = np.mean([each.net for each in writes], axis=0)
        arrays["own_write_nouns"] = joined["general"]
        arrays["own_write_more_low"] = joined["specific_low"]
    return arrays


def _word_moves(pair: SensePair) -> Array:
    """How far each head moves the word at the depth where the head is read. `layer head`"""
    assert pair.raw_effect is not None
    at = np.asarray(pair.reading.at)[:, None, None]
    return np.asarray(np.take_along_axis(pair.raw_effect, at, -1)[..., 0])


def _noun_moves(record: NounRecord, shape: tuple[int, ...]) -> Array:
    """How far each head moves the nouns in the word's place, mean over their swaps. `layer head`

    shape: the numbers of layers and heads

    NaN for heads that were not compared.
    """
    moves = np.full(shape, np.nan)
    if record.heads and len(record.net):
        layers, heads = np.array(record.heads).T
        moves[layers, heads] = record.net.mean(0)
    return moves
