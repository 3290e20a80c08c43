"""The record of one word: all its measurements, for a report and for a survey.

A record contains facts and datasets, but no tensors of a model and no verdict. It is kept as one
file (`probe.experiments.store`).

Effects are fractions of the gap with which the axes were fitted, unless a variable is in units of
the residual stream. Depth 0 is the residual stream that enters the first block. A stage is a depth
or follows the last depth: the stream after the final norm, where the next token is read, and the
same stream for known continuations.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from probe.text.sentences import LeftOut

if TYPE_CHECKING:
    import xarray as xr

SENSES = "senses"  # the experiment that has a dataset for every pair of senses


@dataclass(frozen=True, eq=False)
class WordRecord:
    """One word.

    word: the word
    kind, columns: `kind` and further columns of its file; `kind` is "" if the file has none
    causal: whether the model reads left to right only
    left_out: the sentences that were not used, with the reason
    not_used: the number of further sentences or pairs that were not used, by reason
    reason: why nothing was measured, and `measured` is empty; "" if it was measured
    heads: the number of heads in a layer
    has_heads: whether each layer has heads; a layer of a hybrid may have none
    depth: the read-out layer of the word
    measured: the result of each experiment that was run, by its name in `probe.experiments.table`:
        a dataset, or several by name; None if the experiment had nothing to measure
    """

    word: str
    kind: str
    columns: Mapping[str, object]
    causal: bool
    left_out: tuple[LeftOut, ...]
    not_used: Mapping[str, int]
    reason: str
    heads: int
    has_heads: tuple[bool, ...]
    depth: int
    measured: Mapping[str, Any]

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return len(self.has_heads)

    @property
    def senses(self) -> "list[xr.Dataset]":
        """What is measured of every pair of senses before any swap."""
        return numbered(self.measured.get(SENSES) or {})

    @property
    def in_full(self) -> bool:
        """Whether the word was measured as for a report, with the evidence for verdicts on
        heads.
        """
        return any("p_auroc" in each for each in self.of_pairs("heads") if each is not None)

    def has(self, experiments: Collection[str]) -> bool:
        """Whether all of these experiments have been run, or nothing can be measured."""
        return bool(self.reason) or self.measured.keys() >= set(experiments)

    def only(self, experiments: Collection[str]) -> "WordRecord":
        """The record with the results of these experiments alone."""
        results = {name: each for name, each in self.measured.items() if name in experiments}
        return replace(self, measured=results)

    def of_pairs(self, experiment: str) -> "list[xr.Dataset | None]":
        """The dataset of an experiment for each pair of senses; None where there is none."""
        return for_each_pair(self.measured.get(experiment), len(self.senses))


def by_number(results: "Sequence[xr.Dataset | None]") -> "dict[str, xr.Dataset]":
    """The result of an experiment with a dataset for each pair of senses, by the pair's number."""
    return {str(number): each for number, each in enumerate(results) if each is not None}


def for_each_pair(results: Any, pairs: int) -> "list[xr.Dataset | None]":
    """The datasets of a result by number, as a list; None where there is none.

    pairs: the number of pairs of senses
    """
    return [(results or {}).get(str(number)) for number in range(pairs)]


def numbered(results: "Mapping[str, xr.Dataset]") -> "list[xr.Dataset]":
    """The datasets of a result whose names are numbers."""
    return [each for name, each in results.items() if name.isdigit()]
