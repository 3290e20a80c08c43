"""Studies without any effect: how often an effect is claimed nevertheless. `make campaign` runs 200 of
each kind.

    random weights     a new random model and new sentences in every run: nested, crossed and unpaired
                       cue words; unpaired texts that are longer in one sense, sometimes or always; a
                       function word that goes with the sense
    senses reassigned  the embedded model, which was trained, on a word of the lexicon whose senses
                       are randomly assigned to its cue words: nested, crossed and unpaired

A run is a study of one word up to its verdicts: the gates, and the swaps only if there is a gap.
With one thread (OMP_NUM_THREADS=1) it takes half a second. `--keep` continues the existing table.
`claimed`: the gate passed and no nuisance separates the senses (the page calls this a gap of
meaning). Every run is a row of `null_campaign.csv`. Of 200 runs of a kind at most 2 % may have a
gate p below .01, and at most 1 % a resolver. If a nuisance goes with the sense (NUISANCE), the
vectors do differ, and the gate may pass: for these kinds the 2 % apply to `claimed`.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from handmade import (
    FUNCTION,
    NOUNS,
    PLAIN,
    SENSES,
    make_crossed,
    make_handmade,
    make_sentences,
    without,
)
from inside import (
    GATE,
    ORDER,
    Sentence,
    every_head,
    prepare,
    split_senses,
    untrained,
    write_atomically,
)
from measured import studied, table_of
from scipy.stats import binom, binomtest

import probe
from probe import Model, lexicon

RUNS = 200
MOST = {"claimed": 0.02, "resolver": 0.01}  # largest shares of the runs of a kind
SPREAD = 0.2  # of the random weights: at the usual .02 every head attends to everything equally
PERMUTATIONS = 63  # max-T p in steps of 1 / 64: the level .05 is reached, and a run is fast
TRAINED = "tiny-senses"
VERDICTS = ("heads", "nouns", "backups")  # the evidence for a verdict
Sentences = Sequence[Sentence]


# --- sentences ------------------------------------------------------------------------------------


def nested(rng: np.random.Generator) -> Sentences:
    """Aligned pairs, every cue word with one partner."""
    return make_sentences(cues=16, frames=4, distances=(1, 2), seed=_seed(rng))


def crossed(rng: np.random.Generator) -> Sentences:
    """Aligned pairs of every cue word with every cue word of the other sense."""
    return make_crossed(12, 9, frames=3, seed=_seed(rng))


def unpaired(rng: np.random.Generator) -> Sentences:
    """The same sentences without their pairs."""
    return without(nested(rng), "pair")


def longer(rng: np.random.Generator) -> Sentences:
    """Unpaired; up to six words before the text, in one sense two more on average: most texts have
    an equally long one of the other sense."""
    return _lengthened(unpaired(rng), rng, (range(5), range(2, 7)))


def always_longer(rng: np.random.Generator) -> Sentences:
    """Unpaired; in one sense so many more words that no text has an equally long one of the other
    sense."""
    return _lengthened(unpaired(rng), rng, (range(1), range(8, 12)))


def function_word(rng: np.random.Generator) -> Sentences:
    """Aligned pairs, each sentence after "this" or "that", which goes with its sense."""
    return [_after(row, FUNCTION[row.sense]) for row in nested(rng)]


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _lengthened(rows: Sentences, rng: np.random.Generator, more: tuple[range, range]) -> Sentences:
    """Each sentence after a number of words that depends on its sense."""
    by_sense = dict(zip(SENSES, more, strict=True))
    return [
        _after(row, *rng.choice(PLAIN, size=int(rng.choice(by_sense[row.sense])))) for row in rows
    ]


def _after(row: Sentence, *words: str) -> Sentence:
    """The sentence after these words."""
    front = "".join(f"{word} " for word in words)
    spans = {
        name: getattr(row, name) + len(front) for name in ("start", "end", "cue_start", "cue_end")
    }
    return replace(row, text=front + row.text, **spans)


def reassigned(rows: Sentences, rng: np.random.Generator) -> Sentences:
    """The senses of every pair of cue words, exchanged at random."""
    senses = list(dict.fromkeys(row.sense for row in rows))
    exchange = {row.pair.split("/")[-1]: bool(rng.random() < 0.5) for row in rows}
    return [
        replace(row, sense=senses[1 - senses.index(row.sense)])
        if exchange[row.pair.split("/")[-1]]
        else row
        for row in rows
    ]


def random_senses(rows: Sentences, rng: np.random.Generator) -> Sentences:
    """The sentences with senses randomly assigned to the cue words, as many of each sense as before,
    and without pairs."""
    senses = list(dict.fromkeys(row.sense for row in rows))
    cues = sorted({row.cue_word for row in rows})
    sense_of = dict(zip(rng.permutation(cues).tolist(), len(cues) // 2 * senses, strict=True))
    return [replace(row, sense=sense_of[row.cue_word], pair=None) for row in rows]


def paired_anew(rows: Sentences) -> Sentences:
    """Pairs of every sentence with each sentence of the other sense that has the same frame and
    distance."""
    senses = list(dict.fromkeys(row.sense for row in rows))
    slots = list(dict.fromkeys((row.frame, row.distance) for row in rows))
    sides = {(slot, sense): [] for slot in slots for sense in senses}
    for row in rows:
        sides[(row.frame, row.distance), row.sense].append(row)
    return [
        replace(row, pair=f"{slot}/{i}/{j}")
        for slot in slots
        for i, a in enumerate(sides[slot, senses[0]])
        for j, b in enumerate(sides[slot, senses[1]])
        for row in (a, b)
    ]


def of_lexicon(rng: np.random.Generator, *, frames: int, distances: int) -> Sentences:
    """Sentences of two senses of a word of the lexicon, in some of its frames at some distances."""
    word = str(rng.choice(lexicon.words()))
    rows = lexicon.expand(word).sentences
    senses = rng.permutation(sorted({row.sense for row in rows}))[:2]
    frame_names = rng.permutation(sorted({row.frame for row in rows}))[:frames]
    apart = rng.permutation(sorted({row.distance for row in rows}))[:distances]
    return [
        row
        for row in rows
        if row.sense in senses and row.frame in frame_names and row.distance in apart
    ]


# --- kinds ----------------------------------------------------------------------------------------


@cache
def _shape() -> Model:
    """The basis of random models: the tokenizer and the sizes of the models built by hand, with all
    unambiguous nouns that ship, as in most vocabularies. One noun in 74 changes further than all
    others, so with fewer nouns more random models would have a resolver by chance.
    """
    more = [noun for noun in lexicon.one_meaning_nouns() if noun not in NOUNS]
    with TemporaryDirectory() as folder:
        folder_of_model = make_handmade(Path(folder) / "random", [], spread=SPREAD, more_words=more)
        return probe.load(folder_of_model)


@cache
def _trained() -> Model:
    return probe.load(TRAINED)


def random_weights(run: int) -> Model:
    return untrained(_shape(), seed=run)


def trained(run: int) -> Model:
    return _trained()


@dataclass(frozen=True)
class Kind:
    model: Callable[[int], Model]
    sentences: Callable[[np.random.Generator], Sentences]


KINDS = {
    **{make.__name__: Kind(random_weights, make) for make in (nested, crossed, unpaired, longer)},
    "reassigned, nested": Kind(
        trained, lambda rng: reassigned(of_lexicon(rng, frames=6, distances=2), rng)
    ),
    "reassigned, crossed": Kind(
        trained, lambda rng: paired_anew(random_senses(of_lexicon(rng, frames=2, distances=1), rng))
    ),
    "reassigned, unpaired": Kind(
        trained, lambda rng: random_senses(of_lexicon(rng, frames=6, distances=2), rng)
    ),
    **{make.__name__: Kind(random_weights, make) for make in (function_word, always_longer)},
}
NUISANCE = tuple(make.__name__ for make in (longer, function_word, always_longer))


def study_of(kind: str, run: int) -> dict[str, object]:
    """One study without any effect, as a row of the record."""
    rng = np.random.default_rng([run, *map(ord, kind)])
    sentences, model = KINDS[kind].sentences(rng), KINDS[kind].model(run)
    material = prepare(model, sentences[0].word, sentences)
    record = studied(
        model,
        material,
        seed=run,
        permutations=PERMUTATIONS,
        experiments=VERDICTS,
        random_model=untrained(model, seed=run + 2**20),
    )
    [words] = table_of(record, "words").to_dict("records")
    frame = every_head(record)
    [split] = split_senses(material, seed=run, causal=True).values()
    row = {"kind": kind, "run": run, "word": sentences[0].word, "sentences": len(split.rows)}
    row |= {
        "cue_words": len(set(split.units)),
        "gap_p": round(words["gap_p"], 6),
        "gate": int(words["gap_p"] < GATE),
        "nuisance_p": round(words["nuisance_p"], 6),
        "untrained_p": None,
        "claimed": 0,
    } | dict.fromkeys(ORDER, 0)
    if words["ranked"]:
        row["untrained_p"] = round(words["untrained_p"], 6)
        row["claimed"] = int(not frame[["misplaced", "untrained"]].any(axis=None))
    return row | frame["verdict"].value_counts().to_dict()


# --- the findings --------------------------------------------------------------------------------


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """For each kind: runs; gate p below .01, claimed, any resolver, each with the 95 % interval of
    its share."""
    names = ("gate", "claimed", "resolver")
    groups = rows.assign(resolver=rows["resolver"] > 0).groupby("kind", sort=False)
    counts = groups.agg(runs=("run", "size"), **{name: (name, "sum") for name in names})
    shares = {
        name: [_interval(*row) for row in zip(counts[name], counts["runs"], strict=True)]
        for name in names
    }
    return counts.join(pd.DataFrame(shares, index=counts.index).add_suffix(" %"))


def _interval(count: int, runs: int) -> str:
    """The 95 % interval of a share in percent (Clopper & Pearson)."""
    ends = binomtest(int(count), int(runs)).proportion_ci(method="exact")
    return f"{100 * ends.low:.1f} to {100 * ends.high:.1f}"


def too_many(rows: pd.DataFrame) -> list[str]:
    """The kinds with more claims than allowed, and these claims; empty if all is well.

    With fewer than RUNS runs, as many are allowed as chance gives a test that is exactly at its level.
    """
    counts = summary(rows)
    counted = counts.assign(
        claimed=counts["claimed"].where(counts.index.isin(NUISANCE), counts["gate"])
    )
    return [
        f"{kind}: {name} in {row[name]} of {row['runs']}"
        for kind, row in counted.iterrows()
        for name, share in MOST.items()
        if row[name]
        > (share * row["runs"] if row["runs"] >= RUNS else binom.ppf(0.975, row["runs"], share))
    ]


def bounds(runs: int) -> str:
    """The number of claims in this many runs that chance gives a test exactly at its level."""
    low, high = binom.ppf([0.025, 0.975], runs, GATE)
    return (
        f"of {runs} exact tests at the level {GATE:g}, {low:.0f} to {high:.0f} pass in 95 % of "
        "cases"
    )


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, kind by kind."""
    ranks = {kind: rank for rank, kind in enumerate(KINDS)}
    return rows.sort_values(
        ["kind", "run"], key=lambda column: column.map(ranks) if column.name == "kind" else column
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--keep", action="store_true", help="continue the existing table")
    options = parser.parse_args()
    table = options.out / "null_campaign.csv"
    rows = pd.read_csv(table).to_dict("records") if options.keep and table.exists() else []
    existing = {(row["kind"], row["run"]) for row in rows}
    # One of every kind in turn: an interrupted campaign has equally many of each.
    for run in range(options.runs):
        rows += [study_of(kind, run) for kind in options.kinds if (kind, run) not in existing]
        write_atomically(table, in_order(pd.DataFrame(rows)).to_csv(index=False))
    frame = in_order(pd.DataFrame(rows))
    print(summary(frame).to_string(), bounds(options.runs), sep="\n")
    print(*(wrong := too_many(frame)) or ["all within their bounds"], sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
