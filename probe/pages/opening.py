"""The first screen of a report: what is to be known before, one sentence across all words, and a line for each word.

A line holds the leading heads with their effects, the sentence that shows it best, and how sure all that is: verdicts
and counts, no p and no unit that must be looked up. A percentage is of the way from one meaning of the word to the
other. What lies behind a line is said by `probe.pages.answers` and `probe.pages.remarks`.
"""

from collections.abc import Sequence

import pandas as pd

from probe import charts
from probe.charts import of_word
from probe.pages import answers, excerpts
from probe.pages.rows import (
    Frames,
    Section,
    head_name,
    in_no_order,
    leaders,
    names_of,
    resolvers,
    with_sentences,
    words_of,
)
from probe.stats.numbers import counted, grouped, interval, listed, percent
from probe.study.columns import LEADERS
from probe.study.material import LATE

NAMED = 4  # heads that the sentence across all words names


def opening(frames: Frames, model_name: str, origin: str) -> Section:
    """The question of the page, its answer in a sentence, what it rests on, and the lines; `origin` is the model's."""
    heads, words = frames["heads"], words_of(frames)
    layers, per_layer = int(heads["layer"].max()) + 1, int(heads["head"].max()) + 1
    used = int((frames["sentences"]["part"] != "neither").sum())
    facts = [model_name, f"{layers * per_layer} heads in {layers} layers", counted(len(words), "word")]
    return {
        "question": answers.question(words),
        "across": across(frames, words),
        "facts": [*facts, f"{grouped(used)} sentences"],
        "cautions": cautions(frames, model_name, origin),
        "lines": [_line(frames, word) for word in words],
    }


def across(frames: Frames, words: Sequence[str]) -> str:
    """Which heads were shown to resolve every word, in the order of the first one; or for which words none was.

    Of a single word, its first sentence. Where a word is exploratory, it says so.
    """
    if len(words) == 1:
        return answers.plain(frames, words[0])
    said = _across(frames, words)
    few = frames["words"].loc[frames["words"]["word"].isin(words), "exploratory"].any()
    return f"As far as a few sentences can tell: {said[0].lower()}{said[1:]}" if few else said


def _across(frames: Frames, words: Sequence[str]) -> str:
    shown = {word: names_of(resolvers(frames, word)) for word in words}
    some = [word for word in words if shown[word]]
    if not some:
        return "No single head was shown to move any of these words."
    if len(some) < len(words):
        others = listed([f"“{word}”" for word in words if word not in some])
        return f"Single heads were shown to move {listed([f'“{word}”' for word in some])}; for {others} none was."
    every_word = "both words" if len(words) == 2 else f"all {counted(len(words), 'word', words=True).lower()}"
    shared = [name for name in shown[words[0]] if all(name in shown[word] for word in words)]
    if not shared:
        return f"No single head was shown to move {every_word}: each has heads of its own."
    heads = "head" if len(shared) == 1 else counted(len(shared), "head", words=True).lower()
    moves, names = "moves" if len(shared) == 1 else "move", listed(shared[:NAMED])
    if len(shared) > NAMED:
        return f"The same {heads} {moves} {every_word}, {names} among them."
    return f"The same {heads}, {names}, {moves} {every_word}."


def cautions(frames: Frames, model_name: str, origin: str) -> list[str]:
    """What a reader should know before the answer: the model, surface forms, words in pieces, cues that come late."""
    grammar = f"{model_name} learned from a grammar: it shows how the method works, not how English is read."
    said = [grammar] if origin == "embedded" else []
    for word in words_of(frames):
        sentences, late = of_word(frames["sentences"], word), of_word(frames["left_out"], word)["reason"].eq(LATE)
        said += [*_forms(sentences, word), *_pieces(sentences, word)]
        if number := int(late.sum()):
            which = "sentence is" if number == 1 else "sentences are"
            said.append(
                f"{number} {which} left out because the cue comes after “{word}”, and this model reads left to right."
            )
    return said


def _forms(sentences: pd.DataFrame, word: str) -> list[str]:
    """That the word stands in several surface forms, which a model need not read alike."""
    spans = zip(sentences["text"], sentences["start"], sentences["end"], strict=True)
    forms = pd.Series([text[int(start) : int(end)] for text, start, end in spans]).value_counts()
    told = ", ".join(f"“{form}” ({count})" for form, count in forms.items())
    return [f"“{word}” stands in {len(forms)} forms, each a token of its own to the model: {told}."] * (len(forms) > 1)


def _pieces(sentences: pd.DataFrame, word: str) -> list[str]:
    """That the word is cut into several tokens, of which the last is read."""
    cut, every = int((sentences["tokens_of_word"] > 1).sum()), len(sentences)
    return [f"“{word}” is cut into pieces in {cut} of {every} sentences and read at the last one."] * bool(cut)


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
        "sure": sure(frames, word),
    }


def sure(frames: Frames, word: str) -> str:
    """How sure the leading heads of a word are: which were confirmed, on how much, and what else might explain them."""
    pairs = of_word(frames["words"], word)
    if not pairs["ranked"].any():
        return "Not shown: in these sentences the meanings could not be told apart at the word, so no head is ranked."
    apart = pairs[pairs["ranked"]].to_dict("records")
    if without := list(dict.fromkeys(what for pair in apart for what in answers.confounders(pair))):
        return f"Not clear: the meanings can also be told apart {listed(without)}."
    few = "A first look at few sentences. " * bool(pairs["exploratory"].any())
    first = leaders(frames, word)
    overlaps = "".join(f" {names} are in no order." for names in in_no_order(first))
    return f"{few}{_confirmed(names_of(first), names_of(resolvers(frames, word)), pairs)}{overlaps}"


def _confirmed(first: Sequence[str], shown: Sequence[str], pairs: pd.DataFrame) -> str:
    """Which of the leading heads are among those shown to resolve the word, or which others are."""
    among, missed = ([name for name in first if (name in shown) == wanted] for wanted in (True, False))
    if not shown:
        return "Not confirmed: no head passes every test."
    which = "All confirmed"
    if not among:
        which = f"None of these confirmed, but {_some(shown)} {'is' if len(shown) == 1 else 'are'}"
    elif missed:
        which = f"{listed(among)} confirmed, {listed(missed)} not"
    return f"{which}, on {_amount(pairs)} that nothing was fitted to."


def _some(names: Sequence[str]) -> str:
    return listed(list(names)) if len(names) <= LEADERS else counted(len(names), "other")


def _amount(pairs: pd.DataFrame) -> str:
    """The pairs of sentences and of cue words with which heads were swapped; the fewest of several pairs of senses."""
    swapped, cues = (int(pairs.loc[pairs["ranked"], name].min()) for name in ("pairs", "cue_words"))
    each = "" if len(pairs) == 1 else " for each pair of meanings"
    return f"{counted(swapped, 'pair')} of sentences ({counted(cues, 'pair')} of cue words){each}"


def _example(frames: Frames, word: str) -> Section | None:
    """Of the sentences drawn for the page, the one in which the leading head brings most from the cue to its sense.

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
    brought = toward.where(cues | (not cues.any()), 0.0).groupby(first["sentence"], sort=False).sum()
    return excerpts.sentence(frames, word, int(brought.idxmax()))
