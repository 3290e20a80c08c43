"""Single sentences: what the top heads read in example sentences of the study, the word's vector
there as a sum of components, and the sense that the model reads in the lesson's sentences.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probe.experiments.columns import Column, Columns, Table, as_elsewhere
from probe.experiments.material import Material, cue_positions
from probe.experiments.observe import Observation, SenseAxes, clearest
from probe.experiments.plan import Size, Work
from probe.experiments.prepare import Prepared
from probe.experiments.record import WordRecord
from probe.experiments.run import Run
from probe.model import decomposition
from probe.model.decomposition import DecompositionEntry
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import TargetText, Tokens, positions_of_span, tokenize
from probe.model.trace import target_states, trace
from probe.patching.heads import swap_heads
from probe.patching.sets import HeadIndex
from probe.stats import axes
from probe.stats.axes import Axis
from probe.stats.limits import WORTH_NAMING
from probe.stats.resampling import Array
from probe.text import lexicon
from probe.text.lexicon import Showcase

PER_SENSE = 2  # example sentences of each sense
MOST_LESSONS = 3  # sentences of the lesson with the same word
MOST_THROUGH = 3  # heads that are named for a sentence in a second model


@dataclass(frozen=True, eq=False)
class HeadReading:
    """What one head reads from every token of a sentence at its word.

    sentence: the row of the sentence
    senses: the two senses of the axis
    layer, head: the head
    pieces: the tokens as text
    labels: the tokens with their positions
    attention: `key_pos`, from the word to the token, 0 to 1
    contribution: `key_pos`, what the head writes from the token along the sense axis right after
        its layer, in fractions of the gap
    role: `key_pos`, of the token: word, cue or context
    """

    sentence: int
    senses: tuple[str, str]
    layer: int
    head: int
    pieces: tuple[str, ...]
    labels: tuple[str, ...]
    attention: Array
    contribution: Array
    role: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Decomposed:
    """The word's vector in a sentence as a sum of components, along the sense axis.

    sentence: the row of the sentence
    senses: the two senses of the axis
    terms: every component; heads have one term for each source token. A contribution is the
        component's write minus its mean write halfway between the two senses, so the contributions
        sum to `total`.
    roles: of each term's source token; None for a term without one
    total: the coordinate of the word, in fractions of the gap
    closing: the length of the difference between the vector and the sum of its terms, relative to
        the vector's length
    """

    sentence: int
    senses: tuple[str, str]
    terms: tuple[DecompositionEntry, ...]
    roles: tuple[str | None, ...]
    total: float
    closing: float


@dataclass(frozen=True, eq=False)
class LessonReading:
    """One of the lesson's sentences, read at its word.

    item: the sentence
    reads_as: the sense whose mean over the study's sentences is nearest; None in a causal model if
        the cue comes after the word, because the word cannot have read it
    coordinate: along the axis between `senses`, in fractions of the gap; NaN without a `reads_as`
    senses: the two senses of the axis; None without a `reads_as`
    difference: the largest change of any head's write at the word if everything after the word is
        removed, relative to the largest write: 0 up to rounding in a causal model
    """

    item: Showcase
    reads_as: str | None
    coordinate: float
    senses: tuple[str, str] | None
    difference: float


@dataclass(frozen=True, eq=False)
class SecondReading:
    """One of the lesson's sentences whose cue comes after the word, in a model that may read both
    ways.

    A token's share is the fraction of the coordinate that is lost if the token is hidden. If the
    word does not read as the intended sense, `source` is None, `through` is empty and all numbers
    after `gap_p` are NaN.

    lesson: the sentence, read at its word
    gap_p: p of the gap between the two senses in that model
    source: the token with the largest share, the word excepted
    share: its share
    through: the names of the heads through which most of that share passes, each with the fraction
        of the coordinate that is lost if the head is swapped
    cue_share: the share of the marked cue; NaN if no cue is marked
    cue_alone: the coordinate if every other token but the cue is hidden; NaN if no cue is marked
    word_alone: the coordinate if every other token is hidden; NaN if no cue is marked
    """

    lesson: LessonReading
    gap_p: float
    source: str | None
    share: float
    through: tuple[tuple[str, float], ...]
    cue_share: float
    cue_alone: float
    word_alone: float


@dataclass(frozen=True, eq=False)
class Examples:
    """Example sentences of a word: what the top heads read there, and the word's vector as a
    sum."""

    readings: tuple[HeadReading, ...]
    decomposed: tuple[Decomposed, ...]


RECORDS = (Examples, HeadReading, Decomposed, DecompositionEntry)
LESSON_RECORDS = (LessonReading, Showcase)

# The columns that identify a sentence of a word and the senses of its axis.
SENTENCE = ("word", "sense", "sentence", "sense_a", "sense_b")


def _key(record: WordRecord, sentence: int, senses: tuple[str, str]) -> Columns:
    """The values of SENTENCE."""
    values = (record.word, record.labels[sentence], sentence, *senses)
    return dict(zip(SENTENCE, values, strict=True))


def _readings(record: WordRecord) -> Iterator[Columns]:
    for reading in record.measured.get("readings", NO_EXAMPLES).readings:
        yield {
            **_key(record, reading.sentence, reading.senses),
            "text": record.sentences[reading.sentence].text,
            "layer": reading.layer,
            "head": reading.head,
            "pos": range(len(reading.pieces)),
            "piece": reading.pieces,
            "label": reading.labels,
            "attention": reading.attention,
            "contribution": reading.contribution,
            "role": reading.role,
        }


def _decomposition(record: WordRecord) -> Iterator[Columns]:
    for sentence in record.measured.get("readings", NO_EXAMPLES).decomposed:
        yield {
            **_key(record, sentence.sentence, sentence.senses),
            **{name: [getattr(term, name) for term in sentence.terms] for name in TERM},
            "role": sentence.roles,
            "total": sentence.total,
            "closing": sentence.closing,
        }


def lesson_row(lesson: LessonReading) -> dict[str, Any]:
    """One of the lesson's sentences as a row of the table `showcase`."""
    sense_a, sense_b = lesson.senses or (None, None)
    return {name: getattr(lesson.item, name) for name in LESSON} | {
        "reads_as": lesson.reads_as,
        "coordinate": lesson.coordinate,
        "sense_a": sense_a,
        "sense_b": sense_b,
        "difference": lesson.difference,
    }


