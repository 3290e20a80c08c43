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
# # Is *bank* the same vector in every sentence?
#
# Expect yes at the token embedding, exactly: the table of token vectors does not know the sentence. The position vector is the
# only difference when the word enters the first block. Then every layer adds what its heads carried over from the sentence, and the
# vectors of different senses part. Half a minute with the embedded model, a few with GPT-2.
#
# Needs: a clone of the repository, for `drawing` next to this script; the model that ships, or the one that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or where `PROBE_OUT` says.
#
# Shown: *bank* is the same vector in all its sentences; from the first layer on, its vectors of different senses move apart.

# %%
import os
from pathlib import Path

import drawing
import pandas as pd
import torch

import probe
from probe import charts

WORD, TEXTS = "bank", {"river": "The river bank", "money": "Make a deposit at the bank"}
model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))

# %% [markdown]
# ## Two sentences
#
# What enters the first block is token vector + position vector. The lengths of the differences between the two sentences:

# %%
traces = {sense: probe.trace(model, text) for sense, text in TEXTS.items()}
at = {sense: trace.tokens.positions_of(WORD)[-1] for sense, trace in traces.items()}
weights = traces["river"].weights
parts = {
    "token vector": [
        weights.raw["wte.weight"][trace.tokens.ids[at[sense]]] for sense, trace in traces.items()
    ],
    "position vector": [weights.raw["wpe.weight"][at[sense]] for sense in traces],
    "entering the first block": [
        probe.decomposition.residual_stream(trace, at[sense])[0] for sense, trace in traces.items()
    ],
}
{name: (here - there).norm().item() for name, (here, there) in parts.items()}

# %% [markdown]
# ## Every sentence of the lexicon
#
# The largest difference in any coordinate of the token vector, over all sentences, is 0: not rounded, the same numbers.

# %%
sentences = probe.lexicon.expand(WORD).sentences
tokens = [probe.tokenize(model, sentence.text) for sentence in sentences]
targets = [each.positions_of(WORD)[-1] for each in tokens]
states = probe.target_states(model, tokens, targets)
apart = {
    "token vector": (states.token_embedding - states.token_embedding[0]).abs().max().item(),
    "position vector": (states.position_embedding - states.position_embedding[0])
    .abs()
    .max()
    .item(),
}
len(sentences), apart

# %% [markdown]
# ## The angle between two contexts, by depth
#
# Pairs of sentences with the word at the same position, in different frames and with different cue words: two of the same sense,
# and two of different senses. What tells the two kinds of pair apart is the sense. Depth -1 is the token, 0 adds the position.

# %%
stream = torch.cat([states.token_embedding.unsqueeze(1), states.resid], dim=1).transpose(
    0, 1
)  # depth sentence d_model
unit = torch.nn.functional.normalize(stream.double(), dim=-1)
chord = torch.cdist(
    unit, unit, compute_mode="donot_use_mm_for_euclid_dist"
)  # exactly 0 for equal vectors
angle = torch.rad2deg(2 * torch.asin(chord / 2)).numpy()
facts = pd.DataFrame(
    [
        {"frame": s.frame, "cue": s.text[s.cue_start : s.cue_end], "sense": s.sense}
        for s in sentences
    ]
)
same = {
    name: values.to_numpy()[:, None] == values.to_numpy()
    for name, values in facts.assign(at=targets).items()
}
comparable = same["at"] & ~same["frame"] & ~same["cue"]
kinds = {
    "two of different senses": comparable & ~same["sense"],
    "two of the same sense": comparable & same["sense"],
}
angles = pd.DataFrame(
    {kind: angle[:, pairs].mean(1) for kind, pairs in kinds.items()},
    index=range(-1, len(angle) - 1),
)
angles

# %% [markdown]
# ## The sense coordinate
#
# The study fits the direction from one sense to the other on some frames and cue words and measures it on others: about +1/2 for
# the first sense at the depth where it was fitted, -1/2 for the second.

# %%
depth = probe.study(model, WORD, seed=0, permutations=99, max_pairs=12).depth
coordinates = depth.pivot(index="depth", columns="sense", values="coordinate")[list(TEXTS)]
coordinates

# %% [markdown]
# ## What the two vectors read as
#
# The token embeddings nearest to the vector by cosine, and the next tokens if the model stopped at that depth (the logit lens).
# At depth 0 the nearest token is the word itself.

# %%
name = model.tokenizer.decode
rows: dict[str, list[str]] = {}
for sense, trace in traces.items():
    near = [
        probe.decomposition.nearest_tokens(model, vector, count=3)
        for vector in probe.decomposition.residual_stream(trace, at[sense])
    ]
    top = probe.decomposition.logit_lens(trace, at[sense]).topk(3).indices.tolist()
    rows[f"nearest_{sense}"] = [
        "",
        *(" · ".join(name([token]).strip() for token, _ in each) for each in near),
    ]
    rows[f"next_{sense}"] = [
        "",
        *(" · ".join(repr(name([token])) for token in each) for each in top),
    ]
table = (
    angles.join(coordinates.add_prefix("coordinate_"))
    .assign(**rows)
    .rename_axis("depth")
    .reset_index()
)
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "same_word_then_apart.csv", index=False, float_format="%.6g")
table

# %% [markdown]
# ## The picture

# %%
panels = {"angle between two contexts (degrees)": angles, "sense coordinate (1 = gap)": coordinates}
long = [
    frame.melt(ignore_index=False, var_name="what").assign(panel=panel)
    for panel, frame in panels.items()
]
hues = {sense: charts.sense_colour(list(TEXTS), sense) for sense in TEXTS}
lines = pd.concat(long).rename_axis("depth").reset_index()
picture = drawing.lines_by_depth(lines, dict.fromkeys(panels, "linear"), hues=hues)
charts.save(picture, out / "same_word_then_apart.png")
picture
