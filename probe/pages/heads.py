"""The sections of a report about heads: maps, the axis of effects, sets of heads, direct shares,
and the table of all heads.

Records in, plain values and charts out; the sentences are in the templates.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from probe import charts
from probe.claims import UNMARKED
from probe.results.findings import Frames, HeadFinding, WordFindings
from probe.stats.limits import LEVEL, SMALLEST
from probe.stats.numbers import decimal, measured, p_value, percent

SHORTEST_AXIS = 0.05  # of the gap: the axis of effects reaches at least so far
TABLE_ROWS = 160  # heads in a word's table: all of a GPT-2 small (144), the first of a larger model
UNKNOWN = "not known"
Section = dict[str, Any]


def maps(findings: Mapping[str, WordFindings], frames: Frames) -> Section:
    """The head maps of the ranked words, on one scale, or on two where later layers are read after
    the last."""
    heads = frames["word_heads"]
    marked = charts.ranked_heads(heads)
    mlps = _mlps(frames)
    with_map = [finding for finding in findings.values() if finding.heads]
    cell = charts.cell_size(heads, mlps) if with_map else 0
    depths = {finding.word: finding.read_depth for finding in with_map}
    limits = charts.effect_limits(heads, mlps, read_at=depths)
    return {
        "limits": [percent(limit) for limit in limits],
        "charts": {
            word: charts.head_map(heads, word, mlps, read_at=depths, legend=False)
            for word in depths
        },
        "numbers": cell >= charts.NUMBERS_FROM,
        "wide": cell == charts.SMALLEST_CELL,
        "mlps": bool(len(mlps)),
        "mixers": bool((mlps["head"] == charts.MIXER).any()),
        "read": [
            (finding.word, finding.read_depth)
            for finding in with_map
            if finding.read_depth in set(heads["layer"])
        ],
        "counted": [(finding.word, *_clear_and_all(finding)) for finding in with_map],
        "more": bool(charts.does_more(pd.concat([marked, mlps])).any()),
        "verdicts": [(name, charts.MARKS[name]) for name in charts.marked(marked)],
    }


def _mlps(frames: Frames) -> pd.DataFrame:
    """The columns of a map besides the heads: the mixers of a hybrid, then the MLPs, compared with
    unambiguous nouns where that was measured, else from the trace by position."""
    compared = charts.mlps_beside_nouns(frames["mlps"])
    columns = [charts.mixers_at_word(frames["mixers"]), compared]
    if "positions" in frames:
        traced = charts.mlps_at_word(frames["positions"])
        columns.append(traced[~traced["word"].isin(compared["word"])])
    return pd.concat(columns, ignore_index=True)


def _clear_and_all(finding: WordFindings) -> tuple[int, int]:
    """The number of ranked heads whose interval excludes zero, and of all ranked heads."""
    ranked = [head for head in finding.heads if head.rank is not None]
    return sum(is_clear(head) for head in ranked), len(ranked)


class EffectAxis:
    """The axis of the effects of top heads, the same for every word of a page.

    Its ends are the outermost interval ends and effects on unambiguous nouns.
    """

    def __init__(self, heads: Iterable[HeadFinding]) -> None:
        values = [
            value
            for head in heads
            for value in (head.net_low, head.net_high, head.nouns)
            if not math.isnan(value)
        ]
        self.low = min(0.0, *values, 0.0)
        self.high = max(SHORTEST_AXIS, *values, SHORTEST_AXIS)

    def position(self, value: float) -> str:
        """Where a value lies, in percent of the axis."""
        return f"{100 * (value - self.low) / (self.high - self.low):.1f}"

    def marks_of(self, head: HeadFinding) -> Section:
        """A head's effect, its interval and the effect on unambiguous nouns on the axis."""
        return {
            "zero": self.position(0.0),
            "effect": self.position(head.net),
            "low": self.position(head.net_low),
            "high": self.position(head.net_high),
            "nouns": "" if math.isnan(head.nouns) else self.position(head.nouns),
        }


