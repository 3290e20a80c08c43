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
# Expect everything that comes later: the scores of later words are set to minus infinity before the softmax, each row still sums
# to 1, and whatever follows a word changes nothing at it, at no layer, exactly. So "Apple" in "Apple unveiled a new smartphone" cannot
# have looked at "smartphone" in a model that reads from left to right. Half a minute.
# Where such a sense can be read is asked in `cues_that_come_later.py`.
#
# Needs: a clone of the repository, for `drawing` next to this script; the model that ships, or the one that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or where `PROBE_OUT` says.
#
# Shown: One head with its mask, and without it, which never happens in the model: only then could *Apple* look at *smartphone*.

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
# `attention.mask` puts minus infinity where the key comes after the query, and exp of that is 0. The head is the one that, without its
# mask, would give most of the attention of "Apple" to "smartphone". The weights with the mask are those of the hooked model.

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
# The sentences of the lessons whose cue follows the word, each compared with a text of equal length in which everything after the word is
# replaced by "the the the": the largest change in any coordinate of the residual stream at any layer.

# %%
changes = []
for shown in (item for item in probe.lexicon.showcase() if item.cue_after):
    whole = probe.trace(model, shown.text)
    word = whole.tokens.positions_of(shown.text[shown.start : shown.end])[-1]
    other = probe.trace(model, shown.text[: shown.end] + " the" * (len(whole.tokens) - word - 1))
    change = (
        (whole.resid_post - other.resid_post).abs().amax((0, 2))
    )  # over layers and coordinates: one number a position
    changes.append(
        {
            "text": shown.text,
            "up to the word": change[: word + 1].max().item(),
            "after it": change[word + 1 :].max().item(),
        }
    )
pd.DataFrame(changes)

# %% [markdown]
# ## The table and the picture
#
# On the left the scores, with minus infinity left empty; in the middle their softmax; on the right the same head without the mask. Rows are
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
