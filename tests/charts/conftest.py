"""Charts must be drawn whatever the number of their rows."""

from collections.abc import Iterator

import altair as alt
import pytest


@pytest.fixture(autouse=True)
def no_rows_of_a_table() -> Iterator[None]:
    """Altair refuses any table, as it refuses one with more than 5,000 rows by default."""
    with alt.data_transformers.enable("default", max_rows=0):
        yield
