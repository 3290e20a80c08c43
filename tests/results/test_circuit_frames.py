"""Edges and paths from the cue to the word: planted paths in a study's frames, in its charts and in
the sentences of its page.
"""

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import page_text
import pytest
from example_study import make_study
from handmade import WORD, make_sentences, without
from measured import options_of, studied
from page_text import macro
from planted import planted_model
from seeds import mostly_campaign

from probe import charts
from probe.charts.circuit import COMPONENTS
from probe.experiments import circuit
from probe.experiments.material import prepare
from probe.experiments.observe import observe
from probe.experiments.prepare import prepare_pairs
from probe.model.load import read_weights
from probe.pages import paths as view
from probe.pages.attribution_graph import graphs
from probe.patching.edges import edges_of
from probe.results import frames as tables
from probe.results.circuit import COLUMNS
from probe.results.circuit import frames as circuit_frames
from probe.results.columns import HEADS, about
from probe.results.findings import findings

pytestmark = pytest.mark.slow

PAIRS = 36  # pairs of sentences in which heads are swapped
SENTENCES = make_sentences(cues=12, distances=(2, 3))


steps = macro("path_steps.html.j2", "steps")
position = macro("path_steps.html.j2", "position")


def section(frames):
    """The values of the page's section on paths, for a study of one word."""
    return view.section(findings(frames), frames)


def first_paths(frames):
    """The rows of the page's table of paths, and the numbers of all paths together."""
    [item] = section(frames)["words"]
    paths = item["paths"]
    return [(steps(path, WORD), path["share"]) for path in paths["first"]], paths


def traced_pairs(kind, seed=0):
    return traced(kind, seed, SENTENCES)


@cache
def traced(kind, seed, sentences):
    """The evidence of a word in a planted model, and the frames of a page about it."""
    model, _ = planted_model(kind, seed)
    evidence = studied(
        model,
        prepare(model, WORD, sentences),
        pairs=PAIRS,
        permutations=199,
        experiments=("heads", "nouns", "circuit"),
    )
    heads = tables.heads([evidence])
    records = [evidence.record]
    empty = {name: frame.iloc[:0] for name, frame in make_study().frames.items()}
    about = {
        "words": tables.words([evidence]),
        "heads": heads[list(HEADS)],
        "word_heads": tables.word_heads([evidence], heads),
    }
    about |= {"depth": tables.depth_profile(records), "sentences": tables.sentences(records)}
    about |= tables.of_experiments(records)
    return evidence, empty | about | circuit_frames([evidence], seed=0)


def runs_of(kind):
    """The runs of the word's pairs in a planted model."""
    model, _ = planted_model(kind, 0)
    observation = observe(model, prepare(model, WORD, SENTENCES), seed=0)
    [pair] = prepare_pairs(observation, None, options_of(pairs=PAIRS))
    return circuit.PairRuns(read_weights(model), observation, pair, ())


def with_circuit(evidence, new_circuit):
    """The evidence of a word with another circuit, or with None for no circuit."""
    measured = {
        name: result for name, result in evidence.record.measured.items() if name != "circuit"
    }
    if new_circuit is not None:
        measured["circuit"] = new_circuit
    return replace(evidence, record=replace(evidence.record, measured=measured))


def names(kind, seed=0):
    return [f"L{layer}H{head}" for layer, head in planted_model(kind, seed)[1].head_indices]


@pytest.mark.parametrize("seed", mostly_campaign(range(3)))
def test_a_path_of_two_steps_is_found_with_its_heads_and_no_others(seed):
    _, frames = traced_pairs("two_step", seed)
    mover, reader = planted_model("two_step", seed)[1].head_indices
    first = frames["paths"].query("path == 0")
    assert first[["receiver_layer", "receiver_head"]].to_numpy().tolist() == [[*mover], [*reader]]
    assert first["receiver_pos"].tolist() == ["cue + 1", "word"] and first[
        "sender_pos"
    ].tolist() == ["cue", "cue + 1"]
    assert first["sender_head"].isna().tolist() == [True, False] and set(first["channel"]) == {
        "value"
    }
    heads = set(
        map(tuple, frames["paths"][["receiver_layer", "receiver_head"]].to_numpy().tolist())
    )
    assert heads == {mover, reader} and (first["p"] < 0.05).all()
    assert (
        first["together"].iloc[0] == pytest.approx(1, abs=0.02)
        and first["random_high"].iloc[0] < 0.02
    )
    edges = frames["edges"]
    planted = edges["receiver_layer"].isin([mover[0], reader[0]]) & edges["receiver_head"].isin(
        [mover[1], reader[1]]
    )
    assert edges.loc[~planted, "total"].abs().max() < 0.02
    last = edges[(edges["receiver_pos"] == "word") & planted]
    assert last["total"].sum() == pytest.approx(1, abs=0.03) and last[
        "direct"
    ].sum() == pytest.approx(1, abs=0.03)


