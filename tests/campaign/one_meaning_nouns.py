"""Unambiguous nouns, studied as if they were ambiguous: `make campaign`, or `python
tests/campaign/one_meaning_nouns.py`.

Every unambiguous noun that fits replaces *bank*, *mole* and *apple*, each in all of the word's
sentences in which its article agrees, and is studied like the word: with the same senses, cues and
frames, compared with the other nouns. None of them is ambiguous, so every resolver of one of them is
a false positive. The three words are also studied.

A row of `one_meaning_nouns.csv` is a pair of senses of a study in one model: the gap, how much other
nouns change relative to it (`general_share`), the ambiguity gate (`ambiguity_p`), and the number of
heads with each verdict. Heads are swapped only if the ambiguity gate passes: without it no head is a
resolver, whatever its effect. `--keep` continues the existing table.

In every model, at most MOST of the studies of nouns may have a resolver, and the gate must pass for
the three words, except for those in NOT_FIRST. Otherwise the exit status is 1.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import torch
from inside import (
    NO_GATE,
    PACKAGED,
    WORDS,
    ReplacedStates,
    Sentence,
    TargetText,
    Weights,
    candidates,
    every_head,
    measure_gates,
    nouns,
    passes_gate,
    prepare,
    rank_among_nouns,
    replace_tokens,
    sentences_of,
    split_senses,
    untrained,
    write_atomically,
)
from measured import options_of, studied

import probe
from probe import InputError, Model, lexicon

ROOT = Path(__file__).parent.parent.parent
TABLE = "one_meaning_nouns.csv"
EMBEDDED = ("tiny-senses", "tiny-senses-bidirectional")
# Of the studies of nouns in one model. The ambiguity gate is a test by rank: of 72 nouns that are
# compared with one another, the furthest passes it, so 1.4 % of studies pass by chance alone.
MOST = 0.02
PERMUTATIONS = 199
# Words that do not pass the gate: in SmolLM2 *onion* and *carrot* change more than *apple* between
# sentences about fruit and about the company.
NOT_FIRST = {("smollm2", "apple")}
VERDICTS = ("heads", "nouns", "backups")  # the evidence for a verdict
NO_HEADS = {"resolver": 0, "mover": 0, "confounded": 0}


def in_its_place(sentences: Sequence[Sentence], noun: str) -> list[Sentence]:
    """The sentences of a word with a noun in its place, if the indefinite article agrees and the
    word is in its dictionary form."""
    changed = []
    for row in sentences:
        before = row.text[: row.start].lower().split()
        article = before[-1] if before and before[-1] in ("a", "an") else ""
        if article not in ("", lexicon.article_of(noun)):
            continue
        if row.text[row.start : row.end] != row.word:
            continue
        longer = len(noun) - len(row.word)
        spans = {"end": row.end + longer}
        if row.cue_start is not None and row.cue_end is not None and row.cue_after:
            spans |= {"cue_start": row.cue_start + longer, "cue_end": row.cue_end + longer}
        text = row.text[: row.start] + noun + row.text[row.end :]
        changed.append(replace(row, word=noun, text=text, **spans))
    return changed


def nouns_for(model: Model, word: str) -> list[str]:
    """The nouns that ship and can replace a word in this model."""
    material = prepare(model, word, sentences_of(word, None, model).sentences)
    return list(candidates(model, material, None).nouns)


def studies_of(
    model: Model,
    random_model: Model,
    word: str,
    noun: str,
    replaced: Callable[..., ReplacedStates],
) -> Iterator[dict[str, object]]:
    """A row for every pair of senses of a word with a noun in its place, or of the word itself.

    replaced: replaces `replace_tokens` if nothing is swapped
    """
    sentences = sentences_of(word, None, model).sentences
    material = prepare(model, noun, in_its_place(sentences, noun))
    splits = split_senses(material, seed=0, causal=model.config.causal)
    options = options_of(permutations=PERMUTATIONS)
    with patch.object(nouns, "replace_tokens", replaced):
        pairs, gates = measure_gates(model, material, splits, options, random_model=None)
    rows = {}
    for each, measured in zip(pairs, gates, strict=True):
        gate = NO_GATE if measured is None else measured
        senses = each.sense.senses
        rows[senses] = {
            "model": model.name,
            "word": word,
            "noun": noun,
            "sense_a": senses[0],
            "sense_b": senses[1],
            "sentences": len(each.sense.split.rows),
            "gap_p": each.gates["gap_p"],
            **{name: gate[name] for name in ("nouns_compared", "general_share", "ambiguity_p")},
        } | NO_HEADS
    if any(passes_gate(row) for row in rows.values()):
        record = studied(
            model,
            material,
            permutations=PERMUTATIONS,
            experiments=VERDICTS,
            random_model=random_model,
        )
        for senses, of_pair in every_head(record).groupby(["sense_a", "sense_b"]):
            counts = of_pair["verdict"].value_counts().to_dict()
            rows[senses] |= {name: counts.get(name, 0) for name in NO_HEADS}
    yield from rows.values()


def cached_replacement() -> Callable[..., ReplacedStates]:
    """`replace_tokens` of one model, which computes a text with a noun only once: all nouns of a
    word are compared with nearly the same nouns in the same sentences. It returns nothing that only
    swaps need."""
    cache: dict[tuple[object, ...], torch.Tensor] = {}

    def replaced(
        weights: Weights,
        texts: Sequence[TargetText],
        variants: Sequence[Sequence[int]],
        *,
        parts: Sequence[str],
        where: torch.Tensor,
    ) -> ReplacedStates:
        around = [
            (text.ids[: text.at + 1 - len(variants[0])], text.ids[text.at + 1 :]) for text in texts
        ]
        missing = {
            (row, number)
            for row, context in enumerate(around)
            for number, variant in enumerate(variants)
            if (context, tuple(variant)) not in cache
        }
        rows = sorted({row for row, _ in missing})
        numbers = sorted({number for _, number in missing})
        if missing:
            missing_variants = [variants[number] for number in numbers]
            missing_texts = [texts[row] for row in rows]
            resid = replace_tokens(weights, missing_texts, missing_variants, parts=("resid",)).resid
            for index, row in enumerate(rows):
                for variant, states in zip(missing_variants, resid[index], strict=True):
                    cache[around[row], tuple(variant)] = states.clone()
        by_row = [[cache[context, tuple(variant)] for variant in variants] for context in around]
        resid = torch.stack([torch.stack(states) for states in by_row])
        empty = resid.new_empty(int(where.sum()), 0)
        return ReplacedStates(resid, empty, empty)

    return replaced


def models_at_hand(names: Sequence[str]) -> Iterator[str]:
    """The models of these that ship or whose package is installed."""
    for name in names:
        if name in PACKAGED and PACKAGED[name].installed() is None:
            print(f"{name}: left out, its package {PACKAGED[name].distribution} is not installed")
        else:
            yield name


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """For each model and word: the number of studies of nouns; how many studies pass the ambiguity
    gate, and how many have a resolver, for any pair of senses; and the word's rank among nouns."""
    rows = rows.assign(
        rank=[rank_among_nouns(p, n) for p, n in rows[["ambiguity_p", "nouns_compared"]].to_numpy()]
    )
    of_nouns = rows[rows["noun"] != rows["word"]]
    studies = of_nouns.groupby(["model", "word", "noun"], sort=False)
    by_study = studies.agg(
        gate=("rank", lambda ranks: (ranks == 1).any()), resolver=("resolver", "max")
    )
    by_study["resolver"] = by_study["resolver"] > 0
    grouped = by_study.groupby(level=["model", "word"], sort=False)
    counts = grouped.agg(
        studies=("gate", "size"), gate=("gate", "sum"), resolver=("resolver", "sum")
    )
    of_words = rows[rows["noun"] == rows["word"]].groupby(["model", "word"], sort=False)
    return counts.join(of_words["rank"].max().rename("rank_of_the_word"))


