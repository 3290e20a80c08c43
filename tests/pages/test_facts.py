"""What a page says of a word: facts, headline, cautions and the reasons for a verdict.

Each phrase has tables for which it appears: those of the stored study, with another number where
the phrase needs one. `test_every_phrase_has_an_example` requires a row for each phrase.
"""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import page_text
import pandas as pd
import pytest
from inside import DRAWN, LATE, ORDER, because, verdict, with_reasons
from page_text import N
from stored_study import stored_study
from verdict_rows import AGAINST, NEAR_ONLY, RESOLVES, SILENT, STANDS_IN

from probe.experiments.senses import NOT_ASKED_FOR

FRAMES = stored_study().frames
OF_BANK = FRAMES["words"]["word"].eq("bank").to_numpy()
FIRST = {}  # the columns of the first head of bank, L0H0
for name in ("heads", "word_heads"):
    FIRST |= FRAMES[name].query("word == 'bank' and layer == 0 and head == 0").iloc[0].to_dict()


def head(name="L0H0", ranks=(1, 1, 1), verdict="resolver", word="bank", **changes):
    """The first head of bank under another name, with its rank and the interval of the rank."""
    layer, number = map(int, name[1:].split("H"))
    row = {"word": word, "layer": layer, "head": number, "verdict": verdict}
    return FIRST | row | dict(zip(("rank", "rank_low", "rank_high"), ranks, strict=True)) | changes


def frames_of(*heads, tables=None, **words):
    """The tables with these heads of bank, and with other columns of the table of words."""
    rows = pd.DataFrame([*heads] or [head()])
    own = {name: rows[list(FRAMES[name])] for name in ("heads", "word_heads")}
    return FRAMES | own | changed("words", **words) | (tables or {})


def changed(name, **columns):
    return {name: FRAMES[name].assign(**columns)}


def of_bank(name, **columns):
    """The rows of bank in a table, with other columns."""
    return {name: FRAMES[name].query("word == 'bank'").assign(**columns)}


def mlps(*nets, more=()):
    """MLPs of the first layers with these effects on bank; those of `more` do more for it."""
    row = FRAMES["mlps"].iloc[0].to_dict()
    rows = [
        row | {"layer": layer, "net": net, "more": 0.1 * (layer in more)}
        | {"comparison": "more" if layer in more else "undecided"}
        for layer, net in enumerate(nets)
    ]  # fmt: skip
    return {"mlps": pd.DataFrame(rows)}


def gate(as_far, **words):
    """As many nouns as this change as much as the word does."""
    compared = FRAMES["words"]["nouns_compared"]
    return FRAMES | changed("words", ambiguity_p=(1 + as_far) / (1 + compared), **words)


def farthest(count):
    """The nouns with the widest gaps at the read-out layer of bank."""
    at = FRAMES["controls"].query("word == 'bank' and depth == 2 and noun != 'bank'")
    return at.sort_values("gap", ascending=False)["noun"].head(count).tolist()


