"""Who makes the units of a sweep: this process, or the workers of Dask. The tables are the same.

A failure that a user can mend arrives as the sentence it was; a cluster that is lost becomes one, and what its workers finished
stays finished.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from probe.errors import InputError
from probe.sweep import work
from probe.sweep.shards import SCRATCH, Receipt
from probe.sweep.work import Job, Unit

if TYPE_CHECKING:
    from distributed import Client
Engine = Callable[[Job, Sequence[Unit]], Iterator[Receipt]]
LOCAL, DASK = ENGINES = ("local", "dask")
RETRIES = 20
HERE = "127.0.0.1"
PATIENCE = "30s"
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


@contextmanager
def engine(name: str, scratch: Path, *, scheduler: str | None = None, workers: int | None = None) -> Iterator[Engine]:
    """The engine of this name, with its workers while it is used.

    `scratch`: where own workers may keep what they need, in a folder that nobody else can open · `scheduler`: the address of a running Dask scheduler; without one, `workers` processes on this machine (one per processor).
    Raises InputError for an unknown engine, where Dask is not installed, and where the scheduler is not there.
    """
    if name == LOCAL:
        yield in_process
    elif name == DASK:
        with ExitStack() as stack:
            client = stack.enter_context(_client(scheduler, workers or os.cpu_count() or 1, scratch))
            yield lambda job, units: _on_cluster(client, job, units)
    else:
        raise InputError(f"Sweeping with the engine {name!r}: expected one of {', '.join(ENGINES)}; give one of these.")


def in_process(job: Job, units: Sequence[Unit]) -> Iterator[Receipt]:
    """One unit after the other, in this process."""
    for unit in units:
        yield work.make(job, unit)


@contextmanager
def _client(scheduler: str | None, workers: int, scratch: Path) -> "Iterator[Client]":
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError(
            "Sweeping with the engine 'dask': Dask is not installed; install it with pip install 'probe[cluster]', or use "
            "--engine local, which needs nothing."
        ) from error
    with (
        TemporaryDirectory(dir=scratch, prefix=SCRATCH, ignore_cleanup_errors=True) as own,
        dask.config.set(_settings()),
    ):
        try:
            if scheduler is not None:
                client = Client(scheduler, timeout=PATIENCE, set_as_default=False)
            else:
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    host=HERE,
                    local_directory=own,
                    dashboard_address=f"{HERE}:0",
                    worker_dashboard_address=f"{HERE}:0",
                    silence_logs=logging.CRITICAL,
                )
        except (OSError, TimeoutError, ValueError) as error:
            where = scheduler or HERE
            raise InputError(
                f"Sweeping with Dask at {where}: no scheduler answers there ({str(error)[:100]}); start one with `dask scheduler`, "
                "or leave --scheduler away to use this machine."
            ) from error
        if scheduler is not None:
            with client:
                yield client
        else:
            with cluster, Client(cluster, set_as_default=False) as client:
                yield client


def _settings() -> dict[str, Any]:
    """Dask's settings for workers that compute: one thread each, no heap trimming, and patience with workers that are killed."""
    import dask

    environment = dict(dask.config.get("distributed.nanny.pre-spawn-environ", {}))
    environment.pop("MALLOC_TRIM_THRESHOLD_", None)  # returning memory after every free costs a third of the speed
    environment["MALLOC_ARENA_MAX"] = "1"  # the memory of a thread that is not the first would be returned all the same
    return {
        "distributed.nanny.pre-spawn-environ": environment | ONE_THREAD,
        "distributed.worker.profile.enabled": False,  # looks at the stack a hundred times a second
        "distributed.admin.tick.interval": "1s",  # instead of 50 times a second, in the process that computes
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.worker.memory.monitor-interval": "1s",
        "distributed.scheduler.allowed-failures": RETRIES,
        "distributed.comm.timeouts.connect": PATIENCE,
        "distributed.worker.daemon": True,
    }


def _on_cluster(client: "Client", job: Job, units: Sequence[Unit]) -> Iterator[Receipt]:
    """Send every key, yield receipts as they come, and stop at the first failure."""
    from distributed import CancelledError, as_completed
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    futures = [client.submit(work.make, job, unit, key=f"{unit.kind}-{unit.key}", pure=False) for unit in units]
    try:
        for future in as_completed(futures, loop=client.loop):
            yield future.result()
            future.release()
    except KilledWorker as error:
        raise InputError(
            f"Sweeping into {job.folder}: one shard has ended {RETRIES} workers ({str(error)[:80]}), for want of memory perhaps; "
            "use fewer workers, and run the same command again (finished shards are kept)."
        ) from error
    except (CancelledError, FutureCancelledError, OSError, TimeoutError) as error:
        raise InputError(
            f"Sweeping into {job.folder}: the scheduler is gone ({type(error).__name__}); run the same command again when it is back, "
            "or with --engine local (finished shards are kept)."
        ) from error
    finally:
        client.cancel([future for future in futures if not future.done()], force=True)
