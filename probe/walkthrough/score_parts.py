"""Why a token is attended to, for the page of a walk: a head's score, split into pairs of parts of
what both tokens hold (`probe.model.qk`)."""

from collections.abc import Sequence
from typing import Any

from probe.model import qk
from probe.tidy import DIGITS
from probe.walkthrough.scene import AttentionView, Scene

MOST_PAIRS = 6  # of parts that are shown of a score; the others are one number
Row = dict[str, Any]  # plain JSON


def score_row(
    view: AttentionView, layer: int, head: int, at: int, sources: Sequence[int] | None = None
) -> Row:
    """The scores of a head from position `at` to `sources`, by default every token that it can
    read, before a cap.

    parts: the names of parts. scores: by position, the score, its MOST_PAIRS largest pairs as
    [number of the part at `at`, number of the part at the source, value], and the sum of the others
    """
    readable = qk.readable(view.attention, layer, at)
    keys = [key for key in readable if sources is None or key in sources]
    terms = qk.score_terms(qk.View(view.attention, layer, head, at, keys, view.pair))
    parts: dict[str, int] = {}  # by name its number, in order of appearance
    scores = {}
    for key, values in zip(keys, terms.values, strict=True):
        score = float(values.sum())
        largest = values.abs().topk(min(MOST_PAIRS, len(values))).indices.tolist()
        pairs = []
        for term in largest:
            query_part, key_part = terms.labels[term]
            numbers = [parts.setdefault(part, len(parts)) for part in (query_part, key_part)]
            pairs.append([*numbers, _rounded(float(values[term]))])
        remainder = score - float(values[largest].sum())
        scores[key] = {"score": _rounded(score), "pairs": pairs, "others": _rounded(remainder)}
    return {"parts": list(parts), "scores": scores}


def score_rows(scene: Scene) -> Row:
    """`score_row` of the head that is followed first, of every token that is drawn and looks."""
    rows = {
        at: score_row(scene.view, scene.layer, scene.head, at, scene.drawn_keys)
        for at in scene.drawn_queries
    }
    return {"layer": scene.layer, "head": scene.head, "rows": rows}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
