"""Faults that stop a survey without any loss: real processes, in the campaign."""

import csv
import sys
from pathlib import Path

import psutil
import pytest
from kill_campaign import COLUMNS, FULL, GONE, KINDS, can_mount, make_workspace, run_kind

from probe.studies.workers import DASK, Workers, running

pytest.importorskip("distributed", reason="the extra probe-heads[cluster] is not installed")
FAULTS = {  # how the run ends first, and its message
    "driver_killed": (-9, ""),
    "disk_full": (2, FULL),
    "truncated": (-9, ""),
    "interrupted": (130, "probe: interrupted. Finished "),
    "driver_killed_with_dask": (-9, ""),
    "worker_killed": (0, ""),  # the run itself ends without an error
    "scheduler_killed": (2, GONE),
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("workspace"), seed=1, forked=True, step=3)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", FAULTS)
def test_a_survey_loses_nothing_through_a_fault(workspace, kind):
    if kind == "disk_full" and not can_mount():
        pytest.skip("no small file system can be mounted here")
    outcome, (code, message) = run_kind(workspace, kind), FAULTS[kind]
    assert (outcome.lost, outcome.different, outcome.left_over) == (0, 0, 0), outcome
    assert outcome.kills > 0 and outcome.codes == [code, 0] and message in outcome.last_line, (
        outcome
    )


def test_without_dask_the_message_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, err = run("survey", "--out", tmp_path / "out", "--engine", "dask")
    sentence = (
        "probe: Cannot start workers: got the engine 'dask', and Dask is not installed. Install it "
        "with pip install dask distributed, or use --engine local, which needs nothing."
    )
    assert (code, err.splitlines()[-1]) == (2, sentence)


def test_local_workers_listen_only_on_this_machine():
    with running(Workers(DASK, number=2)):
        connections = psutil.Process().net_connections("inet")
        listening = [
            connection.laddr.ip
            for connection in connections
            if connection.status == psutil.CONN_LISTEN
        ]
        assert set(listening) <= {"127.0.0.1"}


def test_the_record_holds_a_campaign_of_thirty_kills():
    record = Path(__file__).parents[2] / "reports" / "kill_campaign.csv"
    rows = list(csv.DictReader(record.read_text(encoding="utf-8").splitlines()))
    assert tuple(rows[0]) == COLUMNS and {row["kind"] for row in rows} == {*KINDS, "all"}
    assert int(rows[-1]["kills"]) >= 30
    for row in rows:
        assert [row[name] for name in ("words_lost", "files_different", "left_over")] == ["0"] * 3
