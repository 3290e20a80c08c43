"""Every edge from one part of the network to a head or an MLP that reads it: what a receiver makes
of one sender alone.

An edge leads from what a sender writes at one position to one head at the same or a later position
(at any where the model reads both ways), into its query, its key or its value, or to an MLP at the
same position; positions are counted from the word, 0 the word and -1 the token before it (below,
such a number is an `offset`; `pos` counts from the beginning of the text). Along it the receiver's
input at the sender's position is

    the stream there, with the donor's write of the sender in place of its own, through the
    receiver's own norm,

the query, key or value there and the receiver's z, or the MLP's output, are computed anew, and
every other write is the recipient's. Where a family adds writes as they are, that is the stream +
(donor's write - own write); where a norm stands behind what the heads of a block write together, or
behind the sum, what passes it is normed with the sender's write changed. Senders: the embeddings
(token and position together), every head and every MLP before. Three numbers an edge, with z an
MLP's output, in front of any norm, where the receiver is one:

    fraction   <z along the edge - own z, z swapped - own z> / |z swapped - own z|²: how much of the
               receiver's own swap the edge alone brings about; 1 is all of it
    direct     how far the word's vector moves when every head and MLP behind the receiver writes
               what it wrote; 0 where the receiver does not stand at the word
    total      the same with everything behind the receiver live

Up to there this is arithmetic on what two runs computed, exact: no gradient, and no norm, softmax
or activation made linear. A total is a forward of its own from the receiver on, so it is run for
edges that could reach a given share of the gap (|fraction| times the effect of the receiver's
swap), and for a random sample of the others.

Sources: Goldowsky-Dill et al. 2023 (path patching); Wang et al. 2022 (paths into queries, keys and
values).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from probe.errors import InputError, require_at_least, require_flag, whole_number
from probe.model import fused
from probe.model.attention import repeat_kv
from probe.model.load import ModelSource, read_weights
from probe.model.model import require_heads
from probe.model.records import as_array
from probe.model.weights import Weights
from probe.patching.heads import BATCH_NUMBERS
from probe.patching.inputs import Rows, require_share
from probe.patching.pair import (
    PairCache,
    PairReading,
    Part,
    Site,
    cache_pairs,
    change_behind,
    positions_from_word,
    run_frozen,
    run_patched,
    token_pairs,
)
from probe.patching.positions import HEAD, effects
from probe.renamed import renamed
from probe.stats.resampling import Array, order

# What carries a change from position to position in a layer without attention is no edge.
DOING = "Measuring edges"  # as errors name it
INSTEAD = "take trace_positions, which runs all that it has"
REACH = 0.005  # of the gap: an edge that could not move the word as far is not run
SAMPLE = 200  # edges that could not, and are run all the same, to see that they do not
QUERY = "query"
KEY = "key"
VALUE = "value"
INPUT = "input"  # an MLP's
CHANNELS = (QUERY, KEY, VALUE, INPUT)
EMBEDDING = -1  # the layer of the embeddings as a sender
MLP = -1  # the head of what is no head
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
    """Every edge of several pairs of one layout; recipient 0 is `a` with writes of `b`, recipient 1
    the other way.

    `edges: edge`, a structured array of EDGE_DTYPE: layers, heads (-1 the MLP of a layer, layer -1
    the embeddings), positions and one of CHANNELS · `gap: pair direction` · `fraction: pair
    recipient edge` · `direct total: pair recipient edge direction`, how far the read-out moves;
    `total` is NaN where it was not run · `sampled: edge`, those whose total was run though they
    could not reach as much · `swapped: pair recipient layer head pos`, how far it moves along the
    first direction when a receiver is the donor's, the MLPs behind the heads.
    """

    edges: EdgeArray
    gap: Tensor
    fraction: Tensor
    direct: Tensor
    total: Tensor
    sampled: NDArray[np.bool_]
    swapped: Tensor

    def share(self, name: str, direction: int = 0) -> Array:
        """`direct` or `total` as a share of the gap, both ways averaged: a ratio of sums. `->
        edge`

        Raises InputError for another name, and for a direction that was not asked for.
        """
        if name not in ("direct", "total"):
            raise InputError(
                f"Reading shares of edges: got {name!r}, expected 'direct' or 'total'; give one of "
                "these."
            )
        directions = self.gap.shape[1]
        if whole_number(direction) is None or not 0 <= direction < directions:
            raise InputError(
                f"Reading shares of edges: got direction {direction!r}, expected 0 to "
                f"{directions - 1}; give one of these."
            )
        noise, denoise = getattr(self, name)[..., direction].double().sum(0)
        return np.asarray((denoise - noise) / 2 / self.gap[:, direction].double().sum())

    def rows(self, direction: int = 0, *, only_run: bool = True) -> list[dict[str, object]]:
        """One row an edge, over all pairs and both ways: `fraction` a mean, `direct` and `total`
        shares of the gap (ratios of sums), and `sampled`; those whose total was run, or all.
        """
        columns: dict[str, NDArray[np.generic]] = {}
        for name in EDGE_DTYPE.names or ():
            columns[name] = self.edges[name]
        columns["fraction"] = as_array(self.fraction.mean((0, 1)))
        columns["direct"] = self.share("direct", direction)
        columns["total"] = self.share("total", direction)
        columns["sampled"] = self.sampled
        listed = ~np.isnan(columns["total"]) if only_run else slice(None)
        rows = zip(*(values[listed].tolist() for values in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]


@renamed(weights="model", a="texts", b="against")
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
    most: int | None = None,
    sample: int = SAMPLE,
    seed: int = 0,
) -> Edges:
    """Every edge into every head and every MLP below the read-out, of pairs whose members are of
    equal length.

    `directions`: as in `trace_positions` · `positions`: of senders; those from the first difference
    to the word by default · `receivers`: of receivers, those of senders by default · `mlps`:
    whether MLPs are among the receivers · `reach`: the share of the gap along the first direction
    that an edge must be able to reach for its total to be run · `most`: of how many it is run at
    most, those that could reach most · `sample`: of how many others it is run, drawn with the seed.
    Raises InputError as `trace_positions`, UnsupportedModel for a hybrid.

    Example:
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states(model, texts, last)
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
    if most is not None:
        require_at_least(0, most, "most", doing=DOING, usual="all that could reach as much")
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
            swaps.append(_swapped(reading, receiving, mlps=mlps))
        could_reach = _could_reach(array, fractions, swaps, receiving)
        could = as_array(could_reach / gap[:, 0].sum().abs())
        leading = np.isin(np.arange(len(could)), order(could)[:most]) & (could >= reach)
        sampled = np.zeros_like(leading)
        others = np.random.default_rng(seed).permutation(np.flatnonzero(~leading))
        sampled[others[:sample]] = True
        chosen = np.flatnonzero(leading | sampled)
        total = torch.full_like(torch.stack(directs), torch.nan)
        for number, reading in enumerate(readings):
            total[number][:, chosen] = totals(reading.cache, array[chosen], reading.directions)
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
    gap, fraction, direct, total, swapped = (part.clone() for part in on_cpu)
    return Edges(array, gap, fraction, direct, total, sampled, swapped)


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
    """The total effect of given edges, in pairs as for `edges`; raises alike. `-> pair recipient
    edge direction`

    both_ways: whether `b` is a recipient, too; else there is one recipient, `a`.
    """
    require_heads(weights.config, "edges", INSTEAD)
    pairs = token_pairs(weights, a, b, depth)
    positions_from_word(pairs, np.union1d(edges["sender_pos"], edges["receiver_pos"]).tolist())
    with torch.inference_mode():
        readings = cache_pairs(weights, pairs, directions, depth, both_ways=both_ways)
        moved = [totals(reading.cache, edges, reading.directions) for reading in readings]
        return torch.stack(moved).cpu().clone()


