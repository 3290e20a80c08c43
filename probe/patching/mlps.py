"""Swaps of MLPs at the word: the activations of one MLP are the donor's, and what is behind
responds.

The counterpart of the swaps of heads, a variant per block. What is swapped are the activations, so
that a family that norms what an MLP writes, or the sum behind it, norms the swapped write likewise.
"""

import torch
from torch import Tensor
from torch.nn import functional

from probe.model import forward, fused
from probe.model.fused import PositionTables
from probe.model.weights import Weights
from probe.patching.heads import Rows, Texts, _in_batches


def swap_mlps(weights: Weights, rows: Rows, donor_hidden: Tensor, directions: Tensor) -> Tensor:
    """How far the word's vector moves along each direction when one MLP's activations at the word
    are the donor's, for the MLP of every block.

    `rows`: token ids up to and including the word, or texts with their position · `donor_hidden:
    row layer d_mlp` · `directions: row stage d_model`, read behind every block and, where there are
    more stages, behind the final norm -> `row layer stage`: the change of <resid, direction>, 0
    before the swapped block.
    """

    def swap(texts: Texts, members: list[int], tables: PositionTables) -> Tensor:
        donors = donor_hidden[members].to(weights.device, weights.dtype)
        return _swap(weights, texts, donors, directions[members], tables)

    return _in_batches(rows, weights, 1 + donor_hidden.shape[1], swap)


def _swap(
    weights: Weights, texts: Texts, donors: Tensor, directions: Tensor, tables: PositionTables
) -> Tensor:
    """`swap_mlps` of equally long texts: variant 0 is the unchanged run, every block adds one."""
    ids = torch.tensor([text.ids for text in texts], device=weights.device)
    unchanged = ids.shape[1] - 1 if weights.causal else 0  # positions before the word
    row = torch.arange(len(ids), device=weights.device)
    at = torch.tensor([text.at - unchanged for text in texts], device=weights.device)
    pos = torch.arange(unchanged, ids.shape[1], device=weights.device)
    parts = forward.embedding_parts(weights, ids[:, unchanged:], pos)
    carried = forward.embedding_norm(weights, forward.sum_embeddings(parts)).unsqueeze(1)
    before = fused.run(
        weights, [text.ids[:unchanged] for text in texts], len(weights.blocks), tables
    )
    stages = directions.to(weights.device, weights.dtype).unbind(1)
    moved = []
    for layer, block in enumerate(weights.blocks):
        known = None
        if weights.causal:
            _, k, v = next(before)
            known = k, v
        z = fused.attend_live(weights, block, carried, known, tables)
        resid_mid = fused.write(weights, block, carried, z)
        hidden = fused.activate(
            weights, block, carried if weights.config.family.parallel else resid_mid
        )
        swapped = hidden[:, :1].clone()
        swapped[row, 0, at] = donors[:, layer]
        carried = fused.write_mlp(
            weights,
            block,
            torch.cat([resid_mid, resid_mid[:, :1]], dim=1),
            torch.cat([hidden, swapped], dim=1),
        )
        moved.append(_along(carried[row, :, at], stages[layer], len(weights.blocks)))
    for direction in stages[len(weights.blocks) :]:
        final = forward.unembedding_input(weights, carried[row, :, at])
        moved.append(_along(final, direction, len(weights.blocks)))
    return torch.stack(moved, dim=-1)


def _along(resid: Tensor, direction: Tensor, layers: int) -> Tensor:
    """How far each variant is from the unchanged run, which stands first; 0 for those of later
    blocks. `batch variant d_model, batch d_model -> batch layer`"""
    moved = torch.einsum("bvd,bd->bv", resid[:, 1:] - resid[:, :1], direction)
    return functional.pad(moved, (0, layers - moved.shape[1]))
