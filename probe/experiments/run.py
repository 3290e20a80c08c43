"""The state of the measurement of one word, which every experiment reads."""

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
from probe.model.kept_keys import KeptKeys
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.trace import target_states
from probe.model.weights import Weights
from probe.patching.sets import HeadIndex

LEADERS = 3  # top heads of a word


@dataclass(frozen=True, eq=False)
class SwappedPair:
    """Two senses with swapped heads.

    number: of the pair of senses
    prepared: the senses before the swap
    effects: all swaps
    """

    number: int
    prepared: Prepared
    effects: PairEffects

    @property
    def pairs(self) -> Pairs:
        """The swapped pairs of sentences."""
        return self.prepared.pairs


@dataclass(eq=False)
class Run:
    """The measurement of one word, in progress.

    model: the model
    options: how much is measured
    observation: the unchanged runs of the word
    random_model: a model of the same shape with random weights; None if the options do not ask for
        it
    prepared: all pairs of senses before the swap
    pairs: the records of all pairs of senses
    earlier: the results of earlier experiments by name, of this run or of a kept record
    noun_runs: the nouns that are swapped in the pairs of two senses, by the number of the pair of
        senses; after a kept record, they are run again on demand
    """

    model: Model
    options: Options
    observation: Observation
    random_model: Model | None
    prepared: tuple[Prepared, ...] = ()
    pairs: tuple[SensePair, ...] = ()
    earlier: dict[str, Any] = field(default_factory=dict)
    noun_runs: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def weights(self) -> Weights:
        """The weights of the model."""
        return read_weights(self.model)

    @cached_property
    def kept_keys(self) -> KeptKeys:
        """The keys and values of the tokens before the word, in the sentences that have been
        run."""
        return KeptKeys(self.weights)

    @cached_property
    def untrained(self) -> TargetStates | None:
        """The states of the sentences in the model of random weights; None without that model."""
        if self.random_model is None:
            return None
        material = self.observation.material
        # Cached, because the gates and the controls both read these states.
        return target_states(self.random_model, material.tokens, material.targets)

    @cached_property
    def swapped_pairs(self) -> list[SwappedPair]:
        """The pairs of senses with swapped heads."""
        return [
            SwappedPair(number, prepared, pair.swaps)
            for number, (prepared, pair) in enumerate(zip(self.prepared, self.pairs, strict=True))
            if pair.swaps is not None
        ]

    @cached_property
    def top_heads(self) -> list[HeadIndex]:
        """The heads that are examined in detail.

        A study assigns those that its page names, as soon as their verdicts are known. Otherwise
        they are the heads with the largest effects.
        """
        return leading_heads(self.pairs, LEADERS)

    @property
    def clearest(self) -> int:
        """The number of the pair of senses with the surest gap."""
        gates = [pair.gates for pair in self.pairs]
        return clearest([each.gap for each in gates], [each.largest_t for each in gates])

    def for_swapped(self, measure: Callable[[SwappedPair], Any]) -> tuple[Any, ...]:
        """The result of `measure` for every pair of senses with swapped heads; None for the
        others.
        """
        results: list[Any] = [None] * len(self.pairs)
        for each in self.swapped_pairs:
            results[each.number] = measure(each)
        return tuple(results)

    def each(self) -> Iterator[tuple[Prepared, SensePair]]:
        """Every pair of senses before the swap, with its record."""
        return zip(self.prepared, self.pairs, strict=True)
