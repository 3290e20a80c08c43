"""One word while it is measured: what every experiment starts from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from probe.experiments.design import Pairs
from probe.experiments.observe import Observation, clearest
from probe.experiments.options import Options
from probe.experiments.prepare import Prepared
from probe.experiments.record import SensePair, leading_heads
from probe.experiments.swaps import PairEffects
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.weights import Weights
from probe.patching.sets import HeadIndex

LEADERS = 3  # heads of a word that are looked at closely


@dataclass(frozen=True, eq=False)
class SwappedPair:
    """Two senses whose heads were swapped."""

    number: int
    prepared: Prepared
    effects: PairEffects

    @property
    def pairs(self) -> Pairs:
        return self.prepared.pairs


@dataclass(frozen=True, eq=False)
class Run:
    """One word while it is measured.

    seen: its unchanged runs.
    prepared, pairs: every two senses, and what is recorded of them.
    random_model, untrained: the same shape with random weights, and the sentences' states in it;
        None where the options do not ask for them.
    earlier: what experiments before gave, by name.
    placed: the nouns that stood in the pairs of two senses, by the number of these.
    """

    model: Model
    options: Options
    seen: Observation
    prepared: tuple[Prepared, ...]
    pairs: tuple[SensePair, ...]
    random_model: Model | None
    untrained: TargetStates | None
    earlier: dict[str, Any] = field(default_factory=dict)
    placed: dict[int, Any] = field(default_factory=dict)

    def with_pairs(self, pairs: tuple[SensePair, ...]) -> "Run":
        """The same with what is recorded of every two senses."""
        return replace(self, pairs=pairs)

    @cached_property
    def weights(self) -> Weights:
        return read_weights(self.model)

    @cached_property
    def swapped(self) -> list[SwappedPair]:
        """Every two senses whose heads were swapped."""
        return [
            SwappedPair(number, prepared, pair.swaps)
            for number, (prepared, pair) in enumerate(zip(self.prepared, self.pairs, strict=True))
            if pair.swaps is not None
        ]

    @cached_property
    def leaders(self) -> list[HeadIndex]:
        """The first heads of the word."""
        return leading_heads(self.pairs, LEADERS)

    @property
    def clearest(self) -> int:
        """The number of the two senses whose gap is surest."""
        gates = [pair.gates for pair in self.pairs]
        return clearest([each.gap for each in gates], [each.largest_t for each in gates])

    def for_swapped(self, measure: Callable[[SwappedPair], Any]) -> tuple[Any, ...]:
        """A measurement of every two senses whose heads were swapped; None for the others."""
        results: list[Any] = [None] * len(self.pairs)
        for each in self.swapped:
            results[each.number] = measure(each)
        return tuple(results)

    def each(self) -> Iterator[tuple[Prepared, SensePair]]:
        return zip(self.prepared, self.pairs, strict=True)
