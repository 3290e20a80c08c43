"""A report is a folder with the page, every frame twice and a manifest. It is complete or absent,
and the same study gives the same bytes."""

import hashlib
import json
from pathlib import Path

import pandas as pd
import pytest
from example_study import make_study, of_bank
from page_text import check_charts, pasted
from seeds import mostly_campaign

import probe
from probe.display import html_of
from probe.errors import InputError
from probe.pages.folder import check_folder, tables
from probe.pages.verdicts import with_reasons

pytestmark = pytest.mark.slow

PROBE = Path(probe.__file__).parent
STUDY = make_study()
BRIEF = make_study(apart=False)  # the same files, and a page with few pictures


@pytest.fixture
def folder(report_page):
    assert report_page.name == "ambiguity.html"
    return report_page.parent


def test_the_folder_contains_the_page_every_frame_twice_and_the_manifest(folder):
    expected = {"ambiguity.html", "manifest.json"}
    expected |= {
        f"{name}.{ending}" for name in (*STUDY.frames, "columns") for ending in ("csv", "parquet")
    }
    assert {path.name for path in folder.iterdir()} == expected


def test_every_frame_is_read_back_unchanged(folder):
    reasons = with_reasons(STUDY.verdicts, STUDY.heads, STUDY.words)
    for name, frame in (STUDY.frames | {"verdicts": reasons}).items():
        pd.testing.assert_frame_equal(pd.read_parquet(folder / f"{name}.parquet"), frame)
        from_csv = pd.read_csv(folder / f"{name}.csv", keep_default_na=False, na_values=[""])
        assert list(from_csv.columns) == list(frame.columns) and len(from_csv) == len(frame), name
        for column in frame.select_dtypes("float"):
            assert from_csv[column].tolist() == pytest.approx(
                frame[column].tolist(), nan_ok=True
            ), (name, column)


def test_the_manifest_records_the_inputs_and_the_hash_of_every_file(folder):
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["command"] == "probe report"
    assert (manifest["model"], manifest["seed"], manifest["dtype"]) == ("made-up", 7, "float32")
    assert manifest["weights_sha256"] == "ab" * 32 and manifest["data_sha256"] == "cd" * 8
    assert {"python", "probe", "torch"} <= set(manifest["versions"])
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert set(manifest["files"]) == {path.name for path in folder.iterdir()} - {"manifest.json"}


def test_every_chart_of_the_page_follows_its_schema(report_page):
    check_charts(report_page)


def test_two_reports_of_one_study_differ_only_in_the_time(folder, tmp_path):
    probe.write(make_study(), tmp_path, command="probe report")
    for path in folder.iterdir():
        if path.name != "manifest.json":
            assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
    first, second = (
        json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        for out in (folder, tmp_path)
    )
    assert {key for key in first if first[key] != second[key]} <= {"created"}


def test_the_page_contains_no_time_and_no_path_of_this_machine_and_is_not_too_large(folder):
    assert (folder / "ambiguity.html").stat().st_size <= 3_000_000
    page = (folder / "ambiguity.html").read_text(encoding="utf-8")
    created = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["created"]
    assert created not in page and created[:10] not in page
    assert (
        str(folder) not in page
        and str(Path.home()) + "/" not in page
        and str(Path(__file__).parent) not in page
    )


def test_writing_again_replaces_the_page_unless_drawing_fails(folder, tmp_path):
    probe.write(BRIEF, tmp_path, command="first")
    probe.write(BRIEF, tmp_path, command="second")
    assert "second" in (tmp_path / "ambiguity.html").read_text(encoding="utf-8")
    expected = {path.name for path in folder.iterdir()}
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == expected
    broken = make_study(apart=False)
    broken.frames["depth"] = broken.frames["depth"].drop(columns="coordinate")
    with pytest.raises(KeyError, match="coordinate"):
        probe.write(broken, tmp_path, command="new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_below_a_file_is_refused_and_nothing_is_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError) as caught:
        probe.write(STUDY, tmp_path / "file" / "out")
    assert str(caught.value) == (
        f"Cannot write into {tmp_path / 'file' / 'out'}: {tmp_path / 'file'} is a file, expected a "
        "folder that can be written. Choose another (on the command line --out)."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (
        tmp_path / "file"
    ).read_text() == "mine"


@pytest.mark.parametrize("out", [None, 5, ""])
def test_an_invalid_folder_name_is_refused(out):
    with pytest.raises(InputError) as caught:
        probe.write(STUDY, out)
    assert str(caught.value) == (
        f"Cannot write a result: got {out!r} as the folder, expected its name or its path. Give one such "
        'as "out".'
    )


def test_a_folder_with_the_name_of_the_page_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "ambiguity.html").mkdir()
    with pytest.raises(
        InputError,
        match=r"ambiguity\.html in it is a folder, expected a folder that can be written",
    ):
        probe.write(STUDY, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ambiguity.html"]


def test_checking_a_folder_creates_nothing_and_needs_write_permission(tmp_path, monkeypatch):
    check_folder(tmp_path / "a" / "b")
    monkeypatch.setattr("probe.pages.folder.os.access", lambda path, mode: False)
    message = (
        r"may not be written, expected a folder that can be written. Choose another \(on the "
        r"command line --out\)\.$"
    )
    with pytest.raises(InputError, match=message):
        check_folder(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_every_frame_is_written_as_two_tables():
    files = tables({"one": pd.DataFrame({"a": [1, 2], "text": ['x,"y"\n', "</script>"]})})
    assert set(files) == {"one.csv", "one.parquet"}
    assert files["one.csv"].decode() == 'a,text\n1,"x,""y""\n"\n2,</script>\n'


@pytest.mark.parametrize(
    "name", mostly_campaign(["controls", "edges", "distances", "head_parts", "curves"])
)
def test_the_page_is_complete_without_the_frames_that_need_cues_or_pairs(name, tmp_path):
    study = of_bank(make_study())  # one word, so that the frame is missing entirely
    study.frames[name] = study.frames[name].iloc[:0]
    assert "Whether to believe it" in probe.write(study, tmp_path).read_text(encoding="utf-8")


def test_the_result_can_be_copied_as_text_with_its_provenance(report_page):
    text = pasted(report_page)
    manifest = json.loads((report_page.parent / "manifest.json").read_text())
    for word in make_study().options["words"]:
        assert f"\n{word}: " in text
    assert text.startswith("Which heads resolve ")
    assert manifest["weights_sha256"][:12] in text and manifest["versions"]["probe"] in text
    assert text.endswith(f"seed {manifest['seed']}, probe report")


def test_a_report_of_a_version_without_an_experiment_is_read(tmp_path):
    probe.write(BRIEF, tmp_path)
    manifest = tmp_path / "manifest.json"
    content = json.loads(manifest.read_text("utf-8"))
    content["frames"].remove("why_it_attends")
    manifest.write_text(json.dumps(content), "utf-8")
    read = probe.read(tmp_path)
    assert "why_it_attends" not in read.frames
    assert "Which heads resolve bank" in html_of(read)
