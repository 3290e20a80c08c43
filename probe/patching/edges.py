"""Edges: what a head or an MLP changes if one earlier writer alone changes.

An edge leads from a sender's write at one position to a receiver. The receiver is a head at the
same or a later position (at any position if the model reads both ways), reached through its query,
key or value, or an MLP at the same position. Positions are counted from the word: 0 is the word and
-1 the token before it. In this file, `offset` is such a number, and `pos` counts from the beginning
of the text.

Along an edge, the receiver's input at the sender's position is

    the recipient's stream there with the donor's write of the sender, through the receiver's norm.

The query, key or value there is computed again, and then the receiver's z, or the MLP's output.
Every other write stays the recipient's. In a family that adds writes as they are, the stream
changes by (donor's write - recipient's write). In a family with a norm after the writes of a
block's heads, or after the sum, that norm is applied to the changed writes. Senders are the
embeddings (token and position together) and every earlier head and MLP.

Each edge has three numbers. z is an MLP's output, before any norm, if the receiver is an MLP:

    fraction   <z along the edge - recipient's z, z swapped - recipient's z> / |z swapped -
               recipient's z|²: which fraction of the receiver's swap the edge alone causes; 1 is
               all of it
    direct     how far the word's vector moves if every head and MLP after the receiver keeps its
               write; 0 unless the receiver is at the word
    total      how far it moves if everything after the receiver is live

Fractions and direct effects are exact arithmetic on the quantities of two runs: no gradient, and no
norm, softmax or activation is linearised. A total needs a separate forward from the receiver on. It
is run for edges that could reach a given share of the gap (|fraction| times the effect of the
receiver's swap), and for a random sample of the others.

`composition` scores, from the weights alone, how well the two heads of an edge fit together.

Sources: Goldowsky-Dill et al. 2023 (path patching); Wang et al. 2022 (paths into queries, keys and
    values).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache as memoized
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.errors import InputError, require_at_least, require_flag, whole_number
from probe.model import blocks
from probe.model.attention import repeat_kv
from probe.model.load import ModelSource, read_weights
from probe.model.model import require_heads
from probe.model.records import as_array
from probe.model.tokens import in_order
from probe.model.weights import Weights
from probe.patching.heads import BATCH_NUMBERS
from probe.patching.inputs import Rows, require_share
from probe.patching.pair import (
    PairCache,
    PairReading,
    Part,
    Site,
    cache_alike,
    cache_pairs,
    change_behind,
    positions_from_word,
    run_frozen,
    run_patched,
    token_pairs,
)
from probe.patching.positions import HEAD, effects
from probe.stats.resampling import Array, order

# A mixer carries changes from position to position by other means, which are not edges.
DOING = "Cannot measure edges"  # as error messages name it
INSTEAD = "take trace_positions, which runs all that it has"
REACH = 0.005  # of the gap: totals of edges that could not move the word this far are not run
SAMPLE = 200  # edges below REACH whose total is run as a check
QUERY = "query"
KEY = "key"
VALUE = "value"
INPUT = "input"  # an MLP's
CHANNELS = (QUERY, KEY, VALUE, INPUT)
# The weight with which a receiving head reads a channel, and the weight that follows it.
READ_BY = {
    QUERY: ("w_q", "w_k"),
    KEY: ("w_k", "w_q"),
    VALUE: ("w_v", "w_o"),
}
EMBEDDING = -1  # the layer of the embeddings, as a sender
MLP = -1  # the head of an MLP or of the embeddings
END_FIELDS = (
    "sender_layer",
    "sender_head",
    "sender_pos",
    "receiver_layer",
    "receiver_head",
    "receiver_pos",
)
EDGE_DTYPE = np.dtype([*((name, np.int16) for name in END_FIELDS), ("channel", "U5")])
EdgeArray = NDArray[np.void]  # of EDGE_DTYPE


@dataclass(frozen=True, eq=False)
class Edges:
    """Every edge of several pairs with the same layout.

    edges: `edge`, a structured array of EDGE_DTYPE: layers, heads, positions and one of CHANNELS;
        head -1 is the MLP of a layer, layer -1 the embeddings
    gap: `pair direction`
    fraction: `pair recipient edge`
    direct, total: `pair recipient edge direction`, how far the read-out moves; `total` is NaN if it
        was not run
    sampled: `edge`, True for edges below the reach whose total was run as a check
    receiver_shift: `pair recipient layer head pos`, how far the read-out moves along the first
        direction if a receiver is the donor's; MLPs come after the heads

    Recipient 0 is `a` with writes of `b`, recipient 1 is `b` with writes of `a`.
    """

    edges: EdgeArray
    gap: Tensor
    fraction: Tensor
    direct: Tensor
    total: Tensor
    sampled: NDArray[np.bool_]
    receiver_shift: Tensor

    def share(self, name: str, direction: int = 0) -> Array:
        """`direct` or `total` as a share of the gap, averaged over both recipients: a ratio of
        sums.

        `-> edge`

        Raises InputError for another name, and for a direction that was not measured.
        """
        if name not in ("direct", "total"):
            raise InputError(
                f"Cannot read shares of edges: got {name!r}, expected 'direct' or 'total'. Give "
                "one of these."
            )
        directions = self.gap.shape[1]
        if whole_number(direction) is None or not 0 <= direction < directions:
            raise InputError(
                f"Cannot read shares of edges: got direction {direction!r}, expected 0 to "
                f"{directions - 1}. Give one of these."
            )
        # Recipient 0 moves down the axis and recipient 1 up, so their difference is twice a swap.
        noise, denoise = getattr(self, name)[..., direction].double().sum(0)
        return np.asarray((denoise - noise) / 2 / self.gap[:, direction].double().sum())

    def rows(self, direction: int = 0, *, only_run: bool = True) -> list[dict[str, object]]:
        """One row for each edge, over all pairs and both recipients; by default only the edges
        whose total was run.

        `fraction` is a mean, `direct` and `total` are shares of the gap (ratios of sums).
        """
        columns: dict[str, NDArray[np.generic]] = {}
        for name in EDGE_DTYPE.names or ():
            columns[name] = self.edges[name]
        columns["fraction"] = as_array(self.fraction.mean((0, 1)))
        columns["direct"] = self.share("direct", direction)
        columns["total"] = self.share("total", direction)
        columns["sampled"] = self.sampled
        rows_used = ~np.isnan(columns["total"]) if only_run else slice(None)
        rows = zip(*(values[rows_used].tolist() for values in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]


def edges(
    model: ModelSource | Weights,
    texts: Rows,
    against: Rows,
    directions: Tensor,
    *,
    depth: int,
    positions: Sequence[int] | None = None,
    receivers: Sequence[int] | None = None,
    mlps: bool = True,
    reach: float = REACH,
    limit: int | None = None,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Edges:
    """Every edge into every head and every MLP before the read-out, for pairs of equal length.

    directions: as in `trace_positions`
    positions: of senders; by default from the first difference to the word
    receivers: positions of receivers; by default the positions of senders
    mlps: whether MLPs are receivers
    reach: the share of the gap along the first direction that an edge must be able to reach for its
        total to be run
    limit: the largest number of totals to run; the edges that could reach most come first
    sample: the number of other edges whose total is run, drawn with the seed

    Raises InputError in the cases of `trace_positions`, and UnsupportedModel for a hybrid.

    Example:
        >>> from probe.model.trace import target_states
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = target_states(model, texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> found = probe.edges(model, rows[:1], rows[1:], direction, depth=4)
        >>> found.direct.shape == (1, 2, len(found.edges), 1)  # pair recipient edge direction
        True
    """
    weights = read_weights(model)
    require_heads(weights.config, "edges", INSTEAD)
    require_share(reach, "reach", DOING)
    require_flag(mlps, "mlps", doing=DOING)
    require_at_least(0, sample, "sample", doing=DOING, usual=SAMPLE)
    require_at_least(0, seed, "seed", doing=DOING, usual=0)
    if limit is not None:
        require_at_least(0, limit, "limit", doing=DOING, usual="all that could reach as much")
    pairs = token_pairs(weights, texts, against, depth)
    sending = positions_from_word(pairs, positions)
    receiving = sending if receivers is None else positions_from_word(pairs, receivers, "receivers")
    array = edges_of(weights, depth, sending, receiving, mlps=mlps)
    with torch.inference_mode():
        readings = [*cache_pairs(weights, pairs, directions, depth)]
        gap = torch.stack([reading.gap for reading in readings])
        fractions = []
        directs = []
        swaps = []
        for reading in readings:
            fraction, direct = _measure(reading, sending, receiving, mlps=mlps)
            fractions.append(fraction)
            directs.append(direct)
            swaps.append(_receiver_effects(reading, receiving, mlps=mlps))
        could_reach = _could_reach(array, fractions, swaps, receiving)
        could = as_array(could_reach / gap[:, 0].sum().abs())
        leading = np.isin(np.arange(len(could)), order(could)[:limit]) & (could >= reach)
        sampled = np.zeros_like(leading)
        remaining = np.random.default_rng(seed).permutation(np.flatnonzero(~leading))
        sampled[remaining[:sample]] = True
        to_run = np.flatnonzero(leading | sampled)
        total = torch.full_like(torch.stack(directs), torch.nan)
        for number, reading in enumerate(readings):
            total[number][:, to_run] = totals(reading.cache, array[to_run], reading.directions)
        on_cpu = [
            part.cpu()
            for part in (
                gap,
                torch.stack(fractions),
                torch.stack(directs),
                total,
                torch.stack(swaps),
            )
        ]
    # Outside inference mode, so that the caller gets ordinary tensors.
    gap, fraction, direct, total, receiver_effects = (part.clone() for part in on_cpu)
    return Edges(array, gap, fraction, direct, total, sampled, receiver_effects)


def total_effects(
    weights: Weights,
    a: Rows,
    b: Rows,
    directions: Tensor,
    edges: EdgeArray,
    *,
    depth: int,
    both_ways: bool = True,
) -> Tensor:
    """The total effect of some edges, for pairs as in `edges`. `-> pair recipient edge
    direction`

    both_ways: whether `b` is a recipient as well; otherwise `a` is the only one

    Raises the errors of `edges`.
    """
    require_heads(weights.config, "edges", INSTEAD)
    pairs = token_pairs(weights, a, b, depth)
    positions_from_word(pairs, np.union1d(edges["sender_pos"], edges["receiver_pos"]).tolist())
    with torch.inference_mode():
        batches = []
        by_batch = []
        for batch, cache, along in cache_alike(
            weights, pairs, directions, depth, both_ways=both_ways
        ):
            shifts = totals(cache, edges, along)  # (recipient pair) edge direction
            batches.append(batch)
            by_batch.append(shifts.unflatten(0, (-1, len(batch))).transpose(0, 1).cpu())
        return torch.cat(by_batch)[in_order(batches)].clone()


# --- the list of edges ----------------------------------------------------------------------------


def edges_of(
    weights: Weights, depth: int, senders: Sequence[int], receivers: Sequence[int], *, mlps: bool
) -> EdgeArray:
    """Every edge, block by block, a block's heads before its MLP. `-> edge`"""
    heads = [*range(weights.shape[1])]
    writers = np.array(_writers(weights, depth), dtype=np.int16).T
    blocks = []
    for layer in range(depth):
        for offset in senders:
            before = _writers_before(weights, Site(layer, Part.ATTENTION))
            for channel, receiver in channels_from(weights, offset, receivers):
                ends = (layer, heads, offset, receiver, channel)
                blocks.append(_edges_between(writers[:, :before], *ends))
        for offset in senders:
            if mlps and offset in receivers:
                before = _writers_before(weights, Site(layer, Part.MLP))
                blocks.append(
                    _edges_between(writers[:, :before], layer, [MLP], offset, offset, INPUT)
                )
    if not blocks:
        raise InputError(
            f"{DOING}: got senders at {list(senders)} and receivers at {list(receivers)}, counted "
            "from the word, expected a receiver that is not before every sender. Give others."
        )
    return np.concatenate(blocks)


def _writers(weights: Weights, depth: int) -> list[tuple[int, int]]:
    """The writers in order: the embeddings, then the heads and the MLP of each block.

    `(layer, head)`
    """
    writers = [(EMBEDDING, MLP)]
    for layer in range(depth):
        writers += [(layer, head) for head in range(weights.shape[1])]
        writers.append((layer, MLP))
    return writers


def _writers_before(weights: Weights, site: Site) -> int:
    """The number of writers before the part at a site."""
    heads = weights.shape[1]
    before = 1 + site.layer * (heads + 1)
    if site.part is Part.MLP and not weights.config.family.parallel_attn_mlp:
        before += heads
    return before


def _edges_between(
    writers: NDArray[np.int16],
    layer: int,
    heads: list[int],
    offset: int,
    receiver: int,
    channel: str,
) -> EdgeArray:
    """The edges from some writers at one position to some heads of a layer at another.

    `-> (head writer)`
    """
    block = np.empty((len(heads), writers.shape[1]), dtype=EDGE_DTYPE)
    block["sender_layer"] = writers[0]
    block["sender_head"] = writers[1]
    block["sender_pos"] = offset
    block["receiver_layer"] = layer
    block["receiver_head"] = np.array(heads)[:, None]
    block["receiver_pos"] = receiver
    block["channel"] = channel
    return block.ravel()


def channels_from(weights: Weights, offset: int, receivers: Sequence[int]) -> list[tuple[str, int]]:
    """The channels and positions of heads that a write at `offset` enters; in a causal model, no
    earlier positions.
    """
    reading = [receiver for receiver in receivers if receiver >= offset or not weights.causal]
    channels = [(QUERY, offset)] if offset in receivers else []
    for channel in (KEY, VALUE):
        channels += [(channel, receiver) for receiver in reading]
    return channels


# --- the input of a receiver ----------------------------------------------------------------------


class Arriving(NamedTuple):
    """The changes of a stream at one position if one sender alone writes what it writes in the
    other sentence.

    heads: `recipient sender d_model`, before the heads of a block
    mlp: `recipient sender d_model`, before its MLP

    The senders are those before the reader, in the order of `_writers`.
    """

    heads: Tensor
    mlp: Tensor


def _arriving(cache: PairCache, pos: int) -> Iterator[Arriving]:
    """The changes that arrive at a position, block by block."""
    parallel = cache.weights.config.family.parallel_attn_mlp
    entering = _donor_minus_recipient(cache, 0, "resid_pre", pos)
    for number, block in enumerate(cache.weights.blocks[: len(cache.layers)]):
        z = _donor_minus_recipient(cache, number, "z", pos)[:, 0]
        heads = torch.einsum("rhe,hed->rhd", z, block.w_o)
        middle = _changes_behind(cache, Site(number, Part.ATTENTION), pos, entering, heads)
        yield Arriving(entering, entering if parallel else middle)
        mlp = _donor_minus_recipient(cache, number, "hidden", pos) @ block.w_hidden
        entering = _changes_behind(cache, Site(number, Part.MLP), pos, middle, mlp)


def _arriving_from(cache: PairCache, senders: Sequence[int]) -> Iterator[tuple[Arriving, ...]]:
    """The changes that arrive at each of some positions, counted from the word, block by block."""
    return zip(*(_arriving(cache, cache.at + pos) for pos in senders), strict=True)


def _changes_behind(
    cache: PairCache, site: Site, pos: int, entering: Tensor, writes: Tensor
) -> Tensor:
    """The changes of the stream after a site: the changes before it, then one for each write at
    the site.
    """
    passed_on = change_behind(cache, site, pos, entering)
    by_write = change_behind(cache, site, pos, torch.zeros_like(writes), writes)
    return torch.cat([passed_on, by_write], dim=1)


def _donor_minus_recipient(cache: PairCache, layer: int, name: str, pos: int) -> Tensor:
    """The donor's values minus the recipient's of one quantity at one layer and position.

    `-> recipient 1 ...`

    name: the quantity's name in `LayerCache`
    """
    recipient: Tensor = getattr(cache.layers[layer], name)[:, pos, None]
    return cache.donated(layer, name, pos) - recipient


# --- the output of a receiver ---------------------------------------------------------------------


def _moved_mlp(cache: PairCache, layer: int, pos: int, changes: Tensor) -> Tensor:
    """How the output of a block's MLP changes with each change of the stream at `pos` alone.

    `recipient variant d_model`
    """
    block = cache.weights.blocks[layer]
    stream = cache.stream(cache.mlp_input(layer))[:, pos, None]
    # The unchanged stream comes first and is subtracted, so that only the change is left.
    hidden = blocks.activate(cache.weights, block, torch.cat([stream, stream + changes], dim=1))
    return (hidden[:, 1:] - hidden[:, :1]) @ block.w_hidden


def _indices(values: NDArray[np.integer[Any]], cache: PairCache) -> Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(cache.weights.device)


def _receiver_z(
    cache: PairCache, layer: int, receiver: int, edges: EdgeArray, changes: Tensor
) -> Tensor:
    """z of the head that each edge leads into, at the position `receiver`, with the input of that
    edge alone changed.

    `-> recipient edge d_head`

    changes: `recipient edge d_model`, of the stream at the sender's position
    """
    weights = cache.weights
    layer_cache = cache.layers[layer]
    block = weights.blocks[layer]
    count = weights.shape[1]
    head = _indices(edges["receiver_head"], cache)
    pos = cache.at + _indices(edges["sender_pos"], cache)
    streams = layer_cache.resid_pre[:, pos] + changes
    unchanged = layer_cache.projected
    assert unchanged is not None  # no edge leads into a layer without attention
    changed = blocks.project(weights, block, streams, cache.terms, pos[None])
    # `recipient edge d_head`
    q, k, v = (repeat_kv(part, count)[:, head, range(len(pos))] for part in changed[:3])
    readable = cache.keys_read(receiver)
    queries = unchanged.q[:, head, receiver]  # recipient edge d_head
    keys = repeat_kv(unchanged.k[:, :, readable], count)[:, head]
    values = repeat_kv(unchanged.v[:, :, readable], count)[:, head]
    into_query, into_key, into_value = (
        torch.from_numpy(edges["channel"] == name).to(weights.device)
        for name in (QUERY, KEY, VALUE)
    )
    queries[:, into_query] = q[:, into_query]
    number = torch.arange(len(pos), device=weights.device)
    keys[:, number[into_key], pos[into_key]] = k[:, into_key]
    values[:, number[into_value], pos[into_value]] = v[:, into_value]
    bias = cache.terms.query_bias(block, receiver, readable)
    qk = (keys @ queries[..., None])[..., 0]
    bias = None if bias is None else bias[head, 0]
    pattern = blocks.pattern(weights, block, qk, bias)
    return (pattern[:, :, None] @ values)[:, :, 0]


def _moved_by_every_sender(
    cache: PairCache, layer: int, pos: int, changes: Tensor, channels: Sequence[tuple[str, int]]
) -> Iterator[tuple[int, Tensor]]:
    """How z of every head of a block changes with each change of the stream at `pos` alone: for
    each channel and position of receivers, that position and `recipient head sender d_head`.

    changes: `recipient sender d_model`

    All senders share a head's keys and values. `_receiver_z` copies them for every edge, which is
    too slow for thousands of senders for each head.
    """
    weights = cache.weights
    layer_cache = cache.layers[layer]
    heads = weights.shape[1]
    block = weights.blocks[layer]
    stream = layer_cache.resid_pre[:, pos, None]
    # The unchanged stream comes first and is subtracted, so that only the change is left.
    resid = torch.cat([stream, stream + changes], dim=1)
    position = torch.full((1, 1), pos, device=weights.device)
    q, k, v, _ = blocks.project(weights, block, resid, cache.terms, position)
    k = repeat_kv(k, heads)  # recipient head sender d_head
    v = repeat_kv(v, heads)
    unchanged = layer_cache.projected
    assert unchanged is not None  # no edge leads into a layer without attention
    keys = repeat_kv(unchanged.k, heads)
    values = repeat_kv(unchanged.v, heads)
    for channel, receiver in channels:
        readable = cache.keys_read(receiver)
        queries = q if channel == QUERY else unchanged.q[:, :, receiver, None]
        qk = queries @ keys[:, :, readable].mT  # recipient head sender key_pos
        if channel == KEY:
            qk = qk.repeat(1, 1, k.shape[2], 1)
            qk[..., pos] = (queries * k).sum(-1)
        bias = cache.terms.query_bias(block, receiver, readable)
        pattern = blocks.pattern(weights, block, qk, bias)
        # One changed value changes one term of the sum. The other terms cancel.
        z = pattern[..., pos, None] * v if channel == VALUE else pattern @ values[:, :, readable]
        yield receiver, z[:, :, 1:] - z[:, :, :1]


# --- fraction and direct effect -------------------------------------------------------------------


def _measure(
    reading: PairReading, senders: Sequence[int], receivers: Sequence[int], *, mlps: bool
) -> tuple[Tensor, Tensor]:
    """Fraction and direct effect of every edge of a pair, in the order of `edges_of`.

    `-> recipient edge, recipient edge direction`
    """
    cache = reading.cache
    fractions = []
    directs = []
    for layer, arriving in enumerate(_arriving_from(cache, senders)):
        for offset, changes in zip(senders, arriving, strict=True):
            for fraction, direct in _measure_heads(
                reading, layer, offset, changes.heads, receivers
            ):
                fractions.append(fraction)
                directs.append(direct)
        for offset, changes in zip(senders, arriving, strict=True):
            if mlps and offset in receivers:
                fraction, direct = _measure_mlp(reading, layer, offset, changes.mlp)
                fractions.append(fraction)
                directs.append(direct)
    return torch.cat(fractions, dim=1), torch.cat(directs, dim=1)


def _measure_heads(
    reading: PairReading, layer: int, offset: int, changes: Tensor, receivers: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Fraction and direct effect of the edges from one position into the heads of a block, by
    channel and receiving position.

    `-> recipient (head sender), recipient (head sender) direction`
    """
    cache = reading.cache
    site = Site(layer, Part.ATTENTION)
    w_o = cache.weights.blocks[layer].w_o
    channels = [
        (channel, cache.at + receiver)
        for channel, receiver in channels_from(cache.weights, offset, receivers)
    ]
    moved_by_channel = _moved_by_every_sender(cache, layer, cache.at + offset, changes, channels)
    for receiver, change in moved_by_channel:
        fraction = _fraction(change, _donor_minus_recipient(cache, layer, "z", receiver)[:, 0])
        direct = change.new_zeros(*change.shape[:-1], len(reading.directions))
        if receiver == cache.at:
            direct = _direct(cache, site, change, w_o, reading.directions)
        yield fraction.flatten(1), direct.flatten(1, 2)


def _measure_mlp(
    reading: PairReading, layer: int, offset: int, changes: Tensor
) -> tuple[Tensor, Tensor]:
    """Fraction and direct effect of the edges into the MLP of a block at one position.

    `-> recipient sender, recipient sender direction`
    """
    cache = reading.cache
    w_hidden = cache.weights.blocks[layer].w_hidden
    pos = cache.at + offset
    swap = _donor_minus_recipient(cache, layer, "hidden", pos) @ w_hidden
    change = _moved_mlp(cache, layer, pos, changes)[:, None]
    direct = change.new_zeros(*change.shape[:-1], len(reading.directions))
    if offset == 0:
        direct = _direct(cache, Site(layer, Part.MLP), change, None, reading.directions)
    return _fraction(change, swap).flatten(1), direct.flatten(1, 2)


def _fraction(change: Tensor, swap: Tensor) -> Tensor:
    """<change, swap> / |swap|²; 0 if a swap moves nothing.

    `recipient head sender d, recipient head d -> recipient head sender`
    """
    size = swap.square().sum(-1, keepdim=True)
    toward = swap / size.where(size > 0, 1)
    return (change @ toward[..., None])[..., 0]


def _direct(
    cache: PairCache, site: Site, change: Tensor, weight: Tensor | None, directions: Tensor
) -> Tensor:
    """How far the word's vector moves with each change of the receivers' writes at the word,
    with every other write frozen.

    `-> recipient head sender direction`

    change: `recipient head sender d_head` with `weight: head d_head d_model`; or `recipient head
        sender d_model` without a weight
    """
    if cache.weights.config.family.adds_plainly:
        # Projected first, so that no write of d_model numbers is computed for every edge.
        return change @ (directions.T if weight is None else weight @ directions.T)
    write_change = change if weight is None else change @ weight
    end_change = run_frozen(cache, cache.at, site, write_change.flatten(1, 2))
    return (end_change @ directions.T).unflatten(1, write_change.shape[1:3])


def _receiver_effects(reading: PairReading, receivers: Sequence[int], *, mlps: bool) -> Tensor:
    """How far the word's vector moves along the first direction if a receiver has the donor's
    value, MLPs after heads.

    `recipient layer head pos`
    """
    parts = [HEAD, "mlp_out"] if mlps else [HEAD]
    shifts = effects(reading.cache, receivers, reading.directions[:1], parts)
    return torch.cat([shifts[part][..., 0] for part in parts], dim=2)


def _could_reach(
    edges: EdgeArray,
    fractions: Sequence[Tensor],
    swaps: Sequence[Tensor],
    receivers: Sequence[int],
) -> Tensor:
    """Σ over pairs of |fraction x effect of the receiver's swap|, averaged over both recipients.

    `-> edge`
    """
    shape = swaps[0].shape[1:]
    index = np.searchsorted(receivers, edges["receiver_pos"])
    head = edges["receiver_head"] % shape[1]  # the MLP is the last
    cell = np.ravel_multi_index((edges["receiver_layer"], head, index), shape)
    number = torch.from_numpy(cell).to(fractions[0].device)
    could = []
    for fraction, swap in zip(fractions, swaps, strict=True):
        could.append((fraction * swap.flatten(1)[:, number]).abs().mean(0))
    return torch.stack(could).sum(0)


# --- total effect ---------------------------------------------------------------------------------


def totals(cache: PairCache, edges: EdgeArray, directions: Tensor) -> Tensor:
    """The total effect of some edges of a pair: everything after the receiver is live.

    `-> recipient edge direction`

    directions: `direction d_model`, or `recipient direction d_model`
    """
    recipients, _, d_model = cache.final.shape
    shifts = directions.new_empty(recipients, len(edges), directions.shape[-2])
    batch_size = max(1, BATCH_NUMBERS // (recipients * d_model))
    for first in range(0, len(edges), batch_size):
        batch = slice(first, first + batch_size)
        streams = _behind_receivers(cache, edges[batch])
        shifts[:, batch] = _run_on(cache, edges[batch], streams, directions)
    return shifts


def _run_on(cache: PairCache, edges: EdgeArray, streams: Tensor, directions: Tensor) -> Tensor:
    """How far the word's vector moves with each stream after a receiver.

    `-> recipient edge direction`
    """
    recipients = len(cache.final)
    shifts = directions.new_empty(recipients, len(edges), directions.shape[-2])
    into_mlp = edges["channel"] == INPUT
    for receiver in np.unique(edges["receiver_pos"]).tolist():
        pos = cache.at + receiver
        at_receiver = np.flatnonzero(edges["receiver_pos"] == receiver)
        live_count = cache.n - pos if cache.weights.causal else cache.n
        batch_size = max(
            1, BATCH_NUMBERS // (recipients * live_count * cache.weights.blocks[0].d_mlp)
        )
        for batch in np.split(at_receiver, range(batch_size, len(at_receiver), batch_size)):
            numbers: dict[Site, NDArray[np.intp]] = {}
            for layer in np.unique(edges["receiver_layer"][batch]).tolist():
                for part in Part:
                    in_part = (edges["receiver_layer"][batch] == layer) & (
                        into_mlp[batch] == (part is Part.MLP)
                    )
                    if in_part.any():
                        numbers[Site(layer, part).behind] = batch[in_part]
            starts = {site: streams[:, indices] for site, indices in numbers.items()}
            for site, changes in run_patched(cache, pos, starts).items():
                shifts[:, numbers[site]] = changes @ directions.mT
    return shifts


def _behind_receivers(cache: PairCache, edges: EdgeArray) -> Tensor:
    """The stream after the receiver of each edge, changed by this edge alone.

    `-> recipient edge d_model`
    """
    senders = np.unique(edges["sender_pos"])
    sender_pos = np.searchsorted(senders, edges["sender_pos"])
    writer = _writer_numbers(cache.weights, edges)
    into_mlp = edges["channel"] == INPUT
    streams = cache.final.new_empty(len(cache.final), len(edges), cache.final.shape[-1])
    layers = range(edges["receiver_layer"].max() + 1)
    by_layer = zip(layers, _arriving_from(cache, senders.tolist()), strict=False)
    for layer, arriving in by_layer:
        in_layer = edges["receiver_layer"] == layer
        for receiver in np.unique(edges["receiver_pos"][in_layer]).tolist():
            for part in Part:
                to_part = into_mlp == (part is Part.MLP)
                edge_numbers = np.flatnonzero(
                    in_layer & (edges["receiver_pos"] == receiver) & to_part
                )
                if len(edge_numbers):
                    changes = torch.stack(
                        [
                            arriving[sender_pos[number]][part][:, writer[number]]
                            for number in edge_numbers
                        ],
                        dim=1,
                    )
                    behind = _BEHIND[part](
                        cache, layer, cache.at + receiver, edges[edge_numbers], changes
                    )
                    streams[:, edge_numbers] = behind
    return streams


def _writer_numbers(weights: Weights, edges: EdgeArray) -> NDArray[np.int64]:
    """The number of each edge's sender in the order of `_writers`."""
    writers_a_layer = weights.shape[1] + 1
    layer = edges["sender_layer"].astype(np.int64)
    number = 1 + layer * writers_a_layer + edges["sender_head"] % writers_a_layer
    number[edges["sender_layer"] == EMBEDDING] = 0
    return number


def _behind_heads(
    cache: PairCache, layer: int, pos: int, edges: EdgeArray, changes: Tensor
) -> Tensor:
    """The stream after the attention of a block, with one head's input changed along each edge.

    `recipient edge d_model`
    """
    heads = edges["receiver_head"]
    changed = _receiver_z(cache, layer, pos, edges, changes)
    # The unchanged z is computed in the same way and subtracted, so that only the change is left.
    unchanged_z = _receiver_z(cache, layer, pos, edges, torch.zeros_like(changes))
    z = cache.layers[layer].z[:, pos, None].repeat(1, len(heads), 1, 1)
    z[:, np.arange(len(heads)), heads] += changed - unchanged_z
    resid = cache.layers[layer].resid_pre[:, pos, None].expand(-1, len(heads), -1)
    return blocks.after_attention(cache.weights, cache.weights.blocks[layer], resid, z)


def _behind_mlp(
    cache: PairCache, layer: int, pos: int, edges: EdgeArray, changes: Tensor
) -> Tensor:
    """The stream after the MLP of a block, with its input changed along each edge.

    `recipient edge d_model`
    """
    site = Site(layer, Part.MLP)
    write_change = _moved_mlp(cache, layer, pos, changes)
    behind = change_behind(cache, site, pos, torch.zeros_like(write_change), write_change)
    return cache.stream(site.behind)[:, pos, None] + behind


_BEHIND: dict[Part, Callable[[PairCache, int, int, EdgeArray, Tensor], Tensor]] = {
    Part.ATTENTION: _behind_heads,
    Part.MLP: _behind_mlp,
}


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

    @memoized
    def part(role: str, layer: int, head: int) -> tuple[Tensor, Tensor]:
        """A head's weight and its Gram matrix. `-> d_model d_head, d_head d_head`"""
        of_layer = getattr(weights.blocks[layer], role)
        # Several heads can share one key and one value.
        of_head = of_layer[head * len(of_layer) // weights.shape[1]].to("cpu", torch.float64)
        weight = of_head.T if role == "w_o" else of_head
        return weight, weight.T @ weight

    @memoized
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
