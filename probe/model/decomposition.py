"""The residual stream at one position as a sum, and what each term contributes to a sense or to the
difference of two.

E after the first d blocks = token embedding + position embedding + Σ heads Σ sources A[t, j] V[j]
W_O + Σ attention biases b_O + Σ MLPs. b_V stays inside V; an MLP's term holds its own bias. The sum
is exact, so `close` measures only rounding.

In a post-norm model (BERT) a block ends in E′ = LN(E + attn_out) and E″ = LN(E′ + mlp_out), and the
embeddings pass through a norm, too: every term reaches the read-out through all norms behind it.
LN(x) = (x - mean x) / sqrt(var x + eps) gain + bias. With the scale sqrt(var x + eps) held at what
it was in this very text (frozen LayerNorm) it is linear: every term is centred, divided by the
scale and multiplied by the gain, and the bias is one more term; so the sum is exact there, too.
What a different write would do to the scale is not part of it: that is what a swap measures.
Because scales differ from text to text, what is written everywhere alike can have a share there,
the token embedding among it. Pre-norm families (GPT-2, GPT-NeoX, Llama) have no norm between a
write and the read-out; in OLMo 2 and Gemma each write passes a norm of its own, which is held in
the same way, and no other.

Projected on a sense axis there are two readings. `shares`: each component's part of the difference
of the two sense means over many sentences; they sum to 1. `decompose_resid`: one sentence, each component's
part of its own sense coordinate M, counted from what the component writes on average halfway
between the senses (`average`), because M is counted from the midpoint: what is the same in every
sentence, such as the word's own embedding and the biases, is then exactly 0, and the terms sum to
M.

What this is: direct attribution at the read-out, everything downstream of a term as it was. What it
is not: the effect of changing the term (that is a swap, `probe.patching.heads`). A source is a
position, not a word of the text: from the second block on its vector holds what earlier blocks
gathered there. What a head wrote and an MLP then turned into sense is booked on the MLP.

A vector of the stream is also read as words: the next token if the model stopped there (the logit
lens; before the last depth it is a reading, not a thing that the model does), and the tokens it
lies near. Depth 0 enters the first block, depth d leaves block d - 1.

Source: Elhage et al. 2021 (the residual stream as a sum, frozen LayerNorm); Modarressi et al. 2022
(the same for post-norm encoders); Wang et al. 2022 (direct logit attribution); nostalgebraist 2020
(the logit lens).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from probe.errors import CrossCheckError, InputError
from probe.model import attention, forward
from probe.model.load import ModelSource, load
from probe.model.records import TargetStates, Trace
from probe.model.tokens import position
from probe.model.trace import at_position, with_embeddings
from probe.model.weights import Weights
from probe.stats.axes import Axis

__all__ = ["logit_lens", "nearest_tokens", "residual_stream"]

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
    """The norms up to the read-out at one position of several texts. `gains biases: norm d_model`,
    `scales: row norm`; none where writes are added as they are.

    Norm 0 stands behind the embeddings, norm 1 + 2 layer behind the attention of a layer, norm 2 +
    2 layer behind its MLP. Where norms are of the sum a write passes every one behind it; where
    they are of what is `written` (no norm 0, no biases) only its own.
    """

    gains: Tensor
    biases: Tensor
    scales: Tensor
    written: bool = False
    centred: bool = True

    def behind(self, number: int) -> slice:
        """The norms that what stands in front of norm `number` meets on its way: 0 for the
        embeddings."""
        if self.written:
            return slice(number - 1, number) if number else slice(0)
        return slice(number, None)

    def behind_attention(self, layer: int) -> slice:
        """The norms that meet what the heads of this layer write."""
        return self.behind(1 + 2 * layer)

    def arriving(self, vectors: Tensor, met: slice) -> Tensor:
        """What is left of the vectors at the read-out behind the norms met. `row ... d_model -> row
        ... d_model`"""
        for gain, scale in zip(self.gains[met], self.scales[:, met].unbind(1), strict=True):
            vectors = vectors - vectors.mean(-1, keepdim=True) if self.centred else vectors
            vectors = vectors / scale.view(-1, *[1] * (vectors.ndim - 1)) * gain
        return vectors


def norms_of(weights: Weights, states: TargetStates, depth: int) -> Norms:
    """The norms of every text in `states` up to the read-out after `depth` blocks, in float64."""
    none, ones = (
        torch.zeros(0, weights.shape[2], dtype=torch.float64),
        torch.ones(len(states), 0, dtype=torch.float64),
    )
    config, written = weights.config, weights.config.family.norm_after_write
    if config.family.adds_plainly or (written and not depth):
        return Norms(none, none, ones)
    normed = [] if written else [forward.sum_of(embeddings(weights, states)).double()]
    norms = [] if written else [weights.norm(config.family.embedding_norm, torch.float64)]
    for layer, held in enumerate(weights.blocks[:depth]):
        block, mlp_out = held.to(torch.float64, "cpu"), states.mlp_out[:, layer].double()
        attn_out = torch.einsum("rhe,hed->rd", states.z[:, layer].double(), block.w_o)
        attn_out = attn_out if block.b_o is None else attn_out + block.b_o
        if written:
            normed += [attn_out, mlp_out]
            norms += [(block.norm_out, None), (block.norm_mlp_out, None)]
        else:
            normed.append(states.resid[:, layer].double() + attn_out)
            normed.append(forward.norm(normed[-1], block.norm, block.norm_bias, config) + mlp_out)
            norms += [(block.norm, block.norm_bias), (block.norm_mlp, block.norm_mlp_bias)]
    centred = config.family.norm == "LayerNorm"
    squares = [one.var(-1, unbiased=False) if centred else one.square().mean(-1) for one in normed]
    gains = [forward.gain_of(weight, config).cpu().double() for weight, _ in norms]
    biases = [bias.cpu().double() for _, bias in norms if bias is not None]
    scales = torch.stack([(square + config.epsilon).sqrt() for square in squares], dim=1)
    return Norms(
        torch.stack(gains),
        torch.stack(biases) if biases else none,
        scales,
        written=written,
        centred=centred,
    )


def embeddings(weights: Weights, states: TargetStates) -> dict[str, Tensor]:
    """What is added before the first block at every target, by name, on the CPU. `-> row d_model`,
    types `d_model`"""
    ids, places = states.ids.to(weights.device), states.target.to(weights.device)
    return {
        name: vectors.cpu()
        for name, vectors in forward.embedding_parts(weights, ids, places).items()
    }


def head_contributions(
    weights: Weights,
    states: TargetStates,
    rows: Sequence[int],
    directions: Tensor,
    depths: Sequence[int],
) -> Tensor:
    """<ΔE, direction> of every head, each layer's read after a depth of its own, in float64. `->
    row layer head`

    `directions: row layer d_model`, `depths: layer`, behind the layer. What is written is taken as
    it arrives there, everything between frozen.
    """
    norms, chosen = norms_of(weights, states, max(depths)), list(rows)
    norms = replace(norms, scales=norms.scales[chosen])
    along = []
    for layer, (block, depth) in enumerate(zip(weights.blocks, depths, strict=True)):
        written = torch.einsum(
            "rhe,hed->rhd", states.z[chosen, layer].double(), block.w_o.cpu().double()
        )
        met = norms.behind_attention(layer)
        until = slice(met.start, 1 + 2 * depth if met.stop is None else met.stop)
        along.append((norms.arriving(written, until) * directions[:, layer, None]).sum(-1))
    return torch.stack(along, dim=1)


def shares(
    weights: Weights,
    states: TargetStates,
    directions: Tensor,
    depth: int,
    a: Sequence[int],
    b: Sequence[int],
) -> list[Share]:
    """S of every component up to the read-out depth: [mean over a - mean over b] of <component, u>,
    over the whole's.

    `a` and `b` are rows of `states`, `directions: a then b, d_model` those along which each is
    read. Without norms on the way the token embedding's share is exactly 0 when the word is the
    same token everywhere.
    """
    rows = [*a, *b]

    def difference(vectors: Tensor) -> float:
        # relative to the first, so that identical vectors have a share of exactly zero
        along = ((vectors[rows] - vectors[:1]).double() * directions).sum(-1)
        return float(along[: len(a)].mean() - along[len(a) :].mean())

    whole, every = difference(states.resid[:, depth]), parts(weights, states, depth)
    return [
        Share(one.component, one.layer, one.head, difference(one.vectors) / whole) for one in every
    ]


@dataclass(frozen=True, eq=False)
class Component:
    """What one component adds to the read-out, as it arrives there: `vectors: row d_model`, of
    every text.

    In the decomposition of one text, of every source: a head's sources are the positions it may look at,
    with `attention: source`; everything else has a single one, with attention 1.
    """

    component: str
    layer: int | None
    head: int | None
    vectors: Tensor
    attention: Tensor = field(default_factory=lambda: torch.ones(1))


def parts(weights: Weights, states: TargetStates, depth: int) -> Iterator[Component]:
    """Every component's part of the stream at the target after `depth` blocks, in the order of the
    forward pass."""
    norms = norms_of(weights, states, depth)

    def arriving(
        component: str,
        vectors: Tensor,
        met: slice,
        layer: int | None = None,
        head: int | None = None,
    ) -> Component:
        every = vectors.double().expand(len(states), vectors.shape[-1])
        return Component(component, layer, head, norms.arriving(every, met))

    def biases(behind: str, number: int, layer: int | None = None) -> list[Component]:
        met, name = norms.behind(number + 1), f"norm bias behind {behind}"
        return [arriving(name, norms.biases[number], met, layer)] if len(norms.biases) else []

    for name, vectors in embeddings(weights, states).items():
        yield arriving(name, vectors, norms.behind(0))
    yield from biases("embedding", 0)
    for layer, block in enumerate(weights.blocks[:depth]):
        met = norms.behind_attention(layer)
        for head, w_o in enumerate(block.w_o.cpu().double()):
            yield arriving(
                f"L{layer}H{head}", states.z[:, layer, head].double() @ w_o, met, layer, head
            )
        if block.b_o is not None:
            yield arriving(f"attention bias {layer}", block.b_o.cpu(), met, layer)
        yield from biases(f"attention {layer}", 1 + 2 * layer, layer)
        yield arriving(f"MLP {layer}", states.mlp_out[:, layer], norms.behind(2 + 2 * layer), layer)
        yield from biases(f"MLP {layer}", 2 + 2 * layer, layer)


@dataclass(frozen=True)
class DecompositionEntry:
    """One term of the decomposition: a component, a head's by source, at `pos` with its `token`, as
    `Tokens.labels` has it.

    `norm` is the length of the vector in units of the residual stream; `contribution`, in fractions
    of the sense gap, is None without an axis.
    """

    component: str
    layer: int | None
    head: int | None
    pos: int | None
    token: str | None
    norm: float
    contribution: float | None


def terms(trace: Trace, depth: int, *, at: int) -> Iterator[Component]:
    """Every component's term of the stream at position `at` after `depth` blocks, in the order of
    the forward pass.

    Raises InputError for a depth or a position that the trace does not have.
    """
    weights, n = trace.weights, len(trace.tokens)
    layers = len(weights.blocks)
    if not (0 <= depth <= layers and 0 <= at < n):
        raise InputError(
            f"Decomposing the residual stream after {depth} blocks at position {at}: {trace.model_name} has {layers} blocks and the "
            f"text {n} tokens; give a depth from 0 to {layers} and a position from 0 to {n - 1}."
        )
    states = with_embeddings(weights, at_position(vars(trace), at), [trace.tokens.ids[at]], [at])
    norms, sources = norms_of(weights, states, depth), at + 1 if weights.causal else n
    for part in parts(weights, states, depth):
        if part.layer is not None and part.head is not None:
            written = trace.delta_e_by_source(part.layer, part.head, at)[:sources]
            arrived = norms.arriving(written.double()[None], norms.behind_attention(part.layer))[0]
            part = replace(
                part, vectors=arrived, attention=trace.pattern[part.layer, part.head, at, :sources]
            )
        yield part


def close(trace: Trace, depth: int, *, at: int) -> float:
    """How far the terms are from the hooked residual stream: max |Σ terms - E| / max |E|, about
    1e-7 in float32."""
    total = sum(term.vectors.double().sum(0) for term in terms(trace, depth, at=at))
    hooked = (trace.resid_post[depth - 1, at] if depth else trace.resid_pre[0, at]).double()
    return float((total - hooked).abs().max() / hooked.abs().max())


def decompose_resid(
    trace: Trace,
    depth: int,
    *,
    at: int,
    axis: Axis | None = None,
    average: Mapping[str, Tensor] | None = None,
) -> list[DecompositionEntry]:
    """The residual stream at position `at` after `depth` blocks, entry by entry; see the module's
    docstring.

    contribution = <A[t, j] (V[j] W_O - mean ΔE), u> / gap for a head's source, <vector - mean, u> /
    gap for anything else, with the means of `average`; without `average`, <vector, u> / gap.
    Attention sums to 1, so the sources of a head sum to <ΔE - mean ΔE, u> / gap whatever constant
    b_V adds to V, and all entries to M, the axis's coordinate. Raises CrossCheckError where the
    terms miss the hooked residual stream by more than CLOSES, InputError as `terms`.
    """
    error = close(trace, depth, at=at)
    if not error <= CLOSES:
        raise CrossCheckError(
            f"Adding up the residual stream of {trace.model_name} after {depth} blocks at position {at}: the terms "
            f"miss it by {error:.1e} of its size, expected at most {CLOSES:.0e}; run `probe check` to see which "
            "quantity disagrees."
        )
    tokens, entries = trace.tokens.labels, []
    for term in terms(trace, depth, at=at):
        mean = average[term.component] if average else torch.zeros(())
        along = (
            axis.effect(term.vectors.double() - term.attention.double()[:, None] * mean).tolist()
            if axis
            else None
        )
        for source, norm in enumerate(term.vectors.norm(dim=-1).tolist()):
            pos, token = (None, None) if term.head is None else (source, tokens[source])
            written = None if along is None else along[source]
            entries.append(
                DecompositionEntry(term.component, term.layer, term.head, pos, token, norm, written)
            )
    return entries


def average(
    weights: Weights, states: TargetStates, a: Sequence[int], b: Sequence[int], *, depth: int
) -> dict[str, Tensor]:
    """What every component adds halfway between two senses: (mean over `a` + mean over `b`) / 2.
    `-> d_model` each

    With the rows that an axis was fitted on, these sum to the axis's midpoint at its depth.
    """

    def halfway(vectors: Tensor) -> Tensor:
        offsets = vectors - vectors[:1]  # identical vectors are their own mean, exactly
        return vectors[0] + (offsets[list(a)].mean(0) + offsets[list(b)].mean(0)) / 2

    return {part.component: halfway(part.vectors) for part in parts(weights, states, depth)}


def write_coordinates(z: Tensor, weights: Weights) -> Tensor:
    """ΔE of every head in an orthonormal basis of what it can write: the same lengths and angles in
    d_head numbers.

    `sentence layer head d_head -> layer head sentence d_head`. With W_Oᵀ = Q R, ΔE = z W_O has
    coordinates z Rᵀ.
    """
    return z.double().permute(1, 2, 0, 3) @ write_basis(weights).transpose(-1, -2)


def write_basis(weights: Weights) -> Tensor:
    """R of W_Oᵀ = Q R of every head, which takes z to its write's coordinates. `-> layer head
    d_head d_head`"""
    w_o = (
        torch.stack([block.w_o for block in weights.blocks]).cpu().double()
    )  # layer head d_head d_model
    return torch.linalg.qr(w_o.transpose(-1, -2)).R


def residual_stream(trace: Trace, at: int | str) -> Tensor:
    """The vector at position `at`, or at a word, at every depth. `-> depth d_model`, layers + 1 of
    them"""
    at = position(trace.tokens, at)
    return torch.cat([trace.resid_pre[:, at], trace.resid_post[-1:, at]])


def logit_lens(trace: Trace, at: int | str) -> Tensor:
    """Probability of every next token, read from each depth: softmax(LN_f(E) W_Uᵀ). `-> depth
    d_vocab`"""
    stream = residual_stream(trace, at).to(trace.weights.device)
    trace.logits  # noqa: B018 (raises where there is no language-model head)
    return attention.softmax(forward.unembed(trace.weights, stream)).cpu()


def nearest_tokens(
    model: ModelSource, vector: Tensor, *, count: int = 5, without: Collection[int] = ()
) -> tuple[tuple[int, float], ...]:
    """The ids of the tokens whose embeddings are nearest to `vector` by cosine, with the cosines,
    nearest first.

    `d_model -> count (id, cosine)`. `without` are ids left out, such as the word that one started
    from.
    """
    model = load(model)
    table = model.weights[model.config.family.embed + ".weight"]
    cosines = normalize(table, dim=-1) @ normalize(vector.to(table), dim=-1)
    cosines[list(without)] = -torch.inf
    top = cosines.topk(count)
    return tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
