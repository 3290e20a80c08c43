"""How a head's effect comes about: by where it looks or by what it carries, from which tokens, at
which distance, and against what baseline.

Further exact swaps beside the one of `probe.experiments.swaps`, in the same unit (fractions of the
sense gap, both directions averaged):

    pattern_only   the attention row of the donor over the recipient's own values: A_donor
                   V_recipient
    values_only    the recipient's attention row over the donor's values: A_recipient V_donor
    cue_only       of z only what comes from the cue is the donor's: z - (A V)[cue] + (A
                   V)_donor[cue of the donor]
    other_only     the same for the tokens other than the cue in which the two sentences differ
    ablation       z replaced by its mean over the sentences: the part of the gap that is lost
                   without the head's choice

The first two need sentences of equal length, so they are measured on aligned pairs only, and not
where the members of a pair differ in length (a cue of a user's own may be cut into more tokens than
its partner).

Source: Wang et al. 2022 and Heimersheim & Nanda 2024 (path-specific patching); Zhang & Nanda 2024
(ablation baselines).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from probe.experiments.columns import (
    KEYS,
    Column,
    Columns,
    Table,
    as_elsewhere,
    key_of,
    with_ends,
)
from probe.experiments.design import Pairs, Readings, spread
from probe.experiments.plan import DIRECTIONS, Size, Work
from probe.experiments.record import WordRecord
from probe.experiments.run import Run
from probe.experiments.swaps import Effects
from probe.model import attention, fused
from probe.model.tokens import TargetText, in_order
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import Rows, target_texts
from probe.patching.variants import project_texts
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array
from probe.text.splits import ALIGNED

MOST_PAIRS = 8  # spread over cue words: every kind swaps each leading head in all of them
MOST_HEADS = 16  # the leading ones: what does nothing has no way of doing it
KINDS = ("pattern_only", "values_only", "cue_only", "other_only", "ablation")
Member = TypeVar("Member")
Positions = Sequence[Sequence[int]]  # some positions of each text
Sides = Mapping[str, tuple[Positions, Positions]]  # of recipients and of their donors, by kind


@dataclass(frozen=True, eq=False)
class HeadParts:
    """The swaps of KINDS on some `pairs`: numerators by kind, `pair layer head`, and the `gap: pair
    layer`.

    NaN for all but the MOST_HEADS heads that move the word most. A kind is absent where the
    sentences do not allow it: without aligned pairs of equal length, or without a marked cue.
    """

    pairs: Pairs
    gap: Array
    moved: Mapping[str, Array]

    @property
    def shares(self) -> dict[str, Array]:
        """Each kind's effect as a fraction of the gap, Σ moved / Σ gap. `layer head` each"""
        gap = self.gap.sum(0)[:, None]
        return {kind: np.asarray(moved.sum(0) / gap) for kind, moved in self.moved.items()}

    def intervals(self) -> dict[str, tuple[Array, Array]]:
        """95 % interval of each share, frames and cue words resampled as for the whole swap. `layer
        head` each"""
        weights = self.pairs.bootstrap()
        shares = self.shares
        units = len(set(self.pairs.units))
        intervals = {}
        for kind, moved in self.moved.items():
            draws = resampling.bootstrap_ratio(moved, self.gap, weights)
            intervals[kind] = resampling.interval(draws, shares[kind], units=units)
        return intervals


RECORDS = (HeadParts,)


def _head_parts(record: WordRecord) -> Iterator[Columns]:
    for pair, parts in record.found("head_parts"):
        columns = dict(parts.shares)
        for name, (low, high) in parts.intervals().items():
            columns |= {f"{name}_low": low, f"{name}_high": high}
        absent = np.full(next(iter(columns.values())).shape, np.nan)
        every = {name: columns.get(name, absent) for name in SWAPS}
        yield key_of(record, pair) | every | {"pairs": len(parts.pairs)}


