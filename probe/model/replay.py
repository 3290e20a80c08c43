"""A whole GPT-2 forward from raw weights, built on `probe.model.attention`.

Nothing of Hugging Face's or TransformerLens's modelling code is used: the tensors come straight from the safetensors file.
In float64 it is the oracle of `probe.model.check`, and what the fast forward of `probe.patching.engine` must equal.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from probe.model import attention
from probe.model.architectures import require_whole
from probe.model.load import Model


@dataclass(frozen=True)
class Block:
    """The weights of one transformer block, per head where heads exist.

    `w_q w_k w_v: head d_model d_head`, `b_q b_k b_v: head d_head`, `w_o: head d_head d_model`, `b_o: d_model`,
    `w_in: d_model d_mlp`, `w_out: d_mlp d_model`, the rest one number per coordinate. `w_qkv b_qkv` hold queries, keys and
    values of all heads side by side, as the file does, for the one product of `probe.patching.engine`.
    """

    ln1_gain: Tensor
    ln1_bias: Tensor
    w_qkv: Tensor
    b_qkv: Tensor
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    b_q: Tensor
    b_k: Tensor
    b_v: Tensor
    w_o: Tensor
    b_o: Tensor
    ln2_gain: Tensor
    ln2_bias: Tensor
    w_in: Tensor
    b_in: Tensor
    w_out: Tensor
    b_out: Tensor

    @property
    def d_mlp(self) -> int:
        return self.w_in.shape[1]

    def to(self, dtype: torch.dtype) -> "Block":
        return Block(**{field.name: getattr(self, field.name).to(dtype) for field in fields(self)})


@dataclass(frozen=True)
class Weights:
    """Every weight of a GPT-2: `wte: d_vocab d_model`, `wpe: pos d_model`, the blocks, the final norm, `unembed: d_vocab d_model`."""

    wte: Tensor
    wpe: Tensor
    blocks: tuple[Block, ...]
    ln_f_gain: Tensor
    ln_f_bias: Tensor
    unembed: Tensor
    epsilon: float

    @property
    def device(self) -> torch.device:
        return self.wte.device

    @property
    def dtype(self) -> torch.dtype:
        return self.wte.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """How many layers, heads, d_model, d_head."""
        heads, d_model, d_head = self.blocks[0].w_q.shape
        return len(self.blocks), heads, d_model, d_head


def read_weights(model: Model) -> Weights:
    """The raw tensors of `model` arranged per block and head, as views of the model's own."""
    require_whole(model.config.architecture, "a whole forward from raw weights")
    raw, config = model.weights, model.config
    return Weights(
        wte=raw["wte.weight"],
        wpe=raw["wpe.weight"],
        blocks=tuple(_read_block(raw, f"h.{layer}.", config.n_heads) for layer in range(config.n_layers)),
        ln_f_gain=raw["ln_f.weight"],
        ln_f_bias=raw["ln_f.bias"],
        unembed=raw.get("lm_head.weight", raw["wte.weight"]),
        epsilon=config.epsilon,
    )


def _read_block(raw: Mapping[str, Tensor], prefix: str, n_heads: int) -> Block:
    w_q, w_k, w_v = raw[prefix + "attn.c_attn.weight"].chunk(3, dim=1)
    b_q, b_k, b_v = raw[prefix + "attn.c_attn.bias"].chunk(3, dim=0)
    w_o = raw[prefix + "attn.c_proj.weight"]

    def by_head(weight: Tensor) -> Tensor:  # d_model (head d_head) -> head d_model d_head
        return weight.unflatten(1, (n_heads, -1)).transpose(0, 1)

    return Block(
        ln1_gain=raw[prefix + "ln_1.weight"],
        ln1_bias=raw[prefix + "ln_1.bias"],
        w_qkv=raw[prefix + "attn.c_attn.weight"],
        b_qkv=raw[prefix + "attn.c_attn.bias"],
        w_q=by_head(w_q),
        w_k=by_head(w_k),
        w_v=by_head(w_v),
        b_q=b_q.unflatten(0, (n_heads, -1)),
        b_k=b_k.unflatten(0, (n_heads, -1)),
        b_v=b_v.unflatten(0, (n_heads, -1)),
        w_o=w_o.unflatten(0, (n_heads, -1)),  # (head d_head) d_model -> head d_head d_model
        b_o=raw[prefix + "attn.c_proj.bias"],
        ln2_gain=raw[prefix + "ln_2.weight"],
        ln2_bias=raw[prefix + "ln_2.bias"],
        w_in=raw[prefix + "mlp.c_fc.weight"],
        b_in=raw[prefix + "mlp.c_fc.bias"],
        w_out=raw[prefix + "mlp.c_proj.weight"],
        b_out=raw[prefix + "mlp.c_proj.bias"],
    )


