"""The section "From the cue to the word": maps by position, whole paths, and the leading edges of
each ranked word.

Records in, plain values and charts out. A path has two numbers: how much of the gap goes over it,
and the largest p of its edges.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from probe import charts
from probe.results.findings import Frames, Row, WordFindings
from probe.stats.limits import LEVEL
from probe.stats.numbers import decimal, measured, p_value, percent

TABLE_ROWS = 20  # edges of the table on the page
LISTED = 5  # paths that have a row each
Section = dict[str, Any]


def section(findings: Mapping[str, WordFindings], frames: Frames) -> Section:
    """The paths of every ranked word, or the reason why they were not followed, and the end of the
    scale of the maps."""
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
        "paths": paths(finding) if len(edges) else None,
        "compared": bool((edges["comparison"] != "").any()),
        "composed": bool(edges.head(TABLE_ROWS)["composition"].notna().any()),
        "edges": [_edge(row) for row in edges.head(TABLE_ROWS).to_dict("records")],
        "all": len(edges),
        "graph": f"graph_{finding.index}.json",
    }


def why_not(finding: WordFindings) -> str:
    """The name of the reason why no path was followed."""
    if not finding.causal:
        return "reads both ways"
    return "no common positions" if finding.aligned else "not aligned"


def paths(finding: WordFindings) -> Section:
    """The paths of a word, best first, and how much of the gap they carry together."""
    rows = finding.rows["paths"]
    if rows.empty:
        return {"first": []}
    by_path = [one_path(steps.to_dict("records")) for _, steps in rows.groupby("path")]
    first = rows.iloc[0]
    return {
        "first": by_path[:LISTED],
        "number": len(by_path),
        "together": percent(first["together"]),
        "circuit_size": None if pd.isna(first["size"]) else int(first["size"]),
        "circuit_keeps": percent(first["kept"]),
        "random_high": percent(first["random_high"]),
    }


def one_path(steps: Sequence[Row]) -> Section:
    """One path: its steps in order, its share of the gap, and whether each step passed its test."""
    return {
        "steps": [_step(step) for step in steps],
        "share": percent(steps[0]["share"]),
        "confirmed": steps[0]["p"] < LEVEL,
        "p": p_value(steps[0]["p"], LEVEL),
    }


def _step(step: Row) -> Section:
    layer = step["receiver_layer"]
    head = step["receiver_head"]
    return {
        "channel": step["channel"],
        "sender_pos": step["sender_pos"],
        "receiver_pos": step["receiver_pos"],
        "part": charts.part_name(layer, head),
    }


def _edge(row: Row) -> Section:
    """An edge as text for the table."""
    values: Section = {
        end: {
            "part": charts.part_name(row[f"{end}_layer"], row[f"{end}_head"]),
            "pos": row[f"{end}_pos"],
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
