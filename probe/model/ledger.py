"""The residual stream at one position as a sum, and what each term contributes to a sense or to the difference of two.

E after the first d blocks = token embedding + position embedding + Σ heads Σ sources A[t, j] V[j] W_O + Σ attention
biases b_O + Σ MLPs. b_V stays inside V; an MLP's term holds its own bias. The sum is exact, so `close` measures only
rounding.

In a post-norm model (BERT) a block ends in E′ = LN(E + attn_out) and E″ = LN(E′ + mlp_out), and the embeddings pass
through a norm, too: every term reaches the read-out through all norms behind it. LN(x) = (x - mean x) / sqrt(var x +
eps) gain + bias. With the scale sqrt(var x + eps) held at what it was in this very text (frozen LayerNorm) it is
linear: every term is centred, divided by the scale and multiplied by the gain, and the bias is one more term; so the
sum is exact there, too. What a different write would do to the scale is not part of it: that is what a swap measures.
Because scales differ from text to text, what is written everywhere alike can have a share there, the token embedding
among it. Pre-norm families (GPT-2, GPT-NeoX, Llama) have no norm between a write and the read-out.

Projected on a sense axis there are two readings. `shares`: each component's part of the difference of the two sense
means over many sentences; they sum to 1. `ledger`: one sentence, each component's part of its own sense coordinate M,
counted from what the component writes on average halfway between the senses (`average`), because M is counted from the
midpoint: what is the same in every sentence, such as the word's own embedding and the biases, is then exactly 0, and
the terms sum to M.

What this is: direct attribution at the read-out, everything downstream of a term as it was. What it is not: the effect
of changing the term (that is a swap, `probe.patching.swaps`). A source is a position, not a word of the text: from the
second block on its vector holds what earlier blocks gathered there. What a head wrote and an MLP then turned into sense
is booked on the MLP.

Source: Elhage et al. 2021 (the residual stream as a sum, frozen LayerNorm); Modarressi et al. 2022 (the same for
post-norm encoders); Wang et al. 2022 (direct logit attribution).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.errors import CrossCheckError, InputError
from probe.model import forward
from probe.model.records import TargetStates, Trace
from probe.model.trace import at_position, with_embeddings
from probe.model.weights import Weights
from probe.stats.axes import Axis

CLOSES = 1e-4


@dataclass(frozen=True)
class Share:
    """One component's part of the sense gap; layer and head are None where the component has none."""

    component: str
    layer: int | None
    head: int | None
    share: float


@dataclass(frozen=True, eq=False)
class Norms:
    """The norms up to the read-out at one position of several texts. `gains biases: norm d_model`, `scales: row norm`;
    none in pre-norm.

    Norm 0 stands behind the embeddings, norm 1 + 2 layer behind the attention of a layer, norm 2 + 2 layer behind its
    MLP.
    """

    gains: Tensor
    biases: Tensor
    scales: Tensor

    def behind_attention(self, layer: int) -> int:
        """The first norm that meets what the heads of this layer write."""
        return 1 + 2 * layer if len(self.gains) else 0

    def behind_mlp(self, layer: int) -> int:
        """The first norm that meets what this layer's MLP writes."""
        return 2 + 2 * layer if len(self.gains) else 0

    def arriving(self, vectors: Tensor, first: int) -> Tensor:
        """What is left of the vectors at the read-out, from norm `first` on. `row ... d_model -> row ... d_model`"""
        for norm in range(first, len(self.gains)):
            scale = self.scales[:, norm].view(-1, *[1] * (vectors.ndim - 1))
            vectors = (vectors - vectors.mean(-1, keepdim=True)) / scale * self.gains[norm]
        return vectors

    def pulled_back(self, direction: Tensor, first: int) -> Tensor:
        """The direction whose product with a write, divided by `factor`, is what arrives along `direction`.

        `d_model -> d_model`
        """
        for gain in reversed(self.gains[first:].unbind()):
            direction = direction * gain.to(direction)
            direction = direction - direction.mean()
        return direction

    def factor(self, first: int) -> Tensor:
        """The product of the scales from norm `first` on; 1 where there is none. `-> row`"""
        return self.scales[:, first:].prod(1)


