"""One unit of a sweep, made where its key is sent, in this process or by the workers of Dask: the
tables are the same.

A unit is the axes of a word, or the shard of a block. A worker gets a folder, a model and a key,
and answers with the unit's receipt; rows and numbers stay in the folder. Each process loads the
model once, and runs torch in one thread: what two threads would add up in another order, every
worker adds up alike. A failure that a user can mend arrives as the sentence it was; a cluster that
is lost becomes one, and what its workers finished stays finished.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from probe.errors import InputError, ModelError
from probe.model.load import load
from probe.model.model import Model
from probe.provenance import content_key
from probe.sweep import shards
from probe.sweep.deal import Options, Record, read_index, read_rows, usable_senses
from probe.sweep.measure import WordAxes, fit_word, from_file, measure, to_bytes
from probe.sweep.shards import SCRATCH, Receipt

if TYPE_CHECKING:
    from distributed import Client

SET = "set-"
FIT_UNIT, SHARD = "axes", "shard"
LOCAL, DASK = ENGINES = ("local", "dask")
RETRIES = 20
HERE = "127.0.0.1"
PATIENCE = "30s"
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


@dataclass(frozen=True)
class SweepJob:
    """What all units of a sweep share: the folder of the set, the model and its weights, and the
    options."""

    folder: Path
    model: str
    weights_sha256: str
    options: Options


@dataclass(frozen=True)
class Unit:
    """One key of a pass; `of` is the word that is fitted, or the key of the measured block."""

    key: str
    kind: str
    of: str
    rows: int


def units(set_key: str, index: Record) -> tuple[list[Unit], list[Unit]]:
    """The units of both passes. A shard is named by the set, the rows of its block, and those they
    are fitted on."""
    words = index["words"]
    fits = [
        Unit(content_key(FIT_UNIT, set_key, word, about["key"]), FIT_UNIT, word, about["rows"])
        for word, about in words.items()
        if len(usable_senses(about)) > 1
    ]
    blocks = []
    for block in index["blocks"]:
        fitted_on = [words[word]["key"] for word in block["words"]]
        key = content_key(SHARD, set_key, block["key"], fitted_on)
        blocks.append(Unit(key, SHARD, block["key"], block["rows"]))
    return fits, blocks


def make(job: SweepJob, unit: Unit) -> Receipt:
    """The receipt of a unit, made with torch in one thread unless it is done and whole."""
    made = shards.done(job.folder, unit.key)
    if made is not None:
        return made
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _fit(job, unit) if unit.kind == FIT_UNIT else _shard(job, unit)
    finally:
        torch.set_num_threads(threads)


def _fit(job: SweepJob, unit: Unit) -> Receipt:
    index, _ = _dealt(job.folder)
    about = index["words"][unit.of]
    records = read_rows(job.folder, index, about["key"])
    axes = fit_word(_model(job), records, usable_senses(about), seed=job.options.seed)
    facts = {"rows": len(records), "usable": axes is not None}
    return shards.finish(
        job.folder, unit.key, {_axes_file(unit.key): b"" if axes is None else to_bytes(axes)}, facts
    )


def _axes_file(key: str) -> str:
    return f"{shards.AXES}/{key}.safetensors"


def _shard(job: SweepJob, unit: Unit) -> Receipt:
    index, fits = _dealt(job.folder)
    block = next(block for block in index["blocks"] if block["key"] == unit.of)
    records = read_rows(job.folder, index, block["key"])
    axes = {
        word: _axes(job.folder, fits[word]) if word in fits else None for word in block["words"]
    }
    fitted = {
        (word, sense): draw
        for word in block["words"]
        for sense, (_, draw) in index["words"][word]["fit"].items()
    }
    sentences, heads = measure(_model(job), records, axes, fitted)
    ends = zip(sentences["part"].to_pylist(), sentences["reason"].to_pylist(), strict=True)
    counts = Counter(f"{part or 'none'}\t{reason or ''}" for part, reason in ends)
    tables = {shards.HEADS: heads, shards.SENTENCES: sentences}
    files = {f"{kind}/{unit.key}.parquet": shards.parquet(table) for kind, table in tables.items()}
    return shards.finish(
        job.folder,
        unit.key,
        files,
        {"rows": len(records), "heads": heads.num_rows, "counts": counts},
    )


@lru_cache(maxsize=4)
def _dealt(folder: Path) -> tuple[Record, dict[str, str]]:
    """The index of a set, and the key of the axes of every word that has some."""
    index = read_index(folder)
    if index is None:
        raise shards.damaged(folder / "rows.json")
    fits, _ = units(folder.name.removeprefix(SET), index)
    return index, {fit.of: fit.key for fit in fits}


@lru_cache(maxsize=16)
def _axes(folder: Path, key: str) -> WordAxes | None:
    """The axes of a word, once the bytes are those of its receipt; None where it has none."""
    receipt = shards.done(folder, key)
    if receipt is None:
        raise shards.damaged(folder / _axes_file(key))
    return from_file(os.fspath(folder / _axes_file(key))) if receipt["usable"] else None


def _model(job: SweepJob) -> Model:
    """The model of the job. Raises ModelError where its weights are not those of the sweep."""
    model = _loaded(job.model, job.options.device, job.options.dtype)
    if model.origin.sha256 != job.weights_sha256:
        raise ModelError(
            f"Loading {job.model} for the sweep: its weights are not those that the sweep was "
            "started with; give every "
            "worker the same model, or start another sweep."
        )
    return model


@lru_cache(maxsize=1)
def _loaded(name: str, device: str, dtype: str) -> Model:
    return load(name, device=device, dtype=dtype)


def clear() -> None:
    """Forget what was cached of folders, so that another sweep in this process reads its own."""
    for cached in (_dealt, _axes):
        cached.cache_clear()


Engine = Callable[[SweepJob, Sequence[Unit]], Iterator[Receipt]]


@dataclass(frozen=True)
class Workers:
    """Who does the work: the engine, and for Dask the address of a running scheduler, or without
    one the number of worker processes on this machine (one per processor).
    """

    engine: str = LOCAL
    scheduler: str | None = None
    number: int | None = None


@contextmanager
def engine(workers: Workers, scratch: Path) -> Iterator[Engine]:
    """The engine of these workers, while it is used.

    `scratch`: where own workers may keep what they need, in a folder that nobody else can open.
    Raises InputError for an unknown engine, where Dask is not installed, and where the scheduler is
    not there.
    """
    if workers.engine == LOCAL:
        yield in_process
    elif workers.engine == DASK:
        with _client(workers, scratch) as client:
            yield partial(_on_cluster, client)
    else:
        raise InputError(
            f"Sweeping with the engine {workers.engine!r}: expected one of {', '.join(ENGINES)}; "
            "give one of these."
        )


def in_process(job: SweepJob, units: Sequence[Unit]) -> Iterator[Receipt]:
    """One unit after the other, in this process."""
    return (make(job, unit) for unit in units)


@contextmanager
def _client(workers: Workers, scratch: Path) -> "Iterator[Client]":
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError(
            "Sweeping with the engine 'dask': Dask is not installed; install it with pip install "
            "dask distributed, or "
            "use --engine local, which needs nothing."
        ) from error
    with (
        TemporaryDirectory(dir=scratch, prefix=SCRATCH, ignore_cleanup_errors=True) as own,
        dask.config.set(_settings()),
        ExitStack() as opened,
    ):
        try:
            cluster = workers.scheduler or opened.enter_context(
                LocalCluster(
                    n_workers=workers.number or os.cpu_count() or 1,
                    threads_per_worker=1,
                    processes=True,
                    host=HERE,
                    local_directory=own,
                    dashboard_address=f"{HERE}:0",
                    worker_dashboard_address=f"{HERE}:0",
                    silence_logs=logging.CRITICAL,
                )
            )
            client = opened.enter_context(Client(cluster, timeout=PATIENCE, set_as_default=False))
        except (OSError, ValueError) as error:
            raise InputError(
                f"Sweeping with Dask at {workers.scheduler or HERE}: no scheduler answers there "
                f"({str(error)[:100]}); "
                "start one with `dask scheduler`, or leave --scheduler away to use this machine."
            ) from error
        yield client


def _settings() -> dict[str, Any]:
    """Dask's settings for workers that compute: one thread each, no heap trimming, patience with
    killed workers."""
    import dask

    environment = dict(dask.config.get("distributed.nanny.pre-spawn-environ", {}))
    environment.pop(
        "MALLOC_TRIM_THRESHOLD_", None
    )  # returning memory after every free costs a third of the speed
    environment["MALLOC_ARENA_MAX"] = (
        "1"  # the memory of a thread that is not the first would be returned all the same
    )
    return {
        "distributed.nanny.pre-spawn-environ": environment | ONE_THREAD,
        "distributed.worker.profile.enabled": False,  # looks at the stack a hundred times a second
        # Instead of 50 times a second, in the process that computes
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.worker.memory.monitor-interval": "1s",
        "distributed.scheduler.allowed-failures": RETRIES,
        "distributed.comm.timeouts.connect": PATIENCE,
        "distributed.worker.daemon": True,
    }


def _on_cluster(client: "Client", job: SweepJob, units: Sequence[Unit]) -> Iterator[Receipt]:
    """Send every key, yield receipts as they come, and stop at the first failure."""
    from distributed import CancelledError, as_completed
    from distributed.scheduler import KilledWorker

    futures = [
        client.submit(make, job, unit, key=f"{unit.kind}-{unit.key}", pure=False) for unit in units
    ]
    try:
        for future in as_completed(futures, loop=client.loop):
            yield future.result()
            future.release()
    except KilledWorker as error:
        raise InputError(
            f"Sweeping into {job.folder}: one shard has ended {RETRIES} workers "
            f"({str(error)[:80]}), for want of "
            "memory perhaps; use fewer workers, and run the same command again (finished shards "
            "are kept)."
        ) from error
    except (CancelledError, OSError) as error:
        raise InputError(
            f"Sweeping into {job.folder}: the scheduler is gone ({type(error).__name__}); run the "
            "same command again "
            "when it is back, or with --engine local (finished shards are kept)."
        ) from error
    finally:
        client.cancel([future for future in futures if not future.done()], force=True)
