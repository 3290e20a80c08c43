"""Many words to a statement about a model: words are the sample.

Every word comes as a record (`probe.experiments.record.WordRecord`), in a stream that is read
several times and never held: first the depth is chosen, then sums are made, then single words are
compared with them. The table of words alone grows with their number. All numbers are in units of
the residual stream.

    depth      one for all words: the first at which their mean separation is within one standard
               error of the best; heads of layers behind it are read at the last depth
    effect     E(h) = Σ n_w(h) / Σ g_w; words are bootstrapped, and flipped for p (max-T over heads)
    between    how n_w / g_w differs over the words whose gap is clear, at least CLEAR of the mean
    general    the same ratio for one-meaning nouns in the word's place, in their own gaps
    specific   effect less general, over the words that were compared, paired by word
    sets       heads ordered on all other words, tried on the word that was left out

Words whose gap is not above 0 stay in and are counted. Where words in the mean have no gap at any
depth (words flipped, max-T over depths, p >= GATE) no effect is given: a ratio over a gap that is
not there is noise over noise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probe.errors import InputError
from probe.experiments.design import readings
from probe.experiments.measure import count_left_out
from probe.experiments.record import SensePair, WordRecord
from probe.experiments.sets import CarriedSets
from probe.experiments.swaps import rank_intervals
from probe.inference.nouns import PARTS
from probe.inference.verdicts import comparison
from probe.inference.within import RANKS
from probe.patching.sets import HeadIndex
from probe.provenance import hash_of
from probe.stats import across_words, resampling
from probe.stats.across_words import Spread, Sums
from probe.stats.axes import first_as_good
from probe.stats.limits import GATE, LEVEL
from probe.stats.resampling import DRAWS, Array
from probe.tidy import rounded

FEWEST_WORDS = 2  # that are measured: with one there is nothing to be sure across
BATCH = 16  # words that are held at once
# Of the mean gap over words: an effect in a smaller gap of a word's own is mostly noise.
CLEAR = 0.5
LEADING = 8  # heads of an order that are tried on the word left out
MOST_KINDS = 5  # values of a column that names kinds of words; with more it is an amount
SET_ENDS = (0.025, 0.975)  # quantiles of the random sets of a word
GAPS = ("gap", "general_gap", "squared_gap", "general_squared_gap")
EFFECTS = ("effect", "effect_low", "effect_high", "p", "between_words", "words_positive")
HEADS = (
    *("layer", "head", *EFFECTS, "attention_cue", *PARTS),
    *("words_clear", "comparison", *RANKS, "read_depth"),
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
WORD_HEADS = ("word", "layer", "head", "effect", "gap", "general", "net")
SETS = ("word", "k", "own", "others", "random_low", "random_mean", "random_high")

Records = Callable[[], Iterator[WordRecord]]


@dataclass(frozen=True, eq=False)
class WordNumbers:
    """One word as a unit, over all its pairs of senses, at every depth.

    separation: held-out AUROC. gap: mean over the pairs of sentences. squared_gap: see
        `probe.stats.axes.squared_gap`. `depth`
    untrained_gap: the gap in a model of random weights. `depth`
    net: what each head moves beyond same-sense donors, mean over the pairs. `layer head depth`
    noun_gap, noun_squared_gap, noun_net: the same of unambiguous nouns in the word's place, mean
        over their swaps, NaN in heads that were not compared; None where there were none,
        and noun_net also where no head was compared. squared_gap is then in the same sentences.
    """

    separation: Array
    gap: Array
    squared_gap: Array
    untrained_gap: Array
    net: Array
    noun_gap: Array | None
    noun_squared_gap: Array | None
    noun_net: Array | None


def numbers_of(record: WordRecord) -> WordNumbers:
    """The numbers of a word that was measured."""
    depths = record.layers + 1
    pairs = [len(pair.pairs) for pair in record.pairs]
    gaps = [pair.raw_gap[:, :depths] for pair in record.pairs]
    nets = [pair.moved for pair in record.pairs if pair.moved is not None]
    squared = np.mean([pair.squared_gap for pair in record.pairs], axis=0)
    nouns = [each for each in record.of_pairs("nouns") if each is not None and len(each.pair_of)]
    noun_heads = nouns[0].heads if nouns else ()
    noun_gap = noun_squared = noun_net = None
    if nouns:
        noun_gap = np.concatenate([each.pair_gap for each in nouns]).mean(0)
        noun_squared = np.mean([each.squared_gap.mean(0) for each in nouns], axis=0)
        squared = np.mean([each.word_squared_gap.mean(0) for each in nouns], axis=0)
    if noun_heads:
        swaps = [len(each.pair_of) for each in nouns]
        noun_net = np.full((record.layers, record.heads, depths), np.nan)
        layers, heads = np.array(noun_heads).T
        by_depth = np.average([each.by_depth for each in nouns], axis=0, weights=swaps)
        noun_net[layers, heads] = by_depth
    return WordNumbers(
        separation=np.mean([pair.by_depth for pair in record.pairs], axis=0),
        gap=np.concatenate(gaps).mean(0),
        squared_gap=squared,
        untrained_gap=_untrained_gap(record.pairs, pairs, depths),
        net=np.average(nets, axis=0, weights=pairs),
        noun_gap=noun_gap,
        noun_squared_gap=noun_squared,
        noun_net=noun_net,
    )


def _untrained_gap(of_senses: Sequence[SensePair], pairs: Sequence[int], depths: int) -> Array:
    """The gap in a model of random weights, mean over the pairs of sentences; 0 where it was not
    asked. `depth`"""
    gaps = [pair.untrained_gap for pair in of_senses if pair.untrained_gap is not None]
    if len(gaps) < len(of_senses):
        return np.zeros(depths)
    return np.asarray(np.average(gaps, axis=0, weights=pairs))


@dataclass(frozen=True, eq=False)
class Summary:
    """What a survey says of a model: its `frames` by name, the `depth` at which words are read, and
    for every word with a clear gap the leading heads of all other words, `left_out_orders`."""

    depth: int
    frames: dict[str, pd.DataFrame]
    left_out_orders: Mapping[str, tuple[HeadIndex, ...]]


def summarise(records: Records, *, seed: int, draws: int = DRAWS) -> Summary:
    """The tables of a survey from the records of its words.

    `records()` gives all of them, in the same order each time it is called · `draws`: of the
    bootstrap and of the sign flips. Raises InputError where fewer than
    two words were measured.
    """
    words = _Words(seed, draws)
    for record in records():
        words.add(record)
    if words.measured < FEWEST_WORDS:
        raise InputError(_too_few(words))
    reading = _Reading.at_depth(first_as_good(*words.separation), words.shape)
    sums = _sum_up(records, reading, seed=seed, draws=draws)
    table = words.table(reading.depth)
    gap_p = _gap_p(words.gaps, "gap")
    model = _model(words, table, reading, gap_p=gap_p)
    # Nouns stand in the same sentences: a word that changes further is not confounded.
    confounded = model["untrained_p"] < GATE and not model["ambiguity_p"] < LEVEL
    shown = gap_p < GATE and bool((sums.mean_gap > 0).all()) and not confounded
    frames = {
        "survey_model": pd.DataFrame([model | {"ranked": shown}]),
        "survey_heads": _heads(sums, reading) if shown else _unranked(reading),
        "survey_words": table,
        "survey_depths": _depths(words),
        "survey_numbers": _numbers(table, seed=seed, draws=draws),
    }
    orders: dict[str, tuple[HeadIndex, ...]] = {}
    if shown:
        between, orders = _word_by_word(records, sums, reading)
        frames["survey_heads"] = frames["survey_heads"].assign(**between)
    attention = words.attention_cue.ravel()
    frames["survey_heads"] = frames["survey_heads"].assign(attention_cue=attention)
    frames["survey_heads"] = frames["survey_heads"][list(HEADS)].astype(
        dict.fromkeys(RANKS, "Int64")
    )
    return Summary(reading.depth, {name: rounded(one) for name, one in frames.items()}, orders)


def _too_few(words: "_Words") -> str:
    reasons = sorted({str(row["reason"]) for row in words.rows if row["reason"]})
    because = f" ({'; '.join(reasons)})" if reasons else ""
    return (
        f"Summing up the survey: {words.measured} of its {len(words.rows)} words were measured"
        f"{because}, expected at least {FEWEST_WORDS}, because words are its sample; add words "
        "with two sentences of each of two senses, or study a single word with `probe report`."
    )


# --- the words, before a depth is chosen ----------------------------------------------------------


class _Words:
    """What is known of the words before a depth is chosen: a line of each, their mean separation,
    and the sums of their gaps at every depth.

    The parts of `gaps`: `gap`, and over the words that were compared with nouns (`compared` counts
    them) `squared`, `noun_squared` and `excess`, the one less the other. `depth` each.
    """

    def __init__(self, seed: int, draws: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.measured = 0
        self.shape = (0, 0)  # layers, heads
        self.gaps = Sums(seed=seed, draws=draws)
        self._separation = Spread()
        # Over words whose cues are known. `layer head`
        self._attention: list[Array] = []

    @property
    def separation(self) -> tuple[Array, Array]:
        """The mean held-out separation of the words, and its standard error. `depth, depth`"""
        return self._separation.mean, self._separation.error

    @property
    def attention_cue(self) -> Array:
        """The mean attention of each head from the word to its cue; NaN where no cue is known.
        `layer head`"""
        if not self._attention:
            return np.full(self.shape, np.nan)
        return np.asarray(np.mean(self._attention, axis=0))

    def add(self, record: WordRecord) -> None:
        """Add a word, measured or not."""
        used = {row for pair in record.pairs for row in pair.split.rows}
        in_place = [each for each in record.of_pairs("nouns") if each is not None]
        nouns = dict.fromkeys(name for each in in_place for name in each.nouns)
        line = {
            "word": record.word,
            "kind": record.kind,
            "pairs": sum(len(pair.pairs) for pair in record.pairs),
            "senses": len({sense for pair in record.pairs for sense in pair.senses}),
            "sentences": len(used),
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
        to_cue = np.mean([pair.attention["cue"] for pair in record.pairs], axis=0)
        if not np.isnan(to_cue).any():
            self._attention.append(to_cue)
        gaps["gap"] = numbers.gap
        gaps["squared_gap"] = numbers.squared_gap
        if numbers.noun_gap is not None and numbers.noun_squared_gap is not None:
            gaps["general_gap"] = numbers.noun_gap
            gaps["general_squared_gap"] = numbers.noun_squared_gap
        own = numbers.squared_gap
        other = gaps["general_squared_gap"]
        compared = bool(np.isfinite(own - other).all())
        if not compared:  # it adds nothing to what is compared
            own = np.zeros_like(numbers.gap)
            other = own
        self.gaps.add(
            [hash_of(record.word)],
            gap=numbers.gap[None],
            untrained=numbers.untrained_gap[None],
            squared=own[None],
            noun_squared=other[None],
            excess=(own - other)[None],
            compared=np.array([float(compared)]),
            one=np.ones(1),
        )

    def table(self, depth: int) -> pd.DataFrame:
        """A line for each word, sorted by word, with its gaps at a depth, and behind it what the
        file says of it."""
        lines = []
        further = []
        for row in sorted(map(dict, self.rows), key=lambda row: str(row["word"])):
            gaps = {name: float(by_depth[depth]) for name, by_depth in row.pop("gaps").items()}
            columns = row.pop("further")
            lines.append(row | gaps)
            further.append({name: each for name, each in columns.items() if name not in WORDS})
        table = pd.DataFrame(lines)
        clear = table["gap"] >= CLEAR * table["gap"].mean()
        table = table.assign(depth=depth, clear=clear)[list(WORDS)]
        return pd.concat([table, _with_numbers(pd.DataFrame(further, index=table.index))], axis=1)


def _with_numbers(columns: pd.DataFrame) -> pd.DataFrame:
    """The columns, those of text in which every value is a number as numbers: a CSV knows no
    difference."""
    made = {}
    for name, column in columns.items():
        text = column.replace("", None)
        numbers = pd.to_numeric(text, errors="coerce")
        is_amount = column.dtype != bool and (numbers.notna() == text.notna()).all()
        made[name] = numbers if is_amount and numbers.notna().any() else column
    return pd.DataFrame(made, index=columns.index)


def _gap_p(gaps: Sums, name: str) -> float:
    """p that words have a gap in the mean at some depth: words flipped, max-T over the depths. A
    gap that is 0 in every word has p = 1."""
    if not np.any(gaps.total[name]):
        return 1.0
    return float(across_words.above_zero(gaps.total[name], gaps.flipped[name]).p.min())


def _model(
    words: _Words, table: pd.DataFrame, reading: "_Reading", *, gap_p: float
) -> dict[str, Any]:
    """How many words, where they were read, whether they have a gap, and how far one-meaning nouns
    in their place change."""
    measured = table[table["reason"] == ""]
    gaps = words.gaps
    depth = [reading.depth]
    compared = int(gaps.total["compared"][0])
    mean_gap = across_words.ratio(
        gaps.bootstrapped("gap")[:, depth], gaps.bootstrapped("one"), words.measured
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
    """Mean separation and gaps of the words at every depth, beside nouns in their place."""
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
class _Reading:
    """Where heads are read: `depth` for those of layers before it, the last depth for the others.

    `columns`: these two depths · `column: head`, which of the two each head is read at, the heads
    of all layers in one axis.
    """

    depth: int
    layers: int
    heads: int
    column: NDArray[np.intp]

    @classmethod
    def at_depth(cls, depth: int, shape: tuple[int, int]) -> "_Reading":
        layers, heads = shape
        at = np.array(readings(layers, depth, 1, predicts=False).at)
        return cls(depth, layers, heads, np.repeat(at != depth, heads).astype(np.intp))

    @property
    def columns(self) -> list[int]:
        """The two depths: of heads before L*, and of those behind it."""
        return [self.depth, self.layers]

    def net(self, net: Array) -> Array:
        """The effects where each head is read. `... layer head depth -> ... head`"""
        both = net[..., self.columns].reshape(*net.shape[:-3], -1, 2)
        return np.asarray(both[..., np.arange(len(self.column)), self.column])

    def gap(self, gap: Array) -> Array:
        """The gaps at the two depths. `... depth -> ... 2`"""
        return np.asarray(gap[..., self.columns])

    def names(self) -> dict[str, Array]:
        """The layer, the head and the depth of every head, as columns of a table."""
        layer, head = np.divmod(np.arange(len(self.column)), self.heads)
        read_depth = np.array(self.columns)[self.column]
        return {"layer": layer, "head": head, "read_depth": read_depth}


@dataclass(frozen=True, eq=False)
class _SummedHeads:
    """Sums over the words: `own`, all of them, parts `top` (net effects, `head`) and `bottom` (gaps
    at the two depths); `compared`, those with nouns in their place, with `other_top`,
    `other_bottom` and `one`."""

    own: Sums
    compared: Sums

    @property
    def mean_gap(self) -> Array:
        """Over the words, at the two depths. `2`"""
        return self.own.total["bottom"] / self.own.words


Batch = list[tuple[str, WordNumbers]]


def _measured(records: Records, size: int = BATCH) -> Iterator[Batch]:
    """The measured words with their numbers, a few at a time."""
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


def _sum_up(records: Records, reading: _Reading, *, seed: int, draws: int) -> _SummedHeads:
    """The sums of all words' effects and gaps, and of those that were compared with nouns."""
    own = Sums(seed=seed, draws=draws)
    compared = Sums(seed=seed, draws=draws)
    for batch in _measured(records):
        own.add([hash_of(word) for word, _ in batch], **_parts(batch, reading))
        with_nouns = [(word, each) for word, each in batch if each.noun_net is not None]
        if with_nouns:
            nets = [
                reading.net(each.noun_net) for _, each in with_nouns if each.noun_net is not None
            ]
            gaps = [
                reading.gap(each.noun_gap) for _, each in with_nouns if each.noun_gap is not None
            ]
            parts = _parts(with_nouns, reading) | {
                "other_top": np.stack(nets),
                "other_bottom": np.stack(gaps),
                "one": np.ones(len(with_nouns)),
            }
            compared.add([hash_of(word) for word, _ in with_nouns], **parts)
    return _SummedHeads(own, compared)


