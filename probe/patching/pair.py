"""Two runs of a pair cached whole, and what becomes of a run whose residual stream is changed.

A change stands in the residual stream at one position and at one site: in front of the attention of
a block, or in front of its MLP. The donor's attention output, one head's z, the donor's MLP output:
each makes such a change. Behind it the run goes on in one of two ways:

    run_patched   everything behind the change responds. In a causal model it touches no position
                  before its own, so only the positions from there to the word are run again,
                  against the keys and values of the others.
    run_frozen    every head and every MLP behind it writes what it wrote. Where a family adds
                  writes as they are, the change stays what it is; where a norm stands behind the
                  sum or behind what is written, it goes through the norm.

One of the two may also be run again with chosen heads patched at one position (`run_with_patch`),
and what the model writes behind it follows token by token (`generate`): every token that is written
adds its own keys and values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from probe.errors import InputError
from probe.model import forward, fused
from probe.model.fused import KeysValues, PositionTables, Writer
from probe.model.weights import Block, Weights
from probe.patching.inputs import (
    Rows,
    as_directions,
    as_offsets,
    require_depth,
    require_equal_lengths,
    target_texts,
)
from probe.patching.variants import Branch, Edits, Run, Step, Z, embed_live, run_texts
from probe.progress import worked

TRACING = "Tracing pairs"  # what is done, as errors name it


class Part(IntEnum):
    """What a block is made of, in the order in which the stream passes it."""

    ATTENTION = 0
    MLP = 1


class Site(NamedTuple):
    """A place in the residual stream: in front of the attention, or of the MLP, of a layer.

    Sites sort in the order in which a run passes them. The end of a run is the site in front of the
    attention of the layer behind the last; the embeddings write behind `EMBEDDINGS`.
    """

    layer: int
    part: Part

    @property
    def behind(self) -> "Site":
        """The next site, behind what stands at this one."""
        if self.part is Part.ATTENTION:
            return Site(self.layer, Part.MLP)
        return Site(self.layer + 1, Part.ATTENTION)


EMBEDDINGS = Site(-1, Part.MLP)  # what writes in front of the first block


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


@dataclass(frozen=True, eq=False)
class PairCache:
    """The two runs of a pair, each the other's donor: row 0 is a, row 1 is b; the word stands at
    `at` in both. `final: row pos d_model`, the stream after the last of `layers`. Of several pairs
    all rows a stand in front of all rows b.

    With a `donor`, its rows give to these, row by row, and may be longer or shorter: what is given
    to a position here stands `shift` positions further there.
    """

    weights: Weights
    tables: PositionTables
    layers: tuple[LayerCache, ...]
    final: Tensor
    at: int
    donor: "PairCache | None" = None
    shift: int = 0

    @property
    def n(self) -> int:
        """How many tokens each of the two has."""
        return self.final.shape[1]

    @property
    def end(self) -> Site:
        """The site behind the last block."""
        return Site(len(self.layers), Part.ATTENTION)

    def donated(self, layer: int, name: str, pos: int) -> Tensor:
        """What a layer of the donor computed at a position, by its name in `LayerCache`. `row 1
        ...`"""
        if self.donor is None:
            own = getattr(self.layers[layer], name)[:, pos, None]
            return own.roll(len(own) // 2, 0)
        return getattr(self.donor.layers[layer], name)[:, pos + self.shift, None]

    def stream(self, site: Site) -> Tensor:
        """The stream at a site. `row pos d_model`"""
        if site == self.end:
            return self.final
        layer = self.layers[site.layer]
        return layer.resid_pre if site.part is Part.ATTENTION else layer.resid_mid

    def mlp_input(self, layer: int) -> Site:
        """The site whose stream the MLP of a layer reads: in front of the attention where the two
        stand side by side."""
        parallel = self.weights.config.family.parallel
        return Site(layer, Part.ATTENTION if parallel else Part.MLP)

    def one_way(self) -> "PairCache":
        """Row 0 as the only recipient, with row 1 as its donor."""
        return replace(self._row(0), donor=self._row(1))

    def _row(self, row: int) -> "PairCache":
        some = slice(row, row + 1)
        layers = tuple(LayerCache(*(part[some] for part in layer)) for layer in self.layers)
        return replace(self, layers=layers, final=self.final[some])

    def keys_read(self, pos: int) -> slice:
        """The positions that a query at `pos` reads."""
        return slice(pos + 1 if self.weights.causal else self.n)


class HeadPatch(NamedTuple):
    """z that chosen heads get at position `at`: `z: layer head d_head`, `heads: layer head`, True
    where patched."""

    at: int
    z: Tensor
    heads: Tensor


def cache_pair(weights: Weights, rows: Sequence[Sequence[int]], at: int, depth: int) -> PairCache:
    """Both runs of a pair, with all that the first `depth` blocks compute, at every position; or
    those of several pairs of equal length, all first members in front of all second ones."""
    tables = fused.position_tables(weights, len(rows[0]))
    layers = []
    for step in run_texts(weights, rows, depth, tables):
        layers.append(_cached(step))
    return PairCache(weights, tables, tuple(layers), step.everywhere(step.resid_post), at)


def _cached(step: Step) -> LayerCache:
    """All that a block of whole texts computes."""
    q, k, v = (part[:, 0] for part in step.projected)  # row head pos d_head
    return LayerCache(
        resid_pre=step.everywhere(step.resid_pre),
        q=q,
        k=k,
        v=v,
        z=step.everywhere(step.z),
        # A copy, because the MLP's write is added in place.
        resid_mid=step.everywhere(step.resid_mid).clone(),
        hidden=step.everywhere(step.hidden),
    )


# --- frozen ---------------------------------------------------------------------------------------


def run_frozen(cache: PairCache, pos: int, writes: Mapping[Site, Tensor], until: Site) -> Tensor:
    """How the stream at the site `until` changes at a position when some attentions and MLPs before
    it write otherwise there and every other one writes what it wrote.

    `writes: recipient variant d_model`, the change of what is written in front of any norm, by the
    site of the writer `-> recipient variant d_model`
    """
    # Where no norm stands behind the sum, what writes as it did passes a change on unchanged.
    norm_after_sum = cache.weights.config.family.norm_after_sum
    sites: Iterable[Site] = _sites_between(min(writes), until) if norm_after_sum else writes
    change = torch.zeros_like(next(iter(writes.values())))
    for site in sites:
        change = change_behind(cache, site, pos, change, writes.get(site, 0.0))
    return change


def _sites_between(first: Site, until: Site) -> Iterator[Site]:
    site = first
    while site < until:
        yield site
        site = site.behind


def change_behind(
    cache: PairCache, site: Site, pos: int, entering: Tensor, written: Tensor | float = 0.0
) -> Tensor:
    """How the stream behind a site changes at a position, from the change of the stream at the site
    and the change of what the attention or the MLP there writes. `recipient variant d_model`
    """
    weights = cache.weights
    family = weights.config.family
    if family.adds_plainly or site == EMBEDDINGS:
        return entering + written
    writer, x = _writer_at(weights.blocks[site.layer], cache.layers[site.layer], site.part)
    own = writer.written(x[:, pos, None])
    if family.norm_after_sum:
        resid = cache.stream(site)[:, pos, None]
        changed = fused.add(weights.config, writer, resid + entering, own + written)
        return changed - fused.add(weights.config, writer, resid, own)
    nothing = torch.zeros_like(own)
    changed = fused.add(weights.config, writer, nothing, own + written)
    return entering + changed - fused.add(weights.config, writer, nothing, own)


def _writer_at(block: Block, layer: LayerCache, part: Part) -> tuple[Writer, Tensor]:
    """What the attention or the MLP of a block writes with, and from what. `row pos input`"""
    if part is Part.ATTENTION:
        return fused.attention_of(block), layer.z.flatten(-2)
    return fused.mlp_of(block), layer.hidden


# --- patched --------------------------------------------------------------------------------------


def run_patched(
    cache: PairCache,
    pos: int,
    starts: Mapping[Site, Tensor],
    directions: Tensor | None = None,
) -> dict[Site, Tensor]:
    """How the word's vector after the last block changes with every change at position `pos`.
    `starts: row variant d_model` by the site at which it stands in the stream `-> row variant
    d_model` by the same sites; along `directions`, `direction d_model` or each row's own, `-> row
    variant direction`, for which the last MLP need not be written where writes are added as they
    are.

    This loop and `probe.patching.variants.Run` run the same blocks (`probe.model.fused`) and stay
    two. There the variants of many texts fork inside the blocks, by what is edited, and the keys
    and values of the unchanged text are forgotten block by block. Here a variant enters at any site
    and costs nothing before it, and until the first attention behind it it is one vector, whose
    neighbours are in the cache. One loop would carry each of these for the other, and be slower for
    both.
    """
    last = len(cache.layers) - 1
    unwritten = directions is not None and cache.weights.config.family.adds_plainly
    first = pos if cache.weights.causal else 0
    # A variant is `local`, changed at `pos` only, until an attention reads it; from there on it is
    # `spread` over the positions from `first` on.
    local = cache.final.new_zeros(len(cache.final), 0, cache.final.shape[-1])
    spread = local[:, :, None].expand(-1, -1, cache.n - first, -1)
    for number, layer in enumerate(cache.layers):
        block = cache.weights.blocks[number]
        worked(len(local) * (local.shape[1] + spread.shape[1] * spread.shape[2]))
        local = _with_starts(local, starts, Site(number, Part.ATTENTION))
        resid_mid = spread
        if local.shape[1] or spread.shape[1]:
            z = _attend(cache, number, spread, local, pos)
            here = _set_at(layer.resid_pre[:, first:], local, pos - first)
            spread = torch.cat([spread, here], dim=1)
            if number == last:  # behind the last attention only the word is wanted
                z = z[:, :, cache.at - first, None]
                spread = spread[:, :, cache.at - first, None]
            resid_mid = fused.write(cache.weights, block, spread, z)
        started = _with_starts(local[:, :0], starts, Site(number, Part.MLP))
        behind = _joined(resid_mid, started)
        entering = behind
        if cache.weights.config.family.parallel:  # elsewhere the MLP does not read what entered
            of_started = layer.resid_pre[:, pos, None].expand_as(started)
            entering = _joined(spread, of_started)
        if number == last and unwritten:
            assert directions is not None
            count = spread.shape[1]
            read = _read_unwritten(cache, entering, behind, directions)
            spread_moved, local_moved = read[:, :count], read[:, count:]
            local = local[:, :0]
        else:
            finished = fused.finish(cache.weights, block, entering, behind)
            spread, local = _parted(finished, spread.shape)
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
    if pos != cache.at:  # what is still local there has not reached the word
        local_moved = torch.zeros_like(local_moved)
    moved = torch.cat([spread_moved, local_moved], dim=1)
    # Variants have come in the order of their sites.
    sites = sorted(starts)
    counts = [starts[site].shape[1] for site in sites]
    return dict(zip(sites, moved.split(counts, dim=1), strict=True))


def _read_unwritten(
    cache: PairCache, entering: Tensor, behind: Tensor, directions: Tensor
) -> Tensor:
    """How far variants of the word move along directions behind the last MLP, whose activations are
    projected on these unwritten. `row variant d_model`, what the MLP reads and what it is added to
    `-> row variant direction`"""
    layer = cache.layers[-1]
    block = cache.weights.blocks[len(cache.layers) - 1]
    hidden = fused.activate(cache.weights, block, entering)
    stream_moved = behind - layer.resid_mid[:, cache.at, None]
    hidden_moved = hidden - layer.hidden[:, cache.at, None]
    return stream_moved @ directions.mT + hidden_moved @ (block.w_hidden @ directions.mT)


def _with_starts(local: Tensor, starts: Mapping[Site, Tensor], site: Site) -> Tensor:
    """The variants, with those that begin at a site behind them. `row variant d_model`"""
    return torch.cat([local, starts[site]], dim=1) if site in starts else local


def _attend(cache: PairCache, number: int, spread: Tensor, local: Tensor, pos: int) -> Tensor:
    """z of the live positions of the variants that are changed at all of them, then of those that
    are changed at `pos` only, whose queries, keys and values elsewhere are the run's own. `row
    variant live d_model, row variant d_model -> row variant live head d_head`
    """
    weights = cache.weights
    layer = cache.layers[number]
    block = weights.blocks[number]
    first = cache.n - spread.shape[2]
    of_spread = torch.arange(first, cache.n, device=weights.device).repeat(spread.shape[1])
    of_local = of_spread.new_full((local.shape[1],), pos)
    positions = torch.cat([of_spread, of_local])[None]
    projected = fused.project(weights, block, _joined(spread, local), cache.tables, positions)
    live = []
    for cached, changed in zip((layer.q, layer.k, layer.v), projected, strict=True):
        everywhere, at_pos = _parted(changed.transpose(1, 2), spread.shape)
        filled = _set_at(cached[:, :, first:].transpose(1, 2), at_pos, pos - first)
        variants = torch.cat([everywhere, filled], dim=1)
        live.append(variants.transpose(2, 3))  # row variant head live d_head
    before: KeysValues | None = None
    if first:
        before = (layer.k[:, :, :first], layer.v[:, :, :first])
    return fused.attend_among(weights, block, live, before, cache.tables)


def _joined(spread: Tensor, local: Tensor) -> Tensor:
    """Both side by side, for one product. `row variant live d_model, row variant d_model -> row
    vector d_model`"""
    return torch.cat([spread.flatten(1, 2), local], dim=1)


def _parted(joined: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The two again, the first with as many variants and live positions as the shape says."""
    count = shape[1] * shape[2]
    return joined[:, :count].unflatten(1, shape[1:3]), joined[:, count:]


def _set_at(whole: Tensor, changed: Tensor, index: int) -> Tensor:
    """Every variant of a tensor, with one position changed. `row pos ..., row variant ... -> row
    variant pos ...`"""
    repeats = [1, changed.shape[1], *[1] * (whole.ndim - 1)]
    variants = whole[:, None].repeat(repeats)
    variants[:, :, index] = changed
    return variants


# --- pairs and how they are read ------------------------------------------------------------------


class TokenPair(NamedTuple):
    """The token ids of both members of a pair, equally many, and the position of their word."""

    ids: tuple[tuple[int, ...], tuple[int, ...]]
    at: int


def token_pairs(weights: Weights, a: Rows, b: Rows, depth: int) -> list[TokenPair]:
    """The token ids of every pair, to be traced up to a depth. Raises InputError for texts without
    a partner, members of unequal length or with their words at unequal positions, and for a depth
    that the model does not have.
    """
    require_depth(weights, depth, TRACING)
    own = target_texts(weights, a, TRACING)
    others = target_texts(weights, b, TRACING)
    require_equal_lengths(own, others, TRACING)
    pairs = []
    for number, (one, other) in enumerate(zip(own, others, strict=True)):
        if one.at != other.at:
            raise InputError(
                f"{TRACING}: pair {number} has the word at positions {one.at} and {other.at}, "
                "expected the same in both; write what stands before the word equally long, or "
                "leave the pair out."
            )
        pairs.append(TokenPair((one.ids, other.ids), one.at))
    return pairs


class PairReading(NamedTuple):
    """A pair and how it is read: `directions: direction d_model` · `gap: direction`, <a - b,
    direction> at the word."""

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
    """Pair after pair run, each when it is asked for, so that where one is used once only one is
    in memory. `directions: direction d_model`, or `pair direction d_model` where each pair has its
    own · `both_ways`: whether both members are recipients, or the first alone.
    """
    directions = as_directions(
        weights, directions, TRACING, own="pair direction d_model", rows=len(pairs)
    )
    directions = directions.to(weights.device, weights.dtype)
    by_pair = directions.expand(len(pairs), *directions.shape[-2:])
    for pair, along in zip(pairs, by_pair, strict=True):
        cache = cache_pair(weights, pair.ids, pair.at, depth)
        difference = cache.final[0, pair.at] - cache.final[1, pair.at]
        yield PairReading(cache if both_ways else cache.one_way(), along, difference @ along.T)


def positions_from_word(
    pairs: Sequence[TokenPair], positions: Sequence[int] | None, name: str = "positions"
) -> tuple[int, ...]:
    """Positions counted from the word, 0 the word itself and -1 the token before it: those asked
    for, or from the first token in which the members of a pair differ to the word, and to the last
    one where the model reads both ways.

    Raises InputError where there are none and where a text does not reach as far.
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
                f"Tracing positions {offsets[0]} to {offsets[-1]} from the word: pair {number} has "
                f"{pair.at} tokens before the word and {length - 1 - pair.at} behind it that are "
                f"read; trace pairs of another layout apart."
            )
    return offsets


def _differing_positions(pairs: Sequence[TokenPair]) -> list[int]:
    """Where the members of a pair differ, counted from the word."""
    differing = []
    for (one, other), at in pairs:
        differing += [pos - at for pos in range(len(one)) if one[pos] != other[pos]]
    if not differing:
        raise InputError(
            f"{TRACING} from the first token in which they differ to the word: got members that "
            "are the same up to the word, expected a cue before it; read at a later position or "
            "give positions."
        )
    return differing


# --- a run with heads patched, and what is written after it ---------------------------------------


class PatchedRun(NamedTuple):
    """A run with heads patched: `kv_cache`, keys and values of every block, `1 kv_head pos d_head`
    · `final: pos d_model`, what left the last block at the positions run again · `stream: depth
    d_model`, the vector at the patched position.
    """

    kv_cache: Sequence[KeysValues]
    final: Tensor
    stream: Tensor


def run_with_patch(cache: PairCache, patch: HeadPatch) -> PatchedRun:
    """The run of row 0 with heads patched: from the patch on, or whole where the model reads both
    ways."""
    weights = cache.weights
    if len(cache.layers) != len(weights.blocks):
        raise ValueError(
            f"Running with patched heads: got {len(cache.layers)} of {len(weights.blocks)} blocks "
            f"cached, expected all; cache the pair up to the last depth."
        )
    start = patch.at if weights.causal else 0
    before = [(layer.k[:1, :, :start], layer.v[:1, :, :start]) for layer in cache.layers]
    # There is one variant, the patched one.
    one = torch.zeros(1, dtype=torch.long, device=weights.device)
    heads = (patch.heads & weights.has_heads.to(patch.heads.device)[:, None]).to(weights.device)
    z = patch.z.to(weights.device, weights.dtype)
    edits = Edits(
        site=Z,
        tree=[Branch(parent=one, edited=edited[None], variant_of=one) for edited in heads],
        donor=lambda layer, own: z[layer, None, None],
    )
    at = one + patch.at - start
    run = Run(weights, cache.tables, len(cache.layers), edits=edits, at=at)
    with torch.inference_mode():
        entering = cache.layers[0].resid_pre[:1, start:]
        kv_cache = []
        streams = [entering]
        for step, earlier in zip(run.steps(entering[:, None], before), before, strict=True):
            kv_cache.append(_extended(earlier, step))
            streams.append(step.resid_post[:, 0])
        stream = torch.stack([resid[0, at[0]] for resid in streams])
    return PatchedRun(kv_cache, streams[-1][0], stream)


def _extended(earlier: KeysValues, step: Step) -> KeysValues:
    """Keys and values of the positions before a step and of its own. `row kv_head pos d_head`,
    twice"""
    _, k, v = step.projected
    return torch.cat([earlier[0], k[:, 0]], dim=-2), torch.cat([earlier[1], v[:, 0]], dim=-2)


def generate(
    weights: Weights, run: PatchedRun, count: int, *, end: int | None = None
) -> Iterator[int]:
    """Up to `count` token ids, each the likeliest after those before it, as far as `end` and the
    context window."""
    kv_cache = run.kv_cache
    last = run.final[-1]
    n = kv_cache[0][0].shape[-2]
    count = min(count, weights.config.n_ctx - n)
    tables = fused.position_tables(weights, n + max(0, count))
    one_token = Run(weights, tables, len(kv_cache))
    for pos in range(n, n + count):
        with torch.inference_mode():
            token = int(forward.unembed(weights, last).argmax())
            if token == end:
                return
            ids = torch.tensor([[[token]]], device=weights.device)  # batch variant live
            entering = embed_live(weights, ids, pos)
            # The token is out before the block runs that only the next one needs.
            yield token
            extended = []
            for step, earlier in zip(one_token.steps(entering, kv_cache), kv_cache, strict=True):
                extended.append(_extended(earlier, step))
            kv_cache = extended
            last = step.resid_post[0, 0, 0]
