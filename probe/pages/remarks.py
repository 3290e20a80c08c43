"""Remarks around a report's answers: its first screen, the certificate, late cues, where single
words stand, an answer's evidence.

What a line of the first screen says holds verdicts and counts, no p and no unit that must be looked
up; a percentage is of the way from one meaning of the word to the other.
"""

import math
from collections.abc import Sequence

import pandas as pd

from probe.charts import of_word
from probe.evidence.columns import LEADERS
from probe.evidence.material import LATE
from probe.pages.answers import confounders, plain
from probe.pages.rows import (
    Frames,
    Row,
    head_name,
    heads_of,
    in_no_order,
    leaders,
    names_of,
    resolvers,
    words_of,
)
from probe.stats.numbers import (
    NARROW,
    counted,
    decimal,
    grouped,
    listed,
    p_value,
    percent,
    scientific,
)
from probe.stats.verdicts import GATE, LEVEL
from probe.stats.verdicts import SMALLEST as MOVES

NAMED = 4  # heads that the sentence across all words names


def across(frames: Frames, words: Sequence[str]) -> str:
    """Which heads were shown to resolve every word, in the order of the first one; or for which
    words none was.

    Of a single word, its first sentence. Where a word is exploratory, it says so.
    """
    if len(words) == 1:
        return plain(frames, words[0])
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
    every_word = (
        "both words"
        if len(words) == 2
        else f"all {counted(len(words), 'word', words=True).lower()}"
    )
    shared = [name for name in shown[words[0]] if all(name in shown[word] for word in words)]
    if not shared:
        return f"No single head was shown to move {every_word}: each has heads of its own."
    heads = "head" if len(shared) == 1 else counted(len(shared), "head", words=True).lower()
    moves, names = "moves" if len(shared) == 1 else "move", listed(shared[:NAMED])
    if len(shared) > NAMED:
        return f"The same {heads} {moves} {every_word}, {names} among them."
    return f"The same {heads}, {names}, {moves} {every_word}."


def cautions(frames: Frames, model_name: str, origin: str) -> list[str]:
    """What a reader should know before the answer: the model, surface forms, words in pieces, cues
    that come late."""
    grammar = f"{model_name} learned from a grammar: it shows how the method works, not how English is read."
    said = [grammar] if origin == "embedded" else []
    for word in words_of(frames):
        sentences = of_word(frames["sentences"], word)
        spans = zip(sentences["text"], sentences["start"], sentences["end"], strict=True)
        forms = pd.Series(
            [text[int(start) : int(end)] for text, start, end in spans]
        ).value_counts()
        if len(forms) > 1:  # which a model need not read alike
            told = ", ".join(f"“{form}” ({count})" for form, count in forms.items())
            said.append(
                f"“{word}” stands in {len(forms)} forms, each a token of its own to the model: {told}."
            )
        if sentences["cue_start"].isna().all():
            unit = "sentence" if sentences["pair"].isna().all() else "pair of sentences"
            said.append(
                f"No cue is marked in the sentences of “{word}”, so every {unit} counts as a cue word of its own: "
                "where several have the same cue, tests are surer than they should be."
            )
        if cut := int((sentences["tokens_of_word"] > 1).sum()):
            every = len(sentences)
            said.append(
                f"“{word}” is cut into pieces in {cut} of {every} sentences and read at the last one."
            )
        if late := int(of_word(frames["left_out"], word)["reason"].eq(LATE).sum()):
            which = "sentence is" if late == 1 else "sentences are"
            said.append(
                f"{late} {which} left out because the cue comes after “{word}”, and this model reads left to right."
            )
    return said


