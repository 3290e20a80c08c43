"""Questions that wait for one model: answered one after the other, step by step, each as long as it
is wanted.

A page's newer question ends its older one of the same kind, and a new sentence all of them. What
waits is bounded, and so are the pages that are remembered. All of it happens in one event loop;
where the steps of an answer run is the caller's choice: in a separate thread (a server), or
between the cells of a notebook.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from probe.errors import InputError
from probe.explorer.session import Explorer, Message, messages

MAX_WAITING = 64  # questions that wait for their turn: what a class of students types at once
MAX_PAGES = 256  # pages whose newest questions are remembered
MAX_PAGE_NAME = 64  # characters: a page names itself, and may send anything
FAILED = (
    "Cannot answer the question: it caused an error. The explorer goes on, and its terminal shows "
    "the error."
)
log = logging.getLogger(__name__)

Send = Callable[[Message], object]  # hands a message to whoever asked


class Job:
    """A question on its way: where its messages go, and whether it is still wanted."""

    def __init__(self, kind: str, send: Send) -> None:
        self.kind = kind
        self.send = send
        self.wanted = True
        # The event loop keeps no reference, so without this one the task could vanish.
        self.task: asyncio.Task[None] | None = None


class RequestQueue:
    """The questions in line. `run(function, *arguments)` performs a step of an answer."""

    def __init__(self, explorer: Explorer, run: Callable[..., Awaitable[Any]]) -> None:
        self.explorer = explorer
        self.run = run
        self.turn = asyncio.Lock()
        self.jobs: set[Job] = set()
        # By page, the newest question of every kind and its number.
        self.pages: OrderedDict[str, dict[str, tuple[int, Job]]] = OrderedDict()

    def put(self, question: dict[str, Any], send: Send) -> Job:
        """Puts a question in line; `send` gets its messages, the last one a result, an error or
        {"superseded": True}.

        Raises InputError where too many wait.
        """
        if len(self.jobs) >= MAX_WAITING:
            raise InputError(
                f"Cannot answer the question: {len(self.jobs)} others are waiting. Ask again in a "
                "moment."
            )
        job = Job(str(question.get("what")), send)
        page = str(question.get("page"))[:MAX_PAGE_NAME]
        self._supersede(page, question.get("number"), job)
        self.jobs.add(job)
        job.task = asyncio.get_running_loop().create_task(self._answer(job, question))
        return job

    def _supersede(self, page: str, number: object, job: Job) -> None:
        """Ends what this question makes unwanted; itself where a newer one of its page has come
        before it.
        """
        newest = self.pages.setdefault(page, {})
        self.pages.move_to_end(page)
        order = number if isinstance(number, int) else 0
        for kind, (newest_order, older) in list(newest.items()):
            if kind == job.kind and newest_order > order:
                job.wanted = False
                return
            if kind == job.kind or job.kind == "sentence":
                older.wanted = False
                del newest[kind]
        newest[job.kind] = (order, job)
        while len(self.pages) > MAX_PAGES:
            self.pages.popitem(last=False)

    async def _answer(self, job: Job, question: dict[str, Any]) -> None:
        try:
            async with self.turn:
                steps = messages(self.explorer, question)
                while job.wanted and (message := await self.run(next, steps, None)) is not None:
                    job.send(message)
            if not job.wanted:
                job.send({"superseded": True})
        except Exception:
            # Whatever a model's code raises: one question fails, the others are still answered.
            log.exception("a question could not be answered")
            job.send({"error": FAILED})
        finally:
            self.jobs.discard(job)

    async def close(self) -> None:
        """Ends everything; waits for the step that is running."""
        for job in self.jobs:
            job.wanted = False
        async with self.turn:
            pass
