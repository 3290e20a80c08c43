"""The measurement of one word, for a report and for a survey.

For every pair of senses of a word, sentences are held out in folds of cue words and frames, and
sense axes are fitted at every depth (`observe`). Before any swap, there must be a gap between the
senses at some depth (`prepare`), unless the word is one of a sample of words. Then every head is
swapped at the word, exactly, and is read at every depth after it and in the logits of the next
token (`swaps`). All further measurements are listed in a table of experiments (`table`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from probe.experiments import nouns, swaps
from probe.experiments.design import Pairs
from probe.experiments.material import Material, SensePairSplits, unused
from probe.experiments.observe import Observation, SenseAxes, observe
from probe.experiments.options import Options
from probe.experiments.prepare import Prepared, prepare_pairs
from probe.experiments.record import SensePair, WordRecord
from probe.experiments.run import Run
from probe.experiments.swaps import Swapped
from probe.experiments.table import every_experiment
from probe.model.kept_keys import keeping
from probe.model.load import read_weights
from probe.model.model import Model
from probe.progress import Begin, Countdown, Progress, silent, unreported
from probe.stats import axes
from probe.stats.axes import SenseAtDepth
from probe.stats.limits import GATE
from probe.stats.numbers import counted
from probe.stats.resampling import Array
from probe.text.sentences import Sentence

# The stages of the work before the experiments.
READING = "reading the sentences"
SWAPPING = "swapping heads"
SECONDS = {READING: 5.0, SWAPPING: 27.0}  # for *bank* in SmolLM2, as the experiments say of theirs
# Reasons why a pair of sentences is not used.
NO_NOUN_FITS = "a pair in which no unambiguous noun can take the word's place"


def not_swapped(pairs: int, limit: int) -> str:
    """Why heads are not swapped in a pair of sentences.

    pairs: of sentences of the word
    limit: pairs of sentences for two senses in which heads are swapped
    """
    return (
        f"heads are swapped in at most {counted(limit, 'pair')} of sentences for two senses, and "
        f"the word has {pairs}"
    )


def measure(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    *,
    random_model: Model | None = None,
    earlier: WordRecord | None = None,
    report: Progress = silent,
) -> WordRecord:
    """The record of one word.

    splits: how the sentences of each pair of senses are held out
    random_model: a model of the same shape with random weights, in which the gap is tested as well
    earlier: a record of the same word with the same options except for the experiments; its content
        is not measured again
    report: called with the stage and with the share of the word's work that is done

    Example:
        >>> from probe.experiments.material import prepare
        >>> from probe.experiments.measure import measure
        >>> from probe.experiments.observe import split_senses
        >>> from probe.studies.survey_word import SURVEY
        >>> model = probe.load("tiny-senses")
        >>> material = prepare(model, "bank", probe.lexicon.expand("bank").sentences)
        >>> splits = split_senses(material, seed=0, causal=True)
        >>> record = measure(model, material, splits, SURVEY)
        >>> record.pairs[0].raw_effect.shape  # layer head depth measure
        (4, 4, 5, 2)
    """
    planned = unfinished(options.experiments, earlier) | {READING}
    begin = Countdown(report, stage_seconds(), Counter(planned)).begin
    run = start(
        model,
        material,
        splits,
        options,
        random_model=random_model,
        earlier=earlier,
        begin=begin,
    )
    return proceed(run, options.experiments, begin=begin)


def stage_seconds() -> dict[str, float]:
    """About how long every stage of a word takes."""
    return SECONDS | {name: experiment.SECONDS for name, experiment in every_experiment().items()}


def unfinished(experiments: Collection[str], record: WordRecord | None) -> set[str]:
    """The stages, after the sentences are read, that a word with this record still needs."""
    finished = set() if record is None else {SWAPPING, *record.measured}
    return {SWAPPING, *experiments} - finished


def start(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    *,
    random_model: Model | None = None,
    earlier: WordRecord | None = None,
    begin: Begin = unreported,
) -> Run:
    """A word with its sentences read and its heads swapped, before any experiment.

    begin: called with the name of each stage when it begins

    The other arguments are as in `measure`.
    """
    begin(READING)
    run = _read(model, material, splits, options, random_model)
    if earlier is None:
        begin(SWAPPING)
        with keeping(run.kept_keys):
            run.prepared = prepare_pairs(run.observation, run.untrained, options)
            run.pairs = tuple(_swap(run, each) for each in run.prepared)
    else:
        # A record contains no axes. They are fitted again on the same splits; the swaps are in the
        # record.
        run.prepared = tuple(
            Prepared(sense, pair.pairs, pair.gap, pair.gates, pair.reading)
            for sense, pair in zip(run.observation.pairs, earlier.pairs, strict=True)
        )
        run.pairs = earlier.pairs
        run.earlier.update(earlier.measured)
    return run


def proceed(
    run: Run,
    experiments: Collection[str],
    *,
    keep: Callable[[WordRecord], object] | None = None,
    begin: Begin = unreported,
) -> WordRecord:
    """The record of a word after some experiments; an experiment that has been run is not run
    again.

    keep: called with the record after each experiment
    begin: called with the name of each stage when it begins
    """
    for name, experiment in every_experiment().items():
        if name not in experiments or name in run.earlier:
            continue
        begin(name)
        with keeping(run.kept_keys):
            run.earlier[name] = experiment.measure(run)
        # After each experiment, so that an interrupted measurement can be continued.
        if keep is not None:
            keep(_record(run))
    return _record(run)


def measure_gates(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    *,
    random_model: Model | None,
) -> WordRecord:
    """The record of a word with its gates and the gaps of nouns, without the swap of any head.

    The arguments are as in `measure`.
    """
    run = _read(model, material, splits, options, random_model)
    run.prepared = prepare_pairs(run.observation, run.untrained, options)
    run.pairs = tuple(_pair(run, each) for each in run.prepared)
    run.earlier["nouns"] = nouns.measure_gaps(run)
    return _record(run)


def _read(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    random_model: Model | None,
) -> Run:
    """A word after the unchanged runs of its sentences."""
    # Another token in a run changes the last digits. A record must not depend on the experiments,
    # so a report always reads the token after the word.
    observation = observe(
        model,
        material,
        splits,
        seed=options.seed,
        next_token=options.next_token,
        later_token=options.next_token,
    )
    return Run(model, options, observation, random_model)


def _record(run: Run) -> WordRecord:
    """The record of the measurements so far."""
    material = run.observation.material
    return WordRecord(
        word=material.word,
        **facts(material.sentences),
        causal=run.observation.causal,
        sentences=material.sentences,
        positions=material.targets,
        tokens_of_word=tuple(map(len, material.words)),
        left_out=tuple(unused(material, [each.sense.split for each in run.prepared])),
        not_used=_not_used(run),
        reason="",
        heads=run.model.config.n_heads,
        has_heads=tuple(run.weights.has_heads.tolist()),
        depth=run.observation.depth,
        pairs=run.pairs,
        # In the order of the table, so that the record does not depend on the order of measurement.
        measured={name: run.earlier[name] for name in every_experiment() if name in run.earlier},
    )


def unmeasured(
    model: Model, material: Material, sentences: Sequence[Sentence], reason: str
) -> WordRecord:
    """The record of a word in which nothing can be measured, with the reason.

    sentences: all sentences of the word
    """
    return WordRecord(
        word=material.word,
        **facts(sentences),
        causal=model.config.causal,
        sentences=(),
        positions=(),
        tokens_of_word=(),
        left_out=material.left_out,
        not_used={reason: len(material)} if len(material) else {},
        reason=reason,
        heads=model.config.n_heads,
        has_heads=tuple(read_weights(model).has_heads.tolist()),
        depth=0,
        pairs=(),
        measured={},
    )


def facts(sentences: Sequence[Sentence]) -> dict[str, Any]:
    """`kind` of a word and the further columns of its file, if they agree in all of its
    sentences.
    """
    columns = dict(sentences[0].more)
    for sentence in sentences:
        columns_here = dict(sentence.more)
        columns = {
            name: value for name, value in columns.items() if columns_here.get(name, None) == value
        }
    return {"kind": str(columns.pop("kind", "")), "columns": columns}


def count_left_out(record: WordRecord) -> dict[str, int]:
    """The number of sentences and pairs of a word that were not used, by reason in alphabetical
    order.
    """
    counts = Counter(item.reason for item in record.left_out) + Counter(record.not_used)
    return {reason: counts[reason] for reason in sorted(counts)}


def _swap(run: Run, each: Prepared) -> SensePair:
    """Two senses with the swaps of every head; without a gap, they have no effects."""
    # An effect is a fraction of the gap, which has no meaning without a gap. A word that is one of
    # many is still swapped, because shifts in units of the residual stream are compared over words.
    no_gap = run.options.gate and each.gates.gap >= GATE
    if no_gap and not run.options.one_of_many:
        return _pair(run, each)
    observation = run.observation
    swapped = swaps.measure(
        run.weights,
        observation.texts,
        observation.states,
        each.sense.axes,
        each.pairs,
        gap=each.gap,
        reading=each.reading,
    )
    return _pair(run, each, swapped, with_effects=not no_gap)


def _pair(
    run: Run, each: Prepared, swapped: Swapped | None = None, *, with_effects: bool = False
) -> SensePair:
    """The record of two senses.

    swapped: the swaps of every head; None without swaps
    with_effects: whether there is a gap, of which the effects are fractions
    """
    observation = run.observation
    split = each.sense.split
    rows = list(split.rows)
    tested = [rows[position] for position in split.tested]
    coordinates = each.sense.axes.coordinates(observation.states.resid[tested], tested)
    return SensePair(
        senses=each.sense.senses,
        split=split,
        pairs=each.pairs,
        reading=each.reading,
        gates=each.gates,
        gap=each.gap,
        raw_gap=swaps.gaps(each.sense.axes.in_units(), observation.stages.vectors, each.pairs),
        by_depth=each.sense.separation.auroc,
        squared_gap=axes.squared_gap(observation.states.resid[rows], split),
        untrained_gap=_untrained_gap(run, each),
        attention=_attention(observation, each.pairs),
        coordinates=coordinates[:, observation.depth],
        profile=_profile(observation, each.sense),
        moved=None if swapped is None else swapped.moved,
        raw_effect=None if swapped is None else swapped.raw_effect,
        swaps=swapped.effects if swapped is not None and with_effects else None,
    )


def _untrained_gap(run: Run, each: Prepared) -> Array | None:
    """The mean gap at every depth in the model of random weights; None without that model.
    `depth`
    """
    if run.untrained is None:
        return None
    resid = run.untrained.resid
    # The axes are fitted in the untrained model itself. M is in units of its residual stream,
    # because a gap of random weights would be a poor unit.
    axes_untrained = axes.hold_out(resid, each.sense.split, each.sense.senses).in_units()
    return np.asarray(swaps.gaps(axes_untrained, resid, each.pairs).mean(0))


def _attention(observation: Observation, pairs: Pairs) -> Mapping[str, Array]:
    """Mean attention from the word to its cue (NaN without a cue), to its neighbours and to itself,
    over the sentences of the pairs. `layer head` each
    """
    # A sentence that is in several pairs counts once.
    used = sorted({*pairs.a, *pairs.b})
    return {
        name: to_token[used].double().nanmean(0).numpy()
        for name, to_token in observation.states.attention_to(observation.material.cues).items()
    }


def _profile(observation: Observation, sense: SenseAxes) -> tuple[SenseAtDepth, ...]:
    """Mean sense coordinates at every depth, starting with the token embedding alone."""
    # Stage 0 is the token embedding without the position; depth 0 comes after it.
    # `row stage d_model`
    stages = torch.cat(
        [observation.states.token_embedding[:, None], observation.states.resid], dim=1
    )
    auroc = sense.separation.auroc
    return tuple(axes.profile(sense.axes, stages, sense.split, observation.depth, auroc))


def _not_used(run: Run) -> dict[str, int]:
    """The number of pairs that were not swapped, and of swapped pairs that no noun fits, by
    reason.
    """
    tested = sum(len(pair.split.tested_pairs) for pair in run.pairs)
    swapped = sum(len(pair.pairs) for pair in run.pairs)
    not_used = {not_swapped(tested, run.options.pairs): tested - swapped}
    records = run.earlier.get("nouns")
    if records is not None:
        without = 0
        for pair, record in zip(run.pairs, records, strict=True):
            if record is not None:
                # `pair_of` has an entry for each noun in each pair, so pairs are counted once.
                without += len(pair.pairs) - len(set(record.pair_of.tolist()))
        not_used[NO_NOUN_FITS] = without
    return {reason: number for reason, number in not_used.items() if number}
