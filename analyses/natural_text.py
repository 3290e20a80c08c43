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
# # Do the same heads lead on natural text?
#
# The sentences that ship are composed minimal pairs. CoarseWSD-20 (Loureiro et al. 2021, CC BY-NC 4.0) has sentences from Wikipedia, labelled with
# the sense of *bank*, *apple* and *mole*. Here every head of SmolLM2-135M-Instruct is swapped at the word in 40 of them for each sense, drawn at
# random, with randomly drawn donors of the other sense. No cue is marked, so every sentence is a separate unit.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`): the tables of `reports/real` are read. If `PROBE_COARSEWSD`
# names a folder of CoarseWSD-20, they are measured again, which takes some minutes per word. No sentence is stored, only numbers. Writes into `reports/real`
# below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: The effect of swapping one head's output at the word in SmolLM2-135M-Instruct, on sentences from Wikipedia: L4H1 and L5H1 lead for all three words, as in the composed sentences; L4H2 follows, with a third of its effect there.

# %%
import os
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd

import probe
from probe import charts

charts.as_pictures()  # no network
SENSES = {
    "bank": ("bank_bank", "bank_bank_(geography)"),
    "apple": ("apple_apple_inc.", "apple_apple"),
    "mole": ("mole_mole_(animal)", "mole_mole_(unit)"),
}
EACH_SENSE = 40  # sentences
tables = Path(str(files("probe"))).parent / "reports" / "real"  # in a clone
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
out.mkdir(parents=True, exist_ok=True)  # before the work, not after it

# %% [markdown]
# ## The sentences
#
# A uniform sample of the sentences with text before the word, the same for every run.


# %%
def sample(folder: Path, word: str) -> list:
    """EACH_SENSE sentences of each of two senses, drawn with a fixed seed."""
    rows = probe.read_sentences(folder / word).sentences
    rng = np.random.default_rng(0)
    sentences = []
    for sense in SENSES[word]:
        usable = [row for row in rows if row.sense == sense and row.text[: row.start].strip()]
        sentences += [usable[n] for n in rng.permutation(len(usable))[:EACH_SENSE]]
    names = ("word", "sense", "text", "start", "end")
    return [{name: getattr(row, name) for name in names} for row in sentences]


def measure(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of words and of heads on these sentences."""
    studies = [
        probe.study("smollm2", word, sentences=sample(folder, word), controls=(), max_pairs=40)
        for word in SENSES
    ]
    words = pd.concat([study.words for study in studies], ignore_index=True)
    heads = pd.concat([study.word_heads for study in studies], ignore_index=True)
    return words, heads


data = Path(os.environ.get("PROBE_COARSEWSD", ""))
if data.name and data.is_dir():
    words, heads = measure(data)
    words.round(5).to_csv(out / "natural_text_words.csv", index=False)
    heads.round(5).to_csv(out / "natural_text_heads.csv", index=False)
else:
    print(
        f"Not measured again: {data.name or 'PROBE_COARSEWSD'} is not a folder. Reading the tables of the repository."
    )
    words = pd.read_csv(tables / "natural_text_words.csv")
    heads = pd.read_csv(tables / "natural_text_heads.csv")

# %%
words[
    [
        "word",
        "sense_a",
        "sense_b",
        "sentences_report",
        "pairs",
        "depth",
        "auroc",
        "gap",
        "gap_p",
        "untrained_p",
    ]
]

# %% [markdown]
# ## Which heads lead
#
# Percent of the gap between two senses, minus the effect of a donor of the same sense.

# %%
chart = charts.head_maps(heads)
charts.save(chart, out / "natural_text.png")
chart

# %% [markdown]
# ## The same heads, other effect sizes
#
# The top six heads of each word on natural text, with their effects in the composed sentences (`reports/real/word_heads.csv`).

# %%
composed = pd.read_csv(tables / "word_heads.csv")
columns = ["word", "layer", "head", "net", "net_low", "net_high", "rank"]
together = heads[columns].merge(
    composed[columns], on=["word", "layer", "head"], suffixes=("", "_composed")
)
together = together[(together["rank"] <= 6) | (together["rank_composed"] <= 3)]
together = together.sort_values(["word", "rank"]).reset_index(drop=True)
together.round(4).to_csv(out / "natural_text.csv", index=False)
together

# %% [markdown]
# For how many of the three words each head is among the top three, on either kind of text.

# %%
first = {
    kind: together[together[f"rank{kind}"] <= 3].groupby(["layer", "head"])["word"].nunique()
    for kind in ("", "_composed")
}
pd.DataFrame({"natural": first[""], "composed": first["_composed"]}).fillna(0).astype(int)
