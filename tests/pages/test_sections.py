"""The values of the page's sections and of its end: p over pairs of senses, one axis, what was left out, columns."""

import pandas as pd
import pytest
from example_study import READ_AT, make_study

from probe import charts
from probe.pages import remarks
from probe.pages.excerpts import readings
from probe.pages.rows import with_tests
from probe.pages.sections import DOWNLOADS, cards, data_used, downloads, head_facts, together
from probe.stats.numbers import measured
from probe.study.columns import COLUMNS, UNITS, dictionary, meaning
from probe.text.sentences import REPEATS

FRAMES = make_study().frames


def test_a_head_of_several_pairs_of_senses_has_its_smallest_corrected_p():
    heads = FRAMES["heads"].copy()
    mine = (heads["word"] == "mole") & (heads["layer"] == 0) & (heads["head"] == 1)
    heads.loc[mine, "p_swap"] = [0.5, 0.04, 0.3, 0.2, 0.6, 0.9]
    row = with_tests(FRAMES["word_heads"].query("word == 'mole' and layer == 0 and head == 1"), heads)
    assert row["p_swap"].tolist() == [0.04]
    assert head_facts(row.to_dict("records")[0])["p_swap"] == "p = .04"


def test_a_head_has_its_place_if_any_and_its_write_with_its_interval():
    row = with_tests(FRAMES["word_heads"].query("word == 'bank' and rank == 1"), FRAMES["heads"]).to_dict("records")[0]
    assert head_facts(row)["rank"] == "1 [1, 1]" and head_facts(row | {"rank": pd.NA})["rank"] == "none"
    ends = {"direct": 0.37, "direct_low": 0.33, "direct_high": 0.4}
    assert head_facts(row | ends)["own"] == "37\u202f% [33, 40]"


def test_the_pairs_with_the_heads_own_verdict_come_first_and_none_is_missing():
    for verdicts in (FRAMES["verdicts"], FRAMES["verdicts"].iloc[::-1]):
        mole = next(item for item in readings(FRAMES | {"verdicts": verdicts}) if item["word"] == "mole")
        head = mole["heads"][0]
        assert [reason["verdict"] for reason in head["reasons"]] == ["resolver"] * 5 + ["none"]
    assert head["where"] == "in 5 of 5 pairs of senses"


def test_the_axis_of_sets_leaves_room_for_the_word_that_goes_furthest():
    low = FRAMES["curves"].copy()
    low.loc[(low["word"] == "mole") & (low["size"] == 1), "faithfulness_low"] = -0.5
    drawn = [charts.set_curves(low, FRAMES["random_sets"], word).to_dict() for word in ("bank", "mole")]
    views = [view["encoding"].get("y", {}) for spec in drawn for view in spec["layer"]]
    domains = [encoded["scale"]["domain"] for encoded in views if "scale" in encoded]
    assert len(domains) > 2 and all(domain == domains[0] for domain in domains) and domains[0][0] < -0.5


def test_the_read_out_stands_in_every_depth_profile_of_a_word():
    for card in cards(FRAMES):
        for _, chart in card["depth"]:
            lines = [rows for rows in chart.to_dict()["datasets"].values() if set(rows[0]) == {"at"}]
            assert [{"at": READ_AT}] in lines, card["word"]
    assert len(cards(FRAMES)[1]["depth"]) == 6


def test_the_smallest_set_has_its_interval():
    bank = together(FRAMES)[0]
    row = FRAMES["curves"].query("word == 'bank' and size == smallest").iloc[0]
    assert bank["kept"] == measured(row["faithfulness"], row["faithfulness"] - 0.05, row["faithfulness"] + 0.03)
    never = together(FRAMES | {"curves": FRAMES["curves"].assign(smallest=None)})[0]
    assert (never["names"], never["kept"], never["rival"]) == ([], "", "")


def test_every_column_of_every_table_is_explained_once():
    rows = dictionary(FRAMES)
    named = {(name, column) for name, frame in FRAMES.items() for column in frame}
    assert set(zip(rows["table"], rows["column"], strict=True)) == named | {("columns", column) for column in rows}
    assert not rows.duplicated(["table", "column"]).any() and (rows["meaning"].str.len() > 3).all()
    units = rows.set_index(["table", "column"])["unit"]
    assert units["word_heads", "net"] == "fraction of the sense gap" and units["words", "word"] == ""


def test_a_name_that_stands_for_two_things_is_explained_by_its_table_and_units_are_of_columns_that_exist():
    assert meaning("depth", "auroc") != meaning("heads", "auroc") == COLUMNS["auroc"]
    with pytest.raises(KeyError):
        meaning("heads", "nothing")
    assert set(UNITS) <= set(COLUMNS)


def test_every_table_beside_the_page_says_what_it_holds():
    listed = downloads(FRAMES | {"columns": dictionary(FRAMES)})
    assert {row["name"] for row in listed} == set(DOWNLOADS) and all(row["what"] for row in listed)


def left_out(*rows: tuple[str | None, str]) -> dict[str, object]:
    frame = pd.DataFrame([{"word": word, "where": "line", "reason": reason} for word, reason in rows])
    return data_used(FRAMES | {"left_out": frame})


def test_what_was_left_out_while_reading_is_counted_and_repetitions_stand_together():
    repeats = [(None, f"{REPEATS} line {number}") for number in (1, 1, 7)]
    found = left_out(*repeats, (None, "about another word than 'bank'"), ("bank", "too long"))
    assert found["number_left_out"] == sum(row["count"] for row in found["left_out"]) == 5
    assert found["left_out"] == [
        {"word": "", "reason": f"{REPEATS} an earlier row", "count": 3},
        {"word": "", "reason": "about another word than 'bank'", "count": 1},
        {"word": "bank", "reason": "too long", "count": 1},
    ]
    assert data_used(FRAMES | {"left_out": FRAMES["left_out"][:0]})["left_out"] == []


@pytest.mark.parametrize(
    ("pairs", "lone"),
    [(["1", "1", "2", "2"], 0), (["1", "1", "2", None], 1), (["1", "2", "3", "4"], 4), ([None] * 4, 0)],
)
def test_sentences_whose_pair_has_no_partner_of_another_sense_are_counted(pairs, lone):
    rows = pd.DataFrame({"pair": pairs, "sense": ["river", "money"] * 2})
    assert remarks.unpaired(rows) == lone
    assert remarks.unpaired(rows.assign(sense="river")) == sum(pair is not None for pair in pairs)
