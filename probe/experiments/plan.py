"""The cost of a measurement before it is run; each experiment states its cost.

The numbers are upper bounds: two senses without a gap are not swapped.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from probe.experiments.material import Material, SensePairSplits
from probe.experiments.options import Options
from probe.model.model import Model
from probe.text import lexicon

# Donors of a pair of sentences: one of the other sense and one of the same sense, in both
# directions.
DONORS_PER_PAIR = 4
DIRECTIONS = 2  # A with the parts of B, and B with the parts of A


class Work(NamedTuple):
    """The number of runs of an experiment.

    forwards: runs of a whole sentence
    swaps: runs of one position through the layers, such as a swap
    unlikely: swaps of these that are rarely run
    """

    forwards: int = 0
    swaps: int = 0
    unlikely: int = 0

    @property
    def likely_swaps(self) -> int:
        """The number of swaps without the unlikely ones."""
        return self.swaps - self.unlikely

    def plus(self, addend: "Work") -> "Work":
        """The sum of both."""
        return Work(*(here + there for here, there in zip(self, addend, strict=True)))


@dataclass(frozen=True)
class Size:
    """The size of the measurement of a word.

    options: how much is measured
    layers: of the model
    heads: in each layer
    causal: whether the model reads left to right only
    sentences: of the word
    tokens: of a sentence that are read, on average
    positions: from the cue to the word, at most
    usual_positions: from the cue to the word, on average
    pairs: of sentences that are swapped, by pair of senses
    nouns: that may replace the word
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
        """The number of heads of the model."""
        return self.layers * self.heads

    def units(self, work: Work) -> float:
        """About how many positions go through a block (`probe.progress`).

        A forward pass takes all positions through all blocks. A swap takes the positions that it
        can reach through the blocks after it, half of all blocks on average.
        """
        # units = forwards * tokens * layers + swaps * reached * (layers + 1) / 2
        # (layers + 1) / 2 is the mean number of blocks from a head's block to the last.
        reached = 1 if self.causal else self.tokens
        of_swaps = work.likely_swaps * reached * (self.layers + 1) / 2
        return work.forwards * self.tokens * self.layers + of_swaps


def size_of(model: Model, material: Material, splits: SensePairSplits, options: Options) -> Size:
    """The size of the measurement of a word."""
    nouns = lexicon.one_meaning_nouns() if options.nouns is None else options.nouns
    before = [
        target - cue[0]
        for target, cue in zip(material.targets, material.cues, strict=True)
        if cue and cue[0] < target
    ]
    causal = model.config.causal
    lengths = [at + 1 for at in material.targets] if causal else list(map(len, material.tokens))
    # Without a cue marked before the word, positions are counted from the beginning of the text.
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
        pairs=tuple(min(options.pairs, len(split.tested_pairs)) for split in splits.values()),
        nouns=len(nouns),
    )


def swap_work(size: Size) -> Work:
    """The runs of the swaps: every sentence once, and once in a model of random weights; every head
    with each of its donors.
    """
    return Work(2 * size.sentences, size.heads_in_all * DONORS_PER_PAIR * sum(size.pairs))
