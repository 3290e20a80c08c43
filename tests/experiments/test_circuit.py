"""Positions and edges from the cue to the word: planted edges in a study's tables, in its charts and
on its page.
"""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from handmade import WORD, make_sentences, without
from inside import (
    edges_of,
    observe,
    of_experiments,
    prepare,
    prepare_pairs,
    read_weights,
    without_rows,
)
from measured import options_of, studied
from page_text import ENVIRONMENT
from planted import planted_model
from seeds import mostly_campaign

from probe import charts
from probe.charts.circuit import COMPONENTS, LEAST_TOTAL, NARROWEST, WIDEST
from probe.experiments import circuit

PAIRS, PERMUTATIONS = 36, 199
SENTENCES = make_sentences(cues=12, distances=(2, 3))
COLUMNS = {name: tuple(table.columns) for name, table in circuit.TABLES.items()}
RECEIVER = ["receiver_layer", "receiver_head"]


def section(frames):
    """The text of the page's section "From the cue to the word", for a study of one word."""
    template = ENVIRONMENT.get_template("circuit.html.j2")
    shown = template.render(
        frames=frames,
        title=circuit.TITLE,
        fold=lambda id, title, caller: caller(),
        table_file=str,
    )
    return re.sub(r'<script type="application/json".*?</script>', "", shown)


@cache
def traced(kind="two_step", seed=0, sentences=SENTENCES):
    """The record of a word in a planted model, its tables, and the planted heads."""
    model, planted = planted_model(kind, seed)
    record = studied(
        model,
        prepare(model, WORD, sentences),
        pairs=PAIRS,
        permutations=PERMUTATIONS,
        experiments=("heads", "nouns", "circuit"),
    )
    return record, without_rows() | of_experiments([record]), planted.head_indices


def runs_of(kind):
    """The runs of the word's pairs in a planted model."""
    model, _ = planted_model(kind, 0)
    observation = observe(model, prepare(model, WORD, SENTENCES), seed=0)
    [pair] = prepare_pairs(observation, None, options_of(pairs=PAIRS))
    return circuit.PairRuns(read_weights(model), observation, pair, ())


def frames_with(record, new_circuit):
    """The tables of a word with another circuit, or with None for no circuit."""
    frames = of_experiments([replace(record, measured=record.measured | {"circuit": new_circuit})])
    return {name: frames[name] for name in circuit.TABLES}


@pytest.mark.parametrize("seed", mostly_campaign(range(3)))
def test_two_planted_edges_are_found_with_their_heads_and_no_others(seed):
    _, frames, (mover, reader) = traced(seed=seed)
    edges = frames["edges"]
    first = edges.head(2).sort_values("receiver_layer")  # the two edges with the largest effects
    assert first[RECEIVER].to_numpy().tolist() == [[*mover], [*reader]]
    assert first["receiver_pos"].tolist() == ["cue + 1", "word"]
    assert first["sender_pos"].tolist() == ["cue", "cue + 1"]
    assert first["sender_head"].isna().tolist() == [True, False]
    assert set(first["channel"]) == {"value"} and (first["p"] < 0.05).all()
    planted = edges[RECEIVER].apply(tuple, axis=1).isin([mover, reader])
    assert edges.loc[~planted, "total"].abs().max() < 0.02
    last = edges[(edges["receiver_pos"] == "word") & planted]
    for name in ("total", "direct"):
        assert last[name].sum() == pytest.approx(1, abs=0.03)
    # Between the two heads the weights compose.
    ends = ["sender_layer", "sender_head", *RECEIVER, "channel"]
    composition = edges.set_index(ends)["composition"]
    assert (composition.loc[(*mover, *reader, "value")] > 0.1).all()
    assert edges.dropna(subset="composition")[["sender_head", *RECEIVER]].notna().all(axis=None)
    assert edges.loc[edges["channel"] == "input", "composition"].isna().all()


