"""Calls side by side: two at a time, with the caller's context; one error ends them; the same results."""

from contextlib import contextmanager
from contextvars import ContextVar
from threading import Barrier, Event, get_ident
from time import sleep

import pandas as pd
import pytest
import torch

import probe
from probe.side_by_side import in_order, side_by_side

CPU = torch.device("cpu")
TIMEOUT = 60  # seconds, for calls that wait for each other


@contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_two_calls_run_at_a_time_and_share_the_threads():
    both = Barrier(2, timeout=TIMEOUT)

    def call():
        both.wait()
        return get_ident(), torch.get_num_threads()

    with threads(4):
        results = dict(side_by_side([call] * 4, CPU))
        assert torch.get_num_threads() == 4
    assert [results[number][1] for number in range(4)] == [2] * 4
    assert len({thread for thread, _ in results.values()} - {get_ident()}) == 2


def test_results_in_order_wait_for_a_slow_call_before_them():
    fourth = Event()

    def first():
        assert fourth.wait(TIMEOUT)
        return 0

    def last():
        fourth.set()
        return 3

    with threads(2):
        assert list(in_order([first, lambda: 1, lambda: 2, last], CPU)) == [0, 1, 2, 3]


@pytest.mark.parametrize(("number", "device"), [(1, "cpu"), (4, "meta")])
def test_one_thread_or_another_device_run_calls_in_their_order(number, device):
    with threads(number):
        results = list(side_by_side([get_ident] * 4, torch.device(device)))
    assert results == [(each, get_ident()) for each in range(4)]


def test_few_calls_have_all_threads_one_after_the_other():
    with threads(4):
        results = list(side_by_side([torch.get_num_threads] * 3, CPU))
    assert results == [(0, 4), (1, 4), (2, 4)]


def test_calls_inside_calls_run_one_after_the_other():
    def outer():
        return {thread for _, thread in side_by_side([get_ident] * 4, CPU)} == {get_ident()}

    with threads(4):
        assert all(alone for _, alone in side_by_side([outer] * 4, CPU))


def test_a_call_has_the_context_of_the_caller():
    variable = ContextVar("variable")
    variable.set("set by the caller")

    def call():
        return variable.get(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with threads(2), torch.no_grad():
        assert dict(side_by_side([call] * 4, CPU))[1] == ("set by the caller", False, False)
    with threads(2), torch.inference_mode():
        assert dict(side_by_side([call] * 4, CPU))[1][2]


def test_an_error_is_raised_and_no_further_call_begins():
    begun = []

    def fail(number):
        begun.append(number)
        raise probe.InputError(f"call {number}")

    calls = [lambda number=number: fail(number) for number in range(100)]
    with threads(2):
        with pytest.raises(probe.InputError, match="call"):
            list(side_by_side(calls, CPU))
        assert len(begun) <= 2  # one in each thread
        assert dict(side_by_side([get_ident] * 4, CPU)).keys() == {*range(4)}  # the next calls run


def test_a_call_that_runs_is_stopped_by_the_error_of_another_one():
    both = Barrier(2, timeout=TIMEOUT)
    stopped = []

    def fail():
        both.wait()
        raise probe.InputError("failed")

    def run_on():
        both.wait()
        try:
            while True:
                sleep(0.01)
        except SystemExit:
            stopped.append(True)
            raise

    with threads(2), pytest.raises(probe.InputError, match="failed"):
        list(side_by_side([fail, run_on] * 2, CPU))
    assert stopped == [True]


def test_a_study_on_two_threads_has_the_same_digits_each_time_and_the_numbers_of_one_thread():
    def study(number):
        with threads(number):
            study = probe.study(
                "tiny-senses",
                ["bank"],
                experiments="backups,sets,readings,shares",
                controls=[],
                max_pairs=2,
                permutations=99,
            )
        return [study.frames[name] for name in ("heads", "readings", "curves")]

    for first, again, alone in zip(study(2), study(2), study(1), strict=True):
        pd.testing.assert_frame_equal(first, again, check_exact=True)
        pd.testing.assert_frame_equal(first, alone, rtol=0, atol=1e-4)
