"""Is it ambiguity? One-meaning nouns in the word's place: how far their vectors change with the
same contexts, and how much of that each head and each MLP brings about.

A head that brings context to a noun does so for any noun. So the word is compared with nouns of one
meaning that stand in its place in the same sentences, with the same cues and frames:

    g²(x)     mean over holdouts of <D_test, D_train>, D the difference of the sense means of the
              vectors at the word: 0 in expectation where there is none
    share     g²(noun) / g²(word), on the same sentences
    p         (1 + nouns with g² of at least the word's) / (1 + nouns): the ambiguity gate, one for
              the word, with g² summed over its pairs of senses
    axis      <D_noun, u_word> / gap_word: how much of the word's own axis is plain topic

The squared gap has no bias: a plain distance of means is never 0. What heads and MLPs do for the
nouns is in `experiments.noun_parts`.

The gate is asked once for a word: asked for each of six pairs of senses, a noun of one meaning
would pass for one of them by chance three times in ten. Only nouns that could be compared for every
pair of senses count.

Nouns are left out that are not as many tokens as the word, that stand in its sentences already, or
whose article would not agree in most of them; sentences in which the word does not stand in its
dictionary form, or is no noun there, are left out and counted.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from probe.errors import InputError
from probe.experiments.design import Pairs, spread
from probe.experiments.material import Material
from probe.model.model import Model
from probe.model.tokens import TargetText, positions_of_span, tokenize
from probe.model.weights import Weights
from probe.patching.tokens import replace_tokens
from probe.stats.axes import HeldOutAxes, squared_gap
from probe.stats.resampling import Array
from probe.text import lexicon
from probe.text.spans import WORD
from probe.text.splits import CrossFit, restrict

FEWEST_NOUNS = 19  # with one fewer the gate cannot come to .05
FEWEST_SENTENCES = 24
MOST_PAIRS = 24  # of sentences at which the gaps of nouns are measured, as many as are swapped
# With up to 38 nouns p <= .05 says that none of them changes as far as the word: with one that does
# it is 2 / 39. Of a sample of nouns with one meaning, then, hardly more than one in 39 passes; with
# more nouns two could, which is more than 5 % of thirty.
MOST_NOUNS = 38
# Directly before a noun stand a determiner, an adjective or a preposition, none of these.
SUBJECTS = ("i", "you", "he", "she", "it", "we", "they", "who")
MODALS = ("will", "would", "can", "could", "may", "might", "must", "shall", "should", "cannot")
NEGATED = ("don't", "doesn't", "didn't", "won't", "can't", "not")
BEFORE_A_VERB = frozenset(("to", "do", "does", "did", "let's", *SUBJECTS, *MODALS, *NEGATED))
# "charged" is what a verb becomes, "seed", "weed" and other short words end so by themselves.
PAST = re.compile("[a-z]{3,}[a-df-z]ed", re.IGNORECASE)
SURFACE = "the word does not stand in its dictionary form"
NO_NOUN = "the word is no noun here"
TOO_FEW_NOUNS = "nouns that can take its place"
# A text that begins with the word, in a tokenizer whose tokens hold the space before them.
OTHER_TOKENS = "the word is other tokens here than in most of its sentences"


@dataclass(frozen=True, eq=False)
class PartComparison:
    """What parts of the network do for the word and for one-meaning nouns in its place.

    Heads are `layer head`, NaN for those that were not compared; MLPs are `layer`. `net`: what the
    part does for the word, in the pairs that were compared · `general`: mean over nouns of the
    effect in their own gaps · `specific`: net less general · `drawn`: the same in every bootstrap
    draw, of `units` pairs of cue words · `p`: that specific is not 0, two-sided, corrected for all
    parts of the kind that were compared.
    """

    net: Array
    general: Array
    specific: Array
    drawn: Array
    units: int
    p: Array

    def scattered(self, where: tuple[Array, ...], shape: tuple[int, ...]) -> "PartComparison":
        """The same at the places `where` of an array of all parts, NaN at those not compared."""

        def spread_out(values: Array) -> Array:
            whole: Array = np.full((*values.shape[:-1], *shape), np.nan)
            index: Any = (..., *where)
            whole[index] = values
            return whole

        return replace(
            self,
            net=spread_out(self.net),
            general=spread_out(self.general),
            specific=spread_out(self.specific),
            drawn=spread_out(self.drawn),
            p=spread_out(self.p),
        )


@dataclass(frozen=True, eq=False)
class NounInPlace:
    """A noun that parts of the network are compared on: its tokens `ids`, and its held-out `axes`,
    fitted on the sentences with the noun in the word's place.

    `scale: depth`, what turns fractions of the fitted gap into fractions of the noun's own ·
    `pairs`: the numbers of those that are swapped with this noun.
    """

    noun: str
    ids: tuple[int, ...]
    axes: HeldOutAxes
    scale: Array
    pairs: tuple[int, ...]

    def texts(self, texts: Sequence[TargetText]) -> list[TargetText]:
        """Texts with the noun's tokens in the word's place."""
        return [with_tokens(text, self.ids) for text in texts]


@dataclass(frozen=True, eq=False)
class NounComparison:
    """The comparison of a word with one-meaning nouns for one pair of senses.

    `gap word_gap axis: noun depth`, the squared gaps of the noun and of the word in the same
    sentences, and the share of the word's axis that the noun takes on · `sentences: noun` · `p`:
    the ambiguity gate of the word, the same for all its pairs of senses, NaN where it is not asked
    · `reason`: why it is not, "" where it is · `sentences_left_out`: in which no noun could take
    the word's place · `left_out`: the reason of every noun that was asked for by name and not
    compared · `in_place`: the nouns that `heads` and `mlps` are compared on; these are None where
    nothing was swapped.
    """

    depth: int
    nouns: tuple[str, ...]
    gap: Array
    word_gap: Array
    axis: Array
    sentences: tuple[int, ...]
    p: float = float("nan")
    reason: str = ""
    sentences_left_out: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    in_place: tuple[NounInPlace, ...] = ()
    heads: PartComparison | None = None
    mlps: PartComparison | None = None

    @property
    def shares(self) -> Array:
        """g²(noun) / g²(word) in the same sentences. `noun depth`"""
        return np.divide(
            self.gap, self.word_gap, out=np.full_like(self.gap, np.nan), where=self.word_gap > 0
        )

    @property
    def general_share(self) -> float:
        """Mean of the shares at the read-out; NaN without nouns."""
        return float(self.shares[:, self.depth].mean()) if len(self.nouns) else float("nan")

    def take(self, nouns: Sequence[str]) -> "NounComparison":
        """The comparison with some of the nouns."""
        kept = [self.nouns.index(noun) for noun in nouns]
        return replace(
            self,
            nouns=tuple(nouns),
            gap=self.gap[kept],
            word_gap=self.word_gap[kept],
            axis=self.axis[kept],
            sentences=tuple(self.sentences[index] for index in kept),
        )


# --- which nouns, which sentences -----------------------------------------------------------------


@dataclass(frozen=True)
class Candidates:
    """The nouns that may stand in a word's place, and where they may.

    `ids`: the word's own tokens · `nouns` with their token ids · `left_out`: the reason of every
    other noun · `by_name`: whether the user named them · `article`: by sentence in which the word
    is a noun in its dictionary form the indefinite article before it, "" where there is none ·
    `reasons`: of the other sentences.
    """

    ids: tuple[int, ...]
    nouns: dict[str, tuple[int, ...]]
    left_out: dict[str, str]
    by_name: bool
    article: dict[int, str]
    reasons: dict[int, str]

    @property
    def rows(self) -> tuple[int, ...]:
        """The sentences that can be compared."""
        return tuple(self.article)


def candidates(model: Model, material: Material, nouns: Sequence[str] | None) -> Candidates:
    """The nouns (those that ship for None) and the sentences of a word that can be compared."""
    ids, article, reasons = _comparable_sentences(material)
    usable: dict[str, tuple[int, ...]] = {}
    left_out = {}
    asked = lexicon.one_meaning_nouns() if nouns is None else nouns
    if article:
        first = min(article, key=material.targets.__getitem__)  # the shortest text up to the word
        texts = [material.sentences[row].text for row in article]
        written = {word for text in texts for word in WORD.findall(text)}
        for noun in dict.fromkeys(asked):
            noun_ids = _ids_in_place(model, material, first, noun)
            reason = _why_not(model, material.word, noun, noun_ids, ids)
            if not reason and noun in written:
                reason = "it stands in the word's sentences already"
            if reason:
                left_out[noun] = reason
            else:
                usable[noun] = noun_ids
    return Candidates(ids, usable, left_out, nouns is not None, article, reasons)


def _comparable_sentences(
    material: Material,
) -> tuple[tuple[int, ...], dict[int, str], dict[int, str]]:
    """The word's tokens where most of its sentences have it as a noun in its dictionary form; by
    sentence in which it is these tokens the article before it, and the reason of every other one.
    """
    article: dict[int, str] = {}
    reasons: dict[int, str] = {}
    written = [sentence.form for sentence in material.sentences]
    # "Star", asked for, of sentences with "star"
    form = material.word if material.word in written else material.word.lower()
    for row, sentence in enumerate(material.sentences):
        before = re.findall(r"[\w']+", sentence.text[: sentence.start].lower())
        previous = before[-1] if before else ""
        if written[row] != form:
            reasons[row] = SURFACE
        elif previous in BEFORE_A_VERB or PAST.fullmatch(form):
            reasons[row] = NO_NOUN
        else:
            article[row] = previous if previous in ("a", "an") else ""
    ids_of = {
        row: tuple(material.tokens[row].ids[position] for position in material.words[row])
        for row in article
    }
    ids: tuple[int, ...] = ()
    if ids_of:
        ids = Counter(ids_of.values()).most_common(1)[0][0]
    for row, its in ids_of.items():
        if its != ids:
            reasons[row] = OTHER_TOKENS
            del article[row]
    return ids, article, reasons


def _ids_in_place(model: Model, material: Material, row: int, noun: str) -> tuple[int, ...]:
    """All tokens that stand for a noun, and a space before it, where the word's tokens begin in a
    sentence."""
    before = material.sentences[row].text[: material.sentences[row].start]
    tokens = tokenize(model, before + noun)
    last = positions_of_span(tokens, len(before), len(before) + len(noun))[-1]
    return tokens.ids[material.words[row].start : last + 1]


def _why_not(
    model: Model, word: str, noun: str, noun_ids: Sequence[int], ids: Sequence[int]
) -> str:
    """Why a noun cannot take the word's place, "" where it can."""
    unknown = model.tokenizer.unk_token_id
    if noun == word:
        return "it is the word itself"
    if noun in lexicon.words() or noun in lexicon.natural_words():
        return "it has several meanings itself"
    if unknown is not None and unknown in noun_ids:
        return "the model's vocabulary does not hold it"
    if len(noun_ids) != len(ids):
        tokens = "token" if len(noun_ids) == 1 else "tokens"
        return f"it is {len(noun_ids)} {tokens} where the word is {len(ids)}"
    return ""