def test_the_page_names_the_ends_of_both_edges_and_lists_how_well_weights_compose():
    _, frames, heads = traced()
    shown = section(frames)
    ends = re.findall(r'<th scope="row">(.*?)</th><td.*?>(.*?)</td><td.*?>(.*?)</td>', shown)[:2]
    mover, reader = ("L{}H{}".format(*head) for head in heads)
    to_mover = ("embedding at cue", f"{mover} at cue + 1", "value")
    to_reader = (f"{mover} at cue + 1", f"{reader} at “{WORD}”", "value")
    assert sorted(ends) == sorted([to_mover, to_reader])
    cells = re.findall(r'<td class="n".*?>([^<]*)</td></tr>', shown)
    assert len({*cells} - {""}) > 1
    small = frames["edges"].head(1).assign(sender_pos="cue - 1", receiver_pos="word", total=0.001)
    shown = section(frames | {"edges": small})  # too small to be drawn
    assert " at cue − 1</th>" in shown and f" at “{WORD}”</td>" in shown


def test_the_stream_leaves_the_cue_and_enters_the_word_and_maps_have_every_cell_on_one_scale():
    record, frames, ((mover, _), (reader, _)) = traced()
    positions = frames["positions"]
    cells = positions.set_index(["component", "layer", "pos"])["effect"]
    assert cells["resid_pre", 0, "cue"] == pytest.approx(1, abs=0.01)
    assert cells["attn_out", mover, "cue + 1"] > 0.6 and cells["attn_out", reader, "word"] > 0.95
    assert cells["attn_out", mover, "word"] == pytest.approx(0, abs=0.02)
    heads = positions.query("component == 'head' and pos == 'word'")
    assert heads.groupby("layer")["effect"].max()[reader] == pytest.approx(1, abs=0.02)
    maps = charts.position_maps(positions, WORD)
    assert [title for title, _ in maps] == ["residual stream", "attention", "MLP"]
    for (_, chart), name in zip(maps, COMPONENTS, strict=True):
        spec = chart.to_dict()
        [rows] = spec["datasets"].values()
        mine = positions.query("component == @name").set_index(["layer", "pos"])["effect"]
        assert len(rows) == len(mine) == record.depth * 4
        assert {(row["layer"], row["pos"]): row["effect"] for row in rows} == mine.to_dict()
        cells = spec["layer"][0]["encoding"]
        assert cells["x"]["sort"] == ["cue", "cue + 1", "cue + 2", "word"]
        assert cells["color"]["scale"]["domain"][-1] == charts.position_limit(positions)
    # Limits are rounded up to the next 10 %.
    for effect, limit in ((0.98, 1.0), (1.0003, 1.0), (-1.02, 1.1), (0.001, 0.1)):
        assert charts.position_limit(positions.assign(effect=effect)) == limit


def test_edges_have_their_columns_intervals_and_the_permutations_of_the_study():
    edges = traced()[1]["edges"]
    assert tuple(edges) == COLUMNS["edges"] and len(edges) >= circuit.LEAST_ROWS
    assert (edges["low"] <= edges["total"] + 1e-6).all()
    p = edges["p"].dropna().to_numpy()
    assert len(p) and 0 < p.min() < 0.05
    np.testing.assert_allclose(p * (PERMUTATIONS + 1), (p * (PERMUTATIONS + 1)).round())
    weights = read_weights(planted_model("two_step", 0)[0])
    for depth in (1, 2, 3):
        counted = edges_of(weights, depth, range(-3, 1), range(-3, 1), mlps=True)
        assert circuit.count_edges(depth, weights.shape[1], 4) == len(counted)


