"""The sentences that a report says of each word, made from verdicts, effects and intervals alone: pure functions from frames to text.

What may be said is bound here. Only a head with the verdict resolver is said to resolve. A percentage is of the sense gap, measured
on sentences that nothing was fitted or ranked on, and stands with its 95 % interval. Effects are those beyond a same-sense swap
(`net`). Heads whose rank intervals overlap are named together and never put in order. Looking at the cue is described, never
offered as a reason. Where the gap is not there nothing is ranked; where nothing was shown, the smallest visible effect is said.

The first sentence of a word's card, for a reader who has never heard of a head's name: where the meaning comes from, by what way.

It says no more than the verdicts do. Only resolvers are counted; that an earlier word gives the meaning is said where the swapped
sentences differ in that word alone, and "the words before it" where the word itself is the same vector in every sentence. Of a model
that reads both ways it is "another word" and "the words around it".
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probe.charts import gap_at, reached
from probe.stats.numbers import NARROW, counted, decimal, interval, listed, measured, ordinal, p_value, percent

LEADERS = 3
SMALLEST = 0.01
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
        pair = pairs.iloc[0]
        shown = f"gap {decimal(pair['gap'])} {interval(pair['gap_low'], pair['gap_high'])}, {p_value(pair['gap_p'])}"
    else:
        which = f"any of the {len(pairs)} pairs of senses"
    return (
        f"This model was not shown to separate {which} of “{word}” at the word ({shown}), so no head is ranked. "
        f"{_material(pairs)}, a difference of {decimal(float(pairs['visible_d'].max()))} standard deviations {WELL}."
    )


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
    first, *rest = [_place(head, 0 if same else number) for head in named]
    way = f"{first[0]} moves it {first[1]} of the way {_way(pairs)}{first[2]}"
    told = listed([way, *(f"{name} {effect}{where}" for name, effect, where in rest)])
    each = f"each in {named[0]['resolves']} of {number} pairs" if same and number else ""
    over = "; ".join(part for part in (each, _mean(pairs)) if part)
    return [f"{opening} {told}{f' ({over})' if over else ''}.", *_overlaps(named)]


def _place(head: Head, pairs: int) -> tuple[str, str, str]:
    return head_name(head), _effect(head), f" (in {head['resolves']} of {pairs} pairs)" if pairs else ""


def _overlaps(heads: Sequence[Head]) -> list[str]:
    groups = [group for group in in_groups(heads) if len(group) > 1]
    return [
        f"The ranks of {listed([head_name(head) for head in group])} overlap: they are in no order." for group in groups
    ]


def _way(pairs: pd.DataFrame) -> str:
    return (
        f"between {pairs.iloc[0]['sense_a']} and {pairs.iloc[0]['sense_b']}"
        if len(pairs) == 1
        else "between two senses"
    )


def _mean(pairs: pd.DataFrame) -> str:
    """Over which pairs of senses an effect is the mean."""
    passed, number = int(pairs["ranked"].sum()), len(pairs)
    which = f"all {number} pairs" if passed == number else f"the {counted(passed, 'pair')} that were shown to be apart"
    return "" if number == 1 else f"mean over {which}"


def _effect(head: Head) -> str:
    return measured(head["net"], head["net_low"], head["net_high"])


def _together(frames: Frames, word: str, heads: Sequence[Head]) -> str:
    """What the smallest set of leading heads that is enough keeps, against the best random set of its size or the next larger one."""
    found = smallest_set(frames, word)
    if found is None:
        return ""
    names, kept, every = found.names, found.kept, found.every
    if len(names) == every:
        return f"Nothing less than all {every} heads together keeps 90{NARROW}% of the gap."
    who = "Together they keep" if {head_name(head) for head in heads} == set(names) else _set_name(names)
    alone = "Alone it keeps" if who.startswith("Together") and len(names) == 1 else who
    return f"{alone} {kept} of the gap{_against(frames, word, found)}."


def _set_name(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} alone keeps"
    told = f" ({listed(list(names))})" if len(names) <= LEADERS else ""
    return f"The first {len(names)} heads{told} together keep"


@dataclass(frozen=True)
class SmallestSet:
    """The fewest leading heads that keep 90 % of the gap: their names, F and F as text with its interval, how many heads there are."""

    names: list[str]
    faithfulness: float
    kept: str
    every: int


def smallest_set(frames: Frames, word: str) -> SmallestSet | None:
    """The smallest set of a word, or None where no set of leading heads is enough."""
    rows = frames["curves"][frames["curves"]["word"] == word].sort_values("size")
    reaching = rows[rows["size"] == rows["smallest"]].to_dict("records")
    if not reaching:
        return None
    found = reaching[0]
    names = [name for added in rows.loc[rows["size"].between(1, found["size"]), "added"] for name in added.split(", ")]
    kept = measured(found["faithfulness"], found["faithfulness_low"], found["faithfulness_high"])
    return SmallestSet(names, float(found["faithfulness"]), kept, int(rows["size"].max()))


def best_random(frames: Frames, word: str, size: int) -> tuple[int, int, float] | None:
    """Of the random sets with `size` heads, or the next more that were drawn: heads in each, how many sets, the best one's F."""
    rows = frames["random_sets"][(frames["random_sets"]["word"] == word) & (frames["random_sets"]["size"] >= size)]
    if rows.empty:
        return None
    drawn = rows[rows["size"] == rows["size"].min()]["faithfulness"]
    return int(rows["size"].min()), len(drawn), float(drawn.max())


def _against(frames: Frames, word: str, kept: SmallestSet) -> str:
    size = len(kept.names)
    found = best_random(frames, word, size)
    if found is None:
        return ""
    drawn, sets, best = found
    rival = f"the best of {counted(sets, 'random set')} of {counted(drawn, 'head')} from the same layers"
    same = best >= kept.faithfulness and drawn == size
    return f", {rival} {percent(best)}{': a random set does as well' if same else ''}"


def _no_head(frames: Frames, pairs: pd.DataFrame, word: str) -> list[str]:
    best = heads_of(frames, word).to_dict("records")[0]
    separation, swap = (decimal(float(pairs[name].max())) for name in ("visible_d", "visible_d_pairs"))
    seen = f"{_material(pairs)}, a separation of {separation} standard deviations and a swap effect of {swap} {WELL}"
    largest = f"the largest effect is {_effect(best)}, by {head_name(best)}{_verdict_of(best)}"
    return [f"No head was shown to resolve “{word}”, although its senses are apart at the word.", f"{seen}; {largest}."]


def _verdict_of(head: Head) -> str:
    return "" if head["verdict"] == "none" else f" ({head['verdict']})"


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
        return f"{opening} the vector of “{word}” changes with its meaning, but no single attention head was shown to bring that about."
    return f"{opening} the word “{word}” {_origin(frames, pairs, word)}, {_plain_way(frames, word, heads)}{_where(frames, pairs, word)}."


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
    found = smallest_set(frames, word)
    enough = found is not None and set(found.names) <= {head_name(head) for head in heads}
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
