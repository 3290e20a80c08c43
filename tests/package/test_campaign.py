"""The record of the campaign states for every part when it ran last and whether it passed, or that
it has not run yet."""

from collections import Counter
from pathlib import Path

import pandas as pd
from campaign.record import COLUMNS, RECORD, SCRIPTS
from conftest import CAMPAIGN

ROOT = Path(__file__).parents[2]
NEXT = "run python tests/campaign/record.py --list, or --only, with PYTHONPATH=tests"


def test_every_part_of_the_campaign_is_recorded_without_failures():
    """Only files that this run has collected are compared."""
    rows = pd.read_csv(RECORD)
    assert tuple(rows.columns) == COLUMNS
    files = Counter(name.partition("::")[0] for name in CAMPAIGN)
    assert sorted({*SCRIPTS, *files} - {*rows["part"]}) == [], NEXT
    assert [part for part in rows["part"] if not (ROOT / part).exists()] == []
    run = rows.dropna(subset="date")
    tests = dict(zip(run["part"], run["tests"], strict=True))
    assert {
        part: files[part] for part in files if files[part] != tests.get(part, files[part])
    } == {}, NEXT
    assert not run.isna().any(axis=None) and len(run)
    unwell = run["passed"] + run["skipped"] < run["tests"]
    assert [*run["part"][unwell | (run["tests"] == 0)]] == [], NEXT
