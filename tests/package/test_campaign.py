"""The record of the campaign states for every part when it ran last and whether it passed, or that
it has not run yet."""

import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pandas as pd
from campaign.record import COLUMNS, RECORD, SCRIPTS, counted, write
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


def test_tests_are_counted_by_file_and_failed_or_skipped_tests_have_not_passed():
    report = ET.fromstring(
        '<testsuite><testcase file="b.py"/><testcase file="a.py"><failure/></testcase>'
        '<testcase file="a.py"><skipped/></testcase><testcase file="a.py"/></testsuite>'
    )
    assert counted(report.iter("testcase")) == [
        {"part": "a.py", "tests": 3, "passed": 1, "skipped": 1},
        {"part": "b.py", "tests": 1, "passed": 1, "skipped": 0},
    ]


def test_a_repeated_part_replaces_its_row_and_a_whole_campaign_replaces_all(tmp_path):
    def row(part, date):
        return dict(zip(COLUMNS, (part, date, "abc", 1, 1, 0), strict=True))

    def dates():
        return dict(pd.read_csv(tmp_path / "campaign.csv")[["part", "date"]].to_numpy())

    record = tmp_path / "campaign.csv"
    write(record, [row("a.py", "2026-01-01"), row("b.py", "2026-01-01")], whole=False)
    write(record, [row("b.py", "2026-02-02")], whole=False)
    assert dates() == {"a.py": "2026-01-01", "b.py": "2026-02-02"}
    write(record, [row("b.py", "2026-03-03")], whole=True)
    assert dates() == {"b.py": "2026-03-03"}
