"""The seeds or cases of every run, and the seeds of the campaign."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from scipy.stats import binom


def mostly_campaign(cases: Iterable[Any], *, here: int = 1) -> list[Any]:
    """The first cases without a mark, the others for `make campaign`; a tuple is the arguments of
    one case."""
    parts = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*part, marks=[pytest.mark.campaign] * (index >= here))
        for index, part in enumerate(parts)
    ]


def campaign_except(cases: Iterable[str], here: Collection[str]) -> list[Any]:
    """A parameter for each case; `make campaign` runs the cases that are not in `here`."""
    return [
        pytest.param(case, marks=() if case in here else pytest.mark.campaign) for case in cases
    ]


def likely(share: float, runs: int) -> Any:
    """The fewest and the most of these runs with a property that each run has with this chance.

    Each bound is wrong once in a thousand draws of the seeds.
    """
    return binom.ppf([0.001, 0.999], runs, share)