def test_the_page_names_both_heads_of_a_path_of_two_steps():
    _, frames = traced_pairs("two_step")
    mover, reader = names("two_step")
    (path, share), *_ = first_paths(frames)[0]
    assert path.startswith(f"cue → {mover} at cue + 1 (value) → {reader} at “{WORD}” (value)")
    assert share.endswith("%")
    without_paths = first_paths(frames | {"paths": frames["paths"].iloc[:0]})
    assert without_paths == ([], {"first": []})


def test_a_path_of_one_step_names_one_head():
    _, frames = traced_pairs("small_decoy")
    resolver, _ = names("small_decoy")
    [path], together = first_paths(frames)
    assert path == (f"cue → {resolver} at “{WORD}” (value)", "100\u202f%")
    assert together["random_high"] == "0\u202f%"
    assert "path" not in page_text.facts(frames, WORD)


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
    evidence, frames = traced_pairs("two_step")
    maps = charts.position_maps(frames["positions"], WORD)
    assert [title for title, _ in maps] == ["residual stream", "attention", "MLP"]
    for (_, chart), name in zip(maps, COMPONENTS, strict=True):
        spec = chart.to_dict()
        [rows] = spec["datasets"].values()
        mine = frames["positions"].query("component == @name")
        assert len(rows) == len(mine) == evidence.record.depth * 4
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


def test_paths_are_measured_on_held_out_pairs():
    runs = runs_of("two_step")
    groups = circuit.layouts(runs.weights, runs, 0)
    assert sum(len(group.traced) for group in groups) == circuit.PAIRS
    for group in groups:
        assert not set(group.traced) & set(group.held_out) and 0 < len(group.held_out) <= len(
            group.traced
        )
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
    evidence, with_donors = traced_pairs("two_step")
    monkeypatch.setattr(circuit.PairRuns, "donors", {})
    runs = runs_of("two_step")
    untested_circuit = circuit.measure_circuit(
        runs.weights, runs.observation, runs.pair, (), (), seed=0
    )
    frames = circuit_frames([with_circuit(evidence, untested_circuit)], seed=0)
    untested = (frames["edges"][["p", "q", "same_sense"]], frames["positions"]["same_sense"])
    assert (
        all(part.isna().to_numpy().all() for part in untested) and (frames["paths"]["p"] == 1).all()
    )
    for name in ("total", "low", "high"):
        np.testing.assert_allclose(
            frames["edges"][name], with_donors["edges"][name], rtol=0, atol=1e-8
        )


def test_edges_are_tested_with_the_permutations_of_the_study():
    evidence, frames = traced_pairs("two_step")
    permutations = evidence.pairs[0].separation.permutations
    assert permutations == 199
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


def test_paths_are_not_traced_in_sentences_without_alignment_and_the_page_says_so():
    _, frames = traced("decoy", 0, without(make_sentences(cues=12), "pair", "frame"))
    for name, columns in COLUMNS.items():
        assert frames[name].empty and tuple(frames[name]) == columns
    [item] = section(frames)["words"]
    assert item["missing"] == "not aligned"
    assert (item["charts"], item["edges"], item["circuit"]) == ([], [], None)
    assert "path" not in page_text.facts(frames, WORD)


def test_paths_are_not_traced_in_a_model_that_reads_both_ways_and_the_page_says_so():
    evidence, frames = traced_pairs("two_step")
    runs = runs_of("two_step")
    observation = replace(runs.observation, causal=False)
    assert circuit.measure_circuit(runs.weights, observation, runs.pair, (), (), seed=0) is None
    empty = circuit_frames([with_circuit(evidence, None)], seed=0)
    assert all(frame.empty and tuple(frame) == COLUMNS[name] for name, frame in empty.items())
    [item] = section(frames | empty | {"words": frames["words"].assign(causal=False)})["words"]
    assert item["missing"] == "reads both ways"
    [item] = section(frames | empty)["words"]
    assert item["missing"] == "no common positions"


def test_positions_have_names():
    labels = {"cue": "cue", "word": f"“{WORD}”", "cue + 1": "cue + 1", "cue - 1": "cue − 1"}
    assert {name: position(name, WORD) for name in labels} == labels