GAP = "fraction of the sense gap"
SWAPS = {
    **with_ends(
        "pattern_only",
        Column("swapping only where the head looks: the donor's attention, its own values", GAP),
    ),
    **with_ends(
        "values_only",
        Column("swapping only what the head carries: its own attention, the donor's values", GAP),
    ),
    **with_ends("cue_only", Column("swapping only what the head takes from the cue", GAP)),
    **with_ends(
        "other_only",
        Column("swapping only what it takes from the other tokens that differ in a pair", GAP),
    ),
    **with_ends("ablation", Column("part of the gap lost when the head writes its mean", GAP)),
}
TABLES = {
    "head_parts": Table(
        "swaps of where a head looks, of what it carries, of what it takes from the cue, and "
        "ablation",
        {**as_elsewhere(*KEYS, "layer", "head"), **SWAPS, **as_elsewhere("pairs")},
        _head_parts,
    )
}


def measure(run: Run) -> tuple[HeadParts | None, ...]:
    """The parts of every two senses that were swapped."""
    seen = run.seen
    return run.for_swapped(
        lambda each: measure_head_parts(
            run.weights,
            seen.texts,
            seen.states.z,
            seen.material.cues,
            each.effects.word,
            axes=each.prepared.sense.axes,
            pairs=each.pairs,
            reading=each.prepared.reading,
        )
    )


def work(size: Size) -> Work:
    """Every kind of part of the leading heads, both ways."""
    heads = min(size.heads_in_all, MOST_HEADS)
    pairs = sum(min(pairs, MOST_PAIRS) for pairs in size.pairs)
    return Work(swaps=heads * DIRECTIONS * len(KINDS) * pairs)


def measure_head_parts(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    cues: Sequence[range | None],
    word: Effects,
    *,
    axes: HeldOutAxes,
    pairs: Pairs,
    reading: Readings,
) -> HeadParts:
    """The swaps of KINDS for one pair of senses, on MOST_PAIRS of its pairs, spread over its cue
    words. `z: row layer head d_head` · `cues`: the positions of each text's cue, None where it is
    not known · `word`: what the whole swaps did.
    """
    drawn = sorted(spread(pairs.units, MOST_PAIRS, np.random.default_rng(pairs.seed)))
    pairs = pairs.take(drawn)
    rows = [row for pair in zip(pairs.a, pairs.b, strict=True) for row in pair]  # a, b, a, b, ...
    recipients = target_texts(weights, [texts[row] for row in rows], "Swapping parts of heads")
    donors = _other_member(recipients)
    aligned = pairs.design == ALIGNED
    sides = _sides(recipients, [[*(cues[row] or ())] for row in rows], aligned=aligned)
    same_layout = all(
        len(own.ids) == len(donor.ids) and own.at == donor.at
        for own, donor in zip(recipients, donors, strict=True)
    )
    by_kind = head_part_z(weights, recipients, donors, sides, mixed=aligned and same_layout)
    by_kind["ablation"] = z.mean(0).expand(len(rows), -1, -1, -1)
    moved = _swap_leading_heads(weights, recipients, by_kind, word, axes, rows, reading)
    moved[-1] *= 2  # ablation: both members lose their half of the gap
    return HeadParts(pairs, word.gap[drawn], dict(zip(by_kind, moved, strict=True)))


def _other_member(members: Sequence[Member]) -> list[Member]:
    """Of a, b, a, b, ... the other member of each pair."""
    return [members[index ^ 1] for index in range(len(members))]


def _sides(recipients: Sequence[TargetText], cues: Positions, *, aligned: bool) -> Sides:
    """From which positions of recipient and donor a part of z is taken, by kind."""
    taken = {"cue_only": cues}
    if aligned:
        other = []
        for own, donor, cue in zip(recipients, _other_member(recipients), cues, strict=True):
            differing = _differing(own.ids, donor.ids)
            other.append([pos for pos in differing if pos not in cue])
        taken["other_only"] = other
    return {
        kind: (positions, _other_member(positions))
        for kind, positions in taken.items()
        if any(positions)
    }


