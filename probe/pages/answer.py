"""The answer to "which heads resolve this word?": a few sentences and one table, for the page, the
terminal and the notebook alike.

The sentence says no more than the verdicts do. It is for a reader who has never heard of a head's
name: an earlier word is said to give the meaning only where the record credits one, and "the words
before it" are where the word itself is the same vector in every sentence. Of a model that reads
both ways it is "another word" and "the words around it". Where something without meaning tells the
senses apart as well, nobody is credited.

What follows it says whether this is ambiguity: how far the word changes beside nouns of one meaning
in its place, and which of the heads do more for the word than for these nouns, and so resolve it.
Where the word was not shown to change further, or was not compared, its heads move it and no more
is said of them; where it was not compared, the next step is named.

Each row of the table is a word with its first heads and how sure this is. It holds verdicts and
counts, no p and no unit that must be looked up; a percentage is of the way from one meaning of the
word to the other.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe.experiments.run import LEADERS
from probe.inference.nouns import TOO_FEW_NOUNS
from probe.results.findings import MOVERS, BesideNouns, CreditedCue, HeadFinding, WordFindings
from probe.results.frames import NOT_ASKED_FOR
from probe.stats.limits import LEVEL
from probe.stats.numbers import counted, listed, percent

NAMED = 4  # heads that the sentence over all words names
FEW_LAYERS = 3  # layers that are named one by one
TENTHS = 5  # up to so many times as far a tenth is said, beyond it would be mostly noise
FAR = 20  # times as far: from here on the nouns hardly change, and their number is mostly noise
TIMES = {1: "as far", 2: "twice as far", 3: "three times as far", 4: "four times as far"}
COMPARISONS = ("same", "more", "less")  # with nouns of one meaning, in the order they are told
CONFOUNDER_WORDS = {
    "untrained": "by the same model with random weights",
    "nuisance": "by where the word or its cue stands in the text or how long the text is",
}


@dataclass(frozen=True)
class AnswerRow:
    """One word of the answer: its sentence, whether it is ambiguity (`beside_nouns`), its first
    heads, and how sure these are."""

    word: str
    index: int
    sentence: str
    beside_nouns: str
    heads: tuple[HeadFinding, ...]
    certainty: str


@dataclass(frozen=True)
class Answer:
    """The question, the sentence that answers it over all words, and a row for each word."""

    question: str
    headline: str
    rows: tuple[AnswerRow, ...]


def answer(findings: Mapping[str, WordFindings]) -> Answer:
    """The answer for all words of a study."""
    rows = tuple(
        AnswerRow(
            word=word,
            index=finding.index,
            sentence=sentence(finding),
            beside_nouns=beside_nouns(finding),
            heads=finding.leaders,
            certainty=certainty(finding),
        )
        for word, finding in findings.items()
    )
    return Answer(question(list(findings)), headline(list(findings.values())), rows)


def question(words: Sequence[str]) -> str:
    """The question that a study of these words answers."""
    return f"Which heads resolve {listed(list(words))}?"


def headline(findings: Sequence[WordFindings]) -> str:
    """Which heads were shown to move every word, in the order of the first one, or for which words
    none was, and whether that is ambiguity; of a single word, its own sentence, which its
    `beside_nouns` follows."""
    if len(findings) == 1:
        return sentence(findings[0])
    shared = _shared_movers(findings)
    text = _over_all_words(findings, shared)
    if any(finding.exploratory for finding in findings):
        text = f"As far as a few sentences can tell: {text[0].lower()}{text[1:]}"
    sentences = [text, _resolved(findings), _ambiguity_of_all(findings, shared)]
    return " ".join(sentence for sentence in sentences if sentence)


def _resolved(findings: Sequence[WordFindings]) -> str:
    """Which heads were shown to resolve which of the words that heads move, or that none was."""
    moved = [finding for finding in findings if finding.movers]
    if not moved:
        return ""
    resolved = [
        f"{_first_names(finding)} for “{finding.word}”" for finding in moved if finding.resolvers
    ]
    if not resolved:
        return "None was shown to resolve a word: to do more for it than for other nouns."
    return f"Shown to resolve a word, with more for it than for other nouns: {'; '.join(resolved)}."


def _first_names(finding: WordFindings) -> str:
    """The first heads that resolve a word, and how many others do."""
    names = [head.name for head in finding.resolvers[:NAMED]]
    others = len(finding.resolvers) - len(names)
    return listed([*names, counted(others, "other")] if others else names)


def _shared_movers(findings: Sequence[WordFindings]) -> list[str]:
    """The names of the heads that were shown to move every word, in the order of the first one."""
    names_by_word = [[head.name for head in finding.movers] for finding in findings]
    return [name for name in names_by_word[0] if all(name in names for names in names_by_word)]


def _over_all_words(findings: Sequence[WordFindings], shared: Sequence[str]) -> str:
    moved = [finding for finding in findings if finding.movers]
    if not moved:
        return "No single head was shown to move any of these words."
    if len(moved) < len(findings):
        unmoved = [finding for finding in findings if not finding.movers]
        return f"Single heads were shown to move {_quoted(moved)}; for {_quoted(unmoved)} none was."
    every_word = _every_word(findings)
    if not shared:
        return f"No single head was shown to move {every_word}: each has heads of its own."
    if len(shared) == 1:
        return f"The same head, {shared[0]}, moves {every_word}."
    leading = [head.name for head in findings[0].leaders]
    if len(leading) > 1 and all(_leads(leading, finding) for finding in findings):
        number = counted(len(leading), "head", words=True).lower()
        return f"The same {number}, {listed(leading)}, lead for {every_word}{_how_few(findings)}."
    heads = counted(len(shared), "head", words=True).lower()
    names = listed(list(shared[:NAMED]))
    if len(shared) > NAMED:
        return f"The same {heads} move {every_word}, {names} among them."
    return f"The same {heads}, {names}, move {every_word}."


def _leads(names: Sequence[str], finding: WordFindings) -> bool:
    """Whether these heads are the leading ones of a word, and all of them were shown to move it."""
    movers = {head.name for head in finding.movers}
    return {head.name for head in finding.leaders} == {*names} <= movers


def _how_few(findings: Sequence[WordFindings]) -> str:
    """How much the smallest sets keep of the way between the meanings, beside the best random set;
    nothing where a word has none, or a random set does as well."""
    sets = [(finding.smallest_set, finding.random_sets) for finding in findings]
    if not all(few and drawn and drawn.best < few.faithfulness for few, drawn in sets):
        return ""
    kept = [few.faithfulness for few, _ in sets if few]
    best = max(drawn.best for _, drawn in sets if drawn)
    names = [few.names for few, _ in sets if few]
    drawn_at_random = "of as many heads drawn at random, the best draw keeps"
    if max(map(len, names)) == 1:
        drawn_at_random = "of single heads drawn at random, the best keeps"
    shares = f"{100 * min(kept):.0f} to {percent(max(kept))}"
    if percent(min(kept)) == percent(max(kept)):
        shares = percent(max(kept))
    return (
        f": {_who_keeps(names)} {shares} of the way between the meanings when every other head is "
        f"swapped; {drawn_at_random} {percent(best)}"
    )


def _who_keeps(names_by_word: Sequence[Sequence[str]]) -> str:
    """The heads of the smallest sets, by name where they are a few and the same for every word,
    else by how many they are."""
    first = names_by_word[0]
    if len(first) <= NAMED and all({*names} == {*first} for names in names_by_word):
        return f"{listed(list(first))} {'alone keeps' if len(first) == 1 else 'together keep'}"
    fewest, *_, most = sorted(names_by_word, key=len)
    if len(most) == 1:
        return "the first head of each word alone keeps"
    heads = counted(len(most), "head", words=True).lower()
    if len(fewest) < len(most):
        heads = f"{_number(fewest)} to {heads}"
    return f"the first {heads} of each word together keep"


def _every_word(findings: Sequence[WordFindings]) -> str:
    if len(findings) == 2:
        return "both words"
    return f"all {counted(len(findings), 'word', words=True).lower()}"


def _ambiguity_of_all(findings: Sequence[WordFindings], shared: Sequence[str]) -> str:
    """Which of the words whose senses are apart change further than nouns of one meaning in their
    place, and which of the heads that move all of them do more for each."""
    ranked = [finding for finding in findings if finding.ranked]
    further = [finding for finding in ranked if finding.beside_nouns.passed]
    not_asked = [finding for finding in ranked if not finding.beside_nouns.pairs]
    as_far = [finding for finding in ranked if finding not in (*further, *not_asked)]
    sentences = []
    if further:
        who = _every_word(findings) if len(further) == len(findings) else _quoted(further)
        change = "changes" if len(further) == 1 else "change"
        which = _which_do_more(further, shared) if len(further) == len(findings) else ""
        how_far = _times_of_all([finding.beside_nouns for finding in further])
        sentences.append(
            f"In the same sentences {who} {change} {how_far} nouns of one meaning{which}."
        )
    if as_far:
        are = "is" if len(as_far) == 1 else "are"
        place = "its place" if len(as_far) == 1 else "their place"
        sentences.append(
            f"That {_quoted(as_far)} {are} resolved as ambiguous was not shown: nouns of one "
            f"meaning change as far in {place}."
        )
    if not_asked:
        were = "was" if len(not_asked) == 1 else "were"
        sentences.append(f"{_quoted(not_asked)} {were} not compared with nouns of one meaning.")
    return " ".join(sentences)


def _times_of_all(words: Sequence[BesideNouns]) -> str:
    """How far words change beside nouns: “1.9 to 3.1 times as far as”, “further than” where a
    number would be mostly noise."""
    times = [about.times_as_far for about in words]
    if len(words) == 1 or not all(one < FAR for one in times):
        return "further than"
    least = _rounded(min(times))
    most = _rounded(max(times))
    if least == most:
        return _times(least)
    return f"{least:g} to {most:g} times as far as"


def _which_do_more(findings: Sequence[WordFindings], shared: Sequence[str]) -> str:
    """The heads that move every word and do more for each than for nouns of one meaning."""
    more = []
    for name in shared:
        heads = [head for finding in findings for head in finding.movers if head.name == name]
        if all(head.comparison == "more" for head in heads):
            more.append(name)
    if not more:
        return ""
    does = "does" if len(more) == 1 else "do"
    return f", and {listed(more)} {does} more for each of them"


def _quoted(findings: Sequence[WordFindings]) -> str:
    return listed([f"“{finding.word}”" for finding in findings])


def sentence(finding: WordFindings) -> str:
    """What was shown of a word, in one sentence without names and numbers of heads."""
    word = finding.word
    if not finding.ranked:
        return (
            f"These sentences do not show that the vector of “{word}” in this model tells its "
            "meanings apart."
        )
    opening = "In this model"
    if finding.exploratory:
        opening = "As far as a few sentences can tell, in this model"
    # A noun of one meaning changes with its context, too: only beyond that is it the meaning.
    what = "meaning" if finding.beside_nouns.passed else "context"
    changes = f"{opening} the vector of “{word}” changes with its {what}"
    if finding.all_confounded:
        return (
            f"{changes}, but its sentences differ in more than meaning: they can also be told "
            f"apart {_by(finding.confounders)}. Sentences in pairs that differ in the cue alone "
            "would decide what brings it about."
        )
    if not finding.movers:
        return f"{changes}, but no single attention head was shown to bring that about."
    how = f"{_origin(finding)}, {_heads_between(finding)}{_where(finding)}"
    return f"{opening} the word “{word}” {how}."


def _origin(finding: WordFindings) -> str:
    """What gives the word its meaning, or only changes it, as far as the design of the study shows
    it."""
    if not finding.same_token:
        if finding.resolvers:
            return "changes its meaning with the sentence"
        return "changes with the sentence"
    takes = "gets its meaning from" if finding.resolvers else "is changed by"
    cue = finding.credited_cue
    if cue is not None and cue.examples is not None:
        one, other = cue.examples
        return f"{takes} {_name_of_cue(finding, cue)}, such as “{one}” or “{other}”"
    side = "before" if finding.causal else "around"
    return f"{takes} the words {side} it"


def _name_of_cue(finding: WordFindings, cue: CreditedCue) -> str:
    if cue.marked or not finding.cautions.cue_marked:
        return "an earlier word" if finding.causal else "another word"
    earlier = "an earlier word that" if finding.causal else "a word that"
    return f"{earlier} is not the marked cue"


def _heads_between(finding: WordFindings) -> str:
    """Through how many heads of which layers: those of the leading path, or the smallest set that
    is enough where all of it moves the word; else, in part, all heads that do."""
    path = finding.leading_path
    if path is not None and len(path.names) > 1:
        part = "" if path.nearly_all else "in part "
        number = _heads_in_words(len(path.names))
        where = _layers(path.layers, finding.layers)
        return f"{part}by way of {number}, one after the other, in {where}"
    heads = finding.movers
    part = "in part "
    if finding.smallest_set is not None:
        enough = [head for head in heads if head.name in finding.smallest_set.names]
        if len(enough) == len(finding.smallest_set.names):
            part = "mostly " if len(enough) < len(heads) else ""
            heads = tuple(enough)
    where = _layers([head.layer for head in heads], finding.layers)
    return f"{part}by way of {_heads_in_words(len(heads))} in {where}"


def _heads_in_words(number: int) -> str:
    return counted(number, "attention head", words=True).lower()


def _layers(layers: Sequence[int], number_of_layers: int) -> str:
    used = sorted(set(layers))
    if number_of_layers == 1:
        return "its only layer"
    if len(used) == number_of_layers > 2:
        return f"all of its {number_of_layers} layers"
    if len(used) > FEW_LAYERS:
        return f"{len(used)} of its {number_of_layers} layers"
    names = listed([str(layer) for layer in used])
    return f"{'layer' if len(used) == 1 else 'layers'} {names} (of 0 to {number_of_layers - 1})"


def _where(finding: WordFindings) -> str:
    """For how many of the word's pairs of meanings that was shown, where it is not for all."""
    number = len(finding.pairs)
    if number == 1 or finding.pairs_moved == number:
        return ""
    return f" (shown for {finding.pairs_moved} of its {number} pairs of meanings)"


