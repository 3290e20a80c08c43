"""The causal trace of two sentences: the first one's parts, put into the second one at a time.

It is read along the line between the word's two vectors after the last layer: 0 is the second
sentence's, 1 the first sentence's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd
import torch
from torch import Tensor

from probe.errors import InputError
from probe.model.variants import TargetText
from probe.model.weights import Weights
from probe.patching import positions
from probe.patching.pair import PairReading, cache_pair, positions_from_word, token_pairs
from probe.patching.positions import COMPONENTS, HEAD
from probe.walks.scene import WordInText

# Layers in one step of a causal trace: few, so that a large model can be interrupted soon.
LAYERS_PER_STEP = 6


@dataclass(frozen=True, eq=False)
class CausalTrace:
    """How far the second sentence's word moves if one part is the first sentence's.

    pos: positions in the text
    pieces: the tokens of both sentences at each position
    effects: `component layer position`, by COMPONENTS and `pos`, as fractions of the distance
        between the two vectors
    """

    word: str
    at: int
    pos: Sequence[int]
    pieces: Sequence[tuple[str, str]]
    effects: Tensor

    def frame(self) -> pd.DataFrame:
        """One row for each part, layer and position."""
        rows: list[dict[str, object]] = []
        for component, by_layer in zip(COMPONENTS, self.effects.tolist(), strict=True):
            for layer, by_position in enumerate(by_layer):
                for pos, pieces, effect in zip(self.pos, self.pieces, by_position, strict=True):
                    row = {"component": component, "layer": layer, "pos": pos}
                    row |= {"piece": pieces[0], "piece_there": pieces[1], "moved": effect}
                    rows.append(row)
        return pd.DataFrame(rows)

    def columns(self) -> list[dict[str, object]]:
        """Position and both tokens of each column of the page's table."""
        return [
            {"pos": pos, "pieces": list(pieces)}
            for pos, pieces in zip(self.pos, self.pieces, strict=True)
        ]


def read_pair(
    weights: Weights, word: WordInText, second: WordInText
) -> tuple[PairReading, tuple[int, ...]]:
    """The runs of both sentences up to the word, and the positions to trace, counted from the
    word, from the first difference to the last.

    Raises InputError for sentences with different numbers of tokens before the word (or after it,
    if the model reads both ways), and for sentences that are equal up to the word.
    """
    _require_same_length(weights, word, second)
    texts = [
        TargetText(word_of_text.tokens.ids, word_of_text.at) for word_of_text in (word, second)
    ]
    n_layers = len(weights.blocks)
    (pair,) = token_pairs(weights, texts[:1], texts[1:], n_layers)
    if pair.ids[0] == pair.ids[1]:
        raise InputError(
            f"Cannot trace two sentences: they are equal up to “{word.text}”, so nothing that it "
            "reads differs. Write them with another word before it."
        )
    offsets = positions_from_word([pair], None)
    with torch.inference_mode():
        cache = cache_pair(weights, pair.ids, pair.at, n_layers)
        # Effects are read along x - x′ after the last layer: 0 at x′, 1 at x.
        line = cache.final[0, pair.at] - cache.final[1, pair.at]
        length = line.norm()
    if not length > 0:
        raise InputError(
            f"Cannot trace two sentences: the vectors of “{word.text}” after the last layer are "
            "equal. Write them with another word before it."
        )
    return PairReading(cache, (line / length)[None], length[None]), offsets


def _require_same_length(weights: Weights, word: WordInText, second: WordInText) -> None:
    """Raises InputError if the parts of one sentence have no counterpart in the other."""
    is_aligned = word.at == second.at
    if not weights.causal:
        is_aligned = is_aligned and len(word.tokens) == len(second.tokens)
    if not is_aligned:
        raise InputError(
            f"Cannot trace two sentences: the word is token {word.at} of this one and token "
            f"{second.at} of the other, so their positions do not correspond. Write the two with "
            "equally many tokens before the word."
        )


def trace_steps(
    reading: PairReading, offsets: Sequence[int], parts: Sequence[str]
) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """How far the word of the second sentence moves if a part at one layer and position is the
    first sentence's, some layers at a time.

    Yields the fraction of the work that is done, and the effects so far, `part: layer variant
    position`, NaN where nothing has been run yet.
    """
    n_layers, n_heads = reading.cache.weights.shape[:2]
    effects = {}
    for part in parts:
        n_variants = n_heads if part == HEAD else 1
        effects[part] = torch.full((n_layers, n_variants, len(offsets)), torch.nan)
    starts = range(0, n_layers, LAYERS_PER_STEP)
    layer_groups = [range(n_layers)[start : start + LAYERS_PER_STEP] for start in starts]
    steps = list(product(range(len(offsets)), layer_groups))
    for n_done, (index, layers) in enumerate(steps, start=1):
        with torch.inference_mode():
            shifts = positions.effects(
                reading.cache, [offsets[index]], reading.directions, parts, layers=layers
            )
        for part, effect in shifts.items():
            # Row 1 is the run of the second sentence, which receives a part of the first.
            fraction = effect[1, ..., 0, 0] / reading.gap[0]
            effects[part][layers.start : layers.stop, :, index] = fraction.cpu()
        yield n_done / len(steps), effects


def trace_pair(weights: Weights, word: WordInText, second: WordInText) -> CausalTrace:
    """The causal trace of the residual stream, all heads of a layer and the MLP, at every layer
    and position.

    Raises the errors of `read_pair`.
    """
    reading, offsets = read_pair(weights, word, second)
    *_, (_, effects) = trace_steps(reading, offsets, COMPONENTS)
    return causal_trace(word, second, offsets, effects)


def causal_trace(
    word: WordInText, second: WordInText, offsets: Sequence[int], effects: Mapping[str, Tensor]
) -> CausalTrace:
    """The record of completed steps. `part: layer variant position`"""
    pos = [word.at + offset for offset in offsets]
    pieces = [(word.tokens.pieces[position], second.tokens.pieces[position]) for position in pos]
    by_component = torch.stack([effects[component][:, 0] for component in COMPONENTS])
    return CausalTrace(word.text, word.at, pos, pieces, by_component)
