"""Sentences and evidence as a page shows them: tokens with tints and bars, texts with their word and cue, charts.

Nothing here is HTML: pieces of text and numbers for the template, which escapes every one of them. The evidence: sets
of heads, controls and power, effects by distance and by what is swapped, ledgers of single sentences.
"""

from typing import Any

import pandas as pd

from probe import charts
from probe.charts.sets import ROUTES
from probe.pages import answers, remarks
from probe.pages.sections import Frames, Section, head_facts, of_word, sense_marks, with_tests, words_of
from probe.stats.numbers import decimal, measured, p_value, percent
from probe.study import suppliers

TINTS = 20
BAR = 20
SAID = 0.005  # of the gap: a smaller contribution rounds to 0 % and is not written
VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


def bar_limit(rows: pd.DataFrame) -> float:
    """The contribution of a full bar: the largest of any token of a head's sentences, rounded up to 0.01."""
    return max(-(-float(rows["contribution"].abs().max()) // 0.01) * 0.01, 0.01)


def readings(frames: Frames) -> list[Section]:
    """For each word its leading heads, each with its numbers and the sentences it reads."""
    sections = []
    for number, word in enumerate(words_of(frames)):
        rows, heads = of_word(frames["readings"], word), of_word(frames["word_heads"], word)
        if rows.empty:
            continue
        shown = with_tests(leading(frames, word), frames["heads"])
        marks = sense_marks(frames, word)
        leaders = [
            head_facts(head)
            | {"id": f"word-{number}-{answers.head_name(head)}"}
            | _sentences(_of_head(rows, word, head), marks)
            | {"reasons": _reasons(frames["verdicts"], word, head), "routes": _routes(frames["routes"], word, head)}
            | {"apart": remarks.numbers_apart(head)}
            for head in shown.to_dict("records")
        ]
        sections.append({"word": word, "id": f"word-{number}", "heads": leaders, "all": len(heads)})
    return sections


def leading(frames: Frames, word: str) -> pd.DataFrame:
    """The heads of a word whose sentences stand on the page."""
    read = of_word(frames["readings"], word)[["layer", "head"]].drop_duplicates()
    return worth_showing(read.merge(of_word(frames["word_heads"], word), on=["layer", "head"]))


def worth_showing(heads: pd.DataFrame) -> pd.DataFrame:
    """The resolvers and the heads whose effect is clear; the largest where there is none."""
    ordered = heads.sort_values("rank")
    clear = (ordered["net_low"] > 0) & (ordered["net"] >= answers.WORTH_SHOWING)
    named = ordered[clear | (ordered["verdict"] == "resolver")]
    return named if len(named) else ordered.head(1)


def _of_head(frame: pd.DataFrame, word: str, head: dict[Any, Any]) -> pd.DataFrame:
    rows = of_word(frame, word)
    return rows[(rows["layer"] == head["layer"]) & (rows["head"] == head["head"])]


def _reasons(verdicts: pd.DataFrame, word: str, head: dict[Any, Any]) -> list[Section]:
    """Why the head has its verdict, pair by pair, those with the verdict that says most first."""
    rows = _of_head(verdicts, word, head)
    ordered = rows.assign(other=rows["verdict"] != head["verdict"]).sort_values("other", kind="stable")
    pairs = [""] if len(rows) == 1 else (ordered["sense_a"] + " / " + ordered["sense_b"]).tolist()
    reasons = zip(pairs, ordered["verdict"], ordered["because"], strict=True)
    return [{"pair": pair, "verdict": verdict, "because": because} for pair, verdict, because in reasons]


def _routes(routes: pd.DataFrame, word: str, head: dict[Any, Any]) -> list[tuple[str, str]]:
    """Effect of swapping a part of the head with its interval, means over the pairs of senses; a swap that was not made
    is not listed.
    """
    names = {name: ROUTES[name] for name in ("pattern_only", "values_only", "cue_only", "other_only")}
    names |= {"ablation": "lost with its mean"}
    rows, ends = _of_head(routes, word, head), ("", "_low", "_high")
    means = rows[[f"{name}{end}" for name in names for end in ends]].astype(float).mean()
    return [
        (text, measured(*(means[f"{name}{end}"] for end in ends)))
        for name, text in names.items()
        if pd.notna(means[name])
    ]


def _sentences(rows: pd.DataFrame, marks: dict[str, str]) -> Section:
    """The sentences that one head reads, and what a full bar stands for in them."""
    limit = bar_limit(rows)
    shown = [_sentence(group, marks, limit) for _, group in rows.groupby("sentence", sort=False)]
    return {"sentences": shown, "full": percent(limit)}


def _sentence(rows: pd.DataFrame, marks: dict[str, str], limit: float) -> Section:
    tokens = rows.sort_values("pos").to_dict("records")
    first = tokens[0]
    target = max(token["pos"] for token in tokens if token["role"] == "word")
    on_cue = [token["attention"] for token in tokens if token["role"] == "cue"]
    return {
        "sense": first["sense"],
        "mark": marks[first["sense"]],
        "a": first["sense_a"],
        "b": first["sense_b"],
        "mark_a": marks[first["sense_a"]],
        "mark_b": marks[first["sense_b"]],
        "cue_share": percent(sum(on_cue)) if on_cue else None,
        "sum": f"{decimal(100 * sum(token['contribution'] for token in tokens), 0)}",
        "tokens": [_token(token, target, marks, limit) for token in tokens],
    }


def _token(token: dict[Any, Any], target: int, marks: dict[str, str], limit: float) -> Section:
    piece, value = str(token["piece"]), float(token["contribution"])
    toward = token["sense_a"] if value >= 0 else token["sense_b"]
    later = token["pos"] > target and not token["attention"]  # behind the mask
    told = "comes after the word" if later else f"attention {percent(token['attention'])}"
    return {
        "lead": len(piece) - len(piece.lstrip(" ")),
        "text": "".join(VISIBLE.get(character, character) for character in piece.lstrip(" ")),
        "tint": round(float(token["attention"]) * TINTS),
        "role": "later" if later else token["role"],
        "label": token["label"],
        "attention": f"{float(token['attention']):.3f}",
        "contribution": decimal(value, 3),
        "value": decimal(100 * value, 0) if abs(value) >= SAID else "",
        "title": told if later else f"{told}, ΔE {percent(abs(value), 1)} of the gap toward {toward}",
        "mark": marks[toward],
        "side": "up" if value >= 0 else "down",
        "height": round(min(abs(value) / limit, 1.0) * BAR),
    }


def showcase(frames: Frames) -> Section:
    """The well-known sentences: those a causal model can have resolved at the word, and those it cannot."""
    ranked = frames["words"].groupby("word")["ranked"].any()
    before, after = [], []
    for row in frames["showcase"].to_dict("records"):
        marks = sense_marks(frames, row["word"])
        item = {"word": row["word"], "sense": row["sense"], "mark": marks.get(row["sense"], ""), "parts": marked(row)}
        if row["reads_as"] is None or pd.isna(row["reads_as"]):
            others = frames["beside"][frames["beside"]["text"] == row["text"]]
            told = [
                {"model": other["model"], "said": remarks.second_model(other), "place": _place(other, marks)}
                for other in others.to_dict("records")
            ]
            after.append(item | {"said": remarks.later_words(row), "difference": row["difference"], "beside": told})
        else:
            place = _place(row, marks)
            known = bool(ranked[row["word"]])
            mark = ("✓" if row["reads_as"] == row["sense"] else "✗") if known else ""
            before.append(item | {"said": remarks.reading(row, known), "place": place, "verdict": mark})
    return {"before": before, "after": after}


def _place(row: dict[Any, Any], marks: dict[str, str]) -> Section:
    """A coordinate on the small axis between its two senses."""
    ends = {"a": row["sense_a"], "b": row["sense_b"], "mark_a": marks[row["sense_a"]], "mark_b": marks[row["sense_b"]]}
    x = 50 * (1 + min(max(row["coordinate"], -1.0), 1.0))  # in percent; beyond −1 and 1 it stays at the end
    return ends | {"x": f"{x:.1f}", "mark": marks.get(row["sense"], "")}


def marked(row: dict[Any, Any]) -> list[tuple[str, str]]:
    """The text in pieces, each with what it is: word, cue, or nothing."""
    text = row["text"]
    spans = [(int(row["start"]), int(row["end"]), "word")]
    if not pd.isna(row["cue_start"]):
        spans.append((int(row["cue_start"]), int(row["cue_end"]), "cue"))
    pieces, at = [], 0
    for start, end, kind in sorted(spans):
        pieces += [(text[at:start], ""), (text[start:end], kind)]
        at = end
    return [piece for piece in [*pieces, (text[at:], "")] if piece[0]]


def together(frames: Frames) -> list[Section]:
    """For each ranked word its curves and what the smallest set keeps."""
    sections = []
    for word in words_of(frames):
        curve = of_word(frames["curves"], word)
        if curve.empty:
            continue
        smallest = answers.smallest_set(frames, word)
        random = answers.best_random(frames, word, len(smallest.names)) if smallest else None
        sections.append(
            {
                "word": word,
                "chart": charts.set_curves(frames["curves"], frames["random_sets"], word),
                "names": smallest.names if smallest and len(smallest.names) < smallest.every else [],
                "kept": smallest.kept if smallest else "",
                "rival": f"{answers.best_of(random)} keeps {percent(random[2])}" if random else "",
                "area": decimal(float(curve["area"].iloc[0])),
            }
        )
    return sections


def controls_and_power(frames: Frames) -> Section:
    """Gate, power, sizes and controls of each word."""
    sections = []
    for word in words_of(frames):
        pairs, controls = of_word(frames["words"], word), of_word(frames["controls"], word)
        shown = [answers.head_name(head) for head in answers.resolvers(frames, word)] if pairs["ranked"].any() else []
        chart = charts.control_strips(frames["controls"], word, shown=shown) if len(controls) else None
        pair = controls.iloc[0] if len(controls) else None
        sections.append(
            {
                "word": word,
                "chart": chart,
                "pair": "" if pair is None else f"{pair['sense_a']} / {pair['sense_b']}",
                "untrained_p": _bound(pairs["untrained_p"], "≥"),
                "shown": shown,
            }
            | _power(pairs)
        )
    conditions = set(frames["controls"]["condition"])
    return {"words": sections, "later": "later token" in conditions, "drawn": any(item["chart"] for item in sections)}


def _bound(p: pd.Series, sign: str) -> str:
    """The p of a word's pair of senses; the largest (≤) or smallest (≥) of several."""
    return p_value(float(p.max() if sign == "≤" else p.min())).replace("=", "=" if len(p) == 1 else sign)


def _power(pairs: pd.DataFrame) -> Section:
    """Sample sizes and power of a word: the smallest and weakest over its pairs of senses."""
    return {
        "gate": _bound(pairs["gap_p"], "≤"),
        "apart": f"{int(pairs['ranked'].sum())} of {len(pairs)}",
        "fit": int(pairs["sentences_fit"].min()),
        "report": int(pairs["sentences_report"].min()),
        "cues": int(pairs["cue_words"].min()),
        "pairs": int(pairs["pairs"].min()),
        "said": _bound(pairs["said_p"], "≤") if pairs["causal"].all() else "not predicted",
        "visible_pairs": decimal(float(pairs["visible_d_pairs"].max())),
        "exploratory": bool(pairs["exploratory"].any()),
    }


def distances_and_routes(frames: Frames) -> dict[str, list[tuple[str, Any, str]]]:
    """By word: charts of the leading heads' effect by distance and by route, each with its title and caption."""
    sections: dict[str, list[tuple[str, Any, str]]] = {}
    for word in words_of(frames):
        names = [answers.head_name(head) for head in leading(frames, word).to_dict("records")][: answers.LEADERS]
        sections[word] = []
        if names and len(of_word(frames["distances"], word)):
            chart = charts.distance_lines(frames["distances"], word, names)
            sections[word].append(("By distance from the cue", chart, BY_DISTANCE))
        if names and len(of_word(frames["routes"], word)):
            chart = charts.route_bars(frames["routes"], frames["word_heads"], word, names)
            sections[word].append(("By what is replaced", chart, BY_ROUTE))
    return sections


BY_DISTANCE = (
    "A head that only reads the token beside the word falls to zero beyond distance 1; one that finds the cue does not."
)
BY_ROUTE = (
    "From top to bottom: the whole output swapped; the other sentence's attention over its own values; its own "
    "attention over the other sentence's values; only what it takes from the cue; only what it takes from other words "
    "that differ; its mean output instead, that is, the part of the gap that is lost without its choice. Measured on "
    "up to 8 pairs, with 95 % intervals over frames and cue words as for the whole head; over several pairs of senses "
    "value and ends are means."
)


def ledgers(frames: Frames) -> list[Section]:
    """For each word its example sentences with what supplies the sense, in words and as a chart."""
    told = suppliers.told(frames["ledger"]) if len(frames["ledger"]) else {}
    sections = []
    for word in words_of(frames):
        marks, rows = sense_marks(frames, word), of_word(frames["ledger"], word)
        numbers = [int(number) for number in rows["sentence"].drop_duplicates()]
        items = [_account(frames, (word, number), marks) | {"said": told[(word, number)]} for number in numbers]
        if items:
            sections.append({"word": word, "first": items[:1], "others": items[1:]})
    return sections


def _account(frames: Frames, key: tuple[str, int], marks: dict[str, str]) -> Section:
    word, number = key
    sentence = of_word(frames["sentences"], word).iloc[number].to_dict()
    return {
        "sense": sentence["sense"],
        "mark": marks[sentence["sense"]],
        "parts": marked(sentence),
        "chart": charts.cue_ledger(frames["ledger"], word, sentence=number),
    }
