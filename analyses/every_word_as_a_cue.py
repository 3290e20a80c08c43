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
# The sentences that ship use a dozen pairs of cue words that somebody wrote down. Here every word of SmolLM2's vocabulary is the cue
# once, in four short texts such as "The _ bank" and "The _ and the bank". Expect words for water on one side and words for money on
# the other, and heads that answer to one kind of word.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`): the tables of `reports/real/cues` are read, which
# `make real` writes, because a scan of 30,000 words takes minutes. Writes into `reports/real` below the current folder, or where
# `PROBE_OUT` says.
#
# Shown: Words of SmolLM2's vocabulary as the cue of *bank*: where each moves the word, and how much L4H2 attends to it.

# %%
import os
from importlib.resources import files
from pathlib import Path

import pandas as pd

from probe import charts

charts.as_pictures()  # no network
kept = Path(str(files("probe"))).parent / "reports" / "real" / "cues"  # in a clone
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
WORDS = ("bank", "mole", "apple")
HEADS = 4  # of a word
STRONGEST = 8  # words of each side
FURTHEST = 100  # of each side, all of which are drawn


# %% [markdown]
# ## The scans
#
# `reliability`: how well two halves of the frames agree about cues. `auroc`: cue words of the fitted sentences, each along an axis that
# was fitted without it.


# %%
def read(word: str, name: str) -> pd.DataFrame:
    """A table of the scan of one word, the word in front."""
    frame = pd.read_csv(kept / word / f"{name}.csv")
    return frame if "word" in frame else frame.assign(word=word)


summary = pd.concat([read(word, "cues_summary") for word in WORDS], ignore_index=True)
summary

# %% [markdown]
# ## Which heads do it, and do they do the same at any noun?
#
# `share`: how much of the variance over cues is lost when the head's output at the word is fixed at its mean. `nouns_r` and
# `nouns_slope`: what the head writes at ten unambiguous nouns, along the word's axis, against what it writes at the word.

# %%
heads = pd.concat([read(word, "cues_heads").head(HEADS) for word in WORDS], ignore_index=True)
heads = heads.assign(part=[f"L{row.layer}H{row.head}" for row in heads.itertuples()])
COLUMNS = ["word", "part", "share", "share_low", "share_high", "nouns_r", "nouns_slope", "auroc"]
heads[COLUMNS]

# %% [markdown]
# ## The words
#
# None of them occurs in the fitted sentences.


# %%
cues = pd.read_parquet(kept / "bank" / "cues.parquet")
senses = summary.loc[summary["word"] == "bank", ["sense_a", "sense_b"]].iloc[0].tolist()
unseen = cues[~cues["seen"]].drop_duplicates("cue").sort_values("coordinate", ascending=False)
ends = {senses[0]: unseen["cue"].head(STRONGEST), senses[1]: unseen["cue"].tail(STRONGEST)[::-1]}
pd.DataFrame({sense: list(words) for sense, words in ends.items()})

# %% [markdown]
# ## The picture
#
# Up: how much L4H2 attends to the cue. Drawn are the words furthest out and every twelfth of the others.

# %%
l4h2 = cues[(cues["layer"] == 4) & (cues["head"] == 2)]
shown = {*unseen["cue"].head(FURTHEST), *unseen["cue"].tail(FURTHEST), *unseen["cue"][::12]}
picture = charts.cue_scatter(l4h2[l4h2["cue"].isin(shown)], senses)
charts.save(picture, out / "every_word_as_a_cue.png", width=700)
picture

# %%
columns = ["word", "depth", "cues", "reliability", "auroc", "auroc_low", "auroc_high"]
table = pd.concat([summary[columns].assign(part="coordinate"), heads[COLUMNS]], ignore_index=True)
table.to_csv(out / "every_word_as_a_cue.csv", index=False, float_format="%.6g")
table
