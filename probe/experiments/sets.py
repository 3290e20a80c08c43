"""How few heads are enough: faithfulness and necessity of sets of heads (`probe.patching.sets`),
compared with random sets of the same layers.

M is the sense coordinate, and the donor is a sentence of the other sense. F is a ratio of sums over
pairs in both directions. The order of heads is taken from other sentences than the curve is
measured on, separately for every holdout. A ranking is informative if its sets do better than
random sets with the same number of heads in every layer.
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
from probe.experiments.columns import Column, Columns, Table, as_elsewhere, from_parts, with_ends
from probe.experiments.design import (
    Pairs,
    Ranked,
    bootstrap,
    interval_over_senses,
    make_pairs,
    spread,
)
from probe.experiments.observe import Observation
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

ORDER = 75
NEEDS = ()
ANSWERS = False
SECONDS = 7.0
CURVE_PAIRS = 12  # pairs of sentences that the sets of a word's curve are run on
CARRIED_SIZES = (1, 2, 4, 8)  # numbers of other words' top heads that are tried on a held-out word
CARRIED_RANDOM = 20  # random sets of each of these sizes, with the same number of heads per layer
ENOUGH = 0.9  # faithfulness at which a set of heads counts as enough


@dataclass(frozen=True, eq=False)
class Curves:
    """Faithfulness and necessity of the top heads of an order, and faithfulness of random sets
    with the same number of heads in every layer.

    order: the heads, best first
    pairs: the number of pairs of sentences
    sizes: the numbers of top heads
    faithfulness, necessity: `size`
    faithfulness_interval, necessity_interval: `size` each, the lower and the upper ends of the 95 %
        bootstrap intervals
    random_sizes: the sizes at which random sets were drawn
    random: `random_size set`, the faithfulness of each random set
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
        """Mean faithfulness over the fraction of heads in the set, by the trapezoid rule; close to
        1 if a single head is enough.
        """
        share = np.asarray(self.sizes) / len(self.order)
        return float(np.trapezoid(self.faithfulness, share))

    @property
    def smallest_size(self) -> int | None:
        """The smallest number of top heads with F >= ENOUGH; None if no set reaches it."""
        return _smallest_enough(self.sizes, self.faithfulness)


def _smallest_enough(sizes: Sequence[int], faithfulness: Array) -> int | None:
    """The smallest size with F >= ENOUGH; None without such a size."""
    for size, value in zip(sizes, faithfulness, strict=True):
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
        new_heads = curves.order[smaller:size]
        added.append(", ".join(f"L{layer}H{head}" for layer, head in new_heads) or None)
    columns: dict[str, Any] = {
        "word": record.word,
        "area": curves.area,
        "smallest": curves.smallest_size,
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
        # F is NaN if a swap of all heads moves nothing.
        defined = values[~np.isnan(values)]
        yield {"word": record.word, "size": size, "faithfulness": defined}


GAP = "fraction of the sense gap"
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
        from_parts(_curves),
    ),
    "random_sets": Table(
        "faithfulness of random sets with the same number of heads per layer",
        as_elsewhere("word", "size", "faithfulness"),
        from_parts(_random_sets),
    ),
}


