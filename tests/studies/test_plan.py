"""What a dry run says: counts by hand, gates that are those of the study, and what to change."""

import math
from dataclasses import asdict

import pandas as pd
import pytest
from inside import (
    TOO_FEW_NOUNS,
    GatePreview,
    StudyOptions,
    head_effects,
    likely,
    plan_study,
    preview_gates,
    sentences_suffice,
    study_inputs,
    variants,
)

import probe

SENTENCES = probe.lexicon.expand("bank").sentences


def inputs_of_bank(model, *, sentences=None, experiments=None, **options):
    """What a study of bank measures."""
    return study_inputs(model, "bank", sentences, StudyOptions(**options), experiments)


def plan(model, **options):
    """The plan of a study of bank."""
    return plan_study(inputs_of_bank(model, **options))


CUES = ("river", "lake", "sea", "shore"), ("loan", "cash", "debt", "credit")
FRAMES = ("The {} and the bank", "Near the {} was a bank", "A {} by the old bank")


def unmarked(*, paired: bool) -> list[dict[str, str]]:
    """Sentences of bank without a marked cue; aligned pairs differ in it."""
    rows = []
    for number, frame in enumerate(FRAMES):
        for index, cues in enumerate(zip(*CUES, strict=True)):
            for sense, cue in zip(("river", "money"), cues, strict=True):
                row = {"sense": sense, "text": frame.format(cue)}
                rows.append(row | ({"pair": f"{number}-{index}"} if paired else {}))
    return rows


def some_marked():
    """Paired sentences of which all but four have a marked cue."""
    rows = unmarked(paired=True)
    for row in rows[4:]:
        row["cue"] = next(cue for cues in CUES for cue in cues if cue in row["text"])
    return rows


def few_cue_words(number):
    """Pairs of the lexicon, each with other cue words."""
    pairs = {}
    for row in SENTENCES:
        pairs.setdefault(row.pair, []).append(row)
    by_cues = {tuple(row.cue for row in rows): rows for rows in pairs.values()}
    return [row for rows in [*by_cues.values()][:number] for row in rows]


LATE = [{"sense": sense, "text": f"The bank {sense}"} for sense in ("river", "money")]
WITH_LATE = [*({"sense": row.sense, "text": row.text} for row in SENTENCES), *LATE]
TWICE = [*unmarked(paired=False), unmarked(paired=False)[0]]
MARKED = "the words in which a pair differs are used as their cues: river / loan, lake / cash, sea / debt, shore / credit. Mark others in a column `cue`."


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        (unmarked(paired=False), [
            "bank, river / money: 12 and 12 sentences without pairs, so 12 pairs are drawn at random; exploratory; for a firmer answer give 50 sentences per sense.",
            "bank: no cue is marked and no pair differs in just a few words, so every sentence, or pair of them, counts as a separate cue word. Mark the cues in a column `cue`.",
            "bank: 24 sentences differ from one of another sense in a single word, and no pair says so; name such sentences in a column pair, or one may be learned from while the other is tested.",
        ]),
        (TWICE, ["1 row repeats another; each sentence is read once."]),
        (unmarked(paired=True), ["bank, river / money: 12 and 12 sentences in 12 pairs with ", f"bank: no cue is marked, so {MARKED}"]),
        (some_marked(), ["bank, river / money: 12 and 12 sentences in 12 pairs with 6 pairs of cue words (4 sentences without a cue: each, or its pair, counts as a separate cue word); the test of"]),
        (few_cue_words(7), ["in 7 pairs with 7 pairs of cue words; the test of the gap cannot come below p = .016 (limit .01), so no head can be ranked: give more different cue words."]),
        (few_cue_words(8), ["in 8 pairs with 8 pairs of cue words; exploratory; for a firmer answer give 50 sentences per sense with 12 different cue words."]),
        (WITH_LATE, ["bank: 2 sentences left out: identical to a sentence of another sense up to the word"]),
    ],
    ids=str.split("unpaired twice paired some-marked seven eight late"),
)  # fmt: skip
def test_the_sentences_are_counted_with_what_to_change(tiny, sentences, expected):
    lines = sentences_suffice(plan(tiny, sentences=sentences))
    for part in expected:
        assert any(part in line for line in lines), lines


def test_unusable_nouns_are_reported_before_the_work(tiny):
    with_nouns = plan(tiny, controls=("fence", "washing machine", "bank"))
    assert sentences_suffice(with_nouns)[1:] == [
        "washing machine is not put in the place of bank: it has 4 tokens and the word has 1.",
        "bank is not put in the place of bank: it is the word itself.",
    ]
    assert plan(tiny).unusable_nouns == ()


