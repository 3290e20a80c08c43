"""The survey of many words: from sentences to tables about words in general.

One task measures each word and stores it as one file (`probe.studies.words`). The tables are
computed from the files. The sentences of all words are in memory at once, their records one at a
time.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from probe.display import Displayed
from probe.errors import InputError, require_at_least
from probe.experiments.candidates import as_nouns
from probe.experiments.material import prepare, sentences_of
from probe.experiments.measure import count_left_out, measure
from probe.experiments.observe import split_senses
from probe.experiments.options import Options
from probe.experiments.plan import Work
from probe.experiments.record import WordRecord
from probe.experiments.sets import CarriedSets
from probe.experiments.store import read_record, write_record
from probe.inference.across import Summary, sets_frames, summarise
from probe.model.architectures import require_single
from probe.model.check import DEFAULT_TEXTS, Certificate, certify
from probe.model.load import ModelSource, load, untrained
from probe.model.model import Model, require_heads
from probe.model.tokens import tokenize
from probe.progress import Progress, silent
from probe.provenance import Origin
from probe.renamed import renamed
from probe.results.tables import SurveyTables
from probe.studies.cost import seconds_of
from probe.studies.study import STUDY_DEFAULTS, Study, StudyOptions, conclude
from probe.studies.survey_word import SURVEY, WordPlan, measure_sets, measure_word, plan_word
from probe.studies.words import (
    Job,
    check_out,
    job_of,
    model_of,
    remove_unfinished,
    sets_file,
    stored_record,
    word_file,
)
from probe.studies.workers import LOCAL, Run, Workers, running
from probe.text import lexicon
from probe.text.sentences import Corpus, Sentence, as_corpus, join

if TYPE_CHECKING:
    from probe.charts.of_study import StudyCharts

DOING = "Cannot survey words"  # how error messages begin
# What a survey with a page for each word measures of a word.
SURVEY_WITH_PAGES = replace(STUDY_DEFAULTS, one_of_many=True)
CERTIFIED_WORDS = 3  # words with a sentence in the certificate
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
        decided = StudyOptions(**self.options)  # type: ignore[arg-type]
        for record in self.records():
            if not record.in_full:
                continue
            frames = conclude([record], self.certificate, {}, seed=decided.seed)
            yield Study(
                model_name=self.model_name,
                origin=self.origin,
                options={"words": [record.word]} | asdict(decided) | {"sentences": self.source},
                certificate=self.certificate,
                frames=frames,
                data_sha256=self.data_sha256,
            )

    def to_json(self) -> str:
        """The frames as lists of rows, with the model, the options and the cautions."""
        frames = {
            name: json.loads(frame.to_json(orient="records")) for name, frame in self.frames.items()
        }
        origin = {"model": self.model_name, "options": self.options, "said": self.cautions}
        return json.dumps(origin | frames)

    def __repr__(self) -> str:
        return f"<Survey of {self.source} in {self.model_name}: {len(self.frames)} tables>"


@renamed(positions={1: "sentences"})
def survey(
    model: ModelSource,
    *,
    sentences: Any = None,
    out: str | Path | None = None,
    controls: Sequence[str] | str | None = None,
    seed: int = 0,
    workers: Workers | None = None,
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
    workers: where words are measured: by default in this process, or by Dask
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
    report = progress or silent
    workers = workers or Workers()
    _require_options(out, workers, seed)
    # Workers in other processes load the model by its name.
    name = workers.model or (model if isinstance(model, str) else None)
    model, corpus = model_and_corpus(model, sentences, "a survey")
    by_word = corpus.by_word()
    cautions = []
    nouns = _nouns(corpus, controls)
    if controls is None and nouns == ():
        cautions.append(NO_ENGLISH)
    report("certificate", 0.02)
    certificate = certify(model, _readable(model, by_word) or DEFAULT_TEXTS).require()
    if name is None and workers.scheduler is not None:
        raise InputError(_no_name(model, workers))
    options = replace(SURVEY_WITH_PAGES if pages else SURVEY, nouns=nouns, seed=seed)
    job = job_of(model, options, name or "")
    # Records are files even without a folder: one is in memory at a time.
    temporary = TemporaryDirectory() if out is None else None
    folder = Path(temporary.name if temporary else out or "")
    files = {word_file(folder, job, rows): rows for rows in by_word.values()}
    records = partial(map, read_record, files)
    with running(workers) as run:
        _measure_words(
            run,
            job,
            files,
            lambda share: report("words", min(0.85, 0.05 + 0.8 * share)),
            report_within_words=workers.engine == LOCAL,
        )
        report("summary", 0.85)
        summary = summarise(records, seed=seed)
        sets = _measure_sets(run, job, files, summary)
    remove_unfinished(files)
    frames = summary.frames | sets_frames(sets, seed=seed)
    frames["survey_left_out"] = _left_out(corpus, records())
    if nouns != () and not frames["survey_words"]["nouns"].any():
        cautions.append(NO_NOUN)
    return Survey(
        model_name=model.name,
        origin=model.origin,
        options={"seed": seed, "controls": None if nouns is None else list(nouns)},
        certificate=certificate,
        source=corpus.source,
        data_sha256=corpus.sha256,
        depth=summary.depth,
        frames=frames,
        cautions=tuple(cautions),
        files=tuple(files),
        temporary=temporary,
    )


def _no_name(model: Model, workers: Workers) -> str:
    return (
        f"Cannot survey {model.name} with the workers of {workers.scheduler}: the model was given "
        "as an object, expected a name or a folder that every worker can load. Give the name as "
        "the model, or as the model of the workers."
    )


def _require_options(out: object, workers: object, seed: object) -> None:
    """Raises InputError for an invalid folder, seed or workers."""
    require_at_least(0, seed, "seed", doing=DOING, usual=0)
    check_out(out, DOING)
    if not isinstance(workers, Workers):
        raise InputError(
            f"{DOING}: got workers = {workers!r}, expected Workers of probe.studies.workers. Give "
            'Workers("dask", number=2), say, or omit it to measure in this process.'
        )


@dataclass(frozen=True)
class SurveyPlan:
    """What a survey would measure, and how long it would take.

    unread: the number of sentences left out during reading, by reason
    seconds: about how much processor time it takes in one thread; NaN if no word can be measured
    """

    model_name: str
    words: tuple[WordPlan, ...]
    unread: Mapping[str, int]
    seconds: float

    def to_json(self) -> str:
        """The plan as JSON; `seconds` is null if no word can be measured."""
        plan = asdict(self) | {"model": self.model_name}
        del plan["model_name"]
        if math.isnan(self.seconds):
            plan["seconds"] = None
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

    A few forward passes and swaps are run to estimate the time: less than a tenth of the work.

    Example:
        >>> from probe.studies.survey import plan_survey
        >>> plan = plan_survey("tiny-senses", probe.lexicon.expand("bank"), controls=())
        >>> [(word.word, word.pairs) for word in plan.words]
        [('bank', 8)]
    """
    model, corpus = model_and_corpus(model, sentences, "a survey")
    by_word = corpus.by_word()
    options = replace(
        SURVEY_WITH_PAGES if pages else SURVEY, nouns=_nouns(corpus, controls), seed=seed
    )
    plans = [plan_word(model, rows, options) for rows in by_word.values()]
    words = tuple(word for word, _ in plans)
    work = Work(sum(word.forwards for word in words), sum(word.swaps for word in words))
    seconds = math.nan
    if measured := [material for word, material in plans if word.pairs]:
        longest = max(measured, key=len)
        seconds = seconds_of(model, longest, work, threads=1)
    unread = Counter(item.reason for item in corpus.left_out)
    return SurveyPlan(model.name, words, dict(unread), seconds)


