"""The first head of a walk: the head that moves a word of the lexicon toward its sense, or the
place where two sentences differ.
"""

import re
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
from browser import settled, unfold
from hooked_runs import put, read_all
from test_walk import unpacked
from test_walk_families import MADE

import probe
from probe.experiments.material import prepare, sentences_of
from probe.experiments.observe import observe
from probe.model.tokens import TargetText
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


def seen_at(model, text, word=None):
    return AttentionView.of_self_attention(probe.trace(model, text)), choose.word_in_text(
        model, text, word
    )


@pytest.mark.real_model
def test_the_head_is_the_one_that_moves_the_word_furthest_towards_its_sense(tiny):
    text = "The river bank was muddy"
    view, here = seen_at(tiny, text)
    found = probe.walk(tiny, text)
    known = probe.lexicon.expand("bank").sentences
    tokens = [probe.tokenize(tiny, row.text) for row in known]
    states = probe.target_states(tiny, tokens, [cut.positions_of("bank")[-1] for cut in tokens])
    rows = {
        sense: [place for place, row in enumerate(known) if row.sense == sense]
        for sense in ("river", "money")
    }
    # At the first depth the senses differ already: only the heads of layer 0 have written there.
    axis = fit_axis(*(states.resid[mine, 1] for mine in rows.values()), ("river", "money"), 1)
    river, moved = here.at - 1, []
    for head in range(4):
        w_o = probe.read_weights(tiny).blocks[0].w_o[head].double()
        mean = sum(states.z[mine, 0, head].double().mean(0) for mine in rows.values()) / 2 @ w_o
        written = view.attention.delta_e_by_source(0, head, here.at)[river].double()
        moved.append(
            axis.effect(
                written - view.attention.pattern[0, head, here.at, river].double() * mean
            ).item()
        )
    toward = choose.sense_effects(tiny, view, here, choose.source_tokens(view, here))
    assert (toward.sense, toward.other_sense, toward.n_sentences) == (
        "river",
        "money",
        len(known),
    )
    assert (
        toward.fractions[0].tolist() == pytest.approx(moved, abs=1e-6)
        and not toward.fractions[1:].any()
    )
    assert (found.layer, found.head) == (0, moved.index(max(moved)))
    assert facts(found.findings)[0][1] == (
        "it moves “bank” furthest toward its sense “river” by what it reads from the other content "
        f"words: {100 * max(moved):.0f}\u202f% of the way from “money”, measured on {len(known)} sentences "
        "of the lexicon; first of 16 heads"
    )


def test_the_word_is_read_where_a_study_reads_it(tiny):
    """Natural sentences for a model trained on human text, lexicon sentences for a model that
    ships: the sentences of a study, and the depth that it chooses.
    """
    elsewhere = replace(tiny, origin=replace(tiny.origin, kind="hub"))
    for model, n_sentences in ((tiny, 864), (elsewhere, 152)):
        known = choose.lexicon_states(model, "bank")
        material = prepare(model, "bank", sentences_of("bank", None, model).sentences)
        studied = observe(model, material, seed=0)
        assert known.depth == studied.depth
        assert len(known.material) == len(studied.material) == n_sentences


@pytest.mark.real_model
def test_a_head_that_moves_the_word_little_along_the_axis_is_chosen_by_length(tiny, monkeypatch):
    monkeypatch.setattr(choose, "MIN_SENSE_EFFECT", 5.0)
    walked = probe.walk(tiny, "The river bank was muddy")
    assert facts(walked.findings)[0][1].startswith("it moves “bank” most by what it reads")


def test_words_of_the_lexicon_are_known_in_their_forms_and_others_are_not(model):
    known = choose.lexicon_words_in("Two Banks, a plant's mole and a tunnel")
    assert [word for *_, word in known] == ["bank", "plant", "mole"]
    view, here = seen_at(model, "The mole dug a tunnel", "tunnel")
    assert choose.sense_effects(model, view, here, choose.source_tokens(view, here)) is None


def test_the_sentence_that_is_walked_is_not_fitted_on(model):
    known = choose.lexicon_states(model, "bank")
    counts = []
    for text in (known.material.sentences[0].text, "The old bank"):
        view, here = seen_at(model, text, "bank")
        counts.append(choose.lexicon_axis(model, known, view, here).n_sentences)
    assert counts == [len(known.material) - 1, len(known.material)]


BEHIND = next(
    row for row in probe.lexicon.expand("bank", both_sides=True).sentences if row.cue_after
)


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
            BEHIND.text,
            (
                f"“{BEHIND.cue}” tells the sense of “bank”, but it comes after the word, and {{}} "
                "reads left to"
            ),
        ),
        ("The river bank", None),
    ],
)
def test_what_cannot_be_known_yet_is_said_at_the_top(model, text, start):
    found = probe.walk(model, text, at="bank", head=(0, 0))
    sentence = caution(found.findings)
    if start is None:
        assert sentence is None
    else:
        assert sentence.startswith(start.format(model.name))
        assert f'caution">{sentence}<' in render(found, MADE).partition("</header>")[0]


