"""Why a head attends to a token: its score split into parts of the two residual streams (QK
attribution), and what it takes from the token, split in the same way (OV).

With the scale of every norm held at what it was in this text, queries, keys and values are linear
in the stream. So a score is a sum over pairs of parts, before a soft cap and the softmax:

    score[t, j] = Σ_a Σ_b <R_t N_q(a W_Q), R_j N_k(b W_K)> / divisor + position bias[t, j]

a: parts of what the head reads at the query's position t. b: parts of what it reads at the key's
position j. Parts of the stream are embeddings, earlier heads, MLPs and mixers, and their biases
(`probe.model.decomposition`), each as it arrives behind the norm in front of the attention. That
norm's bias and the bias of the projection are parts, too. N is the norm of queries or keys, R the
rotation by the position; both are the identity in families without them. T5's bias and ALiBi belong
to no pair of parts: they are a term of their own.

ΔE[t ← j] along a direction u is linear in the stream at j alone, with the attention A[t, j] held:

    <ΔE[t ← j], u> = Σ_b A[t, j] g_t <b W_V W_O, u>

g_t: the gate of z, 1 in most families.

What this is: a decomposition of what was computed. What it is not: the effect of changing a part,
which would also change the scale of the norms and every other score of the row.

Axis words: row (a position of the text), part, head, d_model, d_head, query_part, key_part.

Source: Elhage et al. 2021 (the QK and OV circuits, terms of the residual stream); Kamath et al.
2025 (QK attributions).
"""

from collections.abc import Sequence
from itertools import product
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from probe.errors import CrossCheckError
from probe.model import attention, forward
from probe.model.decomposition import (
    Component,
    Norms,
    components,
    largest_error,
    norms_of,
    through_norm,
)
from probe.model.model import Config
from probe.model.records import TargetStates, Trace
from probe.model.trace import at_position, with_embeddings
from probe.model.weights import Block

# How finely the stream is split: embeddings, heads and MLPs; heads also by the token that they
# read; or whole layers.
By = Literal["part", "source", "layer"]
# What families add to a score for two positions, by the kind of their positions.
POSITION_BIAS = {"alibi": "ALiBi", "relative bias": "relative bias"}


class Parts(NamedTuple):
    """A sum at some positions, term by term. `vectors: part row d_model`, or `part head row d_head`
    behind a projection."""

    labels: tuple[str, ...]
    vectors: Tensor

    def plus(self, label: str, bias: Tensor | None) -> "Parts":
        """The same with a bias as one more term, which is alike at every position; as it is without
        a bias."""
        if bias is None:
            return self
        one_more = bias.unsqueeze(-2).expand(1, *self.vectors.shape[1:])
        return Parts((*self.labels, label), torch.cat([self.vectors, one_more]))


class Terms(NamedTuple):
    """Numbers that are sums, term by term: `values: row term`, a row for each token that is read,
    and what each term is called, a label for each of its parts."""

    labels: list[tuple[str, ...]]
    values: Tensor


def score_terms(
    trace: Trace, layer: int, head: int, *, at: int, sources: Sequence[int], by: By = "part"
) -> Terms:
    """The scores of a head from position `at` to each of `sources`, before a soft cap, as a sum
    over pairs of a query part and a key part, in float64.

    What a family adds for the two positions is one more term, labelled with its name twice. Raises
    CrossCheckError where the terms miss the model's own scores by more than rounding.
    """
    weights = trace.stack
    config = weights.config
    block = weights.blocks[layer].to(torch.float64, "cpu")
    rows = list(sources)
    queries = project(_read(trace, layer, [at], by), block.w_q, block.b_q, "query bias")
    keys = project(_read(trace, layer, rows, by), block.w_k, block.b_k, "key bias")
    q = compared(block, queries.vectors, block.norm_q, [at], config)[:, head, 0]
    k = compared(block, keys.vectors, block.norm_k, rows, config)[:, kv_head(head, config)]
    pairs = torch.einsum("ad,brd->rab", q, k) / block.score_divisor
    values = pairs.flatten(1)
    labels: list[tuple[str, ...]] = [*product(queries.labels, keys.labels)]
    capped = values.sum(-1)
    if config.attn_logit_softcapping:
        capped = attention.softcap(capped, config.attn_logit_softcapping)
    bias = forward.position_bias(weights, len(trace.tokens))
    if bias is not None:
        added = bias[head, at, rows].cpu().double()
        values = torch.cat([values, added[:, None]], dim=1)
        labels.append((POSITION_BIAS[config.positions.kind],) * 2)
        capped = capped + added
    _require_sum(trace, "scores", capped, trace.scores[layer, head, at].double(), rows, layer)
    return Terms(labels, values)


def write_terms(
    trace: Trace,
    layer: int,
    head: int,
    *,
    at: int,
    sources: Sequence[int],
    along: Tensor,
    depth: int,
    by: By = "part",
) -> Terms:
    """What a head takes from each of `sources` to position `at`, along a direction `along: d_model`
    in the stream after `depth` blocks, as a sum over the parts of what it reads there, in float64.

    The attention, the gate of z and the scales of all norms behind the head are held. Raises
    CrossCheckError where the terms miss the model's own ΔE by more than rounding.
    """
    weights = trace.stack
    config = weights.config
    block = weights.blocks[layer].to(torch.float64, "cpu")
    rows = list(sources)
    values = project(_read(trace, layer, rows, by), block.w_v, block.b_v, "value bias")
    v = values.vectors[:, kv_head(head, config)]
    if block.w_head_gate is not None:
        x = trace.x[layer, at].double()
        v = attention.gated(v, x[None], block.w_head_gate[head, None])
    read = trace.pattern[layer, head, at, rows].double()[:, None] * v
    norms = norms_of(weights, _states(trace, [at]), depth)
    direction = along.double()

    def arriving(delta_e: Tensor) -> Tensor:
        return norms.arriving(delta_e[None], norms.behind_attention(layer))[0] @ direction

    terms = arriving(attention.write(read, block.w_o[head])).T
    hooked = arriving(trace.delta_e_by_source(layer, head, at).double())
    _require_sum(trace, "what a head takes", terms.sum(-1), hooked, rows, layer)
    return Terms([(label,) for label in values.labels], terms)


