"""The explorer over HTTP, on this machine: one page, and one address to ask questions at.

Who may ask: whoever has the token of the address, from a page of this very server (Host and Origin
are checked, so that no other site's script and no name that was rebound to this machine gets in).
The size of a question and the number of connections are limited. One lock is held around each step
that computes, because an `Explorer` is not thread-safe; the answers of several clients take turns,
step by step. A client that disconnects ends the work on its question.
"""

import asyncio
import errno
import ipaddress
import json
import logging
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from probe.errors import InputError
from probe.model.model import Model
from probe.walks.explore import messages, opening_walk, render
from probe.walks.explorer import Explorer, Message

MAX_QUESTION = 64 * 1024  # bytes: some thousand tokens, far more than are read
TOKEN_BYTES = 18  # of the address's token, which nobody guesses
GRACE = 2  # seconds that open connections get when the server is interrupted
KEEP_ALIVE = 15  # seconds that an idle connection stays open between questions
MAX_CONNECTIONS = 256  # open at once: a class of students, with a few requests of each page
LOCAL = "127.0.0.1"
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
FAILED = (
    "Cannot answer the question: it caused an error. The explorer goes on, and its terminal shows "
    "the error."
)
log = logging.getLogger(__name__)


def application(
    explorer: Explorer,
    page: tuple[str, str],
    *,
    token: str,
    host: str = LOCAL,
    on_start: Callable[[], object] = lambda: None,
) -> Starlette:
    """The server's two routes: the page, and /ask.

    page: the page and its content security policy
    on_start: called when questions can be asked and an interrupt ends the server cleanly
    """
    computing = asyncio.Lock()
    html, policy = page
    policy_header = {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}

    async def show(request: Request) -> Response:
        _admit(request, request.query_params.get("token", ""), token, host)
        return HTMLResponse(html, headers=HEADERS | policy_header)

    async def ask(request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        _admit(request, authorization.removeprefix("Bearer "), token, host)
        lines = _lines(explorer, await _question(request), computing)
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=HEADERS)

    async def icon(_: Request) -> Response:
        return Response(status_code=204)

    async def refusal(_: Request, refused: Any) -> Response:
        return JSONResponse(
            {"error": refused.detail}, status_code=refused.status_code, headers=HEADERS
        )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        on_start()
        yield

    routes = [
        Route("/", show),
        Route("/ask", ask, methods=["POST"]),
        Route("/favicon.ico", icon),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={Refused: refusal})


class Refused(HTTPException):
    """Why a request gets no answer, in one sentence."""


def _admit(request: Request, sent_token: str, token: str, host: str) -> None:
    """Raises Refused for a request to another host, from another page, or with another token than
    `token`.
    """
    address = request.headers.get("host", "")
    # An IPv6 address without a port ends with its bracket, and contains colons.
    has_port = ":" in address and not address.endswith("]")
    name = address.rpartition(":")[0] if has_port else address
    origin = request.headers.get("origin")
    if not is_own_name(name, host):
        problem = f"the explorer answers to {host} only. Open the address that it printed"
    elif origin is not None and origin != f"http://{address}":
        problem = "the explorer answers its own page only. Open the address that it printed"
    elif not secrets.compare_digest(sent_token.encode(), token.encode()):
        problem = "its token is missing or wrong. Open the address that the explorer printed"
    else:
        return
    raise Refused(403, f"Cannot answer the request: {problem}.")


def is_own_name(name: str, host: str) -> bool:
    """Whether a Host is this server's: a name can be rebound to this machine, a number cannot."""
    if name in (*LOCAL_NAMES, host):
        return True
    if host in LOCAL_NAMES:
        return False
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


async def _question(request: Request) -> dict[str, Any]:
    """The record in a request's body. Raises Refused if the body is empty, invalid or too large."""
    body = bytearray()
    problem = "it is not JSON"
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_QUESTION:
                limit = f"{MAX_QUESTION // 1024} kB"
                problem = f"it is larger than {limit}. Give a shorter sentence"
                raise Refused(413, f"Cannot read the question: {problem}.")
        question = json.loads(body.decode())
        if isinstance(question, dict):
            return question
        problem = "it is not a record"
    except ClientDisconnect:
        problem = "the client went away"
    except (ValueError, RecursionError):
        pass
    raise Refused(400, f"Cannot read the question: {problem}. Ask from the explorer's page.")


async def _lines(
    explorer: Explorer, question: dict[str, Any], computing: asyncio.Lock
) -> AsyncIterator[bytes]:
    """The messages of an answer as lines of JSON. It is cancelled if the client disconnects."""
    steps = messages(explorer, question)
    try:
        while True:
            # The thread pool finishes a step before a cancellation releases the lock.
            async with computing:
                message = await run_in_threadpool(next, steps, None)
            if message is None:
                return
            yield _line(message)
    except Exception:
        # Whatever a model's code raises: one question fails, the others are still answered.
        log.exception("a question could not be answered")
        yield _line({"error": FAILED})


def _line(message: Message) -> bytes:
    line = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
    # A token may decode to half of a surrogate pair, which UTF-8 has no bytes for.
    return line.encode("utf-8", "replace") + b"\n"


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises InputError where the address cannot be
    had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        is_no_name = isinstance(error, socket.gaierror)
        # Python adds the address to the system's message, and the sentence already has it.
        from_system = os.strerror(number) if number and not is_no_name else None
        reason = from_system or getattr(error, "strerror", None) or str(error)
        step = "Choose another --port, or omit it for a free one"
        if is_no_name or number == errno.EADDRNOTAVAIL:
            step = (
                f"Give --host an address of this machine, such as {LOCAL}, or 0.0.0.0 for all of "
                "them"
            )
        raise InputError(f"Cannot listen on {host}, port {port}: {reason}. {step}.") from error


def serve(
    load: Callable[[], Model],
    *,
    host: str = LOCAL,
    port: int = 0,
    browser: bool = True,
    fragment: str = "",
    say: Callable[[str], None],
) -> None:
    """Serve the page until interrupted; `say` gets the address first, when questions can be asked.

    `fragment`: what the address says of the sentences that the page opens with. Raises InputError
    for an address that cannot be had; KeyboardInterrupt when interrupted.
    """
    listener = listening(host, port)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    url_host = f"[{host}]" if ":" in host else host
    address = f"http://{url_host}:{listener.getsockname()[1]}/?token={token}"
    if fragment:
        address += f"#{fragment}"

    def announce() -> None:
        say(address)
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    with listener:
        explorer = Explorer(load())
        page = render(opening_walk(explorer.model))
        app = application(explorer, page, token=token, host=host, on_start=announce)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=GRACE,
            timeout_keep_alive=KEEP_ALIVE,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listener])
    # Nothing else ends it; where a shell ignores interrupts, uvicorn does not say so.
    raise KeyboardInterrupt
