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
# # Why are the scores divided by √d_head?
#
# Expect the variance of q·k to grow with the width of the head, the softmax of undivided scores to give nearly everything to one token (low
# entropy), and its gradient to vanish for most queries. First the real q and k of a model trained with the division, then random vectors of
# many widths. A few seconds.
#
# Needs: a clone of the repository, for `drawing` next to this script; the model that ships, or the one that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or where `PROBE_OUT` says.
#
# Shown: Without the division by √d_head the softmax gives nearly everything to one token, and the gradient of a typical query almost vanishes.

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
VARIANTS = {"divided by √d_head": 1.0, "not divided": math.sqrt(model.config.d_head)}


# %% [markdown]
# ## What is measured
#
# Entropy in bits over the bits that even shares would have: 1 is even, 0 is everything to one token. The gradient is the
# softmax's Jacobian, J = diag(A) - A Aᵀ: its largest eigenvalue λ says how far the shares can move per unit of their
# scores, at most 1/2. A query whose largest eigenvalue is below 0.01 counts as stuck.
#
# J is a diagonal less a matrix of rank one: det(J - λ) = Π (Aᵢ - λ) · (1 - Σ Aᵢ² / (Aᵢ - λ)). The shares sum to 1, so
# the last factor is -λ Σ Aᵢ / (Aᵢ - λ). The largest λ lies between the two largest shares, where that sum rises from -∞
# to ∞: halving finds its zero, and always ends.


# %%
def evenness(pattern, keys):
    return -torch.special.xlogy(pattern, pattern).sum(-1) / keys.log()


def gradient(pattern):
    shares = pattern.double() / pattern.double().sum(-1, keepdim=True)
    high, low = shares.topk(2).values.unbind(-1)
    for _ in range(60):  # halvings: to the last digit of float64
        middle = (low + high) / 2
        above = (shares / (shares - middle.unsqueeze(-1))).sum(-1) > 0
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high


def described(patterns):
    """Of `... query_pos key_pos` patterns, whose queries see two keys or more."""
    even = torch.cat([evenness(pattern, (pattern > 0).sum(-1)).flatten() for pattern in patterns])
    steep = torch.cat([gradient(pattern).flatten() for pattern in patterns])
    return {
        "evenness": even.mean(),
        "gradient": steep.median(),
        "stuck": (steep < 0.01).float().mean(),
    }


# %% [markdown]
# ## On the model's real q and k
#
# Every head, every token after the first two of the example sentences. Masked scores, with the model's own division, then
# multiplied by √d_head again.

# %%
traces = [
    probe.trace(model, text)
    for text in sorted({example.text for example in probe.lexicon.showcase()})
]
rows = []
for layer in range(model.config.n_layers):
    scores = [attention.scores(trace.q[layer], trace.k[layer]) for trace in traces]
    dots = torch.cat([part.flatten() for part in scores]) * math.sqrt(model.config.d_head)
    for variant, factor in VARIANTS.items():
        patterns = [attention.softmax(attention.mask(part * factor))[:, 2:] for part in scores]
        row = {
            "source": "real q and k",
            "layer": layer,
            "d_head": model.config.d_head,
            "variant": variant,
        }
        rows.append(
            row
            | {"variance": (dots * factor / math.sqrt(model.config.d_head)).var()}
            | described(patterns)
        )

# %% [markdown]
# ## On random vectors
#
# Independent coordinates of variance 1: the variance of q·k is d_head, so its typical size √d_head. Divided by that, it is 1 for every
# width. 256 queries, 32 keys, no mask.

# %%
for d_head in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
    draw = torch.Generator().manual_seed(d_head)
    q, k = torch.randn(256, d_head, generator=draw), torch.randn(32, d_head, generator=draw)
    for variant, factor in zip(VARIANTS, (1.0, math.sqrt(d_head)), strict=True):
        scores = attention.scores(q, k) * factor
        row = {
            "source": "random q and k",
            "layer": None,
            "d_head": d_head,
            "variant": variant,
            "variance": scores.var(),
        }
        rows.append(row | described([attention.softmax(scores)]))

# %%
table = pd.DataFrame(
    [
        {name: getattr(value, "item", lambda v=value: v)() for name, value in row.items()}
        for row in rows
    ]
)
table = table.astype({"layer": "Int64"})
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "why_divide_by_sqrt_d.csv", index=False, float_format="%.6g")
table

# %% [markdown]
# ## What this does not show
#
# This model learned with the division, so its q and k are as long as suits it; one trained without would have learned shorter ones. And the
# stuck share concerns the softmax alone: by the chain rule the division itself also shrinks the gradient with respect to q·k, √d_head times,
# but evenly for every query.

# %%
panels = [
    drawing.Panel("Real q and k: how even", "layer", "entropy (1 = even)"),
    drawing.Panel("Real q and k: gradient", "layer", "median largest eigenvalue of J"),
    drawing.Panel(
        "Random: queries that are stuck", "d_head", "share with eigenvalue < 0.01", log="x"
    ),
]
real, drawn = (table[table["source"] == source] for source in ("real q and k", "random q and k"))
parts = [
    real.assign(panel=panels[0].title, x=real["layer"], value=real["evenness"]),
    real.assign(panel=panels[1].title, x=real["layer"], value=real["gradient"]),
    drawn.assign(panel=panels[2].title, x=drawn["d_head"], value=drawn["stuck"]),
]
picture = drawing.line_panels(pd.concat(parts), panels)
charts.save(picture, out / "why_divide_by_sqrt_d.png")
picture
