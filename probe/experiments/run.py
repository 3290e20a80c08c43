"""The state of the measurement of one word, which every experiment reads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.experiments.design import Pairs
from probe.experiments.observe import Observation, clearest
from probe.experiments.options import Options
from probe.experiments.prepare import Prepared
from probe.experiments.record import for_each_pair
from probe.experiments.swaps import Effects, effects_of, has_effects, net_by_pair
from probe.model.kept_keys import KeptKeys
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.trace import target_states
from probe.model.weights import Weights, weights_of
from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.limits import GATE
from probe.stats.resampling import Array

if TYPE_CHECKING:
    import xarray as xr

LEADERS = 3  # top heads of a word


@dataclass(frozen=True, eq=False)
class SwappedPair:
    """Two senses with swapped heads.

    number: of the pair of senses
    prepared: the senses before the swap
    data: the swaps of every head, of the experiment "heads"
    """

    number: int
    prepared: Prepared
    data: "xr.Dataset"

    @property
    def effects(self) -> Effects:
        """The effects of every head on the word."""
        return effects_of(self.data)

    @property
    def net(self) -> Array:
        """The net effect of every head in each pair of sentences. `sentence_pair layer head`"""
        return net_by_pair(self.effects)

    @property
    def pairs(self) -> Pairs:
        """The swapped pairs of sentences."""
        return self.prepared.pairs


@dataclass(eq=False)
class WordRun:
    """The measurement of one word, in progress.

    model: the model
    options: how much is measured
    observation: the unchanged runs of the word
    random_model: a model of the same shape with random weights; None if the options do not ask for
        it
    prepared: all pairs of senses before the swap
    earlier: the results of earlier experiments by name, of this run or of a kept record
    noun_runs: the nouns that are swapped in the pairs of two senses, by the number of the pair of
        senses; after a kept record, they are run again on demand
    """

    model: Model
    options: Options
    observation: Observation
    random_model: Model | None
    prepared: tuple[Prepared, ...] = ()
    earlier: dict[str, Any] = field(default_factory=dict)
    noun_runs: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def weights(self) -> Weights:
        """The weights of the model."""
        return weights_of(self.model)

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

    def is_ranked(self, each: Prepared) -> bool:
        """Whether there is a gap between two senses, so that effects are fractions of it."""
        return not self.options.gate or each.gates["gap_p"] < GATE

    def of_pairs(self, experiment: str) -> "list[xr.Dataset | None]":
        """The dataset of an earlier experiment for each pair of senses; None where there is
        none."""
        return for_each_pair(self.earlier.get(experiment), len(self.prepared))

    @cached_property
    def swapped_pairs(self) -> list[SwappedPair]:
        """The pairs of senses with swapped heads and a gap."""
        both = zip(self.prepared, self.of_pairs("heads"), strict=True)
        return [
            SwappedPair(number, prepared, data)
            for number, (prepared, data) in enumerate(both)
            if data is not None and has_effects(data)
        ]

    @cached_property
    def top_heads(self) -> list[HeadIndex]:
        """The heads that are examined in detail.

        A study assigns those that its page names, as soon as their verdicts are known. Otherwise
        they are the heads with the largest net effect, mean over the swapped pairs of senses.
        """
        if not self.swapped_pairs:
            return []
        net = np.mean([each.net.mean(0) for each in self.swapped_pairs], axis=0)
        order = [divmod(int(index), net.shape[1]) for index in resampling.order(net.ravel())]
        # A layer without heads has effects of 0, which would rank above negative effects.
        has_heads = self.weights.has_heads.tolist()
        return [head for head in order if has_heads[head[0]]][:LEADERS]

    @property
    def clearest(self) -> int:
        """The number of the pair of senses with the surest gap."""
        return clearest([each.gates for each in self.prepared])

    def for_swapped(
        self, measure: "Callable[[SwappedPair], xr.Dataset]"
    ) -> "dict[str, xr.Dataset]":
        """The dataset of every pair of senses with swapped heads, by the pair's number."""
        return {str(each.number): measure(each) for each in self.swapped_pairs}
