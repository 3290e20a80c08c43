"""The first screen of a report, and its section "Word by word": one card for each word, from its
record.

Plain values out; the sentences stand in the templates `cautions` and `card`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from probe import charts
from probe.experiments.run import LEADERS
from probe.pages.answer import CONFOUNDER_WORDS
from probe.pages.sentences import of_head, read_sentence
from probe.results.findings import HeadFinding, PairOfSenses, WordFindings
from probe.stats.limits import LEVEL
from probe.stats.numbers import decimal, interval, listed, ordinal, percent

MOSTLY = 0.6  # of a head's attention: more than on the cue and all other tokens together
SINK = 0.3  # of a head's attention: a first token that gets less is not called a sink
HALF = 0.5  # of the sense gap
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


def scope(findings: Mapping[str, WordFindings]) -> Section:
    """How much was swapped: the fewest sentences and cue words of any ranked pair of senses, and
    the most tests that one p is corrected for."""
    ranked = [
        (finding, pair) for finding in findings.values() for pair in finding.pairs if pair.ranked
    ]
    if not ranked:
        return {"swapped": False}
    heads = len(ranked[0][0].rows["heads"][["layer", "head"]].drop_duplicates())
    ranked_pairs = [sum(pair.ranked for pair in finding.pairs) for finding in findings.values()]
    return {
        "swapped": True,
        "heads": heads,
        "several": len(ranked) > 1,
        "sentences": min(pair.sentences_report for _, pair in ranked),
        "cue_words": min(pair.cue_words for _, pair in ranked),
        "tests": heads * max(ranked_pairs),
        "words": len({finding.word for finding, _ in ranked}),
    }


def cards(findings: Mapping[str, WordFindings]) -> list[Section]:
    """For each word what its card says of it, its numbers, and its pictures."""
    return [card(finding) | pictures(finding) for finding in findings.values()]


def card(finding: WordFindings) -> Section:
    """What one word's card says."""
    several = len(finding.pairs) > 1
    return {
        "finding": finding,
        "material": hardest_pair(finding),
        "confounded": confounded(finding),
        "moving": moving(finding),
        "looks": looks(finding),
        "looks_at_word": looks_at_word(finding.movers[:LEADERS]),
        "pairs": [pair_row(pair) for pair in finding.pairs] if several else [],
        "apart_at": apart_at(finding),
    }


def pictures(finding: WordFindings) -> Section:
    """The pictures on one word's card: its depth profiles, and nouns of one meaning beside it."""
    return {
        "depth": profiles(
            finding.rows["depth"],
            finding.word,
            [(pair.sense_a, pair.sense_b) for pair in finding.pairs],
            read_at=finding.read_depth,
        ),
        "nouns": nouns_picture(finding),
        "below_zero": below_zero(finding),
    }


def looks(finding: WordFindings) -> Section | None:
    """Where the leading head looks from the word: of each sense, of the sentences drawn for the
    page, the one in which it gives most of its attention to the cue; None where it has none.

    `sink`: the head's mean attention to the first token, where that is a sink, else empty.
    """
    if not finding.heads_read:
        return None
    head = finding.heads_read[0]
    rows = of_head(finding.rows["readings"], head)
    on_cue = rows["attention"].where(rows["role"] == "cue", 0.0).groupby(rows["sentence"]).sum()
    ordered = rows.assign(on_cue=rows["sentence"].map(on_cue))
    ordered = ordered.sort_values("on_cue", ascending=False, kind="stable")
    shown = ordered.drop_duplicates("sense")["sentence"]
    sentences = [read_sentence(rows[rows["sentence"] == number], 1.0) for number in shown]
    in_order = sorted(sentences, key=lambda read: finding.senses.index(read["sense"]))
    cue_known = bool((rows["role"] == "cue").any())
    return {
        "head": head.name,
        "sentences": in_order,
        "cue_known": cue_known,
        "sink": sink(rows),
    }


def sink(rows: pd.DataFrame) -> str:
    """The mean attention of a head to the first token of the sentences that it reads; empty where
    that is no sink, which has much attention and gives little."""
    first = rows[(rows["pos"] == 0) & ~rows["role"].isin(["cue", "word"])]
    if first.empty:
        return ""
    attention = float(first["attention"].mean())
    given = float(first["contribution"].abs().sum() / rows["contribution"].abs().sum())
    if attention < SINK or given > attention / 2:
        return ""
    return percent(attention)


