"""The border between tensors and tables: results in, tidy pandas frames out. To its right there is
no torch.

One frame per question, one row per observation, column names with their meaning and unit in
`probe.results.columns`. Numbers that were not measured are missing (NaN), never zero: so are
effects where the model does not separate the senses at the word, because nothing was swapped there.
Numbers are rounded to DIGITS significant digits, far below their uncertainty, so that the same
command writes the same bytes on one machine with one set of versions; elsewhere the last may
differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from probe.experiments.columns import KEYS, Columns, Table, key_of
from probe.experiments.record import SensePair, WordRecord
from probe.experiments.table import EXPERIMENTS
from probe.inference.nouns import PARTS, AmbiguityGate, NounEvidence, joined_parts
from probe.inference.verdicts import (
    REASONS,
    best_verdicts,
    comparisons,
    passes_gate,
    verdicts,
)
from probe.inference.within import (
    RAW,
    SWAP_COLUMNS,
    PairEvidence,
    WordEvidence,
    effects_of_swaps,
    head_arrays,
    in_units,
    net_where,
    noun_columns,
)
from probe.model.check import Certificate, Row
from probe.results import circuit
from probe.results.columns import ATTENTION, HEADS, RANKS
from probe.stats import resampling
from probe.stats.limits import GATE, LEVEL
from probe.stats.resampling import Array
from probe.text.cautions import words_before
from probe.text.sentences import LeftOut
from probe.tidy import by_head, rounded, stacked, with_key

FEW = 50  # sentences per sense: with fewer, a result is called exploratory
# Pairs of cue words: with fewer, no p of a swap comes below 2^-12 however clear the effect.
FEWEST_OF_A_FORM = 4  # pairs of sentences whose gap is given by itself
FEW_CUES = 12
NOT_ASKED_FOR = "no nouns were asked for"  # why a word was not compared with any
MIXERS = ("denoise", "noise", "swap", "same_sense", "net")
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
    evidence: Sequence[WordEvidence],
    certificate: Certificate,
    unread: Mapping[str | None, Sequence[LeftOut]],
) -> dict[str, pd.DataFrame]:
    """Every frame that is made from the measurements alone, rounded; without those of experiments
    that were run for none of the words.

    unread: what was left out before anything was measured, by word; None where it has no word.
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
    """Without the rows of heads in layers that have none."""
    if all(has_heads) or not {"layer", "head"} <= set(frame):
        return frame
    there = [
        pd.isna(head) or has_heads[layer]
        for layer, head in zip(frame["layer"], frame["head"], strict=True)
    ]
    return frame[np.array(there, dtype=bool)].reset_index(drop=True)


def pairs_of(evidence: Sequence[WordEvidence]) -> Iterator[tuple[WordRecord, PairEvidence]]:
    """Every pair of senses with the word that it is of."""
    for word in evidence:
        for pair in word.pairs:
            yield word.record, pair


def sense_pairs_of(records: Sequence[WordRecord]) -> Iterator[tuple[WordRecord, SensePair]]:
    """The same of records."""
    for record in records:
        for pair in record.pairs:
            yield record, pair


def of_experiments(records: Sequence[WordRecord]) -> dict[str, pd.DataFrame]:
    """The tables of the experiments that were run for any of the words, by name."""
    return {
        name: of_experiment(table, records)
        for experiment, row in EXPERIMENTS.items()
        if any(experiment in record.measured for record in records)
        for name, table in row.tables.items()
    }


def without_rows() -> dict[str, pd.DataFrame]:
    """The tables of all experiments without any rows: what stands for those that were not run."""
    empty = {"controls": controls([]), "mlps": mlps([])} | circuit.frames([], seed=0)
    for experiment in EXPERIMENTS.values():
        empty |= {name: of_experiment(table, []) for name, table in experiment.tables.items()}
    return empty


def of_experiment(table: Table, records: Sequence[WordRecord]) -> pd.DataFrame:
    """One table of an experiment."""
    parts = [_part(columns) for record in records for columns in table.parts(record)]
    frame = stacked(parts, list(table.columns))[list(table.columns)]
    return frame.astype(dict.fromkeys(table.missing, "Int64"))


def _part(columns: Columns) -> pd.DataFrame:
    """Some rows of a table; arrays `layer head` are a row per head."""
    arrays = {name: values for name, values in columns.items() if np.ndim(values) == 2}
    others = {name: value for name, value in columns.items() if name not in arrays}
    return with_key(by_head(arrays), others) if arrays else pd.DataFrame(others)


