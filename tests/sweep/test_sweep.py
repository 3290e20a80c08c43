"""Sweeps in one process: the numbers are the study's, every row is there once, what is done is kept, what is damaged is
made again.
"""

import json
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch
from families import make_family
from sweeping import (
    PLACE,
    SMALL,
    WITHOUT_FRAMES,
    fingerprints,
    lost_and_doubled,
    make_corpus,
    make_model,
    some_sentences,
    table,
    temporaries,
    write_rows,
)

import probe
from probe.errors import InputError
from probe.model import attention
from probe.model.architectures import FAMILIES
from probe.model.tokens import positions_of_span
from probe.model.trace import run as run_family
from probe.model.trace import target_states, trace
from probe.model.weights import read_weights
from probe.patching import swaps
from probe.study.material import prepare
from probe.sweep import shards, work
from probe.sweep.deal import deal
from probe.sweep.measure import fit_word, from_file, measure, to_bytes
from probe.sweep.run import Sweep, sweep
from probe.text.files import sources
from probe.text.sentences import stream_sentences

ROWS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "one-head")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus") / "sentences.jsonl", ROWS)


@pytest.fixture(scope="module")
def swept(folder, corpus, tmp_path_factory):
    return sweep(str(folder), [corpus], tmp_path_factory.mktemp("swept"), options=SMALL)


def test_every_row_is_in_one_shard_and_the_counts_add_up(swept, corpus):
    counts = swept.manifest["counts"]
    assert counts["in"] == ROWS == counts["fitted_on"] + counts["measured"] + counts["left_out"]
    assert min(counts["fitted_on"], counts["measured"]) > 30
    assert lost_and_doubled(swept.folder, ROWS) == (0, 0)
    sentences = table(swept.folder, "sentences")
    assert sentences["sentence"].tolist() == list(range(ROWS))
    assert sentences["where"].tolist() == [f"sentences.jsonl line {number}" for number in range(1, ROWS + 1)]
    assert counts["rows_of_heads"] == 12 * counts["measured"] == len(table(swept.folder, "heads"))
    assert temporaries(swept.folder.parent) == []


def test_the_only_head_that_resolves_moves_the_word_all_the_way(swept):
    heads, sentences = table(swept.folder, "heads"), table(swept.folder, "sentences")
    gap = sentences.loc[sentences["part"] == "report", "gap"].sum()
    effect = heads.groupby(["layer", "head"])["swap"].sum() / gap
    assert effect[PLACE] == pytest.approx(1, abs=0.03)
    assert effect.drop([PLACE]).abs().max() < 0.02
    assert heads.loc[(heads["layer"] == 1) & (heads["head"] == 2), "attention_cue"].min() > 0.8
    after = sentences.loc[sentences["part"] == "report"]
    assert (after["coordinate_token"].abs() < 1e-6).all(), "the same token everywhere"
    assert after["coordinate_2"].mean() == pytest.approx(0.5, abs=0.1)
    assert set(after["other"]) == {"door", "canal"} and (after["other"] != after["sense"]).all()


def test_no_cue_word_is_fitted_on_and_measured(swept):
    sentences = table(swept.folder, "sentences")
    sides = {part: set(rows["cue"]) for part, rows in sentences.groupby("part")}
    assert sides["report"] and not sides["report"] & sides["fitted"]


@pytest.fixture(scope="module")
def block(folder, corpus, tmp_path_factory):
    """The model, some records of the corpus, and the axes of their word."""
    model = probe.load(folder)
    place = tmp_path_factory.mktemp("block")
    index = deal(sources([corpus]), place, SMALL, causal=True)
    [about] = index["words"].values()
    found = {name: sha for name, sha in shards.done(place, "rows")["rows_files"].items()}
    records = work.read_rows(place, about["key"], found[f"rows/{about['key']}.parquet"])
    axes = fit_word(model, records, ["canal", "door"], seed=0)
    rows = work.read_rows(place, index["blocks"][0]["key"], found[f"rows/{index['blocks'][0]['key']}.parquet"])
    return model, rows, axes, {("lock", sense): draw for sense, (_, draw) in about["fit"].items()}


