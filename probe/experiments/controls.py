"""What does the separation show without a sense to find?

The held-out AUROC of every head under conditions without a sense to find:

    labels permuted   the senses reassigned to cue words, many times: the range of chance, which is
                      below one half if held-out folds of a balanced set lean away from the fitted
                      folds
    later token       the token after the word, if every text has one: a head that carries the
                      topic separates it
    untrained model   random weights of the same shape: the contribution of the architecture and
                      the sentences

Source: Hewitt & Liang 2019.
"""

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from probe.experiments.columns import KEYS, Column, Table, as_elsewhere, dataset, rows
from probe.experiments.run import WordRun
from probe.model import decomposition
from probe.model.weights import Weights, weights_of
from probe.stats.resampling import Array
from probe.stats.separation import held_out_auroc

if TYPE_CHECKING:
    import xarray as xr

ORDER = 100
NEEDS = ("heads",)
ANSWERS = False
SECONDS = 5.0
HEADING = "believe"
TITLE = "The same where there is nothing to find"
MEASURED = "as measured"
PERMUTED = "labels permuted"
LATER = "later token"
UNTRAINED = "untrained model"
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
        rows,
    )
}


def measure(run: WordRun) -> "xr.Dataset | None":
    """The controls of the pair of senses with the surest gap. `pair condition layer head`

    None without an untrained model.
    """
    if run.random_model is None or run.untrained is None:
        return None
    separation = run.of_pairs("heads")[run.clearest]
    assert separation is not None  # every pair of senses has one
    pair = run.prepared[run.clearest].sense
    sentences = list(pair.split.rows)

    def auroc(weights: Weights, z: Tensor) -> Array:
        writes = decomposition.write_coordinates(z[sentences], weights)
        return held_out_auroc(writes, pair.split)

    # Labelling 0 is the true one. `permutation layer head`
    null = separation.null.values[1:]
    by_condition = {MEASURED: separation.auroc.values, PERMUTED: null.mean(0)}
    material = run.observation.material
    # The control compares the same sentences, so every one needs a later token.
    later_z = run.observation.states.later_z
    if later_z is not None and all(
        material.targets[row] + 1 < len(material.tokens[row]) for row in sentences
    ):
        by_condition[LATER] = auroc(run.weights, later_z)
    by_condition[UNTRAINED] = auroc(weights_of(run.random_model), run.untrained.z)

    # Only the permutations have a range. `condition layer head`
    range_of = {PERMUTED: np.quantile(null, (0.05, 0.95), axis=0)}
    absent = np.full((2, *separation.auroc.shape), np.nan)
    low, high = np.stack([range_of.get(name, absent) for name in by_condition], axis=1)
    return dataset(
        TABLES,
        {
            "auroc": ("pair condition layer head", [list(by_condition.values())]),
            "low": ("pair condition layer head", [low]),
            "high": ("pair condition layer head", [high]),
            "untrained_p": ("pair", [run.prepared[run.clearest].gates["untrained_p"]]),
        },
        senses=[pair.senses],
        coordinates={"condition": ("condition", [*by_condition])},
    )