def readable(trace: Trace, layer: int, at: int) -> list[int]:
    """The positions that the attention of a layer may read from position `at`."""
    n = len(trace.tokens)
    weights = trace.stack
    scores = forward.mask(weights, weights.blocks[layer], torch.zeros(n, n))
    return scores[at].isfinite().nonzero().flatten().tolist()


def kv_head(head: int, config: Config) -> int:
    """The head of keys and values that serves a query head."""
    return head // (config.n_heads // config.n_kv_heads)


def _require_sum(
    trace: Trace, what: str, found: Tensor, hooked: Tensor, rows: list[int], layer: int
) -> None:
    """Raises CrossCheckError where sums miss what was hooked, `key_pos`, at the positions in `rows`
    by more than rounding."""
    scale = hooked[rows].abs().max()
    error = float((found - hooked[rows]).abs().max())
    expected = largest_error(trace.resid_pre.dtype, layer + 1)
    if not error <= expected * float(scale):
        raise CrossCheckError(
            f"Adding up {what} of {trace.model_name} in layer {layer}: the parts miss it by "
            f"{error:.1e} of {float(scale):.1e}, expected at most {expected:.0e} of it; run "
            "`probe check` to see which quantity disagrees."
        )


def stream_parts(trace: Trace, depth: int, positions: Sequence[int], by: By) -> Parts:
    """The stream at some positions of a text after `depth` blocks, term by term, in float64. `->
    part row d_model`"""
    states = _states(trace, positions)
    norms = norms_of(trace.stack, states, depth)
    terms: dict[str, Tensor] = {}
    for part in components(trace.stack, states, depth):
        if by == "source" and part.head is not None:
            terms |= _by_source(trace, part, positions, norms)
            continue
        label = part.component
        if by == "layer":
            label = "embedding" if part.layer is None else f"layer {part.layer}"
        terms[label] = terms.get(label, 0) + part.vectors
    return Parts(tuple(terms), torch.stack([*terms.values()]))


def _states(trace: Trace, positions: Sequence[int]) -> TargetStates:
    """Some positions of one text, as if each were the target of a text of its own."""
    rows = [at_position(vars(trace), pos) for pos in positions]
    joined = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    ids = [trace.tokens.ids[pos] for pos in positions]
    return with_embeddings(trace.stack, joined, ids, positions)


def _by_source(
    trace: Trace, part: Component, positions: Sequence[int], norms: Norms
) -> dict[str, Tensor]:
    """What a head wrote at some positions, by the token that it took it from. `row d_model` each"""
    assert part.layer is not None and part.head is not None
    written = [trace.delta_e_by_source(part.layer, part.head, pos) for pos in positions]
    passed = norms.behind_attention(part.layer)
    arriving = norms.arriving(torch.stack(written).double(), passed)
    # a causal head has read nothing behind the last of these positions
    read = max(positions) + 1 if trace.stack.causal else len(trace.tokens)
    labels = trace.tokens.labels[:read]
    return {
        f"{part.component} from {label}": arriving[:, source] for source, label in enumerate(labels)
    }


def _read(trace: Trace, layer: int, positions: Sequence[int], by: By) -> Parts:
    """What the attention of a layer reads at some positions, behind the norm in front of it. `->
    part row d_model`"""
    return through_input_norm(trace, layer, stream_parts(trace, layer, positions, by))


def through_input_norm(trace: Trace, layer: int, entering: Parts) -> Parts:
    """Parts of the stream behind the norm in front of an attention, its scale held at that of their
    sum. `part row d_model`"""
    config = trace.stack.config
    block = trace.stack.blocks[layer].to(torch.float64, "cpu")
    normed = forward.attention_input(block, entering.vectors, config, norm=_norm_held)
    bias = block.norm_bias if forward.norms_input(block, config) else None
    return Parts(entering.labels, normed).plus("norm bias", bias)


def _norm_held(terms: Tensor, weight: Tensor | None, bias: Tensor | None, config: Config) -> Tensor:
    """Every term of a sum through a norm, without its bias, the scale held at that of the sum.
    `part ... width`, unchanged"""
    scale = forward.norm_scale(terms.sum(0), config)[..., None]
    gain = forward.gain_of(weight, config).double()
    return through_norm(terms, gain, scale, centred=config.family.norm == "LayerNorm")


def project(read: Parts, weight: Tensor, bias: Tensor | None, label: str) -> Parts:
    """Queries, keys or values of every head, term by term. `part row d_model -> part head row
    d_head`"""
    vectors = torch.einsum("prm,hmd->phrd", read.vectors, weight)
    return Parts(read.labels, vectors).plus(label, bias)


def compared(
    block: Block, terms: Tensor, norm: Tensor | None, positions: Sequence[int], config: Config
) -> Tensor:
    """The terms of queries or keys as they meet: behind their norm, its scale held, and rotated by
    their positions. `part head row d_head`, unchanged"""
    normed = forward.norm_heads(terms, norm, config, norm=_norm_held)
    return forward.rotate(block, normed, torch.tensor(positions), config)
