"""How far a sweep has come: a bar on a terminal, a line a minute elsewhere, or JSON lines for machines."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TextIO

Step = Callable[[str, int, int], None]
Clock = Callable[[], float]
EVERY = 60.0
EVERY_JSON = 1.0


class Standing(NamedTuple):
    """How far one stage has come, in sentences; how fast, and the seconds left at that pace, None before the first."""

    stage: str
    done: int
    of: int
    per_second: float
    seconds_left: int | None

    @property
    def rest(self) -> str:
        return "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"


@dataclass
class Pace:
    """Where a stage stands, its speed from what was done since it began: what was kept does not count as speed."""

    stage: str = ""
    began: float = 0.0
    at_start: int = 0
    clock: Clock = field(default=time.monotonic)

    def __call__(self, stage: str, done: int, of: int) -> Standing:
        now = self.clock()
        if stage != self.stage:
            self.stage, self.began, self.at_start = stage, now, done
        seconds, new = now - self.began, done - self.at_start
        rate = new / seconds if seconds > 0 else 0.0
        return Standing(stage, done, of, round(rate, 1), round((of - done) / rate) if rate > 0 else None)


@contextmanager
def shown(
    *, as_json: bool, out: TextIO | None = None, err: TextIO | None = None, clock: Clock = time.monotonic
) -> Iterator[Step]:
    """A step function `(stage, sentences done, of how many)` that shows where it stands, as suits the reader."""
    out, err = out or sys.stdout, err or sys.stderr
    if as_json:
        yield _lines(lambda now: _write(out, json.dumps(now._asdict())), every=EVERY_JSON, clock=clock)
    elif err.isatty():
        with _bar(err) as step:
            yield step
    else:
        yield _lines(lambda now: _write(err, said(now)), every=EVERY, clock=clock)


def _write(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


def said(now: Standing) -> str:
    """One line for a log."""
    if not now.of:
        return now.stage
    return f"{now.stage}: {now.done:,} of {now.of:,} sentences, {now.per_second} per second{now.rest}"


def duration(seconds: float) -> str:
    """Seconds in the largest units that matter: 2 h 5 min, 3 min 10 s, 8 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _lines(write: Callable[[Standing], None], *, every: float, clock: Clock) -> Step:
    """A line when a stage begins, when it ends, and in between at most one per `every` seconds."""
    pace = Pace(clock=clock)
    last = [0.0]

    def step(stage: str, done: int, of: int) -> None:
        begins = stage != pace.stage
        now = pace(stage, done, of)
        if begins or done >= of or pace.clock() - last[0] >= every:
            last[0] = pace.clock()
            write(now)

    return step


@contextmanager
def _bar(err: TextIO) -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
    with Progress(*columns, console=Console(file=err), transient=True) as bar:
        task, pace = bar.add_task("", total=1, pace=""), Pace()

        def step(stage: str, done: int, of: int) -> None:
            now = pace(stage, done, of)
            said = f"{now.per_second} sentences/s{now.rest}"
            bar.update(task, description=stage, completed=done, total=max(of, 1), pace=said)

        yield step
