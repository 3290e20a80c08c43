"""The border between tensors and tables: results in, tidy pandas frames out. To its right there is
no torch.

One frame per question, one row per observation, column names with their meaning and unit in
`probe.results.columns`. Numbers that were not measured are missing (NaN), never zero: so are
effects where the model does not separate the senses at the word, because nothing was swapped there.
Numbers are rounded to DIGITS significant digits, far below their uncertainty, so that the same
command writes the same bytes on one machine with one set of versions; elsewhere the last may
differ.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch

from probe.experiments import swaps as effects
from probe.experiments.head_parts import by_distance
from probe.experiments.material import unused
from probe.experiments.noun_parts import PARTS, joined_parts
from probe.experiments.word import PERMUTED, Controls, PairResult, WordResult
from probe.inference.verdicts import REASONS, best_verdicts, comparisons, verdicts
from probe.model import decomposition
from probe.model.check import Certificate
from probe.model.load import read_weights
from probe.model.model import Model
from probe.results.columns import (
    ATTENTION,
    CAUSAL,
    CURVES,
    HEAD_PARTS,
    HEADS,
    KEYS,
    RANKS,
    by_head,
    key_of,
    rounded,
    sense_pairs_of,
    stacked,
    with_key,
)
from probe.stats import axes, resampling
from probe.stats.limits import GATE, LEVEL
from probe.stats.resampling import Array
from probe.text.sentences import LeftOut

FEW = 50  # sentences per sense: with fewer, a result is called exploratory
# Pairs of cue words: with fewer, no p of a swap comes below 2^-12 however clear the effect.
FEW_CUES = 12
NOT_ASKED_FOR = "no nouns were asked for"  # why a word was not compared with any
TESTED = (
    "p_auroc",
    "q_auroc",
    "p_swap",
    "q_swap",
    "p_opposes",
    "next_token",
    "p_next_token",
    "continuation",
    "p_continuation",
)
MIXERS = ("denoise", "noise", "swap", "same_sense", "net")
STAND_IN = ("stands_in", "p_stands_in", "stands_in_layer", "stands_in_head")
# The fields of a sentence that its table shows.
SENTENCE = (
    "word",
    "sense",
    "text",
    "start",
    "end",
    "form",
    "frame",
    "pair",
    "cue_start",
    "cue_end",
    "cue_inferred",
    "distance",
)


def frames(
    model: Model,
    results: Sequence[WordResult],
    certificate: Certificate,
    measured: Sequence[Controls],
    unread: Sequence[LeftOut] = (),
) -> dict[str, pd.DataFrame]:
    """Every frame that is made from the measurements alone, rounded.

    `unread`: what was left out while the file was read.
    """
    untrained = p_in_untrained(measured)
    all_heads = evidence(results, untrained)
    unused_of_words = []
    for result in results:
        sentences_unused = unused(result.material, [pair.split for pair in result.pairs])
        items = [*sentences_unused, *_nouns_left_out(result)]
        unused_of_words.append((result.material.word, items))
    tables = {
        "words": words(results, untrained),
        "heads": all_heads[list(HEADS)],
        "verdicts": all_heads[[*KEYS, "layer", "head", "verdict", *REASONS]],
        "word_heads": word_heads(results, all_heads),
        "distances": distances(results),
        "head_parts": head_parts(results),
        "by_depth": by_depth(results),
        "curves": curves(results),
        "random_sets": random_sets(results),
        "depth": depth_profile(results),
        "shares": shares(model, results),
        "sentences": sentences(results),
        "left_out": left_out(unread, unused_of_words),
        "controls": controls(results),
        "mlps": mlps(results),
        "mixers": mixers(results),
        "separation_controls": separation_controls(measured),
        "certificate": certificate_rows(certificate),
    }
    has_heads = read_weights(model).has_heads.tolist()
    return {name: rounded(_of_heads(frame, has_heads)) for name, frame in tables.items()}


def _of_heads(frame: pd.DataFrame, has_heads: Sequence[bool]) -> pd.DataFrame:
    """Without the rows of heads in layers that have none."""
    if all(has_heads) or not {"layer", "head"} <= set(frame):
        return frame
    there = [
        pd.isna(head) or has_heads[layer]
        for layer, head in zip(frame["layer"], frame["head"], strict=True)
    ]
    return frame[np.array(there, dtype=bool)].reset_index(drop=True)


# p of the gap in a model of random weights, by word and senses.
Untrained = Mapping[tuple[str, ...], float]


def p_in_untrained(measured: Sequence[Controls]) -> Untrained:
    """p of the gap in a model of random weights, by word and senses."""
    return {
        (control.word.material.word, *senses): p
        for control in measured
        for senses, p in control.untrained_p.items()
    }


def words(results: Sequence[WordResult], untrained: Untrained) -> pd.DataFrame:
    """One row per word and pair of senses: how much material, where it was read, whether the gap is
    there."""
    rows = []
    for result, pair in sense_pairs_of(results):
        weights = pair.pairs.bootstrap()
        units = len(set(pair.pairs.units))
        gap = pair.gap[:, result.depth]
        low, high = resampling.interval(
            weights @ gap / weights.sum(1), float(gap.mean()), units=units
        )
        tests = pair.separation.auroc.size
        per_sense = [len(pair.rows(sense)) for sense in pair.senses]
        rows.append(
            key_of(result, pair)
            | {
                "sentences_fit": min(len(holdout.train) for holdout in pair.split.holdouts),
                "sentences_report": sum(per_sense),
                "pairs": len(pair.pairs),
                "pair_design": pair.pairs.design,
                "split_design": pair.split.design,
                "tokens_of_word": max(map(len, result.material.words)),
                "causal": result.causal,
                "depth": result.depth,
                "auroc": float(pair.by_depth[result.depth]),
                "gap": float(gap.mean()),
                "gap_low": float(low),
                "gap_high": float(high),
                "gap_p": pair.gate_p,
                "next_token_p": pair.next_token_p,
                "continuation_p": pair.continuation_p,
                "nuisance_p": pair.nuisance_p,
                "untrained_p": untrained.get((result.material.word, *pair.senses), 1.0),
                "negative_gaps": int((gap <= 0).sum()),
                "cue_words": units,
                "smallest_p": resampling.smallest_p(units, draws=len(pair.separation.null) - 1),
                "visible_d_pairs": resampling.smallest_effect(units, tests=tests, paired=True),
                "exploratory": min(per_sense) < FEW or units < FEW_CUES,
                "ranked": pair.effects is not None,
            }
            | _gate(pair)
        )
    return pd.DataFrame(rows)


def _gate(pair: PairResult) -> dict[str, object]:
    """How far one-meaning nouns change in the word's place, and whether the word goes further."""
    columns: dict[str, object] = {
        "general_share": np.nan,
        "largest_share": np.nan,
        "ambiguity_p": np.nan,
        "nouns": 0,
        "sentences_not_compared": 0,
        "not_compared": "",
    }
    if pair.effects is None:
        columns["not_compared"] = "the gap between the senses was not shown"
    elif pair.nouns is None:
        columns["not_compared"] = NOT_ASKED_FOR
    else:
        shares = pair.nouns.shares[:, pair.nouns.depth]
        columns |= {
            "general_share": pair.nouns.general_share,
            "largest_share": float(shares.max()) if len(shares) else np.nan,
            "ambiguity_p": pair.nouns.p,
            "nouns": len(shares),
            "sentences_not_compared": pair.nouns.sentences_left_out,
            "not_compared": pair.nouns.reason,
        }
    return columns


