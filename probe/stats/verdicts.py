"""The verdict on each head, in one word and with the numbers that led to it.

    resolver            its swap moves the word, and what is said next, beyond a same-sense donor;
                        and its own write
                        separates the senses held out, or the swap moves at least LARGE of the gap:
                        all corrected for
                        every head tested, and not only from the token next to it
    position-explained  it moves the word, but from the token next to it alone, whatever stands
                        there; or no cue stands
                        anywhere else, so that this cannot be told
    confounded          it would be a resolver, but something that is no meaning tells the senses
                        apart as well: the
                        word's place, the text's length, or an untrained model
    opposes             its swap moves the word significantly the wrong way
    backup              stands in for another head: swapping both moves the word further than
                        swapping that one
    erased              writes much of the gap, and later layers take it away
    suggestive          the interval of its effect excludes 0, but the corrected p does not pass:
                        not confirmed
    carrier             written, and not shown to be read: it moves the sense coordinate and not
                        what is said next, or
                        it separates and moves nothing
    none                nothing was shown

A swap counts from SMALLEST of the gap on: an effect of a thousandth can be as certain as it is
meaningless. A verdict is about one word and one pair of senses. "resolver" is never given for
attention or separation alone. Where a model predicts no tokens, or what it says next was not shown
to differ between the senses, verdicts rest on the coordinate, and the page says so.
"""

import math
from collections.abc import Mapping

import pandas as pd

from probe.stats.numbers import decimal, measured, p_value, percent

GATE = (
    0.01  # p of the gap: stricter than LEVEL, because everything behind it is a ratio over that gap
)
LEVEL = 0.05  # the family-wise error that the corrected tests of a word's heads keep
SMALLEST = (
    0.02  # of the gap: below it a swap is lost among the heads of one layer, however certain it is
)
LARGE = 0.1  # of the gap: five times what counts, so that an effect this large needs no second sign
HIDDEN = 0.2  # of what the head writes: a swap that shows less than a fifth of it hides the rest
FAR_SHARE = 0.2  # of the effect next to the cue: what is left further away is a fifth or less, and not a weaker effect
WORTH_NAMING = (
    0.1  # of a sentence's sense coordinate: smaller shares of it are summed into "everything else"
)
MOSTLY = 0.5  # of the head's attention: more than on all other tokens together
ORDER = (
    "resolver",
    "position-explained",
    "confounded",
    "opposes",
    "backup",
    "erased",
    "suggestive",
    "carrier",
    "none",
)
Evidence = Mapping[str, float]


def verdicts(evidence: pd.DataFrame) -> pd.DataFrame:
    """`verdict` and `because` for every row of the evidence frame, which keeps its index.

    Reads p_auroc p_swap p_opposes p_next_token next_token auroc net net_low net_high direct net_near net_far
    attention_previous attention_next p_stands_in backed_up confounded; a row without a measured
    swap (no gap) gets none.
    """
    rows = [
        verdict({str(name): value for name, value in row.items()})
        for row in evidence.to_dict("records")
    ]
    return pd.DataFrame(rows, columns=["verdict", "because"], index=evidence.index)


