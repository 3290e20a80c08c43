"""The word's gap by depth next to unambiguous nouns: distances in units of the word's gap, the
band, and the frames around cells that do more for the word."""

import numpy as np
import pandas as pd
import pytest
from example_study import READ_AT, make_study
from test_charts import parts, rows_of, scale_of

from probe import charts

pytestmark = pytest.mark.usefixtures("no_rows_of_a_table")

FRAMES = make_study().frames
CONTROLS = FRAMES["controls"]
HEADS = FRAMES["word_heads"]


def test_distances_are_roots_of_squared_gaps_in_units_of_the_words_gap_at_the_read_out_layer():
    rows = charts.noun_distances(CONTROLS, "bank", read_at=READ_AT).set_index(["what", "depth"])
    word = rows.loc["bank", "distance"]
    assert word.tolist() == pytest.approx([depth / READ_AT for depth in range(5)])
    nouns = rows.loc["unambiguous nouns"].loc[READ_AT]
    shares = CONTROLS.query("word == 'bank' and noun != 'bank' and depth == @READ_AT")
    share = shares["general_share"]
    actual = [nouns["distance"], nouns["low"], nouns["high"]]
    assert actual == pytest.approx(np.sqrt([share.mean(), share.min(), share.max()]).tolist())
    assert (nouns["furthest"], nouns["nouns"]) == ("noun47", 48)


def test_a_squared_gap_below_zero_is_a_distance_below_zero():
    negative = CONTROLS.assign(
        gap=CONTROLS["gap"].where(CONTROLS["noun"] != "noun0", -CONTROLS["gap"]),
        general_share=CONTROLS["general_share"].where(CONTROLS["noun"] != "noun0", -0.05),
    )
    rows = charts.noun_distances(negative, "bank", read_at=READ_AT)
    low = rows.query("what != 'bank' and depth == @READ_AT")["low"].item()
    assert low == pytest.approx(-np.sqrt(0.05))


def test_the_distance_for_several_pairs_of_senses_is_the_root_of_their_mean_share():
    mole = CONTROLS[CONTROLS["word"] == "mole"]
    first = (mole["sense_a"] == "animal") & (mole["sense_b"] == "unit") & (mole["noun"] != "mole")
    doubled = mole.assign(gap=mole["gap"].where(~first, 2 * mole["gap"]))
    doubled["general_share"] = mole["general_share"].where(~first, 2 * mole["general_share"])
    before, after = (
        charts.noun_distances(frame, "mole", read_at=READ_AT)
        .query("what != 'mole' and depth == @READ_AT")["distance"]
        .item()
        for frame in (mole, doubled)
    )
    assert after**2 == pytest.approx(before**2 * 6 / 5)  # one of five pairs has twice the share


def test_a_noun_is_measured_in_units_of_the_words_gap_in_the_nouns_sentences():
    """A noun with another article has fewer sentences; the unit is the word's gap in these."""
    half = CONTROLS.assign(
        gap=CONTROLS["gap"].where(CONTROLS["noun"] == "bank", 0.5 * CONTROLS["gap"])
    )
    rows = [charts.noun_distances(frame, "bank", read_at=READ_AT) for frame in (CONTROLS, half)]
    at_read_out = [frame.query("what != 'bank' and depth == @READ_AT") for frame in rows]
    assert at_read_out[0]["distance"].item() == pytest.approx(at_read_out[1]["distance"].item())


def titles_of(spec):
    return [view["encoding"]["y"].get("title") for view in parts(spec) if "y" in view["encoding"]]


def test_the_chart_marks_the_read_out_layer_and_describes_how_far_the_nouns_go():
    spec = charts.noun_gaps(CONTROLS, "bank", read_at=READ_AT).to_dict()
    assert spec["description"] == (
        "Nouns in the place of bank: at its read-out layer its meanings are 1 apart, those of 48 "
        "unambiguous nouns in its place 0.50 in the mean, from 0.22 to 0.80 (noun47)."
    )
    assert rows_of(spec, "at") in ([{"at": READ_AT}], [{"at": 0.0}])
    assert rows_of(spec, "note") == [{"depth": READ_AT, "note": "read-out"}]
    assert ["distance", "(1 = bank at the read-out)"] in titles_of(spec)
    assert "type" not in scale_of(spec, "y")  # linear: nothing goes beyond twice the read-out


def test_an_axis_far_beyond_the_read_out_value_is_in_square_roots():
    spec = charts.noun_gaps(CONTROLS, "bank", read_at=1).to_dict()
    assert scale_of(spec, "y")["type"] == "sqrt"
    assert ["distance, √ scale", "(1 = bank at the read-out)"] in titles_of(spec)


def frames_of_more(spec):
    """The cells that have a frame."""
    views = [view for view in parts(spec) if view["mark"].get("strokeWidth") == 2.5]
    return [row for view in views for row in spec["datasets"][view["data"]["name"]]]


def test_only_cells_that_do_more_for_the_word_have_a_frame():
    spec = charts.head_map(HEADS, "bank").to_dict()
    more = HEADS.query("word == 'bank' and comparison == 'more'")
    assert [(row["layer"], row["head"]) for row in frames_of_more(spec)] == [
        (row.layer, row.head) for row in more.itertuples()
    ]
    assert len(more) == 2
    assert spec["description"].endswith(
        "Significantly more for it than for unambiguous nouns: L0H2, L1H0."
    )
    none = charts.head_map(HEADS.assign(comparison="same", verdict="mover"), "bank").to_dict()
    assert frames_of_more(none) == []
    assert none["description"].endswith("unambiguous nouns: none.")


def test_a_resolver_of_one_pair_of_meanings_has_a_frame_although_its_mean_is_undecided():
    undecided = HEADS.assign(comparison="undecided")
    resolvers = undecided.query("word == 'mole' and verdict == 'resolver'")
    framed = frames_of_more(charts.head_map(undecided, "mole").to_dict())
    assert [(row["layer"], row["head"]) for row in framed] == [
        (row.layer, row.head) for row in resolvers.itertuples()
    ]
    assert len(resolvers) == 2


def test_mlps_are_means_over_pairs_of_senses_with_a_frame_where_they_do_more():
    mlps = FRAMES["mlps"].assign(net=0.1 + np.arange(len(FRAMES["mlps"])) / 100)
    cells = charts.mlps_beside_nouns(mlps)
    mine = mlps[(mlps["word"] == "mole") & (mlps["layer"] == 1)]
    cell = cells.query("word == 'mole' and layer == 1").iloc[0]
    assert cell["net"] == pytest.approx(mine["net"].mean())
    assert (cell["comparison"], cell["beside"]) == ("more", "more than for other nouns")
    assert set(cells.query("layer != 1")["comparison"]) == {""}
    movers = HEADS.assign(comparison="", verdict="mover")
    framed = frames_of_more(charts.head_map(movers, "mole", cells).to_dict())
    assert [(row["layer"], row["head"]) for row in framed] == [(1, "MLP")]


def test_every_comparison_has_its_phrase():
    assert set(HEADS["comparison"]) <= set(charts.BESIDE_NOUNS)
    assert pd.Series(charts.BESIDE_NOUNS).is_unique