def wrong(rows: pd.DataFrame) -> list[str]:
    """The requirements that do not hold, in a sentence each; empty if all is well."""
    problems = []
    by_model = summary(rows).groupby(level="model", sort=False)[["studies", "resolver"]].sum()
    for model, row in by_model.iterrows():
        if row["resolver"] > MOST * row["studies"]:
            problems.append(f"{model}: a resolver in {row['resolver']} of {row['studies']} studies")
    for (model, word), row in summary(rows).iterrows():
        passes = row["rank_of_the_word"] == 1
        if passes == ((model, word) in NOT_FIRST):
            does = "passes" if passes else "does not pass"
            problems.append(f"{model}: {word} {does} the gate, rank {row['rank_of_the_word']:g}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports")
    parser.add_argument("--models", nargs="+", default=[*EMBEDDED, *PACKAGED])
    parser.add_argument("--words", nargs="+", default=[*WORDS])
    parser.add_argument("--keep", action="store_true", help="continue the existing table")
    options = parser.parse_args()
    table = options.out / TABLE
    rows = pd.read_csv(table).to_dict("records") if options.keep and table.exists() else []
    existing = {(row["model"], row["word"], row["noun"]) for row in rows}
    for name in models_at_hand(options.models):
        model = probe.load(name)
        random_model = untrained(model, seed=0)
        for word in options.words:
            replaced = cached_replacement()
            for noun in (word, *nouns_for(model, word)):
                if (model.name, word, noun) in existing:
                    continue
                try:
                    rows += studies_of(model, random_model, word, noun, replaced)
                except InputError as error:
                    print(f"{model.name}, {noun} for {word}: {error}", flush=True)
                    continue
                options.out.mkdir(parents=True, exist_ok=True)
                frame = pd.DataFrame(rows)
                write_atomically(table, frame.to_csv(index=False, float_format="%.6g"))
    results = pd.DataFrame(rows)
    problems = wrong(results)
    print(summary(results).to_string())
    print(*problems or ["all within their bounds"], sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
