"""The answer to "which heads resolve this word?" for the page, the terminal and the notebook.

The headline consists of fixed sentences about all words. Each word has facts: a fixed label, and a
value with the numbers. A fact that was not measured, or that does not apply, has no row. Nothing
here claims more than the verdicts do (`probe.results.findings`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from probe.claims import random_sets_like, smallest_set
from probe.experiments.beside_nouns import TOO_FEW_NOUNS
from probe.experiments.run import LEADERS
from probe.experiments.senses import NOT_ASKED_FOR
from probe.inference.verdicts import rank_among_nouns
from probe.results.findings import CreditedCue, HeadFinding, WordFindings
from probe.stats.limits import GATE
from probe.stats.numbers import bare, counted, listed, ordinal, percent

NAMED = 6  # heads that a fact names; the others are counted
FAR = 20  # times as far: unambiguous nouns hardly move, and a larger ratio is mostly noise
GAP = "gap between the meanings"  # the only fact of a word without one
NOT_SIGNIFICANT = "not significant, so no head is ranked"
TOO_FEW = (
    "not tested: with {cue_words} pairs of cue words p cannot be below {smallest} (limit {limit}), "
    "so no head is ranked; give more different cue words"
)
# What separates the meanings without being meaning, in words.
CONFOUNDER_WORDS = {
    "untrained": "by the same model with random weights",
    "nuisance": "by the position of the word or its cue, or by the length of the text",
}

# The headline: one sentence on the heads that lead, one on resolvers. Its reasons are in the facts.
NO_GAP = "These sentences do not separate the meanings of {words} in this model."
NO_TEST = "These sentences have too few cue words to test whether the meanings of {words} differ."
NO_MOVER = "No single head has a significant effect on {words}."
LEAD = "{heads} move {words} most."
LEADS = "{heads} moves {words} most."
DIFFER = "The top heads differ from word to word."
RESOLVED = "Resolvers: {heads}."
OF_WORD = "{word} {heads}"
NO_RESOLVER = "none"
NOT_RESOLVED = "No head does more for an ambiguous word than for unambiguous nouns."
NOT_COMPARED = "No word was compared with unambiguous nouns."
EXPLORATORY = "Exploratory, because there are few sentences."


@dataclass(frozen=True)
class AnswerRow:
    """One word of the answer.

    word: the ambiguous word.
    index: its place among the words of the study.
    heads: its top heads.
    facts: labels and values, in the order of FACTS.
    """

    word: str
    index: int
    heads: tuple[HeadFinding, ...]
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Answer:
    """The question, the headline over all words, and a row for each word."""

    question: str
    headline: str
    rows: tuple[AnswerRow, ...]


def answer(findings: Mapping[str, WordFindings]) -> Answer:
    """The answer for all words of a study."""
    rows = tuple(
        AnswerRow(word, finding.index, finding.top_heads, facts(finding))
        for word, finding in findings.items()
    )
    return Answer(question(list(findings)), headline(list(findings.values())), rows)


def question(words: Sequence[str]) -> str:
    """The question that a study of these words answers."""
    return f"Which heads resolve {listed(list(words))}?"


def headline(findings: Sequence[WordFindings]) -> str:
    """The top heads of all words, and the resolvers of each."""
    ranked = [finding for finding in findings if finding.ranked]
    with_movers = [finding for finding in ranked if finding.movers]
    if not ranked:
        untested = all(pair.too_few_cue_words for each in findings for pair in each.pairs)
        return (NO_TEST if untested else NO_GAP).format(words=_names(findings))
    if not with_movers:
        return NO_MOVER.format(words=_names(ranked))
    sentences = [_top_heads(with_movers), _resolvers(ranked)]
    if any(finding.exploratory for finding in findings):
        sentences.append(EXPLORATORY)
    return " ".join(sentences)


def _top_heads(with_movers: Sequence[WordFindings]) -> str:
    """The top heads, where they are the same for all words that heads move."""
    first = [head.name for head in with_movers[0].movers[:LEADERS]]
    same = [{head.name for head in finding.movers[:LEADERS]} == {*first} for finding in with_movers]
    if not all(same):
        return DIFFER
    sentence = LEADS if len(first) == 1 else LEAD
    return sentence.format(heads=listed(first), words=_names(with_movers))


def _resolvers(ranked: Sequence[WordFindings]) -> str:
    """The resolvers of each word that was compared with unambiguous nouns."""
    compared = [finding for finding in ranked if finding.beside_nouns.pairs]
    if not compared:
        return NOT_COMPARED
    if not any(finding.resolvers for finding in compared):
        return NOT_RESOLVED
    by_word = [
        OF_WORD.format(
            word=finding.word,
            heads=some_names(finding.resolvers, most=LEADERS) or NO_RESOLVER,
        )
        for finding in compared
    ]
    return RESOLVED.format(heads="; ".join(by_word))


def _names(findings: Sequence[WordFindings]) -> str:
    return listed([finding.word for finding in findings])


def some_names(
    heads: Sequence[HeadFinding],
    name: Callable[[HeadFinding], str] = attrgetter("name"),
    *,
    most: int = NAMED,
) -> str:
    """The names of the first heads, at most `most`, and how many others there are."""
    return _some([name(head) for head in heads], most=most)


def _some(names: Sequence[str], *, most: int) -> str:
    """The first names, at most `most`, and how many others there are."""
    named = list(names[:most])
    further = len(names) - len(named)
    return listed([*named, counted(further, "other")] if further else named)


def facts(finding: WordFindings) -> tuple[tuple[str, str], ...]:
    """The facts of a word that apply; without a gap, only that the gap is not significant."""
    if not finding.ranked:
        return ((GAP, _no_gap(finding)),)
    values = ((label, value(finding)) for label, value in FACTS.items())
    return tuple((label, value) for label, value in values if value)


def _no_gap(finding: WordFindings) -> str:
    """Why no head of a word is ranked."""
    if not all(pair.too_few_cue_words for pair in finding.pairs):
        return NOT_SIGNIFICANT
    largest = max(finding.pairs, key=attrgetter("cue_words"))
    smallest = bare(round(largest.smallest_gap_p, 3))
    return TOO_FEW.format(cue_words=largest.cue_words, smallest=smallest, limit=bare(GATE))


def _resolver_names(finding: WordFindings) -> str:
    if not finding.movers or not finding.beside_nouns.pairs:
        return ""
    if not finding.resolvers:
        farther = _farther_nouns(finding)
        return f"{NO_RESOLVER}: {farther}" if farther else NO_RESOLVER
    return some_names(
        finding.resolvers,
        lambda head: f"{head.name} ({_pairs(head)})" if len(finding.pairs) > 1 else head.name,
    )


def _resolvers_of_pairs(finding: WordFindings) -> str:
    """The heads that resolve single pairs of meanings, but not the word on average."""
    heads = [head for head in finding.movers if head not in finding.resolvers and head.resolves]
    return some_names(heads, lambda head: f"{head.name} for {_pairs_of(head, finding)}")


def _pairs_of(head: HeadFinding, finding: WordFindings) -> str:
    """The pairs of meanings that a head resolves."""
    pairs = [pair for pair in finding.pairs if head.name in pair.resolvers]
    return listed([f"{pair.sense_a} / {pair.sense_b}" for pair in pairs])


def _with_readers(finding: WordFindings) -> str:
    """The movers that move the word farther than nouns without a larger write, and the MLPs that
    may read them: those after the head, up to the read-out layer, that do more for the word.
    """
    heads = [head for head in finding.movers if head.with_its_readers]
    return some_names(heads, lambda head: f"{head.name}{_mlps_after(head, finding)}")


def _mlps_after(head: HeadFinding, finding: WordFindings) -> str:
    layers = finding.beside_nouns.mlps_more
    after = [f"MLP {each}" for each in layers if head.layer <= each < finding.read_depth]
    return f" (with {_some(after, most=LEADERS)})" if after else ""


def _pairs(head: HeadFinding) -> str:
    """In how many pairs of meanings a head is a resolver; it can be one on average alone."""
    if not head.resolves:
        return f"on average over {counted(head.of, 'pair')}"
    return f"{head.resolves} of {counted(head.of, 'pair')}"


def _mover_count(finding: WordFindings) -> str:
    heads = finding.layers * finding.heads_per_layer
    movers = f"{len(finding.movers)} of {heads} heads"
    if len(finding.pairs) == 1 or not finding.movers:
        return movers
    pairs = counted(len(finding.pairs), "pair")
    return f"{movers}, in {finding.pairs_moved} of {pairs} of meanings"


def _nouns(finding: WordFindings) -> str:
    """The word's place among unambiguous nouns in the same sentences, or why it has none."""
    about = finding.beside_nouns
    if not about.pairs:
        return f"not compared: {about.not_compared}; {_next_step(finding)}"
    rank = f"{ordinal(1 + about.as_far)} of {about.nouns + 1}"
    ranked = sum(pair.ranked for pair in finding.pairs)
    if about.pairs < ranked:
        rank += f" in {about.pairs} of {counted(ranked, 'pair')} of meanings"
    if about.as_far:
        return f"{rank}; {_farther_nouns(finding)}"
    near = "" if math.isnan(about.p_near) else f"; {_near(about.near, about.p_near)}"
    return f"{rank}, moves {_times(about.times_as_far)}{near}"


