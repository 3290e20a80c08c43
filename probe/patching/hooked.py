"""Swaps in a model whose owner's hooks stay on (`probe.load(..., hooks="keep")`): every variant of
a run is a whole forward of the hooked bridge.

What a hook does is known to nobody but the hook. One that treats rows independently, which
`probe.load` has checked, lets many variants share a forward. Two shortcuts save most of it: the
variants are equal up to the first layer in which one of them is swapped, so up to there one row is
run for all; and in a causal model the tokens before the swap are the same in all of them, so their
keys and values are computed once. A hook that counts positions or rows need not allow for that:
two variants are first run both ways, and where they differ every variant runs its whole text in
every layer.

What is swapped is what a hook point holds after the hooks there; everything after it, hooks among
it, responds.
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
from probe.model.load import SHORT_TEXT, read_weights
from probe.model.model import Model
from probe.model.objects import SAME
from probe.model.tokens import TargetText
from probe.model.weights import Weights

# Logits that one forward may make: 256 MB in float32.
MOST_LOGITS = 2**26
# Variants of one forward: enough for fast products, and few enough to begin at about one layer.
AT_ONCE = 32
# What a hook may raise that is not given a whole text: anything.
FAILURES = (Exception,)


class Ends(NamedTuple):
    """What some variants of a run hold at one position.

    resid: `variant depth d_model`, depth 0 entering the first block and depth d leaving block d - 1
    logits: `variant d_vocab`; None where nobody asked for them
    """

    resid: Tensor
    logits: Tensor | None


class Stop(Exception):
    """Ends a forward after its last block, where nobody asked for logits."""


def read_parts(
    model: Model, ids: Sequence[int], at: int, names: Sequence[str]
) -> dict[str, Tensor]:
    """Quantities of every layer at one position of a text, by their names in a Trace. `-> layer
    ...`"""
    (attention,) = model.config.family.attentions
    select = _at(at)
    with hooks.recording(model, select, names) as recorded:
        hooks.run(model, [ids])
    return {name: torch.stack(recorded[attention.name][name])[:, 0] for name in names}


class Swap(NamedTuple):
    """What is swapped in the variants of a run, and what is read of them; see `run_swapped`."""

    model: Model
    text: TargetText
    name: str
    donor: Tensor
    swapped: Tensor
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
    swapped: Tensor,
    *,
    read: int,
    logits: bool = False,
) -> Ends:
    """Variants of the run of a text: in each of them the quantity `name` is the donor's at the
    text's position in some layers, or in some heads of them; read at the position `read`.

    `donor: layer d_model, swapped: variant layer`; of z `layer head d_head` and `variant layer
    head`. logits: whether to read them, too, which takes the rest of the forward.
    Warns where the hooks allow no shortcuts.
    """
    most = AT_ONCE
    if logits:
        most = min(most, max(1, MOST_LOGITS // (model.config.d_vocab * len(text.ids))))
    swap = Swap(model, text, name, donor, swapped.to(model.device), read, logits)
    in_layer = swapped.flatten(2).any(-1) if swapped.ndim > 2 else swapped  # variant layer
    # Of a variant in which nothing is swapped any layer is the first.
    first = torch.where(in_layer.any(-1), in_layer.int().argmax(-1), len(donor) - 1)
    order = first.argsort(stable=True)
    middle = order[len(order) // 2 :][:2]
    prefix = _prefix(swap)
    shortcut = _is_same(swap, middle, int(first[middle[0]]), prefix)
    if not shortcut:
        warn(
            f"Swapping in {model.said}: with its hooks a part of a text or of the layers gives "
            "something else than the whole, so every variant runs its whole text in every layer.",
            RuntimeWarning,
            stacklevel=2,
        )
    parts = []
    for some in order.split(most):
        begin = int(first[some[0]])
        parts.append(_run(swap, some, begin, prefix) if shortcut else _run(swap, some, 0, None))
    back = order.argsort().to(model.device)
    resid = torch.cat([part.resid for part in parts])[back]
    if not logits:
        return Ends(resid, None)
    return Ends(resid, torch.cat([part.logits for part in parts if part.logits is not None])[back])


def _prefix(swap: Swap) -> Prefix | None:
    """What the tokens before the swap leave for later ones; None where the model reads both ways,
    where its layers keep other states, and where there are none."""
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
    """Whether some variants end alike with and without the shortcuts."""
    whole = _run(swap, variants, 0, None)
    try:
        found = _run(swap, variants, begin, prefix)
    except FAILURES:
        return False
    for one, other in zip(whole, found, strict=True):
        if one is not None and other is not None:
            largest = one.abs().amax(-1, keepdim=True)
            if not bool(((one - other).abs() <= SAME[swap.model.dtype] * largest).all()):
                return False
    return True


def _run(swap: Swap, variants: Tensor, begin: int, prefix: Prefix | None) -> Ends:
    """Some variants in one forward, which has a row for each from layer `begin` on, and only the
    tokens after the prefix, if there is one."""
    model, text, name, donor = swap.model, swap.text, swap.name, swap.donor
    (attention,) = model.config.family.attentions
    swapped = swap.swapped[variants.to(swap.swapped.device)]
    rows = 1 if begin else len(swapped)
    start = prefix.length if prefix else 0
    at = text.at - start
    read = swap.read - start

    def widen(own: Tensor, hook: object) -> Tensor:
        return own.expand(len(swapped), -1, -1)

    def put(layer: int, own: Tensor, hook: object) -> Tensor:
        patched = own.clone()
        patched[:, at] = torch.where(swapped[:, layer, ..., None], donor[layer].to(own), own[:, at])
        return patched

    def stop(own: Tensor, hook: object) -> None:
        raise Stop

    def point(layer: int, quantity: str) -> str:
        return f"{attention.blocks}.{layer}.{attention.hooks[quantity]}"

    points: list[hooks.Hook] = [(point(begin, "resid_pre"), widen)] if begin else []
    points += [
        (point(layer, name), partial(put, layer))
        for layer in range(len(donor))
        if swapped[:, layer].any()
    ]
    ending = [] if swap.logits else [(point(model.config.n_layers - 1, "resid_post"), stop)]
    found = None
    # Only then what is read: where it is the same hook point, it is read after the swap.
    with (
        hooks.hooked(model, points),
        hooks.recording(model, _at(read), ("resid_pre", "resid_post")) as recorded,
        hooks.hooked(model, ending),
        suppress(Stop),
    ):
        if prefix is None:
            found = hooks.run(model, [text.ids] * rows)[:, read]
        else:
            cache = _cache_of(prefix, begin, len(swapped))
            ids = text.ids[start:]
            found = hooks.run_cached(model, ids, cache, rows=rows, start=start, head=swap.logits)[
                :, read
            ]
    layers = recorded[attention.name]
    resid = [
        each.expand(len(swapped), -1) for each in (*layers["resid_pre"], layers["resid_post"][-1])
    ]
    return Ends(torch.stack(resid, dim=1), found)


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
    """Whether no hook stands behind the last block: on a short text, the logits are those that the
    final norm and the unembedding make of the last stream."""
    ids = model.tokenizer(SHORT_TEXT, add_special_tokens=False)["input_ids"][: model.config.n_ctx]
    (attention,) = model.config.family.attentions
    weights = read_weights(model)
    with hooks.recording(model, lambda name, tensor: tensor[0], ["resid_post"]) as recorded:
        logits = hooks.run(model, [ids])[0]
        found = forward.unembed(weights, recorded[attention.name]["resid_post"][-1])
    return bool((found - logits).abs().max() <= SAME[model.dtype] * logits.abs().max())


def _at(pos: int) -> hooks.Select:
    return lambda name, tensor: tensor[:, pos]


def swap_sets(
    weights: Weights,
    texts: Sequence[TargetText],
    donor_z: Tensor,
    head_sets: Tensor,
    directions: Tensor,
) -> Tensor:
    """`probe.patching.heads.swap_sets` in a model whose hooks stay on; arguments and result as
    there. Raises InputError for what is read behind the final norm where a hook stands there."""
    model = weights.hooked
    assert model is not None
    layers = donor_z.shape[1]
    stages = directions.shape[1] if directions.ndim >= 3 else layers
    if stages > layers and not ends_as_weights_say(model):
        raise InputError(
            f"Swapping heads of {model.name}: got directions of {stages} stages for {layers} "
            "layers, expected one for each layer, because a hook stands behind the last; read in "
            "front of the final norm."
        )
    # The unchanged run is a variant in which nothing is swapped.
    swapped = torch.cat([torch.zeros_like(head_sets[:1]), ~head_sets])
    moved = []
    for row, text in enumerate(texts):
        ends = run_swapped(model, text, "z", donor_z[row], swapped, read=text.at)
        if directions.ndim == 2:
            change = ends.resid[1:, layers] - ends.resid[:1, layers]
            moved.append(change @ directions.to(change).T)
        else:
            behind = ends.resid[:, 1 : 1 + stages]
            if stages > layers:
                final = forward.unembedding_input(weights, ends.resid[:, -1:])
                behind = torch.cat([behind, final.expand(-1, stages - layers, -1)], dim=1)
            change = behind[1:] - behind[:1]  # set stage d_model
            along = directions[row].to(change)
            moved.append(torch.einsum("nsd,s...d->ns...", change, along))
    return torch.stack(moved).cpu().clone()
