"""A study and a survey measure a word in the same way: with the same options their numbers are
identical, to the last digit."""

from dataclasses import replace

import pytest
import torch
from measured import assert_same

import probe
from probe.experiments.store import read_record
from probe.studies import study as of_study
from probe.studies import survey as of_survey
from probe.studies.across import numbers_of
from probe.studies.survey_word import SURVEY

WORDS = ("bank", "bark")
SENTENCES = [row for word in WORDS for row in probe.lexicon.expand(word).sentences[:96]]
# The options of a survey, with the separation of heads, which the tests of a study need.
OPTIONS = replace(SURVEY, permutations=99, experiments=frozenset(("senses", "heads", "nouns")))


@pytest.fixture(scope="module")
def both(tiny, tmp_path_factory):
    """The records of the words in a study and in a survey, by word."""
    folder = tmp_path_factory.mktemp("study")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a survey
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(of_study, "STUDY_DEFAULTS", OPTIONS)
            patch.setattr(of_study, "FEWEST_WORDS", len(WORDS))  # they count as a sample
            patch.setattr(of_survey, "SURVEY", OPTIONS)
            probe.study(
                tiny,
                list(WORDS),
                sentences=SENTENCES,
                max_pairs=OPTIONS.pairs,
                permutations=OPTIONS.permutations,
                experiments=OPTIONS.experiments,
                out=folder,
            )
            survey = probe.survey(tiny, sentences=SENTENCES)
            records = (map(read_record, folder.glob("words/*.word")), survey.records())
            return [{record.word: record for record in group} for group in records]
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_has_the_same_numbers_in_a_study_and_in_a_survey(both, word):
    of_study_record, of_survey_record = (records[word] for records in both)
    [senses] = of_study_record.senses
    assert senses.sizes["sentence_pair"] == OPTIONS.pairs
    [nouns] = of_study_record.of_pairs("nouns")
    assert nouns.sizes["swap"] == OPTIONS.pairs  # one noun for every pair
    assert_same(numbers_of(of_study_record), numbers_of(of_survey_record))
    assert_same(of_study_record.measured, of_survey_record.measured)