MOVER = head(verdict="mover")
TWO = head(), head("L3H2", (2, 2, 2))
NOT_COMPARED = {"ambiguity_p": np.nan, "nouns_compared": 0}
NOT_NAMED = NOT_COMPARED | {"not_compared": NOT_ASKED_FOR}
TOO_FEW = NOT_COMPARED | {"not_compared": "nouns that can take its place: 3, and 19 are needed"}
FIVE_CUE_WORDS = {"ranked": False, "cue_words": 5, "smallest_gap_p": 2 / 2**5}
# Another word differs as well, and the effect comes from it.
FRONT = np.where(FRAMES["sentences"]["sense"].eq("money"), "Any ", "The ")
WITHOUT_CUE = changed("sentences", text=FRONT + FRAMES["sentences"]["text"])
WITHOUT_CUE |= of_bank("head_parts", cue_only=0.4, other_only=0.6)
BY_MODEL = "by the same model with random weights"
BY_PLACE = "by the position of the word or its cue, or by the length of the text"
SEVERAL, LESS = (
    "use pairs of sentences that differ only in the cue",
    "unambiguous nouns in the same sentences move less",
)
FACTS = [
    ("gap between the meanings", "not significant, so no head is ranked", frames_of(ranked=False)),
    ("gap between the meanings", "with 5 pairs of cue words p cannot be below .062 (limit .01)", frames_of(**FIVE_CUE_WORDS)),
    ("resolvers", "L0H0 and L3H2", FRAMES),
    ("resolvers", "none", frames_of(MOVER)),
    ("resolvers", "none: {}, {}, {} and 7 others move farther".format(*farthest(3)), frames_of(MOVER, ambiguity_p=11 / 64)),
    ("more for the word, with the parts that read them", "L0H0 (with MLP 1)", frames_of(head(comparison="more", p_more_write=0.2), tables=mlps(0, 0, more=[1]))),
    ("significant heads", "3 of 16 heads", FRAMES),
    ("among unambiguous nouns", "first of 64, moves 2.0 times as far", gate(0, general_share=0.25)),
    ("among unambiguous nouns", "first of 64, moves farther", gate(0, general_share=-0.01)),
    ("among unambiguous nouns", "first of 64, moves more than 20 times as far", gate(0, general_share=1 / 400)),
    ("among unambiguous nouns", "second of 64; {} moves farther".format(*farthest(1)), gate(1)),
    ("among unambiguous nouns", "third of 64; {} and {} move farther".format(*farthest(2)), gate(2)),
    ("among unambiguous nouns", "; first of the 41 with a similar surprisal", FRAMES),
    ("among unambiguous nouns", "not compared: no nouns were asked for; by default it is compared with the nouns that ship", frames_of(**NOT_NAMED)),
    ("among unambiguous nouns", ": 3, and 19 are needed; name more nouns with --controls", frames_of(**TOO_FEW)),
    ("among unambiguous nouns", "; add pairs of sentences in which bank is a noun in just this form", frames_of(**NOT_COMPARED | {"not_compared": "12 paired sentences"})),
    ("largest MLP", f"MLP 1: 120{N}%", frames_of(tables=mlps(0.4, 1.2))),
    ("MLPs that do more for the word", "layers 2 and 4", frames_of(tables=mlps(*[0] * 5, more=[2, 4]))),
    ("MLPs that do more for the word", "layer 1", frames_of(tables=mlps(0, 0, more=[1]))),
    ("gap kept", f"96{N}% by 1 head (best random set: 30{N}%)", FRAMES | of_bank("random_sets", faithfulness=0.3)),
    ("read from", "an earlier word, e.g. river and money", FRAMES),
    ("read from", "another word, e.g. river and money", frames_of(causal=False)),
    ("read from", "an earlier word, not the marked cue, e.g. The and Any", frames_of(tables=WITHOUT_CUE)),
    ("no order among", "L0H0 and L0H1", frames_of(head(ranks=(1, 1, 2)), head("L0H1", (2, 1, 2)))),
    ("meanings also separated", f"{BY_MODEL}; {SEVERAL}", frames_of(untrained_p=0.009, ambiguity_p=0.3)),
    ("meanings also separated", f"{BY_MODEL}; {LESS}", frames_of(untrained_p=0.009)),
    # Nouns do not rule out that a head writes a position at the ambiguous word only.
    ("meanings also separated", f"{BY_PLACE}; {SEVERAL}", frames_of(nuisance_p=0.04)),
    ("read after", "layer 1; heads of later layers at the end", FRAMES),
    ("tested on", "24 held-out pairs of sentences, 12 pairs of cue words; exploratory", FRAMES),
    ("gap in held-out sentences (1: as wide as in the sentences used for fitting)", "0.96 [0.88, 1.04]", FRAMES),
    ("gap in the dictionary form and in others", "0.90 and 0.70", frames_of(gap_form=0.9, gap_other_forms=0.7)),
    ("heads that move it the wrong way", "L0H0 −20", frames_of(head(verdict="opposes", net=-0.2))),
    ("largest p of the significant heads", "p = .005", FRAMES),
    ("the same for the next token", "p = .005", FRAMES),
    ("significant heads whose output does not separate the meanings", "L0H0", frames_of(head(p_auroc=0.05))),
    ("significant heads without an effect on the prepared next words", "L0H0", frames_of(head(p_continuation=0.3))),
    ("prepared next words that the model does not prefer after the word", "1 of 1 pairs of meanings", frames_of(continuation_p=0.9)),
    ("effects of all other heads", f"each at most 26{N}% of the gap", FRAMES),
]  # fmt: skip


