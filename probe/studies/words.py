"""The records of single words, kept as files.

    <folder>/words/bank-KEY.word        the record of one word
    <folder>/words/bank-KEY-KEY.sets    the effect of the top heads of all other words on it

The key is a hash of the model (weights, config, tokenizer, dtype, device and versions), the options
and the sentences of the word. A survey therefore finds the record that a report with the same
options has written. The key does not depend on the experiments: a record lists its experiments. A
file is complete or absent, and no other state is stored: after an interruption a study or a survey
measures what is missing.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from probe.claims.heads import named
from probe.errors import InputError, ModelError
from probe.experiments import heads
from probe.experiments.material import Material, SensePairSplits
from probe.experiments.measure import READING, proceed, start, unfinished
from probe.experiments.options import Options
from probe.experiments.record import WordRecord
from probe.experiments.run import LEADERS, WordRun
from probe.experiments.store import read_record, write_record
from probe.experiments.table import every_experiment
from probe.model.load import load, untrained
from probe.model.model import Model
from probe.patching.sets import HeadIndex
from probe.progress import Begin, Countdown
from probe.provenance import content_key
from probe.results import frames as tables
from probe.text.sentences import Sentence

WORDS = "words"  # the folder of the records
LONGEST_NAME = 40  # characters of a word in the name of its file


@dataclass(frozen=True)
class Job:
    """The settings that all words of a study or a survey share.

    model: the name by which a worker can load the model
    model_key: a hash of everything in the model that a number depends on
    device, dtype: of the model
    prepend_bos: whether texts get a BOS
    split_special_tokens: whether special tokens in a text are read as plain text
    options: how much of each word is measured
    """

    model: str
    model_key: str
    device: str
    dtype: str
    prepend_bos: bool
    split_special_tokens: bool
    options: Options


def check_out(out: object, doing: str) -> None:
    """Raises InputError unless `out` is a path or None."""
    if out is not None and not isinstance(out, str | os.PathLike):
        raise InputError(
            f"{doing}: got out = {out!r}, expected the folder for finished words. Give one such "
            'as "out", or omit it.'
        )


# The model of this process, by the key in its job, so that workers that are threads share it.
_loaded: dict[str, Model] = {}
_loading = Lock()


def job_of(model: Model, options: Options, name: str = "") -> Job:
    """The job of a model.

    name: the name by which workers in other processes can load it
    """
    return Job(
        model=name,
        model_key=model.key_with_tokenizer,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        prepend_bos=model.config.prepend_bos,
        split_special_tokens=model.config.split_special_tokens,
        options=options,
    )


def keep_loaded(job: Job, model: Model) -> None:
    """Let `model_of` return this model, which is already loaded, in this process."""
    with _loading:
        _loaded.clear()
        _loaded[job.model_key] = model


def model_of(job: Job) -> Model:
    """The model of a job, loaded once in a process.

    Raises ModelError if it differs from the model at the start of the job.
    """
    with _loading:
        model = _loaded.get(job.model_key)
        if model is None:
            model = load(
                job.model,
                device=job.device,
                dtype=job.dtype,
                prepend_bos=job.prepend_bos,
                split_special_tokens=job.split_special_tokens,
            )
            if model.key_with_tokenizer != job.model_key:
                raise ModelError(
                    f"Cannot load {job.model} for the survey: its weights, config, tokenizer or "
                    "libraries differ from those that the survey was started with. Give every "
                    "worker the same model and versions, or start another survey."
                )
            _loaded.clear()
            _loaded[job.model_key] = model
        return model


def record_name(job: Job, sentences: Sequence[Sentence]) -> str:
    """The name of the file for the record of a word.

    sentences: all sentences of the word
    """
    options = asdict(job.options)
    del options["experiments"]  # a record lists its experiments
    # `where` is the place of a sentence in its file, which changes no measurement.
    rows = [
        {name: value for name, value in asdict(row).items() if name != "where"} for row in sentences
    ]
    key = content_key(job.model_key, options, rows)
    return f"{file_name(sentences[0].word)}-{key}.word"


def file_name(word: str) -> str:
    """A word as part of the name of a file."""
    return re.sub(r"[^\w-]", "_", word)[:LONGEST_NAME]


def sets_file(record_file: Path, depth: int, order: Sequence[HeadIndex]) -> Path:
    """The file for the effect of sets of heads on a word, next to the word's record.

    depth: the read-out layer
    order: the heads, strongest first
    """
    return record_file.with_name(f"{record_file.stem}-{content_key(depth, order)}.sets")


def stored_record(file: Path | None) -> Any:
    """The record in a file; None without a file, or for a damaged one."""
    if file is None:
        return None
    try:
        return read_record(file)
    except InputError:
        return None


def remove_unfinished(files: Collection[Path]) -> None:
    """Remove the parts of these files that an interrupted run left."""
    for folder in {file.parent for file in files}:
        # `write_atomically` names them .NAME.HEX.part; others may belong to a running survey.
        for part in folder.glob(".*.part"):
            if folder / part.name[1:].rsplit(".", 2)[0] in files:
                part.unlink(missing_ok=True)


@dataclass(frozen=True)
class WordJob:
    """One word to measure.

    splits: how the sentences of every two senses are held out
    name: of the file for its record
    folder: of this file; None to store nothing
    """

    material: Material
    splits: SensePairSplits
    name: str
    folder: Path | None

    @property
    def file(self) -> Path | None:
        """The file for its record; None to store nothing."""
        return None if self.folder is None else self.folder / WORDS / self.name


class WordRecords:
    """The records of some words, which grow experiment by experiment.

    Experiments in a stored record are not repeated. The states of one word are in memory at a time.
    """

    def __init__(self, model: Model, words: Sequence[WordJob], options: Options) -> None:
        self.model = model
        self.words = words
        self.options = options
        self.records: list[WordRecord | None] = [stored_record(word.file) for word in words]
        self._run: WordRun | None = None

    def have(self, experiments: Collection[str]) -> bool:
        """Whether every word has these experiments already."""
        return all(record is not None and record.has(experiments) for record in self.records)

    def planned(self, passes: Sequence[Collection[str]]) -> Counter[str]:
        """How often each stage of the work is still to be run.

        passes: over all words, each with the experiments that a word has afterwards
        """
        stages: Counter[str] = Counter()
        for record in self.records:
            earlier: set[str] = set()
            for experiments in passes:
                missing = unfinished(experiments, record) - earlier
                earlier |= missing
                stages.update({*missing, READING} if missing else ())
        # Only the states of one word are in memory. The others are read again.
        if stages[READING] > len(self.words):
            stages[READING] -= 1
        return stages

    def measure(self, experiments: Collection[str], countdown: Countdown) -> list[WordRecord]:
        """The record of every word with these experiments and no others.

        The word whose states are in memory comes first.
        """
        records: dict[int, WordRecord] = {}
        in_memory = self._run and self._run.observation.material
        for number, word in sorted(
            enumerate(self.words), key=lambda each: each[1].material is not in_memory
        ):
            record = self.records[number]
            if record is None or not record.has(experiments):
                begin = partial(countdown.begin, name=word.material.word)
                record = self._measure(word, record, experiments, begin)
                self.records[number] = record
            records[number] = record.only(experiments)
        return [records[number] for number in range(len(self.words))]

    def _measure(
        self,
        word: WordJob,
        record: WordRecord | None,
        experiments: Collection[str],
        begin: Begin,
    ) -> WordRecord:
        """The record of a word after these experiments.

        record: an earlier record of the word, to continue
        begin: called with the name of each stage when it begins
        """
        if self._run is None or self._run.observation.material is not word.material:
            self._run = None  # frees the states of one word before the next word is read
            self._run = start(
                self.model,
                word.material,
                word.splits,
                self.options,
                random_model=untrained(self.model, seed=self.options.seed),
                earlier=record,
                begin=begin,
            )
        keep = None if word.file is None else partial(write_record, word.file)
        answering = [name for name in experiments if every_experiment()[name].ANSWERS]
        record = proceed(self._run, answering, keep=keep, begin=begin)
        # The other experiments examine the heads that the page names, which verdicts decide.
        if not record.has(experiments):
            self._run.top_heads = named_heads(record) or self._run.top_heads
        return proceed(self._run, experiments, keep=keep, begin=begin)


def named_heads(record: WordRecord) -> list[HeadIndex]:
    """The heads of a word that its page names. Empty if no head has a verdict."""
    word_heads = heads.TABLES["word_heads"]
    rows = named(tables.of_experiment(word_heads, [(record, record.measured["heads"])]), LEADERS)
    return [
        (int(layer), int(head)) for layer, head in zip(rows["layer"], rows["head"], strict=True)
    ]
