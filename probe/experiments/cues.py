"""Cue scan: words of a list, one at a time, as the cue in a few short frames.

    coordinate   M of the word at the read-out layer, in fractions of the sense gap
    attention    of a head, from the word to the cue, summed over the cue's tokens
    score        of a head, before the softmax; the largest of the cue's tokens
    write        <ΔE, u> / gap, with u the axis after the head's layer

Frames are the replicates of a cue. A causal model runs the tokens that texts share only once, so a
text costs little more than its cue and its word. All functions process the texts in chunks, so the
memory that they need does not depend on the number of cues.

A vocabulary also contains beginnings of longer words ("estu", "nort"), which are not marked. The
model decides: a token is a word if, after it, the end of the word is more likely than a
continuation. A model that does not predict next tokens cannot decide, so all its tokens are kept;
the vocabularies of such models contain whole words.

Axis words: row (a text: one cue in one frame), cue, frame, layer, head, depth, axis (a sense axis
that coordinates and writes are read along), d_model, d_head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from probe.errors import InputError
from probe.experiments.observe import Observation, SenseAxes
from probe.model import blocks, forward
from probe.model.blocks import PositionTerms
from probe.model.model import Model
from probe.model.tokens import (
    ids_after,
    positions_of_span,
    tokenize,
    whole_words,
    word_continuations,
)
from probe.model.variants import Step, TargetText, run_at_word
from probe.model.weights import Weights, weights_of
from probe.patching.heads import in_batches
from probe.patching.inputs import Texts
from probe.patching.sets import HeadIndex
from probe.stats.axes import Axis
from probe.stats.resampling import Array
from probe.text.slots import Slotted, frames_for, read_frames, stem_of, words_of

DOING = "Cannot scan cues"  # as error messages begin
FEWEST_CUES = 10  # cues that variances and correlations need
MORE_LIKELY_THAN_NOT = 0.5  # probability of a continuation above which a token is a beginning
CHUNK = 512  # texts that are run before their numbers are stored and their states freed
LOGIT_ROWS = 128  # cues whose logits are held at once

Report = Callable[[float], None]  # called with the fraction of the work that is finished
Ids = tuple[int, ...]  # token ids


# --- frames and cues ------------------------------------------------------------------------------


class Template(NamedTuple):
    """A frame in tokens.

    before, after: the token ids on both sides of the cue
    word: the token ids of the word
    at: the position of the word's last token if the slot is empty
    cue_after: whether the cue comes after the word, so that the cue does not shift the word
    """

    before: Ids
    after: Ids
    word: Ids
    at: int
    cue_after: bool

    def filled(self, cue: Sequence[int]) -> TargetText:
        """The text with a cue's tokens."""
        shift = 0 if self.cue_after else len(cue)
        return TargetText((*self.before, *cue, *self.after), self.at + shift)


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


@dataclass(frozen=True, eq=False)
class Slots:
    """The frames, and the cues for their slots.

    frames: the frames as texts
    templates: the frames in tokens
    cues: the words that are tried, with the ids of their tokens in the slot
    beginnings: the number of tokens that were left out because they begin longer words
    not_held: requested words that have no tokens in the vocabulary
    """

    frames: tuple[Slotted, ...]
    templates: list[Template]
    cues: dict[str, Ids]
    beginnings: int = 0
    not_held: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The cues as words."""
        return list(self.cues)

    @property
    def ids(self) -> list[Ids]:
        """The token ids of each cue."""
        return list(self.cues.values())

    @property
    def word(self) -> Ids:
        """The token ids of the ambiguous word, equal in all frames."""
        return self.templates[0].word

    @property
    def before(self) -> str:
        """The text before the slot of the first frame, after which all words are tokenised."""
        return self.frames[0].before


def ask(
    model: Model,
    word: str,
    *,
    cues: Sequence[str] | None = None,
    frames: Sequence[str] | None = None,
) -> Slots:
    """Frames and cues in the model's tokens.

    cues: the words to try; by default every token of letters, including beginnings of longer words
    frames: texts with the word and a slot; by default the frames of the package

    Raises InputError for frames that cannot be used, for a word whose tokens differ between frames,
    and for fewer than FEWEST_CUES cues.
    """
    both_sides = not model.config.causal
    texts = frames_for(word, both_sides=both_sides) if frames is None else frames
    slotted = read_frames(texts, word, both_sides=both_sides)
    words = whole_words(model) if cues is None else cues
    tokens = ids_after(model, slotted[0].before, words)
    # Words of the vocabulary must be a single token in the slot; requested words may be several.
    usable = {
        cue: ids
        for cue, ids in zip(words, tokens, strict=True)
        if ids is not None and (cues is not None or len(ids) == 1)
    }
    _require_enough(model, usable)
    templates = [template(model, frame, next(iter(usable))) for frame in slotted]
    if len({each.word for each in templates}) > 1:
        raise InputError(
            f"{DOING}: {word!r} has different tokens in different frames. Write it in the same "
            "form in all of them, each time after another word."
        )
    not_held = () if cues is None else tuple(cue for cue in cues if cue not in usable)
    return Slots(slotted, templates, usable, not_held=not_held)


def _require_enough(model: Model, cues: Sequence[str] | dict[str, Ids]) -> None:
    """Raises InputError for fewer than FEWEST_CUES cues."""
    if len(cues) < FEWEST_CUES:
        raise InputError(
            f"{DOING} in {model.name}: got {len(cues)} cues that its vocabulary has, expected at "
            f"least {FEWEST_CUES}. Give a list of words (on the command line --cues FILE)."
        )


def without_beginnings(model: Model, slots: Slots, *, report: Report | None = None) -> Slots:
    """The frames and cues without tokens that begin longer words.

    A token begins a longer word if the model predicts a continuation with a probability above
    MORE_LIKELY_THAN_NOT. Unchanged for a model that does not predict next tokens.

    report: called with the fraction of the cues that are finished

    Raises InputError if fewer than FEWEST_CUES cues remain.
    """
    continuations = word_continuations(model)
    if not model.config.causal or not model.config.has_lm_head or not continuations:
        return slots
    before = slots.templates[0].before
    p = _p_continued(weights_of(model), before, slots.ids, continuations, report)
    ends = p <= MORE_LIKELY_THAN_NOT
    whole = {cue: ids for (cue, ids), is_word in zip(slots.cues.items(), ends) if is_word}
    _require_enough(model, whole)
    return replace(slots, cues=whole, beginnings=len(slots.cues) - len(whole))


def _p_continued(
    weights: Weights,
    before: Sequence[int],
    cues: Sequence[Ids],
    continuations: Sequence[int],
    report: Report | None,
) -> Array:
    """The probability that the model continues each cue as a longer word.

    `-> cue`

    before: the token ids before every cue
    continuations: the ids of the tokens that continue a word
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


