"""The tables of a survey: inference about a model, with words as the sample.

Each word is a record (`probe.experiments.record.WordRecord`). The records are a stream that is read
several times and is never held in memory: first to choose the depth, then to compute sums, then to
compare single words with the sums. Only the table of words grows with their number. All numbers are
in units of the residual stream.

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
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.errors import InputError
from probe.experiments.beside_nouns import MEASURES
from probe.experiments.design import readout
from probe.experiments.measure import count_left_out
from probe.experiments.record import WordRecord
from probe.patching.sets import HeadIndex
from probe.provenance import hash_of
from probe.stats import across_words, resampling
from probe.stats.across_words import Spread, Sums
from probe.stats.axes import first_as_good
from probe.stats.limits import GATE, LEVEL
from probe.stats.resampling import DRAWS, Array
from probe.tidy import rounded
from probe.verdicts import PARTS, comparison

if TYPE_CHECKING:
    import xarray as xr

FEWEST_WORDS = 2  # measured words: one word is not a sample
BATCH = 16  # words in memory at once
# Fraction of the words' mean gap. The ratio n_w / g_w over a smaller gap is mostly noise.
CLEAR = 0.5
TOP_HEADS = 8  # heads that are tested on the word that was left out
MOST_KINDS = 5  # distinct values of a numeric column that names kinds. More of them are amounts.
SET_ENDS = (0.025, 0.975)  # quantiles over the random sets of a word
RANK_COLUMNS = ("rank", "rank_low", "rank_high")
SENSES = ("sense_a", "sense_b")
GAPS = ("gap", "general_gap", "squared_gap", "general_squared_gap")
EFFECTS = ("effect", "effect_low", "effect_high", "p", "between_words", "words_positive")
HEADS = (
    *("layer", "head", *EFFECTS, "attention_cue", *PARTS),
    *("words_clear", "comparison", *RANK_COLUMNS, "read_depth"),
)
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

Records = Callable[[], Iterator[WordRecord]]


@dataclass(frozen=True, eq=False)
class WordNumbers:
    """The numbers of one word over all its pairs of senses, at every depth.

    The fields of nouns are about unambiguous nouns in the word's place and None without such nouns.
    """

    separation: Array  # held-out AUROC. `depth`
    gap: Array  # mean over the pairs of sentences. `depth`
    # See `probe.stats.axes.squared_gap`. With nouns, on the sentences of the nouns. `depth`
    squared_gap: Array
    untrained_gap: Array  # in a model with random weights. `depth`
    # Each head's effect minus that of same-sense donors: along the word's axis, and as a length.
    net: Array  # `measure layer head depth`
    noun_gap: Array | None  # mean over the nouns' pairs of sentences. `depth`
    noun_squared_gap: Array | None  # `depth`
    # Mean over the nouns' swaps, in the measures of `probe.experiments.nouns`; NaN for heads that
    # were not compared with nouns. Also None if no head was compared. `measure layer head depth`
    noun_net: Array | None


def numbers_of(record: WordRecord) -> WordNumbers:
    """The numbers of a measured word, means over its pairs of senses."""
    depths = record.layers + 1
    pairs = [each.sizes["sentence_pair"] for each in record.senses]
    gaps = [each.raw_gaps.values[:, :depths] for each in record.senses]
    nets = [each.moved_by_depth.values for each in record.of_pairs("heads") if each is not None]
    squared = np.mean([each.squared_gap.values for each in record.senses], axis=0)
    nouns = [each for each in record.of_pairs("nouns") if each is not None and each.sizes["swap"]]
    noun_gap = noun_squared = noun_net = None
    if nouns:
        noun_gap = np.concatenate([each.pair_gap.values for each in nouns]).mean(0)
        noun_squared = np.mean([each.squared_gap.values.mean(0) for each in nouns], axis=0)
        squared = np.mean([each.word_squared_gap.values.mean(0) for each in nouns], axis=0)
    if nouns and nouns[0].sizes["part"]:
        swaps = [each.sizes["swap"] for each in nouns]
        noun_net = np.full((len(MEASURES), record.layers, record.heads, depths), np.nan)
        layers, heads = nouns[0].part_layer.values, nouns[0].part_head.values
        by_depth = np.average([each.moved_by_depth.values for each in nouns], axis=0, weights=swaps)
        noun_net[:, layers, heads] = np.moveaxis(by_depth, -1, 0)
    return WordNumbers(
        separation=np.mean([each.separation.values for each in record.senses], axis=0),
        gap=np.concatenate(gaps).mean(0),
        squared_gap=squared,
        untrained_gap=_untrained_gap(record, pairs, depths),
        net=np.moveaxis(np.average(nets, axis=0, weights=pairs), -1, 0),
        noun_gap=noun_gap,
        noun_squared_gap=noun_squared,
        noun_net=noun_net,
    )


def _untrained_gap(record: WordRecord, pairs: Sequence[int], depths: int) -> Array:
    """The gap in a model with random weights, mean over the pairs of sentences. `depth`

    0 if it was not measured.
    """
    gaps = [each.untrained_gap.values for each in record.senses if "untrained_gap" in each]
    if len(gaps) < len(pairs):
        return np.zeros(depths)
    return np.asarray(np.average(gaps, axis=0, weights=pairs))


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
    words = _Words(seed, draws)
    for record in records():
        words.add(record)
    if words.measured < FEWEST_WORDS:
        raise InputError(_too_few(words))
    reading = _AtDepth.at_depth(first_as_good(*words.separation), words.shape)
    sums = _sum_up(records, reading, seed=seed, draws=draws)
    table = words.table(reading.depth)
    gap_p = _gap_p(words.gaps, "gap")
    model = _model(words, table, reading, gap_p=gap_p)
    # An untrained model with a gap indicates a confound. Unambiguous nouns in the same sentences
    # would have it too, so words that change further than these nouns are not confounded.
    confounded = model["untrained_p"] < GATE and not model["ambiguity_p"] < LEVEL
    is_ranked = gap_p < GATE and bool((sums.mean_gap > 0).all()) and not confounded
    frames = {
        "survey_model": pd.DataFrame([model | {"ranked": is_ranked}]),
        "survey_heads": _heads(sums, reading) if is_ranked else _unranked(reading),
        "survey_words": table,
        "survey_depths": _depths(words),
        "survey_numbers": _numbers(table, seed=seed, draws=draws),
    }
    orders: dict[str, tuple[HeadIndex, ...]] = {}
    if is_ranked:
        between, orders = _word_by_word(records, sums, reading)
        frames["survey_heads"] = frames["survey_heads"].assign(**between)
    attention = words.attention_cue.ravel()
    frames["survey_heads"] = frames["survey_heads"].assign(attention_cue=attention)
    frames["survey_heads"] = frames["survey_heads"][list(HEADS)].astype(
        dict.fromkeys(RANK_COLUMNS, "Int64")
    )
    return Summary(reading.depth, {name: rounded(frame) for name, frame in frames.items()}, orders)


def _too_few(words: "_Words") -> str:
    reasons = sorted({str(row["reason"]) for row in words.rows if row["reason"]})
    because = f" ({'; '.join(reasons)})" if reasons else ""
    return (
        f"Cannot summarise the survey: {words.measured} of its {len(words.rows)} words were "
        f"measured{because}. Words are its sample, so it needs at least {FEWEST_WORDS}. Add words "
        "with two sentences of each of two senses, or study a single word with `probe report`."
    )


# --- the words, before a depth is chosen ----------------------------------------------------------


class _Words:
    """The words before a depth is chosen: a row for each, their mean separation, and the sums of
    their gaps at every depth.

    `gaps` has the parts `gap` and `untrained`, over all words, and `squared`, `noun_squared` and
    `excess`, over the words that were compared with nouns. Each is `depth`. `count` is 1 for every
    word and `compared` is 1 for every word that was compared.

    excess = squared - noun_squared
    """

    def __init__(self, seed: int, draws: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.measured = 0
        self.shape = (0, 0)  # layers, heads
        self.gaps = Sums(seed=seed, draws=draws)
        self._separation = Spread()
        # Attention to the cue, of each word whose cues are marked. `layer head`
        self._attention: list[Array] = []

    @property
    def separation(self) -> tuple[Array, Array]:
        """The mean held-out AUROC of the words, and its standard error. `depth, depth`"""
        return self._separation.mean, self._separation.error

    @property
    def attention_cue(self) -> Array:
        """The mean attention of each head from the word to its cue. `layer head`

        NaN if no word has marked cues.
        """
        if not self._attention:
            return np.full(self.shape, np.nan)
        return np.asarray(np.mean(self._attention, axis=0))

    def add(self, record: WordRecord) -> None:
        """Adds a word, which may not have been measured."""
        in_place = [each for each in record.of_pairs("nouns") if each is not None]
        nouns = dict.fromkeys(name for each in in_place for name in each.noun.values.tolist())
        used = 0
        if record.senses:
            used = int((record.measured["senses"]["sentences"].part != "neither").sum())
        line = {
            "word": record.word,
            "kind": record.kind,
            "pairs": sum(each.sizes["sentence_pair"] for each in record.senses),
            "senses": len({each[end].item() for each in record.senses for end in SENSES}),
            "sentences": used,
            "nouns": ", ".join(nouns),
            "left_out": sum(count_left_out(record).values()),
            "reason": record.reason,
        }
        gaps = dict.fromkeys(GAPS, np.full(record.layers + 1, np.nan))
        self.rows.append({"gaps": gaps, "further": dict(record.columns)} | line)
        if record.reason:
            return
        self.measured += 1
        self.shape = (record.layers, record.heads)
        numbers = numbers_of(record)
        self._separation.add(numbers.separation[None])
        of_heads = [each for each in record.of_pairs("heads") if each is not None]
        to_cue = np.mean([each.attention_cue.values for each in of_heads], axis=0)
        if not np.isnan(to_cue).any():
            self._attention.append(to_cue)
        gaps["gap"] = numbers.gap
        gaps["squared_gap"] = numbers.squared_gap
        if numbers.noun_gap is not None and numbers.noun_squared_gap is not None:
            gaps["general_gap"] = numbers.noun_gap
            gaps["general_squared_gap"] = numbers.noun_squared_gap
        squared = numbers.squared_gap
        noun_squared = gaps["general_squared_gap"]
        compared = bool(np.isfinite(squared - noun_squared).all())
        if not compared:  # a word without nouns adds 0 to both sums
            squared = np.zeros_like(numbers.gap)
            noun_squared = squared
        self.gaps.add(
            [hash_of(record.word)],
            gap=numbers.gap[None],
            untrained=numbers.untrained_gap[None],
            squared=squared[None],
            noun_squared=noun_squared[None],
            excess=(squared - noun_squared)[None],
            compared=np.array([float(compared)]),
            count=np.ones(1),
        )

    def table(self, depth: int) -> pd.DataFrame:
        """The frame `survey_words`: a row for each word, sorted, with its gaps at a depth.

        The last columns are the further columns of the input file.
        """
        rows = []
        further = []
        for row in sorted(map(dict, self.rows), key=lambda row: str(row["word"])):
            gaps = {name: float(by_depth[depth]) for name, by_depth in row.pop("gaps").items()}
            columns = row.pop("further")
            rows.append(row | gaps)
            further.append({name: each for name, each in columns.items() if name not in WORDS})
        table = pd.DataFrame(rows)
        clear = table["gap"] >= CLEAR * table["gap"].mean()
        table = table.assign(depth=depth, clear=clear)[list(WORDS)]
        return pd.concat([table, _as_numbers(pd.DataFrame(further, index=table.index))], axis=1)


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


def _gap_p(gaps: Sums, name: str) -> float:
    """p that the mean gap of the words is not above 0 at any depth.

    name: the part of `gaps`

    The test flips the signs of words, with max-T over the depths. A gap that is 0 in every word has
    p = 1.
    """
    if not np.any(gaps.total[name]):
        return 1.0
    return float(across_words.above_zero(gaps.total[name], gaps.flipped[name]).p.min())


def _model(
    words: _Words, table: pd.DataFrame, reading: "_AtDepth", *, gap_p: float
) -> dict[str, Any]:
    """The row of the frame `survey_model`: numbers of words, the depth, the words' mean gap with
    its test, and how far unambiguous nouns in their place change.
    """
    measured = table[table["reason"] == ""]
    gaps = words.gaps
    depth = [reading.depth]
    compared = int(gaps.total["compared"][0])
    mean_gap = across_words.ratio(
        gaps.bootstrapped("gap")[:, depth], gaps.bootstrapped("count"), words.measured
    )
    line = {
        "words": words.measured,
        "words_left_out": len(table) - words.measured,
        "pairs": int(measured["pairs"].sum()),
        "sentences": int(measured["sentences"].sum()),
        "layers": reading.layers,
        "heads": reading.heads * reading.layers,
        "depth": reading.depth,
        "separation": float(words.separation[0][reading.depth]),
        "gap": float(mean_gap.value[0]),
        "gap_low": float(mean_gap.low[0]),
        "gap_high": float(mean_gap.high[0]),
        "gap_p": gap_p,
        "untrained_p": _gap_p(gaps, "untrained"),
        "ranked": False,
        "words_without_gap": int((measured["gap"] <= 0).sum()),
        "words_clear": int(measured["clear"].sum()),
        "words_compared": compared,
    }
    missing = dict.fromkeys(("general_share", "general_low", "general_high", "ambiguity_p"), np.nan)
    line |= missing
    if compared:
        share = across_words.ratio(
            gaps.bootstrapped("noun_squared")[:, depth],
            gaps.bootstrapped("squared")[:, depth],
            compared,
        )
        further = across_words.above_zero(
            gaps.total["excess"][depth], gaps.flipped["excess"][:, depth]
        )
        values = (share.value[0], share.low[0], share.high[0], further.p[0])
        line |= dict(zip(missing, map(float, values), strict=True))
    return line


def _depths(words: _Words) -> pd.DataFrame:
    """The frame `survey_depths`: mean separation and mean gaps at every depth, of the words and of
    unambiguous nouns in their place.
    """
    mean, error = words.separation
    total = words.gaps.total
    compared = float(total["compared"][0]) or np.nan
    return pd.DataFrame(
        {
            "depth": np.arange(len(mean)),
            "separation": mean,
            "separation_error": error,
            "gap": total["gap"] / words.measured,
            "squared_gap": total["squared"] / compared,
            "general_squared_gap": total["noun_squared"] / compared,
        }
    )


# --- heads ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AtDepth:
    """Where heads are read: heads before the read-out layer at `depth`, all others at the last
    depth.

    The heads of all layers are one axis, `head`.
    """

    depth: int  # the read-out depth
    layers: int
    heads: int  # of one layer
    column: NDArray[np.intp]  # the entry of `columns` at which each head is read. `head`

    @classmethod
    def at_depth(cls, depth: int, shape: tuple[int, int]) -> "_AtDepth":
        layers, heads = shape
        at = np.array(readout(layers, depth, 1, predicts=False).at)
        return cls(depth, layers, heads, np.repeat(at != depth, heads).astype(np.intp))

    @property
    def columns(self) -> list[int]:
        """The two depths: for heads before the read-out layer, and for all others."""
        return [self.depth, self.layers]

    def net(self, net: Array) -> Array:
        """The effect of each head at the depth where it is read.

        `... layer head depth -> ... head`
        """
        both = net[..., self.columns].reshape(*net.shape[:-3], -1, 2)
        return np.asarray(both[..., np.arange(len(self.column)), self.column])

    def gap(self, gap: Array) -> Array:
        """The gaps at the two depths. `... depth -> ... 2`"""
        return np.asarray(gap[..., self.columns])

    def names(self) -> dict[str, Array]:
        """The columns `layer`, `head` and `read_depth` of every head."""
        layer, head = np.divmod(np.arange(len(self.column)), self.heads)
        read_depth = np.array(self.columns)[self.column]
        return {"layer": layer, "head": head, "read_depth": read_depth}


@dataclass(frozen=True, eq=False)
class _SummedHeads:
    """Sums over the words, for ratios of net effects over gaps.

    The part `numerator` is the net effect of each `head`. The part `denominator` is the gap at the
    two depths of `_AtDepth.columns`, `2`.
    """

    all_words: Sums
    # The words that were compared with nouns. The parts `nouns` and `nouns_gap` are the nouns' net
    # effects and gaps, and the parts `more_` and a measure how much further the word moves. `head`
    compared: Sums

    @property
    def mean_gap(self) -> Array:
        """The mean gap of all words at the two depths. `2`"""
        return self.all_words.total["denominator"] / self.all_words.words


Batch = list[tuple[str, WordNumbers]]


def _measured(records: Records, size: int = BATCH) -> Iterator[Batch]:
    """The measured words with their numbers, in batches of `size`."""
    batch: Batch = []
    for record in records():
        if record.reason:
            continue
        batch.append((record.word, numbers_of(record)))
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _sum_up(records: Records, reading: _AtDepth, *, seed: int, draws: int) -> _SummedHeads:
    """The sums of effects and gaps over all words, and over the words compared with nouns."""
    all_words = Sums(seed=seed, draws=draws)
    compared = Sums(seed=seed, draws=draws)
    for batch in _measured(records):
        all_words.add([hash_of(word) for word, _ in batch], **_parts(batch, reading))
        for word, each in batch:
            if each.noun_net is not None and each.noun_gap is not None:
                nouns = reading.net(each.noun_net)  # measure head
                # The word's own axis is the word's axis.
                more = reading.net(each.net)[[0, 0, 1]] - nouns
                compared.add(
                    [hash_of(word)],
                    denominator=reading.gap(each.gap)[None],
                    nouns=nouns[:1],
                    nouns_gap=reading.gap(each.noun_gap)[None],
                    **{f"more_{name}": more[[row]] for row, name in enumerate(MEASURES)},
                )
    return _SummedHeads(all_words, compared)


def _parts(batch: Batch, reading: _AtDepth) -> dict[str, Array]:
    """The net effects and the gaps of each word. `word head`, `word 2`"""
    return {
        "numerator": np.stack([reading.net(each.net[0]) for _, each in batch]),
        "denominator": np.stack([reading.gap(each.gap) for _, each in batch]),
    }


def _unranked(reading: _AtDepth) -> pd.DataFrame:
    """The frame `survey_heads` without effects, for words without a significant gap."""
    frame = pd.DataFrame(reading.names()).assign(comparison="", words_clear=0)
    missing = [name for name in HEADS if name not in frame]
    return frame.assign(**dict.fromkeys(missing, np.nan))


def _heads(sums: _SummedHeads, reading: _AtDepth) -> pd.DataFrame:
    """The effect of every head over the words, and on nouns in their place, with intervals and
    tests.
    """
    words = sums.all_words
    denominator = words.bootstrapped("denominator")[:, reading.column]
    effect = across_words.ratio(words.bootstrapped("numerator"), denominator, words.words)
    low, high = resampling.rank_intervals(effect.draws[:, None])
    columns = reading.names() | {
        "effect": effect.value,
        "effect_low": effect.low,
        "effect_high": effect.high,
        "p": across_words.not_zero(words.total["numerator"], words.flipped["numerator"]).p,
        "rank": resampling.ranks(effect.value),
        "rank_low": low[0],
        "rank_high": high[0],
    }
    columns |= _noun_columns(sums.compared, reading)
    frame = pd.DataFrame(columns)
    rows = frame.assign(net=frame["effect"]).to_dict("records")
    frame["comparison"] = [comparison({str(key): row[key] for key in row}) for row in rows]
    return frame


def _noun_columns(compared: Sums, reading: _AtDepth) -> dict[str, Array]:
    """The columns PARTS of every head, over the words that were compared with nouns.

    NaN if fewer than FEWEST_WORDS words were compared.
    """
    parts = {name: np.full(len(reading.column), np.nan) for name in PARTS}
    if compared.words < FEWEST_WORDS:
        return parts
    # A head counts only if it was compared with nouns for every word.
    is_compared = np.isfinite(compared.total["nouns"])
    column = reading.column[is_compared]
    if not len(column):
        return parts
    gap = compared.bootstrapped("denominator")[:, column]
    own_gap = compared.bootstrapped("nouns_gap")[:, column]

    def ratio(part: str, denominator: Array) -> across_words.Interval:
        numerator = compared.bootstrapped(part)[:, is_compared]
        return across_words.ratio(numerator, denominator, compared.words)

    more = ratio("more_own_axis", gap)
    # In the unit of the gap at the depth at which a head is read, so that heads can be compared.
    p = across_words.not_zero(
        compared.total["more_own_axis"][is_compared] / gap[0],
        compared.flipped["more_own_axis"][:, is_compared] / gap[0],
    ).p
    # The surprisal of nouns is not compared in a survey: a word has too few nouns.
    values = {
        "nouns": ratio("nouns", gap).value,
        "more": more.value,
        "more_low": more.low,
        "more_high": more.high,
        "p_more": p,
        "more_word_axis": ratio("more_word_axis", gap).value,
        "more_length": ratio("more_length", gap).value,
        "nouns_share": ratio("nouns", own_gap).value,
    }
    for name, of_compared in values.items():
        parts[name][is_compared] = of_compared
    return parts


def _word_by_word(
    records: Records, sums: _SummedHeads, reading: _AtDepth
) -> tuple[dict[str, Array], dict[str, tuple[HeadIndex, ...]]]:
    """How the effects differ between the words with a clear gap, and the top heads of all other
    words for each such word.

    The effects are columns of `survey_heads`. The top heads are in layers before the read-out.
    """
    total = sums.all_words.total
    clear_from = CLEAR * sums.mean_gap
    spreads = [Spread(), Spread()]
    orders = {}
    for batch in _measured(records):
        parts = _parts(batch, reading)
        for column, spread in enumerate(spreads):
            clear = parts["denominator"][:, column] >= clear_from[column]
            spread.add(parts["numerator"][clear] / parts["denominator"][clear, column, None])
        for (word, _), net, gap in zip(
            batch, parts["numerator"], parts["denominator"], strict=True
        ):
            if gap[0] >= clear_from[0]:
                # The effect over all words but this one: (Σ n - n_w) / (Σ g - g_w)
                gaps = (total["denominator"] - gap)[reading.column]
                orders[word] = _top_heads((total["numerator"] - net) / gaps, reading)

    def of_heads(values: Sequence[Any]) -> Array:
        """The value for each head from the spread at the depth where the head is read. `head`"""
        shape = (len(reading.column),)
        both = np.stack([np.broadcast_to(value, shape) for value in values])
        return np.asarray(both[reading.column, np.arange(len(reading.column))])

    columns = {
        "between_words": of_heads([spread.deviation for spread in spreads]),
        "words_positive": of_heads([spread.positive for spread in spreads]).astype(int),
        "words_clear": of_heads([spread.count for spread in spreads]),
    }
    return columns, orders


def _top_heads(effects: Array, reading: _AtDepth) -> tuple[HeadIndex, ...]:
    """The heads with the largest effects in the layers before the read-out, at most TOP_HEADS."""
    before = effects[: reading.depth * reading.heads]
    top = resampling.order(before)[:TOP_HEADS]
    return tuple((int(index) // reading.heads, int(index) % reading.heads) for index in top)


def word_heads(records: Records, depth: int) -> Iterator[pd.DataFrame]:
    """The frame `survey_word_heads` in parts of a few words: every head for every measured word.

    net: n_w, in units of the residual stream
    gap: of the word at the depth where the head is read, in the same units
    effect: net as a fraction of the word's gap; missing if the gap is not above 0
    nouns: the net effect on nouns as a fraction of the word's gap, likewise
    nouns_share: the same as a fraction of their own gap; missing if it is not above 0
    """
    for batch in _measured(records):
        frames = []
        for word, numbers in batch:
            reading = _AtDepth.at_depth(depth, numbers.net.shape[1:3])
            net = reading.net(numbers.net[0])
            gap = reading.gap(numbers.gap)[reading.column]
            columns: dict[str, Any] = {"word": word, **reading.names(), "net": net}
            columns |= {"gap": gap, "effect": _fraction(net, gap)}
            columns |= dict.fromkeys(("nouns", "nouns_share"), np.full_like(net, np.nan))
            if numbers.noun_net is not None and numbers.noun_gap is not None:
                of_nouns = reading.net(numbers.noun_net[0])
                noun_gap = reading.gap(numbers.noun_gap)[reading.column]
                columns["nouns"] = _fraction(of_nouns, gap)
                columns["nouns_share"] = _fraction(of_nouns, noun_gap)
            frames.append(pd.DataFrame(columns)[list(WORD_HEADS)])
        yield rounded(pd.concat(frames, ignore_index=True))


def _fraction(effects: Array, gaps: Array) -> Array:
    """Effects as fractions of gaps; NaN where a gap is not above 0."""
    return np.divide(effects, gaps, out=np.full_like(effects, np.nan), where=gaps > 0)


# --- numbers of words -----------------------------------------------------------------------------


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
            rank = across_words.rank_correlation(gap, number, seed=seed, draws=draws)
            rows.append((name, rank.words, rank.rho, rank.low, rank.high))
    return pd.DataFrame(rows, columns=list(NUMBERS))


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
    rows: list[tuple[Any, ...]] = []
    sums = Sums(seed=seed, draws=draws)
    for sets in sorted(measured, key=lambda sets: str(sets.word.item())):
        word = sets.word.item()
        whole = sets.whole.item() if sets.whole.item() > 0 else np.nan  # no gap, no share
        random = sets.random.values
        low, high = np.quantile(random, SET_ENDS, axis=1) / whole
        parts = {"own": sets.own.values, "others": sets.others.values, "random": random.mean(1)}
        of_word, of_others, mean = (values / whole for values in parts.values())
        of_size = zip(sets["size"].values, of_word, of_others, low, mean, high, strict=True)
        rows += [(word, *values) for values in of_size]
        sums.add(
            [hash_of(word)],
            whole=np.array([sets.whole.item()]),
            **{name: values[None] for name, values in parts.items()},
        )
    per_word = pd.DataFrame(rows, columns=list(SETS))
    frames = {"survey_sets": per_word, "survey_carry_over": _carry_over(measured, sums)}
    return {name: rounded(frame) for name, frame in frames.items()}


def _carry_over(measured: "Sequence[xr.Dataset]", sums: Sums) -> pd.DataFrame:
    """The frame `survey_carry_over`: a row for each number of heads."""
    columns: dict[str, Any] = {"k": [], "words": []}
    names = [
        f"{name}{end}" for name in ("own", "others", "random") for end in ("", "_low", "_high")
    ]
    if not measured:
        return pd.DataFrame(columns=[*columns, *names])
    columns = {"k": measured[0]["size"].values, "words": sums.words}
    for name in ("own", "others", "random"):
        share = across_words.ratio(sums.bootstrapped(name), sums.bootstrapped("whole"), sums.words)
        columns |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}
    return pd.DataFrame(columns)
