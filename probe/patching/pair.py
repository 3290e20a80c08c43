"""Two runs of a pair, cached completely, and how a run continues if its residual stream is
changed.

A change is made at one position and one site: before the attention of a block, or before its MLP.
The donor's attention output, one head's z and the donor's MLP output each cause such a change.
After it, the run continues in one of two ways:

    run_patched   Everything after the change responds. In a causal model the change does not reach
                  earlier positions, so only the positions from there to the word are run again,
                  against the keys and values of the others.
    run_frozen    Every later head and MLP keeps its write. If the family adds writes as they are,
                  the change stays the same; if there is a norm after the sum or after a write, the
                  change passes through the norm.

One of the two runs can also be run again with some heads patched at one position
(`run_with_patch`). `generate` then writes the text that follows, token by token; every new token
adds its keys and values.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from probe.errors import InputError
from probe.model import blocks, forward
from probe.model.blocks import Past, PositionTerms, Projected, Writer
from probe.model.variants import Branch, Edits, Run, Step, Z, run_texts
from probe.model.weights import Weights
from probe.patching.heads import BATCH_NUMBERS
from probe.patching.inputs import (
    Rows,
    as_directions,
    as_offsets,
    require_depth,
    require_equal_lengths,
    target_texts,
)

TRACING = "Cannot trace pairs"  # the intervention as error messages name it


class Part(IntEnum):
    """The parts of a block, in the order in which the stream passes them."""

    ATTENTION = 0
    MLP = 1


class Site(NamedTuple):
    """A site in the residual stream: before the attention, or before the MLP, of a layer.

    Sites sort in the order in which a run passes them. The end of a run is the site before the
    attention of the layer after the last.
    """

    layer: int
    part: Part

    @property
    def behind(self) -> "Site":
        """The next site, after the attention or the MLP at this one."""
        if self.part is Part.ATTENTION:
            return Site(self.layer, Part.MLP)
        return Site(self.layer + 1, Part.ATTENTION)


class LayerCache(NamedTuple):
    """The quantities of one block of a run.

    resid_pre, resid_mid: `row pos d_model`
    projected: queries, keys and values, `row head pos d_head`; None in a layer without attention
    z: `row pos head d_head`
    hidden: `row pos d_mlp`, the MLP's activations
    """

    resid_pre: Tensor
    projected: Projected | None
    z: Tensor
    resid_mid: Tensor
    hidden: Tensor

    def rows(self, rows: slice) -> "LayerCache":
        """The quantities of some rows."""
        projected = self.projected
        if projected is not None:
            projected = projected.map(lambda part: part[rows])
        return LayerCache(
            resid_pre=self.resid_pre[rows],
            projected=projected,
            z=self.z[rows],
            resid_mid=self.resid_mid[rows],
            hidden=self.hidden[rows],
        )


@dataclass(frozen=True, eq=False)
class PairCache:
    """The two runs of a pair, each the other's donor: row 0 is a, row 1 is b. For several pairs,
    all rows a come before all rows b.

    layers: the cached blocks
    final: `row pos d_model`, the stream after the last of `layers`
    at: the position of the word, the same in all rows
    donor: another cache, whose rows are the donors of these, row by row; its texts may be longer or
        shorter
    shift: how many positions later the donor's counterpart of a position is
    """

    weights: Weights
    terms: PositionTerms
    layers: tuple[LayerCache, ...]
    final: Tensor
    at: int
    donor: "PairCache | None" = None
    shift: int = 0

    @property
    def n(self) -> int:
        """The number of tokens of each row."""
        return self.final.shape[1]

    @property
    def end(self) -> Site:
        """The site after the last block."""
        return Site(len(self.layers), Part.ATTENTION)

    def donated(self, layer: int, name: str, pos: int) -> Tensor:
        """A quantity of the donor's layer at a position, by its name in `LayerCache`. `row 1
        ...`
        """
        if self.donor is None:
            quantity = getattr(self.layers[layer], name)[:, pos, None]
            return quantity.roll(len(quantity) // 2, 0)
        return getattr(self.donor.layers[layer], name)[:, pos + self.shift, None]

    def stream(self, site: Site) -> Tensor:
        """The stream at a site. `row pos d_model`"""
        if site == self.end:
            return self.final
        layer = self.layers[site.layer]
        return layer.resid_pre if site.part is Part.ATTENTION else layer.resid_mid

    def mlp_input(self, layer: int) -> Site:
        """The site whose stream the MLP of a layer reads: before the attention if the two are
        parallel.
        """
        parallel = self.weights.config.family.parallel_attn_mlp
        return Site(layer, Part.ATTENTION if parallel else Part.MLP)

    def one_way(self) -> "PairCache":
        """Rows a as the only recipients, with rows b as their donors."""
        pairs = len(self.final) // 2
        return replace(self._rows(slice(pairs)), donor=self._rows(slice(pairs, None)))

    def _rows(self, rows: slice) -> "PairCache":
        layers = tuple(layer.rows(rows) for layer in self.layers)
        return replace(self, layers=layers, final=self.final[rows])

    def past(self, layer: int, end: int) -> Past:
        """What later positions read of the positions before `end`."""
        cached = self.layers[layer]
        if cached.projected is None:
            block = self.weights.blocks[layer]
            resid = cached.resid_pre[:, :end]
            return (blocks.attention_input(block, resid, self.weights.config),)
        return cached.projected.k[:, :, :end], cached.projected.v[:, :, :end]

    def keys_read(self, pos: int) -> slice:
        """The positions that a query at `pos` reads."""
        return slice(pos + 1 if self.weights.causal else self.n)


class HeadPatch(NamedTuple):
    """z for some heads at the position `at`.

    z: `layer head d_head`
    heads: `layer head`, True where patched
    """

    at: int
    z: Tensor
    heads: Tensor


def cache_pair(weights: Weights, rows: Sequence[Sequence[int]], at: int, depth: int) -> PairCache:
    """Both runs of a pair, with everything that the first `depth` blocks compute, at every
    position.

    rows: the two token lists; or the lists of several pairs of equal length, all first members
        before all second ones
    """
    terms = blocks.position_terms(weights, len(rows[0]))
    layers = []
    for step in run_texts(weights, rows, depth, terms):
        layers.append(_cached(step))
    return PairCache(weights, terms, tuple(layers), step.everywhere(step.resid_post), at)


def _cached(step: Step) -> LayerCache:
    """Everything that a block of whole texts computes."""
    projected = None
    if step.block.mixer is None:
        projected = step.projected.map(lambda part: part[:, 0])  # row head pos d_head
    return LayerCache(
        resid_pre=step.everywhere(step.resid_pre),
        projected=projected,
        z=step.everywhere(step.z),
        resid_mid=step.everywhere(step.resid_mid),
        hidden=step.everywhere(step.hidden),
    )


# --- frozen ---------------------------------------------------------------------------------------


def run_frozen(cache: PairCache, pos: int, site: Site, write_change: Tensor) -> Tensor:
    """How the stream after the last block changes at a position if the attention or the MLP at a
    site changes its write there and every later one keeps its write.

    `-> recipient variant d_model`

    write_change: `recipient variant d_model`, the change of the write before any norm
    """
    change = change_behind(cache, site, pos, torch.zeros_like(write_change), write_change)
    # Without a norm after the sum, a writer that keeps its write passes the change on as it is.
    if cache.weights.config.family.norm_after_sum:
        while (site := site.behind) < cache.end:
            change = change_behind(cache, site, pos, change)
    return change


def change_behind(
    cache: PairCache, site: Site, pos: int, entering: Tensor, write_change: Tensor | float = 0.0
) -> Tensor:
    """The change of the stream after a site at a position. `recipient variant d_model`

    entering: the change of the stream at the site
    write_change: the change of the write of the attention or the MLP there
    """
    weights = cache.weights
    family = weights.config.family
    if family.adds_plainly:
        return entering + write_change
    writer, x = _writer_at(cache, site)
    write = writer.write(x[:, pos, None])
    # The norm is not linear, so its change is the difference of two norms: norm(w + Δw) - norm(w).
    if family.norm_after_sum:
        resid = cache.stream(site)[:, pos, None]
        changed = blocks.add_write(weights.config, writer, resid + entering, write + write_change)
        return changed - blocks.add_write(weights.config, writer, resid, write)
    zero = torch.zeros_like(write)
    changed = blocks.add_write(weights.config, writer, zero, write + write_change)
    return entering + changed - blocks.add_write(weights.config, writer, zero, write)


def _writer_at(cache: PairCache, site: Site) -> tuple[Writer, Tensor]:
    """The writer of the attention or the MLP at a site, and its input. `row pos input`"""
    weights = cache.weights
    block = weights.blocks[site.layer]
    layer = cache.layers[site.layer]
    if site.part is Part.ATTENTION:
        return blocks.attention_writer(weights, block), layer.z.flatten(-2)
    return blocks.mlp_writer(weights, block), layer.hidden


# --- patched --------------------------------------------------------------------------------------


def run_patched(
    cache: PairCache,
    pos: int,
    starts: Mapping[Site, Tensor],
    directions: Tensor | None = None,
) -> dict[Site, Tensor]:
    """How the word's vector after the last block changes with every change at position `pos`, by
    the sites of `starts`.

    `-> row variant d_model`

    starts: the changed streams, `row variant d_model`, by site
    directions: `direction d_model`, or separate for each row; if given, the result is `row variant
        direction`, and the last MLP's write is not computed if the family adds writes as they are

    This loop and `probe.model.variants.Run` run the same blocks (`probe.model.blocks`) but are
    separate. There, variants branch by what is edited at one site of each block. Here, a variant
    enters at any site and costs nothing before it. Until the first attention after its site, it is
    a single vector, and its neighbours are in the cache. If variants have all live positions from
    their site on, as in a `Run`, traces of heads and totals of edges take 10 % longer.
    """
    last = len(cache.layers) - 1
    unwritten = directions is not None and cache.weights.config.family.adds_plainly
    first = pos if cache.weights.causal else 0
    # A variant is `local`, changed at `pos` only, until an attention reads it. From there on it is
    # `spread` over the positions from `first` on.
    local = cache.final.new_zeros(len(cache.final), 0, cache.final.shape[-1])
    spread = local[:, :, None].expand(-1, -1, cache.n - first, -1)
    for number, layer in enumerate(cache.layers):
        block = cache.weights.blocks[number]
        local = _with_starts(local, starts, Site(number, Part.ATTENTION))
        resid_mid = spread
        if local.shape[1] or spread.shape[1]:
            z = _attend(cache, number, spread, local, pos)
            patched = _set_at(layer.resid_pre[:, first:], local, pos - first)
            spread = torch.cat([spread, patched], dim=1)
            if number == last:  # after the last attention only the word is needed
                z = z[:, :, cache.at - first, None]
                spread = spread[:, :, cache.at - first, None]
            resid_mid = blocks.after_attention(cache.weights, block, spread, z)
        started = _with_starts(local[:, :0], starts, Site(number, Part.MLP))
        after_attention = _stack_variants(resid_mid, started)
        entering = after_attention
        # In other models, the MLP does not read this stream.
        if cache.weights.config.family.parallel_attn_mlp:
            of_started = layer.resid_pre[:, pos, None].expand_as(started)
            entering = _stack_variants(spread, of_started)
        if number == last and unwritten:
            assert directions is not None
            count = spread.shape[1]
            read = _read_unwritten(cache, entering, after_attention, directions)
            spread_moved, local_moved = read[:, :count], read[:, count:]
            local = local[:, :0]
        else:
            hidden = blocks.activate(cache.weights, block, entering)
            finished = blocks.after_mlp(cache.weights, block, after_attention, hidden)
            spread, local = _unstack_variants(finished, spread.shape)
    word = cache.final[:, None, cache.at]
    at_end = _with_starts(local, starts, cache.end) - word
    if directions is not None:
        at_end = at_end @ directions.mT
    if unwritten:
        local_moved = torch.cat([local_moved, at_end], dim=1)
    else:
        spread_moved = spread[:, :, -1] - word
        if directions is not None:
            spread_moved = spread_moved @ directions.mT
        local_moved = at_end
    if pos != cache.at:  # a change that is still local has not reached the word
        local_moved = torch.zeros_like(local_moved)
    shifts = torch.cat([spread_moved, local_moved], dim=1)
    # The variants were added in the order of their sites.
    sites = sorted(starts)
    counts = [starts[site].shape[1] for site in sites]
    return dict(zip(sites, shifts.split(counts, dim=1), strict=True))


def _read_unwritten(
    cache: PairCache, entering: Tensor, behind: Tensor, directions: Tensor
) -> Tensor:
    """How far variants of the word move along directions after the last MLP, without computing
    its write.

    `-> row variant direction`

    entering: `row variant d_model`, the stream that the MLP reads
    behind: `row variant d_model`, the stream that its write is added to
    """
    # <resid_post change, u> = <resid_mid change, u> + <hidden change, W_out u>
    layer = cache.layers[-1]
    block = cache.weights.blocks[len(cache.layers) - 1]
    hidden = blocks.activate(cache.weights, block, entering)
    stream_moved = behind - layer.resid_mid[:, cache.at, None]
    hidden_moved = hidden - layer.hidden[:, cache.at, None]
    return stream_moved @ directions.mT + hidden_moved @ (block.w_hidden @ directions.mT)


def _with_starts(local: Tensor, starts: Mapping[Site, Tensor], site: Site) -> Tensor:
    """The variants, followed by new ones that begin at a site. `row variant d_model`"""
    return torch.cat([local, starts[site]], dim=1) if site in starts else local


def _attend(cache: PairCache, number: int, spread: Tensor, local: Tensor, pos: int) -> Tensor:
    """z of the live positions of the spread variants, then of the local ones.

    `row variant live d_model, row variant d_model -> row variant live head d_head`

    Away from `pos`, local variants have the unchanged run's queries, keys and values.
    """
    weights = cache.weights
    block = weights.blocks[number]
    layer = cache.layers[number]
    first = cache.n - spread.shape[2]
    past = cache.past(number, first) if first else None
    streams = _stack_variants(spread, local)

    def live(changed: Tensor, unchanged: Tensor) -> Tensor:
        """`row vector ..., row pos ... -> row variant live ...`"""
        of_spread, of_local = _unstack_variants(changed, spread.shape)
        with_change = _set_at(unchanged[:, first:], of_local, pos - first)
        return torch.cat([of_spread, with_change], dim=1)

    def live_by_head(changed: Tensor, unchanged: Tensor) -> Tensor:
        """`row head vector d_head, row head pos d_head -> row variant head live d_head`"""
        return live(changed.transpose(1, 2), unchanged.transpose(1, 2)).transpose(2, 3)

    if layer.projected is None:
        x = blocks.attention_input(block, streams, weights.config)
        unchanged = blocks.attention_input(block, layer.resid_pre, weights.config)
        return blocks.mix_variants(block, live(x, unchanged), past)
    of_spread = torch.arange(first, cache.n, device=weights.device).repeat(spread.shape[1])
    of_local = of_spread.new_full((local.shape[1],), pos)
    positions = torch.cat([of_spread, of_local])[None]
    changed = blocks.project(weights, block, streams, cache.terms, positions)
    projected = changed.map(live_by_head, layer.projected)
    return blocks.attend_variants(weights, block, projected, past, cache.terms)


def _stack_variants(spread: Tensor, local: Tensor) -> Tensor:
    """Spread and local variants in one axis, for one product.

    `row variant live d_model, row variant d_model -> row vector d_model`
    """
    return torch.cat([spread.flatten(1, 2), local], dim=1)


def _unstack_variants(tensor: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The inverse of `_stack_variants`; `shape` is that of the spread variants."""
    count = shape[1] * shape[2]
    return tensor[:, :count].unflatten(1, shape[1:3]), tensor[:, count:]


def _set_at(unchanged: Tensor, changed: Tensor, index: int) -> Tensor:
    """Variants of a tensor, each with one position changed. `row pos ..., row variant ... -> row
    variant pos ...`
    """
    repeats = [1, changed.shape[1], *[1] * (unchanged.ndim - 1)]
    variants = unchanged[:, None].repeat(repeats)
    variants[:, :, index] = changed
    return variants


# --- pairs and their read-out ---------------------------------------------------------------------


class TokenPair(NamedTuple):
    """The token ids of both members of a pair, equal in number, and the position of their word."""

    ids: tuple[tuple[int, ...], tuple[int, ...]]
    at: int


def token_pairs(weights: Weights, a: Rows, b: Rows, depth: int) -> list[TokenPair]:
    """The token ids of every pair, to be traced up to a depth.

    Raises InputError for texts without a partner, for members of different length or with their
    words at different positions, and for a depth that the model does not have.
    """
    require_depth(weights, depth, TRACING)
    texts_a = target_texts(weights, a, TRACING)
    texts_b = target_texts(weights, b, TRACING)
    require_equal_lengths(texts_a, texts_b, TRACING)
    pairs = []
    for number, (member_a, member_b) in enumerate(zip(texts_a, texts_b, strict=True)):
        if member_a.at != member_b.at:
            raise InputError(
                f"{TRACING}: pair {number} has the word at positions {member_a.at} and "
                f"{member_b.at}, expected equal positions. Write the texts before the word equally "
                "long, or omit the pair."
            )
        pairs.append(TokenPair((member_a.ids, member_b.ids), member_a.at))
    return pairs


class PairReading(NamedTuple):
    """A pair and its read-out.

    directions: `direction d_model`
    gap: `direction`, <a - b, direction> at the word
    """

    cache: PairCache
    directions: Tensor
    gap: Tensor


def cache_pairs(
    weights: Weights,
    pairs: Sequence[TokenPair],
    directions: Tensor,
    depth: int,
    *,
    both_ways: bool = True,
) -> Iterator[PairReading]:
    """The runs of each pair. Each is run when it is requested, so only one has to be in memory.

    directions: `direction d_model`, or `pair direction d_model`, separate for each pair
    both_ways: whether both members are recipients, or only the first
    """
    by_pair = _directions_by_pair(weights, directions, len(pairs))
    for pair, along in zip(pairs, by_pair, strict=True):
        cache = cache_pair(weights, pair.ids, pair.at, depth)
        difference = cache.final[0, pair.at] - cache.final[1, pair.at]
        yield PairReading(cache if both_ways else cache.one_way(), along, difference @ along.T)


def cache_alike(
    weights: Weights,
    pairs: Sequence[TokenPair],
    directions: Tensor,
    depth: int,
    *,
    both_ways: bool = True,
) -> Iterator[tuple[list[int], PairCache, Tensor]]:
    """The runs of several pairs of the same layout at once, as many as fit into one batch: the
    numbers of the pairs, their runs, and the directions of each recipient, `recipient direction
    d_model`.

    The arguments are those of `cache_pairs`.
    """
    by_pair = _directions_by_pair(weights, directions, len(pairs))
    numbers_of = defaultdict(list)
    for number, pair in enumerate(pairs):
        numbers_of[len(pair.ids[0]), pair.at].append(number)
    for (length, at), numbers in numbers_of.items():
        at_once = max(1, BATCH_NUMBERS // (2 * length * weights.blocks[0].d_mlp))
        for start in range(0, len(numbers), at_once):
            batch = numbers[start : start + at_once]
            rows = [pairs[number].ids[member] for member in (0, 1) for number in batch]
            cache = cache_pair(weights, rows, at, depth)
            along = by_pair[batch].repeat(1 + both_ways, 1, 1)
            yield batch, cache if both_ways else cache.one_way(), along


def _directions_by_pair(weights: Weights, directions: Tensor, pairs: int) -> Tensor:
    """Checked directions, `pair direction d_model`, where the weights are."""
    directions = as_directions(
        weights, directions, TRACING, row_axes="pair direction d_model", rows=pairs
    )
    directions = directions.to(weights.device, weights.dtype)
    return directions.expand(pairs, *directions.shape[-2:])


def positions_from_word(
    pairs: Sequence[TokenPair], positions: Sequence[int] | None, name: str = "positions"
) -> tuple[int, ...]:
    """Positions counted from the word, where 0 is the word itself and -1 the token before it.

    They are the requested ones. By default they go from the first token in which the members of a
    pair differ to the word, or to the last such token if the model reads both ways.

    Raises InputError for an empty list and for positions outside a text.
    """
    if positions is not None:
        offsets = as_offsets(positions, name, TRACING)
    else:
        differing = _differing_positions(pairs)
        offsets = tuple(range(min(differing), max(0, *differing) + 1))
    for number, pair in enumerate(pairs):
        length = len(pair.ids[0])
        if not (0 <= pair.at + offsets[0] and pair.at + offsets[-1] < length):
            raise InputError(
                f"Cannot trace positions {offsets[0]} to {offsets[-1]} from the word: pair "
                f"{number} has {pair.at} tokens before the word and {length - 1 - pair.at} after "
                "it that are read. Trace pairs with another layout separately."
            )
    return offsets


def _differing_positions(pairs: Sequence[TokenPair]) -> list[int]:
    """The positions at which the members of a pair differ, counted from the word."""
    differing = []
    for (ids_a, ids_b), at in pairs:
        differing += [pos - at for pos in range(len(ids_a)) if ids_a[pos] != ids_b[pos]]
    if not differing:
        raise InputError(
            f"{TRACING} from the first token in which they differ to the word: got members that "
            "are the same up to the word, expected a cue before it. Read at a later position or "
            "give positions."
        )
    return differing


# --- a run with patched heads, and the text generated from it -------------------------------------


class PatchedRun(NamedTuple):
    """A run with patched heads.

    past: of every block, what later positions read; one row
    final: `pos d_model`, the output of the last block at the positions that were run again
    stream: `depth d_model`, the stream at the patched position
    """

    past: Sequence[Past]
    final: Tensor
    stream: Tensor


def run_with_patch(cache: PairCache, patch: HeadPatch) -> PatchedRun:
    """The run of row 0 with patched heads: from the patch on, or completely if the model reads
    both ways.
    """
    weights = cache.weights
    if len(cache.layers) != len(weights.blocks):
        raise ValueError(
            f"Cannot run with patched heads: got {len(cache.layers)} of {len(weights.blocks)} "
            f"blocks cached, expected all. Cache the pair up to the last depth."
        )
    start = patch.at if weights.causal else 0
    single = cache._rows(slice(1))
    past = [single.past(layer, start) for layer in range(len(cache.layers))]
    # There is a single variant, the patched one: its number is 0.
    zero = torch.zeros(1, dtype=torch.long, device=weights.device)
    heads = (patch.heads & weights.has_heads.to(patch.heads.device)[:, None]).to(weights.device)
    z = patch.z.to(weights.device, weights.dtype)
    edits = Edits(
        site=Z,
        tree=[Branch(parent=zero, edited=edited[None], variant_of=zero) for edited in heads],
        donor=lambda layer, recipient: z[layer, None, None],
    )
    at = zero + patch.at - start
    run = Run(weights, cache.terms, len(cache.layers), edits=edits, edit_at=at)
    with torch.inference_mode():
        entering = cache.layers[0].resid_pre[:1, start:]
        longer_past = []
        streams = [entering]
        for step, earlier in zip(run.steps(entering[:, None], past), past, strict=True):
            longer_past.append(_extended(earlier, step))
            streams.append(step.resid_post[:, 0])
        stream = torch.stack([resid[0, at[0]] for resid in streams])
    return PatchedRun(longer_past, streams[-1][0], stream)


def _extended(past: Past, step: Step) -> Past:
    """What later positions read of the earlier positions, then of those of a step."""
    parts = zip(past, step.read_later, strict=True)
    return tuple(torch.cat([earlier, live], dim=-2) for earlier, live in parts)


def generate(
    weights: Weights, run: PatchedRun, count: int, *, end: int | None = None
) -> Iterator[int]:
    """Up to `count` token ids, each the most likely one after the tokens before it. Stops at
    `end` and at the end of the context window.
    """
    past = run.past
    last = run.final[-1]
    n = past[0][0].shape[-2]
    count = min(count, weights.config.n_ctx - n)
    terms = blocks.position_terms(weights, n + max(0, count))
    one_token = Run(weights, terms, len(past))
    for pos in range(n, n + count):
        with torch.inference_mode():
            token = int(forward.unembed(weights, last).argmax())
        if token == end:
            return
        # Yielded before the block runs, because only the next token needs that run, and outside
        # inference mode, which a generator would leave switched on in its caller's thread.
        yield token
        with torch.inference_mode():
            ids = torch.tensor([[[token]]], device=weights.device)  # batch variant live
            entering = forward.embed(weights, ids, pos)
            longer_past = []
            for step, earlier in zip(one_token.steps(entering, past), past, strict=True):
                longer_past.append(_extended(earlier, step))
            past = longer_past
            last = step.resid_post[0, 0, 0]
