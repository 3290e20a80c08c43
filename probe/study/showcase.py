"""The sentences that every introduction to attention uses, read at their word.

`showcase`: the sense the model has at the word or, where the cue comes later, the measured difference that the later
words make there (none, in a causal model). `beside`: the latter in a second model, which may read both ways, with the
token that the reading depends on most.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import Placed, Tokens, positions_of_span, tokenize
from probe.model.trace import target_states, trace
from probe.model.weights import read_weights
from probe.patching.swaps import swap_heads
from probe.stats import axes
from probe.stats.axes import Axis
from probe.stats.numbers import listed, percent
from probe.stats.verdicts import GATE
from probe.study.columns import rounded
from probe.study.suppliers import WORTH_NAMING
from probe.study.word import PairResult, WordResult
from probe.text import lexicon
from probe.text.lexicon import Showcase

LEADERS = 3


def showcase(model: Model, results: Sequence[WordResult]) -> pd.DataFrame:
    """Nearest sense and sense coordinate of the word in the lesson's sentences of the words studied.

    `reads_as` is the sense whose mean over the study's sentences, at the read-out, is nearest, only where the cue comes
    before the word. `difference` is the largest change of any head's ΔE at the word when everything after the word is
    removed, relative to the largest ΔE: zero up to rounding in a causal model.
    """
    rows = [_show(model, result, item) for result, item in _lessons(results)]
    return rounded(pd.DataFrame(rows, columns=_SHOWCASE))


def _lessons(results: Sequence[WordResult]) -> list[tuple[WordResult, Showcase]]:
    """The lesson's sentences of these words, whose senses a user may have named otherwise, and the word's results."""
    by_word = {result.material.word: result for result in results}
    known = [(by_word[item.word], item) for item in lexicon.showcase() if item.word in by_word]
    return [(result, item) for result, item in known if item.sense in result.material.labels]


_GIVEN = ["text", "word", "sense", "start", "end", "cue", "cue_start", "cue_end", "cue_after", "note"]
_SHOWCASE = [*_GIVEN, "reads_as", "coordinate", "sense_a", "sense_b", "difference"]


def _show(model: Model, result: WordResult, item: Showcase) -> dict[str, object]:
    tokens = tokenize(model, item.text)
    target = positions_of_span(tokens, item.start, item.end)[-1]
    whole = trace(model, item.text)
    resid = whole.resid_post[result.depth - 1, target]
    reads_as = axes.nearest_sense(result.resid, result.material.labels, resid[None])[0]
    axis = _pair_with(result, item.sense, reads_as).axis
    shown = {name: getattr(item, name) for name in _GIVEN}
    if item.cue_after and model.config.causal:
        shown |= {"reads_as": None, "coordinate": np.nan, "sense_a": None, "sense_b": None}
    else:
        coordinate = axis.coordinate(resid.double()).item()
        shown |= {"reads_as": reads_as, "coordinate": coordinate, "sense_a": axis.sense_a, "sense_b": axis.sense_b}
    return shown | {"difference": later_words_matter(model, whole, target)}


def _pair_with(result: WordResult, sense: str, other: str) -> PairResult:
    """The pair of two senses; of the other and any third where both are the same or the sense is not in the study."""
    both = [pair for pair in result.pairs if {sense, other} == set(pair.senses)]
    return (both or [pair for pair in result.pairs if other in pair.senses])[0]


def later_words_matter(model: Model, whole: Trace, target: int) -> float:
    """The largest change of any head's ΔE at `target` when every later token is removed, relative to the largest ΔE."""
    w_o = torch.stack([block.w_o for block in whole.weights.blocks]).cpu()  # layer head d_head d_model
    tokens = whole.tokens
    if not model.config.causal:
        tokens = tokenize(model, tokens.text[: tokens.spans[target][1]])
    without = target_states(model, [tokens], [target]).z[0]
    full, alone = ((z.unsqueeze(-2) @ w_o).squeeze(-2) for z in (whole.z[:, :, target], without))
    return ((full - alone).abs().max() / full.abs().max()).item()


