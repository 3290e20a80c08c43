"""Replacing one part of a query or a key by a donor's: how the score and the attention of a head
change.

The attribution (`probe.model.qk`) holds the scales of all norms fixed and gives each part's
contribution. Here the norm before the attention, the norms of queries and keys, and the softmax
respond to the change. Nothing before the head changes, and only the head's own attention is read,
so everything is computed from the quantities of one forward.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from probe.model import attention, blocks, qk
from probe.model.model import Config
from probe.model.records import Trace
from probe.model.weights import Block


class Replaced(NamedTuple):
    """How much is lost if one part is the donor's, as a mean over the donor's positions. `part`
    each

    attributed: of the contrast of scores, as predicted by the attribution
    score: of the contrast of scores, as measured
    attention: of the attention
    """

    labels: tuple[str, ...]
    attributed: Tensor
    score: Tensor
    attention: Tensor


def replace_parts(
    trace: Trace,
    layer: int,
    head: int,
    recipient: qk.Parts,
    donor: qk.Parts,
    *,
    side: qk.Side,
    at: int,
    weights: Mapping[int, float],
) -> Replaced:
    """How much is lost if one part of the query at `at`, or of the key of a token, is the
    donor's, in float64.

    recipient: the stream that enters the layer at that position (`probe.model.qk.stream_parts`)
    donor: such a stream at some positions of this or another text
    weights: the contrast: Σ weight · score[at, position], before a soft cap; its first position,
        with weight 1, is the token whose key is changed and whose attention is read

    Every other part is unchanged. Each position of the donor provides its part separately, and the
    losses are averaged. A mean of parts would be shorter than each of them, and the norm would
    respond to that.
    """
    source = next(iter(weights))
    pos = at if side == "query" else source
    labels, by_donor = _changes(recipient, donor)
    resid = trace.resid_pre[layer, pos].double()
    changes = by_donor.flatten(0, 1)  # (part donor) d_model
    variants = torch.cat([resid[None], resid + changes])  # unchanged first
    weight_of = torch.zeros(len(trace.tokens), dtype=torch.float64)
    weight_of[list(weights)] = torch.tensor([*weights.values()], dtype=torch.float64)

    # The other side of the score is unchanged, and so are all other keys.
    config = trace.stack.config
    block = qk.in_double(trace.stack.blocks[layer])
    everywhere = torch.arange(len(trace.tokens))
    shared = config.n_heads // config.n_kv_heads  # by so many heads, for which keys are repeated
    q = _placed(block, trace.q[layer].double(), block.norm_q, everywhere, config)
    k = _placed(block, trace.k[layer, ::shared].double(), block.norm_k, everywhere, config)
    query = q[head, at]  # d_head
    keys = k[qk.kv_head(head, config)]  # key_pos d_head
    met = _changed(block, config, head, side, pos, variants)  # variant d_head
    lost = _lost_with_norms_held(block, config, head, side, pos, resid, changes)  # change d_head
    if side == "query":
        scores = met @ keys.T / block.score_divisor
        attributed = lost @ keys.T @ weight_of / block.score_divisor
    else:
        scores = (keys @ query / block.score_divisor).repeat(len(variants), 1)
        scores[:, source] = met @ query / block.score_divisor
        attributed = lost @ query / block.score_divisor
    contrast = scores @ weight_of
    pattern = _pattern(trace, layer, head, at, scores)[:, source]
    losses = (attributed, contrast[0] - contrast[1:], pattern[0] - pattern[1:])
    return Replaced(labels, *(loss.view(len(labels), -1).mean(1) for loss in losses))


def _changes(recipient: qk.Parts, donor: qk.Parts) -> tuple[tuple[str, ...], Tensor]:
    """The change of each part if it is the donor's; a part that one text lacks is 0 there.
    Labels and `part donor d_model`
    """
    labels = tuple(dict.fromkeys([*recipient.labels, *donor.labels]))
    number = {label: row for row, label in enumerate(labels)}
    changes = torch.zeros(len(labels), *donor.vectors.shape[1:], dtype=torch.float64)
    for sign, parts in ((-1, recipient), (1, donor)):
        changes[[number[label] for label in parts.labels]] += sign * parts.vectors
    return labels, changes


def _changed(
    block: Block, config: Config, head: int, side: qk.Side, pos: int, variants: Tensor
) -> Tensor:
    """Queries or keys of changed streams at one position, normed and rotated.

    `variant d_model -> variant d_head`
    """
    weight, bias, norm, number = qk.projection_of(block, side, head, config)
    x = blocks.attention_input(block, variants, config)
    met = _placed(block, blocks.projection(x, weight, bias), norm, torch.tensor([pos]), config)
    return met[number]


def _placed(
    block: Block, x: Tensor, norm: Tensor | None, positions: Tensor, config: Config
) -> Tensor:
    """Queries or keys after their norm, rotated by their positions. `head pos d_head`, unchanged"""
    return blocks.rotate(block, blocks.norm_heads(x, norm, config), positions, config)


def _lost_with_norms_held(
    block: Block,
    config: Config,
    head: int,
    side: qk.Side,
    pos: int,
    resid: Tensor,
    changes: Tensor,
) -> Tensor:
    """How much each change takes from a query or a key if the scales of all norms are held at
    the unchanged stream's.

    `part d_model -> part d_head`
    """
    # One more term makes the sum equal to the unchanged stream, whose scales are held.
    remainder = resid + changes.sum(0)
    terms = torch.cat([-changes, remainder[None]])[:, None]
    names = tuple(map(str, range(len(terms))))
    read = qk.through_input_norm(block, qk.Parts(names, terms), config)
    met = qk.compared(block, side, head, read, [pos], config)
    return met.vectors[: len(changes), 0]


def _pattern(trace: Trace, layer: int, head: int, at: int, scores: Tensor) -> Tensor:
    """The attention of a head from one position, from its scores before the cap. `variant
    key_pos`, unchanged
    """
    weights = trace.stack
    block = weights.blocks[layer]
    if weights.config.attn_logit_softcapping:
        scores = attention.softcap(scores, weights.config.attn_logit_softcapping)
    n = len(trace.tokens)
    bias = blocks.position_bias(weights, n)
    if bias is not None:
        scores = scores + bias[head, at].cpu()
    scores = scores + blocks.mask(weights, torch.zeros(n, n), local=block.local)[at]
    return attention.softmax(scores)
