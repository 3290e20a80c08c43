"""Where the words of a survey are measured: in this process, one after the other, or by Dask.

A task is sent with its sentences and returns a record. Only the process of the survey writes files,
so workers on other machines need no shared folder, only the model under the same name. Every task
computes in one thread: the order of a sum does not depend on the number of threads, and the records
are the same on every worker. Workers on this machine are threads of this process and share one
model in memory. Workers in other processes are started with `dask worker` and reached through their
scheduler.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from probe.errors import InputError

if TYPE_CHECKING:
    from distributed import Client

PATIENCE = "30s"  # how long to wait for the answer of a scheduler
LOST_WORKERS = 20  # how many workers may end during a task before it fails
# Without a profile Dask does not read the stack of a computing thread a hundred times a second.
SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.allowed-failures": LOST_WORKERS,
    "distributed.comm.timeouts.connect": PATIENCE,
}
HERE = "127.0.0.1:0"  # the address of Dask's dashboard: any port, on this machine only

Task = tuple[Any, ...]  # the arguments of one call
RunTasks = Callable[[Callable[..., Any], Iterable[Task]], Iterator[Any]]


@contextmanager
def running(workers: int | None, scheduler: str | None) -> Iterator[RunTasks]:
    """Yield `run(function, tasks)`, which yields results as they arrive, while workers are running.

    workers: how many of Dask's workers on this machine; None for this process without Dask
    scheduler: the address of a running Dask scheduler, whose workers are used instead

    Raises InputError if Dask is not installed, or if the scheduler does not answer.
    """
    threads = torch.get_num_threads()
    try:
        if workers is None and scheduler is None:
            yield lambda function, tasks: (in_one_thread(function, *task) for task in tasks)
        else:
            with _client(workers or 1, scheduler) as client:
                yield partial(_on_cluster, client)
    finally:
        torch.set_num_threads(threads)


def in_one_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in which torch computes in one thread.

    `running` restores the number of threads at its end, when all tasks of this process are done.
    """
    torch.set_num_threads(1)
    return function(*arguments)


@contextmanager
def _client(workers: int, scheduler: str | None) -> "Iterator[Client]":
    try:
        import dask
        from distributed import Client
    except ImportError as error:
        raise InputError(
            "Cannot start workers: Dask is not installed. Install it with pip install dask "
            "distributed, or omit --workers and --scheduler to measure in this process."
        ) from error
    # One process whose threads share the model. Without a memory limit Dask cannot kill it.
    local: dict[str, Any] = {
        "n_workers": 1,
        "threads_per_worker": workers,
        "processes": False,
        "memory_limit": 0,
    }
    local |= {"dashboard_address": HERE, "worker_dashboard_address": HERE}
    options = {"address": scheduler} if scheduler else local | {"silence_logs": logging.CRITICAL}
    with dask.config.set(SETTINGS):
        try:
            client = Client(**options, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"Cannot reach Dask at {scheduler or 'this machine'}: no scheduler answers "
                f"({str(error)[:100]}). Start one with `dask scheduler`, or omit --scheduler to "
                "use this machine."
            ) from error
        with client:
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
            "same command again when it is back, or without --scheduler (finished words are kept)."
        ) from error
    finally:
        client.cancel([future for future in futures if not future.done()], force=True)
