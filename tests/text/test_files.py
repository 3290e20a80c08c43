"""Sentence files: rows that are read, rows that are left out and counted, and one message for
everything else."""

import csv
import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from inside import as_corpus

import probe

BANK = {"word": "bank", "sense": "1", "text": "The river bank.", "start": 10, "end": 14}
MOLE = {"word": "mole", "sense": "skin", "text": "A mole.", "start": 2, "end": 6}
OPTIONAL = {"frame": "walk", "pair": "7", "cue_start": 4, "cue_end": 9, "distance": 1}
FORMS = "a JSONL, CSV, TSV or Parquet file, or a CoarseWSD-20 word folder"
TEXT_TABLES = (".csv", ".tsv")
SUFFIXES = (".jsonl", *TEXT_TABLES, ".parquet")
AGAIN = "Correct the file and read it again."


def write(path, rows):
    """Write the rows in the format of the file's ending."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        buffer = io.StringIO(newline="")
        delimiter = "," if path.suffix == ".csv" else "\t"
        table = csv.DictWriter(buffer, list(rows[0]), delimiter=delimiter)
        table.writeheader()
        table.writerows(rows)
        path.write_bytes(buffer.getvalue().encode())
    return path


def read(source, **options):
    return probe.read_sentences(source, **options).sentences


def refused(source, **options):
    """The message of one line of the error of reading this."""
    with pytest.raises(probe.InputError) as error:
        read(source, **options)
    message = str(error.value)
    assert "\n" not in message and message.endswith(".")
    return message


def row_name(path, number):
    """The location of a row in an error; text tables have a header."""
    names = {".jsonl": f"line {number}", ".parquet": f"row {number}"}
    return names.get(path.suffix, f"line {number + 1}")


@pytest.fixture(params=SUFFIXES)
def path(request, tmp_path):
    return tmp_path / f"mine{request.param}"


# --- rows that are read ---------------------------------------------------------------------------


def test_every_format_gives_the_same_sentences(path):
    corpus = probe.read_sentences(
        write(path, [BANK | OPTIONAL | {"split": "train", "gloss": "no"}])
    )
    [sentence] = corpus.sentences
    expected = {**BANK, **OPTIONAL, "split": "train", "cue": "river", "more": (("gloss", "no"),)}
    assert {name: getattr(sentence, name) for name in expected} == expected
    assert corpus.left_out == () and corpus.source == path.name
    assert corpus.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    shipped = probe.lexicon.expand("bank").sentences[:100]
    assert read(write(path, [vars(row) for row in shipped])) == shipped


def test_optional_columns_may_be_empty_and_numbers_name_pairs_and_frames(path):
    # In a table with missing values, whole numbers are stored as 4.0 and NaN.
    missing = float("nan") if path.suffix == ".parquet" else None
    marked = BANK | {"sense": " river ", "pair": 0, "cue_start": 4.0, "cue_end": 9.0}
    empty = MOLE | {"pair": None, "cue_start": missing, "cue_end": None}
    first, second = read(write(path, [marked | {"frame": 12}, empty | {"frame": None}]))
    assert (first.sense, first.frame, first.pair, first.cue) == ("river", "12", "0", "river")
    assert (second.frame, second.pair, second.cue) == (None, None, None)


@pytest.mark.parametrize("suffix", SUFFIXES[:3])
def test_byte_order_marks_line_ends_and_blank_lines_of_other_systems_are_accepted(tmp_path, suffix):
    path = write(tmp_path / f"mine{suffix}", [BANK, MOLE])
    lines = path.read_bytes().replace(b"\r\n", b"\n").split(b"\n")
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines))
    assert [row.word for row in read(path)] == ["bank", "mole"]


@pytest.mark.parametrize("suffix", TEXT_TABLES)
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("before", ["", "sep={}\n", '"sep={}"\n', "sep={}\r\n"])
def test_the_separator_is_recognised(tmp_path, suffix, separator, before):
    path = tmp_path / f"mine{suffix}"
    rows = [("sense", "text", '"a ||;;\t\t"'), ("cave", '"A bat, a moth; a cave\tand more"', "x")]
    path.write_text(before.format(separator) + "\n".join(separator.join(row) for row in rows))
    [row] = read(path, word="bat")
    assert (row.text, row.more) == ("A bat, a moth; a cave\tand more", (("a ||;;\t\t", "x"),))


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ('He said "bank" twice', 'He said "bank" twice'),
        ('"Bank", he said', '"Bank", he said'),
        ('A 5" pipe by the bank', 'A 5" pipe by the bank'),
        ('"The bank" and "the loan"', '"The bank" and "the loan"'),
        ('"The ""bank"""', 'The "bank"'),
        ('"The\tbank"', "The\tbank"),
    ],
)
def test_only_quotation_marks_that_enclose_a_cell_of_a_tsv_are_removed(tmp_path, cell, text):
    path = tmp_path / "mine.tsv"
    path.write_text(f"word\tsense\ttext\nbank\t1\t{cell}\n")
    [row] = read(path)
    assert row.text == text


