"""The page of a sweep: from the shards alone, saying what they hold and no more; and the command
line around it."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import MARKS, unfold
from sweeping import (
    PLACE,
    SMALL,
    WITHOUT_FRAMES,
    make_corpus,
    make_model,
    some_sentences,
    table,
    write_rows,
)

from probe import charts
from probe.errors import InputError
from probe.model import load
from probe.pages import sweep as page
from probe.stats import resampling
from probe.sweep import shards, summary
from probe.sweep.run import Pace, Standing, duration, said, shown, sweep

pytestmark = pytest.mark.slow

HOSTILE = (
    "</script><script>window.canary = 1</script>",
    "<img src=x onerror='window.canary = 1'>",
    '\'" onmouseover="window.canary=1',
    "{{ 7 * 7 }} ${7*7} \u202eevil\u202c",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "one-head")


@pytest.fixture(scope="module")
def swept(folder, tmp_path_factory):
    corpus = make_corpus(tmp_path_factory.mktemp("corpus") / "sentences.jsonl", 300)
    return sweep(str(folder), [corpus], tmp_path_factory.mktemp("swept"), options=SMALL)


@pytest.fixture(scope="module")
def frames(swept):
    return summary.frames(summary.add_up(swept.folder, swept.manifest), swept.folder)


def test_effects_are_ratios_of_sums_over_the_shards(swept, frames):
    heads, sentences = table(swept.folder, "heads"), table(swept.folder, "sentences")
    joined = heads.merge(sentences[["sentence", "gap"]], on="sentence")
    ratios = []
    for sense in ("canal", "door"):
        mine = (
            joined[joined["sense"] == sense]
            .groupby(["layer", "head"])[["swap", "same_sense", "gap"]]
            .sum()
        )
        ratios.append(mine.div(mine["gap"], axis=0))
    found = frames["heads"].set_index(["layer", "head"])
    expected = (ratios[0] + ratios[1]) / 2
    assert np.allclose(found["swap"], expected["swap"], atol=1e-5)
    assert np.allclose(found["net"], (expected["swap"] - expected["same_sense"]), atol=1e-5)
    assert np.allclose(found["noise"], ratios[0]["swap"], atol=1e-5)
    means = heads.groupby(["layer", "head"])[["norm", "attention_cue"]].mean()
    assert np.allclose(found[["norm", "attention_cue"]], means, rtol=1e-4)


def test_the_planted_head_is_found_and_no_other(frames):
    heads = frames["heads"].set_index(["layer", "head"])
    assert (
        heads.loc[PLACE, "net"] == pytest.approx(1, abs=0.05) and heads.loc[PLACE, "p_swap"] < 0.01
    )
    assert heads.loc[PLACE, "auroc"] > 0.99 and heads.loc[PLACE, "rank"] == 1
    assert heads.loc[PLACE, "net_low"] < heads.loc[PLACE, "net"] < heads.loc[PLACE, "net_high"]
    assert heads.drop([PLACE])["net"].abs().max() < page.SMALLEST, (
        "certain perhaps, but nothing worth a word"
    )
    word = frames["words"].iloc[0]
    assert word["ranked"] and word["auroc"] > 0.99 and 0.8 < word["gap"] < 1.2


def test_distributions_are_those_of_the_shards(swept, frames):
    sentences = table(swept.folder, "sentences").query("part == 'report'")
    depth = frames["depth"].set_index(["depth", "sense"])
    for name, at in (("token", -1), ("0", 0), ("2", 2), ("3", 3)):
        for sense, sign in (("canal", 1), ("door", -1)):
            values = sign * sentences.loc[sentences["sense"] == sense, f"coordinate_{name}"]
            assert depth.loc[(at, sense), "coordinate"] == pytest.approx(values.mean(), abs=1e-5)
            assert depth.loc[(at, sense), "low"] == pytest.approx(values.quantile(0.1), abs=0.06)
    assert charts.gap_at(frames["depth"], "lock", ("canal", "door"), depth=-1) == 0


def test_auroc_by_histogram_is_auroc():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.4, 1, 500), rng.normal(0, 1, 400)
    bins = [
        np.bincount(summary._bin(x, summary.REACH, summary.BINS), minlength=summary.BINS)
        for x in (a, b)
    ]
    above = (a[:, None] > b).mean() + (a[:, None] == b).mean() / 2
    assert summary.auroc(*bins) == pytest.approx(above, abs=2e-3)
    assert summary.auroc(bins[0], bins[0]) == 0.5
    assert summary.quantile(bins[0], 0.1) == pytest.approx(np.quantile(a, 0.1), abs=0.02)


def test_sign_flips_from_sums_are_those_of_the_rows(swept):
    summed = summary.add_up(swept.folder, swept.manifest)
    [total] = summed.totals.values()
    heads, sentences = (
        table(swept.folder, "heads"),
        table(swept.folder, "sentences").query("part == 'report'"),
    )
    net = (heads["swap"] - heads["same_sense"]).to_numpy().reshape(len(sentences), -1)
    expected = resampling.flip_null(
        net, sentences["cue"].tolist(), draws=3, rng=np.random.default_rng(0)
    )
    assert np.allclose(summary._flips(total)[0], expected[0], rtol=1e-3, atol=1e-4)


def test_nothing_is_ranked_where_the_gap_is_not_there(folder, tmp_path):
    made = some_sentences(300)
    rng = np.random.default_rng(2)
    mixed = [replace(s, sense=str(rng.choice(["canal", "door"]))) for s in made]
    given = write_rows(tmp_path / "s.jsonl", mixed, keep=WITHOUT_FRAMES)
    result = sweep(str(folder), [given], tmp_path / "o", options=SMALL)
    found = summary.frames(summary.add_up(result.folder, result.manifest), result.folder)
    assert (
        not found["words"]["ranked"].any()
        and found["heads"]["net"].isna().all()
        and found["word_heads"].empty
    )
    written = page.write_page(tmp_path / "o", tmp_path / "page").read_text(encoding="utf-8")
    assert "were not shown to be apart at the word, so no effect is given" in written


def test_the_page_needs_no_model_and_says_what_it_cannot_say(swept, run, tmp_path, monkeypatch):
    monkeypatch.setattr(load, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    assert run("report", "--from", swept.folder.parent, "--out", tmp_path / "out")[0] == 0
    text = (tmp_path / "out" / "sweep.html").read_text(encoding="utf-8")
    counts = swept.manifest["counts"]
    assert (
        f"300 read = {counts['measured']} measured + {counts['fitted_on']} fitted on + 0 left out"
        in text
    )
    assert "No verdicts." in text and "Shown to resolve" not in text and "No controls:" in text
    assert "Swapping the output of a head moves the word towards the other sense: L1H2 " in text
    assert set(json.loads((tmp_path / "out" / "manifest.json").read_text())["files"]) >= {
        "sweep.html",
        "heads.parquet",
    }
    assert pd.read_parquet(tmp_path / "out" / "heads.parquet")["net"].notna().all()


def test_the_same_shards_give_the_same_page(swept, tmp_path):
    pages = [page.write_page(swept.folder, tmp_path / name).read_bytes() for name in ("one", "two")]
    assert pages[0] == pages[1]


def test_heads_above_the_read_out_are_not_shown_as_if_they_did_nothing(frames):
    above = frames["word_heads"].assign(
        rank=lambda rows: rows["rank"].mask(rows["layer"] > 1), verdict="none"
    )
    card = page._card(frames, above, "lock")
    assert card["all"] == len(card["rows"]) == (above["layer"] < 2).sum() < len(above)
    assert "no effect possible" in json.dumps(card["map"].to_dict())


def test_a_page_is_refused_where_the_sweep_is_not_whole(swept, tmp_path):
    for place, words, told in (
        (
            tmp_path,
            None,
            "no finished sweep is there, expected the folder that `probe sweep --out` wrote",
        ),
        (
            swept.folder,
            ["wug"],
            "Drawing 'wug' from the sweep: it has no measured sentence, the words there are lock;",
        ),
    ):
        with pytest.raises(InputError, match=told):
            page.write_page(place, tmp_path / "out", words=words)
    victim = sorted((swept.folder / "heads").glob("*.parquet"))[2]
    content = victim.read_bytes()
    victim.write_bytes(content[:-30])
    try:
        with pytest.raises(
            InputError, match=rf"Reading .*{victim.name}: its checksum is not that of its receipt"
        ):
            page.write_page(swept.folder, tmp_path / "out")
        assert shards.done(swept.folder, victim.stem) is None
    finally:
        victim.write_bytes(content)
    assert not (tmp_path / "out").exists() and shards.done(swept.folder, victim.stem)


def test_a_receipt_cannot_point_elsewhere(swept, tmp_path):
    key = swept.manifest["shards"][0]
    receipt = swept.folder / shards.RECEIPTS / f"{key}.json"
    before = receipt.read_bytes()
    receipt.write_text(
        json.dumps(json.loads(before) | {"files": {"../../../../etc/hostname": "0" * 64}})
    )
    try:
        with pytest.raises(InputError, match="it is not the receipt of a shard"):
            summary.add_up(swept.folder, swept.manifest)
    finally:
        receipt.write_bytes(before)


@pytest.mark.browser
@MARKS[1]
def test_hostile_names_stay_text(folder, tmp_path, open_page):
    named = [
        replace(s, sense=HOSTILE[0] if s.sense == "door" else HOSTILE[1])
        for s in some_sentences(300)
    ]
    file = write_rows(tmp_path / f"{HOSTILE[2]} {HOSTILE[3]}.jsonl", named, keep=WITHOUT_FRAMES)
    sweep(str(folder), [file], tmp_path / "o", options=SMALL)
    opened = open_page(page.write_page(tmp_path / "o", tmp_path / "page"))
    unfold(opened.page)
    opened.page.locator("#words .chart .mark-rect path").first.hover(force=True)
    shown_text = opened.page.evaluate("document.querySelector('main').textContent")
    assert opened.page.evaluate("window.canary") is None
    assert opened.trouble == [] and opened.requests == [(tmp_path / "page" / "sweep.html").as_uri()]
    assert opened.page.locator("main img").count() == 0
    assert all(text in shown_text for text in HOSTILE[:2]) and HOSTILE[2] in shown_text


def test_the_query_of_the_docs_finds_the_head(swept):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    text = (Path(__file__).parents[2] / "reports/docs/pages/corpus.md").read_text(encoding="utf-8")
    query = re.search(r"```sql\n(.+?)```", text, re.DOTALL)[1].replace(
        "'shards/", f"'{swept.folder.parent}/"
    )
    first = duckdb.sql(query).df().iloc[0]
    assert (first["word"], first["layer"], first["head"]) == ("lock", *PLACE)
    assert first["net"] == pytest.approx(1, abs=0.05) and first["to_cue"] > 0.8


def test_the_shards_open_as_one_dataset(swept):
    import pyarrow.dataset

    for kind, rows in (("sentences", 300), ("heads", swept.manifest["counts"]["rows_of_heads"])):
        assert pyarrow.dataset.dataset(swept.folder / kind).count_rows() == rows
        assert len(pd.read_parquet(swept.folder / kind)) == rows


def test_the_command_takes_several_files_and_says_what_became_of_them(folder, tmp_path, run):
    made, given = some_sentences(300), tmp_path / "given"
    given.mkdir()
    for name, part in (("a.jsonl", made[:150]), ("b c.jsonl", made[150:])):
        write_rows(given / name, part, keep=WITHOUT_FRAMES)
    base = ("--model", folder, "--out", tmp_path / "out", "--block", 64)
    code, out, err = run("sweep", "--sentences", given / "a.jsonl", given / "b c.jsonl", *base)
    told = (
        r"^300 sentences: \d+ measured, \d+ fitted on, 0 left out; 5 shards, "
        r"[\d,]+ rows of heads\.$"
    )
    assert code == 0 and re.search(told, out, re.MULTILINE)
    assert re.search(r"^measuring: 300 of 300 sentences, [\d.]+ per second", err, re.MULTILINE)
    made_by = json.loads((tmp_path / "out" / "manifest.json").read_text())["command"]
    given_as = (
        f"--sentences a.jsonl 'b c.jsonl' --model {folder.name} --seed 0 --block 64 --out shards"
    )
    assert made_by == f"probe sweep {given_as}"
    code, out, err = run("sweep", "--sentences", given, *base, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and err == "" and lines[-1]["counts"]["in"] == 300
    assert lines[0]["stage"] == "reading" and {
        "stage",
        "done",
        "of",
        "per_second",
        "seconds_left",
    } == set(lines[1])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--engine", "ray"),
            "Sweeping with the engine 'ray': expected one of local, dask; give one of these.",
        ),
        (("--model", "./nowhere"), "./nowhere"),
        (("--sentences", "nowhere.jsonl"), "there is no such file"),
        (("--sentences", "notes.md"), "got a name ending in '.md'"),
    ],
)
def test_mistakes_are_one_sentence(folder, run, tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    make_corpus(tmp_path / "s.jsonl", 100)
    (tmp_path / "notes.md").write_text("x\n")
    code, out, err = run(
        "sweep", "--sentences", "s.jsonl", "--model", folder, "--out", "out", *arguments
    )
    assert code == 2 and told in err and out == ""
    assert [line for line in err.splitlines() if line.startswith("probe: ")] == [
        err.splitlines()[-1]
    ]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_pace_counts_what_was_done_since_the_stage_began():
    clock = Clock()
    pace = Pace(clock=clock)
    assert pace("measuring", 500, 1000).per_second == 0
    clock.now = 10.0
    facts = pace("measuring", 600, 1000)
    assert facts == Standing("measuring", done=600, of=1000, per_second=10.0, seconds_left=40)
    assert said(facts) == "measuring: 600 of 1,000 sentences, 10.0 per second, 40 s left"
    assert [duration(s) for s in (8, 190, 7500)] == ["8 s", "3 min 10 s", "2 h 5 min"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_a_line_a_minute_and_a_machine_lines_of_json():
    clock = Clock()
    for as_json, every in ((False, 60), (True, 1)):
        out, err = io.StringIO(), io.StringIO()
        with shown(as_json=as_json, out=out, err=err, clock=clock) as step:
            for second in range(10 * every + 1):
                clock.now += 1
                step("measuring", second, 10 * every)
        told, silent = (out, err) if as_json else (err, out)
        lines = told.getvalue().splitlines()
        assert len(lines) == 11 and silent.getvalue() == ""
        assert json.loads(lines[3])["of"] == 10 if as_json else lines[3].endswith(" left")


def test_a_terminal_gets_a_bar_with_its_pace(monkeypatch):
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with shown(as_json=False, out=io.StringIO(), err=screen) as step:
        step("measuring", 0, 100)
        step("measuring", 100, 100)
    assert "sentences/s" in screen.getvalue() and "100/100" in screen.getvalue()
