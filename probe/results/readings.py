"""Single sentences to look at: what the leading heads do in some of the study's, and the lesson's
read at their word.

`readings`: attention of the word over real report sentences, and ΔE by source token on the sense
axis, of the leading heads of each word. `decomposition`: on the same sentences, every term of the
vector at the word. `showcase`: the sentences that every introduction to attention uses.
`second_model`: those whose cue comes later, in a model that may read both ways, with the token that
the reading depends on most.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.experiments.material import Material, cue_positions
from probe.experiments.word import PairResult, WordResult, clearest
from probe.model import decomposition
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import TargetText, Tokens, positions_of_span, tokenize
from probe.model.trace import target_states, trace
from probe.patching.heads import swap_heads
from probe.results.columns import LEADERS, leading_heads, rounded, stacked, with_key
from probe.stats import axes
from probe.stats.axes import Axis
from probe.stats.limits import GATE, WORTH_NAMING
from probe.stats.numbers import listed, percent
from probe.text import lexicon
from probe.text.lexicon import Showcase

PER_SENSE = 2  # sentences that are shown
SENTENCE = ("word", "sense", "sentence", "sense_a", "sense_b")
READINGS = (
    "word",
    "sense",
    "sentence",
    "text",
    "sense_a",
    "sense_b",
    "layer",
    "head",
    "pos",
    "piece",
    "label",
    "attention",
    "contribution",
    "role",
)
DECOMPOSITION = (
    *SENTENCE,
    "component",
    "layer",
    "head",
    "pos",
    "token",
    "role",
    "norm",
    "contribution",
    "total",
    "closing",
)
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
SHOWCASE = (*LESSON, "reads_as", "coordinate", "sense_a", "sense_b", "difference")
SECOND_MODEL = (
    "model",
    "text",
    "word",
    "sense",
    "reads_as",
    "coordinate",
    "sense_a",
    "sense_b",
    "shown",
    "difference",
    "source",
    "share",
    "through",
    "cue",
    "cue_share",
    "cue_alone",
    "nothing",
)


def frames(
    model: Model, results: Sequence[WordResult], word_heads: pd.DataFrame, *, seed: int
) -> dict[str, pd.DataFrame]:
    """`readings`, `decomposition` and `showcase`.

    In `readings` stands the attention from the word (0 to 1) to every token, per word, leading head
    and example sentence, and as `contribution` <ΔE[t←j], u> / gap, what came from that token along
    the sense axis right behind the head's layer. In `decomposition` every component, for a head by
    source token, of senses that are apart from another; its `contribution` is counted from what the
    component writes halfway between the two senses of the row, where its axis was fitted: a
    sentence's rows sum to its `total` (see `probe.model.decomposition`). Both in fractions of the
    gap.
    """
    readings = []
    terms = []
    for result in results:
        heads = leading_heads(word_heads, result.material.word)
        averages: dict[tuple[object, ...], Mapping[str, Tensor]] = {}
        for row in _example_rows(result, seed):
            traced = trace(model, result.material.sentences[row].text)
            pair = _pair_of(result, result.material.labels[row])
            readings += [_reading(result, row, pair, traced, head) for head in heads]
            if pair.effects is None or model.origin.hooks:
                continue  # hooks may write what is no component
            # Rows that are held out together share the axis, and what is fitted with it.
            held_out = (*pair.senses, int(pair.axes.cell[row]))
            if held_out not in averages:
                averages[held_out] = _average(model, result, pair, row)
            terms.append(_decomposition(result, row, pair, traced, averages[held_out]))
    whole_numbers = dict.fromkeys(("layer", "head", "pos"), "Int64")
    showcase = [_show(model, result, item) for result, item in _lessons(results)]
    frames = {
        "readings": stacked(readings, READINGS),
        "decomposition": stacked(terms, DECOMPOSITION)[list(DECOMPOSITION)].astype(whole_numbers),
        "showcase": pd.DataFrame(showcase, columns=list(SHOWCASE)),
    }
    return {name: rounded(frame) for name, frame in frames.items()}


def _example_rows(result: WordResult, seed: int) -> list[int]:
    """Sentences to show: for each sense PER_SENSE of them, of different cue distances where there
    are any."""
    examples = []
    for sense in dict.fromkeys(result.material.labels):
        of_sense = _pair_of(result, sense).rows(sense)
        order = np.random.default_rng(seed).permutation(len(of_sense))
        shuffled = [of_sense[index] for index in order]
        first_of_distance: dict[int | None, int] = {}
        for row in shuffled:
            first_of_distance.setdefault(result.material.distances[row], row)
        preferred = dict.fromkeys([*first_of_distance.values(), *shuffled])
        examples += sorted(list(preferred)[:PER_SENSE])
    return examples


def _key(result: WordResult, row: int, axis: Axis) -> dict[str, Any]:
    """The values of SENTENCE."""
    return {
        "word": result.material.word,
        "sense": result.material.labels[row],
        "sentence": row,
        "sense_a": axis.sense_a,
        "sense_b": axis.sense_b,
    }


def _reading(
    result: WordResult, row: int, pair: PairResult, traced: Trace, head: tuple[int, int]
) -> pd.DataFrame:
    """What one head reads from every token of a sentence at its word."""
    material = result.material
    target = material.targets[row]
    layer, _ = head
    axis = pair.axes.at(row, pair.reading.direct[layer])  # right behind the head's own layer
    positions = range(len(traced.tokens))
    tokens = pd.DataFrame(
        {
            "pos": positions,
            "piece": traced.tokens.pieces,
            "label": traced.tokens.labels,
            "attention": traced.pattern[*head, target].tolist(),
            "contribution": axis.effect(traced.delta_e_by_source(*head, target)).tolist(),
            "role": [_role(material, row, pos) for pos in positions],
        }
    )
    key = _key(result, row, axis) | {"text": traced.tokens.text, "layer": layer, "head": head[1]}
    return with_key(tokens, {name: key[name] for name in READINGS if name in key})


def _role(material: Material, row: int, pos: int) -> str:
    if pos in material.words[row]:
        return "word"
    return "cue" if pos in (material.cues[row] or ()) else "context"


def _pair_of(result: WordResult, sense: str) -> PairResult:
    """The clearest pair of senses that holds this one."""
    return clearest([pair for pair in result.pairs if sense in pair.senses])


def _average(model: Model, result: WordResult, pair: PairResult, row: int) -> Mapping[str, Tensor]:
    """What every component writes halfway between the two senses, where the axis of this row was
    fitted."""
    split = pair.split
    train = split.holdouts[int(pair.axes.cell[row])].train
    rows_a = [split.rows[position] for position in train if split.is_a[position]]
    rows_b = [split.rows[position] for position in train if not split.is_a[position]]
    weights = read_weights(model)
    return decomposition.average(weights, result.states, rows_a, rows_b, depth=result.depth)


def _decomposition(
    result: WordResult, row: int, pair: PairResult, traced: Trace, average: Mapping[str, Tensor]
) -> pd.DataFrame:
    """Every term of the vector at the word of a sentence, along the axis it is read along."""
    axis = pair.axes.at(row, result.depth)
    target = result.material.targets[row]
    terms = pd.DataFrame(
        decomposition.decompose_resid(traced, axis.depth, at=target, axis=axis, average=average)
    )
    roles: Any = [
        None if pd.isna(pos) else _role(result.material, row, int(pos)) for pos in terms["pos"]
    ]
    return terms.assign(
        **_key(result, row, axis),
        role=roles,
        total=axis.coordinate(traced.resid_post[axis.depth - 1, target]).item(),
        closing=decomposition.closing_error(traced, axis.depth, at=target),
    )


def _lessons(results: Sequence[WordResult]) -> list[tuple[WordResult, Showcase]]:
    """The lesson's sentences of these words, whose senses a user may have named otherwise, and the
    word's results."""
    by_word = {result.material.word: result for result in results}
    lessons = []
    for item in lexicon.showcase():
        result = by_word.get(item.word)
        if result is not None and item.sense in result.material.labels:
            lessons.append((result, item))
    return lessons


