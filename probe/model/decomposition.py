"""The residual stream at one position as a sum, and the contribution of each term to a sense or
to a logit.

E after the first d blocks = token embedding + position embedding + Σ heads Σ sources A[t, j] V[j]
W_O + Σ attention biases b_O + Σ MLPs. b_V is part of V, and an MLP's term includes its bias. The
sum is exact, so `closing_error` measures only rounding.

In a post-norm model (BERT) a block ends in E′ = LN(E + attn_out) and E″ = LN(E′ + mlp_out), and the
embeddings pass through a norm, too. Every term reaches the read-out through all later norms. LN(x)
= (x - mean x) / sqrt(var x + eps) gain + bias. If the scale sqrt(var x + eps) is held at its value
in this text (frozen LayerNorm), LN is linear: every term is centred, divided by the scale and
multiplied by the gain, and the bias is one more term. So the sum is exact there, too. It does not
include the effect of a different write on the scale; a swap measures that. Because scales differ
from text to text, terms that are equal in every text, such as the token embedding, can have a share
there. Pre-norm families (GPT-2, GPT-NeoX, Llama) have no norm between a write and the read-out. In
OLMo 2 and Gemma each write passes through one norm, which is held in the same way.

Projected on a sense axis, there are two readings. `shares` gives each component's part of the
difference of the two sense means over many sentences; they sum to 1. `decompose_resid` gives each
component's part of one sentence's sense coordinate M. M is counted from the midpoint between the
senses, so each part is counted from the component's average write halfway between the senses
(`average`). Parts that are equal in every sentence, such as the word's embedding and the biases,
are then exactly 0, and the terms sum to M.

This is direct attribution at the read-out, with everything downstream of a term unchanged. It is
not the effect of changing the term, which a swap measures (`probe.patching.heads`). A source is a
position, not a word of the text: from the second block on, its vector contains what earlier blocks
gathered there. If an MLP turns a head's write into sense, the MLP gets the contribution.

Projected on the direction of a logit, or of the difference of two (`logit_direction`), the same sum
is direct logit attribution. Everything between the stream and the logit is held at its value in
this text: the scale of the final norm; in BERT's head the scale of its norm and, for each
activation, f(x) / x; in a family with capped logits, capped / uncapped. So the sum is exact: the
terms and the constants from the biases sum to the logit.

A vector of the stream can also be read as words: the next token if the model stopped there (the
logit lens; before the last depth the model itself does not do this), and the tokens with the
nearest embeddings. Depth 0 enters the first block, depth d leaves block d - 1.

Source: Elhage et al. 2021 (the residual stream as a sum, frozen LayerNorm); Modarressi et al. 2022
    (the same for post-norm encoders); Wang et al. 2022 (direct logit attribution); nostalgebraist
    2020 (the logit lens).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from probe.errors import CrossCheckError, InputError, require_at_least, whole_number
from probe.model import attention, blocks, forward
from probe.model.agreement import rounded_through
from probe.model.load import ModelSource, load
from probe.model.model import Config
from probe.model.records import TargetStates, Trace
from probe.model.tokens import position
from probe.model.trace import at_position, with_embeddings
from probe.model.weights import Block, Weights
from probe.stats.axes import Axis

WeightAndBias = tuple[Tensor | None, Tensor | None]

__all__ = ["logit_direction", "logit_lens", "nearest_tokens", "residual_stream"]

# The largest difference between the sum of the terms and the hooked stream, relative to its size.
# Rounding of float32 causes about 1e-7, a forgotten term far more.
LARGEST_ERROR = 1e-4


@dataclass(frozen=True)
class Share:
    """One component's part of the sense gap; layer and head are None for components without one."""

    component: str
    layer: int | None
    head: int | None
    share: float


