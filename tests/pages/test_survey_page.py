"""The page of a survey: correct sentences about planted effects, in one file that is complete or
absent. In a browser it draws, fits and sends no requests."""

import hashlib
import io
import json
from dataclasses import replace
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
from browser import TOUCH, check_look, check_meanings, unfold
from example_survey import make_survey
from inside import (
    axis_of_lines,
    carried_set,
    environment,
    html_of,
    names_of,
    place,
    texts,
    top_over_words,
    write_surveys,
)
from made_words import effects_of
from page_text import check_charts, one_line, pasted
from seeds import mostly_campaign

import probe
from probe import InputError

HOSTILE = '<img src=x onerror="window.canary = 1">'
NARROW = "\u202f"


def sentence_of(survey, name):
    """The text of a macro of the sentences for a survey."""
    module = environment("survey", "report").get_template("survey_sentences.html.j2").module
    model = {"headline": [survey.model_name], "beside_nouns": []}[name]
    return one_line(getattr(module, name)(*model, survey.frames))


def page_of(survey, out, **more):
    return write_surveys([survey], out, **more).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def survey():
    return make_survey()


@pytest.fixture(scope="module")
def survey_page(survey, tmp_path_factory):
    return probe.write(survey, tmp_path_factory.mktemp("survey"), command="probe survey")


# --- sentences ------------------------------------------------------------------------------------


MOVED = "ambiguous words are moved from one meaning to the other by"


def test_the_headline_names_a_head_that_is_certainly_first(survey):
    assert sentence_of(survey, "headline").startswith(
        f"In smollm2, 24 {MOVED} 3 of 12 attention heads, furthest by L0H1: 29{NARROW}% ["
    )


def test_heads_with_overlapping_ranks_are_named_without_an_order():
    alike = make_survey(heads={"L0H1": 0.2, "L1H2": 0.2}, nouns={"L0H1": 0.2})
    headline = sentence_of(alike, "headline")
    assert (
        "which moves them furthest is not certain: L" in headline and "furthest by" not in headline
    )
    assert ", L" in headline


def test_the_headline_speaks_of_meaning_only_if_words_change_more_than_nouns(survey):
    frames = dict(survey.frames)
    model = frames["survey_model"]
    frames["survey_model"] = model.assign(ambiguity_p=0.2)
    context = replace(survey, frames=frames)
    assert "moved from one context to the other" in sentence_of(context, "headline")
    assert sentence_of(context, "beside_nouns").startswith(
        "We found no difference between these words"
    )
    assert sentence_of(survey, "beside_nouns") == (
        "In the same sentences, unambiguous nouns change less: these words change 2.2 times as far."
    )


def facts_of(survey):
    """The facts of a survey, by label."""
    facts = environment("survey", "report").get_template("survey_facts.txt.j2").module.FACTS
    [numbers] = survey.frames["survey_model"].itertuples()
    return texts({"numbers": numbers, "frames": survey.frames, "natural": None}, facts)


def test_the_facts_name_the_heads_and_what_they_do_for_nouns(survey):
    rows = facts_of(survey)
    assert rows["heads that move words"] == f"3 (25.0{NARROW}%)"
    assert rows["more for ambiguous words than for unambiguous nouns"] == "L1H2, L1H3"
    assert rows["about as much for both"] == "L0H1" and rows["undecided"] == ""
    assert rows["heads of other words keep, of a word's gap [95 %]"].endswith(" with 4 heads")
    assert rows["random heads of these layers keep"].startswith("1")
    # Of three planted heads two attend to the cue; a head that moves nothing attends most.
    attending = make_survey(attention=effects_of(L0H1=0.5, L1H2=0.4, L2H0=0.9))
    assert facts_of(attending)["of these, among as many that attend to the cue most"] == "2"
    assert rows["of these, among as many that attend to the cue most"] == ""


def test_the_page_has_charts_of_the_schema_and_a_notebook_has_the_map(survey, survey_page):
    check_charts(survey_page)
    text = one_line(survey_page.read_text(encoding="utf-8"))
    assert "The words' gaps against relatedness: Spearman's ρ =" in text
    html = html_of(survey)
    assert survey._repr_html_() == html
    assert "furthest by L0H1" in html and 'src="data:image/png' in html and "<script" not in html


def test_words_without_a_gap_have_no_ranks_and_the_page_suggests_a_next_step(tmp_path):
    no_gap = make_survey(gap=0.0, noise=0.3)
    text = page_of(no_gap, tmp_path)
    assert "no head is ranked: over 24 ambiguous words we found no change" in one_line(text)
    assert "No head is ranked." in text and "probe survey --sentences FILE" in text
    for section in ('id="words"', 'id="every-head"', 'id="numbers"'):
        assert section not in text
    assert "resolve" not in text.partition("<main>")[0]


