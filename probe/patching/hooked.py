"""Swaps in a model whose hooks stay active (`probe.load(..., hooks="keep")`).

Every variant of a run is a whole forward of the hooked bridge. The library does not know what a
hook does, so it reuses nothing between variants, unlike `probe.patching.heads`. A swap replaces the
value after the hooks of its hook point; everything later responds, also the hooks.
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

# Logits of one forward: 256 MB in float32.
MOST_LOGITS = 2**26


class Ends(NamedTuple):
    """The stream and the logits of variants of a run at one position.

    resid: `variant depth d_model`; depth 0 enters the first block, depth d leaves block d - 1
    logits: `variant d_vocab`
    """

    resid: Tensor
    logits: Tensor


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


def run_swapped(
    model: Model, text: TargetText, name: str, donor: Tensor, swap_masks: Tensor, *, read: int
) -> Ends:
    """Variants of the run of a text: in each, some layers or heads have the donor's value of
    `name` at the text's position.

    donor: `layer d_model`; for z `layer head d_head`
    swap_masks: `variant layer`; for z `variant layer head`
    read: the position that is read
    """
    batch_size = max(1, MOST_LOGITS // (model.config.d_vocab * len(text.ids)))
    parts = [
        _run(model, text, name, donor, batch.to(model.device), read)
        for batch in swap_masks.split(batch_size)
    ]
    return Ends(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def _run(
    model: Model, text: TargetText, name: str, donor: Tensor, swap_masks: Tensor, read: int
) -> Ends:
    (attention,) = model.config.family.attentions

    def put_donor(layer: int, recipient: Tensor, hook: object) -> Tensor:
        with_donor = recipient.clone()
        donor_value = donor[layer].to(recipient)
        with_donor[:, text.at] = torch.where(
            swap_masks[:, layer, ..., None], donor_value, recipient[:, text.at]
        )
        return with_donor

    points = [
        (f"{attention.blocks}.{layer}.{attention.hooks[name]}", partial(put_donor, layer))
        for layer in range(len(donor))
        if swap_masks[:, layer].any()
    ]
    rows = [text.ids] * len(swap_masks)
    # Recorded last: if it reads the same hook point, it reads the value after the swap.
    with (
        hooks.hooked(model, points),
        hooks.recording(model, _at(read), ("resid_pre", "resid_post")) as records,
    ):
        logits = hooks.run(model, rows)[:, read]
    layers = records[attention.name]
    resid = torch.stack([*layers["resid_pre"], layers["resid_post"][-1]], dim=1)
    return Ends(resid, logits)


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
            shifts.append(change @ directions.to(change).T)
        else:
            streams = ends.resid[:, 1 : 1 + stages]
            if stages > layers:
                final = forward.unembedding_input(weights, ends.resid[:, -1:])
                streams = torch.cat([streams, final.expand(-1, stages - layers, -1)], dim=1)
            change = streams[1:] - streams[:1]  # set stage d_model
            along = directions[row].to(change)
            shifts.append(torch.einsum("nsd,s...d->ns...", change, along))
    return torch.stack(shifts).cpu().clone()
