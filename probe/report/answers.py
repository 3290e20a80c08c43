"""The sentences that a report says, made from the frames' numbers and intervals alone: pure functions from frame to text.

What may be said is bound here. A percentage is of the sense gap, measured on sentences that nothing was fitted on, and stands with
its 95 % interval. Effects are those beyond a same-sense swap (`net`). Heads whose rank intervals overlap are named together and
never put in order. Looking at the cue is described, never offered as a reason. Where the gap is not there nothing is ranked.
"""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from probe.charts import reached
from probe.numerals import NARROW, decimal, interval, listed, measured, p_value, percent, scientific

LEADERS = 3
SMALLEST = 0.01
Head = dict[Hashable, Any]


def head_name(head: Head) -> str:
    return f"L{head['layer']}H{head['head']}"


def question(words: Sequence[str]) -> str:
    return f"Which heads resolve {listed(list(words))}?"


def leading_heads(word_heads: pd.DataFrame, word: str) -> list[Head]:
    """Up to LEADERS heads of a word by rank: those that move it by SMALLEST or more, with an interval above zero."""
    if word not in set(word_heads["word"]):
        return []
    rows = word_heads[word_heads["word"] == word].nsmallest(LEADERS, "rank")
    return rows[(rows["net_low"] > 0) & (rows["net"] >= SMALLEST)].to_dict("records")


def in_groups(heads: Sequence[Head]) -> list[list[Head]]:
    """Heads by rank, those with overlapping rank intervals together: only between groups is there an order."""
    groups: list[list[Head]] = []
    for head in heads:
        if groups and head["rank_low"] <= max(other["rank_high"] for other in groups[-1]):
            groups[-1].append(head)
        else:
            groups.append([head])
    return groups


def answer(words: pd.DataFrame, word_heads: pd.DataFrame, word: str) -> str:
    """What the study says about one word, in a sentence or three; `words` and `word_heads` are the study's frames."""
    pairs = words[words["word"] == word]
    if not pairs["ranked"].any():
        return _nothing_to_rank(pairs, word)
    heads = leading_heads(word_heads, word)
    if not heads:
        return _no_head(word_heads[word_heads["word"] == word], word)
    groups = in_groups(heads)
    first = _first(groups[0], word, _way(pairs))
    return " ".join([first, *_next(groups[1:]), *_others(word_heads, heads, word), *_attention(heads)])


def _nothing_to_rank(pairs: pd.DataFrame, word: str) -> str:
    if len(pairs) == 1:
        pair = pairs.iloc[0]
        gap = f"gap {decimal(pair['gap'])} {interval(pair['gap_low'], pair['gap_high'])}, {p_value(pair['gap_p'])}"
        return f"This model does not separate the senses of “{word}” at the word ({gap}), so no head is ranked."
    smallest = p_value(pairs["gap_p"].min()).replace("=", "≥")
    return (
        f"This model does not separate any of the {len(pairs)} pairs of senses of “{word}” at the word ({smallest}), "
        "so no head is ranked."
    )


def _no_head(rows: pd.DataFrame, word: str) -> str:
    best = rows.nsmallest(1, "rank").to_dict("records")[0]
    return (
        f"The senses of “{word}” are apart at the word, but no single head was shown to move it by {percent(SMALLEST)} of the way or "
        f"more: the largest effect is {_effect(best)}, by {head_name(best)}."
    )


def _way(pairs: pd.DataFrame) -> str:
    """Between which senses: the two of the word, or the mean over the pairs that the model separates."""
    if len(pairs) == 1:
        return f"between {pairs.iloc[0]['sense_a']} and {pairs.iloc[0]['sense_b']}"
    passed, number = int(pairs["ranked"].sum()), len(pairs)
    which = f"all {number} pairs" if passed == number else f"the {passed} of {number} pairs that this model separates"
    return f"between two senses, on average over {which}"


def _effect(head: Head) -> str:
    return measured(head["net"], head["net_low"], head["net_high"])