def words(evidence: Sequence[WordEvidence]) -> pd.DataFrame:
    """One row per word and pair of senses: how much material, where it was read, whether the gap is
    there."""
    rows = []
    for record, found in pairs_of(evidence):
        pair = found.record
        weights = pair.pairs.bootstrap()
        units = len(set(pair.pairs.units))
        gap = pair.gap[:, record.depth]
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
                **_by_form(record, pair),
                "next_token_p": pair.gates.next_token,
                "continuation_p": pair.gates.continuation,
                "nuisance_p": pair.gates.nuisance,
                "untrained_p": pair.gates.untrained,
                "negative_gaps": int((gap <= 0).sum()),
                "cue_words": units,
                "smallest_p": resampling.smallest_p(units, draws=len(found.separation.null) - 1),
                "visible_d_pairs": resampling.smallest_effect(
                    units, tests=found.separation.auroc.size, paired=True
                ),
                "exploratory": min(per_sense) < FEW or units < FEW_CUES,
                "ranked": pair.effects is not None,
            }
            | _gate(record, found)
        )
    return pd.DataFrame(rows)


def _by_form(record: WordRecord, pair: SensePair) -> dict[str, float]:
    """The gap over the pairs of sentences with the word in its dictionary form, and over the
    others; missing where these are fewer than FEWEST_OF_A_FORM."""
    plain = [sentence.form.casefold() == record.word.casefold() for sentence in record.sentences]
    both = np.array(
        [plain[a] and plain[b] for a, b in zip(pair.pairs.a, pair.pairs.b, strict=True)]
    )
    gap = pair.gap[:, record.depth]
    by_form = {"gap_form": gap[both], "gap_other_forms": gap[~both]}
    return {
        name: float(gaps.mean()) if len(gaps) >= FEWEST_OF_A_FORM else float("nan")
        for name, gaps in by_form.items()
    }


def _gate(record: WordRecord, found: PairEvidence) -> dict[str, object]:
    """How far unambiguous nouns change in the word's place, and whether the word goes further."""
    columns: dict[str, object] = {
        "general_share": np.nan,
        "largest_share": np.nan,
        "ambiguity_p": np.nan,
        "nouns": 0,
        "surprisal": np.nan,
        "surprisal_nouns": np.nan,
        "nouns_near": 0,
        "ambiguity_p_near": np.nan,
        "sentences_not_compared": 0,
        "not_compared": "",
    }
    nouns = found.nouns
    if found.record.effects is None:
        columns["not_compared"] = "the gap between the senses was not shown"
    elif nouns is None:
        columns["not_compared"] = NOT_ASKED_FOR
    else:
        shares = nouns.record.shares[list(nouns.gate.noun_numbers), record.depth]
        columns |= {
            "general_share": nouns.general_share(record.depth),
            "largest_share": float(shares.max()) if len(shares) else np.nan,
            "ambiguity_p": nouns.gate.p,
            "nouns": len(shares),
            "surprisal": _mean(nouns.record.word_surprisal),
            "surprisal_nouns": _mean(nouns.record.surprisal[list(nouns.gate.noun_numbers)]),
            "nouns_near": nouns.gate.near,
            "ambiguity_p_near": nouns.gate.p_near,
            "sentences_not_compared": nouns.record.sentences_left_out,
            "not_compared": nouns.gate.reason,
        }
    return columns


def _mean(numbers: Array) -> float:
    """The mean of those that are known, NaN where none is."""
    return float(np.nanmean(numbers)) if np.isfinite(numbers).any() else float("nan")


def _left_out(word: WordEvidence) -> list[LeftOut]:
    """The sentences that were not used, and the nouns that a user named and that were compared for
    no pair of senses."""
    measured = [pair.nouns.record for pair in word.pairs if pair.nouns is not None]
    compared = {noun for record in measured for noun in record.nouns}
    reasons: dict[str, str] = {}
    for record in measured:
        reasons |= record.left_out
    nouns = [LeftOut(noun, reason) for noun, reason in reasons.items() if noun not in compared]
    return [*word.record.left_out, *nouns]


def heads(evidence: Sequence[WordEvidence]) -> pd.DataFrame:
    """The heads table with everything a verdict rests on, and its reasons in words."""
    parts = []
    for record, found in pairs_of(evidence):
        pair = found.record
        frame = by_head(head_arrays(found)).astype(RANKS)
        frame["read_depth"] = [pair.reading.at[layer] for layer in frame["layer"]]
        frame["ambiguity_p"] = np.nan if found.nouns is None else found.nouns.gate.p
        frame["ambiguity_p_near"] = np.nan if found.nouns is None else found.nouns.gate.p_near
        with_gap = None if found.nouns is None else found.nouns.with_gap
        frame["nouns_with_gap"] = np.nan if with_gap is None else float(with_gap)
        is_confounded = pair.gates.untrained < GATE or pair.gates.nuisance < LEVEL
        frame["confounded"] = float(is_confounded)
        frame["comparison"] = comparisons(frame)
        frame["verdict"] = verdicts(frame)
        parts.append(with_key(frame, key_of(record, pair)))
    return pd.concat(parts, ignore_index=True)


