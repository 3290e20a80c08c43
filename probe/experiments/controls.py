"""Controls: the held-out AUROC of every head under conditions without a sense to find.

    labels permuted   the senses reassigned to cue words, many times: the range of chance, which is
                      below one half if held-out folds of a balanced set lean away from the fitted
                      folds
    later token       the token after the word, if every text has one: a head that carries the
                      topic separates it
    untrained model   random weights of the same shape: the contribution of the architecture and
                      the sentences

Source: Hewitt & Liang 2019.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from probe.experiments.columns import (
    KEYS,
    Column,
    Columns,
    Table,
    as_elsewhere,
    key_of,
)
from probe.experiments.plan import Size, Work
from probe.experiments.record import WordRecord
from probe.experiments.run import Run
from probe.model import decomposition
from probe.model.load import read_weights
from probe.model.weights import Weights
from probe.stats.resampling import Array
from probe.stats.separation import held_out_auroc

MEASURED = "as measured"
PERMUTED = "labels permuted"
LATER = "later token"
UNTRAINED = "untrained model"
BAND = (0.05, 0.5, 0.95)  # quantiles of the permutations


@dataclass(frozen=True, eq=False)
class Controls:
    """The held-out AUROC of every head under each condition, for one pair of senses.

    senses: the pair of senses with the surest gap
    auroc: by condition. `layer head` each
    band: quantiles BAND of the permutations. `quantile layer head`
    """

    senses: tuple[str, str]
    auroc: Mapping[str, Array]
    band: Array


RECORDS = (Controls,)


def _separation_controls(record: WordRecord) -> Iterator[Columns]:
    """The rows of the table, a part for each condition."""
    controls: Controls | None = record.measured.get("controls")
    if controls is None:
        return
    [pair] = [pair for pair in record.pairs if pair.senses == controls.senses]
    for condition, auroc in controls.auroc.items():
        absent = np.full_like(auroc, np.nan)
        # Only the permutations have a range.
        low, _, high = controls.band if condition == PERMUTED else (absent, absent, absent)
        about = {"condition": condition, "untrained_p": pair.gates.untrained}
        yield key_of(record, pair) | about | {"auroc": auroc, "low": low, "high": high}


BAND_OF = "5% of the permutations have an AUROC"
TABLES = {
    "separation_controls": Table(
        "separation under permuted labels, at a later token, in an untrained model",
        {
            **as_elsewhere(*KEYS),
            "condition": Column(
                "as measured, or a control: labels permuted, later token, untrained model"
            ),
            **as_elsewhere("untrained_p", "layer", "head", "auroc"),
            "low": Column(f"{BAND_OF} below this value; only for labels permuted", "0 to 1"),
            "high": Column(f"{BAND_OF} above this value; only for labels permuted", "0 to 1"),
        },
        _separation_controls,
    )
}


def work(size: Size) -> Work:
    """No further runs: the token after the word is read with the word."""
    return Work()


def measure(run: Run) -> Controls | None:
    """The controls of the pair of senses with the surest gap.

    None without the separation of heads or without an untrained model.
    """
    separations = run.earlier.get("heads")
    if separations is None or run.random_model is None or run.untrained is None:
        return None
    pair = run.prepared[run.clearest].sense
    rows = list(pair.split.rows)

    def auroc(weights: Weights, z: Tensor) -> Array:
        writes = decomposition.write_coordinates(z[rows], weights)
        return held_out_auroc(writes, pair.split)

    separation = separations[run.clearest]
    # Labelling 0 is the true one. `permutation layer head`
    null = separation.null[1:]
    by_condition = {MEASURED: separation.auroc, PERMUTED: null.mean(0)}
    material = run.observation.material
    # The control compares the same sentences, so every one needs a later token.
    later_z = run.observation.states.later_z
    if later_z is not None and all(
        material.targets[row] + 1 < len(material.tokens[row]) for row in rows
    ):
        by_condition[LATER] = auroc(run.weights, later_z)
    by_condition[UNTRAINED] = auroc(read_weights(run.random_model), run.untrained.z)
    return Controls(pair.senses, by_condition, np.quantile(null, BAND, axis=0))
