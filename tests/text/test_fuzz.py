"""Generated sentence files, damaged or not, are read as a plain reader does, or refused."""

import csv
import json
from pathlib import Path

import fuzzing
import pytest
from fuzzing import COLUMNS, GOOD, TARGETS, read_both_ways, try_cases

from probe.text.files import rows_of

CASES = 60  # of each target; the campaign runs ten thousand
REPORT = Path(__file__).parents[1] / "campaign" / "fuzz_campaign.csv"


@pytest.mark.parametrize("name", TARGETS)
def test_generated_cases_are_accepted_or_refused_with_a_message(name, tmp_path):
    assert try_cases(name, tmp_path, CASES).total() > CASES // 3


@pytest.mark.parametrize(
    "wrong", [lambda rows: rows[:-1], lambda rows: rows[::-1], lambda rows: [*rows, rows[0]]]
)
def test_a_reader_that_loses_reorders_or_doubles_rows_is_noticed(tmp_path, monkeypatch, wrong):
    file = tmp_path / "s.jsonl"
    file.write_text(
        "".join(json.dumps(GOOD | {"sense": sense}) + "\n" for sense in ("river", "money"))
    )
    assert read_both_ways(file) == "taken"
    monkeypatch.setattr(fuzzing, "rows_of", lambda source: wrong(rows_of(source)))
    with pytest.raises(AssertionError):
        read_both_ways(file)


def test_a_campaign_of_fifty_thousand_cases_is_recorded():
    rows = list(csv.DictReader(REPORT.open(encoding="utf-8")))
    assert tuple(rows[0]) == COLUMNS and {row["target"] for row in rows} == {*TARGETS, "all"}
    assert sum(int(row["cases"]) for row in rows[:-1]) == int(rows[-1]["cases"]) >= 50_000
    assert all(
        int(row["taken"]) + int(row["refused"]) == int(row["cases"]) and row["failed"] == "0"
        for row in rows
    )
