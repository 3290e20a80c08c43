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
# # Is it ambiguity, or would any noun change like that?
#
# A head that brings the cue to *bank* may bring it to *fence* as well. So nouns of one meaning take the word's place in the
# same sentences, with the same cues. Expect that they change, too, and that most of what the leading heads do is done for
# any noun; what is left belongs to the word. Then some of these nouns are studied as if they were ambiguous: no head may
# be called a resolver of them.
# SmolLM2 where its package is installed (an hour on two cores), else the embedded model (some minutes). `PROBE_MODEL` names
# another model, `PROBE_NOUNS` how many nouns are studied in full for each word, `PROBE_OUT` the folder to write into.
#
# Shown: How far the two senses of *bank*, *mole* and *apple* are apart at each depth, beside one-meaning nouns in their place.

# %%
import os
from pathlib import Path

import drawing
import pandas as pd

import probe
from probe import charts

charts.as_pictures()  # no network
installed = [row.name for row in probe.available() if row.where.startswith("in the package")]
usual = "smollm2" if "smollm2" in installed else "tiny-senses"
model = probe.load(os.environ.get("PROBE_MODEL", usual))
out = Path(os.environ.get("PROBE_OUT", "reports"))
WORDS = ("bank", "mole", "apple")
NOUNS = 30  # of one meaning, that each word is held against in the last tables
IN_FULL = int(os.environ.get("PROBE_NOUNS", "3"))  # of these, studied with all their heads
LEADING = 10  # heads of a word
LEVEL = 0.05
KEY = ["word", "sense_a", "sense_b"]
model

# %% [markdown]
# ## The words
#
# `ambiguity_p`: one-meaning nouns in the word's place that change at least as far as the word, of all that were tried.
# `general_share`: their mean squared gap, in the word's own.

# %%
study = probe.study(model, WORDS)
study.words[[*KEY, "depth", "gap_p", "nouns", "general_share", "largest_share", "ambiguity_p"]]

# %% [markdown]
# ## How far apart, depth by depth
#
# In the word's own squared gap at the depth where it is read. A squared gap measured like this is 0 on average where there is
# nothing, so it may come out below 0.


# %%
def beside_nouns(word: str) -> pd.DataFrame:
    """The squared gap of a word and of the nouns, by depth: the first pair of senses."""
    pair = study.words[study.words["word"] == word].iloc[0]
    rows = study.controls[(study.controls[KEY] == pair[KEY]).all(axis=1)]
    own = rows["noun"] == word
    at_depth = rows[own & (rows["depth"] == pair["depth"])]["gap"].item()
    by_depth = rows.assign(value=rows["gap"] / at_depth).groupby("depth")["value"]
    of_nouns = rows[~own].assign(value=rows["gap"] / at_depth).groupby("depth")["value"]
    lines = {
        "the ambiguous word": by_depth.first(),  # its rows stand first
        "the noun that changes most": of_nouns.max(),
        "nouns, mean": of_nouns.mean(),
    }
    parts = [
        pd.DataFrame({"panel": word, "variant": name, "x": line.index, "value": line.to_numpy()})
        for name, line in lines.items()
    ]
    return pd.concat(parts, ignore_index=True)


gaps = pd.concat([beside_nouns(word) for word in WORDS], ignore_index=True)
panels = [drawing.Panel(word, "depth, in blocks", "squared gap") for word in WORDS]
picture = drawing.line_panels(gaps, panels)
charts.save(picture, out / "is_it_ambiguity.png")
picture

# %% [markdown]
# ## What remains of every leading head
#
# `net` is what the head does for the word, `general` what it does for the nouns, each in their own gap. `specific` is the
# difference, over the sentences in which both were measured.

# %%
COLUMNS = ["net", "general", "specific", "specific_low", "specific_high", "p_specific"]
leading = study.word_heads[study.word_heads["rank"] <= LEADING].sort_values(["word", "rank"])
leading[["word", "layer", "head", *COLUMNS, "comparison", "verdict"]]