def test_a_spreadsheet_may_spell_columns_with_capitals_and_end_in_empty_rows(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("Word,SENSE, text ,Note\nbank,river,The river bank.,x\n,,,\n,,,\n")
    [row] = read(path)
    assert (row.word, row.sense, row.more) == ("bank", "river", (("Note", "x"),))


@pytest.mark.parametrize("suffix", SUFFIXES[:3])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_read_and_damage_is_reported_with_its_line(tmp_path, suffix, encoding):
    # A byte of "Ċ" is that of a line end.
    rows = [BANK | {"text": "Il fiume Ċ un bank", "start": 14, "end": 18}, MOLE]
    path = write(tmp_path / f"mine{suffix}", rows)
    sentences = read(path)
    mark = "\ufeff".encode(encoding)
    whole = path.read_text("utf-8").encode(encoding)
    path.write_bytes(mark + whole)
    assert read(path) == sentences
    path.write_bytes(whole)
    assert refused(path).startswith(f"Cannot read {path}, line 1: its bytes are not UTF-8. ")
    path.write_bytes(mark + whole + b"x")  # half a character
    line = 3 if suffix == ".jsonl" else 4
    assert f", line {line}: its bytes are not UTF-16. Save the file as UTF-8" in refused(path)


# --- tables made in Python ------------------------------------------------------------------------


TABLES = {
    "dicts": list,
    "DataFrame": pd.DataFrame,
    "numbers with gaps": lambda rows: pd.DataFrame(rows).convert_dtypes(),
    "arrow": lambda rows: pyarrow.Table.from_pandas(pd.DataFrame(rows)),
    "sentences": lambda rows: list(read(rows)),
}


@pytest.mark.parametrize("convert", TABLES.values(), ids=TABLES)
def test_a_table_made_in_python_is_read_like_a_file(convert):
    rows = [BANK | {"cue_start": 4, "cue_end": 9, "pair": 3}, MOLE | {"pair": None}]
    corpus = as_corpus(convert(rows))
    assert corpus.sentences == read(rows) and corpus.source == "a table made in Python"
    assert len(corpus.sha256) == 64 and as_corpus(corpus) is corpus
    assert corpus.sha256 == as_corpus(convert(rows)).sha256 != as_corpus(convert(rows[:1])).sha256


@pytest.mark.parametrize("labels", ["0 1", "True False"])
@pytest.mark.parametrize("form", ["path", "pandas", "arrow", "parquet", "jsonl"])
def test_labels_that_look_like_numbers_are_read_alike_in_every_form(tmp_path, labels, form):
    path = tmp_path / "mine.csv"
    first, second = labels.split()
    path.write_text(f"Word,SENSE, Text \nbank,{first},The river bank\nbank,{second},A bank\n")
    table = pd.read_csv(path)
    table.to_parquet(path.with_suffix(".parquet"))
    table.to_json(path.with_suffix(".jsonl"), orient="records", lines=True)
    forms = {"path": path, "pandas": table, "arrow": pyarrow.csv.read_csv(path)}
    source = forms.get(form, path.with_suffix(f".{form}"))
    assert [row.sense for row in read(source)] == [first, second]


def test_numbers_of_numpy_are_numbers_and_a_corpus_shows_itself_in_one_line():
    row = BANK | {"sense": np.int64(3), "start": np.int32(10), "end": np.float64(14)}
    [sentence] = read([row | {"frame": np.int64(7)}])
    assert (sentence.sense, sentence.start, sentence.end, sentence.frame) == ("3", 10, 14, "7")
    corpus = as_corpus([BANK | {"gloss": "a", "id": 3}, MOLE, BANK])
    assert repr(corpus) == "<Corpus a table made in Python: 2 sentences of bank, mole, 1 left out>"
    assert corpus.further_columns == ("gloss", "id")


# --- words, cues, and rows that are left out and counted ------------------------------------------


def test_rows_without_a_word_use_the_word_argument(path):
    rows = [{"sense": "a", "text": "A bat flew."}, {"sense": "b", "text": "He swung the bat."}]
    assert [row.start for row in read(write(path, rows), word="bat")] == [2, 13]
    for words in ("bat", ["bat"], {"bat"}, ["bat", "bat"], pd.Series(["bat"])):
        assert {row.word for row in as_corpus(path, words).sentences} == {"bat"}
    assert "word is missing, expected a column 'word', or one word for all rows (2 of 2" in refused(
        path
    )
    mixed = write(
        path, [rows[0] | {"word": None}, {"sense": "c", "text": "A mole.", "word": "mole"}]
    )
    corpus = probe.read_sentences(mixed, word="bat")
    assert [row.word for row in corpus.sentences] == ["bat"]
    assert [item.reason for item in corpus.left_out] == ["about another word than 'bat'"]
    assert [row.word for row in as_corpus(mixed, ["bat"]).sentences] == ["bat", "mole"]


def test_repetitions_are_left_out_and_counted_but_another_sense_is_another_sentence(path):
    corpus = probe.read_sentences(write(path, [BANK, MOLE, BANK, BANK | {"sense": "2"}]))
    assert [row.sense for row in corpus.sentences] == ["1", "skin", "2"] and corpus.repeated == 1
    [left_out] = corpus.left_out
    assert left_out.where == row_name(path, 3)
    assert left_out.reason == f"repeats the sentence, span and sense of {row_name(path, 1)}"
    assert refused(path, word="seal") == (
        f"Cannot read sentences with 'seal' from {path}: none of the 4 sentences has it. Give one "
        "of the words that occur: bank, mole."
    )


@pytest.mark.parametrize(
    ("text", "cue", "span"),
    [
        ("That note is a B flat.", "B flat", (15, 21)),
        ("The SINGERS held a note", "singer", (4, 11)),
        ("A note among notes", "notes", (13, 18)),
    ],
)
def test_a_cue_is_found_like_the_word(path, text, cue, span):
    start = text.index("note")
    row = {"word": "note", "sense": "1", "text": text, "start": start, "end": start + 4, "cue": cue}
    [sentence] = read(write(path, [row]))
    assert (sentence.cue_start, sentence.cue_end) == span and sentence.more == ()
    assert sentence.cue_after == (span[0] > start)
    [given_span] = read([row | {"cue_start": 0, "cue_end": text.index(" ")}])
    assert given_span.cue == text.split()[0]  # a given span takes precedence


EMOJI = "😀😀😀😀😀 the bank has a boat"


@pytest.mark.parametrize(
    ("text", "start", "covered"),
    [
        (EMOJI, 15, "has "),
        (EMOJI.replace("has", "have"), 15, "have"),  # another whole word
        ("𐐷𐐷 by the bank", 12, "nk"),  # and beyond the end of the text
    ],
)
def test_spans_that_javascript_counted_are_named_and_converted_on_request(
    path, text, start, covered
):
    assert text[start : start + 4] == covered
    counted = {"word": "bank", "sense": "1", "text": text, "start": start, "end": start + 4}
    counted |= {"cue_start": None, "cue_end": None}
    rows = [counted, BANK | {"cue_start": 4, "cue_end": 9}]
    assert refused(write(path, rows)).endswith(
        " (1 of 2 rows is bad). The spans look like JavaScript's, which count characters beyond "
        "U+FFFF twice. Read the file with utf16=True (on the command line --utf16)."
    )
    first, second = read(path, utf16=True)
    assert (first.form, second.form, second.cue) == ("bank", "bank", "river")
    # With a correct span in another row, not all of them are JavaScript's.
    at = text.index("bank")
    correct = counted | {"start": at, "end": at + 4, "sense": "2"}
    assert refused(write(path, [*rows, correct])).endswith(f"(1 of 3 rows is bad). {AGAIN}")


# --- what cannot be read --------------------------------------------------------------------------


@pytest.mark.parametrize("senses", [("river", "RIVER"), ("می\u200cرود", "میرود")])
def test_senses_that_differ_in_capitals_or_a_joiner_only_are_refused(senses):
    assert refused([BANK | {"sense": sense} for sense in senses]) == (
        f"Cannot read sentences from a table made in Python: 'bank' has the senses {senses[0]!r} "
        f"and {senses[1]!r}, which differ in capital letters or joiners only. Use one spelling, or "
        "different names."
    )


TWICE = "the header has 'text' twice, expected it once. Rename one of them."
TWO_TEXTS = pd.DataFrame([["bank", "1", "a bank", "b"]], columns=["word", "sense", "text", "text"])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "it has no rows. Add one sentence per row."),
        (
            7,
            "got int (DataFrame constructor not properly called!), expected a path, a DataFrame, or",
        ),
        (
            [{"word": "bat"}],
            "the columns sense, text are missing, got word, expected at least sense",
        ),
        (TWO_TEXTS, TWICE),
    ],
)
def test_an_unreadable_table_is_refused(table, message):
    assert refused(table).startswith(
        f"Cannot read sentences from a table made in Python: {message}"
    )


