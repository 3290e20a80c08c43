"""The columns of every table: their order, their meaning, their unit. Read by tables, pages and people.

The shape that all tables share: keys in front, one row per head, floats rounded far below their uncertainty.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from probe.stats.resampling import Array
from probe.study.word import PairResult, WordResult

KEYS = ("word", "sense_a", "sense_b")
CAUSAL = (
    "direct",
    "direct_low",
    "direct_high",
    "denoise",
    "noise",
    "swap",
    "swap_low",
    "swap_high",
    "same_sense",
    "self_repair",
    "net",
    "net_low",
    "net_high",
    "rank",
    "rank_low",
    "rank_high",
)
HEADS = (
    *("word", "sense_a", "sense_b", "layer", "head", "auroc", "auroc_low", "auroc_high", "hedges_g"),
    *("direct", "denoise", "noise", "swap", "swap_low", "swap_high", "same_sense", "self_repair"),
    *("p_auroc", "q_auroc", "p_swap", "q_swap", "attention_cue", "attention_previous", "verdict"),
    *("rank", "rank_low", "rank_high"),
)
ATTENTION = ("attention_cue", "attention_previous", "attention_itself")
CURVES = (
    *("word", "area", "smallest", "size", "added", "faithfulness", "faithfulness_low", "faithfulness_high"),
    *("necessity", "necessity_low", "necessity_high"),
)
RANKS = dict.fromkeys(("rank", "rank_low", "rank_high"), "Int64")
METHODS = {
    "nearest": "nearest sense centroid",
    "frequent": "most frequent sense",
    "bag": "bag of words",
    "left": "bag of words left of the word",
}
COLUMNS = {
    "word": "the ambiguous word",
    "sense_a": "first sense of the pair; positive on the sense axis",
    "sense_b": "second sense of the pair; negative on the sense axis",
    "layer": "block, counted from 0",
    "head": "attention head, counted from 0",
    "auroc": "held-out separation of the head's write ΔE along its own direction (0.5 chance, 1 perfect)",
    "hedges_g": "the same separation in pooled standard deviations",
    "direct": "D, what the head itself writes along the sense axis",
    "direct_low": "lower end of the 95 % bootstrap interval of direct",
    "direct_high": "upper end of the 95 % bootstrap interval of direct",
    "denoise": "R_dn, B given A's head output: the part of the gap restored",
    "noise": "R_ns, A given B's head output: the part of the gap lost",
    "swap": "E = (R_dn + R_ns) / 2, the swap effect",
    "swap_low": "lower end of the 95 % bootstrap interval of swap",
    "swap_high": "upper end of the 95 % bootstrap interval of swap",
    "same_sense": "effect of a donor of the same sense, to be subtracted from swap",
    "self_repair": "swap - direct",
    "attention_cue": "mean attention of the head from the word to its cue",
    "attention_itself": "mean attention of the head from the word to the word itself, what it already holds (0 to 1)",
    "attention_previous": "mean attention of the head from the word to the token before it, which is the cue itself where "
    "the cue stands right before: the two can then sum to more than 1",
    "rank": "place by swap - same_sense, 1 is largest; missing where the gap is not there and for heads after the read-out",
    "rank_low": "best place within the 95 % bootstrap interval",
    "rank_high": "worst place within the 95 % bootstrap interval",
    "net": "swap - same_sense",
    "net_low": "lower end of the 95 % bootstrap interval of net",
    "net_high": "upper end of the 95 % bootstrap interval of net",
    "depth": "number of blocks passed; -1 is the token embedding alone, 0 adds the position",
    "coordinate": "mean sense coordinate (+0.5 the first sense's mean, -0.5 the second's)",
    "sense": "the sense that is meant",
    "sentence": "number of the sentence among those of its word, counted from 0",
    "component": "what wrote: an embedding, a head, an attention bias b_O or an MLP; a head's b_V is inside its write",
    "pos": "position of the token that a head took this from, counted from 0; missing for what is no head",
    "token": "that position with its token; from the second block on its vector holds more than its own token",
    "role": "what the token is: the cue, the word itself, or context",
    "norm": "length of the vector written, in units of the residual stream",
    "contribution": "what this wrote along the sense axis, positive toward the first sense; in the ledger "
    "counted from what the component writes halfway between the senses",
    "total": "sense coordinate of this sentence at the read-out, which its contributions sum to",
    "closing": "how far the ledger's vectors are from the hooked residual stream, relative to its size",
    "share": "part of the sense gap at the read-out that this component wrote; shares sum to 1",
    "label": "the depth in words",
    "senses": "senses of the word that are told apart",
    "sentences": "sentences used, to learn from or to be tested",
    "tested": "sentences tested, each once",
    "left_out": "sentences left out; the reasons stand in the table of that name",
    "split_design": "how the tested sentences were kept apart from those learned from",
    "accuracy": "share of the tested sentences whose nearest sense centroid (cosine) is that of their sense",
    "macro_f1": "mean over the senses of F1, the harmonic mean of precision and recall",
    "frequent_accuracy": "accuracy of always saying the sense most frequent in training",
    "frequent_macro_f1": "macro-F1 of the same",
    "bag_accuracy": "accuracy of a classifier of the sentence's other words",
    "bag_macro_f1": "macro-F1 of the same",
    "left_accuracy": "accuracy of a classifier of the words before the word, what a causal model can have read",
    "left_macro_f1": "macro-F1 of the same",
    "angle": "mean angle between sentences of different senses minus that between sentences of the same sense",
    "method": "how the sense was told",
    "words": "words that the mean is over, each counting once",
    "where": "the sentence, or its place in the file",
    "reason": "why it was not used",
    "auroc_low": "lower end of the 95 % bootstrap interval of auroc",
    "auroc_high": "upper end of the 95 % bootstrap interval of auroc",
    "p_auroc": "max-T p of the separation, corrected for every head and pair of senses of the word",
    "q_auroc": "false discovery rate of the separation (Benjamini-Hochberg)",
    "p_swap": "max-T p of the swap effect beyond a same-sense donor, corrected likewise",
    "q_swap": "false discovery rate of the swap effect (Benjamini-Hochberg)",
    "verdict": "what the head was shown to be: resolver, position-explained, opposes, backup, carrier or none",
    "because": "the numbers that led to the verdict",
    "resolves": "in how many of the word's pairs of senses the head is a resolver",
    "of": "how many pairs of senses were measured",
    "distance": "tokens from cue to word (4: four or more)",
    "pattern_only": "swapping only where the head looks: the donor's attention over its own values",
    "values_only": "swapping only what the head carries: its own attention over the donor's values",
    "ablation": "part of the gap lost when the head writes its mean instead",
    "size": "how many heads are in the set",
    "added": "the heads that joined the set since the size before",
    "faithfulness": "F, how much of the gap the set keeps when all other heads have the donor's value (1 is all)",
    "faithfulness_low": "lower end of the 95 % bootstrap interval of faithfulness",
    "faithfulness_high": "upper end of the 95 % bootstrap interval of faithfulness",
    "necessity": "1 - F of all other heads (1: nothing is left without this set)",
    "necessity_low": "lower end of the 95 % bootstrap interval of necessity",
    "necessity_high": "upper end of the 95 % bootstrap interval of necessity",
    "area": "mean faithfulness over the share of heads kept (1: one head is enough)",
    "smallest": "the fewest leading heads with F of at least 0.9",
    "cue_words": "cue words of the sense that has fewer, those to fit and to report on (sentences, where no cues are given): what tests count",
    "visible_d": "smallest difference between senses that so many cue words would show in 80 % of cases, in standard deviations over them",
    "visible_d_pairs": "the same for swaps, by the cue words of the pairs",
    "condition": "as measured, or a control: labels permuted, later token, untrained model",
    "untrained_p": "p of the gap in the untrained model",
    "exploratory": "fewer than 50 sentences per sense to report on",
    "sentences_fit": "sentences of the two senses that the axis and the read-out were fitted on",
    "sentences_report": "sentences of the two senses that everything is measured on",
    "pairs": "pairs of sentences that were swapped, one of each sense",
    "pair_design": "how the pairs were made: aligned pairs share everything but the cue; otherwise donors are drawn at random",
    "tokens_of_word": "tokens that the word is cut into; it is read at the last",
    "gap": "distance between the two senses on the report part, as a multiple of that on the fit part",
    "gap_low": "lower end of the 95 % bootstrap interval of gap",
    "gap_high": "upper end of the 95 % bootstrap interval of gap",
    "causal": "whether the model reads only what comes before a word",
    "gap_p": "p of the gap, adjusted for the pairs of senses of the word; nothing is ranked from .01 on",
    "negative_gaps": "pairs of sentences on the wrong sides of each other",
    "ranked": "whether the gap was shown, so that heads were swapped and ranked",
    "low": "a tenth of the sentences of this sense lies below",
    "high": "a tenth of the sentences of this sense lies above",
    "text": "the sentence",
    "start": "first character of the word in the text, counted from 0",
    "end": "character after the word",
    "frame": "the story that the sentence was made from; no frame stands in two parts of the split",
    "pair": "sentences with the same name are aligned: they differ in the cue only",
    "cue": "the word that tells the sense",
    "cue_start": "first character of the cue, missing where no cue is known",
    "cue_end": "character after the cue",
    "cue_after": "whether the cue comes after the word",
    "position": "position of the token that the word is read at, counted from 0",
    "part": "the part of the split it was used in: fit, select, report or neither",
    "quantity": "what was computed twice",
    "formula": "how it was computed from the raw weights",
    "error": "largest difference between the hooked model and the from-scratch math, relative to scale",
    "scale": "size that the difference is compared with",
    "tolerance": "largest error that is allowed",
    "ok": "whether the error is allowed",
    "piece": "the characters of the token, with its leading space",
    "attention": "attention that the word pays to this token",
    "note": "what the sentence is used for",
    "reads_as": "the sense whose mean is nearest to the word's vector; missing where the cue comes after the word",
    "difference": "largest change of any head's ΔE at the word when everything after the word is removed, relative to the largest ΔE",
    "model": "the model beside the one that is studied",
    "source": "the token whose absence costs most of the coordinate, each other one hidden in turn",
    "through": "the heads whose z of the run without it costs most of the coordinate, each alone, and how much",
    "table": "name of the table",
    "column": "name of the column",
    "meaning": "what it says",
    "unit": "in what; empty for text, names and yes or no",
    # where one name stands for different things
    "words.auroc": "separation of the word's vector at the read-out along the sense axis (0.5 chance, 1 perfect)",
    "words.depth": "blocks passed where the word is read: d is after layer d - 1",
    "depth.auroc": "separation of the word's vector at this depth along the sense axis of this depth (0.5 chance, 1 perfect)",
    "beside.share": "the part of the coordinate that is gone without the source; missing where another sense is nearest",
    "beside.cue_share": "the same for the marked cue",
    "beside.cue_alone": "the coordinate with the marked cue as the only other word that is not hidden",
    "beside.nothing": "the coordinate with every other word hidden",
    "beside.reads_as": "the sense whose mean is nearest to the word's vector",
    "shown": "whether the gap between the two senses was shown in this model",
    "readings.label": "position and token",
    "certificate.layer": "block, counted from 0; missing for the whole model",
    "left_out.word": "the ambiguous word; missing for what was left out while the file was read",
    "left_out.where": "the sentence, its pair, or its row in the file",
    "sentences.sense": "the sense given",
}
GAP, PART, COUNT = "fraction of the sense gap", "0 to 1", "count"
UNITS = (
    dict.fromkeys(
        (
            *("direct", "direct_low", "direct_high", "denoise", "noise", "swap", "swap_low", "swap_high", "same_sense"),
            *("self_repair", "net", "net_low", "net_high", "contribution", "total", "pattern_only", "values_only"),
            *("ablation", "faithfulness", "faithfulness_low", "faithfulness_high", "necessity", "necessity_low"),
            *("necessity_high", "coordinate", "low", "high", "gap", "gap_low", "gap_high", "share"),
        ),
        GAP,
    )
    | dict.fromkeys(
        (
            *("auroc", "auroc_low", "auroc_high", "attention", *ATTENTION, "area"),
            *("p_auroc", "q_auroc", "p_swap", "q_swap", "gap_p", "untrained_p"),
            *("accuracy", "macro_f1", "frequent_accuracy", "frequent_macro_f1", "bag_accuracy", "bag_macro_f1"),
            *("left_accuracy", "left_macro_f1"),
        ),
        PART,
    )
    | dict.fromkeys(
        (
            *("sentences", "sentences_fit", "sentences_report", "tested", "pairs", "negative_gaps", "cue_words"),
            *("resolves", "of", "senses", "words", "size", "smallest", "left_out"),
        ),
        COUNT,
    )
    | dict.fromkeys(("distance", "tokens_of_word"), "tokens")
    | dict.fromkeys(("start", "end", "cue_start", "cue_end"), "characters")
    | dict.fromkeys(("hedges_g", "visible_d", "visible_d_pairs"), "standard deviations")
    | dict.fromkeys(("error", "tolerance", "difference", "closing"), "relative")
    | {"angle": "degrees", "norm": "residual stream", "scale": "that of the quantity", "depth": "blocks"}
)


def meaning(table: str, column: str) -> str:
    """What a column of a table says; KeyError for one that is not described."""
    return COLUMNS.get(f"{table}.{column}") or COLUMNS[column]


DIGITS = 6


def rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with floats at DIGITS significant digits."""
    return frame.apply(lambda column: _significant(column) if column.dtype.kind == "f" else column)


def _significant(column: pd.Series) -> pd.Series:
    values = column.to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitude = np.where(values == 0, 0, np.floor(np.log10(np.abs(values))))
        scale = 10.0 ** (DIGITS - 1 - np.nan_to_num(magnitude, posinf=0, neginf=0))
    return pd.Series(np.round(values * scale) / scale, index=column.index)


def sense_pairs_of(results: Sequence[WordResult]) -> Iterable[tuple[WordResult, PairResult]]:
    return ((result, pair) for result in results for pair in result.pairs)


def key_of(result: WordResult, pair: PairResult) -> dict[str, object]:
    return dict(zip(KEYS, (result.material.word, *pair.senses), strict=True))


def with_key(frame: pd.DataFrame, key: dict[str, object]) -> pd.DataFrame:
    return pd.concat([pd.DataFrame({name: [value] * len(frame) for name, value in key.items()}), frame], axis=1)


def by_head(arrays: dict[str, Array]) -> pd.DataFrame:
    layers, heads = next(iter(arrays.values())).shape
    layer, head = np.divmod(np.arange(layers * heads), heads)
    return pd.DataFrame({"layer": layer, "head": head} | {name: values.ravel() for name, values in arrays.items()})


def stacked(parts: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(columns))
