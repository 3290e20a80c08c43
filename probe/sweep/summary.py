"""Sums over shards: what the frames of a page need of any number of sentences, in memory that does
not grow with them.

One accumulator per word and pair of senses. Effects are summed by unit, a cue word (a sentence
where no cue is given) or, where there are more than UNITS of them per sense, a set of cue words
with the same hash: that is what is resampled and what changes its sign. Distributions are kept as
histograms, so that quantiles are known to BIN and AUROCs to a few thousandths.

The frames of a page are made from the totals, named and meant as those of a study
(`probe.evidence.columns`).

    R_ns = Σ swap / Σ gap over the sentences of sense A, R_dn the same over those of B, E = (R_dn +
    R_ns) / 2

The donor is drawn and not paired, so a pair of the study is a sentence here. Intervals resample cue
words. Nothing is ranked where the gap was not shown, adjusted for the word's pairs of senses. The
swap is tested as in the study (max-T, cue words change their sign); separation is measured held out
and not tested, which would need the model, and so there are no verdicts.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.compute
import pyarrow.parquet
from numpy.typing import NDArray
from scipy.stats import false_discovery_control

from probe.evidence import effects
from probe.evidence.columns import KEYS, RANKS, by_head, rounded, stacked, with_key
from probe.evidence.tables import depth_label
from probe.provenance import hash_of
from probe.stats import resampling
from probe.stats.resampling import Array, MaxT
from probe.stats.verdicts import GATE
from probe.sweep import shards
from probe.sweep.measure import FITTED
from probe.text.splits import REPORT

UNITS = 256  # sets of cue words a side: as many as a bootstrap can use, and what memory is made of
BIN, REACH = (
    0.01,
    8.0,
)  # of the gap: quantiles are known to a hundredth, and eight gaps away is as far as a thousand
BINS = round(2 * REACH / BIN) + 1
SCORE_BINS, SCORE_REACH = 401, 4.0
EFFECTS = ("swap", "same_sense")
MEANS = ("attention_cue", "attention_previous", "norm", "axis")
Key = tuple[str, str, str]
DRAWS = 1000
SEED = 0
SWAP, SAME = range(2)


class Totals:
    """Sums of one pair of senses, `side` 0 for the sentences of its first sense, 1 for its second.

    `count gap coordinate: side unit` · `effects: kind side unit head`, kinds as in EFFECTS ·
    `squares: head`, of swap - same_sense · `sums counted: kind head`, kinds as in MEANS · `along:
    side stage` of coordinates toward the first sense, `places: side stage bin` their histograms ·
    `scores: side head bin` of own scores toward it. Heads are numbered layer by layer.
    """

    def __init__(self, *, depth: int, heads: int, stages: int) -> None:
        self.depth, self.negative_gaps = depth, 0
        self.count, self.gap, self.coordinate = np.zeros((3, 2, UNITS))
        self.effects = np.zeros((len(EFFECTS), 2, UNITS, heads))
        self.squares = np.zeros(heads)
        self.sums, self.counted = np.zeros((2, len(MEANS), heads))
        self.along = np.zeros((2, stages))
        self.places = np.zeros((2, stages, BINS), dtype=np.int64)
        self.scores = np.zeros((2, heads, SCORE_BINS), dtype=np.int64)

    def add(
        self,
        side: NDArray[np.int64],
        unit: NDArray[np.int64],
        by_head: Mapping[str, Array],
        along: Array,
        gaps: Array,
    ) -> None:
        """Add rows of effects, means, own scores (`by_head: row head` each), coordinates (`along:
        row stage`), gaps."""
        at = side, unit
        for kind, name in enumerate(EFFECTS):
            np.add.at(self.effects[kind], at, by_head[name])
        self.squares += ((by_head["swap"] - by_head["same_sense"]) ** 2).sum(0)
        for kind, name in enumerate(MEANS):
            self.sums[kind] += np.nansum(by_head[name], axis=0)
            self.counted[kind] += np.isfinite(by_head[name]).sum(0)
        own, along = (
            np.where(side[:, None] == 0, values, -values) for values in (by_head["own"], along)
        )
        for histograms, values, reach in (
            (self.scores, own, SCORE_REACH),
            (self.places, along, REACH),
        ):
            bins = _bin(values, reach, histograms.shape[-1])
            np.add.at(histograms, (side[:, None], np.arange(bins.shape[1])[None], bins), 1)
        np.add.at(self.along, side, along)
        for sums, value in (
            (self.count, 1),
            (self.gap, gaps),
            (self.coordinate, along[:, self.depth + 1]),
        ):
            np.add.at(sums, at, value)
        self.negative_gaps += int((gaps <= 0).sum())


@dataclass(eq=False)
class Summed:
    """Everything a page is made of: totals by word and pair of senses, parts by word and sense,
    reasons by word."""

    layers: int
    heads: int
    totals: dict[Key, Totals] = field(default_factory=dict)
    parts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)


def add_up(folder: Path, manifest: Mapping[str, Any]) -> Summed:
    """The totals of a finished set of shards. Raises InputError for one that is missing or not as
    it was written."""
    summed = Summed(manifest["layers"], manifest["heads"])
    for key in manifest["shards"]:
        receipt = shards.read_receipt(folder, key)
        if receipt is None:
            raise shards.damaged(shards.receipt_of(folder, key))
        names = [f"{kind}/{key}.parquet" for kind in (shards.SENTENCES, shards.HEADS)]
        if set(names) != set(receipt["files"]):
            raise shards.damaged(shards.receipt_of(folder, key), "it is not the receipt of a shard")
        _add_shard(
            summed, *(shards.read_parquet(folder, name, receipt["files"][name]) for name in names)
        )
    return summed


def _add_shard(summed: Summed, sentences: pyarrow.Table, heads: pyarrow.Table) -> None:
    """Count what became of every sentence; add the measured ones to the totals of their pairs."""
    words, senses, parts, reasons = (
        sentences[name].to_pylist() for name in ("word", "sense", "part", "reason")
    )
    summed.parts.update(zip(words, senses, (part or "none" for part in parts), strict=True))
    summed.reasons.update(
        (word, reason) for word, reason in zip(words, reasons, strict=True) if reason
    )
    measured = sentences.filter(pyarrow.compute.equal(sentences["part"], REPORT))
    each = summed.layers * summed.heads
    order = {
        number: row for row, number in enumerate(heads["sentence"].to_numpy()[::each].tolist())
    }
    rows = np.array([order[number] for number in measured["sentence"].to_pylist()], dtype=int)
    by_head = {
        name: heads[name].to_numpy().reshape(-1, each)[rows].astype(float)
        for name in (*MEANS, *EFFECTS, "own")
    }
    groups: dict[Key, list[tuple[int, int]]] = {}
    words, senses, others = (measured[name].to_pylist() for name in ("word", "sense", "other"))
    for row, (word, sense, other) in enumerate(zip(words, senses, others, strict=True)):
        a, b = sorted((sense, other))
        groups.setdefault((word, a, b), []).append((row, int(sense == b)))
    units, stages = (
        _units(measured),
        [name for name in measured.column_names if name.startswith("coordinate_")],
    )
    coordinates = np.stack([measured[name].to_numpy() for name in stages], axis=1)
    gaps, depths = (measured[name].to_numpy() for name in ("gap", "depth"))
    for key, members in groups.items():
        at, side = (np.array(part) for part in zip(*members, strict=True))
        if key not in summed.totals:
            summed.totals[key] = Totals(depth=int(depths[at[0]]), heads=each, stages=len(stages))
        mine = {name: values[at] for name, values in by_head.items()}
        summed.totals[key].add(side, units[at], mine, coordinates[at], gaps[at])


def _units(measured: pyarrow.Table) -> NDArray[np.int64]:
    cues, numbers = measured["cue"].to_pylist(), measured["sentence"].to_pylist()
    names = [
        f"sentence {number}" if cue is None else f"cue {cue}"
        for cue, number in zip(cues, numbers, strict=True)
    ]
    return np.array([hash_of(name) % UNITS for name in names], dtype=np.int64)


def _bin(values: Array, reach: float, bins: int) -> NDArray[np.int64]:
    """The bin whose middle is nearest, 0 in the middle of one; beyond the reach it is the last on
    that side."""
    return np.clip(np.rint((values + reach) / (2 * reach) * (bins - 1)), 0, bins - 1).astype(
        np.int64
    )


def quantile(histogram: NDArray[np.int64], share: float) -> float:
    """The value that a share of the histogram lies below, to BIN."""
    return int(np.searchsorted(np.cumsum(histogram), share * histogram.sum())) * BIN - REACH


def auroc(a: NDArray[np.int64], b: NDArray[np.int64]) -> Array:
    """How often a value of a is above one of b, ties one half, by their histograms. `... bin, ...
    bin -> ...`"""
    below = np.cumsum(b, axis=-1) - b / 2
    size = a.sum(-1) * b.sum(-1)
    return np.asarray(
        np.divide((a * below).sum(-1), size, out=np.full(size.shape, 0.5), where=size > 0)
    )


def frames(summed: Summed, folder: Path) -> dict[str, pd.DataFrame]:
    """Every frame of the page; `folder` holds the certificate."""
    both = {
        key: total for key, total in sorted(summed.totals.items()) if (total.count.sum(1) > 0).all()
    }
    gates = _gates(both)
    tests = _tests({key: total for key, total in both.items() if gates[key] < GATE})
    heads = [_heads(key, total, tests.get(key), summed.layers) for key, total in both.items()]
    made = {
        "words": pd.DataFrame(
            [_word(key, total, gates[key], summed) for key, total in both.items()]
        ),
        "heads": stacked(heads, [*KEYS, "layer", "head"]),
        "depth": stacked([_depth(key, total) for key, total in both.items()], [*KEYS, "depth"]),
        "left_out": pd.DataFrame(
            [[word, reason, count] for (word, reason), count in sorted(summed.reasons.items())],
            columns=["word", "reason", "sentences"],
        ),
        "certificate": pyarrow.parquet.read_table(folder / "certificate.parquet").to_pandas(),
    }
    made["word_heads"] = _word_heads(made["heads"])
    return {name: rounded(frame) for name, frame in made.items()}


def _gates(both: Mapping[Key, Totals]) -> dict[Key, float]:
    """p of the gap of every pair, adjusted for the pairs of its word."""
    raw = pd.Series({key: _gap_p(total) for key, total in both.items()}, dtype=float)
    return dict(raw.groupby(level=0).transform(lambda of_word: false_discovery_control(of_word)))


def _gap_p(total: Totals) -> float:
    """One-sided p that the senses' mean coordinates are as far apart when senses are dealt to units
    at random."""
    used, rng = total.count > 0, np.random.default_rng(SEED)
    count, value, is_a = total.count[used], total.coordinate[used], np.nonzero(used)[0] == 0
    labels = np.vstack(
        [is_a, rng.permuted(np.tile(is_a, (resampling.GATE_DRAWS, 1)), axis=1)]
    ).astype(float)
    gaps = labels @ value / (labels @ count) - (1 - labels) @ value / ((1 - labels) @ count)
    return resampling.permutation_p(gaps)


def _tests(passed: Mapping[Key, Totals]) -> dict[Key, MaxT]:
    """Corrected p of every head's swap, all pairs of senses of a word together."""
    tests: dict[Key, MaxT] = {}
    for word in {word for word, *_ in passed}:
        keys = [key for key in passed if key[0] == word]
        nulls = np.stack([_flips(passed[key]) for key in keys], axis=1)  # draw pair head
        family = resampling.max_t(nulls[0], nulls[1:])
        tests |= {
            key: MaxT(family.t[row], family.p[row], family.q[row]) for row, key in enumerate(keys)
        }
    return tests


