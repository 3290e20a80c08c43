"""The survey of many words: from sentences to tables about words in general.

One task measures each word and stores it as one file (`probe.studies.words`). The tables are
computed from the files. The sentences of all words are in memory at once, their records one at a
time.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd
import xarray as xr

from probe.display import Displayed
from probe.errors import InputError, require_at_least
from probe.experiments.candidates import as_nouns
from probe.experiments.material import prepare, sentences_of
from probe.experiments.measure import count_left_out, measure
from probe.experiments.observe import split_senses
from probe.experiments.record import WordRecord
from probe.experiments.store import is_whole, read_record, read_tree, write_record, write_tree
from probe.model.architectures import require_single
from probe.model.check import DEFAULT_TEXTS, Certificate, certify
from probe.model.load import ModelSource, load, untrained
from probe.model.model import Model, require_heads
from probe.model.tokens import tokenize
from probe.patching.sets import HeadIndex
from probe.progress import Progress, part_of, silent
from probe.provenance import Origin
from probe.results.tables import SurveyTables
from probe.studies.across import Summary, sets_frames, summarise
from probe.studies.study import STUDY_DEFAULTS, Study, StudyOptions, conclude
from probe.studies.survey_word import (
    SURVEY,
    WordPlan,
    choose_sentences,
    measure_sets,
    measure_word,
    plan_word,
)
from probe.studies.words import (
    WORDS,
    Job,
    check_out,
    job_of,
    keep_loaded,
    model_of,
    record_name,
    remove_unfinished,
    sets_file,
    stored_record,
)
from probe.studies.workers import RunTasks, running
from probe.text import lexicon
from probe.text.sentences import Corpus, Sentence, as_corpus, join

if TYPE_CHECKING:
    from probe.charts.of_study import StudyCharts

DOING = "Cannot survey words"  # how error messages begin
# What a survey with a page for each word measures of a word.
SURVEY_WITH_PAGES = replace(STUDY_DEFAULTS, one_of_many=True)
CERTIFIED_WORDS = 3  # words with a sentence in the certificate
# Progress when the certificate starts, when measuring starts, and when the tables start.
CERTIFYING = 0.02
CERTIFIED = 0.05
MEASURED = 0.85
NO_ENGLISH = (
    "The unambiguous nouns that ship are English, and most of the sentences are not. The words "
    "were not compared with nouns. Name nouns of the sentences' language to compare with them."
)
NO_NOUN = (
    "None of the nouns could replace any word. A noun needs as many tokens as the word, in "
    "sentences that use the word as a noun in its dictionary form."
)


@dataclass(frozen=True, eq=False)
class Survey(SurveyTables, Displayed):
    """The tables of a survey, each an attribute and in `frames`, and their origin.

    `probe.results.columns` describes every column. `charts` draws the tables.

    source: the name of the sentences
    depth: the depth at which words are read
    cautions: cautions about the measurement, as sentences
    files: the records of the words
    """

    model_name: str
    origin: Origin
    options: dict[str, object]
    certificate: Certificate
    source: str
    data_sha256: str
    depth: int
    frames: dict[str, pd.DataFrame]
    cautions: tuple[str, ...]
    files: tuple[Path, ...]
    temporary: object = None  # a temporary folder of the files, removed with the survey

    @property
    def charts(self) -> "StudyCharts":
        """The charts of the tables, by the tables' names: `survey.charts.survey_heads()`."""
        # Imported here: altair takes a second, and most surveys are never drawn.
        from probe.charts.of_study import StudyCharts

        return StudyCharts(self.frames)

    def records(self) -> Iterator[WordRecord]:
        """The record of every word, one in memory at a time."""
        return map(read_record, self.files)

    def studies(self) -> Iterator[Study]:
        """The study of every word that was measured in full, one in memory at a time."""
        options = StudyOptions(**self.options)  # type: ignore[arg-type]
        for record in self.records():
            if not record.in_full:
                continue
            frames = conclude([record], self.certificate, {}, seed=options.seed)
            yield Study(
                model_name=self.model_name,
                origin=self.origin,
                options={"words": [record.word]} | asdict(options) | {"sentences": self.source},
                certificate=self.certificate,
                frames=frames,
                data_sha256=self.data_sha256,
            )

    def to_json(self) -> str:
        """The frames as lists of rows, with the model, the options and the cautions."""
        frames = {
            name: json.loads(frame.to_json(orient="records")) for name, frame in self.frames.items()
        }
        about = {"model": self.model_name, "options": self.options, "said": self.cautions}
        return json.dumps(about | frames)

    def __repr__(self) -> str:
        return f"<Survey of {self.source} in {self.model_name}: {len(self.frames)} tables>"


