"""The first head of a walk: the head that moves a word of the lexicon toward its sense, or the head
whose swap moves the word furthest between two sentences.
"""

import re
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
import torch
from browser import settled, unfold
from embedded import embedded
from hooked_runs import edit_at, read_all
from inside import (
    AttentionView,
    TargetText,
    choose,
    fit_axis,
    observe,
    percent,
    prepare,
    read_weights,
    render,
    sentences_of,
    target_states,
    trace_positions,
)
from inside import walk_axes as axes
from test_walk import unpacked
from test_walk_families import MANIFEST

import probe
from probe.walks.sentences import distance

RIVER, MONEY = (
    "The fisherman walked along the river to the bank.",
    "The clerk took the deposit to the bank.",
)


@pytest.fixture(scope="module")
def against(model):
    return probe.walk(model, RIVER, against=MONEY)


def view_at(model, text, word=None):
    return AttentionView.of_self_attention(probe.trace(model, text)), choose.word_in_text(
        model, text, word
    )


def test_the_head_is_the_one_that_moves_the_word_furthest_towards_its_sense(tiny):
    text = "The river bank was muddy"
    view, here = view_at(tiny, text)
    walked = probe.walk(tiny, text)
    sentences = probe.lexicon.expand("bank").sentences
    tokens = [probe.tokenize(tiny, sentence.text) for sentence in sentences]
    states = target_states(tiny, tokens, [cut.positions_of("bank")[-1] for cut in tokens])
    rows = {
        sense: [row for row, sentence in enumerate(sentences) if sentence.sense == sense]
        for sense in ("river", "money")
    }
    # At the first depth the senses differ already: only the heads of layer 0 have written there.
    axis = fit_axis(
        *(states.resid[of_sense, 1] for of_sense in rows.values()), ("river", "money"), 1
    )
    effects = []
    for head in range(4):
        means = [states.z[of_sense, 0, head].double().mean(0) for of_sense in rows.values()]
        w_o = read_weights(tiny).blocks[0].w_o[head].double()
        write = view.attention.delta_e_by_source(0, head, here.at)[here.at - 1].double()
        weight = view.attention.pattern[0, head, here.at, here.at - 1].double()
        effects.append(axis.effect(write - weight * (sum(means) / 2 @ w_o)).item())
    sense_axis, toward = axes.sense_effects(tiny, view, here)
    assert (sense_axis.axis.sense_a, sense_axis.axis.sense_b) == ("river", "money")
    assert toward[0].tolist() == pytest.approx(effects, abs=1e-6) and not toward[1:].any()
    assert (walked.layer, walked.head) == (0, effects.index(max(effects)))
    assert walked.statements["why"][0][1] == (
        "first of 16 heads by how far its ΔE from other content words moves “bank” from “money” "
        f"toward its sense “river” ({len(sentences)} sentences of the lexicon): {percent(max(effects))}"
    )


@pytest.mark.parametrize(
    ("effects", "from_content", "requested", "expected"),
    [
        ([[0.1, 0.3], [0.2, -9]], [[9, 0], [0, 0]], (None, None), (0, 1, "sense", 0.3, 4)),
        ([[0.1, 0.3], [0.2, -9]], [[9, 0], [0, 0]], (1, None), (1, 0, "sense", 0.2, 2)),
        ([[0.1, 0.3], [0.2, -9]], [[9, 0], [0, 0]], (1, 1), (1, 1, "requested", 0.0, 1)),
        ([[-1, 0], [0, -9]], [[1, 2], [4, 3]], (None, None), (1, 0, "content", 4.0, 4)),
        (None, [[1, 2], [4, 3]], (0, None), (0, 1, "content", 2.0, 2)),
        (None, [[0, 0], [0, 0]], (None, None), (0, 0, "nothing", 0.0, 4)),
    ],
)
def test_the_head_moves_the_word_furthest_or_else_has_the_largest_write_from_content_words(
    effects, from_content, requested, expected
):
    effects = None if effects is None else torch.tensor(effects, dtype=torch.float64)
    from_content = torch.tensor(from_content, dtype=torch.float64)
    choice = choose.choose_head(requested, effects, "sense", from_content)
    assert choice == choose.HeadChoice(*expected)


def test_the_word_is_read_where_a_study_reads_it(tiny):
    """Natural sentences for a model trained on human text, lexicon sentences for a model that
    ships: the sentences of a study, and the depth that it chooses.
    """
    elsewhere = replace(tiny, origin=replace(tiny.origin, kind="hub"))
    for model, n_sentences in ((tiny, 864), (elsewhere, 152)):
        lexicon = axes.lexicon_states(model, "bank")
        material = prepare(model, "bank", sentences_of("bank", None, model).sentences)
        studied = observe(model, material, seed=0)
        assert lexicon.depth == studied.depth
        assert len(lexicon.material) == len(studied.material) == n_sentences


