"""Progress goes forward, stage by stage and word by word."""

import pytest

from probe import progress
from probe.progress import Countdown

SECONDS = {"read": 10.0, "swap": 30.0}  # as stages are declared


def shares(monkeypatch, took, planned):
    """The share that is reported when each stage begins, and the time left that follows from it.

    took: the stages in their order, and how long each really takes
    """
    now = 100.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    reports = []
    countdown = Countdown(lambda *report: reports.append((*report, now - 100)), SECONDS, planned)
    for stage, seconds in took:
        countdown.begin(stage)
        now += seconds
    return [
        (name, share, passed / share - passed if share else None) for name, share, passed in reports
    ]


def test_the_first_word_sets_the_time_of_the_others(monkeypatch):
    # Half as fast as declared, and the swaps are a smaller part of the work.
    word = [("read", 20), ("swap", 40)]
    reports = shares(monkeypatch, 3 * word, {"read": 3, "swap": 3})
    assert [name for name, *_ in reports] == 3 * ["read", "swap"]
    left = [seconds for *_, seconds in reports[1:]]
    # After one stage the declared seconds count, at the pace so far; then what the stages took.
    assert left == pytest.approx([2 * 20 + 3 * 60, 120, 100, 60, 40])
    assert [share for _, share, _ in reports] == sorted(share for _, share, _ in reports)


def test_a_stage_that_takes_longer_than_expected_undoes_nothing(monkeypatch):
    took = [("read", 1), ("swap", 1), ("read", 1), ("swap", 97), ("swap", 1)]
    reported = [share for _, share, _ in shares(monkeypatch, took, {"read": 2, "swap": 3})]
    assert reported == sorted(reported) and reported[-1] < 1


def test_a_stage_that_is_not_run_takes_no_time(monkeypatch):
    took = [("swap", 5), ("swap", 5)]
    reported = [share for _, share, _ in shares(monkeypatch, took, {"read": 0, "swap": 2})]
    assert reported == [0, 0.5]