def certainty(finding: WordFindings) -> str:
    """How sure the leading heads of a word are: which were confirmed, on how much, and what else
    might explain them."""
    if not finding.ranked:
        return (
            "Not shown: in these sentences the meanings could not be told apart at the word, so no "
            "head is ranked."
        )
    if finding.confounders:
        return f"Not clear: the meanings can also be told apart {_by(finding.confounders)}."
    few = "Exploratory, for the sentences are few. " if finding.exploratory else ""
    return f"{few}{_confirmed(finding)}{_no_order(finding)}{_behind_the_gate(finding)}"


def _no_order(finding: WordFindings) -> str:
    """Between which leading heads there is no order: those whose ranks overlap, and those whose
    effects are read at another depth."""
    at_end = [head.name for head in finding.leaders if head.at_end]
    sentences = []
    for group in finding.rank_groups:
        early = [name for name in group if name not in at_end]
        late = [name for name in group if name in at_end]
        alike = [names for names in (early, late) if len(names) > 1]
        sentences += [f" {listed(names)} are in no order." for names in alike]
    if at_end and len(at_end) < len(finding.leaders):
        read_before = [head.name for head in finding.leaders if not head.at_end]
        is_read = "is read" if len(read_before) == 1 else "are read"
        sentences.append(
            f" {listed(read_before)} {is_read} after layer {finding.read_depth - 1}, "
            f"{listed(at_end)} at the end: do not compare their per cent."
        )
    return "".join(sentences)


