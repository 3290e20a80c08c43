"""Which component writes the difference between the senses?

The direct share of every component at the read-out layer. The shares of two senses sum to 1.
"""

from typing import TYPE_CHECKING

from probe.experiments.columns import KEYS, Column, Table, as_elsewhere, dataset, or_missing, rows
from probe.experiments.run import WordRun
from probe.model import decomposition

if TYPE_CHECKING:
    import xarray as xr

ORDER = 90
NEEDS = ()
ANSWERS = False
SECONDS = 0.2
TABLES = {
    "shares": Table(
        "which component writes the sense gap",
        {
            **as_elsewhere(*KEYS, "component", "layer", "head"),
            "share": Column(
                "part of the sense gap at the read-out layer that this component wrote. Shares sum "
                "to 1.",
                "fraction of the sense gap",
            ),
        },
        rows,
        missing=("layer", "head"),
    )
}


def measure(run: WordRun) -> "xr.Dataset":
    """The share of each component. `pair component`"""
    states = run.observation.states
    depth = run.observation.depth
    by_pair = []
    for each in run.prepared:
        sense = each.sense
        a, b = (sense.split.tested_rows(is_a) for is_a in (True, False))
        # Held-out axes: a sentence's direction was fitted without its cue word and frame.
        # `row d_model`
        directions = sense.axes.directions([*a, *b])[:, depth]
        by_pair.append(decomposition.shares(run.weights, states, directions, depth, a, b))
    parts = by_pair[0]
    return dataset(
        TABLES,
        {"share": ("pair component", [[part.share for part in of_pair] for of_pair in by_pair])},
        senses=[each.sense.senses for each in run.prepared],
        coordinates={
            "component": ("component", [part.component for part in parts]),
            "layer": ("component", or_missing([part.layer for part in parts])),
            "head": ("component", or_missing([part.head for part in parts])),
        },
    )
