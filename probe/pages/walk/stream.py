"""The word's vector on its way through the layers: lengths, angles, what the blocks wrote, what it is near to.

Depth 0 enters the first block, depth d leaves block d - 1; the readings are those of `probe.model.lens`, for many positions at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.model.lens import logit_lens, residual_stream
from probe.model.records import Trace
from probe.pages.walk.scene import Scene

NEAREST = 5


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The leading tokens and their values: `ids values: depth position rank`."""

    ids: Tensor
    values: Tensor


def depths(trace: Trace, positions: Sequence[int]) -> Tensor:
    """The stream at every depth. `-> depth position d_model`"""
    return torch.stack([residual_stream(trace, at) for at in positions], dim=1)


def lens(trace: Trace, positions: Sequence[int]) -> Neighbours:
    """What the model would say next if it stopped at each depth: the likeliest tokens and their probabilities."""
    top = torch.stack([logit_lens(trace, at) for at in positions], dim=1).topk(NEAREST)
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