@dataclass(frozen=True, eq=False)
class Norms:
    """The norms up to the read-out at one position of several texts.

    gains, biases: `norm d_model`
    scales: `row norm`

    Norm 0 comes after the embeddings, norm 1 + 2 layer after the attention of a layer, and norm 2 +
    2 layer after its MLP. There are no norms if writes are added as they are (`plain`), except norm
    0 in some families. If norms are of the sum, a write passes through every later norm. If they
    are `of_writes` (no norm 0, no biases), it passes through one.
    """

    gains: Tensor
    biases: Tensor
    scales: Tensor
    of_writes: bool = False
    plain: bool = False
    centred: bool = True

    def behind(self, number: int) -> slice:
        """The norms through which a write before norm `number` passes; the embeddings come
        before norm 0.
        """
        if self.of_writes:
            return slice(number - 1, number) if number else slice(0)
        if self.plain:
            return slice(0) if number else slice(None)
        return slice(number, None)

    def behind_attention(self, layer: int) -> slice:
        """The norms through which the writes of this layer's heads pass."""
        return self.behind(1 + 2 * layer)

    def arriving(self, vectors: Tensor, span: slice) -> Tensor:
        """The vectors at the read-out, after the norms passed. `row ... d_model -> row ...
        d_model`
        """
        for gain, scale in zip(self.gains[span], self.scales[:, span].unbind(1), strict=True):
            of_rows = scale.view(-1, *[1] * (vectors.ndim - 1))
            vectors = through_norm(vectors, gain, of_rows, centred=self.centred)
        return vectors


def through_norm(vectors: Tensor, gain: Tensor, scale: Tensor, *, centred: bool) -> Tensor:
    """Vectors after a norm whose scale is held, without its bias; linear in the vectors. `...
    d_model`, unchanged
    """
    if centred:
        vectors = vectors - vectors.mean(-1, keepdim=True)
    return vectors / scale * gain


def norms_of(weights: Weights, states: TargetStates, depth: int) -> Norms:
    """The norms of every text in `states` up to the read-out after `depth` blocks, in float64."""
    config = weights.config
    of_writes = config.family.norm_after_write
    no_vectors = torch.zeros(0, weights.shape[2], dtype=torch.float64)
    plain = config.family.adds_plainly
    if (plain and not config.family.embedding_norm) or (of_writes and not depth):
        no_scales = torch.ones(len(states), 0, dtype=torch.float64)
        return Norms(no_vectors, no_vectors, no_scales, plain=plain)
    norm_inputs = _norms_of_writes if of_writes else _norms_of_sums
    inputs, norms = norm_inputs(weights, states, 0 if plain else depth)
    centred = config.family.norm == "LayerNorm"
    gains = [blocks.gain_of(weight, config).cpu().double() for weight, _ in norms]
    biases = [bias.cpu().double() for _, bias in norms if bias is not None]
    return Norms(
        torch.stack(gains),
        torch.stack(biases) if biases else no_vectors,
        torch.stack([blocks.norm_scale(x, config) for x in inputs], dim=1),
        of_writes=of_writes,
        plain=plain,
        centred=centred,
    )


def _norms_of_sums(
    weights: Weights, states: TargetStates, depth: int
) -> tuple[list[Tensor], list[WeightAndBias]]:
    """The input of every norm of the sum, and its weight and bias, in the order of the forward
    pass.
    """
    config = weights.config
    inputs = [forward.sum_embeddings(embeddings(weights, states)).double()]
    norms = [weights.norm(config.family.embedding_norm, torch.float64)]
    for layer, stored in enumerate(weights.blocks[:depth]):
        block = stored.to(torch.float64, "cpu")
        resid_sum = states.resid[:, layer].double() + _attn_out(block, states, layer)
        resid_mid = blocks.norm(resid_sum, block.norm, block.norm_bias, config)
        inputs += [resid_sum, resid_mid + states.mlp_out[:, layer].double()]
        norms += [(block.norm, block.norm_bias), (block.norm_mlp, block.norm_mlp_bias)]
    return inputs, norms


def _norms_of_writes(
    weights: Weights, states: TargetStates, depth: int
) -> tuple[list[Tensor], list[WeightAndBias]]:
    """The input of every norm of a single write, and its weight and bias, in the order of the
    forward pass.
    """
    inputs: list[Tensor] = []
    norms: list[WeightAndBias] = []
    for layer, stored in enumerate(weights.blocks[:depth]):
        block = stored.to(torch.float64, "cpu")
        inputs += [_attn_out(block, states, layer), states.mlp_out[:, layer].double()]
        norms += [(block.norm_out, None), (block.norm_mlp_out, None)]
    return inputs, norms