def occur_in(texts: Sequence[str], words: Sequence[str]) -> list[bool]:
    """Whether each word occurs in any of the texts, in any form."""
    # Forms of a word share a stem.
    stems = {stem_of(word) for text in texts for word in words_of(text)}
    return [stem_of(word) in stems for word in words]


class CueTexts(NamedTuple):
    """Texts to scan.

    texts: the token ids of each text and the position of its word
    cues: `row 2`, the first position of the cue and the position after its last
    """

    texts: list[TargetText]
    cues: Tensor


def texts_of(templates: Sequence[Template], cues: Sequence[Ids], frames: Sequence[int]) -> CueTexts:
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


def in_every_frame(templates: Sequence[Template], cues: Sequence[Ids]) -> CueTexts:
    """The text of each cue in every frame: all frames of the first cue, then of the second."""
    frames = range(len(templates))
    return texts_of(
        templates, [cue for cue in cues for _ in frames], [frame for _ in cues for frame in frames]
    )


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
    """The measurements at the word of every text. In a scan of cues along one axis, `row` is
    `cue frame`, and there is no `axis`.

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


def scan(
    weights: Weights,
    templates: Sequence[Template],
    cues: Sequence[Ids],
    axes: ScanAxes,
    heads: Sequence[HeadIndex],
    *,
    chunk: int = CHUNK,
    report: Report | None = None,
) -> AtWord:
    """The scan of every cue in every frame.

    cues: the token ids of each cue
    axes: a single axis
    heads: the heads that are read
    chunk: the number of texts that are held in memory
    report: called after each chunk with the fraction of cues that are finished
    """
    step = max(1, chunk // len(templates))
    parts = []
    for start in range(0, len(cues), step):
        in_chunk = cues[start : start + step]
        parts.append(read_texts(weights, in_every_frame(templates, in_chunk), axes, heads))
        if report:
            report((start + len(in_chunk)) / len(cues))
    coordinate, attention, score, write = map(np.concatenate, zip(*parts, strict=True))
    shape = (len(cues), len(templates))
    return AtWord(
        coordinate[..., 0].reshape(shape),
        attention.reshape(*shape, len(heads)),
        score.reshape(*shape, len(heads)),
        write[..., 0].reshape(*shape, len(heads)),
    )


def without_cue(weights: Weights, templates: Sequence[Template], axes: ScanAxes) -> float:
    """The mean coordinate of the word over the frames with an empty slot."""
    rows = in_every_frame(templates, [()])
    return float(read_texts(weights, rows, axes, []).coordinate.mean())


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
        correlations.append(_correlation(first, second))
    r = float(np.mean(correlations))
    # Spearman-Brown: a test of twice the length has reliability 2 r / (1 + r)
    return 2 * r / (1 + r) if r > -1 else float("nan")


def _correlation(a: Array, b: Array) -> float:
    """Pearson's r of `a` and `b`; NaN if one of them does not vary. `n, n`"""
    a = a - a.mean()
    b = b - b.mean()
    scale = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / scale) if scale > 0 else float("nan")
