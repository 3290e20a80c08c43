"""From the totals of shards to the frames of a page, named and meant as those of a study (`probe.columns`).

    R_ns = Σ swap / Σ gap over the sentences of sense A, R_dn the same over those of B, E = (R_dn + R_ns) / 2

The donor is drawn and not paired, so a pair of the study is a sentence here. Intervals resample cue words. Nothing is ranked
where the gap was not shown, adjusted for the word's pairs of senses. The swap is tested as in the study (max-T, cue words change
their sign); separation is measured held out and not tested, which would need the model, and so there are no verdicts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
from scipy.stats import false_discovery_control

from probe import effects, inference, statistics
from probe.columns import RANKS
from probe.experiment import GATE
from probe.inference import MaxT
from probe.statistics import Array
from probe.sweep import totals
from probe.sweep.totals import MEANS, Key, Summed, Totals
from probe.tables import depth_label
from probe.tidy import by_head, rounded, stacked, with_key

DRAWS = 1000
SEED = 0
SWAP, SAME = range(2)
KEYS = ("word", "sense_a", "sense_b")


def frames(summed: Summed, folder: Path) -> dict[str, pd.DataFrame]:
    """Every frame of the page; `folder` holds the certificate."""
    both = {key: total for key, total in sorted(summed.totals.items()) if (total.count.sum(1) > 0).all()}
    gates = _gates(both)
    tests = _tests({key: total for key, total in both.items() if gates[key] < GATE})
    heads = [_heads(key, total, tests.get(key), summed.layers) for key, total in both.items()]
    found = {
        "words": pd.DataFrame([_word(key, total, gates[key], summed) for key, total in both.items()]),
        "heads": stacked(heads, [*KEYS, "layer", "head"]),
        "depth": stacked([_depth(key, total) for key, total in both.items()], [*KEYS, "depth"]),
        "left_out": pd.DataFrame(
            [[word, reason, count] for (word, reason), count in sorted(summed.reasons.items())],
            columns=["word", "reason", "sentences"],
        ),
        "certificate": pyarrow.parquet.read_table(folder / "certificate.parquet").to_pandas(),
    }
    found["word_heads"] = _word_heads(found["heads"])
    return {name: rounded(frame) for name, frame in found.items()}


def _gates(both: Mapping[Key, Totals]) -> dict[Key, float]:
    """p of the gap of every pair, adjusted for the pairs of its word."""
    raw = {key: _gap_p(total) for key, total in both.items()}
    adjusted: dict[Key, float] = {}
    for word in {word for word, *_ in raw}:
        keys = [key for key in raw if key[0] == word]
        adjusted |= dict(zip(keys, false_discovery_control([raw[key] for key in keys]), strict=True))
    return adjusted


def _gap_p(total: Totals) -> float:
    """One-sided p that the senses' mean coordinates are as far apart when senses are dealt to units at random."""
    count, value = total.count.ravel(), total.coordinate.ravel()
    used = count > 0
    is_a = (np.arange(count.size) < total.count.shape[1])[used]
    count, value = count[used], value[used]
    rng = np.random.default_rng(SEED)
    labels = np.vstack([is_a, rng.permuted(np.tile(is_a, (inference.GATE_DRAWS, 1)), axis=1)]).astype(float)
    gaps = labels @ value / (labels @ count) - (1 - labels) @ value / ((1 - labels) @ count)
    return inference.permutation_p(gaps)


def _tests(passed: Mapping[Key, Totals]) -> dict[Key, MaxT]:
    """Corrected p of every head's swap, all pairs of senses of a word together."""
    found: dict[Key, MaxT] = {}
    for word in {word for word, *_ in passed}:
        keys = [key for key in passed if key[0] == word]
        nulls = np.stack([_flips(passed[key]) for key in keys], axis=1)  # draw pair head
        family = inference.max_t(nulls[0], nulls[1:])
        found |= {key: MaxT(family.t[row], family.p[row], family.q[row]) for row, key in enumerate(keys)}
    return found


def _flips(total: Totals) -> Array:
    """Studentised mean net effect as it is (first) and with the sign of whole units flipped, as `inference.flip_null` from sums."""
    by_unit = (total.effects[SWAP] - total.effects[SAME]).reshape(-1, total.effects.shape[-1])
    by_unit = by_unit[total.count.ravel() > 0]
    rng = np.random.default_rng(SEED)
    return inference.flipped(by_unit, total.squares, number=int(total.count.sum()), draws=DRAWS, rng=rng)


def _ratios(total: Totals, weights: Array) -> dict[str, Array]:
    """The effects of every head for each weighting of the units. `draw side unit -> draw head`"""
    gap = np.einsum("dsu,su->ds", weights, total.gap)[:, :, None]
    gap = np.where(gap == 0, np.nan, gap)
    sums = np.einsum("dsu,ksuh->kdsh", weights, total.effects, optimize=True) / gap
    swap, same = sums.mean(2)
    noise, denoise = sums[SWAP].transpose(1, 0, 2)
    return {"denoise": denoise, "noise": noise, "swap": swap, "same_sense": same, "net": swap - same}


def _weights(total: Totals) -> Array:
    """How often each unit of each side counts in each draw. `-> draw side unit`"""
    rng = np.random.default_rng(SEED)
    sides = []
    for count in total.count:
        used = np.flatnonzero(count)
        drawn = np.zeros((statistics.DRAWS, len(count)))
        drawn[:, used] = rng.multinomial(len(used), np.full(len(used), 1 / len(used)), size=statistics.DRAWS)
        sides.append(drawn)
    return np.stack(sides, axis=1)


