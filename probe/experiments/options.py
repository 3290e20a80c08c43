"""How much of a word is measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NounPlan:
    """How much is measured with unambiguous nouns.

    most_nouns: the largest number of nouns that replace the word; None for all that fit
    per_pair: nouns for each pair of sentences
    more_pairs: pairs of sentences in which nouns are run, in addition to the swapped pairs
    fewest_sentences: a noun must fit at least this many sentences
    mlps_per_pair: of these nouns, those with which MLPs are swapped as well
    """

    most_nouns: int | None
    per_pair: int
    more_pairs: int
    fewest_sentences: int
    mlps_per_pair: int


@dataclass(frozen=True)
class Options:
    """How much of a word is measured.

    seed: of every random choice
    pairs: the largest number of pairs of sentences, for each pair of senses, in which heads are
        swapped
    permutations: of the senses, for the separation of heads
    gate: whether no conclusion is drawn about two senses without a gap, so that no experiment is
        run on them
    one_of_many: whether the word is one of many in a sample; heads are then swapped even without a
        gap, and nouns are read at every depth
    next_token: whether swaps are also read in the prediction of the next token
    unfitted_donors: whether the axis must not be fitted on a same-sense donor; with two sentences
        for each sense, it would be fitted on every donor
    nouns: unambiguous nouns to replace the word; the shipped nouns if None, no nouns if ()
    noun_plan: how much is measured with nouns
    every_head: whether nouns are compared in every head, instead of only in the heads that move the
        word
    experiments: the names of the experiments to run, as in `probe.experiments.table`
    """

    seed: int
    pairs: int
    permutations: int
    gate: bool
    one_of_many: bool
    next_token: bool
    unfitted_donors: bool
    nouns: tuple[str, ...] | None
    noun_plan: NounPlan
    every_head: bool
    experiments: frozenset[str]
