"""Progress of long work: how it is reported to the caller."""

from collections import Counter
from collections.abc import Callable, Mapping
from threading import Lock
from time import monotonic

# Called with the name of the current stage, and the share of all work that is finished, 0 to 1.
Progress = Callable[[str, float], None]
# `begin(name)`: says that a stage of the work begins.
Begin = Callable[[str], None]


def silent(name: str, share: float) -> None:
    """Report nothing."""


def unreported(name: str) -> None:
    """A stage whose progress is not reported."""


def part_of(report: Progress, first: float, last: float) -> Progress:
    """Progress of a part of the work, which is reported as a share of all work.

    first, last: the shares of all work that are finished when the part begins and ends

    Example:
        >>> from probe.progress import part_of
        >>> second_half = part_of(lambda name, share: print(name, share), 0.5, 1.0)
        >>> second_half("swapping heads", 0.5)
        swapping heads 0.75
    """

    def report_part(stage: str, share: float) -> None:
        # Rounding could exceed the end of the part, and the next part would then go back.
        report(stage, min(last, first + share * (last - first)))

    return report_part


class Countdown:
    """Reports the share of the time of some work that has passed, whenever a stage begins.

    A stage is expected to take as long as the last time, for the word before. How long it takes the
    first time is estimated from the stages that have run.

    seconds: about how long each stage takes; only the ratios count
    planned: how often each stage is to be run

    Of stages that run side by side, each counts as finished when the next one begins: the time of
    all together is right.
    """

    def __init__(
        self, report: Progress, seconds: Mapping[str, float], planned: Mapping[str, int]
    ) -> None:
        self._report = report
        self._seconds = seconds
        self._left = Counter(planned)
        self._took: dict[str, float] = {}
        self._stage = ""
        self._share = 0.0
        self._started = self._stage_started = monotonic()
        self._one_at_a_time = Lock()

    def begin(self, stage: str, name: str = "") -> None:
        """Report that a stage begins and the one before it is finished.

        name: reported instead of the stage
        """
        with self._one_at_a_time:
            now = monotonic()
            if self._stage:
                self._took[self._stage] = now - self._stage_started
                self._left[self._stage] -= 1
            self._stage, self._stage_started = stage, now
            passed = now - self._started
            left = sum(self._expected(each) * number for each, number in self._left.items())
            # A stage may take longer than expected, but what is finished is not undone.
            self._share = max(self._share, passed / (passed + left) if left > 0 else 1.0)
            self._report(name or stage, self._share)

    def _expected(self, stage: str) -> float:
        """About how many seconds a stage will take."""
        if stage in self._took:
            return self._took[stage]
        usual = sum(self._seconds[each] for each in self._took)
        pace = sum(self._took.values()) / usual if usual else 1.0
        return pace * self._seconds[stage]
