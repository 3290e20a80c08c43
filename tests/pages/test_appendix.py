"""The end of the page: counts of excluded sentences, descriptions of columns, and pairs without a
partner."""

import pandas as pd
import pytest
from example_study import make_study
from page_text import rows_of_table, section

from probe.pages.folder import downloads
from probe.results.columns import COLUMNS, TABLES, about, dictionary
from probe.text.sentences import REPEATS

FRAMES = make_study().frames


def test_every_column_of_every_table_is_explained_once():
    rows = dictionary(FRAMES)
    columns = {(name, column) for name, frame in FRAMES.items() for column in frame}
    assert set(zip(rows["table"], rows["column"], strict=True)) == columns | {
        ("columns", column) for column in rows
    }
    assert not rows.duplicated(["table", "column"]).any() and (rows["meaning"].str.len() > 3).all()
    units = rows.set_index(["table", "column"])["unit"]
    assert (
        units["word_heads", "net"] == "fraction of the sense gap" and units["words", "word"] == ""
    )


def test_a_column_name_with_two_meanings_is_explained_for_each_table():
    assert (
        about("depth", "auroc")["meaning"]
        != about("heads", "auroc")["meaning"]
        == COLUMNS["auroc"]["meaning"]
    )
    assert (
        about("separation_controls", "low")["unit"] == "0 to 1"
        and about("depth", "low")["unit"] == "fraction of the sense gap"
    )
    with pytest.raises(KeyError):
        about("heads", "nothing")


def test_every_column_has_a_meaning_and_at_most_a_unit():
    assert all({"meaning"} <= entry.keys() <= {"meaning", "unit"} for entry in COLUMNS.values())


def test_every_table_next_to_the_page_has_a_description():
    listed = downloads(FRAMES | {"columns": dictionary(FRAMES)})
    of_a_report = {name for name in TABLES if not name.startswith(("survey_", "cues"))}
    assert {row["name"] for row in listed} == of_a_report and all(row["what"] for row in listed)


def test_excluded_sentences_are_counted_and_repetitions_are_grouped():
    repeats = [(None, f"{REPEATS} line {number}") for number in (1, 1, 7)]
    rows = [*repeats, (None, "about another word than 'bank'"), ("bank", "too long")]
    frame = pd.DataFrame(
        [{"word": word, "where": "line", "reason": reason} for word, reason in rows]
    )
    text = section(FRAMES | {"left_out": frame}, "method")
    assert "5 left out, and why" in text
    assert rows_of_table(text.partition("left out, and why")[2]) == [
        ["while reading the file", "3", f"{REPEATS} an earlier row"],
        ["while reading the file", "1", "about another word than 'bank'"],
        ["bank", "1", "too long"],
    ]
    assert "left out, and why" not in section(FRAMES | {"left_out": frame[:0]}, "method")