def word_heads(evidence: Sequence[WordEvidence], all_heads: pd.DataFrame) -> pd.DataFrame:
    """One row per word, layer and head: means over the word's pairs of senses whose gap is there.

    `verdict` is the head's best one over these pairs, or resolver where a mover does more in the
    mean over them; `resolves` in how many of them it is a resolver, `of` their number.
    """
    parts = []
    for word in evidence:
        passed = [found for found in word.pairs if found.record.effects is not None]
        if not passed:
            continue
        pairs = [found.record for found in passed]
        arrays = {"auroc": np.mean([found.separation.auroc for found in passed], axis=0)}
        arrays |= effects_of_swaps(pairs)
        arrays |= noun_columns(passed) | in_units(passed)
        for name in ATTENTION:
            to_token = [pair.attention[name.removeprefix("attention_")] for pair in pairs]
            arrays[name] = np.mean(to_token, axis=0)
        frame = by_head(arrays).astype(RANKS)
        rows = all_heads[(all_heads["word"] == word.record.word) & all_heads["net"].notna()]
        frame = frame.merge(best_verdicts(rows), on=["layer", "head"])
        frame["comparison"] = comparisons(frame)
        gates = [found.nouns.gate for found in passed if found.nouns is not None]
        if any(passes_gate(_p_of(gate)) for gate in gates):
            # In the mean over its pairs of senses a head may do more where in none of them it does.
            more = (frame["verdict"] == "mover") & (frame["comparison"] == "more")
            frame.loc[more, "verdict"] = "resolver"
        parts.append(with_key(frame, {"word": word.record.word}))
    columns = ["word", "layer", "head", "auroc", *SWAP_COLUMNS, *ATTENTION, *PARTS, "comparison"]
    columns += ["verdict", "resolves", "of", *RAW]
    return stacked(parts, columns)[columns].astype(RANKS)


def _p_of(gate: AmbiguityGate) -> dict[str, float]:
    """The p of a gate, by the names of columns."""
    return {"ambiguity_p": gate.p, "ambiguity_p_near": gate.p_near}


def controls(evidence: Sequence[WordEvidence]) -> pd.DataFrame:
    """Unambiguous nouns in the word's place, a row per noun and depth: the squared gap between the
    senses, its share of the word's own, and how much of the word's axis the noun takes on. The rows
    of the word itself come first.
    """
    parts = []
    for record, found in pairs_of(evidence):
        if found.nouns is None or not found.nouns.gate.noun_numbers:
            continue
        for noun, columns in _noun_rows(record.word, found.nouns):
            frame = pd.DataFrame({"noun": noun} | columns)
            parts.append(with_key(frame, key_of(record, found.record)))
    names = [*KEYS, "noun", "depth", "gap", "general_share", "shared_axis", "sentences"]
    names.append("surprisal")
    return stacked(parts, names)


def _noun_rows(word: str, nouns: NounEvidence) -> Iterator[tuple[str, dict[str, Any]]]:
    """The columns of the word, and of every noun that was compared."""
    record = nouns.record
    most = max(nouns.gate.noun_numbers, key=lambda number: record.sentences[number])
    own = record.word_squared_gap[most]
    depth = np.arange(len(own))
    yield (
        word,
        {"depth": depth, "gap": own, "general_share": np.ones_like(own)}
        | {"shared_axis": own * np.nan, "sentences": record.sentences[most]}
        | {"surprisal": record.word_surprisal[most]},
    )
    for number in nouns.gate.noun_numbers:
        yield (
            record.nouns[number],
            {"depth": depth, "gap": record.squared_gap[number]}
            | {"general_share": record.shares[number], "shared_axis": record.shared_axis[number]}
            | {"sentences": record.sentences[number], "surprisal": record.surprisal[number]},
        )


def mlps(evidence: Sequence[WordEvidence]) -> pd.DataFrame:
    """What every MLP does at the word, and the general and the specific part of it."""
    parts = []
    for record, found in pairs_of(evidence):
        if found.nouns is None or found.nouns.mlps is None:
            continue
        part = found.nouns.mlps
        columns: dict[str, Any] = {"layer": np.arange(len(part.net)), "net": part.net}
        frame = pd.DataFrame(columns | dict(joined_parts([part])))
        frame["comparison"] = comparisons(frame)
        parts.append(with_key(frame, key_of(record, found.record)))
    return stacked(parts, [*KEYS, "layer", "net", *PARTS, "comparison"])