def as_nouns(controls: Sequence[str] | str | None) -> tuple[str, ...] | None:
    """One-meaning nouns to put in a word's place, each once: None for those that ship, () for none.

    A text is split at its commas, as on the command line; "none" is none.

    Raises InputError for what is neither a noun nor a list of some.
    """
    if controls is None:
        return None
    if controls == "none":
        return ()
    nouns = controls
    if isinstance(controls, str):
        nouns = [noun.strip() for noun in controls.split(",") if noun.strip()]
    if not isinstance(nouns, Collection) or not all(isinstance(noun, str) for noun in nouns):
        raise InputError(
            f"Choosing nouns of one meaning: got controls = {controls!r}, expected nouns; "
            'give ["fence", "window"], say, () for none, or leave it away for those that ship.'
        )
    return tuple(dict.fromkeys(nouns))


def require_usable(model: Model, materials: Sequence[Material], nouns: Sequence[str]) -> None:
    """Raises InputError, with the reason of every noun, where none of those that a user names can
    take the place of any of the words. A word that is a noun in none of its sentences says nothing
    of the nouns."""
    problems = []
    for material in materials:
        among = candidates(model, material, nouns)
        if among.nouns:
            return
        if among.left_out:
            reasons = [f"{noun} ({reason})" for noun, reason in among.left_out.items()]
            problems.append(f"none can take the place of {material.word!r}: {', '.join(reasons)}")
    if problems:
        raise InputError(
            f"Comparing with the one-meaning nouns {', '.join(nouns)}: {'; '.join(problems)}; give "
            "nouns that are as many tokens as the word, or leave them away for those that ship."
        )


