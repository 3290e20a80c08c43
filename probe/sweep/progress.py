"""How far a sweep has come: a bar on a terminal, a line a minute elsewhere, or JSON lines for machines."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

Step = Callable[[str, int, int], None]
Clock = Callable[[], float]
EVERY = 60.0
EVERY_JSON = 1.0


@dataclass
class Pace:
    """Sentences per second and seconds left of one stage, from what was done since it began.

    Kept ones do not count as speed.
    """

    stage: str = ""
    began: float = 0.0
    at_start: int = 0
    clock: Clock = field(default=time.monotonic)

    def __call__(self, stage: str, done: int, of: int) -> dict[str, object]:
        now = self.clock()
        if stage != self.stage:
            self.stage, self.began, self.at_start = stage, now, done
        seconds, new = now - self.began, done - self.at_start
        rate = new / seconds if seconds > 0 else 0.0
        left = (of - done) / rate if rate > 0 else None
        return {
            "stage": stage,
            "done": done,
            "of": of,
            "per_second": round(rate, 1),
            "seconds_left": left if left is None else round(left),
        }


@contextmanager
def shown(
    *, as_json: bool, out: TextIO | None = None, err: TextIO | None = None, clock: Clock = time.monotonic
) -> Iterator[Step]:
    """A step function `(stage, sentences done, of how many)` that shows where it stands, as suits the reader."""
    out, err = out or sys.stdout, err or sys.stderr
    if as_json:
        yield _lines(lambda facts: _write(out, json.dumps(facts)), every=EVERY_JSON, clock=clock)
    elif err.isatty():
        with _bar(err) as step:
            yield step
    else:
        yield _lines(lambda facts: _write(err, said(facts)), every=EVERY, clock=clock)


def _write(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


def said(facts: dict[str, object]) -> str:
    """One line for a log."""
    left = facts["seconds_left"]
    rest = "" if left is None else f", {duration(float(str(left)))} left"
    if not facts["of"]:
        return str(facts["stage"])
    return f"{facts['stage']}: {facts['done']:,} of {facts['of']:,} sentences, {facts['per_second']} per second{rest}"


def duration(seconds: float) -> str:
    """Seconds in the largest units that matter: 2 h 5 min, 3 min 10 s, 8 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _lines(write: Callable[[dict[str, object]], None], *, every: float, clock: Clock) -> Step:
    """A line when a stage begins, when it ends, and in between at most one per `every` seconds."""
    pace = Pace(clock=clock)
    last = [0.0]

    def step(stage: str, done: int, of: int) -> None:
        begins = stage != pace.stage
        facts = pace(stage, done, of)
        if begins or done >= of or pace.clock() - last[0] >= every:
            last[0] = pace.clock()
            write(facts)

    return step


@contextmanager
def _bar(err: TextIO) -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
    with Progress(*columns, console=Console(file=err), transient=True) as bar:
        task, pace = bar.add_task("", total=1, pace=""), Pace()

        def step(stage: str, done: int, of: int) -> None:
            facts = pace(stage, done, of)
            left = facts["seconds_left"]
            rest = "" if left is None else f", {duration(float(str(left)))} left"
            bar.update(
                task,
                description=stage,
                completed=done,
                total=max(of, 1),
                pace=f"{facts['per_second']} sentences/s{rest}",
            )

        yield step
