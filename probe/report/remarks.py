"""What a report says beside its answers: of the certificate, of sentences whose cue comes too late, of where single words stand."""

from collections.abc import Hashable
from typing import Any

import pandas as pd

from probe.numerals import decimal, percent, scientific

Row = dict[Hashable, Any]


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


def unpaired(sentences: pd.DataFrame) -> int:
    """How many of a word's sentences name a pair that no sentence of another sense names: they have nobody to be swapped with."""
    partners = sentences.groupby("pair")["sense"].transform("nunique")
    return int((partners == 1).sum())


def later_words(row: Row) -> str:
    """What a causal model can have made of a cue that comes after the word, with the measured difference."""
    cue = f"“{row['cue']}” comes" if row["cue"] else "What tells the sense comes"
    return (
        f"{cue} after the word: a causal model cannot have resolved the word by it. Measured: with everything after the word removed, "
        f"no head's write at the word changes by more than {scientific(row['difference'])} of the largest ΔE."
    )


def beside(row: Row) -> str:
    """What another model, which reads on beyond the word, has at the same word: where it stands, and without which word it would not."""
    right = "as meant" if row["reads_as"] == row["sense"] else f"although {row['sense']} is meant"
    said = (
        f"At the word it is nearest to {row['reads_as']}, {right} (coordinate {decimal(row['coordinate'])}). With everything after the "
        f"word removed, heads' writes there change by up to {percent(row['difference'])} of the largest ΔE."
    )
    if not row["shown"]:
        return f"{said} These senses were not shown to be apart in this model, so this is no better than a guess."
    known, marked = (bool(pd.notna(row[name])) for name in ("share", "cue_share"))
    if not known:
        return said
    without = decimal(row["coordinate"] * (1 - row["share"]))
    told = f"Of single words “{row['source']}” counts most: with it hidden the coordinate is {without}"
    if marked and row["cue"] != row["source"]:
        told += f" (with “{row['cue']}” hidden, {decimal(row['coordinate'] * (1 - row['cue_share']))})"
    if marked:
        alone, nothing = (decimal(row[name]) for name in ("cue_alone", "nothing"))
        told += f"; with no other word than “{row['cue']}” shown it is {alone}, with none {nothing}"
    return f"{said} {told}. Heads that alone cost most of what “{row['source']}” gives, in per cent of the coordinate: {row['through']}."


def reading(row: Row, ranked: bool) -> str:
    """Which sense's mean the vector at the word is nearest to, and where it stands between two senses."""
    right = "as meant" if row["reads_as"] == row["sense"] else f"although {row['sense']} is meant"
    said = (
        f"At the word the model is nearest to {row['reads_as']}, {right} (coordinate {decimal(row['coordinate'])}, from −0.50 for "
        f"{row['sense_b']} to 0.50 for {row['sense_a']})."
    )
    return (
        said
        if ranked
        else f"{said} The senses were not shown to be apart in this model, so this is no better than a guess."
    )
