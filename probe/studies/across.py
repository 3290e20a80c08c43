"""The tables of a survey: inference about a model, with words as the sample.

The numbers of all words are arrays `word ...`: gaps at every depth, then, once the read-out depth
is chosen, `word layer head`. Records are read one at a time. All numbers are in units of the
residual stream.

    depth      the read-out depth, one for all words: the first depth whose mean separation is
               within one standard error of the best. Heads after it are read at the last depth.
    effect     E(h) = Σ n_w(h) / Σ g_w, with n the net effect of head h on word w and g the word's
               gap. The interval bootstraps words. p flips the signs of words (max-T over heads).
    between    how n_w / g_w differs between words with a clear gap: at least CLEAR of the mean gap
    nouns      how far the swap moves unambiguous nouns in the word's place, in the word's gap
    more       how far it moves the word minus how far it moves nouns, over the words that were
               compared, paired by word: Σ (n_w - m_w) / Σ g_w, with m the net effect on nouns
    share      Σ m_w / Σ c_w, with c the nouns' own gap
    sets       the top heads of all other words, tested on the word that was left out

Words whose gap is not above 0 stay in and are counted. No effect is reported if the words have no
gap on average at any depth (signs of words flipped, max-T over depths, p >= GATE), because a ratio
over a gap that does not exist is noise divided by noise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from probe.errors import InputError
from probe.experiments.beside_nouns import MEASURES
from probe.experiments.design import readout
from probe.experiments.measure import count_left_out
from probe.experiments.record import WordRecord
from probe.patching.sets import HeadIndex
from probe.provenance import hash_of
from probe.stats import resampling
from probe.stats.across_words import WordDraws, above_zero, draw_words, rank_correlation, ratio
from probe.stats.axes import first_as_good
from probe.stats.limits import GATE, LEVEL
from probe.stats.resampling import DRAWS, Array
from probe.tidy import rounded
from probe.verdicts import PARTS, comparison

if TYPE_CHECKING:
    import xarray as xr

FEWEST_WORDS = 2  # measured words: one word is not a sample
# Fraction of the words' mean gap. The ratio n_w / g_w over a smaller gap is mostly noise.
CLEAR = 0.5
TOP_HEADS = 8  # heads that are tested on the word that was left out
MOST_KINDS = 5  # distinct values of a numeric column that names kinds. More of them are amounts.
SET_ENDS = (0.025, 0.975)  # quantiles over the random sets of a word
RANK_COLUMNS = ("rank", "rank_low", "rank_high")
SENSES = ("sense_a", "sense_b")
EFFECTS = ("effect", "effect_low", "effect_high", "p", "between_words", "words_positive")
HEADS = (
    *("layer", "head", *EFFECTS, "attention_cue", *PARTS),
    *("words_clear", "comparison", *RANK_COLUMNS, "read_depth"),
)
# Columns of `survey_words` that are gaps at the read-out depth, with their names in `WordNumbers`.
GAPS = {
    "gap": "gap",
    "general_gap": "noun_gap",
    "squared_gap": "squared_gap",
    "general_squared_gap": "noun_squared_gap",
}
WORDS = (
    "word",
    "kind",
    "pairs",
    "gap",
    "general_gap",
    "depth",
    "squared_gap",
    "general_squared_gap",
    "clear",
    "senses",
    "sentences",
    "nouns",
    "left_out",
    "reason",
)
NUMBERS = ("column", "words", "rho", "rho_low", "rho_high")
WORD_HEADS = ("word", "layer", "head", "effect", "gap", "nouns", "nouns_share", "net")
SETS = ("word", "k", "own", "others", "random_low", "random_mean", "random_high")
KINDS_OF_SETS = ("own", "others", "random")

Records = Callable[[], Iterator[WordRecord]]
Columns = dict[str, Any]


class WordNumbers(NamedTuple):
    """The numbers of one word over all its pairs of senses; with a first axis `word`, those of
    several words.

    Numbers of nouns are about unambiguous nouns in the word's place, and NaN without such nouns.

    separation: held-out AUROC. `depth`
    gap: mean over the pairs of sentences. `depth`
    untrained_gap: in a model with random weights; 0 if it was not measured. `depth`
    squared_gap: see `probe.stats.axes.squared_gap`; with nouns, on the sentences of the nouns.
        `depth`
    noun_gap: mean over the nouns' pairs of sentences. `depth`
    noun_squared_gap: `depth`
    attention_cue: from the word to its cue; NaN for every head unless all cues are marked.
        `layer head`
    net: each head's effect minus that of same-sense donors: along the word's axis, and as a length.
        `measure layer head depth`
    noun_net: the same for nouns, in the measures MEASURES; NaN for heads that were not compared
        with nouns. `measure layer head depth`
    """

    separation: Array
    gap: Array
    untrained_gap: Array
    squared_gap: Array
    noun_gap: Array
    noun_squared_gap: Array
    attention_cue: Array
    net: Array
    noun_net: Array


def numbers_of(record: WordRecord) -> WordNumbers:
    """The numbers of a measured word, means over its pairs of senses."""
    depths = record.layers + 1
    senses = record.senses
    of_heads = [each for each in record.of_pairs("heads") if each is not None]
    nouns = [each for each in record.of_pairs("nouns") if each is not None and each.sizes["swap"]]
    pairs = [each.sizes["sentence_pair"] for each in senses]
    untrained = [each.untrained_gap.values for each in senses if "untrained_gap" in each]
    squared = np.mean([each.squared_gap.values for each in senses], axis=0)
    noun_gap, noun_squared = np.full((2, depths), np.nan)
    noun_net = np.full((len(MEASURES), record.layers, record.heads, depths), np.nan)
    if nouns:
        noun_gap = np.concatenate([each.pair_gap.values for each in nouns]).mean(0)
        noun_squared = np.mean([each.squared_gap.values.mean(0) for each in nouns], axis=0)
        squared = np.mean([each.word_squared_gap.values.mean(0) for each in nouns], axis=0)
        swaps = [each.sizes["swap"] for each in nouns]
        layers, heads = nouns[0].part_layer.values, nouns[0].part_head.values
        by_depth = np.average([each.moved_by_depth.values for each in nouns], axis=0, weights=swaps)
        noun_net[:, layers, heads] = np.moveaxis(by_depth, -1, 0)
    to_cue = np.mean([each.attention_cue.values for each in of_heads], axis=0)
    net = np.average([each.moved_by_depth.values for each in of_heads], axis=0, weights=pairs)
    return WordNumbers(
        separation=np.mean([each.separation.values for each in senses], axis=0),
        gap=np.concatenate([each.raw_gaps.values[:, :depths] for each in senses]).mean(0),
        untrained_gap=np.average(untrained, axis=0, weights=pairs)
        if len(untrained) == len(senses)
        else np.zeros(depths),
        squared_gap=squared,
        noun_gap=noun_gap,
        noun_squared_gap=noun_squared,
        attention_cue=to_cue if np.isfinite(to_cue).all() else np.full_like(to_cue, np.nan),
        net=np.moveaxis(net, -1, 0),
        noun_net=noun_net,
    )


@dataclass(frozen=True, eq=False)
class Summary:
    """The results of a survey."""

    depth: int  # at which words are read
    frames: dict[str, pd.DataFrame]  # by name
    # For every word with a clear gap, the top heads of all other words.
    left_out_orders: Mapping[str, tuple[HeadIndex, ...]]


def summarise(records: Records, *, seed: int, draws: int = DRAWS) -> Summary:
    """The tables of a survey from the records of its words.

    records: returns an iterator over all records, in the same order at every call
    draws: number of draws of the bootstrap and of the sign flips

    Raises InputError if fewer than two words were measured.
    """
    rows = []
    measured = []
    for record in records():
        rows.append(_row(record))
        if not record.reason:
            # Effects at every depth are large, and are read again once the depth is chosen.
            measured.append(numbers_of(record)._replace(net=np.empty(0), noun_net=np.empty(0)))
    if len(measured) < FEWEST_WORDS:
        raise InputError(_too_few(rows))
    words = _together(measured)
    drawn = draw_words(
        [hash_of(row["word"]) for row in rows if not row["reason"]], seed=seed, draws=draws
    )
    separation, error = _separation(words)
    depth = first_as_good(separation, error)
    table = _table(rows, words, depth)
    model = _model(words, drawn, table, depth)
    heads = _effects(records, depth)
    # An untrained model with a gap indicates a confound. Unambiguous nouns in the same sentences
    # would have it too, so words that change further than these nouns are not confounded.
    confounded = model["untrained_p"] < GATE and not model["ambiguity_p"] < LEVEL
    has_gap = model["gap_p"] < GATE and bool((heads.gap.sum(0) > 0).all())
    is_ranked = has_gap and not confounded
    frames = {
        "survey_model": pd.DataFrame([model | {"ranked": is_ranked}]),
        "survey_heads": _heads(heads, words.attention_cue, drawn, depth, ranked=is_ranked),
        "survey_words": table,
        "survey_depths": _depths(words),
        "survey_numbers": _numbers(table, seed=seed, draws=draws),
    }
    frames = {name: rounded(frame) for name, frame in frames.items()}
    return Summary(depth, frames, _left_out_orders(heads, depth) if is_ranked else {})


def _together(words: Sequence[Any]) -> Any:
    """The arrays of words with a first axis `word`."""
    return type(words[0])(*map(np.stack, zip(*words, strict=True)))


def _too_few(rows: Sequence[Columns]) -> str:
    reasons = sorted({str(row["reason"]) for row in rows if row["reason"]})
    because = f" ({'; '.join(reasons)})" if reasons else ""
    measured = sum(not row["reason"] for row in rows)
    return (
        f"Cannot summarise the survey: {measured} of its {len(rows)} words were "
        f"measured{because}. Words are its sample, so it needs at least {FEWEST_WORDS}. Add words "
        "with two sentences of each of two senses, or study a single word with `probe report`."
    )


# --- words and depths -----------------------------------------------------------------------------


def _row(record: WordRecord) -> Columns:
    """The columns of `survey_words` that are no gaps, with the further columns of the input file
    in `further`."""
    in_place = [each for each in record.of_pairs("nouns") if each is not None]
    nouns = dict.fromkeys(name for each in in_place for name in each.noun.values.tolist())
    used = 0
    if record.senses:
        used = int((record.measured["senses"]["sentences"].part != "neither").sum())
    return {
        "word": record.word,
        "kind": record.kind,
        "pairs": sum(each.sizes["sentence_pair"] for each in record.senses),
        "senses": len({each[end].item() for each in record.senses for end in SENSES}),
        "sentences": used,
        "nouns": ", ".join(nouns),
        "left_out": sum(count_left_out(record).values()),
        "reason": record.reason,
        "further": {name: each for name, each in record.columns.items() if name not in WORDS},
    }


def _table(rows: Sequence[Columns], words: WordNumbers, depth: int) -> pd.DataFrame:
    """The frame `survey_words`: a row for each word, sorted, with its gaps at a depth.

    The last columns are the further columns of the input file.
    """
    table = pd.DataFrame(rows).assign(depth=depth)
    measured = table["reason"] == ""
    for column, name in GAPS.items():
        table.loc[measured, column] = getattr(words, name)[:, depth]
    table["clear"] = table["gap"] >= CLEAR * table["gap"].mean()
    table = table.sort_values("word", kind="stable", ignore_index=True)
    further = _as_numbers(pd.DataFrame(table["further"].tolist(), index=table.index))
    return pd.concat([table[list(WORDS)], further], axis=1)


def _as_numbers(columns: pd.DataFrame) -> pd.DataFrame:
    """The columns, with numbers instead of text in each column whose values are all numbers.

    A CSV file does not distinguish text from numbers.
    """
    converted = {}
    for name, column in columns.items():
        text = column.replace("", None)
        numbers = pd.to_numeric(text, errors="coerce")
        is_amount = column.dtype != bool and (numbers.notna() == text.notna()).all()
        converted[name] = numbers if is_amount and numbers.notna().any() else column
    return pd.DataFrame(converted, index=columns.index)


def _separation(words: WordNumbers) -> tuple[Array, Array]:
    """The mean held-out AUROC of the words, and its standard error. `depth, depth`"""
    count = len(words.separation)
    return words.separation.mean(0), _deviation(words.separation) / np.sqrt(count)


def _deviation(values: Array) -> Array:
    """The standard deviation between the words that have a value; exactly 0 if all of these are
    equal, NaN for fewer than two. `word ... -> ...`
    """
    flat = pd.DataFrame(values.reshape(len(values), -1))
    return np.asarray((flat - flat.min()).std()).reshape(values.shape[1:])


def _compared(words: WordNumbers) -> Any:
    """Whether each word was compared with unambiguous nouns. `word`"""
    return np.isfinite(words.squared_gap - words.noun_squared_gap).all(1)


def _gap_p(drawn: WordDraws, gaps: Array) -> float:
    """p that the mean gap of the words is not above 0 at any depth.

    gaps: `word depth`

    The test flips the signs of words, with max-T over the depths. A gap that is 0 in every word has
    p = 1.
    """
    return float(above_zero(drawn.signs, gaps).p.min()) if np.any(gaps.sum(0)) else 1.0


def _model(words: WordNumbers, drawn: WordDraws, table: pd.DataFrame, depth: int) -> Columns:
    """The row of the frame `survey_model` without `ranked`: numbers of words, the depth, the words'
    mean gap with its test, and how far unambiguous nouns in their place change.
    """
    measured = table[table["reason"] == ""]
    _, layers, heads = words.attention_cue.shape
    mean_gap = ratio(drawn.weights, words.gap[:, depth], np.ones(len(words.gap)))
    compared = _compared(words)
    row = {
        "words": len(measured),
        "words_left_out": len(table) - len(measured),
        "pairs": int(measured["pairs"].sum()),
        "sentences": int(measured["sentences"].sum()),
        "layers": layers,
        "heads": heads * layers,
        "depth": depth,
        "separation": float(_separation(words)[0][depth]),
        "gap": float(mean_gap.value),
        "gap_low": float(mean_gap.low),
        "gap_high": float(mean_gap.high),
        "gap_p": _gap_p(drawn, words.gap),
        "untrained_p": _gap_p(drawn, words.untrained_gap),
        "ranked": False,
        "words_without_gap": int((measured["gap"] <= 0).sum()),
        "words_clear": int(measured["clear"].sum()),
        "words_compared": int(compared.sum()),
    }
    row |= dict.fromkeys(("general_share", "general_low", "general_high", "ambiguity_p"), np.nan)
    if compared.any():
        squared = words.squared_gap[compared, depth]
        noun_squared = words.noun_squared_gap[compared, depth]
        share = ratio(drawn.weights[:, compared], noun_squared, squared)
        further = above_zero(drawn.signs[:, compared], squared - noun_squared)
        row |= {
            "general_share": float(share.value),
            "general_low": float(share.low),
            "general_high": float(share.high),
            "ambiguity_p": float(further.p),
        }
    return row


def _depths(words: WordNumbers) -> pd.DataFrame:
    """The frame `survey_depths`: mean separation and mean gaps at every depth, of the words and of
    unambiguous nouns in their place.
    """
    separation, error = _separation(words)
    compared = _compared(words)
    count = compared.sum() or np.nan
    return pd.DataFrame(
        {
            "depth": np.arange(len(separation)),
            "separation": separation,
            "separation_error": error,
            "gap": words.gap.mean(0),
            "squared_gap": words.squared_gap[compared].sum(0) / count,
            "general_squared_gap": words.noun_squared_gap[compared].sum(0) / count,
        }
    )


def _numbers(table: pd.DataFrame, *, seed: int, draws: int) -> pd.DataFrame:
    """The frame `survey_numbers`: Spearman's correlation of the words' gaps with every further
    column of the input file that holds amounts.
    """
    measured = table[table["reason"] == ""]
    gap = measured["gap"].to_numpy(dtype=float)
    rows = []
    for name in measured.columns.difference(list(WORDS), sort=False):
        values = measured[name]
        if values.dtype.kind in "iuf" and values.nunique() > MOST_KINDS:
            number = values.to_numpy(dtype=float)
            rank = rank_correlation(gap, number, seed=seed, draws=draws)
            rows.append((name, rank.words, rank.rho, rank.low, rank.high))
    return pd.DataFrame(rows, columns=list(NUMBERS))


# --- heads ----------------------------------------------------------------------------------------


class HeadNumbers(NamedTuple):
    """The effects of heads on words, each head at the depth where it is read: at the read-out depth
    for heads before it, at the last depth for all others.

    word: `word`
    gap: `word layer`, of the word at the depth where the layer is read
    net: `word layer head measure`, in the measures of `WordNumbers.net`
    noun_gap, noun_net: of unambiguous nouns, in the measures MEASURES; NaN as in `WordNumbers`
    """

    word: Any
    gap: Array
    net: Array
    noun_gap: Array
    noun_net: Array


def _read_at(layers: int, depth: int) -> list[int]:
    """The depth at which the heads of each layer are read. `layer`"""
    return [*readout(layers, depth, 1, predicts=False).at]


def _effects(records: Records, depth: int) -> HeadNumbers:
    """The effects of the heads on every measured word."""
    words = []
    for record in records():
        if record.reason:
            continue
        numbers = numbers_of(record)
        at = _read_at(record.layers, depth)
        net, noun_net = (
            np.stack([each[:, layer, :, read] for layer, read in enumerate(at)]).swapaxes(1, 2)
            for each in (numbers.net, numbers.noun_net)
        )
        words.append(HeadNumbers(record.word, numbers.gap[at], net, numbers.noun_gap[at], noun_net))
    return _together(words)


def _heads(
    heads: HeadNumbers, attention_cue: Array, drawn: WordDraws, depth: int, *, ranked: bool
) -> pd.DataFrame:
    """The frame `survey_heads`: the effect of every head over the words, and on nouns in their
    place, with intervals and tests.

    attention_cue: `word layer head`
    ranked: whether the words have a significant gap; if not, effects are missing
    """
    shape = heads.net.shape[1:3]
    known = attention_cue[np.isfinite(attention_cue).all((1, 2))]
    layer, head = np.indices(shape)
    columns: Columns = dict.fromkeys(HEADS, np.full(shape, np.nan)) | {
        "layer": layer,
        "head": head,
        "read_depth": np.array(_read_at(shape[0], depth))[layer],
        "attention_cue": known.mean(0) if len(known) else np.full(shape, np.nan),
        "words_clear": np.zeros(shape, int),
    }
    if ranked:
        columns |= _over_words(heads, drawn) | _beside_nouns(heads, drawn)
    frame = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    frame["comparison"] = ""
    if ranked:
        rows = frame.assign(net=frame["effect"]).to_dict("records")
        frame["comparison"] = [comparison({str(key): row[key] for key in row}) for row in rows]
    return frame.astype(dict.fromkeys(RANK_COLUMNS, "Int64"))


def _over_words(heads: HeadNumbers, drawn: WordDraws) -> Columns:
    """The effect of every head over all words, and how it differs between words with a clear gap.
    `layer head` each
    """
    net = heads.net[..., 0]
    gap = heads.gap[..., None]
    effect = ratio(drawn.weights, net, gap)
    low, high = resampling.rank_intervals(effect.draws)
    of_word = np.where(_clear(heads)[..., None], _fraction(net, gap), np.nan)
    return {
        "effect": effect.value,
        "effect_low": effect.low,
        "effect_high": effect.high,
        "p": above_zero(drawn.signs, net, either_way=True).p,
        "rank": resampling.ranks(effect.value.ravel()),
        "rank_low": low,
        "rank_high": high,
        "between_words": _deviation(of_word),
        "words_positive": (of_word > 0).sum(0),
        "words_clear": np.isfinite(of_word).sum(0),
    }


def _clear(heads: HeadNumbers) -> Any:
    """Whether the gap of each word is clear where a layer is read. `word layer`"""
    return heads.gap >= CLEAR * heads.gap.mean(0)


def _beside_nouns(heads: HeadNumbers, drawn: WordDraws) -> Columns:
    """The columns PARTS, over the words that were compared with nouns; `layer head` each. None if
    fewer than FEWEST_WORDS words were compared.
    """
    words = np.isfinite(heads.noun_net).any((1, 2, 3)) & np.isfinite(heads.noun_gap).all(1)
    # A head counts only if it was compared with nouns for every word.
    shown = np.isfinite(heads.noun_net[words]).all((0, 3))
    if words.sum() < FEWEST_WORDS or not shown.any():
        return {}
    weights, signs = drawn.weights[:, words], drawn.signs[:, words]
    gap, own_gap = heads.gap[words, :, None], heads.noun_gap[words, :, None]
    nouns = heads.noun_net[words]
    # The word's own axis is the word's axis.
    more = dict(zip(MEASURES, np.moveaxis(heads.net[words][..., [0, 0, 1]] - nouns, -1, 0)))
    further = ratio(weights, more["own_axis"], gap)
    # In the unit of the gap at the depth at which a head is read, so that heads can be compared.
    in_gaps = more["own_axis"] / gap.sum(0)
    p = np.full(shown.shape, np.nan)
    p[shown] = above_zero(signs, in_gaps[:, shown], either_way=True).p
    # The surprisal of nouns is not compared in a survey: a word has too few nouns.
    return {
        "nouns": ratio(weights, nouns[..., 0], gap).value,
        "more": further.value,
        "more_low": further.low,
        "more_high": further.high,
        "p_more": p,
        "more_word_axis": ratio(weights, more["word_axis"], gap).value,
        "more_length": ratio(weights, more["length"], gap).value,
        "nouns_share": ratio(weights, nouns[..., 0], own_gap).value,
    }


def _left_out_orders(heads: HeadNumbers, depth: int) -> dict[str, tuple[HeadIndex, ...]]:
    """For each word with a clear gap at the read-out depth, the heads before it with the largest
    effects over all other words: at most TOP_HEADS.
    """
    net, gap = heads.net[:, :depth, :, 0], heads.gap[:, :depth, None]
    # The effect over all words but this one: (Σ n - n_w) / (Σ g - g_w)
    of_others = (net.sum(0) - net) / (gap.sum(0) - gap)
    orders = {}
    for word, effects, is_clear in zip(heads.word, of_others, _clear(heads)[:, 0], strict=True):
        if is_clear:
            top = resampling.order(effects.ravel())[:TOP_HEADS].tolist()
            orders[str(word)] = tuple(divmod(index, effects.shape[1]) for index in top)
    return orders


def word_heads(records: Records, depth: int) -> pd.DataFrame:
    """The frame `survey_word_heads`: every head for every measured word.

    net: n_w, in units of the residual stream
    gap: of the word at the depth where the head is read, in the same units
    effect: net as a fraction of the word's gap; missing if the gap is not above 0
    nouns: the net effect on nouns as a fraction of the word's gap, likewise
    nouns_share: the same as a fraction of their own gap; missing if it is not above 0
    """
    heads = _effects(records, depth)
    net, nouns = heads.net[..., 0], heads.noun_net[..., 0]
    word, layer, head = np.indices(net.shape)
    gap, noun_gap = (each[word, layer] for each in (heads.gap, heads.noun_gap))
    columns = {
        "word": heads.word[word],
        "layer": layer,
        "head": head,
        "effect": _fraction(net, gap),
        "gap": gap,
        "nouns": _fraction(nouns, gap),
        "nouns_share": _fraction(nouns, noun_gap),
        "net": net,
    }
    return rounded(pd.DataFrame({name: columns[name].ravel() for name in WORD_HEADS}))


def _fraction(effects: Array, gaps: Array) -> Array:
    """Effects as fractions of gaps; NaN where a gap is not above 0."""
    return np.divide(effects, gaps, out=np.full_like(effects, np.nan), where=gaps > 0)


# --- sets of heads on the word left out -----------------------------------------------------------


def sets_frames(
    measured: "Sequence[xr.Dataset]", *, seed: int, draws: int = DRAWS
) -> dict[str, pd.DataFrame]:
    """The frames `survey_sets` and `survey_carry_over`: the share of the gap that sets of heads
    keep, for each word that was left out, and over all such words with intervals.

    F = Σ [M(S) - M(none)] / Σ [M(all) - M(none)], with M the sense coordinate and S the set

    The heads of a set follow the order of all other words (`others`) or the order of the word
    itself (`own`). Random sets have equally many heads in every layer; `random_mean` is their mean.
    """
    ends = [f"{name}{end}" for name in KINDS_OF_SETS for end in ("", "_low", "_high")]
    if not measured:
        return {
            "survey_sets": pd.DataFrame(columns=list(SETS)),
            "survey_carry_over": pd.DataFrame(columns=["k", "words", *ends]),
        }
    measured = sorted(measured, key=lambda sets: str(sets.word.item()))
    words = [str(sets.word.item()) for sets in measured]
    sizes = measured[0]["size"].values
    whole = np.array([[sets.whole.item()] for sets in measured])
    # `word size`, and `word size random_set`
    own, others, random = (
        np.stack([sets[name].values for sets in measured]) for name in KINDS_OF_SETS
    )
    share = np.where(whole > 0, whole, np.nan)  # no gap, no share
    low, high = np.quantile(random, SET_ENDS, axis=2) / share
    of_words = {
        "word": np.repeat(words, len(sizes)),
        "k": np.tile(sizes, len(words)),
        "own": own / share,
        "others": others / share,
        "random_low": low,
        "random_mean": random.mean(2) / share,
        "random_high": high,
    }
    drawn = draw_words([hash_of(word) for word in words], seed=seed, draws=draws)
    over: Columns = {"k": sizes, "words": len(words)}
    for name, values in zip(KINDS_OF_SETS, (own, others, random.mean(2)), strict=True):
        kept = ratio(drawn.weights, values, whole)
        over |= {name: kept.value, f"{name}_low": kept.low, f"{name}_high": kept.high}
    frames = {
        "survey_sets": pd.DataFrame({name: of_words[name].ravel() for name in SETS}),
        "survey_carry_over": pd.DataFrame(over),
    }
    return {name: rounded(frame) for name, frame in frames.items()}