# --- which edges there are ------------------------------------------------------------------------


def edges_of(
    weights: Weights, depth: int, senders: Sequence[int], receivers: Sequence[int], *, mlps: bool
) -> EdgeArray:
    """Every edge, block after block, a block's heads before its MLP. `-> edge`"""
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
            "from the word, expected a receiver that is not before every sender; give others."
        )
    return np.concatenate(blocks)


def _writers(weights: Weights, depth: int) -> list[tuple[int, int]]:
    """What writes, in order: the embeddings, then heads and MLP of block after block. `(layer,
    head)`"""
    writers = [(EMBEDDING, MLP)]
    for layer in range(depth):
        writers += [(layer, head) for head in range(weights.shape[1])]
        writers.append((layer, MLP))
    return writers


def _writers_before(weights: Weights, site: Site) -> int:
    """How many writers stand in front of what the part at a site reads."""
    heads = weights.shape[1]
    before = 1 + site.layer * (heads + 1)
    if site.part is Part.MLP and not weights.config.family.parallel:
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
    """The edges from some writers at one position to some heads of a layer at another. `-> (head
    writer)`"""
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
    """Through which channel a write at `offset` gets into a head at which position: no earlier one
    in a causal model."""
    reading = [receiver for receiver in receivers if receiver >= offset or not weights.causal]
    channels = [(QUERY, offset)] if offset in receivers else []
    for channel in (KEY, VALUE):
        channels += [(channel, receiver) for receiver in reading]
    return channels


