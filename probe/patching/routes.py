"""How a head's effect comes about: by where it looks or by what it carries, at which distance, and against what
baseline.

Three more exact swaps beside the one of `probe.patching.effects`, in the same unit (fractions of the sense gap, both
directions averaged):

    pattern_only   the attention row of the donor over the recipient's own values: A_donor V_recipient
    values_only    the recipient's attention row over the donor's values: A_recipient V_donor
    ablation       z replaced by its mean over the fit part: the part of the gap that is lost without this head's choice

The first two need sentences of equal length, so they are measured on aligned pairs only, and not where the members of a
pair differ in length (a cue of a user's own may be cut into more tokens than its partner).

Source: Wang et al. 2022 and Heimersheim & Nanda 2024 (path-specific patching); Zhang & Nanda 2024 (ablation baselines).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.model import attention
from probe.model.tokens import Placed, batch_by_length, in_order
from probe.model.weights import Weights
from probe.patching import engine, swaps
from probe.patching.effects import ALIGNED, Effects, Pairs
from probe.stats.axes import Axis
from probe.stats.resampling import Array

MOST_PAIRS = 8


@dataclass(frozen=True, eq=False)
class Routes:
    """`pattern_only values_only ablation: layer head`, fractions of the gap; the first two are None without aligned
    pairs of equal length.
    """

    pattern_only: Array | None
    values_only: Array | None
    ablation: Array


def measure_routes(
    weights: Weights, texts: swaps.Rows, mean_z: Tensor, gap: Array, study: tuple[Axis, Pairs]
) -> Routes:
    """The three swaps for one pair of senses, on its first MOST_PAIRS pairs.

    `mean_z: layer head d_head`, `gap: pair`.
    """
    axis, pairs = study
    depth, count = axis.depth, min(len(pairs), MOST_PAIRS)
    both = [*zip(pairs.a, pairs.b, strict=True)][:count]
    rows = [row for pair in both for row in pair]  # a, b, a, b, ...
    others = [row for pair in both for row in reversed(pair)]
    signs = np.tile([1.0, -1.0], count)
    direction = (axis.u / axis.gap)[None]
    placed = swaps.placed(weights, texts)
    recipients = [placed[row] for row in rows]

    def lost(z: Tensor) -> Array:
        moved = swaps.swap_heads(weights, recipients, z, direction)[..., 0].double().numpy()
        effect = -(moved * signs[:, None, None]).sum(0) / 2 / gap[:count].sum()
        return np.pad(effect, ((0, len(weights.blocks) - depth), (0, 0)))

    ablation = lost(mean_z[:depth].expand(len(rows), -1, -1, -1)) * 2
    donors = [placed[row] for row in others]
    alike = all(len(a.ids) == len(b.ids) and a.at == b.at for a, b in zip(donors, recipients, strict=True))
    if pairs.design != ALIGNED or not alike:
        return Routes(None, None, ablation)
    return Routes(
        pattern_only=lost(mixed_z(weights, donors, recipients, depth)),
        values_only=lost(mixed_z(weights, recipients, donors, depth)),
        ablation=ablation,
    )


def mixed_z(weights: Weights, looking: swaps.Rows, carrying: swaps.Rows, depth: int) -> Tensor:
    """z at the word from the attention rows of one run over the values of another: A V. `-> row layer head d_head`

    The two texts of a row have the same length, and their word in the same place.
    """
    looks, carries = (swaps.placed(weights, rows) for rows in (looking, carrying))
    lengths = [len(text.ids) for text in looks]
    batches = batch_by_length(lengths, most_rows=64)
    with torch.inference_mode():
        places = engine.places_of(weights, max(lengths))
        mixed = [
            _mixed(weights, [looks[i] for i in batch], [carries[i] for i in batch], depth, places) for batch in batches
        ]
        together = torch.cat(mixed)[in_order(batches)].cpu()
    return together.clone()


def _mixed(
    weights: Weights, looking: list[Placed], carrying: list[Placed], depth: int, places: engine.Places
) -> Tensor:
    """`mixed_z` of equally long texts."""
    at = torch.tensor([text.at for text in looking], device=weights.device)
    row = torch.arange(len(looking), device=weights.device)
    runs = (engine.run(weights, [text.ids for text in texts], depth, places) for texts in (looking, carrying))
    mixed = []
    for (q, k, _), (_, _, v) in zip(*runs, strict=True):
        pattern = engine.pattern_at(weights, q[row, :, at], k, at, places)
        mixed.append(attention.mix(pattern.unsqueeze(-2), attention.share_heads(v, q.shape[1])).squeeze(-2))
    return torch.stack(mixed, dim=1)


def by_distance(effects: Effects, distances: Sequence[int | None], keep: Callable[[int], bool]) -> Array | None:
    """Net E of every head over the pairs whose distance from cue to word is kept; None where there is no such pair.

    In fractions of their gap, or of the mean gap of all pairs where that is larger: at a distance from which a model
    does not read the cue there is no gap, and a ratio over it would be noise over noise.
    """
    rows = [row for row, distance in enumerate(distances) if distance is not None and keep(distance)]
    if not rows:
        return None
    numerator = (effects.denoise[rows] + effects.noise[rows]) / 2 - effects.same_sense[rows]
    return np.asarray(numerator.mean(0) / max(effects.gap[rows].mean(), effects.gap.mean()))
