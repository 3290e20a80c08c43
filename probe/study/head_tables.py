"""The tables about heads: effects, tests and verdicts per pair of senses and per word, and what the verdicts rest on.

Causal columns are missing where the model does not separate the senses at the word: nothing was swapped there.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from probe.patching import effects
from probe.patching.routes import by_distance
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.stats.verdicts import best_verdicts, verdicts
from probe.study.columns import (
    ATTENTION,
    CAUSAL,
    CURVES,
    KEYS,
    RANKS,
    by_head,
    key_of,
    sense_pairs_of,
    stacked,
    with_key,
)
from probe.study.word import PairResult, WordResult


def evidence(results: Sequence[WordResult]) -> pd.DataFrame:
    """The heads table with everything a verdict rests on, and its reasons in words."""
    return pd.concat([_heads_of_pair(result, pair) for result, pair in sense_pairs_of(results)], ignore_index=True)


def _heads_of_pair(result: WordResult, pair: PairResult) -> pd.DataFrame:
    arrays = {name: getattr(pair.separation, name) for name in ("auroc", "auroc_low", "auroc_high", "hedges_g")}
    arrays |= _causal([pair]) | _tested(pair) | _attention(result, pair) | _near_and_far(pair)
    frame = by_head(arrays).astype(RANKS)
    return with_key(frame.join(verdicts(frame.assign(depth=result.depth))), key_of(result, pair))


def _tested(pair: PairResult) -> dict[str, Array]:
    """Corrected p and false discovery rate of separation and swap; missing where nothing was swapped."""
    blank = np.full(pair.separation.auroc.shape, np.nan)
    if pair.tests is None:
        return dict.fromkeys(("p_auroc", "q_auroc", "p_swap", "q_swap", "p_opposes", "alone", "p_alone"), blank)
    separation, swap = pair.tests.separation, pair.tests.swap
    tested = {"p_auroc": separation.p, "q_auroc": separation.q, "p_swap": swap.p, "q_swap": swap.q}
    alone = blank if pair.alone is None else pair.alone
    return tested | {"p_opposes": pair.tests.opposes.p, "alone": alone, "p_alone": pair.tests.alone.p}


def _near_and_far(pair: PairResult) -> dict[str, Array]:
    """The net effect with the cue next to the word, and further away; missing where distances are not known."""
    blank = np.full(pair.separation.auroc.shape, np.nan)
    if pair.effects is None:
        return {"net_near": blank, "net_far": blank}
    near, far = (by_distance(pair.effects, pair.pairs.distances, keep) for keep in (lambda d: d == 1, lambda d: d > 1))
    return {"net_near": blank if near is None else near, "net_far": blank if far is None else far}


def _causal(pairs: Sequence[PairResult]) -> dict[str, Array]:
    """Swap effects and ranks, means over these pairs of senses with intervals; all missing where there is no gap."""
    measured = [(pair.effects, pair.pairs.bootstrap()) for pair in pairs if pair.effects is not None]
    if not measured:
        return dict.fromkeys(CAUSAL, np.full(pairs[0].separation.auroc.shape, np.nan))

    def mean(values: Iterable[Array]) -> Array:
        return np.asarray(np.mean(list(values), axis=0))

    ratios = ("direct", "denoise", "noise", "same_sense")
    columns = {name: mean(effect.ratio(name) for effect, _ in measured) for name in ratios}
    columns["swap"] = (columns["denoise"] + columns["noise"]) / 2
    columns["self_repair"] = columns["swap"] - columns["direct"]
    net = columns["net"] = columns["swap"] - columns["same_sense"]
    drawn = [effect.draws(weights) for effect, weights in measured]
    draws = {name: mean(each[name] for each in drawn) for name in drawn[0]}
    for name, values in draws.items():
        columns[f"{name}_low"], columns[f"{name}_high"] = resampling.interval(values)
    depth = pairs[0].axis.depth
    ranks: Array = resampling.ranks(net[:depth].ravel()).reshape(depth, -1).astype(float)
    for name, values in zip(RANKS, (ranks, *effects.rank_intervals(draws["net"][:, :depth])), strict=True):
        # heads that write after the read-out have no rank
        columns[name] = np.pad(values.astype(float), ((0, len(net) - depth), (0, 0)), constant_values=np.nan)
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
    looks = result.states.attention_to([result.material.cues[row] for row in result.rows])
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
    """Pattern-only and value-only swaps and mean ablation of every head; see `probe.patching.routes`."""
    parts = []
    for result, pair in sense_pairs_of(results):
        if pair.routes is not None:
            blank = np.full(pair.routes.ablation.shape, np.nan)
            measured = {name: getattr(pair.routes, name) for name in ("pattern_only", "values_only", "ablation")}
            arrays = {name: blank if values is None else values for name, values in measured.items()}
            parts.append(with_key(by_head(arrays), key_of(result, pair)))
    return stacked(parts, [*KEYS, "layer", "head", "pattern_only", "values_only", "ablation"])


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
            summary = {"word": result.material.word, "area": curve.area, "smallest": curve.smallest}
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
