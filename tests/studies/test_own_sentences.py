"""A file as a linguist would write it: 34 natural sentences with one word, with the cues as words,
two of them late. Two commands lead from the file to the page."""

import re

import pandas as pd
import pytest
from inside import LATE

NOTE = """\
word,sense,text,cue
note,music,The soprano held the last note until the lights went down.,soprano
note,music,On the old piano every second note was out of tune.,piano
note,music,The trumpet cracked on the highest note of the solo.,trumpet
note,music,He hummed a low note to find the key.,hummed
note,music,Her violin teacher made her repeat each note twenty times.,violin
note,music,The choir came in on the wrong note and had to start again.,choir
note,music,An organ pipe can sound one note for as long as there is air.,organ
note,music,The guitarist bent the string until the note began to wail.,string
note,music,We clapped when the flute reached the final note.,flute
note,music,The melody ends on the note it began with.,melody
note,music,His whistle dropped by half a note and the dog turned round.,whistle
note,music,The cellist let the open note ring.,cellist
note,music,In the second bar of the song the note is tied over.,song
note,music,The conductor asked the horns for a softer note.,horns
note,music,A bell gave a single clear note across the valley.,bell
note,music,The tenor missed a note and nobody heard it.,tenor
note,music,That note is a B flat.,B flat
note,message,She left a scribbled note on the kitchen table.,scribbled
note,message,The teacher pinned a handwritten note to my essay.,handwritten
note,message,My neighbour pushed an apologetic note under the door.,apologetic
note,message,He read the envelope first and then the note inside it.,envelope
note,message,The kidnappers sent a typed note to the family.,typed
note,message,In the margin the editor pencilled a short note about the date.,pencilled
note,message,The nurse signed the note and filed it.,signed
note,message,A yellow sticker held the note to the fridge.,sticker
note,message,The pupil passed a folded note along the row.,folded
note,message,I found a thank-you card and a note from my aunt.,card
note,message,The secretary dictated a note to all departments.,dictated
note,message,His doctor wrote him a note for school.,wrote
note,message,They stapled a note to the parcel.,stapled
note,message,The letter came with a note in another hand.,letter
note,message,Someone had torn the paper so that half of the note was gone.,paper
note,message,With the invoice there was a polite note about the delay.,invoice
note,message,This note came from the landlord.,landlord
"""
LATE_ONES = ["That note is a B flat.", "This note came from the landlord."]
TWO_LATE = (
    "probe: In 2 of 34 sentences, the cue is after the word, where this model cannot have read it "
    "yet. They are left out."
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("note")
    (path / "note.csv").write_text(NOTE, encoding="utf-8")
    return path


def test_the_dry_run_says_what_is_left_out_and_that_cues_are_marked(run, folder):
    code, out, err = run("report", "note", "--sentences", folder / "note.csv", "--dry-run")
    assert code == 0 and TWO_LATE in err.splitlines()
    assert f"note: 2 sentences left out: {LATE}." in out.splitlines()
    assert out.startswith("note, music / message: 16 and 16 sentences without pairs, ")
    assert "with 16 pairs of cue words" in out or "16 pairs are drawn" in out
    assert "no cue is marked" not in out + err and "is not read" not in err


def test_the_page_lists_the_misread_sentences_and_an_evaluation_has_the_same(run, folder):
    options = ["--sentences", folder / "note.csv", "--out", folder / "out", "--permutations", 99]
    code, out, err = run("report", "note", "--only", "heads", "--tables", *options)
    assert code == 0 and out.strip() == str(folder / "out" / "ambiguity.html"), err
    assert TWO_LATE in err
    predictions = pd.read_csv(folder / "out" / "predictions.csv")
    assert len(predictions) == 32 and not set(LATE_ONES) & set(predictions["text"])
    left_out = pd.read_csv(folder / "out" / "left_out.csv")
    assert left_out["where"].tolist() == LATE_ONES and set(left_out["reason"]) == {LATE}
    music = predictions["sense"] == "music"
    toward = predictions["coordinate"].where(music, -predictions["coordinate"])
    assert (predictions["right"] == (toward > 0)).all()
    page = (folder / "out" / "ambiguity.html").read_text(encoding="utf-8")
    section = re.search('<section id="otherwise">.*?</section>', page, re.DOTALL)[0]
    listed = re.findall(r'<td dir="auto">(.*?)</td>', section)
    wrong = predictions[~predictions["right"]]
    assert 0 < len(wrong) < 32
    clearest = wrong["coordinate"].abs().sort_values(ascending=False, kind="stable").index
    assert [re.sub("<[^>]+>", "", text) for text in listed] == list(wrong["text"].loc[clearest])
    assert f"{32 - len(wrong)} of 32 sentences are read as labelled" in section

    options = ["--sentences", folder / "note.csv", "--out", folder / "evaluation"]
    code, _, err = run("evaluate", "note", *options)
    assert code == 0 and TWO_LATE in err
    sentences = pd.read_csv(folder / "evaluation" / "evaluation_sentences.csv")
    assert set(sentences["text"]) == set(predictions["text"])


@pytest.mark.parametrize("command", ["report", "evaluate"])
def test_unread_columns_are_named_and_a_cue_that_is_not_in_its_text_stops(run, folder, command):
    file = folder / "wrong.csv"
    file.write_text(NOTE.replace("the solo.,trumpet", "the solo.,trombone"), encoding="utf-8")
    code, out, err = run(command, "note", "--sentences", file)
    assert (code, out) == (2, "")
    assert err.startswith(
        f"probe: Cannot read {file}, line 4: the text has the cue 'trombone' nowhere, "
    )
    if command == "report":
        file.write_text(NOTE.replace("text,cue", "text,cues"), encoding="utf-8")
        _, _, err = run(command, "note", "--sentences", file, "--dry-run")
        assert "probe: The column 'cues' is not read (did you mean 'cue'?)." in err.splitlines()
        assert "In 2 of 34 sentences, at most two words precede the word, and no cue is" in err
