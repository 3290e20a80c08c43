"""Swaps in a model whose hooks stay active (`probe.load(..., hooks="keep")`).

Without hooks, the library reuses parts of a run between variants (`probe.patching.heads`). Here it
does not know what a hook does, and each variant is a forward of the hooked bridge. `probe.load` has
checked that the hooks treat rows independently, so many variants share a forward. Two shortcuts
save most of it: the variants are equal up to the first layer in which one of them is swapped, so up
to there one row is run for all; and in a causal model the tokens before the swap are the same in
all of them, so their keys and values are computed once. A hook that counts positions or rows may
not allow this: two variants are first run both ways, and if they differ, every variant runs its
whole text in every layer.

A swap replaces the value after the hooks of its hook point; everything later responds, also the
hooks.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from warnings import warn

import torch
from torch import Tensor

from probe.errors import InputError
from probe.model import forward, hooks
from probe.model.agreement import SHORT_TEXT
from probe.model.load import read_weights
from probe.model.model import Model
from probe.model.objects import SAME
from probe.model.tokens import TargetText
from probe.model.weights import Weights

# Logits of one forward: 256 MB in float32.
MOST_LOGITS = 2**26
# Variants of one forward: enough for fast products, and few enough to begin at about one layer.
AT_ONCE = 32
# A hook that gets only a part of a text may raise anything.
FAILURES = (Exception,)


class Ends(NamedTuple):
    """The stream and the logits of variants of a run at one position.

    resid: `variant depth d_model`; depth 0 enters the first block, depth d leaves block d - 1
    logits: `variant d_vocab`; None if they were not requested
    """

    resid: Tensor
    logits: Tensor | None


class Stop(Exception):
    """Ends a forward after its last block if no logits are requested."""


def read_parts(
    model: Model, ids: Sequence[int], at: int, names: Sequence[str]
) -> dict[str, Tensor]:
    """Quantities of every layer at one position of a text, by their names in a Trace. `-> layer
    ...`
    """
    (attention,) = model.config.family.attentions
    select = _at(at)
    with hooks.recording(model, select, names) as records:
        hooks.run(model, [ids])
    return {name: torch.stack(records[attention.name][name])[:, 0] for name in names}


class Swap(NamedTuple):
    """The arguments of `run_swapped`."""

    model: Model
    text: TargetText
    name: str
    donor: Tensor
    masks: Tensor
    read: int
    logits: bool


class Prefix(NamedTuple):
    """The keys and values of every layer, `row head pos d_head`, of the first `length` tokens."""

    length: int
    layers: list[tuple[Tensor, Tensor]]


def run_swapped(
    model: Model,
    text: TargetText,
    name: str,
    donor: Tensor,
    swap_masks: Tensor,
    *,
    read: int,
    logits: bool = False,
) -> Ends:
    """Variants of the run of a text: in each, some layers or heads have the donor's value of
    `name` at the text's position.

    donor: `layer d_model`; for z `layer head d_head`
    swap_masks: `variant layer`; for z `variant layer head`
    read: the position that is read
    logits: whether to read the logits as well, which takes the rest of the forward

    Warns if the hooks allow no shortcuts.
    """
    batch_size = AT_ONCE
    if logits:
        batch_size = min(batch_size, max(1, MOST_LOGITS // (model.config.d_vocab * len(text.ids))))
    swap = Swap(model, text, name, donor, swap_masks.to(model.device), read, logits)
    in_layer = swap_masks.flatten(2).any(-1) if swap_masks.ndim > 2 else swap_masks  # variant layer
    # If nothing is swapped in a variant, any layer can be its first.
    first = torch.where(in_layer.any(-1), in_layer.int().argmax(-1), len(donor) - 1)
    order = first.argsort(stable=True)
    middle = order[len(order) // 2 :][:2]
    prefix = _prefix(swap)
    shortcut = _is_same(swap, middle, int(first[middle[0]]), prefix)
    if not shortcut:
        warn(
            f"Cannot share computation between swaps in {model.label}: with its hooks, a part of a "
            "text or of the layers gives another result than the whole. So every variant runs its "
            "whole text in every layer.",
            RuntimeWarning,
            stacklevel=2,
        )
    parts = []
    for batch in order.split(batch_size):
        begin = int(first[batch[0]])
        parts.append(_run(swap, batch, begin, prefix) if shortcut else _run(swap, batch, 0, None))
    back = order.argsort().to(model.device)
    resid = torch.cat([part.resid for part in parts])[back]
    if not logits:
        return Ends(resid, None)
    return Ends(resid, torch.cat([part.logits for part in parts if part.logits is not None])[back])


def _prefix(swap: Swap) -> Prefix | None:
    """The keys and values of the tokens before the swap.

    None if there are no such tokens, if the model reads both ways, if its layers keep other states,
    or if a hook fails.
    """
    config = swap.model.config
    if not config.causal or any(config.mixers) or not swap.text.at:
        return None
    # Imported here: transformers takes a second, and models without hooks do without its cache.
    from transformers import DynamicCache

    cache = DynamicCache()
    # The whole text, so that a hook on the last token acts on the last one.
    with hooks.hooked(swap.model, []), suppress(*FAILURES):
        hooks.run_cached(swap.model, swap.text.ids, cache)
        length = swap.text.at
        layers = [(each.keys[:, :, :length], each.values[:, :, :length]) for each in cache.layers]
        return Prefix(length, layers)
    return None


def _is_same(swap: Swap, variants: Tensor, begin: int, prefix: Prefix | None) -> bool:
    """Whether some variants have the same result with and without the shortcuts."""
    whole = _run(swap, variants, 0, None)
    try:
        shortened = _run(swap, variants, begin, prefix)
    except FAILURES:
        return False
    for expected, result in zip(whole, shortened, strict=True):
        if expected is not None and result is not None:
            largest = expected.abs().amax(-1, keepdim=True)
            if not bool(((expected - result).abs() <= SAME[swap.model.dtype] * largest).all()):
                return False
    return True


def _run(swap: Swap, variants: Tensor, begin: int, prefix: Prefix | None) -> Ends:
    """Some variants in one forward, with a row for each from layer `begin` on, and only the tokens
    after the prefix, if there is one.
    """
    model, text, name, donor = swap.model, swap.text, swap.name, swap.donor
    (attention,) = model.config.family.attentions
    swap_masks = swap.masks[variants.to(swap.masks.device)]
    rows = 1 if begin else len(swap_masks)
    start = prefix.length if prefix else 0
    at = text.at - start
    read = swap.read - start

    def widen(recipient: Tensor, hook: object) -> Tensor:
        return recipient.expand(len(swap_masks), -1, -1)

    def put_donor(layer: int, recipient: Tensor, hook: object) -> Tensor:
        with_donor = recipient.clone()
        with_donor[:, at] = torch.where(
            swap_masks[:, layer, ..., None], donor[layer].to(recipient), recipient[:, at]
        )
        return with_donor

    def stop(stream: Tensor, hook: object) -> None:
        raise Stop

    def point(layer: int, quantity: str) -> str:
        return f"{attention.blocks}.{layer}.{attention.hooks[quantity]}"

    points: list[hooks.Hook] = [(point(begin, "resid_pre"), widen)] if begin else []
    points += [
        (point(layer, name), partial(put_donor, layer))
        for layer in range(len(donor))
        if swap_masks[:, layer].any()
    ]
    ending = [] if swap.logits else [(point(model.config.n_layers - 1, "resid_post"), stop)]
    logits_at = None
    # Recorded last: if it reads the same hook point, it reads the value after the swap.
    with (
        hooks.hooked(model, points),
        hooks.recording(model, _at(read), ("resid_pre", "resid_post")) as records,
        hooks.hooked(model, ending),
        suppress(Stop),
    ):
        if prefix is None:
            logits_at = hooks.run(model, [text.ids] * rows)[:, read]
        else:
            cache = _cache_of(prefix, begin, len(swap_masks))
            ids = text.ids[start:]
            logits_at = hooks.run_cached(
                model, ids, cache, rows=rows, start=start, head=swap.logits
            )[:, read]
    layers = records[attention.name]
    resid = [
        each.expand(len(swap_masks), -1)
        for each in (*layers["resid_pre"], layers["resid_post"][-1])
    ]
    return Ends(torch.stack(resid, dim=1), logits_at)


def _cache_of(prefix: Prefix, begin: int, variants: int) -> Any:
    """A cache of the prefix, with a row for every variant from layer `begin` on."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer, states in enumerate(prefix.layers):
        rows = 1 if 0 < begin > layer else variants
        keys, values = (state.expand(rows, -1, -1, -1) for state in states)
        cache.update(keys, values, layer)
    return cache


