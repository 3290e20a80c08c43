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
# # Which words of the whole vocabulary move *bank*?
#
# The sentences that ship use a dozen pairs of chosen cue words. Here every word of SmolLM2's vocabulary is the cue once, in four short
# texts such as "The _ bank" and "The _ and the bank". Expect words about water on one side and words about money on the other, and heads
# that respond to one kind of word.
#
# Tokens that begin longer words ("estu", "nort") are left out: the model finds it more likely than not that such a word continues.
# Gemma 3 270M has 106,272 words of many languages, so the 24,145 words of SmolLM2 were tried in it (`probe cues --cues`).
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`): the tables of `reports/real/cues` are read, which
# `make real` writes, because a scan of 24,000 words takes minutes. The tables of Gemma come from a GGUF file, assembled from its
# packages. Writes into `reports/real` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: Words of SmolLM2's vocabulary as the cue of *bank*: how far each moves the word, and how much L4H2 attends to it.

# %%
import os
from importlib.resources import files
from pathlib import Path

import pandas as pd

import probe
from probe import charts

charts.as_pictures()  # no network
folder = Path(str(files("probe"))).parent / "reports" / "real" / "cues"  # in a clone
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
SCANS = sorted(path.parent for path in folder.glob("*/*/cues_summary.csv"))  # MODEL/WORD
HEADS = 4  # of a word
STRONGEST = 8  # words of each side
FURTHEST = 100  # words of each side that are all in the picture


# %% [markdown]
# ## The scans
#
# `reliability`: how well two halves of the frames agree about cues. `auroc`: how well the cue words of the fitted sentences are separated,
# each along an axis that was fitted without it. It is no evidence of ambiguity where it is as high at unambiguous nouns in the word's place,
# each along its own axis (`auroc_nouns`), and for the cue's token embedding alone (`auroc_embedding`, `auroc_whitened`). The words and the
# heads below are what a scan adds.


# %%
def read(name: str) -> pd.DataFrame:
    """A table of every scan, with the model and the word as first columns."""
    tables = []
    for scan in SCANS:
        table = pd.read_csv(scan / f"{name}.csv").drop(columns="word", errors="ignore")
        table.insert(0, "word", scan.name)
        table.insert(0, "model", scan.parent.name)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


summary = read("cues_summary")
summary

# %% [markdown]
# ## Which heads move the word, and do they do the same at any noun?
#
# `share`: how much of the variance over cues is lost when the head's output at the word is fixed at its mean. `nouns_r` and
# `nouns_slope`: correlation and slope of the head's write at ten unambiguous nouns, along the word's axis, against its write at the word.

# %%
heads = read("cues_heads").groupby(["model", "word"]).head(HEADS)
heads = heads.assign(part=[f"L{row.layer}H{row.head}" for row in heads.itertuples()])
COLUMNS = ["part", "share", "share_low", "share_high", "nouns_r", "nouns_slope", "auroc"]
heads[["model", "word", *COLUMNS]]

# %% [markdown]
# ## The words
#
# The strongest words that do not occur in the fitted sentences, strongest first.

# %%
words = read("cues_words")
ends = words.groupby(["model", "word", "sense"], sort=False)["cue"]
ends.apply(lambda cues: ", ".join(cues.head(STRONGEST))).reset_index()

# %% [markdown]
# ## The picture
#
# The vertical axis shows how much L4H2 attends to the cue. The picture has the words furthest out and every twelfth of the others. The whole
# table of 4 MB is not in the repository; if `make real` has written it, the words are taken from it.

# %%
scan = folder / "smollm2" / "bank"
sample = scan / "drawn.csv"
if (scan / "tables.zip").exists():
    cues = probe.read(scan).cues
    l4h2 = cues[(cues["layer"] == 4) & (cues["head"] == 2)]
    unseen = l4h2[~l4h2["seen"]].sort_values("coordinate", ascending=False)["cue"]
    sampled = {*unseen.head(FURTHEST), *unseen.tail(FURTHEST), *unseen[::12]}
    l4h2[l4h2["cue"].isin(sampled)].to_csv(sample, index=False, float_format="%.4g")
of_bank = summary[(summary["model"] == "smollm2") & (summary["word"] == "bank")].iloc[0]
picture = charts.cue_scatter(
    pd.read_csv(sample),
    [of_bank["sense_a"], of_bank["sense_b"]],
    without_cue=of_bank["without_cue"],
)
charts.save(picture, out / "every_word_as_a_cue.png", width=700)
picture

# %%
of_scan = ["depth", "cues", "beginnings", "reliability", "auroc", "auroc_low", "auroc_high"]
of_scan += [
    "auroc_nouns",
    "auroc_nouns_min",
    "auroc_nouns_max",
    "auroc_embedding",
    "auroc_whitened",
]
coordinate = summary[["model", "word", *of_scan]].assign(part="coordinate")
table = pd.concat([coordinate, heads[["model", "word", *COLUMNS]]], ignore_index=True)
table.to_csv(out / "every_word_as_a_cue.csv", index=False, float_format="%.6g")
table
