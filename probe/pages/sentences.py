"""Single sentences: texts with word and cue marked, and the attention of a head drawn as arcs.

Text and numbers for the template, which escapes them; no HTML.
"""

from typing import Any
from unicodedata import east_asian_width

import pandas as pd

from probe.claims import Frames
from probe.claims.heads import named
from probe.experiments.run import LEADERS
from probe.model.tokens import VISIBLE
from probe.stats.numbers import decimal, percent
from probe.text.sentences import REPEATS

SMALLEST_WRITTEN = 0.005  # of the gap: a smaller contribution rounds to 0 % and is not written
TINTS = 20  # steps of a tint, each a class of the style sheet

# Of the drawing of a sentence, in pixels but for the attention.
ARCS = 64  # height of the part with arcs
THICKEST = 8  # width of an arc with all of the attention
FAINT = 0.02  # attention with an arc
WRITTEN_ATTENTION = 0.05  # attention with a number
CHARACTER = 8  # width of a letter
LABEL_WIDTH = 34  # of a number such as 100 %
SPACE = 9  # before a token that begins with a space
MARGIN = 3  # before any other token
AROUND = 30  # kept left and right of what matters in a small picture
Section = dict[str, Any]


def readings_of_first_head(rows: Frames) -> pd.DataFrame:
    """The rows of the table `readings` of the first named head that has sentences; none where no
    head has any.

    rows: of the word, by table
    """
    readings = rows["readings"]
    heads = named(rows["word_heads"], LEADERS)[["layer", "head"]].drop_duplicates()
    of_heads = (readings.merge(head.to_frame().T) for _, head in heads.iterrows())
    return next((of_head for of_head in of_heads if len(of_head)), readings[:0])


def marked(row: Any) -> list[tuple[str, str]]:
    """The text in parts, each with its role: word, cue, or empty."""
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


def left_out_by_rule(left_out: pd.DataFrame) -> Any:
    """What was left out, grouped by word and rule. Repetitions count together, and so does what had
    no word yet.
    """
    repeats = left_out["reason"].str.startswith(REPEATS)
    rule = left_out["reason"].where(~repeats, f"{REPEATS} an earlier row")
    return left_out.groupby([left_out["word"].fillna(""), rule], sort=False)


def arcs(rows: pd.DataFrame) -> Section:
    """One sentence as a head reads it, as a drawing: an arc from the word to each token.

    rows: the rows of one head and one sentence in the table `readings`.
    An arc is as wide as the attention is large. Its class is the sense that the head's write from
    there moves the word toward, empty where it rounds to 0 % of the gap.
    """
    tokens = rows.sort_values("pos").to_dict("records")
    word_pos = max(token["pos"] for token in tokens if token["role"] == "word")
    tokens_drawn: list[Section] = []
    x = 0
    for token in tokens:
        tokens_drawn.append(_token(token, word_pos, x))
        x = tokens_drawn[-1]["end"]
    middle = next(token["middle"] for token in tokens_drawn if token["pos"] == word_pos)
    for part in tokens_drawn:
        part["arc"] = _arc(part, middle)
    cue = [token for token in tokens_drawn if token["role"] == "cue"]
    # What a small picture shows: from the first to the last token that matters.
    matter = [token for token in tokens_drawn if token["arc"] or token["role"] in ("cue", "word")]
    strongest = cue or [max(tokens_drawn, key=lambda token: token["attention"])]
    share = percent(sum(token["attention"] for token in strongest))
    return {
        "sense": tokens[0]["sense"],
        "text": tokens[0]["text"],
        "tokens": tokens_drawn,
        "word_at": middle,
        "width": x + MARGIN,
        "left": max(matter[0]["start"] - AROUND, 0),
        "right": min(matter[-1]["end"] + AROUND, x + MARGIN),
        "most": {"text": "".join(token["text"] for token in strongest), "share": share},
        "cue_share": share if cue else None,
    }


def _token(token: Any, word_pos: int, after: int) -> Section:
    """A token with its place in the drawing, in pixels, right of the token that ends at `after`."""
    attention = float(token["attention"])
    contribution = float(token["contribution"])
    piece = visible(str(token["piece"]))
    label = percent(attention) if attention >= WRITTEN_ATTENTION else ""
    wide = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in piece["text"])
    width = CHARACTER * max(wide, 1)
    space = max(width, LABEL_WIDTH) if label else width
    start = after + (SPACE if piece["lead"] else MARGIN)
    toward = ""
    if abs(contribution) >= SMALLEST_WRITTEN:
        toward = token["sense_a"] if contribution >= 0 else token["sense_b"]
    return {
        "text": piece["text"],
        "pos": token["pos"],
        "role": "later" if token["pos"] > word_pos and not attention else token["role"],
        "attention": attention,
        "label": label,
        "toward": toward,
        "second": toward == token["sense_b"],
        "written": decimal(100 * contribution, 0) if toward and label else "",
        "start": start + (space - width) / 2,
        "width": width,
        "middle": start + space / 2,
        "end": start + space,
    }


def _arc(token: Section, word: float) -> Section | None:
    """The arc from the word to a token: a path and its width; None where the attention is faint."""
    attention = token["attention"]
    if attention < FAINT:
        return None
    at = token["middle"]
    wide = abs(word - at)
    if wide == 0:
        path = f"M{at - 5:g},{ARCS}c-14,-26 24,-26 10,0"
    else:
        # The highest point of the curve lies half as high as the point that bends it.
        high = ARCS - 2 * min(6 + wide / 5, ARCS - THICKEST)
        path = f"M{word:g},{ARCS}Q{(word + at) / 2:g},{high:g} {at:g},{ARCS}"
    return {"path": path, "width": f"{1 + (THICKEST - 1) * attention:.1f}"}


def visible(piece: str) -> Section:
    """A token's text with its white space made visible, and the number of spaces before it."""
    text = piece.lstrip(" ")
    return {
        "lead": len(piece) - len(text),
        "text": "".join(VISIBLE.get(character, character) for character in text),
    }
