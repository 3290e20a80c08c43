"""Swaps of MLPs, and of the mixers of a hybrid, at the word: one takes the donor's value, and
everything later responds.

These are the counterparts of the swaps of heads, with one variant for each block. An MLP's swap
replaces its activations, a mixer's swap its write. A family that norms the write, or the sum with
the write, norms the swapped one in the same way. A swap at the word does not change the state that
a mixer has built up at earlier positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from probe.model.variants import ATTN_OUT, HIDDEN, branches
from probe.model.weights import Weights
from probe.patching.heads import moved_by_edits
from probe.patching.inputs import Rows, target_texts


def swap_mlps(
    weights: Weights,
    rows: Rows,
    donor_hidden: Tensor,
    directions: Tensor,
    *,
    layers: Sequence[int] | None = None,
    length: bool = False,
) -> Tensor:
    """How far the word's vector moves along each direction if one MLP takes the donor's
    activations, for every MLP.

    `row layer stage`

    rows: token ids up to and including the word, or texts with their position
    donor_hidden: `row layer d_mlp`; the number of layers is the number of blocks that are run
    directions: `row stage d_model`, read after each block, or after the last ones if there are
        fewer; further stages are read after the final norm; or `row stage direction d_model`, then
        the result has this axis, too
    layers: of the MLPs that are swapped; by default all that are run
    length: append the length of the change to the axis of directions, which then always exists

    The result is the change of <resid, direction>; it is 0 before the swapped block.
    """
    texts = target_texts(weights, rows, "Cannot swap MLPs")
    one_each = _one_each(weights, donor_hidden.shape[1])
    tree = branches(one_each if layers is None else one_each[list(layers)])
    has_one = directions.ndim == 3
    along = directions[:, :, None] if has_one else directions  # row stage direction d_model
    shifts = moved_by_edits(
        weights,
        texts,
        site=HIDDEN,
        tree=tree,
        donors=donor_hidden,
        directions=along,
        length=length,
    )
    return shifts[..., 0] if has_one and not length else shifts


def swap_mixers(weights: Weights, rows: Rows, donor_out: Tensor, directions: Tensor) -> Tensor:
    """How far the word's vector moves along each direction if one mixer writes what the donor's
    writes, for every mixer.

    `row mixer stage`

    rows, directions: as in `swap_mlps`
    donor_out: `row layer d_model`, of all layers

    The mixers are the layers without attention, in order.
    """
    texts = target_texts(weights, rows, "Cannot swap mixers")
    tree = branches(_one_each(weights, len(weights.blocks))[~weights.has_heads])
    along = directions[:, :, None]  # row stage direction d_model
    shifts = moved_by_edits(
        weights, texts, site=ATTN_OUT, tree=tree, donors=donor_out, directions=along
    )
    return shifts[..., 0]


def _one_each(weights: Weights, depth: int) -> Tensor:
    """For each of the first blocks, an edit set of this block alone. `-> edit_set layer 1`"""
    return torch.eye(depth, dtype=torch.bool, device=weights.device)[..., None]
