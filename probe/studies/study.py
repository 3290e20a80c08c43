"""The study of ambiguous words: a model and sentences in, frames of numbers with their evidence
out.

It chooses the words, says what they will cost (`probe.studies.cost`), certifies the model before
anything else, measures word by word (`probe.experiments.measure`) and collects one tidy frame per
question (`probe.results.frames`, `probe.results.circuit`). A Study is
what the user holds: frames, never tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from warnings import warn

import pandas as pd

from probe.display import Displayed
from probe.errors import InputError, require_at_least, whole_number
from probe.experiments.candidates import as_nouns, require_usable
from probe.experiments.material import (
    Material,
    SecondModel,
    SensePairSplits,
    choose_words,
    late_cues,
    prepare,
    sentences_of,
)
from probe.experiments.measure import measure, measure_gates
from probe.experiments.observe import observe, split_senses
from probe.experiments.options import NounPlan, Options
from probe.experiments.prepare import prepare_pairs
from probe.experiments.readings import read_second
from probe.experiments.record import WordRecord
from probe.experiments.table import EXPERIMENTS
from probe.inference.across import summarise
from probe.inference.nouns import ambiguity_gate
from probe.inference.within import within
from probe.model.architectures import require_single
from probe.model.check import Certificate, certify, not_asked
from probe.model.load import ModelSource, load, untrained
from probe.model.model import Model
from probe.progress import Progress, silent
from probe.provenance import Origin
from probe.results import circuit
from probe.results import frames as tables
from probe.results.findings import WordFindings, findings
from probe.results.second_model import SECOND_MODEL, second_model
from probe.stats.limits import FEWEST_SENTENCES, FEWEST_WORDS, MOST_NOUNS
from probe.studies.cost import StudyCost, cost_of
from probe.studies.words import check_out, job_of, kept_or_made, word_file
from probe.text.sentences import LeftOut, Sentence, as_corpus, join

LEAST = {"seed": 0, "max_pairs": 1}
FEWEST_PERMUTATIONS = 99  # the smallest p is then .01
NOUNS_PER_PAIR = 6  # unambiguous nouns that every pair of sentences is shared out to
MORE_PAIRS = 24  # of sentences, beside the swapped ones, on which the nouns' axes are fitted


@dataclass(frozen=True)
class StudyOptions:
    """What a user may decide about a study: the seed of every random choice, how many pairs, how
    many permutations; `controls`: the unambiguous nouns to compare with, those that ship for None,
    none for ()."""

    seed: int = 0
    max_pairs: int = 24
    permutations: int = 1000
    controls: tuple[str, ...] | None = None


# How much is measured of a word, as far as a user does not decide it.
REPORT = Options(
    seed=StudyOptions.seed,
    pairs=StudyOptions.max_pairs,
    permutations=StudyOptions.permutations,
    gate=True,
    one_of_many=False,
    next_token=True,
    unfitted_donors=False,
    nouns=StudyOptions.controls,
    noun_plan=NounPlan(
        most=MOST_NOUNS,
        per_pair=NOUNS_PER_PAIR,
        more_pairs=MORE_PAIRS,
        fewest_sentences=FEWEST_SENTENCES,
        with_mlps=True,
    ),
    every_head=False,
    experiments=frozenset(EXPERIMENTS),
)


# The same of a word that is one of many.
IN_FULL = replace(REPORT, one_of_many=True)


@dataclass(frozen=True)
class Foreseen:
    """What is known of two senses of a word before anything is swapped.

    gap_p, untrained_p, nuisance_p: see `probe.experiments.prepare.Gates`.
    ambiguity_p: of the comparison with unambiguous nouns, NaN where it is not made.
    not_compared: why not, "" where it is, or where nouns were not asked for.
    """

    word: str
    senses: tuple[str, str]
    gap_p: float
    untrained_p: float
    nuisance_p: float
    ambiguity_p: float = float("nan")
    not_compared: str = ""


@dataclass(frozen=True, eq=False)
class Study(Displayed):
    """Frames of one study, one per question, with what made them; `probe.results.columns`
    describes every column."""

    model_name: str
    origin: Origin
    options: dict[str, object]
    certificate: Certificate
    frames: dict[str, pd.DataFrame]
    data_sha256: str

    @cached_property
    def findings(self) -> dict[str, WordFindings]:
        """What was found for each word, by word: built once, from the frames as they are then."""
        return findings(self.frames)

    def __getattr__(self, name: str) -> pd.DataFrame:
        try:
            return self.__dict__["frames"][name]
        except KeyError:
            names = ", ".join(self.__dict__.get("frames", {}))
            raise AttributeError(f"a study has no {name!r}; its frames are {names}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.frames]

    def __repr__(self) -> str:
        words = ", ".join(map(str, self.options["words"]))  # type: ignore[call-overload]
        hooks = f", {self.origin.hooked}" if self.origin.hooks else ""
        return f"<Study of {words} in {self.model_name}: {len(self.frames)} tables{hooks}>"


def study(
    model: ModelSource,
    words: Sequence[str] | str | None = None,
    *,
    sentences: Any = None,
    seed: int = StudyOptions.seed,
    permutations: int = StudyOptions.permutations,
    max_pairs: int = StudyOptions.max_pairs,
    controls: Sequence[str] | str | None = None,
    second: ModelSource | None = None,
    progress: Progress | None = None,
    planned: Callable[[StudyCost], None] | None = None,
    foreseen: Callable[[list[Foreseen]], None] | None = None,
    out: str | Path | None = None,
    corpus: Any = None,
) -> Study:
    """Effects of swapping every head at each word, with tests, on the sentences that ship or on
    your own. Those that ship are natural ones; of a model that ships, by its name, those of the
    grammar that it learned from.

    `words` defaults to bank, mole and apple, or to every word of `sentences`: what `read_sentences`
    gives or takes (a path, a DataFrame, a list of dicts or of sentences); rows that name no word
    are about the one that is studied. Raises InputError for an unknown word, too few sentences,
    senses or permutations, UnsupportedModel for an encoder-decoder, and CrossCheckError when the
    certificate fails: no number is reported from a model that disagrees. `second` is a model that
    reads both ways, for the lesson's sentences whose cue comes after the word. What it says is the
    frame `beside` (and its option `--beside`), for it stands beside what the studied model says.
    `controls`: one-meaning nouns to put in the word's place, those that ship by default, none for
    (); InputError where none of them can take the place of any word. `planned` is called with the
    cost before the work, and may raise; `foreseen` with what is known of every pair of senses
    before anything is swapped, which takes seconds a word more. `out`: a folder in which finished
    words are kept, so that a study can go on where it was stopped. Of seven words or more, what
    holds in general is concluded as well: the frames of `survey`.

    In a model that was loaded with `hooks="keep"` every swap is a whole forward. Words, heads,
    their verdicts and how many heads are enough are measured so; there is no certificate, no
    comparison with one-meaning nouns, and no frame of what is computed from weights alone:
    `shares`, `head_parts`, `decomposition`, `positions`, `edges` and `paths` are empty.

    Example:
        >>> study = probe.study("tiny-senses", "bank", permutations=99, max_pairs=8)
        >>> len(study.frames["heads"])  # one row a head: 4 layers x 4 heads
        16
    """
    if corpus is not None:
        warn("study(corpus=...) is study(sentences=...) now.", DeprecationWarning, stacklevel=2)
        sentences = corpus
    model = load(model)
    second = load(second) if second else None
    report = progress or silent
    check_out(out, "Studying words")
    _require_can_study(model, permutations, second)
    own = None if sentences is None else as_corpus(sentences, words)
    nouns = as_nouns(controls)
    if model.origin.hooks:
        _require_no_nouns(model, nouns)
        nouns = ()
    options = StudyOptions(seed, max_pairs, permutations, nouns)
    _require_numbers(options)
    chosen = choose_words(words, own)
    measured = replace(
        REPORT,
        seed=seed,
        pairs=max_pairs,
        permutations=permutations,
        nouns=nouns,
        one_of_many=REPORT.one_of_many or len(chosen) >= FEWEST_WORDS,
    )
    sources = {word: sentences_of(word, own, model) for word in chosen}
    materials = [prepare(model, word, source.sentences) for word, source in sources.items()]
    if nouns:
        require_usable(model, materials, nouns)
    causal = model.config.causal
    splits = {
        material.word: split_senses(material, seed=seed, causal=causal) for material in materials
    }
    beside = None if second is None else late_cues(second, materials)
    if planned:
        planned(cost_of(model, materials, splits, measured, beside, own))

    report("certificate", 0.05)
    certificate = _certificate(model, materials)
    if foreseen:
        foreseen(_foresee(model, materials, splits, measured))
    random_model = untrained(model, seed=seed)
    job = job_of(model, measured)
    # Hooks are no part of a key, so nothing of a model with hooks is kept.
    folder = None if out is None or model.origin.hooks else Path(out)
    records: list[WordRecord] = []
    for index, material in enumerate(materials):
        make = partial(
            measure,
            model,
            material,
            splits[material.word],
            measured,
            random_model=random_model,
            report=_within(report, material.word, 0.1 + 0.75 * index / len(materials)),
        )
        rows = sources[material.word].sentences
        file = None if folder is None else word_file(folder, job, rows)
        records.append(kept_or_made(file, make))
    report("tables", 0.9)
    unread: dict[str | None, Sequence[LeftOut]] = {
        word: source.left_out for word, source in sources.items()
    }
    unread[None] = () if own is None else own.left_out
    frames = conclude(records, certificate, unread, permutations=permutations, seed=seed)
    if beside is not None and beside.materials:
        frames["beside"] = _read_second_model(beside, measured)
    used_corpus = join(list(sources.values()))
    used = {"words": list(chosen)} | asdict(options) | {"sentences": used_corpus.source}
    if second is not None:
        used["beside"] = second.name
    return Study(model.name, model.origin, used, certificate, frames, used_corpus.sha256)


def measure_in_full(model: Model, sentences: Sequence[Sentence], options: Options) -> WordRecord:
    """The record of one word as a study measures it.

    Raises InputError for too few sentences or senses.
    """
    material = prepare(model, sentences[0].word, sentences)
    splits = split_senses(material, seed=options.seed, causal=model.config.causal)
    random_model = untrained(model, seed=options.seed)
    return measure(model, material, splits, options, random_model=random_model)


def conclude(
    records: Sequence[WordRecord],
    certificate: Certificate,
    unread: Mapping[str | None, Sequence[LeftOut]],
    *,
    permutations: int,
    seed: int,
) -> dict[str, pd.DataFrame]:
    """All frames that follow from the records of some words.

    unread: see `probe.results.frames.frames`.
    Of FEWEST_WORDS words and more that were measured for it, also what holds in general: the frames
    of a survey.
    """
    evidence = [within(record, permutations=permutations, seed=seed) for record in records]
    frames = tables.frames(evidence, certificate, unread)
    frames |= circuit.frames(evidence, seed=seed)
    frames["beside"] = pd.DataFrame(columns=list(SECOND_MODEL))
    if len(records) >= FEWEST_WORDS:
        frames |= summarise(lambda: iter(records), seed=seed).frames
    return frames


def _certificate(model: Model, materials: Sequence[Material]) -> Certificate:
    """The certificate of a sentence of each word, or an empty one where hooks stay on."""
    if model.origin.hooks:
        return not_asked(model)
    return certify(model, [material.sentences[0].text for material in materials]).require()


def _within(report: Progress, word: str, done: float) -> Progress:
    """Progress within a word."""
    return lambda stage, share: report(word, done)


def _foresee(
    model: Model,
    materials: Sequence[Material],
    splits: Mapping[str, SensePairSplits],
    options: Options,
) -> list[Foreseen]:
    """The gates of every pair of senses of all words, without any swap."""
    random_model = untrained(model, seed=options.seed)
    foreseen = []
    for material in materials:
        foreseen += foresee(model, random_model, material, splits[material.word], options)
    return foreseen


def foresee(
    model: Model,
    random_model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
) -> list[Foreseen]:
    """The gates of every pair of senses of a word, as a study has them, without any swap."""
    gates_only = replace(options, gate=True, experiments=frozenset(("nouns",)))
    record = measure_gates(model, material, splits, gates_only, random_model=random_model)
    compared = ambiguity_gate(record.of_pairs("nouns"), record.depth)
    return [
        Foreseen(
            word=material.word,
            senses=pair.senses,
            gap_p=pair.gates.gap,
            untrained_p=pair.gates.untrained,
            nuisance_p=pair.gates.nuisance,
            ambiguity_p=float("nan") if gate is None else gate.p,
            not_compared="" if gate is None else gate.reason,
        )
        for pair, gate in zip(record.pairs, compared, strict=True)
    ]


def _require_no_nouns(model: Model, nouns: tuple[str, ...] | None) -> None:
    """Raises InputError for one-meaning nouns that are asked for in a model whose hooks stay on."""
    if nouns:
        raise InputError(
            f"Studying words in {model.name}, {model.origin.hooked}: got controls, and nouns in "
            "the word's place are run from the weights alone; leave them out, or study the model "
            "without hooks."
        )


def _require_can_study(model: Model, permutations: int, second: Model | None) -> None:
    """Raises InputError for too few permutations or a second model that does not read beyond a
    word, UnsupportedModel for one with an encoder and a decoder."""
    if second is not None:
        require_single(second.config.architecture, "a study")
        if second.config.causal:
            raise InputError(
                "Reading the sentences whose cue comes after the word beside the study: "
                f"{second.name} reads left to right only, expected a model that reads both ways; "
                "give tiny-senses-bidirectional or another BERT or RoBERTa."
            )
    if whole_number(permutations) is None or permutations < FEWEST_PERMUTATIONS:
        raise InputError(
            f"Studying words: got permutations = {permutations!r}, expected a whole "
            f"number from {FEWEST_PERMUTATIONS} on, so that a p of .01 can be reached; leave it "
            "away for 1,000."
        )
    require_single(model.config.architecture, "a study")


def _require_numbers(options: StudyOptions) -> None:
    """Raises InputError for a seed or a number of pairs that is none."""
    for name, least in LEAST.items():
        usual = getattr(StudyOptions, name)
        require_at_least(least, getattr(options, name), name, doing="Studying words", usual=usual)


def _read_second_model(second: SecondModel, options: Options) -> pd.DataFrame:
    """The sentences with a late cue in the second model, which is certified first."""
    texts = [material.sentences[0].text for material in second.materials]
    certify(second.model, texts).require()
    readings = []
    for material in second.materials:
        seen = observe(second.model, material, seed=options.seed)
        prepared = prepare_pairs(seen, None, options)
        readings += read_second(second.model, seen, prepared)
    return second_model(second.model.name, readings)
