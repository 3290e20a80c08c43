"""The verdict on each head, in one word, from the evidence about it.

    mover               Its swap moves the word, and the next token, further than a same-sense donor
                        does. Its write also separates held-out senses, or the swap moves at least
                        LARGE of the gap. All tests are corrected for every head. The effect does
                        not come from the adjacent token only.
    resolver            A mover of a word that passes the ambiguity gate. It moves the word further
                        than unambiguous nouns in its place, and its own write is larger there, too.
                        The gate: the word changes with its context further than each of these nouns
                        does.
    position-explained  It moves the word, but only from the adjacent token, whatever that token is.
                        Or every cue is adjacent to the word, so position cannot be ruled out.
    confounded          It would be a mover, but something other than meaning also separates the
                        senses. Either the position of the word or its cue, or the length of the
                        text: a head that writes the position of the cue at the ambiguous word only
                        moves no noun, so nouns cannot rule this out. Or an untrained model also
                        separates them, and the word did not pass the ambiguity gate, or the gate
                        could not be computed: nouns stand among the same function words, so a word
                        that passes the gate is not separated by these alone.
    opposes             Its swap significantly moves the word the wrong way.
    backup              It takes over for another head: swapping both moves the word further than
                        the two separate swaps add up to.
    erased              It writes much of the gap, and later layers remove it.
    suggestive          The interval of its effect excludes 0, but it is not confirmed: the
                        corrected p does not pass, or the effect is below LARGE and the write does
                        not separate the senses.
    unread              It moves the sense coordinate but not the next token.
    separates           Its write differs between the senses. No effect of at least SMALLEST was
                        detected.
    none                No effect of at least SMALLEST was detected.

A swap counts if it moves at least SMALLEST of the gap, because an effect of a thousandth can be
certain and still meaningless. A verdict is about one word and one pair of senses. Attention or
separation alone never makes a "resolver". If a model predicts no tokens, or if its next token does
not significantly differ between the senses, verdicts depend on the sense coordinate alone, and the
page says so.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.stats.limits import LARGE, LEVEL, SMALLEST

# Fraction of the head's direct write. If the swap effect is smaller, the write counts as erased.
HIDDEN = 0.2
# Fraction of the effect of adjacent cues. A smaller effect of distant cues counts as no effect.
FAR_SHARE = 0.2
MOSTLY = 0.5  # fraction of the head's attention: more than on all other tokens together
# Columns that compare how far a part moves the word and unambiguous nouns in its place.
COMPARED = ("nouns", "more", "more_low", "more_high", "p_more", "more_word_axis", "more_length")
PARTS = (*COMPARED, "more_at_surprisal", "nouns_share")
# The same columns for the write of a head alone.
WRITES = tuple(f"{name}_write" if name == "p_more" else f"write_{name}" for name in COMPARED)
# From the strongest statement to the weakest.
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
# Fraction of the effect on the word. A difference whose interval lies within ± this fraction does
# not matter.
SAME = 1 / 3
# Evidence that is not a column of the table of heads. Together with that table's columns it is all
# that a verdict depends on.
REASONS = (
    "p_opposes",
    "net_near",
    "net_far",
    "attention_next",
    "stands_in",
    "p_stands_in",
    "stands_in_layer",
    "stands_in_head",
    "misplaced",
    "untrained",
    "ambiguity_p",
    "nouns_compared",
)
Evidence = Mapping[str, float]


def verdicts(evidence: pd.DataFrame) -> pd.Series:
    """The verdict on every row of a frame, with the frame's index.

    evidence: has the columns p_auroc p_swap p_opposes p_next_token next_token auroc net net_low
        net_high direct net_near net_far attention_previous attention_next p_stands_in misplaced
        untrained ambiguity_p nouns_compared, and those of `comparison` and `comparison_of_writes`

    A row without a measured swap (the word has no gap) has the verdict "none".
    """
    names = [verdict(row) for row in _rows(evidence)]
    return pd.Series(names, index=evidence.index, name="verdict", dtype=object)


def best_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each layer and head, over a word's pairs of senses.

    verdict: the strongest one, by ORDER
    resolves: the number of pairs in which the head is a resolver
    of: the number of pairs
    """
    grouped = rows.groupby(["layer", "head"])["verdict"]
    best = grouped.agg(lambda names: min(names, key=ORDER.index))
    resolves = grouped.agg(lambda names: (names == "resolver").sum())
    return pd.DataFrame({"verdict": best, "resolves": resolves, "of": grouped.size()}).reset_index()