@pytest.mark.parametrize(("label", "value", "frames"), FACTS)
def test_a_fact_has_its_numbers(label, value, frames):
    assert value in page_text.fact(frames, "bank", label)


def test_every_phrase_has_an_example():
    """Every label of a fact has a row, and so has every sentence of the cautions."""
    labels = {label for label, *_ in FACTS} | {"resolvers of single pairs"}
    assert labels == page_text.labels_of_facts()
    shown = "\n".join(both_texts(number)[0] for number in range(len(SENTENCES)))
    for template in ("agreement.html.j2", "cautions.html.j2", "grammar.html.j2"):
        assert [each for each in page_text.phrases(template) if each not in shown] == []


def test_a_fact_that_does_not_apply_has_no_row():
    of_window = page_text.facts(FRAMES, "window")
    assert next(iter(of_window)) == "gap between the meanings"
    assert "resolvers" not in of_window
    assert "meanings also separated" not in page_text.facts(FRAMES, "bank")
    assert "largest MLP" not in page_text.facts(frames_of(tables=mlps(0.9)), "bank")
    after_read_out = frames_of(tables=mlps(0, 0, 1.2))  # bank is read after layer 1
    assert "largest MLP" not in page_text.facts(after_read_out, "bank")


def test_facts_of_several_pairs_of_meanings_say_for_how_many_they_hold():
    of_mole = page_text.facts(FRAMES, "mole")
    assert of_mole["significant heads"] == "5 of 16 heads, in 6 of 6 pairs of meanings"
    assert "L0H0 (on average)" in of_mole["resolvers"]
    resolving = head(word="mole", resolves=2, of=6)
    assert "L0H0 (2 of 6 pairs)" in page_text.facts(frames_of(resolving), "mole")["resolvers"]
    words = FRAMES["words"]
    p = words["ambiguity_p"].where(words["sense_a"].ne("animal"))
    frames = FRAMES | {"words": words.assign(ambiguity_p=p, pairs=range(4, 4 + len(words)))}
    facts = page_text.facts(frames, "mole")
    assert "in 3 of 6 pairs of meanings" in facts["among unambiguous nouns"]
    assert facts["tested on"].startswith(
        "5 to 10 held-out pairs of sentences, 12 pairs of cue words for each pair of meanings"
    )
    # A mover of the word that resolves a single pair.
    pair = {"word": "mole", "sense_a": "animal", "sense_b": "unit"}
    rows = {"heads": pd.DataFrame([head(**pair)])[list(FRAMES["heads"])]}
    single = frames_of(head(word="mole", verdict="mover", resolves=1, of=6), tables=rows)
    named = page_text.facts(single, "mole")["resolvers of single pairs"]
    assert named == "L0H0 for animal / unit"


def of_both(bank, mole, **words):
    return frames_of(*bank, *({**each, "word": "mole"} for each in mole), **words)


