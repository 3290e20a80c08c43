# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How do time and memory of a report grow?
#
# A report on one word with more sentences, more layers, more heads or longer texts, and a survey of more words, in small models with random
# weights. Expect at most linear growth with sentences, heads, texts and words. With layers, expect at most the growth of the planned work, which
# counts how many positions pass through how many blocks: every swapped head is followed through the layers above it. About two minutes;
# `--quick` takes two small sizes of each.
#
# Needs: a clone of the repository, for `timing` and `drawing` next to this script; no trained model; Linux, for memory. Writes into
# `reports` below the current folder, or where `PROBE_OUT` says.
#
# Shown: processor time and extra memory of a report and a survey, and their planned work, relative to the smallest size.

# %%
import os
import sys
from pathlib import Path

import drawing
import pandas as pd
import timing

from probe import charts

QUICK = "--quick" in sys.argv
out = Path(os.environ.get("PROBE_OUT", "reports"))

# %%
parts = [
    timing.report_growth(axis, sizes[:2] if QUICK else sizes) for axis, sizes in timing.AXES.items()
]
parts.append(timing.survey_growth(timing.WORDS[:2] if QUICK else timing.WORDS))
grown = pd.concat(parts, ignore_index=True)
exponents = timing.growth_exponents(grown)
exponents

# %% [markdown]
# ## The table and the picture
#
# An exponent of 1 is linear: twice the size takes twice the time. Below 1, what does not grow with the size is still a good part of it.

# %%
table = grown.merge(exponents, on=["of", "axis"], suffixes=("", "_exponent"))
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "growth.csv", index=False, float_format="%.4g")
table

# %%
KINDS = {"seconds": "time", "megabytes": "memory", "passes": "work"}
panels, rows = [], []
for row in exponents.to_dict("records"):
    here = grown[(grown["of"] == row["of"]) & (grown["axis"] == row["axis"])]
    title = ", ".join(f"{what} n^{row[name]:.2f}" for name, what in KINDS.items())
    x = f"{row['axis']} of a {row['of']}"
    panels.append(drawing.Panel(title, x, "times the smallest", log="xy"))
    for name, what in KINDS.items():
        values = here[name] / here[name].iloc[0]
        rows.append(
            pd.DataFrame({"panel": title, "variant": what, "x": here["size"], "value": values})
        )
picture = drawing.line_panels(pd.concat(rows, ignore_index=True), panels, width=150)
charts.save(picture, out / "growth.png")
picture