def with_tokens(text: TargetText, ids: Sequence[int]) -> TargetText:
    """A text with other tokens in the word's place."""
    start = text.at + 1 - len(ids)
    return TargetText((*text.ids[:start], *ids, *text.ids[text.at + 1 :]), text.at)


def at_rows(part: Tensor, rows: Sequence[int], number: int) -> Tensor:
    """The states of some rows at the rows' own numbers, of `number`; those of the others are 0 and
    never read."""
    whole = part.new_zeros(number, *part.shape[1:])
    whole[list(rows)] = part
    return whole


def rows_for(among: Candidates, noun: str) -> list[int]:
    """The sentences in which the article before the word is the noun's, too."""
    fitting = ("", lexicon.article_of(noun))
    return [row for row in among.rows if among.article[row] in fitting]


def pairs_inside(pairs: Pairs, rows: Collection[int]) -> list[int]:
    """The numbers of the pairs whose members and same-sense donors are all among some rows."""
    usable = []
    for index in range(len(pairs)):
        members = (pairs.a[index], pairs.b[index], pairs.same_a[index], pairs.same_b[index])
        if all(row in rows for row in members):
            usable.append(index)
    return usable


def _pairs_within(split: CrossFit, rows: Sequence[int], *, seed: int) -> CrossFit:
    """At most MOST_PAIRS of the split's pairs within some sentences, as many of each unit as can
    be."""
    inside = set(rows)
    pairs = [
        pair for pair in split.pairs if all(split.rows[position] in inside for position in pair)
    ]
    rng = np.random.default_rng(seed)
    chosen = spread([split.units[one] for one, _ in pairs], MOST_PAIRS, rng)
    return restrict(split, sorted({position for index in chosen for position in pairs[index]}))


