"""A survey that is killed loses nothing: real processes, in the campaign."""

import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest
from inside import running
from kill_campaign import COLUMNS, Outcome, killed, make_workspace

pytest.importorskip("distributed", reason="the extra probe-heads[cluster] is not installed")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return make_workspace(tmp_path_factory.mktemp("workspace"), seed=1, step=3)


@pytest.mark.campaign
def test_a_survey_loses_nothing_when_it_is_killed(workspace):
    outcome = killed(workspace)
    assert outcome == Outcome(kills=1, codes=[-9, 0])


def test_without_dask_the_message_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, _, err = run("survey", "--out", tmp_path / "out", "--workers", "2")
    sentence = (
        "probe: Cannot start workers: Dask is not installed. Install it with pip install dask "
        "distributed, or omit --workers and --scheduler to measure in this process."
    )
    assert (code, err.splitlines()[-1]) == (2, sentence)


def test_local_workers_listen_only_on_this_machine():
    with running(2, None):
        connections = psutil.Process().net_connections("inet")
        listening = [
            connection.laddr.ip
            for connection in connections
            if connection.status == psutil.CONN_LISTEN
        ]
        assert set(listening) <= {"127.0.0.1"}


def test_the_record_holds_a_campaign_of_thirty_kills():
    record = Path(__file__).parents[1] / "campaign" / "kill_campaign.csv"
    [row] = pd.read_csv(record).to_dict("records")
    assert tuple(row) == COLUMNS and row["kills"] >= 30
    assert [row[name] for name in ("words_lost", "files_different", "left_over")] == [0] * 3
