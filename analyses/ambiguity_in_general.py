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
# Three words are not a sample of English. Here every word that ships is one unit. A head's effect is a fraction of the gap, averaged
# over words; its interval is over words; and the top heads of all other words are tested on the word that was left out.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`), for `drawing` next to this script: the tables of
# `reports/real/survey` are read, which `make real` writes, because the surveys themselves take some twenty minutes on two cores. The
# tables of Gemma 3 270M come from a GGUF file, assembled from its packages. Writes into `reports/real` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: The top heads of each model over all words that ship: the effect of swapping each head at ambiguous words, and at unambiguous nouns in their place.

# %%
import os
from importlib.resources import files
from pathlib import Path

import drawing
import pandas as pd

from probe import charts

charts.as_pictures()  # no network
surveys = Path(str(files("probe"))).parent / "reports" / "real" / "survey"  # in a clone
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
MODELS = sorted(
    folder.name for folder in surveys.iterdir() if (folder / "survey_heads.csv").exists()
)
FIRST = 8  # heads of a model


def read(name: str) -> pd.DataFrame:
    """A table of every model, with the model as the first column."""
    tables = {model: pd.read_csv(surveys / model / f"{name}.csv") for model in MODELS}
    return pd.concat(tables, names=["model"]).reset_index("model")


# %% [markdown]
# ## The words
#
# `general_share`: the squared gap of unambiguous nouns in the words' place, over that of the words. `ambiguity_p`: that words change
# more than these nouns, with words as units.

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
BESIDE = ["nouns", "more", "more_low", "more_high", "p_more", "nouns_share", "comparison"]
table = heads[["model", "layer", "head", "read_depth", *NUMBERS, *BESIDE]]
table

# %% [markdown]
# ## Do they carry over to a word that was left out?

# %%
read("survey_carry_over")

# %% [markdown]
# ## On natural text
#
# Sense accuracy at the word in natural sentences (CoarseWSD-20, five words, not in this repository), with the top four heads of the survey
# and without them, at the depth chosen on training sentences. The heads are replaced by their mean, or by their output in a random sentence,
# and compared with 20 random sets with the same number of heads in every layer. Written by `probe evaluate --sentences coarsewsd20 --model
# smollm2 --without reports/real/survey/smollm2/survey_heads.csv --top 4 --out out`.

# %%
ablated = pd.read_csv(surveys / "smollm2" / "evaluation_without.csv")
ablated = ablated[ablated["depth"].isna()]
FALLS = ["fall", "fall_low", "fall_high", "random_fall", "random_most"]
ablated[["word", "kind", "tested", "accuracy", "accuracy_without", *FALLS]]

# %% [markdown]
# ## In one picture
#
# The effect of every top head, mean over words, next to its effect at unambiguous nouns. "more" and "less" mark heads with a larger or
# smaller effect at the ambiguous words (p of the difference, corrected, below .05).

# %%
name = table["model"] + " L" + table["layer"].astype(str) + "H" + table["head"].astype(str)
parts = {"ambiguous words": "effect", "unambiguous nouns": "nouns"}
rows = pd.concat(
    [
        pd.DataFrame({"row": name, "what": label, "value": table[column]})
        for label, column in parts.items()
    ]
)
differs = table["comparison"].isin(["more", "less"])
notes = dict(zip(name, table["comparison"].where(differs, ""), strict=True))
picture = drawing.compared(rows, "effect of swapping the head (percent of the gap)", notes=notes)
charts.save(picture, out / "ambiguity_in_general.png")
table.to_csv(out / "ambiguity_in_general.csv", index=False, float_format="%.6g")
picture
