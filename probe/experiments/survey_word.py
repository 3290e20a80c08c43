"""What one word adds to a survey, in which words are the sample: the gap between its senses, what
every head moves of it, and the same for one-meaning nouns in its place.

A pair (a, b) of sentences of two senses is read along the axis that was fitted on sentences which
share neither its cue words nor its frames; with two sentences a sense that is the difference of the
two others. All numbers are raw, in units of the residual stream, and at every depth, so that a
survey can add them up over words and choose one depth for all of them:

    gap    mean over pairs of <a - b, u>
    net    mean over pairs and both ways of what the swap of a head moves along u towards the
           donor, less what a same-sense donor moves, where there is one that u was not fitted on

With more than two senses the pairs of sentences of all pairs of senses stand in one mean. A word is
one record and one file, whole or absent.
"""

import io
import json
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.errors import InputError
from probe.experiments.design import Pairs, make_pairs
from probe.experiments.material import LATE, Material, prepare_counted, unused
from probe.experiments.noun_parts import net_numerators
from probe.experiments.nouns import (
    Candidates,
    at_rows,
    candidates,
    pairs_inside,
    rows_for,
    with_tokens,
)
from probe.experiments.sets import moved_toward_donor
from probe.experiments.swaps import gaps
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.tokens import TargetText
from probe.model.weights import Weights
from probe.patching.heads import swap_heads
from probe.patching.sets import HeadIndex, mask_of, random_sets
from probe.patching.tokens import replace_tokens
from probe.provenance import digest_of, hash_of, write_atomically
from probe.stats import axes, resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.resampling import Array
from probe.text.sentences import LeftOut, Sentence
from probe.text.splits import ONE_SENSE, SURVEY, CrossFit, cross_fit, restrict

MOST_SENTENCES = 512  # of a sense: more would make a mean surer, but no other word of it
# Pairs of sentences of a word in which heads are swapped: words are the sample, not sentences.
MOST_PAIRS = 8
MOST_NOUNS = 3  # one-meaning nouns in a word's place, among which its pairs are shared out
SET_SIZES = (1, 2, 4, 8)  # leading heads of the other words that are tried on a word left out
RANDOM_SETS = 20  # of each size, with as many heads in every layer
# Reasons why a sentence or a pair is not used.
SAMPLED = f"more than {MOST_SENTENCES} sentences of its sense: of them a uniform sample is used"
ALONE = "its sense has one sentence, and two are needed"
NOT_SWAPPED = f"a pair beyond the {MOST_PAIRS} of a word in which heads are swapped"
NO_NOUN_FITS = "a pair in which no one-meaning noun can take the word's place"
# Why a word is not measured; or that its cues stand behind it, or that it has one sense.
NOT_APART = "no two of its senses have two sentences each with cue words that can be kept apart"
# What reading a file that was cut or changed raises, beside ValueError.
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError)


@dataclass(frozen=True, eq=False)
class WordRecord:
    """What one word's sentences say: raw means that a survey adds up over words.

    `kind`: of the word, such as homonym or polyseme, "" where the file names none · `columns`: what
    else the file says of the word, by column, numbers or text · `senses sentences`: that are used ·
    `pairs`: of sentences in which heads were swapped · `left_out`: by reason how many sentences or
    pairs were not used · `reason`: why nothing was measured, "" where it was; then `separation gap
    squared_gap` are NaN, and what is by head or noun is empty · `design`: what was kept apart from
    what is fitted on.

    `separation: depth`, held-out AUROC, mean over holdouts and pairs of senses; 0 or 1 in a word
    with two sentences a sense · `gap: depth` and `net: layer head depth`, see the module; net is 0
    up to a head's own layer · `nouns`: that stood in the word's place, each in a share of its pairs
    · `noun_gap: noun depth`, `noun_net: noun layer head depth`, along the noun's own axes, in its
    own pairs · `squared_gap: depth` and `noun_squared_gap: noun depth`, see `axes.squared_gap`, in
    the sentences in which the nouns can stand. Depth 0 enters the first block.
    """

    word: str
    kind: str
    columns: Mapping[str, object]
    senses: int
    sentences: int
    pairs: int
    left_out: Mapping[str, int]
    reason: str
    design: str
    separation: Array
    gap: Array
    net: Array
    nouns: tuple[str, ...]
    noun_gap: Array
    noun_net: Array
    squared_gap: Array
    noun_squared_gap: Array


