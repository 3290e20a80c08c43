"""The command line from a user's view: exit codes, one message for every mistake, and files that
stay unchanged."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from checkpoints import change_tensors
from inside import blocks, cli, manifest_of, study_run, terminal, to_be_replaced, write

import probe
from probe import InputError

GOOD = {"word": "bank", "sense": "river", "text": "The river bank", "start": 10, "end": 14}


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def rows(path, *changes):
    path.write_text("\n".join(json.dumps(GOOD | change) for change in changes), encoding="utf-8")
    return path


def assert_one_line(result, *parts):
    code, out, err = result
    assert code == 2 and out == "", err
    assert err.startswith("probe: ") and err.count("\n") == 1 and err.rstrip().endswith("."), err
    for part in parts:
        assert part in err, err


def test_check_prints_every_row_and_a_summary_and_the_same_rows_as_json(run, checkpoint):
    code, out, err = run("check", "--model", checkpoint)
    assert code == 0 and err == ""
    assert out.count(" ok") == 2 * (13 + 2) + 2 + 2 and "34 of 34 rows hold" in out
    code, out, _ = run("check", "The mole dug a tunnel.", "--model", checkpoint, "--json")
    certificate = json.loads(out)
    assert code == 0 and certificate["ok"] and len(certificate["rows"]) == 34
    assert {"layer", "quantity", "error", "tolerance", "ok"} <= set(certificate["rows"][0])


def test_a_check_of_formulas_that_disagree_exits_with_1_and_names_the_row(run, monkeypatch):
    monkeypatch.setattr(blocks, "softmax", lambda scores: scores.softmax(-2))
    code, out, err = run("check")
    assert code == 1 and "FELL SHORT" in out
    assert "pattern of layer 0 is off by" in err.splitlines()[-1] and err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "step"),
    [
        (("report", "bank"), "attend"),
        (("walk", "The bank"), "activate"),
        (("evaluate", "--sentences", "rows.jsonl"), "after_attention"),
    ],
)
def test_a_model_that_disagrees_with_the_formulas_is_refused_and_nothing_is_written(
    run, copy, tmp_path, monkeypatch, command, step
):
    changes = [{"text": f"{n} bank", "start": 2, "end": 6, "sense": "ab"[n % 2]} for n in range(8)]
    rows(tmp_path / "rows.jsonl", *changes)
    true_step = getattr(blocks, step)
    monkeypatch.setattr(blocks, step, lambda *inputs: 1.01 * true_step(*inputs))
    # Weights that no other test compares: a model that has agreed in this process is not compared.
    change_tensors(copy, {"transformer.ln_f.bias": torch.full((32,), 0.125)})
    code, out, err = run(*command, "--out", "out", "--model", copy)
    assert code == 2 and out == ""
    last = err.splitlines()[-1]
    assert "transformers computes other numbers" in last and "run `probe check` on it" in last
    assert not list((tmp_path / "out").glob("*.*"))


def test_the_version_is_the_packages_and_the_embedded_model_is_listed(run):
    assert run("--version") == (0, f"probe {probe.__version__}\n", "")
    code, out, _ = run("models")
    assert code == 0 and "tiny-senses" in out


QUOTES = "Put a text of several words in quotation marks"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["report", "wug"], ["'wug'", "The known words are", "bank"]),
        (["report", "bnak"], ["'bnak'. Did you mean 'bank'? The known words are"]),
        (["report", "bank", "--seed", "-1"], ["--seed", "greater than or equal to 0", "(see `probe report --help`)"]),
        (["report", "bank", "--sentences", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["report", "bank", "--model", "./nowhere"], ["./nowhere", "no such folder"]),
        (["check", "  "], ["it is empty"]),
        (["check", "bank " * 300], ["context window"]),
        (["evaluate", "--sead", "3"], ["(see `probe evaluate --help`)."]),
        (["reprot"], ["(see `probe --help`)."]),
        (["walk", "The", "river", "bank"], ["unexpected extra argument", QUOTES, "(see `probe walk --help`)"]),
        (["walk", "The bank", "--against", "The", "loan", "bank"], [QUOTES]),
        (["models", "gpt3", "gpt2"], ["unexpected extra argument(s) (gpt2) (see"]),
        (["walk", "The river bank", "--head", "4.1"], ["Cannot follow a head: got --head 4.1, expected its name or its number"]),
        (["walk", "The river bank", "--head", "L0H1", "--layer", "1"], ["got --head L0H1 and --layer 1, expected its name"]),
        (["walk", "The river bank", "--head", "L99H1"], ["Cannot follow layer 99 of tiny-senses: it has 4 layers"]),
        (["walk", "The river bank", "--layer", "L0"], ["Invalid value for '--layer': expected a whole number (see"]),
    ],
)  # fmt: skip
def test_bad_arguments_get_a_message_of_one_line(run, arguments, parts):
    assert_one_line(run(*arguments), *parts)


@pytest.mark.parametrize("command", [("report", "bank"), ("walk", "The bank")])
def test_an_output_folder_that_cannot_be_written_is_refused_before_any_work(run, tmp_path, command):
    (tmp_path / "file").write_text("mine")
    result = run(*command, "--model", "./nowhere", "--out", "file/out")
    assert_one_line(result, "file is a file", "Choose another (on the command line --out)")
    assert (tmp_path / "file").read_text() == "mine"


def test_without_a_command_the_help_is_printed(run):
    bare, help_result = run(), run("--help")
    assert bare == help_result
    assert bare[0] == 0 and bare[1].startswith("Usage: probe ") and "walk" in bare[1]


def test_the_shell_completes_commands_and_options(run, monkeypatch, tmp_path):
    """The file that --install-completion writes calls the program for the completions."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    code, out, _ = run("--install-completion", "bash")
    assert code == 0 and "bash completion installed" in out
    assert "_PROBE_COMPLETE" in (tmp_path / ".bash_completions" / "probe.sh").read_text()
    monkeypatch.setenv("_PROBE_COMPLETE", "complete_bash")
    for words, completed in (("probe re", "report"), ("probe report --dry", "--dry-run")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        code, answered, _ = run()
        assert code == 0 and answered.split() == [completed]


def test_user_sentences_need_a_sense_and_a_text(run, tmp_path, monkeypatch):
    def fail_with_words(model, words, sentences, *_):
        raise InputError(
            f"{words} {[(row.word, row.sense, row.start) for row in sentences.sentences[:2]]}."
        )

    (tmp_path / "mine.csv").write_text(
        "sense;text\n"
        + "".join(f"animal;A bat flew {n}.\nclub;He swung the bat {n}.\n" for n in range(8))
    )
    monkeypatch.setattr(study_run, "study_inputs", fail_with_words)
    result = run("report", "bat", "--sentences", tmp_path / "mine.csv")
    assert_one_line(result, "['bat'] [('bat', 'animal', 2), ('bat', 'club', 13)]")
    emoji = tmp_path / "emoji.csv"
    emoji.write_text("sense,text,start,end\nanimal,😀 A bat,5,8\nclub,His 😀 bat,7,10\n", "utf-8")
    result = run("report", "bat", "--sentences", emoji, "--utf16")
    assert_one_line(result, "['bat'] [('bat', 'animal', 4), ('bat', 'club', 6)]")
    for words in ((), ("bat", "mole")):
        result = run("report", *words, "--sentences", tmp_path / "mine.csv")
        assert_one_line(
            result,
            "mine.csv, line 2: word is missing, expected a column 'word', or one word for all rows",
        )


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        (["bank", "mole"], ["--seed", "3", "--tables"], "probe report bank mole --model tiny-senses --seed 3 --tables"),
        (["A b"], ["--permutations", "99", "--sentences", "here/mine.csv"], "probe report 'A b' --model tiny-senses --sentences mine.csv --permutations 99 --seed 0"),
        (["bank"], ["--sentences", "here/mine.csv", "--utf16"], "probe report bank --model tiny-senses --sentences mine.csv --utf16 --seed 0"),
        (["bank"], ["--controls", "fence,gate", "--only", "nouns"], "probe report bank --model tiny-senses --controls fence,gate --only nouns --seed 0"),
    ],
)  # fmt: skip
def test_the_command_on_a_page_is_complete(run, tmp_path, monkeypatch, words, options, command):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.csv").write_text("sense,text\n1,A b bank\n2,A b by a bank\n")
    commands = []
    result = SimpleNamespace(unfinished=())
    for module, name, replaced in (
        (cli, "_say_cautions", lambda *_, **__: None),
        (study_run, "study_inputs", lambda *_: SimpleNamespace(model=None)),
        (study_run, "plan_study", lambda _: SimpleNamespace(words=words)),
        (study_run, "studies", lambda *_, **__: [result]),
        (write, "write", lambda *_, command, tables: commands.append(command)),
    ):
        monkeypatch.setattr(module, name, replaced)
    assert run("report", *words, *options)[0] == 0
    assert commands == [command]