def verdict(row: Evidence) -> str:
    """The verdict on one head, from the first rule that applies."""
    if math.isnan(row["net"]):
        return "none"
    separates = row["p_auroc"] < LEVEL
    moves = row["p_swap"] < LEVEL and row["net"] >= SMALLEST
    # A small effect needs a second sign: the head's write separates the senses.
    is_confirmed = moves and (separates or row["net"] >= LARGE)
    reads = is_confirmed and is_read(row)
    rules = (
        ("opposes", row["p_opposes"] < LEVEL and row["net"] <= -SMALLEST),
        ("position-explained", moves and is_positional(row)),
        ("confounded", reads and is_confounded(row)),
        ("resolver", reads and is_for_this_word(row)),
        ("mover", reads),
        ("unread", is_confirmed),
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
    """Whether the swap also changes the model's next token. True if the next token does not
    separate the senses.
    """
    if math.isnan(row["p_next_token"]):
        return True
    return row["p_next_token"] < LEVEL and row["next_token"] >= SMALLEST


def is_confounded(row: Evidence) -> bool:
    """Whether something other than meaning may explain the effects on a word.

    row: has misplaced, 1 if the position of the word or its cue, or the length of the text,
        separates the senses; untrained, 1 if a model of random weights does; and the columns of
        `passes_gate`
    """
    return row["misplaced"] > 0 or (row["untrained"] > 0 and not passes_gate(row))


def passes_gate(row: Evidence) -> bool:
    """Whether the word changes further than each of the unambiguous nouns it was compared with.

    row: has ambiguity_p and nouns_compared, the number of these nouns
    """
    return rank_among_nouns(row["ambiguity_p"], row["nouns_compared"]) == 1


def rank_among_nouns(p: float, nouns: float) -> float:
    """The word's rank among unambiguous nouns by how far each changes; 1 is the furthest.

    p = (1 + nouns that change at least as far) / (1 + nouns)

    p: of the ambiguity gate
    nouns: the number of nouns

    NaN if the word was not compared.

    Example:
        >>> from probe.verdicts import rank_among_nouns
        >>> rank_among_nouns(3 / 72, nouns=71)
        3.0
    """
    return float(np.round(p * (1 + nouns)))


def is_for_this_word(row: Evidence) -> bool:
    """Whether the word passes the ambiguity gate, and the head moves it further than unambiguous
    nouns in its place, with a larger write.
    """
    return passes_gate(row) and _does_it_itself(row)


def comparison(row: Evidence) -> str:
    """How far a head or MLP moves the word, compared with unambiguous nouns in its place.

    row: has net and the columns PARTS

    "more", "less": p_more is below LEVEL, the interval of the difference excludes 0, the difference
        is at least SMALLEST of the gap, and it has the same sign along the word's axis, as a length
        and at the word's surprisal.
    "same": the interval of the difference lies within SAME of the effect on the word.
    "undecided": neither.
    "": it was not compared.

    "more" means that the word moves further in absolute value. A head that opposes the word further
    than it opposes nouns does more. A head that moves only nouns, in either direction, does less.

    The test is valid for the nouns that were compared. The interval resamples nouns, so it is valid
    for other nouns like them. A statement about nouns in general needs both.
    """
    if math.isnan(row["more"]):
        return ""
    differs = row["more_low"] > 0 or row["more_high"] < 0
    if row["p_more"] < LEVEL and differs and abs(row["more"]) >= SMALLEST:
        moves_further = abs(row["nouns"] + row["more"]) > abs(row["nouns"])
        if _measures_agree(row, moves_further):
            return "more" if moves_further else "less"
        return "undecided"
    within = SAME * abs(row["net"])
    if -within <= row["more_low"] and row["more_high"] <= within:
        return "same"
    return "undecided"


def _measures_agree(row: Evidence, moves_further: bool) -> bool:
    """Whether the difference has the same sign along the word's axis and at the word's surprisal,
    and the lengths of the changes differ in the same direction. What was not measured counts as
    agreeing: the axis and the length of edges, and the surprisal where it is unknown.
    """
    sign = np.sign(row["more"])
    others = [sign * row["more_word_axis"], sign * row.get("more_at_surprisal", math.nan)]
    others.append(row["more_length"] if moves_further else -row["more_length"])
    return not any(difference <= 0 for difference in others)


def comparison_of_writes(row: Evidence) -> str:
    """`comparison` of the head's own write, directly after its layer.

    row: has direct and the columns WRITES
    """
    of_write = {of_part: row[name] for name, of_part in zip(WRITES, COMPARED, strict=True)}
    return comparison({"net": row["direct"], **of_write})


def comparisons(frame: pd.DataFrame) -> list[str]:
    """`comparison` of every row."""
    return [comparison(row) for row in _rows(frame)]


def does_it_itself(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether the head of each row moves the word further than nouns, with a larger write."""
    return np.array([_does_it_itself(row) for row in _rows(frame)], dtype=bool)


def _does_it_itself(row: Evidence) -> bool:
    return comparison(row) == "more" and comparison_of_writes(row) == "more"


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dicts."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def is_positional(row: Evidence) -> bool:
    """Whether the head attends mostly to an adjacent token, and has no effect if the cue is further
    away.

    Also True if all cues are adjacent, because distant cues cannot be tested.
    """
    near = row["net_near"]
    far = row["net_far"]
    if math.isnan(near):
        return False
    only_near = math.isnan(far) or far < FAR_SHARE * near
    return only_near and max(attention_beside(row).values()) > MOSTLY


def attention_beside(row: Evidence) -> dict[str, float]:
    """Attention to the tokens before and after the word. In a causal model, the token after it
    gets 0.
    """
    return {"before": row["attention_previous"], "after it": row.get("attention_next", 0.0)}
