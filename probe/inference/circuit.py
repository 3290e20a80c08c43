"""Tests and intervals for the edges from the cue to the word, with cue words as the sample."""

from dataclasses import dataclass

import numpy as np

from probe.experiments.circuit import Circuit, EdgeSwaps
from probe.experiments.nouns import NounRecord
from probe.experiments.record import SensePair
from probe.inference.nouns import PartComparison, compare_with_nouns
from probe.stats import resampling
from probe.stats.resampling import Array


@dataclass(frozen=True, eq=False)
class EdgeEvidence:
    """The effects of every edge, with tests. Each array is `edge`; effects are fractions of the
    gap.
    """

    fraction: Array
    direct: Array
    total: Array
    low: Array  # 95 % interval of the total effect
    high: Array
    same_sense: Array  # the effect of a same-sense donor; NaN for edges that are not tested
    p: Array  # of the effect minus that of a same-sense donor; NaN for edges that are not tested
    q: Array
    # The first edges next to unambiguous nouns. None if too few of the nouns in the word's place
    # have a gap.
    nouns: PartComparison | None


def edge_evidence(
    circuit: Circuit,
    pair: SensePair,
    nouns: NounRecord | None,
    *,
    depth: int,
    permutations: int,
    seed: int,
) -> EdgeEvidence | None:
    """Tests and intervals of a circuit's edges. None if no edges were measured.

    pair: the circuit's two senses
    nouns: the unambiguous nouns in the word's place
    depth: the read-out layer
    permutations: how many times signs are flipped
    """
    edges = circuit.edges
    if edges is None:
        return None
    gap = edges.gap
    moves = np.nan_to_num(edges.total)  # edge pair
    total = moves.sum(1) / gap.sum()
    weights = resampling.bootstrap_weights([edges.units], seed=seed)
    draws = resampling.bootstrap_ratio(moves.T, gap, weights)
    low, high = resampling.interval(draws, total, units=len(set(edges.units)))
    same_sense, p, q = _test_family(edges, moves, permutations, seed)
    return EdgeEvidence(
        fraction=np.nanmean(edges.fraction, axis=1),
        direct=np.nan_to_num(edges.direct).sum(1) / gap.sum(),
        total=total,
        low=low,
        high=high,
        same_sense=same_sense,
        p=p,
        q=q,
        nouns=None if nouns is None else _with_nouns(edges, pair, nouns, depth, permutations),
    )


def _test_family(
    edges: EdgeSwaps, moves: Array, permutations: int, seed: int
) -> tuple[Array, Array, Array]:
    """The effect of same-sense donors, and p and q of the net effect, for the edges of the family.

    net = effect of the other sense's donor - effect of a same-sense donor

    moves: how far each edge moves the word. `edge pair`

    Only pairs with a same-sense donor count. NaN for edges outside the family.
    """
    blank = np.full(len(moves), np.nan)
    columns = (blank, blank.copy(), blank.copy())
    family = edges.family
    compared = ~np.isnan(edges.same_sense[family]).any(0)
    if not family.any() or not compared.any():
        return columns
    gap = edges.gap[compared]
    same = edges.same_sense[family][:, compared]
    net = (moves[family][:, compared] - same).T / gap.mean()  # pair edge
    both_signs = np.stack([net, -net], axis=-1)  # the test is two-sided
    units = [edges.units[pair] for pair in np.flatnonzero(compared).tolist()]
    tests = resampling.flip_signs(both_signs, units, seed=seed, draws=permutations)
    for column, values in zip(
        columns, (same.sum(1) / gap.sum(), tests.p.min(-1), tests.q.min(-1)), strict=True
    ):
        column[family] = values
    return columns


def _with_nouns(
    edges: EdgeSwaps, pair: SensePair, nouns: NounRecord, depth: int, permutations: int
) -> PartComparison | None:
    """The first edges: how far they move the word, and nouns in its place, along their own axes."""
    gap = pair.gap[list(edges.noun_pairs), depth].mean() if edges.noun_pairs else 1.0
    of_word = edges.of_word / gap * pair.raw_gap[:, depth].mean()
    return compare_with_nouns(
        pair,
        nouns,
        word=of_word[..., None],
        noun=edges.of_noun[..., None],
        at=np.full(edges.of_noun.shape[1], depth),
        pair_of=np.array(edges.noun_pairs, dtype=np.intp),
        noun_of=np.array([nouns.nouns.index(noun) for noun in edges.nouns], dtype=np.intp),
        permutations=permutations,
    )
