"""How much of a word's sense is carried by sets of heads that were chosen on other words.

The heads outside a set take the donor's z, as in `probe.experiments.sets`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from probe.experiments.columns import Column, dataset
from probe.experiments.design import Pairs
from probe.experiments.observe import Observation
from probe.experiments.swaps import moved_toward_donor, run_swaps
from probe.model.weights import Weights
from probe.patching.heads import swap_heads
from probe.patching.sets import HeadIndex, mask_of, random_sets
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes

if TYPE_CHECKING:
    import xarray as xr

CARRIED_SIZES = (1, 2, 4, 8)  # numbers of other words' top heads that are tried on a held-out word
CARRIED_RANDOM = 20  # random sets of each of these sizes, with the same number of heads per layer


DIFFERENCE = "M(S) - M(none), with the heads outside S taking the donor's z"
MORE = {
    "word": Column("the word, on which `others` was not chosen"),
    "whole": Column(f"{DIFFERENCE}, of all heads", "residual stream"),
    "others": Column("the same for the top heads of the other words' order", "residual stream"),
    "own": Column(
        "for the top heads of the word's order, which is taken from other pairs than it is "
        "measured on",
        "residual stream",
    ),
    "random": Column(
        "for random sets with the same number of heads in every layer as `others`",
        "residual stream",
    ),
}


def carry_over(
    weights: Weights,
    observation: Observation,
    pairs: Sequence[Pairs],
    order: Sequence[HeadIndex],
    *,
    depth: int,
    seed: int,
) -> "xr.Dataset":
    """How much of a word's sense the top heads of the other words' order carry, compared with the
    top heads of the word's order and with random sets of the same layers. `size random_set`

    The numbers are means over pairs and both directions, in units of the residual stream at the
    read-out layer. The faithfulness of a set is its number divided by `whole`.

    pairs: the pairs that are swapped, for each two senses of the observation
    order: the other words' order of the heads in the layers before `depth`
    depth: the read-out layer
    seed: of the random sets
    """
    shape = (depth, weights.shape[1])
    sizes = tuple(size for size in CARRIED_SIZES if size <= len(order))
    top_heads = np.array([mask_of(order[:size], shape) for size in sizes])
    rng = np.random.default_rng(seed)
    random_masks = np.concatenate([random_sets(mask, CARRIED_RANDOM, rng) for mask in top_heads])
    z = observation.states.z[:, :depth]
    by_holdout = []
    for sense, of_sense in zip(observation.pairs, pairs, strict=True):
        in_units = sense.axes.in_units()
        for tested, own_order in _own_orders(weights, observation, in_units, of_sense, depth):
            own_heads = np.array([mask_of(own_order[:size], shape) for size in sizes])
            empty_set = np.zeros((1, *shape), dtype=bool)
            head_sets = np.concatenate([empty_set, top_heads, own_heads, random_masks])
            by_holdout.append(
                moved_toward_donor(weights, observation.texts, z, in_units, tested, head_sets)
            )
    lost = np.concatenate(by_holdout).mean(0)  # set
    # M(S) - M(none) is the loss with all heads changed minus the loss with those outside S changed
    effects = lost[0] - lost[1:]
    left_out, of_own_heads, random = np.split(effects, [len(sizes), 2 * len(sizes)])
    return dataset(
        {},
        {
            "word": ("", observation.material.word),
            "whole": ("", float(lost[0])),
            "others": ("size", left_out),
            "own": ("size", of_own_heads),
            "random": ("size random_set", random.reshape(len(sizes), CARRIED_RANDOM)),
        },
        coordinates={"size": ("size", np.array(sizes, dtype=int))},
        more=MORE,
    )


def _own_orders(
    weights: Weights, observation: Observation, in_units: HeldOutAxes, pairs: Pairs, depth: int
) -> Iterator[tuple[Pairs, list[HeadIndex]]]:
    """The pairs of each holdout, and the order of the heads before `depth` from the pairs of the
    other holdouts; from all pairs if there is a single holdout.
    """
    stages = slice(depth + 1)
    upto = replace(in_units, u=in_units.u[:, stages], fitted_gap=in_units.fitted_gap[:, stages])
    swap = partial(swap_heads, weights)
    z = observation.states.z[:, :depth]
    net = run_swaps(swap, observation.texts, z, upto, pairs).net[..., -1]
    cells = in_units.cell[list(pairs.a)]
    for cell in sorted(set(cells.tolist())):
        outside = cells != cell
        effects = net[outside if outside.any() else slice(None)].mean(0)
        layers, heads = np.unravel_index(resampling.order(effects.ravel()), effects.shape)
        tested = np.flatnonzero(~outside).tolist()
        yield pairs.take(tested), list(zip(layers.tolist(), heads.tolist(), strict=True))
