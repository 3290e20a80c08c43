"""The cards of the top heads: what a head attends to in real sentences, which words it responds to,
and its effect compared with unambiguous nouns.

Records and tables in, plain values out; the sentences are in the template `cards`.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from probe.claims import strongest_cues
from probe.pages.heads import EffectAxis, effect_axis, head_facts
from probe.pages.sentences import arcs, of_head
from probe.results.findings import HeadFinding, WordFindings
from probe.stats.limits import SMALLEST
from probe.stats.numbers import percent

CUE_WORDS = 8  # of each meaning on a card

# Of the net effect: where the head's own write is less or more than this, the card says why.
WRITES_LITTLE = 0.5
WRITES_MUCH = 1.5
CLOSE = 0.2  # of a head's attention: it hardly attends to a cue with less
SINK = 0.3  # of a head's attention: a first token with less is not a sink
Section = dict[str, Any]


def cards(findings: Mapping[str, WordFindings], verdicts: pd.DataFrame) -> list[Section]:
    """For each word the cards of the heads that the page names.

    verdicts: the table with the reasons of verdicts.
    """
    axis = effect_axis(findings)
    return [
        {
            "word": finding.word,
            "all": len(finding.heads),
            "heads": [_card(finding, head, verdicts, axis) for head in finding.named],
        }
        for finding in findings.values()
        if finding.named
    ]


def _card(
    finding: WordFindings, head: HeadFinding, verdicts: pd.DataFrame, axis: EffectAxis
) -> Section:
    first, further, sink = _sentences(finding, head)
    return head_facts(head) | {
        "id": card_id(finding, head),
        "drawn": axis.marks_of(head),
        "first": first,
        "others": further,
        "sink": sink,
        "cues": _cue_words(finding, head),
        "at": {"word": finding.word, "layer": head.layer, "head": head.head},
        "reasons": _reasons(verdicts[verdicts["word"] == finding.word], head),
        "remark": remark(head),
        "at_end": head.at_end,
    }


def card_id(finding: WordFindings, head: HeadFinding) -> str:
    """The id of a head's card in the page."""
    return f"head-{finding.index}-{head.name}"


def _sentences(
    finding: WordFindings, head: HeadFinding
) -> tuple[list[Section], list[Section], str]:
    """The sentences that a head reads: of each meaning the one with the most attention to the cue,
    then the others; and the mean attention to a sink."""
    if "readings" not in finding.rows:
        return [], [], ""
    rows = of_head(finding.rows["readings"], head)
    if rows.empty:
        return [], [], ""
    on_cue = rows["attention"].where(rows["role"] == "cue", 0.0).groupby(rows["sentence"]).sum()
    ordered = rows.assign(on_cue=rows["sentence"].map(on_cue))
    ordered = ordered.sort_values("on_cue", ascending=False, kind="stable")
    clearest = set(ordered.drop_duplicates("sense")["sentence"])
    sentences = [(number, arcs(group)) for number, group in rows.groupby("sentence", sort=False)]
    first = [sentence for number, sentence in sentences if number in clearest]
    first.sort(key=lambda sentence: finding.senses.index(sentence["sense"]))
    further = [sentence for number, sentence in sentences if number not in clearest]
    return first, further, sink(rows)


def sink(rows: pd.DataFrame) -> str:
    """The mean attention of a head to the first token of its sentences, as text; empty where the
    first token is not a sink, to which a head attends much and from which it writes little."""
    first = rows[(rows["pos"] == 0) & ~rows["role"].isin(["cue", "word"])]
    if first.empty:
        return ""
    attention = float(first["attention"].mean())
    written_share = float(first["contribution"].abs().sum() / rows["contribution"].abs().sum())
    if attention < SINK or written_share > attention / 2:
        return ""
    return percent(attention)


def _cue_words(finding: WordFindings, head: HeadFinding) -> Section | None:
    """The words of a cue scan from which the head writes most toward each of two meanings; None
    where none was made for this head."""
    if "cue_sample" not in finding.rows:
        return None
    rows = of_head(finding.rows["cue_sample"], head)
    if rows.empty:
        return None
    first = rows.iloc[0]
    return {
        "senses": (first["sense_a"], first["sense_b"]),
        "columns": strongest_cues(rows, CUE_WORDS, "write"),
        "tried": len(rows),
    }


def _reasons(verdicts: pd.DataFrame, head: HeadFinding) -> list[Section]:
    """Why the head has its verdict, pair by pair, those with the verdict that says most first."""
    rows = of_head(verdicts, head)
    differs = rows["verdict"] != head.verdict
    ordered = rows.assign(differs=differs).sort_values("differs", kind="stable")
    reasons = []
    for row in ordered.to_dict("records"):
        pair = "" if len(rows) == 1 else f"{row['sense_a']} / {row['sense_b']}"
        reasons.append({"pair": pair, "verdict": row["verdict"], "because": row["because"]})
    return reasons


def remark(head: HeadFinding) -> str:
    """The sentence that explains why a head's effect, write and attention to the cue differ.

    "little" or "much": its write is less or more than its effect; "elsewhere": it hardly
    attends to the cue; empty where there is nothing to say, or no effect.
    """
    if head.net < SMALLEST or head.net_low <= 0:
        return ""
    if head.direct < WRITES_LITTLE * head.net:
        return "little"
    if head.direct > WRITES_MUCH * head.net:
        return "much"
    return "elsewhere" if head.attention_cue < CLOSE else ""
