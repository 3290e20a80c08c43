"""Swaps in a model whose owner's hooks stay on (`probe.load(..., hooks="keep")`): every variant of
a run is a whole forward of the hooked bridge.

What a hook does is known to nobody but the hook, so nothing is kept from one variant for another,
as `probe.patching.heads` keeps it: as many forwards as variants. What is swapped is what a hook
point holds behind the hooks that stand there; everything after it, hooks among it, responds.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

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


class Ends(NamedTuple):
    """What some variants of a run hold at one position: `resid: variant depth d_model`, depth 0
    entering the first block and depth d leaving block d - 1, and `logits: variant d_vocab`."""

    resid: Tensor
    logits: Tensor


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


def run_swapped(
    model: Model, text: TargetText, name: str, donor: Tensor, swapped: Tensor, *, read: int
) -> Ends:
    """Variants of the run of a text: in each of them the quantity `name` is the donor's at the
    text's position in some layers, or in some heads of them; read at the position `read`.

    `donor: layer d_model, swapped: variant layer`; of z `layer head d_head` and `variant layer
    head`.
    """
    most = max(1, MOST_LOGITS // (model.config.d_vocab * len(text.ids)))
    parts = [
        _run(model, text, name, donor, some.to(model.device), read) for some in swapped.split(most)
    ]
    return Ends(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _run(
    model: Model, text: TargetText, name: str, donor: Tensor, swapped: Tensor, read: int
) -> Ends:
    (attention,) = model.config.family.attentions

    def put(layer: int, own: Tensor, hook: object) -> Tensor:
        patched = own.clone()
        given = donor[layer].to(own)
        patched[:, text.at] = torch.where(swapped[:, layer, ..., None], given, own[:, text.at])
        return patched

    points = [
        (f"{attention.blocks}.{layer}.{attention.hooks[name]}", partial(put, layer))
        for layer in range(len(donor))
        if swapped[:, layer].any()
    ]
    rows = [text.ids] * len(swapped)
    # Only then what is read: where it is the same hook point, it is read behind the swap.
    with (
        hooks.hooked(model, points),
        hooks.recording(model, _at(read), ("resid_pre", "resid_post")) as recorded,
    ):
        logits = hooks.run(model, rows)[:, read]
    layers = recorded[attention.name]
    resid = torch.stack([*layers["resid_pre"], layers["resid_post"][-1]], dim=1)
    return Ends(resid, logits)


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
