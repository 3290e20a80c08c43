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
# Reading states, swapping every head, sets of heads and long texts, each timed in turn with the usual implementation, on random weights of
# real shapes: GPT-2 small, a Llama, a GPT-NeoX and a BERT. Expect all 288 swaps of a pair for the price of a few forward passes. About
# fifteen minutes. `--quick` runs a tiny shape in less than one minute, to check that the script works: its times mean nothing.
#
# Needs: a clone of the repository, for `timing` next to this script; no trained model; a quiet machine. Writes into `reports` below the
# current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: All 144 heads are swapped in both directions, exactly, for the price of a few forward passes of the pairs.

# %%
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import timing
import torch

import probe
from probe.model.load import read_weights
from probe.model.trace import target_states
from probe.patching.heads import swap_pairs, swap_sets
from probe.patching.positions import trace_positions

QUICK = "--quick" in sys.argv
OUT = Path(os.environ.get("PROBE_OUT", "reports"))
SHAPE, RUNS, PAIRS, LENGTH, SENTENCES, LONG = (
    ("tiny", 2, 3, 12, 8, 64) if QUICK else ("gpt2-small", 5, 8, 24, 256, 1024)
)
model = timing.shaped(SHAPE)
plain, weights = timing.plain_model(model), read_weights(model)
layers, heads, d_model, _ = weights.shape
targets = []


def record(work, against, target, measured, unit="×", *, least=False):
    """Record a measurement, and whether it meets its target: at most `target`, or at least with `least`."""
    ratio = measured["ratio"]
    holds = ratio >= target if least else ratio <= target
    bound = f"{'≥' if least else '≤'} {target:g} {unit}"
    targets.append(
        {"work": work, "against": against, "target": bound, "holds": holds, "unit": unit} | measured
    )


# %% [markdown]
# ## Reading: Q, K, V, pattern row, z and the residual stream at the word

