"""The sections of a page: cards, comparisons with nouns, the order of reasons, one axis for all
words."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from inside import effect_axis, measured, named, percent, place, sections, with_reasons
from page_text import N, by_word, one_line, rows_of_table, section
from stored_study import stored_study

import probe
from probe import charts
from probe.pages.sentences import ARCS, THICKEST, arcs

STUDY = stored_study()
FRAMES = STUDY.frames
BANK, MOLE = (stored_study(word).frames for word in ("bank", "mole"))


def of_word(name, word, **columns):
    frame = FRAMES[name]
    return {name: frame[frame["word"] == word].assign(**columns)}


def cards_of(frames):
    """The HTML of the card of each head of the first word, by name."""
    cards = re.findall(
        r'<dialog class="card" id="head-0-(.*?)"(.*?)</dialog>', section(frames, "heads"), re.DOTALL
    )
    return dict(cards)


@pytest.mark.parametrize(("as_far", "farther"), [(0, "yes"), (1, "no"), (np.nan, "not compared")])
def test_a_word_changes_farther_only_if_it_is_first_of_all_nouns(as_far, farther):
    p = (1 + as_far) / (1 + FRAMES["words"]["nouns_compared"])
    words = FRAMES["words"].assign(ambiguity_p=p, ambiguity_p_near=np.nan)
    text = section(FRAMES | {"words": words}, "nouns").partition("</table>")[0]
    rows = rows_of_table(text)
    assert [row[0] for row in rows][:2] == ["bank", "mole animal / unit"] and len(rows) == 7
    assert {row[-1] for row in rows} == {farther}


def test_a_card_has_its_numbers_its_reasons_and_the_clearest_sentence_of_each_meaning():
    rows = BANK["word_heads"].assign(direct=0.37, direct_low=0.33, direct_high=0.4)
    # L0H1 has a large mean and no verdict, so that it leads nothing.
    rows.loc[rows["head"].eq(1) & rows["layer"].eq(0), ["net", "net_high"]] = 1.5, 3.0
    cards = cards_of(BANK | {"word_heads": rows})
    assert [*cards] == ["L0H0", "L3H2", "L1H2"]
    assert charts.effect_limit(rows) < 1.5
    card = cards["L0H0"]
    assert f"<dd>37{N}% [33, 40]</dd>" in card and "<dd>1 [1, 1]</dd>" in card
    readings = BANK["readings"].query("layer == 0 and head == 0")
    on_cue = readings[readings["role"] == "cue"].groupby("sense")["attention"].max()
    shown = re.findall(r"<bdi>(\w+)</bdi></span> <span class=\"quiet\">(.*?) of the att", card)
    assert shown == [(sense, percent(on_cue[sense])) for sense in ("river", "money")]
    of_word, _, _ = card.partition("<h3>In general</h3>")  # other sentences follow
    assert of_word.count('<div class="arcs"') == readings["sentence"].nunique()
    assert 'class="noun"' in card
    without_nouns = BANK | {"word_heads": rows.assign(nouns=np.nan)}
    assert 'class="noun"' not in cards_of(without_nouns)["L0H0"]


def test_pairs_with_the_verdict_of_the_head_come_first_and_no_pair_is_missing():
    table = with_reasons(MOLE["verdicts"], MOLE["heads"], MOLE["words"])
    of_head = table["layer"].eq(0) & table["head"].eq(0)
    table.loc[of_head, "verdict"] = np.where(
        table.loc[of_head, "sense_a"] == "animal", "none", "resolver"
    )
    heads = MOLE["word_heads"]
    heads = heads.assign(verdict=heads["verdict"].mask(heads["rank"] == 1, "resolver"))
    for verdicts in (table, table.iloc[::-1]):
        card = cards_of(MOLE | {"verdicts": verdicts, "word_heads": heads})["L0H0"]
        reasons = re.findall(r'class="because"><b>(.*?)</b>', card)
        assert reasons == ["resolver"] * 3 + ["none"] * 3


def test_a_card_lists_the_cues_with_the_largest_writes_of_the_head():
    row = BANK["cue_sample"].query("layer == 0 and head == 0").iloc[0].to_dict() | {"seen": False}
    writes = {"lake": 0.2, "mud": 0.3, "loan": -0.4, "cash": -0.1}
    scan = pd.DataFrame([row | {"cue": cue, "write": write} for cue, write in writes.items()])
    cards = cards_of(BANK | {"cue_sample": scan})
    toward, away = re.findall(r"<h4>toward.*?</ol>", cards.pop("L0H0"), re.DOTALL)
    assert re.findall(r"<li><bdi>(\w+)", toward)[:2] == ["mud", "lake"]
    assert re.findall(r"<li><bdi>(\w+)", away)[:2] == ["loan", "cash"]
    assert cards and not any("<h4>toward" in card for card in cards.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"p_query": 0.01}, f"Reason: MLP 0's output at both tokens, 60{N}% [52, 67] of the contrast."),
        ({"p_query": 0.4}, "No reason"),
        ({"p_contrast": 0.6}, "No reason"),
    ],
)  # fmt: skip
def test_a_card_says_why_its_head_attends_to_the_cue(changes, reason):
    numbers = {"part_query": "MLP 0", "part_key": "MLP 0", "p_contrast": 0.01, "p_key": 0.01}
    numbers |= {"share": 0.6, "share_low": 0.52, "share_high": 0.67}
    text = one_line(cards_of(BANK | of_word("why_it_attends", "bank", **numbers | changes))["L0H0"])
    assert reason in text


def test_misread_sentences_are_listed_by_word_with_the_clearest_first():
    bank, mole, window = section(FRAMES, "otherwise").split("<h4>")[1:]
    assert "48 of 48 sentences are read as labelled" in one_line(bank)
    apart = "not shown to be apart"
    assert apart not in bank and apart not in mole and apart in window
    rows = FRAMES["predictions"].query("word == 'bank'").head(3).assign(right=False)
    rows["coordinate"], rows["predicted"] = [0.01, 0.4, 0.0], ["money", "money", None]
    bank = section(FRAMES | {"predictions": rows}, "otherwise").split("<h4>")[1]
    listed = rows_of_table(bank)
    assert [row[:3] for row in listed] == [
        ["river", "money", "0.40"],
        ["river", "money", "0.01"],
        ["river", "neither", "0.00"],
    ]
    assert "0 of 3 sentences" in one_line(bank)
    assert '<span class="word">bank</span>' in bank and '<span class="cue">river</span>' in bank


def test_the_read_out_layer_is_in_every_depth_profile_of_a_word():
    for word in section(FRAMES, "parting").split("<h4>")[1:]:
        specs = [json.loads(spec) for spec in re.findall(r'data-for="[^"]*">(.*?)</script>', word)]
        assert len(specs) == (6 if ">mole<" in word else 1)
        at = 2 if ">bank<" in word else 1
        for spec in specs:
            lines = [rows for rows in spec["datasets"].values() if set(rows[0]) == {"at"}]
            assert [{"at": at}] in lines


def test_the_table_of_facts_has_a_value_for_each_word_and_no_empty_row():
    text = section(FRAMES, "facts")
    rows = {label: values for label, *values in rows_of_table(text.partition("<details>")[0])}
    assert all(len(values) == 3 and any(values) for values in rows.values())
    assert rows["significant heads"][2] == ""  # window has no gap
    assert re.findall("All 6 pairs of meanings of <bdi>(.*?)</bdi>", text) == ["mole"]


def test_every_effect_is_within_the_axis_of_the_page():
    words = by_word(FRAMES)
    low, high = axis = effect_axis(words)
    assert low <= 0 and high >= 1  # the whole way from one meaning to the other
    assert effect_axis(by_word(BANK | of_word("word_heads", "bank", nouns=-0.2)))[0] == -0.2
    kept = of_word("curves", "bank", faithfulness_high=1.4)
    assert effect_axis(by_word(BANK | kept))[1] == 1.4
    for rows in words.values():
        for head in named(rows["word_heads"], 3).itertuples():
            for value in (head.net_low, head.net, head.net_high, head.nouns):
                assert np.isnan(value) or 0 <= float(place(value, axis)) <= 100
    assert (place(low, axis), place(high, axis)) == ("0.0", "100.0")


def test_the_first_picture_has_only_what_was_measured():
    moved = "with a sentence of the other meaning moves bank this far"
    shown = section(BANK, "answer")
    assert f"One head swapped {moved}" in one_line(shown) and "resolvers" not in shown
    heads = BANK["word_heads"]["verdict"].replace("resolver", "mover")
    rows = of_word("word_heads", "bank", verdict=heads, nouns=np.nan)
    rows |= of_word("curves", "bank", smallest=None)
    shown = section(BANK | rows | of_word("mlps", "bank", net=1.1), "answer")
    assert f"One head or MLP swapped {moved}" in one_line(shown)
    assert "MLP 0" in shown and "<dt>resolvers</dt><dd><bdi>none</bdi></dd>" in shown
    assert "kept" not in one_line(shown.partition("<table")[2].partition("</table>")[0])
    assert "the same for" not in shown
    rows |= of_word("word_heads", "bank", verdict="none") | of_word("mlps", "bank", net=0.0)
    assert "<table" not in section(BANK | rows, "answer")


def test_the_smallest_set_has_its_interval():
    row = BANK["curves"].query("size == smallest").iloc[0]
    kept = measured(*row[["faithfulness", "faithfulness_low", "faithfulness_high"]])
    shown = one_line(section(BANK, "sets", "together"))
    assert f"Smallest set above 90{N}%: L0H0. Kept (F): {kept}. Lost when these alone" in shown
    assert "Best of 200 random sets of 1 head: " in shown
    shown = one_line(section(BANK | of_word("curves", "bank", smallest=None), "sets", "together"))
    assert f"No set smaller than all of them keeps 90{N}% of the gap." in shown
    assert "Kept (F)" not in shown and "Best of" not in shown


def sentence():
    rows = BANK["readings"].query("layer == 0 and head == 0")
    return rows[rows["sentence"] == rows["sentence"].iloc[0]]


def test_an_arc_is_as_wide_as_the_attention_and_starts_at_the_word():
    rows = sentence().assign(attention=0.0)
    rows.loc[rows.index[1], ["attention", "contribution"]] = [0.5, -0.2]
    figure = arcs(rows)
    [token] = [token for token in figure["tokens"] if token["arc"]]
    assert token["pos"] == rows["pos"].iloc[1] and token["second"]
    assert token["toward"] == rows["sense_b"].iloc[0]
    assert float(token["arc"]["width"]) == 1 + (THICKEST - 1) / 2
    assert token["arc"]["path"].startswith(f"M{figure['word_at']:g},{ARCS}Q")
    assert (token["label"], token["written"]) == (percent(0.5), "−20")
    ends = [token["end"] for token in figure["tokens"]]
    assert ends == sorted(ends) and figure["width"] >= ends[-1]


def test_wide_letters_have_twice_the_width_and_tokens_do_not_overlap():
    rows = sentence().copy()
    rows.loc[rows.index[0], "piece"] = "銀行"
    first, second, *_ = arcs(rows)["tokens"]
    assert first["width"] == 4 * 8 and first["start"] + first["width"] <= first["end"]
    assert first["end"] <= second["start"]


def test_a_section_without_a_template_shows_the_rows_of_its_table(monkeypatch, tmp_path):
    rows = FRAMES["distances"].head(3).assign(word="<b>", net=[1.234, np.nan, -1.0])
    near = sections.Section(
        "near", heading=sections.TRAVELS, title="By distance", table="distances"
    )
    monkeypatch.setattr(sections, "every_section", lambda: [near])
    page = probe.write(stored_study(distances=rows), tmp_path).read_text(encoding="utf-8")
    shown = page.partition('<section id="near">')[2].partition("</section>")[0]
    assert "<h3>By distance</h3>" in shown
    assert re.findall(r'data-label="word">(.*?)</td>', shown) == ["<bdi>&lt;b&gt;</bdi>"] * 3
    net = re.findall(r'data-label="net">(.*?)</td>', shown)
    assert net == ["<bdi>1.23</bdi>", "", "<bdi>−1.00</bdi>"]
    assert shown.count("<td") == rows.size
