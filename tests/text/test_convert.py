"""Conversion of public data sets: a small file for every format, and RAW-C if it is available."""

import codecs
import json
from pathlib import Path

import pytest

import probe
from probe.errors import InputError
from probe.text.convert import (
    CONTRADICTED,
    NO_LABEL,
    NO_SENSE,
    NOT_ONE_HEAD,
    NOT_RELATED,
    SEVERAL_SENSES,
    convert,
    write_sentences,
)

DATA = Path(__file__).parents[3] / "shared" / "data"
LEXICAL_SAMPLE = """<?xml version="1.0"?>
<corpus lang="english"><lexelt item="note.n">
<instance id="note.1"><answer instance="note.1" senseid="music"/><context>
 She played  a <sat id="s">high</sat> <head sats="s"> notes</head>, &amp; left. </context></instance>
<instance id="note.2"><answer senseid="music"/><answer senseid="paper"/>
<context>A <head>note</head></context></instance>
<instance id="note.3"><answer senseid="U"/><context>A <head>note</head></context></instance>
<instance id="note.4"><answer senseid="music"/><context>No head</context></instance>
<instance id="note.5"><context>A second <head>note</head></context></instance>
</lexelt></corpus>"""
UFSAC = """<corpus><document><paragraph><sentence>
<word surface_form="He" lemma="he"/><word surface_form="wrote" lemma="write" wn30_key="a;b"/>
<word surface_form="Notes" lemma="note" wn16_key="old" wn30_key="note%1:10:00::"/>
</sentence></paragraph></document></corpus>"""
FRAMEWORK = """<corpus><text id="d0"><sentence id="d0.s0"><wf lemma="the">The</wf>
<instance id="d0.s0.t0" lemma="note">note</instance><wf>rang</wf>
<instance id="d0.s0.t1" lemma="out">out</instance></sentence></text></corpus>"""


def rows_of(corpus):
    return [(row.word, row.sense, row.text, row.form) for row in corpus.sentences]


def left_out(corpus):
    return [(item.where, item.reason) for item in corpus.left_out]


def fails(*arguments):
    message = str(pytest.raises(InputError, convert, *arguments).value)
    assert "\n" not in message and message.endswith(".")
    return message


# --- XML ------------------------------------------------------------------------------------------


def test_a_lexical_sample_has_one_head_and_one_sense_per_instance(tmp_path):
    file = tmp_path / "train.xml"
    file.write_text(LEXICAL_SAMPLE)
    corpus = convert(file)
    assert rows_of(corpus) == [("note", "music", "She played a high notes, & left.", "notes")]
    assert left_out(corpus) == [
        ("note.4", NOT_ONE_HEAD),
        ("note.2", SEVERAL_SENSES),
        ("note.3", NO_SENSE),
        ("note.5", NO_SENSE),
    ]
    (tmp_path / "train.key").write_text("note.n note.5 paper\n")
    assert rows_of(convert(file))[1] == ("note", "paper", "A second note", "note")


def test_the_words_of_ufsac_have_their_lemma_and_the_latest_key(tmp_path):
    file = tmp_path / "semcor.xml"
    file.write_text(UFSAC)
    corpus = convert(file)
    assert rows_of(corpus) == [("note", "note%1:10:00::", "He wrote Notes", "Notes")]
    assert left_out(corpus) == [("He wrote Notes", SEVERAL_SENSES)]
    assert rows_of(convert(file, ["note"])) == rows_of(corpus)
    assert not convert(file, ["note"]).left_out
    assert "it has no labelled sentence of mole" in fails(file, ["mole"])


def test_the_senses_of_the_evaluation_framework_are_in_its_key_file(tmp_path):
    file = tmp_path / "all.data.xml"
    file.write_text(FRAMEWORK)
    assert "(2 left out: it has no sense label)" in fails(file)
    (tmp_path / "all.gold.key.txt").write_text("d0.s0.t0 music\nd0.s0.t1 x y\n")
    corpus = convert(file)
    assert rows_of(corpus) == [("note", "music", "The note rang out", "note")]
    assert left_out(corpus) == [("d0.s0.t1", SEVERAL_SENSES)]


def test_malformed_xml_is_refused_with_its_line(tmp_path):
    file = tmp_path / "train.xml"
    file.write_text(LEXICAL_SAMPLE.replace("&amp;", "&"))
    assert fails(file).startswith(f"Cannot convert {file}, line 4: it is not well-formed XML (")


# --- pairs ----------------------------------------------------------------------------------------

A, B, C, D = (f"{word} note rang" for word in ("one", "two", "three", "four"))


def wic(folder, pairs, part="train"):
    """Writes a part of WiC, its data and its labels, and returns the data file."""
    lines = [f"note\tN\t1-1\t{first}\t{second}\n" for first, second, _ in pairs]
    (folder / f"{part}.data.txt").write_text("".join(lines))
    (folder / f"{part}.gold.txt").write_text("".join(f"{label}\n" for *_, label in pairs))
    return folder / f"{part}.data.txt"


@pytest.mark.parametrize(
    ("pairs", "senses", "reasons"),
    [
        ([(A, B, "T"), (B, C, "F")], {A: "1", B: "1", C: "2"}, {}),
        # "Same" is transitive: A and D have one sense, and B has another.
        ([(A, C, "T"), (C, D, "T"), (D, B, "F")], {A: "1", C: "1", D: "1", B: "2"}, {}),
        # B is not compared with C or D.
        ([(A, B, "F"), (C, D, "T"), (C, A, "F")], {A: "1", C: "2", D: "2"}, {B: NOT_RELATED}),
        ([(A, B, "F"), (B, C, "F"), (C, A, "F")], {A: "1", B: "2", C: "3"}, {}),
        ([(A, B, "T"), (B, A, "F"), (C, D, "F")], {C: "1", D: "2"}, dict.fromkeys((A, B), CONTRADICTED)),
    ],
)  # fmt: skip
def test_senses_follow_only_from_the_labels_of_pairs(tmp_path, pairs, senses, reasons):
    corpus = convert(wic(tmp_path, pairs))
    assert {row.text: row.sense for row in corpus.sentences} == senses
    assert {row.form for row in corpus.sentences} == {"note"}
    assert dict(left_out(corpus)) == reasons