def embed(weights: Weights, ids: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """E before the first block: token vector + position vector. `... pos -> ... pos d_model`"""
    return weights.wte[ids].to(dtype) + weights.wpe[: ids.shape[-1]].to(dtype)


def attend(block: Block, resid_pre: Tensor, epsilon: float) -> dict[str, Tensor]:
    """The attention half of a block, every step by name, up to z. `... pos d_model -> ...`, shapes as in `probe.model.records.Trace`."""
    x = attention.layer_norm(resid_pre, block.ln1_gain, block.ln1_bias, epsilon)
    q = attention.project(x, block.w_q, block.b_q)
    k = attention.project(x, block.w_k, block.b_k)
    v = attention.project(x, block.w_v, block.b_v)
    scores = attention.mask(attention.scores(q, k))
    pattern = attention.softmax(scores)
    return {"x": x, "q": q, "k": k, "v": v, "scores": scores, "pattern": pattern, "z": attention.mix(pattern, v)}


def merge_heads(block: Block, z: Tensor) -> Tensor:
    """attn_out = Concat(z) W_O + b_O, which equals Σ_h ΔE_h + b_O. `... head pos d_head -> ... pos d_model`"""
    return z.transpose(-3, -2).flatten(-2) @ block.w_o.flatten(0, 1) + block.b_o


def mlp(block: Block, resid_mid: Tensor, epsilon: float) -> Tensor:
    """The block's second half: W_out gelu(W_in LN2(E′) + b_in) + b_out. `... pos d_model -> ... pos d_model`"""
    x = attention.layer_norm(resid_mid, block.ln2_gain, block.ln2_bias, epsilon)
    return attention.gelu_new(x @ block.w_in + block.b_in) @ block.w_out + block.b_out


def run(weights: Weights, ids: Tensor, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """One dictionary of named tensors per layer, in order, so that neither a whole run nor a converted model is ever held.

    `ids: ... pos`. Names: resid_pre x q k v scores pattern z delta_e attn_out resid_mid mlp_out resid_post, with attn_out in
    the form Σ_h ΔE_h + b_O.
    """
    resid = embed(weights, ids, dtype)
    for block in weights.blocks:
        block = block.to(dtype)
        step = {"resid_pre": resid} | attend(block, resid, weights.epsilon)
        step["delta_e"] = attention.write(step["z"], block.w_o)
        step["attn_out"] = step["delta_e"].sum(-3) + block.b_o
        step["resid_mid"] = resid + step["attn_out"]
        step["mlp_out"] = mlp(block, step["resid_mid"], weights.epsilon)
        step["resid_post"] = resid = step["resid_mid"] + step["mlp_out"]
        yield step


def unembed(weights: Weights, resid_post: Tensor) -> Tensor:
    """Logits over the vocabulary: LN_f(E) W_Uᵀ. `... d_model -> ... d_vocab`"""
    gain, bias, unembed = (w.to(resid_post.dtype) for w in (weights.ln_f_gain, weights.ln_f_bias, weights.unembed))
    return attention.layer_norm(resid_post, gain, bias, weights.epsilon) @ unembed.T