def _flips(total: Totals) -> Array:
    """Studentised mean net effect as it is (first) and with whole units flipped:
    `resampling.flip_null` from sums."""
    by_unit = (total.effects[SWAP] - total.effects[SAME])[total.count > 0]
    rng = np.random.default_rng(SEED)
    return resampling.flipped(
        by_unit, total.squares, number=int(total.count.sum()), draws=DRAWS, rng=rng
    )


def _ratios(total: Totals, weights: Array) -> dict[str, Array]:
    """The effects of every head for each weighting of the units. `draw side unit -> draw head`"""
    gap = np.einsum("dsu,su->ds", weights, total.gap)[:, :, None]
    gap = np.where(gap == 0, np.nan, gap)
    sums = np.einsum("dsu,ksuh->kdsh", weights, total.effects, optimize=True) / gap
    swap, same = sums.mean(2)
    noise, denoise = sums[SWAP].transpose(1, 0, 2)
    return {
        "denoise": denoise,
        "noise": noise,
        "swap": swap,
        "same_sense": same,
        "net": swap - same,
    }


def _weights(total: Totals) -> Array:
    """How often each unit of each side counts in each draw. `-> draw side unit`"""
    rng, drawn = np.random.default_rng(SEED), np.zeros((resampling.DRAWS, *total.count.shape))
    for side, count in enumerate(total.count):
        used = np.flatnonzero(count)
        drawn[:, side, used] = rng.multinomial(
            len(used), np.full(len(used), 1 / len(used)), size=resampling.DRAWS
        )
    return drawn


