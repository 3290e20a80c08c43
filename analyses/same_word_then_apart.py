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
# Expect yes at the token embedding, exactly: the table of token vectors does not depend on the sentence. Before the first block, only the
# position vectors differ. Then the heads of every layer add information from the sentence, and the vectors of different senses diverge.
# Half a minute with the embedded model, a few minutes with GPT-2.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: *bank* begins as the same vector in all its sentences; from the first layer on, its vectors of different senses diverge.

# %%
import os
from pathlib import Path

import drawing
import pandas as pd
import torch

import probe
from probe import charts
from probe.model.trace import target_states

WORD, TEXTS = "bank", {"river": "The river bank", "money": "Make a deposit at the bank"}
model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))

# %% [markdown]
# ## Two sentences
#
# The first block reads token vector + position vector. The lengths of the differences between the two sentences:

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
{name: (river - money).norm().item() for name, (river, money) in parts.items()}

# %% [markdown]
# ## Every sentence of the lexicon
#
# The largest difference in any coordinate of the token vector, over all sentences, is exactly 0.

# %%
sentences = probe.lexicon.expand(WORD).sentences
tokens = [probe.tokenize(model, sentence.text) for sentence in sentences]
targets = [each.positions_of(WORD)[-1] for each in tokens]
states = target_states(model, tokens, targets)
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
# and two of different senses. The two kinds of pairs differ only in the sense. Depth -1 is the token, depth 0 adds the position.

# %%
stream = torch.cat([states.token_embedding.unsqueeze(1), states.resid], dim=1)
stream = stream.transpose(0, 1)  # depth sentence d_model
unit = torch.nn.functional.normalize(stream.double(), dim=-1)
# angle = 2 asin(chord / 2); this mode of cdist gives exactly 0 for equal vectors.
chord = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
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
# The study fits the direction from one sense to the other on some frames and cue words and tests it on others: the coordinate is about
# +1/2 for the first sense at the depth where it was fitted, and -1/2 for the second.

# %%
depth = probe.study(model, WORD, seed=0, permutations=99, max_pairs=12).depth
coordinates = depth.pivot(index="depth", columns="sense", values="coordinate")[list(TEXTS)]
coordinates

# %% [markdown]
# ## The tokens nearest to the two vectors
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
