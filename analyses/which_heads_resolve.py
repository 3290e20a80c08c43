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
# # Which heads move the meaning of *bank*, *mole* and *apple*?
#
# Expect one or two heads in the first layers that move most of the meaning from the cue to the word, and many that move none of it.
# About a minute with the embedded model, a few minutes with GPT-2.
#
# Needs: probe alone, in any folder; a model: the one that ships, or any that `PROBE_MODEL` names. Writes into `reports` below the current
# folder, or into the folder that `PROBE_OUT` names.
#
# Shown: How far swapping one head's output at the word moves the word between its senses, minus the effect of a donor of the same sense.

# %%
import os
from pathlib import Path

import probe
from probe import charts

charts.as_pictures()  # no network
model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports"))
model

# %% [markdown]
# ## First: are the numbers right?
#
# Every quantity from the hooks is recomputed from the raw weights, in double precision. `require` raises an error if any of them
# disagrees.

# %%
certificate = probe.certify(model).require()
certificate.worst

# %% [markdown]
# ## One sentence, everything
#
# A trace holds every tensor of attention. `delta_e` is what one head adds to the word's vector. `delta_e_by_source` splits it by
# source token: the parts sum to the whole.

# %%
trace = probe.trace(model, "The river near the old bank")
trace

# %%
at = len(trace.tokens) - 1
parts = trace.delta_e_by_source(layer=0, head=0, at=at)
(parts.sum(0) - trace.delta_e(layer=0, head=0, at=at)).abs().max()

# %% [markdown]
# ## The study
#
# The sentences of each word are split into folds by frame and by cue word. Each sentence is measured once, along directions that
# were fitted without it, its cue word and its frame. Each head's output at the word is replaced by that of a sentence of the other
# sense, and the changes of the word's sense coordinate and of the next-token predictions are measured.

# %%
study = probe.study(model, ["bank", "mole", "apple"], seed=0)
study

# %% [markdown]
# Is there a gap between the senses? Heads are ranked only if there is one.

# %%
study.words[
    [
        "word",
        "sense_a",
        "sense_b",
        "sentences_report",
        "pairs",
        "depth",
        "gap",
        "gap_low",
        "gap_high",
        "gap_p",
    ]
]

# %% [markdown]
# ## How the senses diverge with depth
#
# The token embedding is the same vector in every sentence, so the difference starts at exactly zero.

# %%
charts.depth_profiles(study.depth, "bank")

# %% [markdown]
# ## The map: the effect of swapping each head
#
# `net` is the effect of the swap minus the effect of a donor of the *same* sense, as a fraction of the gap between the senses.

# %%
charts.head_maps(study.word_heads)

# %%
top_heads = study.word_heads.query("rank <= 3").sort_values(["word", "rank"])
top_heads[
    ["word", "layer", "head", "net", "net_low", "net_high", "direct", "attention_cue", "verdict"]
]

# %% [markdown]
# The evidence for the verdicts on the movers and resolvers of *bank* (the table `verdicts` of a report has a sentence about each head):

# %%
movers = study.verdicts.query("word == 'bank' and verdict in ('mover', 'resolver')")
keys = ["word", "sense_a", "sense_b", "layer", "head", "verdict"]
numbers = [
    "auroc",
    "p_auroc",
    "net",
    "p_swap",
    "next_token",
    "p_next_token",
    "ambiguity_p",
    "nouns",
]
movers.merge(study.heads, on=keys)[["layer", "head", *numbers]]

# %% [markdown]
# ## Where does the sense of one sentence come from?

# %%
first = study.decomposition.iloc[0]
charts.decomposition_bars(study.decomposition, first["word"], sentence=first["sentence"])

# %% [markdown]
# ## The page
#
# The same study as one file that needs no network, with its tables in the same folder, and the top heads as a small table.

# %%
charts.save(charts.head_maps(study.word_heads), out / "head_map.png")
columns = [
    "word",
    "layer",
    "head",
    "rank",
    "net",
    "net_low",
    "net_high",
    "direct",
    "attention_cue",
    "verdict",
]
top_heads[columns].to_csv(out / "which_heads_resolve.csv", index=False, float_format="%.6g")
page = probe.write(study, out, command="analyses/which_heads_resolve.py")
page