def test_what_is_measured_is_what_traces_and_swaps_give(block):
    model, rows, axes, fitted = block
    sentences, heads = measure(model, rows, {"lock": axes}, fitted)
    by_number = {record["sentence"]: record for record in rows}
    frame = heads.to_pandas().set_index(["sentence", "layer", "head"]).sort_index()
    weights = read_weights(model)
    for row in sentences.to_pandas().query("part == 'report'").to_dict("records")[:4]:
        record = by_number[row["sentence"]]
        whole = trace(model, record["text"])
        at = next(pos for pos, (low, _) in enumerate(whole.tokens.spans) if low == record["start"] and pos)
        cue = next(pos for pos, (low, _) in enumerate(whole.tokens.spans) if low == record["cue_start"] and pos)
        sign = 1 if record["sense"] == "canal" else -1  # canal comes first in the alphabet
        resid = whole.resid_post[axes.depth - 1, at].double()
        assert row[f"coordinate_{axes.depth}"] == pytest.approx(
            sign * float(resid @ axes.u[0] - axes.centre[0, axes.depth + 1]) / float(axes.gap[0]), abs=1e-4
        )
        found = frame.loc[row["sentence"]]
        delta_e = attention.write(whole.z[:, :, [at]], torch.stack([block.w_o for block in weights.blocks]))[:, :, 0]
        assert found["norm"].to_numpy() == pytest.approx(delta_e.norm(dim=-1).numpy().ravel(), rel=1e-4)
        along = sign * (delta_e.double() @ axes.u[0] / axes.gap[0])
        assert found["axis"].to_numpy() == pytest.approx(along.numpy().ravel(), abs=1e-5)
        assert found["attention_cue"].to_numpy() == pytest.approx(
            whole.pattern[:, :, at, cue].numpy().ravel(), abs=1e-5
        )
        previous = whole.pattern[:, :, at, at - 1].numpy().ravel()
        assert found["attention_previous"].to_numpy() == pytest.approx(previous, abs=1e-5)


def test_a_swap_with_itself_moves_nothing_and_donors_are_of_the_sense_that_is_said(block):
    model, rows, axes, _ = block
    chosen = [record for record in rows if record["part"] == "report"][:6]
    cut = [trace(model, record["text"]).tokens for record in chosen]
    ids = [
        tokens.ids[: next(pos for pos, (low, _) in enumerate(tokens.spans) if pos and low == record["start"]) + 1]
        for tokens, record in zip(cut, chosen, strict=True)
    ]
    own = target_states(model, cut, [len(row) - 1 for row in ids]).z[:, : axes.depth]
    moved = swaps.swap_heads(read_weights(model), ids, own, axes.directions)
    assert moved.abs().max() < 1e-5
    for record in chosen:
        draw = work_draw(record, axes)
        assert axes.senses[axes.donor_sense[draw["donor"]]] == draw["other"] != record["sense"]
        assert axes.senses[axes.donor_sense[draw["same"]]] == record["sense"]
        assert axes.donors[draw["same"]] != record["draw"]
    assert len({work_draw(record, axes)["same"] for record in chosen}) > 2, "drawn anew for every sentence"


def work_draw(record, axes):
    from probe.sweep.measure import _draw

    return _draw(record, axes)


def test_own_scores_are_a_half_at_the_means_of_the_fitted_sentences(block):
    model, _, axes, _ = block
    assert axes.own.shape == (1, 3, 4, 10)
    along = (axes.donor_z.double() * axes.own[0]).sum(-1) - axes.own_centre[0]
    resolver = along[:, PLACE[0], PLACE[1]]
    assert resolver[axes.donor_sense == 0].min() > 0 > resolver[axes.donor_sense == 1].max()
    written = axes.donor_z[:, PLACE[0], PLACE[1]] @ read_weights(model).blocks[PLACE[0]].w_o[PLACE[1]]
    assert axis_of(axes).effect(written)[axes.donor_sense == 0].min() > 0.2


def axis_of(axes):
    from probe.stats.axes import Axis

    return Axis("canal", "door", axes.depth, axes.u[0], torch.zeros(80), float(axes.gap[0]))


