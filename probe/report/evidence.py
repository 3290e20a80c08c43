"""What the answers rest on, as plain values for the page: heads together, controls and power, how effects come about, the ledger."""

from typing import Any

import pandas as pd

from probe import charts, suppliers
from probe.numerals import counted, decimal, p_value, percent
from probe.report import answers
from probe.report.excerpts import marked, worth_showing
from probe.report.sections import Frames, Section, of_word, sense_marks, words_of

RANDOM = "random sets from the same layers"


def together(frames: Frames) -> list[Section]:
    """For each ranked word its curves and what the smallest set keeps."""
    found = []
    for word in words_of(frames):
        curve = of_word(frames["curves"], word)
        if curve.empty:
            continue
        best = answers.smallest_set(frames, word)
        enough = best is not None and len(best.names) < best.every
        found.append(
            {
                "word": word,
                "chart": charts.set_curves(frames["curves"], frames["random_sets"], word),
                "names": best.names if best and enough else [],
                "kept": best.kept if best else "",
                "rival": _rival(answers.best_random(frames, word, len(best.names))) if best else "",
                "area": decimal(float(curve["area"].iloc[0])),
            }
        )
    return found


def _rival(rival: tuple[int, int, float] | None) -> str:
    if rival is None:
        return ""
    size, sets, best = rival
    return f"the best of {counted(sets, 'random set')} of {counted(size, 'head')} keeps {percent(best)}"


def believe(frames: Frames) -> Section:
    """Gate, power, sizes and controls of each word."""
    found = []
    for word in words_of(frames):
        pairs, controls = of_word(frames["words"], word), of_word(frames["controls"], word)
        shown = [answers.head_name(head) for head in answers.resolvers(frames, word)] if pairs["ranked"].any() else []
        chart = charts.control_strips(frames["controls"], word, shown=shown) if len(controls) else None
        pair = controls.iloc[0] if len(controls) else None
        found.append(
            {
                "word": word,
                "chart": chart,
                "pair": "" if pair is None else f"{pair['sense_a']} / {pair['sense_b']}",
                "untrained_p": "not measured" if pair is None else p_value(pair["untrained_p"]),
                "shown": shown,
            }
            | _power(pairs)
        )
    conditions = set(frames["controls"]["condition"])
    return {"words": found, "later": "later token" in conditions, "drawn": any(item["chart"] for item in found)}


def _power(pairs: pd.DataFrame) -> Section:
    """The hardest of a word's pairs of senses: the fewest sentences and the largest effect that would have been missed."""
    return {
        "gate": p_value(float(pairs["gap_p"].max())).replace("p = ", "p ≤ " if len(pairs) > 1 else "p = "),
        "apart": f"{int(pairs['ranked'].sum())} of {len(pairs)}",
        "fit": int(pairs["sentences_fit"].min()),
        "report": int(pairs["sentences_report"].min()),
        "cues": int(pairs["cue_words"].min()),
        "pairs": int(pairs["pairs"].min()),
        "visible": decimal(float(pairs["visible_d"].max())),
        "visible_pairs": decimal(float(pairs["visible_d_pairs"].max())),
        "exploratory": bool(pairs["exploratory"].any()),
    }


def comes_about(frames: Frames) -> dict[str, list[tuple[str, Any, str]]]:
    """By word: charts of the leading heads' effect by distance and by route, each with its title and caption."""
    found = {}
    for word in words_of(frames):
        rows = of_word(frames["readings"], word)[["layer", "head"]].drop_duplicates()
        heads = rows.merge(charts.reached(of_word(frames["word_heads"], word)), on=["layer", "head"])
        names = [answers.head_name(head) for head in worth_showing(heads).to_dict("records")][: answers.LEADERS]
        made = [_by_distance(frames, word, names), _by_route(frames, word, names)] if names else []
        found[word] = [item for item in made if item is not None]
    return found


def _by_distance(frames: Frames, word: str, names: list[str]) -> tuple[str, Any, str] | None:
    if of_word(frames["distances"], word).empty:
        return None
    said = "A head that only reads the token beside the word falls to zero beyond distance 1; one that finds the cue does not."
    return "By distance from the cue", charts.distance_lines(frames["distances"], word, names), said


def _by_route(frames: Frames, word: str, names: list[str]) -> tuple[str, Any, str] | None:
    if of_word(frames["routes"], word).empty:
        return None
    said = (
        "From top to bottom: the whole output swapped; the other sentence's attention over its own values; its own attention over "
        "the other sentence's values; its mean output instead, that is, the part of the gap that is lost without its choice."
    )
    return "By what is replaced", charts.route_bars(frames["routes"], frames["word_heads"], word, names), said


def supplied(frames: Frames) -> list[Section]:
    """For each word its example sentences with what supplies the sense, in words and as a chart."""
    told = suppliers.told(frames["ledger"]) if len(frames["ledger"]) else {}
    found = []
    for word in words_of(frames):
        marks, rows = sense_marks(frames, word), of_word(frames["ledger"], word)
        numbers = [int(number) for number in rows["sentence"].drop_duplicates()]
        items = [_account(frames, (word, number), marks) | {"said": told[(word, number)]} for number in numbers]
        found.append({"word": word, "first": items[:1], "others": items[1:]})
    return [item for item in found if item["first"]]


def _account(frames: Frames, key: tuple[str, int], marks: dict[str, str]) -> Section:
    word, number = key
    sentence = of_word(frames["sentences"], word).iloc[number].to_dict()
    return {
        "sense": sentence["sense"],
        "mark": marks[sentence["sense"]],
        "parts": marked(sentence),
        "chart": charts.cue_ledger(frames["ledger"], word, sentence=number),
    }
