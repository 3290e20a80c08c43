"""What may be said: the rules that limit the statements of a page, each from the rows of a word in
a table to some of these rows or a value.

Only heads with a verdict lead a list, a card or a scale. A head without one has no significant
effect, however large its mean: one odd sentence is enough for a large mean with a wide interval.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from probe.stats.limits import GATE, LEVEL, SMALLEST, WORTH_NAMING
from probe.text import splits
from probe.text.slots import stem_of
from probe.verdicts import comparison_of_writes, passes_gate, rank_among_nouns

Frames = Mapping[str, pd.DataFrame]

SENSES = ["sense_a", "sense_b"]
MOVERS = ("resolver", "mover")  # the verdicts of heads that move the word
UNMARKED = ("separates", "none")  # the verdicts of heads without an effect, which no mark has
# Things other than meaning that may separate two senses: the column of the p, and the level below
# which it counts. The gap in an untrained model is measured like the gap of the model, so it has
# the stricter level of that test.
CONFOUNDERS = {"untrained": ("untrained_p", GATE), "nuisance": ("nuisance_p", LEVEL)}
# Of the net effect: where the head's own write is less or more than this, the card says why.
WRITES_LITTLE = 0.5
WRITES_MUCH = 1.5
CLOSE = 0.2  # of a head's attention: it hardly attends to a cue with less
SINK = 0.3  # of a head's attention: a first token with less is not a sink
SHOWN = 6  # heads that are shown word by word
SUGGESTED = 3  # such heads if none moves words significantly
LARGEST_SET = 4  # heads in the set that a sentence describes
PUNCTUATION = ".,;:!?\"'()"


def rows_by_word(frames: Frames) -> dict[str, dict[str, pd.DataFrame]]:
    """The rows of each word, by word and table, for every table with a column `word`.

    Example:
        >>> import pandas as pd
        >>> from probe.claims import rows_by_word
        >>> words = pd.DataFrame({"word": ["bank", "mole", "mole"], "gap": [0.9, 0.8, 0.7]})
        >>> {word: len(rows["words"]) for word, rows in rows_by_word({"words": words}).items()}
        {'bank': 1, 'mole': 2}
    """
    return {
        str(word): {
            name: frame[(frame["word"] == word).to_numpy()]
            for name, frame in frames.items()
            if "word" in frame
        }
        for word in frames["words"]["word"].unique()
    }


def _records(rows: pd.DataFrame) -> list[Any]:
    """The rows of a table as dicts."""
    return rows.to_dict("records")


# --- the heads of a word --------------------------------------------------------------------------


def name_of(head: Any) -> str:
    """The name of a head, such as L2H1 for head 1 of layer 2, from a row with layer and head."""
    return f"L{head.layer}H{head.head}"


def names_of(heads: pd.DataFrame) -> list[str]:
    """The distinct names of the heads in a table, in the order of their first rows."""
    return list(dict.fromkeys(map(name_of, heads.itertuples())))


def by_rank(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads in the order of their ranks."""
    return word_heads.sort_values("rank", kind="stable")


