"""One word of a survey by plain code: swaps by hooks on the Hugging Face model, axes by numpy; the
reference for `probe.experiments.survey_word.measure_word` for words with two sentences per sense.
"""

from collections.abc import Sequence

import numpy as np
import torch


def blocks_of(model):
    """The blocks, and the module that multiplies the z of all their heads with W_O."""
    if hasattr(model, "transformer"):
        return [(block, block.attn.c_proj) for block in model.transformer.h]
    return [(block, block.self_attn.o_proj) for block in model.model.layers]


def run(model, ids: Sequence[int], swap=None) -> tuple[np.ndarray, np.ndarray]:
    """At the last token: the residual stream `depth d_model`, and z `layer head*d_head`.

    swap: a layer, the columns of one head, and their new values
    """
    stream, z = [], []

    def entering(module, arguments, keywords):
        stream.append((arguments[0] if arguments else keywords["hidden_states"])[0, -1])

    def leaving(module, arguments, output):
        stream.append((output[0] if isinstance(output, tuple) else output)[0, -1])

    def heads(layer):
        def change(module, arguments):
            vectors = arguments[0].clone()
            if swap is not None and swap[0] == layer:
                vectors[0, -1, swap[1]] = torch.tensor(swap[2])
            z.append(vectors[0, -1])
            return (vectors,)

        return change

    blocks = blocks_of(model)
    handles = [blocks[0][0].register_forward_pre_hook(entering, with_kwargs=True)]
    handles += [block.register_forward_hook(leaving) for block, _ in blocks]
    handles += [out.register_forward_pre_hook(heads(n)) for n, (_, out) in enumerate(blocks)]
    try:
        with torch.no_grad():
            model(torch.tensor([list(ids)]))
    finally:
        for handle in handles:
            handle.remove()
    return tuple(torch.stack(part).numpy().astype(np.float64) for part in (stream, z))


def plain_word(model, pairs, d_head: int, heads) -> tuple[np.ndarray, dict, np.ndarray]:
    """The gap `pair depth` of two pairs of token ids (sense A, sense B), each along the axis of the
    other; the net effect `pair depth` of the heads, by (layer, head); and the distance of the two
    sentences of a pair in any direction `pair depth`, of which their difference along an axis is a
    part."""
    states = [[run(model, ids) for ids in pair] for pair in pairs]
    axes = []
    for (a, _), (b, _) in reversed(states):
        length = np.linalg.norm(a - b, axis=1, keepdims=True)
        axes.append((a - b) / np.where(length > 0, length, 1))
    gap = np.array([((a - b) * u).sum(1) for ((a, _), (b, _)), u in zip(states, axes, strict=True)])
    net = {}
    for layer, head in heads:
        columns = slice(head * d_head, (head + 1) * d_head)
        effects = []
        for (ids_a, ids_b), ((a, z_a), (b, z_b)), u in zip(pairs, states, axes, strict=True):
            into_b, _ = run(model, ids_b, (layer, columns, z_a[layer, columns]))
            into_a, _ = run(model, ids_a, (layer, columns, z_b[layer, columns]))
            effects.append((((into_b - b) - (into_a - a)) * u).sum(1) / 2)
        net[layer, head] = np.array(effects)
    distance = np.array([np.linalg.norm(a - b, axis=1) for (a, _), (b, _) in states])
    return gap, net, distance
