"""The study of ambiguous words: from a model and sentences to frames of numbers with their tests.

`study` chooses the words, says what their sentences are enough for (`probe.studies.plan`),
certifies the model, measures word by word (`probe.experiments.measure`) and returns one tidy frame
per question (`probe.results.frames`). A Study holds these frames, and no tensors.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from probe.display import Displayed
from probe.errors import InputError, require_at_least, whole_number
from probe.experiments.candidates import as_nouns, require_usable
from probe.experiments.material import (
    Material,
    SensePairSplits,
    choose_words,
    prepare,
    sentences_of,
)
from probe.experiments.measure import measure_gates, stage_seconds
from probe.experiments.observe import split_senses
from probe.experiments.options import NounPlan, Options
from probe.experiments.record import WordRecord
from probe.experiments.store import tree_of
from probe.experiments.table import choose, every_experiment
from probe.model.architectures import require_single
from probe.model.check import Certificate, certify
from probe.model.load import ModelSource, load, untrained
from probe.model.model import Model
from probe.progress import Countdown, Progress, part_of, silent
from probe.provenance import Origin
from probe.results import frames as tables
from probe.results.tables import StudyTables
from probe.stats.limits import FEWEST_SENTENCES, FEWEST_WORDS
from probe.studies.across import summarise
from probe.studies.plan import StudyPlan, plan_of, require_memory
from probe.studies.words import WordJob, WordRecords, check_out, job_of, record_name
from probe.text.sentences import Corpus, LeftOut, as_corpus, join

if TYPE_CHECKING:
    import xarray as xr

    from probe.charts.of_study import StudyCharts

DOING = "Cannot study words"  # how error messages begin
SMALLEST_ALLOWED = {"seed": 0, "max_pairs": 1}
FEWEST_PERMUTATIONS = 99  # the smallest p is then .01
NOUNS_PER_PAIR = 6  # unambiguous nouns that replace the word in each pair of sentences
MLPS_PER_PAIR = 3  # of these nouns, with which every MLP is also swapped
MORE_PAIRS = 24  # of sentences, in addition to the swapped ones, on which nouns' axes are fitted
# Progress when the certificate starts, when measuring starts, and when the tables are ready.
CERTIFYING = 0.01
CERTIFIED = 0.02
FINISHED = 0.98
TABLES = "tables"  # the stage after a pass over the words
TABLES_SECONDS = 3.0  # as the experiments say of theirs, and with the page


@dataclass(frozen=True)
class StudyOptions:
    """The options of a study that its results record.

    seed: of every random choice
    max_pairs: the largest number of pairs of sentences for two senses
    permutations: of senses, and of signs, in the tests of heads, MLPs and edges
    controls: the unambiguous nouns to compare with; None for the nouns that ship, () for none

    Raises InputError for a number that is too small.
    """

    seed: int = 0
    max_pairs: int = 24
    permutations: int = 1000
    controls: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        number = whole_number(self.permutations)
        if number is None or number < FEWEST_PERMUTATIONS:
            raise InputError(
                f"{DOING}: got permutations = {self.permutations!r}, expected a whole number from "
                f"{FEWEST_PERMUTATIONS} on, so that p can reach .01. Omit it for the default, "
                "1,000."
            )
        for name, smallest in SMALLEST_ALLOWED.items():
            usual = getattr(StudyOptions, name)
            require_at_least(smallest, getattr(self, name), name, doing=DOING, usual=usual)


# Default options for measuring one word.
STUDY_DEFAULTS = Options(
    seed=StudyOptions.seed,
    pairs=StudyOptions.max_pairs,
    permutations=StudyOptions.permutations,
    gate=True,
    one_of_many=False,
    next_token=True,
    unfitted_donors=False,
    nouns=StudyOptions.controls,
    noun_plan=NounPlan(
        most_nouns=None,
        per_pair=NOUNS_PER_PAIR,
        more_pairs=MORE_PAIRS,
        fewest_sentences=FEWEST_SENTENCES,
        mlps_per_pair=MLPS_PER_PAIR,
    ),
    every_head=False,
    experiments=frozenset(every_experiment()),
)


@dataclass(frozen=True)
class GatePreview:
    """The gates of two senses of a word, measured before any swap.

    gap_p, untrained_p, nuisance_p: see `probe.experiments.prepare.GATES`
    ambiguity_p, nouns: of the comparison with unambiguous nouns, and their number; NaN and 0
        without the comparison
    not_compared: why there is no comparison; "" if there is one, or if none was requested
    """

    word: str
    senses: tuple[str, str]
    gap_p: float
    untrained_p: float
    nuisance_p: float
    ambiguity_p: float = float("nan")
    nouns: int = 0
    not_compared: str = ""


@dataclass(frozen=True, eq=False)
class Study(StudyTables, Displayed):
    """The tables of one study, each an attribute and in `frames`, and their origin.

    `probe.results.columns` describes every column. `charts` draws the tables.

    options: the words and the options of the study
    certificate: of a sentence of each word
    data: by word, all that was measured: a tree with the datasets of each experiment. The variables
        have their meaning and unit as attributes
    files: the names of the files that keep `data`
    unfinished: the experiments that are still to be run; () for a finished study
    """

    model_name: str
    origin: Origin
    options: dict[str, object]
    certificate: Certificate
    frames: dict[str, pd.DataFrame]
    data_sha256: str
    data: "Mapping[str, xr.DataTree]" = field(default_factory=dict)
    files: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def charts(self) -> "StudyCharts":
        """The charts of the tables, by the tables' names: `study.charts.heads("bank")`."""
        # Imported here: altair takes a second, and most studies are never drawn.
        from probe.charts.of_study import StudyCharts

        return StudyCharts(self.frames)

    def __repr__(self) -> str:
        words = ", ".join(map(str, self.options["words"]))  # type: ignore[call-overload]
        return f"<Study of {words} in {self.model_name}: {len(self.frames)} tables>"


