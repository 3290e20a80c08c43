"""The experiments, one row each: what is measured beside the swap of every head.

An experiment takes a `Run` and returns what a record keeps: one value for the word, or a tuple with
one for every two of its senses.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from probe.experiments import (
    backup,
    circuit,
    controls,
    cue_sample,
    head_parts,
    nouns,
    readings,
    separations,
    sets,
    shares,
)
from probe.experiments.columns import Table
from probe.experiments.plan import Size, Work
from probe.experiments.run import Run


class Experiment(NamedTuple):
    """One experiment.

    about: what it asks.
    measure: the measurement; later experiments find what it returns in `Run.earlier`.
    work: what it takes at most.
    records: the classes that it returns, so that they can be written and read back.
    tables: what it has to say of words as tables, by name.
    from_weights: whether it computes from the weights alone, and so leaves out the hooks of a model
        whose owner's hooks stay on; it is then not run.
    """

    about: str
    measure: Callable[[Run], Any]
    work: Callable[[Size], Work]
    records: tuple[type, ...]
    tables: Mapping[str, Table] = {}
    from_weights: bool = False


# In the order in which they are run.
EXPERIMENTS = {
    "separation": Experiment(
        "does what a head writes separate the senses?",
        separations.measure,
        separations.work,
        separations.RECORDS,
    ),
    "nouns": Experiment(
        "does it do the same for unambiguous nouns in the word's place?",
        nouns.measure,
        nouns.work,
        nouns.RECORDS,
        from_weights=True,
    ),
    "head_parts": Experiment(
        "where does a head look, and what does it carry?",
        head_parts.measure,
        head_parts.work,
        head_parts.RECORDS,
        head_parts.TABLES,
        from_weights=True,
    ),
    "backups": Experiment(
        "which head makes up for another one?", backup.measure, backup.work, backup.RECORDS
    ),
    "sets": Experiment(
        "how few heads are enough?", sets.measure, sets.work, sets.RECORDS, sets.TABLES
    ),
    "controls": Experiment(
        "what is found where there is nothing to find?",
        controls.measure,
        controls.work,
        controls.RECORDS,
        controls.TABLES,
    ),
    "shares": Experiment(
        "which component writes the difference of the senses?",
        shares.measure,
        shares.work,
        shares.RECORDS,
        shares.TABLES,
        from_weights=True,
    ),
    "readings": Experiment(
        "what do the first heads read in single sentences?",
        readings.measure,
        readings.work,
        readings.RECORDS,
        readings.TABLES,
    ),
    "lessons": Experiment(
        "how are the lesson's sentences read?",
        readings.measure_lessons,
        readings.lessons_work,
        readings.LESSON_RECORDS,
        readings.LESSON_TABLES,
    ),
    "cue_sample": Experiment(
        "which other words move it?",
        cue_sample.measure,
        cue_sample.work,
        cue_sample.RECORDS,
        cue_sample.TABLES,
        from_weights=True,
    ),
    "circuit": Experiment(
        "over which positions, edges and paths does the sense travel?",
        circuit.measure,
        circuit.work,
        circuit.RECORDS,
        from_weights=True,
    ),
}
