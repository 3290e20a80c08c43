"""The answer for each word in sentences, made from verdicts, effects and intervals alone: frames
in, text out.

What may be said is bound here. Only a head with the verdict resolver is said to resolve. A
percentage is of the sense gap, measured along axes that were fitted without the sentence, and
stands with its 95 % interval. Effects are those beyond a same-sense swap (`net`). Heads whose rank
intervals overlap are never put in order. Looking at the cue is described, never offered as a
reason. Where the gap is not there nothing is ranked; where nothing was shown, the smallest visible
effect is said.

`plain` is the first sentence of a word's card, for a reader who has never heard of a head's name.
It says no more than the verdicts do: that an earlier word gives the meaning is said where a head
has half of its effect or more from that word alone, and "the words before it" where the word itself
is the same vector in every sentence. Of a model that reads both ways it is "another word" and "the
words around it". Where something without meaning tells the senses apart as well (`confounders`),
nobody is credited.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from probe.charts import gap_at, of_word
from probe.evidence.columns import LEADERS
from probe.evidence.tables import FEW, FEW_CUES
from probe.pages.rows import (
    Frames,
    Row,
    best_random,
    head_name,
    in_no_order,
    leaders,
    names_of,
    resolvers,
    senses_of,
    smallest_set,
    with_interval,
)
from probe.stats.numbers import (
    NARROW,
    counted,
    decimal,
    interval,
    listed,
    ordinal,
    p_value,
    percent,
)
from probe.stats.verdicts import GATE, LEVEL, SMALLEST
from probe.text.splits import ALIGNED


def question(words: Sequence[str]) -> str:
    return f"Which heads resolve {listed(list(words))}?"


def answer(frames: Frames, word: str) -> str:
    """What the study says about one word, in a sentence or three; `frames` are the study's."""
    pairs = of_word(frames["words"], word)
    if not pairs["ranked"].any():
        return _nothing_to_rank(pairs, word)
    heads = resolvers(frames, word)
    said = (
        [*_resolve(heads, pairs, word), _together(frames, word, heads)]
        if heads
        else _no_head(frames, pairs, word)
    )
    few = f"Exploratory: {too_few(pairs)}." if pairs["exploratory"].any() else ""
    return " ".join(part for part in (few, *said, _confounded(pairs)) if part)


def too_few(pairs: pd.DataFrame) -> str:
    """What the exploratory pairs of senses have too few of."""
    rows = pairs[pairs["exploratory"]]
    cues = bool((rows["cue_words"] < FEW_CUES).any())
    sentences = not cues or bool((rows["sentences_report"] < 2 * FEW).any())
    missing = [f"{FEW} sentences per sense"] * sentences + [f"{FEW_CUES} pairs of cue words"] * cues
    return f"fewer than {' and than '.join(missing)}"


NUISANCES = {
    "untrained_p": (GATE, "by the same model with random weights"),
    "nuisance_p": (LEVEL, "by where the word stands in the text or how long the text is"),
}


def confounders(pair: Mapping[Any, Any]) -> list[str]:
    """What has no meaning and tells the two senses apart as well; its heads are then never
    resolvers."""
    return [
        what for name, (level, what) in NUISANCES.items() if pair["ranked"] and pair[name] < level
    ]


def _confounded(pairs: pd.DataFrame) -> str:
    """What else tells the senses apart, and for how many of the ranked pairs of senses."""
    without = [what for pair in pairs.to_dict("records") if (what := listed(confounders(pair)))]
    if not without:
        return ""
    which = "These senses" if len(pairs) == 1 else f"The senses of {counted(len(without), 'pair')}"
    ways = "; ".join(dict.fromkeys(without))
    return (
        f"{which} can also be told apart without meaning, {ways}: no head is said to resolve them."
    )