def test_forms_of_lexicon_words_are_recognised_and_other_words_are_not(model):
    words = choose.lexicon_words_in("Two Banks, a plant's mole and a tunnel")
    assert [word for *_, word in words] == ["bank", "plant", "mole"]
    assert axes.sense_effects(model, *view_at(model, "The mole dug a tunnel", "tunnel")) is None


def test_the_axis_is_not_fitted_on_the_walked_sentence(model):
    lexicon = axes.lexicon_states(model, "bank")
    counts = []
    for text in (lexicon.material.sentences[0].text, "The old bank"):
        view, here = view_at(model, text, "bank")
        counts.append(axes.lexicon_axis(model, lexicon, view, here).n_sentences)
    assert counts == [len(lexicon.material) - 1, len(lexicon.material)]


LATE = next(row for row in probe.lexicon.expand("bank", both_sides=True).sentences if row.cue_after)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("Bank", "No content word comes before “Bank”, and {} reads left to right"),
        ("The bank was muddy", "No content word comes before “bank”, and {} reads left to right"),
        (
            LATE.text,
            f"“{LATE.cue}” tells the sense of “bank”, but it comes after the word, and {{}}",
        ),
        ("The river bank", None),
    ],
)
def test_a_caution_at_the_top_says_that_the_sense_cannot_be_known_yet(model, text, start):
    walked = probe.walk(model, text, at="bank", head=(0, 0))
    sentence = walked.statements["caution"]
    if start is None:
        assert sentence is None
    else:
        assert sentence.startswith(start.format(model.name))
        assert f'caution">{sentence}<' in render(walked, MANIFEST).partition("</header>")[0]


def test_a_model_that_reads_both_ways_is_not_cautioned():
    both = embedded("tiny-senses-bidirectional")
    walked = probe.walk(both, "Apple unveiled a new smartphone", at="Apple")
    assert walked.statements["caution"] is None


def single_swaps(model, text, second_text):
    """For each head, how far `bank` moves to the second sentence's vector if this head of the
    hooked model has its z there.
    """
    here, there = probe.trace(model, text), probe.trace(model, second_text)
    at, second_at = (trace.tokens.positions_of("bank")[-1] for trace in (here, there))
    before = here.resid_post[-1, at].double()
    difference = there.resid_post[-1, second_at].double() - before
    swaps = {}
    for layer, head in product(range(2), range(4)):
        edit = (layer, "z", edit_at((at, head), there.z[layer, head, second_at]))
        run = read_all(model, here.tokens.ids, ["resid_post"], [edit])
        change = run["resid_post"][-1, at].double() - before
        swaps[layer, head] = (change @ difference / (difference @ difference)).item()
    return swaps


@pytest.mark.parametrize("second_text", [MONEY, f"On Monday {MONEY}"])
def test_the_head_followed_is_the_one_whose_swap_moves_the_word_furthest(model, second_text):
    walked = probe.walk(model, RIVER, against=second_text, causal_trace=False)
    swaps = single_swaps(model, RIVER, second_text)
    assert (walked.layer, walked.head) == max(swaps, key=swaps.get)
    listed = walked.frames["heads"].set_index(["layer", "head"])["swap"]
    assert listed.to_dict() == {key: pytest.approx(size, abs=1e-4) for key, size in swaps.items()}
    assert min(swaps.values()) < 0.01 < max(swaps.values())
    size = f"{100 * max(swaps.values()):.0f}\u202f%"
    assert dict(walked.statements["why"])[f"why L{walked.layer}H{walked.head}"] == (
        f"first of 8 heads by how far its swap moves “bank” to the other meaning: {size}"
    )
    assert walked.word == "bank" and walked.second_text == second_text


def test_a_function_word_is_compared_if_it_is_named(model):
    walked = probe.walk(model, "The river bank", against="The cat", at="The", causal_trace=False)
    assert walked.word == "The"


def test_both_sentences_are_listed_token_by_token(model, against):
    table = against.frames["contrast"]
    for name, text in (("this", RIVER), ("the other", MONEY)):
        trace, rows = probe.trace(model, text), table[table["sentence"] == name]
        pattern = trace.pattern[against.layer, against.head, trace.tokens.positions_of("bank")[-1]]
        assert rows["weight"].tolist() == pytest.approx(pattern.tolist(), abs=1e-5)
        assert rows["share"].sum() == pytest.approx(1, abs=1e-3) and set(rows["text"]) == {text}
    for index, (layer, head) in enumerate(against.block["heads"]):
        there = probe.trace(model, MONEY)
        write = there.delta_e(layer, head, "bank").norm()
        size = write / there.resid_mid[layer, there.tokens.positions_of("bank")[-1]].norm()
        assert unpacked(against, "second_added")[index] == pytest.approx(float(size), rel=1e-4)


