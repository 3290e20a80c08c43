"""How few heads are enough: faithfulness and necessity of sets of heads, against random sets of the
same layers.

    F(S) = [M(S) - M(∅)] / [M(all) - M(∅)]     heads outside S take the donor's value at the word;
                                               MLPs and the heads in
    S are live necessity of the first k = 1 - F(all without the first k)

M is the sense coordinate, the donor a sentence of the other sense, sums run over pairs in both
directions (ratio of sums). The order of heads comes from other sentences than those the curve is
measured on: every holdout has its own. A ranking is worth something when its sets do better than
sets drawn at random with as many heads in every layer.

Sources: Miller, Chughtai & Saunders 2024 (faithfulness); Wang et al. 2022 (minimal sets).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.model.weights import Weights
from probe.patching import effects, swaps
from probe.patching.effects import Pairs
from probe.patching.swaps import Rows
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array

ENOUGH = 0.9
RANDOM_SETS = 200
SIZES = 6
DENSE = 20
Mask = NDArray[np.bool_]
HeadIndex = tuple[int, int]


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
        """Mean faithfulness over the fraction of heads kept, by the trapezoid rule: 1 when a single
        head is enough."""
        share = np.asarray(self.sizes) / len(self.order)
        return float(np.trapezoid(self.faithfulness, share))

    @property
    def smallest(self) -> int | None:
        """The fewest leading heads with F >= ENOUGH, None where no set reaches it."""
        reached = [
            size
            for size, value in zip(self.sizes, self.faithfulness, strict=True)
            if value >= ENOUGH
        ]
        return reached[0] if reached else None


@dataclass(frozen=True, eq=False)
class Ranked:
    """Pairs of one pair of senses, with the order of heads that other sentences gave: `order`, best
    first."""

    axes: HeldOutAxes
    pairs: Pairs
    order: tuple[HeadIndex, ...]


def measure_curves(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    groups: Sequence[Ranked],
    shown: Sequence[HeadIndex],
    depth: int,
    *,
    seed: int,
) -> Curves:
    """Run every set of the curves on the given pairs, each with the first heads of its own group's
    order.

    `texts`: row by row what z was read from · `z: row layer head d_head` · `shown`: the order over
    all sentences, which names the heads but is measured on none · `depth`: the read-out, below
    which the heads of every order lie.
    """
    heads = z.shape[2]
    z, shape, sizes = z[:, :depth], (depth, heads), curve_sizes(len(shown))

    def leading(group: Ranked) -> Mask:
        return np.array([mask_of(group.order[:size], shape) for size in sizes])

    along = np.concatenate(
        [
            _along(weights, texts, z, group, np.concatenate([leading(group), ~leading(group)]))
            for group in groups
        ]
    )
    all_pairs = [group.pairs for group in groups]
    weight = effects.bootstrap(all_pairs).repeat(2, axis=1)
    units = len({(group.axes.senses, unit) for group in groups for unit in group.pairs.units})
    estimate = _restored(along.sum(0))
    intervals = resampling.interval(_restored(weight @ along), estimate, units=units)
    (kept, without), (low, low_without), (high, high_without) = (
        np.split(values, 2) for values in (estimate, *intervals)
    )
    random_sizes = _random_sizes(sizes, kept)
    rng = np.random.default_rng(seed)
    total = np.zeros((len(random_sizes), 1 + RANDOM_SETS))
    for group in groups:
        drawn = [
            drawn_sets(mask_of(group.order[:size], shape), RANDOM_SETS, rng)
            for size in random_sizes
        ]
        none, *found = _along(weights, texts, z, group, np.concatenate(drawn)).sum(0)
        total += np.insert(np.reshape(found, (-1, RANDOM_SETS)), 0, none, axis=1)
    return Curves(
        order=tuple(shown),
        pairs=sum(map(len, all_pairs)),
        sizes=sizes,
        faithfulness=kept,
        faithfulness_interval=(low, high),
        necessity=1 - without,
        necessity_interval=(1 - high_without, 1 - low_without),
        random_sizes=random_sizes,
        random=_restored(total),
    )


def _random_sizes(sizes: Sequence[int], faithfulness: Array) -> tuple[int, ...]:
    """Sizes from one head to all but one, and the smallest that is enough: there leaders must beat
    random ones."""
    most = sizes[-1]
    spread = np.geomspace(1, most - 1, SIZES).round().astype(int).tolist()
    enough = [
        size
        for size, value in zip(sizes, faithfulness, strict=True)
        if value >= ENOUGH and size < most
    ]
    return tuple(sorted({*spread, *enough[:1]}))


def _restored(total: Array) -> Array:
    """F from sums over rows, which are 0 with all heads and least with none, the first. `... 1 +
    set -> ... set`"""
    return np.asarray((total[..., 1:] - total[..., :1]) / -total[..., :1])


def _along(weights: Weights, texts: Rows, z: Tensor, group: Ranked, masks: Mask) -> Array:
    """M - M(all), signed so that the donor's side is negative, with no head kept (first) and with
    each set. Rows are the pairs in both directions, side by side. `-> row 1 + set`
    """
    nothing = np.zeros((1, *masks.shape[1:]), dtype=bool)
    return -_toward_donor(
        weights, texts, z, group.axes, group.pairs, np.concatenate([nothing, masks])
    )


def _toward_donor(
    weights: Weights, texts: Rows, z: Tensor, axes: HeldOutAxes, pairs: Pairs, kept: Mask
) -> Array:
    """How far M moves towards the donor when all heads but a set have its z, read behind the layers
    of z. `z: row layer head d_head`, `kept: set layer head` -> `row set`; rows are the pairs in
    both directions.
    """
    rows = [row for pair in zip(pairs.b, pairs.a, strict=True) for row in pair]
    donors = [row for pair in zip(pairs.a, pairs.b, strict=True) for row in pair]
    cells, which = np.unique(
        axes.cell[rows], return_inverse=True
    )  # the rows of a holdout share a direction
    depth = z.shape[1]
    directions = (axes.u[cells, depth] / axes.gap[cells, depth, None]).to(z.dtype)
    moved = swaps.swap_sets(
        weights, [texts[row] for row in rows], z[donors], torch.from_numpy(kept), directions
    )
    signs = np.tile([1.0, -1.0], len(pairs))[:, None]
    return np.asarray(moved.double().numpy()[np.arange(len(rows)), :, which] * signs)


def joint_swaps(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    study: tuple[HeldOutAxes, Pairs],
    first: HeadIndex,
    others: Sequence[HeadIndex],
) -> Array:
    """What swapping `first` does at the last depth, alone and together with each of `others`, both
    ways averaged.

    `z: row layer head d_head` -> `pair 1 + other`, numerators of E: a head that stands in for
    another one shows only where both are swapped (McGrath et al. 2023).
    """
    sets = [[first], *([first, other] for other in others)]
    kept = ~np.array([mask_of(heads, (z.shape[1], z.shape[2])) for heads in sets])
    moved = _toward_donor(weights, texts, z, *study, kept)
    return np.asarray(moved.reshape(len(study[1]), 2, -1).mean(1))


def curve_sizes(heads: int) -> tuple[int, ...]:
    """0, 1, 2, ... up to DENSE, then in growing steps, and all heads."""
    coarse = np.geomspace(DENSE, heads, 12).round().astype(int).tolist() if heads > DENSE else []
    return tuple(sorted({*range(min(DENSE, heads) + 1), *coarse, heads}))


def mask_of(heads: Sequence[HeadIndex], shape: tuple[int, int]) -> Mask:
    """`layer head`, True for the given heads."""
    mask = np.zeros(shape, dtype=bool)
    for layer, head in heads:
        mask[layer, head] = True
    return mask


def drawn_sets(mask: Mask, count: int, rng: np.random.Generator) -> Mask:
    """Random sets with as many heads a layer as `mask`, other than it where another exists. `-> set
    layer head`"""
    drawn = np.stack([rng.permuted(mask, axis=1) for _ in range(count)])
    if ((mask.sum(1) > 0) & ~mask.all(1)).any():
        while (same := (drawn == mask).all((1, 2))).any():
            drawn[same] = [rng.permuted(mask, axis=1) for _ in range(int(same.sum()))]
    return drawn
