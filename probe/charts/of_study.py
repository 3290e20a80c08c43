"""The pictures of a study, one for each of its tables that has one: `study.charts.heads()` draws
the word's part of `study.heads`.

A method is named after its table. It takes the frames of the study alone, so that pictures of a
saved study and of one that was just made are the same.
"""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from probe.charts.circuit import COMPONENTS, circuit, position_maps
from probe.charts.depth import depth_profiles
from probe.charts.evidence import distance_lines, head_part_bars, set_curves
from probe.charts.maps import (
    control_strips,
    head_map,
    mlps_at_word,
    separation_and_effect,
    survey_limit,
    survey_map,
)
from probe.charts.nouns import noun_gaps
from probe.charts.palette import head_names, of_word
from probe.charts.survey import carried_over, distances_by_depth
from probe.charts.writes import decomposition_bars, share_bars
from probe.claims.heads import leading
from probe.errors import InputError

TOP_HEADS = 3  # of a word, in the pictures that compare a few heads


class StudyCharts:
    """The pictures of a study's tables: altair charts, each of one word, by default the first.

    A picture raises InputError where its table has no rows for the word.

    Example:
        >>> study = probe.study("tiny-senses", "bank", permutations=99, max_pairs=8)
        >>> chart = study.charts.heads()
        >>> chart.to_dict()["description"][:12]
        'Map of bank:'
    """

    def __init__(self, frames: Mapping[str, pd.DataFrame]) -> None:
        """frames: the tables of a study or a survey, by name."""
        self._frames = frames

    def heads(self, word: str | None = None) -> alt.LayerChart | alt.VConcatChart:
        """The map of a word's heads: net swap effects by layer and head, with the MLPs if the study
        has traced them."""
        heads, word = self._of_word("word_heads", word)
        positions = self._frames.get("positions")
        mlps = None if positions is None else mlps_at_word(positions)
        depths = {name: self._read_at(name) for name in heads["word"].unique()}
        return head_map(heads, word, mlps, read_at=depths)

    def word_heads(self, word: str | None = None) -> alt.LayerChart:
        """The held-out AUROC of every head against its net swap effect."""
        return separation_and_effect(*self._of_word("word_heads", word))

    def depth(self, word: str | None = None) -> alt.ConcatChart:
        """The mean sense coordinates by depth, one picture for each pair of senses."""
        return depth_profiles(*self._of_word("depth", word))

    def controls(self, word: str | None = None) -> alt.LayerChart:
        """The gap by depth, compared with that of unambiguous nouns in the word's place."""
        controls, word = self._of_word("controls", word)
        return noun_gaps(controls, word, read_at=self._read_at(word))

    def separation_controls(self, word: str | None = None) -> alt.LayerChart:
        """The held-out AUROC of every head as measured and under each control."""
        controls, word = self._of_word("separation_controls", word)
        return control_strips(controls, word, marked=self._top_heads(word))

    def distances(
        self, word: str | None = None, *, heads: Sequence[str] | None = None
    ) -> alt.LayerChart:
        """The net effect by the distance from the cue; heads: names such as "L4H1", by default the
        word's top three."""
        distances, word = self._of_word("distances", word)
        return distance_lines(distances, word, heads or self._top_heads(word))

    def head_parts(
        self, word: str | None = None, *, heads: Sequence[str] | None = None
    ) -> alt.LayerChart:
        """The effect of swapping a whole head, its pattern or its values; heads: as in
        `distances`."""
        head_parts, word = self._of_word("head_parts", word)
        names = heads or self._top_heads(word)
        return head_part_bars(head_parts, self._frames["word_heads"], word, names)

    def curves(self, word: str | None = None) -> alt.LayerChart:
        """How much of the gap the top heads keep, by their number, next to random sets."""
        curves, word = self._of_word("curves", word)
        return set_curves(curves, self._frames["random_sets"], word)

    def shares(self, word: str | None = None) -> alt.LayerChart:
        """Direct shares of the gap by component, which sum to 1."""
        return share_bars(*self._of_word("shares", word))

    def decomposition(
        self, word: str | None = None, *, sentence: int | None = None
    ) -> alt.LayerChart:
        """One sentence's coordinate by source token; sentence: its number in the table
        `decomposition`, by default the first of the word."""
        rows, word = self._of_word("decomposition", word)
        number = of_word(rows, word)["sentence"].iloc[0] if sentence is None else sentence
        return decomposition_bars(rows, word, sentence=int(number))

    def positions(
        self, word: str | None = None, *, component: str = next(iter(COMPONENTS))
    ) -> alt.LayerChart:
        """The effects of single positions by layer; component: a value of that column."""
        positions, word = self._of_word("positions", word)
        if component not in COMPONENTS:
            raise InputError(
                f"Cannot draw the positions of {component!r}: it is not a component of the table. "
                f"Give one of {', '.join(COMPONENTS)}."
            )
        maps = dict(position_maps(positions, word))
        return maps[COMPONENTS[component]]

    def edges(self, word: str | None = None) -> alt.LayerChart:
        """The circuit from the cue to the word."""
        edges, word = self._of_word("edges", word)
        picture = circuit(edges, self._frames["positions"], word)
        if picture is None:
            raise InputError(
                f"Cannot draw the circuit of {word!r}: no edge moves the word far enough. Read the "
                "table edges instead."
            )
        return picture

    def survey_heads(self) -> alt.LayerChart | alt.VConcatChart:
        """The map of the heads over all words."""
        table = self._table("survey_heads")
        heads = table.dropna(subset="effect")
        return survey_map(heads, limit=survey_limit(heads))

    def survey_depths(self) -> alt.LayerChart:
        """The gap by depth over all words, next to that of unambiguous nouns."""
        depths = self._table("survey_depths")
        read_at = int(self._table("survey_model")["depth"].iloc[0])
        return distances_by_depth(depths, read_at=read_at)

    def survey_carry_over(self) -> alt.LayerChart:
        """How much of a word's gap the top heads of all other words keep."""
        return carried_over(self._table("survey_carry_over"))

    def _table(self, name: str) -> pd.DataFrame:
        """A table with rows. Raises InputError if it has no rows."""
        table = self._frames.get(name)
        if table is None or table.empty:
            raise InputError(
                f"Cannot draw {name}: this result has no rows in that table. Tables with rows are "
                f"{', '.join(key for key, frame in self._frames.items() if len(frame))}."
            )
        return table

    def _of_word(self, name: str, word: str | None) -> tuple[pd.DataFrame, str]:
        """A whole table and the word to draw. Raises InputError where it has no row of the word."""
        table = self._table(name)
        words = [str(item) for item in table["word"].unique()]
        drawn_word = words[0] if word is None else word
        if drawn_word not in words:
            raise InputError(
                f"Cannot draw {name} of {drawn_word!r}: the table has rows of {', '.join(words)}. "
                "Give one of these words."
            )
        return table, drawn_word

    def _read_at(self, word: str) -> int:
        """The read-out layer of a word."""
        return int(of_word(self._frames["words"], word)["depth"].iloc[0])

    def _top_heads(self, word: str) -> list[str]:
        """The names of a word's top heads."""
        return head_names(leading(of_word(self._frames["word_heads"], word))[:TOP_HEADS])
