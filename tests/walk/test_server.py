"""The explorer's server: access, valid questions, survival of any request, and several clients."""

import asyncio
import json
import re
import socket
import time

import pytest
from embedded import embedded

testclient = pytest.importorskip(
    "starlette.testclient", reason="starlette is not installed: probe-heads[explore]"
)

from inside import server

from probe import InputError

TOKEN = "secret"
HOST = "http://127.0.0.1:8000"
QUESTION = {"what": "sentence", "text": "They saw the river from the bank."}
QUESTION |= {"other": "They took the money from the bank."}


@pytest.fixture(scope="module")
def client():
    explorer = server.Explorer(embedded())
    page = server.render(server.opening_walk(explorer.model))
    app = server.application(explorer, page, token=TOKEN)
    with testclient.TestClient(app, base_url=HOST) as test_client:
        yield test_client


def ask(client, body, **headers):
    """A response and its messages."""
    headers = {"Authorization": f"Bearer {TOKEN}"} | headers
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post("/ask", content=content, headers=headers)
    return response, [json.loads(line) for line in response.text.splitlines()]


@pytest.fixture(scope="module")
def page(client):
    return client.get("/", params={"token": TOKEN})


def test_the_page_runs_only_its_scripts_and_sends_requests_only_to_this_server(page):
    policy = page.headers["content-security-policy"]
    assert page.status_code == 200 and "unsafe" not in policy and "default-src 'none'" in policy
    assert "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert not re.findall(r"\son\w+=|style=\"|(?:src|href)=\"http", page.text.split("<script")[0])
    assert (
        page.headers["referrer-policy"] == "no-referrer"
        and page.headers["cache-control"] == "no-store"
    )
    assert TOKEN not in page.text


def test_a_question_is_answered_in_lines_of_json(client):
    response, messages = ask(client, QUESTION)
    assert (
        response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson"
    )
    assert [("doing" in message, "result" in message) for message in messages[:-1]] == [
        (True, False)
    ] * 4
    assert messages[-1]["result"]["block"]["word"] == "bank"


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({"Authorization": "Bearer wrong"}, "its token is missing or wrong"),
        ({"Authorization": ""}, "its token is missing or wrong"),
        ({"Host": "evil.example:8000"}, "the explorer answers to 127.0.0.1 only"),
        ({"Host": "127.0.0.1.evil.example"}, "the explorer answers to 127.0.0.1 only"),
        ({"Host": "10.0.0.7:8000"}, "the explorer answers to 127.0.0.1 only"),
        ({"Origin": "https://evil.example"}, "the explorer answers its own page only"),
        ({"Origin": "null"}, "the explorer answers its own page only"),
        ({"Origin": "http://127.0.0.1:9999"}, "the explorer answers its own page only"),
    ],
)
def test_foreign_requests_are_refused_with_an_error(client, headers, sentence):
    response, (message,) = ask(client, QUESTION, **headers)
    assert response.status_code == 403 and sentence in message["error"]


def test_the_page_needs_the_token_too(client):
    assert client.get("/").status_code == client.get("/", params={"token": "x"}).status_code == 403
    assert (
        client.get("/", params={"token": TOKEN}, headers={"Host": "evil.example"}).status_code
        == 403
    )
    assert client.get("/other", params={"token": TOKEN}).status_code == 404
    assert client.get("/ask").status_code == 405


def test_its_page_and_the_names_of_this_machine_are_accepted(client):
    for host in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000", "localhost"):
        response, messages = ask(client, QUESTION, Host=host, Origin=f"http://{host}")
        assert response.status_code == 200 and "result" in messages[-1]


@pytest.mark.parametrize(
    ("name", "host", "ours"),
    [
        ("192.168.1.5", "0.0.0.0", True),
        ("[fe80::1]", "::", True),
        ("rebound.example", "0.0.0.0", False),
        ("lab.example", "lab.example", True),
        ("192.168.1.5", "127.0.0.1", False),
    ],
)
def test_a_public_server_accepts_ip_addresses_and_its_name(name, host, ours):
    assert server.is_own_name(name, host) is ours


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"x" * 10_000_000, 413, "it is larger than 64 kB. Give a shorter sentence."),
        (b"{", 400, "it is not JSON. Ask from the explorer's page."),
        (b"\xff\xfe", 400, "it is not JSON. Ask from the explorer's page."),
        (b"[" * 60_000, 400, "it is not JSON. Ask from the explorer's page."),
        (b"[1]", 400, "it is not a record. Ask from the explorer's page."),
        ({"what": "sentence", "text": "\ud800 bank"}, 200, None),
        ({"what": ["swap"], "text": "x"}, 200, "got what as list, expected a string"),
    ],
)
def test_the_server_survives_any_request(client, body, status, sentence):
    response, messages = ask(client, body)
    assert response.status_code == status
    if sentence is not None:
        assert sentence in messages[-1]["error"] and "Traceback" not in response.text
    response, messages = ask(client, QUESTION)
    assert response.status_code == 200 and "result" in messages[-1]