def test_edges_are_compared_with_nouns_on_more_pairs_and_donors_have_the_same_sense_and_layout():
    runs = runs_of("two_step")
    groups = circuit.layouts(runs.weights, runs, 0)
    assert sum(len(group.traced) for group in groups) == circuit.PAIRS
    for group in groups:
        assert group.compared[: len(group.traced)] == group.traced
        assert len({*group.compared}) == len(group.compared) <= 2 * len(group.traced)
        assert group.name(0) == "word" and group.name(group.layout.cue) == "cue"
    units = [unit for group in groups for unit in runs.units(group.traced)]
    assert len(set(units)) == circuit.PAIRS
    assert set(runs.donors) == {*runs.pair.pairs.a, *runs.pair.pairs.b}
    for rows in runs.donors.items():
        mine, theirs = (runs.observation.texts[row] for row in rows)
        assert (len(mine.ids), mine.at) == (len(theirs.ids), theirs.at) and mine.ids != theirs.ids
        mine, theirs = (runs.observation.material.sentences[row] for row in rows)
        assert (mine.sense, mine.frame) == (theirs.sense, theirs.frame)
        assert mine.cue_word != theirs.cue_word


@pytest.mark.campaign
def test_an_edge_that_does_not_carry_the_sense_does_not_pass():
    """It moves the word equally far with a donor of the other sense and of the same sense."""
    _, frames, (teller, reader) = traced("matched", 1, make_sentences(cues=18, distances=(2, 3)))
    edges = frames["edges"].dropna(subset="p").set_index([*RECEIVER, "channel"])
    for end in ((*teller, "value"), (*reader, "query"), (*reader, "key")):
        edge = edges.loc[end]
        # Significant without the same-sense donor.
        assert edge["total"] > 0.2 and edge["low"] > 0.05
        assert edge["same_sense"] == pytest.approx(edge["total"], abs=0.05) and edge["p"] > 0.5
    value = edges.loc[(*reader, "value")]
    assert value["total"] == pytest.approx(1, abs=0.02)
    assert value["p"] < 0.05 and abs(value["same_sense"]) < 0.02
    cells = frames["positions"].query("component == 'attn_out' and pos == 'word'")
    cell = cells.set_index("layer").loc[teller[0]]
    assert cell["effect"] == pytest.approx(cell["same_sense"], abs=0.05) and cell["effect"] > 0.2


def test_without_donors_of_the_same_layout_nothing_is_tested(monkeypatch):
    record, with_donors, _ = traced()
    monkeypatch.setattr(circuit.PairRuns, "donors", {})
    runs = runs_of("two_step")
    untested = circuit.measure_circuit(runs.weights, runs.observation, runs.pair, (), (), seed=0)
    frames = frames_with(record, untested)
    assert frames["edges"][["p", "q", "same_sense"]].isna().all(axis=None)
    assert frames["positions"]["same_sense"].isna().all()
    for name in ("total", "low", "high"):
        expected = with_donors["edges"][name]
        np.testing.assert_allclose(frames["edges"][name], expected, rtol=0, atol=1e-8)


def test_nothing_is_traced_without_alignment_or_in_a_model_that_reads_both_ways():
    _, frames, _ = traced("decoy", 0, without(make_sentences(cues=12), "pair", "frame"))
    for name, columns in COLUMNS.items():
        assert frames[name].empty and tuple(frames[name]) == columns
    shown = section(frames)
    assert "Not traced: the sentences are not aligned in pairs" in shown
    assert "<figure" not in shown and "<table" not in shown
    record, frames, _ = traced()
    runs = runs_of("two_step")
    observation = replace(runs.observation, causal=False)
    assert circuit.measure_circuit(runs.weights, observation, runs.pair, (), (), seed=0) is None
    empty = frames | frames_with(record, None)
    assert all(empty[name].empty and tuple(empty[name]) == COLUMNS[name] for name in COLUMNS)
    both_ways = empty | {"words": frames["words"].assign(causal=False)}
    assert "Not traced: this model reads both ways" in section(both_ways)
    assert "Not traced: no two sentences of a pair have the same number" in section(empty)


# --- the chart: edges are as wide as their effects, and no two parts overlap ----------------------

