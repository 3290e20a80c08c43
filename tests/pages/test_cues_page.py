"""The page of a cue scan, its folder, and its picture."""

import json

import numpy as np
import pandas as pd
import pytest
from browser import TOUCH, check_look, until
from inside import app, percent, strongest_cues
from page_text import check_charts, one_line
from seeds import mostly_campaign
from stored_study import stored_study
from typer.testing import CliRunner

import probe
from probe import InputError
from probe.charts import cues as picture
from probe.pages.cues import held_out_sentences

pytestmark = pytest.mark.slow

TEXTS = ("The river bank", "The loan bank")


@pytest.fixture(scope="module")
def scan():
    return probe.cues("tiny-senses", "bank", texts=TEXTS)


@pytest.fixture(scope="module")
def page(scan, tmp_path_factory):
    return probe.write(scan, tmp_path_factory.mktemp("cues"), command="probe cues bank")


def ends(*rows, **zero):
    """The two columns of words of some cues, as (cue, seen, coordinate)."""
    frame = pd.DataFrame(rows, columns=["cue", "seen", "coordinate"])
    words = strongest_cues(frame, 2, **zero)
    return [[each["word"] for each in side] for side in words]


def strongest_first(cues):
    """The cues that were not fitted, a row each."""
    unseen = cues[~cues["seen"]].drop_duplicates("cue")
    return unseen.sort_values("coordinate", ascending=False, kind="stable")


# --- the two columns ------------------------------------------------------------------------------


def test_each_column_has_its_strongest_unfitted_words_one_form_of_each():
    first, second = ends(
        *[("river", True, 0.9), ("Lake", False, 0.5), ("lake", False, 0.4), ("lakes", False, 0.3)],
        *[("pond", False, 0.2), ("the", False, 0), ("loan", False, -0.5)],
    )
    assert first == ["lake", "pond"] and second == ["loan", "the"]


def test_without_a_cue_that_moves_the_word_that_way_a_column_is_empty():
    words = [("lake", False, 0.5), ("pond", False, 0.3), ("the", False, 0.2)]
    assert ends(*words, zero=0.2) == [["lake", "pond"], []]
    assert ends(*words, zero=0.4) == [["lake"], ["the", "pond"]]


# --- the picture ----------------------------------------------------------------------------------


def test_names_do_not_overlap_in_a_wide_or_a_narrow_picture(scan):
    rows = picture.dots(scan.cues)
    [head] = {f"L{row.layer}H{row.head}" for row in scan.cues.head(1).itertuples()}
    across = picture.range_with_margin(rows["coordinate"])
    up = (0.0, float(rows[head].max()))
    names = picture.names_apart(rows, head, across, up, names=picture.NAMED)
    assert len(names) > 15 and 3 < names["narrow"].sum() < len(names)
    for width, visible_names in (
        (picture.WIDE, names),
        (picture.NARROW_WIDTH, names[names["narrow"]]),
    ):
        x = (visible_names["coordinate"] - across[0]).to_numpy() / (across[1] - across[0]) * width
        y = (1 - visible_names["attention"].to_numpy() / up[1]) * picture.HEIGHT
        half = picture.LETTER * visible_names["cue"].str.len().to_numpy() / 2
        side_by_side = np.abs(x[:, None] - x) >= half[:, None] + half - 1e-9
        above = np.abs(y[:, None] - y) >= picture.NAME_HEIGHT - 1e-9
        assert (side_by_side | above | np.eye(len(visible_names), dtype=bool)).all()


def test_a_vocabulary_of_any_size_is_drawn_completely():
    """Altair refuses tables of more than 5,000 rows by default."""
    count = 6000
    cues = pd.DataFrame({"cue": [f"word{number}" for number in range(count)], "seen": False})
    cues = cues.assign(coordinate=np.linspace(-1, 1, count), coordinate_sd=0.1, layer=0, head=1)
    spec = picture.cue_scatter(cues.assign(attention=0.5), ["a", "b"], without_cue=0.0).to_dict()
    [text] = [data for data in spec["datasets"].values() if isinstance(data, str)]
    rows = json.loads(text)
    assert len(rows) == count and rows[0] == ["word0", 0, -1, 0.1, 0.5]