def _farther_nouns(finding: WordFindings) -> str:
    """Which unambiguous nouns move at least as far as the word; "" if it is first of all."""
    nouns = finding.beside_nouns.farther
    if not nouns:
        return ""
    return f"{_some(nouns, most=LEADERS)} {'moves' if len(nouns) == 1 else 'move'} farther"


def _near(nouns: int, p: float) -> str:
    """The word's rank among the nouns that are about as expected."""
    return f"{ordinal(int(rank_among_nouns(p, nouns)))} of the {nouns + 1} with a similar surprisal"


def _times(times: float) -> str:
    if not math.isfinite(times):
        return "farther"
    if times >= FAR:
        return f"more than {FAR} times as far"
    return f"{times:.1f} times as far"


def _next_step(finding: WordFindings) -> str:
    """What makes a comparison with unambiguous nouns possible."""
    reason = finding.beside_nouns.not_compared
    if reason == NOT_ASKED_FOR:
        return "by default it is compared with the nouns that ship"
    if reason.startswith(TOO_FEW_NOUNS):
        return "name more nouns with --controls"
    return f"add pairs of sentences in which {finding.word} is a noun in just this form"


def _mlps(finding: WordFindings) -> str:
    layers = finding.beside_nouns.mlps_more
    if not layers:
        return ""
    return f"{'layer' if len(layers) == 1 else 'layers'} {listed([str(each) for each in layers])}"


