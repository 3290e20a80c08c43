"""What all pages share: one shell, and an error for a table that does not exist."""

import pandas as pd
import pytest
from inside import TEMPLATES, PageTables, rows_by_word
from jinja2 import UndefinedError
from page_text import ENVIRONMENT

WORDS = pd.DataFrame({"word": ["bank", "mole"], "gap": [0.9, 0.8]})


@pytest.mark.parametrize("page", ["report/ambiguity", "survey/survey", "cues/cues", "report/frame"])
def test_a_page_has_no_head_and_no_scripts_of_its_own(page):
    source = (TEMPLATES / f"{page}.html.j2").read_text(encoding="utf-8")
    assert source.startswith('{% extends "shell.html.j2" %}')
    assert "<html" not in source and "<script" not in source


def test_a_misspelt_table_is_an_error_and_one_of_a_removed_experiment_has_no_rows():
    frames = PageTables({"words": WORDS})
    rows = rows_by_word(frames)["mole"]
    assert rows["words"]["gap"].tolist() == [0.8]
    for tables in (frames, rows):
        assert tables["mixers"].empty
        with pytest.raises(KeyError, match="'mixer' is no table of a study"):
            tables["mixer"]
        assert ENVIRONMENT.from_string("{{ frames.mixers | length }}").render(frames=tables) == "0"
        with pytest.raises(UndefinedError):
            ENVIRONMENT.from_string("{{ frames.mixer | length }}").render(frames=tables)
