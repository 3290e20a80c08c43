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
# # How fast is it, compared with other tools?
#
# Every head of a few pairs of texts is swapped in both directions, exactly, and the states at a word are read. Each is timed in turn with
# the usual implementation, on random weights of real shapes: GPT-2 small, a Llama with SmolLM2's shape (grouped-query heads, rotary
# positions, gated MLPs), a GPT-NeoX with Pythia's shape, and a BERT, which reads both ways, so that every swap runs the whole text. About
# five minutes. `--quick` runs a tiny shape, to check that the script works: its times mean nothing.
#
# Needs: a clone of the repository, for `timing` next to this script; no trained model; a quiet machine. Writes into `reports` below the
# current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: All 144 heads are swapped in both directions, exactly, for the price of a few forward passes of the pairs.

# %%
import os
import sys
from pathlib import Path

import pandas as pd
import timing
import torch

from probe.model.load import read_weights
from probe.model.trace import target_states
from probe.patching.heads import swap_pairs

QUICK = "--quick" in sys.argv
OUT = Path(os.environ.get("PROBE_OUT", "reports"))
SHAPES = ("tiny",) if QUICK else ("gpt2-small", "llama-135m", "neox-160m", "bert-base")
RUNS, LENGTH, SENTENCES = (2, 12, 8) if QUICK else (3, 24, 64)

# %% [markdown]
# ## Every shape in turn
#
# The loop with one hooked forward pass for each head and direction, as in other tools, is run for one head of every third layer and
# extrapolated. `ratio`: in the same turn, the median, lowest and highest over the turns.


# %%
def timed(shape: str) -> pd.DataFrame:
    """What each work of one shape costs. `shape work against seconds against_seconds ratio`, with lowest and highest"""
    model = timing.shaped(shape)
    weights, plain = read_weights(model), timing.plain_model(model)
    layers, heads, d_model, _ = weights.shape
    pairs = 8 if weights.causal else 2
    a, b = timing.aligned_pairs(model, pairs, LENGTH)
    at_end_a, at_end_b = timing.read_at_end(a), timing.read_at_end(b)
    direction = torch.full((d_model,), d_model**-0.5)
    sample = [(layer, layer % heads) for layer in range(0, layers, 3)]
    tokens = timing.random_tokens(model, SENTENCES, LENGTH)
    rows = [sentence.ids for sentence in tokens]
    works = {
        "swaps": lambda: swap_pairs(weights, at_end_a, at_end_b, direction[None], depth=layers),
        "pairs": lambda: timing.bare_forward(plain, [*a, *b], batch=2 * pairs),
        "loop": lambda: timing.loop_over_heads(model, (a, b), direction, sample),
        "states": lambda: target_states(model, tokens, [LENGTH - 1] * SENTENCES),
        "sentences": lambda: timing.bare_forward(plain, rows, batch=1024 // LENGTH),
    }
    timings = timing.interleave(works, runs=RUNS)
    # The share of the whole loop's forward passes that is run; both counts include two traces.
    part = (2 * len(sample) + 2) / (2 * layers * heads + 2)
    compared = {
        (
            "swap all heads both ways, traces included",
            "bare forward of these pairs",
        ): timing.compare(timings, "swaps", "pairs"),
        ("a hooked forward per head, TransformerLens", "these swaps"): timing.compare(
            timings, "loop", "swaps", times=part
        ),
        ("read the states at the word", "bare forward of these sentences"): timing.compare(
            timings, "states", "sentences"
        ),
    }
    return pd.DataFrame(
        [
            {"shape": shape, "work": work, "against": against} | numbers
            for (work, against), numbers in compared.items()
        ]
    )


costs = pd.concat([timed(shape) for shape in SHAPES], ignore_index=True)
OUT.mkdir(parents=True, exist_ok=True)
costs.to_csv(OUT / "speed.csv", index=False)
costs[["shape", "work", "against", "ratio", "ratio_low", "ratio_high"]].round(2)
