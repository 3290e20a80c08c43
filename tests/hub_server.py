"""A small hub on 127.0.0.1 that speaks the file protocol of a model hub: revision, tree, resolve,
large-file redirect.

It serves folders of the test and records every request, so that a test can check them.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = ".safetensors"


@dataclass(frozen=True)
class Hub:
    """A running hub: its address, the folders that it serves by model name ("name@revision" for a
    revision), and its requests."""

    address: str
    models: Mapping[str, Path]
    gated: frozenset[str]
    requests: list[str] = field(default_factory=list)

    def fetched(self) -> set[str]:
        """The names of the files whose bytes were sent; a large file is sent from the store, by its
        sha256."""
        names = {
            line.rsplit("/", 1)[1]
            for line in self.requests
            if re.match("GET .*(/resolve/|/large/)", line)
        }
        stored = {
            _sha256(file): file.name for folder in self.models.values() for file in folder.iterdir()
        }
        return {stored.get(name, name) for name in names}


@contextmanager
def serve(models: Mapping[str, Path], *, gated: frozenset[str] = frozenset()) -> Iterator[Hub]:
    """Serve `models` until the block ends; requests of `gated` names are refused until terms are
    accepted."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = Hub(f"http://127.0.0.1:{server.server_port}", models, gated)
    thread = Thread(
        target=server.serve_forever, args=(0.02,), daemon=True
    )  # seconds between checks whether to stop
    thread.start()
    try:
        yield server.hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        """No log: the test reads `Hub.requests` instead."""

    def _answer(self, *, with_body: bool) -> None:
        hub: Hub = self.server.hub
        path = urlsplit(self.path).path
        hub.requests.append(f"{self.command} {path}")
        status, headers, body = _respond(hub, path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", headers.get("Content-Length", str(len(body))))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _respond(hub: Hub, path: str) -> tuple[int, dict[str, str], bytes]:
    if path.startswith("/large/"):
        file = next(
            f
            for folder in hub.models.values()
            for f in folder.iterdir()
            if _sha256(f) == path.split("/")[2]
        )
        return 200, {"Content-Type": "application/octet-stream"}, file.read_bytes()
    name, action, revision, file_path = _split(hub, path)
    if name in hub.gated:
        return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."}, b""
    if name not in hub.models:
        return (
            401,
            {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."},
            b"",
        )
    commits = {commit_of(key): key for key in hub.models if key.partition("@")[0] == name}
    revisions = {"main": name, COMMIT: name} | {
        key.partition("@")[2]: key for key in commits.values()
    }
    key = (revisions | commits).get(revision)
    if key is None:
        error_headers = {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}
        return 404, error_headers, b""
    folder = hub.models[key]
    commit = commit_of(key)
    if action == "revision":
        return _json(
            {
                "id": name,
                "sha": commit,
                "siblings": [{"rfilename": f.name} for f in sorted(folder.iterdir())],
            },
            commit,
        )
    if action == "tree":
        return _json([_entry(file) for file in sorted(folder.iterdir())], commit)
    return _resolve(hub, folder / file_path, commit)


def commit_of(key: str) -> str:
    """The commit hash of a model, or of one of its revisions."""
    return hashlib.sha1(key.encode()).hexdigest() if "@" in key else COMMIT


def _split(hub: Hub, path: str) -> tuple[str, str, str, str]:
    """("gpt2", "tree", "main", "") of /api/models/gpt2/tree/main, and ("gpt2", "resolve", "main",
    "config.json") of a file's."""
    parts = path.removeprefix("/api/models").strip("/").split("/")
    at = next(
        (i for i, part in enumerate(parts) if part in ("revision", "tree", "resolve")), len(parts)
    )
    action, revision, *file_parts = parts[at:] if at < len(parts) else ("revision", "main")
    return "/".join(parts[:at]), action, revision, "/".join(file_parts)


def _resolve(hub: Hub, file: Path, commit: str) -> tuple[int, dict[str, str], bytes]:
    if not file.is_file():
        return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
    headers = {"X-Repo-Commit": commit, "ETag": f'"{_sha256(file)[:40]}"', "Accept-Ranges": "bytes"}
    if file.suffix != LARGE:
        return 200, headers, file.read_bytes()
    linked = {"X-Linked-Size": str(file.stat().st_size), "X-Linked-ETag": f'"{_sha256(file)}"'}
    return 302, headers | linked | {"Location": f"{_store(hub)}/large/{_sha256(file)}"}, b""


def _store(hub: Hub) -> str:
    """Another host name of the same server: clients treat a redirect to the hub itself as a renamed
    model."""
    return hub.address.replace("127.0.0.1", "localhost")


def _entry(file: Path) -> dict[str, object]:
    size, digest = file.stat().st_size, _sha256(file)
    entry = {"type": "file", "path": file.name, "size": size, "oid": digest[:40]}
    return entry | (
        {"lfs": {"oid": digest, "size": size, "pointerSize": 134}} if file.suffix == LARGE else {}
    )


def _json(content: object, commit: str) -> tuple[int, dict[str, str], bytes]:
    return (
        200,
        {"Content-Type": "application/json", "X-Repo-Commit": commit},
        json.dumps(content).encode(),
    )


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
