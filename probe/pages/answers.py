"""The answer for each word in sentences, made from verdicts, effects and intervals alone: frames in, text out.

What may be said is bound here. Only a head with the verdict resolver is said to resolve. A percentage is of the sense
gap, measured on sentences that nothing was fitted or ranked on, and stands with its 95 % interval. Effects are those
beyond a same-sense swap (`net`). Heads whose rank intervals overlap are named together and never put in order. Looking
at the cue is described, never offered as a reason. Where the gap is not there nothing is ranked; where nothing was
shown, the smallest visible effect is said.

`plain` is the first sentence of a word's card, for a reader who has never heard of a head's name. It says no more than
the verdicts do: that an earlier word gives the meaning is said where the swapped sentences differ in that word alone,
and "the words before it" where the word itself is the same vector in every sentence. Of a model that reads both ways it
is "another word" and "the words around it".
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probe.charts import gap_at, reached
from probe.stats.numbers import NARROW, counted, decimal, interval, listed, measured, ordinal, p_value, percent

LEADERS = 3
WORTH_SHOWING = 0.01  # of the gap: a head with a clear effect from here on has its sentences on the page
WELL = "would have been seen in 80\u202f% of cases"
Head = dict[Hashable, Any]
Frames = Mapping[str, pd.DataFrame]


def head_name(head: Head) -> str:
    return f"L{head['layer']}H{head['head']}"


def question(words: Sequence[str]) -> str:
    return f"Which heads resolve {listed(list(words))}?"


def heads_of(frames: Frames, word: str) -> pd.DataFrame:
    """The heads up to the word's read-out, by rank."""
    rows = frames["word_heads"]
    return reached(rows[rows["word"] == word]).sort_values("rank", kind="stable")


def resolvers(frames: Frames, word: str) -> list[Head]:
    """The heads shown to resolve a word in at least one of its pairs of senses, by rank."""
    rows = heads_of(frames, word)
    return rows[rows["verdict"] == "resolver"].to_dict("records")


def in_groups(heads: Sequence[Head]) -> list[list[Head]]:
    """Heads by rank, those with overlapping rank intervals together: only between groups is there an order."""
    groups: list[list[Head]] = []
    for head in heads:
        if groups and head["rank_low"] <= max(other["rank_high"] for other in groups[-1]):
            groups[-1].append(head)
        else:
            groups.append([head])
    return groups


def answer(frames: Frames, word: str) -> str:
    """What the study says about one word, in a sentence or three; `frames` are the study's."""
    pairs = frames["words"][frames["words"]["word"] == word]
    if not pairs["ranked"].any():
        return _nothing_to_rank(pairs, word)
    heads = resolvers(frames, word)
    said = [*_resolve(heads, pairs, word), _together(frames, word, heads)] if heads else _no_head(frames, pairs, word)
    few = "Exploratory, with fewer than 50 sentences per sense." if pairs["exploratory"].any() else ""
    return " ".join(part for part in (few, *said) if part)


def _nothing_to_rank(pairs: pd.DataFrame, word: str) -> str:
    """That no gap was shown, which is no proof that there is none: the material, and what would have been seen."""
    which, shown = "the senses", p_value(pairs["gap_p"].min()).replace("=", "≥")
    if len(pairs) == 1:
        shown = f"gap {gap_text(pairs.iloc[0].to_dict())}, {p_value(pairs.iloc[0]['gap_p'])}"
    else:
        which = f"any of the {len(pairs)} pairs of senses"
    return (
        f"This model was not shown to separate {which} of “{word}” at the word ({shown}), so no head is ranked. "
        f"{_material(pairs)}, a difference of {decimal(float(pairs['visible_d'].max()))} standard deviations {WELL}."
    )


def gap_text(pair: Mapping[Any, Any]) -> str:
    """The gap of a pair of senses with its 95 % interval."""
    return f"{decimal(pair['gap'])} {interval(pair['gap_low'], pair['gap_high'])}"


def _material(pairs: pd.DataFrame) -> str:
    """How much there was to see something in, for the pair of senses that had least."""
    sentences, cues, swapped = (int(pairs[name].min()) for name in ("sentences_report", "cue_words", "pairs"))
    return f"In {sentences} sentences ({counted(cues, 'cue word')} per sense, {counted(swapped, 'pair')} to swap)"


