"""Sentence files: rows that are read, rows that are left out and counted, and errors for the rest."""

import csv
import hashlib
import io
import json
import os
import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import InputError
from probe.text.files import sources
from probe.text.lexicon import expand
from probe.text.sentences import LeftOut, Sentence, as_corpus, read_sentences
from probe.text.spans import covers_letters, plain

DATA = Path(__file__).parents[3] / "shared" / "data"
BANK = {"word": "bank", "sense": "1", "text": "The river bank.", "start": 10, "end": 14}
MOLE = {"word": "mole", "sense": "skin", "text": "A mole.", "start": 2, "end": 6}
FORMS = "a JSONL, CSV, TSV or Parquet file, or a CoarseWSD-20 word folder"
SUFFIXES = [".jsonl", ".csv", ".tsv", ".parquet"]
AGAIN = "Correct the file and read it again."


def write(path, rows):
    """Writes the rows in the format of the file's ending."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        buffer = io.StringIO(newline="")
        table = csv.DictWriter(
            buffer, list(rows[0]), delimiter="," if path.suffix == ".csv" else "\t"
        )
        table.writeheader()
        table.writerows(rows)
        path.write_bytes(buffer.getvalue().encode())
    return path


def fails(path, *, word=None):
    """The error message of reading this file."""
    with pytest.raises(InputError) as error:
        read_sentences(path, word=word)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.fixture(params=SUFFIXES)
def path(request, tmp_path):
    return tmp_path / f"mine{request.param}"


# --- rows that are read ---------------------------------------------------------------------------


def test_every_format_gives_the_same_sentences(path):
    extra = {
        "frame": "walk",
        "pair": "7",
        "cue_start": 4,
        "cue_end": 9,
        "distance": 1,
        "split": "train",
        "gloss": "no",
    }
    corpus = read_sentences(write(path, [BANK | extra]))
    assert corpus.sentences == (
        Sentence("bank", "1", "The river bank.", 10, 14, "walk", "7", 4, 9, 1, "train"),
    )
    assert corpus.left_out == () and corpus.source == path.name
    assert corpus.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    sentences = expand("bank").sentences[:100]
    assert (
        read_sentences(write(path, [vars(sentence) for sentence in sentences])).sentences
        == sentences
    )


def test_optional_columns_may_be_empty_in_some_rows_and_a_whole_number_names_a_pair_and_a_frame(
    path,
):
    # In a table with missing values, whole numbers are stored as 4.0 and NaN.
    missing = float("nan") if path.suffix == ".parquet" else None
    rows = [BANK | {"frame": "walk", "pair": None, "cue_start": 4.0, "cue_end": 9.0}]
    rows += [MOLE | {"frame": None, "pair": None, "cue_start": missing, "cue_end": None}]
    first, second = read_sentences(write(path, rows)).sentences
    assert (first.frame, first.pair, first.cue_start, first.cue_end) == ("walk", None, 4, 9)
    assert (second.frame, second.pair, second.cue_start, second.cue_end) == (None, None, None, None)
    for sentence in read_sentences(
        write(path, [row | {"pair": 0, "frame": 12} for row in (BANK, MOLE)])
    ).sentences:
        assert (sentence.pair, sentence.frame) == ("0", "12")
    if path.suffix == ".parquet":
        read = read_sentences(write(path, [BANK | {"pair": 0.0}, MOLE | {"pair": None}])).sentences
        assert [sentence.pair for sentence in read] == ["0", None]


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
# Without modifiers such as a skin tone at the beginning, which would join the space before them.
words = st.text(st.characters(categories=["L", "N", "S"]), min_size=1, max_size=6).filter(
    lambda word: plain(word) and covers_letters(f" {word} ", 1, 1 + len(word))
)
marked = st.tuples(texts, words, texts, st.sampled_from("ab1"))


EMOJI = "😀" * 5
IN_UTF16 = {"word": "bank", "sense": "1", "text": f"{EMOJI} the bank has a boat"}


@pytest.mark.parametrize(
    ("word", "text", "covered"),
    [
        ("bank", "The bank has a boat", "has "),
        ("bank", "The bank has a boat", "ank "),
        ("bank", "The bank has a boat", "he b"),
        ("bank", "The bank has a boat", "ban"),
        ("ice cream", "The ice cream van", "ice"),
        ("mouse", "Three mice, say", "ice,"),
        ("कल", "उसने कला सीखी", "कल"),  # without its vowel sign
        ("cafe", "The cafe\u0301 there", "cafe"),
        ("\U0001f3fb", "The \U0001f3fb there", "\U0001f3fb"),  # a skin tone without its emoji
    ],
)
def test_a_span_of_anything_but_the_word_or_a_form_of_it_is_refused(word, text, covered):
    start = text.index(covered)
    row = {"word": word, "sense": "1", "text": text, "start": start, "end": start + len(covered)}
    with pytest.raises(InputError) as error:
        read_sentences([row])
    assert str(error.value) == (
        f"Cannot read a table made in Python, row 1: the word is at characters {start} to "
        f"{start + len(covered)}, which are {covered!r}, expected {word!r} or a form of it, in "
        f"whole letters (1 of 1 rows is bad). {AGAIN}"
    )


@pytest.mark.parametrize(
    ("word", "text", "covered"),
    [
        ("mouse", "The mouse saw the mice", "mice"),
        ("be", "To be is to do", "is"),
        ("bank", "The riverbank", "bank"),
        ("Buch", "Viele Lehrbücher", "bücher"),
        ("בנק", "הבנק שלנו", "הבנק"),
        ("岸", "川銀行の川岸", "川岸"),
        ("☕", "A ☕\ufe0f now", "☕\ufe0f"),
    ],
)
def test_a_span_of_the_word_or_a_form_of_it_is_accepted(word, text, covered):
    start = text.rindex(covered)
    row = {"word": word, "sense": "1", "text": text, "start": start, "end": start + len(covered)}
    [sentence] = read_sentences([row]).sentences
    assert sentence.form == covered


@pytest.mark.parametrize(
    ("text", "start", "covered"),
    [
        (IN_UTF16["text"], 15, "has "),
        ("😀" * 5 + " the bank have a boat", 15, "have"),  # another whole word
        ("𐐷𐐷 by the bank", 12, "nk"),  # and beyond the end of the text
    ],
)
def test_spans_that_javascript_counted_are_named_and_converted_on_request(
    tmp_path, path, text, start, covered
):
    rows = [IN_UTF16 | {"text": text, "start": start, "end": start + 4}, BANK, MOLE]
    assert text[start : start + 4] == covered
    message = fails(write(path, rows))
    assert message.endswith(
        " (1 of 3 rows is bad). The spans look like JavaScript's, which count characters beyond "
        "U+FFFF twice. Read the file with utf16=True (on the command line --utf16)."
    )
    first, second, third = read_sentences(path, utf16=True).sentences
    assert (first.form, second.form, third.form) == ("bank", "bank", "mole")
    assert first == as_corpus(path, utf16=True).sentences[0]
    # With a correct span in another row, not all of them are JavaScript's.
    at = IN_UTF16["text"].index("bank")
    correct = IN_UTF16 | {"start": at, "end": at + 4, "sense": "2"}
    assert fails(write(path, [*rows, correct])).endswith(f"(1 of 4 rows is bad). {AGAIN}")


def test_cues_that_javascript_counted_are_converted_too(path):
    row = {"word": "bank", "sense": "1", "text": "😀 The river bank"}
    row |= {"start": 13, "end": 17, "cue_start": 7, "cue_end": 12}
    assert "The spans look like JavaScript's" in fails(write(path, [row]))
    [sentence] = read_sentences(path, utf16=True).sentences
    assert (sentence.form, sentence.cue) == ("bank", "river")
    half = row | {"start": 12, "end": 16, "cue_start": 6}
    flaw = "the cue is at characters 6 to 12, which are 'river ', expected whole letters without"
    assert flaw in fails(write(path, [half]))


@settings(max_examples=40, deadline=None)
@given(st.lists(marked, min_size=1, max_size=5), st.sampled_from(SUFFIXES))
def test_sentences_come_back_as_written(parts, suffix):
    if suffix == ".tsv":  # one line per row
        parts = [[re.sub("[\r\n]", " ", part) for part in row] for row in parts]
    rows = [
        {"word": word, "sense": f"{sense}{number}", "text": f"{before} {word} {after}"}
        | {"start": len(before) + 1, "end": len(before) + 1 + len(word)}
        for number, (before, word, after, sense) in enumerate(parts)
    ]
    with tempfile.TemporaryDirectory() as folder:
        corpus = read_sentences(write(Path(folder) / f"mine{suffix}", rows))
    assert corpus.sentences == tuple(Sentence(**row) for row in rows)


def test_cells_of_a_text_table_stay_text(tmp_path):
    for suffix in (".csv", ".tsv"):
        rows = [BANK | {"sense": "01", "frame": "null"}, BANK | {"sense": "NA", "frame": "null"}]
        first, second = read_sentences(write(tmp_path / f"mine{suffix}", rows)).sentences
        assert (first.sense, second.sense, second.frame, first.start) == ("01", "NA", "null", 10)


@pytest.mark.parametrize("mark", ["\u202e", "\u2067", "\u200f", "\x00", "\ufeff", "\u2028"])
def test_marks_that_change_direction_or_look_like_a_line_end_are_text(tmp_path, mark):
    rows = [BANK, BANK | {"text": f"The river bank {mark}."}]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    tables = [write(tmp_path / f"mine{suffix}", rows) for suffix in (".csv", ".tsv")]
    for table in tables:
        table.write_bytes(table.read_bytes().replace(b"\r\n", b"\r"))
    for file in (path, *tables):
        assert [row.text for row in read_sentences(file).sentences] == [row["text"] for row in rows]


def test_marks_line_ends_and_blank_lines_of_other_systems_are_accepted(tmp_path):
    for suffix in SUFFIXES[:3]:
        path = write(tmp_path / f"mine{suffix}", [BANK, MOLE])
        lines = path.read_bytes().replace(b"\r\n", b"\n").split(b"\n")
        path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines))
        assert [sentence.word for sentence in read_sentences(path).sentences] == ["bank", "mole"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("before", ["", "sep={}", '"sep={}"', "sep={}\r"])
def test_the_separator_is_recognised(tmp_path, suffix, separator, before):
    path = tmp_path / f"mine{suffix}"
    rows = [
        ("sense", "text"),
        ("animal", '"A bat, a moth; a cave\tand more"'),
        ("club", "The bat broke"),
    ]
    lines = [before.format(separator), *(separator.join(row) for row in rows)]
    path.write_text("\n".join(lines))
    first, second = read_sentences(path, word="bat").sentences
    assert (first.text, second.sense) == ("A bat, a moth; a cave\tand more", "club")
    assert str(first.where).endswith("line 3")


TABLES = {"dicts": list, "DataFrame": pd.DataFrame, "corpus": as_corpus}
TABLES |= {"numbers with gaps": lambda rows: pd.DataFrame(rows).convert_dtypes()}
TABLES |= {"sentences": lambda rows: [Sentence(**row) for row in rows]}


@pytest.mark.parametrize("convert", TABLES.values(), ids=TABLES)
def test_a_table_made_in_python_is_read_like_a_file(convert):
    rows = [BANK | {"cue_start": 4, "cue_end": 9, "pair": 3}, MOLE | {"pair": None}]
    rows = [
        row | {"pair": str(row["pair"])} if convert is TABLES["sentences"] and row["pair"] else row
        for row in rows
    ]
    corpus = as_corpus(convert(rows))
    first = Sentence("bank", "1", "The river bank.", 10, 14, pair="3", cue_start=4, cue_end=9)
    assert corpus.sentences == (first, Sentence(**MOLE))
    assert corpus.source == "a table made in Python" and len(corpus.sha256) == 64
    assert corpus.sha256 == as_corpus(convert(rows)).sha256 != as_corpus(convert(rows[:1])).sha256


NOT_READ = "Cannot read sentences from a table made in Python: "
INT = (
    f"{NOT_READ}got int (DataFrame constructor not properly called!), expected a path, a "
    "DataFrame, or a list of "
)


@pytest.mark.parametrize(
    ("table", "start"),
    [
        ([], f"{NOT_READ}it has no rows. Add one sentence per row."),
        (7, INT),
        (
            [{"word": "bat"}],
            (
                f"{NOT_READ}the columns sense, text are missing, got word, expected at least "
                "sense and "
            ),
        ),
        (
            [BANK, BANK | {"end": 99}],
            "Cannot read a table made in Python, row 2: the word is at characters 10 to 99, ",
        ),
    ],
)
def test_an_unreadable_table_is_refused_in_one_sentence(table, start):
    message = str(pytest.raises(InputError, as_corpus, table).value)
    assert message.startswith(start) and message.endswith(".") and "\n" not in message


def test_the_repr_of_a_corpus_is_one_line():
    corpus = as_corpus([BANK, MOLE, BANK])
    assert repr(corpus) == "<Corpus a table made in Python: 2 sentences of bank, mole, 1 left out>"
    five = as_corpus(
        [BANK | {"word": word, "text": word, "start": 0, "end": 1} for word in "abcde"]
    )
    assert "and 2 more words" in repr(five)


# --- optional fields, and rows that are left out and counted --------------------------------------


@pytest.mark.parametrize(
    ("word", "text", "form"),
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
def test_a_word_that_occurs_once_is_found(word, text, form):
    (sentence,) = as_corpus([{"word": word, "sense": "1", "text": text}]).sentences
    assert text[sentence.start : sentence.end] == form


@pytest.mark.parametrize(
    "text", ["A batch", "combat", "bat_man", "A ba\u0301t", "batting", "bats and a bat"]
)
def test_other_words_do_not_count_as_occurrences(tmp_path, text):
    path = write(tmp_path / "mine.jsonl", [{"word": "bat", "sense": "1", "text": text}])
    problem = {"bats and a bat": "2 times", "A ba\u0301t": "nowhere"}
    problem = problem.get(text, "only inside another word")
    assert f"the text has 'bat' {problem}, {FORMS_FOUND}" in fails(path)


def test_rows_without_a_word_use_the_word_argument(path):
    rows = [
        {"sense": "animal", "text": "A bat flew."},
        {"sense": "club", "text": "He swung the bat."},
    ]
    corpus = read_sentences(write(path, rows), word="bat")
    assert [(row.word, row.start) for row in corpus.sentences] == [("bat", 2), ("bat", 13)]
    missing = "word is missing, expected a column 'word', or one word for all rows"
    assert f"{missing} (2 of 2 rows are bad)" in fails(path)
    rows = [
        {"word": None, "sense": "a", "text": "A bat flew."},
        {"word": "mole", "sense": "b", "text": "A mole."},
    ]
    bats = read_sentences(write(path, rows), word="bat")
    assert [row.word for row in bats.sentences] == ["bat"] and len(bats.left_out) == 1
    assert [row.word for row in as_corpus(path, ["bat"]).sentences] == ["bat", "mole"]
    assert "word is missing" in str(
        pytest.raises(InputError, as_corpus, path, ["bat", "mole"]).value
    )


IN_A_TABLE = ("line 2", "line 4")  # after its header


def test_senses_are_read_without_spaces(path):
    corpus = read_sentences(write(path, [BANK | {"sense": " river "}, MOLE]))
    assert corpus.sentences[0].sense == "river"


@pytest.mark.parametrize("senses", [("river", "RIVER"), ("می\u200cرود", "میرود")])
def test_senses_that_differ_in_capitals_or_a_joiner_only_are_refused(senses):
    with pytest.raises(InputError) as refused:
        read_sentences([BANK | {"sense": sense} for sense in senses])
    assert str(refused.value) == (
        f"Cannot read sentences from a table made in Python: 'bank' has the senses {senses[0]!r} "
        f"and {senses[1]!r}, which differ in capital letters or joiners only. Use one spelling, or "
        "different names."
    )


def test_repetitions_are_left_out_and_counted_but_another_sense_is_another_sentence(path):
    corpus = read_sentences(write(path, [BANK, MOLE, BANK, BANK | {"sense": "2"}]))
    first, third = {".jsonl": ("line 1", "line 3"), ".parquet": ("row 1", "row 3")}.get(
        path.suffix, IN_A_TABLE
    )
    assert [sentence.sense for sentence in corpus.sentences] == ["1", "skin", "2"]
    assert corpus.left_out == (LeftOut(third, f"repeats the sentence, span and sense of {first}"),)


def test_other_words_are_left_out_and_counted_and_a_word_that_no_row_has_is_one_sentence(tmp_path):
    path = write(tmp_path / "mine.jsonl", [BANK, MOLE])
    corpus = read_sentences(path, word="mole")
    assert [sentence.word for sentence in corpus.sentences] == ["mole"]
    assert corpus.left_out == (LeftOut("line 1", "about another word than 'mole'"),)
    assert fails(path, word="seal") == (
        f"Cannot read sentences with 'seal' from {path}: none of the 2 sentences has it. Give one "
        "of the words that occur: bank, mole."
    )


@pytest.mark.parametrize(
    "words", ["bank", ["bank"], {"bank"}, ["bank", "bank"], pd.Series(["bank"])]
)
def test_rows_without_a_word_use_a_single_requested_word(words):
    rows = [{"sense": "river", "text": "Near the bank"}, {"sense": "money", "text": "In the bank"}]
    assert {sentence.word for sentence in as_corpus(rows, words).sentences} == {"bank"}


def read_by_path(path):
    return path


def read_by_pandas(path):
    return pd.read_csv(path)


def read_by_arrow(path):
    return pyarrow.csv.read_csv(path)


def as_parquet(path):
    pd.read_csv(path).to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def as_jsonl(path):
    pd.read_csv(path).to_json(path.with_suffix(".jsonl"), orient="records", lines=True)
    return path.with_suffix(".jsonl")


@pytest.mark.parametrize("header", ["word,sense,text", "Word,SENSE, Text "])
@pytest.mark.parametrize("labels", ["0 1", "True False"])
@pytest.mark.parametrize(
    "reader", [read_by_path, read_by_pandas, read_by_arrow, as_parquet, as_jsonl]
)
def test_labels_and_columns_are_read_alike_in_every_format(tmp_path, header, labels, reader):
    path = tmp_path / "mine.csv"
    first, second = labels.split()
    path.write_text(f"{header}\nbank,{first},The river bank\nbank,{second},The money bank\n")
    senses = [sentence.sense for sentence in read_sentences(reader(path)).sentences]
    assert senses == [first, second]


def test_numbers_of_numpy_are_numbers():
    row = {"word": "bank", "sense": np.int64(3), "text": "The river bank.", "start": np.int32(10)}
    [read] = as_corpus([row | {"end": np.float64(14), "frame": np.int64(7)}]).sentences
    assert (read.sense, read.start, read.end, read.frame) == ("3", 10, 14, "7")


@pytest.mark.parametrize(
    "text",
    [
        'He said "bank" twice',
        '"Bank", he said',
        'A 5" pipe by the bank',
        '"The bank" and "the loan"',
        "'The bank",
    ],
)
def test_quotation_marks_in_a_tsv_are_ordinary_characters(tmp_path, text):
    path = tmp_path / "mine.tsv"
    start = text.lower().index("bank")
    path.write_text(f"word\tsense\ttext\tstart\tend\nbank\t1\t{text}\t{start}\t{start + 4}\n")
    [read] = read_sentences(path).sentences
    assert read.text == text


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ('"The bank"', "The bank"),
        ('"The ""bank"""', 'The "bank"'),
        ('"The\tbank"', "The\tbank"),
    ],
)
def test_quotation_marks_that_enclose_a_cell_of_a_tsv_are_removed(tmp_path, cell, text):
    path = tmp_path / "mine.tsv"
    path.write_text(f"word\tsense\ttext\nbank\t1\t{cell}\n")
    [read] = read_sentences(path).sentences
    assert read.text == text


