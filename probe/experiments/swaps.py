"""From swaps to effects: how far a head's swap moves the word, as a fraction of the sense gap.

    R_dn = Σ [M(B with A's z) - M(B)] / Σ G      denoising: B becomes more like A
    R_ns = Σ [M(A) - M(A with B's z)] / Σ G      noising: A becomes less like itself
    swap = (R_dn + R_ns) / 2,  G = M(A) - M(B)   ratios of sums, never means of ratios

M is the sense coordinate along the axes that were fitted without the sentence's cue word and frame.
Its unit is the fitted gap, the distance between the senses' means in the fitting sentences, so G is
close to 1. Stages are the depths of the residual stream, counted from 0; after them come the stages
of the next token. No head has written at stage 0, so the effects there are 0.

`Shifts` are raw, or divided by the fitted gap. `Effects` are the same at one stage per layer, by
name: the numerators of R_dn and R_ns (`denoise`, `noise`) and of the effect of same-sense donors,
averaged over both members (`same_sense`), `pair layer head` each, with the G of each pair (`gap`,
`pair layer`). Their ratios divide by the sum of G.

`probe.experiments.design` decides which sentence is the donor of which, and where each head is
read.

Sources: Heimersheim & Nanda 2024; Zhang & Nanda 2024.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probe.experiments.design import Pairs
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import Rows
from probe.patching.sets import Mask
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array

if TYPE_CHECKING:
    import xarray as xr

Effects = Mapping[str, Array]
NUMERATORS = ("denoise", "noise", "same_sense")


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


def effects_at(shifts: Shifts, gap: Array, stages: Sequence[int]) -> dict[str, Array]:
    """The effects where the parts of each layer are read at a separate stage.

    shifts: `pair layer head stage` each
    gap: `pair stage`
    stages: the stage of each layer
    """
    index = np.asarray(stages)[None, :, None, None]
    effects = {
        name: np.take_along_axis(getattr(shifts, name), index, -1)[..., 0] for name in NUMERATORS
    }
    return {**effects, "gap": gap[:, list(stages)]}


def effects_of(data: "xr.Dataset") -> Effects:
    """The effects of every head on the word, from the dataset of the experiment "heads"."""
    return {name: data[f"{name}_by_pair"].values for name in ("gap", *NUMERATORS)}


def has_effects(data: "xr.Dataset") -> bool:
    """Whether the heads of a pair of senses have effects: they were swapped, and there is a gap."""
    return "gap_by_pair" in data


def ratio(effects: Effects, name: str) -> Array:
    """Σ of a numerator / Σ G over pairs. `-> layer head`"""
    return np.asarray(effects[name].sum(0) / effects["gap"].sum(0)[:, None])


def swap_effect(effects: Effects) -> Array:
    """(R_dn + R_ns) / 2. `-> layer head`"""
    return (ratio(effects, "denoise") + ratio(effects, "noise")) / 2


def net_by_pair(effects: Effects) -> Array:
    """The effect of each pair minus that of its same-sense donors, as a fraction of the mean gap.
    The mean over pairs is the swap effect minus the ratio of `same_sense`.

    Shape: -> pair layer head
    """
    both_ways = (effects["denoise"] + effects["noise"]) / 2
    return np.asarray((both_ways - effects["same_sense"]) / effects["gap"].mean(0)[:, None])


def drawn_effects(effects: Effects, weights: Array) -> dict[str, Array]:
    """The swap effect (`swap`), and the swap effect minus the effect of same-sense donors (`net`),
    in every bootstrap draw.

    Shape: draws pair -> draws layer head

    weights: how often each pair counts in each draw
    """
    both_ways = (effects["denoise"] + effects["noise"]) / 2
    swap = resampling.bootstrap_ratio(both_ways, effects["gap"], weights)
    same_sense = resampling.bootstrap_ratio(effects["same_sense"], effects["gap"], weights)
    return {"swap": swap, "net": swap - same_sense}


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
