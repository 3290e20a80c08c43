"""The animation: drawn from the stored table, small and without a script; the table agrees with
`probe.patch` and `probe.trace`."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import drawing
import pandas as pd
import pytest
from kept import require_same
from packaged import need_smollm2

import probe

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "analyses" / "a_word_in_motion.py"
TABLE = ROOT / "reports" / "real" / "a_word_in_motion.csv"
PICTURE = TABLE.with_suffix(".svg")
LARGEST = 400_000  # bytes
SMALLEST_TEXT = 11  # pixels, if the picture is WIDTH wide
WIDTH = 358
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.read_csv(TABLE)


def test_the_stored_picture_is_drawn_from_the_stored_table(table):
    note = re.search(r'^NOTE = "(.+)"$', SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert PICTURE.read_text(encoding="utf-8") == drawing.word_in_motion(table, note, " and the")


def test_a_picture_shows_the_numbers_of_its_table(table):
    changed = table.copy()
    is_end = changed["head"].notna() & (changed["depth"] == 6)
    changed.loc[is_end, "value"] = changed["value"].max()  # as if the swap had no effect
    changed.loc[changed["token"].notna() & changed["head"].notna(), "value"] = 0.03
    picture = drawing.word_in_motion(changed, "", " and the")
    assert "36\N{NARROW NO-BREAK SPACE}% of the gap" in PICTURE.read_text(encoding="utf-8")
    assert "0\N{NARROW NO-BREAK SPACE}% of the gap" in picture
    assert picture.count("to 3.00\N{NARROW NO-BREAK SPACE}%") == 4


def test_it_is_small_and_has_no_script_and_no_requests():
    text = PICTURE.read_text(encoding="utf-8")
    assert PICTURE.stat().st_size < LARGEST
    root = ElementTree.fromstring(text)
    names = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not names & {"script", "foreignObject", "image", "use", "a"}
    addresses = re.findall(r"https?://[^\"]+", text)
    assert addresses == ["http://www.w3.org/2000/svg"] and "url(" not in text
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)


def test_its_texts_are_readable_and_it_respects_reduced_motion():
    text = PICTURE.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert int(root.attrib["width"]) == WIDTH
    sizes = [int(size) for size in re.findall(r"font(?:-size)?: ?(\d+)px", text)]
    assert len(sizes) > 2 and min(sizes) >= SMALLEST_TEXT
    still, _, moving = text.partition("@media (prefers-reduced-motion: no-preference)")
    assert "animation:" not in still and "animation:" in moving
    assert root.find(f"{SVG}title").text and root.find(f"{SVG}desc").text


def test_the_claim_of_the_script_agrees_with_the_table(table):
    (claim,) = re.findall(r"^# Shown: (.+)$", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    assert f"by {round(100 * effect_of(table))} % of the gap" in claim


def effect_of(table: pd.DataFrame) -> float:
    """How far the swap moves the word, as a fraction of the gap."""
    first, second, patched = table[table["depth"] == 6]["value"]
    return (first - patched) / (first - second)


@pytest.fixture(scope="module")
def smollm2():
    need_smollm2()
    return probe.load("smollm2")


@pytest.mark.campaign
@pytest.mark.real_model
def test_its_numbers_agree_with_patch_and_trace(table, smollm2):
    shipped = [
        sentence
        for sentence in probe.lexicon.expand_natural("bank").sentences
        if not sentence.cue_after
    ]
    texts = pd.DataFrame(
        [(sentence.pair, sentence.sense, sentence.text[: sentence.end]) for sentence in shipped]
    )
    pairs = texts.pivot(index=0, columns=1, values=2)
    first, second = table["text"].drop_duplicates()
    effects = probe.patch(
        smollm2, pairs["river"].tolist(), against=pairs["money"].tolist(), at="bank", depth=6
    )
    number = list(zip(pairs["river"], pairs["money"], strict=True)).index((first, second))
    row = effects.set_index(["pair", "layer", "head"]).loc[number, 4, 1]
    at_end = table[table["depth"] == 6]["value"].tolist()
    assert at_end[0] - at_end[1] == pytest.approx(row.gap, abs=1e-4)
    assert at_end[0] - at_end[2] == pytest.approx(row.noise, abs=1e-4)
    for text in (first, second):
        probabilities = probe.trace(smollm2, f"{text} and the").logits[-1].double().softmax(-1)
        rows = table[table["token"].notna() & table["head"].isna() & (table["text"] == text)]
        for token, value in zip(rows["token"], rows["value"], strict=True):
            (token_id,) = smollm2.tokenizer(token, add_special_tokens=False)["input_ids"]
            assert value == pytest.approx(float(probabilities[token_id]), abs=1e-5)


@pytest.mark.campaign
@pytest.mark.real_model
def test_it_reproduces_the_stored_table_and_picture(tmp_path, smollm2):
    process = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PROBE_OUT": str(tmp_path)},
    )
    assert process.returncode == 0, process.stderr
    require_same(tmp_path / TABLE.name, TABLE)
    assert (tmp_path / PICTURE.name).exists()
