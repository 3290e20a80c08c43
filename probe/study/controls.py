"""What the same measurement says where there is nothing to find: the numbers every ranking has to be held against.

    labels permuted   the senses reassigned to cue words once: what chance looks like with these sentences and these heads
    later token       the token after the word: a head that carries the topic of the sentence separates there as well
    untrained model   random weights of the same shape: what the architecture and the sentences do by themselves

Measured for the clearest pair of senses of each word, as the held-out AUROC of every head's own direction.

Source: Hewitt & Liang 2019 (control tasks).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from probe.model import ledger
from probe.model.model import Model
from probe.model.records import TargetStates
from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.stats import permutation
from probe.stats.resampling import Array
from probe.stats.separation import measure_separation, sense_sample
from probe.study.word import Options, PairResult, WordResult
from probe.text.splits import FIT, REPORT

MEASURED, PERMUTED, LATER, UNTRAINED = "as measured", "labels permuted", "later token", "untrained model"


@dataclass(frozen=True, eq=False)
class Controls:
    """Held-out AUROCs by condition, `layer head` each; a condition that the sentences do not allow is absent.

    `untrained_p`: the gate's p in the untrained model.
    """

    word: WordResult
    pair: PairResult
    auroc: dict[str, Array]
    untrained_p: float


def measure_controls(model: Model, random_model: Model, word: WordResult, options: Options) -> Controls:
    """The three controls for the clearest pair of senses of a word."""
    pair = clearest(word.pairs)
    fit, report = (word.rows_of(part, pair.senses) for part in (FIT, REPORT))
    auroc = {MEASURED: pair.separation.auroc, PERMUTED: pair.separation.null[1]}
    at_word = [word.placed[row].at for row in fit + report]
    after = [target + 1 for target in at_word]
    if all(after[place] < len(word.tokens[row]) for place, row in enumerate(fit + report)):
        auroc[LATER] = _auroc(model, _read(model, word, fit + report, after), word, (fit, report), options)
    fresh = _read(random_model, word, fit + report, at_word)
    auroc[UNTRAINED] = _auroc(random_model, fresh, word, (fit, report), options)
    return Controls(word, pair, auroc, _gate(fresh, word, (fit, report), options))


def clearest(pairs: Sequence[PairResult]) -> PairResult:
    """The pair of senses whose gap is surest, then widest."""
    return min(pairs, key=lambda pair: (pair.gate_p, -pair.gap.mean()))


def _read(model: Model, word: WordResult, rows: Sequence[int], positions: Sequence[int]) -> TargetStates:
    return target_states(model, [word.tokens[row] for row in rows], positions)


def _auroc(
    model: Model, states: TargetStates, word: WordResult, parts: tuple[list[int], list[int]], options: Options
) -> Array:
    """`states` holds the fit rows and then the report rows."""
    writes = ledger.write_coordinates(states.z, read_weights(model))
    sentences = [word.sentences[row] for part in parts for row in part]
    places = range(len(parts[0])), range(len(parts[0]), len(sentences))
    return measure_separation(writes, sentences, places, permutations=1, seed=options.seed).auroc


def _gate(states: TargetStates, word: WordResult, parts: tuple[list[int], list[int]], options: Options) -> float:
    resid, split = states.resid[:, word.depth], len(parts[0])
    fit, report = ([word.sentences[row] for row in rows] for rows in parts)
    return permutation.gap_p(sense_sample(resid[:split], fit), sense_sample(resid[split:], report), seed=options.seed)