# --- the word's vector ----------------------------------------------------------------------------


def compare_gaps(
    weights: Weights,
    texts: Sequence[TargetText],
    among: Candidates,
    split: CrossFit,
    held_out: HeldOutAxes,
    depth: int,
    *,
    seed: int,
) -> NounComparison:
    """The gaps of the nouns in the word's place beside the word's own, for one pair of senses.

    `texts`: by row · `depth`: where the word is read.
    """
    part = _pairs_within(split, among.rows, seed=seed)
    positions_of, left_out = _nouns_that_fit(among, part)
    nouns = tuple(positions_of)
    gap: list[Array] = []
    word_gap: list[Array] = []
    axis: list[Array] = []
    if nouns:
        variants = [among.ids, *(among.nouns[noun] for noun in nouns)]
        chosen = [texts[row] for row in part.rows]
        resid = replace_tokens(weights, chosen, variants, parts=("resid",)).resid
        for number, noun in enumerate(nouns, start=1):
            positions = positions_of[noun]
            fitting_part = restrict(part, positions)
            gap.append(squared_gap(resid[positions, number], fitting_part))
            word_gap.append(squared_gap(resid[positions, 0], fitting_part))
            axis.append(_along_axis(resid[positions, number], fitting_part, held_out))
    blank = np.empty((0, len(weights.blocks) + 1))
    return NounComparison(
        depth=depth,
        nouns=nouns,
        gap=np.array(gap) if nouns else blank,
        word_gap=np.array(word_gap) if nouns else blank,
        axis=np.array(axis) if nouns else blank,
        sentences=tuple(len(positions_of[noun]) for noun in nouns),
        reason=_why_no_gate(part, nouns),
        sentences_left_out=sum(row in among.reasons for row in split.rows),
        left_out=among.left_out | left_out if among.by_name else {},
    )