def test_axes_are_the_same_after_a_file(block, tmp_path):
    _, _, axes, _ = block
    (tmp_path / "axes.safetensors").write_bytes(to_bytes(axes))
    again = from_file(str(tmp_path / "axes.safetensors"))
    assert to_bytes(again) == to_bytes(axes)
    assert (again.senses, again.depth, again.donors) == (axes.senses, axes.depth, axes.donors)
    assert torch.equal(again.u, axes.u) and torch.equal(again.donor_z, axes.donor_z)


def again(swept: Sweep, folder, corpus, *, options=SMALL) -> tuple[Sweep, list[str]]:
    """The same sweep once more, and the keys of the units that were made."""
    made = []
    original = work.make

    def counted(job, unit):
        made.append(unit.key)
        return original(job, unit)

    work.make, before = counted, work.make
    try:
        return sweep(str(folder), [corpus], swept.folder.parent, options=options), made
    finally:
        work.make = before


def test_what_is_finished_is_not_made_again(swept, folder, corpus):
    before = fingerprints(swept.folder)
    result, made = again(swept, folder, corpus)
    assert made == [] and result.folder == swept.folder and result.said is None
    assert fingerprints(swept.folder) == before
    assert result.manifest["counts"] == swept.manifest["counts"]


@pytest.mark.parametrize("kind", ["heads", "sentences"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "link"])
def test_a_damaged_shard_is_found_by_its_checksum_and_made_again(swept, folder, corpus, tmp_path, kind, damage):
    before = fingerprints(swept.folder)
    victim = sorted((swept.folder / kind).glob("*.parquet"))[1]
    content = victim.read_bytes()
    victim.unlink()
    if damage == "truncated":
        victim.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        victim.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    elif damage == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        victim.symlink_to(tmp_path / "elsewhere")
    _, made = again(swept, folder, corpus)
    assert made == [victim.stem]
    assert fingerprints(swept.folder) == before and not victim.is_symlink()
    if damage == "link":
        assert (tmp_path / "elsewhere").read_bytes() == content, "what a link points to is never written"


def test_a_shard_without_its_receipt_is_made_again(swept, folder, corpus):
    before = fingerprints(swept.folder)
    receipt = swept.folder / "receipts" / f"{min((swept.folder / 'heads').glob('*.parquet')).stem}.json"
    receipt.write_text("{")
    _, made = again(swept, folder, corpus)
    assert made == [receipt.stem] and fingerprints(swept.folder) == before


def test_damaged_rows_and_axes_are_made_again(swept, folder, corpus):
    before = fingerprints(swept.folder)
    axes = next((swept.folder / "axes").glob("*.safetensors"))
    axes.write_bytes(axes.read_bytes()[:-8])
    assert again(swept, folder, corpus)[1] == [axes.stem]
    (swept.folder / "rows.json").write_text("{}")
    assert again(swept, folder, corpus)[1] == []
    assert fingerprints(swept.folder) == before


def test_temporaries_of_the_dead_are_removed(swept, folder, corpus):
    stale = swept.folder / "heads" / ".0123.parquet.89ab.part"
    stale.write_bytes(b"half a shard")
    (swept.folder / ".scratch-old").mkdir()
    (swept.folder / ".scratch-old" / "seen.sqlite").write_bytes(b"old")
    again(swept, folder, corpus)
    assert temporaries(swept.folder) == []


def test_a_changed_option_is_another_set_and_says_so(swept, folder, corpus):
    before = fingerprints(swept.folder)
    other, made = again(swept, folder, corpus, options=replace(SMALL, seed=1))
    assert other.folder != swept.folder and made
    assert f"{swept.folder.name}; different now: seed (0, now 1)." in other.said
    assert fingerprints(swept.folder) == before
    assert set(fingerprints(other.folder)).isdisjoint(before), "shards are named by what made them"
    back, made = again(swept, folder, corpus)
    assert back.folder == swept.folder and made == [] and "seed (1, now 0)" in back.said


def test_other_sentences_are_another_set(swept, folder, tmp_path):
    more = make_corpus(tmp_path / "sentences.jsonl", ROWS + 1)
    result = sweep(str(folder), [more], swept.folder.parent, options=SMALL)
    assert result.folder != swept.folder and "different now: the sentences." in result.said
    again(swept, folder, tmp_path / "sentences.jsonl")


