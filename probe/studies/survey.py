"""A survey from sentences to tables: every word measured by one task and kept as one file, the
tables made from the files.

    <out>/words-KEY/000017.word        what one word says (`probe.experiments.record.WordRecord`)
    <out>/words-KEY/000017-KEY.sets    what the leading heads of all other words do for it

KEY is of the weights, the options, the sentences and the version of probe. A file is whole or
absent, and that is all that is known of what was done: a survey that was killed makes what is
missing. Of the words' sentences all are held, of their records one at a time.
"""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import thread_time
from typing import Any

import pandas as pd
import torch

import probe
from probe.display import Displayed
from probe.errors import InputError, ModelError, require_at_least
from probe.experiments.candidates import as_nouns
from probe.experiments.material import sentences_of
from probe.experiments.measure import count_left_out
from probe.experiments.options import Options
from probe.experiments.record import WordRecord
from probe.experiments.sets import CarriedSets
from probe.experiments.store import is_whole, read_record, write_record
from probe.inference.across import Summary, sets_frames, summarise
from probe.model.architectures import require_single
from probe.model.check import DEFAULT_TEXTS, Certificate, certify
from probe.model.load import ModelSource, load
from probe.model.model import Model, require_heads
from probe.model.tokens import tokenize
from probe.progress import Progress, silent
from probe.provenance import Origin, content_key
from probe.stats.numbers import counted
from probe.studies.survey_word import SURVEY, WordPlan, measure_sets, measure_word, plan_word
from probe.studies.workers import Run, Workers, in_one_thread, running
from probe.text import lexicon
from probe.text.sentences import Corpus, Sentence, as_corpus, join

WITH_COMMA = re.compile(r"[-+]?\d+,\d+")  # a number as much of the world writes it
CERTIFIED_WORDS = 3  # a sentence of each of the first ones stands in the certificate
NO_ENGLISH = (
    "The nouns of one meaning that ship are English, and most of the sentences are not, so no noun "
    "was put in the words' place; name nouns of their language to compare with any."
)
NO_NOUN = (
    "None of the nouns could take the place of any word: a noun has as many tokens as the word, "
    "whose sentences have it as a noun in its dictionary form."
)


@dataclass(frozen=True, eq=False)
class Survey(Displayed):
    """What a model does with many words: `frames` by name (`probe.results.columns` describes every
    column), and what made them.

    `depth`: where words are read · `source`: the name of the sentences · `said`: what a reader has
    to know of how this was measured, as sentences · `folder`: of the words' records.
    """

    model_name: str
    origin: Origin
    options: dict[str, object]
    certificate: Certificate
    source: str
    data_sha256: str
    depth: int
    frames: dict[str, pd.DataFrame]
    said: tuple[str, ...]
    folder: Path
    kept: object = None  # holds a folder that goes with the survey

    def records(self) -> Iterator[WordRecord]:
        """The record of every word, one in memory at a time."""
        return records(self.folder)

    def to_json(self) -> str:
        """The frames as lists of rows, with the model, what made them and what has to be said."""
        frames = {
            name: json.loads(frame.to_json(orient="records")) for name, frame in self.frames.items()
        }
        made = {"model": self.model_name, "options": self.options, "said": self.said}
        return json.dumps(made | frames)

    def __repr__(self) -> str:
        return f"<Survey of {self.source} in {self.model_name}: {len(self.frames)} tables>"


@dataclass(frozen=True)
class _Job:
    """What all tasks of a survey share: the model by name, its weights, whether texts get a BOS
    and whether special tokens in them are text, and the options."""

    model: str
    weights_sha256: str
    device: str
    dtype: str
    tokens: tuple[bool, bool]
    measured: Options


