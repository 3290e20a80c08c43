"""Single sentences to look at: what the leading heads do in some of the study's, and the lesson's
sentences read at their word.
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

PER_SENSE = 2  # sentences that are shown
MOST_LESSONS = 3  # sentences of the lesson with one word
MOST_THROUGH = 3  # heads that are named for what a second model reads


@dataclass(frozen=True, eq=False)
class HeadReading:
    """What one head reads from every token of a sentence at its word.

    sentence: the row of the sentence. senses: between which the axis runs.
    attention: from the word, 0 to 1. `key_pos`
    contribution: what came from the token along the sense axis right after the head's layer, in
        fractions of the gap. `key_pos`
    role: of the token: word, cue or context.
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
    """The vector at the word of a sentence as a sum, along the axis it is read along.

    terms: every component, a head's by source token. Their contributions are counted from what the
        component writes halfway between the two senses, so they sum to `total`.
    roles: of the source tokens; None for what has none.
    closing: how far the terms miss the vector, relative to its length.
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

    reads_as: the sense whose mean over the study's sentences is nearest; None where the cue comes
        after the word of a causal model, which cannot have read it.
    coordinate: along the axis between `senses`; NaN and None there.
    difference: the largest change of any head's write at the word when everything after the word is
        removed, relative to the largest write: 0 up to rounding in a causal model.
    """

    item: Showcase
    reads_as: str | None
    coordinate: float
    senses: tuple[str, str] | None
    difference: float


@dataclass(frozen=True, eq=False)
class SecondReading:
    """One of the lesson's sentences whose cue comes later, in a model that may read both ways.

    gap_p: of the gap between the two senses in that model.
    source: the other token whose absence costs most of the coordinate. share: how much of it.
    through: the heads that cost most of that, with how much of the coordinate.
    cue_share: the same as `share` for the marked cue. cue_alone: the coordinate with the cue as the
        only other word that is not hidden. nothing: with none. NaN where no cue is marked.
    """

    lesson: LessonReading
    gap_p: float
    source: str | None
    share: float
    through: tuple[tuple[str, float], ...]
    cue_share: float
    cue_alone: float
    nothing: float


@dataclass(frozen=True, eq=False)
class Examples:
    """Some sentences of a word: what heads read there, and the vector at the word as a sum."""

    readings: tuple[HeadReading, ...]
    decomposed: tuple[Decomposed, ...]


RECORDS = (Examples, HeadReading, Decomposed, DecompositionEntry)
LESSON_RECORDS = (LessonReading, Showcase)

# The row of a sentence of a word, and the senses that its axis runs between.
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
        "what the leading heads read and write on example sentences, token by token",
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
    """What the first heads read in some sentences, and the vector at the word as a sum where the
    two senses were swapped."""
    seen = run.seen
    readings = []
    terms = []
    averages: dict[tuple[object, ...], Mapping[str, Tensor]] = {}
    swapped = {each.prepared.sense.senses for each in run.swapped}
    for row in _example_rows(seen, run.prepared):
        traced = trace(run.model, seen.material.sentences[row].text)
        pair = _pair_of(run.prepared, seen.material.labels[row])
        readings += [_reading(seen, row, pair, traced, head) for head in run.leaders]
        if pair.sense.senses not in swapped or run.model.origin.hooks:
            continue  # hooks may write what is no component
        # Rows that are held out together share the axis, and what is fitted with it.
        held_out = (*pair.sense.senses, int(pair.sense.axes.cell[row]))
        if held_out not in averages:
            averages[held_out] = _average(run.model, seen, pair, row)
        terms.append(_decomposed(seen, row, pair, traced, averages[held_out]))
    return Examples(tuple(readings), tuple(terms))


def work(size: Size) -> Work:
    """The sentences that are shown."""
    return Work(forwards=PER_SENSE * (len(size.pairs) + 1))


def lessons_work(size: Size) -> Work:
    """The lesson's sentences of one word, and these again without what follows the word."""
    return Work(forwards=2 * MOST_LESSONS)


def measure_lessons(run: Run) -> tuple[LessonReading, ...]:
    """The lesson's sentences with this word."""
    return tuple(read_lesson(run.model, run.seen, item) for item in lessons_of(run.seen))