def norms_of(weights: Weights, states: TargetStates, depth: int) -> Norms:
    """The norms of every text in `states` up to the read-out after `depth` blocks, in float64."""
    if weights.config.family.norm_first:
        none = torch.zeros(0, weights.shape[2], dtype=torch.float64)
        return Norms(none, none, torch.ones(len(states), 0, dtype=torch.float64))
    raw, name = weights.raw, weights.config.family.embedding_norm
    sums = [forward.sum_of(embeddings(weights, states)).double()]
    norms = [(raw[name + ".weight"], raw[name + ".bias"])]
    for layer, held in enumerate(weights.blocks[:depth]):
        block = held.to(torch.float64, "cpu")
        assert block.norm_bias is not None and block.norm_mlp is not None and block.norm_mlp_bias is not None
        attn_out = torch.einsum("rhe,hed->rd", states.z[:, layer].double(), block.w_o)
        sums.append(states.resid[:, layer].double() + attn_out + (0 if block.b_o is None else block.b_o))
        resid_mid = forward.norm(sums[-1], block.norm, block.norm_bias, weights.config)
        sums.append(resid_mid + states.mlp_out[:, layer].double())
        norms += [(block.norm, block.norm_bias), (block.norm_mlp, block.norm_mlp_bias)]
    scales = torch.stack([(one.var(-1, unbiased=False) + weights.config.epsilon).sqrt() for one in sums], dim=1)
    gains, biases = (torch.stack([one.cpu().double() for one in part]) for part in zip(*norms, strict=True))
    return Norms(gains, biases, scales)


def embeddings(weights: Weights, states: TargetStates) -> dict[str, Tensor]:
    """What is added before the first block at the target of every text, by name, on the CPU.

    `-> row d_model`, types `d_model`
    """
    ids, places = states.ids.to(weights.device), states.target.to(weights.device)
    return {name: vectors.cpu() for name, vectors in forward.embedding_parts(weights, ids, places).items()}


def head_contributions(weights: Weights, states: TargetStates, axis: Axis) -> Tensor:
    """<ΔE, u> / gap of every head below the read-out: how far its write moves the sense coordinate.

    `-> row layer head`
    """
    norms = norms_of(weights, states, axis.depth)
    found = []
    for layer, block in enumerate(weights.blocks[: axis.depth]):
        first = norms.behind_attention(layer)
        reading = block.w_o.cpu().to(axis.u.dtype) @ norms.pulled_back(axis.u, first) / axis.gap  # head d_head
        found.append((states.z[:, layer].double() * reading).sum(-1) / norms.factor(first)[:, None])
    return torch.stack(found, dim=1)


