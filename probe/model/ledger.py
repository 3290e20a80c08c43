"""The residual stream at one position as a sum, and what each term contributes to a sense or to the difference of two.

E after the first d blocks = token embedding + position embedding + Σ heads Σ sources A[t, j] V[j] W_O + Σ attention biases b_O +
Σ MLPs. b_V stays inside V; an MLP's term holds its own bias. The sum is exact, so `close` measures only rounding.

In a post-norm model (BERT) every term passes through the norms between it and the read-out. Their scales are held at what they were
in this very text, and then the sum is exact there, too; the norms' biases are terms of their own (`probe.model.frozen`). Because
scales differ from text to text, what is written everywhere alike can have a share there, the token embedding among it.

Projected on a sense axis there are two readings. `shares`: each component's part of the difference of the two sense means over
many sentences; they sum to 1. `ledger`: one sentence, each component's part of its own sense coordinate M, counted from what the
component writes on average halfway between the senses (`average`), because M is counted from the midpoint: what is the same in
every sentence, such as the word's own embedding and the biases, is then exactly 0, and the terms sum to M.

What this is: direct attribution at the read-out, everything downstream of a term as it was. What it is not: the effect of
changing the term (that is a swap, `probe.patching.swaps`). A source is a position, not a word of the text: from the second block on
its vector holds what earlier blocks gathered there. What a head wrote and an MLP then turned into sense is booked on the MLP.

Source: Elhage et al. 2021 (the residual stream as a sum); Wang et al. 2022 (direct attribution).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.errors import CrossCheckError, InputError
from probe.model.frozen import Norms, norms_of
from probe.model.general import General, blocks_of, embeddings
from probe.model.records import HEAD_VECTORS, TargetStates, Trace
from probe.model.replay import Weights
from probe.model.trace import with_embeddings
from probe.stats.axes import Axis

CLOSES = 1e-4


@dataclass(frozen=True)
class Share:
    """One component's part of the sense gap; layer and head are None where the component has none."""

    component: str
    layer: int | None
    head: int | None
    share: float


def head_contributions(weights: Weights | General, states: TargetStates, axis: Axis) -> Tensor:
    """<ΔE, u> / gap of every head below the read-out: how far its write moves the sense coordinate. `-> row layer head`"""
    norms = norms_of(weights, states, axis.depth)
    found = []
    for layer, block in enumerate(blocks_of(weights)[: axis.depth]):
        first = norms.behind_attention(layer)
        reading = block.w_o.cpu().to(axis.u.dtype) @ norms.pulled_back(axis.u, first) / axis.gap  # head d_head
        found.append((states.z[:, layer].double() * reading).sum(-1) / norms.factor(first)[:, None])
    return torch.stack(found, dim=1)


def shares(
    weights: Weights | General, states: TargetStates, axis: Axis, a: Sequence[int], b: Sequence[int]
) -> list[Share]:
    """S of every component up to the read-out depth: [mean over a - mean over b] of <component, u>, over the same of the whole.

    `a` and `b` are rows of `states`. Without norms on the way the token embedding's share is exactly 0 when the word is the same
    token everywhere.
    """

    def difference(vectors: Tensor) -> float:
        along = axis.effect((vectors - vectors[:1]).double())  # so that identical vectors have a share of exactly zero
        return float(along[list(a)].mean() - along[list(b)].mean())

    whole = difference(states.resid[:, axis.depth])
    return [
        Share(part.component, part.layer, part.head, difference(part.vectors) / whole)
        for part in parts(weights, states, axis.depth)
    ]


@dataclass(frozen=True, eq=False)
class Part:
    """What one component adds to the read-out of every text: `vectors: row d_model`, as they arrive there."""

    component: str
    layer: int | None
    head: int | None
    vectors: Tensor