def _attn_out(block: Block, states: TargetStates, layer: int) -> Tensor:
    """The write of a layer's attention at every target. `-> row d_model`"""
    if block.mixer is not None:
        assert states.attn_out is not None
        return states.attn_out[:, layer].double()
    attn_out = torch.einsum("rhe,hed->rd", states.z[:, layer].double(), block.w_o)
    return attn_out if block.b_o is None else attn_out + block.b_o


def embeddings(weights: Weights, states: TargetStates) -> dict[str, Tensor]:
    """The embeddings that are added before the first block at every target, by name, on the CPU.

    `-> row d_model`, types `d_model`
    """
    ids = states.ids.to(weights.device)
    positions = states.target.to(weights.device)
    parts = forward.embedding_parts(weights, ids, positions)
    return {name: vectors.cpu() for name, vectors in parts.items()}


def head_contributions(
    weights: Weights,
    states: TargetStates,
    rows: Sequence[int],
    directions: Tensor,
    depths: Sequence[int],
) -> Tensor:
    """<ΔE, direction> of every head, each layer's after a separate depth, in float64.

    `-> row layer head`

    directions: `row layer d_model`
    depths: `layer`, each after the layer

    ΔE is taken as it arrives at that depth, with everything in between frozen.
    """
    row_numbers = list(rows)
    norms = norms_of(weights, states, max(depths))
    return contributions_of(weights, norms, states.z[row_numbers], row_numbers, directions, depths)


def contributions_of(
    weights: Weights,
    norms: Norms,
    z_of_rows: Tensor,
    rows: Sequence[int],
    directions: Tensor,
    depths: Sequence[int],
) -> Tensor:
    """`head_contributions` of other z than the states', at the scales of their norms.

    z_of_rows: `row layer head d_head`
    rows: the rows of `norms`
    """
    writes = writes_of(weights, norms, z_of_rows, rows, depths)
    contributions = [
        (write * directions[:, layer, None]).sum(-1) for layer, write in enumerate(writes)
    ]
    return torch.stack(contributions, dim=1)


def writes_of(
    weights: Weights,
    norms: Norms,
    z_of_rows: Tensor,
    rows: Sequence[int],
    depths: Sequence[int],
) -> Iterator[Tensor]:
    """What the heads of each layer write, as it arrives at a depth. `-> row head d_model` each

    The arguments are as in `contributions_of`.
    """
    norms = replace(norms, scales=norms.scales[list(rows)])
    for layer, (block, depth) in enumerate(zip(weights.blocks, depths, strict=True)):
        z = z_of_rows[:, layer].double()
        delta_e = z.new_zeros(*z.shape[:-1], weights.shape[2])
        if block.mixer is None:
            delta_e = torch.einsum("rhe,hed->rhd", z, block.w_o.cpu().double())
        span = norms.behind_attention(layer)
        # A norm of the sum counts up to the depth at which this layer is read.
        until = slice(span.start, 1 + 2 * depth if span.stop is None else span.stop)
        yield norms.arriving(delta_e, until)


def shares(
    weights: Weights,
    states: TargetStates,
    directions: Tensor,
    depth: int,
    a: Sequence[int],
    b: Sequence[int],
) -> list[Share]:
    """S of every component up to the read-out layer: its part of the difference of the two sense
    means.

    S = [mean over a - mean over b] of <component, u> / [mean over a - mean over b] of <stream, u>

    a, b: rows of `states`
    directions: `row d_model`, the direction along which each row of `a`, then of `b`, is read

    Without norms in between, the token embedding's share is exactly 0 if the word is the same token
    everywhere.
    """
    rows = [*a, *b]

    def difference(vectors: Tensor) -> float:
        # Relative to the first vector, so that identical vectors have a share of exactly 0.
        along = ((vectors[rows] - vectors[:1]).double() * directions).sum(-1)
        return float(along[: len(a)].mean() - along[len(a) :].mean())

    gap = difference(states.resid[:, depth])
    return [
        Share(part.component, part.layer, part.head, difference(part.vectors) / gap)
        for part in components(weights, states, depth)
    ]


