"""Single sentences as a page shows them: tokens with tints and bars, texts with their word and cue,
their ledgers.

Nothing here is HTML: pieces of text and numbers for the template, which escapes every one of them.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from probe import charts
from probe.charts import of_word
from probe.charts.evidence import HEAD_PARTS
from probe.pages import remarks
from probe.pages.answers import question
from probe.pages.output import BAR, TINTS
from probe.pages.rows import (
    Frames,
    Row,
    Section,
    head_name,
    leaders,
    names_of,
    sense_marks,
    with_interval,
    with_sentences,
    with_tests,
    words_of,
)
from probe.pages.sections import head_facts
from probe.pages.sources import sources_in_words
from probe.stats.numbers import counted, decimal, grouped, interval, percent

SAID = 0.005  # of the gap: a smaller contribution rounds to 0 % and is not written
VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


def opening(frames: Frames, model_name: str, origin: str) -> Section:
    """The question of the page, its answer in a sentence, what it rests on, and the lines; `origin`
    is the model's."""
    heads, words = frames["heads"], words_of(frames)
    layers, per_layer = int(heads["layer"].max()) + 1, int(heads["head"].max()) + 1
    used = int((frames["sentences"]["part"] != "neither").sum())
    facts = [
        model_name,
        f"{layers * per_layer} heads in {layers} layers",
        counted(len(words), "word"),
    ]
    return {
        "question": question(words),
        "across": remarks.across(frames, words),
        "facts": [*facts, f"{grouped(used)} sentences"],
        "cautions": remarks.cautions(frames, model_name, origin),
        "lines": [_line(frames, word) for word in words],
    }


def _line(frames: Frames, word: str) -> Section:
    shown = names_of(with_sentences(frames, word))
    return {
        "word": word,
        "place": words_of(frames).index(word),
        "heads": [
            {
                "name": head_name(head),
                "shown": head_name(head) in shown,
                "effect": percent(head["net"]),
                "interval": interval(100 * head["net_low"], 100 * head["net_high"], 0),
                "verdict": head["verdict"],
                "mark": charts.MARKS[head["verdict"]],
            }
            for head in leaders(frames, word)
        ],
        "example": _example(frames, word),
        "sure": remarks.sure(frames, word),
    }


def _example(frames: Frames, word: str) -> Section | None:
    """Of the sentences drawn for the page, the one in which the leading head brings most from the
    cue to its sense.

    From all tokens where no cue is marked; None where no head has sentences.
    """
    rows = of_word(frames["readings"], word).merge(
        of_word(frames["word_heads"], word)[["layer", "head", "rank"]], on=["layer", "head"]
    )
    if rows.empty:
        return None
    first = rows[rows["rank"] == rows["rank"].min()]
    toward = first["contribution"].where(first["sense"] == first["sense_a"], -first["contribution"])
    cues = first["role"].eq("cue")
    brought = (
        toward.where(cues | (not cues.any()), 0.0).groupby(first["sentence"], sort=False).sum()
    )
    return sentence(frames, word, int(brought.idxmax()))


def readings(frames: Frames) -> list[Section]:
    """For each word its leading heads, each with its numbers and the sentences it reads."""
    sections = []
    for number, word in enumerate(words_of(frames)):
        rows, heads = of_word(frames["readings"], word), of_word(frames["word_heads"], word)
        if rows.empty:
            continue
        shown = with_tests(with_sentences(frames, word), frames["heads"])
        marks = sense_marks(frames, word)
        leaders = [
            head_facts(head)
            | _sentences(_of_head(rows, word, head), marks)
            | {
                "id": f"word-{number}-{head_name(head)}",
                "reasons": _reasons(frames["verdicts"], word, head),
                "head_parts": _routes(frames["head_parts"], word, head),
                "apart": remarks.numbers_apart(head),
            }
            for head in shown.to_dict("records")
        ]
        sections.append({"word": word, "id": f"word-{number}", "heads": leaders, "all": len(heads)})
    return sections


def _of_head(frame: pd.DataFrame, word: str, head: Row) -> pd.DataFrame:
    rows = of_word(frame, word)
    return rows[(rows["layer"] == head["layer"]) & (rows["head"] == head["head"])]


def _reasons(verdicts: pd.DataFrame, word: str, head: Row) -> list[Section]:
    """Why the head has its verdict, pair by pair, those with the verdict that says most first."""
    rows = _of_head(verdicts, word, head)
    ordered = rows.assign(other=rows["verdict"] != head["verdict"]).sort_values(
        "other", kind="stable"
    )
    pairs = [""] if len(rows) == 1 else (ordered["sense_a"] + " / " + ordered["sense_b"]).tolist()
    reasons = zip(pairs, ordered["verdict"], ordered["because"], strict=True)
    return [
        {"pair": pair, "verdict": verdict, "because": because} for pair, verdict, because in reasons
    ]


