"""The experiments: the modules of this folder with a question, which have an ORDER.

An experiment is a module, and next to it a template of the same name if the page shows it. It has

    ORDER       its place in the order of work, and of the sections of the page
    NEEDS       the experiments whose results it reads, which are run before it
    ANSWERS     whether the answer of the page depends on it; the page is first written when all
                such experiments are finished
    TABLES      its tables of words, by name
    measure     from a `WordRun` to its result: a dataset (`probe.experiments.columns.dataset`); or
                a dataset for each table, by its name; or datasets by other names, such as one for
                each pair of senses by its number; None if there is nothing to measure
    SECONDS     how long it took once for *bank* in SmolLM2, for the progress bar

and, if its template is a section of the page, the section's HEADING and TITLE. FILTERS are
functions for its template, and COLUMNS the meaning of columns that only its tables have. The first
line of its docstring says what it asks. It depends only on the run, on the experiments that it
needs, and on those that answer: `run.top_heads` are the heads that the page names, which their
verdicts decide. So a kept record can be continued in any order.

The experiments of ALWAYS, `nouns` and `cue_sample` are imported by name elsewhere; all others can
be removed with their template.
"""

import pkgutil
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

import probe.experiments
from probe.errors import InputError
from probe.experiments.columns import Table
from probe.experiments.run import WordRun


class Experiment(Protocol):
    """The module of an experiment."""

    ORDER: int
    NEEDS: tuple[str, ...]
    ANSWERS: bool
    SECONDS: float
    TABLES: Mapping[str, Table]
    # Of a section of the page; those of others lack it.
    HEADING: str
    TITLE: str
    __file__: str
    measure: Callable[[WordRun], Any]


@cache  # not at import: other modules of the folder, which it looks through, import this one
def every_experiment() -> dict[str, Experiment]:
    """The experiments of this folder by name, in their order."""
    folder = probe.experiments
    names = [module.name for module in pkgutil.iter_modules(folder.__path__)]
    modules = {name: import_module(f"{folder.__name__}.{name}") for name in names}
    found = {name: module for name, module in modules.items() if hasattr(module, "ORDER")}
    return {
        name: cast(Experiment, found[name]) for name in sorted(found, key=lambda n: found[n].ORDER)
    }


ALWAYS = ("senses", "heads")  # every verdict depends on them


def choose(
    only: Collection[str] | str | None = None, without: Collection[str] | str = ()
) -> frozenset[str]:
    """The names of the experiments that a report runs: the requested ones, the ones that they need,
    and ALWAYS.

    only: the experiments to run, as a list or as text such as "heads,nouns"; all if None
    without: experiments to omit, with all that need them

    Raises InputError for an unknown name, or if one of ALWAYS would be omitted.

    Example:
        >>> from probe.experiments.table import choose
        >>> sorted(choose(only="circuit"))
        ['circuit', 'heads', 'nouns', 'senses']
        >>> "noun_mlps" in choose(without="nouns")  # it needs the nouns
        False
    """
    names = {*ALWAYS}
    for name in every_experiment() if only is None else _names(only):
        names |= _with_needs(name)
    left_out = set(_names(without))
    if needed := sorted(left_out.intersection(ALWAYS)):
        raise InputError(
            f"Cannot omit the experiment {needed[0]}: every report answers which heads move the "
            f"word. Omit some of {_listed(*ALWAYS)}."
        )
    # An experiment is also omitted if it needs an omitted one.
    return frozenset(name for name in names if left_out.isdisjoint(_with_needs(name)))


def _with_needs(name: str) -> set[str]:
    """The name of an experiment and the names of all that it needs."""
    return {name}.union(*map(_with_needs, every_experiment()[name].NEEDS))


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
        if name not in list(every_experiment()):
            raise InputError(
                f"Cannot choose experiments: {name!r} is unknown. Give some of {_listed()}, "
                "separated by commas."
            )
    return names


def _listed(*omitted: str) -> str:
    """The names of all experiments except some, for a message."""
    return ", ".join(name for name in every_experiment() if name not in omitted)
