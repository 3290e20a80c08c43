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
# Three words are no sample of English. Here every word that ships is one unit: a head's effect is what it moves of all words'
# ways from one meaning to the other, its interval is over words, and heads that were found on all other words are tried on the word
# that was left out.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`), for `drawing` beside this script: the tables of
# `reports/real/survey` are read, which `make real` writes, because the surveys themselves take some twenty minutes on two cores; those of
# Gemma 3 270M are of a GGUF file, put together from its packages. Writes into `reports/real` below the current folder, or where `PROBE_OUT` says.
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
# `general_share`: the squared gap of one-meaning nouns in the words' place, in that of the words. `ambiguity_p`: that words change
# further than these nouns, words as units.

# %%
models = read("survey_model")
COUNTS = ["words", "words_left_out", "words_without_gap", "words_compared"]
GENERAL = ["general_share", "general_low", "general_high", "ambiguity_p"]
models[["model", *COUNTS, "depth", "gap_p", *GENERAL]]

# %% [markdown]
# ## The first heads
#
# `between_words` is the standard deviation between words, which holds the noise of single words, too.

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
# How often the meaning is told at the word in sentences that nobody prepared (CoarseWSD-20, five words, not in this repository), with
# the first four heads of the survey and without them, at the depth chosen on training sentences: with their mean in their place, and with
# what they wrote in a random sentence. Beside them 20 random sets with as many heads in every layer. Made by `probe evaluate --sentences
# coarsewsd20 --model smollm2 --without reports/real/survey/smollm2/survey_heads.csv --top 4 --out out`.

# %%
taken_out = pd.read_csv(kept / "smollm2" / "evaluation_without.csv")
taken_out = taken_out[taken_out["depth"].isna()]
FALLS = ["fall", "fall_low", "fall_high", "random_fall", "random_most"]
taken_out[["word", "kind", "tested", "accuracy", "accuracy_without", *FALLS]]

# %% [markdown]
# ## In one picture
#
# The effect of every leading head, mean over words, next to what it does for unambiguous nouns. "More" and "less" mark heads that do
# more, or less, for the ambiguous words (p of the difference, corrected, below .05).

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
