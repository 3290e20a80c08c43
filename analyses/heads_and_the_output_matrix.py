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
# # Does one output matrix serve all heads, or does each head have its own?
#
# Both are true: implementations concatenate the heads' z and multiply once with W_O; in the lessons every head writes its own ΔE, and the
# ΔE are added up. Expect the same vector from both, up to rounding, and a rank of at most d_head for each head's value map d_model -> d_model.
# A few seconds.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: Every head of a layer writes a separate change ΔE of the word's vector; their sum is the write of the attention layer, minus its bias.

# %%
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
trace = probe.trace(model, "A fluffy blue creature roamed the verdant forest")
at = trace.tokens.positions_of("creature")[-1]
blocks = trace.weights.blocks
trace

# %% [markdown]
# ## Concat(z) W_O against the sum of ΔE
#
# W_O of a block is the stack of the heads' value-up matrices, so the one product is the sum of many. Every token of every layer:


# %%
def concatenated(z, w_o):
    """`head pos d_head, head d_head d_model -> pos d_model`"""
    return z.transpose(0, 1).flatten(1) @ w_o.flatten(0, 1)


together = torch.stack(
    [concatenated(z, block.w_o) for z, block in zip(trace.z, blocks, strict=True)]
)
delta_e = torch.stack(
    [attention.write(z, block.w_o) for z, block in zip(trace.z, blocks, strict=True)]
)
less_bias = torch.stack(
    [layer_write - block.b_o for layer_write, block in zip(trace.attn_out, blocks, strict=True)]
)
{
    "one product - sum of heads": (together - delta_e.sum(1)).abs().max().item(),
    "sum of heads - (attn_out - b_O)": (delta_e.sum(1) - less_bias).abs().max().item(),
    "largest number in attn_out": trace.attn_out.abs().max().item(),
}

# %% [markdown]
# ## All heads side by side
#
# What each head adds to the vector of *creature*: its length, and its share of the sum, measured along the sum. The shares of a layer sum to
# 1, and a negative share points the other way. b_V is part of each ΔE: the weights of a row sum to 1, so all of it is added.

# %%
# share = <ΔE of the head, sum> / |sum|²
whole = delta_e[:, :, at].sum(1)
share = torch.einsum("lhm,lm->lh", delta_e[:, :, at], whole) / whole.square().sum(-1, keepdim=True)

# %% [markdown]
# ## Value down, value up
#
# A head's value map is W_V W_O: from d_model down to d_head, and up again. Its rank cannot exceed d_head. The spectrum shows how many of these
# directions matter (`half`: the number of directions with half of its squared size).

# %%
rows, spectra = [], []
for layer, block in enumerate(blocks):
    for head, (down, up) in enumerate(zip(block.w_v.double(), block.w_o.double(), strict=True)):
        sizes = torch.linalg.svdvals(down @ up)
        cumulative = sizes.square().cumsum(0) / sizes.square().sum()
        row = {
            "layer": layer,
            "head": head,
            "length": delta_e[layer, head, at].norm(),
            "share": share[layer, head],
        }
        row |= {"rank": (sizes > 1e-9 * sizes[0]).sum(), "d_head": len(up), "d_model": len(down)}
        row |= {"largest": sizes[0], "half": (cumulative < 0.5).sum() + 1}
        rows.append(
            {name: getattr(value, "item", lambda v=value: v)() for name, value in row.items()}
        )
        name = f"L{layer}H{head}"
        spectra += [
            {"map": name, "place": number, "value": size}
            for number, size in enumerate(sizes.tolist(), start=1)
        ]
table = pd.DataFrame(rows)
# Differences are relative to the largest number of the layer.
scale = trace.attn_out.abs().amax((1, 2))
for name, difference in {
    "sum_differs": together - delta_e.sum(1),
    "block_differs": delta_e.sum(1) - less_bias,
}.items():
    table[name] = (difference.abs().amax((1, 2)) / scale)[table["layer"]].numpy()
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "heads_and_the_output_matrix.csv", index=False, float_format="%.6g")
table

# %%
drawing.spectra(pd.DataFrame(spectra), rank=model.config.d_head)

# %% [markdown]
# ## The picture
#
# The layer with the longest joint write: the first coordinates of every ΔE, and the write of the hooked attention layer minus b_O. A cell of
# the lowest row is the sum of the cells above it.

# %%
layer = int(whole.norm(dim=-1).argmax())
vectors = {
    f"ΔE of L{layer}H{head}: {share[layer, head]:.0%}": part[at]
    for head, part in enumerate(delta_e[layer])
}
vectors["sum = attn_out − b_O"] = less_bias[layer, at]
cells = [
    {"vector": name, "coordinate": coordinate, "value": value}
    for name, vector in vectors.items()
    for coordinate, value in enumerate(vector.tolist())
]
picture = drawing.added_vectors(pd.DataFrame(cells), total="sum = attn_out − b_O")
charts.save(picture, out / "heads_and_the_output_matrix.png")
picture
