"""Cue scan: every word of a list, one at a time, as the cue in a few short frames.

    coordinate   M of the word at the read-out layer, in fractions of the sense gap
    attention    of a head, from the word to the cue, summed over the cue's tokens
    score        of a head, before the softmax; the largest of the cue's tokens
    write        <ΔE, u> / gap, with u the axis after the head's layer
    share        1 - Var(M with the head's output at the word fixed at its mean) / Var(M), with
                 variances over cues, and means and variances within a frame: 1 if the whole effect
                 of cues on the word passes through the head's output there, 0 if none of it does

Frames are the replicates of a cue. A causal model runs the tokens that texts share only once, so a
text costs little more than its cue and its word. All functions process the texts in chunks, so the
memory that they need does not depend on the number of cues.

Axis words: row (a text: one cue in one frame), cue, frame, layer, head, depth, axis (a sense axis
that coordinates and writes are read along), d_model, d_head.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.errors import InputError
from probe.experiments.observe import Observation, SenseAxes
from probe.model import blocks, forward
from probe.model.blocks import PositionTerms
from probe.model.model import Model
from probe.model.tokens import ids_after, positions_of_span, tokenize
from probe.model.variants import Step, TargetText, run_at_word
from probe.model.weights import Weights
from probe.patching.heads import in_batches, swap_heads
from probe.patching.inputs import Texts
from probe.patching.sets import HeadIndex
from probe.patching.tokens import replace_tokens
from probe.stats import resampling
from probe.stats.axes import Axis
from probe.stats.resampling import Array
from probe.text.slots import Slotted, stem_of

CHUNK = 512  # texts that are run before their numbers are stored and their states freed
SAMPLE = 2000  # texts that the shares of heads are measured on
DEPTH_SAMPLE = 256  # cues that the read-out layer is chosen on, without labelled sentences
SWAP_CHUNK = 256  # texts whose swaps are run together
LOGIT_ROWS = 128  # cues whose logits are held at once
TABLE_ROWS = 2**13  # token embeddings that are converted to float64 at once
LEAST_VARIANCE = 1e-6  # of the largest: directions of the embeddings that vary less are left out

Report = Callable[[float], None]  # called with the fraction of the work that is finished


# --- texts ----------------------------------------------------------------------------------------


class Template(NamedTuple):
    """A frame in tokens.

    before, after: the token ids on both sides of the cue
    word: the token ids of the word
    at: the position of the word's last token if the slot is empty
    cue_after: whether the cue comes after the word, so that the cue does not shift the word
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    word: tuple[int, ...]
    at: int
    cue_after: bool

    def filled(self, cue: Sequence[int]) -> TargetText:
        """The text with a cue's tokens."""
        shift = 0 if self.cue_after else len(cue)
        return TargetText((*self.before, *cue, *self.after), self.at + shift)


class CueTexts(NamedTuple):
    """Texts to scan.

    texts: the token ids of each text and the position of its word
    cues: `row 2`, the first position of the cue and the position after its last
    """

    texts: list[TargetText]
    cues: Tensor


def template(model: Model, frame: Slotted, cue: str) -> Template:
    """A frame in the model's tokens.

    cue: a word that is put into the slot to find the tokens around it

    Raises InputError if the tokens around the slot change with the cue.
    """
    text, first, start = frame.filled(cue)
    tokens = tokenize(model, text)
    stop = positions_of_span(tokens, first, first + len(cue)).stop
    word = positions_of_span(tokens, start, start + frame.end - frame.start)
    [expected] = ids_after(model, frame.before, [cue])
    assert expected is not None
    # A space before the cue may be a separate token without a span: count back from the end.
    begin = stop - len(expected)
    if tokens.ids[begin:stop] != expected:
        raise InputError(
            f"Cannot scan cues in the frame {frame.text!r}: {model.name} splits {cue!r} into "
            "different tokens in the whole frame and after its first words. Write a plain sentence "
            "with the slot between two spaces."
        )
    shift = 0 if frame.cue_after else len(expected)
    return Template(
        before=tokens.ids[:begin],
        after=tokens.ids[stop:],
        word=tokens.ids[word.start : word.stop],
        at=word[-1] - shift,
        cue_after=frame.cue_after,
    )


