"""The tables of a report: tidy pandas frames of the measurements. What uses them needs no torch.

Each frame answers one question and has one row for each observation. `probe.results.columns` has
the meaning and unit of every column. Numbers that were not measured are missing (NaN), never zero.
Effects are missing if the model does not separate the senses at the word, because no head is
swapped then. Numbers are rounded to DIGITS significant digits (`probe.tidy`), far below their
uncertainty, so that the same command writes the same bytes on one machine with one set of versions.
With others the last digit may differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from probe.experiments.columns import KEYS, Table, key_of
from probe.experiments.record import SensePair, WordRecord
from probe.experiments.table import every_experiment
from probe.inference.nouns import NounEvidence, joined_parts
from probe.inference.verdicts import (
    PARTS,
    REASONS,
    WRITES,
    best_verdicts,
    comparisons,
    does_it_itself,
    passes_gate,
    verdicts,
)
from probe.inference.within import PairEvidence, WordEvidence
from probe.model.check import Certificate, Row
from probe.results.columns import ATTENTION, HEADS, RANKS
from probe.results.head_columns import (
    SWAP_COLUMNS,
    head_arrays,
    net_where,
    noun_columns,
    swap_columns,
)
from probe.stats import resampling
from probe.stats.limits import GATE, LEVEL
from probe.stats.resampling import Array
from probe.text.cautions import words_before
from probe.text.sentences import LeftOut
from probe.text.spans import fold
from probe.tidy import by_head, rounded, stacked, with_key

FEW = 50  # sentences per sense: with fewer, a result is called exploratory
# Pairs of cue words. With fewer, no p of a swap is below 2^-12, however clear the effect.
FEW_CUES = 12
# Pairs of sentences with the word in one form. With fewer, the form's gap is not reported.
FEWEST_OF_A_FORM = 4
NOT_ASKED_FOR = "no nouns were asked for"  # why a word was not compared with nouns
MIXERS = ("denoise", "noise", "swap", "same_sense", "net")
# The fields of a sentence that are columns of its table.
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
    evidence: Sequence[WordEvidence],
    certificate: Certificate,
    unread: Mapping[str | None, Sequence[LeftOut]],
) -> dict[str, pd.DataFrame]:
    """Every frame that follows from the measurements alone, rounded.

    certificate: the comparison of the hooked model with the raw weights
    unread: sentences that were left out before the measurements, by word; None for sentences
        without a word

    Tables of experiments that were not run for any word are left out.
    """
    records = [word.record for word in evidence]
    all_heads = heads(evidence)
    tables = {
        "words": words(evidence),
        "heads": all_heads[list(HEADS)],
        "verdicts": all_heads[[*KEYS, "layer", "head", "verdict", *REASONS]],
        "word_heads": word_heads(evidence, all_heads),
        "distances": distances(records),
        "by_depth": by_depth(records),
        "depth": depth_profile(records),
        "sentences": sentences(records),
        "predictions": predictions(records),
        "left_out": left_out(unread, {word.record.word: _left_out(word) for word in evidence}),
        "controls": controls(evidence),
        "mlps": mlps(evidence),
        "mixers": mixers(records),
        "certificate": certificate_rows(certificate),
    }
    if not any("nouns" in record.measured for record in records):
        del tables["controls"], tables["mlps"]
    tables |= of_experiments(records)
    has_heads = records[0].has_heads
    return {name: rounded(_of_heads(frame, has_heads)) for name, frame in tables.items()}


def _of_heads(frame: pd.DataFrame, has_heads: Sequence[bool]) -> pd.DataFrame:
    """The frame without rows of heads in the layers of a hybrid that have no heads."""
    if all(has_heads) or not {"layer", "head"} <= set(frame):
        return frame
    exists = [
        pd.isna(head) or has_heads[layer]
        for layer, head in zip(frame["layer"], frame["head"], strict=True)
    ]
    return frame[np.array(exists, dtype=bool)].reset_index(drop=True)


def pairs_of(evidence: Sequence[WordEvidence]) -> Iterator[tuple[WordRecord, PairEvidence]]:
    """The evidence of every pair of senses, with the record of its word."""
    for word in evidence:
        for pair in word.pairs:
            yield word.record, pair


def sense_pairs_of(records: Sequence[WordRecord]) -> Iterator[tuple[WordRecord, SensePair]]:
    """The measurements of every pair of senses, with the record of its word."""
    for record in records:
        for pair in record.pairs:
            yield record, pair


def of_experiments(records: Sequence[WordRecord]) -> dict[str, pd.DataFrame]:
    """The tables of the experiments that were run for any of the words, by name."""
    tables: dict[str, pd.DataFrame] = {}
    for experiment, room in every_experiment().items():
        run = [record for record in records if experiment in record.measured]
        if run:
            for name, table in room.TABLES.items():
                results = [(record, of_table(record.measured[experiment], name)) for record in run]
                tables[name] = of_experiment(table, results)
    return tables


def of_table(result: Any, name: str) -> Any:
    """The part of an experiment's result that belongs to one of its tables. None without rows."""
    return result.get(name) if isinstance(result, dict) else result


