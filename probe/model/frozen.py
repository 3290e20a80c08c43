"""What a post-norm model's norms do with what was written in front of them, each norm's scale held at what it was.

In BERT and RoBERTa a block ends in E′ = LN(E + attn_out) and E″ = LN(E′ + mlp_out), and the embeddings pass through a norm, too: what
a head writes reaches the read-out through every norm behind it. LN(x) = (x - mean x) / sqrt(var x + eps) gain + bias. With the
scale sqrt(var x + eps) held fixed it is linear: every write is centred, divided by the scale and multiplied by the gain, and the bias
is one more term. So the residual stream is again a sum, exactly. What a different write would do to the scale is not part of it:
that is what a swap measures. Pre-norm families (GPT-2, GPT-NeoX, Llama) have no norm between a write and the read-out: nothing
is done there.

Source: Elhage et al. 2021 (frozen LayerNorm in direct attribution); Modarressi et al. 2022 (the same for post-norm encoders).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from probe.model import ends, forward
from probe.model.architectures import FAMILIES
from probe.model.general import General, embeddings
from probe.model.records import TargetStates
from probe.model.replay import Weights


@dataclass(frozen=True, eq=False)
class Norms:
    """The norms up to the read-out at one position of several texts. `gains biases: norm d_model`, `scales: row norm`; none in pre-norm.

    Norm 0 stands behind the embeddings, norm 1 + 2 layer behind the attention of a layer, norm 2 + 2 layer behind its MLP.
    """

    gains: Tensor
    biases: Tensor
    scales: Tensor

    def behind_attention(self, layer: int) -> int:
        """The first norm that meets what the heads of this layer write."""
        return 1 + 2 * layer if len(self.gains) else 0

    def behind_mlp(self, layer: int) -> int:
        """The first norm that meets what this layer's MLP writes."""
        return 2 + 2 * layer if len(self.gains) else 0

    def arriving(self, vectors: Tensor, first: int) -> Tensor:
        """What is left of the vectors at the read-out, from norm `first` on. `row ... d_model -> row ... d_model`"""
        for norm in range(first, len(self.gains)):
            scale = self.scales[:, norm].view(-1, *[1] * (vectors.ndim - 1))
            vectors = (vectors - vectors.mean(-1, keepdim=True)) / scale * self.gains[norm]
        return vectors

    def pulled_back(self, direction: Tensor, first: int) -> Tensor:
        """The direction whose product with a write, divided by `factor`, is what arrives along `direction`. `d_model -> d_model`"""
        for gain in reversed(self.gains[first:].unbind()):
            direction = direction * gain.to(direction)
            direction = direction - direction.mean()
        return direction

    def factor(self, first: int) -> Tensor:
        """The product of the scales from norm `first` on; 1 where there is none. `-> row`"""
        return self.scales[:, first:].prod(1)


def norms_of(weights: Weights | General, states: TargetStates, depth: int) -> Norms:
    """The norms of every text in `states` up to the read-out after `depth` blocks, in float64."""
    if isinstance(weights, Weights) or FAMILIES[weights.config.architecture].norm_first:
        none = torch.zeros(0, weights.shape[2], dtype=torch.float64)
        return Norms(none, none, torch.ones(len(states), 0, dtype=torch.float64))
    raw, name = weights.raw, ends.EMBEDDING_NORM[weights.config.architecture]
    sums = [ends.sum_of(embeddings(weights, states.ids, states.target)).double()]
    norms = [(raw[name + ".weight"], raw[name + ".bias"])]
    for layer, held in enumerate(weights.blocks[:depth]):
        block = held.to(torch.float64, "cpu")
        assert block.norm_bias is not None and block.norm_mlp is not None and block.norm_mlp_bias is not None
        attn_out = torch.einsum("rhe,hed->rd", states.z[:, layer].double(), block.w_o)
        sums.append(states.resid[:, layer].double() + attn_out + (0 if block.b_o is None else block.b_o))
        resid_mid = forward.norm(sums[-1], block.norm, block.norm_bias, weights.config)
        sums.append(resid_mid + states.mlp_out[:, layer].double())
        norms += [(block.norm, block.norm_bias), (block.norm_mlp, block.norm_mlp_bias)]
    scales = torch.stack([(one.var(-1, unbiased=False) + weights.config.epsilon).sqrt() for one in sums], dim=1)
    gains, biases = (torch.stack([one.cpu().double() for one in part]) for part in zip(*norms, strict=True))
    return Norms(gains, biases, scales)