def texts_of(
    templates: Sequence[Template], cues: Sequence[Sequence[int]], frames: Sequence[int]
) -> CueTexts:
    """The text of each cue in its frame.

    cues: the token ids of each row's cue
    frames: the number of each row's frame
    """
    texts = []
    spans = []
    for cue, frame in zip(cues, frames, strict=True):
        filling = templates[frame]
        texts.append(filling.filled(cue))
        spans.append((len(filling.before), len(filling.before) + len(cue)))
    return CueTexts(texts, torch.tensor(spans).reshape(-1, 2))


# --- words and beginnings of words ----------------------------------------------------------------


def continuation_probability(
    weights: Weights,
    before: Sequence[int],
    cues: Sequence[Sequence[int]],
    continuations: Sequence[int],
    *,
    report: Report | None = None,
) -> Array:
    """The probability that the model continues each cue as a longer word.

    `-> cue`

    weights: of a model that predicts the next token
    before: the token ids before every cue
    cues: the token ids of each cue
    continuations: the ids of the tokens that continue a word
    report: called after each batch with the fraction of cues that are finished
    """
    continuing = torch.tensor(continuations, device=weights.device)

    def read(batch: Texts, members: list[int], terms: PositionTerms) -> list[Tensor]:
        for step in run_at_word(weights, batch, len(weights.blocks), terms):
            last = step
        resid = last.at_read_position(last.resid_post)[:, 0]
        logits = forward.unembed(weights, resid)
        # p = Σ_continuing exp(logit) / Σ exp(logit)
        return [(logits[:, continuing].logsumexp(-1) - logits.logsumexp(-1)).exp()]

    parts = []
    for start in range(0, len(cues), LOGIT_ROWS):
        in_batch = cues[start : start + LOGIT_ROWS]
        texts = [TargetText((*before, *cue), len(before) + len(cue) - 1) for cue in in_batch]
        parts.append(in_batches(texts, weights, 1, read)[0])
        if report:
            report((start + len(in_batch)) / len(cues))
    return torch.cat(parts).double().numpy()


# --- axes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScanAxes:
    """Sense axes at every depth up to the read-out layer.

    senses: the two senses; the first is at the positive end
    u: `axis depth d_model`, the directions, each divided by its gap
    midpoint: `axis d_model`, halfway between the senses at the read-out layer
    """

    senses: tuple[str, str]
    u: Tensor
    midpoint: Tensor

    @property
    def depth(self) -> int:
        """The read-out layer, as the number of blocks before it."""
        return self.u.shape[1] - 1

    def take(self, axis: int) -> "ScanAxes":
        """One of the axes, by its number."""
        return ScanAxes(self.senses, self.u[axis, None], self.midpoint[axis, None])

    def coordinate(self, resid: Tensor) -> Tensor:
        """M, the sense coordinate, in fractions of the gap.

        `... d_model -> ... axis`
        """
        # M = <x - midpoint, u>; `u` is already divided by the gap
        constant = (self.midpoint * self.u[:, -1]).sum(-1)
        return resid.double() @ self.u[:, -1].T - constant

    def writers(self, weights: Weights) -> Tensor:
        """W_O u of every head, with u the axes after its layer; 0 in a layer without heads.

        `-> layer head d_head axis`
        """
        rows = []
        for layer, block in enumerate(weights.blocks[: self.depth]):
            if block.mixer is None:
                rows.append(block.w_o.double().cpu() @ self.u[:, layer + 1].T)
            else:
                # `weights.shape` is layers, heads, d_model, d_head
                rows.append(torch.zeros(*weights.shape[1:4:2], len(self.u), dtype=torch.float64))
        return torch.stack(rows)


def axes_of_sentences(observation: Observation) -> tuple[SenseAxes, ScanAxes]:
    """The two senses that are furthest apart in labelled sentences, and the axis between them."""
    pair = max(observation.pairs, key=lambda each: each.separation.g[observation.depth])
    by_depth = [observation.axis_for_others(pair, depth) for depth in range(observation.depth + 1)]
    return pair, scan_axes(by_depth)


