"""The tables of a result as attributes with a type: `study.heads` is `study.frames["heads"]`, and
an editor knows it.
"""

from typing import TYPE_CHECKING, Any, Self, overload

import pandas as pd


class Table:
    """A table of a result, by the name of the attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, result: None, owner: type) -> Self: ...
    @overload
    def __get__(self, result: object, owner: type) -> pd.DataFrame: ...
    def __get__(self, result: Any, owner: type) -> Any:
        return self if result is None else result._table(self._name)


class Tables:
    """What holds tables in `frames`, by name."""

    frames: dict[str, pd.DataFrame]

    def _table(self, name: str) -> pd.DataFrame:
        """A table. Raises AttributeError for one that this result does not have."""
        # An unpickled copy asks for attributes before it has any.
        frames = self.__dict__.get("frames", {})
        if name not in frames:
            kind = type(self).__name__.lower()
            raise AttributeError(f"a {kind} has no {name!r}; its frames are {', '.join(frames)}")
        table: pd.DataFrame = frames[name]
        return table

    if not TYPE_CHECKING:  # where it would make every misspelt name a table

        def __getattr__(self, name):
            return self._table(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.frames]


class SurveyTables(Tables):
    """The tables that hold over many words: of a survey, and of a study of seven words or more."""

    survey_model = Table()  # one row: how many words, and where they are read
    survey_heads = Table()  # every head over all words
    survey_words = Table()  # every word, or why it was not measured
    survey_depths = Table()  # gaps and separation by depth, means over the words
    survey_numbers = Table()  # the words' gaps against numbers of the file
    survey_sets = Table()  # top heads of the other words, tried on each word
    survey_carry_over = Table()  # the same over all words
    survey_left_out = Table()  # what was not used of each word, by reason


class StudyTables(SurveyTables):
    """The tables of a study."""

    words = Table()  # every word and pair of senses: is the gap there
    heads = Table()  # every head for every pair of senses
    verdicts = Table()  # the verdict on every head, with its reasons
    word_heads = Table()  # every head for every word, means over its pairs of senses
    distances = Table()  # net effects by the distance from the cue
    by_depth = Table()  # the net effect of every head at every later depth
    depth = Table()  # how far apart the senses are at every depth
    sentences = Table()  # every sentence, and what it was used for
    left_out = Table()  # what was given and not used, with the reason
    controls = Table()  # unambiguous nouns in the word's place, by depth
    mlps = Table()  # every MLP at the word, and how much of its effect any noun has
    mixers = Table()  # what takes the place of attention in some layers of a hybrid
    head_parts = Table()  # what of a head is swapped: its pattern, its values, its mean
    curves = Table()  # how much of the gap the top heads keep, by their number
    random_sets = Table()  # the same of random sets of heads
    separation_controls = Table()  # AUROC of every head under each control
    shares = Table()  # direct shares of the gap by component
    predictions = Table()  # every sentence as it is read: its coordinate and the nearest sense
    why_it_attends = Table()  # why the leading heads attend to the cue
    qk_attribution = Table()  # their scores at the cue, split into pairs of parts
    qk_interventions = Table()  # what is lost when one part is replaced
    ov_attribution = Table()  # what they take from the cue, part by part
    cue_sample = Table()  # a sample of the vocabulary as the cue
    cue_samples = Table()  # the samples of cues in a line each
    readings = Table()  # the coordinate of every sentence
    decomposition = Table()  # the coordinate of some sentences by token and component
    showcase = Table()  # the sentences that a page shows
    positions = Table()  # effects of single positions, layer by layer
    edges = Table()  # edges from what writes to what reads it
    paths = Table()  # whole paths from the cue to the word
    beside = Table()  # sentences with a late cue, in a second model