NO_ROWS = "it has no rows. Add one sentence per row."
GOT = "expected at least sense and text. Rename a column or add the missing one."
MANY = [*map(str, range(60)), "word"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *((f"mine{suffix}", b" \r\n\n", "it is empty. Add one sentence per row.") for suffix in SUFFIXES),
        ("mine.csv", None, f"there is no such file. Give the path of {FORMS}."),
        ("mine.jsonl", b"\xef\xbb\xbf\n", NO_ROWS),
        ("mine.csv", b"word,sense,text,start,end\n", NO_ROWS),
        ("mine.tsv", b"word\tsense\n\n", NO_ROWS),
        ("mine.xlsx", b"x", f"got a name ending in '.xlsx', expected {FORMS}. Give one of these."),
        ("mine", b"x", f"got a name without an ending, expected {FORMS}. Give one of these."),
        ("mine.csv", b"word,text\nbank,a bank\n", f"the column sense is missing, got word, text, {GOT}"),
        ("mine.csv", b"word,sense,text,text\nbank,1,a bank,b\n", TWICE),
        ("mine.jsonl", json.dumps(dict.fromkeys(MANY)).encode(),
         f"the columns sense, text are missing, got {', '.join(MANY[:50])}, {GOT}"),
    ],
)  # fmt: skip
def test_an_unreadable_file_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert refused(tmp_path / name) == f"Cannot read sentences from {tmp_path / name}: {message}"


