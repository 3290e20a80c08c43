"""What kills a sweep and loses nothing: real processes, one of each kind; clusters die in the
campaign."""

import csv
import sys
from pathlib import Path

import psutil
import pytest
from kill_campaign import COLUMNS, FULL, GONE, KINDS, can_mount, make_stage, run_kind
from seeds import mostly_campaign
from sweeping import fingerprints, make_corpus, make_model

from probe.sweep.deal import Options
from probe.sweep.run import sweep
from probe.sweep.work import Workers, _settings, engine

pytest.importorskip("distributed", reason="the extra probe-heads[cluster] is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return make_stage(tmp_path_factory.mktemp("stage"), seed=1, rows=400, forked=True)


FAULTS = {  # how the run ends first, and what it says
    "driver_killed": (-9, ""),
    "interrupted": (130, "probe: interrupted; finished "),
    "truncated": (-9, ""),
    "driver_killed_with_dask": (-9, ""),
    "worker_killed": (0, ""),  # the run ends well by itself
    "scheduler_killed": (2, GONE),
    "disk_full": (2, FULL),
}


@pytest.mark.parametrize("kind", mostly_campaign(FAULTS))
def test_nothing_is_lost(stage, kind):
    if kind == "disk_full" and not can_mount():
        pytest.skip("no small file system can be mounted here")
    outcome, (code, said) = run_kind(stage, kind), FAULTS[kind]
    assert (outcome.lost, outcome.doubled, outcome.different, outcome.left_over) == (0, 0, 0, 0), (
        outcome
    )
    assert outcome.kills > 0 and outcome.codes == [code, 0] and said in outcome.said, outcome


@pytest.mark.campaign
def test_the_tables_are_the_same_whoever_made_them(stage, tmp_path):
    model, corpus = stage.folder / "model", stage.folder / "sentences.jsonl"
    workers = Workers("dask", None, 2)
    result = sweep(
        str(model), [corpus], tmp_path / "out", options=Options(block=16), workers=workers
    )
    assert fingerprints(result.folder) == stage.reference


def test_without_dask_the_engine_says_what_to_install(run, tmp_path, monkeypatch):
    model, corpus = make_model(tmp_path / "model"), make_corpus(tmp_path / "s.jsonl", 60)
    monkeypatch.setitem(sys.modules, "distributed", None)
    given = ["--model", model, "--sentences", corpus, "--out", tmp_path / "out", "--engine", "dask"]
    code, _, err = run("sweep", *given)
    assert code == 2
    assert (
        "Dask is not installed; install it with pip install dask distributed, or use --engine local"
        in err
    )


def test_every_port_of_an_own_cluster_is_on_this_machine_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    with engine(Workers("dask", number=1), tmp_path) as run:
        me = psutil.Process()
        processes = [me, *me.children(recursive=True)]
        opened = [
            c
            for p in processes
            for c in p.net_connections("inet")
            if c.status == psutil.CONN_LISTEN
        ]
        environments = [
            p.environ()
            for p in me.children(recursive=True)
            if "spawn_main" in " ".join(p.cmdline())
        ]
        scratch = list(tmp_path.glob(".scratch-*"))
        assert run is not None
    assert opened and {connection.laddr.ip for connection in opened} == {"127.0.0.1"}, opened
    assert environments and all(found["OMP_NUM_THREADS"] == "1" for found in environments)
    assert scratch and not list(tmp_path.iterdir())


def test_workers_get_one_thread_and_no_heap_trimming():
    import dask

    assert "MALLOC_TRIM_THRESHOLD_" in dask.config.get("distributed.nanny.pre-spawn-environ"), (
        "nothing to drop"
    )
    environment = _settings()["distributed.nanny.pre-spawn-environ"]
    assert "MALLOC_TRIM_THRESHOLD_" not in environment
    assert {environment[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")} == {"1"}


def test_a_campaign_of_thirty_kills_is_on_record():
    with (Path(__file__).parents[2] / "reports" / "kill_campaign.csv").open(
        encoding="utf-8"
    ) as opened:
        rows = list(csv.DictReader(opened))
    assert tuple(rows[0]) == COLUMNS and {row["kind"] for row in rows} == {*KINDS, "all"}
    assert int(rows[-1]["kills"]) == sum(int(row["kills"]) for row in rows[:-1]) >= 30
    damage = ("rows_lost", "rows_doubled", "files_different", "left_over")
    assert all(row[name] == "0" for row in rows for name in damage)
