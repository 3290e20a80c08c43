"""The charts of a study under the names of its tables, and its tables as attributes."""

import inspect

import altair as alt
import pandas as pd
import pytest
from example_study import make_study
from example_survey import make_survey

import probe
from probe.charts.of_study import StudyCharts
from probe.charts.palette import of_word
from probe.errors import InputError
from probe.results.tables import StudyTables, SurveyTables, TableAttribute

pytestmark = pytest.mark.usefixtures("no_rows_of_a_table")

STUDY = make_study()
NAMES = [name for name, _ in inspect.getmembers(StudyCharts, inspect.isfunction) if name[0] != "_"]


def tables_of(kind: type) -> set[str]:
    return {
        name
        for each in kind.__mro__
        for name, value in vars(each).items()
        if type(value) is TableAttribute
    }


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("survey")])
def test_a_chart_of_a_study_has_the_name_of_its_table(name: str) -> None:
    assert name in tables_of(StudyTables)
    for word in (None, "mole"):
        chart = getattr(STUDY.charts, name)(word) if len(STUDY.frames[name]) else None
        if chart is not None:
            chart_type = inspect.signature(getattr(StudyCharts, name)).return_annotation
            assert isinstance(chart, chart_type) and "description" in chart.to_dict()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("survey")])
def test_charts_of_many_words_belong_to_a_survey(name: str) -> None:
    chart = getattr(make_survey().charts, name)()
    assert name in tables_of(SurveyTables) and "description" in chart.to_dict()


@pytest.mark.parametrize("name", ["heads", "word_heads", "separation_controls"])
def test_a_chart_of_a_model_with_10240_heads_is_drawn(name: str) -> None:
    table = "word_heads" if name == "heads" else name
    rows = of_word(STUDY.frames[table], "bank")
    [*_, first] = [group for _, group in rows.groupby(["layer", "head"])]
    cells = pd.MultiIndex.from_product([range(128), range(80)], names=["layer", "head"])
    many = cells.to_frame(index=False).merge(first.drop(columns=["layer", "head"]), how="cross")
    frames = {key: frame for key, frame in STUDY.frames.items() if key != "positions"}
    with alt.data_transformers.enable("default"):  # with altair's own limit
        spec = getattr(StudyCharts(frames | {table: many}), name)("bank").to_dict()
    drawn = {
        (row.get("layer"), row.get("head")) for rows in spec["datasets"].values() for row in rows
    }
    assert drawn >= {*cells}


def test_a_chart_without_rows_is_an_input_error() -> None:
    with pytest.raises(InputError, match="^Cannot draw depth of 'bat': the table has rows of bank"):
        STUDY.charts.depth("bat")
    with pytest.raises(InputError, match="^Cannot draw survey_heads: this result has no rows in"):
        STUDY.charts.survey_heads()


def test_every_table_is_an_annotated_attribute() -> None:
    frames = {*STUDY.frames, *make_survey().frames, "readings"}
    # `certificate` is the record, whose rows are in the table of that name.
    assert frames - {"certificate"} == tables_of(StudyTables)
    assert STUDY.heads is STUDY.frames["heads"] and isinstance(STUDY.heads, pd.DataFrame)
    with pytest.raises(AttributeError, match="^this study has no 'wrods'; its frames are words, "):
        STUDY.wrods  # noqa: B018
    with pytest.raises(AttributeError, match="^this study has no 'survey_heads'; its frames are "):
        STUDY.survey_heads  # noqa: B018


def test_help_shows_the_types_of_a_functions_arguments() -> None:
    for function in (probe.patch, probe.study, probe.load, probe.evaluate, probe.trace):
        first = str(inspect.signature(function)).partition(",")[0]
        assert first in ("(model: ModelSource", "(source: ModelSource")
