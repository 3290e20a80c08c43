"""The seeded faults of the campaign still fit the code, and the record states that the tests of every
run catch each of them."""

import ast
import csv
from pathlib import Path

import pytest
from campaign.mutations import COLUMNS, FAULTS, paths_to_run, sources, spoiled
from conftest import CAMPAIGN, OTHERS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.breaks)
def test_a_fault_still_changes_one_place_of_the_code(fault):
    sound = sources()[fault.file]
    assert ast.dump(ast.parse(spoiled(fault))) != ast.dump(ast.parse(sound))
    assert all((ROOT / tests).exists() for tests in paths_to_run(fault))


def test_a_fault_in_missing_code_is_refused():
    with pytest.raises(ValueError, match="'no such text' occurs 0 times, expected once"):
        spoiled(FAULTS[0]._replace(old="no such text"))


def test_every_fault_is_recorded_as_caught_by_a_test_of_every_run():
    rows = list(
        csv.DictReader((ROOT / "tests" / "campaign" / "mutations.csv").open(encoding="utf-8"))
    )
    assert tuple(rows[0]) == COLUMNS
    assert [row["breaks"] for row in rows] == [fault.breaks for fault in FAULTS]
    assert {row["caught"] for row in rows} == {"yes"}
    collected = {name.partition("::")[0] for name in CAMPAIGN | OTHERS}
    for row in rows:
        file = row["by"].partition("::")[0]
        assert (ROOT / file).exists() and (file not in collected or row["by"] in OTHERS), row["by"]
