"""Backup heads: heads that take over after another head was swapped.

If the effect of a head is lost again by the last depth, later heads may have compensated for it.
Such a head is detected only if both heads are swapped (McGrath et al. 2023): together they then
move the word further than the sum of their separate effects.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from probe.experiments import design
from probe.experiments.columns import Column, Table, dataset
from probe.experiments.design import Pairs
from probe.experiments.run import SwappedPair, WordRun
from probe.experiments.swaps import moved_toward_donor
from probe.model.weights import Weights
from probe.patching.inputs import Rows
from probe.patching.sets import HeadIndex, mask_of
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.limits import LARGE, LEVEL, SMALLEST
from probe.stats.resampling import Array

if TYPE_CHECKING:
    import xarray as xr

ORDER = 70
NEEDS = ()
ANSWERS = False
SECONDS = 8.0
STANDS_IN = ("stands_in", "p_stands_in", "stands_in_layer", "stands_in_head")
JOINT_PAIRS = 8  # pairs of sentences in which two heads are swapped together
JOINT_HEADS = 2  # heads with a lost effect, for which backups are searched


# A backup is a column of the tables of heads, so this experiment has no table.
TABLES: dict[str, Table] = {}
MORE = {
    "joint_excess": Column(
        "effect of swapping a later head together with the earlier one, minus their separate "
        "effects, in each pair of sentences; missing for heads that are not later",
        "fraction of the sense gap",
    ),
    "earlier_layer": Column("layer of the earlier head, whose effect is lost again"),
    "earlier_head": Column("number of the earlier head in its layer"),
    "stands_in": Column("mean of joint_excess for a backup head", "fraction of the sense gap"),
    "p_stands_in": Column("max-T p of stands_in, over the heads after the earlier one", "0 to 1"),
    "stands_in_layer": Column("layer of the head that it backs up"),
    "stands_in_head": Column("number of the head that it backs up"),
}


def measure(run: WordRun) -> "dict[str, xr.Dataset]":
    """The backups of each pair of senses: the JOINT_HEADS heads with the largest lost effect, each
    with every later head. `earlier sentence_pair layer head`
    """
    return run.for_swapped(lambda each: backups_of(run, each))


def backups_of(run: WordRun, each: SwappedPair) -> "xr.Dataset":
    """The backups of two senses."""
    later_heads = {
        first: later
        for first in _lost_heads(each)
        if (later := _heads_after(first, run.weights.has_heads.tolist(), each.net.shape[-1]))
    }
    rng = np.random.default_rng(run.options.seed)
    few_pairs = each.pairs.take(design.spread(each.pairs.units, JOINT_PAIRS, rng))
    # Every effect is measured on the same pairs and without same-sense donors. If any donor
    # disturbed the later head, its effect minus that of a same-sense donor would be smaller, and
    # the difference would count as joint excess.
    swapped: dict[tuple[HeadIndex, ...], None] = {}
    for first, later in later_heads.items():
        swapped |= dict.fromkeys([(first,), *((head,) for head in later)])
        swapped |= dict.fromkeys((first, head) for head in later)
    excess = np.full((len(later_heads), len(few_pairs), *each.net.shape[1:]), np.nan)
    if later_heads:
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
        for number, (first, later) in enumerate(later_heads.items()):
            for head in later:
                separate = effect[first, head] - effect[(first,)] - effect[(head,)]
                excess[number, :, *head] = separate
    variables: dict[str, tuple[str, Any]] = {
        "joint_excess": ("earlier sentence_pair layer head", excess),
        "earlier_layer": ("earlier", np.array([layer for layer, _ in later_heads], dtype=int)),
        "earlier_head": ("earlier", np.array([head for _, head in later_heads], dtype=int)),
        "unit": ("sentence_pair", few_pairs.units),
    }
    columns = stand_ins(
        excess,
        [*later_heads],
        few_pairs.units,
        permutations=run.options.permutations,
        seed=run.options.seed,
    )
    variables |= {name: ("layer head", values) for name, values in columns.items()}
    return dataset(TABLES, variables, more=MORE)


def stand_ins(
    excess: Array,
    earlier: Sequence[HeadIndex],
    units: Sequence[int],
    *,
    permutations: int,
    seed: int,
) -> dict[str, Array]:
    """The heads that significantly take over for an earlier head: the extra effect, its p, and the
    earlier head; NaN for other heads. `layer head` each

    excess: `earlier sentence_pair layer head`
    earlier: the earlier heads

    The test is corrected for all later heads. Signs are not flipped: without a backup the mean
    excess is 0, but an excess need not be as likely as its negative. Of two earlier heads, the one
    with the larger excess is named.
    """
    columns = {name: np.full(excess.shape[2:], np.nan) for name in STANDS_IN}
    for of_first, first in zip(excess, earlier, strict=True):
        later = ~np.isnan(of_first).any(0)
        tested = of_first[:, later]
        test = resampling.bootstrap_t(tested, [units], seed=seed, draws=permutations)
        heads = np.argwhere(later).tolist()
        for head, mean, p in zip(heads, tested.mean(0), test.p, strict=True):
            smaller = not mean < columns["stands_in"][*head]  # True for NaN
            if p < LEVEL and mean >= SMALLEST and smaller:
                for name, value in zip(STANDS_IN, (mean, p, *first), strict=True):
                    columns[name][*head] = value
    return columns


def _lost_heads(each: SwappedPair) -> list[HeadIndex]:
    """The JOINT_HEADS heads with the largest lost effect, if it is large, and larger than what is
    left of the effect at the last depth.

    lost = (largest effect at a depth from the head's write on, or the write itself) - effect at the
    last depth
    """
    profile = each.data.net_by_depth.values
    direct = each.data.direct_by_pair.values.sum(0)
    direct_effect = direct / each.data.direct_gap_by_pair.values.sum(0)[:, None]
    last = profile[..., -1]
    from_direct = profile[..., min(each.prepared.readout.direct) :]
    lost = np.maximum(direct_effect, from_direct.max(-1)) - last  # `layer head`
    order = resampling.order(lost.ravel())[:JOINT_HEADS]
    largest = [divmod(int(index), lost.shape[1]) for index in order]
    return [head for head in largest if lost[head] >= max(LARGE, abs(last[head]))]


def _heads_after(first: HeadIndex, has_heads: Sequence[bool], heads: int) -> list[HeadIndex]:
    """The heads in the layers after a head.

    heads: the number of heads in a layer
    """
    return [
        (layer, head)
        for layer in range(first[0] + 1, len(has_heads))
        if has_heads[layer]
        for head in range(heads)
    ]


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
