"""Single sentences to look at: what the leading heads do in some of the study's, and the lesson's
read at their word.

`readings`: attention of the word over real report sentences, and ΔE by source token on the sense
axis, of the leading heads of each word. `ledger`: on the same sentences, every term of the vector
at the word. `showcase`: the sentences that every introduction to attention uses. `second_model`:
those whose cue comes later, in a model that may read both ways, with the token that the reading
depends on most.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.evidence.columns import LEADERS, leading_heads, rounded, stacked, with_key
from probe.evidence.material import Material, cue_positions
from probe.evidence.word import PairResult, WordResult, clearest
from probe.model import decomposition
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import TargetText, Tokens, positions_of_span, tokenize
from probe.model.trace import target_states, trace
from probe.patching.heads import swap_heads
from probe.stats import axes
from probe.stats.axes import Axis
from probe.stats.numbers import listed, percent
from probe.stats.verdicts import GATE, WORTH_NAMING
from probe.text import lexicon
from probe.text.lexicon import Showcase

PER_SENSE = 2
SENTENCE = ("word", "sense", "sentence", "sense_a", "sense_b")
HEAD = (*SENTENCE[:3], "text", *SENTENCE[3:], "layer", "head")
LEDGER = (
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


def frames(
    model: Model, results: Sequence[WordResult], word_heads: pd.DataFrame, *, seed: int
) -> dict[str, pd.DataFrame]:
    """`readings`, `ledger` and `showcase`.

    In `readings` stands the attention from the word (0 to 1) to every token, per word, leading head
    and example sentence, and as `contribution` <ΔE[t←j], u> / gap, what came from that token along
    the sense axis right behind the head's layer. In the `ledger` every component, for a head by
    source token, of senses that are apart from another; its `contribution` is counted from what the
    component writes halfway between the two senses of the row, where its axis was fitted: a
    sentence's rows sum to its `total` (see `probe.model.decomposition`). Both in fractions of the
    gap.
    """
    readings, entries = [], []
    for result in results:
        heads = leading_heads(word_heads, result.material.word)
        averages: dict[tuple[object, ...], Mapping[str, Tensor]] = {}
        for row in _example_rows(result, seed):
            shown = trace(model, result.material.sentences[row].text)
            pair = _pair_of(result, result.material.labels[row])
            readings += [_reading(result, row, pair, shown, *head) for head in heads]
            if pair.effects is not None:
                held_out = (*pair.senses, int(pair.axes.cell[row]))
                if held_out not in averages:
                    averages[held_out] = _average(model, result, pair, row)
                entries.append(_ledger(result, row, pair, shown, averages[held_out]))
    whole = dict.fromkeys(("layer", "head", "pos"), "Int64")
    made = {
        "readings": stacked(
            readings, [*HEAD, "pos", "piece", "label", "attention", "contribution", "role"]
        ),
        "decomposition": stacked(entries, LEDGER)[list(LEDGER)].astype(whole),
        "showcase": pd.DataFrame(
            [_show(model, result, item) for result, item in _lessons(results)], columns=_SHOWCASE
        ),
    }
    return {name: rounded(frame) for name, frame in made.items()}


def _example_rows(result: WordResult, seed: int) -> list[int]:
    """Sentences to show: for each sense PER_SENSE of them, of different cue distances where there
    are any."""
    chosen = []
    for sense in dict.fromkeys(result.material.labels):
        rows = _pair_of(result, sense).rows(sense)
        rows = [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]
        distances = [result.material.distances[row] for row in rows]
        fresh = [row for place, row in enumerate(rows) if distances[place] not in distances[:place]]
        chosen += sorted(list(dict.fromkeys(fresh + rows))[:PER_SENSE])
    return chosen


def _key(result: WordResult, row: int, axis: Axis) -> dict[str, Any]:
    """The values of SENTENCE."""
    material = result.material
    return dict(
        zip(
            SENTENCE,
            (material.word, material.labels[row], row, axis.sense_a, axis.sense_b),
            strict=True,
        )
    )


def _reading(
    result: WordResult, row: int, pair: PairResult, shown: Trace, layer: int, head: int
) -> pd.DataFrame:
    material, target = result.material, result.material.targets[row]
    axis = pair.axes.at(row, pair.reading.direct[layer])  # right behind the head's own layer
    tokens = pd.DataFrame(
        {
            "pos": range(len(shown.tokens)),
            "piece": shown.tokens.pieces,
            "label": shown.tokens.labels,
            "attention": shown.pattern[layer, head, target].tolist(),
            "contribution": axis.effect(shown.delta_e_by_source(layer, head, target)).tolist(),
            "role": [_role(material, row, pos) for pos in range(len(shown.tokens))],
        }
    )
    key = _key(result, row, axis) | {"text": shown.tokens.text, "layer": layer, "head": head}
    return with_key(tokens, {name: key[name] for name in HEAD})


def _role(material: Material, row: int, pos: int) -> str:
    return (
        "word"
        if pos in material.words[row]
        else "cue"
        if pos in (material.cues[row] or ())
        else "context"
    )


def _pair_of(result: WordResult, sense: str) -> PairResult:
    """The clearest pair of senses that holds this one."""
    return clearest([pair for pair in result.pairs if sense in pair.senses])


def _average(model: Model, result: WordResult, pair: PairResult, row: int) -> Mapping[str, Tensor]:
    """What every component writes halfway between the two senses, where the axis of this row was
    fitted."""
    split = pair.split
    train = split.holdouts[int(pair.axes.cell[row])].train
    sides = (
        [split.rows[place] for place in train if split.is_a[place] == side]
        for side in (True, False)
    )
    return decomposition.average(read_weights(model), result.states, *sides, depth=result.depth)


def _ledger(
    result: WordResult, row: int, pair: PairResult, shown: Trace, average: Mapping[str, Tensor]
) -> pd.DataFrame:
    axis, target = pair.axes.at(row, result.depth), result.material.targets[row]
    entries = pd.DataFrame(
        decomposition.decompose_resid(shown, axis.depth, at=target, axis=axis, average=average)
    )
    roles: Any = [
        None if pd.isna(pos) else _role(result.material, row, int(pos)) for pos in entries["pos"]
    ]
    return entries.assign(
        **_key(result, row, axis),
        role=roles,
        total=axis.coordinate(shown.resid_post[axis.depth - 1, target]).item(),
        closing=decomposition.closing_error(shown, axis.depth, at=target),
    )


def _lessons(results: Sequence[WordResult]) -> list[tuple[WordResult, Showcase]]:
    """The lesson's sentences of these words, whose senses a user may have named otherwise, and the
    word's results."""
    by_word = {result.material.word: result for result in results}
    known = [(by_word[item.word], item) for item in lexicon.showcase() if item.word in by_word]
    return [(result, item) for result, item in known if item.sense in result.material.labels]


