"""What heads and MLPs do for one-meaning nouns in a word's place, beside what they do for the word.

    general   mean over nouns of E_noun, in the noun's own gap, along the noun's own held-out axis
    specific  E_word - general, paired by cue word

A head that does the same for a noun whose gap is smaller is general; the difference in size is the
gap's, and stands at the word (`experiments.nouns`). The pairs of sentences are shared out among the
nouns whose own gap is there, over as many nouns as that allows. Of heads those are compared that
move the word by at least SMALLEST of its gap: in one that does not there is nothing to explain. A
noun's effects are divided by its own gap, but never by less than FLOOR of the word's: a ratio over
a gap that is not there would be noise over noise.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from probe.experiments.design import UNKNOWN_FRAME, Pairs, Readings
from probe.experiments.nouns import (
    Candidates,
    NounComparison,
    NounInPlace,
    PartComparison,
    at_rows,
    pairs_inside,
    rows_for,
)
from probe.experiments.swaps import gaps, numerators
from probe.model.tokens import TargetText
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import Rows
from probe.patching.mlps import swap_mlps
from probe.patching.sets import HeadIndex, mask_of
from probe.patching.tokens import ReplacedStates, replace_tokens
from probe.stats import axes, resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array
from probe.text.splits import CrossFit, restrict

# The columns of an effect beside that for one-meaning nouns.
PARTS = ("general", "specific", "specific_low", "specific_high", "p_specific")
HEAD_NOUNS = 4  # that heads and MLPs are compared on; at least three, if their gap is there
FLOOR = 0.1  # of the word's gap: what a noun's effects are divided by at least


@dataclass(frozen=True, eq=False)
class WordInPlace:
    """What a comparison of heads and MLPs starts from: the sentences of a word for one pair of
    senses, the pairs that were swapped and where heads are read.

    `texts`: by row · `net: pair layer head`, what each head does for the word beyond same-sense
    donors, in the word's gap.
    """

    texts: Sequence[TargetText]
    split: CrossFit
    axes: HeldOutAxes
    pairs: Pairs
    reading: Readings
    net: Array


def compare_parts(
    weights: Weights,
    word: WordInPlace,
    among: Candidates,
    compared: NounComparison,
    heads: Sequence[HeadIndex],
) -> NounComparison:
    """The comparison with what some heads and every MLP do for nouns whose own gap is there.

    Each noun gets its share of the pairs, so that all together take as many swaps as the word does.
    """
    nouns = _with_the_largest_gaps(compared)
    if not nouns:
        return compared
    rows = sorted(set.intersection(*(set(rows_for(among, noun)) for noun in nouns)))
    usable = pairs_inside(word.pairs, set(rows))
    units = {word.pairs.units[index] for index in usable}
    if len(units) < 2 or len(usable) < len(nouns):
        return compared
    # Pairs of one cue word stand together, so that every noun meets as many cue words as can be.
    usable.sort(key=lambda index: word.pairs.units[index])
    states = _states_at_rows(
        weights, word.texts, rows, [among.ids, *(among.nouns[noun] for noun in nouns)]
    )
    every_pair = word.pairs.take(usable)
    at = np.asarray(word.reading.at)
    layers = np.arange(len(at))
    own = states[0]
    word_mlps = _net_of_mlps(weights, word.texts, own.hidden, word.axes, every_pair)
    word_gap = gaps(word.axes, own.resid, every_pair).mean(0)[at]
    word_mlps = word_mlps[:, layers, at - 1] / word_gap
    least = FLOOR * _in_residual_units(own.resid, word.axes, every_pair)
    part = restrict(
        word.split, [number for number, row in enumerate(word.split.rows) if row in set(rows)]
    )
    layer_of = np.array([layer for layer, _ in heads], dtype=int)
    swap = partial(_swap_some, weights, heads)
    in_place: list[NounInPlace] = []
    of_heads: list[Array] = []
    of_mlps: list[Array] = []
    for number, (noun, its) in enumerate(zip(nouns, states[1:], strict=True)):
        own_axes = axes.hold_out(its.resid, part, word.axes.senses)
        gap = np.maximum(_in_residual_units(its.resid, own_axes, every_pair), least)
        mine = NounInPlace(
            noun=noun,
            ids=among.nouns[noun],
            axes=own_axes,
            scale=_ratio(own_axes.gap[:, : len(gap)].mean(0).numpy(), gap),
            pairs=tuple(usable[number :: len(nouns)]),
        )
        in_place.append(mine)
        texts = mine.texts(word.texts)
        pairs = word.pairs.take(mine.pairs)
        scale = mine.scale[at]
        if heads:
            net = net_numerators(swap, texts, its.z, own_axes, pairs)  # pair chosen stage
            read = at[layer_of]
            of_heads.append(net[:, np.arange(len(heads)), read - 1] * scale[layer_of])
        mlps = _net_of_mlps(weights, texts, its.hidden, own_axes, pairs)
        of_mlps.append(mlps[:, layers, at - 1] * scale)
    order = [index for noun in in_place for index in noun.pairs]
    noun_of = [noun.noun for noun in in_place for _ in noun.pairs]
    pairs = word.pairs.take(order)
    every_head = None
    if heads:
        where = tuple(np.array(heads).T)
        word_net = word.net[order][:, *where]
        some = compare_pairwise(word_net, np.concatenate(of_heads), pairs, noun_of)
        every_head = some.scattered(where, word.net.shape[1:])
    word_mlps = word_mlps[[usable.index(index) for index in order]]
    return replace(
        compared,
        in_place=tuple(in_place),
        heads=every_head,
        mlps=compare_pairwise(word_mlps, np.concatenate(of_mlps), pairs, noun_of),
    )


def _states_at_rows(
    weights: Weights,
    texts: Sequence[TargetText],
    rows: Sequence[int],
    variants: Sequence[Sequence[int]],
) -> list[ReplacedStates]:
    """The states of some rows with each of some tokens in the word's place, at the rows' own
    numbers."""
    states = replace_tokens(weights, [texts[row] for row in rows], variants)
    return [
        ReplacedStates(*(at_rows(part[:, number], rows, len(texts)) for part in states))
        for number in range(len(variants))
    ]


def _with_the_largest_gaps(compared: NounComparison) -> list[str]:
    """At most HEAD_NOUNS nouns, of those that can stand in the most sentences: the ones whose own
    gap is largest beside the word's.

    What a head does in a noun's own gap is surest there, and these nouns are the most like the
    word, which makes it the harder for a head to do more for the word. Nouns of the other article
    would leave too few sentences that all can stand in.
    """
    most = max(compared.sentences, default=0)
    shares = np.nan_to_num(compared.shares[:, compared.depth], nan=-np.inf)
    by_share = [int(index) for index in resampling.order(shares)]
    widest = [index for index in by_share if compared.sentences[index] == most]
    return [compared.nouns[index] for index in widest[:HEAD_NOUNS]]


def _swap_some(
    weights: Weights,
    heads: Sequence[HeadIndex],
    rows: Rows,
    donor_z: Tensor,
    directions: Tensor,
) -> Tensor:
    """`swap_heads` of some heads alone. `-> row head stage`"""
    alone = np.stack([mask_of([head], (donor_z.shape[1], donor_z.shape[2])) for head in heads])
    return swap_sets(weights, rows, donor_z, torch.from_numpy(~alone), directions)


def net_numerators(
    swap: Callable[[Rows, Tensor, Tensor], Tensor],
    texts: Sequence[TargetText],
    donors: Tensor,
    held_out: HeldOutAxes,
    pairs: Pairs,
) -> Array:
    """What swaps do beyond same-sense donors, in fractions of the fitted gap. `-> pair part...
    stage`"""
    denoise, noise, same_sense = numerators(swap, texts, donors, held_out, pairs)
    return (denoise + noise) / 2 - same_sense


def _net_of_mlps(
    weights: Weights,
    texts: Sequence[TargetText],
    hidden: Tensor,
    held_out: HeldOutAxes,
    pairs: Pairs,
) -> Array:
    return net_numerators(partial(swap_mlps, weights), texts, hidden, held_out, pairs)


def _ratio(fitted: Array, gap: Array) -> Array:
    """NaN where there is no gap at all, before the first block."""
    return np.divide(fitted, gap, out=np.full_like(gap, np.nan), where=gap != 0)


def _in_residual_units(resid: Tensor, held_out: HeldOutAxes, pairs: Pairs) -> Array:
    """Mean G of the pairs in units of the residual stream. `row depth d_model -> depth`"""
    fitted: Array = held_out.gap[:, : resid.shape[1]].mean(0).numpy()
    return gaps(held_out, resid, pairs).mean(0) * fitted


def compare_pairwise(
    word: Array, noun: Array, pairs: Pairs, noun_of: Sequence[str]
) -> PartComparison:
    """General and specific parts of effects that are paired: `word noun: pair part...`, each in its
    own gap. Frames, cue words and nouns are resampled; signs are flipped by cue word.
    """
    more = word - noun
    frames = [None if name.startswith(UNKNOWN_FRAME) else name for name in pairs.frames]
    factors = [*resampling.crossed_factors(frames, pairs.units), list[Hashable](noun_of)]
    weights = resampling.bootstrap_weights(factors, seed=pairs.seed)
    drawn = np.tensordot(weights, more, axes=1) / weights.sum(1).reshape(-1, *[1] * (more.ndim - 1))
    above = resampling.sign_flip_test(more, pairs.units, seed=pairs.seed).p
    below = resampling.sign_flip_test(-more, pairs.units, seed=pairs.seed).p
    p = np.minimum(1, 2 * np.minimum(above, below))
    units = len(set(pairs.units))
    return PartComparison(word.mean(0), noun.mean(0), more.mean(0), drawn, units, p)


def joined_parts(parts: Sequence[PartComparison]) -> dict[str, Array]:
    """The means of comparisons of one word over its pairs of senses, by the names of columns, with
    95 % intervals; p the smallest, times their number.
    """
    specific = np.mean([part.specific for part in parts], axis=0)
    drawn = np.mean([part.drawn for part in parts], axis=0)
    low, high = resampling.interval(drawn, specific, units=sum(part.units for part in parts))
    p = np.minimum(1, len(parts) * np.min([part.p for part in parts], axis=0))
    general = np.mean([part.general for part in parts], axis=0)
    values = (general, specific, low, high, p)
    return dict(zip(PARTS, values, strict=True))
