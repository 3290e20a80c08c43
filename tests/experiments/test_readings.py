"""The decomposition of a sentence: its terms sum to the hooked vector and its sources to heads. Its
description in words and its chart.
"""

import dataclasses
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from checkpoints import change_tensors
from handmade import ODD, corpus_of, make_random, make_sentences, random_model, resolver_model
from inside import COLUMNS, axes, read_weights, target_states
from safetensors.torch import load_file
from seeds import mostly_campaign
from stored_study import stored_study

import probe
from probe import (
    CrossCheckError,
    InputError,
    charts,
    decomposition,
    load,
    tokenize,
    trace,
)
from probe.charts import writes
from probe.experiments import readings

LAYERS, HEADS = ODD["n_layer"], ODD["n_head"]
TEXT = "The mole dug a tunnel under the river bank after the flood."
TEXTS = (
    "The spy was a mole",
    "A red apple fell from the old tree",
    "The bank",
    "She photographed the muddy bank, and he",
)
ALLOWED = {torch.float32: 1e-4, torch.float64: 1e-10}
A, B = [0, 1], [2, 3]


def axis_and_average(model, depth, texts=TEXTS):
    """The axis between the last tokens of texts 0, 1 and texts 2, 3, and the write of every
    component halfway between them.
    """
    tokens = [tokenize(model, text) for text in texts]
    states = target_states(model, tokens, [len(cut) - 1 for cut in tokens])
    axis = axes.fit_axis(states.resid[A, depth], states.resid[B, depth], ("a", "b"), depth)
    return axis, decomposition.average(read_weights(model), states, A, B, depth=depth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sources_add_up_to_the_write_of_their_head(dtype):
    whole = trace(random_model(dtype), TEXT)
    heads = [
        term
        for term in decomposition.components_by_source(whole, LAYERS, at=7)
        if term.head is not None
    ]
    assert [(term.layer, term.head) for term in heads] == [
        (la, he) for la in range(LAYERS) for he in range(HEADS)
    ]
    for term in heads:
        assert term.vectors.shape == (8, ODD["n_embd"])
        expected = whole.delta_e(term.layer, term.head, 7).double()
        torch.testing.assert_close(
            term.vectors.sum(0), expected, rtol=0, atol=ALLOWED[dtype] * expected.abs().max().item()
        )
        assert term.attention.sum().item() == pytest.approx(1, abs=1e-5)


def test_entries_name_every_term_once_with_its_length():
    whole = trace(random_model(), TEXT)
    entries = decomposition.decompose_resid(whole, 2, at=3)
    names = [(entry.component, entry.pos) for entry in entries]
    expected = [("token embedding", None), ("position embedding", None)]
    for layer in range(2):
        expected += [(f"L{layer}H{head}", pos) for head in range(HEADS) for pos in range(4)]
        expected += [(f"attention bias {layer}", None), (f"MLP {layer}", None)]
    assert names == expected
    lengths = torch.cat(
        [term.vectors for term in decomposition.components_by_source(whole, 2, at=3)]
    ).norm(dim=-1)
    assert [entry.norm for entry in entries] == pytest.approx(lengths.tolist())
    assert {entry.token for entry in entries if entry.pos == 2} == {whole.tokens.labels[2]}
    assert all(entry.contribution is None for entry in entries)


def test_a_write_that_is_equal_in_every_sentence_contributes_exactly_0():
    model = random_model()
    axis, average = axis_and_average(model, 2, [f"{text} bank" for text in TEXTS])
    whole = trace(model, "The muddy old bank")
    assert whole.tokens.ids[-1] == tokenize(model, f"{TEXTS[0]} bank").ids[-1]
    entries = decomposition.decompose_resid(
        whole, 2, at=len(whole.tokens) - 1, axis=axis, average=average
    )
    of = {entry.component: entry.contribution for entry in entries if entry.head is None}
    assert of["token embedding"] == of["attention bias 0"] == of["attention bias 1"] == 0.0
    assert of["position embedding"] != 0.0 and of["MLP 1"] != 0.0


def test_a_constant_moved_from_the_output_bias_into_the_values_changes_no_source(tmp_path):
    """b_V + c with b_O - c W_O is the same function. Another rule for the reference would give
    different sources.
    """
    folders = [make_random(tmp_path / name) for name in ("first", "second")]
    tensors = load_file(folders[1] / "model.safetensors")
    changes = {}
    constant = torch.linspace(-1, 1, ODD["n_embd"])
    for layer in range(LAYERS):
        name = f"transformer.h.{layer}.attn"
        bias = tensors[f"{name}.c_attn.bias"].clone()
        bias[2 * ODD["n_embd"] :] += constant
        changes[f"{name}.c_attn.bias"] = bias
        changes[f"{name}.c_proj.bias"] = (
            tensors[f"{name}.c_proj.bias"] - constant @ tensors[f"{name}.c_proj.weight"]
        )
    change_tensors(folders[1], changes)
    decompositions = []
    for folder in folders:
        model = load(folder, dtype=torch.float64)
        axis, average = axis_and_average(model, LAYERS)
        decompositions.append(
            decomposition.decompose_resid(
                trace(model, TEXT), LAYERS, at=9, axis=axis, average=average
            )
        )
    first, second = ([entry.contribution for entry in entries] for entries in decompositions)
    assert first == pytest.approx(second, abs=1e-5)
    assert max(map(abs, first)) > 0.05
    lengths = [[entry.norm for entry in entries] for entries in decompositions]
    assert lengths[0] != pytest.approx(lengths[1], abs=1e-2)


def test_a_decomposition_that_does_not_sum_is_refused():
    whole = trace(random_model(), TEXT)
    wrong = dataclasses.replace(whole, mlp_out=whole.mlp_out * 1.01)
    with pytest.raises(CrossCheckError) as caught:
        decomposition.decompose_resid(wrong, 2, at=3)
    error = decomposition.closing_error(wrong, 2, at=3)
    assert error > 1e-4
    assert str(caught.value) == (
        "Cannot sum the residual stream of odd after 2 blocks at position 3: the terms miss it by "
        f"{error:.1e} of its "
        "size, expected at most 1e-04. Run `probe check` to see which quantity disagrees."
    )
    lost = dataclasses.replace(whole, mlp_out=whole.mlp_out * torch.nan)
    with pytest.raises(CrossCheckError, match="miss it by nan of its size"):
        decomposition.decompose_resid(lost, 2, at=3)


@pytest.mark.parametrize(("depth", "at"), [(LAYERS + 1, 0), (-1, 0), (1, 99), (1, -1)])
def test_a_depth_or_position_that_does_not_exist_is_refused(depth, at):
    whole = trace(random_model(), TEXT)
    n = len(whole.tokens)
    with pytest.raises(InputError) as caught:
        decomposition.decompose_resid(whole, depth, at=at)
    assert str(caught.value) == (
        f"Cannot decompose the residual stream after {depth} blocks at position {at}: odd has {LAYERS} "
        f"blocks and the text {n} tokens. "
        f"Give a depth from 0 to {LAYERS} and a position from 0 to {n - 1}."
    )


@pytest.fixture(scope="module", params=mostly_campaign([1, 2]))
def planted(request):
    model, head = resolver_model(request.param)
    study = probe.study(
        model,
        sentences=corpus_of(make_sentences()),
        permutations=199,
        experiments=("shares", "readings"),
    )
    return study, head


@pytest.mark.parametrize(("distances", "apart"), [([1, 1, 1, 1], 1), ([1, 1, 2, 2], 2)])
def test_the_two_example_sentences_of_a_sense_differ_in_distance_if_possible(distances, apart):
    observation = SimpleNamespace(
        material=SimpleNamespace(labels=["river"] * 4, distances=distances)
    )
    split = SimpleNamespace(tested_rows=lambda is_a: range(4))
    sense = SimpleNamespace(senses=("river", "money"), split=split)
    gates = {"gap_p": 0.01, "largest_t": 1.0}
    for seed in range(5):
        pair = SimpleNamespace(sense=sense, gates=gates, pairs=SimpleNamespace(seed=seed))
        rows = readings.example_rows(observation, [pair])
        assert len(set(rows)) == 2 and len({distances[row] for row in rows}) == apart


def test_the_frame_is_of_the_sentences_of_readings_and_adds_up(planted):
    study, _ = planted
    frame = study.decomposition
    assert set(frame) <= set(COLUMNS)
    assert sorted(frame["sentence"].unique()) == sorted(study.readings["sentence"].unique())
    sums = frame.groupby(["word", "sentence"]).agg(
        parts=("contribution", "sum"), total=("total", "first")
    )
    assert len(sums) == 4
    assert np.allclose(sums["parts"], sums["total"], atol=1e-4)
    assert sums["total"].abs().min() > 0.3
    assert frame["closing"].between(0, 1e-4).all()
    for _, rows in frame.groupby("sentence"):
        depth = int(study.words["depth"].item())
        assert rows["layer"].max() == depth - 1
        heads = rows[rows["head"].notna()]
        assert len(heads) == depth * 4 * heads["pos"].nunique()
        assert heads.loc[heads["role"] == "word", "pos"].unique().tolist() == [heads["pos"].max()]


def test_the_planted_head_supplies_the_sense_from_the_cue(planted):
    """A frame that was not fitted moves single sentences a little. In the difference between its
    two senses this cancels.
    """
    study, (layer, head) = planted
    terms = study.decomposition
    cues = terms[terms["role"] == "cue"]
    by_sentence = cues.groupby(["sense", "sentence"])
    assert len(by_sentence) == 4
    mean = pd.DataFrame(
        {"contribution": by_sentence["contribution"].sum(), "total": by_sentence["total"].first()}
    )
    mean = mean.groupby("sense").mean()
    between = mean.loc["door"] - mean.loc["canal"]
    assert between["contribution"] / between["total"] == pytest.approx(1, abs=0.02)
    by_head = cues.groupby("component")["contribution"].apply(lambda part: part.abs().sum())
    assert by_head.idxmax() == f"L{layer}H{head}"


STORED = stored_study("bank").frames["decomposition"]
NUMBER = STORED["sentence"].iloc[0]
TERMS = STORED[STORED["sentence"] == NUMBER]


def test_the_bars_keep_every_contribution_and_end_with_the_sum():
    bars = charts.decomposition_table(STORED, "bank", sentence=NUMBER)
    total = TERMS["total"].iloc[0]
    assert TERMS["sense"].iloc[0] == TERMS["sense_a"].iloc[0] and total > 0.3
    order = bars["bar"].unique().tolist()
    tokens = TERMS.dropna(subset="token").groupby("token", sort=False)["contribution"].sum()
    assert [name for name in order if "·" in name] == [*tokens.index]
    assert order[len(tokens) :] == [
        *("token embedding", "position embedding", "MLPs", "attention biases", writes.SUM)
    ]
    parts = bars[bars["bar"] != writes.SUM]
    by_token = parts.groupby("bar")["toward"].sum()[tokens.index]
    assert by_token.tolist() == pytest.approx(tokens.tolist(), abs=1e-5)
    assert parts["toward"].sum() == pytest.approx(total, abs=1e-4)
    [last] = bars.loc[bars["bar"] == writes.SUM, ["toward", "share"]].to_numpy().tolist()
    assert last == pytest.approx([total, 1], abs=1e-4)
    assert set(bars.loc[bars["bar"] == "MLPs", "writer"]) == {"no head"}
    # Many small terms are combined.
    row = TERMS[TERMS["head"].notna()].iloc[0].to_dict()
    many = [
        row | {"pos": pos, "token": f"{pos}·the", "contribution": 0.001 * pos}
        for pos in range(20, 60)
    ]
    longer = pd.concat([TERMS, pd.DataFrame(many).astype(TERMS.dtypes)], ignore_index=True)
    bars = charts.decomposition_table(longer, "bank", sentence=NUMBER)
    tokens = [name for name in bars["bar"].unique() if "·" in name]
    assert len(tokens) == writes.MOST_TOKENS and "59·the" in tokens and "20·the" not in tokens
    added = sum(each["contribution"] for each in many)
    of_parts = bars.loc[bars["bar"] != writes.SUM, "toward"].sum()
    assert of_parts == pytest.approx(total + added, abs=1e-4)


def chart_of(frame, number=NUMBER):
    """The chart as a specification, and its layers by the channel that they encode."""
    spec = charts.decomposition_bars(frame, "bank", sentence=number).to_dict()
    plain = {"x", "y", "order", "tooltip"}
    layers = {next(iter({*layer["encoding"]} - plain), "rule"): layer for layer in spec["layer"]}
    return spec, layers


@pytest.mark.parametrize("sense", ["river", "money"])
def test_the_chart_has_titles_and_a_description_toward_the_sense(sense):
    number = STORED.loc[STORED["sense"] == sense, "sentence"].iloc[0]
    spec, layers = chart_of(STORED, number)
    encoding = layers["color"]["encoding"]
    away = {"river": "money", "money": "river"}[sense]
    title = f"contribution toward {sense}, away from {away} (share of the sum)"
    assert " ".join(encoding["x"]["title"]) == title and encoding["y"]["title"] == "source"
    bars = charts.decomposition_table(STORED, "bank", sentence=number)
    assert encoding["y"]["sort"] == bars["bar"].unique().tolist()
    low, high = encoding["x"]["scale"]["domain"]
    assert low <= bars["share"].min() and high >= bars["share"].max() == pytest.approx(1)
    drawn = pd.DataFrame(spec["datasets"][layers["color"]["data"]["name"]])
    assert drawn.groupby("bar")["drawn"].sum()[bars["bar"]].tolist() == pytest.approx(
        bars["share"].tolist()
    )
    names, colours = (encoding["color"]["scale"][part] for part in ("domain", "range"))
    assert names[-3:] == ["other heads", "no head", writes.SUM] and len({*colours}) == len(names)
    rows = spec["datasets"][layers["text"]["data"]["name"]]
    cue = TERMS.loc[TERMS["role"] == "cue", "token"].iloc[0].split("·")[0]
    assert {row["text"][-1] for row in rows if row["bar"].startswith(f"{cue}·")} == {"%"}
    assert spec["description"].startswith(
        "Where the sense comes from, by source token: the largest contribution is that of "
    )
    assert re.search(r"within \d × 10⁻[⁷⁸] of its size\.$", spec["description"])


def test_without_a_clear_sense_the_chart_has_no_shares_and_all_sentences_share_one_axis():
    smaller = {name: TERMS[name] / 10 for name in ("contribution", "total")}
    unclear, layers = chart_of(TERMS.assign(**smaller))
    assert "%" not in json.dumps(unclear["datasets"])
    assert layers["color"]["encoding"]["x"]["title"][1].endswith("(fraction of the gap)")
    doubled = 2 * TERMS["contribution"]
    both = pd.concat([TERMS, TERMS.assign(sentence=NUMBER + 1, contribution=doubled)])
    first, second = (
        chart_of(both, number)[1]["color"]["encoding"]["x"]["scale"]["domain"]
        for number in (NUMBER, NUMBER + 1)
    )
    assert first == second and first[1] > 1
