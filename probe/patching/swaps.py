"""Intervention: give one head's output at the word another sentence's value, and see how far the word's vector moves.

Every one of the layers x heads swaps is performed, none is approximated. A swapped run differs from the base run only at
the target position (the model is causal and the sentence is cut at the word), so all variants are carried through the later
layers as single vectors against the base run's keys and values (`probe.patching.engine`). Families beside GPT-2, among them those that read
what comes after the word, carry every position of every variant (`probe.model.general`).

Sources: Heimersheim & Nanda 2024 and Zhang & Nanda 2024 (activation patching, denoising and noising).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from probe.model import general
from probe.model.general import General
from probe.model.replay import Weights
from probe.model.tokens import Placed, batch_by_length, in_order
from probe.patching import engine

NUMBERS = 2**22
SETS = 256
Branch = tuple[Tensor, Tensor]
Rows = Sequence[Placed | Sequence[int]]
Texts = Sequence[Placed]
Donor = Callable[[int, Tensor], Tensor]


def target_z(weights: Weights | General, rows: Rows, depth: int) -> Tensor:
    """z of every head at the word of each row, from the same engine that swaps. `-> row layer head d_head`"""

    def read(texts: Texts, _: list[int]) -> Tensor:
        seen: list[Tensor] = []

        def keep(layer: int, own: Tensor) -> Tensor:
            seen.append(own)
            return own

        tree = _branches(_all_but_one(weights, depth)[:0])[0]
        _carry(weights, texts, tree, keep, torch.zeros(0, weights.shape[2], device=weights.device))
        return torch.stack(seen, dim=1)

    return _in_batches(rows, weights, 1, read)


def swap_heads(weights: Weights | General, rows: Rows, donor_z: Tensor, directions: Tensor) -> Tensor:
    """How far the read-out moves along each direction when one head's z at the target is the donor's, for every head.

    `rows`: token ids up to and including the target, or `Placed` texts, of which a causal model runs as much · `donor_z: row
    layer head d_head`, whose layer axis says how many blocks stand before the read-out · `directions: direction d_model` ->
    `row layer head direction`: the change of <resid, direction>, 0 when the donor is the sentence itself.
    """
    kept = _all_but_one(weights, donor_z.shape[1])
    return swap_sets(weights, rows, donor_z, kept, directions).unflatten(1, donor_z.shape[1:3])


def swap_pairs(weights: Weights | General, a: Rows, b: Rows, directions: Tensor, *, depth: int) -> Tensor:
    """`swap_heads` of pairs of equal length in both directions, each the other's donor, in the runs that the swaps need anyway.

    `-> pair recipient layer head direction`: recipient 0 is `a` with z of `b`, recipient 1 the other way round.
    """
    tree, variant_of = _branches(_all_but_one(weights, depth))
    others = placed(weights, b)

    def swap(texts: Texts, members: list[int]) -> Tensor:
        both = [*texts, *(others[pair] for pair in members)]
        moved = _carry(weights, both, tree, lambda layer, own: own.roll(len(members), 0), directions)
        return moved[:, variant_of].unflatten(1, (depth, -1)).unflatten(0, (2, -1)).transpose(0, 1)

    return _in_batches(a, weights, 2 * len(tree[-1][0]), swap)


def swap_sets(weights: Weights | General, rows: Rows, donor_z: Tensor, kept: Tensor, directions: Tensor) -> Tensor:
    """Where the read-out moves when every head outside a set has the donor's z at the target, for many sets of heads.

    Heads inside a set, and all MLPs, are live: they respond to what changed below them. `rows`, `donor_z` and `directions` as in
    `swap_heads` · `kept: set layer head`, True inside the set -> `row set direction`: <resid - unchanged resid, direction>.
    """
    if isinstance(weights, General) and len(kept) > SETS:  # a variant is a whole text there
        parts = [swap_sets(weights, rows, donor_z, some, directions) for some in kept.split(SETS)]
        return torch.cat(parts, dim=1)
    tree, variant_of = _branches(kept.to(weights.device))

    def swap(texts: Texts, members: list[int]) -> Tensor:
        donors = donor_z[members].to(weights.device, weights.dtype)
        return _carry(weights, texts, tree, lambda layer, own: donors[:, layer], directions)[:, variant_of]

    return _in_batches(rows, weights, len(tree[-1][0]), swap)


def placed(weights: Weights | General, rows: Rows) -> list[Placed]:
    """Each text and where it is read: at the last token where ids are given alone; a causal model runs nothing behind the word."""
    placed = [row if isinstance(row, Placed) else Placed(tuple(row), len(row) - 1) for row in rows]
    if isinstance(weights, General) and not weights.attention.causal:
        return placed
    return [Placed(row.ids[: row.at + 1], row.at) for row in placed]


def _all_but_one(weights: Weights | General, depth: int) -> Tensor:
    """A set for every head below the read-out, of all the others. `-> (layer head) layer head`"""
    count = depth * weights.shape[1]
    return ~torch.eye(count, dtype=torch.bool, device=weights.device).unflatten(1, (depth, -1))


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


def _carry(weights: Weights | General, texts: Texts, tree: list[Branch], donor: Donor, directions: Tensor) -> Tensor:
    """How far every variant's read-out is from the unchanged one's, along the directions. `-> batch variant direction`

    `donor(layer, z of the unchanged run)` gives z of the donors, `batch head d_head` both. What the last MLP writes is wanted
    along the directions only, so it is projected before it is written, and differences are taken before that.
    """
    ids = torch.tensor([text.ids for text in texts], device=weights.device)
    directions = directions.to(weights.device, weights.dtype)
    if isinstance(weights, General):
        at = torch.tensor([text.at for text in texts], device=weights.device)
        return general.carry(weights, (ids, at), tree, donor, directions)
    before = engine.run(weights, [text.ids[:-1] for text in texts], len(tree))
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


def _in_batches(
    rows: Rows, weights: Weights | General, variants: int, run: Callable[[Texts, list[int]], Tensor]
) -> Tensor:
    """Apply `run` to batches of equally long texts and put the results back in the order given, on the CPU.

    Batches are small enough for the widest tensor, the MLP's activations, to stay near the processor, and hold rows that begin
    alike together, because a shared beginning is run once.
    """
    texts = placed(weights, rows)
    order = sorted(range(len(texts)), key=lambda row: texts[row].ids)
    lengths = [len(texts[row].ids) for row in order]
    d_mlp = weights.blocks[0].d_mlp
    widest = variants * d_mlp * (max(lengths, default=1) if isinstance(weights, General) else 1)
    batches = [
        [order[place] for place in batch] for batch in batch_by_length(lengths, most_rows=max(1, NUMBERS // widest))
    ]
    with torch.inference_mode():
        together = torch.cat([run([texts[row] for row in batch], batch) for batch in batches])[in_order(batches)].cpu()
    return together.clone()
