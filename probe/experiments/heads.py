"""The held-out AUROC of every head's write along its direction: how well the write separates the
senses, as measured and with the senses reassigned to cue words.
"""

from probe.experiments.columns import Table
from probe.experiments.run import Run
from probe.model import decomposition
from probe.stats.separation import Separation, measure_separation

ORDER = 10
NEEDS = ()
ANSWERS = True
SECONDS = 6.5
TABLES: dict[str, Table] = {}
RECORDS = (Separation,)


def measure(run: Run) -> tuple[Separation, ...]:
    """The separation of each pair of senses."""
    # Coordinates in the directions that a head can write: d_head numbers instead of d_model, with
    # the same lengths and angles.
    writes = decomposition.write_coordinates(run.observation.states.z, run.weights)
    return tuple(
        measure_separation(
            writes[:, :, list(each.sense.split.rows)],  # layer head row d_head
            each.sense.split,
            permutations=run.options.permutations,
            seed=run.options.seed,
        )
        for each in run.prepared
    )
