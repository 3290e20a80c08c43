"""One unit of a sweep, made where its key is sent: the axes of a word, or the shard of a block.

A worker gets a folder, a model and a key, and answers with the unit's receipt; rows and numbers stay in the folder. Each process
loads the model once, and runs torch in one thread: what two threads would add up in another order, every worker adds up alike.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from probe.errors import ModelError
from probe.model.load import load
from probe.model.model import Model
from probe.provenance import content_key
from probe.sweep import shards
from probe.sweep.deal import Options, Record, read_rows, require_index, usable_senses
from probe.sweep.fit import WordAxes, fit_word, from_file, to_bytes
from probe.sweep.measure import measure
from probe.sweep.shards import Receipt


@dataclass(frozen=True)
class Job:
    """What all units of a sweep share: where it is written, the model and its weights, and the options."""

    folder: str
    model: str
    weights_sha256: str
    options: Options

    @property
    def place(self) -> Path:
        return Path(self.folder)


@dataclass(frozen=True)
class Unit:
    """One key of a pass; `of` is the word that is fitted, or the key of the block that is measured."""

    key: str
    kind: str
    of: str
    rows: int


FIT_UNIT, SHARD = "axes", "shard"


def units(set_key: str, index: Record) -> tuple[list[Unit], list[Unit]]:
    """The units of both passes. A shard is named by the set, the rows of its block, and the rows that its words are fitted on."""
    words = index["words"]
    usable = {word: usable_senses(about) for word, about in words.items()}
    fits = [
        Unit(content_key(FIT_UNIT, set_key, word, about["key"]), FIT_UNIT, word, about["rows"])
        for word, about in words.items()
        if len(usable[word]) > 1
    ]
    blocks = [
        Unit(
            content_key(SHARD, set_key, block["key"], [words[word]["key"] for word in block["words"]]),
            SHARD,
            block["key"],
            block["rows"],
        )
        for block in index["blocks"]
    ]
    return fits, blocks


def make(job: Job, unit: Unit) -> Receipt:
    """The receipt of a unit, made unless it is done and whole."""
    made = shards.done(job.place, unit.key)
    if made is not None:
        return made | {"kept": True}
    with one_thread():
        return _fit(job, unit) if unit.kind == FIT_UNIT else _shard(job, unit)


def _fit(job: Job, unit: Unit) -> Receipt:
    index = _index(job.folder)
    about = index["words"][unit.of]
    records = read_rows(job.place, about["key"], index["files"][f"{shards.ROWS}/{about['key']}.parquet"])
    axes = fit_word(the_model(job), records, usable_senses(about), seed=job.options.seed)
    content = b"" if axes is None else to_bytes(axes)
    facts = {"rows": len(records), "usable": axes is not None}
    return shards.finish(job.place, unit.key, {f"{shards.AXES}/{unit.key}.safetensors": content}, facts)


def _shard(job: Job, unit: Unit) -> Receipt:
    index = _index(job.folder)
    block = next(block for block in index["blocks"] if block["key"] == unit.of)
    records = read_rows(job.place, block["key"], index["files"][f"{shards.ROWS}/{block['key']}.parquet"])
    fits = {fit.of: fit.key for fit in _fits(job.folder)}
    axes = {word: _axes(job.folder, fits[word]) if word in fits else None for word in block["words"]}
    fitted = {
        (word, sense): draw for word in block["words"] for sense, (_, draw) in index["words"][word]["fit"].items()
    }
    sentences, heads = measure(the_model(job), records, axes, fitted)
    counts: dict[str, int] = {}
    for part, reason in zip(sentences["part"].to_pylist(), sentences["reason"].to_pylist(), strict=True):
        counts[f"{part or 'none'}\t{reason or ''}"] = counts.get(f"{part or 'none'}\t{reason or ''}", 0) + 1
    files = {
        f"{shards.HEADS}/{unit.key}.parquet": shards.parquet(heads),
        f"{shards.SENTENCES}/{unit.key}.parquet": shards.parquet(sentences),
    }
    return shards.finish(job.place, unit.key, files, {"rows": len(records), "heads": heads.num_rows, "counts": counts})


@lru_cache(maxsize=4)
def _index(folder: str) -> Record:
    return require_index(Path(folder))


@lru_cache(maxsize=4)
def _fits(folder: str) -> list[Unit]:
    return units(Path(folder).name.removeprefix(SET), _index(folder))[0]


SET = "set-"


@lru_cache(maxsize=16)
def _axes(folder: str, key: str) -> WordAxes | None:
    """The axes of a word, once the bytes are those of its receipt; None where it has none."""
    receipt = shards.done(Path(folder), key)
    if receipt is None:
        raise shards.damaged(Path(folder, shards.AXES, f"{key}.safetensors"), "it is missing or damaged")
    return from_file(os.fspath(Path(folder, shards.AXES, f"{key}.safetensors"))) if receipt["usable"] else None


def the_model(job: Job) -> Model:
    """The model of the job, loaded once in this process; raises ModelError where its weights are not those of the sweep."""
    model = _loaded(job.model)
    if model.origin.sha256 != job.weights_sha256:
        raise ModelError(
            f"Loading {job.model} for the sweep: its weights are not those that the sweep was started with; give every worker the "
            "same model, or start another sweep."
        )
    return model


@lru_cache(maxsize=1)
def _loaded(name: str) -> Model:
    return load(name)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch in one thread for a while, in this process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def clear() -> None:
    """Forget what was cached of folders, so that another sweep in this process reads its own."""
    for cached in (_index, _fits, _axes):
        cached.cache_clear()