# %%
tokens = timing.random_tokens(model, SENTENCES, LENGTH)
at_word, rows = [LENGTH - 1] * SENTENCES, [sentence.ids for sentence in tokens]
works = {
    "read": lambda: target_states(model, tokens, at_word),
    "bare": lambda: timing.bare_forward(plain, rows, batch=1024 // LENGTH),
}
record(
    f"read the states of {SENTENCES} sentences",
    "their bare forward",
    1.10,
    timing.compare(timing.interleave(works, runs=RUNS), "read", "bare"),
)

# %% [markdown]
# ## Swapping: every head, both directions
#
# Compared with one forward pass of one member of each pair, the strictest unit, with one of both members, and with one forward pass per
# head, as in other tools. That loop is run once, a part in every turn.

# %%
a, b = timing.aligned_pairs(model, PAIRS, LENGTH)
direction = torch.nn.functional.normalize(
    torch.randn(d_model, generator=torch.Generator().manual_seed(0)), dim=0
)
every_head = [(layer, head) for layer in range(layers) for head in range(heads)]
looped = torch.zeros(PAIRS, 2, layers, heads)
turn = iter(range(1000))


def loop():
    part = every_head[next(turn) % RUNS :: RUNS]
    looped[..., [layer for layer, _ in part], [head for _, head in part]] = timing.loop_over_heads(
        model, (a, b), direction, part
    )


works = {
    "swaps": lambda: swap_pairs(weights, a, b, direction[None], depth=layers),
    "one side": lambda: timing.bare_forward(plain, a, batch=PAIRS),
    "both sides": lambda: timing.bare_forward(plain, [*a, *b], batch=2 * PAIRS),
    "loop": loop,
}
timings = timing.interleave(works, runs=RUNS)
swaps = f"swap all {layers * heads} heads of {PAIRS} pairs both ways, traces included"
record(
    swaps,
    "bare forward of one member of each pair",
    7,
    timing.compare(timings, "swaps", "one side"),
)
record(swaps, "bare forward of both members", 7, timing.compare(timings, "swaps", "both sides"))
# Forward passes of the whole loop and of a part, with two traces each.
forwards = (2 * len(every_head) + 2, 2 * -(-len(every_head) // RUNS) + 2)
faster = timing.compare(timings, "loop", "swaps", times=forwards[1] / forwards[0])
record("a forward per head with TransformerLens hooks", "the same swaps", 60, faster, least=True)
exact = swap_pairs(weights, a, b, direction[None], depth=layers)[..., 0]
difference = float((looped - exact).abs().max())
record(
    "largest difference of the two, of the residual's unit",
    "",
    1e-4,
    timing.single_value(difference),
    unit="",
)

# %% [markdown]
# ## Texts with any metric
#
# `probe.patch` on twice as many pairs of texts, including tokenization and frames, with three metrics: the coordinate between the two, the
# logits of two next tokens, and a function of all logits. It is compared with the loop with the same metric, which is run for one head of
# every third layer and extrapolated.

# %%
texts = timing.drawn_texts(model, 2 * PAIRS, LENGTH)
token_rows = [[probe.tokenize(model, text).ids for text in side] for side in texts]
ends = target_states(
    model,
    [probe.tokenize(model, text) for side in texts for text in side],
    [LENGTH - 1] * 4 * PAIRS,
).resid[:, -1]
way = ends[: 2 * PAIRS] - ends[2 * PAIRS :]
sample = [(layer, layer % heads) for layer in range(0, layers, 3)]


def surprise(logits):
    """The log probability of one token, which needs all logits."""
    return logits.log_softmax(-1)[:, 5]


METRICS = {
    "the coordinate between the two": (None, way / way.square().sum(-1, keepdim=True), 60),
    "the logits of two next tokens": ((5, 9), lambda logits: logits[:, 5] - logits[:, 9], 20),
    "a function of all logits": (surprise, surprise, 20),
}
for name, (metric, read, least) in METRICS.items():
    patching = {
        "patch": lambda metric=metric: probe.patch(
            model, texts[0], against=texts[1], at=-1, metric=metric
        ),
        "loop": lambda read=read: timing.loop_over_heads(model, token_rows, read, sample),
    }
    timings = timing.interleave(patching, runs=RUNS)
    forwards_run, forwards_asked = 2 * len(sample) + 2, 2 * layers * heads + 2
    record(
        f"a forward per head with TransformerLens hooks, {2 * PAIRS} pairs, read by {name}",
        "probe.patch",
        least,
        timing.compare(timings, "loop", "patch", times=forwards_run / forwards_asked),
        least=True,
    )

# %% [markdown]
# ## From the cue to the word: every position, every edge
#
# One pair in both directions, with its cue five tokens before the word, compared with the bare forward pass of its two members: the stream,
# the attention output and the MLP output of every layer at every position from the cue on; every edge into the query, the key and the value
# of a head at the word, from all earlier writers at these positions; and for a thousand of these edges a separate forward pass from the
# receiving head on. Other tools run two whole forward passes with hooks for each edge: in the first only the sender writes its output of the
# other member, in the second the receiver gets the result.

# %%
first, second = a[:1], b[:1]
never = 1e9  # of the gap: no edge has such an effect


def edges(sample):
    only = {"receivers": [0], "mlps": False, "reach": never, "sample": sample}
    return probe.edges(weights, first, second, direction[None], depth=layers, **only)


tracing = {
    "trace": lambda: trace_positions(
        weights, first, second, direction[None], depth=layers, heads=False
    ),
    "edges": lambda: edges(0),
    "totals": lambda: edges(1000),
    "bare": lambda: timing.bare_forward(plain, [*first, *second], batch=2),
}
whole = edges(1000)
between = (whole.edges["sender_head"] >= 0) & whole.total[0, 0, :, 0].isfinite().numpy()
sampled_edges = between.nonzero()[0][:: max(1, between.sum() // 6)]
tracing["loop"] = lambda: timing.loop_over_edges(
    model, (a[0], b[0]), direction, whole.edges[sampled_edges]
)
timings, edge_count = timing.interleave(tracing, runs=RUNS), len(whole.edges)
for name, work, bound in (
    ("trace", "causal trace of one pair both ways, three components", 40),
    ("edges", f"fraction and direct effect of {edge_count:,} edges into the heads at the word", 20),
    ("totals", "the same and the total effect of 1,000 of them", 50),
):
    record(work, "bare forward of both members", bound, timing.compare(timings, name, "bare"))
faster = timing.compare(
    timings,
    "loop",
    "totals",
    times=len(sampled_edges) / whole.total[0, 0, :, 0].isfinite().sum().item(),
)
record(
    "two forwards per edge with TransformerLens hooks",
    "these edges, each with its total",
    100,
    faster,
    least=True,
)
looped_totals = timing.loop_over_edges(model, (a[0], b[0]), direction, whole.edges[sampled_edges])
difference = float((looped_totals - whole.total[0, :, sampled_edges, 0]).abs().max())
record(
    "largest difference of the two totals, of the residual's unit",
    "",
    1e-4,
    timing.single_value(difference),
    unit="",
)

# %% [markdown]
# ## Other architectures
#
# A Llama with SmolLM2's shape (grouped-query heads, rotary positions, gated MLPs), a GPT-NeoX with Pythia's shape, and a BERT. The loop with
# one hooked forward pass per head is run for a sample of the heads and extrapolated. A BERT reads both ways, so every swap recomputes the
# whole text.

# %%
for shape in () if QUICK else ("llama-135m", "neox-160m", "bert-base"):
    pairs = 2 if shape == "bert-base" else PAIRS
    timings, times = timing.architecture(shape, pairs=pairs, length=LENGTH, sentences=64, runs=RUNS)
    swaps = f"{shape}: all heads of {pairs} pairs both ways"
    if shape == "bert-base":
        record(
            swaps,
            "a hooked forward per head and direction",
            0.55,
            timing.compare(timings, "swaps", "loop", times=times),
        )
        continue
    record(swaps, "bare forward of both members", 6, timing.compare(timings, "swaps", "forward"))
    faster = timing.compare(timings, "loop", "swaps", times=1 / times)
    record(
        f"{shape}: a forward per head with TransformerLens hooks",
        "the same swaps",
        60,
        faster,
        least=True,
    )
    record(
        f"{shape}: read 64 sentences",
        "their bare forward",
        1.10,
        timing.compare(timings, "read", "read bare"),
    )

# %% [markdown]
# ## Sets of heads: a whole curve

# %%
curve_masks = timing.curve_sets(layers, heads)
donor_z = target_states(
    model, timing.random_tokens(model, PAIRS, LENGTH, seed=1), [LENGTH - 1] * PAIRS
).z
works = {
    "curve": lambda: swap_sets(weights, a, donor_z, curve_masks, direction[None]),
    "bare": works["one side"],
}
curve = timing.compare(timing.interleave(works, runs=RUNS), "curve", "bare", times=layers * heads)
record(
    f"head-set curve, {len(curve_masks)} sets",
    f"{layers * heads} forwards of the same sentences",
    0.4,
    curve,
)

# %% [markdown]
# ## One long text

# %%
text = timing.long_text(model, LONG, runs=RUNS)
everything = "run_with_cache of everything"
record(
    f"extra memory of a trace kept to one of {LONG} tokens",
    everything,
    0.1,
    timing.single_value(text["traced"] / text["cached"]),
)
record(
    "its time",
    everything,
    1.0,
    timing.single_value(text["traced_seconds"] / text["cached_seconds"]),
)
record(
    "ΔE by source token, every head, values included",
    "",
    60,
    timing.single_value(text["sources"]),
    unit="MiB",
)

# %% [markdown]
# ## Starting

# %%
started = timing.start_up(runs=RUNS)
record("import probe", "", 0.15, timing.single_value(started["import probe"]), unit="s")
record("probe --help", "", 0.35, timing.single_value(started["probe --help"]), unit="s")

# %% [markdown]
# ## Growth

# %%
scaling = timing.growth(length=LENGTH, quick=QUICK)
exponents = timing.exponents(scaling)
exponents

# %% [markdown]
# ## The page

# %%
frames = {"targets": pd.DataFrame(targets), "scaling": scaling, "exponents": exponents}
page = timing.write_page(frames, timing.machine(), OUT, date=datetime.now(UTC).date().isoformat())
frames["targets"][["work", "against", "ratio", "target", "holds"]]
