"""Where does a head look, and what does it carry?

Parts of a head's effect: where it looks, what it carries, from which tokens, and its ablation.

These are further exact swaps, in the unit of `probe.experiments.swaps` (fractions of the sense gap,
averaged over both directions):

    pattern_only   the donor's attention row over the recipient's values: A_donor V_recipient
    values_only    the recipient's attention row over the donor's values: A_recipient V_donor
    cue_only       only the part of z that comes from the cue is the donor's:
                   z - (A V)[cue] + (A V)_donor[cue of the donor]
    other_only     the same for the tokens in which the two sentences differ, except the cue
    ablation       z replaced by its mean over the sentences: the part of the gap that is lost
                   if the head does not depend on the sentence

pattern_only and values_only require sentences of equal length, so they are measured on aligned
pairs only. They are omitted if the members of a pair differ in length: a user's cue may have more
tokens than its partner.

Sources: Wang et al. 2022 and Heimersheim & Nanda 2024 (path-specific patching); Zhang & Nanda 2024
(ablation baselines).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.experiments.columns import (
    KEYS,
    Column,
    Table,
    as_elsewhere,
    dataset,
    each_pair,
    key_of,
    padded,
    with_ends,
)
from probe.experiments.design import Pairs, Readout, pairs_of, spread
from probe.experiments.record import WordRecord
from probe.experiments.run import WordRun
from probe.experiments.swaps import swap_effect
from probe.model import attention, blocks
from probe.model.tokens import in_order
from probe.model.variants import TargetText, run_texts
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import Rows, target_texts
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array
from probe.text.splits import ALIGNED
from probe.tidy import by_head, stacked, with_key

if TYPE_CHECKING:
    import xarray as xr

ORDER = 60
NEEDS = ()
ANSWERS = False
SECONDS = 3.0
MOST_PAIRS = 8  # spread over cue words; every kind swaps each top head in all of them
MOST_HEADS = 16  # top heads; the parts of a head without an effect have no meaning
KINDS = ("pattern_only", "values_only", "cue_only", "other_only", "ablation")
Member = TypeVar("Member")
Positions = Sequence[Sequence[int]]  # some positions of each text
Sides = Mapping[str, tuple[Positions, Positions]]  # in recipients and in their donors, by kind


def with_intervals(record: WordRecord, data: "xr.Dataset") -> pd.DataFrame:
    """A row for each head: the swap of each kind as a fraction of the gap, Σ shift / Σ gap, with
    its interval. Frames and cue words are resampled as for the whole swap.
    """
    parts = []
    for pair, of_pair in each_pair(record, data):
        numbers = of_pair.number.values[of_pair.number.values >= 0]
        pairs = pairs_of(pair).take(numbers)
        gap = of_pair.gap.values[: len(numbers)]
        weights = pairs.bootstrap()
        columns: dict[str, Array] = {}
        for kind in KINDS:
            shift = of_pair["shift"].sel(kind=kind).values[: len(numbers)]
            share = shift.sum(0) / gap.sum(0)[:, None]
            draws = resampling.bootstrap_ratio(shift, gap, weights)
            low, high = resampling.interval(draws, share, units=len(set(pairs.units)))
            columns |= {kind: share, f"{kind}_low": low, f"{kind}_high": high}
        frame = by_head(columns).assign(pairs=len(numbers))
        parts.append(with_key(frame, key_of(record, pair)))
    return stacked(parts, [])


GAP = "fraction of the sense gap"
SWAPS = {
    **with_ends(
        "pattern_only",
        Column("swap of the attention only: the donor's pattern, the recipient's values", GAP),
    ),
    **with_ends(
        "values_only",
        Column("swap of the values only: the recipient's pattern, the donor's values", GAP),
    ),
    **with_ends("cue_only", Column("swap of the part of z that comes from the cue", GAP)),
    **with_ends(
        "other_only",
        Column("swap of the part of z that comes from the other tokens that differ in a pair", GAP),
    ),
    **with_ends(
        "ablation", Column("the part of the gap that is lost if the head writes its mean", GAP)
    ),
}
TABLES = {
    "head_parts": Table(
        "swaps of parts of a head: its attention, its values, its output from the cue; and its "
        "ablation",
        {**as_elsewhere(*KEYS, "layer", "head"), **SWAPS, **as_elsewhere("pairs")},
        with_intervals,
    )
}
# What the dataset contains in addition to columns of the table.
MORE = {
    "kind": Column("what is swapped"),
    "shift": Column("how far the swap moves the word toward the donor", GAP),
    "gap": Column("of the pair of sentences, at the stage at which the heads are read", GAP),
    "number": Column("of the pair of sentences; -1 after the last one"),
}


def measure(run: WordRun) -> "xr.Dataset | None":
    """The swaps of each kind in some pairs of sentences, for the MOST_HEADS heads that move the
    word most. `pair sentence_pair kind layer head`

    A kind is NaN if the sentences do not allow it: without aligned pairs of equal length, or
    without a marked cue. None if no heads were swapped.
    """
    if not run.swapped_pairs:
        return None
    observation = run.observation
    measured = [
        swap_parts(
            run.weights,
            observation.texts,
            observation.states.z,
            observation.material.cues,
            swap_effect(each.effects),
            axes=each.prepared.sense.axes,
            pairs=each.pairs,
            readout=each.prepared.readout,
        )
        for each in run.swapped_pairs
    ]
    numbers, shifts = zip(*measured, strict=True)
    gaps = [
        each.effects["gap"][of_pair]
        for each, of_pair in zip(run.swapped_pairs, numbers, strict=True)
    ]
    return dataset(
        TABLES,
        {
            "shift": ("pair sentence_pair kind layer head", padded(shifts)),
            "gap": ("pair sentence_pair layer", padded(gaps)),
            "number": ("pair sentence_pair", padded(numbers, -1)),
        },
        senses=[each.prepared.sense.senses for each in run.swapped_pairs],
        coordinates={"kind": ("kind", KINDS)},
        more=MORE,
    )


def swap_parts(
    weights: Weights,
    texts: Rows,
    z: Tensor,
    cues: Sequence[range | None],
    swap: Array,
    *,
    axes: HeldOutAxes,
    pairs: Pairs,
    readout: Readout,
) -> tuple[NDArray[np.intp], Array]:
    """The swaps of KINDS for one pair of senses, on MOST_PAIRS of its pairs of sentences, spread
    over its cue words: the numbers of these pairs, and how far each swap moves the word.
    `-> sentence_pair, sentence_pair kind layer head`

    z: `row layer head d_head`
    cues: the positions of each text's cue; None if it is unknown
    swap: the effect of the whole swap of each head. `layer head`
    """
    numbers = sorted(spread(pairs.units, MOST_PAIRS, np.random.default_rng(pairs.seed)))
    pairs = pairs.take(numbers)
    # a, b, a, b, ...: the donor of a row is its neighbour.
    rows = [row for pair in zip(pairs.a, pairs.b, strict=True) for row in pair]
    recipients = target_texts(weights, [texts[row] for row in rows], "Cannot swap parts of heads")
    donors = _other_member(recipients)
    aligned = pairs.design == ALIGNED
    sides = _sides(recipients, [[*(cues[row] or ())] for row in rows], aligned=aligned)
    same_layout = all(
        len(recipient.ids) == len(donor.ids) and recipient.at == donor.at
        for recipient, donor in zip(recipients, donors, strict=True)
    )
    by_kind = head_part_z(weights, recipients, donors, sides, mixed=aligned and same_layout)
    by_kind["ablation"] = z.mean(0).expand(len(rows), -1, -1, -1)
    shifts = np.full((len(pairs), len(KINDS), *swap.shape), np.nan)
    measured = [KINDS.index(kind) for kind in by_kind]
    shifts[:, measured] = _swap_top_heads(weights, recipients, by_kind, swap, axes, rows, readout)
    # Ablation: each member loses its half of the gap, and the shifts are averaged over both.
    shifts[:, KINDS.index("ablation")] *= 2
    return np.array(numbers), shifts


def _other_member(members: Sequence[Member]) -> list[Member]:
    """The other member of each pair, of members in the order a, b, a, b, ..."""
    return [members[index ^ 1] for index in range(len(members))]


def _sides(recipients: Sequence[TargetText], cues: Positions, *, aligned: bool) -> Sides:
    """The positions in recipients and donors from which a part of z is taken, by kind."""
    positions_of = {"cue_only": cues}
    if aligned:
        other_tokens = []
        for recipient, donor, cue in zip(recipients, _other_member(recipients), cues, strict=True):
            differing = differing_positions(recipient.ids, donor.ids)
            other_tokens.append([pos for pos in differing if pos not in cue])
        positions_of["other_only"] = other_tokens
    return {
        kind: (positions, _other_member(positions))
        for kind, positions in positions_of.items()
        # A kind without any position, such as an unmarked cue, is absent.
        if any(positions)
    }


def _swap_top_heads(
    weights: Weights,
    recipients: Sequence[TargetText],
    by_kind: Mapping[str, Tensor],
    swap: Array,
    axes: HeldOutAxes,
    rows: Sequence[int],
    readout: Readout,
) -> Array:
    """How far each top head moves M toward the donor, for each kind of z, averaged over both
    directions. `-> pair kind layer head`
    """
    order = resampling.order(np.abs(swap).ravel())
    layers, heads = np.unravel_index(order[:MOST_HEADS], swap.shape)
    top = range(len(layers))
    head_sets = torch.ones(len(top), *swap.shape, dtype=torch.bool)
    head_sets[top, layers, heads] = False  # set n swaps top head n alone
    part_z = torch.stack([*by_kind.values()])  # kind row layer head d_head
    # No swap changes stage 0, so stage s has index s - 1 in what is read.
    directions = axes.directions(rows)[:, 1:].to(part_z.dtype).repeat(len(part_z), 1, 1)
    # All kinds in one call, so that the unchanged run of a text is shared.
    texts = [*recipients] * len(part_z)
    read = swap_sets(weights, texts, part_z.flatten(0, 1), head_sets, directions)
    stage_index = np.asarray(readout.at)[layers] - 1
    # M rises toward sense A. Recipients alternate a, b: a moves toward its donor if M falls, and b
    # if M rises.
    fall = -read.double().numpy()[:, top, stage_index]
    toward_donor = fall.reshape(len(part_z), -1, 2, len(top)) * np.array([[1.0], [-1.0]])
    shifts = np.full((toward_donor.shape[1], len(part_z), *swap.shape), np.nan)
    shifts[:, :, layers, heads] = toward_donor.mean(2).swapaxes(0, 1)
    return shifts


def differing_positions(ids: Sequence[int], other_ids: Sequence[int]) -> list[int]:
    """The positions at which a text differs from another text.

    Token by token if they have equal length; otherwise all positions between the shared tokens at
    both ends.
    """
    if len(ids) == len(other_ids):
        both = enumerate(zip(ids, other_ids, strict=True))
        return [pos for pos, (token, other_token) in both if token != other_token]
    short = min(len(ids), len(other_ids))
    # Tokens shared at the beginning; then tokens shared at the end that are not already shared
    # there.
    start = next((n for n in range(short) if ids[n] != other_ids[n]), short)
    end = next((n for n in range(short - start) if ids[-1 - n] != other_ids[-1 - n]), short - start)
    return list(range(start, len(ids) - end))


# --- parts of z -----------------------------------------------------------------------------------


class Attended(NamedTuple):
    """The attention of a layer from the word.

    pattern: `batch head key_pos`
    v: the values at the attended positions, gated as at the word if heads are gated.
        `batch head key_pos d_head`
    """

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
    """z at the word of every recipient if a part of it is the donor's, by kind.
    `row layer head d_head` each

    sides: positions in the recipients and in the donors, by kind
    mixed: with pattern_only and values_only, for texts of equal length

        z - (A V)[recipient's positions] + (A V)_donor[donor's positions]
    """
    # Pairs with equal lengths run together, without padding.
    batches: dict[tuple[int, int], list[int]] = {}
    for row, (recipient, donor) in enumerate(zip(recipients, donors, strict=True)):
        batches.setdefault((len(recipient.ids), len(donor.ids)), []).append(row)
    parts: dict[str, list[Tensor]] = {}
    with torch.inference_mode():
        terms = blocks.position_terms(weights, max(map(max, batches)))
        for (length, donor_length), batch in batches.items():
            masks = {}
            for kind, (in_recipient, in_donor) in sides.items():
                masks[kind] = (
                    _mask(weights, in_recipient, batch, length),
                    _mask(weights, in_donor, batch, donor_length),
                )
            attended = _attended(weights, [recipients[row] for row in batch], terms)
            attended_by_donor = _attended(weights, [donors[row] for row in batch], terms)
            layers = [
                _part_z(recipient, donor, masks, mixed=mixed)
                for recipient, donor in zip(attended, attended_by_donor, strict=True)
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
    weights: Weights, texts: Sequence[TargetText], terms: blocks.PositionTerms
) -> Iterator[Attended]:
    """The attention from the word of equally long texts, layer by layer."""
    at = torch.tensor([text.at for text in texts], device=weights.device)
    row = torch.arange(len(texts), device=weights.device)
    ids = [text.ids for text in texts]
    for step in run_texts(weights, ids, len(weights.blocks), terms):
        if step.block.mixer is not None:  # a layer without attention heads
            shape = (len(texts), weights.config.n_heads, len(ids[0]), weights.config.d_head)
            zeros = step.resid_pre.new_zeros(shape)
            yield Attended(zeros[..., 0], zeros)
            continue
        q, k, v, gate = step.projected.map(lambda part: part[:, 0])
        pattern = blocks.pattern_at(weights, step.block, q[row, :, at], k, at, terms)
        values = attention.repeat_kv(v, q.shape[1])
        if gate is not None:
            values = blocks.gated(values, gate[row, :, at].unsqueeze(-2))
        yield Attended(pattern, values)


def _part_z(
    recipient: Attended, donor: Attended, masks: Mapping[str, Sequence[Tensor]], *, mixed: bool
) -> dict[str, Tensor]:
    """`head_part_z` of one layer. `-> batch head d_head` each

    masks: of the recipients and of the donors, by kind
    """
    z = _mix(recipient.pattern, recipient.v)
    parts = {}
    for kind, (recipient_mask, donor_mask) in masks.items():
        removed = _mix(recipient.pattern * recipient_mask, recipient.v)
        added = _mix(donor.pattern * donor_mask, donor.v)
        parts[kind] = z - removed + added
    if mixed:
        parts["pattern_only"] = _mix(donor.pattern, recipient.v)
        parts["values_only"] = _mix(recipient.pattern, donor.v)
    return parts


def _mix(pattern: Tensor, v: Tensor) -> Tensor:
    """A V at the word. `batch head key_pos, batch head key_pos d_head -> batch head d_head`"""
    return attention.mix(pattern.unsqueeze(-2), v).squeeze(-2)
