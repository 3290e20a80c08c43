"""Where the sense travels: one part of the donor's run put in at one layer and one position, everything behind it live.

    resid_pre   the residual stream that enters a block
    attn_out    what all heads of a block write together
    mlp_out     what its MLP writes
    a head      its z alone

Each is performed, none is approximated, at every layer and at every position from the cue to the word, both ways: `a`
gets the part of `b`, and `b` that of `a`. The effect is how far the word's vector moves along the given directions.

Source: Meng et al. 2022 (causal tracing); Heimersheim & Nanda 2024 (activation patching, denoising and noising).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probe.model.weights import Weights
from probe.patching import engine, live
from probe.patching.live import Both, Point
from probe.patching.swaps import Rows

COMPONENTS = ("resid_pre", "attn_out", "mlp_out")


@dataclass(frozen=True, eq=False)
class PositionTrace:
    """How far the read-out moves, pair by pair; recipient 0 is `a` with a part of `b`, recipient 1 the other way round.

    `positions`: counted from the word, 0 the word and -1 the token before it · `gap: pair direction`, <a - b,
    direction> of the unchanged runs · `stream: pair recipient component layer pos direction`, by COMPONENTS · `heads:
    pair recipient layer head pos direction`, None where they were not asked for.
    """

    positions: tuple[int, ...]
    gap: Tensor
    stream: Tensor
    heads: Tensor | None

    def rows(self, direction: int = 0) -> list[dict[str, object]]:
        """One row a pair, component, layer, head and position:

        `denoise`, how far b moves to a, `noise`, how far a moves to b, and the pair's `gap`, in the direction's unit.
        """
        whole = [(name, None, self.stream[:, :, number]) for number, name in enumerate(COMPONENTS)]
        heads = [] if self.heads is None else self.heads.unbind(3)
        parts = [*whole, *(("head", number, moved) for number, moved in enumerate(heads))]
        return [row for part in parts for row in self._rows(*part, direction)]

    def _rows(self, name: str, head: int | None, moved: Tensor, direction: int) -> Iterator[dict[str, object]]:
        values, gap = moved[..., direction].double().numpy(), self.gap[:, direction].tolist()
        for pair, layer, pos in np.ndindex(values.shape[0], *values.shape[2:]):
            noise, denoise = values[pair, :, layer, pos] * (-1, 1)
            place = {"pair": pair, "component": name, "layer": layer, "head": head, "pos": self.positions[pos]}
            yield place | {"denoise": float(denoise), "noise": float(noise), "gap": gap[pair]}


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
    """Put the other member's residual stream, attention output, MLP output and every head's z into each run, one layer
    and one position at a time.

    `a` and `b` as in `swap_pairs`, the members of a pair of equal length · `directions: direction d_model`, or `pair
    direction d_model` where each pair has its own · `depth`: how many blocks stand before the read-out · `positions`:
    counted from the word; those from the first difference to the word where none are given. Raises InputError for pairs
    of unequal length or layout, and for a depth that the model does not have.
    """
    pairs = live.pairs_of(weights, a, b, depth)
    offsets = live.offsets_of(weights, pairs, positions)
    stream, singles, gaps = [], [], []
    with torch.inference_mode():
        for (rows, at), along in zip(pairs, live.directions_of(weights, directions, len(pairs)), strict=True):
            both = live.keep(weights, rows, at, depth)
            gaps.append((both.final[0, at] - both.final[1, at]) @ along.T)
            stream.append(effects_of_stream(both, offsets, along))
            if heads:
                singles.append(effects_of_heads(both, offsets, along))
        found = [torch.stack(part).cpu() if part else None for part in (gaps, stream, singles)]
    gap, whole, each = (part if part is None else part.clone() for part in found)
    assert gap is not None and whole is not None
    return PositionTrace(offsets, gap, whole, each)


def effects_of_heads(both: Both, offsets: Sequence[int], directions: Tensor) -> Tensor:
    """How far the read-out moves when one head's z at one position is the donor's.

    `-> recipient layer head pos direction`
    """
    layers = range(len(both.steps))
    found = []
    for offset in offsets:
        moved = live.go_on(both, both.at + offset, _head_starts(both, both.at + offset), directions)
        found.append(torch.stack([moved[layer, "mid"] for layer in layers], dim=1))
    return torch.stack(found, dim=3)


def effects_of_stream(both: Both, offsets: Sequence[int], directions: Tensor) -> Tensor:
    """The same of the stream, the attention output and the MLP output.

    `-> recipient component layer pos direction`
    """
    layers = range(len(both.steps))
    found = []
    for offset in offsets:
        moved = live.go_on(both, both.at + offset, _stream_starts(both, both.at + offset), directions)
        parts = [[moved[place][:, which] for place in places] for which, places in _places_of(layers)]
        found.append(torch.stack([torch.stack(part, dim=1) for part in parts], dim=1))
    return torch.stack(found, dim=3)


def _places_of(layers: range) -> list[tuple[int, list[Point]]]:
    """Where each of the COMPONENTS stands among the starts: which of those at a point, and the point of every layer."""
    before: list[Point] = [(layer, "pre") for layer in layers]
    between: list[Point] = [(layer, "mid") for layer in layers]
    behind: list[Point] = [(layer + 1, "pre") for layer in layers]
    return [(-1, before), (0, between), (0, behind)]


def _stream_starts(both: Both, pos: int) -> dict[Point, Tensor]:
    """The stream behind each donated component at `pos`; entering a block, what the MLP before it wrote comes first."""
    weights = both.weights
    starts: dict[Point, list[Tensor]] = {(0, "pre"): []}
    for layer, step in enumerate(both.steps):
        block, resid_mid = weights.blocks[layer], step.resid_mid[:, pos].clone()
        starts[layer, "pre"].append(step.resid_pre[:, pos].roll(1, 0))
        starts[layer, "mid"] = [engine.write(weights, block, step.resid_pre[:, pos], step.z[:, pos].roll(1, 0))]
        starts[layer + 1, "pre"] = [engine.write_mlp(weights, block, resid_mid, step.hidden[:, pos].roll(1, 0))]
    return {point: torch.stack(vectors, dim=1) for point, vectors in starts.items()}


def _head_starts(both: Both, pos: int) -> dict[Point, Tensor]:
    """The stream behind the attention of every layer with one head's z at `pos` the donor's, for every head."""
    weights = both.weights
    one = torch.eye(weights.shape[1], dtype=torch.bool, device=weights.device)[..., None]
    starts: dict[Point, Tensor] = {}
    for layer, step in enumerate(both.steps):
        own, resid = step.z[:, pos, None], step.resid_pre[:, pos, None].expand(-1, len(one), -1)
        z = torch.where(one, own.roll(1, 0), own)
        starts[layer, "mid"] = engine.write(weights, weights.blocks[layer], resid, z)
    return starts