def test_replacing_the_result_of_another_command_prints_that_command(run, tmp_path):
    first = ("walk", "The river bank", "--out", "out")
    first_command = (
        "probe walk 'The river bank' --word bank --beside 'Make a deposit at the bank' "
        "--model tiny-senses --layer 0 --head 0"
    )
    assert run(*first)[2] == ""
    second = ("walk", "The money bank", "--out", "out")
    message = "out/walk.html replaces {}; another place keeps both."
    warning = message.format(f"the one of `{first_command}`")
    assert run(*second) == (0, "out/walk.html\n", f"probe: {warning}\n")
    command = manifest_of(tmp_path / "out")["command"]
    assert to_be_replaced("out", "walk.html", command) == ""  # the same page again
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text("{")
    assert to_be_replaced("out", "walk.html", command) == ""  # the page itself contains its command
    manifest.write_text("[]")
    assert to_be_replaced("out", "walk.html", first_command) == message.format("an earlier one")


@pytest.mark.parametrize("options", [("--head", "L1H2"), ("--head", "2", "--layer", "1")])
def test_a_head_is_chosen_by_its_name_or_by_its_number_in_a_layer(run, options):
    code, out, _ = run("walk", "The river bank", *options, "--out", "out")
    page = Path(out.strip()).read_text("utf-8")
    assert code == 0 and "--layer 1 --head 2</code>" in page


