"""The sections of a page: cards, comparisons with nouns, the order of reasons, one axis for all
words."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from example_study import READ_AT, make_study
from page_text import by_word, macro, one_line, rows_of_table, section

import probe
from probe import charts
from probe.claims.heads import named
from probe.pages import sections
from probe.pages.heads import effect_axis, place
from probe.pages.sentences import ARCS, THICKEST, arcs
from probe.pages.verdicts import with_reasons
from probe.stats.numbers import measured, percent

FRAMES = make_study().frames
READINGS = FRAMES["readings"].query("word == 'bank' and layer == 0 and head == 2")


UNDECIDED = [
    ({"p_more": 0.08}, "undecided: p = .08, limit .05"),
    ({"more_low": -0.005}, "undecided: the interval includes 0"),
    ({}, "undecided: less than 2\u202f% of the gap"),
    ({"more": 0.2, "more_low": 0.1, "more_high": 0.3}, "undecided: not along every axis"),
]


@pytest.mark.parametrize(("changed", "words"), UNDECIDED)
def test_an_undecided_comparison_says_which_rule_it_misses(changed, words):
    numbers = {"p_more": 0.008, "more": 0.01, "more_low": 0.004, "more_high": 0.02}
    head = pd.Series({"comparison": "undecided"} | numbers | changed)
    assert macro("numbers.html.j2", "than_nouns")(head) == words


@pytest.mark.parametrize(
    ("p", "farther"), [(1 / 49, "yes"), (2 / 49, "no"), (np.nan, "not compared")]
)
def test_a_word_changes_farther_only_if_it_is_first_of_all_nouns(p, farther):
    words = FRAMES["words"].assign(ambiguity_p=p, ambiguity_p_near=np.nan)
    text = section(FRAMES | {"words": words}, "nouns").partition("</table>")[0]
    assert {row[-1] for row in rows_of_table(text)} == {farther}


def cards_of(word, frames):
    """The HTML of the card of each head of a word, by name."""
    index = list(frames["words"]["word"].unique()).index(word)
    cards = re.findall(
        rf'<dialog class="card" id="head-{index}-(.*?)"(.*?)</dialog>',
        section(frames, "heads"),
        re.DOTALL,
    )
    return dict(cards)


def test_a_head_without_a_verdict_leads_no_list_card_or_scale():
    """L0H6 of SmolLM2 moved spring by 55 % [-11, 221], p = .97: first by rank, verdict none."""
    heads = FRAMES["word_heads"].copy()
    first = heads["word"].eq("mole") & heads["rank"].eq(1)
    heads.loc[first, ["net", "net_low", "net_high"]] = 0.55, -0.11, 2.21
    heads.loc[first, "verdict"] = "none"
    frames = FRAMES | {"word_heads": heads}
    assert list(cards_of("mole", frames)) == ["L0H2"]
    assert heads.loc[first, "net"].item() > charts.effect_limits(heads).before


def test_a_head_has_its_rank_and_its_write_with_an_interval():
    rank = macro("numbers.html.j2", "rank")
    assert rank(SimpleNamespace(rank=1, rank_low=1, rank_high=2)) == "1 [1, 2]"
    assert rank(SimpleNamespace(rank=pd.NA)) == "none"
    ends = {"direct": 0.37, "direct_low": 0.33, "direct_high": 0.4}
    card = cards_of("bank", FRAMES | {"word_heads": FRAMES["word_heads"].assign(**ends)})["L0H2"]
    assert "<dd>37\u202f% [33, 40]</dd>" in card and "<dd>1 [1, 1]</dd>" in card


def test_pairs_with_the_verdict_of_the_head_come_first_and_no_pair_is_missing():
    table = with_reasons(FRAMES["verdicts"], FRAMES["heads"], FRAMES["words"])
    for verdicts in (table, table.iloc[::-1]):
        card = next(iter(cards_of("mole", FRAMES | {"verdicts": verdicts}).values()))
        reasons = re.findall(r'class="because"><b>(.*?)</b>', card)
        assert reasons == ["resolver"] * 5 + ["none"]
    assert "in 5 of 5 pairs of meanings" in card


def test_misread_sentences_are_listed_by_word_with_the_clearest_first():
    bank, mole, apple = section(FRAMES, "otherwise").split("<h4>")[1:]
    assert "3 of 4 sentences are read as labelled" in one_line(bank)
    apart = "not shown to be apart"
    assert apart not in bank and apart in mole and apart in apple
    assert ">of the two<" not in bank and ">of the two<" in mole
    assert len(rows_of_table(mole)) == 6 and rows_of_table(mole)[0][2] == "animal / unit"
    [[label, read_as, coordinate, *_]] = rows_of_table(bank)
    assert (label, read_as, coordinate) == ("money", "river", "0.40")
    assert '<span class="word">bank</span>' in bank and '<span class="cue">money</span>' in bank
    wrong = FRAMES["predictions"].assign(right=False)
    wrong["coordinate"] = [number / 100 for number in range(len(wrong))]
    wrong.loc[1, ["predicted", "coordinate"]] = [None, 0.0]
    bank = section(FRAMES | {"predictions": wrong}, "otherwise").split("<h4>")[1]
    rows = rows_of_table(bank)
    assert [row[2] for row in rows] == ["0.03", "0.02", "0.00", "0.00"]
    assert "0 of 4 sentences" in one_line(bank) and "neither" in {row[1] for row in rows}


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
    for word in section(FRAMES, "parting").split("<h4>")[1:]:
        specs = [json.loads(spec) for spec in re.findall(r'data-for="[^"]*">(.*?)</script>', word)]
        assert len(specs) == (6 if ">mole<" in word else 1)
        for spec in specs:
            lines = [rows for rows in spec["datasets"].values() if set(rows[0]) == {"at"}]
            assert [{"at": READ_AT}] in lines


def test_the_table_of_facts_has_a_value_for_each_word_and_no_empty_row():
    text = section(FRAMES, "facts")
    rows = {label: values for label, *values in rows_of_table(text.partition("<details>")[0])}
    assert all(len(values) == 3 and any(values) for values in rows.values())
    assert rows["significant heads"][2] == ""  # apple has no gap
    gap = "gap in held-out sentences (1: as wide as in the sentences used for fitting)"
    assert rows[gap][1] == "5 of 6 pairs of meanings"
    assert re.findall("All 6 pairs of meanings of <bdi>(.*?)</bdi>", text) == ["mole"]


def test_every_effect_is_within_the_axis_of_the_page():
    words = by_word(FRAMES)
    low, high = axis = effect_axis(words)
    for rows in words.values():
        for head in named(rows["word_heads"], 3).itertuples():
            for value in (head.net_low, head.net, head.net_high, head.nouns):
                assert np.isnan(value) or 0 <= float(place(value, axis)) <= 100
    assert (place(low, axis), place(high, axis)) == ("0.0", "100.0")
    heads = FRAMES["word_heads"].assign(nouns=np.nan)
    assert 'class="noun"' in cards_of("bank", FRAMES)["L0H2"]
    assert 'class="noun"' not in cards_of("bank", FRAMES | {"word_heads": heads})["L0H2"]


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
    card = cards_of("bank", FRAMES)["L0H2"]
    rows = READINGS
    on_cue = rows[rows["role"] == "cue"].groupby("sense")["attention"].max()
    shown = re.findall(r"<bdi>(\w+)</bdi></span> <span class=\"quiet\">(.*?) of the att", card)
    assert shown == [(sense, percent(on_cue[sense])) for sense in ("river", "money")]
    assert card.count('<div class="arcs"') == rows["sentence"].nunique()


def test_an_arc_is_as_wide_as_the_attention_and_starts_at_the_word():
    sentence = READINGS[READINGS["sentence"] == READINGS["sentence"].iloc[0]].assign(attention=0.0)
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
    sentence = READINGS[READINGS["sentence"] == READINGS["sentence"].iloc[0]].copy()
    sentence.loc[sentence.index[0], "piece"] = "銀行"
    first, second, *_ = arcs(sentence)["tokens"]
    assert first["width"] == 4 * first["width"] / len("銀行") / 2
    assert first["start"] + first["width"] <= first["end"] <= second["start"]


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
    cards = cards_of("bank", FRAMES | {"cue_sample": scan})
    others = cards_of("mole", FRAMES | {"cue_sample": scan})
    toward, away = re.findall(r"<h4>toward.*?</ol>", cards.pop("L0H2"), re.DOTALL)
    assert re.findall(r"<li><bdi>(\w+)", toward)[:2] == ["mud", "lake"]
    assert re.findall(r"<li><bdi>(\w+)", away)[:2] == ["loan", "cash"]
    assert others and not any("<h4>toward" in card for card in others.values())


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
