"""Independent calls in two threads, which share the processor.

Products of matrices use all of torch's threads, and what is between them uses one. So two calls
with half of the threads each take less time than one after the other with all threads.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")

TOGETHER = 2  # calls at a time
FEWEST = 4  # calls; of two or three, the last one would run with half of the threads for long
_together = Lock()  # held while calls run side by side


def side_by_side(
    calls: Sequence[Callable[[], Result]], device: torch.device
) -> Iterator[tuple[int, Result]]:
    """Each call's number and result, as they arrive.

    device: on which they compute

    The calls run one after the other if they are few, if the device is not the processor, if torch
    has one thread, or if other calls already run side by side. They see the caller's context
    variables and whether it computes gradients. After an error, which is raised here, no further
    call begins and those that run are stopped.

    Example:
        >>> import torch
        >>> from probe.side_by_side import side_by_side
        >>> sorted(side_by_side([lambda: "a", lambda: "b"], torch.device("cpu")))
        [(0, 'a'), (1, 'b')]
    """
    threads = torch.get_num_threads()
    enough = device.type == "cpu" and threads >= TOGETHER and len(calls) >= FEWEST
    if not (enough and _together.acquire(blocking=False)):
        for number, call in enumerate(calls):
            yield number, call()
        return
    waiting = iter(enumerate(calls))
    arrived: SimpleQueue[tuple[int, Result] | BaseException] = SimpleQueue()
    inference, gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def work() -> None:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            for number, call in waiting:
                try:
                    arrived.put((number, call()))
                except BaseException as error:  # noqa: BLE001  raised in the caller's thread
                    arrived.put(error)
                    return

    # Each in a context of its own, because no two threads can enter the same one.
    workers = [Thread(target=copy_context().run, args=(work,)) for _ in range(TOGETHER)]
    try:
        torch.set_num_threads(threads // TOGETHER)
        for worker in workers:
            worker.start()
        for _ in calls:
            result = arrived.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    except BaseException:
        for _ in waiting:  # no further call begins
            pass
        for worker in workers:
            _stop(worker)
        raise
    finally:
        for worker in workers:
            worker.join()
        torch.set_num_threads(threads)
        _together.release()


def in_order(calls: Sequence[Callable[[], Result]], device: torch.device) -> Iterator[Result]:
    """The results of `side_by_side` in the order of the calls; early ones wait for those before."""
    early: dict[int, Result] = {}
    following = 0
    for number, result in side_by_side(calls, device):
        early[number] = result
        while following in early:
            yield early.pop(following)
            following += 1


def _stop(thread: Thread) -> None:
    """Raise SystemExit in a thread before its next instruction."""
    if thread.ident is not None:
        ident, error = ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)


class unlocked_property(Generic[Result]):
    """`functools.cached_property` without its lock, which in Python 3.11 all objects of a class
    share: it lets only one thread compute the property."""

    def __init__(self, compute: Callable[[Any], Result]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Result:
        result = instance.__dict__[self._name] = self._compute(instance)
        return result
