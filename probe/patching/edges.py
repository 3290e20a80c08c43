"""Every path from one part of the network to a head or an MLP that reads it: what a receiver makes
of one sender alone.

An edge leads from what a sender writes at one position to one head at the same or a later position
(at any where the model reads both ways), into its query, its key or its value, or to an MLP at the
same position; positions are counted from the word, 0 the word and -1 the token before it. Along it
the receiver's input at the sender's position is

    the stream there, with the donor's write of the sender in place of its own,  through the
                                                                                 receiver's own
                                                                                 norm,

the query, key or value there and the receiver's z, or the MLP's output, are computed anew, and
every other write is the recipient's. Where a family adds writes as they are, that is the stream +
(donor's write - own write); where a norm stands behind what the heads of a block write together, or
behind the sum, what passes it is normed with the sender's write changed. Senders: the embeddings
(token and position together), every head and every MLP before. Three numbers an edge, with z an
MLP's output, in front of any norm, where the receiver is one:

    fraction   <z along the edge - own z, z swapped - own z> / |z swapped - own z|²: how much of the
               receiver's own swap
               the edge alone brings about; 1 is all of it
    direct     how far the word's vector moves when every head and MLP behind the receiver writes
               what it wrote; 0
               where the receiver does not stand at the word
    total      the same with everything behind the receiver live

Up to there this is arithmetic on what two runs computed, exact: no gradient, and no norm, softmax
or activation made linear. A total is a forward of its own from the receiver on, so it is run for
edges that could reach a given share of the gap (|fraction| times the effect of the receiver's
swap), and for a random sample of the others.

Sources: Goldowsky-Dill et al. 2023 (path patching); Wang et al. 2022 (paths into queries, keys and
values).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.model import fused
from probe.model.attention import repeat_kv
from probe.model.weights import Weights
from probe.patching.heads import BATCH_NUMBERS, Rows
from probe.patching.pair import (
    PairCache,
    Point,
    cache_pairs,
    change_after,
    positions_from_word,
    receiver_z,
    run_frozen,
    run_patched,
    token_pairs,
)
from probe.patching.positions import HEAD, effects
from probe.stats.resampling import Array, order

REACH, SAMPLE = 0.005, 200
CHANNELS = ("query", "key", "value", "input")  # the last is an MLP's
EMBEDDING, MLP = -1, -1  # the layer of the embeddings as a sender, and the head of what is no head
END_FIELDS = [
    f"{end}_{part}" for end in ("sender", "receiver") for part in ("layer", "head", "pos")
]
EDGE_DTYPE = np.dtype([*((name, np.int16) for name in END_FIELDS), ("channel", "U5")])
EdgeArray = NDArray[np.void]


def edges_of(
    weights: Weights, depth: int, senders: Sequence[int], receivers: Sequence[int], *, mlps: bool
) -> EdgeArray:
    """Every edge, block after block, a block's heads before its MLP. `-> edge`"""
    count, last = weights.shape[1], CHANNELS[-1]
    every = [
        (EMBEDDING, MLP),
        *((layer, head) for layer in range(depth) for head in (*range(count), MLP)),
    ]
    writers, parts = np.array(every, dtype=np.int16).T, []
    into = [
        (channel, pos, receiver)
        for pos in senders
        for channel, receiver in channels_from(weights, pos, receivers)
    ]
    into += [(last, pos, pos) for pos in senders if mlps and pos in receivers]
    for layer, (channel, pos, receiver) in product(range(depth), into):
        heads = [MLP] if channel == last else [*range(count)]
        behind_heads = channel == last and not weights.config.family.parallel
        before = (
            1 + layer * (count + 1) + (count if behind_heads else 0)
        )  # how many senders write before it is read
        block = np.empty((len(heads), before), dtype=EDGE_DTYPE)  # head sender
        block["sender_layer"], block["sender_head"] = writers[:, :before]
        block["receiver_layer"], block["receiver_head"] = layer, np.array(heads)[:, None]
        block["sender_pos"], block["receiver_pos"], block["channel"] = pos, receiver, channel
        parts.append(block.ravel())
    return np.concatenate(parts)


def channels_from(weights: Weights, pos: int, receivers: Sequence[int]) -> list[tuple[str, int]]:
    """Through which channel a write at `pos` gets into a head at which position: no earlier one in
    a causal model."""
    reading = [receiver for receiver in receivers if receiver >= pos or not weights.causal]
    query = [("query", pos)] if pos in receivers else []
    return query + [(channel, receiver) for channel in ("key", "value") for receiver in reading]


