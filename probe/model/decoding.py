"""An encoder-decoder from its raw weights, beyond single attentions: the encoder's output, the decoder's logits, and the same
logits at the last target position when heads of cross-attention there are given other values.

The decoder looks back only, so a change at its last position changes nothing before it: variants are carried through the layers
as single vectors, against the keys and values of the unchanged run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.model import attention as formulas
from probe.model import ends, forward
from probe.model.architectures import FAMILIES, Attention
from probe.model.config import Config
from probe.model.load import Model
from probe.model.weights import Block, Stack, read_stacks


@dataclass(frozen=True, eq=False)
class Parts:
    """What a run needs of a model: raw weights, the same by attention, and what the table says of each attention."""

    weights: Mapping[str, Tensor]
    config: Config
    stacks: Mapping[str, Stack]
    attentions: Mapping[str, Attention]

    def layers(self) -> list[tuple[Block, Block]]:
        """Self-attention (with the MLP) and cross-attention of every layer of the decoder."""
        return list(zip(self.stacks["decoder"].blocks, self.stacks["cross"].blocks, strict=True))

    def bias(self, name: str, n: int) -> Tensor | None:
        """What is added to the scores of self-attention over `n` positions."""
        return forward.position_bias(self.weights, self.config, self.attentions[name], n)


@dataclass(frozen=True, eq=False)
class Decoded:
    """The decoder's run over a target, as far as its last position needs it: one entry per layer, then the logits there.

    `entering: 1 d_model` · `own: (k, v), head pos d_head` · `read: (k, v), head key_pos d_head` · `z: layer head 1 d_head`, of
    cross-attention · `logits: d_vocab`.
    """

    entering: Tensor
    own: Sequence[tuple[Tensor, Tensor]]
    read: Sequence[tuple[Tensor, Tensor]]
    z: Tensor
    logits: Tensor


def read_parts(model: Model) -> Parts:
    """The weights where the model has them, in its own type."""
    attentions: dict[str, Attention] = {
        attention.name: attention for attention in FAMILIES[model.config.architecture].attentions
    }
    return Parts(model.weights, model.config, read_stacks(model.weights, model.config), attentions)


def encode(parts: Parts, ids: Sequence[int]) -> Tensor:
    """What the decoder reads of a source. `-> key_pos d_model`"""
    resid = _embed(parts, ids, "encoder")
    bias = parts.bias("encoder", len(ids))
    for block in parts.stacks["encoder"].blocks:
        steps = forward.attend(block, resid, parts.config, parts.attentions["encoder"], bias=bias)
        resid = forward.mlp(block, steps["resid_mid"], resid, parts.config)["resid_post"]
    return ends.finish(parts.weights, resid, parts.config, side="encoder")


def decode(parts: Parts, ids: Sequence[int], memory: Tensor) -> Decoded:
    """The decoder over `ids`, reading `memory: ... key_pos d_model`; leading axes of the memory lead everything kept."""
    config, resid = parts.config, _embed(parts, ids, "decoder")
    entering, bias, own, read, z = resid[-1:], parts.bias("decoder", len(ids)), [], [], []
    for block, crossing in parts.layers():
        itself = forward.attend(block, resid, config, parts.attentions["decoder"], bias=bias)
        across = forward.attend(crossing, itself["resid_mid"], config, parts.attentions["cross"], memory=memory)
        own.append((itself["k"], itself["v"]))
        read.append((across["k"], across["v"]))
        z.append(across["z"][..., -1:, :])
        resid = forward.mlp(block, across["resid_mid"], resid, config)["resid_post"]
    return Decoded(entering, own, read, torch.stack(z), _logits(parts, resid[..., -1:, :]))


def carry(parts: Parts, run: Decoded, donor_z: Tensor, swapped: Tensor) -> Tensor:
    """Logits at the last position when the heads of cross-attention that are `swapped` have the donor's z there.

    `donor_z: layer head 1 d_head`, `swapped: variant layer head -> variant d_vocab`. Everything else responds.
    """
    config = parts.config
    resid = run.entering.expand(len(swapped), 1, -1)
    bias = parts.bias("decoder", run.own[0][0].shape[-2])
    bias = None if bias is None else bias[:, -1:]
    for layer, (block, crossing) in enumerate(parts.layers()):
        z = _look_back(parts, block, resid, run.own[layer], bias)
        middle = forward.leave(block, resid, z, config)["resid_mid"]
        x = forward.enter(crossing, middle, config)
        q = forward.project(x, crossing.w_q, crossing.b_q)
        k, v = run.read[layer]
        z = formulas.mix(_pattern(parts, q, k, "cross", None), v)
        z = torch.where(swapped[:, layer, :, None, None], donor_z[layer], z)
        middle = forward.leave(crossing, middle, z, config)["resid_mid"]
        resid = forward.mlp(block, middle, resid, config)["resid_post"]
    return _logits(parts, resid)


def _look_back(parts: Parts, block: Block, resid: Tensor, before: tuple[Tensor, Tensor], bias: Tensor | None) -> Tensor:
    """z of self-attention at the last position of every variant, its own key and value in place of the unchanged run's."""
    x = forward.enter(block, resid, parts.config)
    q, *own = forward.ask(block, x, x, parts.config)
    k, v = (
        torch.cat([known[:, :-1].expand(len(resid), -1, -1, -1), new], dim=-2)
        for known, new in zip(before, own, strict=True)
    )
    return formulas.mix(_pattern(parts, q, k, "decoder", bias), v)


def _pattern(parts: Parts, q: Tensor, k: Tensor, name: str, bias: Tensor | None) -> Tensor:
    scores = forward.score(q, k, parts.config, parts.attentions[name], bias)
    return forward.softmax(scores, parts.config)


def _embed(parts: Parts, ids: Sequence[int], side: str) -> Tensor:
    table = parts.weights[FAMILIES[parts.config.architecture].embed + ".weight"]
    return ends.embed(parts.weights, torch.tensor(ids, device=table.device), parts.config, side=side, dtype=table.dtype)


def _logits(parts: Parts, resid: Tensor) -> Tensor:
    """Of the last position only. `... 1 d_model -> ... d_vocab`"""
    final = ends.finish(parts.weights, resid, parts.config, side="decoder")
    return ends.logits(parts.weights, final, parts.config)[..., 0, :]