def test_natural_text_is_on_the_page_if_it_was_measured(survey, tmp_path):
    assert 'id="natural"' not in page_of(survey, tmp_path)
    rows = []
    for word, depth in (("bank", 2), (None, 2), (None, None)):
        for kind in ("mean", "swap"):
            row = {"word": word, "kind": kind, "depth": depth, "accuracy": 0.85}
            row |= {"accuracy_without": 0.72, "fall": 0.13, "fall_low": 0.1, "fall_high": 0.16}
            rows.append(row | {"random_sets": 20, "random_fall": 0.01, "random_most": 0.03})
    pd.DataFrame(rows).to_csv(tmp_path / "evaluation_without.csv", index=False)
    (tmp_path / "manifest.json").write_text(json.dumps({"without": ["L4H1", "L4H2"]}))
    for _ in range(2):  # the second time the manifest belongs to the page
        text = one_line(page_of(survey, tmp_path))
        assert "Taken out at the word: L4H1 and L4H2." in text
        plain = text.replace(" <", "<")
        assert f"accuracy on natural text85.0{NARROW}%" in plain
        assert f"accuracy without these heads (their mean)72.0{NARROW}% (L4H1 and L4H2)" in plain
        assert "random sets of these layers cost at most3.0 points" in plain
        assert (
            f"mean of wordstheir mean85.0{NARROW}%72.0{NARROW}%13.0 [10.0, 16.0]1.03.0"
            in text.replace(" <", "<")
        )


# --- lines, tables, files -------------------------------------------------------------------------


def test_the_tables_are_in_the_folder_of_the_page_and_are_described(survey, survey_page):
    folder = survey_page.parent
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert survey_page.name == "survey.html" and manifest["command"] == "probe survey"
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    with ZipFile(folder / "tables.zip") as archive:
        rows = pd.read_parquet(io.BytesIO(archive.read("survey_word_heads.parquet")))
    assert len(rows) == 24 * 12 and not (folder / "survey_word_heads.csv").exists()
    heads = pd.read_csv(folder / "survey_heads.csv")
    sums = rows.groupby(["layer", "head"])[["net", "gap"]].sum()
    np.testing.assert_allclose(sums["net"] / sums["gap"], heads["effect"], atol=1e-5)
    described = pd.read_csv(folder / "survey_columns.csv")
    for name in manifest["files"]:
        table, ending = name.split(".")
        if ending != "csv" or table == "survey_columns":
            continue
        columns = set(pd.read_csv(folder / name).columns) - {"relatedness"}
        assert columns <= set(described.loc[described["table"] == table, "column"]), name


def test_the_same_survey_gives_the_same_bytes(survey, survey_page, tmp_path):
    again = probe.write(survey, tmp_path, command="probe survey").parent
    for file in survey_page.parent.iterdir():
        if file.name != "manifest.json":
            assert file.read_bytes() == (again / file.name).read_bytes(), file.name


def test_a_failed_page_leaves_no_files(survey, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="expected a folder that can be written"):
        probe.write(survey, tmp_path / "taken" / "out")
    broken = replace(survey, words=None)
    with pytest.raises(TypeError):
        write_surveys([broken], tmp_path / "new")
    assert not list((tmp_path / "new").glob("*"))


# --- several models -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_models(tmp_path_factory, survey):
    second = make_survey(shape=(2, 6), model_name="mini lm", heads={"L0H4": 0.4}, nouns={})
    return write_surveys([survey, second], tmp_path_factory.mktemp("two"))


def test_two_models_have_a_map_each_and_are_compared_in_counts(two_models):
    text = two_models.read_text(encoding="utf-8")
    assert text.count('aria-label="Map over words:') == 2
    folder = two_models.parent
    assert (folder / "smollm2" / "survey_heads.csv").is_file()
    with ZipFile(folder / "tables.zip") as archive:
        assert "mini-lm/survey_word_heads.parquet" in archive.namelist()
    plain = one_line(text)
    assert f"heads that move words3 (25.0{NARROW}%)1 (8.3{NARROW}%)" in plain
    assert f"In mini lm, 24 {MOVED} 1 of 12 attention heads" in plain
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert [entry["model"] for entry in manifest["models"]] == ["smollm2", "mini lm"]
    # A field of a single model does not appear for all of them.
    for name in ("origin", "weights_read_from", "described", "quantised", "dtype"):
        assert name not in manifest and all(name in entry for entry in manifest["models"])


def test_the_result_can_be_copied_as_text_with_its_provenance(survey_page, two_models, survey):
    first, heads, model, provenance = pasted(survey_page).splitlines()
    assert first.startswith(sentence_of(survey, "headline"))
    assert sentence_of(survey, "beside_nouns") in first
    assert heads.startswith(f"L0H1 29{NARROW}% [26, 32] (beyond unambiguous nouns: ")
    manifest = json.loads((survey_page.parent / "manifest.json").read_bytes())
    assert model == f"smollm2, weights sha256 {manifest['weights_sha256'][:12]}."
    assert provenance.endswith(f"probe {manifest['versions']['probe']}, seed 0, probe survey")
    assert len(pasted(two_models).splitlines()) == 7
    assert "\nmini lm, weights sha256 " in pasted(two_models)