def _lessons(record: WordRecord) -> Iterator[Columns]:
    for lesson in record.measured.get("lessons", ()):
        yield {name: [value] for name, value in lesson_row(lesson).items()}


NO_EXAMPLES = Examples((), ())
TERM = tuple(field.name for field in fields(DecompositionEntry))
LESSON = (
    "text",
    "word",
    "sense",
    "start",
    "end",
    "cue",
    "cue_start",
    "cue_end",
    "cue_after",
    "note",
)
TABLES = {
    "readings": Table(
        "what the top heads read and write on example sentences, token by token",
        {
            **as_elsewhere("word", "sense", "sentence", "text", "sense_a", "sense_b"),
            **as_elsewhere("layer", "head", "pos", "piece"),
            "label": Column("position and token"),
            **as_elsewhere("attention", "contribution", "role"),
        },
        _readings,
    ),
    "decomposition": Table(
        "the word's vector on example sentences as a sum, term by term",
        as_elsewhere(*SENTENCE, *TERM[:5], "role", *TERM[5:], "total", "closing"),
        _decomposition,
        missing=("layer", "head", "pos"),
    ),
}
LESSON_TABLES = {
    "showcase": Table(
        "the sentences that introductions use",
        as_elsewhere(*LESSON, "reads_as", "coordinate", "sense_a", "sense_b", "difference"),
        _lessons,
    )
}


