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
# # Which heads move ambiguous words in general?
#
# Three words are too few to speak for English. Here every word that ships is one unit. A head's effect is the sum of its effects over all
# words, relative to the sum of their gaps; its interval is over words. Heads found on all other words are tried on the word that was left
# out.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`), for `drawing` next to this script: the tables of
# `reports/real/survey` are read, which `make real` writes, because the surveys themselves take some twenty minutes on two cores; those of
# Gemma 3 270M are of a GGUF file, put together from its packages. Writes into `reports/real` below the current folder, or where `PROBE_OUT`
# says.
#
# Shown: The top heads of each model over all words that ship: the effect of swapping each on ambiguous words, and on unambiguous nouns in their place.

# %%
import os
from importlib.resources import files
from pathlib import Path

import drawing
import pandas as pd

from probe import charts

charts.as_pictures()  # no network
kept = Path(str(files("probe"))).parent / "reports" / "real" / "survey"  # in a clone
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
MODELS = sorted(folder.name for folder in kept.iterdir() if (folder / "survey_heads.csv").exists())
FIRST = 8  # heads of a model


def read(name: str) -> pd.DataFrame:
    """A table of every model, the model in front."""
    tables = {model: pd.read_csv(kept / model / f"{name}.csv") for model in MODELS}
    return pd.concat(tables, names=["model"]).reset_index("model")


# %% [markdown]
# ## The words
#
# `general_share`: the squared gap of unambiguous nouns in the words' place, relative to the words'. `ambiguity_p`: the test that words
# change farther than these nouns, with words as units.

# %%
models = read("survey_model")
COUNTS = ["words", "words_left_out", "words_without_gap", "words_compared"]
GENERAL = ["general_share", "general_low", "general_high", "ambiguity_p"]
models[["model", *COUNTS, "depth", "gap_p", *GENERAL]]

# %% [markdown]
# ## The top heads
#
# `between_words` is the standard deviation between words, which includes the noise of single words.

# %%
heads = read("survey_heads").sort_values(["model", "rank"])
heads = heads[heads["rank"] <= FIRST]
NUMBERS = ["effect", "effect_low", "effect_high", "p", "between_words", "words_positive"]
BESIDE = ["general", "specific", "specific_low", "specific_high", "p_specific", "comparison"]
table = heads[["model", "layer", "head", "read_depth", *NUMBERS, *BESIDE]]
table

# %% [markdown]
# ## Do they carry over to a word that was left out?

# %%
read("survey_carry_over")

# %% [markdown]
# ## On natural text
#
# Accuracy of the meaning read at the word in natural sentences (CoarseWSD-20, five words, not in this repository), with the first four
# heads of the survey and without them, at the depth chosen on training sentences. Without them means: with their mean instead, or with
# their output in a random sentence. For comparison, 20 random sets with as many heads in every layer. Made by `probe evaluate --sentences
# coarsewsd20 --model smollm2 --without reports/real/survey/smollm2/survey_heads.csv --top 4 --out out`.

# %%
taken_out = pd.read_csv(kept / "smollm2" / "evaluation_without.csv")
taken_out = taken_out[taken_out["depth"].isna()]
FALLS = ["fall", "fall_low", "fall_high", "random_fall", "random_most"]
taken_out[["word", "kind", "tested", "accuracy", "accuracy_without", *FALLS]]

# %% [markdown]
# ## In one picture
#
# The effect of every leading head, mean over words, next to its effect on unambiguous nouns. "More" and "less" mark heads that do more, or
# less, for the ambiguous words (p of the difference, corrected, below .05).

# %%
name = table["model"] + " L" + table["layer"].astype(str) + "H" + table["head"].astype(str)
parts = {"ambiguous words": "effect", "unambiguous nouns": "general"}
rows = pd.concat(
    [
        pd.DataFrame({"row": name, "what": what, "value": table[column]})
        for what, column in parts.items()
    ]
)
differs = table["comparison"].isin(["more", "less"])
said = dict(zip(name, table["comparison"].where(differs, ""), strict=True))
picture = drawing.compared(rows, "effect of swapping the head (percent of the gap)", said=said)
charts.save(picture, out / "ambiguity_in_general.png")
table.to_csv(out / "ambiguity_in_general.csv", index=False, float_format="%.6g")
picture