def _nothing_to_rank(pairs: pd.DataFrame, word: str) -> str:
    """That no gap was shown, which is no proof that there is none: the material, and what would
    have been seen."""
    which, shown = "the senses", p_value(pairs["gap_p"].min()).replace("=", "≥")
    if len(pairs) == 1:
        shown = f"gap {gap_text(pairs.iloc[0].to_dict())}, {p_value(pairs.iloc[0]['gap_p'])}"
    else:
        which = f"any of the {len(pairs)} pairs of senses"
    return (
        f"This model was not shown to separate {which} of “{word}” at the word ({shown}), so no head is ranked. "
        f"{_visible(pairs)}."
    )


def _visible(pairs: pd.DataFrame) -> str:
    """What could have been seen, and in how many sentences and pairs, for the pair of senses that
    had least."""
    sentences, cues, swapped = (
        int(pairs[name].min()) for name in ("sentences_report", "cue_words", "pairs")
    )
    seen = f"In {sentences} sentences ({counted(swapped, 'pair')} with {counted(cues, 'pair')} of cue words)"
    least, effect = float(pairs["smallest_p"].max()), decimal(float(pairs["visible_d_pairs"].max()))
    if least >= LEVEL:
        return f"{seen}, no test can come below {p_value(least)}, so nothing could have been shown"
    return f"{seen}, an effect of {effect} standard deviations over cue words would have been seen in 80{NARROW}% of cases"


def gap_text(pair: Mapping[Any, Any]) -> str:
    """The gap of a pair of senses with its 95 % interval."""
    return f"{decimal(pair['gap'])} {interval(pair['gap_low'], pair['gap_high'])}"


def _resolve(heads: Sequence[Row], pairs: pd.DataFrame, word: str) -> list[str]:
    """Who resolves the word, in how many of its pairs of senses, and how far each of the leading
    ones moves it."""
    named, among = heads[:LEADERS], "" if len(heads) <= LEADERS else " Among them,"
    where = {f"in {head['resolves']} of {counted(len(pairs), 'pair')} of senses" for head in heads}
    everywhere = f" {where.pop()}" if len(pairs) > 1 and len(where) == 1 else ""
    verb = "resolves" if len(heads) == 1 else "resolve"
    opening = f"{counted(len(heads), 'head', words=True)} {verb} “{word}”{everywhere}{'.' if among else ':'}{among}"
    number = len(pairs) if len(pairs) > 1 and not everywhere else 0
    same = len(named) > 1 and len({head["resolves"] for head in named}) == 1
    places = [
        f" (in {head['resolves']} of {number} pairs)" if number and not same else ""
        for head in named
    ]
    way = (
        "two senses"
        if len(pairs) > 1
        else f"{pairs.iloc[0]['sense_a']} and {pairs.iloc[0]['sense_b']}"
    )
    moved = [
        (head_name(head), with_interval(head, "net"), place)
        for head, place in zip(named, places, strict=True)
    ]
    name, effect, place = moved[0]
    lead = f"{name} moves it {effect} of the way between {way}{place}"
    told = listed([lead, *(f"{name} {effect}{place}" for name, effect, place in moved[1:])])
    each = f"each in {named[0]['resolves']} of {number} pairs" if same and number else ""
    over = "; ".join(part for part in (each, _mean(pairs)) if part)
    overlaps = [
        f"The ranks of {names} overlap: they are in no order." for names in in_no_order(named)
    ]
    return [f"{opening} {told}{f' ({over})' if over else ''}.", *overlaps]


def _mean(pairs: pd.DataFrame) -> str:
    """Over which pairs of senses an effect is the mean."""
    passed, number = int(pairs["ranked"].sum()), len(pairs)
    which = (
        f"all {number} pairs"
        if passed == number
        else f"the {counted(passed, 'pair')} that were shown to be apart"
    )
    return "" if number == 1 else f"mean over {which}"


