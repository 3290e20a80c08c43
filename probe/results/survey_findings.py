"""The findings for a model over words, built once from the tables of its survey.

Pages and notebooks report a survey from this record. It has names and numbers and no sentences,
which are in the templates.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from probe.stats.limits import FEWEST_WORDS, GATE, LEVEL, SMALLEST

NAMED = 3  # heads that a sentence names
TOP_HEADS = 6  # heads that are shown word by word
FEW_WORDS = 20  # with fewer, statements about words in general are preliminary
SET_SIZE = 4  # heads in the set that a sentence describes, at most
OUTLIER = 3.0  # distance from the effect over all words, in standard deviations between words


@dataclass(frozen=True)
class HeadAcrossWords:
    """A head over all words. The fields are columns of `survey_heads`."""

    name: str  # e.g. L4H2
    layer: int
    head: int
    effect: float
    effect_low: float
    effect_high: float
    p: float
    between_words: float
    words_positive: int
    words_clear: int
    nouns: float
    more: float
    more_low: float
    more_high: float
    p_more: float
    comparison: str
    rank: int
    rank_low: int
    rank_high: int
    read_depth: int
    attention_cue: float = math.nan

    @property
    def significant(self) -> bool:
        """Whether its effect is significant and at least SMALLEST."""
        return self.p < LEVEL and self.effect >= SMALLEST

    @property
    def suggestive(self) -> bool:
        """Whether its interval is above 0 and its effect at least SMALLEST."""
        return self.effect_low > 0 and self.effect >= SMALLEST

    @property
    def opposes(self) -> bool:
        """Whether it significantly moves words the wrong way, by at least SMALLEST."""
        return self.p < LEVEL and self.effect <= -SMALLEST


@dataclass(frozen=True)
class CarriedOver:
    """A row of `survey_carry_over`: the share of the words' gaps that sets of heads keep."""

    k: int  # heads in a set
    words: int
    own: float  # top heads of the word itself
    own_low: float
    own_high: float
    others: float  # top heads of all other words, tested on the word that was left out
    others_low: float
    others_high: float
    random: float  # random sets of heads
    random_low: float
    random_high: float


@dataclass(frozen=True, eq=False)
class SurveyFindings:
    """The findings for a model over words.

    The numbers are columns of `survey_model` (see `probe.results.columns`), except as noted.
    """

    model: str  # name
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
    heads: tuple[HeadAcrossWords, ...]  # in the order of their ranks; empty if not ranked
    carry_over: tuple[CarriedOver, ...]  # by number of heads; empty if no sets were measured
    frames: Mapping[str, pd.DataFrame]  # of the survey

    @property
    def untrained_too(self) -> bool:
        """Whether a model with random weights has a significant gap as well."""
        return self.untrained_p < GATE

    @property
    def smallest_effect(self) -> float:
        """The smallest effect of a mover."""
        return SMALLEST

    @property
    def movers(self) -> tuple[HeadAcrossWords, ...]:
        """The heads that significantly move words."""
        return tuple(head for head in self.heads if head.significant)

    @property
    def movers_by_attention(self) -> int | None:
        """How many movers are among the n heads with the most attention to the cue, where n is the
        number of movers. None without marked cues.
        """
        if any(math.isnan(head.attention_cue) for head in self.heads):
            return None
        by_attention = sorted(self.heads, key=lambda head: -head.attention_cue)
        return sum(head.significant for head in by_attention[: len(self.movers)])

    @property
    def opposing(self) -> tuple[HeadAcrossWords, ...]:
        """The heads that significantly move words the wrong way."""
        return tuple(head for head in self.heads if head.opposes)

    @property
    def top_heads(self) -> tuple[HeadAcrossWords, ...]:
        """The top movers, at most TOP_HEADS. Without movers, the first NAMED suggestive heads."""
        suggestive = tuple(head for head in self.heads if head.suggestive)
        return self.movers[:TOP_HEADS] or suggestive[:NAMED]

    @property
    def is_ambiguity(self) -> bool:
        """Whether words significantly change with their meaning, and further than unambiguous nouns
        in their place.
        """
        return self.ranked and self.ambiguity_p < LEVEL and self.general_share < 1

    @property
    def too_few(self) -> bool:
        """Whether there are too few words for any test of the gap to pass."""
        return self.words < FEWEST_WORDS

    @property
    def times_as_far(self) -> float:
        """How many times as far words change as the nouns in their place: a ratio of distances.

        (squared gap of nouns / squared gap of words) ** -0.5
        """
        if not self.general_share > 0:
            return math.inf
        return 1 / math.sqrt(self.general_share)

    @property
    def has_few_words(self) -> bool:
        """Whether there are fewer than FEW_WORDS words."""
        return self.words < FEW_WORDS

    @property
    def carried_set(self) -> CarriedOver | None:
        """The set of heads that a sentence describes. None if no sets were measured."""
        # Random sets of more than half of the heads before the read-out are too similar to compare.
        largest = min(SET_SIZE, self.depth * self.number_of_heads // self.layers // 2)
        sizes = [each for each in self.carry_over if each.k <= largest]
        return sizes[-1] if sizes else None

    def by_comparison(self, comparison: str) -> tuple[HeadAcrossWords, ...]:
        """The movers whose effect on words is "more", "less" or the "same" as that on unambiguous
        nouns.
        """
        return tuple(head for head in self.movers if head.comparison == comparison)


def survey_findings(model: str, frames: Mapping[str, pd.DataFrame]) -> SurveyFindings:
    """The findings of a survey.

    model: name of the model
    frames: the tables of the survey, by name
    """
    [numbers] = frames["survey_model"].to_dict("records")
    rows = frames["survey_heads"].sort_values("rank").to_dict("records")
    heads = tuple(
        HeadAcrossWords(
            **{each.name: row[each.name] for each in fields(HeadAcrossWords) if each.name in row},
            name=f"L{row['layer']}H{row['head']}",
        )
        for row in rows
        if numbers["ranked"]
    )
    sets = frames.get("survey_carry_over", pd.DataFrame()).to_dict("records")
    columns = {name: numbers[name] for name in SurveyFindings.__annotations__ if name in numbers}
    return SurveyFindings(
        **columns
        | {
            "model": model,
            "number_of_heads": numbers["heads"],
            "heads": heads,
            "carry_over": tuple(CarriedOver(**_keywords(row)) for row in sets),
            "frames": frames,
        }
    )


def _keywords(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The row with its column names as strings, for keyword arguments."""
    return {str(name): value for name, value in row.items()}