# --- what arrives at a receiver -------------------------------------------------------------------


class Arriving(NamedTuple):
    """The changes of a stream at one position when one sender alone writes what it writes in the
    other sentence: in front of the heads of a block, and in front of its MLP.

    `recipient sender d_model` each, the senders before the reader in the order of `_writers`.
    """

    heads: Tensor
    mlp: Tensor


def _arriving(cache: PairCache, pos: int) -> Iterator[Arriving]:
    """What arrives at a position, block by block."""
    parallel = cache.weights.config.family.parallel
    entering = _donor_less_own(cache, 0, "resid_pre", pos)
    for number, block in enumerate(cache.weights.blocks[: len(cache.layers)]):
        z = _donor_less_own(cache, number, "z", pos)[:, 0]
        heads = torch.einsum("rhe,hed->rhd", z, block.w_o)
        middle = _changes_behind(cache, Site(number, Part.ATTENTION), pos, entering, heads)
        yield Arriving(entering, entering if parallel else middle)
        mlp = _donor_less_own(cache, number, "hidden", pos) @ block.w_hidden
        entering = _changes_behind(cache, Site(number, Part.MLP), pos, middle, mlp)


def _arriving_from(cache: PairCache, senders: Sequence[int]) -> Iterator[tuple[Arriving, ...]]:
    """Block by block what arrives at each of some positions, counted from the word."""
    return zip(*(_arriving(cache, cache.at + pos) for pos in senders), strict=True)


def _changes_behind(
    cache: PairCache, site: Site, pos: int, entering: Tensor, writes: Tensor
) -> Tensor:
    """The changes of the stream behind a site: those in front of it, and one for each of the writes
    there."""
    passed_on = change_behind(cache, site, pos, entering)
    written = change_behind(cache, site, pos, torch.zeros_like(writes), writes)
    return torch.cat([passed_on, written], dim=1)


def _donor_less_own(cache: PairCache, layer: int, name: str, pos: int) -> Tensor:
    """How what a layer computed at a position differs in the donor, by its name in `LayerCache`.
    `recipient 1 ...`"""
    own: Tensor = getattr(cache.layers[layer], name)[:, pos, None]
    return cache.donated(layer, name, pos) - own


# --- what a receiver makes of it ------------------------------------------------------------------


class Inputs(NamedTuple):
    """The changed inputs of some runs of one head, one row an input: in the run number `variant`
    the stream at `pos` of the text changes by `change` on its way into one `channel`.

    `variant channel pos: input` · `change: recipient input d_model`. A run may have several inputs;
    what is in none of them is read as it was.
    """

    variant: ArrayLike
    channel: ArrayLike
    pos: ArrayLike
    change: Tensor


def moved_mlp(cache: PairCache, layer: int, pos: int, changes: Tensor) -> Tensor:
    """What a block's MLP writes otherwise with each change of the stream at `pos` alone. `recipient
    variant d_model`"""
    block = cache.weights.blocks[layer]
    stream = cache.stream(cache.mlp_input(layer))[:, pos, None]
    # As it was comes first, so that nothing but the change is left.
    hidden = fused.activate(cache.weights, block, torch.cat([stream, stream + changes], dim=1))
    return (hidden[:, 1:] - hidden[:, :1]) @ block.w_hidden


def _indices(values: ArrayLike, cache: PairCache) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64)).to(cache.weights.device)