def _nouns_left_out(result: WordResult) -> list[LeftOut]:
    """The nouns that a user named and that were compared for no pair of senses of the word."""
    of_pairs = [pair.nouns for pair in result.pairs if pair.nouns is not None]
    compared = {noun for each in of_pairs for noun in each.nouns}
    reasons: dict[str, str] = {}
    for each in of_pairs:
        reasons |= each.left_out
    return [LeftOut(noun, reason) for noun, reason in reasons.items() if noun not in compared]


def evidence(results: Sequence[WordResult], untrained: Untrained) -> pd.DataFrame:
    """The heads table with everything a verdict rests on, and its reasons in words."""
    parts = []
    for result, pair in sense_pairs_of(results):
        arrays = {
            name: getattr(pair.separation, name)
            for name in ("auroc", "auroc_low", "auroc_high", "hedges_g")
        }
        arrays |= _causal([pair])
        arrays |= _tested(pair)
        arrays |= _attention(result, pair)
        arrays |= _near_and_far(pair)
        arrays |= _stands_in(pair)
        arrays |= _beside_nouns([pair])
        arrays["rerouted"] = _rerouted(pair)
        frame = by_head(arrays).astype(RANKS)
        frame["read_depth"] = [pair.reading.at[layer] for layer in frame["layer"]]
        frame["ambiguity_p"] = np.nan if pair.nouns is None else pair.nouns.p
        untrained_p = untrained.get((result.material.word, *pair.senses), 1.0)
        frame["confounded"] = float(untrained_p < GATE or pair.nuisance_p < LEVEL)
        frame["comparison"] = comparisons(frame)
        frame["verdict"] = verdicts(frame)
        parts.append(with_key(frame, key_of(result, pair)))
    return pd.concat(parts, ignore_index=True)


