"""Progress goes forward, stage by stage and word by word."""

from dataclasses import replace

import pytest

import probe
from probe.experiments.material import prepare
from probe.experiments.measure import measure
from probe.experiments.observe import split_senses
from probe.progress import stages
from probe.studies.study import STUDY_DEFAULTS


def test_a_stage_begins_where_the_earlier_stages_end():
    reports = []
    begin = stages(lambda name, share: reports.append((name, share)), {"a": 60, "b": 30, "c": 10})
    for name in ("a", "b", "c"):
        begin(name)
    assert reports == [("a", 0), ("b", 0.6), ("c", 0.9)]


@pytest.mark.real_model
def test_every_stage_of_a_word_is_reported_in_order():
    model = probe.load("tiny-senses")
    material = prepare(model, "bank", probe.lexicon.expand("bank").sentences[:192])
    splits = split_senses(material, seed=0, causal=True)
    options = replace(STUDY_DEFAULTS, pairs=8, permutations=99, nouns=("fence", "window", "ladder"))
    reports = []
    measure(
        model,
        material,
        splits,
        options,
        random_model=model,
        report=lambda name, share: reports.append((name, share)),
    )
    shares = [share for _, share in reports]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1
    assert {name for name, _ in reports} == {
        *("reading the sentences", "swapping heads"),
        *options.experiments,
    }
