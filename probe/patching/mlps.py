"""Swaps of MLPs, and of what stands in the place of attention in a hybrid, at the word: what one of
them makes there is the donor's, and what is behind responds.

The counterpart of the swaps of heads, a variant per block. Of an MLP the activations are swapped,
of a mixer what it writes, so that a family that norms what is written, or the sum behind it, norms
the swapped write likewise. A swap at the word touches no state that a mixer kept of the positions
before it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from probe.model import forward, fused
from probe.model.fused import PositionTables
from probe.model.weights import Weights
from probe.patching.heads import in_batches
from probe.patching.inputs import Rows, Texts, target_texts


def swap_mlps(weights: Weights, rows: Rows, donor_hidden: Tensor, directions: Tensor) -> Tensor:
    """How far the word's vector moves along each direction when one MLP's activations at the word
    are the donor's, for the MLP of every block.

    `rows`: token ids up to and including the word, or texts with their position · `donor_hidden:
    row layer d_mlp` · `directions: row stage d_model`, read behind every block and, where there are
    more stages, behind the final norm -> `row layer stage`: the change of <resid, direction>, 0
    before the swapped block.
    """

    return _swap_all(weights, rows, donor_hidden, directions, mixers=False)


def swap_mixers(weights: Weights, rows: Rows, donor_out: Tensor, directions: Tensor) -> Tensor:
    """The same when what the mixer of one layer without attention writes at the word is the
    donor's, for every such layer.

    `donor_out: row layer d_model`, of all layers -> `row mixer stage`: the layers without attention
    in their order.
    """
    return _swap_all(weights, rows, donor_out, directions, mixers=True)


def _swap_all(
    weights: Weights, rows: Rows, donors: Tensor, directions: Tensor, *, mixers: bool
) -> Tensor:
    def swap(texts: Texts, members: list[int], tables: PositionTables) -> Tensor:
        given = donors[members].to(weights.device, weights.dtype)
        return _swap(weights, texts, given, directions[members], tables, mixers=mixers)

    doing = "Swapping mixers" if mixers else "Swapping MLPs"
    texts = target_texts(weights, rows, doing)
    return in_batches(texts, weights, 1 + donors.shape[1], swap)


def _swap(
    weights: Weights,
    texts: Texts,
    donors: Tensor,
    directions: Tensor,
    tables: PositionTables,
    *,
    mixers: bool,
) -> Tensor:
    """Those swaps in equally long texts: variant 0 is the unchanged run, every block that has what
    is swapped adds one."""
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
    swapped_blocks = sum(not mixers or block.mixer is not None for block in weights.blocks)
    moved = []
    for layer, block in enumerate(weights.blocks):
        known = None
        if weights.causal:
            _, k, v = next(before)
            known = k, v
        z = fused.attend_live(weights, block, carried, known, tables)
        resid_mid = fused.write(weights, block, carried, z)
        if mixers and block.mixer is not None:
            own = carried[:, :1]
            swapped = resid_mid[:, :1].clone()
            writer = fused.attention_of(block)
            given = donors[:, layer]
            swapped[row, 0, at] = fused.add(weights.config, writer, own[row, 0, at], given)
            resid_mid = torch.cat([resid_mid, swapped], dim=1)
            carried = torch.cat([carried, own], dim=1)
        hidden = fused.activate(
            weights, block, carried if weights.config.family.parallel else resid_mid
        )
        if not mixers:
            swapped = hidden[:, :1].clone()
            swapped[row, 0, at] = donors[:, layer]
            resid_mid = torch.cat([resid_mid, resid_mid[:, :1]], dim=1)
            hidden = torch.cat([hidden, swapped], dim=1)
        carried = fused.write_mlp(weights, block, resid_mid, hidden)
        moved.append(_along(carried[row, :, at], stages[layer], swapped_blocks))
    if behind := stages[len(weights.blocks) :]:
        final = forward.unembedding_input(weights, carried[row, :, at])
        moved += [_along(final, direction, swapped_blocks) for direction in behind]
    return torch.stack(moved, dim=-1)


def _along(resid: Tensor, direction: Tensor, swapped: int) -> Tensor:
    """How far each variant is from the unchanged run, which stands first; 0 for those of later
    blocks. `batch variant d_model, batch d_model -> batch swapped`"""
    moved = torch.einsum("bvd,bd->bv", resid[:, 1:] - resid[:, :1], direction)
    return functional.pad(moved, (0, swapped - moved.shape[1]))
