"""The values of the page's sections: p over pairs of senses, the order of reasons, one axis for all
words."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from example_study import READ_AT, make_study
from page_text import one_line

import probe
from probe import charts
from probe.pages import checks, predictions, sections
from probe.pages.cards import cards, remark, sink
from probe.pages.heads import effect_axis, head_facts
from probe.pages.predictions import read_otherwise
from probe.pages.sentences import ARCS, THICKEST, arcs, of_head
from probe.pages.verdicts import with_reasons
from probe.pages.words import fact_table, partings
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


UNDECIDED = [
    ({"p_more": 0.08}, "undecided: p = .08, limit .05"),
    ({"more_low": -0.005}, "undecided: the interval includes 0"),
    ({}, "undecided: less than 2\u202f% of the gap"),
    ({"more": 0.2, "more_low": 0.1, "more_high": 0.3}, "undecided: not along every axis"),
]


@pytest.mark.parametrize(("changed", "words"), UNDECIDED)
def test_an_undecided_comparison_says_which_rule_it_misses(changed, words):
    numbers = {"p_more": 0.008, "more": 0.01, "more_low": 0.004, "more_high": 0.02}
    head = findings(FRAMES)["bank"].heads[0]
    facts = head_facts(replace(head, comparison="undecided", **numbers | changed))
    assert facts["than_nouns"] == words


@pytest.mark.parametrize(
    ("p", "farther"), [(1 / 49, "yes"), (2 / 49, "no"), (np.nan, "not compared")]
)
def test_a_word_changes_farther_only_if_it_is_first_of_all_nouns(p, farther):
    words = FRAMES["words"].assign(ambiguity_p=p, ambiguity_p_near=np.nan)
    table = checks.compared_with_nouns(findings(FRAMES | {"words": words}))
    assert {row["farther"] for row in table["pairs"]} == {farther}


def cards_of(word, frames):
    """The cards of a word's heads."""
    verdicts = frames["verdicts"]
    if "because" not in verdicts:
        verdicts = with_reasons(verdicts, frames["heads"], frames["words"])
    return next(item for item in cards(findings(frames), verdicts) if item["word"] == word)


def test_a_head_without_a_verdict_leads_no_list_card_or_scale():
    """L0H6 of SmolLM2 moved spring by 55 % [-11, 221], p = .97: first by rank, verdict none."""
    heads = FRAMES["word_heads"].copy()
    first = heads["word"].eq("mole") & heads["rank"].eq(1)
    heads.loc[first, ["net", "net_low", "net_high"]] = 0.55, -0.11, 2.21
    heads.loc[first, "verdict"] = "none"
    frames = FRAMES | {"word_heads": heads}
    assert [head.name for head in findings(frames)["mole"].top_heads] == ["L0H2"]
    assert [card["name"] for card in cards_of("mole", frames)["heads"]] == ["L0H2"]
    assert heads.loc[first, "net"].item() > charts.effect_limits(heads).before


def of_mole(frame):
    return frame[frame["word"] == "mole"]


def test_a_head_has_its_rank_and_its_write_with_an_interval():
    first = findings(FRAMES)["bank"].heads[0]
    assert head_facts(first)["rank"] == "1 [1, 1]"
    assert head_facts(replace(first, rank=None))["rank"] == "none"
    ends = {"direct": 0.37, "direct_low": 0.33, "direct_high": 0.4}
    assert head_facts(replace(first, **ends))["own"] == "37\u202f% [33, 40]"


def test_pairs_with_the_verdict_of_the_head_come_first_and_no_pair_is_missing():
    table = with_reasons(FRAMES["verdicts"], FRAMES["heads"], FRAMES["words"])
    for verdicts in (table, table.iloc[::-1]):
        mole = cards_of("mole", FRAMES | {"verdicts": verdicts})
        head = mole["heads"][0]
        assert [reason["verdict"] for reason in head["reasons"]] == ["resolver"] * 5 + ["none"]
    assert (head["resolves"], head["of"]) == (5, 5)


def test_misread_sentences_are_listed_by_word_with_the_clearest_first(monkeypatch):
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


def test_the_axis_of_sets_includes_the_word_with_the_widest_interval():
    low = FRAMES["curves"].copy()
    low.loc[(low["word"] == "mole") & (low["size"] == 1), "faithfulness_low"] = -0.5
    specs = [
        charts.set_curves(low, FRAMES["random_sets"], word).to_dict() for word in ("bank", "mole")
    ]
    views = [view["encoding"].get("y", {}) for spec in specs for view in spec["layer"]]
    domains = [encoded["scale"]["domain"] for encoded in views if "scale" in encoded]
    assert (
        len(domains) > 2
        and all(domain == domains[0] for domain in domains)
        and domains[0][0] < -0.5
    )


