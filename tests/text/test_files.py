"""Sentence files: what is read as written, what is left out and counted, and the one sentence for everything else."""

import csv
import hashlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import InputError
from probe.text.lexicon import expand
from probe.text.sentences import LeftOut, Sentence, as_corpus, read_sentences

DATA = Path(__file__).parents[3] / "shared" / "data"
BANK = {"word": "bank", "sense": "1", "text": "The river bank.", "start": 10, "end": 14}
MOLE = {"word": "mole", "sense": "skin", "text": "A mole.", "start": 2, "end": 6}
FORMS = "a JSONL, CSV, TSV or Parquet file, or a CoarseWSD-20 word folder"

Rows = Sequence[Mapping[str, object]]


def write(place: Path, rows: Rows) -> Path:
    """The rows in the form that the ending names."""
    if place.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), place)
    elif place.suffix == ".jsonl":
        place.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        shown = io.StringIO(newline="")
        table = csv.DictWriter(shown, list(rows[0]), delimiter="," if place.suffix == ".csv" else "\t")
        table.writeheader()
        table.writerows(rows)
        place.write_bytes(shown.getvalue().encode())
    return place


def fails(place: Path, *, word: str | None = None) -> str:
    """The sentence that reading this file ends with."""
    with pytest.raises(InputError) as error:
        read_sentences(place, word=word)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.fixture(params=[".jsonl", ".csv", ".tsv", ".parquet"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"mine{request.param}"


def test_every_form_gives_the_same_sentences(place: Path) -> None:
    extra = {
        "frame": "walk",
        "pair": "7",
        "cue_start": 4,
        "cue_end": 9,
        "distance": 1,
        "split": "train",
        "gloss": "ignored",
    }
    corpus = read_sentences(write(place, [BANK | extra]))
    assert corpus.sentences == (Sentence("bank", "1", "The river bank.", 10, 14, "walk", "7", 4, 9, 1, "train"),)
    assert corpus.left_out == ()
    assert corpus.source == place.name
    assert not corpus.is_lexicon


def test_optional_columns_may_be_empty_in_some_rows(place: Path) -> None:
    # A table with gaps: the whole numbers of these columns are stored as 4.0 and NaN.
    rows = [
        BANK | {"frame": "walk", "pair": None, "cue_start": 4.0, "cue_end": 9.0},
        MOLE
        | {
            "frame": None,
            "pair": None,
            "cue_start": float("nan") if place.suffix == ".parquet" else None,
            "cue_end": None,
        },
    ]
    first, second = read_sentences(write(place, rows)).sentences
    assert (first.frame, first.pair, first.cue_start, first.cue_end) == ("walk", None, 4, 9)
    assert (second.frame, second.pair, second.cue_start, second.cue_end) == (None, None, None, None)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_a_whole_number_names_a_pair_and_a_frame(tmp_path: Path, suffix: str) -> None:
    # A table with gaps stores whole numbers as 0.0 and NaN.
    rows = [BANK | {"pair": 0, "frame": 12}, MOLE | {"pair": 0, "frame": 12}]
    for sentence in read_sentences(write(tmp_path / f"mine{suffix}", rows)).sentences:
        assert (sentence.pair, sentence.frame) == ("0", "12")
    if suffix == ".parquet":
        gaps = [BANK | {"pair": 0.0}, MOLE | {"pair": None}]
        read = read_sentences(write(tmp_path / "gaps.parquet", gaps)).sentences
        assert [sentence.pair for sentence in read] == ["0", None]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
marked = st.tuples(
    texts, st.text(st.characters(categories=["L", "N", "S"]), min_size=1, max_size=6), texts, st.sampled_from("ab1")
)


@settings(max_examples=60, deadline=None)
@given(st.lists(marked, min_size=1, max_size=5), st.sampled_from([".jsonl", ".csv", ".tsv", ".parquet"]))
def test_sentences_come_back_as_written(parts: list[tuple[str, str, str, str]], suffix: str) -> None:
    rows = [
        {
            "word": word,
            "sense": f"{sense}{number}",
            "text": before + word + after,
            "start": len(before),
            "end": len(before) + len(word),
        }
        for number, (before, word, after, sense) in enumerate(parts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = read_sentences(write(Path(folder) / f"mine{suffix}", rows))
    assert found.sentences == tuple(Sentence(**row) for row in rows)


def test_the_lexicon_survives_a_file(place: Path) -> None:
    sentences = expand("bank").sentences[:100]
    assert read_sentences(write(place, [vars(sentence) for sentence in sentences])).sentences == sentences


def test_numbers_as_text_keep_their_leading_zero_as_a_sense(tmp_path: Path) -> None:
    for suffix in (".csv", ".tsv"):
        (found,) = read_sentences(write(tmp_path / f"mine{suffix}", [BANK | {"sense": "01"}])).sentences
        assert (found.sense, found.start) == ("01", 10)


def test_the_words_na_and_null_are_text_in_a_table(tmp_path: Path) -> None:
    (found,) = read_sentences(write(tmp_path / "mine.csv", [BANK | {"sense": "NA", "frame": "null"}])).sentences
    assert (found.sense, found.frame) == ("NA", "null")


def test_a_byte_order_mark_windows_line_ends_and_blank_lines_are_accepted(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".csv", ".tsv"):
        place = write(tmp_path / f"mine{suffix}", [BANK, MOLE])
        lines = place.read_bytes().replace(b"\r\n", b"\n").split(b"\n")
        place.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines))
        assert [sentence.word for sentence in read_sentences(place).sentences] == ["bank", "mole"]


def test_a_line_separator_inside_a_sentence_ends_no_line(tmp_path: Path) -> None:
    place = tmp_path / "mine.jsonl"
    place.write_text(json.dumps(BANK | {"text": "The river bank.\u2028Far."}, ensure_ascii=False), "utf-8")
    assert read_sentences(place).sentences[0].text.endswith("\u2028Far.")


def test_an_inflected_form_in_the_span_is_accepted(tmp_path: Path) -> None:
    place = write(tmp_path / "mine.jsonl", [MOLE | {"text": "Moles.", "start": 0, "end": 5}])
    assert len(read_sentences(place).sentences) == 1


# What a row may leave out.


@pytest.mark.parametrize(
    ("word", "text", "found"),
    [
        ("bat", "The bat flew.", "bat"),
        ("bat", "Bats flew over it.", "Bats"),
        ("bat", "The BAT's wing", "BAT"),
        ("bat", "The bats’ wings", "bats"),
        ("match", "Two matches, no dispatches", "matches"),
        ("café", "The cafés of Paris", "cafés"),
        ("c.", "Write c. and not cs", "c."),
    ],
)
def test_a_word_is_found_where_it_stands_once(place: Path, word: str, text: str, found: str) -> None:
    (sentence,) = read_sentences(write(place, [{"word": word, "sense": "1", "text": text}])).sentences
    assert text[sentence.start : sentence.end] == found


@pytest.mark.parametrize("text", ["A batch", "combat", "bat_man", "A ba\u0301t", "batting", "bats and a bat"])
def test_no_other_word_is_taken_for_it(place: Path, text: str) -> None:
    assert f"'bat' stands in the text {2 if ' and ' in text else 0} times {FORMS_FOUND}" in fails(
        write(place, [{"word": "bat", "sense": "1", "text": text}])
    )


def test_the_caller_names_the_word_of_all_rows(place: Path) -> None:
    rows = [{"sense": "animal", "text": "A bat flew."}, {"sense": "club", "text": "He swung the bat."}]
    corpus = read_sentences(write(place, rows), word="bat")
    assert [(row.word, row.start) for row in corpus.sentences] == [("bat", 2), ("bat", 13)]
    assert (
        "word is missing, expected a column that names it, or one word named for all rows (2 of 2 rows are bad)"
        in fails(place)
    )


def test_rows_that_name_no_word_are_about_the_one_that_is_named(place: Path) -> None:
    rows = [{"word": None, "sense": "a", "text": "A bat flew."}, {"word": "mole", "sense": "b", "text": "A mole."}]
    kept = read_sentences(write(place, rows), word="bat")
    assert [row.word for row in kept.sentences] == ["bat"] and len(kept.left_out) == 1
    assert [row.word for row in as_corpus(place, ["bat"]).sentences] == ["bat", "mole"]
    assert "word is missing" in str(pytest.raises(InputError, as_corpus, place, ["bat", "mole"]).value)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_recognised(tmp_path: Path, suffix: str, separator: str) -> None:
    place = tmp_path / f"mine{suffix}"
    rows = [("sense", "text"), ("animal", '"A bat, a moth; a cave\tand more"'), ("club", "The bat broke")]
    place.write_text("\n" + "\n".join(separator.join(row) for row in rows))
    first, second = read_sentences(place, word="bat").sentences
    assert (first.text, second.sense) == ("A bat, a moth; a cave\tand more", "club")
    assert str(first.where).endswith("line 3")


TABLES = {
    "dicts": lambda rows: rows,
    "DataFrame": pd.DataFrame,
    "numbers with gaps": lambda rows: pd.DataFrame(rows).convert_dtypes(),
    "sentences": lambda rows: [Sentence(**row) for row in rows],
    "corpus": lambda rows: as_corpus(rows),
}


@pytest.mark.parametrize("made", TABLES.values(), ids=TABLES)
def test_a_table_made_in_python_is_read_as_a_file_is(made: Callable[[Rows], object]) -> None:
    rows = [BANK | {"cue_start": 4, "cue_end": 9, "pair": 3}, MOLE | {"pair": None}]
    rows = [row | {"pair": str(row["pair"])} if made is TABLES["sentences"] and row["pair"] else row for row in rows]
    corpus = as_corpus(made(rows))
    assert corpus.sentences == (
        Sentence("bank", "1", "The river bank.", 10, 14, pair="3", cue_start=4, cue_end=9),
        Sentence(**MOLE),
    )
    assert corpus.source == "a table made in Python" and len(corpus.sha256) == 64
    assert corpus.sha256 == as_corpus(made(rows)).sha256 != as_corpus(made(rows[:1])).sha256


NOT_READ = "Reading sentences from a table made in Python: "


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], f"{NOT_READ}it holds no rows, expected one sentence per row; add some."),
        (
            7,
            f"{NOT_READ}got int (DataFrame constructor not properly called!), expected a path, a DataFrame, a list of ",
        ),
        (
            [{"word": "bat"}],
            f"{NOT_READ}the columns sense, text are missing, got word, expected at least sense and text",
        ),
        (
            [BANK, BANK | {"end": 99}],
            "Reading a table made in Python, row 2: the word is at characters 10 to 99, expected",
        ),
    ],
)
def test_a_table_that_cannot_be_read_is_one_sentence(given: object, said: str) -> None:
    told = str(pytest.raises(InputError, as_corpus, given).value)
    assert told.startswith(said) and told.endswith(".") and "\n" not in told


