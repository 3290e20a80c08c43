"""Does what a head writes separate the senses? Held-out AUROC of every head along its own
direction, as measured and with the senses reassigned to cue words."""

from probe.experiments.plan import Size, Work
from probe.experiments.run import Run
from probe.model import decomposition
from probe.stats.separation import Separation, measure_separation

RECORDS = (Separation,)


def work(size: Size) -> Work:
    """Nothing is run."""
    return Work()


def measure(run: Run) -> tuple[Separation, ...]:
    """The separation of every two senses."""
    writes = decomposition.write_coordinates(run.seen.states.z, run.weights)
    return tuple(
        measure_separation(
            writes[:, :, list(each.sense.split.rows)],  # layer head row d_head
            each.sense.split,
            permutations=run.options.permutations,
            seed=run.options.seed,
        )
        for each in run.prepared
    )
