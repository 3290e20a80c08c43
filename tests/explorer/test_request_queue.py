"""The queue of questions: cancellation, the limit, and an error message after a failure; with and
without a worker."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from probe.errors import InputError
from probe.explorer import server
from probe.explorer.request_queue import MAX_PAGES, MAX_WAITING, Job, RequestQueue
from probe.explorer.widget import run_between_cells

STEPS = 40


class Slow:
    """An explorer whose answers take STEPS steps."""

    def __init__(self):
        self.steps = []

    def answer(self, question):
        for step in range(STEPS):
            self.steps.append((question.text, step))
            time.sleep(0.005)
            yield {"doing": "waiting", "progress": step / STEPS}
        yield {"result": question.text}


class Broken:
    def answer(self, question):
        yield {"doing": "waiting", "progress": 0}
        raise ZeroDivisionError


async def in_a_worker(function, *arguments):
    return await asyncio.get_running_loop().run_in_executor(in_a_worker.pool, function, *arguments)


in_a_worker.pool = ThreadPoolExecutor(1)


def with_queue(explorer, play, run=in_a_worker):
    """The result of `play` with a queue of this explorer."""

    async def whole():
        queue = RequestQueue(explorer, run)
        try:
            return await play(queue)
        finally:
            await asyncio.wait_for(queue.close(), 20)

    return asyncio.run(whole())


class Queued:
    """A question in the queue, and its messages."""

    def __init__(self, queue, **question):
        self.messages = asyncio.Queue()
        self.job = queue.put(question, self.messages.put_nowait)

    async def last(self):
        while "doing" in (message := await self.messages.get()):
            pass
        return message


@pytest.mark.parametrize("run", [in_a_worker, run_between_cells])
def test_a_new_sentence_cancels_the_work_on_the_older_one(run):
    slow = Slow()

    async def play(queue):
        first = Queued(queue, what="sentence", text="one", page="a", number=1)
        await first.messages.get()
        second = Queued(queue, what="trace", text="two", page="a", number=2)
        third = Queued(queue, what="sentence", text="three", page="b", number=1)
        newest = Queued(queue, what="sentence", text="four", page="a", number=3)
        late = Queued(queue, what="sentence", text="five", page="a", number=2)
        return [await job.last() for job in (first, second, third, newest, late)]

    ended = {"superseded": True}
    assert with_queue(slow, play, run) == [
        ended,
        ended,
        {"result": "three"},
        {"result": "four"},
        ended,
    ]
    assert {text for text, _ in slow.steps} == {"one", "three", "four"}
    assert sum(text == "one" for text, _ in slow.steps) < STEPS / 2


def test_the_number_of_waiting_questions_is_limited():
    async def play(queue):
        for number in range(MAX_WAITING):
            Queued(queue, what="sentence", text="one", page=str(number))
        with pytest.raises(
            InputError, match=f"{MAX_WAITING} others are waiting. Ask again in a moment"
        ):
            Queued(queue, what="sentence", text="one")
        for number in range(3 * MAX_PAGES):
            queue._supersede(str(number), 1, Job("swap", print))
        return len(queue.pages)

    slow = Slow()
    assert with_queue(slow, play) == MAX_PAGES
    assert len(slow.steps) < STEPS / 2  # closing waits for one step, not for the queue


def test_a_disconnected_client_cancels_its_work():
    slow = Slow()

    async def play(queue):
        queued = Queued(queue, what="sentence", text="one", page="a")
        lines = server._lines(queued.job, queued.messages)
        assert json.loads(await anext(lines))["doing"] == "waiting"
        await lines.aclose()
        return queued.job.wanted

    assert with_queue(slow, play) is False
    assert len(slow.steps) < STEPS / 2


def test_a_failure_is_reported_and_the_next_question_is_answered():
    async def play(queue):
        failed = await Queued(queue, what="sentence", text="one").last()
        queue.explorer = Slow()
        return failed, await Queued(queue, what="sentence", text="two").last(), len(queue.jobs)

    failed, answered, waiting = with_queue(Broken(), play)
    assert failed["error"].startswith("Cannot answer the question: it caused an error.")
    assert answered == {"result": "two"} and waiting <= 1
