"""Every command writes to a pipe, a closed pipe, and a stream that lacks most characters."""

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
import typer.main
from inside import cli
from seeds import campaign_except

PAGES = Path(__file__).parents[2] / "reports" / "docs" / "pages"
COMMANDS = typer.main.get_command(cli.app).commands


# Sentences with a word that no Western encoding has.
TEXT = "η τράπεζα"
RIVERS = ("νερό", "ψάρι", "λάσπη", "γέφυρα")
LOANS = ("δάνειο", "τόκος", "χρήμα", "χρέος")
GREEK = [
    {"word": "τράπεζα", "sense": sense, "text": f"{before} {cue} και η τράπεζα"}
    for sense, cues in (("ποτάμι", RIVERS), ("λεφτά", LOANS))
    for cue in cues
    for before in ("το", "ένα")
]

# A cue scan of English words, written to a folder whose name no Western encoding has.
CUES = ("lake", "pond", "loan", "cash", "boat", "tree", "fish", "debt", "mud", "fund", "sea", "tax")
SCANNED = ("bank", "--texts", "The river bank", "The money bank")


@pytest.fixture
def arguments(checkpoint, tmp_path):
    """A short run of every command, on text that no Western encoding can encode."""
    rows = tmp_path / "τράπεζα.jsonl"
    rows.write_text("\n".join(map(json.dumps, GREEK)), encoding="utf-8")
    cues = tmp_path / "λέξεις.txt"
    cues.write_text("\n".join(CUES), encoding="utf-8")
    model = ("--model", checkpoint)
    return {
        "report": ("τράπεζα", "--sentences", rows, "--dry-run", *model),
        "walk": (TEXT, "--out", tmp_path / "περίπατος", *model),
        "explore": (TEXT, "--save", tmp_path / "σελίδα.html", *model),
        "check": (TEXT, *model),
        "evaluate": ("--sentences", rows, *model),
        "survey": ("--sentences", rows, "--dry-run", *model),
        "cues": (*SCANNED, "--cues", cues, "--out", tmp_path / "νύξεις", *model),
        "models": (checkpoint,),
    }


class Standard(io.TextIOWrapper):
    """Standard output as Python creates it for a pipe: strict, in the encoding of the system."""

    def __init__(self, descriptor, encoding):
        super().__init__(os.fdopen(descriptor, "wb"), encoding=encoding, errors="strict")


def run_into(stream, monkeypatch, *arguments):
    """The exit code, with everything flushed as at the end of a process."""
    monkeypatch.setattr(sys, "argv", ["probe", *map(str, arguments)])
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    sys.stdout.flush()
    return stop.value.code or 0


def written_by(monkeypatch, tmp_path, encoding, *arguments):
    """Exit code and text of a command whose standard output is a file in this encoding."""
    path = tmp_path / "output"
    stream = Standard(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), encoding)
    with stream:
        code = run_into(stream, monkeypatch, *arguments)
    return code, path.read_text(encoding)


@pytest.mark.slow
@pytest.mark.parametrize("command", campaign_except(COMMANDS, ("report", "models")))
def test_a_stream_gets_the_characters_of_its_encoding(command, arguments, monkeypatch, tmp_path):
    assert set(arguments) == set(COMMANDS)
    _, in_full = written_by(monkeypatch, tmp_path, "utf-8", command, *arguments[command])
    code, text = written_by(monkeypatch, tmp_path, "cp1252", command, *arguments[command])
    assert code == 0
    without_numbers = re.sub(r"\d", "0", text), re.sub(r"\d", "0", in_full)
    assert without_numbers[0] == without_numbers[1].encode("cp1252", "replace").decode("cp1252")


@pytest.mark.slow
@pytest.mark.parametrize("command", campaign_except(COMMANDS, ("check", "models")))
def test_a_closed_pipe_ends_a_command_with_exit_code_2(command, arguments, monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    assert run_into(Standard(writer, "utf-8"), monkeypatch, command, *arguments[command]) == 2
    assert capsys.readouterr().err.endswith(
        "probe: standard output: the reader has closed the pipe.\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        name
        for name, entry in COMMANDS.items()
        if any("--json" in each.opts for each in entry.params)
    ],
)
def test_json_is_the_same_in_every_encoding(command, arguments, monkeypatch, tmp_path):
    command_line = (command, *arguments[command], "--json")
    _, in_full = written_by(monkeypatch, tmp_path, "utf-8", *command_line)
    _, in_ascii = written_by(monkeypatch, tmp_path, "ascii", *command_line)
    for line, ascii_line in zip(in_full.splitlines(), in_ascii.splitlines(), strict=True):
        assert type(json.loads(line)) is type(json.loads(ascii_line))
    assert in_full.isascii() and "?" not in in_ascii


def test_the_table_of_commands_marks_the_ones_with_json():
    page = (PAGES / "commands.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| `probe (\w+)` \|([^|]*)\|([^|]*)\|", page, re.MULTILINE)
    has_json = {name: bool(json_column.strip()) for name, _, json_column in cells}
    assert has_json == {
        name: any("--json" in parameter.opts for parameter in command.params)
        for name, command in COMMANDS.items()
    }


def test_arguments_are_decoded_as_utf8_if_python_decoded_them_as_ascii(run, checkpoint, tmp_path):
    as_ascii = TEXT.encode().decode("ascii", "surrogateescape")
    options = ("--model", checkpoint, "--save")
    assert run("explore", as_ascii, *options, tmp_path / "page.html")[0] == 0
    assert TEXT in (tmp_path / "page.html").read_text(encoding="utf-8")
    half = b"caf\xe9".decode("ascii", "surrogateescape")
    code, _, err = run("explore", half, *options, tmp_path / "half.html")
    assert code == 2 and err.startswith("probe: ") and not (tmp_path / "half.html").exists()