def survey(
    model: ModelSource,
    *,
    sentences: Any = None,
    out: str | Path | None = None,
    controls: Sequence[str] | str | None = None,
    seed: int = 0,
    workers: int | None = None,
    scheduler: str | None = None,
    pages: bool = False,
    progress: Progress | None = None,
) -> Survey:
    """Return which heads move the meaning of words in general: effects over many words, each word
    one unit, with the effects on unambiguous nouns in the same sentences.

    sentences: anything that `read_sentences` takes or returns, or several files; by default the
        words that ship. Two sentences for each sense are enough for a word
    out: a folder in which finished words are stored, so that an interrupted survey can continue
    controls: unambiguous nouns that replace the word; by default the nouns that ship, () for none
    seed: of every random choice
    workers: how many of Dask's workers on this machine measure words; by default none, and words
        are measured one after the other
    scheduler: the address of a running Dask scheduler, whose workers load the model by its name
    pages: measure every word with enough sentences as a study does, for a page about it
    progress: called with a stage's name and the share of the work that is done

    Raises InputError if fewer than two words can be measured, UnsupportedModel for an
    encoder-decoder, and CrossCheckError if the certificate fails.

    Example:
        >>> words = [probe.lexicon.expand(word) for word in ("bank", "bark", "bat")]
        >>> sentences = [row for corpus in words for row in corpus.sentences[:96]]
        >>> survey = probe.survey("tiny-senses", sentences=sentences, controls=())
        >>> len(survey.frames["survey_words"])
        3
    """
    progress = progress or silent
    require_at_least(0, seed, "seed", doing=DOING, usual=0)
    if workers is not None:
        require_at_least(1, workers, "workers", doing=DOING, usual="one after the other")
    check_out(out, DOING)
    name = model if isinstance(model, str) else ""
    if scheduler and not name:
        raise InputError(
            f"{DOING} with the workers of {scheduler}: the model was given as an object, expected "
            "a name or a folder that every worker can load. Give the name as the model."
        )
    model = load(model)
    require_surveyable(model, "a survey")
    corpus = corpus_for(model, sentences)
    by_word = corpus.by_word()
    nouns = _nouns(corpus, controls)
    progress("certificate", CERTIFYING)
    certificate = certify(model, _texts_to_certify(model, by_word)).require()
    options = replace(SURVEY_WITH_PAGES if pages else SURVEY, nouns=nouns, seed=seed)
    job = job_of(model, options, name)
    keep_loaded(job, model)
    # Records are files even without a folder: one is in memory at a time.
    temporary = TemporaryDirectory() if out is None else None
    folder = Path(temporary.name if temporary else out or "")
    by_file = {folder / WORDS / record_name(job, rows): rows for rows in by_word.values()}
    with running(workers, scheduler) as run:
        _measure_words(
            run,
            job,
            by_file,
            part_of(progress, CERTIFIED, MEASURED),
            report_within_words=workers is None and scheduler is None,
        )
        progress("summary", MEASURED)
        summary = summarise(partial(map, read_record, by_file), seed=seed)
        sets = _measure_sets(run, job, by_file, summary)
    remove_unfinished(by_file)
    frames = summary.frames | sets_frames(sets, seed=seed)
    frames["survey_left_out"] = _left_out(corpus, map(read_record, by_file))
    return Survey(
        model_name=model.name,
        origin=model.origin,
        options={"seed": seed, "controls": None if nouns is None else list(nouns)},
        certificate=certificate,
        source=corpus.source,
        data_sha256=corpus.sha256,
        depth=summary.depth,
        frames=frames,
        cautions=_cautions(controls, nouns, frames["survey_words"]),
        files=tuple(by_file),
        temporary=temporary,
    )