def _parts(batch: Batch, reading: _Reading) -> dict[str, Array]:
    return {
        "top": np.stack([reading.net(each.net) for _, each in batch]),
        "bottom": np.stack([reading.gap(each.gap) for _, each in batch]),
    }


def _unranked(reading: _Reading) -> pd.DataFrame:
    """Every head without an effect: words were not shown to have a gap."""
    frame = pd.DataFrame(reading.names()).assign(comparison="", words_clear=0)
    missing = [name for name in HEADS if name not in frame]
    return frame.assign(**dict.fromkeys(missing, np.nan))


def _heads(sums: _SummedHeads, reading: _Reading) -> pd.DataFrame:
    """Effect, general and specific part of every head over the words, with intervals and tests."""
    own = sums.own
    bottom = own.bootstrapped("bottom")[:, reading.column]
    effect = across_words.ratio(own.bootstrapped("top"), bottom, own.words)
    low, high = rank_intervals(effect.draws[:, None])
    columns = reading.names() | {
        "effect": effect.value,
        "effect_low": effect.low,
        "effect_high": effect.high,
        "p": across_words.not_zero(own.total["top"], own.flipped["top"]).p,
        "rank": resampling.ranks(effect.value),
        "rank_low": low[0],
        "rank_high": high[0],
    }
    columns |= _beside_nouns(sums.compared, reading)
    frame = pd.DataFrame(columns)
    rows = frame.assign(net=frame["effect"]).to_dict("records")
    frame["comparison"] = [comparison({str(key): row[key] for key in row}) for row in rows]
    return frame


