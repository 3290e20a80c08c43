"""Kill surveys repeatedly and count what is lost: a part of `make campaign`.

Every run starts a real `probe survey` of the embedded model in a new process group and damages it at
a random time. It repeats the command until it succeeds, and compares the file of every word with the
file of an undisturbed run. The tests run a few faults of each kind.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from kept import write_totals

import probe
from probe.text.sentences import Sentence

MODEL = "tiny-senses"
PAIRS = 3  # of sentences, per word
WAIT = 180.0
FULL = "no space left on device"
GONE = "the scheduler is gone"
# Jobs that a shell puts in the background ignore Ctrl-C, and so do their children.
PROGRAM = """import signal
signal.signal(2, signal.default_int_handler)
from probe.cli import main
main()"""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
FIELDS = ("word", "sense", "text", "start", "end", "frame", "pair", "cue_start", "cue_end")


def some_sentences(step: int = 1) -> list[Sentence]:
    """A few pairs of every word that ships, or of every `step`-th word. The embedded
    model knows some of them."""
    words = {word: probe.lexicon.expand_natural(word) for word in probe.lexicon.natural_words()}
    words |= {word: probe.lexicon.expand(word) for word in probe.lexicon.words()}
    sentences = []
    for corpus in list(words.values())[::step]:
        by_pair: dict[str, list[Sentence]] = {}
        frames: set[str] = set()
        for row in corpus.sentences:
            by_pair.setdefault(row.pair, []).append(row)
        for rows in by_pair.values():
            cues = {row.cue_word for row in rows}
            if len(frames) < 2 * PAIRS and not cues & frames:
                frames |= cues
                sentences += rows
    return sentences


def make_words(path: Path, *, step: int = 1) -> Path:
    """A file of these sentences."""
    lines = []
    for sentence in some_sentences(step):
        row = {name: value for name, value in asdict(sentence).items() if name in FIELDS}
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


def files_of(out: Path) -> dict[str, bytes]:
    """The files of the words of a survey."""
    return {path.name: path.read_bytes() for path in sorted(out.glob("words/*"))}


@dataclass
class Workspace:
    """A folder with sentences and the files of an undisturbed survey.

    forked: runs without Dask start as `Forked` processes, which load no libraries
    """

    folder: Path
    rng: random.Random
    reference: dict[str, bytes] = field(default_factory=dict)
    forked: bool = False

    @property
    def base(self) -> list[str]:
        return [f"--model={MODEL}", f"--sentences={self.folder}/sentences.jsonl"]

    def start(self, out: Path, *more: str) -> "subprocess.Popen[str] | Forked":
        arguments = ["survey", *self.base, "--out", str(out), *more]
        if self.forked and "dask" not in more:
            return Forked(arguments, out.parent)
        command = [sys.executable, "-c", PROGRAM, *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            command, **pipes, env=ENVIRONMENT, cwd=out.parent, start_new_session=True
        )


class Forked:
    """`probe ARGUMENTS` in a process forked from a server with the libraries loaded; used like a
    `Popen`."""

    def __init__(self, arguments: Sequence[str], folder: Path):
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(
            ["probe.cli", "probe.studies.survey", "probe.pages.survey", "transformer_lens"]
        )
        self._outputs = [folder / f"{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        self._process = server.Process(
            target=_run_command, args=(list(arguments), folder, *self._outputs)
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def communicate(self, *, timeout: float) -> tuple[str, str]:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("probe survey", timeout)
        out, err = (
            path.read_text(encoding="utf-8") if path.exists() else "" for path in self._outputs
        )
        return out, err


def _run_command(arguments: list[str], folder: Path, *outputs: Path) -> None:
    """Do what PROGRAM does, in a new session, with standard output and error in files."""
    os.setsid()
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["probe", *arguments]
    from probe.cli import main

    main()


@dataclass
class Outcome:
    """One run: the number of kills, the output of the run, and what was lost."""

    kind: str
    kills: int = 0
    finished: int = 0
    codes: list[int] = field(default_factory=list)
    last_line: str = ""
    lost: int = 0
    different: int = 0
    left_over: int = 0

    def end(self, process: "subprocess.Popen[str] | Forked") -> str:
        """Wait for the run, and record its exit code and its last line; return everything on
        standard error."""
        _, err = process.communicate(timeout=WAIT)
        self.codes.append(process.returncode)
        self.last_line = (err.strip().splitlines() or [""])[-1]
        return err


def make_workspace(
    folder: Path, *, seed: int = 0, forked: bool = False, step: int = 1
) -> Workspace:
    """Sentences and the reference run, in this process."""
    corpus = make_words(folder / "sentences.jsonl", step=step)
    probe.survey(MODEL, sentences=corpus, out=folder / "reference")
    return Workspace(folder, random.Random(seed), files_of(folder / "reference"), forked)


def finished(out: Path) -> int:
    """The number of words and sets with a file."""
    return sum(1 for _ in out.glob("words/[!.]*"))


def wait_for(process: subprocess.Popen[str] | Forked, out: Path, files: int) -> bool:
    """Wait for this number of files; False if the run ended before."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end and process.poll() is None:
        if finished(out) >= files:
            return True
        time.sleep(0.002)
    return False


