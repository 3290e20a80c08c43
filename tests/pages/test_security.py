"""Actions that probe never takes: unrequested network access, unpickling, running a model's code."""

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TRIED

ROOT = Path(__file__).parents[2]
SOURCES = {
    file: file.read_text(encoding="utf-8") for file in sorted((ROOT / "probe").rglob("*.py"))
}
BLOCKED = """
import socket, sys
tried = []
def blocked(self, *rest, **more):
    tried.append(rest)
    raise OSError("this test has no network")
for name in ("connect", "connect_ex", "bind", "sendto"):
    setattr(socket.socket, name, blocked)
socket.create_connection = socket.getaddrinfo = lambda *rest, **more: blocked(None, *rest)
sys.argv = ["probe", *sys.argv[1:]]
from probe.cli import main
try:
    main()
except SystemExit as stop:
    sys.exit(stop.code or (f"the network was tried: {tried}" if tried else 0))
"""


def run_blocked(folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
    command = [sys.executable, "-c", BLOCKED, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )


@pytest.mark.campaign
def test_a_first_start_needs_no_network(tmp_path):
    """In a new home folder without downloads. For all other tests conftest.py blocks connections to
    other machines."""
    process = run_blocked(tmp_path, "check")
    assert process.returncode == 0, process.stderr


@pytest.mark.campaign
def test_the_default_report_needs_no_network(tmp_path):
    process = run_blocked(tmp_path, "report", "bank", "--permutations", "99", "--out", "out")
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "out" / "ambiguity.html").exists()


def test_connections_to_another_machine_are_blocked():
    with socket.socket() as connection, pytest.raises(OSError, match="tests have no network, and "):
        connection.connect(("192.0.2.1", 80))  # an address reserved for documentation
    assert TRIED.pop() == ("192.0.2.1", 80)


@pytest.mark.campaign
def test_the_network_is_really_blocked(tmp_path):
    process = run_blocked(tmp_path, "check", "--model", "somebody/some-gpt2")
    assert process.returncode not in (0, None) and process.stderr.strip()


def test_nothing_is_unpickled_and_no_remote_code_is_trusted():
    """The package contains no call that unpickles, and refuses remote code wherever a library could run
    it."""
    unpickling = ("torch.load", "numpy.load", "np.load", "pd.read_pickle", "eval", "exec")
    for file, text in SOURCES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"} & set(
                    names
                ), file
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                # Arrays are read by numpy, which is told to unpickle nothing.
                plain = called == "np.load" and keywords.get("allow_pickle") == "False"
                assert plain or called not in unpickling, (file, called)
                assert keywords.get("trust_remote_code", "False") == "False", file
                assert keywords.get("allow_pickle", "False") == "False", file


def test_temporary_files_never_have_predictable_names():
    """Predictable names come from mktemp or from a fixed path in the machine's temporary folder."""
    for file, text in SOURCES.items():
        assert "mktemp(" not in text and '"/tmp' not in text and "gettempdir" not in text, file
        assert "0o777" not in text and "0o666" not in text, file
