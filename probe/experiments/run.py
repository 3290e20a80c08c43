"""One word while it is measured: what every experiment starts from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
from probe.model.trace import target_states
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


@dataclass(eq=False)
class Run:
    """One word while it is measured.

    seen: its unchanged runs.
    random_model: the same shape with random weights; None where the options do not ask for it.
    prepared, pairs: every two senses, and what is recorded of them.
    earlier: what experiments gave before, by name, in this run or one whose record was kept.
    noun_runs: the nouns that are swapped in the pairs of two senses, by the number of these; those
        of a kept record are run again when they are needed.
    """

    model: Model
    options: Options
    seen: Observation
    random_model: Model | None
    prepared: tuple[Prepared, ...] = ()
    pairs: tuple[SensePair, ...] = ()
    earlier: dict[str, Any] = field(default_factory=dict)
    noun_runs: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def weights(self) -> Weights:
        return read_weights(self.model)

    @cached_property
    def untrained(self) -> TargetStates | None:
        """The states of the sentences in the model of random weights, None without one."""
        if self.random_model is None:
            return None
        material = self.seen.material
        return target_states(self.random_model, material.tokens, material.targets)

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
