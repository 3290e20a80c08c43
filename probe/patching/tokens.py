"""Other tokens in a word's position: what that position holds at every depth.

An unambiguous noun in the word's position is one more variant of that position. A causal model has
already run everything before the word, so a variant costs only its tokens. A model that reads both
ways runs the whole text, because a new token changes what every other position reads.
"""

from collections.abc import Iterable, Sequence
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
    z: `row variant layer head d_head`
    hidden: `row variant layer d_mlp`, the activations of the MLPs
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
) -> ReplacedStates:
    """States at the word of every text, with each replacement in the word's position.

    texts: `at` is the position of the word's last token
    replacements: the token ids of each variant; they take the positions up to and including `at`,
        so each has the number of tokens of the word
    parts: the quantities to return; the others are empty, to save memory
    depth: the number of blocks that are run; by default all

    Each row of the result equals a run of the changed text alone.
    """
    tokens = torch.tensor(replacements, dtype=torch.long, device=weights.device)  # variant token
    blocks = len(weights.blocks) if depth is None else depth
    rows = list(texts)
    if weights.causal:
        rows = [TargetText(text.ids[: text.at + 1], text.at) for text in texts]

    def replace(batch: Texts, members: list[int], terms: PositionTerms) -> ReplacedStates:
        steps = run_at_word(weights, batch, blocks, terms, tokens=tokens)
        return _read(steps, parts)

    variants, width = tokens.shape
    return ReplacedStates(*in_batches(rows, weights, variants, replace, width=width))


def _read(steps: Iterable[Step], parts: Sequence[str]) -> ReplacedStates:
    """The states at the word, block by block; only the requested parts."""
    states: dict[str, list[Tensor]] = {"resid": [], "z": [], "hidden": []}
    for step in steps:
        if not step.layer:
            states["resid"].append(step.at_read_position(step.resid_pre))
        if "z" in parts:
            states["z"].append(_heads_read(step))
        if "hidden" in parts:
            states["hidden"].append(step.at_read_position(step.hidden))
        states["resid"].append(step.at_read_position(step.resid_post))
    empty = states["resid"][0][..., :0]  # row variant 0
    return ReplacedStates(
        *(torch.stack(part, dim=2) if part else empty for part in states.values())
    )


def _heads_read(step: Step) -> Tensor:
    """z at the word; 0 in a layer without heads. `row variant head d_head`"""
    z = step.at_read_position(step.z)
    if step.block.mixer is None:
        return z
    return z.new_zeros(*z.shape[:2], *step.run.weights.shape[1::2])