def _together(frames: Frames, word: str, heads: Sequence[Row]) -> str:
    """Faithfulness of the smallest set that is enough, against the best random set of its size or
    the next larger."""
    enough = smallest_set(frames, word)
    if enough is None:
        return ""
    names, every, random = enough.names, enough.every, best_random(frames, word, len(enough.names))
    if len(names) == every:
        return f"Nothing less than all {every} heads together keeps 90{NARROW}% of the gap."
    all_of_them = set(names_of(heads)) == set(names)
    who = (
        ("Alone it keeps" if len(names) == 1 else "Together they keep")
        if all_of_them
        else _set_name(names)
    )
    against = ""
    if random is not None:
        drawn, best, said = random
        same = best >= enough.faithfulness and drawn == len(names)
        against = f", {said} from the same layers {percent(best)}{': a random set does as well' if same else ''}"
    return f"{who} {enough.kept} of the gap{against}."


def _set_name(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} alone keeps"
    told = f" ({listed(list(names))})" if len(names) <= LEADERS else ""
    return f"The first {len(names)} heads{told} together keep"


def _no_head(frames: Frames, pairs: pd.DataFrame, word: str) -> list[str]:
    best = leaders(frames, word)[0]
    verdict = "" if best["verdict"] == "none" else f" ({best['verdict']})"
    largest = f"the largest effect is {with_interval(best, 'net')}, by {head_name(best)}{verdict}"
    none = f"No head was shown to resolve “{word}”, although its senses are apart at the word."
    return [none, f"{_visible(pairs)}; {largest}."]


FEW_LAYERS = 3
MOST_OF_IT = 0.5  # of a head's effect: more than everything else it takes together
NEARLY_ALL = 0.9
PUNCTUATION = ".,;:!?\"'()"


def plain(frames: Frames, word: str) -> str:
    """What was shown of a word, in one sentence without names and numbers of heads."""
    pairs = of_word(frames["words"], word)
    if not pairs["ranked"].any():
        return f"These sentences do not show that the vector of “{word}” in this model tells its meanings apart."
    opening = (
        "As far as a few sentences can tell, in this model"
        if pairs["exploratory"].any()
        else "In this model"
    )
    heads, changes = (
        resolvers(frames, word),
        f"{opening} the vector of “{word}” changes with its meaning",
    )
    if all(confounders(pair) for pair in pairs[pairs["ranked"]].to_dict("records")):
        return f"{changes}, but also with something that has no meaning: what brings it about cannot be told."
    if not heads:
        return f"{changes}, but no single attention head was shown to bring that about."
    way = f"{_plain_way(frames, word, heads)}{_where(frames, pairs, word)}"
    return f"{opening} the word “{word}” {_origin(frames, pairs, word)}, {way}."


def _origin(frames: Frames, pairs: pd.DataFrame, word: str) -> str:
    """What gives the word its meaning, as far as the design of the study shows it."""
    if any(
        gap_at(frames["depth"], word, senses_of(pair), depth=-1) != 0
        for pair in pairs.to_dict("records")
    ):
        return "changes its meaning with the sentence"
    causal = bool(pairs["causal"].all())
    return f"gets its meaning from {_credited(frames, pairs, word) or f'the words {_BESIDE[causal][0]} it'}"


_BESIDE = {
    True: ("before", "an earlier word", "an earlier word that"),
    False: ("around", "another word", "a word that"),
}


def _credited(frames: Frames, pairs: pd.DataFrame, word: str) -> str:
    """The words that are shown to give the meaning, with one of each sense; empty where none is.

    Only where sentences are aligned and a resolver has half of its effect or more from these words
    alone: from the marked cue (`cue_only`), else from the other words in which the sentences of a
    pair differ (`other_only`).
    """
    if not (pairs["pair_design"] == ALIGNED).all():
        return ""
    routes = (
        of_word(frames["head_parts"], word)
        .groupby(["layer", "head"])[["cue_only", "other_only"]]
        .mean()
    )
    shares = [
        (head["swap"], routes.loc[(head["layer"], head["head"])])
        for head in resolvers(frames, word)
    ]
    _, cue, other = _BESIDE[bool(pairs["causal"].all())]
    sentences = of_word(frames["sentences"], word)
    marks = sentences["cue_start"].notna().any()
    unmarked = f"{other} is not the marked cue" if marks else cue
    for route, who in (("cue_only", cue), ("other_only", unmarked)):
        if any(share[route] >= max(MOST_OF_IT * effect, SMALLEST) for effect, share in shares):
            told = _differing(
                sentences, senses_of(pairs.iloc[0].to_dict()), marked=route == "cue_only"
            )
            return f"{who}, such as “{told[0]}” or “{told[1]}”" if told else ""
    return ""


