"""Intervention: give one head's output at the word another sentence's value, and see how far the word's vector moves.

Every one of the layers x heads swaps is performed, none is approximated. A swapped run differs from the base run only at
the target position (the model is causal and the sentence is cut at the word), so all variants are carried through the later
layers as single vectors against the base run's keys and values (`probe.engine`).

Sources: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, denoising and noising).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from probe import engine
from probe.replay import Weights
from probe.tokens import batch_by_length, in_order

NUMBERS = 2**22
Branch = tuple[Tensor, Tensor]
Rows = Sequence[Sequence[int]]
Donor = Callable[[int, Tensor], Tensor]


def target_z(weights: Weights, rows: Rows, depth: int) -> Tensor:
    """z of every head at the last token of each row, from the same engine that swaps. `-> row layer head d_head`"""

    def read(members: list[int]) -> Tensor:
        seen: list[Tensor] = []

        def keep(layer: int, own: Tensor) -> Tensor:
            seen.append(own)
            return own

        tree, _ = _branches(_all_but_one(weights, depth)[:0])
        _carry(weights, [rows[row] for row in members], tree, keep, weights.wte[:0])
        return torch.stack(seen, dim=1)

    return _in_batches(rows, weights, 1, read)


def swap_heads(weights: Weights, rows: Rows, donor_z: Tensor, directions: Tensor) -> Tensor:
    """How far the read-out moves along each direction when one head's z at the target is the donor's, for every head.

    `rows`: token ids up to and including the target · `donor_z: row layer head d_head`, whose layer axis says how many
    blocks stand before the read-out · `directions: direction d_model` -> `row layer head direction`: the change of
    <resid, direction>, 0 when the donor is the sentence itself.
    """
    kept = _all_but_one(weights, donor_z.shape[1])
    return swap_sets(weights, rows, donor_z, kept, directions).unflatten(1, donor_z.shape[1:3])


def swap_pairs(weights: Weights, a: Rows, b: Rows, directions: Tensor, *, depth: int) -> Tensor:
    """`swap_heads` of pairs of equal length in both directions, each the other's donor, in the runs that the swaps need anyway.

    `-> pair recipient layer head direction`: recipient 0 is `a` with z of `b`, recipient 1 the other way round.
    """
    tree, variant_of = _branches(_all_but_one(weights, depth))

    def swap(members: list[int]) -> Tensor:
        rows = [rows[pair] for rows in (a, b) for pair in members]
        moved = _carry(weights, rows, tree, lambda layer, own: own.roll(len(members), 0), directions)
        return moved[:, variant_of].unflatten(1, (depth, -1)).unflatten(0, (2, -1)).transpose(0, 1)

    return _in_batches(a, weights, 2 * len(tree[-1][0]), swap)


def swap_sets(weights: Weights, rows: Rows, donor_z: Tensor, kept: Tensor, directions: Tensor) -> Tensor:
    """Where the read-out moves when every head outside a set has the donor's z at the target, for many sets of heads.

    Heads inside a set, and all MLPs, are live: they respond to what changed below them. `rows`, `donor_z` and `directions` as in
    `swap_heads` · `kept: set layer head`, True inside the set -> `row set direction`: <resid - unchanged resid, direction>.
    """
    tree, variant_of = _branches(kept.to(weights.wte.device))

    def swap(members: list[int]) -> Tensor:
        donors = donor_z[members].to(weights.wte)
        return _carry(weights, [rows[row] for row in members], tree, lambda layer, own: donors[:, layer], directions)[
            :, variant_of
        ]

    return _in_batches(rows, weights, len(tree[-1][0]), swap)


def _all_but_one(weights: Weights, depth: int) -> Tensor:
    """A set for every head below the read-out, of all the others. `-> (layer head) layer head`"""
    count = depth * weights.shape[1]
    return ~torch.eye(count, dtype=torch.bool, device=weights.wte.device).unflatten(1, (depth, -1))


def _branches(kept: Tensor) -> tuple[list[Branch], Tensor]:
    """How variants branch in each block, and which variant at the end each set is. Variant 0 is always the unchanged run.

    Sets that differ only in later blocks are one variant so far. `set layer head -> [(variant of the block before: variant,
    swapped: variant head)], set`
    """
    swapped = torch.cat([kept.new_zeros(1, *kept.shape[1:]), ~kept])
    tree, variant_of = [], torch.zeros(len(swapped), dtype=torch.long, device=kept.device)
    for mask in swapped.unbind(1):
        paths = torch.cat([variant_of[:, None], mask.long()], dim=1)  # sorted, so that no swap comes first
        distinct, variant_of = torch.unique(paths, dim=0, return_inverse=True)
        tree.append((distinct[:, 0], distinct[:, 1:].bool()))
    return tree, variant_of[1:]


def _carry(weights: Weights, rows: Rows, tree: list[Branch], donor: Donor, directions: Tensor) -> Tensor:
    """How far every variant's read-out is from the unchanged one's, along the directions. `-> batch variant direction`

    `donor(layer, z of the unchanged run)` gives z of the donors, `batch head d_head` both. What the last MLP writes is wanted
    along the directions only, so it is projected before it is written, and differences are taken before that.
    """
    ids, directions = torch.tensor(rows, device=weights.wte.device), directions.to(weights.wte)
    before = engine.run(weights, [row[:-1] for row in rows], len(tree))
    carried = (weights.wte[ids[:, -1]] + weights.wpe[ids.shape[1] - 1]).unsqueeze(1)
    for layer, ((parent, swapped), (_, k, v)) in enumerate(zip(tree, before, strict=True)):
        block = weights.blocks[layer]
        z = engine.attend_last(block, carried, (k, v), weights.epsilon)
        z = torch.where(swapped.T[..., None], donor(layer, z[:, :, 0]).unsqueeze(2), z[:, :, parent])
        carried = engine.write(block, carried[:, parent], z)
        if layer + 1 < len(tree):
            carried = engine.finish(block, carried, weights.epsilon)
    hidden = engine.activate(block, carried, weights.epsilon)
    carried, hidden = (part - part[:, :1] for part in (carried, hidden))
    return carried @ directions.T + hidden @ (block.w_out @ directions.T)


def _in_batches(rows: Rows, weights: Weights, variants: int, run: Callable[[list[int]], Tensor]) -> Tensor:
    """Apply `run` to batches of equally long rows and put the results back in the order given, on the CPU.

    Batches are small enough for the widest tensor, the MLP's activations, to stay near the processor, and hold rows that begin
    alike together, because a shared beginning is run once.
    """
    widest = variants * weights.blocks[0].w_in.shape[1]
    order = sorted(range(len(rows)), key=lambda row: tuple(rows[row]))
    lengths = [len(rows[row]) for row in order]
    batches = [
        [order[place] for place in batch] for batch in batch_by_length(lengths, most_rows=max(1, NUMBERS // widest))
    ]
    with torch.inference_mode():
        together = torch.cat([run(batch) for batch in batches])[in_order(batches)].cpu()
    return together.clone()
