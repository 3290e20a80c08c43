"""The first head of a walk: the head that moves a word of the lexicon toward its sense, or the
place where two sentences differ.
"""

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
from probe.pages.walk_sentences import answer, because, caution, travels
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
    most = f"by what it takes from the content words before it: {100 * max(moved):.0f}"
    assert f"furthest towards its sense “river” {most}" in because(found.findings)
    rest = (
        "of the way from “money”. Where the two senses lie was "
        f"measured in {len(known)} sentences of the lexicon."
    )
    assert rest in because(found.findings)


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
    assert "it pushes “bank” most by what it takes" in because(walked.findings)


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
            (
                "Nothing stands before “Bank”, and {} reads left to "
                "right: what comes after it cannot change"
            ),
        ),
        (
            "The bank was muddy",
            "No content word stands before “bank”, and {} reads left to right: what comes after",
        ),
        (
            BEHIND.text,
            (
                f"What tells the sense of “bank” here, “{BEHIND.cue}”, "
                f"comes after it, and {{}} reads left to"
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
    assert because(walked.findings) == (
        f"L{walked.layer}H{walked.head} is followed because, of 8 heads, swapped by itself it moves "
        f"“bank” furthest toward its vector in the other sentence: {100 * max(moved.values()):.0f}\u202f% of the "
        "way."
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
        size = probe.trace(model, MONEY).delta_e(layer, head, "bank").norm().item()
        assert unpacked(against, "second_norm")[place] == pytest.approx(size, rel=1e-4)


def test_where_nothing_before_the_word_differs_nothing_differs(model):
    found = probe.walk(
        model, "The river bank was muddy", against="The river bank is old", at="bank"
    )
    assert (
        answer(found.findings)
        == "At “bank” the two sentences are the same at every depth: nothing that it reads differs."
    )
    assert found.frames["layers"]["apart"].max() < 1e-5
    assert "swapped by itself" not in because(found.findings)
    assert found.frames["heads"]["swap"].abs().max() < 1e-5


def test_the_depth_at_which_the_sentences_part_is_told(model):
    walked = probe.walk(model, "The river bank", against="The mole bank", at="bank")
    told = answer(walked.findings)
    same = (
        "“bank” is one and the same vector in both sentences where it enters layer 0, and "
        "differs where it enters layer 1."
    )
    assert told.startswith("Given what it computes in the other sentence, head ") and told.endswith(
        same
    )
    assert " of the way to its vector there, read after the last layer. What L" in told
    tiny = replace(walked.findings, choice=replace(walked.findings.choice, size=0.004))
    assert " alone moves “bank” less than half a per cent of the way to its vector there" in answer(
        tiny
    )
    assert because(tiny).endswith(": less than half a per cent of the way.")
    assert " long here, " not in told and " here, " in told and " there, " in told
    walked = probe.walk(model, "The river bank", against="The mole under the river bank", at="bank")
    elsewhere = answer(walked.findings)
    assert elsewhere.endswith("“bank” is the same token in both sentences, at another position.")
    both = ("A bright wug", "The very bright wug")
    pieces = probe.walk(model, both[0], against=both[1], at="wug", causal_trace=False)
    assert len(probe.tokenize(model, both[0]).positions_of("wug")) == 3
    assert answer(pieces.findings).endswith(
        "“wug” is cut into the same three tokens in both sentences, at another position."
    )
    other = probe.walk(model, "The river bank", against="Bank on it", at="bank", causal_trace=False)
    assert answer(other.findings).endswith("“bank” is cut into other tokens in the other sentence.")


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
    turned = (
        "Now the other way round: the other sentence is changed. Putting “river” in the place of "
        f"“mole” brings it {100 * stream[0].iloc[0]:.0f}\u202f% of the way to this sentence. "
    )
    reached = [stream[layer, rows[0].at] >= 0.5 for layer in range(2)]
    first = {(True, True): "From layer 0 on"}
    first |= {(False, True): "Where it enters layer 1, the last"}
    begins = first.get(tuple(reached), "Even where it enters the last layer")
    amount = "at least" if tuple(reached) in first else "less than"
    assert travels(walked) == (
        f"{turned}{begins}, replacing only the vector of “bank” brings it {amount} half of the way "
        "to this one."
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
    assert (found.layer, found.head, because(found.findings)) == (0, 2, "L0H2 was asked for.")
    assert answer(found.findings).startswith("What head 2 of layer 0 (L0H2) adds has length ")
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
        depths = page.locator("[data-depths] .depth small").all_inner_texts()
        assert depths == ["token", "L0", "L1", "end"]
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
            assert contrast.startswith(
                f"Given what it computes in the other sentence, L{layer}H{head} alone moves “bank” "
            )
            assert f" At “bank” L{layer}H{head} adds a vector of length " in contrast
        page.locator('.strip [name="at"]').nth(2).check(force=True)
        contrast = page.inner_text('[data-slot="contrast"]')
        assert "moves “bank”" in contrast  # of the word, whatever is followed
        assert page.inner_text("h1") == "What happens to “f”?"
        assert "what compares two sentences stays with “bank”" in page.inner_text(".note")
        words = page.locator(".glossary dt").all_inner_texts()
        assert {"swap", "MLP", "softmax", "cosine"} <= set(words)
        assert "other meaning" not in page.locator("#contrast").inner_text()
        caption = page.locator('[data-map="swap"] + .caption').inner_text()
        assert "and everything after it responds" in caption
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