def moment(workspace: Workspace) -> int:
    """The number of further files before the fault: none, the first words, or later."""
    return workspace.rng.choice(
        [0, 1, 2, workspace.rng.randrange(3, len(workspace.reference) // 3)]
    )


def kill_group(process: subprocess.Popen[str] | Forked, how: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, how)


# --- what happens to a run ------------------------------------------------------------------------


def driver_killed(workspace: Workspace, out: Path, outcome: Outcome, *more: str) -> None:
    """The driver dies by SIGKILL."""
    before = finished(out)
    process = workspace.start(out, *more)
    if wait_for(process, out, before + moment(workspace)):
        time.sleep(workspace.rng.random() * 0.05)
        kill_group(process, signal.SIGKILL)
        outcome.kills += 1
    outcome.end(process)


def driver_killed_with_dask(workspace: Workspace, out: Path, outcome: Outcome) -> None:
    """The driver dies by SIGKILL with the two workers in it."""
    driver_killed(workspace, out, outcome, "--engine", "dask", "--workers", "2")


def worker_killed(workspace: Workspace, out: Path, outcome: Outcome) -> None:
    """A worker in another process dies by SIGKILL: another worker measures its words."""
    with separate_dask(out.parent, workers=2) as (_, workers, address):
        process = workspace.start(out, "--engine", "dask", "--scheduler", address)
        if wait_for(process, out, 1 + moment(workspace)):
            workers[0].kill()
            outcome.kills += 1
        outcome.end(process)


def scheduler_killed(workspace: Workspace, out: Path, outcome: Outcome) -> None:
    """A separate Dask scheduler dies by SIGKILL: the driver ends with a message."""
    with separate_dask(out.parent) as (scheduler, _, address):
        process = workspace.start(out, "--engine", "dask", "--scheduler", address)
        if wait_for(process, out, 2 + moment(workspace)):
            scheduler.kill()
            outcome.kills += 1
        outcome.end(process)


def interrupted(workspace: Workspace, out: Path, outcome: Outcome) -> None:
    """Ctrl-C."""
    before = finished(out)
    process = workspace.start(out)
    if wait_for(process, out, max(before, 1) + moment(workspace)):
        kill_group(process, signal.SIGINT)
        outcome.kills += 1
    outcome.end(process)


def truncated(workspace: Workspace, out: Path, outcome: Outcome) -> None:
    """The driver dies, and finished files are truncated."""
    process = workspace.start(out)
    if wait_for(process, out, 6 + moment(workspace)):
        kill_group(process, signal.SIGKILL)
        outcome.kills += 1
    outcome.end(process)
    files = sorted(out.glob("words/[!.]*"))
    for victim in workspace.rng.sample(files, min(3, len(files))):
        victim.write_bytes(victim.read_bytes()[: workspace.rng.randrange(victim.stat().st_size)])
        outcome.kills += 1


def disk_full(workspace: Workspace, out: Path, outcome: Outcome) -> None:
    """The disk is full: the run ends with a message, and continues once there is space."""
    out.mkdir()
    size = workspace.rng.randrange(60, 200)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(out)], check=True)
    outcome.end(workspace.start(out))
    outcome.kills += 1
    subprocess.run(["mount", "-o", "remount,size=64m", str(out)], check=True)