def _example_rows(seen: Observation, prepared: Sequence[Prepared]) -> list[int]:
    """Sentences to show: for each sense PER_SENSE of them, of different cue distances where there
    are any."""
    examples = []
    for sense in dict.fromkeys(seen.material.labels):
        pair = _pair_of(prepared, sense)
        split = pair.sense.split
        is_a = sense == pair.sense.senses[0]
        of_sense = [
            split.rows[position] for position in split.tested if split.is_a[position] == is_a
        ]
        order = np.random.default_rng(pair.pairs.seed).permutation(len(of_sense))
        shuffled = [of_sense[index] for index in order]
        first_of_distance: dict[int | None, int] = {}
        for row in shuffled:
            first_of_distance.setdefault(seen.material.distances[row], row)
        preferred = dict.fromkeys([*first_of_distance.values(), *shuffled])
        examples += sorted(list(preferred)[:PER_SENSE])
    return examples


def _pair_of(prepared: Sequence[Prepared], sense: str) -> Prepared:
    """The clearest pair of senses that holds this one."""
    holding = [each for each in prepared if sense in each.sense.senses]
    p = [each.gates.gap for each in holding]
    return holding[clearest(p, [each.gates.largest_t for each in holding])]


def _reading(
    seen: Observation, row: int, pair: Prepared, traced: Trace, head: HeadIndex
) -> HeadReading:
    """What one head reads from every token of a sentence at its word."""
    target = seen.material.targets[row]
    layer, number = head
    # Right after the head's own layer.
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
        role=tuple(_role(seen.material, row, pos) for pos in range(len(traced.tokens))),
    )


def _role(material: Material, row: int, pos: int) -> str:
    if pos in material.words[row]:
        return "word"
    return "cue" if pos in (material.cues[row] or ()) else "context"


def _average(model: Model, seen: Observation, pair: Prepared, row: int) -> Mapping[str, Tensor]:
    """What every component writes halfway between the two senses, where the axis of this row was
    fitted."""
    split = pair.sense.split
    train = split.holdouts[int(pair.sense.axes.cell[row])].train
    rows_a = [split.rows[position] for position in train if split.is_a[position]]
    rows_b = [split.rows[position] for position in train if not split.is_a[position]]
    weights = read_weights(model)
    return decomposition.average(weights, seen.states, rows_a, rows_b, depth=seen.depth)


def _decomposed(
    seen: Observation, row: int, pair: Prepared, traced: Trace, average: Mapping[str, Tensor]
) -> Decomposed:
    """Every term of the vector at the word of a sentence, along the axis it is read along."""
    axis = pair.sense.axes.at(row, seen.depth)
    target = seen.material.targets[row]
    terms = decomposition.decompose_resid(traced, axis.depth, at=target, axis=axis, average=average)
    return Decomposed(
        sentence=row,
        senses=pair.sense.senses,
        terms=tuple(terms),
        roles=tuple(
            None if term.pos is None else _role(seen.material, row, term.pos) for term in terms
        ),
        total=axis.coordinate(traced.resid_post[axis.depth - 1, target]).item(),
        closing=decomposition.closing_error(traced, axis.depth, at=target),
    )


# --- the lesson's sentences -----------------------------------------------------------------------


def lessons_of(seen: Observation) -> list[Showcase]:
    """The lesson's sentences of a word, whose senses a user may have named otherwise."""
    return [
        item
        for item in lexicon.showcase()
        if item.word == seen.material.word and item.sense in seen.material.labels
    ]


def read_lesson(model: Model, seen: Observation, item: Showcase) -> LessonReading:
    """Nearest sense and sense coordinate of the word in one of the lesson's sentences."""
    whole = trace(model, item.text)
    target = positions_of_span(whole.tokens, item.start, item.end)[-1]
    difference = later_words_matter(model, whole, target)
    if item.cue_after and model.config.causal:
        return LessonReading(item, None, float("nan"), None, difference)
    resid = whole.resid_post[seen.depth - 1, target]
    reads_as = axes.nearest_sense(seen.resid, seen.material.labels, resid[None])[0]
    axis = seen.axis_for_others(_pair_with(seen, item.sense, reads_as))
    return LessonReading(
        item,
        reads_as,
        axis.coordinate(resid.double()).item(),
        (axis.sense_a, axis.sense_b),
        difference,
    )


def _pair_with(seen: Observation, sense: str, other: str) -> SenseAxes:
    """The pair of two senses; of the other and any third where both are the same or the sense is
    not in the study."""
    both = [pair for pair in seen.pairs if {sense, other} == set(pair.senses)]
    return (both or [pair for pair in seen.pairs if other in pair.senses])[0]