def sure(frames: Frames, word: str) -> str:
    """How sure the leading heads of a word are: which were confirmed, on how much, and what else
    might explain them."""
    pairs = of_word(frames["words"], word)
    if not pairs["ranked"].any():
        return "Not shown: in these sentences the meanings could not be told apart at the word, so no head is ranked."
    apart = pairs[pairs["ranked"]].to_dict("records")
    if without := list(dict.fromkeys(what for pair in apart for what in confounders(pair))):
        return f"Not clear: the meanings can also be told apart {listed(without)}."
    few = "A first look at few sentences. " * bool(pairs["exploratory"].any())
    first = leaders(frames, word)
    overlaps = "".join(f" {names} are in no order." for names in in_no_order(first))
    return f"{few}{_confirmed(names_of(first), names_of(resolvers(frames, word)), pairs)}{overlaps}"


def _confirmed(first: list[str], shown: list[str], pairs: pd.DataFrame) -> str:
    """Which of the leading heads are among those shown to resolve the word, or which others are;
    and on how much."""
    among, missed = (
        [name for name in first if (name in shown) == wanted] for wanted in (True, False)
    )
    if not shown:
        return "Not confirmed: no head passes every test."
    which = "All confirmed"
    if not among:
        others = listed(shown) if len(shown) <= LEADERS else counted(len(shown), "other")
        which = f"None of these confirmed, but {others} {'is' if len(shown) == 1 else 'are'}"
    elif missed:
        which = f"{listed(among)} confirmed, {listed(missed)} not"
    swapped, cues = (int(pairs.loc[pairs["ranked"], name].min()) for name in ("pairs", "cue_words"))
    each = (
        "" if len(pairs) == 1 else " for each pair of meanings"
    )  # of several pairs of senses, the fewest
    amount = f"{counted(swapped, 'pair')} of sentences ({counted(cues, 'pair')} of cue words){each}"
    return f"{which}, on {amount}, read along axes fitted without them."


def agreement(certificate: pd.DataFrame) -> str:
    """The certificate in a sentence: how many comparisons, and the worst of them."""
    worst = certificate.nlargest(1, "error").to_dict("records")[0]
    where = worst.get(
        "where", "the whole model" if pd.isna(worst["layer"]) else f"layer {worst['layer']}"
    )
    held = int(certificate["ok"].sum())
    if held < len(certificate):
        wrong = f"{len(certificate) - held} of {len(certificate)} differences"
        return f"{wrong} between the hooked model and the from-scratch math are too large."
    return (
        f"The hooked model and the from-scratch math agree: the largest of {len(certificate)} differences is "
        f"{scientific(worst['error'])} of its scale ({worst['quantity']}, {where}), "
        f"allowed {scientific(worst['tolerance'])}."
    )


def unpaired(sentences: pd.DataFrame) -> int:
    """Number of a word's sentences whose pair no sentence of another sense names, so that they
    cannot be swapped."""
    partners = sentences.groupby("pair")["sense"].transform("nunique")
    return int((partners == 1).sum())


def later_words(row: Row) -> str:
    """What a causal model can have made of a cue that comes after the word, with the measured
    difference."""
    cue = f"“{row['cue']}” comes" if row["cue"] else "What tells the sense comes"
    return (
        f"{cue} after the word: a causal model cannot have resolved the word by it. Measured: with everything after "
        "the word removed, no head's write at the word changes by more than "
        f"{scientific(row['difference'])} of the largest ΔE."
    )


def second_model(row: Row) -> str:
    """The nearest sense at the word in a model that reads beyond it, and the words and heads that
    this depends on."""
    said = (
        f"At the word it is {_nearest(row)}). Without what comes after the word, what its heads write there "
        f"changes by up to {percent(row['difference'])} of the largest ΔE."
    )
    if not row["shown"]:
        return f"{said} These senses were not shown to be apart in this model, so this is no better than a guess."
    if not bool(pd.notna(row["share"])):
        return said
    marked = bool(pd.notna(row["cue_share"]))
    without = decimal(row["coordinate"] * (1 - row["share"]))
    told = f"Of single words “{row['source']}” counts most. Coordinate with it hidden: {without}"
    if marked and row["cue"] != row["source"]:
        told += (
            f"; with “{row['cue']}” hidden: {decimal(row['coordinate'] * (1 - row['cue_share']))}"
        )
    if marked:
        alone, nothing = (decimal(row[name]) for name in ("cue_alone", "nothing"))
        told += f"; with “{row['cue']}” as the only other word: {alone}; with none: {nothing}"
    through = f"Through which heads “{row['source']}” acts, in per cent of the coordinate that is lost without each"
    return f"{said} {told}. {through}: {row['through']}."


