"""Backup heads: heads that take over after another head was swapped.

If the effect of a head is lost again by the last depth, later heads may have compensated for it.
Such a head is detected only if both heads are swapped (McGrath et al. 2023): together they then
move the word further than the sum of their separate effects.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from probe.experiments import design
from probe.experiments.columns import Table
from probe.experiments.design import Pairs
from probe.experiments.run import Run, SwappedPair
from probe.experiments.swaps import PairEffects, moved_toward_donor
from probe.model.weights import Weights
from probe.patching.inputs import Rows
from probe.patching.sets import HeadIndex, mask_of
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.limits import LARGE
from probe.stats.resampling import Array

ORDER = 70
NEEDS = ()
ANSWERS = False
SECONDS = 7.0
TABLES: dict[str, Table] = {}
JOINT_PAIRS = 8  # pairs of sentences in which two heads are swapped together
JOINT_HEADS = 2  # heads with a lost effect, for which backups are searched


@dataclass(frozen=True, eq=False)
class Backup:
    """Later heads, each swapped together with the head `first`.

    first: the earlier head, whose effect is lost again
    later: the later heads
    joint_excess: the effect of both together minus the sum of their separate effects, as a fraction
        of the gap. `pair later`
    units: the pair of cue words of each pair
    """

    first: HeadIndex
    later: tuple[HeadIndex, ...]
    joint_excess: Array
    units: tuple[int, ...]


RECORDS = (Backup,)


def measure(run: Run) -> tuple[tuple[Backup, ...] | None, ...]:
    """The backups of each pair of senses: the JOINT_HEADS heads with the largest lost effect, each
    with every later head.
    """
    return run.for_swapped(lambda each: _backups(run, each))


def _backups(run: Run, each: SwappedPair) -> tuple[Backup, ...]:
    """The backups of two senses."""
    later_heads = {
        first: later for first in _lost_heads(each) if (later := _heads_after(first, each.effects))
    }
    if not later_heads:
        return ()
    rng = np.random.default_rng(run.options.seed)
    few_pairs = each.pairs.take(design.spread(each.pairs.units, JOINT_PAIRS, rng))
    # Every effect is measured on the same pairs and without same-sense donors. If any donor
    # disturbed the later head, its effect minus that of a same-sense donor would be smaller, and
    # the difference would count as joint excess.
    swapped: dict[tuple[HeadIndex, ...], None] = {}
    for first, later in later_heads.items():
        swapped |= dict.fromkeys([(first,), *((head,) for head in later)])
        swapped |= dict.fromkeys((first, head) for head in later)
    shifts = shifts_of_sets(
        run.weights,
        run.observation.texts,
        run.observation.states.z,
        each.prepared.sense.axes,
        few_pairs,
        [*swapped],
    )
    last_depth = run.observation.states.z.shape[1]
    of_gap = shifts / each.prepared.gap[:, last_depth].mean()
    effect = dict(zip(swapped, of_gap.T, strict=True))  # `pair` each
    backups = []
    for first, later in later_heads.items():
        excess = [effect[first, head] - effect[(first,)] - effect[(head,)] for head in later]
        backups.append(Backup(first, later, np.stack(excess, axis=1), few_pairs.units))
    return tuple(backups)


def _lost_heads(each: SwappedPair) -> list[HeadIndex]:
    """The JOINT_HEADS heads with the largest lost effect, if it is large, and larger than what is
    left of the effect at the last depth.

    lost = (largest effect at a depth from the head's write on, or the write itself) - effect at the
    last depth
    """
    swaps = each.effects
    last = swaps.profile[..., -1]
    from_direct = swaps.profile[..., min(each.prepared.reading.direct) :]
    lost = np.maximum(swaps.direct_effect, from_direct.max(-1)) - last  # `layer head`
    order = resampling.order(lost.ravel())[:JOINT_HEADS]
    largest = [divmod(int(index), lost.shape[1]) for index in order]
    return [head for head in largest if lost[head] >= max(LARGE, abs(last[head]))]


def _heads_after(first: HeadIndex, swaps: PairEffects) -> tuple[HeadIndex, ...]:
    """The heads in the layers after a head."""
    layers, heads = swaps.direct_effect.shape
    return tuple(
        (layer, head)
        for layer in range(first[0] + 1, layers)
        if swaps.has_heads[layer]
        for head in range(heads)
    )


def shifts_of_sets(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    axes: HeldOutAxes,
    pairs: Pairs,
    swapped: Sequence[Sequence[HeadIndex]],
) -> Array:
    """The shift toward the donor at the last depth if all heads of a set are swapped, averaged over
    both directions: the numerator of E.

    Shape: -> pair set

    z: `row layer head d_head`
    swapped: the heads of each set
    """
    shape = (z.shape[1], z.shape[2])
    # For `moved_toward_donor`, a set contains the heads that are not swapped.
    head_sets = ~np.array([mask_of(heads, shape) for heads in swapped])
    shifts = moved_toward_donor(weights, texts, z, axes, pairs, head_sets)
    return np.asarray(shifts.reshape(len(pairs), 2, -1).mean(1))
