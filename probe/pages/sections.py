"""The sections of the ambiguity report as plain values for its template: words, heads, controls,
data, tables, charts.

Every function takes the study's frames and gives lists and dicts of finished text, charts and
numbers; the template only places them. Sentences come from `probe.pages.answers` and
`probe.pages.remarks`, pictures from `probe.charts`; single sentences as a page shows them are in
`probe.pages.excerpts`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from probe import charts
from probe.charts import of_word
from probe.evidence.columns import LEADERS, TABLES
from probe.pages import answers, remarks
from probe.pages.rows import (
    Frames,
    Section,
    best_random,
    head_name,
    names_of,
    resolvers,
    sense_marks,
    senses_of,
    smallest_set,
    with_interval,
    with_sentences,
    with_tests,
    words_of,
)
from probe.stats.numbers import decimal, listed, p_value, percent
from probe.text.sentences import REPEATS

TABLE_ROWS = 160  # heads in a word's table: all of a GPT-2 small (144), the first of a larger model


def cards(frames: Frames) -> list[Section]:
    """The answer for each word, its numbers, and its depth profiles."""
    return [_card(frames, word) for word in words_of(frames)]


def _card(frames: Frames, word: str) -> Section:
    pairs = of_word(frames["words"], word).to_dict("records")
    return {
        "word": word,
        "senses": sense_marks(frames, word),
        "ranked": any(pair["ranked"] for pair in pairs),
        "plain": answers.plain(frames, word),
        "answer": answers.answer(frames, word),
        "evidence": remarks.evidence(frames, word),
        "facts": _card_facts(pairs),
        "pairs": [_pair_row(frames["heads"], pair) for pair in pairs] if len(pairs) > 1 else [],
        "depth": profiles(frames, pairs),
        "same_token": all(
            charts.gap_at(frames["depth"], word, senses_of(pair), depth=-1) == 0 for pair in pairs
        ),
        "read_after": int(pairs[0]["depth"]) - 1,
    }


def profiles(frames: Frames, pairs: list[dict[Any, Any]]) -> list[tuple[tuple[str, str], Any]]:
    """The depth profile of each pair of senses of a word, lower where there are several."""
    lower = {} if len(pairs) == 1 else {"height": 120}
    made = []
    for pair in pairs:
        read_at = int(pair["depth"])
        chart = charts.depth_profile(
            frames["depth"], pair["word"], senses_of(pair), read_at=read_at, legend=False
        )
        made.append((senses_of(pair), chart.properties(**lower)))
    return made


def _card_facts(pairs: list[dict[Any, Any]]) -> list[tuple[str, str]]:
    first, apart = pairs[0], sum(bool(pair["ranked"]) for pair in pairs)
    shown = [("pairs of senses shown to be apart", f"{apart} of {len(pairs)}")]
    if len(pairs) == 1:
        tested = ("test of the gap", p_value(first["gap_p"]))
        shown = [
            ("gap at the word", answers.gap_text(first)),
            tested,
            ("AUROC of the word's vector", decimal(first["auroc"])),
        ]
    few = any(pair["exploratory"] for pair in pairs)
    return [
        *shown,
        ("read", f"after layer {int(first['depth']) - 1}"),
        *([("sample", f"exploratory: {answers.too_few(pd.DataFrame(pairs))}")] if few else []),
        ("pairs of cue words", str(min(int(pair["cue_words"]) for pair in pairs))),
        ("pairs of sentences", f"{sum(pair['pairs'] for pair in pairs)} ({first['pair_design']})"),
    ]


def _pair_row(heads: pd.DataFrame, pair: dict[Any, Any]) -> Section:
    rows = of_word(heads, pair["word"])
    rows = rows[(rows["sense_a"] == pair["sense_a"]) & (rows["sense_b"] == pair["sense_b"])]
    top = rows[rows["rank"] == 1].to_dict("records") if pair["ranked"] else []
    best = (
        f"{head_name(top[0])} {percent(top[0]['swap'] - top[0]['same_sense'])}"
        if top
        else "not ranked"
    )
    resolving = listed(names_of(rows[rows["verdict"] == "resolver"])) or "none shown"
    return pair | {"gap_text": answers.gap_text(pair), "best": best, "resolvers": resolving}


def maps(frames: Frames) -> Section:
    """The head maps of the ranked words, on one scale."""
    heads = frames["word_heads"]
    ranked = [
        (place, word) for place, word in enumerate(words_of(frames)) if len(of_word(heads, word))
    ]
    drawn = [word for _, word in ranked]
    seen = charts.named(heads)
    mlps = charts.mlps_at_word(frames["positions"])
    return {
        "limit": percent(charts.effect_limit(heads, mlps)),
        "charts": [
            (place, word, charts.head_map(heads, word, mlps, legend=False))
            for place, word in ranked
        ],
        "mlps": bool(len(mlps)),
        "unranked": [word for word in words_of(frames) if word not in drawn],
        "counted": [
            (word, int(of_word(seen, word)["clear"].sum()), len(of_word(seen, word)))
            for word in drawn
        ],
        "verdicts": [
            (name, charts.MARKS[name], charts.MEANINGS[name]) for name in charts.marked(seen)
        ],
    }


def shares(frames: Frames) -> list[Section]:
    """The direct shares of each ranked word, over the pairs of senses that are apart, and their
    sum."""
    apart = frames["words"].loc[frames["words"]["ranked"], ["word", "sense_a", "sense_b"]]
    rows = frames["shares"].merge(apart, on=["word", "sense_a", "sense_b"])
    sections = []
    for word in words_of(frames):
        mine = of_word(rows, word)
        if mine.empty:
            continue
        number = len(mine[["sense_a", "sense_b"]].drop_duplicates())
        sections.append(
            {
                "word": word,
                "chart": charts.share_bars(rows, word),
                "sum": decimal(mine["share"].sum() / number),
                "pairs": number,
                "token_is_zero": mine.loc[mine["component"] == "token embedding", "share"]
                .abs()
                .max()
                == 0,
                "normed": bool(mine["component"].str.startswith("norm bias").any()),
            }
        )
    return sections


def every_head(frames: Frames) -> list[Section]:
    """Separation against effect, and the table of the heads up to the read-out, word by word."""
    heads = frames["word_heads"]
    sections = []
    for place, word in enumerate(words_of(frames)):
        rows = of_word(heads, word)
        if len(rows):
            chart = charts.separation_and_effect(heads, word)
            first = rows.sort_values("rank", kind="stable").head(TABLE_ROWS)
            table = [
                head_facts(row) for row in with_tests(first, frames["heads"]).to_dict("records")
            ]
            sections.append(
                {"word": word, "place": place, "chart": chart, "rows": table, "all": len(rows)}
            )
    return sections


def head_numbers(head: Mapping[Any, Any]) -> dict[str, str]:
    """A head's effects, separation and attention as text."""
    return {
        "name": head_name(head),
        "net": with_interval(head, "net"),
        "swap": percent(head["swap"]),
        "same_sense": percent(head["same_sense"]),
        "direct": percent(head["direct"]),
        "auroc": decimal(head["auroc"]),
        "cue": _known(head["attention_cue"], percent),
        "previous": _known(head["attention_previous"], percent),
        "p_swap": _known(head["p_swap"], p_value),
    }


