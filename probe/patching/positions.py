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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.model import fused
from probe.model.weights import Weights
from probe.patching.heads import Rows
from probe.patching.pair import (
    PairCache,
    Point,
    cache_pairs,
    positions_from_word,
    run_patched,
    token_pairs,
)

COMPONENTS, HEAD = ("resid_pre", "attn_out", "mlp_out"), "head"


@dataclass(frozen=True, eq=False)
class PositionTrace:
    """How far the read-out moves, pair by pair; recipient 0 is `a` with a part of `b`, recipient 1
    the other way round.

    `positions`: counted from the word, 0 the word and -1 the token before it · `gap: pair
    direction`, <a - b, direction> of the unchanged runs · `stream: pair recipient component layer
    pos direction`, by COMPONENTS · `heads: pair recipient layer head pos direction`, None where
    they were not asked for.
    """

    positions: tuple[int, ...]
    gap: Tensor
    stream: Tensor
    heads: Tensor | None

    def rows(self, direction: int = 0) -> list[dict[str, object]]:
        """One row a pair, component, layer, head and position:

        `denoise`, how far b moves to a, `noise`, how far a moves to b, and the pair's `gap`, in the
        direction's unit.
        """
        parts: list[tuple[str, int | None, Tensor]]
        parts = [(name, None, self.stream[:, :, number]) for number, name in enumerate(COMPONENTS)]
        parts += (
            []
            if self.heads is None
            else [(HEAD, head, moved) for head, moved in enumerate(self.heads.unbind(3))]
        )
        rows, gap = list[dict[str, object]](), self.gap[:, direction].tolist()
        for name, head, moved in parts:
            values = moved[..., direction].double().numpy()
            for pair, layer, pos in np.ndindex(values.shape[0], *values.shape[2:]):
                place = {
                    "pair": pair,
                    "component": name,
                    "layer": layer,
                    "head": head,
                    "pos": self.positions[pos],
                }
                noise, denoise = (values[pair, :, layer, pos] * (-1, 1)).tolist()
                rows.append(place | {"denoise": denoise, "noise": noise, "gap": gap[pair]})
        return rows


def trace_positions(
    weights: Weights,
    a: Rows,
    b: Rows,
    directions: Tensor,
    *,
    depth: int,
    positions: Sequence[int] | None = None,
    heads: bool = True,
) -> PositionTrace:
    """Put the other member's residual stream, attention output, MLP output and every head's z into
    each run, one layer and one position at a time.

    `a` and `b` as in `swap_pairs`, the members of a pair of equal length · `directions: direction
    d_model`, or `pair direction d_model` where each pair has its own · `depth`: how many blocks
    stand before the read-out · `positions`: counted from the word; those from the first difference
    to the word where none are given. Raises InputError for pairs of unequal length or layout, and
    for a depth that the model does not have.

    Example:
        >>> weights = probe.read_weights("tiny-senses")
        >>> texts = [probe.tokenize("tiny-senses", f"The {cue} bank") for cue in ("river", "money")]
        >>> rows = [tokens.ids for tokens in texts]
        >>> last = [len(row) - 1 for row in rows]
        >>> states = probe.target_states("tiny-senses", texts, last)
        >>> direction = (states.resid[0, -1] - states.resid[1, -1])[None]
        >>> traced = probe.trace_positions(weights, rows[:1], rows[1:], direction, depth=4)
        >>> traced.positions  # the cue stands one token before the word
        (-1, 0)
        >>> traced.heads.shape  # pair recipient layer head position direction
        torch.Size([1, 2, 4, 4, 2, 1])
    """
    pairs = token_pairs(weights, a, b, depth)
    offsets = positions_from_word(pairs, positions)
    parts = [*COMPONENTS, HEAD] if heads else COMPONENTS
    with torch.inference_mode():
        read = cache_pairs(weights, pairs, directions, depth)
        moved = [
            effects(one.cache, offsets, one.directions, parts) | {"gap": one.gap} for one in read
        ]
        every = {name: torch.stack([one[name] for one in moved]).cpu() for name in (*parts, "gap")}
    stream = torch.stack([every[part][:, :, :, 0] for part in COMPONENTS], dim=2)
    return PositionTrace(
        offsets, every["gap"].clone(), stream, every[HEAD].clone() if heads else None
    )


def effects(
    cache: PairCache,
    offsets: Sequence[int],
    directions: Tensor,
    parts: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """How far the read-out moves when a part of one layer at one position is the donor's.

    `parts`: of COMPONENTS, which are one variant a layer, and HEAD, which is one a head · `layers`:
    all where none are given `-> part: recipient layer variant pos direction`
    """
    layers, found = range(len(cache.layers)) if layers is None else layers, list[list[Tensor]]()
    for pos in (cache.at + offset for offset in offsets):
        given = {
            (part, layer): _DONATED[part](cache, layer, pos) for part in parts for layer in layers
        }
        starts: dict[Point, list[Tensor]] = {}
        for point, vectors in given.values():
            starts.setdefault(point, []).append(vectors)
        moved = run_patched(
            cache,
            pos,
            {point: torch.cat(some, dim=1) for point, some in starts.items()},
            directions,
        )
        apart = {
            point: iter(moved[point].split([one.shape[1] for one in some], 1))
            for point, some in starts.items()
        }
        by_part = ([next(apart[given[part, layer][0]]) for layer in layers] for part in parts)
        found.append([torch.stack(by_layer, dim=1) for by_layer in by_part])
    return {
        part: torch.stack(by_pos, dim=3)
        for part, by_pos in zip(parts, zip(*found, strict=True), strict=True)
    }


# Where a changed stream stands, `recipient variant d_model`. A page shows the code of these
# functions.
Donated = tuple[Point, Tensor]


def donated_stream(cache: PairCache, layer: int, pos: int) -> Donated:
    """The stream that enters the block: that of the other run."""
    return 2 * layer, cache.layers[layer].resid_pre[:, pos, None].roll(1, 0)


def donated_attention(cache: PairCache, layer: int, pos: int) -> Donated:
    """The own stream with what all heads write from the other run's z."""
    step, block = cache.layers[layer], cache.weights.blocks[layer]
    resid, z = step.resid_pre[:, pos, None], step.z[:, pos, None].roll(1, 0)
    return 2 * layer + 1, fused.write(cache.weights, block, resid, z)


def donated_neurons(cache: PairCache, layer: int, pos: int) -> Donated:
    """The own stream with what the MLP writes from the other run's activations."""
    step, block = cache.layers[layer], cache.weights.blocks[layer]
    resid_mid, hidden = step.resid_mid[:, pos, None].clone(), step.hidden[:, pos, None].roll(1, 0)
    return 2 * layer + 2, fused.write_mlp(cache.weights, block, resid_mid, hidden)


def donated_heads(cache: PairCache, layer: int, pos: int) -> Donated:
    """For each head, the own stream with that head's z from the other run."""
    weights, step = cache.weights, cache.layers[layer]
    one = torch.eye(weights.shape[1], dtype=torch.bool, device=weights.device)[..., None]
    own, resid = step.z[:, pos, None], step.resid_pre[:, pos, None].expand(-1, len(one), -1)
    return 2 * layer + 1, fused.write(
        weights, weights.blocks[layer], resid, torch.where(one, own.roll(1, 0), own)
    )


_DONATED: dict[str, Callable[[PairCache, int, int], Donated]] = {
    **dict(zip(COMPONENTS, (donated_stream, donated_attention, donated_neurons), strict=True)),
    HEAD: donated_heads,
}