def test_two_sweeps_never_write_one_set(swept, folder, corpus):
    with (
        shards.only_writer(swept.folder),
        pytest.raises(InputError, match="another sweep is writing there; wait for it"),
    ):
        sweep(str(folder), [corpus], swept.folder.parent, options=SMALL)


def test_parts_do_not_depend_on_the_order_of_the_rows(tmp_path):
    made = some_sentences(200)
    shuffled = random.Random(4).sample(made, len(made))
    parts = []
    for name, sentences in (("one", made), ("two", shuffled)):
        place = tmp_path / name
        place.mkdir()
        with shards.only_writer(place):
            index = deal(
                sources([write_rows(place / "rows.jsonl", sentences, keep=WITHOUT_FRAMES)]), place, SMALL, causal=True
            )
        files = shards.done(place, "rows")["rows_files"]
        records = [
            r for b in index["blocks"] for r in work.read_rows(place, b["key"], files[f"rows/{b['key']}.parquet"])
        ]
        parts.append({(r["sense"], r["text"]): (r["part"], r["draw"]) for r in records})
        fitted = {w["key"]: w["fit"] for w in index["words"].values()}
        parts.append([value for value in fitted.values()])
    assert parts[0] == parts[2] and parts[1] == parts[3]
    assert 0.2 < np.mean([part == "fit" for part, _ in parts[0].values()]) < 0.5


def test_the_rules_that_leave_rows_out(tmp_path, folder):
    made = some_sentences(220)
    late = replace(made[0], text=f"{made[0].text} lock once", start=len(made[0].text) + 1, end=len(made[0].text) + 5)
    late = replace(
        late, text=f"a lock near {late.text}", start=2, end=6, cue_start=late.cue_start + 12, cue_end=late.cue_end + 12
    )
    long = replace(made[1], text=made[1].text + " again" * 40)
    twin = replace(made[2], sense="door" if made[2].sense == "canal" else "canal", text=made[2].text + " we")
    given = write_rows(tmp_path / "s.jsonl", [*made, made[5], late, long, twin], keep=WITHOUT_FRAMES)
    result = sweep(str(folder), [given], tmp_path / "out", options=SMALL)
    reasons = result.manifest["counts"]["reasons"]
    assert reasons["repeats the sentence"] == 1
    assert reasons["the cue comes after the word, where a causal model cannot have read it yet"] == 1
    assert (
        reasons[
            "identical to a sentence of another sense up to the word, so a causal model cannot tell them apart there"
        ]
        == 2
    )
    assert lost_and_doubled(result.folder, 224) == (0, 0)
    sentences = table(result.folder, "sentences")
    if sentences.loc[222, "part"] is None:  # else it is in the fit part, and was not read
        assert sentences.loc[222, "reason"] == "it has more tokens than the context window of 32"
    assert sentences.loc[220, "reason"] == "repeats the sentence, span and sense of s.jsonl line 6"


def test_a_bad_row_stops_before_anything_is_measured(tmp_path, folder):
    given = write_rows(tmp_path / "s.jsonl", some_sentences(50), keep=WITHOUT_FRAMES)
    with given.open("a") as opened:
        opened.write('{"word": "lock", "sense": "door", "text": "a lock", "start": 2, "end": 60}\n\n[1]\n')
    with pytest.raises(InputError) as caught:
        sweep(str(folder), [given], tmp_path / "out", options=SMALL)
    assert str(caught.value) == (
        f"Reading {given}, line 51: the word is at characters 2 to 60, expected a span within the 6 characters "
        "of the text "
        "(2 of 52 rows are bad); correct the file and read it again."
    )
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_too_few_sentences_are_refused(tmp_path, folder):
    given = write_rows(tmp_path / "s.jsonl", some_sentences(6), keep=WITHOUT_FRAMES)
    with pytest.raises(InputError, match="no word has two senses with at least 4 sentences in the fit part"):
        sweep(str(folder), [given], tmp_path / "out", options=SMALL)