def head_facts(head: dict[Any, Any]) -> Section:
    """A head of the report as text: its numbers, ranks and verdict."""
    several = head["resolves"] and head["of"] > 1
    return head_numbers(head) | {
        "clear": head["net_low"] > 0 or head["net_high"] < 0,
        "own": with_interval(head, "direct"),
        "self_repair": percent(head["self_repair"]),
        "itself": _known(head["attention_itself"], percent),
        "rank": "none"
        if pd.isna(head["rank"])
        else f"{head['rank']} [{head['rank_low']}, {head['rank_high']}]",
        "verdict": head["verdict"],
        "mark": charts.MARKS[head["verdict"]],
        "where": f"in {head['resolves']} of {head['of']} pairs of senses" if several else "",
        "p_auroc": _known(head["p_auroc"], p_value),
    }


def _known(value: float, written: Callable[[float], str]) -> str:
    return "not known" if pd.isna(value) else written(value)


def certificate(frame: pd.DataFrame) -> Section:
    """The sentence about the worst row, and every row from worst to best."""
    rows = frame.sort_values("error", ascending=False, kind="stable").to_dict("records")
    for row in rows:
        row.setdefault("where", "whole model" if pd.isna(row["layer"]) else f"layer {row['layer']}")
    return {"sentence": remarks.agreement(frame), "rows": rows}


