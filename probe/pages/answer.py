"""The answer to "which heads resolve this word?": one sentence and one table, for the page, the
terminal and the notebook alike.

The sentence says no more than the verdicts do. It is for a reader who has never heard of a head's
name: an earlier word is said to give the meaning only where the record credits one, and "the words
before it" are where the word itself is the same vector in every sentence. Of a model that reads
both ways it is "another word" and "the words around it". Where something without meaning tells the
senses apart as well, nobody is credited.

Each row of the table is a word with its first heads and how sure this is. It holds verdicts and
counts, no p and no unit that must be looked up; a percentage is of the way from one meaning of the
word to the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe.evidence.columns import LEADERS
from probe.evidence.findings import CreditedCue, HeadFinding, WordFindings
from probe.stats.numbers import counted, listed, ordinal

NAMED = 4  # heads that the sentence over all words names
FEW_LAYERS = 3  # layers that are named one by one
CONFOUNDER_WORDS = {
    "untrained": "by the same model with random weights",
    "nuisance": "by where the word stands in the text or how long the text is",
}


@dataclass(frozen=True)
class AnswerRow:
    """One word of the answer: its sentence, its first heads, and how sure these are."""

    word: str
    index: int
    sentence: str
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
        AnswerRow(word, finding.index, sentence(finding), finding.leaders, certainty(finding))
        for word, finding in findings.items()
    )
    return Answer(question(list(findings)), headline(list(findings.values())), rows)


def question(words: Sequence[str]) -> str:
    """The question that a study of these words answers."""
    return f"Which heads resolve {listed(list(words))}?"


def headline(findings: Sequence[WordFindings]) -> str:
    """Which heads were shown to resolve every word, in the order of the first one, or for which
    words none was; of a single word, its sentence."""
    if len(findings) == 1:
        return sentence(findings[0])
    text = _over_all_words(findings)
    if any(finding.exploratory for finding in findings):
        return f"As far as a few sentences can tell: {text[0].lower()}{text[1:]}"
    return text


def _over_all_words(findings: Sequence[WordFindings]) -> str:
    resolved = [finding for finding in findings if finding.resolvers]
    if not resolved:
        return "No single head was shown to move any of these words."
    if len(resolved) < len(findings):
        unresolved = [finding for finding in findings if not finding.resolvers]
        return (
            f"Single heads were shown to move {_quoted(resolved)}; "
            f"for {_quoted(unresolved)} none was."
        )
    if len(findings) == 2:
        every_word = "both words"
    else:
        every_word = f"all {counted(len(findings), 'word', words=True).lower()}"
    names_by_word = [[head.name for head in finding.resolvers] for finding in findings]
    shared = [name for name in names_by_word[0] if all(name in names for names in names_by_word)]
    if not shared:
        return f"No single head was shown to move {every_word}: each has heads of its own."
    if len(shared) == 1:
        return f"The same head, {shared[0]}, moves {every_word}."
    heads = counted(len(shared), "head", words=True).lower()
    names = listed(shared[:NAMED])
    if len(shared) > NAMED:
        return f"The same {heads} move {every_word}, {names} among them."
    return f"The same {heads}, {names}, move {every_word}."


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
    changes = f"{opening} the vector of “{word}” changes with its meaning"
    if finding.all_confounded:
        return (
            f"{changes}, but also with something that has no meaning: what brings it about cannot "
            "be told."
        )
    if not finding.resolvers:
        return f"{changes}, but no single attention head was shown to bring that about."
    return f"{opening} the word “{word}” {_origin(finding)}, {_heads_between(finding)}{_where(finding)}."


def _origin(finding: WordFindings) -> str:
    """What gives the word its meaning, as far as the design of the study shows it."""
    if not finding.same_token:
        return "changes its meaning with the sentence"
    cue = finding.credited_cue
    if cue is not None and cue.examples is not None:
        one, other = cue.examples
        return f"gets its meaning from {_name_of_cue(finding, cue)}, such as “{one}” or “{other}”"
    side = "before" if finding.causal else "around"
    return f"gets its meaning from the words {side} it"


def _name_of_cue(finding: WordFindings, cue: CreditedCue) -> str:
    if cue.marked or not finding.cautions.cue_marked:
        return "an earlier word" if finding.causal else "another word"
    earlier = "an earlier word that" if finding.causal else "a word that"
    return f"{earlier} is not the marked cue"


def _heads_between(finding: WordFindings) -> str:
    """Through how many heads of which layers: those of the leading path, or the smallest set that
    is enough where all of it resolves; else, in part, all resolvers."""
    path = finding.leading_path
    if path is not None and len(path.names) > 1:
        part = "" if path.nearly_all else "in part "
        number = _heads_in_words(len(path.names))
        where = _layers(path.layers, finding.layers)
        return f"{part}by way of {number}, one after the other, in {where}"
    heads = finding.resolvers
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
    names = ["last" if layer == number_of_layers - 1 else ordinal(layer + 1) for layer in used]
    return f"the {listed(names)} of its {number_of_layers} layers"


def _where(finding: WordFindings) -> str:
    """For how many of the word's pairs of meanings that was shown, where it is not for all."""
    number = len(finding.pairs)
    if number == 1 or finding.pairs_resolved == number:
        return ""
    return f" (shown for {finding.pairs_resolved} of its {number} pairs of meanings)"


def certainty(finding: WordFindings) -> str:
    """How sure the leading heads of a word are: which were confirmed, on how much, and what else
    might explain them."""
    if not finding.ranked:
        return (
            "Not shown: in these sentences the meanings could not be told apart at the word, so no "
            "head is ranked."
        )
    if finding.confounders:
        confounders = listed([CONFOUNDER_WORDS[name] for name in finding.confounders])
        return f"Not clear: the meanings can also be told apart {confounders}."
    few = "A first look at few sentences. " if finding.exploratory else ""
    groups = [group for group in finding.rank_groups if len(group) > 1]
    overlaps = "".join(f" {listed(list(group))} are in no order." for group in groups)
    return f"{few}{_confirmed(finding)}{overlaps}"


def _confirmed(finding: WordFindings) -> str:
    """Which of the leading heads are among those shown to resolve the word, or which others are;
    and on how much."""
    resolvers = [head.name for head in finding.resolvers]
    if not resolvers:
        return "Not confirmed: no head passes every test."
    confirmed = [head.name for head in finding.leaders if head.name in resolvers]
    unconfirmed = [head.name for head in finding.leaders if head.name not in resolvers]
    which = "All confirmed"
    if not confirmed:
        many = len(resolvers) > LEADERS
        others = counted(len(resolvers), "other") if many else listed(resolvers)
        verb = "is" if len(resolvers) == 1 else "are"
        which = f"None of these confirmed, but {others} {verb}"
    elif unconfirmed:
        which = f"{listed(confirmed)} confirmed, {listed(unconfirmed)} not"
    ranked = [pair for pair in finding.pairs if pair.ranked]
    swapped = counted(min(pair.pairs for pair in ranked), "pair")
    cues = counted(min(pair.cue_words for pair in ranked), "pair")
    # Of several pairs of senses, the numbers are those of the pair that has fewest.
    each = "" if len(finding.pairs) == 1 else " for each pair of meanings"
    return (
        f"{which}, on {swapped} of sentences ({cues} of cue words){each}, "
        "read along axes fitted without them."
    )