def _routes(routes: pd.DataFrame, word: str, head: Row) -> list[tuple[str, str]]:
    """Effect of each swap that was made of a part of the head, with its interval: means over the
    pairs of senses."""
    names = {
        name: HEAD_PARTS[name] for name in ("pattern_only", "values_only", "cue_only", "other_only")
    }
    names |= {"ablation": "lost with its mean"}
    measures = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    means = _of_head(routes, word, head)[measures].astype(float).mean().to_dict()
    return [
        (text, with_interval(means, name)) for name, text in names.items() if pd.notna(means[name])
    ]


def _sentences(rows: pd.DataFrame, marks: dict[str, str]) -> Section:
    """The sentences that a head reads, and what a full bar stands for: the largest contribution,
    rounded up to 0.01."""
    limit = max(-(-float(rows["contribution"].abs().max()) // 0.01) * 0.01, 0.01)
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
        "cue_share": percent(sum(on_cue)) if on_cue else None,
        "sum": f"{decimal(100 * sum(token['contribution'] for token in tokens), 0)}",
        "tokens": [_token(token, target, marks, limit) for token in tokens],
    }


def _token(token: Row, target: int, marks: dict[str, str], limit: float) -> Section:
    piece, value = str(token["piece"]), float(token["contribution"])
    toward = token["sense_a"] if value >= 0 else token["sense_b"]
    later = token["pos"] > target and not token["attention"]  # behind the mask
    told = "comes after the word" if later else f"attention {percent(token['attention'])}"
    return visible(piece) | {
        "tint": round(float(token["attention"]) * TINTS),
        "role": "later" if later else token["role"],
        "label": token["label"],
        "attention": f"{float(token['attention']):.3f}",
        "contribution": decimal(value, 3),
        "value": decimal(100 * value, 0) if abs(value) >= SAID else "",
        "title": told
        if later
        else f"{told}, ΔE {percent(abs(value), 1)} of the gap toward {toward}",
        "mark": marks[toward],
        "side": "up" if value >= 0 else "down",
        "height": round(min(abs(value) / limit, 1.0) * BAR),
    }


def visible(piece: str) -> Section:
    """A token's text with its white space made visible, apart from the number of spaces in front of
    it."""
    text = piece.lstrip(" ")
    return {
        "lead": len(piece) - len(text),
        "text": "".join(VISIBLE.get(character, character) for character in text),
    }


def showcase(frames: Frames) -> Section:
    """The well-known sentences: those a causal model can have resolved at the word, and those it
    cannot."""
    ranked = frames["words"].groupby("word")["ranked"].any()
    before, after = [], []
    for row in frames["showcase"].to_dict("records"):
        marks = sense_marks(frames, row["word"])
        item = {
            "word": row["word"],
            "sense": row["sense"],
            "mark": marks.get(row["sense"], ""),
            "parts": marked(row),
        }
        if row["reads_as"] is None or pd.isna(row["reads_as"]):
            others = frames["beside"][frames["beside"]["text"] == row["text"]]
            told = [
                {
                    "model": other["model"],
                    "said": remarks.second_model(other),
                    "place": _place(other, marks),
                }
                for other in others.to_dict("records")
            ]
            after.append(
                item
                | {
                    "said": remarks.later_words(row),
                    "difference": row["difference"],
                    "beside": told,
                }
            )
        else:
            place = _place(row, marks)
            known = bool(ranked[row["word"]])
            mark = ("✓" if row["reads_as"] == row["sense"] else "✗") if known else ""
            before.append(
                item | {"said": remarks.reading(row, known), "place": place, "verdict": mark}
            )
    return {"before": before, "after": after}


def _place(row: Row, marks: dict[str, str]) -> Section:
    """A coordinate on the small axis between its two senses."""
    ends = {
        "a": row["sense_a"],
        "b": row["sense_b"],
        "mark_a": marks[row["sense_a"]],
        "mark_b": marks[row["sense_b"]],
    }
    x = 50 * (
        1 + min(max(row["coordinate"], -1.0), 1.0)
    )  # in percent; beyond −1 and 1 it stays at the end
    return ends | {"x": f"{x:.1f}", "mark": marks.get(row["sense"], "")}


def sentence(frames: Frames, word: str, number: int) -> Section:
    """A sentence of the study as its sense and its marked text."""
    row = of_word(frames["sentences"], word).iloc[number].to_dict()
    return {
        "sense": row["sense"],
        "mark": sense_marks(frames, word)[row["sense"]],
        "parts": marked(row),
    }


def marked(row: Mapping[Any, Any]) -> list[tuple[str, str]]:
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


def ledgers(frames: Frames) -> list[Section]:
    """For each word its example sentences with what supplies the sense, in words and as a chart."""
    told = sources_in_words(frames["decomposition"]) if len(frames["decomposition"]) else {}
    sections = []
    for word in words_of(frames):
        numbers = [
            int(number)
            for number in of_word(frames["decomposition"], word)["sentence"].drop_duplicates()
        ]
        items = [
            sentence(frames, word, number)
            | {
                "chart": charts.decomposition_bars(
                    frames["decomposition"],
                    word,
                    sentence=number,
                    summary=told[(word, number)],
                ),
                "said": told[(word, number)],
            }
            for number in numbers
        ]
        if items:
            sections.append({"word": word, "first": items[:1], "others": items[1:]})
    return sections
