"""How long work tells its caller what it is doing, and how the work that is done is counted."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

# Called with what is being done, and the share of all work that is finished, 0 to 1.
Progress = Callable[[str, float], None]
# `stage(name)`: the context in which one stage of the work is done.
Stage = Callable[[str], AbstractContextManager[None]]

STEP = 0.001  # of the work: finer progress is not told
LEAST = 0.005  # of the work, that a stage counts at least: statistics run no block

_counters: ContextVar[tuple[Callable[[int], None], ...]] = ContextVar("counters", default=())


def silent(stage: str, share: float) -> None:
    """Says nothing."""


def unreported(stage: str) -> AbstractContextManager[None]:
    """A stage whose progress goes nowhere."""
    return nullcontext()


def worked(units: int) -> None:
    """Count work that was done. A unit is one position that went through one block of a model."""
    for count in _counters.get():
        count(units)


@contextmanager
def counting(count: Callable[[int], None]) -> Iterator[None]:
    """Call `count` with the units of all work that is done meanwhile in this thread.

    Example:
        >>> from probe.progress import counting, worked
        >>> done = []
        >>> with counting(done.append):
        ...     worked(30)
        >>> done
        [30]
    """
    token = _counters.set((*_counters.get(), count))
    try:
        yield
    finally:
        _counters.reset(token)


def stages(report: Progress, planned: Mapping[str, float]) -> Stage:
    """`stage(name)`, in which one stage of the work is done: its progress goes to `report`.

    planned: the units that each stage takes, at most. A stage that takes fewer ends at its share
        nevertheless, and one that takes more stops there, so a wrong plan is corrected stage by
        stage.

    Example:
        >>> from probe.progress import stages, worked
        >>> told = []
        >>> stage = stages(lambda name, share: told.append((name, round(share, 2))), {"swaps": 30})
        >>> with stage("swaps"):
        ...     worked(15)
        >>> told
        [('swaps', 0.0), ('swaps', 0.5)]
    """
    least = max(1.0, LEAST * sum(planned.values()))
    units = {name: max(least, number) for name, number in planned.items()}
    total = sum(units.values())
    done = 0.0

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        nonlocal done
        first = done
        counted = 0
        told = first
        report(name, first)

        def count(number: int) -> None:
            nonlocal counted, told
            counted += number
            share = min(1.0, first + min(counted, units[name]) / total)
            if share - told >= STEP:
                told = share
                report(name, share)

        with counting(count):
            yield
        done = min(1.0, first + units[name] / total)

    return stage