@dataclass(frozen=True, eq=False)
class Component:
    """One component's contribution to the read-out, as it arrives there.

    vectors: `row d_model`, a row for each text; in the decomposition of one text, `source d_model`
    attention: `source`, the attention to each source of a head; a single 1 for other components

    A head's sources are the positions that it can attend to.
    """

    component: str
    layer: int | None
    head: int | None
    vectors: Tensor
    attention: Tensor = field(default_factory=lambda: torch.ones(1))


def components(weights: Weights, states: TargetStates, depth: int) -> Iterator[Component]:
    """Every component's part of the stream at the target after `depth` blocks, in the order of
    the forward pass.
    """
    norms = norms_of(weights, states, depth)

    def arriving(
        component: str,
        vectors: Tensor,
        span: slice,
        layer: int | None = None,
        head: int | None = None,
    ) -> Component:
        # A bias is one vector for all texts.
        of_texts = vectors.double().expand(len(states), vectors.shape[-1])
        return Component(component, layer, head, norms.arriving(of_texts, span))

    def norm_bias(behind: str, number: int, layer: int | None = None) -> list[Component]:
        if number >= len(norms.biases):
            return []
        span = norms.behind(number + 1)
        return [arriving(f"norm bias after {behind}", norms.biases[number], span, layer)]

    for name, vectors in embeddings(weights, states).items():
        yield arriving(name, vectors, norms.behind(0))
    yield from norm_bias("embedding", 0)
    for layer, block in enumerate(weights.blocks[:depth]):
        span = norms.behind_attention(layer)
        if block.mixer is not None:
            yield arriving(f"mixer {layer}", _attn_out(block, states, layer), span, layer)
        else:
            for head, w_o in enumerate(block.w_o.cpu().double()):
                delta_e = states.z[:, layer, head].double() @ w_o
                yield arriving(f"L{layer}H{head}", delta_e, span, layer, head)
        if block.b_o is not None:
            yield arriving(f"attention bias {layer}", block.b_o.cpu(), span, layer)
        yield from norm_bias(f"attention {layer}", 1 + 2 * layer, layer)
        yield arriving(f"MLP {layer}", states.mlp_out[:, layer], norms.behind(2 + 2 * layer), layer)
        yield from norm_bias(f"MLP {layer}", 2 + 2 * layer, layer)


@dataclass(frozen=True)
class DecompositionEntry:
    """One term of the decomposition: a component, or one source of a head.

    pos: the source's position; None for other components
    token: the source as in `Tokens.labels`
    norm: the length of the vector, in units of the residual stream
    contribution: as a fraction of the sense gap; None without an axis
    """

    component: str
    layer: int | None
    head: int | None
    pos: int | None
    token: str | None
    norm: float
    contribution: float | None


def components_by_source(trace: Trace, depth: int, *, at: int) -> Iterator[Component]:
    """Every component's part of the stream at position `at` of one text after `depth` blocks, a
    head's by source, in the order of the forward pass.

    Raises InputError for a depth or a position that the trace does not have.
    """
    _require_inside(trace, depth, at)
    weights = trace.weights
    states = with_embeddings(weights, at_position(vars(trace), at), [trace.tokens.ids[at]], [at])
    norms = norms_of(weights, states, depth)
    sources = at + 1 if weights.causal else len(trace.tokens)
    for part in components(weights, states, depth):
        if part.layer is not None and part.head is not None:
            delta_e = trace.delta_e_by_source(part.layer, part.head, at)[:sources].double()
            passed = norms.behind_attention(part.layer)
            pattern_row = trace.pattern[part.layer, part.head, at, :sources]
            vectors = norms.arriving(delta_e[None], passed)[0]
            part = replace(part, vectors=vectors, attention=pattern_row)
        yield part


def _require_inside(trace: Trace, depth: int, at: int) -> None:
    layers = len(trace.weights.blocks)
    n = len(trace.tokens)
    if not (0 <= depth <= layers and 0 <= at < n):
        raise InputError(
            f"Cannot decompose the residual stream after {depth} blocks at position {at}: "
            f"{trace.model_name} has {layers} blocks and the text {n} tokens. Give a depth from 0 "
            f"to {layers} and a position from 0 to {n - 1}."
        )