def mixers(records: Sequence[WordRecord]) -> pd.DataFrame:
    """What replaces attention in some layers of a hybrid: effects of its swaps at the word, a row
    per layer; empty for other models."""
    parts = []
    for record, pair in sense_pairs_of(records):
        if pair.swaps is None or pair.swaps.mixers is None:
            continue
        swapped = pair.swaps.mixers
        draws = swapped.draws(pair.pairs.bootstrap())
        units = len(set(pair.pairs.units))
        layers = np.flatnonzero(~pair.swaps.has_heads)
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
        parts.append(with_key(pd.DataFrame(columns), key_of(record, pair)))
    ends = [f"{name}{end}" for name in ("swap", "net") for end in ("_low", "_high")]
    return stacked(parts, [*KEYS, "layer", *MIXERS, *ends, "read_depth"])


def distances(records: Sequence[WordRecord]) -> pd.DataFrame:
    """The net effect of every head by the distance from cue to word in tokens (4: four or more)."""
    parts = []
    for record, pair in sense_pairs_of(records):
        if pair.effects is None:
            continue
        known = {distance for distance in pair.pairs.distances if distance is not None}
        for distance in sorted(known):
            frame = by_head({"net": net_where(pair, distance.__eq__)})
            parts.append(with_key(frame, key_of(record, pair) | {"distance": distance}))
    return stacked(parts, [*KEYS, "distance", "layer", "head", "net"])


def by_depth(records: Sequence[WordRecord]) -> pd.DataFrame:
    """E beyond the same-sense donor of every head at every depth after it where the senses can be
    told apart."""
    parts = []
    for record, pair in sense_pairs_of(records):
        if pair.swaps is None:
            continue
        for depth in range(min(pair.reading.direct), pair.swaps.profile.shape[-1] + 1):
            frame = by_head({"net": pair.swaps.profile[..., depth - 1]})
            written = frame[frame["layer"] < depth].reset_index(drop=True)
            parts.append(with_key(written, key_of(record, pair) | {"depth": depth}))
    return stacked(parts, [*KEYS, "depth", "layer", "head", "net"])


def depth_profile(records: Sequence[WordRecord]) -> pd.DataFrame:
    """Mean sense coordinates and AUROC at every depth, held out; see `probe.stats.axes.profile`."""
    rows = []
    for record, pair in sense_pairs_of(records):
        for here in pair.profile:
            rows.append(key_of(record, pair) | {"label": depth_label(here.depth)} | asdict(here))
    return pd.DataFrame(rows)


def depth_label(depth: int) -> str:
    """What has been added to the residual stream at a depth; -1 is the token embedding alone."""
    return {-1: "token", 0: "token + position"}.get(depth, f"after layer {depth - 1}")


def sentences(records: Sequence[WordRecord]) -> pd.DataFrame:
    """Every usable sentence, whether it was tested or only learned from, and where its word was
    read."""
    rows = []
    for record in records:
        tested = {row for pair in record.pairs for row in pair.rows()}
        learned = {row for pair in record.pairs for row in pair.split.rows}
        for row, sentence in enumerate(record.sentences):
            if row in tested:
                part = "tested"
            else:
                part = "learned from" if row in learned else "neither"
            fields = {name: getattr(sentence, name) for name in SENTENCE}
            fields |= {"position": record.positions[row]}
            fields |= {"tokens_of_word": record.tokens_of_word[row], "part": part}
            rows.append(fields)
    return pd.DataFrame(rows).astype(dict.fromkeys(("cue_start", "cue_end", "distance"), "Int64"))


def predictions(records: Sequence[WordRecord]) -> pd.DataFrame:
    """How every tested sentence is read at the read-out layer, held out: its sense coordinate, the
    sense that it is nearest to, and whether that is the one given. A row per sentence and pair of
    senses."""
    rows = []
    for record, pair in sense_pairs_of(records):
        for number, coordinate in zip(pair.rows(), pair.coordinates.tolist(), strict=True):
            sentence = record.sentences[number]
            predicted = None
            if coordinate != 0:  # exactly 0: the senses are one and the same vector to the model
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
    """What was given and not used, with the reason.

    unread: as in `frames`.
    by_word: what was not used of the sentences of each word.
    """
    rows = [
        (word, item.where, item.reason)
        for word in (None, *by_word)
        for item in (*unread.get(word, ()), *by_word.get(word or "", ()))
    ]
    return pd.DataFrame(rows, columns=["word", "where", "reason"])


def certificate_rows(certificate: Certificate) -> pd.DataFrame:
    """The certificate as a frame; layer is missing for rows about the whole model."""
    columns = [*Row.__annotations__, "ok"]
    rows = [[getattr(row, name) for name in columns] for row in certificate.rows]
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})
