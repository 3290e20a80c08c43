"""The plan of a study: its counts by hand, its memory compared with the measured memory, and its
error."""

import math
from collections import defaultdict
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from embedded import embedded
from measured import studied

from probe.experiments import observe
from probe.experiments.beside_nouns import TOO_FEW_NOUNS
from probe.experiments.material import prepare
from probe.experiments.observe import split_senses
from probe.model import hooks, variants
from probe.model.decomposition import write_coordinates
from probe.model.load import read_weights, untrained
from probe.model.trace import target_states
from probe.pages.terminal import likely, sentences_suffice
from probe.patching import heads
from probe.stats.separation import held_out_auroc
from probe.studies.study import GatePreview, plan_study, preview_gates, study, study_inputs
from probe.text.lexicon import expand
from probe.text.sentences import as_corpus
from probe.text.splits import cross_fit

pytestmark = pytest.mark.real_model


def plan(model, words, **options):
    """The plan of a study."""
    return plan_study(study_inputs(model, words, **options))


@pytest.fixture(scope="module")
def model():
    return embedded()


@pytest.fixture(scope="module")
def of_bank(model):
    return plan(model, "bank")


def test_unusable_nouns_are_reported_before_the_work(model, of_bank):
    with_nouns = plan(model, ["bank"], controls=["fence", "washing machine", "bank"])
    assert sentences_suffice(with_nouns)[1:] == [
        "washing machine is not put in the place of bank: it has 4 tokens and the word has 1.",
        "bank is not put in the place of bank: it is the word itself.",
    ]
    assert of_bank.unusable_nouns == ()


def test_sentences_to_be_left_out_are_reported_before_the_work(model):
    late = [{"sense": sense, "text": f"The bank {sense}"} for sense in ("river", "money")]
    rows = [{"sense": row.sense, "text": row.text} for row in expand("bank").sentences]
    lines = sentences_suffice(plan(model, ["bank"], sentences=[*rows, *late]))
    assert lines[-1].startswith(
        "bank: 2 sentences left out: identical to a sentence of another sense up to the word"
    )


def test_the_dry_run_counts_the_pairs_that_the_study_swaps(model):
    rows = [asdict(row) for row in expand("bank").sentences[:96]]
    for number, row in enumerate(rows):
        # Only sentences of the second half are tested, and in two pairs only one of the sentences.
        row["split"] = "fit" if number < 48 or number in (48, 50) else "report"
    late = {"sense": "river", "text": "A bank near the river", "cue": "river", "pair": "late"}
    sentences = [*rows, late, late | {"sense": "money", "text": "The credit bank", "cue": "credit"}]
    [size] = plan(model, ["bank"], sentences=sentences).sizes
    result = study(model, ["bank"], sentences=sentences, experiments=["heads"], permutations=99)
    [word] = result.words.to_dict("records")
    assert size.pairs == size.swapped_pairs == word["pairs"] == 22
    assert size.cue_words == word["cue_words"] == 12


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


def test_sentences_without_pairs_are_not_called_pairs(model):
    rows = unmarked(paired=False)
    *lines, twice = sentences_suffice(plan(model, ["bank"], sentences=[*rows, rows[0]]))
    assert twice == "1 row repeats another; each sentence is read once."
    first, cues, pairs = sentences_suffice(plan(model, ["bank"], sentences=rows))
    assert lines == [first, cues, pairs]
    assert first == (
        "bank, river / money: 12 and 12 sentences without pairs, so 12 pairs are drawn at random; "
        "exploratory; for a firmer answer give 50 sentences per sense."
    )
    assert cues == (
        "bank: no cue is marked and no pair differs in just a few words, so every sentence, or "
        "pair of them, counts as a separate cue word. Mark the cues in a column `cue`."
    )
    assert pairs == (
        "bank: 24 sentences differ from one of another sense in a single word, and no pair says "
        "so; name such sentences in a column pair, or one may be learned from while the other is "
        "tested."
    )


def test_the_cues_that_pairs_differ_in_are_shown(model):
    first, cues = sentences_suffice(plan(model, ["bank"], sentences=unmarked(paired=True)))
    assert first.startswith("bank, river / money: 12 and 12 sentences in 12 pairs with ")
    assert cues == (
        "bank: no cue is marked, so the words in which a pair differs are used as their cues: "
        "river / loan, lake / cash, sea / debt, shore / credit. Mark others in a column `cue`."
    )


def test_some_sentences_without_a_cue_are_counted(model):
    rows = unmarked(paired=True)
    for row in rows[4:]:
        cue = next(cue for cues in CUES for cue in cues if cue in row["text"])
        start = row["text"].index(cue)
        row |= {"cue_start": start, "cue_end": start + len(cue)}
    first, *_ = sentences_suffice(plan(model, ["bank"], sentences=rows))
    assert first.startswith(
        "bank, river / money: 12 and 12 sentences in 12 pairs with 6 pairs of cue words (4 "
        "sentences without a cue: each, or its pair, counts as a separate cue word); the test of"
    )