UNREAD, MOVERS = [head(verdict="unread")], [head(f"L0H{n}", (n, n, n)) for n in range(1, 6)]
HEADLINES = [
    ("These sentences do not separate the meanings of bank and mole in this model.", of_both(TWO, TWO, ranked=False)),
    ("These sentences have too few cue words to test whether the meanings of bank and mole differ.", of_both(TWO, TWO, **FIVE_CUE_WORDS)),
    ("No single head has a significant effect on bank and mole.", of_both(UNREAD, UNREAD)),
    ("L0H0 and L3H2 resolve bank and mole: each moves the word farther than unambiguous nouns.", of_both(TWO, TWO)),
    ("L0H0 resolves bank and mole: it moves the word farther than unambiguous nouns.", of_both(TWO[:1], TWO[:1])),
    ("L0H0 moves bank and mole most.", of_both([MOVER], [MOVER])),
    ("The top heads differ from word to word.", of_both(TWO, MOVERS)),
    ("Resolvers: bank L0H0 and L3H2; mole L0H0.", of_both(TWO, [TWO[0], TWO[1] | {"verdict": "mover"}])),
    ("Resolvers: bank L0H0 and L3H2; mole none.", of_both(TWO, [MOVER])),
    ("No head does more for an ambiguous word than for unambiguous nouns.", of_both([MOVER], [MOVER])),
    ("No word was compared with unambiguous nouns.", of_both(TWO, TWO, **NOT_NAMED)),
    ("Exploratory, because there are few sentences.", of_both(TWO, TWO, exploratory=OF_BANK)),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "frames"), HEADLINES)
def test_the_headline_consists_of_fixed_sentences(sentence, frames):
    assert sentence in page_text.headline(frames, ["bank", "mole"])
    assert "Exploratory" not in page_text.headline(frames_of(exploratory=False), ["bank"])


# --- cautions -------------------------------------------------------------------------------------


def cautions(frames):
    return page_text.cautions(frames, "made-up", "folder")


HALF = FRAMES["sentences"].index % 4 < 2
UNMARKED = "No cue is marked in the sentences of “bank”, so "
ONE_LATE = {"left_out": pd.DataFrame({"word": ["bank"], "where": "text", "reason": LATE})}
OK = FRAMES["certificate"]
WRONG = OK.assign(ok=[False, *[True] * (len(OK) - 1)])
# The renderer, the sentence, tables for which it appears, and tables for which it does not.
SENTENCES = [
    (cautions, f"{UNMARKED}every pair of sentences counts as a separate", changed("sentences", cue_start=None), {}),
    (cautions, f"{UNMARKED}every sentence counts as a separate cue word.", changed("sentences", cue_start=None, pair=None), {}),
    (cautions, "sentences with “bank” differ from one of the other sense in a single word, and no pair says so: one may", changed("sentences", pair=None, frame=None, text="the bank"), {}),
    (cautions, f"{UNMARKED}the words in which the two sentences of a pair differ are", changed("sentences", cue_inferred=True), {}),
    (cautions, ", in 24 of 48 sentences; each of the others counts as a separate cue word.", changed("sentences", cue_inferred=HALF), changed("sentences", cue_inferred=True)),
    (cautions, "48 of 48 sentences of “bank” are in pairs, too few, so all of them were put into pairs at random. Give", changed("words", pair_design=DRAWN), {}),
    (lambda origin: page_text.cautions(FRAMES, "made-up", origin), "learned from a grammar: it shows how the method works, not how English", "embedded", "hub"),
    (lambda how: page_text.cautions(FRAMES, "made-up", "package", how), "made-up is M.gguf, its weights stored in Q4_1 and computed in float32.", "M.gguf, its weights stored in Q4_1 and computed in float32", ""),
    (cautions, "“bank” has 2 forms, each a different token for the model: “bank” (24), “Bank” (24).", changed("sentences", form=np.where(HALF, "bank", "Bank")), {}),
    (cautions, "“bank” is split into several tokens in 48 of 48 sentences and read at the last one.", changed("sentences", tokens_of_word=2), {}),
    (cautions, "1 sentence is left out because the cue comes after “bank”, and this model reads left to right.", ONE_LATE, {}),
    (cautions, "2 sentences are left out because the cue comes after “bank”", {"left_out": pd.concat([ONE_LATE["left_out"]] * 2)}, ONE_LATE),
    (page_text.agreement, f"model and the from-scratch math agree: the largest of {len(OK)} differences", OK, WRONG),
    (page_text.agreement, f"1 of {len(OK)} differences between the hooked model and the from-scratch math are too large", WRONG, OK),
]  # fmt: skip