def without_rows() -> dict[str, pd.DataFrame]:
    """The tables of all experiments without rows, for experiments that were not run."""
    empty = {"controls": controls([]), "mlps": mlps([])}
    for room in every_experiment().values():
        empty |= {name: of_experiment(table, []) for name, table in room.TABLES.items()}
    return empty


def of_experiment(table: Table, results: Sequence[tuple[WordRecord, Any]]) -> pd.DataFrame:
    """One table of an experiment.

    results: the words in which the experiment was run, with its results
    """
    parts = [table.rows(record, result) for record, result in results if result is not None]
    columns = list(table.columns)
    frame = stacked([part for part in parts if len(part)], columns)[columns]
    return frame.astype(dict.fromkeys(table.missing, "Int64"))


def words(evidence: Sequence[WordEvidence]) -> pd.DataFrame:
    """The frame `words`: a row for each word and pair of senses, with sample sizes, the read-out
    layer, the gap and its tests.
    """
    rows = []
    for record, pair_evidence in pairs_of(evidence):
        pair = pair_evidence.record
        weights = pair.pairs.bootstrap()
        units = len(set(pair.pairs.units))
        gap = pair.gap[:, record.depth]
        # Bootstrap means of the gap: Σ w g / Σ w over the pairs of sentences.
        low, high = resampling.interval(
            weights @ gap / weights.sum(1), float(gap.mean()), units=units
        )
        per_sense = [len(pair.rows(sense)) for sense in pair.senses]
        rows.append(
            key_of(record, pair)
            | {
                "sentences_fit": min(len(holdout.train) for holdout in pair.split.holdouts),
                "sentences_report": sum(per_sense),
                "pairs": len(pair.pairs),
                "pair_design": pair.pairs.design,
                "split_design": pair.split.design,
                "tokens_of_word": max(record.tokens_of_word),
                "causal": record.causal,
                "depth": record.depth,
                "auroc": float(pair.by_depth[record.depth]),
                "gap": float(gap.mean()),
                "gap_low": float(low),
                "gap_high": float(high),
                "gap_p": pair.gates.gap,
                "smallest_gap_p": resampling.smallest_gap_p(pair.split),
                **_by_form(record, pair),
                "next_token_p": pair.gates.next_token,
                "continuation_p": pair.gates.continuation,
                "nuisance_p": pair.gates.nuisance,
                "untrained_p": pair.gates.untrained,
                "negative_gaps": int((gap <= 0).sum()),
                "cue_words": units,
                "smallest_p": resampling.smallest_p(
                    units, draws=pair_evidence.separation.permutations
                ),
                "visible_d_pairs": resampling.smallest_effect(
                    units, tests=pair_evidence.separation.auroc.size, paired=True
                ),
                "exploratory": min(per_sense) < FEW or units < FEW_CUES,
                "ranked": pair.effects is not None,
            }
            | _gate(record, pair_evidence)
        )
    return pd.DataFrame(rows)


def _by_form(record: WordRecord, pair: SensePair) -> dict[str, float]:
    """The gap over the pairs of sentences with the word in its dictionary form, and over the other
    pairs. NaN for fewer than FEWEST_OF_A_FORM pairs.
    """
    plain = [fold(sentence.form) == fold(record.word) for sentence in record.sentences]
    # A pair belongs to the dictionary form only if both of its sentences have it.
    both = np.array(
        [plain[a] and plain[b] for a, b in zip(pair.pairs.a, pair.pairs.b, strict=True)]
    )
    gap = pair.gap[:, record.depth]
    by_form = {"gap_form": gap[both], "gap_other_forms": gap[~both]}
    return {
        name: float(gaps.mean()) if len(gaps) >= FEWEST_OF_A_FORM else float("nan")
        for name, gaps in by_form.items()
    }


