"""Progress of long work: how it is reported to the caller."""

from collections.abc import Callable, Mapping

# Called with the name of the current stage, and the share of all work that is finished, 0 to 1.
Progress = Callable[[str, float], None]
# `begin(name)`: says that a stage of the work begins.
Begin = Callable[[str], None]


def silent(name: str, share: float) -> None:
    """Report nothing."""


def unreported(name: str) -> None:
    """A stage whose progress is not reported."""


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


def stages(report: Progress, seconds: Mapping[str, float]) -> Begin:
    """`begin(name)`, which reports that a stage begins and all earlier ones are finished.

    seconds: about how long each stage takes, in their order; only the ratios count

    Example:
        >>> from probe.progress import stages
        >>> begin = stages(lambda name, share: print(name, share), {"reading": 10, "swaps": 30})
        >>> begin("swaps")
        swaps 0.25
    """
    total = max(sum(seconds.values()), 1e-9)
    finished: dict[str, float] = {}
    for name in seconds:
        finished[name] = sum(seconds[earlier] for earlier in finished) / total

    def begin(name: str) -> None:
        report(name, finished[name])

    return begin
