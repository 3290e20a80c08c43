"""Single sentences as a page shows them: texts with their word and cue, tokens with what a head
reads in them, what supplied the sense, and the well-known ones that cannot be read.

Nothing here is HTML: pieces of text and numbers for the template, which escapes every one of them.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from probe import charts
from probe.model.tokens import VISIBLE
from probe.pages.sources import sources_in_words
from probe.results.findings import Frames, HeadFinding, Row, WordFindings
from probe.stats.numbers import decimal, percent

SMALLEST_WRITTEN = 0.005  # of the gap: a smaller contribution rounds to 0 % and is not written
STEP = 0.01  # of the gap: what a full bar stands for is a multiple of it
BAR = 20  # pixels of a full bar, and
TINTS = 20  # steps of a token's tint: both are classes of the style sheet
Section = dict[str, Any]


def examples(findings: Mapping[str, WordFindings]) -> dict[str, Section]:
    """By word, of the sentences drawn for the page, the one in which the leading head brings most
    from the cue to its sense; no entry where no head has sentences.

    From all tokens where no cue is marked.
    """
    made = {}
    for word, finding in findings.items():
        readings = finding.rows["readings"]
        read = set(zip(readings["layer"], readings["head"], strict=True))
        leading = next((head for head in finding.heads if (head.layer, head.head) in read), None)
        if leading is not None:
            made[word] = _sentence(finding, _clearest(of_head(readings, leading)))
    return made


def of_head(rows: pd.DataFrame, head: HeadFinding) -> pd.DataFrame:
    """The rows of one head."""
    return rows[(rows["layer"] == head.layer) & (rows["head"] == head.head)]


def _clearest(rows: pd.DataFrame) -> int:
    """The number of the sentence whose cue contributes most to the sense that is meant."""
    meant = rows["sense"] == rows["sense_a"]
    toward = rows["contribution"].where(meant, -rows["contribution"])
    cues = rows["role"].eq("cue")
    if cues.any():
        toward = toward.where(cues, 0.0)
    sums = toward.groupby(rows["sentence"], sort=False).sum()
    return int(sums.index[int(sums.argmax())])


def _sentence(finding: WordFindings, number: int) -> Section:
    """A sentence of the study as its sense and its marked text."""
    row = finding.rows["sentences"].iloc[number].to_dict()
    return {"sense": row["sense"], "parts": marked(row)}


def marked(row: Row) -> list[tuple[str, str]]:
    """The text in pieces, each with what it is: word, cue, or nothing."""
    text = row["text"]
    spans = [(int(row["start"]), int(row["end"]), "word")]
    if bool(pd.notna(row["cue_start"])):
        spans.append((int(row["cue_start"]), int(row["cue_end"]), "cue"))
    pieces = []
    end_of_last = 0
    for start, end, kind in sorted(spans):
        pieces.append((text[end_of_last:start], ""))
        pieces.append((text[start:end], kind))
        end_of_last = end
    pieces.append((text[end_of_last:], ""))
    return [piece for piece in pieces if piece[0]]


def readings(findings: Mapping[str, WordFindings]) -> dict[str, dict[str, Section]]:
    """By word and name of a head the sentences that it reads, token by token."""
    return {
        word: {
            head.name: _read_by(of_head(finding.rows["readings"], head))
            for head in finding.heads_read
        }
        for word, finding in findings.items()
    }


def _read_by(rows: pd.DataFrame) -> Section:
    """The sentences that a head reads, and what a full bar stands for: the largest contribution,
    rounded up to a STEP."""
    largest = float(rows["contribution"].abs().max())
    limit = max(-(-largest // STEP) * STEP, STEP)
    sentences = [read_sentence(group, limit) for _, group in rows.groupby("sentence", sort=False)]
    return {"sentences": sentences, "full": percent(limit)}


def read_sentence(rows: pd.DataFrame, limit: float) -> Section:
    """A sentence that a head reads, token by token; a full bar stands for `limit`."""
    tokens = rows.sort_values("pos").to_dict("records")
    first = tokens[0]
    word_pos = max(token["pos"] for token in tokens if token["role"] == "word")
    on_cue = [token["attention"] for token in tokens if token["role"] == "cue"]
    contribution = sum(token["contribution"] for token in tokens)
    return {
        "sense": first["sense"],
        "a": first["sense_a"],
        "b": first["sense_b"],
        "cue_share": percent(sum(on_cue)) if on_cue else None,
        "sum": decimal(100 * contribution, 0),
        "tokens": [_token(token, word_pos, limit) for token in tokens],
    }


def _token(token: Row, word_pos: int, limit: float) -> Section:
    """A token with the attention that it gets and what came from it to the word."""
    value = float(token["contribution"])
    attention = float(token["attention"])
    is_later = token["pos"] > word_pos and not attention  # behind the mask
    return visible(str(token["piece"])) | {
        "tint": round(attention * TINTS),
        "role": "later" if is_later else token["role"],
        "label": token["label"],
        "attention": f"{attention:.3f}",
        "attention_percent": percent(attention),
        "contribution": decimal(value, 3),
        "size": percent(abs(value), 1),
        "value": decimal(100 * value, 0) if abs(value) >= SMALLEST_WRITTEN else "",
        "toward": token["sense_a"] if value >= 0 else token["sense_b"],
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


def showcase(findings: Mapping[str, WordFindings], frames: Frames) -> Section:
    """The well-known sentences: those a causal model can have resolved at the word, and those it
    cannot."""
    before = []
    after = []
    for row in frames["showcase"].to_dict("records"):
        item = {"word": row["word"], "sense": row["sense"], "parts": marked(row), "row": row}
        if pd.isna(row["reads_as"]):
            second = frames["beside"][frames["beside"]["text"] == row["text"]]
            readers = [second_reader(other) for other in second.to_dict("records")]
            after.append(item | {"beside": readers})
        else:
            ranked = findings[row["word"]].ranked
            verdict = ("✓" if row["reads_as"] == row["sense"] else "✗") if ranked else ""
            before.append(item | {"ranked": ranked, "on_axis": _on_axis(row), "verdict": verdict})
    return {"before": before, "after": after}


def second_reader(row: Row) -> Section:
    """What a model that reads both ways makes of a sentence with a late cue."""
    values: Section = {"row": row, "model": row["model"], "on_axis": _on_axis(row)}
    values["source_known"] = bool(pd.notna(row["share"]))
    values["cue_known"] = bool(pd.notna(row["cue_share"]))
    if values["source_known"]:
        values["without_source"] = decimal(row["coordinate"] * (1 - row["share"]))
    if values["cue_known"]:
        values["without_cue"] = decimal(row["coordinate"] * (1 - row["cue_share"]))
    return values


def _on_axis(row: Row) -> Section:
    """A coordinate on the small axis between its two senses, in per cent of the axis from the left;
    beyond −1 and 1 it stays at the end."""
    x = 50 * (1 + min(max(row["coordinate"], -1.0), 1.0))
    return {"a": row["sense_a"], "b": row["sense_b"], "sense": row["sense"], "x": f"{x:.1f}"}


def supplied(findings: Mapping[str, WordFindings], frames: Frames) -> list[Section]:
    """For each word its example sentences with what supplies the sense, in words and as a chart."""
    decomposition = frames["decomposition"]
    in_words = sources_in_words(decomposition) if len(decomposition) else {}
    sections = []
    for word, finding in findings.items():
        items = []
        for number in finding.rows["decomposition"]["sentence"].drop_duplicates():
            summary = in_words[(word, int(number))]
            chart = charts.decomposition_bars(
                decomposition, word, sentence=int(number), summary=summary
            )
            items.append(_sentence(finding, int(number)) | {"chart": chart, "in_words": summary})
        if items:
            sections.append({"word": word, "first": items[:1], "others": items[1:]})
    return sections
