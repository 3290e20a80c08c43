"""The tables of a result as typed attributes, so that editors complete them: `study.heads` is
`study.frames["heads"]`. And the tables that a page reads, of which some may be absent.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, overload

import pandas as pd


class TableAttribute:
    """An attribute that returns the table of its name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, result: None, owner: type) -> Self: ...
    @overload
    def __get__(self, result: object, owner: type) -> pd.DataFrame: ...
    def __get__(self, result: Any, owner: type) -> Any:
        return self if result is None else result._table(self._name)


class Tables:
    """A result with tables by name in `frames`."""

    frames: dict[str, pd.DataFrame]

    def _table(self, name: str) -> pd.DataFrame:
        """The table of this name. Raises AttributeError if the result has no such table."""
        # While a copy is unpickled, attributes are looked up before `frames` is set.
        frames = self.__dict__.get("frames", {})
        if name not in frames:
            kind = type(self).__name__.lower()
            raise AttributeError(f"this {kind} has no {name!r}; its frames are {', '.join(frames)}")
        table: pd.DataFrame = frames[name]
        return table

    if not TYPE_CHECKING:  # a type checker would take every misspelt name for a table

        def __getattr__(self, name):
            return self._table(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.frames]


class SurveyTables(Tables):
    """The tables over many words: of a survey, and of a study of at least seven words."""

    survey_model = TableAttribute()  # one row: how many words, and where they are read
    survey_heads = TableAttribute()  # every head over all words
    survey_words = TableAttribute()  # every word, or why it was not measured
    survey_depths = TableAttribute()  # gaps and separation by depth, means over the words
    survey_numbers = (
        TableAttribute()
    )  # correlations of the words' gaps with numbers of the input file
    survey_sets = TableAttribute()  # top heads of the other words, tested on each word
    survey_carry_over = TableAttribute()  # top heads of the other words, over all words
    survey_left_out = TableAttribute()  # how many sentences of each word were not used, by reason


class StudyTables(SurveyTables):
    """The tables of a study."""

    words = TableAttribute()  # every word and pair of senses: sample sizes, gap and its tests
    heads = TableAttribute()  # every head for every pair of senses
    verdicts = TableAttribute()  # the verdict on every head, with its reasons
    word_heads = TableAttribute()  # every head for every word, means over its pairs of senses
    distances = TableAttribute()  # net effects by the distance from the cue
    by_depth = TableAttribute()  # the net effect of every head at every later depth
    depth = TableAttribute()  # how far apart the senses are at every depth
    sentences = TableAttribute()  # every sentence, and its use
    left_out = TableAttribute()  # what was left out of the input, with the reason
    controls = TableAttribute()  # unambiguous nouns in the word's place, by depth
    mlps = TableAttribute()  # the effect of every MLP on the word and on unambiguous nouns
    mixers = TableAttribute()  # the mixers that replace attention in some layers of a hybrid
    head_parts = TableAttribute()  # swaps of parts of a head: its pattern, its values, its mean
    curves = TableAttribute()  # how much of the gap the top heads keep, by their number
    random_sets = TableAttribute()  # how much of the gap random sets of heads keep
    separation_controls = TableAttribute()  # AUROC of every head under each control
    shares = TableAttribute()  # direct shares of the gap by component
    predictions = TableAttribute()  # every tested sentence: its coordinate and the nearest sense
    why_it_attends = TableAttribute()  # why the top heads attend to the cue
    qk_attribution = TableAttribute()  # their scores at the cue, split into pairs of parts
    qk_interventions = (
        TableAttribute()
    )  # the score and attention that are lost when one part is replaced
    ov_attribution = TableAttribute()  # the heads' write from the cue, part by part
    cue_sample = TableAttribute()  # a sample of the vocabulary as the cue
    cue_samples = TableAttribute()  # the samples of cues in a row each
    profiles = TableAttribute()  # what every head does in general
    elsewhere = TableAttribute()  # natural sentences in which the top heads write most
    directions = TableAttribute()  # leading singular directions of their matrices, as tokens
    readings = TableAttribute()  # the coordinate of every sentence
    decomposition = TableAttribute()  # the coordinate of some sentences by token and component
    showcase = TableAttribute()  # the sentences that a page shows
    positions = TableAttribute()  # effects of single positions, layer by layer
    edges = TableAttribute()  # edges between senders and receivers


class PageTables(dict[str, pd.DataFrame]):
    """The tables that a page of a study reads, by name.

    A table of a study that is absent has no rows and no columns, because its experiment was not run
    or may have been removed. Any other name is a KeyError.
    """

    def __missing__(self, name: str) -> pd.DataFrame:
        if isinstance(getattr(StudyTables, name, None), TableAttribute):
            return pd.DataFrame()
        raise KeyError(f"{name!r} is no table of a study")


def rows_by_word(frames: Mapping[str, pd.DataFrame]) -> dict[str, PageTables]:
    """The rows of each word, by word and table, for every table with a column `word`.

    Example:
        >>> import pandas as pd
        >>> from probe.results.tables import rows_by_word
        >>> words = pd.DataFrame({"word": ["bank", "mole", "mole"], "gap": [0.9, 0.8, 0.7]})
        >>> {word: len(rows["words"]) for word, rows in rows_by_word({"words": words}).items()}
        {'bank': 1, 'mole': 2}
    """
    with_word = {name: frame for name, frame in frames.items() if "word" in frame}
    return {
        str(word): PageTables(
            {name: frame[(frame["word"] == word).to_numpy()] for name, frame in with_word.items()}
        )
        for word in frames["words"]["word"].unique()
    }
