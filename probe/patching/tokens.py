"""Other tokens in a word's position: what that position holds at every depth.

An unambiguous noun in the word's position is one more variant of that position. A causal model has
already run everything before the word, so a variant costs only its tokens. A model that reads both
ways runs the whole text, because a new token changes what every other position reads.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from probe.model.blocks import PositionTerms
from probe.model.variants import Step, TargetText, run_at_word
from probe.model.weights import Weights
from probe.patching.heads import in_batches
from probe.patching.inputs import Texts


class ReplacedStates(NamedTuple):
    """The states at the word with other tokens in its position, on the CPU.

    resid: `row variant depth d_model`; depth 0 enters the first block
    z: `run layer head d_head`, the runs row by row, and in each row variant by variant; only those
        that are wanted
    hidden: `run layer d_mlp`, the activations of the MLPs
    """

    resid: Tensor
    z: Tensor
    hidden: Tensor


def replace_tokens(
    weights: Weights,
    texts: Sequence[TargetText],
    replacements: Sequence[Sequence[int]],
    *,
    parts: Sequence[str] = ReplacedStates._fields,
    depth: int | None = None,
    where: Tensor | None = None,
) -> ReplacedStates:
    """States at the word of every text, with each replacement in the word's position.

    texts: `at` is the position of the word's last token
    replacements: the token ids of each variant; they take the positions up to and including `at`,
        so each has the number of tokens of the word
    parts: the quantities to return; the others are empty, to save memory
    depth: the number of blocks that are run; by default all
    where: `row variant`, True where z and hidden are wanted; by default everywhere

    Each row of the result equals a run of the changed text alone.
    """
    tokens = torch.tensor(replacements, dtype=torch.long, device=weights.device)  # variant token
    blocks = len(weights.blocks) if depth is None else depth
    rows = list(texts)
    if weights.causal:
        rows = [TargetText(text.ids[: text.at + 1], text.at) for text in texts]

    variants, width = tokens.shape
    wanted = where
    if wanted is None:
        wanted = torch.ones(len(rows), variants, dtype=torch.bool, device="cpu")
    count = int(wanted.sum())
    number = wanted.flatten().cumsum(0).view_as(wanted) - 1  # among those that are wanted
    _, heads, d_model, d_head = weights.shape
    shapes = {
        "resid": (len(rows), variants, blocks + 1, d_model),
        "z": (count, blocks, heads, d_head) if "z" in parts else (count, 0),
        "hidden": (count, blocks, weights.blocks[0].d_mlp) if "hidden" in parts else (count, 0),
    }
    empty = partial(torch.empty, dtype=weights.dtype, device="cpu")
    states = ReplacedStates(**{name: empty(shape) for name, shape in shapes.items()})

    def replace(batch: Texts, members: list[int], terms: PositionTerms) -> list[Tensor]:
        here = wanted[members]
        to = number[members][here]
        for step in run_at_word(weights, batch, blocks, terms, tokens=tokens):
            if not step.layer:
                states.resid[members, :, 0] = step.at_read_position(step.resid_pre).cpu()
            if "z" in parts:
                states.z[to, step.layer] = _heads_read(step).cpu()[here]
            if "hidden" in parts:
                states.hidden[to, step.layer] = step.at_read_position(step.hidden).cpu()[here]
            states.resid[members, :, step.layer + 1] = step.at_read_position(step.resid_post).cpu()
        return []

    in_batches(rows, weights, variants, replace, width=width)
    return states


def _heads_read(step: Step) -> Tensor:
    """z at the word; 0 in a layer without heads. `row variant head d_head`"""
    z = step.at_read_position(step.z)
    if step.block.mixer is None:
        return z
    return z.new_zeros(*z.shape[:2], *step.run.weights.shape[1::2])