def _swap_leading_heads(
    weights: Weights,
    recipients: Sequence[TargetText],
    by_kind: Mapping[str, Tensor],
    word: Effects,
    axes: HeldOutAxes,
    rows: Sequence[int],
    reading: Readings,
) -> Array:
    """How far each of the leading heads moves M toward the donor with each kind of z, both ways
    averaged. `-> kind pair layer head`"""
    shape = word.swap.shape
    order = resampling.order(np.abs(word.swap).ravel())
    layers, heads = np.unravel_index(order[:MOST_HEADS], shape)
    leading = range(len(layers))
    head_sets = torch.ones(len(leading), *shape, dtype=torch.bool)
    head_sets[leading, layers, heads] = False
    part_z = torch.stack([*by_kind.values()])  # kind row layer head d_head
    directions = axes.directions(rows)[:, 1:].to(part_z.dtype).repeat(len(part_z), 1, 1)
    # All kinds at once: what a text shares with itself is run once.
    texts = [*recipients] * len(part_z)
    read = swap_sets(weights, texts, part_z.flatten(0, 1), head_sets, directions)
    stage = np.asarray(reading.at)[layers] - 1
    lost = -read.double().numpy()[:, leading, stage]
    toward_donor = lost.reshape(len(part_z), -1, 2, len(leading)) * np.array([[1.0], [-1.0]])
    moved = np.full((len(part_z), toward_donor.shape[1], *shape), np.nan)
    moved[:, :, layers, heads] = toward_donor.mean(2)
    return moved


def _differing(ids: Sequence[int], others: Sequence[int]) -> list[int]:
    """Positions at which a text differs from another: token by token, or all between what both
    share at the ends."""
    if len(ids) == len(others):
        both = enumerate(zip(ids, others, strict=True))
        return [pos for pos, (token, other) in both if token != other]
    short = min(len(ids), len(others))
    start = next((n for n in range(short) if ids[n] != others[n]), short)
    end = next((n for n in range(short - start) if ids[-1 - n] != others[-1 - n]), short - start)
    return list(range(start, len(ids) - end))


# --- parts of z -----------------------------------------------------------------------------------


class Attended(NamedTuple):
    """What a layer attends to from the word: `pattern: batch head key_pos`, and the values there,
    `v: batch head key_pos d_head`, gated as the word gates them where heads are gated."""

    pattern: Tensor
    v: Tensor


def head_part_z(
    weights: Weights,
    recipients: Sequence[TargetText],
    donors: Sequence[TargetText],
    sides: Sides,
    *,
    mixed: bool,
) -> dict[str, Tensor]:
    """z at the word of every recipient when a part of it is its donor's, by kind: `row layer head
    d_head` each. `sides`: positions in the recipients and in the donors, by kind: z - (A V)[own] +
    (A V)_donor[theirs] · `mixed`: with pattern_only and values_only too, for texts of like length.
    """
    batches: dict[tuple[int, int], list[int]] = {}
    for row, (own, donor) in enumerate(zip(recipients, donors, strict=True)):
        batches.setdefault((len(own.ids), len(donor.ids)), []).append(row)
    parts: dict[str, list[Tensor]] = {}
    with torch.inference_mode():
        tables = fused.position_tables(weights, max(map(max, batches)))
        for (length, donor_length), batch in batches.items():
            masks = {}
            for kind, (own_positions, donor_positions) in sides.items():
                masks[kind] = (
                    _mask(weights, own_positions, batch, length),
                    _mask(weights, donor_positions, batch, donor_length),
                )
            attended = _attended(weights, [recipients[row] for row in batch], tables)
            by_donor = _attended(weights, [donors[row] for row in batch], tables)
            layers = [
                _part_z(own, donor, masks, mixed=mixed)
                for own, donor in zip(attended, by_donor, strict=True)
            ]
            for kind in layers[0]:
                of_batch = torch.stack([layer[kind] for layer in layers], dim=1)
                parts.setdefault(kind, []).append(of_batch.cpu())
        order = in_order(list(batches.values()))
        together = {kind: torch.cat(of_batches)[order] for kind, of_batches in parts.items()}
    # Outside inference mode, so that the caller gets ordinary tensors.
    return {kind: part.clone() for kind, part in together.items()}


