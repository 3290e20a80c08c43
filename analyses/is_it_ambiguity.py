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
# A head that moves *bank* may also move *fence*. So unambiguous nouns take the word's place in the same sentences, with the same cues.
# Expect that they change as well, and that the leading heads do for any noun most of what they do for the word; the remainder belongs to
# the word. The tables are those of `make real` (`reports/real`), for SmolLM2 and the encoder MiniLM, because the studies themselves take
# about ten minutes on two cores.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`): the tables of `reports/real` are read, and `drawing`
# next to this script draws. Writes into `reports/real` below the current folder, or where `PROBE_OUT` says.
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
kept = Path(str(files("probe"))).parent / "reports"  # in a clone
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
FOLDERS = {"SmolLM2": kept / "real", "MiniLM": kept / "real" / "minilm"}
WORDS = ("bank", "mole", "apple")
LEADING = 5  # heads of a word
LEVEL = 0.05
KEY = ["word", "sense_a", "sense_b"]
COLUMNS = ["net", "general", "specific", "specific_low", "specific_high", "p_specific"]


def read(name: str) -> pd.DataFrame:
    """A table of both models, the model in front."""
    tables = {}
    for model, folder in FOLDERS.items():
        if name == "controls":  # the largest, kept in the smaller form
            tables[model] = pd.read_parquet(folder / f"{name}.parquet")
        else:
            tables[model] = pd.read_csv(folder / f"{name}.csv")
    return pd.concat(tables, names=["model"]).reset_index("model")


words, heads, mlps, controls = (read(name) for name in ("words", "word_heads", "mlps", "controls"))

# %% [markdown]
# ## The words
#
# `ambiguity_p`: (1 + unambiguous nouns that change at least as much as the word) / (1 + nouns). `general_share`: their mean squared gap,
# relative to the word's.

# %%
words[["model", *KEY, "depth", "gap_p", "nouns", "general_share", "largest_share", "ambiguity_p"]]

# %% [markdown]
# ## How far apart, depth by depth
#
# The distance between the senses, 1 for the word where it is read, mean over its pairs of senses. Without a gap an estimated distance is 0
# on average, so it may be below 0.


# %%
def beside_nouns(model: str, word: str) -> pd.DataFrame:
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
    distances = pd.concat([beside_nouns(model, word) for word in WORDS], ignore_index=True)
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
# ## What remains of every leading head
#
# `net` is the head's effect on the word, `general` its effect on the nouns, each in units of its gap. `specific` is the difference, over
# the sentences in which both were measured.

# %%
leading = heads[heads["rank"] <= LEADING].sort_values(["model", "word", "rank"], kind="stable")
leading = leading.assign(part=[f"L{row.layer}H{row.head}" for row in leading.itertuples()])
leading[["model", "word", "part", *COLUMNS, "comparison", "verdict"]]

# %% [markdown]
# ## Which MLPs do more for the word than for other nouns
#
# An MLP reads the token itself: a difference between *bank* and *fence* has to come from there.

# `pairs` counts the pairs of senses for which it does more; the numbers are means over all of them.

# %%
by_layer = mlps.assign(pairs=mlps["comparison"] == "more").groupby(["model", "word", "layer"])
of_layers = by_layer.agg(dict.fromkeys(COLUMNS[:3], "mean") | {"pairs": "sum"}).reset_index()
specific_mlps = of_layers[of_layers["pairs"] > 0]
specific_mlps = specific_mlps.assign(part=[f"MLP {layer}" for layer in specific_mlps["layer"]])
specific_mlps[["model", "word", "part", *COLUMNS[:3], "pairs"]]

# %% [markdown]
# ## Every noun through the same gate
#
# Each noun against all others, as the word was, squared gaps summed over the pairs of senses: how many would be called
# ambiguous? One in twenty may be, by chance.


# %%
def gate_of_nouns(model: str, word: str) -> pd.DataFrame:
    """p of every noun that has taken the word's place, against the other nouns."""
    mine = (words["model"] == model) & (words["word"] == word)
    rows = controls[(controls["model"] == model) & (controls["word"] == word)]
    here = rows[(rows["depth"] == words[mine]["depth"].iloc[0]) & (rows["noun"] != word)]
    gap = here.groupby("noun")["gap"].sum()
    as_far = (gap.to_numpy()[None, :] >= gap.to_numpy()[:, None]).sum(1)  # itself is the 1 of the p
    return pd.DataFrame({"model": model, "word": word, "noun": gap.index, "p": as_far / len(gap)})


gate = pd.concat([gate_of_nouns(model, word) for model in FOLDERS for word in WORDS])
gate.assign(passed=gate["p"] <= LEVEL).groupby(["model", "word"], sort=False)["passed"].agg(
    ["size", "sum"]
)

# %%
table = pd.concat([leading, specific_mlps], ignore_index=True)
table = table[["model", "word", "part", *COLUMNS, "comparison", "verdict", "pairs"]]
table.to_csv(out / "is_it_ambiguity.csv", index=False, float_format="%.6g")
table
