"""The public entries to QK and OV attribution (`probe.model.qk`) and to the interventions that test
it (`probe.patching.score_parts`): what a caller may ask for, and the frame of what came out."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard, get_args

import pandas as pd
import torch
from torch import Tensor

from probe.errors import InputError, UnsupportedModel, whole_number
from probe.model import qk
from probe.model.decomposition import logit_direction
from probe.model.load import ModelSource, load
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.tokens import text_position, token_id
from probe.model.trace import trace
from probe.patching.score_parts import Donor, Side, replace_parts
from probe.stats.axes import Axis

MEAN = "mean"  # the contrast with the other tokens
Token = str | int


def qk_attribution(
    model: ModelSource,
    text: str | Trace,
    *,
    layer: int,
    head: int,
    at: int | str,
    source: int | str,
    contrast: int | str | None = None,
    by: qk.By = "part",
) -> pd.DataFrame:
    """Why a head attends from one token to another: its score before the softmax, split into pairs
    of parts of the two residual streams. Columns `part_query part_key score`; the sum over all rows
    is the model's own score, before the cap where scores are capped.

    `text`: a text, or its trace, which several heads can share. `at`, the token that the head reads
    from, and `source`, the token that it reads: a word, at its
    last token where it first appears, or a position, counted from the end where it is negative.
    `contrast`: what is subtracted from every row, because the softmax depends on differences only:
    the score at another token (a word of the text or a position), "mean" for the mean score over
    the other tokens that the head may read from `at` (in a causal model those before it; `at` and
    special tokens are left out), or the score in another text: from the same word or position
    to the token equally far from it. `by`: "part" for embeddings, heads, MLPs and biases, "source"
    for heads by the token that they read, "layer" for whole layers.

    The scales of all norms are held as they were. A bias that the family adds for the two positions
    (ALiBi, T5's) is a row with its name in both columns.

    Raises InputError for a word, position, layer or head that is not there, for a token that the
    mask hides, for a layer without attention and for a model with hooks; UnsupportedModel for an
    encoder-decoder; CrossCheckError where the rows miss the model's score by more than rounding.

    Example:
        >>> place = {"layer": 1, "head": 2, "at": "bank", "source": "river"}
        >>> parts = probe.qk_attribution("tiny-senses", "The old river bank", **place)
        >>> list(parts.columns)
        ['part_query', 'part_key', 'score']
        >>> trace = probe.trace("tiny-senses", "The old river bank")
        >>> abs(float(parts["score"].sum() - trace.scores[1, 2, 4, 3])) < 1e-4
        True
        >>> against = probe.qk_attribution(
        ...     "tiny-senses", "The old river bank", **place, contrast="mean", by="layer"
        ... )
        >>> sorted(set(against["part_key"]))
        ['embedding', 'key bias', 'layer 0', 'norm bias']
    """
    doing = f"Splitting a score of L{layer}H{head}"
    model = _checked(model, layer, head, by, doing)

    readings = _readings(model, text, layer, at, source, contrast, doing)
    terms = [
        qk.score_terms(reading.trace, layer, head, at=reading.at, sources=reading.sources, by=by)
        for reading in readings
    ]
    return _frame(readings, terms, ["part_query", "part_key", "score"], model)


def ov_attribution(
    model: ModelSource,
    text: str | Trace,
    *,
    layer: int,
    head: int,
    at: int | str,
    source: int | str,
    along: Token | tuple[Token, Token] | Tensor | Axis,
    contrast: int | str | None = None,
    by: qk.By = "part",
) -> pd.DataFrame:
    """What a head takes from one token to another along a direction, split into parts of the
    residual stream that it reads. Columns `part_key write`; the sum over all rows is ΔE[at ←
    source] along the direction.

    `along`: a next token as it appears inside a sentence, such as " water", for its logit, two for
    the difference of their logits, ids among them; a vector, `d_model`, in the stream after the
    last block; or a sense axis, read at its depth in units of the gap. The attention, the scales of
    all norms and what else comes after the head are held as they were. Everything else is as in
    `probe.qk_attribution`.

    Raises what `probe.qk_attribution` raises, and InputError for a token that is several and for a
    vector of another length.

    Example:
        >>> text, place = "The old river bank", {"layer": 1, "head": 2, "at": "bank"}
        >>> along = (" and", " with")
        >>> parts = probe.ov_attribution(
        ...     "tiny-senses", text, **place, source="river", along=along
        ... )
        >>> terms = probe.decompose("tiny-senses", text, at="bank", tokens=along)
        >>> of_head = terms.query("layer == 1 and head == 2 and pos == 3")["logit"].item()
        >>> abs(float(parts["write"].sum() - of_head)) < 1e-4
        True
    """
    doing = f"Splitting what L{layer}H{head} takes"
    model = _checked(model, layer, head, by, doing)
    readings = _readings(model, text, layer, at, source, contrast, doing)
    terms = []
    for reading in readings:
        direction, depth = _direction(model, reading, layer, along, doing)
        of_reading = qk.write_terms(
            reading.trace,
            layer,
            head,
            at=reading.at,
            sources=reading.sources,
            along=direction,
            depth=depth,
            by=by,
        )
        terms.append(of_reading)
    return _frame(readings, terms, ["part_key", "write"], model)


def qk_interventions(
    model: ModelSource,
    text: str | Trace,
    *,
    layer: int,
    head: int,
    at: int | str,
    source: int | str,
    contrast: int | str = MEAN,
    by: qk.By = "part",
) -> pd.DataFrame:
    """What each part of the query and of the key does to a head's score and attention: the part is
    replaced by what it is in the contrast, and both are computed again. Columns `side part
    attributed score attention`.

    `side`: "query", the parts at `at`, or "key", those at `source`. They become the parts at the
    token that is the contrast, their mean over the other tokens, or those of the other text.
    `attributed`: what is lost of the contrast of scores (before the cap where scores are capped)
    with the scales of norms held, which is what `probe.qk_attribution` assumes · `score`: what is
    lost of it when the norms respond · `attention`: what is lost of the attention to `source`. With
    another text the score itself is read in the place of a contrast. Other arguments and errors are
    those of `probe.qk_attribution`.

    Example:
        >>> effects = probe.qk_interventions(
        ...     "tiny-senses", "The old river bank", layer=1, head=2, at="bank", source="river"
        ... )
        >>> list(effects.columns)
        ['side', 'part', 'attributed', 'score', 'attention']
        >>> by_part = effects.groupby("side")[["attributed", "score"]].rank()
        >>> float(by_part.corr().iloc[0, 1]) > 0.5  # the ranks agree
        True
    """
    doing = f"Replacing parts of a score of L{layer}H{head}"
    model = _checked(model, layer, head, by, doing)
    itself, *elsewhere = _readings(model, text, layer, at, source, contrast, doing)
    weights = dict(zip(itself.sources, itself.weights, strict=True))
    donors = {side: Donor(itself.trace, itself.sources[1:]) for side in get_args(Side)}
    for other in elsewhere:
        donors = {
            "query": Donor(other.trace, [other.at]),
            "key": Donor(other.trace, other.sources),
        }
    frames = []
    for side, donor in donors.items():
        replaced = replace_parts(
            itself.trace, layer, head, donor, side=side, at=itself.at, weights=weights, by=by
        )
        columns: dict[str, Any] = {"side": side, "part": replaced.labels}
        for name in ("attributed", "score", "attention"):
            columns[name] = getattr(replaced, name).numpy()
        frames.append(pd.DataFrame(columns))
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs["model"] = model.said
    return frame


class Reading(NamedTuple):
    """One text in which a head is read from position `at` to some others, and with which weight
    each of those counts."""

    trace: Trace
    at: int
    sources: list[int]
    weights: list[float]


def _checked(model: ModelSource, layer: int, head: int, by: str, doing: str) -> Model:
    """The loaded model. Raises what a model, a head and a division into parts may be refused
    for."""
    model = load(model)
    config = model.config
    if model.origin.hooks:
        raise InputError(
            f"{doing} of {model.name}: it is {model.origin.hooked}, and what hooks write is no "
            "part of the stream; load it without hooks, or swap with probe.patch."
        )
    if config.start_token is not None:
        raise UnsupportedModel(
            f"{doing} of {model.name}: it is an encoder-decoder, whose decoder also reads another "
            "text; load a model with one stack, such as tiny-senses."
        )
    for name, number, size in (("layer", layer, config.n_layers), ("head", head, config.n_heads)):
        if whole_number(number) is None or not 0 <= number < size:
            raise InputError(
                f"{doing} of {model.name}: {name} is {number!r}, expected 0 to {size - 1}; choose "
                "one of these."
            )
    if not config.has_heads(layer):
        raise InputError(
            f"{doing} of {model.name}: its layer {layer} has no attention, and no heads; give the "
            "layer and head of one that is there."
        )
    if by not in get_args(qk.By):
        options = ", ".join(map(repr, get_args(qk.By)))
        raise InputError(f"{doing} by {by!r}: expected one of {options}; give one of these.")
    return model


def _readings(
    model: Model,
    text: str | Trace,
    layer: int,
    at: int | str,
    source: int | str,
    contrast: int | str | None,
    doing: str,
) -> list[Reading]:
    """The text with the token that the head reads, and what that is contrasted with."""
    whole = _traced(model, text, doing)
    query = text_position(whole.tokens, at)
    key = text_position(whole.tokens, source)
    _require_readable(whole, layer, query, key, doing)
    itself = Reading(whole, query, [key], [1.0])
    if contrast is None:
        return [itself]
    if contrast == MEAN:
        others = _others(whole, layer, query, key)
        if not others:
            raise InputError(
                f"{doing} less the mean over the other tokens: from {whole.tokens.labels[query]} "
                "the head can read no other word; give a longer text, or leave the contrast out."
            )
        weights = [1.0, *[-1 / len(others)] * len(others)]
        return [itself._replace(sources=[key, *others], weights=weights)]
    if _is_text(contrast, whole):
        other = trace(model, contrast)
        at_there = text_position(other.tokens, at)
        key_there = at_there + key - query
        _require_readable(other, layer, at_there, key_there, doing)
        return [itself, Reading(other, at_there, [key_there], [-1.0])]
    other_key = text_position(whole.tokens, contrast)
    _require_readable(whole, layer, query, other_key, doing)
    return [itself._replace(sources=[key, other_key], weights=[1.0, -1.0])]


def _traced(model: Model, text: str | Trace, doing: str) -> Trace:
    """The trace of a text. Raises InputError for a trace of another model, or from a pickle."""
    if not isinstance(text, Trace):
        return trace(model, text)
    if text.model_name != model.said:
        raise InputError(
            f"{doing} of {model.name}: the trace is one of {text.model_name}; give the model that "
            "was traced."
        )
    text.weights  # noqa: B018 - raises where a pickle lost them
    return text


def _is_text(contrast: int | str, whole: Trace) -> TypeGuard[str]:
    """Whether a contrast is a text of its own: several words that the text does not hold."""
    if not isinstance(contrast, str) or len(contrast.split()) < 2:
        return False
    return contrast not in whole.tokens.text or contrast == whole.tokens.text


def _others(whole: Trace, layer: int, at: int, source: int) -> list[int]:
    """The tokens that the layer can read from `at`, without `at` and `source` themselves and
    special tokens, which have no characters of the text."""
    spans = whole.tokens.spans
    return [
        pos
        for pos in qk.readable(whole, layer, at)
        if pos not in (at, source) and spans[pos][0] < spans[pos][1]
    ]


def _require_readable(whole: Trace, layer: int, at: int, source: int, doing: str) -> None:
    """InputError for a token that is not there or that the mask of the layer hides."""
    readable = qk.readable(whole, layer, at)
    if source not in readable:
        raise InputError(
            f"{doing} from token {at} to token {source} of {whole.tokens.text!r}: layer {layer} of "
            f"{whole.model_name} reads tokens {readable[0]} to {readable[-1]} from there; choose "
            "one of these as the source."
        )


def _direction(
    model: Model, reading: Reading, layer: int, along: Any, doing: str
) -> tuple[Tensor, int]:
    """A direction in the stream, `d_model`, and the depth at which it is read."""
    n_layers = model.config.n_layers
    if isinstance(along, Axis):
        if along.depth <= layer:
            raise InputError(
                f"{doing} along the sense axis after {along.depth} blocks: the head writes later; "
                f"give an axis that was fitted after {layer + 1} blocks or more."
            )
        return along.u / along.gap, along.depth
    if isinstance(along, Tensor):
        if along.shape != (model.config.d_model,):
            raise InputError(
                f"{doing} along a vector of shape {list(along.shape)}: expected "
                f"[{model.config.d_model}], as long as those of the stream of {model.name}; give "
                "one of these."
            )
        return along.cpu(), n_layers
    tokens = along if isinstance(along, tuple) else (along,)
    ids = [token_id(model, token) for token in tokens]
    return logit_direction(reading.trace, reading.at, ids).direction, n_layers


def _frame(
    readings: Sequence[Reading], terms: Sequence[qk.Terms], columns: list[str], model: Model
) -> pd.DataFrame:
    """The weighted sum of what was read, a row for each term; the columns are the labels of its
    parts and the sum."""
    sums: dict[tuple[str, ...], float] = {}
    for reading, (labels, values) in zip(readings, terms, strict=True):
        weighted = torch.tensor(reading.weights, dtype=torch.float64) @ values
        for label, value in zip(labels, weighted.tolist(), strict=True):
            sums[label] = sums.get(label, 0.0) + value
    rows = [(*label, value) for label, value in sums.items()]
    frame = pd.DataFrame(rows, columns=columns)
    frame.attrs["model"] = model.said
    return frame
