"""Three properties of the hooks of a freshly loaded model on one short text, for every attention of its family."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probe.model import hooks
from probe.model.architectures import FAMILIES, Attention
from probe.model.config import refuse
from probe.model.weights import read_stacks

if TYPE_CHECKING:
    from probe.model.load import Model


def check_family(model: "Model", ids: Sequence[int]) -> None:
    """Pattern rows sum to 1; a causal attention does not look ahead; an edit of one head's z reaches the logits.

    Raises ModelError naming the property that fails.
    """
    family = FAMILIES[model.config.architecture]
    target = [model.config.start_token or 0, *ids[:-1]] if family.kind == "encoder-decoder" else None
    reading = hooks.read(model, ids, target)
    for attention in family.attentions:
        pattern = reading.tensors[attention.name]["pattern"]
        sums = pattern.sum(-1)
        ahead = attention.causal and bool((pattern.triu(1) != 0).any())
        problems = {
            "the rows of its attention pattern do not sum to 1": not torch.allclose(
                sums, torch.ones_like(sums), rtol=0, atol=1e-5
            ),
            "a position looks ahead at a later token": ahead,
            "an edit of a head's z does not change its logits": not _edit_is_felt(
                model, attention, ids, target, reading.logits
            ),
        }
        for problem, found in problems.items():
            if found:
                step = f"load an unmodified {family.name}"
                raise refuse(model.origin.location, f"its hooks fail the self-check: {problem}", step)


def _edit_is_felt(
    model: "Model", attention: Attention, ids: Sequence[int], target: Sequence[int] | None, logits: Tensor
) -> bool:
    """True when moving the z of a head of the last layer that writes at all moves the logits."""
    stack = read_stacks(model.weights, model.config)[attention.name]
    writers = [head for head, w_o in enumerate(stack.blocks[-1].w_o) if bool((w_o != 0).any())]

    def edit(head: int, z: Tensor, hook: object) -> Tensor:
        moved = z.clone()
        push = torch.linspace(1.0, 2.0, z.shape[-1], dtype=z.dtype, device=z.device)
        moved[:, :, head] += push * (1 + z.abs().max())
        return moved

    targets = None if target is None else [target]
    where = f"{attention.blocks}.{len(stack.blocks) - 1}.{attention.hooks['z']}"
    for head in writers:
        with torch.inference_mode(), model.bridge.hooks(fwd_hooks=[(where, partial(edit, head))]):
            if not torch.equal(hooks.run(model, [ids], targets)[0].cpu(), logits):
                return True
    return not writers
