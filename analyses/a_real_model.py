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
# # Which heads resolve *bank*, *mole* and *apple* in SmolLM2, a model trained on two trillion tokens?
#
# The numbers come from the tables that `make real` writes (`reports/real`), because the study itself takes some ten minutes on two cores.
# The last part shows a sentence encoder.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`): the tables of `reports/real` are read. Writes into
# `reports/real` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: The effect of swapping one head's output at the word in SmolLM2-135M-Instruct: the same three heads, L4H1, L4H2 and L5H1, lead for all three words. MLP 5 moves them at least as far. A frame marks what does more for the word than for unambiguous nouns; an open star is a mover, a filled one a resolver. Second picture: in the encoder MiniLM no head leads for all words; 15 to 22 share the work.

# %%
import os
from importlib.resources import files
from pathlib import Path

import pandas as pd

from probe import charts

charts.as_pictures()  # no network
folder = Path(str(files("probe"))).parent / "reports" / "real"  # in a clone
tables = ("words", "word_heads", "curves", "random_sets", "mlps")
words, heads, curves, random_sets, mlps = (pd.read_csv(folder / f"{name}.csv") for name in tables)

# %% [markdown]
# ## The sentences and the gap
#
# Natural sentences in minimal pairs, each measured once along axes that were fitted without its cue word and its frame. Every
# pair of senses has a gap, which is larger than in untrained models of the same shape (`untrained_p`). The read-out layer is the
# sixth of thirty.

# %%
words[
    [
        "word",
        "sense_a",
        "sense_b",
        "sentences_report",
        "cue_words",
        "depth",
        "auroc",
        "gap_p",
        "untrained_p",
    ]
]

# %% [markdown]
# ## The same three heads
#
# Percent of the gap between two senses, minus the effect of a donor of the same sense at the same distance. Heads and MLPs of the
# first six layers are read at the read-out layer, later ones after the last layer. (*mole* is read one layer later.)

# %%
leading = heads[heads["rank"] <= 6].sort_values(["word", "rank"])
leading = leading[
    ["word", "layer", "head", "net", "net_low", "net_high", "auroc", "attention_cue", "verdict"]
]
leading

# %%
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
chart = charts.head_maps(heads, charts.mlps_beside_nouns(mlps))
charts.save(chart, out / "a_real_model.png")
chart

# %% [markdown]
# ## MLPs move the word at least as far as any head
#
# MLP 5 is the last part before the read-out layer of *bank* and *apple*, and MLP 29 the last part of the model. An MLP reads only
# the word's own vector, so it passes on and enlarges what heads brought there.

# %%
largest = mlps.groupby(["word", "layer"], as_index=False)["net"].mean()
largest[largest["layer"].isin([5, 29])].pivot(index="layer", columns="word", values="net").round(3)

# %% [markdown]
# ## Few heads are enough
#
# How much of the gap the top heads keep when every other head of the first six layers gets its output from a sentence of the
# other sense. The order of heads comes from other sentences. `best_random` is the best of 200 random sets with the same number of
# heads in every layer.


# %%
def smallest_sets(curves: pd.DataFrame, random_sets: pd.DataFrame) -> pd.DataFrame:
    best = random_sets.groupby(["word", "size"], as_index=False)["faithfulness"].max()
    enough = curves[curves["size"] == curves["smallest"]]
    enough = enough.merge(best.rename(columns={"faithfulness": "best_random"}), on=["word", "size"])
    return enough[
        [
            "word",
            "size",
            "faithfulness",
            "faithfulness_low",
            "faithfulness_high",
            "best_random",
            "pairs",
        ]
    ]


smallest_sets(curves, random_sets)

# %%
leading.round(4).to_csv(out / "a_real_model.csv", index=False)

# %% [markdown]
# ## In a sentence encoder many heads share the work
#
# all-MiniLM-L6-v2 (six layers of twelve heads) reads both ways, so a cue may also come after the word. No head leads for all three
# words: one head moves at most 31 % of the gap (apple), and it takes ten to twenty-two heads, in nearly every layer, to keep nine
# tenths of the gap.

# %%
encoder_words, encoder_heads, encoder_curves, encoder_random, encoder_mlps = (
    pd.read_csv(folder / "minilm" / f"{name}.csv") for name in tables
)
chart = charts.head_maps(encoder_heads, charts.mlps_beside_nouns(encoder_mlps))
charts.save(chart, out / "a_real_encoder.png")
chart

# %%
smallest_sets(encoder_curves, encoder_random)