def _leading_mlp(finding: WordFindings) -> str:
    """The MLP with the largest effect, if that is larger than the effect of every head."""
    mlp = finding.leading_mlp
    return f"MLP {mlp.layer}: {percent(mlp.net)}" if mlp else ""


def _smallest_set(finding: WordFindings) -> str:
    smallest = smallest_set(finding.rows["curves"]) if "curves" in finding.rows else None
    if smallest is None:
        return ""
    gap_kept = f"{percent(smallest['faithfulness'])} by {counted(smallest['size'], 'head')}"
    random_sets = random_sets_like(finding.rows["random_sets"], smallest["size"])
    if random_sets.empty:
        return gap_kept
    return f"{gap_kept} (best random set: {percent(random_sets['faithfulness'].max())})"


def _cue(finding: WordFindings) -> str:
    cue = finding.credited_cue
    if cue is None or cue.examples is None or not finding.same_token:
        return ""
    return f"{_which_word(finding, cue)}, e.g. {listed(list(cue.examples))}"


def _which_word(finding: WordFindings, cue: CreditedCue) -> str:
    where = "an earlier word" if finding.causal else "another word"
    marked = cue.marked or not finding.cautions.cue_marked
    return where if marked else f"{where}, not the marked cue"


def _no_order(finding: WordFindings) -> str:
    """Top heads without an order: their rank intervals overlap, at the same read-out layer."""
    at_end = {head.name for head in finding.top_heads if head.at_end}
    groups = []
    for group in finding.rank_groups:
        for part in ([n for n in group if n not in at_end], [n for n in group if n in at_end]):
            if len(part) > 1:
                groups.append(listed(part))
    return "; ".join(groups)


def _read_after(finding: WordFindings) -> str:
    return f"layer {finding.read_depth - 1}; heads of later layers at the end"


def _material(finding: WordFindings) -> str:
    """The pairs of sentences that were swapped, all of them held out."""
    ranked = [pair for pair in finding.pairs if pair.ranked]
    sentences = _range([pair.pairs for pair in ranked])
    cues = _range([pair.cue_words for pair in ranked])
    of_cues = f", {cues} pairs of cue words" if finding.cautions.cue_marked else ""
    each = "" if len(finding.pairs) == 1 else " for each pair of meanings"
    exploratory = "; exploratory" if finding.exploratory else ""
    return f"{sentences} held-out pairs of sentences{of_cues}{each}{exploratory}"


def _range(numbers: Sequence[int]) -> str:
    fewest, largest = min(numbers), max(numbers)
    return str(largest) if fewest == largest else f"{fewest} to {largest}"


def _also_separated(finding: WordFindings) -> str:
    """What else separates the meanings, and whether that is ruled out as the reason, because
    unambiguous nouns in the same sentences change less."""
    names = finding.confounders or finding.nuisances
    if not names:
        return ""
    how = listed([CONFOUNDER_WORDS[name] for name in names])
    if finding.confounders:
        return f"{how}; use pairs of sentences that differ only in the cue"
    return f"{how}; unambiguous nouns in the same sentences move less"


FACTS: dict[str, Callable[[WordFindings], str]] = {
    "resolvers": _resolver_names,
    "resolvers of single pairs": _resolvers_of_pairs,
    "more for the word, with the parts that read them": _with_readers,
    "significant heads": _mover_count,
    "among unambiguous nouns": _nouns,
    "farther than any head": _leading_mlp,
    "MLPs that do more for the word": _mlps,
    "gap kept": _smallest_set,
    "read from": _cue,
    "no order among": _no_order,
    "meanings also separated": _also_separated,
    "read after": _read_after,
    "tested on": _material,
}

# The facts that the first screen has.
FIRST_FACTS = ("resolvers", "gap kept", "farther than any head")
