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
# This reads the tables that `make real` writes (`reports/real`), because the study itself takes about ten minutes on two cores. At the end
# it does the same for a sentence encoder.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`): the tables of `reports/real` are read. Writes into
# `reports/real` below the current folder, or where `PROBE_OUT` says.
#
# Shown: The swap effect of every head at the word in SmolLM2-135M-Instruct. The same three heads, L4H1, L4H2 and L5H1, lead for all three words. A filled star is a resolver, an open star a mover. Second picture: in the encoder MiniLM no head leads for all words; 15 to 22 share the work.

# %%
import os
from importlib.resources import files
from pathlib import Path

import pandas as pd

from probe import charts

charts.as_pictures()  # no network
kept = Path(str(files("probe"))).parent / "reports" / "real"  # in a clone
tables = ("words", "word_heads", "curves", "random_sets")
words, heads, curves, random_sets = (pd.read_csv(kept / f"{name}.csv") for name in tables)

# %% [markdown]
# ## How large is the gap?
#
# Natural sentences in minimal pairs, each measured once along axes that were fitted without its cue word and its frame. Every pair of
# senses has a gap, which an untrained model of the same shape does not have (`untrained_p`). The meaning has arrived after six of the
# thirty layers.

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
# Swap effects in % of the gap between two senses, minus the effect of a same-sense donor at the same distance. Heads of the first six
# layers are read where the meaning has arrived, later ones at the end.

# %%
leading = heads[heads["rank"] <= 6].sort_values(["word", "rank"])
leading = leading[
    ["word", "layer", "head", "net", "net_low", "net_high", "auroc", "attention_cue", "verdict"]
]
leading

# %%
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
chart = charts.head_maps(heads)
charts.save(chart, out / "a_real_model.png")
chart

# %% [markdown]
# ## Few heads are enough
#
# How much of the gap the top heads keep when every other head of the first six layers has its output from a sentence of the other sense.
# Other sentences gave the order. For comparison, the best of 200 random sets with as many heads in every layer.


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
# all-MiniLM-L6-v2 (six layers of twelve heads) reads both ways, so its cues may also come after the word. No head leads for all three
# words: one head moves at most 31 % of the gap (apple), and it takes ten to twenty-two heads, in nearly every layer, to keep nine tenths of
# the gap.

# %%
encoder_words, encoder_heads, encoder_curves, encoder_random = (
    pd.read_csv(kept / "minilm" / f"{name}.csv") for name in tables
)
chart = charts.head_maps(encoder_heads)
charts.save(chart, out / "a_real_encoder.png")
chart

# %%
smallest_sets(encoder_curves, encoder_random)