@cache
def both_texts(number):
    """The text in which a sentence appears, and the text in which it does not."""
    render, _, *inputs = SENTENCES[number]
    return [render(FRAMES | each if isinstance(each, dict) else each) for each in inputs]


@pytest.mark.parametrize("number", range(len(SENTENCES)), ids=[row[1] for row in SENTENCES])
def test_a_caution_appears_only_under_its_condition(number):
    with_it, without_it = both_texts(number)
    assert SENTENCES[number][1] in with_it and SENTENCES[number][1] not in without_it


# --- the reasons for a verdict --------------------------------------------------------------------

SEPARATES = "separates the senses held out with AUROC 0.93 (max-T p = .0014)"
MOVES = f"; swapping it moves the word 31{N}% [24, 38] of the gap (max-T p < .001)"
NEXT = f", next token 25{N}% (p = .003)"
FURTHER = "; the word changes further than the 49 unambiguous nouns in its place"
WRITE = f"; its own write is 11{N}% [5, 20] larger (p = .01)"
NOUNS = f"; it moves such nouns 11{N}% of the word's gap, and the word"
MORE = f"{NOUNS} 20{N}% [15, 25] further (max-T p = .01){WRITE}"
NOT_MORE = f"{NOUNS} 2{N}% [−5, 9] further (max-T p = .6, limit .05){WRITE}"
NOT_RESOLVED = "; no evidence that an ambiguity is resolved: "
AS_FAR = "3 of 49 unambiguous nouns change as far in its place"
UNCOMPARED = f"the word was not compared with unambiguous nouns ({NOT_ASKED_FOR})"
NOT_ASKED = NOT_NAMED | {"more": math.nan}
BEFORE = f"90{N}% of its attention on the token before"
STILL = {"net": 0.03, "net_low": 0.02, "net_high": 0.04, "direct": 0.9, "p_swap": 0.4} | SILENT
HARDLY = f"; swapping it moves the word 3.0{N}% [2.0, 4.0] of the gap (max-T p = .4, limit .05)"
NO_MORE = {"more": 0.02, "more_low": -0.05, "more_high": 0.09, "p_more": 0.6}
WEAK = {"p_auroc": 0.2, "p_swap": 0.3, "net": 0.001, "net_low": -0.01, "net_high": 0.01}
REASONS = [
    ({}, MOVES + NEXT + FURTHER + MORE),
    (SILENT, MOVES + FURTHER + MORE),
    ({"more": math.nan}, f"{MOVES}{NEXT}{FURTHER}, but the head does not move it significantly further than these nouns"),
    ({"write_more_length": -0.1}, f"{MOVES}{NEXT}{FURTHER}, but the head's own write is not significantly larger there{MORE}"),
    ({"ambiguity_p": 4 / 50}, MOVES + NEXT + NOT_RESOLVED + AS_FAR + MORE),
    (NOT_ASKED, MOVES + NEXT + NOT_RESOLVED + UNCOMPARED),
    (NEAR_ONLY, f"{MOVES}{NEXT}; 50{N}% with the cue next to the word, 1{N}% further away, and {BEFORE}"),
    (NEAR_ONLY | {"net_far": math.nan}, f"{MOVES}{NEXT}; {BEFORE}, and no cue is further away, so whether it reads the cue or the place cannot be told"),
    (AGAINST, f"; swapping it moves the word −10{N}% [−20, −5] of the gap (max-T p = .01){NEXT}"),
    (STILL | STANDS_IN, f"{HARDLY}; swapped together with L0H3 it moves the word 40{N}% of the gap further (max-T p = .01)"),
    (STILL, f"{HARDLY}; it writes 90{N}% of the gap itself, which later layers take away"),
    ({"misplaced": 1.0}, f"{MOVES}{NEXT}; but the place of the word or its cue, or the text's length, tells the senses apart as well, and {FURTHER[2:]}{MORE}"),
    ({"untrained": 1.0} | NOT_ASKED, f"{MOVES}{NEXT}; but an untrained model tells the senses apart as well, and {UNCOMPARED}"),
    ({"untrained": 1.0}, MOVES + NEXT + FURTHER + MORE),
    (NO_MORE, f"{MOVES}{NEXT}{FURTHER}, but the head does not move it significantly further than these nouns{NOT_MORE}"),
    ({"p_next_token": 0.3}, f"{MOVES}, next token 25{N}% (p = .3, limit .05); the effect on the next token is not significant"),
    ({"p_swap": 0.01, "net": 0.003, "net_low": 0.002, "net_high": 0.005, "direct": 0.0} | SILENT, f"; swapping it moves the word 0.3{N}% [0.2, 0.5] of the gap (max-T p = .01), less than the 2{N}% from which an effect counts"),
    ({"p_swap": 0.3}, f"; swapping it moves the word 31{N}% [24, 38] of the gap (max-T p = .3, limit .05){NEXT}; not confirmed: the p corrected for all heads does not pass"),
]  # fmt: skip