def scan_axes(by_depth: Sequence[Axis]) -> ScanAxes:
    """The scan axis of two senses, from their axes at every depth up to the read-out layer."""
    last = by_depth[-1]
    u = torch.stack([axis.u / axis.gap for axis in by_depth])
    return ScanAxes((last.sense_a, last.sense_b), u[None], last.midpoint[None])


# --- the scan -------------------------------------------------------------------------------------


class AtWord(NamedTuple):
    """The measurements at the word of every text.

    coordinate: `row axis`, M at the read-out layer
    attention: `row head`, from the word to the cue
    score: `row head`, of the word and the cue
    write: `row head axis`, in fractions of the gap
    """

    coordinate: Array
    attention: Array
    score: Array
    write: Array


def read_texts(
    weights: Weights, rows: CueTexts, axes: ScanAxes, heads: Sequence[HeadIndex]
) -> AtWord:
    """Coordinates at the read-out layer, and attention, scores and writes of some heads at the
    word.
    """
    writers = axes.writers(weights)
    # Heads are read layer by layer; `order` restores the order in which they were given.
    layers = sorted({layer for layer, _ in heads})
    in_layers = [head for layer in layers for head in heads if head[0] == layer]
    order = [in_layers.index(head) for head in heads]

    def read(batch: Texts, members: list[int], terms: PositionTerms) -> list[Tensor]:
        at = torch.tensor([text.at for text in batch], device=weights.device)
        is_cue = _positions(rows.cues[members], len(batch[0].ids)).to(weights.device)
        parts: list[list[Tensor]] = [[], [], []]
        steps = run_at_word(weights, batch, axes.depth, terms)
        for step in steps:
            of_layer = [head for layer, head in in_layers if layer == step.layer]
            if of_layer:
                readings = _read_heads(step, of_layer, at, is_cue, writers[step.layer])
                for part, values in zip(parts, readings, strict=True):
                    part.append(values)
        coordinate = axes.coordinate(step.at_read_position(step.resid_post)[:, 0].cpu())
        empty = [coordinate.new_empty(len(batch), 0)] * 2
        empty.append(coordinate.new_empty(len(batch), 0, len(axes.u)))
        return [coordinate, *(torch.cat(p, 1) if p else e for p, e in zip(parts, empty))]

    texts = rows.texts
    # In a causal model, the tokens after the word cannot change its vector.
    if weights.causal:
        texts = [TargetText(text.ids[: text.at + 1], text.at) for text in texts]
    coordinate, attention, score, write = in_batches(texts, weights, 1, read)
    return AtWord(
        coordinate.numpy(),
        attention[:, order].numpy(),
        score[:, order].numpy(),
        write[:, order].numpy(),
    )


def _positions(spans: Tensor, length: int) -> Tensor:
    """Whether each position is in the cue. `row 2 -> row key_pos`"""
    pos = torch.arange(length)
    return (spans[:, :1] <= pos) & (pos < spans[:, 1:])


