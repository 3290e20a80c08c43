"""Shortcuts that are used instead of swaps: attention, norms, classifiers and gradients, on the
pairs of sentences in which every head was swapped.

    attention             attention from the word to its cue
    rollout               attention to the tokens that a head reads, traced back to the cue through
                          the earlier layers, each as (mean over its heads + identity) / 2
    value_attention       |v at the cue| x attention to the cue
    auroc                 held-out separation of the senses by the head's writes
    direct                D: the head's direct effect, its write along the sense axis
    attribution           gradient at the recipient x change of z
    integrated_5, _20     gradient, averaged over 5 and 20 steps to the donor's z, x change of z

Swaps and gradients are averaged over both directions: half of what b gains with a's z plus half of
what a loses with b's z. The effect of same-sense donors is not subtracted.

Sources: Abnar & Zuidema 2020 (rollout); Kobayashi et al. 2020 (norms); Nanda 2023 (attribution
patching); Sundararajan et al. 2017 (integrated gradients).
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.errors import InputError
from probe.experiments import heads
from probe.experiments.measure import start
from probe.experiments.run import SwappedPair, WordRun
from probe.model import hooks
from probe.model.attention import repeat_kv
from probe.model.model import Model
from probe.patching.gradients import attribute_heads
from probe.stats.resampling import Array
from probe.studies.survey import corpus_for
from probe.studies.survey_word import MOST_PAIRS, SURVEY, choose_sentences, pairs_of_each
from probe.text.sentences import Corpus

__all__ = ["METHODS", "shortcuts"]

# The number of steps of each gradient method; 0 uses the gradient at the recipient alone.
STEPS = {"attribution": 0, "integrated_5": 5, "integrated_20": 20}
FROM_ATTENTION = ("attention", "rollout", "value_attention")
METHODS = (*FROM_ATTENTION, "auroc", "direct", *STEPS)


def shortcuts(
    model: Model, word: str, corpus: Corpus | None = None, *, pairs: int = MOST_PAIRS
) -> pd.DataFrame:
    """The effect of swapping every head at a word, and the scores of METHODS for the same head on the same pairs of
    sentences.

    A row is two senses, a pair of sentences (`pair`, with the number of its cue words in `unit`), a layer and a head.
    depth: the depth at which the word is read
    gap: between the senses, in units of the gap of the sentences that the axes were fitted on
    swap: the effect of swapping the head, the mean of both directions, as a fraction of the gap

    corpus: by default the sentences that ship
    pairs: the largest number of pairs of sentences

    Raises InputError if the word cannot be measured.
    """
    chosen = choose_sentences(model, corpus_for(model, corpus).by_word()[word], 0)
    if chosen.why_unmeasured:
        raise InputError(
            f"Cannot compare shortcuts for {word}: {chosen.why_unmeasured}. Give other sentences."
        )
    # A single permutation: the AUROC is wanted, and no test of it.
    options = replace(SURVEY, pairs=pairs_of_each(pairs, chosen.splits), permutations=1)
    run = start(model, chosen.material, chosen.splits, options)
    run.earlier["heads"] = heads.measure(run)
    return pd.concat([_frame(run, each) for each in run.swapped_pairs], ignore_index=True)


def _frame(run: WordRun, each: SwappedPair) -> pd.DataFrame:
    """The rows of two senses."""
    effects = each.effects
    gap = effects["gap"].mean(0)[:, None]  # layer 1
    swap = (effects["denoise"] + effects["noise"]) / 2 / gap  # pair layer head
    # Writes are read at other depths than swaps, so they are divided by other gaps.
    data = each.data
    direct = data.direct_by_pair.values / data.direct_gap_by_pair.values.mean(0)[:, None]
    arrays = (
        {"gap": gap, "swap": swap}
        | _from_attention(run, each)
        | {"auroc": data.auroc.values, "direct": direct}
    )
    for name, steps in STEPS.items():
        arrays[name] = _by_gradients(run, each, steps) / gap
    pair, layer, head = np.indices(swap.shape)
    sense_a, sense_b = each.prepared.sense.senses
    key = {
        "word": run.observation.material.word,
        "sense_a": sense_a,
        "sense_b": sense_b,
        "pair": pair.ravel(),
    }
    key |= {"unit": np.asarray(each.pairs.units)[pair.ravel()], "depth": run.observation.depth}
    key |= {"layer": layer.ravel(), "head": head.ravel()}
    return pd.DataFrame(
        key | {name: np.broadcast_to(array, swap.shape).ravel() for name, array in arrays.items()}
    )


def _by_gradients(run: WordRun, each: SwappedPair, steps: int) -> Array:
    """Estimates of the numerators of the swaps, the mean of both directions.

    `-> pair layer head`
    """
    observation = run.observation
    recipients = [*each.pairs.b, *each.pairs.a]
    donors = [*each.pairs.a, *each.pairs.b]
    donor_z = observation.states.z[donors]
    directions = each.prepared.sense.axes.directions(recipients)[:, 1:].to(donor_z)
    texts = [observation.texts[row] for row in recipients]
    stages = each.prepared.readout.at
    estimates = attribute_heads(run.weights, texts, donor_z, directions, stages, steps=steps)
    into_b, into_a = estimates.double().chunk(2)
    # b moves up the axis toward a, and a moves down toward b.
    return ((into_b - into_a) / 2).numpy()


def _from_attention(run: WordRun, each: SwappedPair) -> dict[str, Array]:
    """The scores from attention to the cue, mean over both members of a pair; NaN if the cue of a
    member is not marked.

    `pair layer head` each
    """
    rows = sorted({*each.pairs.a, *each.pairs.b})
    by_row = {row: _of_sentence(run, row) for row in rows}
    a, b = (np.stack([by_row[row] for row in side]) for side in (each.pairs.a, each.pairs.b))
    return dict(zip(FROM_ATTENTION, np.moveaxis((a + b) / 2, 1, 0), strict=True))


def _of_sentence(run: WordRun, row: int) -> Array:
    """The scores of FROM_ATTENTION in one sentence; NaN if its cue is not marked.

    `-> method layer head`
    """
    cue = run.observation.material.cues[row]
    ids, at = run.observation.texts[row]
    if cue is None:
        return np.full((len(FROM_ATTENTION), *run.weights.shape[:2]), np.nan)
    tensors = hooks.read(run.model, ids).tensors[""]
    pattern = tensors["pattern"].double()  # layer head query_pos key_pos
    values = repeat_kv(tensors["v"], run.weights.shape[1]).double()  # layer head pos d_head
    to_cue = slice(cue.start, cue.stop)
    at_word = pattern[:, :, at]  # layer head key_pos
    attention = at_word[..., to_cue].sum(-1)
    # Σ_j attention[word, j] |v_j|, over the tokens j of the cue
    sizes = values[:, :, to_cue].norm(dim=-1)
    value_attention = (at_word[..., to_cue] * sizes).sum(-1)
    # Σ_j attention[word, j] Σ_i rollout[j, i], over all tokens j and the tokens i of the cue
    rollout = torch.stack(
        [
            row_of_layer @ before[:, to_cue].sum(-1)
            for row_of_layer, before in zip(at_word, _rolled_out(pattern), strict=True)
        ]
    )
    return torch.stack([attention, rollout, value_attention]).numpy()


def _rolled_out(pattern: Tensor) -> list[Tensor]:
    """The share of each token in each position before every layer.

    `layer head query_pos key_pos -> pos token` for each layer
    """
    reached = torch.eye(pattern.shape[-1], dtype=pattern.dtype)
    before = []
    for of_layer in pattern.mean(1):
        before.append(reached)
        # R_{l+1} = (mean over heads of A_l + I) / 2 · R_l
        reached = (of_layer @ reached + reached) / 2
    return before