def test_equal_texts_before_the_word_give_equal_vectors(model):
    walked = probe.walk(
        model, "The river bank was muddy", against="The river bank is old", at="bank"
    )
    assert (
        walked.statements["answer"]
        == "“bank” is the same vector in both sentences, after every layer."
    )
    assert walked.frames["layers"]["apart"].max() < 1e-5
    assert walked.frames["heads"]["swap"].abs().max() < 1e-5
    assert 'data-map="swap"' not in render(walked, MANIFEST)


@pytest.mark.parametrize(
    ("second_text", "depth"),
    [
        ("The mole bank", "entering layer 1"),
        ("The mole under the river bank", "embedding with position"),
        ("Bank on it", "token embedding"),
    ],
)
def test_the_facts_name_the_depth_at_which_the_vectors_first_differ(model, second_text, depth):
    walked = probe.walk(model, "The river bank", against=second_text, at="bank", causal_trace=False)
    assert dict(walked.statements["why"])["the two vectors first differ"] == depth


def test_the_answer_of_two_sentences_names_the_swap_and_what_is_read(model):
    walked = probe.walk(model, "The river bank", against="The mole bank", at="bank")
    head = walked.frames["heads"].set_index(["layer", "head"]).loc[walked.layer, walked.head]
    contrast = walked.frames["contrast"]
    read = [
        contrast.loc[rows.abs().idxmax(), "label"].split("·")[1].strip()
        for _, rows in contrast.groupby("sentence", sort=False)["share"]
    ]
    assert walked.statements["answer"] == (
        f"Swapping L{walked.layer}H{walked.head} alone moves “bank” {percent(head['swap'])} of the "
        f"way to its vector in the other sentence. It reads “{read[0]}” here and “{read[1]}” there."
    )
    assert [distance(size) for size in (0.004, 0.006)] == ["less than half a percent", "1\u202f%"]


TWO = "The old river was by the bank", "The old mole was by the bank"


def test_the_trace_of_two_sentences_equals_the_trace_of_a_pair_along_the_line_between_them(model):
    walked = probe.walk(model, TWO[0], against=TWO[1], at="bank")
    here, there = (probe.tokenize(model, text) for text in TWO)
    rows = [TargetText(tokens.ids, tokens.positions_of("bank")[-1]) for tokens in (here, there)]
    ends = [
        probe.trace(model, text).resid_post[-1, row.at] for text, row in zip(TWO, rows, strict=True)
    ]
    line = ends[0] - ends[1]
    along = (line / line.square().sum())[None]
    pairs = trace_positions(read_weights(model), rows[:1], rows[1:], along, depth=2, heads=False)
    expected = pd.DataFrame(pairs.rows())
    table = walked.frames["trace"]
    assert table["component"].tolist() == expected["component"].tolist()
    assert (table["pos"] - rows[0].at).tolist() == expected["pos"].tolist()
    assert table["moved"].to_numpy() == pytest.approx(expected["denoise"].to_numpy(), abs=1e-4)
    assert table.query("piece != piece_there")["pos"].min() == table["pos"].min()
    stream = table.query("component == 'resid_pre'").set_index(["layer", "pos"])["moved"]
    assert stream[0].abs().idxmax() == table["pos"].min()
    size = f"{100 * stream[0].iloc[0]:.0f}\u202f%"
    below = [layer for layer in range(2) if stream[layer, rows[0].at] < 0.5]
    first = max(below, default=-1) + 1
    arrives = (
        f"From layer {first} on, replacing the vector of “bank” alone moves it at least halfway."
    )
    never = "Replacing the vector of “bank” alone never moves it halfway."
    assert walked.statements["travels"] == (
        f"Putting “river” in the place of “mole” moves “bank” of the other sentence {size} of the "
        f"distance to this one. {arrives if first < 2 else never}"
    )


@pytest.mark.parametrize(
    ("text", "second_text", "message"),
    [
        ("The river bank", "The mole under the river bank", "their positions do not correspond."),
        ("The river bank was muddy", "The river bank is old", "they are equal up to “bank”, so"),
    ],
)
def test_the_page_says_why_two_sentences_cannot_be_traced(model, text, second_text, message):
    walked = probe.walk(model, text, against=second_text, at="bank")
    assert walked.statements["travels"].startswith("Cannot trace two sentences: ")
    assert message in walked.statements["travels"] and "trace" not in walked.frames
    page = render(walked, MANIFEST)
    assert message in page and 'data-rows="trace"' not in page


