"""Who measures the words of a survey: this process, one after the other, or the workers of Dask.

A task goes out with its sentences and comes back as a record; only the process that asked writes
files, so workers of other machines need no folder in common, just the model under the same name.
Every task computes in one thread: what two threads would add up in another order, every worker adds
up alike, and the records are the same wherever they were made. Workers on this machine are threads
of this process, which share one model in memory; processes of their own are started with `dask
worker` and named by their scheduler.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from probe.errors import InputError

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
DASK = "dask"
ENGINES = (LOCAL, DASK)
HERE = "127.0.0.1:0"  # where Dask tells of itself: any port, on this machine alone
PATIENCE = "30s"  # until a scheduler that does not answer is not there
LOST_WORKERS = 20  # under one task, before it is given up
# Dask looks at the stack of a computing thread a hundred times a second otherwise.
SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.allowed-failures": LOST_WORKERS,
    "distributed.comm.timeouts.connect": PATIENCE,
}

Task = tuple[Any, ...]  # the arguments of one call
Run = Callable[[Callable[..., Any], Iterable[Task]], Iterator[Any]]


@dataclass(frozen=True)
class Workers:
    """The engine, `local` or `dask`; for Dask the address of a running scheduler, whose workers
    load the model by the name `model`, or without one the number of workers on this machine (one
    per processor)."""

    engine: str = LOCAL
    scheduler: str | None = None
    number: int | None = None
    model: str | None = None


@contextmanager
def running(workers: Workers) -> Iterator[Run]:
    """`run(function, tasks)`, which gives the results as they come, while the workers are there.

    Raises InputError for an unknown engine, where Dask is not installed, and where the scheduler is
    not there.
    """
    if workers.engine not in ENGINES:
        raise InputError(
            f"Choosing who measures: got the engine {workers.engine!r}, expected one of "
            f"{', '.join(ENGINES)}; give one of these."
        )
    threads = torch.get_num_threads()
    try:
        if workers.engine == LOCAL:
            yield _in_turn
        else:
            with _client(workers) as client:
                yield partial(_on_cluster, client)
    finally:
        torch.set_num_threads(threads)


def _in_turn(function: Callable[..., Any], tasks: Iterable[Task]) -> Iterator[Any]:
    return (in_one_thread(function, *task) for task in tasks)


def in_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in which torch computes in one thread.

    `running` sets the number back, when no other task of this process may still be at work.
    """
    torch.set_num_threads(1)
    return function(*arguments)


@contextmanager
def _client(workers: Workers) -> "Iterator[Client]":
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError(
            "Choosing who measures: got the engine 'dask', and Dask is not installed; install it "
            "with pip install dask distributed, or use --engine local, which needs nothing."
        ) from error
    with dask.config.set(SETTINGS), ExitStack() as opened:
        try:
            cluster = workers.scheduler or opened.enter_context(
                LocalCluster(
                    n_workers=1,
                    threads_per_worker=workers.number or os.cpu_count() or 1,
                    processes=False,
                    memory_limit=0,
                    dashboard_address=HERE,
                    worker_dashboard_address=HERE,
                    silence_logs=logging.CRITICAL,
                )
            )
            client = opened.enter_context(Client(cluster, timeout=PATIENCE, set_as_default=False))
        except (OSError, ValueError) as error:
            raise InputError(
                f"Reaching Dask at {workers.scheduler or 'this machine'}: no scheduler answers "
                f"({str(error)[:100]}); start one with `dask scheduler`, or leave --scheduler away "
                "to use this machine."
            ) from error
        yield client


def _on_cluster(
    client: "Client", function: Callable[..., Any], tasks: Iterable[Task]
) -> Iterator[Any]:
    """Send out every task, give results as they come, and stop at the first failure."""
    from distributed import CancelledError, as_completed
    from distributed.scheduler import KilledWorker

    futures = [client.submit(in_one_thread, function, *task, pure=False) for task in tasks]
    try:
        for future in as_completed(futures, loop=client.loop):
            yield future.result()
            future.release()
    except KilledWorker as error:
        raise InputError(
            f"Measuring with Dask: one word has ended {LOST_WORKERS} workers, for want of memory "
            "perhaps; use fewer workers, and run the same command again (finished words are kept)."
        ) from error
    except (CancelledError, OSError) as error:
        raise InputError(
            f"Measuring with Dask: the scheduler is gone ({type(error).__name__}); run the same "
            "command again when it is back, or with --engine local (finished words are kept)."
        ) from error
    finally:
        client.cancel([future for future in futures if not future.done()], force=True)