def apart_at(finding: WordFindings) -> int | None:
    """The first layer after which the mean coordinates of the first pair of senses are half a gap
    apart; None where they are nowhere."""
    pair = finding.pairs[0]
    rows = finding.rows["depth"]
    of_pair = rows[(rows["sense_a"] == pair.sense_a) & (rows["sense_b"] == pair.sense_b)]
    by_sense = of_pair.pivot(index="depth", columns="sense", values="coordinate")
    apart = (by_sense[pair.sense_a] - by_sense[pair.sense_b]) >= HALF
    depths = by_sense.index[apart].tolist()
    return int(depths[0]) - 1 if depths else None


def nouns_picture(finding: WordFindings) -> alt.LayerChart | None:
    """The word's gap by depth above that of nouns of one meaning; None where none stood in its
    place."""
    controls = finding.rows["controls"]
    if controls.empty:
        return None
    chart: alt.LayerChart = charts.noun_gaps(controls, finding.word, read_at=finding.read_depth)
    return chart


def below_zero(finding: WordFindings) -> bool:
    """Whether the picture of nouns of one meaning shows a distance below 0."""
    controls = finding.rows["controls"]
    if controls.empty:
        return False
    rows = charts.noun_distances(controls, finding.word, read_at=finding.read_depth)
    return bool((rows[["distance", "low", "high"]] < 0).any(axis=None))


def hardest_pair(finding: WordFindings) -> Section:
    """What could have been seen for the pair of senses that had least, and in how much material."""
    pairs = finding.pairs
    smallest_p = max(pair.smallest_p for pair in pairs)
    return {
        "sentences": min(int(pair.sentences_report) for pair in pairs),
        "cue_words": min(int(pair.cue_words) for pair in pairs),
        "pairs": min(int(pair.pairs) for pair in pairs),
        "smallest_p": smallest_p,
        "nothing_visible": smallest_p >= LEVEL,
        "visible_effect": max(pair.visible_d_pairs for pair in pairs),
        "gap_p": min(pair.gap_p for pair in pairs),
    }


def confounded(finding: WordFindings) -> Section:
    """For how many pairs of senses something without meaning tells them apart, and what it is.

    `behind_the_gate`: for how many of them that is ruled out as the reason, because the word
    changes further than nouns of one meaning in the same sentences.
    """
    by_pair = [
        listed([CONFOUNDER_WORDS[name] for name in pair.nuisances])
        for pair in finding.pairs
        if pair.nuisances
    ]
    behind = [pair for pair in finding.pairs if pair.nuisances and not pair.confounders]
    return {
        "pairs": len(by_pair),
        "by": list(dict.fromkeys(by_pair)),
        "behind_the_gate": len(behind),
    }


def moving(finding: WordFindings) -> Section:
    """The first heads that move the word, and over how many pairs of senses their effects are
    means."""
    return {
        "named": finding.movers[:LEADERS],
        "ranked_pairs": sum(pair.ranked for pair in finding.pairs),
    }


def looks_at_word(heads: Sequence[HeadFinding]) -> list[HeadFinding]:
    """Heads that look at the word and not at the cue: what they move, others have brought there."""
    return [
        head for head in heads if head.attention_itself > MOSTLY and head.attention_cue < 1 - MOSTLY
    ]


def pair_row(pair: PairOfSenses) -> Section:
    """A pair of senses as a row of the card's table."""
    return {
        "pair": pair,
        "gap": gap_text(pair.gap, pair.gap_low, pair.gap_high),
        "resolvers": listed(list(pair.resolvers)),
        "among_nouns": among_nouns(pair),
        "leading_effect": percent(pair.leading_effect),
    }


def among_nouns(pair: PairOfSenses) -> str:
    """The word's place among the nouns in its place: “first of 39”."""
    if math.isnan(pair.ambiguity_p):
        return "not asked"
    return f"{ordinal(pair.place_among_nouns)} of {pair.nouns + 1}"


def gap_text(gap: float, low: float, high: float) -> str:
    """The gap of a pair of senses with its 95 % interval."""
    return f"{decimal(gap)} {interval(low, high)}"


def profiles(
    depth: pd.DataFrame, word: str, pairs: Sequence[tuple[str, str]], *, read_at: int
) -> list[tuple[tuple[str, str], alt.LayerChart]]:
    """The depth profile of each pair of senses of a word, lower where there are several."""
    made = []
    for pair in pairs:
        chart = charts.depth_profile(depth, word, pair, read_at=read_at, legend=False)
        if len(pairs) > 1:
            chart = chart.properties(height=LOWER)
        made.append((pair, chart))
    return made
