"""Sweeps in one process: numbers are the study's, rows there once, what is done kept, what is
damaged made again."""

import errno
import json
import os
import random
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch
from families import make_family
from hooked_runs import swapped
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
from probe.model.load import read_weights
from probe.model.tokens import TargetText, positions_of_span
from probe.sweep import measure, shards, work
from probe.sweep.deal import deal, read_rows
from probe.sweep.measure import fit_word, from_file, to_bytes
from probe.sweep.run import sweep
from probe.text.files import sources
from probe.text.sentences import Sentence, stream_sentences

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


def dealt(file, place):
    """The records of all blocks of a file, and the index."""
    index = deal(sources([file]), place, SMALL, causal=True)
    return [
        record for block in index["blocks"] for record in read_rows(place, index, block["key"])
    ], index


def test_every_row_is_in_one_shard_and_the_counts_add_up(swept):
    counts, sentences = swept.manifest["counts"], table(swept.folder, "sentences")
    assert counts["in"] == ROWS == counts["fitted_on"] + counts["measured"] + counts["left_out"]
    assert min(counts["fitted_on"], counts["measured"]) > 30
    assert lost_and_doubled(swept.folder, ROWS) == (0, 0) and temporaries(swept.folder.parent) == []
    assert sentences["sentence"].tolist() == list(range(ROWS))
    assert sentences["where"].tolist() == [
        f"sentences.jsonl line {number}" for number in range(1, ROWS + 1)
    ]
    assert counts["rows_of_heads"] == 12 * counts["measured"] == len(table(swept.folder, "heads"))
    sides = {part: set(rows["cue"]) for part, rows in sentences.groupby("part")}
    assert sides["report"] and not sides["report"] & sides["fitted"]


def test_the_only_head_that_resolves_moves_the_word_all_the_way(swept):
    heads, sentences = table(swept.folder, "heads"), table(swept.folder, "sentences")
    after = sentences.loc[sentences["part"] == "report"]
    effect = heads.groupby(["layer", "head"])["swap"].sum() / after["gap"].sum()
    assert effect[PLACE] == pytest.approx(1, abs=0.03)
    assert effect.drop([PLACE]).abs().max() < 0.02
    assert heads.set_index(["layer", "head"]).loc[PLACE, "attention_cue"].min() > 0.8
    assert (after["coordinate_token"].abs() < 1e-6).all(), "the same token everywhere"
    assert after["coordinate_2"].mean() == pytest.approx(0.5, abs=0.1)
    assert set(after["other"]) == {"door", "canal"} and (after["other"] != after["sense"]).all()


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_sweep_of_any_family_measures_what_its_traces_and_swaps_give(kind, tmp_path):
    model = probe.load(make_family(tmp_path / kind, kind))
    result = sweep(
        str(tmp_path / kind),
        [make_corpus(tmp_path / "s.jsonl", 120)],
        tmp_path / "out",
        options=SMALL,
    )
    counts = result.manifest["counts"]
    assert (
        counts["in"] == 120 == counts["fitted_on"] + counts["measured"] + counts["left_out"]
        and counts["measured"]
    )
    assert lost_and_doubled(result.folder, 120) == (0, 0)
    frame = table(result.folder, "heads").set_index(["sentence", "layer", "head"])
    sentences = table(result.folder, "sentences").query("part == 'report'")
    records = {
        row["sentence"]: row
        for row in pyarrow.parquet.read_table(result.folder / "rows").to_pylist()
    }
    [axes] = [from_file(str(file)) for file in (result.folder / "axes").glob("*.safetensors")]
    w_o = torch.stack([block.w_o for block in read_weights(model).blocks])
    for row in sentences.to_dict("records")[:4]:
        record, heads = records[row["sentence"]], frame.loc[row["sentence"]]
        whole = probe.trace(model, record["text"])
        at, cue = (
            positions_of_span(whole.tokens, record[f"{name}start"], record[f"{name}end"])
            for name in ("", "cue_")
        )
        at, sign = (
            at[-1],
            1 if record["sense"] == "canal" else -1,
        )  # canal comes first in the alphabet
        resid = whole.resid_post[axes.depth - 1, at].double()
        expected = (
            sign * float(resid @ axes.u[0] - axes.centre[0, axes.depth + 1]) / float(axes.gap[0])
        )
        assert row[f"coordinate_{axes.depth}"] == pytest.approx(expected, abs=1e-4)
        delta_e = torch.einsum("lhd,lhdm->lhm", whole.z[:, :, at], w_o)
        for name, values, close in (
            ("norm", delta_e.norm(dim=-1), 1e-4),
            ("axis", sign * (delta_e.double() @ axes.directions[0]), 1e-4),
            ("attention_previous", whole.pattern[:, :, at, at - 1], 1e-5),
            ("attention_cue", whole.pattern[:, :, at, list(cue)].sum(-1), 1e-5),
        ):
            assert heads[name].to_numpy() == pytest.approx(
                values.numpy().ravel(), rel=1e-4, abs=close
            ), name
        donor = axes.donor_z[measure._draw(record, axes)["donor"]]
        text = TargetText(whole.tokens.ids if kind == "bert" else whole.tokens.ids[: at + 1], at)
        rows = swapped(model, text, [{place: donor[place]} for place in heads.index])[0][
            axes.depth - 1
        ]
        moved = -sign * ((rows.double() - resid) @ axes.directions[0])
        below = [layer < axes.depth for layer, _ in heads.index]
        assert heads["swap"].to_numpy() == pytest.approx(
            np.where(below, moved.numpy(), 0), abs=1e-3
        )


