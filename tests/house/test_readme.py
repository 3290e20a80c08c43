"""The README is true: its help text is the program's, its commands parse and run, its Python runs, its files exist.

`python tests/house/test_readme.py` writes the command reference anew.
"""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import probe.cli

README = Path(__file__).parents[2] / "README.md"
MARKER = "<!-- help: generated from the program; the tests compare -->\n"
COMMANDS = re.findall(r"^\$ (.+)$", README.read_text(encoding="utf-8"), re.MULTILINE)
PROBE_COMMANDS = [command for command in COMMANDS if command.startswith("probe ")]


def reference() -> str:
    """Every command's help as the program prints it, as Markdown."""
    parts = []
    for command in ("", *typer.main.get_command(probe.cli.app).commands):
        line = f"probe {command}".strip()
        shown = CliRunner().invoke(
            probe.cli.app, [*command.split(), "--help"], prog_name="probe", env={"COLUMNS": "100"}
        )
        parts.append(f"```console\n$ {line} --help\n{shown.output.strip()}\n```\n")
    return MARKER + "\n" + "\n".join(parts)


def with_reference(text: str) -> str:
    before, _, after = text.partition(MARKER)
    return before + reference() + "\n## " + after.partition("\n## ")[2]


def test_the_command_reference_is_the_programs_own_help():
    text = README.read_text(encoding="utf-8")
    assert with_reference(text) == text, "run python tests/house/test_readme.py"


def test_the_two_commands_come_first_and_exist():
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert COMMANDS[:2] == ["make report", "make test"]
    assert all(f"\n{name}: " in makefile for name in ("report", "test", "check"))


@pytest.mark.parametrize("command", PROBE_COMMANDS)
def test_every_command_of_the_readme_parses(command):
    name, *arguments = shlex.split(command)[1:]
    if name == "--help":
        return
    known = typer.main.get_command(probe.cli.app).commands
    if arguments != ["--help"]:
        context = known[name].make_context(name, arguments)
        assert context.command.name == name
    assert name in known


@pytest.mark.real_model
@pytest.mark.parametrize(
    "command", [c for c in PROBE_COMMANDS if not any(word in c for word in ("help", "gpt2", "smollm2", "path/to"))]
)
def test_commands_that_need_no_hub_run(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as stop:
        probe.cli.main()
    assert not stop.value.code
    if " report " in command:
        assert (tmp_path / "out" / "ambiguity.html").stat().st_size > 10_000


def test_the_row_of_the_readme_is_a_sentence_the_reader_takes(tmp_path):
    row = json.loads(re.search(r"```json\n(.+?)\n```", README.read_text(encoding="utf-8")).group(1))
    (tmp_path / "row.jsonl").write_text(json.dumps(row))
    sentence = probe.read_sentences(tmp_path / "row.jsonl").sentences[0]
    assert sentence.text[sentence.start : sentence.end] == "bank"
    assert sentence.text[sentence.cue_start : sentence.cue_end] == "river"


def test_the_python_of_the_readme_runs():
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.+?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)  # noqa: S102 - the README's own lines
    assert len(names["study"].word_heads) == 16
    assert abs(names["trace"].pattern[0, 1, -1].sum().item() - 1) < 1e-5


def test_every_file_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    missing = [link for link in links if "://" not in link and not (README.parent / link).exists()]
    assert missing == []


if __name__ == "__main__":
    README.write_text(with_reference(README.read_text(encoding="utf-8")), encoding="utf-8")