def test_the_read_out_layer_is_in_every_depth_profile_of_a_word():
    items = partings(findings(FRAMES))
    for item in items:
        for _, chart in item["profiles"]:
            lines = [
                rows for rows in chart.to_dict()["datasets"].values() if set(rows[0]) == {"at"}
            ]
            assert [{"at": READ_AT}] in lines, item["word"]
    assert len(items[1]["profiles"]) == 6


def test_the_table_of_facts_has_a_value_for_each_word_and_no_empty_row():
    table = fact_table(findings(FRAMES))
    assert all(len(values) == 3 and any(values) for _, values in table["rows"])
    rows = dict(table["rows"])
    assert rows["significant heads"][2] == ""  # apple has no gap
    gap = "gap in held-out sentences (1: as wide as in the sentences used for fitting)"
    assert rows[gap][1] == "5 of 6 pairs of meanings"
    assert [item["word"] for item in table["pairs"]] == ["mole"]


def test_every_effect_is_within_the_axis_of_the_page():
    by_word = findings(FRAMES)
    axis = effect_axis(by_word)
    heads = [head for finding in by_word.values() for head in finding.named]
    for head in heads:
        positions = [float(position) for position in axis.marks_of(head).values() if position]
        assert all(0 <= position <= 100 for position in positions)
    lowest, highest = axis.low, axis.high
    assert axis.position(lowest) == "0.0" and axis.position(highest) == "100.0"
    far = replace(heads[0], net_low=lowest, net=0.0, net_high=highest, nouns=float("nan"))
    assert axis.marks_of(far)["nouns"] == ""
    assert axis.marks_of(far)["effect"] == axis.marks_of(far)["zero"]


def test_the_smallest_set_has_its_interval(tmp_path):
    study = make_study()
    row = FRAMES["curves"].query("word == 'bank' and size == smallest").iloc[0]
    kept = row["faithfulness"]
    text = one_line(probe.write(study, tmp_path / "some").read_text(encoding="utf-8"))
    assert f"Kept (F): {measured(kept, kept - 0.05, kept + 0.03)}" in text
    never = FRAMES | {"curves": FRAMES["curves"].assign(smallest=None)}
    page = probe.write(replace(study, frames=never), tmp_path / "none")
    text = one_line(page.read_text(encoding="utf-8"))
    assert "No set smaller than all of them keeps 90\u202f% of the gap." in text
    assert "Kept (F)" not in text and "Best of" not in text


def test_a_card_has_the_sentence_of_each_meaning_with_the_most_attention_to_the_cue():
    finding = findings(FRAMES)["bank"]
    card = cards_of("bank", FRAMES)["heads"][0]
    rows = of_head(finding.rows["readings"], finding.named[0])
    assert card["name"] == finding.named[0].name
    assert [sentence["sense"] for sentence in card["first"]] == list(finding.senses)
    on_cue = rows[rows["role"] == "cue"].groupby("sense")["attention"].max()
    assert [sentence["cue_share"] for sentence in card["first"]] == [
        percent(on_cue[sense]) for sense in finding.senses
    ]
    assert len(card["first"]) + len(card["others"]) == rows["sentence"].nunique()


def test_an_arc_is_as_wide_as_the_attention_and_starts_at_the_word():
    rows = of_head(findings(FRAMES)["bank"].rows["readings"], findings(FRAMES)["bank"].named[0])
    sentence = rows[rows["sentence"] == rows["sentence"].iloc[0]].assign(attention=0.0)
    sentence.loc[sentence.index[1], ["attention", "contribution"]] = [0.5, -0.2]
    figure = arcs(sentence)
    [token] = [token for token in figure["tokens"] if token["arc"]]
    assert token["pos"] == sentence["pos"].iloc[1] and token["second"]
    assert token["toward"] == sentence["sense_b"].iloc[0]
    assert float(token["arc"]["width"]) == 1 + (THICKEST - 1) / 2
    assert token["arc"]["path"].startswith(f"M{figure['word_at']:g},{ARCS}Q")
    assert (token["label"], token["written"]) == (percent(0.5), "−20")
    ends = [token["end"] for token in figure["tokens"]]
    assert ends == sorted(ends) and figure["width"] >= ends[-1]