def receiver_z(
    cache: PairCache, layer: int, receiver: int, heads: ArrayLike, inputs: Inputs
) -> Tensor:
    """z of one head of a block in each variant, at the position `receiver`, when some of what it
    reads is changed and all else is read as it was. `-> recipient variant d_head`"""
    weights = cache.weights
    layer_cache = cache.layers[layer]
    block = weights.blocks[layer]
    count = weights.shape[1]
    head = _indices(heads, cache)
    variant = _indices(inputs.variant, cache)
    pos = _indices(inputs.pos, cache)
    streams = layer_cache.resid_pre[:, pos] + inputs.change
    projected = fused.project(weights, block, streams, cache.tables, pos[None])
    q, k, v = (
        repeat_kv(part, count)[:, head[variant], range(len(pos))] for part in projected
    )  # recipient input d_head
    readable = cache.keys_read(receiver)
    queries = layer_cache.q[:, head, receiver]  # recipient variant d_head
    keys = repeat_kv(layer_cache.k[:, :, readable], count)[:, head]
    values = repeat_kv(layer_cache.v[:, :, readable], count)[:, head]
    channel = np.asarray(inputs.channel)
    into_query, into_key, into_value = (
        torch.from_numpy(channel == name).to(weights.device) for name in (QUERY, KEY, VALUE)
    )
    queries[:, variant[into_query]] = q[:, into_query]
    keys[:, variant[into_key], pos[into_key]] = k[:, into_key]
    values[:, variant[into_value], pos[into_value]] = v[:, into_value]
    bias = cache.tables.row(block, receiver)
    matches = (keys @ queries[..., None])[..., 0]
    bias = None if bias is None else bias[head, 0]
    sinks = None if block.sinks is None else block.sinks[head]
    pattern = fused.pattern(weights, block, matches, bias, sinks)
    return (pattern[:, :, None] @ values)[:, :, 0]


def _moved_by_every_sender(
    cache: PairCache, layer: int, pos: int, changes: Tensor, channels: Sequence[tuple[str, int]]
) -> Iterator[tuple[int, Tensor]]:
    """How z of every head of a block changes with each change of the stream at `pos` alone, by the
    channel and the position of the receivers: that position, and `recipient head sender d_head`.

    `changes: recipient sender d_model`. All senders share a head's keys and values, which
    `receiver_z` copies for every variant: with thousands of senders a head this form alone is
    fast enough.
    """
    weights = cache.weights
    layer_cache = cache.layers[layer]
    heads = weights.shape[1]
    block = weights.blocks[layer]
    stream = layer_cache.resid_pre[:, pos, None]
    # As it was comes first, so that nothing but the change is left.
    resid = torch.cat([stream, stream + changes], dim=1)
    here = torch.full((1, 1), pos, device=weights.device)
    q, k, v = fused.project(weights, block, resid, cache.tables, here)
    k = repeat_kv(k, heads)  # recipient head sender d_head
    v = repeat_kv(v, heads)
    keys = repeat_kv(layer_cache.k, heads)
    values = repeat_kv(layer_cache.v, heads)
    for channel, receiver in channels:
        readable = cache.keys_read(receiver)
        queries = q if channel == QUERY else layer_cache.q[:, :, receiver, None]
        matches = queries @ keys[:, :, readable].mT  # recipient head sender key_pos
        if channel == KEY:
            matches = matches.repeat(1, 1, k.shape[2], 1)
            matches[..., pos] = (queries * k).sum(-1)
        sinks = None if block.sinks is None else block.sinks[:, None]
        bias = cache.tables.row(block, receiver)
        pattern = fused.pattern(weights, block, matches, bias, sinks)
        # The rest of what is read does not change with one value, so it drops out.
        z = pattern[..., pos, None] * v if channel == VALUE else pattern @ values[:, :, readable]
        yield receiver, z[:, :, 1:] - z[:, :, :1]


# --- fraction and direct effect -------------------------------------------------------------------


def _measure(
    reading: PairReading, senders: Sequence[int], receivers: Sequence[int], *, mlps: bool
) -> tuple[Tensor, Tensor]:
    """Fraction and direct effect of every edge of a pair, in the order of `edges_of`. `-> recipient
    edge, recipient edge direction`"""
    cache = reading.cache
    fractions = []
    directs = []
    for layer, arriving in enumerate(_arriving_from(cache, senders)):
        for offset, here in zip(senders, arriving, strict=True):
            for fraction, direct in _measure_heads(reading, layer, offset, here.heads, receivers):
                fractions.append(fraction)
                directs.append(direct)
        for offset, here in zip(senders, arriving, strict=True):
            if mlps and offset in receivers:
                fraction, direct = _measure_mlp(reading, layer, offset, here.mlp)
                fractions.append(fraction)
                directs.append(direct)
    return torch.cat(fractions, dim=1), torch.cat(directs, dim=1)


