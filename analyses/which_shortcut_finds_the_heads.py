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
# # Which shortcut finds the heads?
#
# Most studies of which heads matter use attention weights or gradients. Here every word that ships is one unit: the top heads of each
# shortcut are compared with the heads that exact swaps on the same pairs of sentences find. Expect attention to miss some of them, and
# gradients to find nearly all.
#
# Three references stand next to each shortcut. *Chance*: heads in random order. *Swap order*: heads in the order of their swap effects, which
# does not reach 100 % either, because a large effect need not be significant. *Before the read-out layer*: only the heads of the layers before
# the word is read; attention cannot know where that is, and ranks many later heads first.
#
# Needs: a clone of the repository, in which probe is installed (`pip install -e .`), for `drawing` and `shortcuts` next to this script, and the packages
# of `make real`. Finished words are stored as files, so an interrupted run continues. `PROBE_WORDS` limits the number of words,
# `PROBE_MODELS` names other models, by names or files. Writes into `reports/real` below the current folder, or into the folder that
# `PROBE_OUT` names.
#
# Shown: The share of a word's n significant heads that each shortcut ranks among its top n, among all heads and among those before the read-out layer; mean over words with its 95 % interval. The table gives the number of words.

# %%
import os
from itertools import product
from pathlib import Path

import drawing
import numpy as np
import pandas as pd
import shortcuts
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

import probe
from probe import charts
from probe.stats.resampling import sign_flip_test

charts.as_pictures()  # no network
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
MODELS = os.environ.get("PROBE_MODELS", "tiny-senses smollm2 minilm").split()
MOST_WORDS = int(os.environ.get("PROBE_WORDS", "1000"))
KEY = ["word", "sense_a", "sense_b"]
LEVEL = 0.05  # the level of significance of a head
FIRST = 5  # top heads
DRAWS = 2000  # bootstrap samples of words
RANK_DRAWS = 500  # bootstrap samples of pairs
FEWEST_PAIRS = 4  # for a test by sign flips
CHANCE = "chance"
METHODS = {
    "swap": "order by swap effect",
    "attention": "attention to the cue",
    "rollout": "attention rollout",
    "value_attention": "|value| × attention",
    "auroc": "AUROC of the write",
    "direct": "direct effect",
    "attribution": "attribution patching",
    "integrated_5": "integrated gradients, 5 steps",
    "integrated_20": "integrated gradients, 20 steps",
}
NAMES = METHODS | {CHANCE: "chance"}

# %% [markdown]
# ## Every head on every pair of sentences
#
# One file for each word, which is read if it exists. The file of a word that cannot be measured is empty.


# %%
def measured(source: str) -> pd.DataFrame:
    """Swaps and shortcuts of every word that ships, pair by pair, in one model; for the embedded model the words of its
    grammar."""
    name = Path(source).stem
    folder = out / "shortcuts" / name
    folder.mkdir(parents=True, exist_ok=True)
    model = None
    frames = []
    lexicon = probe.lexicon
    words = lexicon.words() if source == "tiny-senses" else lexicon.natural_words()
    for word in words[:MOST_WORDS]:
        file = folder / f"{word}.parquet"
        if not file.exists():
            model = model or probe.load(source)
            try:
                frame = shortcuts.shortcuts(model, word)
            except probe.InputError as problem:
                print(f"{name}: {problem}", flush=True)
                frame = pd.DataFrame()
            part = file.with_suffix(".part")
            frame.to_parquet(part)
            part.rename(file)
            print(f"{name}: {word}", flush=True)
        frames.append(pd.read_parquet(file))
    return pd.concat(frames, ignore_index=True).assign(model=name)


pairs = pd.concat([measured(source) for source in MODELS], ignore_index=True)
pairs = pairs[pairs["gap"] > 0]  # without a gap, shares of it mean nothing
len(pairs)

# %% [markdown]
# ## Scores of a shortcut, word by word
#
# Heads are significant where swaps move the word toward the other sense in pair after pair (p < .05, signs flipped by cue words, max-T over
# all heads).
#
# `recall`: of the significant heads, those among as many first heads of the shortcut · `recall_10`: those among its first ten ·
# `spearman`: rank correlation with the swaps, over all heads · `precision`: the area under the precision-recall curve; by chance it is the
# share of heads that are significant · `lost`: the share of the summed effect of the five heads with the largest swaps that is lost by
# taking the shortcut's five instead · `recall_before`, `lost_before`: the same among the heads before the read-out layer, with as many first
# heads as there are significant ones among them.


