"""What a measurement takes, before it is run: each experiment says it of itself.

Numbers are upper bounds: where there is no gap between two senses nothing is swapped.
"""

from dataclasses import dataclass
from typing import NamedTuple

from probe.experiments.options import Options

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
    sentences: of the word. positions, usual_positions: from the cue to the word, at most and in the
        mean.
    pairs: of sentences that are swapped, by pair of senses.
    nouns: that may take the word's place.
    """

    options: Options
    layers: int
    heads: int
    causal: bool
    sentences: int
    positions: int
    usual_positions: int
    pairs: tuple[int, ...]
    nouns: int

    @property
    def heads_in_all(self) -> int:
        return self.layers * self.heads


def swap_work(size: Size) -> Work:
    """Every sentence once, and once in a model of random weights; every head with its donors."""
    return Work(2 * size.sentences, size.heads_in_all * DONORS_PER_PAIR * sum(size.pairs))