def _gate(record: WordRecord, evidence: PairEvidence) -> dict[str, object]:
    """The columns of `words` about the ambiguity gate and the nouns in the word's place."""
    columns: dict[str, object] = {
        "general_share": np.nan,
        "largest_share": np.nan,
        "ambiguity_p": np.nan,
        "nouns_compared": 0,
        "surprisal": np.nan,
        "surprisal_nouns": np.nan,
        "nouns_near": 0,
        "ambiguity_p_near": np.nan,
        "sentences_not_compared": 0,
        "not_compared": "",
    }
    nouns = evidence.nouns
    if evidence.record.effects is None:
        columns["not_compared"] = "the gap between the senses is not significant"
    elif nouns is None:
        columns["not_compared"] = NOT_ASKED_FOR
    else:
        shares = nouns.record.shares[list(nouns.gate.noun_numbers), record.depth]
        columns |= {
            "general_share": nouns.general_share(record.depth),
            "largest_share": float(shares.max()) if len(shares) else np.nan,
            "ambiguity_p": nouns.gate.p,
            "nouns_compared": len(shares),
            "surprisal": _mean(nouns.record.word_surprisal),
            "surprisal_nouns": _mean(nouns.record.surprisal[list(nouns.gate.noun_numbers)]),
            "nouns_near": nouns.gate.near,
            "ambiguity_p_near": nouns.gate.p_near,
            "sentences_not_compared": nouns.record.sentences_left_out,
            "not_compared": nouns.gate.reason,
        }
    return columns


def _mean(numbers: Array) -> float:
    """The mean of the finite numbers. NaN if there are none."""
    return float(np.nanmean(numbers)) if np.isfinite(numbers).any() else float("nan")


def _left_out(word: WordEvidence) -> list[LeftOut]:
    """The sentences that were not used, and the user's nouns that were not compared for any pair of
    senses.
    """
    measured = [pair.nouns.record for pair in word.pairs if pair.nouns is not None]
    compared = {noun for record in measured for noun in record.nouns}
    reasons: dict[str, str] = {}
    for record in measured:
        reasons |= record.left_out
    nouns = [LeftOut(noun, reason) for noun, reason in reasons.items() if noun not in compared]
    return [*word.record.left_out, *nouns]


def heads(evidence: Sequence[WordEvidence]) -> pd.DataFrame:
    """The columns of the frames `heads` and `verdicts`: every head for every pair of senses, with
    the verdict and all numbers that it depends on.
    """
    parts = []
    for record, pair_evidence in pairs_of(evidence):
        pair = pair_evidence.record
        nouns = pair_evidence.nouns
        frame = by_head(head_arrays(pair_evidence)).astype(RANKS)
        frame["read_depth"] = [pair.reading.at[layer] for layer in frame["layer"]]
        frame["ambiguity_p"] = np.nan if nouns is None else nouns.gate.p
        frame["nouns_compared"] = 0 if nouns is None else len(nouns.gate.noun_numbers)
        frame["misplaced"] = float(pair.gates.nuisance < LEVEL)
        frame["untrained"] = float(pair.gates.untrained < GATE)
        frame["comparison"] = comparisons(frame)
        frame["verdict"] = verdicts(frame)
        parts.append(with_key(frame, key_of(record, pair)))
    return pd.concat(parts, ignore_index=True)


def word_heads(evidence: Sequence[WordEvidence], all_heads: pd.DataFrame) -> pd.DataFrame:
    """The frame `word_heads`: a row for each word, layer and head, with means over the word's pairs
    of senses with a significant gap.

    verdict: the strongest one over these pairs. A resolver of the word is a mover that passes in
        the mean over the pairs. One that passes for single pairs only is a mover of the word.
    resolves: in how many of these pairs the head is a resolver
    of: the number of these pairs
    """
    parts = []
    for word in evidence:
        with_gap = [pair for pair in word.pairs if pair.record.effects is not None]
        if not with_gap:
            continue
        pairs = [pair.record for pair in with_gap]
        arrays = {"auroc": np.mean([pair.separation.auroc for pair in with_gap], axis=0)}
        arrays |= swap_columns(pairs)
        arrays |= noun_columns(with_gap)
        for name in ATTENTION:
            to_token = [pair.attention[name.removeprefix("attention_")] for pair in pairs]
            arrays[name] = np.mean(to_token, axis=0)
        frame = by_head(arrays).astype(RANKS)
        rows = all_heads[(all_heads["word"] == word.record.word) & all_heads["net"].notna()]
        frame = frame.merge(best_verdicts(rows), on=["layer", "head"])
        frame["comparison"] = comparisons(frame)
        gates = [
            {"ambiguity_p": pair.nouns.gate.p, "nouns_compared": len(pair.nouns.gate.noun_numbers)}
            for pair in with_gap
            if pair.nouns is not None
        ]
        moves = frame["verdict"].isin(("mover", "resolver"))
        frame.loc[moves, "verdict"] = "mover"
        if any(map(passes_gate, gates)):
            frame.loc[moves & does_it_itself(frame), "verdict"] = "resolver"
        parts.append(with_key(frame, {"word": word.record.word}))
    columns = ["word", "layer", "head", "auroc", *SWAP_COLUMNS, *ATTENTION, *PARTS, "comparison"]
    columns += ["verdict", "resolves", "of", *WRITES]
    return stacked(parts, columns)[columns].astype(RANKS)