def _differing(
    sentences: pd.DataFrame, senses: tuple[str, str], *, marked: bool
) -> tuple[str, str] | None:
    """The cues of the first pair of sentences or, without `marked`, another word in which its two
    members differ."""
    for _, group in sentences[sentences["part"].eq("tested")].groupby("pair", sort=False):
        members = [group[group["sense"] == sense].to_dict("records") for sense in senses]
        if all(members):
            told = [
                _words_apart(one[0], other[0], marked=marked)
                for one, other in (members, members[::-1])
            ]
            if all(told):
                return told[0], told[1]
    return None


def _words_apart(row: Row, other: Row, *, marked: bool) -> str:
    """The cue of a sentence, or the first other word that its partner has not at this place; empty
    where none."""
    text = str(row["text"])
    cue: str = (
        "" if pd.isna(row["cue_start"]) else text[int(row["cue_start"]) : int(row["cue_end"])]
    )
    if marked:
        return cue
    apart = (
        mine
        for mine, theirs in zip(text.split(), str(other["text"]).split(), strict=False)
        if mine != theirs
    )
    return next((bare for part in apart if (bare := part.strip(PUNCTUATION)) != cue), "")


def leading_way(frames: Frames, word: str) -> tuple[list[Row], bool]:
    """The heads of the way from the cue over which half of the gap or more goes, one after the
    other, if each of its edges passed its test; and whether nearly all goes by ways over these
    heads.
    """
    rows = of_word(frames["paths"], word).dropna(subset="receiver_head")
    rows = rows.rename(columns={"receiver_layer": "layer", "receiver_head": "head"})
    shown = rows[(rows["path"] == 0) & (rows["share"] >= MOST_OF_IT) & (rows["p"] < LEVEL)]
    chain: list[Row] = shown[["layer", "head"]].drop_duplicates().to_dict("records")
    others = set(names_of(rows)) - set(names_of(chain))
    return chain, not others and bool((shown["together"] >= NEARLY_ALL).any())


def _plain_way(frames: Frames, word: str, heads: Sequence[Row]) -> str:
    """Through how many heads of which layers: the smallest set that is enough, if of resolvers;
    else, in part, all."""
    chain, all_of_it = leading_way(frames, word)
    if len(chain) > 1:
        number = counted(len(chain), "attention head", words=True).lower()
        how = f"by way of {number}, one after the other, in {_layers(frames, chain)}"
        return how if all_of_it else f"in part {how}"
    smallest = smallest_set(frames, word)
    enough = (
        [] if smallest is None else [head for head in heads if head_name(head) in smallest.names]
    )
    whole = smallest is not None and len(enough) == len(smallest.names)
    mostly, shown = (
        ("mostly " if len(enough) < len(heads) else "", enough) if whole else ("in part ", heads)
    )
    number = counted(len(shown), "attention head", words=True).lower()
    return f"{mostly}by way of {number} in {_layers(frames, shown)}"


def _layers(frames: Frames, heads: Sequence[Row]) -> str:
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
    rows = of_word(frames["heads"], word)
    rows = rows[rows["verdict"] == "resolver"]
    shown = len(rows[["sense_a", "sense_b"]].drop_duplicates()) if len(pairs) > 1 else 1
    return (
        "" if shown == len(pairs) else f" (shown for {shown} of its {len(pairs)} pairs of meanings)"
    )
