"""Sets of heads: masks, the sizes of a curve, random sets of the same layers, and faithfulness.

    faithfulness   F(S) = [M(S) - M(∅)] / [M(all) - M(∅)]
    necessity      of the first k heads: 1 - F(all heads without the first k)

In M(S), the heads outside S take the donor's value at the word. The heads in S and all MLPs are
live (`probe.patching.heads.swap_sets`).

Sources: Miller, Chughtai & Saunders 2024 (faithfulness); Wang et al. 2022 (minimal sets).
"""

from collections.abc import Sequence
from itertools import combinations, product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from probe.stats.resampling import Array

DENSE = 20  # heads: a curve has every size up to this one, and then growing steps
COARSE = 12  # sizes from DENSE to all heads
SIZES = 6  # sizes at which random sets are drawn, evenly spaced in their logarithm
RANDOM_SETS = 200  # for each of these sizes: the largest of 200 is about the 99.5th percentile

Mask = NDArray[np.bool_]
HeadIndex = tuple[int, int]


def curve_sizes(heads: int) -> tuple[int, ...]:
    """The sizes of a curve: 0, 1, 2, ... up to DENSE, then in growing steps, and all heads."""
    sizes = {*range(min(DENSE, heads) + 1), heads}
    if heads > DENSE:
        sizes.update(np.geomspace(DENSE, heads, COARSE).round().astype(int).tolist())
    return tuple(sorted(sizes))


def mask_of(heads: Sequence[HeadIndex], shape: tuple[int, int]) -> Mask:
    """The mask of a set of heads, True in the set. `layer head`"""
    mask = np.zeros(shape, dtype=bool)
    for layer, head in heads:
        mask[layer, head] = True
    return mask


def random_sets(mask: Mask, count: int, rng: np.random.Generator) -> Mask:
    """Random sets with the same number of heads in each layer as `mask`; never `mask` itself if
    another exists.

    `-> set layer head`
    """
    random_masks = np.stack([rng.permuted(mask, axis=1) for _ in range(count)])
    heads_in_layer = mask.sum(1)
    another_exists = ((heads_in_layer > 0) & (heads_in_layer < mask.shape[1])).any()
    if another_exists:
        while (is_mask := (random_masks == mask).all((1, 2))).any():
            random_masks[is_mask] = [rng.permuted(mask, axis=1) for _ in range(int(is_mask.sum()))]
    return random_masks


def other_sets(mask: Mask, count: int, rng: np.random.Generator) -> Mask:
    """Up to `count` different random sets with the same number of heads in each layer as `mask`,
    and no head of it.

    `-> set layer head`

    If there are fewer such sets, all of them. Every layer needs at least as many heads outside
    `mask` as in it.
    """
    candidates: list[list[int]] = [np.flatnonzero(~heads).tolist() for heads in mask]
    sizes = mask.sum(1).tolist()
    possible = prod(comb(len(heads), size) for heads, size in zip(candidates, sizes, strict=True))
    if possible <= count:
        every_choice = product(*map(combinations, candidates, sizes))
        return np.stack([_mask_by_layer(by_layer, mask.shape) for by_layer in every_choice])
    by_content: dict[bytes, Mask] = {}
    while len(by_content) < count:
        by_layer = [
            rng.permutation(heads)[:size].astype(int).tolist()
            for heads, size in zip(candidates, sizes, strict=True)
        ]
        candidate = _mask_by_layer(by_layer, mask.shape)
        by_content[candidate.tobytes()] = candidate
    return np.stack([*by_content.values()])


def _mask_by_layer(by_layer: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Mask:
    """`mask_of` from the heads of each layer. `-> layer head`"""
    mask = np.zeros(shape, dtype=bool)
    for layer, heads in enumerate(by_layer):
        mask[layer, list(heads)] = True
    return mask


def faithfulness(total: Array) -> Array:
    """F from sums over rows of M(S) - M(all), the empty set first. `... 1 + set -> ... set`"""
    without_heads = total[..., :1]
    return np.asarray((total[..., 1:] - without_heads) / -without_heads)