def test_collections_show_themselves_in_one_line() -> None:
    corpus = as_corpus([BANK, MOLE, BANK])
    assert repr(corpus) == "<Corpus a table made in Python: 2 sentences of bank, mole, 1 left out>"
    assert "and 2 more words" in repr(
        as_corpus([BANK | {"word": word, "text": word, "start": 0, "end": 1} for word in "abcde"])
    )


# Left out by rule, and counted.


def test_repetitions_are_left_out_and_counted_but_another_sense_is_another_sentence(place: Path) -> None:
    corpus = read_sentences(write(place, [BANK, MOLE, BANK, BANK | {"sense": "2"}]))
    at = (
        (lambda row: f"row {row}")
        if place.suffix == ".parquet"
        else (lambda row: f"line {row + (place.suffix != '.jsonl')}")
    )
    assert [sentence.sense for sentence in corpus.sentences] == ["1", "skin", "2"]
    assert corpus.left_out == (LeftOut(at(3), f"repeats the sentence, span and sense of {at(1)}"),)


def test_other_words_are_left_out_and_counted(tmp_path: Path) -> None:
    corpus = read_sentences(write(tmp_path / "mine.jsonl", [BANK, MOLE]), word="mole")
    assert [sentence.word for sentence in corpus.sentences] == ["mole"]
    assert corpus.left_out == (LeftOut("line 1", "about another word than 'mole'"),)


