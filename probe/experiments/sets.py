"""How few heads are enough?

Faithfulness and necessity of sets of heads (`probe.patching.sets`), compared with random sets of
the same layers.

M is the sense coordinate, and the donor is a sentence of the other sense. F is a ratio of sums over
pairs in both directions. The order of heads is taken from other sentences than the curve is
measured on, separately for every holdout. A ranking is informative if its sets do better than
random sets with the same number of heads in every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import Tensor

from probe.experiments import swaps
from probe.experiments.columns import (
    Column,
    Table,
    as_elsewhere,
    dataset,
    or_missing,
    rows,
    with_ends,
)
from probe.experiments.design import Pairs, bootstrap, interval_over_senses, make_pairs, spread
from probe.experiments.heads import swap_every_head
from probe.experiments.record import WordRecord
from probe.experiments.run import SwappedPair, WordRun
from probe.experiments.swaps import moved_toward_donor, net_by_pair
from probe.model.weights import Weights
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

if TYPE_CHECKING:
    import xarray as xr

ORDER = 75
NEEDS = ()
ANSWERS = False
HEADING = "travels"
TITLE = "How few heads are enough"
SECONDS = 5.0
CURVE_PAIRS = 12  # pairs of sentences that the sets of a word's curve are run on
ENOUGH = 0.9  # faithfulness at which a set of heads counts as enough


@dataclass(frozen=True, eq=False)
class Ranked:
    """Pairs of two senses, with an order of the heads that comes from other sentences.

    axes: the axes along which the pairs are read
    pairs: the pairs
    order: the heads, best first
    """

    axes: HeldOutAxes
    pairs: Pairs
    order: tuple[HeadIndex, ...]


def drawn_sets(record: WordRecord, data: "xr.Dataset") -> pd.DataFrame:
    """A row for each random set; F is NaN, and has no row, if a swap of all heads moves nothing."""
    return rows(record, data).dropna(subset="faithfulness")


GAP = "fraction of the sense gap"
# What the columns mean that only the tables of this experiment have.
COLUMNS = {
    "size": Column("number of heads in the set", "count"),
    **with_ends(
        "faithfulness",
        Column(
            "F, the share of the gap that the set keeps if all other heads have the donor's "
            "value. 1 is all of it.",
            "fraction of the sense gap",
        ),
    ),
}
TABLES = {
    "curves": Table(
        "sets of top heads: how much they restore together, and how much is lost without them",
        {
            "word": None,
            "area": Column(
                "mean faithfulness over the fraction of heads in the set; 1: one head is enough",
                GAP,
            ),
            "smallest": Column("smallest number of top heads with F of at least 0.9", "count"),
            **as_elsewhere("pairs", "size"),
            "added": Column("the heads that were added since the previous size"),
            **as_elsewhere("faithfulness", "faithfulness_low", "faithfulness_high"),
            **with_ends(
                "necessity",
                Column("1 - F of all other heads (1: the gap is lost without this set)", GAP),
            ),
        },
        rows,
        missing=("smallest",),
    ),
    "random_sets": Table(
        "faithfulness of random sets with the same number of heads per layer",
        as_elsewhere("word", "size", "faithfulness"),
        drawn_sets,
    ),
}


def measure(run: WordRun) -> "dict[str, xr.Dataset] | None":
    """The curves of a word, and the random sets, by table; None if no heads were swapped.

    The order of heads for a pair is taken from the pairs that its holdout learns from.
    """
    if not run.swapped_pairs:
        return None
    seed = run.options.seed
    pairs_each = max(2, CURVE_PAIRS // len(run.swapped_pairs))
    rng = np.random.default_rng(seed)
    depth = run.observation.depth
    groups: list[Ranked] = []
    for each in run.swapped_pairs:
        ranking, net = _ranking(run, each)
        measured_on = spread(each.pairs.units, pairs_each, rng)
        sense = each.prepared.sense
        for number, holdout in enumerate(sense.split.holdouts):
            tested = [i for i in measured_on if sense.axes.cell[each.pairs.a[i]] == number]
            if not tested:
                continue
            train = {sense.split.rows[position] for position in holdout.train}
            learned = [
                index
                for index, (a, b) in enumerate(zip(ranking.a, ranking.b, strict=True))
                if a in train and b in train
            ]
            # Without a pair in the training part, the order is that of all pairs.
            order = ordered(net[learned or slice(None)].mean(0), depth, run.weights)
            groups.append(Ranked(sense.axes, each.pairs.take(tested), order))
    mean = np.mean([each.net.mean(0) for each in run.swapped_pairs], axis=0)
    order = ordered(mean, depth, run.weights)
    z = run.observation.states.z
    return run_curves(run.weights, run.observation.texts, z, groups, order, depth, seed=seed)


def _ranking(run: WordRun, each: SwappedPair) -> tuple[Pairs, Array]:
    """The pairs that heads are ordered on, and their net effects, `pair layer head`.

    With folds, they are the pairs that are swapped anyway. If the file defines a split, they are
    pairs of its training part.
    """
    prepared = each.prepared
    if len(prepared.sense.split.holdouts) > 1:
        return each.pairs, each.net
    learned = make_pairs(
        run.observation.material.sentences,
        run.observation.material.distances,
        prepared.sense.split,
        limit=run.options.pairs,
        seed=run.options.seed,
        learned=True,
    )
    if len(learned) == 0:
        return each.pairs, each.net
    # With the file's split there is one axis, which was fitted on the sentences of these pairs.
    axes = prepared.sense.axes
    fitted = replace(axes, cell=np.zeros_like(axes.cell))
    swapped = swap_every_head(
        run.weights,
        run.observation.texts,
        run.observation.states,
        fitted,
        learned,
        gap=swaps.gaps(fitted, run.observation.stages.vectors, learned),
        readout=prepared.readout,
    )
    return learned, net_by_pair(swapped["word"])


def ordered(net: Array, depth: int, weights: Weights) -> tuple[HeadIndex, ...]:
    """The heads of the layers before `depth`, the largest effect first.

    net: `layer head`, the net effects
    """
    layers, heads = np.unravel_index(resampling.order(net[:depth].ravel()), net[:depth].shape)
    has_heads = weights.has_heads.tolist()
    return tuple(
        (layer, head)
        for layer, head in zip(layers.tolist(), heads.tolist(), strict=True)
        if has_heads[layer]
    )


def run_curves(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    groups: Sequence[Ranked],
    order: Sequence[HeadIndex],
    depth: int,
    *,
    seed: int,
) -> "dict[str, xr.Dataset]":
    """The curves over all groups, each group run with the top heads of its order, and random sets
    with the same number of heads in every layer. `size`, and `size random_set`

    texts: the texts that z was read from, row by row
    z: `row layer head d_head`
    groups: pairs, each with the order of heads that is used for them
    order: the order over all sentences, reported in the result but used for no pair
    depth: the read-out layer; the heads of every order are in the layers before it
    seed: of the random sets
    """
    z = z[:, :depth]
    shape = (depth, z.shape[2])
    sizes = curve_sizes(len(order))
    by_group = []
    for group in groups:
        top_heads = np.array([mask_of(group.order[:size], shape) for size in sizes])
        masks = np.concatenate([top_heads, ~top_heads])
        by_group.append(_moved_from_all(weights, texts, z, group, masks))
    moves = np.concatenate(by_group)  # row 1 + set

    all_pairs = [group.pairs for group in groups]
    weight = bootstrap(all_pairs).repeat(2, axis=1)  # both directions of a pair are drawn together
    word_units: dict[tuple[str, str], list[int]] = {}
    for group in groups:
        word_units.setdefault(group.axes.senses, []).extend(group.pairs.word_units)
    by_senses = [*word_units.values()]
    estimate = faithfulness(moves.sum(0))
    low, high = interval_over_senses(faithfulness(weight @ moves), estimate, by_senses)
    of_first, without = np.split(estimate, 2)
    low_of_first, low_without = np.split(low, 2)
    high_of_first, high_without = np.split(high, 2)

    random_sizes = _random_sizes(sizes, of_first)
    random = _random_curves(weights, texts, z, groups, random_sizes, seed=seed)
    by_size = {
        "added": [_names(order[smaller:size]) for smaller, size in pairwise((0, *sizes))],
        "faithfulness": of_first,
        "faithfulness_low": low_of_first,
        "faithfulness_high": high_of_first,
        # necessity = 1 - F(all other heads), so the ends of its interval change places
        "necessity": 1 - without,
        "necessity_low": 1 - high_without,
        "necessity_high": 1 - low_without,
    }
    numbers = {
        "area": area(sizes, of_first),
        "smallest": or_missing([smallest_enough(sizes, of_first)])[0],
        "pairs": sum(map(len, all_pairs)),
    }
    return {
        "curves": dataset(
            TABLES,
            {name: ("size", values) for name, values in by_size.items()}
            | {name: ("", number) for name, number in numbers.items()},
            coordinates={"size": ("size", sizes)},
        ),
        "random_sets": dataset(
            TABLES,
            {"faithfulness": ("size random_set", random)},
            coordinates={"size": ("size", random_sizes)},
        ),
    }


def _names(heads: Sequence[HeadIndex]) -> str:
    """The names of heads, e.g. L0H1, L2H3."""
    return ", ".join(f"L{layer}H{head}" for layer, head in heads)


def area(sizes: Sequence[int], faithfulness: Array) -> float:
    """Mean faithfulness over the fraction of heads in the set, by the trapezoid rule; close to 1 if
    a single head is enough.

    sizes: up to all heads
    """
    return float(np.trapezoid(faithfulness, np.asarray(sizes) / sizes[-1]))


def smallest_enough(sizes: Sequence[int], faithfulness: Array) -> int | None:
    """The smallest number of top heads with F >= ENOUGH; None if no set reaches it."""
    for size, value in zip(sizes, faithfulness, strict=True):
        if value >= ENOUGH:
            return size
    return None


def _random_curves(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    groups: Sequence[Ranked],
    sizes: Sequence[int],
    *,
    seed: int,
) -> Array:
    """Faithfulness of RANDOM_SETS random sets of each size, with the same number of heads in every
    layer as the top heads of each group.

    `-> size set`
    """
    shape = (z.shape[1], z.shape[2])
    # Sums over the rows of all groups: column 0 for the empty set, then one for each random set.
    total = np.zeros((len(sizes), 1 + RANDOM_SETS))
    for group in groups:
        # One seed for each size: groups with the same top heads have the same random sets, whatever
        # their order is. A column is then a set, and the best column is not a mixture of sets.
        masks = [
            random_sets(
                mask_of(group.order[:size], shape), RANDOM_SETS, np.random.default_rng((seed, size))
            )
            for size in sizes
        ]
        moves = _moved_from_all(weights, texts, z, group, np.concatenate(masks)).sum(0)
        total[:, 0] += moves[0]
        total[:, 1:] += moves[1:].reshape(-1, RANDOM_SETS)
    return faithfulness(total)


def _random_sizes(sizes: Sequence[int], faithfulness: Array) -> tuple[int, ...]:
    """The sizes at which random sets are drawn: from one head to all but one, and the smallest size
    that is enough, at which the top heads must do better than random heads.
    """
    all_heads = sizes[-1]
    random_sizes = {*np.geomspace(1, all_heads - 1, SIZES).round().astype(int).tolist()}
    enough = smallest_enough(sizes, faithfulness)
    if enough is not None and enough < all_heads:
        random_sizes.add(enough)
    return tuple(sorted(random_sizes))


def _moved_from_all(weights: Weights, texts: Rows, z: Tensor, group: Ranked, masks: Mask) -> Array:
    """M(S) - M(all), for the empty set and then for each set, signed so that the donor's side is
    negative.

    `-> row 1 + set`

    Each pair has two rows, one for each direction.
    """
    empty_set = np.zeros((1, *masks.shape[1:]), dtype=bool)
    head_sets = np.concatenate([empty_set, masks])
    return -moved_toward_donor(weights, texts, z, group.axes, group.pairs, head_sets)