def data_used(frames: Frames) -> Section:
    """How many sentences of each word went where, by what design, and what was left out and why."""
    words, sentences, left_out = frames["words"], frames["sentences"], frames["left_out"]
    rows = []
    for word in words_of(frames):
        mine, first = of_word(sentences, word), of_word(words, word).iloc[0]
        counts = mine["part"].value_counts()
        parts = {part: int(counts.get(part, 0)) for part in ("tested", "learned from", "neither")}
        tokens = int(of_word(words, word)["tokens_of_word"].max())
        design = {"split": first["split_design"], "pairs": first["pair_design"]}
        rows.append(
            {"word": word, "tokens": tokens, "unpaired": remarks.unpaired(mine), **design, **parts}
        )
    return {
        "rows": rows,
        "left_out": _left_out(left_out),
        "number_left_out": len(left_out),
        "several_tokens": any(row["tokens"] > 1 for row in rows),
    }


def _left_out(left_out: pd.DataFrame) -> list[Section]:
    """Sentences left out by word and rule; repetitions count together, and so does what had no word
    yet."""
    rule = left_out["reason"].where(
        ~left_out["reason"].str.startswith(REPEATS), f"{REPEATS} an earlier row"
    )
    rows = pd.DataFrame({"word": left_out["word"].fillna(""), "reason": rule})
    counts: Any = (
        rows.groupby(["word", "reason"], sort=False)
        .size()
        .reset_index(name="count")
        .to_dict("records")
    )
    return list(counts)


def together(frames: Frames) -> list[Section]:
    """For each ranked word its curves and what the smallest set keeps."""
    sections = []
    for word in words_of(frames):
        curve = of_word(frames["curves"], word)
        if curve.empty:
            continue
        smallest = smallest_set(frames, word)
        random = best_random(frames, word, len(smallest.names)) if smallest else None
        sections.append(
            {
                "word": word,
                "chart": charts.set_curves(frames["curves"], frames["random_sets"], word),
                "names": smallest.names
                if smallest and len(smallest.names) < smallest.every
                else [],
                "kept": smallest.kept if smallest else "",
                "rival": f"{random[2]} keeps {percent(random[1])}" if random else "",
                "area": decimal(float(curve["area"].iloc[0])),
            }
        )
    return sections


def controls_and_power(frames: Frames) -> Section:
    """Gate, power and controls of each word: the smallest sizes and the weakest of its pairs of
    senses."""
    sections = []
    for word in words_of(frames):
        pairs, controls = of_word(frames["words"], word), of_word(frames["controls"], word)
        shown = names_of(resolvers(frames, word)) if pairs["ranked"].any() else []
        drawn = len(controls) > 0
        sections.append(
            {
                "word": word,
                "chart": charts.control_strips(frames["controls"], word, shown=shown)
                if drawn
                else None,
                "pair": " / ".join(controls.iloc[0][["sense_a", "sense_b"]]) if drawn else "",
                "apart": f"{int(pairs['ranked'].sum())} of {len(pairs)}",
                "gate": _bound(pairs["gap_p"], "≤"),
                "untrained_p": _bound(pairs["untrained_p"], "≥"),
                "said": _bound(pairs["next_token_p"], "≤")
                if pairs["causal"].all()
                else "not predicted",
                "least": pairs[["sentences_fit", "sentences_report", "cue_words", "pairs"]]
                .min()
                .to_dict(),
                "visible_pairs": decimal(float(pairs["visible_d_pairs"].max())),
                "exploratory": bool(pairs["exploratory"].any()),
            }
        )
    conditions = set(frames["controls"]["condition"])
    return {
        "words": sections,
        "later": "later token" in conditions,
        "drawn": any(item["chart"] for item in sections),
    }


def _bound(p: pd.Series, sign: str) -> str:
    """The p of a word's pair of senses; the largest (≤) or smallest (≥) of several."""
    return p_value(float(p.max() if sign == "≤" else p.min())).replace(
        "=", "=" if len(p) == 1 else sign
    )


def distances_and_routes(frames: Frames) -> dict[str, list[tuple[str, Any]]]:
    """By word: charts of the leading heads' effect by distance and by route, each with its title."""
    sections: dict[str, list[tuple[str, Any]]] = {}
    for word in words_of(frames):
        names = names_of(with_sentences(frames, word))[:LEADERS]
        sections[word] = []
        if names and len(of_word(frames["distances"], word)):
            chart = charts.distance_lines(frames["distances"], word, names)
            sections[word].append(("By distance from the cue", chart))
        if names and len(of_word(frames["head_parts"], word)):
            chart = charts.head_part_bars(frames["head_parts"], frames["word_heads"], word, names)
            sections[word].append(("By what is replaced", chart))
    return sections


def downloads(frames: Frames, what: Mapping[str, str] = TABLES) -> list[Section]:
    """The tables in the page's folder, and `what` each holds."""
    return [
        {"name": name, "what": what.get(name, ""), "rows": len(frame)}
        for name, frame in frames.items()
    ]
