"""The hooked side: one run of the bridge, every attention read by the table, lying hooks replaced by what they should hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probe.families import forward
from probe.families.entry import Attention
from probe.families.table import FAMILIES
from probe.families.tensors import Stack, layers_of, read_stacks

if TYPE_CHECKING:
    from probe.models import Model

HEADS_BEHIND_POS = ("q", "k", "v", "z")
SHARED = ("k", "v")


@dataclass(frozen=True)
class Reading:
    """One run: the tensors of each attention by its name in the table, stacked over layers; its weights; the logits.

    `logits: pos d_vocab` are those of the head in the bridge, which is a random one when the checkpoint has none.
    """

    tensors: Mapping[str, Mapping[str, Tensor]]
    stacks: Mapping[str, Stack]
    logits: Tensor


def read(model: "Model", ids: Sequence[int], target: Sequence[int] | None = None) -> Reading:
    """Run `ids` (and `target` through the decoder, where there is one) and keep every tensor of every attention, on the CPU."""
    attentions = FAMILIES[model.config.architecture].attentions
    kept: dict[str, dict[str, list[Tensor]]] = {
        attention.name: {name: [] for name in attention.hooks} for attention in attentions
    }

    def keep(name: str, quantity: str, tensor: Tensor, hook: object) -> None:
        kept[name][quantity].append(tensor[0].detach().cpu().clone())

    hooks = [
        (f"{attention.blocks}.{layer}.{hook}", partial(keep, attention.name, quantity))
        for attention in attentions
        for layer in range(layers_of(attention, model.config))
        for quantity, hook in attention.hooks.items()
    ]
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        logits = run(model, ids, target)
    stacks = read_stacks(model.weights, model.config)
    tensors: dict[str, dict[str, Tensor]] = {
        attention.name: _whole(model, attention, stacks[attention.name], kept[attention.name])
        for attention in attentions
    }
    return Reading(tensors, stacks, logits[0].detach().cpu())


def run(model: "Model", ids: Sequence[int], target: Sequence[int] | None = None) -> Tensor:
    """One forward of the bridge with every token attended to: a mask made from ids would drop the padding token."""
    tokens = torch.tensor([ids], device=model.device)
    mask = torch.ones_like(tokens)
    if target is None:
        return model.bridge(tokens, attention_mask=mask)
    return model.bridge(tokens, attention_mask=mask, decoder_input=torch.tensor([target], device=model.device))


def _whole(
    model: "Model", attention: Attention, stack: Stack, kept: Mapping[str, Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Stacked over layers, heads first, keys and values repeated for the heads that share them, repairs made."""
    found = {name: torch.stack(list(layers)) for name, layers in kept.items()}
    found |= {name: found[name].transpose(1, 2) for name in HEADS_BEHIND_POS}
    heads = model.config.n_heads
    found |= {name: forward.share_heads(found[name], heads) for name in SHARED}
    if "scores" in attention.lies:
        biases = forward.position_bias(model.weights, model.config, attention, found["q"].shape[-2])
        found["scores"] = forward.score(found["q"], found["k"], model.config, attention, biases)
    if "resid_mid" not in found:
        found["resid_mid"] = found["resid_pre"] + found["attn_out"]
    return found
