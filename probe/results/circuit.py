"""The frames `positions` and `edges` between the cue and the word."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from probe.experiments.circuit import (
    EDGE_FIELDS,
    Circuit,
    EdgeSwaps,
    Positions,
)
from probe.experiments.columns import KEYS, key_of
from probe.inference.circuit import EdgeEvidence, edge_evidence
from probe.inference.nouns import joined_parts
from probe.inference.verdicts import PARTS, comparisons
from probe.inference.within import WordEvidence
from probe.tidy import rounded, stacked, with_key

PART_OF_RUN = ("component", "layer", "head", "pos", "behind")
POSITION_COLUMNS = (*KEYS, *PART_OF_RUN, "denoise", "noise", "effect", "same_sense", "pairs")
EDGE_COLUMNS = (
    *KEYS,
    *EDGE_FIELDS,
    "fraction",
    "direct",
    "total",
    "low",
    "high",
    "same_sense",
    "p",
    "q",
    "pairs",
    "composition",
    *PARTS,
    "comparison",
)
COLUMNS = {"positions": POSITION_COLUMNS, "edges": EDGE_COLUMNS}
WHOLE = ("layer", "head", "behind", "pairs")  # integer columns
ENDS = tuple(name for name in EDGE_FIELDS if name.endswith(("layer", "head")))


def frames(evidence: Sequence[WordEvidence], *, seed: int) -> dict[str, pd.DataFrame]:
    """The frames `positions` and `edges` of every word.

    Empty for a model that reads both ways or without aligned pairs. A hybrid has rows in
    `positions` only.
    """
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in COLUMNS}
    for word in evidence:
        circuit = word.record.measured.get("circuit")
        if circuit is None:
            continue
        for name, frame in _of_word(word, circuit, seed).items():
            parts[name].append(frame)
    return {
        name: rounded(whole(stacked(parts[name], columns)[list(columns)]))
        for name, columns in COLUMNS.items()
    }


def whole(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with nullable integer columns. A negative layer or head, which marks a sender or
    receiver without one, becomes missing.
    """
    frame = frame.astype({column: "Int64" for column in (*WHOLE, *ENDS) if column in frame})
    ends = {column: frame[column].mask(frame[column] < 0) for column in ENDS if column in frame}
    return frame.assign(**ends)


def _of_word(word: WordEvidence, circuit: Circuit, seed: int) -> dict[str, pd.DataFrame]:
    [of_pair] = [pair for pair in word.pairs if pair.record.senses == circuit.senses]
    key = key_of(word.record, of_pair.record)
    tables = {"positions": _positions(circuit.positions)}
    nouns = None if of_pair.nouns is None else of_pair.nouns.record
    depth = word.record.depth
    evidence = edge_evidence(
        circuit,
        of_pair.record,
        nouns,
        depth=depth,
        permutations=of_pair.separation.permutations,
        seed=seed,
    )
    if circuit.edges is not None and evidence is not None:
        tables["edges"] = _edges(circuit.edges, evidence)
    return {name: with_key(frame, key) for name, frame in tables.items()}


def _positions(positions: Positions) -> pd.DataFrame:
    """The frame `positions`.

    effect = (denoise + noise) / 2, each Σ effects / Σ gaps over the pairs with the position
    """
    frame = pd.DataFrame(vars(positions))
    measured = ["denoise", "noise", "gap", "same_sense", "same_gap"]
    grouped = frame.groupby([*PART_OF_RUN], sort=False, dropna=False)
    sums = grouped[measured].sum(min_count=1).join(grouped.size().rename("pairs"))
    denoise = sums["denoise"] / sums["gap"]
    noise = sums["noise"] / sums["gap"]
    shares = sums.assign(
        denoise=denoise,
        noise=noise,
        same_sense=sums["same_sense"] / sums["same_gap"],
        effect=(denoise + noise) / 2,
    )
    return shares.reset_index().drop(columns=["gap", "same_gap"])


def _edges(edges: EdgeSwaps, evidence: EdgeEvidence) -> pd.DataFrame:
    """The frame `edges`: a row for each edge, the largest total first."""
    columns: dict[str, Any] = {
        name: getattr(evidence, name)
        for name in ("fraction", "direct", "total", "low", "high", "same_sense", "p", "q")
    }
    # NaN marks pairs in which the edge was not run.
    columns["pairs"] = (~np.isnan(edges.total)).sum(1)
    columns["composition"] = edges.composition
    frame = pd.DataFrame(list(edges.keys), columns=list(EDGE_FIELDS)).assign(**columns)
    of_nouns = dict.fromkeys(PARTS, np.nan) | {"comparison": ""}
    frame = frame.assign(**of_nouns)
    if evidence.nouns is not None:
        first = slice(0, len(evidence.nouns.net) - 1)  # .loc slices by label and includes the end
        parts = pd.DataFrame(dict(joined_parts([evidence.nouns])))
        parts["net"] = evidence.nouns.net
        for name in PARTS:
            frame.loc[first, name] = parts[name]
        frame.loc[first, "comparison"] = comparisons(parts)
    return frame
