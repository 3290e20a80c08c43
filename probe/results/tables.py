"""The tables of a result as typed attributes, so that editors complete them: `study.heads` is
`study.frames["heads"]`. And the tables that a page reads, of which some may be absent.
"""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd


class Tables:
    """A result with tables by name in `frames`."""

    frames: dict[str, pd.DataFrame]

    if not TYPE_CHECKING:  # a type checker would take every misspelt name for a table

        def __getattr__(self, name):
            # While a copy is unpickled, attributes are looked up before `frames` is set.
            frames = self.__dict__.get("frames", {})
            if name not in frames:
                kind = type(self).__name__.lower()
                names = ", ".join(frames)
                raise AttributeError(f"this {kind} has no {name!r}; its frames are {names}")
            return frames[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.frames]


class SurveyTables(Tables):
    """The tables over many words: of a survey, and of a study of at least seven words."""

    survey_model: pd.DataFrame  # one row: how many words, and where they are read
    survey_heads: pd.DataFrame  # every head over all words
    survey_words: pd.DataFrame  # every word, or why it was not measured
    survey_depths: pd.DataFrame  # gaps and separation by depth, means over the words
    survey_numbers: pd.DataFrame  # correlations of the words' gaps with numbers of the input file
    survey_sets: pd.DataFrame  # top heads of the other words, tested on each word
    survey_carry_over: pd.DataFrame  # top heads of the other words, over all words
    survey_left_out: pd.DataFrame  # how many sentences of each word were not used, by reason


class StudyTables(SurveyTables):
    """The tables of a study."""

    words: pd.DataFrame  # every word and pair of senses: sample sizes, gap and its tests
    heads: pd.DataFrame  # every head for every pair of senses
    verdicts: pd.DataFrame  # the verdict on every head, with its reasons
    word_heads: pd.DataFrame  # every head for every word, means over its pairs of senses
    distances: pd.DataFrame  # net effects by the distance from the cue
    by_depth: pd.DataFrame  # the net effect of every head at every later depth
    depth: pd.DataFrame  # how far apart the senses are at every depth
    sentences: pd.DataFrame  # every sentence, and its use
    left_out: pd.DataFrame  # what was left out of the input, with the reason
    controls: pd.DataFrame  # unambiguous nouns in the word's place, by depth
    mlps: pd.DataFrame  # the effect of every MLP on the word and on unambiguous nouns
    mixers: pd.DataFrame  # the mixers that replace attention in some layers of a hybrid
    head_parts: pd.DataFrame  # swaps of parts of a head: its pattern, its values, its mean
    curves: pd.DataFrame  # how much of the gap the top heads keep, by their number
    random_sets: pd.DataFrame  # how much of the gap random sets of heads keep
    separation_controls: pd.DataFrame  # AUROC of every head under each control
    shares: pd.DataFrame  # direct shares of the gap by component
    predictions: pd.DataFrame  # every tested sentence: its coordinate and the nearest sense
    why_it_attends: pd.DataFrame  # why the top heads attend to the cue
    qk_attribution: pd.DataFrame  # their scores at the cue, split into pairs of parts
    qk_interventions: pd.DataFrame  # score and attention that are lost if a part is replaced
    ov_attribution: pd.DataFrame  # the heads' write from the cue, part by part
    cue_sample: pd.DataFrame  # a sample of the vocabulary as the cue
    cue_samples: pd.DataFrame  # the samples of cues in a row each
    profiles: pd.DataFrame  # what every head does in general
    elsewhere: pd.DataFrame  # natural sentences in which the top heads write most
    directions: pd.DataFrame  # leading singular directions of their matrices, as tokens
    readings: pd.DataFrame  # the coordinate of every sentence
    decomposition: pd.DataFrame  # the coordinate of some sentences by token and component
    showcase: pd.DataFrame  # the sentences that a page shows
    positions: pd.DataFrame  # effects of single positions, layer by layer
    edges: pd.DataFrame  # edges between senders and receivers


class EvaluationTables(Tables):
    """The tables that every evaluation has."""

    words: pd.DataFrame  # every word at its chosen depth, with the baselines
    depths: pd.DataFrame  # every word at every depth
    mean: pd.DataFrame  # every method and depth, averaged over the words
    left_out: pd.DataFrame  # what was not used, with the reason


def table_names(result: type[Tables]) -> set[str]:
    """The names of the tables that results of a class may have."""
    return {name for each in result.__mro__ for name in inspect.get_annotations(each)} - {"frames"}


class PageTables(dict[str, pd.DataFrame]):
    """The tables that a page of a study reads, by name.

    A table of a study that is absent has no rows and no columns, because its experiment was not run
    or may have been removed. Any other name is a KeyError.
    """

    def __missing__(self, name: str) -> pd.DataFrame:
        if name in table_names(StudyTables):
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