def measure(run: Run) -> Examples:
    """What the top heads read in the example sentences, and the word's vector as a sum if the
    heads of its two senses were swapped.
    """
    observation = run.observation
    readings = []
    terms = []
    averages: dict[tuple[object, ...], Mapping[str, Tensor]] = {}
    swapped_senses = {each.prepared.sense.senses for each in run.swapped_pairs}
    for row in _example_rows(observation, run.prepared):
        traced = trace(run.model, observation.material.sentences[row].text)
        pair = _pair_of(run.prepared, observation.material.labels[row])
        readings += [_reading(observation, row, pair, traced, head) for head in run.top_heads]
        if pair.sense.senses not in swapped_senses:
            continue
        # Rows that are held out together share their axis and everything fitted with it.
        held_out = (*pair.sense.senses, int(pair.sense.axes.cell[row]))
        if held_out not in averages:
            averages[held_out] = _average(run.model, observation, pair, row)
        terms.append(_decomposed(observation, row, pair, traced, averages[held_out]))
    return Examples(tuple(readings), tuple(terms))


def work(size: Size) -> Work:
    """The work of the example sentences."""
    return Work(forwards=PER_SENSE * (len(size.pairs) + 1))


def lessons_work(size: Size) -> Work:
    """The work of the lesson's sentences of one word: each is run whole, and without the tokens
    after the word.
    """
    return Work(forwards=2 * MOST_LESSONS)


def measure_lessons(run: Run) -> tuple[LessonReading, ...]:
    """The readings of the lesson's sentences with this word."""
    return tuple(
        read_lesson(run.model, run.observation, item) for item in lessons_of(run.observation)
    )


def _example_rows(observation: Observation, prepared: Sequence[Prepared]) -> list[int]:
    """The rows of the example sentences: PER_SENSE of each sense, with different distances from the
    cue to the word if there are any.
    """
    examples = []
    for sense in dict.fromkeys(observation.material.labels):
        pair = _pair_of(prepared, sense)
        split = pair.sense.split
        is_a = sense == pair.sense.senses[0]
        of_sense = [
            split.rows[position] for position in split.tested if split.is_a[position] == is_a
        ]
        order = np.random.default_rng(pair.pairs.seed).permutation(len(of_sense))
        shuffled = [of_sense[index] for index in order]
        # The first sentence of every distance comes before any second one.
        first_of_distance: dict[int | None, int] = {}
        for row in shuffled:
            first_of_distance.setdefault(observation.material.distances[row], row)
        preferred = dict.fromkeys([*first_of_distance.values(), *shuffled])
        examples += sorted(list(preferred)[:PER_SENSE])
    return examples


def _pair_of(prepared: Sequence[Prepared], sense: str) -> Prepared:
    """The pair of senses with the clearest gap among the pairs that include this sense."""
    holding = [each for each in prepared if sense in each.sense.senses]
    p = [each.gates.gap for each in holding]
    return holding[clearest(p, [each.gates.largest_t for each in holding])]


def _reading(
    observation: Observation, row: int, pair: Prepared, traced: Trace, head: HeadIndex
) -> HeadReading:
    """What one head reads from every token of a sentence at its word."""
    target = observation.material.targets[row]
    layer, number = head
    # A head's write is read right after its layer, before any later layer changes it.
    axis = pair.sense.axes.at(row, pair.reading.direct[layer])
    return HeadReading(
        sentence=row,
        senses=pair.sense.senses,
        layer=layer,
        head=number,
        pieces=traced.tokens.pieces,
        labels=traced.tokens.labels,
        attention=traced.pattern[layer, number, target].double().numpy(),
        contribution=axis.effect(traced.delta_e_by_source(layer, number, target)).numpy(),
        role=tuple(_role(observation.material, row, pos) for pos in range(len(traced.tokens))),
    )


def _role(material: Material, row: int, pos: int) -> str:
    if pos in material.words[row]:
        return "word"
    return "cue" if pos in (material.cues[row] or ()) else "context"


def _average(
    model: Model, observation: Observation, pair: Prepared, row: int
) -> Mapping[str, Tensor]:
    """The mean write of every component halfway between the two senses, over the sentences that
    the axis of this row was fitted on.
    """
    split = pair.sense.split
    train = split.holdouts[int(pair.sense.axes.cell[row])].train
    rows_a = [split.rows[position] for position in train if split.is_a[position]]
    rows_b = [split.rows[position] for position in train if not split.is_a[position]]
    weights = read_weights(model)
    return decomposition.average(
        weights, observation.states, rows_a, rows_b, depth=observation.depth
    )


