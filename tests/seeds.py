"""What every run tries of many seeds or cases, and what the campaign tries beside."""

from collections.abc import Iterable
from typing import Any

import pytest
from scipy.stats import binom


def mostly_campaign(cases: Iterable[Any], *, here: int = 1) -> list[Any]:
    """The first cases as they are, the others for `make campaign`; a tuple is the arguments of one
    case."""
    parts = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*part, marks=[pytest.mark.campaign] * (place >= here))
        for place, part in enumerate(parts)
    ]


def likely(share: float, runs: int) -> Any:
    """The fewest and the most of so many runs that have a property which each has with this chance.

    Both are wrong once in a thousand draws of the seeds.
    """
    return binom.ppf([0.001, 0.999], runs, share)
