"""Whole ways from the cue to the word: chains of edges, what goes over each, over all together, and
how few are enough; and, from the weights alone, how well the two heads of an edge fit together
(`composition`).

A set of edges is patched at once. The embeddings send the donor's less their own; a receiver of the
set is computed anew from its own inputs and the changes that reach it over edges of the set, and
sends its own change on over edges of the set alone; everything else up to the word keeps its value.
What the heads at the word that stand at an end of the set have become is then read out: every other
head at the word is held, the MLPs at the word are live. So only what left the cue and went along
the set counts, step by step, each step exact. Shares are of the gap along the first direction, both
ways averaged, ratios of sums over pairs.

Patching every edge there is (MLPs as receivers among them) is the donor's run, so its share is 1.

Sources: Wang et al. 2022 (paths, minimal circuits); Goldowsky-Dill et al. 2023 (path patching of
sets of paths).
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.model import fused
from probe.model.weights import Weights
from probe.patching.edges import EDGE_DTYPE, EMBEDDING, MLP, EdgeArray, Edges
from probe.patching.heads import Rows
from probe.patching.pair import (
    PairCache,
    PairReading,
    Point,
    cache_pairs,
    receiver_z,
    run_frozen,
    token_pairs,
)
from probe.stats.resampling import Array

ENOUGH, LEAST, MOST, RANDOM_SETS = 0.9, 0.01, 50, 200
DIGITS = 6  # shares that are alike in these are ordered by the numbers of their edges, not by how sums are rounded
READ_BY = {
    "query": ("w_q", "w_k"),
    "key": ("w_k", "w_q"),
    "value": ("w_v", "w_o"),
}  # what reads, what is behind it
Numbers = tuple[int, ...]
Node = tuple[int, int, int]  # layer, head and position of a sender or a receiver


def sender_of(edge: np.void) -> Node:
    """Where an edge begins."""
    layer, head, pos, *_ = edge.item()
    return layer, head, pos


def receiver_of(edge: np.void) -> Node:
    """Where it ends."""
    *_, layer, head, pos, _ = edge.item()
    return layer, head, pos


@dataclass(frozen=True, eq=False)
class Paths:
    """Chains from the cue to a head at the word, best first, as numbers into the edges that they
    were found among.

    `shares: way`, of the gap, over each alone · `together`: over all at once · `smallest`: the
    edges that are left when one after the other is taken out as long as ENOUGH of the gap goes over
    the others, None where not even all carry as much · `kept`: what goes over these · `random:
    set`, what goes over as many edges into each layer, drawn from all.
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
    found: Edges,
    *,
    depth: int,
    least: float = LEAST,
    draws: int = RANDOM_SETS,
    seed: int = 0,
) -> Paths:
    """Chain the edges of `found` whose total is at least `least` of the gap, and measure them on
    the pairs given, which may be others of the same layout.

    A way is kept where at least as much goes over it alone; `draws` random sets stand beside.
    Raises InputError as `trace_positions`.
    """
    with torch.inference_mode():
        read = [*cache_pairs(weights, token_pairs(weights, a, b, depth), directions, depth)]

        def share(numbers: Sequence[int], ends: Iterable[Node] | None = None) -> float:
            return share_of(read, found.edges[[*numbers]], ends)

        measured = [
            (way, share(way, [receiver_of(found.edges[way[-1]])])) for way in chains(found, least)
        ]
        enough = (item for item in measured if abs(item[1]) >= least)
        good = sorted(enough, key=lambda item: (-round(abs(item[1]), DIGITS), item[0]))
        union = tuple(sorted({number for way, _ in good for number in way}))
        ends = {receiver_of(found.edges[way[-1]]) for way, _ in good}
        together = share(union, ends)
        smallest = (
            _smallest(union, lambda numbers: share(numbers, ends)) if together >= ENOUGH else None
        )
        fewest = union if smallest is None else smallest
        drawn = [share(numbers) for numbers in _matched(found.edges, fewest, draws, seed)]
    return Paths(
        paths=tuple(way for way, _ in good),
        shares=np.array([value for _, value in good]),
        together=together,
        circuit=smallest,
        circuit_share=share(fewest, ends),
        random_shares=np.array(drawn),
    )