def largest_error(dtype: torch.dtype, blocks: int) -> float:
    """The largest allowed error of the sum of terms after this number of blocks, relative to its
    size; for bfloat16 the certificate's.
    """
    return rounded_through(blocks) if dtype == torch.bfloat16 else LARGEST_ERROR


def closing_error(trace: Trace, depth: int, *, at: int) -> float:
    """The difference of the components' sum and the hooked residual stream: max |Σ components -
    E| / max |E|, about 1e-7 in float32.
    """
    parts = components_by_source(trace, depth, at=at)
    total = sum(part.vectors.double().sum(0) for part in parts)
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
    """The residual stream at position `at` after `depth` blocks, as a list of terms; see the
    module's docstring.

    average: the mean of each component, from `average`; 0 by default

        source of a head    contribution = <A[t, j] (V[j] W_O - mean ΔE), u> / gap
        other component     contribution = <vector - mean, u> / gap

    Attention sums to 1, so the sources of a head sum to <ΔE - mean ΔE, u> / gap, whatever constant
    b_V adds to V, and all entries sum to M, the axis's coordinate.

    Raises CrossCheckError if the components differ from the hooked residual stream by more than
    LARGEST_ERROR (in bfloat16, by more than its roundings), and InputError in the cases of
    `components_by_source`.
    """
    error = closing_error(trace, depth, at=at)
    expected = largest_error(trace.resid_pre.dtype, depth)
    if not error <= expected:
        raise CrossCheckError(
            f"Cannot sum the residual stream of {trace.model_name} after {depth} blocks at "
            f"position {at}: the terms miss it by {error:.1e} of its size, expected at most "
            f"{expected:.0e}. Run `probe check` to see which quantity disagrees."
        )
    entries: list[DecompositionEntry] = []
    for part in components_by_source(trace, depth, at=at):
        mean = average[part.component] if average else torch.zeros(())
        entries += _entries(trace, part, mean, axis)
    return entries


def _entries(
    trace: Trace, part: Component, mean: Tensor, axis: Axis | None
) -> Iterator[DecompositionEntry]:
    """The entries of one component, one for each of its sources."""
    contributions: list[float | None] = [None] * len(part.vectors)
    if axis is not None:
        off_mean = part.vectors.double() - part.attention.double()[:, None] * mean
        contributions = axis.effect(off_mean).tolist()
    norms = part.vectors.norm(dim=-1).tolist()
    for source, (norm, contribution) in enumerate(zip(norms, contributions, strict=True)):
        pos = None if part.head is None else source
        token = None if pos is None else trace.tokens.labels[pos]
        yield DecompositionEntry(
            part.component, part.layer, part.head, pos, token, norm, contribution
        )


def average(
    weights: Weights, states: TargetStates, a: Sequence[int], b: Sequence[int], *, depth: int
) -> dict[str, Tensor]:
    """The average of every component halfway between two senses: (mean over `a` + mean over `b`)
    / 2. `-> d_model` each

    With the rows that an axis was fitted on, these sum to the axis's midpoint at its depth.
    """

    def halfway(vectors: Tensor) -> Tensor:
        offsets = vectors - vectors[:1]  # the mean of identical vectors is then exact
        return vectors[0] + (offsets[list(a)].mean(0) + offsets[list(b)].mean(0)) / 2

    return {part.component: halfway(part.vectors) for part in components(weights, states, depth)}


def write_coordinates(z: Tensor, weights: Weights) -> Tensor:
    """ΔE of every head in an orthonormal basis of the directions that it can write, with the
    same lengths and angles in d_head numbers.

    `sentence layer head d_head -> layer head sentence d_head`. With W_Oᵀ = Q R, ΔE = z W_O has
    coordinates z Rᵀ.
    """
    return z.double().permute(1, 2, 0, 3) @ write_basis(weights).transpose(-1, -2)


