"""The stored findings cover every setting of the processor, and are the same under all of them."""

import csv
from pathlib import Path

import pandas as pd
import pytest
from campaign.any_processor import (
    COLUMNS,
    REPORTED,
    SETTINGS,
    TESTS,
    TRANSLATOR,
    differing,
    verdicts,
)

ROOT = Path(__file__).parents[2]


def record() -> list[dict[str, str]]:
    return list(csv.DictReader((ROOT / "reports" / "any_processor.csv").open(encoding="utf-8")))


def test_findings_are_the_same_under_every_setting():
    rows = record()
    assert tuple(rows[0]) == COLUMNS and {row["setting"] for row in rows} == set(SETTINGS)
    assert differing(rows) == []
    for model in (*REPORTED, TRANSLATOR):
        assert sum(row["what"].startswith(f"{model}: ") for row in rows) >= 2 * len(SETTINGS)
    for row in rows:
        if row["what"].endswith(": check"):
            n_holding, _, n_rows = row["result"].removesuffix(" rows hold").partition(" of ")
            assert n_holding == n_rows
        assert "failed" not in row["result"]
    assert all((ROOT / test).exists() for test in TESTS)


@pytest.mark.parametrize("change", ["result", "missing"])
def test_a_single_different_finding_is_noticed(change):
    rows = record()
    at = next(index for index, row in enumerate(rows) if "resolver" in row["result"])
    changed = (
        []
        if change == "missing"
        else [rows[at] | {"result": rows[at]["result"].replace("(1)", "(2)")}]
    )
    assert differing([*rows[:at], *changed, *rows[at + 1 :]]) == [rows[at]["what"]]


def test_verdicts_are_listed_with_the_ranks_of_resolvers():
    rows = [(0, 1, 2, "resolver"), (1, 0, 1, "resolver"), (0, 0, 4, "unread"), (1, 1, 3, "none")]
    heads = pd.DataFrame(rows, columns=["layer", "head", "rank", "verdict"])
    heads = heads.assign(word="bank", sense_a="river", sense_b="money")
    assert list(verdicts(heads)) == [
        ("bank, river or money", "resolver L1H0 (1), L0H1 (2); unread L0H0")
    ]
    heads["verdict"] = "none"
    assert list(verdicts(heads)) == [("bank, river or money", "none")]
