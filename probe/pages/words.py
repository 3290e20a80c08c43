"""The words of a report: how much was measured, the facts of each word, how its meanings part, and
how far it changes compared with unambiguous nouns.

Plain values and charts out; the sentences are in the templates.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from probe import charts
from probe.pages.answer import facts
from probe.results.findings import HeadFinding, PairOfSenses, WordFindings
from probe.stats.limits import GATE
from probe.stats.numbers import (
    NARROW,
    decimal,
    interval,
    listed,
    measured,
    ordinal,
    p_value,
    percent,
)

LOWER = 120  # pixels of a depth profile where a word has several
Section = dict[str, Any]


def opening(findings: Mapping[str, WordFindings]) -> Section:
    """What the answer rests on: the size of the model, how many sentences were used, and how many
    pairs of them were swapped."""
    first = next(iter(findings.values()))
    pairs = [pair for finding in findings.values() for pair in finding.pairs]
    used = [(finding.rows["sentences"]["part"] != "neither").sum() for finding in findings.values()]
    return {
        "heads": len(first.rows["heads"][["layer", "head"]].drop_duplicates()),
        "layers": first.layers,
        "words": len(findings),
        "sentences": int(sum(used)),
        "pairs": sum(pair.pairs for pair in pairs if pair.ranked),
    }


def fact_table(findings: Mapping[str, WordFindings]) -> Section:
    """The facts of all words: a row for each fact with its value for each word, empty where it does
    not apply; and the pairs of meanings of each word that has several."""
    by_word = {
        word: dict(facts(finding)) | {label: value(finding) for label, value in FURTHER.items()}
        for word, finding in findings.items()
    }
    labels = dict.fromkeys(label for of_word in by_word.values() for label in of_word)
    rows = [(label, [of_word.get(label, "") for of_word in by_word.values()]) for label in labels]
    return {
        "rows": [(label, values) for label, values in rows if any(values)],
        "pairs": [
            {"word": word, "rows": [_pair(pair) for pair in finding.pairs]}
            for word, finding in findings.items()
            if len(finding.pairs) > 1
        ],
    }


def _opposing(finding: WordFindings) -> str:
    return _effects(finding.opposing)


def _effects(heads: Sequence[HeadFinding]) -> str:
    return ", ".join(
        f"{head.name} {measured(head.net, head.net_low, head.net_high)}" for head in heads
    )


def _largest_p(finding: WordFindings) -> str:
    """The largest corrected p of the significant heads' effects."""
    return p_value(finding.tests.p_swap) if finding.tests else ""


def _largest_p_next(finding: WordFindings) -> str:
    """The same of their effects on the next token, where the model predicts one."""
    p = finding.tests.p_next_token if finding.tests else None
    return "" if p is None else p_value(p)


def _not_separating(finding: WordFindings) -> str:
    return listed(list(finding.tests.not_separating)) if finding.tests else ""


def _bound_of_others(finding: WordFindings) -> str:
    """A bound on the effects of the heads that are not significant, by their intervals."""
    other_heads = finding.other_heads
    if other_heads is None:
        return ""
    return f"each at most {percent(other_heads.bound / 100)} of the gap (95{NARROW}% interval)"


def _continuations(finding: WordFindings) -> str:
    return listed(list(finding.without_continuation))


def _unprepared(finding: WordFindings) -> str:
    """The pairs of meanings whose prepared next words the model does not prefer."""
    ranked = [pair for pair in finding.pairs if pair.ranked]
    silent = sum(pair.continuation_p >= GATE for pair in ranked)
    return f"{silent} of {len(ranked)} pairs of meanings" if silent else ""


def _gap(finding: WordFindings) -> str:
    pairs = finding.pairs
    if len(pairs) > 1:
        return f"{sum(pair.ranked for pair in pairs)} of {len(pairs)} pairs of meanings"
    return _with_interval(pairs[0])


def _forms(finding: WordFindings) -> str:
    """The gap in the dictionary form of the word and in others, where both were measured."""
    first = finding.pairs[0]
    if len(finding.pairs) > 1 or math.isnan(first.gap_form) or math.isnan(first.gap_other_forms):
        return ""
    return f"{decimal(first.gap_form)} and {decimal(first.gap_other_forms)}"


FURTHER: dict[str, Callable[[WordFindings], str]] = {
    "gap in held-out sentences (1: as wide as in the sentences used for fitting)": _gap,
    "gap in the dictionary form and in others": _forms,
    "heads that move it the wrong way": _opposing,
    "largest p of the significant heads": _largest_p,
    "the same for the next token": _largest_p_next,
    "significant heads whose output does not separate the meanings": _not_separating,
    "significant heads without an effect on the prepared next words": _continuations,
    "prepared next words that the model does not prefer after the word": _unprepared,
    "effects of all other heads": _bound_of_others,
}


def _pair(pair: PairOfSenses) -> Section:
    """A pair of meanings as a row."""
    return {
        "pair": pair,
        "gap": _with_interval(pair),
        "resolvers": listed(list(pair.resolvers)),
        "among_nouns": among_nouns(pair),
        "leading_effect": percent(pair.leading_effect),
    }


def _with_interval(pair: PairOfSenses) -> str:
    """The gap of a pair with its 95 % interval."""
    return f"{decimal(pair.gap)} {interval(pair.gap_low, pair.gap_high)}"


def among_nouns(pair: PairOfSenses) -> str:
    """The rank of the word among the nouns in its place: “first of 39”; empty if not compared."""
    if math.isnan(pair.ambiguity_p):
        return ""
    return f"{ordinal(pair.place_among_nouns)} of {pair.nouns_compared + 1}"


def partings(findings: Mapping[str, WordFindings]) -> list[Section]:
    """For each word how its meanings part, layer by layer: a depth profile for each pair."""
    return [
        {"word": word, "same_token": finding.same_token, "profiles": _profiles(finding)}
        for word, finding in findings.items()
    ]


def _profiles(finding: WordFindings) -> list[tuple[tuple[str, str], alt.LayerChart]]:
    """The depth profile of each pair of meanings, lower where there are several."""
    profiles = []
    for pair in finding.pairs:
        senses = (pair.sense_a, pair.sense_b)
        depth: pd.DataFrame = finding.rows["depth"]
        chart = charts.depth_profile(
            depth, finding.word, senses, read_at=finding.read_depth, legend=False
        )
        if len(finding.pairs) > 1:
            chart = chart.properties(height=LOWER)
        profiles.append((senses, chart))
    return profiles


def compared_with_nouns(findings: Mapping[str, WordFindings]) -> list[Section]:
    """For each word that was compared with unambiguous nouns, its gap by depth and theirs."""
    return [
        {
            "word": word,
            "chart": charts.noun_gaps(
                finding.rows["controls"], finding.word, read_at=finding.read_depth
            ),
        }
        for word, finding in findings.items()
        if len(finding.rows["controls"])
    ]