STEP = {
    "sender_pos": "cue",
    "receiver_pos": "word",
    "receiver_layer": 1,
    "receiver_head": 2,
    "channel": "value",
}
STEP |= {"share": 0.5, "p": 0.2}
MLP_AT_WORD = {"channel": "input", "sender_pos": "word", "receiver_head": np.nan}


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        ({}, "cue → L1H2 at “lock” (value)"),
        ({"channel": "key"}, "cue → L1H2 at “lock” (key)"),
        ({"channel": "query", "sender_pos": "word"}, "“lock” → L1H2 at “lock” (query)"),
        (MLP_AT_WORD, "“lock” → MLP of layer 1 at “lock” (input)"),
    ],
)
def test_every_step_has_its_part_and_channel(changed, row):
    path = view.one_path([STEP | changed])
    assert steps(path, WORD) == row
    assert (path["share"], path["p"]) == ("50\u202f%", "p = .2, limit .05")
    assert not path["confirmed"] and view.one_path([STEP | {"p": 0.01}])["confirmed"]


def test_the_attribution_graph_holds_the_chain_and_ends_in_the_sense_axis():
    _, frames = traced_pairs("two_step")
    files = graphs(findings(frames), "planted")
    assert [*files] == ["graph_0.json"]
    read = json.loads(files["graph_0.json"])
    assert read["metadata"]["prompt_tokens"] == ["cue", "cue + 1", "cue + 2", "word"]
    assert (read["metadata"]["slug"], read["metadata"]["scan"]) == ("graph_0", "planted")
    nodes = {node["node_id"]: node for node in read["nodes"]}
    assert len(nodes) == len(read["nodes"])
    links = {
        (nodes[link["source"]]["clerp"], nodes[link["target"]]["clerp"]): link["weight"]
        for link in read["links"]
    }
    assert len(links) == len(read["links"])
    mover, reader = names("two_step")
    chain = [
        "cue",
        f"{mover} at cue + 1",
        f"{reader} at word",
        f'Output "{WORD}: door or canal" (p=1.000)',
    ]
    edges = frames["edges"].iloc[:2]
    total = dict(
        zip(
            zip(edges["receiver_layer"], edges["receiver_head"], strict=True),
            edges["total"],
            strict=True,
        )
    )
    heads = planted_model("two_step", 0)[1].head_indices
    assert [links[step] for step in pairwise(chain[:3])] == pytest.approx(
        [total[head] for head in heads]
    )
    assert links[chain[2], chain[3]] == pytest.approx(1, abs=0.03)
    [target] = [node for node in read["nodes"] if node["is_target_logit"]]
    assert target["feature_type"] == "logit" and target["ctx_idx"] == 3
    layers = {node["feature_type"]: node["layer"] for node in read["nodes"]}
    assert layers["embedding"] == "E" and int(layers["cross layer transcoder"]) < int(
        layers["logit"]
    )


KINDS = {
    "metadata": {
        "slug": str,
        "scan": str,
        "prompt_tokens": list,
        "prompt": str,
        "schema_version": int,
        "info": dict,
    },
    "qParams": {
        "pinnedIds": list,
        "supernodes": list,
        "linkType": str,
        "clickedId": str,
        "sg_pos": str,
    },
    "nodes": {name: str for name in ("node_id", "layer", "feature_type", "jsNodeId", "clerp")}
    | {"feature": int, "ctx_idx": int, "token_prob": float, "is_target_logit": bool},
    "links": {"source": str, "target": str, "weight": float},
}


def test_the_attribution_graph_has_what_its_viewers_read():
    _, frames = traced_pairs("two_step")
    read = json.loads(graphs(findings(frames), "planted")["graph_0.json"])
    assert read.keys() == KINDS.keys()
    for part, kinds in KINDS.items():
        for record in read[part] if isinstance(read[part], list) else [read[part]]:
            assert {name: type(record[name]) for name in kinds} == kinds
            assert None not in record.values()  # the schema allows null for no field
    heads, tokens = frames["heads"]["head"].max() + 1, read["metadata"]["prompt_tokens"]
    for node in read["nodes"]:
        layer, number, position = node["node_id"].split("_")
        assert (layer, int(position)) == (node["layer"], node["ctx_idx"]) and int(position) < len(
            tokens
        )
        if node["feature_type"] == "embedding":
            assert layer == "E" and node["feature"] == node["ctx_idx"]
        else:  # schema 1: the number encodes the pair
            diagonal = math.isqrt(8 * node["feature"] + 1) - 1 >> 1
            second = node["feature"] - diagonal * (diagonal + 1) // 2
            assert (diagonal - second, second) == (int(layer), int(number)) and second <= heads
        if node["feature_type"] == "logit":
            assert float(node["clerp"].split("(p=")[1].split(")")[0]) == node["token_prob"] == 1
            assert (
                node["clerp"].split('"')[1]
                == read["metadata"]["info"]["description"]
                == f"{WORD}: door or canal"
            )
    node_ids = {node["node_id"] for node in read["nodes"]}
    assert all({link["source"], link["target"]} <= node_ids for link in read["links"])


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
    (word,) = section(frames)["words"]
    assert len({edge["composition"] for edge in word["edges"]} - {""}) > 1