def _nearest(row: Row) -> str:
    right = "as meant" if row["reads_as"] == row["sense"] else f"although {row['sense']} is meant"
    return f"nearest to {row['reads_as']}, {right} (coordinate {decimal(row['coordinate'])}"


def reading(row: Row, ranked: bool) -> str:
    """The nearest sense at the word, and where the word stands between two senses."""
    ends = f"from −0.50 for {row['sense_b']} to 0.50 for {row['sense_a']}"
    guess = (
        " The senses were not shown to be apart in this model, so this is no better than a guess."
    )
    return f"At the word the model is {_nearest(row)}, {ends}).{'' if ranked else guess}"


MOSTLY = 0.6  # of a head's attention: more than on the cue and all other tokens together


def evidence(frames: Frames, word: str) -> list[str]:
    """The evidence of an answer in a few sentences: the tests, where the heads look, what the other
    heads are."""
    heads = resolvers(frames, word)
    if heads_of(frames, word).empty:
        return []
    looks, follows = _attention(heads[:LEADERS]), _continued(frames, word)
    return [
        *_tests(frames, word, heads),
        *follows,
        *looks,
        *_others(frames, word, heads),
        *_behind(frames, word),
    ]


def _behind(frames: Frames, word: str) -> list[str]:
    """Where the heads behind the read-out were read; nothing where it is after the last layer."""
    depth, last = (
        int(of_word(frames["words"], word)["depth"].iloc[0]),
        int(frames["heads"]["layer"].max()),
    )
    if depth > last:
        return []
    read = f"read after layer {depth - 1}, the first that tells the senses apart as well as any"
    upto, behind = _layers(0, depth - 1), _layers(depth, last)
    return [
        f"What the heads of {upto} do is {read}; what those of {behind} do, after the last layer."
    ]


def _layers(first: int, last: int) -> str:
    return f"layer {last}" if first == last else f"layers {first} to {last}"


def _tests(frames: Frames, word: str, heads: Sequence[Row]) -> list[str]:
    """What was shown of the resolvers: that they move the word, that this is read, that they
    separate; and for how many heads and pairs of senses at once.
    """
    if not heads:
        return []
    mine = of_word(frames["heads"], word).dropna(subset="net")
    rows = mine[mine["verdict"] == "resolver"]
    family = counted(len(mine[["layer", "head"]].drop_duplicates()), "head")
    pairs = counted(len(mine[["sense_a", "sense_b"]].drop_duplicates()), "pair")
    said = (
        f", and what the model says next ({_largest(rows['p_next_token'])})"
        if rows["p_next_token"].notna().all()
        else ""
    )
    who = "It moves" if len(heads) == 1 else "Each moves"
    moves = f"{who} the word beyond a same-sense swap ({_largest(rows['p_swap'])}){said}."
    return [
        moves,
        _separate(rows),
        f"Tests are corrected for {family} and {pairs} of senses together.",
    ]


CONTINUED = "the lexicon's continuations"