# --- the folder -----------------------------------------------------------------------------------


def test_a_scan_is_written_with_its_tables_and_read_back(scan, page):
    names = {path.name for path in page.parent.iterdir()}
    assert page.name == "cues.html"
    assert {"tables.zip", "cues_heads.csv", "manifest.json"} <= names
    assert "cues.csv" not in names
    check_charts(page)
    again = probe.read(page.parent)
    for name, frame in scan.frames.items():
        pd.testing.assert_frame_equal(again.frames[name], frame)
    assert repr(again) == repr(scan)
    assert json.loads((page.parent / "manifest.json").read_text())["options"]["texts"] == list(
        TEXTS
    )


def test_a_notebook_shows_the_two_columns_and_the_picture(scan):
    html = scan._repr_html_()
    text = one_line(html)
    strongest = strongest_first(scan.cues)["cue"]
    assert strongest.iloc[0] in text and strongest.iloc[-1] in text
    assert "data:image" in html and "<script" not in html


# --- effects, and the names of two texts ----------------------------------------------------------


def test_the_page_lists_how_far_a_cue_moves_the_word_from_where_it_is_without_one(scan, page):
    strongest = strongest_first(scan.cues).iloc[0]
    zero = scan.summary["without_cue"]
    words = page.read_text().split('<section id="words">')[1].split("</section>")[0]
    first = one_line(words.split("<li>")[1].split("</li>")[0])
    assert first == f"{strongest['cue']} {percent(strongest['coordinate'] - zero)}"
    text = one_line(words)
    assert f"the text “The river bank” is at {percent(0.5 - zero)}" in text
    assert "toward “The loan bank”" in text


def test_the_meanings_of_two_texts_may_be_named(run, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("\n".join(cue for s in probe.lexicon.entry("bank").senses for cue in s.cues))
    options = ("--texts", *TEXTS, "--names", "water", "finance", "--cues", words)
    code, _, err = run("cues", "bank", *options, "--out", tmp_path / "out")
    assert code == 0, err
    assert "24 words to try as the cue, less than a minute." in err
    page = one_line((tmp_path / "out" / "cues.html").read_text())
    assert "toward water" in page and "water: “The river bank”; finance: “The loan bank”." in page
    assert probe.read(tmp_path / "out").senses == ("water", "finance")
    assert "--names water finance" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ("a", "b")}, "got names and no texts"),
        (
            {"names": ("a", "a"), "texts": TEXTS},
            r"got the names \('a', 'a'\), expected two different",
        ),
        ({"names": "ab", "texts": TEXTS}, "expected two different names"),
    ],
)
def test_names_that_name_nothing_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        probe.cues("tiny-senses", "bank", **options)


# --- held-out cue words ---------------------------------------------------------------------------

NUMBERS = {"auroc": 0.99643, "auroc_low": 0.98505, "auroc_high": 1.0, "held_out": 58}
AT_NOUNS = {"auroc_nouns": 0.98847, "auroc_nouns_min": 0.94174, "auroc_nouns_max": 1.0}
BY_EMBEDDING = {"auroc_embedding": 0.98335, "auroc_whitened": 0.99524}
OF_WORD = "AUROC of 58 held-out cue words: 0.996 [0.985, 1.000]; "
OF_NOUNS = (
    "at unambiguous nouns in the word's place, each along its own axis, 0.988 (0.942 to 1.000); "
)
OF_EMBEDDING = "by the cue's token embedding alone 0.983 (0.995 whitened over the vocabulary). Only"


def test_the_auroc_of_held_out_cue_words_has_its_baselines_next_to_it():
    numbers = NUMBERS | AT_NOUNS | BY_EMBEDDING
    assert held_out_sentences(numbers).startswith(OF_WORD + OF_NOUNS + OF_EMBEDDING)
    without_nouns = numbers | dict.fromkeys(AT_NOUNS, np.nan)
    assert held_out_sentences(without_nouns).startswith(OF_WORD + OF_EMBEDDING)
    assert held_out_sentences(dict.fromkeys(numbers, np.nan)) == ""


