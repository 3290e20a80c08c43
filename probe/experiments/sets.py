"""How few heads are enough: faithfulness and necessity of sets of heads (`probe.patching.sets`),
against random sets of the same layers.

M is the sense coordinate, the donor a sentence of the other sense, sums run over pairs in both
directions (ratio of sums). The order of heads comes from other sentences than those the curve is
measured on: every holdout has its own. A ranking is worth something when its sets do better than
sets drawn at random with as many heads in every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.experiments.design import Pairs, Ranked, bootstrap
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import Rows
from probe.patching.sets import (
    RANDOM_SETS,
    SIZES,
    HeadIndex,
    Mask,
    curve_sizes,
    faithfulness,
    mask_of,
    random_sets,
)
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array

ENOUGH = 0.9  # faithfulness from which a set of heads counts as doing what all of them do


@dataclass(frozen=True, eq=False)
class Curves:
    """Faithfulness and necessity of the first `sizes` heads of an order, and of random sets matched
    to them per layer.

    `faithfulness necessity: size`, the ends of their 95 % bootstrap intervals `(low, high) size`,
    over `pairs` pairs · `random_sizes: r` · `random: r set`.
    """

    order: tuple[HeadIndex, ...]
    pairs: int
    sizes: tuple[int, ...]
    faithfulness: Array
    faithfulness_interval: tuple[Array, Array]
    necessity: Array
    necessity_interval: tuple[Array, Array]
    random_sizes: tuple[int, ...]
    random: Array

    @property
    def area(self) -> float:
        """Mean faithfulness over the fraction of heads in the set, by the trapezoid rule: 1 when a
        single head is enough."""
        share = np.asarray(self.sizes) / len(self.order)
        return float(np.trapezoid(self.faithfulness, share))

    @property
    def smallest(self) -> int | None:
        """The fewest leading heads with F >= ENOUGH, None where no set reaches it."""
        return _smallest(self.sizes, self.faithfulness)


def _smallest(sizes: Sequence[int], reached: Array) -> int | None:
    for size, value in zip(sizes, reached, strict=True):
        if value >= ENOUGH:
            return size
    return None


def measure_curves(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    groups: Sequence[Ranked],
    order: Sequence[HeadIndex],
    depth: int,
    *,
    seed: int,
) -> Curves:
    """Run every set of the curves on the groups' pairs, each with the first heads of its own
    group's order.

    `texts`: row by row what z was read from · `z: row layer head d_head` · `order`: the order over
    all sentences, which names the heads but is measured on none · `depth`: the read-out, below
    which the heads of every order lie.
    """
    z = z[:, :depth]
    shape = (depth, z.shape[2])
    sizes = curve_sizes(len(order))
    moved_by_group = []
    for group in groups:
        leading = np.array([mask_of(group.order[:size], shape) for size in sizes])
        masks = np.concatenate([leading, ~leading])
        moved_by_group.append(_moved_from_all(weights, texts, z, group, masks))
    moved = np.concatenate(moved_by_group)

    all_pairs = [group.pairs for group in groups]
    weight = bootstrap(all_pairs).repeat(2, axis=1)  # both directions of a pair are drawn together
    units = len({(group.axes.senses, unit) for group in groups for unit in group.pairs.units})
    estimate = faithfulness(moved.sum(0))
    low, high = resampling.interval(faithfulness(weight @ moved), estimate, units=units)
    reached, without = np.split(estimate, 2)
    low_reached, low_without = np.split(low, 2)
    high_reached, high_without = np.split(high, 2)

    random_sizes = _random_sizes(sizes, reached)
    return Curves(
        order=tuple(order),
        pairs=sum(map(len, all_pairs)),
        sizes=sizes,
        faithfulness=reached,
        faithfulness_interval=(low_reached, high_reached),
        necessity=1 - without,
        necessity_interval=(1 - high_without, 1 - low_without),
        random_sizes=random_sizes,
        random=_random_curves(weights, texts, z, groups, random_sizes, seed=seed),
    )


def _random_curves(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    groups: Sequence[Ranked],
    sizes: Sequence[int],
    *,
    seed: int,
) -> Array:
    """Faithfulness of RANDOM_SETS sets of each size, matched to the leading heads of each group.
    `-> size set`"""
    rng = np.random.default_rng(seed)
    shape = (z.shape[1], z.shape[2])
    total = np.zeros((len(sizes), 1 + RANDOM_SETS))
    for group in groups:
        drawn = [
            random_sets(mask_of(group.order[:size], shape), RANDOM_SETS, rng) for size in sizes
        ]
        moved = _moved_from_all(weights, texts, z, group, np.concatenate(drawn)).sum(0)
        total[:, 0] += moved[0]
        total[:, 1:] += moved[1:].reshape(-1, RANDOM_SETS)
    return faithfulness(total)


def _random_sizes(sizes: Sequence[int], reached: Array) -> tuple[int, ...]:
    """Sizes from one head to all but one, and the smallest that is enough: there leaders must beat
    random ones."""
    most = sizes[-1]
    chosen = {*np.geomspace(1, most - 1, SIZES).round().astype(int).tolist()}
    smallest = _smallest(sizes, reached)
    if smallest is not None and smallest < most:
        chosen.add(smallest)
    return tuple(sorted(chosen))


def _moved_from_all(weights: Weights, texts: Rows, z: Tensor, group: Ranked, masks: Mask) -> Array:
    """M - M(all), signed so that the donor's side is negative, with the empty set (first) and with
    each set. Rows are the pairs in both directions, side by side. `-> row 1 + set`
    """
    nothing = np.zeros((1, *masks.shape[1:]), dtype=bool)
    head_sets = np.concatenate([nothing, masks])
    return -moved_toward_donor(weights, texts, z, group.axes, group.pairs, head_sets)


def moved_toward_donor(
    weights: Weights, texts: Rows, z: Tensor, axes: HeldOutAxes, pairs: Pairs, head_sets: Mask
) -> Array:
    """How far M moves towards the donor when all heads but a set have its z, read behind the layers
    of z. `z: row layer head d_head`, `head_sets: set layer head` -> `row set`; rows are the
    pairs in both directions.
    """
    recipients = [row for pair in zip(pairs.b, pairs.a, strict=True) for row in pair]
    donors = [row for pair in zip(pairs.a, pairs.b, strict=True) for row in pair]
    # The rows of a holdout share a direction, so each direction is read once for all rows.
    cells, cell_of_row = np.unique(axes.cell[recipients], return_inverse=True)
    depth = z.shape[1]
    directions = (axes.u[cells, depth] / axes.gap[cells, depth, None]).to(z.dtype)
    moved = swap_sets(
        weights,
        [texts[row] for row in recipients],
        z[donors],
        torch.from_numpy(head_sets),
        directions,
    )
    own_direction = moved.double().numpy()[np.arange(len(recipients)), :, cell_of_row]
    signs = np.tile([1.0, -1.0], len(pairs))[:, None]
    return np.asarray(own_direction * signs)


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
    ways averaged.

    `z: row layer head d_head` -> `pair 1 + other`, numerators of E: a head that stands in for
    another one shows only where both are swapped (McGrath et al. 2023).
    """
    swapped = [[first], *([first, other] for other in others)]
    shape = (z.shape[1], z.shape[2])
    head_sets = ~np.array([mask_of(heads, shape) for heads in swapped])
    moved = moved_toward_donor(weights, texts, z, axes, pairs, head_sets)
    return np.asarray(moved.reshape(len(pairs), 2, -1).mean(1))
