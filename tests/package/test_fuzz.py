"""Hostile input: generated sentence files, and single cases of every kind of file that caused
trouble or could."""

import csv
import json
import os
import resource
import struct
from pathlib import Path

import fuzzing
import pandas as pd
import pytest
from fuzzing import COLUMNS, GOOD, TARGETS, read_both_ways, try_cases

import probe
from probe.errors import InputError, ModelError
from probe.text.files import Source, rows_of, sources
from probe.text.sentences import LeftOut, read_sentences

CASES = 60  # of each target; the campaign runs ten thousand
REPORT = Path(__file__).parents[1] / "campaign" / "fuzz_campaign.csv"


@pytest.mark.parametrize("name", TARGETS)
def test_generated_cases_are_accepted_or_refused_with_a_message(name, tmp_path):
    assert try_cases(name, tmp_path, CASES).total() > CASES // 3


@pytest.mark.parametrize(
    "wrong", [lambda rows: rows[:-1], lambda rows: rows[::-1], lambda rows: [*rows, rows[0]]]
)
def test_a_reader_that_loses_reorders_or_doubles_rows_is_noticed(tmp_path, monkeypatch, wrong):
    file = tmp_path / "s.jsonl"
    file.write_text(
        "".join(json.dumps(GOOD | {"sense": sense}) + "\n" for sense in ("river", "money"))
    )
    assert read_both_ways(file) == "taken"
    monkeypatch.setattr(fuzzing, "rows_of", lambda source: wrong(rows_of(source)))
    with pytest.raises(AssertionError):
        read_both_ways(file)


def test_a_campaign_of_fifty_thousand_cases_is_recorded():
    rows = list(csv.DictReader(REPORT.open(encoding="utf-8")))
    assert tuple(rows[0]) == COLUMNS and {row["target"] for row in rows} == {*TARGETS, "all"}
    assert sum(int(row["cases"]) for row in rows[:-1]) == int(rows[-1]["cases"]) >= 50_000
    assert all(
        int(row["taken"]) + int(row["refused"]) == int(row["cases"]) and row["failed"] == "0"
        for row in rows
    )


def never_closed(mark):
    return mark.join(GOOD) + "\n" + f'bank{mark}river{mark}"The river bank\n' + "x\n" * 400_000


BROKEN = {
    "an open quote": (".csv", lambda: never_closed(","), "the quotes or the fields cannot be read"),
    "an open quote between tabs": (
        ".tsv",
        lambda: never_closed("\t"),
        "the quotation mark before",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_the_position_of_the_error(tmp_path, name):
    ending, content, message = BROKEN[name]
    file = tmp_path / f"s{ending}"
    file.write_text(content())
    with pytest.raises(InputError, match=message):
        read_sentences(file)


def test_a_text_of_ten_million_characters_is_refused(tmp_path):
    file = tmp_path / "s.parquet"
    pd.DataFrame([GOOD | {"text": "The river bank" + " a" * 5_000_000}]).to_parquet(file)
    with pytest.raises(
        InputError, match="the text has 10,000,014 characters, expected at most 100,000"
    ):
        read_sentences(file)


@pytest.mark.parametrize("mark", ["\u202e", "\u2067", "\u200f", "\x00", "\ufeff", "\u2028"])
def test_marks_that_change_direction_or_end_a_line_are_text(tmp_path, mark):
    rows = [GOOD | {"text": f"The river bank {mark}{number}"} for number in range(3)]
    (tmp_path / "s.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    assert [row.text for row in read_sentences(tmp_path / "s.jsonl").sentences] == [
        row["text"] for row in rows
    ]


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "s.jsonl")
    for path in (tmp_path / "s.jsonl", tmp_path):
        with pytest.raises(InputError, match="it is not a regular file"):
            sources([path])


def test_a_folder_is_read_in_order_of_names_and_an_empty_one_is_refused(tmp_path):
    folder = tmp_path / "blanks and ümlauts"
    (folder / "deeper").mkdir(parents=True)
    for name in ("b.jsonl", "deeper/a.jsonl", "notes.md"):
        (folder / name).write_text(json.dumps(GOOD) + "\n")
    assert [source.name for source in sources([folder])] == ["b.jsonl", "deeper/a.jsonl"]
    corpus = read_sentences(folder)
    assert len(corpus.sentences) == 1
    assert corpus.left_out == (
        LeftOut("deeper/a.jsonl line 1", "repeats the sentence, span and sense of b.jsonl line 1"),
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        InputError, match=r"no file in it ends in .jsonl, .csv, .tsv, .parquet, and no folder in it"
    ):
        sources([tmp_path / "empty"])


def test_a_loop_of_folders_ends(tmp_path):
    (tmp_path / "s.jsonl").write_text(json.dumps(GOOD) + "\n")
    (tmp_path / "again").symlink_to(tmp_path)
    assert [source.name for source in sources([tmp_path])] == ["s.jsonl"]


def test_word_folders_are_read_with_the_line_ends_of_other_systems(tmp_path):
    folder = tmp_path / "bank"
    folder.mkdir()
    (folder / "classes_map.txt").write_text('{"0": "river", "1": "money"}')
    (folder / "train.data.txt").write_bytes(b"2\tthe river bank\r\n1\tthe bank\r\n")
    (folder / "train.gold.txt").write_bytes(b"0\r\n1\r\n")
    assert read_both_ways(folder) == "taken"
    rows = rows_of(Source(folder, "bank"))
    assert [row.fields["sense"] for row in rows] == ["river", "money"]
    assert len(read_sentences(folder).sentences) == 2


def test_a_config_with_absurd_sizes_is_refused_before_memory_is_allocated(copy):
    raw = json.loads((copy / "config.json").read_text())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for key in ("n_layer", "n_embd", "vocab_size", "n_positions", "n_inner"):
        (copy / "config.json").write_text(
            json.dumps(raw | {key: 10**15 if key != "n_embd" else 4 * 10**14})
        )
        with pytest.raises(ModelError):
            probe.load(copy)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_a_header_larger_than_its_file_is_refused(copy):
    file = copy / "model.safetensors"
    whole = file.read_bytes()
    for length in (2**63, 2**31, len(whole)):
        file.write_bytes(struct.pack("<Q", length) + whole[8:])
        with pytest.raises(ModelError, match="corrupt"):
            probe.load(copy)


def test_links_to_model_files_are_followed_and_a_broken_link_is_refused(copy, tmp_path):
    weights = copy / "model.safetensors"
    weights.rename(tmp_path / "blob")
    weights.symlink_to(tmp_path / "blob")
    assert probe.load(copy).config.n_layers == 2
    weights.unlink()
    weights.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="safetensors"):
        probe.load(copy)