def _show(model: Model, result: WordResult, item: Showcase) -> dict[str, object]:
    """Nearest sense and sense coordinate of the word in one of the lesson's sentences.

    `reads_as` is the sense whose mean over the study's sentences, at the read-out, is nearest, only
    where the cue comes before the word or the model reads both ways. `difference` is the largest
    change of any head's ΔE at the word when everything after the word is removed, relative to the
    largest ΔE: zero up to rounding in a causal model.
    """
    whole = trace(model, item.text)
    target = positions_of_span(whole.tokens, item.start, item.end)[-1]
    resid = whole.resid_post[result.depth - 1, target]
    reads_as = axes.nearest_sense(result.resid, result.material.labels, resid[None])[0]
    axis = _pair_with(result, item.sense, reads_as).axis
    row = {name: getattr(item, name) for name in LESSON}
    if item.cue_after and model.config.causal:
        row |= {"reads_as": None, "coordinate": np.nan, "sense_a": None, "sense_b": None}
    else:
        row |= {
            "reads_as": reads_as,
            "coordinate": axis.coordinate(resid.double()).item(),
            "sense_a": axis.sense_a,
            "sense_b": axis.sense_b,
        }
    row["difference"] = later_words_matter(model, whole, target)
    return row


def _pair_with(result: WordResult, sense: str, other: str) -> PairResult:
    """The pair of two senses; of the other and any third where both are the same or the sense is
    not in the study."""
    both = [pair for pair in result.pairs if {sense, other} == set(pair.senses)]
    return (both or [pair for pair in result.pairs if other in pair.senses])[0]


