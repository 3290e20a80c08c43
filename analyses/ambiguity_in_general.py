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
# that was left out. Expect the spread between words to be wide, and most of what the first heads do to be done for any noun.
# `PROBE_MODEL` names the models, with spaces between them, also a folder or a GGUF file, such as that of Gemma 3 270M. Without it SmolLM2
# and MiniLM where their packages are installed (some minutes on two cores), else the embedded model, which learned from a grammar and
# shows the method only.
#
# Needs: probe, and `drawing` beside this script. Writes into `reports` below the current folder, or where `PROBE_OUT` says.
#
# Shown: The first heads of the embedded model over all words that ship: effects with intervals over words, beside what they do for nouns of one meaning in the words' place.

# %%
import os
from pathlib import Path

import drawing
import pandas as pd

import probe
from probe import charts

charts.as_pictures()  # no network
WANTED = ("smollm2", "minilm")  # real models that come as packages
installed = [row.name for row in probe.available() if row.where.startswith("in the package")]
usual = [name for name in WANTED if name in installed] or ["tiny-senses"]
names = os.environ.get("PROBE_MODEL", " ".join(usual)).split()
out = Path(os.environ.get("PROBE_OUT", "reports"))
FIRST = 6  # heads of a model
surveys = {name: probe.survey(name) for name in names}


def stacked(table: str) -> pd.DataFrame:
    """A table of all models, the model in front."""
    parts = [each.frames[table].assign(model=name) for name, each in surveys.items()]
    rows = pd.concat(parts, ignore_index=True)
    return rows[["model", *rows.columns.drop("model")]]


# %% [markdown]
# ## The words
#
# `general_share`: the squared gap of one-meaning nouns in the words' place, in that of the words. `ambiguity_p`: that words change
# further than these nouns, words as units.

# %%
COUNTS = ["words", "words_left_out", "words_without_gap", "words_compared"]
stacked("survey_model")[
    [
        "model",
        *COUNTS,
        "depth",
        "gap_p",
        "general_share",
        "general_low",
        "general_high",
        "ambiguity_p",
    ]
]

# %% [markdown]
# ## The first heads
#
# `between_words` is the standard deviation between words, which holds the noise of single words, too.

# %%
heads = stacked("survey_heads").sort_values(["model", "rank"])
heads = heads[heads["rank"] <= FIRST]
NUMBERS = [
    "effect",
    "effect_low",
    "effect_high",
    "p",
    "between_words",
    "words_positive",
    "words_clear",
]
BESIDE = ["general", "specific", "specific_low", "specific_high", "p_specific", "comparison"]
table = heads[["model", "layer", "head", "read_depth", *NUMBERS, *BESIDE]]
table

# %% [markdown]
# ## Do they carry over to a word that was left out?

# %%
stacked("survey_carry_over")

# %% [markdown]
# ## In one picture
#
# Every head's effect over words and what it does for one-meaning nouns, in the order of the ranks.


# %%
def line_rows(model: str) -> pd.DataFrame:
    """The first heads of a model, for words and for nouns, with their places in the order."""
    rows = table[table["model"] == model].reset_index(drop=True)
    parts = {"ambiguous words": "effect", "nouns of one meaning": "general"}
    frames = [
        pd.DataFrame({"panel": model, "variant": what, "x": rows.index + 1, "value": rows[column]})
        for what, column in parts.items()
    ]
    return pd.concat(frames, ignore_index=True)


lines = pd.concat([line_rows(name) for name in names], ignore_index=True)
panels = [drawing.Panel(name, "rank of the head", "part of the way") for name in names]
picture = drawing.line_panels(lines, panels)
charts.save(picture, out / "ambiguity_in_general.png")
table.to_csv(out / "ambiguity_in_general.csv", index=False, float_format="%.6g")
picture
