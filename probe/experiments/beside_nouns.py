"""The comparison with unambiguous nouns in the word's place: is it ambiguity?

    share     g²(noun) / g²(word), on the same sentences
    p         (1 + nouns whose g² is at least the word's) / (1 + nouns). This is the ambiguity gate.
              g² is summed over the word's pairs of senses.
    near      the same p among nouns that are about as expected as the word: their surprisal differs
              by at most NEAR nats. Computed if there are enough of them. An ambiguous word is often
              the expected word.
    nouns     how far the swap of a head or MLP moves a noun, as a fraction of the word's gap, mean
              over swaps; along the noun's own axis
    more      how far it moves the word minus `nouns`, in the same unit, paired by cue word
    share     how far it moves a noun as a fraction of the noun's own gap, over nouns with a gap

A word has one gate. If each of six pairs of senses had one, an unambiguous noun would pass at least
one of them by chance three times in ten. Only nouns that were compared for every pair of senses
count.

`more` asks whether the part does more for the word, and `share` whether it supplies the same part
of what happens at a noun. Most nouns hardly move with these contexts, and a part that moves them
little can still supply all of it. A noun without a gap has an axis of noise, along which every
movement looks small. Therefore `more` is measured along the word's axis and as a length, too, and
counts only if its sign is the same there.

A head may also respond to how expected a word is, and an ambiguous word is often the expected one.
Then the nouns' movement follows their surprisal, and `more` has to exceed that trend: with s the
difference in surprisal between noun and word, the movement is fitted as a exp(-b s), and a is
expected of a noun with the word's surprisal. The trend counts only if it explains most of the
variance between nouns. Where it does not, nouns that are equally expected move differently, and
an extrapolation over several nats would be noise.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from probe.experiments.design import Pairs, crossed_factors, interval_over_senses, share_units
from probe.stats import resampling
from probe.stats.limits import FEWEST_COMPARED, FEWEST_NOUNS, FEWEST_SENTENCES, LEVEL
from probe.stats.resampling import Array
from probe.verdicts import COMPARED, WRITES

if TYPE_CHECKING:
    import xarray as xr

# How far a noun moves: along its own axis, along the word's axis, and the length of the change.
MEASURES = ("own_axis", "word_axis", "length")
# Of the variance between nouns: the least that their surprisal has to explain.
EXPLAINED = 0.5
# b, per nat: how fast the movement of nouns may fall with their surprisal.
DECAYS = np.linspace(0, 1, 41)
# Fraction of the word's gap. A noun whose gap is smaller counts as a noun without a gap.
SMALLEST_GAP = 0.1
NEAR = 2.0  # largest difference in surprisal, in nats, of a noun that is about as expected
TOO_FEW_NOUNS = "nouns that can take its place"


@dataclass(frozen=True, eq=False)
class PartComparison:
    """How far heads, MLPs or edges move the word and unambiguous nouns in its place, as fractions
    of the word's gap.

    A part of an array is `layer head`, with NaN for heads that were not compared, or `layer` of an
    MLP.
    """

    net: Array  # of the word, in the pairs of sentences that were compared. `part`
    nouns: Array  # of nouns, along each noun's axis. `part`
    more: Array  # net - nouns, in each measure. `measure part`
    # net minus what is expected of a noun with the word's surprisal; NaN if it is unknown. `part`
    at_surprisal: Array
    share: Array  # of nouns, as a fraction of their own gap; NaN if too few have one. `part`
    differences: Array  # net - nouns of every swap. `swap part`
    pairs: Pairs  # the pair of sentences of each swap
    names: tuple[str, ...]  # the noun of each swap
    p: Array  # of more = 0, two-sided, corrected for all parts. `part`
    permutations: int  # how many times signs are flipped

    def scattered(self, where: tuple[Array, ...], shape: tuple[int, ...]) -> "PartComparison":
        """The same numbers in arrays of all heads or MLPs, with NaN where nothing was compared.

        where: the indices of the compared heads or MLPs
        shape: of the new arrays
        """

        def spread_out(values: Array) -> Array:
            whole: Array = np.full((*values.shape[:-1], *shape), np.nan)
            index: Any = (..., *where)
            whole[index] = values
            return whole

        return replace(
            self,
            net=spread_out(self.net),
            nouns=spread_out(self.nouns),
            more=spread_out(self.more),
            at_surprisal=spread_out(self.at_surprisal),
            share=spread_out(self.share),
            differences=spread_out(self.differences),
            p=spread_out(self.p),
        )


# The columns of the ambiguity gate, without nouns in the word's place.
NO_GATE: Mapping[str, Any] = {
    "general_share": np.nan,
    "largest_share": np.nan,
    "ambiguity_p": np.nan,
    "nouns_compared": 0,
    "surprisal": np.nan,
    "surprisal_nouns": np.nan,
    "nouns_near": 0,
    "ambiguity_p_near": np.nan,
    "sentences_not_compared": 0,
    "not_compared": "",
}


def ambiguity_gates(
    results: "Sequence[xr.Dataset | None]", depth: int
) -> list[dict[str, Any] | None]:
    """The ambiguity gate of a word, for each of its pairs of senses: the columns of the table
    `words` about it, and the numbers of the compared nouns (`compared`). None for a pair of senses
    in which no nouns took the word's place.

    results: what is measured of nouns in each pair of senses
    depth: the read-out layer

    The nouns and p are the same for all pairs of senses; p is NaN if there is a reason why the gate
    cannot be computed.
    """
    usable = [each for each in results if each is not None and not _why_no_gate(each)]
    common = [
        noun
        for noun in (_names(usable[0]) if usable else ())
        if all(noun in _names(each) for each in usable)
    ]
    p = p_near = float("nan")
    too_few = ""
    near = [noun for noun in common if all(_is_near(each, noun) for each in usable)]
    if usable and len(common) < FEWEST_NOUNS:
        too_few = (
            f"{TOO_FEW_NOUNS}: {len(common)} for all its senses, and {FEWEST_NOUNS} are needed"
        )
    elif usable:
        p = _gate_p(usable, common, depth)
        if len(near) >= FEWEST_NOUNS:
            p_near = _gate_p(usable, near, depth)
    gates: list[dict[str, Any] | None] = []
    for each in results:
        if each is None:
            gates.append(None)
            continue
        reason = _why_no_gate(each) or too_few
        numbers = [_names(each).index(noun) for noun in (_names(each) if reason else common)]
        shares = shares_of(each)[numbers, depth]
        gates.append(
            {
                "compared": np.array(numbers, dtype=np.intp),
                "general_share": float(shares.mean()) if len(shares) else float("nan"),
                "largest_share": float(shares.max()) if len(shares) else float("nan"),
                "ambiguity_p": float("nan") if reason else p,
                "nouns_compared": len(numbers),
                "surprisal": _mean(each.word_surprisal.values),
                "surprisal_nouns": _mean(each.noun_surprisal.values[numbers]),
                "nouns_near": len(near),
                "ambiguity_p_near": float("nan") if reason else p_near,
                "sentences_not_compared": each.sentences_left_out.item(),
                "not_compared": reason,
            }
        )
    return gates


def _names(result: "xr.Dataset") -> list[str]:
    """The nouns in the word's place."""
    names: list[str] = result.noun.values.tolist()
    return names


