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
# # What does a longer context cost?
#
# Every head weights every pair of tokens, so its pattern has n² entries for n tokens. All other activations of a layer grow with n. Expect
# exponents of 2 and 1 for the counted entries and bytes. Time grows more slowly at first (there is other work), and faster when the patterns
# no longer fit in the processor's caches. A few seconds.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: The memory of attention patterns grows with the square of the length of a text; in a long text they need more memory than all other activations.

# %%
import os
import time
from pathlib import Path

import drawing
import numpy as np
import pandas as pd
import torch

import probe
from probe import charts
from probe.model import attention
from probe.model.parameters import count_parameters

charts.as_pictures()  # no network
model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
config = model.config


# %% [markdown]
# ## Counted
#
# Texts of n tokens, up to the model's context window, run through the hooked model. Entries and bytes are counted in the tensors of the
# run (float32): the patterns of all heads, and the activations per token: Q, K, V, z and the residual stream.


# %%
def text_of(n):
    """A text of exactly `n` tokens: the same word, repeated."""
    return " the" * (n - config.prepend_bos)


def exponent(n, amounts):
    """The power of n with which the amounts grow: the slope of the line through their logarithms."""
    return round(float(np.polyfit(np.log(n), np.log(amounts), 1)[0]), 6)


lengths = [n for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048) if n <= config.n_ctx]
rows = []
for n in lengths:
    trace = probe.trace(model, text_of(n))
    activations = [
        trace.q,
        trace.k,
        trace.v,
        trace.z,
        trace.resid_pre,
        trace.resid_mid,
        trace.resid_post,
    ]
    row = {"model": model.name, "n": n, "entries_per_head": trace.pattern[0, 0].numel()}
    row |= {
        "not_masked": int((trace.pattern[0, 0] > 0).sum()),
        "heads": trace.pattern.shape[:2].numel(),
    }
    rows.append(
        row
        | {
            "pattern_bytes": trace.pattern.nbytes,
            "per_token_bytes": sum(part.nbytes for part in activations),
        }
    )
counted = pd.DataFrame(rows)
{
    name: exponent(lengths, counted[name])
    for name in ("entries_per_head", "pattern_bytes", "per_token_bytes")
}

# %% [markdown]
# n (n + 1) / 2 of the n² entries are not masked: the mask saves half of the entries, but the growth stays quadratic. The two amounts of
# memory are equal at:

# %%
meet = int(
    np.ceil(lengths[-1] * counted["per_token_bytes"].iloc[-1] / counted["pattern_bytes"].iloc[-1])
)
f"{meet} tokens"

# %% [markdown]
# The same count for GPT-3, from its published sizes (two bytes per number):

# %%
gpt3 = count_parameters("gpt3").sizes
heads, n = gpt3.n_layers * gpt3.n_heads, gpt3.n_ctx
per_token = 2 * n * gpt3.n_layers * (4 * gpt3.n_heads * gpt3.d_head + 3 * gpt3.d_model)
largest = {
    "model": "gpt3, by formula",
    "n": n,
    "entries_per_head": n * n,
    "not_masked": n * (n + 1) // 2,
    "heads": heads,
}
largest |= {"pattern_bytes": 2 * heads * n * n, "per_token_bytes": per_token}
table = pd.concat([counted, pd.DataFrame([largest])], ignore_index=True)
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "context_size.csv", index=False)
table

# %% [markdown]
# ## Measured
#
# The time of the formulas (scores, mask, softmax, mix) with one layer's q, k and v of that length, the fastest of several runs. Times depend
# on this machine and its load, so they are shown here and not stored. The vectors are random.


# %%
def seconds(n):
    """The fastest of several runs of one layer's attention over n tokens."""
    q, k, v = torch.randn(
        3, config.n_heads, n, config.d_head, generator=torch.Generator().manual_seed(0)
    )
    durations = []
    for _ in range(max(3, 2048 // n)):
        start = time.perf_counter()
        attention.mix(attention.softmax(attention.mask(attention.scores(q, k))), v)
        durations.append(time.perf_counter() - start)
    return min(durations)


longer = [64, 128, 256, 512, 1024, 2048]
times = pd.DataFrame({"n": longer, "milliseconds": [1000 * seconds(n) for n in longer]})
short, long = (exponent(part["n"], part["milliseconds"]) for part in (times.head(3), times.tail(3)))
f"time grows with n to the power {short:.2f} from 64 to 256 tokens, {long:.2f} from 512 to 2048"

# %%
times

# %%
panel = drawing.Panel(f"{model.name}, all layers, float32", "tokens in the text", "bytes", log="xy")
kinds = {
    "patterns (n² per head)": "pattern_bytes",
    "Q, K, V, z and residual stream (n)": "per_token_bytes",
}
lines = [
    counted.assign(panel=panel.title, x=counted["n"], variant=name, value=counted[column])
    for name, column in kinds.items()
]
picture = drawing.line_panels(pd.concat(lines), [panel], width=330)
charts.save(picture, out / "context_size.png")
picture
