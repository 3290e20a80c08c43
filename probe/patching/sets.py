"""Sets of heads: masks, the sizes of a whole curve, random sets of the same layers, and the ratio
by which a set is judged.

    faithfulness   F(S) = [M(S) - M(∅)] / [M(all) - M(∅)]
    necessity      of the first k heads, 1 - F(all heads without the first k)

In M(S) the heads outside S take the donor's value at the word; the heads in S and all MLPs are live
(`probe.patching.heads.swap_sets`).

Sources: Miller, Chughtai & Saunders 2024 (faithfulness); Wang et al. 2022 (minimal sets).
"""

from collections.abc import Sequence
from itertools import combinations, product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from probe.stats.resampling import Array

DENSE = 20  # heads: up to this size a curve has every set, and steps that grow behind it
COARSE = 12  # sizes from there to all heads
SIZES = 6  # sizes at which random sets are drawn, evenly spaced in their logarithm
RANDOM_SETS = 200  # of each such size: the largest of them is about the 99.5th percentile

Mask = NDArray[np.bool_]
HeadIndex = tuple[int, int]


def curve_sizes(heads: int) -> tuple[int, ...]:
    """0, 1, 2, ... up to DENSE, then in growing steps, and all heads."""
    sizes = {*range(min(DENSE, heads) + 1), heads}
    if heads > DENSE:
        sizes.update(np.geomspace(DENSE, heads, COARSE).round().astype(int).tolist())
    return tuple(sorted(sizes))


def mask_of(heads: Sequence[HeadIndex], shape: tuple[int, int]) -> Mask:
    """`layer head`, True for the heads of the set."""
    mask = np.zeros(shape, dtype=bool)
    for layer, head in heads:
        mask[layer, head] = True
    return mask


def random_sets(mask: Mask, count: int, rng: np.random.Generator) -> Mask:
    """Random sets with as many heads a layer as `mask`, other than it where another exists. `-> set
    layer head`"""
    drawn = np.stack([rng.permuted(mask, axis=1) for _ in range(count)])
    heads_in_layer = mask.sum(1)
    another_exists = ((heads_in_layer > 0) & (heads_in_layer < mask.shape[1])).any()
    if another_exists:
        while (same := (drawn == mask).all((1, 2))).any():
            drawn[same] = [rng.permuted(mask, axis=1) for _ in range(int(same.sum()))]
    return drawn


def other_sets(mask: Mask, count: int, rng: np.random.Generator) -> Mask:
    """`count` different random sets with as many heads a layer as `mask` and none of its heads; all
    there are where these are fewer. `-> set layer head`

    Every layer must have as many heads outside `mask` as in it.
    """
    others: list[list[int]] = [np.flatnonzero(~heads).tolist() for heads in mask]
    sizes = mask.sum(1).tolist()
    possible = prod(comb(len(heads), size) for heads, size in zip(others, sizes, strict=True))
    if possible <= count:
        chosen = product(*map(combinations, others, sizes))
        return np.stack([_mask_by_layer(by_layer, mask.shape) for by_layer in chosen])
    drawn: dict[bytes, Mask] = {}
    while len(drawn) < count:
        by_layer = [
            rng.permutation(heads)[:size].astype(int).tolist()
            for heads, size in zip(others, sizes, strict=True)
        ]
        one = _mask_by_layer(by_layer, mask.shape)
        drawn[one.tobytes()] = one
    return np.stack([*drawn.values()])


def _mask_by_layer(by_layer: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Mask:
    """`mask_of` from the heads of each layer. `-> layer head`"""
    mask = np.zeros(shape, dtype=bool)
    for layer, heads in enumerate(by_layer):
        mask[layer, list(heads)] = True
    return mask


def faithfulness(total: Array) -> Array:
    """F from sums over rows of M(S) - M(all), of the set without heads first. `... 1 + set -> ...
    set`"""
    without_heads = total[..., :1]
    return np.asarray((total[..., 1:] - without_heads) / -without_heads)
