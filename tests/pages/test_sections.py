"""The values of the page's sections: p over pairs of senses, reasons in order, one axis for words
that differ."""

import pandas as pd
from example_study import READ_AT, make_study

from probe import charts
from probe.pages.excerpts import readings
from probe.pages.rows import with_tests
from probe.pages.sections import cards, head_facts, together
from probe.stats.numbers import measured

FRAMES = make_study().frames


def test_a_head_of_several_pairs_of_senses_has_its_smallest_corrected_p():
    heads = FRAMES["heads"].copy()
    mine = (heads["word"] == "mole") & (heads["layer"] == 0) & (heads["head"] == 1)
    heads.loc[mine, "p_swap"] = [0.5, 0.04, 0.3, 0.2, 0.6, 0.9]
    row = with_tests(
        FRAMES["word_heads"].query("word == 'mole' and layer == 0 and head == 1"), heads
    )
    assert row["p_swap"].tolist() == [0.04]
    assert head_facts(row.to_dict("records")[0])["p_swap"] == "p = .04"


def test_a_head_has_its_place_if_any_and_its_write_with_its_interval():
    row = with_tests(
        FRAMES["word_heads"].query("word == 'bank' and rank == 1"), FRAMES["heads"]
    ).to_dict("records")[0]
    assert (
        head_facts(row)["rank"] == "1 [1, 1]"
        and head_facts(row | {"rank": pd.NA})["rank"] == "none"
    )
    ends = {"direct": 0.37, "direct_low": 0.33, "direct_high": 0.4}
    assert head_facts(row | ends)["own"] == "37\u202f% [33, 40]"


def test_the_pairs_with_the_heads_own_verdict_come_first_and_none_is_missing():
    for verdicts in (FRAMES["verdicts"], FRAMES["verdicts"].iloc[::-1]):
        mole = next(
            item for item in readings(FRAMES | {"verdicts": verdicts}) if item["word"] == "mole"
        )
        head = mole["heads"][0]
        assert [reason["verdict"] for reason in head["reasons"]] == ["resolver"] * 5 + ["none"]
    assert head["where"] == "in 5 of 5 pairs of senses"


def test_the_axis_of_sets_leaves_room_for_the_word_that_goes_furthest():
    low = FRAMES["curves"].copy()
    low.loc[(low["word"] == "mole") & (low["size"] == 1), "faithfulness_low"] = -0.5
    drawn = [
        charts.set_curves(low, FRAMES["random_sets"], word).to_dict() for word in ("bank", "mole")
    ]
    views = [view["encoding"].get("y", {}) for spec in drawn for view in spec["layer"]]
    domains = [encoded["scale"]["domain"] for encoded in views if "scale" in encoded]
    assert (
        len(domains) > 2
        and all(domain == domains[0] for domain in domains)
        and domains[0][0] < -0.5
    )


def test_the_read_out_stands_in_every_depth_profile_of_a_word():
    for card in cards(FRAMES):
        for _, chart in card["depth"]:
            lines = [
                rows for rows in chart.to_dict()["datasets"].values() if set(rows[0]) == {"at"}
            ]
            assert [{"at": READ_AT}] in lines, card["word"]
    assert len(cards(FRAMES)[1]["depth"]) == 6


def test_the_smallest_set_has_its_interval():
    bank = together(FRAMES)[0]
    row = FRAMES["curves"].query("word == 'bank' and size == smallest").iloc[0]
    assert bank["kept"] == measured(
        row["faithfulness"], row["faithfulness"] - 0.05, row["faithfulness"] + 0.03
    )
    never = together(FRAMES | {"curves": FRAMES["curves"].assign(smallest=None)})[0]
    assert (never["names"], never["kept"], never["rival"]) == ([], "", "")