def ambiguity_gate(comparisons: Sequence[NounComparison]) -> list[NounComparison]:
    """The comparisons of a word's pairs of senses, with the p of the word's ambiguity gate.

    p = (1 + nouns with a g² of at least the word's) / (1 + nouns), g² at the read-out summed over
    the pairs of senses for which the gate can be asked, with the nouns that all of these have.
    """
    asked = [each for each in comparisons if not each.reason]
    if not asked:
        return list(comparisons)
    nouns = [noun for noun in asked[0].nouns if all(noun in each.nouns for each in asked)]
    if len(nouns) < FEWEST_NOUNS:
        reason = f"{TOO_FEW_NOUNS}: {len(nouns)} for all its senses, and {FEWEST_NOUNS} are needed"
        return [replace(each, reason=each.reason or reason) for each in comparisons]
    together = [each.take(nouns) for each in asked]
    of_noun = np.sum([each.gap[:, each.depth] for each in together], axis=0)
    of_word = np.sum([each.word_gap[:, each.depth] for each in together], axis=0)
    p = float((1 + np.sum(of_noun >= of_word)) / (1 + len(nouns)))
    return [each if each.reason else replace(each.take(nouns), p=p) for each in comparisons]


def _nouns_that_fit(
    among: Candidates, part: CrossFit
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The positions in the split at which each noun can stand, at most MOST_NOUNS nouns, and the
    reasons of the others."""
    positions_of: dict[str, list[int]] = {}
    left_out = {}
    for noun in among.nouns:
        fitting = set(rows_for(among, noun))
        positions = [number for number, row in enumerate(part.rows) if row in fitting]
        if len(positions) < FEWEST_SENTENCES or not restrict(part, positions).holdouts:
            left_out[noun] = (
                f"it can stand in {len(positions)} of the {len(part.rows)} sentences that are "
                f"compared, and {FEWEST_SENTENCES} are needed"
            )
        elif len(positions_of) == MOST_NOUNS:
            left_out[noun] = f"{MOST_NOUNS} others were compared"
        else:
            positions_of[noun] = positions
    return positions_of, left_out


def _why_no_gate(part: CrossFit, nouns: Sequence[str]) -> str:
    """Why the ambiguity gate cannot be asked, "" where it can."""
    if len(part.rows) < FEWEST_SENTENCES:
        return (
            f"it is a noun in its dictionary form in {len(part.rows)} of the paired sentences, and "
            f"{FEWEST_SENTENCES} are needed"
        )
    if len(nouns) < FEWEST_NOUNS:
        return f"{TOO_FEW_NOUNS}: {len(nouns)}, and {FEWEST_NOUNS} are needed"
    return ""


def _along_axis(resid: Tensor, split: CrossFit, held_out: HeldOutAxes) -> Array:
    """How far the two senses of a noun are apart along the word's own held-out axes, in the word's
    gaps. `row depth d_model -> depth`"""
    along = held_out.coordinates(resid, list(split.rows))
    of_a = np.asarray(split.is_a)
    tested = split.cells >= 0
    return np.asarray(along[tested & of_a].mean(0) - along[tested & ~of_a].mean(0))