def chains(found: Edges, least: float) -> list[Numbers]:
    """Paths from the embeddings to a head at the word over edges of at least `least`, best first:
    that whose weakest edge has the largest total. At most MOST, as numbers of edges.
    """
    strength = np.nan_to_num(np.abs(found.share("total"))).round(DIGITS)
    leaving: dict[Node, list[int]] = defaultdict(list)
    for number in np.flatnonzero(strength >= least).tolist():
        leaving[sender_of(found.edges[number])].append(number)
    first = [
        number for node, numbers in leaving.items() if node[0] == EMBEDDING for number in numbers
    ]
    waiting: list[tuple[float, Numbers]] = [(-strength[number], (number,)) for number in first]
    heapq.heapify(waiting)
    complete: list[Numbers] = []
    while waiting and len(complete) < MOST:
        weakest, way = heapq.heappop(waiting)
        node = receiver_of(found.edges[way[-1]])
        if node[2] == 0 and node[1] != MLP:
            complete.append(way)
        for number in leaving[node]:
            heapq.heappush(waiting, (max(weakest, -strength[number]), (*way, number)))
    return complete


def share_of(
    read: Sequence[PairReading], edges: EdgeArray, ends: Iterable[Node] | None = None
) -> float:
    """The share of the gap over a set of edges, by first directions; all its heads at the word are
    ends by default."""
    noise, denoise = torch.stack(
        [patch_edges(one.cache, edges, one.directions[:1], ends)[:, 0] for one in read]
    ).sum(0)
    return float((denoise - noise) / 2 / sum(one.gap[0] for one in read))


def patch_edges(
    cache: PairCache, edges: EdgeArray, directions: Tensor, ends: Iterable[Node] | None = None
) -> Tensor:
    """How far the word's vector moves when a set of edges is patched at once. `-> recipient
    direction`"""
    resid, first = (
        cache.layers[0].resid_pre,
        np.unique(edges["sender_pos"][edges["sender_layer"] == EMBEDDING]),
    )
    change = resid.roll(1, 0) - resid  # the donor's embeddings less own
    writes = {
        (EMBEDDING, MLP, pos): change[:, cache.at + pos, None] for pos in first.tolist()
    }  # recipient 1 d_model
    z = torch.stack(
        [step.z[:, cache.at] for step in cache.layers], dim=1
    )  # recipient layer head d_head
    patched, last = z.clone(), None if ends is None else set(ends)
    for layer, block in enumerate(cache.weights.blocks[: len(cache.layers)]):
        into, is_mlp = edges["receiver_layer"] == layer, edges["receiver_head"] == MLP
        for node, moved in _moved_heads(cache, layer, edges[into & ~is_mlp], writes):
            writes[node] = moved @ block.w_o[node[1]]
            if node[2] == 0 and (last is None or node in last):
                patched[:, layer, node[1]] += moved[:, 0]
        writes |= _moved_neurons(cache, layer, edges[into & is_mlp], writes)
    own, other = (_read_out(cache, part) for part in (z, patched))
    return (other - own) @ directions.to(own).T


def _entering(
    cache: PairCache, point: Point, edges: EdgeArray, writes: Mapping[Node, Tensor]
) -> tuple[list[tuple[Node, str, int]], Tensor]:
    """Receiver, channel and position of everything that is entered over some edges, and the stream
    there with all that is written otherwise. `-> recipient input d_model`
    """
    sent: dict[tuple[Node, str, int], dict[Point, Tensor]] = defaultdict(dict)
    for edge in edges:
        if (sender := sender_of(edge)) in writes:
            layer, head, pos = sender
            into, writer = (
                sent[receiver_of(edge), str(edge["channel"]), pos],
                2 * layer + (head == MLP),
            )
            into[writer] = into.get(writer, 0.0) + writes[sender]
    streams = cache.stream(point)
    inputs = [
        streams[:, cache.at + pos, None] + run_frozen(cache, cache.at + pos, parts, point)
        for (_, _, pos), parts in sent.items()
    ]
    return [*sent], torch.cat(inputs, dim=1) if inputs else streams[:, :0]


def _moved_heads(
    cache: PairCache, layer: int, edges: EdgeArray, writes: Mapping[Node, Tensor]
) -> Iterator[tuple[Node, Tensor]]:
    """The change of z of every head of a block into which edges lead. `recipient 1 d_head`"""
    keys, inputs = _entering(cache, 2 * layer, edges, writes)
    for receiver in dict.fromkeys(pos for (_, _, pos), _, _ in keys):
        some = [number for number, (node, _, _) in enumerate(keys) if node[2] == receiver]
        ends, channels, senders = zip(*(keys[number] for number in some), strict=True)
        nodes = [*dict.fromkeys(ends)]
        into = [nodes.index(node) for node in ends], channels, cache.at + np.array(senders)
        heads = [head for _, head, _ in nodes]
        z = receiver_z(cache, layer, cache.at + receiver, heads, into, inputs[:, some])
        moved = z - cache.layers[layer].z[:, cache.at + receiver, heads]
        yield from zip(nodes, moved.split(1, dim=1), strict=True)


