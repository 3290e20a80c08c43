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
# # Is plain self-attention symmetric?
#
# Introductions first define attention without weights: queries, keys and values are the token vectors themselves, Q = K = V = M.
# One text claims that the resulting pattern is symmetric. Expect the *scores* M Mᵀ to be symmetric (up to rounding), but not the
# *pattern* after the softmax, because each row is divided by its sum. A few seconds.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: With Q = K = V = M the scores are symmetric and the attention weights are not: each row is divided by its sum.

# %%
import math
import os
from pathlib import Path

import drawing
import pandas as pd
import torch

import probe
from probe import charts
from probe.model import attention

charts.as_pictures()  # no network
model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
trace = probe.trace(model, "A fluffy blue creature roamed")
trace

# %% [markdown]
# ## Real token vectors
#
# `M` holds one row per word. Plain self-attention has no mask, so every cell is filled: later words too.

# %%
m = trace.weights.raw["wte.weight"][list(trace.tokens.ids)]
m = m[1:]  # without the first token, which begins every text
scores = attention.scores(m, m) * math.sqrt(m.shape[-1])  # M Mᵀ, not divided, as in introductions
pattern = attention.softmax(scores)
(scores - scores.T).abs().max(), (pattern - pattern.T).abs().max(), pattern.min()

# %% [markdown]
# ## Why not?
#
# A[i, j] = exp(s[i, j]) / Z[i], with Z[i] the sum of row i. The numerators are symmetric, but the sums differ, so A[i, j] / A[j, i] = Z[j] / Z[i].
# The pattern is symmetric only if all rows have the same sum, as for two vectors of the same length.

# %%
z = scores.exp().sum(-1)
(pattern / pattern.T - z / z.unsqueeze(-1)).abs().max()

# %%
pair = torch.nn.functional.normalize(m[1:3], dim=-1)  # fluffy and blue, both of length 1
pair_pattern = attention.softmax(attention.scores(pair, pair))
pair_pattern, (pair_pattern - pair_pattern.T).abs().max()

# %% [markdown]
# ## The same for other choices of M, and for a real head
#
# A real head has different weights for queries and keys: not even its scores are symmetric. Below, without and with its mask.

# %%
q, k = trace.q[0, 0, 1:], trace.k[0, 0, 1:]
cases = {
    "token vectors": (m, m),
    "token + position": (trace.resid_pre[0, 1:], trace.resid_pre[0, 1:]),
    "what block 0 reads, LN1(E)": (trace.x[0, 1:], trace.x[0, 1:]),
    "two vectors of length 1": (pair, pair),
    "a real head, L0H0": (q, k),
    "the same head with its mask": (q, k),
}
rows = []
for name, (queries, keys) in cases.items():
    raw = attention.scores(queries, keys)
    shares = attention.softmax(attention.mask(raw) if "mask" in name else raw)
    rows.append(
        {
            "case": name,
            "largest_score": raw.abs().max().item(),
            "scores_asymmetry": (raw - raw.T).abs().max().item(),
            "largest_weight": shares.max().item(),
            "pattern_asymmetry": (shares - shares.T).abs().max().item(),
            "filled": (shares > 0).float().mean().item(),
        }
    )
undivided = {"case": "token vectors, not divided", "filled": (pattern > 0).float().mean().item()}
undivided |= {
    "largest_score": scores.abs().max().item(),
    "scores_asymmetry": (scores - scores.T).abs().max().item(),
}
undivided |= {
    "largest_weight": pattern.max().item(),
    "pattern_asymmetry": (pattern - pattern.T).abs().max().item(),
}
table = pd.DataFrame([undivided, *rows]).set_index("case").reset_index()
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "plain_self_attention.csv", index=False, float_format="%.6g")
table

# %% [markdown]
# ## The picture
#
# Left: the scores. Middle: the weights (each row sums to 1). Right: the weights minus their transpose. If the claim were true, the right
# square would be blank.

# %%
panels = {"scores": scores, "weights": pattern, "weights − mirrored weights": pattern - pattern.T}
labels = [label.split("·", 1)[1] for label in trace.tokens.labels[1:]]
cells = [
    {"panel": panel, "query": labels[i], "key": labels[j], "value": value}
    for panel, square in panels.items()
    for i, row in enumerate(square.tolist())
    for j, value in enumerate(row)
]
kinds = dict(zip(panels, ("signed", "shares", "signed"), strict=True))
picture = drawing.matrix_panels(pd.DataFrame(cells), kinds)
charts.save(picture, out / "plain_self_attention.png")
picture
