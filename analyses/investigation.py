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
# # How do I investigate a word of my own?
#
# Run the cells in order, which takes half a minute. Then replace *seal* by your word and sentences.
#
# Needs: probe alone. `PROBE_MODEL` names another model than the one that ships. Writes into `reports/lessons` below the current folder, or
# into the folder that `PROBE_OUT` names.
#
# Shown: Where the sense of one sentence comes from, token by token and head by head, for a word studied on your sentences.

# %%
import os
from pathlib import Path

import pandas as pd

import probe
from probe import charts
from probe.model import attention

charts.as_pictures()  # no network
model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
model

# %% [markdown]
# ## One sentence
#
# Every tensor of attention, from hooks. `certify` recomputes all of them from the raw weights, and `require` raises an error if they disagree.

# %%
probe.certify(model).require().worst

# %%
trace = probe.trace(model, "Near the cold ocean we met a grey seal")
trace

# %% [markdown]
# ## One head
#
# The attention of each head of the first layer from *seal*, and the length of its write there. Then one head: its pattern, computed by the
# formula, equals the hooked pattern.

# %%
at = len(trace.tokens) - 1
looks = pd.DataFrame(trace.pattern[0, :, at].numpy(), columns=trace.tokens.labels)
looks.insert(
    0,
    "added",
    [trace.delta_e(layer=0, head=head, at=at).norm().item() for head in range(len(looks))],
)
looks.rename_axis("head").round(2)

# %%
q, k = trace.q[0, 0], trace.k[0, 0]
pattern = attention.softmax(attention.mask(attention.scores(q, k)))
(pattern - trace.pattern[0, 0]).abs().max()

# %%
labels = trace.tokens.labels
weights = pd.DataFrame(pattern.numpy(), index=labels, columns=labels)  # queries as rows
weights.round(2)

# %% [markdown]
# ## Your sentences
#
# A row has `word, sense, text, start, end`. `cue_start, cue_end` mark the cue. With `frame` and `pair` the study splits sentences by frame, and
# swaps between sentences that differ in the cue alone. Here: eight frames, and twelve cue words of each sense.

# %%
CUES = {
    "animal": [
        "ocean",
        "sea",
        "beach",
        "coast",
        "island",
        "ice",
        "fish",
        "whale",
        "shark",
        "dolphin",
        "zoo",
        "fisherman",
    ],
    "closure": [
        "rubber",
        "plastic",
        "wax",
        "jar",
        "bottle",
        "lid",
        "pipe",
        "valve",
        "pump",
        "tank",
        "envelope",
        "container",
    ],
}
FRAMES = [
    "Near the {} we saw the seal",
    "I thought about the {} and the seal",
    "He drew a {} next to the seal",
    "The story of the {} began with a seal",
    "They talked about the {} before the seal",
    "A picture of the {} showed the old seal",
    "My sister liked the {} more than the seal",
    "After the {} she looked at the seal",
]
rows = []
for number, frame in enumerate(FRAMES):
    for sense, cues in CUES.items():
        for cue_number, cue in enumerate(cues):
            text, cue_start = frame.format(cue), frame.index("{}")
            row = {
                "word": "seal",
                "sense": sense,
                "text": text,
                "start": len(text) - 4,
                "end": len(text),
            }
            row |= {"cue_start": cue_start, "cue_end": cue_start + len(cue)}
            rows.append(row | {"frame": f"frame {number}", "pair": f"{number}-{cue_number}"})
pd.DataFrame(rows).groupby("sense")["text"].agg(["count", "first"])

# %% [markdown]
# ## The study
#
# Directions are fitted on some frames and cue words and tested on others. Every head's output is swapped. Heads are ranked only if there is a
# gap between the senses.

# %%
study = probe.study(model, "seal", sentences=rows, seed=0)
study

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
        "ranked",
    ]
]

# %%
charts.depth_profiles(study.depth, "seal")

# %%
charts.head_maps(study.word_heads)

# %%
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
table = study.word_heads.query("rank <= 5").sort_values("rank")[columns]
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "investigation.csv", index=False, float_format="%.6g")
table

# %% [markdown]
# ## The decomposition of one sentence
#
# The vector of the word at the read-out layer is a sum: embeddings, every head by source token, MLPs, biases. Along the sense axis the sum
# shows which component wrote the sense. A write is not an effect: the effect is that of the swap above. The two differ if a head acts through
# others.

# %%
picture = charts.decomposition_bars(
    study.decomposition, "seal", sentence=int(study.decomposition["sentence"].iloc[0])
)
charts.save(picture, out / "investigation.png")
picture

# %% [markdown]
# `probe.write(study, "out")` writes all of this as a page.
