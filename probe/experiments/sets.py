"""How few heads are enough: faithfulness and necessity of sets of heads (`probe.patching.sets`),
against random sets of the same layers.

M is the sense coordinate, the donor a sentence of the other sense, sums run over pairs in both
directions (ratio of sums). The order of heads comes from other sentences than those the curve is
measured on: every holdout has its own. A ranking is worth something when its sets do better than
sets drawn at random with as many heads in every layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.experiments import swaps
from probe.experiments.columns import Column, Columns, Table, as_elsewhere, with_ends
from probe.experiments.design import Pairs, Ranked, bootstrap, make_pairs, spread
from probe.experiments.observe import Observation
from probe.experiments.plan import DIRECTIONS, DONORS_PER_PAIR, Size, Work
from probe.experiments.record import WordRecord
from probe.experiments.run import Run, SwappedPair
from probe.experiments.swaps import run_swaps
from probe.model.weights import Weights
from probe.patching.heads import swap_heads, swap_sets
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

CURVE_PAIRS = 12  # of sentences, that the sets of a word's curve are run on
CARRIED_SIZES = (1, 2, 4, 8)  # first heads of the other words that are tried on a word left out
CARRIED_RANDOM = 20  # sets of each of these sizes, with as many heads in every layer
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


RECORDS = (Curves,)


def _curves(record: WordRecord) -> Iterator[Columns]:
    curves: Curves | None = record.measured.get("sets")
    if curves is None:
        return
    added = []
    for smaller, size in pairwise((0, *curves.sizes)):
        joined = curves.order[smaller:size]
        added.append(", ".join(f"L{layer}H{head}" for layer, head in joined) or None)
    columns: dict[str, Any] = {
        "word": record.word,
        "area": curves.area,
        "smallest": curves.smallest,
        "pairs": curves.pairs,
        "size": curves.sizes,
        "added": added,
    }
    for name in ("faithfulness", "necessity"):
        low, high = getattr(curves, f"{name}_interval")
        columns |= {name: getattr(curves, name), f"{name}_low": low, f"{name}_high": high}
    yield columns


def _random_sets(record: WordRecord) -> Iterator[Columns]:
    curves: Curves | None = record.measured.get("sets")
    if curves is None:
        return
    for size, values in zip(curves.random_sizes, curves.random, strict=True):
        known = values[~np.isnan(values)]
        yield {"word": record.word, "size": size, "faithfulness": known}


GAP = "fraction of the sense gap"
TABLES = {
    "curves": Table(
        "sets of leading heads: what they restore together, and what is lost without them",
        {
            "word": None,
            "area": Column("mean faithfulness over the share of heads kept; 1: one is enough", GAP),
            "smallest": Column("the fewest leading heads with F of at least 0.9", "count"),
            **as_elsewhere("pairs", "size"),
            "added": Column("the heads that joined the set since the size before"),
            **as_elsewhere("faithfulness", "faithfulness_low", "faithfulness_high"),
            **with_ends(
                "necessity",
                Column("1 - F of all other heads (1: nothing is left without this set)", GAP),
            ),
        },
        _curves,
    ),
    "random_sets": Table(
        "the same for random sets with as many heads per layer",
        as_elsewhere("word", "size", "faithfulness"),
        _random_sets,
    ),
}


def measure(run: Run) -> Curves | None:
    """The curves of a word, on pairs whose order of heads comes from the pairs that their holdout
    learns from; None where nothing was swapped."""
    if not run.swapped:
        return None
    seed = run.options.seed
    pairs_each = max(2, CURVE_PAIRS // len(run.swapped))
    rng = np.random.default_rng(seed)
    depth = run.seen.depth
    groups: list[Ranked] = []
    for each in run.swapped:
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
            order = ordered(net[learned or slice(None)].mean(0), depth, run.weights)
            groups.append(Ranked(sense.axes, each.pairs.take(tested), order))
    mean = np.mean([each.effects.word.net.mean(0) for each in run.swapped], axis=0)
    order = ordered(mean, depth, run.weights)
    z = run.seen.states.z
    return run_curves(run.weights, run.seen.texts, z, groups, order, depth, seed=seed)


def work(size: Size) -> Work:
    """The first heads of the order and all but these, and the random sets, both ways."""
    sets = 2 * len(curve_sizes(size.heads_in_all)) + SIZES * RANDOM_SETS
    return Work(swaps=DIRECTIONS * CURVE_PAIRS * sets)


def _ranking(run: Run, each: SwappedPair) -> tuple[Pairs, Array]:
    """The pairs that heads are ordered on, and their net effects `pair layer head`.

    Those that are swapped anyway where there are folds; where the file gives its own split, pairs
    of the part that is fitted on.
    """
    prepared = each.prepared
    if len(prepared.sense.split.holdouts) > 1:
        return each.pairs, each.effects.word.net
    learned = make_pairs(
        run.seen.material.sentences,
        run.seen.material.distances,
        prepared.sense.split,
        most=run.options.pairs,
        seed=run.options.seed,
        learned=True,
    )
    if len(learned) == 0:
        return each.pairs, each.effects.word.net
    # Read along the axis that they were fitted on.
    axes = prepared.sense.axes
    fitted = replace(axes, cell=np.zeros_like(axes.cell))
    measured, _ = swaps.measure(
        run.weights, run.seen.texts, run.seen.states, fitted, learned, prepared.reading
    )
    return learned, measured.word.net


def ordered(net: Array, depth: int, weights: Weights) -> tuple[HeadIndex, ...]:
    """The heads of the layers before `depth`, the largest effect first. `layer head`"""
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
    shape = (z.shape[1], z.shape[2])
    total = np.zeros((len(sizes), 1 + RANDOM_SETS))
    for group in groups:
        # The same seed for every group: where the leading heads are in the same layers, a number
        # means the same set, so that the best number is a set and not a mixture of sets.
        rng = np.random.default_rng(seed)
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


# --- heads of other words -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CarriedSets:
    """How far sets of heads carry a word that they were not chosen on, in units of the residual
    stream at the read-out layer, mean over pairs and both ways: M(S) - M(none), heads outside S
    taking the donor's z.

    whole: of all heads; the faithfulness of a set is its number over this.
    left_out: of the first `sizes` heads of the order that the other words gave. `size`
    own: of the word's own order, from other pairs than those it is measured on. `size`
    random: sets with as many heads in every layer as those of the other words. `size draw`
    """

    word: str
    sizes: tuple[int, ...]
    whole: float
    left_out: Array
    own: Array
    random: Array


def carried_work(size: Size) -> Work:
    """Every sentence once, every head for the word's own order, and all sets that are tried, both
    ways."""
    sets = 1 + len(CARRIED_SIZES) * (2 + CARRIED_RANDOM)
    per_pair = DONORS_PER_PAIR * size.heads_in_all + DIRECTIONS * sets
    return Work(forwards=size.sentences, swaps=per_pair * sum(size.pairs))


def carry_over(
    weights: Weights,
    seen: Observation,
    pairs: Sequence[Pairs],
    order: Sequence[HeadIndex],
    *,
    depth: int,
    seed: int,
) -> CarriedSets:
    """What the first heads of an order that other words gave do for a word, next to its own order
    and random sets of the same layers.

    pairs: those that are swapped, for each two senses of `seen`.
    order: of heads below `depth`, where the word is read.
    """
    shape = (depth, weights.shape[1])
    sizes = tuple(size for size in CARRIED_SIZES if size <= len(order))
    leading = np.array([mask_of(order[:size], shape) for size in sizes])
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([random_sets(mask, CARRIED_RANDOM, rng) for mask in leading])
    z = seen.states.z[:, :depth]
    moved = []
    for sense, of_sense in zip(seen.pairs, pairs, strict=True):
        in_units = sense.axes.in_units()
        for some, own_order in _own_orders(weights, seen, in_units, of_sense, depth):
            own = np.array([mask_of(own_order[:size], shape) for size in sizes])
            none = np.zeros((1, *shape), dtype=bool)
            head_sets = np.concatenate([none, leading, own, drawn])
            moved.append(moved_toward_donor(weights, seen.texts, z, in_units, some, head_sets))
    by_set = np.concatenate(moved).mean(0)  # what is lost where the heads outside the set change
    kept = by_set[0] - by_set[1:]
    left_out, own_kept, random = np.split(kept, [len(sizes), 2 * len(sizes)])
    return CarriedSets(
        word=seen.material.word,
        sizes=sizes,
        whole=float(by_set[0]),
        left_out=left_out,
        own=own_kept,
        random=random.reshape(len(sizes), CARRIED_RANDOM),
    )


def _own_orders(
    weights: Weights, seen: Observation, in_units: HeldOutAxes, pairs: Pairs, depth: int
) -> Iterator[tuple[Pairs, list[HeadIndex]]]:
    """The pairs of each holdout with the order of heads below `depth` that the pairs of the others
    give; that of all pairs where there is one holdout."""
    upto = replace(in_units, u=in_units.u[:, : depth + 1], gap=in_units.gap[:, : depth + 1])
    swap = partial(swap_heads, weights)
    net = run_swaps(swap, seen.texts, seen.states.z[:, :depth], upto, pairs).net[..., -1]
    cells = in_units.cell[list(pairs.a)]
    for cell in sorted(set(cells.tolist())):
        others = cells != cell
        effects = net[others if others.any() else slice(None)].mean(0)
        layers, heads = np.unravel_index(resampling.order(effects.ravel()), effects.shape)
        mine = np.flatnonzero(~others).tolist()
        yield pairs.take(mine), list(zip(layers.tolist(), heads.tolist(), strict=True))
