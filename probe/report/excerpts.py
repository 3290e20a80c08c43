"""Sentences as a page shows them: tokens with their tints and bars, and texts with their word and cue marked.

Nothing here is HTML: pieces of text and numbers for the template, which escapes every one of them.
"""

from typing import Any

import pandas as pd

from probe import charts
from probe.numerals import decimal, percent
from probe.report import answers, remarks
from probe.report.sections import Frames, Section, head_facts, of_word, sense_marks, with_tests, words_of

TINTS = 20
BAR = 20
SAID = 0.005
VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


def bar_limit(rows: pd.DataFrame) -> float:
    """What a full bar stands for in all sentences of a head: the largest contribution of a token, rounded up to 0.01."""
    return max(-(-float(rows["contribution"].abs().max()) // 0.01) * 0.01, 0.01)


def readings(frames: Frames) -> list[Section]:
    """For each word its leading heads, each with its numbers and the sentences it reads."""
    found = []
    for number, word in enumerate(words_of(frames)):
        rows, heads = of_word(frames["readings"], word), charts.reached(of_word(frames["word_heads"], word))
        if rows.empty:
            continue
        shown = worth_showing(rows[["layer", "head"]].drop_duplicates().merge(heads, on=["layer", "head"]))
        shown = with_tests(shown, frames["heads"])
        marks = sense_marks(frames, word)
        leaders = [
            head_facts(head)
            | {"id": f"word-{number}-{answers.head_name(head)}"}
            | _sentences(_of_head(rows, word, head), marks)
            | {"reasons": _reasons(frames["verdicts"], word, head), "routes": _routes(frames["routes"], word, head)}
            for head in shown.to_dict("records")
        ]
        found.append({"word": word, "id": f"word-{number}", "heads": leaders, "all": len(heads)})
    return found


def worth_showing(heads: pd.DataFrame) -> pd.DataFrame:
    """The resolvers and the heads whose effect is clear; the largest where there is none."""
    ordered = heads.sort_values("rank")
    clear = (ordered["net_low"] > 0) & (ordered["net"] >= answers.SMALLEST)
    named = ordered[clear | (ordered["verdict"] == "resolver")]
    return named if len(named) else ordered.head(1)


def _of_head(frame: pd.DataFrame, word: str, head: dict[Any, Any]) -> pd.DataFrame:
    rows = of_word(frame, word)
    return rows[(rows["layer"] == head["layer"]) & (rows["head"] == head["head"])]


def _reasons(verdicts: pd.DataFrame, word: str, head: dict[Any, Any]) -> list[Section]:
    """Why the head has its verdict, pair by pair, those with the verdict that says most first."""
    rows = _of_head(verdicts, word, head)
    first = rows.assign(other=rows["verdict"] != head["verdict"]).sort_values("other", kind="stable")
    alone = len(first) == 1
    return [
        {
            "pair": "" if alone else f"{row['sense_a']} / {row['sense_b']}",
            "verdict": row["verdict"],
            "because": row["because"],
        }
        for row in first.to_dict("records")
    ]


def _routes(routes: pd.DataFrame, word: str, head: dict[Any, Any]) -> list[tuple[str, str]]:
    """What swapping a part of the head does, mean over the pairs of senses; a swap that could not be made is not listed."""
    names = {
        "pattern_only": "only where it looks",
        "values_only": "only what it carries",
        "ablation": "lost with its mean",
    }
    means = _of_head(routes, word, head)[list(names)].astype(float).mean()
    return [(text, percent(means[name])) for name, text in names.items() if pd.notna(means[name])]


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
                {"model": other["model"], "said": remarks.beside(other), "place": _place(other, marks)}
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
    return ends | {"x": f"{_on_axis(row['coordinate']):.1f}", "mark": marks.get(row["sense"], "")}


def _on_axis(coordinate: float) -> float:
    """Percent of the way from the left end of a small axis (−1) to its right end (+1); beyond them it stays at the end."""
    return 50 * (1 + min(max(coordinate, -1.0), 1.0))


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
