"""Data with a name, which the script of a page may replace by others of the same shape: the chart then follows."""

from typing import Any

import altair as alt
import pandas as pd


def live(rows: pd.DataFrame, name: str) -> Any:
    """The rows as the named data of a chart; columns keep the types that the chart's encodings state."""
    return alt.InlineData(values=rows.astype(object).where(rows.notna(), None).to_dict("records"), name=name)
