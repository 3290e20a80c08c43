"""QK and OV attribution of one head, and the interventions that test the attribution.

The public functions check their arguments and return frames. The terms are computed in
`probe.model.qk`, the interventions in `probe.patching.score_parts`.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

import pandas as pd
import torch
from torch import Tensor

from probe.errors import InputError, UnsupportedModel
from probe.model import forward, qk
from probe.model.decomposition import logit_direction
from probe.model.load import ModelSource, load
from probe.model.model import Model, require_head
from probe.model.records import AttentionTrace, CrossTrace, PairTrace, Trace
from probe.model.tokens import Tokens, text_position, token_id
from probe.model.trace import trace
from probe.patching.cross import directions
from probe.patching.score_parts import replace_parts
from probe.stats.axes import Axis

MEAN = "mean"  # the contrast with the mean over the other tokens
Token = str | int
Stack = Literal["encoder", "decoder", "cross"]


def qk_attribution(
    model: ModelSource,
    text: str | Trace | PairTrace,
    *,
    layer: int,
    head: int,
    at: int | str,
    source: int | str,
    contrast: int | str | None = None,
    by: qk.By = "part",
    target: str | None = None,
    stack: Stack = "cross",
) -> pd.DataFrame:
    """Return a head's score from one token to another, before the softmax, split into pairs of
    parts of the two residual streams: why the head attends.

    The columns are `part_query part_key score`. The sum over all rows is the model's score, before
    the cap if scores are capped. A bias that the family adds for two positions (T5's) is a
    row with its name in both columns. The scales of all norms are held fixed.

    text: a text, or its trace, which several heads can share
    at: the token at which the head reads. A word means the last token of its first occurrence. A
        number is a position, counted from the end if it is negative
    source: the token that the head attends to, given in the same way
    contrast: what is subtracted from every row, because the softmax depends on differences only.
        A word or a position: the score at that token. "mean": the mean score over the other tokens
        that the head may read from `at`, without special tokens. Another text: the score in that
        text, from the same word or position to the token equally far from it
    by: "part" for embeddings, heads, MLPs and biases; "source" to split heads by the token that
        they read; "layer" for whole layers
    target: the target text, for an encoder-decoder
    stack: the attention of an encoder-decoder, "encoder", "decoder" or "cross". `at` is a token of
        the target, or of the text for the encoder. `source` is a token of the text, or of the
        target for the decoder. The names of parts of cross-attention begin with "cross"

    Raises InputError for a word, position, layer or head that does not exist, a token that the mask
    hides, a layer without attention, or a target that is missing or cannot be used;
    CrossCheckError if the rows miss the model's score by more than rounding.

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
    request = Request(layer, head, at, source, contrast, by, stack)
    model = _load_checked(model, request, f"Cannot split a score of {request.name}")
    readings = _readings(model, text, target, request)
    terms = [qk.score_terms(view, by) for view, _ in readings]
    return _frame(readings, terms, ["part_query", "part_key", "score"], model)


def ov_attribution(
    model: ModelSource,
    text: str | Trace | PairTrace,
    *,
    layer: int,
    head: int,
    at: int | str,
    source: int | str,
    along: Token | tuple[Token, Token] | Tensor | Axis,
    contrast: int | str | None = None,
    by: qk.By = "part",
    target: str | None = None,
    stack: Stack = "cross",
) -> pd.DataFrame:
    """Return what a head writes at one token from another along a direction, split into parts of
    the residual stream that it reads.

    The columns are `part_key write`. The sum over all rows is ΔE[at ← source] along the direction.
    The attention, the scales of all norms, and everything after the head are held fixed.

    along: a next token as it appears inside a sentence, such as " water", for its logit; two such
        tokens, or two ids, for the difference of their logits; a vector, `d_model`, in the stream
        after the last block, or in the decoder's output; or a sense axis, which is read at its
        depth in units of the gap

    The other arguments are those of `probe.qk_attribution`.

    Raises what `probe.qk_attribution` raises, and InputError for a string that is several tokens or
    a vector of another length.

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
    request = Request(layer, head, at, source, contrast, by, stack)
    model = _load_checked(model, request, f"Cannot split the write of {request.name}")
    readings = _readings(model, text, target, request)
    terms = [qk.write_terms(view, _direction(model, view, along), by) for view, _ in readings]
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
    query_from: str | Trace | None = None,
) -> pd.DataFrame:
    """Return the effect of each part of the query and of the key on a head's score and attention:
    the part is replaced by that of the contrast, and score and attention are recomputed.

    The columns are `side part attributed score attention`.
    side: "query" for a part at `at`, "key" for a part at `source`
    attributed: how much of the contrast of scores is lost with the scales of norms held fixed,
        which `probe.qk_attribution` assumes
    score: how much of it is lost when the norms respond
    attention: how much of the attention to `source` is lost

    contrast: a token or "mean": a part is replaced by that of each of the other tokens in turn, and
        the losses are averaged. Another text: a part is replaced by that of the other text, and the
        score itself is read instead of a contrast
    query_from: a text with another word at the same position, such as an unambiguous noun. Its
        parts replace those of the query, the contrast stays, and the frame has the rows of the
        query only

    The other arguments and errors are those of `probe.qk_attribution`; also InputError for a
    `query_from` without a token at the position of `at`.

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
    request = Request(layer, head, at, source, contrast, by)
    doing = f"Cannot replace parts of a score of {request.name}"
    model = _load_checked(model, request, doing)
    if model.config.start_token is not None:
        raise UnsupportedModel(
            f"{doing} of {model.name}: it is an encoder-decoder. Split its scores with "
            "probe.qk_attribution, or load a model with one stack."
        )
    (view, of_sources), *elsewhere = _readings(model, text, None, request)
    assert isinstance(view.trace, Trace)
    weights = dict(zip(view.sources, of_sources, strict=True))
    # In the same text the donors of both sides are the other tokens. In another text the query's
    # donor is the token that reads there, and the key's the token that it reads.
    donors: dict[qk.Side, tuple[Trace, Sequence[int]]] = {
        side: (view.trace, view.sources[1:]) for side in get_args(qk.Side)
    }
    for second, _ in elsewhere:
        assert isinstance(second.trace, Trace)
        donors = {
            "query": (second.trace, [second.at]),
            "key": (second.trace, second.sources),
        }
    if query_from is not None:
        donors = {"query": (_same_position(model, query_from, view, doing), [view.at])}
    frames = []
    for side, (donor, positions) in donors.items():
        pos = view.at if side == "query" else view.sources[0]
        replaced = replace_parts(
            view.trace,
            layer,
            head,
            qk.stream_parts(view.trace, layer, [pos], by),
            qk.stream_parts(donor, layer, positions, by),
            side=side,
            at=view.at,
            weights=weights,
        )
        columns: dict[str, Any] = {"side": side, "part": replaced.labels}
        for name in ("attributed", "score", "attention"):
            columns[name] = getattr(replaced, name).numpy()
        frames.append(pd.DataFrame(columns))
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs["model"] = model.name
    return frame


def _same_position(model: Model, text: str | Trace, view: qk.View, doing: str) -> Trace:
    """The trace of another text that has a token at the position of the query."""
    traced = _trace_of(model, text, None)
    assert isinstance(traced, Trace)
    if view.at >= len(traced.tokens):
        raise InputError(
            f"{doing}: query_from has {len(traced.tokens)} tokens, and the query is token {view.at}"
            ". Give a text with a word of as many tokens in the place of the word."
        )
    return traced


class Request(NamedTuple):
    """The arguments of a call, as `qk_attribution` documents them."""

    layer: int
    head: int
    at: int | str
    source: int | str
    contrast: int | str | None
    by: qk.By
    stack: Stack = "cross"

    @property
    def name(self) -> str:
        """The head, as "L4H2"."""
        return f"L{self.layer}H{self.head}"


# A head in one text, and the weight in the contrast of each token that it reads there.
Reading = tuple[qk.View, list[float]]


def _load_checked(model: ModelSource, request: Request, doing: str) -> Model:
    """The loaded model.

    Raises InputError for a layer or head that does not exist, a layer without attention, and an
    unknown `by` or `stack`.
    """
    model = load(model)
    config = model.config
    of_decoder = config.start_token is not None and request.stack != "encoder"
    layers = config.n_decoder_layers if of_decoder else config.n_layers
    require_head(model, request.layer, request.head, doing=doing, layers=layers)
    for option, value, choices in (
        ("by", request.by, get_args(qk.By)),
        ("stack", request.stack, get_args(Stack)),
    ):
        if value not in choices:
            listed = ", ".join(map(repr, choices))
            raise InputError(
                f"{doing}: {option} is {value!r}, expected one of {listed}. Give one of these."
            )
    return model


def _readings(
    model: Model, text: str | Trace | PairTrace, target: str | None, request: Request
) -> list[Reading]:
    """The head at its source token, and at the tokens or in the text of the contrast."""
    view = _view(model, text, target, request)
    contrast = request.contrast
    if contrast is None:
        return [(view, [1.0])]
    if contrast == MEAN:
        other_tokens = qk.other_tokens(view)
        if not other_tokens:
            raise InputError(
                f"Cannot contrast {request.name} with the mean over the other tokens: from token "
                f"{view.at} of {view.trace.tokens.text!r} it can read no other word. Give a "
                "longer text, or omit the contrast."
            )
        # score(source) - mean of score(other tokens)
        weights = [1.0, *[-1 / len(other_tokens)] * len(other_tokens)]
        return [(view._replace(sources=[*view.sources, *other_tokens]), weights)]
    if _is_text(contrast, view.read):
        second_view = _view(model, contrast, target, request, like=view)
        return [(view, [1.0]), (second_view, [-1.0])]
    other_key = text_position(view.read, contrast)
    _require_readable(view, other_key)
    return [(view._replace(sources=[*view.sources, other_key]), [1.0, -1.0])]


def _view(
    model: Model,
    text: str | Trace | PairTrace,
    target: str | None,
    request: Request,
    like: qk.View | None = None,
) -> qk.View:
    """The head in one text, with its source token.

    like: the head in another text; the source token is then equally far from `at` as there.
    """
    traced = _trace_of(model, text, target)
    pair = traced if isinstance(traced, PairTrace) else None
    whole: AttentionTrace = traced if isinstance(traced, Trace) else getattr(traced, request.stack)
    at = text_position(whole.tokens, request.at)
    view = qk.View(whole, request.layer, request.head, at, [], pair)
    if like is None:
        key = text_position(view.read, request.source)
    elif isinstance(whole, CrossTrace):
        # Source and target are two texts: a distance between them has no meaning.
        key = like.sources[0]
    else:
        key = at + like.sources[0] - like.at
    _require_readable(view, key)
    return view._replace(sources=[key])


def _trace_of(model: Model, text: str | Trace | PairTrace, target: str | None) -> Trace | PairTrace:
    """The trace of a text.

    Raises InputError for a trace of another model, of one side of an encoder-decoder, or from a
    pickle.
    """
    if isinstance(text, str):
        return trace(model, text) if target is None else trace(model, text, target)
    traced = text.cross if isinstance(text, PairTrace) else text
    if traced.model_name != model.name:
        raise InputError(
            f"Cannot split scores of {model.name}: the trace is one of {traced.model_name}. Give "
            "the model that was traced."
        )
    if isinstance(text, Trace) and text.stack.attention.name:
        raise InputError(
            f"Cannot split scores of {model.name}: the trace is one side of an encoder-decoder. "
            "Give the whole trace, as probe.trace(model, source, target) returns it."
        )
    if not traced.stack.raw:
        raise InputError(
            f"Cannot split scores of {model.name}: the trace comes from a pickle, which holds W_O "
            "and no other weights. Trace the text again, with probe.trace."
        )
    return text


def _is_text(contrast: int | str, read: Tokens) -> TypeGuard[str]:
    """Whether a contrast is another text: several words that do not occur in this text."""
    if not isinstance(contrast, str) or len(contrast.split()) < 2:
        return False
    # A phrase of the text names a position in it, unless it is the whole text.
    return contrast not in read.text or contrast == read.text


def _require_readable(view: qk.View, source: int) -> None:
    """Raises InputError for a token that does not exist or that the mask of the layer hides."""
    readable = qk.readable(view.trace, view.layer, view.at)
    if source not in readable:
        raise InputError(
            f"Cannot split a score from token {view.at} to token {source} of {view.read.text!r}: "
            f"layer {view.layer} of {view.trace.model_name} reads tokens {readable[0]} to "
            f"{readable[-1]} from there. Choose one of these as the source."
        )


def _direction(model: Model, view: qk.View, along: Any) -> Tensor:
    """The direction of the head's write, at the position that reads. `d_model`"""
    vector, depth = _vector(model, view, along)
    # Norms after the head scale its write, so the direction is followed back through them.
    if view.pair is None:
        assert isinstance(view.trace, Trace)
        return qk.before_norms(view.trace, view.layer, view.at, vector, depth)
    followed_back = directions(model, view.pair, vector)
    return getattr(followed_back, view.trace.stack.attention.name)[view.layer, view.at]


def _vector(model: Model, view: qk.View, along: Any) -> tuple[Tensor, int]:
    """A direction in the stream, `d_model`, and the depth at which it is read.

    In an encoder-decoder, a direction in the decoder's output.
    """
    config = model.config
    pair = view.pair
    if pair is not None and view.trace is pair.encoder:
        raise UnsupportedModel(
            f"Cannot read a head's write in the encoder of {model.name} along a direction: it "
            "reaches the logits through the decoder only. Split the write of a head of "
            'cross-attention, with stack="cross".'
        )
    if isinstance(along, Axis):
        if along.depth <= view.layer or pair is not None:
            raise InputError(
                f"Cannot read layer {view.layer} of {model.name} along the sense axis after "
                f"{along.depth} blocks: heads of this layer do not write into that stream. Give an "
                f"axis of a model with one stack that was fitted after {view.layer + 1} blocks or "
                "more."
            )
        # A coordinate along u / gap is in units of the gap.
        return along.u / along.gap, along.depth
    if isinstance(along, Tensor):
        if along.shape != (config.d_model,):
            raise InputError(
                f"Cannot read a head along a vector of shape {list(along.shape)}: expected "
                f"[{config.d_model}], the width of the residual stream of {model.name}. Give a "
                "vector of this shape."
            )
        return along.cpu().double(), config.n_layers
    tokens = along if isinstance(along, tuple) else (along,)
    ids = [token_id(model, token) for token in tokens]
    if pair is None:
        assert isinstance(view.trace, Trace)
        return logit_direction(view.trace, view.at, ids).direction, config.n_layers
    decoder = pair.decoder.stack
    table = forward.unembedding(decoder, decoder.dtype)[ids].cpu().double()
    # W_U of the first token minus that of the second, or W_U of the only one.
    return torch.tensor([1.0, -1.0], dtype=torch.float64)[: len(ids)] @ table, config.n_layers


def _frame(
    readings: Sequence[Reading], terms: Sequence[qk.Terms], columns: list[str], model: Model
) -> pd.DataFrame:
    """A row for each term: the labels of its parts, and its sum over readings, weighted."""
    # sum over readings of Σ_source weight(source) · term(source), by the labels of the term
    sums: dict[tuple[str, ...], float] = {}
    for (_, weights), (labels, values) in zip(readings, terms, strict=True):
        weighted = torch.tensor(weights, dtype=torch.float64) @ values
        for label, value in zip(labels, weighted.tolist(), strict=True):
            sums[label] = sums.get(label, 0.0) + value
    rows = [(*label, value) for label, value in sums.items()]
    frame = pd.DataFrame(rows, columns=columns)
    frame.attrs["model"] = model.name
    return frame