@pytest.fixture(scope="module")
def block(folder, corpus, tmp_path_factory):
    """The model, records of the corpus, and the axes of their word."""
    model, place = probe.load(folder), tmp_path_factory.mktemp("block")
    records, index = dealt(corpus, place)
    given = read_rows(place, index, index["words"]["lock"]["key"])
    return model, records, fit_word(model, given, ["canal", "door"], seed=0)


def test_donors_are_of_the_sense_that_is_said_and_never_the_sentence_itself(block):
    _, records, axes = block
    chosen = [record for record in records if record["part"] == "report"][:6]
    drawn = [measure._draw(record, axes) for record in chosen]
    for record, draw in zip(chosen, drawn, strict=True):
        assert axes.senses[axes.donor_sense[draw["donor"]]] == draw["other"] != record["sense"]
        assert axes.senses[axes.donor_sense[draw["same"]]] == record["sense"]
        assert axes.donors[draw["same"]] != record["draw"]
    assert len({draw["same"] for draw in drawn}) > 2, "drawn anew for every sentence"


def test_own_scores_part_the_senses_of_donors_and_axes_are_the_same_after_a_file(block, tmp_path):
    model, _, axes = block
    assert axes.own.shape == (1, 3, 4, 10)
    resolver = ((axes.donor_z.double() * axes.own[0]).sum(-1) - axes.own_centre[0])[:, *PLACE]
    assert resolver[axes.donor_sense == 0].min() > 0 > resolver[axes.donor_sense == 1].max()
    written = axes.donor_z[:, *PLACE] @ read_weights(model).blocks[PLACE[0]].w_o[PLACE[1]]
    assert (written.double() @ axes.directions[0])[axes.donor_sense == 0].min() > 0.2
    (tmp_path / "axes.safetensors").write_bytes(to_bytes(axes))
    again = from_file(str(tmp_path / "axes.safetensors"))
    assert to_bytes(again) == to_bytes(axes)
    assert (again.senses, again.depth, again.donors) == (axes.senses, axes.depth, axes.donors)
    assert torch.equal(again.u, axes.u) and torch.equal(again.donor_z, axes.donor_z)


@pytest.fixture
def again(swept, folder, corpus, monkeypatch):
    """The same sweep once more, or with another file or options, and the keys of the units that
    were made."""
    make = work.make

    def again(file=corpus, **options):
        made = []
        monkeypatch.setattr(
            work, "make", lambda job, unit: made.append(unit.key) or make(job, unit)
        )
        return sweep(
            str(folder), [file], swept.folder.parent, options=replace(SMALL, **options)
        ), made

    return again


