"""Why a head has its verdict, in words, with the numbers that led to it.

The rules are in `probe.verdicts`.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from probe.stats.limits import LARGE, LEVEL, SMALLEST
from probe.stats.numbers import decimal, measured, p_value, percent
from probe.verdicts import (
    attention_beside,
    comparison,
    passes_gate,
    rank_among_nouns,
)

SENSES = ["word", "sense_a", "sense_b"]
KEYS = [*SENSES, "layer", "head", "verdict"]
NOT_SWAPPED = "the gap between these senses is not significant, so no head was swapped"
MISPLACED = "the place of the word or its cue, or the text's length, tells the senses apart as well"
UNTRAINED = "an untrained model tells the senses apart as well"


def with_reasons(verdicts: pd.DataFrame, heads: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """The table of verdicts with the column `because`: the numbers that led to each, in words.

    The numbers come from the table itself, the table of heads and the table of words.
    """
    numbers = verdicts.merge(heads, on=KEYS, how="left", validate="one_to_one")
    reasons_not_compared = words[[*SENSES, "not_compared"]]
    numbers = numbers.merge(reasons_not_compared, on=SENSES, how="left", validate="many_to_one")
    reasons = [because(row) for row in numbers.to_dict("records")]
    columns = [*KEYS, "because", *(name for name in verdicts if name not in KEYS)]
    return verdicts.assign(because=reasons)[columns]


def because(row: Mapping[Any, Any]) -> str:
    """Why a head has its verdict: separation, swap, next token, and the further numbers."""
    if math.isnan(row["net"]):
        return NOT_SWAPPED
    separates = "does not separate the senses significantly:"
    if row["p_auroc"] < LEVEL:
        separates = "separates the senses held out with"
    p_auroc = p_value(row["p_auroc"], LEVEL)
    p = p_value(row["p_opposes"] if row["verdict"] == "opposes" else row["p_swap"], LEVEL)
    next_token = ""
    if not math.isnan(row["p_next_token"]):
        effect = percent(row["next_token"])
        next_token = f", next token {effect} ({p_value(row['p_next_token'], LEVEL)})"
    return (
        f"{separates} AUROC {decimal(row['auroc'])} (max-T {p_auroc}); swapping it "
        f"moves the word {measured(row['net'], row['net_low'], row['net_high'])} of the gap "
        f"(max-T {p}){next_token}{_what_else(row)}"
    )


def _what_else(row: Mapping[Any, Any]) -> str:
    """The further numbers of the verdicts that rest on more than separation and swap."""
    name = row["verdict"]
    if name == "resolver":
        return f"; {_gate(row)}{_more(row)}"
    if name == "mover":
        return f"; {_not_resolved(row)}{_more(row)}"
    if name == "confounded":
        as_well = MISPLACED if row["misplaced"] else UNTRAINED
        return f"; but {as_well}, and {_gate(row)}{_more(row)}"
    if name == "position-explained":
        return _beside(row)
    if name == "backup":
        first = f"L{row['stands_in_layer']:.0f}H{row['stands_in_head']:.0f}"
        return (
            f"; swapped together with {first} it moves the word {percent(row['stands_in'])} of the "
            f"gap further (max-T {p_value(row['p_stands_in'])})"
        )
    if name == "erased":
        direct = percent(row["direct"])
        return f"; it writes {direct} of the gap itself, which later layers take away"
    if name == "unread":
        return "; the effect on the next token is not significant"
    if name == "suggestive":
        return f"; not confirmed: {_not_confirmed(row)}"
    if name == "separates" and row["p_swap"] < LEVEL:
        return f", less than the {percent(SMALLEST)} from which an effect counts"
    return ""


def _gate(row: Mapping[Any, Any]) -> str:
    """How the word compares with the unambiguous nouns: the ambiguity gate, with its numbers."""
    nouns = row["nouns_compared"]
    p = row["ambiguity_p"]
    if math.isnan(p):
        return f"the word was not compared with unambiguous nouns ({row['not_compared']})"
    rank = int(rank_among_nouns(p, nouns))
    if rank == 1:
        return f"the word changes further than the {nouns} unambiguous nouns in its place"
    return f"{rank - 1} of {nouns} unambiguous nouns change as far in its place"


def _not_resolved(row: Mapping[Any, Any]) -> str:
    """Why a head that moves the word is not a resolver."""
    if not passes_gate(row):
        return f"no evidence that an ambiguity is resolved: {_gate(row)}"
    if comparison(row) == "more":
        return f"{_gate(row)}, but the head's own write is not significantly larger there"
    return f"{_gate(row)}, but the head does not move it significantly further than these nouns"


def _more(row: Mapping[Any, Any]) -> str:
    """How far the head moves unambiguous nouns, and how much further it moves the word."""
    if math.isnan(row["more"]):
        return ""
    more = measured(row["more"], row["more_low"], row["more_high"])
    write = measured(row["write_more"], row["write_more_low"], row["write_more_high"])
    return (
        f"; it moves such nouns {percent(row['nouns'])} of the word's gap, and the word {more} "
        f"further (max-T {p_value(row['p_more'], LEVEL)}); its own write is {write} larger "
        f"({p_value(row['p_more_write'], LEVEL)})"
    )


def _not_confirmed(row: Mapping[Any, Any]) -> str:
    if row["p_swap"] < LEVEL:
        return (
            f"an effect below {percent(LARGE)} counts only where what the head writes separates "
            "the senses"
        )
    return "the p corrected for all heads does not pass"


def _beside(row: Mapping[Any, Any]) -> str:
    """How much of its attention a head gives to a token next to the word, and what it moves with
    the cue there and further away."""
    side, largest = max(attention_beside(row).items(), key=lambda item: item[1])
    looks = f"{percent(largest)} of its attention on the token {side}"
    if math.isnan(row["net_far"]):
        return (
            f"; {looks}, and no cue is further away, so whether it reads the cue or the place "
            "cannot be told"
        )
    near = percent(row["net_near"])
    far = percent(row["net_far"])
    return f"; {near} with the cue next to the word, {far} further away, and {looks}"
