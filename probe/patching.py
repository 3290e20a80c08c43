"""Intervention: give one head's output at the word another sentence's value, and see how far the word's vector moves.

Every one of the layers x heads swaps is performed, none is approximated. A swapped run differs from the base run only at
the target position (the model is causal and the sentence is cut at the word), so all variants are carried through the later
layers as single vectors against the base run's keys and values (`replay.resume_block`).

Sources: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, denoising and noising).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe import replay
from probe.replay import Weights
from probe.tokens import batch_by_length, in_order

VARIANTS = 4096


@dataclass(frozen=True, eq=False)
class Base:
    """An unchanged run of equally long sentences, cut at the target, kept for resuming.

    `z: layer batch head d_head` and `resid_pre attn_out: layer batch d_model` at the target; `k v: layer batch head key_pos
    d_head` of the positions before it; `resid: batch d_model`, the read-out.
    """

    z: Tensor
    resid_pre: Tensor
    attn_out: Tensor
    k: list[Tensor]
    v: list[Tensor]
    resid: Tensor

    def prefix(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.k[layer], self.v[layer]


def base_run(weights: Weights, ids: Tensor, depth: int) -> Base:
    """Run sentences of equal length through the first `depth` blocks. `ids: batch pos`, the last position is the target."""
    kept: dict[str, list[Tensor]] = defaultdict(list)
    resid = replay.embed(weights, ids)
    for block in weights.blocks[:depth]:
        step = replay.attend(block, resid, weights.epsilon)
        attn_out = replay.merge_heads(block, step["z"])
        kept["resid_pre"].append(resid[:, -1])
        kept["z"].append(step["z"][:, :, -1])
        kept["attn_out"].append(attn_out[:, -1])
        kept["k"].append(step["k"][:, :, :-1])
        kept["v"].append(step["v"][:, :, :-1])
        resid = resid + attn_out
        resid = resid + replay.mlp(block, resid, weights.epsilon)
    z, resid_pre, attn_out = (torch.stack(kept[name]) for name in ("z", "resid_pre", "attn_out"))
    return Base(z, resid_pre, attn_out, kept["k"], kept["v"], resid[:, -1])


def target_z(weights: Weights, rows: Sequence[Sequence[int]], depth: int) -> Tensor:
    """z of every head at the last token of each row, from the same engine that swaps. `-> row layer head d_head`"""
    return _in_batches(rows, weights, 1, lambda ids, _: base_run(weights, ids, depth).z.transpose(0, 1))


def swap_heads(weights: Weights, rows: Sequence[Sequence[int]], donor_z: Tensor, directions: Tensor) -> Tensor:
    """How far the read-out moves along each direction when one head's z at the target is the donor's, for every head.

    `rows`: token ids up to and including the target · `donor_z: row layer head d_head`, whose layer axis says how many
    blocks stand before the read-out · `directions: direction d_model` -> `row layer head direction`: the change of
    <resid, direction>, 0 when the donor is the sentence itself.
    """
    layers, heads = donor_z.shape[1:3]

    def swap(ids: Tensor, members: list[int]) -> Tensor:
        base = base_run(weights, ids, layers)
        carried = _carry_variants(weights, base, donor_z[members].to(weights.wte))
        moved = (carried - base.resid.unsqueeze(1)) @ directions.to(weights.wte).T
        return moved.unflatten(1, (layers, heads)).cpu()

    return _in_batches(rows, weights, layers * heads, swap)


def _carry_variants(weights: Weights, base: Base, donor_z: Tensor) -> Tensor:
    """The read-out of every variant. `batch layer head d_head -> batch (layer head) d_model`"""
    carried = base.resid.new_empty(len(donor_z), 0, base.resid.shape[-1])
    for layer in range(donor_z.shape[1]):
        block = weights.blocks[layer]
        resumed = replay.resume_block(block, carried, base.prefix(layer), weights.epsilon)
        change = (donor_z[:, layer] - base.z[layer]).unsqueeze(-2) @ block.w_o  # batch head 1 d_model
        resid_mid = (base.resid_pre[layer] + base.attn_out[layer]).unsqueeze(1) + change.squeeze(-2)
        swapped = resid_mid + replay.mlp(block, resid_mid, weights.epsilon)
        carried = torch.cat([resumed, swapped], dim=1)
    return carried


def swap_sets(
    weights: Weights, rows: Sequence[Sequence[int]], donor_z: Tensor, kept: Tensor, directions: Tensor
) -> Tensor:
    """Where the read-out moves when every head outside a set has the donor's z at the target, for many sets of heads.

    Heads inside a set, and all MLPs, are live: they respond to what changed below them. `rows`, `donor_z` and `directions` as in
    `swap_heads` · `kept: set layer head`, True inside the set -> `row set direction`: <resid - unchanged resid, direction>.
    """
    layers, sets = donor_z.shape[1], len(kept)
    kept = kept.to(weights.wte.device)[..., None]  # set layer head 1

    def swap(ids: Tensor, members: list[int]) -> Tensor:
        base, donors = base_run(weights, ids, layers), donor_z[members].to(weights.wte)
        carried = base.resid_pre[0].unsqueeze(1).repeat(1, sets, 1)
        for layer in range(layers):

            def replace(z: Tensor, layer: int = layer) -> Tensor:  # batch head set d_head
                return torch.where(kept[:, layer].transpose(0, 1), z, donors[:, layer].unsqueeze(2))

            carried = replay.resume_block(weights.blocks[layer], carried, base.prefix(layer), weights.epsilon, replace)
        return ((carried - base.resid.unsqueeze(1)) @ directions.to(weights.wte).T).cpu()

    return _in_batches(rows, weights, sets, swap)


def _in_batches(
    rows: Sequence[Sequence[int]], weights: Weights, variants: int, run: Callable[[Tensor, list[int]], Tensor]
) -> Tensor:
    """Apply `run(ids, members)` to batches of equally long rows and put the results back in the order given."""
    batches = batch_by_length([len(row) for row in rows], most_rows=max(1, VARIANTS // variants))
    with torch.inference_mode():
        parts = [run(torch.tensor([rows[row] for row in batch], device=weights.wte.device), batch) for batch in batches]
    return torch.cat(parts)[in_order(batches)].clone()