def measure(run: Run) -> Curves | None:
    """The curves of a word; None if no heads were swapped.

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
    mean = np.mean([each.effects.word.net_by_pair.mean(0) for each in run.swapped_pairs], axis=0)
    order = ordered(mean, depth, run.weights)
    z = run.observation.states.z
    return run_curves(run.weights, run.observation.texts, z, groups, order, depth, seed=seed)


def _ranking(run: Run, each: SwappedPair) -> tuple[Pairs, Array]:
    """The pairs that heads are ordered on, and their net effects, `pair layer head`.

    With folds, they are the pairs that are swapped anyway. If the file defines a split, they are
    pairs of its training part.
    """
    prepared = each.prepared
    if len(prepared.sense.split.holdouts) > 1:
        return each.pairs, each.effects.word.net_by_pair
    learned = make_pairs(
        run.observation.material.sentences,
        run.observation.material.distances,
        prepared.sense.split,
        limit=run.options.pairs,
        seed=run.options.seed,
        learned=True,
    )
    if len(learned) == 0:
        return each.pairs, each.effects.word.net_by_pair
    # With the file's split there is one axis, which was fitted on the sentences of these pairs.
    axes = prepared.sense.axes
    fitted = replace(axes, cell=np.zeros_like(axes.cell))
    swapped = swaps.measure(
        run.weights,
        run.observation.texts,
        run.observation.states,
        fitted,
        learned,
        gap=swaps.gaps(fitted, run.observation.stages.vectors, learned),
        reading=prepared.reading,
    )
    return learned, swapped.effects.word.net_by_pair


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
) -> Curves:
    """The curves over all groups, each group run with the top heads of its order.

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
    # necessity = 1 - F(all other heads), so the ends of its interval change places
    of_first, without = np.split(estimate, 2)
    low_of_first, low_without = np.split(low, 2)
    high_of_first, high_without = np.split(high, 2)

    random_sizes = _random_sizes(sizes, of_first)
    return Curves(
        order=tuple(order),
        pairs=sum(map(len, all_pairs)),
        sizes=sizes,
        faithfulness=of_first,
        faithfulness_interval=(low_of_first, high_of_first),
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
    enough = _smallest_enough(sizes, faithfulness)
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


def moved_toward_donor(
    weights: Weights, texts: Rows, z: Tensor, axes: HeldOutAxes, pairs: Pairs, head_sets: Mask
) -> Array:
    """How far M moves toward the donor if all heads outside a set have the donor's z.

    `-> row set`, read after the layers of z

    z: `row layer head d_head`
    head_sets: `set layer head`

    Each pair has two rows: `b` with donor `a`, then `a` with donor `b`.
    """
    recipients = [row for pair in zip(pairs.b, pairs.a, strict=True) for row in pair]
    donors = [row for pair in zip(pairs.a, pairs.b, strict=True) for row in pair]
    # The rows of a holdout share a direction. All rows are read along every direction, and each
    # row's direction is selected below.
    cells, cell_of_row = np.unique(axes.cell[recipients], return_inverse=True)
    depth = z.shape[1]
    directions = (axes.u[cells, depth] / axes.fitted_gap[cells, depth, None]).to(z.dtype)
    moves = swap_sets(
        weights,
        [texts[row] for row in recipients],
        z[donors],
        torch.from_numpy(head_sets),
        directions,
    )
    along_axis = moves.double().numpy()[np.arange(len(recipients)), :, cell_of_row]
    # b moves up the axis toward a, and a moves down toward b.
    signs = np.tile([1.0, -1.0], len(pairs))[:, None]
    return np.asarray(along_axis * signs)


# --- heads of other words -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CarriedSets:
    """How much of a word's sense is carried by sets of heads that were chosen on other words.

    The numbers are M(S) - M(none), with the heads outside S taking the donor's z, as the mean over
    pairs and both directions, in units of the residual stream at the read-out layer.

    word: the word, on which `left_out` was not chosen
    sizes: the numbers of top heads
    whole: of all heads; the faithfulness of a set is its number divided by this
    left_out: `size`, of the top heads of the other words' order
    word_order: `size`, of the top heads of the word's order, which is taken from other pairs than
        it is measured on
    random: `size draw`, of random sets with the same number of heads in every layer as `left_out`
    """

    word: str
    sizes: tuple[int, ...]
    whole: float
    left_out: Array
    word_order: Array
    random: Array


def carry_over(
    weights: Weights,
    observation: Observation,
    pairs: Sequence[Pairs],
    order: Sequence[HeadIndex],
    *,
    depth: int,
    seed: int,
) -> CarriedSets:
    """How much of a word's sense the top heads of the other words' order carry, compared with the
    top heads of the word's order and with random sets of the same layers.

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
    return CarriedSets(
        word=observation.material.word,
        sizes=sizes,
        whole=float(lost[0]),
        left_out=left_out,
        word_order=of_own_heads,
        random=random.reshape(len(sizes), CARRIED_RANDOM),
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