def test_results_of_another_kind_and_foreign_files_are_not_overwritten(run, tmp_path):
    def refused(command, reason):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        message = (
            f"probe: Cannot write into out: {reason}, expected a folder for this result alone. Choose "
            "another (on the command line --out).\n"
        )
        assert run(*command) == (2, "", message)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before

    out = tmp_path / "out"
    out.mkdir()
    report = ("report", "bank", "--out", "out")
    walked = ("walk", "The river bank", "--out", "out")
    for name, command in (
        ("walk.html", walked),
        ("heads.csv", walked),
        ("heads.csv", report),
        ("tables.zip", report),
        ("ambiguity.html", report),
        ("survey.html", ("survey", "--out", "out")),
    ):
        (out / name).write_text("mine")
        refused(command, f"{name} in it was not made by probe")
        (out / name).unlink()
    rows(out / "sentences.csv", {"text": "The river bank"})
    refused(
        (*report, "--sentences", "out/sentences.csv"),
        "sentences.csv is read from it, and a table of that name is written there",
    )
    (out / "sentences.csv").unlink()
    assert run(*walked)[0] == 0
    reason = "walk.html of another result is in it, and files of both have the same names"
    refused(report, reason)
    refused(("survey", "--out", "out"), reason)
    sentences = rows(tmp_path / "bank.jsonl", {"text": "The river bank"})
    refused(("evaluate", "bank", "--sentences", sentences, "--out", "out"), reason)


SENSES = ("river", "river", "money")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ([{"start": 90, "end": 99}], ["sentences.jsonl", "line 1"]),
        ([{"text": f"The river bank {n}"} for n in range(8)], ["only the sense 'river'", "at least two senses"]),
        ([{"text": f"{n}. bigger bank", "sense": sense} for n, sense in enumerate(SENSES)], ["expected at least 8 of each sense in at least 4 such groups"]),
        ([{"text": f"The river bank {n}{' and so on' * 60}", "sense": "ab"[n % 2]} for n in range(16)], ["context window", "Shorten the text"]),
    ],
)  # fmt: skip
def test_bad_sentences_get_a_message_of_one_line(run, tmp_path, checkpoint, changes, parts):
    file = rows(tmp_path / "sentences.jsonl", *changes)
    before = file.read_bytes()
    result = run("report", "--sentences", file, "--model", checkpoint, "--out", tmp_path / "out")
    assert_one_line(result, *parts)
    assert not list((tmp_path / "out").glob("*"))
    assert file.read_bytes() == before


def test_a_broken_model_folder_is_refused(run, copy):
    change_tensors(copy, {"transformer.ln_f.bias": torch.full((32,), float("nan"))})
    assert_one_line(run("check", "--model", copy), "ln_f.bias")


@pytest.mark.slow
def test_help_imports_no_heavy_package():
    code = (
        "import sys; sys.argv = ['probe', '--help']\n"
        f"from {cli.__name__} import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'pandas', 'altair', 'transformers', 'transformer_lens', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert all(command in process.stdout for command in ("report", "check", "models"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "spins"),
    [({}, "500"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
)
def test_waiting_threads_sleep_unless_the_user_sets_a_variable(settings, spins):
    """The settings that torch's OpenMP library reports when it is loaded."""
    code = (
        f"from {cli.__name__} import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "import ctypes, importlib.util, pathlib\n"
        "folder = pathlib.Path(importlib.util.find_spec('torch').origin).parent\n"
        "for path in folder.glob('lib/libgomp*'): ctypes.CDLL(str(path))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in cli.WAITING}
    environment.pop("OMP_WAIT_POLICY", None)
    process = subprocess.run(
        [sys.executable, "-c", code, "--version"],
        env=environment | settings | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    spin_counts = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", process.stderr)
    if not spin_counts:
        pytest.skip("torch brings no GNU OpenMP on this system")
    assert spin_counts == [spins]


def test_the_estimate_of_the_time_left_follows_the_progress():
    assert terminal.time_left(30, 0.1) == terminal.time_left(30, 1) == ""
    assert terminal.time_left(120, 0.25) == ", about 6 min left"
    assert terminal.time_left(600, 0.5) == ", about 10 min left"
    assert terminal.time_left(60, 0.9) == ", less than a minute left"


def test_only_a_long_loading_prints_a_message(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "LONG_LOADING", 0.01)
    with terminal.progress_bar() as progress:
        until = time.monotonic() + 10
        err = ""
        while not err and time.monotonic() < until:
            time.sleep(0.01)
            err = capsys.readouterr().err
    assert err == "probe: loading the model.\n"
    monkeypatch.setattr(terminal, "LONG_LOADING", 0.2)
    with terminal.progress_bar() as progress:
        progress("bank", 0.1)
        time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_an_interrupt_exits_with_130_and_a_message(run, checkpoint, monkeypatch):
    from inside import check

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "certify", interrupted)
    code, _, err = run("check", "--model", checkpoint)
    assert code == 130 and "interrupted" in err
