"""A result is a folder with the page, every table twice and a manifest. It is complete or absent, it
is read back, and what is read back is written as the same bytes."""

import hashlib
import json
import os
from pathlib import Path
from zipfile import ZipFile

import pandas as pd
import pytest
from inside import (
    COLUMNS,
    REPEATS,
    TABLES,
    about,
    check_folder,
    dictionary,
    downloads,
    html_of,
    write_folder,
)
from page_text import check_charts, pasted, rows_of_table, section
from seeds import mostly_campaign
from stored_study import stored_study

import probe
from probe import InputError

pytestmark = pytest.mark.slow

RIVER, LOAN = "The river bank", "The mortgage bank"
ROWS = probe.lexicon.expand("bank").sentences[:48]
WORDS = [
    row for word in ("bank", "bark", "bat") for row in probe.lexicon.expand(word).sentences[:48]
]
WINDOW = stored_study("window")  # a page with few pictures
RESULTS = {
    "study": lambda: WINDOW,
    "survey": lambda: probe.survey("tiny-senses", sentences=WORDS, controls=()),
    "walk of two sentences": lambda: probe.walk("tiny-senses", RIVER, at="bank", against=LOAN),
    "evaluation": lambda: probe.evaluate("tiny-senses", sentences=ROWS, without="L1H0"),
    "walk": lambda: probe.walk("tiny-senses", RIVER, at="bank"),
    "walk of a translation": lambda: probe.walk("tiny-translator", "the bank", "la"),
}


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def change_manifest(folder, change):
    content = manifest_of(folder)
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content), encoding="utf-8")