def best_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per layer and head over a word's pairs of senses: the `verdict` that says most,
    `resolves` and `of`."""
    grouped = rows.groupby(["layer", "head"])["verdict"]
    best = grouped.agg(lambda names: min(names, key=ORDER.index))
    resolves = grouped.agg(lambda names: (names == "resolver").sum())
    return pd.DataFrame({"verdict": best, "resolves": resolves, "of": grouped.size()}).reset_index()


def verdict(row: Evidence) -> tuple[str, str]:
    """The verdict on one head and the sentence that gives its reasons; the first rule that holds
    decides."""
    if math.isnan(row["net"]):
        return (
            "none",
            "the model was not shown to separate these senses at the word, so no head was swapped",
        )
    separates = row["p_auroc"] < LEVEL
    moves = row["p_swap"] < LEVEL and row["net"] >= SMALLEST
    shown = moves and (separates or row["net"] >= LARGE)
    reads = shown and is_read(row)
    rules = (
        ("opposes", row["p_opposes"] < LEVEL and row["net"] <= -SMALLEST),
        ("position-explained", moves and is_positional(row)),
        ("confounded", reads and row["confounded"] > 0),
        ("resolver", reads),
        ("carrier", shown),
        ("backup", row["p_stands_in"] < LEVEL),
        (
            "erased",
            separates and row["direct"] >= LARGE and abs(row["net"]) < HIDDEN * row["direct"],
        ),
        ("suggestive", row["net_low"] > 0 and row["net"] >= SMALLEST),
        ("carrier", separates),
    )
    name = next((name for name, holds in rules if holds), "none")
    return name, _because(row, name)


def is_read(row: Evidence) -> bool:
    """Whether what the swap changes is shown in what the model says next; true where that tells no
    senses apart.

    Also of a head that another one stands in for: what it gave is read, from the other one.
    """
    if math.isnan(row["p_next_token"]) or row["backed_up"]:
        return True
    return row["p_next_token"] < LEVEL and row["next_token"] >= SMALLEST


def is_positional(row: Evidence) -> bool:
    """Whether a head that looks at the token next to the word has its effect from there only, or
    cannot be told to have another: no cue stands further away.
    """
    near, far = row["net_near"], row["net_far"]
    looks = max(_next_to_it(row).values()) > MOSTLY
    if math.isnan(near):
        return False
    return looks and (math.isnan(far) or far < FAR_SHARE * near)


def _next_to_it(row: Evidence) -> dict[str, float]:
    """Attention to the tokens next to the word; none to the one after it in a causal model."""
    return {"before": row["attention_previous"], "after it": row.get("attention_next", 0.0)}


def _because(row: Evidence, name: str) -> str:
    held_out = f"AUROC {decimal(row['auroc'])} (max-T {p_value(row['p_auroc'])})"
    separates = (
        "separates the senses held out with"
        if row["p_auroc"] < LEVEL
        else "was not shown to separate them:"
    )
    p = p_value(row["p_opposes"] if name == "opposes" else row["p_swap"])
    moved = measured(row["net"], row["net_low"], row["net_high"])
    said = (
        ""
        if math.isnan(row["p_next_token"])
        else f", what is said next {percent(row['next_token'])} ({p_value(row['p_next_token'])})"
    )
    return f"{separates} {held_out}; swapping it moves the word {moved} of the gap (max-T {p}){said}{_beyond(row, name)}"


def _beyond(row: Evidence, name: str) -> str:
    """The further numbers of the verdicts that rest on more than separation and swap."""
    if name == "position-explained":
        side, most = max(_next_to_it(row).items(), key=lambda item: item[1])
        looks = f"{percent(most)} of its attention on the token {side}"
        if math.isnan(row["net_far"]):
            return f"; {looks}, and no cue stands further away, so whether it reads the cue or the place cannot be told"
        near, far = (percent(row[key]) for key in ("net_near", "net_far"))
        return f"; {near} with the cue next to the word, {far} further away, and {looks}"
    if name == "confounded":
        return "; but the word's place, the text's length or an untrained model tells the senses apart as well"
    if name == "backup":
        first = f"L{row['stands_in_layer']:.0f}H{row['stands_in_head']:.0f}"
        return (
            f"; swapped together with {first} it moves the word {percent(row['stands_in'])} of the gap further "
            f"(max-T {p_value(row['p_stands_in'])})"
        )
    if name == "erased":
        return (
            f"; it writes {percent(row['direct'])} of the gap itself, which later layers take away"
        )
    if name == "suggestive":
        return "; not confirmed: the p corrected for all heads does not pass"
    if name == "carrier" and row["p_swap"] < LEVEL:
        small = row["net"] < SMALLEST
        return (
            f", less than the {percent(SMALLEST)} from which an effect counts"
            if small
            else "; not shown to be read"
        )
    return ""