@pytest.mark.parametrize(
    ("cue_words", "answer"),
    [
        (
            7,
            (
                "the test of the gap cannot come below p = .016 (limit .01), so no head can be ranked: "
                "give more different cue words."
            ),
        ),
        (
            8,
            (
                "exploratory; for a firmer answer give 50 sentences per sense with 12 different cue "
                "words."
            ),
        ),
    ],
)
def test_too_few_cue_words_for_any_significant_gap_are_reported(model, cue_words, answer):
    pairs = defaultdict(list)
    for row in expand("bank").sentences:
        pairs[row.pair].append(row)
    of_cues = {tuple(row.cue for row in rows): rows for rows in pairs.values()}
    apart = [(rows, cues) for cues, rows in of_cues.items() if len(rows) == 2]
    sentences, seen = [], set()
    for rows, cues in apart:
        if len(seen) < 2 * cue_words and seen.isdisjoint(cues):
            sentences += rows
            seen |= {*cues}
    first, *_ = sentences_suffice(plan(model, ["bank"], sentences=sentences))
    assert first.endswith(f"in {cue_words} pairs with {cue_words} pairs of cue words; {answer}")


START = "bank, river / money: the senses are apart at the word (p < .001)"
TELLS = "even random weights separate them (p = .002)"
ALIKE = "19 of 49 unambiguous nouns change as far in its place"
ALONE = "let the two sentences of a pair differ in the cue alone"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gap_p": 0.3},
            (
                "bank, river / money: this model has no significant gap between the senses at the word "
                "(p = .3, limit .01), so no head will be swapped; give more different cue words before the word, "
                "or take another model."
            ),
        ),
        (
            {"ambiguity_p": 1 / 50, "nouns": 49},
            (
                f"{START}, and the word changes further than the 49 unambiguous nouns in its place, "
                "so resolvers can be found."
            ),
        ),
        (
            {"ambiguity_p": 20 / 50, "nouns": 49},
            (
                f"{START}, but {ALIKE}, so heads are *movers* at best; give sentences whose cue says "
                "more about this word than about other nouns."
            ),
        ),
        (
            {"ambiguity_p": 20 / 50, "nouns": 49, "untrained_p": 0.002},
            (
                f"{START}, but {TELLS}, {ALIKE}, so heads are *confounded* at best; give sentences "
                f"whose cue says more about this word than about other nouns; {ALONE}."
            ),
        ),
        (
            {"not_compared": "12 sentences, and 24 are needed", "nuisance_p": 0.03},
            (
                f"{START}, but the word's position or the text's length separates them (p = .03), it "
                "cannot be compared with unambiguous nouns (12 sentences, and 24 are needed), so "
                f"heads are *confounded* at best; give more pairs of sentences in which “bank” is a noun in just this form; {ALONE}."
            ),
        ),
        (
            {"not_compared": f"{TOO_FEW_NOUNS}: 3, and 19 are needed"},
            (
                f"{START}, but it cannot be compared with unambiguous nouns ({TOO_FEW_NOUNS}: 3, and "
                "19 are needed), so heads are *movers* at best; give more nouns with --controls; "
                "without it the nouns that ship are used."
            ),
        ),
        (
            {},
            (
                f"{START}, but it is not compared with unambiguous nouns, so heads are *movers* at "
                "best; leave --controls away."
            ),
        ),
    ],
)
def test_the_likely_result_is_reported_with_what_to_change(changes, message):
    usual = {"gap_p": 0.0002, "untrained_p": 0.5, "nuisance_p": 1.0}
    assert likely(GatePreview("bank", ("river", "money"), **(usual | changes))) == message


def test_the_dry_run_has_the_gates_of_the_study(model):
    """The p values equal the p values of the study, with and without nouns."""
    rows = {"sentences": unmarked(paired=True), "permutations": 99}
    of_heads, of_nouns = ({"experiments": names} for names in (["heads"], ["nouns"]))
    [gates] = preview_gates(study_inputs(model, "bank", **rows, **of_nouns))
    [row] = study(model, "bank", **rows, **of_nouns).words.to_dict("records")
    assert gates.senses == (row["sense_a"], row["sense_b"]) and gates.word == "bank"
    for name in ("gap_p", "nuisance_p", "untrained_p"):
        assert getattr(gates, name) == row[name]
    for options in (of_nouns | {"controls": ()}, of_heads):
        [without_nouns] = preview_gates(study_inputs(model, "bank", **rows, **options))
        assert without_nouns.gap_p == gates.gap_p and math.isnan(without_nouns.ambiguity_p)
        assert without_nouns.not_compared == ""