def test_what_is_finished_is_not_made_again_and_what_the_dead_left_is_removed(swept, again):
    before = fingerprints(swept.folder)
    (swept.folder / "heads" / ".0123.parquet.89ab.part").write_bytes(b"half a shard")
    (swept.folder / ".scratch-old").mkdir()
    (swept.folder / ".scratch-old" / "seen.sqlite").write_bytes(b"old")
    result, made = again()
    assert made == [] and result.folder == swept.folder and result.said is None
    assert fingerprints(swept.folder) == before and temporaries(swept.folder) == []
    assert result.manifest["counts"] == swept.manifest["counts"]


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "link"])
def test_a_damaged_shard_is_found_by_its_checksum_and_made_again(swept, again, tmp_path, damage):
    before, elsewhere = fingerprints(swept.folder), tmp_path / "elsewhere"
    victims = [
        sorted((swept.folder / kind).glob("*.parquet"))[at]
        for at, kind in enumerate(("heads", "sentences"))
    ]
    for victim in victims:
        content = victim.read_bytes()
        victim.unlink()
        if damage == "truncated":
            victim.write_bytes(content[: len(content) // 2])
        elif damage == "changed":
            victim.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
        elif damage == "link":
            elsewhere.write_bytes(content)
            victim.symlink_to(elsewhere)
    assert sorted(again()[1]) == sorted(victim.stem for victim in victims)
    assert fingerprints(swept.folder) == before and not any(
        victim.is_symlink() for victim in victims
    )
    if damage == "link":
        assert elsewhere.read_bytes() == content, "what a link points to is never written"


def test_what_has_no_receipt_and_damaged_rows_and_axes_are_made_again(swept, again):
    before = fingerprints(swept.folder)
    receipt = (
        swept.folder / "receipts" / f"{min((swept.folder / 'heads').glob('*.parquet')).stem}.json"
    )
    receipt.write_text("{")
    axes = next((swept.folder / "axes").glob("*.safetensors"))
    axes.write_bytes(axes.read_bytes()[:-8])
    assert sorted(again()[1]) == sorted([receipt.stem, axes.stem])
    (swept.folder / "rows.json").write_text("{}")
    assert again()[1] == [] and fingerprints(swept.folder) == before


def test_another_option_and_other_sentences_are_other_sets_and_say_so(swept, again, tmp_path):
    before = fingerprints(swept.folder)
    other, made = again(seed=1)
    assert other.folder != swept.folder and made
    assert f"{swept.folder.name}; different now: seed (0, now 1)." in other.said
    assert fingerprints(swept.folder) == before
    assert set(fingerprints(other.folder)).isdisjoint(before), "shards are named by what made them"
    back, made = again()
    assert back.folder == swept.folder and made == [] and "seed (1, now 0)" in back.said
    more, _ = again(make_corpus(tmp_path / "sentences.jsonl", ROWS + 1))
    assert more.folder != swept.folder and "different now: the sentences." in more.said
    again()


def test_two_sweeps_never_write_one_set(swept, again):
    with (
        shards.only_writer(swept.folder),
        pytest.raises(InputError, match="another sweep is writing there; wait for"),
    ):
        again()


def test_the_manifest_says_what_made_the_shards_and_nothing_of_this_machine(swept, folder, corpus):
    made = json.loads((swept.folder.parent / "manifest.json").read_text())
    assert made["weights_sha256"] == probe.load(folder).origin.sha256
    place = {"device": "cpu", "dtype": "float32"}
    assert made["options"] == {"seed": 0, "fit_most": 60, "donors": 8, "block": 32} | place
    assert (
        list(made["sources"]) == ["sentences.jsonl"]
        and len(made["shards"]) == made["counts"]["shards"]
    )
    assert str(corpus.parent) not in json.dumps(made) and str(folder.parent) not in json.dumps(made)


def test_a_full_disk_is_one_sentence_and_finished_shards_are_good(
    tmp_path, folder, corpus, monkeypatch
):
    replace_file, left = os.replace, [22]

    def full(source, target):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(source, target)

    said = r"Writing .*/set-[0-9a-f]{16}/.*: the disk is full; make room there, or choose another"
    with monkeypatch.context() as patch, pytest.raises(InputError, match=said):
        patch.setattr(os, "replace", full)
        sweep(str(folder), [corpus], tmp_path / "out", options=SMALL)
    assert temporaries(tmp_path) == []
    [place] = (tmp_path / "out").glob("set-*")
    kept = fingerprints(place)
    result = sweep(str(folder), [corpus], tmp_path / "out", options=SMALL)
    assert kept and kept.items() <= fingerprints(result.folder).items()
    assert lost_and_doubled(result.folder, ROWS) == (0, 0)


def test_parts_do_not_depend_on_the_order_of_the_rows(tmp_path):
    made, found = some_sentences(200), []
    for name, sentences in (("one", made), ("two", random.Random(4).sample(made, len(made)))):
        with shards.only_writer(tmp_path / name):
            file = write_rows(tmp_path / f"{name}.jsonl", sentences, keep=WITHOUT_FRAMES)
            records, index = dealt(file, tmp_path / name)
        parts = {(r["sense"], r["text"]): (r["part"], r["draw"]) for r in records}
        found.append((parts, [word["fit"] for word in index["words"].values()]))
    assert found[0] == found[1]
    assert 0.2 < np.mean([part == "fit" for part, _ in found[0][0].values()]) < 0.5


def test_the_rules_that_leave_rows_out(tmp_path, folder):
    made = some_sentences(120)
    cue = {name: getattr(made[0], name) + 12 for name in ("cue_start", "cue_end")}
    late = replace(made[0], text=f"a lock near {made[0].text} lock once", start=2, end=6, **cue)
    long = replace(made[1], text=made[1].text + " again" * 40)
    twin = replace(
        made[2], sense="door" if made[2].sense == "canal" else "canal", text=made[2].text + " we"
    )
    given = write_rows(
        tmp_path / "s.jsonl", [*made, made[5], late, long, twin], keep=WITHOUT_FRAMES
    )
    result = sweep(str(folder), [given], tmp_path / "out", options=SMALL)
    counted, sentences = result.manifest["counts"]["reasons"], table(result.folder, "sentences")
    same = (
        "identical to a sentence of another sense up to the word, so a causal model cannot tell "
        "them apart there"
    )
    assert counted["repeats the sentence"] == 1 and counted[same] == 2
    assert (
        counted["the cue comes after the word, where a causal model cannot have read it yet"] == 1
    )
    assert lost_and_doubled(result.folder, 124) == (0, 0)
    if sentences.loc[122, "part"] is None:  # else it is in the fit part, and was not read
        assert sentences.loc[122, "reason"] == "it has more tokens than the context window of 32"
    assert sentences.loc[120, "reason"] == "repeats the sentence, span and sense of s.jsonl line 6"


def test_bad_rows_and_too_few_sentences_stop_before_anything_is_measured(tmp_path, folder):
    given = write_rows(tmp_path / "s.jsonl", some_sentences(50), keep=WITHOUT_FRAMES)
    with given.open("a") as opened:
        opened.write(
            '{"word": "lock", "sense": "door", "text": "a lock", "start": 2, "end": 60}\n\n[1]\n'
        )
    with pytest.raises(InputError) as caught:
        sweep(str(folder), [given], tmp_path / "out", options=SMALL)
    assert str(caught.value) == (
        f"Reading {given}, line 51: the word is at characters 2 to 60, expected a span within the "
        "6 characters of the "
        "text (2 of 52 rows are bad); correct the file and read it again."
    )
    assert not list((tmp_path / "out").rglob("*.parquet"))
    write_rows(given, some_sentences(6), keep=WITHOUT_FRAMES)
    with pytest.raises(
        InputError, match="no word has two senses with at least 4 sentences in the fit part"
    ):
        sweep(str(folder), [given], tmp_path / "out", options=SMALL)


def test_reading_takes_no_memory_for_the_rows_before(tmp_path):
    """Ten times the rows, the same peak: what is held is per word."""
    peaks = []
    for count in (500, 5_000):
        texts = [f"the {n} lock" for n in range(count)]
        rows = [
            Sentence("lock", "ab"[n % 2], text, len(text) - 4, len(text))
            for n, text in enumerate(texts)
        ]
        file = write_rows(tmp_path / f"{count}.jsonl", rows)
        tracemalloc.start()
        assert sum(1 for _ in stream_sentences(sources([file]))) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 50_000


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv", ".parquet"])
def test_reader_and_sweep_leave_out_and_refuse_the_same_rows_in_the_same_words(tmp_path, ending):
    made = some_sentences(60)
    file = write_table(tmp_path / f"s{ending}", [*made[:30], made[3], *made[30:], made[7], made[3]])
    read = [(item.where, item.reason) for item in probe.read_sentences(file).left_out]
    assert len(read) == 3 and all(
        why.startswith("repeats the sentence, span and sense of ") for _, why in read
    )
    rows = [(row["where"], row["reason"] or "") for row in dealt(file, tmp_path)[0]]
    repeats = [row for row in rows if row[1].startswith("repeats")]
    assert [tuple(part.replace(f"{file.name} ", "") for part in row) for row in repeats] == read
    write_table(file, [*made[:30], vars(made[0]) | {"end": 900}, vars(made[1]) | {"sense": " "}])
    said = []
    for reader in (probe.read_sentences, lambda file: dealt(file, tmp_path)):
        with pytest.raises(InputError) as refused:
            reader(file)
        said.append(str(refused.value))
    assert said[0] == said[1] and "(2 of 32 rows are bad)" in said[0]


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


def test_a_repeated_sentence_and_a_span_on_another_word_are_left_out_of_evaluation_and_sweep_alike(
    folder, tmp_path
):
    made = some_sentences(120)
    cue = {"start": made[0].cue_start, "end": made[0].cue_end, "cue_start": None, "cue_end": None}
    wrong = replace(made[0], text=f"{made[0].text} we", split="train", **cue)
    file = write_rows(tmp_path / "s.jsonl", [*made, wrong, made[3]], keep=WITHOUT_FRAMES)
    records, _ = dealt(file, tmp_path)
    evaluated = probe.evaluate(probe.load(folder), probe.read_sentences(file)).left_out
    [span, repeat] = [
        next(row["reason"] for row in records if row["sentence"] == number) for number in (120, 121)
    ]
    assert span == "the marked characters do not contain the word"
    assert {span, repeat.replace("s.jsonl ", "")} <= set(evaluated["reason"])