def test_no_headline_is_an_auroc(tmp_path):
    """The words and a head come first in the terminal; the page has the AUROC in its method only."""
    words = tmp_path / "words.txt"
    words.write_text("\n".join(cue for s in probe.lexicon.entry("bank").senses for cue in s.cues))
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["cues", "bank", "--cues", str(words), "--out", str(out)])
    assert result.exit_code == 0, result.output
    first, second = result.stderr.splitlines()[-2:]
    assert first.startswith("bank: moved farthest by ") and " of what the words do to it." in first
    assert second.startswith("AUROC of 24 held-out cue words: 1.000 [0.829, 1.000]; at unambiguous")
    assert result.stdout.strip() == str(out / "cues.html")
    page = (out / "cues.html").read_text()
    assert "AUROC" not in page.split("</header>")[0]
    method = page.split('<section id="method">')[1].split("</section>")[0]
    assert second.split(";")[0] in one_line(method)


# --- in a report ----------------------------------------------------------------------------------


def test_a_report_shows_the_words_of_its_sample_and_names_the_whole_scan(tmp_path):
    study = stored_study("bank")
    page = probe.write(study, tmp_path)
    summary = study.frames["cue_samples"].to_dict("records")[0]
    rows = study.frames["cue_sample"]
    strongest = strongest_first(rows)
    first, last = strongest.iloc[0], strongest.iloc[-1]
    section = one_line(
        page.read_text().split('<section id="cue_sample">')[1].split("</section>")[0]
    )
    assert first["cue"] in section and last["cue"] in section
    effect = percent(first["coordinate"] - summary["without_cue"])
    assert f"{first['cue']} {effect}" in section
    assert f"{summary['drawn']:,}".replace(",", "\u202f") in section
    assert "probe cues bank" in section


def test_a_report_without_cue_samples_has_no_such_section(tmp_path):
    page = probe.write(stored_study("window"), tmp_path).read_text(encoding="utf-8")
    assert "Other cues" not in page


# --- opened ---------------------------------------------------------------------------------------


def test_the_search_finds_a_word_by_its_beginning(shared_page, page):
    opened = shared_page(page, **TOUCH).page
    marked = "#scatter .mark-text.role-mark text"
    [*before, middle] = sorted(
        opened.locator(marked).all_text_contents(), key="without a cue".__eq__
    )
    assert middle == "without a cue"
    opened.fill("#scatter input[type=search]", "ferr")
    until(opened, "document.querySelectorAll('#scatter .mark-text.role-mark text').length < 10")
    after = [word for word in opened.locator(marked).all_text_contents() if word != middle]
    assert len(before) > 10 and after and all(word.lower().startswith("ferr") for word in after)
    opened.fill("#scatter input[type=search]", "zyzzy")
    until(opened, "document.querySelector('#scatter').textContent.includes('zyzzy')")
    texts = opened.locator(marked).all_text_contents()
    assert sorted(texts) == [middle, "“zyzzy” is not in the vocabulary"]


@pytest.mark.parametrize("options", mostly_campaign([TOUCH, {}]), ids=["narrow", "wide"])
def test_the_page_draws_fits_and_sends_no_requests(shared_page, page, options):
    # Last, because it changes the shared page.
    check_look(shared_page(page, **options), page)


def test_a_word_and_its_capitalised_form_share_one_dot(scan):
    rows = picture.dots(scan.cues)
    words = set(scan.cues["cue"])
    assert {"The", "the"} <= words
    assert "the" in set(rows["cue"]) and "The" not in set(rows["cue"])
    assert set(rows["cue"].str.lower()) == {word.lower() for word in words}


def test_every_column_is_described(scan, page):
    described = pd.read_csv(page.parent / "cues_columns.csv")
    for name in ("cues", "cues_heads", "cues_nouns", "cues_summary"):
        assert set(scan.frames[name]) == set(described[described["table"] == name]["column"])
    assert (described["meaning"].str.len() > 0).all()