def survey(
    model: ModelSource,
    sentences: Any = None,
    *,
    out: str | Path | None = None,
    controls: Sequence[str] | str | None = None,
    seed: int = 0,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Which heads move the senses of words in general: effects over many words, each of them one
    unit, with what one-meaning nouns in their places take as well.

    `sentences`: what `read_sentences` gives or takes, or several files; two sentences a sense are
    enough for a word; by default the words that ship · `out`: a folder in which finished words are
    kept, so that a survey can go on where it was stopped · `controls`: one-meaning nouns, those
    that ship for None, none for () · `workers`: this process, or those of Dask. Raises InputError
    where fewer than two words can be measured, UnsupportedModel for an encoder-decoder and
    CrossCheckError when the certificate fails.

    Example:
        >>> words = [probe.lexicon.expand(word) for word in ("bank", "bark", "bat")]
        >>> sentences = [row for corpus in words for row in corpus.sentences[:96]]
        >>> survey = probe.survey("tiny-senses", sentences, controls=())
        >>> len(survey.frames["survey_words"])
        3
    """
    report = progress or silent
    workers = workers or Workers()
    _require_options(out, workers, seed)
    name = workers.model or (model if isinstance(model, str) else None)
    model, corpus = _model_and_corpus(model, sentences)
    by_word = corpus.by_word()
    said = columns_in_doubt(by_word)
    nouns = _nouns(corpus, controls)
    if controls is None and nouns == ():
        said.append(NO_ENGLISH)
    report("certificate", 0.02)
    certificate = certify(model, _readable(model, by_word) or DEFAULT_TEXTS).require()
    job = _job(model, name, workers, replace(SURVEY, nouns=nouns, seed=seed))
    key = _key(job, corpus)
    kept = TemporaryDirectory() if out is None else None
    folder = Path(kept.name if kept else out or "") / f"words-{key}"
    with running(workers) as run:
        _measure_words(run, job, by_word, folder, lambda share: report("words", 0.05 + 0.8 * share))
        report("summary", 0.85)
        summary = summarise(lambda: records(folder), seed=seed)
        measured = _measure_sets(run, job, by_word, folder, summary)
    for unfinished in folder.glob(".*.part"):
        unfinished.unlink(missing_ok=True)
    frames = summary.frames | sets_frames(measured, seed=seed)
    frames["survey_left_out"] = _left_out(corpus, records(folder))
    if nouns != () and not frames["survey_words"]["nouns"].any():
        said.append(NO_NOUN)
    return Survey(
        model_name=model.name,
        origin=model.origin,
        options={"seed": seed, "controls": None if nouns is None else list(nouns)},
        certificate=certificate,
        source=corpus.source,
        data_sha256=corpus.sha256,
        depth=summary.depth,
        frames=frames,
        said=tuple(said),
        folder=folder,
        kept=kept,
    )


def columns_in_doubt(by_word: Mapping[str, Sequence[Sentence]]) -> list[str]:
    """Which of the file's further columns seem to hold slips: those that say one thing of most
    words and several of a few, and numbers that are not written as such."""
    values: dict[str, dict[str, set[object]]] = {}
    for word, rows in by_word.items():
        for sentence in rows:
            for name, value in sentence.more:
                values.setdefault(name, {}).setdefault(word, set()).add(value)
    sentences = []
    for name, of_words in values.items():
        several = {word: found for word, found in of_words.items() if len(found) > 1}
        if several and 2 * len(several) < len(of_words):
            word, found = next(iter(several.items()))
            written = " and ".join(sorted(map(str, found)))
            sentences.append(
                f"The column {name} says {written} of “{word}”, so it counts as empty there"
                f"{_and_more(several)}; give all sentences of a word the same."
            )
        texts = [str(value) for found in of_words.values() for value in found if value != ""]
        numbers = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").notna()
        others = [text for text, is_number in zip(texts, numbers, strict=True) if not is_number]
        amounts = sum(numbers) + sum(bool(WITH_COMMA.fullmatch(text)) for text in others)
        if others and 2 * amounts > len(texts):
            sentences.append(
                f"In the column {name} {len(others)} of {counted(len(texts), 'value')} are no "
                f"numbers, such as {others[0]}, so gaps are not compared with it; write 5.1, not "
                "5,1, and leave empty what is not known."
            )
    return sentences


def _and_more(words: Mapping[str, object]) -> str:
    return f" (and of {counted(len(words) - 1, 'other')})" if len(words) > 1 else ""


def _require_options(out: object, workers: object, seed: object) -> None:
    """Raises InputError for a folder, workers or a seed that are none."""
    require_at_least(0, seed, "seed", doing="Surveying words", usual=0)
    if out is not None and not isinstance(out, str | os.PathLike):
        raise InputError(
            f"Surveying words: got out = {out!r}, expected the folder that finished words are kept "
            'in; give one such as "out", or leave it away.'
        )
    if not isinstance(workers, Workers):
        raise InputError(
            f"Surveying words: got workers = {workers!r}, expected Workers of "
            'probe.studies.workers; give Workers("dask", number=2), say, or leave it away to '
            "measure in this process."
        )


@dataclass(frozen=True)
class SurveyPlan:
    """What a survey would measure: its words, how many sentences were left out while they were read
    (`unread`, by reason), and about how long it takes in one thread (`seconds` of
    processor time; NaN where no word can be measured)."""

    model_name: str
    words: tuple[WordPlan, ...]
    unread: Mapping[str, int]
    seconds: float

    def to_json(self) -> str:
        """All of it; `seconds` is null where no word can be measured."""
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
) -> SurveyPlan:
    """What `survey` would measure of these sentences; one word in the middle by its number of
    pairs is measured for the time.

    Example:
        >>> from probe.studies.survey import plan_survey
        >>> plan = plan_survey("tiny-senses", probe.lexicon.expand("bank"), controls=())
        >>> [(word.word, word.pairs) for word in plan.words]
        [('bank', 8)]
    """
    model, corpus = _model_and_corpus(model, sentences)
    by_word = corpus.by_word()
    plans = [plan_word(model, rows, seed=seed) for rows in by_word.values()]
    measured = sorted((plan for plan in plans if plan.pairs), key=lambda plan: plan.pairs)
    seconds = math.nan
    if measured:
        middle = by_word[measured[len(measured) // 2].word]
        seconds = len(measured) * _seconds(model, middle, _nouns(corpus, controls), seed)
    unread = Counter(item.reason for item in corpus.left_out)
    return SurveyPlan(model.name, tuple(plans), dict(unread), seconds)


def _seconds(
    model: Model, sentences: Sequence[Sentence], nouns: tuple[str, ...] | None, seed: int
) -> float:
    """Processor time that one word takes: its record, and sets of heads halfway up in it."""
    layers = max(1, model.config.n_layers // 2)
    order = [(layer, 0) for layer in range(layers)]
    threads = torch.get_num_threads()
    started = thread_time()
    try:
        in_one_thread(measure_word, model, sentences, replace(SURVEY, nouns=nouns, seed=seed))
        in_one_thread(partial(measure_sets, depth=layers, seed=seed), model, sentences, order)
    finally:
        torch.set_num_threads(threads)
    return thread_time() - started


def _model_and_corpus(model: ModelSource, sentences: Any) -> tuple[Model, Corpus]:
    """The model, which can be surveyed, and the sentences given, or those that ship and suit it."""
    model = load(model)
    require_single(model.config.architecture, "a survey")
    require_heads(model.config, "a survey", "study its words one by one, with report or study")
    if sentences is not None:
        return model, as_corpus(sentences)
    words = lexicon.words() if model.origin.kind == "embedded" else lexicon.natural_words()
    return model, join([sentences_of(word, None, model) for word in words])


def _nouns(corpus: Corpus, controls: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """The nouns of one meaning that may take the words' place, as in `survey`: those that ship
    (None) only where the sentences are English."""
    nouns = as_nouns(controls)
    if nouns is None and not lexicon.is_english([row.text for row in corpus.sentences]):
        return ()
    return nouns


def _readable(model: Model, by_word: Mapping[str, Sequence[Sentence]]) -> list[str]:
    """A text of each of the first words that the model can read; others are counted later."""
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

# The model of this process by what a job says of it; workers that are threads find it here.
_loaded: dict[tuple[object, ...], Model] = {}
_loading = Lock()


def _job(model: Model, name: str | None, workers: Workers, measured: Options) -> _Job:
    """The job, whose model this process has already. Raises InputError where workers of other
    processes could not load it by a name."""
    if name is None and workers.scheduler is not None:
        raise InputError(
            f"Surveying {model.name} with the workers of {workers.scheduler}: the model was given "
            "as an object, expected a name or a folder that every worker can load; give that as "
            "the model, or as the model of the workers."
        )
    dtype = str(model.dtype).removeprefix("torch.")
    tokens = model.config.prepend_bos, model.config.split_special_tokens
    job = _Job(name or "", model.origin.sha256, str(model.device), dtype, tokens, measured)
    with _loading:
        _loaded.clear()
        _loaded[_which(job)] = model
    return job


def _which(job: _Job) -> tuple[object, ...]:
    return job.weights_sha256, job.device, job.dtype, job.tokens


def _model(job: _Job) -> Model:
    """The model of a job, loaded once in a process. Raises ModelError where its weights are not
    those of the survey."""
    with _loading:
        model = _loaded.get(_which(job))
        if model is None:
            prepend_bos, split = job.tokens
            model = load(
                job.model,
                device=job.device,
                dtype=job.dtype,
                prepend_bos=prepend_bos,
                split_special_tokens=split,
            )
            if model.origin.sha256 != job.weights_sha256:
                raise ModelError(
                    f"Loading {job.model} for the survey: its weights are not those that the "
                    "survey was started with; give every worker the same model, or start another "
                    "survey."
                )
            _loaded.clear()
            _loaded[_which(job)] = model
        return model


def _word_task(job: _Job, file: str, sentences: Sequence[Sentence]) -> tuple[str, WordRecord]:
    return file, measure_word(_model(job), sentences, job.measured)


def _sets_task(
    job: _Job, file: str, sentences: Sequence[Sentence], order: Any, depth: int
) -> tuple[str, CarriedSets]:
    return file, measure_sets(_model(job), sentences, order, depth=depth, seed=job.measured.seed)


def _key(job: _Job, corpus: Corpus) -> str:
    options = [job.measured.nouns, job.measured.seed, job.device, job.dtype, *job.tokens]
    return content_key(job.weights_sha256, probe.__version__, options, corpus.sha256)


def _measure_words(
    run: Run,
    job: _Job,
    by_word: Mapping[str, Sequence[Sentence]],
    folder: Path,
    report: Callable[[float], None],
) -> None:
    """Makes the records that are not there, or not whole."""
    files = {f"{number:06}.word": rows for number, rows in enumerate(by_word.values())}
    missing = {file: rows for file, rows in files.items() if not is_whole(folder / file)}
    done = len(files) - len(missing)
    for file, record in run(_word_task, [(job, *item) for item in missing.items()]):
        write_record(folder / file, record)
        done += 1
        report(done / len(files))


def _measure_sets(
    run: Run,
    job: _Job,
    by_word: Mapping[str, Sequence[Sentence]],
    folder: Path,
    summary: Summary,
) -> list[CarriedSets]:
    """What the leading heads of all other words do for every word with a clear gap."""
    number = {word: index for index, word in enumerate(by_word)}
    files = []
    tasks = []
    for word, order in summary.left_out_orders.items():
        file = f"{number[word]:06}-{content_key(summary.depth, order)}.sets"
        files.append(folder / file)
        if not is_whole(folder / file):
            tasks.append((job, file, by_word[word], order, summary.depth))
    for file, record in run(_sets_task, tasks):
        write_record(folder / file, record)
    return [read_record(file) for file in files]


def _left_out(corpus: Corpus, measured: Iterator[WordRecord]) -> pd.DataFrame:
    """How many sentences or pairs of each word were not used, by reason; those of a file that are
    left out while it is read have no word."""
    unread = Counter(item.reason for item in corpus.left_out)
    rows: list[tuple[str | None, str, int]] = [(None, *item) for item in unread.items()]
    for record in measured:
        rows += [(record.word, *item) for item in count_left_out(record).items()]
    return pd.DataFrame(rows, columns=["word", "reason", "count"])


def records(folder: Path) -> Iterator[WordRecord]:
    """The records of a folder, one in memory at a time, in the order of the words' sentences."""
    for path in sorted(Path(folder).glob("*.word")):
        yield read_record(path)
