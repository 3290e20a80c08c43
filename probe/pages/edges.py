"""The section "From the cue to the word": maps by position and the top edges of each ranked word.

Records in, plain values and charts out.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from probe import charts
from probe.results.findings import Frames, Row, WordFindings
from probe.stats.numbers import decimal, measured, p_value, percent

TABLE_ROWS = 20  # edges of the table on the page
Section = dict[str, Any]


def section(findings: Mapping[str, WordFindings], frames: Frames) -> Section:
    """The positions and edges of every ranked word, or the reason why it was not traced, and the
    limit of the scale of the maps."""
    positions = frames["positions"]
    return {
        "limit": percent(charts.position_limit(positions)) if len(positions) else "",
        "words": [_of_word(finding, positions) for finding in findings.values() if finding.ranked],
    }


def _of_word(finding: WordFindings, all_positions: pd.DataFrame) -> Section:
    positions = finding.rows["positions"]
    edges = finding.rows["edges"]
    if positions.empty:
        empty: Section = {"edges": [], "charts": [], "circuit": None}
        return empty | {"word": finding.word, "missing": why_not(finding)}
    first = positions.iloc[0]
    return {
        "word": finding.word,
        "missing": "",
        "senses": (first["sense_a"], first["sense_b"]),
        "pairs": int(positions["pairs"].max()),
        "circuit": charts.circuit(edges, positions, finding.word),
        # All words' positions, so that their maps share a scale.
        "charts": charts.position_maps(all_positions, finding.word),
        "compared": bool((edges["comparison"] != "").any()),
        "composed": bool(edges.head(TABLE_ROWS)["composition"].notna().any()),
        "edges": [_edge(row, finding.word) for row in edges.head(TABLE_ROWS).to_dict("records")],
        "all": len(edges),
    }


def why_not(finding: WordFindings) -> str:
    """The name of the reason why the word was not traced."""
    if not finding.causal:
        return "reads both ways"
    return "no common positions" if finding.aligned else "not aligned"


def position_name(pos: str, word: str) -> str:
    """The name of a position on the page, e.g. cue + 1; the word itself in quotes."""
    return f"“{word}”" if pos == "word" else pos.replace("-", "−")


def _edge(row: Row, word: str) -> Section:
    """An edge as text for the table."""
    values: Section = {
        end: {
            "part": charts.part_name(row[f"{end}_layer"], row[f"{end}_head"]),
            "pos": position_name(row[f"{end}_pos"], word),
        }
        for end in ("sender", "receiver")
    }
    return values | {
        "channel": row["channel"],
        "total": measured(row["total"], row["low"], row["high"]),
        "p": "not tested" if pd.isna(row["p"]) else p_value(row["p"]),
        "direct": percent(row["direct"]),
        "fraction": percent(row["fraction"]),
        "than_nouns": charts.BESIDE_NOUNS[row["comparison"]],
        "nouns": percent(row["nouns"]) if row["comparison"] else "",
        "composition": "" if pd.isna(row["composition"]) else decimal(row["composition"]),
    }