def shares_of(result: "xr.Dataset") -> Array:
    """g²(noun) / g²(word) in the same sentences; NaN where the word has no gap. `noun depth`"""
    of_word = result.word_squared_gap.values
    missing = np.full_like(of_word, np.nan)
    return np.divide(result.squared_gap.values, of_word, out=missing, where=of_word > 0)


def _mean(numbers: Array) -> float:
    """The mean of the finite numbers. NaN if there are none."""
    return float(np.nanmean(numbers)) if np.isfinite(numbers).any() else float("nan")


def _is_near(result: "xr.Dataset", noun: str) -> bool:
    """Whether a noun is about as expected as the word in the same sentences."""
    of_both = result.sel(noun=noun)
    return bool(abs(of_both.noun_surprisal - of_both.word_surprisal) <= NEAR)


def corrected_over_pairs(
    compared: "Sequence[PartComparison | None]",
) -> "list[PartComparison | None]":
    """The comparisons of some parts in each pair of senses, with p corrected over these (Holm)."""
    corrected = list(compared)
    measured = [(number, each) for number, each in enumerate(compared) if each is not None]
    if len(measured) > 1:
        adjusted = holm(np.stack([each.p for _, each in measured]))
        for (number, each), p in zip(measured, adjusted, strict=True):
            corrected[number] = replace(each, p=p)
    return corrected


