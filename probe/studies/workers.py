"""Where the words of a survey are measured: in this process, one after the other, or by Dask.

A task is sent with its sentences and returns a record. Only the process of the survey writes files,
so workers on other machines need no shared folder, only the model under the same name. Every task
computes in one thread: the order of a sum does not depend on the number of threads, and the records
are the same on every worker. Workers on this machine are threads of this process and share one
model in memory. Workers in other processes are started with `dask worker` and reached through their
scheduler.
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
HERE = "127.0.0.1:0"  # the address of Dask's dashboard: any port, on this machine only
PATIENCE = "30s"  # how long to wait for the answer of a scheduler
LOST_WORKERS = 20  # how many workers may end during a task before it fails
# Without a profile Dask does not read the stack of a computing thread a hundred times a second.
SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.allowed-failures": LOST_WORKERS,
    "distributed.comm.timeouts.connect": PATIENCE,
}

Task = tuple[Any, ...]  # the arguments of one call
RunTasks = Callable[[Callable[..., Any], Iterable[Task]], Iterator[Any]]


@dataclass(frozen=True)
class Workers:
    """Where the words of a survey are measured.

    engine: "local" for this process, or "dask"
    scheduler: the address of a running Dask scheduler; None for workers on this machine
    number: how many workers on this machine; one per processor by default
    model: the name by which the workers of a scheduler load the model
    """

    engine: str = LOCAL
    scheduler: str | None = None
    number: int | None = None
    model: str | None = None


@contextmanager
def running(workers: Workers) -> Iterator[RunTasks]:
    """Yield `run(function, tasks)`, which yields results as they arrive, while workers are running.

    Raises InputError for an unknown engine, if Dask is not installed, and if the scheduler does not
    answer.
    """
    if workers.engine not in ENGINES:
        raise InputError(
            f"Cannot start workers: got the engine {workers.engine!r}, expected one of "
            f"{', '.join(ENGINES)}. Give one of these."
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

    `running` restores the number of threads at its end, when all tasks of this process are done.
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
            "Cannot start workers: got the engine 'dask', and Dask is not installed. Install it "
            "with pip install dask distributed, or use --engine local, which needs nothing."
        ) from error
    with dask.config.set(SETTINGS), ExitStack() as opened:
        try:
            cluster = workers.scheduler or opened.enter_context(
                # One process whose threads share the model. Without a memory limit Dask cannot
                # kill it.
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
                f"Cannot reach Dask at {workers.scheduler or 'this machine'}: no scheduler answers "
                f"({str(error)[:100]}). Start one with `dask scheduler`, or omit --scheduler to "
                "use this machine."
            ) from error
        yield client


def _on_cluster(
    client: "Client", function: Callable[..., Any], tasks: Iterable[Task]
) -> Iterator[Any]:
    """Submit every task, yield results as they arrive, and stop at the first failure."""
    from distributed import CancelledError, as_completed
    from distributed.scheduler import KilledWorker

    # Not pure: Dask must not hash the arguments, which hold all sentences of a word.
    futures = [client.submit(in_one_thread, function, *task, pure=False) for task in tasks]
    try:
        for future in as_completed(futures, loop=client.loop):
            yield future.result()
            future.release()
    except KilledWorker as error:
        raise InputError(
            f"Cannot measure with Dask: one word has ended {LOST_WORKERS} workers, perhaps because "
            "of too little memory. Use fewer workers, and run the same command again (finished "
            "words are kept)."
        ) from error
    except (CancelledError, OSError) as error:
        raise InputError(
            f"Cannot measure with Dask: the scheduler is gone ({type(error).__name__}). Run the "
            "same command again when it is back, or with --engine local (finished words are kept)."
        ) from error
    finally:
        client.cancel([future for future in futures if not future.done()], force=True)