def _tested(pair: PairResult) -> dict[str, Array]:
    """Corrected p and false discovery rate of separation, swap, next token and continuations;
    missing where not swapped, and where what is measured was not shown to differ between the
    senses.
    """
    tested = dict.fromkeys(TESTED, _missing(pair))
    if pair.tests is None or pair.measured is None:
        return tested
    separation = pair.tests.separation
    swap = pair.tests.swap
    tested |= {"p_auroc": separation.p, "q_auroc": separation.q, "p_swap": swap.p, "q_swap": swap.q}
    tested["p_opposes"] = pair.tests.opposes.p
    for name, p in (("next_token", pair.next_token_p), ("continuation", pair.continuation_p)):
        test = getattr(pair.tests, name)
        effect = getattr(pair.measured, name)
        # A share of a difference that is not there is noise over noise.
        if test is not None and p < GATE:
            tested |= {name: effect.net.mean(0), f"p_{name}": test.p}
    return tested


def _missing(pair: PairResult) -> Array:
    """NaN for every head. `layer head`"""
    return np.full(pair.separation.auroc.shape, np.nan)


def _stands_in(pair: PairResult) -> dict[str, Array]:
    """The head that each one stands in for, with how much further swapping both moves the word;
    missing without one."""
    arrays = {name: _missing(pair) for name in STAND_IN}
    # The one that moves the word furthest last: where a head stands in for two, it stays.
    for stand_in in sorted(pair.stand_ins, key=lambda each: each.extra):
        values = (stand_in.extra, stand_in.p, *stand_in.first)
        for name, value in zip(STAND_IN, values, strict=True):
            arrays[name][stand_in.head] = value
    return arrays


def _near_and_far(pair: PairResult) -> dict[str, Array]:
    """The net effect with the cue next to the word, and further away; missing where distances are
    not known."""
    return {
        "net_near": _net_where(pair, lambda distance: distance == 1),
        "net_far": _net_where(pair, lambda distance: distance > 1),
    }


def _rerouted(pair: PairResult) -> Array:
    """How often a swap changed the route of the word; missing where nothing was swapped or no MLP
    is routed."""
    share = None if pair.measured is None else pair.measured.rerouted
    return _missing(pair) if share is None else share


def _net_where(pair: PairResult, keep: Callable[[int], bool]) -> Array:
    """`by_distance`; missing where nothing was swapped or no pair has such a distance."""
    if pair.effects is None:
        return _missing(pair)
    net = by_distance(pair.effects, pair.pairs.distances, keep)
    return _missing(pair) if net is None else net


def _causal(pairs: Sequence[PairResult]) -> dict[str, Array]:
    """Swap effects and ranks, means over these pairs of senses with intervals; all missing where
    there is no gap."""
    swapped = [(pair.measured, pair.pairs) for pair in pairs if pair.measured is not None]
    if not swapped:
        return dict.fromkeys(CAUSAL, _missing(pairs[0]))

    def mean(values: Iterable[Array]) -> Array:
        return np.asarray(np.mean(list(values), axis=0))

    ratios = ("denoise", "noise", "same_sense")
    columns = {name: mean(measured.word.ratio(name) for measured, _ in swapped) for name in ratios}
    columns["direct"] = mean(measured.written for measured, _ in swapped)
    columns["swap"] = (columns["denoise"] + columns["noise"]) / 2
    columns["self_repair"] = columns["swap"] - columns["direct"]
    net = columns["swap"] - columns["same_sense"]
    columns["net"] = net
    drawn = [measured.draws(swapped_pairs.bootstrap()) for measured, swapped_pairs in swapped]
    draws = {name: mean(each[name] for each in drawn) for name in drawn[0]}
    units = sum(len(set(swapped_pairs.units)) for _, swapped_pairs in swapped)
    for name, values in draws.items():
        low, high = resampling.interval(values, columns[name], units=units)
        columns[f"{name}_low"] = low
        columns[f"{name}_high"] = high
    has_heads = swapped[0][0].has_heads
    ranked = net[has_heads]
    ranks = resampling.ranks(ranked.ravel()).reshape(ranked.shape)
    ends = effects.rank_intervals(draws["net"][:, has_heads])
    for name, numbers in zip(RANKS, (ranks, *ends), strict=True):
        columns[name] = np.full(net.shape, np.nan)
        columns[name][has_heads] = numbers
    return {name: columns[name] for name in CAUSAL}


