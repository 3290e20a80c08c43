"""Positions and edges from the cue to the word: planted edges in a study's frames, in its charts and
on its page.
"""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from example_study import make_study
from handmade import WORD, make_sentences, without
from measured import options_of, studied
from planted import planted_model
from seeds import mostly_campaign

from probe import charts
from probe.charts.circuit import COMPONENTS
from probe.experiments import circuit
from probe.experiments.material import prepare
from probe.experiments.observe import observe
from probe.experiments.prepare import prepare_pairs
from probe.model.load import read_weights
from probe.pages import html
from probe.patching.edges import edges_of
from probe.results import frames as tables
from probe.results.columns import about

pytestmark = pytest.mark.slow

PAIRS = 36  # pairs of sentences in which heads are swapped
SENTENCES = make_sentences(cues=12, distances=(2, 3))


COLUMNS = {name: tuple(table.columns) for name, table in circuit.TABLES.items()}


def section(frames):
    """The text of the page's section "From the cue to the word", for a study of one word."""
    template = html.environment("report").get_template("circuit.html.j2")
    shown = template.render(
        frames=frames,
        title=circuit.TITLE,
        fold=lambda id, title, caller: caller(),
    )
    return re.sub(r'<script type="application/json".*?</script>', "", shown)


def traced_pairs(kind, seed=0):
    return traced(kind, seed, SENTENCES)


@cache
def traced(kind, seed, sentences):
    """The record of a word in a planted model, and the frames of a page about it."""
    model, _ = planted_model(kind, seed)
    record = studied(
        model,
        prepare(model, WORD, sentences),
        pairs=PAIRS,
        permutations=199,
        experiments=("heads", "nouns", "circuit"),
    )
    empty = {name: frame.iloc[:0] for name, frame in make_study().frames.items()}
    return record, empty | tables.of_experiments([record])


def runs_of(kind):
    """The runs of the word's pairs in a planted model."""
    model, _ = planted_model(kind, 0)
    observation = observe(model, prepare(model, WORD, SENTENCES), seed=0)
    [pair] = prepare_pairs(observation, None, options_of(pairs=PAIRS))
    return circuit.PairRuns(read_weights(model), observation, pair, ())


def frames_with(record, new_circuit):
    """The frames of a word with another circuit, or with None for no circuit."""
    measured = record.measured | {"circuit": new_circuit}
    frames = tables.of_experiments([replace(record, measured=measured)])
    return {name: frames[name] for name in circuit.TABLES}


def names(kind, seed=0):
    return [f"L{layer}H{head}" for layer, head in planted_model(kind, seed)[1].head_indices]


@pytest.mark.parametrize("seed", mostly_campaign(range(3)))
def test_two_planted_edges_are_found_with_their_heads_and_no_others(seed):
    _, frames = traced_pairs("two_step", seed)
    mover, reader = planted_model("two_step", seed)[1].head_indices
    edges = frames["edges"]
    first = edges.head(2).sort_values("receiver_layer")  # the two edges with the largest effects
    assert first[["receiver_layer", "receiver_head"]].to_numpy().tolist() == [[*mover], [*reader]]
    assert first["receiver_pos"].tolist() == ["cue + 1", "word"]
    assert first["sender_pos"].tolist() == ["cue", "cue + 1"]
    assert first["sender_head"].isna().tolist() == [True, False]
    assert set(first["channel"]) == {"value"} and (first["p"] < 0.05).all()
    planted = edges["receiver_layer"].isin([mover[0], reader[0]]) & edges["receiver_head"].isin(
        [mover[1], reader[1]]
    )
    assert edges.loc[~planted, "total"].abs().max() < 0.02
    last = edges[(edges["receiver_pos"] == "word") & planted]
    assert last["total"].sum() == pytest.approx(1, abs=0.03) and last[
        "direct"
    ].sum() == pytest.approx(1, abs=0.03)


def test_the_page_names_the_ends_of_both_edges():
    _, frames = traced_pairs("two_step")
    row = r'<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td>'
    ends = re.findall(row, section(frames))[:2]
    mover, reader = names("two_step")
    to_mover = ("embedding at cue", f"{mover} at cue + 1", "value")
    to_reader = (f"{mover} at cue + 1", f"{reader} at “{WORD}”", "value")
    assert sorted(ends) == sorted([to_mover, to_reader])


