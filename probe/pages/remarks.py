"""Remarks around a report's answers: the certificate, late cues, where single words stand, an answer's evidence."""

import math
from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from probe.pages import answers
from probe.stats.numbers import NARROW, decimal, listed, p_value, percent, scientific
from probe.stats.verdicts import SMALLEST as MOVES

Row = dict[Hashable, Any]


def agreement(certificate: pd.DataFrame) -> str:
    """The certificate in a sentence: how many comparisons, and the worst of them."""
    worst = certificate.nlargest(1, "error").to_dict("records")[0]
    where = "the whole model" if pd.isna(worst["layer"]) else f"layer {worst['layer']}"
    held = int(certificate["ok"].sum())
    if held < len(certificate):
        wrong = f"{len(certificate) - held} of {len(certificate)} differences"
        return f"{wrong} between the hooked model and the from-scratch math are too large."
    return (
        f"The hooked model and the from-scratch math agree: the largest of {len(certificate)} differences is "
        f"{scientific(worst['error'])} of its scale ({worst['quantity']}, {where}), "
        f"allowed {scientific(worst['tolerance'])}."
    )


def unpaired(sentences: pd.DataFrame) -> int:
    """Number of a word's sentences whose pair no sentence of another sense names, so that they cannot be swapped."""
    partners = sentences.groupby("pair")["sense"].transform("nunique")
    return int((partners == 1).sum())


def later_words(row: Row) -> str:
    """What a causal model can have made of a cue that comes after the word, with the measured difference."""
    cue = f"“{row['cue']}” comes" if row["cue"] else "What tells the sense comes"
    return (
        f"{cue} after the word: a causal model cannot have resolved the word by it. Measured: with everything after "
        "the word removed, no head's write at the word changes by more than "
        f"{scientific(row['difference'])} of the largest ΔE."
    )


def second_model(row: Row) -> str:
    """The nearest sense at the word in a model that reads beyond it, and the words and heads that this depends on."""
    said = (
        f"At the word it is {_nearest(row)}). With everything after the word removed, "
        f"heads' writes there change by up to {percent(row['difference'])} of the largest ΔE."
    )
    if not row["shown"]:
        return f"{said} These senses were not shown to be apart in this model, so this is no better than a guess."
    if not bool(pd.notna(row["share"])):
        return said
    marked = bool(pd.notna(row["cue_share"]))
    without = decimal(row["coordinate"] * (1 - row["share"]))
    told = f"Of single words “{row['source']}” counts most: with it hidden the coordinate is {without}"
    if marked and row["cue"] != row["source"]:
        told += f" (with “{row['cue']}” hidden, {decimal(row['coordinate'] * (1 - row['cue_share']))})"
    if marked:
        alone, nothing = (decimal(row[name]) for name in ("cue_alone", "nothing"))
        told += f"; with no other word than “{row['cue']}” shown it is {alone}, with none {nothing}"
    through = f"Heads that alone cost most of what “{row['source']}” gives, in per cent of the coordinate"
    return f"{said} {told}. {through}: {row['through']}."


def _nearest(row: Row) -> str:
    right = "as meant" if row["reads_as"] == row["sense"] else f"although {row['sense']} is meant"
    return f"nearest to {row['reads_as']}, {right} (coordinate {decimal(row['coordinate'])}"


def reading(row: Row, ranked: bool) -> str:
    """The nearest sense at the word, and where the word stands between two senses."""
    ends = f"from −0.50 for {row['sense_b']} to 0.50 for {row['sense_a']}"
    said = f"At the word the model is {_nearest(row)}, {ends})."
    guess = " The senses were not shown to be apart in this model, so this is no better than a guess."
    return said if ranked else said + guess


MOSTLY = 0.6  # of a head's attention: more than on the cue and all other tokens together


def evidence(frames: answers.Frames, word: str) -> list[str]:
    """The evidence of an answer in a few sentences: the tests, where the heads look, what the other heads are."""
    heads = answers.resolvers(frames, word)
    if answers.heads_of(frames, word).empty:
        return []
    looks = _attention(heads[: answers.LEADERS])
    return [*_tests(frames, word, heads), *looks, *_others(frames, word, heads), *_untested(frames, word)]