# --- opened ---------------------------------------------------------------------------------------


def test_terms_are_explained_by_touch_and_by_keyboard(survey_page, shared_page):
    terms = {"head", "sense gap", "same-sense swap", "unambiguous nouns", "cue words"}
    check_meanings(shared_page(survey_page, **TOUCH).page, terms)


@pytest.mark.parametrize("options", mostly_campaign([TOUCH, {}]), ids=["narrow", "wide"])
def test_the_page_fits_and_sends_no_requests(survey_page, shared_page, options):
    # Last, because it changes the shared page.
    check_look(shared_page(survey_page, **options), survey_page)


def test_the_folded_page_is_short_and_a_cell_links_to_its_word(tmp_path, open_page):
    names = tuple(f"word{number}" for number in range(37))
    large = make_survey(
        names=names, shape=(30, 9), heads={"L4H2": 0.2, "L4H1": 0.15, "L5H1": 0.1, "L6H7": 0.08}
    )
    opened = open_page(write_surveys([large], tmp_path), viewport={"width": 1280, "height": 900})
    page = opened.page
    assert page.evaluate("document.body.scrollHeight") <= 1800
    page.locator('[data-map^="words"] .mark-symbol path').first.click(force=True)
    assert page.evaluate("location.hash").startswith("#word-0-")
    assert page.locator("#every-word > details").get_attribute("open") is not None
    assert opened.trouble == []


def test_hostile_names_stay_text(tmp_path, open_page):
    survey = make_survey(names=(HOSTILE, *map(str, range(10))), model_name=HOSTILE, source=HOSTILE)
    opened = open_page(write_surveys([survey], tmp_path))
    unfold(opened.page)
    assert opened.page.evaluate("window.canary") is None and opened.trouble == []
    assert opened.page.locator("main img").count() == 0


def test_a_reported_set_never_contains_most_heads_before_the_read_out_layer(survey):
    """Random sets of the same layers would be nearly the same."""
    frames = survey.frames
    assert carried_set(frames)["k"].tolist() == [4]  # of the eight heads of two layers
    shallow = frames["survey_model"].assign(depth=1)
    assert carried_set(frames | {"survey_model": shallow})["k"].tolist() == [2]
    assert carried_set(frames | {"survey_model": shallow.assign(heads=3)}).empty


def test_the_headline_for_one_head_and_for_none():
    single = make_survey(heads={"L0H1": 0.3}, nouns={})
    assert f"24 {MOVED} 1 of 12 attention heads, furthest by L0H1: " in sentence_of(
        single, "headline"
    )
    none = make_survey(heads={}, nouns={}, noise=0.2)
    assert sentence_of(none, "headline") == (
        "In smollm2, 24 ambiguous words change with their meaning, but by no single head "
        f"2{NARROW}% or more of the gap."
    )


def test_few_words_are_called_a_first_look(tmp_path):
    small = make_survey(names=("bank", "bark", "bat", "bow", "club", "fan", "jam", "nail", "palm"))
    assert "A first look: 9 words are a small sample." in one_line(page_of(small, tmp_path))


def test_lines_share_an_axis_that_contains_every_effect(survey):
    heads = top_over_words(survey.frames["survey_heads"])
    assert names_of(heads) == ["L0H1", "L1H2", "L1H3"]
    axis, ticks = axis_of_lines(heads)
    values = heads[["effect_low", "effect", "effect_high", "nouns"]].to_numpy().ravel()
    positions = [float(place(value, axis, 2)) for value in values]
    assert positions[:3] == sorted(positions[:3])
    assert min(positions) > 0 and max(positions) < 100
    assert 2 <= len(ticks) <= 7 and np.ptp(np.diff(ticks)) < 0.02 and 0 in ticks
    assert axis_of_lines(heads[:0])[1] == []


def test_natural_text_belongs_to_the_model_of_its_folder(two_models, survey, tmp_path):
    second = replace(survey, model_name="another")
    (tmp_path / "another").mkdir()
    row = {"word": None, "kind": "swap", "depth": None, "accuracy": 0.9, "accuracy_without": 0.6}
    row |= {"fall": 0.3, "fall_low": 0.2, "fall_high": 0.4, "random_sets": 20}
    table = pd.DataFrame([row | {"random_fall": 0.0, "random_most": 0.01}])
    table.to_csv(tmp_path / "another" / "evaluation_without.csv", index=False)
    page = write_surveys([survey, second], tmp_path).read_text(encoding="utf-8")
    name = "accuracy without these heads (another sentence's)"
    assert f"{name}–60.0{NARROW}% (the heads taken out)" in one_line(page).replace(" <", "<")
    assert 'href="another/evaluation_without.csv"' in page
