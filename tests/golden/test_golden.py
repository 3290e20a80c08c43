"""The small golden tables hold, and the comparison finds each kind of change."""

import json

import pandas as pd
import pyarrow as pa
import pytest
from golden import golden_tables
from golden.golden_tables import (
    OTHER_MACHINE,
    SAME_MACHINE,
    STORED,
    Output,
    check,
    compare,
    data_of,
    limit_here,
    machine,
    real,
    steady,
    steady_table,
    visible,
)
from seeds import mostly_campaign

HEADS = {"word": ["bank", "bank", "mole"], "head": [0, 1, 0], "net": [0.5, -0.25, 0.1]}


@pytest.mark.parametrize("name", mostly_campaign(["survey", "walk", "report_encoder"], here=2))
def test_a_survey_a_walk_and_a_report_write_what_is_stored(name):
    """`make golden-update` stores what they write now; `make golden` compares every case.

    The tables and promises of a report are tested with the study in studies/test_study.py.
    """
    assert check(name, limit=limit_here()) == []


def findings(changes=None, limit=SAME_MACHINE, base=HEADS):
    """What `compare` finds if columns of HEADS change; None deletes one."""
    columns = {
        name: column for name, column in (base | (changes or {})).items() if column is not None
    }
    outputs = (
        Output({"heads": steady_table("heads", pa.table(table))}) for table in (base, columns)
    )
    return compare(*outputs, limit)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"net": [0.5, 0.25, 0.1]}, "column net: 1 of 3 numbers differ, most by 1.0e+00 of the largest: -0.25 is now 0.25 in row word=bank head=1"),
        ({"net": [0.5, None, 0.1]}, "column net: 1 of 3 numbers differ, most by inf of the largest: -0.25 is now nan in row word=bank head=1"),
        ({"net": [0.5, float("inf"), 0.1]}, "column net: 1 of 3 numbers differ, most by inf of the largest: -0.25 is now inf in row word=bank head=1"),
        ({"net": None}, "column net is lost"),
        ({"p": [0.1, 0.2, 0.3]}, "column p is new"),
        ({"net": [1, 2, 3]}, "column net is int64 instead of float"),
    ],
)  # fmt: skip
def test_a_change_of_a_column_is_found_and_named(changes, message):
    found = findings(changes)
    assert f"table heads: {message}" in found
    assert len(found) == 1 or message.endswith("instead of float")


def test_lost_new_and_reordered_rows_and_columns_are_found():
    table = steady_table("heads", pa.table(HEADS))
    swapped = table.select(["head", "word", "net"])

    def found(new):
        return compare(Output({"heads": table}), Output({"heads": new}), SAME_MACHINE)

    assert found(table.slice(0, 2)) == ["table heads: 1 rows are lost: word=mole head=0"]
    assert found(table.take([1, 0, 2])) == ["table heads: rows are in another order"]
    assert found(swapped) == ["table heads: columns are in another order"]
    repeated = pa.concat_tables([table, table.slice(2)])
    assert found(repeated) == ["table heads: 1 rows are new: word=mole head=0 (2)"]
    renamed = table.set_column(0, "word", [["bank", "bank", "apple"]])
    assert found(renamed) == [
        "table heads: 1 rows are lost: word=mole head=0",
        "table heads: 1 rows are new: word=apple head=0",
    ]


@pytest.mark.parametrize(("limit", "most"), [(SAME_MACHINE, 0.5e-6), (OTHER_MACHINE, 0.5e-4)])
def test_a_number_may_differ_by_the_limit_and_one_in_its_sixth_digit(limit, most):
    """The largest value of the column is 0.5, and the sixth digit of 0.1 is 1e-6."""
    assert findings({"net": [0.5, -0.25, 0.1 + most + 0.9e-6]}, limit) == []
    assert len(findings({"net": [0.5, -0.25, 0.1 + most + 1.2e-6]}, limit)) == 1
    assert len(findings({"net": [0.5, -0.25, 0.1 - most - 1.2e-6]}, limit)) == 1


def test_whole_numbers_and_p_may_jump_on_another_machine_alone():
    base = {
        "word": ["bank", "bank"],
        "rank": [9, 10],
        "p_auroc": [0.5, 1.0],
        "because": ["p = .04", "= .05"],
        "net": [0.5, 1.0],
    }
    jump = {"rank": [10, 9], "p_auroc": [0.6, 1.0], "because": ["p = .05", "= .06"]}
    assert len(findings(jump, SAME_MACHINE, base)) > 0
    assert findings(jump, OTHER_MACHINE, base) == []
    assert len(findings({"rank": [9, 1]}, OTHER_MACHINE, base)) == 1
    assert len(findings({"p_auroc": [0.5, 0.7]}, OTHER_MACHINE, base)) == 1
    assert len(findings({"net": [0.5, 0.999]}, OTHER_MACHINE, base)) == 1
    assert len(findings({"because": ["q = .04", "= .05"]}, OTHER_MACHINE, base)) == 2