def _decomposed(
    observation: Observation, row: int, pair: Prepared, traced: Trace, average: Mapping[str, Tensor]
) -> Decomposed:
    """The word's vector in a sentence as a sum, along the axis that was fitted without the
    sentence.
    """
    axis = pair.sense.axes.at(row, observation.depth)
    target = observation.material.targets[row]
    terms = decomposition.decompose_resid(traced, axis.depth, at=target, axis=axis, average=average)
    return Decomposed(
        sentence=row,
        senses=pair.sense.senses,
        terms=tuple(terms),
        roles=tuple(
            None if term.pos is None else _role(observation.material, row, term.pos)
            for term in terms
        ),
        total=axis.coordinate(traced.resid_post[axis.depth - 1, target]).item(),
        closing=decomposition.closing_error(traced, axis.depth, at=target),
    )


# --- the lesson's sentences -----------------------------------------------------------------------


def lessons_of(observation: Observation) -> list[Showcase]:
    """The lesson's sentences of a word.

    Sentences of a sense that the study does not have are left out: users may name senses
    differently.
    """
    return [
        item
        for item in lexicon.showcase()
        if item.word == observation.material.word and item.sense in observation.material.labels
    ]


def read_lesson(model: Model, observation: Observation, item: Showcase) -> LessonReading:
    """The nearest sense and the sense coordinate of the word in one of the lesson's sentences."""
    whole = trace(model, item.text)
    target = positions_of_span(whole.tokens, item.start, item.end)[-1]
    difference = later_words_matter(model, whole, target)
    # A causal model cannot have read a cue that comes after the word.
    if item.cue_after and model.config.causal:
        return LessonReading(item, None, float("nan"), None, difference)
    resid = whole.resid_post[observation.depth - 1, target]
    reads_as = axes.nearest_sense(observation.resid, observation.material.labels, resid[None])[0]
    axis = observation.axis_for_others(_pair_with(observation, item.sense, reads_as))
    return LessonReading(
        item,
        reads_as,
        axis.coordinate(resid.double()).item(),
        (axis.sense_a, axis.sense_b),
        difference,
    )


def _pair_with(observation: Observation, sense: str, reads_as: str) -> SenseAxes:
    """The pair of a sentence's sense and the sense that it reads as.

    If these are equal, or the study does not have the former: the first pair that includes the
    latter.
    """
    both = [pair for pair in observation.pairs if {sense, reads_as} == set(pair.senses)]
    return (both or [pair for pair in observation.pairs if reads_as in pair.senses])[0]


def later_words_matter(model: Model, whole: Trace, target: int) -> float:
    """The largest change of any head's write at `target` if every later token is removed, relative
    to the largest write.
    """
    # layer head d_head d_model
    with_heads = [block.w_o for block in whole.weights.blocks if block.mixer is None]
    w_o = torch.stack(with_heads).cpu()
    has_heads = whole.weights.has_heads.cpu()
    tokens = whole.tokens
    # `target_states` cuts a causal model's text after the word anyway.
    if not model.config.causal:
        tokens = tokenize(model, tokens.text[: tokens.spans[target][1]])
    without = target_states(model, [tokens], [target]).z[0, has_heads]
    # ΔE = z W_O, `layer head d_model`
    write = (whole.z[has_heads, :, target].unsqueeze(-2) @ w_o).squeeze(-2)
    write_without = (without.unsqueeze(-2) @ w_o).squeeze(-2)
    return ((write - write_without).abs().max() / write.abs().max()).item()


# --- a second model -------------------------------------------------------------------------------


