"""ΔE of all heads as a frame, and its picture."""

import pandas as pd
import pytest
import torch

import probe
from probe import charts

TEXT = "The old tree by the bank"


@pytest.mark.parametrize("model", ["tiny-senses", "tiny-senses-bidirectional"])
def test_a_row_is_the_vector_that_the_trace_has(model):
    trace = probe.trace(model, TEXT)
    direction = trace.resid_post[-1, -1] - trace.resid_post[-1, 1]
    frame = probe.delta_e(model, TEXT, at="bank", along=direction)
    assert list(frame.columns) == ["layer", "head", "norm", "along"]
    assert len(frame) == 16
    for row in frame.itertuples():
        vector = trace.delta_e(row.layer, row.head, "bank")
        assert row.norm == pytest.approx(float(vector.norm()), rel=1e-4)
        component = float(vector @ direction / direction.norm())
        assert row.along == pytest.approx(component, rel=1e-3, abs=1e-4)


def test_components_by_source_token_add_up():
    direction = torch.arange(1, 129)
    heads = probe.delta_e("tiny-senses", TEXT, at="tree", along=direction)
    parts = probe.delta_e("tiny-senses", TEXT, at="tree", along=direction, by_source=True)
    assert parts["token"].iloc[:4].tolist() == ["0·<|endoftext|>", "1·The", "2·old", "3·tree"]
    sums = parts.groupby(["layer", "head"])["along"].sum()
    assert sums.to_numpy() == pytest.approx(heads["along"].to_numpy(), abs=1e-4)


@pytest.mark.parametrize("along", [[1.0, 2.0], torch.zeros(128)])
def test_a_direction_that_is_none_is_refused(along):
    with pytest.raises(probe.InputError, match="expected one vector of 128 numbers"):
        probe.delta_e("tiny-senses", TEXT, at="bank", along=along)


def test_the_picture_of_a_frame_names_the_largest_head():
    frame = probe.delta_e("tiny-senses", TEXT, at="bank")
    largest = frame.loc[frame["norm"].idxmax()]
    description = charts.heads(frame).to_dict()["description"]
    assert f"of L{largest.layer:.0f}H{largest['head']:.0f}." in description
    with pytest.raises(probe.InputError, match="expected layer, head and one of"):
        charts.heads(frame.drop(columns="norm"))


def test_a_picture_has_shares_in_percent_and_only_signed_numbers_on_two_sides():
    lengths = pd.DataFrame({"layer": [0, 0], "head": [0, 1], "norm": [12.34, 1.0]})
    shares = lengths.rename(columns={"norm": "swap"}) / [1, 1, 20]
    drawn = {}
    for frame in (lengths, shares):
        spec = charts.heads(frame).to_dict()
        scale = spec["layer"][0]["encoding"]["color"]["scale"]["domain"]
        [rows] = spec["datasets"].values()
        drawn[frame.columns[-1]] = ([row["mark"] for row in rows], min(scale))
    assert drawn["norm"][0] == ["12.3", "1.0"] and drawn["norm"][1] > 0
    assert drawn["swap"] == (["62", "5"], -12.34 / 20)
