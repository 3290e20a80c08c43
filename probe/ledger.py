"""The residual stream at one position as a sum, and what each term contributes to a sense or to the difference of two.

E after the first d blocks = token embedding + position embedding + Σ heads Σ sources A[t, j] V[j] W_O + Σ attention biases b_O +
Σ MLPs. b_V stays inside V; an MLP's term holds its own bias. The sum is exact, so `close` measures only rounding.

Projected on a sense axis there are two readings. `shares`: each component's part of the difference of the two sense means over
many sentences; they sum to 1. `ledger`: one sentence, each component's part of its own sense coordinate M, counted from what the
component writes on average halfway between the senses (`average`), because M is counted from the midpoint: what is the same in
every sentence, such as the word's own embedding and the biases, is then exactly 0, and the terms sum to M.

What this is: direct attribution at the read-out, everything downstream of a term as it was. What it is not: the effect of
changing the term (that is a swap, `probe.patching`). A source is a position, not a word of the text: from the second block on
its vector holds what earlier blocks gathered there. What a head wrote and an MLP then turned into sense is booked on the MLP.

Source: Elhage et al. 2021 (the residual stream as a sum); Wang et al. 2022 (direct attribution).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.errors import CrossCheckError, InputError
from probe.records import TargetStates, Trace
from probe.replay import Weights
from probe.senses import Axis
from probe.statistics import Array

CLOSES = 1e-4


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


@dataclass(frozen=True, eq=False)
class Term:
    """What one component adds to the residual stream at one position, by source: `vectors: source d_model`, `attention: source`.

    Sources are the positions up to this one for a head; everything else has a single one, with attention 1.
    """

    component: str
    layer: int | None
    head: int | None
    vectors: Tensor
    attention: Tensor


@dataclass(frozen=True)
class Entry:
    """One line of the ledger: a component, for a head by source: its position `pos` and `token`, as `Tokens.labels` has it.

    `norm` is the length of the vector in units of the residual stream; `contribution`, in fractions of the sense gap, is None
    without an axis.
    """

    component: str
    layer: int | None
    head: int | None
    pos: int | None
    token: str | None
    norm: float
    contribution: float | None


def terms(trace: Trace, depth: int, *, at: int) -> Iterator[Term]:
    """Every component's term of the residual stream at position `at` after `depth` blocks, in the order of the forward pass.

    Raises InputError for a depth or a position that the trace does not have.
    """
    layers = len(trace.weights.blocks)
    if not (0 <= depth <= layers and 0 <= at < len(trace.tokens)):
        raise InputError(
            f"Opening the ledger after {depth} blocks at position {at}: {trace.model_name} has {layers} blocks and the text "
            f"{len(trace.tokens)} tokens; give a depth from 0 to {layers} and a position from 0 to {len(trace.tokens) - 1}."
        )

    def single(component: str, layer: int | None, vector: Tensor) -> Term:
        return Term(component, layer, None, vector.cpu()[None], torch.ones(1))

    yield single("token embedding", None, trace.weights.wte[trace.tokens.ids[at]])
    yield single("position embedding", None, trace.weights.wpe[at])
    for layer, block in enumerate(trace.weights.blocks[:depth]):
        for head in range(len(block.w_o)):
            seen = trace.pattern[layer, head, at, : at + 1]  # later tokens are masked
            yield Term(f"L{layer}H{head}", layer, head, trace.delta_e_by_source(layer, head, at)[: at + 1], seen)
        yield single(f"attention bias {layer}", layer, block.b_o)
        yield single(f"MLP {layer}", layer, trace.mlp_out[layer, at])


def close(trace: Trace, depth: int, *, at: int) -> float:
    """How far the terms are from the hooked residual stream: max |Σ terms - E| / max |E|, about 1e-7 in float32."""
    total = sum(term.vectors.double().sum(0) for term in terms(trace, depth, at=at))
    hooked = (trace.resid_post[depth - 1, at] if depth else trace.resid_pre[0, at]).double()
    return float((total - hooked).abs().max() / hooked.abs().max())


def ledger(
    trace: Trace, depth: int, *, at: int, axis: Axis | None = None, average: Mapping[str, Tensor] | None = None
) -> list[Entry]:
    """The residual stream at position `at` after `depth` blocks, entry by entry; see the module's docstring.

    contribution = <A[t, j] (V[j] W_O - mean ΔE), u> / gap for a head's source, <vector - mean, u> / gap for anything else, with
    the means of `average`; without `average`, <vector, u> / gap. Attention sums to 1, so the sources of a head sum to
    <ΔE - mean ΔE, u> / gap whatever constant b_V adds to V, and all entries to M, the axis's coordinate. Raises CrossCheckError
    where the terms miss the hooked residual stream by more than CLOSES, InputError as `terms`.
    """
    error = close(trace, depth, at=at)
    if not error <= CLOSES:
        raise CrossCheckError(
            f"Adding up the residual stream of {trace.model_name} after {depth} blocks at position {at}: the terms miss it by "
            f"{error:.1e} of its size, expected at most {CLOSES:.0e}; run `probe check` to see which quantity disagrees."
        )
    tokens, entries = trace.tokens.labels, []
    for term in terms(trace, depth, at=at):
        mean = average[term.component] if average else torch.zeros(())
        along = axis.effect(term.vectors.double() - term.attention.double()[:, None] * mean).tolist() if axis else None
        for source, norm in enumerate(term.vectors.norm(dim=-1).tolist()):
            pos, token = (None, None) if term.head is None else (source, tokens[source])
            written = None if along is None else along[source]
            entries.append(Entry(term.component, term.layer, term.head, pos, token, norm, written))
    return entries


def average(weights: Weights, states: TargetStates, a: Sequence[int], b: Sequence[int]) -> dict[str, Tensor]:
    """What every component writes halfway between two senses: (mean over rows `a` + mean over rows `b`) / 2. `-> d_model` each.

    With the rows that an axis was fitted on, these sum to the axis's midpoint at its depth.
    """

    def halfway(vectors: Tensor) -> Tensor:
        offsets = (vectors - vectors[:1]).double()  # identical vectors are their own mean, exactly
        return vectors[0].double() + (offsets[list(a)].mean(0) + offsets[list(b)].mean(0)) / 2

    means = {
        "token embedding": halfway(states.token_embedding),
        "position embedding": halfway(states.position_embedding),
    }
    z, mlp_out = halfway(states.z), halfway(states.mlp_out)
    for layer, block in enumerate(weights.blocks):
        for head, w_o in enumerate(block.w_o.cpu().double()):
            means[f"L{layer}H{head}"] = z[layer, head] @ w_o
        means[f"attention bias {layer}"] = block.b_o.cpu().double()
        means[f"MLP {layer}"] = mlp_out[layer]
    return means
