"""From swaps to effects: how far a head's swap moves the word, as a fraction of the sense gap.

    R_dn = Σ [M(B with A's z) - M(B)] / Σ G      denoising: B becomes more like A
    R_ns = Σ [M(A) - M(A with B's z)] / Σ G      noising: A becomes less like itself
    swap = (R_dn + R_ns) / 2,  G = M(A) - M(B)   ratios of sums, never means of ratios

M is the sense coordinate along the axes that were fitted without the sentence's cue word and frame.
Its unit is the fitted gap, the distance between the senses' means in the fitting sentences, so G is
close to 1. Stages are the depths of the residual stream, counted from 0; after them come the stages
of the next token. No head has written at stage 0, so the effects there are 0.

`Shifts` are raw, or divided by the fitted gap. `Effects` are the same at one stage per layer, with
the G of each pair; their ratios divide by the sum of G.

`probe.experiments.design` decides which sentence is the donor of which, and where each head is
read.

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
from probe.model.decomposition import head_contributions
from probe.model.records import TargetStates
from probe.model.weights import Weights
from probe.patching.heads import swap_heads, swap_sets
from probe.patching.inputs import Rows
from probe.patching.mlps import swap_mixers
from probe.patching.sets import Mask
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array


class Shifts(NamedTuple):
    """How far swaps move the recipient along its axis. `pair part... stage` each

    A part is what one swap replaces: a head by layer and head, an MLP by layer, or a set.

    b_with_a: the shift of B with the output of A
    a_with_b: the shift of A with the output of B
    same_a, same_b: the shift of each with the output of its same-sense donor
    """

    b_with_a: Array
    a_with_b: Array
    same_a: Array
    same_b: Array

    def in_gaps(self, axes: HeldOutAxes, pairs: Pairs) -> "Shifts":
        """The same as fractions of the gap with which each recipient's axis was fitted."""
        parts = []
        for shift, rows in zip(self, (pairs.b, pairs.a, pairs.a, pairs.b), strict=True):
            gap = axes.fitted_gap[axes.cell[list(rows)]].numpy()  # pair stage
            missing_axes = [1] * (shift.ndim - 2)
            parts.append(shift / gap.reshape(len(gap), *missing_axes, -1))
        return Shifts(*parts)

    @property
    def denoise(self) -> Array:
        """B with the output of A, toward A."""
        return self.b_with_a

    @property
    def noise(self) -> Array:
        """A with the output of B, toward B."""
        return -self.a_with_b

    @property
    def same_sense(self) -> Array:
        """The effect of same-sense donors toward the other sense, averaged over both members."""
        return (self.same_b - self.same_a) / 2

    @property
    def net(self) -> Array:
        """The effect toward the donor, mean of both directions, minus the same-sense effect."""
        return (self.denoise + self.noise) / 2 - self.same_sense

    @property
    def net_length(self) -> Array:
        """Of lengths of changes: their mean over both directions, minus the mean of the lengths
        with same-sense donors.
        """
        opposite = (self.b_with_a + self.a_with_b) / 2
        return opposite - (self.same_a + self.same_b) / 2


@dataclass(frozen=True, eq=False)
class Effects:
    """The effect of swapping each head, pair by pair, in units of M.

    pair_gap: G of each pair, at the stage at which the heads of a layer are read. `pair layer`
    denoise, noise: the numerators of R_dn and R_ns. `pair layer head`
    same_sense: the same with a same-sense donor, averaged over both members. `pair layer head`
    """

    pair_gap: Array
    denoise: Array
    noise: Array
    same_sense: Array

    def ratio(self, name: str) -> Array:
        """Σ name / Σ G over pairs.

        Shape: -> layer head
        """
        return np.asarray(getattr(self, name).sum(0) / self.pair_gap.sum(0)[:, None])

    @property
    def swap(self) -> Array:
        """The swap effect, (R_dn + R_ns) / 2.

        Shape: -> layer head
        """
        return (self.ratio("denoise") + self.ratio("noise")) / 2

    @property
    def net_by_pair(self) -> Array:
        """The effect of each pair minus that of its same-sense donors, as a fraction of the mean
        gap. The mean over pairs is `swap` minus the ratio of `same_sense`.

        Shape: -> pair layer head
        """
        both_ways = (self.denoise + self.noise) / 2
        return (both_ways - self.same_sense) / self.pair_gap.mean(0)[:, None]

    def draws(self, weights: Array) -> dict[str, Array]:
        """The swap effect (`swap`), and the swap effect minus the effect of same-sense donors
        (`net`), in every bootstrap draw.

        Shape: draws pair -> draws layer head

        weights: how often each pair counts in each draw
        """
        both_ways = (self.denoise + self.noise) / 2
        swap = resampling.bootstrap_ratio(both_ways, self.pair_gap, weights)
        same_sense = resampling.bootstrap_ratio(self.same_sense, self.pair_gap, weights)
        return {"swap": swap, "net": swap - same_sense}