@dataclass(frozen=True, eq=False)
class Edges:
    """Every edge of several pairs of one layout; recipient 0 is `a` with writes of `b`, recipient 1
    the other way.

    `edges: edge`, a structured array of EDGE_DTYPE: layers, heads (-1 the MLP of a layer, layer -1 the
    embeddings), positions and one of CHANNELS · `gap: pair direction` · `fraction: pair recipient
    edge` · `direct total: pair recipient edge direction`, how far the read-out moves; `total` is
    NaN where it was not run · `sampled: edge`, those whose total was run though they could not
    reach as much · `swapped: pair recipient layer head pos`, how far it moves along the first
    direction when a receiver is the donor's, the MLPs behind the heads.
    """

    edges: EdgeArray
    gap: Tensor
    fraction: Tensor
    direct: Tensor
    total: Tensor
    sampled: NDArray[np.bool_]
    swapped: Tensor

    def share(self, name: str, direction: int = 0) -> Array:
        """`direct` or `total` as a share of the gap, both ways averaged: a ratio of sums. `-> edge`"""
        noise, denoise = getattr(self, name)[..., direction].double().sum(0)
        return np.asarray((denoise - noise) / 2 / self.gap[:, direction].double().sum())

    def rows(self, direction: int = 0, *, only_run: bool = True) -> list[dict[str, object]]:
        """One row an edge, over all pairs and both ways: `fraction` a mean, `direct` and `total`
        shares of the gap (ratios of sums), and `sampled`; those whose total was run, or all.
        """
        columns: dict[str, NDArray[np.generic]] = {
            name: self.edges[name] for name in EDGE_DTYPE.names or ()
        }
        columns |= {"fraction": self.fraction.mean((0, 1)).numpy()}
        columns |= {name: self.share(name, direction) for name in ("direct", "total")} | {
            "sampled": self.sampled
        }
        kept = ~np.isnan(columns["total"]) if only_run else slice(None)
        rows = zip(*(values[kept].tolist() for values in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]


def edges(
    weights: Weights,
    a: Rows,
    b: Rows,
    directions: Tensor,
    *,
    depth: int,
    positions: Sequence[int] | None = None,
    receivers: Sequence[int] | None = None,
    mlps: bool = True,
    reach: float = REACH,
    most: int | None = None,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Edges:
    """Every edge into every head and every MLP below the read-out, of pairs whose members are of
    equal length.

    `directions`: as in `trace_positions` · `positions`: of senders; those from the first difference
    to the word where none are given · `receivers`: of receivers, all of these where none are given
    · `mlps`: whether MLPs are among the receivers · `reach`: the share of the gap along the first
    direction that an edge must be able to reach for its total to be run · `most`: of how many it is
    run at most, those that could reach most · `sample`: of how many others it is run, drawn with
    the seed. Raises InputError as `trace_positions`.

    Example:
        >>> weights = probe.read_weights("tiny-senses")
        >>> texts = [probe.tokenize("tiny-senses", f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states("tiny-senses", texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> found = probe.edges(weights, rows[:1], rows[1:], direction, depth=4)
        >>> found.direct.shape == (1, 2, len(found.edges), 1)  # pair recipient edge direction
        True
    """
    pairs = token_pairs(weights, a, b, depth)
    senders = positions_from_word(pairs, positions)
    receiving = senders if receivers is None else positions_from_word(pairs, receivers)
    edges = edges_of(weights, depth, senders, receiving, mlps=mlps)
    with torch.inference_mode():
        read = [*cache_pairs(weights, pairs, directions, depth)]
        gaps = torch.stack([one.gap for one in read])
        measured = [
            _measure(one.cache, senders, receiving, one.directions, mlps=mlps) for one in read
        ]
        fraction, direct = (torch.stack(part) for part in zip(*measured, strict=True))
        parts = [HEAD, "mlp_out"] if mlps else [HEAD]
        moved = [effects(one.cache, receiving, one.directions[:1], parts) for one in read]
        swapped = [torch.cat([one[part][..., 0] for part in parts], dim=2) for one in moved]
        could = (
            (_could_reach(edges, fraction, swapped, receiving) / gaps[:, 0].sum().abs())
            .cpu()
            .numpy()
        )
        reached = np.isin(np.arange(len(could)), order(could)[:most]) & (could >= reach)
        sampled = np.zeros_like(reached)
        sampled[np.random.default_rng(seed).permutation(np.flatnonzero(~reached))[:sample]] = True
        total, chosen = torch.full_like(direct, torch.nan), np.flatnonzero(reached | sampled)
        for number, one in enumerate(read):
            total[number][:, chosen] = totals(one.cache, edges[chosen], one.directions)
        found = [part.cpu() for part in (gaps, fraction, direct, total, torch.stack(swapped))]
    gap, fraction, direct, total, whole = (part.clone() for part in found)
    return Edges(edges, gap, fraction, direct, total, sampled, whole)


def total_effects(
    weights: Weights, a: Rows, b: Rows, directions: Tensor, edges: EdgeArray, *, depth: int
) -> Tensor:
    """The total effect of given edges, in pairs as for `edges`; raises alike. `-> pair recipient
    edge direction`"""
    pairs = token_pairs(weights, a, b, depth)
    positions_from_word(pairs, np.union1d(edges["sender_pos"], edges["receiver_pos"]).tolist())
    with torch.inference_mode():
        read = cache_pairs(weights, pairs, directions, depth)
        return torch.stack([totals(one.cache, edges, one.directions) for one in read]).cpu().clone()


def _arriving(cache: PairCache, pos: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Block by block how what the heads read at a position, and what the MLP reads there, changes
    with the write of each sender before it alone: the embeddings, then heads and MLP of block after
    block. `-> recipient sender d_model`, twice
    """
    entering = _other(cache.layers[0].resid_pre[:, pos, None])
    for layer, (block, step) in enumerate(zip(cache.weights.blocks, cache.layers, strict=False)):
        assert block.w_out is not None
        heads = torch.einsum("rhe,hed->rhd", _other(step.z[:, pos]), block.w_o)
        middle = _passed_on(cache, 2 * layer, pos, entering, heads)
        yield entering, entering if cache.weights.config.family.parallel else middle
        mlp = _other(step.hidden[:, pos, None]) @ block.w_out
        entering = _passed_on(cache, 2 * layer + 1, pos, middle, mlp)


def _passed_on(
    cache: PairCache, point: Point, pos: int, entering: Tensor, writes: Tensor
) -> Tensor:
    """The changes of the stream behind a part: those in front of it, and one for each of its own
    writes."""
    own = change_after(cache, point, pos, torch.zeros_like(writes), writes)
    return torch.cat([change_after(cache, point, pos, entering), own], dim=1)


def _other(own: Tensor) -> Tensor:
    """Donor's less own."""
    return own.roll(1, 0) - own


def _moved_heads(
    cache: PairCache, layer: int, pos: int, changes: Tensor, into: Sequence[tuple[str, int]]
) -> Iterator[tuple[int, Tensor]]:
    """How z of every head of a block changes with each change of the stream at `pos` alone, by the
    channel and the position of the receivers: that position, and `recipient head sender d_head`.
    `changes: recipient sender d_model`
    """
    weights, step, heads = cache.weights, cache.layers[layer], cache.weights.shape[1]
    block = weights.blocks[layer]
    resid = step.resid_pre[:, pos, None]
    resid = torch.cat(
        [resid, resid + changes], dim=1
    )  # as it was comes first, so that nothing but the change is left
    here = torch.full((1, 1), pos, device=weights.device)
    q, *shared = fused.project(weights, block, resid, cache.places, here)
    # recipient head sender d_head
    k, v, keys, values = (repeat_kv(part, heads) for part in (*shared, step.k, step.v))
    for channel, receiver in into:
        seen = cache.seen(receiver)
        asking = q if channel == "query" else step.q[:, :, receiver, None]
        matches = asking @ keys[:, :, seen].mT  # recipient head sender key_pos
        if channel == "key":
            matches = matches.repeat(1, 1, k.shape[2], 1)
            matches[..., pos] = (asking * k).sum(-1)
        pattern = fused.pattern(weights, matches, cache.places.row(block, receiver))
        z = pattern[..., pos, None] * v if channel == "value" else pattern @ values[:, :, seen]
        yield receiver, z[:, :, 1:] - z[:, :, :1]


def _moved_neurons(cache: PairCache, layer: int, pos: int, changes: Tensor) -> Tensor:
    """What a block's MLP writes otherwise with each change of the stream at `pos` alone. `recipient
    sender d_model`"""
    weights, block = cache.weights, cache.weights.blocks[layer]
    stream = cache.stream(2 * layer + (not weights.config.family.parallel))[:, pos, None]
    hidden = fused.activate(weights, block, torch.cat([stream, stream + changes], dim=1))
    assert block.w_out is not None
    return (hidden[:, 1:] - hidden[:, :1]) @ block.w_out


def _measure(
    cache: PairCache,
    senders: Sequence[int],
    receivers: Sequence[int],
    directions: Tensor,
    *,
    mlps: bool,
) -> tuple[Tensor, Tensor]:
    """Fraction and direct effect of every edge of a pair. `-> recipient edge, recipient edge
    direction`"""
    weights, at = cache.weights, cache.at
    fractions, directs = [], []

    def note(
        point: Point, receiver: int, moved: Tensor, whole: Tensor, weight: Tensor | None = None
    ) -> None:
        size = whole.square().sum(
            -1, keepdim=True
        )  # moved: recipient head sender d, whole: recipient head d
        toward = whole / size.where(size > 0, 1)
        fractions.append((moved @ toward[..., None])[..., 0].flatten(1))
        none = moved.new_zeros(*moved.shape[:-1], len(directions))
        directs.append(
            (_direct(cache, point, moved, weight, directions) if receiver == at else none).flatten(
                1, 2
            )
        )

    arriving = zip(*(_arriving(cache, at + pos) for pos in senders), strict=True)
    for layer, (block, step, changes) in enumerate(
        zip(weights.blocks, cache.layers, arriving, strict=False)
    ):
        for pos, (change, _) in zip(senders, changes, strict=True):
            into = [
                (channel, at + receiver)
                for channel, receiver in channels_from(weights, pos, receivers)
            ]
            for receiver, z in _moved_heads(cache, layer, at + pos, change, into):
                note(2 * layer, receiver, z, _other(step.z[:, receiver]), block.w_o)
        for pos, (_, change) in zip(senders, changes, strict=True):
            if mlps and pos in receivers:
                assert block.w_out is not None
                whole = _other(step.hidden[:, at + pos, None]) @ block.w_out
                note(
                    2 * layer + 1,
                    at + pos,
                    _moved_neurons(cache, layer, at + pos, change)[:, None],
                    whole,
                )
    return torch.cat(fractions, dim=1), torch.cat(directs, dim=1)


def _direct(
    cache: PairCache, point: Point, moved: Tensor, weight: Tensor | None, directions: Tensor
) -> Tensor:
    """How far the word's vector moves with each change of what receivers at the word write, every
    other write held.

    `moved: recipient head sender d_head` with `weight: head d_head d_model`, or `d_model` without
    `-> recipient head sender direction`
    """
    if cache.weights.config.family.adds_plainly:
        return moved @ (directions.T if weight is None else weight @ directions.T)
    written = moved if weight is None else moved @ weight
    change = run_frozen(cache, cache.at, {point: written.flatten(1, 2)}, 2 * len(cache.layers))
    return (change @ directions.T).unflatten(1, written.shape[1:3])


def _could_reach(
    edges: EdgeArray, fraction: Tensor, effects: Sequence[Tensor], receivers: Sequence[int]
) -> Tensor:
    """Σ over pairs of |fraction times the receiver's swap effect|, mean of both ways. `-> edge`"""
    place, shape = np.searchsorted(receivers, edges["receiver_pos"]), effects[0].shape[1:]
    head = edges["receiver_head"] % shape[1]  # the MLP is the last
    where = np.ravel_multi_index((edges["receiver_layer"], head, place), shape)
    number = torch.from_numpy(where).to(fraction.device)
    could = [
        (part * swap.flatten(1)[:, number]).abs().mean(0)
        for part, swap in zip(fraction, effects, strict=True)
    ]
    return torch.stack(could).sum(0)


# --- totals ---------------------------------------------------------------------------------------


def totals(cache: PairCache, edges: EdgeArray, directions: Tensor) -> Tensor:
    """The total effect of some edges of a pair, all behind the receiver live. `-> recipient edge
    direction`"""
    moved, most = (
        directions.new_empty(2, len(edges), len(directions)),
        BATCH_NUMBERS // cache.final.shape[-1],
    )
    for first in range(0, len(edges), most):
        some = slice(first, first + most)
        moved[:, some] = _carried_on(
            cache, edges[some], _behind_receivers(cache, edges[some]), directions
        )
    return moved


def _carried_on(cache: PairCache, edges: EdgeArray, streams: Tensor, directions: Tensor) -> Tensor:
    """How far the word's vector moves with each stream behind a receiver. `-> recipient edge
    direction`"""
    moved = directions.new_empty(2, len(edges), len(directions))
    points = 2 * edges["receiver_layer"] + 1 + (edges["channel"] == CHANNELS[-1])
    for receiver in np.unique(edges["receiver_pos"]).tolist():
        pos, here = cache.at + receiver, np.flatnonzero(edges["receiver_pos"] == receiver)
        responding = cache.n - pos if cache.weights.causal else cache.n
        most = max(1, BATCH_NUMBERS // (2 * responding * cache.weights.blocks[0].d_mlp))
        for some in np.split(here, range(most, len(here), most)):
            numbers = {
                point: some[points[some] == point] for point in np.unique(points[some]).tolist()
            }
            starts = {point: streams[:, which] for point, which in numbers.items()}
            for point, values in run_patched(cache, pos, starts, directions).items():
                moved[:, numbers[point]] = values
    return moved


def _behind_receivers(cache: PairCache, edges: EdgeArray) -> Tensor:
    """The stream behind the receiver of each edge, as the edge alone makes it. `-> recipient edge
    d_model`"""
    heads, senders = cache.weights.shape[1], np.unique(edges["sender_pos"])
    place, is_mlp = np.searchsorted(senders, edges["sender_pos"]), edges["channel"] == CHANNELS[-1]
    sent = (
        1
        + edges["sender_layer"].astype(np.int64) * (heads + 1)
        + edges["sender_head"] % (heads + 1)
    )
    sent[edges["sender_layer"] == EMBEDDING] = (
        0  # where each sender stands in the order of `_arriving`
    )
    streams = cache.final.new_empty(2, len(edges), cache.final.shape[-1])
    arriving = zip(*(_arriving(cache, cache.at + pos) for pos in senders.tolist()), strict=True)
    for layer, changes in zip(range(edges["receiver_layer"].max() + 1), arriving, strict=False):
        here = edges["receiver_layer"] == layer
        for receiver, mlp in product(
            np.unique(edges["receiver_pos"][here]).tolist(), (True, False)
        ):
            into = np.flatnonzero(here & (edges["receiver_pos"] == receiver) & (is_mlp == mlp))
            if len(into):
                change = torch.stack(
                    [changes[place[one]][mlp][:, sent[one]] for one in into], dim=1
                )
                behind = _behind_mlp if mlp else _behind_heads
                streams[:, into] = behind(cache, layer, cache.at + receiver, edges[into], change)
    return streams


def _behind_mlp(
    cache: PairCache, layer: int, pos: int, edges: EdgeArray, changes: Tensor
) -> Tensor:
    """The stream behind a block's MLP, its input changed along each edge. `recipient edge d_model`,
    unchanged"""
    written = _moved_neurons(cache, layer, pos, changes)
    behind = change_after(cache, 2 * layer + 1, pos, torch.zeros_like(written), written)
    return cache.stream(2 * layer + 2)[:, pos, None] + behind


def _behind_heads(
    cache: PairCache, layer: int, pos: int, edges: EdgeArray, changes: Tensor
) -> Tensor:
    """The same behind the attention of a block, one head's input changed along each edge."""
    weights, step, heads = cache.weights, cache.layers[layer], edges["receiver_head"]
    numbers, at = np.arange(len(edges)), cache.at + edges["sender_pos"].astype(np.int64)
    resid = step.resid_pre[:, torch.from_numpy(at).to(weights.device)]
    own, other = (
        receiver_z(cache, layer, pos, heads, (numbers, edges["channel"], at), x)
        for x in (resid, resid + changes)
    )  # as it was is run alike, so that nothing but the change is left
    z = step.z[:, pos, None].repeat(1, len(heads), 1, 1)
    z[:, numbers, heads] += other - own
    resid = step.resid_pre[:, pos, None].expand(-1, len(heads), -1)
    return fused.write(weights, weights.blocks[layer], resid, z)
