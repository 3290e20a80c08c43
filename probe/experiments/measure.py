"""The measurement of one word: the one behind a report and a survey.

For every two senses of a word the sentences are held out in folds of cue words and frames, and
sense axes are fitted at every depth (`observe`). Before anything is swapped the gap between the
senses must be there at some depth (`prepare`), unless words are the sample. Then every head is
swapped at the word, exactly, and read at every depth after it and in the logits of the next token
(`swaps`). What is measured beside that is a table of experiments (`table`).
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
from probe.experiments.plan import Work, size_of, swap_work
from probe.experiments.prepare import Prepared, prepare_pairs, tested_pairs
from probe.experiments.record import SensePair, WordRecord
from probe.experiments.run import Run
from probe.experiments.swaps import PairEffects
from probe.experiments.table import EXPERIMENTS
from probe.model.load import read_weights
from probe.model.model import Model
from probe.progress import Progress, Stage, silent, stages, unreported
from probe.stats import axes
from probe.stats.axes import SenseAtDepth
from probe.stats.limits import GATE
from probe.stats.resampling import Array
from probe.text.sentences import Sentence

# Stages of the work, beside the experiments.
READING = "reading the sentences"
SWAPPING = "swapping heads"
NOT_SWAPPED = "a pair beyond those in which heads are swapped"
NO_NOUN_FITS = "a pair in which no unambiguous noun can take the word's place"


def measure(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    *,
    random_model: Model | None = None,
    report: Progress = silent,
) -> WordRecord:
    """Measure one word.

    splits: how the sentences of every two senses are held out.
    random_model: the same shape with random weights, in which the gap is looked for as well.
    report: called with the stage and the share of the word's work that is done.

    Example:
        >>> from probe.experiments.material import prepare
        >>> from probe.experiments.measure import measure
        >>> from probe.experiments.observe import split_senses
        >>> from probe.studies.survey_word import SURVEY
        >>> model = probe.load("tiny-senses")
        >>> material = prepare(model, "bank", probe.lexicon.expand("bank").sentences)
        >>> splits = split_senses(material, seed=0, causal=True)
        >>> record = measure(model, material, splits, SURVEY)
        >>> record.pairs[0].moved.shape  # layer head depth
        (4, 4, 5)
    """
    plan = planned(model, material, splits, options, options.experiments)
    stage = stages(report, plan)
    run = start(model, material, splits, options, random_model=random_model, stage=stage)
    return proceed(run, options.experiments, stage=stage)


def planned(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    experiments: Collection[str],
) -> dict[str, float]:
    """The units of work of every stage (`probe.progress`), before any of them is done."""
    size = size_of(model, material, splits, options)
    all_swaps = swap_work(size)
    units = {
        READING: size.units(Work(forwards=all_swaps.forwards)),
        SWAPPING: size.units(Work(swaps=all_swaps.swaps)),
    }
    chosen = runnable(experiments, model)
    return units | {name: size.units(EXPERIMENTS[name].work(size)) for name in chosen}


def start(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    *,
    random_model: Model | None = None,
    kept: WordRecord | None = None,
    stage: Stage = unreported,
) -> Run:
    """A word whose sentences are read and whose heads are swapped, before any experiment.

    kept: an earlier record of the same word and the same options, which may differ in their
        experiments. What it holds is not measured again.
    stage: the context in which a stage of the plan is done.
    The other arguments are those of `measure`.
    """
    with stage(READING):
        run = _read(model, material, splits, options, random_model)
    if kept is None:
        with stage(SWAPPING):
            run.prepared = prepare_pairs(run.seen, run.untrained, options)
            run.pairs = tuple(_swap(run, each) for each in run.prepared)
    else:
        run.prepared = tuple(map(_prepared, run.seen.pairs, kept.pairs))
        run.pairs = kept.pairs
        run.earlier.update(kept.measured)
    return run


def proceed(
    run: Run,
    experiments: Collection[str],
    *,
    keep: Callable[[WordRecord], object] | None = None,
    stage: Stage = unreported,
) -> WordRecord:
    """The record of a word after these experiments; those that have been run are not run again.

    keep: called with the record after each experiment.
    stage: the context in which a stage of the plan is done.
    """
    for name in runnable(experiments, run.model):
        if name in run.earlier:
            continue
        with stage(name):
            run.earlier[name] = EXPERIMENTS[name].measure(run)
        if keep is not None:
            keep(_record(run))
    return _record(run)


def runnable(experiments: Collection[str], model: Model) -> list[str]:
    """Of some experiments those that can be run in a model, in the order in which they are run.

    What is computed from the weights alone is left out where the owner's hooks stay on.
    """
    return [
        name
        for name, experiment in EXPERIMENTS.items()
        if name in experiments and not (experiment.from_weights and model.origin.hooks)
    ]


def measure_gates(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    *,
    random_model: Model,
) -> WordRecord:
    """The record of a word with its gates and the gaps of nouns, without the swap of any head."""
    run = _read(model, material, splits, options, random_model)
    run.prepared = prepare_pairs(run.seen, run.untrained, options)
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
    seen = observe(model, material, splits, seed=options.seed, next_token=options.next_token)
    return Run(model, options, seen, random_model)


def _prepared(sense: SenseAxes, pair: SensePair) -> Prepared:
    """Two senses as they were prepared for the record."""
    return Prepared(sense, pair.pairs, pair.gap, pair.gates, pair.reading)


def _record(run: Run) -> WordRecord:
    material = run.seen.material
    return WordRecord(
        word=material.word,
        **facts(material.sentences),
        causal=run.seen.causal,
        sentences=material.sentences,
        positions=material.targets,
        tokens_of_word=tuple(map(len, material.words)),
        left_out=tuple(unused(material, [each.sense.split for each in run.prepared])),
        not_used=_not_used(run),
        reason="",
        heads=run.model.config.n_heads,
        has_heads=tuple(run.weights.has_heads.tolist()),
        depth=run.seen.depth,
        pairs=run.pairs,
        measured={name: run.earlier[name] for name in EXPERIMENTS if name in run.earlier},
    )


def unmeasured(
    model: Model, material: Material, sentences: Sequence[Sentence], reason: str
) -> WordRecord:
    """The record of a word of which nothing can be measured, with the reason."""
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
    """`kind` of a word and the further columns of its file, as far as they are the same in all of
    its sentences."""
    columns = dict(sentences[0].more)
    for sentence in sentences:
        others = dict(sentence.more)
        columns = {
            name: value for name, value in columns.items() if others.get(name, None) == value
        }
    return {"kind": str(columns.pop("kind", "")), "columns": columns}


def count_left_out(record: WordRecord) -> dict[str, int]:
    """How many sentences and pairs of a word were not used, by reason, in alphabetical order."""
    counts = Counter(item.reason for item in record.left_out) + Counter(record.not_used)
    return {reason: counts[reason] for reason in sorted(counts)}


def _swap(run: Run, each: Prepared) -> SensePair:
    """Two senses with the swaps of every head; where there is no gap, without effects."""
    no_gap = run.options.gate and each.gates.gap >= GATE
    if no_gap and not run.options.one_of_many:
        return _pair(run, each)
    seen = run.seen
    effects, moved = swaps.measure(
        run.weights, seen.texts, seen.states, each.sense.axes, each.pairs, each.reading
    )
    return _pair(run, each, moved, None if no_gap else effects)


def _pair(
    run: Run, each: Prepared, moved: Array | None = None, effects: PairEffects | None = None
) -> SensePair:
    seen = run.seen
    split = each.sense.split
    rows = list(split.rows)
    tested = [rows[position] for position in split.tested]
    coordinates = each.sense.axes.coordinates(seen.states.resid[tested], tested)
    return SensePair(
        senses=each.sense.senses,
        split=split,
        pairs=each.pairs,
        reading=each.reading,
        gates=each.gates,
        gap=each.gap,
        raw_gap=swaps.gaps(each.sense.axes.in_units(), seen.stages.vectors, each.pairs),
        by_depth=each.sense.separation.auroc,
        squared_gap=axes.squared_gap(seen.states.resid[rows], split),
        untrained_gap=_untrained_gap(run, each),
        attention=_attention(seen, each.pairs),
        coordinates=coordinates[:, seen.depth],
        profile=_profile(seen, each.sense),
        moved=moved,
        swaps=effects,
    )


def _untrained_gap(run: Run, each: Prepared) -> Array | None:
    """The mean gap at every depth in the model of random weights."""
    if run.untrained is None:
        return None
    resid = run.untrained.resid
    in_it = axes.hold_out(resid, each.sense.split, each.sense.senses).in_units()
    return np.asarray(swaps.gaps(in_it, resid, each.pairs).mean(0))


def _attention(seen: Observation, pairs: Pairs) -> Mapping[str, Array]:
    """Mean attention from the word to its cue (NaN without one), to its neighbours and to itself,
    over the sentences of the pairs. `layer head` each"""
    used = sorted({*pairs.a, *pairs.b})
    return {
        name: to_token[used].double().nanmean(0).numpy()
        for name, to_token in seen.states.attention_to(seen.material.cues).items()
    }


def _profile(seen: Observation, sense: SenseAxes) -> tuple[SenseAtDepth, ...]:
    """Mean sense coordinates at every depth, from the token embedding alone on."""
    stages = torch.cat([seen.states.token_embedding[:, None], seen.states.resid], dim=1)
    auroc = sense.separation.auroc
    return tuple(axes.profile(sense.axes, stages, sense.split, seen.depth, auroc))


def _not_used(run: Run) -> dict[str, int]:
    """How many pairs were not swapped, and in how many of the swapped ones no noun stood."""
    tested = sum(len(tested_pairs(pair.split)) for pair in run.pairs)
    not_used = {NOT_SWAPPED: tested - sum(len(pair.pairs) for pair in run.pairs)}
    records = run.earlier.get("nouns")
    if records is not None:
        without = 0
        for pair, record in zip(run.pairs, records, strict=True):
            if record is not None:
                without += len(pair.pairs) - len(set(record.pair_of.tolist()))
        not_used[NO_NOUN_FITS] = without
    return {reason: number for reason, number in not_used.items() if number}