@dataclass(frozen=True, eq=False)
class PairEffects:
    """All swaps of one pair of senses.

    word: the effects at the word, at the stage at which the heads of each layer are read
    next_token: the effects on the prediction of the next token, or None
    continuation: the effects on the logits of known continuations, or None
    direct: the numerators of the direct effect, the head's write. `pair layer head`
    direct_gap: G of each pair, at the stage at which the write is read. `pair layer`
    profile: the net effect of every head at every depth; 0 before the head's layer, NaN where the
        pairs have no gap. `layer head depth`
    has_heads: False for a layer with another mixer instead of attention. `layer`
    mixers: the effects of the mixers that replace attention in a hybrid, `pair mixer 1`; None for
        other models
    """

    word: Effects
    next_token: Effects | None
    continuation: Effects | None
    direct: Array
    direct_gap: Array
    profile: Array
    has_heads: NDArray[np.bool_]
    mixers: Effects | None = None

    @property
    def direct_effect(self) -> Array:
        """The write of each head as a fraction of the gap at the stage at which the write is read.

        Shape: -> layer head
        """
        return np.asarray(self.direct.sum(0) / self.direct_gap.sum(0)[:, None])

    def draws(self, weights: Array) -> dict[str, Array]:
        """`Effects.draws`, with the direct effect (`direct`)."""
        direct = resampling.bootstrap_ratio(self.direct, self.direct_gap, weights)
        return self.word.draws(weights) | {"direct": direct}


class Swapped(NamedTuple):
    """The swaps of every head in one pair of senses.

    effects: in units of M
    moved: how far each head moves the word, minus the effect of same-sense donors, in units of the
        residual stream, at the depth at which the head is read: along the word's axis, and as the
        length of the change. `pair layer head measure`
    raw_effect: the same at every depth, mean over the pairs. `layer head depth measure`
    """

    effects: PairEffects
    moved: Array
    raw_effect: Array


def measure(
    weights: Weights,
    texts: Rows,
    states: TargetStates,
    axes: HeldOutAxes,
    pairs: Pairs,
    *,
    gap: Array,
    reading: Readings,
) -> Swapped:
    """The swaps of every head.

    texts: row by row as in `states`
    states: of the unchanged runs; their z are the donors
    axes: fitted at every stage, by holdout
    gap: G of each pair. `pair stage`
    reading: the stages at which heads are read
    """
    swap = partial(swap_heads, weights, length=True)
    (raw,), lengths = run_measured(swap, texts, states.z, [axes], pairs)
    shifts = raw.in_gaps(axes, pairs)

    def at_stage(stage: int | None) -> Effects | None:
        """The effects of all heads at one stage."""
        return None if stage is None else _effects_at(shifts, gap, [stage] * len(reading.at))

    depths = states.resid.shape[1]
    # profile = Σ net / Σ G over pairs, at every depth.
    net = shifts.net[..., :depths].sum(0)  # layer head depth
    whole_gap = gap[:, :depths].sum(0)  # depth
    rows = [*pairs.a, *pairs.b]
    # direct = <write, u / gap> of A minus that of B, at the stage `reading.direct` of the layer.
    directions = axes.directions(rows)[:, list(reading.direct)]
    along_axis = head_contributions(weights, states, rows, directions, reading.direct)
    effects = PairEffects(
        word=_effects_at(shifts, gap, reading.at),
        next_token=at_stage(reading.next_token),
        continuation=at_stage(reading.continuation),
        direct=(along_axis[: len(pairs)] - along_axis[len(pairs) :]).numpy(),
        direct_gap=gap[:, list(reading.direct)],
        profile=np.divide(net, whole_gap, out=np.full_like(net, np.nan), where=whole_gap != 0),
        has_heads=weights.has_heads.cpu().numpy(),
        mixers=_of_mixers(weights, texts, states, axes, pairs, reading=reading, gap=gap),
    )
    measured = np.stack([raw.net, lengths.net_length], axis=-1)[..., :depths, :]
    at = np.asarray(reading.at)[None, :, None, None, None]
    moved = np.take_along_axis(measured, at, axis=-2)[..., 0, :]
    return Swapped(effects, moved, measured.mean(0))


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
    """The effects of swapping the mixers that replace attention, read at the stage of their layer.

    Shape: -> pair mixer 1

    gap: `pair stage`

    None if every layer has attention.
    """
    if states.attn_out is None:
        return None
    swap = partial(swap_mixers, weights)
    shifts = run_swaps(swap, texts, states.attn_out, axes, pairs).in_gaps(axes, pairs)
    # A mixer counts as a layer with a single head.
    of_one_head = Shifts(*(part[:, :, None] for part in shifts))  # pair mixer 1 stage each
    has_heads = weights.has_heads.tolist()
    stages = [at for at, of_heads in zip(reading.at, has_heads, strict=True) if not of_heads]
    return _effects_at(of_one_head, gap, stages)