def word_heads(results: Sequence[WordResult], evidence: pd.DataFrame) -> pd.DataFrame:
    """One row per word, layer and head: means over the word's pairs of senses whose gap is there.

    `verdict` is the head's best one over these pairs, `resolves` in how many of them it is a
    resolver, `of` their number.
    """
    parts = []
    for result in results:
        passed = [pair for pair in result.pairs if pair.effects is not None]
        if not passed:
            continue
        looks = [_attention(result, pair) for pair in passed]
        arrays = {"auroc": np.mean([pair.separation.auroc for pair in passed], axis=0)}
        arrays |= _causal(passed)
        arrays |= _beside_nouns(passed)
        arrays |= {name: np.mean([look[name] for look in looks], axis=0) for name in ATTENTION}
        frame = by_head(arrays).astype(RANKS)
        rows = evidence[(evidence["word"] == result.material.word) & evidence["net"].notna()]
        frame = frame.merge(best_verdicts(rows), on=["layer", "head"])
        frame["comparison"] = comparisons(frame)
        parts.append(with_key(frame, {"word": result.material.word}))
    columns = ["word", "layer", "head", "auroc", *CAUSAL, *ATTENTION, *PARTS, "comparison"]
    columns += ["verdict", "resolves", "of"]
    return stacked(parts, columns)[columns].astype(RANKS)


def _attention(result: WordResult, pair: PairResult) -> dict[str, Array]:
    """Mean attention from the word to its cue (NaN without one), to its neighbours and to itself,
    over the pairs."""
    looks = result.states.attention_to(result.material.cues)
    used = sorted({*pair.pairs.a, *pair.pairs.b})
    return {
        f"attention_{name}": mean[used].double().nanmean(0).numpy() for name, mean in looks.items()
    }


def _beside_nouns(pairs: Sequence[PairResult]) -> dict[str, Array]:
    """The general and the specific part of every head. Missing unless nouns were compared in every
    pair of senses: the effect that they stand beside is the mean over all of them."""
    parts = [pair.nouns.heads for pair in pairs if pair.nouns and pair.nouns.heads]
    if len(parts) < len(pairs):
        return dict.fromkeys(PARTS, _missing(pairs[0]))
    return joined_parts(parts)


def controls(results: Sequence[WordResult]) -> pd.DataFrame:
    """One-meaning nouns in the word's place, a row per noun and depth: the squared gap between the
    senses, its share of the word's own, and how much of the word's axis the noun takes on. The rows
    of the word itself stand first.
    """
    parts = []
    for result, pair in sense_pairs_of(results):
        if pair.nouns is None or not pair.nouns.nouns:
            continue
        nouns = pair.nouns
        own = nouns.word_gap[int(np.argmax(nouns.sentences))]
        rows = [(result.material.word, own, np.ones_like(own), max(nouns.sentences), own * np.nan)]
        rows += zip(nouns.nouns, nouns.gap, nouns.shares, nouns.sentences, nouns.axis, strict=True)
        for noun, gap, share, sentences, axis in rows:
            columns = {"noun": noun, "depth": np.arange(len(gap)), "gap": gap}
            columns |= {"general_share": share, "shared_axis": axis, "sentences": sentences}
            parts.append(with_key(pd.DataFrame(columns), key_of(result, pair)))
    names = [*KEYS, "noun", "depth", "gap", "general_share", "shared_axis", "sentences"]
    return stacked(parts, names)


def mlps(results: Sequence[WordResult]) -> pd.DataFrame:
    """What every MLP does at the word, and the general and the specific part of it."""
    parts = []
    for result, pair in sense_pairs_of(results):
        if pair.nouns is None or pair.nouns.mlps is None:
            continue
        part = pair.nouns.mlps
        columns: dict[str, Any] = {"layer": np.arange(len(part.net)), "net": part.net}
        frame = pd.DataFrame(columns | joined_parts([part]))
        frame["comparison"] = comparisons(frame)
        parts.append(with_key(frame, key_of(result, pair)))
    return stacked(parts, [*KEYS, "layer", "net", *PARTS, "comparison"])