def _by(nuisances: Sequence[str]) -> str:
    return listed([CONFOUNDER_WORDS[name] for name in nuisances])


def _behind_the_gate(finding: WordFindings) -> str:
    """What tells the senses apart without meaning, where nouns of one meaning rule it out as the
    reason: they stand in the same sentences."""
    if not finding.nuisances:
        return ""
    return (
        f" The meanings can also be told apart {_by(finding.nuisances)}; nouns of one meaning in "
        f"the same sentences change less than “{finding.word}”."
    )


def _confirmed(finding: WordFindings) -> str:
    """Which of the leading heads are among those shown to move the word, or which others are; and
    on how much."""
    movers = [head.name for head in finding.movers]
    if not movers:
        return "Not confirmed: no head passes every test."
    shown = "shown to move the word"
    confirmed = [head.name for head in finding.leaders if head.name in movers]
    unconfirmed = [head.name for head in finding.leaders if head.name not in movers]
    which = f"All {shown}"
    if not confirmed:
        many = len(movers) > LEADERS
        others = counted(len(movers), "other") if many else listed(movers)
        verb = "is" if len(movers) == 1 else "are"
        which = f"None of these {shown}, but {others} {verb}"
    elif unconfirmed:
        which = f"{listed(confirmed)} {shown}, {listed(unconfirmed)} not"
    ranked = [pair for pair in finding.pairs if pair.ranked]
    swapped = _fewest_to_most([pair.pairs for pair in ranked])
    cues = _fewest_to_most([pair.cue_words for pair in ranked])
    # Where no cue is known, every pair of sentences counts as one of cue words.
    of_cues = f" ({cues} of cue words)" if finding.cautions.cue_marked else ""
    each = "" if len(finding.pairs) == 1 else " for each pair of meanings"
    return (
        f"{which}, on {swapped} of sentences{of_cues}{each}, tested on sentences that the "
        "measurement had not seen."
    )