def read_second(
    model: Model, observation: Observation, prepared: Sequence[Prepared]
) -> list[SecondReading]:
    """The readings of the lesson's sentences whose cue comes after the word, and the tokens and
    heads that they depend on.

    Every token except the word is hidden in turn: it is replaced by [MASK], or removed if the
    tokenizer has no mask. Tokens and heads are reported only if the word reads as the intended
    sense.
    """
    readings = []
    for item in lessons_of(observation):
        if not item.cue_after:
            continue
        lesson = read_lesson(model, observation, item)
        sense = _pair_with(observation, item.sense, str(lesson.reads_as))
        [p] = [each.gates.gap for each in prepared if each.sense is sense]
        causes: dict[str, Any] = {"source": None, "through": ()}
        causes |= dict.fromkeys(("share", "cue_share", "cue_alone", "word_alone"), float("nan"))
        if lesson.reads_as == item.sense:
            causes |= _causes(model, observation.axis_for_others(sense), item)
        readings.append(SecondReading(lesson, p, **causes))
    return readings


def _causes(model: Model, axis: Axis, item: Showcase) -> dict[str, object]:
    """The token that the coordinate depends on most, the heads through which it acts, and the
    effect of the marked cue.
    """
    tokens = tokenize(model, item.text)
    word = positions_of_span(tokens, item.start, item.end)
    cue = cue_positions(tokens, item) or range(0)
    context = [
        pos for pos, (start, end) in enumerate(tokens.spans) if start < end and pos not in word
    ]
    # Each token except the word hidden by itself, then all of them but the cue, then all of them.
    hidden = [[pos] for pos in context]
    hidden += [[pos for pos in context if pos not in cue], context]
    variants = [(tokens, word[-1])]
    variants += [_without(model, tokens, positions, word[-1]) for positions in hidden]
    states = target_states(model, [cut for cut, _ in variants], [at for _, at in variants])
    coordinates = axis.coordinate(states.resid[:, axis.depth]).tolist()
    whole, *without, cue_alone, word_alone = coordinates
    # share = (M - M without the token) / M
    lost = {
        pos: (whole - coordinate) / whole for pos, coordinate in zip(context, without, strict=True)
    }
    lead = max(context, key=lost.__getitem__)
    donor = states.z[[1 + context.index(lead)], : axis.depth]
    # The product of a change with this direction is the fraction of the coordinate that it costs.
    cost = axis.u / axis.gap / -whole
    causes: dict[str, object] = {
        "source": tokens.pieces[lead].strip() or tokens.labels[lead],
        "share": lost[lead],
        "through": _through(model, TargetText(tokens.ids, word[-1]), donor, cost),
    }
    if cue:
        cue_share = max(lost[pos] for pos in cue)
        causes |= {"cue_share": cue_share, "cue_alone": cue_alone, "word_alone": word_alone}
    return causes


def _through(
    model: Model, text: TargetText, donor: Tensor, cost: Tensor
) -> tuple[tuple[str, float], ...]:
    """The names of the heads whose swaps cost most, and their costs.

    donor: `1 layer head d_head`, the z that one head at a time gets
    cost: `d_model`, the direction that costs are measured along
    """
    by_layer = swap_heads(read_weights(model), [text], donor, cost[None])[0, ..., 0].double()
    costs = []
    for layer, of_layer in enumerate(by_layer.tolist()):
        for head, cost_of_head in enumerate(of_layer):
            if cost_of_head >= WORTH_NAMING:
                costs.append((cost_of_head, f"L{layer}H{head}"))
    largest = sorted(costs, reverse=True)[:MOST_THROUGH]
    return tuple((name, cost) for cost, name in largest)


def _without(model: Model, tokens: Tokens, hidden: Collection[int], at: int) -> tuple[Tokens, int]:
    """The tokens with some of them hidden, and the position at which the word is then read."""
    # A mask keeps every position; without one, tokens are removed and the word moves forward.
    mask = model.tokenizer.mask_token_id
    if mask is not None:
        ids = tuple(mask if pos in hidden else token for pos, token in enumerate(tokens.ids))
        return replace(tokens, ids=ids), at
    parts: dict[str, Any] = {
        name: tuple(part for pos, part in enumerate(getattr(tokens, name)) if pos not in hidden)
        for name in ("ids", "pieces", "spans")
    }
    return replace(tokens, **parts), at - sum(pos < at for pos in hidden)
