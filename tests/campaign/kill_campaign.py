"""Kill surveys repeatedly and count what is lost: a part of `make campaign`.

Every run starts a real `probe survey` of the embedded model and kills it at random times. It repeats
the command until it succeeds, and compares the file of every word with the file of an undisturbed
run.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from inside import Sentence

import probe

MODEL = "tiny-senses"
PAIRS = 3  # of sentences, per word
WAIT = 180.0
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
    """A folder with sentences and the files of an undisturbed survey."""

    folder: Path
    rng: random.Random
    reference: dict[str, bytes]

    def start(self, out: Path) -> subprocess.Popen[str]:
        sentences = f"--sentences={self.folder}/sentences.jsonl"
        command = ["-m", "probe", "survey", f"--model={MODEL}", sentences, "--out", str(out)]
        return subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@dataclass
class Outcome:
    """One run: the number of kills, its exit codes, and what was lost."""

    kills: int = 0
    codes: list[int] = field(default_factory=list)
    lost: int = 0
    different: int = 0
    left_over: int = 0

    def end(self, process: subprocess.Popen[str]) -> str:
        """Wait for the run, and record its exit code; return everything on standard error."""
        _, err = process.communicate(timeout=WAIT)
        self.codes.append(process.returncode)
        return err


def make_workspace(folder: Path, *, seed: int = 0, step: int = 1) -> Workspace:
    """Sentences and the reference run, in this process."""
    corpus = make_words(folder / "sentences.jsonl", step=step)
    probe.survey(MODEL, sentences=corpus, out=folder / "reference")
    return Workspace(folder, random.Random(seed), files_of(folder / "reference"))


def finished(out: Path) -> int:
    """The number of words and sets with a file."""
    return sum(1 for _ in out.glob("words/[!.]*"))


def wait_for(process: subprocess.Popen[str], out: Path, files: int) -> bool:
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


def kill(workspace: Workspace, out: Path, outcome: Outcome) -> None:
    """Start the run and kill it after a random number of words."""
    before = finished(out)
    process = workspace.start(out)
    if wait_for(process, out, before + moment(workspace)):
        time.sleep(workspace.rng.random() * 0.05)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        outcome.kills += 1
    outcome.end(process)


def killed(workspace: Workspace, *, times: int = 1) -> Outcome:
    """Kill a fresh run `times` times, finish it, and count what was lost."""
    outcome = Outcome()
    # Blanks and letters outside ASCII in the path.
    with TemporaryDirectory(dir=workspace.folder, prefix="killed ü ") as folder:
        out = Path(folder) / "out"
        for _ in range(times):
            kill(workspace, out, outcome)
        err = outcome.end(workspace.start(out))
        if outcome.codes[-1]:
            raise RuntimeError(f"after {outcome.kills} kills: {err}")
        files = files_of(out)
        outcome.lost = len(workspace.reference.keys() - files.keys())
        different = set(files.items()) ^ set(workspace.reference.items())
        outcome.different = len({name for name, _ in different if not name.startswith(".")})
        outcome.left_over = sum(name.startswith(".") for name in files)
    return outcome


TIMES = 4  # kills of a run
COLUMNS = ("runs", "kills", "words", "words_lost", "files_different", "left_over")


def campaign(folder: Path, kills: int, *, seed: int = 0) -> pd.DataFrame:
    """Runs until there are `kills`; one row."""
    workspace = make_workspace(folder, seed=seed)
    outcomes: list[Outcome] = []
    while sum(outcome.kills for outcome in outcomes) < kills:
        outcomes.append(killed(workspace, times=TIMES))
        print(outcomes[-1], file=sys.stderr, flush=True)
    words = sum(name.endswith(".word") for name in workspace.reference)
    row = (
        len(outcomes),
        sum(outcome.kills for outcome in outcomes),
        words * len(outcomes),
        sum(outcome.lost for outcome in outcomes),
        sum(outcome.different for outcome in outcomes),
        sum(outcome.left_over for outcome in outcomes),
    )
    return pd.DataFrame([row], columns=COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=36)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        table = campaign(Path(folder), arguments.kills, seed=arguments.seed)
    table.to_csv(arguments.out / "kill_campaign.csv", index=False)


if __name__ == "__main__":
    main()