def reason(**changes):
    row = RESOLVES | {"not_compared": ""} | changes
    return because(row | {"verdict": verdict(row)})


@pytest.mark.parametrize(("changes", "ending"), REASONS)
def test_the_reasons_for_a_verdict_give_its_numbers(changes, ending):
    assert reason(**{"p_auroc": 0.0014, "p_swap": 0.0009} | changes) == SEPARATES + ending


def test_the_reasons_name_effects_that_do_not_count():
    assert reason(**WEAK).startswith(
        "does not separate the senses significantly: AUROC 0.93 (max-T p = .2, limit .05); swapping"
    )
    unswapped = "the gap between these senses is not significant, so no head was swapped"
    assert reason(net=math.nan) == unswapped
    small = reason(net=0.09, p_auroc=0.2)
    small_end = (
        f"an effect below 10{N}% counts only where what the head writes separates the senses"
    )
    assert small.endswith(small_end)


def test_every_verdict_has_a_meaning_and_every_row_its_reason():
    texts = page_text.ENVIRONMENT.get_template("verdicts.html.j2").module
    assert list(texts.MEANINGS) == list(ORDER)
    table = with_reasons(FRAMES["verdicts"], FRAMES["heads"], FRAMES["words"])
    assert table.drop(columns="because").equals(FRAMES["verdicts"])
    assert table["because"].str.contains("AUROC|the gap between these senses").all()
    first = table.query("word == 'bank' and layer == 0 and head == 0")["because"].item()
    assert f"AUROC {FIRST['auroc']:.2f} (max-T p = .005)" in first


# --- numbers of a head ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"p_more": 0.08}, "undecided: p = .08, limit .05"),
        ({"more_low": -0.005}, "undecided: the interval includes 0"),
        ({}, f"undecided: less than 2{N}% of the gap"),
        ({"more": 0.2, "more_low": 0.1, "more_high": 0.3}, "undecided: not along every axis"),
    ],
)
def test_an_undecided_comparison_says_which_rule_it_misses(changes, words):
    numbers = {"p_more": 0.008, "more": 0.01, "more_low": 0.004, "more_high": 0.02}
    row = pd.Series(numbers | {"comparison": "undecided"} | changes)
    assert page_text.macro("numbers.html.j2", "than_nouns")(row) == words


def test_a_rank_has_its_interval():
    rank = page_text.macro("numbers.html.j2", "rank")
    assert rank(SimpleNamespace(rank=1, rank_low=1, rank_high=2)) == "1 [1, 2]"
    assert rank(SimpleNamespace(rank=pd.NA)) == "none"
