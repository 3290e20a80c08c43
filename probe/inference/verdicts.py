"""The verdict on each head, in one word, from the numbers that it rests on.

    mover               its swap moves the word, and what is said next, beyond a same-sense donor;
                        and its own write separates the senses held out, or the swap moves at least
                        LARGE of the gap: all corrected for every head tested, and not only from the
                        token next to it
    resolver            a mover of a word that passes the ambiguity gate, which does more for the
                        word than for unambiguous nouns in its place. The gate: the word changes
                        with its context further than these nouns do, also further than those that
                        are about as expected, where these are enough
    position-explained  it moves the word, but from the token next to it alone, whatever stands
                        there; or no cue stands anywhere else, so that this cannot be told
    confounded          it would be a mover, but something without meaning tells the senses apart
                        as well: where the word or its cue stands, the text's length, or an
                        untrained model; and the ambiguity gate was not passed, or could not be
                        asked. Nouns in the same sentences stand at the same position among the same
                        function words, so a word that passes the gate is not confounded
    opposes             its swap moves the word significantly the wrong way
    backup              stands in for another head: swapping both moves the word further than
                        swapping that one
    erased              writes much of the gap, and later layers take it away
    suggestive          the interval of its effect excludes 0, but the corrected p does not pass:
                        not confirmed
    unread              it moves the sense coordinate, and not what is said next
    separates           what it writes differs between the senses; no effect was shown
    none                nothing was shown

A swap counts from SMALLEST of the gap on: an effect of a thousandth can be as certain as it is
meaningless. A verdict is about one word and one pair of senses. "resolver" is never given for
attention or separation alone. Where a model predicts no tokens, or what it says next was not shown
to differ between the senses, verdicts rest on the coordinate, and the page says so.
"""

import math
from collections.abc import Mapping

import pandas as pd

from probe.stats.limits import FEWEST_WITH_A_GAP, LARGE, LEVEL, SMALLEST

HIDDEN = 0.2  # of what the head writes: a swap that shows less than a fifth of it hides the rest
# Of the effect with the cue next to the word: a fifth or less further away is no weaker effect but
# none.
FAR_SHARE = 0.2
MOSTLY = 0.5  # of the head's attention: more than on all other tokens together
ORDER = (
    "resolver",
    "mover",
    "position-explained",
    "confounded",
    "opposes",
    "backup",
    "erased",
    "unread",
    "suggestive",
    "separates",
    "none",
)
# Of the effect on the word: a difference whose interval lies within a third of it either way is
# none that matters.
SAME = 1 / 3
# What a verdict may rest on and no other table of heads holds; with the columns of that table, the
# numbers that led to it.
REASONS = (
    "p_opposes",
    "net_near",
    "net_far",
    "attention_next",
    "stands_in",
    "p_stands_in",
    "stands_in_layer",
    "stands_in_head",
    "confounded",
    "ambiguity_p",
    "ambiguity_p_near",
    "nouns_with_gap",
)
Evidence = Mapping[str, float]


def verdicts(evidence: pd.DataFrame) -> pd.Series:
    """The verdict on every row of the evidence frame, which keeps its index.

    Reads p_auroc p_swap p_opposes p_next_token next_token auroc net net_low net_high direct
    net_near net_far attention_previous attention_next p_stands_in confounded ambiguity_p
    ambiguity_p_near nouns_with_gap specific specific_low specific_high p_specific; a row without a
    measured swap (no gap) gets none.
    """
    rows = evidence.to_dict("records")
    names = [verdict({str(name): value for name, value in row.items()}) for row in rows]
    return pd.Series(names, index=evidence.index, name="verdict", dtype=object)