def _continued(frames: Frames, word: str) -> list[str]:
    """Where the logits of the lexicon's continuations say something else than the sense coordinate;
    nothing elsewhere.

    Of the pairs of senses whose heads were swapped.
    """
    pairs = of_word(frames["words"], word)
    pairs = pairs[pairs["ranked"]]
    silent, said = pairs[pairs["continuation_p"] >= GATE], []
    if len(silent):
        which = (
            "the senses"
            if len(pairs) == 1
            else f"the senses of {counted(len(silent), 'such pair')}"
        )
        preferred = f"the model was not shown to prefer {CONTINUED} of the sense that is meant"
        said.append(f"After the word {preferred}, although {which} are apart.")
    rows = of_word(frames["heads"], word).dropna(subset="p_continuation")
    moves = (rows["p_continuation"] < LEVEL) & (rows["continuation"] >= MOVES)
    if unmoved := names_of(rows[~moves & (rows["verdict"] == "resolver")]):
        where = "" if len(pairs) == 1 else " for every pair of senses"
        verb = MOVED[len(unmoved) > 1]
        said.append(f"That {listed(unmoved)} also {verb} {CONTINUED} was not shown{where}.")
    resolving = names_of(resolvers(frames, word))
    if others := [name for name in names_of(rows[moves]) if name not in resolving]:
        verb = MOVED[len(others) > 1]
        said.append(f"Not shown to resolve the word, {listed(others)} {verb} {CONTINUED}.")
    return said


def _separate(rows: pd.DataFrame) -> str:
    """How well what the resolvers write separates the senses, and of which of them this was not
    shown."""
    clear, silent = rows[rows["p_auroc"] < LEVEL], rows[rows["p_auroc"] >= LEVEL]
    writes = "each writes" if len(rows[["layer", "head"]].drop_duplicates()) > 1 else "it writes"
    if clear.empty:
        return f"That what {writes} separates the senses was not shown."
    auroc = decimal(float(clear["auroc"].min()))
    bound = f"AUROC {auroc} or more" if len(clear) > 1 and float(auroc) < 1 else f"AUROC {auroc}"
    names = listed(names_of(silent))
    unless = f"; this was not shown of {names} for every pair of senses" if names else ""
    return f"What {writes} separates the senses in sentences held out ({bound}, {_largest(clear['p_auroc'])}){unless}."


def _largest(p: pd.Series) -> str:
    return f"max-T {p_value(float(p.max()))}".replace("p = ", "p ≤ " if len(p) > 1 else "p = ")


def _attention(heads: Sequence[Row]) -> list[str]:
    """Where the leading heads look from the word; nothing where the sentences mark no cue."""
    if not heads or any(pd.isna(head["attention_cue"]) for head in heads):
        return []
    first, *rest = [(head_name(head), percent(head["attention_cue"])) for head in heads]
    told = [
        f"{first[0]} gives {first[1]} of its attention to the cue",
        *(f"{name} {share}" for name, share in rest),
    ]
    return [f"From the word, {listed(told)}.", *_onward(heads)]


def _onward(heads: Sequence[Row]) -> list[str]:
    """Heads that look at the word and not at the cue: what they move, others have brought there."""
    onward = [
        head
        for head in heads
        if head["attention_itself"] > MOSTLY and head["attention_cue"] < 1 - MOSTLY
    ]
    if not onward:
        return []
    names, looks = listed(names_of(onward)), "looks" if len(onward) == 1 else "look"
    least = percent(min(head["attention_itself"] for head in onward))
    or_more = " or more" if len(onward) > 1 else ""
    return [
        f"{names} {looks} at the word itself ({least}{or_more}), at what layers below have brought there."
    ]


SHORT, OVER = (
    0.5,
    1.5,
)  # of the net effect: what the head itself writes, where that calls for a word
CLOSE = 0.2  # of a head's attention: less is not looking at the cue


def numbers_apart(head: Row) -> str:
    """Why a head's effect, its own write and its attention to the cue are not one number; empty
    where they agree."""
    if head["net"] < MOVES or head["net_low"] <= 0:
        return ""
    net, own, said = percent(head["net"]), percent(head["direct"]), []
    if head["direct"] < SHORT * head["net"]:
        said.append(
            f"It moves the word {net} of the way and itself writes {own}: what comes after it adds the rest."
        )
    elif head["direct"] > OVER * head["net"]:
        said.append(
            f"It writes {own} of the way and moves the word {net}: what comes after it takes part of it back."
        )
    if head["attention_cue"] < CLOSE:
        cue = percent(head["attention_cue"])
        said.append(
            f"It hardly looks at the cue ({cue} of its attention): what it moves came by way of other tokens, or of "
            "heads below it."
        )
    return " ".join(said)