def _beside_nouns(compared: Sums, reading: _Reading) -> dict[str, Array]:
    """The general and the specific part of every head over the words that were compared; missing
    where there are none, or where the nouns have no gap."""
    parts = {name: np.full(len(reading.column), np.nan) for name in PARTS}
    gaps = compared.total.get("other_bottom", np.zeros(2))
    if compared.words < FEWEST_WORDS or not (gaps > 0).all():
        return parts
    # A head counts only if nouns were compared in it in every word.
    known = np.isfinite(compared.total["other_top"])
    if not known.any():
        return parts
    column = reading.column[known]
    ratios = []
    for name in ("", "other_"):
        bottom = compared.bootstrapped(f"{name}bottom")[:, column]
        top = compared.bootstrapped(f"{name}top")[:, known]
        ratio = across_words.ratio(top, bottom, compared.words)
        ratios.append(np.vstack([ratio.value, ratio.draws]))
    specific = across_words.interval(ratios[0] - ratios[1], compared.words)
    test = across_words.not_zero(*across_words.difference_of_ratios(compared, known, column))
    values = (ratios[1][0], specific.value, specific.low, specific.high, test.p)
    for name, of_known in zip(PARTS, values, strict=True):
        parts[name][known] = of_known
    return parts


def _word_by_word(
    records: Records, sums: _SummedHeads, reading: _Reading
) -> tuple[dict[str, Array], dict[str, tuple[HeadIndex, ...]]]:
    """How the effects differ between words with a clear gap, as columns of the heads; and for each
    such word the leading heads of all other words, among those read at its depth."""
    total = sums.own.total
    clear_from = CLEAR * sums.mean_gap
    spreads = [Spread(), Spread()]
    orders = {}
    for batch in _measured(records):
        parts = _parts(batch, reading)
        for column, spread in enumerate(spreads):
            clear = parts["bottom"][:, column] >= clear_from[column]
            spread.add(parts["top"][clear] / parts["bottom"][clear, column, None])
        for (word, _), net, gap in zip(batch, parts["top"], parts["bottom"], strict=True):
            if gap[0] >= clear_from[0]:
                others = (total["top"] - net) / (total["bottom"] - gap)[reading.column]
                orders[word] = _leading(others, reading)

    def of_heads(values: Sequence[Any]) -> Array:
        """Of the two spreads the one at whose depth each head is read."""
        shape = (len(reading.column),)
        both = np.stack([np.broadcast_to(value, shape) for value in values])
        return np.asarray(both[reading.column, np.arange(len(reading.column))])

    columns = {
        "between_words": of_heads([spread.deviation for spread in spreads]),
        "words_positive": of_heads([spread.positive for spread in spreads]).astype(int),
        "words_clear": of_heads([spread.count for spread in spreads]),
    }
    return columns, orders


