"""How much is measured of a word."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NounPlan:
    """How much is measured of unambiguous nouns.

    most: nouns that take the word's place, at most.
    per_pair: nouns that every pair of sentences is shared out to.
    more_pairs: of sentences, beside the swapped ones, that nouns are run in.
    fewest_sentences: in which a noun must be able to stand.
    mlps_per_pair: nouns of these with which MLPs are swapped.
    """

    most: int
    per_pair: int
    more_pairs: int
    fewest_sentences: int
    mlps_per_pair: int


@dataclass(frozen=True)
class Options:
    """How much is measured of a word.

    seed: of every random choice.
    pairs: of sentences, of each two senses, in which heads are swapped, at most.
    permutations: of the senses, for the separation of heads.
    gate: whether nothing is concluded for two senses without a gap, so that no experiment is run.
    one_of_many: whether the word is one of many, over which something is concluded: heads are then
        swapped even without a gap, and nouns are read at every depth.
    next_token: whether swaps are also read in what the model says next.
    unfitted_donors: whether a same-sense donor must be a sentence that the axis was not fitted on;
        with two sentences of a sense every other one would be.
    nouns: unambiguous nouns to put in the word's place; those that ship for None, none for ().
    noun_plan: how much is measured of them.
    every_head: whether nouns are compared in every head; else in those that move the word.
    experiments: those that are run, by their names in `probe.experiments.table`.
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