@pytest.mark.parametrize(
    ("second", "bad"),
    [('the river bank"', 1), ("the river bank", 1), ('"the river bank', 2)],
)
def test_a_quotation_that_continues_in_the_next_row_of_a_tsv_is_reported(tmp_path, second, bad):
    path = tmp_path / "mine.tsv"
    path.write_text(f'word\tsense\ttext\nbank\t1\t"He went to the bank\nbank\t2\t{second}\n')
    verb = "is" if bad == 1 else "are"
    assert fails(path) == (
        f"Cannot read {path}, line 2: the quotation mark before 'He went to the bank' is not closed "
        f"in its line, expected a closed one or none ({bad} of 2 rows {verb} bad). {AGAIN}"
    )


@pytest.mark.parametrize("filler", [";;;;", "||||", "\t\t\t\t"])
def test_quoted_text_in_the_header_does_not_decide_the_separator(tmp_path, filler):
    path = tmp_path / "mine.csv"
    path.write_text(f'word,sense,text,"a note{filler}"\nbank,1,The river bank,x\n')
    [read] = read_sentences(path).sentences
    assert read.more == ((f"a note{filler}", "x"),)


def test_a_table_with_a_duplicate_column_is_refused_like_a_file():
    table = pd.DataFrame([["bank", "river", "Near the bank", "In the bank"]])
    table.columns = ["word", "sense", "text", "text"]
    with pytest.raises(InputError) as error:
        read_sentences(table)
    assert str(error.value) == f"Cannot read sentences from a table made in Python: {TWICE}"