def _leading(effects: Array, reading: _Reading) -> tuple[HeadIndex, ...]:
    """The first heads by these effects, of the layers before the read-out."""
    before = effects[: reading.depth * reading.heads]
    first = resampling.order(before)[:LEADING]
    return tuple((int(index) // reading.heads, int(index) % reading.heads) for index in first)


def word_heads(records: Records, depth: int) -> Iterator[pd.DataFrame]:
    """Every head for every measured word, a frame for a few words at a time: `net`, n_w, in units
    of the residual stream, `gap` of the word where the head is read, `effect` and `general` as
    parts of the gaps of the word and of its nouns, missing where these are not above 0."""
    for batch in _measured(records):
        frames = []
        for word, numbers in batch:
            reading = _Reading.at_depth(depth, numbers.net.shape[:2])
            net = reading.net(numbers.net)
            gap = reading.gap(numbers.gap)[reading.column]
            effect = np.divide(net, gap, out=np.full_like(net, np.nan), where=gap > 0)
            general = np.full_like(net, np.nan)
            if numbers.noun_net is not None and numbers.noun_gap is not None:
                of_nouns = reading.net(numbers.noun_net)
                their_gap = reading.gap(numbers.noun_gap)[reading.column]
                np.divide(of_nouns, their_gap, out=general, where=their_gap > 0)
            columns: dict[str, Any] = {"word": word, **reading.names(), "net": net}
            columns |= {"gap": gap, "effect": effect, "general": general}
            frames.append(pd.DataFrame(columns)[list(WORD_HEADS)])
        yield rounded(pd.concat(frames, ignore_index=True))


# --- numbers of words -----------------------------------------------------------------------------


def _numbers(table: pd.DataFrame, *, seed: int, draws: int) -> pd.DataFrame:
    """Spearman's correlation of the words' gaps with every further column that holds amounts."""
    measured = table[table["reason"] == ""]
    gap = measured["gap"].to_numpy(dtype=float)
    rows = []
    for name in measured.columns.difference(list(WORDS), sort=False):
        values = measured[name]
        if values.dtype.kind in "iuf" and values.nunique() > MOST_KINDS:
            number = values.to_numpy(dtype=float)
            found = across_words.rank_correlation(gap, number, seed=seed, draws=draws)
            rows.append((name, found.words, found.rho, found.low, found.high))
    return pd.DataFrame(rows, columns=list(NUMBERS))


# --- sets of heads on the word left out -----------------------------------------------------------


def sets_frames(
    measured: Sequence[CarriedSets], *, seed: int, draws: int = DRAWS
) -> dict[str, pd.DataFrame]:
    """How much sets of heads keep of each word that was left out (`survey_sets`), and of all such
    words, with intervals over words (`survey_carry_over`).

    F = Σ [M(S) - M(none)] / Σ [M(all) - M(none)]: of heads in the order of all other words, in the
    word's own order, and of random sets with as many heads in every layer (mean over the sets).
    """
    rows: list[tuple[Any, ...]] = []
    sums = Sums(seed=seed, draws=draws)
    for record in sorted(measured, key=lambda record: str(record.word)):
        whole = record.whole if record.whole > 0 else np.nan  # no gap, no share of it
        low, high = np.quantile(record.random, SET_ENDS, axis=1) / whole
        columns = (record.own, record.left_out, record.random.mean(1))
        own, others, random = (np.asarray(values) / whole for values in columns)
        of_size = zip(record.sizes, own, others, low, random, high, strict=True)
        rows += [(record.word, *values) for values in of_size]
        parts = dict(zip(("own", "others", "random"), map(np.asarray, columns), strict=True))
        sums.add(
            [hash_of(record.word)],
            whole=np.array([record.whole]),
            **{name: one[None] for name, one in parts.items()},
        )
    per_word = pd.DataFrame(rows, columns=list(SETS))
    frames = {"survey_sets": per_word, "survey_carry_over": _carry_over(measured, sums)}
    return {name: rounded(frame) for name, frame in frames.items()}


def _carry_over(measured: Sequence[CarriedSets], sums: Sums) -> pd.DataFrame:
    columns: dict[str, Any] = {"k": [], "words": []}
    names = [
        f"{name}{end}" for name in ("own", "others", "random") for end in ("", "_low", "_high")
    ]
    if not measured:
        return pd.DataFrame(columns=[*columns, *names])
    columns = {"k": list(measured[0].sizes), "words": sums.words}
    for name in ("own", "others", "random"):
        kept = across_words.ratio(sums.bootstrapped(name), sums.bootstrapped("whole"), sums.words)
        columns |= {name: kept.value, f"{name}_low": kept.low, f"{name}_high": kept.high}
    return pd.DataFrame(columns)
