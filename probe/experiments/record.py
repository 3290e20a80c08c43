"""Everything that was measured on one word: the record behind a report and a survey.

A record holds facts and arrays, no tensors of a model, no test over cue words and no verdict.

Effects are fractions of the gap that the axes were fitted with, unless a field says that they are
in units of the residual stream. Depth 0 enters the first block. A stage is a depth, or comes after
the last: the final norm, where the next token is read, and once more for known continuations.
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

    split: how their sentences are held out. pairs: in which heads are swapped.
    reading: where each head is read.
    gap: of each pair. `pair stage`
    raw_gap: the same in units of the residual stream. `pair stage`
    by_depth: held-out AUROC. `depth`
    squared_gap: cross-validated, in units of the residual stream, squared. `depth`
    untrained_gap: mean over the pairs in a model of random weights, along axes that were fitted in
        it, in units of its own stream; None where it was not asked. `depth`
    attention: from the word to its cue, to its neighbours and to itself, mean over the sentences of
        the pairs. `layer head` each
    coordinates: the sense coordinate at the read-out layer of every sentence that is held out once,
        in the order of `rows()`. `tested`
    profile: the sense coordinate at every depth.
    moved: how far each head moves the word beyond same-sense donors, mean over the pairs, in units
        of the residual stream; None where no head was swapped. `layer head depth`
    swaps: the effects of every head; None where the gap is not there, because a ratio over it means
        nothing.
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
    swaps: PairEffects | None

    @property
    def effects(self) -> Effects | None:
        """The effects on the sense coordinate."""
        return None if self.swaps is None else self.swaps.word

    def rows(self, sense: str | None = None, *, tested: bool = True) -> list[int]:
        """The sentences that are held out once, of `sense` or of both; with `tested=False` all
        that are used."""
        split = self.split
        positions = split.tested if tested else range(len(split.rows))
        if sense is not None:
            is_a = sense == self.senses[0]
            positions = [position for position in positions if split.is_a[position] == is_a]
        return [split.rows[position] for position in positions]


@dataclass(frozen=True, eq=False)
class WordRecord:
    """One word: its sentences, every two of its senses, and what was measured beside the swaps.

    kind, columns: what its file says of it; kind is "" where the file names none.
    sentences, positions, tokens_of_word: those that the model can be asked about, where their word
        is read, and how many tokens it is.
    left_out: sentences that were not used, with the reason.
    not_used: by reason, how many sentences or pairs were not used beside those.
    reason: why nothing was measured, "" where it was; there are no pairs then.
    heads: of a layer. has_heads: of each layer; a layer of a hybrid may have none.
    depth: the read-out layer of the word.
    measured: what each experiment that was run gave, by its name in `probe.experiments.table`; None
        where it had nothing to measure.
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
        return len(self.has_heads)

    @property
    def in_full(self) -> bool:
        """Whether it was measured as for a report, with what verdicts on heads rest on."""
        return "heads" in self.measured

    def has(self, experiments: Collection[str]) -> bool:
        """Whether there is nothing more to measure for these experiments."""
        return bool(self.reason) or self.measured.keys() >= set(experiments)

    def only(self, experiments: Collection[str]) -> "WordRecord":
        """The record without what other experiments gave."""
        found = {name: each for name, each in self.measured.items() if name in experiments}
        return replace(self, measured=found)

    def of_pairs(self, experiment: str) -> tuple[Any, ...]:
        """What an experiment gave for every two senses; None for each where it was not run."""
        return self.measured.get(experiment) or (None,) * len(self.pairs)

    def found(self, experiment: str) -> Iterator[tuple[SensePair, Any]]:
        """The pairs of senses of which an experiment has something, with what it has."""
        for pair, found in zip(self.pairs, self.of_pairs(experiment), strict=True):
            if found is not None:
                yield pair, found


def leading_heads(pairs: tuple[SensePair, ...], number: int) -> list[HeadIndex]:
    """The heads with the largest net effect, mean over the pairs of senses that were swapped; none
    where nothing was."""
    swapped = [pair.swaps for pair in pairs if pair.swaps is not None]
    if not swapped:
        return []
    net = np.mean([each.word.net.mean(0) for each in swapped], axis=0)
    has_heads = swapped[0].has_heads
    order = [divmod(int(index), net.shape[1]) for index in resampling.order(net.ravel())]
    return [head for head in order if has_heads[head[0]]][:number]