def _resolve(heads: Sequence[Head], pairs: pd.DataFrame, word: str) -> list[str]:
    """Who resolves the word, in how many of its pairs of senses, and how far each of the leading ones moves it."""
    named, among = heads[:LEADERS], "" if len(heads) <= LEADERS else " Among them,"
    where = {f"in {head['resolves']} of {counted(len(pairs), 'pair')} of senses" for head in heads}
    everywhere = f" {where.pop()}" if len(pairs) > 1 and len(where) == 1 else ""
    verb = "resolves" if len(heads) == 1 else "resolve"
    opening = f"{counted(len(heads), 'head', words=True)} {verb} “{word}”{everywhere}{'.' if among else ':'}{among}"
    number = len(pairs) if len(pairs) > 1 and not everywhere else 0
    same = len(named) > 1 and len({head["resolves"] for head in named}) == 1
    places = [f" (in {head['resolves']} of {number} pairs)" if number and not same else "" for head in named]
    way = "two senses" if len(pairs) > 1 else f"{pairs.iloc[0]['sense_a']} and {pairs.iloc[0]['sense_b']}"
    first, *rest = [(head_name(head), _effect(head), place) for head, place in zip(named, places, strict=True)]
    lead = f"{first[0]} moves it {first[1]} of the way between {way}{first[2]}"
    told = listed([lead, *(f"{name} {effect}{place}" for name, effect, place in rest)])
    each = f"each in {named[0]['resolves']} of {number} pairs" if same and number else ""
    over = "; ".join(part for part in (each, _mean(pairs)) if part)
    return [f"{opening} {told}{f' ({over})' if over else ''}.", *_overlaps(named)]


def _overlaps(heads: Sequence[Head]) -> list[str]:
    groups = [listed([head_name(head) for head in group]) for group in in_groups(heads) if len(group) > 1]
    return [f"The ranks of {names} overlap: they are in no order." for names in groups]


def _mean(pairs: pd.DataFrame) -> str:
    """Over which pairs of senses an effect is the mean."""
    passed, number = int(pairs["ranked"].sum()), len(pairs)
    which = f"all {number} pairs" if passed == number else f"the {counted(passed, 'pair')} that were shown to be apart"
    return "" if number == 1 else f"mean over {which}"


def _effect(head: Head) -> str:
    return measured(head["net"], head["net_low"], head["net_high"])


def _together(frames: Frames, word: str, heads: Sequence[Head]) -> str:
    """Faithfulness of the smallest set that is enough, against the best random set of its size or the next larger."""
    enough = smallest_set(frames, word)
    if enough is None:
        return ""
    names, every = enough.names, enough.every
    if len(names) == every:
        return f"Nothing less than all {every} heads together keeps 90{NARROW}% of the gap."
    all_of_them = {head_name(head) for head in heads} == set(names)
    who = ("Alone it keeps" if len(names) == 1 else "Together they keep") if all_of_them else _set_name(names)
    return f"{who} {enough.kept} of the gap{_against(frames, word, enough)}."


def _set_name(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} alone keeps"
    told = f" ({listed(list(names))})" if len(names) <= LEADERS else ""
    return f"The first {len(names)} heads{told} together keep"


@dataclass(frozen=True)
class SmallestSet:
    """The fewest leading heads with F of at least 0.9: names, F, F as text with its interval, number of all heads."""

    names: list[str]
    faithfulness: float
    kept: str
    every: int


def smallest_set(frames: Frames, word: str) -> SmallestSet | None:
    """The smallest set of a word, or None where no set of leading heads is enough."""
    rows = frames["curves"][frames["curves"]["word"] == word].sort_values("size")
    smallest = next(iter(rows[rows["size"] == rows["smallest"]].to_dict("records")), None)
    if smallest is None:
        return None
    joined = rows.loc[rows["size"].between(1, smallest["size"]), "added"]
    names = [name for added in joined for name in added.split(", ")]
    kept = measured(*(smallest[f"faithfulness{end}"] for end in ("", "_low", "_high")))
    return SmallestSet(names, float(smallest["faithfulness"]), kept, int(rows["size"].max()))


def best_random(frames: Frames, word: str, size: int) -> tuple[int, int, float] | None:
    """Size, number and best F of the random sets with `size` heads, or the next more that were drawn."""
    rows = frames["random_sets"][(frames["random_sets"]["word"] == word) & (frames["random_sets"]["size"] >= size)]
    if rows.empty:
        return None
    drawn = rows[rows["size"] == rows["size"].min()]["faithfulness"]
    return int(rows["size"].min()), len(drawn), float(drawn.max())


def _against(frames: Frames, word: str, kept: SmallestSet) -> str:
    size = len(kept.names)
    random = best_random(frames, word, size)
    if random is None:
        return ""
    drawn, _, best = random
    same = best >= kept.faithfulness and drawn == size
    return f", {best_of(random)} from the same layers {percent(best)}{': a random set does as well' if same else ''}"


