"""Two runs of a pair kept whole, and what becomes of a run whose stream is changed at one place.

A change stands in the residual stream at one position and at one point: in front of the attention
of a block, or between its attention and its MLP. The donor's attention output, one head's z, the
donor's MLP output: each makes such a change.

    run_patched   everything behind the change responds. In a causal model it touches no position before
            its own, so only the
            positions from there to the word are carried on, against the keys and values of the
            others.
    hold    every head and every MLP behind it writes what it wrote. Where a family adds writes as
            they are, the change
            stays what it is; where a norm stands behind the sum or behind what is written, it goes
            through the norm.

One of the two may also be run again with chosen heads changed at one position (`run_with_patch`), and what
the model writes behind it follows token by token (`generate`): every token that is written adds its
own keys and values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from probe.errors import InputError
from probe.model import forward, fused
from probe.model.attention import repeat_kv
from probe.model.fused import KeysValues, PositionTables
from probe.model.weights import Weights
from probe.patching.heads import Rows, target_texts

Point = int  # 2 layer, where the stream enters a block, or 2 layer + 1, between its attention and its MLP
TokenPair = tuple[
    list[tuple[int, ...]], int
]  # the token ids of both members of a pair, and where their word stands


class LayerCache(NamedTuple):
    """One block of a run: `resid_pre resid_mid: row pos d_model` · `q: row head pos d_head` and `k
    v: row kv_head pos d_head`, rotated for their positions · `z: row pos head d_head` · `hidden:
    row pos d_mlp`, the MLP's activations.
    """

    resid_pre: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    z: Tensor
    resid_mid: Tensor
    hidden: Tensor


class HeadPatch(NamedTuple):
    """z that chosen heads get at position `at`: `z: layer head d_head`, `heads: layer head`, True
    where changed."""

    at: int
    z: Tensor
    heads: Tensor


@dataclass(frozen=True, eq=False)
class PairCache:
    """The two runs of a pair, each the other's donor: row 0 is a, row 1 is b; the word stands at
    `at` in both. `final: row pos d_model`, the stream after the last of `layers`.
    """

    weights: Weights
    places: PositionTables
    layers: tuple[LayerCache, ...]
    final: Tensor
    at: int

    @property
    def n(self) -> int:
        """How many tokens each of the two has."""
        return self.final.shape[1]

    def stream(self, point: Point) -> Tensor:
        """The stream at a point; 2 depth is the end. `row pos d_model`"""
        if point == 2 * len(self.layers):
            return self.final
        step = self.layers[point // 2]
        return step.resid_mid if point % 2 else step.resid_pre

    def seen(self, pos: int) -> slice:
        """The positions that a query at `pos` reads."""
        return slice(pos + 1 if self.weights.causal else self.n)


def cache_pair(weights: Weights, rows: Sequence[Sequence[int]], at: int, depth: int) -> PairCache:
    """Run the members of a pair and keep every step of the first `depth` blocks at every position."""
    ids = torch.tensor(rows, dtype=torch.long, device=weights.device)
    places = fused.position_tables(weights, ids.shape[1])
    steps, final = _steps(weights, forward.embed(weights, ids), places, [None] * depth)
    return PairCache(weights, places, steps, final, at)


def _steps(
    weights: Weights,
    resid: Tensor,
    places: PositionTables,
    known: Sequence[KeysValues | None],
    change: HeadPatch | None = None,
) -> tuple[tuple[LayerCache, ...], Tensor]:
    """The steps of as many blocks as `known` has entries, and the stream behind them, at the
    positions behind those whose keys and values are known. k and v are those of all positions. `row
    pos d_model`
    """
    start = known[0][0].shape[-2] if known and known[0] is not None else 0
    pos = torch.arange(start, start + resid.shape[1], device=weights.device)[None]
    steps = []
    for layer, (block, before) in enumerate(zip(weights.blocks, known, strict=False)):
        q, k, v = fused.project(weights, block, resid, places, pos)
        if before is not None:
            k, v = (torch.cat(parts, dim=-2) for parts in zip(before, (k, v), strict=True))
        z = fused.attend(weights, block, q, k, v, places).transpose(1, 2)
        if change is not None:
            z[0, change.at - start] = patch_heads(
                z[0, change.at - start], change.z[layer], change.heads[layer]
            )
        resid_mid = fused.write(weights, block, resid, z)
        hidden = fused.activate(
            weights, block, resid if weights.config.family.parallel else resid_mid
        )
        steps.append(LayerCache(resid, q, k, v, z, resid_mid, hidden))
        resid = fused.write_mlp(weights, block, resid_mid.clone(), hidden)
    return tuple(steps), resid


def patch_heads(z: Tensor, given: Tensor, heads: Tensor) -> Tensor:
    """z at one position, the given one in chosen heads. `head d_head, head d_head, head -> head
    d_head`"""
    return torch.where(heads[:, None], given.to(z), z)


def run_frozen(cache: PairCache, pos: int, sent: Mapping[Point, Tensor], until: Point) -> Tensor:
    """How the stream at the point `until` changes at a position when some attentions and MLPs
    before it write otherwise there and every other one writes what it wrote. `sent: recipient
    variant d_model`, the change of what is written in front of any norm, by the point at which the
    writer stands; -1 for the embeddings `-> recipient variant d_model`
    """
    points = range(min(sent), until) if cache.weights.config.family.norm_after_sum else sent
    change = torch.zeros_like(next(iter(sent.values())))
    for point in points:
        change = change_after(cache, point, pos, change, sent.get(point, 0.0))
    return change


def change_after(
    cache: PairCache, point: Point, pos: int, entering: Tensor, written: Tensor | float = 0.0
) -> Tensor:
    """How the stream at the next point changes at a position, from the change of the stream at this
    one and the change of what the attention or the MLP between the two writes. `recipient variant
    d_model`
    """
    weights, (layer, mlp) = cache.weights, divmod(point, 2)
    family = weights.config.family
    if family.adds_plainly or layer < 0:
        return entering + written
    block, step = weights.blocks[layer], cache.layers[layer]
    writer, x = (
        (fused.mlp_of(block), step.hidden)
        if mlp
        else (fused.attention_of(block), step.z.flatten(-2))
    )
    own, add = writer.written(x[:, pos, None]), partial(fused.add, weights.config, writer)
    if family.norm_after_sum:
        resid = cache.stream(point)[:, pos, None]
        return add(resid + entering, own + written) - add(resid, own)
    nothing = torch.zeros_like(own)
    return entering + add(nothing, own + written) - add(nothing, own)


def receiver_z(
    cache: PairCache,
    layer: int,
    receiver: int,
    heads: ArrayLike,
    into: tuple[ArrayLike, ...],
    inputs: Tensor,
) -> Tensor:
    """z of one head of a block in each variant, at the position `receiver`, when some of what it
    reads is projected from other streams. `inputs: recipient input d_model` · `into`: the variant
    of each input, the channel that it enters, and its position `-> recipient variant d_head`
    """
    weights, step, device = cache.weights, cache.layers[layer], cache.weights.device
    block, seen, count = weights.blocks[layer], cache.seen(receiver), weights.shape[1]
    head, variant, at = (
        torch.from_numpy(np.array(part, dtype=np.int64)).to(device)
        for part in (heads, into[0], into[2])
    )
    q, k, v = (
        repeat_kv(part, count)[:, head[variant], range(len(at))]
        for part in fused.project(weights, block, inputs, cache.places, at[None])
    )  # recipient input d_head
    asking = step.q[:, head, receiver]
    keys, values = (repeat_kv(part[:, :, seen], count)[:, head] for part in (step.k, step.v))
    query, key, value = (
        torch.from_numpy(np.asarray(into[1]) == name).to(device)
        for name in ("query", "key", "value")
    )
    asking[:, variant[query]] = q[:, query]
    keys[:, variant[key], at[key]] = k[:, key]
    values[:, variant[value], at[value]] = v[:, value]
    bias = cache.places.row(block, receiver)
    pattern = fused.pattern(
        weights, (keys @ asking[..., None])[..., 0], None if bias is None else bias[head, 0]
    )
    return (pattern[:, :, None] @ values)[:, :, 0]


def run_patched(
    cache: PairCache, pos: int, starts: Mapping[Point, Tensor], directions: Tensor
) -> dict[Point, Tensor]:
    """How far the word's vector after the last block moves along each direction for every change at
    position `pos`. `starts: row variant d_model` by the point at which it stands in the stream `->
    row variant direction` by the same points.
    """
    weights, last = cache.weights, len(cache.layers) - 1
    first = pos if weights.causal else 0
    alone = cache.final.new_zeros(
        len(cache.final), 0, cache.final.shape[-1]
    )  # row variant d_model: changed at `pos` only
    carried = alone[:, :, None].expand(
        -1, -1, cache.n - first, -1
    )  # row variant live d_model: changed from `first` on
    for layer, step in enumerate(cache.layers):
        block = weights.blocks[layer]
        alone = torch.cat([alone, starts.get(2 * layer, alone[:, :0])], dim=1)
        resid_mid = carried
        if alone.shape[1] or carried.shape[1]:
            z = _attend(cache, layer, carried, alone, pos)
            carried = torch.cat(
                [carried, _with(step.resid_pre[:, first:], alone, pos - first)], dim=1
            )
            if layer == last:  # behind the last attention only the word is wanted
                z, carried = (part[:, :, cache.at - first, None] for part in (z, carried))
            resid_mid = fused.write(weights, block, carried, z)
        changed = starts.get(2 * layer + 1, alone[:, :0])
        entered = step.resid_pre[:, pos, None].expand_as(changed)
        before, behind = (_rows(*parts) for parts in ((carried, entered), (resid_mid, changed)))
        carried, alone = _apart(fused.finish(weights, block, before, behind), carried.shape)
    alone, word = (
        torch.cat([alone, starts.get(2 * last + 2, alone[:, :0])], dim=1),
        cache.final[:, None, cache.at],
    )
    alone = alone if pos == cache.at else word.expand_as(alone)
    moved = (torch.cat([carried[:, :, -1], alone], dim=1) - word) @ directions.T
    points = sorted(starts)
    return dict(
        zip(points, moved.split([starts[point].shape[1] for point in points], dim=1), strict=True)
    )


def _attend(cache: PairCache, layer: int, carried: Tensor, alone: Tensor, pos: int) -> Tensor:
    """z of the live positions of the variants that are changed at all of them, then of those that
    are changed at `pos` only, whose queries, keys and values elsewhere are the run's own. `row
    variant live d_model, row variant d_model -> row variant live head d_head`
    """
    weights, step, first = cache.weights, cache.layers[layer], cache.n - carried.shape[2]
    block = weights.blocks[layer]
    places = torch.arange(first, cache.n, device=weights.device).repeat(carried.shape[1])
    places = torch.cat([places, places.new_full((alone.shape[1],), pos)])
    projected = fused.project(weights, block, _rows(carried, alone), cache.places, places[None])
    own = []
    for part, new in zip((step.q, step.k, step.v), projected, strict=True):
        spread, here = _apart(new.transpose(1, 2), carried.shape)
        every = torch.cat(
            [spread, _with(part[:, :, first:].transpose(1, 2), here, pos - first)], dim=1
        )
        own.append(every.transpose(2, 3))  # row variant head live d_head
    known: KeysValues | None = (step.k[:, :, :first], step.v[:, :, :first]) if first else None
    return fused.attend_among(weights, block, own, known, cache.places)


def _rows(carried: Tensor, alone: Tensor) -> Tensor:
    """PairCache side by side, for one product. `row variant live d_model, row variant d_model -> row
    vector d_model`"""
    return torch.cat([carried.flatten(1, 2), alone], dim=1)


def _apart(rows: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The two again, the first with as many variants and live positions as the shape says."""
    count = shape[1] * shape[2]
    return rows[:, :count].unflatten(1, shape[1:3]), rows[:, count:]


def _with(whole: Tensor, changed: Tensor, place: int) -> Tensor:
    """Every variant of a tensor, with one place changed. `row pos ..., row variant ... -> row
    variant pos ...`"""
    variants = whole[:, None].repeat(1, changed.shape[1], *[1] * (whole.ndim - 1))
    variants[:, :, place] = changed
    return variants


# --- pairs and how they are read ------------------------------------------------------------------


def token_pairs(weights: Weights, a: Rows, b: Rows, depth: int) -> list[TokenPair]:
    """The members of every pair. Raises InputError for members of unequal length or place, and for
    a depth that the model does not have.
    """
    if not 1 <= depth <= len(weights.blocks):
        raise InputError(
            f"Tracing pairs up to depth {depth}: the model has {len(weights.blocks)} blocks; give a depth from 1 to "
            f"{len(weights.blocks)}."
        )
    members = [*zip(target_texts(weights, a), target_texts(weights, b), strict=True)]
    for number, (one, other) in enumerate(members):
        if (len(one.ids), one.at) != (len(other.ids), other.at):
            raise InputError(
                f"Tracing pair {number}: got {len(one.ids)} and {len(other.ids)} tokens with the word at {one.at} and "
                f"{other.at}, expected the same of both; leave the pair out or write its members equally long."
            )
    return [([one.ids, other.ids], one.at) for one, other in members]


class PairReading(NamedTuple):
    """A pair and how it is read: `directions: direction d_model` · `gap: direction`, <a - b, direction>
    at the word."""

    cache: PairCache
    directions: Tensor
    gap: Tensor


def cache_pairs(
    weights: Weights, pairs: Sequence[TokenPair], directions: Tensor, depth: int
) -> Iterator[PairReading]:
    """Pair after pair kept, each when it is asked for, so that where one is used once only one is
    held. `directions: direction d_model`, or `pair direction d_model` where each pair has its own.
    """
    directions = directions.to(weights.device, weights.dtype)
    each = directions.expand(len(pairs), *directions.shape[-2:])
    for (rows, at), along in zip(pairs, each, strict=True):
        cache = cache_pair(weights, rows, at, depth)
        yield PairReading(cache, along, (cache.final[0, at] - cache.final[1, at]) @ along.T)


def positions_from_word(
    pairs: Sequence[TokenPair], positions: Sequence[int] | None
) -> tuple[int, ...]:
    """Positions counted from the word, 0 the word itself and -1 the token before it: those given,
    or from the first token in which the members of a pair differ to the word, and to the last one
    where the model reads both ways.

    Raises InputError where there are none and where a text does not reach as far.
    """
    differ = [pos - at for (a, b), at in pairs for pos in range(len(a)) if a[pos] != b[pos]]
    if positions is None and not differ:
        raise InputError(
            "Tracing pairs from the first token in which they differ to the word: got members that are the same up to "
            "the word, expected a cue before it; read at a later position or give positions."
        )
    found = (
        tuple(range(min(differ), max(0, *differ) + 1))
        if positions is None
        else tuple(sorted(set(positions)))
    )
    for number, ((ids, _), at) in enumerate(pairs):
        if not (0 <= at + found[0] and at + found[-1] < len(ids)):
            raise InputError(
                f"Tracing positions {found[0]} to {found[-1]} from the word: pair {number} has {at} tokens before the "
                f"word and {len(ids) - 1 - at} behind it that are read; trace pairs of another layout apart."
            )
    return found


# --- a run with heads changed, and what is written after it ---------------------------------------


class PatchedRun(NamedTuple):
    """A run with heads changed: `known`, keys and values of every block, `1 kv_head pos d_head` ·
    `final: pos d_model`, what left the last block at the positions run again · `stream: depth
    d_model`, the vector at the changed position.
    """

    known: Sequence[KeysValues]
    final: Tensor
    stream: Tensor


def run_with_patch(cache: PairCache, change: HeadPatch) -> PatchedRun:
    """The run of row 0 with the heads changed: from the change on, or whole where the model reads
    both ways."""
    start = change.at if cache.weights.causal else 0
    steps = [
        step for step, _ in zip(cache.layers, cache.weights.blocks, strict=True)
    ]  # a run kept whole
    known = [(step.k[:1, :, :start], step.v[:1, :, :start]) for step in steps]
    with torch.inference_mode():
        changed, final = _steps(
            cache.weights, steps[0].resid_pre[:1, start:], cache.places, known, change
        )
        streams = (*(step.resid_pre for step in changed), final)
        stream = torch.stack([resid[0, change.at - start] for resid in streams])
    return PatchedRun([(step.k, step.v) for step in changed], final[0], stream)


def generate(
    weights: Weights, run: PatchedRun, count: int, *, end: int | None = None
) -> Iterator[int]:
    """Up to `count` token ids, each the likeliest after those before it, as far as `end` and the
    context window."""
    known, last, device = run.known, run.final[-1], weights.device
    n = known[0][0].shape[-2]
    count = min(count, weights.config.n_ctx - n)
    places = fused.position_tables(weights, n + max(0, count))
    for pos in range(n, n + count):
        with torch.inference_mode():
            token = int(forward.unembed(weights, last).argmax())
            if token == end:
                return
            here = torch.tensor([[token]], device=device), torch.tensor([pos], device=device)
            entering = forward.embedding_norm(
                weights, forward.sum_embeddings(forward.embedding_parts(weights, *here))
            )
            yield token
            steps, final = _steps(weights, entering, places, known)
            known, last = [(step.k, step.v) for step in steps], final[0, -1]