# %%
def by_head(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over pairs. Index: layer and head."""
    return rows.groupby(["layer", "head"])[list(METHODS)].mean()


def significant(rows: pd.DataFrame) -> np.ndarray:
    """Which heads have a positive effect in pair after pair, in the order of `by_head`."""
    effects = rows.pivot(index=["pair", "unit"], columns=["layer", "head"], values="swap")
    units = effects.index.get_level_values("unit")
    if len(effects) < FEWEST_PAIRS:
        return np.zeros(effects.shape[1], dtype=bool)
    return sign_flip_test(effects.to_numpy(), list(units)).p < LEVEL


def first_of(score: pd.Series, number: int) -> set:
    """The top heads of a ranking."""
    return set(score.sort_values(ascending=False, kind="stable").index[:number])


def scores_of(heads: pd.DataFrame, method: str, is_right: np.ndarray) -> dict[str, float]:
    """The scores of one shortcut for two senses of a word; empty without a known cue."""
    score, swap = heads[method], heads["swap"]
    if score.isna().any():
        return {}
    scores = {"spearman": float(spearmanr(score, swap).statistic), "lost": lost(score, swap)}
    if is_right.any():
        right = set(heads.index[is_right])
        scores["recall"] = recall(score, is_right)
        scores["recall_10"] = len(right & first_of(score, 10)) / len(right)
        scores["precision"] = float(average_precision_score(is_right, score))
    return scores


def recall(score: pd.Series, is_right: np.ndarray) -> float:
    """Of the n significant heads, the share among the n top heads of a ranking; NaN without any."""
    right = set(score.index[is_right])
    return len(right & first_of(score, len(right))) / len(right) if right else np.nan


def lost(score: pd.Series, swap: pd.Series) -> float:
    """1 - (swap effect of the ranking's top heads) / (swap effect of the top heads by swaps)."""
    effect = swap[list(first_of(score, FIRST))].sum()
    return 1 - effect / swap[list(first_of(swap, FIRST))].sum()


def chance_of(swap: pd.Series, is_right: np.ndarray) -> dict[str, float]:
    """The expected scores of a random order of the heads."""
    share = is_right.mean()
    effect = min(FIRST, len(swap)) * swap.mean()
    scores = {"lost": 1 - effect / swap[list(first_of(swap, FIRST))].sum()}
    if is_right.any():
        scores |= {"recall": share, "recall_10": min(1.0, 10 / len(swap)), "precision": share}
    return scores


def before_read_out(
    heads: pd.DataFrame, is_right: np.ndarray, depth: int
) -> dict[str, dict[str, float]]:
    """Recall and lost effect of every ranking, and of chance, among the heads before the read-out layer."""
    is_before = heads.index.get_level_values("layer") < depth
    part, right = heads[is_before], is_right[is_before]
    scores = {
        method: {"recall": recall(part[method], right), "lost": lost(part[method], part["swap"])}
        for method in METHODS
        if part[method].notna().all()
    }
    scores[CHANCE] = chance_of(part["swap"], right)
    return {
        method: {f"{name}_before": values[name] for name in ("recall", "lost") if name in values}
        for method, values in scores.items()
    }


def stability_of(rows: pd.DataFrame, method: str) -> dict[str, float]:
    """How well two halves of the pairs agree: the overlap of their top five heads (Jaccard index), and the rank
    correlation of all heads."""
    if method == "auroc" or rows["pair"].nunique() < 2 or rows[method].isna().any():
        return {}  # AUROC comes from all sentences, not from these pairs
    first, second = (by_head(rows[rows["pair"] % 2 == half])[method] for half in (0, 1))
    top, second_top = first_of(first, FIRST), first_of(second, FIRST)
    return {
        "jaccard": len(top & second_top) / len(top | second_top),
        "halves": float(spearmanr(first, second).statistic),
    }


def ranks_of(rows: pd.DataFrame) -> tuple[float, float]:
    """The 95 % interval of the rank of the head with the largest swap, resampling pairs."""
    effects = rows.pivot(index="pair", columns=["layer", "head"], values="swap").to_numpy()
    samples = np.random.default_rng(0).integers(len(effects), size=(RANK_DRAWS, len(effects)))
    means = effects[samples].mean(1)  # draw head
    first = effects.mean(0).argmax()
    ranks = 1 + (means > means[:, [first]]).sum(1)
    low, high = np.quantile(ranks, (0.025, 0.975), method="closest_observation")
    return float(low), float(high)


SCORES = [
    "recall",
    "recall_before",
    "recall_10",
    "spearman",
    "precision",
    "lost",
    "lost_before",
    "jaccard",
    "halves",
]
rows = []
for (model, word, *_), part in pairs.groupby(["model", *KEY], sort=False):
    heads, is_right = by_head(part), significant(part)
    rank_low, rank_high = ranks_of(part)
    about = {"model": model, "word": word, "significant": is_right.sum(), "of": len(heads)}
    about |= {"first_rank_low": rank_low, "first_rank_high": rank_high}
    before = before_read_out(heads, is_right, part["depth"].iloc[0])
    for method in METHODS:
        scores = scores_of(heads, method, is_right) | before.get(method, {})
        rows.append(about | {"method": method} | scores | stability_of(part, method))
    rows.append(about | {"method": CHANCE} | chance_of(heads["swap"], is_right) | before[CHANCE])
by_word = pd.DataFrame(rows).reindex(columns=[*about, "method", *SCORES])
by_word = by_word.groupby(["model", "method", "word"], sort=False).mean().reset_index()

# %% [markdown]
# ## Over words
#
# Means with 95 % bootstrap intervals over words, with the same samples for every shortcut. The row of the swaps shows what no shortcut can
# be expected to exceed: the recall of the order by swap effect, and how well swaps agree between two halves of the pairs (`jaccard`,
# `halves`). `words_with_heads`, `words_before`: the words behind a recall, which have significant heads, or such heads before the read-out
# layer. In the stored table, the order by swap effect and the heads before the read-out layer come from a part of SmolLM2's words, and from
# none of MiniLM and Gemma 3 270M.


# %%
def over_words(values: pd.Series) -> tuple[float, float, float]:
    """The mean of the words' scores and the ends of its interval; NaN if no word has a score."""
    scores = values.dropna().to_numpy()
    if not len(scores):
        return (np.nan,) * 3
    samples = np.random.default_rng(0).integers(len(scores), size=(DRAWS, len(scores)))
    return (scores.mean(), *np.quantile(scores[samples].mean(1), (0.025, 0.975)))


summary = []
for (model, method), part in by_word.groupby(["model", "method"], sort=False):
    row = {"model": model, "method": method, "words": len(part)}
    row["words_with_heads"] = part["recall"].notna().sum()
    row["words_before"] = part["recall_before"].notna().sum()
    for score in SCORES:
        names = (score, f"{score}_low", f"{score}_high")
        row |= dict(zip(names, over_words(part[score]), strict=True))
    summary.append(row)
table = pd.DataFrame(summary)
table[["model", "method", *SCORES, "words", "words_with_heads"]]

# %% [markdown]
# ## How certain is the first head?
#
# The upper end of the 95 % interval of its rank, resampling pairs. At 1, the head is always first.

# %%
of_swaps = by_word[by_word["method"] == "swap"]
of_swaps.groupby("model")[["significant", "first_rank_high"]].median()

# %% [markdown]
# ## In one picture

# %%
ENDS = ["value", "low", "high"]
panels = []
for (model, part), (score, heads) in product(
    table.groupby("model", sort=False),
    {"recall": "all heads", "recall_before": "heads before the read-out layer"}.items(),
):
    bars = part[["method"]].assign(group=f"{model}, {heads}", row=part["method"].map(NAMES))
    bars[ENDS] = part[[score, f"{score}_low", f"{score}_high"]]
    panels.append(bars.dropna())
bars = pd.concat(panels, ignore_index=True)
picture = drawing.grouped_bars(
    bars[["group", "row", "value", "low", "high"]], "share of the significant heads that are found"
)
charts.save(picture, out / "which_shortcut_finds_the_heads.png")
by_word.to_csv(out / "which_shortcut_by_word.csv", index=False, float_format="%.4g")
table.to_csv(out / "which_shortcut_finds_the_heads.csv", index=False, float_format="%.4g")
picture
