"""Paths from the cue to the word: chains of edges, the share of the gap that each carries, and
the circuit, the fewest edges that are enough.

`composition` scores, from the weights alone, how well the two heads of an edge fit together.

A set of edges is patched at once. The embeddings send the donor's value minus the recipient's. A
receiver in the set is computed again from its inputs and the changes that reach it over edges of
the set, and its change in turn is sent over edges of the set only. Everything else before the word
keeps its value. Then the heads at the word where the set ends are read out: all other heads at the
word are frozen, and the MLPs at the word are live. So the result contains only the changes that
left the cue along the set, step by step, and every step is exact. Shares are ratios of sums over
pairs, of the gap along the first direction, averaged over both recipients.

If all edges are patched (with MLPs as receivers), the result is the donor's run, and its share is
1.

Sources: Wang et al. 2022 (paths, minimal circuits); Goldowsky-Dill et al. 2023 (path patching of
    sets of paths).
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probe.model import batched
from probe.model.weights import Weights
from probe.patching.edges import (
    EMBEDDING,
    MLP,
    EdgeArray,
    Edges,
    Inputs,
    moved_mlp,
    receiver_z,
)
from probe.patching.inputs import Rows
from probe.patching.pair import (
    EMBEDDINGS,
    PairCache,
    PairReading,
    Part,
    Site,
    cache_pairs,
    run_frozen,
    token_pairs,
)
from probe.stats.resampling import Array

ENOUGH = 0.9  # of the gap: a set of edges that carries this share is enough for a circuit
LEAST = 0.01  # of the gap: weaker edges and paths are ignored
MOST = 50  # paths, in order of their weakest edge
RANDOM_SETS = 200  # of edges, drawn for comparison with a circuit
# Digits in which shares are compared. Equal shares are ordered by the numbers of their edges, not
# by the rounding of sums.
DIGITS = 6
# The weight with which a receiving head reads a channel, and the weight that follows it.
READ_BY = {
    "query": ("w_q", "w_k"),
    "key": ("w_k", "w_q"),
    "value": ("w_v", "w_o"),
}
Numbers = tuple[int, ...]  # of edges in an EdgeArray


class Node(NamedTuple):
    """A sender or a receiver.

    layer: EMBEDDING for the embeddings
    head: MLP for an MLP and for the embeddings
    pos: counted from the word
    """

    layer: int
    head: int
    pos: int

    @property
    def site(self) -> Site:
        """The site at which it reads the stream."""
        if self.layer == EMBEDDING:
            return EMBEDDINGS
        return Site(self.layer, Part.MLP if self.head == MLP else Part.ATTENTION)

    @property
    def is_head_at_word(self) -> bool:
        """Whether a path can end here."""
        return self.pos == 0 and self.head != MLP


def sender_of(edge: np.void) -> Node:
    """The node from which an edge leads."""
    return Node(*edge.item()[:3])


def receiver_of(edge: np.void) -> Node:
    """The node to which an edge leads."""
    return Node(*edge.item()[3:6])


@dataclass(frozen=True, eq=False)
class Paths:
    """Chains from the cue to a head at the word, best first.

    paths: the numbers of their edges in `Edges.edges`
    shares: `path`, the share of the gap over each path alone
    together: the share over all paths at once
    circuit: the edges that are left if edges are removed one by one while the others carry ENOUGH
        of the gap; None if not even all of them carry as much
    circuit_share: the share over the circuit, or over all paths if there is no circuit
    random_shares: `set`, shares over random sets with the same number of edges into each layer
    """

    paths: tuple[Numbers, ...]
    shares: Array
    together: float
    circuit: Numbers | None
    circuit_share: float
    random_shares: Array


def paths(
    weights: Weights,
    a: Rows,
    b: Rows,
    directions: Tensor,
    among: Edges,
    *,
    depth: int,
    least: float = LEAST,
    draws: int = RANDOM_SETS,
    seed: int = 0,
) -> Paths:
    """Chains of the edges of `among` whose total is at least `least` of the gap, measured on the
    pairs `a`, `b`.

    These may be other pairs than those of `among`, with the same layout. A path is listed if its
    share alone is at least `least`. `draws` random sets are measured for comparison.

    Raises InputError in the cases of `trace_positions`.
    """
    array = among.edges
    with torch.inference_mode():
        pairs = token_pairs(weights, a, b, depth)
        readings = [*cache_pairs(weights, pairs, directions, depth)]

        def shares(sets: Iterable[Numbers], ends: Iterable[Node] | None = None) -> list[float]:
            return shares_of(readings, [array[[*numbers]] for numbers in sets], ends)

        share_by_path = {}
        by_end = defaultdict(list)
        for path in chains(among, least):
            by_end[receiver_of(array[path[-1]])].append(path)
        for end, paths_to_end in by_end.items():
            for path, value in zip(paths_to_end, shares(paths_to_end, [end]), strict=True):
                if abs(value) >= least:
                    share_by_path[path] = value
        leading = sorted(
            share_by_path, key=lambda path: (-round(abs(share_by_path[path]), DIGITS), path)
        )
        union = tuple(sorted({number for path in leading for number in path}))
        ends = {receiver_of(array[path[-1]]) for path in leading}
        (together,) = shares([union], ends)
        circuit = None
        if together >= ENOUGH:
            circuit = _minimal_set(union, partial(shares, ends=ends))
        compared = union if circuit is None else circuit
        random_shares = shares(_matched(array, compared, draws, seed))
        (circuit_share,) = shares([compared], ends)
    return Paths(
        paths=tuple(leading),
        shares=np.array([share_by_path[path] for path in leading]),
        together=together,
        circuit=circuit,
        circuit_share=circuit_share,
        random_shares=np.array(random_shares),
    )


def chains(among: Edges, least: float) -> list[Numbers]:
    """Paths from the embeddings to a head at the word over edges with a share of at least
    `least`, as numbers of edges; at most MOST.

    Paths are sorted by the total of their weakest edge, largest first.
    """
    strength = np.nan_to_num(np.abs(among.share("total"))).round(DIGITS)
    leaving: dict[Node, list[int]] = defaultdict(list)
    for number in np.flatnonzero(strength >= least).tolist():
        leaving[sender_of(among.edges[number])].append(number)
    # The heap returns the smallest value first, so strengths are negated. The weakest edge of a
    # path then has the largest of its values.
    waiting: list[tuple[float, Numbers]] = []
    for node, numbers in leaving.items():
        if node.layer == EMBEDDING:
            waiting += [(-strength[number], (number,)) for number in numbers]
    heapq.heapify(waiting)
    complete: list[Numbers] = []
    while waiting and len(complete) < MOST:
        weakest, path = heapq.heappop(waiting)
        node = receiver_of(among.edges[path[-1]])
        if node.is_head_at_word:
            complete.append(path)
        for number in leaving[node]:
            heapq.heappush(waiting, (max(weakest, -strength[number]), (*path, number)))
    return complete


# --- sets of edges --------------------------------------------------------------------------------


def shares_of(
    readings: Sequence[PairReading], sets: Sequence[EdgeArray], ends: Iterable[Node] | None = None
) -> list[float]:
    """The share of the gap over each of some sets of edges, along the first direction.

    ends: the heads at the word that are read out; by default all of a set
    """
    if not sets:
        return []
    ends = None if ends is None else set(ends)
    shifts = [
        patch_edges(reading.cache, sets, reading.directions[:1], ends)[..., 0]
        for reading in readings
    ]
    noise, denoise = torch.stack(shifts).sum(0).unbind(1)
    shares = (denoise - noise) / 2 / sum(reading.gap[0] for reading in readings)
    return [float(share) for share in shares]


def patch_edges(
    cache: PairCache,
    sets: Sequence[EdgeArray],
    directions: Tensor,
    ends: Collection[Node] | None = None,
) -> Tensor:
    """How far the word's vector moves if the edges of a set are patched at once, for each of
    some sets.

    `-> set recipient direction`
    """
    unchanged = torch.stack([layer.z[:, cache.at] for layer in cache.layers], dim=1)
    z = torch.stack([unchanged, *(_patched(cache, unchanged, edges, ends) for edges in sets)])
    word = _read_out(cache, z)
    difference = word[1:] - word[0]
    return difference @ directions.to(difference).T


def _patched(
    cache: PairCache, unchanged: Tensor, edges: EdgeArray, ends: Collection[Node] | None
) -> Tensor:
    """z at the word if a set of edges is patched at once. `recipient layer head d_head`

    unchanged: z at the word in the recipient's run
    """
    writes = _embedding_writes(cache, edges)
    patched = unchanged.clone()
    is_mlp = edges["receiver_head"] == MLP
    for layer in range(len(cache.layers)):
        in_layer = edges["receiver_layer"] == layer
        w_o = cache.weights.blocks[layer].w_o
        for node, change in _moved_heads(cache, layer, edges[in_layer & ~is_mlp], writes):
            writes[node] = change @ w_o[node.head]
            if node.pos == 0 and (ends is None or node in ends):
                patched[:, layer, node.head] += change[:, 0]
        # After the heads, because an MLP of the same block reads their writes.
        writes |= _moved_mlps(cache, layer, edges[in_layer & is_mlp], writes)
    return patched


def _embedding_writes(cache: PairCache, edges: EdgeArray) -> dict[Node, Tensor]:
    """The donor's embeddings minus the recipient's, at the positions where edges of the set
    begin.

    `recipient 1 d_model`
    """
    resid = cache.layers[0].resid_pre
    change = resid.roll(1, 0) - resid
    first = np.unique(edges["sender_pos"][edges["sender_layer"] == EMBEDDING])
    return {Node(EMBEDDING, MLP, pos): change[:, cache.at + pos, None] for pos in first.tolist()}


class Entry(NamedTuple):
    """The entrance to a receiver: a channel, and a position counted from the word."""

    receiver: Node
    channel: str
    pos: int


def _entering(
    cache: PairCache, site: Site, edges: EdgeArray, writes: Mapping[Node, Tensor]
) -> dict[Entry, Tensor]:
    """How the stream at a site changes at every entry of some edges, given all changed writes.

    `recipient 1 d_model`
    """
    sent: dict[Entry, dict[Site, Tensor]] = defaultdict(dict)
    for edge in edges:
        sender = sender_of(edge)
        if sender in writes:
            entry = Entry(receiver_of(edge), str(edge["channel"]), sender.pos)
            earlier = sent[entry].get(sender.site, 0.0)  # of other heads of the block
            sent[entry][sender.site] = earlier + writes[sender]
    return {
        entry: run_frozen(cache, cache.at + entry.pos, changed_writes, site)
        for entry, changed_writes in sent.items()
    }


def _moved_heads(
    cache: PairCache, layer: int, edges: EdgeArray, writes: Mapping[Node, Tensor]
) -> Iterator[tuple[Node, Tensor]]:
    """The change of z of every head of a block that edges lead into. `recipient 1 d_head`"""
    entering = _entering(cache, Site(layer, Part.ATTENTION), edges, writes)
    for receiver in dict.fromkeys(entry.receiver.pos for entry in entering):
        entries = [entry for entry in entering if entry.receiver.pos == receiver]
        nodes = [*dict.fromkeys(entry.receiver for entry in entries)]
        inputs = Inputs(
            variant=[nodes.index(entry.receiver) for entry in entries],
            channel=[entry.channel for entry in entries],
            pos=[cache.at + entry.pos for entry in entries],
            change=torch.cat([entering[entry] for entry in entries], dim=1),
        )
        heads = [node.head for node in nodes]
        at = cache.at + receiver
        change = receiver_z(cache, layer, at, heads, inputs) - cache.layers[layer].z[:, at, heads]
        yield from zip(nodes, change.split(1, dim=1), strict=True)


def _moved_mlps(
    cache: PairCache, layer: int, edges: EdgeArray, writes: Mapping[Node, Tensor]
) -> dict[Node, Tensor]:
    """How the write of a block's MLP changes at the positions where edges lead into it.

    `recipient 1 d_model`
    """
    entering = _entering(cache, cache.mlp_input(layer), edges, writes)
    return {
        entry.receiver: moved_mlp(cache, layer, cache.at + entry.pos, change)
        for entry, change in entering.items()
    }


def _read_out(cache: PairCache, z: Tensor) -> Tensor:
    """The word's vector with every head there frozen at z and every MLP live.

    `set recipient layer head d_head -> set recipient d_model`
    """
    weights = cache.weights
    resid = cache.layers[0].resid_pre[:, cache.at].expand(len(z), -1, -1)
    for layer in range(len(cache.layers)):
        block = weights.blocks[layer]
        resid_mid = batched.after_attention(weights, block, resid, z[:, :, layer])
        resid = batched.run_mlp(weights, block, resid, resid_mid)
    return resid


def _minimal_set(
    numbers: Numbers, shares: Callable[[Sequence[Numbers]], Sequence[float]]
) -> Numbers:
    """The edges that are left if edges are removed while the others carry enough.

    Edges whose removal costs least go first. The search repeats until no edge can be removed.
    """
    remaining = numbers
    before = len(remaining) + 1
    while len(remaining) < before:
        before = len(remaining)
        shares_without = shares([_without(number, remaining) for number in remaining])
        share_without = {
            number: round(share, DIGITS)
            for number, share in zip(remaining, shares_without, strict=True)
        }
        for number in sorted(remaining, key=lambda number: (-share_without[number], number)):
            candidate = _without(number, remaining)
            if candidate and shares([candidate])[0] >= ENOUGH:
                remaining = candidate
    return remaining


def _without(number: int, numbers: Numbers) -> Numbers:
    return tuple(edge for edge in numbers if edge != number)


def _matched(edges: EdgeArray, numbers: Numbers, draws: int, seed: int) -> Iterator[Numbers]:
    """Random sets with the same number of edges into each layer as a set, never that set itself."""
    rng = np.random.default_rng(seed)
    layers = edges["receiver_layer"]
    of_set = layers[[*numbers]]
    into_layer = {layer: np.flatnonzero(layers == layer) for layer in np.unique(of_set).tolist()}
    for _ in range(draws):
        random_set: list[int] = []
        for layer, candidates in into_layer.items():
            count = int((of_set == layer).sum())
            random_set += rng.choice(candidates, count, replace=False).tolist()
        if random_set and set(random_set) != set(numbers):
            yield tuple(random_set)


# --- composition ----------------------------------------------------------------------------------


def composition(weights: Weights, edges: Any) -> Array:
    """The composition score of the two heads of every edge: how much of the sender's write the
    receiver could read, whatever the text.

    `-> edge`

    edges: an array or a frame with the fields of EDGE_DTYPE

    NaN if an end is not a head, or if the receiver's block is not later. With the sender's W_OV =
    W_V W_O and the receiver's W_QK = W_Q W_Kᵀ and W_OV (vectors are rows, so a write is x W_V W_O
    and a score x_query W_Q W_Kᵀ x_keyᵀ), in Frobenius norms and float64:

        query  |W_OV W_QK|  / (|W_OV| |W_QK|)
        key    |W_OV W_QKᵀ| / (|W_OV| |W_QK|)
        value  |W_OV W_OV′| / (|W_OV| |W_OV′|)

    The weights are raw: no norm's gain is folded in, biases are ignored, and so are rotary
    positions (as for a query and a key at the same position). |A B| is computed from Gram matrices,
    so no d_model by d_model matrix is needed.

    Source: Elhage et al. 2021.
    """

    @cache
    def part(role: str, layer: int, head: int) -> tuple[Tensor, Tensor]:
        """A head's weight and its Gram matrix. `-> d_model d_head, d_head d_head`"""
        of_layer = getattr(weights.blocks[layer], role)
        # Several heads can share one key and one value.
        of_head = of_layer[head * len(of_layer) // weights.shape[1]].to("cpu", torch.float64)
        weight = of_head.T if role == "w_o" else of_head
        return weight, weight.T @ weight

    @cache
    def score(channel: str, sender: tuple[int, int], receiver: tuple[int, int]) -> float:
        reads_by, behind_it = READ_BY[channel]
        _, gram_v = part("w_v", *sender)
        w_o, gram_o = part("w_o", *sender)
        reads, gram_reads = part(reads_by, *receiver)
        _, gram_behind = part(behind_it, *receiver)
        # |A B|² = tr(Aᵀ A B Bᵀ), with the Gram matrices of the factors
        between = w_o.T @ reads
        product = gram_v @ between @ gram_behind * between
        sender_norm = gram_v * gram_o
        receiver_norm = gram_reads * gram_behind
        squared = product.sum().clamp_min(0) / sender_norm.sum() / receiver_norm.sum()
        return float(squared.sqrt())

    fields = ("sender_layer", "sender_head", "receiver_layer", "receiver_head", "channel")
    columns = [np.asarray(edges[name]).tolist() for name in fields]
    scores = []
    for layer, head, later, reader, channel in zip(*columns, strict=True):
        if MLP in (head, reader) or layer >= later:
            scores.append(np.nan)
        else:
            scores.append(score(channel, (layer, head), (later, reader)))
    return np.array(scores)
