"""The border between tensors and tables: results in, tidy pandas frames out. To its right there is no torch.

One frame per question, one row per observation, column names with their meaning and unit in `probe.study.columns`.
Numbers that were not measured are missing (NaN), never zero. Numbers are rounded to DIGITS significant digits, far
below their uncertainty, so that the same command writes the same bytes on one machine with one set of versions;
elsewhere the last may differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
import torch

from probe.model import ledger
from probe.model.check import Certificate
from probe.model.model import Model
from probe.model.weights import read_weights
from probe.stats import axes, permutation, resampling
from probe.study.columns import HEADS, KEYS, by_head, key_of, rounded, sense_pairs_of, with_key
from probe.study.controls import PERMUTED, Controls
from probe.study.cost import FEW, FEW_CUES
from probe.study.head_tables import by_depth, curves, distances, evidence, random_sets, routes, word_heads
from probe.study.word import WordResult
from probe.text.sentences import LeftOut


def frames(
    model: Model,
    results: Sequence[WordResult],
    certificate: Certificate,
    measured: Sequence[Controls],
    unread: Sequence[LeftOut] = (),
) -> dict[str, pd.DataFrame]:
    """Every frame that is made from the measurements alone, rounded."""
    shown = evidence(results, untrained(measured))
    made = {
        "words": words(results, untrained(measured)),
        "heads": shown[list(HEADS)],
        "verdicts": shown[[*KEYS, "layer", "head", "verdict", "because"]],
        "word_heads": word_heads(results, shown),
        "distances": distances(results),
        "routes": routes(results),
        "by_depth": by_depth(results),
        "curves": curves(results),
        "random_sets": random_sets(results),
        "depth": depth_profile(results),
        "shares": shares(model, results),
        "sentences": sentences(results),
        "left_out": left_out(results, unread),
        "controls": controls(measured),
        "certificate": certificate_rows(certificate),
    }
    return {name: rounded(frame) for name, frame in made.items()}


def untrained(measured: Sequence[Controls]) -> dict[tuple[str, ...], float]:
    """p of the gap in the untrained model, by word and senses."""
    return {
        (control.word.material.word, *senses): p for control in measured for senses, p in control.untrained_p.items()
    }


def words(results: Sequence[WordResult], untrained_p: Mapping[tuple[str, ...], float]) -> pd.DataFrame:
    """One row per word and pair of senses: how much material, where it was read, whether the gap is there."""
    rows = []
    for result, pair in sense_pairs_of(results):
        weights, units = pair.pairs.bootstrap(), len(set(pair.pairs.units))
        gap = pair.gap[:, result.depth]
        low, high = resampling.interval(weights @ gap / weights.sum(1), float(gap.mean()), units=units)
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
                "said_p": pair.said_p,
                "continued_p": pair.continued_p,
                "nuisance_p": pair.nuisance_p,
                "untrained_p": untrained_p.get((result.material.word, *pair.senses), 1.0),
                "negative_gaps": int((gap <= 0).sum()),
                "cue_words": units,
                "smallest_p": permutation.smallest_p(units),
                "visible_d_pairs": permutation.smallest_effect(units, tests=tests, paired=True),
                "exploratory": min(per_sense) < FEW or units < FEW_CUES,
                "ranked": pair.effects is not None,
            }
        )
    return pd.DataFrame(rows)


def depth_profile(results: Sequence[WordResult]) -> pd.DataFrame:
    """Mean sense coordinates and AUROC at every depth, held out; see `probe.stats.axes.profile`."""
    rows = []
    for result, pair in sense_pairs_of(results):
        stages = torch.cat([result.states.token_embedding[:, None], result.states.resid], dim=1)
        for here in axes.profile(pair.axes, stages, pair.split, result.depth, pair.by_depth):
            rows.append(key_of(result, pair) | {"label": depth_label(here.depth)} | asdict(here))
    return pd.DataFrame(rows)


def controls(measured: Sequence[Controls]) -> pd.DataFrame:
    """Held-out AUROC of every head under every condition, for the clearest pair of senses of each word.

    `low` and `high`: the band of the permutations, of the row "labels permuted".
    """
    parts = []
    for control in measured:
        key = key_of(control.word, control.pair)
        for name, auroc in control.auroc.items():
            low, _, high = control.band if name == PERMUTED else (np.full_like(auroc, np.nan),) * 3
            about = key | {"condition": name, "untrained_p": control.untrained_p[control.pair.senses]}
            parts.append(with_key(by_head({"auroc": auroc, "low": low, "high": high}), about))
    return pd.concat(parts, ignore_index=True)


def depth_label(depth: int) -> str:
    return {-1: "token", 0: "token + position"}.get(depth, f"after layer {depth - 1}")


def shares(model: Model, results: Sequence[WordResult]) -> pd.DataFrame:
    """Direct share of every component in the difference of sense means at the read-out; a pair's shares sum to 1."""
    rows = []
    for result, pair in sense_pairs_of(results):
        a, b = (pair.rows(sense) for sense in pair.senses)
        directions = pair.axes.directions([*a, *b])[:, result.depth]
        parts = ledger.shares(read_weights(model), result.states, directions, result.depth, a, b)
        rows += [key_of(result, pair) | asdict(share) for share in parts]
    return pd.DataFrame(rows).astype({"layer": "Int64", "head": "Int64"})


def sentences(results: Sequence[WordResult]) -> pd.DataFrame:
    """Every usable sentence, whether it was tested or only learned from, and where its word was read."""
    rows = []
    for result in results:
        material, tested = result.material, result.tested
        learned = {row for pair in result.pairs for row in pair.split.rows}
        for row, sentence in enumerate(material.sentences):
            positions = material.words[row]
            read = {"position": positions[-1], "tokens_of_word": len(positions)}
            used = {"part": "tested" if row in tested else "learned from" if row in learned else "neither"}
            rows.append({name: getattr(sentence, name) for name in _SENTENCE} | read | used)
    return pd.DataFrame(rows).astype(dict.fromkeys(("cue_start", "cue_end", "distance"), "Int64"))


_SENTENCE = ("word", "sense", "text", "start", "end", "frame", "pair", "cue_start", "cue_end", "distance")


def left_out(results: Sequence[WordResult], unread: Sequence[LeftOut]) -> pd.DataFrame:
    """What was given and not used, with the reason; `unread` was left out while reading the file, before any word."""
    rows: list[tuple[str | None, str, str]] = [(None, item.where, item.reason) for item in unread]
    for result in results:
        word = result.material.word
        rows += [(word, item.where, item.reason) for item in result.material.left_out]
        used = {row for pair in result.pairs for row in pair.split.rows}
        reasons = {row: reason for pair in result.pairs for row, reason in pair.split.left_out.items()}
        rows += [(word, result.sentences[row].text, reason) for row, reason in reasons.items() if row not in used]
    return pd.DataFrame(rows, columns=["word", "where", "reason"])


def certificate_rows(certificate: Certificate) -> pd.DataFrame:
    """The certificate as a frame; layer is missing for rows about the whole model."""
    columns = ["layer", "quantity", "formula", "error", "scale", "tolerance", "ok"]
    rows = [[getattr(row, name) for name in columns] for row in certificate.rows]
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})