def _heads(key: Key, total: Totals, tests: MaxT | None, layers: int) -> pd.DataFrame:
    """Every head for one pair of senses; causal columns are missing where the gap was not shown."""
    heads = total.squares.size // layers
    names = (
        "denoise",
        "noise",
        "swap",
        "swap_low",
        "swap_high",
        "same_sense",
        "net",
        "net_low",
        "net_high",
    )
    columns = {"auroc": auroc(*total.scores)}
    columns |= dict.fromkeys((*names, "p_swap", "q_swap", *RANKS), np.full(layers * heads, np.nan))
    if tests is not None:
        columns |= {
            name: values[0]
            for name, values in _ratios(total, np.ones((1, *total.count.shape))).items()
        }
        draws = _ratios(total, _weights(total))
        for name in ("swap", "net"):
            columns[f"{name}_low"], columns[f"{name}_high"] = resampling.interval(
                np.nan_to_num(draws[name])
            )
        columns |= {"p_swap": tests.p, "q_swap": tests.q} | _ranks(
            columns["net"], draws["net"], total.depth * heads
        )
    with np.errstate(invalid="ignore"):
        means = dict(
            zip(
                MEANS, total.sums / np.where(total.counted == 0, np.nan, total.counted), strict=True
            )
        )
    columns |= {name: means[name] for name in ("norm", "attention_cue", "attention_previous")}
    columns["direct"] = 2 * means["axis"] / _gap(total)
    frame = by_head({name: values.reshape(layers, heads) for name, values in columns.items()})
    return with_key(frame.astype(RANKS), dict(zip(KEYS, key, strict=True)))


