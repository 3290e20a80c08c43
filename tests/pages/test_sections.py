"""The values of the page's sections: p over pairs of senses, reasons in order, one axis for words
that differ."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from example_study import READ_AT, make_study

from probe import charts
from probe.pages import predictions, why
from probe.pages.heads import every_head, head_facts, leading_heads, together
from probe.pages.html import with_interval
from probe.pages.predictions import read_otherwise
from probe.pages.sentences import of_head
from probe.pages.verdicts import with_reasons
from probe.pages.words import apart_at, cards, looks, sink
from probe.results.findings import findings, heads_by_rank
from probe.stats.numbers import measured, percent

FRAMES = make_study().frames


def test_a_head_of_several_pairs_of_senses_has_its_smallest_corrected_p():
    heads = FRAMES["heads"].copy()
    mine = (heads["word"] == "mole") & (heads["layer"] == 0) & (heads["head"] == 1)
    heads.loc[mine, "p_swap"] = [0.5, 0.04, 0.3, 0.2, 0.6, 0.9]
    rows = {name: FRAMES[name] for name in ("words", "word_heads")} | {"heads": heads}
    [head] = [
        head
        for head in heads_by_rank({name: of_mole(frame) for name, frame in rows.items()})
        if head.name == "L0H1"
    ]
    assert head.p_swap == 0.04
    assert head_facts(head)["p_swap"] == "p = .04"


def of_mole(frame):
    return frame[frame["word"] == "mole"]


def test_a_head_has_its_rank_if_any_and_its_write_with_its_interval():
    first = findings(FRAMES)["bank"].heads[0]
    assert head_facts(first)["rank"] == "1 [1, 1]"
    assert head_facts(replace(first, rank=None))["rank"] == "none"
    ends = {"direct": 0.37, "direct_low": 0.33, "direct_high": 0.4}
    assert head_facts(replace(first, **ends))["own"] == "37\u202f% [33, 40]"


def test_the_pairs_with_the_heads_own_verdict_come_first_and_none_is_missing():
    table = with_reasons(FRAMES["verdicts"], FRAMES["heads"], FRAMES["words"])
    for verdicts in (table, table.iloc[::-1]):
        sections = leading_heads(findings(FRAMES), verdicts)
        mole = next(item for item in sections if item["word"] == "mole")
        head = mole["heads"][0]
        assert [reason["verdict"] for reason in head["reasons"]] == ["resolver"] * 5 + ["none"]
    assert (head["resolves"], head["of"]) == (5, 5)


def test_a_model_with_routed_mlps_says_how_often_a_swap_changed_the_route_and_no_other_does():
    assert all(item["rerouted"] is None for item in every_head(findings(FRAMES), FRAMES))
    heads = FRAMES["heads"].copy()
    heads["rerouted"] = 0.1
    most = (heads["layer"] == 1) & (heads["head"] == 2)
    heads.loc[most, "rerouted"] = 0.5
    routed = every_head(findings(FRAMES), FRAMES | {"heads": heads})[0]["rerouted"]
    assert routed["name"] == "L1H2" and routed["most"] == "50\u202f%"
    count = len(heads.drop_duplicates(["layer", "head"]))
    assert routed["mean"] == f"{10 + 40 / count:.0f}\u202f%"


def test_sentences_read_otherwise_are_listed_by_word_the_clearest_first(monkeypatch):
    bank, mole, apple = read_otherwise(findings(FRAMES))
    assert (bank["tested"], bank["right"], len(bank["rows"]), bank["apart"]) == (4, 3, 1, True)
    assert not bank["several"] and mole["several"] and not mole["apart"] and not apple["apart"]
    assert len(mole["rows"]) == 6 and mole["rows"][0]["pair"] == "animal / unit"
    [row] = bank["rows"]
    assert (row["sense"], row["predicted"], row["coordinate"]) == ("money", "river", "0.40")
    assert ("bank", "word") in row["parts"] and ("money", "cue") in row["parts"]
    wrong = FRAMES["predictions"].assign(right=False)
    wrong["coordinate"] = [number / 100 for number in range(len(wrong))]
    wrong.loc[1, ["predicted", "coordinate"]] = [None, 0.0]
    monkeypatch.setattr(predictions, "MOST_LISTED", 3)
    bank = read_otherwise(findings(FRAMES | {"predictions": wrong}))[0]
    assert [row["coordinate"] for row in bank["rows"]] == ["0.03", "0.02", "0.00"]
    assert bank["right"] == 0 and bank["rows"][2]["predicted"] in ("", "river", "money")


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
    shown = cards(findings(FRAMES))
    for card in shown:
        for _, chart in card["depth"]:
            lines = [
                rows for rows in chart.to_dict()["datasets"].values() if set(rows[0]) == {"at"}
            ]
            assert [{"at": READ_AT}] in lines, card["finding"].word
    assert len(shown[1]["depth"]) == 6


def test_the_smallest_set_has_its_interval():
    bank = together(findings(FRAMES), FRAMES)[0]
    row = FRAMES["curves"].query("word == 'bank' and size == smallest").iloc[0]
    assert with_interval(bank["smallest"], "faithfulness") == measured(
        row["faithfulness"], row["faithfulness"] - 0.05, row["faithfulness"] + 0.03
    )
    frames = FRAMES | {"curves": FRAMES["curves"].assign(smallest=None)}
    never = together(findings(frames), frames)[0]
    assert (never["smallest"], never["random"]) == (None, None)


def test_a_card_shows_where_the_first_head_looks_in_a_sentence_of_each_sense():
    finding = findings(FRAMES)["bank"]
    shown = looks(finding)
    rows = of_head(finding.rows["readings"], finding.heads_read[0])
    assert shown["head"] == finding.heads_read[0].name
    assert [read["sense"] for read in shown["sentences"]] == list(finding.senses)
    on_cue = rows[rows["role"] == "cue"].groupby("sense")["attention"].max()
    assert [read["cue_share"] for read in shown["sentences"]] == [
        percent(on_cue[sense]) for sense in finding.senses
    ]
    assert looks(replace(finding, heads_read=())) is None


@pytest.mark.parametrize(
    ("attention", "contribution", "said"),
    [
        ([0.6, 0.3, 0.1], [0.01, 0.2, 0.1], percent(0.6)),
        ([0.2, 0.7, 0.1], [0.01, 0.2, 0.1], ""),  # too little attention
        ([0.6, 0.3, 0.1], [0.3, 0.2, 0.1], ""),  # it gives half of all
    ],
)
def test_a_sink_is_a_first_token_with_much_attention_that_gives_little(
    attention, contribution, said
):
    roles = {"role": ["context", "cue", "word"], "pos": range(3)}
    rows = pd.DataFrame({"attention": attention, "contribution": contribution} | roles)
    assert sink(rows) == said
    assert sink(rows.assign(role=["cue", "context", "word"])) == ""


def test_a_reason_is_given_only_where_attribution_and_replacements_agree():
    [bank, mole] = why.section(findings(FRAMES))
    assert [head["reason"] for head in bank["heads"]] == ["both", "apart", "none"][
        : len(bank["heads"])
    ]
    assert (mole["sentences"], mole["pairs"]) == (16, 8)
    row = {"p_contrast": 0.001, "p_query": 0.01, "p_key": 0.01}
    row |= {"part_query": "L0H1", "part_key": "MLP 0"}
    said = {
        "pair": {},
        "both": {"part_query": "MLP 0"},
        "cue": {"part_query": "query bias", "p_query": float("nan")},
        "none": {"p_contrast": 0.05},
    }
    for reason, change in said.items():
        assert why._reason(pd.Series(row | change)) == reason
    for p in ("p_query", "p_key"):
        assert why._reason(pd.Series(row | {p: 0.05})) == "apart"
        assert why._reason(pd.Series(row | {p: float("nan")})) == "apart"


def test_the_matrix_holds_the_largest_parts_and_all_others_and_sums_to_the_contrast():
    names = [f"part {number}" for number in range(9)]
    shares = np.full((9, 9), 0.01)
    shares[8, 2] += 0.69
    shares[2, 8] -= 0.5
    scores = [(a, b, 3 * shares[m, n]) for m, a in enumerate(names) for n, b in enumerate(names)]
    rows = {
        "qk_attribution": pd.DataFrame(scores, columns=["part_query", "part_key", "score"]),
        "ov_attribution": pd.DataFrame({"part_key": names, "write": [0.1] * 8 + [0.2]}),
    }
    matrix = why._matrix(rows, contrast=3.0, written=1.0)
    assert len(matrix["keys"]) == len(matrix["rows"]) == why.MOST_PARTS + 1
    assert matrix["keys"][-1] == matrix["rows"][-1][0] == why.OTHERS
    assert {"part 2", "part 8"} <= {*matrix["keys"]} & {name for name, _ in matrix["rows"]}
    texts = [cell["text"] for _, cells in matrix["rows"] for cell in cells]
    shown = [int(text.replace("−", "-")) for text in texts if text]
    assert sum(shown) == 100
    [negative] = [cell for _, cells in matrix["rows"] for cell in cells if cell["against"]]
    assert negative == {"text": "−49", "tint": 10, "against": True}
    assert matrix["taken"][-1]["text"] == "30"


def test_the_layer_after_which_meanings_are_half_a_gap_apart():
    finding = findings(FRAMES)["bank"]
    depth = pd.DataFrame(
        [
            {"depth": at, "sense": sense, "coordinate": side * apart / 2}
            for at, apart in ((-1, 0.0), (0, 0.0), (1, 0.4), (2, 0.9))
            for sense, side in zip(finding.senses, (1, -1), strict=True)
        ]
    ).assign(sense_a=finding.senses[0], sense_b=finding.senses[1])
    rows = dict(finding.rows)
    assert apart_at(replace(finding, rows=rows | {"depth": depth})) == 1
    near = depth.assign(coordinate=depth["coordinate"] / 4)
    assert apart_at(replace(finding, rows=rows | {"depth": near})) is None