def test_a_word_that_no_row_has_is_one_sentence(tmp_path: Path) -> None:
    place = write(tmp_path / "mine.jsonl", [BANK, MOLE])
    assert fails(place, word="seal") == (
        f"Reading sentences with 'seal' from {place}: none of the 2 sentences has it, the words there are bank, mole; "
        "ask for one of these."
    )


# Files that cannot be read as they stand.


def test_a_missing_file(place: Path) -> None:
    assert fails(place) == f"Reading sentences from {place}: there is no such file; give the path of {FORMS}."


@pytest.mark.parametrize("content", [b"", b" \r\n\n"])
def test_an_empty_file(place: Path, content: bytes) -> None:
    place.write_bytes(content)
    assert fails(place) == f"Reading sentences from {place}: it is empty, expected one sentence per row; add some."


def test_a_file_without_rows(tmp_path: Path) -> None:
    contents = {
        "mine.jsonl": b"\xef\xbb\xbf\n",
        "mine.csv": b"word,sense,text,start,end\n",
        "mine.tsv": b"word\tsense\n\n",
    }
    for name, content in contents.items():
        place = tmp_path / name
        place.write_bytes(content)
        assert (
            fails(place)
            == f"Reading sentences from {place}: it holds no rows, expected one sentence per row; add some."
        )