def _ranks(net: Array, draws: Array, reached: int) -> dict[str, Array]:
    """Ranks by net effect, with intervals, of the heads up to the read-out."""
    ends = effects.rank_intervals(np.nan_to_num(draws[:, :reached])[:, None])
    places = np.full((len(RANKS), len(net)), np.nan)
    places[:, :reached] = resampling.ranks(net[:reached]), *(end[0] for end in ends)
    return dict(zip(RANKS, places, strict=True))


def _gap(total: Totals) -> float:
    """The distance of the senses' mean coordinates: 1 on the part that was fitted on."""
    a, b = total.coordinate.sum(1) / total.count.sum(1)
    return float(a - b)


def _word(key: Key, total: Totals, gate: float, summed: Summed) -> dict[str, object]:
    weights = _weights(total)
    means = np.einsum("dsu,su->ds", weights, total.coordinate) / np.einsum(
        "dsu,su->ds", weights, total.count
    )
    low, high = resampling.interval(means[:, 0] - means[:, 1])
    word, *pair = key
    return dict(zip(KEYS, key, strict=True)) | {
        "sentences_fit": sum(summed.parts[(word, sense, FITTED)] for sense in pair),
        "sentences_report": int(total.count.sum()),
        "depth": total.depth,
        "auroc": float(auroc(*total.places[:, total.depth + 1])),
        "gap": _gap(total),
        "gap_low": float(low),
        "gap_high": float(high),
        "gap_p": gate,
        "negative_gaps": total.negative_gaps,
        "cue_words": int((total.count > 0).sum(1).min()),
        "ranked": gate < GATE,
    }


def _depth(key: Key, total: Totals) -> pd.DataFrame:
    """The mean coordinate of both senses and their middle 80 % at every stage."""
    columns = ["label", "depth", "sense", "coordinate", "low", "high", "auroc"]
    rows: list[tuple[Any, ...]] = []
    for stage in range(total.places.shape[1]):
        apart = float(auroc(*total.places[:, stage]))
        for side, sense in enumerate(key[1:]):
            ends = (quantile(total.places[side, stage], share) for share in (0.1, 0.9))
            mean = float(total.along[side, stage] / total.count[side].sum())
            rows.append((depth_label(stage - 1), stage - 1, sense, mean, *ends, apart))
    return with_key(pd.DataFrame(rows, columns=columns), dict(zip(KEYS, key, strict=True)))


def _word_heads(heads: pd.DataFrame) -> pd.DataFrame:
    """One row per word, layer and head: the mean over the word's pairs of senses whose gap was
    shown.

    Intervals are the means of the pairs' ends, which is wide: the pairs share sentences. `p_swap`
    is the smallest of the pairs.
    """
    shown = heads[heads["net"].notna()] if len(heads) else heads
    if shown.empty:
        left_away = ["sense_a", "sense_b", "rank_low", "rank_high", "q_swap"]
        return pd.DataFrame(columns=[*heads.columns.drop(left_away, errors="ignore"), "of"])
    keys = ["word", "layer", "head"]
    numbers = [
        n
        for n in shown.columns
        if n not in (*keys, "sense_a", "sense_b", "p_swap", "q_swap", *RANKS)
    ]
    grouped = shown.groupby(keys, as_index=False, sort=False)
    mean = grouped[numbers].mean().merge(grouped[["p_swap"]].min(), on=keys)
    mean["of"] = grouped[["net"]].count()["net"].to_numpy()
    place = mean.groupby("word")["net"].rank(ascending=False, method="first")
    return mean.assign(rank=place.astype("Int64"))
