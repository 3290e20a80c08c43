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
# # Does it reproduce the published results about GPT-2 small and indirect objects?
#
# "When John and Mary went to the shops, John gave the bag to" continues with *Mary*. The heads that cause this in GPT-2 small are the
# best-known circuit (Wang et al. 2022). Here its numbers are measured again and printed next to the published ones, including the numbers of
# TransformerLens' demonstration on eight prompts. About a minute; `make ioi MODEL=gpt2`, where `PROBE_MODEL` may also name a folder.
#
# The published numbers come from folded weights. A logit difference is the same in both. A head's write is reported here without b_V W_O,
# which folding moves into the bias of the layer.
#
# Needs: probe alone, in any folder; GPT-2 small (from the hub, or the folder that `PROBE_MODEL` names). Writes into `reports/real` below the
# current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: Published numbers about indirect objects in GPT-2 small next to our measurements; there is no picture.

# %%
import os
import random
import sys
from pathlib import Path

import pandas as pd
import torch

import probe
from probe.model.load import read_weights
from probe.patching.heads import swap_heads

out = Path(os.environ.get("PROBE_OUT", "reports/real"))
FRAMES = {
    "When John and Mary went to the shops,{} gave the bag to": (" Mary", " John"),
    "When Tom and James went to the park,{} gave the ball to": (" Tom", " James"),
    "When Dan and Sid went to the shops,{} gave an apple to": (" Dan", " Sid"),
    "After Martin and Amy went to the park,{} gave a drink to": (" Martin", " Amy"),
}
WORDS = "river stone green table seven paper music window horse winter bread glass garden silver road letter chair cloud fish night bridge yellow train coat"
prompts = [
    (frame.format(giver), receiver, giver)
    for frame, names in FRAMES.items()
    for receiver, giver in (names, names[::-1])
]
rows = []


def stop(sentence):
    """Print one sentence instead of a table and exit with code 2."""
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def note(quantity, published, measured):
    """Add a row to the table. Numbers agree within 0.01; names agree if all published ones are among the measured ones."""
    agrees = (
        abs(measured - published) <= 0.01
        if isinstance(published, float)
        else set(published.split(", ")) <= set(measured.split(", "))
    )
    value = round(measured, 3) if isinstance(measured, float) else measured
    rows.append({"quantity": quantity, "published": published, "measured": value, "agrees": agrees})


try:
    model = probe.load(os.environ.get("PROBE_MODEL") or "gpt2")
except probe.ProbeError as error:
    stop(error)
if model.config.architecture != "gpt2":
    stop(
        f"Cannot measure indirect objects in {model.name}: it is a {model.config.family.name}, and the published numbers are about GPT-2 small. Give that model."
    )
weights, depth = read_weights(model), model.config.n_layers
model

# %% [markdown]
# ## The difference of two logits
#
# The logit of the receiver's name minus that of the giver's, at the last token, with a begin token. Adjacent prompts have the names exchanged.


# %%
def id_of(name):
    """The id of a name, which must be one token."""
    ids = probe.tokenize(model, name).ids[model.config.prepend_bos :]
    if len(ids) != 1:
        stop(
            f"Cannot measure indirect objects in {model.name}: its tokenizer cuts {name!r} into {len(ids)} tokens, expected one. Give GPT-2 small."
        )
    return ids[0]


answers = torch.tensor([[id_of(receiver), id_of(giver)] for _, receiver, giver in prompts])
traces = [probe.trace(model, text) for text, *_ in prompts]
last = torch.stack([trace.logits[-1] for trace in traces])
difference = last.gather(1, answers) @ torch.tensor([1.0, -1.0])
note("logit difference, mean of eight", 3.55, float(difference.mean()))
for (text, *_), published, measured in zip(
    prompts,
    (3.337, 3.202, 2.710, 3.798, 1.721, 5.282, 2.601, 5.768),
    difference.tolist(),
    strict=True,
):
    note(text, published, measured)
pd.DataFrame(rows)

# %% [markdown]
# ## What each head writes directly
#
# `probe.decompose` splits the difference into terms, with the scale of the final norm held fixed. A head's b_V does not depend on what it
# reads, and folding moves it into the bias, so it is subtracted here.