def test_the_stream_leaves_the_cue_and_enters_the_word():
    _, frames = traced_pairs("two_step")
    (mover, _), (reader, _) = planted_model("two_step", 0)[1].head_indices
    cells = frames["positions"].set_index(["component", "layer", "pos"])["effect"]
    assert cells["resid_pre", 0, "cue"] == pytest.approx(1, abs=0.01)
    assert cells["attn_out", mover, "cue + 1"] > 0.6 and cells["attn_out", reader, "word"] > 0.95
    assert cells["attn_out", mover, "word"] == pytest.approx(0, abs=0.02)
    heads = frames["positions"].query("component == 'head' and pos == 'word'")
    assert heads.groupby("layer")["effect"].max()[reader] == pytest.approx(1, abs=0.02)


def test_the_maps_hold_every_cell_from_the_cue_to_the_word_on_one_scale():
    record, frames = traced_pairs("two_step")
    maps = charts.position_maps(frames["positions"], WORD)
    assert [title for title, _ in maps] == ["residual stream", "attention", "MLP"]
    for (_, chart), name in zip(maps, COMPONENTS, strict=True):
        spec = chart.to_dict()
        [rows] = spec["datasets"].values()
        mine = frames["positions"].query("component == @name")
        assert len(rows) == len(mine) == record.depth * 4
        effects = mine.set_index(["layer", "pos"])["effect"].to_dict()
        assert {(row["layer"], row["pos"]): row["effect"] for row in rows} == effects
        cells = spec["layer"][0]["encoding"]
        assert cells["x"]["sort"] == ["cue", "cue + 1", "cue + 2", "word"]
        assert cells["color"]["scale"]["domain"][-1] == charts.position_limit(frames["positions"])
    # Limits are rounded up to the next 10 %.
    for effect, limit in ((0.98, 1.0), (1.0003, 1.0), (-1.02, 1.1), (0.001, 0.1)):
        assert charts.position_limit(frames["positions"].assign(effect=effect)) == limit


def test_every_column_is_described_and_in_its_order():
    _, frames = traced_pairs("two_step")
    for name, columns in COLUMNS.items():
        assert tuple(frames[name]) == columns and len(frames[name])
        assert all(about(name, column)["meaning"] for column in columns)
    assert (
        len(frames["edges"]) >= circuit.LEAST_ROWS
        and frames["edges"]["p"].dropna().between(0, 1).all()
    )
    assert (frames["edges"]["low"] <= frames["edges"]["total"] + 1e-6).all()


def test_edges_are_compared_with_nouns_on_more_pairs_than_they_are_measured_on():
    runs = runs_of("two_step")
    groups = circuit.layouts(runs.weights, runs, 0)
    assert sum(len(group.traced) for group in groups) == circuit.PAIRS
    for group in groups:
        assert group.compared[: len(group.traced)] == group.traced
        assert len({*group.compared}) == len(group.compared) <= 2 * len(group.traced)
        assert group.name(0) == "word" and group.name(group.layout.cue) == "cue"
    units = [unit for group in groups for unit in runs.units(group.traced)]
    assert len(set(units)) == circuit.PAIRS


@pytest.mark.campaign
def test_an_edge_that_does_not_carry_the_sense_does_not_pass():
    """It moves the word equally far with a donor of the other sense and of the same sense."""
    _, frames = traced("matched", 1, make_sentences(cues=18, distances=(2, 3)))
    teller, reader = planted_model("matched", 1)[1].head_indices
    edges = (
        frames["edges"].dropna(subset="p").set_index(["receiver_layer", "receiver_head", "channel"])
    )
    for edge in (
        edges.loc[(*teller, "value")],
        edges.loc[(*reader, "query")],
        edges.loc[(*reader, "key")],
    ):
        assert (
            edge["total"] > 0.2 and edge["low"] > 0.05
        )  # significant without the same-sense donor
        assert edge["same_sense"] == pytest.approx(edge["total"], abs=0.05) and edge["p"] > 0.5
    value = edges.loc[(*reader, "value")]
    assert (
        value["total"] == pytest.approx(1, abs=0.02)
        and value["p"] < 0.05
        and abs(value["same_sense"]) < 0.02
    )
    cells = (
        frames["positions"].query("component == 'attn_out' and pos == 'word'").set_index("layer")
    )
    other_sense, same_sense = (cells.loc[teller[0], name] for name in ("effect", "same_sense"))
    assert other_sense == pytest.approx(same_sense, abs=0.05) and other_sense > 0.2


