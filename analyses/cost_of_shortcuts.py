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
# # What does a shortcut save?
#
# Gradients are used instead of swaps because a forward pass per head is slow. Here both are timed on the same pairs, in both directions:
# exact swaps of every head, attribution patching in its plainest form (Hugging Face's model and torch.autograd), ours, integrated gradients,
# and TransformerLens. The unit is the bare forward pass of both members of the pairs: Hugging Face's, with its fastest attention. About
# five minutes on one thread. `--quick` runs a tiny shape, to check that the script works: its times mean nothing.
#
# Needs: a clone of the repository, for `timing` next to this script; no trained model; a quiet machine. Writes into `reports` below the
# current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: The cost of exact swaps of every head, compared with attribution patching and integrated gradients, in bare forward passes of the same pairs.

# %%
import os
import sys
from pathlib import Path

import pandas as pd
import timing
import torch

from probe.model.load import read_weights
from probe.patching.heads import swap_pairs

QUICK = "--quick" in sys.argv
OUT = Path(os.environ.get("PROBE_OUT", "reports"))
SHAPES = ("tiny",) if QUICK else ("gpt2-small", "llama-135m", "neox-160m")
RUNS, PAIRS, LENGTH = (2, 2, 12) if QUICK else (5, 4, 24)

# %% [markdown]
# ## Every shape in turn
#
# TransformerLens' loop is run for one head of every third layer and extrapolated. Its attribution patching reads a difference of two
# logits, one pair at a time. `per_forward`: the time in bare forward passes of the same turn, the median over five turns.


# %%
def timed(shape: str) -> pd.DataFrame:
    """The time of each method on one shape. `shape work per_forward low high seconds`"""
    model = timing.shaped(shape)
    plain, weights = timing.plain_model(model), read_weights(model)
    layers, heads, d_model, _ = weights.shape
    pairs = timing.aligned_pairs(model, PAIRS, LENGTH)
    both = [*pairs[0], *pairs[1]]
    direction = torch.full((d_model,), d_model**-0.5)
    sample = [(layer, layer % heads) for layer in range(0, layers, 3)]
    works = {
        "bare forward": lambda: timing.bare_forward(plain, both, batch=len(both)),
        "exact swaps": lambda: swap_pairs(weights, *pairs, direction[None], depth=layers),
        "attribution patching, torch.autograd": lambda: timing.attribution_by_autograd(
            plain, pairs, direction, heads
        ),
        "attribution patching, probe": lambda: timing.both_ways_by_gradients(
            model, pairs, direction, steps=0
        ),
        "integrated gradients, 5 steps": lambda: timing.both_ways_by_gradients(
            model, pairs, direction, steps=5
        ),
        "integrated gradients, 20 steps": lambda: timing.both_ways_by_gradients(
            model, pairs, direction, steps=20
        ),
        "attribution patching, TransformerLens": lambda: timing.attribution_by_transformer_lens(
            model, pairs, (5, 9)
        ),
        "a hooked forward per head, TransformerLens": lambda: timing.loop_over_heads(
            model, pairs, direction, sample
        ),
    }
    timings = timing.interleave(works, runs=RUNS)
    # Forward passes of the loop over all heads, with two traces, divided by the passes of the sample.
    whole = (2 * layers * heads + 2) / (2 * len(sample) + 2)
    rows = []
    for work in works:
        times = whole if work.startswith("a hooked forward") else 1
        comparison = timing.compare(timings, work, "bare forward", times=1 / times)
        columns = {"per_forward": "ratio", "low": "ratio_low", "high": "ratio_high"}
        row = {"shape": shape, "heads": layers * heads, "work": work}
        row |= {name: comparison[source] for name, source in columns.items()}
        rows.append(row | {"seconds": comparison["seconds"] * times})
    return pd.DataFrame(rows)


table = pd.concat([timed(shape) for shape in SHAPES], ignore_index=True)
table

# %% [markdown]
# ## The table

# %%
OUT.mkdir(parents=True, exist_ok=True)
table.to_csv(OUT / "cost_of_shortcuts.csv", index=False, float_format="%.4g")
table.pivot(index="work", columns="shape", values="per_forward")
