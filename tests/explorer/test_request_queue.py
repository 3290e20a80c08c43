"""Questions in line: what ends one, how many wait, and that a failure is a sentence; with and
without a worker."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from probe.errors import InputError
from probe.explorer import server
from probe.explorer.request_queue import PAGES, WAITING, Desk, Job
from probe.explorer.widget import between

STEPS = 40


class Slow:
    """An explorer whose answers take as many steps as are asked for."""

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
    return await asyncio.get_running_loop().run_in_executor(in_a_worker.one, function, *arguments)


in_a_worker.one = ThreadPoolExecutor(1)


def at_desk(explorer, play, run=in_a_worker):
    """What `play` makes of a desk with this explorer."""

    async def whole():
        desk = Desk(explorer, run)
        try:
            return await play(desk)
        finally:
            await asyncio.wait_for(desk.close(), 20)

    return asyncio.run(whole())


class Asked:
    """A question put in line, and its messages."""

    def __init__(self, desk, **question):
        self.said = asyncio.Queue()
        self.job = desk.take(question, self.said.put_nowait)

    async def last(self):
        while "doing" in (message := await self.said.get()):
            pass
        return message


@pytest.mark.parametrize("run", [in_a_worker, between])
def test_a_new_sentence_ends_the_work_on_the_older_one(run):
    slow = Slow()

    async def play(desk):
        first = Asked(desk, what="sentence", text="one", page="a", number=1)
        await first.said.get()
        second = Asked(desk, what="trace", text="two", page="a", number=2)
        other = Asked(desk, what="sentence", text="three", page="b", number=1)
        newest = Asked(desk, what="sentence", text="four", page="a", number=3)
        late = Asked(desk, what="sentence", text="five", page="a", number=2)
        return [await job.last() for job in (first, second, other, newest, late)]

    ended = {"superseded": True}
    assert at_desk(slow, play, run) == [
        ended,
        ended,
        {"result": "three"},
        {"result": "four"},
        ended,
    ]
    assert {text for text, _ in slow.steps} == {"one", "three", "four"}
    assert sum(text == "one" for text, _ in slow.steps) < STEPS / 2


def test_only_so_many_questions_wait():
    async def play(desk):
        for number in range(WAITING):
            Asked(desk, what="sentence", text="one", page=str(number))
        with pytest.raises(
            InputError, match=f"{WAITING} others are waiting; ask again in a moment"
        ):
            Asked(desk, what="sentence", text="one")
        for number in range(3 * PAGES):
            desk._supersede(str(number), 1, Job("swap", print))
        return len(desk.pages)

    slow = Slow()
    assert at_desk(slow, play) == PAGES
    assert len(slow.steps) < STEPS / 2  # closing waits for a step, not for the line


def test_whoever_goes_away_ends_the_work():
    slow = Slow()

    async def play(desk):
        asked = Asked(desk, what="sentence", text="one", page="a")
        lines = server._lines(asked.job, asked.said)
        assert json.loads(await anext(lines))["doing"] == "waiting"
        await lines.aclose()
        return asked.job.wanted

    assert at_desk(slow, play) is False
    assert len(slow.steps) < STEPS / 2


def test_a_failure_of_ours_is_a_sentence_and_the_next_question_is_answered():
    async def play(desk):
        failed = await Asked(desk, what="sentence", text="one").last()
        desk.explorer = Slow()
        return failed, await Asked(desk, what="sentence", text="two").last(), len(desk.jobs)

    failed, answered, waiting = at_desk(Broken(), play)
    assert failed["error"].startswith("Answering the question failed; the explorer goes on.")
    assert answered == {"result": "two"} and waiting <= 1