def test_a_requested_head_is_followed_in_both_and_by_default_a_word_that_occurs_in_both(model):
    walked = probe.walk(model, RIVER, against=MONEY, head=(0, 2))
    assert (walked.layer, walked.head) == (0, 2)
    assert walked.statements["why"][0] == ["why L0H2", "it was asked for"]
    assert re.fullmatch(
        "L0H2 adds .*% of the vector's length to “bank” here, mostly from “.*”, and .*% there, "
        "mostly from “.*”.",
        walked.statements["answer"],
    )
    assert (
        probe.walk(model, "The mole left the bank to the mole", against="A bank in town").word
        == "bank"
    )


def test_the_page_says_which_word_is_followed_and_what_a_model_of_a_grammar_shows(model, tiny):
    guessed = probe.walk(model, "A light wug", against="The light wug", causal_trace=False)
    sentence = "“wug” is followed because it is the last word that both sentences have."
    assert guessed.statements["guessed"] == sentence and sentence in render(guessed, MANIFEST)
    repeated = probe.walk(tiny, "The bank and the river bank", head=(0, 0))
    page = render(repeated, MANIFEST)
    assert "“bank” occurs more than once. The first occurrence is followed." in page
    assert "learned from a grammar: it shows how the method works" in page
    assert repeated.at == 2 and repeated.statements["guessed"] is None


@pytest.fixture(scope="module")
def opened(shared_page, model, tmp_path_factory):
    """The page of TWO, opened once."""
    walked = probe.walk(model, TWO[0], against=TWO[1], at="bank")
    opened = shared_page(probe.write(walked, tmp_path_factory.mktemp("two")))
    unfold(opened.page)
    return opened, walked


class TestPage:
    def test_the_head_picker_drives_both_sentences(self, opened, model):
        opened, walked = opened
        page = opened.page
        assert page.inner_text("h1") == page.title() == "What happens to “bank” in two sentences?"
        assert page.locator("[data-map]").count() == 2
        labels = page.locator('[data-kind="apart"] .role-axis-label text').all_text_contents()
        assert labels[:4] == ["token", "0", "1", "end"]
        for layer, head in ((walked.layer, walked.head), (0, 1)):
            page.locator(f'[data-map="swap"] [value="{layer}.{head}"]').check(force=True)
            settled(page)
            for side, text in zip(("here", "there"), TWO, strict=True):
                trace = probe.trace(model, text)
                at = trace.tokens.positions_of("bank")[-1]
                rows = page.locator(f'[data-rows="contrast-{side}"] tr')
                titles = rows.evaluate_all("all => all.map(row => row.children[1].title)")
                expected = trace.pattern[layer, head, at, : at + 1]
                assert [float(title) for title in titles] == pytest.approx(
                    expected.tolist(), abs=1e-5
                )
                assert page.locator(f'[data-reading="{side}"] .chip').count() == at + 1
        contrast = page.inner_text('[data-slot="contrast"]')
        assert contrast.startswith("Swapping L0H1 alone moves “bank” ")
        page.locator('.strip [name="at"]').nth(2).check(force=True)
        # The contrast stays with the word, whichever token is followed.
        assert page.inner_text('[data-slot="contrast"]') == contrast
        assert page.inner_text("h1") == "What happens to “old”?"
        words = page.locator(".glossary dt").all_inner_texts()
        assert {"swap", "MLP", "softmax", "cosine"} <= set(words)
        assert "other meaning" not in page.locator("#contrast").inner_text()
        assert opened.trouble == []

    def test_a_cell_of_the_trace_is_followed(self, opened):
        opened, walked = opened
        page, table = opened.page, walked.frames["trace"]
        for number, part in enumerate(("resid_pre", "attn_out", "mlp_out")):
            page.locator(f'[name="component"][value="{number}"]').check(force=True)
            titles = page.eval_on_selector_all(
                '[data-rows="trace"] button', "all => all.map(one => one.title)"
            )
            values = [float(title.split()[0].replace("−", "-")) / 100 for title in titles]
            assert values == pytest.approx(
                table.query(f"component == '{part}'")["moved"].tolist(), abs=1e-4
            )
        page.locator('[data-rows="trace"] tr:nth-child(2) td:last-child button').click()
        settled(page)
        assert page.evaluate("location.hash").startswith("#L1H") and opened.trouble == []
        assert page.evaluate("location.hash").endswith(f"@{table['pos'].max()}")