@pytest.mark.real_model
def test_a_model_that_reads_both_ways_is_not_cautioned():
    both = probe.load("tiny-senses-bidirectional")
    walked = probe.walk(both, "Apple unveiled a new smartphone", at="Apple")
    assert walked.findings.caution is None


def moved_alone(model, text, second_text):
    """For each head, how far `bank` moves to the second sentence's vector if this head of the
    hooked model has its z there.
    """
    here, there = probe.trace(model, text), probe.trace(model, second_text)
    at, second_at = (one.tokens.positions_of("bank")[-1] for one in (here, there))
    before = here.resid_post[-1, at].double()
    way = there.resid_post[-1, second_at].double() - before
    moved = {}
    for layer, head in product(range(2), range(4)):
        edit = (layer, "z", put((at, head), there.z[layer, head, second_at]))
        run = read_all(model, here.tokens.ids, ["resid_post"], [edit])
        change = run["resid_post"][-1, at].double() - before
        moved[layer, head] = (change @ way / (way @ way)).item()
    return moved


@pytest.mark.parametrize("second_text", [MONEY, f"On Monday {MONEY}"])
def test_the_head_followed_is_the_one_whose_swap_moves_the_word_furthest(model, second_text):
    walked = probe.walk(model, RIVER, against=second_text, causal_trace=False)
    moved = moved_alone(model, RIVER, second_text)
    assert (walked.layer, walked.head) == max(moved, key=moved.get)
    found = walked.frames["heads"].set_index(["layer", "head"])["swap"]
    assert found.to_dict() == {key: pytest.approx(size, abs=1e-4) for key, size in moved.items()}
    assert min(moved.values()) < 0.01 < max(moved.values())
    size = f"{100 * max(moved.values()):.0f}\u202f%"
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
    given = ["--against", second_text, "--model", checkpoint, "--out", out]
    told = (
        f"Cannot compare a word of 'The river bank' and {second_text!r}: the two sentences share "
        f"{common}, expected an ambiguous word. Write both with the same one, or name the word to "
        "compare."
    )
    assert run("walk", "The river bank", *given) == (2, "", f"probe: {told}\n")
    assert not out.exists()


def test_a_function_word_is_compared_where_it_is_named(model):
    walked = probe.walk(model, "The river bank", against="The cat", at="The", causal_trace=False)
    assert walked.word == "The"


def test_both_sentences_stand_side_by_side_token_by_token(model, against):
    table = against.frames["contrast"]
    for name, text in (("this", RIVER), ("the other", MONEY)):
        shown, rows = probe.trace(model, text), table[table["sentence"] == name]
        pattern = shown.pattern[against.layer, against.head, shown.tokens.positions_of("bank")[-1]]
        assert rows["weight"].tolist() == pytest.approx(pattern.tolist(), abs=1e-5)
        assert rows["share"].sum() == pytest.approx(1, abs=1e-3) and set(rows["text"]) == {text}
    for place, (layer, head) in enumerate(against.block["heads"]):
        there = probe.trace(model, MONEY)
        write = there.delta_e(layer, head, "bank").norm()
        size = write / there.resid_mid[layer, there.tokens.positions_of("bank")[-1]].norm()
        assert unpacked(against, "second_added")[place] == pytest.approx(float(size), rel=1e-4)


def test_where_nothing_before_the_word_differs_nothing_differs(model):
    found = probe.walk(
        model, "The river bank was muddy", against="The river bank is old", at="bank"
    )
    assert (
        answer(found.findings) == "“bank” is the same vector in both sentences, after every layer."
    )
    assert found.frames["layers"]["apart"].max() < 1e-5
    assert found.frames["heads"]["swap"].abs().max() < 1e-5


@pytest.mark.parametrize(
    ("other", "place"),
    [
        ("The mole bank", "entering layer 1"),
        ("The mole under the river bank", "embedding with position"),
        ("Bank on it", "token embedding"),
    ],
)
def test_the_depth_at_which_the_sentences_part_is_a_row(model, other, place):
    walked = probe.walk(model, "The river bank", against=other, at="bank", causal_trace=False)
    assert dict(facts(walked.findings))["the two vectors first differ"] == place


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


