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
# # How fast is it, compared with the usual tools?
#
# Reading states, swapping every head, sets of heads and long texts, each in turn with the plain way of doing the same, on random
# weights of true shapes: GPT-2 small, and a Llama, a GPT-NeoX and a BERT. Expect all 288 swaps of a pair for the price of a few forwards. About fifteen minutes;
# `--quick` does the same on a tiny shape in less than one, to see that the results are right: its times mean nothing.
#
# Needs: a clone of the repository, for `timing` next to this script; no trained model; a quiet machine. Writes into `reports` below the
# current folder, or where `PROBE_OUT` says.
#
# Shown: All 144 heads are swapped both ways, exactly, for the price of a few forwards of the pairs.

# %%
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import timing
import torch

import probe

QUICK = "--quick" in sys.argv
OUT = Path(os.environ.get("PROBE_OUT", "reports"))
SHAPE, RUNS, PAIRS, LENGTH, SENTENCES, LONG = (
    ("tiny", 2, 3, 12, 8, 64) if QUICK else ("gpt2-small", 5, 8, 24, 256, 1024)
)
model = timing.shaped(SHAPE)
plain, weights = timing.plain_model(model), probe.read_weights(model)
layers, heads, d_model, _ = weights.shape
targets = []


def hold(work, against, target, measured, unit="×", *, least=False):
    """Notes a measurement and whether it holds what was asked: at most `target`, or at least."""
    ratio = measured["ratio"]
    holds = ratio >= target if least else ratio <= target
    asked = f"{'≥' if least else '≤'} {target:g} {unit}"
    targets.append(
        {"work": work, "against": against, "target": asked, "holds": holds, "unit": unit} | measured
    )


# %% [markdown]
# ## Reading: Q, K, V, pattern row, z and the residual stream at the word

