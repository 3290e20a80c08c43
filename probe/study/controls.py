"""Controls: held-out separation of every head where there is nothing to find, to hold every ranking against.

    labels permuted   the senses reassigned to cue words once: chance, with these sentences and these heads
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
from probe.study.word import PairResult, StudyOptions, WordResult
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


def measure_controls(model: Model, random_model: Model, word: WordResult, options: StudyOptions) -> Controls:
    """The three controls for the clearest pair of senses of a word."""
    pair = clearest(word.pairs)
    parts = [word.rows_of(part, pair.senses) for part in (FIT, REPORT)]
    rows = [*parts[0], *parts[1]]
    sentences, tokens = [word.sentences[row] for row in rows], [word.tokens[row] for row in rows]
    places = range(len(parts[0])), range(len(parts[0]), len(rows))

    def separation(reader: Model, states: TargetStates) -> Array:
        writes = ledger.write_coordinates(states.z, read_weights(reader))
        return measure_separation(writes, sentences, places, permutations=1, seed=options.seed).auroc

    auroc = {MEASURED: pair.separation.auroc, PERMUTED: pair.separation.null[1]}
    at_word = [word.placed[row].at for row in rows]
    after = [target + 1 for target in at_word]
    if all(position < len(text) for position, text in zip(after, tokens, strict=True)):
        auroc[LATER] = separation(model, target_states(model, tokens, after))
    untrained = target_states(random_model, tokens, at_word)
    auroc[UNTRAINED] = separation(random_model, untrained)
    resid = untrained.resid[:, word.depth]
    fit, report = (sense_sample(resid[list(part)], [sentences[row] for row in part]) for part in places)
    return Controls(word, pair, auroc, permutation.gap_p(fit, report, seed=options.seed))


def clearest(pairs: Sequence[PairResult]) -> PairResult:
    """The pair of senses whose gap is surest, then widest."""
    return min(pairs, key=lambda pair: (pair.gate_p, -pair.gap.mean()))
