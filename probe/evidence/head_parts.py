"""How a head's effect comes about: by where it looks or by what it carries, from which tokens, at
which distance, and against what baseline.

Further exact swaps beside the one of `probe.evidence.effects`, in the same unit (fractions of the
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

import numpy as np
import torch
from torch import Tensor

from probe.evidence.design import Pairs, Readings, spread
from probe.evidence.effects import Effects
from probe.model import attention, fused
from probe.model.tokens import TargetText, in_order
from probe.model.weights import Weights
from probe.patching import heads as swaps
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array
from probe.text.splits import ALIGNED

MOST_PAIRS = 8
MOST_HEADS = 16  # the leading ones: what does nothing has no way of doing it
KINDS = ("pattern_only", "values_only", "cue_only", "other_only", "ablation")
Positions = Sequence[Sequence[int]]
Look = tuple[
    Tensor, Tensor
]  # pattern row at the word and values: `batch head key_pos`, `batch head key_pos d_head`


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
        return {
            kind: np.asarray(moved.sum(0) / self.gap.sum(0)[:, None])
            for kind, moved in self.moved.items()
        }

    def intervals(self) -> dict[str, tuple[Array, Array]]:
        """95 % interval of each share, frames and cue words resampled as for the whole swap. `layer
        head` each"""
        weights, shares, units = self.pairs.bootstrap(), self.shares, len(set(self.pairs.units))
        return {
            kind: resampling.interval(
                resampling.bootstrap_ratio(moved, self.gap, weights), shares[kind], units=units
            )
            for kind, moved in self.moved.items()
        }


def measure_head_parts(
    weights: Weights,
    texts: swaps.Rows,
    z: Tensor,
    cues: Sequence[range | None],
    word: Effects,
    study: tuple[HeldOutAxes, Pairs, Readings],
) -> HeadParts:
    """The swaps of KINDS for one pair of senses, on MOST_PAIRS of its pairs, spread over its cue
    words. `z: row layer head d_head` · `cues`: the positions of each text's cue, None where it is
    not known · `word`: what the whole swaps did.
    """
    axes, every, reading = study
    places = sorted(spread(every.units, MOST_PAIRS, np.random.default_rng(every.seed)))
    pairs, gap, shape = every.take(places), word.gap[places], word.swap.shape
    rows = [row for pair in zip(pairs.a, pairs.b, strict=True) for row in pair]  # a, b, a, b, ...
    recipients, marked = (
        swaps.target_texts(weights, [texts[row] for row in rows]),
        [[*(cues[row] or ())] for row in rows],
    )
    donors = [recipients[place ^ 1] for place in range(len(rows))]
    both = [*zip(recipients, donors, strict=True)]
    taken = {"cue_only": marked}
    if pairs.design == ALIGNED:
        differ = [_differing(own.ids, donor.ids) for own, donor in both]
        taken["other_only"] = [
            [pos for pos in one if pos not in cue] for one, cue in zip(differ, marked, strict=True)
        ]
    alike = pairs.design == ALIGNED and all(
        len(a.ids) == len(b.ids) and a.at == b.at for a, b in both
    )
    sides = {
        kind: (own, [own[place ^ 1] for place in range(len(rows))])
        for kind, own in taken.items()
        if any(own)
    }
    by_kind = head_part_z(weights, recipients, donors, sides, mixed=alike)
    by_kind["ablation"] = z.mean(0).expand(len(rows), -1, -1, -1)
    given = torch.stack([*by_kind.values()])  # kind row layer head d_head

    layers, heads = np.unravel_index(
        resampling.order(np.abs(word.swap).ravel())[:MOST_HEADS], shape
    )
    leading, signs = range(len(layers)), np.array([1.0, -1.0])[:, None]
    kept = torch.ones(len(leading), *shape, dtype=torch.bool)
    kept[leading, layers, heads] = False
    along = axes.directions(rows)[:, 1:].to(z.dtype).repeat(len(given), 1, 1)
    # all kinds at once: what a text shares with itself is run once
    read = swaps.swap_sets(weights, recipients * len(given), given.flatten(0, 1), kept, along)
    lost = -read.double().numpy()[:, leading, np.asarray(reading.at)[layers] - 1]
    moved = np.full((len(given), len(pairs), *shape), np.nan)
    moved[:, :, layers, heads] = (lost.reshape(len(given), len(pairs), 2, -1) * signs).mean(2)
    moved[-1] *= 2  # ablation: both members lose their half of the gap
    return HeadParts(pairs, gap, dict(zip(by_kind, moved, strict=True)))


def _differing(ids: Sequence[int], others: Sequence[int]) -> list[int]:
    """Positions at which a text differs from another: token by token, or all between what both
    share at the ends."""
    if len(ids) == len(others):
        return [
            pos
            for pos, (token, other) in enumerate(zip(ids, others, strict=True))
            if token != other
        ]
    short = min(len(ids), len(others))
    start = next((n for n in range(short) if ids[n] != others[n]), short)
    end = next((n for n in range(short - start) if ids[-1 - n] != others[-1 - n]), short - start)
    return list(range(start, len(ids) - end))


def head_part_z(
    weights: Weights,
    recipients: Sequence[TargetText],
    donors: Sequence[TargetText],
    taken: Mapping[str, tuple[Positions, Positions]],
    *,
    mixed: bool,
) -> dict[str, Tensor]:
    """z at the word of every recipient when a part of it is its donor's, by kind: `row layer head
    d_head` each. `taken`: positions in the recipients and in the donors, by kind: z - (A V)[own] +
    (A V)_donor[theirs] · `mixed`: with pattern_only and values_only too, for texts of like length.
    """
    batches: dict[tuple[int, int], list[int]] = {}
    for row, (own, donor) in enumerate(zip(recipients, donors, strict=True)):
        batches.setdefault((len(own.ids), len(donor.ids)), []).append(row)
    parts: dict[str, list[Tensor]] = {}
    with torch.inference_mode():
        places = fused.position_tables(weights, max(map(max, batches)))
        for (size, donors_size), batch in batches.items():
            looks = (
                _looks(weights, [texts[row] for row in batch], places)
                for texts in (recipients, donors)
            )
            keep = {
                kind: (_mask(weights, own, batch, size), _mask(weights, theirs, batch, donors_size))
                for kind, (own, theirs) in taken.items()
            }
            layers = [
                _routed(own, donor, keep, mixed=mixed) for own, donor in zip(*looks, strict=True)
            ]
            for kind in layers[0]:
                parts.setdefault(kind, []).append(
                    torch.stack([made[kind] for made in layers], dim=1).cpu()
                )
        order = in_order(list(batches.values()))
        together = {kind: torch.cat(made)[order] for kind, made in parts.items()}
    return {kind: made.clone() for kind, made in together.items()}


def _mask(weights: Weights, positions: Positions, rows: Sequence[int], size: int) -> Tensor:
    """1 at the positions of some rows, 0 elsewhere. `-> batch 1 key_pos`"""
    mask = torch.zeros(len(rows), 1, size, device=weights.device, dtype=weights.dtype)
    for of_row, row in zip(mask, rows, strict=True):
        of_row[:, list(positions[row])] = 1
    return mask


def _looks(
    weights: Weights, texts: Sequence[TargetText], places: fused.PositionTables
) -> Iterator[Look]:
    """Pattern row at the word and values of equally long texts, layer by layer."""
    at = torch.tensor([text.at for text in texts], device=weights.device)
    row = torch.arange(len(texts), device=weights.device)
    run = fused.run(weights, [text.ids for text in texts], len(weights.blocks), places)
    for block, (q, k, v) in zip(weights.blocks, run, strict=True):
        pattern = fused.pattern_at(weights, block, q[row, :, at], k, at, places)
        yield pattern, attention.repeat_kv(v, q.shape[1])


def _routed(
    own: Look, donor: Look, keep: Mapping[str, Sequence[Tensor]], *, mixed: bool
) -> dict[str, Tensor]:
    """`head_part_z` of one layer; `keep`: masks of both sides by kind. `-> batch head d_head` each"""
    (pattern, v), (pattern_donor, v_donor) = own, donor
    z = _mix(pattern, v)
    routed = {
        kind: z - _mix(pattern * mine, v) + _mix(pattern_donor * theirs, v_donor)
        for kind, (mine, theirs) in keep.items()
    }
    return routed | (
        {"pattern_only": _mix(pattern_donor, v), "values_only": _mix(pattern, v_donor)}
        if mixed
        else {}
    )


def _mix(pattern: Tensor, v: Tensor) -> Tensor:
    """A V at the word. `batch head key_pos, batch head key_pos d_head -> batch head d_head`"""
    return attention.mix(pattern.unsqueeze(-2), v).squeeze(-2)


def by_distance(
    effects: Effects, distances: Sequence[int | None], keep: Callable[[int], bool]
) -> Array | None:
    """Net E of every head over the pairs whose distance from cue to word is kept; None where there
    is no such pair.

    In fractions of their gap, or of the mean gap of all pairs where that is larger: at a distance
    from which a model does not read the cue there is no gap, and a ratio over it would be noise
    over noise.
    """
    rows = [
        row for row, distance in enumerate(distances) if distance is not None and keep(distance)
    ]
    if not rows:
        return None
    numerator = (effects.denoise[rows] + effects.noise[rows]) / 2 - effects.same_sense[rows]
    gap = np.maximum(effects.gap[rows].mean(0), effects.gap.mean(0))
    return np.asarray(numerator.mean(0) / gap[:, None])