@dataclass(frozen=True, eq=False)
class StudyInputs:
    """What a study reads and measures, after all checks and before any work.

    user_corpus: the user's sentences; None for the sentences that ship
    corpora: by word, its sentences
    materials: the sentences of each word in tokens
    splits: by word, how its sentences are held out
    options: the options that the results record
    word_options: how much of each word is measured
    """

    model: Model
    user_corpus: Corpus | None
    corpora: Mapping[str, Corpus]
    materials: Sequence[Material]
    splits: Mapping[str, SensePairSplits]
    options: StudyOptions
    word_options: Options

    @property
    def experiments(self) -> list[str]:
        """The names of the experiments, in the order in which they are run."""
        return [name for name in every_experiment() if name in self.word_options.experiments]

    @cached_property
    def corpus(self) -> Corpus:
        """The sentences of all words."""
        return join(list(self.corpora.values()))

    @property
    def left_out(self) -> dict[str | None, Sequence[LeftOut]]:
        """By word, the sentences that were left out during reading; None for rows without a
        word."""
        left_out: dict[str | None, Sequence[LeftOut]] = {
            word: corpus.left_out for word, corpus in self.corpora.items()
        }
        left_out[None] = () if self.user_corpus is None else self.user_corpus.left_out
        return left_out


def study(
    model: ModelSource,
    words: Sequence[str] | str | None = None,
    *,
    sentences: Any = None,
    seed: int = StudyOptions.seed,
    permutations: int = StudyOptions.permutations,
    max_pairs: int = StudyOptions.max_pairs,
    controls: Sequence[str] | str | None = None,
    experiments: Collection[str] | str | None = None,
    progress: Progress | None = None,
    out: str | Path | None = None,
) -> Study:
    """Return the effects of swapping every head at each word, with tests.

    Each table is an attribute, such as `study.heads`. With seven words or more, the tables of
    `survey` are added.

    model: a model, its name, or a folder or file that holds it
    words: the words to study; by default every word of `sentences`, or bank, mole and apple
    sentences: anything that `read_sentences` takes or returns, such as a path, a DataFrame or a
        list of dicts. A row without a word belongs to the only word that is studied. By default the
        natural sentences that ship; for a model that ships, loaded by its name, those of the
        grammar that it was trained on
    seed: of every random choice
    permutations: how many times senses are reassigned, and signs flipped, in the tests of heads,
        MLPs and edges. The gates and the experiment "qk" have fixed numbers
    max_pairs: the largest number of pairs of sentences that are swapped for two senses
    controls: unambiguous nouns that replace the word; by default the nouns that ship, () for none
    experiments: what to measure in addition to the swap of every head, by the names in
        `probe.experiments.table`, such as ["nouns", "sets"]; by default all. The tables of other
        experiments are absent
    progress: called with a stage's name and the share of the work that is done
    out: a folder in which finished experiments of each word are stored, so that an interrupted
        study can continue

    Raises InputError for an unknown word or experiment, for too few sentences, senses or
    permutations, or if none of the nouns can replace any word; UnsupportedModel for an
    encoder-decoder; CrossCheckError if the certificate fails: no number is reported from a model
    that disagrees with its weights.

    Example:
        >>> study = probe.study("tiny-senses", "bank", permutations=99, max_pairs=8)
        >>> len(study.heads)  # one row per head: 4 layers x 4 heads
        16
        >>> study.data["bank"]["heads/0"].denoise_by_pair.dims
        ('sentence_pair', 'layer', 'head')
    """
    check_out(out, DOING)
    options = StudyOptions(seed, max_pairs, permutations, as_nouns(controls))
    inputs = study_inputs(model, words, sentences, options, experiments)
    [result] = studies(inputs, progress, out=out)
    return result


