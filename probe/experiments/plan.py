"""What a measurement takes, before it is run: each experiment says it of itself.

Numbers are upper bounds: where there is no gap between two senses nothing is swapped.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from probe.experiments.material import Material, SensePairSplits
from probe.experiments.options import Options
from probe.model.model import Model
from probe.text import lexicon

# Donors of a pair of sentences: of the other sense and of the same one, in both directions.
DONORS_PER_PAIR = 4
DIRECTIONS = 2  # A with the parts of B, B with the parts of A


class Work(NamedTuple):
    """What is run.

    forwards: of whole sentences.
    swaps: runs of one position through the layers, such as a swap.
    unlikely: swaps of these that are seldom run.
    """

    forwards: int = 0
    swaps: int = 0
    unlikely: int = 0

    @property
    def likely_swaps(self) -> int:
        return self.swaps - self.unlikely

    def plus(self, other: "Work") -> "Work":
        """Both together."""
        return Work(*(one + more for one, more in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Size:
    """How large the measurement of a word is.

    layers, heads: of the model; heads in one layer. causal: whether it reads left to right.
    sentences: of the word. tokens: of one of them that are read, in the mean.
    positions, usual_positions: from the cue to the word, at most and in the mean.
    pairs: of sentences that are swapped, by pair of senses.
    nouns: that may take the word's place.
    """

    options: Options
    layers: int
    heads: int
    causal: bool
    sentences: int
    tokens: int
    positions: int
    usual_positions: int
    pairs: tuple[int, ...]
    nouns: int

    @property
    def heads_in_all(self) -> int:
        return self.layers * self.heads

    def units(self, work: Work) -> float:
        """About how many positions go through a block (`probe.progress`): of a forward pass all, of
        a swap those that it can reach, in the blocks after it, half of them in the mean."""
        reached = 1 if self.causal else self.tokens
        of_swaps = work.likely_swaps * reached * (self.layers + 1) / 2
        return work.forwards * self.tokens * self.layers + of_swaps


def size_of(model: Model, material: Material, splits: SensePairSplits, options: Options) -> Size:
    """How large the measurement of a word is."""
    nouns = lexicon.one_meaning_nouns() if options.nouns is None else options.nouns
    before = [
        target - cue[0]
        for target, cue in zip(material.targets, material.cues, strict=True)
        if cue and cue[0] < target
    ]
    causal = model.config.causal
    lengths = [at + 1 for at in material.targets] if causal else list(map(len, material.tokens))
    # From the beginning of the text where no cue is marked before the word.
    distances = before or material.targets
    return Size(
        options=options,
        layers=model.config.n_layers,
        heads=model.config.n_heads,
        causal=causal,
        sentences=len(material),
        tokens=round(float(np.mean(lengths))),
        positions=1 + max(distances),
        usual_positions=1 + round(float(np.mean(distances))),
        pairs=tuple(min(options.pairs, len(split.pairs)) for split in splits.values()),
        nouns=len(nouns),
    )


def swap_work(size: Size) -> Work:
    """Every sentence once, and once in a model of random weights; every head with its donors."""
    return Work(2 * size.sentences, size.heads_in_all * DONORS_PER_PAIR * sum(size.pairs))