def test_a_full_disk_is_one_sentence_and_finished_shards_are_good(tmp_path, folder, corpus, monkeypatch):
    import errno
    import os

    replace_file, left = os.replace, [22]

    def full(source, target):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(
        InputError, match=r"Writing .*/set-[0-9a-f]{16}/.*: the disk is full; make room there, or choose another"
    ):
        sweep(str(folder), [corpus], tmp_path / "out", options=SMALL)
    assert temporaries(tmp_path) == []
    monkeypatch.setattr(os, "replace", replace_file)
    [place] = (tmp_path / "out").glob("set-*")
    kept = fingerprints(place)
    result = sweep(str(folder), [corpus], tmp_path / "out", options=SMALL)
    assert kept and kept.items() <= fingerprints(result.folder).items()
    assert lost_and_doubled(result.folder, ROWS) == (0, 0)


def test_the_manifest_says_what_made_the_shards_and_nothing_of_this_machine(swept, folder, corpus):
    made = json.loads((swept.folder.parent / "manifest.json").read_text())
    assert made["weights_sha256"] == probe.load(folder).origin.sha256
    place = {"device": "cpu", "dtype": "float32"}
    assert made["options"] == {"seed": 0, "fit_most": 60, "donors": 8, "block": 32} | place
    assert list(made["sources"]) == ["sentences.jsonl"] and len(made["shards"]) == made["counts"]["shards"]
    assert str(corpus.parent) not in json.dumps(made) and str(folder.parent) not in json.dumps(made)


def test_reading_takes_no_memory_for_the_rows_before(tmp_path):
    """Ten times the rows, the same peak: what is held is per word."""
    import tracemalloc

    peaks = []
    for count in (2_000, 20_000):
        rows = (
            {
                "word": "lock",
                "sense": "ab"[n % 2],
                "text": f"the {n} lock",
                "start": len(f"the {n} "),
                "end": len(f"the {n} lock"),
            }
            for n in range(count)
        )
        file = tmp_path / f"{count}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        tracemalloc.start()
        assert sum(1 for _ in stream_sentences(sources([file]))) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 50_000


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_sweep_of_any_family_measures_what_its_traces_give(kind, tmp_path):
    model = probe.load(make_family(tmp_path / kind, kind))
    corpus = make_corpus(tmp_path / "s.jsonl", 120)
    result = sweep(str(tmp_path / kind), [corpus], tmp_path / "out", options=SMALL)
    counts = result.manifest["counts"]
    assert counts["in"] == 120 == counts["fitted_on"] + counts["measured"] + counts["left_out"] and counts["measured"]
    assert lost_and_doubled(result.folder, 120) == (0, 0)
    frame = table(result.folder, "heads").set_index(["sentence", "layer", "head"])
    sentences = table(result.folder, "sentences").query("part == 'report'")
    given = {number: json.loads(line) for number, line in enumerate(corpus.read_text().splitlines())}
    rows = pyarrow.parquet.read_table(result.folder / "rows", columns=["sentence", "draw"]).to_pylist()
    draws = {row["sentence"]: row["draw"] for row in rows}
    [axes] = [from_file(str(file)) for file in (result.folder / "axes").glob("*.safetensors")]
    for row in sentences.to_dict("records")[:4]:
        record = given[row["sentence"]]
        whole = trace(model, record["text"])
        at = positions_of_span(whole.tokens, record["start"], record["end"])[-1]
        sign = 1 if record["sense"] == "canal" else -1
        resid = whole.resid_post[axes.depth - 1, at].double()
        expected = sign * float(resid @ axes.u[0] - axes.centre[0, axes.depth + 1]) / float(axes.gap[0])
        assert row[f"coordinate_{axes.depth}"] == pytest.approx(expected, abs=1e-3)
        heads = frame.loc[row["sentence"]]
        previous = whole.pattern[:, :, at, at - 1].numpy().ravel()
        assert heads["attention_previous"].to_numpy() == pytest.approx(previous, abs=1e-4)
        draw = {"draw": draws[row["sentence"]], "sense": record["sense"]}
        donor = axes.donor_z[work_draw(draw, axes)["donor"]]
        ids = whole.tokens.ids if kind == "bert" else whole.tokens.ids[: at + 1]
        for layer, head in heads.index:
            if layer < axes.depth:
                change = hooked_swap(model, ids, at, (layer, head), donor, axes.depth).double() - resid
                moved = -sign * float(change @ axes.directions[0])
                assert heads.loc[(layer, head), "swap"] == pytest.approx(moved, abs=1e-3)
            else:
                assert heads.loc[(layer, head), "swap"] == 0


