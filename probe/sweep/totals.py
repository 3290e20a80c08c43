"""Sums over shards: what the frames of a page need of any number of sentences, in memory that does not grow with them.

One accumulator per word and pair of senses. Effects are summed by unit, a cue word (a sentence where no cue is given) or, where
there are more than UNITS of them per sense, a set of cue words with the same hash: that is what is resampled and what changes its
sign. Distributions are kept as histograms, so that quantiles are known to BIN and AUROCs to a few thousandths.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from numpy.typing import NDArray

from probe.statistics import Array
from probe.sweep import shards
from probe.sweep.parts import hash_of

UNITS = 256
BIN, REACH = 0.01, 8.0
BINS = round(2 * REACH / BIN) + 1
SCORE_BINS, SCORE_REACH = 401, 4.0
EFFECTS = ("swap", "same_sense")
MEANS = ("attention_cue", "attention_previous", "norm", "axis")


@dataclass(eq=False)
class Totals:
    """Sums of one pair of senses, `side` 0 for the sentences of its first sense, 1 for its second.

    `count gap coordinate: side unit` · `effects: kind side unit head`, kinds as in EFFECTS · `squares: head`, of swap - same_sense ·
    `sums counted: kind head`, kinds as in MEANS · `along: side stage` of coordinates toward the first sense, `places: side stage bin` their histograms · `scores: side
    head bin` of own scores toward it. Heads are numbered layer by layer.
    """

    depth: int
    count: Array
    gap: Array
    coordinate: Array
    effects: Array
    squares: Array
    sums: Array
    counted: Array
    along: Array
    places: NDArray[np.int64]
    scores: NDArray[np.int64]
    negative_gaps: int = 0


Key = tuple[str, str, str]


@dataclass(eq=False)
class Summed:
    """Everything a page is made of: totals by word and pair of senses, parts by word and sense, reasons by word."""

    layers: int
    heads: int
    totals: dict[Key, Totals] = field(default_factory=dict)
    parts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    reasons: dict[tuple[str, str], int] = field(default_factory=dict)


def add_up(folder: Path, manifest: Mapping[str, Any]) -> Summed:
    """The totals of a finished set of shards, each compared with its checksum. Raises InputError for a damaged or missing one."""
    found = Summed(manifest["layers"], manifest["heads"])
    for sentences, heads in _tables(folder, manifest["shards"]):
        _count(found, sentences)
        _add_sentences(found, sentences, heads)
    return found


def _tables(folder: Path, keys: list[str]) -> Iterator[tuple[pyarrow.Table, pyarrow.Table]]:
    for key in keys:
        receipt = shards.read_receipt(folder, key)
        if receipt is None:
            raise shards.damaged(folder / shards.RECEIPTS / f"{key}.json", "it is missing or damaged")
        names = [f"{kind}/{key}.parquet" for kind in (shards.SENTENCES, shards.HEADS)]
        if set(names) != set(receipt["files"]):
            raise shards.damaged(folder / shards.RECEIPTS / f"{key}.json", "it is not the receipt of a shard")
        contents = [shards.read_whole(folder, name, receipt["files"][name]) for name in names]
        sentences, heads = (pyarrow.parquet.read_table(pyarrow.BufferReader(content)) for content in contents)
        yield sentences, heads


def _count(found: Summed, sentences: pyarrow.Table) -> None:
    columns = (sentences[name].to_pylist() for name in ("word", "sense", "part", "reason"))
    for word, sense, part, reason in zip(*columns, strict=True):
        found.parts[(word, sense, part or "none")] = found.parts.get((word, sense, part or "none"), 0) + 1
        if reason:
            found.reasons[(word, reason)] = found.reasons.get((word, reason), 0) + 1


def _add_sentences(found: Summed, sentences: pyarrow.Table, heads: pyarrow.Table) -> None:
    """Add the measured sentences of a shard to the totals of their pairs."""
    measured = sentences.filter(pyarrow.compute.equal(sentences["part"], "report"))
    each = found.layers * found.heads
    order = {number: row for row, number in enumerate(heads["sentence"].to_numpy()[::each].tolist())}
    rows = np.array([order[number] for number in measured["sentence"].to_pylist()], dtype=int)
    by_head = {name: heads[name].to_numpy().reshape(-1, each)[rows].astype(float) for name in (*MEANS, *EFFECTS, "own")}
    groups: dict[Key, list[tuple[int, int]]] = {}
    words, senses, others = (measured[name].to_pylist() for name in ("word", "sense", "other"))
    for row, (word, sense, other) in enumerate(zip(words, senses, others, strict=True)):
        a, b = sorted((sense, other))
        groups.setdefault((word, a, b), []).append((row, int(sense == b)))
    units = _units(measured)
    stages = [name for name in measured.column_names if name.startswith("coordinate_")]
    coordinates = np.stack([measured[name].to_numpy() for name in stages], axis=1) if groups else np.empty((0, 0))
    gaps, depths = (measured[name].to_numpy() for name in ("gap", "depth"))
    for key, members in groups.items():
        at, side = (np.array(part) for part in zip(*members, strict=True))
        total = found.totals.get(key)
        if total is None:
            total = found.totals[key] = _empty(int(depths[at[0]]), each, len(stages))
        _add(total, side, units[at], {name: values[at] for name, values in by_head.items()})
        _add_places(total, side, units[at], (coordinates[at], gaps[at]))


def _units(measured: pyarrow.Table) -> NDArray[np.int64]:
    cues, numbers = measured["cue"].to_pylist(), measured["sentence"].to_pylist()
    names = [f"sentence {number}" if cue is None else f"cue {cue}" for cue, number in zip(cues, numbers, strict=True)]
    return np.array([hash_of(name) % UNITS for name in names], dtype=np.int64)


def _empty(depth: int, heads: int, stages: int) -> Totals:
    return Totals(
        depth=depth,
        count=np.zeros((2, UNITS)),
        gap=np.zeros((2, UNITS)),
        coordinate=np.zeros((2, UNITS)),
        effects=np.zeros((len(EFFECTS), 2, UNITS, heads)),
        squares=np.zeros(heads),
        sums=np.zeros((len(MEANS), heads)),
        counted=np.zeros((len(MEANS), heads)),
        along=np.zeros((2, stages)),
        places=np.zeros((2, stages, BINS), dtype=np.int64),
        scores=np.zeros((2, heads, SCORE_BINS), dtype=np.int64),
    )


def _add(total: Totals, side: NDArray[np.int64], unit: NDArray[np.int64], values: Mapping[str, Array]) -> None:
    """Add rows of effects, means and scores. `row head` each"""
    for kind, name in enumerate(EFFECTS):
        np.add.at(total.effects[kind], (side, unit), values[name])
    total.squares += ((values["swap"] - values["same_sense"]) ** 2).sum(0)
    for kind, name in enumerate(MEANS):
        total.sums[kind] += np.nansum(values[name], axis=0)
        total.counted[kind] += np.isfinite(values[name]).sum(0)
    toward_a = np.where(side[:, None] == 0, values["own"], -values["own"])
    bins = _bin(toward_a, SCORE_REACH, SCORE_BINS)
    np.add.at(total.scores, (side[:, None], np.arange(bins.shape[1])[None], bins), 1)


def _add_places(total: Totals, side: NDArray[np.int64], unit: NDArray[np.int64], values: tuple[Array, Array]) -> None:
    """Add rows of coordinates, `row stage`, and gaps, `row`."""
    coordinates, gaps = values
    np.add.at(total.count, (side, unit), 1)
    np.add.at(total.gap, (side, unit), gaps)
    toward_a = np.where(side[:, None] == 0, coordinates, -coordinates)
    np.add.at(total.coordinate, (side, unit), toward_a[:, total.depth + 1])
    np.add.at(total.along, side, toward_a)
    bins = _bin(toward_a, REACH, BINS)
    np.add.at(total.places, (side[:, None], np.arange(bins.shape[1])[None], bins), 1)
    total.negative_gaps += int((gaps <= 0).sum())


def _bin(values: Array, reach: float, bins: int) -> NDArray[np.int64]:
    """The bin whose middle is nearest, 0 in the middle of one; what lies beyond the reach goes into the last on its side."""
    return np.clip(np.rint((values + reach) / (2 * reach) * (bins - 1)), 0, bins - 1).astype(np.int64)


def quantile(histogram: NDArray[np.int64], share: float) -> float:
    """The value that a share of the histogram lies below, to BIN."""
    return int(np.searchsorted(np.cumsum(histogram), share * histogram.sum())) * BIN - REACH


def auroc(a: NDArray[np.int64], b: NDArray[np.int64]) -> Array:
    """How often a value of a is above one of b, by their histograms over the same bins; ties one half. `... bin, ... bin -> ...`"""
    below = np.cumsum(b, axis=-1) - b / 2
    size = a.sum(-1) * b.sum(-1)
    return np.asarray(np.divide((a * below).sum(-1), size, out=np.full(size.shape, 0.5), where=size > 0))
