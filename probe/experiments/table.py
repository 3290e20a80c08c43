"""The experiments, one row each: what is measured beside the swap of every head.

An experiment takes a `Run` and returns what a record keeps: one value for the word, or a tuple with
one for every two of its senses; None where there is nothing to measure. It depends on nothing but
the run and the experiments that it needs, so a kept record can be continued in any order.
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

    about: what it asks.
    measure: the measurement; later experiments find what it returns in `Run.earlier`.
    work: what it takes at most.
    records: the classes that it returns, so that they can be written and read back.
    tables: what it has to say of words as tables, by name.
    needs: the experiments whose results it reads, which are run before it.
    answers: whether the answer rests on it: the page is written first when these are measured.
    from_weights: whether it computes from the weights alone, and so leaves out the hooks of a model
        whose owner's hooks stay on; it is then not run.
    """

    about: str
    measure: Callable[[Run], Any]
    work: Callable[[Size], Work]
    records: tuple[type, ...]
    tables: Mapping[str, Table] = {}
    needs: tuple[str, ...] = ()
    answers: bool = False
    from_weights: bool = False


# In the order in which they are run, those that answer first.
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
        from_weights=True,
    ),
    "noun_mlps": Experiment(
        "do MLPs do the same for unambiguous nouns in the word's place?",
        noun_mlps.measure,
        noun_mlps.work,
        noun_mlps.RECORDS,
        needs=("nouns",),
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
        needs=("heads",),
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
    "qk": Experiment(
        "why do the first heads attend to the cue?",
        qk.measure,
        qk.work,
        qk.RECORDS,
        qk.TABLES,
        from_weights=True,
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
        needs=("nouns",),
        from_weights=True,
    ),
}
ALWAYS = "heads"  # every verdict rests on it


def choose(
    only: Collection[str] | str | None = None, without: Collection[str] | str = ()
) -> frozenset[str]:
    """The names of the experiments that a report runs: those asked for, what these need, and heads.

    only: the experiments to run, as a list or as text such as "heads,nouns"; all for None.
    without: experiments to leave out, with all that need them.
    Raises InputError for an unknown name, and where heads would be left out.

    Example:
        >>> from probe.experiments.table import choose
        >>> sorted(choose(only="circuit"))
        ['circuit', 'heads', 'nouns']
        >>> sorted(choose(without="head_parts, nouns, qk, readings, lessons, shares, sets"))
        ['backups', 'controls', 'cue_sample', 'heads']
    """
    chosen = {ALWAYS}
    for name in EXPERIMENTS if only is None else _names(only):
        chosen |= _with_needs(name)
    left_out = set(_names(without))
    if ALWAYS in left_out:
        raise InputError(
            f"Choosing experiments: {ALWAYS} cannot be left out, because every report answers "
            f"which heads move the word; leave out some of {_listed(ALWAYS)}."
        )
    return frozenset(name for name in chosen if left_out.isdisjoint(_with_needs(name)))


def _with_needs(name: str) -> set[str]:
    """An experiment and all that it needs."""
    return {name}.union(*map(_with_needs, EXPERIMENTS[name].needs))


def _names(given: Collection[str] | str) -> list[str]:
    """Names of experiments, given as a list or as text. Raises InputError for an unknown one."""
    if isinstance(given, str):
        names = [name.strip() for name in given.split(",")]
    else:
        names = [*given] if isinstance(given, Collection) else [given]
    for name in names:
        if name not in list(EXPERIMENTS):  # which takes names that cannot be hashed, too
            raise InputError(
                f"Choosing experiments: there is no {name!r}; give some of {_listed()}, separated "
                "by commas."
            )
    return names


def _listed(*left_out: str) -> str:
    return ", ".join(name for name in EXPERIMENTS if name not in left_out)
