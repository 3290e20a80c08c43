"""The two ends of a model from its raw weights: what enters the first block of each stack, and the logits after the last."""

from collections.abc import Mapping

import torch
from torch import Tensor

from probe import attention as formulas
from probe.families.forward import norm
from probe.families.table import FAMILIES, Family
from probe.loading.config import Config

Weights = Mapping[str, Tensor]
EMBEDDING_NORM = {"bert": "embeddings.LayerNorm", "roberta": "embeddings.LayerNorm", "bart": "{}.layernorm_embedding"}
POSITION_TABLE = {"bert": "embeddings.position_embeddings", "bart": "{}.embed_positions"}
POSITION_TABLE["roberta"] = POSITION_TABLE["bert"]
FINAL_NORM = {"t5": "{}.final_layer_norm", "gpt_neox": "final_layer_norm", "llama": "norm", "qwen2": "norm"}
TRANSFORM = {"bert": "cls.predictions.transform.{}", "roberta": "lm_head.{}"}


def embed(weights: Weights, ids: Tensor, config: Config, *, side: str = "", dtype: torch.dtype) -> Tensor:
    """E before the first block of the stack `side`: token vectors with the family's scale, positions, types and norm.

    `pos -> pos d_model`
    """
    raw = {name: tensor.to(dtype) for name, tensor in weights.items() if _at_the_ends(name, config)}
    resid = raw[FAMILIES[config.architecture].embed + ".weight"][ids] * config.embed_scale
    if config.positions.kind == "learned":
        first = config.positions.first
        table = raw[POSITION_TABLE[config.architecture].format(side) + ".weight"]
        resid = resid + table[first : first + len(ids)]
    if config.positions.kind == "sinusoidal":
        resid = resid + sinusoids(len(ids), config.d_model).to(resid)
    if config.n_token_types:
        resid = resid + raw["embeddings.token_type_embeddings.weight"][0]
    return _normed(raw, resid, EMBEDDING_NORM.get(config.architecture, "").format(side), config)


def sinusoids(n: int, d_model: int) -> Tensor:
    """Vaswani's positions, sines in the first half and cosines in the second: sin(pos / 10000^(2 i / d_model)). `-> pos d_model`

    Rounded to float32, which is how the architecture keeps its table.
    """
    pairs = torch.arange(d_model, dtype=torch.float64) // 2
    angles = torch.arange(n, dtype=torch.float64)[:, None] / 10000 ** (2 * pairs / d_model)
    return torch.cat([angles[:, 0::2].sin(), angles[:, 1::2].cos()], dim=-1).float()


def finish(weights: Weights, resid_post: Tensor, config: Config, *, side: str = "") -> Tensor:
    """What leaves a stack: its last resid_post through the final norm, where the family has one. `pos d_model -> pos d_model`"""
    return _normed(
        {n: t.to(resid_post.dtype) for n, t in weights.items() if _at_the_ends(n, config)},
        resid_post,
        FINAL_NORM.get(config.architecture, "").format(side),
        config,
    )


def logits(weights: Weights, final: Tensor, config: Config) -> Tensor:
    """Scores over the vocabulary from what left the last stack: `pos d_model -> pos d_vocab`"""
    family = FAMILIES[config.architecture]
    raw = {name: tensor.to(final.dtype) for name, tensor in weights.items() if _at_the_ends(name, config)}
    if config.architecture in TRANSFORM:
        final, bias = _transformed(raw, final, config)
    else:
        bias = raw.get("final_logits_bias", final.new_zeros(1))
    if config.architecture == "t5" and config.tied:
        final = final * config.d_model**-0.5
    return final @ _unembedding(raw, family).T + bias


def _transformed(raw: Weights, final: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """BERT's head before its last product: norm(gelu(x W + b)), and the bias of that product."""
    name = TRANSFORM[config.architecture]
    dense = final @ raw[name.format("dense.weight")].T + raw[name.format("dense.bias")]
    last = "LayerNorm" if config.architecture == "bert" else "layer_norm"
    bias = raw["cls.predictions.bias" if config.architecture == "bert" else "lm_head.bias"]
    return _normed(raw, formulas.gelu(dense), name.format(last), config), bias


def _unembedding(raw: Weights, family: Family) -> Tensor:
    return raw.get(family.unembed + ".weight", raw[family.embed + ".weight"])


def _normed(raw: Weights, x: Tensor, name: str, config: Config) -> Tensor:
    return norm(x, raw[name + ".weight"], raw.get(name + ".bias"), config) if name else x


def _at_the_ends(name: str, config: Config) -> bool:
    layers = {attention.layers.partition("{}")[0] for attention in FAMILIES[config.architecture].attentions}
    return not name.startswith(tuple(layers))