def measure_word(
    model: Model,
    sentences: Sequence[Sentence],
    *,
    controls: Sequence[str] | None = None,
    seed: int = 0,
) -> WordRecord:
    """The record of one word from all of its sentences.

    `controls`: one-meaning nouns that may take the word's place, those that ship for None, none for
    ().

    Example:
        >>> from probe.experiments.survey_word import measure_word
        >>> sentences = probe.lexicon.expand("bank").sentences[:96]
        >>> record = measure_word(probe.load("tiny-senses"), sentences, controls=())
        >>> record.net.shape  # layer head depth
        (4, 4, 5)
    """
    material, splits, left_out = _choose_sentences(model, sentences, seed)
    word_facts = _facts(sentences) | {
        "senses": len({sense for senses in splits for sense in senses}),
        "sentences": len({row for split in splits.values() for row in split.rows}),
        "design": ", ".join(dict.fromkeys(split.design for split in splits.values())),
    }
    if not splits:
        return _unmeasured(model, material, left_out, word_facts)
    weights = read_weights(model)
    states = _read(weights, material)
    most = _most_pairs(splits)
    fitted = [_fit(states, senses, split, most, seed) for senses, split in splits.items()]
    swapped = sum(len(each.pairs) for each in fitted)
    left_out[NOT_SWAPPED] = sum(len(_tested_pairs(each.split)) for each in fitted) - swapped
    gap = [gaps(each.axes, states.resid, each.pairs) for each in fitted]
    net = [_net(weights, states.texts, states.z, each) for each in fitted]
    nouns = None
    if controls != ():
        among = candidates(model, material, controls)
        nouns = _measure_nouns(weights, states, fitted, among, seed)
        left_out[NO_NOUN_FITS] = swapped - (0 if nouns is None else nouns.pairs)
    if nouns is None:
        nouns = _no_nouns(model, _mean([_squared_gap(each, states.resid) for each in fitted]))
    return WordRecord(
        **word_facts,
        pairs=swapped,
        left_out=_counts(left_out),
        reason="",
        separation=_mean([_separation(each, states.resid) for each in fitted]),
        gap=np.concatenate(gap).mean(0),
        net=np.concatenate(net).mean(0),
        nouns=nouns.nouns,
        noun_gap=nouns.gap,
        noun_net=nouns.net,
        squared_gap=nouns.word_squared_gap,
        noun_squared_gap=nouns.squared_gap,
    )


# --- the sentences of a word ----------------------------------------------------------------------


@dataclass(frozen=True)
class WordPlan:
    """What a survey would use of one word's sentences: in how many it reads the word, and in how
    many `pairs` of them it swaps heads; `left_out` by reason, and `reason` why nothing can be
    measured ("" where it can)."""

    word: str
    sentences: int
    pairs: int
    left_out: Mapping[str, int]
    reason: str


def plan_word(model: Model, sentences: Sequence[Sentence], *, seed: int = 0) -> WordPlan:
    """What `measure_word` would use of the sentences of a word; nothing is run."""
    material, splits, left_out = _choose_sentences(model, sentences, seed)
    reason = "" if splits else _why_unmeasured(material)
    if reason:
        left_out[reason] += len(material)
    most = _most_pairs(splits)
    return WordPlan(
        word=sentences[0].word,
        sentences=len({row for split in splits.values() for row in split.rows}),
        pairs=sum(min(most, len(_tested_pairs(split))) for split in splits.values()),
        left_out=_counts(left_out),
        reason=reason,
    )


def _choose_sentences(
    model: Model, sentences: Sequence[Sentence], seed: int
) -> tuple[Material, dict[tuple[str, str], CrossFit], Counter[str]]:
    """The sentences of a word that are used, how they are held out, and of the others how many for
    which reason."""
    sampled = _sample(sentences)
    material, splits = _hold_out(prepare_counted(model, sentences[0].word, sampled), seed)
    left_out = Counter(item.reason for item in unused(material, list(splits.values())))
    left_out[SAMPLED] = len(sentences) - len(sampled)
    return material, splits, left_out


