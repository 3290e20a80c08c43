"""Backup heads: heads that make up for another one that was swapped.

Where the effect of a head is lost again by the last depth, later heads may have made up for it. A
head that did shows only where both are swapped (McGrath et al. 2023): the two together then move
the word further than the sum of what each does alone.
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

JOINT_PAIRS = 8  # of sentences, in which two heads are swapped together
JOINT_HEADS = 2  # heads whose effect is lost again, for which a backup is looked for


@dataclass(frozen=True, eq=False)
class Backup:
    """Later heads, each swapped together with the head `first`.

    others: the later heads.
    extra: how much further both move the word than each alone, in fractions of the gap.
        `pair other`
    units: the pair of cue words of each pair.
    """

    first: HeadIndex
    others: tuple[HeadIndex, ...]
    extra: Array
    units: tuple[int, ...]


RECORDS = (Backup,)


def measure(run: Run) -> tuple[tuple[Backup, ...] | None, ...]:
    """Of every two senses the JOINT_HEADS heads whose effect is lost most, each together with every
    later head."""
    return run.for_swapped(lambda each: _backups(run, each))


def work(size: Size) -> Work:
    """Every head with each of JOINT_HEADS others, both ways."""
    pairs = sum(min(pairs, JOINT_PAIRS) for pairs in size.pairs)
    return Work(swaps=size.heads_in_all * DIRECTIONS * JOINT_HEADS * pairs)


def _backups(run: Run, each: SwappedPair) -> tuple[Backup, ...]:
    swaps = each.effects
    last = swaps.profile[..., -1]
    layers, heads = last.shape
    from_direct = swaps.profile[..., min(each.prepared.reading.direct) - 1 :]
    lost = np.maximum(swaps.written, from_direct.max(-1)) - last
    rng = np.random.default_rng(run.options.seed)
    drawn = each.pairs.take(design.spread(each.pairs.units, JOINT_PAIRS, rng))
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
        if not later or lost[first] < max(LARGE, abs(last[first])):
            continue
        moved = joint_swaps(
            run.weights,
            run.seen.texts,
            run.seen.states.z,
            each.prepared.sense.axes,
            drawn,
            first=first,
            others=later,
        )
        of_gap = moved / gap
        alone = np.array([last[other] for other in later])
        extra = of_gap[:, 1:] - of_gap[:, :1] - alone  # beyond what either does by itself
        backups.append(Backup(first, tuple(later), extra, drawn.units))
    return tuple(backups)


def joint_swaps(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    axes: HeldOutAxes,
    pairs: Pairs,
    *,
    first: HeadIndex,
    others: Sequence[HeadIndex],
) -> Array:
    """What swapping `first` does at the last depth, alone and together with each of `others`, both
    ways averaged. `z: row layer head d_head -> pair 1 + other`, numerators of E
    """
    swapped = [[first], *([first, other] for other in others)]
    shape = (z.shape[1], z.shape[2])
    head_sets = ~np.array([mask_of(heads, shape) for heads in swapped])
    moved = moved_toward_donor(weights, texts, z, axes, pairs, head_sets)
    return np.asarray(moved.reshape(len(pairs), 2, -1).mean(1))