def _effects_at(shifts: Shifts, gap: Array, stages: Sequence[int]) -> Effects:
    """The effects where the heads of each layer are read at a separate stage.

    shifts: `pair layer head stage` each
    gap: `pair stage`
    stages: the stage of each layer
    """
    index = np.asarray(stages)[None, :, None, None]
    numerators = (shifts.denoise, shifts.noise, shifts.same_sense)
    parts = [np.take_along_axis(part, index, -1)[..., 0] for part in numerators]
    return Effects(gap[:, list(stages)], *parts)


def run_swaps(
    swap: Callable[[Rows, Tensor, Tensor], Tensor],
    texts: Rows,
    donors: Tensor,
    axes: HeldOutAxes,
    pairs: Pairs,
) -> Shifts:
    """The shifts of every pair, in both directions and with same-sense donors, in units of the
    residual stream.

    swap(texts, donors, directions): runs the swaps of some rows: `swap_heads`, `swap_mixers` or
    `swap_mlps` of a model
    donors: the donated output, by row

    Swaps with recipient = donor are skipped (effect 0), but at least one swap is run to learn the
    output shape.
    """

    def directions_of(rows: Sequence[int]) -> Tensor:
        return axes.in_units().directions(rows)

    return Shifts(*_run_in_order(swap, texts, donors, directions_of, pairs, stage_axis=-1))


def run_measured(
    swap: Callable[[Rows, Tensor, Tensor], Tensor],
    texts: Rows,
    donors: Tensor,
    axes: Sequence[HeldOutAxes],
    pairs: Pairs,
) -> tuple[list[Shifts], Shifts]:
    """The shifts along several axes, and the lengths of the changes.

    swap: as in `run_swaps`, for `row stage direction d_model`, and returns lengths as well
    axes: several axes of each row
    """

    def directions_of(rows: Sequence[int]) -> Tensor:
        return torch.stack([each.in_units().directions(rows) for each in axes], dim=2)

    changes = _run_in_order(swap, texts, donors, directions_of, pairs, stage_axis=-2)
    *moves, lengths = (
        Shifts(*(change[..., measure] for change in changes)) for measure in range(len(axes) + 1)
    )
    return moves, lengths


def _run_in_order(
    swap: Callable[[Rows, Tensor, Tensor], Tensor],
    texts: Rows,
    donors: Tensor,
    directions_of: Callable[[Sequence[int]], Tensor],
    pairs: Pairs,
    *,
    stage_axis: int,
) -> list[Array]:
    """What `swap` returns for every pair, with stage 0, in the order of the fields of `Shifts`.

    directions_of: the directions of some rows at every stage, `row stage ...`
    stage_axis: the axis of stages in the result of `swap`
    """
    a = list(pairs.a)
    b = list(pairs.b)
    # In the order of the fields of `Shifts`.
    recipients = [*b, *a, *a, *b]
    donor_rows = [*a, *b, *pairs.same_a, *pairs.same_b]
    swaps = [*zip(recipients, donor_rows, strict=True)]
    # A swap that is in several pairs is run once.
    different = [*dict.fromkeys(pair for pair in swaps if pair[0] != pair[1])] or swaps[:1]
    number = {pair: index for index, pair in enumerate(different)}
    rows = [recipient for recipient, _ in number]
    donated = donors[[donor for _, donor in number]]
    directions = directions_of(rows).to(donated.dtype)
    # No swap changes stage 0, so its shifts are 0 and are not run.
    shifts = swap([texts[row] for row in rows], donated, directions[:, 1:]).double().numpy()
    stage_0 = np.zeros_like(np.take(shifts, [0], axis=stage_axis))
    shifts = np.concatenate([stage_0, shifts], axis=stage_axis)
    in_order = np.zeros((len(swaps), *shifts.shape[1:]))
    for index, pair in enumerate(swaps):
        if pair in number:
            in_order[index] = shifts[number[pair]]
    return np.split(in_order, 4)


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


def gaps(axes: HeldOutAxes, stages: Tensor, pairs: Pairs) -> Array:
    """G = M(A) - M(B) of every pair at every stage.

    Shape: row stage d_model -> pair stage
    """
    a = axes.coordinates(stages[list(pairs.a)], pairs.a)
    b = axes.coordinates(stages[list(pairs.b)], pairs.b)
    return np.asarray(a - b)
