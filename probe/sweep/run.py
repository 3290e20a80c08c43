"""A sweep from files to shards: rows dealt out, pass one, pass two, manifest.

Whatever was finished before is not done again.

    DIR/manifest.json            what the sweep in DIR is, and its counts
    DIR/set-KEY/                 one set of shards; KEY: of weights, code version, options and the
                                 sentences' bytes
        heads/*.parquet          one row per measured sentence and head
        sentences/*.parquet      one row per row read, each exactly once, with what became of it
        rows/ axes/ receipts/    the blocks of rows, what they are measured along, and what is done

With other options, another model or other sentences the key is another, and the shards of before
stay where they are.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pyarrow

import probe
from probe.errors import ProbeError
from probe.evidence.columns import rounded
from probe.evidence.tables import certificate_rows
from probe.model.architectures import require_single
from probe.model.check import certify
from probe.model.load import load
from probe.model.model import Model
from probe.provenance import command_line, content_key, manifest
from probe.sweep import shards, work
from probe.sweep.deal import Options, Record, deal, read_index, read_rows, require_something
from probe.sweep.measure import FITTED, TOO_FEW
from probe.sweep.shards import Receipt
from probe.sweep.work import SET, Engine, SweepJob, Unit, Workers, engine, units
from probe.text.files import sha256_of, sources
from probe.text.splits import FIT, REPORT

Step = Callable[[str, int, int], None]
PARTS = (FITTED, FIT, REPORT, "none")
# Reasons that name a row or a sense are counted as one, by how they begin.
KINDS = {start: start for start in ("repeats the sentence", "its split is")} | {
    "its sense": f"its sense {TOO_FEW}"
}
Clock = Callable[[], float]
EVERY, EVERY_JSON = 60.0, 1.0  # seconds from one line of progress to the next, at least


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: the folder of its set, its manifest, and the sentence that says what was
    found there before."""

    folder: Path
    manifest: Mapping[str, Any]
    said: str | None


def sweep(
    model: str,
    paths: Sequence[Path],
    out: Path,
    *,
    options: Options | None = None,
    workers: Workers | None = None,
    step: Step | None = None,
) -> Sweep:
    """Measure every sentence of the files behind `paths` with `model`, a name or folder that every
    worker can load.

    Raises InputError for what cannot be read or written, ModelError and CrossCheckError for a model
    that cannot be trusted.
    """
    options, step, out = options or Options(), step or (lambda stage, done, of: None), Path(out)
    files = sources([Path(path) for path in paths])
    about = [(source.name, sha256_of(source)) for source in files]
    loaded = load(model, device=options.device, dtype=options.dtype)
    require_single(loaded.config.architecture, "a sweep")
    made = _made(loaded, options, about, _command(model, paths, options))
    folder = out / f"{SET}{made['set']}"
    said = _other_set(out, made)
    work.clear()
    with shards.only_writer(folder):
        step("reading", 0, 0)
        index = read_index(folder) or deal(files, folder, options, causal=loaded.config.causal)
        require_something(index)
        _certify(loaded, folder, index)
        job = SweepJob(folder, model, loaded.origin.sha256, options)
        with engine(workers or Workers(), folder) as run:
            fits, blocks = units(made["set"], index)
            _pass(run, job, fits, partial(step, "fitting"))
            receipts = _pass(run, job, blocks, partial(step, "measuring"))
        made |= {"counts": _counts(index, receipts), "shards": [unit.key for unit in blocks]}
        for place in (folder, out):
            shards.store(
                place / "manifest.json",
                (json.dumps(made, indent=2, ensure_ascii=False) + "\n").encode(),
            )
    return Sweep(folder, made, said)


def _command(model: str, paths: Sequence[Path], options: Options) -> str:
    """The `probe sweep` that makes the same shards again, without this machine's folders."""
    usual, names = Options(), [Path(path).name for path in paths]
    place = {
        name: value
        for name in ("device", "dtype")
        if (value := getattr(options, name)) != getattr(usual, name)
    }
    given = {"sentences": names, "model": Path(model).name} | place
    return command_line("sweep", **given, seed=options.seed, block=options.block, out="shards")


def _made(
    model: Model, options: Options, about: Sequence[tuple[str, str]], command: str
) -> dict[str, Any]:
    """What makes this set of shards, and its key."""
    data, chosen = content_key([[name, sha256] for name, sha256 in about]), asdict(options)
    made = manifest(
        model.name,
        model.origin,
        seed=options.seed,
        command=command,
        data_sha256=data,
        options=chosen,
    )
    made |= {"sources": dict(about), "layers": model.config.n_layers, "heads": model.config.n_heads}
    return made | {
        "set": content_key(
            model.origin.sha256, probe.__version__, chosen, model.config.prepend_bos, data
        )
    }


def _other_set(out: Path, made: Mapping[str, Any]) -> str | None:
    """What is said where the folder holds another set of shards: what is different, and that it
    stays."""
    try:
        before = json.loads((out / "manifest.json").read_bytes())
    except (OSError, ValueError):
        before = None
    if not isinstance(before, dict) or before.get("set") in (None, made["set"]):
        return None
    options = before.get("options", {})
    changed = [
        f"{name} ({str(options.get(name))[:40]}, now {str(value)[:40]})"
        for name, value in made["options"].items()
        if options.get(name) != value
    ]
    same = {"the weights": "weights_sha256", "the sentences": "data_sha256"}
    changed += [name for name, key in same.items() if before.get(key) != made[key]]
    if before.get("versions", {}).get("probe") != made["versions"]["probe"]:
        changed.append("the version of probe")
    different = ", ".join(changed) or "how the model is loaded"
    return (
        f"{out} holds another set of shards, {SET}{before['set']}; different now: {different}. "
        f"It stays, and {SET}{made['set']} is made beside it."
    )