def best_of(random: tuple[int, int, float]) -> str:
    """In words, the best of some random sets, as `best_random` gives them."""
    size, sets, _ = random
    return f"the best of {counted(sets, 'random set')} of {counted(size, 'head')}"


def _no_head(frames: Frames, pairs: pd.DataFrame, word: str) -> list[str]:
    best = heads_of(frames, word).to_dict("records")[0]
    separation, swap = (decimal(float(pairs[name].max())) for name in ("visible_d", "visible_d_pairs"))
    seen = f"{_material(pairs)}, a separation of {separation} standard deviations and a swap effect of {swap} {WELL}"
    verdict = "" if best["verdict"] == "none" else f" ({best['verdict']})"
    largest = f"the largest effect is {_effect(best)}, by {head_name(best)}{verdict}"
    return [f"No head was shown to resolve “{word}”, although its senses are apart at the word.", f"{seen}; {largest}."]


ALIGNED = "aligned pairs"
FEW_LAYERS = 3


def plain(frames: Frames, word: str) -> str:
    """What was shown of a word, in one sentence without names and numbers of heads."""
    pairs = frames["words"][frames["words"]["word"] == word]
    if not pairs["ranked"].any():
        return f"These sentences do not show that the vector of “{word}” in this model tells its meanings apart."
    opening = "As far as a few sentences can tell, in this model" if pairs["exploratory"].any() else "In this model"
    heads = resolvers(frames, word)
    if not heads:
        changes = f"{opening} the vector of “{word}” changes with its meaning"
        return f"{changes}, but no single attention head was shown to bring that about."
    way = f"{_plain_way(frames, word, heads)}{_where(frames, pairs, word)}"
    return f"{opening} the word “{word}” {_origin(frames, pairs, word)}, {way}."


def _origin(frames: Frames, pairs: pd.DataFrame, word: str) -> str:
    """What gives the word its meaning, as far as the design of the study shows it."""
    if any(gap_at(frames["depth"], word, (a, b), depth=-1) != 0 for a, b in _senses(pairs)):
        return "changes its meaning with the sentence"
    causal = bool(pairs["causal"].all())
    cues = [_cue(frames["sentences"], word, sense) for sense in _senses(pairs)[0]]
    if (pairs["pair_design"] == ALIGNED).all() and all(cues):
        other = "an earlier word" if causal else "another word"
        return f"gets its meaning from {other}, such as “{cues[0]}” or “{cues[1]}”"
    return f"gets its meaning from the words {'before' if causal else 'around'} it"


def _senses(pairs: pd.DataFrame) -> list[tuple[str, str]]:
    return [(str(a), str(b)) for a, b in pairs[["sense_a", "sense_b"]].to_numpy()]


def _cue(sentences: pd.DataFrame, word: str, sense: str) -> str:
    """The first cue of this sense that effects were measured with; empty where cues are not known."""
    mine = sentences[(sentences["word"] == word) & (sentences["sense"] == sense) & (sentences["part"] == "report")]
    known = mine[mine["cue_start"].notna()].head(1).to_dict("records")
    return "".join(row["text"][int(row["cue_start"]) : int(row["cue_end"])] for row in known)


def _plain_way(frames: Frames, word: str, heads: Sequence[Head]) -> str:
    """Through how many heads of which layers; in part, unless these heads together are enough."""
    smallest = smallest_set(frames, word)
    enough = smallest is not None and set(smallest.names) <= {head_name(head) for head in heads}
    number = counted(len(heads), "attention head", words=True).lower()
    return f"{'' if enough else 'in part '}by way of {number} in {_layers(frames, heads)}"


def _layers(frames: Frames, heads: Sequence[Head]) -> str:
    layers = sorted({int(head["layer"]) for head in heads})
    every = int(frames["heads"]["layer"].max()) + 1
    if every == 1:
        return "its only layer"
    if len(layers) == every > 2:
        return f"all of its {every} layers"
    if len(layers) > FEW_LAYERS:
        return f"{len(layers)} of its {every} layers"
    named = ["last" if layer == every - 1 else ordinal(layer + 1) for layer in layers]
    return f"the {listed(named)} of its {every} layers"


def _where(frames: Frames, pairs: pd.DataFrame, word: str) -> str:
    """For how many of the word's pairs of meanings that was shown, where it is not for all."""
    rows = frames["heads"][(frames["heads"]["word"] == word) & (frames["heads"]["verdict"] == "resolver")]
    shown = len(rows[["sense_a", "sense_b"]].drop_duplicates()) if len(pairs) > 1 else 1
    return "" if shown == len(pairs) else f" (shown for {shown} of its {len(pairs)} pairs of meanings)"
