"""The word's vector on its way through the layers: lengths, angles, what the blocks wrote, what it is near to.

Depth 0 enters the first block, depth d leaves block d - 1. The logit lens reads the vector at a depth as if it were the last one:
LN_f(E) W_Uᵀ, softmax; before the last layer that is a reading, not a thing the model does. Nearest tokens are token embeddings by
cosine.

Source: nostalgebraist 2020 (the logit lens).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe import attention, replay
from probe.trace import Trace
from probe.walk.scene import Scene

NEAREST = 5


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The leading tokens and their values: `ids values: depth position rank`."""

    ids: Tensor
    values: Tensor


def depths(trace: Trace, positions: Sequence[int]) -> Tensor:
    """The stream at every depth. `-> depth position d_model`"""
    places = list(positions)
    return torch.cat([trace.resid_pre[:, places], trace.resid_post[-1:, places]])


def lens(trace: Trace, positions: Sequence[int]) -> Neighbours:
    """What the model would say next if it stopped at each depth: the likeliest tokens and their probabilities."""
    logits = replay.unembed(trace.weights, depths(trace, positions).to(trace.weights.unembed.device)).cpu()
    probabilities = attention.softmax(logits)
    top = probabilities.topk(NEAREST)
    return Neighbours(top.indices, top.values)


def nearest(trace: Trace, positions: Sequence[int]) -> Neighbours:
    """The token embeddings nearest by cosine to the vector at each depth."""
    vectors, table = depths(trace, positions), trace.weights.wte.cpu()
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    top = (vectors @ torch.nn.functional.normalize(table, dim=-1).T).topk(NEAREST)
    return Neighbours(top.indices, top.values)


def token_cosine(trace: Trace, positions: Sequence[int]) -> Tensor:
    """How far the vector still points where its token embedding does. `-> depth position`"""
    ids = [trace.tokens.ids[pos] for pos in positions]
    return torch.nn.functional.cosine_similarity(depths(trace, positions), trace.weights.wte.cpu()[ids], dim=-1)


def apart(scene: Scene) -> tuple[Tensor, Tensor]:
    """The word here and in the other sentence: ‖difference‖ / mean length, and cosine, at the token and then at every depth."""
    weights = scene.trace.weights
    here, there = (
        torch.cat([weights.wte.cpu()[None, trace.tokens.ids[at]], depths(trace, [at])[:, 0]])
        for trace, at in ((scene.trace, scene.at), (scene.other, scene.there.at))
    )
    distance = (here - there).norm(dim=-1) / (0.5 * (here.norm(dim=-1) + there.norm(dim=-1)))
    return distance, torch.nn.functional.cosine_similarity(here, there, dim=-1)
