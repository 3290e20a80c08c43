"""Whole paths from the cue to the word: chains of edges, what goes over each, over all together,
and over the circuit, the fewest edges that are enough; and, from the weights alone, how well the
two heads of an edge fit together (`composition`).

A set of edges is patched at once. The embeddings send the donor's less their own; a receiver of the
set is computed anew from its own inputs and the changes that reach it over edges of the set, and
sends its own change on over edges of the set alone; everything else up to the word keeps its value.
What the heads at the word that stand at an end of the set have become is then read out: every other
head at the word is frozen, the MLPs at the word are live. So only what left the cue and went along
the set counts, step by step, each step exact. Shares are of the gap along the first direction, both
ways averaged, ratios of sums over pairs.

Patching every edge there is (MLPs as receivers among them) is the donor's run, so its share is 1.

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

from probe.model import fused
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

ENOUGH = 0.9  # of the gap: edges over which as much goes are enough for a circuit
LEAST = 0.01  # of the gap: an edge or a path over which less goes is left out
MOST = 50  # paths that are chained; the weakest edge of a later one carries less
RANDOM_SETS = 200  # of edges, drawn to stand beside a circuit
# Shares that are alike in as many digits are ordered by the numbers of their edges, not by how sums
# are rounded.
DIGITS = 6
# The weight of a receiving head that reads through a channel, and the one behind it.
READ_BY = {
    "query": ("w_q", "w_k"),
    "key": ("w_k", "w_q"),
    "value": ("w_v", "w_o"),
}
Numbers = tuple[int, ...]  # of edges in an EdgeArray


class Node(NamedTuple):
    """A sender or a receiver: `head` is MLP for what is no head, `layer` EMBEDDING for the
    embeddings, `pos` counted from the word."""

    layer: int
    head: int
    pos: int

    @property
    def site(self) -> Site:
        """Where it stands in the stream."""
        if self.layer == EMBEDDING:
            return EMBEDDINGS
        return Site(self.layer, Part.MLP if self.head == MLP else Part.ATTENTION)

    @property
    def is_head_at_word(self) -> bool:
        """Whether a path can end here."""
        return self.pos == 0 and self.head != MLP


def sender_of(edge: np.void) -> Node:
    """Where an edge begins."""
    return Node(*edge.item()[:3])


def receiver_of(edge: np.void) -> Node:
    """Where it ends."""
    return Node(*edge.item()[3:6])


@dataclass(frozen=True, eq=False)
class Paths:
    """Chains from the cue to a head at the word, best first, as numbers into the edges that they
    were found among.

    `shares: path`, of the gap, over each alone · `together`: over all at once · `circuit`: the
    edges that are left when one after the other is taken out as long as ENOUGH of the gap goes over
    the others, None where not even all carry as much · `circuit_share`: what goes over the circuit,
    or over all where there is none · `random_shares: set`, what goes over as many edges into each
    layer, drawn from all.
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
    """Chain the edges of `among` whose total is at least `least` of the gap, and measure the chains
    on the pairs `a`, `b`, which may be others of the same layout.

    A path is listed where at least as much goes over it alone; `draws` random sets stand beside.
    Raises InputError as `trace_positions`.
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
            circuit = _smallest(union, partial(shares, ends=ends))
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
    """Paths from the embeddings to a head at the word over edges of at least `least`, best first:
    that whose weakest edge has the largest total. At most MOST, as numbers of edges.
    """
    strength = np.nan_to_num(np.abs(among.share("total"))).round(DIGITS)
    leaving: dict[Node, list[int]] = defaultdict(list)
    for number in np.flatnonzero(strength >= least).tolist():
        leaving[sender_of(among.edges[number])].append(number)
    # A heap gives the smallest first, so strengths are negated: the weakest edge of a path is then
    # the largest of its numbers.
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
    """The share of the gap over each of some sets of edges, by first directions; all its heads at
    the word are ends of a set by default."""
    if not sets:
        return []
    ends = None if ends is None else set(ends)
    moved = [
        patch_edges(reading.cache, sets, reading.directions[:1], ends)[..., 0]
        for reading in readings
    ]
    noise, denoise = torch.stack(moved).sum(0).unbind(1)
    shares = (denoise - noise) / 2 / sum(reading.gap[0] for reading in readings)
    return [float(share) for share in shares]


def patch_edges(
    cache: PairCache,
    sets: Sequence[EdgeArray],
    directions: Tensor,
    ends: Collection[Node] | None = None,
) -> Tensor:
    """How far the word's vector moves when the edges of a set are patched at once, for each of some
    sets. `-> set recipient direction`"""
    own = torch.stack([layer.z[:, cache.at] for layer in cache.layers], dim=1)
    z = torch.stack([own, *(_patched(cache, own, edges, ends) for edges in sets)])
    word = _read_out(cache, z)
    difference = word[1:] - word[0]
    return difference @ directions.to(difference).T


def _patched(
    cache: PairCache, own: Tensor, edges: EdgeArray, ends: Collection[Node] | None
) -> Tensor:
    """z at the word, from its `own`, when a set of edges is patched at once. `recipient layer head
    d_head`"""
    writes = _embedding_writes(cache, edges)
    patched = own.clone()
    is_mlp = edges["receiver_head"] == MLP
    for layer in range(len(cache.layers)):
        in_layer = edges["receiver_layer"] == layer
        w_o = cache.weights.blocks[layer].w_o
        for node, moved in _moved_heads(cache, layer, edges[in_layer & ~is_mlp], writes):
            writes[node] = moved @ w_o[node.head]
            if node.pos == 0 and (ends is None or node in ends):
                patched[:, layer, node.head] += moved[:, 0]
        # Behind the heads, whose writes an MLP of the same block reads.
        writes |= _moved_mlps(cache, layer, edges[in_layer & is_mlp], writes)
    return patched


def _embedding_writes(cache: PairCache, edges: EdgeArray) -> dict[Node, Tensor]:
    """The donor's embeddings less own, at the positions from which edges of the set begin.
    `recipient 1 d_model`"""
    resid = cache.layers[0].resid_pre
    change = resid.roll(1, 0) - resid
    first = np.unique(edges["sender_pos"][edges["sender_layer"] == EMBEDDING])
    return {Node(EMBEDDING, MLP, pos): change[:, cache.at + pos, None] for pos in first.tolist()}


class Entry(NamedTuple):
    """What enters a receiver: through which channel, and at which position from the word."""

    receiver: Node
    channel: str
    pos: int


def _entering(
    cache: PairCache, site: Site, edges: EdgeArray, writes: Mapping[Node, Tensor]
) -> dict[Entry, Tensor]:
    """How the stream at a site changes for everything that is entered over some edges, with all
    that is written otherwise. `recipient 1 d_model`"""
    sent: dict[Entry, dict[Site, Tensor]] = defaultdict(dict)
    for edge in edges:
        sender = sender_of(edge)
        if sender in writes:
            entry = Entry(receiver_of(edge), str(edge["channel"]), sender.pos)
            earlier = sent[entry].get(sender.site, 0.0)  # of other heads of the block
            sent[entry][sender.site] = earlier + writes[sender]
    return {
        entry: run_frozen(cache, cache.at + entry.pos, written, site)
        for entry, written in sent.items()
    }


def _moved_heads(
    cache: PairCache, layer: int, edges: EdgeArray, writes: Mapping[Node, Tensor]
) -> Iterator[tuple[Node, Tensor]]:
    """The change of z of every head of a block into which edges lead. `recipient 1 d_head`"""
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
        moved = receiver_z(cache, layer, at, heads, inputs) - cache.layers[layer].z[:, at, heads]
        yield from zip(nodes, moved.split(1, dim=1), strict=True)


def _moved_mlps(
    cache: PairCache, layer: int, edges: EdgeArray, writes: Mapping[Node, Tensor]
) -> dict[Node, Tensor]:
    """What the MLP of a block writes otherwise at the positions where edges lead into it.
    `recipient 1 d_model`"""
    entering = _entering(cache, cache.mlp_input(layer), edges, writes)
    return {
        entry.receiver: moved_mlp(cache, layer, cache.at + entry.pos, change)
        for entry, change in entering.items()
    }


def _read_out(cache: PairCache, z: Tensor) -> Tensor:
    """The word's vector with every head there frozen at z and every MLP live. `set recipient layer
    head d_head -> set recipient d_model`"""
    weights = cache.weights
    resid = cache.layers[0].resid_pre[:, cache.at].expand(len(z), -1, -1)
    for layer in range(len(cache.layers)):
        block = weights.blocks[layer]
        resid_mid = fused.write(weights, block, resid, z[:, :, layer])
        resid = fused.finish(weights, block, resid, resid_mid)
    return resid


def _smallest(numbers: Numbers, shares: Callable[[Sequence[Numbers]], Sequence[float]]) -> Numbers:
    """What is left when edges are taken out, those first that are missed least, as long as enough
    goes over the others; again from the beginning until none can be.
    """
    left = numbers
    before = len(left) + 1
    while len(left) < before:
        before = len(left)
        found = shares([_without(number, left) for number in left])
        share_without = {
            number: round(share, DIGITS) for number, share in zip(left, found, strict=True)
        }
        for number in sorted(left, key=lambda number: (-share_without[number], number)):
            others = _without(number, left)
            if others and shares([others])[0] >= ENOUGH:
                left = others
    return left


def _without(number: int, numbers: Numbers) -> Numbers:
    return tuple(other for other in numbers if other != number)


def _matched(edges: EdgeArray, numbers: Numbers, draws: int, seed: int) -> Iterator[Numbers]:
    """Random sets with as many edges into each layer as a set, never that set itself."""
    rng = np.random.default_rng(seed)
    layers = edges["receiver_layer"]
    of_set = layers[[*numbers]]
    into_layer = {layer: np.flatnonzero(layers == layer) for layer in np.unique(of_set).tolist()}
    for _ in range(draws):
        drawn: list[int] = []
        for layer, candidates in into_layer.items():
            count = int((of_set == layer).sum())
            drawn += rng.choice(candidates, count, replace=False).tolist()
        if drawn and set(drawn) != set(numbers):
            yield tuple(drawn)


# --- composition ----------------------------------------------------------------------------------


def composition(weights: Weights, edges: Any) -> Array:
    """The composition score of the two heads of every edge: what the later one could read of what
    the earlier one writes, on no text at all. NaN where an end is no head, or where the receiver's
    block is not later. `-> edge`

    With the sender's W_OV = W_V W_O and the receiver's W_QK = W_Q W_Kᵀ and W_OV (vectors are rows,
    so that a write is x W_V W_O and a score x_query W_Q W_Kᵀ x_keyᵀ), in Frobenius norms and
    float64:

        query  |W_OV W_QK|  / (|W_OV| |W_QK|)
        key    |W_OV W_QKᵀ| / (|W_OV| |W_QK|)
        value  |W_OV W_OV′| / (|W_OV| |W_OV′|)

    Raw weights: no norm's gain is folded in, biases play no part, and rotary positions are left out
    (a query and a key at the same position). |A B| of the products is taken from Gram matrices, so
    that no matrix of d_model by d_model is made. `edges`: an array or a frame with the fields of
    EDGE_DTYPE. Source: Elhage et al. 2021.
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