def test_the_dry_run_counts_the_pairs_that_the_study_swaps(tiny):
    rows = [asdict(row) for row in SENTENCES[:96]]
    for number, row in enumerate(rows):
        # Only sentences of the second half are tested, and in two pairs only one of the sentences.
        row["split"] = "fit" if number < 48 or number in (48, 50) else "report"
    late = {"sense": "river", "text": "A bank near the river", "cue": "river", "pair": "late"}
    sentences = [*rows, late, late | {"sense": "money", "text": "The credit bank", "cue": "credit"}]
    [size] = plan(tiny, sentences=sentences).sizes
    quick = {"experiments": ["heads"], "permutations": 99}
    [word] = probe.study(tiny, "bank", sentences=sentences, **quick).words.to_dict("records")
    assert size.pairs == size.swapped_pairs == word["pairs"] == 22
    assert size.cue_words == word["cue_words"] == 12


START = "bank, river / money: the senses are apart at the word (p < .001)"
TELLS = "even random weights separate them (p = .002)"
ALIKE = "19 of 49 unambiguous nouns change as far in its place"
ALONE = "let the two sentences of a pair differ in the cue alone"
OTHERS = "give sentences whose cue says more about this word than about other nouns"
MOVERS = "so heads are *movers* at best"
NOT_COMPARED = "it cannot be compared with unambiguous nouns"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gap_p": 0.3}, "bank, river / money: this model has no significant gap between the senses at the word (p = .3, limit .01), so no head will be swapped; give more different cue words before the word, or take another model."),
        ({"ambiguity_p": 1 / 50, "nouns": 49}, f"{START}, and the word changes further than the 49 unambiguous nouns in its place, so resolvers can be found."),
        ({"ambiguity_p": 20 / 50, "nouns": 49}, f"{START}, but {ALIKE}, {MOVERS}; {OTHERS}."),
        ({"ambiguity_p": 20 / 50, "nouns": 49, "untrained_p": 0.002}, f"{START}, but {TELLS}, {ALIKE}, so heads are *confounded* at best; {OTHERS}; {ALONE}."),
        ({"not_compared": "12 sentences, and 24 are needed", "nuisance_p": 0.03}, f"{START}, but the word's position or the text's length separates them (p = .03), {NOT_COMPARED} (12 sentences, and 24 are needed), so heads are *confounded* at best; give more pairs of sentences in which “bank” is a noun in just this form; {ALONE}."),
        ({"not_compared": f"{TOO_FEW_NOUNS}: 3, and 19 are needed"}, f"{START}, but {NOT_COMPARED} ({TOO_FEW_NOUNS}: 3, and 19 are needed), {MOVERS}; give more nouns with --controls; without it the nouns that ship are used."),
        ({}, f"{START}, but it is not compared with unambiguous nouns, {MOVERS}; leave --controls away."),
    ],
)  # fmt: skip
def test_the_likely_result_is_reported_with_what_to_change(changes, message):
    usual = {"gap_p": 0.0002, "untrained_p": 0.5, "nuisance_p": 1.0}
    assert likely(GatePreview("bank", ("river", "money"), **(usual | changes))) == message


def test_the_dry_run_has_the_gates_of_the_study_and_no_tokens_are_run_twice(tiny, monkeypatch):
    """The p values equal those of the study, with and without nouns. Swaps, nouns, MLPs and sets of
    heads share what a text has before the word."""
    options = {"sentences": SENTENCES[:96], "permutations": 99, "max_pairs": 8}
    [gates] = preview_gates(inputs_of_bank(tiny, experiments=["nouns"], **options))
    runs = []
    run_past = variants.run_past

    def counting(weights, rows, *arguments):
        runs.extend(rows)
        return run_past(weights, rows, *arguments)

    monkeypatch.setattr(variants, "run_past", counting)
    everything = ["nouns", "noun_mlps", "backups", "sets"]
    of_study = probe.study(tiny, "bank", experiments=everything, **options)
    assert len(runs) == len(set(runs)) > 0
    [row] = of_study.words.to_dict("records")
    assert gates.senses == (row["sense_a"], row["sense_b"]) and gates.not_compared == ""
    for name in ("gap_p", "nuisance_p", "untrained_p", "ambiguity_p"):
        assert getattr(gates, name) == row[name], name
    without_nouns = options | {"experiments": ["nouns"], "controls": ()}
    [without] = preview_gates(inputs_of_bank(tiny, **without_nouns))
    assert without.gap_p == gates.gap_p and math.isnan(without.ambiguity_p)


def test_the_dry_run_says_what_is_likely_and_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(head_effects, "swap_every_head", pytest.fail)
    file = tmp_path / "rows.csv"
    pd.DataFrame(unmarked(paired=True)).to_csv(file, index=False)
    out = tmp_path / "out"
    code, output, err = run("report", "bank", "--sentences", file, "--out", out, "--dry-run")
    assert code == 0, err
    lines = output.splitlines()
    assert "in 12 pairs" in lines[0] and MARKED in lines[1]
    assert lines[-1].startswith("bank, river / money: ") and "at the word (p " in lines[-1]
    assert not list(out.glob("*"))
