"""The explorer over HTTP, on this machine: one page, one place to ask questions, one worker that
answers them.

Who may ask: whoever has the token of the address, from a page of this very server (Host and Origin
are checked, so that no other site's script and no name that was rebound to this machine gets in).
What may be asked is bounded: the size of a question, and by the desk how many wait. A client that
goes away ends the work on its question.
"""

import asyncio
import ipaddress
import json
import secrets
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from probe.errors import InputError
from probe.explorer import page
from probe.explorer.request_queue import WAITING, Desk, Job
from probe.explorer.session import Explorer, Message
from probe.model.model import Model

LARGEST = 64 * 1024  # bytes of a question: some thousand tokens, far more than are read
LOCAL = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def application(
    model: Model, *, token: str, host: str = LOCAL, begun: Callable[[], object] = lambda: None
) -> Starlette:
    """The server's two routes: the page, which is made when it is first asked for, and /ask.

    `begun` is called when questions can be asked and an interrupt ends it cleanly. Raises as
    `Explorer`.
    """
    worker = ThreadPoolExecutor(1, thread_name_prefix="explorer")

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(worker, function, *arguments)

    desk = Desk(Explorer(model), run)

    @cache
    def rendered() -> Response:
        html, policy = page.render(page.opened(model))
        return HTMLResponse(
            html, headers=HEADERS | {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
        )

    async def show(request: Request) -> Response:
        _admit(request, request.query_params.get("token", ""), token, host)
        return await run(rendered)

    async def ask(request: Request) -> Response:
        _admit(
            request, request.headers.get("authorization", "").removeprefix("Bearer "), token, host
        )
        asked = await _question(request)
        said: asyncio.Queue[Message] = asyncio.Queue()
        try:
            job = desk.take(asked, said.put_nowait)
        except InputError as error:
            raise Refused(503, str(error)) from error
        return StreamingResponse(
            _lines(job, said), media_type="application/x-ndjson", headers=HEADERS
        )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        begun()
        try:
            yield
        finally:
            await desk.close()
            worker.shutdown()

    async def icon(_: Request) -> Response:
        return Response(status_code=204)

    routes = [Route("/", show), Route("/ask", ask, methods=["POST"]), Route("/favicon.ico", icon)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={Refused: _refusal})


class Refused(HTTPException):
    """Why a request gets no answer, in one sentence."""


async def _refusal(_: Request, refused: Any) -> Response:
    return JSONResponse({"error": refused.detail}, status_code=refused.status_code, headers=HEADERS)


def _admit(request: Request, given: str, token: str, host: str) -> None:
    """Raises Refused for a request to another host, from another page, or with another token than
    `token`."""
    address = request.headers.get("host", "")
    name = address.rpartition(":")[0] if not address.endswith("]") and ":" in address else address
    if not _is_ours(name, host):
        raise Refused(
            403, f"The explorer answers to {host} only; open the address that it printed."
        )
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{address}":
        raise Refused(
            403, "The explorer answers its own page only; open the address that it printed."
        )
    if not secrets.compare_digest(given.encode(), token.encode()):
        raise Refused(
            403, "The token is missing or another one; open the address that the explorer printed."
        )


def _is_ours(name: str, host: str) -> bool:
    """Whether a Host is this server's: a name can be rebound to this machine, a number cannot."""
    if name in (*NAMES, host):
        return True
    if host in NAMES:
        return False
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


async def _question(request: Request) -> dict[str, Any]:
    """The record in a request's body. Raises Refused where there is none or it is too large."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                raise Refused(
                    413,
                    f"The question is larger than {LARGEST // 1024} kB; give a shorter sentence.",
                )
        asked = json.loads(body.decode())
    except ClientDisconnect as error:
        raise Refused(400, "The client went away.") from error
    except (ValueError, RecursionError) as error:
        raise Refused(400, "The question is no JSON; ask from the explorer's page.") from error
    if not isinstance(asked, dict):
        raise Refused(400, "The question is no record; ask from the explorer's page.")
    return asked


async def _lines(job: Job, said: asyncio.Queue[Message]) -> AsyncIterator[bytes]:
    """The messages as lines of JSON; whoever goes away ends the work."""
    try:
        while True:
            message = await said.get()
            yield (
                json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(
                    "utf-8", "replace"
                )
                + b"\n"
            )
            if "doing" not in message:
                return
    finally:
        job.wanted = False


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises InputError where the address cannot be
    had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"Listening on {host}, port {port}: {getattr(error, 'strerror', None) or error}; choose another --port, or "
            f"leave it away for a free one."
        ) from error


def serve(
    load: Callable[[], Model],
    *,
    host: str = LOCAL,
    port: int = 0,
    browser: bool = True,
    say: Callable[[str], None],
) -> None:
    """Serve the page until interrupted; `say` gets the address first, when questions can be asked.

    Raises InputError for an address that cannot be had; KeyboardInterrupt when interrupted.
    """
    door = listening(host, port)
    token = secrets.token_urlsafe(18)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{door.getsockname()[1]}/?token={token}"

    def begun() -> None:
        say(address)
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    with door:
        app = application(load(), token=token, host=host, begun=begun)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            limit_concurrency=4 * WAITING,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=15,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[door])
    raise KeyboardInterrupt  # nothing else ends it; where a shell has interrupts ignored, uvicorn does not say so
