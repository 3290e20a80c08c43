"""How well a model tells senses apart at the word, on the lexicon's own sentences.

A sentence is read at the last token of the word. Sense means are fitted on half of the frames with half of the seen
cues; the nearest one (Euclidean) is the answer for sentences of the other frames with the other seen cues, or with
held-out cues. The four ways to choose the halves take turns. The depth is chosen inside the fitted half. Equal
distances share the point, so a depth where nothing has been resolved scores chance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.text import lexicon
from probe.text.lexicon import Showcase
from probe.text.sentences import Sentence
from training.withheld import held_out

TIE = 1e-5
HELD_OUT = 2

Reader = Callable[[Sequence[Sentence | Showcase]], Tensor]
"""Sentences to the residual stream at the last token of the word, `sentence depth d_model`; depth 0 enters the first
block.
"""


@dataclass(frozen=True)
class Score:
    """Accuracy of one word on seen and on held-out cues, the depths that were chosen, and the accuracy before
    attention.
    """

    word: str
    senses: int
    seen: float
    held_out: float
    n_seen: int
    n_held_out: int
    depths: tuple[int, ...]
    embedding: float


@dataclass(frozen=True, eq=False)
class Reading:
    """A word's lexicon sentences as the model reads them. `resid: sentence depth d_model`, the rest one entry a
    sentence.

    `cue_half` is 0 or 1 for the two halves of the seen cues, HELD_OUT for the others.
    """

    word: str
    senses: tuple[str, ...]
    resid: Tensor
    labels: Tensor
    frames: Tensor
    cue_half: Tensor


@dataclass(frozen=True)
class Answer:
    """A showcase sentence, where its word ends, the word's sense, and the sense that the model's nearest mean says."""

    text: str
    end: int
    word: str
    sense: str
    answer: str
    cue_after: bool


def points(resid: Tensor, labels: Tensor, fit: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Points of every scored sentence at every depth, and how much nearer its own mean is than the nearest other.

    `resid: sentence depth d_model`; `fit` and `score` are masks; both results are `sentence depth`. k equal distances,
    the own sense among them, are 1/k of a point.
    """
    senses = labels.unique()
    x = resid.double()
    means = torch.stack([x[fit & (labels == sense)].mean(0) for sense in senses])
    distance = torch.stack([(x[score] - mean).norm(dim=-1) for mean in means], dim=-1)
    own = (labels[score][:, None] == senses)[:, None, :]
    tied = distance <= distance.min(-1, keepdim=True).values * (1 + TIE) + TIE
    mine = distance.masked_fill(~own, torch.inf).min(-1).values
    others = distance.masked_fill(own.expand_as(distance), torch.inf).min(-1).values
    return (tied & own).any(-1) / tied.sum(-1), (others - mine) / (others + mine).clamp_min(TIE)


def best_depth(resid: Tensor, labels: Tensor, frames: Tensor, fit: Tensor) -> int:
    """The depth with the most points between the even and the odd frames of the fitted half; the widest margin breaks
    ties.
    """
    rank = torch.unique(frames[fit], return_inverse=True)[1] % 2
    half = torch.zeros_like(fit)
    half[fit.nonzero().squeeze(1)[rank == 0]] = True
    there, back = points(resid, labels, half, fit & ~half), points(resid, labels, fit & ~half, half)
    gained, margin = (torch.cat([a, b]).mean(0) for a, b in zip(there, back, strict=True))
    return int(
        max(
            range(len(gained)),
            key=lambda depth: (round(gained[depth].item(), 9), margin[depth].item()),
        )
    )


def read_word(read: Reader, word: str, rows: Sequence[Sentence]) -> Reading:
    """Runs these sentences of one word."""
    senses = tuple(sense.name for sense in lexicon.entry(word).senses)
    names = list(dict.fromkeys(row.frame for row in rows))
    return Reading(
        word,
        senses,
        read(rows),
        torch.tensor([senses.index(row.sense) for row in rows]),
        torch.tensor([names.index(row.frame) for row in rows]),
        torch.tensor(
            [_cue_half(word, row.sense, row.text[row.cue_start : row.cue_end]) for row in rows]
        ),
    )


def joined(first: Reading, second: Reading) -> Reading:
    """Two readings of one word as one; their frames stay apart."""
    return Reading(
        first.word,
        first.senses,
        torch.cat([first.resid, second.resid]),
        torch.cat([first.labels, second.labels]),
        torch.cat([first.frames, second.frames + first.frames.max() + 1]),
        torch.cat([first.cue_half, second.cue_half]),
    )


def score_word(reading: Reading) -> Score:
    """The word's accuracies over the four ways to halve its frames and seen cues."""
    frames, cue_half = reading.frames, reading.cue_half
    seen, held, depths = [], [], []
    for frame_half in (0, 1):
        for cues in (0, 1):
            fit = (frames % 2 == frame_half) & (cue_half == cues)
            depth = best_depth(reading.resid, reading.labels, frames, fit)
            fresh = frames % 2 != frame_half
            other = points(reading.resid, reading.labels, fit, fresh & (cue_half == 1 - cues))[0]
            seen.append(other[:, [0, depth]])
            held.append(
                points(reading.resid, reading.labels, fit, fresh & (cue_half == HELD_OUT))[0][
                    :, depth
                ]
            )
            depths.append(depth)
    before, after = torch.cat(seen).double().mean(0).tolist()
    withheld = torch.cat(held).double()
    counts = sum(map(len, seen)), len(withheld)
    return Score(
        reading.word,
        len(reading.senses),
        after,
        withheld.mean().item(),
        *counts,
        tuple(depths),
        before,
    )


def answers(read: Reader, reading: Reading) -> tuple[Answer, ...]:
    """The showcase sentences of a word: the nearest sense mean of all its sentences in `reading` with seen cues."""
    fit = reading.cue_half != HELD_OUT
    depth = best_depth(reading.resid, reading.labels, reading.frames, fit)
    resid = reading.resid[:, depth]
    means = torch.stack(
        [resid[fit & (reading.labels == sense)].mean(0) for sense in range(len(reading.senses))]
    )
    shown = [row for row in lexicon.showcase() if row.word == reading.word]
    found = read(shown)[:, depth] if shown else resid[:0]
    nearest = torch.cdist(found, means).argmin(-1).tolist()
    return tuple(
        Answer(row.text, row.end, row.word, row.sense, reading.senses[i], row.cue_after)
        for row, i in zip(shown, nearest, strict=True)
    )


def _cue_half(word: str, sense: str, cue: str) -> int:
    """0 or 1: the half of the seen cues it belongs to; 2: held out."""
    held = held_out(word, sense)
    if cue in held:
        return HELD_OUT
    (cues,) = (item.cues for item in lexicon.entry(word).senses if item.name == sense)
    return [other for other in cues if other not in held].index(cue) % 2


def overall(scores: Sequence[Score]) -> tuple[float, float]:
    """Accuracy over all sentences of all words: on seen cues, on held-out cues."""
    seen = sum(score.seen * score.n_seen for score in scores) / sum(
        score.n_seen for score in scores
    )
    held = sum(score.held_out * score.n_held_out for score in scores) / sum(
        score.n_held_out for score in scores
    )
    return seen, held