def controls(evidence: Sequence[WordEvidence]) -> pd.DataFrame:
    """The frame `controls`: a row for each unambiguous noun in the word's place and each depth.

    It has the squared gap between the senses, its ratio to the word's, and the distance between the
    senses along the word's axis. The rows of the word itself come first.
    """
    parts = []
    for record, pair in pairs_of(evidence):
        if pair.nouns is None or not pair.nouns.gate.noun_numbers:
            continue
        for noun, columns in _noun_rows(record.word, pair.nouns):
            frame = pd.DataFrame({"noun": noun} | columns)
            parts.append(with_key(frame, key_of(record, pair.record)))
    names = [*KEYS, "noun", "depth", "gap", "general_share", "shared_axis", "sentences"]
    names.append("surprisal")
    return stacked(parts, names)


def _noun_rows(word: str, nouns: NounEvidence) -> Iterator[tuple[str, dict[str, Any]]]:
    """The columns of the word, then of every compared noun, with their names.

    The word's numbers are from the sentences of the noun with the largest number of sentences.
    """
    record = nouns.record
    widest = max(nouns.gate.noun_numbers, key=lambda number: record.sentences[number])
    gap = record.word_squared_gap[widest]
    depth = np.arange(len(gap))
    yield (
        word,
        {"depth": depth, "gap": gap, "general_share": np.ones_like(gap)}
        | {"shared_axis": gap * np.nan, "sentences": record.sentences[widest]}
        | {"surprisal": record.word_surprisal[widest]},
    )
    for number in nouns.gate.noun_numbers:
        yield (
            record.nouns[number],
            {"depth": depth, "gap": record.squared_gap[number]}
            | {"general_share": record.shares[number], "shared_axis": record.shared_axis[number]}
            | {"sentences": record.sentences[number], "surprisal": record.surprisal[number]},
        )


def mlps(evidence: Sequence[WordEvidence]) -> pd.DataFrame:
    """The frame `mlps`: how far every MLP moves the word, and nouns in its place."""
    parts = []
    for record, pair in pairs_of(evidence):
        if pair.nouns is None or pair.nouns.mlps is None:
            continue
        effects = pair.nouns.mlps
        columns: dict[str, Any] = {"layer": np.arange(len(effects.net)), "net": effects.net}
        frame = pd.DataFrame(columns | dict(joined_parts([effects])))
        frame["comparison"] = comparisons(frame)
        parts.append(with_key(frame, key_of(record, pair.record)))
    return stacked(parts, [*KEYS, "layer", "net", *PARTS, "comparison"])


def mixers(records: Sequence[WordRecord]) -> pd.DataFrame:
    """The frame `mixers`: the swap effects of the mixers that replace attention in some layers of a
    hybrid, a row for each such layer.

    Empty for other models.
    """
    parts = []
    for record, pair in sense_pairs_of(records):
        if pair.swaps is None or pair.swaps.mixers is None:
            continue
        effects = pair.swaps.mixers
        draws = effects.draws(pair.pairs.bootstrap())
        units = len(set(pair.pairs.units))
        layers = np.flatnonzero(~pair.swaps.has_heads)
        values = {name: effects.ratio(name) for name in ("denoise", "noise", "same_sense")}
        values["swap"] = effects.swap
        values["net"] = effects.swap - values["same_sense"]
        columns: dict[str, Any] = {"layer": layers}
        # A mixer is swapped as a whole, so the head axis has a single entry.
        for name in MIXERS:
            columns[name] = values[name][:, 0]
            if name in draws:
                low, high = resampling.interval(draws[name], values[name], units=units)
                columns |= {f"{name}_low": low[:, 0], f"{name}_high": high[:, 0]}
        columns["read_depth"] = [pair.reading.at[layer] for layer in layers]
        parts.append(with_key(pd.DataFrame(columns), key_of(record, pair)))
    ends = [f"{name}{end}" for name in ("swap", "net") for end in ("_low", "_high")]
    return stacked(parts, [*KEYS, "layer", *MIXERS, *ends, "read_depth"])


