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
# # Is it ambiguity, or would any noun change like that?
#
# A head that moves the cue to *bank* may move it to *fence* as well. So unambiguous nouns replace the word in the same sentences,
# with the same cues. Expect them to change, too, and expect the top heads to do most of their work at any noun; the difference is
# due to the word.
# The numbers come from the tables that `make real` writes (`reports/real`) for SmolLM2 and the encoder MiniLM, because the studies
# themselves take some ten minutes on two cores.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`), for the tables of `reports/real` and for `drawing`
# next to this script. Writes into `reports/real` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: How far the senses of *bank*, *mole* and *apple* are apart at each depth of SmolLM2, compared with unambiguous nouns in their place. Second picture: the same in MiniLM.

# %%
import os
from importlib.resources import files
from pathlib import Path

import drawing
import pandas as pd

from probe import charts

charts.as_pictures()  # no network
reports = Path(str(files("probe"))).parent / "reports"  # in a clone
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
FOLDERS = {"SmolLM2": reports / "real", "MiniLM": reports / "real" / "minilm"}
WORDS = ("bank", "mole", "apple")
LEADING = 5  # heads of a word
LEVEL = 0.05
KEY = ["word", "sense_a", "sense_b"]
COLUMNS = ["net", "nouns", "more", "more_low", "more_high", "p_more", "nouns_share"]


def read(name: str) -> pd.DataFrame:
    """A table of both models, with the model as the first column."""
    tables = {model: pd.read_csv(folder / f"{name}.csv") for model, folder in FOLDERS.items()}
    return pd.concat(tables, names=["model"]).reset_index("model")


words, heads, mlps, controls = (read(name) for name in ("words", "word_heads", "mlps", "controls"))

# %% [markdown]
# ## The words
#
# `ambiguity_p`: the share of unambiguous nouns in the word's place that change at least as much as the word.
# `general_share`: their mean squared gap, over the squared gap of the word.

# %%
words[
    [
        "model",
        *KEY,
        "depth",
        "gap_p",
        "nouns_compared",
        "general_share",
        "largest_share",
        "ambiguity_p",
    ]
]

# %% [markdown]
# ## The distance between the senses, by depth
#
# The distance is 1 for the word at its read-out layer; mean over its pairs of senses. The estimate is unbiased, so it may be below
# 0 if there is no distance.


# %%
def distances_of(model: str, word: str) -> pd.DataFrame:
    """The distance of a word's senses and of the nouns in its place, by depth."""
    depth = words[(words["model"] == model) & (words["word"] == word)]["depth"].iloc[0]
    rows = charts.noun_distances(controls[controls["model"] == model], word, read_at=int(depth))
    of_nouns = rows[rows["what"] != word]
    lines = {
        "the ambiguous word": rows[rows["what"] == word].assign(value=rows["distance"]),
        "the noun that changes most": of_nouns.assign(value=of_nouns["high"]),
        "nouns, mean": of_nouns.assign(value=of_nouns["distance"]),
    }
    parts = [line.assign(panel=word, variant=name, x=line["depth"]) for name, line in lines.items()]
    return pd.concat(parts, ignore_index=True)[["panel", "variant", "x", "value"]]


def picture_of(model: str):
    distances = pd.concat([distances_of(model, word) for word in WORDS], ignore_index=True)
    panels = [drawing.Panel(word, "after how many layers", "distance (1 = gap)") for word in WORDS]
    return drawing.line_panels(distances, panels)


picture = picture_of("SmolLM2")
charts.save(picture, out / "is_it_ambiguity.png")
picture

# %%
picture = picture_of("MiniLM")
charts.save(picture, out / "is_it_ambiguity_encoder.png")
picture

# %% [markdown]
# ## How far every top head moves the word and nouns in its place
#
# `net` is how far the swap moves the word, `nouns` how far it moves the nouns, both in the word's gap. `more` is the difference, over
# the sentences in which both were measured. `nouns_share` is how far it moves the nouns in their own gap.

# %%
leading = heads[heads["rank"] <= LEADING].sort_values(["model", "word", "rank"], kind="stable")
leading = leading.assign(part=[f"L{row.layer}H{row.head}" for row in leading.itertuples()])
leading[["model", "word", "part", *COLUMNS, "comparison", "verdict"]]

# %% [markdown]
# ## Which MLPs do more for the word than for other nouns
#
# An MLP reads the token itself: what happens at *bank* and not at *fence* has to begin there.
#
# `pairs` counts the pairs of senses for which the MLP does more; the numbers are means over all of them.

# %%
by_layer = mlps.assign(pairs=mlps["comparison"] == "more").groupby(["model", "word", "layer"])
of_layers = by_layer.agg(dict.fromkeys(COLUMNS[:3], "mean") | {"pairs": "sum"}).reset_index()
more_mlps = of_layers[of_layers["pairs"] > 0]
more_mlps = more_mlps.assign(part=[f"MLP {layer}" for layer in more_mlps["layer"]])
more_mlps[["model", "word", "part", *COLUMNS[:3], "pairs"]]

# %% [markdown]
# ## Every noun through the same gate
#
# Each noun is compared with all others in the same way as the word, with squared gaps summed over the pairs of senses: how many would
# be called ambiguous? One in twenty is expected by chance.


# %%
def gate_of_nouns(model: str, word: str) -> pd.DataFrame:
    """p of every noun in the word's place, compared with the other nouns."""
    is_word = (words["model"] == model) & (words["word"] == word)
    rows = controls[(controls["model"] == model) & (controls["word"] == word)]
    here = rows[(rows["depth"] == words[is_word]["depth"].iloc[0]) & (rows["noun"] != word)]
    gap = here.groupby("noun")["gap"].sum()
    # The noun itself is the 1 in p = (1 + number of other nouns as far) / (number of nouns).
    as_far = (gap.to_numpy()[None, :] >= gap.to_numpy()[:, None]).sum(1)
    return pd.DataFrame({"model": model, "word": word, "noun": gap.index, "p": as_far / len(gap)})


gate = pd.concat([gate_of_nouns(model, word) for model in FOLDERS for word in WORDS])
gate.assign(passed=gate["p"] <= LEVEL).groupby(["model", "word"], sort=False)["passed"].agg(
    ["size", "sum"]
)

# %%
table = pd.concat([leading, more_mlps], ignore_index=True)
table = table[["model", "word", "part", *COLUMNS, "comparison", "verdict", "pairs"]]
table.to_csv(out / "is_it_ambiguity.csv", index=False, float_format="%.6g")
table
