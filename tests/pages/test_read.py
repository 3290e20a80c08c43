"""Results are read back from their files, and written again as the same bytes."""

import json
from pathlib import Path

import pytest
from example_study import make_study, of_bank
from seeds import mostly_campaign

import probe
from probe.errors import InputError
from probe.pages.folder import MANIFEST

pytestmark = [pytest.mark.slow, pytest.mark.real_model]  # every result comes from a trained model
RIVER, LOAN = "The river bank", "The mortgage bank"
ROWS = probe.lexicon.expand("bank").sentences[:48]
WORDS = [
    row for word in ("bank", "bark", "bat") for row in probe.lexicon.expand(word).sentences[:48]
]
RESULTS = {
    "study": lambda: of_bank(make_study()),
    "survey": lambda: probe.survey("tiny-senses", sentences=WORDS, controls=()),
    "walk of two sentences": lambda: probe.walk("tiny-senses", RIVER, at="bank", against=LOAN),
    "evaluation": lambda: probe.evaluate("tiny-senses", sentences=ROWS, without="L1H0"),
    "walk": lambda: probe.walk("tiny-senses", RIVER, at="bank"),
    "walk of a translation": lambda: probe.walk("tiny-translator", "the bank", "la"),
}


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file except the manifest, which contains times of day."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


@pytest.mark.parametrize("kind", mostly_campaign(RESULTS, here=4))
def test_a_result_that_is_read_back_is_written_as_the_same_bytes(kind: str, tmp_path: Path) -> None:
    result = RESULTS[kind]()
    probe.write(result, tmp_path / "first", command="probe")
    again = probe.read(tmp_path / "first")
    assert type(again) is type(result)
    probe.write(again, tmp_path / "second", command="probe")
    first, second = files_of(tmp_path / "first"), files_of(tmp_path / "second")
    assert first.keys() == second.keys() and len(first) > 2
    assert [name for name in first if first[name] != second[name]] == []


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (
            {"files": {}},
            f"no {MANIFEST} of a result is in it. Give the folder that probe.write or a command wrote into.",
        ),
        (
            {"files": {"survey.html": ""}, "models": ["a", "b"]},
            "it contains the surveys of several models on one page. Survey each model into its own folder, or read the tables as Parquet.",
        ),
        (
            {"files": {"evaluation_words.csv": ""}},
            "the table evaluation_words.parquet is missing or damaged (FileNotFoundError). Write the result again.",
        ),
    ],
)  # fmt: skip
def test_a_folder_without_a_whole_result_is_refused(manifest, message, tmp_path):
    (tmp_path / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(InputError) as raised:
        probe.read(tmp_path)
    assert str(raised.value) == f"Cannot read a result from {tmp_path}: {message}"


def test_a_damaged_walk_is_refused(tmp_path: Path) -> None:
    probe.write(RESULTS["walk"](), tmp_path)
    record = tmp_path / "walk.record"
    record.write_bytes(record.read_bytes()[:-40])
    with pytest.raises(InputError, match="walk.record: the record is missing or damaged"):
        probe.read(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text("utf-8"))
    assert {"attention", "vectors"} <= set(manifest["frames"])


def test_a_study_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    """Its manifest has entries that this version does not know."""
    probe.write(RESULTS["study"](), tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text("utf-8"))
    manifest["origin"] |= {"hooks": []}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        probe.read(tmp_path)
    assert str(refused.value) == (
        "Cannot read this result: an earlier version of probe wrote it (its manifest has hooks). "
        "Write the result again."
    )
