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
# In "A fluffy blue creature roamed the verdant forest" the query of *creature* is compared with the key of every word before it.
# Introductions say that it asks for adjectives. This script splits the scores of two heads: L0H1, which the lesson follows, and L2H0, which
# attends to adjectives more than to other words in their place (`adjectives_to_nouns.py`). Expect L0H1 to ask for tokens and positions,
# because layer 0 reads nothing else, and L2H0 to ask for the writes of earlier MLPs. Five seconds.
#
# A score is a sum over pairs of parts: one part of the vector of *creature* and one of the adjective's. An attribution is not a cause, so
# each part is also replaced by that of the other words. One sentence cannot show the function of a head.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names, with
# other heads. Writes into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: The scores of two heads from *creature* to the adjective they attend to most, minus the mean score of the other words, by pairs of parts. Rows: the parts of *creature*. Columns: the parts of the adjective.

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
MOST = 8  # pairs of parts of each head in the table, the largest
trace = probe.trace(model, f"A {' '.join(ADJECTIVES)} {NOUN} roamed the verdant forest")
at = trace.tokens.positions_of(NOUN)[-1]

# %% [markdown]
# ## Which adjective does each head attend to most?


# %%
def attention(layer: int, head: int, word: str) -> float:
    """The attention from the noun to a word."""
    return float(trace.pattern[layer, head, at, trace.tokens.positions_of(word)[-1]])


top_adjective = {
    (layer, head): max(ADJECTIVES, key=lambda word: attention(layer, head, word))
    for layer, head in HEADS
}
{
    f"L{layer}H{head}": (word, attention(layer, head, word))
    for (layer, head), word in top_adjective.items()
}

# %% [markdown]
# ## Its score, by pairs of parts
#
# Minus the mean score of the other words, because the softmax depends on differences only. In the picture the heads of a layer are one
# part, and all biases are one part.


# %%
def part_of_layer(part: str) -> str:
    """A part, with all heads of a layer as one and all biases as one."""
    if "bias" in part:
        return "biases"
    if part[:1] == "L" and "H" in part:
        return f"heads {part[1 : part.index('H')]}"
    return part.removesuffix(" embedding")


cells, rows = [], []
for (layer, head), word in top_adjective.items():
    edge = {"layer": layer, "head": head, "at": NOUN, "source": word}
    parts = probe.qk_attribution(model, trace, **edge, contrast="mean")
    effects = probe.qk_interventions(model, trace, **edge)
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
all_cells = pd.concat(cells, ignore_index=True)
picture = drawing.matrix_panels(all_cells, dict.fromkeys(all_cells["panel"].unique(), "signed"))
charts.save(picture, out / "what_creature_asks_for.png")
picture
