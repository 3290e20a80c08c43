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
from probe.experiments.design import Pairs
from probe.experiments.plan import DIRECTIONS, Size, Work
from probe.experiments.run import Run, SwappedPair
from probe.experiments.sets import moved_toward_donor
from probe.model.weights import Weights
from probe.patching.inputs import Rows
from probe.patching.sets import HeadIndex, mask_of
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.limits import LARGE
from probe.stats.resampling import Array

JOINT_PAIRS = 8  # pairs of sentences in which two heads are swapped together
JOINT_HEADS = 2  # heads with a lost effect, for which backups are searched


@dataclass(frozen=True, eq=False)
class Backup:
    """Later heads, each swapped together with the head `first`.

    first: the earlier head, whose effect is lost again
    later: the later heads
    extra: the effect of both together minus the sum of their separate effects, as a fraction of the
        gap. `pair other`
    units: the pair of cue words of each pair
    """

    first: HeadIndex
    later: tuple[HeadIndex, ...]
    extra: Array
    units: tuple[int, ...]


RECORDS = (Backup,)


def measure(run: Run) -> tuple[tuple[Backup, ...] | None, ...]:
    """The backups of each pair of senses: the JOINT_HEADS heads with the largest lost effect, each
    with every later head.
    """
    return run.for_swapped(lambda each: _backups(run, each))


def work(size: Size) -> Work:
    """The runs of every head with each of JOINT_HEADS others, in both directions."""
    pairs = sum(min(pairs, JOINT_PAIRS) for pairs in size.pairs)
    return Work(swaps=size.heads_in_all * DIRECTIONS * JOINT_HEADS * pairs)


def _backups(run: Run, each: SwappedPair) -> tuple[Backup, ...]:
    """The backups of two senses."""
    swaps = each.effects
    # The profile starts at depth 1, so depth d has index d - 1.
    last = swaps.profile[..., -1]
    layers, heads = last.shape
    from_direct = swaps.profile[..., min(each.prepared.reading.direct) - 1 :]
    # lost = (largest effect at a depth from the head's write on, or the write itself) - effect at
    # the last depth. `layer head`
    lost = np.maximum(swaps.direct_effect, from_direct.max(-1)) - last
    rng = np.random.default_rng(run.options.seed)
    few_pairs = each.pairs.take(design.spread(each.pairs.units, JOINT_PAIRS, rng))
    gap = each.prepared.gap[:, layers].mean()
    backups = []
    for index in resampling.order(lost.ravel())[:JOINT_HEADS]:
        first = divmod(int(index), heads)
        later = [
            (layer, head)
            for layer in range(first[0] + 1, layers)
            if swaps.has_heads[layer]
            for head in range(heads)
        ]
        # The loss has to be large, and larger than what is left of the effect.
        if not later or lost[first] < max(LARGE, abs(last[first])):
            continue
        shifts = joint_swaps(
            run.weights,
            run.observation.texts,
            run.observation.states.z,
            each.prepared.sense.axes,
            few_pairs,
            first=first,
            later=later,
        )
        of_gap = shifts / gap
        effect_alone = np.array([last[later_head] for later_head in later])
        # extra = E(first and other) - E(first) - E(other). `pair other`
        extra = of_gap[:, 1:] - of_gap[:, :1] - effect_alone
        backups.append(Backup(first, tuple(later), extra, few_pairs.units))
    return tuple(backups)


def joint_swaps(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    axes: HeldOutAxes,
    pairs: Pairs,
    *,
    first: HeadIndex,
    later: Sequence[HeadIndex],
) -> Array:
    """The shift at the last depth if `first` is swapped, alone and with each of `later`, averaged
    over both directions. `-> pair 1 + other`

    z: `row layer head d_head`

    The result is the numerator of E.
    """
    swapped_heads = [[first], *([first, later_head] for later_head in later)]
    shape = (z.shape[1], z.shape[2])
    # A set contains the heads that are not swapped.
    head_sets = ~np.array([mask_of(heads, shape) for heads in swapped_heads])
    shifts = moved_toward_donor(weights, texts, z, axes, pairs, head_sets)
    return np.asarray(shifts.reshape(len(pairs), 2, -1).mean(1))
