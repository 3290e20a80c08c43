"""Controls: held-out separation of every head where there is nothing to find, to hold every ranking against.

    labels permuted   the senses reassigned to cue words, many times: the band of chance for these sentences and heads,
                      below one half where held-out folds of a balanced set lean away from the fitted ones
    later token       the token after the word: a head that carries the topic of the sentence separates there as well
    untrained model   random weights of the same shape: what the architecture and the sentences do by themselves

Measured for the clearest pair of senses of each word, as the held-out AUROC of every head's own direction. The gap of
an untrained model is tested for every pair of senses, because it binds: a gap that random weights show, too, is not one
of meaning.

Source: Hewitt & Liang 2019 (control tasks).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.model import ledger
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.stats.separation import measure_separation
from probe.study.word import PairResult, StudyOptions, WordResult

MEASURED, PERMUTED, LATER, UNTRAINED = "as measured", "labels permuted", "later token", "untrained model"
BAND = (0.05, 0.5, 0.95)  # quantiles of the permutations


@dataclass(frozen=True, eq=False)
class Controls:
    """Held-out AUROCs by condition, `layer head` each; a condition that the sentences do not allow is absent.

    `band: quantile layer head`, of the permutations at BAND · `untrained_p`: the gate's p in the untrained model, by
    pair of senses.
    """

    word: WordResult
    pair: PairResult
    auroc: dict[str, Array]
    band: Array
    untrained_p: dict[tuple[str, str], float]


def measure_controls(model: Model, random_model: Model, word: WordResult, options: StudyOptions) -> Controls:
    """The controls of a word: separations for its clearest pair of senses, the untrained gate for every one."""
    pair = clearest(word.pairs)
    rows = list(pair.split.rows)

    def separation(reader: Model, states: TargetStates, chosen: Sequence[int]) -> Array:
        writes = ledger.write_coordinates(states.z[list(chosen)], read_weights(reader))
        return measure_separation(writes, pair.split, permutations=1, seed=options.seed).auroc

    null = pair.separation.null[1:]
    auroc = {MEASURED: pair.separation.auroc, PERMUTED: null.mean(0)}
    tokens = [word.material.tokens[row] for row in rows]
    after = [word.material.targets[row] + 1 for row in rows]
    if all(position < len(text) for position, text in zip(after, tokens, strict=True)):
        auroc[LATER] = separation(model, target_states(model, tokens, after), range(len(rows)))
    untrained = target_states(random_model, word.material.tokens, word.material.targets)
    auroc[UNTRAINED] = separation(random_model, untrained, rows)
    untrained_p = {
        each.senses: resampling.gap_test(
            untrained.resid[list(each.split.rows), 1:].double().numpy(), each.split, seed=options.seed
        ).p
        for each in word.pairs
    }
    return Controls(word, pair, auroc, np.quantile(null, BAND, axis=0), untrained_p)


def clearest(pairs: Sequence[PairResult]) -> PairResult:
    """The pair of senses whose gap is surest."""
    return min(pairs, key=lambda pair: (pair.gate_p, -float(pair.gate.t.max())))