def test_files_that_cannot_be_opened_and_are_no_parquet_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "mine.parquet"
    path.write_bytes(b"word,sense")
    assert "it is not a readable Parquet file (" in refused(path)
    os.mkfifo(tmp_path / "mine.jsonl")
    for pipe in (tmp_path / "mine.jsonl", tmp_path):
        assert refused(pipe).endswith(f"mine.jsonl: it is not a regular file. Give {FORMS}.")

    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "mine.csv", [BANK])
    monkeypatch.setattr(Path, "open", refuse)
    assert refused(path).endswith(
        "it cannot be opened (Permission denied). Make it readable, or give another file."
    )


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("suffix", SUFFIXES[:3])
def test_bytes_that_are_not_utf8_are_reported_with_their_line(tmp_path, suffix, line_end, mark):
    path = write(tmp_path / f"mine{suffix}", [BANK | {"sense": "é"}, MOLE | {"sense": "PLACE"}])
    content = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", line_end)
    path.write_bytes(mark + content.replace(b"PLACE", b"caf\xe9"))
    step = "Save the file as UTF-8 (in a spreadsheet: CSV UTF-8)."
    where = row_name(path, 2)
    assert refused(path) == f"Cannot read {path}, {where}: its bytes are not UTF-8. {step}"


FOUND = (
    "expected it once as a whole word (with or without capital letters, with -s, -es or 's), or its"
)
WORD = f"{FOUND} start and end"
CUE = f"{FOUND} cue_start and cue_end"
OUTSIDE = "expected a span within the {} characters of the text"
TOGETHER = "expected both or neither"
# Changes of BANK, in a file with three rows of which it is the second, and what is wrong.
BAD_IN_TABLES = [
    ({"text": " "}, "text is empty, expected text"),
    ({"sense": ""}, "sense is empty, expected text"),
    ({"word": ""}, "word is missing, expected a column 'word', or one word for all rows"),
    ({"start": "ten"}, "start is 'ten', expected a whole number"),
    ({"end": "14.5"}, "end is '14.5', expected a whole number"),
    ({"start": ""}, f"end is given without start, {TOGETHER}"),
    ({"start": "", "end": "", "text": "The bank by the bank"}, f"the text has 'bank' 2 times, {WORD}"),
    ({"start": "", "end": "", "text": "An embankment"}, f"the text has 'bank' only inside another word, {WORD}"),
    ({"start": "", "end": "", "text": "A ba\u0301nk"}, f"the text has 'bank' nowhere, {WORD}"),
    ({"end": "15", "text": "A bank"}, f"the word is at characters 10 to 15, {OUTSIDE.format(6)}"),
    ({"start": "-1"}, f"the word is at characters -1 to 14, {OUTSIDE.format(15)}"),
    ({"start": "9", "end": "10"}, "the word is at characters 9 to 10, which are blank, expected the characters of a word"),
    ({"cue_start": "4"}, f"cue_start is given without cue_end, {TOGETHER}"),
    ({"cue_start": "4", "cue_end": "40"}, f"the cue is at characters 4 to 40, {OUTSIDE.format(15)}"),
    ({"cue_start": "4", "cue_end": "11"}, "the cue at characters 4 to 11 overlaps the word, expected another word"),
    ({"distance": "0"}, "distance is 0, expected 1 or more"),
]  # fmt: skip
BAD_IN_JSON = [
    ({"sense": 1.5}, "sense is 1.5, expected text or a whole number"),
    ({"text": ["a", "bank"]}, "text is ['a', 'bank'], expected text"),
    ({"start": True}, "start is True, expected a whole number"),
    ({"end": 13.5}, "end is 13.5, expected a whole number"),
    ({"end": None}, f"start is given without end, {TOGETHER}"),
    ({"frame": [1]}, "frame is [1], expected text or a whole number"),
    ({"text": "The river bank \ud83d"}, "text has half of a surrogate pair ('The river bank \\ud83d'), expected whole characters"),
    ({"text": "The river bank" + " a" * 50_000}, "the text has 100,014 characters, expected at most 100,000"),
    ({"distance": 100_001}, "distance is 100001, expected the number of tokens from the cue to the word"),
    ({"cue": "piano"}, f"the text has the cue 'piano' nowhere, {CUE}"),
    ({"cue": "iver"}, f"the text has the cue 'iver' only inside another word, {CUE}"),
    ({"cue": "bank"}, "the cue at characters 10 to 14 overlaps the word, expected another word"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("suffix", "change", "flaw"),
    [(".csv", *bad) for bad in BAD_IN_TABLES] + [(".jsonl", *bad) for bad in BAD_IN_JSON],
)
def test_a_bad_row_stops_the_reading(tmp_path, suffix, change, flaw):
    blank = dict.fromkeys(("cue_start", "cue_end", "distance"), "") if suffix == ".csv" else {}
    path = write(tmp_path / f"mine{suffix}", [BANK | blank, BANK | blank | change, MOLE | blank])
    message = refused(path)
    assert message.startswith(f"Cannot read {path}, {row_name(path, 2)}: {flaw}")
    assert message.endswith(f" (1 of 3 rows is bad). {AGAIN}")


def test_all_bad_rows_are_counted_and_the_first_is_named(path):
    write(path, [BANK, MOLE | {"end": 60}, MOLE | {"sense": ""}])
    assert refused(path) == (
        f"Cannot read {path}, {row_name(path, 2)}: the word is at characters 2 to 60, "
        f"{OUTSIDE.format(7)} (2 of 3 rows are bad). {AGAIN}"
    )


NOT_JSON = "it is not JSON ("
OPEN_QUOTE = (
    "the quotation mark before 'He went' is not closed in its line, expected a closed one or none"
)


@pytest.mark.parametrize(
    ("suffix", "lines", "flaw"),
    [
        (".jsonl", "\n{'word': 1}", f"line 3: {NOT_JSON}Expecting property name enclosed in double quotes), expected an object on one line (1 of 2 "),
        (".jsonl", "\n[1, 2]", "line 3: got '[1, 2]', expected a JSON object (1 of 2 rows is bad). "),
        (".jsonl", "\n" + "[" * 100_000, f"line 3: {NOT_JSON}"),
        (".jsonl", '\n{"start": ' + "1" * 5000 + "}", f"line 3: {NOT_JSON}"),
        (".jsonl", '{"word": "bank"}', "line 2: sense is missing, expected text (1 of 2 rows is bad). "),
        (".csv", 'bank,1,"The\nriver bank.",10,14\nbank,1\nbank,1,The bank, they said,4,8', "line 5: got 2 fields, expected the 5 of the header (a text that contains the delimiter must be in quotation marks) (2 of 4 rows are bad). "),
        (".csv", 'bank,1,"The bank,4,8\nbank,1,The bank,4,8', "line 3: the quotes or the fields cannot be read (unexpected end of data), expected a closed field (1 of 2 rows is bad). "),
        (".tsv", 'bank\t1\t"He went\t1\t4\nbank\t2\tto the bank"\t7\t11', f"line 3: {OPEN_QUOTE} (1 of 3 "),
    ],
    ids=str.split("quotes list deep long field fields open tsv"),
)  # fmt: skip
def test_lines_that_cannot_be_parsed_are_reported(tmp_path, suffix, lines, flaw):
    path = write(tmp_path / f"mine{suffix}", [BANK])
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n") + lines.encode() + b"\n")
    message = refused(path)
    assert message.startswith(f"Cannot read {path}, {flaw}")
    assert message.endswith((f"s bad). {AGAIN}", f"are bad). {AGAIN}"))


# --- folders of files, and CoarseWSD-20 word folders ----------------------------------------------


def test_a_folder_gives_the_sentences_of_all_its_files(tmp_path):
    deeper = tmp_path / "blanks and ümlauts"
    deeper.mkdir()
    write(tmp_path / "z.jsonl", [BANK, MOLE])
    write(deeper / "a.csv", [BANK])
    (tmp_path / "notes.md").write_text("not read")
    (deeper / "again").symlink_to(tmp_path)  # a loop of links ends
    corpus = probe.read_sentences(tmp_path)
    assert [row.word for row in corpus.sentences] == ["bank", "mole"]
    [left_out] = corpus.left_out
    assert left_out.where == "z.jsonl line 1" and left_out.reason.endswith(
        f"{deeper.name}/a.csv line 2"
    )
    write(tmp_path / "z.jsonl", [BANK])
    assert probe.read_sentences(tmp_path).sha256 != corpus.sha256
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "empty") == (
        f"Cannot read sentences from the folder {tmp_path / 'empty'}: no file in it ends in .jsonl, "
        ".csv, .tsv, .parquet, and no folder in it is a CoarseWSD-20 word folder. Give "
        f"{FORMS}, or a folder of these."
    )


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "words" / "seal"
    path.mkdir(parents=True)
    (path / "classes_map.txt").write_text('{"0": "seal_pinniped", "1": "seal_seal_(mechanical)"}')
    (path / "train.data.txt").write_bytes(b"1\tthe seal 's pup .\r\n0\tseal of the pump .\r\n")
    (path / "train.gold.txt").write_bytes(b"0\r\n1\r\n")
    (path / "test.data.txt").write_text("2\ta grey seal\n")
    (path / "test.gold.txt").write_text("0")
    return path


