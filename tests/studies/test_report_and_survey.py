"""A report on many words says what holds in general, and a survey reuses what a report measured."""

from dataclasses import replace

import pytest
from inside import FEWEST_WORDS, SURVEY_WITH_PAGES, conclude, sections_of
from inside import study_run as of_study
from inside import survey_run as of_survey

import probe
from probe import InputError

WORDS = probe.lexicon.words()[:FEWEST_WORDS]
ROWS = {word: list(probe.lexicon.expand(word).sentences[:24]) for word in WORDS}
# What a report on so many words measures, and a survey with pages, but less of it.
OPTIONS = replace(
    SURVEY_WITH_PAGES,
    pairs=4,
    permutations=99,
    nouns=(),
    experiments=frozenset(("heads",)),
)


@pytest.fixture(scope="module")
def less_of_each_word():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_study, "STUDY_DEFAULTS", replace(OPTIONS, one_of_many=False))
        patch.setattr(of_survey, "SURVEY_WITH_PAGES", OPTIONS)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def report(tiny, less_of_each_word, folder):
    return probe.study(
        tiny,
        WORDS,
        sentences=[row for rows in ROWS.values() for row in rows],
        controls=(),
        max_pairs=OPTIONS.pairs,
        permutations=OPTIONS.permutations,
        experiments=OPTIONS.experiments,
        out=folder,
    )


def survey_with_pages(model, rows, folder):
    sentences = [row for of_word in rows for row in of_word]
    return probe.survey(model, sentences=sentences, controls=(), pages=True, out=folder)


def section_ids(frames):
    return {section.id for section in sections_of(frames)}


def test_a_report_on_enough_words_says_what_holds_in_general(report):
    assert "general" in section_ids(report.frames)
    assert list(report.survey_words["word"]) == list(WORDS)


def test_a_report_on_one_word_fewer_says_nothing_in_general(tiny, report, folder):
    records = survey_with_pages(tiny, ROWS.values(), folder).records()
    fewer = [record for record in records if record.word != WORDS[-1]]
    frames = conclude(fewer, report.certificate, {}, seed=0)
    assert "general" not in section_ids(frames)
    assert not any(name.startswith("survey_") for name in frames)


def test_a_survey_reads_the_records_of_a_report(tiny, report, folder, monkeypatch):
    def measured_again(*arguments, **options):
        raise AssertionError("a word that the report has measured is measured again")

    monkeypatch.setattr(of_survey, "measure", measured_again)
    survey = survey_with_pages(tiny, ROWS.values(), folder)
    assert survey.survey_heads.equals(report.survey_heads)
    assert survey.survey_words.equals(report.survey_words)


def test_a_survey_with_pages_does_not_hide_an_error_of_the_measurement(
    tiny, less_of_each_word, tmp_path, monkeypatch
):
    def broken(*arguments, **options):
        raise InputError("The measurement is broken.")

    monkeypatch.setattr(of_survey, "measure", broken)
    with pytest.raises(InputError, match="The measurement is broken"):
        survey_with_pages(tiny, [ROWS[word] for word in WORDS[:2]], tmp_path)


def test_every_word_with_enough_sentences_gets_a_page(tiny, report, folder, tmp_path):
    first, second, third = WORDS[:3]
    two_of_each_sense = ROWS[third][:4]
    survey = survey_with_pages(tiny, [ROWS[first], ROWS[second], two_of_each_sense], folder)
    assert [record.in_full for record in survey.records()] == [True, True, False]
    probe.write(survey, tmp_path)
    pages = sorted(str(page.parent.name) for page in tmp_path.glob("pages/*/ambiguity.html"))
    assert pages == sorted([first, second])
    links = (tmp_path / "survey.html").read_text("utf-8")
    assert f'href="pages/{first}/ambiguity.html"' in links
    assert f'href="pages/{third}/ambiguity.html"' not in links
