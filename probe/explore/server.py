"""The explorer over HTTP, on this machine: one page, one place to ask questions, one worker that answers them.

Who may ask: whoever has the token of the address, from a page of this very server (Host and Origin are checked, so
that no other site's script and no name that was rebound to this machine gets in). What may be asked is bounded: the
size of a question, how many wait, how many pages are remembered. A page's newer question ends its older one of the same
kind, and a new sentence all of them; so does a client that goes away.
"""

import asyncio
import ipaddress
import json
import logging
import secrets
import socket
import threading
import webbrowser
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from probe.errors import InputError
from probe.explore import page
from probe.explore.explorer import Explorer, messages
from probe.model.model import Model

LARGEST = 64 * 1024  # bytes of a question: some thousand tokens, far more than are read
WAITING = 64  # questions that wait for the worker
PAGES = 256  # pages that are remembered
LOCAL = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
log = logging.getLogger(__name__)


class Job:
    """A question on its way: its messages as they come, and whether it is still wanted."""

    def __init__(self, what: str) -> None:
        self.what, self.wanted = what, True
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()

    def say(self, message: dict[str, Any]) -> None:
        """Hands a message from the worker to whoever waits for it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.said.put_nowait, message)


class Desk:
    """The worker and the questions that wait for it."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer, self.waiting = explorer, 0
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="explorer")
        self.pages: OrderedDict[str, dict[str, tuple[int, Job]]] = OrderedDict()

    def take(self, asked: dict[str, Any]) -> Job:
        """Puts a question in line. Raises InputError where too many wait."""
        if self.waiting >= WAITING:
            raise InputError(f"Answering a question: {self.waiting} others are waiting; ask again in a moment.")
        job = Job(str(asked.get("what")))
        self._supersede(str(asked.get("page"))[:64], asked.get("number"), job)
        self.waiting += 1
        self.worker.submit(self._work, job, asked)
        return job

    def _supersede(self, name: str, number: object, job: Job) -> None:
        """Ends what this question makes unwanted; itself where a newer one of its page has come before it."""
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

    def _work(self, job: Job, asked: dict[str, Any]) -> None:
        """In the worker: answers as long as the answer is wanted."""
        try:
            for message in messages(self.explorer, asked) if job.wanted else ():
                job.say(message)
                if not job.wanted:
                    break
            job.say({"superseded": True})  # behind a result nobody reads it
        except Exception:
            log.exception("a question could not be answered")
            job.say({"error": "Answering the question failed; the explorer goes on. Its terminal says what happened."})
        finally:
            if not job.loop.is_closed():
                job.loop.call_soon_threadsafe(self._done)

    def _done(self) -> None:
        self.waiting -= 1

    def close(self) -> None:
        """Ends everything; waits for the step that is running."""
        for mine in self.pages.values():
            for _, job in mine.values():
                job.wanted = False
        self.worker.shutdown(wait=True, cancel_futures=True)


def application(model: Model, *, token: str, host: str = LOCAL) -> Starlette:
    """The server's two routes: the page, which is made when it is first asked for, and /ask. Raises as `Explorer`."""
    explorer = Explorer(model)
    desk = Desk(explorer)

    @cache
    def rendered() -> Response:
        html, policy = page.render(page.opened(model))
        return HTMLResponse(html, headers=HEADERS | {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"})

    async def show(request: Request) -> Response:
        problem = refused(request, request.query_params.get("token", ""), token, host)
        if problem is not None:
            return problem
        return await asyncio.get_running_loop().run_in_executor(desk.worker, rendered)

    async def ask(request: Request) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        problem = refused(request, given, token, host)
        if problem is not None:
            return problem
        asked, problem = await _question(request)
        if problem is not None:
            return problem
        try:
            job = desk.take(asked)
        except InputError as error:
            return _sentence(503, str(error))
        return StreamingResponse(_lines(job), media_type="application/x-ndjson", headers=HEADERS)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await asyncio.get_running_loop().run_in_executor(None, desk.close)

    async def icon(_: Request) -> Response:
        return Response(status_code=204)

    routes = [Route("/", show), Route("/ask", ask, methods=["POST"]), Route("/favicon.ico", icon)]
    return Starlette(routes=routes, lifespan=lifespan)


def refused(request: Request, given: str, token: str, host: str) -> Response | None:
    """Why a request gets no answer; None where it does."""
    address = request.headers.get("host", "")
    name = address.rpartition(":")[0] if not address.endswith("]") and ":" in address else address
    if not _is_ours(name, host):
        return _sentence(403, f"The explorer answers to {host} only; open the address that it printed.")
    origin = request.headers.get("origin")
    if origin is not None and origin != f"http://{address}":
        return _sentence(403, "The explorer answers its own page only; open the address that it printed.")
    if not secrets.compare_digest(given.encode(), token.encode()):
        return _sentence(403, "The token is missing or another one; open the address that the explorer printed.")
    return None


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


async def _question(request: Request) -> tuple[dict[str, Any], Response | None]:
    """The record in a request's body; a response where there is none or it is too large."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > LARGEST:
                return {}, _sentence(413, f"The question is larger than {LARGEST // 1024} kB; give a shorter sentence.")
        asked = json.loads(body.decode())
    except ClientDisconnect:
        return {}, _sentence(400, "The client went away.")
    except (ValueError, RecursionError):
        return {}, _sentence(400, "The question is no JSON; ask from the explorer's page.")
    if not isinstance(asked, dict):
        return {}, _sentence(400, "The question is no record; ask from the explorer's page.")
    return asked, None


def _sentence(status: int, text: str) -> Response:
    return JSONResponse({"error": text}, status_code=status, headers=HEADERS)


async def _lines(job: Job) -> AsyncIterator[bytes]:
    """The messages as lines of JSON; whoever goes away ends the work."""
    try:
        while True:
            message = await job.said.get()
            yield json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
            if "doing" not in message:
                return
    finally:
        job.wanted = False


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one. Raises InputError where the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"Listening on {host}, port {port}: {getattr(error, 'strerror', None) or error}; choose another --port, or "
            f"leave it away for a free one."
        ) from error


def serve(
    load: Callable[[], Model], *, host: str = LOCAL, port: int = 0, browser: bool = True, say: Callable[[str], None]
) -> None:
    """Serve the page until interrupted; `say` gets the address first, when questions can be asked.

    Raises InputError for an address that cannot be had; KeyboardInterrupt when interrupted.
    """
    door = listening(host, port)
    token = secrets.token_urlsafe(18)
    with door:
        app = application(load(), token=token, host=host)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{door.getsockname()[1]}/?token={token}"
        say(address)
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
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