def holm(p: Array) -> Array:
    """p corrected for several tests of each part, by Holm's step-down method. NaN stays NaN.

    Shape: test part... -> test part...

    Example:
        >>> import numpy as np
        >>> from probe.experiments.beside_nouns import holm
        >>> holm(np.array([0.03, 0.01, 0.5])).tolist()
        [0.06, 0.03, 0.5]
    """
    order = np.argsort(p, axis=0)
    factors = len(p) - np.arange(len(p)).reshape(-1, *[1] * (p.ndim - 1))
    steps = np.maximum.accumulate(factors * np.take_along_axis(p, order, axis=0), axis=0)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(steps, 1), axis=0)
    return adjusted


def _why_no_gate(result: "xr.Dataset") -> str:
    """Why the ambiguity gate cannot be computed. "" if it can."""
    comparable = result.comparable.item()
    if comparable < FEWEST_SENTENCES:
        return (
            f"it is a noun in its dictionary form in {comparable} of the paired sentences, "
            f"and {FEWEST_SENTENCES} are needed"
        )
    if result.sizes["noun"] < FEWEST_NOUNS:
        return f"{TOO_FEW_NOUNS}: {result.sizes['noun']}, and {FEWEST_NOUNS} are needed"
    return ""


def _gate_p(results: "Sequence[xr.Dataset]", nouns: Sequence[str], depth: int) -> float:
    """p of the ambiguity gate.

    p = (1 + nouns whose g² is at least the word's) / (1 + nouns)

    g² is summed over the pairs of senses.
    """
    of_noun = np.zeros(len(nouns))
    of_word = np.zeros(len(nouns))
    for each in results:
        rows = [_names(each).index(noun) for noun in nouns]
        of_noun += each.squared_gap.values[rows, depth]
        of_word += each.word_squared_gap.values[rows, depth]
    return float((1 + np.sum(of_noun >= of_word)) / (1 + len(nouns)))


# --- effects of heads and MLPs --------------------------------------------------------------------


