"""A model that the world uses, where its package is installed: one word on a few pairs of sentences, and a walk."""

import pytest

import probe
from probe.errors import ModelError
from probe.study.material import prepare
from probe.study.word import StudyOptions, study_word
from probe.text import lexicon
from probe.text.sentences import as_corpus

pytestmark = pytest.mark.real_model
LEADING = [(4, 1), (4, 2), (5, 1)]  # of bank, mole and apple, in the kept report


@pytest.fixture(scope="module")
def smollm2():
    try:
        return probe.load("smollm2")
    except ModelError as error:
        pytest.skip(str(error))


def test_the_heads_that_lead_in_the_report_lead_on_a_few_pairs(smollm2):
    sentences = [row for row in lexicon.expand_natural("bank").sentences if row.pair]
    pairs = dict.fromkeys(row.pair for row in sentences[::13])
    few = as_corpus([row for row in sentences if row.pair in list(pairs)[:12]])
    material = prepare(smollm2, few, "bank")
    (result,) = study_word(smollm2, material, StudyOptions(seed=0, max_pairs=4, permutations=99)).pairs
    net = result.measured.word.net.mean(0)
    assert {divmod(int(place), net.shape[1]) for place in (-net).ravel().argsort()[:4]} & set(LEADING)


def test_the_walk_opens_at_a_head_that_moves_the_word_from_its_cue(smollm2):
    walked = probe.walk(smollm2, "The fisherman walked along to the bank", word="bank")
    assert walked.frames["agreement"]["error"].max() < 1e-4
    assert (walked.layer, walked.head) in LEADING and "towards its sense “river”" in walked.because
    values = walked.frames["values"].set_index("pos")
    assert values.loc[[1, 3], "share"].sum() > 0.5  # "fisherman", "along"