_GIVEN = [
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
]
_SHOWCASE = [*_GIVEN, "reads_as", "coordinate", "sense_a", "sense_b", "difference"]


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
    shown = {name: getattr(item, name) for name in _GIVEN}
    if item.cue_after and model.config.causal:
        shown |= {"reads_as": None, "coordinate": np.nan, "sense_a": None, "sense_b": None}
    else:
        coordinate = axis.coordinate(resid.double()).item()
        shown |= {
            "reads_as": reads_as,
            "coordinate": coordinate,
            "sense_a": axis.sense_a,
            "sense_b": axis.sense_b,
        }
    return shown | {"difference": later_words_matter(model, whole, target)}


def _pair_with(result: WordResult, sense: str, other: str) -> PairResult:
    """The pair of two senses; of the other and any third where both are the same or the sense is
    not in the study."""
    both = [pair for pair in result.pairs if {sense, other} == set(pair.senses)]
    return (both or [pair for pair in result.pairs if other in pair.senses])[0]


def later_words_matter(model: Model, whole: Trace, target: int) -> float:
    """The largest change of any head's ΔE at `target` when every later token is removed, relative
    to the largest ΔE."""
    w_o = torch.stack(
        [block.w_o for block in whole.weights.blocks]
    ).cpu()  # layer head d_head d_model
    tokens = whole.tokens
    if not model.config.causal:
        tokens = tokenize(model, tokens.text[: tokens.spans[target][1]])
    without = target_states(model, [tokens], [target]).z[0]
    full, alone = ((z.unsqueeze(-2) @ w_o).squeeze(-2) for z in (whole.z[:, :, target], without))
    return ((full - alone).abs().max() / full.abs().max()).item()


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
        if item.cue_after:
            shown = _show(model, result, item)
            pair = _pair_with(result, item.sense, str(shown["reads_as"]))
            row = {name: shown.get(name, np.nan) for name in SECOND_MODEL} | {
                "source": None,
                "through": None,
            }
            row |= {"model": model.name, "shown": pair.gate_p < GATE}
            rows.append(
                row | (_causes(model, pair.axis, item) if shown["reads_as"] == item.sense else {})
            )
    return rounded(pd.DataFrame(rows, columns=SECOND_MODEL))