def _moved_neurons(
    cache: PairCache, layer: int, edges: EdgeArray, writes: Mapping[Node, Tensor]
) -> dict[Node, Tensor]:
    """What the MLP of a block writes otherwise at the positions where edges lead into it.
    `recipient 1 d_model`"""
    step, weights, block = cache.layers[layer], cache.weights, cache.weights.blocks[layer]
    keys, inputs = _entering(cache, 2 * layer + (not weights.config.family.parallel), edges, writes)
    if not keys:
        return {}
    assert block.w_out is not None
    own = step.hidden[:, [cache.at + pos for _, _, pos in keys]]
    moved = (fused.activate(weights, block, inputs) - own) @ block.w_out
    return dict(zip((node for node, _, _ in keys), moved.split(1, dim=1), strict=True))


def _read_out(cache: PairCache, z: Tensor) -> Tensor:
    """The word's vector with every head there held at z and every MLP live. `-> recipient d_model`"""
    weights, resid = cache.weights, cache.layers[0].resid_pre[:, cache.at]
    for layer, block in enumerate(weights.blocks[: len(cache.layers)]):
        resid = fused.finish(weights, block, resid, fused.write(weights, block, resid, z[:, layer]))
    return resid


def _smallest(numbers: Numbers, share: Callable[[Sequence[int]], float]) -> Numbers:
    """What is left when edges are taken out, those first that are missed least, as long as enough
    goes over the others; again from the beginning until none can be.
    """
    left, before = list(numbers), len(numbers) + 1
    while len(left) < before:
        before = len(left)
        missed = {
            number: -round(share([other for other in left if other != number]), DIGITS)
            for number in left
        }
        for number in sorted(left, key=lambda number: (missed[number], number)):
            without = [other for other in left if other != number]
            if without and share(without) >= ENOUGH:
                left = without
    return tuple(left)


def _matched(edges: EdgeArray, numbers: Numbers, draws: int, seed: int) -> Iterator[Numbers]:
    """Random sets with as many edges into each layer as the given one, never that set itself."""
    rng, layers = np.random.default_rng(seed), edges["receiver_layer"]
    within = {
        layer: np.flatnonzero(layers == layer) for layer in np.unique(layers[[*numbers]]).tolist()
    }
    counts = {layer: int((layers[[*numbers]] == layer).sum()) for layer in within}
    for _ in range(draws):
        drawn = [rng.choice(within[layer], count, replace=False) for layer, count in counts.items()]
        if drawn and set(together := np.concatenate(drawn).tolist()) != set(numbers):
            yield tuple(together)


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
    (a query and a key at the same place). |A B| of the products is taken from Gram matrices, so
    that no matrix of d_model by d_model is made. `edges`: an array or a frame with the fields of
    EDGE_DTYPE. Source: Elhage et al. 2021.
    """

    @cache
    def part(role: str, layer: int, head: int) -> tuple[Tensor, Tensor]:
        """A head's weight and its Gram matrix. `-> d_model d_head, d_head d_head`"""
        every = getattr(weights.blocks[layer], role)
        own = every[head * len(every) // weights.shape[1]].to("cpu", torch.float64)
        own = own.T if role == "w_o" else own
        return own, own.T @ own

    @cache
    def score(channel: str, sender: tuple[int, int], receiver: tuple[int, int]) -> float:
        (_, gram_v), (o, gram_o) = part("w_v", *sender), part("w_o", *sender)
        (reads, gram), (_, behind) = (part(role, *receiver) for role in READ_BY[channel])
        between = o.T @ reads
        product, ov, read = gram_v @ between @ behind * between, gram_v * gram_o, gram * behind
        return float((product.sum().clamp_min(0) / ov.sum() / read.sum()).sqrt())

    fields = (
        np.asarray(edges[name]).tolist()
        for name in EDGE_DTYPE.names or ()
        if not name.endswith("pos")
    )
    return np.array(
        [
            score(channel, (layer, head), (later, reader))
            if MLP not in (head, reader) and layer < later
            else np.nan
            for layer, head, later, reader, channel in zip(*fields, strict=True)
        ]
    )
