"""What cross-attention adds to a word's logit by itself: ΔE by source token, along the direction that reaches the logit.

Nothing downstream responds: what later heads and MLPs make of a write is left out, and every norm that the stream still passes
keeps the scale that it had in the run (a norm's mean and gain are taken along). So read, the logit is a sum over all that was
ever written, of which these are some terms.

Source: Elhage et al. 2021 (direct paths); Wang et al. 2022 (direct logit attribution with the norm's scale frozen).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from probe import attention as formulas
from probe.families import ends
from probe.families.crossing import first_token
from probe.families.pairs import PairTrace
from probe.families.table import FAMILIES
from probe.families.tensors import read_stacks
from probe.loading.config import Config
from probe.models import Model


@dataclass(frozen=True, eq=False)
class Directions:
    """What a write is multiplied with to get what it adds to a logit: `decoder cross mlp: layer query_pos d_model`.

    `entering: query_pos d_model` is the same for what enters the first layer.
    """

    decoder: Tensor
    cross: Tensor
    mlp: Tensor
    entering: Tensor


def cross_logits(model: Model, pair: PairTrace, word: str, *, against: str | None = None) -> Tensor:
    """What each cross-attention head adds, by source token, to the logit of `word` less that of `against`, at every target position.

    `-> layer head query_pos key_pos`, in logits; both words by their first token behind the target, without `against` less the mean
    of the vocabulary. Raises InputError for a word that does not follow the target.
    """
    target = pair.target.text
    tokens = [first_token(model, target, one) for one in (word, against) if one is not None]
    return by_source(pair, directions(model, pair, toward(model, *tokens)))


def toward(model: Model, token: int, other: int | None = None) -> Tensor:
    """The direction of a token's logit in what leaves the decoder, less the other's or the mean of all. `-> d_model`"""
    table = ends.unembedding(model.weights, model.config, model.dtype).cpu()
    return table[token] - (table.mean(0) if other is None else table[other])


def by_source(pair: PairTrace, found: Directions) -> Tensor:
    """ΔE of every cross-attention head by source token, along its direction. `-> layer head query_pos key_pos`"""
    w_o = torch.stack([block.w_o for block in pair.cross.stack.blocks]).cpu()
    asked = torch.einsum("lhdm,ltm->lhtd", w_o, found.cross)
    return pair.cross.pattern * (asked @ pair.cross.v.transpose(-1, -2))


def directions(model: Model, pair: PairTrace, direction: Tensor) -> Directions:
    """The direction that leaves the decoder, followed back to where every part of it is written."""
    weights = {name: tensor.cpu() for name, tensor in model.weights.items()}
    config, stacks = model.config, read_stacks(weights, model.config)
    back = direction.expand(len(pair.target), -1)
    if name := ends.FINAL_NORM.get(config.architecture, "").format("decoder"):
        back = _through(back, pair.decoder.resid_post[-1], weights[name + ".weight"], config)
    found: dict[str, list[Tensor]] = {"mlp": [], "cross": [], "decoder": []}
    for layer in reversed(range(len(pair.cross.z))):
        own, across = (stacks[name].blocks[layer] for name in ("decoder", "cross"))
        before = (pair.cross.resid_mid[layer], pair.cross.resid_pre[layer], pair.decoder.resid_pre[layer])
        written = (pair.decoder.mlp_out[layer], pair.cross.attn_out[layer], pair.decoder.attn_out[layer])
        gains = (own.norm_mlp, across.norm, own.norm)
        for name, start, added, gain in zip(found, before, written, gains, strict=True):
            if not FAMILIES[config.architecture].norm_first:
                assert gain is not None
                back = _through(back, start + added, gain, config)
            found[name].append(back)
    stacked: Mapping[str, Tensor] = {name: torch.stack(each[::-1]) for name, each in found.items()}
    return Directions(**stacked, entering=back)


def _through(back: Tensor, entering: Tensor, gain: Tensor, config: Config) -> Tensor:
    """A direction behind a norm as one in front of it, the norm's scale held. `query_pos d_model`, unchanged in shape"""
    family, back = FAMILIES[config.architecture], back * gain
    if family.norm == "LayerNorm":
        entering = entering - entering.mean(-1, keepdim=True)
        back = back - back.mean(-1, keepdim=True)
    seen = entering.float() if family.single else entering  # as `forward.norm` has it
    return back * formulas.inverse_rms(seen, config.epsilon)