def _certify(model: Model, folder: Path, index: Record) -> None:
    """The certificate, on a sentence of each of a few words, is part of the set."""
    if (folder / "certificate.parquet").is_file():
        return
    texts = []
    for about in list(index["words"].values())[:4]:
        texts += [record["text"] for record in read_rows(folder, index, about["key"])[:1]]
    frame = rounded(certificate_rows(certify(model, texts or ["The mole dug a tunnel."]).require()))
    shards.store(
        folder / "certificate.parquet",
        shards.parquet(pyarrow.Table.from_pandas(frame, preserve_index=False)),
    )


def _pass(
    run: Engine, job: SweepJob, wanted: Sequence[Unit], step: Callable[[int, int], None]
) -> list[Receipt]:
    """The receipts of all units, those that are done and whole first; `step` is told the rows done,
    of how many."""
    receipts = [receipt for unit in wanted if (receipt := shards.done(job.folder, unit.key))]
    kept = {receipt["key"] for receipt in receipts}
    missing = [unit for unit in wanted if unit.key not in kept]
    done, of = sum(receipt["rows"] for receipt in receipts), sum(unit.rows for unit in wanted)
    step(done, of)
    for receipt in run(job, missing):
        receipts.append(receipt)
        done += receipt["rows"]
        step(done, of)
    return receipts


def _counts(index: Record, receipts: Sequence[Receipt]) -> dict[str, Any]:
    """How many sentences went in and what became of them. Raises ProbeError where that does not add
    up."""
    parts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for receipt in receipts:
        for name, count in receipt["counts"].items():
            part, _, reason = name.partition("\t")
            parts[part] += count
            if reason:
                reasons[
                    next(
                        (kind for start, kind in KINDS.items() if reason.startswith(start)), reason
                    )
                ] += count
    counted = sum(parts[name] for name in PARTS)
    if counted != index["rows"] or len(receipts) != len(index["blocks"]):
        raise ProbeError(
            f"Counting the sweep: {counted} rows in {len(receipts)} shards, expected "
            f"{index['rows']} in "
            f"{len(index['blocks'])}; delete the set's folder and run the same command again."
        )
    return {
        "in": index["rows"],
        "fitted_on": parts[FITTED],
        "measured": parts[REPORT],
        "left_out": parts[FIT] + parts["none"],
        "reasons": dict(sorted(reasons.items())),
        "shards": len(receipts),
        "rows_of_heads": sum(receipt["heads"] for receipt in receipts),
    }


# --- how far it has come: a bar on a terminal, a line a minute elsewhere, or JSON lines for machine


class Standing(NamedTuple):
    """How far one stage has come, in sentences; how fast, and the seconds left at that pace, None
    before the first."""

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
    """Where a stage stands, its speed from what was done since it began: what was kept does not
    count as speed."""

    stage: str = ""
    began: float = 0.0
    at_start: int = 0
    clock: Clock = time.monotonic

    def __call__(self, stage: str, done: int, of: int) -> Standing:
        now = self.clock()
        if stage != self.stage:
            self.stage, self.began, self.at_start = stage, now, done
        seconds, new = now - self.began, done - self.at_start
        rate = new / seconds if seconds > 0 else 0.0
        return Standing(
            stage, done, of, round(rate, 1), round((of - done) / rate) if rate > 0 else None
        )


@contextmanager
def shown(
    *,
    as_json: bool,
    out: TextIO | None = None,
    err: TextIO | None = None,
    clock: Clock = time.monotonic,
) -> Iterator[Step]:
    """A step function `(stage, sentences done, of how many)` that shows where it stands, as suits
    the reader."""
    out, err = out or sys.stdout, err or sys.stderr
    if as_json:
        yield _lines(out, lambda now: json.dumps(now._asdict()), every=EVERY_JSON, clock=clock)
    elif err.isatty():
        with _bar(err) as step:
            yield step
    else:
        yield _lines(err, said, every=EVERY, clock=clock)


def said(now: Standing) -> str:
    """One line for a log."""
    if not now.of:
        return now.stage
    return (
        f"{now.stage}: {now.done:,} of {now.of:,} sentences, {now.per_second} per second{now.rest}"
    )


def duration(seconds: float) -> str:
    """Seconds in the largest units that matter: 2 h 5 min, 3 min 10 s, 8 s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )


def _lines(stream: TextIO, line: Callable[[Standing], str], *, every: float, clock: Clock) -> Step:
    """A line when a stage begins, when it ends, and in between at most one per `every` seconds."""
    pace, last = Pace(clock=clock), 0.0

    def step(stage: str, done: int, of: int) -> None:
        nonlocal last
        begins = stage != pace.stage
        now = pace(stage, done, of)
        if begins or done >= of or clock() - last >= every:
            last = clock()
            stream.write(line(now) + "\n")
            stream.flush()

    return step


@contextmanager
def _bar(err: TextIO) -> Iterator[Step]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
    )
    with Progress(*columns, console=Console(file=err), transient=True) as bar:
        task, pace = bar.add_task("", total=1, pace=""), Pace()

        def step(stage: str, done: int, of: int) -> None:
            now = pace(stage, done, of)
            speed = f"{now.per_second} sentences/s{now.rest}"
            bar.update(task, description=stage, completed=done, total=max(of, 1), pace=speed)

        yield step
