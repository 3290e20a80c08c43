"""Many clients at once: each gets its answers, memory stays flat, and no connection of a killed
client remains."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("starlette", reason="starlette is not installed: probe-heads[explore]")

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
CLIENTS = 32
SECONDS = 60  # of load
FLAT = 80 * 2**20  # bytes that a process may be larger after the load than after warming up
SENTENCES = [
    f"They saw the {thing} from the bank on day {day}"
    for thing in ("river", "money")
    for day in range(12)
]
KINDS = ("sentence", "along", "swap", "trace")


@pytest.fixture(scope="module")
def running():
    """The command as users start it, and its address, which it prints first; an interrupt ends it
    with a sentence."""
    command = [sys.executable, "-m", "probe", "explore", "--no-browser"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        address = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{24}\n", address)
        yield psutil.Process(process.pid), address.strip()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 130 and out == ""
        assert err == "probe: loading the model.\nprobe: the explorer has stopped.\n"
    finally:
        process.kill()


def question(client, number):
    text, second = (SENTENCES[(7 * client + number + part) % len(SENTENCES)] for part in (0, 12))
    return {
        "what": KINDS[number % len(KINDS)],
        "text": text,
        "other": second,
        "swaps": [[0, client % 4, "other"]],
    }


async def ask(http, client, number):
    """The last message of an answer."""
    async with http.stream("POST", "/ask", json=question(client, number)) as response:
        lines = [json.loads(line) async for line in response.aiter_lines()]
        return response.status_code, lines[-1]


async def load(address, seconds):
    """How many answers the clients got; some disconnect in the middle of one."""
    parts = urlsplit(address)
    headers = {"Authorization": f"Bearer {parse_qs(parts.query)['token'][0]}"}
    counts = {"result": 0, "left": 0, "trouble": []}
    end = time.monotonic() + seconds

    async def ask_repeatedly(http, client):
        number = 0
        while time.monotonic() < end:
            number += 1
            if client % 4 == 3 and number % 5 == 1:
                leaving = asyncio.create_task(ask(http, client, number))
                await asyncio.sleep(0.02)
                leaving.cancel()
                counts["left"] += 1
                continue
            status, last = await ask(http, client, number)
            if status == 200 and "result" in last:
                counts["result"] += 1
            else:
                counts["trouble"].append((status, last))

    limits = httpx.Limits(max_connections=2 * CLIENTS)
    base = f"{parts.scheme}://{parts.netloc}"
    async with httpx.AsyncClient(
        base_url=base, headers=headers, timeout=300, limits=limits
    ) as http:
        await asyncio.gather(*(ask_repeatedly(http, client) for client in range(CLIENTS)))
    return counts


def connections(process):
    return [
        connection
        for connection in process.net_connections()
        if connection.status == psutil.CONN_ESTABLISHED
    ]


def test_many_clients_get_their_answers_and_memory_stays_flat(running):
    process, address = running
    warm = asyncio.run(load(address, 2))
    before = process.memory_info().rss
    counts = asyncio.run(load(address, SECONDS))
    assert warm["trouble"] == counts["trouble"] == []
    assert counts["result"] >= CLIENTS and counts["left"] > 0
    assert process.memory_info().rss - before < FLAT
    for _ in range(100):
        if not connections(process):
            break
        time.sleep(0.1)
    assert connections(process) == []
    print(f"{SECONDS} s: {counts}, {(process.memory_info().rss - before) / 2**20:.1f} MB more")


SAVING_CLIENT = """import httpx, sys
address, token = sys.argv[1].split("/?token=")
question = {"what": "save", "text": "They saw the river from the bank"}
headers = {"Authorization": f"Bearer {token}"}
with httpx.stream("POST", f"{address}/ask", json=question, headers=headers, timeout=300) as response:
    for line in response.iter_lines():
        print("begun", flush=True)"""


def test_no_connection_or_thread_of_a_killed_client_remains(running):
    process, address = running
    for _ in range(3):
        client = subprocess.Popen(
            [sys.executable, "-c", SAVING_CLIENT, address], stdout=subprocess.PIPE, text=True
        )
        assert client.stdout.readline() == "begun\n"
        client.kill()
        client.wait()
    counts = asyncio.run(load(address, 1))
    assert counts["trouble"] == [] and connections(process) == []
    assert process.num_threads() < 64