def _cautions(
    controls: Sequence[str] | str | None, nouns: tuple[str, ...] | None, words: pd.DataFrame
) -> tuple[str, ...]:
    """Cautions about the comparison with nouns.

    controls: the nouns that the user names
    nouns: the nouns of the survey; None for those that ship
    words: the frame `survey_words`
    """
    if controls is None and nouns == ():
        return (NO_ENGLISH,)
    if nouns != () and not words["nouns"].any():
        return (NO_NOUN,)
    return ()


@dataclass(frozen=True)
class SurveyPlan:
    """What a survey would measure.

    unread: the number of sentences left out during reading, by reason
    """

    model_name: str
    words: tuple[WordPlan, ...]
    unread: Mapping[str, int]

    def to_json(self) -> str:
        """The plan as JSON."""
        plan = asdict(self) | {"model": self.model_name}
        del plan["model_name"]
        return json.dumps(plan)


def plan_survey(
    model: ModelSource,
    sentences: Any = None,
    *,
    controls: Sequence[str] | str | None = None,
    seed: int = 0,
    pages: bool = False,
) -> SurveyPlan:
    """What `survey` would measure of these sentences, with the same arguments.

    Nothing is run.

    Example:
        >>> from probe.studies.survey import plan_survey
        >>> plan = plan_survey("tiny-senses", probe.lexicon.expand("bank"), controls=())
        >>> [(word.word, word.pairs) for word in plan.words]
        [('bank', 8)]
    """
    model = load(model)
    require_surveyable(model, "a survey")
    corpus = corpus_for(model, sentences)
    nouns = _nouns(corpus, controls)
    options = replace(SURVEY_WITH_PAGES if pages else SURVEY, nouns=nouns, seed=seed)
    chosen = [choose_sentences(model, rows, seed) for rows in corpus.by_word().values()]
    words = tuple(plan_word(each, options) for each in chosen)
    unread = Counter(item.reason for item in corpus.left_out)
    return SurveyPlan(model.name, words, dict(unread))


def require_surveyable(model: Model, doing: str) -> None:
    """Raises InputError or UnsupportedModel unless the model is one stack with heads in every
    layer.

    doing: what the caller does, for messages
    """
    require_single(model.config.architecture, doing)
    require_heads(model.config, doing, "study its words one by one, with report or study")


def corpus_for(model: Model, sentences: Any) -> Corpus:
    """The user's sentences, or without any those that ship and suit the model."""
    if sentences is not None:
        return as_corpus(sentences)
    words = lexicon.words() if model.origin.kind == "embedded" else lexicon.natural_words()
    return join([sentences_of(word, None, model) for word in words])