def movers(heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that move the word: those with the verdict mover or resolver."""
    return heads[heads["verdict"].isin(MOVERS)]


def with_verdict(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads with a mark."""
    return word_heads[~word_heads["verdict"].isin(UNMARKED)]


def leading(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that move a word toward the other meaning: the movers by rank, then the others with
    a verdict.
    """
    toward = with_verdict(word_heads)
    toward = by_rank(toward[toward["net"] > 0])
    is_mover = toward["verdict"].isin(MOVERS)
    return pd.concat([toward[is_mover], toward[~is_mover]])


def named(word_heads: pd.DataFrame, top: int) -> pd.DataFrame:
    """The heads that a page names and examines in detail: the first leading ones, and every other
    resolver.

    top: how many leading heads
    """
    heads = leading(word_heads)
    further = heads[top:]
    return pd.concat([heads[:top], further[further["verdict"] == "resolver"]])


def common_leaders(heads: pd.DataFrame, top: int) -> list[str]:
    """The names of the first heads of each word, if they are the same for all words; in the order
    of the first word. Empty if words differ.

    heads: the movers of all words
    top: how many heads of each word
    """
    of_words = [
        names_of(by_rank(of_word)[:top]) for _, of_word in heads.groupby("word", sort=False)
    ]
    return of_words[0] if all(set(names) == set(of_words[0]) for names in of_words) else []


def first_and_marked(heads: pd.DataFrame, first: int) -> pd.DataFrame:
    """The first heads, and of the others those with a mark."""
    return pd.concat([heads[:first], with_verdict(heads[first:])])


def compared_heads(word_heads: pd.DataFrame, top: int) -> pd.DataFrame:
    """The movers that were compared with unambiguous nouns, by rank; of a word without movers, of
    its first leading heads.
    """
    heads = by_rank(movers(word_heads))
    heads = leading(word_heads)[:top] if heads.empty else heads
    return heads[heads["comparison"] != ""]


def opposing(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that significantly move the word the wrong way by at least WORTH_NAMING, the
    largest effect first.
    """
    against = word_heads["verdict"].eq("opposes") & (word_heads["net"] <= -WORTH_NAMING)
    return by_rank(word_heads[against]).sort_values("net", kind="stable")


def with_their_readers(word_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that move the word further than unambiguous nouns without a larger write. Then
    their readers, i.e. later components, make the difference.
    """
    more = word_heads[word_heads["comparison"] == "more"]
    writes_more = [comparison_of_writes(row) == "more" for row in _records(more)]
    return more[~np.array(writes_more, dtype=bool)]


def bound_of_others(word_heads: pd.DataFrame) -> int | None:
    """The end of a 95 % interval of a head that is no mover that is furthest from 0, in whole
    percent of the gap. None without such heads.
    """
    others = word_heads[~word_heads["verdict"].isin(MOVERS)]
    if others.empty:
        return None
    furthest = float(others[["net_low", "net_high"]].abs().max().max())
    # `round` before `ceil`, so that 8.000000001 % becomes 8 %.
    return max(math.ceil(round(100 * furthest, 6)), 1)


def without_order(word_heads: pd.DataFrame, read_depth: int) -> list[list[str]]:
    """The names of heads in groups without an order: their rank intervals overlap, and their
    effects are read after the same layer.

    read_depth: heads of later layers are read after the last layer
    """
    groups: list[list[Any]] = []
    for head in by_rank(word_heads).itertuples():
        # A head joins the group if it may rank before any of its members.
        if groups and any(head.rank_low <= member.rank_high for member in groups[-1]):
            groups[-1].append(head)
        else:
            groups.append([head])
    parts = [
        [name_of(head) for head in group if (head.layer < read_depth) == is_before]
        for group in groups
        for is_before in (True, False)
    ]
    return [part for part in parts if len(part) > 1]


def with_smallest_p(word_heads: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """The heads of a word by rank, with the smallest corrected p over its pairs of senses, as
    p_auroc and p_swap.

    heads: the rows of the word in this table
    """
    tests = heads.groupby(["layer", "head"], as_index=False)[["p_auroc", "p_swap"]].min()
    return by_rank(word_heads).merge(tests, on=["layer", "head"], how="left")


def without_continuation(heads: pd.DataFrame, word_heads: pd.DataFrame) -> list[str]:
    """The names of movers that do not significantly change which prepared next words are likely.

    heads: the rows of the word in this table
    """
    tested = heads.dropna(subset="p_continuation")
    moves = (tested["p_continuation"] < LEVEL) & (tested["continuation"] >= SMALLEST)
    return names_of(tested[~moves & tested["verdict"].isin(movers(word_heads)["verdict"])])


def remark(head: Any) -> str:
    """The sentence that explains why a head's effect, write and attention to the cue differ.

    "little" or "much": its write is less or more than its effect; "elsewhere": it hardly
    attends to the cue; empty where there is nothing to say, or no effect.

    head: a row of the table `word_heads`
    """
    if head.net < SMALLEST or head.net_low <= 0:
        return ""
    if head.direct < WRITES_LITTLE * head.net:
        return "little"
    if head.direct > WRITES_MUCH * head.net:
        return "much"
    return "elsewhere" if head.attention_cue < CLOSE else ""


def attention_to_sink(readings: pd.DataFrame) -> float | None:
    """The mean attention of a head to the first token of its sentences. None where that is no sink,
    to which a head attends much and from which it writes little.

    readings: the rows of one head in this table
    """
    first = readings[(readings["pos"] == 0) & ~readings["role"].isin(["cue", "word"])]
    if first.empty:
        return None
    attention = float(first["attention"].mean())
    written = float(first["contribution"].abs().sum() / readings["contribution"].abs().sum())
    return None if attention < SINK or written > attention / 2 else attention


def clearest_of_senses(readings: pd.DataFrame, senses: Sequence[str]) -> list[int]:
    """The numbers of the sentences in which a head attends most to the cue, one of each sense, in
    the order of the senses.

    readings: the rows of one head in this table
    """
    on_cue = readings["attention"].where(readings["role"] == "cue", 0.0)
    rows = readings.assign(on_cue=on_cue.groupby(readings["sentence"]).transform("sum"))
    rows = rows.sort_values("on_cue", ascending=False, kind="stable").drop_duplicates("sense")
    return rows.sort_values("sense", key=lambda sense: sense.map(senses.index))["sentence"].tolist()


def clearest_sentence(readings: pd.DataFrame) -> int:
    """The number of the sentence whose cue contributes most to the sense that is meant. All tokens
    count where no cue is marked.

    readings: the rows of one head in this table
    """
    is_first_sense = readings["sense"] == readings["sense_a"]
    toward = readings["contribution"].where(is_first_sense, -readings["contribution"])
    cues = readings["role"].eq("cue")
    if cues.any():
        toward = toward.where(cues, 0.0)
    sums = toward.groupby(readings["sentence"], sort=False).sum()
    return int(sums.index[int(sums.argmax())])


# --- the senses of a word -------------------------------------------------------------------------


def ranked(rows: pd.DataFrame, words: pd.DataFrame) -> pd.DataFrame:
    """The rows of the pairs of senses whose heads are ranked: those with a significant gap.

    words: the table `words`
    """
    keys = ["word", *SENSES]
    return rows.merge(words.loc[words["ranked"], keys], on=keys)


def senses_of(words: pd.DataFrame) -> list[str]:
    """The senses of a word, in the order of its pairs.

    words: the rows of the word in this table
    """
    return list(dict.fromkeys(words[SENSES].to_numpy().ravel().tolist()))


def has_too_few_cue_words(words: pd.DataFrame) -> bool:
    """Whether no gap of any pair of senses could be significant with its pairs of cue words.

    words: rows of this table
    """
    return bool((words["smallest_gap_p"] >= GATE).all())


def nuisances(words: pd.DataFrame) -> list[str]:
    """The keys of CONFOUNDERS that also separate the senses of a ranked pair.

    words: the rows of the word in this table
    """
    found = [
        name
        for row in _records(words[words["ranked"]])
        for name, (column, level) in CONFOUNDERS.items()
        if row[column] < level
    ]
    return list(dict.fromkeys(found))


def confounders(words: pd.DataFrame) -> list[str]:
    """The nuisances that may explain the effects on a word: an untrained model's gap is none if the
    word passes the ambiguity gate.

    Unambiguous nouns have the same function words around them, which is what an untrained model
    sees. They do not rule out that a head writes a position at the ambiguous word only.

    words: the rows of the word in this table
    """
    passed = np.array([passes_gate(row) for row in _records(words)], dtype=bool)
    untrained_too = nuisances(words[~passed])
    return [name for name in nuisances(words) if name == "nuisance" or name in untrained_too]


def compared(words: pd.DataFrame) -> pd.DataFrame:
    """The ranked pairs of senses with an ambiguity gate.

    words: rows of this table
    """
    return words[words["ranked"] & words["ambiguity_p"].notna()]


def place_among_nouns(pair: Any) -> int:
    """The word's rank among unambiguous nouns by how far each changes. 1 is the furthest.

    pair: a row of the table `words` with an ambiguity gate
    """
    return int(rank_among_nouns(pair.ambiguity_p, pair.nouns_compared))


def farther_nouns(controls: pd.DataFrame, words: pd.DataFrame) -> list[str]:
    """The unambiguous nouns that change at least as far as the word, in the order of the ambiguity
    gate: by the squared gap at the read-out layer, summed over the pairs of senses.

    controls, words: the rows of the word in these tables
    """
    with_gate = compared(words)
    if with_gate.empty:
        return []
    first = with_gate.iloc[0]  # the gate and its nouns are the same for all pairs of senses
    rows = controls[(controls["depth"] == first["depth"]) & (controls["noun"] != first["word"])]
    gaps = rows.groupby("noun", sort=False)["gap"].sum().sort_values(ascending=False, kind="stable")
    return list(gaps.index[: place_among_nouns(first) - 1])


def times_as_far(general_share: float) -> float | None:
    """How many times as far the word changes as unambiguous nouns: the ratio of the distances, from
    the share of the squared distances.

    share ** -0.5

    None if the nouns do not change.
    """
    return general_share**-0.5 if general_share > 0 else None


def mlps_more(mlps: pd.DataFrame) -> list[int]:
    """The layers whose MLP does more for a word than for unambiguous nouns.

    mlps: the rows of one word

    The mean over the pairs of senses must be above 0, and one pair must pass the rule of
    `verdicts.comparison`, with its p corrected over the pairs.
    """
    layers = []
    for layer in sorted(mlps["layer"].unique().tolist()):
        rows = mlps[mlps["layer"] == layer]
        if (rows["comparison"] == "more").any() and rows["more"].mean() > 0:
            layers.append(layer)
    return layers


def leading_mlp(
    mlps: pd.DataFrame, word_heads: pd.DataFrame, read_depth: int
) -> "pd.Series | None":
    """The `layer` and `net` of the MLP with the largest effect, if that is larger than the effect
    of every head with a verdict. None if such a head has the largest effect, or no MLP was swapped.

    Only parts of layers below `read_depth` are compared, because later ones are read elsewhere.

    mlps, word_heads: the rows of the word in these tables
    """
    before = mlps[mlps["layer"] < read_depth]
    if before.empty:
        return None
    means = before.groupby("layer", as_index=False)["net"].mean()
    largest = means.loc[means["net"].to_numpy().argmax()]
    heads = with_verdict(word_heads[word_heads["layer"] < read_depth])
    return None if largest["net"] <= max(heads["net"], default=0.0) else largest


def has_same_token(depth: pd.DataFrame) -> bool:
    """Whether the token embedding is the same vector for all senses.

    depth: the rows of the word in this table
    """
    pairs = depth[depth["depth"] == -1].groupby(SENSES)["coordinate"]
    return bool((pairs.nunique() == 1).all())


# --- the sentences of a word ----------------------------------------------------------------------


def worst_first(certificate: pd.DataFrame) -> pd.DataFrame:
    """The comparisons of a certificate, the one with the largest error first."""
    return certificate.sort_values("error", ascending=False, kind="stable")


def read_otherwise(predictions: pd.DataFrame) -> pd.DataFrame:
    """The tested sentences that are read as another sense than their label, the clearest first."""
    wrong = predictions[~predictions["right"].astype(bool)]
    return wrong.sort_values("coordinate", key=abs, ascending=False, kind="stable")


def number_in_pairs(sentences: pd.DataFrame) -> int:
    """How many sentences have a pair that also has a sentence of another sense."""
    return int((sentences.groupby("pair")["sense"].transform("nunique") > 1).sum())


def number_without_partner(sentences: pd.DataFrame) -> int:
    """How many sentences name a pair that no sentence of another sense names, so that they cannot
    be swapped.
    """
    return int((sentences.groupby("pair")["sense"].transform("nunique") == 1).sum())


def number_of_unmarked_pairs(sentences: pd.DataFrame) -> int:
    """How many sentences differ from one of another sense in a single word, although neither a pair
    nor a frame connects them.
    """
    rows: Any = sentences.astype(object).where(sentences.notna(), None).itertuples()
    return splits.unmarked_pairs(list(rows))


def example_cues(
    sentences: pd.DataFrame, senses: tuple[str, str], *, marked: bool
) -> tuple[str, str] | None:
    """The cues of the first pair of tested sentences. None if no pair has any.

    marked: False for another word in which the two sentences differ
    """
    tested = sentences[sentences["part"].eq("tested")]
    for _, group in tested.groupby("pair", sort=False):
        first, second = (_records(group[group["sense"] == sense])[:1] for sense in senses)
        if not first or not second:
            continue
        word_a = _differing_word(first[0], second[0], marked=marked)
        word_b = _differing_word(second[0], first[0], marked=marked)
        if word_a and word_b:
            return word_a, word_b
    return None


def _differing_word(row: Any, partner: Any, *, marked: bool) -> str:
    """The cue of a sentence. "" without a cue.

    marked: False for the first word other than the cue that its partner does not have at the same
        position
    """
    text = str(row["text"])
    cue = ""
    if pd.notna(row["cue_start"]):
        cue = text[int(row["cue_start"]) : int(row["cue_end"])]
    if marked:
        return cue
    for word, word_of_partner in zip(text.split(), str(partner["text"]).split(), strict=False):
        bare = word.strip(PUNCTUATION)
        if word != word_of_partner and bare != cue:
            return bare
    return ""


# --- many words -----------------------------------------------------------------------------------


def movers_over_words(survey_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that significantly move words, by rank: their effect is significant and at least
    SMALLEST.
    """
    is_mover = (survey_heads["p"] < LEVEL) & (survey_heads["effect"] >= SMALLEST)
    return by_rank(survey_heads[is_mover])


def top_over_words(survey_heads: pd.DataFrame) -> pd.DataFrame:
    """The heads that are shown word by word: the first SHOWN movers; without movers the first
    SUGGESTED heads whose interval is above 0 and whose effect is at least SMALLEST.
    """
    heads = movers_over_words(survey_heads)[:SHOWN]
    if len(heads):
        return heads
    suggestive = (survey_heads["effect_low"] > 0) & (survey_heads["effect"] >= SMALLEST)
    return by_rank(survey_heads[suggestive])[:SUGGESTED]


def number_of_movers_by_attention(survey_heads: pd.DataFrame) -> int | None:
    """How many of the n movers are among the n heads with the most attention to the cue. None
    without movers or marked cues.
    """
    movers = movers_over_words(survey_heads)
    if movers.empty or survey_heads["attention_cue"].isna().any():
        return None
    by_attention = by_rank(survey_heads).sort_values(
        "attention_cue", ascending=False, kind="stable"
    )
    return int(by_attention.index[: len(movers)].isin(movers.index).sum())


def is_ambiguity(model: Any) -> bool:
    """Whether words significantly change with their meaning, and further than unambiguous nouns in
    their place.

    model: the row of the table `survey_model`
    """
    return bool(model.ranked and model.ambiguity_p < LEVEL and model.general_share < 1)


def carried_set(frames: Frames) -> pd.DataFrame:
    """The row of `survey_carry_over` that a sentence describes: the largest sets of at most
    LARGEST_SET heads. No row if none were measured.

    frames: of a survey
    """
    sets = frames["survey_carry_over"]
    model: Any = next(frames["survey_model"].itertuples())
    # Random sets of more than half of the heads before the read-out are too similar to compare.
    largest = min(LARGEST_SET, model.depth * model.heads // model.layers // 2)
    return sets[sets["k"] <= largest][-1:]


# --- cues, sets of heads, reasons to attend -------------------------------------------------------


def strongest_cues(
    cues: pd.DataFrame, number: int, value: str = "coordinate"
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The strongest words of each of two senses, at most `number` of each, as `word` and `value`:
    of words that were not fitted, one of each stem.

    cues: the rows of a scan, in which a cue counts once
    value: the column by which words are ordered; the first sense has its largest values
    """
    ordered = cues.drop_duplicates("cue").sort_values(value, ascending=False, kind="stable")
    unseen = ordered[~ordered["seen"]]
    return _strongest(unseen, number, value), _strongest(unseen.iloc[::-1], number, value)


def _strongest(rows: pd.DataFrame, number: int, value: str) -> list[dict[str, Any]]:
    words: dict[str, dict[str, Any]] = {}
    for row in rows.itertuples():
        stem = stem_of(str(row.cue))
        if stem not in words and len(words) == number:
            break
        listed = words.setdefault(stem, {"word": row.cue, "value": getattr(row, value)})
        # "lake" is easier to read than "Lake", where both are among the first.
        if str(row.cue) == str(listed["word"]).lower():
            listed["word"] = row.cue
    return list(words.values())


BIASES = ("query bias", "norm bias")  # the same at every token, so that nothing can replace them


def reason_to_attend(why: pd.Series) -> str:
    """Why a head attends to the cue: "pair" for one part at each of the two tokens, "both" for the
    same part at both, "cue" where the part at the word is a bias. "none" where it does not score
    the cue above other tokens, "apart" where attribution and interventions do not agree.

    A part is a reason only where replacing it lowers the score on both sides.

    why: a row of the table `why_it_attends`
    """
    if not why["p_contrast"] < LEVEL:
        return "none"
    if not why["p_key"] < LEVEL:
        return "apart"
    if why["part_query"] in BIASES:
        return "cue"
    if not why["p_query"] < LEVEL:
        return "apart"
    return "both" if why["part_query"] == why["part_key"] else "pair"


MOST_OF_IT = 0.5  # fraction of an effect: more than everything else together


def credited_part(head_parts: pd.DataFrame, movers: pd.DataFrame) -> str | None:
    """From which words of the sentence a head that moves the word has at least half of its effect:
    "cue_only", else "other_only". None if from neither.

    head_parts: the rows of one word in this table
    movers: the rows of such heads in the table `word_heads`
    """
    parts = head_parts.groupby(["layer", "head"], as_index=False)[["cue_only", "other_only"]].mean()
    # A head without measured parts credits no word.
    measured = movers[["layer", "head", "swap"]].merge(parts, on=["layer", "head"])
    enough = np.maximum(MOST_OF_IT * measured["swap"], SMALLEST)
    for part in ("cue_only", "other_only"):
        if (measured[part] >= enough).any():
            return part
    return None


OVER = 1.05  # fraction of the gap: a set that keeps more than all heads do, beyond noise


def smallest_set(curves: pd.DataFrame) -> "pd.Series | None":
    """The row of the smallest set of top heads that keeps enough of the gap, with the `names` of
    its heads. None if no set does.

    curves: the rows of one word in this table
    """
    rows = curves.sort_values("size")
    enough = rows[rows["size"] == rows["smallest"]]
    if enough.empty:
        return None
    first = enough.iloc[0]
    additions = rows.loc[rows["size"].between(1, first["size"]), "added"]
    return pd.Series({**first, "names": tuple(", ".join(additions).split(", "))})


def random_sets_like(random_sets: pd.DataFrame, size: int) -> pd.DataFrame:
    """The random sets of `size` heads, or of the next larger size; none if all are smaller.

    random_sets: the rows of one word in this table
    """
    large_enough = random_sets[random_sets["size"] >= size]
    return large_enough[large_enough["size"] == large_enough["size"].min()]


def peak(curves: pd.DataFrame) -> "pd.Series | None":
    """The row of the number of top heads that keep the most, if they keep more of the gap than all
    heads do, beyond noise. None if there is none.

    curves: the rows of one word in this table
    """
    if not curves["faithfulness"].max() > OVER:
        return None
    return curves.sort_values("faithfulness", kind="stable").iloc[-1]