# --- cues by their words --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cue", "span"),
    [
        ("That note is a B flat.", "B flat", (15, 21)),
        ("The SINGERS held a note", "singer", (4, 11)),
        ("The notes of a song; the note, I mean", "song", (15, 19)),
        ("A high note among notes", "notes", (18, 23)),
    ],
)
def test_a_cue_is_found_like_the_word(path, text, cue, span):
    start = text.rindex("note" if "among" not in text else "note ")
    row = {"word": "note", "sense": "1", "text": text, "start": start, "end": start + 4, "cue": cue}
    if text.startswith("That"):
        row |= {"start": 5, "end": 9}
    [read] = read_sentences(write(path, [row])).sentences
    assert (read.cue_start, read.cue_end) == span and read.more == ()
    assert read.cue_after == (span[0] > row["start"])


CUE_FORMS = (
    "expected it once as a whole word (with or without capital letters, with -s, -es or 's), or its "
    "cue_start and cue_end"
)


@pytest.mark.parametrize(
    ("cue", "flaw"),
    [
        ("piano", f"the text has the cue 'piano' nowhere, {CUE_FORMS}"),
        ("lay", f"the text has the cue 'lay' only inside another word, {CUE_FORMS}"),
        ("the", f"the text has the cue 'the' 2 times, {CUE_FORMS}"),
        ("note", "the cue at characters 9 to 13 overlaps the word, expected another word"),
    ],
)
def test_a_cue_that_does_not_occur_exactly_once_is_reported_with_its_row(path, cue, flaw):
    row = {"word": "note", "sense": "1", "text": "Play the note on the flute.", "cue": None}
    write(path, [row, row | {"text": "Play a note!", "cue": ""}, row | {"cue": cue}])
    where = {".jsonl": "line 3", ".parquet": "row 3"}.get(path.suffix, "line 4")
    assert fails(path) == f"Cannot read {path}, {where}: {flaw} (1 of 3 rows is bad). {AGAIN}"