CUE, BETWEEN, AT_WORD = "cue", "cue + 1", "word"
DRAWN = [
    ((None, None, CUE), (0, 1, BETWEEN), "value", 0.9, 0.01),
    ((0, 1, BETWEEN), (2, 0, AT_WORD), "value", 0.5, 0.01),
    ((0, 1, BETWEEN), (2, 3, AT_WORD), "key", -0.3, 0.2),
    ((2, 3, AT_WORD), (2, None, AT_WORD), "input", 0.005, None),
    ((None, None, CUE), (0, None, CUE), "input", LEAST_TOTAL, None),
    ((0, None, CUE), (2, 3, AT_WORD), "value", 0.002, None),
]


def edges_of_one_word():
    names = [f"{end}_{part}" for end in ("sender", "receiver") for part in ("layer", "head", "pos")]
    rows = [
        dict(zip(names, (*sender, *receiver), strict=True))
        | {
            "word": "bank",
            "channel": channel,
            "total": total,
            "low": total - 0.1,
            "high": total + 0.1,
            "p": p,
        }
        for sender, receiver, channel, total, p in DRAWN
    ]
    whole = {name: "Int64" for name in names if not name.endswith("pos")}
    positions = pd.DataFrame(
        {"word": "bank", "pos": [AT_WORD, BETWEEN, CUE], "behind": [None, 1, 0]}
    )
    return pd.DataFrame(rows).astype(whole | {"p": float}), positions


def chart_tables():
    picture = charts.circuit(*edges_of_one_word(), "bank")
    spec = picture.to_dict()
    lines, parts = (spec["datasets"][spec["layer"][number]["data"]["name"]] for number in (0, 1))
    return spec, pd.DataFrame(lines), pd.DataFrame(parts).set_index("name")


def test_an_edge_is_as_wide_as_its_effect_and_leads_from_part_to_part():
    _, lines, parts = chart_tables()
    large = [edge for edge in DRAWN if abs(edge[3]) >= LEAST_TOTAL]
    assert lines["edge"].nunique() == len(large)
    for (_, points), (*_, channel, total, p) in zip(lines.groupby("edge"), large, strict=True):
        assert points["width"].unique() == pytest.approx([max(NARROWEST, WIDEST * abs(total))])
        assert set(points["toward"]) == {"donor" if total > 0 else "own"}
        assert set(points["confirmed"]) == {"yes" if p is not None and p < 0.05 else "no"}
        for row, end in ((points.iloc[0], "from"), (points.iloc[-1], "to")):
            assert row[["x", "y"]].tolist() == pytest.approx(
                parts.loc[row[end], ["x", "y"]].tolist()
            )
        assert set(points["channel"]) == {channel}


def test_parts_are_at_their_layer_and_position_and_do_not_overlap():
    spec, _, parts = chart_tables()
    assert set(parts.index) == {
        "embedding at cue",
        "MLP of layer 0 at cue",
        "L0H1 at cue + 1",
        "L2H0 at word",
        "L2H3 at word",
    }
    assert parts.groupby("row")["y"].first().sort_values().index.tolist() == [
        "token",
        "0",
        "0 MLP",
        "2",
    ]
    middles = parts.groupby("pos")["middle"].unique()
    assert [len(middle) for middle in middles] == [1, 1, 1]
    assert middles[CUE][0] < middles[BETWEEN][0] < middles[AT_WORD][0]
    apart = parts[["x", "y"]].to_numpy()
    distances = np.abs(apart[:, None] - apart).sum(-1)[~np.eye(len(apart), dtype=bool)]
    assert distances.min() >= 1 - 1e-6
    assert (
        "The widest: embedding at cue to L0H1 at cue + 1, as its value: 90" in spec["description"]
    )


def test_nothing_is_drawn_where_no_edge_moves_the_word():
    edges, positions = edges_of_one_word()
    assert charts.circuit(edges.assign(total=0.5 * LEAST_TOTAL), positions, "bank") is None
    assert charts.circuit(edges, positions, "mole") is None
