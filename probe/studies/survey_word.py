"""One word of a survey: the choice of its sentences, and its record.

Words are the sample, so little is measured of each word: few pairs of sentences. Two sentences of
each of two senses are enough. Unusable sentences raise no error: they are counted by reason.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from probe.errors import InputError
from probe.experiments.carried_sets import carry_over
from probe.experiments.design import make_pairs
from probe.experiments.material import LATE, Material, SensePairSplits, prepare_counted, unused
from probe.experiments.measure import measure, unmeasured
from probe.experiments.observe import observe
from probe.experiments.options import NounPlan, Options
from probe.experiments.record import WordRecord
from probe.model.load import untrained
from probe.model.model import Model
from probe.model.weights import weights_of
from probe.patching.sets import HeadIndex
from probe.progress import Progress, silent
from probe.provenance import digest_of
from probe.stats import axes
from probe.text.sentences import LeftOut, Sentence
from probe.text.splits import ONE_SENSE, SURVEY_LEAST, cross_fit

if TYPE_CHECKING:
    import xarray as xr

MOST_SENTENCES = 512  # of a sense: more would make a word's mean more precise, but add no word
# Pairs of sentences of a word in which heads are swapped: words are the sample, not sentences.
MOST_PAIRS = 8
# How much of each word a survey without pages measures.
SURVEY = Options(
    seed=0,
    pairs=MOST_PAIRS,
    permutations=0,
    gate=False,
    one_of_many=True,
    next_token=False,
    unfitted_donors=True,
    nouns=None,
    noun_plan=NounPlan(
        most_nouns=3, per_pair=1, more_pairs=MOST_SENTENCES, fewest_sentences=0, mlps_per_pair=0
    ),
    every_head=True,
    experiments=frozenset(("senses", "heads", "nouns")),
)
# Reasons why a sentence is not used.
SAMPLED = f"its sense has more than {MOST_SENTENCES} sentences, and a uniform sample is used"
ALONE = "its sense has one sentence, and two are needed"
# A reason why a word is not measured; the others are LATE and ONE_SENSE.
NOT_APART = "no two of its senses have two sentences each with cue words that can be split"


@dataclass(frozen=True)
class ChosenSentences:
    """The sentences of a word that a survey uses.

    material: the sentences in tokens
    splits: how they are held out. Pairs of senses whose sentences cannot be split are absent
    not_sampled: the number of sentences that a uniform sample leaves out
    """

    material: Material
    splits: SensePairSplits
    not_sampled: int

    @property
    def why_unmeasured(self) -> str:
        """The reason why nothing can be measured on these sentences; "" if something can."""
        if self.splits:
            return ""
        reasons = [item.reason for item in self.material.left_out]
        if len(set(self.material.labels)) > 1:
            return NOT_APART
        if LATE in reasons:
            return LATE
        return NOT_APART if ALONE in reasons else ONE_SENSE


def measure_word(
    model: Model,
    sentences: Sequence[Sentence],
    options: Options = SURVEY,
    progress: Progress = silent,
) -> WordRecord:
    """The record of one word from all of its sentences.

    progress: called with the stage and the share of the work that is done

    Example:
        >>> from dataclasses import replace
        >>> from probe.studies.survey_word import SURVEY, measure_word
        >>> sentences = probe.lexicon.expand("bank").sentences[:96]
        >>> options = replace(SURVEY, nouns=())
        >>> record = measure_word(probe.load("tiny-senses"), sentences, options)
        >>> record.senses[0].sizes["sentence_pair"]
        8
    """
    chosen = choose_sentences(model, sentences, options.seed)
    if chosen.why_unmeasured:
        record = unmeasured(model, chosen.material, sentences, chosen.why_unmeasured)
    else:
        record = measure(
            model,
            chosen.material,
            chosen.splits,
            replace(options, pairs=pairs_of_each(options.pairs, chosen.splits)),
            random_model=untrained(model, seed=options.seed),
            report=progress,
        )
    not_used = Counter(record.not_used) + Counter({SAMPLED: chosen.not_sampled})
    return replace(record, not_used=dict(not_used))


@dataclass(frozen=True)
class WordPlan:
    """What a survey would use of one word's sentences.

    sentences: the number of sentences in which the word is read
    pairs: the number of pairs of sentences in which heads are swapped
    pairs_in_all: the number of pairs of sentences
    limit: the largest number of pairs for two senses in which heads are swapped
    left_out: the number of unused sentences, by reason
    reason: why nothing can be measured; "" if the word can be measured
    """

    word: str
    sentences: int
    pairs: int
    pairs_in_all: int
    limit: int
    left_out: Mapping[str, int]
    reason: str


def plan_word(chosen: ChosenSentences, options: Options = SURVEY) -> WordPlan:
    """What `measure_word` would use of a word. Nothing is run."""
    material = chosen.material
    splits = chosen.splits
    left_out = Counter(item.reason for item in unused(material, list(splits.values())))
    left_out[SAMPLED] += chosen.not_sampled
    if chosen.why_unmeasured:
        left_out[chosen.why_unmeasured] += len(material)
    limit = options.pairs
    if options.experiments == SURVEY.experiments:
        limit = pairs_of_each(limit, splits)
    tested = [len(split.tested_pairs) for split in splits.values()]
    return WordPlan(
        word=material.word,
        sentences=len({row for split in splits.values() for row in split.rows}),
        pairs=sum(min(limit, number) for number in tested),
        pairs_in_all=sum(tested),
        limit=limit,
        left_out={name: left_out[name] for name in sorted(left_out) if left_out[name]},
        reason=chosen.why_unmeasured,
    )


def measure_sets(
    model: Model,
    sentences: Sequence[Sentence],
    order: Sequence[HeadIndex],
    *,
    depth: int,
    seed: int = 0,
) -> "xr.Dataset":
    """The effect of the top heads on a word, in an order that comes from other words.

    depth: the read-out layer
    """
    chosen = choose_sentences(model, sentences, seed)
    material = chosen.material
    observation = observe(model, material, chosen.splits, seed=seed, next_token=False)
    pairs = [
        make_pairs(
            material.sentences,
            material.distances,
            sense.split,
            limit=pairs_of_each(MOST_PAIRS, chosen.splits),
            seed=seed,
            unfitted_donors=True,
        )
        for sense in observation.pairs
    ]
    return carry_over(weights_of(model), observation, pairs, order, depth=depth, seed=seed)


def choose_sentences(model: Model, sentences: Sequence[Sentence], seed: int) -> ChosenSentences:
    """The sentences of a word that a survey uses.

    sentences: all sentences of the word
    """
    sampled = sample_of(sentences)
    material = prepare_counted(model, sentences[0].word, sampled)
    count = Counter(material.labels)
    rows = [row for row, sense in enumerate(material.labels) if count[sense] > 1]
    alone = [sentence for sentence in material.sentences if count[sentence.sense] == 1]
    material = material.keep(rows, [LeftOut(sentence.text, ALONE) for sentence in alone])
    splits = {}
    for senses in axes.sense_pairs(material.labels):
        try:
            split = cross_fit(material.sentences, senses, seed=seed, least=SURVEY_LEAST)
        except InputError:  # their cue words or pairs cannot be split
            continue
        splits[senses] = split
    return ChosenSentences(material, splits, not_sampled=len(sentences) - len(sampled))


def sample_of(sentences: Sequence[Sentence]) -> list[Sentence]:
    """At most MOST_SENTENCES of each sense, in their order: the sentences whose pair, or text, has
    the lowest hash, so that both members of a pair are in the sample or neither."""
    by_sense: dict[str, list[int]] = {}
    for row, sentence in enumerate(sentences):
        by_sense.setdefault(sentence.sense, []).append(row)
    # A hash is as good as random, and does not change when a file gets more sentences.
    sample: list[int] = []
    for rows in by_sense.values():
        rows = sorted(rows, key=lambda row: digest_of(sentences[row].pair or sentences[row].text))
        sample += rows[:MOST_SENTENCES]
    return [sentences[row] for row in sorted(sample)]


def pairs_of_each(pairs: int, splits: SensePairSplits) -> int:
    """The number of pairs of sentences in which heads are swapped for each pair of senses, at least
    1.

    pairs: the number for the whole word
    splits: by pair of senses
    """
    return max(1, pairs // max(1, len(splits)))
