"""The causal trace of two sentences with the same word: one part of this one at a time put into the other.

Read along the line between the word's two vectors behind the last layer: 0 is where the other sentence's stands, 1 is
this one's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd
import torch
from torch import Tensor

from probe.errors import InputError
from probe.model.tokens import Placed
from probe.model.weights import Weights
from probe.pages.walk.scene import Place
from probe.patching import live, positions
from probe.patching.live import PairRun
from probe.patching.positions import COMPONENTS, HEAD
from probe.stats.numbers import percent

TOGETHER = 6  # layers a step, so that work on a large model can be ended soon
HALF = 0.5


@dataclass(frozen=True, eq=False)
class TwoTraced:
    """The causal trace of two sentences: `moved: component layer pos`, by COMPONENTS and `pos`, positions in the text.

    `pieces`: the tokens of both sentences at each position.
    """

    word: str
    at: int
    pos: Sequence[int]
    pieces: Sequence[tuple[str, str]]
    moved: Tensor

    def frame(self) -> pd.DataFrame:
        """One row a part, layer and position."""
        values = self.moved.tolist()
        return pd.DataFrame(
            [
                {"component": part, "layer": layer, "pos": pos, "piece": here, "piece_there": there}
                | {"moved": values[number][layer][place]}
                for number, part in enumerate(COMPONENTS)
                for layer in range(self.moved.shape[1])
                for place, (pos, (here, there)) in enumerate(zip(self.pos, self.pieces, strict=True))
            ]
        )

    def columns(self) -> list[dict[str, object]]:
        """What the page writes above each position."""
        return [{"pos": pos, "pieces": list(both)} for pos, both in zip(self.pos, self.pieces, strict=True)]

    def said(self) -> str:
        """Which token makes most of the difference, and from which layer on the word itself holds half of it."""
        entering, word = self.moved[0, 0], self.moved[0, :, self.pos.index(self.at)]
        most = int(entering.abs().argmax())
        here, there = (piece.strip() for piece in self.pieces[most])
        first = max((word < HALF).nonzero().flatten().tolist(), default=-1) + 1
        later = " and every later one" if first + 1 < len(word) else ", the last,"
        alone = f"the vector of “{self.word}” alone brings it"
        arrives = (
            f"Where it enters layer {first}{later} {alone} at least half of the way: by then the difference has "
            f"arrived there."
            if first < len(word)
            else f"Even where it enters the last layer {alone} less than half of the way."
        )
        put = f"Putting “{here}” in the place of “{there}” brings the other sentence"
        return f"{put} {percent(float(entering[most]))} of the way to this one. {arrives}"


def read_pair(weights: Weights, here: Place, there: Place) -> tuple[PairRun, tuple[int, ...]]:
    """Both sentences kept up to the word, and the positions counted from it, from the first difference to the last.

    Raises InputError for sentences that have not as many tokens before the word, in a model that reads both ways also
    behind it, and for sentences that are the same to the word.
    """
    sizes = [(place.at, 0 if weights.causal else len(place.tokens)) for place in (here, there)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"Tracing two sentences: the word is token {sizes[0][0]} of this one and token {sizes[1][0]} of the "
            f"other, and parts can be put only where they fit; write the two with as many tokens before the word."
        )
    texts = [Placed(place.tokens.ids, place.at) for place in (here, there)]
    ((rows, at),) = live.pairs_of(weights, texts[:1], texts[1:], len(weights.blocks))
    if rows[0] == rows[1]:
        raise InputError(
            f"Tracing two sentences: they are the same up to “{here.word}”, so nothing that it reads differs; write "
            f"them with another word before it."
        )
    offsets = live.offsets_of([(rows, at)], None)
    with torch.inference_mode():
        both = live.keep(weights, rows, at, len(weights.blocks))
        apart = both.final[0, at] - both.final[1, at]
        gap = apart.norm()
    if not gap > 0:
        raise InputError(
            f"Tracing two sentences: got the same vector of “{here.word}” behind the last layer of both, expected two; "
            f"write them with another word before it."
        )
    return PairRun(both, (apart / gap)[None], gap[None]), offsets


def trace_steps(
    read: PairRun, offsets: Sequence[int], parts: Sequence[str]
) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """How far the word of the other sentence moves when a part at one layer and position is this sentence's.

    Some layers at a time: the share that is done, and what is known by then, `part: layer variant pos`, NaN elsewhere.
    """
    depth, heads = read.both.weights.shape[:2]
    moved = {part: torch.full((depth, heads if part == HEAD else 1, len(offsets)), torch.nan) for part in parts}
    some = [range(depth)[first : first + TOGETHER] for first in range(0, depth, TOGETHER)]
    steps = [*product(range(len(offsets)), some)]
    for done, (place, layers) in enumerate(steps, start=1):
        with torch.inference_mode():
            effects = positions.effects(read.both, [offsets[place]], read.along, parts, layers=layers)
        for part, one in effects.items():
            moved[part][layers.start : layers.stop, :, place] = (one[1, ..., 0, 0] / read.gap[0]).cpu()
        yield done / len(steps), moved


def trace_two(weights: Weights, here: Place, there: Place) -> TwoTraced:
    """The residual stream, all heads of a layer and the MLP, at every layer and position. Raises as `read_pair`."""
    read, offsets = read_pair(weights, here, there)
    *_, (_, moved) = trace_steps(read, offsets, COMPONENTS)
    return two_traced(here, there, offsets, moved)


def two_traced(here: Place, there: Place, offsets: Sequence[int], moved: Mapping[str, Tensor]) -> TwoTraced:
    """The record of steps that are all done. `part: layer variant pos`"""
    pos = [here.at + offset for offset in offsets]
    pieces = [(here.tokens.pieces[one], there.tokens.pieces[one]) for one in pos]
    return TwoTraced(here.word, here.at, pos, pieces, torch.stack([moved[part][:, 0] for part in COMPONENTS]))