def later_words_matter(model: Model, whole: Trace, target: int) -> float:
    """The largest change of any head's ΔE at `target` when every later token is removed, relative
    to the largest ΔE."""
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


def second_model(model: Model, results: Sequence[WordResult]) -> pd.DataFrame:
    """Sense coordinate, in a second model, of the lesson's words whose cue comes later, and what it
    depends on.

    Every other token is hidden in turn ([MASK] in its place, or taken out where the tokenizer has
    no mask): `source` is the one whose absence costs most of the coordinate, `share` how much of
    it, and `through` the heads that cost most of that alone, when each has the z that it has
    without the source. `cue_share` is the same for the marked cue, `cue_alone` the coordinate with
    the cue as the only other word that is not hidden, `nothing` with none. Missing where the word
    does not stand on the side that is meant.
    """
    rows = []
    for result, item in _lessons(results):
        if not item.cue_after:
            continue
        sentence = _show(model, result, item)
        pair = _pair_with(result, item.sense, str(sentence["reads_as"]))
        row = {name: sentence.get(name, np.nan) for name in SECOND_MODEL}
        row |= {"source": None, "through": None}
        row |= {"model": model.name, "shown": pair.gate_p < GATE}
        if sentence["reads_as"] == item.sense:
            row |= _causes(model, pair.axis, item)
        rows.append(row)
    return rounded(pd.DataFrame(rows, columns=list(SECOND_MODEL)))


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


def _through(model: Model, text: TargetText, donor: Tensor, cost: Tensor) -> str:
    """The heads that cost most when each alone has the donor's z, with how much; `cost`: the
    direction that measures it."""
    moved = swap_heads(read_weights(model), [text], donor, cost[None])[0, ..., 0].double()
    costs = []
    for layer, of_layer in enumerate(moved.tolist()):
        for head, cost_of_head in enumerate(of_layer):
            if cost_of_head >= WORTH_NAMING:
                costs.append((cost_of_head, f"L{layer}H{head}"))
    leading = sorted(costs, reverse=True)[:LEADERS]
    return listed([f"{name} ({percent(cost)})" for cost, name in leading]) or "no head by itself"


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