def hooked_swap(model, ids, at, place, donor, depth):
    """The residual stream at the word, behind `depth` blocks of the hooked model, with one head's z put in."""
    [attention], kept = FAMILIES[model.config.architecture].attentions, []
    layer, head = place

    def put(tensor, hook):
        changed = tensor.clone()
        changed[:, at, head] = donor[layer, head]
        return changed

    hooks = [
        (f"{attention.blocks}.{layer}.{attention.hooks['z']}", put),
        (f"{attention.blocks}.{depth - 1}.{attention.hooks['resid_post']}", lambda tensor, hook: kept.append(tensor)),
    ]
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        run_family(model, [ids])
    return kept[0][0, at]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_reader_and_sweep_leave_out_the_same_rows_for_the_same_reason(folder, tmp_path, ending):
    made = some_sentences(120)
    doubled = [*made[:60], made[3], *made[60:], made[7], made[3]]
    file = write_table(tmp_path / f"s{ending}", doubled)
    read = probe.read_sentences(file).left_out
    assert len(read) == 3 and all(item.reason.startswith("repeats the sentence, span and sense of ") for item in read)
    evaluated = probe.evaluate(probe.load(folder), probe.read_sentences(file)).left_out
    assert [(item.where, item.reason) for item in read] == list(
        zip(evaluated["where"][:3], evaluated["reason"][:3], strict=True)
    )
    swept = table(sweep(str(folder), [file], tmp_path / "out", options=SMALL).folder, "sentences")
    swept = swept[swept["reason"].str.startswith("repeats", na=False)]
    name = f"{file.name} "
    assert [(item.where, item.reason) for item in read] == [
        (where.removeprefix(name), reason.replace(name, ""))
        for where, reason in zip(swept["where"], swept["reason"], strict=True)
    ]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_reader_and_sweep_refuse_a_bad_row_in_the_same_sentence(folder, tmp_path, ending):
    rows = [vars(sentence) for sentence in some_sentences(30)]
    file = write_table(tmp_path / f"s{ending}", [*rows, rows[0] | {"end": 900}, rows[1] | {"sense": " "}])
    with pytest.raises(InputError) as read:
        probe.read_sentences(file)
    with pytest.raises(InputError) as swept_:
        sweep(str(folder), [file], tmp_path / "out", options=SMALL)
    assert str(read.value) == str(swept_.value) and "(2 of 32 rows are bad)" in str(read.value)


def write_table(path, sentences):
    """Rows without frame and pair in the form that the ending names."""
    rows = [given if isinstance(given, dict) else vars(given) for given in sentences]
    frame = pd.DataFrame(rows)[[name for name in WITHOUT_FRAMES if name != "split"]]
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="," if path.suffix == ".csv" else "\t")
    return path


def test_a_span_on_another_word_is_left_out_of_evaluation_and_sweep_alike(folder, tmp_path):
    made = some_sentences(120)
    at = made[0].cue_start
    wrong = replace(made[0], start=at, end=made[0].cue_end, cue_start=None, cue_end=None, split="train")
    file = write_rows(tmp_path / "s.jsonl", [*made, replace(wrong, text=f"{wrong.text} we")], keep=WITHOUT_FRAMES)
    result = sweep(str(folder), [file], tmp_path / "out", options=SMALL)
    [reason] = table(result.folder, "sentences").query("sentence == 120")["reason"]
    evaluated = probe.evaluate(probe.load(folder), probe.read_sentences(file)).left_out
    assert reason == "the marked characters do not contain the word" and reason in set(evaluated["reason"])
    with pytest.raises(InputError, match=r"In .*s.jsonl, line 121: .* expected them to cover 'lock'"):
        prepare(probe.load(folder), probe.read_sentences(file), "lock")