KINDS: dict[str, Callable[[Workspace, Path, Outcome], None]] = {
    kind.__name__: kind
    for kind in (
        *(
            driver_killed,
            driver_killed_with_dask,
            worker_killed,
            scheduler_killed,
            interrupted,
            truncated,
            disk_full,
        ),
    )
}


def can_mount() -> bool:
    """Whether a small file system can be created here."""
    with TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        result = subprocess.run(command, capture_output=True, check=False)
        if result.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return result.returncode == 0


@contextmanager
def separate_dask(folder: Path, *, workers: int = 1):
    """A scheduler and workers in separate processes; yields their processes and the address."""
    environment = ENVIRONMENT | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}
    note = folder / f"scheduler-{time.monotonic_ns()}.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    here = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(note)]
    quiet = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "env": environment,
        "cwd": folder,
    }
    scheduler = subprocess.Popen([*command, *here], **quiet)
    started = []
    try:
        end = time.monotonic() + WAIT
        while time.monotonic() < end and not (note.exists() and note.stat().st_size):
            time.sleep(0.05)
        address = json.loads(note.read_text())["address"]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
        here = ["--host", "127.0.0.1", "--no-dashboard", "--no-nanny", "--death-timeout", "10"]
        for _ in range(workers):
            started.append(subprocess.Popen([*command, *here], **quiet))
        yield scheduler, started, address
    finally:
        for process in (*started, scheduler):
            process.kill()
            process.wait()


def run_kind(workspace: Workspace, kind: str, *, times: int = 1) -> Outcome:
    """Cause one kind of fault in a fresh run `times` times, finish the run, and count what was
    lost."""
    outcome = Outcome(kind)
    awkward = f"{kind} ü "  # blanks and letters outside ASCII in the path
    with TemporaryDirectory(dir=workspace.folder, prefix=awkward) as folder:
        out = Path(folder) / "out"
        try:
            for _ in range(times):
                KINDS[kind](workspace, out, outcome)
            outcome.finished = finished(out)
            last_line = outcome.last_line
            err = outcome.end(workspace.start(out))
            if outcome.codes[-1]:
                raise RuntimeError(f"after {kind}: {err}")
            outcome.last_line = last_line
            files = files_of(out)
            outcome.lost = len(workspace.reference.keys() - files.keys())
            different = set(files.items()) ^ set(workspace.reference.items())
            outcome.different = len({name for name, _ in different if not name.startswith(".")})
            outcome.left_over = sum(name.startswith(".") for name in files)
        finally:
            if os.path.ismount(out):
                subprocess.run(["umount", str(out)], check=True)
            shutil.rmtree(out, ignore_errors=True)
    return outcome


TIMES = {"driver_killed": 4, "interrupted": 3, "driver_killed_with_dask": 2}
COLUMNS = ("kind", "runs", "kills", "words", "words_lost", "files_different", "left_over")


def campaign(
    folder: Path, kills: int, kinds: Sequence[str], *, seed: int = 0
) -> list[dict[str, object]]:
    """Kinds in turn until there are `kills`; one row for each kind."""
    workspace = make_workspace(folder, seed=seed, forked=True)
    outcomes: dict[str, list[Outcome]] = {kind: [] for kind in kinds}
    while sum(outcome.kills for of_kind in outcomes.values() for outcome in of_kind) < kills:
        for kind in kinds:
            outcomes[kind].append(run_kind(workspace, kind, times=TIMES.get(kind, 1)))
            print(outcomes[kind][-1], file=sys.stderr, flush=True)
    rows = []
    for kind, of_kind in outcomes.items():
        counts = (
            sum(getattr(o, name) for o in of_kind) for name in ("lost", "different", "left_over")
        )
        words = sum(name.endswith(".word") for name in workspace.reference)
        facts = (kind, len(of_kind), sum(o.kills for o in of_kind), words * len(of_kind), *counts)
        rows.append(dict(zip(COLUMNS, facts, strict=True)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=36)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("reports"))
    arguments = parser.parse_args()
    kinds = [kind for kind in arguments.kinds if kind != "disk_full" or can_mount()]
    with TemporaryDirectory() as folder:
        rows = campaign(Path(folder), arguments.kills, kinds, seed=arguments.seed)
        write_totals(arguments.out / "kill_campaign.csv", rows, order=sorted(KINDS))


if __name__ == "__main__":
    main()