def parts(weights: Weights | General, states: TargetStates, depth: int) -> Iterator[Part]:
    """Every component's part of the residual stream at the target after `depth` blocks, in the order of the forward pass."""
    norms = norms_of(weights, states, depth)

    def arriving(
        component: str, vectors: Tensor, first: int, layer: int | None = None, head: int | None = None
    ) -> Part:
        every = vectors.double().expand(len(states), vectors.shape[-1])
        return Part(component, layer, head, norms.arriving(every, first))

    for name, vectors in embeddings(weights, states.ids, states.target).items():
        yield arriving(name, vectors, 0)
    yield from (arriving(name, bias, 1) for name, bias in _norm_biases(norms, "embedding", 0))
    for layer, block in enumerate(blocks_of(weights)[:depth]):
        first = norms.behind_attention(layer)
        for head, w_o in enumerate(block.w_o.cpu().double()):
            yield arriving(f"L{layer}H{head}", states.z[:, layer, head].double() @ w_o, first, layer, head)
        if block.b_o is not None:
            yield arriving(f"attention bias {layer}", block.b_o.cpu(), first, layer)
        yield from (
            arriving(name, bias, first + 1, layer) for name, bias in _norm_biases(norms, f"attention {layer}", first)
        )
        last = norms.behind_mlp(layer)
        yield arriving(f"MLP {layer}", states.mlp_out[:, layer], last, layer)
        yield from (arriving(name, bias, last + 1, layer) for name, bias in _norm_biases(norms, f"MLP {layer}", last))


def _norm_biases(norms: Norms, behind: str, norm: int) -> list[tuple[str, Tensor]]:
    """The bias of one norm as a term, where there are norms on the way."""
    return [(f"norm bias behind {behind}", norms.biases[norm])] if len(norms.biases) else []


@dataclass(frozen=True, eq=False)
class Term:
    """What one component adds to the read-out of one text, by source: `vectors: source d_model`, `attention: source`.

    Sources of a head are the positions it may look at; everything else has a single one, with attention 1.
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
    weights = trace.whole
    layers = len(weights.blocks)
    if not (0 <= depth <= layers and 0 <= at < len(trace.tokens)):
        raise InputError(
            f"Opening the ledger after {depth} blocks at position {at}: {trace.model_name} has {layers} blocks and the text "
            f"{len(trace.tokens)} tokens; give a depth from 0 to {layers} and a position from 0 to {len(trace.tokens) - 1}."
        )
    states = states_at(trace, at)
    norms, sources = norms_of(weights, states, depth), len(trace.tokens) if _looks_ahead(weights) else at + 1
    for part in parts(weights, states, depth):
        if part.layer is None or part.head is None:
            yield Term(part.component, part.layer, None, part.vectors, torch.ones(1))
        else:
            written = trace.delta_e_by_source(part.layer, part.head, at)[:sources]
            arrived = norms.arriving(written.double()[None], norms.behind_attention(part.layer))[0]
            yield Term(
                part.component, part.layer, part.head, arrived, trace.pattern[part.layer, part.head, at, :sources]
            )


def _looks_ahead(weights: Weights | General) -> bool:
    return isinstance(weights, General) and not weights.attention.causal


def states_at(trace: Trace, at: int) -> TargetStates:
    """What a trace holds of one position, as the states of one text."""
    read = {name: getattr(trace, name)[None, :, :, at] for name in (*HEAD_VECTORS, "pattern")}
    read |= {"mlp_out": trace.mlp_out[None, :, at]}
    read |= {"resid": torch.cat([trace.resid_pre[:, at], trace.resid_post[-1:, at]])[None]}
    return with_embeddings(trace.whole, read, [trace.tokens.ids[at]], [at])


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


def average(
    weights: Weights | General, states: TargetStates, a: Sequence[int], b: Sequence[int], *, depth: int
) -> dict[str, Tensor]:
    """What every component adds halfway between two senses: (mean over rows `a` + mean over rows `b`) / 2. `-> d_model` each.

    With the rows that an axis was fitted on, these sum to the axis's midpoint at its depth.
    """

    def halfway(vectors: Tensor) -> Tensor:
        offsets = vectors - vectors[:1]  # identical vectors are their own mean, exactly
        return vectors[0] + (offsets[list(a)].mean(0) + offsets[list(b)].mean(0)) / 2

    return {part.component: halfway(part.vectors) for part in parts(weights, states, depth)}