def _first(group: Sequence[Head], word: str, way: str) -> str:
    if len(group) == 1:
        head = group[0]
        return (
            f"Swapping the output of {head_name(head)} alone moves “{word}” {_effect(head)} of the way {way} "
            f"(its own write accounts for {percent(head['direct'])})."
        )
    effects = listed([f"{head_name(head)} {_effect(head)}" for head in group])
    return (
        f"Swapping the output of a single head moves “{word}” part of the way {way}: {effects}. Their ranks overlap, so none of "
        "them comes first."
    )


def _next(groups: Sequence[Sequence[Head]]) -> list[str]:
    """The groups after the first, in their order; within a group there is none."""
    if not groups:
        return []
    places = [listed([f"{head_name(head)} with {_effect(head)}" for head in group]) for group in groups]
    verb = "comes" if len(groups[0]) == 1 else "come, in no order,"
    return [f"Next {verb} {', then '.join(places)}."]


def _others(word_heads: pd.DataFrame, heads: Sequence[Head], word: str) -> list[str]:
    """Heads that are not named: those that could hold the last named head's place, or how little all of them do."""
    rows = reached(word_heads[word_heads["word"] == word])
    others = rows[~rows["rank"].isin([head["rank"] for head in heads])]
    last = in_groups(heads)[-1]
    rivals = others[others["rank_low"] <= max(head["rank_high"] for head in last)]
    if len(rivals):
        many = "Another head" if len(rivals) == 1 else f"{len(rivals)} other heads"
        return [f"{many} could stand in the place of {head_name(last[-1])}."]
    if others.empty:
        return []
    bound = math.ceil(100 * others[["net_low", "net_high"]].abs().max().max())
    who = "The one other head stays" if len(others) == 1 else f"The other {len(others)} heads stay"
    return [f"{who} within ±{max(bound, 1)}{NARROW}%."]


def _attention(heads: Sequence[Head]) -> list[str]:
    """Where the leading heads look from the word; nothing where the sentences mark no cue."""
    if any(pd.isna(head["attention_cue"]) for head in heads):
        return []
    first, *rest = [(head_name(head), percent(head["attention_cue"])) for head in heads]
    told = [f"{first[0]} gives {first[1]} of its attention to the cue", *(f"{name} {share}" for name, share in rest)]
    return [f"From the word, {listed(told)}."]


def agreement(certificate: pd.DataFrame) -> str:
    """The certificate in a sentence: how many comparisons, and the worst of them."""
    worst = certificate.nlargest(1, "error").to_dict("records")[0]
    where = "the whole model" if pd.isna(worst["layer"]) else f"layer {worst['layer']}"
    held = int(certificate["ok"].sum())
    if held < len(certificate):
        return f"{len(certificate) - held} of {len(certificate)} differences between the hooked model and the from-scratch math are too large."
    return (
        f"The hooked model and the from-scratch math agree: the largest of {len(certificate)} differences is "
        f"{scientific(worst['error'])} of its scale ({worst['quantity']}, {where}), allowed {scientific(worst['tolerance'])}."
    )


def later_words(row: Head) -> str:
    """What a causal model can have made of a cue that comes after the word, with the measured difference."""
    cue = f"“{row['cue']}” comes" if row["cue"] else "What tells the sense comes"
    return (
        f"{cue} after the word: a causal model cannot have resolved the word by it. Measured: with everything after the word removed, "
        f"no head's write at the word changes by more than {scientific(row['difference'])} of the largest ΔE."
    )


def reading(row: Head, ranked: bool) -> str:
    """Which sense's mean the vector at the word is nearest to, and where it stands between two senses."""
    right = "as meant" if row["reads_as"] == row["sense"] else f"although {row['sense']} is meant"
    said = (
        f"At the word the model is nearest to {row['reads_as']}, {right} (coordinate {decimal(row['coordinate'])}, from −0.50 for "
        f"{row['sense_b']} to 0.50 for {row['sense_a']})."
    )
    return said if ranked else f"{said} The senses are not apart in this model, so this is no better than a guess."