def ends_as_weights_say(model: Model) -> bool:
    """Whether the final norm and the unembedding turn the last stream into the model's logits,
    on a short text.

    If they do not, a hook acts after the last block.
    """
    ids = model.tokenizer(SHORT_TEXT, add_special_tokens=False)["input_ids"][: model.config.n_ctx]
    (attention,) = model.config.family.attentions
    weights = read_weights(model)
    with hooks.recording(model, lambda name, tensor: tensor[0], ["resid_post"]) as records:
        logits = hooks.run(model, [ids])[0]
        from_weights = forward.unembed(weights, records[attention.name]["resid_post"][-1])
    return bool((from_weights - logits).abs().max() <= SAME[model.dtype] * logits.abs().max())


def _at(pos: int) -> hooks.Select:
    return lambda name, tensor: tensor[:, pos]


def swap_sets(
    weights: Weights,
    texts: Sequence[TargetText],
    donor_z: Tensor,
    head_sets: Tensor,
    directions: Tensor,
    *,
    length: bool = False,
) -> Tensor:
    """`probe.patching.heads.swap_sets` in a model whose hooks stay active, with the same
    arguments and result.

    Raises InputError if the stream after the final norm is read and a hook acts there.
    """
    model = weights.hooked
    assert model is not None
    layers = donor_z.shape[1]
    stages = directions.shape[1] if directions.ndim >= 3 else layers
    if stages > layers and not ends_as_weights_say(model):
        raise InputError(
            f"Cannot swap heads of {model.name}: got directions of {stages} stages for {layers} "
            "layers, expected one for each layer, because a hook acts after the last layer. Read "
            "before the final norm."
        )
    # The first variant swaps nothing: it is the unchanged run.
    swap_masks = torch.cat([torch.zeros_like(head_sets[:1]), ~head_sets])
    shifts = []
    for row, text in enumerate(texts):
        ends = run_swapped(model, text, "z", donor_z[row], swap_masks, read=text.at)
        if directions.ndim == 2:
            change = ends.resid[1:, layers] - ends.resid[:1, layers]
            moved = change @ directions.to(change).T
        else:
            streams = ends.resid[:, 1 : 1 + stages]
            if stages > layers:
                final = forward.unembedding_input(weights, ends.resid[:, -1:])
                streams = torch.cat([streams, final.expand(-1, stages - layers, -1)], dim=1)
            change = streams[1:] - streams[:1]  # set stage d_model
            along = directions[row].to(change)
            moved = torch.einsum("nsd,s...d->ns...", change, along)
            if length and directions.ndim == 3:
                moved = moved[..., None]
        if length:
            moved = torch.cat([moved, change.norm(dim=-1, keepdim=True)], dim=-1)
        shifts.append(moved)
    return torch.stack(shifts).cpu().clone()
