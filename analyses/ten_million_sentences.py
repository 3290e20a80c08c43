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
# # What does a sweep over ten million sentences cost?
#
# Measured: how many sentences per second one process measures with the embedded model and with a model of GPT-2 small's shape, and
# how many it reads and deals out (`reports/sweep_throughput.csv`, made in one run on a machine with two cores). Everything else is
# extrapolated. Expect the measuring to shrink with every machine that is added, and the reading, which one process does, to stay. A second.
#
# Needs: a clone of the repository, for `reports/sweep_throughput.csv` and `drawing` beside this script. Writes into `reports/lessons` below
# the current folder, or where `PROBE_OUT` says.
#
# Shown: Ten million sentences by the number of machines: every machine helps until reading, which one process does, is what is left.

# %%
import os
from pathlib import Path

import drawing
import pandas as pd

from probe import charts

charts.as_pictures()  # no network
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
here = Path(globals().get("__file__", "analyses/ten_million_sentences.py")).resolve().parent.parent
measured = pd.read_csv(here / "reports" / "sweep_throughput.csv").set_index(
    ["model", "engine", "workers"]
)
measured

# %% [markdown]
# ## The assumptions
#
# 1. Sentences are as long as those that were measured (`tokens` up to the word; what comes after it is never run).
# 2. Two processes per machine, each with a core of its own and as fast as one of two Dask workers was.
# 3. Shards do not wait for each other: a machine more is two processes more. Only keys and counts travel.
# 4. Reading and dealing out stays in one process, and pass one is small: at most 512 sentences per sense, however many there are.
# 5. GPT-2 medium, which was not measured, costs as much more than GPT-2 small's shape as it takes multiplications: the sentence once
#    through the hooked model, what stands before the word once more, and for every head and two donors one vector from that head's
#    layer to the top.
# 6. Disks are not the limit, and nothing fails. A kill costs at most the shards that were being made.

# %%
SENTENCES, PROCESSES = 10_000_000, 2
SMALL = "GPT-2 small's shape"
tokens = float(measured["tokens"].iloc[0])


def multiplications(layers: int, heads: int, d_model: int, d_mlp: int) -> float:
    """Per sentence: twice every token through every block, and two donors' swaps of every head, one vector each."""
    block = 4 * d_model**2 + 2 * d_model * d_mlp
    swaps = sum(1 + heads * (layer + 1) for layer in range(layers))
    return block * (2 * tokens * layers + 2 * swaps)


more = multiplications(24, 16, 1024, 4096) / multiplications(12, 12, 768, 3072)
rates = {
    "tiny-senses": float(measured.loc[("tiny-senses", "dask", 2), "per_worker"]),
    SMALL: float(measured.loc[(SMALL, "local", 1), "per_worker"]),
    "GPT-2 medium, extrapolated": float(measured.loc[(SMALL, "local", 1), "per_worker"]) / more,
}
rates

# %%
reading = SENTENCES / float(measured.loc[("tiny-senses", "reading", 1), "per_second"]) / 3600
rows = []
for name, per_process in rates.items():
    for machines in (1, 10, 100):
        per_second = per_process * PROCESSES * machines
        hours = SENTENCES / per_second / 3600
        facts = {"model": name, "machines": machines, "sentences_per_second": per_second}
        rows.append(
            facts | {"reading_hours": reading, "measuring_hours": hours, "hours": reading + hours}
        )
table = pd.DataFrame(rows)
table["machine_hours"] = table["measuring_hours"] * table["machines"]
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "ten_million_sentences.csv", index=False, float_format="%.6g")
table

# %% [markdown]
# What is not shown: that any of this was run. Ten million sentences were not, nor ten machines. Longer sentences cost more in
# proportion, and an hour on the machine at hand says more about it than these assumptions.

# %%
panels = [drawing.Panel(name, "machines", "hours", "xy") for name in rates]
long = table.melt(["model", "machines"], ["hours", "measuring_hours"], "variant", "value")
long["variant"] = long["variant"].map({"hours": "all of it", "measuring_hours": "measuring alone"})
picture = drawing.line_panels(long.rename(columns={"model": "panel", "machines": "x"}), panels)
charts.save(picture, out / "ten_million_sentences.png")
picture