def shares(weights: Weights, states: TargetStates, axis: Axis, a: Sequence[int], b: Sequence[int]) -> list[Share]:
    """S of every component up to the read-out depth: [mean over a - mean over b] of <component, u>, over the same of
    the whole.

    `a` and `b` are rows of `states`. Without norms on the way the token embedding's share is exactly 0 when the word is
    the same token everywhere.
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
class Component:
    """What one component adds to the read-out of every text: `vectors: row d_model`, as they arrive there."""

    component: str
    layer: int | None
    head: int | None
    vectors: Tensor


def parts(weights: Weights, states: TargetStates, depth: int) -> Iterator[Component]:
    """Every component's part of the residual stream at the target after `depth` blocks, in the order of the forward
    pass.
    """
    norms = norms_of(weights, states, depth)

    def arriving(
        component: str, vectors: Tensor, first: int, layer: int | None = None, head: int | None = None
    ) -> Component:
        every = vectors.double().expand(len(states), vectors.shape[-1])
        return Component(component, layer, head, norms.arriving(every, first))

    for name, vectors in embeddings(weights, states).items():
        yield arriving(name, vectors, 0)
    yield from (arriving(name, bias, 1) for name, bias in _norm_biases(norms, "embedding", 0))
    for layer, block in enumerate(weights.blocks[:depth]):
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
class LedgerEntry:
    """One line of the ledger: a component, for a head by source: its position `pos` and `token`, as `Tokens.labels` has
    it.

    `norm` is the length of the vector in units of the residual stream; `contribution`, in fractions of the sense gap,
    is None without an axis.
    """

    component: str
    layer: int | None
    head: int | None
    pos: int | None
    token: str | None
    norm: float
    contribution: float | None


def terms(trace: Trace, depth: int, *, at: int) -> Iterator[Term]:
    """Every component's term of the residual stream at position `at` after `depth` blocks, in the order of the forward
    pass.

    Raises InputError for a depth or a position that the trace does not have.
    """
    weights = trace.weights
    layers = len(weights.blocks)
    if not (0 <= depth <= layers and 0 <= at < len(trace.tokens)):
        raise InputError(
            f"Opening the ledger after {depth} blocks at position {at}: {trace.model_name} has {layers} blocks and "
            f"the text "
            f"{len(trace.tokens)} tokens; give a depth from 0 to {layers} and a position from 0 to "
            f"{len(trace.tokens) - 1}."
        )
    states = states_at(trace, at)
    norms, sources = norms_of(weights, states, depth), at + 1 if weights.causal else len(trace.tokens)
    for part in parts(weights, states, depth):
        if part.layer is None or part.head is None:
            yield Term(part.component, part.layer, None, part.vectors, torch.ones(1))
        else:
            written = trace.delta_e_by_source(part.layer, part.head, at)[:sources]
            arrived = norms.arriving(written.double()[None], norms.behind_attention(part.layer))[0]
            yield Term(
                part.component, part.layer, part.head, arrived, trace.pattern[part.layer, part.head, at, :sources]
            )


def states_at(trace: Trace, at: int) -> TargetStates:
    """What a trace holds of one position, as the states of one text."""
    return with_embeddings(trace.weights, at_position(vars(trace), at), [trace.tokens.ids[at]], [at])


def close(trace: Trace, depth: int, *, at: int) -> float:
    """How far the terms are from the hooked residual stream: max |Σ terms - E| / max |E|, about 1e-7 in float32."""
    total = sum(term.vectors.double().sum(0) for term in terms(trace, depth, at=at))
    hooked = (trace.resid_post[depth - 1, at] if depth else trace.resid_pre[0, at]).double()
    return float((total - hooked).abs().max() / hooked.abs().max())


def ledger(
    trace: Trace, depth: int, *, at: int, axis: Axis | None = None, average: Mapping[str, Tensor] | None = None
) -> list[LedgerEntry]:
    """The residual stream at position `at` after `depth` blocks, entry by entry; see the module's docstring.

    contribution = <A[t, j] (V[j] W_O - mean ΔE), u> / gap for a head's source, <vector - mean, u> / gap for anything
    else, with the means of `average`; without `average`, <vector, u> / gap. Attention sums to 1, so the sources of a
    head sum to <ΔE - mean ΔE, u> / gap whatever constant b_V adds to V, and all entries to M, the axis's coordinate.
    Raises CrossCheckError where the terms miss the hooked residual stream by more than CLOSES, InputError as `terms`.
    """
    error = close(trace, depth, at=at)
    if not error <= CLOSES:
        raise CrossCheckError(
            f"Adding up the residual stream of {trace.model_name} after {depth} blocks at position {at}: the terms "
            f"miss it by "
            f"{error:.1e} of its size, expected at most {CLOSES:.0e}; run `probe check` to see which quantity "
            f"disagrees."
        )
    tokens, entries = trace.tokens.labels, []
    for term in terms(trace, depth, at=at):
        mean = average[term.component] if average else torch.zeros(())
        along = axis.effect(term.vectors.double() - term.attention.double()[:, None] * mean).tolist() if axis else None
        for source, norm in enumerate(term.vectors.norm(dim=-1).tolist()):
            pos, token = (None, None) if term.head is None else (source, tokens[source])
            written = None if along is None else along[source]
            entries.append(LedgerEntry(term.component, term.layer, term.head, pos, token, norm, written))
    return entries


def average(
    weights: Weights, states: TargetStates, a: Sequence[int], b: Sequence[int], *, depth: int
) -> dict[str, Tensor]:
    """What every component adds halfway between two senses: (mean over rows `a` + mean over rows `b`) / 2. `-> d_model`
    each.

    With the rows that an axis was fitted on, these sum to the axis's midpoint at its depth.
    """

    def halfway(vectors: Tensor) -> Tensor:
        offsets = vectors - vectors[:1]  # identical vectors are their own mean, exactly
        return vectors[0] + (offsets[list(a)].mean(0) + offsets[list(b)].mean(0)) / 2

    return {part.component: halfway(part.vectors) for part in parts(weights, states, depth)}


def write_coordinates(z: Tensor, weights: Weights) -> Tensor:
    """ΔE of every head in an orthonormal basis of what it can write: the same lengths and angles in d_head numbers.

    `sentence layer head d_head -> layer head sentence d_head`. With W_Oᵀ = Q R, ΔE = z W_O has coordinates z Rᵀ.
    """
    return z.double().permute(1, 2, 0, 3) @ write_basis(weights).transpose(-1, -2)


def write_basis(weights: Weights) -> Tensor:
    """R of W_Oᵀ = Q R of every head, which takes z to its write's coordinates. `-> layer head d_head d_head`"""
    w_o = torch.stack([block.w_o for block in weights.blocks]).cpu().double()  # layer head d_head d_model
    return torch.linalg.qr(w_o.transpose(-1, -2)).R