def _untested(frames: answers.Frames, word: str) -> list[str]:
    """The layers that write after the word was read; nothing where it is read after the last."""
    depth = int(frames["words"].loc[frames["words"]["word"] == word, "depth"].iloc[0])
    last = int(frames["heads"]["layer"].max())
    if depth > last:
        return []
    which, whose = (f"Layer {last} writes", "its") if depth == last else (f"Layers {depth} to {last} write", "their")
    return [f"{which} after the read-out (after layer {depth - 1}): {whose} heads were not tested."]


def _tests(frames: answers.Frames, word: str, heads: Sequence[answers.Head]) -> list[str]:
    if not heads:
        return []
    rows = frames["heads"][(frames["heads"]["word"] == word) & (frames["heads"]["verdict"] == "resolver")]
    largest = p_value(float(rows[["p_auroc", "p_swap"]].max().max())).replace("p = ", "p ≤ ")
    auroc = decimal(float(rows["auroc"].min()))
    bound = f"AUROC {auroc} or more" if len(rows) > 1 and float(auroc) < 1 else f"AUROC {auroc}"
    who = "It separates" if len(heads) == 1 else "Each separates"
    moves = "moves the word beyond a same-sense swap, both corrected for every head and pair of senses"
    return [f"{who} the senses held out ({bound}) and {moves} (max-T {largest})."]


def _attention(heads: Sequence[answers.Head]) -> list[str]:
    """Where the leading heads look from the word; nothing where the sentences mark no cue."""
    if not heads or any(pd.isna(head["attention_cue"]) for head in heads):
        return []
    first, *rest = [(answers.head_name(head), percent(head["attention_cue"])) for head in heads]
    told = [f"{first[0]} gives {first[1]} of its attention to the cue", *(f"{name} {share}" for name, share in rest)]
    return [f"From the word, {listed(told)}.", *_onward(heads)]


def _onward(heads: Sequence[answers.Head]) -> list[str]:
    """Heads that look at the word and not at the cue: what they move, others have brought there."""
    onward = [head for head in heads if head["attention_itself"] > MOSTLY and head["attention_cue"] < 1 - MOSTLY]
    if not onward:
        return []
    names, looks = listed([answers.head_name(head) for head in onward]), "looks" if len(onward) == 1 else "look"
    least = percent(min(head["attention_itself"] for head in onward))
    or_more = " or more" if len(onward) > 1 else ""
    return [f"{names} {looks} at the word itself ({least}{or_more}), at what layers below have brought there."]


WHAT = {
    "position-explained": "{} the word only when the cue stands right before it (position-explained)",
    "opposes": "{} the wrong way (opposes)",
    "backup": "{} little when swapped alone, for another path makes up for it (backup)",
    "carrier": "{} the senses without being shown to move the word by " + percent(MOVES) + " or more (carrier)",
}
VERBS = dict.fromkeys(("opposes", "backup"), ("moves it", "move it"))
VERBS |= {"position-explained": ("moves", "move"), "carrier": ("separates", "separate")}


def _others(frames: answers.Frames, word: str, heads: Sequence[answers.Head]) -> list[str]:
    """What the heads up to the read-out were shown to be that do not resolve, and how little all of them do."""
    rows = answers.heads_of(frames, word)
    rest = rows[rows["verdict"] != "resolver"]
    if rest.empty:
        return []
    told = [_kind(rest, name) for name in WHAT if name in set(rest["verdict"])]
    if nothing := int((rest["verdict"] == "none").sum()):
        told.append(f"of {nothing} nothing was shown")
    bound = max(math.ceil(round(100 * float(rest[["net_low", "net_high"]].abs().max().max()), 6)), 1)
    number = "one" if len(rest) == 1 else str(len(rest))
    noun = "head" if number == "one" else "heads"
    who = f"{number} other {noun}" if heads else f"{number} {noun} up to the read-out"
    within = f"{'all ' if len(rest) > 1 else ''}within ±{bound}{NARROW}%."
    if nothing == len(rest):
        return [f"Of the {who} nothing was shown; {within}"]
    return [f"The {who}: {listed(told)}; {within}"]


def _kind(rest: pd.DataFrame, name: str) -> str:
    """The heads of one verdict: carriers by their number, rarer kinds by name where they are few."""
    heads = rest[rest["verdict"] == name].to_dict("records")
    few = len(rest) == 1 or (name != "carrier" and len(heads) <= answers.LEADERS)
    who = listed([answers.head_name(head) for head in heads]) if few else str(len(heads))
    return f"{who} {WHAT[name].format(VERBS[name][len(heads) > 1])}"
