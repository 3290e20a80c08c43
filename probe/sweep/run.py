"""A sweep from files to shards: rows dealt out, pass one, pass two, manifest.

Whatever was finished before is not done again.

    DIR/manifest.json            what the sweep in DIR is, and its counts
    DIR/set-KEY/                 one set of shards; KEY is made of weights, code version, options and the sentences'
    bytes
        heads/*.parquet          one row per measured sentence and head
        sentences/*.parquet      one row per row read, each exactly once, with what became of it
        rows/ axes/ receipts/    the blocks of rows, what they are measured along, and what is done

With other options, another model or other sentences the key is another, and the shards of before stay where they are.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import probe
from probe.errors import InputError, ProbeError
from probe.model.architectures import require_single
from probe.model.check import certify
from probe.model.load import load
from probe.model.model import Model
from probe.provenance import command_line, content_key, manifest
from probe.sweep import shards, work
from probe.sweep.deal import Options, Record, deal, read_index, read_rows, require_something
from probe.sweep.shards import Receipt
from probe.sweep.work import SET, Engine, Job, Unit, Workers, engine, units
from probe.text.files import sha256_of, sources

Step = Callable[[str, int, int], None]
PARTS = ("fitted", "fit", "report", "none")


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: the folder of its set, its manifest, and the sentence that says what was found there before."""

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
    """Measure every sentence of the files behind `paths` with `model`, a name or folder that every worker can load.

    Raises InputError for what cannot be read or written, ModelError and CrossCheckError for a model that cannot be
    trusted.
    """
    options, step = options or Options(), step or (lambda stage, done, of: None)
    files = sources([Path(path) for path in paths])
    about = [(source.name, sha256_of(source)) for source in files]
    loaded = load(model, device=options.device, dtype=options.dtype)
    require_single(loaded.config.architecture, "a sweep")
    made = _made(loaded, options, about, _command(model, paths, options))
    folder = Path(out) / f"{SET}{made['set']}"
    said = _other_set(Path(out), made)
    work.clear()
    with shards.only_writer(folder), _in_sentences(folder):
        step("reading", 0, 0)
        index = read_index(folder) or deal(files, folder, options, causal=loaded.config.causal)
        require_something(index)
        _certify(loaded, folder, index)
        job = Job(str(folder), model, loaded.origin.sha256, options)
        with engine(workers or Workers(), folder) as run:
            fits, blocks = units(made["set"], index)
            _pass(run, job, fits, partial(step, "fitting"))
            receipts = _pass(run, job, blocks, partial(step, "measuring"))
        made |= {"counts": _counts(index, receipts), "shards": [unit.key for unit in blocks]}
        shards.store(folder / "manifest.json", _json(made))
        shards.store(Path(out) / "manifest.json", _json(made))
    return Sweep(folder, made, said)


@contextmanager
def _in_sentences(folder: Path) -> Iterator[None]:
    """An error of the machine while the sweep writes is one sentence, too."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"Sweeping into {folder}: {error.strerror or error}; mend that, and run the same command again "
            "(finished shards are kept)."
        ) from error


def _command(model: str, paths: Sequence[Path], options: Options) -> str:
    """The `probe sweep` that makes the same shards again, without this machine's folders."""
    usual, names = Options(), [Path(path).name for path in paths]
    place = {name: value for name in ("device", "dtype") if (value := getattr(options, name)) != getattr(usual, name)}
    given = {"sentences": names, "model": Path(model).name} | place
    return command_line("sweep", **given, seed=options.seed, block=options.block, out="shards")


def _made(model: Model, options: Options, about: Sequence[tuple[str, str]], command: str) -> dict[str, Any]:
    """What makes this set of shards, and its key."""
    data = content_key([[name, sha256] for name, sha256 in about])
    made = manifest(
        model.name,
        model.origin,
        seed=options.seed,
        command=command,
        data_sha256=data,
        options=asdict(options),
    )
    made |= {"sources": dict(about), "layers": model.config.n_layers, "heads": model.config.n_heads}
    return made | {
        "set": content_key(model.origin.sha256, probe.__version__, asdict(options), model.config.prepend_bos, data)
    }


def _other_set(out: Path, made: Mapping[str, Any]) -> str | None:
    """What is said where the folder holds another set of shards: what is different, and that it stays."""
    try:
        before = json.loads((out / "manifest.json").read_bytes())
    except (OSError, ValueError):
        before = None
    if not isinstance(before, dict) or before.get("set") in (None, made["set"]):
        return None
    changed = [
        f"{name} ({_short(before.get('options', {}).get(name))}, now {_short(value)})"
        for name, value in made["options"].items()
        if before.get("options", {}).get(name) != value
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


def _short(value: object) -> str:
    return str(value)[:40]


def _certify(model: Model, folder: Path, index: Record) -> None:
    """The certificate, on a sentence of each of a few words, is part of the set."""
    import pyarrow

    from probe.study.columns import rounded
    from probe.study.tables import certificate_rows

    if (folder / "certificate.parquet").is_file():
        return
    texts = []
    for about in list(index["words"].values())[:4]:
        texts += [record["text"] for record in read_rows(folder, index, about["key"])[:1]]
    certificate = certify(model, texts or ["The mole dug a tunnel."]).require()
    frame = rounded(certificate_rows(certificate))
    shards.store(folder / "certificate.parquet", shards.parquet(pyarrow.Table.from_pandas(frame, preserve_index=False)))


def _pass(run: Engine, job: Job, wanted: Sequence[Unit], step: Callable[[int, int], None]) -> list[Receipt]:
    """The receipts of all units, those that are done and whole first; `step` is told the rows done, of how many."""
    receipts = [receipt for unit in wanted if (receipt := shards.done(job.place, unit.key))]
    kept = {receipt["key"] for receipt in receipts}
    missing = [unit for unit in wanted if unit.key not in kept]
    done, of = sum(receipt["rows"] for receipt in receipts), sum(unit.rows for unit in wanted)
    step(done, of)
    for receipt in run(job, missing):
        receipts.append(receipt)
        done += receipt["rows"]
        step(done, of)
    return receipts


def _counts(index: Mapping[str, Any], receipts: Sequence[Receipt]) -> dict[str, Any]:
    """How many sentences went in, what became of them, and that nothing is lost.

    Raises ProbeError when it does not add up.
    """
    parts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for receipt in receipts:
        for name, count in receipt["counts"].items():
            part, _, reason = name.partition("\t")
            parts[part] += count
            if reason:
                reasons[_kind(reason)] += count
    counted = {name: parts[name] for name in PARTS}
    if sum(counted.values()) != index["rows"] or len(receipts) != len(index["blocks"]):
        raise ProbeError(
            f"Counting the sweep: {sum(counted.values())} rows in {len(receipts)} shards, expected {index['rows']} in "
            f"{len(index['blocks'])}; delete the set's folder and run the same command again."
        )
    return {
        "in": index["rows"],
        "fitted_on": counted["fitted"],
        "measured": counted["report"],
        "left_out": counted["fit"] + counted["none"],
        "reasons": dict(sorted(reasons.items())),
        "shards": len(receipts),
        "rows_of_heads": sum(receipt["heads"] for receipt in receipts),
    }


def _kind(reason: str) -> str:
    """Reasons that name a row or a sense are one kind."""
    for start in ("repeats the sentence", "its split is", "its sense"):
        if reason.startswith(start):
            return {"its sense": "its sense has too few sentences to fit on, or none to give"}.get(start, start)
    return reason


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


# --- how far it has come: a bar on a terminal, a line a minute elsewhere, or JSON lines for machines -----------------

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