def study_inputs(
    model: ModelSource,
    words: Sequence[str] | str | None,
    sentences: Any,
    options: StudyOptions,
    experiments: Collection[str] | str | None,
) -> StudyInputs:
    """All that a study reads and measures, checked before any work.

    The arguments and the errors are those of `study`.
    """
    # Checked first, because loading a model may take minutes.
    experiment_names = choose(experiments)
    model = load(model)
    require_single(model.config.architecture, "a study")
    user_corpus = None if sentences is None else as_corpus(sentences, words)
    corpora = {
        word: sentences_of(word, user_corpus, model) for word in choose_words(words, user_corpus)
    }
    materials = [prepare(model, word, corpus.sentences) for word, corpus in corpora.items()]
    # A user's nouns that fit no word are an error now, and not after minutes of work.
    if options.controls:
        require_usable(model, materials, options.controls)
    inputs = StudyInputs(
        model=model,
        user_corpus=user_corpus,
        corpora=corpora,
        materials=materials,
        splits={
            material.word: split_senses(material, seed=options.seed, causal=model.config.causal)
            for material in materials
        },
        options=options,
        word_options=_word_options(options, experiment_names, words=len(materials)),
    )
    require_memory(model, materials)
    return inputs


def plan_study(inputs: StudyInputs) -> StudyPlan:
    """What the sentences of a study are enough for. Nothing is run."""
    return plan_of(
        inputs.model, inputs.materials, inputs.splits, inputs.word_options, inputs.user_corpus
    )


def studies(
    inputs: StudyInputs,
    progress: Progress | None = None,
    *,
    out: str | Path | None = None,
    answer_first: bool = False,
) -> Iterator[Study]:
    """The study; the arguments and the errors are those of `study`.

    answer_first: measure the main experiments first and yield their study (`Study.unfinished` names
        the others), so that its page can be read while the others run. There is no such study if
        they are all that is measured, or if `out` has every record already
    """
    progress = progress or silent
    progress("certificate", CERTIFYING)
    certificate = _certificate(inputs.model, inputs.materials)
    jobs = _word_jobs(inputs, out)
    word_records = WordRecords(inputs.model, jobs, inputs.word_options)
    passes = [inputs.experiments]
    answering = [name for name in inputs.experiments if every_experiment()[name].ANSWERS]
    if (
        answer_first
        and answering != inputs.experiments
        and not word_records.have(inputs.experiments)
    ):
        passes = [answering, inputs.experiments]
    countdown = Countdown(
        part_of(progress, CERTIFIED, FINISHED),
        stage_seconds() | {TABLES: TABLES_SECONDS},
        word_records.planned(passes) + Counter({TABLES: len(passes)}),
    )
    for names in passes:
        records = word_records.measure(names, countdown)
        countdown.begin(TABLES)
        yield _assemble(inputs, certificate, records, names, [job.name for job in jobs])