def mixers(results: Sequence[WordResult]) -> pd.DataFrame:
    """What stands in the place of attention in some layers of a hybrid: effects of its swaps at the
    word, a row per layer; empty for other models."""
    parts = []
    for result, pair in sense_pairs_of(results):
        if pair.measured is None or pair.measured.mixers is None:
            continue
        swapped = pair.measured.mixers
        draws = swapped.draws(pair.pairs.bootstrap())
        units = len(set(pair.pairs.units))
        layers = np.flatnonzero(~pair.measured.has_heads)
        values = {name: swapped.ratio(name) for name in ("denoise", "noise", "same_sense")}
        values["swap"] = swapped.swap
        values["net"] = swapped.swap - values["same_sense"]
        columns: dict[str, Any] = {"layer": layers}
        for name in MIXERS:
            columns[name] = values[name][:, 0]
            if name in draws:
                low, high = resampling.interval(draws[name], values[name], units=units)
                columns |= {f"{name}_low": low[:, 0], f"{name}_high": high[:, 0]}
        columns["read_depth"] = [pair.reading.at[layer] for layer in layers]
        parts.append(with_key(pd.DataFrame(columns), key_of(result, pair)))
    ends = [f"{name}{end}" for name in ("swap", "net") for end in ("_low", "_high")]
    return stacked(parts, [*KEYS, "layer", *MIXERS, *ends, "read_depth"])


def distances(results: Sequence[WordResult]) -> pd.DataFrame:
    """The net effect of every head by the distance from cue to word in tokens (4: four or more)."""
    parts = []
    for result, pair in sense_pairs_of(results):
        if pair.effects is None:
            continue
        known = {distance for distance in pair.pairs.distances if distance is not None}
        for distance in sorted(known):
            frame = by_head({"net": _net_where(pair, distance.__eq__)})
            parts.append(with_key(frame, key_of(result, pair) | {"distance": distance}))
    return stacked(parts, [*KEYS, "distance", "layer", "head", "net"])


def head_parts(results: Sequence[WordResult]) -> pd.DataFrame:
    """Every head in parts: where it looks, what it carries, what it takes from the cue, ablation;
    see `probe.experiments.head_parts`."""
    frames = []
    for result, pair in sense_pairs_of(results):
        parts = pair.head_parts
        if parts is None:
            continue
        arrays = dict.fromkeys(HEAD_PARTS, _missing(pair)) | parts.shares
        for name, (low, high) in parts.intervals().items():
            arrays |= {f"{name}_low": low, f"{name}_high": high}
        frame = by_head(arrays).assign(pairs=len(parts.pairs))
        frames.append(with_key(frame, key_of(result, pair)))
    return stacked(frames, [*KEYS, "layer", "head", *HEAD_PARTS, "pairs"])


def by_depth(results: Sequence[WordResult]) -> pd.DataFrame:
    """E beyond the same-sense donor of every head at every depth behind it where the senses can be
    told apart."""
    parts = []
    for result, pair in sense_pairs_of(results):
        if pair.measured is None:
            continue
        for depth in range(min(pair.reading.direct), pair.measured.profile.shape[-1] + 1):
            frame = by_head({"net": pair.measured.profile[..., depth - 1]})
            written = frame[frame["layer"] < depth].reset_index(drop=True)
            parts.append(with_key(written, key_of(result, pair) | {"depth": depth}))
    return stacked(parts, [*KEYS, "depth", "layer", "head", "net"])


def curves(results: Sequence[WordResult]) -> pd.DataFrame:
    """Faithfulness and necessity of the first `size` heads of the order; `added`: those that joined
    at this size."""
    parts = []
    for result in results:
        curve = result.curves
        if curve is None:
            continue
        added = []
        for smaller, size in pairwise((0, *curve.sizes)):
            joined = curve.order[smaller:size]
            added.append(", ".join(f"L{layer}H{head}" for layer, head in joined) or None)
        columns = {"size": curve.sizes, "added": added}
        for name in ("faithfulness", "necessity"):
            low, high = getattr(curve, f"{name}_interval")
            columns |= {name: getattr(curve, name), f"{name}_low": low, f"{name}_high": high}
        key = {
            "word": result.material.word,
            "area": curve.area,
            "smallest": curve.smallest,
            "pairs": curve.pairs,
        }
        parts.append(with_key(pd.DataFrame(columns), key))
    return stacked(parts, list(CURVES))


