"""The verdict on each head, in one word and with the numbers that led to it.

    resolver            separates the senses held out, and its swap moves the word beyond a same-sense donor, both
                        corrected for every head tested, and not only from the token next to it
    position-explained  the same, but the effect is there at cue distance 1 alone and the head looks at the token next
                        to the word
    opposes             its swap moves the word significantly the wrong way
    backup              swapping it moves little, for another path makes up for it: it writes much of the gap itself, or
                        restores much alone, when all other heads have the other sense's output
    carrier             separates, and nothing at the word depends on it
    none                nothing was shown

A swap counts from SMALLEST of the gap on: an effect of a thousandth can be as certain as it is meaningless. A head
above the read-out writes after what is read and gets none. A verdict is about one word and one pair of senses.
"resolver" is never given for attention or separation alone.
"""

import math
from collections.abc import Mapping

import pandas as pd

from probe.stats.numbers import decimal, measured, p_value, percent

GATE = 0.01  # p of the gap: stricter than LEVEL, because everything behind it is a ratio over that gap
LEVEL = 0.05  # the family-wise error that the corrected tests of a word's heads keep
SMALLEST = 0.02  # of the gap: below it a swap is lost among the heads of one layer, however certain it is
LARGE = 0.1  # of the gap: five times what counts, so that a write this large ought to be seen when it is swapped
HIDDEN = 0.2  # of what the head can do: a swap that shows less than a fifth of it hides the rest
FAR_SHARE = 0.2  # of the effect next to the cue: what is left further away is a fifth or less, and not a weaker effect
MOSTLY = 0.5  # of the head's attention: more than on all other tokens together
ORDER = ("resolver", "position-explained", "opposes", "backup", "carrier", "none")
Evidence = Mapping[str, float]


def verdicts(evidence: pd.DataFrame) -> pd.DataFrame:
    """`verdict` and `because` for every row of the evidence frame, which keeps its index.

    Reads layer depth p_auroc p_swap p_opposes p_alone auroc net net_low net_high direct alone net_near net_far
    attention_previous attention_next; a row without a measured swap (no gap) gets none.
    """
    rows = [verdict({str(name): value for name, value in row.items()}) for row in evidence.to_dict("records")]
    return pd.DataFrame(rows, columns=["verdict", "because"], index=evidence.index)


def best_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per layer and head over a word's pairs of senses: the `verdict` that says most, `resolves` and `of`."""
    grouped = rows.groupby(["layer", "head"])["verdict"]
    best = grouped.agg(lambda names: min(names, key=ORDER.index))
    resolves = grouped.agg(lambda names: (names == "resolver").sum())
    return pd.DataFrame({"verdict": best, "resolves": resolves, "of": grouped.size()}).reset_index()


def verdict(row: Evidence) -> tuple[str, str]:
    """The verdict on one head and the sentence that gives its reasons; the first rule that holds decides."""
    if math.isnan(row["net"]):
        return "none", "the model was not shown to separate these senses at the word, so no head was swapped"
    if row["layer"] >= row["depth"]:
        return "none", "it writes after the layer where the word is read, so it cannot have moved what is read there"
    separates = row["p_auroc"] < LEVEL
    moves = row["p_swap"] < LEVEL and row["net"] >= SMALLEST
    rules = (
        ("backup", separates and _hides(row, "direct")),
        ("backup", row["p_alone"] < LEVEL and _hides(row, "alone")),
        ("opposes", row["p_opposes"] < LEVEL and row["net"] <= -SMALLEST),
        ("position-explained", separates and moves and is_positional(row)),
        ("resolver", separates and moves),
        ("carrier", separates),
    )
    name = next((name for name, holds in rules if holds), "none")
    return name, _because(row, name)


def _hides(row: Evidence, what: str) -> bool:
    """Whether a single swap shows hardly anything of what the head can do."""
    return row[what] >= LARGE and abs(row["net"]) < HIDDEN * row[what]


def is_positional(row: Evidence) -> bool:
    """Whether the effect is there at cue distance 1 only, from a head that looks at the token next to the word."""
    near, far = row["net_near"], row["net_far"]
    if math.isnan(near) or math.isnan(far):
        return False
    return far < FAR_SHARE * near and max(_next_to_it(row).values()) > MOSTLY


def _next_to_it(row: Evidence) -> dict[str, float]:
    """Attention to the tokens next to the word; none to the one after it in a causal model."""
    return {"before": row["attention_previous"], "after it": row.get("attention_next", 0.0)}


def _because(row: Evidence, name: str) -> str:
    held_out = f"AUROC {decimal(row['auroc'])} (max-T {p_value(row['p_auroc'])})"
    separates = "separates the senses held out with" if row["p_auroc"] < LEVEL else "was not shown to separate them:"
    p = p_value(row["p_opposes"] if name == "opposes" else row["p_swap"])
    moved = measured(row["net"], row["net_low"], row["net_high"])
    small = f", less than the {percent(SMALLEST)} from which an effect counts" if _is_small(row, name) else ""
    return (
        f"{separates} {held_out}; swapping it moves the word {moved} of the gap (max-T {p}){small}{_beyond(row, name)}"
    )


def _is_small(row: Evidence, name: str) -> bool:
    """Whether the swap is certain, and too small to count."""
    return name == "carrier" and row["p_swap"] < LEVEL and row["net"] < SMALLEST


def _beyond(row: Evidence, name: str) -> str:
    """The further numbers of the verdicts that rest on more than separation and swap."""
    if name == "position-explained":
        near, far = (percent(row[key]) for key in ("net_near", "net_far"))
        side, most = max(_next_to_it(row).items(), key=lambda item: item[1])
        looks = f"{percent(most)} of its attention on the token {side}"
        return f"; {near} with the cue next to the word, {far} further away, and {looks}"
    if name == "backup":
        writes, restores = percent(row["direct"]), percent(row["alone"])
        p = p_value(row["p_alone"])
        return f"; it writes {writes} of the gap itself and alone restores {restores} of it (max-T {p})"
    return ""
