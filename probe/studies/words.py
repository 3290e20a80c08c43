"""Words that are measured one by one, and kept as files once they are finished.

    <folder>/words/bank-KEY.word        what was measured of one word
    <folder>/words/bank-KEY-KEY.sets    what the leading heads of all other words do for it

A key stands for the weights, the options, the sentences of the word and the version of probe, so a
survey finds what a report with the same ones has measured. A file is whole or absent, and nothing
else is known of what was done: a study or a survey that was killed measures what is missing.
"""

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import probe
from probe.errors import InputError, ModelError
from probe.experiments.options import Options
from probe.experiments.store import read_record, write_record
from probe.model.load import load
from probe.model.model import Model
from probe.provenance import content_key
from probe.text.sentences import Sentence

WORDS = "words"  # the folder of the records
LONGEST_NAME = 40  # characters of a word in the name of its file


@dataclass(frozen=True)
class Job:
    """What is the same for all words of a study or a survey.

    model: the name by which a worker can load the model.
    weights_sha256, device, dtype: of the model.
    tokens: whether texts get a BOS, and whether special tokens in them are text.
    options: how much is measured of a word.
    """

    model: str
    weights_sha256: str
    device: str
    dtype: str
    tokens: tuple[bool, bool]
    options: Options


def check_out(out: object, doing: str) -> None:
    """Raises InputError for a folder that is none."""
    if out is not None and not isinstance(out, str | os.PathLike):
        raise InputError(
            f"{doing}: got out = {out!r}, expected the folder that finished words are kept in; "
            'give one such as "out", or leave it out.'
        )


# The model of this process, by what a job says of it; workers that are threads find it here.
_loaded: dict[tuple[object, ...], Model] = {}
_loading = Lock()


def job_of(model: Model, options: Options, name: str = "") -> Job:
    """The job of a model that this process has already.

    name: by which workers in other processes can load it.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    tokens = model.config.prepend_bos, model.config.split_special_tokens
    job = Job(name, model.origin.sha256, str(model.device), dtype, tokens, options)
    with _loading:
        _loaded.clear()
        _loaded[_which(job)] = model
    return job


def model_of(job: Job) -> Model:
    """The model of a job, loaded once in a process.

    Raises ModelError where its weights are not those that the job was started with.
    """
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


def _which(job: Job) -> tuple[object, ...]:
    return job.weights_sha256, job.device, job.dtype, job.tokens


def word_file(folder: Path, job: Job, sentences: Sequence[Sentence]) -> Path:
    """The file that the record of a word is kept in."""
    options = asdict(job.options) | {"experiments": sorted(job.options.experiments)}
    rows = [
        {name: value for name, value in asdict(row).items() if name != "where"} for row in sentences
    ]
    key = content_key(
        probe.__version__, job.weights_sha256, job.device, job.dtype, job.tokens, options, rows
    )
    return folder / WORDS / f"{file_name(sentences[0].word)}-{key}.word"


def file_name(word: str) -> str:
    """A word as part of the name of a file."""
    return re.sub(r"[^\w-]", "_", word)[:LONGEST_NAME]


def sets_file(word: Path, *parts: Any) -> Path:
    """The file beside the record of a word that a set of heads is kept in."""
    return word.with_name(f"{word.stem}-{content_key(*parts)}.sets")


def kept(path: Path | None) -> Any:
    """The record in a file; None where there is none, or a damaged one."""
    if path is None:
        return None
    try:
        return read_record(path)
    except InputError:
        return None


def kept_or_made(path: Path | None, make: Callable[[], Any]) -> Any:
    """The record in a file; where there is none it is made, and kept."""
    record = kept(path)
    if record is None:
        record = make()
        if path is not None:
            write_record(path, record)
    return record


def remove_unfinished(files: Collection[Path]) -> None:
    """Removes what a killed run left of these files."""
    for folder in {file.parent for file in files}:
        for part in folder.glob(".*.part"):
            if folder / part.name[1:].rsplit(".", 2)[0] in files:
                part.unlink(missing_ok=True)