def _fewest_to_most(numbers: Sequence[int]) -> str:
    """How many pairs: “24 pairs”, “8 to 14 pairs” where not all are as many."""
    fewest = min(numbers)
    most = max(numbers)
    if fewest == most:
        return counted(most, "pair")
    return f"{fewest} to {counted(most, 'pair')}"


def beside_nouns(finding: WordFindings) -> str:
    """Whether it is ambiguity: how far the word changes beside nouns of one meaning in the same
    sentences, and which heads and MLPs do more for the word; empty where nothing was swapped."""
    if not finding.ranked:
        return ""
    sentences = [
        _distance(finding),
        _heads_beside_nouns(finding),
        _who_resolves(finding),
        _with_readers(finding),
        _mlps_beside_nouns(finding),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _distance(finding: WordFindings) -> str:
    """How far the word changes beside nouns of one meaning; or that it was not shown to change
    further, or why this was not asked, with the next step."""
    about = finding.beside_nouns
    word = f"“{finding.word}”"
    if not about.pairs:
        return _not_asked(finding)
    if about.passed:
        return (
            f"In the same sentences {word} changes {_times(about.times_as_far)} nouns of one "
            f"meaning, such as {_examples(about.typical)}, by layer {finding.read_depth - 1}: it "
            f"is the first of {about.nouns + 1}{_near(about)}{_asked_of(finding)}."
        )
    if about.p <= LEVEL:  # but not among the nouns that are as expected
        return (
            f"In the same sentences {word} changes {_times(about.times_as_far)} nouns of one "
            f"meaning, but not further than the {about.near} of them that are about as expected: "
            "that an ambiguity is resolved was not shown."
        )
    not_shown = "that an ambiguity is resolved was not shown"
    if about.as_far == 1:
        return (
            f"In the same sentences one of {about.nouns} nouns of one meaning, "
            f"“{about.furthest}”, changes as far as {word}{_asked_of(finding)}: {not_shown}."
        )
    which = "all" if about.as_far == about.nouns else f"{about.as_far} of"
    return (
        f"In the same sentences {which} {about.nouns} nouns of one meaning, “{about.furthest}” "
        f"among them, change as far as {word}{_asked_of(finding)}: {not_shown}."
    )


def _near(about: BesideNouns) -> str:
    """That the word is also the first among the nouns that are about as expected."""
    if math.isnan(about.p_near):
        return ""
    return f", and of the {about.near} that are about as expected as well"


def _asked_of(finding: WordFindings) -> str:
    """In how many of the word's pairs of meanings nouns could be put in its place, where that is
    not all of them."""
    ranked = sum(pair.ranked for pair in finding.pairs)
    asked = finding.beside_nouns.pairs
    if asked == ranked:
        return ""
    return f" (in {asked} of its {ranked} pairs of meanings; too few sentences in the others)"


def _not_asked(finding: WordFindings) -> str:
    """Why a word was not compared with nouns of one meaning, and what to do about it."""
    reason = finding.beside_nouns.not_compared
    what_to_do = f"Add pairs of sentences in which “{finding.word}” is a noun in just this form."
    if reason.startswith(TOO_FEW_NOUNS):
        what_to_do = "Name more nouns with --controls; without it those that ship are taken."
    if reason == NOT_ASKED_FOR:
        what_to_do = "Without --controls none it is compared with those that ship."
    return f"Whether this is ambiguity was not asked: {reason}. {what_to_do}"


def _times(times: float) -> str:
    """“about twice as far as”; where the number would be mostly noise, the least that it is; and
    where the nouns were not seen to change at all, no number."""
    if not math.isfinite(times):
        return "further than"
    if times >= FAR:
        return f"more than {FAR} times as far as"
    rounded = _rounded(times)
    if rounded in TIMES:
        return f"about {TIMES[int(rounded)]} as"
    return f"about {rounded:g} times as far as"


def _rounded(times: float) -> float:
    return round(times, 1) if times < TENTHS else round(times)


def _examples(nouns: Sequence[str]) -> str:
    return listed([f"“{noun}”" for noun in nouns])


def _heads_beside_nouns(finding: WordFindings) -> str:
    """Which of the heads that move the word do the same for any noun, and which do more or less for
    the word."""
    movers = [head for head in finding.heads if head.verdict in MOVERS and head.comparison]
    names: dict[str, list[str]] = {}
    for head in movers:
        names.setdefault(head.comparison, []).append(head.name)
    if not movers:
        return ""
    undecided = names.pop("undecided", [])
    who = f"the {_number(movers)} heads that move it"
    if len(movers) == 1:
        who = f"the head that moves it, {movers[0].name},"
    if not names:
        does = "does" if len(movers) == 1 else "do"
        return f"Whether {who} {does} more for “{finding.word}” than for such nouns is not decided."
    alike = _what_they_do(movers[0].comparison, len(movers), finding.word)
    if len(movers) == 1:
        return f"T{who[1:]} {alike}."
    if len(names) == 1 and not undecided:
        every = "Both heads" if len(movers) == 2 else f"All {_number(movers)} heads"
        return f"{every} that move it {alike}."
    decided = []
    for comparison in COMPARISONS:
        group = names.get(comparison)
        if group:
            some = listed(group) if len(group) <= LEADERS else _number(group)
            decided.append(f"{some} {_what_they_do(comparison, len(group), finding.word)}")
    rest = ""
    if len(undecided) > LEADERS:
        rest = f"; for the other {_number(undecided)} the data cannot say"
    elif undecided:
        rest = f"; for {listed(undecided)} the data cannot say"
    return f"Of {who}, {listed(decided)}{rest}."


def _what_they_do(comparison: str, heads: int, word: str) -> str:
    """What so many heads of one comparison do beside nouns of one meaning."""
    does = "does" if heads == 1 else "do"
    if comparison == "same":
        return f"{does} the same for any noun"
    return f"{does} {comparison} for “{word}” than for such nouns"


def _number(names: Sequence[object]) -> str:
    """How many, as a word."""
    return counted(len(names), "head", words=True).split()[0].lower()


def _who_resolves(finding: WordFindings) -> str:
    """Which of the heads that move the word were shown to resolve it."""
    if not finding.movers:
        return ""
    if not finding.resolvers:
        return f"No head was shown to resolve “{finding.word}”."
    resolves = "resolves" if len(finding.resolvers) == 1 else "resolve"
    return f"{_first_names(finding)} {resolves} “{finding.word}”."


def _with_readers(finding: WordFindings) -> str:
    """The heads that do more for the word together with the parts that read them: that they write
    more for it themselves was not shown."""
    names = [head.name for head in finding.movers if head.with_its_readers]
    if not names:
        return ""
    one = len(names) == 1
    reads = "it" if one else "them"
    return (
        f"{listed(names)} {'does' if one else 'do'} so together with the parts that read {reads}: "
        f"that {'it writes' if one else 'they write'} more for “{finding.word}” "
        f"{'itself' if one else 'themselves'} was not shown."
    )


def _mlps_beside_nouns(finding: WordFindings) -> str:
    """The layers whose MLP does more for the word than for nouns of one meaning, and what that says
    of an ambiguity where they come after the read-out."""
    layers = finding.beside_nouns.mlps_more
    if not layers:
        return ""
    than = f"more for “{finding.word}” than for such nouns"
    which = f"The MLPs of layers {listed([str(layer) for layer in layers])} do"
    if len(layers) == 1:
        which = f"The MLP of layer {layers[0]} does"
    elif len(layers) > FEW_LAYERS:
        which = f"The MLPs of {len(layers)} layers do"
    later = [layer for layer in layers if layer >= finding.read_depth]
    after = ""
    if later:
        last = finding.read_depth - 1
        after = f" After layer {last}, where this is read, an ambiguity may be resolved further."
    return f"{which} {than}.{after}"
