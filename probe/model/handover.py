"""A trace in the form that other packages draw: the keyword arguments of CircuitsVis and of BertViz. Neither is needed here.

    circuitsvis.attention.attention_heads(**trace.to_circuitsvis(layer=3))     one layer, every head
    bertviz.head_view(**trace.to_bertviz())                                    every layer and head; model_view takes the same
    bertviz.head_view(**pair.to_bertviz())                                     encoder, decoder and cross-attention

Both draw queries as rows, as a Trace holds them. BertViz wants a batch axis of 1 per layer, CircuitsVis none.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from probe.errors import InputError

if TYPE_CHECKING:
    from probe.model.pairs import PairTrace
    from probe.model.records import Trace


def for_circuitsvis(trace: "Trace", layer: int) -> dict[str, Any]:
    """`attention: head query_pos key_pos` of one layer, the tokens, a name per head, and whether later tokens are masked.

    Raises InputError for a layer that is not there.
    """
    layers = len(trace.pattern)
    if not 0 <= layer < layers:
        raise InputError(
            f"Handing a trace to CircuitsVis: layer is {layer}, expected 0 to {layers - 1}; choose one of these."
        )
    pattern = trace.pattern[layer]
    return {
        "attention": pattern,
        "tokens": list(trace.tokens.pieces),
        "attention_head_names": [f"L{layer}H{head}" for head in range(len(pattern))],
        "mask_upper_tri": bool((pattern.triu(1) == 0).all()),
    }


def for_bertviz(trace: "Trace") -> dict[str, Any]:
    """`attention`: one tensor per layer, `1 head query_pos key_pos`; the tokens as they stand in the text."""
    return {"attention": _layers(trace.pattern), "tokens": list(trace.tokens.pieces), "prettify_tokens": False}


def pair_for_bertviz(pair: "PairTrace") -> dict[str, Any]:
    """The three attentions of an encoder-decoder, each as `for_bertviz` has it, and the tokens of both texts."""
    return {
        "encoder_attention": _layers(pair.encoder.pattern),
        "decoder_attention": _layers(pair.decoder.pattern),
        "cross_attention": _layers(pair.cross.pattern),
        "encoder_tokens": list(pair.source.pieces),
        "decoder_tokens": list(pair.target.pieces),
        "prettify_tokens": False,
    }


def _layers(pattern: Tensor) -> list[Tensor]:
    return [layer[None] for layer in pattern]
