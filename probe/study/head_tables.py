"""The tables about heads: effects, tests and verdicts per pair of senses and per word, and what the verdicts rest on.

Causal columns are missing where the model does not separate the senses at the word: nothing was swapped there.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from probe.patching import effects
from probe.patching.routes import by_distance
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.stats.verdicts import GATE, LEVEL, best_verdicts, verdicts
from probe.study.columns import (
    ATTENTION,
    CAUSAL,
    CURVES,
    KEYS,
    RANKS,
    ROUTES,
    by_head,
    key_of,
    sense_pairs_of,
    stacked,
    with_key,
)
from probe.study.word import PairResult, WordResult


def evidence(results: Sequence[WordResult], untrained: Mapping[tuple[str, ...], float]) -> pd.DataFrame:
    """The heads table with everything a verdict rests on, and its reasons in words.

    `untrained`: p of the gap in a model of random weights, by word and senses.
    """
    parts = [
        _heads_of_pair(result, pair, untrained.get((result.material.word, *pair.senses), 1.0))
        for result, pair in sense_pairs_of(results)
    ]
    return pd.concat(parts, ignore_index=True)


def _heads_of_pair(result: WordResult, pair: PairResult, untrained_p: float) -> pd.DataFrame:
    arrays = {name: getattr(pair.separation, name) for name in ("auroc", "auroc_low", "auroc_high", "hedges_g")}
    arrays |= _causal([pair]) | _tested(pair) | _attention(result, pair) | _near_and_far(pair) | _stands_in(pair)
    frame = by_head(arrays).astype(RANKS)
    frame["read_depth"] = [pair.reading.at[layer] for layer in frame["layer"]]
    frame["confounded"] = float(untrained_p < GATE or pair.nuisance_p < LEVEL)
    return with_key(frame.join(verdicts(frame)), key_of(result, pair))


def _tested(pair: PairResult) -> dict[str, Array]:
    """Corrected p and false discovery rate of separation, swap, what is said next and known continuations; missing
    where not swapped, and where what is measured was not shown to differ between the senses.
    """
    blank = np.full(pair.separation.auroc.shape, np.nan)
    names = ("p_auroc", "q_auroc", "p_swap", "q_swap", "p_opposes", "said", "p_said", "continued", "p_continued")
    tested = dict.fromkeys(names, blank)
    if pair.tests is None or pair.measured is None:
        return tested
    separation, swap = pair.tests.separation, pair.tests.swap
    tested |= {"p_auroc": separation.p, "q_auroc": separation.q, "p_swap": swap.p, "q_swap": swap.q}
    tested["p_opposes"] = pair.tests.opposes.p
    for name, shown in (("said", pair.said_p), ("continued", pair.continued_p)):
        test, effect = getattr(pair.tests, name), getattr(pair.measured, name)
        if test is not None and shown < GATE:  # a share of a difference that is not there is noise over noise
            tested |= {name: effect.net.mean(0), f"p_{name}": test.p}
    return tested


def _stands_in(pair: PairResult) -> dict[str, Array]:
    """The head that each one stands in for, with how much further swapping both moves the word; missing without one."""
    names = ("stands_in", "p_stands_in", "stands_in_layer", "stands_in_head")
    arrays = {name: np.full(pair.separation.auroc.shape, np.nan) for name in names}
    arrays["backed_up"] = np.zeros(pair.separation.auroc.shape)
    for found in sorted(pair.stand_ins, key=lambda one: one.extra):
        arrays["backed_up"][found.first] = 1
        for name, value in zip(names, (found.extra, found.p, *found.first), strict=True):
            arrays[name][found.head] = value
    return arrays


def _near_and_far(pair: PairResult) -> dict[str, Array]:
    """The net effect with the cue next to the word, and further away; missing where distances are not known."""
    blank = np.full(pair.separation.auroc.shape, np.nan)
    if pair.effects is None:
        return {"net_near": blank, "net_far": blank}
    near, far = (by_distance(pair.effects, pair.pairs.distances, keep) for keep in (lambda d: d == 1, lambda d: d > 1))
    return {"net_near": blank if near is None else near, "net_far": blank if far is None else far}


def _causal(pairs: Sequence[PairResult]) -> dict[str, Array]:
    """Swap effects and ranks, means over these pairs of senses with intervals; all missing where there is no gap."""
    swapped = [(pair.measured, pair.pairs) for pair in pairs if pair.measured is not None]
    if not swapped:
        return dict.fromkeys(CAUSAL, np.full(pairs[0].separation.auroc.shape, np.nan))

    def mean(values: Iterable[Array]) -> Array:
        return np.asarray(np.mean(list(values), axis=0))

    ratios = ("denoise", "noise", "same_sense")
    columns = {name: mean(measured.word.ratio(name) for measured, _ in swapped) for name in ratios}
    columns["direct"] = mean(measured.written for measured, _ in swapped)
    columns["swap"] = (columns["denoise"] + columns["noise"]) / 2
    columns["self_repair"] = columns["swap"] - columns["direct"]
    net = columns["net"] = columns["swap"] - columns["same_sense"]
    drawn = [measured.draws(chosen.bootstrap()) for measured, chosen in swapped]
    draws = {name: mean(each[name] for each in drawn) for name in drawn[0]}
    units = sum(len(set(chosen.units)) for _, chosen in swapped)
    for name, values in draws.items():
        columns[f"{name}_low"], columns[f"{name}_high"] = resampling.interval(values, columns[name], units=units)
    ranks: Array = resampling.ranks(net.ravel()).reshape(net.shape).astype(float)
    for name, values in zip(RANKS, (ranks, *effects.rank_intervals(draws["net"])), strict=True):
        columns[name] = values.astype(float)
    return {name: columns[name] for name in CAUSAL}


def word_heads(results: Sequence[WordResult], evidence: pd.DataFrame) -> pd.DataFrame:
    """One row per word, layer and head: means over the word's pairs of senses whose gap is there.

    `verdict` is the head's best one over these pairs, `resolves` in how many of them it is a resolver, `of` their
    number.
    """
    parts = []
    for result in results:
        passed = [pair for pair in result.pairs if pair.effects is not None]
        if passed:
            looks = [_attention(result, pair) for pair in passed]
            arrays = {"auroc": np.mean([pair.separation.auroc for pair in passed], axis=0)} | _causal(passed)
            arrays |= {name: np.mean([look[name] for look in looks], axis=0) for name in ATTENTION}
            frame = by_head(arrays).astype(RANKS)
            rows = evidence[(evidence["word"] == result.material.word) & evidence["net"].notna()]
            frame = frame.merge(best_verdicts(rows), on=["layer", "head"])
            parts.append(with_key(frame, {"word": result.material.word}))
    columns = ["word", "layer", "head", "auroc", *CAUSAL, *ATTENTION, "verdict", "resolves", "of"]
    return stacked(parts, columns).astype(RANKS)


def _attention(result: WordResult, pair: PairResult) -> dict[str, Array]:
    """Mean attention from the word to its cue (NaN without one), to its neighbours and to itself, over the pairs."""
    looks = result.states.attention_to(result.material.cues)
    used = sorted({*pair.pairs.a, *pair.pairs.b})
    return {f"attention_{name}": mean[used].double().nanmean(0).numpy() for name, mean in looks.items()}


def distances(results: Sequence[WordResult]) -> pd.DataFrame:
    """The net effect of every head by the distance from cue to word in tokens (4: four or more)."""
    parts = []
    for result, pair in sense_pairs_of(results):
        for distance in sorted({d for d in pair.pairs.distances if d is not None}):
            net = None if pair.effects is None else by_distance(pair.effects, pair.pairs.distances, distance.__eq__)
            if net is not None:
                parts.append(with_key(by_head({"net": net}), key_of(result, pair) | {"distance": distance}))
    return stacked(parts, [*KEYS, "distance", "layer", "head", "net"])


def routes(results: Sequence[WordResult]) -> pd.DataFrame:
    """What each head does by where it looks, by what it carries, from the cue, and its ablation, with intervals; see
    `probe.patching.routes`.
    """
    parts = []
    for result, pair in sense_pairs_of(results):
        if pair.routes is not None:
            arrays = dict.fromkeys(ROUTES, np.full(pair.separation.auroc.shape, np.nan)) | pair.routes.shares
            for name, ends in pair.routes.intervals().items():
                arrays |= {f"{name}_{end}": values for end, values in zip(("low", "high"), ends, strict=True)}
            parts.append(with_key(by_head(arrays).assign(pairs=len(pair.routes.pairs)), key_of(result, pair)))
    return stacked(parts, [*KEYS, "layer", "head", *ROUTES, "pairs"])


def by_depth(results: Sequence[WordResult]) -> pd.DataFrame:
    """E beyond the same-sense donor of every head at every depth behind it where the senses can be told apart."""
    parts = []
    for result, pair in sense_pairs_of(results):
        if pair.measured is not None:
            for depth in range(min(pair.reading.direct), pair.measured.profile.shape[-1] + 1):
                frame = by_head({"net": pair.measured.profile[..., depth - 1]})
                here = key_of(result, pair) | {"depth": depth}
                parts.append(with_key(frame[frame["layer"] < depth].reset_index(drop=True), here))
    return stacked(parts, [*KEYS, "depth", "layer", "head", "net"])


def curves(results: Sequence[WordResult]) -> pd.DataFrame:
    """Faithfulness and necessity of the first `size` heads, in the order of the select part.

    `added` are those that joined since the size before.
    """
    parts = []
    for result in results:
        curve = result.curves
        if curve is not None:
            joined = [curve.order[less:size] for less, size in pairwise((0, *curve.sizes))]
            added = [", ".join("L{}H{}".format(*head) for head in heads) or None for heads in joined]
            columns = {"size": curve.sizes, "added": added}
            for name in ("faithfulness", "necessity"):
                low, high = getattr(curve, f"{name}_interval")
                columns |= {name: getattr(curve, name), f"{name}_low": low, f"{name}_high": high}
            summary = {
                "word": result.material.word,
                "area": curve.area,
                "smallest": curve.smallest,
                "pairs": curve.pairs,
            }
            parts.append(with_key(pd.DataFrame(columns), summary))
    return stacked(parts, list(CURVES))


def random_sets(results: Sequence[WordResult]) -> pd.DataFrame:
    """Faithfulness of every random set, matched per layer to the first `size` heads of the order."""
    parts = []
    for result in results:
        for size, values in zip(result.curves.random_sizes, result.curves.random, strict=True) if result.curves else ():
            rows = {"size": size, "faithfulness": values[~np.isnan(values)]}
            parts.append(with_key(pd.DataFrame(rows), {"word": result.material.word}))
    return stacked(parts, ["word", "size", "faithfulness"])
