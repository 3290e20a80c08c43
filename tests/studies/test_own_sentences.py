"""A file as a linguist would write it: 34 natural sentences with one word, with the cues as words,
two of them late. Two commands lead from the file to the page."""

import re

import pandas as pd
import pytest
from embedded import embedded
from measured import studied, table_of

import probe
from probe.experiments.material import LATE, prepare
from probe.experiments.observe import split_senses
from probe.model.trace import target_states

pytestmark = pytest.mark.real_model

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
EARLY = (
    "probe: In 2 of 34 sentences, at most two words precede the word, and no cue is marked. This "
    "model may have read no cue there. Mark the cues in a column 'cue', so that sentences with a "
    "later cue are left out."
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


def test_every_sentence_has_a_coordinate_and_the_page_lists_the_misread_ones(run, folder):
    options = ["--sentences", folder / "note.csv", "--out", folder / "out"]
    code, out, err = run("report", "note", *options)
    assert code == 0 and out.strip() == str(folder / "out" / "ambiguity.html"), err
    assert TWO_LATE in err
    predictions = pd.read_csv(folder / "out" / "predictions.csv")
    assert len(predictions) == 32 and not set(LATE_ONES) & set(predictions["text"])
    left_out = pd.read_csv(folder / "out" / "left_out.csv")
    assert left_out["where"].tolist() == LATE_ONES and set(left_out["reason"]) == {LATE}
    toward = predictions["coordinate"].where(
        predictions["sense"] == "music", -predictions["coordinate"]
    )
    assert (predictions["right"] == (toward > 0)).all()
    page = (folder / "out" / "ambiguity.html").read_text(encoding="utf-8")
    section = re.search('<section id="otherwise">.*?</section>', page, re.DOTALL)[0]
    listed = re.findall(r'<td dir="auto">(.*?)</td>', section)
    wrong = predictions[~predictions["right"]]
    assert 0 < len(wrong) < 32
    clearest = wrong["coordinate"].abs().sort_values(ascending=False, kind="stable").index
    assert [re.sub("<[^>]+>", "", text) for text in listed] == list(wrong["text"].loc[clearest])
    assert f"{32 - len(wrong)} of 32 sentences are read as labelled" in section
    assert probe.read(folder / "out").predictions["text"].tolist() == list(predictions["text"])


def test_the_coordinate_is_along_an_axis_fitted_without_the_sentence_and_its_cue(folder):
    model = embedded()
    sentences = probe.read_sentences(folder / "note.csv").sentences
    material = prepare(model, sentences[0].word, sentences)
    record = studied(model, material, nouns=())
    [split] = split_senses(material, seed=0, causal=True).values()
    resid = target_states(model, material.tokens, material.targets).resid
    resid = resid[:, record.depth].double()
    coordinates = table_of(record, "predictions")["coordinate"]
    for position, coordinate in zip(split.tested, coordinates, strict=True):
        [holdout] = [each for each in split.holdouts if position in each.test]
        rows = {True: [], False: []}
        for learned in holdout.train:
            rows[split.is_a[learned]].append(split.rows[learned])
        sentence = material.sentences[split.rows[position]]
        learned_cues = {material.sentences[row].cue_word for row in (*rows[True], *rows[False])}
        assert sentence.cue_word not in learned_cues
        mean_a, mean_b = (resid[rows[is_a]].mean(0) for is_a in (True, False))
        axis = mean_a - mean_b
        offset = resid[split.rows[position]] - (mean_a + mean_b) / 2
        assert coordinate == pytest.approx(float(offset @ axis / axis.square().sum()), abs=1e-5)


def test_without_cues_the_short_beginnings_are_counted_and_other_columns_named(run, folder):
    table = pd.read_csv(folder / "note.csv").rename(columns={"cue": "cues"})
    table.assign(source="mine").to_csv(folder / "plain.csv", index=False)
    _, _, err = run("report", "note", "--sentences", folder / "plain.csv", "--dry-run")
    notes = [line for line in err.splitlines() if line.startswith("probe: ")]
    assert notes == [
        "probe: The column 'cues' is not read (did you mean 'cue'?).",
        "probe: The column 'source' is not read.",
        EARLY,
    ]


def test_an_evaluation_gives_the_same_sentences(run, folder):
    options = ["--sentences", folder / "note.csv", "--out", folder / "evaluation"]
    code, _, err = run("evaluate", "note", *options)
    assert code == 0 and TWO_LATE in err
    sentences = pd.read_csv(folder / "evaluation" / "evaluation_sentences.csv")
    assert len(sentences) == 32 and not set(LATE_ONES) & set(sentences["text"])


@pytest.mark.parametrize("command", ["report", "evaluate"])
def test_a_cue_that_is_not_in_its_text_stops_with_file_and_line(run, folder, command):
    file = folder / "wrong.csv"
    file.write_text(NOTE.replace("the solo.,trumpet", "the solo.,trombone"), encoding="utf-8")
    code, out, err = run(command, "note", "--sentences", file)
    assert (code, out) == (2, "")
    assert err.startswith(
        f"probe: Cannot read {file}, line 4: the text has the cue 'trombone' nowhere, "
    )