def distances(records: Sequence[WordRecord]) -> pd.DataFrame:
    """The frame `distances`: the net effect of every head by the distance from the cue to the word
    in tokens. 4 means four or more.
    """
    parts = []
    for record, pair in sense_pairs_of(records):
        if pair.effects is None:
            continue
        lengths = {distance for distance in pair.pairs.distances if distance is not None}
        for distance in sorted(lengths):
            frame = by_head({"net": net_where(pair, distance.__eq__)})
            parts.append(with_key(frame, key_of(record, pair) | {"distance": distance}))
    return stacked(parts, [*KEYS, "distance", "layer", "head", "net"])


def by_depth(records: Sequence[WordRecord]) -> pd.DataFrame:
    """The frame `by_depth`: the net effect of every head at every depth after it at which the
    senses are separated.
    """
    parts = []
    for record, pair in sense_pairs_of(records):
        if pair.swaps is None:
            continue
        for depth in range(min(pair.reading.direct), pair.swaps.profile.shape[-1]):
            frame = by_head({"net": pair.swaps.profile[..., depth]})
            # A head changes the stream only at depths after its layer.
            before = frame[frame["layer"] < depth].reset_index(drop=True)
            parts.append(with_key(before, key_of(record, pair) | {"depth": depth}))
    return stacked(parts, [*KEYS, "depth", "layer", "head", "net"])


def depth_profile(records: Sequence[WordRecord]) -> pd.DataFrame:
    """The frame `depth`: mean held-out sense coordinates and AUROC at every depth, from
    `probe.stats.axes.profile`.
    """
    rows = []
    for record, pair in sense_pairs_of(records):
        for here in pair.profile:
            rows.append(key_of(record, pair) | {"label": depth_label(here.depth)} | asdict(here))
    return pd.DataFrame(rows)


def depth_label(depth: int) -> str:
    """A depth in words: the last addition to the residual stream. -1 is the token embedding."""
    return {-1: "token", 0: "token + position"}.get(depth, f"after layer {depth - 1}")


def sentences(records: Sequence[WordRecord]) -> pd.DataFrame:
    """The frame `sentences`: every usable sentence, whether it was tested or used for fitting only,
    and the position at which its word was read.
    """
    rows = []
    for record in records:
        # A sentence counts as tested if any pair of senses tests it.
        tested = {row for pair in record.pairs for row in pair.rows()}
        used = {row for pair in record.pairs for row in pair.split.rows}
        for row, sentence in enumerate(record.sentences):
            if row in tested:
                part = "tested"
            else:
                part = "learned from" if row in used else "neither"
            fields = {name: getattr(sentence, name) for name in SENTENCE}
            fields |= {"position": record.positions[row]}
            fields |= {"tokens_of_word": record.tokens_of_word[row], "part": part}
            rows.append(fields)
    return pd.DataFrame(rows).astype(dict.fromkeys(("cue_start", "cue_end", "distance"), "Int64"))


def predictions(records: Sequence[WordRecord]) -> pd.DataFrame:
    """The frame `predictions`: a row for each tested sentence and pair of senses, with the held-out
    sense coordinate at the read-out layer, the nearest sense, and whether that is the labelled one.
    """
    rows = []
    for record, pair in sense_pairs_of(records):
        for number, coordinate in zip(pair.rows(), pair.coordinates.tolist(), strict=True):
            sentence = record.sentences[number]
            predicted = None
            if coordinate != 0:  # exactly 0 if the model gives both senses the same vector
                predicted = pair.senses[0] if coordinate > 0 else pair.senses[1]
            fields = {
                "sense": sentence.sense,
                "predicted": predicted,
                "right": predicted == sentence.sense,
                "coordinate": coordinate,
                "cue": sentence.cue,
                "words_before": words_before(sentence),
                "sentence": number,
                "text": sentence.text,
            }
            rows.append(key_of(record, pair) | fields)
    return pd.DataFrame(rows)


def left_out(
    unread: Mapping[str | None, Sequence[LeftOut]], by_word: Mapping[str, Sequence[LeftOut]]
) -> pd.DataFrame:
    """The frame `left_out`: the input that was not used, with the reason.

    unread: as in `frames`
    by_word: the sentences and nouns of each word that were not used
    """
    rows = [
        (word, item.where, item.reason)
        for word in (None, *by_word)
        for item in (*unread.get(word, ()), *by_word.get(word or "", ()))
    ]
    return pd.DataFrame(rows, columns=["word", "where", "reason"])


def certificate_rows(certificate: Certificate) -> pd.DataFrame:
    """The frame `certificate`. `layer` is missing in rows about the whole model."""
    columns = [*Row.__annotations__, "ok"]
    rows = [[getattr(row, name) for name in columns] for row in certificate.rows]
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})
