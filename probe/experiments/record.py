"""The record of one word: all its measurements, for a report and for a survey.

A record contains facts and arrays, but no tensors of a model, no test over cue words and no
verdict.

Effects are fractions of the gap with which the axes were fitted, unless a field is in units of the
residual stream. Depth 0 is the residual stream that enters the first block. A stage is a depth or
follows the last depth: the stream after the final norm, where the next token is read, and the same
stream for known continuations.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probe.experiments.design import Pairs, Readings
from probe.experiments.prepare import Gates
from probe.experiments.swaps import Effects, PairEffects
from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.axes import SenseAtDepth
from probe.stats.resampling import Array
from probe.text.sentences import LeftOut, Sentence
from probe.text.splits import CrossFit


@dataclass(frozen=True, eq=False)
class SensePair:
    """Two senses of a word.

    senses: the names of the two senses
    split: how their sentences are held out
    pairs: the pairs of sentences in which heads are swapped
    reading: the stage at which each head is read
    gates: the conditions for an effect to have a meaning
    gap: G of each pair. `pair stage`
    raw_gap: the same in units of the residual stream. `pair stage`
    by_depth: the held-out AUROC. `depth`
    squared_gap: the cross-validated squared gap, in units of the residual stream, squared. `depth`
    untrained_gap: the mean gap over the pairs in a model of random weights, along axes fitted in
        that model, in units of its residual stream; None without that model. `depth`
    attention: the attention from the word to its cue, to its neighbours and to itself, mean over
        the sentences of the pairs. `layer head` each
    coordinates: the sense coordinate at the read-out layer of every held-out sentence, in the order
        of `rows()`. `tested`
    profile: the sense coordinate at every depth
    moved, raw_effect: as in `probe.experiments.swaps.Swapped`; None without swaps
    swaps: the effects of every head; None without a gap, because a fraction of it would have no
        meaning
    """

    senses: tuple[str, str]
    split: CrossFit
    pairs: Pairs
    reading: Readings
    gates: Gates
    gap: Array
    raw_gap: Array
    by_depth: Array
    squared_gap: Array
    untrained_gap: Array | None
    attention: Mapping[str, Array]
    coordinates: Array
    profile: tuple[SenseAtDepth, ...]
    moved: Array | None
    raw_effect: Array | None
    swaps: PairEffects | None

    @property
    def effects(self) -> Effects | None:
        """The effects on the sense coordinate; None without a gap."""
        return None if self.swaps is None else self.swaps.word

    def rows(self, sense: str | None = None, *, tested: bool = True) -> list[int]:
        """The rows of the held-out sentences, of `sense` or of both senses; with `tested=False`,
        the rows of all sentences that are used.
        """
        split = self.split
        positions = split.tested if tested else range(len(split.rows))
        if sense is not None:
            is_a = sense == self.senses[0]
            positions = [position for position in positions if split.is_a[position] == is_a]
        return [split.rows[position] for position in positions]


@dataclass(frozen=True, eq=False)
class WordRecord:
    """One word: its sentences, all pairs of its senses, and its further measurements.

    word: the word
    kind, columns: `kind` and further columns of its file; `kind` is "" if the file has none
    causal: whether the model reads left to right only
    sentences: the sentences that the model can use
    positions: the position of the word in each sentence
    tokens_of_word: the number of tokens of the word in each sentence
    left_out: the sentences that were not used, with the reason
    not_used: the number of further sentences or pairs that were not used, by reason
    reason: why nothing was measured, and `pairs` is empty; "" if it was measured
    heads: the number of heads in a layer
    has_heads: whether each layer has heads; a layer of a hybrid may have none
    depth: the read-out layer of the word
    pairs: all pairs of senses
    measured: the result of each experiment that was run, by its name in `probe.experiments.table`;
        None if the experiment had nothing to measure
    """

    word: str
    kind: str
    columns: Mapping[str, object]
    causal: bool
    sentences: tuple[Sentence, ...]
    positions: tuple[int, ...]
    tokens_of_word: tuple[int, ...]
    left_out: tuple[LeftOut, ...]
    not_used: Mapping[str, int]
    reason: str
    heads: int
    has_heads: tuple[bool, ...]
    depth: int
    pairs: tuple[SensePair, ...]
    measured: Mapping[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        """The sense of every sentence."""
        return tuple(sentence.sense for sentence in self.sentences)

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return len(self.has_heads)

    @property
    def in_full(self) -> bool:
        """Whether the word was measured as for a report, with the evidence for verdicts on
        heads.
        """
        return "heads" in self.measured

    def has(self, experiments: Collection[str]) -> bool:
        """Whether all of these experiments have been run, or nothing can be measured."""
        return bool(self.reason) or self.measured.keys() >= set(experiments)

    def only(self, experiments: Collection[str]) -> "WordRecord":
        """The record with the results of these experiments alone."""
        results = {name: each for name, each in self.measured.items() if name in experiments}
        return replace(self, measured=results)

    def of_pairs(self, experiment: str) -> tuple[Any, ...]:
        """The result of an experiment for each pair of senses; None for each if it was not run."""
        return self.measured.get(experiment) or (None,) * len(self.pairs)

    def with_result(self, experiment: str) -> Iterator[tuple[SensePair, Any]]:
        """The pairs of senses for which an experiment has a result, with the result."""
        for pair, result in zip(self.pairs, self.of_pairs(experiment), strict=True):
            if result is not None:
                yield pair, result


def leading_heads(pairs: tuple[SensePair, ...], number: int) -> list[HeadIndex]:
    """The heads with the largest net effect, mean over the swapped pairs of senses, largest first.

    number: how many heads

    Empty if no pair was swapped.
    """
    effects = [pair.swaps for pair in pairs if pair.swaps is not None]
    if not effects:
        return []
    net = np.mean([each.word.net_by_pair.mean(0) for each in effects], axis=0)
    has_heads = effects[0].has_heads
    order = [divmod(int(index), net.shape[1]) for index in resampling.order(net.ravel())]
    # A layer without heads has effects of 0, which would rank above negative effects.
    return [head for head in order if has_heads[head[0]]][:number]