# %%
terms = pd.concat(
    [
        probe.decompose(model, text, at=-1, tokens=tuple(pair))
        for (text, *_), pair in zip(prompts, answers.tolist(), strict=True)
    ]
)
directions = torch.stack(
    [
        probe.decomposition.logit_direction(trace, -1, pair).direction.to(model.dtype)
        for trace, pair in zip(traces, answers.tolist(), strict=True)
    ]
)
constant = torch.stack([block.b_v for block in weights.blocks])
w_o = torch.stack([block.w_o for block in weights.blocks])
of_constant = torch.einsum("lhe,lhed,rd->lh", constant, w_o, directions) / len(prompts)
by_head = terms.dropna(subset="head").groupby(["layer", "head"])["logit"].sum() / len(prompts)
direct = by_head.to_numpy() - of_constant.flatten().numpy()
names = [f"L{layer}H{head}" for layer in range(depth) for head in range(model.config.n_heads)]
ranked = pd.Series(direct, index=names).sort_values(ascending=False)
note("heads that write most towards it", "L9H9, L9H6, L10H0", ", ".join(ranked.index[:3]))
note("heads that write most against it", "L10H7, L11H10", ", ".join(ranked.index[:-3:-1]))
note("what L9H9 writes towards it", 2.99, float(ranked.get("L9H9", float("nan"))))
ranked.head(5)

# %% [markdown]
# ## Without that head
#
# Every head's z at the last token is set to zero (to b_V, whose other part is in the bias), one head at a time, with everything after it live.
# Without backup heads for L9H9, the difference would fall by what it writes directly.

# %%
unembedding = weights.raw.get("lm_head.weight", weights.raw["wte.weight"])
toward = unembedding[answers[:, 0]] - unembedding[answers[:, 1]]
z = torch.stack([trace.z[:, :, -1] for trace in traces])
read = torch.zeros(len(prompts), depth + 1, model.config.d_model)
read[:, -1] = toward  # after the final norm
ids = [trace.tokens.ids for trace in traces]
lost = swap_heads(weights, ids, constant.expand_as(z), read)[..., -1].mean(0)
without = pd.Series((difference.mean() + lost).flatten().tolist(), index=names)
note("logit difference without L9H9", 2.917, float(without.get("L9H9", float("nan"))))
note(
    "expected if nothing made up for it",
    0.566,
    float(difference.mean()) - float(ranked.get("L9H9", float("nan"))),
)
without.sort_values().head(5)

# %% [markdown]
# ## The strongest path
#
# From head to head at the last token, through query, key or value, with everything after the receiver live. Two prompts with the names
# exchanged are each other's donors, and effects are read along their mean direction.

# %%
both = (directions[::2] - directions[1::2]) / 2
measured_edges = probe.edges(
    weights,
    ids[::2],
    ids[1::2],
    both[:, None],
    depth=depth,
    positions=[0],
    receivers=[0],
    mlps=False,
)
edges = pd.DataFrame(measured_edges.rows()).query("sender_head >= 0")
edges = edges.sort_values("total", key=abs, ascending=False).head(5)
paths = [
    f"L{edge.sender_layer}H{edge.sender_head} to the {edge.channel} of L{edge.receiver_layer}H{edge.receiver_head}"
    for edge in edges.itertuples()
]
note("strongest path from head to head", "L8H6 to the query of L9H9", paths[0] if paths else "none")
edges

# %% [markdown]
# ## Previous-token heads and induction heads
#
# Mean attention to the previous token, on the prompts; and, on a list of words in random order that is repeated, to the token after the first
# copy.

# %%
of_traces = [trace.pattern[..., 2:, :].diagonal(1, -2, -1).mean(-1) for trace in traces]
before = sum(of_traces) / len(traces)
draw, copies = random.Random(0), []
for _ in range(4):
    once = "".join(f" {word}" for word in draw.sample(WORDS.split(), len(WORDS.split())))
    twice = probe.trace(model, once + once)
    n = (len(twice.tokens) - model.config.prepend_bos) // 2
    copies.append(
        twice.pattern[..., -n:, :].diagonal(len(twice.tokens) - 2 * n + 1, -2, -1).mean(-1)
    )
looking = {
    kind: pd.Series(mean_attention.flatten().tolist(), index=names).sort_values(ascending=False)
    for kind, mean_attention in (("previous", before), ("induction", sum(copies) / len(copies)))
}
note("looks most at the token before", "L4H11", looking["previous"].index[0])
note(
    "among the five that look most after the first copy",
    "L5H5, L6H9",
    ", ".join(looking["induction"].index[:5]),
)
pd.DataFrame({kind: series.head(5) for kind, series in looking.items()})

# %%
table = pd.DataFrame(rows)
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "ioi.csv", index=False)
print(table.to_string(index=False))
