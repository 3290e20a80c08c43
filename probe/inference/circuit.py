"""What follows of the edges from the cue to the word: tests and intervals over cue words."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.experiments.circuit import Circuit, EdgeKey, EdgeSwaps
from probe.experiments.nouns import NounRecord
from probe.experiments.record import SensePair
from probe.inference.nouns import PartComparison, compare_with_nouns
from probe.stats import resampling
from probe.stats.resampling import Array


@dataclass(frozen=True, eq=False)
class EdgeEvidence:
    """What follows of every edge. `edge` each; fractions of the gap.

    low, high: 95 % interval of the total effect.
    same_sense, p, q: beyond a donor of the same sense; NaN for edges that are not tested.
    nouns: of the first edges, None where too few nouns with a gap of their own stood in the word's
        place.
    """

    fraction: Array
    direct: Array
    total: Array
    low: Array
    high: Array
    same_sense: Array
    p: Array
    q: Array
    nouns: PartComparison | None

    def p_of(self, keys: Sequence[EdgeKey], steps: Sequence[EdgeKey]) -> float:
        """The p of the least sure of some edges, 1 for one that was not tested."""
        p = dict(zip(keys, np.nan_to_num(self.p, nan=1.0).tolist(), strict=True))
        return float(max(p.get(step, 1.0) for step in steps))


def edge_evidence(
    circuit: Circuit, pair: SensePair, nouns: NounRecord | None, *, depth: int, seed: int
) -> EdgeEvidence | None:
    """Tests and intervals of a circuit's edges; None where none were measured.

    pair: the circuit's two senses. nouns: those that stood in the word's place.
    depth: the read-out layer.
    """
    edges = circuit.edges
    if edges is None:
        return None
    gap = edges.gap
    moved = np.nan_to_num(edges.total)
    total = moved.sum(1) / gap.sum()
    weights = resampling.bootstrap_weights([edges.units], seed=seed)
    draws = resampling.bootstrap_ratio(moved.T, gap, weights)
    low, high = resampling.interval(draws, total, units=len(set(edges.units)))
    same_sense, p, q = _tested(edges, moved, seed)
    return EdgeEvidence(
        fraction=np.nanmean(edges.fraction, axis=1),
        direct=np.nan_to_num(edges.direct).sum(1) / gap.sum(),
        total=total,
        low=low,
        high=high,
        same_sense=same_sense,
        p=p,
        q=q,
        nouns=None if nouns is None else _with_nouns(edges, pair, nouns, depth),
    )


def _tested(edges: EdgeSwaps, moved: Array, seed: int) -> tuple[Array, Array, Array]:
    """What same-sense donors do over the edges of the family, and p and q of what the other sense
    does beyond it, over the pairs that have such donors."""
    blank = np.full(len(moved), np.nan)
    columns = (blank, blank.copy(), blank.copy())
    family = edges.family
    compared = ~np.isnan(edges.same_sense[family]).any(0)
    if not family.any() or not compared.any():
        return columns
    gap = edges.gap[compared]
    same = edges.same_sense[family][:, compared]
    net = (moved[family][:, compared] - same).T / gap.mean()  # pair edge
    both_signs = np.stack([net, -net], axis=-1)
    units = [edges.units[pair] for pair in np.flatnonzero(compared).tolist()]
    tests = resampling.flip_signs(both_signs, units, seed=seed)
    for column, values in zip(
        columns, (same.sum(1) / gap.sum(), tests.p.min(-1), tests.q.min(-1)), strict=True
    ):
        column[family] = values
    return columns


def _with_nouns(
    edges: EdgeSwaps, pair: SensePair, nouns: NounRecord, depth: int
) -> PartComparison | None:
    """The first edges for the word next to nouns in its place, each in its own gap."""
    gap = pair.gap[list(edges.noun_pairs), depth].mean() if edges.noun_pairs else 1.0
    return compare_with_nouns(
        pair,
        nouns,
        word=edges.of_word / gap,
        noun=edges.of_noun,
        at=np.full(edges.of_noun.shape[1], depth),
        pair_of=np.array(edges.noun_pairs, dtype=np.intp),
        noun_of=np.array([nouns.nouns.index(noun) for noun in edges.nouns], dtype=np.intp),
    )
