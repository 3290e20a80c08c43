"""From swaps to effects: what a head's swap amounts to in fractions of the sense gap.

    R_dn = Σ [M(B with A's z) - M(B)] / Σ G      denoising, B made to look like A
    R_ns = Σ [M(A) - M(A with B's z)] / Σ G      noising
    swap = (R_dn + R_ns) / 2,  G = M(A) - M(B)   ratios of sums, never means of ratios

M is the sense coordinate along the axes that were fitted without the sentence's cue word and frame.
It is measured in units of the gap between the senses' centroids in those fitting sentences, so G is
near 1. Stages are the depths of the residual stream, counted from 0, and behind them those of what
the model says next. Swaps are read from stage 1 on, because nothing is written at depth 0.
`probe.experiments.design` decides which sentence gives to which, and where each head is read.

Sources: Heimersheim & Nanda 2024; Zhang & Nanda 2024.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.experiments.design import Pairs, Readings
from probe.model import forward
from probe.model.decomposition import head_contributions
from probe.model.records import TargetStates
from probe.model.weights import Weights
from probe.patching.heads import rerouted, swap_heads
from probe.patching.hooked import ends_as_weights_say
from probe.patching.inputs import Rows
from probe.patching.mlps import swap_mixers
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array

RANK_ENDS = (0.025, 0.975)  # quantiles: the ends of a 95 % interval


@dataclass(frozen=True, eq=False)
class Effects:
    """What swapping each head does, pair by pair, in units of M.

    gap: G of each pair where the heads of a layer are read. `pair layer`
    denoise, noise: the numerators of R_dn and R_ns. `pair layer head`
    same_sense: the same with a same-sense donor, both members averaged. `pair layer head`
    """

    gap: Array
    denoise: Array
    noise: Array
    same_sense: Array

    def ratio(self, name: str) -> Array:
        """Σ name / Σ G. `-> layer head`"""
        return np.asarray(getattr(self, name).sum(0) / self.gap.sum(0)[:, None])

    @property
    def swap(self) -> Array:
        """The swap effect, (R_dn + R_ns) / 2. `-> layer head`"""
        return (self.ratio("denoise") + self.ratio("noise")) / 2

    @property
    def net(self) -> Array:
        """What each pair shows beyond its same-sense donors, of the gap of all pairs. `-> pair
        layer head`"""
        return ((self.denoise + self.noise) / 2 - self.same_sense) / self.gap.mean(0)[:, None]

    def draws(self, weights: Array) -> dict[str, Array]:
        """The swap effect, `swap`, and what it is beyond same-sense donors, `net`, in every
        bootstrap draw. `draws layer head` each

        weights: how often each draw takes each pair, `draws pair`
        """
        both_ways = (self.denoise + self.noise) / 2
        swap = resampling.bootstrap_ratio(both_ways, self.gap, weights)
        same_sense = resampling.bootstrap_ratio(self.same_sense, self.gap, weights)
        return {"swap": swap, "net": swap - same_sense}


@dataclass(frozen=True, eq=False)
class PairEffects:
    """All swaps of one pair of senses.

    word: the effects at the word, read where each layer's heads are read
    next_token: the effects in what the model says next, or None
    continuation: the effects in the logits of known continuations, or None
    direct: numerators of what each head itself writes. `pair layer head`
    direct_gap: G of each pair where that is read. `pair layer`
    profile: the net effect of every head at every depth from 1 on, 0 before its own layer, NaN
        where the pairs have no gap. `layer head depth`
    has_heads: False for a layer with something else in the place of attention. `layer`
    rerouted: the share of routed MLPs behind a head whose choice of experts for the word changes
        with its swap, NaN where none is behind it. `layer head`; None in a model without routing
    mixers: the effects of what stands in the place of attention in a hybrid, None elsewhere.
        `pair mixer 1`
    """

    word: Effects
    next_token: Effects | None
    continuation: Effects | None
    direct: Array
    direct_gap: Array
    profile: Array
    has_heads: NDArray[np.bool_]
    rerouted: Array | None = None
    mixers: Effects | None = None

    @property
    def written(self) -> Array:
        """D: what each head itself writes, as a fraction of the gap where it is read. `-> layer
        head`"""
        return np.asarray(self.direct.sum(0) / self.direct_gap.sum(0)[:, None])

    def draws(self, weights: Array) -> dict[str, Array]:
        """`Effects.draws`, with `direct`."""
        direct = resampling.bootstrap_ratio(self.direct, self.direct_gap, weights)
        return self.word.draws(weights) | {"direct": direct}


def measure(
    weights: Weights,
    texts: Rows,
    states: TargetStates,
    axes: HeldOutAxes,
    pairs: Pairs,
    reading: Readings,
) -> tuple[PairEffects, Array]:
    """The effects of swapping every head, and how far each head moves the word.

    texts: row by row as in `states`.
    Returns the effects, and beside them what each head moves beyond same-sense donors at every
    depth, mean over the pairs, in units of the residual stream. `layer head depth`
    """
    swap = partial(swap_heads, weights)
    raw = run_swaps(swap, texts, states.z, axes, pairs)
    moved = raw.in_gaps(axes, pairs)
    stages_behind = axes.u.shape[1] - states.resid.shape[1]
    gap = gaps(axes, stages_of(weights, states, stages_behind), pairs)

    def at_one(stage: int | None) -> Effects | None:
        return None if stage is None else _effects_at(moved, gap, [stage] * len(reading.at))

    depths = len(weights.blocks)
    net = moved.net[..., :depths].sum(0)
    whole = gap[:, 1 : 1 + depths].sum(0)
    rows = [*pairs.a, *pairs.b]
    directions = axes.directions(rows)[:, list(reading.direct)]
    written = head_contributions(weights, states, rows, directions, reading.direct)
    effects = PairEffects(
        word=_effects_at(moved, gap, reading.at),
        next_token=at_one(reading.next_token),
        continuation=at_one(reading.continuation),
        direct=(written[: len(pairs)] - written[len(pairs) :]).numpy(),
        direct_gap=gap[:, list(reading.direct)],
        profile=np.divide(net, whole, out=np.full_like(net, np.nan), where=whole != 0),
        has_heads=weights.has_heads.cpu().numpy(),
        rerouted=_share_rerouted(weights, texts, states.z, pairs),
        mixers=_of_mixers(weights, texts, states, axes, pairs, reading=reading, gap=gap),
    )
    # No head has written at depth 0.
    return effects, np.pad(raw.net[..., :depths].mean(0), ((0, 0), (0, 0), (1, 0)))


def _of_mixers(
    weights: Weights,
    texts: Rows,
    states: TargetStates,
    axes: HeldOutAxes,
    pairs: Pairs,
    *,
    reading: Readings,
    gap: Array,
) -> Effects | None:
    """The effects of swapping what stands in the place of attention, read where the heads of its
    layer would be. `pair mixer 1`

    gap: `pair stage`
    """
    if states.attn_out is None or weights.hooked is not None:
        return None
    swap = partial(swap_mixers, weights)
    moved = run_swaps(swap, texts, states.attn_out, axes, pairs).in_gaps(axes, pairs)
    of_one_head = Moved(*(part[:, :, None] for part in moved))  # pair mixer 1 stage each
    has_heads = weights.has_heads.tolist()
    stages = [stage for stage, of_heads in zip(reading.at, has_heads, strict=True) if not of_heads]
    return _effects_at(of_one_head, gap, stages)


def _effects_at(moved: "Moved", gap: Array, stages: Sequence[int]) -> Effects:
    """The effects where the heads of each layer are read at a stage of their own.

    moved: `pair layer head stage` each
    gap: `pair stage`
    stages: one of each layer
    """
    # Swaps are read from stage 1 on, so that is the first of their axis.
    chosen = (np.asarray(stages) - 1)[None, :, None, None]
    numerators = (moved.denoise, moved.noise, moved.same_sense)
    parts = [np.take_along_axis(part, chosen, -1)[..., 0] for part in numerators]
    return Effects(gap[:, list(stages)], *parts)


def _share_rerouted(weights: Weights, texts: Rows, donors: Tensor, pairs: Pairs) -> Array | None:
    """The share of routed MLPs behind each head that choose other experts at the word when the head
    is swapped, over all pairs and both ways. `-> layer head`"""
    if weights.config.family.routed is None or weights.hooked is not None:
        return None
    recipients = [*pairs.b, *pairs.a]
    givers = [*pairs.a, *pairs.b]
    changed = rerouted(weights, [texts[row] for row in recipients], donors[givers])
    by_mlp = changed.double().mean(0)  # layer head mlp
    # A head's own MLP reads it, but where the two stand side by side.
    first = int(weights.config.family.parallel)
    behind = [heads[:, layer + first :].mean(-1) for layer, heads in enumerate(by_mlp)]
    return np.asarray(torch.stack(behind))


class Moved(NamedTuple):
    """How far swaps move the recipient along its own axis, at stage 1 and those after it. `pair
    part... stage` each.

    into_b: b with what is a's. into_a: a with what is b's.
    same_a, same_b: each with what is a same-sense donor's.
    """

    into_b: Array
    into_a: Array
    same_a: Array
    same_b: Array

    def in_gaps(self, axes: HeldOutAxes, pairs: Pairs) -> "Moved":
        """The same in fractions of the gap that each recipient's axis was fitted with."""
        parts = []
        for moved, rows in zip(self, (pairs.b, pairs.a, pairs.a, pairs.b), strict=True):
            gap = axes.gap[axes.cell[list(rows)], 1 : 1 + moved.shape[-1]].numpy()
            missing_axes = [1] * (moved.ndim - 2)
            parts.append(moved / gap.reshape(len(gap), *missing_axes, -1))
        return Moved(*parts)

    @property
    def denoise(self) -> Array:
        return self.into_b

    @property
    def noise(self) -> Array:
        return -self.into_a

    @property
    def same_sense(self) -> Array:
        """Both members averaged, towards the other sense."""
        return (self.same_b - self.same_a) / 2

    @property
    def net(self) -> Array:
        """Towards the donor, both ways averaged, minus what a same-sense donor does."""
        return (self.denoise + self.noise) / 2 - self.same_sense


