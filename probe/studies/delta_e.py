"""ΔE of every head at one token of a text: what each adds to the residual stream there."""

from typing import Any

import numpy as np
import pandas as pd
import torch

from probe.errors import InputError
from probe.model.load import ModelSource, load
from probe.model.tokens import text_position, tokenize
from probe.model.trace import trace_target

DOING = "Cannot measure ΔE"


def delta_e(
    model: ModelSource,
    text: str,
    at: int | str,
    *,
    along: Any = None,
    by_source: bool = False,
) -> pd.DataFrame:
    """Return the length of ΔE of every head at one token: what the head adds to the residual stream
    there, without the output bias b_O.

    The columns are `layer head norm`, in units of the residual stream. `probe.trace(...).delta_e`
    returns the vector of one head. `frame.attrs["measured"]` says in words what was measured.

    at: a word, which means the last token of its first occurrence, or a position, counted from the
        end if it is negative
    along: a direction, `d_model`; a column `along` has the component of ΔE in this direction
    by_source: a row for every token that the head reads, with its `pos` and `token`; the components
        along a direction add up to that of the head, lengths do not

    Raises InputError for a word or position that does not exist, and a direction of another length
    than the residual stream or of length 0; UnsupportedModel for an encoder-decoder.

    Example:
        >>> heads = probe.delta_e("tiny-senses", "The old tree by the bank", at="bank")
        >>> heads.shape  # 4 layers x 4 heads
        (16, 3)
        >>> by_token = probe.delta_e("tiny-senses", "The bank", at="bank", by_source=True)
        >>> list(by_token.columns)
        ['layer', 'head', 'pos', 'token', 'norm']
    """
    model = load(model)
    tokens = tokenize(model, text)
    read = trace_target(model, tokens, text_position(tokens, at))
    direction = None if along is None else _direction(along, model.config.d_model)
    layers = np.flatnonzero(read.weights.has_heads.cpu().numpy()).tolist()
    frames = []
    for layer in layers:  # in a hybrid model some layers have no heads
        for head in range(model.config.n_heads):
            if by_source:
                writes = read.delta_e_by_source(layer, head)
                columns = {"pos": range(len(writes)), "token": tokens.labels[: len(writes)]}
            else:
                writes, columns = read.delta_e(layer, head)[None], {}
            frame = pd.DataFrame(
                {"layer": layer, "head": head, **columns}, index=range(len(writes))
            )
            wide = writes.double()
            frame["norm"] = wide.norm(dim=-1).numpy()
            if direction is not None:
                frame["along"] = (wide @ direction).numpy()
            frames.append(frame)
    rows = pd.concat(frames, ignore_index=True)
    where = f"“{at}”, " if isinstance(at, str) else ""
    what = "The length of what each head adds" if along is None else "What each head adds"
    axis = "" if along is None else ", along a direction"
    source = ", by the token that it reads" if by_source else ""
    measured = f"{what} to the residual stream at {where}token {read.at} of “{text}”{axis}{source}."
    rows.attrs |= {"model": model.name, "text": text, "at": read.at, "measured": measured}
    return rows


def _direction(along: Any, d_model: int) -> torch.Tensor:
    """A direction with length 1. Raises InputError for one that is not `d_model`, or is 0."""
    direction = torch.as_tensor(along, dtype=torch.float64).detach().cpu()
    if direction.shape != (d_model,) or not direction.norm() > 0:
        raise InputError(
            f"{DOING} along a direction of shape {tuple(direction.shape)}: expected one vector of "
            f"{d_model} numbers that are not all 0. Give a difference of two vectors of the "
            "residual stream, for example."
        )
    return direction / direction.norm()
