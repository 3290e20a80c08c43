"""The sentences that a model reads as another sense than their label."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from probe.pages.sentences import marked
from probe.results.findings import WordFindings
from probe.stats.numbers import decimal

MOST_LISTED = 50  # sentences of a word; the table has all of them
Section = dict[str, Any]


def read_otherwise(findings: Mapping[str, WordFindings]) -> list[Section]:
    """For each word the number of tested sentences that are read as labelled, and a list of the
    others, the clearest first."""
    return [_of_word(finding) for finding in findings.values()]


def _of_word(finding: WordFindings) -> Section:
    rows = finding.rows["predictions"]
    wrong = rows[~rows["right"].astype(bool)]
    clearest = wrong["coordinate"].abs().sort_values(ascending=False, kind="stable").index
    listed = wrong.loc[clearest[:MOST_LISTED]]
    return {
        "word": finding.word,
        "tested": len(rows),
        "right": len(rows) - len(wrong),
        "several": len(finding.pairs) > 1,
        "first": finding.pairs[0].sense_a,
        "second": finding.pairs[0].sense_b,
        "layer": finding.read_depth - 1,
        "apart": all(pair.ranked for pair in finding.pairs),
        "rows": [_row(finding, row) for row in listed.to_dict("records")],
    }


def _row(finding: WordFindings, row: Mapping[Any, Any]) -> Section:
    sentence = finding.rows["sentences"].iloc[int(row["sentence"])].to_dict()
    return {
        "sense": row["sense"],
        "predicted": "" if pd.isna(row["predicted"]) else row["predicted"],
        "pair": f"{row['sense_a']} / {row['sense_b']}",
        "coordinate": decimal(row["coordinate"]),
        "words_before": int(row["words_before"]),
        "parts": marked(sentence),
    }