# %% [markdown]
# ## Which MLPs do more for the word than for other nouns

# %%
specific_mlps = study.mlps[study.mlps["p_specific"] < LEVEL]
specific_mlps[[*KEY, "layer", *COLUMNS, "comparison"]]

# %% [markdown]
# ## Thirty nouns through the same gate
#
# Every noun against all others, as the word was: how many would be called ambiguous? One in twenty may be, by chance.


# %%
def gate_of_nouns(pair: pd.Series) -> pd.DataFrame:
    """p of every noun of a pair of senses, against the other nouns, where the word was read."""
    rows = study.controls[(study.controls[KEY] == pair[KEY]).all(axis=1)]
    here = rows[(rows["depth"] == pair["depth"]) & (rows["noun"] != pair["word"])]
    gap = here["gap"].to_numpy()
    as_far = (gap[None, :] >= gap[:, None]).sum(1)  # the noun itself among them: the 1 of the p
    p = as_far / len(gap)
    return pd.DataFrame({"word": pair["word"], "noun": here["noun"].to_numpy(), "p": p})[:NOUNS]


gate = pd.concat([gate_of_nouns(pair) for _, pair in study.words.iterrows()])
gate.assign(passed=gate["p"] <= LEVEL).groupby("word", sort=False)["passed"].agg(["size", "sum"])

# %% [markdown]
# ## Some of them with all their heads
#
# The noun takes the word's place in its sentences, and is studied as if it had the word's senses.

# %%
FIELDS = ["sense", "text", "start", "end", "frame", "pair", "cue_start", "cue_end", "distance"]


def in_its_place(word: str, noun: str) -> list[dict[str, object]]:
    """The sentences of a word with a noun in its place, where "a" or "an" agrees."""
    rows = study.sentences[study.sentences["word"] == word]
    article = "an" if noun[0] in "aeiou" else "a"
    changed = []
    for row in rows[FIELDS].to_dict("records"):
        before = row["text"][: row["start"]]
        if {"a", "an"} & set(before.lower().split()[-1:]) - {article}:
            continue
        longer = len(noun) - (row["end"] - row["start"])
        if pd.notna(row["cue_start"]) and row["cue_start"] > row["start"]:
            row["cue_start"] += longer
            row["cue_end"] += longer
        row["text"] = before + noun + row["text"][row["end"] :]
        row["end"] += longer
        known = {name: value for name, value in row.items() if pd.notna(value)}
        changed.append({"word": noun, **known})
    return changed


def parts_of(result, word: str, studied: str) -> pd.DataFrame:
    """The leading heads of a study and its MLPs, with what is done for other nouns."""
    heads = result.word_heads[result.word_heads["word"] == studied]
    heads = heads[heads["rank"] <= LEADING].sort_values("rank")
    names = [f"L{row.layer}H{row.head}" for row in heads.itertuples()]
    mlps = result.mlps[result.mlps["word"] == studied]
    of_mlps = mlps.assign(part=[f"MLP {layer}" for layer in mlps["layer"]])
    rows = pd.concat([heads.assign(part=names), of_mlps])
    p = result.words.loc[result.words["word"] == studied, "ambiguity_p"].max()
    rows = rows.assign(word=word, studied=studied, ambiguity_p=p)
    senses = ["sense_a", "sense_b"]  # of an MLP; a head's numbers are means over the pairs of them
    about = ["word", "studied", "ambiguity_p", "part"]
    return rows[[*about, *senses, *COLUMNS, "comparison", "verdict"]]


tables = [parts_of(study, word, word) for word in WORDS]
for word in WORDS:
    for noun in gate.loc[gate["word"] == word, "noun"].drop_duplicates()[:IN_FULL]:
        of_noun = probe.study(model, noun, corpus=in_its_place(word, noun))
        tables.append(parts_of(of_noun, word, noun))
table = pd.concat(tables, ignore_index=True)
table.to_csv(out / "is_it_ambiguity.csv", index=False, float_format="%.6g")
table[table["studied"] != table["word"]].groupby("studied")["verdict"].value_counts()
