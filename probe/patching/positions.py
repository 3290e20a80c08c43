"""Causal trace: one part of the donor's run is put into the recipient's at one layer and one
position.

    resid_pre   the residual stream that enters a block
    attn_out    the write of all heads of a block together
    mlp_out     the write of its MLP
    a head      its z alone

Everything later is live. Every patch is performed, at every layer and at every position from the
cue to the word; none is approximated. Both members of a pair are recipients: `a` gets the part of
`b`, and `b` the part of `a`. The effect is how far the word's vector moves along the directions.

Source: Meng et al. 2022 (causal tracing); Heimersheim & Nanda 2024 (activation patching, denoising
    and noising).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.model import blocks
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

COMPONENTS = ("resid_pre", "attn_out", "mlp_out")
HEAD = "head"


@dataclass(frozen=True, eq=False)
class PositionTrace:
    """How far the read-out moves, for each pair.

    positions: counted from the word; 0 is the word and -1 the token before it
    gap: `pair direction`, <a - b, direction> of the unchanged runs
    stream: `pair recipient component layer pos direction`, in the order of COMPONENTS
    heads: `pair recipient layer head pos direction`; None if not requested, NaN in layers without
        attention, where `attn_out` is the mixer's write

    Recipient 0 is `a` with a part of `b`, recipient 1 is `b` with a part of `a`.
    """

    positions: tuple[int, ...]
    gap: Tensor
    stream: Tensor
    heads: Tensor | None

    def rows(self, direction: int = 0) -> list[dict[str, object]]:
        """One row for each pair, component, layer, head and position.

        `denoise` is how far the member of `against` moves to that of `texts`, `noise` how far the
        latter moves to the former, and `gap` the pair's gap, all in the direction's unit.
        """
        parts: list[tuple[str, int | None, Tensor]] = []
        for number, name in enumerate(COMPONENTS):
            parts.append((name, None, self.stream[:, :, number]))
        if self.heads is not None:
            parts += [(HEAD, head, effect) for head, effect in enumerate(self.heads.unbind(3))]
        gap = self.gap[:, direction].tolist()
        rows: list[dict[str, object]] = []
        for name, head, effect in parts:
            values = effect[..., direction].double().numpy()
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
                        "noise": -noise,  # toward b, while the axis points to a
                        "gap": gap[pair],
                    }
                )
        return rows


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
    """How far the read-out moves if one run gets the other's residual stream, attention output,
    MLP output or one head's z, at one layer and one position.

    texts, against: as in `swap_pairs`, the members of pairs of equal length
    directions: `direction d_model`, or `pair direction d_model`, separate for each pair
    depth: the number of blocks before the read-out
    positions: counted from the word; by default from the first difference to the word
    heads: whether to trace single heads
    both_ways: whether `against` is a recipient as well; otherwise only `texts` is

    Raises InputError for pairs of different length or layout, and for a depth that the model does
    not have.

    Example:
        >>> from probe.model.trace import target_states
        >>> from probe.patching.positions import trace_positions
        >>> model = probe.load("tiny-senses")
        >>> texts = [probe.tokenize(model, f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = target_states(model, texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> traced = trace_positions(model, rows[:1], rows[1:], direction, depth=4)
        >>> traced.positions  # the cue is one token before the word
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
            shifts = effects(reading.cache, offsets, reading.directions, parts)
            for part in parts:
                by_part[part].append(shifts[part])
            gaps.append(reading.gap)
        results = {part: torch.stack(tensors).cpu() for part, tensors in by_part.items()}
        if heads:  # layers without attention have no heads
            results[HEAD][:, :, ~weights.has_heads[:depth].cpu()] = torch.nan
        gap = torch.stack(gaps).cpu()
    # Clones made outside inference mode are ordinary tensors.
    return PositionTrace(
        positions=offsets,
        gap=gap.clone(),
        stream=torch.stack([results[part][:, :, :, 0] for part in COMPONENTS], dim=2),
        heads=results[HEAD].clone() if heads else None,
    )


# How the change of the word's vector is read: along directions, `reading d_model` or `row reading
# d_model`, or by a function, `row variant d_model -> row variant reading`.
Read = Tensor | Callable[[Tensor], Tensor]


def effects(
    cache: PairCache,
    offsets: Sequence[int],
    read: Read,
    parts: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """How far the read-out moves if a part of one layer at one position is the donor's, by part.

    `recipient layer variant pos reading`

    offsets: positions counted from the word
    parts: some of COMPONENTS, with one variant for each layer, and HEAD, with one for each head
    layers: all by default
    """
    if layers is None:
        layers = range(len(cache.layers))
    by_pos: dict[str, list[Tensor]] = {part: [] for part in parts}
    for offset in offsets:
        shifts = _effects_at(cache, cache.at + offset, read, parts, layers)
        for part in parts:
            by_pos[part].append(torch.stack([shifts[part, layer] for layer in layers], dim=1))
    return {part: torch.stack(tensors, dim=3) for part, tensors in by_pos.items()}


def _effects_at(
    cache: PairCache,
    pos: int,
    read: Read,
    parts: Sequence[str],
    layers: Sequence[int],
) -> dict[tuple[str, int], Tensor]:
    """`effects` at one position, by part and layer. `recipient variant reading`"""
    # Several changes can be at the same site; these are run together.
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
    # Read in one call, because the cost of a reading may hardly depend on the number of variants.
    read_out = torch.cat([changes[site] for site in sites], dim=1)
    if not isinstance(read, Tensor):
        read_out = read(read_out)
    counts = [stream.shape[1] for site in sites for _, stream in at_site[site]]
    keys = [key for site in sites for key, _ in at_site[site]]
    return dict(zip(keys, read_out.split(counts, dim=1), strict=True))


# A changed stream, `recipient variant d_model`, and its site. A page shows the code of the
# functions below.
Donated = tuple[Site, Tensor]


def donated_stream(cache: PairCache, layer: int, pos: int) -> Donated:
    """The stream that enters the block, from the other run."""
    return Site(layer, Part.ATTENTION), cache.donated(layer, "resid_pre", pos)


def donated_attention(cache: PairCache, layer: int, pos: int) -> Donated:
    """The recipient's stream plus the write of all heads with the other run's z."""
    resid = cache.layers[layer].resid_pre[:, pos, None]
    z = cache.donated(layer, "z", pos)
    block = cache.weights.blocks[layer]
    return Site(layer, Part.MLP), blocks.after_attention(cache.weights, block, resid, z)


def donated_neurons(cache: PairCache, layer: int, pos: int) -> Donated:
    """The recipient's stream plus the write of the MLP with the other run's activations."""
    resid_mid = cache.layers[layer].resid_mid[:, pos, None]
    hidden = cache.donated(layer, "hidden", pos)
    block = cache.weights.blocks[layer]
    site = Site(layer, Part.MLP).behind
    return site, blocks.after_mlp(cache.weights, block, resid_mid, hidden)


def donated_heads(cache: PairCache, layer: int, pos: int) -> Donated:
    """For each head, the recipient's stream with that head's z from the other run."""
    weights = cache.weights
    block = weights.blocks[layer]
    writer = blocks.attention_writer(weights, block)
    z = cache.layers[layer].z[:, pos]  # row head d_head
    change = cache.donated(layer, "z", pos)[:, 0] - z
    if block.mixer is not None:  # without heads, there is nothing to change
        change = torch.zeros_like(change).expand(-1, weights.shape[1], -1)
    # One product for each head: the write of all heads changes by the change of one head.
    w_o = block.w_o.expand(change.shape[1], -1, -1)
    changed = torch.einsum("rhe,hed->rhd", change, w_o)
    write = writer.write(z.flatten(1))[:, None] + changed
    resid = cache.layers[layer].resid_pre[:, pos, None]
    return Site(layer, Part.MLP), blocks.add_write(weights.config, writer, resid, write)


_DONATED: dict[str, Callable[[PairCache, int, int], Donated]] = {
    "resid_pre": donated_stream,
    "attn_out": donated_attention,
    "mlp_out": donated_neurons,
    HEAD: donated_heads,
}