def test_a_word_folder_is_read_from_outside_from_within_and_with_others(folder, monkeypatch):
    corpus = probe.read_sentences(folder)
    read_fields = [(row.word, row.sense, row.start, row.end, row.split) for row in corpus.sentences]
    assert read_fields == [
        ("seal", "seal_pinniped", 4, 8, "train"),
        ("seal", "seal_seal_(mechanical)", 0, 4, "train"),
        ("seal", "seal_pinniped", 7, 11, "test"),
    ]
    assert corpus.left_out == () and corpus.source == "seal"
    monkeypatch.chdir(folder)
    assert probe.read_sentences(".") == corpus
    mole = folder.parent / "mole"
    mole.mkdir()
    for file in folder.iterdir():
        (mole / file.name).write_text(file.read_text().replace("seal", "mole"))
    (mole / "test.data.txt").write_text("1\tthe mole 's pup .\n")
    both = probe.read_sentences(folder.parent)
    assert both.sentences == read(mole) + corpus.sentences and both.source == "words"
    # A sentence of the training part is left out of the test part.
    [left_out] = both.left_out
    assert left_out.where == "mole/test.data.txt line 1"
    assert left_out.reason.endswith("of mole/train.data.txt line 1")


def test_the_identity_of_a_folder_changes_with_any_of_its_files(folder):
    sums = {probe.read_sentences(folder).sha256}
    for name, content in {
        "test.gold.txt": "1",
        "test.data.txt": "0\tseal grey",
        "classes_map.txt": '{"0": "a", "1": "b"}',
    }.items():
        (folder / name).write_text(content)
        sums.add(probe.read_sentences(folder).sha256)
    assert len(sums) == 4


