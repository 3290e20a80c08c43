"""Generated sentence files, damaged or not, are read as a plain reader does, or refused."""

import csv
from pathlib import Path

import pytest
from fuzzing import COLUMNS, TARGETS, try_cases

CASES = 30  # of each target; the campaign runs ten thousand
REPORT = Path(__file__).parents[1] / "campaign" / "fuzz_campaign.csv"


@pytest.mark.parametrize("name", TARGETS)
def test_generated_cases_are_accepted_or_refused_with_a_message(name, tmp_path):
    assert try_cases(name, tmp_path, CASES).total() > CASES // 3


def test_a_campaign_of_fifty_thousand_cases_is_recorded():
    rows = list(csv.DictReader(REPORT.open(encoding="utf-8")))
    assert tuple(rows[0]) == COLUMNS and {row["target"] for row in rows} == {*TARGETS, "all"}
    assert sum(int(row["cases"]) for row in rows[:-1]) == int(rows[-1]["cases"]) >= 50_000
    for row in rows:
        assert int(row["taken"]) + int(row["refused"]) == int(row["cases"])
        assert row["failed"] == "0"
