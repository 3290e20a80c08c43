"""The table of experiments: all measurements in addition to the swap of every head, one in a row.

An experiment takes a `Run` and returns its part of the record: a value for the word, or a tuple
with a value for each pair of senses; None if there is nothing to measure. It depends only on the
run and on the experiments that it needs, so a kept record can be continued in any order.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from probe.errors import InputError
from probe.experiments import (
    backup,
    circuit,
    controls,
    cue_sample,
    head_parts,
    noun_mlps,
    nouns,
    qk,
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

    about: its question
    measure: the measurement; later experiments find its result in `Run.earlier`
    work: the largest number of runs
    records: the classes of its results, for writing and reading them
    tables: its tables of words, by name
    needs: the experiments whose results it reads, which are run before it
    answers: whether the answer of the page depends on it; the page is first written when all such
        experiments are finished
    """

    about: str
    measure: Callable[[Run], Any]
    work: Callable[[Size], Work]
    records: tuple[type, ...]
    tables: Mapping[str, Table] = {}
    needs: tuple[str, ...] = ()
    answers: bool = False


# In the order in which they are run; the experiments that answer come first.
EXPERIMENTS = {
    "heads": Experiment(
        "which heads move the word, and does what they write separate its senses?",
        separations.measure,
        separations.work,
        separations.RECORDS,
        answers=True,
    ),
    "nouns": Experiment(
        "does it do the same for unambiguous nouns in the word's place?",
        nouns.measure,
        nouns.work,
        nouns.RECORDS,
        answers=True,
    ),
    "noun_mlps": Experiment(
        "do MLPs do the same for unambiguous nouns in the word's place?",
        noun_mlps.measure,
        noun_mlps.work,
        noun_mlps.RECORDS,
        needs=("nouns",),
    ),
    "head_parts": Experiment(
        "where does a head look, and what does it carry?",
        head_parts.measure,
        head_parts.work,
        head_parts.RECORDS,
        head_parts.TABLES,
    ),
    "backups": Experiment(
        "which head takes over from another head?", backup.measure, backup.work, backup.RECORDS
    ),
    "sets": Experiment(
        "how few heads are enough?", sets.measure, sets.work, sets.RECORDS, sets.TABLES
    ),
    "controls": Experiment(
        "what does the separation show without a sense to find?",
        controls.measure,
        controls.work,
        controls.RECORDS,
        controls.TABLES,
        needs=("heads",),
    ),
    "shares": Experiment(
        "which component writes the difference between the senses?",
        shares.measure,
        shares.work,
        shares.RECORDS,
        shares.TABLES,
    ),
    "readings": Experiment(
        "what do the top heads read in single sentences?",
        readings.measure,
        readings.work,
        readings.RECORDS,
        readings.TABLES,
    ),
    "qk": Experiment(
        "why do the top heads attend to the cue?",
        qk.measure,
        qk.work,
        qk.RECORDS,
        qk.TABLES,
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
    ),
    "circuit": Experiment(
        "over which positions and edges does the sense travel?",
        circuit.measure,
        circuit.work,
        circuit.RECORDS,
        needs=("nouns",),
    ),
}
ALWAYS = "heads"  # every verdict depends on it


def choose(
    only: Collection[str] | str | None = None, without: Collection[str] | str = ()
) -> frozenset[str]:
    """The names of the experiments that a report runs: the requested ones, the ones that they need,
    and "heads".

    only: the experiments to run, as a list or as text such as "heads,nouns"; all if None
    without: experiments to omit, with all that need them

    Raises InputError for an unknown name, or if "heads" would be omitted.

    Example:
        >>> from probe.experiments.table import choose
        >>> sorted(choose(only="circuit"))
        ['circuit', 'heads', 'nouns']
        >>> sorted(choose(without="head_parts, nouns, qk, readings, lessons, shares, sets"))
        ['backups', 'controls', 'cue_sample', 'heads']
    """
    names = {ALWAYS}
    for name in EXPERIMENTS if only is None else _names(only):
        names |= _with_needs(name)
    left_out = set(_names(without))
    if ALWAYS in left_out:
        raise InputError(
            f"Cannot omit the experiment {ALWAYS}: every report answers which heads move the word. "
            f"Omit some of {_listed(ALWAYS)}."
        )
    # An experiment is also omitted if it needs an omitted one.
    return frozenset(name for name in names if left_out.isdisjoint(_with_needs(name)))


def _with_needs(name: str) -> set[str]:
    """The name of an experiment and the names of all that it needs."""
    return {name}.union(*map(_with_needs, EXPERIMENTS[name].needs))


def _names(argument: Collection[str] | str) -> list[str]:
    """Names of experiments, given as a list or as text.

    Raises InputError for an unknown name.
    """
    if isinstance(argument, str):
        names = [name.strip() for name in argument.split(",")]
    else:
        names = [*argument] if isinstance(argument, Collection) else [argument]
    for name in names:
        # A list, because a wrong argument may not be hashable.
        if name not in list(EXPERIMENTS):
            raise InputError(
                f"Cannot choose experiments: {name!r} is unknown. Give some of {_listed()}, "
                "separated by commas."
            )
    return names


def _listed(*omitted: str) -> str:
    """The names of all experiments except some, for a message."""
    return ", ".join(name for name in EXPERIMENTS if name not in omitted)