def bytes_of(folder):
    """Every file except the manifest, which contains times of day."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name != "manifest.json"
    }


def test_the_folder_holds_the_page_the_tables_and_the_hash_of_every_file(report_page, tmp_path):
    folder, study = report_page.parent, stored_study()
    main = {f"{name}.csv" for name in ("words", "heads", "mlps", "sentences", "left_out")}
    assert set(bytes_of(folder)) == {"ambiguity.html", "tables.zip"} | main
    with ZipFile(folder / "tables.zip") as archive:
        tables = {*study.frames, "columns"}
        assert set(archive.namelist()) == {f"{name}.parquet" for name in tables}
    manifest = manifest_of(folder)
    assert manifest["command"] == "probe report" and manifest["data_sha256"] == study.data_sha256
    assert (manifest["model"], manifest["seed"], manifest["dtype"]) == ("tiny-senses", 0, "float32")
    assert {"python", "probe", "torch"} <= set(manifest["versions"])
    assert manifest["files"] == {
        name: hashlib.sha256(content).hexdigest() for name, content in bytes_of(folder).items()
    }
    whole = probe.write(study, tmp_path, command="probe report", tables=True).parent
    assert (whole / "heads.csv").read_bytes() == (folder / "heads.csv").read_bytes()
    for name, frame in study.frames.items():
        read = pd.read_csv(whole / f"{name}.csv", keep_default_na=False, na_values=[""])
        assert len(read) == len(frame) and set(frame) <= set(read)
        for column in frame.select_dtypes("float"):
            expected = pytest.approx(frame[column].tolist(), nan_ok=True)
            assert read[column].tolist() == expected, (name, column)


def test_the_page_has_valid_charts_no_time_no_path_and_a_result_to_copy(report_page):
    check_charts(report_page)
    page = report_page.read_text(encoding="utf-8")
    manifest = manifest_of(report_page.parent)
    here = (str(report_page.parent), f"{Path.home()}/", str(Path(__file__).parent))
    assert not any(text in page for text in (*here, manifest["created"][:10]))
    assert len(page) <= 3_000_000
    assert page.lower().count("the data decide neither") == 1
    text = pasted(report_page)
    assert text.startswith("Which heads resolve bank, mole and window?")
    assert all(f"\n{word}: " in text for word in ("bank", "mole", "window"))
    assert manifest["weights_sha256"][:12] in text and manifest["versions"]["probe"] in text
    assert text.endswith("seed 0, probe report")


@pytest.mark.parametrize("kind", mostly_campaign(RESULTS, here=4))
def test_a_result_that_is_read_back_is_written_as_the_same_bytes(kind, tmp_path):
    result = RESULTS[kind]()
    probe.write(result, tmp_path / "first", command="probe")
    again = probe.read(tmp_path / "first")
    assert type(again) is type(result)
    probe.write(again, tmp_path / "second", command="probe")
    first, second = bytes_of(tmp_path / "first"), bytes_of(tmp_path / "second")
    assert first.keys() == second.keys() and len(first) > 2
    assert [name for name in first if first[name] != second[name]] == []


def test_writing_again_replaces_the_page_unless_drawing_fails(tmp_path):
    probe.write(WINDOW, tmp_path, command="first")
    page = probe.write(WINDOW, tmp_path, command="second")
    assert "second" in page.read_text(encoding="utf-8")
    before = bytes_of(tmp_path)
    broken = stored_study("window", depth=WINDOW.frames["depth"].drop(columns="coordinate"))
    with pytest.raises(KeyError, match="coordinate"):
        probe.write(broken, tmp_path, command="new")
    assert bytes_of(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_written(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "ambiguity.html").mkdir()
    below = tmp_path / "file" / "out"
    refused = {
        below: f"Cannot write into {below}: {tmp_path / 'file'} is a file, expected a folder that "
        "can be written. Choose another (on the command line --out).",
        tmp_path: f"Cannot write into {tmp_path}: ambiguity.html in it is a folder, expected a "
        "folder that can be written. Choose another (on the command line --out).",
    } | {
        out: f"Cannot write a result: got {out!r} as the folder, expected its name or its path. "
        'Give one such as "out".'
        for out in (None, 5, "")
    }
    for out, message in refused.items():
        with pytest.raises(InputError) as caught:
            probe.write(WINDOW, out)
        assert str(caught.value) == message
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="may not be written, expected a folder"):
        check_folder(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "ambiguity.html"}
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"files": {}}, "no manifest.json of a result is in it. Give the folder that probe.write or a command wrote into."),
        ({"files": {"survey.html": ""}, "models": ["a", "b"]}, "it contains the surveys of several models on one page. Survey each model into its own folder, or read the tables in tables.zip."),
        ({"files": {"evaluation_words.csv": ""}}, "evaluation_tables.zip is missing, damaged or without one of its tables (FileNotFoundError). Write the result again."),
    ],
)  # fmt: skip
def test_a_folder_without_a_whole_result_is_refused(manifest, message, tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(InputError) as raised:
        probe.read(tmp_path)
    assert str(raised.value) == f"Cannot read a result from {tmp_path}: {message}"


def test_a_damaged_walk_is_refused(tmp_path):
    probe.write(RESULTS["walk"](), tmp_path)
    record = tmp_path / "walk.record"
    record.write_bytes(record.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"walk\.record: the record is missing or damaged"):
        probe.read(tmp_path)


def test_a_study_of_another_version_is_read_or_refused(tmp_path):
    probe.write(WINDOW, tmp_path)
    change_manifest(tmp_path, lambda content: content["frames"].remove("why_it_attends"))
    study = probe.read(tmp_path)
    assert "why_it_attends" not in study.frames
    assert "Which heads resolve window" in html_of(study)
    change_manifest(tmp_path, lambda content: content["origin"].update(hooks=[]))
    with pytest.raises(InputError) as refused:
        probe.read(tmp_path)
    assert str(refused.value) == (
        "Cannot read this result: an earlier version of probe wrote it (its manifest has hooks). "
        "Write the result again."
    )


@pytest.mark.parametrize(
    "name", mostly_campaign(["controls", "edges", "distances", "head_parts", "curves"])
)
def test_the_page_is_complete_without_the_tables_that_need_cues_or_pairs(name, tmp_path):
    study = stored_study("bank", **{name: stored_study().frames[name].iloc[:0]})
    assert "Whether to believe it" in probe.write(study, tmp_path).read_text(encoding="utf-8")


# --- the columns ----------------------------------------------------------------------------------


def test_every_table_is_written_as_csv_and_every_column_is_explained_once(tmp_path):
    frame = pd.DataFrame({"a": [1, 2], "text": ['x,"y"\n', "</script>"]})
    write_folder(
        tmp_path, {}, frames={"one": frame, "two": frame}, manifest={}, only_archived=["two"]
    )
    assert set(bytes_of(tmp_path)) == {"one.csv", "tables.zip"}
    assert (tmp_path / "one.csv").read_text() == 'a,text\n1,"x,""y""\n"\n2,</script>\n'
    frames = stored_study().frames
    rows = dictionary(frames)
    columns = {(name, column) for name, frame in frames.items() for column in frame}
    columns |= {("columns", column) for column in rows}
    assert set(zip(rows["table"], rows["column"], strict=True)) == columns
    assert not rows.duplicated(["table", "column"]).any() and (rows["meaning"].str.len() > 3).all()
    units = rows.set_index(["table", "column"])["unit"]
    assert units["word_heads", "net"] == "fraction of the sense gap"
    assert units["separation_controls", "low"] == "0 to 1" and units["words", "word"] == ""
    # A name with two meanings is explained for each table.
    assert about("depth", "auroc")["meaning"] != about("heads", "auroc")["meaning"]
    assert all({"meaning"} <= entry.keys() <= {"meaning", "unit"} for entry in COLUMNS.values())
    listed = downloads(frames | {"columns": rows})
    of_a_report = {name for name in TABLES if not name.startswith(("survey_", "cues"))}
    assert {row["name"] for row in listed} == of_a_report and all(row["what"] for row in listed)


def test_excluded_sentences_are_counted_and_repetitions_are_grouped():
    repeats = [(None, f"{REPEATS} line {number}") for number in (1, 1, 7)]
    rows = [*repeats, (None, "about another word than 'bank'"), ("bank", "too long")]
    left_out = pd.DataFrame(
        [{"word": word, "where": "line", "reason": reason} for word, reason in rows]
    )
    text = section(stored_study(left_out=left_out).frames, "method")
    assert "5 left out, and why" in text
    assert rows_of_table(text.partition("left out, and why")[2]) == [
        ["while reading the file", "3", f"{REPEATS} an earlier row"],
        ["while reading the file", "1", "about another word than 'bank'"],
        ["bank", "1", "too long"],
    ]
    assert "left out, and why" not in section(stored_study().frames, "method")