def effect_axis(findings: Mapping[str, WordFindings]) -> EffectAxis:
    """The axis of the heads that have a card."""
    return EffectAxis(head for finding in findings.values() for head in finding.named)


def is_clear(head: HeadFinding) -> bool:
    """Whether the 95 % interval of a head's effect excludes zero."""
    return head.net_low > 0 or head.net_high < 0


def every_head(findings: Mapping[str, WordFindings], frames: Frames) -> list[Section]:
    """Separation against effect, and the table of the first heads, and of those with a mark on the
    map, word by word."""
    return [
        {
            "word": finding.word,
            "index": finding.index,
            "chart": charts.separation_and_effect(frames["word_heads"], finding.word),
            "rows": [head_facts(head) for head in _in_table(finding.heads)],
            "all": len(finding.heads),
        }
        for finding in findings.values()
        if finding.heads
    ]


def _in_table(heads: Sequence[HeadFinding]) -> list[HeadFinding]:
    """The first heads, and the others that the map marks."""
    unmarked = [head for head in heads[TABLE_ROWS:] if head.verdict in UNMARKED]
    return [head for head in heads if head not in unmarked]


def head_numbers(row: Mapping[Any, Any]) -> dict[str, str]:
    """A head's effects, separation and attention as text; `row` holds them by the names of the
    columns."""
    return {
        "name": f"L{row['layer']}H{row['head']}",
        "net": measured(row["net"], row["net_low"], row["net_high"]),
        "swap": percent(row["swap"]),
        "denoise": percent(row["denoise"]),
        "noise": percent(row["noise"]),
        "same_sense": percent(row["same_sense"]),
        "direct": percent(row["direct"]),
        "auroc": decimal(row["auroc"]),
        "cue": _share(row["attention_cue"]),
        "previous": _share(row["attention_previous"]),
        "p_swap": _test(row["p_swap"]),
    }


def head_facts(head: HeadFinding) -> Section:
    """A head of the report as text: its numbers, ranks and verdict."""
    rank = "none"
    if head.rank is not None:
        rank = f"{head.rank} [{head.rank_low}, {head.rank_high}]"
    return head_numbers(vars(head)) | {
        "clear": is_clear(head),
        "net_text": percent(head.net),
        "own": measured(head.direct, head.direct_low, head.direct_high),
        "added_after": percent(head.added_after),
        "itself": _share(head.attention_itself),
        "rank": rank,
        "compared": bool(head.comparison),
        "nouns": percent(head.nouns),
        "more": _more(head),
        "p_more": _test(head.p_more),
        "nouns_share": "" if math.isnan(head.nouns_share) else percent(head.nouns_share),
        "than_nouns": compared_with_nouns(head),
        "decided": head.comparison != "undecided",
        "verdict": head.verdict,
        "mark": charts.MARKS[head.verdict],
        "resolves": head.resolves if head.of > 1 else 0,
        "of": head.of,
        "p_auroc": _test(head.p_auroc),
    }


def _more(head: HeadFinding) -> str:
    """How much further a head moves the word than unambiguous nouns, with its interval."""
    if not head.comparison:
        return ""
    return measured(head.more, head.more_low, head.more_high)


def compared_with_nouns(head: HeadFinding) -> str:
    """A head's comparison with unambiguous nouns in words; if it is undecided, with the reason."""
    words = charts.BESIDE_NOUNS[head.comparison]
    if head.comparison != "undecided":
        return words
    if head.p_more >= LEVEL:
        return f"{words}: {p_value(head.p_more, LEVEL)}"
    if head.more_low <= 0 <= head.more_high:
        return f"{words}: the interval includes 0"
    if abs(head.more) < SMALLEST:
        return f"{words}: less than {percent(SMALLEST)} of the gap"
    return f"{words}: not along every axis"


def _share(value: float) -> str:
    return UNKNOWN if math.isnan(value) else percent(value)


def _test(p: float) -> str:
    return UNKNOWN if math.isnan(p) else p_value(p)