MOVED, WRITES = ("moves", "move"), ("writes", "write")
WHAT = {
    "position-explained": (MOVED, "the word by the token beside it, whatever that is"),
    "confounded": (MOVED, "the word, which something without meaning tells apart as well"),
    "opposes": (MOVED, "the word the wrong way"),
    "backup": (("stands", "stand"), "in for another head: swapping both moves the word further"),
    "erased": (WRITES, "much of the difference, which later layers take away"),
    "suggestive": (MOVED, f"the word by {percent(MOVES)} or more, which is not confirmed"),
    "carrier": (WRITES, "something that was not shown to be read"),
}
BESIDE = (
    "the word, but every cue stands beside it: whether it reads the cue or the place cannot be told"
)


def _others(frames: Frames, word: str, heads: Sequence[Row]) -> list[str]:
    """What the heads that do not resolve were shown to be, and how little all of them do."""
    rows = heads_of(frames, word)
    rest = rows[rows["verdict"] != "resolver"]
    if rest.empty:
        return []
    distances = of_word(frames["distances"], word)["distance"]  # of a cue from the word, in tokens
    apart = bool((distances > 1).any())
    told = [_kind(rest, name, apart=apart) for name in WHAT if name in set(rest["verdict"])]
    if nothing := int((rest["verdict"] == "none").sum()):
        told.append(f"of {nothing} nothing was shown")
    bound = max(
        math.ceil(round(100 * float(rest[["net_low", "net_high"]].abs().max().max()), 6)), 1
    )
    number, noun, every = (
        ("one", "head", "") if len(rest) == 1 else (str(len(rest)), "heads", "all ")
    )
    who, within = f"{number} {'other ' if heads else ''}{noun}", f"{every}within ±{bound}{NARROW}%."
    if nothing == len(rest):
        return [f"Of the {who} nothing was shown; {within}"]
    return [f"The {who}: {listed(told)}; {within}"]


def _kind(rest: pd.DataFrame, name: str, *, apart: bool) -> str:
    """The heads of one verdict: carriers by their number, rarer kinds by name where they are few."""
    heads = names_of(rest[rest["verdict"] == name])
    few = len(rest) == 1 or (name != "carrier" and len(heads) <= LEADERS)
    who = listed(heads) if few else str(len(heads))
    verbs, what = WHAT[name]
    said = BESIDE if name == "position-explained" and not apart else what
    return f"{who} {verbs[len(heads) > 1]} {said} ({name})"


def scope(frames: Frames) -> str:
    """What was swapped, on how much, what was not looked at, and for how many tests at once p
    values are corrected."""
    words, heads = frames["words"], len(frames["heads"][["layer", "head"]].drop_duplicates())
    swapped = words[words["ranked"]]
    if swapped.empty:
        return "Nothing was swapped, because no word was shown to have a gap between its senses."
    least, several = (
        swapped[["sentences_report", "cue_words"]].min(),
        "at least " * (len(swapped) > 1),
    )
    names, pairs = swapped["word"].unique(), swapped.groupby("word").size().max()
    others = f", not for the number of words ({len(names)})" if len(names) > 1 else ""
    return (
        f"Swapped: the output of each of {heads} heads at the word, one head at a time, between sentences of two "
        f"senses ({several}{grouped(int(least['sentences_report']))} sentences held out, {several}"
        f"{counted(int(least['cue_words']), 'pair')} of cue words). Not swapped for these numbers: any other "
        "position than the word. Tests are corrected for the heads and pairs of senses of a word (up to "
        f"{grouped(heads * int(pairs))} tests){others}."
    )
