"""How well a model tells senses apart at the word, on the lexicon's own sentences.

A sentence is cut at the word's end (a causal model cannot see further) and read at its last token. Sense means are fitted
on half of the frames with half of the seen cues; the nearest one (Euclidean) is the answer for sentences of the other
frames with the other seen cues, or with held-out cues. The four ways to choose the halves take turns. The depth is chosen
inside the fitted half. Equal distances share the point, so a depth where nothing has been resolved scores chance.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from probe import lexicon
from probe.embedded import grammar

TIE = 1e-5
BATCH = 256


@dataclass(frozen=True)
class Score:
    """Accuracy of one word on seen and on held-out cues, the depths that were chosen, and the accuracy before attention."""

    word: str
    senses: int
    seen: float
    held_out: float
    n_seen: int
    n_held_out: int
    depths: tuple[int, ...]
    embedding: float


def resid_at_end(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> Tensor:
    """The residual stream at the last token of every text. `text depth d_model`; depth 0 enters the first block.

    Texts of one length go through together, so nothing is padded. BOS is prepended.
    """
    ids = [[tokenizer.bos_token_id, *row] for row in tokenizer(list(texts)).input_ids]
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(ids):
        by_length[len(row)].append(i)
    result = torch.empty(len(ids), model.config.n_layer + 1, model.config.n_embd)
    caught: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, out: caught.append(_last(out))) for block in model.transformer.h]
    hooks.append(model.transformer.h[0].register_forward_pre_hook(lambda _, args: caught.append(args[0][:, -1])))
    try:
        for rows in by_length.values():
            for start in range(0, len(rows), BATCH):
                chunk = rows[start : start + BATCH]
                caught.clear()
                with torch.no_grad():
                    model.transformer(torch.tensor([ids[i] for i in chunk]))
                result[chunk] = torch.stack(caught, dim=1)
    finally:
        for hook in hooks:
            hook.remove()
    return result


def _last(out: Tensor | tuple[Tensor, ...]) -> Tensor:
    return (out[0] if isinstance(out, tuple) else out)[:, -1]


def points(resid: Tensor, labels: Tensor, fit: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """Points of every scored sentence at every depth, and how much nearer its own mean is than the nearest other.

    `resid: sentence depth d_model`; `fit` and `score` are masks; both results are `sentence depth`. k equal distances, the
    own sense among them, are 1/k of a point.
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
    """The depth with the most points between the even and the odd frames of the fitted half; the widest margin breaks ties."""
    rank = torch.unique(frames[fit], return_inverse=True)[1] % 2
    half = torch.zeros_like(fit)
    half[fit.nonzero().squeeze(1)[rank == 0]] = True
    there, back = points(resid, labels, half, fit & ~half), points(resid, labels, fit & ~half, half)
    gained, margin = (torch.cat([a, b]).mean(0) for a, b in zip(there, back, strict=True))
    return int(max(range(len(gained)), key=lambda depth: (round(gained[depth].item(), 9), margin[depth].item())))


def score_word(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, word: str) -> Score:
    """The word's accuracies over the four ways to halve its frames and seen cues."""
    sentences = lexicon.expand(word).sentences
    resid = resid_at_end(model, tokenizer, [row.text[: row.end] for row in sentences])
    senses = [sense.name for sense in lexicon.entry(word).senses]
    labels = torch.tensor([senses.index(row.sense) for row in sentences])
    names = [frame.name for frame in lexicon.entry(word).frames]
    frames = torch.tensor([names.index(str(row.frame)) for row in sentences])
    cue_half = torch.tensor([_cue_half(word, row.sense, row.text[row.cue_start : row.cue_end]) for row in sentences])
    seen, held, depths = [], [], []
    for frame_half in (0, 1):
        for cues in (0, 1):
            fit = (frames % 2 == frame_half) & (cue_half == cues)
            depth = best_depth(resid, labels, frames, fit)
            fresh = frames % 2 != frame_half
            seen.append(points(resid, labels, fit, fresh & (cue_half == 1 - cues))[0][:, [0, depth]])
            held.append(points(resid, labels, fit, fresh & (cue_half == 2))[0][:, depth])
            depths.append(depth)
    both, withheld = torch.cat(seen).double().mean(0).tolist(), torch.cat(held).double()
    return Score(
        word, len(senses), both[1], withheld.mean().item(), sum(map(len, seen)), len(withheld), tuple(depths), both[0]
    )


def _cue_half(word: str, sense: str, cue: str) -> int:
    """0 or 1: the half of the seen cues it belongs to; 2: held out."""
    held = grammar.held_out(word, sense)
    if cue in held:
        return 2
    (cues,) = (item.cues for item in lexicon.entry(word).senses if item.name == sense)
    return [other for other in cues if other not in held].index(cue) % 2


def evaluate(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast) -> tuple[Score, ...]:
    """One score per word of the lexicon."""
    return tuple(score_word(model, tokenizer, word) for word in lexicon.words())


def overall(scores: Sequence[Score]) -> tuple[float, float]:
    """Accuracy over all sentences of all words: on seen cues, on held-out cues."""
    seen = sum(score.seen * score.n_seen for score in scores) / sum(score.n_seen for score in scores)
    held = sum(score.held_out * score.n_held_out for score in scores) / sum(score.n_held_out for score in scores)
    return seen, held
