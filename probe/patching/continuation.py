"""One run with chosen heads changed at one position, and what the model writes after it, token by token.

Only the positions that a change can touch are run again, against the keys and values of the unchanged run before them
(`probe.patching.live.keep`); every token that is written adds its own keys and values. With no head changed this is the
unchanged run.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probe.model import forward
from probe.model.weights import Weights
from probe.patching import engine, patterns
from probe.patching.live import Both
from probe.patching.patterns import KeysValues, Places


class Change(NamedTuple):
    """z that chosen heads get at position `at`: `z: layer head d_head`, `heads: layer head`, True where changed."""

    at: int
    z: Tensor
    heads: Tensor


class Run(NamedTuple):
    """A run as far as it got: keys and values of every block, `1 kv_head pos d_head` · `final: pos d_model`, what left
    the last block at the positions that were run last · `stream: depth d_model`, the vector at the changed position at
    every depth (empty behind it).
    """

    known: Sequence[KeysValues]
    final: Tensor
    stream: Tensor


def rerun(both: Both, change: Change) -> Run:
    """The run of row 0 of `both` with the heads changed: from the position of the change on, or whole where the model
    reads both ways.
    """
    start = change.at if both.weights.causal else 0
    known = [(step.k[:1, :, :start], step.v[:1, :, :start]) for step in both.steps]
    with torch.inference_mode():
        return _extend(both.weights, known, both.steps[0].resid_pre[:1, start:], both.places, change)


def write_on(weights: Weights, run: Run, count: int, *, end: int | None = None) -> Iterator[int]:
    """Up to `count` token ids, each the one with the largest logit after those before it; stops before the token `end`
    and with the context window.
    """
    n = run.known[0][0].shape[-2]
    count = min(count, weights.config.n_ctx - n)
    places = patterns.places_of(weights, n + max(0, count))
    for pos in range(n, n + count):
        with torch.inference_mode():
            token = int(forward.unembed(weights, run.final[-1]).argmax())
            if token == end:
                return
            parts = forward.embedding_parts(
                weights,
                torch.tensor([[token]], device=weights.device),
                torch.tensor([pos], device=weights.device),
            )
            entering = forward.embedding_norm(weights, forward.sum_of(parts))
            yield token
            run = _extend(weights, run.known, entering, places)


def swapped(z: Tensor, given: Tensor, heads: Tensor) -> Tensor:
    """z at one position, the given one in chosen heads. `head d_head, head d_head, head -> head d_head`"""
    return torch.where(heads[:, None], given.to(z), z)


def _extend(
    weights: Weights, known: Sequence[KeysValues], resid: Tensor, places: Places, change: Change | None = None
) -> Run:
    """Run the positions behind the known ones. `1 pos d_model`"""
    start, n = known[0][0].shape[-2], resid.shape[1]
    pos = torch.arange(start, start + n, device=weights.device)[None]
    grown: list[KeysValues] = []
    stream: list[Tensor] = []
    for layer, (block, before) in enumerate(zip(weights.blocks, known, strict=True)):
        q, new_k, new_v = engine.project(weights, block, resid, places, pos)
        k, v = torch.cat([before[0], new_k], dim=-2), torch.cat([before[1], new_v], dim=-2)
        grown.append((k, v))
        z = patterns.attend(weights, block, q, k, v, places).transpose(1, 2)  # 1 pos head d_head
        if change is not None:
            z[0, change.at - start] = swapped(z[0, change.at - start], change.z[layer], change.heads[layer])
            stream.append(resid[0, change.at - start])
        resid = engine.finish(weights, block, resid, engine.write(weights, block, resid, z))
    if change is not None:
        stream.append(resid[0, change.at - start])
    return Run(grown, resid[0], torch.stack(stream) if stream else resid[0, :0])