def _nouns(corpus: Corpus, controls: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """The unambiguous nouns that may replace the words. None means the nouns that ship, which only
    suit English sentences; () means none."""
    nouns = as_nouns(controls)
    if nouns is None and not lexicon.is_english([row.text for row in corpus.sentences]):
        return ()
    return nouns


def _texts_to_certify(model: Model, by_word: Mapping[str, Sequence[Sentence]]) -> Sequence[str]:
    """A text of each of the first words that the model can read; DEFAULT_TEXTS if it can read
    none."""
    texts: list[str] = []
    for rows in by_word.values():
        for row in rows:
            with suppress(InputError):
                tokenize(model, row.text)
                texts.append(row.text)
                break
        if len(texts) == CERTIFIED_WORDS:
            break
    return texts or DEFAULT_TEXTS


# --- tasks ----------------------------------------------------------------------------------------
# A task returns a record and the file to write it to, because tasks end in any order.


def _word_task(
    job: Job,
    file: Path,
    sentences: Sequence[Sentence],
    unfinished: WordRecord | None,
    progress: Progress = silent,
) -> tuple[Path, WordRecord]:
    """The record of a word: with all that its page needs, if the survey has pages and there are
    enough sentences for one.

    unfinished: the record that an interrupted report left of the word
    """
    model = model_of(job)
    options = job.options
    if options.experiments != SURVEY.experiments:
        try:
            material = prepare(model, sentences[0].word, sentences)
            splits = split_senses(material, seed=options.seed, causal=model.config.causal)
        except InputError:  # too few sentences or senses for a page
            options = replace(SURVEY, nouns=options.nouns, seed=options.seed)
        else:
            random_model = untrained(model, seed=options.seed)
            return file, measure(
                model,
                material,
                splits,
                options,
                random_model=random_model,
                earlier=unfinished,
                report=progress,
            )
    return file, measure_word(model, sentences, options, progress)


def _sets_task(
    job: Job, file: Path, sentences: Sequence[Sentence], order: Sequence[HeadIndex], depth: int
) -> "tuple[Path, xr.Dataset]":
    """The effect of sets of heads on a word.

    order: the top heads of all other words
    depth: the read-out layer
    """
    return file, measure_sets(model_of(job), sentences, order, depth=depth, seed=job.options.seed)


def _measure_words(
    run: RunTasks,
    job: Job,
    by_file: Mapping[Path, Sequence[Sentence]],
    progress: Progress,
    *,
    report_within_words: bool,
) -> None:
    """Write the records that are missing or unfinished.

    by_file: the sentences of each word, by the file for its record
    report_within_words: whether progress is also reported within a word; only possible in this
        process
    """
    tasks = []
    for file, sentences in by_file.items():
        record = stored_record(file)
        # A record that is not in full has too few sentences for a page: nothing can be added.
        if record is None or (record.in_full and not record.has(job.options.experiments)):
            tasks.append((job, file, sentences, record))
    finished = len(by_file) - len(tasks)

    def within_word(_stage: str, share: float) -> None:
        progress("words", (finished + share) / len(by_file))

    task = partial(_word_task, progress=within_word) if report_within_words else _word_task
    for file, record in run(task, tasks):
        write_record(file, record)
        finished += 1
        progress("words", finished / len(by_file))


def _measure_sets(
    run: RunTasks,
    job: Job,
    by_file: Mapping[Path, Sequence[Sentence]],
    summary: Summary,
) -> "list[xr.Dataset]":
    """The effect of the top heads of all other words, for every word with a clear gap.

    by_file: the sentences of each word, by the file of its record
    """
    files = []
    tasks = []
    for record_file, sentences in by_file.items():
        # The order of heads comes from all other words; a word without a clear gap has none.
        order = summary.left_out_orders.get(sentences[0].word)
        if order is None:
            continue
        file = sets_file(record_file, summary.depth, order)
        files.append(file)
        if not is_whole(file):
            tasks.append((job, file, sentences, order, summary.depth))
    for file, sets in run(_sets_task, tasks):
        write_tree(file, xr.DataTree(sets))
    return [read_tree(file).to_dataset() for file in files]


def _left_out(corpus: Corpus, records: Iterator[WordRecord]) -> pd.DataFrame:
    """How many sentences or pairs of each word were not used, by reason. Sentences that are left
    out while a file is read have no word."""
    unread = Counter(item.reason for item in corpus.left_out)
    rows: list[tuple[str | None, str, int]] = [(None, *item) for item in unread.items()]
    for record in records:
        rows += [(record.word, *item) for item in count_left_out(record).items()]
    return pd.DataFrame(rows, columns=["word", "reason", "count"])
