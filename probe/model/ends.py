"""The two ends of a model from its raw weights: what enters the first block of each stack, and the logits after the last."""

from collections.abc import Mapping

import torch
from torch import Tensor

from probe.model import attention as formulas
from probe.model.architectures import FAMILIES
from probe.model.config import Config
from probe.model.forward import norm

Weights = Mapping[str, Tensor]
EMBEDDING_NORM = {"bert": "embeddings.LayerNorm", "roberta": "embeddings.LayerNorm", "bart": "{}.layernorm_embedding"}
POSITION_TABLE = {"gpt2": "wpe", "bert": "embeddings.position_embeddings", "bart": "{}.embed_positions"}
POSITION_TABLE["roberta"] = POSITION_TABLE["bert"]
FINAL_NORM = {"t5": "{}.final_layer_norm", "gpt_neox": "final_layer_norm", "llama": "norm", "qwen2": "norm"}
TRANSFORM = {
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
    "roberta": ("lm_head.dense", "lm_head.layer_norm"),
}
HEAD_BIAS = {"bert": "cls.predictions.bias", "roberta": "lm_head.bias"}


def embed(weights: Weights, ids: Tensor, config: Config, *, side: str = "", dtype: torch.dtype) -> Tensor:
    """E before the first block of the stack `side`: token vectors with the family's scale, positions, types and norm.

    `... pos -> ... pos d_model`
    """
    places = torch.arange(ids.shape[-1], device=ids.device)
    return embedding_norm(
        weights, sum_of(embedding_parts(weights, ids, places, config, side=side, dtype=dtype)), config, side=side
    )


def embedding_parts(
    weights: Weights, ids: Tensor, places: Tensor, config: Config, *, side: str = "", dtype: torch.dtype
) -> dict[str, Tensor]:
    """The vectors that are added for tokens at `places`, by name: token, position and token type, as far as the family has them.

    `..., ... -> ... d_model`
    """
    kind = config.architecture
    parts = {"token embedding": weights[FAMILIES[kind].embed + ".weight"][ids].to(dtype) * config.embed_scale}
    if config.positions.kind == "learned":
        table = weights[POSITION_TABLE[kind].format(side) + ".weight"]
        parts["position embedding"] = table[config.positions.first + places].to(dtype)
    if config.positions.kind == "sinusoidal":
        table = sinusoids(int(places.max()) + 1, config.d_model).to(parts["token embedding"])
        parts["position embedding"] = table[places]
    if config.n_token_types:
        parts["token type embedding"] = weights["embeddings.token_type_embeddings.weight"][0].to(dtype)
    return parts


def sum_of(parts: Mapping[str, Tensor]) -> Tensor:
    """The sum of the embeddings, in the order of the names."""
    first, *others = parts.values()
    return sum(others, start=first)


def embedding_norm(weights: Weights, resid: Tensor, config: Config, *, side: str = "") -> Tensor:
    """The norm between the embeddings and the first block, where the family has one. Shape unchanged."""
    return _normed(weights, resid, EMBEDDING_NORM.get(config.architecture, "").format(side), config)


def sinusoids(n: int, d_model: int) -> Tensor:
    """Vaswani's positions, sines in the first half and cosines in the second: sin(pos / 10000^(2 i / d_model)). `-> pos d_model`

    Rounded to float32, which is how the architecture keeps its table.
    """
    pairs = torch.arange(d_model, dtype=torch.float64) // 2
    angles = torch.arange(n, dtype=torch.float64)[:, None] / 10000 ** (2 * pairs / d_model)
    return torch.cat([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=-1).float()


def finish(weights: Weights, resid_post: Tensor, config: Config, *, side: str = "") -> Tensor:
    """What leaves a stack: its last resid_post through the final norm, where the family has one. `pos d_model -> pos d_model`"""
    return _normed(weights, resid_post, FINAL_NORM.get(config.architecture, "").format(side), config)


def logits(weights: Weights, final: Tensor, config: Config) -> Tensor:
    """Scores over the vocabulary from what left the last stack: `pos d_model -> pos d_vocab`"""
    bias = weights.get("final_logits_bias", final.new_zeros(1))
    if config.architecture in TRANSFORM:
        final, bias = _transformed(weights, final, config), weights[HEAD_BIAS[config.architecture]]
    return final @ unembedding(weights, config, final.dtype).T + bias.to(final)


def unembedding(weights: Weights, config: Config, dtype: torch.dtype) -> Tensor:
    """What the last vectors are multiplied with, T5's scale in it: `d_vocab d_model`."""
    family = FAMILIES[config.architecture]
    table = weights[(family.embed if config.tied else family.unembed) + ".weight"].to(dtype)
    return table * config.d_model**-0.5 if config.architecture == "t5" and config.tied else table


def _transformed(weights: Weights, final: Tensor, config: Config) -> Tensor:
    """BERT's head before its last product: norm(activation(x W + b)), which is always GELU in RoBERTa."""
    dense, last = TRANSFORM[config.architecture]
    inner = final @ weights[dense + ".weight"].to(final).T + weights[dense + ".bias"].to(final)
    activation = formulas.gelu if config.architecture == "roberta" else getattr(formulas, config.activation)
    return _normed(weights, activation(inner), last, config)


def _normed(weights: Weights, x: Tensor, name: str, config: Config) -> Tensor:
    if not name:
        return x
    bias = weights.get(name + ".bias")
    return norm(x, weights[name + ".weight"].to(x), None if bias is None else bias.to(x), config)