MAP = 'it is not a class map, expected a JSON object such as {"0": "bank_bank"}. Restore the file.'
ONE = f"(1 of 3 rows is bad). {AGAIN}"
NUMBER = f"expected the number of a word, a tab and the sentence {ONE}"


@pytest.mark.parametrize(
    ("name", "content", "end"),
    [
        ("classes_map", "[]", MAP),
        ("classes_map", '{"0": 1}', MAP),
        ("classes_map", "{", MAP),
        ("classes_map", None, "expected a CoarseWSD-20 word folder. Give such a folder, or a JSONL, CSV, TSV or Parquet file."),
        ("test.gold", None, f"there is no such file. Give the path of {FORMS}."),
        ("test.gold", "0\n0\n", "test.data.txt has 1 lines and test.gold.txt 2, expected one class per sentence. Restore both files."),
        ("test.gold", "2", f"test.gold.txt line 1: the class is '2', expected one of 0, 1 {ONE}"),
        ("test.data", "3\ta grey seal\n", f"the word is number 3 counted from 0, expected one of the 3 words of the sentence {ONE}"),
        ("test.data", "a grey seal\n", f"got 'a grey seal', {NUMBER}"),
        ("test.data", "-1\ta grey seal\n", f"got '-1\\ta grey seal', {NUMBER}"),
    ],
)  # fmt: skip
def test_a_damaged_word_folder_is_refused(folder, name, content, end):
    path = folder / f"{name}.txt"
    path.unlink() if content is None else path.write_text(content)
    assert refused(folder).endswith(end)


def test_one_part_of_a_word_folder_is_enough(folder):
    (folder / "train.data.txt").unlink()
    assert len(read(folder)) == 1
    (folder / "test.data.txt").unlink()
    assert "it has neither train.data.txt nor test.data.txt, expected at least one" in refused(
        folder
    )
