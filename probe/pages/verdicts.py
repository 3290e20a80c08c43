"""What each verdict means, and why a head has it, in words.

The verdicts themselves and their rules are those of `probe.stats.verdicts`; here are the sentences
that name the numbers which led to one.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from probe.stats.numbers import decimal, measured, p_value, percent
from probe.stats.verdicts import LEVEL, SMALLEST, attention_beside

KEYS = ["word", "sense_a", "sense_b", "layer", "head", "verdict"]
MEANINGS = {
    "resolver": "moves the word, and what is said next, beyond chance for every head tested",
    "position-explained": "moves the word by the token next to it, whatever that is, or cannot be "
    "told from this",
    "confounded": "would be a resolver, but what has no meaning tells the senses apart as well",
    "opposes": "moves the word the wrong way",
    "backup": "stands in for another head: swapping both moves the word further",
    "erased": "writes much of the gap, and later layers take it away",
    "suggestive": f"moves the word by {percent(SMALLEST)} or more, but this is not confirmed for "
    "every head tested",
    "carrier": "carries the meaning at the word; that anything reads it there was not shown",
    "none": "nothing was shown",
}
NOT_SWAPPED = "the model was not shown to separate these senses at the word, so no head was swapped"


def with_reasons(verdicts: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """The table of verdicts with the column `because`: the numbers that led to each, in words.

    They are those of the table itself and of the table of heads.
    """
    numbers = verdicts.merge(heads, on=KEYS, how="left", validate="one_to_one")
    reasons = [because(row) for row in numbers.to_dict("records")]
    columns = [*KEYS, "because", *(name for name in verdicts if name not in KEYS)]
    return verdicts.assign(because=reasons)[columns]


def because(row: Mapping[Any, Any]) -> str:
    """Why a head has its verdict: separation, swap, what is said next, and what else decided."""
    if math.isnan(row["net"]):
        return NOT_SWAPPED
    separates = "was not shown to separate them:"
    if row["p_auroc"] < LEVEL:
        separates = "separates the senses held out with"
    p = p_value(row["p_opposes"] if row["verdict"] == "opposes" else row["p_swap"])
    next_token = ""
    if not math.isnan(row["p_next_token"]):
        effect = percent(row["next_token"])
        next_token = f", what is said next {effect} ({p_value(row['p_next_token'])})"
    return (
        f"{separates} AUROC {decimal(row['auroc'])} (max-T {p_value(row['p_auroc'])}); swapping it "
        f"moves the word {measured(row['net'], row['net_low'], row['net_high'])} of the gap "
        f"(max-T {p}){next_token}{_what_else(row)}"
    )


def _what_else(row: Mapping[Any, Any]) -> str:
    """The further numbers of the verdicts that rest on more than separation and swap."""
    name = row["verdict"]
    if name == "position-explained":
        return _beside(row)
    if name == "confounded":
        return (
            "; but the word's place, the text's length or an untrained model tells the senses "
            "apart as well"
        )
    if name == "backup":
        first = f"L{row['stands_in_layer']:.0f}H{row['stands_in_head']:.0f}"
        return (
            f"; swapped together with {first} it moves the word {percent(row['stands_in'])} of the "
            f"gap further (max-T {p_value(row['p_stands_in'])})"
        )
    if name == "erased":
        direct = percent(row["direct"])
        return f"; it writes {direct} of the gap itself, which later layers take away"
    if name == "suggestive":
        return "; not confirmed: the p corrected for all heads does not pass"
    if name == "carrier" and row["p_swap"] < LEVEL:
        if row["net"] < SMALLEST:
            return f", less than the {percent(SMALLEST)} from which an effect counts"
        return "; not shown to be read"
    return ""


def _beside(row: Mapping[Any, Any]) -> str:
    """How much of its attention a head gives to a token next to the word, and what it moves with
    the cue there and further away."""
    side, most = max(attention_beside(row).items(), key=lambda item: item[1])
    looks = f"{percent(most)} of its attention on the token {side}"
    if math.isnan(row["net_far"]):
        return (
            f"; {looks}, and no cue stands further away, so whether it reads the cue or the place "
            "cannot be told"
        )
    near = percent(row["net_near"])
    far = percent(row["net_far"])
    return f"; {near} with the cue next to the word, {far} further away, and {looks}"
