"""Questions that wait for one model: answered one after the other, step by step, each as long as it
is wanted.

A page's newer question ends its older one of the same kind, and a new sentence all of them. What
waits is bounded, and so are the pages that are remembered. All of it happens in one event loop;
where the steps of an answer run is the caller's choice: in a thread of their own (a server), or
between the cells of a notebook.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from probe.errors import InputError
from probe.explorer.session import Explorer, Message, messages

WAITING = 64  # questions that wait for their turn
PAGES = 256  # pages that are remembered
log = logging.getLogger(__name__)


class Job:
    """A question on its way: who hears its messages, and whether it is still wanted."""

    def __init__(self, what: str, say: Callable[[Message], object]) -> None:
        self.what, self.say, self.wanted = what, say, True
        self.task: asyncio.Task[None] | None = None


class Desk:
    """The questions in line. `run(function, *arguments)` performs a step of an answer."""

    def __init__(self, explorer: Explorer, run: Callable[..., Awaitable[Any]]) -> None:
        self.explorer, self.run, self.turn = explorer, run, asyncio.Lock()
        self.jobs: set[Job] = set()
        self.pages: OrderedDict[str, dict[str, tuple[int, Job]]] = OrderedDict()

    def take(self, asked: dict[str, Any], say: Callable[[Message], object]) -> Job:
        """Puts a question in line; `say` gets its messages, the last one a result, an error or
        {"superseded": True}.

        Raises InputError where too many wait.
        """
        if len(self.jobs) >= WAITING:
            raise InputError(
                f"Answering a question: {len(self.jobs)} others are waiting; ask again in a moment."
            )
        job = Job(str(asked.get("what")), say)
        self._supersede(str(asked.get("page"))[:64], asked.get("number"), job)
        self.jobs.add(job)
        job.task = asyncio.get_running_loop().create_task(self._answer(job, asked))
        return job

    def _supersede(self, name: str, number: object, job: Job) -> None:
        """Ends what this question makes unwanted; itself where a newer one of its page has come
        before it."""
        mine, order = self.pages.setdefault(name, {}), number if isinstance(number, int) else 0
        self.pages.move_to_end(name)
        for what, (known, older) in list(mine.items()):
            if what == job.what and known > order:
                job.wanted = False
                return
            if what == job.what or job.what == "sentence":
                older.wanted = False
                del mine[what]
        mine[job.what] = order, job
        while len(self.pages) > PAGES:
            self.pages.popitem(last=False)

    async def _answer(self, job: Job, asked: dict[str, Any]) -> None:
        try:
            async with self.turn:
                steps = messages(self.explorer, asked)
                while job.wanted and (message := await self.run(next, steps, None)) is not None:
                    job.say(message)
            if not job.wanted:
                job.say({"superseded": True})
        except Exception:  # whatever a model's code throws: one question fails, the others in line are still answered
            log.exception("a question could not be answered")
            job.say(
                {
                    "error": "Answering the question failed; the explorer goes on. Its terminal says what happened."
                }
            )
        finally:
            self.jobs.discard(job)

    async def close(self) -> None:
        """Ends everything; waits for the step that is running."""
        for job in self.jobs:
            job.wanted = False
        async with self.turn:
            pass
