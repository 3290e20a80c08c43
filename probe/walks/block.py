"""What the script of the page reads, as plain JSON: every quantity at the drawn tokens, facts about
the family, the words of the neighbours, and a head's scores split into pairs of parts.

Arrays are float32 as measured. torch stops here and at the tables (`probe.walks.frames`).
"""

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from probe.model import blocks, qk
from probe.model.model import Model
from probe.model.tokens import Tokens, visible_token
from probe.tidy import DIGITS
from probe.walks.numbers import AXES, Agreement, Quantities
from probe.walks.pair import CausalTrace
from probe.walks.scene import AttentionView, Scene

# Quantities that the page also gets as sums over the tokens that are not drawn, for its totals.
SUMMED_UNDRAWN = ("pattern", "share", "logit")
# Quantities that are in tables only.
NOT_SHOWN = ("write_norm", "from_content", "missed_norm")
# Quantities of keys and values, which are alike in neighbouring heads that share them.
OF_KEYS = ("k", "k_norm", "v", "v_norm", "v_plane")
MOST_PAIRS = 6  # of parts that are shown of a score; the others are one number
Block = dict[str, Any]  # plain JSON


def page_block(
    model: Model,
    scene: Scene,
    quantities: Quantities,
    agreement: Agreement,
    causal_trace: CausalTrace | None = None,
) -> Block:
    """Everything that the page's script reads, without a head's scores (`score_rows`)."""
    arrays = {
        name: _at_drawn(name, quantity, scene)
        for name, quantity in quantities.items()
        # Token ids go into the page as words.
        if name not in NOT_SHOWN and not name.endswith("_ids")
    }
    arrays |= _undrawn_sums(scene, quantities)
    errors = torch.tensor([row["error"] for row in agreement])
    arrays["agreement"] = errors.unflatten(0, (scene.sizes[0], -1))
    if causal_trace is not None:
        arrays["trace"] = causal_trace.effects
    sharing = scene.sizes[1] // scene.view.weights.config.n_kv_heads
    words = {
        name: decoded(quantities[f"{name}_ids"], partial(visible_token, model))
        for name in ("lens", "nearest")
        if name in quantities
    }
    return _scene_facts(scene) | {
        "steps": [row["step"] for row in agreement if row["layer"] == 0],
        "arrays": {
            name: packed(array, shared_by=sharing if name in OF_KEYS else 1)
            for name, array in arrays.items()
        },
        "trace_columns": None if causal_trace is None else causal_trace.columns(),
        "words": words,
    }


def _scene_facts(scene: Scene) -> Block:
    """The drawn tokens, what is followed first, and the properties of the family and the walk."""
    view = scene.view
    n_layers, n_heads, d_model, d_head = scene.sizes
    return {
        "word": scene.word.text,
        "tokens": _token_facts(view.tokens, scene.drawn_queries),
        "source": _token_facts(view.source, scene.drawn_keys),
        "first": {
            "at": scene.drawn_queries.index(scene.at),
            "layer": scene.layer,
            "head": scene.head,
        },
        "sizes": {
            "layers": n_layers,
            "heads": n_heads,
            "d_model": d_model,
            "d_head": d_head,
            "tokens": len(view.tokens),
            "source": len(view.source),
        },
        "heads": [list(head) for head in scene.heads],
        "n_undrawn": len(scene.undrawn_keys),
        "causal": view.causal,
        "one_text": view.one_text,
        "second_tokens": _second_tokens(scene),
        "logit_word": None if scene.logit is None else scene.logit.word,
        **_family_facts(scene),
    }


def _second_tokens(scene: Scene) -> list[dict[str, object]] | None:
    """The tokens of the second sentence that its word can attend to; None if the two are not
    compared side by side.
    """
    if scene.compared is None:
        return None
    word = scene.compared.word
    n_allowed = word.at + 1 if scene.view.causal else len(word.tokens)
    return _token_facts(word.tokens, range(n_allowed))