def test_wide_letters_have_twice_the_width_and_tokens_do_not_overlap():
    rows = of_head(findings(FRAMES)["bank"].rows["readings"], findings(FRAMES)["bank"].named[0])
    sentence = rows[rows["sentence"] == rows["sentence"].iloc[0]].copy()
    sentence.loc[sentence.index[0], "piece"] = "銀行"
    first, second, *_ = arcs(sentence)["tokens"]
    assert first["width"] == 4 * first["width"] / len("銀行") / 2
    assert first["start"] + first["width"] <= first["end"] <= second["start"]


def test_a_card_has_a_remark_if_effect_and_write_or_attention_disagree():
    head = findings(FRAMES)["bank"].heads[0]
    usual = {"net": 0.3, "net_low": 0.2, "direct": 0.3, "attention_cue": 0.6}
    cases = {"little": {"direct": 0.14}, "much": {"direct": 0.46}}
    cases |= {"elsewhere": {"attention_cue": 0.1}, "": {}}
    for name, change in cases.items():
        assert remark(replace(head, **usual | change)) == name
    assert remark(replace(head, **usual | {"direct": 0.14, "net_low": -0.1})) == ""


def test_a_card_lists_the_cues_with_the_largest_writes_of_the_head():
    scan = pd.DataFrame(
        {
            "word": "bank",
            "sense_a": "river",
            "sense_b": "money",
            "cue": ["lake", "mud", "loan", "cash"],
            "seen": False,
            "layer": 0,
            "head": 2,
            "write": [0.2, 0.3, -0.4, -0.1],
        }
    )
    by_name = {
        head["name"]: head for head in cards_of("bank", FRAMES | {"cue_sample": scan})["heads"]
    }
    toward, away = by_name["L0H2"]["cues"]["columns"]
    assert [each["word"] for each in toward[:2]] == ["mud", "lake"]
    assert [each["word"] for each in away[:2]] == ["loan", "cash"]
    assert all(head["cues"] is None for name, head in by_name.items() if name != "L0H2")


@pytest.mark.parametrize(
    ("attention", "contribution", "expected"),
    [
        ([0.6, 0.3, 0.1], [0.01, 0.2, 0.1], percent(0.6)),
        ([0.2, 0.7, 0.1], [0.01, 0.2, 0.1], ""),  # too little attention
        ([0.6, 0.3, 0.1], [0.3, 0.2, 0.1], ""),  # half of all contributions
    ],
)
def test_a_sink_is_a_first_token_with_much_attention_and_a_small_contribution(
    attention, contribution, expected
):
    roles = {"role": ["context", "cue", "word"], "pos": range(3)}
    rows = pd.DataFrame({"attention": attention, "contribution": contribution} | roles)
    assert sink(rows) == expected
    assert sink(rows.assign(role=["cue", "context", "word"])) == ""


def test_a_card_says_why_its_head_attends_to_the_cue(tmp_path):
    page = probe.write(make_study(), tmp_path).read_text(encoding="utf-8").replace("\u202f", " ")
    reasons = re.findall(r'<p class="reason">(.*?)</p>', page, re.DOTALL)
    assert {reason.split(":")[0] for reason in reasons} == {"Reason", "No reason"}
    assert "Reason: MLP 0's output at both tokens, 60 % [52, 67] of the contrast." in reasons[0]
    assert "supplies 70 % [55, 85] of a contrast of 1.60; putting a noun's part at" in reasons[0]
    assert "costs 10 % of the contrast" in reasons[0]
    assert "<td>word, by nouns</td>" in page


def test_a_section_without_a_template_shows_the_rows_of_its_table(monkeypatch, tmp_path):
    study = make_study()
    rows = study.frames["distances"].head(3)
    study.frames["distances"] = rows.assign(word="<b>", net=[1.234, np.nan, -1.0])
    section = sections.Section(
        "near", heading=sections.TRAVELS, title="By distance", table="distances"
    )
    monkeypatch.setattr(sections, "every_section", lambda: [section])
    page = probe.write(study, tmp_path).read_text(encoding="utf-8")
    shown = page.partition('<section id="near">')[2].partition("</section>")[0]
    assert "<h3>By distance</h3>" in shown
    assert re.findall(r'data-label="word">(.*?)</td>', shown) == ["<bdi>&lt;b&gt;</bdi>"] * 3
    net = re.findall(r'data-label="net">(.*?)</td>', shown)
    assert net == ["<bdi>1.23</bdi>", "", "<bdi>−1.00</bdi>"]
    assert shown.count("<td") == rows.size
