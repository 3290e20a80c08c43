"""Progress of long work: how it is reported to the caller, and how finished work is counted."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

# Called with the name of the current stage, and the share of all work that is finished, 0 to 1.
Progress = Callable[[str, float], None]
# `stage(name)`: the context in which one stage of the work runs.
Stage = Callable[[str], AbstractContextManager[None]]

STEP = 0.001  # of the work: smaller steps are not reported
LEAST = 0.005  # the smallest share of the work that a stage counts for: statistics run no block

_counters: ContextVar[tuple[Callable[[int], None], ...]] = ContextVar("counters", default=())


def silent(name: str, share: float) -> None:
    """Report nothing."""


def unreported(name: str) -> AbstractContextManager[None]:
    """A stage whose progress is not reported."""
    return nullcontext()


def worked(units: int) -> None:
    """Count finished work. A unit is one position in one block of a model."""
    for count in _counters.get():
        count(units)


def part_of(report: Progress, first: float, last: float, *, name: str | None = None) -> Progress:
    """Progress of a part of the work, which is reported as a share of all work.

    first, last: the shares of all work that are finished when the part begins and ends
    name: reported instead of the stages of the part

    Example:
        >>> from probe.progress import part_of
        >>> second_half = part_of(lambda name, share: print(name, share), 0.5, 1.0)
        >>> second_half("swapping heads", 0.5)
        swapping heads 0.75
    """

    def report_part(stage: str, share: float) -> None:
        # Rounding could exceed the end of the part, and the next part would then go back.
        report(name or stage, min(last, first + share * (last - first)))

    return report_part


@contextmanager
def counting(count: Callable[[int], None]) -> Iterator[None]:
    """Call `count` with the units of all work that this thread finishes inside the context.

    Example:
        >>> from probe.progress import counting, worked
        >>> units = []
        >>> with counting(units.append):
        ...     worked(30)
        >>> units
        [30]
    """
    token = _counters.set((*_counters.get(), count))
    try:
        yield
    finally:
        _counters.reset(token)


def stages(report: Progress, planned: Mapping[str, float]) -> Stage:
    """`stage(name)`, the context of one stage of the work, whose progress goes to `report`.

    planned: the upper bound of the units of each stage. A stage ends at its share even if it takes
        fewer units, and its progress stops there if it takes more. An error of the plan therefore
        does not add up over stages.

    Example:
        >>> from probe.progress import stages, worked
        >>> log = []
        >>> stage = stages(lambda name, share: log.append((name, round(share, 2))), {"swaps": 30})
        >>> with stage("swaps"):
        ...     worked(15)
        >>> log
        [('swaps', 0.0), ('swaps', 0.5)]
    """
    # share of a stage = its units / the units of all stages, each at least LEAST of the work
    least = max(1.0, LEAST * sum(planned.values()))
    units = {name: max(least, number) for name, number in planned.items()}
    total = sum(units.values())
    finished = 0.0

    @contextmanager
    def one_stage(name: str) -> Iterator[None]:
        nonlocal finished
        first = finished
        counted = 0
        reported = first
        report(name, first)

        def count(number: int) -> None:
            nonlocal counted, reported
            counted += number
            share = min(1.0, first + min(counted, units[name]) / total)
            if share - reported >= STEP:
                reported = share
                report(name, share)

        with counting(count):
            yield
        finished = min(1.0, first + units[name] / total)

    return one_stage