STEPS = 40


class Slow:
    """An explorer whose answers take STEPS steps; it notes how many run at the same time."""

    def __init__(self):
        self.steps = []
        self.n_running = 0
        self.most_running = 0

    def answer(self, question):
        for step in range(STEPS):
            self.n_running += 1
            self.most_running = max(self.most_running, self.n_running)
            self.steps.append((question.text, step))
            time.sleep(0.005)
            self.n_running -= 1
            yield {"doing": "waiting", "progress": step / STEPS}
        yield {"result": question.text}


class Broken:
    def answer(self, question):
        yield {"doing": "waiting", "progress": 0}
        raise ZeroDivisionError


async def request(app, text, leaving_after=None):
    """The messages that a client gets; it disconnects after some of them."""
    body = json.dumps({"what": "sentence", "text": text}).encode()
    received = [{"type": "http.request", "body": body, "more_body": False}]
    messages = []
    left = asyncio.Event()

    async def receive():
        if received:
            return received.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(event):
        if event.get("body"):
            messages.append(json.loads(event["body"]))
        if len(messages) == leaving_after:
            left.set()

    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/ask", "headers": headers}
    await app(scope | {"query_string": b""}, receive, send)
    return messages


def with_explorer(explorer, play):
    """The result of `play` with an application that asks this explorer."""
    app = server.application(explorer, ("", ""), token=TOKEN)
    return asyncio.run(asyncio.wait_for(play(app), 20))


def test_several_clients_are_answered_and_one_step_runs_at_a_time():
    async def play(app):
        return await asyncio.gather(*(request(app, text) for text in ("one", "two", "three")))

    slow = Slow()
    answers = with_explorer(slow, play)
    assert [answer[-1] for answer in answers] == [{"result": t} for t in ("one", "two", "three")]
    assert slow.most_running == 1
    assert slow.steps[:3] == [("one", 0), ("two", 0), ("three", 0)]  # they take turns


def test_a_client_that_disconnects_ends_its_work_and_no_other():
    async def play(app):
        return await asyncio.gather(request(app, "one", leaving_after=2), request(app, "two"))

    slow = Slow()
    left, answered = with_explorer(slow, play)
    assert len(left) < STEPS / 2 and answered[-1] == {"result": "two"}
    assert sum(text == "one" for text, _ in slow.steps) < STEPS / 2
    assert slow.most_running == 1


def test_a_failure_is_reported_and_the_next_question_is_answered():
    async def play(app):
        return [await request(app, "one"), await request(app, "two")]

    for *_, last in with_explorer(Broken(), play):
        assert last["error"].startswith("Cannot answer the question: it caused an error.")


def test_a_port_in_use_is_an_input_error():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            InputError, match=f"Cannot listen on 127.0.0.1, port {port}: .*. Choose another --port"
        ):
            server.listening("127.0.0.1", port)


def test_a_port_in_use_is_noticed_before_the_model_is_loaded():
    def load():
        raise AssertionError("loaded")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(InputError) as raised:
            server.serve(load, port=port, say=print)
    assert str(raised.value) == (
        f"Cannot listen on 127.0.0.1, port {port}: Address already in use. Choose another --port, or "
        "omit it for a free one."
    )


@pytest.mark.parametrize("host", ["8.8.8.8", "no.such.host.invalid"])
def test_the_error_for_a_foreign_address_does_not_suggest_another_port(host):
    with pytest.raises(InputError) as raised:
        server.listening(host, 0)
    message = str(raised.value)
    assert message.startswith(f"Cannot listen on {host}, port 0: ") and "--port" not in message
    assert message.endswith(
        ". Give --host an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them."
    )


def test_it_warns_about_public_addresses_and_reports_an_unknown_host(run, monkeypatch):
    code, _, err = run("explore", "--no-browser", "--host", "no.such.host.invalid")
    assert code == 2 and "Cannot listen on no.such.host.invalid, port 0: " in err

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "serve", interrupted)
    code, _, err = run("explore", "--no-browser", "--host", "0.0.0.0")
    assert code == 130
    assert err.endswith("probe: the explorer has stopped.\n") and "files" not in err
    assert (
        "listening on 0.0.0.0. Anybody who can reach this machine and has the address can use the "
        "model." in err
    )