def random_sets(results: Sequence[WordResult]) -> pd.DataFrame:
    """Faithfulness of every random set, matched per layer to the first `size` heads of the
    order."""
    parts = []
    for result in results:
        curve = result.curves
        if curve is None:
            continue
        for size, values in zip(curve.random_sizes, curve.random, strict=True):
            rows = {"size": size, "faithfulness": values[~np.isnan(values)]}
            parts.append(with_key(pd.DataFrame(rows), {"word": result.material.word}))
    return stacked(parts, ["word", "size", "faithfulness"])


def depth_profile(results: Sequence[WordResult]) -> pd.DataFrame:
    """Mean sense coordinates and AUROC at every depth, held out; see `probe.stats.axes.profile`."""
    rows = []
    for result, pair in sense_pairs_of(results):
        stages = torch.cat([result.states.token_embedding[:, None], result.states.resid], dim=1)
        for here in axes.profile(pair.axes, stages, pair.split, result.depth, pair.by_depth):
            rows.append(key_of(result, pair) | {"label": depth_label(here.depth)} | asdict(here))
    return pd.DataFrame(rows)


def separation_controls(measured: Sequence[Controls]) -> pd.DataFrame:
    """Held-out AUROC of every head under every condition, for the clearest pair of senses of each
    word.

    `low` and `high`: the band of the permutations, of the row "labels permuted".
    """
    parts = []
    for control in measured:
        key = key_of(control.word, control.pair)
        for name, auroc in control.auroc.items():
            missing = np.full_like(auroc, np.nan)
            low, _, high = control.band if name == PERMUTED else (missing, missing, missing)
            about = key | {
                "condition": name,
                "untrained_p": control.untrained_p[control.pair.senses],
            }
            parts.append(with_key(by_head({"auroc": auroc, "low": low, "high": high}), about))
    return pd.concat(parts, ignore_index=True)


def depth_label(depth: int) -> str:
    """What has been added to the residual stream at a depth; -1 is the token embedding alone."""
    return {-1: "token", 0: "token + position"}.get(depth, f"after layer {depth - 1}")


def shares(model: Model, results: Sequence[WordResult]) -> pd.DataFrame:
    """Direct share of every component in the difference of sense means at the read-out; a pair's
    shares sum to 1."""
    rows = []
    # hooks may write what is no component
    counted = [] if model.origin.hooks else sense_pairs_of(results)
    for result, pair in counted:
        a = pair.rows(pair.senses[0])
        b = pair.rows(pair.senses[1])
        directions = pair.axes.directions([*a, *b])[:, result.depth]
        parts = decomposition.shares(
            read_weights(model), result.states, directions, result.depth, a, b
        )
        rows += [key_of(result, pair) | asdict(share) for share in parts]
    columns = [*KEYS, *(field.name for field in fields(decomposition.Share))]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({"layer": "Int64", "head": "Int64"})


def sentences(results: Sequence[WordResult]) -> pd.DataFrame:
    """Every usable sentence, whether it was tested or only learned from, and where its word was
    read."""
    rows = []
    for result in results:
        tested = {row for pair in result.pairs for row in pair.rows()}
        learned = {row for pair in result.pairs for row in pair.split.rows}
        for row, sentence in enumerate(result.material.sentences):
            positions = result.material.words[row]
            if row in tested:
                part = "tested"
            else:
                part = "learned from" if row in learned else "neither"
            fields = {name: getattr(sentence, name) for name in SENTENCE}
            fields |= {"position": positions[-1], "tokens_of_word": len(positions), "part": part}
            rows.append(fields)
    return pd.DataFrame(rows).astype(dict.fromkeys(("cue_start", "cue_end", "distance"), "Int64"))


def left_out(
    unread: Sequence[LeftOut], by_word: Iterable[tuple[str, Sequence[LeftOut]]]
) -> pd.DataFrame:
    """What was given and not used, with the reason; `unread` was left out while reading the file,
    before any word."""
    rows = [
        (word, item.where, item.reason)
        for word, items in ((None, unread), *by_word)
        for item in items
    ]
    return pd.DataFrame(rows, columns=["word", "where", "reason"])


def certificate_rows(certificate: Certificate) -> pd.DataFrame:
    """The certificate as a frame; layer is missing for rows about the whole model."""
    columns = ["layer", "quantity", "formula", "error", "scale", "tolerance", "ok"]
    rows = [[getattr(row, name) for name in columns] for row in certificate.rows]
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})