def _measure_heads(
    reading: PairReading, layer: int, offset: int, changes: Tensor, receivers: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Fraction and direct effect of the edges from one position into the heads of a block, by
    channel and receiving position. `-> recipient (head sender), recipient (head sender) direction`
    """
    cache = reading.cache
    site = Site(layer, Part.ATTENTION)
    w_o = cache.weights.blocks[layer].w_o
    channels = [
        (channel, cache.at + receiver)
        for channel, receiver in channels_from(cache.weights, offset, receivers)
    ]
    moved_by_channel = _moved_by_every_sender(cache, layer, cache.at + offset, changes, channels)
    for receiver, moved in moved_by_channel:
        fraction = _fraction(moved, _donor_less_own(cache, layer, "z", receiver)[:, 0])
        direct = moved.new_zeros(*moved.shape[:-1], len(reading.directions))
        if receiver == cache.at:
            direct = _direct(cache, site, moved, w_o, reading.directions)
        yield fraction.flatten(1), direct.flatten(1, 2)


def _measure_mlp(
    reading: PairReading, layer: int, offset: int, changes: Tensor
) -> tuple[Tensor, Tensor]:
    """Fraction and direct effect of the edges into the MLP of a block at one position. `->
    recipient sender, recipient sender direction`"""
    cache = reading.cache
    w_hidden = cache.weights.blocks[layer].w_hidden
    pos = cache.at + offset
    swapped = _donor_less_own(cache, layer, "hidden", pos) @ w_hidden
    moved = moved_mlp(cache, layer, pos, changes)[:, None]
    direct = moved.new_zeros(*moved.shape[:-1], len(reading.directions))
    if offset == 0:
        direct = _direct(cache, Site(layer, Part.MLP), moved, None, reading.directions)
    return _fraction(moved, swapped).flatten(1), direct.flatten(1, 2)


def _fraction(moved: Tensor, swapped: Tensor) -> Tensor:
    """<moved, swapped> / |swapped|², 0 where a swap moves nothing. `recipient head sender d,
    recipient head d -> recipient head sender`"""
    size = swapped.square().sum(-1, keepdim=True)
    toward = swapped / size.where(size > 0, 1)
    return (moved @ toward[..., None])[..., 0]


def _direct(
    cache: PairCache, site: Site, moved: Tensor, weight: Tensor | None, directions: Tensor
) -> Tensor:
    """How far the word's vector moves with each change of what receivers at the word write, every
    other write frozen.

    `moved: recipient head sender d_head` with `weight: head d_head d_model`, or `d_model` without
    `-> recipient head sender direction`
    """
    if cache.weights.config.family.adds_plainly:
        # Projected at once, so that no write of d_model numbers is made for every edge.
        return moved @ (directions.T if weight is None else weight @ directions.T)
    written = moved if weight is None else moved @ weight
    change = run_frozen(cache, cache.at, {site: written.flatten(1, 2)}, cache.end)
    return (change @ directions.T).unflatten(1, written.shape[1:3])


def _swapped(reading: PairReading, receivers: Sequence[int], *, mlps: bool) -> Tensor:
    """How far the word's vector moves along the first direction when a receiver is the donor's.
    `recipient layer head pos`, the MLP behind the heads"""
    parts = [HEAD, "mlp_out"] if mlps else [HEAD]
    moved = effects(reading.cache, receivers, reading.directions[:1], parts)
    return torch.cat([moved[part][..., 0] for part in parts], dim=2)


def _could_reach(
    edges: EdgeArray,
    fractions: Sequence[Tensor],
    swaps: Sequence[Tensor],
    receivers: Sequence[int],
) -> Tensor:
    """Σ over pairs of |fraction x effect of the receiver's swap|, mean of both ways. `-> edge`"""
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
    """The total effect of some edges of a pair, all behind the receiver live. `-> recipient edge
    direction`"""
    moved = directions.new_empty(len(cache.final), len(edges), len(directions))
    most = BATCH_NUMBERS // cache.final.shape[-1]
    for first in range(0, len(edges), most):
        some = slice(first, first + most)
        streams = _behind_receivers(cache, edges[some])
        moved[:, some] = _run_on(cache, edges[some], streams, directions)
    return moved


def _run_on(cache: PairCache, edges: EdgeArray, streams: Tensor, directions: Tensor) -> Tensor:
    """How far the word's vector moves with each stream behind a receiver. `-> recipient edge
    direction`"""
    recipients = len(cache.final)
    moved = directions.new_empty(recipients, len(edges), len(directions))
    into_mlp = edges["channel"] == INPUT
    for receiver in np.unique(edges["receiver_pos"]).tolist():
        pos = cache.at + receiver
        here = np.flatnonzero(edges["receiver_pos"] == receiver)
        live = cache.n - pos if cache.weights.causal else cache.n
        most = max(1, BATCH_NUMBERS // (recipients * live * cache.weights.blocks[0].d_mlp))
        for batch in np.split(here, range(most, len(here), most)):
            numbers: dict[Site, NDArray[np.intp]] = {}
            for layer in np.unique(edges["receiver_layer"][batch]).tolist():
                for part in Part:
                    chosen = (edges["receiver_layer"][batch] == layer) & (
                        into_mlp[batch] == (part is Part.MLP)
                    )
                    if chosen.any():
                        numbers[Site(layer, part).behind] = batch[chosen]
            starts = {site: streams[:, which] for site, which in numbers.items()}
            for site, changes in run_patched(cache, pos, starts).items():
                moved[:, numbers[site]] = changes @ directions.T
    return moved


def _behind_receivers(cache: PairCache, edges: EdgeArray) -> Tensor:
    """The stream behind the receiver of each edge, as the edge alone makes it. `-> recipient edge
    d_model`"""
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
                some = np.flatnonzero(in_layer & (edges["receiver_pos"] == receiver) & to_part)
                if len(some):
                    changes = torch.stack(
                        [arriving[sender_pos[one]][part][:, writer[one]] for one in some], dim=1
                    )
                    behind = _BEHIND[part](cache, layer, cache.at + receiver, edges[some], changes)
                    streams[:, some] = behind
    return streams


def _writer_numbers(weights: Weights, edges: EdgeArray) -> NDArray[np.int64]:
    """Where the sender of each edge stands in the order of `_writers`."""
    writers_a_layer = weights.shape[1] + 1
    layer = edges["sender_layer"].astype(np.int64)
    number = 1 + layer * writers_a_layer + edges["sender_head"] % writers_a_layer
    number[edges["sender_layer"] == EMBEDDING] = 0
    return number


def _behind_heads(
    cache: PairCache, layer: int, pos: int, edges: EdgeArray, changes: Tensor
) -> Tensor:
    """The stream behind the attention of a block, one head's input changed along each edge.
    `recipient edge d_model`"""
    heads = edges["receiver_head"]
    numbers = np.arange(len(edges))
    sender_pos = cache.at + edges["sender_pos"].astype(np.int64)
    inputs = Inputs(numbers, edges["channel"], sender_pos, changes)
    changed = receiver_z(cache, layer, pos, heads, inputs)
    # What was is computed alike, so that nothing but the change is left of one edge alone.
    unchanged = inputs._replace(change=torch.zeros_like(changes))
    own = receiver_z(cache, layer, pos, heads, unchanged)
    z = cache.layers[layer].z[:, pos, None].repeat(1, len(heads), 1, 1)
    z[:, numbers, heads] += changed - own
    resid = cache.layers[layer].resid_pre[:, pos, None].expand(-1, len(heads), -1)
    return fused.write(cache.weights, cache.weights.blocks[layer], resid, z)


def _behind_mlp(
    cache: PairCache, layer: int, pos: int, edges: EdgeArray, changes: Tensor
) -> Tensor:
    """The same behind a block's MLP, its input changed along each edge."""
    site = Site(layer, Part.MLP)
    written = moved_mlp(cache, layer, pos, changes)
    behind = change_behind(cache, site, pos, torch.zeros_like(written), written)
    return cache.stream(site.behind)[:, pos, None] + behind


_BEHIND: dict[Part, Callable[[PairCache, int, int, EdgeArray, Tensor], Tensor]] = {
    Part.ATTENTION: _behind_heads,
    Part.MLP: _behind_mlp,
}