def _mask(weights: Weights, positions: Positions, rows: Sequence[int], length: int) -> Tensor:
    """1 at the positions of some rows, 0 elsewhere. `-> batch 1 key_pos`"""
    mask = torch.zeros(len(rows), 1, length, device=weights.device, dtype=weights.dtype)
    for mask_of_row, row in zip(mask, rows, strict=True):
        mask_of_row[:, list(positions[row])] = 1
    return mask


def _attended(
    weights: Weights, texts: Sequence[TargetText], tables: fused.PositionTables
) -> Iterator[Attended]:
    """What equally long texts attend to from the word, layer by layer."""
    at = torch.tensor([text.at for text in texts], device=weights.device)
    row = torch.arange(len(texts), device=weights.device)
    ids = [text.ids for text in texts]
    run = project_texts(weights, ids, len(weights.blocks), tables)
    for block, (q, k, v) in zip(weights.blocks, run, strict=True):
        if block.mixer is not None:  # no heads attend there
            shape = (len(texts), weights.config.n_heads, q.shape[-2], weights.config.d_head)
            nothing = q.new_zeros(shape)
            yield Attended(nothing[..., 0], nothing)
            continue
        queries = q[row, :, at]
        pattern = fused.pattern_at(weights, block, queries, k, at, tables)
        _, gate = fused.split_gate(queries, k)
        values = fused.gated(attention.repeat_kv(v, q.shape[1]), gate.unsqueeze(-2))
        yield Attended(pattern, values)


def _part_z(
    own: Attended, donor: Attended, masks: Mapping[str, Sequence[Tensor]], *, mixed: bool
) -> dict[str, Tensor]:
    """`head_part_z` of one layer; `masks` of both sides by kind. `-> batch head d_head` each"""
    z = _mix(own.pattern, own.v)
    parts = {}
    for kind, (own_mask, donor_mask) in masks.items():
        taken_out = _mix(own.pattern * own_mask, own.v)
        put_in = _mix(donor.pattern * donor_mask, donor.v)
        parts[kind] = z - taken_out + put_in
    if mixed:
        parts["pattern_only"] = _mix(donor.pattern, own.v)
        parts["values_only"] = _mix(own.pattern, donor.v)
    return parts


def _mix(pattern: Tensor, v: Tensor) -> Tensor:
    """A V at the word. `batch head key_pos, batch head key_pos d_head -> batch head d_head`"""
    return attention.mix(pattern.unsqueeze(-2), v).squeeze(-2)


def by_distance(
    effects: Effects, distances: Sequence[int | None], included: Callable[[int], bool]
) -> Array | None:
    """Net E of every head over the pairs whose distance from cue to word is included; None where
    there is no such pair.

    In fractions of their gap, or of the mean gap of all pairs where that is larger: at a distance
    from which a model does not read the cue there is no gap, and a ratio over it would be noise
    over noise.
    """
    pairs = [
        pair
        for pair, distance in enumerate(distances)
        if distance is not None and included(distance)
    ]
    if not pairs:
        return None
    numerator = (effects.denoise[pairs] + effects.noise[pairs]) / 2 - effects.same_sense[pairs]
    gap = np.maximum(effects.gap[pairs].mean(0), effects.gap.mean(0))
    return np.asarray(numerator.mean(0) / gap[:, None])