def test_the_parts_of_a_folder_are_read_together(tmp_path):
    wic(tmp_path, [(A, B, "T")])
    wic(tmp_path, [(B, C, "F")], part="dev")
    assert {row.text: row.sense for row in convert(tmp_path).sentences} == {A: "1", B: "1", C: "2"}


PAIR = {"word": "note", "sentence1": "Note the note", "sentence2": "A note", "label": False}
PAIR |= {"start1": 9, "end1": 13, "start2": 2, "end2": 6, "idx": 0, "version": 1.1}


def test_the_pairs_of_superglue_have_positions_and_labels(tmp_path):
    file = tmp_path / "train.jsonl"
    unlabelled = {name: value for name, value in PAIR.items() if name != "label"}
    unlabelled["sentence2"] = "1 note"
    file.write_text(f"{json.dumps(PAIR)}\n{json.dumps(unlabelled)}\n")
    corpus = convert(file)
    assert rows_of(corpus) == [
        ("note", "1", "Note the note", "note"),
        ("note", "2", "A note", "note"),
    ]
    assert corpus.sentences[0].start == 9
    assert [reason for _, reason in left_out(corpus)] == [NO_LABEL, NO_LABEL]


def test_a_table_of_pairs_is_read_with_the_form_of_the_word(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text(
        "word,string,sentence1,sentence2,same\nnote,noted,We noted it,She noted well,False\n"
    )
    assert [(row.word, row.form) for row in convert(file).sentences] == [("note", "noted")] * 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", "[]", "line 1: it is not a JSON object"),
        ("x.jsonl", json.dumps(PAIR | {"label": "maybe"}), "line 1: the label is 'maybe', expected one of t, "),
        ("x.jsonl", json.dumps(PAIR | {"word": ""}), "line 1: word is missing"),
        ("x.jsonl", json.dumps(PAIR | {"start1": 90, "end1": 95}), "line 1: sentence1 has no word at 90 to 95"),
        ("x.csv", "word,sentence1,sentence2,same\nnote,A,note,1\n", "line 2: sentence1 has 'note' 0 times, expected"),
        ("x.data.txt", "note\tN\t1\ta note\ta note", "line 1: expected word, part of speech, 1-2, text and text"),
        ("x.data.txt", "note\tN\t1-7\ta note\ta note", "line 1: the word is number 7, and the text has 2 words"),
    ],
)  # fmt: skip
def test_a_bad_pair_is_named_with_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    (tmp_path / "x.gold.txt").write_text("T\n")
    assert fails(tmp_path / name).startswith(f"Cannot convert {tmp_path / name}, {message}")


def test_unknown_files_are_refused_with_the_known_formats(tmp_path):
    assert "no file in it ends in .data.txt. Give a folder or file of WiC" in fails(tmp_path)
    assert "does not have a known ending. Give a folder or file of WiC" in fails(tmp_path / "x.txt")
    assert "x.gold.txt with the labels is not next to it" in fails(tmp_path / "x.data.txt")
    for name in ("x.xml", "x.jsonl"):
        assert str(tmp_path / name) in fails(tmp_path / name)


# --- output ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_written_sentences_are_read_back(tmp_path, name):
    corpus = convert(wic(tmp_path, [(A, B, "T"), (B, C, "F")]))
    file = write_sentences(corpus, tmp_path / name)
    assert probe.read_sentences(file).sentences == corpus.sentences
    with pytest.raises(InputError) as refused:
        write_sentences(corpus, file)
    assert str(refused.value) == (
        f"Cannot write {file}: it exists already. Choose another file (--out)."
    )


def test_the_command_writes_a_file_and_counts_what_is_left_out(run, tmp_path):
    wic(tmp_path, [(A, B, "F"), (C, D, "T"), (C, A, "F")])
    out = tmp_path / "note.csv"
    code, output, messages = run("convert", tmp_path, "note", "--out", out)
    assert code == 0 and output == f"{out}\n"
    assert messages.splitlines() == [
        "probe: 3 sentences of 1 words, 1 of them with two senses or more.",
        f"probe: 1 left out: {NOT_RELATED}.",
    ]


def test_raw_c():
    file = DATA / "raw-c" / "raw-c.csv"
    if not file.is_file():
        pytest.skip(f"RAW-C is not at {file.parent}")
    corpus = convert(file)
    assert len(corpus.by_word()) == 112 and not corpus.left_out
    for rows in corpus.by_word().values():
        assert sorted(row.sense for row in rows) == ["1", "1", "2", "2"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_in_utf16_is_read_as_one_in_utf8(tmp_path, encoding):
    pair = PAIR | {"sentence2": "Una note è già"}
    mark = b"" if encoding == "utf-16" else codecs.BOM_UTF16_BE
    plain, wide = tmp_path / "plain.jsonl", tmp_path / "wide.jsonl"
    text = json.dumps(pair | {"start2": 4, "end2": 8}, ensure_ascii=False) + "\r\n"
    plain.write_bytes(text.encode())
    wide.write_bytes(mark + text.encode(encoding))
    assert convert(wide).sentences == convert(plain).sentences