def _most_pairs(splits: Mapping[tuple[str, str], CrossFit]) -> int:
    """In how many pairs of sentences heads are swapped, of each pair of senses."""
    return max(1, MOST_PAIRS // max(1, len(splits)))


def _sample(sentences: Sequence[Sentence]) -> list[Sentence]:
    """At most MOST_SENTENCES of each sense in their order: those whose pair, or text, hashes
    lowest, so that both members of a pair are taken or neither."""
    by_sense: dict[str, list[int]] = {}
    for row, sentence in enumerate(sentences):
        by_sense.setdefault(sentence.sense, []).append(row)
    taken: list[int] = []
    for rows in by_sense.values():
        rows = sorted(rows, key=lambda row: digest_of(sentences[row].pair or sentences[row].text))
        taken += rows[:MOST_SENTENCES]
    return [sentences[row] for row in sorted(taken)]


def _hold_out(material: Material, seed: int) -> tuple[Material, dict[tuple[str, str], CrossFit]]:
    """The sentences of senses that have two, and how those of every two senses are held out; pairs
    of senses that cannot be held out are not there."""
    count = Counter(material.labels)
    rows = [row for row, sense in enumerate(material.labels) if count[sense] > 1]
    alone = [row for row, sense in enumerate(material.labels) if count[sense] == 1]
    reasons = [LeftOut(material.sentences[row].text, ALONE) for row in alone]
    material = material.keep(rows, reasons)
    splits = {}
    for senses in axes.sense_pairs(material.labels):
        try:
            split = cross_fit(material.sentences, senses, seed=seed, least=SURVEY)
        except InputError:
            continue
        if _tested_pairs(split):
            splits[senses] = split
    return material, splits


def _tested_pairs(split: CrossFit) -> list[tuple[int, int]]:
    """The pairs of a split whose members are both held out."""
    return [pair for pair in split.pairs if all(split.cells[position] >= 0 for position in pair)]


def _facts(sentences: Sequence[Sentence]) -> dict[str, Any]:
    """The word, and the further columns of its file that are the same in all of its sentences."""
    columns = dict(sentences[0].more)
    for sentence in sentences:
        others = dict(sentence.more)
        columns = {
            name: value for name, value in columns.items() if others.get(name, None) == value
        }
    kind = str(columns.pop("kind", ""))
    return {"word": sentences[0].word, "kind": kind, "columns": columns}


def _counts(left_out: Counter[str]) -> dict[str, int]:
    """Reasons by which something is left out, in alphabetical order."""
    return {reason: left_out[reason] for reason in sorted(left_out) if left_out[reason]}


def _why_unmeasured(material: Material) -> str:
    """Why nothing can be measured on these sentences of a word."""
    reasons = [item.reason for item in material.left_out]
    if len(set(material.labels)) > 1:
        return NOT_APART
    if LATE in reasons:
        return LATE
    return NOT_APART if ALONE in reasons else ONE_SENSE


def _unmeasured(
    model: Model, material: Material, left_out: Counter[str], word_facts: Mapping[str, Any]
) -> WordRecord:
    """The record of a word of which nothing can be measured, with the reason."""
    reason = _why_unmeasured(material)
    left_out[reason] += len(material)
    missing = np.full(model.config.n_layers + 1, np.nan)
    nouns = _no_nouns(model, missing)
    return WordRecord(
        **word_facts,
        pairs=0,
        left_out=_counts(left_out),
        reason=reason,
        separation=missing,
        gap=missing,
        net=nouns.net,
        nouns=(),
        noun_gap=nouns.gap,
        noun_net=nouns.net,
        squared_gap=missing,
        noun_squared_gap=nouns.squared_gap,
    )


# --- gap and heads --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _WordStates:
    """The sentences of a word and what stands at the word. `resid: row depth d_model`, `z: row
    layer head d_head`"""

    material: Material
    texts: tuple[TargetText, ...]
    resid: Tensor
    z: Tensor


@dataclass(frozen=True, eq=False)
class _SensePair:
    """Two senses: how their sentences are held out, their axes in raw units (`gap` is 1), and the
    pairs in which heads are swapped."""

    senses: tuple[str, str]
    split: CrossFit
    axes: HeldOutAxes
    pairs: Pairs


def _read(weights: Weights, material: Material) -> _WordStates:
    """What stands at the word in every sentence; those in which it is the same tokens are run
    together."""
    by_ids: dict[tuple[int, ...], list[int]] = {}
    for row, positions in enumerate(material.words):
        ids = material.tokens[row].ids[positions.start : positions.stop]
        by_ids.setdefault(ids, []).append(row)
    _, heads, d_model, d_head = weights.shape
    layers = len(weights.blocks)
    resid = torch.empty(len(material), layers + 1, d_model, dtype=weights.dtype)
    z = torch.empty(len(material), layers, heads, d_head, dtype=weights.dtype)
    for ids, rows in by_ids.items():
        texts = [material.texts[row] for row in rows]
        own = replace_tokens(weights, texts, [ids], parts=("resid", "z"))
        resid[rows] = own.resid[:, 0]
        z[rows] = own.z[:, 0]
    return _WordStates(material, material.texts, resid, z)


def _fit(
    states: _WordStates, senses: tuple[str, str], split: CrossFit, most: int, seed: int
) -> _SensePair:
    material = states.material
    pairs = make_pairs(
        material.sentences, material.distances, split, most=most, seed=seed, unfitted_donors=True
    )
    return _SensePair(senses, split, _raw_axes(states.resid, split, senses), pairs)


def _raw_axes(resid: Tensor, split: CrossFit, senses: tuple[str, str]) -> HeldOutAxes:
    """Held-out axes along which is measured in units of the residual stream."""
    held_out = axes.hold_out(resid, split, senses)
    return replace(held_out, gap=torch.ones_like(held_out.gap))


def _net(weights: Weights, texts: Sequence[TargetText], z: Tensor, fitted: _SensePair) -> Array:
    """What the swap of every head moves beyond same-sense donors. `-> pair layer head depth`"""
    swap = partial(swap_heads, weights)
    net = net_numerators(swap, texts, z, fitted.axes, fitted.pairs)
    return np.pad(net, ((0, 0), (0, 0), (0, 0), (1, 0)))  # depth 0, which no head has written to


def _separation(fitted: _SensePair, resid: Tensor) -> Array:
    return axes.separation_by_holdout(fitted.axes, resid, fitted.split).auroc


def _squared_gap(fitted: _SensePair, resid: Tensor) -> Array:
    return axes.squared_gap(resid[list(fitted.split.rows)], fitted.split)


def _mean(by_senses: Sequence[Array]) -> Array:
    """The mean over the pairs of senses. `depth` each"""
    return np.asarray(np.mean(by_senses, axis=0))


# --- one-meaning nouns in the word's place --------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _NounParts:
    """The noun fields of a record, the word's squared gap in the same sentences, and how many pairs
    the nouns stood in."""

    nouns: tuple[str, ...]
    gap: Array
    net: Array
    squared_gap: Array
    word_squared_gap: Array
    pairs: int = 0


def _no_nouns(model: Model, word_squared_gap: Array) -> _NounParts:
    depths = len(word_squared_gap)
    by_head = (model.config.n_layers, model.config.n_heads, depths)
    by_depth = np.empty((0, depths))
    return _NounParts((), by_depth, np.empty((0, *by_head)), by_depth, word_squared_gap)


def _measure_nouns(
    weights: Weights,
    states: _WordStates,
    fitted: Sequence[_SensePair],
    among: Candidates,
    seed: int,
) -> _NounParts | None:
    """Gaps and effects of nouns in the word's place, each along its own axes; None where no noun
    can stand in a pair. The pairs are dealt to the nouns in turn, cue word by cue word."""
    nouns, rows, comparable = _choose_nouns(states.material, among, fitted, seed)
    if not nouns:
        return None
    ids = [among.nouns[noun] for noun in nouns]
    texts = [states.texts[row] for row in rows]
    replaced = replace_tokens(weights, texts, ids, parts=("resid", "z"))
    dealt = 0
    gap: list[list[Array]] = [[] for _ in nouns]
    net: list[list[Array]] = [[] for _ in nouns]
    squared: list[list[Array]] = [[] for _ in nouns]
    for each in comparable:
        order = sorted(range(len(each.pairs)), key=each.pairs.units.__getitem__)
        for number in range(len(nouns)):
            resid = at_rows(replaced.resid[:, number], rows, len(states.texts))
            squared[number].append(_squared_gap(each, resid))
            mine = each.pairs.take(order[(number - dealt) % len(nouns) :: len(nouns)])
            if not len(mine):
                continue
            own = replace(each, axes=_raw_axes(resid, each.split, each.senses), pairs=mine)
            z = at_rows(replaced.z[:, number], rows, len(states.texts))
            with_noun = [with_tokens(text, ids[number]) for text in states.texts]
            gap[number].append(gaps(own.axes, resid, mine))
            net[number].append(_net(weights, with_noun, z, own))
        dealt += len(order)
    return _NounParts(
        nouns=nouns,
        gap=np.array([np.concatenate(parts).mean(0) for parts in gap]),
        net=np.array([np.concatenate(parts).mean(0) for parts in net]),
        squared_gap=np.array([_mean(parts) for parts in squared]),
        word_squared_gap=_mean([_squared_gap(each, states.resid) for each in comparable]),
        pairs=dealt,
    )


def _choose_nouns(
    material: Material, among: Candidates, fitted: Sequence[_SensePair], seed: int
) -> tuple[tuple[str, ...], list[int], list[_SensePair]]:
    """At most MOST_NOUNS nouns that can stand in the same sentences, the sentences, and what is
    left in them of every pair of senses.

    Those that can stand in most of the swapped pairs, of these by their hash: what a noun's own gap
    is must not decide whether it is taken.
    """
    by_rows: dict[tuple[int, ...], list[str]] = {}
    for noun in among.nouns:
        by_rows.setdefault(tuple(sorted(rows_for(among, noun))), []).append(noun)
    best: tuple[int, list[int], list[_SensePair]] = (0, [], [])
    for rows in by_rows:
        comparable = [part for each in fitted if (part := _inside(each, rows)) is not None]
        pairs = sum(len(part.pairs) for part in comparable)
        if pairs > best[0]:
            best = (pairs, list(rows), comparable)
    pairs, chosen, comparable = best
    by_hash = sorted(
        by_rows.get(tuple(chosen), []), key=lambda noun: hash_of(seed, material.word, noun)
    )
    return tuple(by_hash[: min(MOST_NOUNS, pairs)]), chosen, comparable


def _inside(fitted: _SensePair, rows: Sequence[int]) -> _SensePair | None:
    """What is left of a pair of senses within some sentences: the split, and the pairs whose
    members, donors and fitted sentences are all there; None without any."""
    inside = set(rows)
    split = fitted.split
    part = restrict(split, [number for number, row in enumerate(split.rows) if row in inside])
    tested = {part.rows[position] for position in part.tested}
    pairs = fitted.pairs.take(
        [
            index
            for index in pairs_inside(fitted.pairs, inside)
            if fitted.pairs.a[index] in tested and fitted.pairs.b[index] in tested
        ]
    )
    return replace(fitted, split=part, pairs=pairs) if len(pairs) else None


# --- sets of heads --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SetRecord:
    """How far sets of heads carry a word that they were not chosen on, in units of the residual
    stream at the read-out, mean over pairs and both ways: M(S) - M(none), heads outside S taking
    the donor's z.

    `whole`: of all heads, so that the faithfulness of a set is its number over this · `left_out:
    size`, of the first `sizes` heads of the order that the other words gave · `own: size`, of the
    word's own order, from other pairs of it than those it is measured on · `random: size draw`,
    sets with as many heads in every layer as those of the other words.
    """

    word: str
    sizes: tuple[int, ...]
    whole: float
    left_out: Array
    own: Array
    random: Array


def measure_sets(
    model: Model,
    sentences: Sequence[Sentence],
    order: Sequence[HeadIndex],
    *,
    depth: int,
    seed: int = 0,
) -> SetRecord:
    """What the first heads of an order that other words gave do for a word, beside its own order
    and random sets of the same layers.

    `order`: of heads below `depth`, where the word is read.
    """
    material, splits = _hold_out(
        prepare_counted(model, sentences[0].word, _sample(sentences)), seed
    )
    weights = read_weights(model)
    states = _read(weights, material)
    shape = (depth, model.config.n_heads)
    sizes = tuple(size for size in SET_SIZES if size <= len(order))
    leading = np.array([mask_of(order[:size], shape) for size in sizes])
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([random_sets(mask, RANDOM_SETS, rng) for mask in leading])
    most = _most_pairs(splits)
    moved = []
    for senses, split in splits.items():
        fitted = _fit(states, senses, split, most, seed)
        for pairs, own_order in _own_orders(weights, states, fitted, depth):
            own = np.array([mask_of(own_order[:size], shape) for size in sizes])
            none = np.zeros((1, *shape), dtype=bool)
            head_sets = np.concatenate([none, leading, own, drawn])
            z = states.z[:, :depth]
            moved.append(
                moved_toward_donor(weights, states.texts, z, fitted.axes, pairs, head_sets)
            )
    by_set = np.concatenate(moved).mean(0)  # what is lost where the heads outside the set change
    kept = by_set[0] - by_set[1:]
    left_out, own_kept, random = np.split(kept, [len(sizes), 2 * len(sizes)])
    return SetRecord(
        word=material.word,
        sizes=sizes,
        whole=float(by_set[0]),
        left_out=left_out,
        own=own_kept,
        random=random.reshape(len(sizes), RANDOM_SETS),
    )


def _own_orders(
    weights: Weights, states: _WordStates, fitted: _SensePair, depth: int
) -> Iterator[tuple[Pairs, list[HeadIndex]]]:
    """The pairs of each holdout with the order of heads below `depth` that the pairs of the others
    give; that of all pairs where there is one holdout."""
    at_depth = replace(fitted.axes, u=fitted.axes.u[:, : depth + 1])
    at_depth = replace(at_depth, gap=torch.ones_like(at_depth.u[..., 0]))
    swap = partial(swap_heads, weights)
    net = net_numerators(swap, states.texts, states.z[:, :depth], at_depth, fitted.pairs)[..., -1]
    cells = fitted.axes.cell[list(fitted.pairs.a)]
    for cell in sorted(set(cells.tolist())):
        others = cells != cell
        effects = net[others if others.any() else slice(None)].mean(0)
        layers, heads = np.unravel_index(resampling.order(effects.ravel()), effects.shape)
        mine = np.flatnonzero(~others).tolist()
        yield fitted.pairs.take(mine), list(zip(layers.tolist(), heads.tolist(), strict=True))


# --- one file per word ----------------------------------------------------------------------------

Record = WordRecord | SetRecord


def write_record(path: Path, record: Record) -> Path:
    """Writes one record as a file that is whole or absent; the same record gives the same bytes."""
    arrays: dict[str, Any] = {}
    others = {}
    for each in fields(record):
        value = getattr(record, each.name)
        if isinstance(value, np.ndarray):
            arrays[each.name] = value
        else:
            others[each.name] = value
    described = json.dumps(others, ensure_ascii=False, sort_keys=True).encode()
    content = io.BytesIO()
    np.savez_compressed(content, _described=np.frombuffer(described, np.uint8), **arrays)
    return write_atomically(path, content.getvalue())


def read_record(path: Path, kind: type[Any] = WordRecord) -> Any:
    """The record of a file. Raises InputError where it is not whole."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as opened:
            values = {name: opened[name] for name in opened.files}
        others = json.loads(values.pop("_described").tobytes())
        for name in ("nouns", "sizes"):
            if name in others:
                others[name] = tuple(others[name])
        return kind(**values, **others)
    except (OSError, ValueError, KeyError, TypeError, EOFError, *DAMAGED) as error:
        raise InputError(
            f"Reading {path}: it is missing or damaged ({type(error).__name__}), expected the "
            "record of a word; run the same `probe survey` command again, it makes what is missing "
            "or damaged anew."
        ) from error


def is_whole(path: Path, kind: type[Any] = WordRecord) -> bool:
    """Whether a finished record stands in a file."""
    try:
        read_record(path, kind)
    except InputError:
        return False
    return True


def records(folder: Path) -> Iterator[WordRecord]:
    """The records of a folder, one in memory at a time, in the order of the words' sentences."""
    for path in sorted(Path(folder).glob("*.word")):
        yield read_record(path)
