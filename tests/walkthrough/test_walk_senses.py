"""The first head of a walk: the head that moves a word of the lexicon toward its sense, or the head
whose swap moves the word furthest between two sentences.
"""

import re
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
from browser import settled, unfold
from embedded import embedded
from hooked_runs import edit_at, read_all
from test_walk import unpacked
from test_walk_families import MANIFEST

import probe
from probe.experiments.material import prepare, sentences_of
from probe.experiments.observe import observe
from probe.model.load import read_weights
from probe.model.trace import target_states
from probe.model.variants import TargetText
from probe.pages.walk import render
from probe.pages.walk_sentences import answer, caution, facts, travels
from probe.patching.positions import trace_positions
from probe.stats.axes import fit_axis
from probe.walkthrough import choose
from probe.walkthrough.scene import AttentionView

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


@pytest.mark.real_model
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
    river, effects = here.at - 1, []
    for head in range(4):
        w_o = read_weights(tiny).blocks[0].w_o[head].double()
        mean = (
            sum(states.z[of_sense, 0, head].double().mean(0) for of_sense in rows.values())
            / 2
            @ w_o
        )
        write = view.attention.delta_e_by_source(0, head, here.at)[river].double()
        effects.append(
            axis.effect(
                write - view.attention.pattern[0, head, here.at, river].double() * mean
            ).item()
        )
    toward = choose.sense_effects(tiny, view, here, choose.source_tokens(view, here))
    assert (toward.sense, toward.other_sense, toward.n_sentences) == (
        "river",
        "money",
        len(sentences),
    )
    assert (
        toward.fractions[0].tolist() == pytest.approx(effects, abs=1e-6)
        and not toward.fractions[1:].any()
    )
    assert (walked.layer, walked.head) == (0, effects.index(max(effects)))
    assert facts(walked.findings)[0][1] == (
        "it moves “bank” furthest toward its sense “river” by what it reads from the other content "
        f"words: {100 * max(effects):.0f}\u202f% of the way from “money”, measured on {len(sentences)} sentences "
        "of the lexicon; first of 16 heads"
    )


def test_the_word_is_read_where_a_study_reads_it(tiny):
    """Natural sentences for a model trained on human text, lexicon sentences for a model that
    ships: the sentences of a study, and the depth that it chooses.
    """
    elsewhere = replace(tiny, origin=replace(tiny.origin, kind="hub"))
    for model, n_sentences in ((tiny, 864), (elsewhere, 152)):
        lexicon = choose.lexicon_states(model, "bank")
        material = prepare(model, "bank", sentences_of("bank", None, model).sentences)
        studied = observe(model, material, seed=0)
        assert lexicon.depth == studied.depth
        assert len(lexicon.material) == len(studied.material) == n_sentences


@pytest.mark.real_model
def test_a_head_that_moves_the_word_little_along_the_axis_is_chosen_by_length(tiny, monkeypatch):
    monkeypatch.setattr(choose, "MIN_SENSE_EFFECT", 5.0)
    walked = probe.walk(tiny, "The river bank was muddy")
    assert facts(walked.findings)[0][1].startswith("it moves “bank” most by what it reads")


def test_forms_of_lexicon_words_are_recognised_and_other_words_are_not(model):
    words = choose.lexicon_words_in("Two Banks, a plant's mole and a tunnel")
    assert [word for *_, word in words] == ["bank", "plant", "mole"]
    view, here = view_at(model, "The mole dug a tunnel", "tunnel")
    assert choose.sense_effects(model, view, here, choose.source_tokens(view, here)) is None


def test_the_axis_is_not_fitted_on_the_walked_sentence(model):
    lexicon = choose.lexicon_states(model, "bank")
    counts = []
    for text in (lexicon.material.sentences[0].text, "The old bank"):
        view, here = view_at(model, text, "bank")
        counts.append(choose.lexicon_axis(model, lexicon, view, here).n_sentences)
    assert counts == [len(lexicon.material) - 1, len(lexicon.material)]


LATE = next(row for row in probe.lexicon.expand("bank", both_sides=True).sentences if row.cue_after)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (
            "Bank",
            "No content word comes before “Bank”, and {} reads left to right: what comes after",
        ),
        (
            "The bank was muddy",
            "No content word comes before “bank”, and {} reads left to right: what comes after",
        ),
        (
            LATE.text,
            (
                f"“{LATE.cue}” tells the sense of “bank”, but it comes after the word, and {{}} "
                "reads left to"
            ),
        ),
        ("The river bank", None),
    ],
)
def test_a_caution_at_the_top_says_that_the_sense_cannot_be_known_yet(model, text, start):
    walked = probe.walk(model, text, at="bank", head=(0, 0))
    sentence = caution(walked.findings)
    if start is None:
        assert sentence is None
    else:
        assert sentence.startswith(start.format(model.name))
        assert f'caution">{sentence}<' in render(walked, MANIFEST).partition("</header>")[0]


