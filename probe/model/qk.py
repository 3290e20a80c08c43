"""Why a head attends to a token: its score split into parts of the two residual streams (QK
attribution), and its write from the token, split in the same way (OV).

With the scale of every norm held at its value in this text, queries, keys and values are linear in
the stream. So a score, before a soft cap and the softmax, is a sum over pairs of parts:

    score[t, j] = Σ_a Σ_b <R_t N_q(a W_Q), R_j N_k(b W_K)> / divisor + position bias[t, j]

a: parts of the head's input at the query's position t. b: parts of its input at the key's position
    j. Parts of the stream are embeddings, earlier heads, MLPs and mixers, and their biases
    (`probe.model.decomposition`), each as it arrives after the norm in front of the attention. That
    norm's bias and the bias of the projection are parts, too. N is the norm of queries or keys, and
    R the rotation by the position; both are the identity in families without them. T5's bias
    does not belong to a pair of parts: it is a separate term.

ΔE[t ← j] along a direction u is linear in the stream at j alone, with the attention A[t, j] held:

    <ΔE[t ← j], u> = Σ_b A[t, j] g_t <b W_V W_O, u>

g_t is the gate of z, 1 in most families.

This is a decomposition of the computed score. It is not the effect of changing a part, which would
also change the scale of the norms and every other score of the row.

Axis words: row (a position of the text), part, head, d_model, d_head, query_part, key_part.

Source: Elhage et al. 2021 (the QK and OV circuits, terms of the residual stream); Kamath et al.
    2025 (QK attributions).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from probe.errors import CrossCheckError
from probe.model import attention, blocks, forward
from probe.model.agreement import STEPS
from probe.model.decomposition import (
    components,
    largest_error,
    norms_of,
    through_norm,
)
from probe.model.model import Config
from probe.model.records import AttentionTrace, CrossTrace, PairTrace, TargetStates, Trace
from probe.model.tokens import Tokens
from probe.model.trace import at_position, with_embeddings
from probe.model.weights import Block

# How finely the stream is split: embeddings, heads and MLPs; heads also by source token; or whole
# layers.
By = Literal["part", "source", "layer"]
Side = Literal["query", "key"]  # of a score
# The bias that a family adds to the score of two positions, by the kind of its positions.
POSITION_BIAS = {"relative bias": "relative bias"}
MLP_WEIGHTS = ("w_in", "b_in", "w_gate", "w_up", "w_out", "b_out", "experts")  # of a block


class Parts(NamedTuple):
    """A sum at some positions, term by term.

    vectors: `part row d_model`; `part head row d_head` after a projection
    """

    labels: tuple[str, ...]
    vectors: Tensor

    def plus(self, label: str, bias: Tensor | None) -> "Parts":
        """The sum with a bias, equal at every position, as one more term.

        bias: None leaves the sum unchanged
        """
        if bias is None:
            return self
        one_more = bias.unsqueeze(-2).expand(1, *self.vectors.shape[1:])
        return Parts((*self.labels, label), torch.cat([self.vectors, one_more]))

    def at(self, rows: Sequence[int]) -> "Parts":
        """The sum at some of the positions."""
        return Parts(self.labels, self.vectors[:, list(rows)])


class Terms(NamedTuple):
    """Sums, term by term, for each token that is read.

    labels: the labels of each term's parts, one for each part
    values: `row term`
    """

    labels: list[tuple[str, ...]]
    values: Tensor


class View(NamedTuple):
    """A head that attends to some tokens from one position of a text."""

    trace: AttentionTrace  # of the text; for an encoder-decoder, of the head's attention
    layer: int
    head: int
    at: int  # the query position
    sources: list[int]  # the key positions
    pair: PairTrace | None = None  # all three attentions of an encoder-decoder

    @property
    def read(self) -> Tokens:
        """The text that the head reads."""
        return self.trace.source if isinstance(self.trace, CrossTrace) else self.trace.tokens


def score_terms(view: View, by: By = "part", entering: Parts | None = None) -> Terms:
    """The scores of a head before a soft cap, as a sum over pairs of a query part and a key part,
    in float64.

    entering: the stream that enters the layer, at the query and then at the sources, if it has been
        split already (`stream_parts`)

    A bias that the family adds for two positions is one more term, labelled with its name twice.

    Raises CrossCheckError if the terms miss the model's own scores by more than rounding.
    """
    trace, layer, head, at, rows, _ = view
    weights = trace.stack
    config = weights.config
    block = in_double(weights.blocks[layer])
    if entering is None:
        asking, read = _reading(view, block, [at], by), _read(view, block, by)
    else:
        normed = through_input_norm(block, entering, config)
        asking, read = normed.at([0]), normed.at(range(1, 1 + len(rows)))
    queries = compared(block, "query", head, asking, [at], config)
    keys = compared(block, "key", head, read, rows, config)
    pairs = torch.einsum("ad,brd->rab", queries.vectors[:, 0], keys.vectors) / block.score_divisor
    values = pairs.flatten(1)
    labels: list[tuple[str, ...]] = [*product(queries.labels, keys.labels)]
    capped = values.sum(-1)
    if config.attn_logit_softcapping:
        capped = attention.softcap(capped, config.attn_logit_softcapping)
    bias = blocks.position_bias(weights, len(trace.tokens))
    if bias is not None:
        added = bias[head, at, rows].cpu().double()
        values = torch.cat([values, added[:, None]], dim=1)
        labels.append((POSITION_BIAS[config.positions.kind],) * 2)
        capped = capped + added
    terms = Terms(labels, values)
    # Attention depends on differences of scores, so an error far below 1 changes nothing.
    size = max(1.0, float(trace.scores[layer, :, at, rows].abs().max()))
    _require_sum(view, "scores", terms, capped, trace.scores[layer, head, at, rows], size)
    return terms


def write_terms(view: View, direction: Tensor, by: By = "part") -> Terms:
    """A head's write from each token that it reads, along a direction, as a sum over the parts of
    its input there, in float64.

    direction: `d_model`

    The attention and the gate of z are held. Raises CrossCheckError if the terms differ from the
    model's ΔE by more than rounding.
    """
    trace, layer, head, at, rows, _ = view
    config = trace.stack.config
    block = in_double(trace.stack.blocks[layer])
    read = _read(view, block, by)
    shared = kv_head(head, config)
    b_v = None if block.b_v is None else block.b_v[shared, None]
    values = project(read, block.w_v[shared, None], b_v, "value bias")
    v = values.vectors[:, 0]
    if block.w_head_gate is not None:
        x = trace.x[layer, at].double()
        v = attention.gated(v, x[None], block.w_head_gate[head, None])
    z = trace.pattern[layer, head, at, rows].double()[:, None] * v  # part row d_head
    along = direction.double()
    terms = Terms([(label,) for label in values.labels], (z @ (block.w_o[head] @ along)).T)
    hooked = trace.delta_e_by_source(layer, head, at)[rows].double() @ along
    # A head may write nearly nothing because large products cancel: |x| |W_V| |W_O u|.
    through = block.w_v[shared].norm(dim=0) * (block.w_o[head] * along).norm(dim=1)
    size = float(read.vectors.sum(0).norm(dim=-1).max() * through.norm())
    _require_sum(view, "the write of a head", terms, terms.values.sum(-1), hooked, size)
    return terms


def before_norms(trace: Trace, layer: int, at: int, direction: Tensor, depth: int) -> Tensor:
    """A direction in the stream after `depth` blocks, as a direction of the writes of a layer's
    heads at position `at`.

    `d_model`

    It is followed back through every norm in between, whose scale is held.
    """
    norms = norms_of(trace.stack, _states(trace, [at]), depth)
    coordinates = torch.eye(len(direction), dtype=torch.float64)
    arriving = norms.arriving(coordinates[None], norms.behind_attention(layer))[0]
    return arriving @ direction.double()


def readable(trace: AttentionTrace, layer: int, at: int) -> list[int]:
    """The positions that the attention of a layer can read from position `at`."""
    open_scores = torch.zeros(trace.scores.shape[-2:])
    local = trace.stack.blocks[layer].local
    scores = blocks.mask(trace.stack, open_scores, local=local)
    return scores[at].isfinite().nonzero().flatten().tolist()


def other_tokens(view: View) -> list[int]:
    """The other positions that the head can read: all except the sources of the view, the query's
    position, and special tokens, whose spans are empty.
    """
    spans = view.read.spans
    left_out = {*view.sources}
    if not isinstance(view.trace, CrossTrace):
        left_out.add(view.at)
    return [
        pos
        for pos in readable(view.trace, view.layer, view.at)
        if pos not in left_out and spans[pos][0] < spans[pos][1]
    ]


def in_double(block: Block) -> Block:
    """The weights of an attention in float64, on the CPU, without those of the MLP after it."""
    none: dict[str, Any] = dict.fromkeys(MLP_WEIGHTS)
    return replace(block, **none).to(torch.float64, "cpu")


def kv_head(head: int, config: Config) -> int:
    """The head of keys and values that serves a query head."""
    return head // (config.n_heads // config.n_kv_heads)


def _require_sum(
    view: View, quantity: str, terms: Terms, total: Tensor, hooked: Tensor, size: float
) -> None:
    """Raises CrossCheckError if sums of terms differ from the hooked values, `row`, by more than
    the rounding of the largest term, and of what the hooked values are computed from.

    size: of the products that a hooked value sums, which may cancel
    """
    scale = float(terms.values.abs().max())
    error = float((total - hooked.double()).abs().max())
    dtype = view.trace.resid_pre.dtype
    expected = largest_error(dtype, view.layer + 1)
    rounding = STEPS * torch.finfo(dtype).eps / 2
    if not error <= max(expected * scale, rounding * size):
        raise CrossCheckError(
            f"Cannot sum {quantity} of {view.trace.model_name} in layer {view.layer}: the parts "
            f"miss it by {error:.1e} where the largest is {scale:.1e}, expected at most "
            f"{expected:.0e} of that. Run `probe check` to see which quantity disagrees."
        )


def stream_parts(trace: Trace, depth: int, positions: Sequence[int], by: By) -> Parts:
    """The stream at some positions of a text after `depth` blocks, term by term, in float64.

    `-> part row d_model`
    """
    states = _states(trace, positions)
    norms = norms_of(trace.stack, states, depth)
    terms: dict[str, Tensor] = {}
    for part in components(trace.stack, states, depth):
        if by == "source" and part.head is not None:
            assert part.layer is not None
            span = norms.behind_attention(part.layer)
            for label, write in _writes(trace, part.layer, part.head, positions, by):
                terms[label] = norms.arriving(write, span)
            continue
        label = part.component
        if by == "layer":
            label = "embedding" if part.layer is None else f"layer {part.layer}"
        terms[label] = terms.get(label, 0) + part.vectors
    return Parts(tuple(terms), torch.stack([*terms.values()]))


def _states(trace: Trace, positions: Sequence[int]) -> TargetStates:
    """Some positions of one text, as if each were the target of a separate text."""
    rows = [at_position(vars(trace), pos) for pos in positions]
    tensors = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    ids = [trace.tokens.ids[pos] for pos in positions]
    return with_embeddings(trace.stack, tensors, ids, positions)


def parts_of_pair(
    pair: PairTrace, stop: str, layer: int, positions: Sequence[int], by: By
) -> Parts:
    """A stream of an encoder-decoder at some positions, term by term, in float64.

    `-> part row d_model`

    stop: the stream is read in front of this attention ("encoder", "decoder" or "cross") of the
        layer
    layer: the number of layers for the stream after the last one

    Heads and biases of cross-attention have "cross" before their names.
    """
    sides: dict[str, AttentionTrace] = {"decoder": pair.decoder, "cross": pair.cross}
    stack_trace = pair.decoder
    if stop == "encoder":
        sides = {"encoder": pair.encoder}
        stack_trace = pair.encoder
    weights = stack_trace.stack
    config = weights.config
    after_sum = config.family.norm_after_sum
    rows = list(positions)
    terms: dict[str, Tensor] = {}

    def add(label: str, vectors: Tensor, of_layer: int | None = None) -> None:
        if by == "layer":
            label = "embedding" if of_layer is None else f"layer {of_layer}"
        of_rows = vectors.cpu().double().expand(len(rows), config.d_model)
        terms[label] = terms.get(label, 0) + of_rows

    def pass_norm(
        weight: Tensor | None, bias: Tensor | None, previous: str, of_layer: int | None = None
    ) -> None:
        if weight is None:
            return
        passed = _norm_held(torch.stack([*terms.values()]), weight.cpu(), None, config)
        terms.update(zip(terms, passed, strict=True))
        if bias is not None:
            add(f"norm bias after {previous}", bias, of_layer)

    ids = torch.tensor([stack_trace.tokens.ids[pos] for pos in rows], device=weights.device)
    position_ids = torch.tensor(rows, device=weights.device)
    embeddings = forward.embedding_parts(weights, ids, position_ids, dtype=torch.float64)
    for name, vectors in embeddings.items():
        add(name, vectors)
    pass_norm(*weights.norm(config.family.embedding_norm, torch.float64), "embedding")
    for number, block in enumerate(weights.blocks):
        for name, side in sides.items():
            if (number, name) == (layer, stop):
                return Parts(tuple(terms), torch.stack([*terms.values()]))
            front = "cross " if name == "cross" else ""
            layer_block = side.stack.blocks[number]
            for head in range(config.n_heads):
                for label, write in _writes(side, number, head, rows, by):
                    add(front + label, write, number)
            if layer_block.b_o is not None:
                add(f"{front}attention bias {number}", layer_block.b_o, number)
            if after_sum:
                pass_norm(
                    layer_block.norm, layer_block.norm_bias, f"{front}attention {number}", number
                )
        add(f"MLP {number}", stack_trace.mlp_out[number, rows], number)
        if after_sum:
            pass_norm(block.norm_mlp, block.norm_mlp_bias, f"MLP {number}", number)
    return Parts(tuple(terms), torch.stack([*terms.values()]))


def _writes(
    side: AttentionTrace, layer: int, head: int, positions: Sequence[int], by: By
) -> Iterator[tuple[str, Tensor]]:
    """A head's write at some positions, in total or by source token, with its label. `row
    d_model` each
    """
    writes = [side.delta_e_by_source(layer, head, pos) for pos in positions]
    by_source = torch.stack(writes).double()  # row source d_model
    label = f"L{layer}H{head}"
    if by != "source":
        yield label, by_source.sum(1)
        return
    labels = side.source.labels if isinstance(side, CrossTrace) else side.tokens.labels
    # A causal head has read nothing after the last of these positions.
    read = max(positions) + 1 if side.stack.causal else len(labels)
    for source, token in enumerate(labels[:read]):
        yield f"{label} from {token}", by_source[:, source]


def _reading(view: View, block: Block, positions: Sequence[int], by: By) -> Parts:
    """The input of an attention's queries at some positions, after the norm in front of it.

    `-> part row d_model`
    """
    trace = view.trace
    layer = view.layer
    if view.pair is None:
        assert isinstance(trace, Trace)
        entering = stream_parts(trace, layer, positions, by)
    else:
        entering = parts_of_pair(view.pair, trace.stack.attention.name, layer, positions, by)
    return through_input_norm(block, entering, trace.stack.config)


def _read(view: View, block: Block, by: By) -> Parts:
    """The input of an attention's keys and values at the tokens that are read; in cross-attention
    the encoder's output.

    `-> part row d_model`
    """
    pair = view.pair
    if pair is None or view.trace is not pair.cross:
        return _reading(view, block, view.sources, by)
    encoder = pair.encoder.stack
    leaving = parts_of_pair(pair, "encoder", len(encoder.blocks), view.sources, by)
    weight, bias = encoder.norm(encoder.config.family.final_norm, torch.float64)
    if weight is None:
        return leaving
    normed = _norm_held(leaving.vectors, weight.cpu(), None, encoder.config)
    return Parts(leaving.labels, normed).plus(
        "final norm bias", None if bias is None else bias.cpu()
    )


def through_input_norm(block: Block, entering: Parts, config: Config) -> Parts:
    """Parts of the stream after the norm in front of an attention, with its scale held at that
    of their sum.

    `part row d_model`
    """
    normed = blocks.attention_input(block, entering.vectors, config, norm=_norm_held)
    bias = block.norm_bias if blocks.norms_input(block, config) else None
    return Parts(entering.labels, normed).plus("norm bias", bias)


def _norm_held(terms: Tensor, weight: Tensor | None, bias: Tensor | None, config: Config) -> Tensor:
    """Every term of a sum after a norm without its bias, with the scale held at that of the sum.
    `part ... width`, unchanged
    """
    scale = blocks.norm_scale(terms.sum(0), config)[..., None]
    gain = blocks.gain_of(weight, config).double()
    return through_norm(terms, gain, scale, centred=config.family.norm == "LayerNorm")


class Projection(NamedTuple):
    """What projects to the queries or the keys of one head.

    weight: `head d_model d_head`; of this head alone, unless all heads are normed together
    bias: `head d_head`
    norm: of the queries or keys
    number: of the head in `weight`
    """

    weight: Tensor
    bias: Tensor | None
    norm: Tensor | None
    number: int


def projection_of(block: Block, side: Side, head: int, config: Config) -> Projection:
    """What projects to the queries or the keys that one head compares."""
    if side == "query":
        whole = Projection(block.w_q, block.b_q, block.norm_q, head)
    else:
        whole = Projection(block.w_k, block.b_k, block.norm_k, kv_head(head, config))
    weight, bias, norm, number = whole
    if norm is not None and len(norm) > config.d_head:
        return whole
    return Projection(
        weight[number, None], None if bias is None else bias[number, None], norm, number=0
    )


def project(read: Parts, weight: Tensor, bias: Tensor | None, label: str) -> Parts:
    """Queries, keys or values of some heads, term by term.

    `part row d_model -> part head row d_head`
    """
    vectors = torch.einsum("prm,hmd->phrd", read.vectors, weight)
    return Parts(read.labels, vectors).plus(label, bias)


def compared(
    block: Block, side: Side, head: int, read: Parts, positions: Sequence[int], config: Config
) -> Parts:
    """The queries or keys of one head at some positions, term by term, after their norm, with its
    scale held, and rotated by their positions. `part row d_model -> part row d_head`
    """
    weight, bias, norm, number = projection_of(block, side, head, config)
    labels, terms = project(read, weight, bias, f"{side} bias")
    normed = blocks.norm_heads(terms, norm, config, norm=_norm_held)
    rotated = blocks.rotate(block, normed, torch.tensor(positions), config)
    return Parts(labels, rotated[:, number])
