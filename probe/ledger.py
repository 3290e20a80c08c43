"""The residual stream at the word as a sum, and what each term contributes to the difference between two senses.

E after block d - 1 = token embedding + position embedding + Σ heads ΔE + Σ attention biases + Σ MLPs of the first d blocks. The
terms are projected on a sense axis; their shares of the difference of the sense means sum to 1, which checks the bookkeeping.

Source: Elhage et al. 2021 (the residual stream as a sum); Wang et al. 2022 (direct attribution).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.replay import Weights
from probe.senses import Axis
from probe.statistics import Array
from probe.trace import TargetStates


@dataclass(frozen=True)
class Share:
    """One component's part of the sense gap; layer and head are None where the component has none."""

    component: str
    layer: int | None
    head: int | None
    share: float


def head_contributions(weights: Weights, z: Tensor, axis: Axis) -> Tensor:
    """<ΔE, u> / gap of every head: how far its write moves the sense coordinate. `row layer head d_head -> row layer head`"""
    reading = torch.stack([axis.effect(block.w_o.cpu()) for block in weights.blocks[: z.shape[1]]])  # layer head d_head
    return (z.double() * reading).sum(-1)


def shares(weights: Weights, states: TargetStates, axis: Axis, a: Sequence[int], b: Sequence[int]) -> list[Share]:
    """S of every component up to the read-out depth: [mean over a - mean over b] of <component, u>, over the same of the whole.

    `a` and `b` are rows of `states`. The token embedding's share is exactly 0 when the word is the same token everywhere.
    """

    def centred(vectors: Tensor) -> Tensor:
        # before projecting, so that identical vectors have a share of exactly zero
        return (vectors - vectors[:1]).double()

    def difference(values: Tensor) -> Array:
        return np.asarray((values[list(a)].mean(0) - values[list(b)].mean(0)).numpy())

    depth, along = axis.depth, axis.effect
    whole = difference(along(centred(states.resid[:, depth])))
    heads = difference(head_contributions(weights, centred(states.z[:, :depth]), axis)) / whole
    mlps = difference(along(centred(states.mlp_out[:, :depth]))) / whole
    token, position = (
        float(difference(along(centred(part))) / whole) for part in (states.token_embedding, states.position_embedding)
    )
    found = [
        Share("token embedding", None, None, token),
        Share("position embedding", None, None, position),
    ]
    for layer in range(depth):
        found += [Share(f"L{layer}H{head}", layer, head, value) for head, value in enumerate(heads[layer].tolist())]
        found += [
            Share(f"attention bias {layer}", layer, None, 0.0),
            Share(f"MLP {layer}", layer, None, float(mlps[layer])),
        ]
    return found
