"""A loaded model as a record: the hooked bridge, the raw tensors that the same numbers come from, and where both are
from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from probe.model.config import Config
from probe.provenance import Origin

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True, eq=False)
class Model:
    """A model that passed every check of loading: the hooked bridge, and the raw tensors the same numbers come from.

    `weights` maps Hugging Face names without the family's prefix ("wte.weight", "h.0.attn.c_attn.weight") to tensors in
    `dtype` on `device`; the unembedding is there only when it is not tied to the embedding.
    """

    name: str
    bridge: "TransformerBridge"
    tokenizer: "PreTrainedTokenizerFast"
    config: Config
    weights: Mapping[str, torch.Tensor]
    origin: Origin
    device: torch.device
    dtype: torch.dtype

    def __repr__(self) -> str:
        c = self.config
        layers = f"{c.n_layers} + {c.n_decoder_layers}" if c.n_decoder_layers else str(c.n_layers)
        return f"<Model {self.name}: {layers} layers x {c.n_heads} heads, d_model {c.d_model}, {self.origin.kind}>"
