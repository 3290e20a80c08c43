"""Why a head attends to the cue: the parts of the two tokens that make its score, and what it takes
from there.

Tables in, plain values out; the sentences are in the template. A part is a reason only where
replacing it lowers the score on both sides. What an unambiguous noun in the word's place supplies
and costs says how much of the reason is the word itself.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from probe.experiments.qk import BY_NOUNS
from probe.pages.sentences import TINTS, of_head
from probe.results.findings import Frames, HeadFinding, Row
from probe.stats.limits import LEVEL
from probe.stats.numbers import decimal, measured, p_value, percent

MOST_PARTS = 6  # of the word and of the cue with a row and a column each
MOST_REPLACED = 4  # parts of each side whose replacement is listed
ROUNDS_TO_ZERO = 0.005  # of a sum: a smaller share has a blank cell
OTHERS = "all others"
# The token of each side, and what replaces its parts if it is not the other tokens.
SIDES = {"query": "word", "key": "cue", BY_NOUNS: "word, by nouns"}
BIASES = ("query bias", "norm bias")  # the same at every token, so that nothing can replace them
TABLES = ("why_it_attends", "qk_attribution", "qk_interventions", "ov_attribution")
Section = dict[str, Any]


def reason(frames: Frames, head: HeadFinding) -> Section | None:
    """Why a head attends to the cue, from the tables of its word; None where it was not asked."""
    rows = {name: of_head(frames[name], head) for name in TABLES}
    if rows["why_it_attends"].empty:
        return None
    record = rows["why_it_attends"].iloc[0]
    contrast = float(record["contrast"])
    section = {
        "reason": _reason(record),
        "contrast": decimal(contrast),
        "p_contrast": p_value(record["p_contrast"]),
    }
    if section["reason"] == "none":
        return section
    largest = rows["ov_attribution"].sort_values("write", ascending=False).iloc[0]
    write = float(rows["ov_attribution"]["write"].sum())
    takes = write >= ROUNDS_TO_ZERO
    return section | {
        "part_query": _output(record["part_query"]),
        "part_key": _output(record["part_key"]),
        "share": measured(record["share"], record["share_low"], record["share_high"]),
        "cue_first": percent(record["cue_first"]),
        "nouns": _nouns(record, rows["qk_interventions"], contrast),
        "agreement": decimal(record["agreement"]),
        "matrix": _matrix(rows, contrast, write),
        "replaced": [
            _replaced(part, contrast)
            for side in SIDES
            for part in _largest(rows["qk_interventions"], side)
        ],
        "written": percent(write),
        "taken": _output(largest["part_key"]),
        "taken_share": percent(float(largest["write"]) / write) if takes else "",
        "takes": takes,
    }


def _nouns(record: pd.Series, replaced: pd.DataFrame, contrast: float) -> Section | None:
    """The share of the pair with nouns in the word's place, and what a noun's part costs; None
    without a noun or if the part at the word is a bias, which nouns share."""
    of_part = replaced[(replaced["side"] == BY_NOUNS) & (replaced["part"] == record["part_query"])]
    if of_part.empty or math.isnan(record["noun_share"]):
        return None
    return {
        "share": measured(
            record["noun_share"], record["noun_share_low"], record["noun_share_high"]
        ),
        "contrast": decimal(record["noun_contrast"]),
        "lost": percent(float(of_part["score"].iloc[0]) / contrast),
        "p": p_value(record["p_nouns"]),
    }


def _output(part: str) -> str:
    """The name of a part in a sentence: the output of an MLP, a head or a layer's attention, or an
    embedding or a bias."""
    return f"the {part}" if "embedding" in part or "bias" in part else f"{part}'s output"


def _reason(record: pd.Series) -> str:
    """Which fixed sentence the card has: "none" where it does not score the cue above other
    tokens, "apart" where attribution and interventions do not agree, "cue" where the part at the
    word is a bias, else "both" or "pair", for one part at both tokens or two."""
    if not record["p_contrast"] < LEVEL:
        return "none"
    if not record["p_key"] < LEVEL:
        return "apart"
    if record["part_query"] in BIASES:
        return "cue"
    if not record["p_query"] < LEVEL:
        return "apart"
    return "both" if record["part_query"] == record["part_key"] else "pair"


def _matrix(rows: Mapping[str, pd.DataFrame], contrast: float, write: float) -> Section:
    """The contrast by parts of the word and of the cue, and under it what the head writes by parts
    of the cue, as shares of their sums."""
    scores = rows["qk_attribution"]
    cells = scores.pivot_table(
        index="part_query", columns="part_key", values="score", aggfunc="sum", sort=False
    )
    cells = cells.fillna(0.0) / contrast
    writes = rows["ov_attribution"].set_index("part_key")["write"]
    # Shares of what goes the other way, or nowhere, would say nothing.
    writes = writes / write if write >= ROUNDS_TO_ZERO else 0.0 * writes
    parts_of_cue = list(dict.fromkeys([*cells.columns, *writes.index]))
    both = [cells.abs().max(), writes.abs()]
    shown_keys = _first(pd.concat(both, axis=1).max(axis=1).reindex(parts_of_cue))
    shown_queries = _first(cells.abs().max(axis=1))
    grouped = cells.groupby(_part_names(cells.index, shown_queries), sort=False).sum()
    grouped = grouped.T.groupby(_part_names(cells.columns, shown_keys), sort=False).sum().T
    keys = [*shown_keys, *_small_parts(grouped.abs().max())]
    by_part = writes.groupby(_part_names(writes.index, shown_keys), sort=False).sum()
    queries = [*shown_queries, *_small_parts(grouped.abs().max(axis=1))]
    grouped = grouped.reindex(index=queries, columns=keys, fill_value=0.0)
    return {
        "keys": keys,
        "rows": [
            (query, [_cell(value) for value in values])
            for query, values in zip(queries, grouped.to_numpy().tolist(), strict=True)
        ],
        "taken": [_cell(value) for value in by_part.reindex(keys, fill_value=0.0).tolist()],
    }


def _first(sizes: pd.Series) -> list[str]:
    """The MOST_PARTS largest parts that do not round to 0, in the order of the stream."""
    largest = set(sizes[sizes >= ROUNDS_TO_ZERO].nlargest(MOST_PARTS).index)
    return [str(part) for part in sizes.index if part in largest]


def _small_parts(sizes: pd.Series) -> list[str]:
    """All others as a part, if they do not round to 0 everywhere."""
    return [OTHERS] if sizes.get(OTHERS, 0.0) >= ROUNDS_TO_ZERO else []


def _part_names(parts: "pd.Index[str]", shown_parts: list[str]) -> "pd.Index[str]":
    """The names of parts; OTHERS for every part that is not shown."""
    return parts.where(parts.isin(shown_parts), OTHERS)


def _cell(share: float) -> Section:
    """A share as text, blank where it rounds to 0, and its tint."""
    return {
        "text": decimal(100 * share, 0) if abs(share) >= ROUNDS_TO_ZERO else "",
        "tint": min(round(abs(share) * TINTS), TINTS),
        "against": share < 0,
    }


def _largest(replaced: pd.DataFrame, side: str) -> Sequence[Row]:
    """The parts of a side whose replacement, predicted or computed, matters most."""
    of_side = replaced[replaced["side"] == side]
    size = of_side[["attributed", "score"]].abs().max(axis=1)
    return of_side.loc[size.nlargest(MOST_REPLACED).index].to_dict("records")


def _replaced(part: Row, contrast: float) -> Section:
    return {
        "side": SIDES[part["side"]],
        "part": part["part"],
        "attributed": percent(part["attributed"] / contrast),
        "score": percent(part["score"] / contrast),
        "p": "" if math.isnan(part["p"]) else p_value(part["p"]),
    }
