"""The sections of a report that its answer depends on: the comparison with unambiguous nouns, gate,
power and controls, the certificate, the sentences used, and the tables to download.

Records and frames in, plain values and charts out; the sentences are in the templates.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from probe.pages.heads import head_facts
from probe.pages.words import among_nouns
from probe.results.columns import TABLES
from probe.results.findings import Frames, HeadFinding, PairOfSenses, WordFindings
from probe.stats.limits import FEW, FEW_CUES, FEWEST_NOUNS
from probe.stats.numbers import decimal, distance_percent, p_value
from probe.text.sentences import REPEATS

PARTS = ("tested", "learned from", "neither")
TABLE_ROWS = 10  # heads of a word in the table of the comparison with nouns
Section = dict[str, Any]


def controls_and_power(findings: Mapping[str, WordFindings]) -> Section:
    """Gate, power and controls of each word: the smallest sizes and the weakest of its pairs of
    senses."""
    words = [_controls_and_power(finding) for finding in findings.values()]
    return {
        "words": words,
        "few": FEW,
        "few_cues": FEW_CUES,
    }


def compared_with_nouns(findings: Mapping[str, WordFindings]) -> Section:
    """The word compared with unambiguous nouns in its place: a row for each ranked pair of senses,
    and a row for each top head that was compared."""
    ranked = [
        (finding, pair) for finding in findings.values() for pair in finding.pairs if pair.ranked
    ]
    heads = [(finding, head) for finding in findings.values() for head in _compared(finding)]
    return {
        "pairs": [_pair_beside_nouns(finding, pair) for finding, pair in ranked],
        "heads": [{"word": finding.word} | head_facts(head) for finding, head in heads],
        "fewest": FEWEST_NOUNS,
        "not_asked": any(math.isnan(pair.ambiguity_p) for _, pair in ranked),
    }


def _compared(finding: WordFindings) -> list[HeadFinding]:
    """The significant heads of a word, or else its top heads; only heads that were compared."""
    heads = finding.movers or finding.top_heads
    return [head for head in heads if head.comparison][:TABLE_ROWS]


def _pair_beside_nouns(finding: WordFindings, pair: PairOfSenses) -> Section:
    several = len(finding.pairs) > 1
    return {
        "word": finding.word,
        "pair": f"{pair.sense_a} / {pair.sense_b}" if several else "",
        "nouns": pair.nouns_compared,
        "share": distance_percent(pair.general_share) if pair.nouns_compared else "",
        "largest": distance_percent(pair.largest_share) if pair.nouns_compared else "",
        "place": among_nouns(pair),
        "farther": _changes_farther(pair),
    }


def _changes_farther(pair: PairOfSenses) -> str:
    """Whether the word changes farther than unambiguous nouns."""
    if math.isnan(pair.ambiguity_p):
        return "not compared"
    return "yes" if pair.ambiguous else "no"


def _controls_and_power(finding: WordFindings) -> Section:
    pairs = finding.pairs
    next_token = "not predicted"
    if finding.causal:
        next_token = _extreme([pair.next_token_p for pair in pairs], max, "≤")
    return {
        "word": finding.word,
        "apart": f"{sum(pair.ranked for pair in pairs)} of {len(pairs)}",
        "gate": _extreme([pair.gap_p for pair in pairs], max, "≤"),
        "untrained_p": _extreme([pair.untrained_p for pair in pairs], min, "≥"),
        "next_token": next_token,
        "sentences_fit": min(pair.sentences_fit for pair in pairs),
        "sentences_report": min(pair.sentences_report for pair in pairs),
        "cue_words": min(pair.cue_words for pair in pairs),
        "pairs": min(pair.pairs for pair in pairs),
        "visible_pairs": decimal(max(pair.visible_d_pairs for pair in pairs)),
        "exploratory": finding.exploratory,
    }


def _extreme(p: list[float], extreme: Callable[[Iterable[float]], float], sign: str) -> str:
    """The p of a word's pair of senses; of several the largest (≤) or the smallest (≥)."""
    text = p_value(extreme(p))
    return text if len(p) == 1 else text.replace("=", sign)


def certificate(frame: pd.DataFrame) -> Section:
    """How many comparisons hold, the worst of them, and every one from worst to best."""
    rows = frame.sort_values("error", ascending=False, kind="stable").to_dict("records")
    for row in rows:
        row.setdefault("where", "" if pd.isna(row["layer"]) else f"layer {row['layer']}")
    return {"rows": rows, "held": int(frame["ok"].sum()), "worst": rows[0]}


def data_used(findings: Mapping[str, WordFindings], left_out: pd.DataFrame) -> Section:
    """How many sentences of each word went where, by what design, and what was left out and why."""
    rows = [_data_of_word(finding) for finding in findings.values()]
    return {
        "rows": rows,
        "left_out": _left_out(left_out),
        "number_left_out": len(left_out),
        "several_tokens": any(row["tokens"] > 1 for row in rows),
    }


def _data_of_word(finding: WordFindings) -> Section:
    sentences = finding.rows["sentences"]
    words = finding.rows["words"]
    counts = sentences["part"].value_counts()
    return {
        "word": finding.word,
        "tokens": int(words["tokens_of_word"].max()),
        "unpaired": unpaired(sentences),
        "split": words["split_design"].iloc[0],
        "pairs": words["pair_design"].iloc[0],
    } | {part: int(counts.get(part, 0)) for part in PARTS}


def unpaired(sentences: pd.DataFrame) -> int:
    """Number of a word's sentences whose pair no sentence of another sense names, so that they
    cannot be swapped."""
    partners = sentences.groupby("pair")["sense"].transform("nunique")
    return int((partners == 1).sum())


def _left_out(left_out: pd.DataFrame) -> list[Section]:
    """Sentences left out by word and rule; repetitions count together, and so does what had no word
    yet."""
    repeats = left_out["reason"].str.startswith(REPEATS)
    rule = left_out["reason"].where(~repeats, f"{REPEATS} an earlier row")
    rows = pd.DataFrame({"word": left_out["word"].fillna(""), "reason": rule})
    counts: Any = rows.groupby(["word", "reason"], sort=False).size().reset_index(name="count")
    return list(counts.to_dict("records"))


def downloads(frames: Frames, contents: Mapping[str, str] = TABLES) -> list[Section]:
    """The tables in the page's folder, and `what` each holds."""
    return [download(name, len(frame), contents.get(name, "")) for name, frame in frames.items()]


def download(
    name: str, rows: int, contents: str, files: Sequence[str] = ("CSV", "Parquet")
) -> Section:
    """A table to download: in which folder and under which name, and as which files."""
    return {"name": name, "what": contents, "rows": rows, "files": files}