def write_basis(weights: Weights) -> Tensor:
    """R of W_Oᵀ = Q R for every head; it maps z to the coordinates of its write.

    `-> layer head d_head d_head`
    """
    # layer head d_head d_model
    no_heads = torch.zeros(weights.config.n_heads, weights.config.d_head, weights.config.d_model)
    of_layers = [
        block.w_o.cpu().double() if block.mixer is None else no_heads.double()
        for block in weights.blocks
    ]
    return torch.linalg.qr(torch.stack(of_layers).transpose(-1, -2)).R


def residual_stream(trace: Trace, at: int | str) -> Tensor:
    """The vector at position `at`, or at a word, at every depth. `-> depth d_model`, with layers
    + 1 depths

    Raises InputError for a position or word that does not occur.

    Example:
        >>> trace = probe.trace("tiny-senses", "a loan from the bank")
        >>> probe.decomposition.residual_stream(trace, "bank").shape
        torch.Size([5, 128])
    """
    at = position(trace.tokens, at)
    return torch.cat([trace.resid_pre[:, at], trace.resid_post[-1:, at]])


def logit_lens(trace: Trace, at: int | str) -> Tensor:
    """Probability of every next token, read from each depth: softmax(LN_f(E) W_Uᵀ).

    `-> depth d_vocab`

    Raises UnsupportedModel for a model without a language-model head.

    Example:
        >>> trace = probe.trace("tiny-senses", "a loan from the bank")
        >>> lens = probe.decomposition.logit_lens(trace, "bank")
        >>> lens.shape[0], round(float(lens[-1].sum()), 2)  # depths, and the sum of a row
        (5, 1.0)
    """
    _ = trace.logits  # raises for a model without a language-model head
    stream = residual_stream(trace, at)
    weights = trace.weights
    return attention.softmax(forward.unembed(weights, stream.to(weights.device)).cpu())


@dataclass(frozen=True, eq=False)
class LogitDirection:
    """How a logit, or the difference of two, follows from the stream after the last block:
    <stream, direction> + Σ constants, in float64.

    direction: `d_model`
    constants: the contribution of each later bias, by name
    """

    direction: Tensor
    constants: Mapping[str, float]


def logit_direction(trace: Trace, at: int | str, tokens: Sequence[int]) -> LogitDirection:
    """The direction of a logit in the stream after the last block, at a position or a word.

    tokens: one id, or two for the logit of the first minus that of the second

    Norms, activations and caps in between are held at their values (see the module's docstring).
    Raises InputError for invalid ids, and UnsupportedModel for a model without a language-model
    head.

    Example:
        >>> model = probe.load("tiny-senses")
        >>> trace = probe.trace(model, "a loan from the bank")
        >>> first, second = (model.tokenizer(word)["input_ids"][0] for word in (" and", " with"))
        >>> towards = probe.decomposition.logit_direction(trace, "bank", [first, second])
        >>> final = probe.decomposition.residual_stream(trace, "bank")[-1].double()
        >>> made = float(final @ towards.direction) + sum(towards.constants.values())
        >>> logits = trace.logits[-1]
        >>> abs(made - float(logits[first] - logits[second])) < 1e-4
        True
    """
    at = position(trace.tokens, at)
    _ = trace.logits  # raises for a model without a language-model head
    weights = trace.weights.on("cpu")
    config = weights.config
    ids = [whole_number(token) for token in tokens]
    if len(ids) not in (1, 2) or not all(
        token is not None and 0 <= token < config.d_vocab for token in ids
    ):
        raise InputError(
            f"Cannot follow logits back: got the tokens {tokens!r}, expected one id or two, from 0 "
            f"to {config.d_vocab - 1}. Give the ids that the tokenizer has for them, or ask "
            "probe.decompose, which takes words."
        )
    family = config.family
    constants: dict[str, float] = {}

    def through_norm(direction: Tensor, entering: Tensor, name: str, bias_name: str) -> Tensor:
        gain, bias = weights.norm(name, torch.float64)
        if gain is None:
            return direction
        if bias is not None:
            constants[bias_name] = float(bias @ direction)
        return before_norm(direction, entering, blocks.gain_of(gain, config), config)

    resid = trace.resid_post[-1, at].double()
    normed = forward.final_norm(weights, resid)
    final = forward.transformed(weights, normed)
    table = forward.unembedding(weights, weights.dtype)[list(tokens)].double()
    stored = weights.raw.get(family.unembed_bias or "final_logits_bias")
    biases = final.new_zeros(len(tokens))
    if stored is not None:
        biases = stored.flatten()[list(tokens)].double()
    signs = final.new_tensor([1.0, -1.0])[: len(tokens)]
    if config.final_logit_softcapping:
        uncapped = table @ final + biases
        capped = attention.softcap(uncapped, config.final_logit_softcapping)
        # Near 0 a cap changes nothing.
        signs = signs * torch.where(uncapped == 0, 1.0, capped / uncapped)
    direction = signs @ table
    if stored is not None:
        constants["unembedding bias"] = float(signs @ biases)
    dense, last_norm, activation = family.lm_head_transform
    if dense:
        weight = weights.raw[dense + ".weight"].double()
        stored = weights.raw.get(dense + ".bias")
        bias = normed.new_zeros(len(weight)) if stored is None else stored.double()
        hidden = weight @ normed + bias
        activations = getattr(attention, activation or config.activation)(hidden)
        direction = through_norm(direction, activations, last_norm, "norm bias of the head")
        direction = direction * torch.where(hidden == 0, 0.0, activations / hidden)
        constants["bias of the head"] = float(bias @ direction)
        direction = direction @ weight
    direction = through_norm(direction, resid, family.final_norm, "final norm bias")
    return LogitDirection(direction, constants)


