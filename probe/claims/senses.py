"""The senses of a word: whether its gap counts, what else may explain it, and how the word compares
with unambiguous nouns.
"""

from typing import Any

import numpy as np
import pandas as pd

from probe.claims import records
from probe.claims.heads import with_verdict
from probe.stats.limits import GATE, LEVEL
from probe.verdicts import passes_gate, rank_among_nouns

SENSES = ["sense_a", "sense_b"]
# Things other than meaning that may separate two senses: the column of the p, and the level below
# which it counts. The gap in an untrained model is measured like the gap of the model, so it has
# the stricter level of that test.
CONFOUNDERS = {"untrained": ("untrained_p", GATE), "nuisance": ("nuisance_p", LEVEL)}


def ranked(rows: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """The rows of the pairs of senses whose heads are ranked: those with a significant gap.

    words: the table `words`
    """
    keys = ["word", *SENSES]
    return rows.merge(words.loc[words["ranked"], keys], on=keys)


def senses_of(words: pd.DataFrame) -> list[str]:
    """The senses of a word, in the order of its pairs.

    words: the rows of the word in this table
    """
    return list(dict.fromkeys(words[SENSES].to_numpy().ravel().tolist()))


def has_too_few_cue_words(words: pd.DataFrame) -> bool:
    """Whether no gap of any pair of senses could be significant with its pairs of cue words.

    words: rows of this table
    """
    return bool((words["smallest_gap_p"] >= GATE).all())


def nuisances(words: pd.DataFrame) -> list[str]:
    """The keys of CONFOUNDERS that also separate the senses of a ranked pair.

    words: the rows of the word in this table
    """
    found = [
        name
        for row in records(words[words["ranked"]])
        for name, (column, level) in CONFOUNDERS.items()
        if row[column] < level
    ]
    return list(dict.fromkeys(found))


def confounders(words: pd.DataFrame) -> list[str]:
    """The nuisances that may explain the effects on a word. The gap of an untrained model does not
    count if the word passes the ambiguity gate.

    Unambiguous nouns have the same function words around them, which is what an untrained model
    sees. They do not rule out that a head writes a position at the ambiguous word only.

    words: the rows of the word in this table
    """
    passed = np.array([passes_gate(row) for row in records(words)], dtype=bool)
    untrained_too = nuisances(words[~passed])
    return [name for name in nuisances(words) if name == "nuisance" or name in untrained_too]


def compared(words: pd.DataFrame) -> pd.DataFrame:
    """The ranked pairs of senses with an ambiguity gate.

    words: rows of this table
    """
    return words[words["ranked"] & words["ambiguity_p"].notna()]


def place_among_nouns(pair: Any) -> int:
    """The word's rank among unambiguous nouns by how far each changes. 1 is the furthest.

    pair: a row of the table `words` with an ambiguity gate
    """
    return int(rank_among_nouns(pair.ambiguity_p, pair.nouns_compared))


def farther_nouns(controls: pd.DataFrame, words: pd.DataFrame) -> list[str]:
    """The unambiguous nouns that change at least as far as the word, in the order of the ambiguity
    gate: by the squared gap at the read-out layer, summed over the pairs of senses.

    controls, words: the rows of the word in these tables
    """
    with_gate = compared(words)
    if with_gate.empty:
        return []
    first = with_gate.iloc[0]  # the gate and its nouns are the same for all pairs of senses
    rows = controls[(controls["depth"] == first["depth"]) & (controls["noun"] != first["word"])]
    gaps = rows.groupby("noun", sort=False)["gap"].sum().sort_values(ascending=False, kind="stable")
    return list(gaps.index[: place_among_nouns(first) - 1])


def times_as_far(general_share: float) -> float | None:
    """How many times as far the word changes as unambiguous nouns: the ratio of the distances, from
    the share of the squared distances.

    share ** -0.5

    None if the nouns do not change.
    """
    return general_share**-0.5 if general_share > 0 else None


def mlps_more(mlps: pd.DataFrame) -> list[int]:
    """The layers whose MLP does more for a word than for unambiguous nouns.

    mlps: the rows of one word

    The mean over the pairs of senses must be above 0, and one pair must pass the rule of
    `verdicts.comparison`, with its p corrected over the pairs.
    """
    layers: list[int] = []
    if mlps.empty:
        return layers
    for layer in sorted(mlps["layer"].unique().tolist()):
        rows = mlps[mlps["layer"] == layer]
        if (rows["comparison"] == "more").any() and rows["more"].mean() > 0:
            layers.append(layer)
    return layers


def leading_mlp(
    mlps: pd.DataFrame, word_heads: pd.DataFrame, read_depth: int
) -> "pd.Series | None":
    """The `layer`, `net` and `nouns` of the MLP with the largest effect, if that is larger than the
    effect of every head with a verdict. None if such a head has the largest effect, or no MLP was
    swapped.

    Only parts of layers below `read_depth` are compared, because later ones are read elsewhere.

    mlps, word_heads: the rows of the word in these tables
    """
    before = mlps if mlps.empty else mlps[mlps["layer"] < read_depth]
    if before.empty:
        return None
    means = before.groupby("layer", as_index=False).mean(numeric_only=True)
    largest = means.iloc[int(means["net"].to_numpy().argmax())]
    heads = with_verdict(word_heads[word_heads["layer"] < read_depth])
    return None if largest["net"] <= max(heads["net"], default=0.0) else largest


def has_same_token(depth: pd.DataFrame) -> bool:
    """Whether the token embedding is the same vector for all senses.

    depth: the rows of the word in this table
    """
    pairs = depth[depth["depth"] == -1].groupby(SENSES)["coordinate"]
    return bool((pairs.nunique() == 1).all())