def _family_facts(scene: Scene) -> Block:
    """The properties that the steps of the page depend on, from the table of architectures and
    the config.
    """
    config = scene.view.weights.config
    block = scene.view.weights.blocks[0]
    followed = scene.view.weights.blocks[scene.layer]
    source = scene.view.source
    special_positions = scene.view.special_tokens.nonzero()[:, 0].tolist()
    return {
        "norm": config.family.norm,
        "norm_first": config.family.norm_first,
        "first_unnormed": config.family.norm_first and not blocks.norms_input(block, config),
        "norm_after_write": config.family.norm_after_write,
        "scaled": config.family.divides_scores,
        "under_root": float(f"{config.query_scalar or config.d_head:.6g}"),
        "by_layer": config.scores_by_layer,
        "plain_root": not (config.query_scalar or config.scores_by_layer),
        "cap": config.attn_logit_softcapping,
        "parallel": config.family.parallel_attn_mlp,
        "biases": [*qk.POSITION_BIAS.values()],
        "positions": config.positions.kind if followed.rotated else "none",
        "kv_heads": config.n_kv_heads,
        "norm_heads": block.norm_q is not None,
        "biased": {"q": block.b_q is not None, "o": block.b_o is not None},
        "special_tokens": [source.pieces[pos] for pos in special_positions],
    }


def _at_drawn(name: str, quantity: Tensor, scene: Scene) -> Tensor:
    """A quantity at the drawn tokens."""
    positions = {"query": scene.drawn_queries, "key": scene.drawn_keys}
    for axis, axis_name in enumerate(AXES[name]):
        if axis_name in positions:
            quantity = quantity.index_select(axis, torch.tensor(positions[axis_name]))
    return quantity


def _undrawn_sums(scene: Scene, quantities: Quantities) -> Quantities:
    """The sums over the keys that are not drawn. `page_head query`"""
    undrawn = scene.undrawn_keys
    if not undrawn:
        return {}
    return {
        f"{name}_rest": quantities[name][:, scene.drawn_queries][..., undrawn].sum(-1)
        for name in SUMMED_UNDRAWN
        if name in quantities
    }


def _token_facts(side: Tokens, positions: Sequence[int]) -> list[dict[str, object]]:
    return [{"pos": pos, "label": side.labels[pos], "piece": side.pieces[pos]} for pos in positions]


def packed(array: Tensor, *, shared_by: int = 1) -> Block:
    """An array as float32 in base64, with its shape.

    shared_by: how many neighbours along the first axis are alike; one of them is stored
    """
    # Little-endian whatever the machine, because the page's script expects it.
    rows = array[::shared_by].detach().to(torch.float32).contiguous()
    raw = rows.numpy().astype("<f4").tobytes()
    data = base64.b64encode(raw).decode()
    return {"shape": list(rows.shape), "shared_by": shared_by, "data": data}


def decoded(ids: Tensor, text_of: Callable[[int], str]) -> Any:
    """Token texts in the shape of the ids."""
    if ids.dim() == 0:
        return text_of(int(ids))
    return [decoded(part, text_of) for part in ids]


def score_row(
    view: AttentionView, layer: int, head: int, at: int, sources: Sequence[int] | None = None
) -> Block:
    """The scores of a head from position `at` to `sources`, by default every token that it can
    read, before a cap.

    parts: the names of parts. scores: by position, the score, its MOST_PAIRS largest pairs as
    [number of the part at `at`, number of the part at the source, value], and the sum of the others
    """
    readable = qk.readable(view.attention, layer, at)
    keys = [key for key in readable if sources is None or key in sources]
    terms = qk.score_terms(qk.View(view.attention, layer, head, at, keys, view.pair))
    parts: dict[str, int] = {}  # by name its number, in order of appearance
    scores = {}
    for key, values in zip(keys, terms.values, strict=True):
        score = float(values.sum())
        largest = values.abs().topk(min(MOST_PAIRS, len(values))).indices.tolist()
        pairs = []
        for term in largest:
            query_part, key_part = terms.labels[term]
            numbers = [parts.setdefault(part, len(parts)) for part in (query_part, key_part)]
            pairs.append([*numbers, rounded(float(values[term]))])
        remainder = score - float(values[largest].sum())
        scores[key] = {"score": rounded(score), "pairs": pairs, "others": rounded(remainder)}
    return {"parts": list(parts), "scores": scores}


def score_rows(scene: Scene) -> Block:
    """`score_row` of the head that is followed first, of every token that is drawn and looks."""
    rows = {
        at: score_row(scene.view, scene.layer, scene.head, at, scene.drawn_keys)
        for at in scene.drawn_queries
    }
    return {"layer": scene.layer, "head": scene.head, "rows": rows}


def rounded(value: float) -> float:
    """A float with DIGITS significant digits, as in tables."""
    return float(f"{value:.{DIGITS}g}")
