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
# # Which heads attend from a noun to its adjectives?
#
# Introductions show "creature" asking for adjectives and "fluffy" and "blue" answering. A head that always attends to the previous token
# would give the same picture, so every noun phrase has two controls with other words in the same two positions: nouns, and a preposition
# with a pronoun. Expect a few heads, if any, that pass both. Half a minute, a few minutes with GPT-2.
#
# This shows attention only. Whether a head moves anything would have to be tested by a swap.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: How much of a noun's attention goes to the two tokens before it, if they are adjectives and if they are other words.

# %%
import os
from pathlib import Path

import drawing
import numpy as np
import pandas as pd

import probe
from probe import charts
from probe.stats.resampling import sign_flip_test

model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
WORDS = {
    "adjective": "blue dirty shiny hungry friendly clever gentle fierce lazy bald green red yellow purple white black grey "
    "brown tiny huge shy wild elegant dry dense silent dusty frozen peaceful magical clean broken wooden cheap expensive empty",
    "noun": "creature dragon pony tiger lion elephant unicorn goblin fairy giant dwarf robot wizard witch bear monkey donkey "
    "sheep goat cow horse pig hen frog snail spider lizard valley plain canyon wilderness hills woods countryside village city "
    "mountains plumbing furniture machinery clock lamp mirror blanket pillow bucket kettle bicycle camera umbrella statue sofa "
    "table chair radio telephone balloon plate hat scarf toy",
    "filler": "window door wall box bag shoe shirt floor newspaper car bus bench shelf drawer knife fork towel soap brush",
    "preposition": "near with behind from",
    "pronoun": "our her his their",
}

# %% [markdown]
# ## The phrases
#
# Each noun is used once. Every second phrase comes after another noun with another adjective, a distractor. Only words that are one token
# in this model are used, so that the versions of a phrase have the same length and the noun the same position.

# %%
rng = np.random.default_rng(0)
words = {
    kind: [
        word
        for word in text.split()
        if len(model.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1
    ]
    for kind, text in WORDS.items()
}


def versions(number: int, noun: str) -> dict[str, str]:
    """The phrase with its adjectives, and its two controls."""
    distractor_adjective, *adjectives = rng.choice(words["adjective"], 3, replace=False)
    distractor, *nouns = rng.choice(words["filler"], 3, replace=False)
    closed = [rng.choice(words[kind]) for kind in ("preposition", "pronoun")]
    open_start, closed_start = (
        ("A", "Go")
        if number % 2
        else (f"The {distractor_adjective} {distractor} {verb}" for verb in ("saw the", "was seen"))
    )
    return {
        "its two adjectives": " ".join([open_start, *adjectives, noun]),
        "two other nouns": " ".join([open_start, *nouns, noun]),
        "a preposition and a pronoun": " ".join([closed_start, *closed, noun]),
    }


phrases = pd.DataFrame(
    [versions(number, noun) for number, noun in enumerate(words["noun"])], index=words["noun"]
)
assert (phrases.map(lambda text: len(probe.tokenize(model, text))).nunique(axis=1) == 1).all()
phrases

# %% [markdown]
# ## Attention of the noun to the two tokens before it
#
# The noun is the last token. `phrase layer head`: the attention to the second and the first token before it, and their sum.

# %%
weights = {
    kind: np.stack(
        [probe.trace(model, text).pattern[:, :, -1, -3:-1].double().numpy() for text in texts]
    )
    for kind, texts in phrases.items()
}
both = {kind: each.sum(-1) for kind, each in weights.items()}
# To the previous token, in the version in which it is least.
one_back = np.stack([each[..., 1].mean(0) for each in weights.values()]).min(0)

# %% [markdown]
# ## The test
#
# The effect of a head is its attention to the adjectives minus that to the other words in the same positions. For an indifferent head, the
# sign of the effect would be a coin flip for every noun. The head with the largest effect in every such flip sets the threshold for all
# (max-T, one-sided). A head *looks at adjectives* if it passes against both controls at .05. Otherwise it is *previous-token* if at least
# half of its attention goes to the previous token in every version. (Nouns are treated as independent, although adjectives recur.)

# %%
adjectives, *controls = phrases.columns
tests = [
    sign_flip_test(both[adjectives] - both[kind], phrases.index, seed=0, draws=2000)
    for kind in controls
]
passed = np.all([test.p < 0.05 for test in tests], axis=0)
verdicts = np.where(
    passed, "looks at adjectives", np.where(one_back >= 0.5, "previous-token", "none")
)
table = pd.DataFrame(
    {
        "head": [f"L{layer}H{head}" for layer, head in np.ndindex(passed.shape)],
        "verdict": verdicts.ravel(),
    }
)
table = table.assign(
    **{kind: each.mean(0).ravel() for kind, each in both.items()}, one_back=one_back.ravel()
)
table = table.assign(p_nouns=tests[0].p.ravel(), p_preposition_pronoun=tests[1].p.ravel())
table["verdict"].value_counts()

# %% [markdown]
# ## The sentence of the lesson
#
# The same heads on "A fluffy blue creature roamed the verdant forest": attention of a noun to all tokens of its adjectives. One
# sentence, without a control.

# %%
trace = probe.trace(model, "A fluffy blue creature roamed the verdant forest")
for noun, its_adjectives in {"creature": ["fluffy", "blue"], "forest": ["verdant"]}.items():
    at = trace.tokens.positions_of(noun)[-1]
    keys = [pos for word in its_adjectives for pos in trace.tokens.positions_of(word)]
    table[f"{noun}_to_{'_and_'.join(its_adjectives)}"] = (
        trace.pattern[:, :, at, keys].sum(-1).flatten().numpy()
    )
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "adjectives_to_nouns.csv", index=False, float_format="%.6g")
table[table["verdict"] == "looks at adjectives"]

# %% [markdown]
# ## The picture
#
# The heads that attend most to the two adjectives. Where the three marks coincide, the head attends by position. A circle to the right of
# both other marks shows more than position.

# %%
largest = table.nlargest(16, adjectives)
long = largest.rename(columns={"head": "row"}).melt(
    id_vars="row", value_vars=list(phrases), var_name="what"
)
title = f"attention to the two places before the noun (mean of {len(phrases)} phrases)"
notes = largest.set_index("head")["verdict"].replace("none", "").to_dict()
picture = drawing.compared(long, title, notes=notes)
charts.save(picture, out / "adjectives_to_nouns.png")
picture