def _word_options(options: StudyOptions, experiments: frozenset[str], *, words: int) -> Options:
    """How much of each word is measured.

    words: the number of words
    """
    return replace(
        STUDY_DEFAULTS,
        experiments=experiments,
        seed=options.seed,
        pairs=options.max_pairs,
        permutations=options.permutations,
        nouns=options.controls,
        # This option is part of the key in `word_file`. With the seventh word, the words whose
        # records are in `out` are therefore measured again.
        one_of_many=words >= FEWEST_WORDS,
    )


def _certificate(model: Model, materials: Sequence[Material]) -> Certificate:
    """The certificate of a sentence of each word."""
    return certify(model, [material.sentences[0].text for material in materials]).require()


def _word_jobs(inputs: StudyInputs, out: str | Path | None) -> list[WordJob]:
    """The words to measure, with the files for their records in the folder `out`, if any."""
    job = job_of(inputs.model, inputs.word_options)
    return [
        WordJob(
            material,
            inputs.splits[material.word],
            record_name(job, inputs.corpora[material.word].sentences),
            None if out is None else Path(out),
        )
        for material in inputs.materials
    ]


def _assemble(
    inputs: StudyInputs,
    certificate: Certificate,
    records: Sequence[WordRecord],
    experiments: Sequence[str],
    files: Sequence[str],
) -> Study:
    """The study of some records.

    experiments: the experiments that are in the records
    files: the names of the files for the records
    """
    frames = conclude(records, certificate, inputs.left_out, seed=inputs.options.seed)
    return Study(
        model_name=inputs.model.name,
        origin=inputs.model.origin,
        options=_recorded_options(inputs),
        certificate=certificate,
        frames=frames,
        data_sha256=inputs.corpus.sha256,
        data={record.word: tree_of(record) for record in records},
        files=tuple(files),
        unfinished=tuple(name for name in inputs.experiments if name not in experiments),
    )


def _recorded_options(inputs: StudyInputs) -> dict[str, object]:
    """The words and options of a study, as its results record them."""
    options: dict[str, object] = {"words": list(inputs.corpora)}
    options |= asdict(inputs.options)
    options["sentences"] = inputs.corpus.source
    experiments = inputs.word_options.experiments
    if experiments != STUDY_DEFAULTS.experiments:
        options["experiments"] = [name for name in every_experiment() if name in experiments]
    return options


def conclude(
    records: Sequence[WordRecord],
    certificate: Certificate,
    left_out: Mapping[str | None, Sequence[LeftOut]],
    *,
    seed: int,
) -> dict[str, pd.DataFrame]:
    """All frames that follow from the records of some words.

    left_out: by word, the sentences that were left out during reading; None for rows without a word

    The tables of experiments that were not run for any word are absent. With FEWEST_WORDS words or
    more, the frames of a survey are added.
    """
    frames = tables.frames(records, certificate, left_out)
    if len(records) >= FEWEST_WORDS:
        frames |= summarise(lambda: iter(records), seed=seed).frames
    return frames


def preview_gates(inputs: StudyInputs) -> list[GatePreview]:
    """The gates of every pair of senses of all words, as a study has them, without any swap.

    Raises CrossCheckError if the certificate fails.
    """
    model, options = inputs.model, inputs.word_options
    _certificate(model, inputs.materials)
    nouns = options.nouns if "nouns" in options.experiments else ()
    gates_only = replace(options, gate=True, nouns=nouns)
    random_model = untrained(model, seed=options.seed)
    previews = []
    for material in inputs.materials:
        senses, ambiguity_gates = measure_gates(
            model, material, inputs.splits[material.word], gates_only, random_model=random_model
        )
        for each, gate in zip(senses, ambiguity_gates, strict=True):
            preview = GatePreview(
                word=material.word,
                senses=each.sense.senses,
                gap_p=each.gates["gap_p"],
                untrained_p=each.gates["untrained_p"],
                nuisance_p=each.gates["nuisance_p"],
            )
            if gate is not None:
                preview = replace(
                    preview,
                    ambiguity_p=gate["ambiguity_p"],
                    nouns=gate["nouns_compared"],
                    not_compared=gate["not_compared"],
                )
            previews.append(preview)
    return previews
