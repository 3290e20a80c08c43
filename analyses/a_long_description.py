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
# # Does a long description move "monster" toward a name?
#
# At the end of a description that fits one film character, "monster" has a lot of context. The vector at "monster", and at the full stop
# after it, where a name may follow, is read at every depth as if it were the last (the logit lens): what rank has the name among all
# tokens, with the description and without? Expect little at "monster" itself, whose next word is not a name, and more at the full stop.
# Three other descriptions with the same structure are the control: if every description improves the rank, the reason is not this one. A
# few seconds.
#
# The embedded model was trained on sentences about characters with these names and attributes, never on the paragraph of the lesson
# (Mike's). The other three are composed of the same attributes.
#
# Needs: a clone of the repository, for `drawing` next to this script; a model: the one that ships, or any that `PROBE_MODEL` names. Writes
# into `reports/lessons` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: The rank of each character's name at the full stop, by depth, with its own description, with another character's, and with none.

# %%
import math
import os
from pathlib import Path

import drawing
import pandas as pd

import probe
from probe import charts

model = probe.load(os.environ.get("PROBE_MODEL", "tiny-senses"))
out = Path(os.environ.get("PROBE_OUT", "reports/lessons"))
PLAN = (
    "The {}, {} creature is the star of the Disney Pixar movie. {}'s {}, has {} and a {} figure. "
)
DESCRIPTIONS = {
    "Mike": PLAN.format("green", "1-eyed", "He", "short", "small horns", "non-confrontational"),
    "Sulley": PLAN.format("blue", "furry", "He", "tall", "long horns", "strong"),
    "Randall": PLAN.format("purple", "scaly", "He", "slim", "eight legs", "sneaky"),
    "Celia": PLAN.format("pink", "charming", "She", "lively", "snakes for hair", "romantic"),
}
NONE, KINDS = "none", ["its own description", "another's description", "no description"]

# %% [markdown]
# ## The ranks of the names
#
# A name of several tokens is represented by its first token. The last sentence is always the same, except for the pronoun.

# %%
first = {
    name: model.tokenizer(f" {name}", add_special_tokens=False)["input_ids"][0]
    for name in DESCRIPTIONS
}


def ranks(described: str, name: str) -> list[dict[str, object]]:
    """The rank of a name among all tokens at every depth, at "monster" and at the full stop after it; 1 is first."""
    pronoun = "She" if "She" in DESCRIPTIONS.get(described, DESCRIPTIONS[name]) else "He"
    trace = probe.trace(
        model, DESCRIPTIONS.get(described, "") + f"{pronoun}'s not a very menacing monster."
    )
    word = trace.tokens.positions_of("monster")[-1]
    rows = []
    for position, at in {"monster": word, "full stop": word + 1}.items():
        lens = probe.decomposition.logit_lens(trace, at)
        by_depth = (lens > lens[:, [first[name]]]).sum(-1) + 1
        rows += [
            {
                "name": name,
                "described": described,
                "place": position,
                "depth": depth,
                "rank": int(rank),
            }
            for depth, rank in enumerate(by_depth)
        ]
    return rows


all_ranks = pd.DataFrame(
    [
        row
        for name in DESCRIPTIONS
        for described in (NONE, *DESCRIPTIONS)
        for row in ranks(described, name)
    ]
)
is_last = all_ranks["depth"] == all_ranks["depth"].max()
at_the_end = all_ranks[is_last & (all_ranks["place"] == "full stop")]
at_the_end.pivot(index="described", columns="name", values="rank")

# %% [markdown]
# ## With the character's description, with another's, with none
#
# The rank with another's description is the geometric mean over the three others. The character's own description has an effect if the
# first rank is smaller than the second.

# %%
is_own = all_ranks["described"] == all_ranks["name"]
is_none = all_ranks["described"] == NONE
kind = is_none.map({True: KINDS[2], False: KINDS[1]}).mask(is_own, KINDS[0])
logs = all_ranks.assign(kind=kind, rank=all_ranks["rank"].map(math.log))
lines = logs.groupby(["name", "place", "kind", "depth"], sort=False)["rank"]
table = lines.mean().map(math.exp).unstack("kind")[KINDS].reset_index()
table[table["depth"] == table["depth"].max()]

# %% [markdown]
# ## The picture
#
# Rank 1 is on top, and the axis is logarithmic. The picture shows the full stop, the table also "monster". (Celia's sentence has "she"
# instead of "he", so her line with another's description differs in the pronoun, too. Her line with no description does not.)

# %%
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "a_long_description.csv", index=False, float_format="%.6g")
long = table[table["place"] == "full stop"].melt(
    id_vars=["name", "depth"], value_vars=KINDS, var_name="what"
)
long = long.assign(panel="rank of “" + long["name"] + "”")
picture = drawing.lines_by_depth(long, dict.fromkeys(long["panel"].unique(), "rank"))
charts.save(picture, out / "a_long_description.png")
picture
