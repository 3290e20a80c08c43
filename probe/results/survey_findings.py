"""What was found of a model across words: the facts that pages and notebooks speak of, built once
from the tables of its survey. No sentences; what is said of a fact is the templates' business.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probe.patching.sets import HeadIndex
from probe.results.findings import head_name
from probe.stats.limits import FEWEST_WORDS, GATE, LEVEL, SMALLEST

NAMED = 3  # heads that a sentence names
LEADING = 6  # heads that are looked at word by word
FEW_WORDS = 20  # with fewer, what is said of words in general is a first look
SET_SIZE = 4  # heads of the set that a sentence speaks of, at most
OUTLIER = 3.0  # standard deviations between words from the effect over all of them


@dataclass(frozen=True)
class HeadAcrossWords:
    """A head over all words, by the names of the columns of `survey_heads`; `name` is L4H2.

    `shown`: its effect is at least SMALLEST and passes the corrected test.
    """

    name: str
    layer: int
    head: int
    effect: float
    effect_low: float
    effect_high: float
    p: float
    between_words: float
    words_positive: int
    words_clear: int
    general: float
    specific: float
    specific_low: float
    specific_high: float
    p_specific: float
    comparison: str
    rank: int
    rank_low: int
    rank_high: int
    read_depth: int
    attention_cue: float = math.nan

    @property
    def shown(self) -> bool:
        return self.p < LEVEL and self.effect >= SMALLEST

    @property
    def opposes(self) -> bool:
        """Whether it was shown to move words the wrong way."""
        return self.p < LEVEL and self.effect <= -SMALLEST


@dataclass(frozen=True)
class CarriedOver:
    """How much of the words' gaps `k` heads keep on a word that was left out (`others`), beside the
    word's own first heads and random sets; see `survey_carry_over`."""

    k: int
    words: int
    own: float
    own_low: float
    own_high: float
    others: float
    others_low: float
    others_high: float
    random: float
    random_low: float
    random_high: float

    @property
    def beats_random(self) -> bool:
        """Whether heads of other words keep more than random sets do, by both intervals."""
        return self.others_low > self.random_high


@dataclass(frozen=True, eq=False)
class SurveyFindings:
    """What was found of a model over words. `heads` are in the order of their ranks.

    The numbers of words, and what nouns in their place do, are those of `survey_model`; `movers`
    were shown to move words, `opposing` the wrong way · `carried`: one set of heads of other words,
    None where no sets were measured.
    """

    model: str
    layers: int
    number_of_heads: int
    words: int
    words_left_out: int
    words_without_gap: int
    words_clear: int
    words_compared: int
    sentences: int
    pairs: int
    depth: int
    separation: float
    gap_p: float
    untrained_p: float
    ranked: bool
    general_share: float
    general_low: float
    general_high: float
    ambiguity_p: float
    heads: tuple[HeadAcrossWords, ...]
    carry_over: tuple[CarriedOver, ...]
    frames: Mapping[str, pd.DataFrame]

    @property
    def untrained_too(self) -> bool:
        """Whether random weights show a gap as well."""
        return self.untrained_p < GATE

    @property
    def smallest(self) -> float:
        """The least effect that makes a head one of those that were shown to move words."""
        return SMALLEST

    @property
    def movers(self) -> tuple[HeadAcrossWords, ...]:
        return tuple(head for head in self.heads if head.shown)

    @property
    def movers_by_attention(self) -> int | None:
        """How many of the heads that were shown to move words are among as many that attend to the
        cue most; None where no cue is known."""
        if any(math.isnan(head.attention_cue) for head in self.heads):
            return None
        by_attention = sorted(self.heads, key=lambda head: -head.attention_cue)
        return sum(head.shown for head in by_attention[: len(self.movers)])

    @property
    def opposing(self) -> tuple[HeadAcrossWords, ...]:
        return tuple(head for head in self.heads if head.opposes)

    @property
    def leaders(self) -> tuple[HeadAcrossWords, ...]:
        """The first LEADING heads that were shown to move words; the first NAMED heads where none
        was."""
        return self.movers[:LEADING] or self.heads[:NAMED]

    @property
    def is_ambiguity(self) -> bool:
        """Whether words were shown to change with their meaning, and further than nouns of one
        meaning in their place."""
        return self.ranked and self.ambiguity_p < LEVEL and self.general_share < 1

    @property
    def too_few(self) -> bool:
        """Whether no test of the gap can pass with so few words."""
        return self.words < FEWEST_WORDS

    @property
    def times_as_far(self) -> float:
        """How many times as far words change as nouns in their place: a ratio of distances."""
        if not self.general_share > 0:
            return math.inf
        return 1 / math.sqrt(self.general_share)

    @property
    def few(self) -> bool:
        return self.words < FEW_WORDS

    @property
    def carried(self) -> CarriedOver | None:
        # Of most of the heads before the read-out random sets are nearly the same.
        most = min(SET_SIZE, self.depth * self.number_of_heads // self.layers // 2)
        sizes = [each for each in self.carry_over if each.k <= most]
        return sizes[-1] if sizes else None

    @property
    def leading_heads(self) -> tuple[HeadIndex, ...]:
        return tuple((head.layer, head.head) for head in self.leaders)

    def by_comparison(self, comparison: str) -> tuple[HeadAcrossWords, ...]:
        """The heads shown to move words that do more, less or the same for one-meaning nouns."""
        return tuple(head for head in self.movers if head.comparison == comparison)


def survey_findings(model: str, frames: Mapping[str, pd.DataFrame]) -> SurveyFindings:
    """What the tables of a model's survey say."""
    [line] = frames["survey_model"].to_dict("records")
    rows = frames["survey_heads"].sort_values("rank").to_dict("records")
    heads = tuple(_head(row) for row in rows if line["ranked"])
    carried = frames.get("survey_carry_over", pd.DataFrame()).to_dict("records")
    known = {name: line[name] for name in SurveyFindings.__annotations__ if name in line}
    return SurveyFindings(
        **known
        | {
            "model": model,
            "number_of_heads": line["heads"],
            "heads": heads,
            "carry_over": tuple(CarriedOver(**_named(row)) for row in carried),
            "frames": frames,
        }
    )


def _named(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in row.items()}


def _head(row: Mapping[Any, Any]) -> HeadAcrossWords:
    return HeadAcrossWords(name=head_name(row), **_named(row))