def _heads(key: Key, total: Totals, tests: MaxT | None, layers: int) -> pd.DataFrame:
    """Every head for one pair of senses; causal columns are missing where the gap was not shown."""
    heads = total.squares.size // layers
    found: dict[str, Array] = {"auroc": totals.auroc(*total.scores)}
    with np.errstate(invalid="ignore"):
        means = dict(zip(MEANS, total.sums / np.where(total.counted == 0, np.nan, total.counted), strict=True))
    names = ("denoise", "noise", "swap", "swap_low", "swap_high", "same_sense", "net", "net_low", "net_high")
    found |= dict.fromkeys((*names, "p_swap", "q_swap", *RANKS), np.full(layers * heads, np.nan))
    if tests is not None:
        found |= {name: values[0] for name, values in _ratios(total, np.ones((1, *total.count.shape))).items()}
        draws = _ratios(total, _weights(total))
        for name in ("swap", "net"):
            found[f"{name}_low"], found[f"{name}_high"] = statistics.interval(np.nan_to_num(draws[name]))
        found |= {"p_swap": tests.p, "q_swap": tests.q} | _ranks(found["net"], draws["net"], total.depth * heads)
    found |= {name: means[name] for name in ("norm", "attention_cue", "attention_previous")}
    found["direct"] = 2 * means["axis"] / _gap(total)
    frame = by_head({name: values.reshape(layers, heads) for name, values in found.items()})
    return with_key(frame.astype(RANKS), dict(zip(KEYS, key, strict=True)))


def _ranks(net: Array, draws: Array, reached: int) -> dict[str, Array]:
    """Places by net effect, with intervals, of the heads up to the read-out."""
    places = statistics.ranks(net[:reached])
    low, high = effects.rank_intervals(np.nan_to_num(draws[:, :reached])[:, None])
    above = (0, len(net) - reached)
    return {
        name: np.pad(np.asarray(values, dtype=float).ravel(), above, constant_values=np.nan)
        for name, values in zip(RANKS, (places, low, high), strict=True)
    }


def _gap(total: Totals) -> float:
    """The distance of the senses' mean coordinates: 1 on the part that was fitted on."""
    a, b = total.coordinate.sum(1) / total.count.sum(1)
    return float(a - b)


def _word(key: Key, total: Totals, gate: float, summed: Summed) -> dict[str, object]:
    weights = _weights(total)
    means = np.einsum("dsu,su->ds", weights, total.coordinate) / np.einsum("dsu,su->ds", weights, total.count)
    low, high = statistics.interval(means[:, 0] - means[:, 1])
    word, *pair = key
    units = int((total.count > 0).sum(1).min())
    return dict(zip(KEYS, key, strict=True)) | {
        "sentences_fit": sum(summed.parts.get((word, sense, "fitted"), 0) for sense in pair),
        "sentences_report": int(total.count.sum()),
        "depth": total.depth,
        "auroc": float(totals.auroc(*total.places[:, total.depth + 1])),
        "gap": _gap(total),
        "gap_low": float(low),
        "gap_high": float(high),
        "gap_p": gate,
        "negative_gaps": total.negative_gaps,
        "cue_words": units,
        "ranked": gate < GATE,
    }


def _depth(key: Key, total: Totals) -> pd.DataFrame:
    """The mean coordinate of both senses and their middle 80 % at every stage."""
    rows: list[dict[str, Any]] = []
    for stage in range(total.places.shape[1]):
        apart = float(totals.auroc(*total.places[:, stage]))
        for side, sense in enumerate(key[1:]):
            found = total.places[side, stage]
            ends = {name: totals.quantile(found, share) for name, share in (("low", 0.1), ("high", 0.9))}
            rows.append(
                {"label": depth_label(stage - 1), "depth": stage - 1, "sense": sense}
                | {"coordinate": float(total.along[side, stage] / total.count[side].sum())}
                | ends
                | {"auroc": apart}
            )
    return with_key(pd.DataFrame(rows), dict(zip(KEYS, key, strict=True)))


def _word_heads(heads: pd.DataFrame) -> pd.DataFrame:
    """One row per word, layer and head: the mean over the word's pairs of senses whose gap was shown.

    Intervals are the means of the pairs' ends, which is wide: the pairs share sentences. `p_swap` is the smallest of the pairs.
    """
    shown = heads[heads["net"].notna()] if len(heads) else heads
    if shown.empty:
        names = [
            name for name in heads.columns if name not in ("sense_a", "sense_b", "rank_low", "rank_high", "q_swap")
        ]
        return pd.DataFrame(columns=[*names, "of"])
    keys = ["word", "layer", "head"]
    numbers = [n for n in shown.columns if n not in (*keys, "sense_a", "sense_b", "p_swap", "q_swap", *RANKS)]
    grouped = shown.groupby(keys, as_index=False, sort=False)
    found = grouped[numbers].mean().merge(grouped[["p_swap"]].min(), on=keys)
    found["of"] = grouped[["net"]].count()["net"].to_numpy()
    place = found.groupby("word")["net"].rank(ascending=False, method="first")
    return found.assign(rank=place.astype("Int64"))