def run_swaps(
    swap: Callable[[Rows, Tensor, Tensor], Tensor],
    texts: Rows,
    donors: Tensor,
    axes: HeldOutAxes,
    pairs: Pairs,
) -> Moved:
    """Swap in every pair, both ways and with same-sense donors, in units of the residual stream.

    swap(texts, donors, directions): runs the swaps of some rows: `swap_heads`, `swap_mixers` or
        `swap_mlps` of a model.
    donors: by row, what is given.
    A swap whose donor is the recipient changes nothing and is skipped. If there are only such
    swaps, one is run to learn the shape.
    """
    a = list(pairs.a)
    b = list(pairs.b)
    recipients = [*b, *a, *a, *b]
    givers = [*a, *b, *pairs.same_a, *pairs.same_b]
    swaps = [*zip(recipients, givers, strict=True)]
    # A swap that is in several pairs is run once.
    different = [*dict.fromkeys(pair for pair in swaps if pair[0] != pair[1])] or swaps[:1]
    number = {pair: index for index, pair in enumerate(different)}
    rows = [recipient for recipient, _ in number]
    given = donors[[giver for _, giver in number]]
    directions = axes.in_units().directions(rows)[:, 1:].to(given.dtype)
    moved = swap([texts[row] for row in rows], given, directions).double().numpy()
    in_order = np.zeros((len(swaps), *moved.shape[1:]))
    for index, pair in enumerate(swaps):
        if pair in number:
            in_order[index] = moved[number[pair]]
    return Moved(*np.split(in_order, 4))