def later_words_matter(model: Model, whole: Trace, target: int) -> float:
    """The largest change of any head's write at `target` when every later token is removed,
    relative to the largest write."""
    # layer head d_head d_model
    with_heads = [block.w_o for block in whole.weights.blocks if block.mixer is None]
    w_o = torch.stack(with_heads).cpu()
    has_heads = whole.weights.has_heads.cpu()
    tokens = whole.tokens
    if not model.config.causal:
        tokens = tokenize(model, tokens.text[: tokens.spans[target][1]])
    without = target_states(model, [tokens], [target]).z[0, has_heads]
    written = (whole.z[has_heads, :, target].unsqueeze(-2) @ w_o).squeeze(-2)
    written_without = (without.unsqueeze(-2) @ w_o).squeeze(-2)
    return ((written - written_without).abs().max() / written.abs().max()).item()


# --- a second model -------------------------------------------------------------------------------


def read_second(
    model: Model, seen: Observation, prepared: Sequence[Prepared]
) -> list[SecondReading]:
    """The lesson's sentences of a word whose cue comes later, and what their reading depends on.

    Every other token is hidden in turn: [MASK] takes its place, or it is taken out where the
    tokenizer has no mask. What the reading depends on is left out where the word does not read as
    the sense that is meant.
    """
    readings = []
    for item in lessons_of(seen):
        if not item.cue_after:
            continue
        lesson = read_lesson(model, seen, item)
        sense = _pair_with(seen, item.sense, str(lesson.reads_as))
        [p] = [each.gates.gap for each in prepared if each.sense is sense]
        causes: dict[str, Any] = {"source": None, "through": ()}
        causes |= dict.fromkeys(("share", "cue_share", "cue_alone", "nothing"), float("nan"))
        if lesson.reads_as == item.sense:
            causes |= _causes(model, seen.axis_for_others(sense), item)
        readings.append(SecondReading(lesson, p, **causes))
    return readings


def _causes(model: Model, axis: Axis, item: Showcase) -> dict[str, object]:
    """The token that the coordinate depends on most, the heads it depends on, and what the marked
    cue does."""
    tokens = tokenize(model, item.text)
    word = positions_of_span(tokens, item.start, item.end)
    cue = cue_positions(tokens, item) or range(0)
    others = [
        pos for pos, (start, end) in enumerate(tokens.spans) if start < end and pos not in word
    ]
    # Each other token hidden by itself, all but the cue, all.
    hidden = [[pos] for pos in others]
    hidden += [[pos for pos in others if pos not in cue], others]
    variants = [(tokens, word[-1])]
    variants += [_without(model, tokens, positions, word[-1]) for positions in hidden]
    states = target_states(model, [cut for cut, _ in variants], [at for _, at in variants])
    whole, *without, alone, nothing = axis.coordinate(states.resid[:, axis.depth]).tolist()
    lost = {
        pos: (whole - coordinate) / whole for pos, coordinate in zip(others, without, strict=True)
    }
    lead = max(others, key=lost.__getitem__)
    donor = states.z[[1 + others.index(lead)], : axis.depth]
    cost = axis.u / axis.gap / -whole  # the part of the coordinate that a change takes away
    causes: dict[str, object] = {
        "source": tokens.pieces[lead].strip() or tokens.labels[lead],
        "share": lost[lead],
        "through": _through(model, TargetText(tokens.ids, word[-1]), donor, cost),
    }
    if cue:
        cue_share = max(lost[pos] for pos in cue)
        causes |= {"cue_share": cue_share, "cue_alone": alone, "nothing": nothing}
    return causes


def _through(
    model: Model, text: TargetText, donor: Tensor, cost: Tensor
) -> tuple[tuple[str, float], ...]:
    """The heads that cost most when each alone has the donor's z, with how much.

    cost: the direction that measures it. `d_model`
    """
    moved = swap_heads(read_weights(model), [text], donor, cost[None])[0, ..., 0].double()
    costs = []
    for layer, of_layer in enumerate(moved.tolist()):
        for head, cost_of_head in enumerate(of_layer):
            if cost_of_head >= WORTH_NAMING:
                costs.append((cost_of_head, f"L{layer}H{head}"))
    leading = sorted(costs, reverse=True)[:MOST_THROUGH]
    return tuple((name, cost) for cost, name in leading)


def _without(model: Model, tokens: Tokens, hidden: Collection[int], at: int) -> tuple[Tokens, int]:
    """The tokens with some of them hidden, and where the word is read then."""
    mask = model.tokenizer.mask_token_id
    if mask is not None:
        ids = tuple(mask if pos in hidden else token for pos, token in enumerate(tokens.ids))
        return replace(tokens, ids=ids), at
    parts: dict[str, Any] = {
        name: tuple(part for pos, part in enumerate(getattr(tokens, name)) if pos not in hidden)
        for name in ("ids", "pieces", "spans")
    }
    return replace(tokens, **parts), at - sum(pos < at for pos in hidden)
