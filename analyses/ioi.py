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
# # Does it reproduce what is published on GPT-2 small and indirect objects?
#
# "When John and Mary went to the shops, John gave the bag to" continues with *Mary*. The heads in GPT-2 small that cause this form the
# best-known circuit (Wang et al. 2022). Its numbers are measured again here and printed next to the published ones, including those from
# TransformerLens' demonstration on eight prompts. About a minute; `make ioi MODEL=gpt2`, and `PROBE_MODEL` can also name a folder.
#
# Published numbers are for folded weights. A logit difference is the same in both; a head's write is given here without b_V W_O, which
# folding moves into the bias of the layer.
#
# Needs: probe alone, in any folder; GPT-2 small (from the hub, or the folder that `PROBE_MODEL` names). Writes into `reports/real` below the
# current folder, or where `PROBE_OUT` says.
#
# Shown: Published numbers on indirect objects in GPT-2 small, next to our measurements. It draws no picture.

# %%
import os
import random
import sys
from pathlib import Path

import pandas as pd
import torch

import probe

out = Path(os.environ.get("PROBE_OUT", "reports/real"))
FRAMES = {
    "When John and Mary went to the shops,{} gave the bag to": (" Mary", " John"),
    "When Tom and James went to the park,{} gave the ball to": (" Tom", " James"),
    "When Dan and Sid went to the shops,{} gave an apple to": (" Dan", " Sid"),
    "After Martin and Amy went to the park,{} gave a drink to": (" Martin", " Amy"),
}
WORDS = "river stone green table seven paper music window horse winter bread glass garden silver road letter chair cloud fish night bridge yellow train coat"
prompts = [
    (frame.format(giver), wanted, giver)
    for frame, names in FRAMES.items()
    for wanted, giver in (names, names[::-1])
]
rows = []


def stop(sentence):
    """One sentence in place of a table: what was wanted is not there."""
    print(sentence, file=sys.stderr)
    raise SystemExit(2)


def note(quantity, published, measured):
    """A line of the table; numbers agree when they round to nearly the same, names when all that are published are found."""
    agrees = (
        abs(measured - published) <= 0.01
        if isinstance(published, float)
        else set(published.split(", ")) <= set(measured.split(", "))
    )
    shown = round(measured, 3) if isinstance(measured, float) else measured
    rows.append({"quantity": quantity, "published": published, "measured": shown, "agrees": agrees})


try:
    model = probe.load(os.environ.get("PROBE_MODEL") or "gpt2")
except probe.ProbeError as error:
    stop(error)
if model.config.architecture != "gpt2":
    stop(
        f"Measuring indirect objects in {model.name}: it is a {model.config.family.name}, and the numbers are published of GPT-2 small; give that."
    )
weights, depth = probe.read_weights(model), model.config.n_layers
model

# %% [markdown]
# ## The difference of two logits
#
# The logit of the right name minus the logit of the giver's, at the last token, after a begin token. Adjacent prompts have the names
# exchanged.


# %%
def id_of(name):
    """The id of a name, which must be one token."""
    ids = probe.tokenize(model, name).ids[model.config.prepend_bos :]
    if len(ids) != 1:
        stop(
            f"Measuring indirect objects in {model.name}: its tokenizer cuts {name!r} into {len(ids)} tokens, expected one; give GPT-2 small."
        )
    return ids[0]


answers = torch.tensor([[id_of(wanted), id_of(giver)] for _, wanted, giver in prompts])
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
# ## What each head writes into it directly
#
# `probe.decompose` splits the difference into terms, with the scale of the final norm held fixed. A head's b_V is the same whatever the
# head reads, and folding moves it into the bias, so it is subtracted here.

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
# Every head's z at the last token is set to zero (to b_V, because the rest of it is in the bias), one at a time, with everything after it
# live. If no other head replaced L9H9, the difference would fall by its direct write.

# %%
unembedding = weights.raw.get("lm_head.weight", weights.raw["wte.weight"])
toward = unembedding[answers[:, 0]] - unembedding[answers[:, 1]]
z = torch.stack([trace.z[:, :, -1] for trace in traces])
read = torch.zeros(len(prompts), depth + 1, model.config.d_model)
read[:, -1] = toward  # behind the final norm
ids = [trace.tokens.ids for trace in traces]
lost = probe.swap_heads(weights, ids, constant.expand_as(z), read)[..., -1].mean(0)
left = pd.Series((difference.mean() + lost).flatten().tolist(), index=names)
note("logit difference without L9H9", 2.917, float(left.get("L9H9", float("nan"))))
note(
    "expected if nothing made up for it",
    0.566,
    float(difference.mean()) - float(ranked.get("L9H9", float("nan"))),
)
left.sort_values().head(5)

# %% [markdown]
# ## The strongest path
#
# From head to head at the last token, through query, key or value, with everything after the receiver live. Of two prompts with exchanged
# names each is the other's donor, along their mean direction.

# %%
both = (directions[::2] - directions[1::2]) / 2
found = probe.edges(
    weights,
    ids[::2],
    ids[1::2],
    both[:, None],
    depth=depth,
    positions=[0],
    receivers=[0],
    mlps=False,
)
edges = pd.DataFrame(found.rows()).query("sender_head >= 0")
edges = edges.sort_values("total", key=abs, ascending=False).head(5)
told = [
    f"L{edge.sender_layer}H{edge.sender_head} to the {edge.channel} of L{edge.receiver_layer}H{edge.receiver_head}"
    for edge in edges.itertuples()
]
note("strongest path from head to head", "L8H6 to the query of L9H9", told[0] if told else "none")
edges

# %% [markdown]
# ## Heads that attend to the previous token, and to the token after an earlier copy
#
# Mean attention to the previous token, on the prompts; and, on words in random order that occur twice, to the token after the first copy.

# %%
before = sum(trace.pattern[..., 2:, :].diagonal(1, -2, -1).mean(-1) for trace in traces) / len(
    traces
)
draw, copies = random.Random(0), []
for _ in range(4):
    once = "".join(f" {word}" for word in draw.sample(WORDS.split(), len(WORDS.split())))
    twice = probe.trace(model, once + once)
    n = (len(twice.tokens) - model.config.prepend_bos) // 2
    copies.append(
        twice.pattern[..., -n:, :].diagonal(len(twice.tokens) - 2 * n + 1, -2, -1).mean(-1)
    )
looking = {
    kind: pd.Series(found.flatten().tolist(), index=names).sort_values(ascending=False)
    for kind, found in (("before", before), ("behind", sum(copies) / len(copies)))
}
note("looks most at the token before", "L4H11", looking["before"].index[0])
note(
    "among the five that look most behind the first copy",
    "L5H5, L6H9",
    ", ".join(looking["behind"].index[:5]),
)
pd.DataFrame({kind: series.head(5) for kind, series in looking.items()})

# %%
table = pd.DataFrame(rows)
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "ioi.csv", index=False)
print(table.to_string(index=False))