def _read_heads(
    step: Step, heads: Sequence[int], at: Tensor, is_cue: Tensor, writers: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention to the cue, the largest score of its tokens, and writes, of some heads of a layer.

    `-> row head, row head, row head axis`
    """
    run = step.run
    q, k, *_ = step.projected
    query = step.at_read_position(q.transpose(2, 3))[:, 0]  # row head d_head
    keys = k[:, 0]  # row kv_head live d_head
    if step.past is not None:
        # The keys of the tokens that the texts share are stored once for several rows.
        earlier = step.past[0]
        keys = torch.cat([earlier.repeat_interleave(len(k) // len(earlier), 0), keys], dim=-2)
    scores = blocks.scores_at(run.weights, step.block, query, keys, at, run.terms)
    pattern = blocks.softmax(scores)
    at_cue = is_cue[:, None]
    attention = (pattern * at_cue).sum(-1)[:, heads]
    score = scores.masked_fill(~at_cue, -torch.inf).amax(-1)[:, heads]
    # write = <z W_O, u> / gap = <z, W_O u / gap>
    z = step.at_read_position(step.z)[:, 0, heads].double().cpu()
    write = torch.einsum("rhd,hda->rha", z, writers[heads])
    return attention.double(), score.double(), write


@dataclass(frozen=True, eq=False)
class Scan:
    """A scan of many cues in every frame, along one axis.

    heads: the heads that were read
    coordinate: `cue frame`
    attention, score, write: `cue frame head`
    """

    heads: tuple[HeadIndex, ...]
    coordinate: Array
    attention: Array
    score: Array
    write: Array

    @property
    def reliability(self) -> float:
        """Split-half reliability of the coordinates over frames, as in `split_half`."""
        return split_half(self.coordinate)


def scan(
    weights: Weights,
    templates: Sequence[Template],
    cues: Sequence[Sequence[int]],
    axes: ScanAxes,
    heads: Sequence[HeadIndex],
    *,
    chunk: int = CHUNK,
    report: Report | None = None,
) -> Scan:
    """The scan of every cue in every frame.

    cues: the token ids of each cue
    axes: a single axis
    heads: the heads that are read
    chunk: the number of texts that are held in memory
    report: called after each chunk with the fraction of cues that are finished
    """
    shape = (len(cues), len(templates))
    coordinate = np.empty(shape)
    of_heads = [np.empty((*shape, len(heads))) for _ in range(3)]
    frames = list(range(len(templates)))
    step = max(1, chunk // len(frames))
    for start in range(0, len(cues), step):
        in_chunk = cues[start : start + step]
        rows = texts_of(
            templates,
            [cue for cue in in_chunk for _ in frames],
            [frame for _ in in_chunk for frame in frames],
        )
        read = read_texts(weights, rows, axes, heads)
        here = slice(start, start + len(in_chunk))
        coordinate[here] = read.coordinate[:, 0].reshape(len(in_chunk), -1)
        values = (read.attention, read.score, read.write[..., 0])
        for part, value in zip(of_heads, values, strict=True):
            part[here] = value.reshape(len(in_chunk), len(frames), -1)
        if report:
            report((start + len(in_chunk)) / len(cues))
    return Scan(tuple(heads), coordinate, *of_heads)


def split_half(values: Array) -> float:
    """Split-half reliability of cues over frames.

    It is the correlation over cues between the means of two halves of the frames, averaged over all
    ways to halve them and stepped up to all frames. NaN if a half does not vary.

    values: `cue frame`

    Source: Spearman 1910; Brown 1910.
    """
    columns = values.shape[1]
    half = columns // 2
    correlations = []
    for first_half in combinations(range(columns), half):
        second_half = [column for column in range(columns) if column not in first_half]
        if 2 * half == columns and 0 not in first_half:
            continue  # the same two halves in the other order
        first = values[:, list(first_half)].mean(1)
        second = values[:, second_half].mean(1)
        correlations.append(correlation(first, second))
    r = float(np.mean(correlations))
    # Spearman-Brown: a test of twice the length has reliability 2 r / (1 + r)
    return 2 * r / (1 + r) if r > -1 else float("nan")


def correlation(a: Array, b: Array) -> float:
    """Pearson's r of `a` and `b`; NaN if one of them does not vary. `n, n`"""
    a = a - a.mean()
    b = b - b.mean()
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale > 0 else float("nan")


# --- the read-out layer without labelled sentences ------------------------------------------------


def most_reliable_depth(
    weights: Weights,
    templates: Sequence[Template],
    cues: Sequence[Sequence[int]],
    by_depth: Sequence[Axis],
    word: Sequence[int],
) -> int:
    """The first depth at which frames agree about cues (`first_reliable`).

    cues: the token ids of each cue
    by_depth: the axis at every depth
    word: the token ids of the word
    """
    frames = range(len(templates))
    columns = []
    for frame in frames:
        rows = texts_of(templates, cues, [frame] * len(cues))
        parts = []
        for start in range(0, len(cues), CHUNK):
            in_chunk = rows.texts[start : start + CHUNK]
            resid = replace_tokens(weights, in_chunk, [word], parts=()).resid[:, 0]
            along = torch.stack([axis.u for axis in by_depth])
            # Midpoint and gap are equal for all cues, so they do not change a correlation.
            parts.append((resid.double() * along).sum(-1))
        columns.append(torch.cat(parts).numpy())
    values = np.stack(columns, axis=1)  # cue frame depth
    # Depth 0 is left out: the word's embedding has not read the cue.
    reliability = [split_half(values[..., depth]) for depth in range(1, values.shape[-1])]
    return 1 + first_reliable(np.array(reliability), len(cues))


def first_reliable(reliability: Array, cues: int) -> int:
    """The index of the first depth whose split-half reliability is within one standard error of the
    best.

    After the first blocks, frames agree about a token whatever its meaning. Their agreement then
    falls, and rises again where meaning is read. Depths before the first minimum are therefore
    excluded. If the agreement does not rise again by more than a standard error, all depths count.

    reliability: `depth`
    cues: the number of cues that it was measured on
    """
    # standard error of a correlation: (1 - r²) / sqrt(n)
    error = (1 - reliability**2) / np.sqrt(cues)
    minima = np.flatnonzero(np.diff(reliability) > 0)
    start = next((at for at in minima if reliability[at:].max() > (reliability + error)[at]), 0)
    best = start + int(np.argmax(reliability[start:]))
    return int(start) + int(np.argmax(reliability[start:] >= reliability[best] - error[best]))


# --- the share of a head --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shares:
    """The share of the variance over cues that passes through each head up to the read-out layer,
    and the head's writes at other nouns.

    heads: all heads of these layers
    share: `head`, the share of the variance over cues
    low, high: `head`, the ends of its 95 % interval
    nouns: the nouns that were put in the word's position
    r, slope: `noun head`, the correlation and the slope over cues of the head's write at the noun
        on its write at the word, along the word's axis
    texts: the number of texts in the sample
    """

    heads: tuple[HeadIndex, ...]
    share: Array
    low: Array
    high: Array
    nouns: tuple[str, ...]
    r: Array
    slope: Array
    texts: int


@dataclass(frozen=True, eq=False)
class Sample:
    """A sample of texts.

    stems: the stem of each row's cue
    frames: the number of each row's frame
    rows: the texts
    """

    stems: tuple[str, ...]
    frames: NDArray[np.intp]
    rows: CueTexts


def draw_sample(
    templates: Sequence[Template],
    words: Sequence[str],
    cues: Sequence[Sequence[int]],
    *,
    seed: int,
    max_texts: int = SAMPLE,
) -> Sample:
    """A uniform sample of cues, each in one frame, with the frames in turn.

    If there are fewer cues than `max_texts`, each cue appears in as many frames as `max_texts`
    allows.
    """
    sampled = np.random.default_rng(seed).permutation(len(cues))[:max_texts]
    turns = max(1, min(len(templates), max_texts // max(1, len(sampled))))
    numbers = np.repeat(sampled, turns).tolist()
    # Cue i appears in the frames i, i + 1, ..., modulo their number: all frames equally often.
    frames = (np.arange(len(sampled))[:, None] + np.arange(turns)).ravel() % len(templates)
    return Sample(
        stems=tuple(stem_of(words[number]) for number in numbers),
        frames=frames,
        rows=texts_of(templates, [cues[number] for number in numbers], frames.tolist()),
    )


class _AtWord(NamedTuple):
    """The measurements in the unchanged runs of a sample.

    mean_z: `frame layer head d_head`, the mean of z at the word over the cues of a frame
    coordinate: `row`, M of the word
    write: `row variant layer head`; variant 0 is the word, the others are the nouns
    """

    mean_z: Tensor
    coordinate: Array
    write: Array


def measure_shares(
    weights: Weights,
    sample: Sample,
    axes: ScanAxes,
    word: Sequence[int],
    nouns: Sequence[tuple[str, Sequence[int]]],
    *,
    seed: int,
    chunk: int = SWAP_CHUNK,
    report: Report | None = None,
) -> Shares:
    """The share of every head up to the read-out layer, and its writes at nouns.

    Every head is fixed in turn by a swap; no share is approximated.

    axes: a single axis
    word: the token ids of the word, which every text contains
    nouns: the name and the token ids of each noun, with as many tokens as the word
    seed: of the bootstrap
    chunk: the number of texts whose swaps are run together
    report: called after each chunk with the fraction of the work that is finished
    """
    report = report or (lambda share: None)
    before = _run_at_word(weights, sample, axes, [word, *(ids for _, ids in nouns)], chunk, report)
    fixed = _fixed_coordinates(weights, sample, axes, before, chunk, report)
    has_heads = weights.has_heads[: axes.depth].cpu().numpy()
    layers = np.flatnonzero(has_heads)
    heads = tuple((int(layer), head) for layer in layers for head in range(weights.shape[1]))
    fixed = fixed[:, has_heads].reshape(len(fixed), -1)
    share, low, high = lost_variance(
        before.coordinate, fixed, sample.frames, sample.stems, seed=seed
    )
    write = before.write[:, :, has_heads].reshape(*before.write.shape[:2], -1)
    r, slope = _of_nouns(write, sample.frames)
    return Shares(
        heads, share, low, high, tuple(name for name, _ in nouns), r, slope, len(sample.stems)
    )


def _chunks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _run_at_word(
    weights: Weights,
    sample: Sample,
    axes: ScanAxes,
    variants: Sequence[Sequence[int]],
    chunk: int,
    report: Report,
) -> _AtWord:
    """The unchanged runs of a sample.

    variants: the token ids of the word, then of each noun that is put in its position
    """
    rows = len(sample.stems)
    writers = axes.writers(weights)[..., 0]
    frames = int(sample.frames.max()) + 1
    sums = torch.zeros(frames, *writers.shape, dtype=torch.float64)
    coordinate = np.empty(rows)
    write = np.empty((rows, len(variants), *writers.shape[:2]))
    for part in _chunks(rows, max(1, chunk // len(variants))):
        states = replace_tokens(
            weights, sample.rows.texts[part], variants, parts=("z",), depth=axes.depth
        )
        z = states.z.double()  # row variant layer head d_head
        sums.index_add_(0, torch.from_numpy(sample.frames[part]), z[:, 0])
        coordinate[part] = axes.coordinate(states.resid[:, 0, -1])[:, 0].numpy()
        write[part] = torch.einsum("rvlhd,lhd->rvlh", z, writers).numpy()
        report(0.4 * part.stop / rows)  # the swaps of every head take the other 60 % of the time
    counts = np.bincount(sample.frames, minlength=frames)
    mean_z = sums / torch.from_numpy(counts)[:, None, None, None]
    return _AtWord(mean_z, coordinate, write)


def _fixed_coordinates(
    weights: Weights, sample: Sample, axes: ScanAxes, before: _AtWord, chunk: int, report: Report
) -> Array:
    """M of every text with one head's output at the word fixed at its mean over the cues of the
    frame.

    `-> row layer head`
    """
    rows = len(sample.stems)
    direction = axes.u[:, -1].to(weights.device, weights.dtype)
    fixed = np.empty((rows, *before.mean_z.shape[1:3]))
    for part in _chunks(rows, chunk):
        donors = before.mean_z[torch.from_numpy(sample.frames[part])].to(weights.dtype)
        changes = swap_heads(weights, sample.rows.texts[part], donors, direction)[..., 0]
        fixed[part] = before.coordinate[part, None, None] + changes.double().numpy()
        report(0.4 + 0.6 * part.stop / rows)
    return fixed


def lost_variance(
    whole: Array,
    fixed: Array,
    frames: NDArray[np.intp],
    clusters: Sequence[str],
    *,
    seed: int,
) -> tuple[Array, Array, Array]:
    """1 - Var(fixed) / Var(whole) with variances within frames, and the ends of its 95 % bootstrap
    interval over clusters of cues.

    `row, row head -> head, head, head`

    NaN if `whole` does not vary.
    """
    equal_weights = np.ones((1, len(whole)))
    weights = resampling.bootstrap_weights([clusters], seed=seed)
    both = np.concatenate([whole[:, None], fixed], axis=1)
    draws = _lost(both, frames, np.concatenate([equal_weights, weights]))
    # The first weighting is the estimate, the others are the bootstrap draws.
    low, high = resampling.interval(draws[1:])
    return draws[0], low, high


def _lost(both: Array, frames: NDArray[np.intp], weights: Array) -> Array:
    """1 - Var(fixed) / Var(whole) under every weighting; column 0 of `both` is `whole`.

    `row 1 + head, draw row -> draw head`
    """
    squares = np.zeros((len(weights), both.shape[1]))
    for frame in np.unique(frames):
        here = frames == frame
        # Centred first, so that a column that does not vary becomes exactly 0.
        values = both[here] - both[here].mean(0)
        in_frame = weights[:, here]
        total = in_frame.sum(1, keepdims=True)
        means = in_frame @ values / np.maximum(total, 1)
        # Σ_row w (x - mean)² = Σ_row w x² - (Σ_row w) mean²
        squares += in_frame @ values**2 - total * means**2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares[:, :1] > 0, 1 - squares[:, 1:] / squares[:, :1], np.nan)


def _of_nouns(write: Array, frames: NDArray[np.intp]) -> tuple[Array, Array]:
    """Correlation and slope of the writes at each noun on the writes at the word, within frames.

    `row variant head -> noun head, noun head`
    """
    centred = np.empty_like(write)
    for frame in np.unique(frames):
        here = frames == frame
        centred[here] = write[here] - write[here].mean(0)
    # r = Σ n w / sqrt(Σ n² Σ w²), slope = Σ n w / Σ w², with w at the word and n at the noun
    word = centred[:, :1]
    products = (centred[:, 1:] * word).sum(0)
    of_word = (word**2).sum(0)
    of_nouns = (centred[:, 1:] ** 2).sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = products / np.sqrt(of_word * of_nouns)
        slope = products / of_word
    return r, slope


# --- held-out cues --------------------------------------------------------------------------------


class Auroc(NamedTuple):
    """How well held-out cues of the two senses are separated. `n` each

    auroc: 0.5 is chance, 1 complete separation
    low, high: the ends of the 95 % interval over cues
    """

    auroc: Array
    low: Array
    high: Array


def tell_apart(values: Array, is_a: NDArray[np.bool_]) -> Auroc:
    """AUROC of cues of the first sense against cues of the second, with its interval.

    values: `cue n`, n separate readings of each cue
    is_a: `cue`, whether it is a cue of the first sense
    """
    estimate = resampling.auroc(values[is_a], values[~is_a])
    cues = [list(range(len(values)))]
    return Auroc(estimate, *resampling.auroc_interval(estimate, values, list(is_a), cues))


class Baselines(NamedTuple):
    """AUROC of held-out cues without the ambiguous word: if it is as high, that of the word is no
    evidence of ambiguity.

    nouns: at unambiguous nouns in the word's place, each along its own axes. `noun`
    embedding: of the cue's token embedding, without any context
    whitened: of the same, whitened over the vocabulary
    """

    nouns: Array
    embedding: float
    whitened: float


def token_embeddings(weights: Weights, cues: Sequence[Sequence[int]]) -> Tensor:
    """The embedding of each cue, mean over its tokens, in float64. `-> cue d_model`

    cues: the token ids of each cue
    """
    table = weights.raw[weights.config.family.embed + ".weight"]
    return torch.stack([table[list(ids)].double().mean(0) for ids in cues]).cpu()


def whitening(weights: Weights) -> Tensor:
    """W with Wᵀ C W = 1, where C is the covariance of the token embeddings over the vocabulary.

    `-> d_model n`, with n < d_model if some directions do not vary.
    """
    table = weights.raw[weights.config.family.embed + ".weight"]
    mean = table.mean(0, dtype=torch.float64)
    covariance = mean.new_zeros(len(mean), len(mean))
    for part in table.split(TABLE_ROWS):  # the whole table in float64 can take gigabytes
        centred = part.double() - mean
        covariance += centred.T @ centred / len(table)
    values, vectors = torch.linalg.eigh(covariance.cpu())
    varies = values > values[-1] * LEAST_VARIANCE
    return vectors[:, varies] / values[varies].sqrt()