SECOND_MODEL = [
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
]
SECOND_MODEL += ["source", "share", "through", "cue", "cue_share", "cue_alone", "nothing"]


def _causes(model: Model, axis: Axis, item: Showcase) -> dict[str, object]:
    """The token that the coordinate depends on most, the heads it depends on, and what the marked
    cue does."""
    tokens = tokenize(model, item.text)
    word, cue = (
        positions_of_span(tokens, item.start, item.end),
        cue_positions(tokens, item) or range(0),
    )
    others = [
        pos for pos, (start, end) in enumerate(tokens.spans) if start < end and pos not in word
    ]
    hidden = [*([pos] for pos in others), [pos for pos in others if pos not in cue], others]
    read = [
        (tokens, word[-1]),
        *(_without(model, tokens, positions, word[-1]) for positions in hidden),
    ]
    states = target_states(model, [one for one, _ in read], [at for _, at in read])
    whole, *without, alone, nothing = axis.coordinate(states.resid[:, axis.depth]).tolist()
    lost = {pos: (whole - left) / whole for pos, left in zip(others, without, strict=True)}
    lead = max(others, key=lost.__getitem__)
    donor = states.z[[1 + others.index(lead)], : axis.depth]
    causes = {"source": tokens.pieces[lead].strip() or tokens.labels[lead], "share": lost[lead]}
    causes |= {
        "through": _through(
            model, TargetText(tokens.ids, word[-1]), donor, axis.u / axis.gap / -whole
        )
    }
    return causes | (
        {"cue_share": max(lost[pos] for pos in cue), "cue_alone": alone, "nothing": nothing}
        if cue
        else {}
    )


def _through(model: Model, text: TargetText, donor: Tensor, cost: Tensor) -> str:
    """In words, the heads that cost most when each alone has the donor's z; `cost`: the direction
    that measures it."""
    moved = swap_heads(read_weights(model), [text], donor, cost[None])[0, ..., 0].double()
    heads = [
        (float(cost), f"L{layer}H{head}")
        for layer, row in enumerate(moved)
        for head, cost in enumerate(row)
    ]
    leading = sorted((one for one in heads if one[0] >= WORTH_NAMING), reverse=True)[:LEADERS]
    return listed([f"{name} ({percent(cost)})" for cost, name in leading]) or "no head by itself"


def _without(model: Model, tokens: Tokens, hidden: Collection[int], at: int) -> tuple[Tokens, int]:
    """The tokens with some of them hidden, and where the word is read then."""
    mask = model.tokenizer.mask_token_id
    if mask is not None:
        return replace(
            tokens,
            ids=tuple(mask if pos in hidden else token for pos, token in enumerate(tokens.ids)),
        ), at
    parts: dict[str, Any] = {
        name: tuple(part for pos, part in enumerate(getattr(tokens, name)) if pos not in hidden)
        for name in ("ids", "pieces", "spans")
    }
    return replace(tokens, **parts), at - sum(pos < at for pos in hidden)
