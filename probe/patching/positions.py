"""Where the sense travels: one part of the donor's run put in at one layer and one position,
everything behind it live.

    resid_pre   the residual stream that enters a block
    attn_out    what all heads of a block write together
    mlp_out     what its MLP writes
    a head      its z alone

Each is performed, none is approximated, at every layer and at every position from the cue to the
word, both ways: `a` gets the part of `b`, and `b` that of `a`. The effect is how far the word's
vector moves along the given directions.

Source: Meng et al. 2022 (causal tracing); Heimersheim & Nanda 2024 (activation patching, denoising
and noising).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.model import fused
from probe.model.load import ModelSource, read_weights
from probe.model.weights import Weights
from probe.patching.inputs import Rows
from probe.patching.pair import (
    PairCache,
    Part,
    Site,
    cache_pairs,
    positions_from_word,
    run_patched,
    token_pairs,
)
from probe.renamed import renamed

COMPONENTS = ("resid_pre", "attn_out", "mlp_out")
HEAD = "head"


@dataclass(frozen=True, eq=False)
class PositionTrace:
    """How far the read-out moves, pair by pair; recipient 0 is `a` with a part of `b`, recipient 1
    the other way round.

    `positions`: counted from the word, 0 the word and -1 the token before it · `gap: pair
    direction`, <a - b, direction> of the unchanged runs · `stream: pair recipient component layer
    pos direction`, by COMPONENTS · `heads: pair recipient layer head pos direction`, None where
    they were not asked for, NaN in layers without attention, whose `attn_out` is what the mixer in
    its place writes.
    """

    positions: tuple[int, ...]
    gap: Tensor
    stream: Tensor
    heads: Tensor | None

    def rows(self, direction: int = 0) -> list[dict[str, object]]:
        """One row a pair, component, layer, head and position:

        `denoise`, how far the member of `against` moves to that of `texts`, `noise`, how far the
        latter moves to the former, and the pair's `gap`, in the direction's unit.
        """
        parts: list[tuple[str, int | None, Tensor]] = []
        for number, name in enumerate(COMPONENTS):
            parts.append((name, None, self.stream[:, :, number]))
        if self.heads is not None:
            parts += [(HEAD, head, moved) for head, moved in enumerate(self.heads.unbind(3))]
        gap = self.gap[:, direction].tolist()
        rows: list[dict[str, object]] = []
        for name, head, moved in parts:
            values = moved[..., direction].double().numpy()
            for pair, layer, pos in np.ndindex(values.shape[0], *values.shape[2:]):
                noise, denoise = values[pair, :, layer, pos].tolist()
                if np.isnan(noise):  # the layer has no heads
                    continue
                rows.append(
                    {
                        "pair": pair,
                        "component": name,
                        "layer": layer,
                        "head": head,
                        "pos": self.positions[pos],
                        "denoise": denoise,
                        "noise": -noise,  # towards b, where the axis points to a
                        "gap": gap[pair],
                    }
                )
        return rows


@renamed(weights="model", a="texts", b="against")
def trace_positions(
    model: ModelSource | Weights,
    texts: Rows,
    against: Rows,
    directions: Tensor,
    *,
    depth: int,
    positions: Sequence[int] | None = None,
    heads: bool = True,
    both_ways: bool = True,
) -> PositionTrace:
    """Put the other member's residual stream, attention output, MLP output and every head's z into
    each run, one layer and one position at a time.

    `texts` and `against` as in `swap_pairs`, the members of a pair of equal length · `directions:
    direction d_model`, or `pair direction d_model` where each pair has its own · `depth`: how many
    blocks stand before the read-out · `positions`: counted from the word; those from the first
    difference to the word by default · `both_ways`: whether `against` is a recipient, too; else
    `texts` are the only ones. Raises InputError for pairs of unequal length or layout, and for a
    depth that the model does not have.

    Example:
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states(model, texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> traced = probe.trace_positions(model, rows[:1], rows[1:], direction, depth=4)
        >>> traced.positions  # the cue stands one token before the word
        (-1, 0)
        >>> traced.heads.shape  # pair recipient layer head position direction
        torch.Size([1, 2, 4, 4, 2, 1])
    """
    weights = read_weights(model)
    pairs = token_pairs(weights, texts, against, depth)
    offsets = positions_from_word(pairs, positions)
    parts = [*COMPONENTS, HEAD] if heads else [*COMPONENTS]
    by_part: dict[str, list[Tensor]] = {part: [] for part in parts}
    gaps = []
    with torch.inference_mode():
        for reading in cache_pairs(weights, pairs, directions, depth, both_ways=both_ways):
            moved = effects(reading.cache, offsets, reading.directions, parts)
            for part in parts:
                by_part[part].append(moved[part])
            gaps.append(reading.gap)
        every = {part: torch.stack(tensors).cpu() for part, tensors in by_part.items()}
        if heads:  # there is nothing to say of heads that are not there
            every[HEAD][:, :, ~weights.has_heads[:depth].cpu()] = torch.nan
        gap = torch.stack(gaps).cpu()
    # Clones made outside inference mode are ordinary tensors.
    return PositionTrace(
        positions=offsets,
        gap=gap.clone(),
        stream=torch.stack([every[part][:, :, :, 0] for part in COMPONENTS], dim=2),
        heads=every[HEAD].clone() if heads else None,
    )


# What is read of how the word's vector changes: how far it moves along directions, `reading
# d_model` or `row reading d_model`, or a function, `row variant d_model -> row variant reading`.
Read = Tensor | Callable[[Tensor], Tensor]


def effects(
    cache: PairCache,
    offsets: Sequence[int],
    read: Read,
    parts: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """How far the read-out moves when a part of one layer at one position is the donor's.

    `offsets`: positions counted from the word · `parts`: of COMPONENTS, which are one variant a
    layer, and HEAD, which is one a head · `layers`: all where none are asked for `-> part:
    recipient layer variant pos reading`
    """
    if layers is None:
        layers = range(len(cache.layers))
    by_pos: dict[str, list[Tensor]] = {part: [] for part in parts}
    for offset in offsets:
        moved = _effects_at(cache, cache.at + offset, read, parts, layers)
        for part in parts:
            by_pos[part].append(torch.stack([moved[part, layer] for layer in layers], dim=1))
    return {part: torch.stack(tensors, dim=3) for part, tensors in by_pos.items()}


def _effects_at(
    cache: PairCache,
    pos: int,
    read: Read,
    parts: Sequence[str],
    layers: Sequence[int],
) -> dict[tuple[str, int], Tensor]:
    """The same at one position, by part and layer. `recipient variant reading`"""
    # Changes of several parts can stand at one site; all that stand there are run together.
    at_site: dict[Site, list[tuple[tuple[str, int], Tensor]]] = defaultdict(list)
    for part in parts:
        for layer in layers:
            site, stream = _DONATED[part](cache, layer, pos)
            at_site[site].append(((part, layer), stream))
    starts = {
        site: torch.cat([stream for _, stream in changes], dim=1)
        for site, changes in at_site.items()
    }
    directions = read if isinstance(read, Tensor) else None
    changes = run_patched(cache, pos, starts, directions)
    sites = list(changes)
    # Read all at once: what a reading costs may hardly depend on how many variants it is of.
    read_out = torch.cat([changes[site] for site in sites], dim=1)
    if not isinstance(read, Tensor):
        read_out = read(read_out)
    counts = [len_of for site in sites for len_of in _variants(at_site[site])]
    keys = [key for site in sites for key, _ in at_site[site]]
    return dict(zip(keys, read_out.split(counts, dim=1), strict=True))


def _variants(changes: Sequence[tuple[tuple[str, int], Tensor]]) -> list[int]:
    """How many variants each change has."""
    return [stream.shape[1] for _, stream in changes]


# Where a changed stream stands, `recipient variant d_model`. A page shows the code of these
# functions.
Donated = tuple[Site, Tensor]


def donated_stream(cache: PairCache, layer: int, pos: int) -> Donated:
    """The stream that enters the block: that of the other run."""
    return Site(layer, Part.ATTENTION), cache.donated(layer, "resid_pre", pos)


def donated_attention(cache: PairCache, layer: int, pos: int) -> Donated:
    """The own stream with what all heads write from the other run's z."""
    resid = cache.layers[layer].resid_pre[:, pos, None]
    z = cache.donated(layer, "z", pos)
    block = cache.weights.blocks[layer]
    return Site(layer, Part.MLP), fused.write(cache.weights, block, resid, z)


def donated_neurons(cache: PairCache, layer: int, pos: int) -> Donated:
    """The own stream with what the MLP writes from the other run's activations."""
    resid_mid = cache.layers[layer].resid_mid[:, pos, None].clone()
    hidden = cache.donated(layer, "hidden", pos)
    block = cache.weights.blocks[layer]
    site = Site(layer, Part.MLP).behind
    return site, fused.write_mlp(cache.weights, block, resid_mid, hidden)


def donated_heads(cache: PairCache, layer: int, pos: int) -> Donated:
    """For each head, the own stream with that head's z from the other run."""
    weights = cache.weights
    block = weights.blocks[layer]
    writer = fused.attention_of(block)
    own = cache.layers[layer].z[:, pos]  # row head d_head
    change = cache.donated(layer, "z", pos)[:, 0] - own
    if block.mixer is not None:  # there are no heads, so nothing is given
        change = torch.zeros_like(change).expand(-1, weights.shape[1], -1)
    # One product a head: all of them together write otherwise by what one of them does.
    w_o = block.w_o.expand(change.shape[1], -1, -1)
    changed = torch.einsum("rhe,hed->rhd", change, w_o)
    written = writer.written(own.flatten(1))[:, None] + changed
    resid = cache.layers[layer].resid_pre[:, pos, None]
    return Site(layer, Part.MLP), fused.add(weights.config, writer, resid, written)


_DONATED: dict[str, Callable[[PairCache, int, int], Donated]] = {
    "resid_pre": donated_stream,
    "attn_out": donated_attention,
    "mlp_out": donated_neurons,
    HEAD: donated_heads,
}
