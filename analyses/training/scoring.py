"""How well a model separates senses at the word, on the lexicon's sentences.

A sentence is read at the last token of the word. Sense means are fitted on half of the frames with half of the seen
cues. The nearest mean (Euclidean) is the answer for sentences of the other frames with the other seen cues, or with
held-out cues. Accuracy is averaged over the four ways to choose the halves. The depth is chosen inside the fitted half.
Senses with equal distances share the point, so a depth at which nothing is resolved scores chance.
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
"""From sentences to the residual stream at the last token of the word, `sentence depth d_model`; depth 0 is the input
of the first block.
"""


@dataclass(frozen=True)
class Score:
    """The accuracy of one word.

    senses: their number
    on_seen, held_out: accuracy on seen and on held-out cues
    n_seen, n_held_out: numbers of tested sentences
    depths: the depth of each of the four ways to choose the halves
    embedding: accuracy on seen cues before the first block
    """

    word: str
    senses: int
    on_seen: float
    held_out: float
    n_seen: int
    n_held_out: int
    depths: tuple[int, ...]
    embedding: float


@dataclass(frozen=True, eq=False)
class Reading:
    """A word's sentences as the model reads them.

    resid: `sentence depth d_model`
    labels, frames: numbers of the sense and of the frame. `sentence`
    cue_half: 0 or 1 for the two halves of the seen cues, HELD_OUT for held-out cues. `sentence`
    """

    word: str
    senses: tuple[str, ...]
    resid: Tensor
    labels: Tensor
    frames: Tensor
    cue_half: Tensor


@dataclass(frozen=True)
class Answer:
    """A showcase sentence, the end of its word, the word's sense, and the sense with the nearest mean."""

    text: str
    end: int
    word: str
    sense: str
    answer: str
    cue_after: bool


def points(resid: Tensor, labels: Tensor, fit: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """The points and the margin of every scored sentence at every depth. `-> sentence depth, twice`

    resid: `sentence depth d_model`
    fit, score: masks of the sentences that means are fitted on, and that are scored

    points: 1/k if the right sense is among the k nearest means with equal distances, or else 0
    margin: (d_other - d_right) / (d_other + d_right), d_other the distance to the nearest wrong mean
    """
    senses = labels.unique()
    x = resid.double()
    means = torch.stack([x[fit & (labels == sense)].mean(0) for sense in senses])
    distance = torch.stack([(x[score] - mean).norm(dim=-1) for mean in means], dim=-1)
    is_right = (labels[score][:, None] == senses)[:, None, :]
    tied = distance <= distance.min(-1, keepdim=True).values * (1 + TIE) + TIE
    to_right = distance.masked_fill(~is_right, torch.inf).min(-1).values
    to_other = distance.masked_fill(is_right.expand_as(distance), torch.inf).min(-1).values
    margin = (to_other - to_right) / (to_other + to_right).clamp_min(TIE)
    return (tied & is_right).any(-1) / tied.sum(-1), margin


def best_depth(resid: Tensor, labels: Tensor, frames: Tensor, fit: Tensor) -> int:
    """The depth with the most points when the means of the even frames of the fitted half classify the odd frames, and
    vice versa. The largest margin breaks ties.
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
    """The reading of these sentences of one word."""
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
    """Two readings of one word as one, with the frames of both numbered separately."""
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
    on_seen, on_held_out, depths = [], [], []
    for frame_half in (0, 1):
        for cues in (0, 1):
            fit = (frames % 2 == frame_half) & (cue_half == cues)
            depth = best_depth(reading.resid, reading.labels, frames, fit)
            is_fresh = frames % 2 != frame_half
            seen_cues = is_fresh & (cue_half == 1 - cues)
            held_out_cues = is_fresh & (cue_half == HELD_OUT)
            of_seen, _ = points(reading.resid, reading.labels, fit, seen_cues)
            of_held_out, _ = points(reading.resid, reading.labels, fit, held_out_cues)
            on_seen.append(of_seen[:, [0, depth]])
            on_held_out.append(of_held_out[:, depth])
            depths.append(depth)
    before, after = torch.cat(on_seen).double().mean(0).tolist()
    withheld = torch.cat(on_held_out).double()
    counts = sum(map(len, on_seen)), len(withheld)
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
    """The answers to the showcase sentences of a word: the nearest sense mean of all sentences of `reading` with seen
    cues.
    """
    fit = reading.cue_half != HELD_OUT
    depth = best_depth(reading.resid, reading.labels, reading.frames, fit)
    resid = reading.resid[:, depth]
    means = torch.stack(
        [resid[fit & (reading.labels == sense)].mean(0) for sense in range(len(reading.senses))]
    )
    rows = [row for row in lexicon.showcase() if row.word == reading.word]
    vectors = read(rows)[:, depth] if rows else resid[:0]
    nearest = torch.cdist(vectors, means).argmin(-1).tolist()
    return tuple(
        Answer(row.text, row.end, row.word, row.sense, reading.senses[i], row.cue_after)
        for row, i in zip(rows, nearest, strict=True)
    )


def _cue_half(word: str, sense: str, cue: str) -> int:
    """The half of the seen cues that a cue belongs to, 0 or 1, or HELD_OUT."""
    held_out_cues = held_out(word, sense)
    if cue in held_out_cues:
        return HELD_OUT
    (cues,) = (item.cues for item in lexicon.entry(word).senses if item.name == sense)
    return [seen_cue for seen_cue in cues if seen_cue not in held_out_cues].index(cue) % 2


def overall(scores: Sequence[Score]) -> tuple[float, float]:
    """The accuracy over all sentences of all words: on seen cues, on held-out cues."""
    right_seen = sum(score.on_seen * score.n_seen for score in scores)
    right_held_out = sum(score.held_out * score.n_held_out for score in scores)
    on_seen = right_seen / sum(score.n_seen for score in scores)
    on_held_out = right_held_out / sum(score.n_held_out for score in scores)
    return on_seen, on_held_out
