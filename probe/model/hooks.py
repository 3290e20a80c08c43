"""The hooked side: one run of the bridge, every attention read by the table, lying hooks replaced by what they should hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probe.model import forward
from probe.model.architectures import FAMILIES, Attention
from probe.model.weights import Stack, layers_of, read_stacks

if TYPE_CHECKING:
    from probe.model.load import Model
HEADS_BEHIND_POS = ("q", "k", "v", "z")
SHARED = ("k", "v")
AT_ONE_PLACE = (*HEADS_BEHIND_POS, "pattern", "mlp_out", "resid_pre", "resid_post")


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
        logits = run(model, [ids], None if target is None else [target])
    stacks = read_stacks(model.weights, model.config)
    tensors: dict[str, dict[str, Tensor]] = {
        attention.name: _whole(model, attention, stacks[attention.name], kept[attention.name])
        for attention in attentions
    }
    return Reading(tensors, stacks, logits[0].detach().cpu())


def run(model: "Model", rows: Sequence[Sequence[int]], targets: Sequence[Sequence[int]] | None = None) -> Tensor:
    """One forward of the bridge on texts filled up on the right, with masks made from their lengths. `-> row pos d_vocab`

    A mask made from ids would drop a padding token that is part of a text. Behind a text's end the numbers mean nothing. A decoder
    needs no mask of its own: what is filled in comes after everything that is read.
    """
    ids = filled(model, rows)
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    mask = (torch.arange(ids.shape[1], device=model.device) < lengths[:, None]).long()
    if targets is None:
        return model.bridge(ids, attention_mask=mask)
    return model.bridge(ids, attention_mask=mask, decoder_input=filled(model, targets))


def filled(model: "Model", rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids as one tensor, the shorter ones filled up on the right. `-> row pos`"""
    width, fill = max(map(len, rows)), model.tokenizer.pad_token_id or 0
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], device=model.device)


def read_at(model: "Model", rows: Sequence[Sequence[int]], at: Sequence[int]) -> dict[str, Tensor]:
    """What `probe.model.records.TargetStates` holds of one position of each text, read in one run of a family with one stack.

    `resid: row depth d_model` · `mlp_out: row layer d_model` · `q k v z: row layer head d_head` · `pattern: row layer head key_pos`.
    """
    (attention,) = FAMILIES[model.config.architecture].attentions
    row, place = torch.arange(len(rows), device=model.device), torch.tensor(at, device=model.device)
    kept: dict[str, list[Tensor]] = {name: [] for name in AT_ONE_PLACE}

    def keep(name: str, tensor: Tensor, hook: object) -> None:
        kept[name].append((tensor[row, :, place] if name == "pattern" else tensor[row, place]).clone())

    hooks = [
        (f"{attention.blocks}.{layer}.{attention.hooks[name]}", partial(keep, name))
        for layer in range(model.config.n_layers)
        for name in AT_ONE_PLACE
    ]
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        run(model, rows)
    kept["resid"] = [*kept.pop("resid_pre"), kept.pop("resid_post")[-1]]
    found = {name: torch.stack(layers, dim=1).cpu() for name, layers in kept.items()}
    return found | {
        name: forward.share_heads(found[name].unsqueeze(-2), model.config.n_heads).squeeze(-2) for name in SHARED
    }


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