def test_the_trace_of_two_sentences_is_that_of_a_pair_along_the_line_between_them(model):
    walked = probe.walk(model, TWO[0], against=TWO[1], at="bank")
    here, there = (probe.tokenize(model, text) for text in TWO)
    rows = [TargetText(tokens.ids, tokens.positions_of("bank")[-1]) for tokens in (here, there)]
    ends = [
        probe.trace(model, text).resid_post[-1, row.at] for text, row in zip(TWO, rows, strict=True)
    ]
    line = ends[0] - ends[1]
    along = (line / line.square().sum())[None]
    pairs = trace_positions(
        probe.read_weights(model), rows[:1], rows[1:], along, depth=2, heads=False
    )
    told = pd.DataFrame(pairs.rows())
    table = walked.frames["trace"]
    assert table["component"].tolist() == told["component"].tolist()
    assert (table["pos"] - rows[0].at).tolist() == told["pos"].tolist()
    assert table["moved"].to_numpy() == pytest.approx(told["denoise"].to_numpy(), abs=1e-4)
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
    ("text", "other", "said"),
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
def test_sentences_that_cannot_be_traced_say_why(model, text, other, said):
    walked = probe.walk(model, text, against=other, at="bank")
    assert travels(walked).startswith("Cannot trace two sentences: ") and travels(walked).endswith(
        said
    )
    assert "trace" not in walked.frames
    page = render(walked, MADE)
    assert said in page and 'data-rows="trace"' not in page


def test_a_head_that_was_asked_for_is_followed_in_both_and_a_word_that_stands_in_both_by_default(
    model,
):
    found = probe.walk(model, RIVER, against=MONEY, head=(0, 2))
    assert (found.layer, found.head) == (0, 2)
    assert facts(found.findings)[0] == ("why L0H2", "it was asked for")
    assert re.fullmatch(
        "L0H2 adds .*% of the vector's length to “bank” here, mostly from “.*”, and .*% there, "
        "mostly from “.*”.",
        answer(found.findings),
    )
    assert (
        probe.walk(model, "The mole left the bank to the mole", against="A bank in town").word
        == "bank"
    )


def test_the_command_shows_two_sentences_and_says_how_to_make_the_page_again(
    run, checkpoint, tmp_path
):
    given = ["--against", MONEY, "--model", checkpoint, "--out", tmp_path / "out"]
    assert run("walk", RIVER, *given)[0] == 0
    page = (tmp_path / "out" / "walk.html").read_text(encoding="utf-8")
    assert (
        f"--word bank --against &#39;{MONEY}&#39; --model small-random" in page
        and '<section id="contrast">' in page
    )
    assert (tmp_path / "out" / "contrast.csv").exists()


class TestPage:
    def test_the_head_picker_drives_both_sentences(self, open_page, against, model, tmp_path):
        opened = open_page(probe.write(against, tmp_path))
        page = opened.page
        assert page.inner_text("h1") == page.title() == "What happens to “bank” in two sentences?"
        assert page.locator("[data-map]").count() == 2
        labels = page.locator('[data-kind="apart"] .role-axis-label text').all_text_contents()
        assert labels[:4] == ["token", "0", "1", "end"]
        unfold(page)
        for layer, head in ((against.layer, against.head), (0, 1)):
            page.locator(f'[data-map="swap"] [value="{layer}.{head}"]').check(force=True)
            settled(page)
            for side, text in (("here", RIVER), ("there", MONEY)):
                shown = probe.trace(model, text)
                at = shown.tokens.positions_of("bank")[-1]
                rows = page.locator(f'[data-rows="contrast-{side}"] tr')
                titles = rows.evaluate_all("all => all.map(row => row.children[1].title)")
                wanted = shown.pattern[layer, head, at, : at + 1]
                assert [float(title) for title in titles] == pytest.approx(
                    wanted.tolist(), abs=1e-5
                )
                assert page.locator(f'[data-reading="{side}"] .chip').count() == at + 1
        contrast = page.inner_text('[data-slot="contrast"]')
        assert contrast.startswith("Swapping L0H1 alone moves “bank” ")
        page.locator('.strip [name="at"]').nth(2).check(force=True)
        # It stays with the word, whatever is followed.
        assert page.inner_text('[data-slot="contrast"]') == contrast
        assert page.inner_text("h1") == "What happens to “f”?"
        words = page.locator(".glossary dt").all_inner_texts()
        assert {"swap", "MLP", "softmax", "cosine"} <= set(words)
        assert "other meaning" not in page.locator("#contrast").inner_text()
        assert opened.trouble == []

    def test_a_cell_of_the_trace_is_followed(self, open_page, model, tmp_path):
        walked = probe.walk(model, TWO[0], against=TWO[1], at="bank")
        opened = open_page(probe.write(walked, tmp_path))
        page, table = opened.page, walked.frames["trace"]
        unfold(page)
        for number, part in enumerate(("resid_pre", "attn_out", "mlp_out")):
            page.locator(f'[name="component"][value="{number}"]').check(force=True)
            shown = page.eval_on_selector_all(
                '[data-rows="trace"] button', "all => all.map(one => one.title)"
            )
            values = [float(title.split()[0].replace("−", "-")) / 100 for title in shown]
            assert values == pytest.approx(
                table.query(f"component == '{part}'")["moved"].tolist(), abs=1e-4
            )
        page.locator('[data-rows="trace"] tr:nth-child(2) td:last-child button').click()
        settled(page)
        assert page.evaluate("location.hash").startswith("#L1H") and opened.trouble == []
        assert page.evaluate("location.hash").endswith(f"@{table['pos'].max()}")