def test_without_donors_of_the_same_layout_nothing_is_tested(monkeypatch):
    record, with_donors = traced_pairs("two_step")
    monkeypatch.setattr(circuit.PairRuns, "donors", {})
    runs = runs_of("two_step")
    untested_circuit = circuit.measure_circuit(
        runs.weights, runs.observation, runs.pair, (), (), seed=0
    )
    frames = frames_with(record, untested_circuit)
    untested = (frames["edges"][["p", "q", "same_sense"]], frames["positions"]["same_sense"])
    assert all(part.isna().to_numpy().all() for part in untested)
    for name in ("total", "low", "high"):
        np.testing.assert_allclose(
            frames["edges"][name], with_donors["edges"][name], rtol=0, atol=1e-8
        )


def test_edges_are_tested_with_the_permutations_of_the_study():
    _, frames = traced_pairs("two_step")
    permutations = 199
    p = frames["edges"]["p"].dropna().to_numpy()
    assert len(p) and p.min() < 0.05
    np.testing.assert_allclose(p * (permutations + 1), (p * (permutations + 1)).round())


def test_donors_are_of_the_same_sense_and_layout():
    read = runs_of("two_step")
    assert set(read.donors) == {*read.pair.pairs.a, *read.pair.pairs.b}
    for row, donor in read.donors.items():
        mine, theirs = (read.observation.texts[number] for number in (row, donor))
        assert (len(mine.ids), mine.at) == (len(theirs.ids), theirs.at) and mine.ids != theirs.ids
        mine, theirs = (read.observation.material.sentences[number] for number in (row, donor))
        assert (mine.sense, mine.frame) == (
            theirs.sense,
            theirs.frame,
        ) and mine.cue_word != theirs.cue_word


def test_edges_are_counted_before_they_are_made():
    weights = read_weights(planted_model("two_step", 0)[0])
    for depth in (1, 2, 3):
        edges = edges_of(weights, depth, range(-3, 1), range(-3, 1), mlps=True)
        assert circuit.count_edges(depth, weights.shape[1], 4) == len(edges)


def test_nothing_is_traced_in_sentences_without_alignment_and_the_page_says_so():
    _, frames = traced("decoy", 0, without(make_sentences(cues=12), "pair", "frame"))
    for name, columns in COLUMNS.items():
        assert frames[name].empty and tuple(frames[name]) == columns
    shown = section(frames)
    assert "Not traced: the sentences are not aligned in pairs" in shown
    assert "<figure" not in shown and "<table" not in shown


def test_nothing_is_traced_in_a_model_that_reads_both_ways_and_the_page_says_so():
    record, frames = traced_pairs("two_step")
    runs = runs_of("two_step")
    observation = replace(runs.observation, causal=False)
    assert circuit.measure_circuit(runs.weights, observation, runs.pair, (), (), seed=0) is None
    empty = frames_with(record, None)
    assert all(frame.empty and tuple(frame) == COLUMNS[name] for name, frame in empty.items())
    both_ways = frames | empty | {"words": frames["words"].assign(causal=False)}
    assert "Not traced: this model reads both ways" in section(both_ways)
    assert "Not traced: no two sentences of a pair have the same number" in section(frames | empty)


def test_positions_have_names():
    _, frames = traced_pairs("two_step")
    first = frames["edges"].head(1).assign(sender_pos="cue - 1", receiver_pos="word")
    shown = section(frames | {"edges": first.assign(total=0.001)})  # too small to be drawn
    assert " at cue − 1</th>" in shown and f" at “{WORD}”</td>" in shown


def test_edges_between_heads_list_how_well_their_weights_compose():
    _, frames = traced_pairs("two_step")
    mover, reader = planted_model("two_step", 0)[1].head_indices
    edges = frames["edges"].set_index(
        ["sender_layer", "sender_head", "receiver_layer", "receiver_head", "channel"]
    )
    planted = edges.loc[(*mover, *reader, "value"), "composition"]
    between = edges[edges["composition"].notna()].reset_index()
    assert (planted > 0.1).all() and between[["sender_head", "receiver_head"]].notna().all(
        axis=None
    )
    assert edges.xs("input", level="channel")["composition"].isna().all()
    cells = re.findall(r'<td class="n">([^<]*)</td></tr>', section(frames))
    assert len({*cells} - {""}) > 1
