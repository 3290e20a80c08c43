"""Progress follows the finished work: it is counted where blocks run, and reported stage by
stage."""

import itertools
from dataclasses import replace

import pytest

import probe
from probe.experiments.material import prepare
from probe.experiments.measure import measure
from probe.experiments.observe import split_senses
from probe.progress import LEAST, counting, stages, worked
from probe.studies.study import STUDY_DEFAULTS
from probe.studies.survey import plan_survey, survey
from probe.studies.workers import Workers


def recorded_stages(planned):
    reports = []
    return stages(lambda name, share: reports.append((name, round(share, 4))), planned), reports


def test_a_stage_advances_with_its_work_and_ends_at_its_share():
    start, reports = recorded_stages({"a": 60, "b": 40})
    with start("a"):
        worked(30)
        worked(300)  # more than planned: the share stays at its end
    with start("b"):
        worked(10)  # fewer than planned: the end of the stage corrects the share
    with start("a"):
        pass
    assert reports == [("a", 0), ("a", 0.3), ("a", 0.6), ("b", 0.6), ("b", 0.7), ("a", 1)]


def test_a_stage_without_work_has_a_share_and_small_steps_are_not_reported():
    start, reports = recorded_stages({"a": 10_000, "nothing": 0})
    with start("nothing"):
        pass
    with start("a"):
        for _ in range(10_000):
            worked(1)
    assert reports[1][1] == pytest.approx(LEAST, rel=0.05) and 500 < len(reports) < 1002


def test_counters_count_inside_each_other_and_end_after_an_error():
    outer, inner = [], []
    with counting(outer.append):
        with pytest.raises(ValueError), counting(inner.append):
            worked(1)
            raise ValueError
        worked(2)
    worked(3)
    assert (outer, inner) == ([1, 2], [1])


@pytest.mark.real_model
def test_the_progress_of_one_word_is_reported_in_small_steps_in_every_stage():
    model = probe.load("tiny-senses")
    sentences = probe.lexicon.expand("bank").sentences[:192]
    material = prepare(model, "bank", sentences)
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
    assert shares == sorted(shares) and 0 <= shares[0] and shares[-1] <= 1
    by_stage = {
        name: len(list(of)) for name, of in itertools.groupby(reports, key=lambda report: report[0])
    }
    assert set(by_stage) == {"reading the sentences", "swapping heads", *options.experiments}
    assert min(by_stage[name] for name in ("reading the sentences", "swapping heads", "nouns")) >= 2


@pytest.mark.campaign
@pytest.mark.real_model
def test_a_survey_reports_progress_within_a_word_and_its_dry_run_takes_less_than_a_tenth():
    sentences = [
        row
        for word in probe.lexicon.words()[:7]
        for row in probe.lexicon.expand(word).sentences[:48]
    ]
    model = probe.load("tiny-senses")
    planned, survey_work = [], []
    with counting(planned.append):
        plan = plan_survey(model, sentences, controls=())
    shares = []
    with counting(survey_work.append):
        survey(
            model,
            sentences=sentences,
            controls=(),
            workers=Workers(),
            progress=lambda name, share: shares.append(share),
        )
    assert 0 < sum(planned) < sum(survey_work) / 10
    assert shares == sorted(shares) and len(shares) > 3 * len(plan.words)
    assert sum(word.swaps for word in plan.words) > 0 and plan.seconds > 0
