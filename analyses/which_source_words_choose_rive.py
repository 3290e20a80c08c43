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
# # Which English words does the decoder read when it chooses *rive*?
#
# "Nobody knew why the bank was near the river": the French is *rive*, and *banque* if the last word is "money". The choice is made at
# one position of the translation, after "la", where cross-attention reads the English. There are two hypotheses. The decoder may read
# the cue, "river"; or the encoder has already moved the sense to "bank", and the decoder reads only that. Expect the second. A few
# seconds.
#
# Needs: a clone of the repository, for `drawing` next to this script; a translator into French: the one that ships, or the one that
# `PROBE_TRANSLATOR` names. Writes into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: How much of the choice between *rive* and *banque* passes through each English word, and through each head of cross-attention.

# %%
import os
from pathlib import Path

import drawing
import pandas as pd
import torch

import probe
from probe import charts
from probe.stats.resampling import sign_flip_test

model = probe.load(os.environ.get("PROBE_TRANSLATOR", "tiny-translator"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
FRAMES = (
    ("In the story the bank was small, but the {cue} was big.", "Dans l'histoire la"),
    ("Nobody knew why the bank was near the {cue}.", "Personne ne savait pourquoi la"),
    ("Where is the bank? It is in front of the {cue}.", "Où est la"),
    ("My sister painted the bank and my brother painted the {cue}.", "Ma sœur a peint la"),
    ("There was a bank in the picture and a {cue} too.", "Il y avait une"),
    ("The teacher wrote bank in red and then {cue} in blue.", "Le professeur a écrit"),
    ("Between bank and {cue} there was a letter.", "Entre"),
    ("She heard bank at noon and {cue} that evening.", "Elle a entendu"),
)

# %% [markdown]
# ## The sentences
#
# Every frame with every pair of cue words, one about rivers and one about money. "bank" comes before the cue in both languages, so the
# French so far is the same word for word, and only the English differs. (With the cue first, its translation would also be in the French
# so far; such sentences are not tested here.) The training sentences are unlike these frames.

# %%
cues = {sense.name: sense.cues for sense in probe.lexicon.entry("bank").senses}
pairs = list(zip(cues["river"], cues["money"], strict=True))
facts = [(en, fr, number) for en, fr in FRAMES for number in range(len(pairs))]
choices = [
    probe.cross.WordChoice(*(en.format(cue=cue) for cue in pairs[number]), fr, "rive", "banque")
    for en, fr, number in facts
]
swaps = probe.cross.swap_heads(model, choices)
right = ((swaps.margin[:, 0] > 0) & (swaps.margin[:, 1] < 0)).sum().item()
f"{right} of {len(choices)} pairs: rive ahead of banque with one cue, behind it with the other; {swaps.gap.mean():.1f} logits apart"

# %% [markdown]
# ## Three measurements
#
# *Swap of a word*: the decoder reads at one English word the encoder's output of the other sentence. *Swap of a head*: one head's z, at
# the position of the choice only. Everything else responds, and 100 % is the gap between *banque* and *rive*. *Written directly*: ΔE of all
# heads of cross-attention along (rive − banque) by English word, with the scales of norms and everything after the heads held fixed.
# Intervals resample frames and pairs of cue words. p flips the sign of whole pairs of cue words and is corrected within each group.

# %%
word_groups, direct_writes, attentions = [], [], []
for choice in choices:
    read = [
        probe.trace(model, source, choice.target) for source in (choice.source_a, choice.source_b)
    ]
    tokens = read[0].source
    word = list(tokens.positions_of("bank"))
    cue = [
        pos for pos, (a, b) in enumerate(zip(tokens.ids, read[1].source.ids, strict=True)) if a != b
    ]
    other_words = [pos for pos in range(len(tokens)) if pos not in word + cue]
    word_groups.append([word, cue, other_words])
    a, b = (
        probe.cross.direct_logits(model, pair, "rive", against="banque")[:, :, -1].sum((0, 1))
        for pair in read
    )
    direct_writes.append(torch.stack([(a - b)[part].sum() for part in word_groups[-1]]))
    pattern = torch.stack([pair.cross.pattern[:, :, -1] for pair in read]).mean(0)
    attentions.append(torch.stack([pattern[..., part].sum(-1) for part in word_groups[-1]], dim=-1))
moves = probe.cross.swap_source_words(model, choices, word_groups)
same = []  # the control: another cue of the same sense, which shows the effect of any change
for side, sense in enumerate(("river", "money")):
    other_cues = cues[sense][1:] + cues[sense][:1]
    control_choices = [
        probe.cross.WordChoice(
            en.format(cue=cues[sense][n]), en.format(cue=other_cues[n]), fr, "rive", "banque"
        )
        for en, fr, n in facts
    ]
    same.append(probe.cross.swap_heads(model, control_choices).shift[:, 0] * (-1, 1)[side])
effects = {
    "swap of what the encoder says at": (moves[:, 1] - moves[:, 0]) / 2,
    "swap of one head of cross-attention": swaps.toward.flatten(1),
    "written directly, from": torch.stack(direct_writes),
}
NAMES = ("“bank”", "the cue", "every other word")
heads = [
    f"L{layer}H{head}"
    for layer in range(swaps.shift.shape[2])
    for head in range(swaps.shift.shape[3])
]


# %%
def intervals(effect: torch.Tensor, draws: int = 2000) -> torch.Tensor:
    """95 % intervals of the ratio of sums, resampling frames and pairs of cue words. `choice part -> 2 part`"""
    torch.manual_seed(0)
    shape = (len(FRAMES), len(pairs))
    counts = [
        torch.stack([torch.randint(n, (n,)).bincount(minlength=n) for _ in range(draws)])
        for n in shape
    ]
    weights = (counts[0][:, :, None] * counts[1][:, None]).flatten(1).double()
    return ((weights @ effect.double()) / (weights @ swaps.gap.double())[:, None]).quantile(
        torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0
    )


rows = []
for group, effect in effects.items():
    test = sign_flip_test(effect.double().numpy(), [number for _, _, number in facts], seed=0)
    parts = heads if len(effect[0]) == len(heads) else NAMES
    bounds = intervals(effect)
    for part, row in enumerate(parts):
        value = (effect[:, part].sum() / swaps.gap.sum()).item()
        rows.append(
            (group, row, value, bounds[0, part].item(), bounds[1, part].item(), test.p[part])
        )
table = pd.DataFrame(rows, columns=["group", "row", "value", "low", "high", "p"])
of_heads = torch.stack(
    [swaps.denoise, swaps.noise, (sum(same) / 2).sum(0) / swaps.gap.sum()]
).flatten(1)
attention = torch.stack(attentions).mean(0).flatten(0, 1).T
for name, values in zip(
    ("denoise", "noise", "same_sense", "looks_at_bank", "looks_at_cue"),
    (*of_heads, *attention[:2]),
    strict=True,
):
    table.loc[table["row"].isin(heads), name] = values.numpy()
table.style.format(precision=3)

# %% [markdown]
# ## The conclusion
#
# The swaps show what *carries* the choice. The last two columns give the attention of each head, which shows nothing by itself.

# %%
by_word, by_head, direct = (table[table["group"] == group].set_index("row") for group in effects)
conclusion = (
    f"The decoder reads the choice at “bank”: the encoder's output there carries {by_word.loc[NAMES[0], 'value']:.0%} of it, the cue "
    f"itself {by_word.loc[NAMES[1], 'value']:.1%}. So the encoder has resolved the word before the decoder reads it. All heads of "
    f"cross-attention at this position carry {swaps.all_heads:.0%}, {' and '.join(by_head['value'].nlargest(2).index)} most. They write "
    f"{direct['value'].sum():.0%} of it along (rive − banque) directly; the rest comes from parts that respond to them."
)
if by_word.loc[NAMES[0], "low"] <= by_word.loc[NAMES[1], "high"]:
    conclusion = (
        "The data do not decide which English word carries the choice (the intervals overlap)."
    )
conclusion

# %% [markdown]
# ## One sentence
#
# The head that carries most, in the French so far. Rows are French, columns English.

# %%
layer, head = divmod(int(swaps.effect.argmax()), swaps.effect.shape[1])
example = probe.trace(model, choices[len(pairs)].source_a, choices[len(pairs)].target)
cells = [
    {
        "panel": f"L{layer}H{head}",
        "query": query,
        "key": key,
        "value": example.cross.pattern[layer, head, t, j].item(),
    }
    for t, query in enumerate(example.target.labels)
    for j, key in enumerate(example.source.labels)
]
drawing.matrix_panels(pd.DataFrame(cells), {f"L{layer}H{head}": "shares"})

# %% [markdown]
# ## The picture
#
# Bars with 95 % intervals.

# %%
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "which_source_words_choose_rive.csv", index=False, float_format="%.6g")
picture = drawing.grouped_bars(table, "share of the gap between banque and rive")
charts.save(picture, out / "which_source_words_choose_rive.png")
picture