def test_the_span_of_a_cue_takes_precedence_over_its_words():
    row = {"word": "note", "sense": "1", "text": "The note, the flute", "cue": "the"}
    [read] = as_corpus([row | {"cue_start": 10, "cue_end": 13}]).sentences
    assert read.cue_start == 10


def test_further_columns_are_listed():
    rows = [BANK | {"gloss": "a", "id": 3}, MOLE | {"source": "x", "gloss": None}]
    assert as_corpus(rows).further_columns == ("gloss", "id", "source")


# --- files that cannot be read --------------------------------------------------------------------


EMPTY = "it is empty. Add one sentence per row."
NO_ROWS = "it has no rows. Add one sentence per row."
TWICE = "the header has 'text' twice, expected it once. Rename one of them."
MANY = (
    f"the columns sense, text are missing, got {', '.join(map(str, range(50)))}, expected at least "
    "sense and text. Rename a column or add the missing one."
)
MISSING = (
    "the columns sense, text are missing, got word, start, expected at least sense and text. "
    "Rename a column or add the missing one."
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            (f"mine{suffix}", None, f"there is no such file. Give the path of {FORMS}.")
            for suffix in SUFFIXES
        ),
        *(
            (f"mine{suffix}", content, EMPTY)
            for suffix in SUFFIXES
            for content in (b"", b" \r\n\n")
        ),
        ("mine.jsonl", b"\xef\xbb\xbf\n", NO_ROWS),
        ("mine.csv", b"word,sense,text,start,end\n", NO_ROWS),
        ("mine.tsv", b"word\tsense\n\n", NO_ROWS),
        ("mine.xlsx", b"x", f"got a name ending in '.xlsx', expected {FORMS}. Give one of these."),
        ("mine", b"x", f"got a name without an ending, expected {FORMS}. Give one of these."),
        ("mine.csv", b"word,start\nbank,10\n", MISSING),
        ("mine.csv", b"word,sense,text,start,end,text\nbank,1,a bank,2,6,b\n", TWICE),
        ("mine.jsonl", json.dumps(dict.fromkeys([*map(str, range(60)), "word"])).encode(), MANY),
    ],
)
def test_an_unreadable_file_is_refused_in_one_sentence(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert fails(tmp_path / name) == f"Cannot read sentences from {tmp_path / name}: {message}"


def test_a_file_without_read_permission_is_refused(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "mine.jsonl", [BANK])
    monkeypatch.setattr(Path, "open", refuse)
    assert fails(path) == (
        f"Cannot read sentences from {path}: it cannot be opened (Permission denied). Make it "
        "readable, or give another file."
    )


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("suffix", SUFFIXES[:3])
def test_bytes_that_are_not_utf8_are_reported_with_their_line(tmp_path, suffix, line_end, mark):
    path = write(tmp_path / f"mine{suffix}", [BANK | {"sense": "é"}, MOLE | {"sense": "PLACE"}])
    content = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", line_end)
    path.write_bytes(mark + content.replace(b"PLACE", b"caf\xe9"))
    line = 2 if suffix == ".jsonl" else 3
    step = "Save the file as UTF-8 (in a spreadsheet: CSV UTF-8)."
    assert fails(path) == f"Cannot read {path}, line {line}: its bytes are not UTF-8. {step}"


@pytest.mark.parametrize("suffix", SUFFIXES[:3])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_in_utf16_is_read_and_damage_is_reported_with_its_line(tmp_path, suffix, encoding):
    # A byte of "Ċ" is that of a line end.
    rows = [BANK | {"text": "Il fiume Ċ un bank", "start": 14, "end": 18}, MOLE]
    path = write(tmp_path / f"mine{suffix}", rows)
    sentences = read_sentences(path).sentences
    mark = "\ufeff".encode(encoding)
    path.write_bytes(mark + path.read_text("utf-8").encode(encoding))
    assert read_sentences(path).sentences == sentences
    whole = path.read_bytes()
    path.write_bytes(whole.removeprefix(mark))
    assert fails(path).startswith(f"Cannot read {path}, line 1: its bytes are not UTF-8. ")
    path.write_bytes(whole + b"x")  # half a character
    line = 3 if suffix == ".jsonl" else 4
    assert fails(path).startswith(f"Cannot read {path}, line {line}: its bytes are not UTF-16. ")


def test_a_spreadsheet_may_spell_columns_with_capitals_and_end_in_empty_rows(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("Word,SENSE, text ,Note\nbank,river,The river bank.,x\n,,,\n,,,\n")
    (read,) = read_sentences(path).sentences
    assert (read.word, read.sense, read.text, read.more) == (
        "bank",
        "river",
        "The river bank.",
        (("Note", "x"),),
    )


def test_missing_columns_are_named_with_the_existing_columns(path):
    write(path, [{"word": "bank", "sense": "1", "sentence": "The river bank.", "end": 14}])
    assert fails(path) == (
        f"Cannot read sentences from {path}: the column text is missing, got word, sense, "
        "sentence, end, expected at least sense and text. Rename a column or add the missing one."
    )


def test_a_parquet_name_with_other_content_is_refused(tmp_path):
    path = tmp_path / "mine.parquet"
    path.write_bytes(b"word,sense")
    message = fails(path)
    assert message.startswith(
        f"Cannot read sentences from {path}: it is not a readable Parquet file ("
    )
    assert message.endswith("). Write it again.")


# --- bad rows: the first is reported, and all are counted -----------------------------------------

FORMS_FOUND = (
    "expected it once as a whole word (with or without capital letters, with -s, -es or 's), or its "
    "start and end"
)
NO_WORD = "word is missing, expected a column 'word', or one word for all rows"
OUTSIDE = "expected a span within the {} characters of the text"
TOGETHER = "expected both or neither"
BLANK = "which are blank, expected the characters of a word"
BAD = [
    ({"text": ""}, "text is empty, expected text"),
    ({"text": " "}, "text is empty, expected text"),
    ({"sense": ""}, "sense is empty, expected text"),
    ({"word": ""}, NO_WORD),
    ({"word": " "}, "word is empty, expected text"),
    ({"start": "ten"}, "start is 'ten', expected a whole number"),
    ({"end": "14.5"}, "end is '14.5', expected a whole number"),
    ({"start": ""}, f"end is given without start, {TOGETHER}"),
    ({"start": "", "end": "", "text": "The bank by the bank"}, f"the text has 'bank' 2 times, {FORMS_FOUND}"),
    ({"start": "", "end": "", "text": "An embankment"}, f"the text has 'bank' only inside another word, {FORMS_FOUND}"),
    ({"end": "15", "text": "A bank"}, f"the word is at characters 10 to 15, {OUTSIDE.format(6)}"),
    ({"start": "-1"}, f"the word is at characters -1 to 14, {OUTSIDE.format(15)}"),
    ({"start": "14"}, f"the word is at characters 14 to 14, {OUTSIDE.format(15)}"),
    ({"start": "9", "end": "10"}, f"the word is at characters 9 to 10, {BLANK}"),
    ({"cue_start": "4"}, f"cue_start is given without cue_end, {TOGETHER}"),
    ({"cue_end": "4"}, f"cue_end is given without cue_start, {TOGETHER}"),
    ({"cue_start": "x", "cue_end": "4"}, "cue_start is 'x', expected a whole number"),
    ({"cue_start": "4", "cue_end": "40"}, f"the cue is at characters 4 to 40, {OUTSIDE.format(15)}"),
    ({"cue_start": "4", "cue_end": "11"}, "the cue at characters 4 to 11 overlaps the word, expected another word"),
    ({"distance": "0"}, "distance is 0, expected 1 or more"),
]  # fmt: skip
HALF = "text has half of a surrogate pair ('The river bank \\ud83d'), expected whole characters"
FAR = "distance is 100001, expected the number of tokens from the cue to the word"
LONG = "the text has 100,014 characters, expected at most 100,000"
BAD_JSON = [
    ({"sense": 1.5}, "sense is 1.5, expected text or a whole number"),
    ({"text": ["a", "bank"]}, "text is ['a', 'bank'], expected text"),
    ({"word": None}, NO_WORD),
    ({"start": True}, "start is True, expected a whole number"),
    ({"end": 13.5}, "end is 13.5, expected a whole number"),
    ({"end": None}, f"start is given without end, {TOGETHER}"),
    ({"start": [1]}, "start is [1], expected a whole number"),
    ({"pair": 7.5}, "pair is 7.5, expected text or a whole number"),
    ({"frame": [1]}, "frame is [1], expected text or a whole number"),
    ({"frame": " "}, "frame is empty, expected text"),
    ({"text": "The river bank \ud83d"}, HALF),
    ({"text": "The river bank" + " a" * 50_000}, LONG),
    ({"distance": 100_001}, FAR),
]


@pytest.mark.parametrize(
    ("suffix", "change", "flaw"),
    [(".csv", *bad) for bad in BAD] + [(".jsonl", *bad) for bad in BAD_JSON],
)
def test_a_bad_row_stops_the_reading(tmp_path, suffix, change, flaw):
    blank = dict.fromkeys(("cue_start", "cue_end", "distance"), "") if suffix == ".csv" else {}
    path = write(tmp_path / f"mine{suffix}", [BANK | blank, BANK | blank | change, MOLE | blank])
    line, message = 3 if suffix == ".csv" else 2, fails(path)
    assert message.startswith(f"Cannot read {path}, line {line}: {flaw}") and message.endswith(
        f" (1 of 3 rows is bad). {AGAIN}"
    )
    assert (
        flaw in (LONG, FAR)
        or message == f"Cannot read {path}, line {line}: {flaw} (1 of 3 rows is bad). {AGAIN}"
    )


NOT_JSON = "it is not JSON ("
NAMES = "Expecting property name enclosed in double quotes"


@pytest.mark.parametrize(
    ("suffix", "lines", "start"),
    [
        (".jsonl", "\n{'word': 1}", f"line 3: {NOT_JSON}{NAMES}), expected an object on one line (1 of 2 "),
        (".jsonl", "\n[1, 2]", "line 3: got '[1, 2]', expected a JSON object (1 of 2 rows is bad). "),
        (".jsonl", "\n" + "[" * 100_000, f"line 3: {NOT_JSON}"),
        (".jsonl", '\n{"start": ' + "1" * 5000 + "}", f"line 3: {NOT_JSON}"),
        (".jsonl", '{"word": "bank"}', "line 2: sense is missing, expected text (1 of 2 rows is bad). "),
        (".csv", 'bank,1,"The\nriver bank.",10,14\nbank,1\nbank,1,The bank, they said,4,8', ("line 5: got 2 fields, "
         "expected the 5 of the header (a text that contains the delimiter must be in quotation marks) "
         "(2 of 4 rows are bad). ")),
        (".csv", 'bank,1,"The bank,4,8\nbank,1,The bank,4,8', ("line 3: the quotes or the fields cannot be read "
         "(unexpected end of data), expected a closed field (1 of 2 rows is bad). ")),
    ],
    ids=str.split("quotes list deep long field fields open"),
)  # fmt: skip
def test_lines_that_cannot_be_parsed_are_reported(tmp_path, suffix, lines, start):
    path = write(tmp_path / f"mine{suffix}", [BANK])
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n") + lines.encode() + b"\n")
    message = fails(path)
    assert message.startswith(f"Cannot read {path}, {start}")
    assert message.endswith((f"s bad). {AGAIN}", f"are bad). {AGAIN}"))


def test_a_header_with_an_open_quotation_is_refused_with_its_line(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('\nword,"sense,text\nbank,1,The bank\n')
    assert fails(path) == (
        f"Cannot read {path}, line 2: the quotes or the fields cannot be read (unexpected end of "
        "data), expected a closed field. Correct the header."
    )


def test_all_bad_rows_are_counted_and_a_parquet_row_is_named_by_its_number(tmp_path):
    rows = [BANK, MOLE | {"end": 60}, MOLE | {"sense": ""}]
    outside = (
        f"2: the word is at characters 2 to 60, {OUTSIDE.format(7)} (2 of 3 rows are bad). {AGAIN}"
    )
    for suffix, where in ((".jsonl", "line"), (".parquet", "row")):
        path = write(tmp_path / f"mine{suffix}", rows)
        assert fails(path) == f"Cannot read {path}, {where} {outside}"


def test_a_sentence_validates_its_span():
    with pytest.raises(InputError) as error:
        Sentence("bank", "river", "The bank.", 4, 80)
    assert str(error.value) == (
        "Cannot make a sentence: the word is at characters 4 to 80, expected a span within the 9 "
        "characters of the text. Correct it and try again."
    )


# --- folders of files, and CoarseWSD-20 word folders ----------------------------------------------


def test_a_folder_gives_the_sentences_of_all_its_files(tmp_path):
    write(tmp_path / "b.jsonl", [BANK, MOLE])
    write(tmp_path / "a.csv", [BANK])
    corpus = read_sentences(tmp_path)
    assert [sentence.word for sentence in corpus.sentences] == ["bank", "mole"]
    assert corpus.left_out == (
        LeftOut("b.jsonl line 1", "repeats the sentence, span and sense of a.csv line 2"),
    )
    write(tmp_path / "b.jsonl", [BANK])
    assert read_sentences(tmp_path).sha256 != corpus.sha256


def test_a_folder_in_a_folder_is_read_and_a_loop_of_links_ends(tmp_path):
    folder = tmp_path / "blanks and ümlauts"
    (folder / "deeper").mkdir(parents=True)
    for name in ("b.jsonl", "deeper/a.jsonl", "notes.md"):
        write(folder / "mine.jsonl", [BANK]).rename(folder / name)
    (folder / "again").symlink_to(folder)
    assert [source.name for source in sources([folder])] == ["b.jsonl", "deeper/a.jsonl"]


def test_a_folder_without_a_readable_file_is_refused(tmp_path):
    assert fails(tmp_path) == (
        f"Cannot read sentences from the folder {tmp_path}: no file in it ends in .jsonl, .csv, "
        ".tsv, .parquet, and no folder in it is a CoarseWSD-20 word folder. Give "
        f"{FORMS}, or a folder of these."
    )


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "mine.jsonl")
    for path in (tmp_path / "mine.jsonl", tmp_path):
        assert fails(path).endswith(f"mine.jsonl: it is not a regular file. Give {FORMS}.")


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


def test_a_word_folder_is_read_from_outside_and_from_within(folder, monkeypatch):
    corpus = read_sentences(folder)
    assert corpus.sentences == (
        Sentence("seal", "seal_pinniped", "the seal 's pup .", 4, 8, split="train"),
        Sentence("seal", "seal_seal_(mechanical)", "seal of the pump .", 0, 4, split="train"),
        Sentence("seal", "seal_pinniped", "a grey seal", 7, 11, split="test"),
    )
    assert corpus.left_out == () and corpus.source == "seal"
    monkeypatch.chdir(folder)
    assert read_sentences(".") == corpus


def test_a_folder_of_word_folders_gives_all_their_sentences(folder):
    mole = folder.parent / "mole"
    mole.mkdir()
    for file in folder.iterdir():
        (mole / file.name).write_text(file.read_text().replace("seal", "mole"))
    (mole / "test.data.txt").write_text("1\tthe mole 's pup .\n")
    corpus, apart = (
        read_sentences(folder.parent),
        [read_sentences(word_folder) for word_folder in (mole, folder)],
    )
    assert corpus.sentences == apart[0].sentences + apart[1].sentences and corpus.source == "words"
    # A sentence of the training part is left out of the test part.
    reason = "repeats the sentence, span and sense of {}train.data.txt line 1"
    assert corpus.left_out == (LeftOut("mole/test.data.txt line 1", reason.format("mole/")),)
    assert apart[0].left_out == (LeftOut("test.data.txt line 1", reason.format("")),)
    (folder / "test.gold.txt").write_text("1")
    assert read_sentences(folder.parent).sha256 != corpus.sha256


def test_the_identity_of_a_folder_changes_with_any_of_its_files(folder):
    before = read_sentences(folder).sha256
    assert read_sentences(folder).sha256 == before
    contents = {
        "test.gold.txt": "1",
        "test.data.txt": "0\tseal grey",
        "classes_map.txt": '{"0": "a", "1": "b"}',
    }
    for name, content in contents.items():
        (folder / name).write_text(content)
        assert read_sentences(folder).sha256 != before
        before = read_sentences(folder).sha256


@pytest.mark.parametrize("content", ["[]", '{"0": 1}', "{"])
def test_an_invalid_or_missing_class_map_is_refused(folder, content):
    path = folder / "classes_map.txt"
    path.write_text(content)
    assert fails(folder) == (
        f'Cannot read {path}: it is not a class map, expected a JSON object such as {{"0": '
        '"bank_bank"}. Restore the file.'
    )
    path.unlink()
    assert fails(folder) == (
        f"Cannot read the folder {folder}: classes_map.txt is missing, expected a CoarseWSD-20 word "
        "folder. Give such a folder, or a JSONL, CSV, TSV or Parquet file."
    )


def test_a_folder_without_sentences_or_without_classes_is_refused(folder):
    gold = folder / "test.gold.txt"
    gold.unlink()
    assert (
        fails(folder)
        == f"Cannot read sentences from {gold}: there is no such file. Give the path of {FORMS}."
    )
    gold.write_text("0\n0\n")
    assert fails(folder) == (
        f"Cannot read the word folder {folder}: test.data.txt has 1 lines and test.gold.txt 2, "
        "expected one class per sentence. Restore both files."
    )
    gold.write_text("0")
    (folder / "train.data.txt").unlink()
    assert len(read_sentences(folder).sentences) == 1
    (folder / "test.data.txt").unlink()
    assert fails(folder) == (
        f"Cannot read the word folder {folder}: it has neither train.data.txt nor test.data.txt, "
        "expected at least one. Give a complete CoarseWSD-20 word folder."
    )


THIRD = "expected one of the 3 words of the sentence"
NUMBER = "expected the number of a word, a tab and the sentence"


@pytest.mark.parametrize(
    ("name", "content", "flaw"),
    [
        ("gold", "2", "the class is '2', expected one of 0, 1"),
        ("data", "3\ta grey seal\n", f"the word is number 3 counted from 0, {THIRD}"),
        ("data", "a grey seal\n", f"got 'a grey seal', {NUMBER}"),
        ("data", "-1\ta grey seal\n", f"got '-1\\ta grey seal', {NUMBER}"),
    ],
)  # fmt: skip
def test_bad_lines_of_a_folder_are_reported(folder, name, content, flaw):
    (folder / f"test.{name}.txt").write_text(content)
    assert (
        fails(folder)
        == f"Cannot read {folder}, test.{name}.txt line 1: {flaw} (1 of 3 rows is bad). {AGAIN}"
    )


# --- real data sets, if available; the counts are from the lines of the files ---------------------


@pytest.mark.parametrize("word", ["apple", "bank", "crane", "mole", "seal"])
def test_coarsewsd20(word):
    folder = DATA / "coarsewsd20" / word
    if not folder.exists():
        pytest.skip(f"CoarseWSD-20 is not at {folder.parent}")
    corpus = read_sentences(folder)
    assert not corpus.left_out
    assert {sentence.text[sentence.start : sentence.end] for sentence in corpus.sentences} == {word}
    names = json.loads((folder / "classes_map.txt").read_text())
    for split in ("train", "test"):
        expected = Counter(
            names[label] for label in (folder / f"{split}.gold.txt").read_text().split()
        )
        assert (
            Counter(sentence.sense for sentence in corpus.sentences if sentence.split == split)
            == expected
        )


def test_homonyms():
    path = DATA / "homonyms" / "dev.jsonl"
    if not path.exists():
        pytest.skip(f"the homonym sentences are not at {path}")
    corpus = read_sentences(path)
    assert len(corpus.sentences) == path.read_text("utf-8").count("\n") and not corpus.left_out
    angle = read_sentences(path, word="angle")
    assert len(angle.sentences) + len(angle.left_out) == len(corpus.sentences)
    assert {sentence.sense for sentence in angle.sentences} >= {"1", "2"}
