"""The measurement of one word, for a report and for a survey.

For every pair of senses of a word, sentences are held out in folds of cue words and frames, and
sense axes are fitted at every depth (`observe`). Before any swap, there must be a gap between the
senses at some depth (`prepare`), unless the word is one of a sample of words. All measurements are
experiments (`table`), which are run in their order.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from probe.experiments import nouns
from probe.experiments.design import Readout, pairs_of
from probe.experiments.material import Material, SensePairSplits, unused
from probe.experiments.observe import SenseAxes, observe
from probe.experiments.options import Options
from probe.experiments.prepare import GATES, Prepared, prepare_pairs
from probe.experiments.record import WordRecord
from probe.experiments.run import WordRun
from probe.experiments.table import every_experiment
from probe.model.kept_keys import keeping
from probe.model.model import Model
from probe.model.weights import weights_of
from probe.progress import Begin, Countdown, Progress, silent, unreported
from probe.side_by_side import side_by_side
from probe.stats.numbers import counted
from probe.text.sentences import Sentence

if TYPE_CHECKING:
    import xarray as xr

# The stage of the work before the experiments.
READING = "reading the sentences"
SECONDS = {READING: 13.0}  # for *bank* in SmolLM2, as the experiments say of theirs
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
        >>> record.of_pairs("heads")[0].moved_by_depth.shape  # layer head depth measure
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
    return set(experiments) - set(() if record is None else record.measured)


def start(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    *,
    random_model: Model | None = None,
    earlier: WordRecord | None = None,
    begin: Begin = unreported,
) -> WordRun:
    """A word with its sentences read, before any experiment.

    begin: called with the name of each stage when it begins

    The other arguments are as in `measure`.
    """
    begin(READING)
    run = _read(model, material, splits, options, random_model)
    if earlier is None:
        with keeping(run.kept_keys):
            run.prepared = prepare_pairs(run.observation, run.untrained, options)
    else:
        # A record contains no axes. They are fitted again on the same splits.
        run.prepared = tuple(
            _kept(run, sense, data)
            for sense, data in zip(run.observation.pairs, earlier.senses, strict=True)
        )
        run.earlier.update(earlier.measured)
    return run


def _kept(run: WordRun, sense: SenseAxes, data: "xr.Dataset") -> Prepared:
    """Two senses as they were prepared when they were measured.

    data: of the experiment "senses"
    """
    stages = run.observation.stages
    layers = len(run.weights.blocks)
    return Prepared(
        sense,
        pairs_of(data),
        data.gaps.values,
        {name: data[name].item() for name in GATES},
        Readout(
            tuple(data.read_depth.values.tolist()),
            tuple(data.write_depth.values.tolist()),
            None if stages.root is None else layers + 1,
            layers + 2 if stages.toward else None,
        ),
    )


def proceed(
    run: WordRun,
    experiments: Collection[str],
    *,
    keep: Callable[[WordRecord], object] | None = None,
    begin: Begin = unreported,
) -> WordRecord:
    """The record of a word after some experiments; an experiment that has been run is not run
    again.

    keep: called with the record after each experiment
    begin: called with the name of each stage when it begins

    The experiments that answer run one after the other. All others depend only on these and on what
    they need, and run side by side.
    """
    table = every_experiment()
    waiting = [name for name in table if name in experiments and name not in run.earlier]

    def result_of(name: str) -> Any:
        begin(name)
        # What the others keep would depend on who comes first, so they keep it for themselves.
        with keeping(run.kept_keys if table[name].ANSWERS else run.kept_keys.copy()):
            return table[name].measure(run)

    while waiting:
        ready = [name for name in waiting if not set(table[name].NEEDS).intersection(waiting)]
        if table[ready[0]].ANSWERS:
            together = ready[:1]
        else:
            together = [name for name in ready if not table[name].ANSWERS]
            # The longest first, so that the last ones end at about the same time.
            together.sort(key=lambda name: -table[name].SECONDS)
        calls = [partial(result_of, name) for name in together]
        for number, result in side_by_side(calls, run.model.device):
            run.earlier[together[number]] = result
            # After each experiment, so that an interrupted measurement can be continued.
            if keep is not None:
                keep(_record(run))
        waiting = [name for name in waiting if name not in together]
    return _record(run)


def measure_gates(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    *,
    random_model: Model | None,
) -> tuple[tuple[Prepared, ...], list[dict[str, Any] | None]]:
    """The pairs of senses of a word with their gates, and the ambiguity gate of each, without the
    swap of any head (`probe.experiments.nouns.measure_gates`).

    The arguments are as in `measure`.
    """
    run = _read(model, material, splits, options, random_model)
    run.prepared = prepare_pairs(run.observation, run.untrained, options)
    return run.prepared, nouns.measure_gates(run)


def _read(
    model: Model,
    material: Material,
    splits: SensePairSplits,
    options: Options,
    random_model: Model | None,
) -> WordRun:
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
    return WordRun(model, options, observation, random_model)


def _record(run: WordRun) -> WordRecord:
    """The record of the measurements so far."""
    material = run.observation.material
    return WordRecord(
        word=material.word,
        **facts(material.sentences),
        causal=run.observation.causal,
        left_out=tuple(unused(material, [each.sense.split for each in run.prepared])),
        not_used=_not_used(run),
        reason="",
        heads=run.model.config.n_heads,
        has_heads=tuple(run.weights.has_heads.tolist()),
        depth=run.observation.depth,
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
        left_out=material.left_out,
        not_used={reason: len(material)} if len(material) else {},
        reason=reason,
        heads=model.config.n_heads,
        has_heads=tuple(weights_of(model).has_heads.tolist()),
        depth=0,
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


def _not_used(run: WordRun) -> dict[str, int]:
    """The number of pairs that were not swapped, and of swapped pairs that no noun fits, by
    reason.
    """
    tested = sum(len(each.sense.split.tested_pairs) for each in run.prepared)
    swapped = sum(len(each.pairs) for each in run.prepared)
    not_used = {not_swapped(tested, run.options.pairs): tested - swapped}
    results = run.of_pairs("nouns")
    if any(results):
        # `pair_of` has an entry for each noun in each pair, so pairs are counted once.
        not_used[NO_NOUN_FITS] = sum(
            len(each.pairs) - len(set(result.pair_of.values.tolist()))
            for each, result in zip(run.prepared, results, strict=True)
            if result is not None
        )
    return {reason: number for reason, number in not_used.items() if number}