def second_model(model: Model, results: Sequence[WordResult]) -> pd.DataFrame:
    """Sense coordinate, in a second model, of the lesson's words whose cue comes later, and what it depends on.

    Every other token is hidden in turn ([MASK] in its place, or taken out where the tokenizer has no mask): `source` is
    the one whose absence costs most of the coordinate, `share` how much of it, and `through` the heads that cost most
    of that alone, when each has the z that it has without the source. `cue_share` is the same for the marked cue,
    `cue_alone` the coordinate with the cue as the only other word that is not hidden, `nothing` with none. Missing
    where the word does not stand on the side that is meant.
    """
    rows = [_in_second_model(model, result, item) for result, item in _lessons(results) if item.cue_after]
    return rounded(pd.DataFrame(rows, columns=SECOND_MODEL))


SECOND_MODEL = ["model", "text", "word", "sense", "reads_as", "coordinate", "sense_a", "sense_b", "shown", "difference"]
SECOND_MODEL += ["source", "share", "through", "cue", "cue_share", "cue_alone", "nothing"]


def _in_second_model(model: Model, result: WordResult, item: Showcase) -> dict[str, object]:
    shown = _show(model, result, item)
    pair = _pair_with(result, item.sense, str(shown["reads_as"]))
    read = {name: shown.get(name, np.nan) for name in SECOND_MODEL} | {"source": None, "through": None}
    read |= {"model": model.name, "shown": pair.gate_p < GATE}
    return read | (_causes(model, pair.axis, item) if shown["reads_as"] == item.sense else {})


def _causes(model: Model, axis: Axis, item: Showcase) -> dict[str, object]:
    """The token that the coordinate depends on most, the heads it depends on, and what the marked cue does."""
    tokens = tokenize(model, item.text)
    word, cue = positions_of_span(tokens, item.start, item.end), range(0)
    if item.cue_start is not None and item.cue_end is not None:
        cue = positions_of_span(tokens, item.cue_start, item.cue_end)
    others = [pos for pos, (start, end) in enumerate(tokens.spans) if start < end and pos not in word]
    hidden = [*([pos] for pos in others), [pos for pos in others if pos not in cue], others]
    read = [(tokens, word[-1]), *(_without(model, tokens, positions, word[-1]) for positions in hidden)]
    states = target_states(model, [one for one, _ in read], [at for _, at in read])
    whole, *without, alone, nothing = axis.coordinate(states.resid[:, axis.depth]).tolist()
    lost = {pos: (whole - left) / whole for pos, left in zip(others, without, strict=True)}
    lead = max(others, key=lost.__getitem__)
    donor = states.z[[1 + others.index(lead)], : axis.depth]
    causes = {"source": tokens.pieces[lead].strip() or tokens.labels[lead], "share": lost[lead]}
    causes |= {"through": _through(model, Placed(tokens.ids, word[-1]), donor, axis.u / axis.gap / -whole)}
    return causes | (
        {"cue_share": max(lost[pos] for pos in cue), "cue_alone": alone, "nothing": nothing} if cue else {}
    )


def _through(model: Model, text: Placed, donor: Tensor, cost: Tensor) -> str:
    """In words, the heads that cost most when each alone has the donor's z; `cost`: the direction that measures it."""
    moved = swap_heads(read_weights(model), [text], donor, cost[None])[0, ..., 0].double()
    heads = [(float(cost), f"L{layer}H{head}") for layer, row in enumerate(moved) for head, cost in enumerate(row)]
    leading = sorted((one for one in heads if one[0] >= WORTH_NAMING), reverse=True)[:LEADERS]
    return listed([f"{name} ({percent(cost)})" for cost, name in leading]) or "no head by itself"


def _without(model: Model, tokens: Tokens, hidden: Collection[int], at: int) -> tuple[Tokens, int]:
    """The tokens with some of them hidden, and where the word is read then."""
    mask = model.tokenizer.mask_token_id
    if mask is not None:
        return replace(tokens, ids=tuple(mask if pos in hidden else token for pos, token in enumerate(tokens.ids))), at
    parts: dict[str, Any] = {
        name: tuple(part for pos, part in enumerate(getattr(tokens, name)) if pos not in hidden)
        for name in ("ids", "pieces", "spans")
    }
    return replace(tokens, **parts), at - sum(pos < at for pos in hidden)
