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
# # Where are the parameters of a transformer?
#
# The table that introductions print for GPT-3, and the same table for a loaded model, counted from its tensors and compared with the
# formula. Expect attention to have a third of GPT-3's parameters, and embeddings to have most of a small model's. A few seconds.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: In GPT-3 a third of the parameters belong to attention and nearly all others to MLPs; in a small model most belong to the embeddings.

# %%
import os
from pathlib import Path

import drawing
import pandas as pd

import probe
from probe import charts
from probe.model.parameters import count_parameters

charts.as_pictures()  # no network
model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))

# %% [markdown]
# ## GPT-3, by formula
#
# d_model 12,288, 96 layers of 96 heads, d_head 128, weight matrices only, as introductions count them. Every head has a query and a key
# matrix, and a value map with two factors: down to d_head, and up again.

# %%
gpt3 = count_parameters("gpt3")
{
    "per head": gpt3.per_head,
    "per block": gpt3.per_block,
    "attention": gpt3.attention,
    "all": gpt3.total,
}

# %%
gpt3.attention / gpt3.total

# %% [markdown]
# If the value map were one square matrix, it alone would have:

# %%
gpt3.square_value, gpt3.square_value / gpt3.per_head

# %% [markdown]
# ## The loaded model, from its tensors
#
# `count_parameters` adds up the sizes of the loaded tensors and raises an error if any part differs from the formula. A tied unembedding is
# counted once, with the embedding.

# %%
loaded = count_parameters(model)
(
    loaded.tensors,
    loaded.total,
    sum(tensor.numel() for tensor in model.weights.values()),
    loaded.sizes.tied,
)

# %%
counts = {"GPT-3 (matrices, by formula)": gpt3, f"{model.name} (all tensors, counted)": loaded}
rows = [
    {
        "model": name,
        "part": part.name,
        "shape": part.shape,
        "each": part.each,
        "number": part.number,
        "in_all": part.total,
        "share": part.total / counted.total,
    }
    for name, counted in counts.items()
    for part in counted.parts
]
for name, counted in counts.items():
    for part in ("per_head", "per_block", "attention", "total", "square_value"):
        number = getattr(counted, part)
        rows.append(
            {"model": name, "part": part, "in_all": number, "share": number / counted.total}
        )
table = pd.DataFrame(rows).astype(dict.fromkeys(("each", "number", "in_all"), "Int64"))
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "counting_parameters.csv", index=False, float_format="%.6g")
table

# %%
ATTENTION = ("query", "key", "value down", "value up")
GROUPS = dict.fromkeys(ATTENTION, "attention") | {"MLP up": "MLP", "MLP down": "MLP"}
GROUPS |= dict.fromkeys(("token embedding", "position embedding", "unembedding"), "embeddings")
grouped = [
    {"model": name, "part": GROUPS.get(part.name, "biases and norms"), "parameters": part.total}
    for name, counted in counts.items()
    for part in counted.parts
]
shares = pd.DataFrame(grouped).groupby(["model", "part"], as_index=False, sort=False).sum()
picture = drawing.parameter_bars(shares)
charts.save(picture, out / "counting_parameters.png")
picture
