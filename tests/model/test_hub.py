"""The hub path for real: a small hub on this machine and a cache of the test's own.

What downloads is a process of its own, as users have it. What the hub refuses is asked here, with
the client's own settings set for the test.
"""

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, serve
from huggingface_hub import constants

import probe
from probe.errors import ModelError

LOAD = """
import json, sys, probe
try:
    model = probe.load(sys.argv[1])
except probe.ProbeError as error:
    print(json.dumps({"error": type(error).__name__, "sentence": str(error)}))
else:
    origin = model.origin
    print(json.dumps({"kind": origin.kind, "location": origin.location, "revision": origin.revision,
                      "sha256": origin.sha256, "name": model.name, "layers": model.config.n_layers}))
"""
FETCH = """
import json, sys, probe
from probe.model.find import fetch
folder, revision = fetch(sys.argv[1])
print(json.dumps({"files": sorted(file.name for file in folder.iterdir()), "revision": revision}))
"""
FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
NOBODY = "http://127.0.0.1:9"  # a port at which nothing listens
INSTEAD = "a folder with config.json, tokenizer and safetensors works too, and tiny-senses needs nothing."


@pytest.fixture
def hub(copy: Path, tmp_path: Path) -> Iterator[Hub]:
    """A hub with a GPT-2, the same under an owner's name, one that is gated, and one that is only a pickle."""
    (copy / "pytorch_model.bin").write_bytes(b"a pickle that nobody asks for")
    (copy / "README.md").write_text("# a card")
    (copy / "modeling_evil.py").write_text("raise SystemExit")
    pickled = Path(shutil.copytree(copy, tmp_path / "pickled"))
    (pickled / "model.safetensors").unlink()
    models = {"gpt2": copy, "somebody/gpt2-small": copy, "big/gated": copy, "old/pickled": pickled}
    with serve(models, gated=frozenset({"big/gated"})) as running:
        yield running


def environment(address: str, cache: Path, **more: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return inherited | {"HF_ENDPOINT": address, "HF_HOME": str(cache), "OMP_NUM_THREADS": "1"} | more


def load(name: str, address: str, cache: Path, *, code: str = LOAD, **more: str) -> dict:
    """What `code` printed about `name` in a fresh process; nothing may appear on standard error."""
    command = [sys.executable, "-c", code, name]
    done = subprocess.run(
        command, env=environment(address, cache, **more), capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stderr.strip() == ""
    return json.loads(done.stdout)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The sentence that loading a name from a hub ends with; nothing may appear on standard error."""

    def refused(name: str, address: str, *, offline: bool = False) -> str:
        settings = {"ENDPOINT": address, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": offline}
        for setting, value in settings.items():
            monkeypatch.setattr(constants, setting, value)
        with pytest.raises(ModelError) as stop:
            probe.load(name)
        assert capsys.readouterr().err == ""
        return str(stop.value)

    return refused


@pytest.mark.slow
def test_first_from_the_hub_then_from_the_cache_also_when_the_hub_is_gone(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = load("somebody/gpt2-small", hub.address, cache)
    assert (first["kind"], first["location"], first["name"]) == ("hub", "somebody/gpt2-small", "somebody/gpt2-small")
    assert (first["revision"], first["layers"]) == (COMMIT, 2)
    assert hub.fetched() == set(FILES)

    asked = len(hub.requests)
    assert load("somebody/gpt2-small", hub.address, cache, code=FETCH) == {"files": FILES, "revision": COMMIT}
    assert len(hub.requests) == asked, "the second load asked the network"

    assert load("somebody/gpt2-small", NOBODY, cache) == first
    listed = "import json, probe; print(json.dumps([r.name for r in probe.available() if 'local cache' in r.where]))"
    assert load("", NOBODY, cache, code=listed) == ["somebody/gpt2-small"]


@pytest.mark.slow
def test_an_incomplete_cache_is_completed(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = load("gpt2", hub.address, cache, code=FETCH)
    snapshot = next(cache.glob("hub/models--gpt2/snapshots/*"))
    (snapshot / "model.safetensors").unlink()
    shutil.rmtree(cache / "hub/models--gpt2/trees", ignore_errors=True)
    assert load("gpt2", hub.address, cache, code=FETCH) == first


@pytest.mark.slow
def test_a_progress_bar_is_drawn_on_a_terminal(hub: Hub, tmp_path: Path) -> None:
    outside, inside = pty.openpty()
    termios.tcsetwinsize(inside, (24, 100))
    done = subprocess.Popen(
        [sys.executable, "-c", FETCH, "gpt2"],
        env=environment(hub.address, tmp_path / "cache"),
        stdout=subprocess.DEVNULL,
        stderr=inside,
    )
    os.close(inside)
    drawn = b""
    with os.fdopen(outside, "rb", buffering=0) as terminal:
        while block := read_or_nothing(terminal.fileno()):
            drawn += block
    assert done.wait(timeout=60) == 0
    assert b"Fetching 4 files: 100%" in drawn
    assert b"Warning" not in drawn and b"Traceback" not in drawn


def read_or_nothing(descriptor: int) -> bytes:
    """A terminal whose last writer is gone answers with an error instead of an end of file."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def test_an_unknown_name_says_so(hub: Hub, refused: Callable[..., str]) -> None:
    assert refused("nobody/nothing", hub.address) == (
        f"Cannot load nobody/nothing: the hub {hub.address} has no public model of that name, "
        f"and there is no such folder here; {INSTEAD}"
    )


def test_a_gated_model_says_so(hub: Hub, refused: Callable[..., str]) -> None:
    assert refused("big/gated", hub.address) == (
        f"Cannot load big/gated: the hub {hub.address} asks for a login and for its terms to be accepted; {INSTEAD}"
    )


def test_a_model_without_safetensors_is_not_even_fetched(hub: Hub, refused: Callable[..., str]) -> None:
    said = refused("old/pickled", hub.address)
    assert f"the hub {hub.address} has no safetensors of it, only a pickle or nothing; convert it" in said
    assert hub.fetched() == set()


@pytest.mark.slow
def test_a_damaged_download_is_refused_like_a_damaged_folder(hub: Hub, tmp_path: Path) -> None:
    weights = hub.models["gpt2"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "model.safetensors is corrupt" in load("gpt2", hub.address, tmp_path / "cache")["sentence"]


def test_no_hub_and_no_cache_is_one_sentence(refused: Callable[..., str]) -> None:
    began = time.monotonic()
    said = refused("gpt2", NOBODY)
    assert said.startswith(
        f"Cannot load gpt2: it is not in the local cache, and the hub {NOBODY} could not be reached ("
    )
    assert said.endswith(f"); {INSTEAD}")
    assert time.monotonic() - began < 15


@pytest.mark.slow
def test_a_hub_that_never_answers_is_given_up(refused: Callable[..., str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        said = refused("gpt2", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "could not be reached (timed out); " in said
    assert time.monotonic() - began < 20


def test_offline_mode_is_named(hub: Hub, refused: Callable[..., str]) -> None:
    assert refused("gpt2", hub.address, offline=True) == (
        f"Cannot load gpt2: it is not in the local cache, and HF_HUB_OFFLINE forbids asking a hub; {INSTEAD}"
    )