def model_and_corpus(model: ModelSource, sentences: Any, doing: str) -> tuple[Model, Corpus]:
    """The loaded model, and the sentences, or without any those that ship and suit the model.

    doing: what the caller does, for messages

    Raises InputError or UnsupportedModel unless the model is one stack with heads in every layer.
    """
    model = load(model)
    require_single(model.config.architecture, doing)
    require_heads(model.config, doing, "study its words one by one, with report or study")
    if sentences is not None:
        return model, as_corpus(sentences)
    words = lexicon.words() if model.origin.kind == "embedded" else lexicon.natural_words()
    return model, join([sentences_of(word, None, model) for word in words])


def _nouns(corpus: Corpus, controls: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """The unambiguous nouns that may replace the words. None means the nouns that ship, which only
    suit English sentences; () means none."""
    nouns = as_nouns(controls)
    if nouns is None and not lexicon.is_english([row.text for row in corpus.sentences]):
        return ()
    return nouns


def _readable(model: Model, by_word: Mapping[str, Sequence[Sentence]]) -> list[str]:
    """A text of each of the first words that the model can read, for the certificate."""
    texts: list[str] = []
    for rows in by_word.values():
        for row in rows:
            with suppress(InputError):
                tokenize(model, row.text)
                texts.append(row.text)
                break
        if len(texts) == CERTIFIED_WORDS:
            break
    return texts


# --- tasks ----------------------------------------------------------------------------------------


def _word_task(
    job: Job,
    file: Path,
    sentences: Sequence[Sentence],
    stored: WordRecord | None,
    report: Progress = silent,
) -> tuple[Path, WordRecord]:
    return file, _measure(model_of(job), sentences, job.options, stored, report)


def _measure(
    model: Model,
    sentences: Sequence[Sentence],
    options: Options,
    stored: WordRecord | None,
    report: Progress,
) -> WordRecord:
    """The record of a word. A word with too few sentences for a page is measured without one.

    stored: the record that an interrupted report left of the word
    """
    if options.experiments == SURVEY.experiments:
        return measure_word(model, sentences, options, report)
    try:
        material = prepare(model, sentences[0].word, sentences)
        splits = split_senses(material, seed=options.seed, causal=model.config.causal)
    except InputError:  # too few sentences or senses for a page
        fewer = replace(SURVEY, nouns=options.nouns, seed=options.seed)
        return measure_word(model, sentences, fewer, report)
    random_model = untrained(model, seed=options.seed)
    return measure(
        model,
        material,
        splits,
        options,
        random_model=random_model,
        earlier=stored,
        report=report,
    )


def _sets_task(
    job: Job, file: Path, sentences: Sequence[Sentence], order: Any, depth: int
) -> tuple[Path, CarriedSets]:
    return file, measure_sets(model_of(job), sentences, order, depth=depth, seed=job.options.seed)


def _measure_words(
    run: Run,
    job: Job,
    files: Mapping[Path, Sequence[Sentence]],
    report: Callable[[float], None],
    *,
    report_within_words: bool,
) -> None:
    """Write the records that are missing or unfinished.

    report_within_words: whether progress is also reported within a word; only possible in this
        process
    """
    tasks = []
    for file, rows in files.items():
        record = stored_record(file)
        # A record that is not in full has too few sentences for a page: nothing can be added.
        if record is None or (record.in_full and not record.has(job.options.experiments)):
            tasks.append((job, file, rows, record))
    finished = len(files) - len(tasks)

    def of_word(name: str, share: float) -> None:
        report((finished + share) / len(files))

    task = partial(_word_task, report=of_word) if report_within_words else _word_task
    for file, record in run(task, tasks):
        write_record(file, record)
        finished += 1
        report(finished / len(files))


def _measure_sets(
    run: Run,
    job: Job,
    files: Mapping[Path, Sequence[Sentence]],
    summary: Summary,
) -> list[CarriedSets]:
    """The effect of the top heads of all other words, for every word with a clear gap."""
    sets = []
    tasks = []
    for word, rows in files.items():
        # The order of heads comes from all other words; a word without a clear gap has none.
        order = summary.left_out_orders.get(rows[0].word)
        if order is None:
            continue
        sets.append(sets_file(word, summary.depth, order))
        if stored_record(sets[-1]) is None:
            tasks.append((job, sets[-1], rows, order, summary.depth))
    for file, record in run(_sets_task, tasks):
        write_record(file, record)
    return [read_record(file) for file in sets]


def _left_out(corpus: Corpus, measured: Iterator[WordRecord]) -> pd.DataFrame:
    """How many sentences or pairs of each word were not used, by reason. Sentences that are left
    out while a file is read have no word."""
    unread = Counter(item.reason for item in corpus.left_out)
    rows: list[tuple[str | None, str, int]] = [(None, *item) for item in unread.items()]
    for record in measured:
        rows += [(record.word, *item) for item in count_left_out(record).items()]
    return pd.DataFrame(rows, columns=["word", "reason", "count"])