# %%
tokens = timing.drawn(model, SENTENCES, LENGTH)
at_word, rows = [LENGTH - 1] * SENTENCES, [sentence.ids for sentence in tokens]
works = {
    "read": lambda: probe.target_states(model, tokens, at_word),
    "bare": lambda: timing.bare_forward(plain, rows, batch=1024 // LENGTH),
}
hold(
    f"read the states of {SENTENCES} sentences",
    "their bare forward",
    1.10,
    timing.compare(timing.interleave(works, runs=RUNS), "read", "bare"),
)

# %% [markdown]
# ## Swapping: every head, both ways
#
# Against one forward of one member of each pair, the strictest unit, and of both; and against one forward per head, as others do it. That
# loop is run once, a part in every turn.

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
    "swaps": lambda: probe.swap_pairs(weights, a, b, direction[None], depth=layers),
    "one side": lambda: timing.bare_forward(plain, a, batch=PAIRS),
    "both sides": lambda: timing.bare_forward(plain, [*a, *b], batch=2 * PAIRS),
    "loop": loop,
}
timings = timing.interleave(works, runs=RUNS)
swaps = f"swap all {layers * heads} heads of {PAIRS} pairs both ways, traces included"
hold(
    swaps,
    "bare forward of one member of each pair",
    7,
    timing.compare(timings, "swaps", "one side"),
)
hold(swaps, "bare forward of both members", 7, timing.compare(timings, "swaps", "both sides"))
forwards = (
    2 * len(every_head) + 2,
    2 * -(-len(every_head) // RUNS) + 2,
)  # of the whole loop and of a part, two traces each
faster = timing.compare(timings, "loop", "swaps", times=forwards[1] / forwards[0])
hold("a forward per head with TransformerLens hooks", "the same swaps", 60, faster, least=True)
exact = probe.swap_pairs(weights, a, b, direction[None], depth=layers)[..., 0]
difference = float((looped - exact).abs().max())
hold(
    "largest difference of the two, of the residual's unit",
    "",
    1e-4,
    timing.alone(difference),
    unit="",
)

# %% [markdown]
# ## Texts and a metric of one's own
#
# `probe.patch` on twice as many pairs of texts, tokens and frames included, by the coordinate between the two, by the logits of two next tokens
# and by a function of all logits, against the loop with the same metric. The loop is run for one head of every third layer and counted up.

# %%
texts = timing.drawn_texts(model, 2 * PAIRS, LENGTH)
token_rows = [[probe.tokenize(model, text).ids for text in side] for side in texts]
ends = probe.target_states(
    model,
    [probe.tokenize(model, text) for side in texts for text in side],
    [LENGTH - 1] * 4 * PAIRS,
).resid[:, -1]
way = ends[: 2 * PAIRS] - ends[2 * PAIRS :]
sample = [(layer, layer % heads) for layer in range(0, layers, 3)]


def surprise(logits):
    """The log of the probability of one token, which takes all logits."""
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
    hold(
        f"a forward per head with TransformerLens hooks, {2 * PAIRS} pairs, read by {name}",
        "probe.patch",
        least,
        timing.compare(timings, "loop", "patch", times=forwards_run / forwards_asked),
        least=True,
    )

# %% [markdown]
# ## From the cue to the word: every position, every edge
#
# One pair, both ways, its cue five tokens before the word, against the bare forward of its two members. The stream, the attention output and
# the MLP output of every layer at every position from the cue on; every edge into the query, the key and the value of a head at the word, from
# whatever writes before it there; and a forward of its own from the receiving head on for a thousand of these edges. Others run two whole
# forwards with hooks for each edge: one in which only the sender writes what it wrote in the other member, one in which the receiver gets that.

# %%
one, other, never = a[:1], b[:1], 1e9  # of the gap: no edge reaches as much


def edges(sample):
    only = {"receivers": [0], "mlps": False, "reach": never, "sample": sample}
    return probe.edges(weights, one, other, direction[None], depth=layers, **only)


tracing = {
    "trace": lambda: probe.trace_positions(
        weights, one, other, direction[None], depth=layers, heads=False
    ),
    "edges": lambda: edges(0),
    "totals": lambda: edges(1000),
    "bare": lambda: timing.bare_forward(plain, [*one, *other], batch=2),
}
whole = edges(1000)
between = (whole.edges["sender_head"] >= 0) & whole.total[0, 0, :, 0].isfinite().numpy()
few = between.nonzero()[0][:: max(1, between.sum() // 6)]
tracing["loop"] = lambda: timing.loop_over_edges(model, (a[0], b[0]), direction, whole.edges[few])
timings, edge_count = timing.interleave(tracing, runs=RUNS), len(whole.edges)
for name, work, most in (
    ("trace", "causal trace of one pair both ways, three components", 40),
    ("edges", f"fraction and direct effect of {edge_count:,} edges into the heads at the word", 20),
    ("totals", "the same and the total effect of 1,000 of them", 50),
):
    hold(work, "bare forward of both members", most, timing.compare(timings, name, "bare"))
faster = timing.compare(
    timings, "loop", "totals", times=len(few) / whole.total[0, 0, :, 0].isfinite().sum().item()
)
hold(
    "two forwards per edge with TransformerLens hooks",
    "these edges, each with its total",
    100,
    faster,
    least=True,
)
moved = timing.loop_over_edges(model, (a[0], b[0]), direction, whole.edges[few])
difference = float((moved - whole.total[0, :, few, 0]).abs().max())
hold(
    "largest difference of the two totals, of the residual's unit",
    "",
    1e-4,
    timing.alone(difference),
    unit="",
)

# %% [markdown]
# ## Other architectures
#
# A Llama of SmolLM2's shape (grouped-query heads, rotary positions, gated MLPs), a GPT-NeoX of Pythia's and a BERT. The loop of one hooked
# forward a head is run for a sample of the heads and counted up. A BERT reads both ways, so that a swap is a whole text there.

# %%
for shape in () if QUICK else ("llama-135m", "neox-160m", "bert-base"):
    pairs = 2 if shape == "bert-base" else PAIRS
    timings, times = timing.architecture(shape, pairs=pairs, length=LENGTH, sentences=64, runs=RUNS)
    swaps = f"{shape}: all heads of {pairs} pairs both ways"
    if shape == "bert-base":
        hold(
            swaps,
            "a hooked forward per head and direction",
            0.55,
            timing.compare(timings, "swaps", "loop", times=times),
        )
        continue
    hold(swaps, "bare forward of both members", 6, timing.compare(timings, "swaps", "forward"))
    faster = timing.compare(timings, "loop", "swaps", times=1 / times)
    hold(
        f"{shape}: a forward per head with TransformerLens hooks",
        "the same swaps",
        60,
        faster,
        least=True,
    )
    hold(
        f"{shape}: read 64 sentences",
        "their bare forward",
        1.10,
        timing.compare(timings, "read", "read bare"),
    )

# %% [markdown]
# ## Sets of heads: a whole curve

# %%
kept = timing.curve_sets(layers, heads)
donor_z = probe.target_states(
    model, timing.drawn(model, PAIRS, LENGTH, seed=1), [LENGTH - 1] * PAIRS
).z
works = {
    "curve": lambda: probe.swap_sets(weights, a, donor_z, kept, direction[None]),
    "bare": works["one side"],
}
curve = timing.compare(timing.interleave(works, runs=RUNS), "curve", "bare", times=layers * heads)
hold(
    f"head-set curve, {len(kept)} sets",
    f"{layers * heads} forwards of the same sentences",
    0.4,
    curve,
)

# %% [markdown]
# ## One long text

# %%
text = timing.long_text(model, LONG, runs=RUNS)
everything = "run_with_cache of everything"
hold(
    f"extra memory of a trace kept to one of {LONG} tokens",
    everything,
    0.1,
    timing.alone(text["traced"] / text["cached"]),
)
hold("its time", everything, 1.0, timing.alone(text["traced_seconds"] / text["cached_seconds"]))
hold(
    "ΔE by source token, every head, values included",
    "",
    60,
    timing.alone(text["sources"]),
    unit="MiB",
)

# %% [markdown]
# ## Starting

# %%
started = timing.start_up(runs=RUNS)
hold("import probe", "", 0.15, timing.alone(started["import probe"]), unit="s")
hold("probe --help", "", 0.35, timing.alone(started["probe --help"]), unit="s")

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