def best_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per layer and head over a word's pairs of senses: the `verdict` that says most,
    `resolves` and `of`."""
    grouped = rows.groupby(["layer", "head"])["verdict"]
    best = grouped.agg(lambda names: min(names, key=ORDER.index))
    resolves = grouped.agg(lambda names: (names == "resolver").sum())
    return pd.DataFrame({"verdict": best, "resolves": resolves, "of": grouped.size()}).reset_index()


def verdict(row: Evidence) -> str:
    """The verdict on one head; the first rule that holds decides."""
    if math.isnan(row["net"]):
        return "none"
    separates = row["p_auroc"] < LEVEL
    moves = row["p_swap"] < LEVEL and row["net"] >= SMALLEST
    shown = moves and (separates or row["net"] >= LARGE)
    reads = shown and is_read(row)
    rules = (
        ("opposes", row["p_opposes"] < LEVEL and row["net"] <= -SMALLEST),
        ("position-explained", moves and is_positional(row)),
        ("confounded", reads and row["confounded"] > 0 and not passes_gate(row)),
        ("resolver", reads and is_for_this_word(row)),
        ("mover", reads),
        ("unread", shown),
        ("backup", row["p_stands_in"] < LEVEL),
        (
            "erased",
            separates and row["direct"] >= LARGE and abs(row["net"]) < HIDDEN * row["direct"],
        ),
        ("suggestive", row["net_low"] > 0 and row["net"] >= SMALLEST),
        ("separates", separates),
    )
    return next((name for name, holds in rules if holds), "none")


def is_read(row: Evidence) -> bool:
    """Whether what the swap changes is shown in what the model says next; true where that tells no
    senses apart.
    """
    if math.isnan(row["p_next_token"]):
        return True
    return row["p_next_token"] < LEVEL and row["next_token"] >= SMALLEST


def passes_gate(row: Evidence) -> bool:
    """Whether the word changes further than unambiguous nouns, and further than those that are
    about as expected, where these are enough to ask."""
    return row["ambiguity_p"] <= LEVEL and not row["ambiguity_p_near"] > LEVEL


def is_for_this_word(row: Evidence) -> bool:
    """Whether the word passed the ambiguity gate, and the head does more for it than for
    unambiguous nouns in its place.

    Where fewer than FEWEST_WITH_A_GAP of these change at all, there is nothing that the head could
    do for them, and so what it does is for the word.
    """
    no_noun_changes = math.isnan(row["specific"]) and row["nouns_with_gap"] < FEWEST_WITH_A_GAP
    return passes_gate(row) and (no_noun_changes or comparison(row) == "more")


def comparison(row: Evidence) -> str:
    """How what a head or an MLP does for the word compares with what it does for unambiguous nouns.

    "more", "less": p_specific is below LEVEL, the interval of the difference excludes 0, and the
        difference is at least SMALLEST of the gap.
    "same": the interval lies within SAME of the effect.
    "undecided": neither. "": it was not compared.
    More is the larger effect of the two, whichever way it goes: what opposes, and opposes the word
    further than such nouns, does more; what does nothing for the word, and turns such nouns either
    way, does less. Reads net specific specific_low specific_high p_specific.

    The test holds for the nouns that were compared; the interval, in which nouns are drawn anew,
    speaks for others like them. "For other nouns" takes both.
    """
    if math.isnan(row["specific"]):
        return ""
    differs = row["specific_low"] > 0 or row["specific_high"] < 0
    if row["p_specific"] < LEVEL and differs and abs(row["specific"]) >= SMALLEST:
        for_nouns = row["net"] - row["specific"]
        return "more" if abs(row["net"]) > abs(for_nouns) else "less"
    within = SAME * abs(row["net"])
    if -within <= row["specific_low"] and row["specific_high"] <= within:
        return "same"
    return "undecided"


def comparisons(frame: pd.DataFrame) -> list[str]:
    """`comparison` of every row."""
    rows = frame.to_dict("records")
    return [comparison({str(name): value for name, value in row.items()}) for row in rows]


def is_positional(row: Evidence) -> bool:
    """Whether a head that looks at the token next to the word has its effect from there only, or
    cannot be told to have another: no cue stands further away.
    """
    near = row["net_near"]
    far = row["net_far"]
    if math.isnan(near):
        return False
    only_near = math.isnan(far) or far < FAR_SHARE * near
    return only_near and max(attention_beside(row).values()) > MOSTLY


def attention_beside(row: Evidence) -> dict[str, float]:
    """Attention to the tokens next to the word; none to the one after it in a causal model."""
    return {"before": row["attention_previous"], "after it": row.get("attention_next", 0.0)}