def test_each_leaf_of_a_pages_data_has_a_limit_of_its_own():
    """A token's id does not hide a change of a probability."""
    data = {"leaf": [".id", ".p"], "number": [2506.0, 0.25]}
    assert len(findings({"number": [2506.0, 0.251]}, base=data)) == 1


def test_lost_and_new_tables_texts_and_cases_are_found():
    heads = pa.table(HEADS)
    stored = Output({"heads": heads}, {"page": "One head.\nTwo heads.\n"})
    new = Output({"mlps": heads}, {"page": "One head.\nThree heads.\n"})
    assert compare(stored, new, SAME_MACHINE) == [
        "table heads is lost",
        "table mlps is new",
        "text page: -Two heads.",
        "text page: +Three heads.",
    ]
    assert compare(Output(), new, SAME_MACHINE) == ["is new: 1 tables and 1 texts"]


def test_numbers_of_a_text_count_on_the_same_machine_alone():
    stored, new = (
        Output({}, {"page": f"L0H1 moves it by {value} % [−3, 7].\n"}) for value in ("12.4", "12.5")
    )
    assert len(compare(stored, new, SAME_MACHINE)) == 2
    assert compare(stored, new, OTHER_MACHINE) == []


def test_the_limit_is_looser_on_another_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(golden_tables, "STORED", tmp_path)
    assert limit_here() == OTHER_MACHINE
    (tmp_path / "machine.json").write_text(json.dumps(machine()))
    assert limit_here() == SAME_MACHINE
    (tmp_path / "machine.json").write_text(json.dumps(machine() | {"threads": 64}))
    assert limit_here() == OTHER_MACHINE
    assert {"processor", "instructions", "threads", "torch"} < set(
        json.loads((STORED / "machine.json").read_text())
    )


def test_the_text_of_a_page_has_no_scripts_and_the_titles_of_its_charts():
    page = """<style>p {}</style><h1>Heads</h1><p>L0H1 &amp; <b>bank</b></p><script>let a = 1;</script>
    <script type="application/json" data-for="chart-1">{"config": {"title": 1},
    "encoding": {"x": {"field": "net", "title": "effect"}}, "datasets": {"d": [{"field": 1}]}}</script>"""
    assert visible(page).splitlines() == [
        "Heads",
        "L0H1 & bank",
        "chart.encoding.x.field: net",
        "chart.encoding.x.title: effect",
    ]


def test_the_data_of_a_page_are_its_leaves_with_arrays_unpacked():
    page = """<script type="application/json" id="walk">{"at": ["bank", 2, null],
    "z": {"shape": [2], "data": "AAAAPwAAgL8="}, "arrays": {"missed": [1e-7]}}</script>"""
    assert data_of(page)["walk"].to_pylist() == [
        {"leaf": ".at", "text": "bank", "number": None},
        {"leaf": ".at", "text": None, "number": 2.0},
        {"leaf": ".at", "text": None, "number": None},
        {"leaf": ".z", "text": None, "number": 0.5},
        {"leaf": ".z", "text": None, "number": -1.0},
    ]


def test_dates_versions_and_rounding_are_left_out():
    text = "probe 0.3.0, torch 2.13.0+cpu\n2026-11-28T22:14:46+00:00\nz 8 × 10⁻⁷ holds\nq 9 × 10⁻⁸ holds\n"
    assert steady(text) == "probe #, torch #\n#\nq # × # holds\nz # × # holds\n"
    table = pa.table({"quantity": ["z"], "error": [1e-7], "ok": [True]})
    for name in ("certificate", "survey_certificate"):
        assert steady_table(name, table).column_names == ["quantity", "ok"]
    assert steady_table("heads", table).column_names == ["quantity", "error", "ok"]


def test_a_new_folder_is_compared_with_the_tables_of_the_last_commit(monkeypatch, tmp_path):
    committed = {"words.csv": b"word,gap\nbank,0.5\n", "heads.csv": b"head,net\n0,0.25\n"}

    def git(command, path):
        if command == "ls-files":
            return "".join(f"reports/real/{name}\n" for name in [*committed, "a.png"]).encode()
        return committed[path.removeprefix("HEAD:reports/real/")]

    monkeypatch.setattr(golden_tables, "git", git)
    pd.DataFrame({"word": ["bank"], "gap": [0.6]}).to_csv(tmp_path / "words.csv", index=False)
    lost, changed = real(tmp_path)
    assert lost == "table heads.csv is lost"
    assert changed.startswith("table words.csv: column gap: 1 of 1 numbers differ, most by 2.0e-01")
    (tmp_path / "words.csv").write_bytes(committed["words.csv"])
    (tmp_path / "heads.csv").write_bytes(committed["heads.csv"])
    assert real(tmp_path) == []