def test_a_file_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    place = write(tmp_path / "mine.jsonl", [BANK])
    monkeypatch.setattr(Path, "open", refuse)
    assert fails(place) == (
        f"Reading sentences from {place}: it cannot be opened (Permission denied); make it readable or give another."
    )


@pytest.mark.parametrize("name", ["mine.xlsx", "mine"])
def test_an_unknown_ending(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    place.write_bytes(b"x")
    got = "a name ending in '.xlsx'" if "." in name else "a name without an ending"
    assert fails(place) == f"Reading sentences from {place}: got {got}, expected {FORMS}; give one of these."


def test_bytes_that_are_not_utf8_are_placed(tmp_path: Path) -> None:
    for suffix, line in ((".jsonl", 2), (".csv", 3), (".tsv", 3)):
        place = write(tmp_path / f"mine{suffix}", [BANK, MOLE | {"sense": "PLACE"}])
        place.write_bytes(place.read_bytes().replace(b"PLACE", b"caf\xe9"))
        assert (
            fails(place)
            == f"Reading {place}, line {line}: the bytes there are not UTF-8; save the file as UTF-8 and read it again."
        )


def test_missing_columns_are_named_with_those_that_are_there(place: Path) -> None:
    write(place, [{"word": "bank", "sense": "1", "sentence": "The river bank.", "end": 14}])
    assert fails(place) == (
        f"Reading sentences from {place}: the column text is missing, got word, sense, sentence, end, "
        "expected at least sense and text; rename or add what is missing and read it again."
    )


def test_two_missing_columns(tmp_path: Path) -> None:
    place = write(tmp_path / "mine.csv", [{"word": "bank", "start": 10}])
    assert ": the columns sense, text are missing, got word, start, expected" in fails(place)


def test_a_column_that_stands_twice(tmp_path: Path) -> None:
    place = tmp_path / "mine.csv"
    place.write_text("word,sense,text,start,end,text\nbank,1,a bank,2,6,b\n")
    assert (
        fails(place)
        == f"Reading sentences from {place}: the header has 'text' twice, expected it once; rename one of them."
    )


def test_a_file_that_only_calls_itself_parquet(tmp_path: Path) -> None:
    place = tmp_path / "mine.parquet"
    place.write_bytes(b"word,sense")
    message = fails(place)
    assert message.startswith(f"Reading sentences from {place}: it is not a readable Parquet file (")
    assert message.endswith("); write it again.")


# Rows that cannot be used: the first is named, all are counted, nothing is dropped.

FORMS_FOUND = (
    "(whole, with capital letters or without, with -s, -es or 's), expected it once, or start and end to say where"
)
BAD = [
    ({"text": ""}, "text is empty, expected text"),
    ({"text": " "}, "text is empty, expected text"),
    ({"sense": ""}, "sense is empty, expected text"),
    ({"word": ""}, "word is missing, expected a column that names it, or one word named for all rows"),
    ({"word": " "}, "word is empty, expected text"),
    ({"start": "ten"}, "start is 'ten', expected a whole number"),
    ({"end": "14.5"}, "end is '14.5', expected a whole number"),
    ({"start": ""}, "end is given without start, expected both or neither"),
    ({"start": "", "end": "", "text": "The bank by the bank"}, f"'bank' stands in the text 2 times {FORMS_FOUND}"),
    ({"start": "", "end": "", "text": "An embankment"}, f"'bank' stands in the text 0 times {FORMS_FOUND}"),
    (
        {"start": "10", "end": "15", "text": "A bank"},
        "the word is at characters 10 to 15, expected a span within the 6 characters of the text",
    ),
    ({"start": "-1"}, "the word is at characters -1 to 14, expected a span within the 15 characters of the text"),
    ({"start": "14"}, "the word is at characters 14 to 14, expected a span within the 15 characters of the text"),
    (
        {"start": "9", "end": "10"},
        "the word is at characters 9 to 10, which are blank, expected the characters of a word",
    ),
    ({"cue_start": "4"}, "cue_start is given without cue_end, expected both or neither"),
    ({"cue_end": "4"}, "cue_end is given without cue_start, expected both or neither"),
    ({"cue_start": "x", "cue_end": "4"}, "cue_start is 'x', expected a whole number"),
    (
        {"cue_start": "4", "cue_end": "40"},
        "the cue is at characters 4 to 40, expected a span within the 15 characters of the text",
    ),
    ({"cue_start": "4", "cue_end": "11"}, "the cue at characters 4 to 11 overlaps the word, expected another word"),
    ({"distance": "0"}, "distance is 0, expected 1 or more"),
]


@pytest.mark.parametrize(("change", "flaw"), BAD)
def test_a_bad_row_stops_the_reading(tmp_path: Path, change: Mapping[str, str], flaw: str) -> None:
    blank = dict.fromkeys(("cue_start", "cue_end", "distance"), "")
    place = write(tmp_path / "mine.csv", [BANK | blank, BANK | blank | change, MOLE | blank])
    assert fails(place) == f"Reading {place}, line 3: {flaw} (1 of 3 rows is bad); correct the file and read it again."


BAD_JSON = [
    ({"sense": 1}, "sense is 1, expected text"),
    ({"text": ["a", "bank"]}, "text is ['a', 'bank'], expected text"),
    ({"word": None}, "word is missing, expected a column that names it, or one word named for all rows"),
    ({"start": True}, "start is True, expected a whole number"),
    ({"end": 13.5}, "end is 13.5, expected a whole number"),
    ({"end": None}, "start is given without end, expected both or neither"),
    ({"start": [1]}, "start is [1], expected a whole number"),
    ({"pair": 7.5}, "pair is 7.5, expected text or a whole number"),
    ({"frame": True}, "frame is True, expected text or a whole number"),
    ({"frame": " "}, "frame is empty, expected text"),
    (
        {"text": "The river bank \ud83d"},
        "text holds half of a surrogate pair ('The river bank \\ud83d'), expected whole characters",
    ),
]


@pytest.mark.parametrize(("change", "flaw"), BAD_JSON)
def test_a_bad_json_row_stops_the_reading(tmp_path: Path, change: Mapping[str, object], flaw: str) -> None:
    place = write(tmp_path / "mine.jsonl", [BANK, BANK | change])
    assert fails(place) == f"Reading {place}, line 2: {flaw} (1 of 2 rows is bad); correct the file and read it again."


def test_a_row_without_a_field_that_others_have(tmp_path: Path) -> None:
    place = write(tmp_path / "mine.jsonl", [BANK, {"word": "bank"}])
    assert (
        fails(place) == f"Reading {place}, line 2: sense is missing, expected text (1 of 2 rows is bad); "
        "correct the file and read it again."
    )


def test_lines_that_are_not_json_objects(tmp_path: Path) -> None:
    place = write(tmp_path / "mine.jsonl", [BANK])
    for line, flaw in (
        (
            "{'word': 1}",
            "it is not JSON (Expecting property name enclosed in double quotes), expected an object on one line",
        ),
        ("[1, 2]", "got '[1, 2]', expected a JSON object"),
        ("[" * 100_000, None),
        ('{"start": ' + "1" * 5000 + "}", None),
    ):
        place.write_text(json.dumps(BANK) + "\n\n" + line + "\n")
        message = fails(place)
        assert message.startswith(f"Reading {place}, line 3: {flaw or 'it is not JSON ('}")
        assert message.endswith("(1 of 2 rows is bad); correct the file and read it again.")


def test_rows_with_too_few_or_too_many_fields(tmp_path: Path) -> None:
    place = tmp_path / "mine.csv"
    place.write_text(
        'word,sense,text,start,end\nbank,1,"The\nriver bank.",10,14\nbank,1\nbank,1,The bank, they said,4,8\n'
    )
    assert fails(place) == (
        f"Reading {place}, line 4: got 2 fields, expected the 5 of the header (2 of 3 rows are bad); "
        "correct the file and read it again."
    )


def test_a_quote_that_is_never_closed(tmp_path: Path) -> None:
    place = tmp_path / "mine.tsv"
    place.write_text('word\tsense\ttext\tstart\tend\nbank\t1\t"The bank\t5\t9\nbank\t1\tThe bank\t4\t8\n')
    assert fails(place) == (
        f"Reading {place}, line 2: the quotes or the fields cannot be read (unexpected end of data), expected a "
        "closed field "
        "(1 of 1 rows is bad); correct the file and read it again."
    )


def test_a_bad_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    place = write(tmp_path / "mine.parquet", [BANK, MOLE | {"end": 60}])
    assert fails(place) == (
        f"Reading {place}, row 2: the word is at characters 2 to 60, expected a span within the 7 characters of "
        "the text "
        "(1 of 2 rows is bad); correct the file and read it again."
    )


def test_all_bad_rows_are_counted(tmp_path: Path) -> None:
    place = write(tmp_path / "mine.jsonl", [BANK, MOLE | {"end": 60}, MOLE | {"sense": ""}])
    assert "line 2: the word is at characters 2 to 60" in fails(place)
    assert "(2 of 3 rows are bad)" in fails(place)


def test_too_long_a_text_and_too_far_a_cue(tmp_path: Path) -> None:
    for change, flaw in (
        ({"text": "The river bank" + " a" * 50_000}, "the text has 100,014 characters, expected at most 100,000"),
        ({"distance": 100_001}, "distance is 100001, expected the number of tokens from the cue to the word"),
    ):
        place = write(tmp_path / "mine.jsonl", [BANK | change])
        assert fails(place).startswith(f"Reading {place}, line 1: {flaw} (1 of 1 rows is bad)")


def test_a_folder_of_files_is_all_of_their_sentences(tmp_path: Path) -> None:
    write(tmp_path / "b.jsonl", [BANK, MOLE])
    write(tmp_path / "a.csv", [BANK])
    corpus = read_sentences(tmp_path)
    assert [sentence.word for sentence in corpus.sentences] == ["bank", "mole"]
    assert corpus.left_out == (LeftOut("b.jsonl line 1", "repeats the sentence, span and sense of a.csv line 2"),)
    before = corpus.sha256
    write(tmp_path / "b.jsonl", [BANK])
    assert read_sentences(tmp_path).sha256 != before


def test_a_file_is_known_by_the_sum_of_its_bytes(place: Path) -> None:
    assert read_sentences(write(place, [BANK])).sha256 == hashlib.sha256(place.read_bytes()).hexdigest()


def test_a_sentence_checks_itself() -> None:
    with pytest.raises(InputError) as error:
        Sentence("bank", "river", "The bank.", 4, 80)
    assert str(error.value) == (
        "Making a sentence: the word is at characters 4 to 80, expected a span within the 9 characters of the text; "
        "correct it and try again."
    )


# CoarseWSD-20 word folders.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "seal"
    place.mkdir()
    (place / "classes_map.txt").write_text('{"0": "seal_pinniped", "1": "seal_seal_(mechanical)"}')
    (place / "train.data.txt").write_bytes(b"1\tthe seal 's pup .\r\n0\tseal of the pump .\r\n")
    (place / "train.gold.txt").write_bytes(b"0\r\n1\r\n")
    (place / "test.data.txt").write_text("2\ta grey seal\n")
    (place / "test.gold.txt").write_text("0")
    return place


def test_a_word_folder(folder: Path) -> None:
    corpus = read_sentences(folder)
    assert corpus.sentences == (
        Sentence("seal", "seal_pinniped", "the seal 's pup .", 4, 8, split="train"),
        Sentence("seal", "seal_seal_(mechanical)", "seal of the pump .", 0, 4, split="train"),
        Sentence("seal", "seal_pinniped", "a grey seal", 7, 11, split="test"),
    )
    assert corpus.left_out == () and corpus.source == "seal"


def test_the_word_of_a_folder_is_its_name_also_from_within(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = read_sentences(folder)
    monkeypatch.chdir(folder)
    assert read_sentences(".") == outside


def test_a_sentence_of_the_training_part_is_left_out_of_the_test_part(folder: Path) -> None:
    (folder / "test.data.txt").write_text("1\tthe seal 's pup .\n")
    corpus = read_sentences(folder)
    reason = "repeats the sentence, span and sense of train.data.txt line 1"
    assert len(corpus.sentences) == 2 and corpus.left_out == (LeftOut("test.data.txt line 1", reason),)


def test_the_identity_of_a_folder_changes_with_any_of_its_files(folder: Path) -> None:
    before = read_sentences(folder).sha256
    assert read_sentences(folder).sha256 == before
    for name, content in (
        ("test.gold.txt", "1"),
        ("test.data.txt", "0\tseal grey"),
        ("classes_map.txt", '{"0": "a", "1": "b"}'),
    ):
        (folder / name).write_text(content)
        assert read_sentences(folder).sha256 != before
        before = read_sentences(folder).sha256


def test_a_folder_without_its_class_map(folder: Path) -> None:
    (folder / "classes_map.txt").unlink()
    assert fails(folder) == (
        f"Reading the folder {folder}: classes_map.txt is not there, expected a CoarseWSD-20 word folder; "
        "give such a folder, or a JSONL, CSV, TSV or Parquet file."
    )


@pytest.mark.parametrize("content", ["[]", '{"0": 1}', "{"])
def test_a_class_map_that_is_none(folder: Path, content: str) -> None:
    place = folder / "classes_map.txt"
    place.write_text(content)
    assert fails(folder) == (
        f'Reading {place}: got no class map, expected a JSON object such as {{"0": "bank_bank"}}; restore the file.'
    )


def test_a_folder_without_sentences(folder: Path) -> None:
    (folder / "train.data.txt").unlink()
    assert len(read_sentences(folder).sentences) == 1
    (folder / "test.data.txt").unlink()
    assert fails(folder) == (
        f"Reading the word folder {folder}: neither train.data.txt nor test.data.txt is there, expected at least one; "
        "give a complete CoarseWSD-20 word folder."
    )


def test_sentences_without_classes(folder: Path) -> None:
    (folder / "test.gold.txt").unlink()
    place = folder / "test.gold.txt"
    assert fails(folder) == f"Reading sentences from {place}: there is no such file; give the path of {FORMS}."
    place.write_text("0\n0\n")
    assert fails(folder) == (
        f"Reading the word folder {folder}: test.data.txt has 1 lines and test.gold.txt 2, "
        "expected one class per sentence; restore both files."
    )


@pytest.mark.parametrize(
    ("name", "content", "flaw"),
    [
        ("test.gold.txt", "2", "test.gold.txt line 1: the class is '2', expected one of 0, 1"),
        (
            "test.data.txt",
            "3\ta grey seal\n",
            "test.data.txt line 1: the word is number 3 counted from 0, expected one of the 3 words of the sentence",
        ),
        (
            "test.data.txt",
            "a grey seal\n",
            "test.data.txt line 1: got 'a grey seal', expected the number of a word, a tab and the sentence",
        ),
        (
            "test.data.txt",
            "-1\ta grey seal\n",
            "test.data.txt line 1: got '-1\\ta grey seal', expected the number of a word, a tab and the sentence",
        ),
    ],
)
def test_bad_lines_of_a_folder(folder: Path, name: str, content: str, flaw: str) -> None:
    (folder / name).write_text(content)
    assert fails(folder) == f"Reading {folder}, {flaw} (1 of 3 rows is bad); correct the file and read it again."


# The real data sets, where they are at hand. The counts are those of the files' own lines.


@pytest.mark.parametrize("word", ["apple", "bank", "crane", "mole", "seal"])
def test_coarsewsd20(word: str) -> None:
    folder = DATA / "coarsewsd20" / word
    if not folder.exists():
        pytest.skip(f"CoarseWSD-20 is not at {folder.parent}")
    corpus = read_sentences(folder)
    assert not corpus.left_out
    assert {sentence.text[sentence.start : sentence.end] for sentence in corpus.sentences} == {word}
    names = json.loads((folder / "classes_map.txt").read_text())
    for split in ("train", "test"):
        expected = Counter(names[label] for label in (folder / f"{split}.gold.txt").read_text().split())
        assert Counter(sentence.sense for sentence in corpus.sentences if sentence.split == split) == expected


def test_homonyms() -> None:
    place = DATA / "homonyms" / "dev.jsonl"
    if not place.exists():
        pytest.skip(f"the homonym sentences are not at {place}")
    corpus = read_sentences(place)
    assert len(corpus.sentences) == place.read_text("utf-8").count("\n") and not corpus.left_out
    angle = read_sentences(place, word="angle")
    assert len(angle.sentences) + len(angle.left_out) == len(corpus.sentences)
    assert {sentence.sense for sentence in angle.sentences} >= {"1", "2"}