def has_gap(raw_gap: Array, noun_gap: Array, at: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each noun has a gap at all of these depths. `noun`

    raw_gap: of the word, in each pair of sentences. `sentence_pair stage`
    noun_gap: of each noun. `noun depth`
    at: depths, which may repeat
    """
    depths = np.unique(at)
    smallest_gap = SMALLEST_GAP * raw_gap.mean(0)[depths]
    with_gap: NDArray[np.bool_] = (noun_gap[:, depths] >= smallest_gap).all(1)
    return with_gap


def compare_with_nouns(
    pairs: Pairs,
    raw_gap: Array,
    nouns: "xr.Dataset",
    *,
    word: Array,
    noun: Array,
    at: NDArray[np.intp],
    pair_of: NDArray[np.intp],
    noun_of: NDArray[np.intp],
    permutations: int,
) -> PartComparison | None:
    """The comparison of how far parts move the word and the nouns in its place.

    A part is a head, an MLP or an edge. Everything is in units of the residual stream.

    pairs: the pairs of sentences of two senses
    raw_gap: the gap of each. `sentence_pair stage`
    nouns: what is measured of nouns in their place
    word: along the word's axis, and as a length. `swap part 2`
    noun: in the MEASURES of nouns. `swap part 3`
    at: the depth at which each part is read. `part`
    pair_of, noun_of: the row numbers of each swap's pair of sentences and noun. `swap`
    permutations: how many times signs are flipped

    Either array may have the first measure alone. None if fewer than FEWEST_COMPARED nouns were
    swapped, or if all swaps belong to one pair of cue words.
    """
    pairs = pairs.take(pair_of.tolist())
    if len(set(noun_of.tolist())) < FEWEST_COMPARED or len(set(pairs.units)) < 2:
        return None
    gap = raw_gap.mean(0)[at][:, None]  # part 1
    if noun.shape[-1] == len(MEASURES):
        word = word[..., [0, 0, 1]]  # the word's own axis is the word's axis
    with_gap = has_gap(raw_gap, nouns.noun_gap.values, at)[noun_of]
    share = np.full(len(at), np.nan)
    if len(set(noun_of[with_gap].tolist())) >= FEWEST_COMPARED:
        own_gap = nouns.noun_gap.values[noun_of[with_gap]][:, at]
        share = (noun[with_gap][..., 0] / own_gap).mean(0)
    surprisal = (nouns.noun_surprisal.values - nouns.word_surprisal.values)[noun_of]
    of_word = word / gap
    of_noun = noun / gap
    expected = expected_movement(of_noun[..., 0], noun_of, surprisal)
    return compare_pairwise(
        of_word,
        of_noun,
        pairs,
        [_names(nouns)[number] for number in noun_of],
        at_surprisal=of_word[..., 0].mean(0) - expected,
        share=share,
        permutations=permutations,
    )


def expected_movement(moved: Array, noun_of: NDArray[np.intp], surprisal: Array) -> Array:
    """How far a noun with the word's surprisal would move. `part`

    Their mean, unless nouns that are more expected move significantly further (Spearman, one-sided,
    p < LEVEL) and the fitted trend explains at least EXPLAINED of the variance between nouns. NaN
    if the surprisal of fewer than FEWEST_NOUNS nouns is known.

    moved: how far each noun moves. `swap part`
    noun_of: the noun of each swap
    surprisal: of the noun minus that of the word, in nats. `swap`
    """
    nouns = np.unique(noun_of[np.isfinite(surprisal)])
    if len(nouns) < FEWEST_NOUNS:
        return np.full(moved.shape[1], np.nan)
    is_noun = noun_of == nouns[:, None]
    of_noun = np.array([moved[here].mean(0) for here in is_noun])  # noun part
    more_surprising = np.array([surprisal[here].mean() for here in is_noun])
    expected = moved.mean(0)
    for part, by_noun in enumerate(of_noun.T):
        if not np.ptp(by_noun) or not np.ptp(more_surprising):
            continue  # a correlation with equal numbers is not defined
        trend = spearmanr(more_surprising, np.abs(by_noun), alternative="less")
        if trend.pvalue < LEVEL:
            at_word, explained = _fit_decay(more_surprising, by_noun)
            if explained >= EXPLAINED:
                expected[part] = at_word
    return expected


def _fit_decay(more_surprising: Array, moved: Array) -> tuple[float, float]:
    """a of the least squares fit of moved = a exp(-b more_surprising) with b in DECAYS, and the
    fraction of the variance that the fit explains.
    """
    curves = np.exp(-DECAYS[:, None] * more_surprising)  # decay noun
    a = (curves * moved).sum(1) / (curves**2).sum(1)
    errors = ((moved - a[:, None] * curves) ** 2).sum(1)
    best = errors.argmin()
    return float(a[best]), float(1 - errors[best] / ((moved - moved.mean()) ** 2).sum())


def compare_pairwise(
    word: Array,
    noun: Array,
    pairs: Pairs,
    names: Sequence[str],
    *,
    at_surprisal: Array,
    share: Array,
    permutations: int,
) -> PartComparison:
    """The comparison of the word with nouns, paired by swap.

    word, noun: how far each moves, as fractions of the word's gap. `swap part measure`
    pairs: the pair of sentences of each swap
    names: the noun of each swap
    at_surprisal, share: as in `PartComparison`
    permutations: how many times signs are flipped, by pair of cue words

    If a part does the same for the word and for a noun, the two can be exchanged, so the difference
    of a pair of cue words is as likely as its negative.
    """
    difference = word - noun
    tested = difference[..., 0]
    return PartComparison(
        net=word[..., 0].mean(0),
        nouns=noun[..., 0].mean(0),
        more=np.moveaxis(difference.mean(0), -1, 0),
        at_surprisal=at_surprisal,
        share=share,
        differences=tested,
        pairs=pairs,
        names=tuple(names),
        p=_two_sided(tested, pairs.units, seed=pairs.seed, draws=permutations),
        permutations=permutations,
    )


def _two_sided(differences: Array, units: Sequence[Hashable], *, seed: int, draws: int) -> Array:
    """Two-sided p of a mean difference of 0, corrected for all parts. `swap part -> part`"""
    flip = partial(resampling.flip_signs, units=units, seed=seed, draws=draws)
    return np.asarray(np.minimum(1, 2 * np.minimum(flip(differences).p, flip(-differences).p)))


def joined_parts(parts: Sequence[PartComparison]) -> Mapping[str, Array]:
    """The columns PARTS of a word: means over its pairs of senses, with 95 % intervals. `part` each

    parts: the comparison for each pair of senses

    The bootstrap resamples frames, cue words and nouns, each with the same count in every pair of
    senses. p is that of the mean. Signs are flipped for a pair of cue words in all pairs of senses
    at once. If their dependence is not known (`number_across_senses`), p is the smallest corrected
    p of the pairs of senses.
    """
    more = np.mean([part.more for part in parts], axis=0)  # measure part
    word_units = [part.pairs.word_units for part in parts]
    low, high = interval_over_senses(_draws_of_mean(parts), more[0], word_units)
    columns = {
        "nouns": np.mean([part.nouns for part in parts], axis=0),
        "more": more[0],
        "more_low": low,
        "more_high": high,
        "p_more": _p_of_mean(parts),
        "more_word_axis": np.full(low.shape, np.nan),
        "more_length": np.full(low.shape, np.nan),
        "more_at_surprisal": np.mean([part.at_surprisal for part in parts], axis=0),
        "nouns_share": np.mean([part.share for part in parts], axis=0),
    }
    if len(more) == len(MEASURES):
        columns |= {"more_word_axis": more[1], "more_length": more[2]}
    return columns


def joined_writes(parts: Sequence[PartComparison]) -> Mapping[str, Array]:
    """The columns WRITES of a word: `joined_parts` of the heads' own writes. `part` each"""
    joined = joined_parts(parts)
    return {name: joined[of_part] for name, of_part in zip(WRITES, COMPARED, strict=True)}


def _p_of_mean(parts: Sequence[PartComparison]) -> Array:
    """p of the mean over pairs of senses, two-sided, corrected for all parts. `part`"""
    if len(parts) == 1:
        return parts[0].p
    if not share_units([part.pairs.word_units for part in parts]):
        return np.asarray(np.min([part.p for part in parts], axis=0))
    # Scaled so that the mean over all swaps is the mean over the pairs of senses.
    swaps = sum(len(part.names) for part in parts)
    differences = np.concatenate(
        [part.differences * swaps / (len(parts) * len(part.names)) for part in parts]
    )
    units = [unit for part in parts for unit in part.pairs.word_units]
    compared = ~np.isnan(differences).any(0)
    p = np.full(compared.shape, np.nan)
    p[compared] = _two_sided(
        differences[:, compared], units, seed=parts[0].pairs.seed, draws=parts[0].permutations
    )
    return p


def _draws_of_mean(parts: Sequence[PartComparison]) -> Array:
    """The mean of `more` over pairs of senses in every bootstrap draw. `draw part...`"""
    factors = crossed_factors([part.pairs for part in parts])
    factors.append([noun for part in parts for noun in part.names])
    weights = resampling.bootstrap_weights(factors, seed=parts[0].pairs.seed)  # draw swap
    of_parts = resampling.split_weights(weights, [len(part.names) for part in parts])
    means = []
    for part, of_part in zip(parts, of_parts, strict=True):
        sums = np.tensordot(of_part, part.differences, axes=1)
        means.append(sums / of_part.sum(1).reshape(-1, *[1] * (sums.ndim - 1)))
    return np.asarray(np.mean(means, axis=0))