def test_the_dry_run_has_the_ambiguity_gate_of_the_study(model):
    """This is for a word with a gap. Nouns are read in the same sentences, and nothing is swapped."""
    options = {"sentences": expand("bank").sentences[:96], "permutations": 99, "max_pairs": 8}
    [gates] = preview_gates(study_inputs(model, "bank", experiments=["nouns"], **options))
    [row] = study(model, "bank", experiments=["nouns"], **options).words.to_dict("records")
    assert gates.ambiguity_p == row["ambiguity_p"]
    assert gates.not_compared == ""


def test_the_dry_run_says_what_is_likely_and_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr("probe.experiments.heads.swap_every_head", pytest.fail)
    file = tmp_path / "rows.csv"
    pd.DataFrame(unmarked(paired=True)).to_csv(file, index=False)
    out = tmp_path / "out"
    code, output, err = run("report", "bank", "--sentences", file, "--out", out, "--dry-run")
    assert code == 0, err
    lines = output.splitlines()
    assert "in 12 pairs" in lines[0] and "used as their cues: river / loan" in lines[1]
    assert lines[-1].startswith("bank, river / money: ") and lines[-1].endswith(".")
    assert "at the word (p " in lines[-1]
    assert not list(out.glob("*"))


def test_no_tokens_before_the_word_are_run_twice(model, monkeypatch):
    """Swaps, nouns, MLPs and sets of heads share what a text has before the word."""
    run = []
    run_past = variants.run_past

    def counting(weights, rows, *arguments):
        run.extend(rows)
        return run_past(weights, rows, *arguments)

    monkeypatch.setattr(variants, "run_past", counting)
    bank = prepare(model, "bank", expand("bank").sentences[:192])
    studied(model, bank, pairs=8, experiments=("heads", "nouns", "noun_mlps", "backups", "sets"))
    assert len(run) == len(set(run)) > 0


def test_the_word_and_the_token_after_it_are_read_in_one_run(model, monkeypatch):
    read = []
    read_at = hooks.read_at

    def counting(model, rows, *arguments):
        read.append((model.name, len(rows)))
        return read_at(model, rows, *arguments)

    monkeypatch.setattr(hooks, "read_at", counting)
    rows = unmarked(paired=True)
    rows = [row | {"text": f"{row['text']} today"} for row in rows]
    bank = prepare(model, "bank", as_corpus(rows, "bank").sentences)
    of_bank = studied(
        model, bank, experiments=("heads", "controls"), random_model=untrained(model, seed=0)
    )
    assert sum(number for _, number in read) == 2 * len(rows)  # and once with random weights
    after = [position + 1 for position in bank.targets]
    [split] = split_senses(bank, seed=0, causal=True).values()
    z = target_states(model, bank.tokens, after).z[list(split.rows)]
    np.testing.assert_allclose(
        of_bank.measured["controls"].auroc.sel(condition="later token")[0],
        held_out_auroc(write_coordinates(z, read_weights(model)), split),
        atol=1e-6,
    )


def test_an_mlp_is_run_up_to_where_it_is_read(model, monkeypatch):
    """Before the read-out layer, no block after it is run."""
    run = []
    run_at_word = variants.run_at_word

    def counting(weights, texts, depth, tables, *, edits=None, tokens=None):
        if edits is not None and edits.site == variants.HIDDEN:
            swapped_layers = [branch.edited.any().item() for branch in edits.tree]
            run.append((depth, swapped_layers))
        return run_at_word(weights, texts, depth, tables, edits=edits, tokens=tokens)

    monkeypatch.setattr(heads, "run_at_word", counting)
    bank = prepare(model, "bank", expand("bank").sentences[:192])
    of_bank = studied(model, bank, pairs=8, experiments=("heads", "nouns", "noun_mlps"))
    at = of_bank.senses[0].read_depth.values.tolist()
    assert len(set(at)) == 2  # some before the read-out layer, some after it
    assert {(depth, tuple(swapped_layers)) for depth, swapped_layers in run} == {
        (depth, tuple(read_at == depth for read_at in at[:depth])) for depth in set(at)
    }


def test_a_study_holds_out_its_sentences_only_once(model, monkeypatch):
    splits = []

    def counting_cross_fit(sentences, senses, **options):
        splits.append((senses, tuple(options)))
        return cross_fit(sentences, senses, **options)

    monkeypatch.setattr(observe, "cross_fit", counting_cross_fit)
    rows = [{"sense": row.sense, "text": row.text} for row in expand("bank").sentences[::4]]
    study(
        model,
        "bank",
        sentences=rows,
        permutations=99,
        max_pairs=4,
        experiments=("nouns", "readings"),
    )
    assert splits == [(("river", "money"), ("seed",))]
