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
# # What does *creature* ask for?
#
# In "A fluffy blue creature roamed the verdant forest" a query of *creature* meets the key of every word before it. Introductions say that
# it asks for adjectives. Two heads are taken apart here: L0H1, which the lesson follows, and L2H0, which `adjectives_to_nouns.py` found
# to look at adjectives more than at other words in their place. Expect L0H1 to ask by token and place, because in layer 0 nothing else is
# there yet, and L2H0 to ask for what the MLPs of earlier layers wrote. Five seconds.
#
# A score is a sum over pairs of parts: one from *creature* and one from the adjective. An attribution is not a cause, so each part is also
# replaced by its counterpart from the other words. One sentence cannot show the purpose of a head.
#
# Needs: a clone of the repository, for `drawing` next to this script; the model that ships, or the one that `PROBE_MODEL` names, with heads
# of its own. Writes into `reports/lessons` below the current folder, or where `PROBE_OUT` says.
#
# Shown: The scores of two heads from *creature* to the adjective they attend to most, above the mean score of the other words, by pairs of parts: rows are parts of *creature*, columns parts of the adjective.

# %%
import os
from pathlib import Path

import drawing
import pandas as pd

import probe
from probe import charts

model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
NOUN = "creature"
ADJECTIVES = ("fluffy", "blue")
HEADS = ((0, 1), (2, 0))
MOST = 8  # pairs of parts that are kept of each head, the largest
trace = probe.trace(model, f"A {' '.join(ADJECTIVES)} {NOUN} roamed the verdant forest")
at = trace.tokens.positions_of(NOUN)[-1]

# %% [markdown]
# ## Which adjective does each head attend to most?


# %%
def attention(layer: int, head: int, word: str) -> float:
    """The attention from the noun to a word."""
    return float(trace.pattern[layer, head, at, trace.tokens.positions_of(word)[-1]])


most = {
    (layer, head): max(ADJECTIVES, key=lambda word: attention(layer, head, word))
    for layer, head in HEADS
}
{f"L{layer}H{head}": (word, attention(layer, head, word)) for (layer, head), word in most.items()}

# %% [markdown]
# ## Its score, by pairs of parts
#
# Minus the mean score of the other words, because the softmax depends on differences only. In the picture the heads of a layer are one
# part, and so are all biases.


# %%
def part_of_layer(part: str) -> str:
    """A part, with all heads of a layer as one and all biases as one."""
    if "bias" in part:
        return "biases"
    if part[:1] == "L" and "H" in part:
        return f"heads {part[1 : part.index('H')]}"
    return part.removesuffix(" embedding")


cells, rows = [], []
for (layer, head), word in most.items():
    place = {"layer": layer, "head": head, "at": NOUN, "source": word}
    parts = probe.qk_attribution(model, trace, **place, contrast="mean")
    effects = probe.qk_interventions(model, trace, **place)
    lost = effects.set_index(["side", "part"])
    ranks = effects[["attributed", "score"]].rank()
    contrast = parts["score"].sum()
    grouped = parts.assign(
        query=parts["part_query"].map(part_of_layer), key=parts["part_key"].map(part_of_layer)
    )
    grouped = grouped.groupby(["query", "key"], sort=False)["score"].sum().reset_index(name="value")
    grouped = grouped.sort_values(
        ["query", "key"], key=lambda side: side == "biases", kind="stable"
    )
    cells.append(grouped.assign(panel=f"L{layer}H{head}: {NOUN} × {word}"))
    largest = parts.loc[parts["score"].abs().nlargest(MOST).index]
    for row in largest.itertuples():
        rows.append(
            {
                "head": f"L{layer}H{head}",
                "attends_to": word,
                "attention": attention(layer, head, word),
                "part_query": row.part_query,
                "part_key": row.part_key,
                "score": row.score,
                "share": row.score / contrast,
                "lost_query": lost["score"].get(("query", row.part_query)),
                "lost_key": lost["score"].get(("key", row.part_key)),
                "agreement": ranks["attributed"].corr(ranks["score"]),
            }
        )
table = pd.DataFrame(rows)
table

# %% [markdown]
# ## The picture

# %%
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "what_creature_asks_for.csv", index=False, float_format="%.6g")
drawn = pd.concat(cells, ignore_index=True)
picture = drawing.matrix_panels(drawn, dict.fromkeys(drawn["panel"].unique(), "signed"))
charts.save(picture, out / "what_creature_asks_for.png")
picture
