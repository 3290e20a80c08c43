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
# # Where is the sense of a word whose cue comes later?
#
# "One mole of carbon dioxide", "Apple unveiled a new smartphone": at the word itself a model that reads from left to right cannot know the
# sense. Expect an AUROC of exactly 0.5 there, and more at every later position. That is the *sense at that position*, never at the word.
# The control replaces the ambiguous word by an unambiguous one, "window": what remains is the topic of the sentence. Expect most of the
# AUROC to remain. Half a minute, a few minutes with GPT-2.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: How well two senses are separated at positions before and after their cue, for *apple*, *mole*, *bank*, and for *window* instead of them.

# %%
import os
from pathlib import Path

import drawing
import pandas as pd
import torch

import probe
from probe import charts
from probe.model.trace import target_states

model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
FRAMES = (
    "The {word} and the {cue} were mentioned again",
    "His {word} and her {cue} seemed strange again",
    "She saw the {word} before the {cue} was moved",
    "There stood the {word} near the {cue} in the story",
)
PAIRS = {"apple": ("fruit", "company"), "mole": ("animal", "unit"), "bank": ("river", "money")}

# %% [markdown]
# ## Five positions
#
# The sentence is repeated, as an *echo*: in the second copy the word comes after the cue. Heads that copy from the first sentence
# contribute there, too.


# %%
def positions_to_read(tokens, word: str, cue: str) -> dict[str, int]:
    """The five positions, by name."""
    after = tokens.positions_of(cue)[-1]
    first, second = (tokens.positions_of(word, copy)[-1] for copy in (1, 2))
    stop = tokens.pieces.index(".")
    return {
        "the word": first,
        "the cue": after,
        "one token later": after + 1,
        "the full stop": stop,
        "the word, second copy": second,
    }


def separation(rows: torch.Tensor, facts: pd.DataFrame, senses: tuple[str, str]) -> float:
    """Held-out AUROC along the difference of means:

    P(score of the first sense > score of the second), ties one half.
    """
    parts = [
        [rows[((facts["half"] == half) & (facts["sense"] == sense)).tolist()] for sense in senses]
        for half in (0, 1)
    ]
    direction = parts[0][0].mean(0) - parts[0][1].mean(0)
    a, b = (side @ direction for side in parts[1])
    return ((a[:, None] > b).double() + (a[:, None] == b).double() / 2).mean().item()


where_to = probe.tokenize(
    model,
    "The apple and the pear were mentioned again. The apple and the pear were mentioned again",
)
{name: where_to.labels[pos] for name, pos in positions_to_read(where_to, "apple", "pear").items()}

# %% [markdown]
# ## Separation, held out
#
# At each position the direction from one sense to the other is fitted after the last layer on half of the cue words and half of the
# frames, and tested on the other halves.

# %%
later = []
for word, senses in PAIRS.items():
    cues = {sense.name: sense.cues for sense in probe.lexicon.entry(word).senses}
    for stands in (word, "window"):
        facts = pd.DataFrame(
            [
                (sense, half, cue, frame.format(word=stands, cue=cue))
                for sense in senses
                for half in (0, 1)
                for frame in FRAMES[half::2]
                for cue in cues[sense][half::2]
            ],
            columns=["sense", "half", "cue", "text"],
        )
        tokens = [probe.tokenize(model, f"{text}. {text}") for text in facts["text"]]
        where = pd.DataFrame(
            [
                positions_to_read(text, stands, cue)
                for text, cue in zip(tokens, facts["cue"], strict=True)
            ]
        )
        for position in where:
            rows = target_states(model, tokens, where[position].tolist()).resid[:, -1].double()
            later.append(
                {
                    "place": position,
                    "word": word,
                    "stands": stands,
                    "auroc": separation(rows, facts, senses),
                }
            )
table = pd.DataFrame(later)
table.pivot(index="place", columns=["word", "stands"], values="auroc").loc[where.columns]

# %% [markdown]
# ## The picture
#
# The distance from a square to a circle on its right is what the ambiguous word adds to the topic.

# %%
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "cues_that_come_later.csv", index=False, float_format="%.6g")
condition = (table["stands"] == table["word"]).map(
    {True: "the ambiguous word", False: "window in its place"}
)
long = table.assign(row=table["word"] + ": " + table["place"], what=condition, value=table["auroc"])
picture = drawing.compared(long, "held-out AUROC of the two senses (0.5 = chance)", kind="number")
charts.save(picture, out / "cues_that_come_later.png")
picture