def stages_of(weights: Weights, states: TargetStates, behind: int) -> Tensor:
    """The residual stream at every depth, then that behind the final norm `behind` times. `-> row
    stage d_model`"""
    if not behind:
        return states.resid
    final = forward.unembedding_input(weights, states.resid[:, -1].to(weights.device)).cpu()
    return torch.cat([states.resid, final[:, None].expand(-1, behind, -1)], dim=1)


def predicts(weights: Weights) -> bool:
    """Whether the model says what comes next: it reads left to right and has an unembedding, and no
    hook stands between its last stream and that."""
    if not (weights.causal and weights.config.has_head):
        return False
    return weights.hooked is None or ends_as_weights_say(weights.hooked)


def gaps(axes: HeldOutAxes, stages: Tensor, pairs: Pairs) -> Array:
    """G = M(A) - M(B) of every pair at every stage. `row stage d_model -> pair stage`"""
    a = axes.coordinates(stages[list(pairs.a)], pairs.a)
    b = axes.coordinates(stages[list(pairs.b)], pairs.b)
    return np.asarray(a - b)


def rank_intervals(net: Array) -> tuple[Array, Array]:
    """95 % interval of each head's rank (1 = largest) over draws. `draws layer head -> (layer
    head), (layer head)`"""
    ranks = resampling.ranks(net.reshape(len(net), -1))
    low, high = np.quantile(ranks, RANK_ENDS, axis=0, method="closest_observation")
    return low.reshape(net.shape[1:]), high.reshape(net.shape[1:])