def before_norm(direction: Tensor, entering: Tensor, gain: Tensor, config: Config) -> Tensor:
    """A direction after a norm, as a direction before it, with the norm's scale held. `...
    d_model`, unchanged

    <norm(x), direction> = <x, result> + <bias, direction>, at the scale of `entering`
    """
    direction = direction * gain
    if config.family.norm == "LayerNorm":
        entering = entering - entering.mean(-1, keepdim=True)
        direction = direction - direction.mean(-1, keepdim=True)
    if config.family.in_float32:  # as in `blocks.norm`
        entering = entering.float()
    return direction * attention.inverse_rms(entering, config.epsilon)


def nearest_tokens(
    model: ModelSource, vector: Tensor, *, count: int = 5, without: Collection[int] = ()
) -> tuple[tuple[int, float], ...]:
    """The ids of the tokens whose embeddings are nearest to `vector` by cosine, with the
    cosines, nearest first.

    `d_model -> count (id, cosine)`

    without: ids to exclude, e.g. of the word itself

    Raises InputError for a vector of another length or with infinite or NaN numbers, for ids that
    do not exist, and for a count larger than the number of remaining tokens.

    Example:
        >>> model = probe.load("tiny-senses")
        >>> trace = probe.trace(model, "a loan from the bank")
        >>> embedding = probe.decomposition.residual_stream(trace, "bank")[0]
        >>> ((token, cosine),) = probe.decomposition.nearest_tokens(model, embedding, count=1)
        >>> model.tokenizer.decode(token)
        ' bank'
    """
    model = load(model)
    table = model.weights[model.config.family.embed + ".weight"]
    doing = "Cannot find the tokens near a vector"
    vector = torch.as_tensor(vector)
    if vector.shape != table.shape[1:]:
        raise InputError(
            f"{doing}: got one of shape {list(vector.shape)}, expected [{table.shape[1]}], as long "
            f"as the embeddings of {model.name}. Give a vector of its stream."
        )
    if not bool(vector.isfinite().all()):
        raise InputError(f"{doing}: it holds NaN or infinite numbers. Give finite ones.")
    left_out = {whole_number(token) for token in without}
    if not left_out <= {*range(len(table))}:
        raise InputError(
            f"{doing}: got without = {without!r}, expected ids from 0 to {len(table) - 1}. Give "
            "ids of the model's tokenizer."
        )
    require_at_least(1, count, "count", doing=doing, usual=5)
    remaining = len(table) - len(left_out)
    if count > remaining:
        raise InputError(
            f"{doing}: got count = {count}, and {remaining} tokens are left. Ask for fewer."
        )
    cosines = normalize(table, dim=-1) @ normalize(vector.to(table), dim=-1)
    cosines[list(without)] = -torch.inf
    top = cosines.topk(count)
    return tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