@pytest.mark.real_model
def test_a_model_that_reads_both_ways_is_not_cautioned():
    both = embedded("tiny-senses-bidirectional")
    walked = probe.walk(both, "Apple unveiled a new smartphone", at="Apple")
    assert walked.findings.caution is None


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
    assert dict(facts(walked.findings))[f"why L{walked.layer}H{walked.head}"] == (
        f"its swap alone moves “bank” furthest: by {size}; first of 8 heads"
    )
    assert walked.word == "bank" and walked.second_text == second_text


@pytest.mark.parametrize(
    ("second_text", "common"),
    [("The cat", "only “the”"), ("A cat", "no word")],
)
def test_two_sentences_without_a_common_word_are_refused_and_nothing_is_written(
    run, checkpoint, tmp_path, second_text, common
):
    out = tmp_path / "out"
    options = ["--against", second_text, "--model", checkpoint, "--out", out]
    message = (
        f"Cannot compare a word of 'The river bank' and {second_text!r}: the two sentences share "
        f"{common}, expected an ambiguous word. Write both with the same one, or name the word to "
        "compare."
    )
    assert run("walk", "The river bank", *options) == (2, "", f"probe: {message}\n")
    assert not out.exists()


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
        answer(walked.findings) == "“bank” is the same vector in both sentences, after every layer."
    )
    assert walked.frames["layers"]["apart"].max() < 1e-5
    assert walked.frames["heads"]["swap"].abs().max() < 1e-5


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
    assert dict(facts(walked.findings))["the two vectors first differ"] == depth


def test_the_answer_of_two_sentences_names_the_swap_and_what_is_read(model):
    walked = probe.walk(model, "The river bank", against="The mole bank", at="bank")
    findings = walked.findings
    size = f"{100 * findings.choice.size:.0f}\u202f%"
    assert answer(findings) == (
        f"Swapping L{walked.layer}H{walked.head} alone moves “bank” {size} of the way to its vector "
        f"in the other sentence. It reads “{findings.write.largest.piece}” here and "
        f"“{findings.parting.second_write.largest.piece}” there."
    )
    tiny = replace(findings, choice=replace(findings.choice, size=0.004))
    assert " alone moves “bank” less than half a percent of the way" in answer(tiny)


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
    assert travels(walked) == (
        f"Putting “river” in the place of “mole” moves “bank” of the other sentence {size} of the "
        f"distance to this one. {arrives if first < 2 else never}"
    )


@pytest.mark.parametrize(
    ("text", "second_text", "message"),
    [
        (
            "The river bank",
            "The mole under the river bank",
            (
                "of the other, so their positions do not correspond. Write "
                "the two with equally many tokens before the word."
            ),
        ),
        (
            "The river bank was muddy",
            "The river bank is old",
            (
                "Cannot trace two sentences: they are "
                "equal up to “bank”, "
                "so nothing that it reads differs. Write them with another word before it."
            ),
        ),
    ],
)
def test_the_page_says_why_two_sentences_cannot_be_traced(model, text, second_text, message):
    walked = probe.walk(model, text, against=second_text, at="bank")
    assert travels(walked).startswith("Cannot trace two sentences: ") and travels(walked).endswith(
        message
    )
    assert "trace" not in walked.frames
    page = render(walked, MANIFEST)
    assert message in page and 'data-rows="trace"' not in page


def test_a_requested_head_is_followed_in_both_and_by_default_a_word_that_occurs_in_both(
    model,
):
    walked = probe.walk(model, RIVER, against=MONEY, head=(0, 2))
    assert (walked.layer, walked.head) == (0, 2)
    assert facts(walked.findings)[0] == ("why L0H2", "it was asked for")
    assert re.fullmatch(
        "L0H2 adds .*% of the vector's length to “bank” here, mostly from “.*”, and .*% there, "
        "mostly from “.*”.",
        answer(walked.findings),
    )
    assert (
        probe.walk(model, "The mole left the bank to the mole", against="A bank in town").word
        == "bank"
    )


def test_the_command_shows_two_sentences_and_says_how_to_make_the_page_again(
    run, checkpoint, tmp_path
):
    options = ["--against", MONEY, "--model", checkpoint, "--out", tmp_path / "out"]
    assert run("walk", RIVER, *options)[0] == 0
    page = (tmp_path / "out" / "walk.html").read_text(encoding="utf-8")
    assert (
        f"--word bank --against &#39;{MONEY}&#39; --model small-random" in page
        and '<section id="contrast">' in page
    )
    assert (tmp_path / "out" / "contrast.csv").exists()


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
