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
# # What does the mask hide?
#
# Expect: everything that comes later. The scores of later words are set to minus infinity before the softmax, each row still sums
# to 1, and the words after a word change nothing at it, in any layer, not even by rounding. So "Apple" in "Apple unveiled a new
# smartphone" cannot attend to "smartphone" in a model that reads from left to right. Half a minute.
# `cues_that_come_later.py` asks where such a sense can be read.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: One head with its mask, and without it, as the model never runs: only without the mask could *Apple* attend to *smartphone*.

# %%
import math
import os
from pathlib import Path

import drawing
import pandas as pd

import probe
from probe import charts
from probe.model import attention

model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))

# %% [markdown]
# ## One head, with the mask and without
#
# `attention.mask` puts minus infinity where the key comes after the query, and exp(-∞) is 0. The head shown is the one in which "Apple"
# would attend most to "smartphone" without the mask. The weights with the mask equal the weights of the hooked model.

# %%
trace = probe.trace(model, "Apple unveiled a new smartphone")
at = tuple(trace.tokens.positions_of(word)[-1] for word in ("Apple", "smartphone"))
scores = attention.scores(trace.q, trace.k)  # layer head query_pos key_pos
masked = attention.mask(scores)
hidden, bare = attention.softmax(masked), attention.softmax(scores)
layer, head = divmod(int(bare[..., *at].argmax()), scores.shape[1])
mask = {
    "difference from the model's own weights": (hidden - trace.pattern).abs().max().item(),
    "distance of a row's sum from 1": (hidden.sum(-1) - 1).abs().max().item(),
    "distance of a row's sum from 1, without the mask": (bare.sum(-1) - 1).abs().max().item(),
    "weight of a later word": hidden.triu(1).max().item(),
    f"Apple to smartphone, L{layer}H{head}": hidden[layer, head, *at].item(),
    f"Apple to smartphone, L{layer}H{head} without the mask": bare[layer, head, *at].item(),
}
mask

# %% [markdown]
# ## A later word never changes an earlier one
#
# Each sentence of the lessons whose cue comes after the word is compared with a text of equal length in which everything after the word
# is replaced by "the the the": the largest change in any coordinate of the residual stream in any layer.

# %%
changes = []
for example in (item for item in probe.lexicon.showcase() if item.cue_after):
    whole = probe.trace(model, example.text)
    word = whole.tokens.positions_of(example.text[example.start : example.end])[-1]
    replaced = example.text[: example.end] + " the" * (len(whole.tokens) - word - 1)
    # The largest over layers and coordinates: one number for each position.
    change = (whole.resid_post - probe.trace(model, replaced).resid_post).abs().amax((0, 2))
    changes.append(
        {
            "text": example.text,
            "up to the word": change[: word + 1].max().item(),
            "after it": change[word + 1 :].max().item(),
        }
    )
pd.DataFrame(changes)

# %% [markdown]
# ## The table and the picture
#
# Left: the scores, with cells of minus infinity left empty. Middle: their softmax. Right: the same head without the mask. Rows are
# queries.

# %%
rows = [
    {"measured": item, "text": trace.tokens.text, "value": value} for item, value in mask.items()
]
rows += [
    {"measured": f"largest change {part}", "text": row["text"], "value": row[part]}
    for row in changes
    for part in ("up to the word", "after it")
]
out.mkdir(parents=True, exist_ok=True)
table = pd.DataFrame(rows)
table.to_csv(out / "what_the_mask_hides.csv", index=False, float_format="%.6g")
table

# %%
labels = [
    label.split("·", 1)[1].removeprefix("<|").removesuffix("|>") for label in trace.tokens.labels
]
panels = {"scores, masked": masked, "weights": hidden, "weights without the mask": bare}
cells = [
    {
        "panel": panel,
        "query": labels[query],
        "key": labels[key],
        "value": value if math.isfinite(value) else math.nan,
    }
    for panel, squares in panels.items()
    for query, row in enumerate(squares[layer, head].tolist())
    for key, value in enumerate(row)
]
kinds = dict(zip(panels, ("signed", "shares", "shares"), strict=True))
picture = drawing.matrix_panels(pd.DataFrame(cells), kinds)
charts.save(picture, out / "what_the_mask_hides.png")
picture
