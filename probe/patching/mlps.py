"""Swaps of MLPs, and of what stands in the place of attention in a hybrid, at the word: what one of
them makes there is the donor's, and what is behind responds.

The counterpart of the swaps of heads, a variant per block. Of an MLP the activations are swapped,
of a mixer what it writes, so that a family that norms what is written, or the sum behind it, norms
the swapped write likewise. A swap at the word touches no state that a mixer kept of the positions
before it.
"""

import torch
from torch import Tensor

from probe.model.weights import Weights
from probe.patching.heads import moved_by_edits
from probe.patching.inputs import Rows, target_texts
from probe.patching.variants import ATTN_OUT, HIDDEN, branches


def swap_mlps(weights: Weights, rows: Rows, donor_hidden: Tensor, directions: Tensor) -> Tensor:
    """How far the word's vector moves along each direction when one MLP's activations at the word
    are the donor's, for the MLP of every block.

    `rows`: token ids up to and including the word, or texts with their position · `donor_hidden:
    row layer d_mlp` · `directions: row stage d_model`, read behind every block and, where there are
    more stages, behind the final norm -> `row layer stage`: the change of <resid, direction>, 0
    before the swapped block.
    """
    texts = target_texts(weights, rows, "Swapping MLPs")
    tree = branches(_one_each(weights))
    along = directions[:, :, None]  # row stage direction d_model
    moved = moved_by_edits(
        weights, texts, site=HIDDEN, tree=tree, donors=donor_hidden, directions=along
    )
    return moved[..., 0]


def swap_mixers(weights: Weights, rows: Rows, donor_out: Tensor, directions: Tensor) -> Tensor:
    """The same when what the mixer of one layer without attention writes at the word is the
    donor's, for every such layer.

    `donor_out: row layer d_model`, of all layers -> `row mixer stage`: the layers without attention
    in their order.
    """
    texts = target_texts(weights, rows, "Swapping mixers")
    tree = branches(_one_each(weights)[~weights.has_heads])
    along = directions[:, :, None]  # row stage direction d_model
    moved = moved_by_edits(
        weights, texts, site=ATTN_OUT, tree=tree, donors=donor_out, directions=along
    )
    return moved[..., 0]


def _one_each(weights: Weights) -> Tensor:
    """For each block a set that edits it alone. `-> set layer 1`"""
    return torch.eye(len(weights.blocks), dtype=torch.bool, device=weights.device)[..., None]
