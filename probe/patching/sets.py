"""How few heads are enough: faithfulness and necessity of sets of heads, against random sets of the same layers.

    F(S) = [M(S) - M(∅)] / [M(all) - M(∅)]     heads outside S take the donor's value at the word; MLPs and the heads in
    S are live necessity of the first k = 1 - F(all without the first k)

    alone F({h}): what one head restores when every other head has the donor's value

The effect of a single swap misses a head that another one stands in for; alone, both of them show what they can do.

M is the sense coordinate, the donor a sentence of the other sense, sums run over pairs in both directions (ratio of
sums). The order of heads comes from other sentences than those the curve is measured on. A ranking is worth something
when its sets do better than sets drawn at random with as many heads in every layer.

Sources: Miller, Chughtai & Saunders 2024 (faithfulness); Wang et al. 2022 (minimal sets).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.model.weights import Weights
from probe.patching import effects, swaps
from probe.patching.effects import Pairs
from probe.patching.swaps import Rows
from probe.stats import resampling
from probe.stats.axes import Axis
from probe.stats.resampling import Array

ENOUGH = 0.9
RANDOM_SETS = 200
SIZES = 6
DENSE = 20
MOST_PAIRS = 16
PER_PAIR = ("a", "b", "same_a", "same_b", "frames", "cues", "distances")
Mask = NDArray[np.bool_]
HeadIndex = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Curves:
    """Faithfulness and necessity of the first `sizes` heads of an order, and of random sets matched to them per layer.

    `faithfulness necessity: size`, the ends of their 95 % bootstrap intervals `(low, high) size` · `random_sizes: r` ·
    `random: r set`, NaN where fewer different sets exist.
    """

    order: tuple[HeadIndex, ...]
    sizes: tuple[int, ...]
    faithfulness: Array
    faithfulness_interval: tuple[Array, Array]
    necessity: Array
    necessity_interval: tuple[Array, Array]
    random_sizes: tuple[int, ...]
    random: Array

    @property
    def area(self) -> float:
        """Mean faithfulness over the fraction of heads kept, by the trapezoid rule: 1 when a single head is enough."""
        share = np.asarray(self.sizes) / len(self.order)
        return float(np.trapezoid(self.faithfulness, share))

    @property
    def smallest(self) -> int | None:
        """The fewest leading heads with F >= ENOUGH, None where no set reaches it."""
        reached = [size for size, value in zip(self.sizes, self.faithfulness, strict=True) if value >= ENOUGH]
        return reached[0] if reached else None


def measure_curves(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    studies: Sequence[tuple[Axis, Pairs]],
    order: Sequence[HeadIndex],
    *,
    seed: int,
) -> Curves:
    """Run every set of the curves on the given pairs of all sense pairs of a word.

    `texts`: row by row what z was read from · `z: row layer head d_head` · `order`: heads below the read-out, best
    first.
    """
    depth, heads = studies[0][0].depth, z.shape[2]
    z, shape, sizes = z[:, :depth], (depth, heads), curve_sizes(len(order))
    leading = np.array([mask_of(order[:size], shape) for size in sizes])
    along = _along(weights, texts, z, studies, np.concatenate([leading, ~leading]))
    weight = effects.bootstrap([pairs for _, pairs in studies]).repeat(2, axis=1)
    (kept, without), (low, low_without), (high, high_without) = (
        np.split(values, 2) for values in (_restored(along.sum(0)), *resampling.interval(_restored(weight @ along)))
    )
    random_sizes = _random_sizes(sizes, kept)
    rng = np.random.default_rng(seed)
    random = np.full((len(random_sizes), RANDOM_SETS), np.nan)
    for row, size in zip(random, random_sizes, strict=True):
        drawn = np.array(matched_sets(mask_of(order[:size], shape), RANDOM_SETS, rng), dtype=bool).reshape(-1, *shape)
        row[: len(drawn)] = faithfulness(weights, texts, z, studies, drawn)
    return Curves(
        order=tuple(order),
        sizes=sizes,
        faithfulness=kept,
        faithfulness_interval=(low, high),
        necessity=1 - without,
        necessity_interval=(1 - high_without, 1 - low_without),
        random_sizes=random_sizes,
        random=random,
    )


def _random_sizes(sizes: Sequence[int], faithfulness: Array) -> tuple[int, ...]:
    """Sizes from one head to all but one, and the smallest that is enough: there the leading heads have to beat random
    ones.
    """
    most = sizes[-1]
    spread = np.geomspace(1, most - 1, SIZES).round().astype(int).tolist()
    enough = [size for size, value in zip(sizes, faithfulness, strict=True) if value >= ENOUGH and size < most]
    return tuple(sorted({*spread, *enough[:1]}))


def faithfulness(weights: Weights, texts: Rows, z: Tensor, studies: Sequence[tuple[Axis, Pairs]], masks: Mask) -> Array:
    """F of every set, over all pairs of all sense pairs in both directions. `masks: set layer head -> set`"""
    return _restored(_along(weights, texts, z, studies, masks).sum(0))


def _restored(total: Array) -> Array:
    """F from sums over rows: 0 where all heads are kept, most negative where none is (the first).

    `... 1 + set -> ... set`
    """
    return np.asarray((total[..., 1:] - total[..., :1]) / -total[..., :1])


def measure_alone(weights: Weights, texts: Rows, z: Tensor, study: tuple[Axis, Pairs]) -> Array:
    """F({h}) of every head, pair by pair in fractions of the mean gap, on the first MOST_PAIRS pairs.

    `-> pair layer head`
    """
    axis, pairs = study
    few = replace(pairs, **{name: getattr(pairs, name)[:MOST_PAIRS] for name in PER_PAIR})
    heads = axis.depth * z.shape[2]
    singles = np.eye(heads, dtype=bool).reshape(heads, axis.depth, z.shape[2])
    along = _along(weights, texts, z[:, : axis.depth], [(axis, few)], singles)
    restored = (along[:, 1:] - along[:, :1]).reshape(len(few), 2, heads).mean(1) / -along[:, 0].mean()
    return np.pad(restored.reshape(-1, *singles.shape[1:]), ((0, 0), (0, len(weights.blocks) - axis.depth), (0, 0)))


def _along(weights: Weights, texts: Rows, z: Tensor, studies: Sequence[tuple[Axis, Pairs]], masks: Mask) -> Array:
    """M - M(all), signed so that the donor's side is negative, with no head kept (first) and with each set. `-> row 1 +
    set`

    Rows are the pairs of all sense pairs, each in both directions side by side.
    """
    directions = torch.stack([axis.u / axis.gap for axis, _ in studies])
    rows = [
        (recipient, donor, sign, which)
        for which, (_, pairs) in enumerate(studies)
        for a, b in zip(pairs.a, pairs.b, strict=True)
        for recipient, donor, sign in ((a, b, 1.0), (b, a, -1.0))
    ]
    recipients, donors, signs, axes = zip(*rows, strict=True)
    nothing = np.zeros((1, *masks.shape[1:]), dtype=bool)
    kept = torch.from_numpy(np.concatenate([nothing, masks]))
    moved = swaps.swap_sets(weights, [texts[row] for row in recipients], z[list(donors)], kept, directions)
    return np.asarray(moved.double().numpy()[np.arange(len(rows)), :, list(axes)] * np.array(signs)[:, None])


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


def matched_sets(mask: Mask, count: int, rng: np.random.Generator) -> list[Mask]:
    """Up to `count` different random sets with as many heads in every layer as `mask`, never `mask` itself."""
    found: dict[bytes, Mask] = {}
    for _ in range(count * 5):
        drawn = rng.permuted(mask, axis=1)
        if not np.array_equal(drawn, mask):
            found.setdefault(drawn.tobytes(), drawn)
        if len(found) == count:
            break
    return list(found.values())
